"""Long lists of cases: in shares that run apart, or by processes beside each other, and on where they ended.

parser = argparse.ArgumentParser(…)
add_arguments(parser)                          --share K/N, --json FILE, --jobs N, --limit SECONDS, --minutes M
for row in rows(given, cases, name, examine):  a dict for each case: those of the file first

With --jobs a case that ends its process, or takes longer than the limit, costs that process and no other case.
"""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

MARK = "\0row "
"""What a line with a row begins with, since libraries write lines of their own."""


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
        for line in sys.stdin:
            print(MARK + json.dumps(examine(cases[int(line)])), flush=True)
        sys.exit()
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
    process = None
    while not waiting.empty() and time.monotonic() < until:
        try:
            number = waiting.get_nowait()
        except queue.Empty:
            break
        if process is None:
            command = [sys.executable, "-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:], "--serve"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        cut = until - time.monotonic() < given.limit
        timer = threading.Timer(min(given.limit, until - time.monotonic()), process.kill)
        timer.start()
        with contextlib.suppress(BrokenPipeError):  # then it ended already, and says no line
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        line = next((line for line in process.stdout if line.startswith(MARK)), None)
        timer.cancel()
        if line is not None:
            found.put((number, json.loads(line[len(MARK) :])))
            continue
        status, process = process.wait(), None
        if not (cut and status == -9):
            said = f"wrong: the process ended with {status}, or took more than {given.limit:.0f} s"
            found.put((number, {"outcome": "wrong", "said": said}))
    if process is not None:
        process.kill()
    found.put(None)
