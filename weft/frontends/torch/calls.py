"""How a model is called: arguments and results of any structure, as the flat tensors of its graph.

    calls.flatten((x,), {"mask": m})      the arrays for the graph's inputs
    calls.unflatten(arrays)               what the module would have returned

Inputs that the module writes to, and buffers that it changes, are written to as the module would.
"""

from __future__ import annotations

import ast
import functools
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from weft.core.errors import ArgumentError
from weft.frontends.torch.importer import array_of

ANY = object()
"""A leaf that the graph does not read."""


@dataclass
class Calls:
    """The form of a call. `leaves` are the inputs of the graph in order: a name, or the constant it must be."""

    arguments: Any
    """The structure of (args, kwargs)."""
    results: Any
    """The structure of what is returned."""
    leaves: list[tuple[str, Any]]
    """For each leaf of the arguments: its name in the graph ("" for a constant), and the constant."""
    outputs: list[tuple[str, Any]]
    """For each leaf of the results: "tensor", "number" or "constant", and the constant."""
    states: dict[str, Any] = field(default_factory=dict)
    """Buffers that change, by the names of their inputs, which come after the others."""
    written: list[Any] = field(default_factory=list)
    """For each of the first outputs, what it is written to: the name of an input, or a buffer."""
    guards: list[tuple[str, dict[str, tuple[str, int]]]] = field(default_factory=list)
    """What the sizes must be for the program to be right: an expression, and the input and axis of each name in it."""

    @property
    def is_plain(self) -> bool:
        """Whether tensors go in by place and one tensor comes out: the form that arrays have anyway."""
        return (
            not self.states
            and not self.written
            and self.arguments == pytree.tree_flatten(((0,) * len(self.leaves), {}))[1]
            and all(name for name, _ in self.leaves)
            and self.results == pytree.tree_flatten(0)[1]
            and self.outputs[0][0] == "tensor"
        )

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs of the graph, for a call with these arguments; None where they have another structure."""
        leaves, structure = pytree.tree_flatten((args, self._in_order(kwargs)))
        if structure != self.arguments:
            if any(not name and constant is not ANY for name, constant in self.leaves):  # a default may be another
                raise ArgumentError(f"the model is called as in its example: ({self.describe()})")
            return None
        for given, (name, constant) in zip(leaves, self.leaves):
            if not name and constant is not ANY and given is not constant and given != constant:
                raise ArgumentError(f"the model was compiled for {constant!r}, not {given!r}: compile it again")
        return [one for one, (name, _) in zip(leaves, self.leaves) if name] + list(self.states.values())

    def check(self, given: Sequence[Any]) -> None:
        """Refuses sizes that the module would have taken another way with than it did when it was exported."""
        if not self.guards:
            return
        inputs: dict[str, Any] = dict(zip(self.names, given))
        for text, places in self.guards:
            shapes = {name: np.shape(inputs.get(at, ())) for name, (at, _) in places.items()}
            sizes = {name: shapes[name][axis] for name, (_, axis) in places.items() if axis < len(shapes[name])}
            if len(sizes) == len(places) and not eval(_compiled(text), {"__builtins__": {}}, sizes):
                told = ", ".join(f"{at}.shape[{axis}] is {sizes[name]}" for name, (at, axis) in places.items())
                for name, (at, axis) in reversed(places.items()):
                    text = text.replace(name, f"{at}.shape[{axis}]")
                raise ArgumentError(f"the model was exported for sizes where {text}, and {told}: compile it for these")

    def with_inputs(self, names: Collection[str]) -> Calls:
        """The same for a graph that has only these inputs: a size that a tensor tells is none."""
        return replace(self, leaves=[(n, one) if n in names or not n else ("", ANY) for n, one in self.leaves])

    @property
    def names(self) -> list[str]:
        """The inputs of the graph in the order of `flatten`."""
        return [name for name, _ in self.leaves if name] + list(self.states)

    def _in_order(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords in the order of the example's, which the structure heeds."""
        known = self.arguments.children()[1].context
        return {key: kwargs[key] for key in known if key in kwargs} | dict(kwargs)

    def unflatten(self, made: Sequence[Any]) -> Any:
        """What the module returns, for the outputs of the graph."""
        left = iter(made[len(self.written) :])
        found = []
        for kind, constant in self.outputs:
            one = constant if kind == "constant" else next(left)
            found.append(one.item() if kind == "number" else one)
        return pytree.tree_unflatten(found, self.results)

    def write(self, made: Sequence[Any], given: Sequence[Any]) -> None:
        """Writes the first outputs to the inputs and buffers that the module changes."""
        names = self.names
        for place, one in zip(self.written, made):
            target = given[names.index(place)] if isinstance(place, str) else place
            if isinstance(target, torch.Tensor):
                target.detach().copy_(one if isinstance(one, torch.Tensor) else as_tensor(one))
            else:
                np.copyto(target, np.asarray(one))

    def as_array(self, given: Any) -> Any:
        """An input as an array."""
        return as_array(given)

    def is_native(self, given: Any) -> bool:
        """Whether this is a tensor of torch's."""
        return isinstance(given, torch.Tensor)

    def as_native(self, array: Any) -> Any:
        """A result as a tensor."""
        return as_tensor(array)

    def describe(self) -> str:
        """The structure of the arguments, for an error."""
        names = iter([name or repr(constant) for name, constant in self.leaves])
        args, kwargs = pytree.tree_unflatten(list(names), self.arguments)
        return ", ".join([*map(_text, args), *(f"{key}={_text(one)}" for key, one in kwargs.items())])


