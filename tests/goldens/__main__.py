"""The command line of the goldens: see the package's docstring."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.goldens.choices import TARGETS, cases, kernels_of, path_of, text_of
from weft.targets.registry import find_target

ROOT = Path(__file__).parent.parent.parent


def _goldens(target: str) -> str:
    return "".join(text_of(*case) for case in cases(target))


def rewrite(names: list[str]) -> None:
    """Plans everything again and writes the files."""
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        for name, text in zip(names, pool.map(_goldens, names)):
            path_of(name).write_text(text)


def show(workload: str, target: str, precision: str | None) -> str:
    """A workload with all steps, and its loops as they are scheduled and as they are lowered."""
    machine = find_target(TARGETS[target])
    text = [text_of(target, workload, precision, steps=True)]
    for chosen in kernels_of(workload, machine, precision):
        if not isinstance(chosen, str):
            text += [repr(chosen.schedule.func), repr(machine.lower(chosen.kernel.scheduled))]
    return "\n".join(text)


def dump(folder: Path, names: list[str], only: str) -> None:
    """A file for each case, with all that `show` tells."""
    for name in names:
        for _, workload, precision in cases(name):
            if only in workload:
                (folder / f"{name} {workload} {precision or 'fp32'}").write_text(show(workload, name, precision))


def compare(commit: str, names: list[str], only: str) -> int:
    """What a commit chose otherwise: its own choices against those of this tree, step by step."""
    with tempfile.TemporaryDirectory() as temporary:
        old, before, after = (Path(temporary) / part for part in ("tree", "before", "after"))
        before.mkdir()
        after.mkdir()
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(old), commit], cwd=ROOT, check=True)
        try:
            shutil.copytree(Path(__file__).parent, old / "tests" / "goldens", dirs_exist_ok=True)
            for tree, folder in ((old, before), (ROOT, after)):
                command = [sys.executable, "-m", "tests.goldens", "--dump", str(folder), "--only", only]
                environment = {**os.environ, "PYTHONPATH": str(tree)}
                subprocess.run([*command, "--target", *names], cwd=tree, env=environment, check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
        return _differences(before, after)


def _differences(before: Path, after: Path) -> int:
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    changed = 0
    for name in names:
        old, new = (
            (folder / name).read_text().splitlines() if (folder / name).exists() else [] for folder in (before, after)
        )
        lines = list(difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm="", n=1))
        changed += bool(lines)
        print("\n".join(lines)) if lines else None
    print(f"{changed} of {len(names)} differ")
    return int(changed > 0)


def main() -> int:
    """Rewrites, shows or compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description="Which schedules are chosen.")
    parser.add_argument("--target", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--show", metavar="WORKLOAD", help="print one with all steps and loops")
    parser.add_argument("--precision", choices=["bf16", "fp16"])
    parser.add_argument("--compare", metavar="COMMIT", help="what a commit chose otherwise")
    parser.add_argument("--only", default="", help="workloads with this in their name")
    parser.add_argument("--dump", metavar="FOLDER", help="write every case, with all steps and loops, into a folder")
    given = parser.parse_args()
    if given.show:
        print("\n".join(show(given.show, name, given.precision) for name in given.target))
    elif given.dump:
        dump(Path(given.dump), given.target, given.only)
    elif given.compare:
        return compare(given.compare, given.target, given.only)
    else:
        rewrite(given.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
