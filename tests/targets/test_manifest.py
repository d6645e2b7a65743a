"""Manifests of targets: what is checked when one is made, and a target that no other file knows.

`toy_target` is an accelerator with memory scopes, instructions, a stream and a device of its own. What the rest of Weft
does with it (build, compile, files, profiles, the command line) is the proof that nothing but a manifest is asked for.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import logging
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.cli.tiny import write_tiny
from tests.compiler.graphs import attention, check, mlp, random_inputs, recurrent
from tests.targets import toy_target
from weft import te
from weft.builder import DeviceBuilt
from weft.cli.main import main
from weft.compiler.cache import code_key
from weft.compiler.export.library import export_library
from weft.compiler.specialize import Executor
from weft.core.errors import RuntimeFault, TargetError, WeftError
from weft.expr.nodes import Var
from weft.models.builder import Builder
from weft.targets import registry
from weft.targets.base import Algorithms, DeviceSpec, Target, TargetSpec, parts_of
from weft.tuner.on_device import Run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def toy():
    """The toy, as long as a test runs."""
    registry.register(toy_target.TARGET)
    yield registry.find_target("toy")
    registry.unregister("toy")


def given(**changes):
    """A right manifest's parts, with some changed or (None) left out."""
    parts = {
        "kind": "half", "forms": ("half    a thing",), "parse": lambda text: None, "lower": lambda func, target: func,
        "schedule": lambda schedule, target, constants: None,
    }  # fmt: skip
    return {name: value for name, value in {**parts, **changes}.items() if value is not None}


# ------------------------------------------------------------------------------------------------------ what is checked


def test_a_right_manifest_is_made():
    spec = TargetSpec(**given(device=DeviceSpec(generate=lambda func, target: None, open=lambda target: None)))
    assert spec.parts()["device.open"](None) is None and spec.parts()["peaks"] is None
    assert TargetSpec(**given(examine=lambda *anything: ())).device is None


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"kind": None}, "kind is a name such as 'cuda', not None"),
        ({"kind": "my target"}, "kind is a name such as 'cuda', not 'my target'"),
        ({"forms": None}, "forms is a tuple of lines that show what parse reads, at least one, not None"),
        ({"forms": ()}, "at least one, not ()"),
        ({"forms": ("a\nb",)}, "forms is a tuple of lines"),
        ({"parse": None}, "parse is missing: parse is a function of (text)"),
        ({"lower": None}, "lower is missing: lower is a function of (func, target)"),
        ({"lower": "pipeline"}, "lower is a function of (func, target), not 'pipeline'"),
        ({"lower": lambda func: func}, "(func) cannot be called so"),
        ({"schedule": None}, "schedule is missing: schedule is a function of (schedule, target, constants)"),
        ({"schedule": lambda schedule, target: None}, "(schedule, target) cannot be called so"),
        ({"intrinsics": {}}, "intrinsics is a function of (target), not {}"),
        ({"peaks": lambda target: None}, "peaks is a function of (target, threads)"),
        ({"local_devices": lambda target: []}, "local_devices is a function of ()"),
        ({"device": lambda target: None}, "device is a DeviceSpec, or None for native code"),
        ({"device": DeviceSpec(open=lambda target: None)}, "device.generate is missing"),
        ({"device": DeviceSpec(stages=["ptx"])}, "device.stages is a mapping from names to pairs, not ['ptx']"),
        (
            {"device": DeviceSpec(generate=lambda f, t: None, open=lambda t: None, stages={"x": print})},
            "device.stages['x'] is a pair of a function (program, target) and a language",
        ),
        (
            {"device": DeviceSpec(generate=lambda f, t: None, open=lambda t: None, stages={"x": (lambda p: "", "c")})},
            "device.stages['x'] is a function of (program, target)",
        ),
        ({"algorithms": "winograd"}, "algorithms is a record Algorithms(…), not 'winograd'"),
        (
            {"algorithms": Algorithms(products=lambda target: None)},
            "products is a function of (target, model_bytes, sizes)",
        ),
        (
            {"device": DeviceSpec(generate=lambda f, t: None, open=lambda t: None), "startup": lambda t, codes: ""},
            "startup is for native code",
        ),
    ],
)  # fmt: skip
def test_a_wrong_manifest_says_which_part_and_what_is_expected(changes, sentence):
    with pytest.raises(TargetError, match=re.escape(sentence)) as error:
        TargetSpec(**given(**changes))
    assert "the manifest of the target" in str(error.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(TargetError) as error:
        TargetSpec(kind="half")
    assert all(f"{name} is" in str(error.value) for name in ("forms", "parse", "lower", "schedule"))


def test_kinds_are_unique_and_known(toy):
    for taken in ("toy", "cpu"):
        with pytest.raises(TargetError, match=f"a target of the kind '{taken}' is there already"):
            registry.register(replace(toy_target.TARGET, kind=taken))
    with pytest.raises(TargetError, match="by its manifest, a weft.targets.base.TargetSpec, not 'toy'"):
        registry.register("toy")  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="no target of the kind 'tpu' was registered"):
        registry.unregister("tpu")


