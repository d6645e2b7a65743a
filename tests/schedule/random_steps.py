"""Random steps of a schedule: `draw_steps(source, schedule)` gives one use of a primitive, or a short plan of several.

Most are sensible. A step may be illegal: then ScheduleError is raised and it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from tests.schedule.random_programs import Source
from weft.expr.nodes import int_value, is_true
from weft.expr.visit import free_vars
from weft.loop.ir import THREAD_TAGS, Block, For, Func, Seq
from weft.loop.tree import (
    axis_loops,
    block_path,
    blocks_in,
    loop_path,
    loops_in,
    loops_on,
    readers,
    writers,
)
from weft.loop.visit import walk_stmts
from weft.schedule.intrinsic import INTRINSICS
from weft.schedule.primitives.matrix import matrix_axes
from weft.schedule.schedule import Schedule

SCOPES = ("local", "shared", "global", "local")

Step = tuple[str, dict[str, Any]]


Plan = Generator[Step, Any, None]
"""Steps one after the other; what a step hands back (None: it was refused) is sent in before the next."""


def draw_steps(source: Source, schedule: Schedule) -> Plan:
    """One use of a primitive, or a short plan of several that only make sense together."""
    if _without_past(schedule.func) and source.chance(15):
        yield _release_axis(source, schedule.func)
    elif source.chance(15):
        yield from tensorize_plan(source, schedule)
    elif source.chance(8):
        yield from tile_plan(source, schedule)
    else:
        name = source.pick(WEIGHTED)
        yield STEPS[name](source, schedule.func)


def tensorize_plan(source: Source, schedule: Schedule) -> Plan:
    """Splits the loops of a block into tiles that an intrinsic may fit, and hands the tile to it."""
    names = [name for name in INTRINSICS if name.startswith("test_")]
    candidates = []
    for block in blocks_in(schedule.func.body):
        loops = {
            loop.var.name: int_value(loop.extent) for loop in loops_on(block_path(schedule.func, block.name, "test"))
        }
        bound = axis_loops(block)
        extents = [loops.get(str(name)) for name in bound]
        for name in names:
            _, _, kind, sizes = name.split("_")
            tile = [int(x) for x in sizes.split("x")]
            fits = all(extent is not None and extent % size == 0 for extent, size in zip(extents[-len(tile) :], tile))
            if kind == block.writes[0].buffer.dtype.name and len(tile) <= len(bound) and fits:
                if ("matmul" in name) == any(axis.kind == "reduce" for axis in block.axes):
                    candidates.append((name, bound[-len(tile) :], tile))
    if not candidates:
        return
    name, loops_to_split, tile = source.pick(candidates)
    outer, inner = [], []
    for loop, size in zip(loops_to_split, tile):
        made = yield "split", {"loop": loop, "factors": [None, size]}
        if made is None:
            return
        outer.append(made[0])
        inner.append(made[1])
    if source.chance(30):
        block_name = blocks_in(loop_path(schedule.func, inner[0], "test")[-1])[0].name
        yield "decompose_reduction", {"block": block_name, "loop": source.pick(outer)}
    yield "reorder", {"loops": [*outer, *inner]}
    yield "tensorize", {"loop": inner[0], "intrin": name}


def tile_plan(source: Source, schedule: Schedule) -> Plan:
    """Tiles two nested loops and computes a producer (or the consumer) inside the tile."""
    chains = [c for c in _chains(schedule.func) if len(c) > 1]
    if not chains:
        return
    chain = source.pick(chains)
    first, second = chain[0].var.name, chain[1].var.name
    block = blocks_in(chain[-1])[0]
    a = yield "split", {"loop": first, "factors": [None, source.pick((2, 3, 4))]}
    b = yield "split", {"loop": second, "factors": [None, source.pick((2, 3, 4))]}
    if a is None or b is None:
        return
    yield "reorder", {"loops": [a[0], b[0], a[1], b[1]]}
    at = source.pick((a[0], b[0], a[1], b[1]))
    makers = [w.name for r in block.reads for w in writers(schedule.func.body, r.buffer)]
    takers = [r.name for w in block.writes for r in readers(schedule.func.body, w.buffer)]
    if makers and source.chance(60):
        yield "compute_at", {"block": source.pick(makers), "loop": at}
    elif takers:
        yield "reverse_compute_at", {"block": source.pick(takers), "loop": at}


def _loop(source: Source, func: Func) -> str:
    loops = loops_in(func.body)
    return source.pick(loops).var.name if loops else "none"


def _serial(source: Source, func: Func) -> For | None:
    loops = [loop for loop in loops_in(func.body) if loop.kind == "serial"]
    return source.pick(loops) if loops else None


def _block(source: Source, func: Func) -> Block:
    return source.pick(blocks_in(func.body))


def _split(source: Source, func: Func) -> Step:
    loop = _serial(source, func)
    factor = source.pick((1, 2, 2, 3, 4, 4, 5))
    ways = [[None, factor], [None, factor], [factor, None], [None, 2, 2], [2, None, 2]]
    factors = source.pick(ways)
    if loop is not None and int_value(loop.extent) is not None and source.chance(15):
        total = int_value(loop.extent) or 1
        factors = [-(-total // 2), 2]
    return "split", {"loop": loop.var.name if loop else "none", "factors": factors}


def _chains(func: Func) -> list[list[For]]:
    """The runs of directly nested loops."""
    out = []
    inner = {id(loop.body) for loop in loops_in(func.body)}
    for loop in loops_in(func.body):
        if id(loop) in inner:
            continue
        chain = [loop]
        while isinstance(chain[-1].body, For):
            chain.append(chain[-1].body)
        out.append(chain)
    return out


def _fuse(source: Source, func: Func) -> Step:
    chains = [c for c in _chains(func) if len(c) > 1]
    if not chains:
        return "fuse", {"loops": [_loop(source, func), _loop(source, func)]}
    chain = source.pick(chains)
    start = source.number(0, len(chain) - 2)
    end = source.number(start + 2, min(len(chain), start + 3))
    return "fuse", {"loops": [loop.var.name for loop in chain[start:end]]}


def _reorder(source: Source, func: Func) -> Step:
    chains = [c for c in _chains(func) if len(c) > 1]
    if not chains:
        return "reorder", {"loops": [_loop(source, func), _loop(source, func)]}
    names = [loop.var.name for loop in source.pick(chains)]
    chosen: list[str] = []
    for _ in range(source.number(2, len(names))):
        chosen.append(source.pick([n for n in names if n not in chosen]))
    return "reorder", {"loops": chosen}


def _mark(name: str) -> Callable[[Source, Func], Step]:
    def step(source: Source, func: Func) -> Step:
        loops = [loop for loop in loops_in(func.body) if loop.kind == "serial"]
        if name == "vectorize":  # most often the innermost loop, as people do
            inner = [loop for loop in loops if isinstance(loop.body, Block)]
            loops = inner if inner and source.chance(75) else loops
        return name, {"loop": source.pick(loops).var.name if loops else "none"}

    return step


def _bind(source: Source, func: Func) -> Step:
    loop = _serial(source, func)
    thread = source.pick(("threadIdx.x", "threadIdx.y", "blockIdx.x", "blockIdx.y", "vthread", *THREAD_TAGS))
    return "bind", {"loop": loop.var.name if loop else "none", "thread": thread}


def _compute_at(source: Source, func: Func) -> Step:
    pairs = []
    for block in blocks_in(func.body):
        for region in block.writes:
            for reader in readers(func.body, region.buffer):
                pairs += [(block.name, loop.var.name) for loop in loops_on(block_path(func, reader.name, "test"))]
    if not pairs or source.chance(5):
        return "compute_at", {"block": _block(source, func).name, "loop": _loop(source, func)}
    block, loop = source.pick(pairs)
    arguments = {"block": block, "loop": loop}
    return "compute_at", {**arguments, "exact": False} if source.chance(15) else arguments


def _reverse_compute_at(source: Source, func: Func) -> Step:
    pairs = []
    for block in blocks_in(func.body):
        for region in block.reads:
            for writer in writers(func.body, region.buffer):
                pairs += [(block.name, loop.var.name) for loop in loops_on(block_path(func, writer.name, "test"))]
    if not pairs or source.chance(5):
        return "reverse_compute_at", {"block": _block(source, func).name, "loop": _loop(source, func)}
    block, loop = source.pick(pairs)
    return "reverse_compute_at", {"block": block, "loop": loop}


def _compute_inline(source: Source, func: Func) -> Step:
    inner = [b for b in blocks_in(func.body) if b.writes[0].buffer in func.allocations and b.init is None]
    return "compute_inline", {"block": source.pick(inner).name if inner else _block(source, func).name}


def _reverse_compute_inline(source: Source, func: Func) -> Step:
    likely = []
    for block in blocks_in(func.body):
        makers = [w for r in block.reads for w in writers(func.body, r.buffer)]
        if makers and block.init is None and all(w.init is None for w in makers):
            likely.append(block)
    return "reverse_compute_inline", {"block": source.pick(likely or blocks_in(func.body)).name}


def _cache_read(source: Source, func: Func) -> Step:
    block = _block(source, func)
    buffers = [r.buffer.name for r in block.reads] or [r.buffer.name for r in block.writes]
    consumers = source.pick((None, None, [block.name]))
    return "cache_read", {"buffer": source.pick(buffers), "scope": source.pick(SCOPES), "consumers": consumers}


def _cache_write(source: Source, func: Func) -> Step:
    block = _block(source, func)
    return "cache_write", {"buffer": block.writes[0].buffer.name, "scope": source.pick(SCOPES)}


def _buffer(source: Source, func: Func) -> Any:
    intermediate = list(func.allocations)
    return source.pick(intermediate) if intermediate and source.chance(95) else source.pick(func.buffers)


def _reductions(func: Func) -> list[Block]:
    return [b for b in blocks_in(func.body) if b.init is not None] or blocks_in(func.body)


def _rfactor(source: Source, func: Func) -> Step:
    block = source.pick(_reductions(func))
    loops = loops_on(block_path(func, block.name, "test"))
    reducing = [
        s for s in loops for a, b in zip(block.axes, block.bindings) if a.kind == "reduce" and s.var in _variables(b)
    ]
    loops = reducing or loops
    rank = len(block.writes[0].buffer.shape)
    loop = source.pick(loops).var.name if loops else "none"
    return "rfactor", {"block": block.name, "loop": loop, "factor_axis": source.number(-1, rank)}


def _variables(e: Any) -> Any:
    return free_vars(e)


def _decompose(source: Source, func: Func) -> Step:
    block = source.pick(_reductions(func))
    loops = loops_on(block_path(func, block.name, "test"))
    return "decompose_reduction", {"block": block.name, "loop": source.pick(loops).var.name if loops else "none"}


def _tensorize(source: Source, func: Func) -> Step:
    loops = [loop for loop in loops_in(func.body) if loop.kind == "serial" and len(blocks_in(loop)) == 1]
    names = [name for name in INTRINSICS if name.startswith("test_")]
    fitting = []
    for loop in loops:
        block = blocks_in(loop)[0]
        kind = block.writes[0].buffer.dtype.name
        extents = [int_value(s.extent) for s in loops_in(loop)]
        for name in names:
            _, _, wanted, sizes = name.split("_")
            if (
                wanted == kind
                and None not in extents
                and sorted(e for e in extents if e != 1) == sorted(int(x) for x in sizes.split("x"))
            ):
                fitting.append((loop.var.name, name))
    if fitting and source.chance(90):
        loop_name, name = source.pick(fitting)
        return "tensorize", {"loop": loop_name, "intrin": name}
    return "tensorize", {"loop": _loop(source, func), "intrin": source.pick(names)}


def _transform_layout(source: Source, func: Func) -> Step:
    buffer = _buffer(source, func)
    names = [f"i{d}" for d in range(len(buffer.shape))]
    maps: list[list[str]] = [names[::-1], list(names)]
    if names:
        first, rest = names[0], names[1:]
        maps += [
            [f"{first} // 2", *rest, f"{first} % 2"],
            [f"{first} // 3", f"{first} % 3", *rest],
            [f"{first}*2", *rest],
        ]
        maps += [[f"{first} + 1", *rest], [*rest, f"{first}"]]
    if len(names) > 1 and int_value(buffer.shape[1]) is not None:
        maps += [[f"{names[0]}*{int_value(buffer.shape[1])} + {names[1]}", *names[2:]]]
    return "transform_layout", {"buffer": buffer.name, "inputs": names, "outputs": source.pick(maps)}


def _storage_align(source: Source, func: Func) -> Step:
    fitting = [b for b in func.allocations if len(b.shape) > 1]
    buffer = source.pick(fitting) if fitting and source.chance(90) else _buffer(source, func)
    rank = max(1, len(buffer.shape))
    factor = source.pick((2, 4, 8))
    dim = source.number(-rank, rank - 2) if rank > 1 else source.number(-1, 0)
    return "storage_align", {
        "buffer": buffer.name,
        "dim": dim,
        "factor": factor,
        "offset": source.number(0, factor - 1),
    }


def _pad(source: Source, func: Func) -> Step:
    fitting = [b for b in blocks_in(func.body) if b.writes[0].buffer in func.allocations or len(b.axes) > 1]
    block = source.pick(fitting or blocks_in(func.body))
    loops = [name for name in axis_loops(block) if name is not None]
    loop = source.pick(loops) if loops and source.chance(90) else _loop(source, func)
    return "pad", {"block": block.name, "loop": loop, "factor": source.pick((2, 3, 4, 8))}


def _overrun(source: Source, func: Func) -> Step:
    # Past its end an intermediate that is read is memory which nobody has written: the result is not used, but the
    # interpreter says so. `tests/schedule/test_primitives_storage.py` covers that case.
    inner = set(func.allocations)
    fitting = [b for b in blocks_in(func.body) if not any(r.buffer in inner for r in b.reads)]
    tested = [b for b in fitting if not is_true(b.predicate) and b.writes[0].buffer in inner]
    if tested and source.chance(90):
        block = source.pick(tested)
    else:
        block = source.pick(fitting) if fitting else blocks_in(func.body)[0]
    axis = source.number(0, max(len(block.axes) - 1, 0))
    return "overrun", {"block": block.name, "axis": axis, "tile": source.pick((0, 0, 2, 3, 4))}


def _matrix_form(source: Source, func: Func) -> Step:
    products = [block for block in blocks_in(func.body) if matrix_axes(block) is not None]
    block = source.pick(products) if products else _block(source, func)
    count = sum(axis.kind == "reduce" for axis in block.axes)
    return "matrix_form", {
        "block": block.name,
        "pads": [source.pick((1, 2, 3, 4)) for _ in range(3)],
        "order": sorted(range(count), reverse=source.chance(50)),
        "parts": source.pick((1, 1, 2, 3)),
        "k_last": [source.number(0, 1), source.number(0, 1)],
    }


def _split_axis(source: Source, func: Func) -> Step:
    block = _block(source, func)
    axes = [axis.var.name for axis in block.axes if axis.kind != "ordered"] or ["none"]
    return "split_axis", {"block": block.name, "axis": source.pick(axes), "factor": source.pick((1, 2, 2, 3, 4))}


def _last_axis(source: Source, func: Func) -> Step:
    block = _block(source, func)
    return "last_axis", {"block": block.name, "axis": source.pick([axis.var.name for axis in block.axes] or ["none"])}


def _lay_out(source: Source, func: Func) -> Step:
    """The caller's arrays stay as they are, so the only layout that fits them is the plain one."""
    buffer = source.pick(func.buffers)
    none = [0] * len(buffer.shape)
    return "lay_out", {"buffer": buffer.name, "dimension": 0, "factor": 1, "before": none, "after": none}


