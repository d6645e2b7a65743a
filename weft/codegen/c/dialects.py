"""The members of the C family: how each names its types, threads, memory and functions.

Generated code speaks of `int8_t` … `uint64_t`, `float` and `double` in every dialect (the prelude defines what is
missing), so that a dialect only has to say what really differs. Kernels of OpenCL and CUDA run once for each thread;
plain C has no threads, and its one function has the calling convention of docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_CUDA_BITS = {
    "weft_as_float": "DEVICE float weft_as_float(uint32_t bits) { return __uint_as_float(bits); }",
    "weft_as_bits": "DEVICE uint32_t weft_as_bits(float value) { return __float_as_uint(value); }",
    "weft_as_double": "DEVICE double weft_as_double(uint64_t bits) { return __longlong_as_double((long long)bits); }",
    "weft_as_bits64": "DEVICE uint64_t weft_as_bits64(double value) { return (uint64_t)__double_as_longlong(value); }",
}
_OPENCL_BITS = {
    "weft_as_float": "DEVICE float weft_as_float(uint32_t bits) { return as_float(bits); }",
    "weft_as_bits": "DEVICE uint32_t weft_as_bits(float value) { return as_uint(value); }",
    "weft_as_double": "DEVICE double weft_as_double(uint64_t bits) { return as_double(bits); }",
    "weft_as_bits64": "DEVICE uint64_t weft_as_bits64(double value) { return as_ulong(value); }",
}
_C_BITS = {
    "weft_as_float": "DEVICE float weft_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }",
    "weft_as_bits": "DEVICE uint32_t weft_as_bits(float value) { uint32_t x; memcpy(&x, &value, 4); return x; }",
    "weft_as_double": "DEVICE double weft_as_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }",
    "weft_as_bits64": "DEVICE uint64_t weft_as_bits64(double value) { uint64_t x; memcpy(&x, &value, 8); return x; }",
}
_OPENCL_TYPES = """
typedef char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t; typedef ulong uint64_t;
"""
_CUDA_TYPES = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
"""
_C_HEADERS = """
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one member of the family writes where the others write something else."""

    name: str
    prelude: str
    """What stands at the top of every source: headers, or names of types."""
    device: str
    """Before a helper function."""
    kernel: str
    """Before a kernel function."""
    global_space: str
    """Before the type that a pointer to global memory points to."""
    shared_space: str
    """Before the declaration of memory that a block shares."""
    shared_pointer: str
    """Before the type that a pointer to shared memory points to."""
    restrict: str
    block_index: str
    """With {} for the dimension: its letter, or its number."""
    thread_index: str
    dimensions: str
    """The three dimensions as the two texts above name them."""
    barrier: str
    long_suffix: str
    """After a 64-bit literal."""
    float_suffix: str
    """After the name of a float32 function of the math library."""
    infinity: tuple[str, str]
    """float and double."""
    nan: tuple[str, str]
    unroll: str
    vectors: str
    """How vectors are loaded and stored: "native" (vload4, .s0), "struct" (an aligned struct of lanes), or ""."""
    most_vector_bytes: int = 16
    static_shared_bytes: int = 1 << 30
    """How much shared memory a declaration may take; what needs more is asked for at the launch."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Helper functions that this dialect writes better than the common text, by name."""
    doubles: str = ""
    """What the prelude needs besides where the program speaks of float64."""
    wait: str = ""
    """The first line of a kernel on a machine that launches it while the one before runs."""
    ahead: str = ""
    """What stands before that for a constant of which each block reads a part: its name, elements of a part, bytes."""
    of_warp: str = "{}"
    """An index that all threads of a warp have (a loop's annotation "of_warp"), so that the compiler knows."""


