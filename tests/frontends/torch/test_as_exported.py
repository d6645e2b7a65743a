"""Models that are taken as torch exports them, without its decompositions; tensors that are changed in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.frontends.torch.source import as_exported, exported, load


class Changed(torch.nn.Module):
    """One tensor under three names, changed by each."""

    def forward(self, x):
        y = x * 2
        z = y.relu_()
        a = y + 1
        z.add_(3)
        b = y * z
        y.mul_(2)
        return a, b, z, y, z + a


class Seen(torch.nn.Module):
    """A view, which shows the change."""

    def forward(self, x):
        y = x * 2
        first = y[0]
        y.add_(1)
        return first + 0, y


class Given(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Halves(torch.nn.Module):
    def forward(self, x):
        a, b = (x * 2).chunk(2, 1)
        a.add_(b)
        return a, b


class Off(torch.nn.Module):
    """A dropout that is off gives what it was given."""

    def forward(self, x):
        y = x * 2
        z = torch.nn.functional.dropout(y, 0.5, False)
        z.add_(1)
        return y, z


class Narrowed(torch.nn.Module):
    """What is added has more digits than the sum, which is rounded once."""

    def forward(self, x):
        y = x.half() * 2
        y.add_(x)
        return y.float()


class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.Flatten(1),
            torch.nn.Dropout(), torch.nn.Linear(64, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        (Changed(), (4, 6), ["relu", "add.Tensor", "mul.Tensor"]),
        (Flat(), (2, 3, 6, 6), ["relu"]),
        (Seen(), (4, 6), None),
        (Given(), (4, 6), None),
        (Halves(), (4, 6), None),
        (Off(), (4, 6), None),
        (Narrowed(), (64, 6), None),
    ],
)
def test_what_others_see_is_decomposed(model, shape, names):
    model, x = model.eval(), torch.randn(shape)
    changed = as_exported(exported(model, (x.clone(),)))
    assert changed is None if names is None else list(changed.values()) == names
    wanted, found = model(x.clone()), weft.compile(model, (x.clone(),))(x.clone())
    for a, b in zip(wanted, found) if isinstance(wanted, tuple) else [(wanted, found)]:
        np.testing.assert_allclose(np.asarray(b), a.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_sizes_that_a_call_tells_are_decomposed():
    x = torch.randn(2, 3, 6, 6)
    program = exported(Flat().eval(), (x,), {"x": {0: torch.export.Dim("n")}})
    assert as_exported(program) is None
    assert [str(v.tensor.dims[0]) for v in load(program).graph.outputs] != ["2"]
