"""Modules that are called as their model was: arguments and results of any structure, its own arrays in and out.

m = weft.compile(model, (x, {"mask": mask}))
y = m(x, {"mask": mask})              what the model would return: torch tensors, where one goes in, else numpy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.compiler.module import Module, compile_graph
from weft.core.errors import ArgumentError
from weft.core.install import hint
from weft.frontends.calls import Calls, Imported
from weft.targets.base import Target
from weft.targets.registry import find_target


class StructuredModule(Module):
    """A compiled model that is called as the model is."""

    _calls: Calls
    _plain = 0

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """What the model would return for these arguments; inputs by the graph's names work, too."""
        if out is not None:
            return super().__call__(*args, out=out, **named)
        calls = self._calls
        plain = len(args) == self._plain and not named
        given = list(args) if plain else calls.flatten(args, named)
        if given is None:
            try:
                feeds = self._feeds(args, named)
                given = [feeds.pop(name) for name in self._names]
                if feeds:
                    raise KeyError
            except (ArgumentError, KeyError):
                raise ArgumentError(f"the model is called as in its example: ({calls.describe()})") from None
        calls.check(given)
        native = not given or any(map(calls.is_native, given))  # a model without inputs gives its framework's arrays
        made = super().__call__(*map(calls.as_array, given))
        results = made if type(made) is tuple else (made,)
        calls.write(results, given)
        if native:
            results = tuple(map(calls.as_native, results))
        return results[0] if plain else calls.unflatten(results)

    def __copy__(self) -> Module:
        return structured(super().__copy__(), self._calls)


def structured(module: Module, calls: Calls) -> Module:
    """A module that is called in this form; the same class where it runs on a device."""
    kind = type(module)
    if not isinstance(module, StructuredModule):  # a copy is one
        of_device = kind is not Module
        module.__class__ = type("StructuredModule", (StructuredModule, kind), {}) if of_device else StructuredModule
    assert isinstance(module, StructuredModule)
    module._calls = calls
    module._plain = len(module._names) if calls.is_plain else -1
    return module


def compile_structured(
    kind: str,
    model: Any,
    inputs: Sequence[Any],
    dynamic_shapes: Any,
    target: str | Target,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: str | None,
    threads: int | None,
) -> Module:
    """A model of PyTorch, JAX, Keras or TFLite as a module; with tensors on a GPU, for that GPU."""
    try:
        found = _load(kind, model, inputs, dynamic_shapes, shapes)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "jax", "jaxlib", "keras"):
            raise
        raise ArgumentError(f"compiling a model of {kind} needs {error.name}: {hint(kind)}") from error
    if target == "auto" and found.device == "cuda":
        target = find_target("cuda")
    bound = shapes if kind == "torch" else None
    return structured(compile_graph(found.graph, target, bound, precision, threads), found.calls)


def _load(kind: str, model: Any, inputs: Sequence[Any], dynamic_shapes: Any, shapes: Any) -> Imported:
    if kind == "torch":
        from weft.frontends.torch import load as load_torch

        if len(inputs) > 1:
            raise ArgumentError("example inputs are one tuple, or a dict by name: weft.compile(model, (a, b))")
        return load_torch(model, inputs[0] if inputs else None, dynamic_shapes)
    if kind == "keras":
        from weft.frontends.keras import load as load_keras

        return load_keras(model, inputs, dynamic_shapes)
    if kind == "tflite":
        from weft.frontends.tflite import load as load_tflite

        return load_tflite(model, shapes)
    if dynamic_shapes is not None:
        raise ArgumentError("dynamic_shapes go with a PyTorch module: a function of JAX's is traced for each shape")
    from weft.frontends.jax import load as load_jax

    return load_jax(model, inputs)
