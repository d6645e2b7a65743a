"""`weft sign`: signs module files with a key, or makes a key.

weft sign --new-key team.key                         a new key, in a file that only this user reads
weft sign model.weft --key team.key                  weft.load("model.weft", key="team.key") takes it
weft sign model.weft --key team.key --check          says whether it is signed with that key
"""

from __future__ import annotations

import argparse
from pathlib import Path

from weft.cli.screen import Screen
from weft.core.errors import ArgumentError
from weft.executor.keys import new_key
from weft.executor.store import check_signature, sign_module


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("files", nargs="*", type=Path, help="module files that `weft compile` or Module.save wrote")
    parser.add_argument("--key", type=Path, help="the file of the key to sign with")
    parser.add_argument("--new-key", type=Path, metavar="FILE", help="make a key first, and sign with it")
    parser.add_argument("--check", action="store_true", help="do not sign: say whether the files are signed")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if (given.key is None) == (given.new_key is None):
        raise ArgumentError("give either --key FILE, to sign with that key, or --new-key FILE, to make one")
    if given.new_key is not None and given.check:
        raise ArgumentError("nothing is signed yet with a new key: --check takes --key FILE")
    if given.key is not None and not given.files:
        raise ArgumentError("give the module files to sign")
    key: Path = given.key or given.new_key
    if given.new_key is not None:
        new_key(key)
        screen.line(f"{key}: a new key. Whoever has it can sign files: keep it secret")
    for path in given.files:
        if given.check:
            check_signature(path, key)
        else:
            sign_module(path, key)
        screen.line(f"{path}: signed with {key}")
    return 0
