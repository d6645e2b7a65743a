"""Algebraic simplification: rules of movement and arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.strategies import check, same_meaning
from weft.graph.ir import NUMPY_TYPES
from weft.graph.passes.simplify import simplify
from weft.graph.passes.simplify_movement import loses_nothing
from weft.graph.text import format_graph, parse_graph


def body(nodes, inputs="%x: float32[2, 3]", output="y", constants=""):
    lines = "\n".join(f"    {line}" for line in (*constants.splitlines(), *nodes.strip().splitlines()))
    return f"graph g({inputs}) -> (%{output}) {{\n{lines}\n}}"


def done(nodes, inputs="%x: float32[2, 3]", constants=""):
    """What is left of these nodes, without types and constants: `op(inputs; attributes)` a line."""
    graph = parse_graph(body(nodes, inputs, "y", constants))
    made = simplify(graph)
    same_meaning(graph, made)
    return "\n".join(
        line.split(" = ", 1)[1]
        for line in format_graph(made).splitlines()[1:-1]
        if not line.strip().startswith("const")
    )


def test_movement_becomes_one_reshape():
    check(
        simplify,
        body(
            """
%a = Unsqueeze(%x, %one)
%b = Flatten(%a, axis=1)
%c = Squeeze(%d, %one)
%e = Reshape(%b, %shape)
%y = Relu(%e)
""".replace("%c = Squeeze(%d, %one)\n", ""),
            constants="const %one: int64[1] = [1]\nconst %shape: int64[2] = [3, -1]",
        ),
        """
graph g(%x: float32[2, 3]) -> (%y) {
    const %e_shape: int64[2] = [3, 2]
    %e: float32[3, 2] = Reshape(%x, %e_shape)
    %y: float32[3, 2] = Relu(%e)
}""",
        exact=True,
    )


def test_symbolic_sizes():
    text = body("%a = Unsqueeze(%x, %one)\n%y = Relu(%a)", "%x: float32[n, 3]", constants="const %one: int64[1] = [1]")
    assert "const %a_shape: int64[3] = [-1, 1, 3]" in format_graph(simplify(parse_graph(text)))


def test_reshape_there_and_back():
    assert (
        done(
            "%a = Reshape(%x, %p)\n%b = Reshape(%a, %q)\n%y = Relu(%b)",
            constants="const %p: int64[1] = [6]\nconst %q: int64[2] = [2, 3]",
        )
        == "Relu(%x)"
    )


def test_empty_tensors_keep_their_reshape():
    text = body("%y = Reshape(%x, %p)", "%x: float32[0, 3]", constants="const %p: int64[2] = [3, 0]\n").replace(
        "Reshape(%x, %p)", "Reshape(%x, %p, allowzero=1)"
    )
    assert "allowzero=1" in format_graph(simplify(parse_graph(text)))


def test_transposes():
    assert done("%a = Transpose(%x, perm=[1, 0])\n%b = Transpose(%a, perm=[1, 0])\n%y = Relu(%b)") == "Relu(%x)"
    three = "%x: float32[2, 3, 4]"
    assert (
        done("%a = Transpose(%x, perm=[1, 2, 0])\n%y = Transpose(%a, perm=[0, 2, 1])", three)
        == "Transpose(%x, perm=[1, 0, 2])"
    )
    assert done("%y = Transpose(%x, perm=[1, 0, 2])", "%x: float32[1, 3, 4]") == "Reshape(%x, %y_shape)"


def test_reductions_keep_or_drop_their_axes():
    one = "const %one: int64[1] = [1]"
    assert done("%a = ReduceSum(%x, %one, keepdims=0)\n%y = Unsqueeze(%a, %one)", constants=one) == (
        "ReduceSum(%x, %one, keepdims=1)"
    )
    assert done("%a = ReduceSum(%x, %one)\n%y = Squeeze(%a, %one)", constants=one) == "ReduceSum(%x, %one, keepdims=0)"


def test_elementwise_before_reshape():
    matrix = "%x: float32[6, 4], %w: float32[4, 3]"
    constants = "const %s: int64[3] = [2, 3, 3]\nconst %c: float32[3] = [1.0, 2.0, 3.0]"
    assert done("%p = MatMul(%x, %w)\n%r = Reshape(%p, %s)\n%a = Add(%r, %c)\n%y = Relu(%a)", matrix, constants) == (
        "Gemm(%x, %w, %c)\nRelu(%a_add)\nReshape(%y_relu, %s)"
    )
    conv = "%x: float32[1, 2, 5, 1], %w: float32[3, 2, 2, 1]"
    constants = "const %s: int64[1] = [3]\nconst %c: float32[1, 3, 1] = [[[1.0], [2.0], [3.0]]]"
    found = done("%p = Conv(%x, %w)\n%r = Squeeze(%p, %s)\n%a = Mul(%r, %c)\n%y = Tanh(%a)", conv, constants)
    assert found == "Conv(%x, %w)\nMul(%p, %a_constant_lean)\nTanh(%a_mul)\nReshape(%y_tanh, %r_shape)"
    constants = "const %s: int64[3] = [2, 3, 3]\nconst %c: float32[3, 1] = [[1.0], [2.0], [3.0]]"
    found = done("%p = MatMul(%x, %w)\n%r = Reshape(%p, %s)\n%y = Add(%r, %c)", matrix, constants)
    assert found == "Gemm(%x, %w, %y_constant)\nReshape(%y_add, %s)"  # the constant written out for all rows
    constants = (
        "const %s: int64[3] = [2, 3, 3]\nconst %c: float32[3, 3] = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]"
    )
    found = done("%p = MatMul(%x, %w)\n%r = Reshape(%p, %s)\n%y = Add(%r, %c)", matrix, constants)
    assert found.endswith("Reshape(%p, %s)\nAdd(%r, %c)")  # it would be as large as what it is added to


@pytest.mark.parametrize(
    ("node", "later"),
    [
        ("Sin(%r)", True),
        ("Max(%r, %c)", True),
        ("Clip(%r, %low)", True),
        ("Add(%r, %low)", True),
        ("Add(%r, %other)", False),
        ("BatchNormalization(%r, %b, %b, %b, %b)", False),  # its parameters are those of the second axis
        ("Softmax(%r)", False),
        ("CastLike(%r, %t)", False),  # what gives the type need not fit
    ],
)
def test_only_what_is_elementwise_goes_before_a_reshape(node, later):
    inputs = "%x: float32[6, 4], %w: float32[4, 3], %low: float32[], %other: float32[2, 3, 3]"
    constants = """const %s: int64[3] = [2, 3, 3]
