"""python -m tools.site [-o build/site]: the documentation as a static site, with references made from the source.

In: README.md, docs/*.md, the package. Out: HTML pages, a style, the pictures. Markdown is read by markdown-it and code
is coloured by Pygments, which come with rich, so that nothing has to be installed. `problems` lists links that lead
nowhere; a test keeps that list empty.
"""

from __future__ import annotations

import argparse
import html
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

import weft
import weft.ops
from weft import te
from weft.cli.main import COMMANDS, make_parser
from weft.core.knobs import KNOBS
from weft.graph.opspec import operators

ROOT = Path(__file__).resolve().parent.parent
FIRST = ["tour", "explore", "tensor-expressions", "schedule", "schedules", "tuning", "profiling"]
"""Pages that a newcomer reads first; the others follow by name."""
PICTURES = (".png", ".svg")


def slug(title: str) -> str:
    """The anchor of a heading, as the usual hosts of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def coloured(text: str, language: str, _: str = "") -> str:
    """A block of code as HTML."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(text, lexer, HtmlFormatter(nowrap=True))


class Page:
    """A page of Markdown: its name, title, HTML, the anchors it has and the links it makes."""

    def __init__(self, name: str, text: str) -> None:
        markdown = MarkdownIt("commonmark", {"highlight": coloured, "html": False}).enable(["table", "strikethrough"])
        tokens = markdown.parse(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
        self.name, self.title = name, name
        self.links, self.files = list[str](), list[str]()
        self.headings: list[tuple[int, str, str]] = []
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                words = "".join(one.content for one in tokens[at + 1].children or ())
                token.attrSet("id", slug(words))
                self.headings.append((int(token.tag[1]), words, slug(words)))
            for child in token.children or ():
                if child.type in ("link_open", "image"):
                    key = "href" if child.type == "link_open" else "src"
                    child.attrSet(key, self._link(str(child.attrGet(key))))
        if self.headings:
            self.title = self.headings[0][1]
        self.body = markdown.renderer.render(tokens, markdown.options, {})

    def _link(self, target: str) -> str:
        """A link of the repository as one of the site; what is no page of it is copied beside them."""
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", target) or not path:
            self.links.append(target)
            return target
        name = Path(path).name
        if name.endswith(".md") and ((ROOT / "docs" / name).exists() or name == "README.md"):
            made = ("index" if name == "README.md" else name[:-3]) + ".html"
        elif name.endswith(PICTURES):
            made = name
        else:
            self.files.append(path)
            made = name
        self.links.append(f"{made}#{anchor}" if anchor else made)
        return self.links[-1]

    @property
    def anchors(self) -> set[str]:
        """The places of the page that a link may name."""
        return {anchor for _, _, anchor in self.headings}


# ---------------------------------------------------------------------------------------------------------- references


def api_reference() -> str:
    """Everything public in `weft` and `weft.te`: signatures and docstrings, as Markdown."""
    parts = ["# API reference", "Made from the docstrings of the source, by `python -m tools.site`."]
    for title, module, names in (("weft", weft, weft.__all__), ("weft.te", te, te.__all__)):
        parts.append(f"## {title}")
        parts += [_described(f"{title}.{name}", getattr(module, name)) for name in sorted(names) if name[0] != "_"]
    parts += ["## Commands", *(f"### weft {name}\n{_options(name)}" for name in COMMANDS)]
    rows = [f"| `{knob.variable}` | `{knob.default!r}` | {_cell(knob.meaning)} |" for knob in KNOBS.values()]
    return "\n\n".join(parts + ["## Settings", "\n".join(["| variable | default | |", "|---|---|---|", *rows])])


def _described(name: str, thing: Any) -> str:
    if inspect.ismodule(thing):
        return f"### {name}\nA module: {_text(thing)}"
    lines = [f"### {name}", f"```python\n{name}{_signature(thing)}\n```", _text(thing)]
    if inspect.isclass(thing):
        for key, member in sorted(vars(thing).items()):
            if key.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
                continue
            what = member.fget if isinstance(member, property) else member
            call = "" if isinstance(member, property) else _signature(member)
            lines.append(f"**`{key}{call}`** {_text(what).partition(chr(10))[0]}")
    return "\n\n".join(lines)


def _signature(thing: Any) -> str:
    try:
        return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing))) if callable(thing) else ""
    except ValueError:
        return "(...)"


def _text(thing: Any) -> str:
    """A docstring as Markdown: what is indented stays code."""
    return inspect.getdoc(thing) or ""


