"""Writes module files, and reads what only the compiler can run: forms with host nodes, for devices, of the cache.

The file is described in `runtime/model/module_file.py`; what runs without the compiler is read by
`runtime/model/stored.py`.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.device.runner import DeviceRunner
from weft.compiler.device.store import programs_of, programs_row, programs_seal
from weft.compiler.form import Compiled, NativeCode, Specialization, load_code
from weft.compiler.lowering.lower import Lowered
from weft.compiler.lowering.native import Call
from weft.compiler.lowering.weights import held
from weft.compiler.reports.report import form_lines
from weft.compiler.run import OpenRunner, Runner
from weft.compiler.saved.check_file import ProgramCheck, check_calls, check_host_graph, made_type
from weft.compiler.saved.link import link_form
from weft.compiler.sizes.open_checks import Check, Conditions
from weft.compiler.steps import HostStep, NativeStep, Program, RestStep, Step
from weft.core import model
from weft.core.errors import TargetError
from weft.core.version import VERSION
from weft.graph.ir import Array, Graph, TensorType, Type, Value, dtype_name
from weft.graph.text import constant_table, format_graph, parse_graph
from weft.runtime.abi import FORMAT, abi_hash
from weft.runtime.cache_folder import write_whole
from weft.runtime.fingerprint import fingerprint
from weft.runtime.model.manifest import ModuleFileError, form_seal
from weft.runtime.model.module import port_of
from weft.runtime.model.module_file import (
    ALIGNMENT,
    INDEX_TYPES,
    TRAILER_BYTES,
    ModuleFile,
    close_file,
    index_digest,
    padded,
)
from weft.runtime.model.program import native_step, read_program
from weft.runtime.model.stored import saving_place
from weft.targets.base import Target


class LinkWarning(UserWarning):
    """A module file that was saved where no linker is: it needs the compiler to run."""


class StoredForm(Specialization):
    """A compiled form that was read from a file; `summary` is its report, made when it was compiled."""

    def __init__(self, summary: list[str], *parts: Any) -> None:
        super().__init__(*parts)
        self.summary = summary


# ----------------------------------------------------------------------------------------------------------- saving


class _Arrays:
    """The arrays of a file, those of one content once, at aligned offsets."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.arrays: list[Array] = []
        self.size = 0
        self._known: dict[Any, int] = {}
        self._alive: list[Array] = []  # an array is known by its identity first

    def add(self, array: Array) -> int:
        """The number of an array in the file."""
        if id(array) not in self._known:
            self._alive.append(array)
            self._known[id(array)] = self._by_content(array)
        return self._known[id(array)]

    def _by_content(self, array: Array) -> int:
        row: dict[str, Any] = {"dtype": dtype_name(array.dtype), "shape": list(array.shape)}
        if array.dtype == object:
            row["strings"] = _texts(array)
        content = (json.dumps(row), b"" if array.dtype == object else fingerprint(array))
        number = self._known.setdefault(content, len(self.rows))
        if number == len(self.rows):
            if array.dtype != object:
                row["offset"] = self.size
                self.size += padded(array.nbytes)
            self.rows.append(row)
            self.arrays.append(array)
        return number


def _texts(array: Array) -> list[str]:
    """The strings of an array; what is no string cannot be written."""
    for one in array.reshape(-1):
        if not isinstance(one, str):
            raise ModuleFileError(f"a model with constant objects that are no strings cannot be saved: {one!r}")
    return [str(one) for one in array.reshape(-1)]


def save_modules(executors: Sequence[Compiled], path: str | os.PathLike[str], link: bool = True) -> list[str]:
    """One model, compiled for several machines, in one file: whoever loads it takes what suits the machine best.

    The file appears whole or not at all, behind a link where the path is one. The code is linked, so that it runs
    without the compiler; not for a copy that is read here again. Gives for each machine why that is not so, or "".
    """
    if len(executors) > 1 and any(one.target.on_device for one in executors):
        raise ModuleFileError("a file for several machines holds code for processors: save that for a device alone")
    if any(one.target.triple.startswith("wasm") for one in executors):
        raise ModuleFileError("what a page or Node runs is no module file: `weft export --format wasm` writes that")
    place, first = saving_place(path), executors[0]
    file = _Writing(first)
    parts = [file.part(one, link) for one in executors]
    fixed = all(len(part["forms"]) == 1 and one.is_static for part, one in zip(parts, executors))
    file.write(place, parts, None if fixed else first.graph)
    return [part["needs"] for part in parts]


