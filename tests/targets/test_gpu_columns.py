"""Reductions over columns in vectors: by the interpreter with races, by OpenCL, by NVRTC; and how they are divided."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import weft
from benchmarks.gpu_programs import gemm
from tests.codegen.c_support import opencl
from tests.ops.test_few_bits import product as few_bits
from tests.targets.test_gpu_schedules import CUDA, SMALL, check, reduction, shape_of
from weft import te
from weft.core.dtypes import dtype as kind_of
from weft.core.errors import InterpreterError
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.parser import parse_func
from weft.loop.passes.support import buffers_read, buffers_written, is_barrier
from weft.loop.visit import Mutator, walk_stmts
from weft.models.builder import Builder
from weft.ops.few_bits_words import digit
from weft.schedule.facts import block_named, facts_of
from weft.targets.cuda import nvrtc
from weft.targets.cuda.families import default_schedule
from weft.targets.cuda.spread import add_up_in_lanes
from weft.targets.gpu.families import default_schedule as opencl_schedule
from weft.targets.gpu.reduction import choose_columns
from weft.targets.gpu.together import divisor_below


def product(n, k, dtype="float32"):
    """A vector times a matrix."""
    problem = gemm(1, n, k, dtype, False)
    return list(problem.inputs), problem.output, lambda a, b: a @ b


def summed(shape, axes, combine=te.sum, numpy=np.sum):
    """A reduction over some axes."""
    return (*reduction(shape, axes, combine), lambda a: numpy(a, axis=tuple(axes)))


CASES = {
    "product": lambda: product(48, 64),
    "product, a tail": lambda: product(36, 88),
    "product, odd rows": lambda: product(32, 90),
    "product, bfloat16": lambda: product(128, 64, "bfloat16"),
    "columns": lambda: summed((72, 64), [0]),
    "largest of columns": lambda: summed((72, 64), [0], te.max, np.max),
    "two axes": lambda: summed((6, 16, 64), [0, 1]),
    "the middle": lambda: summed((3, 64, 32), [1]),
    "three columns": lambda: summed((64, 3), [0]),
    "a prime number of rows": lambda: summed((61, 64), [0]),
}


@pytest.mark.parametrize("name", [*CASES, "product on an H200", "columns on an H200"])
def test_meaning_without_races(name):
    target = CUDA if "H200" in name else SMALL
    name = name.removesuffix(" on an H200")
    inputs, output, reference = CASES[name]()
    narrow = output.dtype.name == "bfloat16"
    schedule = check(inputs, output, reference, target, tolerance=3e-2 if narrow else 1e-4)
    if nvrtc.is_available():
        program = target.generate(target.lower(schedule.func))
        assert nvrtc.compile_source(program.source, "sm_90a")[1:4] == b"ELF"


@pytest.mark.parametrize("name", [name for name in CASES if "bfloat16" not in name])
def test_values_on_opencl(name):
    target = opencl()
    inputs, output, reference = CASES[name]()
    schedule = te.create_schedule(output.op)
    opencl_schedule(schedule, target)
    function = weft.build(schedule, [*inputs, output], target)
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(shape_of(t)).astype(np.float32) for t in inputs]
    made = np.full(shape_of(output), np.nan, np.float32)
    function(*arrays, made)
    np.testing.assert_allclose(made, reference(*arrays), rtol=1e-4, atol=1e-4)


def columns_of(n, k, dtype="float32"):
    """How a vector times a matrix is divided on an H200."""
    _, output, _ = product(n, k, dtype)
    schedule = te.create_schedule(output.op)
    return choose_columns(facts_of(block_named(schedule, "C")), CUDA, ())


@pytest.mark.parametrize("n, k, dtype", [
    (4096, 4096, "float32"), (11008, 4096, "float32"), (4096, 11008, "bfloat16"), (1024, 1000, "float16"),
    (768, 3072, "float32"),
])  # fmt: skip
def test_much_is_on_its_way(n, k, dtype):
    columns = columns_of(n, k, dtype)
    each = 16 // columns["lanes"]
    assert columns["threads"] * columns["lanes"] * each >= 64, "whole turns of the memory"
    assert columns["threads"] * columns["rows"] <= 512 and k % columns["rows"] == 0
    loads = divisor_below(k // columns["rows"], 64 // columns["lanes"])
    blocks = -(-n // (columns["threads"] * columns["lanes"]))
    assert columns["threads"] * columns["rows"] * loads * 16 * max(1, blocks // 132) >= 32 * 1024, (
        "bytes for a multiprocessor"
    )


def test_what_cannot_be_loaded_in_vectors_is_not():
    assert columns_of(4095, 4096) is None and columns_of(4096, 4093) is None


def test_loads_of_sixteen_bytes():
    _, output, _ = product(4096, 4096)
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, CUDA)
    program = CUDA.generate(CUDA.lower(schedule.func))
    (kernel,) = program.kernels
    assert "*(const float_x4 *)(B + " in program.source and kernel.block[0] * kernel.block[1] == 512


# ------------------------------------------------------------------------------- weights of one row, and what makes it


def weighed(n, k, before, dtype="float32"):
    """A row that is made from another, times a matrix, and a vector added."""
    x, b = te.placeholder((1, k), name="A"), te.placeholder((k, n), dtype, name="B")
    skip, r = te.placeholder((1, n), name="S"), te.reduce_axis(k, "r")
    if before == "norm":
        squares = te.compute((1,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="squares")
        row = te.compute((1, k), lambda i, j: x[i, j] / te.sqrt(squares[i] / k + 1e-5) * te.exp(x[i, j]), name="row")
    else:
        row = te.compute((1, k), lambda i, j: te.exp(x[i, j]) / (te.exp(x[i, j]) + 1.0) * te.tanh(x[i, j]), name="row")
    over = te.reduce_axis(k, "k")
    c = te.compute((1, n), lambda i, j: te.sum(row[i, over] * b[over, j].astype("float32"), axis=over), name="C")
    out = te.compute((1, n), lambda i, j: c[i, j] + skip[i, j], name="out")

    def reference(x, b, skip):
        norm = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * np.exp(x)
        return (norm if before == "norm" else np.exp(x) / (np.exp(x) + 1) * np.tanh(x)) @ b + skip

    return [x, b, skip], out, reference


ROOMY = replace(SMALL, threads=replace(SMALL.threads, shared_bytes=CUDA.threads.shared_bytes))
"""A little machine with room for constants that come through shared memory."""


def weighed_schedule(before="norm", n=48, k=256, target=ROOMY, dtype="float32"):
    inputs, output, reference = weighed(n, k, before, dtype)
    return check(inputs, output, reference, target, constants=[inputs[1]], tolerance=1e-3)


@pytest.mark.thin(2)
@pytest.mark.parametrize("before", ["norm", "chain"])
@pytest.mark.parametrize("n, k, dtype", [(48, 256, "float32"), (64, 192, "bfloat16"), (8, 2048, "float32")])
def test_each_block_computes_the_row(before, n, k, dtype):
    schedule = weighed_schedule(before, n, k, dtype=dtype)
    program = ROOMY.generate(ROOMY.lower(schedule.func))
    assert len(program.kernels) == 2, "the copy that packs the weights, which is made once, and the product"
    (packed,) = [buffer for buffer in schedule.func.allocations if buffer.scope == "global"]
    assert packed.name.startswith("B_") and len(packed.shape) in (3, 5)
    copy, wait = program.source.rindex("weft_copy_async_16("), program.source.rindex("griddepcontrol.wait")
    assert wait < copy, "what a kernel of the same program packs is not there before the wait"
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, "sm_90a")[1:4] == b"ELF"


@pytest.mark.parametrize("n, k, dtype", [(48, 256, "float32"), (128, 192, "bfloat16")])
def test_columns_that_take_turns_are_one_epilogue(n, k, dtype):
    """A gate and what goes through it are neighbours of the product; what is added comes before the sums."""
    x, b, skip = te.placeholder((1, k), name="A"), te.placeholder((k, n), dtype, name="B"), te.placeholder((1, n // 2))
    over = te.reduce_axis(k, "k")
    c = te.compute((1, n), lambda i, j: te.sum(x[i, over] * b[over, j].astype("float32"), axis=over), name="C")
    out = te.compute((1, n // 2), lambda i, j: te.tanh(c[i, j * 2]) * c[i, j * 2 + 1] + skip[i, j], name="out")

    def reference(x, b, skip):
        made = x @ b
        return np.tanh(made[:, ::2]) * made[:, 1::2] + skip

    schedule = check([x, b, skip], out, reference, ROOMY, constants=[b], tolerance=1e-3)
    program = ROOMY.generate(ROOMY.lower(schedule.func))
    assert len(program.kernels) == 2, "the copy that packs the weights, and the product"
    body = program.source[program.source.rindex("__global__") :]
    assert body.index(f"{skip.name}_early[0] =") < body.index("wait_group"), "what is added is there before the sums"


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("n, k, dtype", [(1056, 512, "float32"), (768, 768, "bfloat16"), (3072, 256, "float16")])
def test_constants_come_before_the_kernel_waits(n, k, dtype):
    kind = kind_of(dtype).numpy
    weights = np.random.default_rng(0).standard_normal((k, n)).astype(kind).astype(np.float32)
    build = Builder("product")
    made = build.node("MatMul", build.input("x", (1, k)), build.constant(weights))
    module = weft.compile(build.finish(made), target="cuda:sm_90a")
    (launch,) = [one for one in module.specializations[0].launches if "matmul" in one.kernel.label]
    source = launch.kernel.program.source
    body = source[source.index("__global__") :]
    assert body.index("weft_copy_async_16(") < body.index("griddepcontrol.wait") < body.index("wait_group")
    assert "__launch_bounds__" in body and launch.kernel.program.kernels[0].shared_bytes < 227 * 1024 // 2


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_a_row_that_leaves_no_room_for_the_ring_is_read_as_before():
    build = Builder("product")
    made = build.node("MatMul", build.input("x", (1, 40960)), build.constant(np.ones((40960, 64), np.float32)))
    module = weft.compile(build.finish(made), target="cuda:sm_90a")
    programs = [one.kernel.program for one in module.specializations[0].launches]
    assert all(kernel.shared_bytes <= 227 * 1024 for program in programs for kernel in program.kernels)
    assert not any("weft_copy_async_16(" in program.source for program in programs)


def test_one_barrier_less_is_found_in_a_product_of_one_row():
    schedule = weighed_schedule("norm", 256, 256)
    lowered = ROOMY.lower(schedule.func)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal([int(str(size)) for size in p.shape]).astype(np.float32) for p in lowered.params]
    count = sum(map(is_barrier, walk_stmts(lowered.body)))
    assert count >= 4
    for number in range(count):
        with pytest.raises(InterpreterError, match="race|barrier|same time|never written"):
            interpret(without_barrier(lowered, number), *[array.copy() for array in arrays])


def without_barrier(func, number):
    """A program less one of its barriers."""
    left = iter(range(1 << 20))

    class Remove(Mutator):
        def visit_Evaluate(self, s):
            return Evaluate(te.const(0)) if is_barrier(s) and next(left) == number else s

    return func.replace(body=Remove().stmt(func.body))


@pytest.mark.parametrize("n, k, is_whole", [(768, 1536, True), (2112, 2048, True), (8192, 4096, False)])
def test_a_product_whose_constants_are_all_on_their_way_lets_the_next_kernel_begin(n, k, is_whole):
    build = Builder("product")
    made = build.node("MatMul", build.input("x", (1, k)), build.constant(np.ones((k, n), np.float32)))
    module = weft.compile(build.finish(made), target="cuda:sm_90a")
    (program,) = [one.kernel.program for one in module.specializations[0].launches if "matmul" in one.kernel.label]
    body = program.source[program.source.index("__global__") :]
    assert (body.index("launch_dependents") < body.index("griddepcontrol.wait")) == is_whole
    assert "__syncthreads" not in body[body.index("for (int32_t ko") :][:400], "threads read what they copied"
    assert "__restrict__" not in body, "whose loads the compiler may move over the wait"


@pytest.mark.parametrize("n, k", [(48, 256), (64, 192), (8, 2048), (24, 320)])
def test_scales_of_a_norm_are_loaded_before_all_else(n, k):
    """Constants of what each block computes are in registers before the first copy, and mean the same."""
    x, b, scale = te.placeholder((1, k), name="A"), te.placeholder((k, n), name="B"), te.placeholder((k,), name="S")
    r, over = te.reduce_axis(k, "r"), te.reduce_axis(k, "k")
    squares = te.compute((1,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="squares")
    row = te.compute((1, k), lambda i, j: x[i, j] / te.sqrt(squares[i] / k + 1e-5) * scale[j], name="row")
    out = te.compute((1, n), lambda i, j: te.sum(row[i, over] * b[over, j], axis=over), name="C")

    def reference(x, b, scale):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * scale @ b

    schedule = check([x, b, scale], out, reference, ROOMY, constants=[b, scale], tolerance=1e-3)
    source = ROOMY.generate(ROOMY.lower(schedule.func)).source
    body = source[source.rindex("__global__") :]
    assert body.index("S_early[") < body.index("griddepcontrol.wait") < body.index("weft_copy_async_16(")
    if nvrtc.is_available():
        assert nvrtc.compile_source(source, "sm_90a")[1:4] == b"ELF"


def test_a_scale_that_only_some_places_have_is_loaded_there_alone():
    k, n = 256, 48
    x, b, scale = (
        te.placeholder((1, k), name="A"),
        te.placeholder((k, n), name="B"),
        te.placeholder((k // 2,), name="S"),
    )
    r, over = te.reduce_axis(k, "r"), te.reduce_axis(k, "k")
    total = te.compute((1,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="total")
    row = te.compute((1, k), lambda i, j: x[i, j] / total[i] * te.select(j < k // 2, scale[j], 2.0), name="row")
    out = te.compute((1, n), lambda i, j: te.sum(row[i, over] * b[over, j], axis=over), name="C")

    def reference(x, b, scale):
        return x / (x * x).sum(1, keepdims=True) * np.append(scale, np.full(k // 2, 2)) @ b

    check([x, b, scale], out, reference, ROOMY, constants=[b, scale], tolerance=1e-3)


@pytest.mark.parametrize("before", ["norm", "chain"])
def test_warps_add_up_vectors_in_registers(before):
    """Lanes have neighbouring k of the same columns: the plain program is interpreted, then registers are exchanged."""
    inputs, output, reference = weighed(16, 1024, before, "bfloat16")
    schedule = check(inputs, output, reference, CUDA, constants=[inputs[1]], tolerance=1e-3)
    source = CUDA.generate(CUDA.lower(schedule.func)).source
    body = source[source.rindex("__global__") :]
    assert "weft_lanes_spread<8>(" in body and "weft_words_get(" in body
    assert ("weft_lanes_spread<1>(" in body) == (before == "norm"), "the sum of squares, too"
    assert "S_early[0] =" in body and body.index("griddepcontrol.wait") < body.index("S_early[0] =")
    if nvrtc.is_available():
        assert nvrtc.compile_source(source, "sm_90a")[1:4] == b"ELF"


WORDS = [(256, 16, 8, 32, "none"), (512, 32, 4, 32, "none"), (256, 16, 8, 64, "packed"), (1024, 16, 2, 32, "plain"),
]  # fmt: skip


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("k, n, bits, block, zeros", WORDS)
def test_words_and_their_scales_come_before_the_kernel_waits(k, n, bits, block, zeros):
    """Scales are read by all threads: the wait for their copies stands before the barrier that the threads meet at."""
    graph, _ = few_bits(k, n, 1, bits, block, zeros)
    module = weft.compile(graph, target="cuda:sm_90a")
    (launch,) = [one for one in module.specializations[0].launches if "words" in one.kernel.label]
    func, source = launch.kernel.scheduled, launch.kernel.program.source
    body = source[source.index("__global__") :]
    beside = 1 if zeros == "none" else 2
    early = body[: body.index("griddepcontrol.wait")]
    first = early[: early.index("commit_group")]
    assert first.count("weft_copy_async_") == 1 + beside, "the first group has what all threads read"
    wait = body.index("wait_group", body.index("griddepcontrol.wait"))
    assert wait < body.index("__syncthreads", wait) < body.index("for (", wait)
    random = np.random.default_rng(0)
    arrays = []
    for parameter in func.params:
        shape = [int(str(size)) for size in parameter.shape]
        whole = random.integers(0, 1 << 32 if parameter.dtype.bytes == 4 else 255, shape)
        real = random.standard_normal(shape)
        arrays.append((real if parameter.dtype.is_float else whole).astype(parameter.dtype.numpy))
    lowered, made = CUDA.lower(func), next(i for i, p in enumerate(func.params) if p.name not in inputs_of(func))
    found = []
    for program in (func, lowered):
        given = [array.copy() for array in arrays]
        interpret(program, *given)
        found.append(given[made])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5 * np.abs(found[0]).max())


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize(
    "k, n, block, zeros", [(336, 224, 16, "packed"), (96, 48, 16, "plain"), (800, 80, 32, "packed")]
)
def test_only_whole_chunks_are_asked_for_ahead(k, n, block, zeros):
    """A block's zero points of 84 bytes lie at no multiple of 16: an instruction that asks for them is a fault."""
    graph, _ = few_bits(k, n, 3, 4, block, zeros)
    module = weft.compile(graph, target="cuda:sm_90a")
    source = "".join(one.kernel.program.source for one in module.specializations[0].launches)
    size_of = {name: {"uint8_t": 1}.get(kind, 4) for kind, name in re.findall(r"(\w+) \*__restrict__ (\w+)", source)}
    asked = re.findall(r'prefetch.L2[^"]*" :: "l"\((\w+) \+ \(int64_t\)blockIdx.x \* (\d+)\), "r"\((\d+)\)', source)
    assert asked
    assert all(int(step) * size_of[name] % 16 == 0 and int(size) % 16 == 0 for name, step, size in asked), asked


