"""Faults of logs are known to the verdict: planted worlds with a gain of 0, and clean ones without a false alarm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from birl.dataset import MDPDataset
from birl.dataset.row_sketch import exceeds_chance
from birl.errors import ConfigError, DataError
from birl.ope import Evaluation, Verdict, evaluate, rank, report_data, verdict
from birl.ope.audit.balance import unexplained_correlation
from birl.ope.audit.independence import join_clusters
from birl.types import ActionSpace
from tests.ope.planted import covers

Array = np.ndarray


class Fixed:
    """Takes actions with the same probabilities everywhere; with ``column``, by the sign of the last column."""

    def __init__(self, *chance: float, column: bool = False) -> None:
        self.chance, self.column = np.array(chance), column

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = np.tile(self.chance, (len(x), 1))
        if self.column:
            every = np.where(np.asarray(x)[:, -1:] > 0, every[:, ::-1], every)
        return every if action is None else every[np.arange(len(every)), np.asarray(action).reshape(-1)]


def softmax(score: Array) -> Array:
    p = np.exp(score)
    return np.asarray(p / p.sum(1, keepdims=True))


def draw(rng: np.random.Generator, p: Array) -> Array:
    return np.asarray((p.cumsum(1) < rng.random((len(p), 1))).sum(1).clip(0, p.shape[1] - 1))


def steps(rng: np.random.Generator, n: int, actions: int = 2, sharp: float = 1.0) -> list[Array]:
    """One-step logs of a policy that depends on the first column: observations, actions, rewards, propensities."""
    x = rng.normal(size=(n, 2))
    p = softmax(np.eye(actions)[0] * sharp * x[:, :1])
    a = draw(rng, p)
    return [x, a, 0.5 * x[:, 1] + rng.normal(size=n), p[np.arange(n), a]]


def data(x: Array, a: Array, r: Array, b: Array, actions: int = 2, **extra: Array) -> MDPDataset:
    columns = {"log_propensity": np.log(b), **extra}
    return MDPDataset(x.astype(np.float32), a, r, np.ones(len(x)), action_size=actions, extra=columns)


def contexts(rng: np.random.Generator, n: int, table: Array, reward: str) -> list[Array]:
    """A few contexts, the rows of a table, that occur again and again."""
    k = rng.integers(0, len(table), n)
    p1 = np.linspace(0.2, 0.8, len(table))[k]
    a = (rng.random(n) < p1).astype(int)
    b = np.where(a == 1, p1, 1 - p1)
    r = {"normal": rng.normal(size=n), "flag": (rng.random(n) < 0.4) * 1.0, "constant": np.ones(n), "fixed": k / 5}
    return [table[k], a, r[reward], b]


def greedy(rng: np.random.Generator, n: int) -> list[Array]:
    """A sharp policy, which no model of the audit can fit."""
    x = rng.normal(size=(n, 3))
    p = np.where((np.sin(3 * x[:, 0]) * x[:, 1] > 0)[:, None] == np.array([False, True]), 0.95, 0.05)
    a = draw(rng, p)
    return [x, a, x[:, 2] + rng.normal(size=n), p[np.arange(n), a]]


AGES = np.stack([np.arange(18, 90) / 100, np.arange(72) % 2], 1)
CLEAN: dict[str, Any] = {
    "continuous": lambda rng: steps(rng, 300),
    "three actions": lambda rng: [*steps(rng, 300, 3), 3],
    "sharp": lambda rng: steps(rng, 300, 2, 3.0),
    "greedy": lambda rng: greedy(rng, 300),
    "contexts": lambda rng: contexts(rng, 300, np.eye(5), "normal"),
    "contexts, flags": lambda rng: contexts(rng, 300, np.eye(5), "flag"),
    "contexts, fixed rewards": lambda rng: contexts(rng, 300, np.eye(5), "fixed"),
    "contexts, vectors": lambda rng: contexts(rng, 300, np.random.default_rng(5).normal(size=(20, 4)), "flag"),
    "ages, constant rewards": lambda rng: contexts(rng, 300, AGES, "constant"),
}
ALARMS = (
    *("repeated_episodes", "similar_episodes", "several_ids", "unexplained_actions", "inverse_propensity"),
    *("propensity_rows", "propensity_calibration", "propensity_excess"),
)


def alarms(found: Evaluation) -> set[str]:
    return {finding.fact for finding in found.findings if finding.fact in ALARMS}


def answer(parts: list[Any], policy: Fixed | None = None) -> tuple[Evaluation, Verdict]:
    logs = data(*parts)
    policy = Fixed(*([0.2, 0.8, 0.0][: logs.dataset_info.action_size])) if policy is None else policy
    found = evaluate(policy, logs, gamma=1.0)
    return found, verdict(found)


def check_clean(name: str, repetitions: int) -> None:
    rng = np.random.default_rng(1)
    wrong = [alarms(answer(CLEAN[name](rng))[0]) for _ in range(repetitions)]
    assert sum(map(bool, wrong)) <= 0.01 * repetitions, wrong


@pytest.mark.parametrize("name", CLEAN)
def test_clean_logs_raise_no_alarm(name: str) -> None:
    check_clean(name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_clean_logs_hardly_ever_raise_an_alarm(name: str) -> None:
    check_clean(name, 1000)


def twice(rng: np.random.Generator) -> list[Array]:
    return [np.concatenate([column, column]) for column in steps(rng, 320, 2, 0.5)]


def partly_twice(rng: np.random.Generator) -> list[Array]:
    return [np.concatenate([column, column[:80]]) for column in steps(rng, 320, 2, 0.5)]


def best_twice(rng: np.random.Generator) -> list[Array]:
    """Copies of what earned most, by an action with a larger spread: the mean of all rows has a bias."""
    x, a, r, b = steps(rng, 320, 2, 0.5)
    r = r * (1 + 3 * (a == 1))
    best = np.argsort(-r)[:60]
    return [np.concatenate([column, column[best]]) for column in (x, a, r, b)]


def contexts_twice(rng: np.random.Generator) -> list[Array]:
    parts = contexts(rng, 200, np.eye(5), "normal")
    parts[2] = np.round(parts[2] * 10)
    return [np.concatenate([column, column]) for column in parts]


def a_few_twice(rng: np.random.Generator) -> list[Array]:
    return [np.concatenate([column, column[:15]]) for column in steps(rng, 285, 2, 0.5)]


COPIES = {each.__name__: each for each in (twice, partly_twice, best_twice, contexts_twice)}


def check_copies(name: str, repetitions: int) -> None:
    rng = np.random.default_rng(2)
    hits, narrow, ships = [], [], 0
    for _ in range(repetitions):
        found, decided = answer(COPIES[name](rng))
        assert found.gain is not None and found.gain.gain_interval is not None
        assert alarms(found) == {"repeated_episodes"} and any("copies" in reason for reason in decided.reasons)
        ends = found.gain.gain_interval
        half, middle = (ends.upper - ends.lower) / 4, (ends.upper + ends.lower) / 2
        hits.append(bool(ends.holds(0.0)))
        narrow.append(bool(abs(middle) <= half))
        ships += decided.verdict == "ship"
    assert covers(np.array(hits)) and not covers(np.array(narrow))
    assert ships <= 0.025 * repetitions + 3 * (0.025 * repetitions) ** 0.5


@pytest.mark.parametrize("name", COPIES)
def test_intervals_cover_without_the_copies(name: str) -> None:
    check_copies(name, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", COPIES)
def test_intervals_cover_without_the_copies_in_many_logs(name: str) -> None:
    check_copies(name, 1000)


def test_copies_change_nothing() -> None:
    """The answer is that of the episodes without their copies."""
    parts = steps(np.random.default_rng(0), 200)
    once, again = answer(parts)[0], answer([np.concatenate([column, column]) for column in parts])[0]
    assert once.gain is not None and again.gain is not None
    assert again.episodes == 200 and (once.gain.gain.terms == again.gain.gain.terms).all()


def test_a_few_copies_are_found() -> None:
    parts = a_few_twice(np.random.default_rng(0))
    found, report = answer(parts)[0], report_data(data(*parts))
    assert alarms(found) == {"repeated_episodes"} and found.episodes == 285
    assert report.facts["repeated_episodes"] == pytest.approx(15 / 300)


def near_copies(rng: np.random.Generator) -> list[Any]:
    parts = [np.tile(column, (10, 1) if column.ndim > 1 else 10) for column in steps(rng, 40)]
    return [parts[0] + 0.01 * rng.normal(size=(400, 2)), parts[1], parts[2] + 0.01 * rng.normal(size=400), parts[3]]


def sticky(rng: np.random.Generator) -> list[Any]:
    """Each customer has one action for all visits, and one column that tells who it is."""
    who = np.arange(400) // 4
    a = rng.integers(0, 2, 100)[who]
    return [rng.normal(size=(100, 2))[who], a, rng.normal(size=400), np.full(400, 0.5)]


def other_row(rng: np.random.Generator) -> list[Any]:
    x, a, r, b = steps(rng, 400)
    return [x, a, r, np.roll(b, 1)]


def other_row_of_three(rng: np.random.Generator) -> list[Any]:
    x, a, r, b = steps(rng, 800, 3, 2.0)
    return [x, a, r, np.roll(b, 1), 3]


def other_action(rng: np.random.Generator) -> list[Any]:
    x, a, r, b = steps(rng, 400)
    return [x, a, r, 1 - b]


def leak(rng: np.random.Generator) -> list[Any]:
    x, a, r, b = steps(rng, 400)
    r = r * (1 + (a == 1))
    return [np.concatenate([x, r[:, None]], 1), a, r, b]


def same_spread_leak(rng: np.random.Generator) -> list[Any]:
    x, a, r, b = steps(rng, 400)
    return [np.concatenate([x, r[:, None]], 1), a, r, b]


FAULTS: dict[str, tuple[Any, str]] = {
    "near_copies": (near_copies, "similar_episodes"),
    "sticky": (sticky, "similar_episodes"),
    "other_row": (other_row, "unexplained_actions"),
    "other_row_of_three": (other_row_of_three, "propensity_rows"),
    "other_action": (other_action, "unexplained_actions"),
    "leak": (leak, "leak_reward"),
    "same_spread_leak": (same_spread_leak, "leak_reward"),
}


def check_fault(name: str, repetitions: int) -> None:
    rng, (make, fact) = np.random.default_rng(3), FAULTS[name]
    policy = Fixed(0.9, 0.1, column=True) if "leak" in name else None
    answers = [answer(make(rng), policy) for _ in range(repetitions)]
    ships = sum(decided.verdict == "ship" for _, decided in answers)
    known = sum(any(finding.fact == fact for finding in found.findings) for found, _ in answers)
    assert ships <= 0.025 * repetitions and known >= 0.9 * repetitions


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_logs_do_not_ship(name: str) -> None:
    check_fault(name, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faulty_logs_never_ship(name: str) -> None:
    check_fault(name, 500)


def test_both_reports_find_the_same() -> None:
    for name, (make, fact) in FAULTS.items():
        logs = data(*make(np.random.default_rng(4)))
        chance = [1 / logs.dataset_info.action_size] * logs.dataset_info.action_size
        found, report = evaluate(Fixed(*chance), logs, gamma=1.0), report_data(logs)
        known = {each.fact for each in found.findings}
        assert fact in known, name
        assert {each for each in report.messages() if each in ALARMS or each.startswith("leak")} <= known


def test_rankings_refuse_too() -> None:
    ranking = rank({"a": Fixed(0.2, 0.8), "b": Fixed(0.8, 0.2)}, data(*other_row(np.random.default_rng(0))))
    assert all(found.decides is None for found in ranking.evaluations.values())


def customers(rng: np.random.Generator, clusters: bool = False) -> MDPDataset:
    """Four visits of each customer, who gains or loses by the second action, and one column that changes."""
    who = np.arange(800) // 4
    x = np.concatenate([rng.normal(size=(200, 3))[who], rng.normal(size=(800, 1))], 1)
    a, effect = rng.integers(0, 2, 800), 1.5 * rng.normal(size=200)
    extra = {"cluster": np.arange(800) // 2} if clusters else {}
    return data(x, a, (2 * a - 1) * effect[who] + 0.3 * rng.normal(size=800), np.full(800, 0.5), **extra)


def check_customers(repetitions: int) -> None:
    rng = np.random.default_rng(5)
    hits, plain = [], []
    for k in range(repetitions):
        found = evaluate(Fixed(0.2, 0.8), customers(rng, k % 2 == 0), gamma=1.0)
        assert found.gain is not None and found.gain.gain_interval is not None and found.clusters is not None
        assert alarms(found) == {"several_ids"} and len(np.unique(found.clusters)) == 200
        hits.append(bool(found.gain.gain_interval.holds(0.0)))
        terms = found.gain.gain.terms
        plain.append(abs(terms.mean()) <= 1.963 * terms.std(ddof=1) / len(terms) ** 0.5)
    assert covers(np.array(hits)) and not covers(np.array(plain))


def test_customers_with_several_ids_are_clusters() -> None:
    check_customers(40)


@pytest.mark.slow
def test_customers_with_several_ids_are_clusters_in_many_logs() -> None:
    check_customers(1000)


def test_clusters_are_joined_by_hand() -> None:
    customer = np.repeat(np.arange(40), 2)
    assert join_clusters(None, customer) is customer
    cluster = np.arange(80)
    cluster[2] = 1  # a cluster of the first and the second customer
    joined = join_clusters(cluster, customer)
    assert len(np.unique(joined)) == 39 and len(np.unique(joined[:4])) == 1
    days = np.arange(80) % 2
    assert join_clusters(days, customer) is days  # all would be one cluster


def test_chance_by_hand() -> None:
    """A binomial tail is at most the bound, so what exceeds chance is improbable."""
    assert exceeds_chance(17, 17, 0.5) and not exceeds_chance(16, 16, 0.5)  # 0.5^17 < 1e-5 < 0.5^16
    assert not exceeds_chance(0, 0, 0.5) and not exceeds_chance(5, 10, 0.5) and exceeds_chance(2, 2, 0.0)


def test_correlation_by_hand() -> None:
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=(2000, 3)), np.full((2000, 2), 0.5)
    taken = (x[:, 1] + rng.normal(size=2000) > 0).astype(int)
    found = unexplained_correlation(x, taken, p, np.arange(2000))
    expected = abs(np.sum((taken - 0.5) * (x[:, 1] - x[:, 1].mean())))
    expected /= np.sqrt(2000 * 0.25 * ((x[:, 1] - x[:, 1].mean()) ** 2).sum())
    assert found[0] == found[2] == 0 and found[1] == pytest.approx(expected)
    one = unexplained_correlation(x, taken, p, np.arange(2000) // 1000)  # two groups prove nothing
    assert not one.any()


def test_datasets_of_ones_own() -> None:
    """What has episodes and an info is evaluated; what has less is refused by name."""
    logs = data(*steps(np.random.default_rng(0), 100))
    info = SimpleNamespace(action_size=2, action_space=ActionSpace.DISCRETE)
    names = ("observations", "actions", "rewards", "terminated", "extra")
    plain = [SimpleNamespace(**{name: getattr(each, name) for name in names}) for each in logs.episodes]
    own = SimpleNamespace(episodes=plain, dataset_info=info)
    one, other = (evaluate(Fixed(0.2, 0.8), each, gamma=1.0) for each in (logs, own))  # type: ignore[arg-type]
    assert one.gain is not None and other.gain is not None and one.gain.value == other.gain.value
    with pytest.raises(ConfigError, match="without dataset_info.action_space; it must have episodes"):
        evaluate(Fixed(0.2, 0.8), SimpleNamespace(episodes=plain))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="without episodes"):
        evaluate(Fixed(0.2, 0.8), [1, 2])  # type: ignore[arg-type]
    plain[3].extra = {}
    with pytest.raises(DataError, match="episode 3 has no log_propensity"):
        evaluate(Fixed(0.2, 0.8), own)  # type: ignore[arg-type]
