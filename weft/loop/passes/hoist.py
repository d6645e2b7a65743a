"""What does not change inside a loop is computed before it, as a Let.

    for k in range(64):                                    let A_base = i * 1024 + jo * 16
        for v in range(16):                                for k in range(64):
            C[v] = A[i * 1024 + jo * 16 + v] * exp(b)  ->      let value = exp(b)     …further out still: before k
                                                               for v in range(16):
                                                                   C[v] = A[A_base + v] * value

Three things move: the invariant terms of an index (at least two, or one that is not a plain product), pure
expressions that cost something (a call, a division, of open sizes all but sums), and loads of buffers that the loop
does not write, where the load certainly happens. A loop whose body is a test of something invariant becomes the test
around the loop. Nothing moves out of a thread loop. Whole numbers are divided by an open size wherever that is
invariant, whether or not the loop runs: no generated code traps there, and LLVM is not asked to move what its few
passes leave in place.
"""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.intrinsics import REPORT, is_pure
from weft.expr.nodes import (
    Add,
    Address,
    And,
    Buffer,
    Call,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Or,
    Ramp,
    Select,
    Sub,
    Var,
    int_value,
)
from weft.expr.structural import structural_key
from weft.expr.visit import children, free_vars, map_all, rebuild, substitute, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Stmt, Store
from weft.loop.passes.support import (
    Copier,
    Linear,
    Names,
    can_trap,
    linear,
    rename_repeated,
)
from weft.loop.visit import Mutator, substitute_stmt, walk_stmts


def hoist(func: Func) -> Func:
    """The program with invariant index arithmetic, values and loads moved out of its loops."""
    if not any(isinstance(s, For) for s in walk_stmts(func.body)):
        return func
    func = rename_repeated(func)
    return _Hoister(Names(func), frozenset(func.size_vars)).func(func)


class _Inside:
    """What happens in a loop: the variables bound, the buffers written or allocated, whether something has effects."""

    __slots__ = ("bound", "written", "effects")

    def __init__(self) -> None:
        self.bound: set[Var] = set()
        self.written: set[Buffer] = set()
        self.effects = False

    def merge(self, other: _Inside) -> None:
        """Adds what happens in a loop inside this one."""
        self.bound |= other.bound
        self.written |= other.written
        self.effects = self.effects or other.effects


class _Hoister(Mutator):
    def __init__(self, names: Names, sizes: frozenset[Var]) -> None:
        self.names, self.sizes = names, sizes
        self.inside = _Inside()

    def visit_Store(self, s: Store) -> Stmt:
        self.inside.written.add(s.buffer)
        for e in (*s.indices, s.value):
            self._effects(e)
        return s

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        self._effects(s.value)
        return s

    def visit_Let(self, s: Let) -> Stmt:
        self._effects(s.value)
        self.inside.bound.add(s.var)
        return self.generic_stmt(s)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        self.inside.written.add(s.buffer)
        return self.generic_stmt(s)

    def _effects(self, e: Expr) -> None:
        for node in walk(e, Address, Call):
            if isinstance(node, Address):
                if "w" in node.mode:
                    self.inside.written.add(node.buffer)
            elif isinstance(node, Call) and not is_pure(node.name) and node.name != REPORT:
                self.inside.effects = True

    def visit_For(self, s: For) -> Stmt:
        outer, self.inside = self.inside, _Inside()
        self.inside.bound.add(s.var)
        body = self.stmt(s.body)
        loop = s if body is s.body else s.replace(body=body)
        inside, self.inside = self.inside, outer
        outer.merge(inside)
        if s.kind == "thread":
            return loop
        mover = _LoopMover(loop, inside, self.names, self.sizes)
        body = mover.stmt(loop.body)
        result = _unswitch(loop if body is loop.body else loop.replace(body=body), mover, self.names)
        for var, value in reversed(mover.moved):
            outer.bound.add(var)
            result = Let(var, value, result)
        return result


def _unswitch(loop: For, mover: _LoopMover, names: Names) -> Stmt:
    """A loop around an invariant test becomes the test around the loop."""
    test = loop.body
    if not isinstance(test, If) or mover.varies(test.condition) or can_trap(test.condition, mover.sizes):
        return loop
    then = loop.replace(body=test.then)
    if test.otherwise is None:
        return If(test.condition, then)
    return If(test.condition, then, Copier(names).stmt(loop.replace(body=test.otherwise)))


