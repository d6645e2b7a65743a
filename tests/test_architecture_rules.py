"""The rules of `test_architecture.py` find what they are for: small trees that break them."""

import pytest

from tests.test_architecture import (
    MOST_LINES_OF_FILE,
    MOST_LINES_OF_FUNCTION,
    Module,
    docstring_violations,
    habit_violations,
    import_cycles,
    layer_violations,
    number_violations,
    operator_sets,
    read_layers,
    read_package,
    size_violations,
    target_violations,
    total_violations,
)

TABLE = """
# A page
## Layers
```
0 core/       errors
1 runtime/    arrays
1 expr/       nodes
2 loop/       ir
3 schedule/   schedules
4 te/         tensors
5 codegen/    llvm
5 plan/       planner
6 targets/    cpu
7 build.py    all of it
```
## Next
9 nothing/
"""


@pytest.fixture
def tree(tmp_path):
    """A function that writes a fake package and reads it."""

    def write(files: dict[str, str]) -> dict[str, Module]:
        for name, text in files.items():
            path = tmp_path / "weft" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_package(tmp_path / "weft")

    return write


def test_the_table_is_read():
    layers = read_layers(TABLE)
    assert layers["core"] == 0 and layers["schedule"] == 3 and layers["build"] == 7 and "nothing" not in layers


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("core/a", "import weft.expr.b", "layer 0 may not import layer 1"),
        ("expr/a", "from weft.core import x\nfrom weft.loop import y", "weft.expr.a:2 imports weft.loop"),
        ("expr/a", "def f():\n    from weft.loop.ir import For", "weft.expr.a:2 imports weft.loop.ir"),
        ("expr/a", "if TYPE_CHECKING:\n    import weft.loop.ir", "layer 1 may not import layer 2"),
        ("expr/a", "from ..loop import ir", "weft.expr.a:1 imports weft.loop.ir"),
        ("expr/a", "from .. import loop", "layer 1 may not import layer 2"),
        ("expr/a", "import importlib\nimportlib.import_module('weft.loop.ir')", "layer 1 may not import layer 2"),
        ("expr/a", "import weft.runtime.array", "two parts of layer 1"),
        ("runtime/a", "import weft.expr.nodes", "two parts of layer 1"),
        ("loop/a", "import weft.runtime.array", "loop may import only core, expr"),
        ("schedule/a", "from weft.te import tensor", "layer 3 may not import layer 4"),
        ("codegen/a", "from weft.targets import base", "layer 5 may not import layer 6"),
        ("plan/a", "from weft.targets import base", "layer 5 may not import layer 6"),
        ("plan/a", "import weft.codegen.a", "two parts of layer 5"),
        ("te/a", "from weft.plan import planner", "layer 4 may not import layer 5"),
        ("targets/a", "from weft import build", "layer 6 may not import layer 7"),
        ("core/a", "import weft", "this is above everything"),
        ("build", "from weft import te, demo", "imports weft.demo: this is above everything"),
        ("misc/a", "", "'misc' is not in the layer table"),
        ("core/a", "import weft.misc.a", "layer table"),
    ],
)
def test_a_forbidden_import_is_found(tree, file, text, reason):
    modules = tree(
        {"loop/ir": "", "te/x": "", "plan/planner": "", "build": "", "demo": "", "targets/base": "", file: text}
    )
    violations = layer_violations(modules, read_layers(TABLE))
    assert len(violations) == 1 and reason in violations[0], violations


def test_allowed_imports_pass(tree):
    modules = tree(
        {
            "core/errors": "import os, numpy",
            "expr/nodes": "from weft.core.errors import WeftError\nfrom . import visit",
            "expr/visit": "",
            "loop/ir": "from weft.expr import nodes",
            "te/tensor": "from weft.loop.ir import For",
            "schedule/split": "from weft.loop.ir import For",
            "te/lower": "from weft.schedule import split",
            "codegen/llvm/emit": "import weft.loop.ir, weft.runtime.array",
            "runtime/array": "import weft.core.errors",
            "targets/registry": "from weft.targets.cpu import target",
            "plan/planner": "from weft.schedule import split",
            "targets/cpu/target": "from weft.codegen.llvm import emit\nfrom weft.plan import planner",
            "build": "from weft.targets import registry",
            "demo": "import weft",
            "__init__": "from weft import te",
        }
    )
    assert layer_violations(modules, read_layers(TABLE)) == []
    assert target_violations(modules) == []
    assert import_cycles(modules) == []


