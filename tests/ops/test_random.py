"""Random operators: distributions, seeds, and Dropout against ONNX's cases."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels, runs
from tests.ops.nodes import numbers, run_node
from weft.ops.elementwise_support import ELEMENT_TYPES

HOST = {c.name for c in cases("Dropout") if "training" in c.name}
NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


@pytest.mark.parametrize("case", cases("Dropout"), ids=lambda c: c.name)
def test_dropout_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels("Dropout", host=HOST))
def test_dropout_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.parametrize("case", cases("Bernoulli"), ids=lambda c: c.name)
def test_bernoulli_case(case):
    """ONNX's expected numbers are those of one run: only types, and that each is 0 or 1, can be checked."""
    for run in runs(case):
        (made,) = run.spec.run(run.node, run.arrays)
        (wanted,) = run.expected.values()
        assert made.dtype == wanted.dtype and made.shape == wanted.shape and set(made.tolist()) <= {0, 1}


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_seeds(op):
    def draw(**options):
        return run_node(op, shape=[1000], **options)[0][0]

    np.testing.assert_array_equal(draw(seed=3.0), draw(seed=3.0))
    np.testing.assert_array_equal(draw(seed=0.25), draw(seed=0.25))
    assert (draw(seed=3.0) != draw(seed=4.0)).any() and (draw() != draw()).any()


def test_distributions():
    normal = run_node("RandomNormal", shape=[100_000], mean=2.0, scale=3.0, seed=1.0)[0][0]
    assert normal.dtype == np.float32 and abs(normal.mean() - 2) < 0.05 and abs(normal.std() - 3) < 0.05
    uniform = run_node("RandomUniformLike", numbers(500, 100), low=-1.0, high=3.0, seed=1.0)[0][0]
    assert uniform.shape == (500, 100) and uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.05
    like = run_node("RandomNormalLike", np.zeros((2, 3), np.int32), dtype=NUMBERS["float16"])[0][0]
    assert like.dtype == np.float16 and like.shape == (2, 3)
    flips = run_node("Bernoulli", np.full(100_000, 0.3, np.float32), seed=1.0)[0][0]
    assert abs(flips.mean() - 0.3) < 0.01


def test_classes_by_their_logarithms():
    logs = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]], np.float32))
    drawn = run_node("Multinomial", logs, sample_size=20_000, seed=1.0)[0][0]
    assert drawn.dtype == np.int32
    shares = np.stack([(drawn == k).mean(1) for k in range(3)], 1)
    np.testing.assert_allclose(shares, np.exp(logs), atol=0.02)


def test_dropout_in_training_scales():
    x = np.ones(100_000, np.float32)
    made, mask = run_node("Dropout", x, np.array(0.25, np.float32), np.array(True), outputs=2, seed=1)[0]
    assert abs(made.mean() - 1) < 0.02 and abs(mask.mean() - 0.75) < 0.01
    np.testing.assert_allclose(made[mask], 1 / 0.75, rtol=1e-6)
