"""A watch of a shipped policy: changes that were planted are found, and others are not, however often logs are read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import LogSchema, ReplayBuffer, from_table
from birl.errors import BirlError, ConfigError, CorruptFileError, DataError, FileError
from birl.ope.monitoring import (
    CertifiedValue,
    Watch,
    adjusted_p_values,
    as_json,
    find_decline,
    kolmogorov_smirnov,
    population_stability,
    read_certified,
    watch,
)
from birl.ope.monitoring_page import write_watch
from tests.ope.planted import Array, too_few

SCHEMA = LogSchema.parse("""
one_step = true
time = "at"
observation = [{ column = "age" }, { column = "channel", values = ["app", "web"] }]
action = { column = "offer", kind = "discrete", size = 3 }
reward = { column = "profit" }
propensity = { column = "chances", kind = "vector" }
logger = "version"
cluster = "user"
""")
SHIPPED = np.array([0.2, 0.7, 0.1])
VALUE = CertifiedValue("policy", 1.0, 1.2, 1.0, 1, 0.1)


def logs(seed: int, n: int = 3000, **changed: Any) -> ReplayBuffer:
    """One-step logs of the shipped policy; every user has two rows. Profits are 1.1 on average."""
    rng = np.random.default_rng(seed)
    world = {"age": 0.0, "app": 0.5, "profit": 1.1, "acts": SHIPPED, "since": 0.0, "former": 0.0} | changed
    at = np.arange(n)
    late = at >= world["since"] * n
    former = rng.random(n) < world["former"]
    former[0] = False  # versions are numbered in the order of their first rows
    offer = rng.choice(3, size=n, p=world["acts"])
    profit = np.where(late & ~former, world["profit"], 1.1) + rng.normal(size=n) + np.repeat(rng.normal(size=n // 2), 2)
    table = {
        "at": at + 1e6 * seed,
        "age": 40 + 10 * rng.normal(size=n) + world["age"] * late,
        "channel": np.where(rng.random(n) < np.where(late, world["app"], 0.5), "app", "web"),
        "offer": offer,
        "profit": profit,
        "chances": np.tile(SHIPPED, (n, 1)),
        "version": np.where(former, "old", "new"),
        "user": at // 2 + n * seed,
    }
    return from_table(table, SCHEMA)


CERTIFIED = logs(0)


class Shipped:
    """The policy that was shipped, or another one."""

    def __init__(self, chances: Array = SHIPPED) -> None:
        self.chances = chances

    def action_probability(self, x: Any) -> Array:
        return np.tile(self.chances, (len(x), 1))


def result_of(found: Watch, name: str) -> str:
    return next(each.result for each in found.checks if each.name == name)


def test_nothing_has_changed(tmp_path: Path) -> None:
    found = watch(logs(1), CERTIFIED, VALUE, policy=Shipped(), names=["age", "app", "web"])
    assert {each.result for each in found.checks} == {"as_certified"} and found.status == 0
    assert [each.name for each in found.columns] and not any(each.drifted for each in found.columns)
    write_watch(tmp_path, found, {"new logs": "<script>"})
    page, data = (tmp_path / "watch.html").read_text(), json.loads((tmp_path / "watch.json").read_text())
    assert "The new logs agree with what was certified." in page and "<script>" not in page
    assert data["result"] == "as_certified" and data["checks"][0]["name"] == "inputs"


@pytest.mark.parametrize(
    ("changed", "where", "result", "message"),
    [
        ({"age": 6.0}, "inputs", "changed", r"1 of 3 columns have changed since certification: age \(index 0.3"),
        ({"app": 0.8}, "inputs", "changed", "2 of 3 columns have changed since certification: "),
        ({"acts": np.array([0.3, 0.6, 0.1])}, "actions", "changed", "action 0 was taken in 30.*, but its prob.* 20.0%"),
        ({"profit": 0.7}, "outcomes", "worse", r"worse than certified: 0\.[67]"),
        ({"profit": 0.3, "since": 0.7}, "outcomes", "worse", "worse than certified since unit 1[01]"),
    ],
)
def test_planted_changes_are_found_where_they_are(
    changed: dict[str, Any], where: str, result: str, message: str
) -> None:
    found = watch(logs(2, **changed), CERTIFIED, VALUE, names=["age", "app", "web"])
    check = next(each for each in found.checks if each.name == where)
    assert check.result == result and check.remedy
    assert re.search(message, check.text), check.text
    assert {each.name for each in found.checks if each.result != "as_certified"} == {where}
    assert found.status == {"worse": 3, "changed": 4}[result]


def test_propensities_that_are_not_those_of_the_policy() -> None:
    found = watch(logs(1), CERTIFIED, VALUE, policy=Shipped(np.array([0.1, 0.8, 0.1])))
    (check,) = [each for each in found.checks if each.name == "actions"]
    assert check.result == "changed" and "is not the policy's probability of the action" in check.text


def test_the_gain_over_a_former_policy_that_still_acts() -> None:
    new = logs(3, n=6000, former=0.3, profit=1.5)
    found = watch(new, CERTIFIED, VALUE, baseline=1)
    text = next(each.text for each in found.checks if each.name == "outcomes")
    assert "the gain over the former policy, which still acts, is between" in text and result_of(found, "outcomes") == (
        "as_certified"
    )
    season = logs(4, n=6000, former=0.3, profit=1.1)  # no gain is left
    worse = watch(season, CERTIFIED, CertifiedValue("policy", 0.0, 2.0, 1.0, 1, 0.4), baseline=1)
    assert result_of(worse, "outcomes") == "worse"


def test_without_a_report_the_policy_must_earn_what_the_logs_earned() -> None:
    found = watch(logs(1, profit=0.5), CERTIFIED, gamma=1.0)
    assert found.result == "worse" and "the certified logs promised 1." in found.checks[2].text


@pytest.mark.parametrize(("kind", "repetitions"), [("normal", 100), ("clicks", 100)])
def test_false_alarms_are_as_rare_as_stated_over_all_looks(kind: str, repetitions: int) -> None:
    rng, mean = np.random.default_rng(0), {"normal": 1.0, "clicks": 0.05}[kind]

    def draw(n: int) -> Array:
        return rng.normal(size=n) + 1 if kind == "normal" else (rng.random(n) < 0.05).astype(float)

    std = float(draw(20_000).std())
    alarms = [find_decline(draw(1200), mean, 0.05, std).since is not None for _ in range(repetitions)]
    assert not too_few(repetitions - sum(alarms), repetitions, 0.95), np.mean(alarms)
    declines = [find_decline(np.append(draw(800), 0.5 * draw(3000)), mean, 0.05, std) for _ in range(10)]
    assert all(each.found is not None and each.found > 800 for each in declines)


def test_a_daily_t_test_gives_false_alarms_where_the_sequence_does_not() -> None:
    rng, naive = np.random.default_rng(1), 0
    for _ in range(100):
        x, n = rng.normal(size=1500), np.arange(1, 1501)
        mean = x.cumsum() / n
        naive += bool((mean + 1.645 / np.sqrt(n) < 0)[50:].any())
    assert naive > 15


def test_sequences_are_those_of_plain_loops() -> None:
    x = np.random.default_rng(0).normal(size=150) - 1.5
    found = find_decline(x, 0.0, 0.1)
    log = -2 * math.log(2 * 0.05)
    for n in (40, 90, 150):
        seen = x[:n]
        tau = n / 500 * (log + math.log1p(log))
        half = math.sqrt(2 * (tau + 1) / tau * math.log1p(math.sqrt(tau + 1) / 0.1)) * np.std(seen) / math.sqrt(n)
        assert np.isclose(found.upper[n - 1], seen.mean() + half) and np.isclose(found.lower[n - 1], seen.mean() - half)
    assert found.since == 0 and found.found is not None and 30 <= found.found < 60


def test_distances_of_samples() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=80), rng.normal(size=120) + 0.4
    distance, _ = kolmogorov_smirnov(one, other)
    at = [abs((one <= x).mean() - (other <= x).mean()) for x in [*one, *other]]
    assert np.isclose(distance, max(at))
    # of a table of the Kolmogorov distribution: P(K > 1.2238) = 0.10, P(K > 1.3581) = 0.05
    for critical, share in ((1.2238, 0.10), (1.3581, 0.05)):
        series = 2 * sum((-1) ** (k - 1) * math.exp(-2 * k**2 * critical**2) for k in range(1, 50))
        assert abs(series - share) < 1e-3
    p_values = [kolmogorov_smirnov(rng.normal(size=100), rng.normal(size=150))[1] for _ in range(400)]
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09
    assert kolmogorov_smirnov(one, one) == (0.0, 1.0)
    before, after = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])  # two bins, and half a row in each
    p, q = np.array([3.5, 1.5]) / 5, np.array([1.5, 3.5]) / 5
    assert np.isclose(population_stability(before, after), ((p - q) * np.log(p / q)).sum())
    assert population_stability(rng.normal(size=3000), rng.normal(size=3000)) < 0.02
    assert adjusted_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_too_few_episodes_tell_nothing() -> None:
    found = watch(logs(1, n=40), CERTIFIED, VALUE)
    assert found.status == 5 and "there are 20 new episodes or clusters; a check needs 30" in found.checks[0].text
    assert as_json(found)["result"] == "cannot_tell"


def narrow() -> ReplayBuffer:
    table = {"age": np.arange(90.0), "offer": np.arange(90) % 3, "profit": np.zeros(90)}
    schema = LogSchema.parse("""
    one_step = true
    observation = [{ column = "age" }]
    action = { column = "offer", kind = "discrete", size = 3 }
    reward = { column = "profit" }
    """)
    return from_table(table, schema)


@pytest.mark.parametrize(
    ("new", "options", "kind", "message"),
    [
        (lambda: CERTIFIED, {}, DataError, "3000 of 3000 new episodes are among the certified ones"),
        (narrow, {}, ConfigError, "the new data has logs whose observations are encoded as"),
        (lambda: logs(1), {"baseline": 7}, ConfigError, "no new episode has the logger 7"),
        (lambda: logs(1), {"error": 0.7}, ConfigError, "error is 0.7; it must be"),
        (
            lambda: logs(1),
            {"policy": Shipped(np.ones(2) / 2)},
            DataError,
            r"returned the shape .* it must be \(\d+, 3\)",
        ),
    ],
)
def test_bad_input(new: Any, options: dict[str, Any], kind: type[BirlError], message: str) -> None:
    with pytest.raises(kind, match=message):
        watch(new(), CERTIFIED, VALUE, **options)


def test_reports(tmp_path: Path) -> None:
    row = {
        "policy": "runs/a",
        "decides": "doubly_robust",
        "estimates": {"doubly_robust": {"interval": [1.0, 1.5]}},
        "gamma": 0.9,
        "horizon": 4,
        "min_gain": 0.2,
    }
    file = tmp_path / "report.json"

    def write(*rows: Any) -> None:
        file.write_text(json.dumps({"policies": rows}))

    with pytest.raises(FileError, match="there is no report"):
        read_certified(tmp_path)
    write(row)
    assert read_certified(tmp_path) == CertifiedValue("runs/a", 1.0, 1.5, 0.9, 4, 0.2) == read_certified(file, "runs/a")
    write(row, {**row, "policy": "runs/b", "decides": None})
    with pytest.raises(ConfigError, match="has several policies: name one of runs/a, runs/b"):
        read_certified(tmp_path)
    with pytest.raises(ConfigError, match="has no policy 'c': name one of"):
        read_certified(tmp_path, "c")
    with pytest.raises(ConfigError, match="could not tell the value of runs/b"):
        read_certified(tmp_path, "runs/b")
    for damaged in ({"policies": [{}]}, {"policies": 3}, [], {"policies": [{**row, "gamma": None}]}):
        file.write_text(json.dumps(damaged))
        with pytest.raises(CorruptFileError, match="is no report of a verdict"):
            read_certified(tmp_path)
