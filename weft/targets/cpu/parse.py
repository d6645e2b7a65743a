"""Reads the text of a CPU target.

"native" | "cpu"                                                        this machine, with all it can do
"x86_64-unknown-linux-gnu"                                              the least machine of a triple
"x86_64-unknown-linux-gnu,cpu=skylake-avx512,features=+avx2,-fma,cores=8"     a certain machine
"""

from __future__ import annotations

import functools
from dataclasses import replace

from weft.codegen.llvm.child import host_triple
from weft.core.errors import TargetError, did_you_mean
from weft.runtime.topology import usable_processors
from weft.targets.base import MatrixFacts, Scope, Target
from weft.targets.cpu import facts
from weft.targets.cpu.machine import kept
from weft.targets.cpu.processors import PROCESSORS, features_of, unknown_features

FORMS = (
    'native                                   this machine ("cpu" means the same)',
    "native,features=-avx512f                 this machine without something it has",
    "x86_64-unknown-linux-gnu                 a machine by its LLVM triple: x86_64, aarch64, riscv64, armv7 or wasm32",
    "aarch64-unknown-linux-gnu,cpu=neoverse-n1,features=+dotprod+fullfp16,cores=8",
    "c                                        any machine that has a C compiler: one core, no vectors",
)
TILES = Scope("amx.tile", slots=8, slot_bytes=1024)
"""The tile registers of AMX: 16 rows of 64 bytes each."""
_KEYS = ("cpu", "features", "cores")


def _fail(text: str, reason: str) -> TargetError:
    return TargetError(
        f"target {text!r}: {reason}. A CPU target is written as\n" + "\n".join(f"  {form}" for form in FORMS)
    )


def parse(text: str) -> Target | None:
    """The target that a text stands for; None when it does not speak of a CPU."""
    if text == "c":  # what C says of every machine; its code for this one runs here
        return replace(_by_triple(text, host_triple()), vector_bytes=0, has_fma=False, cores=1, is_host=True)
    head, *rest = (part.strip() for part in text.split(","))
    is_here = head in ("native", "cpu")
    if not is_here and facts.architecture(head) is None:
        return None
    options = _options(text, rest)
    return _apply(text, native() if is_here else _by_triple(text, head), options)


def _options(text: str, parts: list[str]) -> dict[str, str]:
    """key=value pairs; a part that is "+x" or "-x" goes on with the features before it."""
    options: dict[str, str] = {}
    for part in parts:
        if part[:1] in ("+", "-") and "features" in options:
            options["features"] += "," + part
            continue
        key, equals, value = part.partition("=")
        if not equals or not value or key not in _KEYS:
            raise _fail(text, f"{part!r} is not one of {', '.join(f'{k}=…' for k in _KEYS)}")
        if key in options:
            raise _fail(text, f"{key} is given twice")
        options[key] = value
    return options


def _apply(text: str, base: Target, options: dict[str, str]) -> Target:
    arch = facts.architecture(base.triple)
    assert arch is not None
    cpu, features = base.cpu, base.features
    if "cpu" in options and options["cpu"] != cpu:
        cpu, known = options["cpu"], PROCESSORS.get(options["cpu"])
        found = features_of(base.triple, cpu, arch, facts.ARCHITECTURES[arch].features)
        if found is None:
            raise _fail(text, f"LLVM knows no {arch} processor named {cpu!r}{did_you_mean(cpu, PROCESSORS)}")
        features = found
        base = base if known is None else replace(base, cache_bytes=known.caches, cores=known.cores)
    changes = _changes(text, options.get("features", ""))
    unknown = unknown_features(base.triple, tuple(sorted(name for _, name in changes)))
    if unknown:
        raise _fail(text, f"LLVM knows no {arch} feature named {unknown[0]!r}")
    for sign, name in changes:
        features = (features - {name, f"-{name}"}) | {name if sign == "+" else f"-{name}"}
    features = _implied(arch, features)
    cores = base.cores
    if "cores" in options:
        if not options["cores"].isdigit() or int(options["cores"]) < 1:
            raise _fail(text, f"cores is {options['cores']!r}, not a number from 1 up")
        cores = int(options["cores"])
    width, registers = facts.vectors(arch, features)
    tiles = {TILES.name: TILES} if "amx-tile" in features else {}
    runs_here = base.triple == host_triple() and not any(f"-{feature}" in native().features for feature in features)
    return replace(
        base, name=text, cpu=cpu, features=features, cores=cores, vector_bytes=width, vector_registers=registers,
        has_fma=facts.fused(arch, features), scopes={**base.scopes, **tiles}, is_host=runs_here,
        matrix=_matrix(features), narrow_products=frozenset({"bfloat16"} if "amx-tile" in features else ()),
        precisions=frozenset({"bf16", "fp16"} if facts.halves(arch, features) else {"bf16"}),
    )  # fmt: skip


