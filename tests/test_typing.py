"""What type checkers, editors and `help` see of `import weft`, though its modules load when they are first used."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import numpy as np
import weft
from weft import te

m = weft.compile("model.onnx", threads=2)
A = te.placeholder((8,), name="A")
s = te.create_schedule(A.op)
reveal_type(m)
reveal_type(weft.load("model.weft"))
reveal_type(weft.build(s, [A]))
reveal_type(weft.build(s, [A], "cuda"))
reveal_type(s)
reveal_type(weft.lower(s))
reveal_type(m.profile(np.ones(3)))
reveal_type(m.get_inputs()[0].name)
reveal_type(weft.models.make("resnet18"))
def use(given: weft.Module) -> int | None:
    return given.threads
weft.complie("model.onnx")
weft.compile("model.onnx", batch=3)
"""
REVEALED = [
    "weft.runtime.model.module.Module", "weft.runtime.model.module.Module", "weft.builder.BuiltFunction",
    "weft.builder.BuiltFunction | weft.builder.DeviceFunction | weft.builder.Built | weft.builder.DeviceBuilt",
    "weft.schedule.schedule.Schedule", "weft.loop.ir.Func", "Any", "str",
    "weft.graph.ir.Graph",
]  # fmt: skip


@pytest.mark.slow
def test_a_users_script_is_checked(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT)
    # Weft lies on the path here instead of being installed: its own imports are no matter of the script.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert [name.replace("builtins.", "") for name in found] == REVEALED, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2 and 'no attribute "complie"' in errors[0] and '"batch"' in errors[1], done.stdout


def test_type_checkers_see_what_is_loaded_later():
    tree = ast.parse((ROOT / "weft" / "__init__.py").read_text(encoding="utf-8"))
    checking = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {}
    for statement in checking.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            seen[alias.asname or alias.name] = statement.module
    loaded = {name: (where if what else where.rpartition(".")[0]) for name, (where, what) in weft._LAZY.items()}
    assert seen == loaded
    assert set(weft.__all__) == {*weft._LAZY, "WeftError", "__version__"}


def test_every_name_is_there_and_listed():
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    public = [name for name in dir(weft) if not name.startswith("_")]
    assert public == sorted(set(weft.__all__) - {"__version__"})
    with pytest.raises(AttributeError, match="no attribute 'complie'") as caught:
        weft.complie  # noqa: B018
    assert caught.value.name == "complie" and caught.value.obj is weft  # whence Python asks: did you mean 'compile'?


@pytest.mark.parametrize("name", ["compile", "load", "build", "lower"])
def test_functions_say_what_they_give(name):
    function = getattr(weft, name)
    assert inspect.isfunction(function) and inspect.getdoc(function)
    signature = inspect.signature(function)
    assert signature.return_annotation not in ("Any", inspect.Signature.empty)
    assert not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def test_build_stays_a_function_whatever_is_imported():
    code = "import weft.builder, weft.compiler, weft; assert type(weft.build).__name__ == 'function', weft.build"
    subprocess.run([sys.executable, "-c", code], check=True)
