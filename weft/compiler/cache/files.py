"""A model's file to a module: from the cache where the same file was compiled before, else read and compiled.

The module does not hold the file's weights beside those that kernels read: the file has them, and is read again when
somebody asks for the model itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from weft.compiler.cache.models import FileEntry, file_entry
from weft.compiler.module import Module, Shapes, bind_shapes, compile_graph
from weft.compiler.precision import check_precision, machine_of, with_threads
from weft.compiler.saved.load import read_module
from weft.compiler.tuned import tuned
from weft.core.errors import WeftError
from weft.graph.ir import Graph
from weft.runtime.cache_folder import mark_used, read_or_remove
from weft.runtime.compiling import compiling
from weft.targets.base import Target


def compile_file(
    path: str | os.PathLike[str],
    read: Callable[[Any], Graph],
    target: str | Target,
    shapes: Shapes | None,
    precision: str | None,
    threads: int | None,
) -> Module:
    """A module of a model's file; `read` makes the graph."""
    machine = machine_of(target, precision)
    wanted = check_precision(precision, machine)
    with tuned(machine):
        return _compiled(path, read, with_threads(machine, threads), shapes, wanted, threads)


@compiling()
def _compiled(
    path: str | os.PathLike[str],
    read: Callable[[Any], Graph],
    machine: Target,
    shapes: Shapes | None,
    wanted: str | None,
    threads: int | None,
) -> Module:
    entry = file_entry(path, shapes, machine, wanted)

    def whole() -> Graph:
        if entry is not None and not entry.is_same():
            raise WeftError(f"{path} was changed or replaced since it was compiled; compile it again")
        return bind_shapes(read(path), shapes)

    found = None if entry is None else _from_cache(entry, machine, wanted, threads, whole)
    if found is not None:
        return found
    module = compile_graph(read(path), machine, shapes, wanted, threads)
    module._executor.release(whole)
    if entry is not None and module._executor.is_static:
        for one in module.specializations:
            if one.kept is not None:
                entry.keep(one.kept)
    return module


def _from_cache(
    entry: FileEntry, machine: Target, precision: str | None, threads: int | None, whole: Callable[[], Graph]
) -> Module | None:
    form = entry.find()
    if form is None:
        return None
    module = read_or_remove(form, lambda: read_module(form, machine, precision, threads, whole))
    if module is not None:
        mark_used(form)
        for one in module.specializations:
            module._warn(one)
    return module
