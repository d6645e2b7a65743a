"""Large weights stay in a model's file until they are wanted."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from weft.frontends.onnx import load
from weft.frontends.onnx.skim import LARGE, skim


def model(*arrays, name="w"):
    """A sum of constants; the first is the largest."""
    names = [f"{name}{at}" for at in range(len(arrays))]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Sum", ["x", *names], ["y"])],
            "sums",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, arrays[0].shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, one) for array, one in zip(arrays, names)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )


LARGE_ARRAY = np.arange(LARGE // 4, dtype=np.float32).reshape(-1, 64)


@pytest.mark.parametrize("name", ["w", "ww", "www", "wwww"])  # raw data at four different places behind an alignment
def test_weights_read_from_their_place_are_the_same(tmp_path, name):
    arrays = [LARGE_ARRAY, np.ones(64, np.float32), -LARGE_ARRAY]
    path = tmp_path / "model.onnx"
    onnx.save(model(*arrays, name=name), path)
    skimmed = onnx.ModelProto.FromString(skim(path.read_bytes()))
    assert [bool(tensor.external_data) for tensor in skimmed.graph.initializer] == [True, False, True]
    assert len(skim(path.read_bytes())) < 2000
    link = tmp_path / "link.onnx"  # as the cache folders of model hubs have them
    link.symlink_to(path)
    for found in (load(path), load(link)):
        constants = {value.name: array for value, array in found.constants.items()}
        for at, array in enumerate(arrays):
            np.testing.assert_array_equal(constants[f"{name}{at}"], array)


@pytest.mark.parametrize("end", [-1, LARGE // 2, 20])
def test_a_truncated_file_is_refused_as_before(tmp_path, end):
    path = tmp_path / "model.onnx"
    path.write_bytes(model(LARGE_ARRAY).SerializeToString()[:end] + b"\0" * (0 if end < 0 else LARGE))
    with pytest.raises(Exception, match="is no ONNX model, or a damaged one"):
        load(path)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is read from /proc")
def test_a_compile_holds_weights_twice(tmp_path):
    """Once as the file has them, once as the kernel wants them."""
    size = 6000
    weights = np.full((size, size), 1 / 3, np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, size))]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, size))]
    graph = helper.make_graph(nodes, "gemm", inputs, outputs, [numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    for cached in "01":
        program = (
            f"import os; os.environ.update(WEFT_CACHE={cached!r}, WEFT_CACHE_DIR={str(tmp_path / 'cache')!r})\n"
            "import numpy, weft\n"
            f"module = weft.compile({str(path)!r})\n"
            f"numpy.testing.assert_allclose(module(numpy.ones((1, {size}), 'float32')), {size / 3}, rtol=1e-4)\n"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        # A process that has compiled something small takes 150 MB on x86, less elsewhere.
        assert int(done.stdout) << 10 < 2 * weights.nbytes + 200e6, f"{int(done.stdout) >> 10} MB, cache {cached}"
