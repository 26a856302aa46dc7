"""Horizons over which no weights last: models that agree on a gain earn a test, and no wrong one does too often."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.cli.ope import _exit_status, _print_verdicts
from birl.dataset import Episode, create_infinite_replay_buffer
from birl.ope import STATUS, Estimate, Evaluation, OnlineTestPlan, Trajectories, evaluate, verdict, verdicts
from birl.ope.decision_page import plans_by_file, write_report
from birl.ope.evaluation import MODELS
from birl.ope.model_agreement import (
    ModelChecks,
    check_model,
    first_order_correction,
    model_gain,
    windowed_correction,
)
from birl.types import ActionSpace
from tests.ope import planted


class BySign:
    """Takes action 1 with a probability of ``chance`` where x is positive, and of ``1 - chance`` elsewhere."""

    def __init__(self, chance: float) -> None:
        self.chance = chance

    def action_probability(self, x: Any, action: Any = None) -> Any:
        one = np.where(np.asarray(x)[:, 0] > 0, self.chance, 1 - self.chance)
        every = np.stack([1 - one, one], -1)
        return every if action is None else every[np.arange(len(every)), np.asarray(action).reshape(-1)]


def dataset(x: np.ndarray, a: np.ndarray, r: np.ndarray, ended: bool = True) -> Any:
    steps = x.shape[1]
    extra = {"log_propensity": np.full(steps, np.log(0.5)), "propensities": np.full((steps, 2), 0.5)}
    columns = zip(x.astype(np.float32), a, r.astype(np.float32), strict=True)
    episodes = [Episode(*(each[:, None] for each in row), ended, extra=extra) for row in columns]
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


def logs(effect: float, seed: int, n: int = 100, steps: int = 60, ended: bool = True) -> Any:
    """Logs with uniform actions: action 1 pays ``effect x`` and action 0 pays ``-effect x``, next to what x pays."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, steps))
    for t in range(1, steps):
        x[:, t] = 0.5 * x[:, t - 1] + np.sqrt(0.75) * x[:, t]
    a = rng.integers(0, 2, (n, steps))
    return dataset(x, a, effect * (2 * a - 1) * x + 0.5 * x + rng.normal(size=(n, steps)), ended)


def truth(effect: float, chance: float, steps: int, gamma: float = 0.99) -> float:
    return float(effect * (2 * chance - 1) * np.sqrt(2 / np.pi) * (1 - gamma**steps) / (1 - gamma))


def hidden(seed: int, n: int = 150, steps: int = 60, lasts: float = 0.8) -> Any:
    """Action 1 pays 0.3 where x is positive, and costs 1 over the next steps, by a state that no observation shows."""
    rng = np.random.default_rng(seed)
    x, a, damage = rng.normal(size=(n, steps)), rng.integers(0, 2, (n, steps)), np.zeros(n)
    r = rng.normal(size=(n, steps))
    for t in range(steps):
        acts = a[:, t] * (x[:, t] > 0)
        r[:, t] += 0.3 * acts - damage
        damage = lasts * damage + (1 - lasts) * acts
    return dataset(x, a, r)


def found(effect: float, chance: float, seed: int, n: int = 100, steps: int = 60) -> Evaluation:
    return evaluate(BySign(chance), logs(effect, seed, n, steps), gamma=0.99)


def test_two_hundred_steps_with_a_gain_are_worth_a_test() -> None:
    """The weights of 200 steps leave one effective episode in 120; models find a gain of 16."""
    of = found(0.3, 0.9, 0, n=120, steps=200)
    said, gain = verdict(of), truth(0.3, 0.9, 200)
    assert of.decides is None and gain == pytest.approx(16.6, abs=0.1)
    assert said.verdict == "test_online" and said.status == STATUS["test_online"] == 6 and said.label == "test online"
    assert said.lower is not None and said.upper is not None and 5 < said.lower < gain < said.upper < 40
    assert said.reasons[0].startswith("models agree on a gain between ") and "effective episodes" in said.reasons[1]
    assert said.plan is not None and said.plan.share == 0.1 and said.lower < said.plan.gain < gain
    assert said.remedies[: len(said.plan.sentences)] == said.plan.sentences
    assert said.assumptions[0].startswith("the models are right: observations hold the whole state")
    assert verdict(of, min_gain=20.0).verdict == "cannot_tell"
    assert verdicts({"one": of, "two": of})["one"].confidence == pytest.approx(0.975)


