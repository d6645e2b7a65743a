"""The table of converters: the name of an ATen operator, without "aten." and ".default", to the function that writes it
in Weft's operators.

A converter gets the emitter and the operator's arguments: tensors as values, sizes that only a call tells as values,
everything else as Python has it. What it gives is brought to the element type that torch says (so that a converter need
not cast its result) and compared with the shape that torch says.
"""

from __future__ import annotations

from typing import Any

from weft.frontends.table import Table

CONVERTERS = Table()
"""Every converter by name."""

aten = CONVERTERS.named
enter = CONVERTERS.enter


def name_of(target: Any) -> str:
    """The name of what a node of an FX graph calls: "add.Tensor", "relu", "prims.iota", "operator.mul"."""
    if hasattr(target, "_schema"):
        return str(target).removeprefix("aten.").removesuffix(".default")
    return f"{getattr(target, '__module__', '').lstrip('_')}.{getattr(target, '__name__', target)}"


def operator_and_domain(target: Any) -> tuple[str, str]:
    """The name and domain by which `weft.register_op` knows an operator of torch's: ("special_bessel_j0", "aten")."""
    if not hasattr(target, "_schema"):
        return "", ""
    domain, _, name = target._schema.name.partition("::")
    return name, domain
