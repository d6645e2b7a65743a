"""ATen operators against eager torch, in values and element types: each line of a table is one use of one operator.

The quick test runs the imported graph by its numpy meaning, which shows the converters; the slow one compiles it.
"""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, F401  (used by the expressions)
from torch.utils import _pytree as pytree  # noqa: E402

import weft  # noqa: E402
from tests.frontends.torch.opinfo import compare, interpreted  # noqa: E402
from weft.frontends.torch.importer import Refused  # noqa: E402
from weft.frontends.torch.source import decompositions, load  # noqa: E402
from weft.frontends.torch.table import CONVERTERS, name_of  # noqa: E402


def inputs():
    """What the expressions speak of."""
    torch.manual_seed(0)
    return {
        "x": torch.randn(2, 3, 4), "y": torch.randn(2, 3, 4), "u": torch.rand(2, 3, 4) * 0.8 + 0.1, "r": torch.randn(4),
        "i": torch.randint(-5, 6, (2, 3, 4)), "j": torch.randint(1, 4, (2, 3, 4)), "b": torch.randn(2, 3, 4) > 0,
        "h": torch.randn(2, 3, 4, dtype=torch.float16), "g": torch.randn(2, 3, 4).bfloat16(),
        "k": torch.tensor([2, 0, 1]), "m": torch.randn(3, 4), "n": torch.randn(4, 5), "p": torch.randn(2, 4, 5),
        "q": torch.randn(2, 4, 6, 6), "c": torch.randn(1, 2, 5, 5, 5), "s": torch.tensor(1.5), "z": torch.zeros(3, 4),
        "d": torch.randn(2, 3, 4).double(), "w": torch.randn(6, 4, 3, 3), "e": torch.randn(4, 3, 3, 3),
        "f": torch.randn(4, 2, 3, 3), "o": torch.randint(0, 9, (2, 3, 4)).byte(),
    }  # fmt: skip


UNARY = """
    abs acos:u acosh:u+1.5 asin:u asinh atan atanh:u ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite isinf
    isnan log:u log10:u log1p:u log2:u logit:u neg reciprocal relu round rsqrt:u sigmoid sign sgn signbit sin sinh
    sqrt:u square tan tanh trunc positive logical_not deg2rad rad2deg sinc
"""