@pytest.mark.parametrize(("effect", "chance"), [(0.0, 0.8), (0.0, 0.9), (-0.2, 0.8)])
def test_no_gain_earns_no_test(effect: float, chance: float) -> None:
    for seed in range(6):
        of = found(effect, chance, seed)
        assert of.model_checks is not None and verdict(of).verdict == "cannot_tell"


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "chance"), [(0.0, 0.8), (0.0, 0.9), (-0.05, 0.8)])
def test_no_gain_earns_a_test_too_often(effect: float, chance: float) -> None:
    wrong = sum(verdict(found(effect, chance, seed)).verdict == "test_online" for seed in range(1000))
    assert not planted.too_few(1000 - wrong, 1000, 0.975), wrong


def test_a_hidden_state_earns_no_test() -> None:
    said = [evaluate(BySign(0.9), hidden(seed), gamma=0.99) for seed in range(4)]
    assert [verdict(each).verdict for each in said] == ["cannot_tell"] * 4
    checks = [each.model_checks for each in said]
    assert all(each is not None and (each.faults or each.windowed.value < -1) for each in checks)
    assert any(each.rows["direct_method"].gain.value > 0 for each in said)  # what the model says


def curved(seed: int, n: int = 100, steps: int = 60) -> Any:
    """Action 1 pays ``x^3 / 2 - x``, whose mean product with the sign of a normal x is 0, but not that with x."""
    rng = np.random.default_rng(seed)
    x, a = rng.normal(size=(n, steps)), rng.integers(0, 2, (n, steps))
    return dataset(x, a, (2 * a - 1) * (x**3 / 2 - x) + rng.normal(size=(n, steps)))


def test_linear_models_that_are_wrong_together_earn_no_test() -> None:
    for seed in range(3):
        of = evaluate(BySign(0.8), curved(seed), gamma=0.99)
        assert verdict(of).verdict == "cannot_tell"
        for name in MODELS:
            assert of.rows[name].gain.value > 2, name  # both see a gain, and none is there


@pytest.mark.slow
def test_linear_models_that_are_wrong_together_earn_a_test_rarely() -> None:
    of = (evaluate(BySign(0.8), curved(seed), gamma=0.99) for seed in range(1000))
    counts = Counter(verdict(each).verdict for each in of)
    assert not planted.too_few(1000 - counts["test_online"], 1000, 0.975), counts


def test_a_hidden_state_that_lasts_long_earns_no_test() -> None:
    for seed in range(2):
        of = evaluate(BySign(0.9), hidden(seed, n=120, steps=100, lasts=0.97), gamma=0.99)
        gain = model_gain(of.rows[MODELS[0]].gain, of.rows[MODELS[1]].gain, of.model_checks or CHECKS, 0.95)
        assert verdict(of).verdict == "cannot_tell" and gain.linear > 0 > gain.first_order


@pytest.mark.slow
@pytest.mark.parametrize(("lasts", "steps"), [(0.8, 60), (0.97, 100)])
def test_a_hidden_state_earns_a_test_rarely(lasts: float, steps: int) -> None:
    of = (evaluate(BySign(0.9), hidden(seed, 150, steps, lasts), gamma=0.99) for seed in range(1000))
    counts = Counter(verdict(each).verdict for each in of)
    assert not planted.too_few(1000 - counts["test_online"], 1000, 0.975), counts


@pytest.mark.slow
def test_gains_earn_a_test_often() -> None:
    """Half of the logs of 100 episodes, and most of those of 250."""
    of = (found(0.3, 0.9, seed, n=250) for seed in range(100))
    assert sum(verdict(each).verdict == "test_online" for each in of) > 75


def test_faults_of_the_logs_earn_no_test() -> None:
    """The same gain, with episodes that a policy has seen, too few, or cut off."""
    data = logs(0.5, 0)
    assert verdict(evaluate(BySign(0.9), data, gamma=0.99)).verdict == "test_online"
    assert verdict(evaluate(BySign(0.9), data, gamma=0.99, seen=True)).verdict == "cannot_tell"
    assert verdict(evaluate(BySign(0.9), logs(0.5, 0, n=25), gamma=0.99)).verdict == "cannot_tell"
    estimated = evaluate(BySign(0.9), data, gamma=0.99, against=BySign(0.6))
    assert verdict(estimated).verdict in ("test_online", "cannot_tell") and estimated.against == "other policy"


