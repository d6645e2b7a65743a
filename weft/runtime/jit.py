"""LLVM IR text to machine code in this process.

In: the text of a module. Out: a `JitModule` that gives the addresses of its functions. The native runtime
(`runtime/native.py`) is compiled once per process, when the first module needs it, or taken from the cache folder; its
functions are then known by name to every module compiled after.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from typing import Any

import llvmlite.binding as llvm

from weft.core.errors import InternalError
from weft.runtime.native import FUNCTIONS, native_ir
from weft.runtime.object_cache import cached_object


class JitModule:
    """Machine code in memory. It is freed when this object is: keep it as long as an address is in use."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}

    def address(self, name: str) -> int:
        """The address of a function that the module defines."""
        # Kept, because llvmlite takes a lock to look it up, which a forked child may find taken for ever.
        found = self._addresses.get(name)
        if found is None:
            found = int(self._engine.get_function_address(name))
            if not found:
                raise InternalError(f"the compiled module defines no function {name!r}")
            self._addresses[name] = found
        return found


class NativeRuntime:
    """The compiled native runtime: `addresses` by name, and its functions for use from Python."""

    def __init__(self, addresses: dict[str, int]) -> None:
        self.addresses = addresses
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        self.parallel_for = _function(addresses["weft_parallel_for"], None, pointer, pointer, integer, integer)
        self.allocate = _function(addresses["weft_allocate"], pointer, integer)
        self.release = _function(addresses["weft_release"], None, pointer)
        self.pool_size = _function(addresses["weft_pool_size"], integer)
        self.pool_shutdown = _function(addresses["weft_pool_shutdown"], ctypes.c_int32)
        self.cached_bytes = _function(addresses["weft_cached_bytes"], integer)
        self.trim = _function(addresses["weft_trim"], None)


def host_triple() -> str:
    """The triple of the machine this process runs on."""
    return str(llvm.get_process_triple())


def host_machine(optimization: int = 3, cpu: str | None = None, features: str | None = None) -> Any:
    """An llvmlite TargetMachine for this process, by default with everything that the host's processor can do."""
    _initialize()
    if cpu is None:
        cpu = llvm.get_host_cpu_name()
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(host_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=optimization, codemodel="jitdefault", jit=True)


def compile_module(module: str | Any, machine: Any = None) -> JitModule:
    """Machine code for a module (LLVM IR text, or a verified llvmlite ModuleRef, which it takes over)."""
    native_runtime()
    return JitModule(_compile(module, machine or host_machine()))


def compile_kept(text: str) -> JitModule:
    """Machine code for a module that every process needs: its object code is kept in the cache folder."""
    native_runtime()
    return JitModule(_link(text, host_machine()))


def native_runtime() -> NativeRuntime:
    """The native runtime, compiled on first use and never unloaded: its workers run in it until the process ends."""
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                _native = _load_native()
    return _native


_lock = threading.Lock()
_native: NativeRuntime | None = None
_initialized = False


def _load_native() -> NativeRuntime:
    machine = host_machine()
    engine = _link(native_ir(host_triple(), str(machine.target_data)), machine)
    addresses = {name: int(engine.get_function_address(name)) for name in FUNCTIONS}
    for name, address in addresses.items():
        llvm.add_symbol(name, address)
    # Not ours to free any more: a worker may be inside this code while the interpreter is being torn down.
    engine.detach()
    runtime = NativeRuntime(addresses)
    # At exit the workers end before the things that their last region used are destroyed.
    atexit.register(runtime.pool_shutdown)
    return runtime


def _compile(module: str | Any, machine: Any) -> Any:
    if isinstance(module, str):
        module = llvm.parse_assembly(module)
        module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _link(text: str, machine: Any) -> Any:
    """An engine with the object code of a module, which an earlier process may have made."""
    code = cached_object(text, machine)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f'target triple = "{host_triple()}"\n'), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _initialize() -> None:
    global _initialized
    if not _initialized:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _initialized = True


def _function(address: int, result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(address)
