"""Layer 7: a schedule (or a loop program) and a target in, a compiled function out."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Sequence

from weft.codegen.llvm import compile as llvm_compile
from weft.codegen.llvm.generate import entry_symbol, generate
from weft.core.errors import ExpressionError, TargetError
from weft.expr.nodes import (
    Add, Binary, Buffer, Const, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub, Var, int_value,
)  # fmt: skip
from weft.loop.ir import Func, Param, Store
from weft.loop.tree import blocks_in
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts
from weft.runtime.function import CompiledFunction, Dim, Parameter, Signature
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.registry import find_target

logger = logging.getLogger("weft.build")


def with_arguments(func: Func, args: Sequence[Any] | None) -> Func:
    """The program with its parameters in the order the caller wants; an intermediate may become an output."""
    if args is None:
        return func
    wanted: list[Param] = []
    for arg in args:
        if isinstance(arg, Var) or (isinstance(arg, Buffer) and (arg in func.params or arg in func.allocations)):
            wanted.append(arg)
        elif isinstance(arg, Buffer):
            raise ExpressionError(f"{arg.name} is among the arguments but the program neither reads nor computes it")
        else:
            raise ExpressionError(f"an argument is a tensor or a te.var, not {arg!r}")
    if len(set(wanted)) != len(wanted):
        raise ExpressionError("a tensor stands twice among the arguments")
    missing = [p.name for p in func.params if isinstance(p, Buffer) and p not in wanted]
    if missing:
        raise ExpressionError(f"{', '.join(missing)} must be among the arguments: the program reads or computes it")
    rest = [b for b in func.allocations if b not in wanted]
    return func.replace(params=wanted, allocations=rest)


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
    func = with_arguments(what.func if isinstance(what, Schedule) else what, args)
    verify(func)
    return find_target(target).lower(func)  # type: ignore[no-any-return]


class Built:
    """A compiled program that is not (yet) in this process: LLVM IR, assembly, object code, a shared library."""

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

    def load(self, threads: int | None = None) -> CompiledFunction:
        """The function in this process."""
        address_of, keep = llvm_compile.jit(self.llvm_ir, self.target)
        symbol = entry_symbol(self.lowered.name)
        made = CompiledFunction(self.signature, address_of(symbol), (keep, self), threads)
        made.built = self  # type: ignore[attr-defined]
        return made


def build(
    what: Schedule | Func,
    args: Sequence[Any] | None = None,
    target: str | Target = "native",
    name: str | None = None,
    threads: int | None = None,
) -> Any:
    """Compiles a schedule or a loop program.

    `args` gives the order of the parameters (tensors, and te.var scalars). For this machine the result is a function to
    call with arrays; for another it is a `Built`, which gives object code and assembly.
    """
    machine = find_target(target)
    func = with_arguments(_func(what), args)
    if name is not None:
        func = func.replace(name=name)
    verify(func)
    built = Built(func, machine, func.name)
    logger.debug("built %s for %s", func.name, machine.name)
    if not machine.is_host:
        return built
    return built.load(threads)


def _func(what: Any) -> Func:
    if isinstance(what, Schedule):
        return what.func
    if isinstance(what, Func):
        return what
    raise TargetError(f"weft.build takes a schedule or a loop program, not {type(what).__name__}")


class _CallableModule(ModuleType):
    """Once this module is loaded, `weft.build` is the module and no longer the function: calling it must still build."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return build(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
