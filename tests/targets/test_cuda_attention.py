"""Attention of narrow numbers in one kernel: its schedule in the interpreter, its registers in the generated text.

On a device: tests/compiler/device/test_device_gpu.py and the table of `python -m benchmarks.gpu`.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import te
from weft.compiler.kernels.program import build_program
from weft.core.errors import InternalError, InterpreterError, ScheduleError
from weft.expr.nodes import int_value
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate, For
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts
from weft.ops.attention_fused import DOMAIN, NAME, SCORES, Sizes
from weft.plan.planner import unit_of
from weft.targets.cuda import nvrtc
from weft.targets.cuda.attention import attention_proposer, match, proposal
from weft.targets.cuda.families import default_schedule
from weft.targets.registry import find_target

CUDA = find_target("cuda:sm_90a")
SCALED = ("scale", 0.3, None)
CASES = {
    "scale alone": ((1, 2, 64, 64, 64, 64), (SCALED,), 0),
    "no step, several parts": ((1, 1, 30, 150, 64, 64), (), 0),
    "mask of keys": ((2, 1, 64, 100, 32, 64), (SCALED, ("add", 0.0, (2, 1, 1, 100))), 1),
    "causal, two groups": ((1, 1, 128, 192, 64, 64), (SCALED, ("causal", 0.0, None)), 0),
    "keep, odd sizes": ((1, 1, 70, 90, 40, 24), (("keep", -1e9, (70, 90)), ("scale", 0.5, None)), 2),
}


def graph_of(sizes, steps, empty_rows=0, heads_inside=1, kind="float16", padded=None):
    """A graph of one attention over packed operands; a step is (name, number, shape of its operand)."""
    b, h, m, n, d, e = sizes
    inputs = [Value(name, TensorType(kind, (b * k * h * s,))) for name, k, s in (("q", m, d), ("k", n, d), ("v", n, e))]
    for at, (step, _, shape) in enumerate(steps):
        if shape is not None:
            inputs.append(Value(f"mask{at}", TensorType("float32" if step == "add" else "bool", shape)))
    attributes = {
        "sizes": list(sizes), "query": [0, m * h * d, d, h * d, 1], "key": [0, n * h * d, d, h * d, 1],
        "value": [0, n * h * e, e, h * e, 1], "steps": [s for s, _, _ in steps],
        "numbers": [number for _, number, _ in steps], "heads_inside": heads_inside, "empty_rows": empty_rows,
        "padded": list(padded or proposal(Sizes(*sizes), CUDA.threads)),
    }  # fmt: skip
    out = Value("y", TensorType(kind, (b, m, h, e) if heads_inside else (b, h, m, e)))
    return Graph("attention", inputs, [out], [Node(NAME, inputs, [out], attributes, domain=DOMAIN)], {})


def arrays_of(graph):
    random = np.random.default_rng(0)
    made = []
    for value in graph.inputs:
        shape, kind = value.tensor.static, value.tensor
        truths = kind.dtype == "bool"
        made.append(random.random(shape) < 0.6 if truths else random.standard_normal(shape).astype(kind.numpy))
    return made


def scheduled(graph, **point):
    """The schedule by a point of the sketch, and the program that it is of."""
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    sketch = match(unit_of(program.schedule, SCORES, CUDA))
    best, _ = next(sketch.ranked())
    sketch.apply({**best, **point})
    verify(program.schedule.func)
    return program


def check(graph, arrays=None, lowered=False, **point):
    """Interprets the schedule (or the lowered program) and compares with the numpy meaning."""
    arrays = arrays_of(graph) if arrays is None else arrays
    program = scheduled(graph, **point)
    by_name = {value.name: array for value, array in zip(graph.inputs, arrays)}
    given = {buffer: by_name[value.name] for value, buffer in program.inputs}
    func = program.schedule.func
    out = np.full(graph.outputs[0].tensor.static, 7, graph.outputs[0].tensor.numpy)
    with np.errstate(all="ignore"):
        interpret(CUDA.lower(func) if lowered else func, *(given.get(b, out) for b in func.buffers), check=not lowered)
        want = interpret_graph(graph, arrays)[0].astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=0.01, atol=0.01)
    return program


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_gives_the_meaning(name):
    sizes, steps, empty_rows = CASES[name]
    check(graph_of(sizes, steps, empty_rows, heads_inside=len(name) % 2), groups=2 if "groups" in name else 1)


def test_bfloat16_and_rows_that_see_nothing():
    graph = graph_of((1, 1, 64, 130, 64, 64), (SCALED, ("add", 0.0, (64, 130))), 1, kind="bfloat16")
    arrays = arrays_of(graph)
    assert arrays[0].dtype == ml_dtypes.bfloat16
    arrays[3][[0, 7]] = -np.inf  # no key at all: zeros
    arrays[3][5, :64] = -np.inf  # the first part alone
    arrays[3][9] = np.finfo(np.float32).min  # all alike: the mean
    check(graph, arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "steps", "point"), [
    ((1, 1, 64, 128, 64, 64), (SCALED,), {"groups": 1, "stages": 2, "beside": 1}),
    ((1, 1, 64, 192, 64, 64), (SCALED,), {"groups": 1, "stages": 3, "beside": 1}),
    ((2, 1, 128, 100, 64, 64), (SCALED, ("causal", 0.0, None)), {"groups": 2, "stages": 3, "beside": 1}),
    ((1, 2, 64, 77, 40, 40), (SCALED,), {"groups": 1, "stages": 2, "beside": 1}),
    ((1, 1, 64, 64, 56, 24), (SCALED,), {"groups": 1, "stages": 2, "beside": 1}),
    ((1, 2, 64, 100, 80, 80), (SCALED,), {"groups": 1, "stages": 3, "beside": 1}),
])  # fmt: skip
def test_the_lowered_program_gives_the_meaning(sizes, steps, point):
    """Fetched by the copy engine, the second product a step late: the interpreter lets copies arrive late."""
    queries, keys, size, width = (-(-n // 64) * 64 for n in sizes[2:])
    padded = (queries, keys, width, 64, size)
    graph = graph_of(sizes, steps, padded=padded)
    assert "bulk_copy" in str(CUDA.lower(scheduled(graph, **point).schedule.func))
    check(graph, lowered=True, **point)


def test_the_second_product_is_a_step_late():
    """The scores of a part are waited for while the product of the part before is on its way."""
    graph = graph_of((1, 2, 64, 384, 128, 128), (SCALED,), padded=(64, 384, 128, 128, 128))
    func = CUDA.lower(scheduled(graph, groups=1, stages=3, beside=1).schedule.func)
    names = ("wgmma_dot_f16", "wgmma_dot_held_f16", "wgmma_wait_for", "wgmma_pack_f16", "bulk_arrive", "bulk_wait")
    order = [
        (s.value.name, int_value(s.value.args[2]) if s.value.name == "wgmma_wait_for" else None)
        for s in walk_stmts(func.body)
        if isinstance(s, Evaluate) and getattr(s.value, "name", "") in names
    ]
    dot, late, back, wait = ((name, None) for name in ("wgmma_dot_f16", names[1], "bulk_arrive", "bulk_wait"))
    pack, scores, all_of = (names[3], None), ("wgmma_wait_for", 2), ("wgmma_wait_for", 0)
    # queries, the first scores; a step of the loop; the last product
    assert order[: order.index(back) + 4] == [
        wait, wait, dot, all_of, pack, wait, dot, late, scores, all_of, pack, back, late, all_of, back,
    ]  # fmt: skip


@pytest.mark.slow
def test_boxes_of_flat_memory_end_with_the_keys():
    """Heads inside or outside, and keys that are no whole parts: rows behind the last are zero, not another head's."""
    for inside, shape, strides in ((1, (2, 197, 192), (37824, 192, 1)), (0, (6, 197, 64), (12608, 64, 1))):
        graph = graph_of((2, 3, 197, 197, 64, 64), (SCALED,), heads_inside=1, padded=(256, 256, 64, 64, 64))
        if not inside:
            place = [0, 3 * 197 * 64, 197 * 64, 64, 1]
            graph.nodes[0].attributes.update(query=place, key=place, value=place)
        program = CUDA.generate(CUDA.lower(scheduled(graph, groups=1, stages=2, beside=1).schedule.func))
        (kernel,) = program.kernels
        assert [(one.shape, one.strides, one.box) for one in kernel.maps] == [(shape, strides, (1, 64, 64))] * 3


