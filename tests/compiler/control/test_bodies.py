"""Bodies of If, Loop and Scan: compiled when that is worth it, with the interpreter's answers before and after."""

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from weft.compiler.control import bodies
from weft.compiler.specialize import Executor
from weft.compiler.steps import HostStep
from weft.core import model as numbers
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.targets.registry import find_target


class Part:
    """A graph in the making."""

    def __init__(self, name):
        self.name, self.nodes, self.constants = name, [], {}

    def input(self, name, dtype=None, shape=None):
        return Value(f"{self.name}_{name}", None if dtype is None else TensorType(dtype, shape))

    def constant(self, array, dtype="float32"):
        made = Value(f"{self.name}_c{len(self.constants)}")
        self.constants[made] = np.asarray(array, dtype)
        return made

    def __call__(self, op, *inputs, outputs=1, **attributes):
        made = [Value(f"{self.name}_v{len(self.nodes)}_{at}") for at in range(outputs)]
        self.nodes.append(Node(op, inputs, made, attributes))
        return made[0] if outputs == 1 else made

    def finish(self, inputs, outputs):
        return Graph(self.name, inputs, outputs, self.nodes, self.constants)


def weight(*shape, seed=0):
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) / np.sqrt(shape[0])).astype("float32")


def recurrent(turns=6, stop_below=-1.0):
    """A cell whose weights stand outside of the loop, with a row kept of every turn."""
    main, body = Part("main"), Part("body")
    x, start = main.input("x", "float32", (3, 8)), main.input("start", "float32", (3, 8))
    outer = main.constant(weight(8, 8))
    turn, go, state, memory = body.input("turn"), body.input("go"), body.input("state"), body.input("memory")
    made = body("Tanh", body("Add", body("MatMul", state, outer), x))
    more = body("Greater", body("ReduceMax", made, keepdims=0), body.constant(stop_below))
    row = body("Identity", made)
    graph = body.finish([turn, go, state, memory], [more, made, body("Identity", memory), row])
    limit = main.constant(turns, "int64")
    results = main("Loop", limit, None, start, x, outputs=3, body=graph)
    return infer(main.finish([x, start], results)), [weight(3, 8, seed=1), weight(3, 8, seed=2)]


def growing(turns=12):
    """Attention over a memory that grows by a row each turn, and products that do not grow."""
    main, body = Part("main"), Part("body")
    start, keys = main.input("start", "float32", (1, 8)), main.input("keys", "float32", (1, 8))
    inside, outside = main.constant(weight(8, 8)), main.constant(weight(8, 8, seed=3))
    turn, go, state, memory = body.input("turn"), body.input("go"), body.input("state"), body.input("memory")
    query = body("Tanh", body("MatMul", state, inside))
    now = body("Concat", memory, query, axis=0)
    scores = body("Softmax", body("MatMul", query, body("Transpose", now, perm=[1, 0])), axis=-1)
    made = body("Relu", body("MatMul", body("Add", body("MatMul", scores, now), state), outside))
    graph = body.finish([turn, go, state, memory], [go, made, now])
    results = main("Loop", main.constant(turns, "int64"), None, start, keys, outputs=2, body=graph)
    return infer(main.finish([start, keys], results)), [weight(1, 8, seed=4), weight(1, 8, seed=5)]


def sliced(turns=7):
    """Turn number t reads row t: a value that decides what is read changes from turn to turn."""
    main, body = Part("main"), Part("body")
    x, start = main.input("x", "float32", (turns, 8)), main.input("start", "float32", (1, 8))
    turn, go, state = body.input("turn"), body.input("go"), body.input("state")
    first = body("Unsqueeze", turn, body.constant([0], "int64"))
    last = body("Add", first, body.constant([1], "int64"))
    row = body("Slice", x, first, last, body.constant([0], "int64"))
    made = body("Sigmoid", body("MatMul", body("Add", row, state), body.constant(weight(8, 8))))
    graph = body.finish([turn, go, state], [go, made, made])
    results = main("Loop", main.constant(turns, "int64"), None, start, outputs=2, body=graph)
    return infer(main.finish([x, start], results)), [weight(turns, 8, seed=6), weight(1, 8, seed=7)]


