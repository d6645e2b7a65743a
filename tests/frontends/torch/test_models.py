"""Families of models against eager torch, through both doors; and one graph for both ways to export."""

import io
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402

import weft  # noqa: E402
import weft.torch_backend  # noqa: E402, F401  (registers the backend)
from tests.frontends.torch import zoo  # noqa: E402
from tests.frontends.torch.opinfo import interpreted, operators, outcome  # noqa: E402
from weft.compiler.passes import optimize  # noqa: E402
from weft.frontends.torch import load  # noqa: E402
from weft.graph.structural import structure_key  # noqa: E402

ACCURACY = 1e-5


def distance(found, wanted):
    pairs = list(zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True))
    assert all(one.dtype == other.dtype and one.shape == other.shape for one, other in pairs)
    return max((one - other).abs().max().item() for one, other in pairs)


@pytest.mark.parametrize("family", [zoo.resnet, zoo.swin, zoo.bert, zoo.lstm, zoo.unet], ids=lambda f: f.__name__)
def test_families_mean_what_torch_says(family):
    model, inputs = zoo.make(family)
    with torch.no_grad():
        assert distance(interpreted(model, inputs), model(*inputs)) < ACCURACY


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.MODELS, ids=lambda f: f.__name__)
def test_families_compile(family):
    model, inputs = zoo.make(family)
    with torch.no_grad():
        wanted = model(*inputs)
        assert distance(weft.compile(model, inputs)(*inputs), wanted) < ACCURACY
        torch._dynamo.reset()
        assert distance(torch.compile(model, backend="weft")(*inputs), wanted) < ACCURACY


ONE_FORM = [
    zoo.resnet,
    zoo.mobilenet_v2,
    zoo.mobilenet_v3,
    zoo.densenet,
    zoo.convnext,
    zoo.lstm,
    zoo.gru,
    zoo.dcgan,
    zoo.dqn,
]


@pytest.mark.parametrize("family", ONE_FORM[:1] + ONE_FORM[5:6], ids=lambda f: f.__name__)
def test_both_doors_give_one_graph(family):
    """torch.export and torch's exporter to ONNX: after the passes the same nodes, so the same kernels."""
    check_one_form(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ONE_FORM, ids=lambda f: f.__name__)
def test_both_doors_give_one_graph_for_more_families(family):
    check_one_form(family)


def check_one_form(family):
    pytest.importorskip("onnx")
    from weft.frontends.onnx import load as load_onnx

    model, inputs = zoo.make(family)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no package besides onnx is the one of old
        torch.onnx.export(model, inputs, file, dynamo=False)
    doors = (load(model, inputs).graph, load_onnx(file.getvalue()))
    exported, onnx = (optimize(graph, {}, {}) for graph in doors)
    assert structure_key(exported) == structure_key(onnx), f"{exported}\n{onnx}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_torchs_own_samples_are_right_or_refused():
    """One sample of every operator that torch has samples for; `python -m tests.frontends.torch.opinfo` takes more."""
    wrong, right = [], 0
    for op in operators():
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)), None)
        said = "none" if sample is None else outcome(op, [sample])
        right += said == "right"
        wrong += [f"{op.name}: {said}"] * said.startswith("wrong")
    assert not wrong, "\n".join(wrong)
    assert right >= 450
