"""Proofs end soon: splits of a symbolic loop nest min and max deeply, and a proof may not follow every side."""

from weft import te
from weft.expr import proof
from weft.targets.cpu.pipeline import lower
from weft.targets.registry import find_target


def test_lowering_four_splits_of_a_symbolic_loop_bounds_few_atoms(monkeypatch):
    n = te.var("n")
    k = te.reduce_axis(n, "k")
    a = te.placeholder((n, n), name="A")
    c = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="C")
    schedule = te.create_schedule(c.op)
    stage = schedule[c]
    _, inner = stage.split(c.op.axis[0], nparts=2)
    inner, innermost = stage.split(inner, factor=7)
    stage.split(innermost, nparts=2)
    stage.split(inner, factor=7)
    calls = []
    bound_atom = proof.Prover.bound_atom
    monkeypatch.setattr(proof.Prover, "bound_atom", lambda *args: calls.append(1) or bound_atom(*args))
    lower(schedule.func, find_target("native"))
    assert len(calls) < 100_000  # 10,000 now; 900,000 where nothing ends a proof
