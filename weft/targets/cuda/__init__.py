"""NVIDIA GPUs: CUDA C compiled by NVRTC at run time, launched through the driver."""

from __future__ import annotations

from weft.targets.base import Algorithms, DeviceSpec, TargetSpec, later
from weft.targets.cuda.parse import FORMS, local_devices, parse

TARGET = TargetSpec(
    kind="cuda",
    forms=FORMS,
    parse=parse,
    lower=later("weft.targets.cuda.pipeline:lower"),
    schedule=later("weft.targets.cuda.families:default_schedule"),
    intrinsics=later("weft.targets.cuda.pipeline:intrinsics"),
    device=DeviceSpec(
        generate=later("weft.targets.cuda.pipeline:generate"),
        open=later("weft.targets.cuda.device:open_device"),
        machine_codes=later("weft.targets.cuda.device:machine_codes"),
        stages={
            "cuda": (lambda program, target: program.source, "cuda"),
            "ptx": (later("weft.targets.cuda.stages:ptx"), "text"),
            "sass": (later("weft.targets.cuda.stages:sass"), "text"),
        },
    ),
    algorithms=Algorithms(
        attention=later("weft.targets.cuda.attention:attention_proposer"),
        joined=later("weft.targets.gpu.attention_stream:joined"),
        caches=True,
        few_bits=later("weft.targets.gpu.reduction:words_for_few_rows"),
        narrow=later("weft.targets.gpu.reduction:waits_for_weights"),
        groups=later("weft.targets.gpu.groups:group_rows"),
        merged=later("weft.targets.gpu.reduction:merger"),
        streams=later("weft.targets.gpu.reduction:computes_rows"),
    ),
    peaks=later("weft.targets.cuda.peaks:measure"),
    local_devices=local_devices,
)
