"""What a user calls a PyTorch model, as a Graph and the form of its calls.

    a module and example inputs      exported here (torch.export)
    an ExportedProgram               as it is
    model.pt2                        what torch.export.save wrote

What has a converter stays whole, so that the passes see convolutions, attention and recurrent layers; all else is
decomposed into core ATen. An operator whose converter refuses a use is decomposed, too, where torch knows how. Torch
traces a model anew to decompose it, which takes as long as to export it: where every operator has a converter, and
tensors that are changed in place are seen by nobody else, the model is taken as it was exported (`as_exported`).
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from weft.core.errors import ArgumentError, FrontendError
from weft.frontends.calls import Imported
from weft.frontends.problems import Refused
from weft.frontends.torch.calls import calls_of, guards_of
from weft.frontends.torch.importer import import_graph, refuse_complex, user_line
from weft.frontends.torch.linear_algebra import DECOMPOSITIONS
from weft.frontends.torch.table import CONVERTERS, name_of, operator_and_domain
from weft.graph.opspec import find_operator

_NEW = frozenset(
    "conv1d conv2d conv3d conv_transpose2d.input batch_norm layer_norm group_norm linear matmul mm bmm addmm cat "
    "max_pool2d avg_pool2d adaptive_avg_pool2d mean.dim add.Tensor sub.Tensor mul.Tensor div.Tensor relu leaky_relu "
    "sigmoid tanh silu gelu hardtanh hardswish hardsigmoid elu".split()
)
"""Operators whose result is in memory of its own, whatever they are given. Of others not even the schema tells: a
dropout that is off gives what it was given."""
_one_at_a_time = threading.Lock()
"""torch traces by state of the whole process: exports in two threads fail, or leave it broken for later ones."""


def load(model: Any, inputs: Any = None, dynamic_shapes: Any = None) -> Imported:
    """Imports a module (with example inputs), an ExportedProgram, or the path of a .pt2 file."""
    with _one_at_a_time, _states_of_lstms():
        program = exported(model, inputs, dynamic_shapes)
        changed = as_exported(program)
        if changed is not None:
            with contextlib.suppress(Refused):  # by a converter: what torch makes of its operator may be taken
                return _graph_of(program, guards_of(program), CONVERTERS, changed)
        try:
            return _imported(program, frozenset())
        except Refused as refused:
            again = refused.operators & {name_of(op) for op in _known_decompositions()}
            if not again:
                raise
            return _imported(program, frozenset(again))


@contextlib.contextmanager
def _states_of_lstms() -> Iterator[None]:
    """The shapes of an LSTM's last states, of which some releases of torch (2.11) say an axis too many."""
    place = torch._decomp.decompositions
    layer = place.one_layer_lstm

    def without(*args: Any, **given: Any) -> tuple[Any, tuple[Any, ...]]:
        made, states = layer(*args, **given)
        return made, tuple(one.squeeze(0) if one.dim() == 3 else one for one in states)

    place.one_layer_lstm = without
    try:
        yield
    finally:
        place.one_layer_lstm = layer


def exported(model: Any, inputs: Any = None, dynamic_shapes: Any = None) -> Any:
    """An ExportedProgram of a model."""
    if isinstance(model, torch.export.ExportedProgram):
        return model
    if isinstance(model, (str, os.PathLike)):
        if not os.path.isfile(model):
            raise FrontendError(f"there is no file {os.fspath(model)}")
        try:
            return torch.export.load(os.fspath(model))
        except Exception as error:
            raise FrontendError(f"{os.fspath(model)} is no file of torch.export.save: {error}") from error
    if inputs is None:
        raise ArgumentError(_missing_inputs(model))
    args, kwargs = torch.utils._pytree.tree_map_only(np.ndarray, torch.tensor, example_arguments(inputs))
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        where = user_line("".join(traceback.format_tb(error.__traceback__)))
        raise FrontendError(
            f"torch.export cannot export the {type(model).__name__}: {_said(error)}"
            f"{f' (at {where})' if where else ''}. "
            'torch.compile(model, backend="weft") takes models that it cannot, and leaves the rest to PyTorch'
        ) from error


def _said(error: Exception) -> str:
    """The first line of an error of torch's, and the reasons that it lists."""
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join([first, *(line.strip() for line in more if line.lstrip().startswith("- "))]).rstrip(".")


def example_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as a call's arguments: a tuple in order, a dict by name, or the only one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _missing_inputs(model: Any) -> str:
    import inspect

    names = [one.name for one in inspect.signature(model.forward).parameters.values() if one.default is one.empty]
    shown = ", ".join(name for name in names if name not in ("args", "kwargs")) or "x"
    return (
        f"weft.compile takes a PyTorch module with example inputs, and none were given for the {type(model).__name__}: "
        f"weft.compile(model, ({shown}{',' if ',' not in shown else ''}))"
    )