def test_heads_shorter_than_a_line_are_boxes_that_end_with_them():
    """Heads beside one another: beyond the end of a piece of a row the copy engine fills in zeros."""
    graph = graph_of((2, 3, 64, 77, 40, 40), (SCALED,))
    program = CUDA.generate(CUDA.lower(scheduled(graph, groups=1, stages=2, beside=1).schedule.func))
    (kernel,) = program.kernels
    found = {(one.shape, one.strides, one.box) for one in kernel.maps}
    keys = (2, 77, 3, 40), (77 * 120, 120, 40, 1), (1, 128, 1, 64)
    assert found == {((2 * 64, 3, 40), (120, 40, 1), (64, 1, 64)), keys}
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, "sm_90a")[1:4] == b"ELF"


def test_heads_of_two_lines_end_with_them_too():
    """Heads of 80: the second box of a row has 16 elements and zeros, not those of the next head."""
    graph = graph_of((2, 3, 64, 128, 80, 80), (SCALED,), padded=(64, 128, 128, 64, 128))
    (kernel,) = CUDA.generate(CUDA.lower(scheduled(graph, groups=1, stages=3, beside=1).schedule.func)).kernels
    assert {(one.shape[-1], one.strides[-2:], one.box[-1]) for one in kernel.maps} == {(80, (80, 1), 64)}