def _cache_operand(source: Source, func: Func) -> Step:
    block = _block(source, func)
    read = [region for region in block.reads if region.buffer not in {w.buffer for w in block.writes}]
    region = source.pick(read) if read else block.writes[0]
    axes = [axis.var.name for axis in block.axes if any(axis.var in free_vars(low) for low in region.mins)]
    return "cache_operand", {
        "block": block.name,
        "buffer": region.buffer.name,
        "scope": source.pick(("local", "global")),
        "axes": sorted(axes, reverse=source.chance(50)),
    }


def _merge_loops(source: Source, func: Func) -> Step:
    """Two neighbours, of the same extent where there are such."""
    pairs = []
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Seq):
            pairs += [(a, b) for a, b in zip(stmt.stmts, stmt.stmts[1:]) if isinstance(a, For) and isinstance(b, For)]
    like = [(a, b) for a, b in pairs if int_value(a.extent) == int_value(b.extent)]
    if not pairs:
        return "merge_loops", {"first": _loop(source, func), "second": _loop(source, func)}
    first, second = source.pick(like or pairs)
    return "merge_loops", {"first": first.var.name, "second": second.var.name}


def _without_past(func: Func) -> list[Block]:
    """The blocks in a loop over steps that read nothing that they wrote in earlier ones."""
    ordered = [b for b in blocks_in(func.body) if any(axis.kind == "ordered" for axis in b.axes)]
    return [b for b in ordered if not {r.buffer for r in b.reads} & {w.buffer for w in b.writes}]


