"""Layer 1: arrays, the thread pool, and compiled functions. Imports core only."""

from weft.runtime.array import Array, array, empty, from_dlpack
from weft.runtime.function import CompiledFunction, Dim, Parameter, Signature
from weft.runtime.threads import default_threads, get_threads, set_threads

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
