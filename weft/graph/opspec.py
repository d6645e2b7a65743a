"""The table of operators: everything about one operator stands in its OpSpec.

    infer(c: Infer) -> [Type]                        types of the outputs, from types (and known values) of the inputs
    evaluate(c: Evaluate, *arrays) -> array(s)       the meaning, on numpy arrays: constant folding, oracle, host kernel
    compute(c: Compute, *tensors) -> tensor(s)       the meaning as a tensor expression; None: none for this use
    kind                                             how it fuses, one of KINDS
    shape_inputs                                     inputs whose values decide shapes (axes, sizes, k)
    sizing                                           those of them that say nothing but the shape of the result
    expand(node, scope) -> replacement               the same in other operators, with constants made from attributes;
                                                     None: not this use. A rule of `graph/passes/support.py`
    takes, requires                                  what must hold of inputs and attributes (`graph/signature.py`)
    traits                                           facts that passes ask for: see `Trait` and `has`
    multiplies                                       how many of the first inputs are multiplied with one another, and
                                                     may be narrower than the sums
    steps(node, arrays) -> int                       what evaluate costs, where nothing else tells (`graph/steps.py`)

The compiler calls them as `types`, `run`, `tensors` and `expanded`: there what must hold is checked, and whatever goes
wrong becomes a NodeError that names the node, so that no model shows an exception of Python's or numpy's own.

Operators register themselves in the files under `weft/ops/`; `import weft.ops` fills the table.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, get_args

import numpy as np

from weft.core.errors import InternalError, WeftError
from weft.core.knobs import UNASKED_BYTES, knobs
from weft.graph.ir import Array, Dim, Graph, GraphError, Node, SequenceType, TensorType, Type, dtype_name
from weft.graph.signature import Relation, signature

logger = logging.getLogger("weft.graph")

KINDS = ("elementwise", "injective", "reduction", "complex", "opaque")
"""An element of the result comes from the inputs' elements in the same place; from those of a few places; from many; is
a sum of products; anything else."""

Trait = Literal[
    # where an element of the result comes from
    "moves",  # it is an element of the first input, as it is, whatever the element type
    "joins",  # it is an element of one of the inputs, as it is, whatever the element type
    "reshapes",  # it moves, but not in memory
    "slices",  # it moves, and reading it is reading the input: places are only shifted, dropped or repeated
    "windowed",  # from a window: elements of the input are read several times
    "channelwise",  # from its own channel; the channels stay as many
    "groups_channels",  # from the channels of its own group; the channels stay as many
    "rowwise",  # from the elements along `axis`, by default the last one, and from what belongs to all rows
    "reduces",  # from all elements along the axes that the second input names
    "statistic",  # from so many elements that rounding it would spoil what is computed with it
    # what it costs
    "cheap",  # a few loads and simple arithmetic: rather computed again than stored
    "transcendental",  # a function such as exp
    "heavy",  # a time that grows with the product of the sizes of the inputs
    "grows",  # a result that may be much larger than what is read
    # families
    "product",  # a product of matrices, its first two inputs
    "convolution",  # sums over channels and a window; the second input is the weight
    "bordered",  # a convolution that reads zeros around its first input, or what the attribute `border` says
    "recurrent",  # steps that depend on one another; the third input is the weight of the state
    "attention",  # softmax of a product, times a third operand
    # what passes may do with it
    "commutes",  # its two inputs may change places
    "random",  # another result each time: never folded or shared
    "speculatable",  # takes any values: may be computed where nobody asks for it (as may what is elementwise)
    "traps",  # is elementwise, but not all numbers make integers: a division by 0, a float out of range
    "empties",  # its tensor expression takes tensors without elements, too
    "shape_only",  # reads the shape of its input, never an element
    "unread",  # only the size of its result counts: nothing is computed, wherever it runs
    "optional_outputs",  # its last outputs may be left out
    "updates",  # writes a part of its first inputs (one, or the attribute `updated`), in whose memory its results lie
]
"""A fact about an operator."""

_IMPLIED = {
    "reshapes": "moves cheap speculatable",
    "slices": "moves cheap",
    "moves": "cheap",
    "joins": "cheap",
    "bordered": "convolution",
}
"""What holds too where a trait does."""

MOST_OUTPUTS = 1 << 16
"""A node with more outputs is refused."""


class NodeError(GraphError):
    """An error that names its node already."""


def node_error(node: Node, message: str) -> NodeError:
    """An error that names a node."""
    return NodeError(f"{node.describe()}: {message}")


def blame(node: Node, what: str, error: Exception) -> Exception:
    """The error to raise for one that came while a node was looked at: every error names its node.

    What an operator raises beyond Weft's own errors (a division by 0 for a size of 0, numpy's complaints) it did not
    foresee; the cause stays attached (`raise blame(…) from error`), and the log has its traceback.
    """
    if isinstance(error, (NodeError, InternalError)):
        return error
    if isinstance(error, GraphError):
        return node_error(node, str(error))
    if isinstance(error, WeftError):
        return error
    logger.debug("%s: %s failed", node.describe(), what, exc_info=error)
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return node_error(node, f"{what} failed: {cause}")


class Use:
    """One use of an operator: its attributes, with the defaults that the operator's own code asks for."""

    __slots__ = ("attributes", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.attributes: Mapping[str, Any] = node.attributes

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default. Ints, floats, strings, lists, arrays and Graphs are plain Python objects."""
        return self.attributes.get(name, default)

    def need(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise self.error(f"the attribute {name!r} is missing")
        return self.attributes[name]

    def error(self, message: str) -> GraphError:
        """An error that names the node."""
        return node_error(self.node, message)


class Infer(Use):
    """What inference knows: types of the inputs (None: left out), and values of those that are constant."""

    __slots__ = ("types", "values")

    def __init__(self, node: Node, types: Sequence[Type | None], values: Sequence[Array | None]) -> None:
        super().__init__(node)
        self.types = tuple(types)
        self.values = tuple(values)

    def has(self, position: int) -> bool:
        """Whether an input was given."""
        return position < len(self.types) and self.types[position] is not None

    def tensor(self, position: int) -> TensorType:
        """The type of an input that must be a tensor."""
        found = self.types[position] if position < len(self.types) else None
        if not isinstance(found, TensorType):
            raise self.error(f"input {position} must be a tensor, not {found!r}")
        return found

    def value(self, position: int) -> Array | None:
        """The value of an input, where it is known now."""
        return self.values[position] if position < len(self.values) else None

    @property
    def output_count(self) -> int:
        """How many outputs the node has."""
        return len(self.node.outputs)


class Evaluate(Use):
    """What the numpy meaning may use beyond its arrays: attributes, and running a subgraph."""

    __slots__ = ("run_graph",)

    def __init__(self, node: Node, run_graph: Callable[[Graph, Sequence[Any]], list[Any]] | None = None) -> None:
        super().__init__(node)
        self.run_graph = run_graph

    def run(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a subgraph for these inputs."""
        if self.run_graph is None:
            raise self.error("a subgraph cannot be run here")
        return self.run_graph(graph, inputs)

    @property
    def output_count(self) -> int:
        """How many outputs the node has."""
        return len(self.node.outputs)


class Compute(Use):
    """What the tensor expression may use: types of inputs and outputs, and the values of constant inputs.

    Sizes may be open: index expressions over the sizes that a call brings, each at least 1. `dims` and `out_dims` give
    them as they are; `shape` and `out_shape` are for expressions that hold for numbers only, and refuse others.
    """

    __slots__ = ("types", "outputs", "looked_at", "_values")

    def __init__(
        self,
        node: Node,
        types: Sequence[TensorType | None],
        outputs: Sequence[TensorType],
        values: Sequence[Array | None],
    ) -> None:
        super().__init__(node)
        self.types = tuple(types)
        self.outputs = tuple(outputs)
        self.looked_at: set[int] = set()
        """The inputs whose values were asked for: other values may make another expression."""
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Array | None, ...]:
        """The values of constant inputs; None for others."""
        self.looked_at.update(range(len(self._values)))
        return self._values

    def dims(self, position: int) -> tuple[Dim, ...]:
        """The shape of an input: numbers, or index expressions."""
        found = self.types[position]
        if found is None:
            raise self.error(f"input {position} is missing")
        return found.dims

    def out_dims(self, position: int = 0) -> tuple[Dim, ...]:
        """The shape of an output: numbers, or index expressions."""
        return self.outputs[position].dims

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input, all numbers."""
        return numbers_in(self.dims(position))

    def out_shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of an output, all numbers."""
        return numbers_in(self.out_dims(position))

    def value(self, position: int) -> Array | None:
        """The value of a constant input."""
        self.looked_at.add(position)
        return self._values[position] if position < len(self._values) else None