def inputs_of(func):
    """The names of what a program reads of its parameters."""
    return {b.name for b in buffers_read(func.body)} - {b.name for b in buffers_written(func.body)}


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize(
    "kind, architecture", [("float8_e4m3fn", "sm_90a"), ("float8_e5m2", "sm_90a"), ("float8_e4m3fn", "sm_80")]
)
def test_bytes_of_float8_are_widened_two_at_a_time(kind, architecture):
    """Where the machine has an instruction for it."""
    build = Builder("product")
    weights = np.random.default_rng(0).standard_normal((1024, 1056)).astype(kind_of(kind).numpy)
    scales = build.constant(np.random.default_rng(1).uniform(0.5, 1, 1056).astype(np.float32))
    wide = build.node("DequantizeLinear", build.constant(weights), scales, axis=1)
    module = weft.compile(
        build.finish(build.node("MatMul", build.input("x", (1, 1024)), wide)), target=f"cuda:{architecture}"
    )
    source = "".join(one.kernel.program.source for one in module.specializations[0].launches)
    assert ("weft_words_get_e" in source) == (architecture == "sm_90a"), source


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", [0, 1, 8, 128, 2.5])
def test_digits_become_floats_where_they_lie(bits, zero):
    """All numbers at all places of a word, beside others that are full and empty."""
    each = 32 // bits
    number = np.arange(1 << bits, dtype=np.uint32)
    for part in range(each):
        for rest in (0, 0xFFFFFFFF):
            mask = np.uint32(((1 << bits) - 1) << part * bits)
            words = (number << np.uint32(part * bits)) | (np.uint32(rest) & ~mask)
            word = te.placeholder((len(number),), "uint32", name="w")
            made = te.compute((len(number),), lambda i, w=word, part=part: digit(w[i], part, bits, zero), name="f")
            out = np.zeros(len(number), np.float32)
            interpret(te.create_schedule(made.op).func, words, out)
            np.testing.assert_array_equal(out, number.astype(np.float32) - np.float32(zero))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_what_lanes_exchange_adds_up(width):
    """The steps of `weft_lanes_spread` in numpy: thread t has the sum of column t % width of all threads."""
    given = np.random.default_rng(0).standard_normal((32, width))
    lanes, own = np.arange(32), given.copy()
    far = width // 2
    while far:
        upper = (lanes & far != 0)[:, None]
        kept, sent = np.where(upper, own[:, far:], own[:, :far]), np.where(upper, own[:, :far], own[:, far:])
        own, far = kept + sent[lanes ^ far], far // 2
    for far in (1 << n for n in range(5) if 1 << n >= width):
        own = own + own[lanes ^ far]
    np.testing.assert_allclose(own[:, 0], given.sum(0)[lanes % width])


