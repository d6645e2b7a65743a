"""NVIDIA GPUs: CUDA C compiled by NVRTC at run time, launched through the driver."""

from weft.targets.cuda.parse import FORMS, local_devices, parse

__all__ = ["FORMS", "local_devices", "parse"]
