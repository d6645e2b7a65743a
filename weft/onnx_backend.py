"""The standard backend interface of the onnx package, with Weft behind it.

    import weft.onnx_backend as backend
    prepared = backend.prepare(model)             an onnx.ModelProto, bytes or a path
    outputs = prepared.run([x])                   arrays in the order of the inputs, or a dict by name
    backend.run_model(model, [x])                 the same in one go
    backend.run_node(node, [x])                   one NodeProto, of the newest operator set or of opset_version=

Devices are "CPU" (with or without a number); `supports_device` tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler import HostWarning, Module
from weft.compiler import compile as compile_model
from weft.compiler.sizes.deciding import deciding_inputs
from weft.compiler.steps import RestStep
from weft.core.errors import FrontendError
from weft.frontends.onnx import load
from weft.frontends.onnx.source import onnx_module
from weft.frontends.onnx.types import ELEMENT_TYPES
from weft.frontends.onnx.versions import NEWEST, domain_name
from weft.graph.ir import dtype_name

_base = onnx_module("onnx.backend.base")


class PreparedModel(_base.BackendRep):  # type: ignore[name-defined,misc]
    """A model that is ready to run."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.inputs = [port.name for port in module.inputs]
        self.outputs = [port.name for port in module.outputs]

    @property
    def host_nodes(self) -> list[str]:
        """The nodes that ran by their numpy meaning so far, and why: complete once the model has run."""
        found = list(_host_nodes(self.module.specializations))
        folded = any(v in one.graph.constants for one in self.module.specializations for v in one.graph.outputs)
        if folded and deciding_inputs(self.module.graph):
            found.append("an output was folded from the values of inputs that decide shapes")
        return found

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model: a list of arrays in order, a dict by name, or one array. The result is a tuple with names."""
        if isinstance(inputs, np.ndarray) or np.isscalar(inputs):
            inputs = [inputs]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        elif len(inputs) == len(self.inputs):
            feeds = dict(zip(self.inputs, inputs))
        else:
            raise FrontendError(f"the model takes {len(self.inputs)} inputs {self.inputs}, not {len(inputs)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HostWarning)  # host_nodes says what the warning says
            results = self.module.run(None, {name: _as_array(value) for name, value in feeds.items()})
        named: tuple[Any, ...] = _base.namedtupledict("Outputs", self.outputs)(*results)
        return named


class WeftBackend(_base.Backend):  # type: ignore[name-defined,misc]
    """Weft as a backend of the onnx package."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported."""
        try:
            load(model)
        except FrontendError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compiles a model. `target` among the keywords chooses another target than the one of the device."""
        if not cls.supports_device(device):
            raise FrontendError(f"there is no device {device!r} here; CPU is")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HostWarning)
            return PreparedModel(compile_model(load(model), target=kwargs.get("target", "native")))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compiles a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Runs a single node. `opset_version` among the keywords says which version of its operator is meant."""
        given = [inputs] if isinstance(inputs, np.ndarray) or np.isscalar(inputs) else list(inputs)
        model = _model_of(node, [_as_array(value) for value in given], int(kwargs.pop("opset_version", 0)))
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there."""
        return device.split(":")[0].upper() == "CPU"


def _host_nodes(specializations: Sequence[Any]) -> Iterator[str]:
    """The host nodes of compiled forms, and of the parts of them that waited for shapes."""
    for one in specializations:
        for item in one.host_nodes:
            yield f"{item.node.describe()}: {item.reason}"
        for step in one.lowered.program.steps:
            if isinstance(step, RestStep):
                yield from _host_nodes(getattr(step.executor, "specializations", ()))


def _as_array(value: Any) -> Any:
    """Arrays as they are; scalars without dimensions; text as objects; lists and None as they are."""
    if value is None or isinstance(value, list):
        return None if value is None else [_as_array(v) for v in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _model_of(node: Any, arrays: Sequence[Any], version: int) -> Any:
    """A model of one node whose inputs have the types of these arrays."""
    onnx = onnx_module()
    helper = onnx_module("onnx.helper")
    domain = domain_name(node.domain)
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(arrays):
        raise FrontendError(f"the node {node.op_type} reads {len(names)} values, and {len(arrays)} are given")
    numbers = {name: number for number, name in ELEMENT_TYPES.items()}
    infos = []
    for name, array in zip(names, arrays):
        if isinstance(array, list):
            kind = dtype_name(array[0].dtype) if array else "float32"
            infos.append(helper.make_tensor_sequence_value_info(name, numbers[kind], None))
        else:
            infos.append(helper.make_tensor_value_info(name, numbers[dtype_name(array.dtype)], array.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    imports = [helper.make_opsetid("", NEWEST[""])]
    if domain:
        imports.append(helper.make_opsetid(domain, version or NEWEST.get(domain, 1)))
    elif version:
        imports = [helper.make_opsetid("", version)]
    return helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=imports)


is_compatible = WeftBackend.is_compatible
prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
run_node = WeftBackend.run_node
supports_device = WeftBackend.supports_device
