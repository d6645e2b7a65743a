"""What a library holds, taken from a compiled module; models that need more than native code are refused.

A library has one set of shapes and no host: every step of the program must be native.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.compiler.form import Specialization
from weft.compiler.module import Module
from weft.compiler.steps import HostStep, NativeStep, Program
from weft.core.errors import WeftError
from weft.graph.ir import Array, TensorType, Value
from weft.runtime.model.module_file import padded
from weft.targets.base import Target

MOST_NAMED = 8
"""Host nodes that a refusal names; the rest are counted."""


class ExportError(WeftError, ValueError):
    """A model that cannot be a shared library; the text says which part of it."""


@dataclass(frozen=True)
class Tensor:
    """An input or output as C sees it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Copy:
    """An output that no kernel writes: the bytes of an input, of a constant, or of an output before it."""

    output: int
    kind: str
    number: int


@dataclass
class LibraryPlan:
    """The parts of a library. `arrays` are stored one after the other, each at its offset."""

    name: str
    title: str
    target: Target
    form: Specialization
    inputs: list[Tensor]
    outputs: list[Tensor]
    calls: list[tuple[str, list[tuple[str, int]]]]
    """The native calls: symbol, and for each base ("arena", 0), ("array", n), ("input", n) or ("output", n)."""
    copies: list[Copy]
    arrays: list[Array]
    arena_bytes: int

    @property
    def steps(self) -> list[NativeStep]:
        """The native steps; those of a module file do not say which kernels they call."""
        return [step for step in self.form.runner.program.steps if isinstance(step, NativeStep)]

    @property
    def functions(self) -> list[str]:
        """The functions that a caller sees."""
        return [f"weft_{self.name}_{one}" for one in "create run destroy threads input output error".split()]

    @property
    def offsets(self) -> list[int]:
        """Where each array begins."""
        found, size = [], 0
        for array in self.arrays:
            found.append(size)
            size += padded(array.nbytes)
        return found


TAKEN = frozenset("main math stddef stdint stdio stdlib string".split())
"""Names of files that are there already, or that a header of ours would stand before."""


def c_name(text: str) -> str:
    """A name that C takes, and files beside ours, made from any text (a file system takes 255 characters)."""
    plain = re.sub(r"[^0-9A-Za-z_]+", "_", text)[:100].strip("_").lower()
    return plain if plain.isidentifier() and plain not in TAKEN else f"model_{plain}".rstrip("_")


def comment(text: str) -> str:
    """A text of a model in one line that ends no comment and begins none."""
    return " ".join(text.replace("*", " * ").split())


def make_plan(module: Module, name: str | None = None) -> LibraryPlan:
    """The plan of a module's library; an ExportError where there can be none."""
    one = _only_form(module)
    if not all(step.calls for step in one.runner.program.steps if isinstance(step, NativeStep)):
        one = one.whole()  # a file does not keep them
    program = one.runner.program
    _refuse_host(module, program)
    inputs = [_tensor(v, v.type) for v in module.graph.inputs]
    outputs = [_tensor(v, _result_type(v, number, program)) for v, number in zip(module.graph.outputs, program.outputs)]
    arrays = list(program.weights)
    copies = []
    places: dict[int, tuple[str, int]] = {number: ("input", at) for at, number in enumerate(program.inputs)}
    made = {number for step in program.steps if isinstance(step, NativeStep) for number, _ in step.makes}
    for at, number in enumerate(program.outputs):
        if number in made and number not in places:
            places[number] = ("output", at)
            continue
        if number in program.constants and number not in places:
            places[number] = ("array", len(arrays))
            arrays.append(program.constants[number])
        copies.append(Copy(at, *places[number]))
    calls = [(s.symbol, _bases(s, places)) for s in program.steps if isinstance(s, NativeStep)]
    title = comment(module.graph.name) or "model"
    return LibraryPlan(
        c_name(name or title), title, module.target, one, inputs, outputs, calls, copies, arrays, program.arena_bytes
    )


def _only_form(module: Module) -> Specialization:
    found: list[Specialization] = module.specializations
    if len(found) == 1 and not any(_open_sizes(value.type) for value in module.graph.inputs):
        return found[0]
    loose = [value for value in module.graph.inputs if _open_sizes(value.type)]
    named = ", ".join(f"{value.name} is {value.type!r}" for value in loose)
    raise ExportError(
        f"a shared library has one set of shapes, and those of {module.graph.name} are open ({named}): "
        "compile it with shapes={name: (sizes)}, or give --size or --shape"
        if loose
        else f"{module.graph.name} has inputs whose values decide shapes, so that no one native program fits all of "
        "them: make those inputs constants of the model"
    )


def _open_sizes(kind: object) -> bool:
    return not isinstance(kind, TensorType) or not kind.is_static


def _refuse_host(module: Module, program: Program) -> None:
    """Names the nodes that only the host can run, and those that wait for shapes that the host finds."""
    waiting = [step for step in program.steps if not isinstance(step, (NativeStep, HostStep))]
    host = [f"{step.node.describe()} ({step.reason})" for step in program.steps if isinstance(step, HostStep)]
    if host:
        shown = [*host[:MOST_NAMED], *([f"and {len(host) - MOST_NAMED} more"] if len(host) > MOST_NAMED else [])]
        after = ", and what follows waits for the shapes that they find" if waiting else ""
        raise ExportError(
            f"{module.graph.name} cannot be a shared library: these nodes have no compiled kernel and need the Python "
            f"host: {'; '.join(shown)}{after}"
        )
    if waiting:
        raise ExportError(f"{module.graph.name} cannot be a shared library: its shapes are known only when it runs")


def _result_type(value: Value, number: int, program: Program) -> object:
    """The type of an output: what the step that makes it says is exact where the model's own declaration is open."""
    for step in program.steps:
        if isinstance(step, NativeStep):
            for made, kind in step.makes:
                if made == number:
                    return kind
    array = program.constants.get(number)
    return value.type if array is None else TensorType(value.tensor.dtype, array.shape)


def _tensor(value: Value, kind: object) -> Tensor:
    if not isinstance(kind, TensorType) or not kind.is_static or kind.core is None:
        raise ExportError(f"{value.name} is {kind!r}: C has no array for it")
    shape = tuple(int(size) for size in kind.static)
    count = 1
    for size in shape:
        count *= size
    return Tensor(value.name, kind.dtype, shape, count * int(kind.numpy.itemsize))


def _bases(step: NativeStep, places: dict[int, tuple[str, int]]) -> list[tuple[str, int]]:
    found = []
    for kind, number in step.bases:
        if kind == "value":
            if number not in places:
                raise ExportError(f"the native call {step.symbol} reads a value that only the host could make")
            found.append(places[number])
        else:
            found.append(("array" if kind == "weight" else kind, number))
    return found
