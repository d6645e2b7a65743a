"""The built-in models: what torch says with the same weights, the same weights for the same seed, sane activations."""

import numpy as np
import pytest

import weft.models
from weft.graph.interpreter import interpret_graph, trace_graph
from weft.graph.ir import TensorType

SHAPES = {
    "resnet18": ((1, 3, 224, 224), (1, 1000)),
    "resnet50": ((1, 3, 224, 224), (1, 1000)),
    "mobilenet_v1": ((1, 3, 224, 224), (1, 1000)),
    "mobilenet_v2": ((1, 3, 224, 224), (1, 1000)),
    "lstm_lm": ((1, 35), (1, 35, 10000)),
    "dqn": ((1, 4, 84, 84), (1, 18)),
    "dcgan": ((1, 100, 1, 1), (1, 3, 64, 64)),
    "bert_base": ((1, 128), (1, 128, 768)),
}
SLOW = {"resnet50", "mobilenet_v2", "bert_base", "lstm_lm"}
EVERY = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SHAPES]

QUICKLY_COMPILED = [pytest.param(name, marks=[] if name in ("dqn", "dcgan") else [pytest.mark.slow]) for name in SHAPES]


def sample(graph, seed=1):
    """An input for a model: whole numbers for words, normal numbers for everything else."""
    random = np.random.default_rng(seed)
    kind = graph.inputs[0].tensor
    if kind.dtype == "int64":
        return random.integers(0, 10_000, kind.static)
    return random.standard_normal(kind.static, "float32")


def test_names():
    assert set(weft.models.names(decoders=False)) == set(SHAPES)
    assert set(weft.models.names()) == {*SHAPES, "llama_110m"}  # the last has open sizes: test_llama.py


@pytest.mark.parametrize("name", EVERY)
def test_types(name):
    graph = weft.models.make(name)
    assert graph.inputs[0].tensor.static == SHAPES[name][0]
    assert [value.tensor.static for value in graph.outputs] == [SHAPES[name][1]]
    assert all(isinstance(v.type, TensorType) and v.type.is_static for node in graph.nodes for v in node.outputs)
    assert all(node.name and node.origin.startswith(name) for node in graph.nodes)


@pytest.mark.parametrize("name", EVERY)
def test_against_torch(name):
    torch = pytest.importorskip("torch")
    from tests.models.torch_models import MODELS, with_weights

    graph = weft.models.make(name)
    x = sample(graph)
    with torch.no_grad():
        want = with_weights(MODELS[name](), graph)(torch.from_numpy(x)).numpy()
    (got,) = interpret_graph(graph, [x])
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("name", EVERY)
def test_activations_stay_in_the_range_of_half_precision(name):
    graph = weft.models.make(name)
    values = trace_graph(graph, [sample(graph)])
    made = [values[out.name] for node in graph.nodes for out in node.outputs]
    assert all(np.isfinite(array).all() and np.abs(array).max() < 1000 for array in made)
    assert np.std(made[-1]) > 1e-2


@pytest.mark.parametrize("name", QUICKLY_COMPILED)
def test_compiled(name):
    from weft.compiler import compile

    graph = weft.models.make(name)
    x = sample(graph)
    (want,) = interpret_graph(graph, [x])
    np.testing.assert_allclose(compile(graph)(x), want, atol=1e-4 * np.abs(want).max(), rtol=0)


def test_a_batch():
    graph = weft.models.dqn(batch=3)
    x = sample(graph)
    (got,) = interpret_graph(graph, [x])
    (alone,) = interpret_graph(weft.models.dqn(), [x[1:2]])
    assert got.shape == (3, 18)
    np.testing.assert_allclose(got[1:2], alone, rtol=1e-4, atol=1e-5)


def test_the_seed_decides_the_weights():
    def weights(seed):
        return [array for array in weft.models.dqn(seed=seed).constants.values() if array.size > 1]

    first, again, other = weights(0), weights(0), weights(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize(("name", "batch", "text"), [("resnet", 1, "resnet18, resnet50"), ("dqn", 0, "batch is 0")])
def test_what_does_not_exist_is_refused(name, batch, text):
    with pytest.raises(weft.models.ModelError, match=text):
        weft.models.make(name, batch)
