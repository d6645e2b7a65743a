"""Finds a target by its text: the manifest of every kind of machine is asked whether it can read it.

Manifests come from the folders under `weft/targets` (their `TARGET`), from `register`, and from entry points of
installed packages in the group "weft.targets". Those are looked up only when the others do not know a target, or when
all are to be listed.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
from collections.abc import Mapping, Sequence
from importlib import metadata

from weft import targets
from weft.core.errors import TargetError, did_you_mean
from weft.targets.base import LocalDevice, Target, TargetSpec

logger = logging.getLogger("weft.targets")

ENTRY_POINTS = "weft.targets"
_registered: dict[str, TargetSpec] = {}


@functools.lru_cache(maxsize=1)
def _own() -> dict[str, TargetSpec]:
    """The manifests of Weft's own targets; a folder without one is what several targets share."""
    names = sorted(module.name for module in pkgutil.iter_modules(targets.__path__) if module.ispkg)
    found: dict[str, TargetSpec] = {}
    for name in names:
        spec = getattr(importlib.import_module(f"{targets.__name__}.{name}"), "TARGET", None)
        if spec is not None:
            found[_new(spec, found).kind] = spec
    return found


def _new(spec: TargetSpec, known: Mapping[str, TargetSpec]) -> TargetSpec:
    if not isinstance(spec, TargetSpec):
        raise TargetError(f"a target is registered by its manifest, a weft.targets.base.TargetSpec, not {spec!r}")
    if spec.kind in known:
        raise TargetError(f"a target of the kind {spec.kind!r} is there already: give yours another kind")
    return spec


@functools.lru_cache(maxsize=1)
def _load_entry_points() -> None:
    """Registers the targets of installed packages, once; one that cannot be loaded is left out, with a warning."""
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            register(point.load())
        except Exception as error:  # noqa: BLE001 — somebody else's package: it must not keep others from compiling
            logger.warning("the target %s of the package %s cannot be used: %s", point.name, point.value, error)


def register(spec: TargetSpec) -> TargetSpec:
    """Adds a kind of machine to those that Weft compiles for, in this process; gives its manifest back."""
    _registered[_new(spec, {**_own(), **_registered}).kind] = spec
    return spec


def unregister(kind: str) -> None:
    """Takes a kind of machine away that `register` added."""
    if _registered.pop(kind, None) is None:
        raise TargetError(f"no target of the kind {kind!r} was registered")
    look_again()


def look_again() -> None:
    """Forgets which targets were found: facts about this machine have changed."""
    _find.cache_clear()


def manifests() -> list[TargetSpec]:
    """All kinds of machines: Weft's own, then those that were registered."""
    _load_entry_points()
    return [*_own().values(), *_registered.values()]


def manifest_of(kind: str) -> TargetSpec:
    """The manifest of a kind of machine."""
    found = _own().get(kind) or _registered.get(kind)
    if found is None:
        _load_entry_points()
        found = _registered.get(kind)
    if found is None:
        known = ", ".join(spec.kind for spec in manifests())
        raise TargetError(f"no target of the kind {kind!r} is registered in this process (there are {known})")
    return found


def known_forms() -> list[str]:
    """What `find_target` reads: one line for each form."""
    return [line for spec in manifests() for line in spec.forms]


def local_devices() -> list[LocalDevice]:
    """The devices of this machine beside its processor."""
    return [device for spec in manifests() for device in spec.local_devices()]


def known_stages() -> list[str]:
    """The names of what targets can show of their programs."""
    return [name for spec in manifests() if spec.device is not None for name in spec.device.stages]


@functools.lru_cache(maxsize=64)
def _find(text: str) -> Target:
    at_hand = [*_own().values(), *_registered.values()]
    found = _read(text, at_hand) or _read(text, [spec for spec in manifests() if spec not in at_hand])
    if found is not None:
        return found
    forms = known_forms()
    meant = did_you_mean(text, [line.split()[0] for line in forms])
    raise TargetError(f"unknown target {text!r}{meant}; a target is written as\n  " + "\n  ".join(forms))


def _read(text: str, specs: Sequence[TargetSpec]) -> Target | None:
    """The target that the first of some manifests makes of a text."""
    for spec in specs:
        found = spec.parse(text)
        if found is not None:
            if not isinstance(found, Target) or found.kind != spec.kind:
                raise TargetError(
                    f"parse of the target {spec.kind!r} gives a Target of that kind or None, not {found!r}"
                )
            return found
    return None


def find_target(like: str | Target) -> Target:
    """The target that a text such as "native" stands for; a Target stands for itself."""
    if isinstance(like, Target):
        return like
    if not isinstance(like, str):
        raise TargetError(f'a target is a text such as "native" or a Target, not {like!r} ({type(like).__name__})')
    return _find(like.strip())
