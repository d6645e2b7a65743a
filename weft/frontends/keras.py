"""Keras 3: models of any kind and .keras files, through the door of the backend that runs them.

backend jax       model.stateless_call, as a function of JAX's whose parameters are constants
backend torch     the model is a torch.nn.Module
backend tensorflow, or numpy: refused, with the line that loads the same file in another

Where nobody chose a backend before Keras is imported here, it is one of the first two (Keras' default is TensorFlow).

Without example inputs those of the model's own description are taken, with sizes that it leaves open as 1.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

if "keras" not in sys.modules:
    os.environ.setdefault("KERAS_BACKEND", "jax" if importlib.util.find_spec("jax") else "torch")

import keras

from weft.core.errors import ArgumentError, FrontendError
from weft.frontends.calls import Imported

_KEPT = "{} keeps what one call leaves for the next, which a compiled model does not: make the layer stateful=False"


def load(model: Any, inputs: Sequence[Any] = (), dynamic_shapes: Any = None) -> Imported:
    """Imports a model, or the path of a .keras file."""
    if isinstance(model, (str, os.PathLike)):
        model = _read(os.fspath(model))
    backend = keras.backend.backend()
    if not inputs:
        inputs = (_described(model, backend),)
    elif not model.built and backend in ("jax", "torch"):
        model(*inputs)
    if kept := [one.name for one in model._flatten_layers() if getattr(one, "stateful", False)]:
        raise FrontendError(_KEPT.format(", ".join(kept)))
    if backend == "jax":
        from weft.frontends.jax import load as load_jax

        if dynamic_shapes is not None:
            raise ArgumentError("dynamic_shapes go with Keras' torch backend: JAX traces a model for each shape")
        return load_jax(_function(model), inputs)
    if backend == "torch":
        from torch.nn import Module

        from weft.frontends.torch import load as load_torch

        whole = Module()
        whole.model, whole.forward = model, lambda *args: model(*args, **_training(model))
        return load_torch(whole.eval(), tuple(inputs), dynamic_shapes)
    raise FrontendError(
        f"Keras runs with its backend {backend} here, from which no model can be taken: set KERAS_BACKEND=jax "
        "(or torch) before Keras is imported, keras.models.load_model('model.keras') there, and weft.compile(model, x)"
    )


def _read(path: str) -> Any:
    if not os.path.isfile(path):
        raise FrontendError(f"there is no file {path}")
    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:
        raise FrontendError(f"Keras cannot read {path}: {f'{error}'.partition(chr(10))[0]}") from error


def _described(model: Any, backend: str) -> Any:
    """Inputs of the shapes that a model describes."""
    listed = getattr(model, "inputs", None)
    if not listed:
        raise ArgumentError(
            f"weft.compile takes the {type(model).__name__} with example inputs, weft.compile(model, x): "
            "a subclassed model does not say what they are"
        )

    def example(one: Any) -> Any:
        shape = [size or 1 for size in one.shape]
        made = keras.ops.zeros(shape, dtype=one.dtype)
        return made.cpu() if backend == "torch" else made

    described = getattr(model, "_inputs_struct", listed)
    described = described[0] if isinstance(described, (list, tuple)) and len(described) == 1 else described
    return keras.tree.map_structure(example, described)


def _training(model: Any) -> dict[str, bool]:
    """What tells a model that it does not train: layers that draw numbers are on by default."""
    return {"training": False} if model._call_has_training_arg else {}


def _function(model: Any) -> Any:
    """A model as a function of its inputs alone."""

    def function(*inputs: Any) -> Any:
        trainable = [one.value for one in model.trainable_variables]
        other = [one.value for one in model.non_trainable_variables]
        found, left = model.stateless_call(trainable, other, *inputs, **_training(model))
        for variable, old, new in zip(model.non_trainable_variables, other, left):
            if new is not old and "seed_generator" not in variable.path:
                raise FrontendError(_KEPT.format(variable.path))
        return found

    function.__name__ = model.name if model.name.isidentifier() else "model"
    return function
