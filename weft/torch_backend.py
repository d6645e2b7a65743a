"""A backend of torch.compile: `torch.compile(model, backend="weft")`, found through the entry point of that name.

Importing this file registers it, too, for a Weft that lies on the path without being installed.

Each graph that Dynamo captures becomes one module of Weft, compiled when it is first called. Parameters and buffers are
constants of it, which share their memory; one that changes between two calls (its version tells) becomes an input, so
that results follow it. Graphs that Weft cannot take, and graphs that need gradients, run as PyTorch runs them, and a
warning says so once.

    torch.compile(model, backend="weft", options={"target": "native", "precision": "bf16", "threads": 4, "exact": True,
                                                  "fallback": False})
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd

from weft.compiler import Module, compile
from weft.core.errors import ArgumentError, FrontendError, InternalError, TargetError, WeftError, did_you_mean
from weft.frontends.torch.calls import as_array, as_tensor
from weft.frontends.torch.importer import import_graph
from weft.frontends.torch.source import decompositions

OPTIONS = ("target", "precision", "threads", "exact", "fallback")
"""What `options=` takes. `fallback=False` makes an error of what would run in PyTorch."""


class FallbackWarning(UserWarning):
    """A graph that PyTorch runs itself, because Weft cannot."""


_said: set[str] = set()


def weft_backend(graph_module: Any, inputs: Sequence[Any], *, options: Any = None, mode: Any = None, **_: Any) -> Any:
    """Compiles a graph of Dynamo's."""
    settings = _checked(options, mode)
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in inputs):
        reason = (
            "gradients are wanted, and Weft compiles for inference only: call the model under torch.no_grad() or "
            "torch.inference_mode(), or freeze it with requires_grad_(False)"
        )
        return _in_pytorch(graph_module.forward, reason, settings)
    constants = {id(one): one for one in inputs if isinstance(one, torch.Tensor) and _is_constant(one)}

    def compiler(graph: Any, examples: Sequence[Any]) -> Any:
        return _Compiled(graph, constants, settings).boxed()

    made = aot_autograd(fw_compiler=compiler, inference_compiler=compiler, decompositions=decompositions())
    return made(graph_module, inputs)


def _checked(options: Any, mode: Any) -> dict[str, Any]:
    if mode not in (None, "default"):
        raise ArgumentError(f"mode={mode!r} is one of inductor's; Weft takes options={{…}} with {', '.join(OPTIONS)}")
    if not isinstance(options, (Mapping, type(None))):
        raise ArgumentError(f"options is a dict, not {options!r}")
    for name in options or ():
        if name not in OPTIONS:
            known = ", ".join(OPTIONS) + did_you_mean(name, OPTIONS)
            raise ArgumentError(f"{name!r} is no option of Weft's: those are {known}")
    return dict(options or {})


def _is_constant(tensor: Any) -> bool:
    """Whether an input of a graph is a parameter or buffer of a module."""
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_dynamo_static_input_type", None) is not None


def _in_pytorch(run: Any, reason: str, settings: Mapping[str, Any], error: Exception | None = None) -> Any:
    """What runs a graph instead of Weft; says why, once for each reason."""
    if not settings.get("fallback", True):
        raise error or FrontendError(reason)
    if reason not in _said:
        _said.add(reason)
        warnings.warn(f"PyTorch runs this graph itself: {reason}", FallbackWarning, stacklevel=2)
    return run


class _Compiled:
    """One graph, and the module that was made of it for the constants of the last call."""

    def __init__(self, graph: Any, constants: Mapping[int, Any], settings: Mapping[str, Any]) -> None:
        self.graph_module = graph
        self.constants = constants
        self.settings = settings
        self.placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        self.results = output.args[0]
        self.orders = {node: order for node in self.results if (order := _order(node)) is not None}
        """In which order the axes of results lie in memory, where that is not the plain one."""
        self.inputs: set[int] = set()
        """Places of parameters and buffers that changed between two calls."""
        self.fixed: list[tuple[int, Any, int]] = []
        self.places: list[int] = []
        self.module: Module | None = None
        self.eager: Any = None

    def boxed(self) -> Any:
        """A function of one list of arguments, as PyTorch calls it."""

        def run(args: list[Any]) -> list[Any]:
            return self(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.eager is None and (self.module is None or self._changed(args)):
            self._build(args)
        if self.eager is not None or self.module is None:
            return list(self.eager(*args))
        on_host = not self.module.target.on_device
        given = [args[at] for at in self.places]
        made = self.module(*map(as_array, given) if on_host else given)
        left = iter(made if isinstance(made, tuple) else (made,))
        return [self._result(one, left) for one in self.results]

    def _result(self, wanted: Any, left: Any) -> Any:
        if not isinstance(wanted, torch.fx.Node):
            return wanted
        found, kind = as_tensor(next(left)), wanted.meta.get("val")
        if not isinstance(kind, torch.Tensor):
            return found.item()
        order = self.orders.get(wanted)
        return found if order is None else _laid(found, order)

    def _changed(self, args: Sequence[Any]) -> bool:
        """Notes the constants that are no longer what they were; they will be inputs."""
        gone = [at for at, tensor, version in self.fixed if args[at] is not tensor or _version(tensor) != version]
        self.inputs.update(gone)
        return bool(gone)

    def _build(self, args: Sequence[Any]) -> None:
        fixed = [at for at, one in enumerate(args) if id(one) in self.constants and at not in self.inputs]
        tensors = {self.placeholders[at]: args[at] for at in fixed}
        devices = {one.device.type for one in args if isinstance(one, torch.Tensor)}
        if not devices <= {"cpu", "cuda"}:
            self.eager = _in_pytorch(self.graph_module, f"its tensors are on {', '.join(devices)}", self.settings)
            return
        given = {key: one for key, one in self.settings.items() if key != "fallback"}
        if "cuda" in devices:
            given.setdefault("target", "cuda")
        try:
            graph = import_graph(self.graph_module.graph, tensors, self.graph_module, "the graph")
            self.module = compile(graph, **given)
        except (ArgumentError, TargetError):  # what `options` ask for is no reason to run in PyTorch
            raise
        except (WeftError, InternalError) as error:
            self.eager = _in_pytorch(self.graph_module, str(error), self.settings, error)
            return
        self.places = [self.placeholders.index(value.name) for value in graph.inputs]
        self.fixed = [(at, args[at], _version(args[at])) for at in fixed]


def _order(node: Any) -> list[int] | None:
    """The axes of a result from the slowest to the fastest, which views that PyTorch makes of it rely on."""
    kind = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(kind, torch.Tensor) or kind.is_contiguous() or 0 in kind.stride():
        return None
    steps = [step if isinstance(step, int) else step.node.hint for step in kind.stride()]
    return sorted(range(kind.dim()), key=lambda axis: -steps[axis])


def _laid(tensor: Any, order: Sequence[int]) -> Any:
    """The tensor with its axes in this order in memory."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*back)


def _version(tensor: Any) -> int:
    """How often a tensor was written to; one made in inference mode does not say."""
    return -1 if tensor.is_inference() else int(tensor._version)


if "weft" not in registry._BACKENDS:
    registry.register_backend(weft_backend, "weft")