def test_parse_gives_targets_of_its_kind():
    registry.register(TargetSpec(**given(parse=lambda text: toy_target.TOY if text == "half" else None)))
    try:
        with pytest.raises(TargetError, match="parse of the target 'half' gives a Target of that kind or None"):
            registry.find_target("half")
    finally:
        registry.unregister("half")


class Point:
    """An entry point of an installed package."""

    def __init__(self, name, spec):
        self.name, self.value, self.spec = name, f"{name}_package", spec

    def load(self):
        if isinstance(self.spec, Exception):
            raise self.spec
        return self.spec


def test_installed_packages_bring_targets(monkeypatch, caplog):
    points = [Point("broken", ImportError("no driver")), Point("toy", toy_target.TARGET)]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: points if group == "weft.targets" else [])
    registry._load_entry_points.cache_clear()
    registry._find.cache_clear()
    try:
        assert registry.find_target("native").kind == "cpu" and "toy" not in registry._registered
        with caplog.at_level(logging.WARNING, "weft.targets"):
            assert registry.find_target("toy").kind == "toy"
        assert "the target broken of the package broken_package cannot be used: no driver" in caplog.text
        assert any(line.startswith("toy ") for line in registry.known_forms())
    finally:
        registry.unregister("toy")


def test_our_own_manifests_name_functions_that_are_there():
    """Functions by `later` are imported when they are called: here all of Weft's own, with what they take."""
    for spec in registry.manifests():
        assert any(isinstance(given, functools.partial) for given in spec.parts().values())
        stages = [] if spec.device is None else [one for one, _ in spec.device.stages.values()]
        taken = [(given, known.get("takes")) for _, given, known in parts_of(spec)]
        for given, takes in [*taken, *[(one, ("program", "target")) for one in stages]]:
            if isinstance(given, functools.partial):
                module, _, function = given.args[0].partition(":")
                inspect.signature(getattr(importlib.import_module(module), function)).bind(*takes)


