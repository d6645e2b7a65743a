"""Which processors share what, from tables as Linux writes them."""

from __future__ import annotations

import pytest

from weft.core.errors import ArgumentError
from weft.runtime import threads, topology
from weft.runtime.topology import cores, parse_list, places, processors, usable_processors


@pytest.fixture
def machine(tmp_path):
    """Two nodes of two cores with two hardware threads each, numbered as Intel's are: 0-3 first, 4-7 their siblings."""
    for number in range(8):
        core, node = number % 4, number % 4 // 2
        folder = tmp_path / f"cpu/cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/thread_siblings_list").write_text(f"{core},{core + 4}\n")
        for index, (level, shared) in enumerate([(1, f"{core},{core + 4}"), (3, f"{2 * node}-{2 * node + 1}")]):
            (folder / f"cache/index{index}").mkdir(parents=True)
            (folder / f"cache/index{index}/level").write_text(f"{level}\n")
            (folder / f"cache/index{index}/shared_cpu_list").write_text(f"{shared}\n")
    for node in range(2):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}\n")
    return tmp_path


def test_each_core_comes_once_before_its_second_thread(machine):
    assert [one.number for one in processors(range(8), machine)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [one.number for one in processors([7, 3, 1, 5], machine)] == [1, 3, 5, 7]
    assert [(one.node, one.cache, one.sibling) for one in processors([2, 6], machine)] == [(1, 2, 0), (1, 2, 1)]


def test_hardware_threads_of_a_core_count_once(machine):
    assert cores(range(8), machine) == 4
    assert cores([1, 5], machine) == 1
    assert cores([5], machine) == 1


def test_nothing_is_told(tmp_path):
    assert cores(range(6), tmp_path) == 6
    assert [one.number for one in processors([3, 1], tmp_path)] == [1, 3]


@pytest.mark.parametrize(
    ("text", "expected"), [("0-3,8", [0, 1, 2, 3, 8]), ("5\n", [5]), ("", []), ("1-", []), ("a", []), ("1,,2", [])]
)
def test_lists(text, expected):
    assert parse_list(text) == expected


def test_the_default_is_cut_to_cores_and_quota(monkeypatch):
    for found, quota, expected in ((4, None, 4), (4, 3, 3), (2, 8, 2), (1, 1, 1)):
        monkeypatch.setattr(threads, "_available", None)
        monkeypatch.setattr(threads, "cores", lambda found=found: found)
        monkeypatch.setattr(threads, "cgroup_quota", lambda quota=quota: quota)
        assert threads.available_cores() == expected


def test_places(monkeypatch):
    monkeypatch.setattr(topology, "usable_processors", lambda: [0, 2, 4])
    assert places("no") == [] and places("2,4") == [2, 4] and sorted(places("cores")) == [0, 2, 4]
    with pytest.raises(ArgumentError, match="processor 3: this process may use 0, 2, 4"):
        places("2-3")


def test_this_machine():
    assert 1 <= cores() <= len(usable_processors())
