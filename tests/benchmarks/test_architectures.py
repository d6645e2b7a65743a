"""The table of architectures: which models it has, how one is judged, and that a run goes on where another ended."""

import argparse
import importlib.util
import json

import pytest

from benchmarks import architectures

torch = pytest.importorskip("torch")


def options(**given):
    plain = {"only": [], "few": False, "share": "1/1", "json": None, "threads": 1, "door": "export", "seconds": 0.1}
    return argparse.Namespace(**{**plain, "speed": False, "limit": 600, **given})


def test_there_are_many_and_a_few_of_each():
    names = architectures.names()
    assert len(set(names)) == len(names) and sum(one.startswith("timm/") for one in names) >= 95
    assert sum(not one.startswith("timm/") for one in names) >= 60
    few = list(architectures.chosen(options(few=True)))
    assert len(few) == 25 + len(architectures.BUILT_IN.split())


def test_parts_make_the_whole_and_what_is_known_is_kept(tmp_path):
    parts = [list(architectures.chosen(options(share=f"{part}/3"))) for part in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(architectures.names())
    found = tmp_path / "found.jsonl"
    found.write_text(json.dumps({"name": "encoder/bert", "outcome": "right"}) + "\n")
    left = list(architectures.chosen(options(only=["bert"], json=found)))
    assert "encoder/bert" not in left and "encoder/roberta" in left


def test_answers_are_compared_with_their_greatest_element():
    wanted = torch.tensor([100.0, 1e-3])
    assert architectures.compared([wanted], [wanted + 0.005])["outcome"] == "right"
    assert architectures.compared([wanted], [wanted + 0.05])["outcome"] == "wrong"
    assert architectures.compared([wanted], [wanted.double()])["outcome"] == "wrong"
    assert architectures.compared([wanted], [torch.tensor([100.0, torch.nan])])["outcome"] == "wrong"
    hidden = torch.tensor([1.0, -torch.inf])
    assert architectures.compared([hidden], [hidden])["outcome"] == "right"
    assert architectures.compared([hidden], [torch.tensor([1.0, 0.0])])["outcome"] == "wrong"
    assert architectures.compared([torch.tensor([3])], [torch.tensor([4])])["outcome"] == "wrong"


def test_the_summary_counts_what_can_be_asked_for():
    outcomes = ["right", "right", "right", "refused", "no export", "not built"]
    rows = [{"name": str(at), "outcome": one} for at, one in enumerate(outcomes)]
    assert architectures._summary(rows).startswith("3 of 4 right (75.0 %)")


def test_built_in_models_are_modules_of_pytorch():
    model, inputs = architectures.made("weft/dqn")
    (found,) = model(*inputs)
    assert found.isfinite().all() and found.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("door", ["export", "torch.compile"])
@pytest.mark.parametrize("name", ["timm/tinynet_e", "timm/vit_tiny_patch16_224", "encoder/bert", "decoder/llama"])
def test_models_are_right(name, door):
    package = "timm" if name.startswith("timm") else "transformers"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    row = architectures.apart(name, options(door=door))
    assert row["outcome"] == "right", row
