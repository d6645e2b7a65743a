"""Faults at every call, as SQLite's tests do it: the first call fails, then the second, until none is left to fail.

allocation   the n-th `weft_allocate` of a run finds no memory: a RuntimeFault, and the next run is right
file         the n-th operation on files fails (audit events: open, rename, mkdir, mmap, …), or writing stops at a size
kill         the process ends at the n-th operation on files; another one then finds everything in order

Files are those of the cache and of `Module.save`. Never a wrong answer, never a folder that stays broken, never half a
module file; an error, if any, is a WeftError or an OSError.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
from tests.fuzz import graphs, guard
from tests.fuzz.kinds import OK, Case, Kind, Result, chance_of
from weft import te
from weft.core.errors import RuntimeFault, WeftError
from weft.core.knobs import knobs
from weft.frontends.onnx import load
from weft.graph.ir import Graph

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.utime", "os.listdir", "os.scandir", "os.link",
          "os.truncate", "mmap.__new__", "tempfile.mkstemp", "shutil.move"}  # fmt: skip
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE)
MOST = 200
_plan: dict[str, Any] = {"folder": "", "count": 0, "at": 0, "code": None}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _plan["folder"] or event not in EVENTS:
        return
    if event != "mmap.__new__" and not any(str(one).startswith(_plan["folder"]) for one in arguments[:2]):
        return
    _plan["count"] += 1
    if _plan["count"] == _plan["at"]:
        if _plan["code"] is None:
            os._exit(77)
        raise OSError(_plan["code"], f"{os.strerror(_plan['code'])} (made by the fuzzer)")


def with_fault(folder: Path, at: int, code: int | None, act: Callable[[], Any]) -> tuple[bool, Any]:
    """Acts, with the n-th operation on files in the folder failing; whether it failed, and what came of it."""
    _plan.update(folder=str(folder), count=0, at=at, code=code)
    try:
        return False, act()
    except (WeftError, OSError) as error:
        return True, error
    finally:
        _plan["folder"] = ""


def make(seed: int) -> Case:
    """The case of a number."""
    chance = chance_of("faults", seed)
    what = ("allocation", "cache", "save", "cache kill", "save kill", "cache size", "save size")[seed % 7]
    case = graphs.make(20_000_000 + chance.getrandbits(20))
    return Case(
        case.seed,
        case.parts[:6],
        {"what": what, "label": what, "code": chance.choice(CODES), "chance": chance.getrandbits(32)},
    )


def show(case: Case) -> str:
    """The graph, and what fails."""
    return f"{case.more}\n{graphs.show(case)}"


def run(case: Case) -> Result:
    """Lets every call fail in turn."""
    what = case.more["what"]
    if what == "allocation":
        return _allocation(case)
    model, g = graphs.build(case)
    graph = load(model.SerializeToString())
    from weft.core import model

    model.FORM_KEPT_SECONDS = 0.0  # type: ignore[misc]
    with knobs.override(cache=False):
        want = list(weft.compile(graph).run(None, g.feeds))
    scenario = _Cache(graph, g.feeds, want) if what.startswith("cache") else _Save(graph, g.feeds, want)
    code = None if what.endswith("kill") else case.more["code"]
    for at in range(1, MOST):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder).resolve()
            scenario.prepare(place)
            if what.endswith("size"):
                reached = _with_size(scenario, place, 1 << at)
            elif code is None:
                reached = _killed(scenario, place, at)
            else:
                failed, _ = with_fault(place, at, code, lambda place=place: scenario.act(place))
                reached = _plan["count"] >= at
            scenario.check(place)
            if not reached:
                return OK
    return OK


def _with_size(scenario: Any, place: Path, size: int) -> bool:
    """Acts while no file may be longer; whether that can have mattered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        scenario.act(place)
    except (WeftError, OSError):
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return size < 1 << 22


def _killed(scenario: Any, place: Path, at: int) -> bool:
    """Acts in a child that ends at the n-th operation; whether there was one."""
    child = os.fork()
    if not child:
        try:
            with_fault(place, at, None, lambda: scenario.act(place))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 77


def _same(got: list[Any], want: list[Any], what: str) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.tobytes() == theirs.tobytes(), f"{what}: another answer after a fault"


class _Cache:
    """Compiling with a cache: the answer is right during and after."""

    def __init__(self, graph: Graph, feeds: dict[str, Any], want: list[Any]) -> None:
        self.graph, self.feeds, self.want = graph, feeds, want

    def prepare(self, place: Path) -> None:
        """An empty folder is a start."""

    def act(self, place: Path) -> None:
        """Compiles twice: a miss and, if nothing fails, a hit. A cache that fails is no reason to fail."""
        for _ in range(2):
            with knobs.override(cache=True, cache_dir=place):
                _same(weft.compile(self.graph).run(None, self.feeds), self.want, "cache")

    def check(self, place: Path) -> None:
        """All is well afterwards, and the cache was used at all."""
        self.act(place)
        assert list((place / "models").glob("*.weft")), "nothing was kept: the check checks nothing"


class _Save:
    """Saving over an older file: the old one or the new one is there, whole."""

    def __init__(self, graph: Graph, feeds: dict[str, Any], want: list[Any]) -> None:
        self.feeds, self.want = feeds, want
        with knobs.override(cache=False):
            self.module = weft.compile(graph)
            self.module.run(None, feeds)
        self.folder = tempfile.TemporaryDirectory()
        self.old = Path(self.folder.name) / "old.weft"
        self.module.save(self.old)

    def prepare(self, place: Path) -> None:
        """The older file."""
        shutil.copy(self.old, place / "a.weft")

    def act(self, place: Path) -> None:
        """Saves and loads."""
        self.module.save(place / "a.weft")
        _same(weft.load(place / "a.weft").run(None, self.feeds), self.want, "saved")

    def check(self, place: Path) -> None:
        """What is there can be loaded."""
        _same(weft.load(place / "a.weft").run(None, self.feeds), self.want, "the file that was there")
        self.act(place)


# ----------------------------------------------------------------------------------------------------------- memory


def _allocation(case: Case) -> Result:
    """A function whose intermediates are too large for the stack: each of its allocations fails once."""
    chance = chance_of("allocation", case.more["chance"])
    n = chance.choice((40_000, 70_001, 100_003))
    A = te.placeholder((n,), name="A")
    value = A
    stages = chance.randint(1, 3)
    for number in range(stages):
        value = te.compute((n,), lambda i, value=value: value[n - 1 - i] + 1.0, name=f"B{number}")
    k = te.reduce_axis(n, name="k")
    C = te.compute((4,), lambda j, value=value: te.max(value[k] + te.cast(j, "float32"), axis=k), name="C")
    function = weft.build(te.create_schedule(C.op), [A, C])
    given = guard.place(np.arange(n, dtype=np.float32))
    want = float(n - 1 + stages) + np.arange(4, dtype=np.float32)
    for at in range(1, MOST):
        out = guard.empty(4, np.float32)
        with guard.failing_allocation(at) as calls:
            try:
                function(given, out)
                failed = False
            except RuntimeFault:
                failed = True
            reached = calls() >= at
        assert failed == reached, "an allocation that failed went unnoticed"
        if not failed:
            assert at > 1, "nothing was allocated: the check checks nothing"
            assert np.array_equal(out, want)
            return OK
        function(given, out)
        assert np.array_equal(out, want), "another answer after an allocation failed"
        guard.check()
    return OK


def setup() -> None:
    """What a worker does once."""
    guard.install()
    sys.addaudithook(_audit)


KIND = Kind("faults", make, run, show, setup, share=0.3, seconds=120)
