"""Layer 7: a schedule (or a loop program) and a target in, a compiled function out.

f = weft.build(s, [A, B, C])                          machine code in this process: f(a, b, c)
f.built.assembly(), f.built.llvm_ir, f.built.lowered  how it got there
weft.build(s, [A, B, C], "aarch64-unknown-linux-gnu").object_code()
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, overload

import numpy as np

from weft.codegen.c.program import DeviceProgram
from weft.codegen.llvm import compile as llvm_compile
from weft.codegen.llvm.generate import entry_symbol, generate
from weft.core.errors import ExpressionError, RuntimeFault, ScheduleError, TargetError
from weft.expr.nodes import (
    Add,
    Binary,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Sub,
    Var,
    int_value,
)  # fmt: skip
from weft.loop.ir import Func, Param, Store
from weft.loop.passes.check_bounds import ERRORS
from weft.loop.tree import blocks_in
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts
from weft.runtime.arguments import bind, memory_of, scalar_of_bits, slot_format
from weft.runtime.faults import OUTSIDE, REASONS
from weft.runtime.function import CompiledFunction, Dim, InProcess, Parameter, Signature
from weft.runtime.threads import check_threads
from weft.schedule.schedule import Schedule
from weft.targets.base import Device, Target
from weft.targets.registry import find_target
from weft.te.intrin import create_schedule
from weft.te.tensor import Tensor

logger = logging.getLogger("weft.build")


def with_arguments(func: Func, args: Sequence[Any] | None) -> Func:
    """The program with its parameters in the order the caller wants; an intermediate may become an output."""
    if args is None:
        return func
    if isinstance(args, (str, Buffer, Var)) or not isinstance(args, Sequence):
        raise ExpressionError(
            f"the arguments are a list of tensors, such as [A, B, C], not {args!r}"
            f"{'; a target is given as target=…' if isinstance(args, str) else ''}"
        )
    wanted: list[Param] = []
    for arg in args:
        if isinstance(arg, Var) or (isinstance(arg, Buffer) and (arg in func.params or arg in func.allocations)):
            wanted.append(arg)
        elif isinstance(arg, Buffer):
            raise ExpressionError(_not_there(arg, func))
        else:
            raise ExpressionError(f"an argument is a tensor or a te.var, not {arg!r}")
    if len(set(wanted)) != len(wanted):
        raise ExpressionError("a tensor stands twice among the arguments")
    missing = [p.name for p in func.params if isinstance(p, Buffer) and p not in wanted]
    if missing:
        raise ExpressionError(f"{', '.join(missing)} must be among the arguments: the program reads or computes it")
    rest = [b for b in func.allocations if b not in wanted]
    return func.replace(params=wanted, allocations=rest)


def _not_there(buffer: Buffer, func: Func) -> str:
    if any(other.name == buffer.name for other in func.allocations):
        return f"{buffer.name} cannot be an argument: the schedule changed its memory (scope, strides or layout)"
    return f"{buffer.name} is among the arguments but the program neither reads nor computes it"


def signature_of(func: Func) -> Signature:
    """What the compiled function takes, as the runtime checks it."""
    written: set[Buffer] = set()
    for block in blocks_in(func.body):
        written.update(r.buffer for r in block.writes)
    written.update(s.buffer for s in walk_stmts(func.body) if isinstance(s, Store))
    parameters = []
    for param in func.params:
        if isinstance(param, Var):
            parameters.append(Parameter(param.name, param.dtype, None))
            continue
        strides = None if param.strides is None else tuple(_dim(s) for s in param.strides)
        shape = tuple(_dim(s) for s in param.shape)
        parameters.append(Parameter(param.name, param.dtype, shape, param in written, 1, strides))
    return Signature(func.name, tuple(parameters), tuple(v.name for v in func.size_vars))


_OPERATIONS: dict[type[Expr], str] = {
    Add: "add", Sub: "sub", Mul: "mul", FloorDiv: "floordiv", FloorMod: "floormod", Min: "min", Max: "max",
}  # fmt: skip


def _dim(size: Expr) -> Dim:
    if isinstance(size, Const):
        return int_value(size) or 0
    if isinstance(size, Var):
        return size.name
    name = _OPERATIONS.get(type(size))
    if name is None or not isinstance(size, Binary):
        raise ExpressionError(f"a parameter's size must be index arithmetic, not {size!r}")
    return (name, _dim(size.a), _dim(size.b))


def lower(what: Schedule | Func, args: Sequence[Any] | None = None, target: str | Target = "native") -> Func:
    """The loop program as the target's code generator gets it."""
    func = with_arguments(_func(what), args)
    verify(func)
    return find_target(target).lower(func)


