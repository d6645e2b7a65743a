"""Devices with OpenCL, through pyopencl: GPUs of any maker, and processors (PoCL)."""

from __future__ import annotations

from weft.targets.base import Algorithms, DeviceSpec, TargetSpec, later
from weft.targets.opencl.parse import FORMS, local_devices, parse

TARGET = TargetSpec(
    kind="opencl",
    forms=FORMS,
    parse=parse,
    lower=later("weft.targets.gpu.pipeline:lower"),
    schedule=later("weft.targets.gpu.families:default_schedule"),
    device=DeviceSpec(
        generate=later("weft.targets.opencl.device:generate"),
        open=later("weft.targets.opencl.device:open_device"),
        stages={"opencl": (lambda program, target: program.source, "c")},
    ),
    algorithms=Algorithms(attention=later("weft.targets.gpu.attention_stream:attention_proposer")),
    local_devices=local_devices,
)
