"""Plans and readings of online tests whose effect is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from birl.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    FileError,
    ForeignFileError,
    NonFiniteError,
    ShapeError,
)
from birl.ope import (
    READ_STATUS,
    OnlineTestPlan,
    OpenEnded,
    effective_share,
    episodes_to_log,
    plan_online_test,
    read_online_test,
    sample_size,
)
from birl.ope.online_test import RULES
from birl.ope.online_test_page import write_online_test
from tests.ope import planted


def world(seed: int, n: int, effect: float, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    treated = rng.random(n) < share
    return treated, rng.normal(size=n) + effect * treated


def decisions(plan: OnlineTestPlan, effect: float, repetitions: int) -> dict[str, int]:
    counts = dict.fromkeys(READ_STATUS, 0)
    for seed in range(repetitions):
        counts[read_online_test(*world(seed, plan.units, effect, plan.share), plan).decision] += 1
    return counts


def test_a_sample_size_is_the_textbook_one() -> None:
    """Two arms of 16 / d^2 units (Lehr's rule), and unequal shares and variances by hand."""
    assert sample_size(0.5, 1.0) == pytest.approx(2 * 62.79, abs=0.1)
    by_hand = (1.959964 + 1.281552) ** 2 * (4 / 0.1 + 1 / 0.9) / 0.04
    assert sample_size(0.2, 1.0, std_new=2.0, share=0.1, power=0.9) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_sample_size_has_its_power(share: float) -> None:
    n, hits = math.ceil(sample_size(0.25, 1.0, share=share)), 0
    for seed in range(500):
        treated, y = world(seed, n, 0.25, share)
        difference = y[treated].mean() - y[~treated].mean()
        hits += difference > 1.96 * math.sqrt(1 / treated.sum() + 1 / (~treated).sum())
    assert not planted.too_few(hits, 500, 0.78) and not planted.too_few(500 - hits, 500, 0.18)


@pytest.mark.parametrize("rule", RULES)
def test_a_plan_keeps_its_power_and_its_error(rule: str) -> None:
    plan = plan_online_test(0.3, 1.0, rule=rule, share=0.3)
    gain, none = decisions(plan, 0.3, 300)["ship"], decisions(plan, 0.0, 300)["ship"]
    assert not planted.too_few(gain, 300, 0.78) and not planted.too_few(300 - gain, 300, 0.15), gain
    assert not planted.too_few(300 - none, 300, 0.975), none
    assert decisions(plan, -0.3, 60)["ship"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_plans_keep_their_power_and_their_error(rule: str, share: float) -> None:
    """Whole: 1,000 tests at the gain, at no gain and at a loss, read after every unit."""
    plan = plan_online_test(0.2, 1.0, rule=rule, share=share)
    gain, none, loss = (decisions(plan, effect, 1000) for effect in (0.2, 0.0, -0.2))
    assert not planted.too_few(gain["ship"], 1000, 0.79) and not planted.too_few(1000 - gain["ship"], 1000, 0.16)
    assert not planted.too_few(1000 - none["ship"], 1000, 0.975) and loss["ship"] <= 2
    assert not planted.too_few(1000 - none["stop_for_harm"], 1000, 0.95)


def test_a_test_without_a_plan_may_be_read_every_day() -> None:
    """A hundred readings of growing logs at no gain: few ships at any time, and what was decided stays."""
    ships = 0
    for seed in range(60):
        treated, y = world(seed, 5000, 0.0)
        read = [read_online_test(treated[:n], y[:n]) for n in range(500, 5001, 500)]
        ships += any(each.decision == "ship" for each in read)
        decided = [each.decision for each in read if each.decision != "continue"]
        assert len(set(decided)) <= 1 and (not decided or read[-1].decision == decided[0])
    assert ships <= 3


def test_looks_are_those_of_the_plan_whenever_it_is_read() -> None:
    plan = plan_online_test(0.3, 1.0, rule="obrien_fleming", looks=4)
    treated, y = world(3, plan.units, 0.4)
    whole = read_online_test(treated, y, plan)
    assert whole.decision == "ship" and whole.decided_at in plan.looks
    before = read_online_test(treated[: whole.decided_at - 1], y[: whole.decided_at - 1], plan)
    assert before.decision == "continue" and before.next_look == whole.decided_at
    assert before.reasons[-1] == f"the next look is at {whole.decided_at:,} units"
    early = read_online_test(treated[:40], y[:40], plan)
    assert early.lower == -math.inf and early.next_look == plan.looks[0]
    assert early.as_dict()["lower"] is None and early.as_dict()["status"] == 4


def test_a_loss_is_stopped_and_said_to_be_one() -> None:
    treated, y = world(0, 4000, -0.4)
    found = read_online_test(treated, y, OpenEnded(min_gain=0.1))
    assert found.decision == "stop_for_harm" and found.status == 3 and (found.decided_at or 0) < 1500
    assert found.upper < -0.2 and found.lower < -0.4 < found.upper
    assert found.reasons[1] == f"after {found.decided_at:,} units, a loss was certain: the gain was below 0"
    futile = read_online_test(*world(0, 6000, 0.0), OpenEnded(gain=0.2))
    assert futile.decision == "stop_for_futility" and "below the 0.2 that it was planned for" in futile.reasons[1]


def test_a_gain_that_turns_is_reported() -> None:
    treated, y = world(1, 20_000, 0.5)
    y[3000:] -= 1.5 * treated[3000:]
    found = read_online_test(treated, y)
    assert found.decision == "ship" and found.upper < 0
    assert found.reasons[-1] == "units that came later contradict the decision: the gain changes over time"


def test_rare_outcomes_need_more_units_before_their_interval_is_trusted() -> None:
    rate = 0.02
    skewness = (1 - 2 * rate) / math.sqrt(rate * (1 - rate))
    plan = plan_online_test(0.05, 0.14, skewness=skewness, share=0.1)
    assert plan.units >= 25 * skewness**2 / 0.1
    rng = np.random.default_rng(0)
    treated, y = rng.random(3000) < 0.1, (rng.random(3000) < rate) * 1.0
    found = read_online_test(treated, y, OpenEnded(share=0.1))
    assert found.lower == -math.inf and found.reasons[0].startswith("there are too few units, or too few different")
    assert math.isfinite(read_online_test(treated, y, OpenEnded(share=0.1), low=0, high=1).lower)


def test_a_plan_in_a_file(tmp_path: Path) -> None:
    for rule in RULES:
        plan = plan_online_test(0.2, 1.0, rule=rule, units_per_day=100)
        plan.save(tmp_path / "plan.json")
        assert OnlineTestPlan.load(tmp_path / "plan.json") == plan
        assert plan.days == plan.units / 100 and f"({math.ceil(plan.days):,} days)" in plan.sentences[0]
        assert plan.units_read_once <= plan.units < 2 * plan.units_read_once
        assert plan.expected_units["loss"] < plan.expected_units["gain"] < plan.units
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"share": 0.5', '"share": 1.5'))
    with pytest.raises(CorruptFileError, match="is damaged .*share is 1.5; it must be a float > 0 and < 1"):
        OnlineTestPlan.load(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ForeignFileError, match="is no plan of an online test: give a file that"):
        OnlineTestPlan.load(tmp_path / "plan.json")
    with pytest.raises(FileError, match="there is no "):
        OnlineTestPlan.load(tmp_path / "none.json")


def test_a_changed_allocation_is_refused_with_its_row() -> None:
    rng = np.random.default_rng(0)
    treated = rng.random(4000) < np.where(np.arange(4000) < 2500, 0.5, 0.7)
    with pytest.raises(DataError, match=r"policy is 0\.\d+ from unit 2\d\d\d on, but 0.5 is planned; the share"):
        read_online_test(treated, rng.normal(size=4000))
    with pytest.raises(DataError, match=r"is 0\.[45]\d* in all units, but 0.2 is planned.*start the test again"):
        read_online_test(rng.random(1000) < 0.5, rng.normal(size=1000), OpenEnded(share=0.2))


def test_bad_units_are_refused() -> None:
    treated, y = world(0, 100, 0.0)
    with pytest.raises(NonFiniteError, match="unit 8: the outcome is nan; it must be a finite number: leave out"):
        read_online_test(treated, np.where(np.arange(100) == 7, np.nan, y))
    with pytest.raises(EmptyDataError, match="no unit of the test has the new policy; both arms need units: check the"):
        read_online_test(np.zeros(100, bool), y)
    with pytest.raises(ConfigError, match="low is 0 and high is None; give both ends of the range of outcomes"):
        read_online_test(treated, y, low=0)
    plan = plan_online_test(0.2, 1.0, rule="pocock")
    with pytest.raises(ConfigError, match="low and high are for tests that are read at any time"):
        read_online_test(treated, y, plan, low=-9, high=9)
    with pytest.raises(ConfigError, match="gain is 0.1; it must be a float > 0.2"):
        plan_online_test(0.1, 1.0, min_gain=0.2)


def test_episodes_to_log_have_their_power() -> None:
    """One step, two actions: weights of a policy that nearly always takes one leave half of the episodes effective."""
    target, gain = np.array([0.95, 0.05]), 0.45 * 0.6
    second = (target**2 / 0.5).sum()
    assert effective_share(target, np.array([0.5, 0.5])) == pytest.approx(1 / second)
    assert effective_share(target, np.array([0.5, 0.5]), steps=5) == pytest.approx(second**-5)
    n = math.ceil(episodes_to_log(gain, math.sqrt(1 + 0.09), 1 / second))
    hits = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        action = rng.integers(0, 2, n)
        reward = np.where(action == 0, 0.3, -0.3) + rng.normal(size=n)
        terms = (target[action] / 0.5 - 1) * reward
        hits += terms.mean() > 1.96 * terms.std() / math.sqrt(n)
    assert not planted.too_few(hits, 300, 0.8), hits


def test_a_policy_without_support_has_no_effective_share() -> None:
    with pytest.raises(DataError, match="takes action 1 with the probability 0.3 in row 1, where the"):
        effective_share(np.array([[1.0, 0.0], [0.7, 0.3]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(ShapeError, match=r"target has the shape \(1, 2\) and logging \(1, 3\); both must be"):
        effective_share(np.array([0.5, 0.5]), np.array([0.2, 0.3, 0.5]))


def test_a_page_shows_the_interval_as_the_test_grew(tmp_path: Path) -> None:
    plan = plan_online_test(0.3, 1.0)
    treated, y = world(0, 500, 0.2)
    write_online_test(tmp_path / "test.html", read_online_test(treated, y, plan), plan, ("<new>", "old"))
    page = (tmp_path / "test.html").read_text(encoding="utf-8")
    assert "&lt;new&gt;: continue" in page and "<new>" not in page and "polyline" in page
    assert all(text.replace("'", "&#39;") in page for text in plan.sentences)
    write_online_test(tmp_path / "few.html", read_online_test(treated[:20], y[:20]), OpenEnded())
    assert "polyline" not in (tmp_path / "few.html").read_text(encoding="utf-8")
