"""Walking and rewriting expressions.

`children(e)` lists the direct parts; `rebuild(e, f)` maps f over them and keeps the node itself where nothing changed.
A pass is a subclass of `ExprMutator` with a method `visit_Add(self, e)` for each node it cares about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from weft.core.native import mypyc_attr
from weft.expr.nodes import (
    BINARY,
    COMPARE,
    FOLD,
    NODES,
    Address,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Var,
    broadcast,
    cast,
    logical_not,
    select,
)

Function = Callable[[Expr], Expr]


def map_all(items: tuple[Expr, ...], f: Function) -> tuple[Expr, ...]:
    """f over a tuple; the same tuple when nothing changed."""
    count = len(items)  # said so: of `len(items) == 1` mypyc would make another tuple
    if count == 1:
        one = f(items[0])
        return items if one is items[0] else (one,)
    new = tuple([f(item) for item in items])
    for old, made in zip(items, new):
        if old is not made:
            return new
    return items


def _leaf(e: Expr, f: Function) -> Expr:
    return e


def _binary(e: Binary, f: Function) -> Expr:
    a, b = f(e.a), f(e.b)
    return e if a is e.a and b is e.b else FOLD[type(e)](a, b)


def _not(e: Not, f: Function) -> Expr:
    a = f(e.a)
    return e if a is e.a else logical_not(a)


def _select(e: Select, f: Function) -> Expr:
    c, t, o = f(e.condition), f(e.then), f(e.otherwise)
    return e if c is e.condition and t is e.then and o is e.otherwise else select(c, t, o)


def _cast(e: Cast, f: Function) -> Expr:
    value = f(e.value)
    return e if value is e.value else cast(value, e.dtype.with_lanes(value.dtype.lanes))


def _call(e: Call, f: Function) -> Expr:
    args = map_all(e.args, f)
    return e if args is e.args else Call(e.name, args, e.dtype)


def _load(e: Load, f: Function) -> Expr:
    indices = map_all(e.indices, f)
    return e if indices is e.indices else Load(e.buffer, indices)


def _address(e: Address, f: Function) -> Expr:
    indices = map_all(e.indices, f)
    return e if indices is e.indices else Address(e.buffer, indices, e.mode)


def _ramp(e: Ramp, f: Function) -> Expr:
    base, stride = f(e.base), f(e.stride)
    return e if base is e.base and stride is e.stride else Ramp(base, stride, e.lanes)


def _broadcast(e: Broadcast, f: Function) -> Expr:
    value = f(e.value)
    return e if value is e.value else broadcast(value, e.lanes)


_REBUILD: dict[type[Expr], Callable[[Any, Function], Expr]] = {
    Var: _leaf, Const: _leaf, Not: _not, Select: _select, Cast: _cast, Call: _call, Load: _load,
    Address: _address, Ramp: _ramp, Broadcast: _broadcast, **dict.fromkeys((*BINARY, *COMPARE), _binary),
}  # fmt: skip


def rebuild(e: Expr, f: Function) -> Expr:
    """The node with f applied to its parts; the node itself where nothing changed."""
    return _REBUILD[type(e)](e, f)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct parts of a node."""
    if isinstance(e, Binary):
        return e.a, e.b
    if isinstance(e, (Load, Address)):
        return e.indices
    if isinstance(e, (Broadcast, Cast)):
        return (e.value,)
    if isinstance(e, Call):
        return e.args
    if isinstance(e, Select):
        return e.condition, e.then, e.otherwise
    if isinstance(e, Ramp):
        return e.base, e.stride
    return (e.a,) if isinstance(e, Not) else ()


def walk(e: Expr, *kinds: type[Expr]) -> list[Expr]:
    """Every node of an expression (or those of some kinds), outermost first."""
    found: list[Expr] = []
    stack = [e]
    if kinds:
        wanted = bits(kinds)
        if not e.holds & wanted:
            return found
        while stack:
            node = stack.pop()
            if node.holds & wanted:
                if node.bit & wanted:
                    found.append(node)
                stack.extend(children(node)[::-1])
        return found
    while stack:
        node = stack.pop()
        found.append(node)
        kind = type(node)
        if kind is not Var and kind is not Const:
            stack.extend(children(node)[::-1])
    return found


def bits(kinds: Iterable[type[Expr]]) -> int:
    """Kinds of nodes as `Expr.holds` has them."""
    found = 0
    for kind in kinds:
        found |= kind.bit
    return found


def walk_once(e: Expr, seen: set[Expr]) -> list[Expr]:
    """The nodes of an expression that were not seen before; they are now. Copies of a loop share most of theirs."""
    found: list[Expr] = []
    stack = [e]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is not Var and kind is not Const and node not in seen:
            seen.add(node)
            found.append(node)
            stack.extend(children(node))
    return found


def free_vars(*expressions: Expr) -> dict[Var, None]:
    """The variables that occur, in order of first occurrence (a dict used as an ordered set)."""
    found: dict[Var, None] = {}
    for e in expressions:
        found.update(dict.fromkeys(walk(e, Var)))  # type: ignore[arg-type]
    return found


def uses_any(e: Expr, variables: Any) -> bool:
    """Whether one of the variables occurs."""
    stack = [e]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is Var:
            if node in variables:
                return True
        elif kind is not Const:
            stack.extend(children(node))
    return False


def substitute(e: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Every variable of the mapping replaced by its expression (folding constants on the way)."""
    return _substituted(e, mapping) if mapping else e


def _substituted(e: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    if type(e) is Var:
        return mapping.get(e, e)
    if not e.holds & Var.bit:
        return e
    if isinstance(e, Binary):  # most of them; and a function that calls itself by name leaves no circle behind
        a, b = _substituted(e.a, mapping), _substituted(e.b, mapping)
        return e if a is e.a and b is e.b else FOLD[type(e)](a, b)
    return _REBUILD[type(e)](e, lambda part: _substituted(part, mapping))


@mypyc_attr(allow_interpreted_subclasses=True)
class ExprMutator:
    """Rewrites an expression bottom up; `visit_<Node>` methods of a subclass say what to do with a node."""

    _handlers: ClassVar[dict[type[Expr], Callable[[Any, Any], Expr]]] = {}
    _cares: ClassVar[int] = -1
    """The kinds of nodes that have a method: what holds none of them stays as it is, and is not walked."""

    def __init_subclass__(cls) -> None:
        find_methods(cls)

    def expr(self, e: Expr) -> Expr:
        """The rewritten expression."""
        return self._handlers[type(e)](self, e) if e.holds & self._cares else e

    def generic(self, e: Expr) -> Expr:
        """What happens to a node without a method of its own: its parts are rewritten."""
        return _REBUILD[type(e)](e, self.expr)


ExprMutator._handlers = dict.fromkeys(NODES, ExprMutator.generic)


def find_methods(mutator: type[ExprMutator]) -> None:
    """Notes what a class of mutators has methods for."""
    mutator._handlers = {kind: getattr(mutator, f"visit_{kind.__name__}", ExprMutator.generic) for kind in NODES}
    named = [kind for kind in NODES if hasattr(mutator, f"visit_{kind.__name__}")]
    plain = mutator.generic is ExprMutator.generic and mutator.expr is ExprMutator.expr
    mutator._cares = bits(named) if plain else -1


__all__ = [
    "ExprMutator", "bits", "children", "find_methods", "free_vars", "map_all", "rebuild", "substitute", "uses_any",
    "walk", "walk_once", "Binary",
]  # fmt: skip
