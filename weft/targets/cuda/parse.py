"""Reads the text of a CUDA target: one of `FORMS`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core.errors import TargetError
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.targets.base import LocalDevice, Scope, Target, ThreadFacts, plain_scopes
from weft.targets.cuda import driver
from weft.targets.cuda.machine import DEFAULT, architecture_facts, device_architecture

FORMS = (
    "cuda                                     the first NVIDIA GPU of this machine; without one, an H200",
    "cuda:0                                   a certain NVIDIA GPU of this machine",
    "cuda:sm_80                               an NVIDIA architecture, to compile for: sm_75 or later",
)
TILES = {
    name: Scope(name, 64, size) for name, size in (("mma.a", 512), ("mma.b", 512), ("mma.c", 1024), ("mma.w", 512))
}
"""Tiles that the threads of a warp hold together in registers: operands and sums of the tensor cores, in bytes."""
TILES["mma.s"] = Scope("mma.s", 1, 8192)
TILES["mma.h"] = Scope("mma.h", 1, 24576)
TILES["mma.row"] = Scope("mma.row", 64, 64, threads=8)
TILES["mma.few"] = Scope("mma.few", 64, 64, threads=4)
"""A number for each of 16 rows of a tile (four threads have the same ones); of up to 8 rows of float32, 16 elements at
a time, what a thread has of all of them (however many rows there are: registers that nobody uses cost nothing)."""
TILES["wgmma.c"] = Scope("wgmma.c", 64, 2048, threads=128)
TILES["wgmma.row"] = Scope("wgmma.row", 64, 256, threads=32)
"""Of four warps: 64 rows by 8 columns of sums, and a number for each of the rows (four threads have the same ones)."""
_PRECISIONS = {"fp16": "float16", "tf32": "tfloat32"}
"""Precisions, and what the tensor cores must take for them."""


def parse(text: str) -> Target | None:
    """The target that a text stands for; None when it does not speak of CUDA."""
    head, colon, rest = text.partition(":")
    if head != "cuda":
        return None
    if not colon:
        return of_device(0, text) if driver.device_count() else of_architecture(DEFAULT, text)
    if rest.isdigit():
        return of_device(int(rest), text)
    if rest.startswith("sm_"):
        return of_architecture(rest, text)
    raise TargetError(
        f"target {text!r}: {rest!r} is neither a device's number nor an architecture. A CUDA target is written as\n"
        + "\n".join(f"  {form}" for form in FORMS)
    )


def local_devices() -> list[LocalDevice]:
    """The NVIDIA GPUs of this machine."""
    found = []
    for number in range(driver.device_count()):
        opened = driver.context(number)
        opened.activate()
        found.append(LocalDevice(of_device(number, f"cuda:{number}"), opened.name, opened.memory()[1]))
    return found


def of_architecture(architecture: str, name: str) -> Target:
    """The target of an architecture's usual machine."""
    return _target(architecture, name, architecture_facts(architecture), is_host=False)


def of_device(number: int, name: str) -> Target:
    """The target of a device of this machine."""
    opened = driver.context(number)
    architecture = device_architecture(opened.attribute("major"), opened.attribute("minor"))
    measured: dict[str, Any] = {
        fact: opened.attribute(fact)
        for fact in (
            "multiprocessors", "warp", "block_threads", "multiprocessor_threads", "shared_bytes",
            "multiprocessor_shared_bytes", "registers", "cache_bytes",
        )
    }  # fmt: skip
    facts = replace(architecture_facts(architecture), **measured)
    return _target(architecture, name, facts, is_host=True)


def _target(architecture: str, name: str, facts: ThreadFacts, is_host: bool) -> Target:
    scopes = plain_scopes("global", "shared", "local", "warp")
    scopes.update(TILES)
    precisions = {name for name, kind in _PRECISIONS.items() if kind in facts.tensor_cores}
    return Target(
        kind="cuda", name=name, triple="nvptx64-nvidia-cuda", cpu=architecture, features=frozenset(),
        vector_bytes=facts.vector_bytes, vector_registers=255, cache_bytes=(0, facts.cache_bytes, 0),
        cores=facts.multiprocessors, has_fma=True, scopes=scopes, is_host=is_host, threads=facts, part_bytes=256,
        narrow_products=frozenset({"bfloat16", "float16", *(FLOAT8_FORMS if "float8" in facts.tensor_cores else ())}),
        precisions=frozenset({"bf16", *precisions}),
        channels_last=facts.tensor_cores & {"bfloat16", "float16", "int8"},
    )  # fmt: skip
