"""A saved module runs with numpy alone: where neither the compiler nor what it stands on can be imported."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.compiler.control.test_bodies import recurrent
from tests.compiler.graphs import mlp, random_inputs
from tests.compiler.saved.module_mutations import rewritten
from tests.compiler.saved.test_module_mutations import open_net as rows
from tests.compiler.saved.test_module_mutations import small_net
from tests.compiler.test_compile import with_host_node
from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.saved.store import LinkWarning, save_modules
from weft.core.errors import ArgumentError, TargetError
from weft.expr.nodes import Var
from weft.graph.ir import TensorType, Value
from weft.models.builder import Builder
from weft.runtime.jit import native_runtime
from weft.runtime.library import process_runtime
from weft.runtime.model.manifest import ModuleFileError
from weft.runtime.model.stored import StoredModel

# Of Weft only `core` and `runtime` can be imported: the compiler is blocked beside the layers below it.
BLOCKED = (
    "llvmlite rich onnx platformdirs ml_dtypes weft.expr weft.loop weft.te weft.schedule weft.codegen weft.ops "
    "weft.graph weft.plan weft.targets weft.frontends weft.tuner weft.models weft.compiler weft.builder weft.cli"
)
ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {}):
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Blocked())
import numpy as np
import weft
"""


def alone(code: str, *arguments: object, blocked: str = BLOCKED) -> str:
    """What a program prints that has numpy and nothing else."""
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", ALONE.format(blocked.split()) + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def changed(path: Path, change) -> bytes:
    """A file whose manifest was changed, with a checksum that fits."""
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    change(manifest)
    return rewritten(path, json.dumps(manifest))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "mlp.weft"
    weft.compile(mlp()).save(path)
    return path


def test_numpy_alone_runs_what_was_saved(tmp_path):
    """Bit for bit what the compiled module answers; sizes that nobody compiled are answered by the form for all."""
    for name, graph in (("net", small_net()), ("open", rows())):
        module = weft.compile(graph)
        cases = [random_inputs(graph, seed, {"rows": size}) for seed, size in enumerate((3, 1, 7, 40))]
        answers = [module(*arrays) for arrays in cases]
        module.save(tmp_path / f"{name}.weft")
        given = {f"{at}-{k}": array for at, arrays in enumerate(cases) for k, array in enumerate(arrays)}
        np.savez(tmp_path / f"{name}.npz", **given, **{f"answer{at}": one for at, one in enumerate(answers)})
    said = alone(
        """
for name in ("net", "open"):
    module, held = weft.load(f"{sys.argv[1]}/{name}.weft"), np.load(f"{sys.argv[1]}/{name}.npz")
    for at in range(4):
        arrays = [held[f"{at}-{k}"] for k in range(len(module.inputs))]
        answer = held[f"answer{at}"]
        assert np.array_equal(module(*arrays), answer), (name, at)
        assert np.array_equal(module.run(None, dict(zip([p.name for p in module.inputs], arrays)))[0], answer)
    print(module.report().splitlines()[2])
for wrong in (lambda: module.graph, lambda: module(np.zeros((0, 6), "float32"))):
    try:
        wrong()
    except weft.WeftError as error:
        print(error)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("llvmlite", "ml_dtypes", "rich", "platformdirs")))
""",
        tmp_path,
    )
    assert said.count("needs the compiler") == 2 and "pip install weft-compiler" in said
    assert "inputs of [[0, 6]]" in said and said.endswith("[]\n")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much memory is resident")
@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_what_a_loaded_model_takes_is_its_weights_and_little_more(tmp_path, name):
    """Resident after a call: 1.3 times the weights and 40 MB at most, Python and numpy among them; no OpenSSL."""
    graph = mlp() if name == "mlp" else weft.models.make(name, 1)
    weft.compile(graph).save(tmp_path / "model.weft")
    said = alone(
        """
before = set(sys.modules)
module = weft.load(sys.argv[1])
module(*[np.zeros(port.shape, port.dtype) for port in module.inputs])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
print({"_hashlib", "_ssl"} & (set(sys.modules) - before))
""",
        tmp_path / "model.weft",
    )
    resident, brought = said.splitlines()
    weights = sum(array.nbytes for array in graph.constants.values())
    assert int(resident) * 1024 <= 1.3 * weights + (40 << 20) and brought == "set()"


