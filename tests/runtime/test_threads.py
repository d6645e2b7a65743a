"""How many threads: affinity, cgroups, the environment, and what the program says."""

from __future__ import annotations

import os

import pytest

from weft.core.errors import ArgumentError, WeftError
from weft.core.knobs import knobs
from weft.runtime.threads import available_cores, cgroup_quota, check_threads, default_threads, get_threads, set_threads


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("WEFT_NUM_THREADS", raising=False)
    knobs.reset("num_threads")
    yield
    knobs.reset("num_threads")


def test_the_default_is_the_cores_we_may_use():
    assert 1 <= default_threads() == get_threads() == available_cores() <= len(os.sched_getaffinity(0))


def test_the_environment_overrides(monkeypatch):
    monkeypatch.setenv("WEFT_NUM_THREADS", "7")
    assert default_threads() == get_threads() == 7
    monkeypatch.setenv("WEFT_NUM_THREADS", "auto")
    assert default_threads() == get_threads() == available_cores()


@pytest.mark.parametrize("junk", ["0", "-1", "many", "2.5", "99999999999"])
def test_junk_in_the_environment(monkeypatch, junk):
    monkeypatch.setenv("WEFT_NUM_THREADS", junk)
    for read in (default_threads, get_threads):
        with pytest.raises(WeftError, match="WEFT_NUM_THREADS"):
            read()


def test_the_program_chooses():
    set_threads(3)
    assert get_threads() == 3
    with knobs.override(num_threads=5):
        assert get_threads() == 5
    set_threads(None)
    assert get_threads() == available_cores()


@pytest.mark.parametrize("junk", [0, -2, 1.5, "two", True])
def test_the_program_chooses_junk(junk):
    with pytest.raises(WeftError, match="num_threads"):
        set_threads(junk)


@pytest.mark.parametrize("junk", [0, -2, 1.5, "two", True, 2**40])
def test_junk_for_one_call(junk):
    with pytest.raises(ArgumentError, match="threads"):
        check_threads(junk)


def files(root, contents):
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "contents", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "500000 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/not/here\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "gibberish"}, None),
        ("0::/\n", {}, None),
        (
            "3:cpu,cpuacct:/docker/x\n",
            {"cpu/docker/x/cpu.cfs_quota_us": "250000\n", "cpu/docker/x/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("2:cpuset:/\n9:name=systemd:/\n", {"cpu/cpu.cfs_quota_us": "1\n", "cpu/cpu.cfs_period_us": "1\n"}, None),
        ("rubbish\n", {}, None),
    ],
)
def test_cgroup_quota(tmp_path, membership, contents, expected):
    (tmp_path / "membership").write_text(membership)
    files(tmp_path / "mount", contents)
    assert cgroup_quota(tmp_path / "membership", tmp_path / "mount") == expected


def test_no_cgroups_at_all(tmp_path):
    assert cgroup_quota(tmp_path / "absent", tmp_path / "absent") is None
