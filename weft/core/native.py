"""`mypyc_attr(allow_interpreted_subclasses=True)` tells mypyc, which may compile the core (setup.py), that modules that
stay Python derive from a class. Python itself sees no difference, and needs no package for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**facts: Any) -> Any:
        """Marks a class."""
        return lambda marked: marked
