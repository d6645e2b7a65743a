"""Every environment variable Weft reads, typed, in one place, and each settable from Python.

    WEFT_NUM_THREADS=4 python model.py             in the shell, for one run
    knobs.set("num_threads", 4)                    for this process (`knobs.num_threads = 4` is the same)
    with knobs.override(num_threads=4): ...        for a block of code, in this Python thread (or asyncio task) only

The innermost wins: override, then set, then the environment, then the default. The environment is looked at when a
knob is read, so a change of `os.environ` takes effect at once; that costs a microsecond or two, so read a knob outside
hot loops. A value that makes no sense raises a `KnobError`, when it is set or, for the environment, when the knob is
read; the error names the variable and what it accepts. A variable that begins with WEFT_ and is none of these is warned
of when the first knob is read: it would be a setting that does nothing.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from weft.core import log
from weft.core.errors import WeftError, did_you_mean

T = TypeVar("T")

environment: Any = getattr(os.environ, "_data", None)
"""The mapping inside os.environ: os.environ.get raises and catches an error for each variable that is not set."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


UNASKED_BYTES = 1 << 28
"""Up to here a tensor is made without a look at the knob that limits tensors."""


class KnobError(WeftError, ValueError):
    """A setting that does not exist, or a value that it does not accept."""


class KnobWarning(UserWarning):
    """A variable of the environment that looks like a setting of Weft and is none."""


class Knob(Generic[T]):
    """One setting: how its text and its Python value are checked, its default, and what it is for.

    `parse` turns a string (from the environment) or a Python value into the value; it raises ValueError for junk.
    `follow` is told the value when it may have changed.
    """

    def __init__(
        self,
        parse: Callable[[object], T],
        default: Callable[[], T],
        accepts: str,
        meaning: str,
        follow: Callable[[T], None] | None = None,
    ) -> None:
        self.parse = parse
        self.follow = follow
        self.default = default
        self.accepts = accepts
        self.meaning = meaning
        self.name = self.variable = ""
        """Its name, and that of the environment variable."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.variable = name, f"WEFT_{name.upper()}"
        self.key = os.environ.encodekey(self.variable)

    def check(self, value: object, where: str) -> T:
        """The value as the knob's type, or a KnobError that says where the junk was given."""
        try:
            return self.parse(value)
        except ValueError:
            raise KnobError(f"{where} is {value!r}, but {self.variable} accepts {self.accepts}") from None

    @overload
    def __get__(self, instance: None, owner: type) -> Knob[T]: ...

    @overload
    def __get__(self, instance: Knobs, owner: type) -> T: ...

    def __get__(self, instance: Knobs | None, owner: type) -> Knob[T] | T:
        if instance is None:
            return self
        value, _ = instance.look_up(self)
        return value

    def __set__(self, instance: Knobs, value: T) -> None:
        instance.set(self.name, value)


@dataclass(frozen=True)
class KnobState:
    """What one knob is now, and who said so."""

    name: str
    variable: str
    value: Any
    source: str
    accepts: str
    meaning: str


def _parse_integer(value: object) -> int:
    """An int, from an int (not a bool) or from decimal digits."""
    if isinstance(value, str):
        return int(value.strip())
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError
    return int(value.__index__())


