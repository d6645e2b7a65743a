"""weft devices: what there is to run on."""

from __future__ import annotations

import argparse
import os
from typing import Any

from weft.cli.given import refuse
from weft.cli.pool_command import add_certificates, folder_of
from weft.cli.screen import Screen, size
from weft.core.errors import TargetError
from weft.runtime.threads import available_cores
from weft.targets.base import LocalDevice
from weft.targets.registry import find_target, known_forms, local_devices


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--pool", metavar="URL", help="list the devices of a pool instead (docs/pool.md)")
    add_certificates(parser)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.pool:
        return _fleet(given, screen)
    refuse(given, "certificates", "it belongs to --pool")
    found = [this_machine(), *map(device_facts, local_devices())]
    forms = [form for form in known_forms() if is_here(form.split()[0])]
    if screen.as_json:
        screen.figures({"devices": found, "targets": forms})
        return 0
    rows = [
        [d["name"], d["cpu"], str(d["cores"]), f"{8 * d['vector_bytes']} bits", size(d["memory_bytes"])] for d in found
    ]
    screen.table(["target", "device", "cores>", "vectors>", "memory>"], rows)
    screen.line("\ntargets that weft compiles for here:")
    for form in forms:
        screen.line(f"  {form}")
    return 0


def _fleet(given: argparse.Namespace, screen: Screen) -> int:
    from weft.pool.guard import guard
    from weft.pool.runner import connect, fleet

    folder = folder_of(given)
    guard()
    with connect(given.pool, folder, 10.0) as client:
        found = fleet(client)
    if screen.as_json:
        screen.figures({"workers": [{key: value for key, value in one.items() if key != "facts"} for one in found]})
        return 0
    rows = [
        [one["name"], one["kind"], str(one.get("device", "")), str(one.get("unit", "")),
         "busy" if one["at_work"] else "", one["version"]]
        for one in sorted(found, key=lambda one: (one["kind"], one["name"]))
    ]  # fmt: skip
    screen.table(["worker", "kind", "device", "measures", "", "weft"], rows)
    return 0


def is_here(target: str) -> bool:
    """Whether a target can be had on this machine: those that stand for one of its devices need the device."""
    try:
        find_target(target)
    except TargetError:
        return False
    return True


def this_machine() -> dict[str, Any]:
    """The processor that this runs on."""
    target = find_target("native")
    return {
        "name": target.name,
        "kind": target.kind,
        "cpu": target.cpu,
        "triple": target.triple,
        "cores": available_cores(),
        "vector_bytes": target.vector_bytes,
        "cache_bytes": list(target.cache_bytes),
        "memory_bytes": memory_bytes(),
    }


def device_facts(device: LocalDevice) -> dict[str, Any]:
    """A device beside the processor; its cores are what runs a block of threads each."""
    target, threads = device.target, device.target.threads
    facts: dict[str, Any] = {
        "name": target.name,
        "kind": target.kind,
        "cpu": device.name,
        "triple": target.triple,
        "cores": target.cores,
        "vector_bytes": target.vector_bytes,
        "cache_bytes": list(target.cache_bytes),
        "memory_bytes": device.memory_bytes,
    }
    if threads is not None:
        facts |= {"block_threads": threads.block_threads, "shared_bytes": threads.shared_bytes}
        facts["tensor_cores"] = sorted(threads.tensor_cores)
    return facts


def memory_bytes() -> int:
    """The memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