class _LoopMover(Mutator):
    """Rewrites the body of one loop; `moved` are the variables to bind before the loop."""

    def __init__(self, loop: For, inside: _Inside, names: Names, sizes: frozenset[Var]) -> None:
        self.names, self.sizes = names, sizes
        self.moved: list[tuple[Var, Expr]] = []
        self.known: dict[Any, Var] = {}
        self.bound = inside.bound
        self.written = inside.written
        extent = int_value(loop.extent)
        self.certain = extent is not None and extent >= 1 and not inside.effects
        self.variation: dict[Expr, bool] = {}
        self.done: dict[tuple[Expr, bool], Expr] = {}
        self.places: dict[Expr, Expr] = {}
        self.heads: dict[Expr, tuple[Expr, int] | None] = {}
        self.sums: dict[tuple[Expr, int], Expr] = {}

    def varies(self, e: Expr) -> bool:
        """Whether an expression may differ between iterations, or cannot be computed outside of the loop."""
        found = self.variation.get(e)
        if found is None:
            if type(e) is Var:
                found = e in self.bound
            elif isinstance(e, Load) and e.buffer in self.written:
                found = True
            elif isinstance(e, Address) or (isinstance(e, Call) and not is_pure(e.name)):
                found = True
            else:
                found = False
                for part in children(e):
                    if type(part) is not Const and self.varies(part):
                        found = True
                        break
            self.variation[e] = found
        return found

    def _bind(self, value: Expr, key: Any, name: str) -> Var:
        var = self.known.get(key)
        if var is None:
            var = self.known[key] = Var(self.names.fresh(name), value.dtype)
            self.moved.append((var, value))
        return var

    # ------------------------------------------------------------------------------------------- expressions

    def expr(self, e: Expr) -> Expr:
        kind = type(e)
        if kind is Var or kind is Const:
            return e
        if kind is Load or kind is Address or e.dtype is INDEX:  # what copies of a statement share
            found = self.done.get((e, self.certain))
            if found is None:
                found = self.done[(e, self.certain)] = self._rewritten(e)
            return found
        return self._rewritten(e)

    def _rewritten(self, e: Expr) -> Expr:
        costs = _costs(e) or (self.sizes and _is_arithmetic(e) and self.sizes.issuperset(free_vars(e)))
        if costs and not self.varies(e) and (self.certain or not can_trap(e, self.sizes)):
            return self._bind(e, structural_key(e), _name_of(e))
        if isinstance(e, (Load, Address)):
            return self._access(e)
        if isinstance(e, Select):
            return self._lazy(e, [e.then, e.otherwise])
        if isinstance(e, (And, Or)):
            return self._lazy(e, [e.b])
        return rebuild(e, self.expr)

    def _lazy(self, e: Expr, arms: list[Expr]) -> Expr:
        """A node that evaluates some of its parts only sometimes: no load moves out of those."""

        def visit(part: Expr) -> Expr:
            if not any(part is arm for arm in arms):
                return self.expr(part)
            outer, self.certain = self.certain, False
            done = self.expr(part)
            self.certain = outer
            return done

        return rebuild(e, visit)

    def _access(self, e: Load | Address) -> Expr:
        indices = map_all(e.indices, lambda index: self.index(index, e.buffer))
        if indices is e.indices:
            return e
        return Load(e.buffer, indices) if isinstance(e, Load) else Address(e.buffer, indices, e.mode)

    def index(self, e: Expr, buffer: Buffer) -> Expr:
        """An index with its invariant terms replaced by one variable."""
        kind = type(e)
        if kind is Ramp:
            found = self.places.get(e)
            if found is None:
                found = self.places[e] = rebuild(e, lambda part: self.index(part, buffer))
            return found
        if e.dtype is INDEX and (kind is Add or kind is Sub or kind is Mul):
            return self._sum(e, f"{buffer.name}_base")
        return self.expr(e)

    def _sum(self, e: Any, name: str) -> Expr:
        """A sum with its invariant terms replaced; those that differ by a constant share all the rest."""
        constant = 0
        head = e
        if type(e.b) is Const and type(e) is not Mul:
            head, constant = e.a, e.b.value if type(e) is Add else -e.b.value
        if head not in self.heads:
            self.heads[head] = self._head(head, name)
        found = self.heads[head]
        if found is None:
            return rebuild(e, self.expr)
        key = (found[0], found[1] + constant)
        made = self.sums.get(key)
        if made is None:
            made = self.sums[key] = Linear({found[0]: 1}, key[1]).expr()
        return made

    def _head(self, e: Expr, name: str) -> tuple[Expr, int] | None:
        """The terms of a sum, rewritten, and its constant; None where no term is replaced."""
        form = linear(e)
        fixed = {
            term: factor
            for term, factor in form.terms.items()
            if not self.varies(term) and (type(term) is Var or not can_trap(term, self.sizes))
        }
        if len(fixed) < 2 and not any(type(term) is not Var for term in fixed):
            return None
        key = frozenset((structural_key(term), factor) for term, factor in fixed.items())
        result: dict[Expr, int] = {self._bind(Linear(fixed, 0).expr(), key, name): 1}
        for term, factor in form.terms.items():
            if term not in fixed:
                done = self.expr(term)
                result[done] = result.get(done, 0) + factor
        return Linear(result, 0).expr(), form.constant

    # -------------------------------------------------------------------------------------------- statements

    def visit_Store(self, s: Store) -> Stmt:
        outer = self.certain
        predicate = None if s.predicate is None else self.expr(s.predicate)
        self.certain = outer and s.predicate is None
        indices = map_all(s.indices, lambda index: self.index(index, s.buffer))
        value = self.expr(s.value)
        self.certain = outer
        same = indices is s.indices and value is s.value and predicate is s.predicate
        return s if same else Store(s.buffer, indices, value, predicate)

    def visit_Let(self, s: Let) -> Stmt:
        inner: Stmt = s
        names: dict[Var, Expr] = {}  # those that only name another: put in place once, below all of these bindings
        kept: list[tuple[Let, Expr]] = []
        while isinstance(inner, Let):
            value = substitute(inner.value, names)
            value = self._sum(value, inner.var.name) if value.dtype is INDEX and _is_sum(value) else self.expr(value)
            if type(value) is Var:
                names[inner.var] = value
            else:
                kept.append((inner, value))
            inner = inner.body
        body = self.stmt(substitute_stmt(inner, names))
        for let, value in reversed(kept):
            body = let if value is let.value and body is let.body else Let(let.var, value, body)
        return body

    def visit_For(self, s: For) -> Stmt:
        # What is invariant here was invariant in a loop inside too, and stands before that loop already.
        extent = self.expr(s.extent)
        body = self._maybe(s.body, (int_value(extent) or 0) >= 1) if s.kind == "thread" else s.body
        return s if extent is s.extent and body is s.body else s.replace(extent=extent, body=body)

    def visit_If(self, s: If) -> Stmt:
        condition = self.expr(s.condition)
        then = self._maybe(s.then, False)
        otherwise = None if s.otherwise is None else self._maybe(s.otherwise, False)
        if condition is s.condition and then is s.then and otherwise is s.otherwise:
            return s
        return If(condition, then, otherwise)

    def _maybe(self, s: Stmt, certain: bool) -> Stmt:
        outer, self.certain = self.certain, self.certain and certain
        done = self.stmt(s)
        self.certain = outer
        return done


def _is_sum(e: Expr) -> bool:
    return isinstance(e, (Add, Sub, Mul))


def _costs(e: Expr) -> bool:
    """Whether the outermost operation is one worth doing once: a load, a call, a division but by a number."""
    if isinstance(e, (FloorDiv, FloorMod)):
        return e.dtype is INDEX and type(e.b) is not Const
    return isinstance(e, (Load, Call, Div))


def _is_arithmetic(e: Expr) -> bool:
    """Whether the outermost operation of an index is more than a sum: of open sizes LLVM would do it in every round."""
    if isinstance(e, Mul):
        return e.dtype is INDEX and type(e.a) is not Const and type(e.b) is not Const
    return isinstance(e, (FloorDiv, FloorMod, Max, Min)) and e.dtype is INDEX


def _name_of(e: Expr) -> str:
    return f"{e.buffer.name}_value" if isinstance(e, Load) else "value"
