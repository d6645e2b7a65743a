"""Whole models on an NVIDIA GPU against PyTorch, float32 without tf32, or float16, zero trials.

Ours is `weft.compile(graph, target="cuda")` with inputs and outputs bound on the device: a call is one graph launch.
PyTorch runs the same graph with the same weights (`to_torch`), eager and compiled, in both layouts, each inside a CUDA
graph of its own. Candidates take turns; a sample is so many launches in a row between two events.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.decoding_gpu import alone
from benchmarks.gpu_programs import layouts, torch_convolution
from benchmarks.torch_models import NoTorchModel, to_torch
from weft.compiler import compile
from weft.compiler.reports.inputs import random_array
from weft.core.knobs import knobs
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.models import make, names
from weft.targets.cuda import driver

LAUNCHES = 20
ROUNDS = 11


def captured(stream: Any, run: Callable[[], Any]) -> Any:
    """PyTorch's CUDA graph of a call, captured once it is warm; it keeps what the call reads as long as it lives."""
    import torch

    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(4):
            run()
        torch.cuda.synchronize()
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made, stream=stream):
            run()
    made.keep = run
    return made


class ModelRace:
    """One model: ours and the peers, ready to launch."""

    def __init__(self, bench: Any, name: str, precision: str | None = None) -> None:
        self.torch, self.device, self.stream = bench.torch, bench.device, bench.stream
        graph = make(name, bench.batch)
        random = np.random.default_rng(0)
        arrays = [random_array(v.tensor.dtype, v.tensor.static, random) for v in graph.inputs]
        start = time.perf_counter()
        with knobs.override(records=False):  # what was tuned, and what ships, is not what is measured here
            module: Any = compile(graph, target=bench.target, precision=precision)
        self.narrow = precision is not None
        self.compile_seconds = time.perf_counter() - start
        self.bound = module.bind({value.name: array for value, array in zip(graph.inputs, arrays)})
        self.bound.launch()
        self.bound.synchronize()
        self.outputs = [array.numpy() for array in self.bound.outputs]
        (one,) = module.specializations
        self.kernels = [kernel.name for launch in one.launches for kernel in launch.kernel.program.kernels]
        tensors = [self.torch.from_numpy(array).cuda() for array in arrays]
        self.peers, self.error = self._peers(graph, tensors)

    def _peers(self, graph: Any, tensors: Sequence[Any]) -> tuple[dict[str, Any], float]:
        """PyTorch's ways as CUDA graphs, and how far we are from its plain one."""
        torch = self.torch
        module = to_torch(graph).eval().cuda()
        with torch.no_grad():
            plain = module(*tensors)
        want = [one.cpu().numpy() for one in (plain if isinstance(plain, (tuple, list)) else [plain])]
        error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(self.outputs, want))
        if self.narrow:
            module, tensors = module.half(), [t.half() if t.is_floating_point() else t for t in tensors]
        ways: dict[str, Callable[[], Any]] = {"eager": lambda: module(*tensors)}
        compiled = torch.compile(module)
        ways["compile"] = lambda: compiled(*tensors)
        if tensors[0].dim() == 4:
            last = to_torch(graph).eval().cuda().to(tensors[0].dtype).to(memory_format=torch.channels_last)
            images = [tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors]
            ways["eager NHWC"] = lambda: last(*images)
            compiled_last = torch.compile(last)
            ways["compile NHWC"] = lambda: compiled_last(*images)
        found = {}
        for label, run in ways.items():
            try:
                found[label] = captured(self.stream, run)
            except RuntimeError as problem:  # a way that cannot be captured, or does not compile, is left out
                sys.stdout.write(f"{graph.name}: PyTorch's {label} is left out: {str(problem).splitlines()[0]}\n")
        return found, error

    def time_ours(self) -> float:
        """Seconds a call."""
        first, last = driver.Event(), driver.Event()
        first.record(self.device.stream)
        for _ in range(LAUNCHES):
            self.bound.launch()
        last.record(self.device.stream)
        return last.seconds_since(first) / LAUNCHES

    def time_peer(self, made: Any) -> float:
        """Seconds a call."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(self.stream)
            for _ in range(LAUNCHES):
                made.replay()
            last.record(self.stream)
            last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / LAUNCHES

    def run(self) -> dict[str, list[float]]:
        """Samples of every candidate; the first rounds warm up."""
        times: dict[str, list[float]] = {label: [] for label in ("ours", *self.peers)}
        for number in range(ROUNDS + 2):
            sample = {"ours": self.time_ours()}
            sample |= {label: self.time_peer(made) for label, made in self.peers.items()}
            if number >= 2:
                for label, seconds in sample.items():
                    times[label].append(seconds)
        return times


def model_rows(bench: Any, make_row: Callable[..., Any], precision: str | None = None) -> Iterator[Any]:
    """One row for each built-in model; `make_row` takes the fields of benchmarks.gpu's Row."""
    group = "models" if precision is None else "models16"
    for name in bench.models or names(decoders=False):
        try:
            race = ModelRace(bench, name, precision)
        except NoTorchModel as problem:
            sys.stdout.write(f"{name}: PyTorch does not run it: {problem}\n")
            continue
        with alone(bench.lock):
            times = race.run()
        best = min(race.peers, key=lambda label: statistics.median(times[label]))
        ratio = statistics.median(theirs / ours for ours, theirs in zip(times["ours"], times[best]))
        ours, theirs = statistics.median(times["ours"]), statistics.median(times[best])
        told = f"{len(race.kernels)} kernels, {race.compile_seconds:.1f} s"
        yield make_row(group, name, ours * 1e6, theirs * 1e6, best, ratio, race.error, told, race.kernels)