def _options(name: str) -> str:
    parser = next(one.choices for one in make_parser([name])._actions if one.dest == "command")[name]  # type: ignore[index]
    return f"{parser.description}\n\n```\n{parser.format_usage()[7:].strip()}\n```"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def operator_table() -> str:
    """Every operator that a model may use: how it fuses, whether it has a kernel, what its inputs must be."""
    rows = []
    for (domain, name), spec in sorted(operators().items()):
        kind = spec.kind if isinstance(spec.kind, str) else "by use"
        runs = "kernel" if spec.compute is not None else "other operators" if spec.expand is not None else "host"
        takes, traits = _cell(spec.takes or ""), ", ".join(sorted(spec.traits))
        rows.append(f"| {name} | {domain or 'ai.onnx'} | {runs} | {kind} | `{takes}` | {traits} |")
    count = sum("| kernel |" in row for row in rows)
    return (
        f"# Operators\n{len(rows)} operators, {count} of them with kernels of their own; made from the table of "
        "operators (`weft/graph/opspec.py`) by `python -m tools.site`. [Your own](operators.md) are as good.\n\n"
        "| operator | domain | runs as | fuses as | takes | traits |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    )


# ---------------------------------------------------------------------------------------------------------------- site


def pages() -> list[Page]:
    """All pages, in the order of the list beside them."""
    names = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))}
    order = [*(name for name in FIRST if name in names), *(name for name in names if name not in FIRST)]
    made = [Page("index", (ROOT / "README.md").read_text(encoding="utf-8"))]
    made += [Page(name, names[name].read_text(encoding="utf-8")) for name in order]
    return [*made, Page("api", api_reference()), Page("operator-table", operator_table())]


def problems(made: list[Page]) -> Iterator[str]:
    """Links that lead nowhere."""
    anchors = {f"{page.name}.html": page.anchors for page in made}
    pictures = {path.name for path in (ROOT / "docs").iterdir() if path.suffix in PICTURES}
    pictures |= {Path(path).name for page in made for path in page.files if (ROOT / path).is_file()}
    for page in made:
        for link in page.links:
            path, _, anchor = link.partition("#")
            path = path or f"{page.name}.html"
            if re.match(r"\w+:", link) or path in pictures:
                continue
            if path not in anchors:
                yield f"{page.name}: there is no page {link}"
            elif anchor and anchor not in anchors[path]:
                yield f"{page.name}: {path} has no heading #{anchor}"


def whole(page: Page, made: list[Page]) -> str:
    """A page with the list of all pages beside it."""
    links = "".join(
        f'<a href="{one.name}.html"{" aria-current=page" if one is page else ""}>{html.escape(_short(one))}</a>'
        for one in made
    )
    inside = "".join(f'<a href="#{a}">{html.escape(words)}</a>' for level, words, a in page.headings if level == 2)
    title = html.escape(page.title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title} · Weft</title><link rel="stylesheet" href="style.css"></head><body>'
        f'<aside><a class="brand" href="index.html">weft <em>docs</em></a><nav>{links}</nav></aside>'
        f'<main>{page.body}</main><aside class="inside"><nav>{inside}</nav></aside></body></html>'
    )


def _short(page: Page) -> str:
    return "Start" if page.name == "index" else page.title.partition(":")[0]


def style() -> str:
    """The style: colours of the explorer's page, and of code in both lights."""
    palette = (ROOT / "weft" / "explore" / "page.css").read_text(encoding="utf-8").partition("* { box-sizing")[0]
    light, dark = (HtmlFormatter(style=name).get_style_defs("pre") for name in ("friendly", "github-dark"))
    own = (Path(__file__).parent / "site.css").read_text(encoding="utf-8")
    return f"{palette}\n{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{own}"


def build(folder: Path) -> list[Page]:
    """Writes the site."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for page in made:
        (folder / f"{page.name}.html").write_text(whole(page, made), encoding="utf-8")
    (folder / "style.css").write_text(style(), encoding="utf-8")
    beside = [path for path in (ROOT / "docs").iterdir() if path.suffix in PICTURES]
    for path in (*beside, *(ROOT / path for page in made for path in page.files)):
        if path.is_file():
            shutil.copy(path, folder)
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 where a link leads nowhere."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "site")
    given = parser.parse_args(arguments)
    made = build(given.output)
    wrong = list(problems(made))
    print(f"{len(made)} pages in {given.output}", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
