"""What Python code does, as a hash: operators and targets that users registered decide how a model is compiled, too.

In: functions. Out: a hash that changes when they do: of their bytecode and constants, defaults, attributes, what their
closures hold, the globals that they name, the modules that they import, and so on through all of these, arrays by their
bytes. Of a module those names count that any of this code speaks of, in texts too (`getattr(m, "scale")`). Weft's own
code and installed packages stand for themselves by version (the cache's key has Weft's whole source). What cannot be
looked into, such as a lock, an open file or a module that is yet to be imported, is an `Opaque` error: what depends on
it is not kept on disk. What code reads from elsewhere when it runs, such as files, is not seen.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import WeftError
from weft.graph.opspec import OpSpec, is_of_users, operators
from weft.runtime.fingerprint import fingerprint
from weft.targets.base import TargetSpec


class Opaque(WeftError):
    """Something that code uses and that cannot be described."""


def operators_key() -> str:
    """A hash of every operator whose code is not Weft's own; `Opaque` where one cannot be described."""
    users = [spec for _, spec in sorted(operators().items()) if not _is_own(spec)]
    names: frozenset[str] = frozenset()
    while True:  # what is found in modules by a name may speak of further names
        writer = _Writer(names)
        for spec in users:
            writer.put("operator", spec.domain, spec.name)
            for part in OpSpec.__slots__:
                writer.value(getattr(spec, part), f"the operator {spec.name}")
        if writer.spoken <= names:
            return writer.digest.hexdigest()
        names |= writer.spoken


def target_key(spec: TargetSpec) -> str:
    """A hash of the files that a target's manifest was made in; "" for Weft's own, `Opaque` where there are none.

    A target declares instructions and tables beside its functions: all files of its packages count.
    """
    functions = [getattr(one, "func", one) for one in spec.parts().values() if callable(one)]
    modules = {str(getattr(one, "__module__", None) or type(one).__module__) for one in functions}
    roots = sorted({_package(name) for name in modules} - {"weft"})
    if not roots:
        return ""
    digest = hashlib.sha256()
    for module in sorted(name for name in modules if _package(name) in roots):
        place = getattr(sys.modules.get(module), "__file__", None)
        if place is None:
            raise Opaque(f"the target {spec.kind}: {module} is no file")
        around = getattr(sys.modules.get(module.rpartition(".")[0]), "__path__", None)
        for path in [Path(place)] if around is None else sorted(Path(place).parent.rglob("*.py")):
            digest.update(f"{path.name} ".encode() + path.read_bytes())
    return digest.hexdigest()


def _is_own(spec: OpSpec) -> bool:
    """Whether an operator is made of Weft's code alone, to the last cell of a closure."""
    return not is_of_users(spec) and all(_is_weft(getattr(spec, part), 0) for part in OpSpec.__slots__)


def _is_weft(value: Any, depth: int) -> bool:
    if value is None or isinstance(value, (str, int, float, np.dtype)):
        return True
    inside: Iterable[Any] = ()
    if isinstance(value, (tuple, list, set, frozenset)):
        inside = value
    elif isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, types.FunctionType):
        inside = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *_cells(value)]
    elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        inside = [getattr(value, "__func__", None), value.__self__]
    elif not isinstance(value, (type, types.ModuleType)):
        inside = getattr(value, "__dict__", {}).values()
    named = value if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) else type(value)
    if depth == _DEEPEST or _package(getattr(named, "__module__", None) or "") not in ("weft", "numpy", "builtins"):
        return False
    return all(_is_weft(one, depth + 1) for one in inside)


_DEEPEST = 8
"""What lies deeper is described, whoever made it."""


def _package(module: str) -> str:
    return module.partition(".")[0]


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet: a function that names itself
            yield None


