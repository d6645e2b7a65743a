"""A kind whose cases do what the driver must notice, by their number: it shows that the nets catch something."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from tests.fuzz import guard
from tests.fuzz.driver import peer
from tests.fuzz.kinds import OK, Case, Kind, Result, refused
from weft.core.errors import WeftError

WANTED = ("ok", "refused", "wrong", "raw exception", "fault", "fault", "wrong", "hang", "explained")
"""What becomes of case 0, 1, …"""


def run(case: Case) -> Result:
    """What the number says, if the part that makes it so is still there."""
    if case.seed >= 2 and 3 not in case.parts:
        return OK
    array = guard.empty(10, np.float32)
    if case.seed == 1:
        return refused(WeftError("planted"))
    if case.seed == 2:
        raise AssertionError("planted")
    if case.seed == 3:
        raise KeyError("planted")
    if case.seed == 4:
        ctypes.memset(array.ctypes.data + array.nbytes, 0, 1)
    if case.seed == 5:
        with guard.placed(at_end=False, fill=0):
            ctypes.string_at(guard.empty(10, np.float32).ctypes.data - 1, 1)
    if case.seed == 6:
        ctypes.memset(array.ctypes.data - 1, 0, 1)
        guard.check()
    if case.seed == 7:
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
    if case.seed == 8:
        with peer():
            ctypes.string_at(0)
    return OK


KIND = Kind("planted", lambda seed: Case(seed, tuple(range(8))), run, lambda case: f"parts {case.parts}", seconds=1)
