"""One case of `benchmarks.programs`: a small ONNX model, its inputs, and the same in PyTorch.

    Case("softmax rows", "softmax", "y = Softmax<axis=-1>(x)", {"x": normal(128, 1000)},
         lambda t: lambda: torch.softmax(t.x, -1))

`peer` gets the inputs and constants as tensors and gives the call that is measured: layers are made before. Evaluated
on float64 tensors the same call is the reference that everybody's values are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.peers import load

Array = np.ndarray[Any, Any]
Peer = Callable[[SimpleNamespace], Callable[[], Any]]
OPSET = 22


@dataclass(frozen=True)
class Case:
    """A program: nodes in ONNX's own notation, inputs, constants, and its PyTorch form."""

    name: str
    family: str
    nodes: str
    inputs: Mapping[str, Array]
    peer: Peer
    constants: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=lambda: {"y": "float32"})
    tolerance: float = 1e-4
    in_torch: bool = True
    """Whether PyTorch takes part in the race: where it has no such operator, `peer` is the reference alone."""

    def model(self) -> Any:
        """The ONNX model."""
        onnx = load("onnx")
        helper, numpy_helper = load("onnx.helper"), load("onnx.numpy_helper")
        parsed = load("onnx.parser").parse_graph(f"program (float x) => (float y) {{ {self.nodes} }}")
        graph = helper.make_graph(
            list(parsed.node),
            self.name.replace(" ", "_"),
            [helper.make_tensor_value_info(n, _kind(a.dtype), a.shape) for n, a in self.inputs.items()],
            [helper.make_tensor_value_info(n, _kind(np.dtype(kind)), None) for n, kind in self.outputs.items()],
            [numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in self.constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(made)

    def write(self, folder: Path) -> Path:
        """The model in a folder; the file's name is the case's, by which a worker finds it again."""
        path = folder / f"{self.name}.onnx"
        load("onnx").save(self.model(), path)
        return path

    def call(self, wide: bool = False) -> Callable[[], list[Array]]:
        """The call of PyTorch, or with `wide` the reference in float64; both give arrays of the model's types."""
        torch = load("torch")
        tensors = {
            name: torch.from_numpy(array.astype(np.float64) if wide and array.dtype == np.float32 else array.copy())
            for name, array in {**self.inputs, **self.constants}.items()
        }
        with torch.inference_mode():
            made = self.peer(SimpleNamespace(**tensors))

        def call() -> list[Array]:
            with torch.inference_mode():
                found = made()
            parts = found if isinstance(found, (tuple, list)) else (found,)
            return [part.numpy() for part in parts]

        return call

    def reference(self) -> list[Array]:
        """What the model gives: computed in float64, rounded at the end."""
        return [
            np.asarray(array).astype(kind, copy=False)
            for array, kind in zip(self.call(wide=True)(), self.outputs.values())
        ]


def _kind(dtype: Any) -> int:
    return int(load("onnx.helper").np_dtype_to_tensor_dtype(np.dtype(dtype)))


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    """Random values, the same in every process."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, "float32") * np.float32(scale)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> Array:
    """Random values of an interval."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype("float32")


def indices(count: int, *shape: int, seed: int = 0) -> Array:
    """Random positions below a count."""
    return np.random.default_rng([seed, count, *shape]).integers(0, count, shape)


def integers(*values: int) -> Array:
    """A list of numbers, as axes and sizes are given."""
    return np.array(values, np.int64)


def scalar(value: float) -> Array:
    """One float32."""
    return np.array(value, np.float32)
