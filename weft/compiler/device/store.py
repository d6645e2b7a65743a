"""Device programs as plain data, for the module file: sources, launches and workspaces.

Definitions that several kernels share stand there once. The device's compiler makes machine code of the source when the
module is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.codegen.c.program import DeviceKernel, DeviceProgram, Parameter, TensorMap, Workspace
from weft.core.dtypes import dtype


def programs_row(programs: Mapping[str, DeviceProgram]) -> dict[str, Any]:
    """Programs by the symbol of their kernel, as the manifest keeps them."""
    pieces: dict[str, int] = {}
    rows = {}
    for symbol, program in programs.items():
        rows[symbol] = {
            "name": program.name,
            "pieces": [pieces.setdefault(piece, len(pieces)) for piece in program.pieces or (program.source,)],
            "parameters": [[p.name, p.dtype.name, p.is_written, p.elements] for p in program.parameters],
            "workspaces": [[w.name, w.dtype.name, w.elements] for w in program.workspaces],
            "kernels": [
                [
                    k.name,
                    k.grid,
                    k.block,
                    k.shared_bytes,
                    k.dynamic_shared_bytes,
                    k.params,
                    dict(k.constants),
                    k.waits + 2 * k.is_whole,
                    *_maps(k),
                ]  # fmt: skip
                for k in program.kernels
            ],
        }
    return {"pieces": list(pieces), "programs": rows}


def _maps(kernel: DeviceKernel) -> list[Any]:
    """The field of a kernel's maps, where it has some."""
    return [[[m.source, m.element_bytes, m.shape, m.strides, m.box] for m in kernel.maps]] if kernel.maps else []


def programs_seal(row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    """A hash of programs and their calls: how many threads run is no fact of the code that could be checked."""
    calls = [step["calls"] for step in steps if "native" in step]
    text = json.dumps([row["pieces"], row["programs"], calls], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def programs_of(row: Mapping[str, Any]) -> dict[str, DeviceProgram]:
    """The programs that `programs_row` wrote."""
    pieces = [str(piece) for piece in row["pieces"]]
    return {str(symbol): _program(one, pieces) for symbol, one in row["programs"].items()}


def _program(row: Mapping[str, Any], pieces: list[str]) -> DeviceProgram:
    used = tuple(pieces[int(number)] for number in row["pieces"])
    return DeviceProgram(
        str(row["name"]),
        "\n\n".join(used) + "\n",
        tuple(Parameter(str(n), dtype(kind), True, bool(w), int(count)) for n, kind, w, count in row["parameters"]),
        tuple(_kernel(*one) for one in row["kernels"]),
        tuple(Workspace(str(name), dtype(kind), int(count)) for name, kind, count in row["workspaces"]),
        used,
    )


def _kernel(
    name: str, grid: Any, block: Any, shared: int, dynamic: int, params: Any, constants: Any, waits: int = 0,
    maps: Any = (),
) -> DeviceKernel:  # fmt: skip
    x, y, z = (int(size) for size in grid)
    a, b, c = (int(size) for size in block)
    values = {str(key): int(value) for key, value in constants.items()}
    names = tuple(map(str, params))
    seen = tuple(TensorMap(str(of), int(size), *[tuple(map(int, n)) for n in numbers]) for of, size, *numbers in maps)
    return DeviceKernel(
        str(name), (x, y, z), (a, b, c), int(shared), int(dynamic), names, values, bool(waits & 1), seen, waits > 1
    )
