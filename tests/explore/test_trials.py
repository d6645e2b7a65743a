"""The tuner's records of a kernel become its curve."""

import numpy as np

import weft
from weft.compiler.kernels.build import program_key, program_text
from weft.explore import explore
from weft.explore.stages import kernels, program
from weft.models.builder import Builder
from weft.tuner.database import Database
from weft.tuner.records import Outcome, Record, Status, compiler_version, machine_key


def test_records_are_shown_with_their_gain(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    b = Builder("one", seed=0)
    x = b.input("x", (4, 32))
    module = weft.compile(b.finish(b.linear(x, 32, 16), names=["y"]))
    assert module(np.zeros((4, 32), "float32")).shape == (4, 16)
    one = next(iter(kernels(module)))
    made = program(one)
    key = program_key(program_text(made, [b for v, b in made.inputs if v in one.graph.constants]))
    outcomes = [Outcome(Status.OK, 2.0, 4.0), Outcome(Status.REFUSED, detail="no"), Outcome(Status.OK, 1.0, 4.0)]
    with Database() as database:
        database.add(
            Record(key, machine_key(module.target), compiler_version(), "matmul", {"rows": n}, o, 1, 0.5, float(n))
            for n, o in enumerate(outcomes)
        )
    page = explore(module)
    assert [trial[:3] for trial in page.kernels[0]["trials"]] == [
        [2.0, "ok", "matmul"], [0.0, "refused", "matmul"], [4.0, "ok", "matmul"],
    ]  # fmt: skip
    assert page.index["kernels"][0]["trials"] == 3 and page.index["kernels"][0]["gain"] == 4.0
