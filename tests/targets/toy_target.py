"""A target in one file: an accelerator with registers of its own (scopes), a stream of instructions, and a device.

The machine multiplies tiles of 4 × 4 float32. Its sequencer, here in Python, runs a stream:

    toy_load(A, 16, buf[0], 64)      a tile from memory: where it begins, how far its rows are apart; "toy.buf"
    toy_store(acc[0], C, 16, 64)     a tile to memory, from the accumulator; "toy.acc"
    toy_zero(acc[0])                 toy_mma(buf[0], buf[1], acc[0])     acc[0] += buf[0]ᵀ buf[1]
    for i in range(16): …            loops and tests, and one number at a time for all the rest: C[i] = A[i] * 2

`registry.register(TARGET)` and every part of Weft knows it. docs/add-a-target.md walks through this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.program import DeviceKernel, DeviceProgram, Parameter, Workspace, number
from weft.codegen.c.statements import elements
from weft.core.dtypes import INT32, dtype
from weft.core.errors import TargetError
from weft.expr.evaluate import convert
from weft.expr.intrinsics import PURE, REPORT
from weft.expr.nodes import Address, Buffer, Call, Cast, Const, Expr, Load, Var, int_value
from weft.expr.visit import children
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store
from weft.loop.passes.check_bounds import check_bounds_on_device, check_regions
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.flatten import flatten
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.serialize_threads import serialize_threads
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.visit import walk_exprs, walk_stmts
from weft.runtime.array_memory import ArrayMemory
from weft.schedule.facts import block_named, names_of
from weft.schedule.primitives.matrix import matrix_axes
from weft.schedule.schedule import Schedule
from weft.targets.base import Device, DeviceSpec, LocalDevice, Scope, Target, TargetSpec, plain_scopes

SIDE = 4
SCOPES = {name: Scope(name, slots, SIDE * SIDE * 4) for name, slots in (("toy.buf", 2), ("toy.acc", 1))}

TOY = Target(
    kind="toy", name="toy", triple="toy", cpu="toy-4x4", features=frozenset(), vector_bytes=0, vector_registers=0,
    cache_bytes=(0, 0, 0), cores=1, has_fma=False, scopes={**plain_scopes("global", "local", "shared"), **SCOPES},
    is_host=True,
)  # fmt: skip


def _declare() -> None:
    """What the instructions compute, for `tensorize`, and the calls that they become."""
    tile = te.placeholder((SIDE, SIDE), name="tile")
    copied = te.compute((SIDE, SIDE), lambda i, j: tile[i, j], name="copied")

    def copy(name: str, inputs: Any, outputs: Any, rows: Any) -> Call:
        return Call(name, (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), rows.stride(0)), INT32)

    te.decl_tensor_intrin(copied.op, lambda i, o: copy("toy_load", i, o, rows=i[0]), "toy_load")
    te.decl_tensor_intrin(copied.op, lambda i, o: copy("toy_store", i, o, rows=o[0]), "toy_store")
    x, y = te.placeholder((SIDE, SIDE), name="x"), te.placeholder((SIDE, SIDE), name="y")
    k = te.reduce_axis(SIDE, name="k")
    product = te.compute((SIDE, SIDE), lambda i, j: te.sum(x[k, j] * y[k, i], axis=k), name="product")

    def multiply(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        reset = Call("toy_zero", (outputs[0].access_ptr("w"),), INT32)
        places = (inputs[1].access_ptr("r"), inputs[0].access_ptr("r"), outputs[0].access_ptr("rw"))
        update = Call("toy_mma", places, INT32)
        return [reset, update], reset, update

    te.decl_tensor_intrin(product.op, multiply, "toy_mma")


_declare()


def schedule(s: Schedule, target: Target, constants: Collection[Buffer]) -> None:
    """Products in tiles; all other loops stay as they are."""
    for name in names_of(s):
        axes = matrix_axes(block_named(s, name))
        if axes is not None and {axes.x_operand.dtype.name, axes.y_operand.dtype.name} == {"float32"}:
            with s.attempt("toy tiles"):
                _tile(s, name, len(axes.k))


def _tile(s: Schedule, name: str, depth: int) -> None:
    """sum[y, x] += X[k, x] * Y[k, y] by tiles: operands into registers, products into an accumulator, and out."""
    x, y, total = s.apply("matrix_form", block=name, pads=[SIDE] * 3, order=list(range(depth)))
    sums, out = s.cache_write(total, "toy.acc"), s[total]
    batch, rows, columns = out.loops
    row, inner_row = out.split(rows, factor=SIDE)
    column, inner_column = out.split(columns, factor=SIDE)
    out.reorder(batch, row, column, inner_row, inner_column)
    sums.compute_at(out, column)
    out.tensorize(inner_row, "toy_store")
    *_, inner_y, inner_x, k = sums.loops
    step, inner_k = sums.split(k, factor=SIDE)
    sums.reorder(step, inner_y, inner_x, inner_k)
    for operand in (x, y):
        tile = s.cache_read(operand, "toy.buf", [sums.name])
        tile.compute_at(sums, step)
        tile.tensorize(tile.loops[-2], "toy_load")
    sums.tensorize(inner_y, "toy_mma")


def lower(func: Func, target: Target) -> Func:
    """The program as `generate` takes it: loops, accesses with one index, calls of the machine's instructions."""
    lowered = lower_blocks(check_regions(decompose_init(func)))
    return simplify_func(flatten(check_bounds_on_device(serialize_threads(lowered))))


