"""Changes of small ONNX models: shapes, types, attributes, values, inputs, constants, operator sets.

`Draft` is a model with the arrays for its inputs. `mutate(draft, name, seed)` changes it in place; the same name and
seed do the same again, so a list of them is a case that can be made smaller.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

MOST_ELEMENTS = 1 << 20
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
INTEGERS = (0, 1, -1, 2, 3, -2, 5, 7, 16, 64, 1 << 20, 1 << 31, (1 << 40) + 1, 1 << 62, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 3e38, -3e38, float("nan"), float("inf"), float("-inf"))
WORDS = ("", "x", "nothing", "linear", "none", "add", "mul", "max", "min", "cubic", "nearest", "reflect", "edge")
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "uint32", "bool")
OPSETS = tuple(range(1, onnx.defs.onnx_opset_version() + 1))


@dataclass
class Draft:
    """A model under change, and the arrays that it is run on; `feeds` has no entry for what became a constant."""

    model: onnx.ModelProto
    feeds: dict[str, Any]
    notes: list[str]


@functools.cache
def corpus() -> dict[str, list[tuple[str, bytes, tuple[Any, ...]]]]:
    """ONNX's own node cases by operator: name, model and inputs of each. Those of many nodes stand under "expanded"."""
    from tests.ops.cases import all_cases, array

    found: dict[str, list[tuple[str, bytes, tuple[Any, ...]]]] = {}
    for case in all_cases():
        nodes = case.model.graph.node
        inputs = tuple(array(value) for value in case.data_sets[0][0])
        if sum(one.size for one in inputs if isinstance(one, np.ndarray)) > MOST_ELEMENTS // 8:
            continue
        operator = nodes[0].op_type if len(nodes) == 1 else "expanded"
        found.setdefault(operator, []).append((case.name, case.model.SerializeToString(), inputs))
    return dict(sorted(found.items()))


def draft(name: str, model: bytes, inputs: tuple[Any, ...]) -> Draft:
    """A case of the corpus to be changed. Outputs keep their type only: their shape may change."""
    proto = onnx.ModelProto.FromString(model)
    feeds = {value.name: array for value, array in zip(proto.graph.input, inputs)}
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    return Draft(proto, feeds, [name])


def _arrays(d: Draft) -> list[str]:
    return [name for name, one in d.feeds.items() if isinstance(one, np.ndarray) and not one.dtype.hasobject]


def declare(d: Draft, name: str) -> None:
    """Makes the input's declared type that of its array."""
    for value in d.model.graph.input:
        if value.name == name:
            array = d.feeds[name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            value.CopyFrom(helper.make_tensor_value_info(name, kind, array.shape))


def _fill(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


# --------------------------------------------------------------------------------------------------------- mutations


def _shape(d: Draft, chance: random.Random) -> str:
    names = _arrays(d)
    if not names:
        return "no shape"
    name = chance.choice(names)
    array = d.feeds[name]
    shape = list(array.shape)
    way = chance.choice(("dim", "dim", "dim", "dim", "add", "drop", "order", "any"))
    if way == "dim" and shape:
        at = chance.randrange(len(shape))
        shape[at] = chance.choice((max(0, shape[at] - 1), shape[at] + 1, chance.choice(SIZES), 1, 2 * shape[at]))
    elif way == "add" or not shape:
        shape.insert(chance.randint(0, len(shape)), chance.choice((1, 1, 2, 3)))
    elif way == "drop":
        del shape[chance.randrange(len(shape))]
    elif way == "order":
        chance.shuffle(shape)
    else:
        shape = [chance.choice(SIZES[:8]) for _ in range(chance.randrange(5))]
    if int(np.prod(shape, dtype=object)) > MOST_ELEMENTS:
        return "no shape"
    d.feeds[name] = _fill(array, tuple(shape))
    declare(d, name)
    return f"{name} has the shape {shape}"


def _shapes(d: Draft, chance: random.Random) -> str:
    """Every axis of one length gets another one, in all inputs: most often still a valid model."""
    names = _arrays(d)
    sizes = sorted({size for name in names for size in d.feeds[name].shape})
    if not sizes:
        return "no size"
    old, new = chance.choice(sizes), chance.choice(SIZES)
    for name in names:
        shape = tuple(new if size == old else size for size in d.feeds[name].shape)
        if int(np.prod(shape, dtype=object)) <= MOST_ELEMENTS:
            d.feeds[name] = _fill(d.feeds[name], shape)
            declare(d, name)
    return f"sizes {old} become {new}"


def _dtype(d: Draft, chance: random.Random) -> str:
    names = _arrays(d)
    if not names:
        return "no type"
    name = chance.choice(names)
    old = d.feeds[name].dtype
    wanted = chance.choice(TYPES)
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(
        wanted, wanted.upper())))  # fmt: skip
    together = [one for one in names if d.feeds[one].dtype == old] if chance.random() < 0.6 else [name]
    for one in together:
        with np.errstate(all="ignore"):
            d.feeds[one] = np.asarray(d.feeds[one]).astype(kind)
        declare(d, one)
    for value in d.model.graph.output:
        value.ClearField("type")
    return f"{', '.join(together)} of {wanted}"


