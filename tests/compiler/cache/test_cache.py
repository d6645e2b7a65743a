"""The cache of compiled models: the same model is read, everything else is compiled, damage and rivals do no harm."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graphs import attention, check, convnet, mlp, random_inputs
from tests.compiler.test_compile import with_host_node
from tests.hosts import lesser
from tests.runtime.test_fingerprint import forged_pair
from weft.compiler import compile, load
from weft.compiler.cache import models as cache
from weft.compiler.saved import store
from weft.compiler.specialize import Executor
from weft.core import model as numbers
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph import opspec
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.runtime import cache_folder
from weft.runtime.model import module_file


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own, in which everything is kept; and a count of real compilations."""
    monkeypatch.setattr(numbers, "FORM_KEPT_SECONDS", 0.0)
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
    with knobs.override(sizes="bound"):
        module, again = compile(graph), compile(mlp(Var("batch")))
    for size in (2, 3):
        module(np.zeros((size, 20), "float32"))
    for size in (3, 2):
        check(graph, random_inputs(graph, size, {"batch": size}), again)
    assert len(built) == 2


def test_the_form_for_all_sizes_is_kept_too(folder, built):
    graph = mlp(Var("batch"))
    for first in (2, 2, 3):
        module = compile(mlp(Var("batch")))
        for size in (first, 5, 1, 9):
            check(graph, random_inputs(graph, size, {"batch": size}), module)
        with pytest.raises(WeftError):
            module(np.zeros((4, 21), "float32"))
    assert len(built) == 3  # for 2, for 3 and for all


def test_host_nodes_warn_and_run(folder, built):
    graph = with_host_node()
    for _ in range(2):
        with pytest.warns(UserWarning, match="unique_2"):
            module = compile(graph)
        check(graph, [np.array([3, 1, 3, 2] * 3, "float32")], module)
    assert len(built) == 3  # the graph, and what follows the host node: for its size, and for all


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
    compile(graph)
    assert len(built) == 2


def test_it_can_be_turned_off_and_small_things_are_not_kept(folder, built, monkeypatch):
    with knobs.override(cache=False):
        compile(mlp())
    assert not folder.exists()
    monkeypatch.setattr(numbers, "FORM_KEPT_SECONDS", 1e9)
    compile(mlp())
    assert len(built) == 2 and not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, built, monkeypatch):
    monkeypatch.setattr(numbers, "FORM_KEPT_SECONDS", 0.0)
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
        "from weft.compiler import compile; from weft.core import model\n"
        "from weft.compiler.specialize import Executor\n"
        "from tests.compiler.graphs import convnet, random_inputs\n"
        "model.FORM_KEPT_SECONDS = 0\n"
        "if sys.argv[2] == 'again': Executor._build = None\n"
        "graph = convnet()\n"
        "np.save(sys.argv[1], compile(graph)(*random_inputs(graph)))\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "WEFT_CACHE_DIR": str(folder.parent)}
    made = []
    for turn in ("first", "again"):
        target = tmp_path / f"{turn}.npy"
        subprocess.run([sys.executable, "-c", code, str(target), turn], check=True, env=environment, cwd=root)
        made.append(np.load(target))
    np.testing.assert_array_equal(*made)


# --------------------------------------------------------------------------------------------------- nothing in its way


def entry_of(module):
    """The entry of a compiled model, and something that reads it."""
    executor = module._executor
    shapes = {value.name: value.tensor.static for value in executor.signature.inputs}
    entry = cache.entry_for(executor.graph, shapes, {}, executor.target, executor.precision)
    assert entry is not None and entry.path.exists()
    return entry, lambda: entry.read(lambda path: store.read_form(path, executor, shapes, lambda: None))


def test_a_flipped_bit_anywhere_is_a_miss(folder):
    entry, read = entry_of(compile(mlp()))
    data = entry.path.read_bytes()
    assert read() is not None
    for at in np.linspace(0, len(data) - 1, 60, dtype=int):
        entry.path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        found = read()
        # The last bytes are room for a signature, which an entry of the cache has not.
        assert (found is None and not entry.path.exists()) or at >= len(data) - 65, at
    for size in np.linspace(0, len(data) - 1, 20, dtype=int):
        entry.path.write_bytes(data[:size])
        assert read() is None and not entry.path.exists(), size