def _release_axis(source: Source, func: Func) -> Step:
    found = _without_past(func)
    block = source.pick(found) if found else _block(source, func)
    ordered = [axis.var.name for axis in block.axes if axis.kind == "ordered"]
    return "release_axis", {"block": block.name, "axis": source.pick(ordered) if ordered else "none"}


def _zigzag(source: Source, func: Func) -> Step:
    loop = _loop(source, func)
    around = [s.var.name for s in loops_on(loop_path(func, loop, "zigzag"))[:-1]] if loop != "none" else []
    return "zigzag", {"loop": loop, "by": source.pick(around) if around else loop}


def _pipeline(source: Source, func: Func) -> Step:
    loops = loops_in(func.body)
    several = [loop for loop in loops if isinstance(loop.body, Seq)]
    loop = source.pick(several or loops) if loops else None
    if loop is None:
        return "software_pipeline", {"loop": "none", "stages": [0]}
    count = len(loop.body.stmts) if isinstance(loop.body, Seq) else 1
    stages = sorted(source.number(0, 2) for _ in range(count))
    return "software_pipeline", {
        "loop": loop.var.name,
        "stages": stages,
        "order": source.pick((None, list(range(count)))),
    }


def _annotate(source: Source, func: Func) -> Step:
    target = source.pick([b.name for b in blocks_in(func.body)] + [loop.var.name for loop in loops_in(func.body)])
    key = source.pick(("pragma_hint", "note", "auto_unroll"))
    return "annotate", {"target": target, "key": key, "value": source.pick((True, 3, "text", [1, 2], {"a": None}, 0.5))}


