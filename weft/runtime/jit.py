"""Object files and LLVM IR to machine code in this process.

In: object files, or the text of a module, which is first made one. Out: a `JitModule` that gives the addresses of its
functions. The native runtime (`runtime/native.py`) is linked once per process, when the first module needs it, from
object code that an earlier process may have left in the cache folder; every module linked after can call it.

Linking is JITLink's, by LLVM's ORC. Each object file lies in one piece of memory, code beside its constants, and calls
leave it through stubs, so that pieces may lie as far apart as a large process makes them. What cannot be linked is a
TargetError. Each `JitModule` is an ORC session of its own (0.4 ms): with the session everything of it is freed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Iterable, Mapping
from typing import Any

import llvmlite.binding as llvm

from weft.core.errors import TargetError
from weft.runtime.abi import FUNCTIONS
from weft.runtime.library import NativeRuntime, process_runtime
from weft.runtime.native import native_ir
from weft.runtime.object_cache import cached_object

_DEFINED = re.compile(r'^define (?!internal |private )[^@]*@"?([\w.$]+)"?\(', re.MULTILINE)


class JitModule:
    """Machine code in memory, of which `names` can be called. It is freed when this object is: keep it as long as an
    address is in use.

    `known` says where functions are that the object files call and do not define; the others are looked for among the
    symbols of the process.
    """

    def __init__(self, objects: Iterable[bytes], names: Iterable[str], known: Mapping[str, int]) -> None:
        _initialize()
        builder = llvm.JITLibraryBuilder().add_current_process()
        for code in objects:
            builder.add_object_img(code)
        for name, address in known.items():
            builder.import_symbol(name, address)
        wanted = list(names)
        for name in wanted:
            builder.export_symbol(name)
        try:
            self._session = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
            self._code = builder.link(self._session, "weft")
        except RuntimeError as error:
            raise TargetError(
                f"the machine code of {', '.join(wanted)} cannot be loaded: {error}. The object files are damaged, or "
                "they need a function that is not in this process"
            ) from None
        # Looked up now: llvmlite takes a lock for that, which a forked child may find taken for ever.
        self._addresses = {name: int(self._code[name]) for name in wanted}

    def address(self, name: str) -> int:
        """The address of a function that the module was loaded for."""
        return self._addresses[name]

    def keep(self) -> None:
        """Leaves the code in the process for good."""
        self._code.detach()
        self._session.detach()


def defined_names(text: str) -> list[str]:
    """The functions of a module that others can call."""
    return _DEFINED.findall(text)


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
    return target.create_target_machine(cpu=cpu, features=features, opt=optimization, reloc="pic", codemodel="default")


def compile_module(text: str, machine: Any = None) -> JitModule:
    """Machine code for a module of LLVM IR text."""
    module = llvm.parse_assembly(text)
    module.verify()
    return JitModule([(machine or host_machine()).emit_object(module)], defined_names(text), known_symbols())


def known_symbols(externals: Iterable[str] = ()) -> dict[str, int]:
    """Where the native runtime's functions are, and these C functions; one that is not in this process is refused."""
    known = dict(native_runtime().addresses)
    process = ctypes.CDLL(None)
    for name in externals:
        if name in known:
            continue
        named = llvm.address_of_symbol(name)
        if not named and (function := getattr(process, name, None)) is not None:
            named = ctypes.cast(function, ctypes.c_void_p).value
        if not named:
            raise TargetError(
                f"the program calls the C function {name!r}, which is not in this process: load the library "
                "that has it with ctypes.CDLL(path, ctypes.RTLD_GLOBAL), or name it with llvmlite.binding.add_symbol"
            )
        known[name] = int(named)
    return known


def native_runtime() -> NativeRuntime:
    """The native runtime of this process, compiled on first use and never unloaded."""
    return process_runtime(_native_addresses)


_initialized = False


def _native_addresses() -> dict[str, int]:
    machine = host_machine()
    code = JitModule([cached_object(native_ir(host_triple(), str(machine.target_data)), machine)], FUNCTIONS, {})
    # Not ours to free any more: a worker may be inside this code while the interpreter is being torn down.
    code.keep()
    return {name: code.address(name) for name in FUNCTIONS}


def _initialize() -> None:
    global _initialized
    if not _initialized:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        if mathematics := ctypes.util.find_library("m"):
            ctypes.CDLL(mathematics, ctypes.RTLD_GLOBAL)  # LLVM adds calls of it that no program names
        _initialized = True