_CUDA_FUNCTIONS = {
    **_CUDA_BITS,
    "weft_from_half": """
DEVICE float weft_from_half(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}""",
    "weft_to_half": """
DEVICE uint16_t weft_to_half(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}""",
    "weft_to_bfloat": """
DEVICE uint16_t weft_to_bfloat(float value) {
#if __CUDA_ARCH__ >= 800
  uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
#else
  uint32_t bits = weft_as_bits(value);
  if (value != value) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}""",
    **{
        f"weft_{name}_float": f"""
DEVICE float weft_{name}_float(float a, float b) {{
#if __CUDA_ARCH__ >= 800
  float chosen;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(chosen) : "f"(a), "f"(b));
  return chosen;
#else
  return a {sign} b || a != a ? a : b;
#endif
}}"""
        for name, sign in (("min", "<"), ("max", ">"))
    },
    "weft_popcount64": "DEVICE int32_t weft_popcount64(uint64_t x) { return __popcll(x); }",
    "weft_leading_zeros64": "DEVICE int32_t weft_leading_zeros64(uint64_t x) { return __clzll((long long)x); }",
}
_OPENCL_FUNCTIONS = {
    **_OPENCL_BITS,
    # No vload_half and vstore_half of a variable: PoCL 3 loses variables whose address is taken between barriers.
    "weft_popcount64": "DEVICE int32_t weft_popcount64(uint64_t x) { return (int32_t)popcount(x); }",
    "weft_leading_zeros64": "DEVICE int32_t weft_leading_zeros64(uint64_t x) { return (int32_t)clz(x); }",
}

PLAIN = Dialect(
    name="c", prelude=_C_HEADERS, device="static inline", kernel="", global_space="", shared_space="",
    shared_pointer="", restrict="restrict", block_index="", thread_index="", dimensions="xyz", barrier="",
    long_suffix="LL", float_suffix="f", infinity=("INFINITY", "((double)INFINITY)"), nan=("NAN", "((double)NAN)"),
    unroll="", vectors="", functions=_C_BITS,
)  # fmt: skip
BARE = replace(PLAIN, name="bare", prelude=_C_HEADERS.replace("#include <stdlib.h>\n", ""))
"""Plain C without a heap: memory is the caller's."""
OPENCL = Dialect(
    name="opencl", prelude=_OPENCL_TYPES, device="static inline", kernel="__kernel",
    global_space="__global ", shared_space="__local ", shared_pointer="__local ", restrict="restrict",
    block_index="get_group_id({})", thread_index="get_local_id({})", dimensions="012",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)", long_suffix="L", float_suffix="",
    infinity=("INFINITY", "((double)INFINITY)"), nan=("NAN", "((double)NAN)"), unroll="#pragma unroll",
    vectors="native", most_vector_bytes=64, functions=_OPENCL_FUNCTIONS,
    doubles="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
)  # fmt: skip
CUDA = Dialect(
    name="cuda", prelude=_CUDA_TYPES, device="static __device__ __forceinline__",
    kernel='extern "C" __global__', global_space="", shared_space="__shared__ ", shared_pointer="",
    restrict="__restrict__", block_index="blockIdx.{}", thread_index="threadIdx.{}", dimensions="xyz",
    barrier="__syncthreads()", long_suffix="LL", float_suffix="f",
    infinity=("__int_as_float(0x7f800000)", "__longlong_as_double(0x7ff0000000000000LL)"),
    nan=("__int_as_float(0x7fc00000)", "__longlong_as_double(0x7ff8000000000000LL)"),
    unroll="#pragma unroll", vectors="struct", static_shared_bytes=48 * 1024, functions=_CUDA_FUNCTIONS,
    # What a block will read of constants comes into the cache while the kernel before it still runs.
    ahead='  if (threadIdx.x + threadIdx.y == 0) '
    'asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"({0} + (int64_t)blockIdx.x * {1}), "r"({2}));',
    of_warp="__shfl_sync(0xffffffffu, {}, 0)",
    # Waits for the kernel before; then the one behind may be launched, once every block of this one runs. In this order
    # no block is there while a kernel before the one it waits for runs, whose data the caches near it might hold.
    wait='  asm volatile("griddepcontrol.wait;\\n\\tgriddepcontrol.launch_dependents;" ::: "memory");',
)  # fmt: skip