const %c: float32[3] = [1.0, 2.0, 3.0]
const %b: float32[3] = [1.0, 2.0, 3.0]
const %t: float32[5] = [1.0, 2.0, 3.0, 4.0, 5.0]"""
    found = done(f"%p = MatMul(%x, %w)\n%r = Reshape(%p, %s)\n%y = {node}", inputs, constants)
    assert found.splitlines()[-1].startswith("Reshape") == later


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("%a = Identity(%x)", ""),
        ("%a = Dropout(%x)", ""),
        ("%a = Cast(%x, to=1)", ""),
        ("%w = Cast(%x, to=11)\n%a = Cast(%w, to=1)", ""),
        ("%a = Concat(%x, axis=1)", ""),
        ("%a = Pad(%x, %c)", "const %c: int64[4] = [0, 0, 0, 0]"),
        ("%a = Slice(%x, %s, %e)", "const %s: int64[2] = [0, 0]\nconst %e: int64[2] = [2, 9]"),
        ("%a = Expand(%x, %c)", "const %c: int64[2] = [1, 3]"),
        ("%a = Tile(%x, %c)", "const %c: int64[2] = [1, 1]"),
        ("%a = Split(%x, %c, axis=1)", "const %c: int64[1] = [3]"),
        ("%a = Add(%x, %c)", "const %c: float32[3] = [0.0, 0.0, 0.0]"),
        ("%a = Add(%c, %x)", "const %c: float32[] = 0.0"),
        ("%a = Sub(%x, %c)", "const %c: float32[] = 0.0"),
        ("%a = Mul(%c, %x)", "const %c: float32[1, 1] = [[1.0]]"),
        ("%a = Div(%x, %c)", "const %c: float32[] = 1.0"),
        ("%a = Pow(%x, %c)", "const %c: float32[] = 1.0"),
        ("%b = Neg(%x)\n%a = Neg(%b)", ""),
        ("%a = Clip(%x)", ""),
        ("%a = Max(%c, %x)", "const %c: float32[] = -inf"),
        ("%a = Max(%x)", ""),
    ],
)
def test_what_does_nothing_goes_away(nodes, constants):
    assert done(f"{nodes}\n%y = Sigmoid(%a)", constants=constants) == "Sigmoid(%x)"


def test_what_only_looks_as_if_it_did_nothing_stays():
    assert "Add" in done("%y = Add(%x, %c)", constants="const %c: float32[1, 1, 1] = [[[0.0]]]")
    back = "const %s: int64[1] = [2]\nconst %e: int64[1] = [-9]\nconst %a: int64[1] = [0]\nconst %p: int64[1] = [-1]"
    assert "Slice" in done("%y = Slice(%x, %s, %e, %a, %p)", constants=back)
    assert done("%w = Cast(%x, to=7)\n%y = Cast(%w, to=1)").count("Cast") == 2
    assert "Sub" in done("%y = Sub(%c, %x)", constants="const %c: float32[] = 0.0")


def test_the_output_of_a_model_keeps_its_name():
    check(
        simplify,
        body("%a = Exp(%x)\n%b = Relu(%a)\n%c = Identity(%a)\n%y = Add(%b, %c)\n%z = Identity(%a)")
        .replace("(%y)", "(%y, %z, %w)")
        .replace("\n}", "\n    %w = Identity(%x)\n}"),
        """