def _attribute(d: Draft, chance: random.Random) -> str:
    node = chance.choice(d.model.graph.node)
    if not node.attribute or chance.random() < 0.15:
        return _new_attribute(node, chance)
    attribute = chance.choice(node.attribute)
    if chance.random() < 0.1:
        node.attribute.remove(attribute)
        return f"without {attribute.name}"
    kinds = AttributeProto
    if attribute.type == kinds.INT:
        attribute.i = _near(attribute.i, chance)
    elif attribute.type == kinds.FLOAT:
        attribute.f = chance.choice((*FLOATS, attribute.f * 2))
    elif attribute.type == kinds.STRING:
        attribute.s = chance.choice((*WORDS, *_words(node.op_type, attribute.name))).encode()
    elif attribute.type == kinds.INTS:
        _change_list(attribute.ints, lambda old: _near(old, chance), chance)
    elif attribute.type == kinds.FLOATS:
        _change_list(attribute.floats, lambda old: chance.choice((*FLOATS, old * 2)), chance)
    elif attribute.type == kinds.STRINGS:
        _change_list(attribute.strings, lambda old: chance.choice(WORDS).encode(), chance)
    elif attribute.type == kinds.TENSOR:
        array = numpy_helper.to_array(attribute.t)
        changed = _changed_values(array, chance)
        attribute.t.CopyFrom(numpy_helper.from_array(changed, attribute.t.name))
    else:
        return "no attribute"
    shown = helper.get_attribute_value(attribute)
    return f"{attribute.name} = {shown if not hasattr(shown, 'dims') else 'a tensor'}"


def _near(old: int, chance: random.Random) -> int:
    return max(-(1 << 63), min((1 << 63) - 1, chance.choice((old + 1, old - 1, -old, chance.choice(INTEGERS)))))


def _change_list(values: Any, change: Callable[[Any], Any], chance: random.Random) -> None:
    way = chance.random()
    if len(values) and way < 0.7:
        at = chance.randrange(len(values))
        values[at] = change(values[at])
    elif len(values) and way < 0.85:
        del values[chance.randrange(len(values))]
    else:
        values.append(change(values[0]) if len(values) else change(type(values[0])() if len(values) else 1))


def _new_attribute(node: onnx.NodeProto, chance: random.Random) -> str:
    """An attribute that another case of the operator has."""
    others = [a for _, model, _ in corpus().get(node.op_type, ()) for n in _nodes(model) for a in n.attribute]
    others = [a for a in others if all(a.name != own.name for own in node.attribute)]
    if not others:
        return "no new attribute"
    attribute = chance.choice(others)
    node.attribute.append(attribute)
    return f"with {attribute.name}"


@functools.lru_cache(maxsize=4096)
def _nodes(model: bytes) -> tuple[Any, ...]:
    return tuple(onnx.ModelProto.FromString(model).graph.node)


@functools.cache
def _words(operator: str, name: str) -> tuple[str, ...]:
    found = {
        a.s.decode()
        for _, model, _ in corpus().get(operator, ())
        for node in _nodes(model)
        for a in node.attribute
        if a.name == name and a.type == AttributeProto.STRING
    }
    return tuple(sorted(found))


def _values(d: Draft, chance: random.Random) -> str:
    names = [name for name in _arrays(d) if d.feeds[name].size]
    if not names:
        return "no values"
    name = chance.choice(names)
    d.feeds[name] = _changed_values(d.feeds[name], chance)
    return f"other values in {name}"


