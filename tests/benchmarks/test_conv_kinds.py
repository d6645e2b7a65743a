"""The sweep over kinds of convolutions: its sizes are what the operators say, its reference is right."""

import numpy as np
import pytest

from benchmarks.conv_kinds import KINDS, Kind
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.infer import infer

pytest.importorskip("onnx")

SMALL = [
    Kind("small", "grouped", (7, 9), 6, 9, 3, 2, 1, groups=3, batch=2),
    Kind("small", "dilated", (15,), 2, 3, 4, pads=2, dilations=3),
    Kind("small", "volume", (4, 5, 6), 2, 4, (1, 3, 2), pads=(0, 1, 0)),
    Kind("small", "transposed", (5, 6), 4, 6, 3, 2, 1, groups=2, behind=1, transposed=True),
]


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)
def test_the_reference_is_the_operator_in_double_precision(kind, tmp_path):
    pytest.importorskip("torch")
    path, feeds = kind.write(tmp_path)
    (want,) = interpret_graph(infer(load(path)), [feeds["image"]])
    made = kind.reference(path, feeds)
    assert made.dtype == np.float64 and made.shape == want.shape == (kind.batch, kind.outputs, *kind.places)
    np.testing.assert_allclose(made, want, atol=1e-5)


def test_operations_are_counted_once_a_product():
    assert SMALL[0].operations == 2 * 2 * 4 * 5 * 9 * 2 * 9
    assert SMALL[3].operations == 2 * 5 * 6 * 9 * 4 * 6 // 2


def test_the_kinds_have_names_of_their_own_and_results():
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 40
    for kind in KINDS:
        assert min(kind.places) > 0 and kind.inputs % kind.groups == kind.outputs % kind.groups == 0
        assert kind.as_json()["family"] == kind.family and kind.shape
