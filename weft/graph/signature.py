"""What an operator demands of its inputs and attributes, as data: a signature, and relations that it cannot say.

    data[*d], indices:index[*i], updates:data[*i]                               ScatterElements
    X:float[t b i], W:X[d 4*@hidden_size i], R:X[d 4*@hidden_size @hidden_size], B:X[d 8*@hidden_size]?, …    LSTM

    signature := input ("," input)* [", ..."]             `...`: the last input may come any number of times
    input     := name [":" element ("|" element)*] [shape ("|" shape)*] ["?"]              `?`: it may be left out
    element   := float | signed | unsigned | int | index | number | narrow | an element type (bool, string, int8, …)
                 | an earlier input, whose type it has
    shape     := "[" size* "]"
    size      := number | [number "*"] name | [number "*"] "@" attribute | "*" name (any number of sizes) | "_"

Sizes of one name are equal wherever they stand; a size that only the run tells fits everything, and is looked at again
when it is known. `OpSpec` checks all of this once, for every operator, before its own functions see a node.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from weft.core.array_types import NARROW, PLAIN
from weft.core.errors import did_you_mean
from weft.graph.ir import Dim, TensorType, Type

if TYPE_CHECKING:
    from weft.graph.opspec import Infer

_NAMES = {
    "float": "float16 bfloat16 float32 float64",
    "signed": "int8 int16 int32 int64",
    "unsigned": "uint8 uint16 uint32 uint64",
    "index": "int32 int64",
    "narrow": "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn "
    "int4 uint4 int2 uint2",
}
ELEMENTS = {name: frozenset(types.split()) for name, types in _NAMES.items()}
"""Element types by the words of signatures; those that only casts and quantization know are `narrow`."""
ELEMENTS["int"] = ELEMENTS["signed"] | ELEMENTS["unsigned"]
ELEMENTS["number"] = ELEMENTS["int"] | ELEMENTS["float"]


class Size(NamedTuple):
    """One size of a shape: `factor` times what `name` stands for; an empty name is the number itself."""

    factor: int
    name: str
    rest: bool = False


Pattern = tuple[Size, ...]
Bound = dict[str, Any]


class Input(NamedTuple):
    """What one input must be."""

    name: str
    elements: tuple[str, ...]
    shapes: tuple[Pattern, ...]
    optional: bool
    text: str


_INPUT = re.compile(r"(\w+)(?::([\w|]+))?((?:\[[^]]*\]\|?)*)(\?)?")
_SIZE = re.compile(r"(?:(\d+)\*)?(@?[a-zA-Z]\w*)|(\d+)|\*([a-z]\w*)|(_)")


def _size(text: str) -> Size:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no size of a signature")
    factor, name, number, rest, _ = found.groups()
    if rest:
        return Size(1, rest, True)
    return Size(int(number), "") if number else Size(int(factor or 1), name or "_")


def _input(text: str) -> Input:
    found = _INPUT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no input of a signature")
    name, elements, shapes, optional = found.groups()
    patterns = tuple(tuple(map(_size, one.split())) for one in re.findall(r"\[([^]]*)\]", shapes))
    return Input(name, tuple((elements or "").split("|")) if elements else (), patterns, bool(optional), text)


class Signature:
    """The inputs of an operator. The same shapes come again and again: answers are kept."""

    def __init__(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",")] if text else []
        self.text = text
        self.variadic = parts[-1:] == ["..."]
        self.inputs = tuple(map(_input, parts[:-1] if self.variadic else parts))
        self.attributes = sorted({s.name[1:] for i in self.inputs for p in i.shapes for s in p if s.name[:1] == "@"})
        self._kept = functools.lru_cache(maxsize=1024)(self._problem)

    def check_elements(self) -> None:
        """An error for a word that is no element type."""
        known = {*ELEMENTS, *PLAIN, *NARROW, "string", *(one.name for one in self.inputs)}
        if wrong := [word for one in self.inputs for word in one.elements if word not in known]:
            raise ValueError(f"{wrong[0]!r} is no element type of a signature{did_you_mean(wrong[0], known)}")

    def problem(self, c: Infer) -> str | None:
        """What is wrong with the inputs of a node, in words; None where nothing is known to be."""
        key = tuple((t.dtype, t.shape) if isinstance(t, TensorType) else t for t in c.types)
        given = tuple(c.attributes.get(name) for name in self.attributes)
        try:
            return self._kept(key, given)
        except TypeError:  # an attribute that is a list where a number belongs
            return self._problem(key, given)

    def _problem(self, types: Sequence[Any], attributes: Sequence[Any]) -> str | None:
        if any(kind is not None for kind in types[len(self.inputs) :]) and not self.variadic:
            return f"it has {len(types)} inputs; {self}"
        bound: Bound = {f"@{n}": v for n, v in zip(self.attributes, attributes) if isinstance(v, int)}
        found: dict[str, Any] = {}
        last = len(self.inputs) - 1
        for at in range(max(len(types) if self.variadic else 0, len(self.inputs))):
            wanted, kind = self.inputs[min(at, last)], types[at] if at < len(types) else None
            if kind is None:
                if wanted.optional or (at > last and at >= len(types)):
                    continue
                return f"its input {at} ({wanted.name}) is missing; {self}"
            wrong = self._one(wanted, kind, bound, found)
            if wrong:
                return f"its input {at} ({wanted.name}) {wrong}; {self}"
        return None

    @staticmethod
    def _one(wanted: Input, kind: Any, bound: Bound, found: dict[str, Any]) -> str | None:
        if not isinstance(kind, tuple):
            return f"is no tensor but {kind!r}" if wanted.elements or wanted.shapes else None
        dtype, dims = kind
        found.setdefault(wanted.name, dtype)
        if wanted.elements and not any(
            dtype == e or dtype in ELEMENTS.get(e, ()) or found.get(e) == dtype for e in wanted.elements
        ):
            same = [f"{e} ({found[e]})" if e in found else e for e in wanted.elements]
            return f"holds {dtype}, not {' or '.join(same)}"
        if dims is None or not wanted.shapes:
            return None
        for pattern in wanted.shapes:
            made = _bind(pattern, dims, bound)
            if made is not None:
                bound.update(made)
                return None
        names = {s.name for p in wanted.shapes for s in p}
        known = [f"{n} = {list(v) if isinstance(v, tuple) else v}" for n, v in bound.items() if n in names]
        return f"has the shape {list(dims)}{', where ' + ', '.join(known) if known else ''}"

    def __str__(self) -> str:
        return f"it takes ({self.text})"


def _bind(pattern: Pattern, dims: tuple[Dim, ...], bound: Bound) -> Bound | None:
    """What the names of a pattern stand for, once it is laid over a shape; None where it does not fit."""
    rest = next((k for k, size in enumerate(pattern) if size.rest), None)
    made: Bound = {}
    if rest is not None:
        after = len(pattern) - 1 - rest
        if len(dims) < len(pattern) - 1:
            return None
        middle = dims[rest : len(dims) - after]
        known = bound.get(pattern[rest].name, middle)
        if len(known) != len(middle) or any(differ(a, b) for a, b in zip(known, middle)):
            return None
        made[pattern[rest].name] = tuple(a if isinstance(a, int) else b for a, b in zip(known, middle))
        dims, pattern = dims[:rest] + dims[len(dims) - after :], pattern[:rest] + pattern[rest + 1 :]
    if len(pattern) != len(dims):
        return None
    for (factor, name, _), dim in zip(pattern, dims):
        if name == "_" or not isinstance(dim, int):
            continue
        one = 1 if not name else made.get(name, bound.get(name))
        if one is None and dim % factor == 0:
            made[name] = dim // factor
        elif one is None or one * factor != dim:
            return None
    return made


def differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes are known, and not the same."""
    return isinstance(a, int) and isinstance(b, int) and a != b


