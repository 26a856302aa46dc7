"""Slates: each estimator against sums over all slates and plain references, and with the assumption it makes broken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl import ope
from birl.errors import ActionError, BirlError, ConfigError, DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.ope import SlateProbabilities, Slates
from birl.ope.decision_page import write_report
from birl.ope.slates import pseudoinverse_weight
from tests.ope.planted import Array, covers, too_few

ITEMS, SHOWN = 5, 3
EVERY = np.array(list(permutations(range(ITEMS), SHOWN)))
RNG = np.random.default_rng(7)
LOGGING = 0.5 * RNG.normal(size=ITEMS)
TARGET = LOGGING + 0.7 * RNG.normal(size=ITEMS)
BASE = RNG.uniform(0.1, 0.8, (SHOWN, ITEMS))
PAIRS = -0.5 * np.tanh(TARGET - LOGGING)[:, None] + 0.1 * RNG.normal(size=(ITEMS, ITEMS))  # of an item above


def by_position(item: Array) -> Array:
    """Mean rewards where each item stands for itself."""
    return BASE[np.arange(SHOWN), item]


def by_cascade(item: Array) -> Array:
    """The item above matters, too."""
    reward = by_position(item)
    reward[:, 1:] += PAIRS[item[:, :-1], item[:, 1:]]
    return reward


def by_all(item: Array) -> Array:
    """The last item also changes the reward of the first."""
    reward = by_cascade(item)
    reward[:, 0] += 4 * PAIRS[item[:, -1], item[:, 0]]
    return reward


WORLDS = {each.__name__: each for each in (by_position, by_cascade, by_all)}
ESTIMATORS: dict[str, Callable[[Slates], ope.Estimate]] = {
    "slate_importance_sampling": ope.slate_importance_sampling,
    "reward_interaction": ope.reward_interaction,
    "cascade_doubly_robust": ope.cascade_doubly_robust,
    "item_position": ope.item_position,
}
HOLDS = {
    "by_position": set(ESTIMATORS),
    "by_cascade": {"slate_importance_sampling", "reward_interaction", "cascade_doubly_robust"},
    "by_all": {"slate_importance_sampling"},
}


def slates_of(item: Array, reward: Array, logging: Array = LOGGING, target: Array = TARGET) -> Slates:
    mask = np.ones(item.shape, bool)
    logged, policy = (SlateProbabilities.plackett_luce(scores, item, mask) for scores in (logging, target))
    return Slates(item, reward, mask, logged, policy)


def draw(world: Callable[[Array], Array], n: int, rng: np.random.Generator, logging: Array = LOGGING) -> Slates:
    item = np.argsort(-(logging + rng.gumbel(size=(n, ITEMS))), -1)[:, :SHOWN]
    return slates_of(item, world(item) + 0.3 * rng.normal(size=item.shape), logging)


def probability_of(scores: Array, slate: Array, count: int = SHOWN) -> float:
    """Probability of the first items of a slate, one choice after the other."""
    left, product = dict(enumerate(np.exp(scores))), 1.0
    for item in slate[:count]:
        product *= left[item] / sum(left.values())
        del left[item]
    return product


def truth(world: Callable[[Array], Array]) -> float:
    return sum(probability_of(TARGET, slate) * float(world(slate[None])[0].sum()) for slate in EVERY)


def test_probabilities_are_sums_over_all_slates() -> None:
    found = SlateProbabilities.plackett_luce(TARGET, EVERY, np.ones(EVERY.shape, bool))
    assert found.slate is not None and found.position is not None and found.choice is not None
    chance = np.array([probability_of(TARGET, slate) for slate in EVERY])
    np.testing.assert_allclose(found.slate, chance)
    for row, slate in enumerate(EVERY[::7]):
        for place in range(SHOWN):
            assert found.prefix is not None and found.anywhere is not None
            assert np.isclose(found.prefix[7 * row, place], probability_of(TARGET, slate, place + 1))
            assert np.isclose(found.position[7 * row, place], chance[EVERY[:, place] == slate[place]].sum())
            assert np.isclose(found.anywhere[7 * row, place], chance[(slate[place] == EVERY).any(1)].sum())
    np.testing.assert_allclose(found.choice.sum(-1), 1.0)
    many = SlateProbabilities.plackett_luce(np.zeros(200), EVERY, np.ones(EVERY.shape, bool))
    assert many.position is None and many.prefix is not None


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_mean_over_all_slates_is_the_value_if_the_assumption_holds(world: str, name: str) -> None:
    slates = slates_of(EVERY, WORLDS[world](EVERY))
    assert slates.logged.slate is not None
    values = np.random.default_rng(0).normal(size=(len(EVERY), SHOWN, ITEMS))  # of any model that is a function of ...
    values[...] = values[:1]  # ... position and item
    terms = ope.cascade_doubly_robust(slates, values) if name == "cascade_doubly_robust" else ESTIMATORS[name](slates)
    error = float((slates.logged.slate * terms.terms).sum()) - truth(WORLDS[world])
    assert (abs(error) < 1e-9) == (name in HOLDS[world]), error


def test_estimates_are_those_of_plain_loops() -> None:
    slates = draw(by_all, 40, np.random.default_rng(0))
    values = np.random.default_rng(1).normal(size=(40, SHOWN, ITEMS))
    found = {name: ESTIMATORS[name](slates).terms for name in ESTIMATORS}
    found["cascade_doubly_robust"] = ope.cascade_doubly_robust(slates, values).terms
    for row, (slate, reward) in enumerate(zip(slates.item, slates.reward, strict=True)):
        weights = [1.0, *(probability_of(TARGET, slate, k) / probability_of(LOGGING, slate, k) for k in (1, 2, 3))]
        at = [
            sum(probability_of(TARGET, each) for each in EVERY if each[k] == slate[k])
            / sum(probability_of(LOGGING, each) for each in EVERY if each[k] == slate[k])
            for k in range(SHOWN)
        ]
        robust = 0.0
        for k in range(SHOWN):
            left = [item for item in range(ITEMS) if item not in slate[:k]]
            total = sum(np.exp(TARGET[item]) for item in left)
            model = sum(np.exp(TARGET[item]) / total * values[row, k, item] for item in left)
            robust += weights[k + 1] * (reward[k] - values[row, k, slate[k]]) + weights[k] * model
        expected = {
            "slate_importance_sampling": weights[-1] * sum(reward),
            "reward_interaction": sum(w * r for w, r in zip(weights[1:], reward, strict=True)),
            "item_position": sum(w * r for w, r in zip(at, reward, strict=True)),
            "cascade_doubly_robust": robust,
        }
        for name, value in expected.items():
            assert np.isclose(found[name][row], value), name


def test_slates_of_several_lengths_are_those_of_each_length() -> None:
    """A slate ends where its mask ends: the estimates of each length alone, weighted by their numbers."""
    rng = np.random.default_rng(4)
    whole = draw(by_cascade, 60, rng)
    mask = np.arange(SHOWN) < np.repeat([2, 3], 30)[:, None]
    both = [SlateProbabilities.plackett_luce(scores, whole.item, mask) for scores in (LOGGING, TARGET)]
    mixed = Slates(np.where(mask, whole.item, -1), whole.reward, mask, both[0], both[1])
    short = whole.item[:30, :2]
    two = np.ones(short.shape, bool)
    parts = [SlateProbabilities.plackett_luce(scores, short, two) for scores in (LOGGING, TARGET)]
    alone = Slates(short, whole.reward[:30, :2], two, parts[0], parts[1])
    for name in ("slate_importance_sampling", "reward_interaction", "item_position"):
        np.testing.assert_allclose(ESTIMATORS[name](mixed).terms[:30], ESTIMATORS[name](alone).terms)
        np.testing.assert_allclose(ESTIMATORS[name](mixed).terms[30:], ESTIMATORS[name](whole).terms[30:])
    values = rng.normal(size=(60, SHOWN, ITEMS))
    robust = ope.cascade_doubly_robust(mixed, values).terms
    np.testing.assert_allclose(robust[:30], ope.cascade_doubly_robust(alone, values[:30, :2]).terms)
    assert np.isfinite(ope.cascade_doubly_robust(mixed).terms).all()
    with pytest.raises(DataError, match="slates have different lengths"):
        ope.pseudoinverse(mixed)
    bare = SlateProbabilities.plackett_luce(TARGET, whole.item, mask, choice=False)
    assert bare.choice is None and bare.prefix is not None


def test_pseudoinverse_is_that_of_the_matrix_of_pairs() -> None:
    """Swaminathan et al. 2017, section 3: ``q_pi^T Gamma^+ 1_s``, here by NumPy's pinv of all pairs."""
    slates = slates_of(EVERY, by_position(EVERY), np.zeros(ITEMS))
    one_hot = (EVERY[:, :, None] == np.arange(ITEMS)).reshape(len(EVERY), -1).astype(float)
    gamma = one_hot.T @ one_hot / len(EVERY)
    chance = np.array([probability_of(TARGET, slate) for slate in EVERY])
    weight = one_hot @ np.linalg.pinv(gamma) @ (chance @ one_hot)
    np.testing.assert_allclose(pseudoinverse_weight(slates, ITEMS), weight, atol=1e-9)
    assert np.isclose(ope.pseudoinverse(slates, ITEMS).value, truth(by_position))
    whole = np.array(list(permutations(range(3))))  # all items are shown
    mask, scores = np.ones(whole.shape, bool), TARGET[:3]
    logged, policy = (SlateProbabilities.plackett_luce(each, whole, mask) for each in (np.zeros(3), scores))
    all_shown = Slates(whole, BASE[np.arange(3), whole], mask, logged, policy)
    chance = np.array([probability_of(scores, slate) for slate in whole])
    assert np.isclose(ope.pseudoinverse(all_shown, 3).value, chance @ all_shown.reward.sum(-1))
    with pytest.raises(DataError, match=r"if 6 items are ranked uniformly it is 0\.166667: correct items"):
        ope.pseudoinverse(slates, 6)


