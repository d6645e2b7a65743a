"""What a module file says of a program that the compiler reads, checked before any of its code is mapped.

In: the program of one compiled form, with the types that its inputs have. Out: nothing, or a `ModuleFileError` that
names the place. What passes touches only memory that it owns:

    values       what a step reads was made before it, what it makes is new, and types agree from maker to reader
    memory       from each base address a driver reaches (which its name seals, see `abi`) no further than the arena,
                 the weight or the value that lies there, and it writes neither weights nor what it did not make
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.codegen.c.program import DeviceProgram
from weft.compiler.lowering.abi import Reach, sealed
from weft.compiler.steps import HostStep, NativeStep, Program, RestStep
from weft.core.array_types import ArrayType
from weft.graph.ir import NUMPY_TYPES, Array, Graph, TensorType, Type, Value, dtype_name
from weft.graph.passes.infer import infer
from weft.loop.passes.check_bounds import ERRORS
from weft.runtime.model.manifest import LARGEST, ModuleFileError

MOST_DIMENSIONS = 32

# ------------------------------------------------------------------------------------------------------------ values


def tensor_bytes(kind: ArrayType) -> int:
    """The memory of a tensor whose shape is known."""
    return math.prod(kind.static) * int(kind.numpy.itemsize)


def made_type(dtype: str, shape: Sequence[int]) -> TensorType:
    """The type of a value that kernels make: of numbers, and of a size that can be."""
    too_large = math.prod(shape) >= LARGEST or len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0
    if dtype not in NUMPY_TYPES or dtype == "string" or too_large:
        raise ModuleFileError(f"no kernel makes a {dtype[:40]}{list(shape)[:12]}")
    return TensorType(dtype, list(shape))


class ProgramCheck:
    """One walk over a program's steps: which values there are, and of which types."""

    def __init__(self, program: Program, takes: Sequence[Type | None], alignment: int) -> None:
        self.program = program
        self.alignment = alignment
        self.types: dict[int, Type | None] = {}
        self.made: set[int] = set()
        if len(takes) != len(program.inputs):
            raise ModuleFileError(f"a form takes {len(program.inputs)} inputs, and the model has {len(takes)}")
        for number, kind in zip(program.inputs, takes):
            self._define(number, kind, "an input")
        for number, array in program.constants.items():
            self._define(number, TensorType(dtype_name(array.dtype), array.shape), "a constant")

    def run(self, gives: Sequence[Type | None]) -> None:
        """Checks everything; `gives` are the types of the model's outputs, as far as they are known."""
        program = self.program
        for step, finished in zip(program.steps, program.last_use, strict=True):
            if isinstance(step, NativeStep):
                self._native(step)
            elif isinstance(step, HostStep):
                self._host(step)
            else:
                self._rest(step)
            for number in finished:
                if number not in program.constants:
                    del self.types[number]
        if len(gives) != len(program.outputs):
            raise ModuleFileError(f"a form gives {len(program.outputs)} outputs, and the model has {len(gives)}")
        for number, kind in zip(program.outputs, gives):
            if not _agree(self._known(number, "an output"), kind):
                raise ModuleFileError(f"output {number} is {self.types[number]!r} in a form and {kind!r} in the model")
        for given, made in program.updates:
            if given not in program.inputs or made not in program.outputs:
                raise ModuleFileError(f"values {given} and {made} are no input and output that one array can be")
        reach = max((end for kind, end in _reaches(program) if kind == "arena"), default=0)
        if not reach <= program.arena_bytes <= reach + self.alignment:
            raise ModuleFileError(f"the arena has {program.arena_bytes} bytes, of which {reach} are used")
        if program.count != len({*self.made, *program.inputs, *program.constants}):
            raise ModuleFileError("the numbers of values have gaps")

    def _define(self, number: int, kind: Type | None, what: str) -> None:
        if number in self.types:
            raise ModuleFileError(f"value {number} is {what} and something else")
        self.types[number] = kind
        self.made.add(number)

    def _known(self, number: int, what: str) -> Type | None:
        if number not in self.types:
            raise ModuleFileError(f"value {number} is {what} and does not exist then")
        return self.types[number]

    def _native(self, step: NativeStep) -> None:
        if step.symbol != sealed(step.symbol.rpartition("_")[0], step.bases, step.reach):
            raise ModuleFileError(f"what is said of {step.symbol[:80]} does not fit the seal in its name")
        makes = {("value", number) for number, _ in step.makes}
        for base, reach in zip(step.bases, step.reach, strict=True):
            if base not in makes:
                self._reads(base, reach, step)
        for number, kind in step.makes:
            reach_of = [reach[0] for base, reach in zip(step.bases, step.reach) if base == ("value", number)]
            if reach_of != [tensor_bytes(kind)]:
                raise ModuleFileError(f"{step.symbol} does not fill value {number}, {kind!r}")
            self._define(number, TensorType(kind.dtype, kind.static), f"made by {step.symbol}")

    def _reads(self, base: tuple[str, int], reach: Reach, step: NativeStep) -> None:
        """Refuses what reaches past the end of its memory, or writes where only reading is right."""
        (kind, number), (end, is_written, held) = base, reach
        if kind == "arena" and number == 0 and held is None:
            return
        if kind == "weight" and number < len(self.program.weights):
            size = self.program.weights[number].nbytes
            if held is not None and not _lies_between(self.program.weights[number], held):
                raise ModuleFileError(f"weight {number} of {step.symbol} holds numbers that lead outside of its memory")
        elif kind == "value":
            known = self._known(number, f"read by {step.symbol}")
            if not isinstance(known, TensorType) or not known.is_static or known.dtype == "string":
                raise ModuleFileError(f"{step.symbol} reads value {number}, whose size is not known")
            size = tensor_bytes(known)
        else:
            raise ModuleFileError(f"{step.symbol} has no base {kind[:40]} {number}")
        if end > size or is_written or (held is not None and kind != "weight"):
            raise ModuleFileError(f"{step.symbol} does not fit in {kind} {number}")

    def _host(self, step: HostStep) -> None:
        given = [(v, n) for v, n in zip(step.node.inputs, step.inputs) if v is not None and n is not None]
        self._takes([*given, *step.captured], step.node.describe())
        if len(step.outputs) != len(step.node.outputs):
            raise ModuleFileError(f"{step.node.describe()} gives another number of values")
        for number, value in zip(step.outputs, step.node.outputs):
            self._define(number, value.type, "made by a host node")

    def _rest(self, step: RestStep) -> None:
        graph = step.executor.graph
        if (len(step.inputs), len(step.outputs)) != (len(graph.inputs), len(graph.outputs)):
            raise ModuleFileError(f"the rest, {graph.name[:80]}, has other inputs or outputs")
        self._takes(list(zip(graph.inputs, step.inputs)), graph.name)
        for number, value in zip(step.outputs, infer(graph).outputs):
            is_known = isinstance(value.type, TensorType) and value.type.is_static
            self.types[number] = value.type if is_known else None
            self.made.add(number)

    def _takes(self, given: Sequence[tuple[Value, int]], what: str) -> None:
        for value, number in given:
            found = self._known(number, f"taken by {what}")
            if not _agree(found, value.type, strict=True):
                raise ModuleFileError(f"{what} takes {value.name!r} as {value.type!r}, and it is {found!r}")


