"""Reports on logged data: each check finds the fault that was planted for it and no other, and pages are safe."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.dataset import MDPDataset, ReplayBuffer
from birl.errors import ConfigError, DataError, EmptyDataError, MissingExtraError, ShapeError, WriteError
from birl.files import parse_json
from birl.ope import FACTS, LIMITS, DataReport, report_data
from birl.ope import html_page as pages
from birl.ope.audit.checks import Check
from birl.ope.audit.model_checks import QUALITY, STITCHED
from birl.ope.audit.scan import MAX_COLUMNS, scan
from birl.ope.html_page import format_value

EPISODES, LENGTH, ACTIONS = 240, 8, 3
HOSTILE = "<script>alert(1)</script>"


@dataclass
class Logs:
    """Episodes of a policy that draws, with all that can be logged. Tests change what they plant."""

    seed: int = 0
    length: int = LENGTH
    rng: np.random.Generator = field(init=False)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        steps = EPISODES * self.length
        self.observation = rng.normal(size=(steps, 3))
        score = np.exp(0.5 * self.observation)
        self.vector = score / score.sum(1, keepdims=True)
        self.action: Any = (self.vector.cumsum(1) > rng.random((steps, 1))).argmax(1)
        self.reward = self.observation[:, 0] + 0.5 * self.action + rng.normal(size=steps)
        self.end = np.tile(np.arange(self.length) == self.length - 1, EPISODES)
        self.terminal, self.timeout = self.end.copy(), np.zeros(steps, bool)
        self.cluster = np.arange(steps) // (2 * self.length)
        self.time = np.arange(steps) + 0.0
        self.logger = rng.integers(0, 2, EPISODES).repeat(self.length)
        self.censored = np.zeros(steps)
        self.propensity: Any = None

    def data(self) -> MDPDataset:
        names = ("cluster", "time", "logger", "censored")
        extra = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.vector is not None:
            own = self.vector[np.arange(len(self.action)), self.action]
            extra |= {"propensities": self.vector, "log_propensity": np.log(own)}
        if self.propensity is not None:
            extra["log_propensity"] = np.log(self.propensity)
        made = {"timeouts": self.timeout, "action_size": ACTIONS, "extra": extra, **self.options}
        return MDPDataset(self.observation.astype(np.float32), self.action, self.reward, self.terminal, **made)


def report(logs: Logs, **options: Any) -> DataReport:
    return report_data(logs.data(), **options)


def episodes_of(logs: Logs, count: int) -> None:
    """Keep the first episodes."""
    for name, value in vars(logs).items():
        if isinstance(value, np.ndarray) and len(value) == EPISODES * logs.length:
            setattr(logs, name, value[: count * logs.length])


@pytest.mark.parametrize("seed", range(4))
def test_good_logs_raise_no_doubt(seed: int) -> None:
    found = report(Logs(seed), others={"certify": Logs(seed + 100).data()})
    assert found.messages() == {}
    asked = {name for name, value in found.facts.items() if value is not None}
    assert {limit.fact for limit in LIMITS if limit.families == ("data",)} - asked == {
        "ends_at_limit",  # episodes are short
        "constant_actions",  # of quantities
    }
    assert "no fact is doubtful" in found.html().lower()
    assert all(len(check.about) <= pages.MAX_TEXT for check in found.checks)  # longer texts are cut


PLANTED: dict[str, Callable[[Logs], Any]] = {}


def planted(function: Callable[[Logs], Any]) -> Callable[[Logs], Any]:
    PLANTED[function.__name__] = function
    return function


@planted
def episodes(logs: Logs) -> None:
    episodes_of(logs, 60)
    logs.cluster = None


@planted
def clusters(logs: Logs) -> None:
    logs.cluster = np.arange(len(logs.reward)) // (6 * LENGTH)


@planted
def censored(logs: Logs) -> None:
    ids = np.arange(len(logs.reward)) // LENGTH
    logs.censored = (ids % 4 == 0) * 1.0
    logs.timeout = logs.end & (ids % 4 == 0)
    logs.terminal = logs.end & ~logs.timeout


@planted
def ends_at_limit(logs: Logs) -> None:
    """24 steps at most; some end before, whose rows after the end are marked as episodes of their own."""
    logs.__init__(logs.seed, 24)  # type: ignore[misc]
    step = np.arange(len(logs.reward)) % 24
    early = (step == 11) & ((np.arange(len(step)) // 24) % 2 == 0)
    logs.terminal |= early
    logs.time = logs.time + 1000 * np.cumsum(np.append(0, logs.terminal[:-1]))


@planted
def backwards(logs: Logs) -> None:
    logs.time[3:5] = logs.time[[4, 3]]


@planted
def long_gaps(logs: Logs) -> None:
    logs.time = np.cumsum(np.where(np.arange(len(logs.time)) % LENGTH == 4, 30.0, 1.0))


@planted
def overlapping(logs: Logs) -> None:
    logs.time[LENGTH : 2 * LENGTH] -= LENGTH // 2


@planted
def repeated_steps(logs: Logs) -> None:
    rows = np.flatnonzero(~logs.end)[::20]
    for values in (logs.observation, logs.action, logs.reward, logs.vector):
        values[rows + 1] = values[rows]


@planted
def repeated_episodes(logs: Logs) -> None:
    logs.time = logs.cluster = None
    rows = np.arange(10 * LENGTH)
    for values in (logs.observation, logs.action, logs.reward, logs.vector, logs.logger):
        values[rows + 100 * LENGTH] = values[rows]


@planted
def similar_episodes(logs: Logs) -> None:
    """Half of the episodes are copies of the others, with noise in observations and rewards."""
    logs.time = logs.cluster = None
    half = EPISODES // 2 * LENGTH
    for values in (logs.observation, logs.action, logs.reward, logs.vector, logs.logger):
        values[half:] = values[:half]
    logs.observation[half:] += 1e-3 * logs.rng.normal(size=(half, 3))
    logs.reward[half:] += 1e-3 * logs.rng.normal(size=half)


@planted
def several_ids(logs: Logs) -> None:
    """Each cluster is one visit of a customer, of whom two columns are known; actions do not depend on them."""
    own = logs.rng.normal(size=(EPISODES // 4, 2)).repeat(4 * LENGTH, 0)
    logs.observation = np.concatenate([logs.observation, own], 1)


@planted
def unexplained_actions(logs: Logs) -> None:
    """A column that the action changes a little."""
    after = logs.rng.normal(size=len(logs.action)) + 0.4 * (logs.action == 1)
    logs.observation = np.concatenate([logs.observation, after[:, None]], 1)


@planted
def shared_episodes(logs: Logs) -> dict[str, Any]:
    other = Logs(7)
    for name in ("observation", "action", "reward", "vector", "time", "logger", "cluster"):
        getattr(other, name)[:LENGTH] = getattr(logs, name)[:LENGTH]
    return {"others": {"train": other.data()}}


@planted
def drift(logs: Logs) -> None:
    logs.reward[len(logs.reward) // 2 :] += 0.8


@planted
def equal_returns(logs: Logs) -> None:
    logs.reward[:] = 1.0


@planted
def reward_outliers(logs: Logs) -> None:
    logs.reward[::100] += 40 * np.where(np.arange(len(logs.reward[::100])) % 2, 1, -1)


@planted
def reward_magnitude(logs: Logs) -> None:
    logs.reward *= 1000


@planted
def last_step_reward(logs: Logs) -> None:
    logs.reward *= logs.end


@planted
def not_finite(logs: Logs) -> MDPDataset:
    data = logs.data()
    data.storage.columns["observation"][5, 1] = np.nan
    return data


@planted
def constant_columns(logs: Logs) -> None:
    logs.observation[:, 2] = 0.1
    logs.vector[:] = np.exp(0.5 * logs.observation) / np.exp(0.5 * logs.observation).sum(1, keepdims=True)
    logs.action = (logs.vector.cumsum(1) > logs.rng.random((len(logs.action), 1))).argmax(1)


@planted
def copied_columns(logs: Logs) -> None:
    logs.observation = np.concatenate([logs.observation, logs.observation[:, :1]], 1)


@planted
def scale_ratio(logs: Logs) -> None:
    logs.observation = logs.observation * np.array([1, 1, 1e5])


@planted
def part_auc(logs: Logs) -> dict[str, Any]:
    other = Logs(7)
    other.observation[:, 1] += 1.5
    return {"others": {"train": other.data()}}


@planted
def leak_reward(logs: Logs) -> None:
    logs.observation = np.concatenate([logs.observation, 3 * logs.reward[:, None] + 1], 1)


@planted
def leak_next_reward(logs: Logs) -> None:
    ahead = np.append(logs.reward[1:], 0)
    logs.observation = np.concatenate([logs.observation, ahead[:, None]], 1)


@planted
def leak_action(logs: Logs) -> None:
    """Coded so that no line explains it: 1 is far from both others."""
    code = np.array([0.0, 50.0, 1.0])[logs.action] + 0.01 * logs.rng.normal(size=len(logs.action))
    logs.observation = np.concatenate([logs.observation, code[:, None]], 1)


@planted
def leak_return(logs: Logs) -> None:
    later = np.cumsum(logs.reward.reshape(-1, LENGTH)[:, ::-1], 1)[:, ::-1].reshape(-1)
    logs.observation = np.concatenate([logs.observation, later[:, None]], 1)


@planted
def leak_constant(logs: Logs) -> None:
    total = logs.reward.reshape(-1, LENGTH).sum(1).repeat(LENGTH)
    logs.observation = np.concatenate([logs.observation, -total[:, None]], 1)


@planted
def never_taken(logs: Logs) -> None:
    """The log has a fourth action, which the masks allow."""
    logs.options = {"action_size": 4, "action_masks": np.ones((len(logs.action), 4))}
    logs.vector = None
    logs.propensity = np.full(len(logs.action), 1 / 3)
    logs.action = logs.rng.integers(0, 3, len(logs.action))


@planted
def constant_actions(logs: Logs) -> None:
    logs.options = {"action_size": 2}
    logs.action = np.stack([logs.rng.normal(size=len(logs.action)), np.full(len(logs.action), 0.5)], 1)
    logs.vector, logs.propensity = None, np.exp(-0.5 * logs.action[:, 0] ** 2) * 1e12


@planted
def no_propensities(logs: Logs) -> None:
    logs.vector = None


@planted
def certain(logs: Logs) -> None:
    """By a rule of two columns, drawn from the third one in a tenth of the steps."""
    sure = np.arange(len(logs.action)) % 4 > 0
    best = (logs.observation[:, 0] > logs.observation[:, 1]).astype(int) + (logs.observation[:, 2] > 1)
    logs.vector[sure] = np.eye(ACTIONS)[best[sure]]
    logs.action = np.where(sure, best, logs.action)
    logs.propensity = logs.vector[np.arange(len(logs.action)), logs.action]


@planted
def near_certain(logs: Logs) -> None:
    sure = np.arange(len(logs.action)) % 4 > 0
    best = (logs.observation[:, 0] > logs.observation[:, 1]).astype(int) + (logs.observation[:, 2] > 1)
    logs.vector[sure] = 0.992 * np.eye(ACTIONS)[best[sure]] + 0.008 / 3
    logs.action = (logs.vector.cumsum(1) > logs.rng.random((len(logs.action), 1))).argmax(1)


@planted
def inverse_propensity(logs: Logs) -> None:
    """Logged without being normalised: each too large."""
    logs.propensity = np.minimum(1.2 * logs.vector[np.arange(len(logs.action)), logs.action], 0.999)
    logs.vector = None


@planted
def propensity_excess(logs: Logs) -> None:
    """Uniform ones, though what acted was not: their inverse is right on average."""
    logs.observation *= 3
    score = np.exp(logs.observation)
    logs.action = (score.cumsum(1) / score.sum(1, keepdims=True) > logs.rng.random((len(score), 1))).argmax(1)
    logs.vector, logs.propensity = None, np.full(len(logs.action), 1 / 3)


@planted
def propensity_rows(logs: Logs) -> None:
    """Each stands a row too late: their inverse and their likelihood are right on average."""
    logs.observation *= 2
    score = np.exp(logs.observation)
    score /= score.sum(1, keepdims=True)
    logs.action = (score.cumsum(1) > logs.rng.random((len(score), 1))).argmax(1)
    logs.vector, logs.propensity = None, np.roll(score[np.arange(len(score)), logs.action], 1)


@planted
def propensity_calibration(logs: Logs) -> None:
    """Of a softmax at another temperature."""
    sharp = logs.vector**2.5
    logs.action = (sharp.cumsum(1) / sharp.sum(1, keepdims=True) > logs.rng.random((len(sharp), 1))).argmax(1)


@planted
def propensity_floor(logs: Logs) -> None:
    logs.vector[7] = [1e-5, 0.5, 0.5 - 1e-5]
    logs.action[7] = 0


@planted
def history(logs: Logs) -> None:
    """Each episode has a speed that is not observed."""
    speed = logs.rng.normal(size=EPISODES).repeat(LENGTH)
    logs.observation[:, 1] = speed * (np.arange(len(speed)) % LENGTH - 3.5) / 2


FOLLOWS = {
    "leak_next_reward": {"history"},  # the column of the step before foretells the reward
    "leak_action": {
        "propensity_excess",
        "propensity_rows",
        "similar_episodes",
        "unexplained_actions",
    },  # and an observation, the action
    "leak_reward": {"propensity_rows", "unexplained_actions"},  # which it says with the others
    "propensity_excess": {"propensity_rows"},
    "certain": {"near_certain"},
    "propensity_calibration": {*("propensity_excess", "propensity_rows", "inverse_propensity", "unexplained_actions")},
}


def test_wrong_propensities_are_found_where_observations_tell_nothing() -> None:
    """A model of forty columns of noise foretells worse than the shares of actions, which propensities contradict."""
    logs = Logs(3)
    steps = len(logs.action)
    logs.observation = logs.rng.normal(size=(steps, 40))
    logs.action = logs.rng.choice(3, steps, p=[0.5, 0.35, 0.15])
    logs.vector, logs.propensity = None, np.full(steps, 1 / 3)
    assert "propensity_excess" in report(logs).messages()


def test_no_memory_is_claimed_where_models_are_worse_than_a_blind_guess() -> None:
    """Actions that hardly differ, by a logger that ignores observations: small models learn noise."""
    for seed in range(3):
        logs = Logs(seed)
        steps = len(logs.action)
        logs.action = logs.rng.choice(3, steps, p=[0.996, 0.002, 0.002])
        logs.vector, logs.propensity = None, np.array([0.996, 0.002, 0.002])[logs.action]
        assert "history" not in report(logs).messages()


def test_what_was_not_asked_is_not_said_to_be_good() -> None:
    assert "of 5 figures" not in report(Logs(), others={"certify": Logs(100).data()}).html()
    logs = Logs()
    logs.time = logs.cluster = None
    assert "no objection; 1 of 5 figures are known" in report(logs).html()


def test_every_check_has_a_planted_fault() -> None:
    of_data = {limit.fact for limit in LIMITS if limit.families == ("data",)}
    assert {*report(Logs()).facts} | of_data == PLANTED.keys() <= set(FACTS)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_no_other(fault: str) -> None:
    logs = Logs(3)
    made = PLANTED[fault](logs)
    options = made if isinstance(made, dict) else {}
    found = report_data(made if isinstance(made, ReplayBuffer) else logs.data(), **options).messages()
    assert found.keys() == {fault} | FOLLOWS.get(fault, set()), found


@pytest.mark.parametrize("fault", ["constant_columns", "copied_columns", "leak_reward", "leak_action", "never_taken"])
def test_messages_say_where(fault: str) -> None:
    logs = Logs(3)
    PLANTED[fault](logs)
    where = {"copied_columns": "(d of a)", "constant_columns": "(c)", "never_taken": "(actions 3)"}
    names = ["a", "b", "c", "d"][: logs.observation.shape[1]]
    assert report(logs, names=names).messages()[fault][1].endswith(where.get(fault, "(column d)"))


@pytest.mark.parametrize("name", ["pendulum-random", "cartpole-random"])
def test_memory_is_wanted_where_speeds_are_hidden(name: str) -> None:
    """Of real dynamics: the same steps with and without the columns that hold speeds."""
    data = birl.datasets.get_dataset(name)[0]
    kept = [0, 1] if name.startswith("pendulum") else [0, 2]
    episodes = data.episodes[: 25 if name.startswith("pendulum") else 100]
    ends = np.concatenate([np.arange(len(e)) == len(e) - 1 for e in episodes])
    terminal = np.concatenate([np.full(len(e), e.terminated) for e in episodes]) & ends
    rest = [np.concatenate([getattr(e, part) for e in episodes]) for part in ("observations", "actions", "rewards")]
    result = []
    for columns in (slice(None), kept):
        logs = MDPDataset(rest[0][:, columns], *rest[1:], terminal, timeouts=ends & ~terminal)
        result.append(report_data(logs).facts["history"])
    assert result[0] is not None and result[0] < 0.01 and result[1] is not None and result[1] > 0.3


# -- numbers -----------------------------------------------------------------------------------------------------------


def numbers(found: DataReport) -> dict[str, Any]:
    return {name: value for each in found.checks for name, value in each.numbers.items()}


def small(returns: list[float], length: int = 2, **options: Any) -> MDPDataset:
    """Episodes with these returns, in one step each of which the others pay nothing."""
    steps = len(returns) * length
    reward, end = np.zeros(steps), np.tile(np.arange(length) == length - 1, len(returns))
    reward[::length] = returns
    made = {"action_size": 2, "timeouts": np.zeros(steps), **options}
    observation = options.pop("observation", np.arange(steps)[:, None] % 3.0)
    made.pop("observation", None)
    return MDPDataset(observation.astype(np.float32), np.arange(steps) % 2, reward, end, **made)


def test_numbers_by_hand() -> None:
    found = report_data(small([0, 1, 1, 2, 6]), gamma=0.5)
    result, facts = numbers(found), found.facts
    assert result["steps"] == 10 and facts["episodes"] == 5 and result["terminated"] == 5 and result["running"] == 0
    assert result[QUALITY] == pytest.approx(2 / 6)
    assert result["distinct observations (about)"] == 3
    assert result["distinct pairs of observation and action (about)"] == 6
    assert result["positive-sided variance of returns"] == pytest.approx(16 / 5)
    assert result["share of the variance of returns above the mean"] == pytest.approx(16 / 22)
    assert result["relative improvement to the best return"] == 2
    assert result["mean"] == 1 and result["median"] == 0 and result["share of zeros"] == 0.6 and result["maximum"] == 6
    half = 2.776445105 * np.std([0, 1, 1, 2, 6], ddof=1) / math.sqrt(5)  # t of four degrees
    assert result["half-width"] == pytest.approx(half, rel=1e-6)
    assert facts["drift"] == pytest.approx((3 - 0.5) / math.sqrt(0.5 / 2 + 7 / 3))
    table = found.checks[3].tables["Quantiles of the return"].rows[0]
    assert table[0] == 0 and table[3] == 1 and table[6] == 6 and table[7] == 2


def test_good_states_that_poor_episodes_reach_are_stitched() -> None:
    rng = np.random.default_rng(0)
    returns = [0.0] * 20 + [1.0] * 20
    near = rng.normal(size=(80, 2))
    far = near + np.repeat([[100.0, 0.0], [0.0, 0.0]], 40, 0)
    result = [numbers(report_data(small(returns, observation=x))) for x in (near, far)]
    assert result[0][STITCHED] > 0.8
    assert result[1][STITCHED] == 0


def test_power_falls_with_the_distance_from_what_acted() -> None:
    """Against weights of a policy that moves: its effective sample size, and exactly so for uniform propensities."""
    logs = Logs(1)
    logs.vector = np.full_like(logs.vector, 1 / 3)
    logs.action = logs.rng.integers(0, 3, len(logs.action))
    logs.cluster = None
    rows = report(logs).checks[-1].tables["Half-widths"].rows
    assert [row[1] for row in rows] == pytest.approx(
        [EPISODES, *(EPISODES / (1 + e * e * 2) ** LENGTH for e in (0.1, 0.25, 0.5))]
    )
    favoured = 0.75 / 3 + 0.25 * (logs.action == 0)
    weight = (favoured * 3).reshape(-1, LENGTH).prod(1)
    assert weight.sum() ** 2 / (weight**2).sum() == pytest.approx(rows[2][1], rel=0.25)
    assert rows[0][2] < rows[1][2] < rows[2][2] and rows[3][2] is None


def test_half_widths_are_those_of_clusters() -> None:
    logs = Logs(1)
    logs.cluster = (np.arange(len(logs.reward)) // LENGTH) // (1 + np.arange(len(logs.reward)) // LENGTH % 3)
    data = logs.data()
    terms = np.array([(e.rewards[:, 0] * 0.9 ** np.arange(len(e))).sum(dtype=float) for e in data.episodes])
    wanted = birl.ope.t_interval(birl.ope.Estimate(terms), clusters=logs.cluster[::LENGTH])
    half = numbers(report_data(data, gamma=0.9))["half-width"]
    assert half == pytest.approx(float(wanted.upper - wanted.lower) / 2, rel=1e-6)


def test_a_pass_does_not_depend_on_how_much_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(2)
    rows = np.flatnonzero(~logs.end)[::20]
    for values in (logs.observation, logs.action, logs.reward, logs.vector):
        values[rows + 1] = values[rows]
    logs.time[3:5] = logs.time[[4, 3]]
    whole = scan(logs.data())
    monkeypatch.setattr("birl.ope.audit.scan.chunk_rows", lambda width: 7)
    parts = scan(logs.data())
    assert parts.counts == whole.counts and whole.counts["backwards"] == 1 and whole.counts["repeated"] > 50
    for name, values in whole.episodes.items():
        np.testing.assert_allclose(parts.episodes[name], values, err_msg=name)
    for name, values in whole.columns.items():
        np.testing.assert_allclose(parts.columns[name], values, rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(parts.sample.observation, whole.sample.observation)
    assert parts.unique == whole.unique and parts.share_of_gaps_over(10) == whole.share_of_gaps_over(10)
    np.testing.assert_allclose(whole.columns["std"], logs.observation.astype(np.float32).std(0), rtol=1e-6)


def test_large_logs_are_counted_by_sketches_and_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("birl.ope.audit.statistics._SKETCH", 256)
    monkeypatch.setattr("birl.ope.audit.scan.MAX_STEPS", 100)
    logs = Logs()
    seen = scan(logs.data())
    assert seen.unique["observations"] == pytest.approx(EPISODES * LENGTH, rel=0.2)
    assert 90 < len(seen.sample.reward) <= 100
    assert set(np.bincount(seen.sample.episode)) == {0, LENGTH}
    episodes_of(logs, 1)
    monkeypatch.setattr("birl.ope.audit.scan.MAX_STEPS", 3)
    assert scan(logs.data()).sample.step.tolist() == [0, 1, 2]


# -- other kinds of data -----------------------------------------------------------------------------------------------


def finds(data: Any, **options: Any) -> DataReport:
    """A report whose page is XML and whose JSON can be read."""
    found = report_data(data, **options)
    ElementTree.fromstring(found.html())
    assert parse_json(json.dumps(found.as_dict(), allow_nan=False).encode(), "it") == found.as_dict()
    return found


def test_any_data_that_can_be_learned_from() -> None:
    rng = np.random.default_rng(0)
    end = np.tile([0, 0, 0, 1], 30)
    x, r = rng.normal(size=(120, 2)).astype(np.float32), rng.normal(size=120)
    quantities = finds(MDPDataset(x, rng.normal(size=(120, 2)), r, end, timeouts=1 - end), actions=["<gas>", "brake"])
    assert [row[0] for row in quantities.checks[7].tables["Dimensions"].rows] == ["<gas>", "brake"]
    assert quantities.facts["constant_actions"] == 0 and "never_taken" not in quantities.facts
    several = finds(MDPDataset(x, rng.integers(0, 2, (120, 3)), r, end, action_size=[2, 2, 2], timeouts=0 * end))
    assert several.facts["leak_action"] is not None and "near_certain" not in several.facts
    choices = MDPDataset(rng.integers(0, 4, 120), rng.integers(0, 2, 120), r, end, timeouts=0 * end)
    for names, visible in ((["wait", "call"], ["wait", "call"]), (["wait"], ["0", "1"]), (None, ["0", "1"])):
        called = finds(choices, actions=names)
        assert [row[0] for row in called.checks[7].tables["How often actions were taken"].rows] == visible
    choices = finds(choices)
    assert choices.facts["constant_columns"] == 0
    assert choices.checks[5].tables["Columns"].rows[2][0] == "observation[0] = 2"
    parts = {"a": x, "b": rng.integers(0, 255, (120, 3, 2, 2), dtype=np.uint8)}
    finds(MDPDataset(parts, rng.integers(0, 2, 120), r, end, timeouts=0 * end))
    masks = rng.random((120, 3)) > 0.3
    masks[np.arange(120), action := rng.integers(0, 3, 120)] = True
    masked = finds(MDPDataset(x, action, r, end, action_masks=masks, timeouts=0 * end))
    assert masked.checks[7].tables["How often actions were taken"].rows[0][2] == masks[:, 0].sum()


def test_hardly_any_data() -> None:
    one = finds(small([1.0]))
    assert one.messages()["episodes"] == (True, one.messages()["episodes"][1])
    assert "history" in one.facts and one.facts["history"] is None and numbers(one)["half-width"] is None
    finds(MDPDataset(np.zeros((1, 1), np.float32), [0], [0.0], [1], action_size=1))
    finds(small([1.0, 2.0], length=1))
    same = np.zeros((600, 1), np.float32)
    finds(MDPDataset(same, np.zeros(600, int), np.full(600, 1e30), np.arange(600) == 599, action_size=1))
    far = np.full((40, 2), 3e38, np.float32)
    far[::2] = -3e38
    finds(small([1.0, 2.0] * 10, observation=far))
    info = small([1.0]).dataset_info
    empty = ReplayBuffer(
        birl.dataset.InfiniteBuffer(),
        observation_signature=info.observation_signature,
        action_signature=info.action_signature,
        reward_signature=info.reward_signature,
        action_space=info.action_space,
        action_size=2,
    )
    with pytest.raises(EmptyDataError, match="no steps; a report needs one or more"):
        report_data(empty)


def test_wrong_arguments() -> None:
    for wrong in (None, "data", [1]):
        with pytest.raises(ConfigError, match="give a dataset"):
            report_data(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'x'"):
        report_data(small([1.0]), others={"x": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="gamma"):
        report_data(small([1.0]), gamma=math.nan)
    with pytest.raises(ConfigError, match="name a file"):
        report_data(small([1.0])).save()


# -- pages -------------------------------------------------------------------------------------------------------------


def hostile() -> DataReport:
    logs = Logs(5)
    logs.observation[:, 2] = 1.0
    other = Logs(6)
    names = [HOSTILE, "&lt;\x00\ud800\"'{{ 1 }}", "x" * 100_000]
    return report(logs, names=names, loggers=[HOSTILE, "b"], title=HOSTILE, others={HOSTILE: other.data()})


def test_pages_of_hostile_logs(tmp_path: Path) -> None:
    found = hostile()
    found.save(tmp_path / "r.html", tmp_path / "r.json")
    text = (tmp_path / "r.html").read_text("utf-8")
    tree = ElementTree.fromstring(text)
    assert {node.tag for node in tree.iter()}.isdisjoint({"script", "iframe", "img", "link", "object"})
    assert "<script" not in text and "http:" not in text and "https:" not in text and text.count("&lt;script&gt;") > 4
    cells = {"".join(node.itertext()) for node in tree.iter("td")}
    assert {HOSTILE, "&lt;\ufffd\ufffd\"'{{ 1 }}", "x" * 300 + "…"} <= cells
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["title"] == HOSTILE


def test_json_has_the_numbers_of_the_page(tmp_path: Path) -> None:
    found = hostile()
    found.save(json=tmp_path / "r.json")
    result = parse_json((tmp_path / "r.json").read_bytes(), "r.json")
    assert result == found.as_dict()
    tree = ElementTree.fromstring(found.html())
    rows = [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]
    said = {limit.fact: limit.labels for limit in reversed(LIMITS)}
    sections = [node.text for node in tree.iter("h2")]
    assert sections == ["Advice", *(check["title"] for check in result["checks"])]
    for check in result["checks"]:
        for name, value in check["facts"].items():
            meaning, doubtful, forbidden = said[name]
            assert [meaning, format_value(value), doubtful, forbidden] in rows, name
        assert all([format_value(name), format_value(value)] in rows for name, value in check["numbers"].items())
        for table in check["tables"].values():
            assert all([format_value(cell) for cell in row] in rows for row in table["rows"][: pages.MAX_ROWS])
    visible = ["".join(node.itertext()) for node in tree.iter("p") if "note" in node.get("class", "")]
    assert (
        all(any(one["message"][:250] in text for text in visible) for one in result["messages"]) and result["messages"]
    )


def test_many_columns_make_a_small_page() -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(120, 20_000)).astype(np.float32)
    wide[:, 5000:] = wide[:, 5000:5001]
    names, end = [HOSTILE * 20 + str(k) for k in range(20_000)], np.tile([0, 0, 0, 1], 30)
    actions = rng.integers(0, 2000, 120)
    data = MDPDataset(wide, actions, rng.normal(size=120), end, timeouts=np.zeros(120), action_size=2000)
    found = finds(data, names=names)
    assert len(found.html().encode()) < 1_000_000
    assert numbers(found)["columns checked"] == MAX_COLUMNS and numbers(found)["columns of an observation"] == 20_000
    assert found.facts["copied_columns"] and len(found.checks[5].tables["Columns"].rows) == MAX_COLUMNS


def test_without_jinja2_json_is_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    pages._template.cache_clear()
    found = report_data(small([1.0, 2.0]))
    found.save(json=tmp_path / "r.json")
    with pytest.raises(MissingExtraError, match=r"birl\[logs\]"):
        found.save(tmp_path / "r.html", tmp_path / "other.json")
    pages._template.cache_clear()
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]  # all or nothing
    with pytest.raises(WriteError):
        found.save(json=tmp_path / "nowhere" / "r.json")


def test_advice_has_reason_and_source_and_changes_nothing() -> None:
    logs = Logs()
    assert not any("2111.04714" in one.source for one in report(logs).advice)  # no observation comes again
    logs.observation = np.round(2 * logs.observation) / 2
    data = logs.data()
    before = data.storage.columns["observation"].copy()
    found = report_data(data)
    (first, *_) = found.advice
    assert first.advice.startswith("DiscreteCQL") and "2111.04714" in first.source and ": 1" in first.reason
    np.testing.assert_array_equal(before, data.storage.columns["observation"])
    rare = small([0.0] * 95 + [1.0] * 5, observation=np.random.default_rng(0).normal(size=(200, 2)))
    assert any("best tenth" in one.advice for one in report_data(rare).advice)
    assert isinstance(found.checks[0], Check)


@pytest.mark.parametrize("name", ["log_propensity", "logger", "cluster", "time", "censored", "propensities"])
def test_extra_columns_of_another_shape_are_refused_by_name(name: str) -> None:
    wide = {name: np.full((6, 4), 0.25)}
    data = MDPDataset(np.eye(6), [0, 1, 2] * 2, np.ones(6), [0, 0, 1] * 2, action_size=3, extra=wide)
    with pytest.raises(ShapeError, match=rf"the extra column '{name}' has the shape \(4,\) in each step; it must be "):
        report_data(data)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"propensities": np.zeros((6, 3))}, r"propensities is \[0\. 0\. 0\.\] at step 0; it must be probabilities"),
        ({"propensities": np.eye(3)[[0, 1, 2] * 2] * np.r_[1, 1, 1, 1, 2, 1][:, None]}, "at step 4; it must be"),
        ({"propensities": np.tile([-0.5, 0.5, 1], (6, 1))}, "at step 0; it must be probabilities"),
        ({"log_propensity": np.r_[0, 0, 0, 800.0, 0, 0]}, r"log_propensity is 800\.0 at step 3; it must be the log"),
    ],
)
def test_impossible_propensities_are_refused(extra: dict[str, Any], said: str) -> None:
    data = MDPDataset(np.eye(6), [0, 1, 2] * 2, np.ones(6), [0, 0, 1] * 2, action_size=3, extra=extra)
    with pytest.raises(DataError, match=said):
        report_data(data)


def test_propensities_of_continuous_actions_are_no_column_of_the_report() -> None:
    extra = {"propensities": np.full((6, 3), 0.25), "log_propensity": np.full(6, 3.0)}
    data = MDPDataset(np.eye(6), np.arange(6.0)[:, None], np.ones(6), [0, 0, 1] * 2, extra=extra)
    report_data(data).html()
