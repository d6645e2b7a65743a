"""Random loops, compiled at once, after a while or never, in native turns of any length: what the interpreter gives."""

import numpy as np
import pytest

import weft
from tests.compiler.control.test_bodies import Part, weight
from weft.core import model as numbers
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.infer import infer


class RandomLoop:
    """A loop over a few matrices of one shape: states that are made, handed on or exchanged, lists, rows, a stop."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.rows, self.columns = (int(n) for n in self.random.integers((1, 3), (4, 9)))
        self.main, self.body = Part("main"), Part("body")
        self.outside = self.main.input("outside", "float32", (self.rows, self.columns))
        self.weights = self.main.constant(weight(self.columns, self.columns, seed=seed))
        self.turn, self.go = self.body.input("turn"), self.body.input("go")

    def few(self, low, high):
        return range(int(self.random.integers(low, high)))

    def any(self):
        return self.pool[self.random.integers(len(self.pool))]

    def step(self):
        """One more value of the body."""
        body, a, b = self.body, self.any(), self.any()
        makers = [
            lambda: body("Tanh", body("MatMul", a, self.weights)),
            lambda: body("Tanh", body("Add", a, b)),
            lambda: body("Mul", a, body.constant(0.7)),
            lambda: body("Sub", a, body("Cast", self.turn, to=1)),
            lambda: self.branch(a, b),
            lambda: self.row(a, b),
            lambda: body("Identity", a),
            lambda: self.loop(a, b),
            lambda: self.scan(a, b),
            lambda: self.history(a),
        ]
        return makers[self.random.integers(len(makers))]()

    def branch(self, a, b):
        """An If: some become selections, some stay, some hand a value on."""
        then, other = (Part(f"{name}{len(self.body.nodes)}") for name in ("then", "other"))
        positive = self.body("Greater", self.body("ReduceSum", a, keepdims=0), self.body.constant(0.0))
        order = then.constant(self.random.permutation(self.rows), "int64")
        first = then("Sigmoid", a) if self.random.random() < 0.5 else then("Gather", b, order, axis=0)
        second = b if self.random.random() < 0.5 else other("Abs", b)
        branches = {"then_branch": then.finish([], [first]), "else_branch": other.finish([], [second])}
        return self.body("If", positive, **branches)

    def loop(self, a, b):
        """A loop in the loop, of as many turns as the number of the turn says, which may be none."""
        body, inner = self.body, Part(f"inner{len(self.body.nodes)}")
        k, go, state, grown = (inner.input(n) for n in ("k", "go", "state", "grown"))
        after = inner("Tanh", inner("Add", state, b))
        on = [go, inner("Less", inner("ReduceMax", after, keepdims=0), inner.constant(0.9))][self.random.integers(2)]
        longer = inner("Concat", grown, after, axis=0)
        graph = inner.finish([k, go, state, grown], [on, after, longer, inner("Cast", k, to=1)])
        limit = body("Mod", self.turn, body.constant(4, "int64"))
        last, many, counts = body("Loop", limit, None, a, a, outputs=3, body=graph)
        self.lists.append(many)
        first = body("ReduceSum", counts, keepdims=0) if self.random.random() < 0.2 else body.constant(0.5)
        return body("Mul", last, first)

    def scan(self, a, b):
        """A Scan over the rows or columns of a value, forwards or backwards."""
        inner = Part(f"scan{len(self.body.nodes)}")
        state, row = inner.input("state"), inner.input("row")
        after = inner("Tanh", inner("Add", state, row))
        graph = inner.finish([state, row], [after, inner("Neg", after)])
        axis, back, kept, kept_back = (int(n) for n in self.random.integers(2, size=4))
        start = self.body("ReduceSum", b, self.body.constant([axis], "int64"), keepdims=0)
        given = {"scan_input_axes": [axis], "scan_input_directions": [back], "scan_output_axes": [kept]}
        given["scan_output_directions"] = [kept_back]
        _, rows = self.body("Scan", start, a, outputs=2, body=graph, num_scan_inputs=1, **given)
        return rows if axis == kept else self.body("Transpose", rows, perm=[1, 0])

    def history(self, a):
        """What a list holds so far."""
        if not self.lists:
            return a
        return self.body("Add", a, self.body("ReduceMean", self.lists[-1], self.body.constant([0], "int64")))

    def maybe(self, one, part):
        """A list that is made longer in some turns only: the branches have different shapes."""
        then, other = (Part(f"{name}{len(self.body.nodes)}") for name in ("longer", "as_it_is"))
        odd = self.body(
            "Equal", self.body("Mod", self.turn, self.body.constant(2, "int64")), self.body.constant(1, "int64")
        )
        branches = {"then_branch": then.finish([], [then("Concat", one, part, axis=0)])}
        return self.body("If", odd, **branches, else_branch=other.finish([], [other("Identity", one)]))

    def row(self, a, b):
        """A row that the number of the turn chooses: a value that decides shapes and changes."""
        body = self.body
        at = body("Mod", self.turn, body.constant(self.rows, "int64"))
        first = body("Unsqueeze", at, body.constant([0], "int64"))
        last = body("Add", first, body.constant([1], "int64"))
        return body("Add", a, body("Slice", b, first, last, body.constant([0], "int64")))

    def condition(self):
        body, kind = self.body, self.random.integers(3)
        if kind == 0:
            return self.go
        if kind == 1:
            return body("Less", self.turn, body.constant(self.random.integers(9), "int64"))
        return body("Less", body("ReduceMax", self.any(), keepdims=0), body.constant(2 * self.random.standard_normal()))

    def graph(self):
        shape = (self.rows, self.columns)
        starts = [self.main.input(f"start{k}", "float32", shape) for k in self.few(1, 4)]
        states = [self.body.input(f"state{k}") for k in range(len(starts))]
        self.pool = [*states, self.outside]
        lists = [self.body.input(f"list{k}") for k in self.few(0, 3)]
        axes = [int(self.random.integers(-2, 2)) for _ in lists]
        self.lists = [one for one, axis in zip(lists, axes) if axis in (-2, 0)]
        for _ in self.few(1, 6):
            self.pool.append(self.step())
        after = [self.any() for _ in states]
        longer = [
            self.maybe(one, self.any()) if axis == 0 else self.body("Concat", one, self.any(), axis=axis)
            for one, axis in zip(lists, axes)
        ]
        kept = [self.any() for _ in self.few(0, 4)]
        outputs = [self.condition(), *after, *longer, *kept]
        body = self.body.finish([self.turn, self.go, *states, *lists], outputs)
        limit = self.main.constant(self.random.integers(14), "int64")
        given = [*starts, *[starts[0]] * len(lists)]
        made = self.main("Loop", limit, None, *given, outputs=len(outputs) - 1, body=body)
        results = made if isinstance(made, list) else [made]
        arrays = [self.random.standard_normal(shape).astype("float32") for _ in range(len(starts) + 1)]
        return infer(self.main.finish([self.outside, *starts], results)), arrays


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
@pytest.mark.parametrize("first", [0, 15, *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 300, 15))])
def test_random_loops(first, monkeypatch):
    for seed in range(first, first + 15):
        random = np.random.default_rng(seed)
        monkeypatch.setattr(numbers, "BODY_PRICE", float(random.choice([0.0, 2e-4, 1e9])))
        graph, arrays = RandomLoop(seed).graph()
        wanted, before = interpret_graph(graph, arrays), [array.copy() for array in arrays]
        module = weft.compile(graph)
        for _ in range(3):
            made = module.run(None, dict(zip([value.name for value in graph.inputs], arrays)))
            for at, (got, want) in enumerate(zip(made, wanted, strict=True)):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")
                assert not any(np.may_share_memory(got, other) for other in [*arrays, *made[:at]]), f"seed {seed}"
        for array, old in zip(arrays, before):
            np.testing.assert_array_equal(array, old)
