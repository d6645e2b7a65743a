"""What is known about an index expression: a range, a power of two that divides it, its form as a ramp.

All of it is conservative: an unknown range is (None, None), an unknown divisor 1, an unknown form None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.expr.intrinsics import is_pure
from weft.expr.nodes import (
    Add,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Ramp,
    Select,
    Sub,
    Var,
    add,
    const,
    mul,
    sub,
)
from weft.expr.visit import bits, walk

Interval = tuple[int | None, int | None]
Ranges = Mapping[Var, Interval]
UNKNOWN: Interval = (None, None)
_DATA, _EFFECTS = bits((Load, Call, Cast)), bits((Load, Call))
_LIMIT = 1 << 62
"""Ranges beyond this may have wrapped, and count as unknown."""
_ALIGNED = 1 << 12
"""The largest power of two worth knowing as a divisor."""


def _kept(low: int | None, high: int | None) -> Interval:
    if (low is not None and abs(low) > _LIMIT) or (high is not None and abs(high) > _LIMIT):
        return UNKNOWN
    return low, high


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _negated(a: Interval) -> Interval:
    return (None if a[1] is None else -a[1], None if a[0] is None else -a[0])


def _product(a: Interval, b: Interval) -> Interval:
    if a[0] is None or b[0] is None or a[1] is None or b[1] is None:
        both = a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0
        return (0, None) if both else UNKNOWN
    corners = [x * y for x in (a[0], a[1]) for y in (b[0], b[1])]
    return min(corners), max(corners)


def _quotient(a: Interval, b: Expr) -> Interval:
    divisor = b.value if type(b) is Const else 0
    if divisor <= 0:
        return UNKNOWN
    return (None if a[0] is None else a[0] // divisor, None if a[1] is None else a[1] // divisor)


def _remainder(a: Interval, b: Expr) -> Interval:
    divisor = b.value if type(b) is Const else 0
    if divisor <= 0:
        return UNKNOWN
    if a[0] is not None and a[1] is not None and 0 <= a[0] and a[1] < divisor:
        return a
    return 0, divisor - 1


def _least(a: Interval, b: Interval) -> Interval:
    low = None if a[0] is None or b[0] is None else min(a[0], b[0])
    highs = [x for x in (a[1], b[1]) if x is not None]
    return low, min(highs) if highs else None


def _ramp(e: Any, ranges: Ranges) -> Interval:
    span = _product(interval(e.stride, ranges), (0, e.lanes - 1))
    base = interval(e.base, ranges)
    return _plus(base[0], span[0]), _plus(base[1], span[1])


def _either(e: Any, ranges: Ranges) -> Interval:
    a, b = interval(e.then, ranges), interval(e.otherwise, ranges)
    low = None if a[0] is None or b[0] is None else min(a[0], b[0])
    high = None if a[1] is None or b[1] is None else max(a[1], b[1])
    return low, high


def _cast(e: Any, ranges: Ranges) -> Interval:
    source = e.value.dtype
    if not source.is_integer or not e.dtype.is_integer:
        return UNKNOWN
    least, most = source.scalar.min, source.scalar.max
    low, high = interval(e.value, ranges)
    inner = (least if low is None else max(low, least), most if high is None else min(high, most))
    to = e.dtype.scalar
    return inner if to.min <= inner[0] and inner[1] <= to.max else UNKNOWN


def _sum(e: Any, ranges: Ranges) -> Interval:
    a, b = interval(e.a, ranges), interval(e.b, ranges)
    b = _negated(b) if type(e) is Sub else b
    return _plus(a[0], b[0]), _plus(a[1], b[1])


def _minimum(e: Any, ranges: Ranges) -> Interval:
    a, b = interval(e.a, ranges), interval(e.b, ranges)
    return _least(a, b) if type(e) is Min else _negated(_least(_negated(a), _negated(b)))


_INTERVAL: dict[type[Expr], Callable[[Any, Ranges], Interval]] = {
    Var: lambda e, ranges: ranges.get(e, UNKNOWN),
    Const: lambda e, ranges: (e.value, e.value) if e.dtype.is_integer else UNKNOWN,
    Add: _sum,
    Sub: _sum,
    Mul: lambda e, ranges: _product(interval(e.a, ranges), interval(e.b, ranges)),
    FloorDiv: lambda e, ranges: _quotient(interval(e.a, ranges), _scalar(e.b)),
    FloorMod: lambda e, ranges: _remainder(interval(e.a, ranges), _scalar(e.b)),
    Min: _minimum,
    Max: _minimum,
    Ramp: _ramp,
    Broadcast: lambda e, ranges: interval(e.value, ranges),
    Select: _either,
    Cast: _cast,
}


def interval(e: Expr, ranges: Ranges) -> Interval:
    """The least and the greatest value an integer expression can take; None where it is not known.

    Counts (int64) are taken not to overflow; data, and arithmetic on narrower types, is unknown where it could.
    """
    handler = _INTERVAL.get(type(e))
    if handler is None:
        return UNKNOWN
    found = _kept(*handler(e, ranges))
    kind = e.dtype.scalar
    if kind.bits < 64 and kind.is_integer and type(e) in (Add, Sub, Mul, Ramp):
        inside = found[0] is not None and found[1] is not None and kind.min <= found[0] and found[1] <= kind.max
        return found if inside else UNKNOWN
    if None in found and type(e) in (Add, Sub, Mul) and _is_data(e):
        return UNKNOWN
    if kind.kind == "uint" and found[0] is not None and found[0] < 0:
        return UNKNOWN
    return found


def named_interval(e: Expr, ranges: Ranges) -> Interval:
    """What is known of a name for an expression: of one for data both ends, or nothing, as sums of it may wrap."""
    found = interval(e, ranges)
    return UNKNOWN if None in found and _is_data(e) else found


def _is_data(e: Expr) -> bool:
    return bool(e.holds & _DATA)


def _scalar(e: Expr) -> Expr:
    return e.value if isinstance(e, Broadcast) else e


def power_of_two(value: int) -> int:
    """The largest power of two that divides a number."""
    return min(value & -value, _ALIGNED) if value else _ALIGNED


def divisor(e: Expr, known: Mapping[Var, int]) -> int:
    """A power of two that divides an integer expression."""
    kind = type(e)
    if kind is Const:
        return power_of_two(int(e.value)) if e.dtype.is_integer else 1  # type: ignore[attr-defined]
    if kind is Var:
        return known.get(e, 1)  # type: ignore[call-overload, no-any-return]
    if kind is Mul:
        return min(divisor(e.a, known) * divisor(e.b, known), _ALIGNED)  # type: ignore[attr-defined]
    if isinstance(e, (Add, Sub, Min, Max)):
        last = divisor(e.b, known)
        return last if last == 1 else min(divisor(e.a, known), last)
    if isinstance(e, Select):
        return min(divisor(e.then, known), divisor(e.otherwise, known))
    if isinstance(e, FloorMod):
        return min(divisor(e.a, known), divisor(e.b, known))
    if isinstance(e, Cast) and e.dtype.is_integer and e.value.dtype.is_integer:
        return divisor(e.value, known)
    return 1


def as_ramp(e: Expr, definitions: Mapping[Var, Expr]) -> tuple[Expr, Expr] | None:
    """A vector index as (base, stride), when it is base + stride * lane."""
    if isinstance(e, Ramp):
        return e.base, e.stride
    if isinstance(e, Broadcast):
        return e.value, const(0, e.value.dtype)
    if isinstance(e, Var) and e in definitions:
        return as_ramp(definitions[e], definitions)
    if isinstance(e, (Add, Sub)):
        a, b = as_ramp(e.a, definitions), as_ramp(e.b, definitions)
        if a is None or b is None:
            return None
        combine = add if isinstance(e, Add) else sub
        return combine(a[0], b[0]), combine(a[1], b[1])
    if isinstance(e, Mul):
        a, b = as_ramp(e.a, definitions), as_ramp(e.b, definitions)
        if a is None or b is None:
            return None
        for ramp, factor in ((a, b), (b, a)):
            if type(factor[1]) is Const and factor[1].value == 0:
                return mul(ramp[0], factor[0]), mul(ramp[1], factor[0])
    return None


Spread = tuple[Expr, tuple[int, ...]]
"""A vector index as a number that all lanes share, and what each lane adds to it."""


def as_spread(e: Expr, definitions: Mapping[Var, Expr], known: Mapping[Var, int]) -> Spread | None:
    """A vector index whose lanes lie at constant distances: `ramp(4*i, 1, 4) // 2` is 2*i + (0, 0, 1, 1)."""
    lanes = e.dtype.lanes
    if isinstance(e, Var) and e in definitions:
        return as_spread(definitions[e], definitions, known)
    if isinstance(e, Ramp):
        return (e.base, tuple(e.stride.value * i for i in range(lanes))) if isinstance(e.stride, Const) else None
    if isinstance(e, Broadcast):
        return e.value, (0,) * lanes
    if not isinstance(e, (Add, Sub, Mul, FloorDiv, FloorMod)):
        return None
    a, b = as_spread(e.a, definitions, known), as_spread(e.b, definitions, known)
    if a is None or b is None:
        return None
    if isinstance(e, Add):
        return add(a[0], b[0]), tuple(x + y for x, y in zip(a[1], b[1]))
    if isinstance(e, Sub):
        return sub(a[0], b[0]), tuple(x - y for x, y in zip(a[1], b[1]))
    if not isinstance(b[0], Const) or any(b[1]):
        return None
    number = b[0].value
    if isinstance(e, Mul):
        return mul(a[0], b[0]), tuple(number * x for x in a[1])
    if number <= 0 or number & (number - 1) or divisor(a[0], known) % number:
        return None
    if isinstance(e, FloorDiv):
        return FloorDiv(a[0], b[0]), tuple(x // number for x in a[1])
    return const(0, a[0].dtype), tuple(x % number for x in a[1])


def touches_memory(e: Expr) -> bool:
    """Whether evaluating this reads memory or has an effect, so that it must not run where it was not asked to."""
    if not e.holds & _EFFECTS:
        return False
    return bool(e.holds & Load.bit) or any(isinstance(node, Call) and not is_pure(node.name) for node in walk(e, Call))
