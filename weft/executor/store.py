"""The module file: a zip of a manifest, object code and weights, and at its end a checksum.

    manifest.json    format, ABI, target, the model's signature, for each set of shapes its steps         deflated
    code/N.o         object code of kernels and drivers                                                  deflated
    weights.bin      every array, at offsets that are multiples of 64                                    stored
    (the zip's comment, the last bytes of the file)     checksum of all before it, and a signature where it has one

Arrays of strings stand in the manifest. With each set of shapes goes the report that was made when it was compiled.
A file is as dangerous as a shared library: its object code is run. What protects the reader, in this order, before any
of it is mapped: the checksum, the signature where a key is given, format and ABI, and `check_file`, which believes no
number of the manifest. Weights are mapped, not read.
"""

from __future__ import annotations

import functools
import hmac
import json
import math
import mmap
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.core.version import VERSION
from weft.executor.abi import FORMAT, abi_hash
from weft.executor.cache import NO_MATTER
from weft.executor.check_file import (
    ModuleFileError,
    ProgramCheck,
    check_calls,
    check_host_graph,
    check_manifest,
    made_type,
)
from weft.executor.device import DeviceRunner
from weft.executor.device_store import programs_of, programs_row, programs_seal
from weft.executor.keys import Key, read_key, signature_of
from weft.executor.lower import Lowered, last_uses, step_values
from weft.executor.module import Module, make_module
from weft.executor.native import Call
from weft.executor.open_checks import Check, Conditions
from weft.executor.precision import check_precision
from weft.executor.report import form_lines
from weft.executor.run import OpenRunner, Runner
from weft.executor.specialize import Executor, NativeCode, Specialization
from weft.executor.steps import HostStep, NativeStep, Program, RestStep, Step
from weft.executor.weights import prefer_large_pages
from weft.graph.ir import NUMPY_TYPES, Array, Graph, TensorType, Type, Value, dtype_name
from weft.graph.text import constant_table, format_graph, parse_graph
from weft.runtime.cache_folder import write_whole
from weft.runtime.fingerprint import fingerprint
from weft.targets.base import Target
from weft.targets.registry import find_target

__all__ = [
    "ModuleFileError", "check_signature", "load_module", "read_form", "read_module", "save_module", "sign_module",
    "write_form", "write_model",
]  # fmt: skip

ALIGNMENT = 64
_TRAILER = "weft module: checksum {checksum:64} signature {signature:64}\n"
_TRAILER_BYTES = len(_TRAILER.format(checksum="", signature=""))
_UNSIGNED = "-" * 64

MOST_SWELLING, MOST_SMALL = 100, 1 << 24
"""A packed member may be so many times as large when it is read, and so many bytes more."""

T = TypeVar("T")


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
        self.rows.append(row)
        self.arrays.append(array)
        self.size += _padded(array.nbytes)
        self._known[id(array)] = number
        return number


