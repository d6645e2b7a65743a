"""Runs what `weft export` wrote on the machine that it is for: here, under qemu's user emulation, in Node, in a page.

    machine = MACHINES["riscv64"]
    machine.missing()                               None, or what is not installed
    module = weft.compile(graph, target=machine.target)
    export_library(module, folder, "model", machine.form)
    outputs = machine.run(folder, "model", arrays)  the bytes of each output

A C program is built by the machine's own gcc where there is one, else by zig's.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STRICT = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SECONDS = 900
"""The longest that one program may take."""


def zig() -> list[str]:
    """The command of zig."""
    return [sys.executable, "-m", "ziglang"]


@dataclass(frozen=True)
class Machine:
    """A machine to export for. `how` is "emulated", "node", "page", or the command of a C compiler for `form` c."""

    name: str
    target: str
    form: str
    how: str = "emulated"
    processor: str = ""
    options: tuple[str, ...] = ()
    """What qemu is told."""
    interface: str = "gnu"
    probe: str = ""
    """A C program of instructions that some emulators fail on: only one that runs it says anything about ours."""

    def missing(self) -> str | None:
        """What this machine has to have installed and has not."""
        if self.how in ("node", "page"):
            program = "node" if self.how == "node" else "chromium"
            return None if shutil.which(program) else f"{program} is not installed"
        if self.how != "emulated":
            found = shutil.which(self.how) if self.how == "gcc" else importlib.util.find_spec("ziglang")
            return None if found else f"{self.how} is not installed"
        emulator = f"qemu-{self.processor}-static"
        if not self.is_here and shutil.which(emulator) is None:
            return f"{emulator} is not installed"
        if not self._compiler():
            return f"there is no C compiler for {self.processor}"
        return _fault(self) if self.probe and not self.is_here else None

    @property
    def is_here(self) -> bool:
        """Whether its programs run on this processor as they are."""
        return platform.machine() == self.processor and not self.options

    @property
    def system(self) -> str:
        """What gcc and Debian call it."""
        return f"{self.processor}-linux-{self.interface}"

    @property
    def emulator(self) -> list[str]:
        """The command that runs a program of another machine."""
        return [f"qemu-{self.processor}-static", *self.options, "-L", f"/usr/{self.system}"]

    def _compiler(self) -> list[str] | None:
        """A C compiler; zig's makes a program that needs no library of the machine."""
        for name in [f"{self.system}-gcc", *(["gcc"] if self.is_here else [])]:
            if shutil.which(name):
                return [name]
        musl = self.system.replace("gnu", "musl")
        return [*zig(), "cc", "-target", musl, "-static"] if importlib.util.find_spec("ziglang") else None

    def run(self, folder: Path, name: str, arrays: Sequence[Any]) -> list[bytes]:
        """The outputs of a model in a folder for these inputs."""
        files = []
        for at, array in enumerate(arrays):
            files.append(f"input_{at}.bin")
            (folder / files[-1]).write_bytes(np.ascontiguousarray(array).tobytes())
        if self.how == "page":
            return _in_page(folder, name, files)
        if self.how == "node":
            _done(["node", "main.mjs", *files], folder)
        else:
            for command in self.build(folder, name):
                _done(command, folder)
            is_here = self.how != "emulated" or self.is_here
            _done([*([] if is_here else self.emulator), "./main", *files], folder)
        found = sorted(folder.glob("output_*.bin"), key=lambda path: int(path.stem.split("_")[1]))
        return [path.read_bytes() for path in found]

    def build(self, folder: Path, name: str) -> list[list[str]]:
        """The commands that build the example."""
        end = ["-lm", "-o", "main"]
        if self.how == "emulated":
            return [[*(self._compiler() or []), "main.c", f"lib{name}.a", "-pthread", *end]]
        sources = [path.name for path in sorted(folder.glob("*.c"))]
        if self.how == "gcc":
            return [["gcc", *STRICT, *sources, *end]]
        if self.how == "zig cc":
            return [[*zig(), "cc", *STRICT, *sources, *end]]
        # Of clang zig has the compiler alone, which is told where its own headers are.
        found = importlib.util.find_spec("ziglang")
        headers = f"{(found.submodule_search_locations or ['.'])[0]}/lib/include" if found else ""
        objects = [source.replace(".c", ".o") for source in sources]
        return [[*zig(), "clang", "-isystem", headers, *STRICT, "-c", *sources], [*zig(), "cc", *objects, *end]]


_ROUNDING = 'int main(void) { __asm__ volatile(".word 0xcd027057\\n\\t.word 0x4aa39557"); return 0; }\n'
"""`vsetivli zero, 4, e32, m1, ta, ma` and `vfcvt.rtz.x.f.v v10, v10`: qemu 7.2 fails on its own assertion where the
second is the first instruction that rounds of a block of translated code."""

