"""What an object is that somebody gives for a model: known by the names of its classes, so that nothing is imported.

Whatever is no model gets an error that says what it is, and the line that makes one of it.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

from weft.core.errors import ArgumentError
from weft.graph.ir import Graph


def kind_of(model: Any, inputs: Sequence[Any] = ()) -> str:
    """ "graph", "torch", "jax", "keras", "tflite" or "onnx"; an error for what weft.compile does not take."""
    if isinstance(model, Graph):
        return "graph"
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(model).__mro__}
    is_path = isinstance(model, (str, os.PathLike))
    hint = _about_file(model) if is_path else _about_object(model, kinds, inputs)
    if hint:
        name = type(model).__name__
        what = f"the path {os.fspath(model)!r}" if is_path else f"a{'n' * (name[0] in 'AEIOaeio')} {name}"
        raise ArgumentError(f"weft.compile takes {_TAKEN}, not {what}: {hint}")
    if is_path:
        return {".pt2": "torch", ".keras": "keras", ".tflite": "tflite"}.get(os.path.splitext(model)[1], "onnx")
    if isinstance(model, (bytes, bytearray, memoryview)):
        return "tflite" if bytes(model[4:8]) == b"TFL3" else "onnx"
    for name, kind in _KINDS.items():
        if name in kinds:
            return kind
    return "jax" if callable(model) else "onnx"


_TAKEN = "a model of PyTorch, JAX, Keras, ONNX or TFLite, or a weft Graph"

_KINDS = {
    "keras.Layer": "keras",  # with the torch backend it is a torch.Module, too
    "torch.Module": "torch",
    "torch.ExportedProgram": "torch",
    "torch.ONNXProgram": "onnx",
    "onnx.ModelProto": "onnx",
}
"""What is a model, by class; anything else that can be called is taken for a function of JAX's."""

_TO_ONNX = "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx, and weft.compile('model.onnx')"
_OF_TENSORFLOW = (
    "TensorFlow's models come in by way of another file. Two lines in the environment that has TensorFlow: "
    "converter = tf.lite.TFLiteConverter.from_saved_model(FOLDER); open('model.tflite', 'wb').write("
    f"converter.convert()), and weft.compile('model.tflite'); or {_TO_ONNX}"
)
_MODEL_FIRST = "the model comes first, weft.compile(model, (x,))"
_FUNCTION = "give the function that it was made of, weft.compile(jax.jit(f), x)"
_WEIGHTS = "it holds weights: load them into their module, and weft.compile(module, (x,))"
_HINTS = {
    "torch.ScriptModule": "TorchScript has lost the Python that torch.export reads: give the module it was made of, "
    "weft.compile(model, (x,))",
    "torch.ScriptFunction": "give a module whose forward calls it, weft.compile(model, (x,))",
    "torch.OptimizedModule": "give the module inside, weft.compile(model._orig_mod, (x,)), or compile it with "
    'torch.compile(model, backend="weft")',
    "torch.Tensor": _MODEL_FIRST,
    "numpy.ndarray": _MODEL_FIRST,
    "builtins.dict": _WEIGHTS,
    "transformers.Pipeline": "give its model and what its tokenizer makes, weft.compile(pipeline.model, (ids,))",
    "jaxlib.ArrayImpl": "the function comes first, weft.compile(f, x)",
    "jax.Compiled": f"XLA's code is no model: {_FUNCTION}",
    **dict.fromkeys(("jax.ClosedJaxpr", "jax.Jaxpr", "jax.Lowered", "jax.Traced"), _FUNCTION),
    "jax.Exported": f"it holds StableHLO: {_FUNCTION}",
    "flax.Module": "its parameters are apart from it: weft.compile(lambda x: model.apply(parameters, x), x)",
    "haiku.Transformed": "its parameters are apart: weft.compile(lambda x: model.apply(parameters, None, x), x)",
    "weft.Schedule": "weft.build(schedule, [A, B, C]) compiles tensor programs",
    "weft.Func": "weft.build(func) compiles tensor programs",
    "weft.Tensor": "weft.build(schedule, [A, B, C]) compiles tensor programs",
    "weft.Module": "it is compiled already, and can be called",
    "onnxruntime.InferenceSession": "give the file that it was made of, weft.compile(path)",
    "ai_edge_litert.Interpreter": "give the file that it was made of, weft.compile(path)",
    "tensorflow.Module": _OF_TENSORFLOW,
    "tensorflow.AutoTrackable": _OF_TENSORFLOW,
    "sklearn.BaseEstimator": "write it as ONNX, skl2onnx.to_onnx(model, x), and compile that",
    "xgboost.XGBModel": "write it as ONNX, onnxmltools.convert_xgboost(model), and compile that",
}
"""What is no model, by class, and what to do with it."""

_FILES = {
    ".pt .pth .bin .safetensors .ckpt": _WEIGHTS,
    ".npy .npz": "it holds arrays; the model comes first",
    ".h5 .hdf5": "read it with keras.models.load_model(path), and weft.compile(model, x)",
    ".pb": _OF_TENSORFLOW,
    ".mlmodel .mlpackage": "Core ML's models are not read: give the model that it was converted from",
    ".mlir .stablehlo": "StableHLO is not read: give the function, weft.compile(jax.jit(f), x)",
    ".py": "import it, and give the module or function, weft.compile(model, (x,))",
}
"""Files that hold no model, or one that is not read, by their endings."""


def _about_file(path: Any) -> str:
    """What to do with a file that is no model; nothing where it may be one."""
    ending = os.path.splitext(path)[1]
    if ending == ".weft" and zipfile.is_zipfile(path):
        return "it is a module file, weft.load(path) reads it"
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, "saved_model.pb")):
            return _OF_TENSORFLOW.replace("FOLDER", repr(os.fspath(path)))
        return "it is a folder: give the path of one file"
    return next((hint for endings, hint in _FILES.items() if ending and ending in endings.split()), "")


def _about_object(model: Any, kinds: set[str], inputs: Sequence[Any]) -> str:
    """What somebody wants who gives this for a model; nothing where it may be one."""
    if "keras.Layer" in kinds:
        return "" if "keras.Model" in kinds else "put the layer into a model, keras.Sequential([layer])"
    found = next((hint for name, hint in _HINTS.items() if name in kinds), "")
    if found or isinstance(model, (bytes, bytearray, memoryview)) or kinds & set(_KINDS):
        return found
    if isinstance(model, type):
        return f"it is a class: make one of it, {model.__name__}(…)"
    if not callable(model):
        return "give a model, or the path of a file that holds one"
    if any("torch.Tensor" in {f"{k.__module__}.{k.__name__}" for k in type(one).__mro__} for one in _leaves(inputs)):
        return "put the function into a module, class Model(torch.nn.Module): forward = staticmethod(function)"
    if not inputs and getattr(model, "__code__", None) is not None and model.__code__.co_argcount:
        names = ", ".join(model.__code__.co_varnames[: model.__code__.co_argcount])
        return (
            f"give a function of JAX's with example arguments, weft.compile(function, {names}); "
            "one of PyTorch's goes into a module, class Model(torch.nn.Module): forward = staticmethod(function)"
        )
    return ""


def _leaves(given: Any) -> Iterator[Any]:
    """What stands in tuples, lists and dicts."""
    if isinstance(given, (tuple, list)):
        for one in given:
            yield from _leaves(one)
    elif isinstance(given, dict):
        yield from _leaves(list(given.values()))
    else:
        yield given
