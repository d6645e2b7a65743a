"""weft export MODEL --format FORM: a model in a form that others take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen, size
from weft.cli.sources import add_compiling, add_model, kind_of, open_graph, open_module, output_path


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser, runs=False)
    forms = "; ".join(f"{name}: {text}" for name, (text, _) in FORMS.items())
    parser.add_argument("--format", choices=list(FORMS), help=f"{forms} (default: what -o ends in, else weft)")
    parser.add_argument(
        "-o", "--output", type=Path, help="the file to write, for so, a, c and wasm the folder (default: its name)"
    )
    parser.add_argument(
        "--weights", choices=("inside", "beside"), help="in the library (default), or in a file NAME.bin beside it"
    )
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    form = given.format or ("onnx" if given.output is not None and given.output.suffix == ".onnx" else "weft")
    written = {str(path): path.stat().st_size for path in FORMS[form][1](given, screen)}
    if screen.as_json:
        screen.figures({"format": form, "files": [{"file": path, "bytes": count} for path, count in written.items()]})
        return 0
    for path, count in written.items():
        screen.line(f"{path}: {size(count)}")
    return 0


def _write_weft(given: argparse.Namespace, screen: Screen) -> list[Path]:
    refuse(given, "weights", "a compiled module holds its weights")
    output = output_path(given, ".weft")
    open_module(given, screen).save(output)
    return [output]


def _write_onnx(given: argparse.Namespace, screen: Screen) -> list[Path]:
    import weft.ops  # noqa: F401 — fills the table of operators
    from weft.cli.to_onnx import to_onnx
    from weft.graph.passes.infer import infer

    why = "ONNX holds the model as it is, before it is compiled for anything"
    refuse(given, "target precision exact size shape weights", why)
    output = output_path(given, ".onnx")
    output.write_bytes(to_onnx(infer(open_graph(given, screen))).SerializeToString())
    return [output]


_MACHINES = {"c": "c", "wasm": "wasm32-unknown-unknown"}
"""The machine that a form is for where none is named."""


def _write_library(given: argparse.Namespace, screen: Screen, form: str) -> list[Path]:
    from weft.compiler.export import export_library

    folder: Path = given.output or Path(Path(given.model).stem)
    if folder.suffix in (".so", ".a", ".c", ".wasm", ".weft", ".onnx") or folder.is_file():
        raise UsageError(f"-o {folder}: a library is written with its header and an example into a folder: name that")
    if kind_of(given) != "weft":  # whose machine was chosen when it was compiled
        given.target = given.target or _MACHINES.get(form)
    module = open_module(given, screen)
    with screen.working("linking"):
        return export_library(module, folder, Path(given.model).stem, form, given.weights == "beside")


FORMS: dict[str, tuple[str, Callable[[argparse.Namespace, Screen], list[Path]]]] = {
    "weft": ("a compiled module", _write_weft),
    "onnx": ("the model itself, as ONNX", _write_onnx),
    "so": ("a shared library, its C header and an example main.c", partial(_write_library, form="so")),
    "a": ("the same as a static library, or objects for Windows and macOS", partial(_write_library, form="a")),
    "c": ("C99 without a heap, for any machine", partial(_write_library, form="c")),
    "wasm": ("a WebAssembly package for Node and pages", partial(_write_library, form="wasm")),
}