class OpenSize(GraphError):
    """A tensor expression that holds for numbers only was asked for with a size that is open."""


def numbers_in(dims: Sequence[Dim]) -> tuple[int, ...]:
    """A shape that is all numbers; an OpenSize for another."""
    found = tuple(d for d in dims if isinstance(d, int))
    if len(found) != len(dims):
        raise OpenSize(f"its kernel needs sizes that are numbers, and one of {list(dims)} is open")
    return found


InferFunction = Callable[[Infer], Sequence[Type]]
EvaluateFunction = Callable[..., Any]
ComputeFunction = Callable[..., Any]
ExpandFunction = Callable[[Node, Any], Any]
_Given = ParamSpec("_Given")
StepsFunction = Callable[[Node, Sequence[Array | None]], int]


class OpSpec:
    """One operator."""

    __slots__ = (
        "name", "domain", "infer", "evaluate", "compute", "kind", "shape_inputs", "expand", "takes", "requires",
        "traits", "multiplies", "steps", "sizing",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        infer: InferFunction,
        evaluate: EvaluateFunction,
        compute: ComputeFunction | None = None,
        kind: str | Callable[[Node], str] = "opaque",
        shape_inputs: Sequence[int] = (),
        domain: str = "",
        expand: ExpandFunction | None = None,
        takes: str | None = None,
        requires: Sequence[Relation] = (),
        steps: StepsFunction | None = None,
        sizing: Sequence[int] = (),
        traits: str = "",
        multiplies: int = 0,
    ) -> None:
        self.name = name
        self.domain = domain
        self.infer = infer
        self.evaluate = evaluate
        self.compute = compute
        self.kind = kind
        self.shape_inputs = tuple(shape_inputs)
        self.expand = expand
        self.takes = takes
        self.requires = tuple(requires)
        self.traits = _traits(traits)
        self.multiplies = multiplies
        self.steps = steps
        self.sizing = tuple(sizing)

    def kind_of(self, node: Node) -> str:
        """How this use of the operator fuses."""
        return self.kind if isinstance(self.kind, str) else self.kind(node)

    def check(self, c: Infer) -> None:
        """An error where inputs or attributes are not what the operator demands."""
        problem = None if self.takes is None else signature(self.takes).problem(c)
        for relation in () if problem else self.requires:
            problem = relation.problem(c)
            if problem:
                break
        if problem:
            raise c.error(problem)

    def types(self, c: Infer) -> list[Type]:
        """The types of the outputs, none of them larger than a tensor may be."""
        try:
            self.check(c)
            made = list(self.infer(c))
            _check_outputs(c, len(made))
            for position, kind in enumerate(made):
                _check_size(c, position, kind)
        except Exception as error:
            raise blame(c.node, "shape inference", error) from error
        return made

    def meaning(self) -> EvaluateFunction:
        """`evaluate`; a user's function cannot write to its inputs, and its results are looked at."""
        return functools.partial(_guarded, self.evaluate) if is_of_users(self) else self.evaluate

    def run(self, node: Node, arrays: Sequence[Any], run_graph: Any = None) -> list[Any]:
        """The outputs for these inputs, by the numpy meaning: always a list."""
        try:
            if self.shape_inputs or self.takes is not None or self.requires:
                # Where sizes are data, no tensor is tried that is larger than any memory (numpy's tile would crash).
                (self.types if self.shape_inputs else self.check)(Infer(node, [type_of(a) for a in arrays], arrays))
            with np.errstate(all="ignore"):
                found = self.meaning()(Evaluate(node, run_graph), *arrays)
            made = list(found) if isinstance(found, tuple) else [found]
            _check_outputs(Use(node), len(made))
        except Exception as error:
            raise blame(node, evaluation_of(arrays), error) from error
        return made

    def tensors(self, c: Compute, given: Sequence[Any]) -> list[Any] | None:
        """The outputs as tensor expressions; None where this use has none."""
        if self.compute is None or not self._has_kernel(c, given):
            return None
        try:
            self.check(Infer(c.node, c.types, c._values))
            made = self.compute(c, *given)
        except Exception as error:
            raise blame(c.node, "its tensor expression", error) from error
        return None if made is None else list(made) if isinstance(made, (list, tuple)) else [made]

    def _has_kernel(self, c: Compute, given: Sequence[Any]) -> bool:
        """Whether kernels know the element types, and every tensor that is read or made has elements."""
        read = [kind for kind, tensor in zip(c.types, given) if kind is not None and tensor is not None]
        tensors = (*read, *c.outputs)
        if any(kind.core is None for kind in tensors):
            return False
        return "empties" in self.traits or not any(0 in kind.dims for kind in tensors)

    def expanded(self, node: Node, scope: Any) -> Any:
        """What the node is made of, in other operators; None where it stays."""
        if self.expand is None:
            return None
        try:
            return self.expand(node, scope)
        except Exception as error:
            raise blame(node, "its expansion into other operators", error) from error


