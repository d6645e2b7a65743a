"""Native code from a file in this process, opened by the system's own loader; and the native runtime, of which a
process has one.

In: the bytes of a shared library, as `compiler/saved/link.py` makes one of each form. Out: a `Library` that gives
the addresses of its functions. A library brings a native runtime (thread pool and allocator): the first that is opened
in a process gives it to all that come later, those that are compiled here included. Its kernels call the runtime
through a table that `weft_bind` fills.
"""

from __future__ import annotations

import _ctypes
import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from weft.core.errors import ArgumentError, TargetError
from weft.core.knobs import knobs
from weft.runtime.abi import CALLED, FUNCTIONS
from weft.runtime.threads import on_change
from weft.runtime.topology import places

OWN = "weft_own_"
"""How the names of the native runtime begin that a library brings: weft_own_parallel_for."""


class NativeRuntime:
    """The native runtime: `addresses` by name, and its functions for use from Python."""

    def __init__(self, addresses: dict[str, int]) -> None:
        self.addresses = addresses
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        self.parallel_for = _function(addresses["weft_parallel_for"], None, pointer, pointer, integer, integer)
        self.allocate = _function(addresses["weft_allocate"], pointer, integer)
        self.release = _function(addresses["weft_release"], None, pointer)
        self.pool_size = _function(addresses["weft_pool_size"], integer)
        self.pool_shutdown = _function(addresses["weft_pool_shutdown"], ctypes.c_int32)
        self.pool_stalls = _function(addresses["weft_pool_stalls"], integer)
        self.pool_place = _function(addresses["weft_pool_place"], ctypes.c_int32, pointer, integer, ctypes.c_int32)
        self.cached_bytes = _function(addresses["weft_cached_bytes"], integer)
        self.trim = _function(addresses["weft_trim"], None)
        # It reads objects: unlike the others it is called with the interpreter's lock.
        self.call = ctypes.PYFUNCTYPE(integer, integer, integer, integer, integer)(addresses["weft_call"])


def _function(address: int, result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(address)


_lock = threading.Lock()
_native: NativeRuntime | None = None
_placed: tuple[str, int] = ("no", 0)


def process_runtime(addresses: Callable[[], dict[str, int]]) -> NativeRuntime:
    """The native runtime of this process: there, or made now of functions that are never unloaded.

    Its workers run in it until the process ends.
    """
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                made = NativeRuntime(addresses())
                # At exit the workers end before the things that their last region used are destroyed.
                atexit.register(made.pool_shutdown)
                _native = made
                on_change.append(place_workers)
        place_workers()
    return _native


def running_runtime() -> NativeRuntime | None:
    """The native runtime, if something in this process has needed it."""
    return _native


def place_workers() -> None:
    """Gives the workers the places and the priority that `weft.set_threads` or the environment chose."""
    global _placed
    chosen = (knobs.pin_threads, knobs.thread_priority)
    if _native is None or chosen == _placed:
        return
    numbers = places(chosen[0])
    if not _native.pool_place((ctypes.c_int32 * len(numbers))(*numbers), len(numbers), chosen[1]):
        raise ArgumentError("threads can be placed only while no call of a module is running")
    _placed = chosen


class Library:
    """A shared library from bytes. It is closed when this object goes: keep it as long as an address is in use."""

    def __init__(self, code: Any) -> None:
        self._handle, file = _opened(code)
        self._close = weakref.finalize(self, _closed, self._handle._handle, file)
        self._close.atexit = False

    def start(self) -> int:
        """Makes the code ready to be called: 0, or why this processor cannot run it (see `targets/cpu/startup.py`)."""
        code = int(self._handle.weft_startup())
        if code == 0:
            runtime = process_runtime(self._keep)
            self._handle.weft_bind(*(ctypes.c_void_p(runtime.addresses[name]) for name in CALLED))
        return code

    def _keep(self) -> dict[str, int]:
        """The native runtime that it brings, and stays loaded for."""
        self._close.detach()
        return {name: self.address(name.replace("weft_", OWN, 1)) for name in FUNCTIONS}

    def has(self, name: str) -> bool:
        """Whether it shows a name."""
        return hasattr(self._handle, name)

    def address(self, name: str) -> int:
        """Where a function of it is."""
        try:
            found = ctypes.cast(self._handle[name], ctypes.c_void_p).value
        except AttributeError:
            found = None
        if not found:
            raise TargetError(f"the library of a compiled model has no function {name[:80]}")
        return found


def _opened(code: Any) -> tuple[ctypes.CDLL, int | None]:
    """A library that lies in memory alone where the system can do that, else in a file that is removed at once.

    The loader knows libraries by the names of their files: the file in memory (its number) stays open as long as the
    library, so that no other gets its name.
    """
    try:
        file = os.memfd_create("weft", getattr(os, "MFD_CLOEXEC", 0))
    except (AttributeError, OSError):
        return _opened_from_file(code), None
    try:
        with os.fdopen(file, "wb", closefd=False) as writer:
            writer.write(code)
        return ctypes.CDLL(f"/proc/self/fd/{file}"), file
    except OSError:
        os.close(file)
        return _opened_from_file(code), None


def _closed(handle: int, file: int | None) -> None:
    _ctypes.dlclose(handle)
    if file is not None:
        os.close(file)


def _opened_from_file(code: Any) -> ctypes.CDLL:
    import tempfile

    handle, path = tempfile.mkstemp(prefix="weft-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        return ctypes.CDLL(path)
    except OSError as error:
        raise TargetError(
            f"the system cannot open the code of a compiled model: {error}. It may need a function that is not in this "
            "process (load its library first, with ctypes.CDLL(path, ctypes.RTLD_GLOBAL)), or the folder for temporary "
            f"files ({os.path.dirname(path)}) may not hold programs (TMPDIR names another)"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
