"""Operator sets: which versions are read, and whether a node's operator exists in the version its model declares."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from weft.core.errors import FrontendError
from weft.frontends.onnx.source import onnx_module
from weft.graph.ir import Node
from weft.graph.opspec import find_operator, operators

OLDEST = 6
"""The oldest version of ai.onnx that adapters know. Operators that were the same before are read from older ones."""

NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
"""The newest version read of each operator set."""


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


def check(op: str, domain: str, opsets: Mapping[str, int], where: str) -> int:
    """The declared version of a node's operator set; an error where the operator is not in it."""
    if domain not in NEWEST and all(other != domain for other, _ in operators()):
        raise FrontendError(f"{where}: the domain {domain!r} is unknown, and the model defines no such function")
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
    defs = onnx_module("onnx.defs")
    if not _exists(op, domain):
        if find_operator(op, domain) is None:
            raise FrontendError(f"{where}: there is no operator {label(domain, op)}")
        return
    since = _since(op, domain, version)
    if since is None:
        newest = defs.get_schema(op, domain=domain)
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


def check_known(node: Node, where: str) -> None:
    """An error for an operator that is not in the table."""
    if find_operator(node.op, node.domain) is None:
        raise FrontendError(f"{where}: the operator {label(node.domain, node.op)} has no implementation in Weft")


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
