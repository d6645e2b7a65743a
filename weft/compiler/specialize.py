"""An executor: a graph that is compiled for the shapes that it meets, and remembers them.

Symbolic sizes are bound by the inputs' shapes on first sight; small inputs that decide shapes (axes, sizes, k) are
bound by value. A graph with symbolic sizes also gets a form for all sizes in the first call, which answers calls with
other sizes; those that come often get forms of their own in the background (`background.py`). The memory of forms is
bounded: the one that was not used for longest is dropped.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.cache import models as cache
from weft.compiler.control.bodies import Body, Region
from weft.compiler.device.runner import DeviceRunner
from weft.compiler.form import Compiled, NativeCode, Specialization, load_code
from weft.compiler.lowering.constants import lighten
from weft.compiler.lowering.graph import lower_graph
from weft.compiler.lowering.items import Launch, Rest
from weft.compiler.lowering.lower import Lowered
from weft.compiler.passes import for_target, optimize
from weft.compiler.run import OpenRunner, Runner
from weft.compiler.saved.store import read_form, save_modules, write_form, write_model
from weft.compiler.sizes import background
from weft.compiler.sizes.deciding import deciding_inputs
from weft.compiler.steps import RestStep
from weft.core import model
from weft.core.errors import ArgumentError, WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import Interpreter, operator_of
from weft.graph.ir import Array, Graph, TensorType, Value, all_graphs
from weft.graph.opspec import has, is_of_users
from weft.graph.passes.algorithms import choosing
from weft.graph.passes.specialize import apart
from weft.graph.shapes import typical
from weft.graph.structural import structure_key
from weft.plan import overrides
from weft.runtime.compiling import compiling
from weft.runtime.jit import JitModule, defined_names
from weft.runtime.model.module import Module
from weft.runtime.model.stored import bound_key, check_ranges
from weft.runtime.threads import get_threads
from weft.targets.base import Target, text_of
from weft.targets.registry import find_target

logger = logging.getLogger("weft.compiler")


class Executor(Compiled):
    """Runs a graph; compiles it for each new set of shapes."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        precision: str | None = None,
        can_compile: bool = True,
        whole: Callable[[], Graph] | None = None,
        in_body: bool = False,
    ) -> None:
        """With `whole` the graph is only the model's signature, and `whole` gives the model when somebody asks.

        A graph `in_body` runs again and again in one call: what waits for shapes there is compiled only if that pays.
        """
        settings = knobs.snapshot(without=cache.NO_MATTER)
        super().__init__(graph, target, precision, deciding_inputs(graph), settings)
        self._graph = graph if whole is None else None
        self._whole = whole
        self._can_compile = can_compile
        self._in_body = in_body
        self.typical: dict[str, int] = {}
        """What open sizes typically are, by name."""
        self._met: dict[Any, int] = {}
        self._sizes = knobs.sizes
        self._closed: str | None = None
        """Why there is no form for all sizes."""
        if self._sizes == "bound" or target.on_device or in_body or not can_compile or not graph.symbols:
            self._closed = ""
        self._lock = threading.RLock()
        self._overrides, self.records = overrides.in_force(), overrides.records()

    @property
    def graph(self) -> Graph:
        """The model."""
        if self._graph is None:
            assert self._whole is not None
            self._graph = self._whole()
        return self._graph

    def report(self, module: Module) -> str:
        """What runs where."""
        from weft.compiler.reports.report import report_text

        return report_text(module)

    def profile(self, module: Module, feeds: Mapping[str, Any], threads: int | None, seconds: float) -> Any:
        """The time of every kernel."""
        from weft.compiler.reports.profile import profile_module

        return profile_module(module, feeds, threads, seconds)

    def save(self, module: Module, path: str | Path, link: bool = True) -> None:
        """Writes a module file."""
        save_modules([self], path, link)

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs for arrays in the order of the inputs."""
        known = self._open if self._sizes == "open" and not self._found else None  # no other form comes
        return (known or self.specialization(arrays)).runner.run(arrays, threads)

    def specialization(self, arrays: Sequence[Any]) -> Specialization:
        """The compiled form for these inputs: found, or made now."""
        key = bound_key(arrays, self._bound)
        with self._lock:
            found = self._found.get(key)
            if found is None:
                found = self._meet(key, arrays)
            else:
                self._found.move_to_end(key)
            return found

    def measured(self, arrays: Sequence[Any]) -> Specialization:
        """The form that a profile is of: that for just these inputs, or the one for all sizes where only that is asked
        for."""
        found = self.specialization(arrays)
        if found is not self._open or self._sizes == "open":
            return found
        return self._take(bound_key(arrays, self._bound), self._compile(arrays))

    def _meet(self, key: Any, arrays: Sequence[Any]) -> Specialization:
        """The form for shapes that have none of their own: that for all sizes, or one that is made now."""
        if self._open is None and self._closed is None:
            self._open = self._compile_open(arrays)
            if self._open is not None and any(isinstance(s, RestStep) for s in self._open.runner.program.steps):
                self._open.runner.run(arrays, get_threads())  # what waits for shapes is compiled now too
        if self._open is not None and (self._found or self.ranges or self._sizes == "open"):
            if self._wish(key, arrays) and isinstance(self._open.runner, Runner):
                self._open.runner.settle(arrays)
            return self._open
        return self._take(key, self._compile(arrays))

    def _wish(self, key: Any, arrays: Sequence[Any]) -> bool:
        """Asks for a form of shapes that have come often enough, to be made beside the calls; True where there is
        nothing to ask for any more."""
        if self._sizes != "background" or self._overrides or not self._sendable:
            return True
        met = self._met[key] = self._met.pop(key, 0) + 1
        if len(self._met) > model.SHAPES_REMEMBERED:
            del self._met[next(iter(self._met))]
        if met != model.FORM_AFTER:
            return met > model.FORM_AFTER
        shapes = self._shapes(arrays)
        sample = background.copies_of(arrays)

        def give(form: Specialization | None) -> None:
            if form is None or self._open is None:
                return
            if background.is_faster(form, self._open, sample, self.target.cores):
                with self._lock:
                    self._take(key, form)

        def read(path: Path) -> Specialization:
            return read_form(path, self, shapes, lambda: self._rebuild(shapes, {}))

        wish = background.Wish(lambda path: write_model(path, self), shapes, self.target.cores, read, give)
        if not background.ask(wish):
            self._met[key] = 0
        return False

    @functools.cached_property
    def _sendable(self) -> bool:
        """Whether another process would compile the same: it knows this machine and Weft's own operators only."""
        nodes = [node for graph in all_graphs(self.graph) for node in graph.nodes]
        native = replace(find_target("native"), cores=self.target.cores)
        return (
            bool(sys.executable)
            and text_of(self.target) == text_of(native)
            and not self._bound
            and not any(is_of_users(operator_of(node)) for node in nodes)
        )

    @property
    def why_closed(self) -> str:
        """Why there is no form for all sizes; empty where there is one, or none is wanted."""
        return self._closed or ""

    def _shapes(self, arrays: Sequence[Any]) -> dict[str, tuple[int, ...]]:
        return {
            v.name: a.shape
            for v, a in zip(self.graph.inputs, arrays)
            if isinstance(a, np.ndarray) and isinstance(v.type, TensorType)
        }

    def take_ranges(self, ranges: Mapping[tuple[str, int], range]) -> Specialization | None:
        """Notes between which numbers open sizes lie, by input and axis, and makes the form for all of them now."""
        self.ranges = dict(ranges)
        stand_ins = []
        for value in self.graph.inputs:
            kind = value.type
            if not isinstance(kind, TensorType) or kind.shape is None:
                return None
            sizes = list(typical(kind.dims))
            for (name, axis), wanted in ranges.items():
                if name == value.name and not wanted:
                    raise ArgumentError(f"the range of size {axis} of input {name!r} is empty: {wanted}")
                if name == value.name:
                    sizes[axis] = wanted[len(wanted) // 2]
            stand_ins.append(np.broadcast_to(np.zeros((), kind.numpy), sizes))
        self.check_ranges(stand_ins)
        if self._closed is None:
            with self._lock:
                self._open = self._compile_open(stand_ins)
        return self._open

    def check_ranges(self, arrays: Sequence[Any]) -> None:
        """Raises where an input has a size that was promised not to come."""
        if self.ranges:
            check_ranges(self.ranges, self.signature.inputs, arrays)

    def apart(self) -> Executor:
        """An executor of the same graph in which no two sizes share a name."""
        with knobs.override(**self.settings, sizes=self._sizes), overrides.overriding(self._overrides):
            made = Executor(apart(self.graph), self.target, self.precision, self._can_compile)
        made.ranges = self.ranges
        return made

    def _compile_open(self, arrays: Sequence[Any]) -> Specialization | None:
        """The form for all sizes; None, with the reason noted, where it would have to compute much on the host."""
        for value, array in zip(self.graph.inputs, arrays):
            if isinstance(value.type, TensorType) and isinstance(array, np.ndarray):
                dims = zip(value.type.shape or (), array.shape)
                self.typical.update({dim.name: max(1, size) for dim, size in dims if isinstance(dim, Var)})
        try:
            made = self.form({}, {})
        except WeftError as error:  # a refusal: the forms for given sizes answer then, as they do without this one
            self._closed = str(error).splitlines()[0]
        else:
            heavy = [one for one in made.host_nodes if has(one.node, "heavy", "recurrent", "attention")]
            if not heavy:
                return made
            self._closed = f"{heavy[0].node.describe()}: {heavy[0].reason}"
        logger.info("%s has no form for open sizes: %s", self.graph.name, self._closed)
        return None

    def compile_static(self) -> Specialization | None:
        """Compiles a graph whose shapes are all known; None where they are not, or where values decide shapes."""
        if not self.is_static:
            return None
        types = [value.type for value in self.graph.inputs]
        # A stand-in that has shape and type but no memory of its own.
        stand_ins = [np.broadcast_to(np.zeros((), t.numpy), t.static) for t in types if isinstance(t, TensorType)]
        return self.specialization(stand_ins)

    def _compile(self, arrays: Sequence[Any]) -> Specialization:
        if not self._can_compile:
            raise ArgumentError("this module was loaded from a file that holds its code for other shapes only")
        shapes = self._shapes(arrays)
        values = {
            v.name: a
            for at, (v, a) in enumerate(zip(self.graph.inputs, arrays))
            if at in self._bound and isinstance(a, np.ndarray) and a.size <= model.LARGEST_BOUND_VALUE
        }
        return self.form(shapes, values)

    def form(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Specialization:
        """The compiled form for these shapes and values of inputs: from the cache on disk, or made now."""
        with self._as_asked():
            return self._form(shapes, values)

    @contextmanager
    def _as_asked(self) -> Iterator[None]:
        """What was in force when the model was given to be compiled: settings, schedules, records."""
        with knobs.override(**self.settings), overrides.overriding(self._overrides):
            with overrides.recording(self.records), choosing(self.forms):
                yield

    @property
    def forms(self) -> Mapping[str, str]:
        """What the tuner chose for parts of the model, by their names."""
        known = self.records.algorithms if self.records is not None else {}
        return known.get(structure_key(self.graph), {}) if known else {}

    def _form(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Specialization:
        entry = cache.entry_for(self.graph, shapes, values, self.target, self.precision)
        found = entry and entry.read(lambda path: read_form(path, self, shapes, lambda: self._rebuild(shapes, values)))
        if entry and found:
            found.kept = entry.path
            logger.debug("found %s for %s in the cache", self.graph.name, shapes)
            return found
        start = time.perf_counter()
        made = self._build(shapes, values)
        logger.debug("compiled %s for %s", self.graph.name, shapes)
        if entry and time.perf_counter() - start >= model.FORM_KEPT_SECONDS:
            made.kept = entry.write(made.arrays(), lambda path: write_form(path, self, made))
        return made

    def _rebuild(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Specialization:
        with self._as_asked():
            return self._build(shapes, values)

    @compiling()
    def _build(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Specialization:
        graph = for_target(optimize(self.graph, shapes, values), self.target, self.precision, self.typical)
        sizes = {var: self.typical[name] for name, var in graph.symbols.items() if name in self.typical}
        lowered = lower_graph(graph, self.target, self.open_rest if graph.symbols else self.rest, sizes)
        _check_overrides(self.graph, lowered)
        if self.target.on_device:
            programs = {kernel.symbol: kernel.program for kernel in lowered.kernels if kernel.program is not None}
            codes = list({kernel.symbol: kernel.object_code for kernel in lowered.kernels}.values())
            runner: Runner | DeviceRunner
            runner = on_device = DeviceRunner(
                lowered.program, programs, self.target, self.inner, codes=codes if all(codes) else ()
            )
            native = NativeCode(on_device.codes, [])
        else:
            engine, native = link(lowered, self.target)
            is_open = lowered.program.numbers is not None
            runner = (
                OpenRunner(lowered.program, engine, self.inner, self.interpreted, lowered.conditions)
                if is_open
                else Runner(lowered.program, engine, self.inner)
            )

        def constants() -> dict[str, Array]:
            with self._as_asked():
                again = for_target(optimize(self.graph, shapes, values), self.target, self.precision, self.typical)
            return {value.name: array for value, array in again.constants.items()}

        made = Specialization(graph, lowered, runner, native)
        made.lighten({id(array) for array in self.graph.constants.values()}, constants)
        return made

    def interpreted(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs by the numpy meaning of the operators."""
        return Interpreter().run(self.graph, arrays, {})

    def release(self, reload: Callable[[], Graph]) -> None:
        """Lets go of constants that only packed copies need. `reload` gives the model again, when somebody asks."""
        if not self.is_static or not self._found:
            return
        held = {id(array) for one in self._found.values() for array in one.arrays()}
        for one in self._found.values():
            one.lighten(())
        self._graph = lighten(self.graph, held, lambda: {v.name: a for v, a in reload().constants.items()})

    def inner(self, graph: Graph, known: Mapping[Value, Array], whole: bool = False) -> Any:
        """What runs a subgraph of a host node, or a graph of the `whole` node; `known` are the constants around it."""
        with knobs.override(**self.settings):
            return (Region if whole else Body)(graph, known, self.target, self.precision, self._compile_body)

    def _compile_body(self, graph: Graph, values: Mapping[str, Array]) -> Runner | DeviceRunner:
        """What runs a body whose inputs are typed, compiled now."""
        return Executor(graph, self.target, self.precision, in_body=True).form({}, values).runner

    def open_rest(self, graph: Graph) -> Any:
        """The rest of a form for all sizes, which meets other ones in each call."""
        with knobs.override(sizes="open"):
            return self.rest(graph)

    def rest(self, graph: Graph) -> Any:
        """What runs the rest of a graph: once the shapes are known that it waits for, or what a device refused."""
        device = self.target.spec.device
        if device is not None and device.rest and all(v.is_static for v in (*graph.inputs, *graph.outputs)):
            with knobs.override(**self.settings):
                return Executor(graph, find_target(device.rest), self.precision)
        if self._in_body:
            return self.inner(graph, {})
        with knobs.override(**self.settings):
            return Executor(graph, self.target, self.precision)


def _check_overrides(graph: Graph, lowered: Lowered) -> None:
    """Raises where a schedule was given for what is no kernel."""
    kernels = {node.name for item in lowered.items if isinstance(item, Launch) for node in item.nodes}
    unknown = [name for name in overrides.in_force() if name not in kernels]
    if unknown and not any(isinstance(item, Rest) for item in lowered.items):
        known = ", ".join(sorted(filter(None, kernels))[:20])
        there = {node.name for node in graph.nodes}
        said = "is computed by no kernel of its own name" if unknown[0] in there else "is no node of the model"
        raise ArgumentError(f"a schedule was given for {unknown[0]!r}, which {said}; kernels compute {known}")


def link(lowered: Lowered, target: Target) -> tuple[JitModule | None, NativeCode]:
    """The native code of a program: in this process (None where it has none, or another machine's), as object files."""
    if not lowered.drivers:
        return None, NativeCode(list, [])
    drivers = [llvm_compile.emit_object(text, target, "called") for text in lowered.drivers]
    names = [name for text in lowered.drivers for name in defined_names(text)]
    kernels = lowered.kernels

    def objects() -> list[bytes]:
        return [kernel.object_code for kernel in kernels] + drivers

    externals = sorted({name for kernel in kernels for name in llvm_compile.external_names(kernel.llvm_ir)})
    return load_code(objects(), names, externals, target), NativeCode(objects, externals)