def _matrix(features: frozenset[str]) -> MatrixFacts | None:
    """Tiles of 16 rows; without those, squares of two, or dot products of unsigned bytes in vectors."""
    if "amx-tile" in features:
        return MatrixFacts(frozenset({"bfloat16", "uint8", "int8"}), rows=16, most_bytes=2)
    if "i8mm" in features:
        return MatrixFacts(frozenset({"uint8", "int8"}), rows=2, together=8)
    return MatrixFacts(frozenset({"uint8"})) if "avx512vnni" in features else None


def _changes(text: str, features: str) -> list[tuple[str, str]]:
    """ "+avx2+fma,-avx512f" as [("+", "avx2"), ("+", "fma"), ("-", "avx512f")]; names may have hyphens inside."""
    changes: list[tuple[str, str]] = []
    for part in filter(None, features.split(",")):
        if part[0] not in "+-" or part.endswith("+"):
            raise _fail(text, "features are written as +name or -name, with commas between")
        first, *others = part[1:].split("+")
        changes += [(part[0], first), *(("+", name) for name in others)]
    return changes


_NEEDS_NEON = frozenset({"dotprod", "i8mm", "fullfp16", "bf16", "sve", "sve2"})
_WITHOUT = {"avx": ("avx2", "fma", "f16c"), "avx2": ("avx512f", "avxvnni")}
"""What goes when a feature is taken away; with avx512f goes everything that starts with avx512."""


def _implied(arch: str, features: frozenset[str]) -> frozenset[str]:
    """Features that are only there with others, added or taken away with them (LLVM does the same)."""
    result = set(features)
    if "-neon" in result:
        result -= _NEEDS_NEON
    if arch == "x86_64":
        for feature, dependents in _WITHOUT.items():
            if f"-{feature}" in result:
                result = (result - set(dependents)) | {f"-{dependent}" for dependent in dependents}
        if "-avx512f" in result:
            result = {f"-{f}" if f.startswith("avx512") else f for f in result}
        if any(f.startswith("avx512") for f in result):
            result |= {"avx512f"}
        if "avx512f" in result:
            result |= {"avx2", "fma", "f16c"}
        if result & {"avx2", "fma", "f16c"}:
            result |= {"avx"}
    return frozenset(result)


def _by_triple(text: str, triple: str) -> Target:
    """The least machine of an architecture."""
    if len(triple.split("-")) < 3:
        raise _fail(text, "a triple has three or four parts, such as x86_64-unknown-linux-gnu")
    arch = facts.architecture(triple)
    if arch is None:
        others = ", ".join(facts.ARCHITECTURES)
        raise TargetError(f"this machine ({triple}) is not one that Weft compiles for: {others}")
    return replace(facts.ARCHITECTURES[arch], name=text, triple=triple)


@functools.lru_cache(maxsize=1)
def native() -> Target:
    """This machine; what its features add is said where its text is read."""
    import llvmlite.binding as llvm

    least = _by_triple("native", host_triple())
    features = facts.host_features(dict(llvm.get_host_cpu_features())) or least.features
    cpu, caches = str(llvm.get_host_cpu_name()), facts.host_caches(least.cache_bytes)
    cores = len(usable_processors())
    return replace(least, cpu=cpu, features=features, measured=kept(cpu), cache_bytes=caches, cores=cores, is_host=True)
