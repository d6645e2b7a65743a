"""Targets by their text: facts, options, and errors that say what is accepted."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from weft.core.dtypes import dtype
from weft.core.errors import TargetError
from weft.targets.base import Target
from weft.targets.cpu import facts
from weft.targets.registry import find_target, known_forms

LINUX = "x86_64-unknown-linux-gnu"


def test_native_describes_this_machine():
    target = find_target("native")
    assert find_target("cpu").triple == target.triple and find_target(" native ") is target
    assert target.kind == "cpu" and target.is_host and target.cores >= 1
    assert all(size > 0 for size in target.cache_bytes[:2])
    assert target.vector_bytes in (0, 16, 32, 64)
    assert target.lanes(dtype("float32")) == max(1, target.vector_bytes // 4)
    assert find_target(target) is target
    lacking = next((f[1:] for f in sorted(target.features) if f.startswith(("-avx", "-sve"))), None)
    assert lacking is None or not find_target(f"native,features=+{lacking}").is_host
    assert find_target(target.triple).is_host and not find_target("wasm32-unknown-unknown").is_host
    assert set(target.scopes) >= {"global", "local", "shared"}


@pytest.mark.parametrize(
    "text, vector_bytes, registers, fma, pointer",
    [
        (LINUX, 16, 16, False, 8),
        (f"{LINUX},cpu=haswell", 32, 16, True, 8),
        (f"{LINUX},cpu=skylake-avx512", 64, 32, True, 8),
        (f"{LINUX},features=+avx512f", 64, 32, True, 8),
        (f"{LINUX},cpu=skylake-avx512,features=-avx512f", 32, 16, True, 8),
        (f"{LINUX},features=+avx2,+fma", 32, 16, True, 8),
        ("aarch64-unknown-linux-gnu", 16, 32, True, 8),
        ("riscv64-unknown-linux-gnu", 0, 32, True, 8),
        ("riscv64-unknown-linux-gnu,features=+v", 16, 32, True, 8),
        ("armv7-unknown-linux-gnueabihf", 16, 16, False, 4),
        ("armv7-unknown-linux-gnueabihf,cpu=cortex-a15", 16, 16, True, 4),
        ("wasm32-unknown-unknown", 16, 16, False, 4),
        ("wasm32-unknown-unknown,features=-simd128", 0, 0, False, 4),
    ],
)
def test_facts_by_text(text, vector_bytes, registers, fma, pointer):
    target = find_target(text)
    assert (target.vector_bytes, target.vector_registers, target.has_fma, target.pointer_bytes) == (
        vector_bytes, registers, fma, pointer,
    )  # fmt: skip
    assert target.name == text and str(target) == text


def test_features_that_only_the_system_tells(monkeypatch):
    """LLVM lists few of an AArch64 host's features: what it does not list is neither had nor lacked for certain."""
    monkeypatch.setattr(facts.Path, "read_text", lambda path: "processor : 0\nFeatures\t: fp asimd asimdhp asimddp\n")
    arm = facts.host_features({"neon": True, "sve": False})
    assert arm == {"neon", "-sve", "dotprod", "fullfp16", "-i8mm", "-bf16", "-sve2"}
    assert facts.host_features({"avx2": True, "avx512f": False}) == {"avx2", "-avx512f"}


def test_features_of_processors():
    rapids = find_target(f"{LINUX},cpu=sapphirerapids,cores=56")
    assert {"avx512bf16", "avx512vnni", "amx-tile", "f16c"} <= rapids.features and rapids.cores == 56
    cores = {
        cpu: find_target(f"aarch64-unknown-linux-gnu,cpu={cpu}").features for cpu in ("neoverse-n1", "cortex-a510")
    }
    assert "dotprod" in cores["neoverse-n1"] and "i8mm" not in cores["neoverse-n1"]
    assert not {"dotprod", "i8mm"} & find_target("aarch64-unknown-linux-gnu,cpu=neoverse-v1,features=-neon").features
    assert {"dotprod", "i8mm"} <= cores["cortex-a510"]  # no list of ours names it: LLVM's code shows it
    tile = find_target(f"{LINUX},features=+amx-tile,-avx2")
    assert "amx-tile" in tile.features and "-avx2" in tile.features and "avx2" not in tile.features
    without = find_target(f"{LINUX},cpu=sapphirerapids,features=-avx512f")
    assert not any(f.startswith("avx512") for f in without.features)
    changed = rapids.with_features("-amx-tile", "+avx512fp16")
    assert "amx-tile" not in changed.features and "avx512fp16" in changed.features


@pytest.mark.parametrize(
    "text, reason",
    [
        ("tpu", "unknown target 'tpu'"),
        ("", "unknown target ''"),
        (f"{LINUX},cpu=nonsuch", "LLVM knows no x86_64 processor named 'nonsuch'"),
        (f"{LINUX},speed=9", "'speed=9' is not one of cpu="),
        (f"{LINUX},cpu=haswell,cpu=haswell", "cpu is given twice"),
        (f"{LINUX},cores=none", "not a number from 1 up"),
        (f"{LINUX},features=avx2", "written as \\+name or -name"),
        (f"{LINUX},features=+avx2-fma", "LLVM knows no x86_64 feature named 'avx2-fma'"),
        ("x86_64", "three or four parts"),
        ("native,", "'' is not one of"),
    ],
)
def test_bad_texts_show_what_is_accepted(text, reason):
    with pytest.raises(TargetError, match=reason) as error:
        find_target(text)
    assert "native" in str(error.value) and "x86_64-unknown-linux-gnu" in str(error.value)


def test_what_is_no_text_is_refused():
    with pytest.raises(TargetError, match="a target is a text"):
        find_target(np.zeros(3))  # type: ignore[arg-type]
    assert any("native" in line for line in known_forms())


def test_targets_are_plain_values():
    target = find_target("aarch64-unknown-linux-gnu")
    again = pickle.loads(pickle.dumps(target))
    assert isinstance(again, Target) and again == target and hash(again) == hash(target)
    with pytest.raises(AttributeError):
        target.cores = 3


def test_a_target_whose_manifest_is_not_here_says_so():
    from dataclasses import replace

    bare = replace(find_target("native"), kind="nowhere")
    with pytest.raises(TargetError, match="no target of the kind 'nowhere' is registered"):
        bare.lower(None)
    with pytest.raises(TargetError, match="is no device"):
        find_target("native").generate(None)


def test_facts_are_the_same_text_in_every_process():
    """What kernels and cached models are known by: sets inside records have no order of their own."""
    code = "from weft.targets.base import fact_text; from weft.targets.registry import find_target; print(fact_text("
    code += "find_target('x86_64-unknown-linux-gnu,cpu=sapphirerapids')), fact_text(find_target('cuda:sm_90')))"
    runs = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout and b"amx" in runs[0].stdout and b"bfloat16" in runs[0].stdout
