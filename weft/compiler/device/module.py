"""A compiled model on a device: arrays of the host or of the device in, results where the inputs were.

m = weft.compile(graph, target="cuda")
y = m(x)                                  numpy in, numpy out: copied there and back
y = m(x)                                  an array on the device (torch, cupy, ours): nothing is copied or waited for
ys = m.queue({"x": x}, stream=s)          in a stream of the caller's; DeviceArrays out, at once
bound = m.bind({"x": x})                  inputs and outputs at fixed places: bound.launch() is one driver call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.device.arrays import DeviceArray, is_on_device, on_device
from weft.compiler.device.runner import ALIGNMENT, DeviceRunner
from weft.core.errors import ArgumentError
from weft.graph.ir import dtype_name
from weft.runtime.model.module import Module
from weft.runtime.threads import get_threads


class DeviceModule(Module):
    """A compiled model on a device."""

    def to_device(self, array: Any) -> DeviceArray:
        """A copy of an array of the host in the device's memory."""
        device = self.target.device()
        given = np.ascontiguousarray(array)
        memory = device.allocate(given.nbytes)
        device.write(memory, given)
        return DeviceArray(device, memory, np.shape(array), dtype_name(given.dtype))

    def queue(
        self, feeds: Mapping[str, Any], stream: Any = None, out: Sequence[Any] | None = None
    ) -> list[DeviceArray]:
        """Queues a run in a stream (the device's own, for None) and returns at once.

        `out` gives an array on the device for each output, of its type and shape: the results are written there.
        """
        self._check_named(feeds)
        device = self.target.device()
        wanted = None if stream is None else device.stream_of(stream)
        arrays = self._bind_on(feeds, wanted)
        found = self._specialization(arrays)
        self._warn(found)
        runner: DeviceRunner = found.runner
        given = None if out is None else self._outputs_on(out, arrays, wanted, _updated(runner))
        return runner.queue(arrays, self.threads or get_threads(), wanted, given)

    def bind(self, feeds: Mapping[str, Any], stream: Any = None, in_place: bool = False) -> Bound:
        """The model with inputs at fixed places of the device: those given, or copies of arrays of the host.

        `in_place`: outputs that are an input with some rows changed (the caches of a decoder) lie where the input does.
        """
        self._check_named(feeds)
        placed = {name: array if is_on_device(array) else self.to_device(array) for name, array in feeds.items()}
        return Bound(self, placed, stream, in_place)

    def _run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None
    ) -> list[Any]:
        first = next((array for array in feeds.values() if is_on_device(array)), None)
        if first is None:
            return super()._run(output_names, feeds, out)
        stream = None if isinstance(first, DeviceArray) else self.target.device().stream_near(first)
        if out is not None and output_names is not None:
            raise ArgumentError("arrays on the device as out are for all outputs: leave the names of outputs away")
        made = self.queue(feeds, stream, out)
        if out is not None:
            return list(out)
        is_torch = type(first).__module__.split(".")[0] == "torch"
        return [_as_torch(made[at]) if is_torch else made[at] for at in self._places(output_names)]

    def _bind_on(self, feeds: Mapping[str, Any], stream: Any) -> list[Any]:
        """The inputs: arrays on the device as they are, arrays of the host checked as always."""
        device = self.target.device()
        there = {name: given for name, given in feeds.items() if is_on_device(given)}
        stand_ins: dict[str, Any] = {}
        for name, given in there.items():
            try:
                there[name] = on_device(given, device, stream)
            except ArgumentError as error:
                raise ArgumentError(f"input {name!r}: {error}") from None
            stand_ins[name] = np.broadcast_to(np.zeros((), there[name].dtype), there[name].shape)
        arrays, _ = self._bind({**feeds, **stand_ins})
        bound = self._executor.bound_inputs
        placed = []
        for at, (port, array) in enumerate(zip(self.inputs, arrays)):
            given = there.get(port.name, array)
            placed.append(given.numpy() if at in bound and isinstance(given, DeviceArray) else given)
        return placed

    def _specialization(self, arrays: Sequence[Any]) -> Any:
        """The compiled form; of an array on the device only shape and type matter."""
        return self._executor.specialization(
            [np.broadcast_to(np.zeros((), a.dtype), a.shape) if isinstance(a, DeviceArray) else a for a in arrays]
        )

    def _outputs_on(
        self, out: Sequence[Any], inputs: Sequence[Any], stream: Any, updated: Mapping[int, int]
    ) -> list[DeviceArray]:
        """The arrays for outputs, checked; `updated`: the input that an output may have the memory of."""
        if not isinstance(out, (list, tuple)) or len(out) != len(self.outputs):
            raise ArgumentError(f"out takes one array on the device for each of {len(self.outputs)} outputs")
        found = [on_device(array, self.target.device(), stream) for array in out]
        for at, (port, array) in enumerate(zip(self.outputs, found)):
            sizes = array.shape if port.shape is None else port.shape
            fits = len(sizes) == array.ndim and all(
                not isinstance(d, int) or d == n for d, n in zip(sizes, array.shape)
            )
            if not fits or array.dtype_name != port.dtype:
                raise ArgumentError(
                    f"output {port.name!r} is {port.dtype}{list(sizes)}; the array given for it is {array!r}"
                )
            if (array.device.address(array.memory) or 0) % ALIGNMENT:
                raise ArgumentError(
                    f"out for {port.name!r} must begin at a multiple of {ALIGNMENT} bytes: it is a view"
                )
            mine = updated.get(at)  # which may be the same array, not another one that meets it
            rest = [one for number, one in enumerate(inputs) if number != mine or not _is_same(one, array)]
            others = [one for one in (*rest, *found[:at]) if isinstance(one, DeviceArray)]
            if any(array.meets(other) for other in others):
                raise ArgumentError(f"out for {port.name!r} shares memory with an input or another output")
        return found


