"""What can be said in figures about a compiled model and about arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler import Module
from weft.explore.stages import specializations
from weft.graph.ir import NUMPY_TYPES, TensorType, Value
from weft.runtime.threads import get_threads


def module_facts(module: Module) -> dict[str, Any]:
    """Kernels, host nodes and memory of a compiled model."""
    found = list(specializations(module))
    programs = [one.lowered.program for one in found]
    return {
        **run_facts(module),
        "kernels": sum(len(one.launches) for one in found),
        "different_kernels": len({kernel.symbol for one in found for kernel in one.lowered.kernels}),
        "host_nodes": sum(len(one.host_nodes) for one in found),
        "weight_bytes": sum(int(array.nbytes) for program in programs for array in program.weights),
        "arena_bytes": max((int(program.arena_bytes) for program in programs), default=0),
    }


def run_facts(module: Module) -> dict[str, Any]:
    """What a run of a compiled model is made with: what the options of a command line came to."""
    precision = module._executor.precision or ("tf32" if "tf32" in module.target.features else "fp32")
    return {"target": module.target.name, "precision": precision, "threads": module.threads or get_threads()}


def inputs_of(module: Module) -> list[Value]:
    """The inputs of a module as values, for those who make arrays for them."""
    return [
        Value(port.name, TensorType(port.dtype, port.shape) if port.dtype in NUMPY_TYPES else None)
        for port in module.inputs
    ]


def array_facts(array: Any) -> dict[str, Any]:
    """Type, shape and range of a result; a few of its elements."""
    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "length": len(array) if hasattr(array, "__len__") else None}
    facts: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub" or array.dtype.name == "bfloat16":
        wide = array.astype("float64")
        facts |= {"min": wide.min(initial=np.inf), "max": wide.max(initial=-np.inf)}
        facts |= {"mean": wide.mean() if wide.size else float("nan"), "finite": bool(np.isfinite(wide).all())}
    facts["first"] = [str(one) if array.dtype == object else one.item() for one in array.reshape(-1)[:8]]
    return facts


def relative_error(got: Any, want: Any) -> float:
    """The greatest difference relative to the greatest finite element of the reference; inf where they do not fit."""
    if isinstance(want, list) or isinstance(got, list):
        if not isinstance(want, list) or not isinstance(got, list) or len(got) != len(want):
            return float("inf")
        return max((relative_error(a, b) for a, b in zip(got, want)), default=0.0)
    if got is None or want is None:
        return 0.0 if got is want else float("inf")
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return float("inf")
    if b.dtype.kind in "OUSb" or a.dtype.kind in "OUSb":
        return 0.0 if bool((a == b).all()) else float("inf")
    kind = "complex128" if b.dtype.kind == "c" else "float64"
    a, b = a.astype(kind), b.astype(kind)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.abs(a - b))
    if np.isnan(gap).any() or np.isinf(gap).any():
        return float("inf")
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max(initial=0.0)) or 1.0
    return float(gap.max(initial=0.0)) / scale