def test_sums_of_a_block_alone_are_registers_of_known_numbers():
    """Registers whose number a thread works out lie in memory, where products on their way do not wait for it."""
    func = CUDA.lower(scheduled(graph_of((1, 2, 64, 128, 64, 64), (SCALED,)), groups=1, stages=2).schedule.func)
    assert "attention_whole[" in (source := CUDA.generate(func).source)
    assert not re.findall(r"attention_whole\w*\[[^\]]*\b(?:xo|blockIdx)", source)

    class Two(Mutator):
        def visit_For(self, s: For):
            return self.generic_stmt(s.replace(extent=te.const(2)) if s.thread == "blockIdx.x" else s)

    with pytest.raises(InternalError, match="which one is not known"):
        CUDA.generate(Two().func(func))


def test_causal_parts_beyond_the_queries_are_left_out():
    program = scheduled(graph_of((1, 1, 256, 256, 64, 64), (SCALED, ("causal", 0.0, None))), groups=1)
    (loop,) = [s for s in walk_stmts(program.schedule.func.body) if isinstance(s, For) and s.annotations.get("online")]
    assert "min" in repr(loop.extent) or "xo" in repr(loop.extent), loop.extent
    plain = scheduled(graph_of((1, 1, 256, 256, 64, 64), (SCALED,)), groups=1)
    (loop,) = [s for s in walk_stmts(plain.schedule.func.body) if isinstance(s, For) and s.annotations.get("online")]
    assert repr(loop.extent).isdigit()


def test_one_barrier_less_is_found():
    """A pipeline that does not wait for its keys: the interpreter reports it without a GPU."""
    from weft.loop.passes.support import is_barrier

    class Without(Mutator):
        def visit_Evaluate(self, s: Evaluate):
            return Evaluate(te.const(0)) if is_barrier(s) else s

    graph = graph_of((1, 1, 64, 64, 64, 64), (SCALED,))
    program = scheduled(graph)
    func = Without().func(CUDA.lower(program.schedule.func))
    by_name = {value.name: array for value, array in zip(graph.inputs, arrays_of(graph))}
    given = {buffer: by_name[value.name] for value, buffer in program.inputs}
    out = np.zeros(graph.outputs[0].tensor.static, np.float16)
    with pytest.raises(InterpreterError, match="race|barrier|same time"):
        interpret(func, *(given.get(b, out) for b in program.schedule.func.buffers))


