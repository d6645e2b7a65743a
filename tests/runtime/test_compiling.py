"""What a process goes without while it compiles, and gets back."""

from __future__ import annotations

import gc

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
