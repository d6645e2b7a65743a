"""Numbers of 16 bits are rounded where they are stored, and not between the operations of one kernel before that.

    C[i] = (half(sum[i]) + b[i]) * half(t)     ->     C[i] = half((sum[i] + float(b[i])) * t)

What a model says in 16 bits is computed in float32 in any case, and rounded after each operation; of a product with a
bias and an activation that is a third of the instructions of its epilogue. Conditions, and what else may jump
(floor, a conversion to an integer), stay as they were.
"""

from __future__ import annotations

from weft.core.dtypes import FLOAT32, DType
from weft.expr.nodes import Add, Call, Cast, Div, Expr, Max, Min, Mul, Select, Sub, cast
from weft.expr.visit import rebuild
from weft.loop.ir import Func, Stmt, Store
from weft.loop.visit import Mutator

_ARITHMETIC = (Add, Sub, Mul, Div, Max, Min)
_SMOOTH = (*_ARITHMETIC, Select, Cast)
_FUNCTIONS = {"neg", "abs", "exp", "exp2", "tanh", "sigmoid", "erf", "normal_cdf", "sqrt", "rsqrt"}


def keep_wide(func: Func) -> Func:
    """The program that rounds what it stores in 16 bits once."""
    return _Stores().func(func)


class _Stores(Mutator):
    def expr(self, e: Expr) -> Expr:
        """Expressions belong to stores."""
        return e

    def visit_Store(self, s: Store) -> Stmt:
        """A value that is stored in 16 bits."""
        made = _rounded(s.value) if _is_half(s.value.dtype) else s.value
        return s if made is s.value else Store(s.buffer, s.indices, made, s.predicate)


def _is_half(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits == 16 and dtype.lanes == 1


def _rounded(e: Expr) -> Expr:
    """A value of 16 bits that is rounded once; the same where it was."""
    if isinstance(e, Cast) and e.value.dtype is FLOAT32:
        inside = _inside(e.value)
        return e if inside is e.value else cast(inside, e.dtype)
    if isinstance(e, _ARITHMETIC) and any(isinstance(part, _SMOOTH) for part in (e.a, e.b)):
        return cast(_wide(e), e.dtype)
    if isinstance(e, Select):
        then, otherwise = _rounded(e.then), _rounded(e.otherwise)
        return e if then is e.then and otherwise is e.otherwise else Select(e.condition, then, otherwise)
    return e


def _inside(e: Expr) -> Expr:
    """An expression of float32 whose parts of 16 bits are not rounded before they become wide."""
    if isinstance(e, Cast) and _is_half(e.value.dtype):
        return _wide(e.value)
    if isinstance(e, (*_ARITHMETIC, Select)) or (isinstance(e, Call) and e.name in _FUNCTIONS):
        return rebuild(e, lambda part: _inside(part) if part.dtype is FLOAT32 else part)
    return e


def _wide(e: Expr) -> Expr:
    """A value of 16 bits in float32, as it was before it was rounded."""
    if isinstance(e, Cast) and e.value.dtype is FLOAT32:
        return _inside(e.value)
    if isinstance(e, _ARITHMETIC):
        return type(e)(_wide(e.a), _wide(e.b))
    if isinstance(e, Select):
        return Select(e.condition, _wide(e.then), _wide(e.otherwise))
    return cast(e, FLOAT32)
