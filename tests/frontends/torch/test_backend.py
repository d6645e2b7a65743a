"""torch.compile(model, backend="weft"): follows changes of weights and sizes, and says what it leaves to PyTorch."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from weft import torch_backend  # noqa: E402
from weft.frontends.torch.table import CONVERTERS  # noqa: E402
from weft.torch_backend import FallbackWarning  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_backend._said.clear()
    yield
    torch._dynamo.reset()


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x, more=1):
        return {"y": torch.relu(self.norm(self.linear(x))) * more, "rows": x.shape[0]}


def agree(compiled, model, *args):
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args))


def test_the_backend_is_known_by_its_name():
    assert "weft" in torch._dynamo.list_backends()


def test_results_follow_sizes_and_weights(monkeypatch):
    made = []
    build = torch_backend._Compiled._build
    monkeypatch.setattr(torch_backend._Compiled, "_build", lambda self, args: (made.append(self), build(self, args)))
    model = Small().eval()
    compiled = torch.compile(model, backend="weft", dynamic=True, options={"threads": 1})
    for rows in (3, 5, 3):
        agree(compiled, model, torch.randn(rows, 4))
    assert len(made) == 1, "one graph for all sizes"
    for _ in range(2):
        with torch.no_grad():
            model.linear.weight.mul_(2)
        agree(compiled, model, torch.randn(3, 4))
    assert len(made) == 2, "a weight that changed is an input from then on"


def test_sums_of_several_open_sizes():
    def function(x, y, z):
        joined = torch.cat([x, y, z], 1)
        return joined.reshape(joined.shape[1], -1) * 2

    compiled = torch.compile(function, backend="weft", dynamic=True, options={"threads": 1, "fallback": False})
    for more in (0, 2):
        agree(compiled, function, *(torch.randn(2, size + more) for size in (3, 4, 5)))


def test_graph_breaks_and_views():
    def function(x):
        y = x.t() + 1
        torch._dynamo.graph_break()
        y.add_(1)
        return y, x[0], y.reshape(-1), y.t().view(-1), torch.stack([x, x]).permute(2, 0, 1)[1:]

    compiled = torch.compile(function, backend="weft")
    agree(compiled, function, torch.randn(2, 3))


def test_training_is_left_to_pytorch_and_said_once():
    model = Small().eval()
    compiled = torch.compile(model, backend="weft")
    with pytest.warns(FallbackWarning, match="inference only"):
        compiled(torch.randn(2, 4))["y"].sum().backward()
    assert model.linear.weight.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        compiled(torch.randn(2, 4))
    with torch.inference_mode():
        compiled(torch.randn(2, 4))


def test_unknown_operators_are_left_to_pytorch_and_said_once():
    def function(x):
        return torch.special.bessel_j0(x) + 1

    compiled = torch.compile(function, backend="weft")
    with pytest.warns(FallbackWarning, match="special_bessel_j0 is not known; used in .*test_backend.py"):
        agree(compiled, function, torch.randn(3))
    agree(compiled, function, torch.randn(3))
    torch._dynamo.reset()
    strict = torch.compile(function, backend="weft", options={"fallback": False})
    with pytest.raises(Exception, match="special_bessel_j0"):
        strict(torch.randn(3))


def test_a_fault_of_wefts_is_left_to_pytorch_and_said_once(monkeypatch):
    monkeypatch.setitem(CONVERTERS, "erf", lambda c, x: x.nothing)

    def function(x):
        return torch.erf(x) + 1

    compiled = torch.compile(function, backend="weft")
    said = "converter of aten.erf failed .used in .*test_backend.py:.*AttributeError.*bug in Weft"
    with pytest.warns(FallbackWarning, match=said):
        agree(compiled, function, torch.randn(3))
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        agree(torch.compile(function, backend="weft"), function, torch.randn(3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="converter of aten.erf failed"):
        torch.compile(function, backend="weft", options={"fallback": False})(torch.randn(3))


def test_a_target_that_does_not_exist_is_an_error():
    with pytest.raises(Exception, match="nowhere"):
        torch.compile(torch.sin, backend="weft", options={"target": "nowhere"})(torch.zeros(2))


@pytest.mark.parametrize(
    ("given", "said"),
    [({"options": {"thread": 2}}, "did you mean 'threads'"), ({"mode": "reduce-overhead"}, "one of inductor's")],
)
def test_options_are_checked(given, said):
    with pytest.raises(Exception, match=said):
        torch.compile(torch.sin, backend="weft", **given)(torch.zeros(2))
