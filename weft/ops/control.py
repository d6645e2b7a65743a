"""Control flow: If, Loop and Scan run their subgraphs; their results have the types of the subgraphs' outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, Graph, OptionalType, SequenceType, TensorType, Type, Value, same_dim
from weft.graph.opspec import Evaluate, Infer, Use, register, type_of
from weft.graph.passes.infer import infer
from weft.graph.shapes import normal_axis, unknown_dim
from weft.ops.control_map import expand_scan


def common_type(a: Type | None, b: Type | None) -> Type | None:
    """A type that covers both; None where nothing is known."""
    if a is None or b is None:
        return None
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype:
            return None
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        return TensorType(a.dtype, [x if same_dim(x, y) else unknown_dim("either") for x, y in zip(a.shape, b.shape)])
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = common_type(*(t.of if isinstance(t, OptionalType) else t for t in (a, b)))
        return None if inner is None else OptionalType(inner)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        inner = common_type(a.of, b.of)
        return a if inner is None else SequenceType(inner)
    return None


def body_of(c: Use, name: str = "body") -> Graph:
    """A subgraph of the node."""
    found = c.need(name)
    if not isinstance(found, Graph):
        raise c.error(f"the attribute {name!r} must be a graph")
    return found


def outside_type(kind: Type | None) -> Type | None:
    """A subgraph's type as seen from outside: sizes that only one run of the body has are not known."""
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    return TensorType(kind.dtype, [d if isinstance(d, int) else unknown_dim("turn") for d in kind.shape])


# -------------------------------------------------------------------------------------------------------------- If


def _if_infer(c: Infer) -> list[Any]:
    branches = [body_of(c, "then_branch"), body_of(c, "else_branch")]
    condition = c.value(0)
    if condition is not None:
        branches = [branches[0 if bool(np.asarray(condition).reshape(-1)[0]) else 1]]
    counts = {len(b.outputs) for b in branches}
    if counts != {c.output_count}:
        raise c.error(f"it has {c.output_count} outputs, and its branches have {sorted(counts)}")
    if len(branches) == 1:
        return [v.type for v in branches[0].outputs]
    return [common_type(a.type, b.type) for a, b in zip(branches[0].outputs, branches[1].outputs)]


def _if(c: Evaluate, condition: Array) -> tuple[Any, ...]:
    taken = condition.size > 0 and bool(condition.reshape(-1)[0])
    return tuple(c.run(body_of(c, "then_branch" if taken else "else_branch"), []))


register("If", _if_infer, _if, takes="cond:bool")


# ------------------------------------------------------------------------------------------------------------ Loop


def _loop_infer(c: Infer) -> list[Any]:
    body, states = body_of(c), max(len(c.types) - 2, 0)
    if len(body.outputs) != 1 + c.output_count or c.output_count < states:
        raise c.error(f"{len(body.outputs)} outputs of its body do not fit {c.output_count} of its own")
    found: list[Any] = []
    for before, after in zip(c.types[2:], body.outputs[1:]):
        found.append(_carried(before, after.type))
    steps: Dim = unknown_dim("turns")
    return found + [_stacked(v.type, 0, steps) for v in body.outputs[1 + states :]]


def _carried(before: Type | None, after: Type | None) -> Type | None:
    """The type of a state, which may have run through the body or not."""
    if isinstance(before, TensorType) and not isinstance(after, (TensorType, OptionalType)):
        return TensorType(before.dtype, None)
    if after is None:
        return before
    return outside_type(common_type(before, after)) or after


def _stacked(kind: Type | None, axis: int, steps: Dim) -> Type | None:
    if not isinstance(kind, TensorType):
        return None
    if kind.shape is None:
        return TensorType(kind.dtype, None)
    shown = [d if isinstance(d, int) else unknown_dim("turn") for d in kind.shape]
    at = normal_axis(axis, len(shown) + 1)
    return TensorType(kind.dtype, [*shown[:at], steps, *shown[at:]])


def _loop(c: Evaluate, most: Array | None = None, condition: Array | None = None, *states: Any) -> tuple[Any, ...]:
    body = body_of(c)
    limit = None if most is None or not most.size else int(most.reshape(-1)[0])
    going = condition is None or not condition.size or bool(condition.reshape(-1)[0])
    given_first = [most, condition, *states]
    turns = Turns(c, body, given_first, list(states), 1, len(body.outputs) - 1 - len(states))
    while going and (limit is None or turns.count < limit):
        made = turns.one([np.array(turns.count, np.int64), np.array(True), *turns.states])
        going = bool(np.asarray(made[0]).reshape(-1)[0])
    return (*turns.states, *(turns.stacked(at, 0, v) for at, v in enumerate(body.outputs[1 + len(states) :])))


