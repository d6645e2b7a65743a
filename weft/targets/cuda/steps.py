"""A step of a recurrence whose products tensor cores take, as one kernel: sums of some units, and their new values.

    for t                                   the steps, in order: each starts a kernel, or one stays for all
        for units            blockIdx.x     a block for each few units of the state, with all gates and sequences
            for part of k    threadIdx.y    a warp for each: rows of the state and of the weights into registers
            new values                      of each unit and sequence a thread, which adds up the warps' sums

Both operands come straight from memory, all that a warp reads at once: there is nothing to share, and a step takes
as long as its loads take to arrive. Where registers hold a block's weights, all blocks fit the machine at a time and it
takes less time, one kernel stays for all steps (`stay.py`).

    mma_rows_<kind>_<rows>_<gates>x<units>_<depth>_<lanes>    C[i, g, u] += X[k // lanes, i, k % lanes]
                                                                            * W[k // lanes, g, u, k % lanes]; any sizes
    mma_rows_store_<rows>_<gates>x<units>                     C[i, g, u] to memory
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32, dtype
from weft.core.errors import ScheduleError
from weft.expr.nodes import Call, Var
from weft.loop.tree import blocks_in, loop_of, loop_path, readers
from weft.plan.contraction import is_sum_of_products, uses
from weft.schedule.facts import Facts, block_named, extent, facts_of
from weft.schedule.schedule import Schedule
from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda import model as fit
from weft.targets.cuda import stay
from weft.targets.cuda.mma import KINDS, Kind
from weft.targets.gpu import nest, recurrent, reduction

SCOPE = "mma.s"
"""Sums of a warp, as many registers as the largest tile takes; the compiler drops the others."""

# -------------------------------------------------------------------------------------------------------- instruction

_WORDS = """template <int LANES> DEVICE void weft_mma_words(uint32_t *to, const uint16_t *from, bool there) {
  #pragma unroll
  for (int32_t i = 0; i < LANES / 2; ++i) to[i] = 0;
  if (!there) return;
  if (LANES == 8) asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1 % (LANES / 2)]),
                               "=r"(to[2 % (LANES / 2)]), "=r"(to[3 % (LANES / 2)]) : "l"(from));
  else if (LANES == 4)
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1 % (LANES / 2)]) : "l"(from));
  else asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}"""
_ROWS = """template <int ROWS, int GATES, int UNITS, int DEPTH, int LANES, bool HELD>
DEVICE void weft_mma_rows_NAME(float *sum, const uint16_t *rows, int32_t row_step, int32_t row_far,
                               const uint32_t *held, const uint16_t *weights, int32_t gate_step, int32_t unit_step,
                               int32_t far) {
  constexpr int32_t N = (ROWS + 7) / 8, M = (GATES * UNITS + 15) / 16, LOADS = LANES < 4 ? 2 : 1;
  constexpr int32_t WORDS = LOADS * LANES / 2, DEEP = 4 * LOADS, CHUNKS = DEPTH / LANES, OWN = HELD ? 0 : 2 * M;
  constexpr int32_t STEPS = (CHUNKS + DEEP - 1) / DEEP, KEPT = HELD ? (2 * STEPS * WORDS + 4 * N) * M : 0;
  constexpr int32_t ROOM = KEPT > 96 ? KEPT > 184 ? 32 : 216 - KEPT : 128, AHEAD = ROOM / ((OWN + N) * WORDS);
  constexpr int32_t MOST = AHEAD < 1 ? 1 : AHEAD;
  const int32_t lane = (int32_t)(threadIdx.x & 31u), line = lane >> 2;
  #pragma unroll
  for (int32_t from = 0; from < STEPS; from += MOST) {
    uint32_t a[HELD ? 1 : MOST * 2 * M * WORDS], b[MOST][N][WORDS];
    if (!HELD) weft_mma_weights<GATES, UNITS, DEPTH, LANES, MOST>(a, from, weights, gate_step, unit_step, far);
    #pragma unroll
    for (int32_t s = 0; s < MOST * LOADS && from * LOADS + s < STEPS * LOADS; ++s) {
      const int32_t chunk = (from * LOADS + s) * 4 + (lane & 3), word = s % LOADS * (LANES / 2);
      #pragma unroll
      for (int32_t i = 0; i < N; ++i)
        weft_mma_words<LANES>(b[s / LOADS][i] + word, rows + (i * 8 + line) * row_step + chunk * row_far,
                              i * 8 + line < ROWS && chunk < CHUNKS);
    }
    #pragma unroll
    for (int32_t s = 0; s < MOST && from + s < STEPS; ++s)
      #pragma unroll
      for (int32_t w = 0; w < WORDS; w += 2)
        #pragma unroll
        for (int32_t m = 0; m < M; ++m)
          #pragma unroll
          for (int32_t n = 0; n < N; ++n) {
            float *c = sum + (m * N + n) * 4;
            const uint32_t *own = HELD ? held + ((from + s) * 2 * M + 2 * m) * WORDS : a + (s * 2 * M + 2 * m) * WORDS;
            asm volatile("mma.sync.aligned.INSTRUCTION {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                         "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(own[w]), "r"(own[WORDS + w]), "r"(own[w + 1]), "r"(own[WORDS + w + 1]),
                           "r"(b[s][n][w]), "r"(b[s][n][w + 1]));
          }
  }
}"""
_WEIGHTS = """template <int GATES, int UNITS, int DEPTH, int LANES, int MOST>
DEVICE void weft_mma_weights(uint32_t *to, int32_t from, const uint16_t *weights, int32_t gate_step, int32_t unit_step,
                             int32_t far) {
  constexpr int32_t M = (GATES * UNITS + 15) / 16, LOADS = LANES < 4 ? 2 : 1, WORDS = LOADS * LANES / 2;
  constexpr int32_t CHUNKS = DEPTH / LANES, STEPS = (CHUNKS + 4 * LOADS - 1) / (4 * LOADS);
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  #pragma unroll
  for (int32_t s = 0; s < MOST * LOADS && from * LOADS + s < STEPS * LOADS; ++s) {
    const int32_t chunk = (from * LOADS + s) * 4 + (lane & 3), word = s % LOADS * (LANES / 2);
    #pragma unroll
    for (int32_t i = 0; i < 2 * M; ++i) {
      const int32_t n = i * 8 + (lane >> 2);
      weft_mma_words<LANES>(to + (s / LOADS * 2 * M + i) * WORDS + word,
                            weights + n / UNITS * gate_step + n % UNITS * unit_step + chunk * far,
                            n < GATES * UNITS && chunk < CHUNKS);
    }
  }
}"""
_ZERO = """template <int COUNT> DEVICE void weft_mma_rows_zero(float *sum) {
  #pragma unroll
  for (int32_t i = 0; i < COUNT; ++i) sum[i] = 0.0f;
}"""
_STORE = """template <int ROWS, int GATES, int UNITS>
DEVICE void weft_mma_rows_store(float *to, const float *sum, int32_t row_step, int32_t gate_step, int32_t unit_step) {
  constexpr int32_t N = (ROWS + 7) / 8, M = (GATES * UNITS + 15) / 16;
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  #pragma unroll
  for (int32_t i = 0; i < M * N * 4; ++i) {
    const int32_t n = i / (4 * N) * 16 + (i & 2) * 4 + (lane >> 2), row = i / 4 % N * 8 + ((lane & 3) << 1) + (i & 1);
    if (row < ROWS && n < GATES * UNITS) to[row * row_step + n / UNITS * gate_step + n % UNITS * unit_step] = sum[i];
  }
}"""


def _emit_rows(kind: Kind, is_held: bool) -> Emitter:
    def emit(c: Context, call: Call) -> str:
        if is_held:
            x, held, out, *given = call.args
            steps, sizes = given[:2], given[2:]
        else:
            x, weights, out, *given = call.args
            steps, sizes = given[:5], given[5:]
        c.helper("weft_mma_words", _WORDS)
        c.helper("weft_mma_weights", _WEIGHTS)
        c.helper(
            f"weft_mma_rows_{kind.name}", _ROWS.replace("NAME", kind.name).replace("INSTRUCTION", kind.instruction)
        )
        row, far, *beside = [f"(int32_t)({c.value(one)})" for one in steps]
        last = (c.fragment(held), "nullptr", "0", "0", "0") if is_held else ("nullptr", c.pointer(weights), *beside)
        numbers = ", ".join([*map(str, map(c.constant, sizes)), "true" if is_held else "false"])
        return f"weft_mma_rows_{kind.name}<{numbers}>({', '.join((c.fragment(out), c.pointer(x), row, far, *last))})"

    return emit


def _emit_hold(c: Context, call: Call) -> str:
    held, weights, *given = call.args
    c.helper("weft_mma_words", _WORDS)
    c.helper("weft_mma_weights", _WEIGHTS)
    steps, sizes = (f"(int32_t)({c.value(one)})" for one in given[:3]), [c.constant(one) for one in given[3:]]
    numbers = ", ".join(map(str, (*sizes, sizes[-2])))
    return f"weft_mma_weights<{numbers}>({c.fragment(held)}, 0, {c.pointer(weights)}, {', '.join(steps)})"


def _emit_zero(c: Context, call: Call) -> str:
    out, rows, gates, units = call.args
    c.helper("weft_mma_rows_zero", _ZERO)
    tiles = _tiles(c.constant(rows), c.constant(gates) * c.constant(units))
    return f"weft_mma_rows_zero<{4 * tiles}>({c.fragment(out)})"


def _emit_store(c: Context, call: Call) -> str:
    source, to, row, gate, unit, *sizes = call.args
    c.helper("weft_mma_rows_store", _STORE)
    steps = ", ".join(f"(int32_t)({c.value(one)})" for one in (row, gate, unit))
    numbers = ", ".join(map(str, map(c.constant, sizes)))
    return f"weft_mma_rows_store<{numbers}>({c.pointer(to)}, {c.fragment(source)}, {steps})"


NARROW = {kind.elements[0]: kind for kind in (KINDS["f16"], KINDS["bf16"])}
EMITTERS: Mapping[str, Emitter] = {
    **{f"mma_rows_{kind.name}": _emit_rows(kind, False) for kind in NARROW.values()},
    **{f"mma_held_{kind.name}": _emit_rows(kind, True) for kind in NARROW.values()},
    stay.HOLD: _emit_hold,
    "mma_rows_zero": _emit_zero,
    "mma_rows_store": _emit_store,
}


def _tiles(rows: int, columns: int) -> int:
    """Tiles of an instruction that sums of a warp take."""
    return -(-rows // 8) * -(-columns // 16)


def _mean_rows(kind: Kind, is_held: bool) -> Any:
    known = dtype(kind.elements[0]).numpy

    def run(x: Any, weights: Any, out: Any, *given: int) -> None:
        row, row_far, *steps = map(int, given)
        if is_held:
            rows, gates, units, depth, lanes = steps
            right = weights.view((gates * units, depth), (depth, 1))
        else:
            gate, unit, far, rows, gates, units, depth, lanes = steps
            right = weights.view((gates, units, depth // lanes, lanes), (gate, unit, far, 1))
        left = np.ascontiguousarray(x.view((rows, depth // lanes, lanes), (row, row_far, 1))).view(known)
        turned = np.ascontiguousarray(right).view(known).astype(np.float32).reshape(gates * units, depth).T
        made = left.astype(np.float32).reshape(rows, depth) @ turned
        out.view((rows, gates * units), (gates * units, 1))[...] += made

    return run


def _mean_hold(held: Any, weights: Any, *given: int) -> None:
    gate, unit, far, gates, units, depth, lanes = map(int, given)
    right = weights.view((gates, units, depth // lanes, lanes), (gate, unit, far, 1))
    held.view((gates * units, depth), (depth, 1))[...] = right.reshape(gates * units, depth)


def _mean_zero(out: Any, rows: int, gates: int, units: int) -> None:
    out.view((int(rows), int(gates) * int(units)), (int(gates) * int(units), 1))[...] = 0


def _mean_store(source: Any, to: Any, *steps: int) -> None:
    row, gate, unit, rows, gates, units = map(int, steps)
    seen = source.view((rows, gates, units), (gates * units, units, 1))
    to.view((rows, gates, units), (row, gate, unit))[...] = seen


for _kind in NARROW.values():
    te.register_effect(f"mma_rows_{_kind.name}", _mean_rows(_kind, False), collective=True)
    te.register_effect(f"mma_held_{_kind.name}", _mean_rows(_kind, True), collective=True)
te.register_effect(stay.HOLD, _mean_hold, collective=True)
te.register_effect("mma_rows_zero", _mean_zero, collective=True)
te.register_effect("mma_rows_store", _mean_store, collective=True)


@functools.cache
def declare(kind: str, rows: int, gates: int, units: int, depth: int, lanes: int) -> tuple[str, str]:
    """Declares the instructions of some sizes; gives the names of those that multiply and that store."""
    element, sizes = KINDS[kind].elements[0], [te.const(n) for n in (rows, gates, units)]
    x, k = te.placeholder((depth // lanes, rows, lanes), element, name="x"), te.reduce_axis(depth, name="k")
    w = te.placeholder((depth // lanes, gates, units, lanes), element, name="w")
    tile = te.placeholder((rows, gates, units), name="tile")

    def multiply(inputs: Any, outputs: Any) -> Any:
        (left, right), (out,) = inputs, outputs
        reset = Call("mma_rows_zero", (out.access_ptr("w"), *sizes), INT32)
        given = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"))
        steps = (left.stride(1), left.stride(0), right.stride(1), right.stride(2), right.stride(0))
        steps = (*steps, *sizes, te.const(depth), te.const(lanes))
        update = Call(f"mma_rows_{kind}", (*given, *steps), INT32)
        return [reset, update], reset, update

    def store(inputs: Any, outputs: Any) -> Call:
        (out,) = outputs
        steps = (out.stride(0), out.stride(1), out.stride(2), *sizes)
        return Call("mma_rows_store", (inputs[0].access_ptr("r"), out.access_ptr("w"), *steps), INT32)

    def element_of(i: Any, g: Any, u: Any) -> Any:
        left, right = x[k // lanes, i, k % lanes], w[k // lanes, g, u, k % lanes]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

    label = f"{rows}_{gates}x{units}"
    names = f"mma_rows_{kind}_{label}_{depth}_{lanes}", f"mma_rows_store_{label}"
    made = te.compute((rows, gates, units), element_of, name="out")
    copy = te.compute((rows, gates, units), lambda *at: tile[at], name="copy")
    for op, rule, name in ((made.op, multiply, names[0]), (copy.op, store, names[1])):
        te.decl_tensor_intrin(op, rule, name)
    return names


# ----------------------------------------------------------------------------------------------------------- schedule


def schedule_steps(s: Schedule, target: Target) -> None:
    """Schedules the steps of recurrences that tensor cores take; others are left as they are."""
    for steps in recurrent.loops_of_steps(s):
        with s.attempt("steps by tensor cores"):
            _Step(s, steps, target).run()


class _Step:
    """A step: its blocks, in groups of a product and what takes its sums."""

    def __init__(self, s: Schedule, steps: str, target: Target) -> None:
        self.s, self.steps, self.machine = s, steps, nest.threads_of(target)
        names = [block.name for block in blocks_in(loop_of(loop_path(s.func, steps, "schedule")))]
        self.groups: list[list[str]] = []
        for name in names:
            if self._kind(facts_of(block_named(s, name))):
                self.groups.append([name])
            elif self.groups:
                self.groups[-1].append(name)
            else:
                raise ScheduleError("steps", name, "a step does not begin with a product of narrow numbers")

    def _kind(self, facts: Facts) -> str | None:
        """The kind of instruction for a product; None for anything else."""
        if len(facts.reduce) != 1 or facts.store is None or not is_sum_of_products(facts):
            return None
        kinds = {load.buffer.dtype.name for load in facts.loads if load.buffer is not facts.store.buffer}
        kind = NARROW.get(next(iter(kinds))) if len(kinds) == 1 else None
        return kind.name if kind is not None and kind.elements[0] in self.machine.tensor_cores else None

    def run(self) -> None:
        """A kernel for each group."""
        if not self.groups:
            raise ScheduleError("steps", "", "there is no product of narrow numbers")
        for group in self.groups:
            self._kernel(*group)
        if len(self.groups) == 1 and self.stays:
            self.s.apply("annotate", target=self.steps, key=stay.STAYS, value=True)

    def _kernel(self, made: str, *after: str) -> None:
        s = self.s
        kind = self._kind(facts_of(block_named(s, made)))
        assert kind is not None
        recurrent.part_units(s, made, always=True)
        facts = facts_of(block_named(s, made))
        rows, gates, count, depth = self._sizes(facts)
        if not after or not {one.name for one in readers(s.func.body, facts.target)} <= set(after):
            raise ScheduleError("steps", made, "others take its sums")
        units, warps = _shape(rows, gates, count, depth, self.machine.multiprocessors)
        kept = _kept_shape(rows, gates, count, depth, self.machine) if len(self.groups) == 1 else None
        self.stays = kept is not None
        units, warps = kept or (units, warps)
        lanes = math.gcd(depth // warps, self.machine.vector_bytes // KINDS[kind].bytes)
        self._pack(facts, count, units, lanes)
        # New values: one loop over the units, one over the sequences.
        for name in after:
            recurrent.units_outside(s[name])
        first = s[after[0]]
        for name in after[1:]:
            s.apply("merge_loops", first=recurrent.around(s, after[0]), second=recurrent.around(s, name))
        unit = s.handle(recurrent.around(s, after[0]))
        inner = recurrent.inside(first, unit)
        for name in after[1:]:
            s.apply("merge_loops", first=inner.name, second=recurrent.inside(s[name], unit).name)
        block, each = first.split(unit, factor=units)
        first.reorder(block, inner, each)
        first.bind(block, "blockIdx.x")
        first.annotate("resident", 1, block)
        place = reduction.spread(first, nest.fuse_all(first, [inner, each]), warps, 32)
        self._multiply(made, after[0], block, place, declare(kind, rows, gates, units, depth // warps, lanes), warps)

    def _sizes(self, facts: Facts) -> tuple[int, int, int, int]:
        """Sequences, gates, units and the length of sums."""
        *_, rows, gates, units = map(extent, facts.spatial)
        if len(facts.spatial) != 4:
            raise ScheduleError("steps", facts.block.name, "it has other axes than steps, sequences, gates and units")
        return rows, gates, units, facts.depth

    def _pack(self, facts: Facts, count: int, units: int, lanes: int) -> None:
        """Both operands in vectors along k, those of all rows side by side; weights block by block."""
        s = self.s
        (weights,) = [load for load in facts.loads if uses(load, facts.spatial[-1])]
        (state,) = [load for load in facts.loads if load is not weights and load.buffer is not facts.target]
        copy = s.buffer_name(s.cache_read(weights.buffer.name, "global", [facts.block.name]))
        *lead, row, k = (f"d{at}" for at in range(len(weights.indices)))
        order = [*lead, f"{row} % {count} // {units}", f"{k} // {lanes}", f"{row} // {count}", f"{row} % {units}"]
        s.apply("transform_layout", buffer=copy, inputs=[*lead, row, k], outputs=[*order, f"{k} % {lanes}"])
        order = ["t", f"k // {lanes}", "b", f"k % {lanes}"]
        s.apply("transform_layout", buffer=state.buffer.name, inputs=["t", "b", "k"], outputs=order)

    def _multiply(self, name: str, reader: str, block: Var, place: Var, calls: tuple[str, str], warps: int) -> None:
        """The sums of a warp in its registers, from there to shared memory; a thread adds up what it takes."""
        s, made, final = self.s, self.s[name], self.s[reader]
        (loop,) = nest.reduce_loops(made)
        made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
        warp, _ = made.split(loop, factors=[warps, None])
        partial = s.rfactor(made.name, warp, 0)
        nest.attach(made, final, place, "local")
        made.unroll(nest.reduce_loops(made)[0])
        nest.attach(partial, final, block, "shared")
        row, line, apart = len(partial.block.writes[0].buffer.shape) - 3, *fit.STEP_LINES
        partial.storage_align(row, line, apart)  # what a warp stores or adds up together lies in many banks
        sums = s.cache_write(partial.block.writes[0].buffer, SCOPE)
        first, *tile = nest.free_loops(partial)
        sums.compute_at(partial, first)
        partial.bind(first, "threadIdx.y")
        partial.tensorize(tile[0], calls[1])
        (inner,) = nest.reduce_loops(sums)
        own = [one for one in nest.free_loops(sums) if one is not inner]
        sums.reorder(*own, inner)
        sums.tensorize(own[0], calls[0])


def _shape(rows: int, gates: int, count: int, depth: int, multiprocessors: int) -> tuple[int, int]:
    """Units of a block, and warps that share its sums: as few blocks as there are multiprocessors, or fewest."""
    fits = [n for n in range(2, count + 1) if count % n == 0 and gates * n <= fit.STEP_COLUMNS
            and _tiles(rows, gates * n) <= fit.STEP_TILES]  # fmt: skip
    shares = [n for n in range(1, fit.STEP_WARPS + 1) if depth % (2 * n) == 0]
    if not fits or not shares:
        raise ScheduleError("steps", f"{rows} rows of {count} units", "there is no tile for it")
    units = next((n for n in fits if count // n <= multiprocessors), fits[-1])
    return units, max(shares, key=lambda n: (depth // n % 8 == 0, n))


def _kept_shape(rows: int, gates: int, count: int, depth: int, machine: ThreadFacts) -> tuple[int, int] | None:
    """Units of a block that stays, and its warps: registers hold the weights, and all blocks run at a time.

    None where there are no such, or a kernel a step takes less time.
    """
    shares = [n for n in range(1, fit.STEP_WARPS + 1) if depth % (2 * n) == 0]
    warps = max(shares, key=lambda n: (depth // n % 8 == 0, n), default=0)
    for units in (n for n in range(2, count + 1) if count % n == 0 and count // n <= machine.multiprocessors):
        tiles, sums = _tiles(1, gates * units), _tiles(rows, gates * units)
        held = tiles * -(-depth // (16 * max(warps, 1))) * 4
        if warps and sums <= fit.STEP_TILES and held + sums * 4 + fit.STEP_REGISTERS <= 255:
            once, kilobyte, load = fit.STAY_GAIN
            lanes = math.gcd(depth // warps, machine.vector_bytes // 2)
            saves = once + (kilobyte * 2 * gates * units - load * rows / lanes) * depth / 1024
            return (units, warps) if saves > 0 else None
    return None
