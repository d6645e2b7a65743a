"""Which parts of a quantized graph run on the accelerator: its products of bytes, and what is exact in whole numbers.

    %i = ConvInteger(%x8, const w)                             %p = Reshape, Transpose(%x8)       blocks of channels
    %c = Add(Mul(Cast(%i), const s), const b)                  %q = PackedConv(%p, const w', const bias, const shift)
    %y = QuantizeLinear(Relu(Add(%c, %residual)), const t)  -> %y = Transpose, Reshape(%q)

Values between two convolutions stay in blocks: the nodes that change a layout stand only where the other side is not
the accelerator's. Floating-point arithmetic between a product and a QuantizeLinear becomes shifts where that is the
same, bit for bit: all factors are powers of two, all constants whole numbers of the finest of them, and no sum is
larger than 24 bits hold (so that float32 does not round either). Otherwise the sums are stored, and the rest is done
by the processor as the model says it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite
from weft.targets.base import Target
from weft.targets.vdla import config_of
from weft.targets.vdla import operator as packed

logger = logging.getLogger("weft.targets.vdla")

EXACT = 1 << 24
"""float32 holds every whole number up to here."""
_INT32, _UINT8 = 6, 2
"""Element types as attributes name them."""
MOST_PAD = 15
"""Rows or columns of zeros around an image: four bits of a transfer."""


def offload(graph: Graph, target: Target) -> Graph:
    """The graph with its products of bytes as PackedConv; the same object where there are none."""
    work = _Offload(config_of(target.name.partition(":")[2]).block)
    made = graph
    for rule in (work.signed, work.requantized, work.sums):
        found, changed = rewrite(made, rule)
        made = infer(dead(found)) if changed else made
    return made if any(node.op == packed.NAME for node in made.nodes) else graph


@dataclass(frozen=True)
class _Form:
    """A real number for each element: whole numbers times factors, and a constant, all by channel."""

    terms: dict[Value, Array]
    constant: Array

    def scaled(self, by: Array) -> _Form:
        return _Form({value: factor * by for value, factor in self.terms.items()}, self.constant * by)


class _Offload:
    """One pass: values that lie in blocks already, and the ranges of bytes that are known."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.blocks: dict[Value, Value] = {}
        self.ranges: dict[Value, tuple[int, int]] = {}
        self.made: dict[tuple[Value | None, float, int], Value] = {}
        self.bytes: dict[Value, Value] = {}

    # ------------------------------------------------------------------------------------------------------- rules

    def signed(self, node: Node, scope: Scope) -> Replacement:
        """Unsigned bytes become signed ones where they are made; what reads them takes 128 less."""
        source = None if not node.inputs or node.domain else node.inputs[0]
        if node.op == "QuantizeLinear" and node.outputs[0].tensor.dtype in ("int8", "uint8"):
            scale, zero = scope.scalar(node.inputs[1]), scope.scalar(node.inputs[2]) if len(node.inputs) > 2 else 0.0
            if scale is None or zero is None:
                return None
            less = 128 if node.outputs[0].tensor.dtype == "uint8" else 0
            key = (source, scale, int(zero) - less)
            if less == 0 and key not in self.made:
                self.made[key] = node.outputs[0]
            if less == 0:
                return None if self.made[key] is node.outputs[0] else self.made[key]
            if key not in self.made:
                signed = scope.new_constant(np.array(key[2], np.int8), "zero")
                self.made[key] = scope.make(node, "QuantizeLinear", [source, node.inputs[1], signed])
            made = self.bytes[node.outputs[0]] = self.made[key]
            wide = scope.make(node, "Cast", [made], to=_INT32)
            wide = scope.make(node, "Add", [wide, scope.new_constant(np.array(128, np.int32), "more")])
            return [Node("Cast", [wide], node.outputs, {"to": _UINT8}, node.name, node.origin)]
        if source not in self.bytes:
            return None
        weight = scope.constant(node.inputs[1]) if node.op in ("ConvInteger", "MatMulInteger") else None
        slides = node.op == "ConvInteger"
        if weight is None or not (slides or weight.ndim == 2) or any(v is not None for v in node.inputs[2:]):
            return None
        more = {"border": int(node.attributes.get("border", 0)) - 128} if slides else {}
        total = scope.make(node, node.op, [self.bytes[source], node.inputs[1]], **{**node.attributes, **more})
        sums = weight.astype(np.int32).sum(axis=tuple(range(1, weight.ndim)) if slides else 0) * 128
        offset = sums.reshape(1, -1, *[1] * (weight.ndim - 2)) if slides else sums
        inputs = [total, scope.new_constant(offset.astype(np.int32), "offset")]
        return [Node("Add", inputs, node.outputs, {}, node.name, node.origin)]

    def requantized(self, node: Node, scope: Scope) -> Replacement:
        """A QuantizeLinear of sums: the accelerator makes the bytes, where its arithmetic is the same."""
        if node.op != "QuantizeLinear" or node.domain or node.outputs[0].tensor.dtype != "int8":
            return None
        scale, zero = scope.scalar(node.inputs[1]), scope.scalar(node.inputs[2]) if len(node.inputs) > 2 else 0.0
        value, low, high = _limits(node.inputs[0], scope)
        if scale is None or zero is None or not _is_power(np.array(scale)):
            return None
        found = self.form(value, scope) if scope.uses[_data(node)] == 1 else None
        sums = [] if found is None else [v for v in found.terms if self.is_sum(v, scope)]
        if found is None or not sums or len(found.terms) > 2:
            return None
        if any(v.tensor.static != node.outputs[0].tensor.static for v in found.terms):
            return None  # one is broadcast
        main = max(sums, key=lambda v: _weight(scope.producers[v], scope).size)
        whole = self.whole(found, main, scale, scope)
        if whole is None:
            logger.info("%s: requantization is not exact in whole numbers, the processor does it", node.describe())
            return None
        bias, shift, lift, factor = whole
        beside = [self.product(scope.producers[v], scope, ()) if v in sums else self.in_blocks(v, node, scope)
                  for v in found.terms if v is not main]  # fmt: skip
        levels = [int(zero) + round(bound / scale) if np.isfinite(bound) else limit
                  for bound, limit in ((low, -128), (high, 127))]  # fmt: skip
        attributes = {"zero": int(zero), "low": max(levels[0], -128), "high": min(levels[1], 127)}
        rest = [self.channels(one, scope) for one in (bias, shift, None, lift)]
        rest += [*beside, None][:1] + [self.channels(factor, scope)]
        made = self.product(scope.producers[main], scope, rest, **attributes)
        self.ranges[node.outputs[0]] = (attributes["low"], attributes["high"])
        self.blocks[node.outputs[0]] = made
        return self.plain(made, node, scope)

    def sums(self, node: Node, scope: Scope) -> Replacement:
        """A product of bytes whose sums somebody else reads."""
        if not self.takes(node, scope):
            return None
        return self.plain(self.product(node, scope, ()), node, scope)

    # ----------------------------------------------------------------------------------------------------- looking

    def takes(self, node: Node, scope: Scope) -> bool:
        """Whether a node is a product of signed bytes with a known weight, in a form that the machine has."""
        zero_points = any(v is not None for v in node.inputs[2:])
        if node.op not in ("ConvInteger", "MatMulInteger") or node.domain or zero_points:
            return False
        x, weight = node.inputs[0], scope.constant(node.inputs[1])
        if x is None or weight is None or weight.dtype != np.int8 or weight.size == 0:
            return False
        kind = x.type
        if not isinstance(kind, TensorType) or kind.dtype != "int8" or not kind.is_static or 0 in kind.static:
            return False
        if node.op == "MatMulInteger":
            return kind.rank in (2, 3) and weight.ndim == 2
        pads = [int(p) for p in node.attributes.get("pads") or [0]]
        plain = str(node.attributes.get("auto_pad") or "NOTSET") == "NOTSET" and 0 <= min(pads) <= max(pads) <= MOST_PAD
        dilated = any(int(d) != 1 for d in node.attributes.get("dilations") or ())
        bordered = any(pads) and int(node.attributes.get("border", 0)) != 0  # a transfer pads with zeros
        alone = int(node.attributes.get("group", 1)) == 1
        return kind.rank == 4 and plain and alone and not dilated and not bordered

    def is_sum(self, value: Value, scope: Scope) -> bool:
        """Whether a value is the sums of a product that the machine takes."""
        node = scope.producers.get(value)
        return node is not None and self.takes(node, scope)

    def form(self, value: Value | None, scope: Scope) -> _Form | None:
        """How a value follows from sums and bytes; None where it does in another way."""
        node = scope.producer(value)
        if value is None or node is None or not isinstance(value.type, TensorType) or not value.type.is_static:
            return None
        axis = 1 if value.tensor.rank == 4 else value.tensor.rank - 1
        size = value.tensor.static[axis]
        if self.takes(node, scope):
            return _Form({value: np.ones(size)}, np.zeros(size))
        if node.op == "DequantizeLinear" and not node.domain:
            scale, zero = scope.scalar(node.inputs[1]), scope.scalar(node.inputs[2]) if len(node.inputs) > 2 else 0.0
            source = node.inputs[0]
            if source is None or scale is None or zero is None or source.tensor.dtype != "int8":
                return None
            return _Form({source: np.full(size, scale)}, np.full(size, -zero * scale))
        if scope.uses[value] != 1 or node.domain or value.tensor.dtype not in ("float32", "int32"):
            return None
        if node.op == "Cast":
            return self.form(node.inputs[0], scope) if _data(node).tensor.dtype == "int32" else None
        if node.op not in ("Add", "Sub", "Mul"):
            return None
        return self.combined(node, [_by_channel(scope.constant(v), axis, value.tensor) for v in node.inputs], scope)

    def combined(self, node: Node, known: Sequence[Array | None], scope: Scope) -> _Form | None:
        """The form of an Add, a Sub or a Mul; `known` are its constant operands by channel."""
        forms = [self.form(v, scope) if one is None else _Form({}, one) for v, one in zip(node.inputs, known)]
        a, b = forms
        if a is None or b is None:
            return None
        if node.op == "Mul":
            return a.scaled(b.constant) if not b.terms else b.scaled(a.constant) if not a.terms else None
        b = b if node.op == "Add" else b.scaled(np.array(-1.0))
        return None if a.terms.keys() & b.terms.keys() else _Form({**a.terms, **b.terms}, a.constant + b.constant)

    def reach(self, value: Value, scope: Scope) -> Array | float:
        """The largest magnitude of a term: of bytes, or of sums, for each channel."""
        if not self.is_sum(value, scope):
            return 128.0
        node = scope.producers[value]
        weight = _weight(node, scope).astype(np.float64)
        weight = weight.reshape(len(weight), -1) if node.op == "ConvInteger" else weight.T
        least, most = self.ranges.get(_data(node), (-128, 127))
        ends = np.stack([weight * least, weight * most])
        return np.asarray(np.maximum(ends.max(0).sum(1), -ends.min(0).sum(1)))

    def whole(
        self, form: _Form, main: Value, scale: float, scope: Scope
    ) -> tuple[Array, Array, Array | None, Array | None] | None:
        """Bias, shift, lift and factor of a form in whole numbers; None where that is not the same as in float32."""
        if not all(_is_power(factor) for factor in form.terms.values()):
            return None
        unit = np.min(list(form.terms.values()), axis=0)
        shift, bias = np.log2(scale / unit), form.constant / unit
        if np.any(bias != np.rint(bias)) or shift.min() < 1 or shift.max() > 30:
            return None
        total = np.abs(bias) + sum(self.reach(v, scope) * factor / unit for v, factor in form.terms.items())
        # What is rounded beyond 24 bits is held at the ends of int8 anyway, where nothing can bring it back.
        bounded = np.all(256 * np.exp2(shift) + np.abs(bias) <= EXACT) and total.max() < 1 << 30
        saturates = len(form.terms) == 1 and bounded
        if total.max() > EXACT and not saturates:
            return None
        lift = form.terms[main] / unit
        other = [factor / unit for v, factor in form.terms.items() if v is not main]
        return bias, shift, lift if np.any(lift != 1) else None, other[0] if other else None

    # ---------------------------------------------------------------------------------------------------- building

    def channels(self, numbers: Array | None, scope: Scope) -> Value | None:
        """A number for each channel as a constant in blocks."""
        if numbers is None:
            return None
        padded = np.pad(numbers.astype(np.int32), (0, -len(numbers) % self.block), mode="edge")
        return scope.new_constant(padded.reshape(-1, self.block), "channels")

    def product(self, node: Node, scope: Scope, rest: Sequence[Value | None], **more: int) -> Value:
        """The PackedConv of a product; `rest` are its inputs beyond image and weight."""
        x, weight = _data(node), _weight(node, scope)
        if node.op == "MatMulInteger":
            weight, window = weight.T[:, :, None, None], {}
        else:
            window = {name: node.attributes[name] for name in ("pads", "strides") if node.attributes.get(name)}
        f, c, kh, kw = weight.shape
        padded = np.pad(weight, ((0, -f % self.block), (0, -c % self.block), (0, 0), (0, 0)))
        blocks = padded.reshape(-1, self.block, padded.shape[1] // self.block, self.block, kh, kw)
        numbers = scope.new_constant(np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 1, 3)), "weight_blocks")
        inputs = [self.in_blocks(x, node, scope), numbers, *rest]
        while inputs[-1] is None:
            inputs.pop()
        return scope.make(node, packed.NAME, inputs, packed.DOMAIN, **window, **more)

    def in_blocks(self, value: Value, node: Node, scope: Scope) -> Value:
        """A value in blocks of channels, with zeros up to the last block."""
        if value not in self.blocks:
            made, shape = value, list(value.tensor.static)
            if len(shape) == 3:  # rows of a batch are rows
                shape = [shape[0] * shape[1], shape[2]]
                made = self.reshaped(made, shape, node, scope)
            more = -shape[1] % self.block
            if more:
                ends = [0] * len(shape) + [0, more, *[0] * (len(shape) - 2)]
                made = scope.make(node, "Pad", [made, scope.new_constant(np.array(ends, np.int64), "pads")])
            count = (shape[1] + more) // self.block
            cut = [shape[0], count, self.block, *shape[2:]]
            made = self.reshaped(made, cut, node, scope)
            turn = [0, 1, 3, 4, 2] if len(shape) == 4 else [1, 0, 2]
            made = scope.make(node, "Transpose", [made], perm=turn)
            if len(shape) == 2:
                made = self.reshaped(made, [1, count, shape[0], 1, self.block], node, scope)
            self.blocks[value] = made
        return self.blocks[value]

    def reshaped(self, value: Value, shape: Sequence[int], node: Node, scope: Scope) -> Value:
        return scope.make(node, "Reshape", [value, scope.new_constant(np.array(shape, np.int64), "shape")])

    def plain(self, value: Value, node: Node, scope: Scope) -> list[Node]:
        """What lies in blocks as a node's output, as the rest of the graph has it."""
        n, blocks, height, width, _ = value.tensor.static
        shape, channels, axis = node.outputs[0].tensor.static, blocks * self.block, 1
        if len(shape) == 4:
            value = scope.make(node, "Transpose", [value], perm=[0, 1, 4, 2, 3])
            value = self.reshaped(value, [n, channels, height, width], node, scope)
        else:
            value = self.reshaped(value, [blocks, height, self.block], node, scope)
            value = scope.make(node, "Transpose", [value], perm=[1, 0, 2])
            value, axis = self.reshaped(value, [*shape[:-1], channels], node, scope), len(shape) - 1
        inputs = [value]
        if shape[axis] != channels:
            ends = ([0], [shape[axis]], [axis])
            inputs += [scope.new_constant(np.array(one, np.int64), "slice") for one in ends]
        return [Node("Slice" if len(inputs) > 1 else "Identity", inputs, node.outputs, {}, node.name, node.origin)]


