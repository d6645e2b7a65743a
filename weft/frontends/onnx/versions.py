"""Operator sets: which versions are read, and whether a node's operator exists in the version its model declares."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import FrontendError, did_you_mean
from weft.frontends.onnx.source import onnx_module
from weft.graph.ir import Graph, Node
from weft.graph.opspec import find_operator, operators, way_to_register

OLDEST = 6
"""The oldest version of ai.onnx that adapters know. Operators that were the same before are read from older ones."""

NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
"""The newest version read of each operator set."""

BACKDATED = ("LayerNormalization",)
"""Operators that ONNX Runtime's optimizer writes into models of every version, older than the operator itself."""


def domain_name(domain: str) -> str:
    """The domain as graphs write it: ai.onnx is empty."""
    return "" if domain == "ai.onnx" else domain


def label(domain: str, op: str) -> str:
    """An operator's name for people."""
    return f"{domain}.{op}" if domain else op


def read_opsets(imports: Any) -> dict[str, int]:
    """The operator sets that a model or function declares."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = domain_name(entry.domain)
        if found.get(domain, entry.version) != entry.version:
            raise FrontendError(f"the operator set {domain or 'ai.onnx'!r} is imported in two versions")
        found[domain] = int(entry.version)
    return found


def check(op: str, domain: str, opsets: Mapping[str, int], where: str, adapted: bool = False) -> int:
    """The declared version of a node's operator set; an error where the operator is not in it.

    `adapted`: the operator is one of a domain that adapters rewrite, so that no graph holds it.
    """
    if not adapted and domain not in NEWEST and all(other != domain for other, _ in operators()):
        raise FrontendError(
            f"{where}: the domain {domain!r} is unknown, and the model defines no such function; "
            f"{way_to_register(op, domain)}"
        )
    if domain not in opsets:
        raise FrontendError(f"{where}: the model does not import the operator set {domain or 'ai.onnx'!r}")
    version, newest = opsets[domain], NEWEST.get(domain)
    if newest is None:
        return version
    if not 1 <= version <= newest:
        raise FrontendError(f"{where}: version {version} of {domain or 'ai.onnx'} is unknown; the newest is {newest}")
    _check_schema(op, domain, version, where)
    return version


def _check_schema(op: str, domain: str, version: int, where: str) -> None:
    """Compares with the operators that the onnx package knows (it may be older than the model)."""
    if not _exists(op, domain):
        if find_operator(op, domain) is None:
            known = [name for of, name in operators() if of == domain]
            raise FrontendError(f"{where}: there is no operator {label(domain, op)}{did_you_mean(op, known)}")
        return
    since = _since(op, domain, version)
    if since is None and domain == "" and op in BACKDATED:
        return
    if since is None:
        newest = onnx_module("onnx.defs").get_schema(op, domain=domain)
        raise FrontendError(
            f"{where}: {label(domain, op)} is not in version {version} of {domain or 'ai.onnx'}, which the model "
            f"declares; its newest form came with version {newest.since_version}"
        )
    if domain == "" and version < OLDEST and since != _since(op, domain, OLDEST):
        raise FrontendError(
            f"{where}: {op} in version {version} of ai.onnx is older than the oldest form that is read, "
            f"that of version {OLDEST}"
        )


@functools.lru_cache(maxsize=4096)
def _exists(op: str, domain: str) -> bool:
    return bool(onnx_module("onnx.defs").has(op, domain))


@functools.lru_cache(maxsize=4096)
def _since(op: str, domain: str, version: int) -> int | None:
    defs = onnx_module("onnx.defs")
    try:
        return int(defs.get_schema(op, version, domain).since_version)
    except defs.SchemaError:
        return None


class Form:
    """What a schema demands of a node: how many inputs and outputs, which inputs, which attributes of which kind."""

    __slots__ = ("attributes", "inputs", "most_inputs", "most_outputs", "variadic")

    def __init__(self, schema: Any) -> None:
        self.most_inputs = int(schema.max_input)
        self.most_outputs = int(schema.max_output)
        options = [parameter.option.name for parameter in schema.inputs]
        self.inputs = [option == "Single" for option in options]
        self.variadic = options[-1:] == ["Variadic"]
        self.attributes = {name: (a.type.name, bool(a.required)) for name, a in schema.attributes.items()}

    def problem(self, op: str, inputs: Sequence[Any], outputs: int, attributes: Mapping[str, Any]) -> str:
        """What is wrong with a node, in words; empty where nothing is."""
        if len(inputs) > self.most_inputs or outputs > self.most_outputs:
            most = f"at most {self.most_inputs} and {self.most_outputs}"
            return f"{len(inputs)} inputs and {outputs} outputs, where the operator has {most}"
        for position, needed in enumerate(self.inputs):
            missing = position >= len(inputs) or inputs[position] is None
            if needed and missing and op != "Resize":  # exporters leave out roi, which opset 11 demands
                return f"input {position} is missing"
        if self.variadic and None in inputs[len(self.inputs) - 1 :]:
            return "one of its inputs is left out"
        for name, (kind, required) in self.attributes.items():
            if name not in attributes:
                if required:
                    return f"the attribute {name!r} is missing"
            elif not _is_kind(attributes[name], kind):
                return f"the attribute {name!r} must be of the kind {kind}"
        return ""


_PLAIN: dict[str, tuple[type, ...]] = {"FLOAT": (float, int), "INT": (int,), "STRING": (str,), "GRAPH": (Graph,)}
_PLAIN.update({"TENSOR": (np.ndarray,), "SPARSE_TENSOR": (np.ndarray,)})


def _is_kind(value: Any, kind: str) -> bool:
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind])
    items = _PLAIN.get(kind.removesuffix("S"))
    if items is None or not kind.endswith("S"):
        return True
    return isinstance(value, list) and all(isinstance(item, items) for item in value)


@functools.lru_cache(maxsize=4096)
def _form(op: str, domain: str, version: int) -> Form | None:
    defs = onnx_module("onnx.defs")
    try:
        return Form(defs.get_schema(op, version, domain))
    except defs.SchemaError:
        return None


def check_form(
    op: str, domain: str, version: int, inputs: Sequence[Any], outputs: int, attributes: Mapping[str, Any], where: str
) -> None:
    """An error for a node that does not have the form of its operator in that version."""
    form = _form(op, domain, version)
    problem = "" if form is None else form.problem(op, inputs, outputs, attributes)
    if problem:
        raise FrontendError(f"{where}: {problem}")


def check_known(node: Node, where: str) -> None:
    """An error for an operator that is not in the table."""
    if find_operator(node.op, node.domain) is None:
        way = f"; {way_to_register(node.op, node.domain)}" if node.domain else ""
        raise FrontendError(f"{where}: the operator {label(node.domain, node.op)} has no implementation in Weft{way}")


_KINDS = (
    ("FLOAT", "f"), ("INT", "i"), ("STRING", "s"), ("TENSOR", "t"), ("GRAPH", "g"), ("SPARSE_TENSOR", "sparse_tensor"),
    ("TYPE_PROTO", "tp"),
)  # fmt: skip
_LISTS = (("FLOATS", "floats"), ("INTS", "ints"), ("STRINGS", "strings"), ("TENSORS", "tensors"), ("GRAPHS", "graphs"))


def attribute_kind(attribute: Any) -> str:
    """What an attribute holds. Old files do not say: there the field that is set decides."""
    if attribute.type:
        kinds = type(attribute).AttributeType
        return str(kinds.Name(attribute.type)) if attribute.type in kinds.values() else str(attribute.type)
    for kind, field in _KINDS:
        if attribute.HasField(field):
            return kind
    for kind, field in _LISTS:
        if len(getattr(attribute, field)):
            return kind
    return "INTS"
