"""A device server, as a client sees it: a connection that both sides have authenticated, uploads, runs.

with Connection("board", 7400, key) as device:
    found = device.run([Call(library, "kernel", [a, b, Result(c.nbytes)])], rounds=5)
    found.results, found.samples

`server.c` says how messages look. Every answer is checked: its MAC, its length, its numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weft.pool import settings
from weft.tuner.records import Status, TuneError

MAGIC = b"WEFTDEV2"
INFO, PUT, RUN, GOOD, BAD = 1, 2, 3, 0x80, 0x81
STATUSES = (Status.OK, Status.FAULT, Status.CRASH, Status.HANG, Status.BUILD_ERROR, Status.CRASH)
"""By the number that the server says; the last is a child without memory."""
MOST_ANSWER = 1 << 30


class PoolError(TuneError):
    """A pool or a device that does not do what was asked for: which, and what to do."""


class Result(NamedTuple):
    """An argument that a kernel writes: so many bytes, zeros at first."""

    bytes: int


class Scratch(NamedTuple):
    """An argument that a kernel works in: so many bytes, zeros at first, which nobody asks for afterwards."""

    bytes: int


class Call(NamedTuple):
    """A function of a library, `int32_t name(const int64_t *arguments, int64_t threads)`, and its arguments."""

    library: bytes
    name: str
    arguments: Sequence[bytes | Result | Scratch]


class Samples(NamedTuple):
    """What rounds of one call took: for each the processor's time and the wall's, in nanoseconds, for `repeats` calls.

    Where instructions are counted there is one round: instructions, and loads and stores that missed the cache.
    """

    repeats: int
    rounds: tuple[tuple[int, int], ...]


class Ran(NamedTuple):
    """What came of a run."""

    status: Status
    detail: str = ""
    samples: tuple[Samples, ...] = ()
    results: tuple[tuple[bytes, ...], ...] = ()
    """Of each call, what it wrote."""


def read_key(path: Path | str) -> bytes:
    """The key in a file: 64 hexadecimal digits, for its owner's eyes."""
    file = Path(path)
    try:
        is_open, text = file.stat().st_mode & 0o077, file.read_text(errors="replace").strip()
    except OSError as error:
        raise PoolError(f"the key {file} cannot be read: {error.strerror}") from None
    if is_open:
        raise PoolError(f"others may read the key in {file}: chmod 600 {file}")
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise PoolError(f"{file} holds no key: 64 hexadecimal digits, as `weft pool init` writes them")
    return bytes.fromhex(text)


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


@dataclass
class _Side:
    key: bytes
    count: int = 0

    def mac(self, part: bytes, data: bytes) -> bytes:
        return _mac(self.key, struct.pack("<Q", self.count), part, data)


