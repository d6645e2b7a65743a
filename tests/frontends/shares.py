"""Long lists of cases: in shares that run apart, or by processes beside each other, and on where they ended.

parser = argparse.ArgumentParser(…)
add_arguments(parser)                          --share K/N, --json FILE, --jobs N, --limit SECONDS, --minutes M
for row in rows(given, cases, name, examine):  a dict for each case: those of the file first

With --jobs a case that ends its process, or takes longer than the limit, costs that process and no other case.
"""

import json
import queue
import sys
import threading
import time
from pathlib import Path

from benchmarks.served import Served, answer


def add_arguments(parser):
    parser.add_argument("--share", default="1/1", metavar="K/N", help="the k-th of n parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each case; keep those in it")
    parser.add_argument("--jobs", type=int, default=0, help="so many processes at a time (default: this one alone)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for each case of --jobs (default 120)")
    parser.add_argument("--minutes", type=float, default=1e9, help="end by then, whatever is left")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="only what these files say")
    parser.add_argument("--serve", action="store_true", help="(a process of --jobs: numbers in, rows out)")


def rows(given, cases, name, examine):
    """What `examine` says about each case of a share, with its name; what the file says about those that it knows."""
    if given.serve:
        answer(lambda line: examine(cases[int(line)]))
    part, parts = map(int, given.share.split("/"))
    files = [one for one in given.join or [given.json] if one and one.exists()]
    lines = [line for one in files for line in one.read_text().splitlines()]
    known = {row["name"]: row for row in map(json.loads, lines)}
    if given.join:
        yield from known.values()
        return
    mine = range(part - 1, len(cases), parts)
    yield from (known[name(cases[at])] for at in mine if name(cases[at]) in known)
    until = time.monotonic() + 60 * given.minutes
    left = [at for at in mine if name(cases[at]) not in known]
    one_by_one = ((at, examine(cases[at])) for at in left if time.monotonic() < until)
    for at, found in beside(given, left, until) if given.jobs else one_by_one:
        row = {"name": name(cases[at]), **found}
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row


def beside(given, numbers, until):
    """Each number with what processes say about it, as they say it."""
    waiting, found = queue.SimpleQueue(), queue.SimpleQueue()
    for number in numbers:
        waiting.put(number)
    for _ in range(given.jobs):
        threading.Thread(target=_feed, args=(given, waiting, found, until), daemon=True).start()
    for _ in range(given.jobs):
        while (one := found.get()) is not None:
            yield one


def _feed(given, waiting, found, until):
    """Keeps one process busy, and begins another where that ends."""
    served = Served([sys.executable, "-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:], "--serve"])
    while (left := until - time.monotonic()) > 0:
        try:
            number = waiting.get_nowait()
        except queue.Empty:
            break
        said = served.ask(str(number), min(given.limit, left))
        if isinstance(said, dict):
            found.put((number, said))
        elif time.monotonic() < until:
            found.put((number, {"outcome": "wrong", "said": f"wrong: {said}, after at most {given.limit:.0f} s"}))
    served.end()
    found.put(None)