def test_pseudoinverse_of_independent_positions() -> None:
    """Every position chooses from two items of its own."""
    rng = np.random.default_rng(3)
    side = rng.integers(2, size=(4000, SHOWN))
    item, logged, chosen = side + 2 * np.arange(SHOWN), np.full(side.shape, 0.5), np.where(side == 1, 0.8, 0.2)
    reward = side + 0.1 * rng.normal(size=side.shape)
    both = SlateProbabilities(position=logged), SlateProbabilities(position=chosen)
    slates = Slates(item, reward, np.ones(side.shape, bool), *both)
    estimate = ope.pseudoinverse(slates)
    assert ope.t_interval(estimate, 0.999).holds(3 * 0.8)
    assert np.isclose(estimate.terms[0], (1 + sum(chosen[0] / 0.5 - 1)) * reward[0].sum())


def test_a_deterministic_ranking() -> None:
    item = np.array([[2, 0, 1], [0, 2, 1], [2, 1, 0]])
    mask = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], bool)
    found = SlateProbabilities.ranking(np.array([2, 1, 0]), item, mask)
    assert found.slate is not None and found.prefix is not None and found.position is not None
    assert found.slate.tolist() == [0, 0, 1]
    assert found.prefix.tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert found.position.tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    with pytest.raises(ActionError, match="the ranking of slate 0 has the item 1 at the positions 0 and 2"):
        SlateProbabilities.ranking(np.array([1, 0, 1]), item, mask)


