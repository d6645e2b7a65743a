"""The documentation site is built from what is there, and no link of it leads nowhere."""

import re

import pytest

pytest.importorskip("markdown_it")

from tools import site


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return folder, site.build(folder)


def test_no_link_leads_nowhere(made):
    assert list(site.problems(made[1])) == []


def test_every_page_is_there_and_lists_the_others(made):
    folder, pages = made
    names = {page.name for page in pages}
    assert names >= {"index", "api", "operator-table", *(path.stem for path in (site.ROOT / "docs").glob("*.md"))}
    for page in pages:
        text = (folder / f"{page.name}.html").read_text(encoding="utf-8")
        assert text.count("aria-current=page") == 1 and all(f'href="{name}.html"' in text for name in names)
        assert not re.search(r"<script|https?://[^\"<]*\.(css|js)", text), "it asks nobody for anything"


def test_references_have_what_the_source_has(made):
    texts = {page.name: page.body for page in made[1]}
    assert "weft.compile" in texts["api"] and "weft.te.compute" in texts["api"] and "weft explore" in texts["api"]
    assert "WEFT_CACHE_DIR" in texts["api"] and "A model as a module to call." in texts["api"]
    table = texts["operator-table"]
    assert table.count("<tr>") == len(site.operators()) + 1
    assert re.search(r"<td>Conv</td>\s*<td>ai.onnx</td>\s*<td>kernel</td>\s*<td>complex</td>", table)


def test_wrong_links_are_found():
    page = site.Page("one", "# One\n[a](two.md) [b](#nowhere) [c](gpu.md#gpus) [d](x.png) [e](https://weft.invalid)")
    other = site.Page("gpu", "# GPUs")
    assert list(site.problems([page, other])) == [
        "one: there is no page two.md", "one: one.html has no heading #nowhere", "one: there is no page x.png",
    ]  # fmt: skip
    assert site.slug("2 From loops, to `code`!") == "2-from-loops-to-code"
