"""Operators of ai.onnx.ml: ONNX's cases, random models against ONNX Runtime, and small ones by hand."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

import weft
from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, make
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import Infer, find_operator

OPERATORS = "ArrayFeatureExtractor Binarizer LabelEncoder TreeEnsemble".split()
DOMAIN = "ai.onnx.ml"
HOST = {"test_ai_onnx_ml_tree_ensemble_set_membership"}
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


@pytest.mark.parametrize("case", cases(*OPERATORS, domain=DOMAIN), ids=lambda case: case.name)
def test_onnx_case(case):
    on_host = case.name in HOST or case.model.graph.node[0].op_type == "LabelEncoder"
    assert check_case(case, constants=False) != on_host


def run(op, *arrays, outputs=1, **attributes):
    return find_operator(op, DOMAIN).run(make(op, len(arrays), outputs, attributes, DOMAIN), list(arrays))


def compare(op, x, outputs=1, **attributes):
    """Our results and inferred types against ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    names = [f"out{k}" for k in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain=DOMAIN, **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "main",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in names],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    wanted = runtime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    ours = make(op, 1, outputs, attributes, DOMAIN)
    types = find_operator(op, DOMAIN).infer(Infer(ours, [TensorType(str(x.dtype), x.shape)], [None]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some uses stay on the host
        compiled = weft.compile(model).run(None, {"x": x})
    results = [*run(op, x, outputs=outputs, **attributes), *compiled]
    for got, want, inferred in zip(results, [*wanted, *wanted], [*types, *types], strict=True):
        assert got.shape == np.shape(want) == inferred.static
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert (got == np.asarray(want)).all()


def random(seed=0):
    return np.random.default_rng(seed)


def floats(generator, *shape):
    return generator.standard_normal(shape).astype("float32").astype(float).ravel().tolist()


X = random(9).standard_normal((7, 4)).astype("float32")


# ----------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform):
    g = random(1)
    for rows, labels in ((3, [5, 6, 7]), (2, [5, 6]), (1, [5, 6])):
        attributes = {"coefficients": floats(g, rows, 4), "intercepts": floats(g, rows), "post_transform": transform}
        compare("LinearClassifier", X, 2, classlabels_ints=labels, **attributes)
    regressor = {"coefficients": floats(g, 2, 4), "intercepts": floats(g, 2), "targets": 2}
    compare("LinearRegressor", X, post_transform=transform, **regressor)


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_support_vector_machines(kernel):
    g = random(2)
    common = {"kernel_type": kernel, "kernel_params": [0.3, 0.1, 2.0]}
    vectors = {"coefficients": floats(g, 5), "support_vectors": floats(g, 5, 4), "n_supports": 5, "rho": [0.3]}
    for one_class in (0, 1):
        compare("SVMRegressor", X, one_class=one_class, **common, **vectors)
    for classes in (2, 3, 4):
        pairs = classes * (classes - 1) // 2
        machine = {
            "coefficients": floats(g, classes - 1, 2 * classes), "support_vectors": floats(g, 2 * classes, 4),
            "vectors_per_class": [2] * classes, "rho": floats(g, pairs), "classlabels_ints": list(range(classes)),
        }  # fmt: skip
        chances = {"prob_a": [-abs(v) for v in floats(g, pairs)], "prob_b": floats(g, pairs)}
        for transform in TRANSFORMS if kernel == "RBF" else ["NONE"]:
            compare("SVMClassifier", X, 2, post_transform=transform, **common, **machine)
            compare("SVMClassifier", X, 2, post_transform=transform, **common, **machine, **chances)


@pytest.mark.filterwarnings("error")
def test_chances_of_many_classes_are_compiled():
    g, classes, rows = random(12), 11, 6
    pairs = classes * (classes - 1) // 2
    chances = g.uniform(1e-7, 1 - 1e-7, (rows, pairs))
    node = make("Couple", 1, 1, {"classes": classes}, "weft")
    x, y = Value("x", TensorType("float64", chances.shape)), Value("y")
    graph = Graph("main", [x], [y], [Node("Couple", [x], [y], node.attributes, domain="weft")])
    (wanted,) = find_operator("Couple", "weft").run(node, [chances])
    np.testing.assert_allclose(weft.compile(graph)(chances), wanted, rtol=1e-9)
    np.testing.assert_allclose(wanted.sum(axis=1), 1)


def forest(g, trees, depth, ids, prefix, positive=False):
    """Complete trees with random tests; every leaf speaks of every id."""
    inner = 2**depth - 1
    out = {}
    for tree in range(trees):
        for node in range(2 * inner + 1):
            leaf = node >= inner
            add = {
                "nodes_treeids": tree,
                "nodes_nodeids": node,
                "nodes_featureids": 0 if leaf else int(g.integers(4)),
                "nodes_values": 0.0 if leaf else floats(g, 1)[0] / 2,
                "nodes_modes": "LEAF"
                if leaf
                else str(g.choice(["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"])),
                "nodes_truenodeids": 0 if leaf else 2 * node + 1,
                "nodes_falsenodeids": 0 if leaf else 2 * node + 2,
                "nodes_missing_value_tracks_true": int(g.integers(2)),
            }
            for key, value in add.items():
                out.setdefault(key, []).append(value)
            for target in ids if leaf else ():
                weight = floats(g, 1)[0]
                leaf_part = {"treeids": tree, "nodeids": node, "ids": target}
                for key, value in {**leaf_part, "weights": abs(weight) / 4 if positive else weight}.items():
                    out.setdefault(f"{prefix}_{key}", []).append(value)
    return out


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_tree_regressors(how, targets):
    g = random(3)
    x = X.copy()
    x[0, 1] = x[3] = np.nan
    trees = forest(g, 3, 3, range(targets), "target")
    base = {"base_values": floats(g, targets)}
    compare("TreeEnsembleRegressor", x, n_targets=targets, aggregate_function=how, **base, **trees)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("positive", [False, True])
def test_tree_classifiers(transform, positive):
    g = random(4)
    for ids, base in (([0], 0), ([0], 1), ([1], 0), ([0, 1, 2], 0), ([0, 1, 2], 3)):
        attributes = forest(g, 3, 2, ids, "class", positive)
        if base:
            attributes["base_values"] = floats(g, base)
        labels = [10, 11, 12] if len(ids) == 3 else [10, 11]
        compare("TreeEnsembleClassifier", X, 2, classlabels_int64s=labels, post_transform=transform, **attributes)


def test_trees_that_are_wrong():
    trees = forest(random(5), 1, 1, [0], "target")
    with pytest.raises(GraphError, match="feature . of 0"):
        run("TreeEnsembleRegressor", np.zeros((2, 0), "float32"), **trees)
    lost = {**trees, "nodes_truenodeids": [7, 0, 0]}
    with pytest.raises(GraphError, match="does not exist"):
        run("TreeEnsembleRegressor", X, **lost)


# --------------------------------------------------------------------------------------------------------- features


def test_features():
    compare("Scaler", X, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 0.1, 2.0, 3.0])
    for norm in ("MAX", "L1", "L2"):
        compare("Normalizer", np.concatenate([X, np.zeros((1, 4), "float32")]), norm=norm)
    holes = X.copy()
    holes[0, 1] = holes[3] = np.nan
    filling = [1.0, 2.0, 3.0, 4.0]
    compare("Imputer", holes, imputed_value_floats=filling, replaced_value_float=float("nan"))
    compare("OneHotEncoder", np.array([[1, 2], [3, 9]]), cats_int64s=[1, 2, 3])
    compare("FeatureVectorizer", X, inputdimensions=[4])
    check_node("Binarizer", [X], X > 0.3, domain=DOMAIN, threshold=0.3)
    check_node("ArrayFeatureExtractor", [X, np.array([3, 0])], X[:, [3, 0]], domain=DOMAIN)


def test_labels_and_maps():
    words = np.array(["a", "c"], object)
    assert run("LabelEncoder", words, keys_strings=["a", "b"], values_floats=[1.5, 2.5])[0].tolist() == [1.5, -0.0]
    assert run("LabelEncoder", np.array([np.nan], "float32"), keys_floats=[np.nan], values_int64s=[4])[0] == 4
    assert run("CategoryMapper", words, cats_strings=["a", "b"], cats_int64s=[7, 8])[0].tolist() == [7, -1]
    back = run("CategoryMapper", np.array([8, 9]), cats_strings=["a", "b"], cats_int64s=[7, 8])[0]
    assert back.tolist() == ["b", "_Unused"]
    assert run("DictVectorizer", {"b": 2.0, "z": 1.0}, string_vocabulary=["a", "b"])[0].tolist() == [[0, 2]]
    assert run("CastMap", {3: 1.5, 0: 2.0}, map_form="SPARSE", max_map=4)[0].tolist() == [[2, 0, 0, 1.5]]
    zipped = run("ZipMap", np.array([[0.25, 0.75]], "float32"), classlabels_strings=["n", "y"])[0]
    assert zipped == [{"n": 0.25, "y": 0.75}]
