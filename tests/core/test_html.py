"""HTML for notebooks: whatever a model's file calls its things, it stays text."""

from html.parser import HTMLParser

import pytest

from weft.core import html
from weft.core.html import Html, bar, folded, preformatted, printable, shortened, table, tag

EVIL = '</td></pre></summary><script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x1b[31m\ud800 \' & <'


class Elements(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.open.append(tag)
        self.attributes.update(name for name, _ in attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check_harmless(page: str) -> Elements:
    """Only our own elements, closed in order, without anything that runs; characters that any encoding has."""
    found = Elements(page)
    assert found.open == []
    assert found.tags <= {"div", "b", "p", "pre", "table", "tr", "th", "td", "details", "summary"}
    assert found.attributes <= {"style"}
    page.encode()
    assert all(c.isprintable() or c in "\n\t" for c in page)
    return found


@pytest.mark.parametrize(
    "page",
    [
        tag("b", EVIL),
        tag("p", tag("b", EVIL), EVIL, 3, style=f"color:{EVIL[:20]}"),
        table([EVIL], [[EVIL], [tag("b", EVIL)]]),
        preformatted(EVIL),
        folded(EVIL, EVIL),
        bar(0.5, EVIL),
    ],
    ids=["tag", "nested", "table", "preformatted", "folded", "bar"],
)
def test_texts_stay_texts(page):
    assert isinstance(page, Html)
    found = check_harmless(page)
    assert "<script>alert(1)</script>" in found.text


def test_html_glued_to_text_is_text():
    glued = tag("b", "x") + "<i>"
    assert not isinstance(glued, Html)
    assert Elements(tag("p", glued, f"{tag('b', 'y')}")).tags == {"p"}


def test_large_things_are_cut_and_counted():
    page = table(["n"], [[i] for i in range(html.MOST_ROWS + 7)])
    assert page.count("<tr>") == html.MOST_ROWS + 1 and "… and 7 more" in page
    assert "… and 9 characters more" in preformatted("x" * (html.LONGEST_TEXT + 9))
    assert len(Elements(table(["n"], [["x" * 10_000]])).text) < 2 * html.LONGEST_CELL


def test_names_for_terminals():
    assert printable("/layer1/conv1/Conv") == "/layer1/conv1/Conv" and printable("größe") == "größe"
    assert "\x1b" not in printable(EVIL) and printable(EVIL).isprintable()
    assert shortened("abcdef", 6) == "abcdef" and shortened("abcdef", 4) == "…def"
