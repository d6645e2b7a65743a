"""The list of passes over a graph: named, timed, and checked where that is asked for."""

from __future__ import annotations

import logging

import pytest

from tests.compiler.graphs import convnet
from weft.compiler import passes
from weft.core.errors import InternalError
from weft.core.knobs import knobs
from weft.graph.ir import Value
from weft.graph.passes.history import watching
from weft.targets.registry import find_target


def test_every_pass_is_in_the_list_and_timed(monkeypatch, caplog):
    monkeypatch.setattr("weft.graph.passes.history.LOGGED_SECONDS", 0.0)
    with caplog.at_level(logging.DEBUG, "weft.compiler"), watching() as history:
        graph = passes.optimize(convnet(), {}, {})
        before = len(history.runs)
        passes.for_target(graph, find_target("x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2"))
    listed = {one.step.__name__ for one in passes.PASSES}
    changed = [run.name for run in history.runs[before:]]
    assert changed and set(changed) <= listed
    assert {"specialize", "fold", *changed} <= {line.split()[1].strip(":") for line in caplog.messages}


def test_a_pass_that_breaks_a_graph_is_named(monkeypatch):
    def broken(graph):
        return graph.replace(outputs=[Value("gone", graph.outputs[0].type)])

    monkeypatch.setattr(passes, "PASSES", (passes.Pass(broken, lambda c, g: ()),))
    with knobs.override(verify=True), pytest.raises(InternalError, match="after the pass broken, nothing makes.*gone"):
        passes.for_target(passes.optimize(convnet(), {}, {}), find_target("cpu"))
