"""Models of module files as the compiler has them: their forms are run, and others compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.compiler.cache.models import NO_MATTER
from weft.compiler.module import Module, make_module
from weft.compiler.precision import check_precision
from weft.compiler.saved.store import only_form, stored_form, stored_graph
from weft.compiler.specialize import Executor
from weft.core.knobs import knobs
from weft.graph.ir import NUMPY_TYPES, Graph, TensorType, Type, Value
from weft.runtime.model.manifest import ModuleFileError
from weft.runtime.model.module_file import ModuleFile
from weft.runtime.model.stored import form_key
from weft.targets.base import Target
from weft.targets.registry import find_target


def load_whole(file: ModuleFile, part: Mapping[str, Any], threads: int | None) -> Module:
    """The module in a file, as the compiler has it.

    What is compiled later is compiled as the model was (and exactly, where this process asks for that).
    """
    import weft.ops  # noqa: F401

    settings = file.manifest["settings"]
    if settings.keys() != knobs.snapshot(without=NO_MATTER).keys():
        raise ModuleFileError(f"its settings are {', '.join(settings)}, which are not those of this Weft")
    with knobs.override(**{**settings, "exact": settings["exact"] or knobs.exact}):
        return _loaded(file, part, threads)


def _loaded(file: ModuleFile, part: Mapping[str, Any], threads: int | None) -> Module:
    manifest, fixed = file.manifest, file.manifest["graph"] is None
    target = _machine(part, file.path)
    graph = _static_graph(file) if fixed else stored_graph(file, manifest["graph"])
    executor = Executor(graph, target, check_precision(part["precision"], target), can_compile=not fixed)
    executor.ranges = {(name, axis): range(*numbers) for name, axis, *numbers in manifest["ranges"]}
    rows = [row for row in part["forms"] if row["key"] is not None]  # that for all sizes is compiled again
    if fixed and [[item[1:] for item in row["key"] if item] for row in rows] != [[[None]] * len(graph.inputs)]:
        raise ModuleFileError("a model of one set of shapes has one form, and that for no values")
    for row in rows:
        if row["open"] is not None:
            raise ModuleFileError("a form for all sizes is kept by the cache alone, or linked")
        key = form_key(row)
        takes = [_taken(value, item) for value, item in zip(graph.inputs, key, strict=True)]
        executor.keep(key, stored_form(file, row, graph, executor, takes))
    return make_module(executor, threads)


def _taken(value: Value, item: Any) -> Type | None:
    """The type of an input in a form, which is for one of the shapes that the model takes."""
    if item is None or not isinstance(value.type, TensorType):
        if item is not None or isinstance(value.type, TensorType):
            raise ModuleFileError(f"the input {value.name!r} is a tensor in the model or in its form, not in both")
        return value.type
    sizes = value.type.shape if value.type.shape is not None else item[0]
    if len(sizes) != len(item[0]) or any(isinstance(d, int) and d != n for d, n in zip(sizes, item[0])):
        raise ModuleFileError(f"the input {value.name!r} is {value.type!r} in the model and {item[0]} in a form")
    return TensorType(value.type.dtype, item[0])


def _machine(part: Mapping[str, Any], path: Path) -> Target:
    """This machine, if the code was made for it or for one that can do less."""
    made, forms = part["target"], part["forms"]
    if any(form["device"] is not None for form in forms) or (not forms and find_target(made["name"]).on_device):
        return _same_device(made, path)
    host = find_target("native")
    wanted = {f for f in part["features"] if not f.startswith("-")}
    if made["triple"] != host.triple:
        raise ModuleFileError(f"{path} was compiled for {made['triple']} and this machine is {host.triple}")
    missing = sorted(wanted - set(host.features))
    if missing:
        raise ModuleFileError(
            f"{path} was compiled for {made['cpu']}, with {', '.join(missing[:8])}, which this machine's processor "
            f"({host.cpu}) has not: compile the model here"
        )
    return host


def _same_device(made: Mapping[str, Any], path: Path) -> Target:
    """The device that a module was compiled for: the one of that name, or the first of its kind if that is alike."""
    name = str(made["name"])
    found = find_target(name)
    if not found.is_host:
        first = find_target(name.partition(":")[0])
        found = first if first.is_host and first.cpu == found.cpu else found
    if (found.triple, found.cpu) != (made["triple"], made["cpu"]):
        raise ModuleFileError(
            f"{path} was compiled for {made['cpu']} ({made['name']}), and {made['name']} is {found.cpu} here: compile "
            "the model here"
        )
    return found


def read_module(
    path: Path, target: Target, precision: str | None, threads: int | None, whole: Callable[[], Graph]
) -> Module:
    """A module of the compiled form in a file that `write_form` wrote; `whole` gives the model, when somebody asks."""
    file = ModuleFile(path)
    executor = Executor(_static_graph(file), target, precision, whole=whole)
    types = [value.tensor.static for value in executor.signature.inputs]
    shapes = {value.name: kind for value, kind in zip(executor.signature.inputs, types)}
    found = only_form(file, executor, shapes, lambda: executor._build(shapes, {}))
    found.kept = path
    executor.keep(tuple((kind, None) for kind in types), found)
    return make_module(executor, threads)


def _static_graph(file: ModuleFile) -> Graph:
    """The signature of a model as a graph without nodes."""
    inputs, outputs = (
        [Value(name, TensorType(dtype, shape) if dtype in NUMPY_TYPES else None) for name, dtype, shape in rows]
        for rows in (file.manifest["inputs"], file.manifest["outputs"])
    )
    if not all(isinstance(value.type, TensorType) and value.type.is_static for value in inputs):
        raise ModuleFileError("a model without its graph has one set of shapes")
    for value in outputs:
        if isinstance(value.type, TensorType) and not value.type.is_static:
            value.type = TensorType(value.type.dtype, None)
    return Graph(file.manifest["name"], inputs, outputs, ())
