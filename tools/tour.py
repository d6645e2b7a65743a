"""python -m tools.tour: runs docs/tour.md from top to bottom, and shows what each block prints."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tour.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(page: Path = PAGE) -> None:
    """The page's words and code, with what the code says in between."""
    console, text, at = Console(width=120), page.read_text(encoding="utf-8"), 0
    names: dict[str, Any] = {"__name__": "tour"}
    begun = time.perf_counter()
    for block in FENCE.finditer(text):
        console.print(Markdown(text[at : block.start()]))
        console.print(Syntax(block[2].rstrip(), block[1] or "text", background_color="default", theme="ansi_dark"))
        at = block.end()
        if block[1] == "python":
            console.rule(style="dim")
            sys.stdout.flush()
            exec(compile(block[2], str(page), "exec"), names)  # noqa: S102 - our own page
            sys.stdout.flush()
            console.rule(style="dim")
    console.print(Markdown(text[at:]))
    console.print(f"\n{time.perf_counter() - begun:.0f} s in all", style="dim")


if __name__ == "__main__":
    main()
