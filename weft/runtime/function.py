"""Compiled functions: machine code that is called with arrays.

In: a signature and the address of `int32_t name(const int64_t *slots, int64_t threads)`. Out: a Python callable that
checks its arguments, fills the slots, and runs the code with the GIL released.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NoReturn

from weft.core.errors import InternalError, RuntimeFault
from weft.runtime.arguments import bind, fast_binder, share
from weft.runtime.faults import reason_of
from weft.runtime.signature import Dim, Parameter, Signature
from weft.runtime.threads import check_threads, get_threads

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompiledFunction", "Dim", "InProcess", "Parameter", "Signature"]

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64)


class InProcess:
    """A function whose code is loaded here. Copies are the function itself, as with Python's own; pickle is refused."""

    signature: Signature

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the compiled function {self.signature.name} cannot be pickled: its code lies in this process. Pickle the "
            "schedule instead, and build it in the other process"
        )


class CompiledFunction(InProcess):
    """A function in machine code. Call it with one argument per parameter; arrays that it writes are given too.

    `keep_alive` is whatever owns the code. `threads` is the default of this function's parallel loops; the call's own
    `threads` comes before it, the process's `get_threads()` after it.
    """

    def __init__(
        self,
        signature: Signature,
        address: int,
        keep_alive: Any = None,
        threads: int | None = None,
        entry_name: str | None = None,
    ) -> None:
        if not address:
            raise InternalError(f"the function {signature.name} was compiled to no address")
        self.signature = signature
        self.address = address
        self.entry_name = signature.name if entry_name is None else entry_name
        self.threads = None if threads is None else check_threads(threads)
        self._keep_alive = keep_alive
        self._entry = _ENTRY(address)
        self._fast = fast_binder(signature)
        self._count = len(signature.parameters)

    def __call__(self, *arguments: Any, threads: int | None = None) -> None:
        """Run the function; returns when everything is written."""
        slots = self._fast(arguments) if len(arguments) == self._count else None
        kept = None
        if slots is None:
            slots, kept = self._bind_others(arguments)
        if threads is None:
            threads = self.threads or get_threads()
        elif type(threads) is not int or not 1 <= threads <= 1024:
            threads = check_threads(threads)
        code = self._entry(slots, threads)
        del kept
        if code:
            raise RuntimeFault(f"{self.signature.name} failed: {reason_of(code)}")

    def _bind_others(self, arguments: tuple[Any, ...]) -> tuple[bytes, list[Any]]:
        """The slots, and what must live as long as the call, when not every argument is a numpy array that fits."""
        shared = share(self.signature, arguments)
        slots = None if shared is None else self._fast(shared)
        if shared is None or slots is None:
            return bind(self.signature, arguments)
        return slots, shared

    def __repr__(self) -> str:
        return f"CompiledFunction({self.signature.name}({', '.join(p.name for p in self.signature.parameters)}))"
