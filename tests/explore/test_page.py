"""The data of a page say what the compiler did, and the file that holds them is only data and our own script."""

import base64
import hashlib
import inspect
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.cli.main import main
from weft.compiler.kernels.build import lift_scheduled
from weft.core.knobs import knobs
from weft.explore import explore, page, stages
from weft.explore.graphs import node_data
from weft.explore.kernels import delta
from weft.explore.page import clean, plain
from weft.explore.stages import kernels
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.history import watching
from weft.models.builder import Builder
from weft.schedule.trace import Trace

HOSTILE = '</script><script>alert("1")</script>{{script}}\u202e\ud800&lt;'


def small(name="small"):
    """conv + batch norm + relu, a residual, a product."""
    b = Builder(name, seed=1)
    x = b.input("image", (1, 8, 12, 12))
    y = b.relu(b.batch_norm(b.conv(x, 8, 8, kernel=3, pad=1), 8))
    z = b.relu(b.node("Add", b.conv(y, 8, 8, kernel=3, pad=1), y))
    return b.finish(b.linear(b.pooled(z), 8, 4), names=["logits"])


@pytest.fixture(scope="module")
def compiled():
    with knobs.override(cache=False), watching() as history:
        module = weft.compile(small())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.compiler.reports.profile.has_peaks", lambda target: False)  # to measure them takes seconds
        return module, history, explore(module, module.profile(seconds=0.01), history)


def pieces(text):
    """The data of a page, as its script reads them."""
    found = re.findall(r'<script type="text/plain" id="data-\d+">([^<]*)</script>', text)
    return [json.loads(zlib.decompress(base64.b64decode(one))) for one in found]


def program(data, steps):
    """The lines of the loop program after so many steps, as the script puts them together."""
    now = data["first"]
    for step in data["steps"][:steps]:
        top, end, middle = step["delta"]
        now = [*now[:top], *middle, *now[len(now) - end :]]
    return "\n".join(data["lines"][line] for line in now)


def test_the_steps_lead_to_the_loops_that_were_compiled(compiled):
    module, _, page = compiled
    for one, kernel in zip(kernels(module), page.kernels):
        steps = kernel["steps"]
        assert steps["steps"] and not steps["problem"]
        last = program(steps, len(steps["steps"]))
        made = stages.program(one)
        fixed = [buffer for value, buffer in made.inputs if value in one.graph.constants]
        made.schedule.replay(Trace(one.launch.kernel.trace.steps[len(made.schedule.trace) :]))
        assert last == repr(made.schedule.func).rstrip(), one.title
        scheduled = one.launch.kernel.scheduled
        lifted = lift_scheduled(made, fixed).func.replace(name=scheduled.name, annotations=scheduled.annotations)
        assert repr(lifted) == repr(scheduled), "borders and packed constants are all that comes after the steps"
        assert program(steps, 0) != last


def test_every_pass_that_changed_something_is_there_with_its_reason(compiled):
    _, history, page = compiled
    runs = page.index["passes"]["runs"]
    assert [run["name"] for run in runs if run["name"] == "fold_batch_norm"]
    assert all(run["reason"] for run in runs) and len(runs) <= len(history.runs)
    folded = next(run for run in runs if run["name"] == "fold_batch_norm")
    assert folded["nodes"][1] < folded["nodes"][0]
    assert folded["rewrites"][0]["nodes"][0][0] == "BatchNormalization"
    lines, graphs = page.index["passes"]["lines"], page.index["passes"]["graphs"]
    before, after = ("\n".join(lines[line] for line in graphs[folded[end]]) for end in ("from", "to"))
    assert "BatchNormalization(" in before and "BatchNormalization(" not in after


def test_rows_are_what_runs_with_its_times(compiled):
    module, _, page = compiled
    rows = page.index["rows"]
    launches = module.specializations[0].launches
    assert [row["label"] for row in rows if row["kind"] == "kernel"] == [x.kernel.label for x in launches]
    assert all(row["seconds"] > 0 for row in rows if row["kind"] == "kernel")
    reached = {row["kernel"] for row in rows if row["kind"] == "kernel"}
    assert reached == set(range(len(page.kernels))), "every kernel is on the page, and called"


def test_the_plan_has_rivals_that_cost_no_less(compiled):
    _, _, page = compiled
    taken = [one for kernel in page.kernels for one in kernel["tried"] if one["cost"] and not one["refused"]]
    assert any(one["rivals"] for one in taken)
    for one in taken:
        costs = [one["cost"], *(cost for _, _, cost in one["rivals"])]
        assert costs == sorted(costs)


def test_values_of_the_arena_do_not_overlap(compiled):
    _, _, page = compiled
    memory = page.index["memory"]
    assert memory["lives"] and memory["arena"] <= memory["unshared"]
    for a in memory["lives"]:
        assert a["offset"] + a["bytes"] <= memory["arena"] and a["first"] <= a["last"]
        for b in memory["lives"]:
            if a["first"] < b["first"] <= a["last"] and b["first"] != a["last"]:
                assert a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]


