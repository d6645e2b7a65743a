"""weft pool init | start | server: a pool of machines to measure on (docs/pool.md)."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen
from weft.cli.sources import natural

ACTIONS = {
    "init": "make a private CA and the certificates of scheduler, workers and clients",
    "start": "run the scheduler and some builders, until Ctrl-C",
    "server": "write the device server, a static program, for an architecture",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "action", choices=list(ACTIONS), help="; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    )
    add_certificates(parser)
    parser.add_argument("--host", help="start: the address to listen at (default 127.0.0.1; 0.0.0.0 is all of them)")
    parser.add_argument("--port", type=natural, help="start: the port (default 8786)")
    parser.add_argument("--builders", type=natural, help="start: processes that build (default 1)")
    parser.add_argument("--target", help="server: aarch64, armv7, riscv64 or x86_64 (default: this machine's)")
    parser.add_argument("-o", "--output", type=Path, help="server: the file (default weft-server-ARCHITECTURE)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def add_certificates(parser: argparse.ArgumentParser) -> None:
    """Where certificates lie."""
    parser.add_argument("--certificates", type=Path, metavar="FOLDER", help="of the pool (default: your configuration)")


def folder_of(given: argparse.Namespace) -> Path:
    """The folder of the certificates; a UsageError where the pool's own address, if one is given, is none."""
    from weft.pool.ca import default_folder

    url = getattr(given, "pool", None) or getattr(given, "join", None)
    if url and not re.fullmatch(r"tls://[^\s/:]+:\d{1,5}|tls://\[[0-9a-fA-F:]+\]:\d{1,5}", url):
        raise UsageError(f"{url!r} is no address of a pool: tls://HOST:PORT, as weft pool start prints it")
    found: Path | None = given.certificates
    return found or default_folder()


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.action != "start":
        refuse(given, "host port builders", "it belongs to weft pool start")
    if given.action != "server":
        refuse(given, "target output", "it belongs to weft pool server")
    return {"init": _init, "start": _start, "server": _server}[given.action](given, screen)


def _init(given: argparse.Namespace, screen: Screen) -> int:
    from weft.pool.ca import init_pool

    made = [str(path) for path in init_pool(folder_of(given))]
    if screen.as_json:
        screen.figures({"files": made})
    else:
        for path in made:
            screen.line(path)
    return 0


def _start(given: argparse.Namespace, screen: Screen) -> int:
    from weft.pool.ca import security
    from weft.pool.node import LocalPool

    if screen.as_json:
        raise UsageError("--json: weft pool start runs until Ctrl-C, and prints no figures")
    folder, builders = folder_of(given), 1 if given.builders is None else given.builders
    security(folder, "scheduler")
    pool = LocalPool(folder, given.host or "127.0.0.1", 8786 if given.port is None else given.port, builders)
    screen.line(f"the pool is {pool.url}; {builders} builders. Ctrl-C ends it")
    pool.run()
    return 0


def _server(given: argparse.Namespace, screen: Screen) -> int:
    from weft.pool.server import host_architecture, make_server

    refuse(given, "certificates", "a device server needs its key only when it runs")
    name = given.target or host_architecture()
    output = given.output or Path(f"weft-server-{name}")
    with screen.working("compiling"):
        shutil.copy2(make_server(name), output)
    if screen.as_json:
        screen.figures({"file": str(output), "bytes": output.stat().st_size})
    else:
        screen.line(f"{output}: {output.stat().st_size} bytes; there: {output.name} -k device.key -a 0.0.0.0 -p 7400")
    return 0
