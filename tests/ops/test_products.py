"""Matrix products and Einsum: ONNX's cases, and random ones against numpy."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, check_symbolic, numbers, run_node
from weft.graph.ir import GraphError


@pytest.mark.parametrize("case", cases("MatMul", "Gemm", "Einsum"), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


@pytest.mark.parametrize(
    "left,right",
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((1, 3, 4), (7, 4, 2)),
    ],
)
def test_matmul_follows_numpy(left, right):
    a, b = numbers(*left), numbers(*right, seed=1)
    check_node("MatMul", [a, b], np.matmul(a, b))


def test_matmul_of_symbolic_sizes():
    a, b = numbers(2, 1, 3, 4), numbers(5, 4, 6, seed=1)
    check_symbolic("MatMul", [a, b], {(0, 0): "n", (0, 2): "rows", (1, 0): "heads", (1, 2): "columns"})


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "float64"])
def test_matmul_of_other_types(dtype):
    a, b = numbers(3, 4, dtype=dtype), numbers(4, 5, seed=1, dtype=dtype)
    check_node("MatMul", [a, b], np.matmul(a, b), rtol=1e-10)


def test_half_products_are_summed_in_float32():
    a = np.full((1, 4096), 1.0, "float16")
    check_node("MatMul", [a, a.T.copy()], np.full((1, 1), 4096.0), rtol=1e-3)


@pytest.mark.parametrize("left,right", [((3, 4), (5, 4)), ((3,), (4,)), ((2, 3, 4), (3, 4, 5))])
def test_matmul_refuses(left, right):
    with pytest.raises(GraphError, match="'test'"):
        run_node("MatMul", numbers(*left), numbers(*right))


@pytest.mark.parametrize("across,down,bias", [(0, 0, (5,)), (1, 0, (3, 1)), (0, 1, ()), (1, 1, (1, 5)), (1, 1, None)])
@pytest.mark.parametrize("alpha,beta", [(1.0, 1.0), (0.5, 2.0)])
def test_gemm(across, down, bias, alpha, beta):
    a = numbers(*((4, 3) if across else (3, 4)))
    b = numbers(*((5, 4) if down else (4, 5)), seed=1)
    c = None if bias is None else numbers(*bias, seed=2)
    wanted = alpha * ((a.T if across else a) @ (b.T if down else b)) + (0 if c is None else beta * c)
    arrays = [a, b] if c is None else [a, b, c]
    check_node("Gemm", arrays, wanted, transA=across, transB=down, alpha=alpha, beta=beta)


def test_gemm_refuses():
    with pytest.raises(GraphError, match="not broadcast"):
        run_node("Gemm", numbers(3, 4), numbers(4, 5), numbers(2, 5))
    with pytest.raises(GraphError, match="do not multiply"):
        run_node("Gemm", numbers(3, 4), numbers(4, 5), transB=1)


@pytest.mark.parametrize(
    "equation,shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
        ("b...d,d->b...", [(2, 3, 4, 5), (5,)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("...ii->...", [(3, 4, 4)]),
        ("i,j,k->kij", [(2,), (3,), (4,)]),
        ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 3)]),
        (" b h i d , b h j d -> b h i j ", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("iij,jk->ik", [(3, 3, 4), (4, 5)]),
        ("ab,->b", [(3, 4), ()]),
        ("bA,Ab", [(3, 4), (4, 3)]),
        ("ij,ij->", [(3, 4), (1, 4)]),
        ("...->...", [(2, 3)]),
    ],
)
def test_einsum_follows_numpy(equation, shapes):
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    check_node("Einsum", arrays, np.einsum(equation, *arrays), equation=equation)


def test_einsum_of_symbolic_sizes():
    arrays = [numbers(2, 3, 4), numbers(2, 4, 5)]
    check_symbolic("Einsum", arrays, {(0, 0): "b", (1, 0): "b", (0, 1): "rows"}, equation="bij,bjk->bik")


@pytest.mark.parametrize(
    "equation,shapes,message",
    [
        ("ij->ij", [(2, 3), (3, 2)], "1 terms for 2"),
        ("ijk->i", [(2, 3)], "does not fit"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "is 3 in one input and 4"),
        ("ij->iz", [(2, 3)], "no input has"),
        ("i1->i", [(2, 3)], "not letters"),
        ("i......j->i", [(2, 3)], "at most one ellipsis"),
    ],
)
def test_einsum_refuses(equation, shapes, message):
    with pytest.raises(GraphError, match=message):
        run_node("Einsum", *[numbers(*shape) for shape in shapes], equation=equation)
