"""The shared library: it builds with a C compiler, runs without Python, and gives what the module gives."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.compiler.graphs import attention, mlp, random_inputs
from tests.compiler.test_compile import with_host_node
from weft.codegen.llvm.compile import emit_object, jit
from weft.compiler import compile, load
from weft.compiler.export import ExportError, export_library
from weft.compiler.export.plan import c_name
from weft.core.errors import TargetError
from weft.expr.nodes import Var
from weft.graph.ir import Graph
from weft.models import make
from weft.models.builder import Builder
from weft.targets.cpu.startup import requirements, startup_ir
from weft.targets.registry import find_target


def c_compiler() -> list[str] | None:
    """A C compiler: the system's, or the one in the ziglang package."""
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="no C compiler on this machine")


def run_example(folder, name, arrays, *compiler_options):
    """Builds main.c, runs it on files of the arrays in an empty environment, and gives what it printed."""
    command = [*c_compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "main.c", "-L.", f"-l{name}", "-o", "main"]
    subprocess.run([*command, *compiler_options], cwd=folder, check=True, timeout=200)
    files = []
    for at, array in enumerate(arrays):
        (folder / f"in{at}.bin").write_bytes(array.tobytes())
        files.append(f"in{at}.bin")
    done = subprocess.run(
        ["./main", *files], cwd=folder, env={"LD_LIBRARY_PATH": "."}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def output(folder, number, like):
    return np.frombuffer((folder / f"output_{number}.bin").read_bytes(), like.dtype).reshape(like.shape)


@needs_compiler
@pytest.mark.parametrize("name", ["dqn", "mlp", "attention"])
def test_the_example_gives_what_the_module_gives(tmp_path, name):
    graph = {"dqn": lambda: make("dqn", 1), "mlp": mlp, "attention": attention}[name]()
    module = compile(graph)
    files = export_library(module, tmp_path)
    assert [f.name for f in files] == [f"lib{name}.so", f"{name}.h", "main.c"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f.name for f in files)
    arrays = random_inputs(graph, 7)
    told = run_example(tmp_path, name, arrays)
    want = module.run(None, dict(zip([v.name for v in graph.inputs], arrays)))
    np.testing.assert_array_equal(output(tmp_path, 0, want[0]), want[0])
    assert graph.outputs[0].name in told


@needs_compiler
def test_a_saved_module_is_exported_too(tmp_path):
    graph = mlp()
    compile(graph).save(tmp_path / "mlp.weft")
    module = load(tmp_path / "mlp.weft")
    folder = tmp_path / "library"
    export_library(module, folder)
    arrays = random_inputs(graph, 2)
    run_example(folder, "mlp", arrays)
    want = module(*arrays)
    np.testing.assert_array_equal(output(folder, 0, want), want)


def several_outputs() -> Graph:
    """Outputs that are a kernel's, an input, a constant, and one of them twice."""
    b = Builder("several outputs!")
    x = b.input("x", (3, 4))
    graph = b.finish(b.node("Add", x, b.normal(4)))
    (x,), (y,), (constant,) = graph.inputs, graph.outputs, graph.constants
    return Graph(graph.name, graph.inputs, [y, x, constant, y], graph.nodes, graph.constants)


@needs_compiler
def test_outputs_that_no_kernel_writes(tmp_path):
    graph = several_outputs()
    module = compile(graph)
    export_library(module, tmp_path)
    arrays = random_inputs(graph, 1)
    run_example(tmp_path, "several_outputs", arrays)
    want = module.run(None, {"x": arrays[0]})
    for number, array in enumerate(want):
        np.testing.assert_array_equal(output(tmp_path, number, array), array)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("bytes", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The MLP's library, loaded, with the folder that it is in."""
    folder = tmp_path_factory.mktemp("library")
    try:
        files = export_library(compile(mlp()), folder)
    except TargetError:
        pytest.skip("no linker on this machine")
    made = ctypes.CDLL(str(files[0]))
    made.weft_mlp_input.restype = made.weft_mlp_output.restype = ctypes.POINTER(Tensor)
    made.weft_mlp_error.restype = ctypes.c_char_p
    return made


def test_the_library_describes_itself(library):
    (x,) = library.weft_mlp_input(0)[:1]
    assert (x.name, x.dtype, x.bytes, x.shape[: x.rank]) == (b"x", b"float32", 320, [4, 20])
    assert library.weft_mlp_output(0)[0].shape[:2] == [4, 7]
    assert not library.weft_mlp_input(1) and not library.weft_mlp_input(-1)
    assert library.weft_mlp_error(0) == b"no error" and library.weft_mlp_error(99) == b"an unknown error"


def test_bad_arguments_are_codes(library):
    assert library.weft_mlp_create(1, None) == 2
    model = ctypes.c_void_p()
    assert library.weft_mlp_create(3, ctypes.byref(model)) == 0
    assert library.weft_mlp_threads(model) == 3
    room = (ctypes.c_float * 200)()
    good = (ctypes.c_void_p * 1)(ctypes.addressof(room))
    bad = (ctypes.c_void_p * 1)(None)
    for arguments in ((None, good, good), (model, None, good), (model, good, None), (model, bad, good)):
        assert library.weft_mlp_run(*arguments) == 2
    assert b"null" in library.weft_mlp_error(2)
    library.weft_mlp_destroy(model)
    library.weft_mlp_destroy(None)
    assert library.weft_mlp_create(0, ctypes.byref(model)) == 0 and library.weft_mlp_threads(model) >= 1
    library.weft_mlp_destroy(model)


UNLOAD = """
import ctypes, sys, _ctypes
library = ctypes.CDLL(sys.argv[1])
model = ctypes.c_void_p()
assert library.weft_dqn_create(2, ctypes.byref(model)) == 0
x, y = (ctypes.c_float * (4 * 84 * 84))(), (ctypes.c_float * 18)()
inputs, outputs = ((ctypes.c_void_p * 1)(ctypes.addressof(room)) for room in (x, y))
assert library.weft_dqn_run(model, inputs, outputs) == 0 and any(y)
assert library.weft_dqn_run(model, inputs, outputs) == 0
library.weft_dqn_destroy(model)
count = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("Threads"))
before = count()
_ctypes.dlclose(library._handle)
print(before, count(), sys.argv[1] in open("/proc/self/maps").read())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_unloading_ends_the_workers(tmp_path):
    try:
        files = export_library(compile(make("dqn", 1)), tmp_path)
    except TargetError:
        pytest.skip("no linker on this machine")
    done = subprocess.run(
        [sys.executable, "-c", UNLOAD, str(files[0])], capture_output=True, text=True, check=True, timeout=60
    )
    before, after, mapped = done.stdout.split()
    assert (before, after, mapped) == ("2", "1", "False")


def test_host_nodes_and_open_shapes_are_refused_by_name(tmp_path):
    with pytest.warns(UserWarning):
        module = compile(with_host_node())
    (node,) = [item.node for item in module.specializations[0].host_nodes]
    with pytest.raises(ExportError, match=node.op):
        export_library(module, tmp_path / "a")
    module = compile(mlp(Var("batch")))
    with pytest.raises(ExportError, match=r"x is float32\[batch, 20\].*--shape"):
        export_library(module, tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_names_are_made_for_c():
    assert c_name("my-model v1.2") == "my_model_v1_2" and c_name("3d") == "model_3d" and c_name("…") == "model"
    assert c_name("x" * 300) == "x" * 100


def test_the_processor_is_checked():
    target = find_target("native")
    if not target.triple.startswith("x86_64"):
        pytest.skip("the check is for x86-64")
    wide = target.with_features("avx512f", "amx-tile")
    masks, states = requirements(wide, with_tiles=False)
    assert masks[(7, 0, 1)] >> 16 & 1 and states == 0xE6 and not masks.get((7, 0, 3), 0) >> 24 & 1
    assert requirements(wide, with_tiles=True)[0][(7, 0, 3)] >> 24 & 1
    text = "declare void @llvm.x86.ldtilecfg(ptr)\ndefine void @f(ptr %a, ptr %b) {\n  "
    text += "call void @llvm.x86.ldtilecfg(ptr %b)\n  ret void\n}\n"
    tiles = emit_object(f'target triple = "{target.triple}"\n{text}', wide)
    plain = emit_object(f'target triple = "{target.triple}"\ndefine void @f() {{\n  ret void\n}}\n', wide)
    assert "@syscall(i64 158" not in startup_ir(wide, [plain]) and "@syscall(i64 158" in startup_ir(
        wide, [plain, tiles]
    )


def test_a_processor_that_lacks_something_is_told(tmp_path):
    """A feature that no processor has yet stands in for a missing one: its bit is reserved and reads 0."""
    import weft.targets.cpu.startup as startup

    native = find_target("native")
    if not native.triple.startswith("x86_64"):
        pytest.skip("the check is for x86-64")

    def answer(text):
        text = f'target triple = "{native.triple}"\n' + text.replace("define internal", "define")
        address, keep = jit(text.replace("@weft.startup", "@startup_check"), native)
        return ctypes.CFUNCTYPE(ctypes.c_int32)(address("startup_check"))()

    assert answer(startup_ir(native, [])) == 0
    bits = startup._BITS[(7, 0, startup._C)]
    bits["quantum"] = 15
    try:
        assert answer(startup_ir(native.with_features("quantum"), [])) == 3
    finally:
        del bits["quantum"]