def test_types_of_ml_dtypes_are_asked_for_only_where_they_go_in_or_out(tmp_path):
    """Weights in bfloat16 are bytes to whoever runs them; an input of bfloat16 needs the package, in words."""
    b = Builder("narrow")
    x = b.input("x", (2, 4), "bfloat16")
    weft.compile(b.finish(b.node("Add", x, x))).save(tmp_path / "inputs.weft")
    inside = weft.compile(mlp(), precision="bf16")
    inside.save(tmp_path / "inside.weft")
    given = random_inputs(mlp())[0]
    np.save(tmp_path / "x.npy", given)
    np.save(tmp_path / "y.npy", inside(given))
    said = alone(
        """
held = [np.load(f"{sys.argv[1]}/{name}.npy") for name in "xy"]
assert np.array_equal(weft.load(sys.argv[1] + "/inside.weft")(held[0]), held[1])
try:
    weft.load(sys.argv[1] + "/inputs.weft")(np.zeros((2, 4), "float32"))
except weft.WeftError as error:
    print(error)
""",
        tmp_path,
    )
    assert "arrays of bfloat16 need the package ml_dtypes" in said and "pip install ml_dtypes" in said


def test_numpy_runs_what_the_host_runs(tmp_path):
    """Strings (beside open sizes), a loop that is not native, and a part that waits for shapes: with the operators of
    the package and numpy, but no compiler. What the compiler runs faster is said; without the operators all is."""
    b = Builder("words")
    text = b.input("text", (Var("many"),), "string")
    number = b.node("Mul", b.node("Cast", text, to=1), b.constant(np.float32(2)))
    words = b.finish(b.node("StringConcat", text, b.constant(np.array(["!"], object))), number)
    cases = {"words": (words, [np.array(["3.5", "-7"])]), "loop": recurrent(), "late": (with_host_node(), None)}
    for name, (graph, arrays) in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, arrays = weft.compile(graph), arrays or random_inputs(graph)
            made = module.run(None, {port.name: one for port, one in zip(module.inputs, arrays)})
            module.save(tmp_path / f"{name}.weft")
        rows = [one.astype(str) if one.dtype == object else one for one in (*arrays, *made)]
        np.savez(tmp_path / f"{name}.npz", *rows)
    said = alone(
        """
import warnings
for name in ("words", "loop", "late"):
    held = list(np.load(f"{sys.argv[1]}/{name}.npz").values())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = weft.load(f"{sys.argv[1]}/{name}.weft")
        print(name, "slowly" in str([one.message for one in caught]))
        made = module.run(None, {port.name: one for port, one in zip(module.inputs, held)})
    for one, wanted in zip(made, held[len(module.inputs):], strict=True):
        same = np.array_equal if one.dtype == object else lambda a, b: np.allclose(a, b, 1e-5, 1e-6)
        assert same(one, wanted), (name, one)
""",
        tmp_path,
        blocked="llvmlite rich onnx platformdirs ml_dtypes weft.compiler weft.builder weft.codegen",
    )
    assert said.split() == "words False loop True late True".split()
    said = alone(
        """
for name in ("words", "late"):
    try:
        weft.load(f"{sys.argv[1]}/{name}.weft")
    except weft.WeftError as error:
        print(error)
""",
        tmp_path,
    )
    assert said.count("has nodes that numpy runs (") == said.count("pip install weft-compiler, with --no-deps") == 2


def test_the_compiler_says_what_it_needs():
    code = "import sys, weft\nsys.modules['llvmlite'] = None\nweft.compile"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "weft.compile is a part of the compiler, which needs llvmlite: pip install weft-compiler" in done.stderr


def test_without_a_linker_it_is_saved_for_the_compiler(tmp_path, monkeypatch):
    def none(target):
        raise TargetError("there is no linker here")

    monkeypatch.setattr(llvm_compile, "_linker", none)
    module, path, arrays = weft.compile(mlp()), tmp_path / "mlp.weft", random_inputs(mlp())
    with pytest.warns(LinkWarning, match="need the compiler to run: there is no linker here"):
        module.save(path)
    again = weft.load(path)
    assert not isinstance(again._executor, StoredModel)
    np.testing.assert_array_equal(again(*arrays), module(*arrays))


def test_the_compiler_comes_when_it_is_asked_for(tmp_path):
    """A module from a file is profiled, looked into, saved with what was compiled since, and pickled."""
    graph = rows()
    module, arrays = weft.compile(graph), random_inputs(graph, 1, {"rows": 3})
    module(*arrays)
    module.save(tmp_path / "open.weft")
    again = weft.load(tmp_path / "open.weft")
    assert isinstance(again._executor, StoredModel) and again(np.zeros((0, 6), "float32")).shape == (0, 3)
    assert again.graph.inputs[0].name == "x" and again.target.is_host and again.specializations
    np.testing.assert_array_equal(again(*arrays), module(*arrays))
    again.save(tmp_path / "twice.weft")
    np.testing.assert_array_equal(weft.load(tmp_path / "twice.weft")(*arrays), module(*arrays))