NUMBERS = {
    "Add": "({} + {})", "Sub": "({} - {})", "Mul": "({} * {})", "Div": "({} / {})", "FloorDiv": "({} // {})",
    "FloorMod": "({} % {})", "Min": "least({}, {})", "Max": "most({}, {})", "EQ": "({} == {})", "NE": "({} != {})",
    "LT": "({} < {})", "LE": "({} <= {})", "And": "({} and {})", "Or": "({} or {})", "Not": "(not {})",
    "Select": "({1} if {0} else {2})",
}  # fmt: skip
"""What the sequencer computes with numbers, as its stream says it."""


@dataclass
class Writer:
    """Writes the stream of a lowered program."""

    target: Target
    names: dict[Any, str]
    tiles: dict[Buffer, str] = field(default_factory=dict)
    workspaces: list[Workspace] = field(default_factory=list)

    def name(self, what: Any) -> str:
        return self.names.setdefault(what, f"{what.name.replace('.', '_')}_{len(self.names)}")

    def value(self, e: Expr) -> str:
        if isinstance(e, Var):
            return self.name(e)
        if isinstance(e, Const):
            return repr(e.value) if e.dtype.name == "int64" else f"{e.dtype.name}({e.value!r})"
        if isinstance(e, Load):
            return f"{self.name(e.buffer)}[{self.value(e.indices[0])}]"
        if isinstance(e, Address):
            return self.tiles.get(e.buffer) or f"{self.name(e.buffer)}, {self.value(e.indices[0])}"
        parts = [self.value(part) for part in children(e)]
        if isinstance(e, Cast):
            return f'convert({parts[0]}, dtype("{e.value.dtype}"), dtype("{e.dtype}"))'
        if isinstance(e, Call) and (e.name in PURE or e.name in self.target.intrinsics()):
            return f"{e.name}({', '.join(parts)})"
        if type(e).__name__ in NUMBERS:
            return NUMBERS[type(e).__name__].format(*parts)
        raise TargetError(f"the toy has no {e.name if isinstance(e, Call) else type(e).__name__}")

    def lines(self, s: Stmt) -> list[str]:
        if isinstance(s, Seq):
            return [line for part in s.stmts for line in self.lines(part)]
        if isinstance(s, For):
            return [f"for {self.name(s.var)} in range({self.value(s.extent)}):", *self.inside(s.body)]
        if isinstance(s, If):
            otherwise = [] if s.otherwise is None else ["else:", *self.inside(s.otherwise)]
            return [f"if {self.value(s.condition)}:", *self.inside(s.then), *otherwise]
        if isinstance(s, Let):
            return [f"{self.name(s.var)} = {self.value(s.value)}", *self.lines(s.body)]
        if isinstance(s, Store):
            return [f"{self.name(s.buffer)}[{self.value(s.indices[0])}] = {self.value(s.value)}"]
        if isinstance(s, Allocate):
            return self.allocated(s)
        assert isinstance(s, Evaluate)
        return [self.value(s.value)]

    def inside(self, s: Stmt) -> list[str]:
        return [f"  {line}" for line in self.lines(s)] or ["  pass"]

    def allocated(self, s: Allocate) -> list[str]:
        """Memory becomes a workspace; a tile takes the next register of its scope while the statement runs."""
        buffer, scope = s.buffer, self.target.scopes.get(s.buffer.scope)
        if scope is None:
            raise TargetError(f"the toy has no memory {buffer.scope!r}: it has {', '.join(self.target.scopes)}")
        if not scope.slots:
            self.workspaces.append(Workspace(self.name(buffer), buffer.dtype, _size(buffer)))
            return self.lines(s.body)
        used = sum(other.scope == scope.name for other in self.tiles)
        if used == scope.slots or _size(buffer) != SIDE * SIDE:
            raise TargetError(f"{buffer.name} needs a tile of {SIDE} × {SIDE} in one of {scope.slots} {scope.name}")
        self.tiles[buffer] = f"{scope.name.removeprefix('toy.')}[{used}]"
        lines = self.lines(s.body)
        del self.tiles[buffer]
        return lines


