"""The commands on a device: PoCL's, and CUDA without one."""

import json

import pytest

from tests.codegen.c_support import opencl
from weft.cli.main import main
from weft.targets.cuda import driver, nvrtc

onnx = pytest.importorskip("onnx")


@pytest.fixture
def tiny(tmp_path):
    from tests.cli.tiny import write_tiny

    path = tmp_path / "tiny.onnx"
    write_tiny(path)
    return path


@pytest.fixture
def weft(capsys):
    """A function that runs the program: exit code, stdout, stderr."""

    def call(*words):
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def figures(outcome):
    code, out, err = outcome
    assert code == 0, err
    return json.loads(out)


def test_devices_lists_the_devices(weft):
    opencl()
    found = figures(weft("devices", "--json"))["devices"]
    assert found[0]["kind"] == "cpu"
    ours = next(device for device in found if device["name"] == "opencl:0")
    assert ours["memory_bytes"] > 0 and ours["block_threads"] >= 1


def test_run_compile_and_bench_on_a_device(weft, tiny, tmp_path):
    opencl()
    here = figures(weft("run", tiny, "--size", "N=3", "--json"))["outputs"]["y"]
    there = figures(weft("run", tiny, "--size", "N=3", "--target", "opencl", "--json"))["outputs"]["y"]
    assert there["first"] == pytest.approx(here["first"], abs=1e-6) and there["shape"] == [3, 3]
    file = tmp_path / "tiny.weft"
    facts = figures(weft("compile", tiny, "--size", "N=3", "--target", "opencl", "-o", file, "--json"))
    assert facts["target"] == "opencl" and facts["host_nodes"] == 0
    stored = figures(weft("run", file, "--json"))["outputs"]["y"]
    assert stored["first"] == pytest.approx(here["first"], abs=1e-6)
    bench = figures(
        weft("bench", tiny, "--target", "opencl", "--seconds", "0.01", "--against", "interpreter", "--json")
    )
    assert bench["error"] < 1e-6 and bench["times"]["weft"]["minimum_s"] > 0


def test_profile_on_a_device(weft, tiny):
    opencl()
    found = figures(weft("profile", tiny, "--target", "opencl", "--seconds", "0.01", "--json", "-"))
    assert found["kernels"] and all(kernel["minimum_s"] > 0 for kernel in found["kernels"])


def test_inspect_shows_the_code_of_a_device(weft, tiny):
    opencl()
    code, out, _ = weft("inspect", tiny, "--target", "opencl", "--stage", "opencl")
    assert code == 0 and "__kernel" in out
    code, _, err = weft("inspect", tiny, "--target", "opencl", "--stage", "asm")
    assert code == 1 and "its code is shown by opencl" in err
    code, _, err = weft("inspect", tiny, "--stage", "ptx")
    assert code == 1 and "llvm, asm" in err
    code, out, _ = weft("inspect", tiny, "--target", "opencl", "--stage", "loops")
    assert code == 0 and "blockIdx" in out


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_inspect_shows_cuda_without_a_device(weft, tiny):
    code, out, _ = weft("inspect", tiny, "--target", "cuda:sm_90a", "--stage", "cuda")
    assert code == 0 and "__global__" in out
    code, out, _ = weft("inspect", tiny, "--target", "cuda:sm_80", "--stage", "ptx", "--kernel", "0")
    assert code == 0 and ".target sm_80" in out


@pytest.mark.skipif(driver.device_count() > 0, reason="there is a GPU")
def test_running_on_a_device_that_is_not_there(weft, tiny):
    code, _, err = weft("run", tiny, "--target", "cuda")
    assert code == 1 and "driver" in err
    code, _, err = weft("run", tiny, "--target", "opencl:77")
    assert code == 1 and "opencl" in err