@dataclass
class Connection:
    """A connection to a device server. A PoolError where there is none, or where the other side has another key."""

    host: str
    port: int
    key: bytes = field(repr=False)
    patience: float = settings.CONNECT_SECONDS

    def __post_init__(self) -> None:
        try:
            self._socket = socket.create_connection((self.host, self.port), self.patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet()
        except OSError as error:
            raise PoolError(f"no device server answers at {self.host}:{self.port}: {error}") from None
        self._there: set[bytes] = set()

    def _greet(self) -> None:
        mine = secrets.token_bytes(32)
        self._socket.sendall(MAGIC + mine)
        try:
            theirs, proof = self._receive(32), self._receive(32)
        except ConnectionError as error:
            raise ConnectionError(f"{error}; if it is one of another version, weft pool server makes ours") from None
        both = mine + theirs
        if not hmac.compare_digest(proof, _mac(self.key, b"server", both)):
            raise PoolError(f"{self.host}:{self.port} does not have our key: nothing was sent to it")
        self._socket.sendall(_mac(self.key, b"client", both))
        self._out, self._in = _Side(_mac(self.key, b"to server", both)), _Side(_mac(self.key, b"to client", both))

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------------- messages

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("it hung up")
            data += part
        return bytes(data)

    def _checked(self, part: bytes, size: int) -> bytes:
        data = self._receive(size)
        if not hmac.compare_digest(self._receive(32), self._in.mac(part, data)):
            raise ConnectionError("a message was changed on its way")
        return data

    def ask(self, kind: int, body: bytes, seconds: float) -> bytes:
        """The answer to a message; a PoolError where the server complains, or does not answer in so many seconds."""
        self._socket.settimeout(seconds)
        header = struct.pack("<II", len(body), kind)
        try:
            self._socket.sendall(header + self._out.mac(b"h", header))
            self._socket.sendall(body)
            self._socket.sendall(self._out.mac(b"b", body))
            self._out.count += 1
            size, answer = struct.unpack("<II", self._checked(b"h", 8))
            if size > MOST_ANSWER or answer not in (GOOD, BAD):
                raise ConnectionError("it says nonsense")
            got = self._checked(b"b", size)
            self._in.count += 1
        except OSError as error:
            self.close()
            raise PoolError(f"the device server at {self.host}:{self.port} was lost: {error}") from None
        if answer == BAD:
            raise PoolError(f"the device server at {self.host}:{self.port} says: {got.decode(errors='replace')}")
        return got

    def info(self) -> dict[str, str]:
        """The facts of the device."""
        lines = self.ask(INFO, b"", settings.CONNECT_SECONDS).decode(errors="replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def put(self, data: bytes) -> bytes:
        """Uploads bytes, unless they are there already; their hash, by which runs name them."""
        name = hashlib.sha256(data).digest()
        if name not in self._there:
            if self.ask(PUT, data, 60.0 + len(data) / 1e5) != name:
                raise PoolError(f"the device server at {self.host}:{self.port} kept other bytes than we sent")
            self._there.add(name)
        return name

    def run(
        self, calls: Sequence[Call], rounds: int = 5, sample: float = 300e-6, seconds: int = 10, memory: int = 0,
        counts: bool = False,
    ) -> Ran:  # fmt: skip
        """Calls functions in turns, in a child of the server's with so many seconds and bytes of memory (0: all)."""
        body = self._request(
            calls, struct.pack("<IIIIQQ", len(calls), rounds, counts, seconds, int(sample * 1e9), memory)
        )
        try:
            got = self.ask(RUN, body, 4 * seconds + 60.0)
        except PoolError as error:
            if "not here" not in str(error) and "no library" not in str(error):
                raise
            self._there.clear()  # the server made room by forgetting what it had
            got = self.ask(RUN, self._request(calls, body[:32]), 4 * seconds + 60.0)
        return read_ran(got, calls)

    def _request(self, calls: Sequence[Call], head: bytes) -> bytes:
        for call in calls:
            for one in (call.library, *call.arguments):
                if isinstance(one, bytes):
                    self.put(one)
        body = bytearray(head)
        for call in calls:
            body += self.put(call.library) + struct.pack("<64sI", call.name.encode(), len(call.arguments))
            for one in call.arguments:
                if isinstance(one, bytes):
                    body += struct.pack("<IQ32s", 0, len(one), self.put(one))
                else:
                    body += struct.pack("<IQ32s", KINDS[type(one)], one.bytes, b"")
        return bytes(body)


KINDS: dict[type, int] = {Result: 1, Scratch: 2}
"""What the server calls arguments that nobody gives."""


def read_ran(got: bytes, calls: Sequence[Call]) -> Ran:
    """What an answer to RUN says."""
    try:
        return _ran(got, calls)
    except (struct.error, IndexError, ValueError) as error:
        return Ran(Status.GARBAGE, f"the device's answer makes no sense: {error}")


def _ran(got: bytes, calls: Sequence[Call]) -> Ran:
    number, detail = struct.unpack_from("<II", got)
    text = got[8:208].split(b"\0")[0].decode(errors="replace")
    status = STATUSES[number]
    if status is Status.CRASH:
        text = text or (signal.Signals(detail).name if detail else "it ended and said nothing")
    elif status is Status.HANG:
        text = f"it did not finish in {detail} s"
    elif status is Status.FAULT:
        text = f"{text} (code {detail})"
    if status is not Status.OK:
        return Ran(status, text)
    samples, at = [], 208
    for _ in calls:
        rounds, repeats = struct.unpack_from("<QQ", got, at)
        pairs = tuple(struct.unpack_from("<QQ", got, at + 16 + 16 * one) for one in range(rounds))
        samples.append(Samples(max(repeats, 1), pairs))
        at += 16 + 16 * rounds
    results = []
    for call in calls:
        parts = []
        for one in call.arguments:
            if isinstance(one, Result):
                parts.append(got[at : at + one.bytes])
                at += one.bytes
        results.append(tuple(parts))
    if at != len(got):
        raise ValueError(f"{len(got)} bytes instead of {at}")
    return Ran(status, "", tuple(samples), tuple(results))