def test_nodes_lead_to_the_kernels_that_compute_them(compiled):
    module, _, page = compiled
    nodes = page.index["nodes"]
    assert [node["name"] for node in nodes] == [node.name for node in module.graph.nodes]
    norm = next(node for node in nodes if node["op"] == "BatchNormalization")
    assert norm["rows"] == next(node for node in nodes if node["op"] == "Conv")["rows"]
    assert all(node["rows"] for node in nodes)


def test_a_constant_node_was_folded_and_a_lost_one_went_into_its_reader():
    a, b, c, d = (Value(name, TensorType("float32", (2,))) for name in "abcd")
    nodes = [Node("Neg", [a], [b], name="one"), Node("Exp", [c], [d], name="two")]
    graph = Graph("g", [c], [d], nodes, {a: np.zeros(2, "float32")})
    rows = [{"nodes": [{"name": "two", "outputs": ["d"]}]}]
    first, second = node_data(graph, rows)
    assert first["fate"] == "folded into a constant" and not first["rows"]
    assert second["fate"] == "computed" and second["rows"] == [0]


def test_the_line_of_the_user_is_shown():
    line = inspect.currentframe().f_lineno  # the line that is looked for
    graph = small()
    graph.nodes[0].origin = f"stem at {__file__}:{line}"
    page = explore(weft.compile(graph))
    assert "the line that is looked for" in page.index["nodes"][0]["source"]
    assert f"test_page.py:{line}" in page.index["rows"][0]["nodes"][0]["origin"], "the kernel knows it, too"
    assert page.index["profile"] is None and all("seconds" not in row for row in page.index["rows"])


def test_a_file_holds_nothing_but_data_and_our_script(compiled):
    module, history, _ = compiled
    graph = small(HOSTILE)
    for node in graph.nodes:
        node.name = HOSTILE + node.name
    page = explore(weft.compile(graph))
    text = page.html()
    assert text.count("<script>") == 1 and "<script>alert" not in text and "\u202e" not in text
    script = text[text.index("<script>") + 8 : text.rindex("</script>")]
    wanted = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{wanted}'" in text and "default-src 'none'" in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "the page asks nobody for anything"
    index = pieces(text)[0]
    assert index["model"] == HOSTILE.replace("\u202e", "�").replace("\ud800", "�")
    assert "\n" not in clean("a\x00b") and plain({"a": (1.0, float("nan"), 0.123456)}) == {"a": [1.0, None, 0.1235]}


def test_the_page_stays_readable():
    files = [file for file in Path(page.__file__).parent.iterdir() if file.suffix in (".html", ".css", ".js")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(files) == 5 and len(lines) <= 1_220 and max(map(len, lines)) <= 120


def test_what_changed_between_lines():
    assert delta([1, 2, 3, 4], [1, 9, 4]) == (1, 1, [9])
    assert delta([1, 1], [1, 1, 1]) == (2, 0, [1])
    assert delta([], [5]) == (0, 0, [5]) and delta([1, 2], [1, 2]) == (2, 0, [])


def test_what_cannot_be_explored_says_why(tmp_path, compiled):
    module, _, _ = compiled
    path = tmp_path / "small.weft"
    module.save(path)
    with pytest.raises(weft.WeftError, match="explore the model it was made from"):
        explore(weft.load(path))
    with pytest.raises(weft.WeftError, match="what weft.compile gave"):
        explore("resnet18")


def test_a_model_from_the_cache_is_explored_as_one_that_was_compiled(monkeypatch):
    monkeypatch.setattr("weft.core.model.FORM_KEPT_SECONDS", 0.0)
    found = []
    for _ in range(2):
        b = Builder("kept")
        with knobs.override(cache=True):
            module = weft.compile(b.finish(b.relu(b.input("x", (1, 16))), names=["y"]))
        found.append(explore(module))
    assert hasattr(module.specializations[0], "summary") and found[0].kernels == found[1].kernels


def test_the_command_writes_a_page(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    from tests.cli.tiny import write_tiny

    assert onnx
    write_tiny(tmp_path / "tiny.onnx")
    page = tmp_path / "page.html"
    words = ["explore", str(tmp_path / "tiny.onnx"), "-o", str(page), "--json"]
    assert main([*words, "--seconds", "0.01"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kernels"] == len(pieces(page.read_text(encoding="utf-8"))) - 1 and said["bytes"] == page.stat().st_size
    assert main([*words, "--no-times"]) == 0
    assert pieces(page.read_text(encoding="utf-8"))[0]["profile"] is None
    capsys.readouterr()
    assert main(["explore", "tiny.weft"]) == 1 and "compiled already" in capsys.readouterr().err
    assert main(["explore", "dqn", "-o", "page.pdf"]) == 1 and ".html" in capsys.readouterr().err
