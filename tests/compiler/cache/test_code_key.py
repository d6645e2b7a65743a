"""Every way in which a user's operator can depend on something: when that changes, so does its key."""

import functools
import sys
import types

import numpy as np
import pytest

import weft
from weft.compiler.cache.code_key import Opaque, operators_key
from weft.graph import opspec

helper = types.ModuleType("weft_test_helper")
BOX = [helper]
FACTOR = 2.0


class Meta(type):
    scale = 2.0


class Scaled(metaclass=Meta):
    held = helper


class Wrapper:
    """A decorator with a state of its own."""

    def __init__(self, function, scale):
        functools.update_wrapper(self, function)
        self.scale = scale

    def __call__(self, c, x):
        return x * self.scale


class Forgetful:
    """Leaves its state out when it is pickled."""

    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __reduce__(self):
        return Forgetful, (0,)

    def __call__(self, c, x):
        return x * self.scale


class Methods:
    def __init__(self, scale):
        self.scale = scale

    def evaluate(self, c, x):
        return x * self.scale


class Silent:
    """All of them look the same."""

    def __init__(self, scale):
        self.scale = scale

    def __repr__(self):
        return "Silent"


def plain(c, x):
    return x


def with_attribute(c, x):
    return x * with_attribute.scale


def with_import(c, x):
    import weft_test_helper

    return x * weft_test_helper.scale


def with_names(c, x):
    from weft_test_helper import scale

    return x * scale


def with_text(c, x):
    return x * getattr(helper, "scale")  # noqa: B009


def with_globals(c, x):
    return x * globals()["FACTOR"]


def from_box(c, x):
    return x * BOX[0].scale


def from_class(c, x):
    return x * Scaled.held.scale


def from_metaclass(c, x):
    return x * Scaled.scale


def closed(thing):
    return lambda c, x: x * thing.scale


def looked_up(table):
    find = table.get
    return lambda c, x: x * find("scale")


def some(things):
    return lambda c, x: x * next(iter(things)).scale


def filled(array):
    return lambda c, x: x * array.filled(0)[0]


def set_(owner, name):
    return lambda value: setattr(owner, name, value)


CHANGED = {
    "attribute of a function": (set_(with_attribute, "scale"), lambda value: with_attribute),
    "import inside": (set_(helper, "scale"), lambda value: with_import),
    "names imported inside": (set_(helper, "scale"), lambda value: with_names),
    "name as a text": (set_(helper, "scale"), lambda value: with_text),
    "global by a text": (set_(sys.modules[__name__], "FACTOR"), lambda value: with_globals),
    "module in a list": (set_(helper, "scale"), lambda value: from_box),
    "module in a class": (set_(helper, "scale"), lambda value: from_class),
    "module in a closure": (set_(helper, "scale"), lambda value: closed(helper)),
    "metaclass": (set_(Meta, "scale"), lambda value: from_metaclass),
    "decorator": (id, lambda value: Wrapper(plain, value)),
    "state that pickle does not see": (id, Forgetful),
    "bound method": (id, lambda value: Methods(value).evaluate),
    "bound method of a builtin": (id, lambda value: looked_up({"scale": value})),
    "members of a set": (id, lambda value: some({Silent(value)})),
    "mask of an array": (id, lambda value: filled(np.ma.array([2.0, 1.0], mask=[value > 2, False]))),
    "function made ufunc": (id, lambda value: np.frompyfunc(lambda c, x: x * value, 2, 1)),
}


@pytest.mark.parametrize("change, function", CHANGED.values(), ids=CHANGED)
def test_what_an_operator_depends_on_is_in_its_key(change, function, monkeypatch):
    monkeypatch.setattr(opspec, "_TABLE", dict(opspec._TABLE))
    monkeypatch.setattr(opspec, "_OF_USERS", set(opspec._OF_USERS))
    monkeypatch.setitem(sys.modules, "weft_test_helper", helper)
    kept = []

    def key(value):
        change(value)
        kept.append(function(value))
        weft.register_operator("Changed", kept[-1], domain="mine")
        try:
            return operators_key()
        except Opaque:
            return len(kept)  # it is not kept at all

    first = key(2.0)
    assert key(3.0) != first
    assert isinstance(first, int) or key(2.0) == first


def test_a_module_that_is_yet_to_be_imported_is_opaque(monkeypatch):
    monkeypatch.setattr(opspec, "_TABLE", dict(opspec._TABLE))
    monkeypatch.setattr(opspec, "_OF_USERS", set(opspec._OF_USERS))
    weft.register_operator("Imports", with_import, domain="mine")
    with pytest.raises(Opaque, match="weft_test_helper is imported when it runs"):
        operators_key()
