"""What a profile says of launches on a device: how they lie on it, and what they wait for."""

from __future__ import annotations

import pytest

from weft.compiler.reports.cost import Cost
from weft.compiler.reports.profile import Profile
from weft.compiler.reports.recorder import KernelProfile
from weft.targets.base import Residence
from weft.targets.peaks import Peaks


def profile(seconds, cost, *launches):
    """A profile of one kernel on a machine like an H200."""
    kernel = KernelProfile(0, "k", "kernel", ("a",), cost, [seconds], list(launches))
    peaks = Peaks(1, {"float32": 6e4, "float16": 9e5}, 4200.0)
    return Profile("m", "cuda", 1, [kernel], [1e-3], [1e-5], peaks, 0, 0, [])


def launch(blocks, threads, resident):
    return Residence(blocks, threads, 64, 1024, resident, 132, 2048)


@pytest.mark.parametrize(("seconds", "cost", "launches", "wanted"), [
    (10e-6, Cost(10**6, 35_000_000, "float32"), [launch(1000, 256, 4)], "memory"),
    (50e-6, Cost(4 * 10**10, 10**6, "float16"), [launch(264, 256, 2)], "arithmetic"),
    (2e-6, Cost(0, 100, "float32"), [launch(1, 32, 16)], "its launch"),
    (50e-6, Cost(10**9, 10**6, "float16"), [launch(24, 512, 2)], "few blocks"),
    (50e-6, Cost(10**9, 10**6, "float16"), [launch(140, 512, 1)], "its last wave"),
    (50e-6, Cost(10**9, 10**6, "float16"), [launch(132, 128, 1)], "few threads"),
    (50e-6, Cost(10**9, 10**6, "float16"), [launch(1320, 512, 4)], "latency"),
    (50e-6, Cost(10**9, 10**6, "float16"), [], ""),
])  # fmt: skip
def test_what_a_kernel_waits_for(seconds, cost, launches, wanted):
    made = profile(seconds, cost, *launches)
    assert made.waits_for(made.kernels[0]) == wanted
    assert ("waves" in repr(made)) == bool(launches)
    assert made.as_json()["kernels"][0]["waits_for"] == wanted


def test_waves_and_threads():
    one = launch(660, 256, 4)
    assert one.waves == 1.25 and one.occupancy == 0.5
    assert launch(66, 256, 4).occupancy == 0.0625