def test_looking_for_a_target_loads_no_schedules_and_no_drivers():
    program = """
import sys
from weft.targets.registry import find_target, known_forms
known_forms(), find_target("cuda:sm_90")
print([name for name in sys.modules if name.startswith("weft.targets.")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120)
    loaded = set(ast.literal_eval(done.stdout))
    heavy = {
        f"weft.targets.{name}" for name in ("cpu.families", "cuda.families", "cuda.device", "gpu.families", "cpu.amx")
    }
    assert done.returncode == 0 and "weft.targets.cpu.parse" in loaded and not heavy & loaded, done.stderr


# --------------------------------------------------------------------------------------- what generic code may not know


def test_nothing_above_targets_knows_a_machine_by_name():
    """Matrix units, dot products and GPUs are facts and parts of a manifest above `weft/targets`."""
    folders = [ROOT / "weft" / name for name in ("compiler", "loop", "graph", "schedule", "cli")]
    above = [path for folder in folders for path in folder.rglob("*.py")] + [ROOT / "weft/builder.py"]
    words = re.compile(r"amx|vnni|(target|machine)\.threads is|target\.package", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in above
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_facts_of_matrix_units():
    linux = "x86_64-unknown-linux-gnu"
    tiles = registry.find_target(f"{linux},cpu=sapphirerapids")
    assert tiles.matrix.rows == 16 and tiles.matrix.most_bytes == 2 and tiles.narrow_products == {"bfloat16"}
    dots = registry.find_target(f"{linux},cpu=cascadelake")
    assert dots.matrix.dtypes == {"uint8"} and dots.matrix.rows == dots.matrix.most_bytes == 1
    assert registry.find_target(f"{linux},cpu=haswell").matrix is None and not dots.narrow_products
    assert "fp16" in registry.find_target(f"{linux},cpu=haswell").precisions
    assert registry.find_target(linux).precisions == {"bf16"} and registry.find_target(linux).blocks_channels
    gpu = registry.find_target("cuda:sm_90")
    assert gpu.precisions == {"bf16", "fp16", "tf32"} and gpu.matrix is None and not gpu.blocks_channels
    assert gpu.on_device and not dots.on_device


# ---------------------------------------------------------------------------------------------- a target in one file


def test_the_toy_is_small():
    assert len(Path(toy_target.__file__).read_text(encoding="utf-8").splitlines()) < 300


def matmul(m, n, k):
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, name="r")
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


@pytest.mark.parametrize("sizes", [(8, 8, 8), (10, 6, 7), (1, 5, 3)])
def test_build_runs_tiles(toy, sizes):
    """The product is really tensorized: tiles in the toy's own scopes, in the schedule and in the stream."""
    m, n, k = sizes
    a, b, c = matmul(*sizes)
    s = te.create_schedule(c.op)
    toy.spec.schedule(s, toy, [])
    assert {buffer.scope for buffer in s.func.allocations} == {"global", "toy.buf", "toy.acc"}
    function = weft.build(s, [a, b, c], target="toy")
    assert isinstance(function.built, DeviceBuilt) and "toy_mma(buf[1], buf[0], acc[0])" in function.built.source
    random = np.random.default_rng(0)
    left, right = (random.standard_normal(shape).astype("float32") for shape in ((m, k), (k, n)))
    made = np.full((m, n), np.nan, "float32")
    function(left, right, made)
    np.testing.assert_allclose(made, left @ right, rtol=1e-5, atol=1e-6)


def test_build_of_any_size_and_of_data_indices(toy):
    n = te.var("n")
    a, at = te.placeholder((n,), name="A"), te.placeholder((n,), "int32", name="I")
    b = te.compute((n,), lambda i: te.exp(a[at[i]]) + te.tanh(a[i]), name="B")
    function = weft.build(te.create_schedule(b.op), [a, at, b], target="toy")
    for size in (1, 7):
        data, made = np.linspace(0, 1, size, dtype="float32"), np.zeros(size, "float32")
        order = np.arange(size)[::-1].astype("int32")
        function(data, order, made)
        np.testing.assert_allclose(made, np.exp(data[order]) + np.tanh(data), rtol=1e-6)
        with pytest.raises(RuntimeFault, match="outside"):
            function(data, order + 1, made)


def test_what_the_machine_has_not_is_said(toy):
    a, b, c = matmul(8, 8, 8)
    s = te.create_schedule(c.op)
    s.cache_write(c, "toy.acc")
    with pytest.raises(TargetError, match="needs a tile of 4 × 4 in one of 1 toy.acc"):
        weft.build(s, [a, b, c], target="toy")


def convolution():
    """A convolution with a bias, and what follows it."""
    b = Builder("convolution")
    return b.finish(b.relu(b.conv(b.input("image", (1, 3, 6, 6)), 3, 6, 3, 2, 1, bias=True)))


@pytest.mark.parametrize("make", [convolution, mlp, attention, recurrent])
def test_models_run(toy, make):
    graph = make()
    module = weft.compile(graph, target="toy")
    check(graph, random_inputs(graph, 1), module)
    (one,) = module.specializations
    assert not one.host_nodes
    assert any("toy_mma" in launch.kernel.program.source for launch in one.launches)