def _guarded(evaluate: EvaluateFunction, use: Evaluate, *arrays: Any) -> tuple[Any, ...]:
    """What a user's function gives: as many results as the node has outputs."""
    made = evaluate(use, *map(_shown, arrays))
    results = made if isinstance(made, tuple) else (made,)
    if len(results) < use.output_count:
        raise use.error(f"its function gave {len(results)} results, and it has {use.output_count} outputs")
    return tuple(map(_taken, results))


def _shown(value: Any) -> Any:
    """An input as a user's function sees it: other nodes read the same array, so writing to it is an error."""
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _taken(result: Any) -> Any:
    """A result of a user's function: an array of its own, where it gave an input back."""
    if isinstance(result, list):
        return [_taken(one) for one in result]
    result = np.asarray(result) if isinstance(result, np.generic) else result  # x.sum() of all elements
    if isinstance(result, np.ndarray):
        dtype_name(result.dtype)
        return result if result.flags.writeable else result.copy()
    return result


def evaluation_of(arrays: Sequence[Any]) -> str:
    """What an error says was done with these inputs."""
    return f"evaluation on the host of ({', '.join('none' if a is None else repr(type_of(a)) for a in arrays)})"


def type_of(value: Any) -> Type | None:
    """The type of what a run hands to an operator: an array, a list of them, or nothing."""
    if isinstance(value, (np.ndarray, np.generic)):
        return TensorType(dtype_name(value.dtype), value.shape)
    return SequenceType(TensorType("float32", None)) if value is not None else None


