"""Finds a target by its text: every folder under `weft/targets` is asked whether it can read it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from typing import Any

from weft import targets
from weft.core.errors import TargetError
from weft.targets.base import LocalDevice, Target


@functools.lru_cache(maxsize=1)
def _packages() -> tuple[Any, ...]:
    """The folders that read targets; one without `parse` is what several targets share."""
    names = sorted(module.name for module in pkgutil.iter_modules(targets.__path__) if module.ispkg)
    found = (importlib.import_module(f"{targets.__name__}.{name}") for name in names)
    return tuple(package for package in found if hasattr(package, "parse"))


def known_forms() -> list[str]:
    """What `find_target` reads: one line for each form."""
    return [line for package in _packages() for line in package.FORMS]


def local_devices() -> list[LocalDevice]:
    """The devices of this machine beside its processor."""
    return [device for package in _packages() for device in getattr(package, "local_devices", list)()]


def known_stages() -> list[str]:
    """The names of what targets can show of their programs."""
    found = (importlib.util.find_spec(f"{package.__name__}.stages") for package in _packages())
    return [name for spec in found if spec for name in importlib.import_module(spec.name).STAGES]


@functools.lru_cache(maxsize=64)
def _find(text: str) -> Target:
    for package in _packages():
        found: Target | None = package.parse(text)
        if found is not None:
            return found
    raise TargetError(
        f"unknown target {text!r}; a target is written as\n" + "\n".join(f"  {line}" for line in known_forms())
    )


def find_target(like: str | Target) -> Target:
    """The target that a text such as "native" stands for; a Target stands for itself."""
    if isinstance(like, Target):
        return like
    if not isinstance(like, str):
        raise TargetError(f'a target is a text such as "native" or a Target, not {like!r} ({type(like).__name__})')
    return _find(like.strip())
