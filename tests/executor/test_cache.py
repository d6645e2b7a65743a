"""The cache of compiled models: the same model is read, everything else is compiled, damage and rivals do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.executor.graphs import attention, check, convnet, mlp, random_inputs
from tests.executor.test_compile import with_host_node
from tests.hosts import lesser
from weft.core.knobs import knobs
from weft.executor import cache, compile, load
from weft.executor.specialize import Executor
from weft.expr.nodes import Var
from weft.graph.ir import Graph


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own, in which everything is kept; and a count of real compilations."""
    monkeypatch.setattr(cache, "LEAST_SECONDS", 0.0)
    with knobs.override(cache_dir=tmp_path, cache=True):
        yield tmp_path / "models"


@pytest.fixture
def built(monkeypatch):
    """The graphs that were really compiled."""
    names: list[str] = []
    plain = Executor._build

    def counting(self, shapes, values):
        names.append(self.graph.name)
        return plain(self, shapes, values)

    monkeypatch.setattr(Executor, "_build", counting)
    return names


@pytest.mark.parametrize("make", [convnet, attention])
def test_the_same_model_is_read(folder, built, make):
    graph = make()
    arrays = random_inputs(graph)
    first = compile(graph)(*arrays)
    assert len(built) == 1 and len(list(folder.iterdir())) == 1
    module = compile(make())
    assert len(built) == 1
    np.testing.assert_array_equal(module(*arrays), first)
    check(graph, arrays, module)


def test_what_a_form_was_made_of_is_made_again_when_asked_for(folder, built):
    compile(convnet())
    module = compile(convnet())
    assert len(built) == 1
    assert "kernel calls" in module.report() and len(module.specializations[0].launches) > 3
    assert len(built) == 2
    check(convnet(), random_inputs(convnet()), module)


def test_another_model_shape_or_setting_is_another_entry(folder, built):
    compile(mlp(4))
    changed = mlp(4)
    value, array = next((v, a) for v, a in changed.constants.items() if a.size > 100)
    other = array.copy()
    other[0] = -other[0]
    compile(Graph(changed.name, changed.inputs, changed.outputs, changed.nodes, {**changed.constants, value: other}))
    compile(mlp(5))
    with knobs.override(fuse=False):
        compile(mlp(4))
    compile(mlp(4), target=lesser(x86=("-avx512f",))[0])
    assert len(built) == 5 and len(list(folder.iterdir())) == 5
    with knobs.override(num_threads=1):
        compile(mlp(4))
    assert len(built) == 5


def test_shapes_bound_by_a_call_are_kept_too(folder, built):
    graph = mlp(Var("batch"))
    module = compile(graph)
    for size in (2, 3):
        module(np.zeros((size, 20), "float32"))
    again = compile(mlp(Var("batch")))
    for size in (3, 2):
        check(graph, random_inputs(graph, size, {"batch": size}), again)
    assert len(built) == 2


def test_host_nodes_warn_and_run(folder, built):
    graph = with_host_node()
    for _ in range(2):
        with pytest.warns(UserWarning, match="unique_2"):
            module = compile(graph)
        check(graph, [np.array([3, 1, 3, 2] * 3, "float32")], module)
    assert len(built) == 2  # the graph, and what follows the host node


def test_a_cached_model_is_saved_without_compiling(folder, built, tmp_path):
    graph = convnet()
    compile(graph)
    compile(graph).save(tmp_path / "net.weft")
    module = load(tmp_path / "net.weft")
    module.save(tmp_path / "again.weft")
    check(graph, random_inputs(graph), load(tmp_path / "again.weft"))
    assert len(built) == 1


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "weights", "folder"])
def test_damage_is_noticed_and_mended(folder, built, damage):
    graph = convnet()
    program = compile(graph).specializations[0].runner.program
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(5000))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "weights":
        weights = max(program.weights, key=lambda array: array.nbytes)
        at = bytes(data).find(weights.reshape(-1)[-8:].tobytes())
        assert at > 0
        data[at] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
        path.mkdir()
    check(graph, random_inputs(graph), compile(graph))
    assert len(built) == 2
    if damage != "folder":
        compile(graph)
        assert len(built) == 2


def test_it_can_be_turned_off_and_small_things_are_not_kept(folder, built, monkeypatch):
    with knobs.override(cache=False):
        compile(mlp())
    assert not folder.exists()
    monkeypatch.setattr(cache, "LEAST_SECONDS", 1e9)
    compile(mlp())
    assert len(built) == 2 and not folder.exists()


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, built, monkeypatch):
    monkeypatch.setattr(cache, "LEAST_SECONDS", 0.0)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with knobs.override(cache_dir=blocked):
        check(mlp(), random_inputs(mlp()), compile(mlp()))