def _check_outputs(c: Use, count: int) -> None:
    """Refuses a node with more outputs than its operator gives."""
    asked = len(c.node.outputs)
    if max(count, asked) > MOST_OUTPUTS:
        raise c.error(f"it has {max(count, asked)} outputs; {MOST_OUTPUTS} are the most")
    if asked > count:
        raise c.error(f"it has {asked} outputs, and its operator gives {count}")


def _check_size(c: Infer, position: int, kind: Type) -> None:
    """Refuses a tensor that no memory holds, before anything tries to make it."""
    if not isinstance(kind, TensorType) or not kind.shape:
        return
    sizes = [size for size in kind.shape if isinstance(size, int)]
    if min(sizes, default=0) < 0:
        raise c.error(f"output {position} would have the shape {list(kind.shape)}")
    size = math.prod(sizes) * kind.numpy.itemsize if len(sizes) == len(kind.shape) else 0
    if size > UNASKED_BYTES and size > knobs.tensor_megabytes << 20:
        raise c.error(
            f"output {position} would be {kind!r}, {size:,} bytes; the most for one tensor is "
            f"{knobs.tensor_megabytes:,} megabytes (WEFT_TENSOR_MEGABYTES)"
        )


_TABLE: dict[tuple[str, str], OpSpec] = {}
_OF_USERS: set[tuple[str, str]] = set()