def _integer_between(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _parse_integer(value)
        if not least <= number <= most:
            raise ValueError
        return number

    return parse


def _parse_threads(value: object) -> int | None:
    """A count from 1 to 1024; None, an empty text or "auto" leaves the choice to the runtime."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "auto")):
        return None
    return _integer_between(1, 1024)(value)


def _parse_pin(value: object) -> str:
    text = str(value).strip().lower()
    if text not in ("no", "cores") and re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text) is None:
        raise ValueError
    return text


def _parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in words:
            raise ValueError
        return word

    return parse


def _parse_path(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip() or "\0" in str(value):
        raise ValueError
    try:
        return Path(os.fspath(value)).expanduser().absolute()
    except RuntimeError as error:  # the home of a user who does not exist
        raise ValueError from error


def _default_cache_dir() -> Path:
    import platformdirs  # not needed by what only runs models

    return Path(platformdirs.user_cache_dir("weft", appauthor=False))


def _default_tensor_megabytes() -> int:
    """As much as this machine has memory."""
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20)


class Knobs:
    """The settings. There is one, `knobs`."""

    num_threads: Knob[int | None] = Knob(
        _parse_threads,
        lambda: None,
        "a whole number from 1 to 1024, or 'auto' (the cores this process may use)",
        "threads of a parallel loop, unless the call or the module says otherwise",
    )
    pin_threads: Knob[str] = Knob(
        _parse_pin,
        lambda: "no",
        "'no', 'cores' (one for each) or a list of processors such as '0-3,8'",
        "where the worker threads run",
    )
    thread_priority: Knob[int] = Knob(
        _integer_between(-20, 19), lambda: 0, "a whole number from -20 to 19", "added to the niceness of worker threads"
    )
    cache_dir: Knob[Path] = Knob(
        _parse_path, _default_cache_dir, "the path of a folder (made when it is needed)", "where compiled code is kept"
    )
    cache: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "keep compiled models in the cache folder, and take them from there when the same model is compiled again",
    )
    cache_megabytes: Knob[int] = Knob(
        _integer_between(0, 1 << 24),
        lambda: 4096,
        "a whole number of megabytes",
        "the most that compiled models may take in the cache folder; those not used for longest are dropped",
    )
    debug: Knob[int] = Knob(
        _integer_between(0, 2),
        lambda: 0,
        "0 (nothing), 1 (what is compiled, found in the cache or given up) or 2 (also the program of every kernel)",
        "how much of Weft's log is printed on stderr; from 1 on, commands show where an error comes from",
        log.show,
    )
    verify: Knob[bool] = Knob(
        _parse_switch,
        lambda: False,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "check the program after every pass and every schedule primitive",
    )
    fuse: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "let operators of a model share a kernel; off, each has its own",
    )
    layout: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "store values between kernels in blocks of channels where that suits the kernels; off, always plainly",
    )
    attention: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "compute attention in one kernel that never stores all scores, where that is faster; off, as it is written",
    )
    winograd: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "convolve small windows by Winograd's method where that is faster and exact enough; off, always directly",
    )
    pad_channels: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "give convolutions more channels, up to whole vectors of them, where that is faster; off, as many as they have",
    )
    fixed_weights: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "hold recurrent weights that a few rows wait for as 24-bit whole numbers; off, always as float32",
    )
    exact: Knob[bool] = Knob(
        _parse_switch,
        lambda: False,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "compute every sum from the model's own weights and elements: no Winograd, 24-bit weights, folded strides or "
        "padded channels",
    )
    sizes: Knob[str] = Knob(
        _one_of("background", "first", "open", "bound"),
        lambda: "background",
        "background, first, open or bound",
        "how sizes that a model leaves open are met: by a form for all, made in the first call beside one for its "
        "sizes, and by others made in the background; without those (first); by the form for all alone (open); by a "
        "form for each set of sizes, made in the call that brings them (bound)",
    )
    forms_megabytes: Knob[int] = Knob(
        _integer_between(1, 1 << 24),
        lambda: 2048,
        "a whole number of megabytes from 1 up",
        "the most memory that a model's forms for sets of sizes may take; those not used for longest are dropped",
    )
    records: Knob[bool] = Knob(
        _parse_switch,
        lambda: True,
        f"{', '.join(_TRUE)} or {', '.join(_FALSE)}",
        "give kernels the schedules that `weft tune` found for them on this machine; off, those of the planner",
    )
    tensor_megabytes: Knob[int] = Knob(
        _integer_between(1, 1 << 40),
        _default_tensor_megabytes,
        "a whole number of megabytes from 1 up",
        "the most that one tensor of a model may take; a model that asks for more is refused when it is compiled",
    )

    def __init__(self) -> None:
        # Through object's own __setattr__: ours refuses every name that is no knob.
        object.__setattr__(self, "_chosen", {})
        object.__setattr__(self, "_overrides", ContextVar("weft_knob_overrides", default=_NOTHING))

    _chosen: dict[str, Any]
    _overrides: ContextVar[Mapping[str, Any]]

    def __setattr__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        """Give a knob a value for this process."""
        self._chosen[name] = _checked(name, value)
        self.follow([name])

    def reset(self, name: str | None = None) -> None:
        """Forget what `set` gave one knob, or all of them: the environment and the default hold again."""
        names = list(self._chosen) if name is None else [_find(name).name]
        for one in names:
            self._chosen.pop(one, None)
        self.follow(names)

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Give knobs values inside a `with` block."""
        checked = {name: _checked(name, value) for name, value in values.items()}
        token = self._overrides.set({**self._overrides.get(), **checked})
        try:
            self.follow(checked)
            yield
        finally:
            self._overrides.reset(token)
            self.follow(checked)

    def follow(self, names: Iterable[str]) -> None:
        """Tells those that follow one of these knobs its value now."""
        for name in names:
            knob = KNOBS[name]
            if knob.follow is not None:
                knob.follow(self.look_up(knob)[0])

    def look_up(self, knob: Knob[T]) -> tuple[T, str]:
        """A knob's value and its source: "override", "set", "environment" or "default"."""
        name = knob.name
        overrides = self._overrides.get()
        if name in overrides:
            return overrides[name], "override"
        if name in self._chosen:
            return self._chosen[name], "set"
        _warn_of_unknown_variables()
        text = os.environ.get(knob.variable) if environment is None or knob.key in environment else None
        if text is not None:
            return knob.check(text, f"the environment variable {knob.variable}"), "environment"
        return knob.default(), "default"

    def snapshot(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The values of the knobs now, to be given to `override` when what was asked for is done later."""
        return {name: self.look_up(knob)[0] for name, knob in KNOBS.items() if name not in without}

    def describe(self) -> list[KnobState]:
        """Every knob with its value, source and meaning, for `weft doctor` and the documentation."""
        states = []
        for knob in KNOBS.values():
            value, source = self.look_up(knob)
            states.append(KnobState(knob.name, knob.variable, value, source, knob.accepts, knob.meaning))
        return states


KNOBS: dict[str, Knob[Any]] = {name: knob for name, knob in vars(Knobs).items() if isinstance(knob, Knob)}
"""Every knob by name."""


def _find(name: str) -> Knob[Any]:
    if name not in KNOBS:
        raise KnobError(f"there is no setting {name!r}; there are {', '.join(KNOBS)}{did_you_mean(name, KNOBS)}")
    return KNOBS[name]


def _checked(name: str, value: Any) -> Any:
    return _find(name).check(value, f"the value given for {name!r}")


def unknown_variables() -> dict[str, str]:
    """What begins with WEFT_ in the environment and is no setting, each with a sentence; WEFT_TEST_… are our tests'."""
    known = {knob.variable for knob in KNOBS.values()}
    names = [name for name in os.environ if name.startswith("WEFT_") and name not in known]
    return {name: _no_setting(name, known) for name in names if not name.startswith("WEFT_TEST_")}


def _no_setting(name: str, known: Collection[str]) -> str:
    return f"{name} is no setting of Weft{did_you_mean(name, known)}"


@functools.lru_cache(maxsize=1)
def _warn_of_unknown_variables() -> None:
    for text in unknown_variables().values():
        warnings.warn(f"the environment variable {text}", KnobWarning, stacklevel=2)


knobs = Knobs()
"""The settings of this process."""
