"""Machine code in the process: it runs wherever the system puts it and is freed; what cannot be linked is an error."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import weft
from weft.core.errors import TargetError
from weft.runtime.jit import JitModule, compile_module, host_machine, known_symbols

ELSEWHERE = 77
DOUBLE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


def child(code: str) -> str:
    """What a program prints in a process of its own."""
    root = Path(weft.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "WEFT_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root)
    if done.returncode == ELSEWHERE:
        pytest.skip("this system takes memory from elsewhere than Linux does, so that nothing lies far apart")
    assert done.returncode == 0, done.stderr
    return done.stdout


MODELS_FAR_APART = """
import numpy as np
from tests.compiler.graphs import attention, check, random_inputs
from tests.runtime.scattered_memory import APART, code_among, scatter
from weft import te
import weft
from weft.compiler import compile, load
holes = scatter()
graph = attention()
kept = [compile(graph)]
check(graph, random_inputs(graph, 3), kept[-1])
kept[-1]._executor.save(kept[-1], {path!r}, link=False)  # so that JITLink places it, object by object
kept.append(load({path!r}))
check(graph, random_inputs(graph, 4), kept[-1])
a = te.placeholder((1000,), name="a")
b = te.compute((1000,), lambda i: te.exp(a[i]) + te.sin(a[i]), name="b")
x, y = np.linspace(-2, 2, 1000, dtype=np.float32), np.zeros(1000, np.float32)
kept.append(weft.build(te.create_schedule(b), [a, b]))
kept[-1](x, y)
np.testing.assert_allclose(y, np.exp(x) + np.sin(x), rtol=1e-5, atol=1e-6)
places = code_among(holes)
if not places:
    raise SystemExit(77)
