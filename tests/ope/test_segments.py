"""Gains by segment: by hand, in worlds of known truth, and columns that are no segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, LogSchema, create_infinite_replay_buffer, from_table
from birl.errors import ConfigError, DataError
from birl.ope import evaluate, t_quantile, verdict, verdicts
from birl.ope.decision_page import as_json, write_report
from birl.types import ActionSpace
from tests.ope.planted import covers, too_few

SCHEMA = LogSchema.parse("""
episode = "visit"
unmarked = "terminated"

[[observation]]
column = "channel"
values = ["app", "web", "shop"]

[[observation]]
column = "age"

[action]
column = "offer"
kind = "discrete"
size = 2

[reward]
column = "profit"

[propensity]
column = "propensity"
kind = "vector"

[[outcome]]
column = "bought"

[[segment]]
column = "region"
values = ["north", "south"]
unknown = true
""")
SHARES = np.array([0.5, 0.3, 0.2])
EFFECTS = np.array([1.0, 0.5, 0.6])
"""What the second offer earns more, by channel."""


def visits(n: int, seed: int, effects: Any = EFFECTS, noise: float = 1.0, **columns: Any) -> dict[str, Any]:
    """Visits of one step; the second offer is made more often in the app."""
    rng = np.random.default_rng(seed)
    channel = rng.choice(3, n, p=SHARES)
    chance = np.array([0.6, 0.4, 0.5])[channel]
    offer = (rng.random(n) < chance).astype(int)
    profit = np.asarray(effects)[channel] * offer + noise * rng.normal(size=n)
    return {
        "visit": np.arange(n),
        "channel": np.array(["app", "web", "shop"])[channel],
        "age": rng.integers(18, 80, n).astype(float),
        "offer": offer,
        "profit": profit,
        "propensity": np.stack([1 - chance, chance], -1),
        "bought": (rng.random(n) < 0.2 + 0.4 * offer).astype(float),
        "region": np.array(["north", "south", "abroad"])[rng.integers(0, 3, n)],
        **columns,
    }


class Second:
    """Makes the second offer with the probability 0.9."""

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = np.tile([0.1, 0.9], (len(x), 1))
        return every if action is None else every[np.arange(len(x)), np.reshape(action, -1)]


def test_segments_by_hand() -> None:
    """Bonferroni's intervals of inverse propensities in each channel, by the definition."""
    table = visits(900, 0)
    found = evaluate(Second(), from_table(table, SCHEMA), segments=["channel"])
    assert [each.name for each in found.segments] == ["channel = app", "channel = web", "channel = shop"]
    assert sum(each.episodes for each in found.segments) == 900
    said = verdict(found)
    for each in found.segments:
        inside = table["channel"] == each.name.removeprefix("channel = ")
        assert each.episodes == inside.sum() and each.evaluation is not None
        taken = table["propensity"][np.arange(900), table["offer"]][inside]
        weight = np.array([0.1, 0.9])[table["offer"][inside]] / taken
        terms = (weight - 1) * table["profit"][inside].astype(np.float32)
        interval = each.evaluation.rows["per_decision"].gain_interval
        assert interval is not None
        half = t_quantile(0.975, inside.sum() - 1) * terms.std(ddof=1) / np.sqrt(inside.sum())
        assert float(interval.lower) == pytest.approx(terms.mean() - half, rel=1e-5)
        row = each.evaluation.gain
        assert row is not None and row.gain_interval is not None
        wide = said.segments[each.name]
        assert wide.confidence == pytest.approx(1 - 0.05 / 3) and wide.lower is not None and wide.upper is not None
        ratio = t_quantile(1 - 0.025 / 3, inside.sum() - 1) / t_quantile(0.975, inside.sum() - 1)
        assert wide.upper - wide.lower == pytest.approx(
            ratio * float(row.gain_interval.upper - row.gain_interval.lower), rel=1e-9
        )


def test_columns_of_every_kind() -> None:
    data = from_table(visits(900, 0), SCHEMA)
    names = [each.name for each in evaluate(Second(), data, segments=["region", "age"]).segments]
    assert names[:3] == ["region = north", "region = south", "region = unknown"]
    assert names[3].startswith("age <= ") and names[4].count("age") == 1 and names[6].startswith("age > ")
    assert not evaluate(Second(), data).segments
    few = from_table(visits(60, 0), SCHEMA)
    sizes = evaluate(Second(), few, segments=["channel"])
    assert [each.evaluation is None for each in sizes.segments] == [each.episodes < 30 for each in sizes.segments]
    said = verdict(sizes)
    assert any(each.verdict == "cannot_tell" for each in said.segments.values())
    assert all("fewer than 30" in each.reasons[0] for each in said.segments.values() if each.lower is None)


