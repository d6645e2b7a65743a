"""The interpreter: what a loop program means, run in Python and numpy, with checks.

    interpret(func, A, B, C)             runs a scheduled, lowered or flat program; output arrays are written in place
    register_effect(name, function)      gives a meaning to calls that have effects, such as tensor instructions

The program is translated once into Python source (`expressions.py`, `statements.py`), which then runs. With `check`
(the default) these are errors, each naming the buffer, the indices, the loops' values and the block: an access out of
bounds, a read of an element of an intermediate that was never written, a data race between iterations of a parallel or
vectorized loop or between threads, and a barrier that not every thread of a block reaches.
Parameters count as initialised.

Threads: loops over blockIdx run one after the other, unless their blocks meet (`grid_barrier`); threads of a block (and
vthreads, which are further threads) run in turns from barrier to barrier. A scheduled program has no barriers yet: its
threads wait for one another between the statements of a sequence, and between the iterations of a loop around such a
sequence. A loop of a tag that is launched already is the same thread. "shared" (and "warp") memory is one for a block
of threads, "local" one for a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import InterpreterError, WeftError
from weft.expr.intrinsics import REPORT
from weft.expr.nodes import Buffer, Expr, int_value
from weft.loop.interpreter.arguments import Bound, Sizes, bind_arguments
from weft.loop.interpreter.emitter import Value, literal
from weft.loop.interpreter.expressions import FALSE, TRUE, Expressions, float_code
from weft.loop.interpreter.failures import Failures
from weft.loop.interpreter.memory import Memory, Pointer, compact_strides, memory_size, new_memory
from weft.loop.interpreter.placement import BLOCKING, COLLECTIVE
from weft.loop.interpreter.statements import Statements
from weft.loop.interpreter.threads import Wait, run_all, run_block, run_group
from weft.loop.interpreter.values import element_type, run_time_names, to_python
from weft.loop.ir import Block, Func
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.visit import walk_stmts

__all__ = ["EFFECTS", "Pointer", "generate_source", "interpret", "register_effect"]

EFFECTS: dict[str, Callable[..., Any]] = {}
"""The meaning of calls that are not pure, by name: functions on Pointers (for Address) and Python numbers."""


def register_effect(name: str, function: Callable[..., Any], blocks: bool = False, collective: bool = False) -> None:
    """Gives a call of this name a meaning in the interpreter.

    The function gets a `Pointer` for each Address argument, a numpy array for a vector, a Python number for any other.
    It may write through `pointer.view(shape)`. What it returns is the value of the call where that is used. One that
    blocks returns whether a thread may go on: others run until then. A collective one is what all threads along
    threadIdx.x do together: it happens once for them.
    """
    EFFECTS[name] = function
    if collective:
        COLLECTIVE.add(name)
    if blocks:
        BLOCKING.add(name)


def _report(wrong: Any, *place: Any) -> None:
    if np.any(wrong):
        raise InterpreterError("an index lies outside of the dimension that it indexes")


register_effect(REPORT, _report)


def interpret(func: Func, *args: Any, check: bool = True, sizes: Mapping[str, int] | None = None) -> None:
    """Runs a program on numpy arrays (buffers, in the order of the parameters) and numbers (scalar parameters).

    Arrays are written in place and need not be contiguous. Buffers of packed dtypes (int4, uint1, …) are uint8 arrays
    packed along the last axis, low bits first, each row filled up to whole bytes. Sizes are found from the arrays'
    shapes; one that no shape gives directly is given by name in `sizes`.
    """
    translator = Statements(func, Failures(func.name), check)
    bound = bind_arguments(func, args, sizes, translator.written, translator.level_count, _evaluate_size)
    if _reduces_nothing(func, bound.values):
        return interpret(decompose_init(func), *args, check=check, sizes=sizes)
    try:
        program = _compile(_translate(translator, func, bound), translator, func)
        with np.errstate(all="ignore"):
            program()
    except WeftError:
        raise
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        advice = "verify the program" if check else "run it with check=True to learn where"
        raise InterpreterError(f"{func.name!r} goes wrong ({error}): {advice}") from error
    finally:
        for step in bound.finish:
            step()


def generate_source(func: Func, *args: Any, check: bool = True, sizes: Mapping[str, int] | None = None) -> str:
    """The Python source that `interpret` runs for these arguments, for a person who wants to see what happens."""
    translator = Statements(func, Failures(func.name), check)
    bound = bind_arguments(func, args, sizes, translator.written, translator.level_count, _evaluate_size)
    return _translate(translator, func, bound)


def _reduces_nothing(func: Func, values: Sizes) -> bool:
    """Whether a reduction runs over a size that is 0 in this call: its init then has no iteration to run in."""
    axes = (axis for s in walk_stmts(func.body) if isinstance(s, Block) and s.init is not None for axis in s.axes)
    return any(
        axis.kind == "reduce" and int_value(axis.extent) is None and _evaluate_size(axis.extent, values) == 0
        for axis in axes
    )


def _evaluate_size(e: Expr, values: Sizes) -> Any:
    translator = Expressions(Failures("a shape"), True, False)
    _bind_values(translator, values)
    code = translator.expression(e).code
    namespace = {**run_time_names(), **translator.namespace}
    exec("\n".join(["def size():", *translator.lines, f" return {code}"]), namespace)
    return namespace["size"]()


def _bind_values(translator: Expressions, values: Sizes) -> None:
    for var, value in values.items():
        if var.dtype.is_float:
            translator.names[var] = Value(float_code(value))
        elif var.dtype.is_bool:
            translator.names[var] = TRUE if value else FALSE
        else:
            translator.names[var] = literal(int(value))


def _translate(translator: Statements, func: Func, bound: Bound) -> str:
    """The whole program as the source of one function without arguments."""
    _bind_values(translator, bound.values)
    for buffer, memory in bound.memories.items():
        dims = [literal(extent) for extent in bound.shapes[buffer]]
        strides = [literal(stride) for stride in memory.strides]
        place = translator.declare(buffer, dims, strides, literal(len(memory.data)))
        translator.namespace[f"m{place.number}"] = memory
        translator.open(place)
    for allocation in translator.homes.get(None, ()):
        translator.allocate(allocation, func.body)
    try:
        translator.statement(func.body)
    except RecursionError:
        raise InterpreterError(f"{func.name!r} nests too deep for the interpreter") from None
    return "\n".join(["def program():", *translator.lines, " pass"])


def _compile(source: str, translator: Statements, func: Func) -> Callable[[], None]:
    namespace = {
        **run_time_names(),
        **translator.namespace,
        "K": [0, 0],
        "Pointer": Pointer,
        "Wait": Wait,
        "run_group": run_group,
        "run_all": run_all,
        "run_block": run_block,
        "new_memory": new_memory,
        "instances": _instances,
        "compact_strides": compact_strides,
        "memory_size": memory_size,
        "as_array": _as_array,
        "call_effect": _effect_caller(func.name),
    }
    try:
        exec(compile(source, f"<loop program {func.name}>", "exec"), namespace)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise InterpreterError(f"{func.name!r} nests too deep for the interpreter ({error})") from error
    program: Callable[[], None] = namespace["program"]
    return program


def _instances(
    buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], check: bool, levels: int
) -> Callable[..., Memory]:
    """Memory of which each thread (or virtual thread) has an instance of its own, found by its index."""
    made: dict[tuple[int, ...], Memory] = {}

    def find(*key: int) -> Memory:
        memory = made.get(key)
        if memory is None:
            memory = made[key] = new_memory(buffer, shape, strides, check, levels)
        return memory

    return find


def _as_array(values: list[Any], kind: DType) -> np.ndarray[Any, Any]:
    return np.array(values, element_type(kind.scalar))


def _effect_caller(function: str) -> Callable[..., Any]:
    def call(
        place: tuple[str, DType | None, str | None, tuple[str, ...]], args: tuple[Any, ...], loops: tuple[Any, ...]
    ) -> Any:
        name, kind, block, names = place
        effect = EFFECTS.get(name)
        values = ", ".join(f"{loop}={value}" for loop, value in zip(names, loops))
        where = (f"block {block!r} of " if block else "") + f"{function!r}" + (f" at {values}" if values else "")
        if effect is None:
            raise InterpreterError(
                f"the call {name!r} in {where} has no meaning here: register one with "
                f"weft.loop.interpreter.register_effect({name!r}, function)"
            )
        try:
            result = effect(*args)
        except WeftError as error:
            raise InterpreterError(f"{error} (in the call {name!r} of {where})") from error
        except Exception as error:
            raise InterpreterError(
                f"the function of the call {name!r} in {where} raised {type(error).__name__}: {error}"
            ) from error
        if kind is None or kind.kind == "handle":
            return result
        try:
            return [to_python(value, kind.scalar) for value in result] if kind.lanes > 1 else to_python(result, kind)
        except (TypeError, ValueError) as error:
            raise InterpreterError(f"the call {name!r} in {where} gave {result!r}, which is not a {kind}") from error

    return call
