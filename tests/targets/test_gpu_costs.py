"""What sketches for machines with threads cost: over columns as for one point, and the order that comes out of it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft import te
from weft.plan.planner import analytic, contractions_of, unit_of
from weft.targets.cuda import model as fit
from weft.targets.cuda.families import FAMILIES
from weft.targets.gpu import families
from weft.targets.gpu.model import NEUTRAL, model_of, resident_blocks
from weft.targets.registry import find_target

HOPPER, AMPERE, OPENCL = (find_target(name) for name in ("cuda:sm_90a", "cuda:sm_80", "opencl:generic"))


def product(m, n, k, dtype="float32"):
    """The unit of a product with an epilogue, on a target."""
    a, b, r = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B"), te.reduce_axis(k, "r")
    total = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r), name="C"
    )
    schedule = te.create_schedule(te.compute((m, n), lambda i, j: total[i, j] + 1.0, name="D").op)
    return lambda target: next(contractions_of(unit_of(schedule, "D", target)))


def sketches(unit, offered=FAMILIES):
    """What is offered for a unit, by name."""
    found = [match(unit) for match in offered.contractions]
    return {sketch.name: sketch for sketch in found if sketch is not None}


@pytest.mark.parametrize("target", [HOPPER, AMPERE, OPENCL])
def test_columns_cost_what_points_cost(target):
    """Scoring a space as a whole gives each point what it gets alone."""
    for sketch in sketches(product(256, 192, 320, "float16")(target)).values():
        columns = sketch.columns()
        legal, cost = np.asarray(sketch.legal(columns)), np.asarray(sketch.cost(columns))
        assert legal.any() and legal.shape == cost.shape == (sketch.size,) and (cost[legal] > 0).all()
        for at in np.flatnonzero(legal)[:: max(1, int(legal.sum()) // 20)]:
            one = {knob: numbers[at : at + 1] for knob, numbers in columns.items()}
            assert sketch.legal(one)[0] and sketch.cost(one)[0] == cost[at]
            sketch.check(sketch.point(columns, int(at)))


@pytest.mark.parametrize(
    ("target", "dtype", "order"),
    [
        (HOPPER, "float16", ["warpgroups", "tensor cores", "product"]),
        (AMPERE, "float16", ["tensor cores", "product"]),
        (HOPPER, "float32", ["product"]),
        (OPENCL, "float16", ["product"]),
    ],
)
def test_the_order_of_sketches_comes_out_of_their_costs(target, dtype, order):
    """Whatever order they are offered in: the machine with the better instructions is estimated to be faster."""
    offered = FAMILIES if target is not OPENCL else families.FAMILIES
    for sizes in ((512, 512, 512), (128, 3072, 768), (197, 384, 1536)):
        unit = product(*sizes, dtype)(target)
        found = list(sketches(unit, offered).values())
        chosen = [sketch.name.removesuffix(" and copy engine") for sketch, *_ in analytic(unit, found[::-1])]
        assert list(dict.fromkeys(chosen)) == order


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ((512, 512, 512), "warpgroups"),  # 2.6 µs, by the copy engine 3.0
        ((577, 192, 576), "warpgroups"),  # 2.7 and 3.5
        ((197, 768, 3072), "warpgroups and copy engine"),  # 6.3, by threads 7.6
    ],
)
def test_small_products_are_fetched_as_was_measured(sizes, name):
    unit = product(*sizes, dtype="float16")(HOPPER)
    chosen, _, _ = next(iter(analytic(unit, list(sketches(unit).values()))))
    assert chosen.name == name


def test_fits_are_of_the_machine_that_was_measured():
    """CUDA has the numbers of the H200; a machine that nobody measured has neutral ones, and the same formulas."""
    assert model_of(HOPPER.threads) is fit.H200 and model_of(OPENCL.threads) is NEUTRAL
    unit = product(512, 512, 512)(OPENCL)
    (sketch,) = sketches(unit, families.FAMILIES).values()
    slower = replace(OPENCL, threads=replace(OPENCL.threads, gigahertz=OPENCL.threads.gigahertz / 2))
    (other,) = sketches(product(512, 512, 512)(slower), families.FAMILIES).values()
    columns = sketch.columns()
    np.testing.assert_allclose(other.cost(columns), 2 * sketch.cost(columns))


def test_blocks_that_a_multiprocessor_holds():
    threads, shared = np.array([64, 256, 1024]), np.array([1024, 100 << 10, 200 << 10])
    assert resident_blocks(HOPPER.threads, threads, 32, shared).tolist() == [32, 2, 1]
    assert resident_blocks(replace(HOPPER.threads, registers=0), 256, 255, 0) == 1


@pytest.mark.parametrize("kind", ["cpu", "gpu", "cuda"])
def test_a_number_of_a_model_has_one_value(kind):
    path = Path(families.__file__).parent.parent / kind / "model.py"
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    names = [one.id for node in nodes for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)]
    assert len(names) == len(set(names))