def _prefetch(source: Source, func: Func) -> Step:
    buffer = source.pick([*func.buffers, *func.allocations])
    return "prefetch", {"buffer": buffer.name, "loop": _loop(source, func), "distance": source.number(1, 3)}


STEPS: dict[str, Callable[[Source, Func], Step]] = {
    "split": _split,
    "fuse": _fuse,
    "reorder": _reorder,
    "parallel": _mark("parallel"),
    "vectorize": _mark("vectorize"),
    "unroll": _mark("unroll"),
    "bind": _bind,
    "compute_at": _compute_at,
    "reverse_compute_at": _reverse_compute_at,
    "compute_inline": _compute_inline,
    "reverse_compute_inline": _reverse_compute_inline,
    "cache_read": _cache_read,
    "cache_write": _cache_write,
    "rfactor": _rfactor,
    "decompose_reduction": _decompose,
    "tensorize": _tensorize,
    "transform_layout": _transform_layout,
    "set_scope": lambda source, func: (
        "set_scope",
        {"buffer": _buffer(source, func).name, "scope": source.pick(SCOPES)},
    ),
    "storage_align": _storage_align,
    "pad": _pad,
    "overrun": _overrun,
    "matrix_form": _matrix_form,
    "merge_loops": _merge_loops,
    "release_axis": _release_axis,
    "split_axis": _split_axis,
    "last_axis": _last_axis,
    "lay_out": _lay_out,
    "cache_operand": _cache_operand,
    "zigzag": _zigzag,
    "reverse": _mark("reverse"),
    "double_buffer": lambda source, func: ("double_buffer", {"buffer": _buffer(source, func).name}),
    "software_pipeline": _pipeline,
    "prefetch": _prefetch,
    "annotate": _annotate,
}
OFTEN = {"split": 5, "fuse": 3, "reorder": 4, "compute_at": 4, "reverse_compute_at": 2, "cache_read": 2,
         "cache_write": 2, "rfactor": 2, "vectorize": 2, "tensorize": 3, "bind": 2, "storage_align": 2, "pad": 3,
         "overrun": 6, "matrix_form": 4, "split_axis": 2, "lay_out": 2, "cache_operand": 3, "merge_loops": 3,
         "release_axis": 3,
         "reverse_compute_inline": 3}  # fmt: skip
WEIGHTED = [name for name in STEPS for _ in range(OFTEN.get(name, 1))]
