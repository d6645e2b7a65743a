"""The short way through a call: what Python does for one compiled form of a model.

In: a program that is one native call (or none), and the types of its inputs. Out: a function that takes numpy arrays
that fit exactly, and answers None for anything else, whereupon the long way (`Module.run`) accepts or explains it.
For y = a + w the source is

    def fast(arrays, threads, out):
        arrays = tuple(arrays)
        given = (empty(s0, d0), ) if out is None else tuple(out)
        if len(arrays) != 1 or len(given) != 1: return None
        try: frame = frames.pop()
        except IndexError: frame = new_frame()
        code = call(id(arrays) + items, id(given) + items, frame[0], threads)
        if len(frames) < most: frames.append(frame)
        if code:
            if code < 0: return None
            raise fault(code)
        return list(given)

`call` (runtime/native_call.py) looks at the arrays, writes the table of addresses into the frame, and calls the driver.
Where sizes are open, shapes whose numbers are known go this way:

        if type(arrays[0]) is not ndarray or out is not None: return None
        found = settled.get((arrays[0].shape, ))
        if found is None: return None
        sizes, slots, room = found
        given = empty_array((sizes[0], ), d0),
        ...
        tell(frame[1], 16, arena[0], *sizes, *slots)

`fast` may run in several threads at once: what it changes is its own, or a list by `pop` and `append`. Lists that it is
given become tuples before they are counted: another thread may change them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from weft.core import model
from weft.core.array_types import ArrayType
from weft.runtime.addresses import ADDRESS_SOURCE, ITEMS, LOCK, OFFSETS, ArrayHead, address_of, array_row
from weft.runtime.model.program import Array, NativeStep, Program, empty_array

Fast = Callable[[Sequence[Any], int, "Sequence[Any] | None"], "list[Any] | None"]
MOST_ADDED = 16
"""Python compiles a + b + c + … by calling itself, and gives up after some thousand."""
READABLE, WRITABLE = 0x101, 0x501
"""numpy's bits for contiguous and aligned, and for writable too, asked for at once: a look at flags makes an object."""
Frame = tuple[int, Array, Any]
"""Where the words of one call begin (runtime/native_call.py), the array that has them, and what must live as long."""
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64)


def is_direct(program: Program) -> bool:
    """Whether a call of the program is at most one native call, and nothing on the host."""
    steps = program.steps
    return len(steps) <= 1 and all(isinstance(step, NativeStep) for step in steps)


def fast_call(program: Program, types: Sequence[ArrayType], weights: Sequence[int], scope: dict[str, Any]) -> Fast:
    """The function described above, for weights at these addresses.

    `scope` gives take_arena, keep_arena, entry, call and fault, and for open sizes large_arena and what is settled.
    """
    scope = {**scope, "empty": np.empty, "empty_array": empty_array, "items": ITEMS, "most": model.MOST_ARENAS}
    scope["ndarray"] = np.ndarray
    body = "\n    ".join(_Writer(program, types, weights, scope).lines())
    exec(compile(f"def fast(arrays, threads, out):\n    {body}\n", "<call of a model>", "exec"), scope)  # noqa: S102
    made: Fast = scope["fast"]
    return made


@functools.lru_cache(maxsize=256)
def fitting(types: tuple[ArrayType, ...]) -> Callable[[Sequence[Any]], bool]:
    """Whether arrays are numpy's, contiguous and of these types, whose sizes are numbers, or names: the same wherever
    a name is."""
    scope: dict[str, Any] = {"ndarray": np.ndarray}
    tests, places = [f"len(arrays) == {len(types)}"], dict[Any, str]()
    for at, kind in enumerate(types):
        array, scope[f"d{at}"] = f"arrays[{at}]", kind.numpy
        sizes = kind.shape or ()
        tests += [f"type({array}) is ndarray", f"{array}.dtype == d{at}", f"{array}.ndim == {len(sizes)}"]
        tests.append(f"{array}.flags.num & {READABLE} == {READABLE}")
        for axis, size in enumerate(sizes):
            place = f"{array}.shape[{axis}]"
            wanted = str(size) if isinstance(size, int) else places.setdefault(size, place)
            tests += [f"{place} == {wanted}"] * (place != wanted)
    exec(compile(f"def fits(arrays): return {' and '.join(tests)}", "<types of a model>", "exec"), scope)  # noqa: S102
    found: Callable[[Sequence[Any]], bool] = scope["fits"]
    return found


StepCall = Callable[..., int]
"""The values of a call, arrays of the caller for some of them, the address of the arena, the threads, and beside open
sizes the sizes and the offsets of slots; a code."""


_PARAMETERS = "values, given, arena, threads, sizes=(), slots=()"


