"""Runs flat Funcs: `run(func, *arrays)` compiles for this machine and calls; `elementwise` builds the usual loop."""

import ctypes

import numpy as np

from weft.codegen.llvm.compile import jit
from weft.codegen.llvm.generate import entry_symbol, generate
from weft.core.dtypes import dtype
from weft.expr.nodes import Buffer, Load, Ramp, Var, index_expr
from weft.loop.ir import For, Func, Store, seq
from weft.targets.registry import find_target

ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)


def slot(value, kind=None):
    """One argument as its 8-byte slot."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    data = np.asarray(value, kind.numpy if kind is not None else np.int64).tobytes()
    return int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


class Compiled:
    def __init__(self, func, target="native", intrinsics=None):
        self.func = func
        self.target = find_target(target)
        self.text = generate(func, self.target, intrinsics=intrinsics or {})
        lookup, self.keep = jit(self.text, self.target)
        self.entry = ENTRY(lookup(entry_symbol(func.name)))

    def __call__(self, *args, threads=1):
        kinds = [None if isinstance(p, Buffer) else p.dtype for p in (*self.func.params, *self.func.size_vars)]
        slots = np.array([slot(a, k) for a, k in zip(args, kinds)], np.int64)
        return self.entry(slots.ctypes.data, threads)


def run(func, *args, target="native", threads=1, intrinsics=None):
    code = Compiled(func, target, intrinsics)(*args, threads=threads)
    assert code == 0, code


def buffer(name, kind, *shape, **more):
    return Buffer(name, dtype(kind), shape, **more)


def ramp(base, stride, lanes):
    return Ramp(index_expr(base), index_expr(stride), lanes)


def many_elementwise(makes, results, count, lanes, kinds):
    """B0[i] = makes[0](A0[i], A1[i], …), B1[i] = … for i below count, by vectors of so many lanes."""
    assert count % lanes == 0
    sources = [buffer(f"A{n}", kind, count) for n, kind in enumerate(kinds)]
    outs = [buffer(f"B{n}", kind, count) for n, kind in enumerate(results)]
    i = Var("i")
    index = i if lanes == 1 else ramp(i * lanes, 1, lanes)
    stores = [Store(out, [index], make(*[Load(a, [index]) for a in sources])) for make, out in zip(makes, outs)]
    return Func("elementwise", [*sources, *outs], For(i, count // lanes, seq(*stores)))


def elementwise(make, count, lanes, result, *kinds):
    return many_elementwise([make], [result], count, lanes, kinds)


def map_many(makes, results, *arrays, lanes=16, kinds=None, target="native"):
    """Each of `makes` applied to whole numpy arrays by one compiled function (padded to a whole number of vectors)."""
    count = len(arrays[0])
    padded = -(-count // lanes) * lanes
    wide = [np.ascontiguousarray(np.concatenate([a, np.resize(a, padded - count)])) for a in arrays]
    kinds = kinds or [a.dtype.name for a in arrays]
    outs = [np.zeros(padded, dtype(result).numpy) for result in results]
    run(many_elementwise(makes, results, padded, lanes, kinds), *wide, *outs, target=target)
    return [out[:count] for out in outs]


def map_values(make, result, *arrays, lanes=16, kinds=None, target="native"):
    return map_many([make], [result], *arrays, lanes=lanes, kinds=kinds, target=target)[0]


def ulp_error(got, exact, kind=np.float32):
    """Distance in units of the last place of `kind` between results and float64 (or wider) references."""
    got64 = got.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        unit = np.where(np.isfinite(unit), unit, 1.0)
        error = np.abs(got64 - exact.astype(np.float64)) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0.0, error)
