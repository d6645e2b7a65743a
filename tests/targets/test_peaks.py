"""The peaks of this machine: that the loops hold what they should, and that they are measured once."""

import json
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from weft.core.errors import TargetError
from weft.core.knobs import knobs
from weft.targets import peaks as kept
from weft.targets.base import fact_text
from weft.targets.cpu import amx, calibrate, peaks
from weft.targets.cpu.machine import CACHE_FILE, core_of
from weft.targets.cpu.parse import native
from weft.targets.registry import find_target


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_loop_holds_nothing_but_multiply_adds_on_registers(dtype):
    machine = peaks.full_width_machine()
    module = llvm.parse_assembly(peaks.fma_ir(dtype))
    lines = [line.split("#")[0].strip() for line in machine.emit_assembly(module).splitlines()]
    loops = [i for i, line in enumerate(lines) if line.startswith((".LBB0_", "LBB0_")) and line.endswith(":")]
    loop = lines[loops[0] + 1 : loops[1] if len(loops) > 1 else None]
    body = loop[: next(i for i, line in enumerate(loop) if line.startswith(("j", "b.", "cbn")))]
    multiply_adds = [line for line in body if line.startswith(("vfmadd", "fmla"))]
    assert len(multiply_adds) == peaks.accumulators() * peaks.UNROLL
    assert not any("(" in line or "[" in line for line in multiply_adds)
    assert len(body) <= len(multiply_adds) + 6


@pytest.mark.parametrize("threads", [1, 2])
def test_the_peak_is_measured(threads):
    assert peaks.fma_peak(threads, seconds=0.05) > 1


def test_junk_is_refused():
    with pytest.raises(ValueError, match="no multiply-add peak for 'int8'; choose from float16, float32"):
        peaks.fma_peak(dtype="int8")
    with pytest.raises(ValueError, match="threads is 0"):
        peaks.fma_peak(threads=0)


def test_copy_bandwidth():
    assert peaks.copy_bandwidth(threads=2, megabytes=8) > 0.1


def test_vector_width():
    assert peaks.vector_bytes() == (find_target("native").vector_bytes or 16)


def test_tiles_are_counted_by_what_vectors_reach(monkeypatch):
    target = find_target("x86_64-unknown-linux-gnu,cpu=sapphirerapids")
    monkeypatch.setattr(amx, "permitted", lambda: True)
    monkeypatch.setattr(peaks, "fma_peak", lambda threads, dtype: {"float32": 100.0, "float64": 50.0}[dtype])
    monkeypatch.setattr(peaks, "copy_bandwidth", lambda threads: 10.0)
    found = peaks.measure(target, 1).gflops
    assert (found["bfloat16"], found["int8"]) == (1600.0, 3200.0)


def test_peaks_are_measured_once_and_kept(tmp_path, monkeypatch):
    rates = [2.0, 5.0, 4.0, 7.0, 1.0]

    def measure(target, threads):
        return kept.Peaks(threads, {"float32": rates.pop(0)}, 3.0)

    monkeypatch.setattr(peaks, "measure", measure)
    target = find_target("native")
    with knobs.override(cache_dir=tmp_path / "new"):
        first = kept.machine_peaks(target, 2)
        assert kept.machine_peaks(target, 2) == first and first.of("float32") == first.of("bfloat16") == 2.0
        assert kept.machine_peaks(target, 1).of("float32") == 5.0
        assert kept.machine_peaks(target, 1, again=True).of("float32") == 5.0  # the better of two measurements
        file = tmp_path / "new" / kept.CACHE_FILE
        assert len(json.loads(file.read_text())) == 2
        for damaged in ("[not json", "[]"):
            file.write_text(damaged)
            found = kept.machine_peaks(target, 2)
            assert kept.machine_peaks(target, 2) == found
    assert rates == []


def test_streams_may_start_anywhere():
    """x86 faults where a vector is said to lie at a multiple of its size, and does not."""
    moved = [line for line in calibrate._load_ir().splitlines() if " load " in line or " store " in line]
    assert len(moved) == 1 + 2 * calibrate.STREAMS and all(line.endswith("align 8") for line in moved)


def test_a_calibrated_machine_chooses_by_what_was_measured(tmp_path, monkeypatch):
    """What `weft doctor --calibrate` keeps is a fact of this machine: in its target, its keys and its costs."""
    monkeypatch.setattr(calibrate, "RUNS", 2)
    monkeypatch.setattr(calibrate, "MOST_BYTES", 8 << 20)
    read = native.__wrapped__  # what was found is remembered otherwise
    with knobs.override(cache_dir=tmp_path / "cache"):
        listed = read()
        assert listed.measured == ()
        found = calibrate.calibrate(listed)
        assert all(number > 0 for number in found.values())
        measured = read()
        assert dict(measured.measured) == found
        assert core_of(measured) == replace(core_of(listed), **found)  # what is not measured is as listed
        assert fact_text(measured) != fact_text(listed)
        file = tmp_path / "cache" / CACHE_FILE
        for damage in ("{", "[]", '{"cpu": "another", "core": {"latency": 9}}',
                       json.dumps({"cpu": listed.cpu, "core": {"latency": -1.0}}),
                       json.dumps({"cpu": listed.cpu, "core": {"nonsense": 1.0}})):  # fmt: skip
            file.write_text(damage)
            assert read().measured == ()
    with pytest.raises(TargetError, match="another machine"):
        calibrate.measure(replace(listed, is_host=False))
