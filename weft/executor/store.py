"""The module file: a zip of a manifest, object code and weights.

    manifest.json    format version, target, the model's signature, for each set of shapes its steps      deflated
    graph.txt        the model itself, where other shapes may still come (see `weft.graph.text`)          deflated
    code/N.o         object code of kernels and drivers                                                  deflated
    weights.bin      every array, at offsets that are multiples of 64                                    stored

Arrays of strings stand in the manifest. With each set of shapes goes the report that was made when it was compiled.
Nothing in it is executed but the object code, which is checked to be for this machine. Weights are mapped, not read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.core.errors import WeftError
from weft.core.version import VERSION
from weft.executor.device import DeviceRunner
from weft.executor.device_store import programs_of, programs_row
from weft.executor.lower import Lowered
from weft.executor.module import Module, make_module
from weft.executor.native import Call
from weft.executor.report import form_lines
from weft.executor.run import Runner
from weft.executor.specialize import Executor, NativeCode, Specialization
from weft.executor.steps import HostStep, NativeStep, Program, RestStep, Step
from weft.executor.weights import prefer_large_pages
from weft.graph.ir import NUMPY_TYPES, Array, Graph, TensorType, Value, dtype_name
from weft.graph.text import constant_table, format_graph, parse_graph
from weft.runtime.fingerprint import fingerprint
from weft.targets.base import Target
from weft.targets.registry import find_target

FORMAT = 3
"""Goes up when the content changes; a file of another format is refused."""
ALIGNMENT = 64


class ModuleFileError(WeftError, ValueError):
    """A file that is no module of this version and machine, or is damaged."""


class StoredForm(Specialization):
    """A compiled form that was read from a file; `summary` is its report, made when it was compiled."""

    def __init__(self, summary: list[str], *parts: Any) -> None:
        super().__init__(*parts)
        self.summary = summary


# ----------------------------------------------------------------------------------------------------------- saving


class _Arrays:
    """The arrays of a file, each once, at aligned offsets."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.arrays: list[Array] = []
        self.size = 0
        self._known: dict[int, int] = {}

    def add(self, array: Array) -> int:
        """The number of an array in the file."""
        found = self._known.get(id(array))
        if found is not None:
            return found
        number = len(self.rows)
        if array.dtype == object:
            # Kept alive with the others: an array is known by its identity.
            self.arrays.append(array)
            self.rows.append({"dtype": "string", "shape": list(array.shape), "strings": _texts(array)})
            self._known[id(array)] = number
            return number
        row = {"dtype": dtype_name(array.dtype), "shape": list(array.shape), "offset": self.size}
        row["check"] = fingerprint(array).hex()
        self.rows.append(row)
        self.arrays.append(array)
        self.size += -(-max(array.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._known[id(array)] = number
        return number


def _texts(array: Array) -> list[str]:
    """The strings of an array; what is no string cannot be written."""
    for one in array.reshape(-1):
        if not isinstance(one, str):
            raise ModuleFileError(f"a model with constant objects that are no strings cannot be saved: {one!r}")
    return [str(one) for one in array.reshape(-1)]


def save_module(module: Module, path: str | os.PathLike[str]) -> None:
    """Writes a module; the file appears whole or not at all."""
    executor = module._executor
    arrays = _Arrays()
    codes: list[bytes] = []
    forms = [_form(key, one, arrays, codes) for key, one in executor.items()]
    fixed = len(forms) == 1 and executor.is_static
    graph = _signature(executor) if fixed else executor.graph
    manifest = {**_head(executor), "static": fixed, "graph": _graph_row(graph, arrays), "forms": forms}
    _write(Path(path), manifest, arrays, codes)


def write_form(path: str | os.PathLike[str], executor: Executor, one: Specialization) -> None:
    """Writes one compiled form alone, as the cache keeps it."""
    arrays = _Arrays()
    codes: list[bytes] = []
    forms = [_form((), one, arrays, codes)]
    manifest = {**_head(executor), "static": True, "graph": _graph_row(_signature(executor), arrays), "forms": forms}
    _write(Path(path), manifest, arrays, codes)


def _signature(executor: Executor) -> Graph:
    """The inputs alone, as a graph that text can hold; the outputs stand beside it."""
    return Graph(executor.signature.name, executor.signature.inputs, executor.signature.inputs, ())


def _head(executor: Executor) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "weft": VERSION,
        "target": {"name": executor.target.name, "triple": executor.target.triple, "cpu": executor.target.cpu},
        "features": sorted(executor.target.features),
        "precision": executor.precision,
        "outputs": [[v.name, repr(v.type)] for v in executor.signature.outputs],
    }


def _write(target: Path, manifest: dict[str, Any], arrays: _Arrays, codes: Sequence[bytes]) -> None:
    """The file, beside its place first: it appears whole or not at all."""
    manifest["digests"] = [hashlib.sha256(code).hexdigest() for code in codes]
    manifest["arrays"] = arrays.rows
    handle, temporary = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, code in enumerate(codes):
                archive.writestr(f"code/{number}.o", code)
            manifest["start"] = _write_arrays(archive, arrays)
            archive.writestr("manifest.json", json.dumps(manifest))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_arrays(archive: zipfile.ZipFile, arrays: _Arrays) -> int:
    """Writes the weights; gives the number of bytes before the first, so that it is aligned in the file."""
    info = zipfile.ZipInfo("weights.bin")
    info.compress_type = zipfile.ZIP_STORED
    with archive.open(info, "w", force_zip64=True) as member:
        assert archive.fp is not None
        pad = -archive.fp.tell() % ALIGNMENT
        member.write(bytes(pad))
        for array in arrays.arrays:
            if array.dtype == object:
                continue
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            member.write(raw.data)
            member.write(bytes(-(-max(raw.size, 1) // ALIGNMENT) * ALIGNMENT - raw.size))
    return pad


def _graph_row(graph: Graph, arrays: _Arrays) -> dict[str, Any]:
    return {
        "text": format_graph(graph),
        "constants": {name: arrays.add(array) for name, array in constant_table(graph).items()},
    }


def _form(key: Any, one: Specialization, arrays: _Arrays, codes: list[bytes]) -> dict[str, Any]:
    """One set of shapes as the manifest keeps it."""
    program = one.runner.program
    first = len(codes)
    codes.extend(one.native.objects())
    device = programs_row(one.runner.kernels) if isinstance(one.runner, DeviceRunner) else None
    return {
        "key": [None if item is None else [list(item[0]), None if item[1] is None else item[1].hex()] for item in key],
        "code": list(range(first, len(codes))),
        "externals": one.native.externals,
        "device": device,
        "inputs": program.inputs,
        "outputs": program.outputs,
        "count": program.count,
        "constants": {str(number): arrays.add(array) for number, array in program.constants.items()},
        "weights": [arrays.add(array) for array in program.weights],
        "arena": program.arena_bytes,
        "unshared": program.unshared_bytes,
        "steps": [_step_row(step, arrays, device is not None) for step in program.steps],
        "last_use": program.last_use,
        "in_place": program.in_place,
        "report": form_lines(one),
    }


def _step_row(step: Step, arrays: _Arrays, with_calls: bool) -> dict[str, Any]:
    if isinstance(step, NativeStep):
        makes = [[number, kind.dtype, list(kind.static)] for number, kind in step.makes]
        row = {"native": step.symbol, "bases": step.bases, "makes": makes, "kernels": step.kernels}
        return {**row, "calls": [[call.symbol, call.arguments] for call in step.calls]} if with_calls else row
    if isinstance(step, RestStep):
        return {"rest": _graph_row(step.executor.graph, arrays), "inputs": step.inputs, "outputs": step.outputs}
    node = step.node
    outside = dict.fromkeys([*(v for v in node.inputs if v is not None), *(v for v, _ in step.captured)])
    graph = Graph("host", list(outside), node.outputs, [node], {})
    numbers = {v: n for v, n in zip(node.inputs, step.inputs) if v is not None}
    numbers.update(dict(step.captured))
    return {
        "host": _graph_row(graph, arrays),
        "inputs": [numbers[v] for v in outside],
        "outputs": step.outputs,
        "reason": step.reason,
    }


# ---------------------------------------------------------------------------------------------------------- loading

_DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file may raise."""


class _File:
    """An opened module file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.archive = zipfile.ZipFile(path)
            self.manifest = json.loads(self.archive.read("manifest.json"))
        except OSError as error:
            raise ModuleFileError(f"{path} cannot be opened: {error}") from None
        except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError) as error:
            raise ModuleFileError(f"{path} is no Weft module, or it is damaged: {error}") from None
        if not isinstance(self.manifest, dict) or self.manifest.get("format") != FORMAT:
            found = self.manifest.get("format") if isinstance(self.manifest, dict) else None
            writer = self.manifest.get("weft", "of unknown version") if isinstance(self.manifest, dict) else "?"
            raise ModuleFileError(
                f"{path} has format {found!r}, written by Weft {writer}; this one ({VERSION}) reads format {FORMAT}: "
                "compile the model again and save it"
            )
        self.memory = self._map()
        self._arrays: dict[int, Array] = {}

    def _map(self) -> memoryview:
        """The weights as mapped memory; every array is compared with its fingerprint when it is first asked for."""
        info = self.archive.getinfo("weights.bin")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ModuleFileError(f"{self.path} is damaged: its weights are compressed")
        with open(self.path, "rb") as file:
            file.seek(info.header_offset)
            header = file.read(30)
            names, extra = struct.unpack("<HH", header[26:30])
            start = info.header_offset + 30 + names + extra
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        prefer_large_pages(mapped)
        whole = memoryview(mapped)
        data = whole[start : start + info.file_size]
        if len(data) != info.file_size:
            raise ModuleFileError(f"{self.path} is damaged: it ends within its weights")
        return data[self.manifest["start"] :]

    def array(self, number: int) -> Array:
        """An array over the mapped memory."""
        found = self._arrays.get(number)
        if found is not None:
            return found
        row = self.manifest["arrays"][number]
        kind = NUMPY_TYPES[row["dtype"]]
        shape = tuple(int(size) for size in row["shape"])
        if kind == np.dtype(object):
            self._arrays[number] = texts = np.array([str(one) for one in row["strings"]], object).reshape(shape)
            return texts
        count = int(np.prod(shape, dtype=np.int64))
        made: Array = np.frombuffer(self.memory, kind, count, int(row["offset"])).reshape(shape)
        if fingerprint(made).hex() != row["check"]:
            raise ModuleFileError(f"{self.path} is damaged: its weights are not what was written")
        self._arrays[number] = made
        return made

    def graph(self, row: Mapping[str, Any]) -> Graph:
        """A graph from its text and arrays."""
        return parse_graph(row["text"], {name: self.array(number) for name, number in row["constants"].items()})

    def code(self, number: int) -> bytes:
        """An object file, which must be the one that was written: LLVM trusts what it is given."""
        code = self.archive.read(f"code/{number}.o")
        if hashlib.sha256(code).hexdigest() != self.manifest["digests"][number]:
            raise ModuleFileError(f"{self.path} is damaged: code/{number}.o is not what was written")
        return code


def load_module(path: str | os.PathLike[str], threads: int | None = None) -> Module:
    """The module in a file."""
    import weft.ops  # noqa: F401

    file = _File(Path(path))
    try:
        return _load(file, threads)
    except WeftError:
        raise
    except _DAMAGE as error:
        raise ModuleFileError(f"{path} is damaged: {error!r}") from None


def _load(file: _File, threads: int | None) -> Module:
    manifest = file.manifest
    target = _machine(manifest, file.path)
    graph = _static_graph(file) if manifest["static"] else file.graph(manifest["graph"])
    executor = Executor(graph, target, manifest["precision"], can_compile=not manifest["static"])
    for row in manifest["forms"]:
        key = tuple(
            None if item is None else (tuple(item[0]), None if item[1] is None else bytes.fromhex(item[1]))
            for item in row["key"]
        )
        executor.keep(key, _specialization(file, row, graph, executor))
    return make_module(executor, threads)


def _tensor_type(text: str) -> TensorType | None:
    """The type that a manifest's text stands for, as far as it is plain: float32[1, 10]."""
    name, _, rest = text.partition("[")
    dims = rest.rstrip("]").split(",") if rest.rstrip("]").strip() else []
    if name not in NUMPY_TYPES or not all(d.strip().isdigit() for d in dims):
        return TensorType(name, None) if name in NUMPY_TYPES else None
    return TensorType(name, [int(d) for d in dims])


def _machine(manifest: Mapping[str, Any], path: Path) -> Target:
    """This machine, if the code was made for it or for one that can do less."""
    made = manifest["target"]
    if any(form.get("device") is not None for form in manifest["forms"]):
        return _same_device(made, path)
    host = find_target("native")
    wanted = {f for f in manifest["features"] if not f.startswith("-")}
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
    file = _File(path)
    try:
        executor = Executor(_static_graph(file), target, precision, whole=whole)
        types = [value.tensor.static for value in executor.signature.inputs]
        shapes = {value.name: kind for value, kind in zip(executor.signature.inputs, types)}
        row = file.manifest["forms"][0]
        found = _specialization(file, row, None, executor, lambda: executor._build(shapes, {}))
    except WeftError:
        raise
    except _DAMAGE as error:
        raise ModuleFileError(f"{path} is damaged: {error!r}") from None
    found.kept = path
    executor.keep(tuple((kind, None) for kind in types), found)
    return make_module(executor, threads)


def _static_graph(file: _File) -> Graph:
    graph = file.graph(file.manifest["graph"])
    return graph.replace(outputs=[Value(name, _tensor_type(text)) for name, text in file.manifest["outputs"]])


def read_form(path: Path, executor: Executor, rebuild: Callable[[], Specialization]) -> Specialization:
    """The compiled form in a file that `write_form` wrote."""
    file = _File(path)
    try:
        return _specialization(file, file.manifest["forms"][0], None, executor, rebuild)
    except WeftError:
        raise
    except _DAMAGE as error:
        raise ModuleFileError(f"{path} is damaged: {error!r}") from None


def _specialization(
    file: _File,
    row: Mapping[str, Any],
    graph: Graph | None,
    executor: Executor,
    rebuild: Callable[[], Specialization] | None = None,
) -> Specialization:
    steps = [_step(file, one, executor) for one in row["steps"]]
    program = Program(
        list(row["inputs"]),
        list(row["outputs"]),
        int(row["count"]),
        {int(number): file.array(at) for number, at in row["constants"].items()},
        [file.array(at) for at in row["weights"]],
        int(row["arena"]),
        int(row["unshared"]),
        steps,
        [list(values) for values in row["last_use"]],
        int(row["in_place"]),
    )
    engine = None

    def objects() -> list[bytes]:
        return [file.code(number) for number in row["code"]]

    if row["code"] and row.get("device") is None:
        names = [step.symbol for step in steps if isinstance(step, NativeStep)]
        engine = llvm_compile.load(objects(), names, row["externals"], executor.target)
    lowered = None if graph is None else Lowered(program, [], [], [])
    native = NativeCode(objects, list(row["externals"]))
    runner: Runner | DeviceRunner = (
        Runner(program, engine, executor._inner)
        if row.get("device") is None
        else DeviceRunner(program, programs_of(row["device"]), executor.target, executor._inner, codes=objects())
    )
    return StoredForm([str(line) for line in row["report"]], graph, lowered, runner, native, rebuild)


def _step(file: _File, row: Mapping[str, Any], executor: Executor) -> Step:
    if "native" in row:
        makes = [(int(n), TensorType(dtype, [int(s) for s in shape])) for n, dtype, shape in row["makes"]]
        bases = [(kind, int(n)) for kind, n in row["bases"]]
        calls = tuple(Call(symbol, tuple((int(b), int(at)) for b, at in args)) for symbol, args in row.get("calls", ()))
        return NativeStep(row["native"], bases, makes, list(row["kernels"]), calls)
    if "rest" in row:
        return RestStep(executor.rest(file.graph(row["rest"])), list(row["inputs"]), list(row["outputs"]))
    graph = file.graph(row["host"])
    (node,) = graph.nodes
    numbers = dict(zip(graph.inputs, row["inputs"], strict=True))
    own = set(node.inputs)
    captured = [(value, number) for value, number in numbers.items() if value not in own or node.graphs]
    inputs = [None if v is None else int(numbers[v]) for v in node.inputs]
    return HostStep(node, inputs, list(row["outputs"]), captured, row["reason"])