def test_a_segment_that_certainly_loses_stops_a_policy() -> None:
    data = from_table(visits(3000, 1, [1.0, -0.8, 0.6]), SCHEMA)
    assert verdict(evaluate(Second(), data)).verdict == "ship"
    found = verdict(evaluate(Second(), data, segments=["channel"]))
    assert found.verdict == "do_not_ship"
    assert any("the gain is negative where channel = web: its gain is between -0." in text for text in found.reasons)
    assert any("keep the baseline's actions where channel = web" in text for text in found.remedies)
    allowed = verdict(evaluate(Second(), data, segments=["channel"], segment_loss=1.0))
    assert allowed.verdict == "ship" and {each.verdict for each in allowed.segments.values()} == {"ship"}


def test_a_possible_loss_is_a_doubt_and_with_a_limit_an_objection() -> None:
    data = from_table(visits(2000, 1, [1.5, 0.0, -0.05]), SCHEMA)
    found = verdict(evaluate(Second(), data, segments=["channel"]))
    assert found.verdict == "ship" and any("doubtful: a loss is not excluded where" in text for text in found.reasons)
    strict = verdict(evaluate(Second(), data, segments=["channel"], segment_loss=0.01))
    assert strict.verdict == "more_data" and any("a loss above 0.01 is not excluded where" in x for x in strict.reasons)
    assert strict.times is not None or strict.remedies
    loss = verdict(evaluate(Second(), from_table(visits(2000, 1, [-1, 0, 1]), SCHEMA), segments=["channel"]))
    assert loss.verdict == "do_not_ship"


