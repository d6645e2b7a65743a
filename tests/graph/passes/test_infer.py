"""Types and known values: static and symbolic shapes, shape computations, subgraphs."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.graph.ir import GraphError, all_graphs
from weft.graph.passes.infer import infer, infer_values
from weft.graph.text import format_graph, format_type, parse_graph


def types(text):
    graph = infer(parse_graph(text))
    return {v.name: format_type(v.type) for g in all_graphs(graph) for n in g.nodes for v in n.outputs}


def test_shape_computations_of_static_shapes_are_known():
    graph, known = infer_values(
        parse_graph(
            """
graph g(%x: float32[2, 12]) -> (%y) {
    const %zero: int64[] = 0
    const %axes: int64[1] = [0]
    const %three: int64[1] = [3]
    const %two: int64[] = 2
    %s = Shape(%x)
    %n = Gather(%s, %zero, axis=0)
    %m = Mul(%n, %two)
    %u = Unsqueeze(%m, %axes)
    %t = Concat(%u, %three, axis=0)
    %f = Cast(%t, to=1)
    %y = Reshape(%x, %t)
    %wrong: float32[7] = Relu(%y)
}
""".replace("%three: int64[1] = [3]", "%three: int64[1] = [6]")
        )
    )
    by_name = {v.name: array.tolist() for v, array in known.items()}
    assert by_name == {"s": [2, 12], "n": 2, "m": 4, "u": [4], "t": [4, 6], "f": [4.0, 6.0]}
    assert "%y: float32[4, 6]" in format_graph(graph) and "%wrong: float32[4, 6]" in format_graph(graph)


def test_symbolic_sizes_go_through_shape_computations():
    found = types("""
graph g(%x: float32[batch, 12, 8]) -> (%y) {
    const %zero: int64[] = 0
    const %one: int64[] = 1
    const %axes: int64[1] = [0]
    const %rest: int64[2] = [-1, 4]
    %s = Shape(%x)
    %n = Gather(%s, %zero, axis=0)
    %c = Gather(%s, %one, axis=0)
    %u = Unsqueeze(%n, %axes)
    %t = Concat(%u, %rest, axis=0)
    %y = Reshape(%x, %t)
    %k = Unsqueeze(%c, %axes)
    %ones = ConstantOfShape(%k)
    %nn = Add(%u, %u)
    %many = ConstantOfShape(%nn)
    %picked = GatherElements(%s, %axes, axis=0)
    %some = ConstantOfShape(%picked)
}
""")
    assert found["some"] == "float32[batch]"
    assert found["y"] == "float32[batch, 24, 4]"
    assert found["ones"] == "float32[12]"
    assert found["many"] == "float32[batch * 2]"


def test_branches_and_loops():
    found = types("""
graph g(%c: bool[], %n: int64[], %x: float32[2, 3]) -> (%y, %last, %rows) {
    const %go: bool[] = true
    %y = If(%c) {
        then_branch: graph t() -> (%p) {
            %p = Relu(%x)
        }
        else_branch: graph e() -> (%q) {
            %q = Neg(%x)
        }
    }
    %last, %rows = Loop(%n, %go, %x) {
        body: graph body(%i, %keep, %s) -> (%keep, %grown, %sum) {
            %grown = Concat(%s, %x, axis=0)
            %sum = ReduceSum(%s, keepdims=1)
        }
    }
}
""")
    assert found["p"] == found["y"] == "float32[2, 3]"
    assert found["sum"] == "float32[1, 1]"
    # The state grows on every turn: its first size is not known, inside and outside.
    assert found["last"].endswith(", 3]") and not found["last"].startswith("float32[2,")
    assert "turn" in found["grown"]


def test_known_values_of_a_loop_body_hold_on_every_turn():
    graph, known = infer_values(
        parse_graph("""
graph g(%n: int64[], %x: float32[2]) -> (%last) {
    const %go: bool[] = true
    %last = Loop(%n, %go, %x) {
        body: graph body(%i: int64[], %keep: bool[], %s: float32[...]) -> (%keep, %grown) {
            %shape: int64[1] = Shape(%s)
            %grown: float32[...] = Concat(%s, %s, axis=0)
        }
    }
}
""")
    )
    assert not known


def test_scan_rows():
    found = types("""
graph g(%x: float32[5, 3], %z: float32[3]) -> (%last, %rows) {
    %last, %rows = Scan(%z, %x, num_scan_inputs=1) {
        body: graph body(%s, %row) -> (%t, %t2) {
            %t = Add(%s, %row)
            %t2 = Identity(%t)
        }
    }
}
""")
    assert found["t"] == found["last"] == "float32[3]" and found["rows"] == "float32[5, 3]"


def test_a_branch_that_is_wrong_for_these_shapes_may_stand():
    text = """
graph g(%c: bool[], %x: float32[2]) -> (%y) {
    const %w: float32[3] = [1.0, 2.0, 3.0]
    %y = If(%c) {
        then_branch: graph t() -> (%p) {
            %p = Relu(%x)
        }
        else_branch: graph e() -> (%q) {
            %q = Add(%x, %w)
        }
    }
}
"""
    assert types(text)["p"] == "float32[2]"
    with pytest.raises(GraphError, match="broadcast"):
        infer(parse_graph("graph g(%x: float32[2], %w: float32[3]) -> (%q) {\n %q = Add(%x, %w)\n}"))


def test_large_results_are_not_computed(monkeypatch):
    monkeypatch.setenv("WEFT_TENSOR_MEGABYTES", str(1 << 30))
    _, known = infer_values(
        parse_graph("""
graph g() -> (%y) {
    const %n: int64[1] = [1099511627776]
    const %value: int64[] = 1099511627776
    const %zero: int64[] = 0
    const %one: int64[] = 1
    %y = ConstantOfShape(%n)
    %r = Range(%zero, %value, %one)
}
""")
    )
    assert not known


def test_infer_returns_values_it_need_not_change():
    graph = infer(parse_graph("graph g(%x: float32[2]) -> (%y) {\n %y = Relu(%x)\n}"))
    again = infer(graph)
    assert again.outputs == graph.outputs and again.inputs == graph.inputs
    assert np.shape(again.nodes) == (1,)


def test_data_is_not_followed_as_shapes_are(monkeypatch):
    """A terabyte of elements: nothing of their size may be made to learn what a Reshape gives."""
    monkeypatch.setenv("WEFT_TENSOR_MEGABYTES", str(1 << 30))
    found = types("""
graph g(%x: float32[1048576, 1048576], %i: int64[1048576, 1048576], %y: float32[n, 4]) -> (%a, %b) {
    const %last: int64[1] = [-1]
    const %rows: int64[1] = [1024]
    %s = Shape(%y)
    %both = Concat(%rows, %last, axis=0)
    %a = Reshape(%x, %both)
    %b = Reshape(%i, %both)
    %c = Reshape(%x, %s)
}
""")
    assert found["a"] == "float32[1024, 1073741824]" and found["b"] == "int64[1024, 1073741824]"


@pytest.mark.parametrize("end, size", [(2**63 - 1, "s - 1"), (2**31 - 1, "s - 1"), (5, "min(s, 5) - 1")])
def test_a_slice_to_the_end_of_an_open_size_ends_there(end, size):
    found = types(f"""
graph g(%x: float32[n, s]) -> (%y) {{
    const %one: int64[1] = [1]
    const %end: int64[1] = [{end}]
    %y = Slice(%x, %one, %end, %one)
}}
""")
    assert found["y"] == f"float32[n, {size}]"
