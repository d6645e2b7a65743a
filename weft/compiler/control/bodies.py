"""A subgraph of If, Loop or Scan (or what waits for shapes inside one) that is compiled once that is worth it.

In: a graph that a host node runs again and again, with the constants that it takes from outside. Out: its results, at
first by the interpreter. Each run is counted with what the interpreter takes for it, by the number of nodes and the
size of their products; when that adds up to the price of compiling, the body is compiled:

    for the shapes at hand       where they are always the same, or come back often
    with some sizes left open    where sizes (or small values that decide shapes) change from run to run. The nodes that
                                 do not see those become kernels, the others stay on the host

A branch that is never taken is thus never compiled, nor a loop of a few cheap turns; and there is a limit to how many
forms one body gets, whatever shapes it meets. What decides is counted, not timed: the same calls always give the same
forms. Where all that is inside a node has kernels, the whole node becomes one native call instead (`Region`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.cache.models import NO_MATTER
from weft.compiler.control.form import ControlForm
from weft.compiler.control.parts import NoControl
from weft.compiler.sizes.deciding import deciding_inputs
from weft.core import model
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import Interpreter
from weft.graph.ir import (
    Array,
    Dim,
    Graph,
    GraphError,
    Node,
    TensorType,
    Value,
    all_graphs,
    dtype_name,
    free_values,
    reads,
)
from weft.graph.opspec import has
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import substitute_values
from weft.graph.shapes import unknown_dim
from weft.runtime.model.fastcall import Fast
from weft.targets.base import Target

logger = logging.getLogger("weft.compiler")

_VALUE, _RANK = -1, -2

Key = tuple[Any, ...]
"""For each input its shape, and where that matters its element type and value."""

Mask = tuple[frozenset[int], ...]
"""For each input what changes: dimensions, its value (-1), its rank (-2)."""


Compile = Callable[[Graph, Mapping[str, Array]], Any]
"""Makes what runs a graph whose inputs are typed, for these values of some of them."""

Pick = int
"""What an output of a body is: the place of an input, or ~place of what its nodes make."""


class Form:
    """A compiled form. `mask` says which sizes it leaves open (None: none)."""

    __slots__ = ("runner", "fast", "mask", "fitting")

    def __init__(self, runner: Any, fast: Fast | None, mask: Mask | None, fitting: Key) -> None:
        self.runner, self.fast, self.mask, self.fitting = runner, fast, mask, fitting

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """What the nodes make."""
        made = None if self.fast is None else self.fast(arrays, threads, None)
        found: list[Any] = self.runner.run(arrays, threads) if made is None else made
        return found


class Body:
    """A graph that is run often: its own inputs first, then what it takes from outside (`captured`).

    `graph` is what nodes must compute, from the inputs that they read.
    """

    def __init__(
        self, graph: Graph, known: Mapping[Value, Array], target: Target, precision: str | None, compile_graph: Compile
    ) -> None:
        outside = list(dict.fromkeys(free_values(graph)))
        self.captured = [value for value in outside if value not in known]
        constants = {**graph.constants, **{value: known[value] for value in outside if value in known}}
        inputs = [*graph.inputs, *self.captured]
        made, self._picks = results_of(graph, inputs)
        whole = dead(Graph(graph.name, inputs, made, graph.nodes, constants))
        read = {*whole.outputs, *(value for node in whole.nodes for value in reads(node))}
        self._count = len(inputs)
        self._used = [at for at, value in enumerate(inputs) if value in read]
        self.graph = whole.replace(inputs=[inputs[at] for at in self._used])
        self.target, self.precision, self._compile_graph = target, precision, compile_graph
        self._settings = knobs.snapshot(without=NO_MATTER)
        self.compiled = 0
        self._bound = deciding_inputs(self.graph)
        self._untyped = {at for at, v in enumerate(self.graph.inputs) if not isinstance(v.type, TensorType)}
        self._interpreter = Interpreter()
        self._forms: dict[Key, Form] = {}
        self._open: list[Form] = []
        self._costs: dict[Key, float] = {}
        self._first: Key | None = None
        self._varying: list[set[int]] = [set() for _ in self._used]
        self._last: Key | None = None
        self._streak = 0
        self.owed = 0.0
        """Seconds that it was interpreted, and could have been compiled."""
        self.waits = False
        """Whether what is around it may be compiled with it."""
        self._lock = threading.RLock()

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs of the graph for its inputs and what it captured. What it only hands on is not copied."""
        if len(arrays) != self._count:
            raise GraphError(f"the graph {self.graph.name!r} takes {self._count} inputs, not {len(arrays)}")
        made: list[Any] = []
        if self.graph.outputs:
            given = [arrays[at] for at in self._used]
            form = self.form(given)
            made = self._interpreter.run(self.graph, given, {}) if form is None else form.run(given, threads)
        return [arrays[pick] if pick >= 0 else made[~pick] for pick in self._picks]

    def form(self, arrays: Sequence[Any]) -> Form | None:
        """The compiled form for these inputs; None where they are to be interpreted."""
        key = self._key(arrays)
        found = self._forms.get(key)
        if found is None or (found.mask is not None and self._comes_back(key)):
            return self._meet(key, arrays)
        return found

    # ------------------------------------------------------------------------------------------------------- what comes

    def _key(self, arrays: Sequence[Any]) -> Key:
        if not self._bound and not self._untyped:
            return tuple([array.shape for array in arrays])
        return tuple([self._key_of(at, array) for at, array in enumerate(arrays)])

    def _key_of(self, at: int, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return None
        value = array.tobytes() if at in self._bound and array.size <= model.LARGEST_BOUND_VALUE else None
        return array.shape if value is None and at not in self._untyped else (array.shape, array.dtype, value)

    def _comes_back(self, key: Key) -> bool:
        """Whether a set of shapes that has no form of its own was met often enough, one run after another."""
        self._streak = self._streak + 1 if key == self._last else 0
        self._last = key
        return self._streak >= model.BODY_OFTEN and self.compiled < model.MOST_BODY_FORMS

    def _meet(self, key: Key, arrays: Sequence[Any]) -> Form | None:
        with self._lock:
            found = self._forms.get(key)
            if found is not None and found.mask is None:
                return found
            if found is None:
                self._streak = self._streak + 1 if key == self._last else 0
                self._last = key
            self._compare(key)
            steady = self._streak >= model.STEADY_RUNS or not any(self._varying)
            if found is None and not steady:
                found = next((one for one in self._open if _masked(key, one.mask) == one.fitting), None)
            if found is None or steady:
                self.owed += self._cost(key, arrays)
                if self.owed >= model.BODY_PRICE and self.compiled < model.MOST_BODY_FORMS and not self.waits:
                    found = self._compile(key, arrays, steady)
            if found is not None:
                self._remember(key, found)
            return found

    def _remember(self, key: Key, form: Form) -> None:
        if len(self._forms) >= model.SHAPES_REMEMBERED:
            self._forms = {known: one for known, one in self._forms.items() if one.mask is None}
        self._forms[key] = form

    def _compare(self, key: Key) -> None:
        """Notes what is not as it was in the first run."""
        if self._first is None:
            self._first = key
        for changed, first, now in zip(self._varying, self._first, key):
            if first == now or first is None or now is None:
                continue
            (old, *old_rest), (new, *new_rest) = _parts(first), _parts(now)
            if len(old) != len(new):
                changed.add(_RANK)
            changed.update(at for at, (a, b) in enumerate(zip(old, new)) if a != b)
            if old_rest != new_rest:
                changed.add(_VALUE)

    def _cost(self, key: Key, arrays: Sequence[Any]) -> float:
        """The seconds that the interpreter takes, roughly."""
        found = self._costs.get(key)
        if found is None:
            if len(self._costs) >= model.SHAPES_REMEMBERED:
                self._costs.clear()
            found = self._costs[key] = self._estimate(arrays)
        return found

    def _estimate(self, arrays: Sequence[Any]) -> float:
        graphs = list(all_graphs(self.graph))
        seconds = model.NODE_SECONDS * sum(len(graph.nodes) for graph in graphs)
        if any(has(node, "heavy") for graph in graphs for node in graph.nodes):
            try:
                typed = infer(self._typed(arrays, None))
            except GraphError:
                return seconds  # the interpreter says what is wrong
            heavy = [node for graph in all_graphs(typed) for node in graph.nodes if has(node, "heavy")]
            seconds += model.OPERATION_SECONDS * sum(map(operations, heavy))
        return seconds

    # -------------------------------------------------------------------------------------------------------- compiling

    def _compile(self, key: Key, arrays: Sequence[Any], steady: bool) -> Form | None:
        self.owed = 0.0
        self.compiled += 1
        mask: Mask | None = None if steady else tuple(frozenset(one) for one in self._varying)
        graph = self._typed(arrays, mask)
        values = {
            value.name: array
            for at, (value, array) in enumerate(zip(graph.inputs, arrays))
            if at in self._bound
            and isinstance(array, np.ndarray)
            and array.size <= model.LARGEST_BOUND_VALUE
            and (mask is None or not mask[at])
        }
        with knobs.override(**self._settings):
            runner = self._compile_graph(graph, values)
        types = [value.type for value in graph.inputs if isinstance(value.type, TensorType)]
        is_plain = mask is None and len(types) == len(arrays)
        form = Form(runner, runner.fast(types) if is_plain else None, mask, _masked(key, mask))
        if mask is not None:
            self._open.append(form)
        return form

    def _typed(self, arrays: Sequence[Any], mask: Mask | None) -> Graph:
        """The graph for inputs like these, but for what changes."""
        new: dict[Value, Value] = {}
        for at, (value, array) in enumerate(zip(self.graph.inputs, arrays)):
            if isinstance(array, np.ndarray):
                changing = frozenset() if mask is None else mask[at]
                new[value] = Value(value.name, _open_type(value, array, changing))
        return substitute_values(self.graph, new)


class Region(Body):
    """A node with all its subgraphs, as a graph of its own: one native call, where all that is inside has kernels."""

    def __init__(
        self, graph: Graph, known: Mapping[Value, Array], target: Target, precision: str | None, compile_graph: Compile
    ) -> None:
        super().__init__(graph, known, target, precision, compile_graph)
        self.numbers: list[int] = []
        """The places of its inputs among the values of the program around it."""
        self.closed = "" if "body" in graph.nodes[0].graphs else "a branch that is never taken is never compiled"
        """Why there is no native form; empty where there is one, or none was tried."""
        self.bodies: Collection[Body] = ()
        """Its subgraphs, as long as they run on the host."""
        self._declined = 0

    def ready(self, arrays: Sequence[Array]) -> Form | None:
        """The form for just these inputs, where it is made."""
        form = self._forms.get(self._key(arrays))
        return None if form is None or form.mask is not None else form

    def native(self, arrays: Sequence[Any], threads: int) -> list[Any] | None:
        """What the node makes; None where the host has to run it."""
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return None
        form = self.ready(arrays)
        if form is None:
            self.owed = sum(body.owed for body in self.bodies)
            form = self.form(arrays)
        made: list[Any] | None = None if form is None else form.runner.run(arrays, threads)
        if form is not None and made is None:
            self._declined += 1
            if self._declined >= model.MOST_DECLINED:
                self.close("it meets sizes that no kernel is made for")
        return made

    def close(self, reason: str) -> None:
        """Leaves the node to the host."""
        self.closed = reason
        logger.info("%s has no native form: %s", self.graph.name, reason)
        for body in self.bodies:
            body.waits = False

    def _cost(self, key: Key, arrays: Sequence[Any]) -> float:
        return 0.0  # what its bodies cost is known

    def _compile(self, key: Key, arrays: Sequence[Any], steady: bool) -> Form | None:
        self.compiled += 1
        mask: Mask | None = None if steady else tuple(frozenset(one) for one in self._varying)
        values = {
            at: array
            for at, array in enumerate(arrays)
            if at in self._bound and array.size <= model.LARGEST_BOUND_VALUE and (mask is None or not mask[at])
        }
        try:
            with knobs.override(**self._settings):
                made = ControlForm(self._typed(arrays, mask), values, self.target, self.precision)
        except (NoControl, GraphError) as error:
            self.close(str(error).splitlines()[0])  # the host runs it, and says what is wrong with such inputs
            return None
        for body in self.bodies:
            body.owed = 0.0
        form = Form(made, None, mask, _masked(key, mask))
        if mask is not None:
            self._open.append(form)
        return form


def results_of(graph: Graph, inputs: Sequence[Value]) -> tuple[list[Value], list[Pick]]:
    """What the nodes must make, each once; and for each output what it is."""
    makers = graph.producers()
    places = {value: at for at, value in enumerate(inputs)}
    made: dict[Value, int] = {}
    picks: list[Pick] = []
    for output in graph.outputs:
        value = output
        while (maker := makers.get(value)) is not None and _is(maker, "Identity") and maker.inputs[0] is not None:
            value = maker.inputs[0]
        picks.append(places[value] if value in places else ~made.setdefault(value, len(made)))
    return list(made), picks


def _is(node: Node, op: str) -> bool:
    return node.op == op and not node.domain


def _parts(item: Any) -> tuple[Any, ...]:
    """An item of a key as (shape, rest…)."""
    return item if item and isinstance(item[0], tuple) else (item,)


def _masked(key: Key, mask: Mask | None) -> Key:
    """What a form that leaves sizes open asks of a key."""
    if mask is None:
        return key
    return tuple(None if item is None else _masked_item(_parts(item), open) for item, open in zip(key, mask))


def _masked_item(parts: tuple[Any, ...], open: frozenset[int]) -> Any:
    shape, *rest = parts
    sizes = None if _RANK in open else tuple(None if at in open else size for at, size in enumerate(shape))
    # A value is bound only where nothing about the input changes.
    return (sizes, *rest) if not open else (sizes, *rest[:1])


def _open_type(value: Value, array: Array, changing: Iterable[int]) -> TensorType:
    if _RANK in changing:
        return TensorType(dtype_name(array.dtype), None)
    known: Sequence[Dim | None] = [None] * array.ndim
    if isinstance(value.type, TensorType) and value.type.shape is not None and len(value.type.shape) == array.ndim:
        known = value.type.shape
    dims: list[Dim] = list(array.shape)
    for at in changing:
        if at >= 0:
            dim = known[at]
            dims[at] = dim if isinstance(dim, Var) else unknown_dim("open")
    return TensorType(dtype_name(array.dtype), dims)


def operations(node: Node) -> int:
    """The operations of a product or convolution, roughly; 0 where its shapes are not known."""
    types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
    sizes = [t.static for t in types if isinstance(t, TensorType) and t.is_static]
    if len(sizes) != len(types) or len(node.inputs) < 2 or not node.outputs:
        return 0
    first, second, result = sizes[0], sizes[1], sizes[len(sizes) - len(node.outputs)]
    made = math.prod(result)
    if has(node, "product"):
        return 2 * made * (first[-1] if first else 1)
    if has(node, "convolution"):
        return 2 * made * math.prod(second[1:])
    if has(node, "recurrent"):
        return 4 * math.prod(first[:-1]) * math.prod(second)
    return 2 * math.prod(first) * math.prod(second)
