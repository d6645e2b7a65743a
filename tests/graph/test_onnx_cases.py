"""ONNX's node cases that consist of several nodes: the normal form gives what the graph gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.verifier import verify_graph
from tests.ops.cases import all_cases, array
from weft.frontends.onnx.importer import load
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.fuse import fuse
from weft.graph.passes.normalize import normalize
from weft.graph.text import constant_table, format_graph, parse_graph

RANDOM = ("bernoulli",)
CASES = [
    case
    for case in all_cases()
    if len(case.model.graph.node) + len(case.model.functions) > 1 and not any(word in case.name for word in RANDOM)
][::4]


def same(wanted, got):
    if isinstance(wanted, list):
        assert len(wanted) == len(got)
        for a, b in zip(wanted, got):
            same(a, b)
    elif wanted is None or wanted.dtype.kind in "OUS":
        assert (wanted is None and got is None) or wanted.tolist() == got.tolist()
    else:
        assert wanted.dtype == got.dtype and wanted.shape == got.shape
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_normal_form_of_a_case(case):
    graph = load(case.model)
    given = [
        None if v is None else array(v) if isinstance(v, list) else np.asarray(array(v)) for v in case.data_sets[0][0]
    ]
    before = interpret_graph(graph, given)
    verify_graph(graph)
    text = format_graph(graph)
    assert format_graph(parse_graph(text, constant_table(graph))) == text
    made = normalize(graph)
    verify_graph(made)
    same(before, interpret_graph(made, given))
    assert {n for g in fuse(made) for n in g.nodes} or not made.nodes
