"""The primitives, one family a file. Importing this package registers all of them."""

from weft.schedule.primitives import attach, cache, inline, layout, loops, marks, reduction, tensorize

__all__ = ["attach", "cache", "inline", "layout", "loops", "marks", "reduction", "tensorize"]