REPETITIONS = {"quick": 120, "whole": 1000}


@pytest.mark.parametrize("size", ["quick", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", WORLDS)
def test_intervals_cover_if_the_assumption_holds_and_not_if_it_is_broken(world: str, size: str) -> None:
    value, rng = truth(WORLDS[world]), np.random.default_rng(11)
    hits: dict[str, list[bool]] = {name: [] for name in ESTIMATORS}
    halved: dict[str, list[bool]] = {name: [] for name in ESTIMATORS}
    for _ in range(REPETITIONS[size]):
        slates = draw(WORLDS[world], 600, rng)
        for name, estimator in ESTIMATORS.items():
            estimate = estimator(slates)
            interval = ope.t_interval(estimate)
            hits[name].append(bool(interval.holds(value)))
            halved[name].append(bool(np.abs(estimate.value - value) <= (interval.upper - interval.lower) / 4))
    for name in ESTIMATORS:
        if name in HOLDS[world]:
            low = 0.91 if name == "slate_importance_sampling" else 0.93  # few effective slates: 0.93 at best
            assert covers(np.array(hits[name]), low), (name, np.mean(hits[name]))
            assert not covers(np.array(halved[name])), name
        else:
            assert too_few(sum(hits[name]), len(hits[name]), 0.9), (name, np.mean(hits[name]))


@pytest.mark.parametrize("size", ["quick", pytest.param("whole", marks=pytest.mark.slow)])
def test_wrong_ships_stay_rare_where_the_assumption_about_users_is_broken(size: str) -> None:
    """Every estimate of independent positions is too high here; estimates that assume less find it out."""
    rng, gain = (
        np.random.default_rng(6),
        truth(by_cascade) - sum(probability_of(LOGGING, each) * float(by_cascade(each[None]).sum()) for each in EVERY),
    )
    count, ships, answers = {"quick": 40, "whole": 1000}[size], 0, 0
    for _ in range(count):
        slates = draw(by_cascade, 1500, rng)
        wrong = ope.verdict(ope.evaluate_slates(slates, "item_position"), gain)
        right = ope.verdict(ope.evaluate_slates(slates, "cascade"), gain - 0.1)
        ships += wrong.verdict == "ship"
        answers += right.verdict == "ship"
        refused = (
            wrong.verdict != "cannot_tell" or "assumes less of users, contradicts item_position" in wrong.reasons[0]
        )
        assert refused, wrong.reasons
    assert not too_few(count - ships, count, 0.975), ships
    assert answers > 0.7 * count


def test_wrong_ships_stay_rare_at_no_gain() -> None:
    rng, wrong = np.random.default_rng(5), []
    for _ in range(80):
        item = np.argsort(-(LOGGING + rng.gumbel(size=(300, ITEMS))), -1)[:, :SHOWN]
        slates = slates_of(item, 0.5 + 0.3 * rng.normal(size=item.shape))  # no item is better than another
        wrong.append(ope.verdict(ope.evaluate_slates(slates, "cascade")).verdict == "ship")
    assert not too_few(len(wrong) - sum(wrong), len(wrong), 0.975)


# -- evaluations -------------------------------------------------------------------------------------------------------


def test_an_evaluation_decides_by_what_is_assumed_of_users(tmp_path: Path) -> None:
    slates = draw(by_cascade, 3000, np.random.default_rng(2))
    deciders = {users: ope.evaluate_slates(slates, users).decides for users in ope.USER_MODELS}
    assert deciders == {
        "none": "slate_importance_sampling",
        "cascade": "cascade_doubly_robust",
        "item_position": None,  # contradicted
        "additive": None,  # the logs are not ranked uniformly, and g is for independent positions
    }
    alone = draw(by_position, 3000, np.random.default_rng(2))
    assert ope.evaluate_slates(alone, "item_position").decides == "item_position"
    result = ope.evaluate_slates(slates, "cascade", name="new ranking")
    gain = truth(by_cascade) - sum(probability_of(LOGGING, each) * by_cascade(each[None]).sum() for each in EVERY)
    assert result.gain is not None and result.gain.gain_interval is not None and result.gain.gain_interval.holds(gain)
    verdict = ope.verdict(result, min_gain=-5)
    assert verdict.verdict == "ship" and "users read slates from the top" in verdict.assumptions[1]
    assert "the value is what you want to maximise: the mean sum of the rewards of a slate" in verdict.assumptions
    write_report(tmp_path, {"new": result}, {"new": verdict})
    page = (tmp_path / "report.html").read_text()
    assert "3000 slates, 9000 items" in page and "cascade_doubly_robust (decides)" in page


def test_without_effective_slates_whole_weights_are_refused_and_parts_are_not() -> None:
    rng, count = np.random.default_rng(0), 12
    item = np.argsort(rng.random((2000, count)), -1)
    slates = Slates(
        item,
        (item == np.arange(count)) + 0.1 * rng.normal(size=item.shape),
        np.ones(item.shape, bool),
        SlateProbabilities(slate=np.full(2000, 1 / 479001600), position=np.full(item.shape, 1 / count)),
        SlateProbabilities(),
    )
    ranked = SlateProbabilities.ranking(np.arange(count), item, slates.mask)
    refused = ope.verdict(ope.evaluate_slates(slates.under(ranked)))
    assert refused.verdict == "cannot_tell" and "effective" in refused.reasons[0]
    found = ope.verdict(ope.evaluate_slates(slates.under(ranked), "item_position"))
    assert found.verdict == "ship" and found.lower is not None and found.lower < count - 1 < (found.upper or 0)
    absent = ope.verdict(ope.evaluate_slates(slates.under(ranked), "cascade"))
    assert absent.verdict == "cannot_tell" and "not given: prefix" in absent.reasons[0]


def test_propensities_of_slates_given_as_those_of_positions_are_refused() -> None:
    slates = draw(by_position, 500, np.random.default_rng(2))
    assert slates.logged.slate is not None
    whole = np.repeat(slates.logged.slate[:, None], SHOWN, 1)
    given = Slates(slates.item, slates.reward, slates.mask, SlateProbabilities(position=whole), slates.policy)
    verdict = ope.verdict(ope.evaluate_slates(given, "item_position"))
    assert verdict.verdict == "cannot_tell" and "the mean weight differs from 1" in " ".join(verdict.reasons)


# -- bad input ---------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "item": np.array([[0, 1, 2], [2, 0, 1]]),
    "reward": np.zeros((2, 3)),
    "mask": np.ones((2, 3), bool),
    "logged": SlateProbabilities(slate=np.full(2, 1 / 6)),
    "policy": SlateProbabilities(slate=np.full(2, 0.5)),
}


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"item": np.array([[0, 1, 0], [2, 0, 1]])}, ActionError, "slate 0 has the item 0 at the positions 0 and 2"),
        ({"item": np.zeros((2, 3))}, EmptyDataError, r"item has the shape \(2, 3\) and dtype float64"),
        ({"reward": np.zeros((2, 2))}, ShapeError, r"reward has the shape \(2, 2\); it must be \(2, 3\)"),
        ({"reward": np.full((2, 3), np.nan)}, NonFiniteError, "reward is nan at step"),
        ({"mask": np.array([[1, 0, 1], [1, 1, 1]], bool)}, ShapeError, "mask has a hole at step"),
        ({"clusters": np.zeros(3)}, ShapeError, r"clusters has the shape \(3,\)"),
        (
            {"logged": SlateProbabilities(slate=np.full((2, 3), 0.3))},
            ShapeError,
            "give those of positions as prefix or position",
        ),
        ({"logged": SlateProbabilities(position=np.full(2, 0.3))}, ShapeError, "give those of slates as slate"),
        ({"logged": SlateProbabilities(slate=np.array([0.2, 0.0]))}, DataError, "logged.slate is 0 at .* above 0"),
        ({"policy": SlateProbabilities(slate=np.array([0.2, 1.5]))}, DataError, "policy.slate is 1.5 .* from 0 to 1"),
        (
            {"logged": SlateProbabilities(prefix=np.array([[0.1, 0.2, 0.1], [0.3, 0.2, 0.1]]))},
            DataError,
            "logged.prefix is 0.2 in slate 0, but the prefix above is 0.1",
        ),
        (
            {"logged": SlateProbabilities(slate=np.full(2, 0.4), position=np.full((2, 3), 0.3))},
            DataError,
            "logged.slate is 0.4 in slate 0, but position is 0.3",
        ),
        (
            {"logged": SlateProbabilities(slate=np.full(2, 0.1), position=np.full((2, 3), 0.1))},
            DataError,
            "these are probabilities of slates, not of positions",
        ),
        ({"policy": SlateProbabilities(choice=np.zeros((2, 3, 2)))}, ShapeError, "policy.choice has the shape"),
    ],
)
def test_bad_slates(changed: dict[str, Any], kind: type[BirlError], message: str) -> None:
    with pytest.raises(kind, match=message):
        Slates(**{**GOOD, **changed})