def write_model(path: Path, executor: Compiled) -> None:
    """Writes a model without compiled forms: whoever loads it compiles it as it would be compiled here."""
    file = _Writing(executor)
    file.write(path, [{**_part(executor), "forms": [], "needs": "it has no code yet"}], executor.graph)


def write_form(path: Path, executor: Compiled, one: Specialization) -> None:
    """Writes one compiled form alone, as the cache keeps it: under a name that says for which shapes."""
    file = _Writing(executor)
    forms = [_form((), one, file.arrays, file.codes)]
    file.write(path, [{**_part(executor), "forms": forms, "needs": "it is an entry of the cache"}], None)


def _part(executor: Compiled) -> dict[str, Any]:
    """What a file says of a machine that a model was compiled for."""
    target = executor.target
    return {
        "target": {"name": target.name, "triple": target.triple, "cpu": target.cpu},
        "features": sorted(target.features),
        "flags": target.spec.flags(target),
        "precision": executor.precision,
    }


def _ports(values: Sequence[Value]) -> list[list[Any]]:
    return [[port.name, port.dtype, port.shape and list(port.shape)] for port in map(port_of, values)]


class _Writing:
    """A file that is being put together."""

    def __init__(self, executor: Compiled) -> None:
        signature = executor.signature
        self.arrays = _Arrays()
        self.codes: list[bytes] = []
        self.libraries: list[bytes] = []
        ranges = {at: (r if r.step > 0 else r[::-1]) for at, r in executor.ranges.items()}
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "abi": abi_hash(),
            "weft": VERSION,
            "settings": executor.settings,
            "name": signature.name,
            "inputs": _ports(signature.inputs),
            "outputs": _ports(signature.outputs),
            "bound": sorted(executor.bound_inputs),
            "ranges": [[name, axis, r.start, r.stop, r.step] for (name, axis), r in ranges.items()],
            "arrays": self.arrays.rows,
        }

    def part(self, executor: Compiled, link: bool) -> dict[str, Any]:
        """The forms of a model for one machine; linked, where they can run without the compiler."""
        forms, opened = executor.items(), executor.open_form
        needs = why_compiler(executor) if link else "it is a copy for the same process"
        linked = not needs
        if linked and opened is not None and open_conditions(opened) is not None:
            forms.append((None, opened))
        if not needs and not forms:
            needs = "it has no code that runs alone: it is compiled when it is first called"
        rows = [_form(key, one, self.arrays, self.codes) for key, one in forms]
        if linked:
            needs = needs or why_slow([one for _, one in forms])
            try:
                for (_, one), row in zip(forms, rows):
                    self._link(one, row, executor.target)
            except TargetError as error:
                needs = f"it was not linked when it was saved ({error})"
                warnings.warn(f"the file will need the compiler to run: {error}", LinkWarning, stacklevel=5)
                rows = [{**row, "library": None} for row in rows if row["key"] is not None]
        return {**_part(executor), "forms": rows, "needs": needs}

    def _link(self, one: Specialization, row: dict[str, Any], target: Target) -> None:
        wide = [array for array in one.runner.program.weights if dtype_name(array.dtype) in INDEX_TYPES]
        seal = form_seal(self.manifest, row, [index_digest(array) for array in wide])
        self.libraries.append(link_form(one.runner.program, one.native.objects(), seal, target))
        row["library"] = len(self.libraries) - 1

    def write(self, place: Path, parts: list[dict[str, Any]], graph: Graph | None) -> None:
        """Writes the file; with a graph, so that it can be compiled for other sizes than those there."""
        self.manifest["parts"] = parts
        self.manifest["graph"] = None if graph is None else _graph_row(graph, self.arrays)
        with write_whole(place, together=model.WRITTEN_TOGETHER) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for number, code in enumerate(self.codes):
                    archive.writestr(f"code/{number}.o", code)
                for number, library in enumerate(self.libraries):
                    archive.writestr(f"library/{number}.so", library, zipfile.ZIP_STORED)
                self.manifest["start"] = _write_arrays(archive, self.arrays)
                archive.writestr("manifest.json", json.dumps(self.manifest))
                archive.comment = bytes(TRAILER_BYTES)
            close_file(file)


