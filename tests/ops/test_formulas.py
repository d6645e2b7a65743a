"""Formulas are read with either set of functions: both have the same."""

from weft.ops.formulas import ARRAYS, EXPRESSIONS


def test_arrays_and_expressions_have_the_same_functions():
    assert vars(ARRAYS).keys() == vars(EXPRESSIONS).keys()