def step_call(step: NativeStep, weights: Sequence[int], own: Collection[int]) -> StepCall:
    """A function that makes one native call of several; `own` are values that native calls make, which lie in order.

    For y = a + w the source is

        def call(values, given, arena, threads, sizes=(), slots=()):
            v2 = values[2] = empty(s2, d2) if 2 not in given else given[2]
            v0 = values[0]
            if not v0.flags.c_contiguous or not v0.flags.aligned: v0 = ascontiguousarray(v0)
            return entry(b0(head(id(v0)).data) + b1 + b2(head(id(v2)).data), threads)
    """
    scope: dict[str, Any] = {
        "entry": step.entry,
        "head": ArrayHead.from_address,
        "ascontiguousarray": np.ascontiguousarray,
    }
    scope.update(empty=np.empty, empty_array=empty_array)
    lines = []
    for number, kind in step.makes:
        scope[f"d{number}"] = kind.numpy
        scope[f"s{number}"] = None if number in step.shapes else kind.static
        new = _new(kind, step.shapes.get(number), f"s{number}", f"d{number}")
        lines.append(f"v{number} = values[{number}] = {new} if {number} not in given else given[{number}]")
    made = {number for number, _ in step.makes}
    for number in dict.fromkeys(n for kind, n in step.bases if kind == "value" and n not in made):
        lines.append(f"v{number} = values[{number}]")
        if number not in own:
            test = f"not v{number}.flags.c_contiguous or not v{number}.flags.aligned"
            lines.append(f"if {test}: v{number} = ascontiguousarray(v{number})")

    others = {"arena": "arena", "slot": "arena + slots[{}]", "size": "sizes[{}]"}

    def address(kind: str, number: int) -> str:
        return others[kind].format(number) if kind in others else ADDRESS_SOURCE.format(f"v{number}")

    lines.append(f"return entry({_packed(step.bases, weights, scope, address)}, threads)")
    body = "\n    ".join(lines)
    exec(compile(f"def call({_PARAMETERS}):\n    {body}\n", "<a native step>", "exec"), scope)  # noqa: S102
    found: StepCall = scope["call"]
    return found


def _packed(
    bases: Sequence[tuple[str, int]], weights: Sequence[int], scope: dict[str, Any], address: Callable[[str, int], str]
) -> str:
    """Source of the addresses as bytes: stretches of weights are ready, the others are packed."""
    pieces: list[str] = []
    for is_weight, group in groupby(bases, lambda base: base[0] == "weight"):
        stretch = list(group)
        name = f"b{len(pieces)}"
        if is_weight:
            scope[name] = struct.pack(f"<{len(stretch)}q", *(weights[number] for _, number in stretch))
            pieces.append(name)
        else:
            scope[name] = struct.Struct(f"<{len(stretch)}q").pack
            pieces.append(f"{name}({', '.join(address(kind, number) for kind, number in stretch)})")
    if len(pieces) > MOST_ADDED:
        return f"b''.join(({', '.join(pieces)}))"
    return " + ".join(pieces) or "b''"


