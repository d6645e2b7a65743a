"""Layer 1: arrays, the thread pool, and compiled functions. Imports core only; parts load when they are used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.arrays import Array, array, empty, from_dlpack
    from weft.runtime.function import CompiledFunction, Dim, Parameter, Signature
    from weft.runtime.threads import default_threads, get_threads, set_threads
else:
    _HOMES = {
        "arrays": ("Array", "array", "empty", "from_dlpack"),
        "function": ("CompiledFunction", "Dim", "Parameter", "Signature"),
        "threads": ("default_threads", "get_threads", "set_threads"),
    }

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"{__name__}.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


__all__ = [
    "Array",
    "CompiledFunction",
    "Dim",
    "Parameter",
    "Signature",
    "array",
    "default_threads",
    "empty",
    "from_dlpack",
    "get_threads",
    "set_threads",
]
