"""Mutated models never crash, hang or fill the memory: see fuzz.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def fuzz(seed, count):
    command = [sys.executable, "-m", "tests.frontends.onnx.fuzz", str(seed), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 + count)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_mutated_models():
    assert "refused" in fuzz(1, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 15))
def test_many_mutated_models(seed):
    assert "refused" in fuzz(seed, 500)
