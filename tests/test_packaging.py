"""The wheel: everything of ours is in it and nothing else, and it works in an environment that has nothing of ours.

The environment is new and empty; the wheel is installed into it by pip. What Weft depends on is not downloaded again:
the folders that hold it here come after the new environment's own.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_docs import blocks_of
from weft.core.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
DEPENDENCIES = ("numpy", "ml_dtypes", "llvmlite", "rich", "platformdirs", "onnx")
SETUPTOOLS = 77  # as [build-system] in pyproject.toml asks for


def run(*words, cwd, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_sources(folder):
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "weft", folder / "weft", ignore=shutil.ignore_patterns("__pycache__", "*.so"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy so that nothing is left behind here."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip to build a wheel with")
    if int(importlib.metadata.version("setuptools").split(".")[0]) < SETUPTOOLS:
        pytest.skip(f"building a wheel needs setuptools {SETUPTOOLS}")
    folder = tmp_path_factory.mktemp("source")
    copy_sources(folder)
    run(sys.executable, *"-m pip wheel . --no-deps --no-build-isolation --no-index -q -w dist".split(), cwd=folder)
    (made,) = (folder / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment with the wheel in it: its folder of programs."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    assert not list(packages.glob("weft*"))
    words = "install --no-deps --no-index --no-compile -q".split()
    run(sys.executable, "-m", "pip", "--python", python, *words, wheel, cwd=folder)
    places = {Path(importlib.import_module(name).__file__).resolve().parents[1] for name in DEPENDENCIES}
    (packages / "dependencies.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    return python.parent


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert re.fullmatch(rf"weft_compiler-{re.escape(VERSION)}-py3-none-any\.whl", wheel.name)
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "weft").rglob("*.py")} | {"weft/py.typed"}
    data = (".html", ".css", ".js", ".mjs", ".c", ".json")
    ours |= {str(path.relative_to(ROOT)) for path in (ROOT / "weft").rglob("*") if path.suffix in data}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        information = f"weft_compiler-{VERSION}.dist-info"
        metadata = archive.read(f"{information}/METADATA").decode()
        programs = archive.read(f"{information}/entry_points.txt").decode()
    assert found == ours
    assert "\nName: weft-compiler\n" in metadata and f"\nVersion: {VERSION}\n" in metadata
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)) == {
        *("onnx", "torch", "jax", "keras", "cuda", "opencl", "link", "tune", "pool", "all", "hardware"),
        *("bench", "test", "dev", "native"),
    }
    assert "[torch_dynamo_backends]\nweft = weft.torch_backend:weft_backend" in programs
    assert "weft = weft.cli.main:main" in programs and "weft-compiler = weft.cli.main:main" in programs


FEW_LINES = """
import numpy as np
import weft
model = weft.compile("tiny.onnx")
print(model(np.ones((1, 4), "float32")).shape)
print("file:", weft.__file__)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a small model in it, far from this checkout."""
    pytest.importorskip("onnx")
    from tests.cli.tiny import write_tiny

    write_tiny(tmp_path / "tiny.onnx")
    return tmp_path


def test_the_package_runs_in_an_empty_environment(environment, folder):
    cache = str(folder / "cache")
    out = run(environment / "python", "-c", FEW_LINES, cwd=folder, WEFT_CACHE_DIR=cache)
    assert f"(1, 3)\nfile: {environment.parent}" in out, "the package that ran is the one that was installed"
    assert run(environment / "weft-compiler", "--version", cwd=folder).strip() == f"weft {VERSION}"
    ran = json.loads(run(environment / "weft", "run", "tiny.onnx", "--json", cwd=folder, WEFT_CACHE_DIR=cache))
    assert ran["outputs"]["y"]["shape"] == [1, 3]


@pytest.mark.slow
def test_the_readme_runs_in_an_empty_environment(environment, tmp_path):
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [block.text for block in blocks if block.language == "python" and block.not_run is None]
    assert "weft.compile" in "".join(lines)
    (tmp_path / "readme.py").write_text("\n".join(lines), encoding="utf-8")
    run(environment / "python", "readme.py", cwd=tmp_path, WEFT_CACHE_DIR=str(tmp_path / "cache"))


def test_the_doctor_of_an_empty_environment_ticks_nothing_that_is_not_there(environment, tmp_path):
    cache = str(tmp_path / "cache")
    made = json.loads(run(environment / "python", *"-m weft doctor --json".split(), cwd=tmp_path, WEFT_CACHE_DIR=cache))
    found = {one["what"]: one for one in made["findings"]}
    assert made["healthy"] and f"installed as weft-compiler {VERSION}" in found["weft"]["detail"]
    assert "weft's name" not in found
    program = "import importlib.metadata as m; print({d.metadata['Name'].lower() for d in m.distributions()})"
    there = run(environment / "python", "-c", program, cwd=tmp_path)
    for name, package in {"onnx": "onnx", "cuda": "nvidia-cuda-nvrtc", "opencl": "pyopencl", "link": "ziglang"}.items():
        assert (found[name]["state"] == "ok") == (f"'{package}'" in there), found[name]


KERNELS = """
import hashlib
import weft
from weft.expr import classes
kernels = weft.compile(weft.models.make("dqn")).specializations[0].lowered.kernels
print(classes.__file__.endswith(".py"), *[hashlib.sha256(kernel.object_code).hexdigest() for kernel in kernels])
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_native_core_compiles_the_same_kernels(tmp_path):
    pytest.importorskip("mypyc")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    copy_sources(tmp_path)
    words = (sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "WEFT_NATIVE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [
        run(sys.executable, "-c", KERNELS, cwd=place, PYTHONPATH=str(place), WEFT_CACHE="0").split()
        for place in (ROOT, tmp_path)
    ]
    assert (found[0][0], found[1][0]) == ("True", "False") and len(found[0]) > 5
    assert found[0][1:] == found[1][1:]
