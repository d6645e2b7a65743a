"""Keys that sign module files, so that `weft.load(path, key=…)` takes only files that a holder of the key signed.

A key is 32 secret bytes, in a file that only its owner reads. A signature is an HMAC-SHA256 of the fingerprint of the
file's bytes. It is symmetric: whoever can check a file can also sign one, so a key belongs on machines of one owner.
(Signatures that strangers can check, such as Ed25519, are not in Python's own library: sign with a tool for that.)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from weft.core.errors import WeftError
from weft.runtime.cache_folder import read_file
from weft.runtime.fingerprint import fingerprint

KEY_BYTES = 32

Key = bytes | str | os.PathLike[str]
"""The bytes of a key, or the path of its file."""


class KeyFileError(WeftError, ValueError):
    """A key that cannot be read or made."""


def new_key(path: str | os.PathLike[str]) -> None:
    """Writes a new key to a file that only this user can read; one that is there is never written over."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise KeyFileError(f"the key {os.fspath(path)} cannot be made: {error.strerror}") from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"weft-key {os.urandom(KEY_BYTES).hex()}\n")


def read_key(key: Key) -> bytes:
    """The bytes of a key."""
    if isinstance(key, (bytes, bytearray, memoryview)):
        key = bytes(key)
        if len(key) < KEY_BYTES:
            raise KeyFileError(f"a key has {KEY_BYTES} bytes or more, not {len(key)}")
        return key
    if not isinstance(key, (str, os.PathLike)):
        raise KeyFileError(f"a key is the path of its file or its bytes, not a {type(key).__name__}")
    try:
        text = read_file(Path(key), 200).decode("ascii", "replace")
    except (OSError, ValueError) as error:
        raise KeyFileError(
            f"the key {os.fspath(key)} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    found = re.fullmatch(r"weft-key ([0-9a-f]{64})\s*", text)
    if found is None:
        raise KeyFileError(f"{os.fspath(key)} is no key: `weft sign --new-key FILE` makes one")
    return bytes.fromhex(found.group(1))


def signature_of(content: memoryview, key: Key) -> str:
    """The signature of these bytes."""
    import hmac  # and OpenSSL, which nobody needs who loads without a key

    return hmac.new(read_key(key), b"weft module " + fingerprint(content), "sha256").hexdigest()


def is_signature(found: str, content: memoryview, key: Key) -> bool:
    """Whether somebody who has the key signed these bytes with what was found."""
    import hmac

    return hmac.compare_digest(found.encode(), signature_of(content, key).encode())
