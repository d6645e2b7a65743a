"""A compiled form of a model: its program with what runs it, and how it came about.

Below whatever compiles, saves, reads or measures forms; those see of the model that a form is of a `Compiled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.device.runner import DeviceRunner
from weft.compiler.lowering.constants import Reload, lighten
from weft.compiler.lowering.items import Launch, OnHost
from weft.compiler.lowering.lower import Lowered
from weft.compiler.run import Runner
from weft.compiler.steps import HostStep
from weft.core import model
from weft.core.knobs import knobs
from weft.graph.ir import Array, Graph, Value
from weft.graph.opspec import has
from weft.runtime.jit import JitModule
from weft.targets.base import Target


@dataclass(frozen=True)
class NativeCode:
    """The object files of a compiled form, and the names of C functions that they call."""

    objects: Callable[[], list[bytes]]
    externals: list[str]


class Specialization:
    """One compiled form of a graph: for these shapes (and values).

    A form that was read from the cache has what a call needs. How it came about (`graph`, `lowered`) is made again by
    `rebuild` when somebody asks.
    """

    def __init__(
        self,
        graph: Graph | None,
        lowered: Lowered | None,
        runner: Runner | DeviceRunner,
        native: NativeCode,
        rebuild: Callable[[], Specialization] | None = None,
    ) -> None:
        self._graph = graph
        self._lowered = lowered
        self.rebuild = rebuild
        self._reload: Reload | None = None
        self.runner = runner
        self.native = native
        self.kept: Path | None = None

    @property
    def graph(self) -> Graph:
        """The graph after its passes."""
        return self._whole()[0]

    @property
    def lowered(self) -> Lowered:
        """Kernels, drivers and what runs where."""
        return self._whole()[1]

    def _whole(self) -> tuple[Graph, Lowered]:
        if self._graph is None or self._lowered is None:
            assert self.rebuild is not None
            made = self.rebuild()
            self._graph, self._lowered = made.graph, made.lowered
        return self._graph, self._lowered

    def whole(self) -> Specialization:
        """This form, or, for one that was read from the cache, the same with all that only compiling finds."""
        return self if self.rebuild is None else self.rebuild()

    def arrays(self) -> list[Array]:
        """What a call reads: weights as kernels want them, and constants of host nodes."""
        return [*self.runner.program.weights, *self.runner.program.constants.values()]

    def lighten(self, held: Collection[int], reload: Reload | None = None) -> None:
        """Lets go of the graph's constants, but those that a call reads or that are held elsewhere."""
        self._reload = reload or self._reload
        if self._graph is not None and self._reload is not None:
            self._graph = lighten(self._graph, {*held, *map(id, self.arrays())}, self._reload)

    @property
    def host_nodes(self) -> list[OnHost]:
        """The nodes that are computed on the host, with the reasons."""
        steps = [step for step in self.runner.program.steps if isinstance(step, HostStep)]
        return [OnHost(step.node, step.reason) for step in steps if not has(step.node, "unread")]

    @property
    def launches(self) -> list[Launch]:
        """The calls of kernels, in order."""
        return [item for item in self.lowered.items if isinstance(item, Launch)]


class Compiled(ABC):
    """A model with its compiled forms: what saves, reads and measures them sees no more of `specialize.Executor`."""

    def __init__(
        self, graph: Graph, target: Target, precision: str | None, bound: set[int], settings: dict[str, Any]
    ) -> None:
        self.signature = Graph(graph.name, graph.inputs, graph.outputs, ())
        self.target, self.precision, self._bound = target, precision, bound
        self.settings = settings
        """The knobs when the model was given to be compiled: they hold for what is compiled at a later call too."""
        self.ranges: dict[tuple[str, int], range] = {}
        """Between which numbers sizes lie, by input and axis."""
        self._found: OrderedDict[Any, Specialization] = OrderedDict()
        self._open: Specialization | None = None

    @property
    def specializations(self) -> list[Specialization]:
        """What is compiled now."""
        return [*self._found.values(), *([] if self._open is None else [self._open])]

    def items(self) -> list[tuple[Any, Specialization]]:
        """What is compiled now, with the shapes (and bound values) that each is for."""
        return list(self._found.items())

    @property
    def open_form(self) -> Specialization | None:
        """The form for all sizes, where it was made."""
        return self._open

    @property
    def target_name(self) -> str:
        """The machine it was compiled for, in words."""
        return self.target.name

    def keep(self, key: Any, found: Specialization) -> None:
        """Adds a compiled form, made beside the calls or read from a file."""
        self._found[key] = found
        if self._open is not None and isinstance(self._open.runner, Runner):
            self._open.runner.settled.clear()  # among them are perhaps those of this form

    @property
    def bound_inputs(self) -> set[int]:
        """The positions of inputs whose values, not only their shapes, choose the compiled form."""
        return self._bound

    @property
    def binds_values(self) -> bool:
        """Whether values of inputs, not only their shapes, choose the compiled form."""
        return bool(self._bound)

    @property
    def is_static(self) -> bool:
        """Whether there is only one set of shapes that it can meet."""
        return not self._bound and all(value.is_static for value in self.signature.inputs)

    def _take(self, key: Any, form: Specialization) -> Specialization:
        """Keeps a form; those that were not used for longest go, where all of them would take too much memory."""
        self.keep(key, form)
        room = (knobs.forms_megabytes << 20) - sum(map(held_bytes, self._found.values()))
        while room < 0 and len(self._found) > 1:
            room += held_bytes(self._found.popitem(last=False)[1])
        return form

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The model."""

    @abstractmethod
    def inner(self, graph: Graph, known: Mapping[Value, Array], whole: bool = False) -> Any:
        """What runs a subgraph of a host node, or a graph of the `whole` node; `known` are the constants around it."""

    @abstractmethod
    def rest(self, graph: Graph) -> Any:
        """What runs the rest of a graph: once the shapes are known that it waits for, or what a device refused."""

    @abstractmethod
    def open_rest(self, graph: Graph) -> Any:
        """The rest of a form for all sizes, which meets other ones in each call."""

    @abstractmethod
    def interpreted(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs by the numpy meaning of the operators."""

    @abstractmethod
    def measured(self, arrays: Sequence[Any]) -> Specialization:
        """The form that a profile is of: that for just these inputs, made now where there is none; with
        `WEFT_SIZES=open` the one for all sizes."""


def held_bytes(form: Specialization) -> int:
    """The memory that a form holds."""
    return model.FORM_BYTES + sum(array.nbytes for array in form.arrays())


def load_code(
    objects: Sequence[bytes], names: Sequence[str], externals: Sequence[str], target: Target
) -> JitModule | None:
    """The code of a form in this process; None where there is none, or it is for another machine."""
    return llvm_compile.load(objects, names, externals, target) if names and target.is_host else None
