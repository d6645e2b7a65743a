"""Modules that are called as their PyTorch module was: arguments and results of any structure, tensors in and out.

m = weft.compile(model, (x, {"mask": mask}))
y = m(x, {"mask": mask})              what the model would return: torch tensors, where one goes in, else numpy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.errors import ArgumentError
from weft.core.install import hint
from weft.executor.module import Module, compile_graph
from weft.targets.base import Target
from weft.targets.registry import find_target

if TYPE_CHECKING:
    from weft.frontends.torch.calls import Calls


class TorchModule(Module):
    """A compiled PyTorch model."""

    _calls: Calls
    _plain = 0

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """What the PyTorch module would return for these arguments; inputs by the graph's names work, too."""
        from weft.frontends.torch.calls import as_array, as_tensor, is_tensor

        if out is not None:
            return super().__call__(*args, out=out, **named)
        plain = len(args) == self._plain and not named
        given = list(args) if plain else self._calls.flatten(args, named)
        if given is None:
            try:
                feeds = self._feeds(args, named)
                given = [feeds[name] for name in self._names]
            except (ArgumentError, KeyError):
                raise ArgumentError(f"the model is called as in its example: ({self._calls.describe()})") from None
        like_torch = not given or any(map(is_tensor, given))  # a model without inputs gives tensors
        made = super().__call__(*map(as_array, given))
        results = made if type(made) is tuple else (made,)
        self._calls.write(results, given)
        if like_torch:
            results = tuple(map(as_tensor, results))
        return results[0] if plain else self._calls.unflatten(results)

    def __copy__(self) -> Module:
        return structured(super().__copy__(), self._calls)


def structured(module: Module, calls: Calls) -> Module:
    """A module that is called in this form; the same class where it runs on a device."""
    kind = type(module)
    module.__class__ = TorchModule if kind is Module else type("TorchModule", (TorchModule, kind), {})
    assert isinstance(module, TorchModule)
    module._calls = calls
    module._plain = len(module._names) if calls.is_plain else -1
    return module


def compile_torch(
    model: Any,
    inputs: Sequence[Any],
    dynamic_shapes: Any,
    target: str | Target,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: str | None,
    threads: int | None,
) -> Module:
    """A PyTorch model as a module; with tensors on a GPU, for that GPU."""
    try:
        from weft.frontends.torch import load
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ArgumentError(f"compiling a PyTorch model needs torch: {hint('torch')}") from error
    if len(inputs) > 1:
        raise ArgumentError("example inputs are one tuple, or a dict by name: weft.compile(model, (a, b))")
    found = load(model, inputs[0] if inputs else None, dynamic_shapes)
    if target == "auto" and found.device == "cuda":
        target = find_target("cuda")
    return structured(compile_graph(found.graph, target, shapes, precision, threads), found.calls)
