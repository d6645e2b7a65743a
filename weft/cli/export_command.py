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
    parser.add_argument(
        "-o", "--output", type=Path, help="the file to write, for so the folder (default: the model's name)"
    )


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    for path in FORMS[given.format][1](given, screen):
        screen.line(f"{path}: {size(path.stat().st_size)}")
    return 0


def _output(given: argparse.Namespace, ending: str) -> Path:
    return given.output or Path(Path(given.model).stem + ending)


def _write_weft(given: argparse.Namespace, screen: Screen) -> list[Path]:
    output = _output(given, ".weft")
    open_module(given, screen).save(output)
    return [output]


def _write_onnx(given: argparse.Namespace, screen: Screen) -> list[Path]:
    from weft.cli.to_onnx import to_onnx

    output = _output(given, ".onnx")
    output.write_bytes(to_onnx(open_graph(given, screen)).SerializeToString())
    return [output]


def _write_library(given: argparse.Namespace, screen: Screen) -> list[Path]:
    from weft.executor.export import export_library

    module = open_module(given, screen)
    with screen.working("linking"):
        return export_library(module, _output(given, ""), Path(given.model).stem)


FORMS: dict[str, tuple[str, Callable[[argparse.Namespace, Screen], list[Path]]]] = {
    "weft": ("a compiled module", _write_weft),
    "onnx": ("the model itself, as ONNX", _write_onnx),
    "so": ("a folder with a shared library, its C header and an example main.c", _write_library),
}