def _imported(program: Any, refused: Collection[str]) -> Imported:
    guards = guards_of(program)  # which decomposing a program from a file loses
    try:
        with _without_dropouts(program.graph), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what torch calls itself in there
            program = program.run_decompositions(decompositions(refused))
    except Exception as error:
        refuse_complex(program.graph, "model")
        raise FrontendError(f"torch cannot decompose the model: {_said(error)}") from error
    return _graph_of(program, guards, {name: one for name, one in CONVERTERS.items() if name not in refused})


@contextlib.contextmanager
def _without_dropouts(graph: Any) -> Iterator[None]:
    """Dropouts that are off are their operand, which torch would copy: what is changed in place is seen in both."""
    off = {n: n.args for n in graph.nodes if n.target is torch.ops.aten.dropout.default and n.args[2:] == (False,)}
    for node in off:
        node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
    try:
        yield
    finally:
        for node, args in off.items():
            node.target, node.args = torch.ops.aten.dropout.default, args


def _graph_of(program: Any, guards: Any, converters: Mapping[str, Any], changed: Mapping[Any, str] = {}) -> Imported:
    calls, tensors = calls_of(program)
    graph = import_graph(program.graph, tensors, program.graph_module, "model", converters, changed)
    inputs = {value.name: value for value in graph.inputs}
    calls = replace(calls.with_inputs(inputs), guards=guards)
    graph = graph.replace(inputs=[inputs[name] for name in calls.names])
    devices = {one.device.type for one in tensors.values() if isinstance(one, torch.Tensor)}
    return Imported(graph, calls, "cuda" if "cuda" in devices else "cpu")


def as_exported(program: Any) -> dict[Any, str] | None:
    """The nodes that change a tensor in place, and the names of the operators that make a new one instead; None for a
    program that has to be decomposed."""
    memory: dict[Any, list[Any]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(made := node.meta.get("val"), torch.Tensor):
            memory.setdefault(made.untyped_storage()._cdata, []).append(node)
    together = {node: nodes for nodes in memory.values() for node in nodes}
    changed: dict[Any, str] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr" or not _has_known_sizes(node.meta.get("val")):
            return None
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        name = name_of(node.target)
        if node.target._schema.is_mutable:
            base, dot, overload = name.partition(".")
            written = [at for at, one in enumerate(node.target._schema.arguments) if one.is_write]
            if written != [0] or not base.endswith("_") or not _is_its_own(node, together):
                return None
            name = changed[node] = f"{base[:-1]}{dot}{overload}"
        if name not in CONVERTERS:
            return None
    return changed


def _has_known_sizes(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    others = [one for one in values if one is not None and not isinstance(one, (int, float, str))]
    return all(isinstance(one, torch.Tensor) and all(isinstance(size, int) for size in one.shape) for one in others)


def _is_its_own(node: Any, together: Mapping[Any, Sequence[Any]]) -> bool:
    """Whether a node changes what another node made, and only such changes are in the same memory until the last."""
    first, memory = node.args[0], together.get(node, ())
    while first in memory and _changes(first):
        first = first.args[0]
    last = max((one for one in memory if _changes(one)), default=node)
    early = [one for one in memory if one < last]  # what comes later sees what was changed, as it should
    users = {user for one in early for user in one.users if user <= last}.difference(memory)
    return (
        first in early
        and name_of(first.target) in _NEW
        and all(one is first or (_changes(one) and one.args[0] in memory) for one in early)
        and all(name_of(user.target) in _NEW for user in users)
        and {getattr(one.meta.get("val"), "dtype", None) for one in node.all_input_nodes}
        <= {torch.bool, node.meta["val"].dtype}  # of several types a result is rounded once, at last
    )


def _changes(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def decompositions(refused: Collection[str] = ()) -> dict[Any, Any]:
    """How operators without a converter are made of others."""
    return {
        op: made
        for op, made in _known_decompositions().items()
        if name_of(op) in refused or (name_of(op) not in CONVERTERS and find_operator(*operator_and_domain(op)) is None)
    }


@functools.lru_cache(maxsize=1)
def _known_decompositions() -> dict[Any, Any]:
    known = dict(torch.export.default_decompositions().items())
    for op, made in torch._decomp.decomposition_table.items():
        if isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in op.tags:
            known.setdefault(op, made)
    return known | DECOMPOSITIONS