ATTENTION = (
    (1, 12, 128, 64), (8, 12, 128, 64), (1, 12, 384, 64), (1, 12, 512, 64), (8, 12, 512, 64), (1, 16, 1024, 128),
    (1, 12, 4096, 64), (1, 8, 1000, 40),
)  # fmt: skip
"""Batch, heads, queries (and keys), and elements of a head."""


NARROW_ATTENTION = (
    ((4, 16, 4096, 128), "bf16"), ((1, 12, 512, 64), "fp16"), ((16, 12, 384, 64), "fp16"), ((16, 12, 197, 64), "fp16"),
    ((8, 16, 577, 64), "fp16"), ((2, 20, 1024, 64), "fp16"), ((1, 24, 1536, 128), "bf16"), ((1, 32, 1024, 80), "fp16"),
)  # fmt: skip
"""The same of 16 bits, and how they are made: the first two are those of the issue, the others nobody fitted."""

ONE_QUERY = (((1, 32, 8192, 128), "bf16"), ((1, 32, 8192, 64), "fp16"), ((4, 12, 1000, 64), "fp16"))
"""The same of decoding: a head has one query, and so many keys."""


def attention_rows(bench: Any, make_row: Callable[..., Any], is_narrow: bool = False) -> Iterator[Any]:
    """One row for each attention, as it is and causal, against the best of PyTorch's backends."""
    torch, group = bench.torch, "attention16" if is_narrow else "attention"
    cases: list[tuple[tuple[int, int, int, int], str | None, bool, int]] = [
        (sizes, precision, causal, sizes[2])
        for sizes, precision in (NARROW_ATTENTION if is_narrow else tuple((sizes, None) for sizes in ATTENTION))
        for causal in (False, True)
    ]
    if is_narrow:
        cases += [(sizes, precision, False, 1) for sizes, precision in ONE_QUERY]
    for sizes, precision, causal, queries in cases:
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16, None: torch.float32}[precision]
        batch, heads, keys, head = sizes
        given = [torch.randn(batch, heads, n, head, device="cuda").to(kind) for n in (queries, keys, keys)]
        recording, result = _attention_of(bench, given, causal)
        want = torch.nn.functional.scaled_dot_product_attention(*[t.float() for t in given], is_causal=causal)
        error = float((result.float() - want).norm() / want.norm())
        peers = _attention_peers(bench, given, causal)
        ours, theirs, best = _raced(bench, recording, peers)
        work = 4.0 * batch * heads * queries * keys * head / (2 if causal else 1)
        name = "×".join(map(str, sizes)) + (f" {precision}" if precision else "") + (" causal" if causal else "")
        name += " one query" if queries == 1 else ""
        rate = f"{work / ours / 1e12:.1f} TFLOP/s"
        yield make_row(group, name, ours * 1e6, theirs * 1e6, best, theirs / ours, error, rate)


def _raced(bench: Any, recording: Any, peers: Mapping[str, Any]) -> tuple[float, float, str]:
    """Median seconds of ours and of the best peer, by turns, and who that is."""
    times: dict[str, list[float]] = {label: [] for label in ("ours", *peers)}
    for _ in range(ROUNDS + 2):
        times["ours"].append(bench.time_ours(recording))
        for label, made in peers.items():
            times[label].append(bench.time_graph(made))
    medians = {label: statistics.median(some[2:]) for label, some in times.items()}
    best = min(peers, key=medians.__getitem__)
    return medians["ours"], medians[best], best


