"""weft worker --join URL --kind KIND: lends a device to a pool, or this machine to builders (docs/pool.md)."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from weft.cli.given import UsageError, refuse
from weft.cli.pool_command import add_certificates, folder_of
from weft.cli.screen import Screen


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--join", metavar="URL", help="the scheduler: tls://host:8786")
    parser.add_argument("--kind", help='what the device is called; "build": no device, but a builder')
    parser.add_argument("--device", help="here (default), HOST:PORT of a device server, emulated, counted, simulated:S")
    parser.add_argument("--target", help='the machine that the device is (default "native")')
    parser.add_argument("--key", type=Path, help="the key of the device server (default: device.key of the pool)")
    parser.add_argument("--name", help="what the worker is called (default: this machine's name and the kind)")
    add_certificates(parser)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    from weft.pool.ca import security
    from weft.pool.node import BUILD, Supervisor, worker_command

    if screen.as_json:
        raise UsageError("--json: weft worker runs until Ctrl-C, and prints no figures")
    if not given.join or not given.kind:
        raise UsageError("--join URL and --kind KIND say where to work, and as what")
    if given.kind == BUILD:
        refuse(given, "device target key", "a builder has no device")
    folder = folder_of(given)
    security(folder, "worker")
    asked = {"kind": given.kind, "device": given.device, "target": given.target, "key": given.key and str(given.key)}
    name = given.name or f"{platform.node()}-{given.kind}"
    command = worker_command(folder, given.join, name, {key: value for key, value in asked.items() if value})
    screen.line(f"{name} works for {given.join}. Ctrl-C ends it")
    Supervisor({name: command}).run()
    return 0