def _changed_values(array: np.ndarray, chance: random.Random) -> np.ndarray:
    """A few elements, or all, of other values."""
    made = np.array(array)
    flat = made.reshape(-1)
    if not flat.size or made.dtype.hasobject:
        return made
    places = range(flat.size) if chance.random() < 0.1 else [chance.randrange(flat.size) for _ in range(3)]
    same = chance.choice((True, False))
    value = _value(made.dtype, array, chance)
    for at in places:
        with np.errstate(all="ignore"):
            flat[at] = value if same else _value(made.dtype, array, chance)
    return made


def _value(kind: np.dtype, array: np.ndarray, chance: random.Random) -> Any:
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        most = int(array.max(initial=0))
        number = chance.choice((*INTEGERS, most + 1, -most - 1, most + 100, *SIZES))
        return max(limits.min, min(limits.max, number))
    if kind.kind == "b":
        return chance.random() < 0.5
    if kind.kind == "c":
        return chance.choice(FLOATS)
    return np.float64(chance.choice(FLOATS)).astype(kind)


def _input(d: Draft, chance: random.Random) -> str:
    node = chance.choice(d.model.graph.node)
    way = chance.choice(("drop", "cut", "swap", "twice", "add"))
    count = len(node.input)
    if not count:
        return "no inputs"
    at = chance.randrange(count)
    if way == "drop":
        node.input[at] = ""
    elif way == "cut":
        del node.input[at:]
    elif way == "swap":
        other = chance.randrange(count)
        node.input[at], node.input[other] = node.input[other], node.input[at]
    elif way == "twice":
        node.input[at] = node.input[chance.randrange(count)]
    else:
        names = [value.name for value in d.model.graph.input] or [""]
        node.input.append(chance.choice(names))
    return f"{way} input {at} of {node.op_type}"


def _output(d: Draft, chance: random.Random) -> str:
    node = chance.choice(d.model.graph.node)
    count = len(node.output)
    if chance.random() < 0.5 and count > 1:
        at = chance.randrange(count)
        name, node.output[at] = node.output[at], ""
        for value in list(d.model.graph.output):
            if value.name == name and len(d.model.graph.output) > 1:
                d.model.graph.output.remove(value)
        return f"without output {at}"
    node.output.append("extra")
    if chance.random() < 0.5:
        d.model.graph.output.append(onnx.ValueInfoProto(name="extra"))
    return "one more output"


def _constant(d: Draft, chance: random.Random) -> str:
    names = _arrays(d)
    if not names:
        return "no constant"
    name = chance.choice(names)
    array = d.feeds.pop(name)
    d.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
    for value in list(d.model.graph.input):
        if value.name == name:
            d.model.graph.input.remove(value)
    return f"{name} is constant"


def _opset(d: Draft, chance: random.Random) -> str:
    entry = chance.choice(d.model.opset_import)
    entry.version = chance.choice(OPSETS) if entry.domain in ("", "ai.onnx") else chance.choice((1, 2, 3, 4, 5))
    return f"opset {entry.version}"


def _symbolic(d: Draft, chance: random.Random) -> str:
    """Sizes of an input are names, or not said at all."""
    values = [value for value in d.model.graph.input if value.name in _arrays(d)]
    if not values:
        return "nothing symbolic"
    value = chance.choice(values)
    if chance.random() < 0.2:
        value.type.tensor_type.ClearField("shape")
        return f"{value.name} of any shape"
    for at, dim in enumerate(value.type.tensor_type.shape.dim):
        if chance.random() < 0.6:
            dim.dim_param = f"{value.name}_{at}"
    return f"{value.name} of symbolic shape"


MUTATIONS: dict[str, Callable[[Draft, random.Random], str]] = {
    "shape": _shape,
    "shapes": _shapes,
    "dtype": _dtype,
    "attribute": _attribute,
    "values": _values,
    "input": _input,
    "output": _output,
    "constant": _constant,
    "opset": _opset,
    "symbolic": _symbolic,
}
OFTEN = {"shape": 6, "shapes": 4, "attribute": 6, "values": 6, "dtype": 2, "constant": 4, "symbolic": 2, "input": 2}
WEIGHTED = [name for name in MUTATIONS for _ in range(OFTEN.get(name, 1))]


def mutate(d: Draft, name: str, seed: int) -> None:
    """One change."""
    if d.model.graph.node:
        d.notes.append(MUTATIONS[name](d, random.Random(seed)))
