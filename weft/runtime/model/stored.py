"""`weft.load`: a module file as a module, with numpy alone.

In: a file whose forms were linked when it was saved. Out: a `Module` over a `StoredModel`: the libraries are opened by
the system's loader, weights are mapped, and each call plays the steps of the form for its shapes, or of the one for all
sizes. Nodes on the host are run by numpy. What needs the compiler asks for it when it comes to that
(`hooks.load_whole`): a file that was not linked, sizes that no form answers, and looking into the model (`graph`,
`profile`). What the compiler runs faster (a part that waits for shapes, loops) is left to it where it is installed.

What a library does is sealed (`manifest.form_seal`): it shows a name that is a hash of all that its manifest says of
it. So a manifest that was changed cannot make good code touch memory that is not its own; bad code can do anything.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from weft.core import hooks, model
from weft.core.array_types import ArrayType
from weft.core.errors import ArgumentError, WeftError
from weft.core.install import hint
from weft.runtime.cache_folder import write_whole
from weft.runtime.library import Library
from weft.runtime.model.keys import Key, read_key
from weft.runtime.model.manifest import ModuleFileError, form_seal
from weft.runtime.model.module import HostWarning, Module
from weft.runtime.model.module_file import ModuleFile, refusing
from weft.runtime.model.program import GraphStep, native_step, read_program
from weft.runtime.model.runner import NativeRunner, OpenSizes
from weft.runtime.threads import get_threads


def load(path: str | os.PathLike[str], threads: int | None = None, key: Key | None = None) -> Module:
    """The module that `Module.save` wrote.

    **A module file holds machine code, and loading it is as dangerous as loading a shared library: load only files
    that you trust.** A damaged file, or one of another Weft or another machine, is a `ModuleFileError`. With a `key`
    (the path of a key's file, or its bytes) a file that was not signed with it (`weft sign`) is one, too, before any of
    its code is mapped.

    A file that was linked when it was saved runs with numpy alone; others need the compiler (docs/module-files.md).
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"weft.load takes the path of a file that Module.save wrote, not a {type(path).__name__}")
    if str(path).endswith(".onnx") and not zipfile.is_zipfile(path):
        raise ArgumentError(f"weft.load reads what Module.save wrote; {path} is a model: weft.compile takes it")
    secret = None if key is None else read_key(key)
    place = Path(path)
    return refusing(lambda: _load(ModuleFile(place, secret), threads), place)


def _load(file: ModuleFile, threads: int | None) -> Module:
    part = choose_part(file)
    if part["needs"]:
        try:
            return _whole(file, part, part["needs"], threads)
        except MissingCompiler as error:
            if not part["forms"] or any(row["library"] is None for row in part["forms"]):
                raise
            warnings.warn(f"numpy runs what it can, slowly: {error}", HostWarning, stacklevel=5)
    return Module(StoredModel(file, part), threads)


class MissingCompiler(WeftError, ImportError):
    """Something of a file needs the compiler, which is not installed."""


def bound_key(arrays: Sequence[Any], bound: Any) -> Any:
    """What chooses a form: the shapes of the arrays, and the values of small ones that decide shapes."""
    return tuple(
        (a.shape, a.tobytes() if at in bound and a.size <= model.LARGEST_BOUND_VALUE else None)
        if isinstance(a, np.ndarray)
        else None
        for at, a in enumerate(arrays)
    )


def form_key(row: Mapping[str, Any]) -> Any:
    """The same of a form in a file."""
    return tuple(
        None if item is None else (tuple(item[0]), None if item[1] is None else bytes.fromhex(item[1]))
        for item in row["key"]
    )


# ------------------------------------------------------------------------------------------------------------- machines