@pytest.mark.parametrize("error", [PermissionError(13, "no"), MemoryError(), zlib.error("invalid"), KeyError("x")])
def test_whatever_reading_raises_is_a_miss(folder, built, monkeypatch, error):
    want = compile(mlp())(*random_inputs(mlp()))

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(module_file, "checksum", fail)
        patched.setattr(module_file.ModuleFile, "__init__", fail)
        np.testing.assert_array_equal(compile(mlp())(*random_inputs(mlp())), want)
    assert len(built) == 2
    compile(mlp())


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_full_disk_leaves_nothing_behind(folder, built, monkeypatch, room):
    real = store.write_whole

    @contextmanager
    def full(path, **given):
        with real(path, **given) as file:
            left = [room]

            class Full:
                def write(self, data):
                    left[0] -= len(data)
                    if left[0] < 0:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    return file.write(data)

                def __getattr__(self, name):
                    return getattr(file, name)

            yield Full()

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_whole", full)
        check(mlp(), random_inputs(mlp()), compile(mlp()))
        assert not list(folder.iterdir())
    compile(mlp())
    compile(mlp())
    assert len(built) == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("place", ["", "models"])
def test_a_folder_that_others_can_write_is_not_used_and_that_is_said_once(
    tmp_path, built, caplog, monkeypatch, place, mode
):
    monkeypatch.setattr(numbers, "FORM_KEPT_SECONDS", 0.0)
    with knobs.override(cache_dir=tmp_path / "cache", cache=True):
        compile(mlp())
        folder = tmp_path / "cache" / "models"
        assert len(list(folder.iterdir())) == 1
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        (tmp_path / "cache" / place).chmod(mode)
        for _ in range(2):
            compile(mlp())
        assert len(built) == 3
        assert caplog.text.count("others may write in the cache folder") == 1
        (tmp_path / "cache" / place).chmod(0o755)
        compile(mlp())
        assert len(built) == 3


def test_a_folder_of_another_user_is_not_used(folder, built, caplog, monkeypatch):
    compile(mlp())
    monkeypatch.setattr(cache_folder.os, "geteuid", lambda: os.getuid() + 1)
    compile(mlp())
    assert len(built) == 2 and "belongs to another user" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives a folder away")
def test_a_folder_that_was_given_to_another_user_is_not_used(folder, built, caplog):
    compile(mlp())
    os.chown(folder.parent, 65534, -1)
    compile(mlp())
    assert len(built) == 2 and "belongs to another user" in caplog.text


# ---------------------------------------------------------------------------------------------------- what a key is of


def test_weights_solved_for_the_old_fingerprint_are_two_models(folder, built):
    """Two models whose weights agreed under the public keys of old: the second got the first one's answers."""
    x = np.eye(64, dtype="float32")
    for weights in forged_pair():
        b = Builder("forged")
        graph = b.finish(b.node("MatMul", b.input("x", (64, 64)), b.constant(weights.reshape(64, 32))))
        np.testing.assert_array_equal(compile(graph)(x), weights.reshape(64, 32))
    assert len(built) == 2


CUSTOM = """
import sys, numpy as np
import helper
from weft import te
from weft.compiler import compile
from weft.core import model
from weft.compiler.specialize import Executor
from weft.graph.opspec import register
from weft.graph.ir import Graph, Node, TensorType, Value
import weft.ops

model.FORM_KEPT_SECONDS = 0
built = []
plain = Executor._build
Executor._build = lambda self, *given: built.append(1) or plain(self, *given)
FACTOR = FACTOR_HERE

def scale(c, x):
    return te.compute(x.shape, lambda *at: helper.shift(x[at] * float(FACTOR)), name="scaled")

def meaning(c, x):
    return helper.shift(x * np.float32(FACTOR))

register("Scale", lambda c: [c.tensor(0)], meaning, scale, "injective", domain="mine")
x, y = (Value(name, TensorType("float32", (4,))) for name in "xy")
graph = Graph("custom", [x], [y], [Node("Scale", [x], [y], domain="mine")])
made = compile(graph)(np.ones(4, "float32"))
print(made[0], len(built))
"""