def generate(func: Func, target: Target) -> DeviceProgram:
    """The stream of a lowered program, and the memory that it works on."""
    params = [*func.params, *func.size_vars]
    writer = Writer(target, {one: one.name for one in params})
    text = "\n".join(writer.lines(func.body)) + "\n"
    written = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Store)}
    written |= {e.buffer for e in walk_exprs(func.body) if isinstance(e, Address) and "w" in e.mode}
    parameters = tuple(Parameter(p.name, p.dtype, isinstance(p, Buffer), p in written, _size(p)) for p in params)
    names = tuple(one.name for one in (*parameters, *writer.workspaces))
    kernel = DeviceKernel(func.name, (1, 1, 1), (1, 1, 1), 0, 0, names)
    return DeviceProgram(func.name, text, parameters, (kernel,), tuple(writer.workspaces))


def _size(what: Buffer | Var) -> Any:
    count = elements(what) if isinstance(what, Buffer) else 1
    return count if int_value(count) is None else int_value(count)


def _rows(memory: Any, start: int, stride: int) -> Any:
    return np.lib.stride_tricks.as_strided(memory[start:], (SIDE, SIDE), (stride * memory.itemsize, memory.itemsize))


INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "toy_load": lambda memory, start, tile, stride: np.copyto(tile, _rows(memory, start, stride)),
    "toy_store": lambda tile, memory, start, stride: np.copyto(_rows(memory, start, stride), tile),
    "toy_zero": lambda tile: tile.fill(0),
    "toy_mma": lambda y, x, total: np.add(total, y.T @ x, out=total),
    REPORT: lambda wrong, errors, start: errors.__setitem__(start, errors[start] | wrong),
}
TYPES = "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
MEANINGS = {
    **INSTRUCTIONS, **{name: one.evaluate for name, one in PURE.items()}, "convert": convert, "dtype": dtype,
    "least": np.minimum, "most": np.maximum, "inf": np.inf, "nan": np.nan, "bool": bool,
    **{name: dtype(name).numpy.type for name in TYPES},
}  # fmt: skip


class Launch:
    """A stream with the memory that it names, ready to run."""

    def __init__(self, program: DeviceProgram, given: Mapping[str, Any]) -> None:
        sizes = {name: int(value) for name, value in given.items() if isinstance(value, np.integer)}
        self.code = compile(program.source, program.name, "exec")
        self.names = {**MEANINGS, **given}
        for one in (*program.parameters, *program.workspaces):
            bytes_of_it = number(one.elements, sizes) * one.dtype.bytes
            memory = given.get(one.name, np.zeros(bytes_of_it, np.uint8))
            if isinstance(memory, np.ndarray):
                self.names[one.name] = memory[:bytes_of_it].view(one.dtype.numpy)
        for name, scope in SCOPES.items():
            self.names[name.removeprefix("toy.")] = np.zeros((scope.slots, SIDE, SIDE), np.float32)

    def launch(self, stream: Any = None) -> None:
        with np.errstate(all="ignore"):
            exec(self.code, self.names)


@dataclass
class Executable:
    """A program on the device."""

    program: DeviceProgram

    def bind(self, arguments: Mapping[str, Any]) -> list[Launch]:
        return [Launch(self.program, arguments)]

    def run(self, arguments: Mapping[str, Any]) -> None:
        self.bind(arguments)[0].launch()


class ToyDevice(ArrayMemory, Device):
    """Runs a program as Python; what is queued is done at once."""

    name = "a toy in numpy"

    def load_all(self, programs: Sequence[DeviceProgram], codes: Sequence[bytes] = ()) -> list[Executable]:
        return [Executable(program) for program in programs]


DEVICE = ToyDevice()

TARGET = TargetSpec(
    kind="toy",
    forms=("toy                                      a toy accelerator: tiles of 4 × 4 float32",),
    parse=lambda text: TOY if text == "toy" else None,
    lower=lower,
    schedule=schedule,
    intrinsics=lambda target: INSTRUCTIONS,
    device=DeviceSpec(
        generate=generate,
        open=lambda target: DEVICE,
        stages={"toy": (lambda program, target: program.source, "python")},
    ),
    local_devices=lambda: [LocalDevice(TOY, DEVICE.name, 1 << 30)],
)
