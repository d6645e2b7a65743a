"""Every pass on random graphs: the same meaning, the graph it was given left alone, types that hold."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import FULL
from tests.graph.strategies import arrays_for, graphs, same_meaning, unchanged
from tests.graph.verifier import verify_graph
from weft.core.model import MOST_FUSED_INPUTS, MOST_FUSED_NODES
from weft.graph.interpreter import interpret_graph, trace_graph
from weft.graph.ir import Graph
from weft.graph.passes.common import common
from weft.graph.passes.dead import dead
from weft.graph.passes.fold import fold
from weft.graph.passes.fold_batch_norm import fold_batch_norm
from weft.graph.passes.fuse import compilable, fuse
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.simplify import simplify
from weft.graph.structural import graph_key
from weft.graph.text import constant_table, format_graph, parse_graph

EXACT = (infer, fold, common, dead)
LOOSE = (simplify, fold_batch_norm, normalize)
quick = settings(max_examples=200 if FULL else 20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("step", [*EXACT, *LOOSE], ids=lambda f: f.__name__)
@quick
@given(graph=graphs())
def test_pass_keeps_the_meaning(step, graph):
    verify_graph(graph)
    same_meaning(graph, unchanged(step, graph), exact=step in EXACT)


@quick
@given(graph=graphs())
def test_normal_form_is_stable(graph):
    once = normalize(graph)
    assert graph_key(once) == graph_key(normalize(once)), f"\n{once}\n{normalize(once)}"


@quick
@given(graph=graphs())
def test_text_round_trip(graph):
    text = format_graph(graph)
    again = parse_graph(text, constant_table(graph))
    assert format_graph(again) == text
    assert graph_key(graph) == graph_key(again)


@quick
@given(graph=graphs())
def test_trace_has_every_value(graph):
    arrays = arrays_for(graph)
    found = trace_graph(graph, arrays)
    assert set(found) >= {v.name for n in graph.nodes for v in n.outputs}
    for value, array in zip(graph.outputs, interpret_graph(graph, arrays)):
        assert (found[value.name] == array).all()


def run_groups(graph, groups, arrays):
    """Runs groups one after another; each sees only its inputs, and gives only its outputs."""
    values = {**dict(zip(graph.inputs, arrays)), **graph.constants}
    for group in groups:
        free = {v for n in group.nodes for v in n.inputs if v in graph.constants and v not in group.inputs}
        assert set(group.inputs) <= set(values), f"{group} comes before what it reads"
        body = Graph("group", group.inputs, group.outputs, group.nodes, {v: graph.constants[v] for v in free})
        values.update(zip(group.outputs, interpret_graph(body, [values[v] for v in group.inputs])))
    return [values[v] for v in graph.outputs]


@quick
@given(graph=graphs(most_steps=24), hosted=st.sets(st.integers(0, 30), max_size=4))
def test_groups_compute_the_graph(graph, hosted):
    graph = dead(infer(graph))
    plain = compilable(graph)
    host = {node for at, node in enumerate(graph.nodes) if at in hosted}
    groups = fuse(graph, lambda node: node not in host and plain(node))
    arrays = arrays_for(graph)
    for wanted, got in zip(interpret_graph(graph, arrays), run_groups(graph, groups, arrays)):
        assert (wanted == got).all() or (wanted != wanted).any()
    for group in groups:
        assert len(group.nodes) <= MOST_FUSED_NODES
        assert len(group.nodes) == 1 or len(group.inputs) <= MOST_FUSED_INPUTS
        assert (group.kind == "host") == (group.nodes[0] in host or not plain(group.nodes[0])) or len(group.nodes) > 1
        if group.kind in ("host", "opaque"):
            assert len(group.nodes) == 1
