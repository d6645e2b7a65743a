"""What tells mypyc, which compiles modules of the core to native code where that is asked for, about a class.

In: a class of a module that may be compiled. Out: the class. `mypyc_attr(allow_interpreted_subclasses=True)` marks one
that modules which are not compiled may derive from. Python itself sees no difference, and needs no package for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**facts: Any) -> Any:
        """Marks a class."""
        return lambda marked: marked


__all__ = ["mypyc_attr"]
