"""Families of models against eager torch, through both doors; and one normal form with Weft's own builder."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402

import weft  # noqa: E402
import weft.torch_backend  # noqa: E402, F401  (registers the backend)
from tests.frontends.torch import zoo  # noqa: E402
from tests.frontends.torch.opinfo import interpreted, operators, outcome  # noqa: E402

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