def test_an_estimator_names_the_probabilities_that_it_lacks() -> None:
    slates = Slates(**GOOD)
    with pytest.raises(DataError, match="policy has no position, the probability of an item at its position"):
        ope.item_position(slates)
    with pytest.raises(DataError, match="policy has no choice"):
        ope.cascade_doubly_robust(slates)
    with pytest.raises(ConfigError, match="users is 'top'; it must be one of 'none', 'cascade'"):
        ope.evaluate_slates(slates, "top")
    with pytest.raises(DataError, match="no estimate can be made"):
        ope.evaluate_slates(slates.under(SlateProbabilities()))


# -- tables ------------------------------------------------------------------------------------------------------------


def feedback(slates: Slates) -> dict[str, Any]:
    """The columns of OBP's slates, one row for each position."""
    n = len(slates.item)
    return {
        "n_rounds": n,
        "slate_id": np.repeat(np.arange(n), SHOWN),
        "position": np.tile(np.arange(SHOWN), n),
        "action": slates.item.ravel(),
        "reward": slates.reward.ravel(),
        "pscore": np.repeat(slates.logged.slate, SHOWN),  # type: ignore[arg-type]
        "pscore_cascade": slates.logged.prefix.ravel(),  # type: ignore[union-attr]
        "pscore_item_position": slates.logged.position.ravel(),  # type: ignore[union-attr]
        "evaluation_policy_pscore": np.repeat(slates.policy.slate, SHOWN),  # type: ignore[arg-type]
        "evaluation_policy_pscore_cascade": slates.policy.prefix.ravel(),  # type: ignore[union-attr]
        "evaluation_policy_pscore_item_position": slates.policy.position.ravel(),  # type: ignore[union-attr]
    }


