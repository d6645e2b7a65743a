"""Schedule = program + trace, with the face of the TVM paper: `s[C].split(k, factor=8)`.

Every call applies one primitive at once: the program can be printed, verified and run after each. Loops are named by
what a primitive handed back, by the axes of a tensor expression, or by their names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft.schedule.primitives  # noqa: F401  (registers every primitive)
from weft.core import hooks
from weft.core.errors import ScheduleError, WeftError
from weft.core.html import folded, preformatted, tag
from weft.core.knobs import knobs
from weft.expr.nodes import Buffer, Var
from weft.expr.structural import structural_equal
from weft.loop.ir import Block, For, Func
from weft.loop.tree import (
    block_of,
    block_path,
    blocks_in,
    buffer_named,
    loop_of,
    loop_path,
    loops_on,
    writers,
)
from weft.schedule.registry import PRIMITIVES, Result, check_arguments
from weft.schedule.trace import Step, Trace

logger = logging.getLogger("weft.schedule")


@dataclass
class Tried:
    """Steps that were tried together: what they are called, the numbers they were tried with, why they were refused."""

    name: str
    point: Mapping[str, int]
    refused: str = ""
    cost: float = 0.0
    """The seconds that they are estimated to take; 0 where nobody has said."""
    rivals: Sequence[tuple[str, Mapping[str, int], float]] = ()
    """Where these steps stand, what would have been tried next: name, numbers, estimated seconds."""

    def __bool__(self) -> bool:
        return not self.refused

    def refuse(self, reason: str) -> None:
        """Takes the steps back although each of them is legal."""
        raise ScheduleError(self.name, "", reason)

    def __str__(self) -> str:
        point = " ".join(f"{knob}={number}" for knob, number in self.point.items())
        estimate = f" ≈ {1e6 * self.cost:.3g} µs" if self.cost else ""
        return (
            f"{self.name}{' ' + point if point else ''}{estimate}{': refused, ' + self.refused if self.refused else ''}"
        )


class Schedule:
    """A program being scheduled."""

    def __init__(self, func: Func, handles: Mapping[tuple[str, Var], int] | None = None) -> None:
        self.func = func
        self.trace = Trace()
        self.tried: list[Tried] = []
        """What was attempted: which of it stands, and why the rest does not."""
        self._handles = dict(handles or {})
        self._axes: dict[str, list[str | None]] = {}
        self._consumed: dict[str, str] = {}
        for block in blocks_in(func.body):
            self._axes[block.name] = [b.name if isinstance(b, Var) else None for b in block.bindings]

    # ------------------------------------------------------------------------------------------------- applying

    def apply(self, primitive: str, **arguments: Any) -> Any:
        """Applies a primitive by name with plain arguments, records the step, and gives back the names of new loops."""
        function = PRIMITIVES.get(primitive)
        if function is None:
            raise ScheduleError(primitive, "", f"there is no such primitive; known are {', '.join(sorted(PRIMITIVES))}")
        step = Step(primitive, arguments)
        check_arguments(primitive, step.arguments)
        result = function(self.func, **step.arguments)
        if knobs.verify:
            from weft.loop.verifier import verify

            verify(result.func)
        values = result.values
        step.results = tuple(values)
        self._record(step, result)
        return None if not values else values[0] if len(values) == 1 else values

    def _record(self, step: Step, result: Result) -> None:
        self.func = result.func
        self.trace = self.trace.then(step)
        self._axes.update({name: list(loops) for name, loops in result.axes.items()})
        if step.primitive == "split":
            self._consumed[str(step.arguments["loop"])] = f"split into {', '.join(result.values)}"
        elif step.primitive == "fuse":
            for name in step.arguments["loops"]:
                self._consumed[str(name)] = f"fused into {result.values[0]}"

    def replay(self, trace: Trace) -> Schedule:
        """Applies every step of a trace to this schedule."""
        for step in trace.steps:
            self.apply(step.primitive, **step.arguments)
        return self

    def copy(self) -> Schedule:
        """A schedule of its own with the same program and trace."""
        made = object.__new__(Schedule)  # the names of all loops are known
        made._become(self)
        made.tried = list(self.tried)
        return made

    def __copy__(self) -> Schedule:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Schedule:
        return self.copy()  # programs and traces never change, and axes of tensors go on naming the same loops

    def _become(self, other: Schedule) -> None:
        self.func, self.trace = other.func, other.trace
        self._handles = dict(other._handles)
        self._axes = dict(other._axes)
        self._consumed = dict(other._consumed)

    def plan(self, target: Any = "native", constants: Sequence[Any] = ()) -> Trace:
        """Gives the program the schedule that Weft would choose for it in a model; its steps, to print or keep.

        `constants` are tensors that never change. The steps are ordinary ones: others may follow.

            print(s.plan("native").as_python())
        """
        machine, begun = hooks.find_target(target), len(self.trace.steps)
        machine.spec.schedule(self, machine, [c if isinstance(c, Buffer) else c.outputs[0] for c in constants])
        return Trace(self.trace.steps[begun:])

    @contextmanager
    def attempt(
        self, name: str, *marked: set[str], point: Mapping[str, int] | None = None, cost: float = 0.0
    ) -> Iterator[Tried]:
        """All of the steps inside, or none of them: a step that is not legal takes back those before it.

        Sets that are `marked` while the steps are taken get back what they had. The reason of a refusal is kept in
        `tried` and logged; what is tried is true where its steps stand:

            with s.attempt("two rows at a time") as tried:
                s[C].unroll(s[C].split(i, factor=2)[1])
            if not tried:
                s[C].unroll(j)
        """
        before, marks, position = self.copy(), [set(names) for names in marked], len(self.tried)
        tried = Tried(name, dict(point or {}), cost=cost)
        try:
            yield tried
        except WeftError as error:
            self._become(before)
            for names, old in zip(marked, marks):
                names.clear()
                names.update(old)
            tried.refused = error.reason if isinstance(error, ScheduleError) and error.primitive == name else str(error)
            self.tried[position:] = [other for other in self.tried[position:] if other.refused]
            logger.debug("%s: %s", self.func.name, tried)
        self.tried.append(tried)

    # ------------------------------------------------------------------------------------------------- looking up

    def __getitem__(self, what: Any) -> Stage:
        return Stage(self, self.block_name(what))

    def block_name(self, what: Any) -> str:
        """The block that a tensor, an operation, a stage or a name stands for."""
        if isinstance(what, Stage):
            return what.name
        if isinstance(what, str):
            return block_of(block_path(self.func, what, "schedule")).name
        if not isinstance(what, Buffer) and getattr(what, "outputs", None):
            what = what.outputs[0]
        if isinstance(what, Buffer):
            names = {b.name for b in blocks_in(self.func.body)}
            if what.name in names:
                return what.name
            makers = writers(self.func.body, what)
            if makers:
                return makers[-1].name
            raise ScheduleError("schedule", what.name, f"no block computes {what.name} (is it an input?)")
        raise ScheduleError("schedule", repr(what), "name a tensor, an operation or a block")

    def buffer_name(self, what: Any) -> str:
        """The buffer that a tensor, a stage or a name stands for."""
        if isinstance(what, Stage):
            block = what.block
            return block.writes[0].buffer.name
        if isinstance(what, str):
            return buffer_named(self.func, what, "schedule").name
        if not isinstance(what, Buffer) and getattr(what, "outputs", None):
            what = what.outputs[0]
        if isinstance(what, Buffer):
            return what.name
        raise ScheduleError("schedule", repr(what), "name a tensor or a buffer")

    def loop_name(self, block: str | None, what: Any, primitive: str) -> str:
        """The loop that a handle stands for, seen from a block."""
        if isinstance(what, str):
            name = what
        elif isinstance(what, Var):
            name = what.name
        else:
            variable = getattr(what, "var", None)
            if not isinstance(variable, Var):
                raise ScheduleError(
                    primitive, repr(what), "name a loop: what a primitive handed back, an axis, or a name"
                )
            position = self._handles.get((block, variable)) if block is not None else None
            if position is None:
                raise ScheduleError(primitive, variable.name, f"{variable.name} is not an axis of {block}")
            found = self._axes.get(block or "", [])[position]
            if found is None:
                raise ScheduleError(primitive, variable.name, f"axis {variable.name} of {block} has no loop of its own")
            name = found
        if name in self._consumed and not any(name == loop.var.name for loop in self._loops()):
            raise ScheduleError(primitive, name, f"the loop {name} was {self._consumed[name]}: use those")
        return name

    def _loops(self) -> list[For]:
        from weft.loop.tree import loops_in

        return loops_in(self.func.body)

    def axis_handle(self, name: str) -> Var:
        """The variable of an axis's loop; of one that was split or fused a stand-in, which says so when it is used."""
        found = [loop.var for loop in self._loops() if loop.var.name == name]
        return found[0] if found else Var(name)

    def handle(self, name: str) -> Var:
        """The variable of a loop, which is its handle."""
        return loop_of(loop_path(self.func, name, "schedule")).var

    # ------------------------------------------------------------------------------------------------- primitives

    def cache_read(self, tensor: Any, scope: str, readers: Sequence[Any] | None = None) -> Stage:
        """A copy of a tensor in another memory for its readers (all of them, if none are named)."""
        names = None if readers is None else [self.block_name(r) for r in _as_list(readers)]
        return Stage(self, self.apply("cache_read", buffer=self.buffer_name(tensor), scope=scope, consumers=names))

    def cache_write(self, tensor: Any, scope: str) -> Stage:
        """Computes a tensor in another memory; the stage given back computes, the tensor's own copies out."""
        block = self.block_name(tensor)
        before = list(self._axes.get(block, []))
        label = self.apply("cache_write", buffer=self.buffer_name(tensor), scope=scope)
        self._axes[label] = before
        for (owner, variable), position in list(self._handles.items()):
            if owner == block:
                self._handles[(label, variable)] = position
                if position >= len(self._axes[block]):
                    del self._handles[(owner, variable)]
        return Stage(self, label)

    def cache_operand(self, reader: Any, tensor: Any, scope: str, axes: Sequence[str]) -> Stage:
        """A copy of what a block reads of a tensor, over axes of the block (their names)."""
        buffer = self.buffer_name(tensor)
        block = self.block_name(reader)
        return Stage(self, self.apply("cache_operand", block=block, buffer=buffer, scope=scope, axes=list(axes)))

    def rfactor(self, tensor: Any, loop: Any, factor_axis: int = 0) -> Stage:
        """Factors a reduction loop into a spatial axis of a partial result; the stage given back computes that."""
        block = self.block_name(tensor)
        return Stage(
            self,
            self.apply("rfactor", block=block, loop=self.loop_name(block, loop, "rfactor"), factor_axis=factor_axis),
        )

    def online(self, tensor: Any, loop: Any, peak: Any, *sums: Any) -> list[str]:
        """Sums over parts weighed beneath their greatest top, added up in one loop over the parts: a running maximum.

        Gives the names of the blocks that begin the sums (the peak first, the tensor last) and of the two weights.
        """
        block = self.block_name(tensor)
        others = [self.block_name(one) for one in sums]
        loop = self.loop_name(block, loop, "online")
        made = self.apply("online", block=block, loop=loop, peak=self.block_name(peak), sums=others)
        return list(made)

    def transform_layout(self, tensor: Any, index_map: Any) -> None:
        """Stores an intermediate under other indices: `s.transform_layout(B, lambda i, j: (i // 16, j, i % 16))`."""
        import inspect

        from weft.expr.text import format_expr

        names = list(inspect.signature(index_map).parameters)
        variables = [Var(n) for n in names]
        made = index_map(*variables)
        from weft.expr.nodes import index_expr

        outputs = [format_expr(index_expr(e)) for e in (made if isinstance(made, (list, tuple)) else [made])]
        self.apply("transform_layout", buffer=self.buffer_name(tensor), inputs=names, outputs=outputs)

    def __str__(self) -> str:
        return repr(self.func)

    def __repr__(self) -> str:
        return f"Schedule of {self.func.name} after {len(self.trace)} steps:\n{self.func!r}"

    def _repr_html_(self) -> str:
        steps = "\n".join(step.as_python() for step in self.trace.steps)
        return tag(
            "div",
            tag("b", f"Schedule of {self.func.name} after {len(self.trace)} steps"),
            *([folded("steps", preformatted(steps))] if steps else []),
            preformatted(repr(self.func)),
        )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Stage:
    """One block of a schedule: its loops, and the primitives that start from it."""

    __slots__ = ("schedule", "name")

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule = schedule
        self.name = name

    @property
    def op(self) -> Stage:
        """The stage itself: `s[C].op.axis` are its loops as they are now."""
        return self

    @property
    def block(self) -> Block:
        """The block as it is now."""
        return block_of(block_path(self.schedule.func, self.name, "schedule"))

    @property
    def loops(self) -> tuple[Var, ...]:
        """The loops around the block, outermost first."""
        return tuple(loop.var for loop in loops_on(block_path(self.schedule.func, self.name, "schedule")))

    @property
    def axis(self) -> tuple[Var, ...]:
        """The loops of the block's spatial axes."""
        return self._axis_loops(("spatial", "ordered"))

    @property
    def reduce_axis(self) -> tuple[Var, ...]:
        """The loops of the block's reduction axes."""
        return self._axis_loops(("reduce",))

    def _axis_loops(self, kinds: tuple[str, ...]) -> tuple[Var, ...]:
        out = []
        known = self.schedule._axes.get(self.name, [])
        for position, axis in enumerate(self.block.axes):
            if axis.kind in kinds and position < len(known) and known[position] is not None:
                out.append(self.schedule.axis_handle(str(known[position])))
        return tuple(out)

    def _loop(self, what: Any, primitive: str) -> str:
        return self.schedule.loop_name(self.name, what, primitive)

    def _handles(self, names: Any) -> tuple[Var, ...]:
        made = (names,) if isinstance(names, str) else names
        return tuple(self.schedule.handle(n) for n in made)

    def split(
        self,
        loop: Any,
        factor: int | None = None,
        nparts: int | None = None,
        factors: Sequence[int | None] | None = None,
    ) -> tuple[Var, ...]:
        """A loop into outer and inner: the inner has `factor` iterations, or the outer `nparts`; or any `factors`."""
        given = [x is not None for x in (factor, nparts, factors)]
        name = self._loop(loop, "split")
        if sum(given) != 1:
            raise ScheduleError("split", name, "give one of factor=, nparts= and factors=")
        if factors is not None and not isinstance(factors, (list, tuple)):
            raise ScheduleError("split", name, f"factors is a list of whole numbers, not {factors!r}")
        sizes: list[int | None] = [None, factor] if factors is None else list(factors)
        if nparts is not None:
            sizes = [nparts, None]
        return self._handles(self.schedule.apply("split", loop=name, factors=sizes))

    def fuse(self, *loops: Any) -> Var:
        """Nested loops into one."""
        names = [self._loop(x, "fuse") for x in loops]
        return self._handles(self.schedule.apply("fuse", loops=names))[0]

    def reorder(self, *loops: Any) -> None:
        """Nested loops in the order given."""
        self.schedule.apply("reorder", loops=[self._loop(x, "reorder") for x in loops])

    def tile(self, *arguments: Any) -> tuple[Var, ...]:
        """`tile(y, x, 32, 32)` or `tile(y, x, k, 8, 8, 8)`: splits each loop and puts the outer ones outside."""
        count, rest = divmod(len(arguments), 2)
        sizes = arguments[count:]
        if rest or count < 1 or not all(isinstance(s, (int, np.integer)) for s in sizes):
            raise ScheduleError("tile", self.name, "give as many loops as sizes: tile(y, x, 32, 32)")
        before = self.schedule.copy()
        try:
            pairs = [self.split(loop, factor=size) for loop, size in zip(arguments[:count], sizes)]
            outer, inner = [p[0] for p in pairs], [p[1] for p in pairs]
            self.reorder(*outer, *inner)
        except ScheduleError:
            self.schedule._become(before)  # all of a tile or nothing of it
            raise
        return (*outer, *inner)

    def parallel(self, loop: Any) -> None:
        """Runs a loop's iterations on several threads."""
        self.schedule.apply("parallel", loop=self._loop(loop, "parallel"))

    def vectorize(self, loop: Any) -> None:
        """Makes a loop's iterations the lanes of vectors."""
        self.schedule.apply("vectorize", loop=self._loop(loop, "vectorize"))

    def unroll(self, loop: Any) -> None:
        """Makes a loop's iterations copies of its body."""
        self.schedule.apply("unroll", loop=self._loop(loop, "unroll"))

    def bind(self, loop: Any, thread: Any) -> None:
        """Binds a loop to a thread axis, or to its name ("threadIdx.x")."""
        name = self._loop(loop, "bind")
        tag = thread if isinstance(thread, str) else getattr(thread, "thread", None)
        if not isinstance(tag, str):
            raise ScheduleError("bind", name, f"{thread!r} is not a thread axis: use te.thread_axis")
        wanted = getattr(thread, "extent", None)
        have = loop_of(loop_path(self.schedule.func, name, "bind")).extent
        if wanted is not None and not structural_equal(wanted, have):
            raise ScheduleError("bind", name, f"the loop has {have!r} iterations and the thread axis {wanted!r}")
        self.schedule.apply("bind", loop=name, thread=tag)

    def compute_at(self, parent: Stage, loop: Any, exact: bool = True, first: bool = False) -> None:
        """Computes this block inside a loop of its consumer.

        exact=False: whole tiles at the edges too; first=True: before everything else in the loop.
        """
        at = self.schedule.loop_name(self.schedule.block_name(parent), loop, "compute_at")
        further = {"first": True} if first else {}
        self.schedule.apply("compute_at", block=self.name, loop=at, exact=exact, **further)

    def reverse_compute_at(self, parent: Stage, loop: Any) -> None:
        """Computes this block inside a loop of its producer."""
        at = self.schedule.loop_name(self.schedule.block_name(parent), loop, "reverse_compute_at")
        self.schedule.apply("reverse_compute_at", block=self.name, loop=at)

    def compute_inline(self) -> None:
        """Dissolves this block into its consumers."""
        self.schedule.apply("compute_inline", block=self.name)

    def reverse_compute_inline(self) -> None:
        """Dissolves this block into its producer."""
        self.schedule.apply("reverse_compute_inline", block=self.name)

    def decompose_reduction(self, loop: Any) -> Stage:
        """Takes this reduction's init out, before a loop; the stage given back is the init."""
        name = self.schedule.apply("decompose_reduction", block=self.name, loop=self._loop(loop, "decompose_reduction"))
        return Stage(self.schedule, name)

    def tensorize(self, loop: Any, *rest: Any) -> None:
        """A tile, from a loop inwards, by an intrinsic: `tensorize(yi, intrin)` or `tensorize(yi, xi, ki, intrin)`."""
        if not rest:
            raise ScheduleError("tensorize", str(loop), "name the intrinsic: tensorize(loop, intrin)")
        intrin = rest[-1]
        name = self._loop(loop, "tensorize")
        if not isinstance(intrin, str):
            intrin = getattr(intrin, "name", None)
        if not isinstance(intrin, str):
            raise ScheduleError("tensorize", name, f"{rest[-1]!r} is not a tensor intrinsic")
        self.schedule.apply("tensorize", loop=name, intrin=intrin)

    def set_scope(self, scope: str) -> None:
        """Puts this block's result into another memory."""
        self.schedule.apply("set_scope", buffer=self.schedule.buffer_name(self), scope=scope)

    def storage_align(self, axis: int, factor: int, offset: int = 0) -> None:
        """Pads a stride of this block's result."""
        dim = axis if isinstance(axis, int) else self._dimension(axis)
        self.schedule.apply(
            "storage_align", buffer=self.schedule.buffer_name(self), dim=dim, factor=factor, offset=offset
        )

    def _dimension(self, axis: Any) -> int:
        name = self._loop(axis, "storage_align")
        names = [variable.name for variable in self.axis]
        if name not in names:
            raise ScheduleError(
                "storage_align", name, f"it is not the loop of an axis of {self.name}; give a dimension's number"
            )
        return names.index(name)

    def pad(self, loop: Any, factor: int) -> None:
        """Rounds the extent of an axis up to a multiple; what lies beyond its end is computed from zeros."""
        self.schedule.apply("pad", block=self.name, loop=self._loop(loop, "pad"), factor=factor)

    def double_buffer(self) -> None:
        """Gives this block's result two halves."""
        self.schedule.apply("double_buffer", buffer=self.schedule.buffer_name(self))

    def software_pipeline(self, loop: Any, stages: Sequence[int], order: Sequence[int] | None = None) -> None:
        """Says at which stage of a pipeline each statement of a loop runs."""
        name = self._loop(loop, "software_pipeline")
        self.schedule.apply("software_pipeline", loop=name, stages=stages, order=order)

    def prefetch(self, tensor: Any, loop: Any, distance: int = 1, outer: Any = None) -> None:
        """Fetches ahead what a loop will load so many iterations later: its own, or of a loop further out."""
        arguments = {"buffer": self.schedule.buffer_name(tensor), "loop": self._loop(loop, "prefetch")}
        if outer is not None:
            arguments["outer"] = self._loop(outer, "prefetch")
        self.schedule.apply("prefetch", **arguments, distance=distance)

    def zigzag(self, loop: Any, by: Any = None) -> None:
        """Runs a loop backwards in every second iteration of a loop around it; without one, in every second call."""
        around = None if by is None else self._loop(by, "zigzag")
        self.schedule.apply("zigzag", loop=self._loop(loop, "zigzag"), by=around)

    def pragma(self, loop: Any, key: str, value: Any = True) -> None:
        """A hint on a loop."""
        self.schedule.apply("annotate", target=self._loop(loop, "pragma"), key=f"pragma_{key}", value=value)

    def annotate(self, key: str, value: Any, loop: Any = None) -> None:
        """A hint on this block, or on a loop."""
        target = self.name if loop is None else self._loop(loop, "annotate")
        self.schedule.apply("annotate", target=target, key=key, value=value)

    def __repr__(self) -> str:
        return f"stage {self.name}"


__all__ = ["Schedule", "Stage"]
