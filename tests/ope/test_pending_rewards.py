"""Rewards that become final later than their steps: what is too new is left out, and the rest is not biased."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import LogSchema, ReplayBuffer, from_table, write_parquet
from birl.dataset.logs.files import import_files
from birl.errors import ConfigError, DataError, EmptyDataError
from birl.ope import evaluate, verdict
from tests.ope import planted
from tests.tiers import slow_but

SCHEMA = """
episode = "visit"
time = "day"
unmarked = "terminated"
[[observation]]
column = "x"
[action]
column = "offer"
kind = "discrete"
size = 2
[reward]
column = "profit"
[propensity]
column = "p"
kind = "probability"
"""
DELAY, GAIN = 30.0, 0.6  # days; the offer earns 3, and the policy makes it in 0.7 instead of 0.5 of the visits


class Generous:
    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = np.tile([0.3, 0.7], (len(x), 1))
        return every if action is None else every[np.arange(len(x)), np.asarray(action).reshape(-1)]


def schema(reward: str = "", top: str = "") -> LogSchema:
    return LogSchema.parse(top + SCHEMA.replace('column = "profit"', f'column = "profit"\n{reward}'))


def visits(n: int = 400, seed: int = 0) -> dict[str, Any]:
    """A visit each quarter of a day. Buyers pay after up to 30 days; what is not paid by the end is not in the log."""
    rng = np.random.default_rng(seed)
    day, offer = np.arange(n) / 4, rng.integers(0, 2, n)
    value = 3.0 * offer + rng.normal(size=n)
    paid = day + DELAY * rng.random(n)
    known = paid <= day[-1]
    return {
        "visit": np.arange(n),
        "day": day,
        "x": rng.normal(size=n),
        "offer": offer,
        "profit": np.where(known, value, 0.0),
        "p": np.full(n, 0.5),
        "paid": np.where(known, paid, np.nan),
    }


def gain_of(table: dict[str, Any], given: LogSchema) -> tuple[bool, bool, Any]:
    """Whether the interval, and one of half its width, cover the true gain."""
    found = evaluate(Generous(), from_table(table, given), gamma=1.0)
    assert found.gain is not None and found.gain.gain_interval is not None
    interval = found.gain.gain_interval
    middle, half = (interval.lower + interval.upper) / 2, (interval.upper - interval.lower) / 2
    return bool(interval.holds(GAIN)), bool(abs(middle - GAIN) <= half / 2), found


@pytest.mark.parametrize("repetitions", slow_but([30], [30, 1000]))
@pytest.mark.parametrize("rule", [f"delay = {DELAY}", 'known_at = "paid"'])
def test_delayed_rewards_do_not_bias_the_gain(rule: str, repetitions: int) -> None:
    hits, halves, undeclared = [], [], []
    for seed in range(repetitions):
        table = visits(300, seed)
        hit, half, _ = gain_of(table, schema(rule))
        hits.append(hit)
        halves.append(half)
        undeclared.append(gain_of(table, schema())[0])
    assert planted.covers(np.array(hits)) and not planted.covers(np.array(halves))
    assert planted.too_few(sum(undeclared), len(undeclared), 0.93)


def test_what_is_left_out_is_reported() -> None:
    table = visits()
    data = from_table(table, schema(f"delay = {DELAY}"))
    pending = np.array([each.extra["reward_pending"][0] for each in data.episodes])
    assert (pending == (table["day"] + DELAY > table["day"][-1])).all()
    found = evaluate(Generous(), data, gamma=1.0)
    assert found.episodes == 280 and found.facts["too_new"] == pytest.approx(0.3)
    reasons = " ".join(verdict(found).reasons)
    assert "left out because their rewards were not final when the log ended" in reasons
    assert "(120 of 400, which began at 70 or later)" in reasons
    later = from_table(table, schema(f"delay = {DELAY}", "log_end = 115.0\n"))
    assert evaluate(Generous(), later, gamma=1.0).episodes == 341
    assert evaluate(Generous(), from_table(table, schema(f"delay = {DELAY}", "log_end = 200\n"))).episodes == 400


def test_an_episode_counts_by_its_beginning_only() -> None:
    """Short episodes that began after a long pending one are left out, too; steps beyond the horizon do not count."""
    table = visits(100)
    table["visit"] = np.where(np.arange(100) == 99, 40, np.arange(100))  # visit 40 goes on at the end
    data = from_table(table, schema("delay = 5.0"))
    assert evaluate(Generous(), data, gamma=1.0).episodes == 40
    assert evaluate(Generous(), data, gamma=1.0, horizon=1).episodes == 80


def test_dates_and_outcomes() -> None:
    table = visits()
    first = datetime(2026, 1, 1, tzinfo=UTC)
    table["day"] = [first + timedelta(days=float(day)) for day in table["day"]]
    table["paid"] = [None if np.isnan(day) else first + timedelta(days=float(day)) for day in table["paid"]]
    data = from_table(table, schema(f"delay = {DELAY * 86400}"))
    assert data.logs is not None and data.logs.dates
    reasons = " ".join(verdict(evaluate(Generous(), data, gamma=1.0)).reasons)
    assert "began at 2026-03-12 or later" in reasons
    by_payment = from_table(table, schema('known_at = "paid"'))
    assert evaluate(Generous(), by_payment, gamma=1.0).episodes <= 300
    ended = schema('known_at = "paid"', "log_end = 2027-01-01\n")
    assert ended.log_end == "2027-01-01" and LogSchema.parse(ended.text()) == ended
    returns = {**table, "returned": np.zeros(400)}
    given = LogSchema.parse(SCHEMA + f'[[outcome]]\ncolumn = "returned"\ndelay = {DELAY * 86400}\n')
    assert evaluate(Generous(), from_table(returns, given), gamma=1.0).episodes == 280


def test_errors() -> None:
    table = visits()
    with pytest.raises(ConfigError, match="delay is 3.0 and known_at is 'paid': both say when it is final; give one"):
        schema('delay = 3.0\nknown_at = "paid"')
    with pytest.raises(ConfigError, match="delay or known_at needs times"):
        LogSchema.parse(schema("delay = 3.0").text().replace('time = "day"\n', ""))
    with pytest.raises(ConfigError, match="log_end tells which rewards were final, but no reward has delay"):
        schema(top="log_end = 3.0\n")
    with pytest.raises(ConfigError, match="known_at: the column 'x' is also an observation"):
        schema('known_at = "x"')
    with pytest.raises(ConfigError, match="only those that are known early would be left"):
        schema('known_at = "paid"\nmissing = "drop"')
    early = {**table, "paid": np.where(np.arange(400) == 7, 0.5, table["paid"])}
    with pytest.raises(DataError, match="row 8 .*'paid': the time at which the reward is known is 0.5; it is before"):
        from_table(early, schema('known_at = "paid"'))
    with pytest.raises(DataError, match="log_end is 'May', but times are numbers"):
        from_table(table, schema("delay = 3.0", 'log_end = "May"\n'))
    with pytest.raises(EmptyDataError, match="400 of 400, which began at 0 or later, have rewards that were not final"):
        evaluate(Generous(), from_table(table, schema("delay = 1000.0")))
    data = from_table(table, schema(f"delay = {DELAY}"))
    for each in (episodes := list(data.episodes)):
        del each.extra["time"]
    info = data.dataset_info
    with pytest.raises(DataError, match="120 episodes have pending rewards .* the extra column time is missing"):
        evaluate(Generous(), type("Data", (), {"episodes": episodes, "dataset_info": info})())


def test_exports_keep_what_is_pending(tmp_path: Path) -> None:
    data = from_table(visits(), schema(f"delay = {DELAY}"))
    write_parquet(data, tmp_path / "steps.parquet")
    import_files([tmp_path / "steps.parquet"], LogSchema.load(tmp_path / "steps.toml"), tmp_path / "again")
    again = ReplayBuffer.open(tmp_path / "again")
    for one, other in zip(data.episodes, again.episodes, strict=True):
        assert (one.extra["reward_pending"] == other.extra["reward_pending"]).all()
    assert evaluate(Generous(), again, gamma=1.0).episodes == 280
