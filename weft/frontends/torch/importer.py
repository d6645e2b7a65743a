"""An FX graph of ATen operators to a Graph: one converter for each node, all problems collected and raised together.

    %linear = aten.linear(%x, %p_weight, %p_bias)     ->     %y: float32[n, 8] = Gemm(%x, %weight, %bias)

A placeholder is an input or, where it stands for a parameter, buffer or constant of the module, a constant that shares
the tensor's memory. A size that only a call tells is a symbol of torch's (s0), and a named size of Weft's.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from weft.core.errors import InternalError, WeftError
from weft.core.install import FOLDER
from weft.expr.nodes import Expr, Var, index_expr
from weft.frontends.emit import NUMBERS, Emitter, InTraining, Unsupported
from weft.frontends.problems import Problems, Refused, converter_failed
from weft.frontends.torch import control, elementwise, indexing, layers, movement, reductions, sequence, special  # noqa: F401  (converters)
from weft.frontends.torch.table import CONVERTERS, name_of, operator_and_domain
from weft.graph.ir import NUMPY_TYPES, Array, Dim, Graph, Node, TensorType, Value
from weft.graph.shapes import tidy, unknown_dim
from weft.graph.signature import differ

MOST_FOLDED = 1 << 20
"""Tensors that follow from numbers alone are computed at once up to so many elements."""

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)\n?\s*(.*)')
_NOT_THE_USERS = (os.path.dirname(torch.__file__) + os.sep, str(FOLDER / "weft") + os.sep, "torch" + os.sep, "<")
"""How paths begin that say nothing to the user."""
_RANDOM = torch.Tag.nondeterministic_seeded
_COMPLEX = "complex numbers: compute with real and imaginary parts in two tensors"


def import_graph(
    graph: Any, tensors: Mapping[str, Any], owner: Any, label: str, converters: Mapping[str, Any] = CONVERTERS,
    changed: Mapping[Any, str] = {},
) -> Graph:  # fmt: skip
    """The Graph of an FX graph. `tensors` are those of placeholders that are no inputs; get_attr reads from `owner`.
    `changed` are nodes that change their first operand, and the names of operators that make a new tensor instead."""
    return _Importer(tensors, owner, label, converters, changed).run(graph)


def array_of(tensor: Any, name: str = "a tensor") -> Array:
    """A numpy array over the memory of a tensor; a copy where it lies elsewhere, or not in order."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or kind not in NUMPY_TYPES or tensor.is_complex():
        raise Unsupported(f"{name} is {tensor.layout} of {tensor.dtype}: dense tensors of real numbers are taken")
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.device.type == "meta":
        raise Unsupported(f"{name} holds no data (a fake tensor): load the weights before compiling")
    tensor = tensor.detach().cpu().resolve_neg().contiguous()
    if np.dtype(NUMPY_TYPES[kind]).isbuiltin != 1:  # types that numpy has from ml_dtypes: looked at through their bits
        bits = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        made: Array = tensor.view(bits).numpy().view(NUMPY_TYPES[kind])
        return made
    return np.asarray(tensor.numpy())


def refuse_complex(graph: Any, label: str) -> None:
    """Refuses the operators of a graph that make complex numbers, some of which torch cannot decompose."""
    problems = Problems(label, _shown)
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].is_complex():
            problems.add(name_of(node.target), _COMPLEX, user_line(node.meta.get("stack_trace")).partition(": ")[0])
    problems.raise_any()


def user_line(trace: str | None) -> str:
    """The innermost line of a traceback that is the user's: "model.py:31: x = self.conv(x)"."""
    for path, line, _, code in reversed(_FRAME.findall(trace or "")):
        if not path.startswith(_NOT_THE_USERS):
            near = os.path.relpath(path)
            return f"{path if near.startswith('..') else near}:{line}" + (f": {code.strip()}" if code else "")
    return ""


def _module_path(stack: Any) -> str:
    found = [path for path, _ in stack.values()] if stack else []
    return re.sub(r"L\['self'\]\.?|^_empty.*", "", found[-1]) if found else ""


