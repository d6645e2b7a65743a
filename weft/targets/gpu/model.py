"""How long a machine with threads works on a tile: what sketches estimate with, and the numbers that a fit may replace.

Facts about a machine stand in its `ThreadFacts`. The numbers of a `Model` are for instructions, and for what no vendor
tells. Those below are for a machine that nobody has measured: round numbers, a power of two where that is the nature of
a thing. A target whose machine was measured has a file of its own with the fit (`weft/targets/cuda/model.py`).
Everything is over columns of points (`weft/plan/sketch.py`), in cycles of a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.targets.base import ThreadFacts


@dataclass(frozen=True)
class Model:
    """What steps of a schedule cost: of a product in registers, of attention, of any kernel."""

    fetch_vector: float = 1.0
    """What it costs a thread to fetch one element into shared memory with its neighbours, in instructions' time."""
    fetch_plain: float = 1.0
    """The same of an element by itself."""
    fetch_gather: float = 16.0
    """The same of an element whose place has to be worked out."""
    load: float = 14.0
    """What a load of four of a thread's x from shared memory costs, in instructions' time."""
    broadcast: float = 2.5
    """The same of its y, which neighbours have in common."""
    step_instructions: float = 90.0
    """Of a step of k beside the arithmetic: the loop's own."""
    step_cycles: float = 24.0
    """Waiting at the barrier of a step."""
    latency: float = 400.0
    """Cycles until a fetch is there, ahead of its use in a pipeline."""
    latency_alone: float = 900.0
    """The same of a fetch that is waited for at once."""
    chain: float = 0.5
    """How the chain of a lone block's instructions counts."""
    fetch_chain: float = 0.25
    """How that of its fetches counts besides."""
    busy_warps: float = 16.0
    """With fewer warps on a multiprocessor than this, its units are not busy all the time."""
    busy_power: float = 0.45
    start: float = 300.0
    """Cycles before the first step and after the last: the launch, the first fetch, writing out."""
    wave: float = 0.75
    """Cycles of the shared memory for 128 bytes."""
    registers: int = 16
    """What a thread needs beside its accumulators and operands."""
    launch: float = 4000.0
    """Cycles of a kernel beside its work: until it begins, and until the next one may."""
    memory: float = 32.0
    """Bytes that one multiprocessor gets in one cycle, when all of them ask."""
    attention_product: float = 1.25
    """Instructions' time of a multiplication of attention."""
    query_loads: float = 2.5
    """What loads for it cost, which all the keys of a thread share."""
    key_loads: float = 1.0
    """What loads for it cost, which all the queries of a thread share."""
    attention_busy: tuple[float, float] = (8.0, 0.4)
    """As `busy_warps` and `busy_power`."""
    attention_start: float = 1500.0
    attention_tile: float = 450.0
    """Of each tile of keys that a block waits for: half of that where the next one is fetched ahead."""
    attention_registers: int = 168


NEUTRAL = Model()
MOST_BLOCKS = 32
"""Blocks that a multiprocessor holds, at most."""
BLOCK_SHARED = 1024
"""Bytes of shared memory that a block takes besides its own."""
USUAL_REGISTERS = 65536
"""32-bit registers of a multiprocessor, where a machine does not tell."""


def model_of(machine: ThreadFacts) -> Model:
    """The numbers that were fitted to a machine, or the neutral ones."""
    found: Model = machine.model if machine.model is not None else NEUTRAL
    return found


def ceildiv(a: Any, b: Any) -> Any:
    """a / b rounded up, of columns."""
    return -(-a // b)


def resident_blocks(machine: ThreadFacts, threads: Any, registers: Any, shared: Any) -> Any:
    """Blocks that a multiprocessor holds at a time, of so many threads, registers of each, and bytes they share."""
    by_threads = machine.multiprocessor_threads // threads
    by_registers = (machine.registers or USUAL_REGISTERS) // (threads * registers)
    by_shared = machine.multiprocessor_shared_bytes // (shared + BLOCK_SHARED)
    return np.clip(np.minimum(np.minimum(by_threads, by_registers), by_shared), 1, MOST_BLOCKS)


def seconds(cycles: Any, machine: ThreadFacts) -> Any:
    """The time of so many cycles."""
    return cycles / (machine.gigahertz * 1e9)
