"""Fingerprints of arrays: 32 bytes that tell whether two arrays hold the same bytes, at the speed of memory.

In: an array. Out: SHA-256 over the sums of its blocks. The sum of a block of 8 KB is, for each 64-bit word with halves
a and b and the next key with halves k and l,

    sum of ((a + k) mod 2^32) * ((b + l) mod 2^32)   mod 2^64

taken twice, with the keys shifted the second time. For any two different blocks and keys chosen without knowing them
the two sums agree with a chance of at most 2^-64 (the NH family of hash functions). That is enough to know weights
again, at ten times the speed of SHA-256; it is no protection against someone who makes up blocks on purpose.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import Any

import numpy as np

from weft.runtime.array import AnyArray
from weft.runtime.jit import compile_kept, host_triple

_WORDS = 1024
_BLOCK = 8 * _WORDS
_SHIFT = 8

_IR = """
declare i64 @llvm.vector.reduce.add.v8i64(<8 x i64>)

; For every block of data its two sums, 16 bytes.
define void @weft_block_sums(ptr %data, i64 %blocks, ptr %keys, ptr %sums) nounwind {
entry:
  %some = icmp sgt i64 %blocks, 0
  br i1 %some, label %block, label %done
block:
  %at = phi i64 [ 0, %entry ], [ %next_at, %finish ]
  %start = mul i64 %at, $words
  br label %word
word:
  %i = phi i64 [ 0, %block ], [ %next_i, %word ]
  %sum1 = phi <8 x i64> [ zeroinitializer, %block ], [ %new_sum1, %word ]
  %sum2 = phi <8 x i64> [ zeroinitializer, %block ], [ %new_sum2, %word ]
  %place = add i64 %start, %i
  %data_at = getelementptr i64, ptr %data, i64 %place
  %x = load <16 x i32>, ptr %data_at, align 1
  %key_at1 = getelementptr i64, ptr %keys, i64 %i
  %key1 = load <16 x i32>, ptr %key_at1, align 8
  %shifted = add i64 %i, $shift
  %key_at2 = getelementptr i64, ptr %keys, i64 %shifted
  %key2 = load <16 x i32>, ptr %key_at2, align 8
  %y1 = add <16 x i32> %x, %key1
  %y2 = add <16 x i32> %x, %key2
  %w1 = bitcast <16 x i32> %y1 to <8 x i64>
  %w2 = bitcast <16 x i32> %y2 to <8 x i64>
  %low1 = and <8 x i64> %w1, splat (i64 4294967295)
  %low2 = and <8 x i64> %w2, splat (i64 4294967295)
  %high1 = lshr <8 x i64> %w1, splat (i64 32)
  %high2 = lshr <8 x i64> %w2, splat (i64 32)
  %product1 = mul <8 x i64> %low1, %high1
  %product2 = mul <8 x i64> %low2, %high2
  %new_sum1 = add <8 x i64> %sum1, %product1
  %new_sum2 = add <8 x i64> %sum2, %product2
  %next_i = add i64 %i, 8
  %more = icmp slt i64 %next_i, $words
  br i1 %more, label %word, label %finish
finish:
  %total1 = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %new_sum1)
  %total2 = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %new_sum2)
  %pair = mul i64 %at, 2
  %second = add i64 %pair, 1
  %out1 = getelementptr i64, ptr %sums, i64 %pair
  %out2 = getelementptr i64, ptr %sums, i64 %second
  store i64 %total1, ptr %out1, align 8
  store i64 %total2, ptr %out2, align 8
  %next_at = add i64 %at, 1
  %again = icmp slt i64 %next_at, %blocks
  br i1 %again, label %block, label %done
done:
  ret void
}
"""


@functools.lru_cache(maxsize=1)
def _block_sums() -> tuple[Any, Any, AnyArray]:
    """The function, what owns its code, and the keys."""
    text = _IR.replace("$words", str(_WORDS)).replace("$shift", str(_SHIFT))
    module = compile_kept(f'target triple = "{host_triple()}"\n{text}')
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, pointer, integer, pointer, pointer)(module.address("weft_block_sums"))
    keys = np.frombuffer(hashlib.shake_256(b"weft fingerprint").digest(8 * (_WORDS + _SHIFT)), np.uint64)
    return function, module, keys


def fingerprint(array: AnyArray) -> bytes:
    """The fingerprint of an array's bytes (in C order); its type and shape are no part of it."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    function, _, keys = _block_sums()
    whole = data.size // _BLOCK
    digest = hashlib.sha256(data.size.to_bytes(8, "little"))
    sums = np.empty(2 * whole, np.uint64)
    function(data.ctypes.data, whole, keys.ctypes.data, sums.ctypes.data)
    digest.update(sums.data)
    digest.update(data[whole * _BLOCK :].data)
    return digest.digest()