def test_an_operator_whose_code_changed_is_compiled_again(folder, tmp_path):
    """In its own code, a global that it names, and a function of another module that it calls."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}", "WEFT_CACHE_DIR": str(folder.parent)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def answer(factor: int, shift: str, code: str = CUSTOM) -> str:
        (tmp_path / "helper.py").write_text(f"OFFSET = 1\ndef shift(x):\n    return {shift}\n")
        script = code.replace("FACTOR_HERE", str(factor))
        command = [sys.executable, "-c", script]
        return subprocess.run(command, check=True, env=environment, cwd=tmp_path, capture_output=True, text=True).stdout

    assert answer(3, "x + OFFSET").split() == ["4.0", "1"]
    assert answer(3, "x + OFFSET").split() == ["4.0", "0"]
    assert answer(140, "x + OFFSET").split() == ["141.0", "1"]
    assert answer(3, "x - OFFSET").split() == ["2.0", "1"]
    assert answer(3, "x + OFFSET", CUSTOM.replace("float(FACTOR)", "float(FACTOR + 1)")).split() == ["5.0", "1"]
    assert answer(3, "x + OFFSET").split() == ["4.0", "0"]


def test_an_operator_that_cannot_be_described_is_not_kept(folder, built, monkeypatch, caplog):
    lock = threading.Lock()

    def evaluate(c, x):
        with lock:
            return x

    monkeypatch.setattr(opspec, "_TABLE", dict(opspec._TABLE))
    opspec.register("Locked", lambda c: [c.tensor(0)], evaluate, domain="mine")
    with caplog.at_level("INFO", logger="weft.compiler"):
        for _ in range(2):
            compile(mlp())
    assert len(built) == 2 and not list(folder.iterdir())
    assert "Locked" in caplog.text and "cannot be described" in caplog.text


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


def test_a_file_that_changes_while_it_is_compiled_is_not_linked(folder, built, model, monkeypatch):
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx
    from weft.frontends import onnx as frontend

    first, graph, plain = model.read_bytes(), convnet(), frontend.load
    changed = graph.replace(constants={v: a * 2 if a.size > 100 else a for v, a in graph.constants.items()})

    def late(*given):
        onnx.save(to_onnx(changed), model)
        return plain(*given)

    with monkeypatch.context() as patched:
        patched.setattr(frontend, "load", late)
        check(changed, random_inputs(graph), compile(model))
    model.write_bytes(first)
    check(graph, random_inputs(graph), compile(model))
    assert len(built) == 2


def test_weights_in_other_files_are_read_every_time(folder, built, read, model):
    onnx = pytest.importorskip("onnx")
    outside = model.with_name("outside.onnx")
    onnx.save(onnx.load(model), outside, save_as_external_data=True, location="weights", size_threshold=0)
    for _ in range(2):
        check(convnet(), random_inputs(convnet()), compile(outside))
    assert len(read) == 2 and len(built) == 1


@pytest.mark.parametrize("kind", ["*.link", "*.weft"])
@pytest.mark.parametrize("other", ["pipe", "folder", "endless"])
def test_what_took_the_place_of_an_entry_is_removed_and_not_waited_for(folder, model, kind, other):
    compile(model)
    (entry,) = folder.glob(kind)
    entry.unlink()
    if other == "pipe":
        os.mkfifo(entry)
    elif other == "folder":
        (entry / "inner").mkdir(parents=True)
    else:
        entry.symlink_to("/dev/zero")
    check(convnet(), random_inputs(convnet()), compile(model))
    assert entry.is_file() and not entry.is_symlink()


def test_a_pipe_is_no_model_and_is_not_waited_for(folder, tmp_path):
    pytest.importorskip("onnx")
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(WeftError, match="is not a file"):
        compile(tmp_path / "model.onnx")


def test_an_entry_in_a_folder_that_can_only_be_read_is_used(folder, built, read, model, monkeypatch):
    compile(model)
    compile(convnet())

    def refuse(*given, **more):
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, name, refuse)
    compile(model)
    compile(convnet())
    assert len(read) == 1 and len(built) == len(list(folder.glob("*.weft")))


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
