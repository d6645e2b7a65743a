"""Devices with OpenCL, through pyopencl: GPUs of any maker, and processors (PoCL)."""

from __future__ import annotations

from weft.targets.opencl.parse import FORMS, local_devices, parse

__all__ = ["FORMS", "local_devices", "parse"]
