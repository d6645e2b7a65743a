"""A call of a model from Python, as LLVM IR text: a part of the module that `runtime/native.py` puts together.

    int64_t weft_call(void *const *inputs, void *const *outputs, int64_t *frame, int64_t threads)

looks at numpy's objects themselves, as Python would attribute by attribute, writes the table of addresses that a driver
takes, and calls it: the driver's code; or -1, where nothing was done: an array is of another kind, or an output meets
another array, which the long way explains. It is called with the interpreter's lock, without which arrays might change,
and gives it back while the driver runs.

    frame     the address of the plan; sources: 0, the arena, numbers of the call, the address of each array; the table
    plan      arrays that go in, arrays that come out, words of a row, rules; where addresses of arrays and the table
              begin in the frame; the driver, and the interpreter's functions that give its lock back and take it;
              where an object has its type, elements, rank, sizes, element type and flags, and an element type its
              scalar and the word that begins with kind, letter and byte order;
              for each array a row: type, element type, scalar, that word, flags, rank (-1: any), bytes (0: not looked
              at), the input whose memory an output may be (-1: none), sizes;
              rules: a place in the frame, and two others that are added up there

A decoder has dozens of arrays, and what Python touched of them a token before is no longer in the caches: a call of
llama_110m spent 130 µs in Python when each attribute was asked for, and spends 40 now.
"""

