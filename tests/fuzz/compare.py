"""When two answers are the same, and which differences are explained.

Whole numbers, truth values and texts are equal or not. Floats may differ by rounding: by a part of the largest finite
value of the answer, for another order of a sum. Everything else needs a reason in this file, as narrow as it can be.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows these types)
import numpy as np

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-10}
FORGETFUL = 3e-1
"""For types of a few bits (float8 and less): a step."""


def tolerance(kind: np.dtype) -> float:
    """What rounding may change, as a part of the largest value."""
    return TOLERANCE.get(kind.name, FORGETFUL)


def difference(got: Any, want: Any, factor: float = 1.0) -> str | None:
    """How two answers differ, in a few words that are the same for like differences; None where they do not."""
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return "another number of values"
        found = [difference(a, b, factor) for a, b in zip(got, want)]
        return next((one for one in found if one), None)
    if want is None or got is None:
        return None if want is None and got is None else "one is none"
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"rank {got.ndim} for {want.ndim}" if got.ndim != want.ndim else "another shape"
    if got.dtype != want.dtype and not (got.dtype.kind in "OU" and want.dtype.kind in "OU"):
        return f"{got.dtype} for {want.dtype}"
    if not want.size:
        return None
    if want.dtype.kind in "biuOUS":
        return None if bool((got == want).all()) else "other values"
    return _floats(got, want, factor)


def _floats(got: np.ndarray, want: np.ndarray, factor: float) -> str | None:
    part = tolerance(want.dtype) * factor
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        if (np.isnan(a) != np.isnan(b)).any():
            return "NaN here and a number there"
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max(initial=0.0))
        close = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= part * scale + _tiny(want.dtype))
        if bool((same | close).all()):
            return None
        if (np.isfinite(a) != np.isfinite(b)).any():
            return "infinite here and finite there"
    return "other values"


def _tiny(kind: np.dtype) -> float:
    """Numbers of this size may be flushed to zero."""
    return {"float16": 1e-7, "bfloat16": 1e-37, "float32": 1e-37, "float64": 1e-300}.get(kind.name, 1e-2)


def worst(got: Any, want: Any) -> str:
    """The places where arrays differ most, to read."""
    lines = []
    if isinstance(want, (list, tuple)):
        pairs = list(zip(got, want)) if isinstance(got, (list, tuple)) else []
    else:
        pairs = [(got, want)]
    for number, (a, b) in enumerate(pairs):
        if isinstance(a, (list, tuple)) or a is None or b is None:
            continue
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            lines.append(f"output {number}: {a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}")
        elif difference(a, b):
            with np.errstate(all="ignore"):
                unlike = np.argwhere(~((a == b) | ((a != a) & (b != b))))
            shown = [f"{list(at)}: {a[tuple(at)]!r} for {b[tuple(at)]!r}" for at in unlike[:6]]
            lines.append(f"output {number}, {b.dtype}{list(b.shape)}, {len(unlike)} unlike: " + "; ".join(shown))
    return "\n".join(lines)
