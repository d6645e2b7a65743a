"""numpy's products in one thread, while a model is compiled.

A compile makes hundreds of small products (errors of algorithms, folded constants), each in a fraction of a millisecond.
OpenBLAS spreads them over all cores, and its workers then wait for the next one busily: on some processors for seconds,
which is more processor time than all products together take.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_lock = threading.Lock()
_inside, _before = 0, 1


@functools.lru_cache(maxsize=1)
def _library() -> tuple[Any, Any] | None:
    """The functions of the OpenBLAS in numpy's wheel that get and set its threads; None where there is none."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        library = ctypes.CDLL(str(path))  # the one that numpy has loaded
        for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
            if hasattr(library, name.format("set")):
                return library[name.format("get")], library[name.format("set")]
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, products take one thread, in this process; after the last one that is inside, as many as before."""
    global _inside, _before
    found = _library()
    if found is None:
        yield
        return
    count, choose = found
    with _lock:
        if not _inside:
            _before = count()
            choose(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                choose(_before)
