"""Layer 3: tensor expressions — what to compute. `from weft import te`."""

from weft.expr.nodes import equal, maximum, minimum, not_equal, select, truncdiv, truncmod
from weft.expr.nodes import logical_not as not_
from weft.expr.nodes import select as if_then_else
from weft.loop.interpreter import register_effect
from weft.te.compute import (
    access_ptr,
    broadcast_read,
    broadcast_shapes,
    broadcast_to,
    call_extern,
    compute,
    elementwise,
    extern,
    hardware_intrin,
    placeholder,
    reduce_axis,
    scan,
    thread_axis,
)
from weft.te.intrin import create_schedule, decl_tensor_intrin
from weft.te.lower import lower
from weft.te.math import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cast,
    ceil,
    clip,
    clz,
    copysign,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    fma,
    fmod,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    neg,
    popcount,
    power,
    reinterpret,
    relu,
    round,
    round_away,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
)
from weft.te.reduce import all, any, comm_reducer, max, min, prod, sum
from weft.te.tensor import IterVar, Tensor, var

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("compute_module",)]
