"""Reads the text of an OpenCL target: one of `FORMS`."""

from __future__ import annotations

from typing import Any

from weft.core.errors import TargetError
from weft.core.install import hint
from weft.targets.base import LocalDevice, Target, ThreadFacts
from weft.targets.opencl.machine import GENERIC, NAMED, device_facts

FORMS = (
    "opencl                                   the best OpenCL device of this machine (needs pyopencl)",
    "opencl:0                                 a certain OpenCL device of this machine",
    "opencl:generic                           what every OpenCL 1.2 device has, to compile for",
    f"opencl:{'|'.join(NAMED)}   GPUs of phones and boards, to compile for",
)
MISSING = (
    f"the target opencl needs the package pyopencl: {hint('opencl')}; for a machine without a GPU driver "
    "also 'pip install pyopencl[pocl]'"
)


def parse(text: str) -> Target | None:
    """The target that a text stands for; None when it does not speak of OpenCL."""
    head, colon, rest = text.partition(":")
    if head != "opencl":
        return None
    if rest == "generic":
        return _target(text, GENERIC, frozenset({"fp64"}), is_host=False)
    if rest in NAMED:
        facts, features = NAMED[rest]
        return _target(text, facts, frozenset(features), is_host=False, cpu=rest)
    if colon and not rest.isdigit():
        raise TargetError(
            f"target {text!r}: {rest!r} is not a device's number. An OpenCL target is written as\n"
            + "\n".join(f"  {form}" for form in FORMS)
        )
    found = devices()
    number = int(rest) if colon else 0
    if number >= len(found):
        listed = "\n".join(f"  opencl:{n}  {device.name.strip()}" for n, device in enumerate(found))
        raise TargetError(f"target {text!r}: this machine has {len(found)} OpenCL devices\n{listed}")
    return _of_device(text, found[number])


def devices() -> list[Any]:
    """The OpenCL devices of this machine, GPUs first; a TargetError where there are none."""
    try:
        import pyopencl
    except ImportError:
        raise TargetError(MISSING) from None
    found: list[Any] = []
    try:
        for platform in pyopencl.get_platforms():
            found += platform.get_devices()
    except pyopencl.Error as error:
        if not found:
            raise TargetError(
                f"this machine has no OpenCL device ({error}): install a driver, or PoCL with "
                "'pip install pyopencl[pocl]'"
            ) from None
    if not found:
        raise TargetError("this machine has OpenCL but no device: 'pip install pyopencl[pocl]' brings one")
    return sorted(found, key=lambda device: not device.type & pyopencl.device_type.GPU)


def local_devices() -> list[LocalDevice]:
    """The OpenCL devices of this machine."""
    try:
        found = devices()
    except TargetError:
        return []
    return [
        LocalDevice(_of_device(f"opencl:{n}", device), device.name.strip(), int(device.global_mem_size))
        for n, device in enumerate(found)
    ]


def _of_device(text: str, device: Any) -> Target:
    facts = device_facts(device)
    extensions = device.extensions.split()
    features = {name for name, key in (("fp16", "cl_khr_fp16"), ("fp64", "cl_khr_fp64")) if key in extensions}
    part = int(device.mem_base_addr_align) // 8
    return _target(text, facts, frozenset(features), is_host=True, cpu=device.name.strip(), part_bytes=max(part, 128))


def _target(
    text: str, facts: ThreadFacts, features: frozenset[str], is_host: bool, cpu: str = "generic", part_bytes: int = 512
) -> Target:
    return Target(
        kind="opencl", name=text, triple="opencl", cpu=cpu, features=features, vector_bytes=facts.vector_bytes,
        vector_registers=64, cache_bytes=(16 << 10, facts.cache_bytes, 0), cores=facts.multiprocessors, has_fma=True,
        is_host=is_host, threads=facts, part_bytes=part_bytes,
        narrow_products=frozenset({"bfloat16", "float16"}), precisions=frozenset({"bf16"} | features & {"fp16"}),
    )  # fmt: skip
