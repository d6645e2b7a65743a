"""Runs flat Funcs through codegen/c: `run_plain` by a C compiler, `run_opencl` as one work item on PoCL."""

import ctypes
import functools
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.support import ENTRY, slot
from weft.codegen.c.generate import c_symbol, generate_plain
from weft.core.errors import TargetError
from weft.expr.nodes import Buffer
from weft.targets.registry import find_target


@functools.cache
def compiler():
    """The command of a C compiler; the test is skipped where there is none."""
    if shutil.which("cc"):
        return ["cc"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    pytest.skip("no C compiler: install cc or ziglang")


@functools.cache
def opencl():
    """The OpenCL target; the test is skipped where there is no device."""
    try:
        return find_target("opencl")
    except TargetError as error:
        pytest.skip(str(error))


@functools.cache
def cuda():
    """The CUDA target; the test is skipped where there is no NVIDIA GPU."""
    target = find_target("cuda")
    if not target.is_host:
        pytest.skip("no NVIDIA GPU on this machine")
    return target


def compile_plain(func, folder, *, contract="off"):
    """A Func as a ctypes function, by way of a shared library."""
    source, library = folder / "code.c", folder / "code.so"
    source.write_text(generate_plain(func))
    command = [*compiler(), "-std=c11", "-O1", f"-ffp-contract={contract}", "-shared", "-fPIC", "-Wall", "-Werror",
               "-Wno-unused", "-Wno-tautological-compare", str(source), "-o", str(library), "-lm"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + source.read_text()
    return ENTRY((c_symbol(func.name), ctypes.CDLL(str(library))))


def run_plain(func, folder, *arguments):
    """Compiles, calls, and deletes the library's file, so that the next one may have its name."""
    entry = compile_plain(func, folder)
    kinds = [None if isinstance(p, Buffer) else p.dtype for p in (*func.params, *func.size_vars)]
    slots = np.array([slot(a, k) for a, k in zip(arguments, kinds)], np.int64)
    assert entry(slots.ctypes.data, 1) == 0
    (folder / "code.so").unlink()


def run_opencl(func, *arguments):
    """The program on the OpenCL device: outputs change in place."""
    program = opencl().generate(func)
    # A fused multiply-add rounds once where the interpreter rounds twice.
    run_program(replace(program, source="#pragma OPENCL FP_CONTRACT OFF\n" + program.source), opencl(), arguments)


def run_cuda(func, *arguments):
    """The program on the NVIDIA GPU: outputs change in place."""
    run_program(cuda().generate(func), cuda(), arguments)


def run_program(program, target, arguments):
    """A device program on arrays of the host."""
    device = target.device()
    given = {}
    for parameter, value in zip(program.parameters, arguments):
        if parameter.is_buffer:
            given[parameter.name] = device.allocate(value.nbytes)
            device.write(given[parameter.name], value)
        else:
            given[parameter.name] = parameter.dtype.numpy.type(value)
    device.load(program).run(given)
    for parameter, value in zip(program.parameters, arguments):
        if parameter.is_written:
            device.read(given[parameter.name], value)
