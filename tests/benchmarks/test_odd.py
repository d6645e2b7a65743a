"""The shapes that nothing was fitted to: forty valid models, none of another table, their references right."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from benchmarks import harness, odd, real_models  # noqa: E402
from benchmarks.candidates import CANDIDATES  # noqa: E402
from benchmarks.conv import CONVOLUTIONS  # noqa: E402
from benchmarks.conv_kinds import KINDS, Kind  # noqa: E402
from benchmarks.odd import SHAPES, Shape  # noqa: E402
from benchmarks.program_tables import CASES  # noqa: E402
from benchmarks.workers import Prepared, Task, Timing  # noqa: E402
from weft.targets.registry import find_target  # noqa: E402


def test_there_are_forty_with_names_of_their_own():
    names = [shape.name for shape in SHAPES]
    assert len(set(names)) == len(names) == 40 and not any("/" in name for name in names)
    others = {case.name for case in (*CASES, *KINDS, *CONVOLUTIONS)}
    assert not others & set(names), "the name says which case PyTorch's form is taken from"


def test_none_is_a_shape_of_the_other_tables():
    """Those were looked at while rules and costs were made."""
    seen = {kind.shape for kind in KINDS}
    assert not [one.name for one in SHAPES if isinstance(one, Kind) and one.shape in seen]
    sizes = {tuple(array.shape for array in (*case.inputs.values(), *case.constants.values())) for case in CASES}
    for case in SHAPES:
        if not isinstance(case, Kind):
            assert tuple(array.shape for array in (*case.inputs.values(), *case.constants.values())) not in sizes


@pytest.mark.parametrize("shape", [Shape(one) for one in SHAPES], ids=lambda shape: shape.name)
def test_every_shape_is_a_valid_model(shape, tmp_path):
    path, feeds = shape.write(tmp_path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert path.stem == shape.name and all(array.dtype == np.float32 for array in feeds.values())
    assert shape.torch in CANDIDATES


@pytest.mark.parametrize("name", ["grouped_1x1_35", "transposed3_24_35", "line5_40_72_577", "product_77_40_77"])
def test_the_reference_is_what_onnx_runtime_gives(name, tmp_path):
    shape = Shape(next(one for one in SHAPES if one.name == name))
    path, feeds = shape.write(tmp_path)
    want = real_models.onnxruntime_session(path, threads=1).run(None, dict(feeds))
    assert real_models.relative_error(want, shape.reference(path, feeds)) < 1e-5


class Given:
    """A race whose times are known."""

    def __init__(self, times, outputs):
        self.workers = ["weft", "torch", "torch program", "onnxruntime"]
        self.times, self.outputs = times, outputs

    def prepare(self, task, names):
        self.task, self.names = task, names
        return {name: Prepared(outputs=self.outputs) for name in names}

    def run(self, seconds):
        return {name: Timing((self.times[name],), self.times[name], 1) for name in self.names}


def test_a_row_has_one_torch_and_is_checked(tmp_path):
    shape = Shape(next(one for one in SHAPES if one.name == "product_77_40_77"))
    want = shape.reference(Path(), {})
    race = Given({"weft": 2.0, "torch program": 3.0, "onnxruntime": 4.0}, want)
    row = odd.measure(shape, race, 1, 0.0, tmp_path)
    assert list(row.timings) == ["weft", "torch", "onnxruntime"] and row.error == 0
    assert row.ratio() == 1.5 and row.as_json()["best_peer"] == "torch"
    wrong = Given({"weft": 2.0, "torch program": 3.0, "onnxruntime": 4.0}, [want[0] + 1])
    assert odd.measure(shape, wrong, 1, 0.0, tmp_path).error > row.case.tolerance


def test_where_a_lesser_machine_is_faster_is_said(capsys):
    shape = Shape(SHAPES[0])

    def row(ours, lesser):
        timings = {"weft": Timing((ours,), ours, 1), odd.LESSER: Timing((lesser,), lesser, 1)}
        return odd.Row(shape, 1, timings, 0.0, {})

    odd.show_slower([row(1.0, 2.0), row(2.0, 1.0)], "avx2", harness.wide_console())
    said = capsys.readouterr().out
    assert "slower than avx2: 1 of 2" in said and f"{shape.name}, 1 threads: 0.50" in said


@pytest.mark.parametrize("text", odd.TARGETS.values())
def test_lesser_machines_have_less(text):
    native, lesser = find_target("native"), find_target(text)
    assert lesser.vector_bytes <= native.vector_bytes and lesser.triple == native.triple


def test_a_lesser_machine_runs(tmp_path):
    shape = Shape(next(one for one in SHAPES if one.name == "product_77_40_77"))
    path, feeds = shape.write(tmp_path)
    (lesser, *_) = [*odd.TARGETS.values(), "native"]
    call = CANDIDATES[odd.LESSER](Task(path, feeds, lesser=lesser), {})
    assert real_models.relative_error(call(), shape.reference(path, feeds)) < 1e-5


def test_the_list_and_an_unknown_name(capsys):
    assert odd.main(["--list"]) == 0 and odd.main(["--only", "nothing"]) == 2
    assert capsys.readouterr().out.count("conv3_120_28") == 2


def test_a_machine_that_this_one_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        odd.main(["--native-vs", "pdp11"])
    assert "or any target" in capsys.readouterr().err


def test_a_peer_that_is_not_installed_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(odd.importlib.util, "find_spec", lambda name: None if name == "openvino" else name)
    assert odd.installed(odd.PEERS, harness.wide_console()) == ["torch", "torch program", "onnxruntime"]
    assert "openvino is not installed" in capsys.readouterr().out