@functools.lru_cache(maxsize=1024)
def signature(text: str) -> Signature:
    """The signature that a text says."""
    return Signature(text)


# ------------------------------------------------------------------------------------------- relations between inputs


class Relation(Protocol):
    """Something that must hold for a node."""

    def problem(self, c: Infer) -> str | None:
        """What is wrong, in words; None where nothing is known to be."""


def _dims(c: Infer, position: int) -> tuple[Dim, ...] | None:
    kind: Type | None = c.types[position] if position < len(c.types) else None
    return kind.shape if isinstance(kind, TensorType) else None


@dataclass(frozen=True)
class Within:
    """An input has the rank of another and, but along the attribute `axis`, no larger size."""

    inner: int
    outer: int
    axis: int = 0

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        inner, outer = _dims(c, self.inner), _dims(c, self.outer)
        if inner is None or outer is None:
            return None
        if len(inner) != len(outer) or not inner:
            return f"inputs {self.inner} and {self.outer} must have one rank, at least 1: {list(inner)}, {list(outer)}"
        axis = int(c.get("axis", self.axis))
        if not -len(outer) <= axis < len(outer):
            return f"axis {axis} is outside the {len(outer)} dimensions of {list(outer)}"
        for at, (a, b) in enumerate(zip(inner, outer)):
            if at != axis % len(outer) and isinstance(a, int) and isinstance(b, int) and a > b:
                return f"input {self.inner} is {list(inner)}, larger along dimension {at} than {list(outer)}"
        return None


