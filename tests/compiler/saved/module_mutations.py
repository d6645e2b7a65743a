"""Mutated module files: each number, text and list of a manifest changed, the checksum made anew, loaded and run.

As a program it takes files and a share of the mutations, and writes which mutation comes next before it tries it, so
that whoever started it knows what ended it. Arrays of the model are fenced: behind each lies a page that nothing may
touch. Anything but a ModuleFileError, an answer or a WeftError of the run is a failure.
"""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.core import model as numbers

MOST_WORDS = 120
"""Of one text so many words are changed, evenly; programs for a device are long."""


def mutations(manifest: Any) -> Iterator[tuple[str, str]]:
    """Every mutation of a manifest: its place, and the text of the changed one."""
    for path in _places(manifest, ()):
        for new in _changes(_at(manifest, path)):
            yield f"{'.'.join(map(str, path))} -> {str(new)[:60]}", json.dumps(_changed(manifest, path, new))


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], new)
    return copy


def _changes(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from (not value, None, 2)
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value + 64, value // 2, 0, 1 << 40, 1 << 62, -1, 1 << 70, True)
        yield from (f"0{value}", 0.5, None, [])
    elif isinstance(value, str):
        yield from ("", value + "x", value[:-1], 7, None, value * 3)
        words = list(re.finditer(r"\d+|float32|int64|float|true|false|\b[A-Z]\w+", value))
        for found in words[:: -(-len(words) // MOST_WORDS) or 1]:
            for new in _words(found.group()):
                yield value[: found.start()] + new + value[found.end() :]
    elif isinstance(value, list):
        yield from ([], value[:-1], value[1:], value + value[-1:], value[::-1], None, {}, 3)
    elif isinstance(value, dict):
        yield from ({}, None, [])
        for name in value:
            yield {key: one for key, one in value.items() if key != name}
        yield {**value, "more": 1}
    else:
        yield from (0, "", [])


def _words(word: str) -> list[str]:
    if word.isdigit():
        return [str(int(word) + 1), "0", str(int(word) * 3 + 1), str(1 << 40)]
    others = {"float32": ["float64", "float16", "int64", "string"], "int64": ["int8", "float32"], "true": ["false"]}
    return others.get(word, ["Relu", "Identity"])


def rewritten(source: Path, manifest: str) -> bytes:
    """A module file with another manifest, its checksum made anew: what a writer of such files would write."""
    from weft.runtime.model import module_file

    out = io.BytesIO(source.read_bytes())
    with warnings.catch_warnings(), zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # there are two manifests now, of which the second counts
        archive.writestr("manifest.json", manifest)
        archive.comment = bytes(module_file.TRAILER_BYTES)
    return closed(out.getvalue())


def closed(data: bytes) -> bytes:
    """A file with the checksum that fits it."""
    from weft.runtime.fingerprint import checksum
    from weft.runtime.model import module_file

    body = data[: -module_file.TRAILER_BYTES]
    found = checksum(memoryview(body), len(body))
    return body + module_file.TRAILER.format(checksum=found, signature=module_file.UNSIGNED).encode()


# ------------------------------------------------------------------------------------------------------------- fences

_libc = ctypes.CDLL(None)
_kept: list[Any] = []


def fenced(shape: Any, dtype: Any = float, *_: Any, **__: Any) -> Any:
    """An array whose end lies at a page that nothing may touch."""
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if dtype.hasobject or not 0 < size < 1 << 24:
        return _empty(shape, dtype)
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _libc.mprotect(ctypes.c_void_p(address + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return np.frombuffer(memory, np.uint8, size, pages - size).view(dtype).reshape(shape)


_empty = np.empty


def main(folder: Path, first: int, stride: int) -> None:
    """Tries the mutations first, first + stride, … of each file; prints how they ended."""
    import weft.ops  # noqa: F401
    from weft.compiler import load
    from weft.core.errors import WeftError
    from weft.runtime.model.manifest import ModuleFileError

    warnings.simplefilter("ignore")
    price = numbers.BODY_PRICE
    counts: Counter[str] = Counter()
    for source in sorted(folder.glob("*.weft")):
        given = dict(np.load(source.with_suffix(".npz")))
        wanted = [given.pop(name) for name in sorted(given) if name.startswith("out:")]
        with zipfile.ZipFile(source) as archive:
            manifest = json.loads(archive.read("manifest.json"))
        broken = folder / "mutated.tmp"
        for at, (place, text) in enumerate(mutations(manifest)):
            if at % stride != first % stride:
                continue
            (folder / "now").write_text(f"{source.name} {place}")
            broken.write_bytes(rewritten(source, text))
            np.empty = fenced
            numbers.BODY_PRICE = 0.0 if at % 2 else price  # compiled at once, or interpreted
            try:
                module = load(broken)
                feeds = {}
                for name, array in given.items():
                    feeds[name] = fenced(array.shape, array.dtype)
                    feeds[name][...] = array
                made = module.run(None, feeds)
                same = len(made) == len(wanted) and all(map(_alike, made, wanted))
                counts["right" if same else "another answer"] += 1
                if not same:
                    print("another answer:", source.name, place)
            except ModuleFileError:
                counts["refused"] += 1
            except WeftError as error:
                counts["refused when run"] += 1
                print("when run:", source.name, place, "|", str(error)[:100])
            finally:
                np.empty = _empty
    print(json.dumps(counts))


def _alike(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, 1e-4, 1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
