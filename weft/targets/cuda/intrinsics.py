"""Instructions of NVIDIA's processors beyond those that every target has: asynchronous copies and tensor cores."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.c.context import Context, Emitter
from weft.expr.nodes import Call
from weft.loop.passes.double_buffer import COMMIT, WAIT
from weft.targets.base import Target
from weft.targets.cuda import mma, swizzle, wgmma
from weft.targets.cuda.copies import COPY

_COPY_HELPERS = {
    size: f"""DEVICE void weft_copy_async_{size}(void *to, const void *from, bool there) {{
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  const int32_t given = there ? {size} : 0;
  asm volatile("cp.async.{"cg" if size == 16 else "ca"}.shared.global [%0], [%1], {size}, %2;"
               : : "r"(place), "l"(from), "r"(given) : "memory");
}}"""
    for size in (4, 8, 16)
}


def _copy(context: Context, call: Call) -> str:
    to, source, size, there = call.args
    count = context.constant(size)
    name = f"weft_copy_async_{count}"
    context.module.helper(name, _COPY_HELPERS[count])
    return f"{name}({context.pointer(to)}, {context.pointer(source)}, {context.value(there)})"


def _commit(context: Context, call: Call) -> str:
    return 'asm volatile("cp.async.commit_group;" : : : "memory")'


def _wait(context: Context, call: Call) -> str:
    return f'asm volatile("cp.async.wait_group {context.constant(call.args[0])};" : : : "memory")'


def intrinsics(target: Target) -> Mapping[str, Emitter]:
    """Name -> emitter."""
    return {COPY: _copy, COMMIT: _commit, WAIT: _wait, **mma.EMITTERS, **wgmma.EMITTERS, **swizzle.EMITTERS}