TABLES = {
    "unary": [f"torch.{name.partition(':')[0]}({name.partition(':')[2] or 'x'})" for name in UNARY.split()]
    + [
        "torch.abs(i)", "torch.neg(i)", "torch.exp(i)", "torch.sqrt(j)", "torch.round(i)", "torch.relu(i)",
        "torch.sign(i)", "torch.floor(i)", "torch.bitwise_not(i)", "torch.bitwise_not(b)", "torch.logical_not(i)",
        "torch.exp(h)", "torch.tanh(g)", "torch.sin(d)", "torch.round(x, decimals=2)", "torch.isnan(i)",
        "torch.nan_to_num(x / z)", "torch.trunc(i)", "torch.abs(o)",
    ],
    "binary": [
        "x + y", "x + 2", "x + i", "i + 2.5", "b + b", "b + i", "torch.add(x, y, alpha=2)", "x - y", "1 - x",
        "torch.sub(x, y, alpha=3)", "x * y", "x * 3", "i * j", "b * x", "x / y", "i / j", "x / 3", "i // j", "x // u",
        "torch.div(x, y, rounding_mode='trunc')", "torch.div(i, j, rounding_mode='trunc')",
        "torch.div(i, j, rounding_mode='floor')", "torch.div(x, u, rounding_mode='floor')", "x % u", "i % j",
        "torch.remainder(x, -u)", "torch.remainder(i, -j)", "torch.fmod(x, u)", "torch.fmod(i, j)", "x ** 2", "x ** 3",
        "u ** 0.5", "u ** -1", "u ** x", "2 ** x", "i ** 2", "j ** j", "torch.maximum(x, y)", "torch.minimum(x, i)",
        "torch.maximum(b, b)", "torch.fmax(x, y)", "torch.fmin(x, y)", "torch.atan2(x, y)", "torch.hypot(x, y)",
        "torch.copysign(x, y)", "torch.logaddexp(x, y)", "i & j", "i | j", "i ^ j", "b & b", "b | (x > 0)", "b ^ b",
        "i << j", "i >> j", "i >> (j * 31)", "o >> o",
        "torch.logical_and(i, b)", "torch.logical_or(x, b)", "torch.logical_xor(i, b)", "x == y",
        "x != y", "x < y", "x <= 0", "i > 0.5", "i >= j", "b == b", "i == 1", "h + x", "h + h", "g * 2", "d + x",
        "h * 0.5", "torch.where(b, x, y)", "torch.where(b, x, 0.0)", "torch.where(b, 1, i)", "torch.where(x > 0, x, i)",
        "torch.clamp(x, -0.5, 0.5)", "torch.clamp(x, min=0.0)", "torch.clamp(i, max=2)", "torch.clamp(x, y, y + 1)",
        "x.clamp_min(0.1)", "torch.lerp(x, y, 0.3)", "torch.addcmul(x, y, u, value=2)", "torch.addcdiv(x, y, u)",
        "torch.rsub(x, 2)", "x.masked_fill(b, 7.0)", "torch.heaviside(x, y)", "torch.xlogy(x, u)", "x + s",
        "torch.float_power(u, 2)", "o + 1", "o * o", "o // 2", "s * i", "x.to(torch.int32)",
    ],
    "activations": [
        "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.mish(x)", "F.leaky_relu(x, 0.2)", "F.elu(x)",
        "F.elu(x, 0.5)", "F.selu(x)", "F.celu(x, 0.7)", "F.softplus(x)", "F.softplus(x, 2, 1)", "F.logsigmoid(x)",
        "F.hardsigmoid(x)", "F.hardswish(x)", "F.hardtanh(x)", "F.hardtanh(x, -2, 0.5)", "F.relu6(x * 5)",
        "F.prelu(x, r[:3])", "F.prelu(x, r[:1])", "F.hardshrink(x)", "F.softshrink(x)", "F.tanhshrink(x)",
        "F.softsign(x)", "F.glu(x)", "F.threshold(x, 0.1, 5)", "F.dropout(x, 0.5, False)", "F.softmax(x, 1)",
        "F.softmax(h, -1)", "F.log_softmax(x, -1)", "F.softmax(x, 0, dtype=torch.float64)", "F.softmin(x, 1)",
        "F.normalize(x, dim=1)", "F.cosine_similarity(x, y)", "F.gelu(g)", "F.pairwise_distance(m, m + 1)",
        "F.mse_loss(x, y)", "F.smooth_l1_loss(x, y)", "F.binary_cross_entropy(u, u)", "F.cross_entropy(m, k)",
        "F.nll_loss(m.log_softmax(1), k)", "F.kl_div(u.log(), u)", "F.huber_loss(x, y)", "F.one_hot(k, 4)",
    ],
    "reductions": [
        "x.sum()", "x.sum(1)", "x.sum((0, 2), keepdim=True)", "i.sum()", "b.sum(1)", "h.sum(-1)",
        "x.sum(dtype=torch.float64)", "x.mean()", "x.mean(-1, True)", "g.mean((1, 2))", "x.prod()", "x.prod(1)",
        "i.prod(2)", "x.amax(1)", "x.amin((0, 1))", "x.max()", "x.min()", "x.max(1)", "x.min(-1, keepdim=True)",
        "i.max(0)", "x.argmax()", "x.argmax(1)", "x.argmin(-1, keepdim=True)", "x.argmax(keepdim=True)", "b.any()",
        "b.any(1)", "b.all(1)", "x.all()", "x.var()", "x.var(1)", "x.var(1, correction=0)",
        "x.std((0, 2), keepdim=True)", "torch.var_mean(x, 1)", "torch.std_mean(x)", "x.norm()", "x.norm(1, 1)",
        "torch.linalg.vector_norm(x, 3, 1)", "torch.linalg.vector_norm(x, float('inf'))",
        "torch.linalg.vector_norm(x, 0, -1)", "x.logsumexp(1)", "x.cumsum(1)", "i.cumsum(0)", "b.cumsum(-1)",
        "x.cumprod(2)", "x.cummax(1)", "x.cummin(-1)", "x.masked_fill(b, float('nan')).cummax(1)",
        "x.topk(2)", "x.topk(2, 1, False)", "x.sort()",
        "x.sort(1, True)", "i.sort(dim=0, stable=True)", "x.argsort(-1)", "x.median(1)", "x.median()", "x.nansum(1)",
        "torch.count_nonzero(i)", "torch.count_nonzero(i, 1)", "s.sum()", "s.softmax(0)", "s.cumsum(0)",
        "torch.dist(x, y)", "torch.aminmax(x)", "x.nanmean(1)", "torch.diff(x)", "x.logcumsumexp(1)", "torch.trace(n)",
        "x.kthvalue(2, 1)", "x.quantile(0.4)",
    ],
    "movement": [
        "x.view(6, 4)", "x.reshape(-1)", "x.flatten(1)", "x.unflatten(2, (2, 2))", "m.expand(5, 3, 4)",
        "m[:, None].expand(-1, 6, -1)", "x.permute(2, 0, 1)", "x.transpose(0, 2)", "m.t()", "x.mT", "x.unsqueeze(1)",
        "x[:1].squeeze()", "x[:1].squeeze(0)", "x.squeeze(1)", "x[:, 1:]", "x[..., ::2]", "x[:, -1]", "x[:, -2:-1]",
        "x.select(2, -1)", "x.narrow(1, 1, 2)", "x.split(2, 1)", "x.split([1, 3], 2)", "x.chunk(2, -1)", "x.unbind(1)",
        "torch.cat([x, y], 1)", "torch.cat([x, i], -1)", "torch.stack([x, y], 1)", "torch.hstack([m, m])",
        "torch.vstack([m, m])", "x.flip(0, 2)", "x.roll(1, 1)", "x.roll((1, -2), (0, 2))", "x.roll(5)",
        "x.repeat(2, 1, 3)", "m.repeat(2, 1, 1)", "x.tile(2, 2)", "x.repeat_interleave(2, 1)", "m.tril()", "m.triu(1)",
        "x.tril(-1)", "m.diagonal()", "x.diagonal(1, 1, 2)", "torch.diag(r)", "torch.diag_embed(r)",
        "q.unfold(2, 3, 2)", "F.unfold(q, 3, padding=1)", "F.fold(F.unfold(q, 2, stride=2), (6, 6), 2, stride=2)",
        "F.pixel_shuffle(q, 2)", "F.pixel_unshuffle(q, 3)", "F.channel_shuffle(q, 2)", "F.pad(x, (1, 2))",
        "F.pad(x, (1, 0, 2, 1), value=3.0)", "F.pad(x, (-1, 2))", "F.pad(q, (1, 2, 2, 1), 'reflect')",
        "F.pad(q, (1, 2, 2, 1), 'replicate')", "F.pad(q, (1, 2, 2, 1), 'circular')", "F.pad(x, (2, 1), 'reflect')",
        "F.pad(q, (-4, 4, 4, -4), 'reflect')", "F.pad(q, (-6, 2, 0, 0), 'replicate')",
        "x.movedim(0, 2)", "torch.meshgrid(r, r, indexing='ij')", "torch.rot90(m)", "torch.broadcast_tensors(m, x)",
        "x.swapaxes(0, 1)", "torch.atleast_3d(m)", "x.ravel()", "torch.as_strided(m, (2, 3), (4, 1))",
        "torch.full((2, 3), 1.5)", "torch.zeros(2), torch.ones(3, dtype=torch.int32)", "torch.zeros_like(x)",
        "torch.ones_like(i)", "torch.full_like(x, 2)", "x.new_zeros(3)", "torch.arange(5)", "torch.arange(1, 2, 0.25)",
        "torch.linspace(0, 1, 5)", "torch.eye(3)", "torch.tril_indices(3, 3)", "torch.tensor(3.0) + x", "x.clone()",
        "x.contiguous()", "x.double()", "x.half()", "x.long()", "b.float()", "i.bool()", "x.bfloat16()", "i.byte()",
        "x.type_as(d)", "x.detach()", "m.T @ m", "torch.block_diag(m, n)",
    ],
    "indexing": [
        "x[:, k]", "m[k]", "m[k, k]", "x[:, k, k]", "x[k % 2, :, k]", "x[b]", "m[m > 0]", "m[k][:, k]", "m[:, None, k]",
        "m[-k]", "m.index_select(0, k)", "F.embedding(k, m)", "m.gather(1, k[:, None])", "x.gather(2, j)",
        "torch.take(m, k)", "torch.take_along_dim(x, j, 2)", "(m > 0).nonzero()", "m.masked_select(m > 0)",
        "m.index_put((k,), n.T[:3, :4])", "m.index_put((k, k), r[:3], accumulate=True)",
        "z.scatter(1, k[:, None], 1.0)", "z.scatter(0, k[None], n[:1, :3])",
        "z.scatter_add(1, k[:, None].expand(3, 2), m)", "z.scatter_reduce(1, k[:, None], m, 'amax')",
        "m.index_add(0, k, m)", "m.index_copy(0, k, m + 1)", "m.index_fill(0, k[:1], 2.0)",
        "torch.searchsorted(r.sort()[0], m)", "torch.searchsorted(r.sort()[0], m.masked_fill(m > 0, float('nan')))",
        "torch.bucketize(m, r.sort()[0], right=True)", "torch.where(b)",
        "m.slice_scatter(z[:, :2], 1, 1, 3)", "m.slice_scatter(z[:, :2], 1, 0, 4, 2)", "m.select_scatter(r, 0, 1)",
        "m.diagonal_scatter(r[:3])", "torch.isin(k, k[:1])", "m.argwhere()", "m.masked_scatter(m > 0, z + 2)",
        "inplace(m)", "inplace_mask(m)",
    ],
    "layers": [
        "m @ n", "x @ n", "x @ p", "x @ r", "r @ r", "torch.bmm(x, p)",
        "torch._scaled_mm(m.repeat(8, 8).to(torch.float8_e4m3fn), n.T.repeat(16, 8).to(torch.float8_e4m3fn).t(), s, s, "
        "out_dtype=torch.float32)", "torch.addmm(r[:1], m, n, beta=2, alpha=0.5)",
        "torch.baddbmm(s, x, p)", "F.linear(x, n.T, n[0])", "F.linear(m, n.T)", "torch.einsum('bij,bjk->bik', x, p)",
        "torch.einsum('bij,bkj->bik', x, y)", "torch.outer(r, r)", "torch.cdist(x, y)", "torch.cdist(x, y, p=1.0)",
        "torch.kron(m, m)", "torch.tensordot(x, n, 1)", "F.conv2d(q, w)", "F.conv2d(q, w, r.repeat(2)[:6], 2, 1)",
        "F.conv2d(q, w, None, 1, 2, 2)", "F.conv2d(q, w[:, :2], None, 1, 'same', groups=2)", "F.conv2d(q[0], w)",
        "F.conv1d(x, e[:, :, 0])", "F.conv3d(c, w[None, :2, :2, :, :].expand(3, -1, -1, -1, -1))",
        "F.conv_transpose2d(q, e, None, 2, 1, 1)", "F.conv_transpose2d(q, e, groups=2, dilation=2)",
        "F.conv_transpose1d(x, e[:3, :, 0], stride=2)", "F.batch_norm(q, r, u[0, 0])",
        "F.batch_norm(q, r, u[0, 0], r, r)", "F.batch_norm(q, None, None, training=True)", "F.layer_norm(x, (4,))",
        "F.layer_norm(x, (3, 4), m, m)", "F.layer_norm(h, (4,), r.half())", "F.group_norm(q, 2)",
        "F.group_norm(q, 4, r, r)", "F.instance_norm(q)", "F.rms_norm(x, (4,), r)", "F.local_response_norm(q, 3)",
        "F.avg_pool2d(q, 2)", "F.avg_pool2d(q, 3, 2, 1)",
        "F.avg_pool2d(q, 3, 2, 1, ceil_mode=True, count_include_pad=False)", "F.avg_pool2d(q, 2, divisor_override=3)",
        "F.avg_pool2d(q, 4, 3, 1, True, divisor_override=3)", "F.avg_pool1d(x, 2)", "F.avg_pool3d(c, 2)",
        "F.max_pool2d(q, 2)", "F.max_pool2d(q, 3, 2, 1, ceil_mode=True)", "F.max_pool2d(q, 2, return_indices=True)",
        "F.max_pool1d(x, 2, 1)", "F.max_pool3d(c, 2)", "F.max_pool2d(q, 2, 1, 0, 2)", "F.adaptive_avg_pool2d(q, 1)",
        "F.adaptive_avg_pool2d(q, (3, 2))", "F.adaptive_avg_pool2d(q, (4, 5))", "F.adaptive_avg_pool1d(x, 3)",
        "F.adaptive_max_pool2d(q, 3)", "F.adaptive_max_pool2d(q, (4, 5))", "F.interpolate(q, scale_factor=2)",
        "F.interpolate(q, (9, 4))", "F.interpolate(q, (9, 4), mode='bilinear')",
        "F.interpolate(q, scale_factor=2, mode='bilinear', align_corners=True)",
        "F.interpolate(q, (3, 4), mode='bicubic')", "F.interpolate(x, 7, mode='linear')",
        "F.interpolate(c, (4, 6, 7), mode='trilinear')", "F.interpolate(q, (7, 4), mode='nearest-exact')",
        "F.interpolate(q, (3, 4), mode='bilinear', antialias=True)", "F.interpolate(q, (4, 3), mode='area')",
        "F.grid_sample(q, q[:, :2].movedim(1, 3).tanh(), align_corners=False)",
        "F.grid_sample(q, q[:, :2].movedim(1, 3).tanh(), 'nearest', 'border', True)",
        "F.affine_grid(m[None, :2, :3], (1, 1, 3, 4), True)", "F.lp_pool2d(q, 2, 2)",
        "F.scaled_dot_product_attention(q, q, q)", "F.scaled_dot_product_attention(q, q, q, is_causal=True)",
        "F.scaled_dot_product_attention(x, y, x, scale=0.3)", "F.scaled_dot_product_attention(q, q, q, q[0, 0] > 0)",
        "F.scaled_dot_product_attention(q, q, q, q[:, :1])",
        "F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True)",
        "F.bilinear(m, m, e[:, 0, :, :1].expand(-1, -1, 4)[:, [0, 1, 2, 0]])", "F.rrelu(x)",
    ],
    "special": [
        "torch.lgamma(x)", "torch.digamma(x)", "torch.erfinv(u)", "torch.erfc(x * 3)", "torch.polygamma(0, x)",
        "torch.polygamma(1, x)", "torch.polygamma(3, u)", "torch.mvlgamma(u + 2, 3)", "torch.i0(x * 6)",
        "torch.special.i0e(x)", "torch.special.i1(x)", "torch.special.i1e(x * 9)", "torch.special.ndtri(u)",
        "torch.nextafter(x, y)",
        "torch.angle(x)", "torch.histc(x, 5)", "torch.histc(x, 4, -1, 1)", "x.nanmedian()", "x.nanmedian(1)",
        "F.adaptive_max_pool2d(q, (4, 5), return_indices=True)", "F.adaptive_max_pool1d(x, 3, return_indices=True)",
        "F.pdist(m)", "m.index_reduce(0, k, m + 1, 'mean')", "m.index_reduce(0, k, m, 'amin', include_self=False)",
        "z.scatter_reduce(1, k[:, None], m, 'mean')", "m.scatter_reduce(0, k[None], m, 'prod', include_self=False)",
        "z.scatter_reduce(0, k[None], m, 'sum', include_self=False)", "m.put(k, r[:3])",
        "m.put(k, r[:3], accumulate=True)", "torch.searchsorted(r, m, sorter=r.argsort())",
        "F.embedding_bag(k, m, torch.tensor([0, 2]), mode='sum')", "F.embedding_bag(k, m, torch.tensor([0, 0]))",
        "F.embedding_bag(k[None], m, mode='max', padding_idx=0)", "i.unique(return_inverse=True, return_counts=True)",
    ],
    "systems": [
        "torch.linalg.cholesky(x @ x.mT + torch.eye(3))", "torch.linalg.cholesky_ex(x @ x.mT, upper=True)",
        "torch.linalg.solve(x[..., :3], x[..., 1:])", "torch.linalg.solve(x[..., :3], m[:, 0].expand(2, 3))",
        "torch.linalg.solve(x[..., :3], x.mT[:, :2], left=False)", "torch.linalg.inv(x[..., :3])",
        "torch.linalg.det(x[..., :3])", "torch.linalg.slogdet(x[..., :3])", "torch.linalg.lu(x)",
        "torch.linalg.lu(x.mT)", "torch.linalg.lu_factor(x)", "torch.linalg.qr(x)", "torch.linalg.qr(x.mT, 'complete')",
        "torch.linalg.qr(x.mT, 'r')", "torch.linalg.lu_solve(*torch.linalg.lu_factor(x[..., 1:]), x, adjoint=True)",
        "torch.linalg.solve_triangular(x[..., :3].tril(), x, upper=False)",
        "torch.linalg.solve_triangular(x[..., :3].triu(), x.mT, upper=True, left=False)",
    ],
}  # fmt: skip
REFUSED = {"torch.nextafter(x, y)"}
"""What is in the tables to show that it is refused by name."""