def test_a_target_named_outside_is_found(tree):
    modules = tree(
        {
            "targets/cpu/target": "",
            "targets/npu/target": "from weft.targets.cpu import target",
            "targets/npu/other": "from weft.targets.npu import target",
            "build": "def f():\n    import weft.targets.cpu.target",
        }
    )
    found = target_violations(modules)
    assert len(found) == 2, found
    assert "weft.build:2" in found[0] and "weft.targets.npu.target:1" in found[1]


def test_a_cycle_is_found(tree):
    modules = tree(
        {
            "expr/a": "import weft.expr.b",
            "expr/b": "if True:\n    from weft.expr import c",
            "expr/c": "from . import a",
            "expr/d": "import weft.expr.a",
            "loop/e": "import weft.loop.f",
            "loop/f": "if TYPE_CHECKING:\n    import weft.loop.e\ndef late():\n    import weft.loop.e",
            "runtime/model/g": "import weft.runtime.h",
            "runtime/h": "def late():\n    from weft.runtime.model import g",
        }
    )
    assert import_cycles(modules) == [
        "weft.expr.a -> weft.expr.b -> weft.expr.c -> weft.expr.a",
        "weft.runtime.h -> weft.runtime.model.g -> weft.runtime.h",
    ]


def test_sizes_are_measured(tree):
    long = "def f():\n" + "    x = 1\n" * (MOST_LINES_OF_FUNCTION - 1)
    fits = tree({"core/fits": long})
    assert size_violations(fits) == []
    modules = tree({"core/fits": "", "core/a": long + "    x = 2\n", "core/b": "\n" * (MOST_LINES_OF_FILE + 1)})
    first, second = size_violations(modules)
    assert "weft.core.a:1 f has 91 lines" in first and "weft.core.b has 701 lines" in second
    assert total_violations(modules, {"weft": 792}) == []
    assert "weft has 792 lines" in total_violations(modules, {"weft": 791})[0]
    assert total_violations(modules, {"weft": 91, "weft.core.b": 701}) == []
    (found,) = total_violations(modules, {"weft": 91, "weft.core.b": 700})
    assert "weft.core.b has 701 lines" in found


def test_bad_habits_are_found(tree):
    modules = tree(
        {
            "core/a": '"""a"""\ntry:\n    print(1)\nexcept:\n    pass\n',
            "demo": "print(1)",
            "cli/main": '"""b"""\nprint(1)',
        }
    )
    assert len(habit_violations(modules)) == 2
    assert docstring_violations(modules) == ["weft.demo has no docstring at its top"]


@pytest.mark.parametrize(
    "text",
    [
        'A = frozenset("Relu Exp".split())',
        "def f(n):\n    return n.op in ('Relu', 'Exp')",
        "def f(n):\n    return n.op == 'Relu' or n.op == 'Exp'",
        "A = {'Relu': (0, 1), 'Exp': (0,)}",
        "A = ['Relu', *B, 'Exp']",
        "A = {'Relu', 'Exp', 'Exp'}",
    ],
)
def test_a_set_of_operators_is_found(tree, text):
    modules = tree({"graph/passes/a": text, "ops/b": text})
    assert [(m.name, names) for m, _, names in operator_sets(modules, {"Relu", "Exp"})] == [
        ("weft.graph.passes.a", "Exp Relu")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "RULES = {'Relu': [relu], 'Exp': [exp]}",
        "A = ('Relu', 'weft')",
        "def f(n):\n    return n.op == 'Relu' and n.name == 'x'",
        "def f(s, v):\n    return s.producer(v, 'Relu', 'Exp')",
    ],
)
def test_a_pattern_is_no_set_of_operators(tree, text):
    assert list(operator_sets(tree({"compiler/a": text}), {"Relu", "Exp"})) == []


def test_a_number_that_steers_is_found(tree):
    names = {"loop/passes/a": "MOST, LEAST = 1 << 3, (4, -2.0)\nWORD = 'x'\nNAMES = (1, 'x')\nYES = True"}
    modules = tree({**names, "targets/x/model": "MOST = 4", "plan/machine": "MOST = 4", "graph/ir": "MOST = 4"})
    first, second = number_violations(modules, {})
    assert "loop.passes.a:1 LEAST" in first and "loop.passes.a:1 MOST" in second
    known = {"a limit": "loop.passes.a MOST LEAST, plan.b GONE"}
    assert number_violations(modules, known) == ["plan.b has no GONE any more"]
