"""Whom the benchmarks measure that race processes: each candidate makes, from a Task, a call without arguments.

Every peer has the settings that serve it best for one small batch: ONNX Runtime all its graph optimisations; OpenVINO
the latency hint, static shapes, and inputs and outputs that are not copied; PyTorch the better of its memory layouts,
found by trying (for a single convolution also oneDNN's weights packed beforehand), without gradients.
`notes` takes what a candidate has to say about itself.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.peers import load
from benchmarks.torch_models import to_torch
from benchmarks.workers import Task, WorkerProblem, burst

Outputs = Callable[[], list[Any]]
TRIAL_SECONDS = 0.15


def _only_fp32(name: str, task: Task) -> None:
    if task.precision != "fp32":
        raise WorkerProblem(f"{name} is measured in fp32 only")


# -------------------------------------------------------------------------------------------------------- ours


def _module(task: Task, exact: bool = False, target: str = "native") -> Any:
    """Our module, with zero trials: compiled by the default schedules, now, not read from the cache."""
    import weft as package
    from weft.core.knobs import knobs

    warnings.simplefilter("ignore")
    precision = None if task.precision == "fp32" else task.precision
    shapes = {name: array.shape for name, array in task.feeds.items()}
    with knobs.override(cache=False):
        return package.compile(
            str(task.model), shapes=shapes, precision=precision, threads=task.threads, exact=exact, target=target
        )


def weft(task: Task, notes: dict[str, Any]) -> Outputs:
    """Our module, as a user calls it."""
    feeds, module = dict(task.feeds), _module(task)
    return lambda: module.run(None, feeds)


def weft_exact(task: Task, notes: dict[str, Any]) -> Outputs:
    """Our module without anything that rounds otherwise than float32 sums do."""
    feeds, module = dict(task.feeds), _module(task, exact=True)
    return lambda: module.run(None, feeds)


def weft_lesser(task: Task, notes: dict[str, Any]) -> Outputs:
    """Our module for a machine with less than this one has."""
    feeds, module = dict(task.feeds), _module(task, target=task.lesser)
    return lambda: module.run(None, feeds)


class ConvolutionAlone:
    """Our kernels that hold convolutions, as they run inside our module: without the call from Python and whatever
    converts layouts around them. A burst gives their times alone.
    """

    def __init__(self, task: Task, notes: dict[str, Any]) -> None:
        self.task, self.module = task, _module(task)
        self.module.run(None, dict(task.feeds))

    def __call__(self) -> list[Any]:
        """The outputs."""
        return list(self.module.run(None, dict(self.task.feeds)))

    def burst(self, seconds: float) -> list[float]:
        """The times in whole runs of the module."""
        found = self.module.profile(self.task.feeds, threads=self.task.threads, seconds=seconds)
        samples = [kernel.samples for kernel in found.kernels if any("conv" in name for name in kernel.nodes)]
        return [sum(one) for one in zip(*samples)]


# ------------------------------------------------------------------------------------------------------- peers


def onnxruntime(task: Task, notes: dict[str, Any]) -> Outputs:
    """ONNX Runtime on the processor."""
    _only_fp32("ONNX Runtime", task)
    package = load("onnxruntime")
    options = package.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = package.InferenceSession(str(task.model), options, providers=["CPUExecutionProvider"])
    feeds = dict(task.feeds)
    return lambda: session.run(None, feeds)


def openvino(task: Task, notes: dict[str, Any]) -> Outputs:
    """OpenVINO's processor plugin; float32 is forced where float32 is asked for, for it would choose bf16 itself."""
    package = load("openvino")
    core = package.Core()
    model = core.read_model(str(task.model))
    names = [port.get_any_name() for port in model.inputs]
    model.reshape({name: list(task.feeds[name].shape) for name in names})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": task.threads,
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[task.precision],
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    feeds = {name: task.feeds[name] for name in names}

    def call() -> list[Any]:
        found = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [found[position] for position in range(len(found))]

    return call


def torch(task: Task, notes: dict[str, Any]) -> Outputs:
    """PyTorch as it is, in the memory layout that is faster."""
    _only_fp32("torch", task)
    return _fastest(_eager_variants(task), notes)