def inplace(m):
    """Writes to views: what functionalization takes apart."""
    m = m.clone()
    m[1:, ::2] = 3.0
    m[0] += m[1]
    m.diagonal().mul_(2)
    m.relu_().add_(1)
    return m


def inplace_mask(m):
    m = m.clone()
    m[m > 0.5] = 0.0
    m[:, torch.tensor([0, 2])] = m[:, torch.tensor([1, 3])]
    return m


class Table(torch.nn.Module):
    """All expressions of a table."""

    def __init__(self, lines):
        super().__init__()
        self.lines = lines

    def forward(self, given):
        names = {**globals(), **given}
        return [eval(line, names) for line in self.lines]


def made_of(lines):
    return Table(lines).eval(), (inputs(),)


def check(lines, run):
    """Compares line by line."""
    model, given = made_of(lines)
    with torch.no_grad():
        wanted, found = model(*given), run(model, given)
    wrong = [f"{line}: {said}" for line, a, b in zip(lines, wanted, found) if (said := compare(a, b)) != "right"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("table", [t if t != "systems" else pytest.param(t, marks=pytest.mark.slow) for t in TABLES])
def test_operators_mean_what_torch_says(table):
    check([line for line in TABLES[table] if line not in REFUSED], interpreted)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_compiled_operators_compute_what_torch_says(table):
    lines = [line for line in TABLES[table] if line not in REFUSED]
    check(lines, lambda model, given: weft.compile(model, given)(*given))


def test_what_is_refused_is_refused_by_name():
    for line in REFUSED:
        with pytest.raises(Refused, match=line.split("(")[0].split(".")[-1]):
            load(*made_of([line]))


@pytest.mark.slow
def test_the_tables_use_many_operators():
    lines = [line for table in TABLES.values() for line in table]
    assert len(lines) > 400 and len(set(lines)) == len(lines)
    seen = set()
    for table in ("unary", "binary", "movement"):
        model, given = made_of(TABLES[table])
        program = torch.export.export(model, given, strict=False).run_decompositions(decompositions())
        seen |= {name_of(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert len(seen & set(CONVERTERS)) >= 120
    assert pytree.tree_leaves(seen)
