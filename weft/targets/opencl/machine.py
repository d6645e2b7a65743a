"""What is known about OpenCL's devices: what each tells, and what none does.

OpenCL tells no registers, clocks or rates; a warp, and how many threads a multiprocessor holds, are judgements by the
kind of device. Schedules are estimated with the neutral numbers of `weft/targets/gpu/model.py`.
"""

from __future__ import annotations

from typing import Any

from weft.targets.base import ThreadFacts

GENERIC = ThreadFacts(
    multiprocessors=8, warp=32, block_threads=256, multiprocessor_threads=1024, shared_bytes=32 << 10,
    multiprocessor_shared_bytes=64 << 10, registers=0, cache_bytes=1 << 20,
)  # fmt: skip
"""A device that nobody has named: what most have."""

NAMED = {
    "mali-t860": (ThreadFacts(multiprocessors=4, warp=4, block_threads=256, multiprocessor_threads=256,
                              shared_bytes=32 << 10, multiprocessor_shared_bytes=32 << 10, registers=0,
                              cache_bytes=256 << 10), {"fp16", "fp64"}),
    "mali-g76": (ThreadFacts(multiprocessors=10, warp=8, block_threads=384, multiprocessor_threads=768,
                             shared_bytes=32 << 10, multiprocessor_shared_bytes=32 << 10, registers=0,
                             cache_bytes=2 << 20), {"fp16"}),
    "adreno-650": (ThreadFacts(multiprocessors=3, warp=64, block_threads=1024, multiprocessor_threads=2048,
                               shared_bytes=32 << 10, multiprocessor_shared_bytes=32 << 10, registers=0,
                               cache_bytes=128 << 10), {"fp16"}),
}  # fmt: skip
"""GPUs of phones and boards to compile for, and their features, as far as owners have shown what clinfo says of them:

    mali-t860     RK3399: local memory of 32 KB that is main memory, fp16, fp64 (github.com/plaidml/plaidml/issues/182);
                  groups of 256 of its sibling T628 (…/227). Midgard has no warps: 4 is the width of a vector
    mali-g76      Kirin 980; a warp of 8 (anandtech.com/show/12834); groups of 384 and local memory that is main memory
                  of its sibling G52 (github.com/ARM-software/ComputeLibrary/issues/999)
    adreno-650    Snapdragon 865: 3 units (github.com/xmrig/xmrig/issues/2383); local memory of 32 KB of other Adrenos

No source was found for caches, for threads of a multiprocessor (Arm 100614 says up to 384 of Midgard), nor for the
Adreno's warp and groups: those are judgements. Nothing was measured on them here."""


def device_facts(device: Any) -> ThreadFacts:
    """The facts about a device of pyopencl's."""
    import pyopencl

    is_gpu = bool(device.type & pyopencl.device_type.GPU)
    block_threads = int(min(device.max_work_group_size, device.max_work_item_sizes[0]))
    local = int(device.local_mem_size)
    return ThreadFacts(
        multiprocessors=int(device.max_compute_units), warp=32 if is_gpu else 8, block_threads=block_threads,
        multiprocessor_threads=block_threads * (2 if is_gpu else 1), shared_bytes=local,
        multiprocessor_shared_bytes=local, registers=0, cache_bytes=int(device.global_mem_cache_size),
    )  # fmt: skip
