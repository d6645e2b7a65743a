"""The allocator of the native runtime, as LLVM IR text: one part of the module that `runtime/native.py` puts together.

Blocks are kept in one list per size class, four classes to each power of two, so that a repeated call pays no page
faults. Blocks of 2 MB and more ask for huge pages. A 64-byte header stands before the data:

    block: size with header | size class | next free block | unused | data, 64-byte aligned ...

One lock guards the lists; it is held for a few instructions, except when a full cache is emptied.
"""

from __future__ import annotations

ALLOCATOR = """
; The size of the block that serves a request, header included. At least 256 bytes; then rounded up to a quarter of
; the power of two below it; from 2 MB on, to whole huge pages.
define internal i64 @weft.block_size(i64 %bytes) nounwind {
  %with_header = add i64 %bytes, 64
  %size = call i64 @llvm.umax.i64(i64 %with_header, i64 256)
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 true)
  %quarter_log = sub i64 61, %zeros
  %quarter = shl i64 1, %quarter_log
  %huge = icmp uge i64 %size, 2097152
  %least = select i1 %huge, i64 2097152, i64 64
  %step = call i64 @llvm.umax.i64(i64 %quarter, i64 %least)
  %step_less_1 = sub i64 %step, 1
  %sum = add i64 %size, %step_less_1
  %mask = sub i64 0, %step
  %rounded = and i64 %sum, %mask
  ret i64 %rounded
}

; The list that a block size belongs to: four for each power of two.
define internal i64 @weft.size_class(i64 %size) nounwind {
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 true)
  %log = sub i64 63, %zeros
  %quarter_log = sub i64 61, %zeros
  %quarters = lshr i64 %size, %quarter_log
  %quarter = and i64 %quarters, 3
  %group = shl i64 %log, 2
  %class = or i64 %group, %quarter
  ret i64 %class
}

; A new block from the system, or null. Advises huge pages (14) where they fit.
define internal ptr @weft.system_block(i64 %size) nounwind {
entry:
  %huge = icmp uge i64 %size, 2097152
  %alignment = select i1 %huge, i64 2097152, i64 64
  %block = call ptr @aligned_alloc(i64 %alignment, i64 %size)
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %advise_or_not
advise_or_not:
  br i1 %huge, label %advise, label %done
advise:
  %code = call i32 @madvise(ptr %block, i64 %size, i32 14)
  br label %done
done:
  ret ptr %block
}

define ptr @weft_allocate(i64 %bytes) nounwind {
entry:
  %absurd = icmp ugt i64 %bytes, 1152921504606846976
  br i1 %absurd, label %none, label %cached
cached:
  call void @weft.enter()
  %size = call i64 @weft.block_size(i64 %bytes)
  %class = call i64 @weft.size_class(i64 %size)
  %found = call ptr @weft.pop(i64 %class)
  %hit = icmp ne ptr %found, null
  br i1 %hit, label %give, label %fresh
fresh:
  %first = call ptr @weft.system_block(i64 %size)
  %first_failed = icmp eq ptr %first, null
  br i1 %first_failed, label %retry, label %fill
retry:
  call void @weft_trim()
  %second = call ptr @weft.system_block(i64 %size)
  %second_failed = icmp eq ptr %second, null
  br i1 %second_failed, label %none, label %fill
fill:
  %new = phi ptr [ %first, %fresh ], [ %second, %retry ]
  %class_at = getelementptr %block, ptr %new, i64 0, i32 1
  store i64 %size, ptr %new
  store i64 %class, ptr %class_at
  br label %give
give:
  %block = phi ptr [ %found, %cached ], [ %new, %fill ]
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
none:
  ret ptr null
}

define void @weft_release(ptr %data) nounwind {
entry:
  %nothing = icmp eq ptr %data, null
  br i1 %nothing, label %done, label %some
some:
  call void @weft.enter()
  %block = getelementptr i8, ptr %data, i64 -64
  %size = load i64, ptr %block
  %too_large = icmp ugt i64 %size, $cache_limit
  br i1 %too_large, label %free, label %keep
free:
  call void @free(ptr %block)
  br label %done
keep:
  call void @weft.push(ptr %block, i64 %size)
  br label %done
done:
  ret void
}
"""

# A full cache is emptied rather than left as it is: blocks of sizes that no longer occur would stay in it for ever.
CACHE = """
; Takes a block of the class from the cache; null when there is none.
define internal ptr @weft.pop(i64 %class) nounwind {
entry:
  %list = getelementptr [256 x ptr], ptr @weft.cache_lists, i64 0, i64 %class
  call void @weft.lock(ptr @weft.cache_lock)
  %block = load ptr, ptr %list
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %take
take:
  %next_at = getelementptr %block, ptr %block, i64 0, i32 2
  %next = load ptr, ptr %next_at
  store ptr %next, ptr %list
  %size = load i64, ptr %block
  %bytes = load i64, ptr @weft.cache_bytes
  %fewer = sub i64 %bytes, %size
  store i64 %fewer, ptr @weft.cache_bytes
  br label %done
done:
  call void @weft.unlock(ptr @weft.cache_lock)
  ret ptr %block
}

; Keeps a block for reuse.
define internal void @weft.push(ptr %block, i64 %size) nounwind {
entry:
  %class_at = getelementptr %block, ptr %block, i64 0, i32 1
  %class = load i64, ptr %class_at
  %list = getelementptr [256 x ptr], ptr @weft.cache_lists, i64 0, i64 %class
  call void @weft.lock(ptr @weft.cache_lock)
  %bytes = load i64, ptr @weft.cache_bytes
  %more = add i64 %bytes, %size
  %full = icmp ugt i64 %more, $cache_limit
  br i1 %full, label %empty, label %insert
empty:
  call void @weft.free_lists()
  br label %insert
insert:
  %kept = load i64, ptr @weft.cache_bytes
  %sum = add i64 %kept, %size
  store i64 %sum, ptr @weft.cache_bytes
  %head = load ptr, ptr %list
  %next_at = getelementptr %block, ptr %block, i64 0, i32 2
  store ptr %head, ptr %next_at
  store ptr %block, ptr %list
  call void @weft.unlock(ptr @weft.cache_lock)
  ret void
}

; Gives every cached block back to the system. The caller holds the lock.
define internal void @weft.free_lists() nounwind {
entry:
  br label %list
list:
  %class = phi i64 [ 0, %entry ], [ %next_class, %emptied ]
  %list_at = getelementptr [256 x ptr], ptr @weft.cache_lists, i64 0, i64 %class
  br label %head
head:
  %block = load ptr, ptr %list_at
  %none = icmp eq ptr %block, null
  br i1 %none, label %emptied, label %free
free:
  %next_at = getelementptr %block, ptr %block, i64 0, i32 2
  %next = load ptr, ptr %next_at
  store ptr %next, ptr %list_at
  call void @free(ptr %block)
  br label %head
emptied:
  %next_class = add i64 %class, 1
  %more = icmp ult i64 %next_class, 256
  br i1 %more, label %list, label %done
done:
  store i64 0, ptr @weft.cache_bytes
  ret void
}

define i64 @weft_cached_bytes() nounwind {
  call void @weft.enter()
  call void @weft.lock(ptr @weft.cache_lock)
  %bytes = load i64, ptr @weft.cache_bytes
  call void @weft.unlock(ptr @weft.cache_lock)
  ret i64 %bytes
}

define void @weft_trim() nounwind {
  call void @weft.enter()
  call void @weft.lock(ptr @weft.cache_lock)
  call void @weft.free_lists()
  call void @weft.unlock(ptr @weft.cache_lock)
  ret void
}
"""
