"""Runs a `Program`: binds its native code and weights once, then serves calls from any thread.

A call takes an arena from a small pool, so that calls from several threads do not meet. Results are new
arrays, or the arrays that the caller gives for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import RuntimeFault
from weft.executor.fastcall import ENTRY, Fast, fast_call, is_direct, step_call
from weft.executor.open_checks import Conditions
from weft.executor.open_sizes import find_numbers
from weft.executor.steps import HostStep, NativeStep, Program, RestStep, aligned_array, memory
from weft.graph.interpreter import mismatch, operator_of
from weft.graph.ir import Array, Graph, GraphError, Node, TensorType, Type, Value
from weft.graph.opspec import Evaluate, Infer, OpSpec, Repeated, Repetition, blame, evaluation_of, node_error, type_of
from weft.runtime.faults import KERNEL_SHIFT, reason_of
from weft.runtime.jit import JitModule

MOST_ARENAS = 4
MOST_KNOWN = 4096
"""Sets of sizes of which it is known whether a graph takes them."""
LARGEST_KEPT = 1 << 31

Inner = Callable[[Graph, Mapping[Value, Array]], Any]
"""Makes what runs a subgraph, from the graph and the constants around it."""

Arena = tuple[int, Array]
"""Memory for the intermediates of one call: its address, and the array that owns it."""


class HostRunner:
    """What runs a program's host nodes; how its kernels run is another's business."""

    def __init__(self, program: Program, inner: Inner) -> None:
        self.program = program
        self._inner = inner
        self._hosts: dict[int, _HostCall] = {}

    def _own(self, at: int, number: int, made: Any) -> Any:
        """A result; what is passed on or returned twice is copied, so that nobody changes it behind our back."""
        program = self.program
        is_shared = number in program.constants or number in program.inputs or number in program.outputs[:at]
        return made.copy() if is_shared and isinstance(made, np.ndarray) else made

    def _host(self, step: HostStep, values: list[Any], threads: int) -> None:
        """Runs a host node; numpy's warnings are off around it."""
        ready = self._hosts.get(id(step))
        if ready is None:
            ready = self._hosts[id(step)] = _HostCall(step)
        use = Evaluate(step.node, _Subgraphs(self, step, values, threads)) if ready.has_graphs else ready.use
        arrays = [None if number is None else values[number] for number in step.inputs]
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

    def body(self, step: HostStep, graph: Graph, values: list[Any]) -> tuple[Any, list[Any]]:
        """A subgraph of a host node as something to run, and the values that it takes from outside."""
        numbers = dict(step.captured)
        body = step.inner.get(graph)
        if body is None:
            constants = self.program.constants
            known = {value: constants[number] for value, number in numbers.items() if number in constants}
            body = step.inner[graph] = self._inner(graph, known)
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
    given = [value.type for value in node.inputs if value is not None]
    if spec.shape_inputs and not all(_is_static(value.type) for value in node.outputs):
        return spec.types  # sizes are data: none may be larger than any memory
    return spec.check if (spec.takes or spec.requires) and not all(map(_is_static, given)) else None


def _is_static(kind: Type | None) -> bool:
    return isinstance(kind, TensorType) and kind.is_static


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

    def repeat(self, graph: Graph, wanted: Repetition) -> Repeated | None:
        """Several turns at once; None where that is not possible now."""
        body, captured = self.find(graph)
        made: Repeated | None = body.repeat([*wanted.inputs, *captured], wanted, self.threads)
        return made


