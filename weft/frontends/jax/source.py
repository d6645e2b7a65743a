"""What a user calls a JAX model, as a Graph and the form of its calls.

a function, jitted or not, and example arguments      traced here (jax.jit(f).trace)
anything else that is called (an equinox module, …)   the same

Arguments and results are pytrees. Example arguments may be jax.ShapeDtypeStruct.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from weft.core.errors import ArgumentError, FrontendError
from weft.frontends.calls import Imported
from weft.frontends.jax.importer import _NOT_THE_USERS, import_jaxpr


@dataclass
class Calls:
    """The form of a call (see `weft.compiler.structured`)."""

    arguments: Any
    """The structure of (args, kwargs)."""
    results: Any
    """The structure of what is returned."""
    leaves: list[str]
    """The names of the leaves of the arguments: the inputs of the graph."""
    kinds: list[Any]
    """Their element types, which JAX makes of wider ones (int32 of int64) and of Python's numbers."""

    @property
    def is_plain(self) -> bool:
        """Whether arrays go in by place and one array comes out: the form that arrays have anyway."""
        plain = jax.tree.structure(((0,) * len(self.leaves), {}))
        return bool(self.arguments == plain and self.results == jax.tree.structure(0))

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs of the graph, for a call with these arguments; None where they have another structure."""
        leaves, structure = jax.tree.flatten((args, dict(kwargs)))
        return list(map(_narrowed, leaves, self.kinds)) if structure == self.arguments else None

    def check(self, given: Sequence[Any]) -> None:
        """Sizes are fixed."""

    def unflatten(self, made: Sequence[Any]) -> Any:
        """What the function returns, for the outputs of the graph."""
        return jax.tree.unflatten(self.results, made)

    def write(self, made: Sequence[Any], given: Sequence[Any]) -> None:
        """A function of JAX changes none of its arguments."""

    def describe(self) -> str:
        """The structure of the arguments, for an error."""
        args, kwargs = jax.tree.unflatten(self.arguments, self.leaves)
        shown = [repr(one).replace("'", "") for one in args]
        return ", ".join(shown + [f"{key}={one!r}".replace("'", "") for key, one in kwargs.items()])

    @staticmethod
    def as_array(given: Any) -> Any:
        """An input as an array: a view of its memory where that is possible."""
        if isinstance(given, jax.Array) and jax.dtypes.issubdtype(given.dtype, jax.dtypes.prng_key):
            given = jax.random.key_data(given)
        return np.asarray(given) if isinstance(given, jax.Array) else given

    @staticmethod
    def is_native(given: Any) -> bool:
        """Whether this is an array of JAX's."""
        return isinstance(given, jax.Array)

    @staticmethod
    def as_native(array: Any) -> Any:
        """A result as an array of JAX's."""
        return jax.numpy.asarray(array)


def load(model: Any, args: Sequence[Any]) -> Imported:
    """Imports a function, traced for example arguments."""
    traced = _traced(model, args)
    if not all(isinstance(size, int) for kind in traced.jaxpr.in_avals for size in kind.shape):
        raise ArgumentError("a function of JAX's is compiled for one set of shapes: give sizes that are numbers")
    names = _names(traced.jaxpr.jaxpr.debug_info, traced.in_tree.num_leaves)
    label = getattr(model, "__name__", type(model).__name__).strip("<>")
    graph = import_jaxpr(traced.jaxpr, label if label.isidentifier() else "model", names)
    kinds = [value.tensor.numpy for value in graph.inputs]
    return Imported(graph, Calls(traced.in_tree, traced.out_tree, [value.name for value in graph.inputs], kinds))


def _narrowed(given: Any, kind: Any) -> Any:
    """An argument as JAX takes it."""
    if isinstance(given, (jax.Array, np.ndarray)) and given.dtype == kind:
        return given
    if isinstance(given, (bool, int, float, np.ndarray, np.generic)):
        array = np.asarray(given)
        if jax.dtypes.canonicalize_dtype(array.dtype) == kind:
            return array.astype(kind)
    return given


def _traced(model: Any, args: Sequence[Any]) -> Any:
    if not callable(model):
        raise ArgumentError(f"a model of JAX is a function, not a {type(model).__name__}")
    whole = model if inspect.isfunction(model) else lambda *args: model(*args)  # (jit wants what has a hash)
    function = model if hasattr(model, "trace") else jax.jit(whole)
    try:
        return function.trace(*args)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [f" (at {f.filename}:{f.lineno})" for f in frames if not f.filename.startswith(_NOT_THE_USERS)]
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FrontendError(f"JAX cannot trace the model: {first}{users[-1] if users else ''}") from error


def _names(known: Any, count: int) -> list[str]:
    """The names of the leaves of the arguments, as the function has them: x, or parameters_weight."""
    found = list(getattr(known, "arg_names", None) or ())
    found = found if len(found) == count else [None] * count
    return [re.sub(r"\W+", "_", one).strip("_") if one else f"args_{at}" for at, one in enumerate(found)]