graph g(%x: float32[2, 3]) -> (%y, %z, %w) {
    %z: float32[2, 3] = Exp(%x)
    %b: float32[2, 3] = Relu(%z)
    %y: float32[2, 3] = Add(%b, %z)
    %w: float32[2, 3] = Identity(%x)
}""",
        exact=True,
    )


def test_chains_of_constants():
    two = "const %p: float32[] = 2.0\nconst %q: float32[3] = [1.0, 2.0, 3.0]"
    assert done("%a = Add(%x, %p)\n%y = Add(%a, %q)", constants=two) == "Add(%x, %y_constant)"
    assert done("%a = Mul(%p, %x)\n%y = Mul(%a, %q)", constants=two) == "Mul(%x, %y_constant)"
    assert done("%a = Sub(%x, %p)\n%y = Sub(%a, %q)", constants=two) == "Add(%x, %y_constant)"
    mixed = "const %p: float32[] = 1e+30\nconst %q: float32[] = -1e+30"
    assert done("%a = Add(%x, %p)\n%y = Add(%a, %q)", constants=mixed).count("Add") == 2
    shared = body("%a = Add(%x, %p)\n%b = Add(%a, %q)\n%y = Mul(%a, %b)", constants=two)
    assert format_graph(simplify(parse_graph(shared))).count("Add") == 2


def test_quotients():
    assert done("%y = Div(%x, %c)", constants="const %c: float32[] = 8.0") == "Mul(%x, %y_inverse)"
    assert done("%y = Div(%x, %c)", constants="const %c: float32[] = 3.0") == "Div(%x, %c)"


def test_powers_and_limits():
    assert done("%y = Pow(%x, %c)", constants="const %c: float32[] = 2.0") == "Mul(%x, %x)"
    assert done("%a = Relu(%x)\n%y = Relu(%a)") == "Relu(%x)"
    assert done("%y = Clip(%x, %c)", constants="const %c: float32[] = 0.0") == "Relu(%x)"
    assert done("%y = Max(%c, %x)", constants="const %c: float32[] = 0.0") == "Relu(%x)"
    bounds = "const %a: float32[] = -1.0\nconst %b: float32[] = 0.5\nconst %c: float32[] = 0.25"
    assert done("%p = Clip(%x, %a, %b)\n%y = Clip(%p, %c)", constants=bounds) == "Clip(%x, %y_low, %y_high)"
    assert done("%p = Relu(%x)\n%y = Clip(%p, _, %b)", constants=bounds) == "Clip(%x, %y_low, %y_high)"
    assert done("%p = Clip(%x, %c, %b)\n%y = Clip(%p, _, %a)", constants=bounds) == "Clip(%x, %y_low, %y_high)"


def test_integers():
    ints = "%x: int32[2, 3]"
    assert done("%a = Add(%x, %c)\n%y = Add(%a, %d)", ints, "const %c: int32[] = 5\nconst %d: int32[] = -3") == (
        "Add(%x, %y_constant)"
    )
    assert done("%y = Sub(%x, %c)", ints, "const %c: int32[] = 5") == "Sub(%x, %c)"


def test_inside_subgraphs():
    text = """
graph g(%x: float32[2], %c: bool[]) -> (%y) {
    const %zero: float32[] = 0.0
    %i = Identity(%x)
    %y = If(%c) {
        then_branch: graph t() -> (%q) {
            %p = Add(%i, %zero)
            %q = Identity(%p)
        }
        else_branch: graph e() -> (%r) {
            %s = Neg(%i)
            %r = Neg(%s)
        }
    }
}
"""
    check(
        simplify,
        text,
        """
graph g(%x: float32[2], %c: bool[]) -> (%y) {
    %y: float32[2] = If(%c) {
        then_branch: graph t() -> (%x) {
        }
        else_branch: graph e() -> (%x) {
        }
    }
}""",
        exact=True,
    )


NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


@pytest.mark.parametrize("source", NUMBERS)
def test_casts_that_lose_nothing(source):
    """Against the numbers themselves: the extremes and the finest steps of a type survive, or they do not."""
    kind = NUMPY_TYPES[source]
    if source == "bool":
        samples = np.array([False, True])
    elif "float" in source:
        one = np.array(1, kind)
        fine = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[source]
        big = {"float16": 6e4, "bfloat16": 2.0**120, "float32": 2.0**120, "float64": 2.0**1000}[source]
        samples = np.array([one.astype(np.float64) + fine, big, 0.5]).astype(kind)
    else:
        bits = int(source.lstrip("uint"))
        top = 2 ** (bits - (source[0] == "i")) - 1
        samples = np.array([top, 0 if source[0] == "u" else -top - 1], object).astype(kind)
    for to in NUMBERS:
        if to == "bool":
            continue
        with np.errstate(all="ignore"):
            back = samples.astype(NUMPY_TYPES[to]).astype(kind)
            same = [int(a) == int(b) if "int" in source else a == b for a, b in zip(samples, back)]
        if loses_nothing(source, to):
            assert all(same), f"{source} -> {to}"