class Runner(HostRunner):
    """A program with its native code."""

    def __init__(self, program: Program, engine: JitModule | None, inner: Inner) -> None:
        super().__init__(program, inner)
        self._engine = engine
        self._arenas: list[Arena] = []
        self._fast: Fast | None = None
        self._addresses = [w.ctypes.data for w in program.weights]
        for step in program.steps:
            if isinstance(step, NativeStep):
                assert engine is not None
                step.entry = ENTRY(engine.address(step.symbol))
        self._on_host = any(isinstance(step, HostStep) for step in program.steps)
        native = [step for step in program.steps if isinstance(step, NativeStep)]
        own = {number for step in native for number, _ in step.makes}
        self._calls = {id(step): step_call(step, self._addresses, own) for step in native}
        self._first: list[Any] = [program.constants.get(number) for number in range(program.count)]
        finished = [[n for n in numbers if n not in program.constants] for numbers in program.last_use]
        self._steps = list(zip(program.steps, finished))

    def fast(self, types: Sequence[TensorType]) -> Fast | None:
        """The short way of a call for inputs of these types (always the same ones); None where there is none."""
        if self._fast is None and is_direct(self.program):
            self._fast = self._make_fast(types)
        return self._fast

    def _make_fast(self, types: Sequence[TensorType]) -> Fast:
        steps = [step for step in self.program.steps if isinstance(step, NativeStep)]
        scope = {"arenas": self._arenas, "new_arena": self._new_arena, "keep_arena": self.give_arena}
        # The function may outlive the runner: it holds the engine and the weights too.
        scope.update(entry=steps[0].entry if steps else None, alive=(self._engine, self.program))
        scope["fault"] = functools.partial(fault, steps[0].kernels if steps else [])
        return fast_call(self.program, types, self._addresses, scope)

    def run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None = None) -> list[Any]:
        """The outputs for inputs that fit the program's types; made in the arrays of `out` where that can be."""
        if not self._on_host:
            return self._run(arrays, threads, out)
        with np.errstate(all="ignore"):
            return self._run(arrays, threads, out)

    def _run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None) -> list[Any]:
        program = self.program
        values = self._first.copy()
        for number, array in zip(program.inputs, arrays):
            values[number] = array
        given = {} if out is None else self._usable(arrays, out)
        arena = self.take_arena()
        try:
            for step, finished in self._steps:
                if isinstance(step, NativeStep):
                    self._native(step, values, given, arena, threads)
                elif isinstance(step, HostStep):
                    self._host(step, values, threads)
                else:
                    self._rest(step, values, threads)
                for number in finished:
                    values[number] = None
        finally:
            self.give_arena(arena)
        return [self._own(at, number, values[number]) for at, number in enumerate(program.outputs)]

    def _rest(self, step: RestStep, values: list[Any], threads: int) -> None:
        made = step.executor.run([values[n] for n in step.inputs], threads)
        for number, array in zip(step.outputs, made):
            values[number] = array

    def _usable(self, arrays: Sequence[Any], out: Sequence[Array | None]) -> dict[int, Array]:
        """The caller's arrays that native code may write: contiguous, and apart from every input and each other, but
        for an input that is updated there."""
        kinds = {n: kind for step in self.program.steps if isinstance(step, NativeStep) for n, kind in step.makes}
        found: dict[int, Array] = {}
        given = {n: array for n, array in zip(self.program.inputs, arrays) if isinstance(array, np.ndarray)}
        updated = {made: given.get(before) for before, made in self.program.updates}
        for number, array in zip(self.program.outputs, out):
            if array is None or number not in kinds or number in found or not array.flags.carray:
                continue
            fits = array.shape == kinds[number].static and array.dtype == kinds[number].numpy
            before = updated.get(number)
            if before is None or before.ctypes.data != array.ctypes.data or not before.flags.c_contiguous:
                before = None
            others = [*(other for other in given.values() if other is not before), *found.values()]
            if fits and not any(np.may_share_memory(array, other) for other in others):
                found[number] = array
        return found

    # ------------------------------------------------------------------------------------------------------ native

    def _native(self, step: NativeStep, values: list[Any], given: dict[int, Array], arena: Arena, threads: int) -> None:
        code = self._calls[id(step)](values, given, arena[0], threads)
        if code:
            raise fault(step.kernels, code)

    def weight_address(self, number: int) -> int:
        """Where a weight lies."""
        return self._addresses[number]

    def take_arena(self) -> Arena:
        """An arena for one call; `give_arena` takes it back."""
        # Taking from a list is one operation: no lock is needed between threads.
        try:
            return self._arenas.pop()
        except IndexError:
            return self._new_arena()

    def _new_arena(self) -> Arena:
        array = aligned_array(memory(max(self.program.arena_bytes, 64) + 64)[1:], 64)
        return array.ctypes.data, array

    def give_arena(self, arena: Arena) -> None:
        """Keeps an arena for the next call."""
        if len(self._arenas) < MOST_ARENAS and arena[1].nbytes <= LARGEST_KEPT:
            self._arenas.append(arena)


class OpenRunner(Runner):
    """A program for every size; `interpret` gives the outputs for sizes that no kernel is made for, or that a call
    brings and the graph does not take.
    """

    def __init__(
        self,
        program: Program,
        engine: JitModule | None,
        inner: Inner,
        interpret: Callable[[Sequence[Any]], list[Any]],
        conditions: Conditions,
    ) -> None:
        super().__init__(program, engine, inner)
        self.conditions = conditions
        self._takes = functools.lru_cache(MOST_KNOWN)(conditions.take)
        assert program.numbers is not None
        self.find = find_numbers(program.numbers)
        self._interpret = interpret
        hosts = [step for step in program.steps if isinstance(step, HostStep)]
        self._promised = {id(s): [(n, program.promised[n]) for n in s.outputs if n in program.promised] for s in hosts}

    def _run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None) -> list[Any]:
        found = self.find(arrays)
        made = None if found is None or not self._takes(found[0]) else self._run_steps(arrays, threads, *found)
        if made is not None:
            return made
        with np.errstate(all="ignore"):
            return [np.array(one) if isinstance(one, np.ndarray) else one for one in self._interpret(arrays)]

    def _run_steps(
        self, arrays: Sequence[Any], threads: int, sizes: tuple[int, ...], slots: tuple[int, ...], room: int
    ) -> list[Any] | None:
        """The outputs; None where a host node makes another shape than inference has promised."""
        program = self.program
        values = self._first.copy()
        for number, array in zip(program.inputs, arrays):
            values[number] = array
        arena = self._large_arena(room)
        try:
            for step, finished in self._steps:
                if isinstance(step, NativeStep):
                    code = self._calls[id(step)](values, {}, arena[0], threads, sizes, slots)
                    if code:
                        raise fault(step.kernels, code)
                elif isinstance(step, HostStep):
                    self._host(step, values, threads)
                    for number, shape in self._promised[id(step)]:
                        if values[number].shape != tuple(d if d >= 0 else sizes[~d] for d in shape):
                            return None
                else:
                    self._rest(step, values, threads)
                for number in finished:
                    values[number] = None
        finally:
            self.give_arena(arena)
        return [self._own(at, number, values[number]) for at, number in enumerate(program.outputs)]

    def _large_arena(self, room: int) -> Arena:
        """An arena of so many bytes: one that is kept, or a new one in its place."""
        kept = self.take_arena() if self._arenas else None
        if kept is not None and kept[1].nbytes >= room:
            return kept
        whole = memory(room + 64)
        start = -whole.ctypes.data % 64
        return whole.ctypes.data + start, whole[start : start + room]


def fault(kernels: Sequence[str], code: int) -> RuntimeFault:
    """The error for the code of a native call that failed; `kernels` says what each of its kernels computes."""
    number = code >> KERNEL_SHIFT
    where = kernels[number] if number < len(kernels) else "the compiled model"
    return RuntimeFault(f"{where} failed: {reason_of(code)}")