class _Writer:
    """Writes the source, and puts what it names into the scope."""

    def __init__(
        self, program: Program, types: Sequence[ArrayType], weights: Sequence[int], scope: dict[str, Any]
    ) -> None:
        self.program, self.types, self.scope = program, types, scope
        self.step = next((step for step in program.steps if isinstance(step, NativeStep)), None)
        self.bases = list(self.step.bases) if self.step else []
        self.is_open = program.numbers is not None
        makes = dict(self.step.makes) if self.step else {}
        self.takes_outputs = not self.is_open and bool(makes) and sorted(program.outputs) == sorted(makes)
        self.makes = {number: makes[number] for number in program.outputs} if self.takes_outputs else makes
        """What is made, in the order of outputs that a caller may give."""
        needs = any(kind == "arena" for kind, _ in self.bases)
        self.keeps_arena = needs and not self.is_open and program.arena_bytes <= model.ARENA_KEPT_BYTES
        self.needs_arena = self.is_open or needs and not self.keeps_arena
        scope.update(frames=[], new_frame=self._frames(weights, scope["take_arena"]))

    def lines(self) -> list[str]:
        """The statements of the function."""
        count, wrong = len(self.types), ["out is not None"]
        lines = ["arrays = tuple(arrays)", f"if len(arrays) != {count}: return None"]
        if self.is_open:
            wrong += [f"type(arrays[{at}]) is not ndarray" for at in range(count)]
            shapes = _tuple(f"arrays[{at}].shape" for at in range(count))
            lines += [f"if {' or '.join(wrong)}: return None", f"found = settled.get(({shapes}))"]
            lines += ["if found is None: return None", "sizes, slots, room = found", f"given = {self._new_outputs()}"]
        elif self.takes_outputs:
            lines.append(f"given = ({self._new_outputs()}) if out is None else tuple(out)")
            lines.append(f"if len(given) != {len(self.makes)}: return None")
        else:
            lines += ["if out is not None: return None", f"given = {self._new_outputs()}"]
        return [*lines, *self._call(), f"return {self._results()}"]

    def _frames(self, weights: Sequence[int], take_arena: Callable[[], Any]) -> Callable[[], Frame]:
        """What makes frames, each with its arena where one is kept."""
        plan, template = self._plan(weights)
        kinds = (self.types, self.makes)

        def new_frame() -> Frame:
            array, arena = template.copy(), take_arena() if self.keeps_arena else (0, None)
            array[0], array[2] = address_of(plan), arena[0]
            return address_of(array), array, (arena, plan, kinds)

        return new_frame

    def _plan(self, weights: Sequence[int]) -> tuple[Array, Array]:
        """What `weft_call` is told, and what a frame is at first."""
        used = {number for kind, number in self.bases if kind == "value"}
        twins = {made: self.program.inputs.index(given) for given, made in self.program.updates}
        numbers = [*self.program.inputs, *self.makes]
        kinds = [(kind, READABLE) for kind in self.types] + [(kind, WRITABLE) for kind in self.makes.values()]
        width = 8 + max((len(kind.shape or ()) for kind, _ in kinds), default=0)
        rows = []
        for number, (kind, flags) in zip(numbers, kinds):
            sizes = () if self.is_open else kind.static
            bytes_ = math.prod(sizes) * kind.numpy.itemsize if number in used and not self.is_open else 0
            head = [*array_row(kind.numpy), flags, -1 if self.is_open else len(sizes), bytes_, twins.get(number, -1)]
            rows += [*head, *sizes, *[0] * (width - 8 - len(sizes))]
        counts = [1 + max((n for kind, n in self.bases if kind == name), default=-1) for name in ("size", "slot")]
        self.counts = counts[0], counts[1]
        first = {"arena": 2, "size": 3, "slot": 3 + counts[0], "value": 3 + sum(counts)}
        table = first["value"] + len(numbers)
        rules, template = [], [0] * table
        for at, (base, number) in enumerate(self.bases):
            template.append(weights[number] if base == "weight" else 0)
            if base != "weight":
                place = numbers.index(number) if base == "value" else 0 if base == "arena" else number
                rules += [table + at, first[base] + place, first["arena"] if base == "slot" else 1]
        entry = self.scope["entry"]
        driver = 0 if entry is None else ctypes.cast(entry, ctypes.c_void_p).value
        plan = [
            len(self.types),
            len(self.makes),
            width,
            len(rules) // 3,
            first["value"],
            table,
            driver,
            *LOCK,
            *OFFSETS,
        ]
        return np.array([*plan, *rows, *rules], np.int64), np.array(template, np.int64)

    def _new_outputs(self) -> str:
        shapes = self.step.shapes if self.step else {}
        for number, kind in self.makes.items():
            self.scope[f"d{number}"] = kind.numpy
            self.scope[f"s{number}"] = None if number in shapes else kind.static
        return _tuple(_new(kind, shapes.get(n), f"s{n}", f"d{n}") for n, kind in self.makes.items()) or "()"

    def _call(self) -> list[str]:
        lines, keep = ["try: frame = frames.pop()", "except IndexError: frame = new_frame()"], []
        if self.needs_arena:
            sizes, slots = self.counts
            self.scope["tell"] = struct.Struct(f"<{1 + sizes + slots}q").pack_into
            numbers = f", *sizes[:{sizes}], *slots[:{slots}]" if self.is_open else ""
            lines.append(f"arena = {'large_arena(room)' if self.is_open else 'take_arena()'}")
            lines.append(f"tell(frame[1], 16, arena[0]{numbers})")
            keep = ["keep_arena(arena)"]
        lines.append("code = call(id(arrays) + items, id(given) + items, frame[0], threads)")
        lines += [*keep, "if len(frames) < most: frames.append(frame)"]
        return [*lines, "if code:", "    if code < 0: return None", "    raise fault(code)"]

    def _results(self) -> str:
        """The outputs; what is passed on, or returned twice, is copied as the long way does."""
        if self.takes_outputs:
            return "list(given)"
        places, results = {number: f"given[{at}]" for at, number in enumerate(self.makes)}, []
        places.update({number: f"arrays[{at}]" for at, number in enumerate(self.program.inputs)})
        for at, number in enumerate(self.program.outputs):
            if number in self.makes and number not in self.program.outputs[:at]:
                results.append(places[number])
                continue
            if number not in places:
                places[number] = f"c{number}"
                self.scope[f"c{number}"] = self.program.constants[number]
            results.append(f"{places[number]}.copy()")
        return f"[{', '.join(results)}]"


def _tuple(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _new(kind: ArrayType, shape: Sequence[int] | None, known: str, dtype: str) -> str:
    """Source of a new array: of the `known` shape, or of one with sizes of the call, as in `NativeStep.shapes`."""
    if shape is not None:
        sizes = "".join(f"{d}, " if d >= 0 else f"sizes[{~d}], " for d in shape)
        return f"empty_array(({sizes}), {dtype})"
    is_large = math.prod(kind.static) * kind.numpy.itemsize >= model.LEAST_ALIGNED
    return f"{'empty_array' if is_large else 'empty'}({known}, {dtype})"
