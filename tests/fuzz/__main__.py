"""Fuzzing, as long as one likes.

    python -m tests.fuzz --minutes 30 --jobs 2                 goes on where the last run of this code ended
    python -m tests.fuzz --kinds operators,graphs --cases 500  so many cases of each of these kinds
    python -m tests.fuzz --kind operators --seed 4711          one case again, made as small as it stays wrong
    python -m tests.fuzz --report                              the counts and findings so far

The state is in build/fuzz. The exit code is 1 where there are findings.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.fuzz.driver import ROOT, Driver, State, code_version, freeze, run_one
from tests.fuzz.kinds import MODULES, find_kind


def main() -> int:
    """Reads the command line and does what it asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzing, as long as one likes.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", default="", help="names with commas between them; all, where none is said")
    parser.add_argument("--cases", type=int, help="at most so many more of each kind")
    parser.add_argument("--kind", help="with --seed: one case again")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--report", action="store_true", help="what was counted and found so far")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WEFT_CACHE_DIR", str(options.folder / "cache"))
    if options.kind:
        result, text = run_one(find_kind(options.kind), options.seed or 0, options.folder)
        print(f"{text}\n{result.signature}\n{result.detail}")
        return 0 if result.is_good else 1
    state = State(options.folder / "state.sqlite", code_version())
    if not options.report:
        began = time.monotonic()
        kinds = [find_kind(name) for name in options.kinds.split(",") if name] or [find_kind(name) for name in MODULES]
        for kind in kinds:
            kind.make(0)  # what the making of cases loads is loaded once, before the workers are forked
        freeze()
        print(f"code {state.version}, {options.jobs} workers, ready after {time.monotonic() - began:.0f} s", flush=True)
        driver = Driver(kinds, state, options.jobs, options.folder, lambda text: print(text, flush=True))
        try:
            driver.run(options.minutes, options.cases)
        except KeyboardInterrupt:
            print("stopped; the next run goes on from here")
    found = state.findings()
    print(f"\n{state.reasons()}\n\n{state.table()}\n")
    for kind, seed, outcome, reason, _, smallest in found:
        print(f"{kind} --seed {seed}: {outcome}: {reason}\n    " + smallest.replace("\n", "\n    "))
    print(f"{len(found)} findings" if found else "no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
