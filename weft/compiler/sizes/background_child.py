"""What a child of `background.py` runs: `python -m weft.compiler.sizes.background_child MODULE SHAPES CORES FORM`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from weft.compiler.saved.store import write_form
from weft.runtime.model.stored import load


def main(arguments: Sequence[str]) -> None:
    """What a child does: one form of the module in a file, into another."""
    with contextlib.suppress(OSError):
        os.nice(19)
    module, shapes, cores, form = arguments
    executor = load(module)._executor  # the compiler's, since the file has no code
    executor.target = replace(executor.target, cores=int(cores))
    given = {name: tuple(shape) for name, shape in json.loads(shapes).items()}
    write_form(Path(form), executor, executor.form(given, {}))


if __name__ == "__main__":
    main(sys.argv[1:])
