"""`import weft` is quick, quiet, and needs the core's own packages only. Measured in fresh interpreters."""

import json
import subprocess
import sys

import pytest

SECONDS = 0.5
TRIES = 5
# What the core depends on, and what those bring along.
CORE = {"weft", "numpy", "ml_dtypes", "llvmlite", "rich", "platformdirs", "pygments", "markdown_it", "mdurl"}

PROGRAM = """
import sys, time, json
before = set(sys.modules)
start = time.perf_counter()
import weft
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def import_in_fresh_interpreter() -> dict:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "import weft is not quiet"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imports():
    return [import_in_fresh_interpreter() for _ in range(TRIES)]


def test_import_is_quick(imports):
    # The least of several: the others measure what else the machine was doing.
    assert min(one["seconds"] for one in imports) < SECONDS


def test_import_needs_only_the_core(imports):
    tops = {name.split(".")[0] for name in imports[0]["modules"]}
    foreign = {name for name in tops - CORE - set(sys.stdlib_module_names) if not name.startswith(("_", "cython"))}
    assert foreign == set(), f"import weft also loads {', '.join(sorted(foreign))}"
