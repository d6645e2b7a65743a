"""From a flat Func to C source.

func f(A: float32[64], B: float32[64]):                extern "C" __global__ void f_0(const float *A, float *B) {
  blockIdx.x for b in range(2):                          const int32_t b = (int32_t)blockIdx.x;
    threadIdx.x for t in range(32):                ->    const int32_t t = (int32_t)threadIdx.x;
      B[b * 32 + t] = A[b * 32 + t] + 1.0                B[b * 32 + t] = A[b * 32 + t] + 1.0f; }

`generate` gives a DeviceProgram (OpenCL, CUDA); `generate_plain` one function of plain C, with the calling convention
of docs/architecture.md; `generate_bare` one that takes its memory from the caller.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence

from weft.codegen.c import calls, expressions, statements, types
from weft.codegen.c.context import Context, Emitter, Module
from weft.codegen.c.dialects import BARE, PLAIN, Dialect
from weft.codegen.c.program import DeviceKernel, DeviceProgram, Parameter, Size, TensorMap, Workspace
from weft.codegen.llvm.context import Machine
from weft.core.errors import TargetError
from weft.expr.intrinsics import REPORT
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, Select, Var, elements, int_value
from weft.expr.visit import walk
from weft.loop.ir import For, Func, Seq, Stmt, Store
from weft.loop.passes.split_host_device import TAGS, Launch, split_host_device
from weft.loop.passes.support import is_call, meets_grid
from weft.loop.visit import walk_exprs, walk_stmts

Maps = tuple[tuple[Buffer, tuple[tuple[int, ...], ...]], ...]
PARAMETER_ALIGNMENT = 16
"""Bytes that the start of every buffer of a device program is a multiple of: whoever launches sees to it."""
LAUNCH_WAIT = "launch_wait"
"""The call where a kernel waits for the one before it; a kernel without it waits at its top."""
_is_wait = functools.partial(is_call, name=LAUNCH_WAIT)


def c_symbol(name: str) -> str:
    """The C name of a Func's functions, which no header and no library has."""
    return "weft_fn_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def _module(dialect: Dialect, machine: Machine | None, intrinsics: Mapping[str, Emitter] | None) -> Module:
    module = Module(dialect, machine, intrinsics or {})
    module.expressions = {**expressions.TABLE, **calls.TABLE, **statements.EXPRESSIONS}
    module.statements = statements.STATEMENTS
    return module


def generate(
    func: Func, machine: Machine, dialect: Dialect, *, intrinsics: Mapping[str, Emitter] | None = None
) -> DeviceProgram:
    """Source and launches of a lowered, flat Func, whose thread loops are kernels."""
    threads = getattr(machine, "threads", None)
    shared = 48 << 10 if threads is None else int(threads.shared_bytes)
    func = func.replace(name=c_symbol(func.name))
    host = split_host_device(func, shared)
    if threads is not None:
        _check_blocks(host.launches, int(threads.block_threads), machine)
    names = _unique_names((*func.params, *host.workspaces, *func.size_vars, *_host_variables(host.launches)))
    module = _module(dialect, machine, intrinsics)
    module.overlay = func.annotations.get("shared_overlay", ())
    written = _written(func.body)
    made: dict[str, tuple[int, int, Maps]] = {}
    kernels: list[DeviceKernel] = []
    for launch in host.launches:
        if launch.name not in made:
            made[launch.name] = _kernel(module, launch, set(func.size_vars))
        shared_bytes, dynamic, seen = made[launch.name]
        constants = {names[var]: value for var, value in launch.constants.items()}
        grid = _sizes(launch.grid)
        params = tuple(names[p] for p in launch.params)
        maps = tuple(TensorMap(names[buffer], buffer.dtype.bytes, *given) for buffer, given in seen)
        is_whole = meets_grid(launch.body)
        waits = bool(threads is not None and threads.overlaps_launches) and not is_whole
        made_of = launch.name, grid, launch.block, shared_bytes, dynamic, params, constants, waits, maps, is_whole
        kernels.append(DeviceKernel(*made_of))
    parameters = tuple(
        Parameter(names[p], p.dtype, isinstance(p, Buffer), p in written, _elements(p))
        for p in (*func.params, *func.size_vars)
    )
    workspaces = tuple(Workspace(names[w], w.dtype, _size(elements(w))) for w in host.workspaces)
    return DeviceProgram(func.name, module.text(), parameters, tuple(kernels), workspaces, module.pieces())


