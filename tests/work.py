"""Work, counted: the same on every machine, however busy it is."""

import sys


def calls_of(work, also_native: bool = False) -> int:
    """How many Python functions some work calls (and functions written in C, with `also_native`).

    Later versions of Python call fewer: they make lists without a function of their own.
    """
    count = 0
    events = ("call", "c_call") if also_native else ("call",)

    def called(frame, event, argument):
        nonlocal count
        count += event in events

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
