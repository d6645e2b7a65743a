"""What a process goes without while it compiles, and gets back."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from weft.compiler.cache.files import compile_file
from weft.core import model
from weft.core.knobs import knobs
from weft.runtime.compiling import compiling


def test_everything_is_as_before_after_the_last_compile():
    before = gc.get_threshold()
    with compiling():
        with compiling():
            assert gc.get_threshold() == (model.COLLECTED_OBJECTS, *before[1:])
        assert gc.get_threshold() == (model.COLLECTED_OBJECTS, *before[1:])
    assert gc.get_threshold() == before


def test_reading_a_model_is_a_part_of_its_compile(tmp_path):
    pytest.importorskip("onnx")
    from tests.cli.tiny import write_tiny
    from weft.frontends.onnx import load

    def read(path):
        seen.append(gc.get_threshold()[0])
        return load(path)

    seen: list[int] = []
    write_tiny(tmp_path / "tiny.onnx")
    with knobs.override(cache=False):
        compile_file(tmp_path / "tiny.onnx", read, "native", None, None, None)
    assert seen == [model.COLLECTED_OBJECTS]


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and /proc")
def test_a_fork_while_compiling_starts_no_thread_of_numpy_again():
    """OpenBLAS ends its threads at a fork; saying how many it may have, by its function, starts them: each then waits
    busily for a part of a second."""
    code = """
import os
import numpy as np
from weft.runtime.compiling import _blas, compiling

def threads():
    return len(os.listdir("/proc/self/task"))

if _blas() is not None and _blas().value > 1:
    before, several = threads(), _blas().value
    with compiling():
        assert _blas().value == 1
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        left = threads()
    assert left < before and threads() == left, (before, left, threads())
    assert _blas().value == several
    np.ones((600, 600)) @ np.ones((600, 600))
    assert threads() == before, "numpy has its threads where it wants them"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