assert len(places) > 20 and all(b - a > APART // 2 for a, b in zip(places, places[1:])), places
"""


def test_models_are_right_with_their_code_far_apart(tmp_path):
    """Every kernel is more than 4 GiB from the next, from the runtime and from the C library."""
    child(MODELS_FAR_APART.format(path=str(tmp_path / "net.weft")))


X86_FAR_APART = """
import ctypes, struct
from tests.compiler.graphs import mlp
from tests.runtime.scattered_memory import APART, scatter
from weft.codegen.llvm.compile import emit_object
from weft.compiler.lowering.graph import lower_graph
from weft.compiler.passes import for_target, optimize
from weft.runtime.abi import FUNCTIONS
from weft.runtime.jit import JitModule, defined_names
from weft.targets.registry import find_target
target = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
lowered = lower_graph(for_target(optimize(mlp(), {}, {}), target, None), target, None)
objects = [kernel.object_code for kernel in lowered.kernels] + [emit_object(lowered.drivers[0], target)]
name, = defined_names(lowered.drivers[0])
scatter()
module = JitModule(objects, [name], dict.fromkeys(FUNCTIONS, 0x123456780000))
start = module.address(name)
code = ctypes.string_at(start, 1 << 11)
word = lambda at: struct.unpack("<i", ctypes.string_at(at, 4))[0]
reached = []
for at in range(len(code)):
    stub = start + at + 5 + (word(start + at + 1) if code[at] == 0xE8 else 0)                    # call stub
    if code[at] == 0xE8 and 0 <= stub - start < 1 << 12 and ctypes.string_at(stub, 2) == b"\\xff\\x25":
        pointer = stub + 6 + word(stub + 2)                                                      # jmp [pointer]
        reached.append(struct.unpack("<Q", ctypes.string_at(pointer, 8))[0])
reached = [place for place in reached if place != 0x123456780000]  # that of `weft_ahead`
assert len(reached) == len(lowered.program.steps[0].calls), reached
assert all(abs(kernel - start) > APART // 2 for kernel in reached), reached
"""


def test_code_for_x86_is_linked_at_any_distance():
    """Linked, not run, on whatever machine this is: each of the driver's calls reaches its kernel by way of a stub.

    MCJIT, which Weft used before, ends the process here: it places .text and .rodata of one object far apart."""
    child(X86_FAR_APART)


def test_the_old_linker_is_gone():
    for path in Path(weft.__file__).parent.rglob("*.py"):
        assert "mcjit" not in path.read_text(encoding="utf-8").lower(), path


CALLS_NOTHING_KNOWN = "declare void @no_such_thing()\ndefine void @f() {\n  call void @no_such_thing()\n  ret void\n}\n"


def test_what_cannot_be_linked_is_an_error(capfd):
    with pytest.raises(TargetError, match="the machine code of f cannot be loaded.*not in this process"):
        compile_module(CALLS_NOTHING_KNOWN)
    with pytest.raises(TargetError, match="'no_such_thing', which is not in this process"):
        known_symbols(["no_such_thing"])
    code = host_machine().emit_object(llvm.parse_assembly("define void @f() {\n  ret void\n}\n"))
    with pytest.raises(TargetError, match="Symbols not found: . g .. The object files are damaged"):
        JitModule([code], ["g"], {})
    for bad in (b"", b"\x7fELF and nothing else", code[: len(code) // 2]):
        with pytest.raises(TargetError, match="cannot be loaded"):
            JitModule([bad], ["f"], {})
    with pytest.raises(TargetError, match="duplicate definition"):
        JitModule([code, code], ["f"], {})
    assert capfd.readouterr().err == ""


def test_functions_of_the_c_library_are_found():
    """Those that a program names, and those of the mathematics library that only LLVM names."""
    text = "declare double @cbrt(double)\ndefine double @f(double %x) {\n"
    text += "  %y = call double @cbrt(double %x)\n  ret double %y\n}\n"
    module = compile_module(text)
    assert DOUBLE(module.address("f"))(27.0) == pytest.approx(3.0)
    named = DOUBLE(lambda x: x + 1)
    address = ctypes.cast(named, ctypes.c_void_p).value
    code = host_machine().emit_object(llvm.parse_assembly(text))
    assert DOUBLE(JitModule([code], ["f"], {"cbrt": address}).address("f"))(27.0) == 28.0


def test_modules_know_nothing_of_each_other():
    text = "define double @f(double %x) {\n  ret double NUMBER\n}\n"
    modules = [compile_module(text.replace("NUMBER", f"{n}.0")) for n in range(3)]
    assert [DOUBLE(module.address("f"))(0.0) for module in modules] == [0.0, 1.0, 2.0]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_code_is_freed_with_the_object():
    """200 times 12 functions with 64 KiB of data each: 150 MiB, if any of it stayed."""
    data = '@table = constant [65536 x i8] c"' + "x" * 65536 + '"\n'
    text = data + "define ptr @NAME() {\n  ret ptr @table\n}\n"
    machine = host_machine()
    objects = [
        machine.emit_object(llvm.parse_assembly(text.replace("NAME", f"f{n}").replace("@table", f"@table{n}")))
        for n in range(12)
    ]
    names = [f"f{n}" for n in range(12)]

    def cycle() -> None:
        module = JitModule(objects, names, {})
        pointer = ctypes.CFUNCTYPE(ctypes.c_void_p)(module.address("f11"))()
        assert ctypes.string_at(pointer, 3) == b"xxx"

    for _ in range(20):
        cycle()
    gc.collect()
    before, pieces = resident(), mappings()
    for _ in range(200):
        cycle()
    gc.collect()
    assert resident() - before < 8 << 20 and mappings() <= pieces + 4


def test_many_threads_load_at_once():
    text = "declare ptr @weft_allocate(i64)\ndeclare void @weft_release(ptr)\n" + (
        "define double @f(double %x) {\n  %p = call ptr @weft_allocate(i64 64)\n  store double %x, ptr %p\n"
        "  %y = load double, ptr %p\n  call void @weft_release(ptr %p)\n"
        "  %z = fadd double %y, NUMBER\n  ret double %z\n}\n"
    )
    wrong = []

    def work(start: int) -> None:
        for n in range(start, start + 25):
            module = compile_module(text.replace("NUMBER", f"{n}.0"))
            if DOUBLE(module.address("f"))(0.5) != n + 0.5:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
