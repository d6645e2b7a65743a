"""What README.md and docs/ show works: Python blocks are run, commands in bash blocks exist.

The Python blocks of one page share a namespace and run in order. A block that follows a comment
`<!-- not run: the reason -->` is not run, but counted, and few are allowed.
"""

import ast
import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from weft.core.knobs import KNOBS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
MOST_NOT_RUN = 3
SHELLS = ("bash", "sh", "shell", "console")
# Commands that need no check, and names that the tests' own settings use.
KNOWN_COMMANDS = {"cd", "pip", "git", "source", "export"}
VARIABLES = {knob.variable for knob in KNOBS.values()} | {"WEFT_TEST_FULL"}

FENCE = re.compile(r"^ *```+(\w*)[^\n]*\n(.*?)^ *```+ *$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- *not run:(.*?)-->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it starts on, and why it is not run (None: it is)."""

    language: str
    text: str
    line: int
    not_run: str | None


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in FENCE.finditer(page):
        before = page[: match.start()]
        comment = NOT_RUN.search(before)
        line = before.count("\n") + 2
        found.append(Block(match[1].lower(), match[2], line, comment[1].strip() if comment else None))
    return found


def run_python(blocks: list[Block], name: str) -> None:
    """Run a page's Python blocks in one namespace; an error's line is the line of the page."""
    namespace: dict = {"__name__": "documentation"}
    for block in blocks:
        if block.language == "python" and block.not_run is None:
            tree = ast.parse(block.text, filename=name)
            ast.increment_lineno(tree, block.line - 1)
            exec(compile(tree, name, "exec"), namespace)


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def command_problems(block: Block, targets: set[str]) -> list[str]:
    """What is wrong with the commands of a bash block."""
    lines = [line.strip().removeprefix("$ ") for line in block.text.replace("\\\n", " ").splitlines()]
    commands = [part for line in lines for part in re.split(r"\s*(?:&&|;|\|)\s*", line.split(" #")[0]) if part]
    return [problem for command in commands if not command.startswith("#") for problem in check(command, targets)]


def check(command: str, targets: set[str]) -> list[str]:
    words = shlex.split(command)
    problems = []
    while words and re.match(r"^[A-Za-z_]\w*=", words[0]):
        variable = words.pop(0).split("=")[0]
        if variable.startswith("WEFT_") and variable not in VARIABLES:
            problems.append(f"{variable} is not an environment variable of Weft")
    if not words or words[0] in KNOWN_COMMANDS:
        return problems
    if words[0] == "make":
        wanted = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        return problems + [f"make has no target '{word}'" for word in wanted if word not in targets]
    if words[0] in ("python", "python3"):
        return problems + python_problems(words[1:])
    return [*problems, f"'{words[0]}' is no command this test knows"]


def python_problems(words: list[str]) -> list[str]:
    if words[:1] == ["-m"] and len(words) > 1:
        return [] if module_exists(words[1]) else [f"there is no module {words[1]}"]
    if words and words[0].endswith(".py"):
        return [] if (ROOT / words[0]).exists() else [f"there is no file {words[0]}"]
    return []


def module_exists(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").exists() or (path / "__main__.py").exists():
        return True
    return "." not in name and importlib.util.find_spec(name) is not None


def page_blocks(path: Path) -> list[Block]:
    return blocks_of(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = page_blocks(path)
    needed = {name for block in blocks for name in re.findall(r"^import (jax|keras)", block.text, re.MULTILINE)}
    for name in sorted(needed):
        pytest.importorskip(name)
    run_python(blocks, str(path))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(path):
    targets = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    problems = [
        f"{path.name}:{block.line}: {problem}"
        for block in page_blocks(path)
        if block.language in SHELLS and block.not_run is None
        for problem in command_problems(block, targets)
    ]
    assert not problems, "\n".join(problems)


def test_few_blocks_are_not_run():
    skipped = [(path.name, block) for path in PAGES for block in page_blocks(path) if block.not_run is not None]
    assert all(block.not_run for _, block in skipped), "'not run:' needs a reason"
    listed = [f"{name}:{block.line} {block.not_run}" for name, block in skipped]
    assert len(skipped) <= MOST_NOT_RUN, "\n".join(listed)


# This test finds what it is for.

PAGE = """# Title
```python
x = 1
```
text
<!-- not run: needs a
GPU -->

```python
x = 1 / 0
```
```
plain
```
```python
y = x + 1
assert y == 2
```
"""


def test_blocks_are_found():
    blocks = blocks_of(PAGE)
    assert [block.language for block in blocks] == ["python", "python", "", "python"]
    assert [block.not_run for block in blocks] == [None, "needs a\nGPU", None, None]
    assert [PAGE.splitlines()[block.line - 1] for block in blocks] == ["x = 1", "x = 1 / 0", "plain", "y = x + 1"]
    run_python(blocks, "page.md")


def test_an_error_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(blocks_of(PAGE.replace("not run", "ran")), "page.md")
    assert caught.traceback[-1].lineno + 1 == PAGE.splitlines().index("x = 1 / 0") + 1


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make test PYTHON=python3.12", None),
        ("make tset", "no target 'tset'"),
        ("python -m pytest -q  # all of it", None),
        ("python -m weft.core.knobs && cd x", None),
        ("python -m weft.nothing", "no module weft.nothing"),
        ("python nothing.py", "no file nothing.py"),
        ("$ WEFT_DEBUG=2 python -m benchmarks.harness", None),
        ("WEFT_DEBUGG=2 make test", "WEFT_DEBUGG is not"),
        ("frobnicate", "'frobnicate' is no command"),
        ("# only a remark", None),
    ],
)
def test_commands_are_checked(command, problem):
    problems = command_problems(Block("bash", command + "\n", 1, None), {"test"})
    assert (problem is None and problems == []) or problem in problems[0], problems
