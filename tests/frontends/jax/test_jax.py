"""weft.compile of JAX functions: primitives, control flow, random numbers, structures, and errors that help."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import weft  # noqa: E402
from tests.frontends.jax.harness import LOOSER, case, compare, harnesses, interpreted  # noqa: E402
from weft.core.errors import ArgumentError, FrontendError, InternalError  # noqa: E402
from weft.frontends.jax import load  # noqa: E402
from weft.frontends.jax.table import CONVERTERS  # noqa: E402
from weft.graph.interpreter import interpret_graph  # noqa: E402
from weft.graph.opspec import _OF_USERS, _TABLE  # noqa: E402


def inputs():
    random = np.random.default_rng(0)
    return {
        "x": random.normal(size=(2, 3, 4)).astype("f"), "y": random.normal(size=(2, 3, 4)).astype("f"),
        "u": random.uniform(0.1, 0.9, (2, 3, 4)).astype("f"), "i": random.integers(-9, 9, (2, 3, 4)).astype("int32"),
        "k": np.array([2, 0, 1], "int32"), "m": random.normal(size=(3, 4)).astype("f"),
        "b": np.array([True, False, True]),
        "q": random.normal(size=(1, 4, 6, 6)).astype("f"), "w": random.normal(size=(6, 4, 3, 3)).astype("f"),
        "n": np.array([np.nan, np.inf, -np.inf, -0.0, 3.5], "f"), "z": np.array([0, -1, 3, -(2**31)], "int32"),
        "h": random.normal(size=(2, 3)).astype("float16"), "t": np.array(2, "int32"),
    }  # fmt: skip


DIMENSIONS = lax.ConvDimensionNumbers((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
TABLES = {
    "elementwise": [
        "jnp.exp(x)", "lax.erf_inv(u)", "lax.erfc(x * 4)", "jnp.cbrt(x)",
        "jnp.log1p(u)", "jnp.expm1(x)", "jnp.sign(n)", "jnp.round(x * 3)",
        "lax.round(x * 9, 0)", "lax.div(z, z[::-1])", "lax.rem(z, z[::-1])", "lax.div(z, jnp.int32(0))", "x / y",
        "i // 3", "i % 3", "x % 0.3", "jnp.arctan2(n, n[::-1])", "jnp.maximum(n, 0)", "lax.nextafter(n, n[::-1])",
        "jnp.isfinite(n)", "x < y", "x ** 3", "u ** x", "lax.integer_pow(u, -3)", "jnp.where(x > 0, x, y)",
        "jnp.clip(x, -0.5, 0.5)", "lax.clamp(y, x, y + 1)", "i & 3", "~i", "i << 2", "lax.shift_right_logical(i, 3)",
        "lax.shift_right_arithmetic(i, 40)", "z.astype('uint8')", "lax.population_count(i)", "lax.clz(i)",
        "lax.bitcast_convert_type(x, 'int32')", "n.astype(bool)", "lax.bitcast_convert_type(i, 'uint8')",
        "lax.reduce_precision(x, 8, 7)", "jax.nn.gelu(x)", "jax.nn.silu(h)", "lax.select_n(k, k, k + 1, k + 2)",
        "jax.nn.gelu(x, approximate=False)", "jax.nn.softplus(x)", "n.astype('int32')",
        "lax.select(n > 0, n, -n)", "jnp.logaddexp(x, y)", "lax.mul(x, x)",
    ],
    "movement": [
        "jnp.pad(m, 1)", "lax.pad(m, 9.0, [(1, -1, 2), (-1, 2, 0)])", "lax.pad(m, 0.0, [(-2, 3, 1), (1, -3, 0)])",
        "m.T[::-1, ::2]", "jnp.concatenate([x, y], 1)", "jnp.stack([m, m])", "jnp.tile(m, (2, 2))",
        "jnp.repeat(m, 2, 0)", "x.reshape(6, 4)", "x.reshape(4, 6, order='F')", "jnp.squeeze(m[:1])",
        "jnp.broadcast_to(m, (2, 3, 4))", "jnp.split(x, 2, -1)", "jnp.arange(5)[:, None] * 2", "jnp.roll(x, 1, 1)",
        "jnp.flip(x, (0, 2))", "jnp.eye(3)", "lax.dynamic_slice(m, (t, t), (2, 2))",
        "lax.dynamic_slice(m, (5, -1), (2, 4))", "jnp.triu(m)", "lax.dynamic_update_slice(m, m[:2, :1], (t, t))",
        "lax.dynamic_update_slice(m, m[:2], (1, 0))",
    ],
    "indexing": [
        "m[k]", "m[:, k]", "m[k, k]", "x[1, :, k]", "x[:, 1, ::2]", "m[-k]", "m[t]", "m.at[k].set(1.0)",
        "m.at[k, k].add(2.0)", "m.at[9].set(1.0)", "m.at[k].mul(3.0)", "m.at[:, 1].max(0.0)",
        "m.at[1:, ::2].min(0.0)", "jnp.take(m, k + 1, 0)", "jnp.take(m, k + 9, 0, mode='clip')",
        "jnp.take(m, k + 1, 0, mode='fill')", "jnp.take_along_axis(m, jnp.argsort(m, 1), 1)",
        "jnp.take_along_axis(x, i % 3, 1)", "m[b.astype(int)]", "jax.ops.segment_sum(m, k, 4)",
        "jax.vmap(lambda r, j: r[j])(m, k)", "jnp.where(b, k, 0)", "m.at[k].get()",
        "jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (2,)))(m, k)",
        "jax.vmap(lambda r, j: r.at[j].set(0.))(m, k)",
    ],
    "reductions": [
        "x.sum(1)", "i.prod(2)", "x.max((0, 2))", "b.any()", "b.all()", "x.mean()", "x.std(1)", "jnp.argmax(n)",
        "jnp.argmin(x, 1)", "x.cumsum(1)", "jnp.cumprod(x, 2)", "lax.cummax(n[2:])", "lax.cummin(x, 1, True)",
        "lax.cumlogsumexp(x, 2)", "jnp.sort(x, 1)", "jnp.sort(n)", "jnp.argsort(i, 2)", "jnp.lexsort((k, k % 2))",
        "lax.sort((i, i + 1, x), dimension=2, num_keys=2)", "lax.top_k(x, 2)", "jnp.median(x)", "h.sum(1)",
        "jax.nn.softmax(x)", "jax.nn.logsumexp(x, 1)", "jnp.var(m)", "i.astype('int8').sum(1)", "x[:0].sum(0)",
        "lax.reduce_window(q, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), 'SAME')",
        "lax.reduce_window(q, 0.0, lax.add, (1, 2, 3, 3), (1, 1, 2, 1), ((0, 0), (1, 0), (1, 2), (0, 0)))",
        "lax.reduce_window(i, 1, lax.mul, (1, 2, 3), (1, 1, 1), 'VALID', (1, 2, 1), (1, 1, 1))",
        "lax.reduce_window(q, jnp.inf, lax.min, (1, 1, 2, 2), (1, 1, 1, 1), 'VALID', None, (1, 1, 2, 2))",
        "jax.grad(lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), 'SAME').sum())(q)",
    ],
    "layers": [
        "m @ m.T", "x @ m.T", "m[0] @ m[1]", "jnp.einsum('bij,bkj->bik', x, y)", "jnp.einsum('bij,bij->b', x, y)",
        "jnp.outer(k, k)", "i[0] @ i[0].T", "jnp.einsum('abc,dbe->acde', x, y)", "(h @ h.T)",
        "jnp.tensordot(x, y, ([0, 1], [0, 1]))", "lax.conv(q, w, (1, 1), 'SAME')",
        "lax.conv_general_dilated(q, w, (2, 1), ((1, 2), (0, 1)), rhs_dilation=(2, 1))",
        "lax.conv_general_dilated(q, w, (1, 1), ((2, 2), (2, 2)), lhs_dilation=(2, 2))",
        "lax.conv_general_dilated(q, w, (2, 2), ((-1, 3), (2, 2)), lhs_dilation=(2, 3))",
        "lax.conv_general_dilated(q, w[:, :2], (1, 1), 'VALID', feature_group_count=2)",
        "lax.conv_general_dilated(q.transpose(2, 3, 0, 1), w.T, (1, 1), 'SAME', None, None, ('HWNC', 'HWIO', 'NHWC'))",
        "lax.conv_general_dilated(jnp.tile(q, (2, 1, 1, 1)), w, (1, 1), 'VALID', batch_group_count=2)",
        "lax.conv_general_dilated(i, i.transpose(0, 1, 2)[:, :, :2], (1,), 'SAME')",
        "lax.conv_transpose(q.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), (2, 2), 'SAME')",
        "lax.ragged_dot(m, jnp.stack([m.T, m.T * 2]), jnp.array([1, 2]))",
    ],
    "control": [
        "lax.scan(lambda s, r: (s + r, s * r), m[0], m)", "lax.scan(lambda s, r: (s * r, s), m[0], m, reverse=True)",
        "lax.scan(lambda s, _: (s * 2, s), m, None, length=3)", "lax.fori_loop(0, 5, lambda j, s: s + j, x)",
        "lax.while_loop(lambda s: s.sum() < 99, lambda s: s * 2, u)", "lax.cond(x.sum() > 0, jnp.sin, jnp.cos, y)",
        "lax.switch(t, [jnp.sin, jnp.cos, jnp.tan, jnp.exp], x)", "lax.map(lambda r: r @ m.T, x)",
        "jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x)", "jax.grad(lambda v: jnp.tanh(v @ v.T).sum())(m)",
        "lax.associative_scan(jnp.add, x, axis=1)",
        "jax.vmap(lambda v: lax.while_loop(lambda s: s < 9, lambda s: s * 3, v))(u[0, 0])",
        "jax.jit(lambda v, w: v * w, static_argnums=1)(x, 3)", "jax.jvp(jnp.sin, (x,), (y,))",
    ],
    "random": [
        "jax.random.normal(jax.random.key(t), (5,))",
        "jax.random.uniform(jax.random.split(jax.random.key(1), 3)[t], (2, 3))",
        "jax.random.randint(jax.random.fold_in(jax.random.key(0), t), (7,), 0, 100)",


        "jax.random.key_data(jax.random.key(t))",
    ],
    "special": [
        "lax.lgamma(x * 3)",
        "lax.digamma(x)",
        "lax.bessel_i1e(x * 9)",
        "jax.scipy.special.gammainc(u, u)",
        "jax.random.bernoulli(jax.random.key(3), 0.4, (9,))",
        "jax.random.permutation(jax.random.key(5), 8)",
        "jax.random.categorical(jax.random.key(2), m)",
        "jax.random.truncated_normal(jax.random.PRNGKey(t), -1, 1, (4,))",
        "jax.random.bits(jax.random.key(t), (3,), 'uint8')",
    ],
}  # fmt: skip


def table(lines):
    def function(given):
        return [eval(line, {**globals(), **given}) for line in lines]

    return function


def check(lines, run):
    given = inputs()
    wanted, found = jax.jit(table(lines))(given), run(table(lines), (given,))
    wrong = [f"{line}: {said}" for line, a, b in zip(lines, wanted, found) if (said := compare(a, b, 5)) != "right"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "special"])
def test_primitives_mean_what_jax_says(name):
    check(TABLES[name], interpreted)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_compiled_primitives_compute_what_jax_says(name):
    check(TABLES[name], lambda function, args: weft.compile(jax.jit(function), *args)(*args))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_jaxs_own_cases_are_right_or_refused():
    """Every fifth case of float32 and int32; `python -m tests.frontends.jax.harness` takes all."""
    cases = list(harnesses({"float32", "int32"}))[::5]
    said = [(one.fullname, case(one)) for one in cases]
    wrong = [f"{name}: {one}" for name, one in said if one.startswith("wrong")]
    assert not wrong, "\n".join(wrong)
    assert sum(one == "right" for _, one in said) >= 0.9 * len(said)
    assert set(LOOSER) <= {one.group_name for one in harnesses()}


def test_structures_and_arrays_come_out_as_the_function_returns_them():
    def function(parameters, x, scale):
        hidden = jnp.tanh(x @ parameters["w"] + parameters["b"]) * scale
        return {"hidden": hidden, "parts": (x, hidden.sum(), None)}

    parameters = {"w": np.ones((3, 2), "f"), "b": jnp.zeros(2)}
    x = np.arange(6, dtype="f").reshape(2, 3)
    compiled = weft.compile(jax.jit(function), parameters, x, 2.0)
    wanted = function(parameters, x, 2.0)
    found = compiled(parameters, x, 3)  # Python's numbers are those of the example's type
    assert list(found) == ["hidden", "parts"] and found["parts"][2] is None and isinstance(found["hidden"], jax.Array)
    assert compare(wanted, compiled(parameters, x, 2.0)) == "right"
    only_numpy = compiled({key: np.asarray(one) for key, one in parameters.items()}, x.astype("float64"), 2.0)
    assert type(only_numpy["hidden"]) is np.ndarray
    with pytest.raises(ArgumentError, match="called as in its example: .*parameters_b"):
        compiled(x)


def test_constants_share_their_memory():
    weight = np.ones((64, 32), "f")
    graph = load(lambda x: x @ weight, (np.ones((2, 64), "f"),)).graph
    assert any(array.shape == (64, 32) for array in graph.constants.values())
    kept = jnp.ones((64, 32))
    graph = load(lambda x: x @ kept, (np.ones((2, 64), "f"),)).graph
    assert any(np.shares_memory(array, np.asarray(kept)) for array in graph.constants.values())


def test_nodes_name_the_users_line_and_scope_also_inside_calls():
    def scoped(x):
        with jax.named_scope("block"):
            return jnp.where(jnp.clip(x, 0, 1) > 0.5, x, jnp.sort(x))  # each a function that JAX has compiled apart

    origins = {node.origin.partition(":")[0] for node in load(scoped, (np.ones((4, 8), "f"),)).graph.nodes}
    assert len(origins) == 1 and origins.pop().startswith("block at "), origins


def test_what_is_not_known_is_listed_at_once_with_the_users_lines():
    def odd(x):
        y = jnp.linalg.cholesky(x)
        return y + jnp.linalg.qr(x)[0] + jnp.fft.fft(x).real

    with pytest.raises(FrontendError) as raised:
        weft.compile(odd, np.eye(3, dtype="f"))
    said = str(raised.value)
    assert all(word in said for word in ("cholesky is not known", "qr", "complex numbers", "test_jax.py:"))
    assert "weft.register_op('cholesky', function, domain='jax')" in said


def test_primitives_run_as_somebody_says():
    x = np.array([[4, 2], [2, 3]], "f")
    try:
        weft.register_op("cholesky", lambda c, x: np.linalg.cholesky(x), domain="jax")
        found = interpret_graph(load(lambda x: jnp.linalg.cholesky(x) + 1, (x,)).graph, [x])[0]
    finally:
        _OF_USERS.discard(("jax", "cholesky"))
        _TABLE.pop(("jax", "cholesky"), None)
    np.testing.assert_allclose(found, np.linalg.cholesky(x) + 1, 1e-6)


def test_a_function_that_jax_cannot_trace_says_where():
    with pytest.raises(FrontendError, match=r"cannot trace the model: Tracer.*test_jax.py:\d+"):
        weft.compile(lambda x: x if x.sum() > 0 else -x, np.ones(3, "f"))


def test_a_scatter_that_applies_a_function_is_refused():
    with pytest.raises(FrontendError, match=r"write x.at\[i\].set\(f\(x\[i\]\)\)"):
        weft.compile(lambda x, i: x.at[i].apply(jnp.sin), jnp.ones((4, 2)), np.array([1, 1]))


def test_a_fault_in_a_converter_is_no_refusal(monkeypatch):
    monkeypatch.setitem(CONVERTERS, "sin", lambda c, x: x.nothing)
    with pytest.raises(InternalError, match="the converter of sin failed: TypeError|AttributeError"):
        load(jnp.sin, (np.ones(3, "f"),))


def test_methods_partials_and_shapes_alone_are_taken():
    example = jax.ShapeDtypeStruct((3,), "float32")
    compiled = weft.compile(functools.partial(jnp.add, 1.0), example)
    assert compiled(np.zeros(3, "f")).tolist() == [1, 1, 1]
    static = weft.compile(jax.jit(lambda x, n: x * n, static_argnums=1), np.ones(2, "f"), 3)
    assert static(np.ones(2, "f")).tolist() == [3, 3]


def test_sizes_that_are_no_numbers_are_refused():
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(ArgumentError, match="one set of shapes"):
        weft.compile(jnp.sin, jax.ShapeDtypeStruct((n, 3), "float32"))
