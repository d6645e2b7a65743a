"""Runs a program whose steps are not all native code: host nodes by their numpy meaning, and what waits for shapes.

How native code runs is in `runtime/model/runner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.sizes.open_checks import Conditions
from weft.compiler.steps import HostStep, Program, RestStep
from weft.core.array_types import ArrayType
from weft.graph.interpreter import mismatch, operator_of
from weft.graph.ir import Array, Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import Evaluate, Infer, OpSpec, blame, evaluation_of, node_error, type_of
from weft.graph.signature import signature
from weft.runtime.model.fastcall import Fast, fitting
from weft.runtime.model.runner import Engine, NativeRunner, OpenSizes

Inner = Callable[..., Any]
"""Makes what runs a subgraph, or (True) a graph of a whole node, from the graph and the constants around it."""


class HostRunner:
    """What runs a program's host nodes; how its kernels run is another's business."""

    def __init__(self, program: Program, inner: Inner) -> None:
        self.program = program
        self._inner = inner
        self._hosts: dict[int, _HostCall] = {}

    def _host(self, step: HostStep, values: list[Any], threads: int) -> None:
        """Runs a host node; numpy's warnings are off around it."""
        ready = self._hosts.get(id(step))
        if ready is None:
            ready = self._hosts[id(step)] = _HostCall(step)
        use = Evaluate(step.node, _Subgraphs(self, step, values, threads)) if ready.has_graphs else ready.use
        arrays = [None if number is None else values[number] for number in step.inputs]
        if ready.has_graphs and (native := self._whole(step, values, threads)) is not None:
            for number, array in zip(step.outputs, native):
                values[number] = array
            return
        try:
            if ready.check is not None:
                ready.check(Infer(step.node, [type_of(array) for array in arrays], arrays))
            made = ready.evaluate(use, *arrays)
        except Exception as error:
            raise blame(step.node, evaluation_of(arrays), error) from error
        results = made if isinstance(made, tuple) else (made,)
        for number, fits, array in zip(step.outputs, ready.fits, results):
            if not fits(array):
                raise ready.complaint(array, step.outputs.index(number))
            values[number] = array
        if ready.has_graphs:
            self._separate(step, values)

    def _whole(self, step: HostStep, values: list[Any], threads: int) -> list[Any] | None:
        """What a node with subgraphs makes, by one native call; None where it runs on the host."""
        region = step.region
        if region is None:
            numbers = self._taken(step)
            constants = self.program.constants
            known = {value: constants[number] for value, number in numbers.items() if number in constants}
            given = [value for value in numbers if value not in known]
            node = step.node
            region = step.region = self._inner(Graph(node.op, given, node.outputs, [node], known), known, True)
            region.bodies = step.inner.values()
            region.numbers = [numbers[value] for value in given]
        if region.closed:
            return None
        made: list[Any] | None = region.native([values[number] for number in region.numbers], threads)
        return made

    @staticmethod
    def _taken(step: HostStep) -> dict[Value, int]:
        """The values that a node and its subgraphs read, with their numbers."""
        own = {v: number for v, number in zip(step.node.inputs, step.inputs) if v is not None and number is not None}
        return {**own, **dict(step.captured)}

    def body(self, step: HostStep, graph: Graph, values: list[Any]) -> tuple[Any, list[Any]]:
        """A subgraph of a host node as something to run, and the values that it takes from outside."""
        numbers = dict(step.captured)
        body = step.inner.get(graph)
        if body is None:
            constants = self.program.constants
            known = {value: constants[number] for value, number in numbers.items() if number in constants}
            body = step.inner[graph] = self._inner(graph, known)
            body.waits = step.region is not None and not step.region.closed
        return body, [values[numbers[value]] for value in body.captured]

    @staticmethod
    def _separate(step: HostStep, values: list[Any]) -> None:
        """Copies the results of subgraphs that are a value from outside, handed on: each value has its own array."""
        taken = [values[n] for n in (*step.inputs, *(n for _, n in step.captured)) if n is not None]
        for number in step.outputs:
            array = values[number]
            if isinstance(array, np.ndarray) and any(_may_share(array, other) for other in taken):
                values[number] = array = array.copy()
            taken.append(array)


def _may_share(array: Array, other: Any) -> bool:
    """Whether two arrays may have memory in common; most own theirs, which is quickly seen."""
    if array is other or array.base is None and getattr(other, "base", None) is None:
        return array is other
    return isinstance(other, np.ndarray) and np.may_share_memory(array, other)