def _check_blocks(launches: tuple[Launch, ...], most: int, machine: Machine) -> None:
    for launch in launches:
        count = math.prod(launch.block)
        if count > most:
            raise TargetError(
                f"{launch.name} has {count} threads in a block, but {machine.name} has at most {most}: split the loops "
                "that are bound to threadIdx by smaller factors"
            )


def _sizes(sizes: tuple[Expr, Expr, Expr]) -> tuple[Size, Size, Size]:
    x, y, z = (_size(size) for size in sizes)
    return x, y, z


def _elements(param: Buffer | Var) -> Size:
    return _size(elements(param)) if isinstance(param, Buffer) else 1


def _size(size: Expr) -> Size:
    known = int_value(size)
    return size if known is None else known


def _host_variables(launches: tuple[Launch, ...]) -> tuple[Var, ...]:
    return tuple(dict.fromkeys(var for launch in launches for var in launch.constants))


def _unique_names(things: tuple[Buffer | Var, ...]) -> dict[Buffer | Var, str]:
    """A name for each argument; sizes keep theirs, since expressions of sizes speak of them."""
    names: dict[Buffer | Var, str] = {thing: thing.name for thing in things if isinstance(thing, Var)}
    taken = set(names.values())
    for thing in things:
        if isinstance(thing, Var):
            continue
        name, number = thing.name, 0
        while name in taken:
            number += 1
            name = f"{thing.name}_{number}"
        taken.add(name)
        names[thing] = name
    return names


def _written(body: Stmt) -> set[Buffer | Var]:
    found: set[Buffer | Var] = {s.buffer for s in walk_stmts(body) if isinstance(s, Store)}
    for e in walk_exprs(body):
        if isinstance(e, Address) and "w" in e.mode:
            found.add(e.buffer)
    return found


def _kernel(module: Module, launch: Launch, sizes: set[Var]) -> tuple[int, int, Maps]:
    """Writes one kernel; the shared memory it takes, how much of that the launch must ask for, its tensors' maps."""
    c = Context(module)
    dialect = module.dialect
    c.fresh(launch.name)
    extents: tuple[Expr | int, ...] = (*launch.grid, *launch.block)
    c.launch = {tag: int_value(extent) for tag, extent in zip(TAGS, extents)}
    c.indices |= sizes | set(launch.constants)
    written, early = _written(launch.body), _in_order(launch)
    parameters = []
    for param in launch.params:
        name = c.names[param] = c.fresh(param.name)
        if isinstance(param, Var):
            parameters.append(f"const {types.memory_type(param.dtype)} {name}")
            continue
        c.aligned[param] = PARAMETER_ALIGNMENT
        constant = "" if param in written else "const "
        kind = types.memory_type(param.dtype)
        alone = "" if param in early else dialect.restrict
        parameters.append(f"{dialect.global_space}{constant}{kind} *{alone} {name}")
    for param in launch.params:
        if isinstance(param, Var):
            _read_scalar(c, param)
    c.run(launch.body)
    shared, dynamic = _declare_shared(c, module.overlay)
    parameters += [f"const __grid_constant__ weft_tensor_map {name}" for name in c.maps.values()]
    head = f"{dialect.kernel}{_bounds(module, launch)} void {launch.name}({', '.join(parameters)}) {{"
    facts = getattr(module.machine, "threads", None)
    overlaps = facts is not None and facts.overlaps_launches
    first = [*_ahead(c, launch), *([] if _waits_itself(launch) else [dialect.wait])] if overlaps else []
    module.functions.append("\n".join([head, *first, *c.top, *c.lines, "}"]))
    return shared, dynamic, tuple(c.maps)


def _waits_itself(launch: Launch) -> bool:
    """Whether a kernel says where it waits for the one before it."""
    return any(map(_is_wait, walk_stmts(launch.body)))


