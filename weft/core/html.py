"""Words from model files, made safe to show: HTML for notebooks (`_repr_html_` of modules, graphs, …), and terminals.

In: texts and tables, whose words come from model files that anybody may have written. Out: `Html`. Only `tag` makes it,
and it escapes everything that is not `Html` already; what one glues together with `+` is plain text again, and escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

MOST_ROWS = 200
LONGEST_CELL = 120
LONGEST_TEXT = 100_000
"""Characters, and rows of a table, from which on the rest is counted only: a notebook keeps what it shows."""

_CELL = "text-align:left;padding:0 1em 0 0"


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


def tag(name: str, *children: object, style: str = "") -> Html:
    """An element around its children; whatever is not `Html` is text."""
    inside = "".join(child if isinstance(child, Html) else _escaped(str(child)) for child in children)
    head = f'{name} style="{html.escape(style)}"' if style else name
    return Html(f"<{head}>{inside}</{name}>")


def _escaped(text: str) -> str:
    """Text for HTML. Characters that show nothing (controls, marks of direction, halves of a pair) become a sign."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(text)


def printable(text: str) -> str:
    """A name from a model's file as a terminal may show it: one with controls or marks of direction is escaped."""
    return text if text.isprintable() else ascii(text)


def shortened(text: str, most: int) -> str:
    """Text of at most so many characters: the end stays, where names of nodes differ."""
    return text if len(text) <= most else "…" + text[len(text) - most + 1 :]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table; a cell that is `Html` stands as it is."""
    listed = list(rows)
    lines = [tag("tr", *(tag("th", name, style=_CELL) for name in header))]
    for row in listed[:MOST_ROWS]:
        cells = (cell if isinstance(cell, Html) else shortened(str(cell), LONGEST_CELL) for cell in row)
        lines.append(tag("tr", *(tag("td", cell, style=_CELL) for cell in cells)))
    more = [tag("p", f"… and {len(listed) - MOST_ROWS} more")] if len(listed) > MOST_ROWS else []
    return tag("div", tag("table", *lines), *more)


def preformatted(text: str) -> Html:
    """Text in lines as they are, such as a program."""
    more = len(text) - LONGEST_TEXT
    cut = text if more <= 0 else f"{text[:LONGEST_TEXT]}\n… and {more} characters more"
    return tag("pre", cut, style="line-height:1.25")


def folded(title: object, *children: object) -> Html:
    """What a reader opens by a click."""
    return tag("details", tag("summary", title), *children)


def bar(share: float, text: object) -> Html:
    """Text on a bar that is this part of its cell."""
    part = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    return tag(
        "div", text, style=f"background:linear-gradient(to right,#8ab4f866 {part},transparent {part});min-width:5em"
    )