def test_a_table_of_obp_makes_the_same_estimates() -> None:
    slates = draw(by_cascade, 50, np.random.default_rng(0))
    table = feedback(slates)
    found = ope.slates_from_table(table)
    shuffled = np.random.default_rng(0).permutation(len(table["action"]))
    mixed = ope.slates_from_table({name: value[shuffled] for name, value in table.items() if name != "n_rounds"})
    for name in ("slate_importance_sampling", "reward_interaction", "item_position"):
        terms = ESTIMATORS[name](slates).terms
        np.testing.assert_allclose(ESTIMATORS[name](found).terms, terms)
        np.testing.assert_allclose(np.sort(ESTIMATORS[name](mixed).terms), np.sort(terms))


def test_columns_of_other_names_text_and_a_ranking() -> None:
    table = {
        "request": ["b", "b", "a", "a", "a"],
        "at": [1, 2, 3, 1, 2],
        "article": ["x", "y", "x", "z", "y"],
        "clicked": [True, False, True, False, False],
        "p": [0.5, 0.4, 0.5, 0.25, 0.5],
        "new": ["x", "z", "y", "z", "x"],
        "user": ["u", "u", "v", "v", "v"],
    }
    roles = {"slate": "request", "position": "at", "item": "article", "logged.conditional": "p", "policy.item": "new"}
    found = ope.slates_from_table(table, {**roles, "cluster": "user"})
    assert found.item.tolist() == [[0, 1, 0], [2, 1, 0]] and found.mask.tolist() == [[True, True, False], [True] * 3]
    assert found.logged.prefix is not None and found.policy.prefix is not None and found.clusters is not None
    np.testing.assert_allclose(found.logged.prefix, [[0.5, 0.2, 0.2], [0.25, 0.125, 0.0625]])
    assert found.policy.prefix.tolist() == [[1, 0, 0], [1, 0, 0]] and found.clusters.tolist() == [0, 1]