def _is_same(one: Any, other: DeviceArray) -> bool:
    """Whether an input is an array at the very place of another."""
    return (
        isinstance(one, DeviceArray)
        and one.meets(other)
        and (
            one.memory is other.memory
            or (one.device.address(one.memory) == other.device.address(other.memory) is not None)
        )
    )


def _updated(runner: DeviceRunner) -> dict[int, int]:
    """For outputs that are an input with some rows changed: which input."""
    program = runner.program
    return {program.outputs.index(made): program.inputs.index(given) for given, made in program.updates}


class Bound:
    """A model with its inputs and outputs at fixed places: `launch` queues a run, `outputs` is where results appear."""

    def __init__(self, module: DeviceModule, feeds: Mapping[str, Any], stream: Any, in_place: bool = False) -> None:
        self.module, self.stream = module, stream
        self.inputs = dict(feeds)
        self.outputs = module.queue(feeds, stream)
        self._device = module.target.device()
        if in_place:
            self._lay_in_place(feeds)
        queue = None if stream is None else self._device.stream_of(stream)
        self._arrays = module._bind_on(feeds, queue)
        self._runner: DeviceRunner = module._specialization(self._arrays).runner
        self._launch = self._runner.bound(self._arrays, self.outputs, queue)

    def _lay_in_place(self, feeds: Mapping[str, Any]) -> None:
        """Outputs that update an input are it: the first run, into memory of their own, changed nothing."""
        module = self.module
        arrays = module._bind_on(feeds, None if self.stream is None else self._device.stream_of(self.stream))
        for at, given in _updated(module._specialization(arrays).runner).items():
            if isinstance(arrays[given], DeviceArray):
                self.outputs[at] = arrays[given]

    def launch(self) -> None:
        """Queues a run: one launch where no node runs on the host."""
        self._launch()

    def calls(self) -> tuple[list[list[Any]], Any] | None:
        """The launches of each kernel's call, and what they need alive; None where it is no single step."""
        return self._runner.calls(self._arrays, self.outputs)

    def synchronize(self) -> None:
        """Waits until the results are there."""
        self._device.synchronize(None if self.stream is None else self._device.stream_of(self.stream))


def _as_torch(array: DeviceArray) -> Any:
    import importlib

    return importlib.import_module("torch").from_dlpack(array)