def torch_program(task: Task, notes: dict[str, Any]) -> Outputs:
    """PyTorch's form of a case of `benchmarks.programs` or `.odd`, which the name of the model's file says."""
    from benchmarks.odd import SHAPES
    from benchmarks.program_tables import CASES

    load("torch").set_num_threads(task.threads)
    return next(case for case in (*CASES, *SHAPES) if case.name == task.model.stem).call()


def torch_compile(task: Task, notes: dict[str, Any]) -> Outputs:
    """torch.compile with constants frozen, so that weights are packed and batch norms folded ahead."""
    _only_fp32("torch.compile", task)
    package, config = load("torch"), load("torch._inductor.config")
    config.freezing = True
    variants = {}
    for name, (module, inputs) in _torch_modules(task).items():
        load("torch._dynamo").reset()
        variants[name] = _without_gradients(package.compile(module), inputs)
    return _fastest(variants, notes)


def _torch_modules(task: Task) -> dict[str, tuple[Any, list[Any]]]:
    """The module in both layouts of its images, with its inputs; one layout where there are no images."""
    import weft.ops  # noqa: F401  (fills the table of operators)
    from weft.frontends.onnx import load as load_onnx
    from weft.graph.passes.infer import infer

    package = load("torch")
    package.set_num_threads(task.threads)
    graph = infer(load_onnx(task.model))
    inputs = [package.from_numpy(task.feeds[value.name].copy()) for value in graph.inputs]
    found = {"contiguous": (to_torch(graph), inputs)}
    last_of = {4: package.channels_last, 5: package.channels_last_3d}
    if (rank := max((tensor.dim() for tensor in inputs), default=0)) in last_of:
        last = last_of[rank]
        turned = [t.to(memory_format=last) if t.dim() == rank else t for t in inputs]
        found["channels last"] = (to_torch(graph).to(memory_format=last), turned)
    return found


def _eager_variants(task: Task) -> dict[str, Outputs]:
    variants = {}
    for name, (module, inputs) in _torch_modules(task).items():
        variants[name] = _without_gradients(module, inputs)
        layers = list(module.children())
        if len(layers) == 1 and type(layers[0]).__name__ in ("Conv2d", "Conv3d"):
            packed = _packed_convolution(layers[0], inputs[0])
            variants[f"{name}, weights packed"] = _without_gradients(packed, inputs)
    return variants


def _packed_convolution(layer: Any, image: Any) -> Callable[[Any], Any]:
    """oneDNN's convolution with weights in the layout that it wants for an image of that shape."""
    operators = load("torch").ops.mkldnn
    window = (list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups)
    with load("torch").inference_mode():
        packed = operators._reorder_convolution_weight(layer.weight.detach(), *window, list(image.shape))
    bias = None if layer.bias is None else layer.bias.detach()
    return lambda x: operators._convolution_pointwise(x, packed, bias, *window, "none", [], "")


def _without_gradients(function: Callable[..., Any], inputs: list[Any]) -> Outputs:
    mode = load("torch").inference_mode

    def call() -> list[Any]:
        with mode():
            made = function(*inputs)
        return [one.numpy() for one in made] if isinstance(made, tuple) else [made.numpy()]

    return call


def _fastest(variants: Mapping[str, Outputs], notes: dict[str, Any]) -> Outputs:
    """The variant whose calls take least, each tried for a moment; variants that fail are left out."""
    times: dict[str, float] = {}
    problem: Exception | None = None
    for name, call in variants.items():
        try:
            call()
            times[name] = statistics.median(burst(call, TRIAL_SECONDS))
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            problem = error
    if not times:
        assert problem is not None
        raise problem
    best = min(times, key=times.__getitem__)
    notes["variant"] = best
    return variants[best]


CANDIDATES: dict[str, Callable[[Task, dict[str, Any]], Outputs]] = {
    "weft": weft,
    "weft exact": weft_exact,
    "weft lesser": weft_lesser,
    "convolution alone": ConvolutionAlone,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "torch": torch,
    "torch program": torch_program,
    "torch.compile": torch_compile,
}
"""Everyone who can be measured."""