class _HostCall:
    """What is found about a host node once: its meaning, and tests of its results."""

    def __init__(self, step: HostStep) -> None:
        self.node = step.node
        self.use = Evaluate(step.node)
        spec = operator_of(step.node)
        self.evaluate = spec.meaning()
        self.check = _late_check(step.node, spec)
        self.has_graphs = bool(step.node.graphs)
        self.fits = [_test(value) for value in step.node.outputs]

    def complaint(self, array: Any, at: int) -> GraphError:
        """The error for a result that is not of the type that inference found."""
        value = self.node.outputs[at]
        return node_error(self.node, f"its result {value.name!r}: {mismatch(array, value.type)}")


def _late_check(node: Node, spec: OpSpec) -> Callable[[Infer], Any] | None:
    """What inference could not check because only the run tells the shapes; None where it has checked all."""
    known = all(value is None or value.is_static for value in node.inputs)
    if spec.shape_inputs and not all(value.is_static for value in node.outputs):
        return spec.types  # sizes are data: none may be larger than any memory
    asks = spec.requires or (spec.takes is not None and any(one.shapes for one in signature(spec.takes).inputs))
    return spec.check if asks and not known else None


def _test(value: Value) -> Callable[[Any], bool]:
    """Whether an array is of a value's type: quick for what a plain comparison tells."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return lambda array: mismatch(array, kind) is None
    dtype, rank = kind.numpy, len(kind.shape)
    sizes = [(axis, size) for axis, size in enumerate(kind.shape) if isinstance(size, int)]

    def fits(array: Any) -> bool:
        if type(array) is np.ndarray and array.dtype is dtype and array.ndim == rank:
            shape = array.shape
            for axis, size in sizes:
                if shape[axis] != size:
                    return False
            return True
        return mismatch(array, kind) is None

    return fits


class _Subgraphs:
    """The subgraphs of a host node, in one run of it: what they take from outside is looked up once."""

    def __init__(self, runner: HostRunner, step: HostStep, values: list[Any], threads: int) -> None:
        self.runner, self.step, self.values, self.threads = runner, step, values, threads
        self.ready: dict[Graph, tuple[Any, list[Any]]] = {}

    def find(self, graph: Graph) -> tuple[Any, list[Any]]:
        """What runs a subgraph, and what it takes from outside."""
        found = self.ready.get(graph)
        if found is None:
            found = self.ready[graph] = self.runner.body(self.step, graph, self.values)
        return found

    def __call__(self, graph: Graph, arrays: Sequence[Any]) -> list[Any]:
        body, captured = self.find(graph)
        made: list[Any] = body.run([*arrays, *captured], self.threads)
        return made


class Runner(HostRunner, NativeRunner):
    """A program with its native code, and what runs the rest of it."""

    def __init__(self, program: Program, engine: Engine | None, inner: Inner) -> None:
        NativeRunner.__init__(self, program, engine)
        HostRunner.__init__(self, program, inner)

    def fast(self, types: Sequence[ArrayType]) -> Fast | None:
        """The short way, of a program that is one node with subgraphs, too."""
        if self._fast is None and self.program.numbers is None and len(self.program.steps) == 1:
            (step,) = self.program.steps
            if isinstance(step, HostStep) and step.node.graphs:
                self._fast = self._control_call(step, types)
        return super().fast(types)

    def _control_call(self, step: HostStep, types: Sequence[ArrayType]) -> Fast:
        """A function like that of `fastcall`: None for what does not fit exactly, or while the host runs the node."""
        program, first = self.program, self._first
        fits = fitting(tuple(types))

        def fast(arrays: Sequence[Any], threads: int, out: Sequence[Any] | None) -> list[Any] | None:
            region = step.region
            if out is not None or region is None or region.closed or not fits(arrays):
                return None
            values = first.copy()
            for number, array in zip(program.inputs, arrays):
                values[number] = array
            taken = [values[number] for number in region.numbers]
            form = region.ready(taken)
            made = None if form is None else form.runner.run(taken, threads)
            if made is None:
                return None
            for number, array in zip(step.outputs, made):
                values[number] = array
            return [program.own(at, number, values[number]) for at, number in enumerate(program.outputs)]

        return fast

    def _other(self, step: HostStep | RestStep, values: list[Any], threads: int) -> None:
        if isinstance(step, HostStep):
            self._host(step, values, threads)
            return
        made = step.executor.run([values[n] for n in step.inputs], threads)
        for number, array in zip(step.outputs, made):
            values[number] = array


class OpenRunner(OpenSizes, Runner):
    """A program for every size, with `conditions` of the sizes that it takes."""

    def __init__(
        self,
        program: Program,
        engine: Engine | None,
        inner: Inner,
        interpret: Callable[[Sequence[Any]], list[Any]],
        conditions: Conditions,
    ) -> None:
        Runner.__init__(self, program, engine, inner)
        self.conditions = conditions
        self.open(conditions.take, interpret)
