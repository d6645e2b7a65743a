"""What an object is that somebody gives for a model: known by the names of its classes, so that nothing is imported.

Whatever is no model gets an error that says what it is, and the line that makes one of it.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any

from weft.core.errors import ArgumentError
from weft.graph.ir import Graph


def kind_of(model: Any) -> str:
    """ "graph", "torch" or "onnx"; an error for what weft.compile does not take."""
    if isinstance(model, Graph):
        return "graph"
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(model).__mro__}
    is_path = isinstance(model, (str, os.PathLike))
    hint = _what_to_do(model, kinds, is_path)
    if hint:
        what = "a module file" if is_path else f"a {type(model).__name__}"
        raise ArgumentError(f"weft.compile takes a model of PyTorch or ONNX, or a weft Graph, not {what}: {hint}")
    if kinds & {"torch.Module", "torch.ExportedProgram"} or (is_path and str(model).endswith(".pt2")):
        return "torch"
    return "onnx"


_HINTS = {
    "torch.ScriptModule": "TorchScript has lost the Python that torch.export reads: give the module it was made of, "
    "weft.compile(model, (x,))",
    "torch.ScriptFunction": "give a module whose forward calls it, weft.compile(model, (x,))",
    "torch.OptimizedModule": "give the module inside, weft.compile(model._orig_mod, (x,)), or compile it with "
    'torch.compile(model, backend="weft")',
    "torch.GraphModule": "",
    "torch.Tensor": "the model comes first, weft.compile(model, (x,))",
    "weft.Schedule": "weft.build(schedule, [A, B, C]) compiles tensor programs",
    "weft.Func": "weft.build(func) compiles tensor programs",
    "weft.Tensor": "weft.build(schedule, [A, B, C]) compiles tensor programs",
    "weft.Module": "it is compiled already, and can be called",
    "onnxruntime.InferenceSession": "give the file that it was made of, weft.compile(path)",
    "numpy.ndarray": "the model comes first, weft.compile(model, (x,))",
    "keras.Model": 'write it as ONNX, model.export("model.onnx", format="onnx"), and compile that file',
    "tensorflow.Module": "write it as ONNX, python -m tf2onnx.convert --saved-model folder --output model.onnx",
    "sklearn.BaseEstimator": "write it as ONNX, skl2onnx.to_onnx(model, x), and compile that",
    "jaxlib.PjitFunction": "write it as ONNX, jax2onnx.to_onnx(f, [x]), and compile that",
}
"""What is no model, by class, and what to do with it."""


def _what_to_do(model: Any, kinds: set[str], is_path: bool) -> str:
    """What somebody wants who gives this for a model; nothing where it may be one."""
    if is_path:
        path = str(model)
        if path.endswith(".weft") and zipfile.is_zipfile(model):
            return "weft.load(path) reads it"
        if path.endswith((".pt", ".pth", ".bin", ".safetensors")):
            return "it holds weights: load them into their module, and weft.compile(module, (x,))"
        if path.endswith(".keras"):
            return _HINTS["keras.Model"]
        return ""
    found = next((hint for name, hint in _HINTS.items() if name in kinds and hint), "")
    if not found and isinstance(model, type):
        return f"it is a class: make one of it, {model.__name__}(…)"
    if not found and callable(model) and not kinds & {"torch.Module", "torch.ExportedProgram", "torch.ONNXProgram"}:
        return "put the function into a module, class Model(torch.nn.Module): forward = staticmethod(function)"
    return found