def _padded(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def _texts(array: Array) -> list[str]:
    """The strings of an array; what is no string cannot be written."""
    for one in array.reshape(-1):
        if not isinstance(one, str):
            raise ModuleFileError(f"a model with constant objects that are no strings cannot be saved: {one!r}")
    return [str(one) for one in array.reshape(-1)]


def save_module(module: Module, path: str | os.PathLike[str]) -> None:
    """Writes a module; the file appears whole or not at all, behind a link where the path is one."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise ModuleFileError(f"{os.fspath(path)!r} is a folder or a device: a module is saved to a file")
    executor = module._executor
    arrays = _Arrays()
    codes: list[bytes] = []
    forms = [_form(key, one, arrays, codes) for key, one in executor.items()]
    fixed = len(forms) == 1 and executor.is_static
    graph = _signature(executor) if fixed else executor.graph
    manifest = {**_head(executor), "static": fixed, "graph": _graph_row(graph, arrays), "forms": forms}
    _write(place, manifest, arrays, codes)


def write_model(path: Path, executor: Executor) -> None:
    """Writes a model without compiled forms: whoever loads it compiles it as it would be compiled here."""
    arrays = _Arrays()
    manifest = {**_head(executor), "static": False, "graph": _graph_row(executor.graph, arrays), "forms": []}
    _write(path, manifest, arrays, [])


def write_form(path: Path, executor: Executor, one: Specialization) -> None:
    """Writes one compiled form alone, as the cache keeps it: under a name that says for which shapes."""
    arrays = _Arrays()
    codes: list[bytes] = []
    forms = [_form((), one, arrays, codes)]
    manifest = {**_head(executor), "static": True, "graph": _graph_row(_signature(executor), arrays), "forms": forms}
    _write(path, manifest, arrays, codes)


def _signature(executor: Executor) -> Graph:
    """The inputs alone, as a graph that text can hold; the outputs stand beside it."""
    return Graph(executor.signature.name, executor.signature.inputs, executor.signature.inputs, ())


def _head(executor: Executor) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "abi": abi_hash(),
        "weft": VERSION,
        "target": {"name": executor.target.name, "triple": executor.target.triple, "cpu": executor.target.cpu},
        "features": sorted(executor.target.features),
        "precision": executor.precision,
        "settings": executor.settings,
        "outputs": [[v.name, repr(v.type)] for v in executor.signature.outputs],
    }


def _write(target: Path, manifest: dict[str, Any], arrays: _Arrays, codes: Sequence[bytes]) -> None:
    """The file: it appears whole or not at all."""
    manifest["arrays"] = arrays.rows
    with write_whole(target) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, code in enumerate(codes):
                archive.writestr(f"code/{number}.o", code)
            manifest["start"] = _write_arrays(archive, arrays)
            archive.writestr("manifest.json", json.dumps(manifest))
            archive.comment = bytes(_TRAILER_BYTES)
        _close(file, _UNSIGNED)


def _close(file: BinaryIO, signature: str) -> None:
    """Fills the last bytes of a file: its checksum, and the signature."""
    file.flush()
    size = file.seek(0, os.SEEK_END) - _TRAILER_BYTES
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as whole:
        checksum = fingerprint(whole[:size]).hex()
    file.seek(size)
    file.write(_TRAILER.format(checksum=checksum, signature=signature).encode())


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
            member.write(bytes(_padded(raw.size) - raw.size))
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
    steps = [_step_row(step, arrays, device is not None) for step in program.steps]
    opened = _open_row(program, one.runner.conditions, arrays) if isinstance(one.runner, OpenRunner) else None
    if device is not None:
        device["seal"] = programs_seal(device, steps)
    return {
        "key": [None if item is None else [list(item[0]), None if item[1] is None else item[1].hex()] for item in key],
        "code": list(range(first, len(codes))),
        "externals": one.native.externals,
        "device": device,
        "inputs": program.inputs,
        "outputs": program.outputs,
        "constants": {str(number): arrays.add(array) for number, array in program.constants.items()},
        "weights": [arrays.add(array) for array in program.weights],
        "arena": program.arena_bytes,
        "unshared": program.unshared_bytes,
        "steps": steps,
        "in_place": program.in_place,
        "updates": [list(pair) for pair in program.updates],
        "report": form_lines(one),
        "open": opened,
    }


def _open_row(program: Program, conditions: Conditions, arrays: _Arrays) -> dict[str, Any]:
    """What a form for all sizes has beyond others. Only the cache keeps it: a module's file has numbers to check."""
    checks = []
    for check in conditions.checks:
        names = [None if v is None else f"x{at}" for at, v in enumerate(check.node.inputs)]
        inputs = [None if n is None else Value(n, kind) for n, kind in zip(names, check.inputs)]
        outputs = [Value(f"y{at}", kind) for at, kind in enumerate(check.outputs)]
        node = check.node.replace(inputs=inputs, outputs=outputs)
        given = [v for v in inputs if v is not None]
        values = {str(at): arrays.add(array) for at, array in enumerate(check.values) if array is not None}
        row = _graph_row(Graph("check", given, outputs, [node]), arrays)
        checks.append({"node": row, "values": values, "unread": list(check.unread)})
    promised = {str(number): list(shape) for number, shape in program.promised.items()}
    return {"numbers": program.numbers, "promised": promised, "names": list(conditions.names), "checks": checks}


def _conditions(file: _File, row: Mapping[str, Any]) -> Conditions:
    checks = []
    for one in row["checks"]:
        (node,) = file.graph(one["node"]).nodes
        inputs = tuple(None if v is None else v.tensor for v in node.inputs)
        known = {int(at): file.array(number) for at, number in one["values"].items()}
        values = tuple(known.get(at) for at in range(len(inputs)))
        checks.append(Check(node, inputs, tuple(v.tensor for v in node.outputs), values, tuple(one["unread"])))
    return Conditions(row["names"], checks)


def _step_row(step: Step, arrays: _Arrays, with_calls: bool) -> dict[str, Any]:
    if isinstance(step, NativeStep):
        makes = [[number, kind.dtype, list(step.shapes.get(number) or kind.static)] for number, kind in step.makes]
        calls = [[call.symbol, [list(place) for place in call.arguments]] for call in step.calls if with_calls]
        bases, reach = [list(base) for base in step.bases], [list(one) for one in step.reach]
        return {
            "native": step.symbol, "bases": bases, "reach": reach, "makes": makes, "kernels": step.kernels,
            "calls": calls,
        }  # fmt: skip
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


def _refusing(read: Callable[[], T], path: Path) -> T:
    """What reading gives; whatever goes wrong is a ModuleFileError that names the file."""
    try:
        return read()
    except OSError as error:
        raise ModuleFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # noqa: BLE001 — raised again, with the name of the file
        text = str(error) if isinstance(error, WeftError) else f"it is damaged ({error!r})"
        raise ModuleFileError(text if str(path) in text else f"{path} cannot be loaded: {text}") from error


class _File:
    """An opened module file, whose checksum (and signature, where a key is given) fits."""

    def __init__(self, path: Path, key: Key | None = None) -> None:
        self.path = path
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModuleFileError(f"{path} is no file")
        self._file = path.open("rb")
        size = self._file.seek(0, os.SEEK_END)
        if size <= _TRAILER_BYTES:
            raise ModuleFileError(f"{path} is no Weft module: it has only {size} bytes")
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        prefer_large_pages(mapped)
        self.whole = memoryview(mapped)
        self.checksum, self.signature = self._trailer()
        if key is not None:
            self._check_signature(key)
        self.archive = zipfile.ZipFile(self._file)
        self.manifest = json.loads(self._member("manifest.json"))
        self._check_version()
        check_manifest(self.manifest)
        self.memory = self._weights()
        self._check_arrays()
        self._arrays: dict[int, Array] = {}

    def _trailer(self) -> tuple[bytes, str]:
        """The checksum, which fits, and the signature: from the last bytes of the file."""
        words = bytes(self.whole[-_TRAILER_BYTES:]).decode("ascii", "replace").split()
        if words[:3] != ["weft", "module:", "checksum"] or len(words) != 6:
            raise ModuleFileError(
                f"{self.path} is no Weft module, or it was cut off, or an older Weft wrote it: compile the model again "
                "and save it"
            )
        checksum = fingerprint(self.whole[:-_TRAILER_BYTES])
        if checksum.hex() != words[3]:
            raise ModuleFileError(f"{self.path} is damaged: it does not fit its checksum")
        return checksum, words[5]

    def _check_signature(self, key: Key) -> None:
        if self.signature == _UNSIGNED:
            raise ModuleFileError(f"{self.path} is not signed: `weft sign {self.path} --key FILE` signs it")
        if not hmac.compare_digest(self.signature.encode(), signature_of(self.checksum, key).encode()):
            raise ModuleFileError(f"{self.path} was not signed with this key, or it was changed afterwards")

    def _check_version(self) -> None:
        """Refuses what another Weft wrote: its code may rely on what is not so here."""
        head = self.manifest if isinstance(self.manifest, dict) else {}
        names = ("format", "weft", "abi")
        found, wanted = [head.get(name) for name in names], [FORMAT, VERSION, abi_hash()]
        if found != wanted:
            said = [", ".join(f"{name} {value}" for name, value in zip(names, row)) for row in (found, wanted)]
            raise ModuleFileError(
                f"{self.path} was written by another Weft ({said[0][:120]}; this one has {said[1]}): compile the model "
                "again with this one and save it, or load it with the one that wrote it"
            )

    def _weights(self) -> memoryview:
        """The weights as mapped memory."""
        info = self.archive.getinfo("weights.bin")
        names, extra = struct.unpack_from("<HH", self.whole, info.header_offset + 26)
        start = info.header_offset + 30 + names + extra + self.manifest["start"]
        data = self.whole[start : start - self.manifest["start"] + info.file_size]
        is_plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not is_plain or start % ALIGNMENT or start + len(data) > len(self.whole):
            raise ModuleFileError(f"{self.path} is damaged: its weights cannot be mapped")
        return data

    def _check_arrays(self) -> None:
        """Arrays lie one behind another, as they were written, and fill the weights."""
        size = 0
        for number, row in enumerate(self.manifest["arrays"]):
            kind, count = NUMPY_TYPES.get(row["dtype"]), math.prod(row["shape"])
            texts = row.get("strings")
            if kind is None or kind.hasobject != (texts is not None) or texts is not None and len(texts) != count:
                raise ModuleFileError(f"array {number} is no {row['dtype'][:40]}")
            if not kind.hasobject:
                if row["offset"] != size:
                    raise ModuleFileError(f"array {number} does not follow the one before it")
                size += _padded(count * kind.itemsize)
        if size != len(self.memory):
            raise ModuleFileError(f"the arrays take {size} bytes, and there are {len(self.memory)}")

    def array(self, number: int) -> Array:
        """An array over the mapped memory."""
        found = self._arrays.get(number)
        if found is None:
            row = self.manifest["arrays"][number]
            kind, shape = NUMPY_TYPES[row["dtype"]], tuple(row["shape"])
            if kind.hasobject:
                found = np.array(row["strings"], object).reshape(shape)
            else:
                found = np.frombuffer(self.memory, kind, math.prod(shape), row["offset"]).reshape(shape)
            self._arrays[number] = found
        return found

    def graph(self, row: Mapping[str, Any]) -> Graph:
        """A graph from its text and arrays."""
        return parse_graph(row["text"], {name: self.array(number) for name, number in row["constants"].items()})

    def code(self, number: int) -> bytes:
        """An object file."""
        return self._member(f"code/{number}.o")

    def _member(self, name: str) -> bytes:
        """A member of the archive, whole; not one that swells as no real one does."""
        info = self.archive.getinfo(name)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or (
            info.file_size > MOST_SWELLING * info.compress_size + MOST_SMALL
        ):
            raise ModuleFileError(f"{self.path} is damaged: its {name} would take {info.file_size:,} bytes")
        with self.archive.open(info) as member:
            return member.read(info.file_size)


def sign_module(path: str | os.PathLike[str], key: Key) -> None:
    """Signs a module file where it lies; what it holds is not changed."""
    place = Path(path)
    found = _refusing(lambda: _File(place), place)
    signature = signature_of(found.checksum, key)
    with place.open("r+b") as file:
        file.seek(-_TRAILER_BYTES, os.SEEK_END)
        file.write(_TRAILER.format(checksum=found.checksum.hex(), signature=signature).encode())


def check_signature(path: str | os.PathLike[str], key: Key) -> None:
    """Refuses a file that is damaged or was not signed with a key; nothing of it is run."""
    secret, place = read_key(key), Path(path)
    _refusing(lambda: _File(place, secret), place)


def load_module(path: str | os.PathLike[str], threads: int | None = None, key: Key | None = None) -> Module:
    """The module in a file."""
    import weft.ops  # noqa: F401

    secret = None if key is None else read_key(key)
    place = Path(path)
    return _refusing(lambda: _load(_File(place, secret), threads), place)


def _load(file: _File, threads: int | None) -> Module:
    """What is compiled later is compiled as the model was (and exactly, where this process asks for that)."""
    settings = file.manifest["settings"]
    if settings.keys() != knobs.snapshot(without=NO_MATTER).keys():
        raise ModuleFileError(f"its settings are {', '.join(settings)}, which are not those of this Weft")
    with knobs.override(**{**settings, "exact": settings["exact"] or knobs.exact}):
        return _loaded(file, threads)


def _loaded(file: _File, threads: int | None) -> Module:
    manifest = file.manifest
    target = _machine(manifest, file.path)
    graph = _static_graph(file) if manifest["static"] else file.graph(manifest["graph"])
    executor = Executor(
        graph, target, check_precision(manifest["precision"], target), can_compile=not manifest["static"]
    )
    if manifest["static"] and [[item[1:] for item in row["key"] if item] for row in manifest["forms"]] != [
        [[None]] * len(graph.inputs)
    ]:
        raise ModuleFileError("a model of one set of shapes has one form, and that for no values")
    for row in manifest["forms"]:
        if row["open"] is not None:
            raise ModuleFileError("a form for all sizes is kept by the cache alone, not by a module's file")
        key = tuple(
            None if item is None else (tuple(item[0]), None if item[1] is None else bytes.fromhex(item[1]))
            for item in row["key"]
        )
        takes = [_taken(value, item) for value, item in zip(graph.inputs, key, strict=True)]
        executor.keep(key, _specialization(file, row, graph, executor, takes))
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
    if any(form["device"] is not None for form in manifest["forms"]):
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
    executor = Executor(_static_graph(file), target, precision, whole=whole)
    types = [value.tensor.static for value in executor.signature.inputs]
    shapes = {value.name: kind for value, kind in zip(executor.signature.inputs, types)}
    found = _only_form(file, executor, shapes, lambda: executor._build(shapes, {}))
    found.kept = path
    executor.keep(tuple((kind, None) for kind in types), found)
    return make_module(executor, threads)


def _static_graph(file: _File) -> Graph:
    graph = file.graph(file.manifest["graph"])
    return graph.replace(outputs=[Value(name, _tensor_type(text)) for name, text in file.manifest["outputs"]])


def read_form(
    path: Path, executor: Executor, shapes: Mapping[str, Sequence[int]], rebuild: Callable[[], Specialization]
) -> Specialization:
    """The compiled form in a file that `write_form` wrote for these shapes."""
    return _only_form(_File(path), executor, shapes, rebuild)


def _only_form(
    file: _File, executor: Executor, shapes: Mapping[str, Sequence[int]], rebuild: Callable[[], Specialization]
) -> Specialization:
    takes = [
        TensorType(value.type.dtype, list(shapes[value.name]))
        if isinstance(value.type, TensorType) and value.name in shapes
        else value.type
        for value in executor.signature.inputs
    ]
    (row,) = file.manifest["forms"]
    return _specialization(file, row, None, executor, takes, rebuild)


def _specialization(
    file: _File,
    row: Mapping[str, Any],
    graph: Graph | None,
    executor: Executor,
    takes: Sequence[Type | None],
    rebuild: Callable[[], Specialization] | None = None,
) -> Specialization:
    opened = row["open"]
    program = _program(file, row, executor)
    if opened is None:
        ProgramCheck(program, takes, executor.target.part_bytes).run([v.type for v in executor.signature.outputs])
    device = row["device"]

    def objects() -> list[bytes]:
        return [file.code(number) for number in row["code"]]

    lowered = None if graph is None else Lowered(program, [], [], [])
    native = NativeCode(objects, list(row["externals"]))
    runner: Runner | DeviceRunner
    if device is None:
        names = [step.symbol for step in program.steps if isinstance(step, NativeStep)]
        engine = llvm_compile.load(objects(), names, row["externals"], executor.target) if names else None
        runner = Runner(program, engine, executor._inner)
        if opened is not None:
            interpret = functools.partial(executor._interpreted, {})
            runner = OpenRunner(program, engine, executor._inner, interpret, _conditions(file, opened))
    else:
        programs = programs_of(device)
        check_calls(program, programs)
        if programs_seal(device, row["steps"]) != device["seal"]:
            raise ModuleFileError("the launches do not fit their seal")
        runner = DeviceRunner(program, programs, executor.target, executor._inner, codes=objects())
    return StoredForm(list(row["report"]), graph, lowered, runner, native, rebuild)


def _program(file: _File, row: Mapping[str, Any], executor: Executor) -> Program:
    """The program of a form; that it holds together is not known yet."""
    opened = row["open"]
    steps = [_step(file, one, executor, opened is not None) for one in row["steps"]]
    constants = {int(number): file.array(at) for number, at in row["constants"].items()}
    numbers = {*row["inputs"], *row["outputs"], *constants, *(n for step in steps for n in step_values(step))}
    return Program(
        row["inputs"],
        row["outputs"],
        len(numbers) if max(numbers, default=-1) < len(numbers) else -1,
        constants,
        [file.array(at) for at in row["weights"]],
        row["arena"],
        row["unshared"],
        steps,
        last_uses(steps, row["outputs"]),
        row["in_place"],
        None if opened is None else opened["numbers"],
        {} if opened is None else {int(number): tuple(shape) for number, shape in opened["promised"].items()},
        [(given, made) for given, made in row["updates"]],
    )


def _step(file: _File, row: Mapping[str, Any], executor: Executor, is_open: bool = False) -> Step:
    if "native" in row and is_open:
        kinds = [(number, TensorType(dtype, None)) for number, dtype, _ in row["makes"]]
        shapes = {number: tuple(shape) for number, _, shape in row["makes"]}
        places = [(kind, number) for kind, number in row["bases"]]
        return NativeStep(row["native"], places, kinds, row["kernels"], shapes=shapes)
    if "native" in row:
        makes = [(number, made_type(dtype, shape)) for number, dtype, shape in row["makes"]]
        bases = [(kind, number) for kind, number in row["bases"]]
        calls = tuple(Call(symbol, tuple((b, at) for b, at in args)) for symbol, args in row["calls"])
        reach = [(end, is_written, None if held is None else tuple(held)) for end, is_written, held in row["reach"]]
        return NativeStep(row["native"], bases, makes, row["kernels"], calls, reach=reach)
    if "rest" in row:
        rest = executor.open_rest if is_open else executor.rest
        return RestStep(rest(file.graph(row["rest"])), row["inputs"], row["outputs"])
    graph = file.graph(row["host"])
    check_host_graph(graph)
    (node,) = graph.nodes
    numbers = dict(zip(graph.inputs, row["inputs"], strict=True))
    own = set(node.inputs)
    captured = [(value, number) for value, number in numbers.items() if value not in own or node.graphs]
    inputs = [None if v is None else numbers[v] for v in node.inputs]
    return HostStep(node, inputs, row["outputs"], captured, row["reason"])
