"""Weft: an optimizing compiler for deep learning, in Python.

    from weft import te                  describe a computation
    s = te.create_schedule(C.op)         say how to run it
    f = weft.build(s, [A, B, C])         get machine code

Modules load when they are first used, so that importing weft is quick.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from weft.core import hooks
from weft.core.errors import WeftError
from weft.core.install import MEND, NEEDED, clashes, hint
from weft.core.version import VERSION

if TYPE_CHECKING:
    # What `_LAZY` loads, for type checkers and editors.
    from weft import models, onnx_backend, te
    from weft.builder import build, lower
    from weft.compiler import compile
    from weft.core import errors
    from weft.core.knobs import knobs
    from weft.graph.opspec import register_operator
    from weft.graph.opspec import register_operator as register_op
    from weft.loop.interpreter import interpret
    from weft.quantization import quantize
    from weft.runtime.model.module import HostWarning, Module
    from weft.runtime.model.stored import load
    from weft.runtime.threads import get_threads, set_threads
    from weft.tuner import tune

__version__ = VERSION
logging.getLogger("weft").addHandler(logging.NullHandler())

_LAZY = {
    "HostWarning": ("weft.runtime.model.module", "HostWarning"),
    "Module": ("weft.runtime.model.module", "Module"),
    "build": ("weft.builder", "build"),
    "lower": ("weft.builder", "lower"),
    "compile": ("weft.compiler", "compile"),
    "load": ("weft.runtime.model.stored", "load"),
    "models": ("weft.models", None),
    "onnx_backend": ("weft.onnx_backend", None),
    "quantize": ("weft.quantization", "quantize"),
    "register_op": ("weft.graph.opspec", "register_operator"),
    "register_operator": ("weft.graph.opspec", "register_operator"),
    "te": ("weft.te", None),
    "tune": ("weft.tuner", "tune"),
    "errors": ("weft.core.errors", None),
    "knobs": ("weft.core.knobs", "knobs"),
    "interpret": ("weft.loop.interpreter", "interpret"),
    "set_threads": ("weft.runtime.threads", "set_threads"),
    "get_threads": ("weft.runtime.threads", "get_threads"),
}

if not TYPE_CHECKING:  # a type checker that saw it would take any name for an attribute

    def __getattr__(name):
        found = _LAZY.get(name)
        if found is None:
            message = f"module 'weft' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        try:
            module = importlib.import_module(found[0])
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package not in NEEDED:
                raise
            message = f"weft.{name} is a part of the compiler, which needs {package}: {hint()}"
            raise ModuleNotFoundError(message, name=package) from None
        value = module if found[1] is None else getattr(module, found[1])
        globals()[name] = value
        return value


def _find_target(like: Any) -> Any:
    from weft.targets.registry import find_target

    return find_target(like)


def _records(target: Any) -> Any:
    from weft.tuner import records_for

    return records_for(target)


def _compile_tuned(*arguments: Any, **named: Any) -> Any:
    from weft.tuner.model import compile_tuned

    return compile_tuned(*arguments, **named)


def _load(*arguments: Any, **named: Any) -> Any:
    from weft.runtime.model.stored import load

    return load(*arguments, **named)


def _load_whole(*arguments: Any) -> Any:
    from weft.compiler.saved.load import load_whole

    return load_whole(*arguments)


def _stored_graph(text: str, constants: Any) -> Any:
    import weft.ops  # noqa: F401
    from weft.graph.interpreter import Interpreter
    from weft.graph.text import parse_graph

    graph, player = parse_graph(text, constants), Interpreter()
    return graph, lambda arrays: player.run(graph, arrays, {})


hooks.find_target, hooks.records, hooks.compile_tuned = _find_target, _records, _compile_tuned
hooks.load, hooks.load_whole, hooks.stored_graph = _load, _load_whole, _stored_graph


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "HostWarning", "Module", "WeftError", "__version__", "build", "compile", "errors", "get_threads", "interpret",
    "knobs", "load", "lower", "models", "onnx_backend", "quantize", "register_op", "register_operator",
    "set_threads", "te", "tune",
]  # fmt: skip


def _look_around() -> None:
    """What has to be said or done before anything is used: another project among our files, WEFT_DEBUG."""
    for other in clashes():
        if not other.is_ours:
            warnings.warn(f"{other}. To mend it: {MEND}", stacklevel=3)
    if "WEFT_DEBUG" in os.environ:
        from weft.core.knobs import KnobError, knobs

        try:
            knobs.follow(["debug"])
        except KnobError as problem:
            warnings.warn(str(problem), stacklevel=3)


_look_around()