MACHINES = {
    one.name: one
    for one in (
        Machine("aarch64", "aarch64-unknown-linux-gnu", "a", processor="aarch64"),
        Machine("aarch64 i8mm", "aarch64-unknown-linux-gnu,cpu=neoverse-v1", "a", processor="aarch64",
                options=("-cpu", "max")),
        Machine("armv7", "armv7-unknown-linux-gnueabihf", "a", processor="arm", interface="gnueabihf"),
        Machine("riscv64", "riscv64-unknown-linux-gnu", "a", processor="riscv64"),
        Machine("riscv64 vectors", "riscv64-unknown-linux-gnu,features=+v", "a", processor="riscv64",
                options=("-cpu", "rv64,v=true,vext_spec=v1.0"), probe=_ROUNDING),
        Machine("x86_64 haswell", "x86_64-unknown-linux-gnu,cpu=haswell", "a", processor="x86_64",
                options=("-cpu", "max")),
        Machine("wasm in Node", "wasm32-unknown-unknown", "wasm", "node"),
        Machine("wasm in Chromium", "wasm32-unknown-unknown", "wasm", "page"),
        Machine("C by gcc", "c", "c", "gcc"),
        Machine("C by clang", "c", "c", "zig clang"),
        Machine("C by zig cc", "c", "c", "zig cc"),
    )
}  # fmt: skip
"""Where the models of `benchmarks.exports` run."""


def _done(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} … ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


@functools.cache
def _fault(machine: Machine) -> str | None:
    """How an emulator fails on the probe of its machine; None where it runs it. Asked before anything of ours runs."""
    with tempfile.TemporaryDirectory(prefix="weft-probe-") as folder:
        (Path(folder) / "probe.c").write_text(machine.probe)
        _done([*(machine._compiler() or []), "probe.c", "-o", "probe"], Path(folder))
        done = subprocess.run([*machine.emulator, "./probe"], cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
    return f"{machine.emulator[0]} fails by itself ({said}): a newer one is needed (bookworm-backports has one)"


# ------------------------------------------------------------------------------------------------------------ pages


class _Answers(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what a page posts."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript",
                      ".js": "text/javascript", ".wasm": "application/wasm"}  # fmt: skip

    def __init__(self, *given: Any, posted: dict[str, bytes], over: threading.Event, **more: Any) -> None:
        self.posted, self.over = posted, over
        super().__init__(*given, **more)

    def do_POST(self) -> None:
        self.posted[self.path.strip("/")] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        if self.path == "/over":
            self.over.set()

    def log_message(self, format: str, *given: Any) -> None:
        """Says nothing."""


def open_page(folder: Path, script: str, seconds: float = SECONDS) -> dict[str, bytes]:
    """Runs a script (a module of JavaScript) in a page of Chromium, served from a folder; gives what it posts by name.

    The script has `post(name, bytes or text)`.
    """
    page = f"""<!doctype html><meta charset="utf-8"><script type="module">
const post = (name, body) => fetch("/" + name, {{ method: "POST", body }});
try {{ {script} }} catch (error) {{ await post("error", String(error && error.stack || error)); }}
await post("over", "");
</script>"""
    (folder / "page.html").write_text(page, encoding="utf-8")
    posted: dict[str, bytes] = {}
    over = threading.Event()
    handler = functools.partial(_Answers, directory=str(folder), posted=posted, over=over)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = folder / "profile"
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={profile}",
    ]
    browser = subprocess.Popen(
        [*command, f"http://127.0.0.1:{server.server_address[1]}/page.html"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        if not over.wait(seconds):
            raise RuntimeError(f"the page did not end in {seconds} seconds")
    finally:
        browser.terminate()
        browser.wait()
        server.shutdown()
        shutil.rmtree(profile, ignore_errors=True)
    if "error" in posted:
        raise RuntimeError(f"the page failed: {posted['error'].decode()}")
    return posted


READ_INPUTS = """
const inputs = {};
for (const [at, one] of model.inputs.entries()) {
  const bytes = await (await fetch(FILES[at])).arrayBuffer();
  inputs[one.name] = new globalThis[one.array](bytes);
}
"""


def _in_page(folder: Path, name: str, files: Sequence[str]) -> list[bytes]:
    script = f"""
const FILES = {json.dumps(list(files))};
const model = await (await import("/{name}.js")).load();
{READ_INPUTS}
let at = 0;
for (const array of Object.values(model.run(inputs))) await post("output_" + at++, array);
"""
    posted = open_page(folder, script)
    return [posted[f"output_{at}"] for at in range(len(posted) - 1)]
