"""The table of converters: the name of a JAX primitive to the function that writes it in Weft's operators.

A converter gets the emitter, the operands as values, and the primitive's parameters by name. What it gives is brought
to the element type that JAX says, and compared with the shape that JAX says.
"""

from __future__ import annotations

from weft.frontends.table import Table

CONVERTERS = Table()
"""Every converter by name."""

primitive = CONVERTERS.named
enter = CONVERTERS.enter
