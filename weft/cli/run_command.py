"""weft run MODEL [--input x=file.npy]: one run; what came out, in figures or as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.facts import array_facts, run_facts
from weft.cli.given import UsageError
from weft.cli.screen import Screen
from weft.cli.sources import add_compiling, add_inputs, add_model, open_with_feeds


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--output", type=Path, help="write the outputs: an .npz file, or .npy where there is one")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.output is not None and given.output.suffix not in (".npy", ".npz"):
        raise UsageError(f"-o {given.output}: outputs are written to files that end in .npz or .npy")
    module, feeds, _ = open_with_feeds(given, screen)
    with screen.working("running"):
        made = module.run(None, feeds)
    outputs = {port.name: array for port, array in zip(module.outputs, made)}
    if given.output is not None:
        write(given.output, outputs)
    facts = {name: array_facts(array) for name, array in outputs.items()}
    if screen.as_json:
        inputs = {name: array_facts(array) for name, array in feeds.items()}
        screen.figures({**run_facts(module), "inputs": inputs, "outputs": facts})
        return 0
    screen.table(
        ["output", "type", "least>", "mean>", "greatest>", "first elements"],
        [[name, *_row(fact)] for name, fact in facts.items()],
    )
    return 0


def _row(fact: dict[str, Any]) -> list[str]:
    if "dtype" not in fact:
        return [f"{fact['type']} of {fact['length']}", "", "", "", ""]
    figures = [f"{fact[key]:.4g}" if key in fact else "" for key in ("min", "mean", "max")]
    first = " ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in fact["first"])
    return [f"{fact['dtype']}{fact['shape']}", *figures, first]


def write(path: Path, outputs: dict[str, Any]) -> None:
    """The outputs as a file of numpy's."""
    if not all(isinstance(array, np.ndarray) and array.dtype != object for array in outputs.values()):
        raise UsageError("only tensors of numbers can be written to a file")
    if path.suffix == ".npy":
        if len(outputs) != 1:
            raise UsageError(f"the model has {len(outputs)} outputs: give a name that ends in .npz")
        np.save(path, next(iter(outputs.values())))
    else:
        np.savez(path, **outputs)