@pytest.mark.parametrize("where", ["behind a wait for copies", "of memory of all blocks"])
def test_a_barrier_that_keeps_more_apart_than_shared_memory_stays(where):
    """What others copied, or wrote to memory of all blocks, is there for all threads only behind it."""
    text = """func f(A: float32[32], B: float32[32]) @{"flat": true}:
    for b in range(1) thread blockIdx.x:
        allocate part: float32[32] shared:
            allocate x: float32[32] shared:
                for tx in range(32) thread threadIdx.x:
                    allocate total: float32[1] local:
                        x[tx] = A[tx]
                        barrier()
                        part[tx] = A[tx]
                        copy_wait(0)
                        barrier()
                        total[0] = x[31 - tx]
                        for l in range(32):
                            total[0] = total[0] + part[l]
                        barrier()
                        B[tx] = total[0]
"""
    if "blocks" in where:
        for old, new in (
            ("copy_wait(0)", "C[tx] = A[tx]"),
            ("x[31 - tx]", "C[31 - tx]"),
            ("B: ", "C: float32[32], B: "),
        ):
            text = text.replace(old, new)
    made = add_up_in_lanes(parse_func(text), CUDA.threads)
    assert "lanes_spread" in repr(made) and sum(map(is_barrier, walk_stmts(made.body))) == 3
