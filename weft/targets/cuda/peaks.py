"""What an NVIDIA GPU can do at most: multiply-adds by its clock and the width of its units, copies as measured."""

from __future__ import annotations

import time

from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda.device import CudaDevice, open_device
from weft.targets.peaks import Peaks

COPIED_BYTES = 1 << 28
REPEATS = 20


def measure(target: Target, threads: int) -> Peaks:
    """The peaks of the device that a target stands for."""
    device = open_device(target)
    assert target.threads is not None
    clocks = target.threads.multiprocessors * device.context.attribute("clock_khz") * 1e3
    return Peaks(threads, rates(target.threads, clocks), copy_bandwidth(device))


def rates(machine: ThreadFacts, clocks: float) -> dict[str, float]:
    """GFLOP/s by element type, for so many clocks a second of all multiprocessors together."""
    found = {"float32": machine.lanes * clocks * 2 / 1e9}
    if machine.matrix_products:
        found |= dict.fromkeys(("float16", "bfloat16"), machine.matrix_products * clocks * 2 / 1e9)
        bytes_too = ("int8", *(("float8_e4m3fn", "float8_e5m2") if "float8" in machine.tensor_cores else ()))
        found |= dict.fromkeys(bytes_too, 2 * found["float16"])
    return found


def copy_bandwidth(device: CudaDevice) -> float:
    """GB/s of a large copy on the device, reads and writes both counted."""
    source, target = device.allocate(COPIED_BYTES), device.allocate(COPIED_BYTES)
    best = float("inf")
    for _ in range(5):
        device.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            device.copy(target, source, COPIED_BYTES)
        device.synchronize()
        best = min(best, (time.perf_counter() - begin) / REPEATS)
    return 2 * COPIED_BYTES / best / 1e9
