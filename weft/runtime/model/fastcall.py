"""The short way through a call: Python source made for one compiled form of a model.

In: a program that is one native call (or none), and the types of its inputs. Out: a function that takes numpy arrays
that fit exactly, and answers None for anything else, whereupon the long way (`Module.run`) accepts or explains it.
For y = a + w the source is

    def fast(arrays, threads, out):
        if len(arrays) != 1: return None
        a0, = arrays
        if type(a0) is not ndarray or a0.dtype is not da0 and a0.dtype != da0 or a0.shape != sa0 or ...:
            return None
        pa0 = head(id(a0)).data
        if out is None:
            o0 = empty(so0, do0)
            po0 = head(id(o0)).data
        else:
            (the same tests for o0)
            places = pa0, po0,
            if places != apart[0]:
                (None where o0 meets an input in memory)
                apart[0] = places
        code = entry(b0(pa0) + b1 + b2(po0), threads)
        if code: raise fault(code)
        return [o0]

and where sizes are open, for shapes whose numbers are known, instead of the test of the shape and of what follows it

        found = settled.get((a0.shape, ))
        if found is None or out is not None: return None
        sizes, slots, room = found
        o0 = empty_array((sizes[0], ), do0)

Whether arrays meet is a question for each pair of them, and a decoder has dozens: it is asked again only when one of
them lies elsewhere. `fast` may run in several threads at once: what it changes is its own, a list's `pop` and `append`,
or one reference.
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
from weft.runtime.addresses import ADDRESS_SOURCE, ArrayHead
from weft.runtime.model.program import NativeStep, Program, empty_array

Fast = Callable[[Sequence[Any], int, "Sequence[Any] | None"], "list[Any] | None"]
MOST_ADDED = 16
"""Python compiles a + b + c + … by calling itself, and gives up after some thousand."""
READABLE, WRITABLE = 0x101, 0x501
"""numpy's bits for contiguous and aligned, and for writable too, asked for at once: a look at flags makes an object."""
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64)


def is_direct(program: Program) -> bool:
    """Whether a call of the program is at most one native call, and nothing on the host."""
    steps = program.steps
    return len(steps) <= 1 and all(isinstance(step, NativeStep) for step in steps)


