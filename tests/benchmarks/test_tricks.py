"""Every trick decides something for the workload that it is measured by: one that no machine takes is seen here."""

import pytest

from benchmarks.tricks import TRICKS, without
from tests.goldens.choices import TARGETS, kernels_in
from weft.targets.registry import find_target

MACHINES = ("avx512_amx", "avx2", "neoverse")


def steps(trick, machine):
    chosen = kernels_in(trick.graph(), find_target(TARGETS[machine]))
    return [step.as_python() for one in chosen if not isinstance(one, str) for step in one.schedule.trace.steps]


@pytest.mark.slow
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_a_trick_changes_the_schedule_of_its_workload(trick):
    for machine in MACHINES:
        plain = steps(trick, machine)
        with without(trick):
            if steps(trick, machine) != plain:
                return
    pytest.fail(f"{trick.name}: nothing is decided by {trick.decides} on {', '.join(MACHINES)}")
