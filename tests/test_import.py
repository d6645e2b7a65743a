"""`import weft` loads little, is quiet, and needs the core's own packages only: seen in a fresh interpreter."""

import json
import subprocess
import sys

import pytest

MODULES = 100
"""How many modules may come with `import weft`: about 60 of Python's own today, and few of Weft's."""
# What the core depends on, and what those bring along.
CORE = {"weft", "numpy", "ml_dtypes", "llvmlite", "rich", "platformdirs", "pygments", "markdown_it", "mdurl"}

PROGRAM = """
import sys
before = set(sys.modules)
import weft
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "import weft is not quiet"
    return json.loads(done.stdout)


def test_import_is_quick(loaded):
    assert len(loaded) < MODULES and not {"numpy", "llvmlite", "rich"} & set(loaded)


def test_import_needs_only_the_core(loaded):
    tops = {name.split(".")[0] for name in loaded}
    foreign = {name for name in tops - CORE - set(sys.stdlib_module_names) if not name.startswith(("_", "cython"))}
    assert foreign == set(), f"import weft also loads {', '.join(sorted(foreign))}"
