"""Converters of special functions (weft/frontends/special.py); what JAX itself writes in its own primitives is taken
from there."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from weft.frontends.emit import Unsupported
from weft.frontends.jax.elementwise import formula, wide
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import primitive
from weft.frontends.special import digamma, erf_inv, erfc, i1e, lgamma
from weft.graph.ir import Value


@primitive("erfc")
def _complement(c: JaxEmitter, x: Value, **_: Any) -> Value:
    made: Value = c.cast(formula(erfc)(c, x), c.dtype)
    c.complements[made] = x
    return made


for _name, _compute in (
    ("erf_inv", erf_inv), ("lgamma", lgamma), ("digamma", digamma), ("bessel_i1e", i1e),
):  # fmt: skip
    primitive(_name)(formula(_compute))


def _of_jax(module: str, name: str) -> Any:
    """A converter that takes the function that JAX itself lowers a primitive by."""

    def converter(c: JaxEmitter, *values: Value, **_: Any) -> Value:
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise Unsupported(f"this version of JAX has no {module}.{name}") from error
        given = wide(c, *(c.expand(one, list(c.shape)) for one in values))
        if len(values) > 1:
            function = functools.partial(function, dtype=given[0].tensor.numpy)
        return c.traced(function, *given)[0]

    return converter


for _name in ("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta", "bessel_i0e", "random_gamma_grad"):
    primitive(_name)(_of_jax("jax._src.lax.special", f"{_name}_impl"))
