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
from weft.runtime.model.keys import new_key
from weft.runtime.model.module_file import check_signature, sign_module


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("files", nargs="*", type=Path, help="module files that `weft compile` or Module.save wrote")
    parser.add_argument("--key", type=Path, help="the file of the key to sign with")
    parser.add_argument("--new-key", type=Path, metavar="FILE", help="make a key, and sign nothing yet")
    parser.add_argument("--check", action="store_true", help="do not sign: say whether the files are signed")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.new_key is not None:
        if given.key is not None or given.check or given.files:
            raise ArgumentError("--new-key FILE makes a key and nothing else: sign with --key FILE then")
        new_key(given.new_key)
    elif given.key is None or not given.files:
        raise ArgumentError("give module files and --key FILE, to sign them, or --new-key FILE alone, to make a key")
    act = check_signature if given.check else sign_module
    for path in given.files:
        act(path, str(given.key))
    if screen.as_json:
        screen.figures({"key": given.key or given.new_key, "signed": given.files, "checked": given.check})
    elif given.new_key is not None:
        screen.line(f"{given.new_key}: a new key. Whoever has it can sign files: keep it secret")
    for path in [] if screen.as_json else given.files:
        screen.line(f"{path}: signed with {given.key}")
    return 0