def test_the_policy_that_acted_loses_nowhere() -> None:
    class Same:
        def action_probability(self, x: Any, action: Any = None) -> Any:
            second = x[:, :3] @ np.array([0.6, 0.4, 0.5])
            every = np.stack([1 - second, second], -1)
            return every if action is None else every[np.arange(len(x)), np.reshape(action, -1)]

    found = evaluate(Same(), from_table(visits(600, 0), SCHEMA), segments=["channel"], segment_loss=0.0)
    assert {each.verdict for each in verdict(found).segments.values()} == {"ship"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bought", r"'bought' is an outcome, which is not known before the action"),
        ("profit", r"'profit' is the reward, which is not known before"),
        ("offer", "'offer' is the action"),
        ("chanel", r"'chanel' is no column of the data; did you mean 'channel'.*\[\[segment\]\]"),
        ("propensity", "is a propensity of the action"),
        ("log_propensity", "is no column of the data"),
    ],
)
def test_columns_that_are_no_segments(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(Second(), from_table(visits(200, 0), SCHEMA), segments=[name])
    with pytest.raises(ConfigError, match="must be a list of names"):
        evaluate(Second(), from_table(visits(200, 0), SCHEMA), segments=name)


def steps(n: int, seed: int, extra: Any, what: str = "vector") -> Any:
    """Episodes of two steps of two actions; ``extra(rng, action)`` is written to both steps."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        x = rng.normal(size=(2, 1)).astype(np.float32)
        chance = np.where(x[:, 0] > 0, 0.7, 0.3)
        action = (rng.random(2) < chance).astype(int)
        both = np.stack([1 - chance, chance], -1)
        kept = {"log_propensity": np.log(both[[0, 1], action])} | ({"propensities": both} if what == "vector" else {})
        kept["group"] = np.asarray(extra(rng, action, x), float) * np.ones(2)
        episodes.append(Episode(x, action[:, None], rng.normal(size=(2, 1)).astype(np.float32), True, extra=kept))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)


@pytest.mark.parametrize("what", ["vector", "taken"])
def test_outcomes_are_found_without_a_schema(what: str) -> None:
    with pytest.raises(DataError, match=r"changes from 0 to 1 at step 1 of episode 0.*outcome of actions"):
        evaluate(Second(), steps(40, 0, lambda rng, action, x: [0, 1], what), segments=["group"])
    with pytest.raises(DataError, match=r"'group = \d' depends on the action: its correlation with action \d"):
        bought = steps(600, 0, lambda rng, action, x: rng.random() < 0.2 + 0.3 * action[1], what)
        evaluate(Second(), bought, segments=["group"])
    known = steps(600, 0, lambda rng, action, x: x[0, 0] > 0, what)  # the logger knew it: no outcome
    assert len(evaluate(Second(), known, segments=["group"]).segments) == 2
    with pytest.raises(ConfigError, match="'group' is an outcome"):
        evaluate(Second(), known, segments=["group"], constraints=["group <= 1"])
    many = steps(200, 0, lambda rng, action, x: rng.integers(0, 50), what)
    assert len(evaluate(Second(), many, segments=["group"]).segments) == 4


def test_no_segment_that_is_known_before_is_refused_by_chance() -> None:
    """Columns, each with its test at 1e-5."""
    for seed in range(8):
        data = steps(100, seed, lambda rng, action, x: (x[0, 0] > 0) + (x[1, 0] > 0), "taken")
        evaluate(Second(), data, segments=["group"])


def found_in(n: int, seed: int, effects: Any, loss: float | None = None) -> Any:
    data = from_table(visits(n, 5000 + seed, effects), SCHEMA)
    found = evaluate(Second(), data, segments=["channel"], segment_loss=loss)
    return found, verdict(found)


def check_worlds(repetitions: int, n: int = 800) -> dict[str, float]:
    """The first channel gains a lot; what the others lose is at the limit, beyond it, or nothing."""
    share = np.array([0.9 - 0.6, 0.9 - 0.4, 0.9 - 0.5])  # how often the policy makes the second offer instead
    limit, covered, figures = 0.2, [], {}
    at_limit = np.array([6.0, -limit / share[1], 0.5])
    shipped = []
    for seed in range(repetitions):
        found, said = found_in(n, seed, at_limit, limit)
        shipped.append(said.verdict == "ship")
        truth = dict(zip([each.name for each in found.segments], share * at_limit, strict=True))
        known = {name: (each.lower, each.upper) for name, each in said.segments.items() if each.lower is not None}
        covered.append(all(low <= truth[name] <= (high or 0.0) for name, (low, high) in known.items()))
    figures["wrong ship"], figures["covered"] = float(np.mean(shipped)), float(np.mean(covered))
    assert not too_few(repetitions - sum(shipped), repetitions, 0.975), figures
    assert covers(np.array(covered), 0.93, 0.98), figures
    harmed = [found_in(n, seed, [6.0, -4 * limit / share[1], 0.5])[1].verdict for seed in range(repetitions)]
    useful = [found_in(n, seed, [3.0, 2.0, 2.0], limit)[1].verdict for seed in range(repetitions)]
    figures["harm found"] = float(np.mean([each == "do_not_ship" for each in harmed]))
    figures["useful"] = float(np.mean([each == "ship" for each in useful]))
    assert figures["harm found"] > 0.9 and figures["useful"] > 0.9, figures
    return figures


def test_wrong_ships_past_a_harmed_segment_are_rare() -> None:
    check_worlds(4)


@pytest.mark.slow
def test_wrong_ships_past_a_harmed_segment_are_rare_whole() -> None:
    check_worlds(1000)


def test_several_policies_and_the_page(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    data = from_table(visits(3000, 1, [1.0, -0.8, 0.6]), SCHEMA)
    found = evaluate(Second(), data, segments=["channel"], segment_loss=0.1)
    said = verdicts({"a": found, "b": found})
    assert {each.verdict for each in said.values()} == {"do_not_ship"}
    data_ = json.loads(json.dumps(as_json(found, said["a"])))
    assert [each["verdict"] for each in data_["segments"]] == ["gains", "loses", "gains"]
    assert data_["segment_loss"] == 0.1
    write_report(tmp_path, {"policy": found}, {"policy": said["a"]})
    page = (tmp_path / "report.html").read_text()
    assert (
        "Gains by segment" in page and "simultaneous (Bonferroni)" in page and "no segment loses more than 0.1" in page
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('column = "region"', 'column = "profit"'), "segment: the column 'profit' is the reward, or named twice"),
        (('column = "region"', 'column = "cluster"'), "a role of its own"),
        (('values = ["north", "south"]', ""), "unknown is for categories"),
        (("unknown = true", "missing = 1"), "segment has no field 'missing'"),
    ],
)
def test_bad_segments_of_a_schema(change: tuple[str, str], message: str) -> None:
    assert LogSchema.parse(SCHEMA.text()) == SCHEMA
    with pytest.raises(ConfigError, match=message):
        LogSchema.parse(SCHEMA.text().replace(*change))
    known = SCHEMA.text().replace("unknown = true\n", "")
    with pytest.raises(DataError, match=r"'region': the segment is 'abroad'; it must be one of .*unknown = true"):
        from_table(visits(50, 0), LogSchema.parse(known))


def test_support_is_that_of_the_segment() -> None:
    table = visits(1500, 0)
    web = table["channel"] == "web"
    table["propensity"][web] = [1.0, 0.0]
    table["offer"][web] = 0
    found = evaluate(Second(), from_table(table, SCHEMA), segments=["channel"])
    no_support = {
        each.name: each.evaluation.facts["no_support"] for each in found.segments if each.evaluation is not None
    }
    assert no_support == pytest.approx({"channel = app": 0, "channel = web": 0.9, "channel = shop": 0})
    assert [each.verdict == "ship" for each in verdict(found).segments.values()] == [True, False, True]
