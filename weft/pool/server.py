"""Device servers: made from `server.c` for any machine, and started on this one, under an emulator where need be.

`zig cc` (the extra [link]) makes a static program for each of ARCHITECTURES; for this machine alone the system's C
compiler does as well. Programs are kept in the cache folder, by a hash of the source.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.core.install import hint
from weft.pool.device import Connection, PoolError
from weft.runtime.cache_folder import cache_folder

ARCHITECTURES = {
    "aarch64": ("aarch64-linux-musl", "qemu-aarch64", "max"),
    "armv7": ("arm-linux-musleabihf", "qemu-arm", "max"),
    "riscv64": ("riscv64-linux-musl", "qemu-riscv64", "rv64"),
    "x86_64": ("x86_64-linux-musl", "qemu-x86_64", "max"),
}
"""For each: the triple that `zig cc` takes, the emulator, and the processor that it is told to be."""

FOLDER = Path(__file__).resolve().parent


def architecture_of(triple: str) -> str:
    """The architecture of a triple, by the name that servers have; a PoolError for one without a server."""
    first = triple.split("-")[0]
    name = "armv7" if first.startswith(("armv7", "arm")) and first != "arm64" else first.replace("arm64", "aarch64")
    if name not in (*ARCHITECTURES, "wasm32"):  # whose device is Node
        raise PoolError(f"there is no device server for {triple}; it is made for {', '.join(ARCHITECTURES)}")
    return name


def host_architecture() -> str:
    """That of this machine."""
    return architecture_of(platform.machine().lower().replace("amd64", "x86_64"))


def _compilers(architecture: str) -> list[list[str]]:
    found = []
    if importlib.util.find_spec("ziglang") is not None:
        found.append([sys.executable, "-m", "ziglang", "cc", "-target", ARCHITECTURES[architecture][0]])
    own = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if architecture == host_architecture() and own:
        found.append([own])
    return found


def make_server(architecture: str, stays: bool = False) -> Path:
    """The program of a device server for an architecture, made when there is none yet.

    One that stays here is made by the system's compiler, if there is one: zig makes a C library first.
    """
    if architecture not in ARCHITECTURES:
        raise PoolError(f"no device server is made for {architecture!r}, but for {', '.join(ARCHITECTURES)}")
    options = ["-static", "-O2", "-s", "-std=gnu11"]
    compilers, name = _compilers(architecture)[:: -1 if stays else 1], f"weft-server-{architecture}{'-here' * stays}"
    return _made(FOLDER / "server.c", name, compilers, options, ["-lm"])


def make_counter() -> Path:
    """The plugin that counts, for QEMU on this machine."""
    compilers = _compilers(host_architecture())[::-1]
    return _made(FOLDER / "count.c", "weft-count.so", compilers, ["-shared", "-fPIC", "-O2"])


def _made(
    source: Path, name: str, compilers: Sequence[Sequence[str]], options: Sequence[str], last: Sequence[str] = ()
) -> Path:
    text = source.read_bytes()
    folder = cache_folder("pool") or Path(tempfile.gettempdir())
    made = folder / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}"
    if made.exists():
        return made
    problems = []
    for compiler in compilers:
        part = made.with_name(f"{made.name}.{secrets.token_hex(4)}")
        command = [*compiler, *options, "-o", str(part), str(source), *last]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            os.replace(part, made)
            return made
        problems.append(done.stderr.strip()[-600:])
    raise PoolError(f"{name} cannot be compiled: {'; '.join(problems) or 'there is no compiler: ' + hint('link')}")


def emulator_of(architecture: str) -> str | None:
    """The emulator that runs programs of an architecture here, by its path; None where there is none."""
    name = ARCHITECTURES[architecture][1]
    return shutil.which(name) or shutil.which(f"{name}-static")


def can_count(emulator: str) -> bool:
    """Whether an emulator takes plugins: statically linked ones do not."""
    done = subprocess.run([emulator, "-h"], capture_output=True, text=True)
    return "-plugin" in done.stdout and not Path(emulator).name.endswith("-static")


@dataclass
class LocalServer:
    """A device server that this process started, and that ends with it."""

    process: subprocess.Popen[str]
    port: int
    key: bytes

    def connect(self) -> Connection:
        """A connection to it."""
        return Connection("127.0.0.1", self.port, self.key)

    def stop(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.communicate()  # waits, and closes the pipe


def start_server(
    architecture: str | None = None, emulated: bool = False, counts: bool = False, megabytes: int = 256
) -> LocalServer:
    """A device server on this machine, at a port and with a key of its own.

    `emulated`: by QEMU, of another architecture, say; with `counts` it counts instructions instead of seconds.
    """
    name = architecture or host_architecture()
    command = [str(make_server(name, name == host_architecture())), "-l", "-p", "0", "-m", str(megabytes), "-k"]
    if emulated or counts or name != host_architecture():
        command = [*_emulator(name, counts), *command]
    with tempfile.TemporaryDirectory(prefix="weft-server-") as folder:
        key, file, counters = secrets.token_bytes(32), Path(folder) / "key", Path(folder) / "counters"
        file.touch(0o600)
        file.write_text(key.hex())
        counters.write_bytes(bytes(4096))
        process = subprocess.Popen(
            [*command, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **({"DEVICE_COUNTERS": str(counters)} if counts else {})},
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
    if not line.startswith("listening on "):
        process.kill()
        raise PoolError(f"the device server did not start (code {process.wait()}): {' '.join(command[:2])}")
    return LocalServer(process, int(line.rsplit(":", 1)[1]), key)


def _emulator(name: str, counts: bool) -> list[str]:
    """The command that runs programs of an architecture."""
    emulator = emulator_of(name)
    if emulator is None:
        raise PoolError(f"{name} is another machine, and there is no emulator for it here: install qemu-user")
    if counts and not can_count(emulator):
        raise PoolError(f"{emulator} takes no plugins, and counts nothing: install qemu-user, not -static")
    return [emulator, "-cpu", ARCHITECTURES[name][2], *(["-plugin", str(make_counter())] if counts else [])]
