"""What every test runs under: Hypothesis profiles, no settings of the user's own, a cache of its own, no background.

`WEFT_TEST_FULL=1` (set by `make test-full`) chooses the profile "full": many more random examples, new ones each time.
A test that needs a number of its own says `@settings(max_examples=...)`, and may ask `FULL` below.
"""

import os

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


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory):
    """Tests see no WEFT_ variable of the user's, and keep compiled code in a folder of their own."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WEFT_")}
    os.environ["WEFT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["WEFT_SIZES"] = "first"  # nothing is compiled beside a test
    yield
    del os.environ["WEFT_CACHE_DIR"], os.environ["WEFT_SIZES"]
    os.environ.update(saved)
