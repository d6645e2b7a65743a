"""From what the caller has (path, bytes, ModelProto, open file) to a ModelProto and the folder of its external data.

Large weights of a file stay in it until they are wanted (`skim.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import stat
from pathlib import Path
from typing import Any

from weft.core.errors import FrontendError
from weft.core.install import hint
from weft.frontends.onnx.skim import LARGE, skim

LARGEST_FILE = 2**31 - 1
"""A protobuf message cannot be larger; bigger models keep their weights in files of their own."""


class Source:
    """A parsed model, where it came from (for messages), the folder that external data may be read from, and the file
    that its large weights lie in.
    """

    __slots__ = ("file", "folder", "label", "model")

    def __init__(self, model: Any, label: str, folder: Path | None, file: Path | None = None) -> None:
        self.model = model
        self.label = label
        self.folder = folder
        self.file = file


def onnx_module(name: str = "onnx") -> Any:
    """The onnx package, or one of its modules; a message that says how to get it where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FrontendError(
            f"reading ONNX models needs the package onnx, which could not be imported ({error}); "
            f"install it with: {hint('onnx')}"
        ) from error


def open_source(model: Any, folder: str | os.PathLike[str] | None = None) -> Source:
    """Parses a model. `folder` says where external data lies; for a path it is the folder of the file."""
    onnx = onnx_module()
    given = None if folder is None else Path(folder)
    if isinstance(model, onnx.ModelProto):
        _check_text(model, "the ModelProto given", "model")
        return Source(model, "a ModelProto", given)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return Source(_parse(onnx, bytes(model), "the bytes given"), "bytes", given)
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        data = _read_path(path)
        return Source(_parse(onnx, data, str(path)), path.name, given or path.absolute().parent, path.absolute())
    if callable(getattr(model, "read", None)):
        return _from_file(onnx, model, given)
    raise FrontendError(
        "an ONNX model is a path, bytes, an onnx.ModelProto or a file open for reading bytes, "
        f"not {type(model).__name__}"
    )


def _from_file(onnx: Any, file: Any, folder: Path | None) -> Source:
    data = file.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise FrontendError("the file must be open for reading bytes: open(path, 'rb')")
    name = getattr(file, "name", None)
    if isinstance(name, str) and os.path.isfile(name):
        path = Path(name).absolute()
        return Source(_parse(onnx, bytes(data), str(path)), path.name, folder or path.parent)
    return Source(_parse(onnx, bytes(data), "the file given"), "a file", folder)


def _read_path(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FrontendError(f"{path} is not a file")
        if found.st_size > LARGEST_FILE:
            raise FrontendError(
                f"{path} has {found.st_size} bytes, and a protobuf message has at most {LARGEST_FILE}: this is no ONNX "
                "model; one that large keeps its weights as external data"
            )
        if found.st_size >= LARGE:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                with memoryview(mapped) as data, contextlib.suppress(ValueError, IndexError):  # protobuf says why
                    return skim(data)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FrontendError):
            raise
        raise FrontendError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _parse(onnx: Any, data: bytes, where: str) -> Any:
    message = onnx_module("google.protobuf.message")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (message.DecodeError, ValueError, RuntimeError) as error:
        raise FrontendError(f"{where} is no ONNX model, or a damaged one ({error})") from error
    if not model.HasField("graph"):
        raise FrontendError(f"{where} holds no graph: it is no ONNX model, or a truncated one")
    _check_text(model, where, "model")
    return model


def _check_text(message: Any, where: str, path: str) -> None:
    """Names must be text: protobuf hands over as bytes what is not UTF-8, and no later layer expects that."""
    damage = _damage(message)
    if damage:
        raise FrontendError(f"{where} is damaged: {path}{damage}, which is not UTF-8 text")


def _damage(message: Any) -> str:
    """Where bytes stand for text, and which; empty if nowhere. Of a tensor only the name: the rest would be copied."""
    if message.DESCRIPTOR.name == "TensorProto":
        return f".name is {message.name[:40]!r}" if isinstance(message.name, bytes) else ""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            one = hasattr(value, "ListFields")
            for at, part in enumerate((value,) if one else value):
                found = _damage(part)
                if found:
                    return f".{field.name}{found}" if one else f".{field.name}[{at}]{found}"
        elif field.type == field.TYPE_STRING and field.name != "doc_string":
            for text in (value,) if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    return f".{field.name} is {text[:40]!r}"
    return ""
