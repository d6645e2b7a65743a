"""Causal attention in blocks: which masks are causal, and that the meaning stays."""

import numpy as np
import pytest

from tests.graph.passes.test_attention import check_meaning, fused, number, tight, written_out
from weft.graph.passes.attention import NAME
from weft.graph.passes.causal_blocks import cut_causal

LOWER = np.tril(np.ones((9, 9), bool))
WIDER = np.tril(np.ones((9, 11), bool), 2)


def far(seen, value=-1e9):
    return np.where(seen, 0, value).astype("float32")


def added(mask):
    return lambda b, s, m: b.node("Add", b.node("Mul", s, number(b, 0.5)), b.constant(mask, "mask"))


def kept(mask, value):
    return lambda b, s, m: b.node("Where", b.constant(mask, "mask"), s, number(b, value))


def with_padding(b, s, m):
    return b.node("Add", b.node("Add", s, m), b.constant(far(LOWER), "later"))


CAUSAL = {
    "added": (added(far(LOWER)), 9, ()),
    "the least number": (added(far(LOWER, np.finfo("float32").min)[None, None]), 9, ()),
    "infinite, some keys before": (added(far(WIDER, -np.inf)), 11, ()),
    "kept": (kept(LOWER, -1e10), 9, ()),
    "beside a mask of each image": (with_padding, 9, (2, 1, 1, 9)),
    "beside a mask of each query": (with_padding, 9, (9, 9)),
}
OTHER = {
    "too small": added(far(LOWER, -1e4)),
    "a key that is seen": added(far(LOWER | (np.arange(9) == 8))),
    "no key for the first": added(far(np.tril(LOWER, -1))),
    "of each head": added(np.stack([far(LOWER)] * 3)),
    "a factor after it": lambda b, s, m: b.node("Mul", added(far(LOWER))(b, s, m), number(b, -1.0)),
    "another number": kept(LOWER, -1e4),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks(name):
    steps, keys, mask = CAUSAL[name]
    graph = written_out(steps, 9, keys, mask)
    made = cut_causal(fused(graph), 3, tight)
    parts = [node for node in made.nodes if node.op == NAME]
    assert [node.attributes["sizes"][2:4] for node in parts] == [[3, keys - 6], [3, keys - 3], [3, keys]]
    assert all("causal" in node.attributes["steps"] for node in parts)
    check_meaning(graph, made)


@pytest.mark.parametrize("name", OTHER)
def test_other_masks_stay(name):
    graph = fused(written_out(OTHER[name], 9, 9))
    assert cut_causal(graph, 3, tight) is graph


def test_few_queries_and_sizes_that_are_refused_stay():
    graph = fused(written_out(added(far(LOWER)), 9, 9))
    assert cut_causal(graph, 5, tight) is graph
    assert cut_causal(graph, 3, lambda sizes, dtype: None) is graph