def fast_call(program: Program, types: Sequence[ArrayType], weights: Sequence[int], scope: dict[str, Any]) -> Fast:
    """The function described above, for weights at these addresses.

    `scope` gives arenas, new_arena, keep_arena, entry and fault, and for open sizes large_arena and what is settled.
    """
    scope = {**scope, "ndarray": np.ndarray, "empty": np.empty, "head": ArrayHead.from_address}
    scope["empty_array"] = empty_array
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
        self.program, self.types, self.weights, self.scope = program, types, weights, scope
        self.step = next((step for step in program.steps if isinstance(step, NativeStep)), None)
        self.makes = list(self.step.makes) if self.step else []
        self.names: dict[int, str] = {number: f"a{at}" for at, number in enumerate(program.inputs)}
        self.made = {number: f"o{at}" for at, (number, _) in enumerate(self.makes)}
        self.names.update(self.made)
        self.is_open = program.numbers is not None
        for name, kind in self._kinds():
            scope[f"d{name}"] = kind.numpy
            scope[f"s{name}"] = None if kind.shape is None or not kind.is_static else kind.static
        outputs, scope["nothing"] = program.outputs, (object(),) * len(self.makes)  # what no caller has
        self.takes_outputs = bool(outputs) and sorted(outputs) == sorted(self.made)
        may_update = self.takes_outputs and not self.is_open
        pairs = [(self.names[given], self.names[made]) for given, made in program.updates if may_update]
        self.both = {given: made for given, made in pairs if given in self._used()}
        """The output that the caller may give an input for, to update it."""

    def lines(self) -> list[str]:
        """The statements of the function."""
        count = len(self.types)
        lines = [f"if len(arrays) != {count}: return None"]
        if count:
            lines.append(f"{_tuple(f'a{at}' for at in range(count))} = arrays")
        if self.both:
            names = _tuple(self.made[number] for number in self.program.outputs)
            lines.append(f"{names} = out if out and len(out) == {len(self.made)} else nothing")
        shaped = not self.is_open
        tests = [test for at in range(count) for test in _tests(f"a{at}", READABLE, self.both.get(f"a{at}"), shaped)]
        lines += [f"if {' or '.join(tests)}: return None"] if tests else []
        used = [name for name in self._used() if name not in self.made.values()]
        if self.is_open:
            lines.append(f"found = settled.get(({_tuple(f'a{at}.shape' for at in range(count))}))")
            lines += ["if found is None or out is not None: return None", "sizes, slots, room = found"]
            lines += [*self._places(used), *self._new_outputs()]
            return [*lines, *self._call(), f"return [{', '.join(self._results())}]"]
        lines += self._places(used)
        lines += ["if out is None:", *(f"    {line}" for line in self._new_outputs())]
        lines += ["else:", *(f"    {line}" for line in self._given_outputs(used))]
        return [*lines, *self._call(), f"return [{', '.join(self._results())}]"]

    def _kinds(self) -> list[tuple[str, ArrayType]]:
        made = [(f"o{at}", kind) for at, (_, kind) in enumerate(self.makes)]
        return [(f"a{at}", kind) for at, kind in enumerate(self.types)] + made

    def _used(self) -> list[str]:
        """The names of arrays whose addresses the native call takes."""
        return [self.names[number] for kind, number in (self.step.bases if self.step else ()) if kind == "value"]

    def _new_outputs(self) -> list[str]:
        shapes = self.step.shapes if self.step else {}
        news = [_new(kind, shapes.get(number), f"so{at}", f"do{at}") for at, (number, kind) in enumerate(self.makes)]
        lines = [f"o{at} = {new}" for at, new in enumerate(news)]
        return [*lines, *self._places(self.made.values())] or ["pass"]

    def _places(self, names: Iterable[str]) -> list[str]:
        known = {made: f"p{given} if {made} is {given} else " for given, made in self.both.items()}
        return [f"p{name} = {known.get(name, '')}{ADDRESS_SOURCE.format(name)}" for name in names]

    def _given_outputs(self, used: Sequence[str]) -> list[str]:
        """Takes the caller's arrays where the native code can write into them while it reads the inputs."""
        if not self.takes_outputs:
            return ["return None"]
        names = [self.made[number] for number in self.program.outputs]
        tests = [test for name in names for test in _tests(name, WRITABLE)]
        lines = [f"if len(out) != {len(names)}: return None", f"{_tuple(names)} = out"]
        lines.append(f"if {' or '.join(tests)}: return None")
        lines += self._places(names)
        sizes = {name: kind.numpy.itemsize * math.prod(kind.static) for name, kind in self._kinds()}
        meets = [
            f"{f'p{name} != p{other} and ' * (self.both.get(other) == name)}"
            f"p{name} < p{other} + {sizes[other]} and p{other} < p{name} + {sizes[name]}"
            for at, name in enumerate(names)
            for other in [*used, *names[:at]]
        ]
        if not meets:
            return lines
        self.scope["apart"] = [()]
        lines += [f"places = {_tuple(f'p{name}' for name in [*used, *names])}", "if places != apart[0]:"]
        return [*lines, f"    if {' or '.join(meets)}: return None", "    apart[0] = places"]

    def _call(self) -> list[str]:
        if self.step is None:
            return []
        call = f"code = entry({self._bases()}, threads)"
        if self.is_open:
            call = "\n    ".join(["arena = large_arena(room)", "first = arena[0]", call, "keep_arena(arena)"])
        elif any(kind == "arena" for kind, _ in self.step.bases):
            take = ["try: arena = arenas.pop()", "except IndexError: arena = new_arena()"]
            call = "\n    ".join([*take, call, "keep_arena(arena)"])
        return [call, "if code: raise fault(code)"]

    def _bases(self) -> str:
        assert self.step is not None
        return _packed(self.step.bases, self.weights, self.scope, self._address)

    def _address(self, kind: str, number: int) -> str:
        others = {"arena": "arena[0]", "slot": f"first + slots[{number}]", "size": f"sizes[{number}]"}
        return others[kind] if kind in others else f"p{self.names[number]}"

    def _results(self) -> list[str]:
        """The outputs; what is passed on, or returned twice, is copied as the long way does."""
        results = []
        for at, number in enumerate(self.program.outputs):
            if number in self.made and number not in self.program.outputs[:at]:
                results.append(self.made[number])
                continue
            if number not in self.names:
                self.names[number] = f"c{number}"
                self.scope[f"c{number}"] = self.program.constants[number]
            results.append(f"{self.names[number]}.copy()")
        return results


def _tuple(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _new(kind: ArrayType, shape: Sequence[int] | None, known: str, dtype: str) -> str:
    """Source of a new array: of the `known` shape, or of one with sizes of the call, as in `NativeStep.shapes`."""
    if shape is not None:
        sizes = "".join(f"{d}, " if d >= 0 else f"sizes[{~d}], " for d in shape)
        return f"empty_array(({sizes}), {dtype})"
    is_large = math.prod(kind.static) * kind.numpy.itemsize >= model.LEAST_ALIGNED
    return f"{'empty_array' if is_large else 'empty'}({known}, {dtype})"


def _tests(name: str, flags: int, twin: str | None = None, shaped: bool = True) -> list[str]:
    """Tests that an array does not pass; what is the same object as its twin is tested as that."""
    # Types are equal that are not the same object: those of arrays that another process sent.
    other = f"{name}.dtype is not d{name} and {name}.dtype != d{name}"
    made = [f"type({name}) is not ndarray", other, f"{name}.shape != s{name}", f"{name}.flags.num & {flags} != {flags}"]
    made = made if shaped else [made[0], made[1], made[3]]
    return made if twin is None else [f"{name} is not {twin} and ({' or '.join(made)})"]
