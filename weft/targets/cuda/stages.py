"""What `weft inspect` can show of a kernel for CUDA beyond its source: PTX and machine code."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from weft.codegen.c.program import DeviceProgram
from weft.core.errors import TargetError
from weft.targets.base import Target
from weft.targets.cuda import nvrtc
from weft.targets.cuda.device import machine_code

_TOOLS = (("nvdisasm",), ("cuobjdump", "-sass"))


def ptx(program: DeviceProgram, target: Target) -> str:
    """The PTX that NVRTC makes of it."""
    return nvrtc.compile_ptx(program.source, target.cpu, program.name)


def sass(program: DeviceProgram, target: Target) -> str:
    """The machine code, disassembled by a tool of the CUDA toolkit."""
    command = next(([found, *options] for tool, *options in _TOOLS if (found := shutil.which(tool))), None)
    if command is None:
        raise TargetError(
            "to show machine code (sass), nvdisasm or cuobjdump must be on the PATH: they come with the CUDA toolkit; "
            "--stage ptx needs neither"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(machine_code(program.source, target.cpu, program.name))
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"{command[0]} could not disassemble {program.name}: {done.stderr.strip()}")
    return done.stdout