class Built:
    """A compiled program that is not (yet) in this process.

    `lowered` is the loop program after the target's passes, `llvm_ir` the LLVM IR made of it, `signature` what the
    function takes. Assembly, object code and a shared library are made when they are asked for.
    """

    def __init__(self, func: Func, target: Target, name: str) -> None:
        self.name = name
        self.target = target
        self.signature = signature_of(func)
        self.lowered: Func = target.lower(func)
        self.llvm_ir: str = generate(self.lowered, target, intrinsics=target.intrinsics())

    def assembly(self) -> str:
        """The machine code as text."""
        return llvm_compile.emit_assembly(self.llvm_ir, self.target)

    def object_code(self) -> bytes:
        """The machine code as an object file."""
        return llvm_compile.emit_object(self.llvm_ir, self.target)

    def save_object(self, path: str | Path) -> None:
        """Writes the object file."""
        Path(path).write_bytes(self.object_code())

    def save_library(self, path: str | Path) -> None:
        """Writes a shared library that needs nothing but the C library: the runtime is linked in."""
        from weft.runtime.native import native_ir

        runtime = llvm_compile.emit_object(native_ir(self.target.triple), self.target)
        llvm_compile.link_shared([self.object_code(), runtime], path, self.target)

    def load(self, threads: int | None = None) -> BuiltFunction:
        """The function in this process."""
        address_of, keep = llvm_compile.jit(self.llvm_ir, self.target)
        return BuiltFunction(self, address_of(entry_symbol(self.lowered.name)), keep, threads)

    def __repr__(self) -> str:
        parameters = ", ".join(p.name for p in self.signature.parameters)
        return f"Built({self.name}({parameters}) for {self.target.name})"


class BuiltFunction(CompiledFunction):
    """A compiled function that knows how it came about: `f.built` has its loop program, LLVM IR and assembly."""

    def __init__(self, built: Built, address: int, keep_alive: Any, threads: int | None) -> None:
        super().__init__(built.signature, address, keep_alive, threads)
        self.built = built


class DeviceBuilt:
    """A program for a device: `lowered`, and `program` with its source and launches."""

    def __init__(self, func: Func, target: Target, name: str) -> None:
        self.name = name
        self.target = target
        self.signature = signature_of(func)
        self.lowered: Func = target.lower(func)
        self.program: DeviceProgram = target.generate(self.lowered)

    @property
    def source(self) -> str:
        """The text that the device's compiler gets."""
        return self.program.source

    def load(self, threads: int | None = None) -> DeviceFunction:
        """The function on the device of this machine; it has its own threads."""
        return DeviceFunction(self, self.target.device())

    def __repr__(self) -> str:
        parameters = ", ".join(p.name for p in self.signature.parameters)
        return f"DeviceBuilt({self.name}({parameters}) for {self.target.name})"


class DeviceFunction(InProcess):
    """A function on a device, called with arrays of the host: they are copied there, and what it wrote back."""

    def __init__(self, built: DeviceBuilt, device: Device) -> None:
        self.built = built
        self.signature = built.signature
        self.device = device
        self._program = device.load(built.program)

    def __call__(self, *arguments: Any) -> None:
        """Run the function; returns when everything is written."""
        slots, values = bind(self.signature, arguments)
        sizes = struct.unpack(slot_format(self.signature), slots)[len(values) :]
        given: dict[str, Any] = {}
        written: list[tuple[Any, Any]] = []
        for parameter, device_parameter, value in zip(self.signature.parameters, self.built.program.parameters, values):
            if parameter.shape is None:
                given[device_parameter.name] = scalar_of_bits(value, parameter.dtype)
                continue
            host = memory_of(value)
            memory = given[device_parameter.name] = self.device.allocate(max(host.nbytes, 1))
            self.device.write(memory, host)
            if parameter.written:
                written.append((memory, host))
        for name, size in zip(self.signature.size_names, sizes):
            given[name] = np.int64(size)
        errors = np.zeros(1, np.int32)
        if any(parameter.name == ERRORS for parameter in self.built.program.parameters):
            given[ERRORS] = self.device.allocate(errors.nbytes)
            self.device.write(given[ERRORS], errors)
        self._program.run(given)
        if ERRORS in given:
            self.device.read(given[ERRORS], errors)
        if errors[0]:
            raise RuntimeFault(f"{self.signature.name} failed: {REASONS[OUTSIDE]}")
        for memory, host in written:
            self.device.read(memory, host)

    def __repr__(self) -> str:
        return f"DeviceFunction({self.signature.name} on {self.built.target.name})"


