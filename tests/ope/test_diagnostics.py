"""Figures of weights by hand, and the one table of limits with its messages."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import birl.ope
from birl.dataset.logs.splits import MIN_EPISODES
from birl.errors import ConfigError, DataError, ShapeError
from birl.ope import (
    FACTS,
    LIMITS,
    Estimate,
    Trajectories,
    allowed,
    calibration_error,
    check_limits,
    diagnose,
    kappa,
    model_facts,
    pareto_k,
    unsupported_mass,
    weight_facts,
)
from birl.ope.estimators import ESTIMATORS
from birl.ope.validity_limits import FAMILIES


def of_ratios(rho: list[list[float]], mask: list[list[bool]] | None = None, gamma: float = 1.0) -> Trajectories:
    ratio = np.array(rho)
    steps = np.ones(ratio.shape, bool) if mask is None else np.array(mask)
    with np.errstate(divide="ignore"):
        return Trajectories(np.zeros(ratio.shape), steps, gamma, np.log(ratio))


def test_by_hand() -> None:
    """Weights 2, 1, 1 and then 4, 0, 1; after its end an episode keeps its weight."""
    of = of_ratios([[2, 2], [1, 0], [1, 7]], [[True, True], [True, True], [True, False]])
    found = diagnose(of)
    np.testing.assert_allclose(found.ess_by_step, [16 / 6, 25 / 17])
    assert found.ess == pytest.approx(25 / 17) and found.share == pytest.approx(0.8)
    assert found.heaviest == pytest.approx(1)
    np.testing.assert_allclose(found.mean_weight, [4 / 3, 5 / 3])
    assert found.low_step(2) == 1 and found.low_step(1) == 2 and found.low_step() == 0
    assert found.kappa == pytest.approx((4 + 1) / (3 + 4 + 1))  # w^2 of those that go on, over w^2 before each step


def test_equal_policies() -> None:
    found = diagnose(of_ratios([[1.0] * 3] * 40))
    assert found.ess == 40 and found.share == 1 / 40 and found.heaviest == 0.25 and found.mean_error == 0
    assert found.pareto_k == -math.inf
    assert allowed(check_limits(weight_facts(found))) == sum(FAMILIES.values(), ())


def test_nothing_in_common() -> None:
    found = diagnose(of_ratios([[0.0, 1.0]] * 50))
    assert found.ess == 0 and found.share == 1
    assert set(allowed(check_limits(weight_facts(found)))) & set(FAMILIES["weights"]) == set()


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0])
def test_the_shape_of_a_tail(k: float) -> None:
    """Quantiles of a generalised Pareto distribution; the estimate is drawn towards 0.5 as by ten weights."""
    p = np.random.default_rng(0).random((40, 4000))
    found = pareto_k(np.log(((1 - p) ** -k - 1) / k + 1e-9))
    assert found.shape == (40,)
    size = math.ceil(3 * math.sqrt(4000))
    assert found.mean() == pytest.approx((size * k + 5) / (size + 10), abs=0.06)
    np.testing.assert_allclose(pareto_k(np.log(p[0]) + 1000), pareto_k(np.log(p[0])), atol=1e-9)  # whatever the scale
    assert pareto_k(np.zeros(20)) == math.inf  # too few to tell
    few = np.repeat([0.5, 1.0, 1.1, 1.3], [200, 280, 15, 5])
    assert pareto_k(np.log(few)) < 0.5  # steps between few values are no heavy tail
    small = pareto_k(np.log(((1 - p[:, :100]) ** -1.0 - 1) + 1e-9)).mean()
    assert small == pytest.approx((20 * 1 + 10 * 0.5) / 30, abs=0.07)  # twenty weights and the prior of ten
    rough = np.round(np.log(((1 - p[:20]) ** -k - 1) / k + 1e-9), 1)  # ties change little
    assert pareto_k(rough).mean() == pytest.approx(found[:20].mean(), abs=0.1)


def test_kappa_tells_weights_whose_variance_grows_for_ever() -> None:
    rng = np.random.default_rng(0)
    for target, gamma, grows in ((0.9, 1.0, True), (0.55, 0.9, False)):
        action = rng.random((4000, 6)) < 0.5
        rho = np.where(action, target, 1 - target) / 0.5
        found = float(kappa(Trajectories(rho * 0, rho > -1, gamma, np.log(rho))))
        second = gamma**2 * (target**2 + (1 - target) ** 2) / 0.5
        assert (second > 1) == grows
        assert found == pytest.approx(second * 5 / 6, rel=0.6) or grows


def test_wrong_propensities_move_the_mean_weight() -> None:
    rng = np.random.default_rng(0)
    rho = rng.uniform(0.5, 1.5, (400, 5))
    assert diagnose(of_ratios(rho.tolist())).mean_error < 3
    for factor in (0.8, 1.25):
        found = diagnose(of_ratios((factor * rho).tolist()))
        refused = [one for one in check_limits(weight_facts(found)) if one.refused]
        assert {one.family for one in refused if one.fact == "mean_error"} == {"weights", "robust", "kernel"}
        assert "at most 4 is allowed: check that propensities are those" in refused[0].message


def test_support_and_calibration() -> None:
    target = np.array([[[0.7, 0.3], [1.0, 0.0]]])
    supported = np.array([[[True, False], [False, True]]])
    assert unsupported_mass(target, supported, np.array([[True, True]])) == pytest.approx(0.65)
    assert unsupported_mass(target, supported, np.array([[True, False]])) == pytest.approx(0.3)
    with pytest.raises(ShapeError, match="must be"):
        unsupported_mass(target, supported[..., :1], np.array([[True, True]]))
    taken = np.array([0, 0, 0, 1])
    even = np.tile([0.75, 0.25], (4, 1))
    assert calibration_error(even, taken) == pytest.approx(0)
    assert calibration_error(even[:, ::-1], taken) == pytest.approx(0.5)
    assert pareto_k(np.full(100, -np.inf)) == np.inf
    many, first = np.eye(100)[np.zeros(7, int)], np.zeros(7, int)
    assert calibration_error(many, first) == pytest.approx(0) and calibration_error(many, first + 1) == pytest.approx(1)
    with pytest.raises(DataError, match=r"the probabilities of step 0 sum to 1.5; they must sum to 1"):
        calibration_error(2 * even[:, :1] * [[1, 0]], taken)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.fact}-{limit.families[0]}")
def test_every_limit_warns_refuses_and_says_what_helps(limit: birl.ope.Limit) -> None:
    worse = -1e-6 if limit.too_low else 1e-6
    for end, refused, word in ((limit.warn, False, "safe"), (limit.refuse, True, "allowed")):
        if end is not None:
            tail = f"{end:g} is {word}: {limit.remedy}"
            at, beyond = (
                {
                    one.family
                    for one in check_limits({limit.fact: value})
                    if one.refused == refused and tail in one.message
                }
                for value in (end, end + worse)
            )
            assert beyond >= set(limit.families) and not at & set(limit.families)
    assert limit.remedy and "{}" in limit.meaning and set(limit.families) <= FAMILIES.keys()
    assert any(one.refused for one in check_limits({limit.fact: math.nan})) == any(
        other.refuse is not None for other in LIMITS if other.fact == limit.fact
    )


def test_findings_and_what_they_leave() -> None:
    found = check_limits({"ess": 12.0, "episodes": 80, "clusters": None})
    assert [one.refused for one in found] == [True, True, *[False] * 6]
    assert found[0].message == (
        "effective episodes: 12; at least 20 is allowed: "
        "evaluate a policy nearer to the logs or a shorter horizon, or log more episodes"
    )
    assert set(allowed(found)) == {*FAMILIES["robust"], *FAMILIES["marginal"], "direct_method"}
    assert allowed(check_limits({"episodes": 12})) == ()
    with pytest.raises(ConfigError, match=r"'esss' is no fact; the facts are episodes, .*did you mean 'ess'\?"):
        check_limits({"esss": 1})
    with pytest.raises(ConfigError, match="check each alone"):
        weight_facts(diagnose(Trajectories(*np.ones((2, 3, 4, 2)) > 0, 1.0, np.zeros((3, 4, 2)))))


def test_a_model_that_differs_is_refused_and_so_are_few_weights_with_it() -> None:
    rng = np.random.default_rng(0)
    model = Estimate(rng.normal(5, 0.1, 100))
    near, far = Estimate(model.terms + rng.normal(0, 1, 100)), Estimate(model.terms + rng.normal(3, 1, 100))
    assert model_facts(near, model, 8.0) == {"model_differs": 0.0, "ess_where_model_differs": None}
    assert set(allowed(check_limits(model_facts(far, model, 60.0)))) >= set(FAMILIES["robust"])
    assert set(allowed(check_limits(model_facts(far, model, 8.0)))) == {
        *FAMILIES["weights"],
        *FAMILIES["marginal"],
        "kernel",
    }


def test_limits_are_in_one_place() -> None:
    """Every estimator with doubts has a family, every fact a row, and no module compares with a limit's number."""
    assert {name for names in FAMILIES.values() for name in names} >= ESTIMATORS.keys() - {"on_policy"}
    assert len(FACTS) >= 15 and {limit.fact for limit in LIMITS} == set(FACTS)
    folder = Path(birl.ope.__file__).parent
    numbers = {0.7, 0.15}
    for path in folder.glob("*.py"):
        found = {node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)}
        assert not numbers <= found, path.name
    assert {(limit.fact, limit.refuse) for limit in LIMITS} >= {("pareto_k", 0.7), ("share", 0.15)}
    assert {limit.refuse for limit in LIMITS if limit.fact in ("episodes", "clusters")} == {MIN_EPISODES}
