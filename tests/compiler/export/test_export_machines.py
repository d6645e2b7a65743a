"""Models exported for other machines: they run there (emulated, in Node, by a C compiler) and give what they should."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import exports
from benchmarks.machines import MACHINES, STRICT
from tests.compiler.graphs import mlp, random_inputs
from weft.compiler import compile, load
from weft.compiler.export import ExportError, export_library
from weft.compiler.export.tools import zig, zig_target
from weft.core import model
from weft.core.errors import TargetError
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.builder import Builder

QUICK = ["armv7", "riscv64", "x86_64 haswell", "wasm in Node", "C by gcc"]
WINDOWS, APPLE = "x86_64-pc-windows-gnu", "arm64-apple-macosx,cpu=apple-m1"

needs_zig = pytest.mark.skipif(zig() is None, reason="ziglang is not installed")


def small() -> Graph:
    """A convolution with an epilogue of mathematics, and a product that is large enough to be cut in tiles."""
    b = Builder("small")
    x = b.relu(b.conv(b.input("x", (1, 3, 9, 9)), 3, 8, 3, 1, 1))
    y = b.node("Tanh", b.node("GlobalAveragePool", x))
    return b.finish(b.dense(b.node("Flatten", y, axis=1), 8, 20), names=["y"])


def ready(name: str):
    machine = MACHINES[name]
    if missing := machine.missing() or (None if zig() else "ziglang is not installed"):
        pytest.skip(missing)
    return machine


def export_and_run(graph, machine, folder, arrays, beside=False):
    files = export_library(compile(graph, target=machine.target), folder, "small", machine.form, beside)
    assert (folder / "small.bin" in files) == beside
    return machine.run(folder, "small", arrays)


@pytest.mark.parametrize("name", QUICK)
def test_a_model_runs_on_another_machine(tmp_path, name):
    machine, graph = ready(name), small()
    arrays = random_inputs(graph, 3)
    (made,) = export_and_run(graph, machine, tmp_path, arrays)
    want = compile(graph)(*arrays)
    np.testing.assert_allclose(np.frombuffer(made, "float32").reshape(want.shape), want, rtol=1e-5, atol=1e-6)


def in_bytes() -> Graph:
    """Two convolutions and a product of bytes, with odd rows of places, and sums of every size between them."""
    b = Builder("bytes")
    x = b.input("x", (1, 3, 13, 13), "uint8")
    for inputs, outputs, kernel, steps in ((3, 16, 3, 1), (16, 24, 3, 2), (24, 8, 1, 1)):
        weight = b.constant(b.random.integers(-128, 128, (outputs, inputs, kernel, kernel)).astype(np.int8))
        x = b.node("ConvInteger", x, weight, kernel_shape=[kernel] * 2, strides=[steps] * 2, pads=[kernel // 2] * 4)
        x = b.node("Cast", b.node("BitwiseAnd", x, b.constant(np.int32(255))), to=2)
    rows = b.node("Reshape", x, b.constant(np.array([7, 56], np.int64)))
    weight = b.constant(b.random.integers(-128, 128, (56, 20)).astype(np.int8))
    return b.finish(b.node("MatMulInteger", rows, weight), names=["y"])


def test_products_of_bytes_by_the_matrix_instructions_of_another_machine(tmp_path):
    machine, graph = ready("aarch64 i8mm"), in_bytes()
    module = compile(graph, target=machine.target)
    code = [repr(launch.kernel.scheduled) for launch in module.specializations[0].launches]
    assert sum("neon_square_u8s8" in one for one in code) == 3
    image = np.random.default_rng(3).integers(0, 256, (1, 3, 13, 13)).astype(np.uint8)
    (made,) = export_and_run(graph, machine, tmp_path, [image])
    want = compile(graph)(image)
    np.testing.assert_array_equal(np.frombuffer(made, "int32").reshape(want.shape), want)


@pytest.mark.parametrize("name", ["aarch64", "wasm in Node", "C by gcc"])
def test_weights_may_lie_beside(tmp_path, name):
    machine, graph = ready(name), mlp()
    arrays = random_inputs(graph, 4)
    (made,) = export_and_run(graph, machine, tmp_path, arrays, beside=True)
    want = compile(graph)(*arrays)
    np.testing.assert_allclose(np.frombuffer(made, "float32").reshape(want.shape), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", exports.MODELS)
def test_the_matrix(tmp_path, model, machine):
    graph = exports.MODELS[model]()
    arrays = exports.inputs_of(graph)
    row = exports.measure(graph, ready(machine), tmp_path, arrays, exports.reference(graph, arrays))
    assert row.error <= exports.BAR, row


ASSERTION = "qemu-riscv64-static: ../target/translate.c:213: decode_save_opc: Assertion `ctx->insn_start' failed."


def test_a_crash_is_ours_and_an_emulator_is_asked_before(tmp_path, monkeypatch):
    """A program that dies with the emulator's own words is a fault of ours; an emulator that fails without us says so
    before it runs anything of ours."""
    machine = ready("riscv64")
    lines = f"fputs({json.dumps(ASSERTION)}, stderr); fputc(10, stderr); __builtin_trap();"
    (tmp_path / "main.c").write_text(f"#include <stdio.h>\nint main(void) {{ {lines} }}\n")
    subprocess.run([*zig(), "ar", "rc", "libx.a"], cwd=tmp_path, check=True)
    with pytest.raises(RuntimeError, match=r"ended with -\d+:\n.*Assertion"):
        machine.run(tmp_path, "x", [])
    (tmp_path / "qemu-riscv64-static").write_text(f"#!/bin/sh\necho {shlex.quote(ASSERTION)} >&2\nexit 134\n")
    (tmp_path / "qemu-riscv64-static").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "fails by itself (qemu-riscv64-static: " in replace(machine, probe="int main(void) { return 0; }").missing()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["armv7", "riscv64", "x86_64 haswell"])
def test_a_shared_library_for_another_machine(tmp_path, name):
    machine, graph = ready(name), small()
    if shutil.which(f"{machine.system}-gcc") is None:
        pytest.skip(f"{machine.system}-gcc is not installed: there is no system to load the library on")
    arrays = random_inputs(graph, 3)
    (tmp_path / "x.bin").write_bytes(arrays[0].tobytes())
    export_library(compile(graph, target=machine.target), tmp_path, "small", "so")
    command = [f"{machine.system}-gcc", "main.c", "-L.", "-lsmall", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([*machine.emulator, "-E", "LD_LIBRARY_PATH=.", "./main", "x.bin"], cwd=tmp_path, check=True)
    want = compile(graph)(*arrays)
    made = np.frombuffer((tmp_path / "output_0.bin").read_bytes(), "float32").reshape(want.shape)
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)


def test_code_for_another_machine_does_not_run_here():
    module = compile(scaled(2.0), target="riscv64-unknown-linux-gnu")
    with pytest.raises(TargetError, match=r"another machine.*weft export"):
        module(np.ones(16, "float32"))


@needs_zig
def test_objects_for_windows_and_macos(tmp_path):
    for target, magic in ((WINDOWS, b"\x64\x86"), (APPLE, b"\xcf\xfa\xed\xfe")):
        folder = tmp_path / target.split("-")[1]
        module = compile(scaled(2.0), target=target)
        files = export_library(module, folder, form="a")
        assert [file.name for file in files] == ["libscaled.a", "scaled.h", "main.c"]
        subprocess.run([*zig(), "ar", "x", "libscaled.a"], cwd=folder, check=True)
        members = sorted(folder.glob("*.o"))
        assert len(members) >= 4 and all(member.read_bytes()[: len(magic)] == magic for member in members)
        with pytest.raises(ExportError, match="--format a"):
            export_library(module, folder / "so", form="so")


def test_names_of_machines():
    assert zig_target("armv7-unknown-linux-gnueabihf") == "arm-linux-gnueabihf"
    assert zig_target("riscv64-unknown-linux-musl") == "riscv64-linux-musl"
    assert zig_target(WINDOWS) == "x86_64-windows-gnu" and zig_target("arm64-apple-macosx") == "aarch64-macos"
    assert zig_target("wasm32-unknown-unknown") == "wasm32-freestanding"


def scaled(factor: float) -> Graph:
    b = Builder("scaled", seed=int(factor))
    return b.finish(b.node("Mul", b.input("x", (16,)), b.constant(np.full(16, factor, "float32"))), names=["y"])


BOTH = """
#include "first.h"
#include "second.h"
#include <stdio.h>
int main(void) {
    float x[16] = {1}, y[16], z[16];
    const void *inputs[] = {x};
    void *ys[] = {y}, *zs[] = {z};
    weft_first *a;
    weft_second *b;
    if (weft_first_create(1, &a) || weft_second_create(1, &b)) return 1;
    if (weft_first_run(a, inputs, ys) || weft_second_run(b, inputs, zs)) return 2;
    printf("%g %g", y[0], z[0]);
    return 0;
}
"""


def test_two_static_libraries_in_one_program(tmp_path):
    machine = ready("aarch64")
    for name, factor in (("first", 2.0), ("second", 3.0)):
        export_library(compile(scaled(factor), target=machine.target), tmp_path, name, "a")
    (tmp_path / "main.c").write_text(BOTH)
    compiler, _, *rest = machine.build(tmp_path, "first")[0]
    subprocess.run([compiler, "main.c", "libsecond.a", *rest], cwd=tmp_path, check=True)
    if machine.is_here:
        assert subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True).stdout == "2 3"


# ---------------------------------------------------------------------------------------------------------- plain C


def test_c_takes_all_memory_from_the_caller(tmp_path):
    files = export_library(compile(small(), target="c"), tmp_path, form="c")
    assert [file.name for file in files] == ["small.c", "small.h", "main.c", "small_weights.c"]
    source = (tmp_path / "small.c").read_text()
    assert "malloc" not in source and "stdlib" not in source and "WEFT_SMALL_ARENA_BYTES" in files[1].read_text()


def test_names_that_no_file_and_no_comment_can_have(tmp_path):
    """The model is called main, its graph and tensors end comments and lines, and the folder has quotes."""
    b = Builder('x\nint broken; */ /* "')
    graph = b.finish(b.relu(b.input('a */ \n /* "?', (3,))), b.normal(2), names=["/* y", "z"])
    for form, machine in (("c", ready("C by gcc")), ("a", ready("aarch64")), ("wasm", ready("wasm in Node"))):
        folder = tmp_path / ('a "b"' + ("\\" if form == "a" else form))  # Node takes no backslash
        files = export_library(compile(graph, target=machine.target), folder, "main", form)
        assert len({file.name for file in files}) == len(files) and "main.h" not in {file.name for file in files}
        made, constant = machine.run(folder, "model_main", [np.float32([-1, 2, 0])])
        assert np.frombuffer(made, "float32").tolist() == [0, 2, 0] and len(constant) == 8


def test_a_model_without_kernels_is_c(tmp_path):
    b = Builder("fixed")
    graph = b.finish(b.normal(2, 3), names=["y"])
    machine = ready("C by gcc")
    export_library(compile(graph, target=machine.target), tmp_path, form="c")
    assert len(machine.run(tmp_path, "fixed", [])[0]) == 24


def test_an_index_outside_is_a_code_in_c(tmp_path):
    machine = ready("C by gcc")
    b = Builder("lookup")
    graph = b.finish(b.node("Gather", b.normal(5, 4), b.input("at", (2,), "int64"), axis=0), names=["rows"])
    export_library(compile(graph, target="c"), tmp_path, form="c")
    assert len(machine.run(tmp_path, "lookup", [np.array([0, 4])])[0]) == 32
    with pytest.raises(RuntimeError, match="outside of the dimension"):
        machine.run(tmp_path, "lookup", [np.array([0, 5])])


def test_c_of_a_form_from_the_cache_has_its_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "FORM_KEPT_SECONDS", 0.0)
    with knobs.override(cache=True, cache_dir=tmp_path / "cache"):
        for turn in ("first", "second"):
            export_library(compile(mlp(), target="c"), tmp_path / turn, form="c")
    first, second = ((tmp_path / turn / "mlp.c").read_text() for turn in ("first", "second"))
    assert "weft_fn_" in first and first == second


def test_a_module_file_is_no_c(tmp_path):
    compile(mlp(), target="c").save(tmp_path / "mlp.weft")
    module = load(tmp_path / "mlp.weft")
    for form in ("c", "a"):
        with pytest.raises(ExportError, match="from the model itself"):
            export_library(module, tmp_path / form, form=form)


def test_forms_for_other_machines_are_refused(tmp_path):
    module = compile(mlp())
    for form, text in (("c", "the target is c"), ("wasm", "wasm32-unknown-unknown"), ("dll", "one of the forms")):
        with pytest.raises(ExportError, match=text):
            export_library(module, tmp_path / form, form=form)


def test_bad_arguments_are_codes_in_c(tmp_path):
    machine = ready("C by gcc")
    export_library(compile(mlp(), target="c"), tmp_path, form="c")
    (tmp_path / "main.c").write_text(
        '#include "mlp.h"\n#include <stddef.h>\n'
        "static uint64_t arena[(WEFT_MLP_ARENA_BYTES + 7) / 8];\n"
        "int main(void) { const void *in[1] = {NULL}; void *out[1] = {NULL};\n"
        "  return weft_mlp_run(NULL, in, out) == 2 && weft_mlp_run(arena, NULL, out) == 2\n"
        "    && weft_mlp_run(arena, in, out) == 2 && weft_mlp_run((char *)arena + 1, in, out) == 2\n"
        "    && weft_mlp_input(1) == NULL && weft_mlp_output(0)->rank == 2 ? 0 : 1; }\n"
    )
    for command in machine.build(tmp_path, "mlp"):
        subprocess.run(command, cwd=tmp_path, check=True)
    assert STRICT and subprocess.run(["./main"], cwd=tmp_path).returncode == 0
