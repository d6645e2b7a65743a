"""Built-in models, without weights files: each a Graph with random weights, the same every time.

graph = weft.models.resnet18()
module = weft.compile(graph)
"""

from __future__ import annotations

from collections.abc import Callable

import weft.ops  # noqa: F401  (building a graph infers types by the table of operators)
from weft.graph.ir import Graph
from weft.models.language import bert_base, lstm_lm
from weft.models.vision import dcgan, dqn, mobilenet_v1, mobilenet_v2, resnet18, resnet50

MODELS: dict[str, Callable[..., Graph]] = {
    made.__name__: made for made in (resnet18, resnet50, mobilenet_v1, mobilenet_v2, lstm_lm, dqn, dcgan, bert_base)
}
"""Every model by name."""

__all__ = [
    "MODELS", "bert_base", "dcgan", "dqn", "lstm_lm", "mobilenet_v1", "mobilenet_v2", "resnet18", "resnet50",
]  # fmt: skip
