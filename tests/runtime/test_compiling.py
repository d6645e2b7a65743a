"""What a process goes without while it compiles, and gets back."""

from __future__ import annotations

import gc

from weft.core import model
from weft.runtime.compiling import compiling


def test_everything_is_as_before_after_the_last_compile():
    before = gc.get_threshold()
    with compiling():
        with compiling():
            assert gc.get_threshold() == (model.COLLECTED_OBJECTS, *before[1:])
        assert gc.get_threshold() == (model.COLLECTED_OBJECTS, *before[1:])
    assert gc.get_threshold() == before