def branches():
    """A loop with a branch inside a branch."""
    main, body, then, other = Part("main"), Part("body"), Part("then"), Part("other")
    deep, flat = Part("deep"), Part("flat")
    start = main.input("start", "float32", (2, 8))
    turn, go, state = body.input("turn"), body.input("go"), body.input("state")
    outer = main.constant(weight(8, 8))
    deep_graph = deep.finish([], [deep("Tanh", deep("MatMul", state, outer))])
    turned = flat("Gather", flat("Neg", state), flat.constant([1, 0], "int64"), axis=0)  # no selection instead
    flat_graph = flat.finish([], [turned])
    mean = then("Greater", then("ReduceMean", state, keepdims=0), then.constant(0.0))
    then_graph = then.finish([], [then("If", mean, then_branch=deep_graph, else_branch=flat_graph)])
    other_graph = other.finish([], [state])
    odd = body("Equal", body("Mod", turn, body.constant(2, "int64")), body.constant(1, "int64"))
    chosen = body("If", odd, then_branch=then_graph, else_branch=other_graph)
    made = body("Add", chosen, body.constant(0.125))
    graph = body.finish([turn, go, state], [go, made, body("ReduceSum", made, keepdims=0)])
    results = main("Loop", main.constant(9, "int64"), None, start, outputs=2, body=graph)
    return infer(main.finish([start], results)), [weight(2, 8, seed=8)]


def scanned():
    """A Scan with a state, backwards over its second axis, kept along the last."""
    main, body = Part("main"), Part("body")
    x, start = main.input("x", "float32", (3, 6, 8)), main.input("start", "float32", (3, 8))
    state, row = body.input("state"), body.input("row")
    made = body("Tanh", body("Add", body("MatMul", state, body.constant(weight(8, 8))), row))
    graph = body.finish([state, row], [made, made])
    axes = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [-1]}
    results = main("Scan", start, x, outputs=2, body=graph, num_scan_inputs=1, **axes)
    return infer(main.finish([x, start], results)), [weight(3, 6, 8, seed=9), weight(3, 8, seed=10)]


def collecting(turns=9):
    """Decodes until a value is small, with what was made put behind two states, along two axes."""
    main, body = Part("main"), Part("body")
    start, x = main.input("start", "float32", (2, 8)), main.input("x", "float32", (1, 2, 8))
    turn, go, state, list0, list1 = (body.input(n) for n in ("turn", "go", "state", "list0", "list1"))
    made = body("Tanh", body("MatMul", state, body.constant(weight(8, 8) * 3)))
    row = body("Unsqueeze", made, body.constant([0], "int64"))
    both = body("Concat", row, row, axis=1)
    more = body("Greater", body("ReduceMax", made, keepdims=0), body.constant(0.1))
    longer = [body("Concat", list0, row, axis=0), body("Concat", list1, both, axis=-2)]
    graph = body.finish([turn, go, state, list0, list1], [more, made, *longer])
    results = main("Loop", main.constant(turns, "int64"), None, start, x, x, outputs=3, body=graph)
    return infer(main.finish([start, x], results)), [weight(2, 8, seed=11), weight(1, 2, 8, seed=12)]


MODELS = [recurrent, growing, sliced, branches, scanned, collecting]


def compiled_bodies(module):
    """What runs a module's host nodes, whole or body by body, those inside compiled bodies included."""
    waiting = [one.runner.program for one in module.specializations]
    found = []
    while waiting:
        for step in waiting.pop().steps:
            if isinstance(step, HostStep):
                found += [one for one in (step.region, *step.inner.values()) if one is not None]
                for body in step.inner.values():
                    waiting += [form.runner.program for form in dict.fromkeys(body._forms.values())]
    return found


def is_native(module):
    """Whether every node with subgraphs runs as one native call."""
    steps = [step for one in module.specializations for step in one.runner.program.steps]
    regions = [step.region for step in steps if isinstance(step, HostStep) and step.node.graphs]
    return all(region is not None and region._forms and not region.closed for region in regions)


def check(module, arrays, wanted, times):
    for _ in range(times):
        made = module(*arrays)
        for got, want in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
