"""Cost models, explorers and the search itself, on times that are made up."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tuner.small import TARGET, Pretending, product_task, record
from weft.tuner.bench import Bench
from weft.tuner.cost_models import Analytic, Group, Learned, Unknown, cost_model, has_learned, rank_correlation, recall
from weft.tuner.database import Database
from weft.tuner.exhaustive import regret_rows, replay, trials_to, ways_here
from weft.tuner.explorers import EXPLORERS, Asked, choose_batch
from weft.tuner.records import Status
from weft.tuner.search import Proposer, Search
from weft.tuner.shipped import FILE, kind_of, said_of, trained_ahead
from weft.tuner.space import Space, space_of

learned = pytest.mark.skipif(not has_learned(), reason="needs xgboost")


@pytest.fixture(scope="module")
def task():
    return product_task()


@pytest.fixture(scope="module")
def space(task):
    return space_of(task)


def gain_of(point):
    """What the made-up machine likes: 4 rows by 2 vectors, little unrolling; no register tiles at all."""
    if "vectors" not in point:
        return 0.5
    return 2.0 - 0.2 * abs(math.log2(point["rows"] / 4)) - 0.2 * abs(math.log2(point["vectors"] / 2))


def test_ranks():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3])) and recall([3, 2, 1], [1, 2, 3], 1) == 0.0


@learned
def test_the_learned_model_begins_with_the_estimate_and_corrects_it(space):
    random = np.random.default_rng(0)
    points = random.choice(space.legal, 200, replace=False)
    features, prior = space.features(points), space.prior[points]
    gains = np.array([gain_of(space.point(int(number))[1]) for number in points])
    model, alone = cost_model("prior + learned"), cost_model("learned")
    said = np.maximum(Analytic().score(features, prior), -4.0) * 4  # how hopeless a point is does not matter
    assert np.array_equal(np.argsort(model.score(features, prior), kind="stable"), np.argsort(said, kind="stable"))
    for one in (model, alone):
        one.fit([Group(features[:80], prior[:80], gains[:80])])
        assert rank_correlation(one.score(features[80:], prior[80:]), gains[80:]) > 0.7


@learned
def test_a_model_of_nothing_is_the_prior(space):
    model = cost_model("prior + learned")
    for gains in (np.array([1.0, 2.0]), np.ones(9)):
        some = space.legal[: len(gains)]
        model.fit([Group(space.features(some), space.prior[some], gains)])
    assert np.array_equal(model.score(None, np.array([0.0, -1.0])), np.array([0.0, -4.0], np.float32))


def test_without_xgboost_the_analytic_cost_is_used_with_a_word(monkeypatch):
    monkeypatch.setattr("weft.tuner.cost_models.has_learned", lambda: False)
    with pytest.warns(UserWarning, match=r"pip install 'weft-compiler\[tune\]'"):
        assert isinstance(cost_model(), Analytic)
    assert ways_here() == ["analytic", "genetic", "random"]


@pytest.mark.parametrize("name", sorted(EXPLORERS))
def test_explorers_find_what_the_model_likes(name, space):
    rows, vectors = (2 + space.knobs.index(knob) for knob in ("rows", "vectors"))

    def score(numbers):
        made = space.features(np.asarray(numbers))
        return np.nan_to_num(-np.abs(made[:, rows] - 2.0) - np.abs(made[:, vectors] - 1.5), nan=-9.0)

    random = np.random.default_rng(2)
    measured = random.choice(space.legal, 24, replace=False)
    found = EXPLORERS[name](Asked(space, score, measured, score(measured), 16, random))
    assert len(found) >= 8 and all(np.isfinite(space.estimates[found]))
    if name in ("exhaustive", "annealing", "evolutionary"):
        assert score(found[:1])[0] == score(space.legal).max()


def test_a_batch_is_new_differs_and_has_some_at_random(space):
    random = np.random.default_rng(3)
    ranked = space.legal[np.argsort(-space.prior[space.legal], kind="stable")][:200]
    seen = set(map(int, ranked[:5]))
    batch = choose_batch(space, ranked, lambda n: space.prior[n], seen, 8, random, epsilon=0.0)
    assert len(set(batch)) == 8 and not seen & set(batch)
    points = [space.point(number)[1] for number in batch]
    assert len({tuple(point.items()) for point in points}) == 8
    wild = choose_batch(space, ranked, lambda n: space.prior[n], set(), 8, random, epsilon=1.0)
    assert len(set(wild)) == 8 and not set(wild) <= set(map(int, ranked[:32]))
    assert len(choose_batch(space.restricted(ranked[:3]), ranked[:3], lambda n: space.prior[n], set(), 8, random)) == 3


def searching(task, space, database, model="analytic", explorer="exhaustive", seed=0):
    proposer = Proposer(space, cost_model(model, seed), explorer, seed)
    return Search(task, Bench(task, 1), proposer, Pretending(gain_of), database)


def test_a_search_writes_each_measurement_and_goes_on_where_it_stopped(task, space, tmp_path):
    with Database(tmp_path / "a") as database:
        search = searching(task, space, database)
        for count, one in enumerate(search.round(8)):
            assert len(database.records()) == count + 1 and one.outcome.trace
        again = searching(task, space, database)
        assert again.resumed == 8 and again.gain == search.gain and again.gains == search.gains
        list(again.round(8))
        assert again.trials == 16 and not {tuple(p.items()) for p in again.runner.measured} & {
            tuple(p.items()) for p in search.runner.measured
        }
        assert again.curve[-1] == (16, again.gain) and len(again.quality) == 1


def test_records_of_other_spaces_and_failures_do_no_harm(task, space, tmp_path):
    with Database(tmp_path / "a") as database:
        sketch, point = space.point(space.default)
        database.add([record(task.key, at=1.0), record(task.key, at=2.0, status=Status.CRASH)])
        search = searching(task, space, database)
        assert search.trials == 0 and search.gain == 1.0 and search.trace is None
        bad = search.record(sketch, point, record(status=Status.CRASH).outcome, 1.0)
        database.add([bad])
        again = searching(task, space, database)
        assert again.trials == 1 and again.failures == {"crash": 1} and again.gain == 1.0


@pytest.mark.parametrize("way", ways_here())
def test_a_replayed_search_meets_every_point_of_its_pool_once(way, space):
    pool = np.random.default_rng(5).choice(space.legal, 40, replace=False)
    gains = {int(number): gain_of(space.point(int(number))[1]) for number in pool}
    curve = replay(space, gains, way, 100)
    assert len(curve) == 39 and curve == sorted(curve) and curve[-1] == max(gains.values())  # the default is known
    assert trials_to(curve, 0.0) == 1 and trials_to(curve, 99.0) is None


@learned
def test_what_is_known_of_another_task_makes_the_first_batch_good(space):
    random = np.random.default_rng(6)
    other = Proposer(space_of(product_task(32, 64, 48)), cost_model("prior + learned"))
    assert other.space.signature == space.signature
    for number in random.choice(other.space.legal, 96, replace=False):
        other.gains[int(number)] = gain_of(other.space.point(int(number))[1])
    mine = Proposer(space, cost_model("prior + learned"), epsilon=0.0)
    points = random.choice(space.legal, 200, replace=False)
    gains = [gain_of(space.point(int(number))[1]) for number in points]
    before = rank_correlation(mine.score(points), gains)
    mine.learn([mine, other])
    assert rank_correlation(mine.score(points), gains) > max(before, 0.5)


def test_what_won_in_another_task_is_tried_first_and_what_was_hopeless_in_two_is_not(space):
    others = [Proposer(space_of(product_task(*sizes)), Analytic()) for sizes in ((32, 40, 48), (48, 40, 36))]
    assert all(one.space.signature == space.signature for one in others)
    mine = Proposer(space, Analytic(), epsilon=0.0)
    alone = mine.propose(4)
    known = space.region_of(space.default)[0].sketch.name
    tried = [space.point(number)[0] for number in alone]
    assert tried[-1] != known  # a sketch of which nothing is known
    same = (n for n in space.legal.tolist() if n not in [space.default, *alone] and space.point(n)[0] == known)
    at = next(n for n in same if None not in [one.space.find(*space.point(n)) for one in others])
    for one, gain in zip(others, (1.2, 1.1)):
        one.gains[one.space.find(*space.point(at))] = gain
    assert mine.propose(4, others=[mine, *others])[0] == at
    for count, one in enumerate(others):  # each sketch but the default's, in one task, then in both
        assert mine._untried([], others) is not None, count
        for start, region in zip(one.space.starts, one.space.regions):
            if region.sketch.name != known:
                one.gains[int(start) + int(np.argmin(region.estimates))] = 0.1
    assert mine._untried([]) is not None and mine._untried([], others) is None
    mine.gains[at] = 1.3
    assert mine.propose(4, others=[mine, *others])[0] != at  # it is known here


@learned
def test_trees_made_ahead_come_first_and_go_where_they_are_wrong(space):
    """What another search learnt orders points before any is measured; one batch is enough to drop nonsense."""
    random = np.random.default_rng(7)
    points = random.choice(space.legal, 160, replace=False)
    features, prior = space.features(points), space.prior[points]
    gains = np.array([gain_of(space.point(int(number))[1]) for number in points])
    teacher, liar = Learned(), Learned()
    teacher.fit([Group(features[:80], prior[:80], gains[:80])])
    liar.fit([Group(features[:80], prior[:80], 3.0 - gains[:80])])
    plain, ahead = Learned(), Learned(ahead=teacher.booster)
    own = Group(features[80:], prior[80:], gains[80:])
    first = [rank_correlation(one.score(own.features, own.prior), own.gains) for one in (plain, ahead)]
    assert first[1] > max(first[0], 0.6)
    deceived = Learned(ahead=liar.booster)
    for one in (plain, deceived):
        one.fit([Group(*(column[:12] for column in own))])
    assert np.array_equal(plain.score(own.features, own.prior), deceived.score(own.features, own.prior))


@learned
def test_what_ships_is_for_one_kind_of_machine(space):
    known = json.loads(FILE.read_text())
    there = replace(TARGET, cpu="neoverse-n1", vector_bytes=16)
    assert known["kind"] == kind_of(there) and "measured ahead on a machine of this kind" in said_of(there)
    for text, row in known["models"].items():
        signature = ast.literal_eval(text)
        trees = trained_ahead(there, signature)
        assert trees.num_boosted_rounds() == 20 and row["tasks"] >= 1
        assert trained_ahead(replace(there, cpu="znver9"), signature) is None
    assert trained_ahead(there, [("another", "knob")]) is None
    assert "trained on another kind of machine (neoverse-n1" in said_of(replace(there, cpu="znver9"))
    wanted = Space(space.regions, replace(there, cpu="znver9"))
    assert cost_model("prior + learned", 0, wanted)._ahead is None


def test_scores_come_in_pieces(space, monkeypatch):
    monkeypatch.setattr("weft.tuner.space.CHUNK", 100)
    assert np.array_equal(space.scores(Analytic(), space.legal[:250]), space.prior[space.legal[:250]].astype("f4"))
    assert len(Unknown(0).score(None, np.zeros(5))) == 5 and TARGET.is_host


def test_the_default_regrets_what_others_gain_over_it_wherever_it_lies():
    space = space_of(product_task())
    others = [int(number) for number in space.legal if int(number) not in space.known][:4]
    for gains, said in (([0.5, 0.8, 0.6, 0.4], "0.0 %"), ([0.5, 1.25, 0.6, 0.4], "25.0 %")):
        search = SimpleNamespace(space=space, gains=dict(zip(others, gains)))
        assert regret_rows(search, seeds=1)[0] == ("default (no trial)", said, "")
