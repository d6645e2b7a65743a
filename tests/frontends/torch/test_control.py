"""Control flow of torch's (cond, while_loop, scan, map), and operators that somebody gave a meaning."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from tests.frontends.torch.opinfo import compare, interpreted  # noqa: E402
from weft.core.errors import FrontendError  # noqa: E402
from weft.graph.opspec import _OF_USERS, _TABLE  # noqa: E402


class Control(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        from torch._higher_order_ops.map import map as map_rows
        from torch._higher_order_ops.scan import scan

        a, b = torch.cond(x.sum() > 0, lambda x: (self.linear(x), x + 1), lambda x: (x * 2, x - 1), (x,))
        first = (torch.zeros((), dtype=torch.int64), a)
        turns, y = torch.while_loop(lambda i, y: (i < 5) & (y.sum() < 1e3), lambda i, y: (i + 1, y * 1.5 + x), first)
        state, rows = scan(lambda c, row: (c + row, (c * row).clone()), torch.zeros(4), x)
        return turns, y, state, rows, map_rows(lambda row, z: row * 2 + z, x, b)


def test_branches_and_loops():
    model, x = Control().eval(), torch.rand(3, 4)
    program = torch.export.export(model, (x,), strict=False)
    with torch.no_grad():
        for given in (x, -x):
            assert compare(model(given), interpreted(program, (given,))) == "right"


@pytest.fixture
def forgotten():
    """What a test registers is forgotten after it."""
    yield
    for key in [key for key in _OF_USERS if key[0] in ("doors", "aten")]:
        _OF_USERS.discard(key)
        _TABLE.pop(key)


@torch.library.custom_op("doors::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float = 1.0) -> torch.Tensor:
    return limit * torch.tanh(x / limit)


@soft_clip.register_fake
def _(x, limit=1.0):
    return torch.empty_like(x)


class Custom(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(soft_clip(x * 2, limit=3.0)) + 1


def test_operators_of_others_run_as_somebody_says(forgotten):
    model, x = Custom(), torch.linspace(-5, 5, 6).reshape(2, 3)
    with pytest.raises(FrontendError) as refused:
        weft.compile(model, (x,))
    said = str(refused.value)
    assert "weft.register_op('soft_clip', function, domain='doors')" in said
    assert "weft.register_op('special_bessel_j0', function, domain='aten')" in said
    seen = []

    def clipped(c, x):
        seen.append(c.get("limit"))
        return c.get("limit") * np.tanh(x / np.float32(c.get("limit")))

    weft.register_op("soft_clip", clipped, domain="doors")
    weft.register_op("special_bessel_j0", lambda c, x: torch.special.bessel_j0(torch.tensor(x)).numpy(), domain="aten")
    with pytest.warns(weft.HostWarning):
        compiled = weft.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x))
    assert seen == [3.0]
