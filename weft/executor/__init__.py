"""Layer 7: a graph and a target in, a module out: kernels, memory plan, native calls, the module file.

program      a fused group as a tensor program
kernels      tensor programs to machine code, each once; constants packed ahead
lower        what runs where: kernels, host nodes, parts that wait for shapes
memory       the arena
native       drivers that call kernels in order
run          one call
specialize   a graph compiled for the shapes that it meets
bodies       subgraphs of control flow, compiled once that is worth it; turns: loops around them in native code
cache        compiled models on disk
constants    weights that are let go of, and come back when asked for
fastcall     the short way through a call
inplace      outputs that may lie in the memory of an input
module       what the user holds
store        the module file
export       a shared library for C
profile      the time of every kernel inside whole runs; cost counts what each has to do
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.knobs import knobs
from weft.executor.files import compile_file
from weft.executor.module import HostWarning, Module, compile_graph
from weft.graph.ir import Graph
from weft.targets.base import Target

__all__ = ["HostWarning", "Module", "compile", "load"]


def compile(
    model: Any,
    target: str | Target = "auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str | None = None,
    threads: int | None = None,
    exact: bool | None = None,
) -> Module:
    """A model as a module to call.

    `model` is a Graph, or an ONNX model: a path, its bytes, or a ModelProto. `shapes` binds symbolic sizes of inputs
    now; those left open are bound when the module is first called. `threads` is the default of its calls. `exact` turns
    off what rounds otherwise than plain float32 sums do (docs/precision.md); without it the knob of that name decides.
    """
    if exact is not None:
        with knobs.override(exact=exact):
            return compile(model, target, shapes, precision, threads)
    import weft.ops  # noqa: F401  (fills the table of operators)

    if not isinstance(model, Graph):
        from weft.frontends.onnx import load as load_onnx

        if isinstance(model, (str, os.PathLike)):
            return compile_file(model, load_onnx, target, shapes, precision, threads)
        model = load_onnx(model)
    return compile_graph(model, target, shapes, precision, threads)


def load(path: str | os.PathLike[str], threads: int | None = None) -> Module:
    """The module that `Module.save` wrote."""
    from weft.executor.store import load_module

    return load_module(path, threads)
