"""Devices with OpenCL, through pyopencl: GPUs of any maker, and processors (PoCL)."""

from __future__ import annotations

from weft.targets.opencl.parse import FORMS, parse

__all__ = ["FORMS", "parse"]
