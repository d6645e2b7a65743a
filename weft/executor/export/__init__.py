"""A compiled model as a shared library for C: `export_library(module, folder)`.

plan      what goes into the library, or a sentence that says why the model cannot be one
elf       an object file that holds the weights
api       the functions that a C program calls, as LLVM IR
header    the C header and the example
library   all of it, linked

The library needs the C library and its mathematics only: neither Python nor Weft.
"""

from __future__ import annotations

from weft.executor.export.library import export_library
from weft.executor.export.plan import ExportError

__all__ = ["ExportError", "export_library"]