def _data(node: Node) -> Value:
    """What a node reads first."""
    assert node.inputs[0] is not None
    return node.inputs[0]


def _weight(node: Node, scope: Scope) -> Array:
    """The weight of a product that the accelerator takes."""
    weight = scope.constant(node.inputs[1])
    assert weight is not None
    return weight


def _is_power(numbers: Array) -> bool:
    """Whether all are powers of two."""
    return bool(np.all(numbers > 0) and np.all(np.frexp(numbers)[0] == 0.5))


def _by_channel(array: Array | None, axis: int, kind: TensorType) -> Array | None:
    """A constant operand as a number for each channel; None where it is none, or differs within a channel."""
    if array is None or array.ndim > kind.rank:
        return None
    whole = array.reshape((1,) * (kind.rank - array.ndim) + array.shape)
    if any(size != 1 for at, size in enumerate(whole.shape) if at != axis):
        return None
    return np.broadcast_to(whole.reshape(-1).astype(np.float64), (kind.static[axis],))


def _limits(value: Value | None, scope: Scope) -> tuple[Value | None, float, float]:
    """What a value is before it is held within limits, and these."""
    low, high = -np.inf, np.inf
    while (node := scope.single(value, "Relu", "Clip")) is not None:
        ends = [None if v is None else scope.scalar(v) for v in node.inputs[1:]]
        given = [0.0, np.inf] if node.op == "Relu" else ends
        if any(v is not None and scope.scalar(v) is None for v in node.inputs[1:]):
            break
        least, most = (end if one is None else one for one, end in zip([*given, None, None], (-np.inf, np.inf)))
        low, high, value = max(low, least), min(high, most), node.inputs[0]
    return value, low, high
