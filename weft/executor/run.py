"""Runs a `Program`: binds its native code and weights once, then serves calls from any thread.

A call takes an arena from a small pool, so that calls from several threads do not meet. Results are new arrays.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import RuntimeFault, WeftError
from weft.executor.native import Engine
from weft.executor.steps import HostStep, NativeStep, Program, aligned_array
from weft.graph.interpreter import interpret_graph, mismatch, operator_of
from weft.graph.ir import Array, Graph, GraphError

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
MOST_ARENAS = 4
LARGEST_KEPT = 1 << 31


class Runner:
    """A program with its native code."""

    def __init__(self, program: Program, engine: Engine | None, inner: Callable[[Graph], Any]) -> None:
        self.program = program
        self._engine = engine
        self._inner = inner
        self._arenas: list[Array] = []
        self._lock = threading.Lock()
        self._addresses = [w.ctypes.data for w in program.weights]
        for step in program.steps:
            if isinstance(step, NativeStep):
                assert engine is not None
                step.entry = _ENTRY(engine.address(step.symbol))
                step.fixed = np.array(
                    [self._addresses[n] if kind == "weight" else 0 for kind, n in step.bases], np.int64
                )

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs for inputs that fit the program's types."""
        program = self.program
        values: list[Any] = [None] * program.count
        for number, array in program.constants.items():
            values[number] = array
        for number, array in zip(program.inputs, arrays):
            values[number] = array
        arena = self._take()
        try:
            for step, finished in zip(program.steps, program.last_use):
                if isinstance(step, NativeStep):
                    self._native(step, values, arena, threads)
                elif isinstance(step, HostStep):
                    self._host(step, values, threads)
                else:
                    made = step.executor.run([values[n] for n in step.inputs], threads)
                    for number, array in zip(step.outputs, made):
                        values[number] = array
                for number in finished:
                    if number not in program.constants:
                        values[number] = None
        finally:
            self._give(arena)
        return [self._own(number, values) for number in program.outputs]

    def _own(self, number: int, values: Sequence[Any]) -> Any:
        """A result; a constant or input that is passed on is copied, so that nobody changes it behind our back."""
        made = values[number]
        if isinstance(made, np.ndarray) and (number in self.program.constants or number in self.program.inputs):
            return made.copy()
        return made

    # ------------------------------------------------------------------------------------------------------ native

    def _native(self, step: NativeStep, values: list[Any], arena: Array, threads: int) -> None:
        for number, kind in step.makes:
            values[number] = np.empty(kind.static, kind.numpy)
        bases = step.fixed.copy()
        kept = []
        for position, (kind_of_base, number) in enumerate(step.bases):
            if kind_of_base == "value":
                array = values[number]
                if not array.flags.c_contiguous or not array.flags.aligned:
                    array = np.ascontiguousarray(array)
                    kept.append(array)
                bases[position] = array.ctypes.data
            elif kind_of_base == "arena":
                bases[position] = arena.ctypes.data
        code = step.entry(bases.ctypes.data, threads)
        del kept
        if code:
            reason = "there was not enough memory for its intermediate arrays" if code == 1 else f"code {code}"
            raise RuntimeFault(f"the compiled model failed: {reason}")

    def _take(self) -> Array:
        with self._lock:
            if self._arenas:
                return self._arenas.pop()
        return aligned_array(np.empty(max(self.program.arena_bytes, 64) + 64, np.uint8)[1:], 64)

    def _give(self, arena: Array) -> None:
        with self._lock:
            if len(self._arenas) < MOST_ARENAS and arena.nbytes <= LARGEST_KEPT:
                self._arenas.append(arena)

    # -------------------------------------------------------------------------------------------------------- host

    def _host(self, step: HostStep, values: list[Any], threads: int) -> None:
        node = step.node
        given = [None if number is None else values[number] for number in step.inputs]
        outer = {value: values[number] for value, number in step.captured}

        def run_graph(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
            inner = step.inner.get(graph)
            if inner is None:
                inner = step.inner[graph] = self._inner(graph)
            if inner is False:
                return interpret_graph(graph, list(arrays), outer=outer)
            made: list[Any] = inner.run_with(arrays, outer, threads)
            return made

        try:
            made = operator_of(node).run(node, given, run_graph)
        except WeftError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
            raise GraphError(f"{node.describe()}: {problem}") from problem
        for number, value, array in zip(step.outputs, node.outputs, made):
            wrong = mismatch(array, value.type)
            if wrong:
                raise GraphError(f"{node.describe()}: its result {value.name!r}: {wrong}")
            values[number] = array