class _Importer:
    """Imports one graph."""

    def __init__(
        self, tensors: Mapping[str, Any], owner: Any, label: str, converters: Mapping[str, Any],
        changed: Mapping[Any, str],
    ) -> None:  # fmt: skip
        self.c = Emitter()
        self.c.inline = self._inlined
        self.tensors = tensors
        self.owner = owner
        self.label = label
        self.converters, self.changed = converters, changed
        self.same: dict[Any, list[Any]] = {}  # the nodes that stand for one tensor, changed in place
        self.env: dict[Any, Any] = {}
        self.symbols: dict[str, Var] = {}
        self.problems = Problems(label, _shown)

    def run(self, graph: Any) -> Graph:
        inputs = self._inputs([node for node in graph.nodes if node.op == "placeholder"])
        outputs = self._outputs(self._nodes(graph))
        self.problems.raise_any()
        self.c.names.clear()
        return Graph(self.label, inputs, outputs, self.c.nodes, self.c.constants)

    def _nodes(self, graph: Any) -> Any:
        """Writes the nodes of a graph; gives the one that names its outputs."""
        for node in graph.nodes:
            if node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self._call(node)
        return node

    def _inlined(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a graph inside (of a branch or loop), written here for these operands."""
        c = self.c
        kept = (self.owner, c.target, c.label, c.origin, c.dtype, c.shape, c.read)
        self.owner = module
        try:
            placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
            self.env.update(zip(placeholders, operands, strict=True))
            made = self._argument(self._nodes(module.graph).args[0])
            return made if isinstance(made, list) else [made]
        finally:
            self.owner, c.target, c.label, c.origin, c.dtype, c.shape, c.read = kept

    # ------------------------------------------------------------------------------------------------- what goes in

    def _inputs(self, placeholders: Sequence[Any]) -> list[Value]:
        """The inputs in order; sizes that tensors tell are none of them."""
        found: list[Value] = []
        where: dict[str, tuple[Value, int]] = {}
        numbers = []
        for node in placeholders:
            given = node.meta.get("val")
            if node.name in self.tensors:
                if node.users:
                    self.env[node] = self._constant(node, self.tensors[node.name])
            elif isinstance(given, torch.Tensor):
                value = self._input(node, given)
                found.append(value)
                for axis, size in enumerate(given.shape):
                    if not isinstance(size, int):
                        where.setdefault(str(size.node.expr), (value, axis))
            elif isinstance(given, (torch.SymInt, torch.SymFloat)):
                if node.users:
                    numbers.append(node)
            else:
                self.env[node] = given  # a constant that the model was exported for
        for node in numbers:
            place = where.get(str(node.meta["val"].node.expr))
            if place is not None:
                self.c.label = node.name
                self.env[node] = self.c.size(*place)
                continue
            kind = "int64" if isinstance(node.meta["val"], torch.SymInt) else "float64"
            value = self.env[node] = Value(self.c.fresh(node.name), TensorType(kind, ()))
            self.c.numbers.add(value)
            found.append(value)
        return found

    def _input(self, node: Any, given: Any) -> Value:
        self._refuse_kind(node, given)
        value = Value(self.c.fresh(node.name), TensorType(_kind(given), self._dims(given.shape)))
        self.env[node] = value
        return value

    def _constant(self, node: Any, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        try:
            return self.c.constant(array_of(tensor, f"{node.name!r}"), name=node.name)
        except Unsupported as error:
            self.problems.lines.append(str(error))
            return self._stand_in(node, tensor)

    def _attribute(self, node: Any) -> Any:
        found = self.owner
        for part in node.target.split("."):
            found = getattr(found, part)
        return self._constant(node, found)

    def _dims(self, shape: Sequence[Any]) -> list[Dim]:
        return [size if isinstance(size, int) else self._dim(size.node.expr) for size in shape]

    def _dim(self, expression: Any) -> Dim:
        """A size of torch's (a sympy expression) as one of Weft's."""
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self.symbols.setdefault(expression.name, Var(expression.name))
        if expression.is_Add or expression.is_Mul:
            parts = [index_expr(self._dim(one)) for one in expression.args]
            total: Expr = parts[0]
            for part in parts[1:]:
                total = total + part if expression.is_Add else total * part
            return tidy(total)
        return unknown_dim()

    # ------------------------------------------------------------------------------------------------------ nodes

    def _call(self, node: Any) -> None:
        args, kwargs = self._argument(node.args), self._argument(dict(node.kwargs))
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            self.env[node] = args[0][args[1]]
            return
        c, name = self.c, self.changed.get(node) or name_of(node.target)
        c.target, c.label = name, node.name
        c.origin = " at ".join(filter(None, (_module_path(node.meta.get("nn_module_stack")), self._where(node))))
        wanted = node.meta.get("val")
        several = isinstance(wanted, (list, tuple))
        if name == "_unique2":  # whose counts are of the elements' type by torch 2.11's description, and by no call
            wanted = [wanted[0], *(one.to(torch.int64) for one in wanted[1:])]
        first = next((one for one in (wanted if several else [wanted]) if isinstance(one, torch.Tensor)), None)
        c.dtype, c.shape = ("", ()) if first is None else (_kind(first), tuple(first.shape))
        c.read = {user.args[1] for user in node.users if user.target is operator.getitem} if several else None
        try:
            for one in wanted if several else [wanted]:
                if isinstance(one, torch.Tensor):
                    self._check_kind(one)
            made = self._converted(node, name, args, kwargs)
            if several:
                missing = [at for at, one in enumerate(made) if one is None and c.wants(at) and wanted[at] is not None]
                if missing:
                    raise Unsupported(f"its result {missing[0]} is read")
                self.env[node] = [self._settled(one, kind) for one, kind in zip(made, wanted)]
            else:
                self.env[node] = self._settled(made, wanted)
            if node in self.changed:
                same = self.same.setdefault(node, self.same.setdefault(node.args[0], [node.args[0]]))
                same.append(node)
                self.env.update(dict.fromkeys(same, self.env[node]))
        except _Unknown:
            original = node.meta.get("original_aten") if name.startswith("prims.") else None
            target = original or node.target
            self.problems.is_unknown(name_of(target), c.origin, *operator_and_domain(target))
            self.env[node] = self._stand_in(node, wanted)
        except WeftError as error:
            said = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
            self.problems.add(name, said, c.origin, not isinstance(error, InTraining))
            self.env[node] = self._stand_in(node, wanted)
        except InternalError:  # of a node inside
            raise
        except Exception as error:
            raise converter_failed(_shown(name), c.origin, error) from error

    def _converted(self, node: Any, name: str, args: Any, kwargs: Any) -> Any:
        if _follows_from_numbers(node, args, kwargs):
            return self.c.constant(array_of(node.target(*args, **kwargs)))
        converter = self.converters.get(name)
        if converter is None:
            return self._of_users(node, args, kwargs)
        return converter(self.c, *args, **{key: one for key, one in kwargs.items() if key not in _PLACES})

    def _of_users(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operator that somebody gave a meaning: tensors are its inputs, all else its attributes."""
        wanted = node.meta.get("val")
        results = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        if not hasattr(node.target, "_schema") or not all(isinstance(one, torch.Tensor) for one in results):
            raise _Unknown
        inputs: list[Value | None] = []
        given = {}
        for at, one in enumerate(node.target._schema.arguments):
            found = args[at] if at < len(args) else kwargs.get(one.name, one.default_value)
            if "Tensor" in str(one.type):
                inputs += found if isinstance(found, list) else [found]
            else:
                given[one.name] = found
        types = [TensorType(_kind(one), self._dims(one.shape)) for one in results]
        made = self.c.of_users(*operator_and_domain(node.target), inputs, types, given)
        if made is None:
            raise _Unknown
        return made if isinstance(wanted, (list, tuple)) else made[0]

    def _argument(self, given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return self.env[given]
        if isinstance(given, (list, tuple)):
            return [self._argument(one) for one in given]
        if isinstance(given, dict):
            return {key: self._argument(one) for key, one in given.items()}
        return given

    def _settled(self, made: Any, wanted: Any) -> Any:
        """A result as torch describes it: in its element type, with its sizes."""
        if not isinstance(made, Value) or not isinstance(wanted, torch.Tensor):
            if isinstance(made, Value):
                self.c.numbers.add(made)
            return made
        made = self.c.cast(made, _kind(wanted))
        have, dims = made.tensor.shape, self._dims(wanted.shape)
        if have is None or len(have) != len(dims) or any(differ(a, b) for a, b in zip(have, dims)):
            raise Unsupported(f"its result would be {made.tensor!r}, and torch says {list(wanted.shape)}")
        if made not in self.c.constants and not made.tensor.is_static:
            made.type = TensorType(made.tensor.dtype, dims)
        return made

    def _stand_in(self, node: Any, wanted: Any) -> Any:
        """What a node that failed would have made, so that its readers are not blamed."""
        if isinstance(wanted, (list, tuple)):
            return [self._stand_in(node, one) for one in wanted]
        if not isinstance(wanted, torch.Tensor):
            return wanted if isinstance(wanted, (int, float, str)) else Value(node.name, TensorType("int64", ()))
        kind = _kind(wanted)
        return Value(node.name, TensorType(kind if kind in NUMBERS else "float32", self._dims(wanted.shape)))

    def _outputs(self, node: Any) -> list[Value]:
        """The outputs that are tensors or sizes; one that something else is, too, gets a name of its own."""
        found: list[Value] = []
        made = {value for one in self.c.nodes for value in one.outputs}
        for given in node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]:
            value = self.env[given] if isinstance(given, torch.fx.Node) else given
            if isinstance(given, torch.fx.Node) and isinstance(value, (bool, int, float)):
                value = self.c.value(value, "int64" if isinstance(value, int) else "float64")
            if not isinstance(value, Value):
                continue
            if value not in made or value in found:
                copy = Value(self.c.fresh(f"{value.name}_output"), value.type)
                self.c.nodes.append(Node("Identity", [value], [copy], name=self.c.fresh("output")))
                value = copy
            found.append(value)
        return found

    # ----------------------------------------------------------------------------------------------------- errors

    def _where(self, node: Any) -> str:
        return user_line(node.meta.get("stack_trace")).partition(": ")[0]

    def _check_kind(self, tensor: Any) -> None:
        if tensor.is_complex():
            raise Unsupported(_COMPLEX)
        if tensor.layout != torch.strided or tensor.is_quantized or _kind(tensor) not in NUMBERS:
            raise Unsupported(f"tensors of {tensor.dtype} ({tensor.layout})")

    def _refuse_kind(self, node: Any, tensor: Any) -> None:
        try:
            self._check_kind(tensor)
        except Unsupported as error:
            raise Refused(f"{self.label}: the input {node.name!r}: {error}", set()) from None


class _Unknown(Exception):
    """No converter has the name."""


_PLACES = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
"""Keywords that say where and how a tensor lies: nothing that Weft asks for."""

_FILLED = re.compile(r"full|zeros|ones|empty|new_|lift|scalar_tensor|prims\.full")


def _follows_from_numbers(node: Any, args: Any, kwargs: Any) -> bool:
    """Whether a node makes a tensor of modest size from numbers alone, the same each time."""
    wanted = node.meta.get("val")
    if not isinstance(wanted, torch.Tensor) or _FILLED.match(name_of(node.target)):
        return False
    if not all(isinstance(size, int) for size in wanted.shape) or wanted.numel() > MOST_FOLDED:
        return False
    if _RANDOM in getattr(node.target, "tags", ()):
        return False
    return not any(isinstance(one, Value) for one in torch.utils._pytree.tree_leaves((args, kwargs)))


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shown(name: str) -> str:
    """A name as users know it: "aten.relu", "prims.iota", "operator.mul"."""
    return f"aten.{name}" if hasattr(torch.ops.aten, name.partition(".")[0]) else name
