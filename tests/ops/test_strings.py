"""Operators on strings, and decoding images."""

import importlib.util

import numpy as np
import pytest

from tests.ops.cases import cases, check_case
from tests.ops.nodes import make
from weft.graph.ir import GraphError
from weft.graph.opspec import find_operator

OPERATORS = "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer".split()
HAS_PILLOW = importlib.util.find_spec("PIL") is not None


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert not check_case(case)


@pytest.mark.skipif(not HAS_PILLOW, reason="needs Pillow")
@pytest.mark.parametrize("case", cases("ImageDecoder"), ids=lambda case: case.name)
def test_images(case):
    assert not check_case(case)


def run(op, *arrays, outputs=1, **attributes):
    return find_operator(op).run(make(op, len(arrays), outputs, attributes), list(arrays))


def words(*values):
    return np.array(values, object)


@pytest.mark.skipif(HAS_PILLOW, reason="Pillow is there")
def test_images_without_pillow():
    with pytest.raises(GraphError, match="pip install pillow"):
        run("ImageDecoder", np.zeros(4, np.uint8))


@pytest.mark.skipif(not HAS_PILLOW, reason="needs Pillow")
def test_images_that_are_none():
    with pytest.raises(GraphError, match="cannot be decoded"):
        run("ImageDecoder", np.zeros(4, np.uint8))


def test_normalizer():
    given = words("Monday", "monday", "Tuesday")
    assert run("StringNormalizer", given, stopwords=["monday"])[0].tolist() == ["Tuesday"]
    kept = run("StringNormalizer", given, stopwords=["monday"], is_case_sensitive=1, case_change_action="UPPER")[0]
    assert kept.tolist() == ["MONDAY", "TUESDAY"]
    with pytest.raises(GraphError, match="case_change_action"):
        run("StringNormalizer", given, case_change_action="TITLE")


def test_regular_expressions():
    assert run("RegexFullMatch", words("ab", "abb", "b"), pattern="ab+")[0].tolist() == [True, True, False]
    with pytest.raises(GraphError, match="no regular expression"):
        run("RegexFullMatch", words("a"), pattern="(")


def test_tf_idf():
    """Words in pools of one and two; weights; a batch."""
    attributes = {
        "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2], "pool_strings": ["a", "b", "a", "b"], "weights": [0.5, 2.0, 3.0],
    }  # fmt: skip
    x = np.array([["a", "b", "b"], ["c", "c", "c"]], object)
    assert run("TfIdfVectorizer", x, mode="TF", **attributes)[0].tolist() == [[1, 2, 2], [0, 0, 0]]
    assert run("TfIdfVectorizer", x, mode="IDF", **attributes)[0].tolist() == [[0.5, 2, 3], [0, 0, 0]]
    assert run("TfIdfVectorizer", x, mode="TFIDF", **attributes)[0].tolist() == [[0.5, 4, 6], [0, 0, 0]]
