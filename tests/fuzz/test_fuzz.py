"""A short run of each net (`make fuzz` runs them for long), and the nets themselves: what they must catch, they do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import FULL
from tests.fuzz.driver import ROOT
from tests.fuzz.kinds import MODULES
from tests.fuzz.planted import WANTED

CASES = {
    "operators": 150 if FULL else 50,
    "graphs": 5 if FULL else 3,
    "te": 12,
    "files": 150 if FULL else 50,
    "metamorphic": 3,
    "faults": 7 if FULL else 4,  # each has another of seven ways to fail
    "concurrent": 1,
    "cycles": 1,
}
SLOW = {"cycles", "concurrent"}


def fuzz(folder, *options):
    command = [sys.executable, "-m", "tests.fuzz", "--jobs", "1", "--folder", str(folder), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, f"{done.stdout[-8000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in MODULES])
def test_nothing_is_found(kind, tmp_path):
    code, text = fuzz(tmp_path, "--kinds", kind, "--minutes", 20, "--cases", CASES[kind])
    assert code == 0 and "no findings" in text, text


def test_what_is_planted_is_found_made_small_and_kept(tmp_path):
    """Guard pages, gaps, time limits, exceptions; a run goes on where the last ended; a case runs again by number."""
    code, text = fuzz(tmp_path, "--kinds", "planted", "--cases", 5)
    assert code == 1 and "planted" in text, text
    code, text = fuzz(tmp_path, "--kinds", "planted", "--cases", 5)
    row = next(line for line in reversed(text.splitlines()) if line.startswith("planted  "))
    assert row.split()[1:9] == [str(len(WANTED)), "2", "1", "1", "2", "1", "2", "1"], text
    assert code == 1 and "parts (3,)" in text, text
    code, text = fuzz(tmp_path, "--kind", "planted", "--seed", 5)
    assert code == 1 and "parts (3,)" in text and "fault: SIGSEGV" in text, text