def first_layer_row(bench: Any, make_row: Callable[..., Any], group: str, window: Any, batch: int) -> Any:
    """A convolution of an image as a model gets it, against cuDNN in both layouts: float16, few channels.

    Ours takes the image as it is given and leaves channels last; what turns the image around is counted.
    """
    torch, pad = bench.torch, window.kernel // 2
    image = torch.randn(batch, window.inputs, window.size, window.size, device="cuda").half()
    weight = torch.randn(window.outputs, window.inputs, window.kernel, window.kernel, device="cuda").half()
    shape = (batch, window.outputs, window.out, window.out)
    x, w = (Value(name, TensorType("float16", tuple(one.shape))) for name, one in (("x", image), ("w", weight)))
    y = Value("y", TensorType("float16", shape))
    last = Value("last", TensorType("float16", (batch, window.out, window.out, window.outputs)))
    sides = {"strides": [window.stride] * 2, "pads": [pad] * 4, "kernel_shape": [window.kernel] * 2}
    nodes = [Node("Conv", [x, w], [y], sides), Node("Transpose", [y], [last], {"perm": [0, 2, 3, 1]})]
    with knobs.override(records=False):
        module: Any = compile(Graph("first", [x], [last], nodes, {w: weight.cpu().numpy()}), target=bench.target)
    bound = module.bind({"x": image.cpu().numpy()})
    calls, alive = bound.calls()
    launches = [launch for call in calls for launch in call]
    recording = bench.device.record(launches * LAUNCHES)
    recording.keep = (bound, alive, launches)
    recording.launch()
    bench.device.synchronize()
    run = torch_convolution(window, 1)
    want = run(image.double(), weight.double()).permute(0, 2, 3, 1).cpu().numpy()
    peers = {label: bench.graph(one) for label, one in layouts(run)(image, weight).items()}
    error = float(np.linalg.norm(bound.outputs[0].numpy() - want) / np.linalg.norm(want))
    ours, theirs, best = _raced(bench, recording, peers)
    work = 2.0 * batch * window.out**2 * window.outputs * window.inputs * window.kernel**2
    name, rate = f"{window.name} batch {batch}", f"{work / ours / 1e12:.1f} TFLOP/s"
    return make_row(group, name, ours * 1e6, theirs * 1e6, best, theirs / ours, error, rate)


def _attention_peers(bench: Any, given: Sequence[Any], causal: bool) -> dict[str, Any]:
    """PyTorch's own choice, and each of its backends that takes the operands."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    functional = bench.torch.nn.functional.scaled_dot_product_attention
    peers = {"sdpa": bench.graph(lambda: functional(*given, is_causal=causal))}
    for label in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):

        def run(label: str = label) -> Any:
            with sdpa_kernel(getattr(SDPBackend, label)):
                return functional(*given, is_causal=causal)

        try:
            run()
        except RuntimeError:  # a backend that does not take these operands
            continue
        peers[label.lower()] = bench.graph(run)
    return peers


def _attention_of(bench: Any, given: Sequence[Any], causal: bool) -> tuple[Any, Any]:
    """Launches of our attention of the peers' own types, recorded, and where the result is."""
    kinds = [TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in given]
    values, out = [Value(name, kind) for name, kind in zip("qkv", kinds)], Value("y", kinds[0])
    node = Node("Attention", values, [out], {"is_causal": int(causal)})
    module: Any = compile(Graph("attention", values, [out], [node], {}), target=bench.target)
    launch = max(module.specializations[0].launches, key=lambda one: len(one.kernel.program.parameters))
    program = launch.kernel.program
    (written,) = [one for one in program.parameters if one.is_written]
    result = bench.torch.full_like(given[0], float("nan"), dtype=getattr(bench.torch, str(written.dtype)))
    arguments = {f"in{number}": tensor for number, tensor in enumerate(given)}
    arguments[written.name] = result
    arguments.update({w.name: bench.device.allocate(w.bytes) for w in program.workspaces})
    executable = bench.device.load(program)
    launches = executable.bind(arguments)
    bench.device.record(launches).launch()
    bench.device.synchronize()
    recording = bench.device.record(launches * LAUNCHES)
    recording.keep = (executable, arguments, launches)
    return recording, result