CALL = """
; A word of an object.
define internal i64 @weft.word(i64 %object, i64 %offset) alwaysinline nounwind {
  %place = add i64 %object, %offset
  %at = inttoptr i64 %place to ptr
  %word = load i64, ptr %at
  ret i64 %word
}

; A number of an array of them.
define internal i64 @weft.number(ptr %numbers, i64 %index) alwaysinline nounwind {
  %at = getelementptr i64, ptr %numbers, i64 %index
  %number = load i64, ptr %at
  ret i64 %number
}

; Whether an object is an array of the kind that a row says.
define internal i1 @weft.is_kind(i64 %object, ptr %plan, ptr %row) nounwind {
entry:
  %type_offset = call i64 @weft.number(ptr %plan, i64 9)
  %type = call i64 @weft.word(i64 %object, i64 %type_offset)
  %wanted_type = call i64 @weft.number(ptr %row, i64 0)
  %same_type = icmp eq i64 %type, %wanted_type
  br i1 %same_type, label %look_element, label %no
look_element:
  %element_offset = call i64 @weft.number(ptr %plan, i64 13)
  %element = call i64 @weft.word(i64 %object, i64 %element_offset)
  %wanted_element = call i64 @weft.number(ptr %row, i64 1)
  %same_element = icmp eq i64 %element, %wanted_element
  br i1 %same_element, label %look_flags, label %look_scalar
look_scalar: ; equal, though another object: that of an array that another process sent
  %scalar_offset = call i64 @weft.number(ptr %plan, i64 15)
  %order_offset = call i64 @weft.number(ptr %plan, i64 16)
  %scalar = call i64 @weft.word(i64 %element, i64 %scalar_offset)
  %order = call i64 @weft.word(i64 %element, i64 %order_offset)
  %wanted_scalar = call i64 @weft.number(ptr %row, i64 2)
  %wanted_order = call i64 @weft.number(ptr %row, i64 3)
  %same_scalar = icmp eq i64 %scalar, %wanted_scalar
  %orders = xor i64 %order, %wanted_order
  %first_bytes = and i64 %orders, 16777215
  %same_order = icmp eq i64 %first_bytes, 0
  %equal = and i1 %same_scalar, %same_order
  br i1 %equal, label %look_flags, label %no
look_flags:
  %flags_offset = call i64 @weft.number(ptr %plan, i64 14)
  %flags = call i64 @weft.word(i64 %object, i64 %flags_offset)
  %wanted_flags = call i64 @weft.number(ptr %row, i64 4)
  %kept = and i64 %flags, %wanted_flags
  %has_flags = icmp eq i64 %kept, %wanted_flags
  %wanted_rank = call i64 @weft.number(ptr %row, i64 5)
  %any = icmp slt i64 %wanted_rank, 0
  br i1 %has_flags, label %shaped, label %no
shaped:
  br i1 %any, label %yes, label %look_rank
look_rank:
  %rank_offset = call i64 @weft.number(ptr %plan, i64 11)
  %rank_word = call i64 @weft.word(i64 %object, i64 %rank_offset)
  %rank = and i64 %rank_word, 4294967295
  %sizes_offset = call i64 @weft.number(ptr %plan, i64 12)
  %sizes = call i64 @weft.word(i64 %object, i64 %sizes_offset)
  %same_rank = icmp eq i64 %rank, %wanted_rank
  br i1 %same_rank, label %axis, label %no
axis:
  %at = phi i64 [ 0, %look_rank ], [ %next, %size ]
  %more = icmp slt i64 %at, %rank
  br i1 %more, label %size, label %yes
size:
  %offset = shl i64 %at, 3
  %found = call i64 @weft.word(i64 %sizes, i64 %offset)
  %place = add i64 %at, 8
  %wanted = call i64 @weft.number(ptr %row, i64 %place)
  %next = add i64 %at, 1
  %same = icmp eq i64 %found, %wanted
  br i1 %same, label %axis, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether an output lies apart from the arrays before it, or just where the input lies that it may be.
define internal i1 @weft.lies_apart(i64 %number, ptr %rows, i64 %width, ptr %addresses) nounwind {
entry:
  %start = mul i64 %number, %width
  %row = getelementptr i64, ptr %rows, i64 %start
  %bytes = call i64 @weft.number(ptr %row, i64 6)
  %twin = call i64 @weft.number(ptr %row, i64 7)
  %begin = call i64 @weft.number(ptr %addresses, i64 %number)
  %end = add i64 %begin, %bytes
  br label %other
other:
  %at = phi i64 [ 0, %entry ], [ %next, %look ], [ %next, %meets ]
  %more = icmp slt i64 %at, %number
  br i1 %more, label %look, label %yes
look:
  %next = add i64 %at, 1
  %other_start = mul i64 %at, %width
  %other_row = getelementptr i64, ptr %rows, i64 %other_start
  %other_bytes = call i64 @weft.number(ptr %other_row, i64 6)
  %other_begin = call i64 @weft.number(ptr %addresses, i64 %at)
  %other_end = add i64 %other_begin, %other_bytes
  %seen = icmp ne i64 %other_bytes, 0
  %before = icmp ult i64 %begin, %other_end
  %after = icmp ult i64 %other_begin, %end
  %both = and i1 %before, %after
  %shared = and i1 %both, %seen
  br i1 %shared, label %meets, label %other
meets:
  %is_twin = icmp eq i64 %at, %twin
  %is_there = icmp eq i64 %begin, %other_begin
  %may = and i1 %is_twin, %is_there
  br i1 %may, label %other, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define i64 @weft_call(ptr %inputs, ptr %outputs, ptr %frame, i64 %threads) {
entry:
  %plan = load ptr, ptr %frame
  %given = call i64 @weft.number(ptr %plan, i64 0)
  %made = call i64 @weft.number(ptr %plan, i64 1)
  %width = call i64 @weft.number(ptr %plan, i64 2)
  %rules = call i64 @weft.number(ptr %plan, i64 3)
  %data_offset = call i64 @weft.number(ptr %plan, i64 10)
  %count = add i64 %given, %made
  %rows = getelementptr i64, ptr %plan, i64 17
  %addresses_from = call i64 @weft.number(ptr %plan, i64 4)
  %addresses = getelementptr i64, ptr %frame, i64 %addresses_from
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %following, %noted ], [ %following, %apart ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %look, label %fill
look:
  %is_output = icmp sge i64 %number, %given
  %output = sub i64 %number, %given
  %items = select i1 %is_output, ptr %outputs, ptr %inputs
  %item = select i1 %is_output, i64 %output, i64 %number
  %object = call i64 @weft.number(ptr %items, i64 %item)
  %start = mul i64 %number, %width
  %row = getelementptr i64, ptr %rows, i64 %start
  %fits = call i1 @weft.is_kind(i64 %object, ptr %plan, ptr %row)
  br i1 %fits, label %noted, label %no
noted:
  %address = call i64 @weft.word(i64 %object, i64 %data_offset)
  %address_at = getelementptr i64, ptr %addresses, i64 %number
  store i64 %address, ptr %address_at
  %following = add i64 %number, 1
  br i1 %is_output, label %apart, label %next
apart:
  %lies_apart = call i1 @weft.lies_apart(i64 %number, ptr %rows, i64 %width, ptr %addresses)
  br i1 %lies_apart, label %next, label %no
fill:
  %all = mul i64 %count, %width
  %first_rule = getelementptr i64, ptr %rows, i64 %all
  br label %rule
rule:
  %at = phi i64 [ 0, %fill ], [ %next_rule, %write ]
  %some = icmp slt i64 %at, %rules
  br i1 %some, label %write, label %run
write:
  %three = mul i64 %at, 3
  %rule_at = getelementptr i64, ptr %first_rule, i64 %three
  %place = call i64 @weft.number(ptr %rule_at, i64 0)
  %source = call i64 @weft.number(ptr %rule_at, i64 1)
  %other_source = call i64 @weft.number(ptr %rule_at, i64 2)
  %value = call i64 @weft.number(ptr %frame, i64 %source)
  %other_value = call i64 @weft.number(ptr %frame, i64 %other_source)
  %sum = add i64 %value, %other_value
  %table_at = getelementptr i64, ptr %frame, i64 %place
  store i64 %sum, ptr %table_at
  %next_rule = add i64 %at, 1
  br label %rule
run:
  %table_from = call i64 @weft.number(ptr %plan, i64 5)
  %table = getelementptr i64, ptr %frame, i64 %table_from
  %driver_place = call i64 @weft.number(ptr %plan, i64 6)
  %give_place = call i64 @weft.number(ptr %plan, i64 7)
  %take_place = call i64 @weft.number(ptr %plan, i64 8)
  %driver = inttoptr i64 %driver_place to ptr
  %give = inttoptr i64 %give_place to ptr
  %take = inttoptr i64 %take_place to ptr
  %nothing = icmp eq i64 %driver_place, 0
  br i1 %nothing, label %done, label %drive
drive:
  %state = call ptr %give()
  %code = call i32 %driver(ptr %table, i64 %threads)
  call void %take(ptr %state)
  %wide = sext i32 %code to i64
  ret i64 %wide
done:
  ret i64 0
no:
  ret i64 -1
}
"""
"""`weft_call`."""
