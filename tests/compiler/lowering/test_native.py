"""The text of a driver: what it says to threads that wait."""

from __future__ import annotations

import re

import numpy as np

import weft
from weft.compiler.lowering.native import Call, driver_ir, fetched_ahead
from weft.models.builder import Builder
from weft.targets.registry import find_target

TRIPLE = "x86_64-unknown-linux-gnu"


def said(text: str) -> list[tuple[str, ...]]:
    """The bases and the numbers of the calls of `weft_ahead`, in order."""
    bases = dict(re.findall(r"%(w\d+) = load i64, ptr %h(\d+)", text))
    places = dict(re.findall(r"%h(\d+) = getelementptr inbounds i64, ptr %bases, i64 (\d+)", text))
    calls = re.findall(r"call void @weft_ahead\(i64 %?(\w+), i64 (\d+), i64 (\d+)\)", text)
    return [(places[bases[place]] if place in bases else place, *rest) for place, *rest in calls]


def test_a_driver_says_which_weights_come_next() -> None:
    """Of the next kernel that waits for some; behind the last, of the first one of the next call."""
    calls = [
        Call("a", ((0, 0),)),
        Call("b", ((1, 0),), awaited=(1, 500)),
        Call("c", ()),
        Call("d", (), awaited=(2, 900)),
    ]
    text = driver_ir("run", calls, TRIPLE, fetched=64)
    assert said(text) == [("1", "500", "64"), ("2", "900", "64"), ("2", "900", "64"), ("1", "500", "64")]
    assert said(driver_ir("run", calls, TRIPLE)) == []


def test_a_driver_without_such_weights_takes_back_what_another_said() -> None:
    assert said(driver_ir("run", [Call("a", ())], TRIPLE, fetched=64)) == [("0", "0", "0")]


def test_products_of_few_rows_wait_for_their_weights() -> None:
    """Of a model whose weights do not stay in a cache."""

    def awaited(rows: int, columns: int) -> list[int]:
        b = Builder("layers")
        x = b.input("x", (rows, 512))
        for inner, width in ((512, columns), (columns, 512)):
            x = b.relu(b.dense(x, inner, width))
        module = weft.compile(b.finish(x, names=["y"]), target=f"{TRIPLE},cpu=skylake-avx512,cores=2")
        (step,) = module.specializations[0].runner.program.steps
        return [call.awaited[1] for call in step.calls if call.awaited]

    assert awaited(1, 2048) == [4 * 512 * 2048] * 2
    assert awaited(64, 2048) == awaited(1, 32) == []


def test_a_product_of_two_vectors_is_one_number() -> None:
    b = Builder("vectors")
    module = weft.compile(b.finish(b.node("MatMul", b.input("x", (300,)), b.input("y", (300,))), names=["out"]))
    found = module(np.ones(300, np.float32), np.full(300, 2, np.float32))
    assert found.shape == () and found == 600


def test_nobody_waits_where_there_are_no_threads() -> None:
    assert fetched_ahead(find_target("wasm32-unknown-unknown,cores=1")) == 0
    assert fetched_ahead(find_target(f"{TRIPLE},cpu=haswell,cores=2")) > 0