def _registering(make: Callable[_Given, OpSpec]) -> Callable[_Given, OpSpec]:
    def register(*given: _Given.args, **named: _Given.kwargs) -> OpSpec:
        """Adds an operator to the table, given what an OpSpec takes; two of one name are a mistake."""
        spec = make(*given, **named)
        if (spec.domain, spec.name) in _TABLE:
            raise GraphError(f"the operator {spec.domain or 'ai.onnx'}.{spec.name} is registered twice")
        _TABLE[(spec.domain, spec.name)] = spec
        return spec

    return register


register = _registering(OpSpec)


def _traits(text: str) -> frozenset[str]:
    """The traits that a text names, and those that follow from them."""
    found = frozenset(" ".join(f"{one} {_IMPLIED.get(one, '')}" for one in text.split()).split())
    if unknown := found.difference(get_args(Trait)):
        raise ValueError(f"{', '.join(sorted(unknown))} is none of the traits {', '.join(get_args(Trait))}")
    return found


def register_operator(
    name: str,
    evaluate: EvaluateFunction,
    *,
    domain: str,
    infer: InferFunction | None = None,
    compute: ComputeFunction | None = None,
    **more: Any,
) -> OpSpec:
    """Gives the operator `name` of a domain of yours its meaning, `evaluate(c, *arrays)`: see docs/operators.md.

    Without `infer` the outputs have the element type of the first input and shapes that only the run tells; without
    `compute` the operator runs on the host. `more` is what else an OpSpec takes. A later call replaces an
    earlier one.
    """
    if not isinstance(name, str) or not isinstance(domain, str) or not name:
        raise GraphError(f"an operator's name and domain are texts, not {name!r} and {domain!r}")
    for function, what in ((evaluate, "its meaning"), (infer, "infer"), (compute, "compute")):
        if not callable(function) and (function is not None or function is evaluate):
            raise GraphError(f"{domain}.{name}: {what} is a function, not {function!r}")
    key = (domain, name)
    if domain in ("", "ai.onnx", "weft") or (key in _TABLE and key not in _OF_USERS):
        raise GraphError(f"{domain or 'ai.onnx'}.{name} is Weft's own: give your operator a domain of yours")
    try:
        spec = OpSpec(name, infer or _unknown_shapes, evaluate, compute, domain=domain, **more)
        if not callable(spec.kind) and spec.kind not in KINDS:
            raise ValueError(f"its kind is one of {', '.join(KINDS)}, not {spec.kind!r}")
        signature(spec.takes or "").check_elements()
        if not all(hasattr(one, "problem") for one in spec.requires):
            raise ValueError("requires is a tuple of relations (weft/graph/signature.py)")
    except (TypeError, ValueError, AttributeError) as error:
        raise GraphError(f"{domain}.{name} cannot be registered: {error}") from error
    _OF_USERS.add(key)
    _TABLE[key] = spec
    return spec


def _unknown_shapes(c: Infer) -> list[Type]:
    return [TensorType(c.tensor(0).dtype, None)] * c.output_count


def way_to_register(name: str, domain: str) -> str:
    """What an error says about an operator that nobody has registered."""
    call = f"weft.register_op({name!r}, function, domain={domain!r})"
    return f"to run it on the host, give it a meaning with {call} (docs/operators.md)"


def find_operator(name: str, domain: str = "") -> OpSpec | None:
    """The operator of that name, or None."""
    return _TABLE.get((domain, name))


def has(node: Node, *traits: Trait) -> bool:
    """Whether a node's operator has one of these traits."""
    spec = _TABLE.get((node.domain, node.op))
    return spec is not None and not spec.traits.isdisjoint(traits)


def is_of_users(spec: OpSpec) -> bool:
    """Whether an operator came by `register_operator`."""
    return (spec.domain, spec.name) in _OF_USERS


def operators() -> Mapping[tuple[str, str], OpSpec]:
    """The whole table."""
    return _TABLE
