"""The table of converters: the name of a TFLite operator to the function that writes it in Weft's operators.

A converter gets the emitter, the operator and its operands as values; it gives one value, or one for each output.
Operands and results are real numbers; the importer dequantizes and quantizes around it. Those of MOVES get whole
numbers as they are, where operands and results agree in what these mean.
"""

from __future__ import annotations

from weft.frontends.table import Table

CONVERTERS = Table()
"""Every converter by name."""

MOVES = Table()
"""Those that only move elements."""

operator = CONVERTERS.named
enter = CONVERTERS.enter
moves = MOVES.named
