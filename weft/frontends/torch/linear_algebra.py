"""Factorisations and solutions of small systems, written out in plain tensor operators: how torch decomposes them.

    a, b -> linalg.solve(a, b)       the steps of an LU factorisation with pivots, then two substitutions

Each step is a few operators over whole matrices, batches included, and there are as many steps as rows: matrices of
more than `MOST_ROWS` are left alone, and so are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch

MOST_ROWS = 32


def _small(function: Any) -> Any:
    """A decomposition that leaves large matrices alone."""

    def decomposition(a: Any, *more: Any, **given: Any) -> Any:
        is_small = all(isinstance(size, int) and size <= MOST_ROWS for size in a.shape[-2:])
        return function(a, *more, **given) if is_small else NotImplemented

    return decomposition


def _at(a: Any, count: int) -> Any:
    return torch.arange(count, device=a.device)


def _cholesky(a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    rest, rows, columns, pivots = a.mT if upper else a, _at(a, a.shape[-1]), [], []
    for j in range(a.shape[-1]):
        pivots.append(rest[..., j, j])
        column = torch.where(rows >= j, rest[..., :, j] / pivots[-1].sqrt()[..., None], 0)
        columns.append(column)
        rest = rest - column[..., :, None] * column[..., None, :]
    made = torch.stack(columns, -1) if columns else torch.zeros_like(a)
    failed = [torch.where(one > 0, a.shape[-1], at) for at, one in enumerate(pivots)]  # the first pivot that is none
    first = torch.stack(failed, -1).amin(-1) if failed else torch.zeros(a.shape[:-2], device=a.device)
    info = torch.where(first < a.shape[-1], first + 1, 0).to(torch.int32)
    return (made.mT if upper else made), info


def _substituted(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    """x with a x = b, where a is triangular."""
    n, rows = a.shape[-1], _at(a, a.shape[-1])
    found = b.new_zeros((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]))
    for j in reversed(range(n)) if upper else range(n):
        known = (a[..., j, :, None] * found).sum(-2)
        row = b[..., j, :] - known
        row = row if unit else row / a[..., j, j, None]
        found = torch.where((rows == j)[:, None], row[..., None, :], found)
    return found


def _solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return _substituted(a, b, upper, unitriangular)
    return _substituted(a.mT, b.mT, not upper, unitriangular).mT


def _triangular_solve(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    turned = a.mT if transpose else a
    return _substituted(turned, b, upper != transpose, unitriangular), a.clone()


def _lu_factor(a: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    m, n = a.shape[-2:]
    rows, columns, pivots = _at(a, m), _at(a, n), []
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    for j in range(min(m, n)):
        best = torch.where(rows >= j, a[..., :, j].abs(), -1).argmax(-1) if pivot else torch.full_like(info, j).long()
        pivots.append(best + 1)
        order = torch.where(rows == j, best[..., None], torch.where(rows == best[..., None], j, rows))
        a = torch.gather(a, -2, order[..., None].expand(a.shape))
        info = torch.where((info == 0) & (a[..., j, j] == 0), j + 1, info)
        divisor = torch.where(a[..., j, j] == 0, 1, a[..., j, j])
        factors = torch.where(rows > j, a[..., :, j] / divisor[..., None], 0)
        a = a - factors[..., :, None] * torch.where(columns > j, a[..., j, :], 0)[..., None, :]
        a = torch.where((rows > j)[:, None] & (columns == j), factors[..., :, None], a)
    kept = torch.stack(pivots, -1) if pivots else torch.zeros((*a.shape[:-2], 0), dtype=torch.int64, device=a.device)
    return a.clone(), kept.to(torch.int32), info


def _order(pivots: Any, rows: int) -> Any:
    """The rows in the order that exchanges (row k with row pivots[k] - 1) leave them in."""
    at = _at(pivots, rows)
    order = at.expand((*pivots.shape[:-1], rows))
    for k in range(pivots.shape[-1]):
        other = pivots[..., k, None].long() - 1
        turn = torch.where(at == k, other, torch.where(at == other, k, at))
        order = torch.gather(order, -1, turn.expand(order.shape))
    return order


def _lu_solve(factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if not left:
        return _lu_solve(factors, pivots, b.mT, adjoint=not adjoint).mT
    order = _order(pivots, factors.shape[-1])
    shape = torch.broadcast_shapes(factors.shape[:-2], b.shape[:-2])
    b, order = b.expand((*shape, *b.shape[-2:])), order.expand((*shape, order.shape[-1]))
    if adjoint:
        made = _substituted(factors.mT, b, False, False)
        made = _substituted(factors.mT, made, True, True)
        return torch.gather(made, -2, order.argsort(-1)[..., None].expand(made.shape))
    b = torch.gather(b, -2, order[..., None].expand(b.shape))
    return _substituted(factors, _substituted(factors, b, False, True), True, False)


def _lu_unpack(factors: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    m, k = factors.shape[-2], min(factors.shape[-2:])
    empty = factors.new_zeros((0,))
    lower, upper, order = empty, empty, empty
    if unpack_data:
        lower = factors[..., :, :k].tril(-1) + torch.eye(m, k, dtype=factors.dtype, device=factors.device)
        upper = factors[..., :k, :].triu()
    if unpack_pivots:
        order = (_at(factors, m)[:, None] == _order(pivots, m)[..., None, :]).to(factors.dtype)
    return order, lower, upper


def _lu(a: Any, *, pivot: bool = True) -> Any:
    order, lower, upper = _lu_unpack(*_lu_factor(a, pivot=pivot)[:2])
    return (order if pivot else a.new_zeros((0,))), lower, upper


def _solve(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and a.shape[:-1] == b.shape)
    factors, pivots, info = _lu_factor(a)
    made = _lu_solve(factors, pivots, b[..., None] if is_vector else b, left=left or is_vector)
    return (made[..., 0] if is_vector else made), factors, pivots, info


def _inverse(a: Any, *, check_errors: bool = False) -> Any:
    factors, pivots, info = _lu_factor(a)
    return _lu_solve(factors, pivots, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)), info


def _sign(pivots: Any, like: Any) -> Any:
    odd = (pivots != _at(pivots, pivots.shape[-1]) + 1).sum(-1) % 2
    return (1 - 2 * odd).to(like.dtype)


def _determinant(a: Any) -> Any:
    factors, pivots, _ = _lu_factor(a)
    return factors.diagonal(dim1=-2, dim2=-1).prod(-1) * _sign(pivots, a), factors, pivots


def _log_determinant(a: Any) -> Any:
    factors, pivots, _ = _lu_factor(a)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return diagonal.sign().prod(-1) * _sign(pivots, a), diagonal.abs().log().sum(-1), factors, pivots


def _qr(a: Any, mode: str = "reduced") -> Any:
    """By reflections, so that the signs are LAPACK's."""
    m, n = a.shape[-2:]
    k, rows = min(m, n), _at(a, m)
    q = torch.eye(m, dtype=a.dtype, device=a.device).expand((*a.shape[:-2], m, m))
    for j in range(min(k, m - 1)):
        below = torch.where(rows >= j, a[..., :, j], 0)
        size = below.square().sum(-1).sqrt()
        plain = torch.where(rows > j, a[..., :, j], 0).square().sum(-1) == 0
        head = torch.where(a[..., j, j] < 0, -size, size)
        v = below + (rows == j) * head[..., None]
        scale = torch.where(plain, 0, 2 / torch.where(plain, 1, v.square().sum(-1)))[..., None, None]
        a = a - scale * v[..., :, None] * (v[..., None, :] @ a)
        q = q - scale * (q @ v[..., :, None]) * v[..., None, :]
    width = m if mode == "complete" else k
    r = a[..., :width, :].triu()
    return (a.new_zeros((0,)) if mode == "r" else q[..., :, :width].clone()), r


_aten = torch.ops.aten
DECOMPOSITIONS = {
    op.default: _small(made)
    for op, made in (
        (_aten.linalg_cholesky_ex, _cholesky),
        (_aten.cholesky, lambda a, upper=False: _cholesky(a, upper=upper)[0]),
        (_aten.linalg_solve_triangular, _solve_triangular),
        (_aten.triangular_solve, _triangular_solve),
        (_aten.linalg_lu_factor_ex, _lu_factor),
        (_aten.linalg_lu_solve, _lu_solve),
        (_aten.lu_unpack, _lu_unpack),
        (_aten.linalg_lu, _lu),
        (_aten._linalg_solve_ex, _solve),
        (_aten.linalg_inv_ex, _inverse),
        (_aten._linalg_det, _determinant),
        (_aten._linalg_slogdet, _log_determinant),
        (_aten.linalg_qr, _qr),
    )
}
"""By operator, as torch._decomp has its own."""
