"""Random valid graphs against ONNX Runtime: beside guard pages, and by the error of each against float64.

A case is a list of steps (`graph_steps.py`), each with a seed of its own, so that a graph without some of its steps is
valid too.
"""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz import guard
from tests.fuzz.compare import difference, tolerance, worst
from tests.fuzz.graph_steps import CHANNELS, SIZES, STEPS, WEIGHTED, Maker
from tests.fuzz.kinds import OK, Case, Kind, Result, chance_of
from tests.fuzz.operators import guarded_answer
from tests.fuzz.peers import onnxruntime_answer
from weft.core.knobs import knobs
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph

OPSET = 21


def make(seed: int) -> Case:
    """The case of a number: its parts are the steps."""
    chance = chance_of("graphs", seed)
    parts = tuple((chance.choice(WEIGHTED), chance.getrandbits(32)) for _ in range(chance.randint(1, 10)))
    return Case(seed, parts)


def build(case: Case, wide: bool = False) -> tuple[onnx.ModelProto, Maker]:
    """The model of a case, in float64 if that is asked for."""
    chance = chance_of("graph inputs", case.seed)
    g = Maker(wide)
    for _ in range(chance.choice((1, 1, 2))):
        image = chance.random() < 0.5
        shape = (
            chance.choice((1, 1, 2)),
            chance.choice(CHANNELS),
            *(chance.choice((4, 5, 7, 8, 12)) for _ in range(2)),
        )
        g.input(chance, shape if image else tuple(chance.choice(SIZES) for _ in range(chance.randint(1, 3))))
    for name, seed in case.parts:
        STEPS[name](g, random.Random(seed))
    made = [value for value in g.values if value not in g.inputs] or g.values
    outputs = list(dict.fromkeys([made[-1], chance.choice(made), chance.choice(made)]))
    if outputs[0] in g.inputs:
        outputs = [g.add("Neg", [outputs[0]], outputs[0].shape, 2.0)]
    symbolic = chance.random() < 0.2
    shapes = [[f"{v.name}_{d}" for d in range(v.rank)] if symbolic else list(v.shape) for v in g.inputs]
    graph = helper.make_graph(
        g.nodes, "random",
        [helper.make_tensor_value_info(v.name, g.kind, shape) for v, shape in zip(g.inputs, shapes)],
        [helper.make_tensor_value_info(v.name, g.kind, None if symbolic else list(v.shape)) for v in outputs],
        [numpy_helper.from_array(array, name) for name, array in g.constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), g


def show(case: Case) -> str:
    """The model in words."""
    model, g = build(case)
    lines = [f"{v.name}: {list(v.shape)}" for v in g.inputs]
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.type != a.GRAPH}
        inputs = [f"{n}{list(g.constants[n].shape)}" if n in g.constants else n for n in node.input]
        lines.append(f"{', '.join(node.output)} = {node.op_type}({', '.join(inputs)}) {attributes or ''}")
    return "\n".join([*lines, f"outputs {[v.name for v in model.graph.output]}"])


def run(case: Case) -> Result:
    """Compiles and runs a valid graph; it must not be refused, and be as right as ONNX Runtime."""
    model, g = build(case)
    graph = load(model.SerializeToString())
    with knobs.override(cache=False):
        got = guarded_answer(graph, g.feeds)
    gc.collect(0)
    theirs = onnxruntime_answer(model, g.feeds)
    unlike = None if theirs is None else difference(got, theirs)
    if theirs is not None and unlike is None:
        return OK
    return _third_opinion(case, model, got, theirs, unlike)


def _third_opinion(case: Case, model: Any, got: list[Any], theirs: list[Any] | None, unlike: str | None) -> Result:
    """In float64, by the numpy meaning: Weft may be as far from it as ONNX Runtime is, a few times over."""
    operators = ",".join(sorted({node.op_type for node in model.graph.node})[:4])
    wide, wide_maker = build(case, wide=True)
    with np.errstate(all="ignore"):
        truth = interpret_graph(load(wide.SerializeToString()), wide_maker.feeds)
    for number, (mine, exact) in enumerate(zip(got, truth)):
        peer = None if theirs is None else theirs[number]
        if mine.shape != exact.shape:
            return Result("wrong", f"another shape, {operators}", f"{mine.shape} for {exact.shape}")
        scale = float(np.abs(exact).max(initial=0.0))
        error = float(np.abs(mine.astype(np.float64) - exact).max(initial=0.0))
        allowed = 8 * tolerance(np.dtype(np.float32)) * scale
        if peer is not None:
            allowed += 4 * float(np.abs(peer.astype(np.float64) - exact).max(initial=0.0))
        if not error <= allowed:
            shown = worst(got, truth if theirs is None else theirs)
            reason = f"{unlike or 'error against float64'}, {operators}"
            return Result("wrong", reason, f"error {error}, allowed {allowed}\n{shown}")
    return OK if theirs is None else Result("explained", "rounding: as near to float64 as ONNX Runtime is", operators)


KIND = Kind("graphs", make, run, show, guard.install, share=3.2, seconds=60)