def choose_part(file: ModuleFile) -> Mapping[str, Any]:
    """The part of a file that suits this machine best; a ModuleFileError that names the machines where none does."""
    parts: list[Mapping[str, Any]] = file.manifest["parts"]
    if any(map(_on_device, parts)) or not any(part["forms"] for part in parts):
        return parts[0]  # a device is looked for by the compiler, and a model without code is compiled there
    lacking = [_lacking(part) for part in parts]
    fitting = [part for part, missing in zip(parts, lacking) if missing == []]
    if fitting:
        return max(fitting, key=lambda part: len(part["features"]))
    made = " and for ".join(f"{part['target']['triple']} ({part['target']['cpu']})" for part in parts)
    missing = next((one for one in lacking if one), [])
    lacks = f", whose processor has not {', '.join(missing[:8])}" if missing else ""
    raise ModuleFileError(
        f"{file.path} was compiled for {made}, and this machine is {this_machine()}{lacks}: compile the model here, or "
        "for both machines with `weft compile --target`"
    )


def _on_device(part: Mapping[str, Any]) -> bool:
    return any(form["device"] is not None for form in part["forms"])


def _lacking(part: Mapping[str, Any]) -> list[str] | None:
    """What this processor has not of what a part's code needs; None where it is another kind of machine."""
    architecture, _, rest = part["target"]["triple"].partition("-")
    same = architecture == platform.machine().lower().replace("amd64", "x86_64") and sys.platform in rest
    known = processor()[1]
    return sorted(set(part["flags"]) - known) if same and known else [] if same else None


def this_machine() -> str:
    """How messages name it."""
    name = processor()[0]
    return f"{platform.machine()}-{sys.platform}{f' ({name})' if name else ''}"