def test_kernels_hold_scores_in_registers():
    graph = graph_of((16, 12, 384, 384, 64, 64), (SCALED,))
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    default_schedule(program.schedule, CUDA)
    made = CUDA.generate(CUDA.lower(program.schedule.func))
    assert len(made.kernels) == 1 and not made.workspaces
    assert "_f16_64<" in made.source and "weft_store_quad(" in made.source
    assert made.kernels[0].shared_bytes < 64 * 1024  # queries, keys and values: no scores
    if nvrtc.is_available():
        assert nvrtc.compile_source(made.source, CUDA.cpu)


def test_what_is_proposed():
    propose = attention_proposer(CUDA)
    assert propose((16, 12, 197, 197, 64, 64), "float16") == (256, 256, 64, 64, 64)
    assert propose((1, 8, 100, 100, 80, 80), "bfloat16")[2:] == (128, 128, 128)
    assert len(propose((1, 8, 100, 100, 80, 80), "float32")) == 4
    assert attention_proposer(find_target("cuda:sm_80"))((16, 12, 197, 197, 64, 64), "float16")[3] == 0


def parts_of(power, weigh=None):
    """Sums over parts weighed beneath their greatest top, as te."""
    top, x = te.placeholder((5, 6), name="top"), te.placeholder((5, 6, 4), name="x")
    p = [te.reduce_axis(5, name=f"p{i}") for i in range(3)]
    peak = te.compute((6,), lambda i: te.max(top[p[0], i], axis=p[0]), name="peak")

    def share(q, i):
        return power((top[q, i] if weigh is None else top[q, i] * weigh) - peak[i])

    total = te.compute((6,), lambda i: te.sum(x[p[1], i, 0] * share(p[1], i), axis=p[1]), name="total")
    whole = te.compute((6, 4), lambda i, e: te.sum(x[p[2], i, e] * share(p[2], i), axis=p[2]), name="whole")
    out = te.compute((6, 4), lambda i, e: whole[i, e] / total[i], name="out")
    return top, x, out, te.create_schedule(out.op)


@pytest.mark.parametrize("power", [te.exp, te.exp2])
def test_online_is_the_same_sum(power):
    *_, s = parts_of(power)
    i, e, p = s["whole"].loops
    s["whole"].reorder(p, i, e)
    names = s.online("whole", s["whole"].loops[0], "peak", "total")
    assert names[:3] == ["peak_start", "total_start", "whole_start"]
    verify(s.func)
    random = np.random.default_rng(1)
    tops, xs = (random.standard_normal(shape).astype(np.float32) * 20 for shape in ((5, 6), (5, 6, 4)))
    made = np.zeros((6, 4), np.float32)
    interpret(s.func, *({"top": tops, "x": xs, "out": made}[b.name] for b in s.func.buffers))
    weights = (np.exp if power is te.exp else np.exp2)(tops - tops.max(0))
    want = np.einsum("pie,pi->ie", xs, weights) / (xs[:, :, 0] * weights).sum(0)[:, None]
    np.testing.assert_allclose(made, want, rtol=2e-4)


def test_online_refuses_what_it_is_not():
    *_, s = parts_of(te.exp)
    with pytest.raises(ScheduleError, match="plain loop around whole alone|does not run over the parts"):
        s.online("whole", s["whole"].loops[0], "peak", "total")
    *_, s = parts_of(te.exp, weigh=2.0)
    i, e, p = s["whole"].loops
    s["whole"].reorder(p, i, e)
    with pytest.raises(ScheduleError, match="weighs by other tops"):
        s.online("whole", s["whole"].loops[0], "peak", "total")
    *_, s = parts_of(te.exp)
    i, e, p = s["whole"].loops
    s["whole"].reorder(p, i, e)
    with pytest.raises(ScheduleError, match="others than whole read peak"):
        s.online("whole", s["whole"].loops[0], "peak")  # another sum reads the greatest top