@pytest.mark.parametrize("price", [0.0, 0.0005])
@pytest.mark.parametrize("model", MODELS)
def test_compiled_bodies_give_what_the_interpreter_gives(model, price, monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", price)
    graph, arrays = model()
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 4)
    assert any(body.compiled for body in compiled_bodies(module))


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
@pytest.mark.parametrize("model", MODELS)
def test_saved_modules_run_their_bodies(model, tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    graph, arrays = model()
    module = weft.compile(graph)
    wanted = interpret_graph(graph, arrays)
    check(module, arrays, wanted, 1)
    module.save(tmp_path / "module.weft")
    check(weft.load(tmp_path / "module.weft"), arrays, wanted, 2)


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
def test_sizes_that_grow_are_left_open(monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    monkeypatch.setattr(bodies.Region, "native", lambda *_: None)  # as where a node of the body has no kernel
    monkeypatch.setattr(bodies.Body, "waits", property(lambda _: False, lambda *_: None), raising=False)
    graph, arrays = growing(40)
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 3)
    (_, body) = compiled_bodies(module)
    assert body.compiled <= 3
    (form,) = body._open
    kinds = [type(step).__name__ for step in form.runner.program.steps]
    assert set(kinds) == {"NativeStep"} and form.runner.program.numbers is not None


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
def test_a_few_cheap_turns_are_not_compiled():
    graph, arrays = recurrent(3)
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 3)
    assert {body.compiled for body in compiled_bodies(module)} == {0}


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
def test_only_branches_that_are_taken_are_compiled(monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    main, then, other = Part("main"), Part("then"), Part("other")
    x, choice = main.input("x", "float32", (64, 64)), main.input("choice", "bool", ())
    then_graph = then.finish([], [then("MatMul", x, main.constant(weight(64, 64)))])
    other_graph = other.finish([], [other("Exp", x)])
    graph = infer(main.finish([x, choice], [main("If", choice, then_branch=then_graph, else_branch=other_graph)]))
    module, array = weft.compile(graph), weight(64, 64)
    check(module, [array, np.array(True)], [array @ weight(64, 64)], 3)
    assert {body.graph.name: body.compiled for body in compiled_bodies(module)} == {"If": 0, "then": 1}
    check(module, [array, np.array(False)], [np.exp(array)], 1)
    assert {body.graph.name for body in compiled_bodies(module)} == {"If", "then", "other"}


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
@pytest.mark.parametrize("price", [0.0, 1e9])
def test_what_a_body_hands_on_is_nobody_elses_array(price, monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", price)
    graph, arrays = recurrent(4)
    module = weft.compile(graph)
    for _ in range(2):
        last, memory, rows = module(*arrays)
        memory += 1  # the third array is the input, handed on by every turn
        np.testing.assert_array_equal(memory, arrays[0] + 1)
        assert not np.shares_memory(last, rows)
    np.testing.assert_array_equal(arrays[0], weight(3, 8, seed=1))


def test_other_batches_get_forms_of_their_own_but_not_without_end(monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    part = Part("part")
    state = part.input("state")
    graph = part.finish([state], [part("Tanh", part("MatMul", state, part.constant(weight(8, 8))))])
    body = Executor(graph, find_target("cpu")).inner(graph, {}, False)
    for batch in range(1, 20):
        array = weight(batch, 8)
        for _ in range(numbers.BODY_OFTEN + 2):
            np.testing.assert_allclose(body.run([array], 1)[0], np.tanh(array @ weight(8, 8)), rtol=1e-5, atol=1e-6)
    assert body.compiled == numbers.MOST_BODY_FORMS
    steady = [key for key, form in body._forms.items() if form.mask is None]
    assert len(steady) == numbers.MOST_BODY_FORMS - 1


def stopping():
    """States that are handed around and stand still, rows that are states and inputs too, and a stop by value."""
    main, body = Part("main"), Part("body")
    x, start = main.input("x", "float32", (4,)), main.input("start", "float32", (4,))
    turn, go, now, before, still = (body.input(n) for n in ("turn", "go", "now", "before", "still"))
    grown = body("Add", body("Mul", now, body.constant(1.5)), still)
    more = body("Less", body("ReduceMax", grown, keepdims=0), body.constant(60.0))
    number = body("Cast", turn, to=1)
    kept = [grown, before, number, more, body("Identity", grown), x]
    graph = body.finish([turn, go, now, before, still], [more, grown, now, still, *kept])
    results = main("Loop", main.constant(1000, "int64"), None, start, start, x, outputs=9, body=graph)
    return infer(main.finish([x, start], results)), [np.full(4, 0.5, "float32"), np.arange(4, dtype="float32")]


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
@pytest.mark.parametrize("model", [stopping, recurrent, growing, branches, scanned, collecting])
def test_turns_in_native_code(model, monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    graph, arrays = model()
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 2)
    assert is_native(module)


@pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")
def test_a_loop_without_limit_or_turns(monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)
    main, body = Part("main"), Part("body")
    start, go_on = main.input("start", "float32", (2,)), main.input("go_on", "bool", ())
    turn, go, state = body.input("turn"), body.input("go"), body.input("state")
    made = body("Add", state, body.constant(1.0))
    more = body("Less", body("ReduceMax", made, keepdims=0), body.constant(500.0))
    graph = body.finish([turn, go, state], [more, made, body("ReduceSum", made, keepdims=0)])
    graph = infer(main.finish([start, go_on], main("Loop", None, go_on, start, outputs=2, body=graph)))
    module = weft.compile(graph)
    for condition in (True, False, True):
        arrays = [np.array([0.25, 0.5], "float32"), np.array(condition)]
        check(module, arrays, interpret_graph(graph, arrays), 2)