def episodes(seed: int = 0, n: int = 200) -> Trajectories:
    rng = np.random.default_rng(seed)
    q, mask = rng.normal(size=(n, 4)), np.ones((n, 4), bool)
    v = rng.normal(size=(n, 4))
    after = np.append(v[:, 1:], np.zeros((n, 1)), 1)
    return Trajectories(q - 0.9 * after + rng.normal(size=(n, 4)), mask, 0.9, 0.1 * rng.normal(size=(n, 4)), q, v)


def test_a_model_is_checked_where_weights_last() -> None:
    of, ess = episodes(), np.array([150.0, 80.0, 30.0, 60.0])
    good = check_model(of, ess)
    assert good.carried == 2 and good.faults == ()
    biased = Trajectories(of.reward + 1.0, of.mask, of.gamma, of.log_ratio, of.q, of.v)
    assert check_model(biased, ess).faults[0].startswith("weights contradict the model over the first 2 steps")
    late = np.zeros((200, 4)) + np.array([0, 0, 5, 5])
    assert not check_model(Trajectories(of.reward + late, of.mask, of.gamma, of.log_ratio, of.q, of.v), ess).early_error
    kept = np.random.default_rng(1).normal(size=(200, 1))
    related = check_model(Trajectories(of.reward + kept, of.mask, of.gamma, of.log_ratio, of.q, of.v), ess)
    assert related.memory and "observations do not hold the whole state" in related.faults[-1]
    assert check_model(of, np.zeros(4)).faults == ("weights cannot check the model at any step",)


NONE = Estimate(np.zeros(400))
CHECKS = ModelChecks(2, False, False, 4, NONE, NONE)


def test_a_report_has_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = found(0.5, 0.8, 1)
    said = verdict(of)
    assert said.verdict == "test_online" and said.plan is not None
    write_report(tmp_path, {"new": of}, {"new": said})
    page, (data,) = (
        (tmp_path / "report.html").read_text(),
        json.loads((tmp_path / "report.json").read_text())["policies"],
    )
    assert "new: test online" in page and f"until there are {said.plan.units:,} units in both arms" in page
    assert "the models are right: observations hold the whole state" in page
    assert data["verdict"] == "test_online" and data["status"] == 6 and data["gain"] == [said.lower, said.upper]
    assert data["online_test"]["units"] == said.plan.units and data["online_test"]["share"] == 0.1
    assert OnlineTestPlan.load(tmp_path / "online_test.json") == said.plan
    assert [*plans_by_file({"a": said, "b": said})] == ["online_test_1.json", "online_test_2.json"]
    assert _exit_status({"new": said, "other": replace(said, verdict="more_data")}) == 6
    assert _exit_status({"new": said, "other": replace(said, verdict="ship")}) == 0
    _print_verdicts({"new": of}, {"new": said}, None, False)
    assert capsys.readouterr().out.startswith("new: test_online\n  models agree on a gain between ")


def test_models_that_differ_agree_on_less() -> None:
    rng = np.random.default_rng(0)
    terms, checks = rng.normal(size=400) + 3, CHECKS
    same = model_gain(Estimate(np.full(400, terms.mean())), Estimate(terms), checks, 0.95)
    other = model_gain(Estimate(np.full(400, terms.mean() - 1)), Estimate(terms), checks, 0.95)
    assert same.lower == pytest.approx(terms.mean() - 1.966 * terms.std(ddof=1) / 20, abs=1e-3)
    assert other.lower == pytest.approx(same.lower - 2) and other.upper == pytest.approx(same.upper + 1)
    doubt = replace(checks, first_order=Estimate(10 * rng.normal(size=400) - 2))
    less = model_gain(Estimate(np.full(400, terms.mean())), Estimate(terms), doubt, 0.95)
    assert less.first_order == pytest.approx(1, abs=1.5) and less.lower < same.lower - 1.5


def test_corrections_are_those_of_plain_sums() -> None:
    of, steps = episodes(n=300), 4
    window, windowed = windowed_correction(of)
    assert window == 16  # all of these few steps
    ratio, reward = np.exp(of.log_ratio), of.reward
    for i in (0, 7):
        plain, whole, linear = 0.0, 1.0, 1.0
        exact = 0.0
        for t in range(steps):
            after = of.v[i, t + 1] if t < steps - 1 else 0.0
            error = 0.9**t * (reward[i, t] + 0.9 * after - of.q[i, t])
            whole *= ratio[i, t]
            exact += whole * error
            plain += ratio[i, t] * linear * error
            linear += ratio[i, t] - 1
        assert windowed.terms[i] == pytest.approx(exact)
        assert first_order_correction(of).terms[i] == pytest.approx(plain)