@pytest.mark.parametrize("power", [te.exp, te.exp2])
def test_powers_beneath_the_running_maximum(power):
    """The same sums as those of parts with tops of their own, and nothing of their shares is left."""
    x, v = te.placeholder((6, 20), name="x"), te.placeholder((20, 4), name="v")
    k = [te.reduce_axis(5, name=f"k{i}") for i in range(3)]
    p = [te.reduce_axis(4, name=f"p{i}") for i in range(3)]
    top = te.compute((4, 6), lambda q, i: te.max(x[i, q * 5 + k[0]], axis=k[0]), name="top")
    grown = te.compute((4, 6, 5), lambda q, i, j: power(x[i, q * 5 + j] - top[q, i]), name="grown")
    part = te.compute((4, 6), lambda q, i: te.sum(grown[q, i, k[1]], axis=k[1]), name="part")
    mixed = te.compute(
        (4, 6, 4), lambda q, i, e: te.sum(grown[q, i, k[2]] * v[q * 5 + k[2], e], axis=k[2]), name="mixed"
    )
    peak = te.compute((6,), lambda i: te.max(top[p[0], i], axis=p[0]), name="peak")
    total = te.compute((6,), lambda i: te.sum(part[p[1], i] * power(top[p[1], i] - peak[i]), axis=p[1]), name="total")
    whole = te.compute(
        (6, 4), lambda i, e: te.sum(mixed[p[2], i, e] * power(top[p[2], i] - peak[i]), axis=p[2]), name="whole"
    )
    out = te.compute((6, 4), lambda i, e: whole[i, e] / total[i], name="out")
    s = te.create_schedule(out.op)
    i, e, parts = s["whole"].loops
    s["whole"].reorder(parts, i, e)
    s.online("whole", parts, "peak", "total")
    with pytest.raises(ScheduleError, match="is not a loop that `online` made around grown and mixed"):
        s.apply("beneath_peak", loop=parts.name, powers="grown", product="mixed")
    for name in ("mixed", "part", "grown", "top"):
        s[name].compute_at(s["whole"], parts)
    with pytest.raises(ScheduleError, match="is no power of a number beneath top"):
        s.apply("beneath_peak", loop=parts.name, powers="top", product="mixed")
    s.apply("beneath_peak", loop=parts.name, powers="grown", product="mixed")
    verify(s.func)
    assert not {"peak_share", "mixed"} & {b.name for b in s.func.allocations}
    random = np.random.default_rng(1)
    xs, vs, made = (
        20 * random.standard_normal((6, 20), np.float32),
        random.random((20, 4), np.float32),
        np.zeros((6, 4)),
    )
    made = made.astype(np.float32)
    interpret(s.func, *({"x": xs, "v": vs, "out": made}[b.name] for b in s.func.buffers))
    weights = (np.exp if power is te.exp else np.exp2)(xs - xs.max(1, keepdims=True))
    np.testing.assert_allclose(made, weights @ vs / weights.sum(1, keepdims=True), rtol=2e-4)


@pytest.mark.slow
def test_heads_that_were_joined_with_the_batch_are_read_where_they_lie():
    """Queries, keys and values of one product, chosen by an index, as torch's MultiheadAttention exports them."""
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(96, 3, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    block, x = Block().eval(), torch.randn(4, 50, 96)
    module = weft.compile(block, (x,))
    with torch.no_grad():
        np.testing.assert_allclose(
            np.asarray(module(x.numpy())).reshape(x.shape), block(x).numpy(), rtol=1e-4, atol=1e-5
        )
    made = weft.compile(block, (x,), target="cuda:sm_90a", precision="fp16")
    assert "gather" not in str(made.report()), "the parts were copied first"
