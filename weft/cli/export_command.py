"""weft export MODEL --format FORM: a model in a form that others take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from weft.cli.screen import Screen, size
from weft.cli.sources import add_compiling, add_model, open_graph, open_module


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    forms = "; ".join(f"{name}: {text}" for name, (text, _) in FORMS.items())
    parser.add_argument("--format", choices=list(FORMS), default="weft", help=forms)
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: the model's name)")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    output: Path = given.output or Path(f"{Path(given.model).stem}.{given.format}")
    FORMS[given.format][1](given, output, screen)
    screen.line(f"{output}: {size(output.stat().st_size)}")
    return 0


def _write_weft(given: argparse.Namespace, output: Path, screen: Screen) -> None:
    open_module(given, screen).save(output)


def _write_onnx(given: argparse.Namespace, output: Path, screen: Screen) -> None:
    from weft.cli.to_onnx import to_onnx

    output.write_bytes(to_onnx(open_graph(given, screen)).SerializeToString())


FORMS: dict[str, tuple[str, Callable[[argparse.Namespace, Path, Screen], None]]] = {
    "weft": ("a compiled module", _write_weft),
    "onnx": ("the model itself, as ONNX", _write_onnx),
}
