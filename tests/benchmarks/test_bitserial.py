"""Figure 18 in instructions: what the intrinsic saves on an Arm processor, counted by QEMU."""

import pytest

from benchmarks.bitserial import instructions, product
from benchmarks.vdla import LAYERS
from weft.builder import Built, with_arguments
from weft.pool.server import can_count, emulator_of, start_server
from weft.targets.registry import find_target


@pytest.mark.slow
def test_the_intrinsic_saves_instructions_on_arm():
    emulator = emulator_of("aarch64")
    if emulator is None or not can_count(emulator):
        pytest.skip("there is no QEMU that counts: install qemu-user")
    target = find_target("aarch64-unknown-linux-gnu,cpu=cortex-a53")
    layer = next(layer for layer in LAYERS if layer.name == "C8")
    server = start_server("aarch64", counts=True)
    try:
        found = {}
        for tensorized in (True, False):
            s, given = product(layer, tensorized, target)
            built = Built(with_arguments(s.func, given), target, "layer")
            found[tensorized] = [instructions(built, target, server, threads) for threads in (1, 1, 2)]
    finally:
        server.stop()
    for quick, plain in zip(found[True], found[False]):
        assert plain >= 1.5 * quick
    first, again, half = found[True]
    assert first == again and first / 2 <= half < 0.6 * first
