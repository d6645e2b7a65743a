"""The GEMM core as a tensor intrinsic: a vector of int8 by a matrix of int8, added to a vector of int32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from weft import te
from weft.core.dtypes import INT32
from weft.expr.nodes import Call
from weft.schedule.intrinsic import TensorIntrin
from weft.targets.base import Target


@lru_cache
def gemm(block: int = 16) -> TensorIntrin:
    """total[o] += x[k] * w[o, k]; the calls get addresses, and strides, which must be those of whole entries."""
    x, w = te.placeholder((block,), dtype="int8", name="x"), te.placeholder((block, block), dtype="int8", name="w")
    k = te.reduce_axis(block, name="k")
    total = te.compute((block,), lambda o: te.sum(x[k].astype("int32") * w[o, k].astype("int32"), axis=k), name="total")

    def rule(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        (x, w), (total,) = inputs, outputs
        reset = Call("vdla_zero", (total.access_ptr("w"), total.stride(0)), INT32)
        steps = (x.stride(0), w.stride(0), w.stride(1), total.stride(0))
        update = Call("vdla_gemm", (x.access_ptr("r"), w.access_ptr("r"), total.access_ptr("rw"), *steps), INT32)
        return [reset, update], reset, update

    return te.decl_tensor_intrin(total.op, rule, f"vdla_gemm_{block}")


def calls(target: Target) -> dict[str, None]:
    """The calls that tensorized programs make; the writer knows what to do with them."""
    return dict.fromkeys(("vdla_gemm", "vdla_zero"))