def test_ranges_and_sizes_that_must_agree_survive(tmp_path):
    b = Builder("sum")
    for name, size in (("x", "n"), ("y", "m")):
        b.inputs.append(Value(name, TensorType("float32", (Var(size), 3))))
    graph = b.finish(b.relu(b.node("Add", *b.inputs)))
    weft.compile(graph, shapes={"x": (range(1, 9), 3), "y": (range(1, 9), 3)}).save(tmp_path / "sum.weft")
    again = weft.load(tmp_path / "sum.weft")
    (form,) = again._executor._part["forms"]
    assert form["key"] is None and form["open"]["equal"]
    x, y = np.ones((5, 3), "float32"), np.ones((1, 3), "float32")
    for a, c in ((x, x), (x, y), (y, x)):
        np.testing.assert_array_equal(again(a, c), a + c)
    with pytest.raises(weft.WeftError):
        again(x, np.ones((2, 3), "float32"))
    with pytest.raises(ArgumentError, match=r"compiled for sizes of range\(1, 9\)"):
        again(np.ones((9, 3), "float32"), y)


def test_a_form_for_all_sizes_is_sealed(tmp_path):
    module = weft.compile(rows(), shapes={"x": (range(1, 9), 6)})
    module.save(tmp_path / "open.weft")
    assert weft.load(tmp_path / "open.weft")(np.ones((4, 6), "float32")).shape == (4, 3)

    def smaller(manifest):
        opened = manifest["parts"][0]["forms"][0]["open"]
        opened["numbers"] = opened["numbers"].replace("s0 =", "s0 = 1 or")

    (tmp_path / "changed.weft").write_bytes(changed(tmp_path / "open.weft", smaller))
    with pytest.raises(ModuleFileError, match="does not fit its code"):
        weft.load(tmp_path / "changed.weft")


# ------------------------------------------------------------------------------------------------------------- machines


def test_the_best_part_that_runs_here_is_taken(saved, tmp_path):
    def several(manifest):
        (own,) = manifest["parts"]
        foreign = {**own, "target": {**own["target"], "triple": "s390x-ibm-linux-gnu", "name": "foreign"}}
        better = {**own, "features": [*own["features"], "quantum"], "target": {**own["target"], "name": "better"}}
        beyond = {**better, "flags": ["quantum"], "features": [*better["features"], "more"]}
        manifest["parts"] = [foreign, beyond, own, better]

    (tmp_path / "several.weft").write_bytes(changed(saved, several))
    assert "for better" in repr(weft.load(tmp_path / "several.weft"))

    def others(manifest):
        several(manifest)
        manifest["parts"] = manifest["parts"][:2]

    (tmp_path / "others.weft").write_bytes(changed(saved, others))
    with pytest.raises(ModuleFileError, match=f"s390x.*and for .*this machine is {platform.machine()}.*not quantum"):
        weft.load(tmp_path / "others.weft")


@pytest.mark.slow
def test_a_file_holds_code_for_several_machines(tmp_path):
    """Compiled and linked for another architecture, and for this one with and without all it can do."""
    here = platform.machine()
    foreign = "aarch64-unknown-linux-gnu" if here == "x86_64" else "x86_64-unknown-linux-gnu,cpu=haswell"
    modules = [weft.compile(mlp(), target=one) for one in (foreign, f"{here}-unknown-linux-gnu", "native")]
    assert save_modules([one._executor for one in modules], tmp_path / "mlp.weft") == ["", "", ""]
    arrays = random_inputs(mlp())
    again = weft.load(tmp_path / "mlp.weft")
    assert "for native" in repr(again)
    np.testing.assert_array_equal(again(*arrays), modules[2](*arrays))
    with pytest.raises(TargetError, match="another machine"):
        modules[0](*arrays)
    save_modules([modules[0]._executor], tmp_path / "foreign.weft")
    with pytest.raises(ModuleFileError, match=f"compiled for {foreign[:7]}.*this machine is {here}"):
        weft.load(tmp_path / "foreign.weft")


# ---------------------------------------------------------------------------------------------------------------- code


def test_a_process_has_one_thread_pool(saved):
    """That of the first library in a process without the compiler serves what is compiled there later, too."""
    assert weft.load(saved)._executor._found and native_runtime() is process_runtime(dict)
    code = """
import sys, numpy as np, weft
from weft.runtime import library
weft.load(sys.argv[1])(np.ones((4, 20), "float32"))
first = library._native
assert first is not None and "llvmlite" not in sys.modules
from weft import te
from weft.runtime import jit
assert jit.native_runtime() is first
A = te.placeholder((64,), name="A")
B = te.compute((64,), lambda i: A[i] + 1, name="B")
b = np.empty(64, "float32")
weft.build(te.create_schedule(B.op), [A, B])(np.ones(64, "float32"), b)
assert (b == 2).all()
"""
    subprocess.run([sys.executable, "-c", code, str(saved)], check=True, timeout=200)


def test_libraries_are_closed_with_their_modules(saved):
    weft.load(saved)
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        weft.load(saved)(*random_inputs(mlp()))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_system_without_files_in_memory_gets_one_on_disk(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    assert weft.load(saved)(*random_inputs(mlp())).shape and not list(tmp_path.iterdir())