@functools.lru_cache(maxsize=256)
def _version(package: str) -> str | None:
    """The version of Weft, Python or an installed package; None for code of the user's own, which may change."""
    if package in ("weft", "builtins") or package in sys.stdlib_module_names and package != "__main__":
        return sys.version
    module = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if module is None else None
    place = Path((getattr(module, "__file__", None) if spec is None else spec.origin) or "")
    if not {"site-packages", "dist-packages"} & set(place.parts):
        return None
    try:
        return str(getattr(module, "__version__", None) or metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


class _Writer:
    """Puts values into a hash; one that was seen before is put as its number, so circles end.

    `names` are those that are looked up in modules, `spoken` those that the code speaks of.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.spoken: set[str] = set()
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []

    def put(self, *texts: object) -> None:
        """Adds texts, each with its length."""
        for text in texts:
            data = str(text).encode("utf-8", "surrogatepass")
            self.digest.update(b"%d:%s" % (len(data), data))

    def value(self, value: Any, where: str) -> None:
        """Adds a value."""
        kind = type(value)
        self.put(kind.__module__, kind.__qualname__)
        if kind in _PLAIN:
            self.put(repr(value))
            return
        if id(value) in self.seen:
            self.put("again", self.seen[id(value)])
            return
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        if isinstance(value, types.ModuleType):
            self.module(value, where)
        elif isinstance(value, types.CodeType):
            self.code(value, where)
        elif isinstance(value, types.FunctionType):
            self.function(value, where)
        elif isinstance(value, type):
            self.type(value, where)
        elif kind in (tuple, list):
            self.all(value, where)
        elif kind is dict:
            self.all([one for pair in value.items() for one in pair], where)
        elif kind in (set, frozenset):
            self.all(sorted(value, key=lambda one: (type(one).__qualname__, repr(one))), where)
        elif kind in (np.ndarray, np.memmap) and value.dtype != object:
            self.put(value.dtype, value.shape, fingerprint(value).hex())
        elif isinstance(value, (staticmethod, classmethod)):
            self.value(value.__func__, where)
        elif isinstance(value, property):
            self.all([value.fget, value.fset], where)
        elif isinstance(value, functools.cached_property):
            self.value(value.func, where)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.value(value.__wrapped__, where)
        else:
            self.other(value, where)

    def all(self, values: Iterable[Any], where: str) -> None:
        """Adds several values, in order."""
        found = list(values)
        self.put(len(found))
        for one in found:
            self.value(one, where)

    def is_known(self, module: str | None, name: str) -> bool:
        """Adds something by its name where its package's version stands for it."""
        version = None if module is None else _version(_package(module))
        if version is not None:
            self.put(module, name, version)
        return version is not None

    def module(self, value: types.ModuleType, where: str) -> None:
        """A module by the names that may be looked up in it."""
        self.put(value.__name__)
        if not self.is_known(value.__name__, ""):
            self.look_up(self.names, vars(value), f"{where}, {value.__name__}.")

    def look_up(self, names: Iterable[str], scope: Mapping[str, Any], where: str) -> None:
        """What names stand for in a scope."""
        for name in sorted(set(names) & scope.keys()):
            self.put(name)
            self.value(scope[name], where + name)

    def code(self, code: types.CodeType, where: str) -> None:
        """Bytecode with its constants and names; where its lines stand is no matter."""
        self.put(code.co_name, code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)
        self.put(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.put(getattr(code, "co_exceptiontable", b"").hex())
        self.all(code.co_consts, where)

    def function(self, value: types.FunctionType, where: str) -> None:
        """A function: its code where the version does not stand for it, and in any case what it was given."""
        if not self.is_known(value.__module__, value.__qualname__):
            self.value(value.__code__, where)
            names = set(_names(value.__code__))
            self.spoken |= names
            self.look_up(names, value.__globals__, f"{where}, ")
            self.look_up(names - value.__globals__.keys(), vars(builtins), f"{where}, ")
            for name in _imports(value.__code__, value.__globals__.get("__package__") or ""):
                if name in sys.modules:
                    self.value(sys.modules[name], where)
                elif not self.is_known(name, ""):
                    raise Opaque(f"{where}: {name} is imported when it runs")
        self.all([value.__defaults__, value.__kwdefaults__, vars(value), *_cells(value)], where)

    def type(self, value: type, where: str) -> None:
        """A class: its bases and everything that stands in it."""
        if self.is_known(value.__module__, value.__qualname__):
            return
        self.all([type(value), *value.__bases__], where)
        for name, one in sorted(vars(value).items()):
            if name not in _OF_CLASSES and not isinstance(
                one, (types.GetSetDescriptorType, types.MemberDescriptorType)
            ):
                self.put(name)
                self.value(one, f"{where}, {value.__qualname__}.{name}")

    def other(self, value: Any, where: str) -> None:
        """An object as pickle would take it apart; a function written in C by its name."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception as error:  # noqa: BLE001 — code of whoever wrote the object
            if isinstance(value, _DESCRIPTORS) and self.is_known("builtins", repr(value)):
                return
            raise Opaque(f"{where}: {value!r} cannot be described: {error}") from None
        if isinstance(parts, str):
            owner = getattr(value, "__module__", None) or _where(value, parts)
            if vars(sys.modules.get(owner, types)).get(parts) is value and self.is_known(owner, parts):
                return
            raise Opaque(f"{where}: {value!r} is known by its name only")
        self.all((list(one) if isinstance(one, Iterator) else one for one in parts), where)
        if _version(_package(type(value).__module__)) is None:  # how it is pickled may leave something out
            slots = [name for one in type(value).__mro__ for name in vars(one).get("__slots__", ())]
            self.all([getattr(value, "__dict__", None), *(getattr(value, name, None) for name in slots)], where)


def _where(value: Any, name: str) -> str:
    """The installed module that has an object by its name; "" where none has."""
    found = (one for one, module in [*sys.modules.items()] if getattr(module, "__dict__", {}).get(name) is value)
    return next((one for one in found if _version(_package(one)) is not None), "")


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_OF_CLASSES = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__")


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up or has as texts, that of its inner functions too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)
        elif isinstance(one, str) and one.isidentifier():
            yield one


def _imports(code: types.CodeType, package: str) -> Iterator[str]:
    """The modules that code imports when it runs."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, names, step in zip(steps, steps[1:], steps[2:]):
        if step.opname == "IMPORT_NAME":
            name = importlib.util.resolve_name("." * level.argval + step.argval, package) if package else step.argval
            yield name
            inner = {one: f"{name}.{one}" for one in names.argval or ()}
            yield from (inner[n] for n in inner if inner[n] in sys.modules or not hasattr(sys.modules.get(name), n))
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _imports(one, package)
