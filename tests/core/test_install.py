"""The name to install, and another project of the import name among our files."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weft.core.install import DISTRIBUTION, FOLDER, MEND, SUMMARY, clashes, hint, hint_for

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "weft", "docs", "benchmarks", "tests"]
# A command or requirement that names PyPI's other project: pip install weft, weft[onnx], 'weft'>=1.
OLD_NAME = re.compile(r"(pip install (-\S+ )*['\"]?weft(?![-\w/])|(?<![-\w/.])weft\[[a-z]|name = \"weft\")")


def metadata(folder, name, version, summary):
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n")


def test_hints_name_the_distribution():
    assert hint() == "pip install weft-compiler" and hint("onnx") == "pip install 'weft-compiler[onnx]'"
    assert hint_for("pyopencl") == hint("opencl") and hint_for("onnxruntime") == "pip install onnxruntime"


def test_no_text_tells_people_to_install_the_other_project():
    files = [path for name in TEXTS for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in (".md", ".py", ".toml") or path.name == "Makefile"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if OLD_NAME.search(line) and path != Path(__file__)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_old"),
    [
        ("pip install 'weft[onnx]'", True),
        ("pip install weft", True),
        ("pip install -U weft==1", True),
        ('all = ["weft[onnx,link]"]', True),
        ("pip install 'weft-compiler[onnx]'", False),
        ("pip install dist/weft_compiler-*.whl", False),
        ("pip uninstall weft", False),
    ],
)
def test_the_search_for_old_hints_finds_them(text, is_old):
    assert bool(OLD_NAME.search(text)) == is_old


def test_another_project_in_our_folder_is_found(tmp_path):
    assert clashes(tmp_path) == [] and clashes(tmp_path / "missing") == []
    metadata(tmp_path, "weft_compiler", "0.2.0", SUMMARY)
    metadata(tmp_path, "wefty", "1.0", "no relation")
    assert clashes(tmp_path) == []
    metadata(tmp_path, "weft", "0.9.118", "The durable task substrate for agent systems")
    (found,) = clashes(tmp_path)
    assert not found.is_ours and "another project called weft (0.9.118: The durable task" in str(found)


def test_our_own_old_name_is_no_other_project(tmp_path):
    metadata(tmp_path, "weft", "0.1.0", SUMMARY + ": tensor expressions, schedules, loop IR, native code")
    (found,) = clashes(tmp_path)
    assert found.is_ours and "under its old name" in str(found)


def test_the_summary_by_which_we_know_ourselves_is_ours():
    assert f'description = "{SUMMARY}' in (ROOT / "pyproject.toml").read_text()
    assert f'name = "{DISTRIBUTION}"' in (ROOT / "pyproject.toml").read_text()


def python(folder, *words):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={
            "PYTHONPATH": str(folder),
            "PATH": "/usr/bin:/bin",
            "WEFT_CACHE_DIR": str(folder / "cache"),
        },
    )


def copy_package(folder):
    """Our package in a folder like site-packages; a link would show where it came from."""
    shutil.copytree(FOLDER / "weft", folder / "weft", ignore=shutil.ignore_patterns("__pycache__"))


def test_import_and_doctor_say_that_another_project_lies_there(tmp_path):
    copy_package(tmp_path)
    done = python(tmp_path, "-c", "import weft")
    assert done.returncode == 0 and done.stderr == "", "no metadata at all, as with PYTHONPATH: nothing to say"
    metadata(tmp_path, "weft", "0.9.118", "The durable task substrate for agent systems")
    done = python(tmp_path, "-c", "import weft; print(weft.__version__)")
    assert done.returncode == 0 and "another project called weft (0.9.118" in done.stderr and MEND in done.stderr
    done = python(tmp_path, "-m", "weft", "doctor")
    assert done.returncode == 1 and "✗  weft's name" in done.stdout and "pip uninstall weft" in done.stdout

    # Theirs was installed last: `import weft` is theirs, and our command says so instead of failing anywhere.
    (tmp_path / "weft" / "__init__.py").write_text('__version__ = "0.9.118"\n')
    done = python(tmp_path, "-c", "import sys; from weft.cli.main import main; sys.exit(main(['doctor']))")
    assert done.returncode == 1 and "is not that of weft-compiler" in done.stderr and MEND in done.stderr
    assert "Traceback" not in done.stderr