TABLE: dict[str, Any] = {
    "slate_id": np.array([5, 5, 9, 9]),
    "position": np.array([1, 2, 1, 2]),
    "item_id": np.array([3, 4, 4, 3]),
    "click": np.array([0.0, 1.0, 0.0, 0.0]),
    "propensity_score": np.full(4, 0.5),
}


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        (
            {"item_id": np.array([3, 3, 4, 3])},
            ActionError,
            "rows 1 and 2 of the table show item 3 twice in slate 5; each item must be there once",
        ),
        ({"position": np.array([1, 1, 1, 2])}, DataError, "rows 1 and 2 of the table are both position 1 of slate 5"),
        (
            {"position": np.array([1, 2, 2, 3])},
            DataError,
            "row 3 of the table is position 2 of slate 9, which has no position 1",
        ),
        (
            {"click": np.array([0, 1, np.nan, 0])},
            NonFiniteError,
            "row 3 of the table, column 'click': the reward is mis",
        ),
        ({"click": ["no", "yes", "no", "no"]}, DataError, "the reward is 'no'; it must be a number"),
        (
            {"pscore": np.array([0.5, 0.4, 0.5, 0.4])},
            DataError,
            "row 2 of the table: the probability of its slate is 0.4, but 0.5 in row 1 of the same slate",
        ),
        ({"slate_id": None}, DataError, "no column of the slate .* every row is a decision of its own"),
        ({"item_id": np.zeros((4, 2))}, ShapeError, "column 'item_id', the item, holds lists"),
    ],
)
def test_bad_tables(changed: dict[str, Any], kind: type[BirlError], message: str) -> None:
    table = {name: value for name, value in {**TABLE, **changed}.items() if value is not None}
    with pytest.raises(kind, match=message):
        ope.slates_from_table(table)
    assert ope.slates_from_table(TABLE).item.tolist() == [[3, 4], [4, 3]]


def test_unknown_roles() -> None:
    with pytest.raises(ConfigError, match="'slat' is no role of a column.*did you mean 'slate'"):
        ope.slates_from_table(TABLE, {"slat": "slate_id"})
