"""The built-in decoder: ONNX Runtime on the same graph, prompt and tokens from one module, caches in place."""

import numpy as np
import pytest

import weft
from weft.cli.to_onnx import to_onnx
from weft.core.errors import RuntimeFault
from weft.models.llama import WEIGHTS, llama_110m

LITTLE = {"layers": 1, "width": 64, "heads": 4, "key_heads": 2, "hidden": 96, "vocabulary": 128}
CAPACITY = 16


def caches(graph):
    return [np.zeros((1, 2, CAPACITY, 16), np.float32) for _ in graph.inputs[2:]]


def calls(*lengths):
    """Tokens, and the place of the last one, of calls with so many tokens each."""
    rng, place = np.random.default_rng(0), 0
    for length in lengths:
        place += length
        yield rng.integers(0, 128, (1, length)), np.array([place - 1], np.int32)


@pytest.mark.parametrize("weights", [pytest.param(w, marks=[] if w == "int4" else [pytest.mark.slow]) for w in WEIGHTS])
def test_against_onnx_runtime(weights):
    """A prompt, tokens one by one, and a second prompt, each on the caches that its own runtime wrote."""
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = llama_110m(weights=weights, accuracy_level=0, **LITTLE)
    session = onnxruntime.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    module, logits = weft.compile(graph), np.empty((1, 128), np.float32)
    ours, theirs = caches(graph), caches(graph)
    for tokens, last in calls(3, 1, 1, 3, 1):
        module(tokens, last, *ours, out=[logits, *ours])
        names = [value.name for value in graph.inputs]
        wanted, *theirs = session.run(None, dict(zip(names, [tokens, last, *theirs])))
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert len(module.specializations) == 2  # one for each length, and none for a place in the cache


def test_a_cache_is_written_in_place_only_where_the_caller_says_so(tmp_path):
    graph = llama_110m(**LITTLE)
    module = weft.compile(graph)
    logits, kept, shared = np.empty((1, 128), np.float32), caches(graph), caches(graph)
    for tokens, last in calls(3, 1, 1):
        before = [array.copy() for array in kept]
        made, *new = module(tokens, last, *kept)
        assert all((a == b).all() for a, b in zip(kept, before))
        given = module(tokens, last, *shared, out=[logits, *shared])
        assert all(a is b for a, b in zip(given[1:], shared))
        assert (made == logits).all() and all((a == b).all() for a, b in zip(new, shared))
        kept = new
    # An array for another output than its own is written when everything has been read.
    tokens, last = np.array([[5]]), np.array([5], np.int32)
    wanted = module(tokens, last, *kept)
    crossed = [shared[1], shared[0], *shared[2:]]
    module.run(None, dict(zip(module._names, [tokens, last, *shared])), out=[logits, *crossed])
    assert (logits == wanted[0]).all() and all((a == b).all() for a, b in zip(crossed, wanted[1:]))
    # The short way tests an array once that is both; all that it does not take it leaves to the long way.
    again = [array.copy() for array in kept]
    given, mixed = [tokens, last, *again], [logits, again[0], *(np.empty_like(array) for array in again[1:])]
    assert module._fast(given, 1, mixed) is not None
    assert all((a == b).all() for a, b in zip(mixed[1:], wanted[1:])) and (again[1] == kept[1]).all()
    again[0].flags.writeable = False
    long = np.zeros((1, 2 * CAPACITY, *again[0].shape[2:]), np.float32)
    others = [again[0], again[0].astype(np.float64), again[0][:, :, ::-1], again[0].tolist(), long, None]
    for other in others:
        assert module._fast([tokens, last, other, *again[1:]], 1, [logits, other, *again[1:]]) is None
    assert module._fast(given, 1, []) is module._fast(given, 1, mixed[:-1]) is None
    for out in None, [], mixed[:-1]:
        assert module._fast([tokens, last, None, *again[1:]], 1, out) is None, "no array is none"
    # A module file says the same, and a place outside the cache is an error.
    module.save(tmp_path / "decoder.weft")
    loaded, again = weft.load(tmp_path / "decoder.weft"), [array.copy() for array in kept]
    loaded(tokens, last, *again, out=[logits, *again])
    assert all((a == b).all() for a, b in zip(again, wanted[1:]))
    assert loaded.specializations[0].runner.program.updates
    with pytest.raises(RuntimeFault, match="UpdateHeads"):
        module(tokens, np.array([CAPACITY], np.int32), *kept)