AnyBuilt = Union[BuiltFunction, DeviceFunction, Built, DeviceBuilt]
"""What `build` gives, by its target: a function where the target is a machine that is here, else its code."""


@overload
def build(
    what: Schedule | Func | Tensor,
    args: Sequence[Any] | None = None,
    target: Literal["native", "cpu"] = "native",
    name: str | None = None,
    threads: int | None = None,
    check_indices: bool = True,
    plan: bool = False,
) -> BuiltFunction: ...


@overload
def build(
    what: Schedule | Func | Tensor,
    args: Sequence[Any] | None = None,
    target: str | Target = "native",
    name: str | None = None,
    threads: int | None = None,
    check_indices: bool = True,
    plan: bool = False,
) -> AnyBuilt: ...


def build(
    what: Schedule | Func | Tensor,
    args: Sequence[Any] | None = None,
    target: str | Target = "native",
    name: str | None = None,
    threads: int | None = None,
    check_indices: bool = True,
    plan: bool = False,
) -> AnyBuilt:
    """Compiles a schedule, a loop program, or a tensor that `te.compute` gave (its plain loops).

    `args` gives the order of the parameters (tensors, and te.var scalars). For this machine the result is a function to
    call with arrays; for another it is a `Built`, which gives object code and assembly (a `DeviceBuilt`, which gives
    the source, where the target is a GPU).

    An index that is data, as in `A[I[i]]`, is tested when the function runs: one outside of its dimension is not used,
    and the call fails with a RuntimeFault. `check_indices=False` leaves the tests out, for data that is known to be
    right: an index outside then reads or writes whatever lies there. Indices that are proven right cost nothing.

    With `plan` the program gets the schedule that it would get in a model (`Schedule.plan`).
    """
    machine = find_target(target)
    if isinstance(what, Tensor):
        what = create_schedule(what)
    if plan:
        what = _planned(what, machine)
    func = with_arguments(_func(what), args)
    if not check_indices:
        func = func.replace(annotations={**func.annotations, "check_indices": False})
    if name is not None:
        func = func.replace(name=_function_name(name))
    if threads is not None:
        threads = check_threads(threads)
    built = _compile(func, machine)
    logger.debug("built %s for %s", func.name, machine.name)
    if not machine.is_host:
        return built
    return built.load(threads)


def _planned(what: Schedule | Func, machine: Target) -> Schedule:
    """A copy of a schedule, planned."""
    if isinstance(what, Schedule) and what.trace.steps:
        raise ScheduleError("plan", what.func.name, "it has a schedule already: build it without plan=True")
    schedule = Schedule(what.func if isinstance(what, Schedule) else what)
    schedule.plan(machine)
    return schedule


def _compile(func: Func, machine: Target) -> Built | DeviceBuilt:
    try:
        verify(func)
        if machine.on_device:
            return DeviceBuilt(func, machine, func.name)
        return Built(func, machine, func.name)
    except RecursionError:
        raise ExpressionError(
            f"the program {func.name} nests too deep: compute long expressions in several steps, and long chains of "
            "operations in several functions"
        ) from None


def _function_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ExpressionError(f"{name!r} cannot name a function: use letters, digits and underscores")
    return name


def _func(what: Any) -> Func:
    if isinstance(what, Schedule):
        return what.func
    if isinstance(what, Func):
        return what
    hint = ""
    if isinstance(what, Buffer) and hasattr(what, "op"):
        hint = f": make a schedule of it, te.create_schedule({what.name}.op)"
    elif isinstance(what, (str, bytes)) or hasattr(what, "nodes"):
        hint = ": weft.compile takes models"
    raise TargetError(f"weft.build takes a schedule or a loop program, not {type(what).__name__}{hint}")