def _in_order(launch: Launch) -> set[Buffer]:
    """What a kernel that says where it waits loads before that, or after it, in this order: of memory that nothing else
    names, NVIDIA's compiler may move loads over the wait, either way."""
    around = [s.stmts for s in walk_stmts(launch.body) if isinstance(s, Seq) and any(map(_is_wait, s.stmts))]
    first = [s for stmts in around for s in itertools.takewhile(lambda s: not _is_wait(s), stmts)]
    found = {e for s in first for e in walk_exprs(s, Load) if isinstance(e, Load)}
    tests = [e.condition for s in first for e in walk_exprs(s, Select) if isinstance(e, Select)]
    parts = [*tests, *(index for e in found for index in e.indices)]
    needed = {e.buffer for part in parts for e in walk(part, Load) if isinstance(e, Load)}
    every = {param for param in launch.params if isinstance(param, Buffer)}
    if meets_grid(launch.body):  # other blocks write what this one reads after a barrier
        return {param for param in every if param in _written(launch.body)}
    return every - needed if around else set()  # what others need is early anyway


def _ahead(c: Context, launch: Launch) -> list[str]:
    """What is asked for before a kernel waits: parts of constants, as a schedule says by the annotation "fetched_ahead"
    of the loop over blocks. Only whole chunks of 16 bytes can be, from a multiple on: small ones come when they do."""
    named = {param.name: param for param in launch.params if isinstance(param, Buffer)}
    loops = [s for s in walk_stmts(launch.body) if isinstance(s, For) and s.kind == "thread"]
    wanted = [one for loop in loops for one in loop.annotations.get("fetched_ahead", ()) if one[0] in named]
    sizes = {name: param.dtype.bytes for name, param in named.items()}
    return [c.dialect.ahead.format(c.names[named[name]], step, count * sizes[name] // 16 * 16)
            for name, step, count in wanted
            if c.dialect.ahead and step * sizes[name] % 16 == 0 and count * sizes[name] >= 16]  # fmt: skip


def _bounds(module: Module, launch: Launch) -> str:
    """What the compiler is told about a launch: its threads, and how many blocks a multiprocessor has to hold.

    Unless it knows that, NVIDIA's compiler saves registers for further blocks, and loads wait for one another instead.
    A schedule says so by the annotation "resident" of a loop over blocks; of few blocks each has one for itself. Blocks
    that run together are the annotation "cluster".
    """
    if module.dialect.name == "opencl":
        return f" __attribute__((reqd_work_group_size({', '.join(map(str, launch.block))})))"
    if module.dialect.name != "cuda":
        return ""
    facts = getattr(module.machine, "threads", None)
    sizes = [int_value(size) for size in launch.grid]
    blocks = None if None in sizes else math.prod(size for size in sizes if size is not None)
    alone = facts is not None and blocks is not None and blocks <= facts.multiprocessors
    loops = [s for s in walk_stmts(launch.body) if isinstance(s, For) and s.kind == "thread"]
    said = max((int(s.annotations.get("resident", 0)) for s in loops), default=0)
    held = (said or 2) if _waits_itself(launch) else 1 if alone else said  # the next kernel begins beside it
    cluster = max((int(s.annotations.get("cluster", 1)) for s in loops), default=1)
    together = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    return f"{together} __launch_bounds__({math.prod(launch.block)}{f', {held}' if held else ''})"


def _read_scalar(c: Context, param: Var) -> None:
    """A scalar parameter of a type whose registers and memory differ is converted first."""
    if types.register_type(param.dtype) != types.memory_type(param.dtype):
        given = c.names[param]
        name = c.names[param] = c.fresh(param.name)
        text = f"({given} != 0)" if param.dtype.is_bool else expressions.from_bits(given, param.dtype)
        c.top.append(f"  const {types.register_type(param.dtype)} {name} = {text};")


def _shared_offsets(c: Context, overlay: Sequence[Sequence[str]]) -> tuple[list[int], int]:
    """Where each shared buffer begins, and the bytes in all; groups that may lie over one another begin together."""
    offsets = [0] * len(c.shared)
    begin = end = 0
    group_of = {name: number for number, group in enumerate(overlay) for name in group}
    for wanted in (None, *range(len(overlay))):
        total = begin
        for place, (buffer, _, size) in enumerate(c.shared):
            if group_of.get(buffer.name) == wanted:
                alignment = c.aligned[buffer]
                offsets[place] = -(-total // alignment) * alignment
                total = offsets[place] + size
        begin = total if wanted is None else begin
        end = max(end, total)
    return offsets, end


def _declare_shared(c: Context, overlay: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Shared memory is declared at the top of a kernel; what is too much for that is asked for at the launch."""
    offsets, total = _shared_offsets(c, overlay)
    dialect = c.dialect
    lines = []
    is_overlaid = any(buffer.name in group for buffer, _, _ in c.shared for group in overlay)
    pooled = total > dialect.static_shared_bytes or (is_overlaid and dialect.name == "cuda")
    if pooled:
        lines.append("  extern __shared__ __align__(1024) uint8_t shared_memory[];")
    for (buffer, name, size), offset in zip(c.shared, offsets):
        kind = types.memory_type(buffer.dtype)
        if pooled:
            lines.append(f"  {kind} *{name} = ({kind} *)(shared_memory + {offset});")
            continue
        alignment = c.aligned[buffer]
        mark = f"__align__({alignment}) " if dialect.name == "cuda" else ""
        after = "" if mark else f" __attribute__((aligned({alignment})))"
        lines.append(f"  {dialect.shared_space}{mark}{kind} {name}[{size // buffer.dtype.bytes}]{after};")
    c.top[:0] = lines
    return total, total if pooled else 0


# ------------------------------------------------------------------------------------------------------ plain C


def generate_plain(func: Func, *, intrinsics: Mapping[str, Emitter] | None = None) -> str:
    """C11 source of a lowered, flat Func without thread loops; its entry is `c_symbol(func.name)`."""
    module = _module(PLAIN, None, intrinsics)
    _plain_function(module, func, "int32_t {}(const int64_t *args, int64_t threads) {{", "threads", None)
    return module.text()


def generate_bare(func: Func) -> tuple[tuple[str, ...], int]:
    """C99 definitions of a lowered, flat Func that allocates nothing, and the bytes of scratch memory that it wants.

    Its entry is `static int32_t c_symbol(func.name)(void *const *args, unsigned char *scratch)`.
    """
    module = _module(BARE, None, None)
    head = "static int32_t {}(void *const *args, unsigned char *scratch) {{"
    wanted = _plain_function(module, func, head, "scratch", 0)
    return module.pieces(), wanted


def _plain_function(module: Module, func: Func, head: str, unused: str, given: int | None) -> int:
    """Writes a function that runs the whole of a Func; the bytes that it wants of the caller."""
    c = Context(module)
    c.given = given
    c.indices |= set(func.size_vars)
    overlapping = set(func.annotations.get("may_overlap", ()))
    for number, param in enumerate((*func.params, *func.size_vars)):
        _bind(c, param, number, "" if param.name in overlapping else "restrict ")
    c.run(func.body)
    reports = any(isinstance(e, Call) and e.name == REPORT for e in walk_exprs(func.body))
    c.line("return code;" if reports else "return 0;")
    top = [f"  (void){unused};", *(["  int32_t code = 0;"] if reports else []), *c.top]
    module.functions.append("\n".join([head.format(c_symbol(func.name)), *top, *c.lines, "}"]))
    return c.most_given


def _bind(c: Context, param: Buffer | Var, number: int, restrict: str) -> None:
    """Reads a parameter from its slot; machines are little-endian, so a small value stands in the low bytes."""
    name = c.names[param] = c.fresh(param.name)
    kind = types.memory_type(param.dtype)
    if isinstance(param, Buffer):
        through = "(intptr_t)" if c.given is None else ""
        c.line(f"{kind} *{restrict}{name} = ({kind} *){through}args[{number}];")
        c.aligned[param] = param.dtype.bytes
        return
    c.line(f"{kind} {name};")
    c.line(f"memcpy(&{name}, &args[{number}], sizeof {name});")
    if types.register_type(param.dtype) != kind:
        wide = c.names[param] = c.fresh(param.name)
        text = f"({name} != 0)" if param.dtype.is_bool else expressions.from_bits(name, param.dtype)
        c.line(f"const {types.register_type(param.dtype)} {wide} = {text};")