class Turns:
    """A loop on its way: its states, and the rows that it keeps.

    Outputs of the body are `skip` others, then the states, then what is kept. `given` are the inputs of the loop.
    """

    def __init__(self, c: Evaluate, body: Graph, given: Sequence[Any], states: list[Any], skip: int, kept: int) -> None:
        self.c, self.body, self.given, self.states, self.skip = c, body, given, states, skip
        self.count = 0
        self.parts: list[list[Any]] = [[] for _ in range(kept)]

    def one(self, given: Sequence[Any]) -> list[Any]:
        """One turn; all outputs of the body."""
        made = self.c.run(self.body, given)
        end = self.skip + len(self.states)
        self.states = list(made[self.skip : end])
        for part, value in zip(self.parts, made[end:]):
            part.append(np.asarray(value)[None])
        self.count += 1
        return made

    def stacked(self, at: int, axis: int, like: Value, back: bool = False) -> Array:
        """What was kept, along a new axis; without turns the type of the subgraph's output says what is empty."""
        parts = self.parts[at]
        if not parts:
            return self._no_rows(at, axis, like)
        if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
            raise self.c.error(f"the shapes of {like.name!r} differ from turn to turn")
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        rows = rows[::-1] if back else rows
        return np.ascontiguousarray(np.moveaxis(rows, 0, normal_axis(axis, rows.ndim)))

    def _no_rows(self, at: int, axis: int, like: Value) -> Array:
        kind = like.type
        if not isinstance(kind, TensorType):  # a graph that nobody has inferred: the body says it for these inputs
            inputs = [None if a is None else Value(f"given{k}", type_of(a)) for k, a in enumerate(self.given)]
            node = self.c.node.replace(inputs=inputs)
            found = infer(Graph("no turn", [v for v in inputs if v is not None], node.outputs, [node]))
            kind = body_of(Use(found.nodes[0])).outputs[self.skip + len(self.states) + at].type
        if not isinstance(kind, TensorType):
            raise self.c.error(f"it ran no turn, and the type of {like.name!r} is not known")
        shape = [d if isinstance(d, int) else 0 for d in kind.shape or ()]
        place = normal_axis(axis, len(shape) + 1)
        return np.zeros([*shape[:place], 0, *shape[place:]], kind.numpy)


register("Loop", _loop_infer, _loop, takes="M:int[]|[1]?, cond:bool?, initial?, ...")


# ------------------------------------------------------------------------------------------------------------ Scan


class Scans:
    """The attributes of a Scan; `states` and `count` say how its inputs divide."""

    __slots__ = ("body", "states", "count", "in_axes", "in_back", "out_axes", "out_back")

    def __init__(self, c: Use, inputs: int) -> None:
        self.body, self.count = body_of(c), int(c.need("num_scan_inputs"))
        self.states = inputs - self.count
        if self.states < 0 or self.count < 1:
            raise c.error(f"num_scan_inputs is {self.count} and there are {inputs} inputs")
        outputs = len(self.body.outputs) - self.states
        if outputs < 0:
            raise c.error(f"{len(self.body.outputs)} outputs of its body do not fit {self.states} states")
        self.in_axes = self._list(c, "scan_input_axes", self.count)
        self.in_back = self._list(c, "scan_input_directions", self.count)
        self.out_axes = self._list(c, "scan_output_axes", outputs)
        self.out_back = self._list(c, "scan_output_directions", outputs)

    @staticmethod
    def _list(c: Use, name: str, count: int) -> list[int]:
        given = [int(v) for v in c.get(name) or [0] * count]
        if len(given) != count:
            raise c.error(f"{name} has {len(given)} entries where {count} are needed")
        return given


def _scan_infer(c: Infer) -> list[Any]:
    s = Scans(c, len(c.types))
    found: list[Any] = [_carried(t, v.type) for t, v in zip(c.types[: s.states], s.body.outputs)]
    steps: Dim | None = None
    for kind, axis in zip(c.types[s.states :], s.in_axes):
        if isinstance(kind, TensorType) and kind.shape is not None:
            dim = kind.shape[normal_axis(axis, len(kind.shape), c.error)]
            steps = dim if steps is None or isinstance(dim, int) else steps
    length = unknown_dim("steps") if steps is None else steps
    rows = s.body.outputs[s.states :]
    return found + [_stacked(v.type, axis, length) for v, axis in zip(rows, s.out_axes)]


def _scan(c: Evaluate, *arrays: Any) -> tuple[Any, ...]:
    s = Scans(c, len(arrays))
    states = list(arrays[: s.states])
    moved = [np.ascontiguousarray(np.moveaxis(a, axis, 0)) for a, axis in zip(arrays[s.states :], s.in_axes)]
    moved = [m[::-1] if back else m for m, back in zip(moved, s.in_back)]
    if len({len(m) for m in moved}) != 1:
        raise c.error(f"its inputs have different lengths: {[len(m) for m in moved]}")
    steps = len(moved[0])
    turns = Turns(c, s.body, arrays, states, 0, len(s.out_axes))
    while turns.count < steps:
        turns.one([*turns.states, *(np.asarray(m[turns.count]) for m in moved)])
    outputs = s.body.outputs[s.states :]
    ends = enumerate(zip(s.out_axes, s.out_back, outputs))
    return (*turns.states, *(turns.stacked(at, axis, value, bool(back)) for at, (axis, back, value) in ends))


register("Scan", _scan_infer, _scan, expand=expand_scan, takes="initial?, ...")
