"""Weft: an optimizing compiler for deep learning, in Python.

    from weft import te                  describe a computation
    s = te.create_schedule(C.op)         say how to run it
    f = weft.build(s, [A, B, C])         get machine code

Modules load when they are first used, so that importing weft is quick.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from weft.core.errors import WeftError
from weft.core.version import VERSION

if TYPE_CHECKING:
    from weft import te as te
    from weft.build import build as build
    from weft.build import lower as lower

__version__ = VERSION
logging.getLogger("weft").addHandler(logging.NullHandler())

_LAZY = {
    "build": ("weft.build", "build"),
    "lower": ("weft.build", "lower"),
    "compile": ("weft.executor", "compile"),
    "load": ("weft.executor", "load"),
    "models": ("weft.models", None),
    "onnx_backend": ("weft.onnx_backend", None),
    "quantize": ("weft.quantization", "quantize"),
    "register_operator": ("weft.graph.opspec", "register_operator"),
    "te": ("weft.te", None),
    "errors": ("weft.core.errors", None),
    "knobs": ("weft.core.knobs", "knobs"),
    "interpret": ("weft.loop.interpreter", "interpret"),
    "set_threads": ("weft.runtime.threads", "set_threads"),
    "get_threads": ("weft.runtime.threads", "get_threads"),
}


def __getattr__(name: str) -> Any:
    found = _LAZY.get(name)
    if found is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    module = importlib.import_module(found[0])
    value = module if found[1] is None else getattr(module, found[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = ["WeftError", "__version__", "build", "interpret", "knobs", "lower", "te"]
