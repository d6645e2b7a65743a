"""Layer 5: the operators, a family a file. Importing this package fills the table of `weft.graph.opspec`."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
