"""The module file: what was saved runs again; what is damaged or foreign is refused in words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from tests.executor.graphs import attention, check, convnet, mlp, random_inputs
from tests.executor.test_compile import with_host_node
from weft.core.errors import WeftError
from weft.executor import compile, load
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved convnet."""
    path = tmp_path_factory.mktemp("module") / "net.weft"
    compile(convnet()).save(path)
    return path


@pytest.mark.parametrize("make", [convnet, attention])
def test_saved_modules_run_again(make, tmp_path):
    graph = make()
    compile(graph).save(tmp_path / "net.weft")
    module = load(tmp_path / "net.weft")
    assert [p.name for p in module.inputs] == [v.name for v in graph.inputs]
    assert [p.shape for p in module.outputs] == [v.tensor.static for v in graph.outputs]
    check(graph, random_inputs(graph, 3), module)


def test_another_process_runs_it(saved, tmp_path):
    graph = convnet()
    arrays = random_inputs(graph, 5)
    np.save(tmp_path / "x.npy", arrays[0])
    code = (
        "import sys, numpy as np; from weft.executor import load; "
        "np.save(sys.argv[3], load(sys.argv[1])(np.load(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run(command, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), interpret_graph(graph, arrays)[0], rtol=1e-4, atol=1e-6)


def test_symbolic_sizes_and_host_nodes_survive(tmp_path):
    graph = mlp(Var("batch"))
    module = compile(graph)
    module(np.zeros((3, 20), "float32"))
    module.save(tmp_path / "mlp.weft")
    again = load(tmp_path / "mlp.weft")
    for size in (3, 6):
        check(graph, random_inputs(graph, size, {"batch": size}), again)
    graph = with_host_node()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(graph).save(tmp_path / "host.weft")
        check(graph, [np.array([1, 1, 2] * 4, "float32")], load(tmp_path / "host.weft"))


def with_strings(count: int) -> Graph:
    """A constant of strings that is added to the end of strings that come in."""
    x, y = Value("x", TensorType("string", (count,))), Value("y", TensorType("string", (count,)))
    ending = Value("ending", TensorType("string", (count,)))
    texts = np.array([f"ending «{i}»\n" for i in range(count)], object)
    return Graph("strings", [x], [y], [Node("StringConcat", [x, ending], [y])], {ending: texts})


@pytest.mark.parametrize("count", [3, 40])
def test_constant_strings_survive(count, tmp_path):
    graph = with_strings(count)
    given = np.array([f"word {i} " for i in range(count)], object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(graph).save(tmp_path / "strings.weft")
        made = load(tmp_path / "strings.weft")(given)
    assert made.tolist() == interpret_graph(graph, [given])[0].tolist() and "«2»" in made[2]


@pytest.mark.parametrize("make", [convnet, attention, with_host_node, lambda: mlp(Var("batch"))])
def test_the_report_survives(make, tmp_path):
    graph = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compile(graph)
        for size in (2, 3):
            module.run(None, dict(zip([v.name for v in graph.inputs], random_inputs(graph, 1, {"batch": size}))))
        module.save(tmp_path / "net.weft")
        again = load(tmp_path / "net.weft")
        assert again.report() == module.report() and "kernel calls" in module.report()
        again.save(tmp_path / "twice.weft")
        assert load(tmp_path / "twice.weft").report() == module.report()


def test_nothing_is_pickled_and_weights_are_stored_plain(saved):
    with zipfile.ZipFile(saved) as archive:
        names = archive.namelist()
        assert "manifest.json" in names and archive.getinfo("weights.bin").compress_type == zipfile.ZIP_STORED
        assert all(name.endswith((".json", ".o", ".bin")) for name in names)


@pytest.mark.parametrize("damage", ["cut", "noise", "text", "missing", "weights", "manifest", "code"])
def test_damaged_files_are_refused(saved, tmp_path, damage):
    path = tmp_path / "bad.weft"
    data = bytearray(saved.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(1000))
    elif damage == "text":
        path.write_text("not a module")
    elif damage == "weights":
        with zipfile.ZipFile(saved) as archive:
            start = archive.getinfo("weights.bin").header_offset + 500
        data[start] ^= 0xFF
        path.write_bytes(data)
    elif damage in ("manifest", "code"):
        _rewrite(saved, path, damage)
    with pytest.raises(WeftError) as caught:
        load(path)
    assert "bad.weft" in str(caught.value) or "code" in str(caught.value)


def _rewrite(source, path, damage):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if damage == "manifest" and name == "manifest.json":
                manifest = json.loads(data)
                manifest["forms"][0]["weights"] = [99999]
                data = json.dumps(manifest).encode()
            if damage == "code" and name.endswith(".o"):
                data = b"this is no object file"
            new.writestr(name, data)


def test_other_machines_and_versions_are_named(saved, tmp_path):
    for key, change, text in (
        ("format", 99, "format 99"),
        ("format", 1, "format 1, written by Weft .* compile the model again"),
        ("target", {"name": "x", "triple": "riscv64-unknown-linux-gnu", "cpu": "x"}, "riscv64"),
        ("features", ["sse2", "quantum"], "quantum"),
    ):
        path = tmp_path / "foreign.weft"
        with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "manifest.json":
                    data = json.dumps({**json.loads(data), key: change}).encode()
                new.writestr(name, data)
        with pytest.raises(WeftError, match=text):
            load(path)


def test_a_failed_save_leaves_the_old_file(saved, tmp_path):
    path = tmp_path / "kept.weft"
    shutil.copy(saved, path)
    before = path.read_bytes()
    module = compile(convnet())
    module._executor.signature = None  # cannot be written
    with pytest.raises(AttributeError):
        module.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
