"""What a process goes without while it compiles.

A compile makes hundreds of small products (errors of algorithms, folded constants), each in part of a millisecond.
OpenBLAS spreads them over all cores, and its workers then wait for the next one busily: on some processors for seconds,
which is more processor time than all products together take. So numpy gets one thread.
Programs are millions of small objects, hardly ever in circles: Python looks for those less often.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.core import model

_lock = threading.Lock()
_inside = 0
_before = (1, 0)


@functools.lru_cache(maxsize=1)
def _blas() -> tuple[Any, Any] | None:
    """The functions of the OpenBLAS in numpy's wheel that get and set its threads; None where there is none."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        library = ctypes.CDLL(str(path))  # the one that numpy has loaded
        for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
            if hasattr(library, name.format("set")):
                return library[name.format("get")], library[name.format("set")]
    return None


def _set(threads: int, objects: int) -> tuple[int, int]:
    """Sets the threads that numpy takes, and the new objects after which circles are looked for; the values before."""
    blas, (before, *rest) = _blas(), gc.get_threshold()
    gc.set_threshold(objects if before else 0, *rest)  # 0: somebody has turned that off
    if blas is None:
        return threads, before
    used = int(blas[0]())
    blas[1](threads)
    return used, before


@contextmanager
def compiling() -> Iterator[None]:
    """Around a compile; after the last of those that run at once everything is as before."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = _set(1, model.COLLECTED_OBJECTS)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set(*_before)
