"""A kind whose cases do what the driver must notice, by their number: it shows that the nets catch something."""

from __future__ import annotations

import ctypes
import time

import numpy as np

import weft
from tests.compiler.graphs import mlp
from tests.fuzz import guard
from tests.fuzz.driver import peer
from tests.fuzz.kinds import OK, Case, Kind, Result, refused
from weft import te
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Var

WANTED = ("ok", "refused", "wrong", "raw exception", "fault", "fault", "wrong", "hang", "explained", "ok")
"""What becomes of case 0, 1, …"""


def run(case: Case) -> Result:
    """What the number says, if the part that makes it so is still there."""
    if 2 <= case.seed < 9 and 3 not in case.parts:
        return OK
    array = guard.empty(10, np.float32)
    if case.seed == 1:
        return refused(WeftError("planted"))
    if case.seed == 2:
        raise AssertionError("planted")
    if case.seed == 3:
        raise KeyError("planted")
    if case.seed == 4:
        ctypes.memset(array.ctypes.data + array.nbytes, 0, 1)
    if case.seed == 5:
        with guard.placed(at_end=False, fill=0):
            ctypes.string_at(guard.empty(10, np.float32).ctypes.data - 1, 1)
    if case.seed == 6:
        ctypes.memset(array.ctypes.data - 1, 0, 1)
        guard.check()
    if case.seed == 7:
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
    if case.seed == 8:
        with peer():
            ctypes.string_at(0)
    if case.seed == 9:
        _everything_is_guarded()
    return OK


def _everything_is_guarded() -> None:
    """Results, weights, the arena and intermediates of a model and a function lie beside guard pages."""
    guard.install()
    with knobs.override(cache=False):
        module = weft.compile(mlp())
    arenas: list[np.ndarray] = []
    (form,) = module.specializations
    take = form.runner._new_arena
    form.runner._new_arena = lambda: arenas.append(take()[1]) or (arenas[-1].ctypes.data, arenas[-1])
    answer = module(guard.place(np.ones((4, 20), np.float32)))
    weights = form.runner.program.weights
    assert guard.owns(answer) and weights and all(guard.owns(weight) for weight in weights)
    assert arenas and all(guard.owns(arena) for arena in arenas)
    with knobs.override(cache=False, sizes="open"):
        module = weft.compile(mlp(Var("batch")))
        module(guard.place(np.ones((5, 20), np.float32)))
    assert guard.owns(module.specializations[0].runner._large_arena(1 << 10)[1]), "an arena of open sizes"
    A = te.placeholder((50_000,), name="A")
    B = te.compute((50_000,), lambda i: A[49_999 - i] + 1.0, name="B")
    k = te.reduce_axis(50_000, name="k")
    C = te.compute((4,), lambda j: te.max(B[k] + te.cast(j, "float32"), axis=k), name="C")
    with guard.failing_allocation(0) as calls:
        weft.build(te.create_schedule(C.op), [A, C])(np.ones(50_000, np.float32), np.ones(4, np.float32))
        assert calls() > 0, "intermediates do not come from the guarded allocator"


KIND = Kind("planted", lambda seed: Case(seed, tuple(range(8))), run, lambda case: f"parts {case.parts}", seconds=2)