def test_the_size_is_bounded_and_the_oldest_go_first(folder, built):
    for batch in (1, 2, 3):
        compile(mlp(batch))
        for path in folder.iterdir():
            os.utime(path, (time.time() - 50, path.stat().st_mtime - 50))
    compile(mlp(1))  # used again: now the youngest
    assert len(built) == 3
    count, size = cache.usage()
    assert count == 3
    (folder / ".begun-1").write_bytes(b"x")
    os.utime(folder / ".begun-1", (1, 1))
    cache.clear(size * 2 // 3)
    assert cache.usage()[0] in (1, 2) and not (folder / ".begun-1").exists()
    compile(mlp(1))
    assert len(built) == 3
    with knobs.override(cache_megabytes=0):
        compile(mlp(9))
    assert len(built) == 4
    cache.clear()
    assert cache.usage() == (0, 0)


def test_several_threads_may_compile_the_same_model(folder):
    graph = mlp()
    arrays = random_inputs(graph)
    want = compile(graph)(*arrays)
    cache.clear()
    wrong = []

    def work() -> None:
        with knobs.override(cache_dir=folder.parent):
            for _ in range(3):
                if not np.array_equal(compile(graph)(*arrays), want):
                    wrong.append(1)
                cache.clear(1000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_another_process_reads_it(folder, tmp_path):
    code = (
        "import sys, time, numpy as np\n"
        "from weft.executor import cache, compile\n"
        "from weft.executor.specialize import Executor\n"
        "from tests.executor.graphs import convnet, random_inputs\n"
        "cache.LEAST_SECONDS = 0\n"
        "if sys.argv[2] == 'again': Executor._build = None\n"
        "graph = convnet()\n"
        "np.save(sys.argv[1], compile(graph)(*random_inputs(graph)))\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "WEFT_CACHE_DIR": str(folder.parent)}
    made = []
    for turn in ("first", "again"):
        target = tmp_path / f"{turn}.npy"
        subprocess.run([sys.executable, "-c", code, str(target), turn], check=True, env=environment, cwd=root)
        made.append(np.load(target))
    np.testing.assert_array_equal(*made)


# ------------------------------------------------------------------------------------------------------ models' files


@pytest.fixture
def model(tmp_path):
    """A model's file."""
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    path = tmp_path / "net.onnx"
    onnx.save(to_onnx(convnet()), path)
    return path


@pytest.fixture
def read(monkeypatch):
    """How often a model's file was parsed."""
    from weft.frontends import onnx as frontend

    times: list[int] = []
    plain = frontend.load
    monkeypatch.setattr(frontend, "load", lambda *given: times.append(1) or plain(*given))
    return times


def test_a_file_that_was_compiled_is_not_even_parsed(folder, built, read, model, tmp_path):
    graph = convnet()
    arrays = random_inputs(graph)
    compile(model)
    assert len(read) == 1 and len(built) == 1
    module = compile(str(model))
    assert [p.name for p in module.inputs] == ["image"] and module.outputs[0].shape == (2, 10)
    check(graph, arrays, module)
    module.save(tmp_path / "net.weft")
    check(graph, arrays, load(tmp_path / "net.weft"))
    assert len(read) == 1 and len(built) == 1
    assert "kernel calls" in module.report()
    assert len(read) == 1 and len(built) == 1
    assert len(module.graph.nodes) == len(graph.nodes) and len(module.specializations[0].launches) > 3
    assert len(read) == 2 and len(built) == 2
    compile(model, shapes={"image": (2, 3, 16, 16)})
    assert len(read) == 3 and len(built) == 2  # the same graph, by another way


def test_a_changed_file_is_compiled_again(folder, built, read, model):
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    compile(model)
    module = compile(model)
    graph = convnet()
    changed = graph.replace(constants={v: a * 2 if a.size > 100 else a for v, a in graph.constants.items()})
    onnx.save(to_onnx(changed), model)
    check(changed, random_inputs(graph), compile(model))
    assert len(built) == 2
    check(graph, random_inputs(graph), module)
    with pytest.raises(Exception, match="changed or replaced"):
        module.graph  # noqa: B018


def test_weights_in_other_files_are_read_every_time(folder, built, read, model):
    onnx = pytest.importorskip("onnx")
    outside = model.with_name("outside.onnx")
    onnx.save(onnx.load(model), outside, save_as_external_data=True, location="weights", size_threshold=0)
    for _ in range(2):
        check(convnet(), random_inputs(convnet()), compile(outside))
    assert len(read) == 2 and len(built) == 1


@pytest.mark.parametrize("damage", ["link", "dangling", "form"])
def test_damage_behind_a_file_is_mended(folder, built, read, model, damage):
    compile(model)
    (link,) = folder.glob("*.link")
    (form,) = folder.glob("*.weft")
    if damage == "link":
        link.write_bytes(b"\xff../../etc")
    elif damage == "dangling":
        form.unlink()
    else:
        form.write_bytes(form.read_bytes()[:1000])
    for _ in range(2):
        check(convnet(), random_inputs(convnet()), compile(model))
    assert len(built) == (1 if damage == "link" else 2) and len(read) == 2
    form.unlink(missing_ok=True)
    cache.clear()
    assert not list(folder.iterdir())
