"""Layer 6: models that need no file, as graphs with random weights: for a first try, for tests and for benchmarks.

    graph = weft.models.resnet18(batch=1, seed=0)      the same seed gives the same weights
    module = weft.compile(graph)
    weft.models.names()                                every name
    weft.models.make("resnet18", batch=4)              by name

The workloads of the TVM paper (ResNet-18, MobileNet, the LSTM language model, DQN, DCGAN), three more, and a decoder.
The weights mean nothing, but keep every activation in a sane range, so that results can be compared in float16 and
bfloat16 too.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import WeftError, did_you_mean
from weft.graph.ir import Graph
from weft.models.language import bert_base, lstm_lm
from weft.models.llama import llama_110m
from weft.models.vision import dcgan, dqn, mobilenet_v1, mobilenet_v2, resnet18, resnet50

MODELS: dict[str, Callable[..., Graph]] = {
    made.__name__: made
    for made in (resnet18, resnet50, mobilenet_v1, mobilenet_v2, lstm_lm, dqn, dcgan, bert_base, llama_110m)
}
"""Every model by name."""


class ModelError(WeftError, ValueError):
    """A built-in model that does not exist, or a batch that makes no sense."""


def names(decoders: bool = True) -> list[str]:
    """The names of the built-in models; without decoders those whose sizes are all fixed."""
    return [name for name in MODELS if decoders or name != llama_110m.__name__]


def make(name: str, batch: int = 1, seed: int = 0) -> Graph:
    """The built-in model of that name."""
    if name not in MODELS:
        known = ", ".join(MODELS) + did_you_mean(name, MODELS)
        raise ModelError(f"there is no built-in model {name!r}; there are {known}")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ModelError(f"batch is {batch!r}; give a whole number from 1 up")
    return MODELS[name](batch, seed)


__all__ = [
    "MODELS", "ModelError", "bert_base", "dcgan", "dqn", "llama_110m", "lstm_lm", "make", "mobilenet_v1",
    "mobilenet_v2", "names", "resnet18", "resnet50",
]  # fmt: skip
