"""What `weft.compile` gives: a model that is called with arrays.

    m = weft.compile("model.onnx")
    y = m(x)                              arrays in order, or by name: m(image=x); one output, or a tuple
    ys = m.run(None, {"image": x})        as in ONNX Runtime
    print(m.report())                     what runs where, and how much memory it takes

numpy arrays and anything that speaks DLPack go in; numpy comes out, or torch tensors where torch tensors went in.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, WeftError
from weft.executor.report import report_text
from weft.executor.specialize import Executor
from weft.executor.steps import Port
from weft.graph.ir import Graph, TensorType, Value, dtype_name
from weft.graph.passes.infer import infer
from weft.runtime.dlpack import import_array
from weft.runtime.threads import check_threads, get_threads
from weft.targets.base import Target
from weft.targets.registry import find_target


class HostWarning(UserWarning):
    """Nodes of a model that have no compiled kernel and run on the host."""


class Module:
    """A compiled model."""

    def __init__(self, executor: Executor, threads: int | None = None) -> None:
        self._executor = executor
        self.threads = None if threads is None else check_threads(threads)
        self._warned = False
        self.inputs: list[Port] = [_port(value) for value in executor.graph.inputs]
        self.outputs: list[Port] = [_port(value) for value in executor.graph.outputs]

    @property
    def target(self) -> Target:
        """The machine it was compiled for."""
        return self._executor.target

    @property
    def graph(self) -> Graph:
        """The model as it was loaded."""
        return self._executor.graph

    @property
    def specializations(self) -> list[Any]:
        """The compiled forms so far, one for each set of shapes."""
        return self._executor.specializations

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The output for these inputs; a tuple where there are several."""
        names = [port.name for port in self.inputs]
        if len(arrays) > len(names):
            raise ArgumentError(f"the model takes {len(names)} inputs ({', '.join(names)}), not {len(arrays)}")
        feeds = dict(zip(names, arrays))
        for name, array in named.items():
            if name in feeds:
                raise ArgumentError(f"the input {name!r} is given twice")
            feeds[name] = array
        made = self.run(None, feeds)
        return made[0] if len(made) == 1 else tuple(made)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs (all of them, for None), for inputs by name."""
        arrays, like_torch = self._bind(feeds)
        found = self._executor.specialization(arrays)
        self._warn(found)
        made = found.runner.run(arrays, self.threads or get_threads())
        if output_names is not None:
            places = {port.name: at for at, port in enumerate(self.outputs)}
            unknown = [name for name in output_names if name not in places]
            if unknown:
                raise ArgumentError(f"there are no outputs {unknown}; the outputs are {list(places)}")
            made = [made[places[name]] for name in output_names]
        return [_as_torch(one) for one in made] if like_torch else made

    def _bind(self, feeds: Mapping[str, Any]) -> tuple[list[Any], bool]:
        names = [port.name for port in self.inputs]
        missing = [name for name in names if name not in feeds]
        extra = [name for name in feeds if name not in names]
        if missing or extra:
            problems = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(extra)}"] * bool(
                extra
            )
            raise ArgumentError(f"the model takes the inputs {', '.join(names) or '(none)'}; {'; '.join(problems)}")
        like_torch = any(type(array).__module__.split(".")[0] == "torch" for array in feeds.values())
        arrays = [_as_array(feeds[v.name], v) for v in self._executor.graph.inputs]
        _check_sizes(self._executor.graph.inputs, arrays)
        return arrays, like_torch

    def _warn(self, found: Any) -> None:
        if self._warned or not found.host_nodes:
            return
        self._warned = True
        lines = [f"{item.node.describe()}: {item.reason}" for item in found.host_nodes]
        shown = lines[:12] + ([f"and {len(lines) - 12} more"] if len(lines) > 12 else [])
        warnings.warn(
            f"{len(lines)} of {len(found.graph.nodes)} nodes have no compiled kernel and run on the host:\n  "
            + "\n  ".join(shown),
            HostWarning,
            stacklevel=4,
        )

    def report(self) -> str:
        """What runs where: kernels, host nodes with the reasons, memory."""
        return report_text(self)

    def save(self, path: str | Path) -> None:
        """Writes the compiled model to a file that `weft.load` reads."""
        from weft.executor.store import save_module

        save_module(self, path)

    def __repr__(self) -> str:
        inside = ", ".join(
            f"{p.name}: {p.dtype}{list(p.shape) if p.shape is not None else '[...]'}" for p in self.inputs
        )
        return f"Module({self._executor.graph.name}({inside}) for {self.target.name})"


def _port(value: Value) -> Port:
    kind = value.type
    if isinstance(kind, TensorType):
        shape = None if kind.shape is None else tuple(d if isinstance(d, int) else str(d) for d in kind.shape)
        return Port(value.name, kind.dtype, shape)
    return Port(value.name, repr(kind), None)


def _as_array(given: Any, value: Value) -> Any:
    """An input as the executor takes it: a contiguous numpy array of the right type."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return given
    if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__") and not np.isscalar(given):
        try:
            given = import_array(given)
        except ArgumentError as error:
            raise ArgumentError(f"input {value.name!r}: {error}") from None
    array = np.asarray(given)
    try:
        have = dtype_name(array.dtype)
    except WeftError as error:
        raise ArgumentError(f"input {value.name!r}: {error}") from None
    if have != kind.dtype:
        literal = not hasattr(given, "dtype") or isinstance(given, (bool, int, float))
        if not literal:
            raise ArgumentError(
                f"input {value.name!r} takes elements of {kind.dtype}, not {have}: convert it with .astype"
            )
        array = array.astype(kind.numpy)
    if kind.shape is not None:
        fits = len(kind.shape) == array.ndim and all(
            not isinstance(d, int) or d == n for d, n in zip(kind.shape, array.shape)
        )
        if not fits:
            raise ArgumentError(f"input {value.name!r} is {kind!r}; the array given has the shape {list(array.shape)}")
    if kind.dtype == "string":
        return array.astype(object)
    if not array.dtype.isnative or not array.flags.c_contiguous or not array.flags.aligned:
        array = np.ascontiguousarray(array, kind.numpy).reshape(array.shape)
    return array


def _check_sizes(values: Sequence[Value], arrays: Sequence[Any]) -> None:
    """A named size must have one value in all inputs."""
    seen: dict[Any, tuple[int, str]] = {}
    for value, array in zip(values, arrays):
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            continue
        for dim, size in zip(value.type.shape, array.shape):
            if not isinstance(dim, int):
                before = seen.setdefault(dim, (size, value.name))
                if before[0] != size:
                    raise ArgumentError(
                        f"the size {dim} is {before[0]} in input {before[1]!r} and {size} in input {value.name!r}"
                    )


def _as_torch(array: Any) -> Any:
    import importlib

    torch = importlib.import_module("torch")
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) and array.dtype != object else array


def compile_graph(
    graph: Graph,
    target: str | Target = "auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str | None = None,
    threads: int | None = None,
) -> Module:
    """A graph as a module; compiled at once where its shapes are known."""
    from weft.graph.passes.specialize import specialize

    machine = find_target("native" if target == "auto" else target)
    if precision not in (None, "fp32", "float32"):
        raise ArgumentError(
            f"precision {precision!r} is not there yet: a model runs in the types that it declares (fp32)"
        )
    graph = specialize(graph, {k: tuple(v) for k, v in shapes.items()}) if shapes else infer(graph)
    module = Module(Executor(graph, machine, precision), threads)
    found = module._executor.compile_static()
    if found is not None:
        module._warn(found)
    return module