def _agree(a: Type | None, b: Type | None, strict: bool = False) -> bool:
    """Whether two types are the same where both are known, or, if strict, are known alike.

    Sizes that have names are not compared: each text names its own.
    """
    if a is None or b is None:
        return a is b or not strict
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return not isinstance(a, TensorType) and type(a) is type(b) and _agree(a.of, b.of, strict)
    if a.dtype != b.dtype or a.shape is None or b.shape is None:
        return a.dtype == b.dtype and (a.shape is b.shape or not strict)
    return len(a.shape) == len(b.shape) and all(
        x == y if isinstance(x, int) and isinstance(y, int) else isinstance(x, int) == isinstance(y, int) or not strict
        for x, y in zip(a.shape, b.shape)
    )


def _lies_between(array: Array, held: tuple[int, int]) -> bool:
    whole = array.dtype.kind in "iu" and array.size > 0
    return whole and held[0] <= int(array.min()) and int(array.max()) <= held[1]


def _reaches(program: Program) -> list[tuple[str, int]]:
    native = [step for step in program.steps if isinstance(step, NativeStep)]
    return [(kind, reach[0]) for step in native for (kind, _), reach in zip(step.bases, step.reach)]


def check_host_graph(graph: Graph) -> None:
    """Refuses a host node that is no use of its operator: what runs it relies on types that were inferred."""
    if len(infer(graph).nodes) != 1:
        raise ModuleFileError("a host step is not one node")


# ------------------------------------------------------------------------------------------------------------ devices

MOST_THREADS = 1024


def check_calls(program: Program, programs: Mapping[str, DeviceProgram]) -> None:
    """Refuses launches that name what does not exist, or whose arguments reach further than their steps say."""
    for one in programs.values():
        _check_program(one)
    for step in program.steps:
        if isinstance(step, NativeStep):
            ends = [0] * len(step.bases)
            if len(step.kernels) != len(step.calls):
                raise ModuleFileError(f"{step.symbol} does not say what each of its kernels computes")
            for call in step.calls:
                found = programs.get(call.symbol)
                given = [] if found is None else [p for p in found.parameters if p.name != ERRORS]
                if found is None or len(given) != len(call.arguments) or given != list(found.parameters[: len(given)]):
                    raise ModuleFileError(f"there is no kernel {call.symbol[:80]} with {len(call.arguments)} arguments")
                for parameter, (base, offset) in zip(given, call.arguments):
                    if base >= len(ends):
                        raise ModuleFileError(f"{call.symbol} has no base {base}")
                    ends[base] = max(ends[base], offset + parameter.bytes)
                    if parameter.is_written and not step.reach[base][1]:
                        raise ModuleFileError(f"{call.symbol} writes to base {base}")
            if ends != [reach[0] for reach in step.reach]:
                raise ModuleFileError(f"the calls of {step.symbol} do not reach as far as it says")


def _check_program(program: DeviceProgram) -> None:
    rooms = {p.name: p.bytes for p in program.parameters} | {w.name: w.bytes for w in program.workspaces}
    known = set(rooms)
    for kernel in program.kernels:
        if (
            not 1 <= math.prod(kernel.block) <= MOST_THREADS
            or not set(kernel.params) <= known | kernel.constants.keys()
            or any(m.bytes > rooms.get(m.source, 0) for m in kernel.maps)
        ):
            raise ModuleFileError(f"the kernel {kernel.name[:80]} cannot be launched like this")
