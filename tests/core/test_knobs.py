"""The settings: where a value comes from, what is accepted, and what junk is told."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from weft.core import log
from weft.core.errors import WeftError
from weft.core.knobs import KNOBS, Knob, KnobError, Knobs, unknown_variables


@pytest.fixture
def knobs(monkeypatch):
    for knob in KNOBS.values():
        monkeypatch.delenv(knob.variable, raising=False)
    return Knobs()


def test_defaults(knobs):
    assert knobs.num_threads is None
    assert knobs.debug == 0
    assert knobs.verify is False
    assert knobs.cache_dir.is_absolute() and "weft" in str(knobs.cache_dir)


def test_innermost_wins(knobs, monkeypatch):
    monkeypatch.setenv("WEFT_NUM_THREADS", "2")
    assert knobs.num_threads == 2
    knobs.set("num_threads", 3)
    assert knobs.num_threads == 3
    with knobs.override(num_threads=4):
        assert knobs.num_threads == 4
        with knobs.override(num_threads=None, debug=1):
            assert knobs.num_threads is None and knobs.debug == 1
        assert knobs.num_threads == 4 and knobs.debug == 0
    knobs.reset("num_threads")
    assert knobs.num_threads == 2


def test_override_ends_when_the_block_raises(knobs):
    with pytest.raises(ZeroDivisionError), knobs.override(debug=2):
        raise ZeroDivisionError
    assert knobs.debug == 0


def test_override_is_local_to_its_thread(knobs):
    seen = []
    with knobs.override(debug=2):
        thread = threading.Thread(target=lambda: seen.append(knobs.debug))
        thread.start()
        thread.join()
    assert seen == [0]


def test_assignment_is_checked_like_set(knobs):
    knobs.num_threads = np.int32(4)
    assert knobs.num_threads == 4 and type(knobs.num_threads) is int
    with pytest.raises(KnobError, match="WEFT_NUM_THREADS accepts"):
        knobs.num_threads = 0
    with pytest.raises(KnobError, match="no setting 'threads'"):
        knobs.threads = 4


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("WEFT_NUM_THREADS", "auto", None),
        ("WEFT_NUM_THREADS", "", None),
        ("WEFT_NUM_THREADS", " 7 ", 7),
        ("WEFT_DEBUG", "2", 2),
        ("WEFT_VERIFY", "ON", True),
        ("WEFT_VERIFY", "0", False),
        ("WEFT_CACHE_DIR", "~/x", Path.home() / "x"),
    ],
)
def test_text_from_the_environment(knobs, monkeypatch, variable, text, value):
    monkeypatch.setenv(variable, text)
    assert getattr(knobs, variable[5:].lower()) == value


@pytest.mark.parametrize(
    ("variable", "junk"),
    [
        ("WEFT_NUM_THREADS", "many"),
        ("WEFT_NUM_THREADS", "0"),
        ("WEFT_NUM_THREADS", "-1"),
        ("WEFT_NUM_THREADS", "2.5"),
        ("WEFT_NUM_THREADS", "9" * 30),
        ("WEFT_DEBUG", "3"),
        ("WEFT_DEBUG", ""),
        ("WEFT_VERIFY", "maybe"),
        ("WEFT_CACHE_DIR", "  "),
    ],
)
def test_junk_in_the_environment_names_the_variable(knobs, monkeypatch, variable, junk):
    monkeypatch.setenv(variable, junk)
    with pytest.raises(WeftError, match=f"environment variable {variable} is .* accepts"):
        getattr(knobs, variable[5:].lower())


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("num_threads", 2.0),
        ("num_threads", True),
        ("debug", None),
        ("debug", [1]),
        ("verify", 2),
        ("cache_dir", 7),
        ("cache_dir", "a\0b"),
        ("cache_dir", "~nobody-of-this-name/cache"),
    ],
)
def test_junk_from_python_is_refused_and_changes_nothing(knobs, name, junk):
    before = getattr(knobs, name)
    with pytest.raises(KnobError, match=f"{KNOBS[name].variable} accepts"):
        knobs.set(name, junk)
    with pytest.raises(KnobError, match=f"{KNOBS[name].variable} accepts"), knobs.override(**{name: junk}):
        pass
    assert getattr(knobs, name) == before


@pytest.mark.parametrize("name", ["forms_megabytes", "tensor_megabytes"])
def test_a_refused_zero_says_where_numbers_begin(knobs, name):
    with pytest.raises(KnobError, match="is 0, but .* accepts a whole number of megabytes from 1 up"):
        knobs.set(name, 0)


def test_unknown_names_list_the_known(knobs):
    for use in (
        lambda: knobs.set("speed", 1),
        lambda: knobs.reset("speed"),
        lambda: knobs.override(speed=1).__enter__(),
    ):
        known = "num_threads, pin_threads, thread_priority, cache_dir, cache, cache_megabytes, debug, verify, fuse"
        with pytest.raises(KnobError, match=f"no setting 'speed'; there are {known}"):
            use()


def test_describe_says_who_chose(knobs, monkeypatch):
    monkeypatch.setenv("WEFT_DEBUG", "1")
    knobs.set("num_threads", 2)
    with knobs.override(verify=True):
        sources = {state.variable: (state.value, state.source) for state in knobs.describe()}
    assert sources["WEFT_DEBUG"] == (1, "environment")
    assert sources["WEFT_NUM_THREADS"] == (2, "set")
    assert sources["WEFT_VERIFY"] == (True, "override")
    assert sources["WEFT_CACHE_DIR"][1] == "default"


def test_reading_the_class_gives_the_knob():
    assert isinstance(Knobs.debug, Knob) and Knobs.debug.variable == "WEFT_DEBUG"


# The setting `debug` prints the log.


def test_debug_prints_the_log_while_it_is_on(knobs, capsys):
    logger = logging.getLogger("weft.here")
    logger.debug("before")
    with knobs.override(debug=1):
        logger.debug("inside")
        logger.log(log.PROGRAM, "a program")
        knobs.set("debug", 2)  # the innermost wins: this one shows once the block has ended
    logger.log(log.PROGRAM, "the second")
    knobs.reset("debug")
    logger.debug("after")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["inside", "the second"]
    assert "ms weft.here" in lines[0] and logging.getLogger("weft").level == logging.NOTSET


def run(program, **environment):
    kept = {name: text for name, text in os.environ.items() if not name.startswith("WEFT_")}
    kept = {**kept, "WEFT_CACHE": "0", **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=kept)
    assert done.returncode == 0, done.stderr
    return done.stderr


BUILD = """
import weft
from weft import te
a = te.placeholder((8,), name="a")
b = te.compute((8,), lambda i: a[i] + 1.0, name="b")
weft.build(te.create_schedule(b.op), [a, b])
"""


def test_the_environment_prints_the_log_and_programs_and_strangers_are_warned_of():
    said = run(BUILD + "weft.knobs.verify", WEFT_DEBUG="2", WEFT_NUMTHREADS="2")
    assert "weft.build: built" in said and "func " in said
    assert said.count("WEFT_NUMTHREADS is no setting of Weft (did you mean 'WEFT_NUM_THREADS'?)") == 1


def test_junk_in_weft_debug_is_said_and_stops_nothing():
    assert "WEFT_DEBUG is 'yes', but WEFT_DEBUG accepts 0 (nothing)" in run("import weft", WEFT_DEBUG="yes")


# A variable that is no setting.


def test_a_variable_that_is_no_setting_is_found(monkeypatch):
    monkeypatch.setenv("WEFT_DEBUGG", "1")
    monkeypatch.setenv("WEFT_TEST_FULL", "1")
    monkeypatch.setenv("WEFT_SPEED", "high")
    found = unknown_variables()
    assert found["WEFT_DEBUGG"] == "WEFT_DEBUGG is no setting of Weft (did you mean 'WEFT_DEBUG'?)"
    assert set(found) == {"WEFT_DEBUGG", "WEFT_SPEED"}