def why_slow(forms: Sequence[Specialization]) -> str:
    """What the compiler runs faster of a model than numpy does; empty where it would do the same."""
    for one in forms:
        for step in one.runner.program.steps:
            if isinstance(step, HostStep) and step.node.graphs:
                return f"{step.node.describe()} runs on the host, with all that stands inside"
            if isinstance(step, RestStep):
                return "a part of it waits for shapes that only a call tells"
    return ""


def why_compiler(executor: Compiled) -> str:
    """Why only the compiler can run a model; empty where native code and numpy are all that it needs."""
    if executor.target.on_device or executor.target.spec.startup is None:
        return f"it runs on {executor.target.name}"
    ports = [value.type for value in (*executor.signature.inputs, *executor.signature.outputs)]
    if not all(isinstance(kind, TensorType) for kind in ports):
        return "not all of its inputs and outputs are arrays"
    return ""


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
            member.write(bytes(padded(raw.size) - raw.size))
    return pad


def _graph_row(graph: Graph, arrays: _Arrays) -> dict[str, Any]:
    return {
        "text": format_graph(graph),
        "constants": {name: arrays.add(array) for name, array in constant_table(graph).items()},
    }


def _form(key: Any, one: Specialization, arrays: _Arrays, codes: list[bytes]) -> dict[str, Any]:
    """One set of shapes as the manifest keeps it; a key of None stands for all sizes."""
    program = one.runner.program
    first = len(codes)
    codes.extend(one.native.objects())
    device = programs_row(one.runner.kernels) if isinstance(one.runner, DeviceRunner) else None
    steps = [_step_row(step, arrays, device is not None) for step in program.steps]
    opened = _open_row(program, one, arrays, key is None) if isinstance(one.runner, OpenRunner) else None
    if device is not None:
        device["seal"] = programs_seal(device, steps)
    return {
        "key": None
        if key is None
        else [None if item is None else [list(item[0]), None if item[1] is None else item[1].hex()] for item in key],
        "code": list(range(first, len(codes))),
        "library": None,
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


def _open_row(program: Program, one: Specialization, arrays: _Arrays, for_all: bool) -> dict[str, Any]:
    """What a form for all sizes has beyond others: for the cache the nodes to ask, for a file (`for_all`) equations."""
    checks = []
    conditions = one.runner.conditions  # type: ignore[union-attr]
    for check in () if for_all else conditions.checks:
        names = [None if v is None else f"x{at}" for at, v in enumerate(check.node.inputs)]
        inputs = [None if n is None else Value(n, kind) for n, kind in zip(names, check.inputs)]
        outputs = [Value(f"y{at}", kind) for at, kind in enumerate(check.outputs)]
        node = check.node.replace(inputs=inputs, outputs=outputs)
        given = [v for v in inputs if v is not None]
        values = {str(at): arrays.add(array) for at, array in enumerate(check.values) if array is not None}
        row = _graph_row(Graph("check", given, outputs, [node]), arrays)
        checks.append({"node": row, "values": values, "unread": list(check.unread)})
    promised = {str(number): list(shape) for number, shape in program.promised.items()}
    return {
        "numbers": program.numbers, "promised": promised, "names": list(conditions.names), "checks": checks,
        "equal": open_conditions(one) if for_all else None,
    }  # fmt: skip


def open_conditions(one: Specialization) -> list[Any] | None:
    """What sizes must fulfil in a form for all of them, as equations; None where it cannot run without the compiler."""
    if not isinstance(one.runner, OpenRunner) or any(isinstance(s, RestStep) for s in one.runner.program.steps):
        return None
    return one.runner.conditions.equations()


def _conditions(file: ModuleFile, row: Mapping[str, Any]) -> Conditions:
    checks = []
    for one in row["checks"]:
        (node,) = stored_graph(file, one["node"]).nodes
        inputs = tuple(None if v is None else v.tensor for v in node.inputs)
        known = {int(at): file.array(number) for at, number in one["values"].items()}
        values = tuple(known.get(at) for at in range(len(inputs)))
        checks.append(Check(node, inputs, tuple(v.tensor for v in node.outputs), values, tuple(one["unread"])))
    return Conditions(row["names"], checks)


def _step_row(step: Step, arrays: _Arrays, with_calls: bool) -> dict[str, Any]:
    if isinstance(step, NativeStep):
        makes = [[number, kind.dtype, list(step.shapes.get(number) or kind.static)] for number, kind in step.makes]
        calls = [
            [call.symbol, [list(place) for place in call.arguments], *([True] if call.copies else [])]
            for call in step.calls
            if with_calls
        ]
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


def stored_graph(file: ModuleFile, row: Mapping[str, Any]) -> Graph:
    """A graph from its text and arrays."""
    return parse_graph(row["text"], {name: file.array(number) for name, number in row["constants"].items()})


def read_form(
    path: Path, executor: Compiled, shapes: Mapping[str, Sequence[int]], rebuild: Callable[[], Specialization]
) -> Specialization:
    """The compiled form in a file that `write_form` wrote for these shapes."""
    return only_form(ModuleFile(path), executor, shapes, rebuild)


def only_form(
    file: ModuleFile, executor: Compiled, shapes: Mapping[str, Sequence[int]], rebuild: Callable[[], Specialization]
) -> Specialization:
    """The form in a file that holds one, for these shapes."""
    takes = [
        TensorType(value.type.dtype, list(shapes[value.name]))
        if isinstance(value.type, TensorType) and value.name in shapes
        else value.type
        for value in executor.signature.inputs
    ]
    (part,) = file.manifest["parts"]
    (row,) = part["forms"]
    return stored_form(file, row, None, executor, takes, rebuild)


def stored_form(
    file: ModuleFile,
    row: Mapping[str, Any],
    graph: Graph | None,
    executor: Compiled,
    takes: Sequence[Type | None],
    rebuild: Callable[[], Specialization] | None = None,
) -> Specialization:
    """A form as a file's manifest describes it; `takes` are the types of its inputs."""
    opened = row["open"]
    steps = [_step(file, one, executor, opened is not None) for one in row["steps"]]
    share = held if graph is None and not executor.is_static else np.asarray  # the cache's, beside those of other sizes
    program = read_program(row, steps, file.array, lambda number: share(file.array(number)))
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
        engine = load_code(objects(), names, row["externals"], executor.target)
        runner = Runner(program, engine, executor.inner)
        if opened is not None:
            runner = OpenRunner(program, engine, executor.inner, executor.interpreted, _conditions(file, opened))
    else:
        programs = programs_of(device)
        check_calls(program, programs)
        if programs_seal(device, row["steps"]) != device["seal"]:
            raise ModuleFileError("the launches do not fit their seal")
        runner = DeviceRunner(program, programs, executor.target, executor.inner, codes=objects())
    return StoredForm(list(row["report"]), graph, lowered, runner, native, rebuild)


def _step(file: ModuleFile, row: Mapping[str, Any], executor: Compiled, is_open: bool = False) -> Step:
    if "native" in row and is_open:
        return native_step(row, TensorType)
    if "native" in row:
        makes = [(number, made_type(dtype, shape)) for number, dtype, shape in row["makes"]]
        calls = tuple(
            Call(symbol, tuple((b, at) for b, at in args), copies=bool(copies))
            for symbol, args, *copies in row["calls"]
        )
        reach = [(end, is_written, None if held is None else tuple(held)) for end, is_written, held in row["reach"]]
        return replace(native_step(row), makes=makes, calls=calls, reach=reach)
    if "rest" in row:
        rest = executor.open_rest if is_open else executor.rest
        return RestStep(rest(stored_graph(file, row["rest"])), row["inputs"], row["outputs"])
    graph = stored_graph(file, row["host"])
    check_host_graph(graph)
    (node,) = graph.nodes
    numbers = dict(zip(graph.inputs, row["inputs"], strict=True))
    own = set(node.inputs)
    captured = [(value, number) for value, number in numbers.items() if value not in own or node.graphs]
    inputs = [None if v is None else numbers[v] for v in node.inputs]
    return HostStep(node, inputs, row["outputs"], captured, row["reason"])