def test_what_has_no_kernel_runs_on_the_host(toy):
    b = Builder("mixed")
    x = b.relu(b.dense(b.input("x", (4, 8)), 8, 8))
    graph = b.finish(b.node("Add", x, b.node("Det", b.node("MatMul", x, b.normal(8, 4)))))
    with pytest.warns(UserWarning, match="Det"):
        module = weft.compile(graph, target="toy")
    check(graph, random_inputs(graph, 2), module)


def test_symbolic_sizes_and_arrays_on_the_device(toy):
    graph = mlp(Var("batch"))
    module = weft.compile(graph, target="toy")
    for batch in (1, 3):
        check(graph, random_inputs(graph, batch, {"batch": batch}), module)
    (x,) = random_inputs(graph, 5, {"batch": 3})
    there = module.queue({"x": module.to_device(x)})
    np.testing.assert_array_equal(there[0].numpy(), module.run(None, {"x": x})[0])
    bound = module.bind({"x": x})
    bound.launch()
    np.testing.assert_array_equal(bound.outputs[0].numpy(), there[0].numpy())


def test_module_files_and_profiles(toy, tmp_path):
    graph = mlp()
    module = weft.compile(graph, target="toy")
    module.save(tmp_path / "toy.weft")
    again = weft.load(tmp_path / "toy.weft")
    (x,) = random_inputs(graph, 3)
    np.testing.assert_array_equal(again.run(None, {"x": x})[0], module.run(None, {"x": x})[0])
    assert again.target is toy
    assert len(module.profile({"x": x}, seconds=0.01).kernels) == 3
    run = Run(module, {"x": x})
    assert len(run.calls) == 3 and run.whole()() > 0
    np.testing.assert_array_equal(run._bound.outputs[0].numpy(), module.run(None, {"x": x})[0])
    with pytest.raises(WeftError, match="toy"):
        export_library(module, tmp_path / "library")


def test_kernels_of_one_kind_are_none_of_another():
    """A target may state the facts of another and choose other schedules: kernels in memory are told apart."""
    cpu = registry.manifest_of("cpu")

    def parse(text):
        return replace(registry.find_target("native"), kind="half", name=text) if text == "half" else None

    registry.register(TargetSpec(**given(parse=parse, lower=cpu.lower, intrinsics=cpu.intrinsics)))
    try:
        made = [weft.compile(mlp(), target=text).specializations[0].launches for text in ("half", "native")]
    finally:
        registry.unregister("half")
    assert not {one.kernel.symbol for one in made[0]} & {one.kernel.symbol for one in made[1]}


def test_a_target_is_a_plain_value(toy):
    again = pickle.loads(pickle.dumps(toy))
    assert isinstance(again, Target) and again == toy and again.spec is toy_target.TARGET


def test_the_command_line_knows_it(toy, capsys, tmp_path):
    assert main(["devices"]) == 0
    shown = capsys.readouterr().out
    assert "a toy in numpy" in shown and "a toy accelerator: tiles of 4 × 4 float32" in shown
    assert any(line.startswith("toy ") for line in registry.known_forms())
    write_tiny(tmp_path / "tiny.onnx")
    given = ["inspect", str(tmp_path / "tiny.onnx"), "--target", "toy", "--size", "N=2", "--stage"]
    assert main([*given, "toy"]) == 0
    assert "toy_mma(buf[1], buf[0], acc[0])" in capsys.readouterr().out
    assert main([*given, "llvm"]) != 0
    assert "its code is shown by toy" in capsys.readouterr().err


def test_code_of_a_target_is_part_of_the_cache_key(toy, monkeypatch, tmp_path):
    """A form that is kept on disk was made by a target's code as it was."""
    assert code_key.target_key(registry.find_target("native").spec) == ""
    before = code_key.target_key(toy.spec)
    copy = tmp_path / "toy_target.py"
    copy.write_text(Path(toy_target.__file__).read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    monkeypatch.setattr(toy_target, "__file__", str(copy))
    assert before and code_key.target_key(toy.spec) != before
    monkeypatch.setattr(toy_target, "__file__", None)
    with pytest.raises(code_key.Opaque, match="the target toy"):
        code_key.target_key(toy.spec)
    assert isinstance(weft.compile(mlp(), target="toy")._executor, Executor)  # nothing is kept, and all goes on
