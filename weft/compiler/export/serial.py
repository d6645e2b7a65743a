"""The runtime of a library for a machine without our thread pool, as LLVM IR: loops run in their caller.

It defines what generated code calls of `runtime/native.py`. Memory is the C library's, or, in WebAssembly, what lies
behind the data: kernels give back in the opposite order what they take, so that a stack is enough.
"""

from __future__ import annotations

from string import Template

from weft.targets.base import Target


def serial_ir(target: Target) -> str:
    """The module's text."""
    word = f"i{8 * target.pointer_bytes}"
    memory = _STACK if target.triple.startswith("wasm") else _HEAP
    return f'target triple = "{target.triple}"\n' + Template(_LOOPS + memory).substitute(word=word)


_LOOPS = """
define void @weft_parallel_for(ptr %body, ptr %environment, i64 %count, i64 %threads) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %all, label %done
all:
  call void %body(i64 0, i64 %count, ptr %environment)
  br label %done
done:
  ret void
}

define void @weft_trim() nounwind {
  ret void
}
"""

_HEAP = """
declare ptr @malloc($word)
declare void @free(ptr)

; A size is made as wide as an address is. What malloc gave stands in the bytes before the data, which begin at a
; multiple of 64.
define ptr @weft_allocate(i64 %bytes) nounwind {
entry:
  %room = add i64 %bytes, 128
  %word = inttoptr i64 %room to ptr
  %size = ptrtoint ptr %word to $word
  %back = ptrtoint ptr %word to i64
  %fits = icmp eq i64 %back, %room
  br i1 %fits, label %ask, label %none
ask:
  %given = call ptr @malloc($word %size)
  %refused = icmp eq ptr %given, null
  br i1 %refused, label %none, label %align
align:
  %address = ptrtoint ptr %given to $word
  %beyond = add $word %address, 127
  %start = and $word %beyond, -64
  %data = inttoptr $word %start to ptr
  %before = getelementptr i8, ptr %data, i64 -8
  store ptr %given, ptr %before
  ret ptr %data
none:
  ret ptr null
}

define void @weft_release(ptr %data) nounwind {
entry:
  %nothing = icmp eq ptr %data, null
  br i1 %nothing, label %done, label %some
some:
  %before = getelementptr i8, ptr %data, i64 -8
  %given = load ptr, ptr %before
  call void @free(ptr %given)
  br label %done
done:
  ret void
}
"""

_STACK = """
@__heap_base = external global i8
@weft.top = internal global i32 0
declare i32 @llvm.wasm.memory.size.i32(i32)
declare i32 @llvm.wasm.memory.grow.i32(i32, i32)

define ptr @weft_allocate(i64 %bytes) nounwind {
entry:
  %top = load i32, ptr @weft.top
  %first = icmp eq i32 %top, 0
  %base = ptrtoint ptr @__heap_base to i32
  %from = select i1 %first, i32 %base, i32 %top
  %beyond = add i32 %from, 63
  %start = and i32 %beyond, -64
  %wide = zext i32 %start to i64
  %end = add i64 %wide, %bytes
  %huge = icmp ugt i64 %end, 4294901760
  br i1 %huge, label %none, label %measure
measure:
  %pages = call i32 @llvm.wasm.memory.size.i32(i32 0)
  %pages_wide = zext i32 %pages to i64
  %end_up = add i64 %end, 65535
  %wanted = lshr i64 %end_up, 16
  %short = icmp ugt i64 %wanted, %pages_wide
  br i1 %short, label %grow, label %take
grow:
  %more_wide = sub i64 %wanted, %pages_wide
  %more = trunc i64 %more_wide to i32
  %old = call i32 @llvm.wasm.memory.grow.i32(i32 0, i32 %more)
  %refused = icmp eq i32 %old, -1
  br i1 %refused, label %none, label %take
take:
  %end_narrow = trunc i64 %end to i32
  store i32 %end_narrow, ptr @weft.top
  %data = inttoptr i32 %start to ptr
  ret ptr %data
none:
  ret ptr null
}

define void @weft_release(ptr %data) nounwind {
entry:
  %nothing = icmp eq ptr %data, null
  br i1 %nothing, label %done, label %some
some:
  %start = ptrtoint ptr %data to i32
  store i32 %start, ptr @weft.top
  br label %done
done:
  ret void
}
"""