def _text(one: Any) -> str:
    return one if isinstance(one, str) else repr(one).replace("'", "")


def as_array(tensor: Any) -> Any:
    """An input as an array: a view of a tensor's memory where that is possible."""
    return array_of(tensor) if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" else tensor


_BITS = {1: np.uint8, 2: np.int16}


def as_tensor(array: Any) -> Any:
    """A result as a tensor, over the same memory."""
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_BITS[array.dtype.itemsize])).view(getattr(torch, array.dtype.name))


def calls_of(program: Any) -> tuple[Calls, dict[str, Any]]:
    """The form of an exported program's calls, and the tensors of the placeholders that are no inputs."""
    from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

    signature, state = program.graph_signature, program.state_dict
    changed = {one.target for one in signature.output_specs if one.kind == OutputKind.BUFFER_MUTATION}
    tensors: dict[str, Any] = {}
    leaves: list[tuple[str, Any]] = []
    states: dict[str, Any] = {}
    for one in signature.input_specs:
        if one.kind == InputKind.USER_INPUT:
            constant = isinstance(one.arg, ConstantArgument)
            leaves.append(("", one.arg.value) if constant else (one.arg.name, None))
        elif one.kind == InputKind.TOKEN:  # orders calls that have effects: nothing that a caller gives
            tensors[one.arg.name] = None
        elif one.target in changed:
            states[one.arg.name] = _state(program, one.target)
        else:
            found = state.get(one.target)
            tensors[one.arg.name] = program.constants[one.target] if found is None else found
    written: list[Any] = []
    outputs: list[tuple[str, Any]] = []
    for one in signature.output_specs:
        if one.kind == OutputKind.TOKEN:
            continue
        if one.kind == OutputKind.BUFFER_MUTATION:
            written.append(_state(program, one.target))
        elif one.kind == OutputKind.USER_INPUT_MUTATION:
            written.append(one.target)
        elif isinstance(one.arg, ConstantArgument):
            outputs.append(("constant", one.arg.value))
        else:
            outputs.append(("tensor" if isinstance(one.arg, TensorArgument) else "number", None))
    spec = program.call_spec
    return Calls(spec.in_spec, spec.out_spec, leaves, outputs, states, written), tensors


@functools.lru_cache(maxsize=256)
def _compiled(guard: str) -> Any:
    return compile(guard, "<guard>", "eval")


logger = logging.getLogger("weft.frontends")
_SIZE = re.compile(r"(L((?:\[[^\[\]]+\])+)\.size\(\)\[(\d+)\])")
_IN_A_GUARD = (
    ast.Expression, ast.Compare, ast.cmpop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop,
    ast.Constant, ast.Name, ast.Load,
)  # fmt: skip


def guards_of(program: Any) -> list[tuple[str, dict[str, tuple[str, int]]]]:
    """What torch itself would assert of the sizes (from 2.9 on); a file may hold any text: only arithmetic is taken."""
    found = []
    for text in getattr(program, "_guards_code", None) or ():
        places: dict[str, tuple[str, int]] = {}
        for size, path, axis in _SIZE.findall(text):
            name = f"size_{len(places)}"
            if size in text:  # else it stood there twice
                places[name] = ("_".join(re.findall(r"\w+", path)), int(axis))
                text = text.replace(size, name)
        try:
            parts = list(ast.walk(ast.parse(text, mode="eval")))
        except SyntaxError:
            parts = [ast.Pass()]
        if all(isinstance(one, _IN_A_GUARD) and (not isinstance(one, ast.Name) or one.id in places) for one in parts):
            found.append((text, places))
        else:
            logger.info("a guard of torch's is not checked when the model is called: %s", text)
    return found


def _state(program: Any, name: str) -> Any:
    found = program.state_dict.get(name)
    return program.constants[name] if found is None else found
