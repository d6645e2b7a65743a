"""A compiled model as a library for programs without Python: `export_library(module, folder)`.

plan      what goes into the library, or a sentence that says why the model cannot be one
api       the functions that a C program calls, as LLVM IR
serial    the runtime of machines without our thread pool
tools     assembler, archiver and linkers, for any machine
header    the C header and the example
c_source  C99 for machines without a system
wasm      the JavaScript package around a WebAssembly module
library   all of it, put together

A library needs the C library and its mathematics only: neither Python nor Weft.
"""

from __future__ import annotations

from weft.compiler.export.library import export_library
from weft.compiler.export.plan import ExportError

__all__ = ["ExportError", "export_library"]
