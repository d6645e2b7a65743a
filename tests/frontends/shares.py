"""Long lists of cases in shares that run apart, each of which goes on where it ended.

parser = argparse.ArgumentParser(…)
add_arguments(parser)                          --share K/N, --json FILE
for row in rows(given, cases, name, examine):  a dict for each case: those of the file first
"""

import json
from pathlib import Path


def add_arguments(parser):
    parser.add_argument("--share", default="1/1", metavar="K/N", help="the k-th of n parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each case; keep those in it")


def rows(given, cases, name, examine):
    """What `examine` says about each case of a share, with its name; what the file says about those that it knows."""
    part, parts = map(int, given.share.split("/"))
    known = {}
    if given.json and given.json.exists():
        known = {row["name"]: row for row in map(json.loads, given.json.read_text().splitlines())}
    for one in cases[part - 1 :: parts]:
        row = known.get(name(one))
        if row is None:
            row = {"name": name(one), **examine(one)}
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        yield row
