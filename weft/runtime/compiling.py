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
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from weft.core import model

_lock = threading.Lock()
_inside = 0
_before = (1, 0)


@functools.lru_cache(maxsize=1)
def _blas() -> ctypes.c_int | None:
    """How many threads the OpenBLAS in numpy's wheel takes, where it keeps that; None where there is none.

    Its function to say so would start the threads again that a fork has ended, and each waits busily for 2^26 cycles.
    """
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        with suppress(ValueError):  # of another kind
            return ctypes.c_int.in_dll(ctypes.CDLL(str(path)), "blas_cpu_number")  # the one that numpy has loaded
    return None


def _set(threads: int, objects: int) -> tuple[int, int]:
    """Sets the threads that numpy takes, and the new objects after which circles are looked for; the values before."""
    blas, (before, *rest) = _blas(), gc.get_threshold()
    gc.set_threshold(objects if before else 0, *rest)  # 0: somebody has turned that off
    if blas is None:
        return threads, before
    used, blas.value = blas.value, threads
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
