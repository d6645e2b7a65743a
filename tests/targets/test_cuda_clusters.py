"""Blocks of a cluster that fetch for one another: their meaning, and what the interpreter says of a wrong pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.test_cuda_bulk import _Without, lowered, run
from tests.targets.test_cuda_warpgroups import HOPPER, calls
from weft import te
from weft.core.errors import InterpreterError
from weft.expr.nodes import Call, equal
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate, For, If
from weft.loop.parser import parse_func
from weft.loop.printer import format_func
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts
from weft.targets.cuda import nvrtc
from weft.targets.cuda.cluster import RANK


@pytest.mark.parametrize(
    ("sizes", "turned", "point"),
    [
        ((190, 72, 136), True, {"cluster": 1}),  # three tiles of rows: the last block has none of its own
        pytest.param((256, 128, 264), True, {"cluster": 1, "blocks": 4, "stages": 4}, marks=pytest.mark.slow),
        pytest.param((190, 200, 136), False, {"cluster": 1, "width": 128}, marks=pytest.mark.slow),
        pytest.param((200, 232, 136), False, {"cluster": 1, "width": 224}, marks=pytest.mark.slow),
        pytest.param((130, 136, 136), True, {"cluster": 2, "groups_y": 2}, marks=pytest.mark.slow),
        pytest.param((70, 400, 136), False, {"cluster": 2, "width": 192}, marks=pytest.mark.slow),  # three of columns
        ((128, 72, 448), False, {"cluster": 1, "parts": 2}),  # the last step of a part is beyond k: zeros, not left out
        pytest.param((128, 128, 131), True, {"cluster": 1, "copies": 3}, marks=pytest.mark.slow),
    ],
)
def test_products(sizes, turned, point):
    _, func, *rest = lowered(sizes, turned, **point)
    verify(func)
    assert calls(func, "bulk_share") and not calls(func, "copy_async") and not calls(func, "report_if")
    run(func, sizes, turned, *rest)


def test_each_block_has_its_part_of_shared_memory():
    _, func, *_ = lowered((256, 128, 136), cluster=1, groups_y=2)
    (rank,) = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.thread == RANK]
    assert int(rank.extent.value) == 2
    assert format_func(parse_func(format_func(func))) == format_func(func)
    program, (_, alone, *_) = HOPPER.generate(func), lowered((256, 128, 136), groups_y=2)
    (kernel,) = program.kernels
    assert kernel.grid == (2, 1, 1) and kernel.shared_bytes == HOPPER.generate(alone).kernels[0].shared_bytes
    assert [one.box for one in kernel.maps] == [(128, 64), (32, 64)]  # of the columns each block fetches half
    for word in ("__cluster_dims__(2, 1, 1)", "multicast::cluster", "mapa.shared::cluster"):
        assert word in program.source
    assert program.source.count("barrier.cluster.arrive") == 1 and "__syncthreads" not in program.source
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        ("bulk_wait", "full", "data race"),
        ("bulk_wait", "empty", "data race|deadlock|more arrivals"),
        ("bulk_arrive_at", "empty", "deadlock"),
        ("bulk_share", "full", "deadlock|data race"),  # half of the columns never comes
        ("barrier", "", "before it was made one"),  # a block fetches for one that has not begun
    ],
)
def test_a_wait_less_is_found(name, word, found):
    sizes = (128, 64, 384)
    _, func, *rest = lowered(sizes, cluster=1)
    without = _Without(name, word)
    broken = without.func(func)
    assert without.removed
    with pytest.raises(InterpreterError, match=found):
        run(broken, sizes, True, *rest)


class _Selfish(Mutator):
    """Blocks that ask their own threads alone whether a tile may be filled anew."""

    def visit_Evaluate(self, s):
        if s.value.name == "bulk_arrive_at":
            return If(equal(s.value.args[1], 0), Evaluate(Call("bulk_arrive", s.value.args[:1], s.value.dtype)))
        if s.value.name == "bulk_init" and "empty" in repr(s.value):
            at, many, _ = s.value.args
            return Evaluate(Call("bulk_init", (at, many, te.const(4)), s.value.dtype))
        return s


def test_a_block_that_does_not_ask_the_other_is_found():
    sizes = (128, 64, 384)
    _, func, *rest = lowered(sizes, cluster=1)
    with pytest.raises(InterpreterError, match="data race"):
        run(_Selfish().func(func), sizes, True, *rest)


def test_two_blocks_that_touch_the_same_memory_race():
    text = """func main(B: float32[4]):
    for b in range(2) thread blockIdx.x:
        for r in range(2) thread clusterRank.x:
            allocate t: float32[2] shared:
                for i in range(1) thread threadIdx.x:
                    t[r] = 1.0f32
                    {wait}
                    B[b*2 + r] = t[1 - r]
"""
    out = np.zeros(4, np.float32)
    interpret(parse_func(text.format(wait="barrier()")), out)
    assert out.tolist() == [1.0] * 4
    with pytest.raises(InterpreterError, match="race|before it was written|uninitialised"):
        interpret(parse_func(text.format(wait="")), out)
