"""Layer 8: a graph and a target in, a module out. What runs it stands in weft/runtime/model.

passes       the list of passes over the graph
form         one compiled form of a model
specialize   a graph compiled for the shapes that it meets; module: from a graph to what the user holds
steps, run   steps that only the compiler knows (host nodes, parts that wait for shapes), and how a call runs them
lowering/    what runs where: kernels, host nodes, memory; kernels/: groups of nodes to machine code
control/     branches and loops in native code; sizes/: sizes that stay open
device/      models on a machine with memory of its own
saved/       module files; cache/: compiled models on disk; export/: libraries for C and JavaScript
reports/     what was compiled, and where its time goes
kinds        what somebody gives for a model; structured: models with arguments of any structure
precision    which precisions a target runs; tuned: which of the tuner's records hold
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from weft.compiler.cache.files import compile_file
from weft.compiler.kinds import kind_of
from weft.compiler.module import HostWarning, Module, compile_graph
from weft.core import hooks
from weft.core.errors import ArgumentError
from weft.core.knobs import knobs
from weft.plan.overrides import overriding
from weft.runtime.model.stored import load
from weft.schedule.trace import Trace
from weft.targets.base import Target

__all__ = ["HostWarning", "Module", "compile", "load"]


def compile(
    model: Any,
    *inputs: Any,
    target: str | Target = "auto",
    shapes: Mapping[str, Sequence[int | range]] | None = None,
    precision: str | None = None,
    threads: int | None = None,
    exact: bool | None = None,
    schedules: Mapping[str, Trace] | None = None,
    dynamic_shapes: Any = None,
    tune: str | float | None = None,
) -> Module:
    """A model as a module to call.

    `model` is a Graph; an ONNX model (a path, its bytes, a ModelProto, an ONNXProgram); or one of PyTorch's: a module
    followed by example inputs (a tuple, or a dict by name), with `dynamic_shapes` as torch.export takes them; an
    ExportedProgram; the path of a .pt2 file (docs/pytorch.md). A function of JAX's is followed by its arguments,
    weft.compile(jax.jit(f), x, y), a Keras model or .keras file by those of its call (docs/jax.md). The path of a
    .tflite file, or its bytes, need none (docs/tflite.md).

    `shapes` binds symbolic sizes of inputs now, {"image": (1, 3, 224, 224)}; a size that is a range stays open, and is
    promised to lie in it: {"image": (range(1, 9), 3, 224, 224)}. Other sizes that are left open are compiled for when
    the module is first called (docs/sizes.md). `threads` is what its calls take by default, and what its schedules are
    made for; without it they are made for all cores. `exact` turns off what rounds otherwise than plain float32 sums do
    (docs/precision.md); without it the knob of that name decides. `schedules` are steps for kernels, by the name of a
    node that each computes, instead of those that Weft chooses (docs/schedules.md).
    `tune` is how long faster schedules are looked for first, "30s" or "5m", or "background" (docs/tuning.md); what was
    found before is used in any case.

        m = weft.compile("model.onnx")
        y = m(x)
    """
    given: dict[str, Any] = {"target": target, "shapes": shapes, "precision": precision, "threads": threads}
    more: dict[str, Any] = {"schedules": schedules, "dynamic_shapes": dynamic_shapes}
    if inputs and isinstance(inputs[0], (str, Target)):  # weft.compile(model, "cuda", shapes, …)
        placed = dict(zip([*given, "exact", "schedules"], inputs))
        return compile(model, **{**given, **more, "exact": exact, **placed})
    if tune is not None:
        if inputs or dynamic_shapes is not None or schedules:
            raise ArgumentError("tune= takes an ONNX model or a Graph, without schedules; tune others with weft tune")
        return hooks.compile_tuned(model, tune, exact=exact, **given)  # type: ignore[no-any-return]
    if exact is not None:
        with knobs.override(exact=exact):
            return compile(model, *inputs, **given, **more)
    if schedules:
        if not isinstance(schedules, Mapping):
            raise ArgumentError(f"schedules is a dict of traces by kernel (see docs/schedules.md), not {_a(schedules)}")
        wrong = [name for name, trace in schedules.items() if not isinstance(trace, Trace)]
        if wrong:
            said = _a(schedules[wrong[0]])
            raise ArgumentError(f"the schedule of {wrong[0]!r} is a Trace (see docs/schedules.md), not {said}")
        with overriding(schedules):
            return compile(model, *inputs, **given, dynamic_shapes=dynamic_shapes)
    import weft.ops  # noqa: F401  (fills the table of operators)

    if shapes is not None and not isinstance(shapes, Mapping):
        raise ArgumentError(
            f"shapes are given by the names of inputs, {{'image': (1, 3, 224, 224)}}, not as {shapes!r}"
        )
    for name, shape in (shapes or {}).items():
        if isinstance(shape, str) or not hasattr(shape, "__iter__"):
            raise ArgumentError(f"the shape of input {name!r} is a tuple of sizes, not {shape!r}")
    kind = kind_of(model, inputs)
    if kind in ("torch", "jax", "keras", "tflite"):
        from weft.compiler.structured import compile_structured

        return compile_structured(kind, model, inputs, dynamic_shapes, **given)
    if inputs or dynamic_shapes is not None:
        raise ArgumentError(f"example inputs go with a model that is code, not with {_a(model)}")
    if kind == "onnx":
        from weft.frontends.onnx import load as load_onnx

        if isinstance(model, (str, os.PathLike)):
            return compile_file(model, load_onnx, target, shapes, precision, threads)
        model = load_onnx(getattr(model, "model_proto", model))
    return compile_graph(model, target, shapes, precision, threads)


def _a(model: Any) -> str:
    return "a module file" if isinstance(model, (str, os.PathLike)) else f"a {type(model).__name__}"
