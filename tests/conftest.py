"""What every test runs under: Hypothesis profiles, no settings of the user's own, a cache of its own, no background.

`WEFT_TEST_FULL=1` (set by `make test-full`) chooses the profile "full": many more random examples, new ones each time.
A test that needs a number of its own says `@settings(max_examples=...)`, and may ask `FULL` below.
"""

import gc
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("WEFT_TEST_FULL", "") not in ("", "0")

# Compiling takes milliseconds on a quiet machine and far longer on a busy one: no deadlines, no complaint of slowness.
settings.register_profile(
    "quick",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "full",
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("full" if FULL else "quick")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """No collector looks at what collecting makes: nearly all of it stays to the end, modules and cases of others."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A test that is marked thin(n) is quick where the places of its parameters add up to a multiple of n.

    That is a Latin square: every value of each parameter still stands in some combination.
    """
    met = Counter()
    for item in items:
        thin = item.get_closest_marker("thin")
        if thin is not None:
            function = (item.path, item.originalname)
            if places(met[function], [len(mark.args[1]) for mark in item.iter_markers("parametrize")]) % thin.args[0]:
                item.add_marker(pytest.mark.slow)
            met[function] += 1


def places(number, sizes):
    """The places of the parameters of a combination, added up; the last ones turn quickest."""
    total = 0
    for size in reversed(sizes):
        number, place = divmod(number, size)
        total += place
    return total


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory):
    """Tests see no WEFT_ variable of the user's, and keep compiled code in a folder of their own."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WEFT_")}
    os.environ["WEFT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["WEFT_SIZES"] = "first"  # nothing is compiled beside a test
    yield
    del os.environ["WEFT_CACHE_DIR"], os.environ["WEFT_SIZES"]
    os.environ.update(saved)
