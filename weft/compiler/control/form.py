"""A node with all its subgraphs as one native call: the code of `llvm_ir.py`, and what a call gives and takes."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.control.llvm_ir import ASKED, Writer
from weft.compiler.control.parts import DECLINED, STOPPED, Builder, NoControl, closed, input_name
from weft.compiler.kernels.build import Kernel
from weft.compiler.steps import aligned_array, memory
from weft.core.knobs import UNASKED_BYTES, knobs
from weft.graph.ir import Array, Graph
from weft.runtime.addresses import address_of
from weft.runtime.jit import JitModule
from weft.runtime.model.runner import fault
from weft.targets.base import Target


class ControlForm:
    """A graph with control flow as one native call."""

    def __init__(self, graph: Graph, values: Mapping[int, Array], target: Target, precision: str | None) -> None:
        if target.on_device or not target.is_host:
            raise NoControl(f"{target.name} is not the machine that runs it")
        builder = Builder(target, precision)
        part = builder.part(closed(graph), {input_name(at): array for at, array in values.items()})
        most = max(UNASKED_BYTES, knobs.tensor_megabytes << 20)
        self.writer = writer = Writer(f"control_{next(_counter)}", target, most)
        text = writer.text(part)
        self._engine = _linked(text, writer.name, list(builder.kernels.values()), target)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
        self._entry = kind(self._engine.address(writer.name))
        self._let_go = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._engine.address(f"{writer.name}_release"))
        self.kernels = writer.kernels
        self._alive = [aligned_array(np.asarray(array)) for array in writer.weights]
        self._weights = [address_of(array) for array in self._alive]
        self._first = sum(1 + len(value.tensor.dims) for value in part.graph.inputs) + len(self._weights) + 1 + ASKED
        kinds = [value.tensor for value in part.graph.outputs]
        self._results = [(kind.numpy, kind.static if kind.is_static else None, len(kind.dims)) for kind in kinds]
        self._is_open = any(shape is None for _, shape, _ in self._results)
        self._arenas: list[Array] = []

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any] | None:
        """The outputs; None where the call meets sizes that the host has to compute."""
        ready = [a if a.flags.c_contiguous and a.flags.aligned else np.array(a, order="C") for a in arrays]
        entries = [address_of(array) for array in ready]
        for array in ready:
            entries += array.shape
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = aligned_array(memory(max(self.writer.arena_bytes, 64) + 64)[1:], 64)
        entries += self._weights
        entries += (address_of(arena), *_asked(), 0, 0, 0)
        made: list[Any] = []
        for dtype, shape, rank in self._results:
            one = None if shape is None else np.empty(shape, dtype)
            made.append(one)
            entries += (0 if one is None else address_of(one), 0, *(0,) * rank)
        table = np.array(entries, np.int64)
        code = self._entry(address_of(table), threads)
        if len(self._arenas) < 4:
            self._arenas.append(arena)
        if code == DECLINED:
            return None
        if code == STOPPED:
            ctypes.pythonapi.PyErr_Restore(*map(ctypes.c_void_p, table[self._first - 3 : self._first].tolist()))
        if code:
            raise fault(self.kernels, code)
        if self._is_open:
            self._fetch(table, made)
        return made

    def _fetch(self, table: Array, made: list[Any]) -> None:
        """Copies the results whose sizes the call told, and lets go of them."""
        at = self._first
        for number, (dtype, _, rank) in enumerate(self._results):
            if made[number] is None:
                address, owner, *shape = table[at : at + 2 + rank].tolist()
                made[number] = one = np.empty(shape, dtype)
                ctypes.memmove(address_of(one), address, one.nbytes)
                if owner:
                    self._let_go(owner)
            at += 2 + rank


_counter = itertools.count()


@functools.cache
def _asked() -> tuple[int, ...]:
    """The addresses of what a loop calls to learn whether a signal came."""
    clock = ctypes.CDLL("ucrtbase")._time64 if sys.platform == "win32" else ctypes.CDLL(None).time
    names = ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    found = [clock, *(getattr(ctypes.pythonapi, name) for name in names)]
    return tuple(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found)


def _linked(text: str, name: str, kernels: Sequence[Kernel], target: Target) -> JitModule:
    externals = sorted({one for kernel in kernels for one in llvm_compile.external_names(kernel.llvm_ir)})
    objects = [*(kernel.object_code for kernel in kernels), llvm_compile.emit_object(text, target)]
    return llvm_compile.load(objects, [name, f"{name}_release"], externals, target)