@dataclass(frozen=True)
class SameSize:
    """One size of an input is one of another: the number of an axis is looked up by the value of an attribute."""

    position: int
    attribute: str
    axes: tuple[int, ...]
    default: int = 0
    own: tuple[int, ...] = (0, 0)
    of: int = 0

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        which = int(c.get(self.attribute, self.default))
        if not 0 <= which < len(self.axes):
            return f"the attribute {self.attribute!r} is {which}, not 0 to {len(self.axes) - 1}"
        mine, other = _dims(c, self.position), _dims(c, self.of)
        at, there = self.own[which], self.axes[which]
        if (
            mine is None
            or other is None
            or at >= len(mine)
            or there >= len(other)
            or not differ(mine[at], other[there])
        ):
            return None
        return (
            f"input {self.position} is {list(mine)}, where dimension {at} must be {other[there]}, as of input {self.of}"
        )


@dataclass(frozen=True)
class Along:
    """An input is one number, or has one for each place along an axis of the matrices that another input holds: as a
    vector, or with the rank of that input and a size of 1 along the other axis of its matrices."""

    position: int
    of: int
    axis: int

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        mine, other = _dims(c, self.position), _dims(c, self.of)
        if mine is None or other is None or all(size == 1 for size in mine):
            return None
        count = other[self.axis] if len(other) >= 2 else 1
        wanted = list(other)
        if len(other) >= 2:
            wanted[-3 - self.axis] = 1
        if len(mine) == 1 and not differ(mine[0], count):
            return None
        if len(mine) == len(wanted) >= 2 and not any(map(differ, mine, wanted)):
            return None
        return f"input {self.position} is {list(mine)}; it may be one number, [{count!r}] or {wanted} for {list(other)}"


@dataclass(frozen=True)
class Points:
    """The rows of input `indices` are places in input 0, after its `batch_dims`; `updates` is for what lies there."""

    indices: int = 1
    updates: int | None = None

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        data, indices = _dims(c, 0), _dims(c, self.indices)
        if data is None or indices is None:
            return None
        batch = int(c.get("batch_dims", 0))
        if not indices or not data or not 0 <= batch < min(len(data), len(indices)):
            return f"places {list(indices)} after {batch} batch dimensions do not fit {list(data)}"
        if any(differ(a, b) for a, b in zip(data[:batch], indices[:batch])):
            return f"its first {batch} dimensions must be those of its indices: {list(data)}, {list(indices)}"
        count = indices[-1]
        if not isinstance(count, int):
            return None
        if batch + count > len(data):
            return f"indices of {count} numbers after {batch} batch dimensions do not fit {list(data)}"
        updates = None if self.updates is None else _dims(c, self.updates)
        wanted = (*indices[:-1], *data[batch + count :])
        if updates is not None and (len(updates) != len(wanted) or any(map(differ, updates, wanted))):
            return f"its updates have the shape {list(updates)}, where {list(wanted)} is needed"
        return None


# -------------------------------------------------------------------------------------------------------- attributes


@dataclass(frozen=True)
class Between:
    """A number, or each of a list of numbers, lies between two limits (both may be reached)."""

    attribute: str
    least: float = float("-inf")
    most: float = float("inf")

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        given = c.get(self.attribute)
        if given is None:
            return None
        for one in given if hasattr(given, "__iter__") else (given,):
            if not self.least <= one <= self.most:
                limit = f"at least {self.least}" if self.most == float("inf") else f"{self.least} to {self.most}"
                return f"the attribute {self.attribute!r} is {one}, not {limit}"
        return None


@dataclass(frozen=True)
class OneOf:
    """An attribute, if given, is one of some words or numbers; or `each` of a list is."""

    attribute: str
    values: tuple[Union[str, int], ...]
    each: bool = False

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        given = c.get(self.attribute)
        if given is None:
            return None
        flat = self.each and getattr(given, "ndim", 1) == 1
        for one in dict.fromkeys(given) if flat else (given,):
            if (self.each and not flat) or one not in self.values:
                found = f"{'holds' if flat else 'is'} {repr(one) if isinstance(one, str) else one}"
                return f"the attribute {self.attribute!r} {found}; known are {', '.join(map(repr, self.values))}"
        return None


@dataclass(frozen=True)
class SameLength:
    """Attributes that are lists, those that are given, have one length."""

    attributes: tuple[str, ...]

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        lengths = {name: len(given) for name in self.attributes if (given := c.get(name)) is not None and len(given)}
        if len(set(lengths.values())) < 2:
            return None
        return "attributes must have one length: " + ", ".join(f"{n} has {v}" for n, v in lengths.items())


@dataclass(frozen=True)
class Below:
    """Each number of a list is a place in what another attribute counts (a number) or lists."""

    attribute: str
    count: str

    def problem(self, c: Infer) -> str | None:
        """See Relation."""
        given, count = c.get(self.attribute), c.get(self.count)
        if given is None or count is None:
            return None
        limit = int(count) if isinstance(count, (int, float)) else len(count)
        wrong = next((one for one in given if not 0 <= one < limit), None)
        return (
            None if wrong is None else f"{self.attribute!r} holds {wrong}, and {self.count!r} allows 0 to {limit - 1}"
        )