@functools.lru_cache(maxsize=1)
def processor() -> tuple[str, frozenset[str]]:
    """The name of this machine's processor and what it can do, as Linux lists it; nothing where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return "", frozenset()
    rows = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return rows.get("model name", ""), frozenset((rows.get("flags") or rows.get("Features") or "").split())


# ---------------------------------------------------------------------------------------------------------------- model


class StoredForm(NamedTuple):
    """A compiled form of a file."""

    runner: NativeRunner
    summary: list[str]
    host_nodes: list[Any]


class StoredModel:
    """The forms of a module file, for this machine."""

    def __init__(self, file: ModuleFile, part: Mapping[str, Any]) -> None:
        manifest = file.manifest
        self._file, self._part = file, part
        ends = {
            end: [SimpleNamespace(name=name, type=ArrayType(dtype, shape)) for name, dtype, shape in manifest[end]]
            for end in ("inputs", "outputs")
        }
        self.signature = SimpleNamespace(name=manifest["name"], **ends)
        self.bound_inputs = set(manifest["bound"])
        self.ranges = {(name, axis): range(*numbers) for name, axis, *numbers in manifest["ranges"]}
        self.precision = part["precision"]
        self.target_name: str = part["target"]["name"]
        self._compiled: Any = None
        self.open_form: StoredForm | None = None
        self._found: dict[Any, StoredForm] = {}
        for row in part["forms"]:
            runner = self._runner(row)
            hosts = [step for step in runner.program.steps if isinstance(step, GraphStep)]
            nodes = [SimpleNamespace(node=one, reason=step.reason) for step in hosts for one in step.graph.nodes]
            form = StoredForm(runner, row["report"], nodes)
            if row["key"] is None:
                self.open_form = form
            else:
                self._found[form_key(row)] = form

    def _runner(self, row: Mapping[str, Any]) -> NativeRunner:
        file = self._file
        steps = [native_step(one) if "native" in one else self._graph_step(one) for one in row["steps"]]
        program = read_program(row, steps, file.array, file.raw)
        library = Library(file.library(row["library"]))
        if not library.has(form_seal(file.manifest, row, file.digests(row))):
            raise ModuleFileError(
                f"{file.path} does not fit its code: something that leads into or outside of its memory was changed"
            )
        code = library.start()
        if code:
            raise ModuleFileError(
                f"{file.path} was compiled for {self._part['target']['cpu']}, and this machine ({this_machine()}) "
                f"{'has not all of its instructions' if code == 3 else 'does not give it matrix registers'}"
            )
        if program.numbers is None:
            return NativeRunner(program, library)
        names, equal = row["open"]["names"], row["open"]["equal"]
        return OpenSizes(program, library).open(functools.partial(_takes, names, equal), self._interpreted)

    def _graph_step(self, row: Mapping[str, Any]) -> GraphStep:
        graph, reason = row.get("host") or row["rest"], row.get("reason", "it waits for shapes that only a call tells")
        arrays = {name: self._file.array(number) for name, number in graph["constants"].items()}
        try:
            found, run = hooks.stored_graph(graph["text"], arrays)
        except ImportError as error:
            raise MissingCompiler(
                f"{self._file.path} has nodes that numpy runs ({reason}), for which {error.name} is not installed: "
                f"{hint()}, with --no-deps where numpy shall be all that it needs"
            ) from error
        return GraphStep(found, run, row["inputs"], row["outputs"], reason)

    @property
    def binds_values(self) -> bool:
        """Whether values of inputs, not only their shapes, choose the compiled form."""
        return bool(self.bound_inputs)

    def specialization(self, arrays: Sequence[Any]) -> Any:
        """The form for the shapes (and values) of these arrays, that for all sizes, or one that is compiled now."""
        found = self._found.get(bound_key(arrays, self.bound_inputs)) or self.open_form
        if found is None:
            said = f"it has no code for inputs of {[list(a.shape) for a in arrays]}"
            return self._whole(said).specialization(arrays)
        if found is self.open_form:
            found.runner.settle(arrays)
        return found

    def _interpreted(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs for sizes that the form for all sizes does not answer."""
        said = f"no code of it takes inputs of {[list(a.shape) for a in arrays]}"
        made: list[Any] = self._whole(said).specialization(arrays).runner.run(arrays, get_threads())
        return made

    def check_ranges(self, arrays: Sequence[Any]) -> None:
        """Raises where an input has a size that was promised not to come."""
        check_ranges(self.ranges, self.signature.inputs, arrays)

    def _whole(self, why: str) -> Any:
        if self._compiled is None:
            self._compiled = _whole(self._file, self._part, why)._executor
        return self._compiled

    def __getattr__(self, name: str) -> Any:
        """Everything else (the graph, its target, a profile) is the compiler's, which reads the file again."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole(f"what is asked for ({name}) is not in the file"), name)

    def report(self, module: Module) -> str:
        """What runs where, as it was when it was compiled."""
        forms = [*self._found.values(), *([] if self.open_form is None else [self.open_form])]
        return "\n".join([f"{module!r}", *(line for one in forms for line in ("", *one.summary))])

    def profile(self, *_: Any) -> Any:
        """Refused: the file has the code of kernels, not what they compute."""
        raise ArgumentError("a module from a file does not know its kernels: profile the model it was compiled from")

    def save(self, module: Module, path: str | Path, link: bool = True) -> None:
        """Writes the file again; with what was compiled since, where something was."""
        if self._compiled is not None:
            self._compiled.save(module, path, link)
            return
        with write_whole(saving_place(path)) as written:
            written.write(self._file.whole)


def saving_place(path: str | os.PathLike[str]) -> Path:
    """The file to write, behind a link where the path is one."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise ModuleFileError(f"{os.fspath(path)!r} is a folder or a device: a module is saved to a file")
    return place


def check_ranges(ranges: Mapping[tuple[str, int], range], inputs: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Raises where an input has a size outside of its range; ranges by input and axis."""
    for (name, axis), wanted in ranges.items():
        for value, array in zip(inputs, arrays):
            if value.name == name and array.shape[axis] not in wanted:
                shape = list(array.shape)
                said = f"the model was compiled for sizes of {wanted} along axis {axis}"
                raise ArgumentError(f"input {name!r} has the shape {shape}; {said}")


def _takes(names: Sequence[str], equal: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether for each condition one of the equations holds that fulfil it."""
    known = dict(zip(names, sizes))
    return all(any(known.get(a) == known.get(b, b) for a, b in alternatives) for alternatives in equal)


def _whole(file: ModuleFile, part: Mapping[str, Any], why: str, threads: int | None = None) -> Module:
    """The module as the compiler reads it."""
    try:
        made: Module = hooks.load_whole(file, part, threads)
        return made
    except ImportError as error:
        raise MissingCompiler(
            f"{file.path}: {why}, which needs the compiler, and {error.name or error} is not installed: {hint()}"
        ) from error
