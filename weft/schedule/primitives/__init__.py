"""The primitives, one family a file. Importing this package registers all of them."""

from weft.schedule.primitives import (
    attach,
    cache,
    domain,
    inline,
    layout,
    loops,
    marks,
    matrix,
    online,
    operand,
    padding,
    reduction,
    steps,
    tensorize,
)

__all__ = [
    "attach", "cache", "domain", "inline", "layout", "loops", "marks", "matrix", "online", "operand", "padding",
    "reduction", "steps", "tensorize",
]  # fmt: skip
