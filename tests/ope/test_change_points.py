"""Changes of a gain over time: found where the effect turns, with a stated error rate, under any logging policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import DataError, ShapeError
from birl.ope import Estimate, Evaluation, evaluate, verdict
from birl.ope.change_points import ERROR, find_change, gain_over_time
from birl.ope.decision_page import as_json, write_report
from birl.text import format_time
from birl.types import ActionSpace
from tests.ope import planted
from tests.ope.test_decisions import LOGGER, WORLD, FixedPolicy, improved
from tests.tiers import slow_but

Array = np.ndarray
BETTER = improved(1.0)
GAIN = WORLD.truth(BETTER) - WORLD.truth(LOGGER)
TURNED = replace(WORLD, reward=2 - WORLD.reward)  # every gain has the other sign
FLAT = replace(WORLD, reward=np.ones_like(WORLD.reward))  # no action matters


def in_turn(*parts: tuple[planted.World, Array, int], seed: int = 0) -> Any:
    """Episodes of several worlds and loggers, one after the other."""
    episodes: list[Episode] = []
    for world, logger, n in parts:
        of = planted.log(world, logger, 1, n, 1000 * seed + len(episodes))
        for i in range(n):
            m = of.mask[0, i]
            s, a, r = (column[0, i][m] for column in (of.state, of.action, of.reward))
            extra = {
                "log_propensity": np.log(logger[s, a]),
                "propensities": logger[s],
                "time": np.full(len(s), float(len(episodes))),
            }
            x = np.eye(5, dtype=np.float32)[s]
            episodes.append(Episode(x, a[:, None], r.astype(np.float32)[:, None], True, extra=extra))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)


def judge(data: Any, policy: Array = BETTER, **how: Any) -> tuple[str, Evaluation]:
    found = evaluate(FixedPolicy(policy), data, gamma=0.95, **how)
    return verdict(found).verdict, found


def plain_statistic(x: Array, cluster: Array, k: int) -> float:
    """The difference of two means and its standard error over clusters, with a loop."""
    n, late = len(x), np.arange(len(x)) >= k
    difference = x[late].mean() - x[~late].mean()
    total = 0.0
    for name in set(cluster.tolist()):
        part = 0.0
        for i in np.flatnonzero(cluster == name):
            mean, size = (x[late].mean(), n - k) if late[i] else (x[~late].mean(), k)
            part += (1 if late[i] else -1) * (x[i] - mean) / size
        total += part**2
    return float(abs(difference) / np.sqrt(total))


@pytest.mark.parametrize("clusters", ["none", "compact", "mixed"])
def test_the_change_is_where_a_plain_loop_finds_it(clusters: str) -> None:
    rng = np.random.default_rng(0)
    n = 82
    x = rng.normal(size=n) * np.where(np.arange(n) < 40, 1, 2) + np.where(np.arange(n) < 53, 0, 4)
    cluster = {"none": np.arange(n), "compact": np.arange(n) // 2, "mixed": rng.permutation(n) % 30}[clusters]
    least, step = (40, 2) if clusters == "compact" else (20, 1)
    splits = range(least, n - least + 1, step)
    values = [plain_statistic(x, cluster, k) for k in splits]
    best, latest = splits[int(np.argmax(values))], [k for k, t in zip(splits, values, strict=True)
                                                    if t**2 >= max(values) ** 2 - 10.59][-1]  # fmt: skip
    turned = rng.permutation(n)
    found = find_change(Estimate(x[turned]), 5.0 * turned, None if clusters == "none" else cluster[turned])
    assert found is not None and (found.time, found.latest) == (5.0 * best, 5.0 * latest)


@pytest.mark.parametrize("repetitions", slow_but([300], [300, 1000]))
@pytest.mark.parametrize("terms", ["normal", "skewed", "variance", "clusters"])
def test_the_error_rate(terms: str, repetitions: int) -> None:
    """The logger's change changes the variance only; terms of one day are related."""
    rng, found = np.random.default_rng(1), 0
    for _ in range(repetitions):
        x, cluster = rng.normal(size=150), None
        if terms == "skewed":
            x = np.exp(1.5 * x)
        if terms == "variance":
            x = x * np.where(np.arange(150) < 100, 1, 3)
        if terms == "clusters":
            cluster = np.arange(150) // 3
            x = x + 2 * rng.normal(size=50)[cluster]
        found += find_change(Estimate(x), np.arange(150), cluster) is not None
    assert not planted.too_few(repetitions - found, repetitions, 1 - ERROR)  # at most the stated rate
    assert planted.too_few(repetitions - 10 - repetitions // 20, repetitions, 1 - ERROR)  # the test can fail


@pytest.mark.parametrize("repetitions", slow_but([12], [12, 1000]))
def test_an_effect_that_turned_lately_does_not_ship(repetitions: int) -> None:
    """In the newest tenth the policy loses what it gained before: the gain of all episodes is 80 % of the old one."""
    ships, steady, found = 0, 0, 0
    for seed in range(repetitions):
        label, evaluation = judge(in_turn((WORLD, LOGGER, 360), (TURNED, LOGGER, 40), seed=seed))
        ships += label == "ship"
        found += evaluation.over_time is None or evaluation.over_time.change is not None  # or no estimator decides
        steady += judge(in_turn((WORLD, LOGGER, 400), seed=seed))[0] == "ship"
    assert not planted.too_few(repetitions - ships, repetitions, 0.975) and found >= 0.8 * repetitions
    assert not planted.too_few(steady, repetitions, 0.965)


@pytest.mark.slow
def test_an_effect_that_has_ended_does_not_ship() -> None:
    """The gain after the change is exactly 0, and the model was fitted to episodes before it."""
    ships = [judge(in_turn((WORLD, LOGGER, 320), (FLAT, LOGGER, 80), seed=seed))[0] == "ship" for seed in range(1000)]
    assert not planted.too_few(len(ships) - sum(ships), len(ships), 0.975)


def test_what_a_change_changes() -> None:
    """After a change a policy ships by newer logs only; a loss before and after it is a loss."""
    label, found = judge(in_turn((TURNED, LOGGER, 300), (WORLD, LOGGER, 300)))
    assert label == "more_data" and "decide by the episodes since 3" in verdict(found).remedies[0]
    losing, twice = improved(-0.5), replace(WORLD, reward=3 * WORLD.reward)
    label, found = judge(in_turn((WORLD, LOGGER, 300), (twice, LOGGER, 300)), losing)
    assert label == "do_not_ship" and found.over_time is not None and found.over_time.change is not None


@pytest.mark.parametrize("repetitions", slow_but([12], [12, 400]))
def test_another_logger_is_no_other_gain(repetitions: int) -> None:
    """Against a policy, the gain does not depend on who acted; against the logs it does, and the reason says so."""
    second = improved(0.3)
    alarms = 0
    for seed in range(repetitions):
        data = in_turn((WORLD, LOGGER, 200), (WORLD, second, 200), seed=seed)
        found = evaluate(FixedPolicy(improved(0.5)), data, gamma=0.95, against=FixedPolicy(LOGGER))
        assert found.over_time is not None
        alarms += found.over_time.change is not None
    assert not planted.too_few(repetitions - alarms, repetitions, 1 - ERROR)
    label, found = judge(in_turn((WORLD, LOGGER, 300), (WORLD, BETTER, 300)))  # the policy acts already
    assert label == "more_data" and found.over_time is not None and found.over_time.change is not None
    assert 280 <= found.over_time.change.time <= 320
    assert "another logging policy may have started to act" in verdict(found).reasons[1]


def test_estimated_propensities_need_one_logger() -> None:
    """Estimates for two loggers together are those of neither, though they are calibrated on average."""
    how: dict[str, Any] = {"behaviour": "estimated"}
    _, found = judge(in_turn((WORLD, improved(-0.5), 200), (WORLD, improved(0.5), 200)), improved(0.2), **how)
    assert found.facts["changing_actions"] and found.decides is None
    assert any("the logging policy changed" in text for text in verdict(found).reasons)
    steady = [judge(in_turn((WORLD, LOGGER, 200), seed=seed), improved(0.2), **how)[1] for seed in range(10)]
    assert sum(bool(each.facts["changing_actions"]) for each in steady) <= 1


def test_incomplete_rewards_are_suspected(tmp_path: Any) -> None:
    """Also where the gain becomes too uncertain to see its change."""
    unknown = replace(WORLD, reward=np.zeros_like(WORLD.reward))
    _, found = judge(in_turn((WORLD, LOGGER, 300), (unknown, LOGGER, 60)))
    assert found.over_time is not None and found.over_time.baseline_change is not None
    assert found.over_time.baseline_change.time == 300
    write_report(tmp_path, {"policy": found}, {"policy": verdict(found)})
    page = (tmp_path / "report.html").read_text()
    assert "What the logs earn changes at about 300: " in page and "see reward.delay" in page


def test_the_newest_part_by_itself() -> None:
    """It contradicts a gain that no change is found in: large times are rare, and the newest tenth is below 0."""
    rng = np.random.default_rng(0)
    _, found = judge(in_turn((WORLD, LOGGER, 400)))
    n = 400
    terms = np.append(rng.permutation(np.linspace(-6, 7.4, 360)), rng.permutation(np.linspace(-8, 5, 40)))
    gain = found.gain
    assert gain is not None
    over = gain_over_time(Estimate(terms), Estimate(0 * terms), np.arange(n))
    assert over is not None and over.change is None and (over.since, over.first) == (360, 360)
    changed = replace(found, over_time=over)
    said = verdict(changed)
    assert said.verdict == "more_data" and "the newest 40 episodes, since 360, say the opposite" in said.reasons[1]
    opposite = replace(over, gain=Estimate(-terms))
    assert verdict(replace(found, over_time=opposite)).verdict == "ship"
    assert f"by less than about {over.unseen:.3g} would probably not show" in " ".join(said.assumptions)
    sizes = over.unseen * (1 + 0.15 * np.arange(-1, 2)[:, None]) * np.ones(60)
    shown = [
        [find_change(Estimate(np.where(np.arange(n) < 360, size, 0) + terms.std() * rng.normal(size=n)), np.arange(n))
         is not None for size in row]
        for row in sizes
    ]  # fmt: skip
    rates = np.mean(shown, 1)
    assert rates[0] < 0.93 and rates[2] > 0.7 and rates[0] < rates[2]


def test_few_episodes_equal_times_and_equal_gains() -> None:
    x = np.random.default_rng(0).normal(size=39)
    assert find_change(Estimate(x + 9 * (np.arange(39) > 20)), np.arange(39)) is None  # 20 on each side are needed
    assert find_change(Estimate(np.ones(200) + 1e-14 * np.arange(200)), np.arange(200)) is None
    assert find_change(Estimate(np.arange(200.0)), np.zeros(200)) is None
    days = find_change(Estimate(np.arange(200.0) // 100 + 0.1 * np.random.default_rng(0).normal(size=200)),
                       np.arange(200) // 50)  # fmt: skip
    assert days is not None and days.time == 2.0  # only between different times
    assert gain_over_time(Estimate(x), Estimate(x), np.zeros(39)) is None
    assert gain_over_time(Estimate(x), Estimate(x), None) is None
    with pytest.raises(ShapeError, match=r"time has the shape \(38,\), terms \(39,\)"):
        find_change(Estimate(x), np.arange(38))
    with pytest.raises(DataError, match="time of episode 3 is nan; it must be finite"):
        find_change(Estimate(x), np.where(np.arange(39) == 3, np.nan, np.arange(39)))


def test_pages_show_the_time(tmp_path: Any) -> None:
    _, found = judge(in_turn((WORLD, LOGGER, 360), (TURNED, LOGGER, 40)))
    assert found.over_time is not None
    found = replace(found, over_time=replace(found.over_time, dates=True, time=86400.0 * found.over_time.time))
    said = verdict(found)
    data: Any = as_json(found, said)["over_time"]
    assert data["since_text"].startswith("197") and data["gain_before_and_since"][0] > data["gain_before_and_since"][1]
    write_report(tmp_path, {"policy": found}, {"policy": said})
    page = (tmp_path / "report.html").read_text()
    assert "policy: over time" in page and "Gain by the time at which episodes began" in page and "1970-01-01" in page
    assert format_time(86400.5, True) == "1970-01-02 00:00 UTC" and format_time(1234567.0, False) == "1234567"
