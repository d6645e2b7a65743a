"""Mutated operator models, compiled and run beside guard pages, against the numpy meaning and ONNX Runtime.

Each case of ONNX's own node tests is changed one to four times (`mutations.py`). What loads must compile and run, or be
refused with a WeftError. It runs twice: with memory that ends at a guard page and holds one pattern, and with memory
that begins at one and holds another; both answers must be the same bits, so that what is read was written before.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx

import weft
from tests.fuzz import guard
from tests.fuzz.compare import difference, worst
from tests.fuzz.explain import explain
from tests.fuzz.kinds import OK, Case, Kind, Result, chance_of
from tests.fuzz.mutations import WEIGHTED, Draft, corpus, draft, mutate
from tests.fuzz.peers import onnxruntime_answer, reference_answer
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph

RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
}


def make(seed: int) -> Case:
    """The case of a number."""
    chance = chance_of("operators", seed)
    operators = corpus()
    name = chance.choice(list(operators))
    which = chance.randrange(len(operators[name]))
    count = chance.choice((1, 1, 2, 2, 3, 4))
    parts = tuple((chance.choice(WEIGHTED), chance.getrandbits(32)) for _ in range(count))
    return Case(seed, parts, {"operator": name, "which": which, "label": name})


def drafted(case: Case) -> Draft:
    """The model and arrays of a case."""
    made = draft(*corpus()[case.more["operator"]][case.more["which"]])
    for name, seed in case.parts:
        mutate(made, name, seed)
    return made


def show(case: Case) -> str:
    """The model in words."""
    made = drafted(case)
    lines = ["; ".join(made.notes)]
    for node in made.model.graph.node[:4]:
        attributes = {a.name: _shown(a) for a in node.attribute}
        lines.append(f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes or ''}")
    constants = {one.name: list(one.dims) for one in made.model.graph.initializer}
    lines.append(f"opset {[(e.domain, e.version) for e in made.model.opset_import]} constants {constants}")
    for name, array in made.feeds.items():
        if isinstance(array, np.ndarray):
            values = np.array2string(array.reshape(-1)[:8], threshold=8) if array.size else ""
            lines.append(f"{name}: {array.dtype}{list(array.shape)} {values}")
    return "\n".join(lines)


def _shown(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value if not hasattr(value, "DESCRIPTOR") else type(value).__name__


MOST_TURNS = 1 << 16
"""Of a loop that has to end in the time of a case."""
MOST_MEGABYTES = 512
"""Of one tensor: a case is small, and one that asks for gigabytes shall be refused, not filled for minutes."""


def excuse(case: Case) -> str | None:
    """A Loop turns as often as its model says, which may be longer than anybody waits."""
    made = drafted(case)
    known = {one.name: onnx.numpy_helper.to_array(one) for one in made.model.graph.initializer} | made.feeds
    for node in made.model.graph.node:
        count = known.get(node.input[0]) if node.op_type == "Loop" and node.input and node.input[0] else None
        endless = node.op_type == "Loop" and (count is None or not np.size(count))
        if endless or (count is not None and int(np.reshape(count, -1)[0]) > MOST_TURNS):
            return "the model asks for more turns of a loop than there is time for"
    return None


def run(case: Case) -> Result:
    """Compiles and runs a case, and judges the answer."""
    made = drafted(case)
    try:
        graph = load(made.model.SerializeToString())
        with knobs.override(cache=False, tensor_megabytes=MOST_MEGABYTES):
            got = guarded_answer(graph, made.feeds, is_random(graph))
    except WeftError as error:
        # Counted apart, so that a table shows when Weft begins to refuse what others run.
        others = ", which ONNX Runtime runs" * (onnxruntime_answer(made.model, made.feeds) is not None)
        return Result("refused", f"{type(error).__name__}{others}", str(error)[:400])
    finally:
        gc.collect(0)
    return judge(graph, made, got)


def is_random(graph: Graph) -> bool:
    """Whether the answer is drawn by lot."""
    return any(node.op in RANDOM or any(is_random(one) for one in node.graphs.values()) for node in graph.nodes)


def guarded_answer(graph: Graph, feeds: dict[str, Any], differs: bool = False) -> list[Any]:
    """The outputs of a graph, run with memory at guard pages in two ways that must agree."""
    module = weft.compile(graph, threads=2)
    answers = []
    for at_end, fill in ((True, 0xAA), (False, 0x55)):
        with guard.placed(at_end, fill):
            arrays = {value.name: guard.place(feeds[value.name]) for value in graph.inputs if value.name in feeds}
            answers.append(module.run(None, arrays))
            guard.check()
            for name, array in arrays.items():
                if isinstance(array, np.ndarray) and array.dtype.kind != "O":
                    assert array.tobytes() == np.asarray(feeds[name]).tobytes(), "an input was changed"
    if not differs:
        assert _bits(answers[0]) == _bits(answers[1]), "two runs differ: something is read that nobody wrote"
    return answers[0]


def _bits(answer: Any) -> Any:
    if isinstance(answer, np.ndarray):
        return answer.tolist() if answer.dtype.hasobject else (str(answer.dtype), answer.shape, answer.tobytes())
    return [_bits(one) for one in answer] if isinstance(answer, (list, tuple)) else answer


def judge(graph: Graph, made: Draft, got: list[Any]) -> Result:
    """Compares an answer with the numpy meaning, then with ONNX Runtime."""
    if is_random(graph):
        return OK
    operator = ",".join(sorted({node.op for node in graph.nodes})[:3])
    feeds = {value.name: made.feeds[value.name] for value in graph.inputs}
    try:
        with np.errstate(all="ignore"):
            meant = interpret_graph(graph, feeds)
    except WeftError as error:
        return Result("wrong", f"{operator}: an answer where the meaning refuses", str(error))
    unlike = difference(got, meant)
    if unlike:
        reason = explain(graph, feeds, got, meant, peer=False)
        if reason is not None:
            return Result("explained", reason, operator)
        return Result("wrong", f"{operator}: {unlike}, kernel against meaning", worst(got, meant))
    theirs = onnxruntime_answer(made.model, made.feeds)
    if theirs is None:
        return OK
    unlike = difference(got, theirs, 8)
    if unlike is None:
        return OK
    third = reference_answer(made.model, made.feeds)
    if third is not None and difference(got, third, 8) is None:
        return Result("explained", "ONNX's reference agrees with Weft, not with ONNX Runtime", operator)
    reason = explain(graph, feeds, got, theirs, peer=True)
    if reason is not None:
        return Result("explained", reason, operator)
    return Result("wrong", f"{operator}: {unlike}, against ONNX Runtime", worst(got, theirs))


KIND = Kind("operators", make, run, show, guard.install, share=4, excuse=excuse)
