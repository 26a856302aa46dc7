"""From logs to a verdict: gains of known worlds, rules as a table, Holm's procedure, and what is hidden."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from birl import algos
from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import ConfigError, DataError, EmptyDataError, UnsupportedError
from birl.models import GRUEncoderFactory
from birl.ope import (
    STATUS,
    Confounded,
    Estimate,
    Trajectories,
    confounded_range,
    decide,
    doubly_robust,
    evaluate,
    holm,
    model_facts,
    on_policy,
    p_value,
    t_interval,
    verdict,
    verdicts,
)
from birl.testing import build_algorithm
from birl.types import ActionSpace
from tests.ope import planted

WORLD = planted.world(0, 5)
LOGGER, POLICY = planted.policies(0, 0.6)


class FixedPolicy:
    """A policy of one's own: probabilities ``[S, A]`` for one-hot states."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = self.table[np.asarray(x).argmax(-1)]
        return every if action is None else every[np.arange(len(every)), np.asarray(action).reshape(-1)]


def improved(shift: float, world: planted.World = WORLD) -> np.ndarray:
    """The logger, moved towards what is worth more."""
    logits = np.log(LOGGER) + shift * world.values(LOGGER)[0][0]
    chance = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(chance / chance.sum(-1, keepdims=True))


def logs(n: int = 400, seed: int = 1, what: str = "vector", extra: Any = None, world: Any = WORLD) -> Any:
    """A dataset; ``what`` is logged of propensities."""
    of = planted.log(world, LOGGER, 1, n, seed)
    episodes = []
    for i in range(n):
        m = of.mask[0, i]
        s, a, r = (column[0, i][m] for column in (of.state, of.action, of.reward))
        kept = {name: np.full(len(s), column[i]) for name, column in (extra or {}).items()}
        if what != "nothing":
            kept["log_propensity"] = np.log(LOGGER[s, a])
        if what == "vector":
            kept["propensities"] = LOGGER[s]
        x = np.eye(5, dtype=np.float32)[s]
        episodes.append(Episode(x, a[:, None], r.astype(np.float32)[:, None], True, extra=kept))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)


def test_an_evaluation_holds_the_truth() -> None:
    found = evaluate(FixedPolicy(POLICY), logs(), gamma=0.95)
    gain, row = WORLD.truth(POLICY) - WORLD.truth(LOGGER), found.gain
    assert found.decides == "doubly_robust" and row is not None and row.gain_interval is not None
    assert row.gain_interval.holds(gain) and row.interval is not None and row.interval.holds(WORLD.truth(POLICY))
    assert found.logs.interval is not None and found.logs.interval.holds(WORLD.truth(LOGGER))
    assert found.rows["direct_method"].interval is None
    assert found.rows["direct_method"].value == pytest.approx(WORLD.truth(POLICY), abs=0.1)
    plain = found.rows["per_decision"].gain_interval
    assert plain is not None and row.gain_interval.upper - row.gain_interval.lower < (plain.upper - plain.lower) / 2
    assert set(found.rows) == {
        "direct_method",
        "importance_sampling",
        "weighted_importance_sampling",
        "per_decision",
        "weighted_per_decision",
        "doubly_robust",
        "weighted_doubly_robust",
        "double_reinforcement_learning",
    }


def test_a_policy_without_any_weight_is_refused_in_words() -> None:
    """It never does what the logs hold first: estimators that divide by weights say so, the others are refused."""
    data = logs(100, what="taken")

    class Other(FixedPolicy):
        """Does another action than the logged one, whatever that is, at first steps; then what the logger does."""

        def action_probability(self, x: Any, action: Any = None) -> Any:
            chance = super().action_probability(x).copy()
            begins = np.cumsum([0, *(len(each.rewards) for each in data.episodes)])[:-1]
            done = np.array([each.actions[0, 0] for each in data.episodes])
            chance[begins, done] = 0
            return chance / chance.sum(-1, keepdims=True)

    found = evaluate(Other(LOGGER), data, gamma=0.95)
    no_weight = (
        "all weights are 0 from step 0 on, so the policy cannot generate any of the logged episodes; one at least must "
        "have a weight: evaluate a policy nearer to the logs"
    )
    assert found.decides is None and found.facts["ess"] == 0 and found.differs is not None and found.differs > 0.1
    for key in ("weighted_importance_sampling", "weighted_per_decision", "weighted_doubly_robust"):
        assert key not in found.rows
        said = [one.message for one in found.findings if one.message.startswith(key)]
        assert said == [f"{key}: {no_weight}"]
    for key in ("importance_sampling", "per_decision", "doubly_robust"):
        assert found.rows[key].refused.startswith("effective episodes: 0")
    said_ = verdict(found)
    assert said_.verdict == "cannot_tell" and any("effective episodes: 0;" in reason for reason in said_.reasons)


@pytest.mark.parametrize("what", ["vector", "taken", "given", "other"])
def test_the_policy_that_acted_gains_exactly_nothing(what: str) -> None:
    data = logs(60, what="nothing" if what in ("given", "other") else what)
    how: dict[str, Any] = {"behaviour": FixedPolicy(LOGGER)} if what in ("given", "other") else {}
    if what == "other":
        how["against"] = FixedPolicy(POLICY)
    found = evaluate(FixedPolicy(POLICY if what == "other" else LOGGER), data, gamma=0.95, **how)
    for row in found.rows.values():
        assert not row.gain.terms.any()
    said = verdict(found)
    assert said.verdict == "do_not_ship" and "both act alike" in said.reasons[0]


def test_gains_of_evaluations_cover() -> None:
    """Of data sets by `evaluate` itself, whose model and parts no other test has."""
    truth = WORLD.truth(POLICY) - WORLD.truth(LOGGER)
    hits = []
    for seed in range(60):
        row = evaluate(FixedPolicy(POLICY), logs(100, seed + 10), gamma=0.95).gain
        assert row is not None and row.gain_interval is not None
        hits.append(bool(row.gain_interval.holds(truth)))
    assert not planted.too_few(sum(hits), len(hits), 0.93)
    assert planted.too_few(sum(hits) // 2, len(hits), 0.93)


def test_paired_gains_cover() -> None:
    """1,000 data sets; intervals of half the width miss."""
    hits, halves = [], []
    truth = WORLD.truth(POLICY) - WORLD.truth(LOGGER)
    for seed in range(2):
        of = planted.trajectories(planted.log(WORLD, LOGGER, 500, 200, 50 + seed), WORLD, LOGGER, POLICY)
        interval = t_interval(doubly_robust(of) - on_policy(of))
        middle, half = (interval.lower + interval.upper) / 2, (interval.upper - interval.lower) / 2
        hits.append(interval.holds(truth))
        halves.append(np.abs(middle - truth) < half / 2)
    assert planted.covers(np.concatenate(hits)) and not planted.covers(np.concatenate(halves))


@pytest.mark.parametrize(
    ("lower", "upper", "min_gain", "expected"),
    [
        (0.1, 0.5, 0.0, "ship"),
        (0.1, 0.5, 0.1, "more_data"),  # the bound must be above
        (0.1, 0.5, 0.2, "more_data"),
        (0.1, 0.5, 0.5, "more_data"),
        (0.1, 0.5, 0.6, "do_not_ship"),
        (-0.5, -0.1, 0.0, "do_not_ship"),
        (-0.5, -0.1, -1.0, "ship"),  # not much worse is what was asked for
        (-0.1, 0.1, 0.0, "more_data"),
        (0.0, 0.0, 0.0, "do_not_ship"),
        (0.0, 0.0, 0.1, "do_not_ship"),
        (0.0, 0.0, -0.1, "ship"),
    ],
)
def test_the_rule(lower: float, upper: float, min_gain: float, expected: str) -> None:
    assert decide(lower, upper, min_gain)[0] == expected


def test_how_many_more_episodes() -> None:
    assert decide(-1.0, 3.0, 0.0) == ("more_data", pytest.approx(4.0))  # half-width 2, at the distance 1
    assert decide(-1.0, 1.0, 0.0) == ("more_data", None)
    for ends in ((1.0, 0.0), (np.nan, 1.0)):
        with pytest.raises(ConfigError, match="two ends, the lower one first"):
            decide(*ends, 0.0)


def test_numbers_of_episodes_are_written_as_people_do() -> None:
    found = evaluate(FixedPolicy(POLICY), logs(), gamma=0.95)
    assert found.decides == "doubly_robust"
    gain = float(found.rows["doubly_robust"].gain.value)
    half = float(found.rows["doubly_robust"].gain_interval.upper) - gain  # type: ignore[union-attr]
    for times, said in {3.456: "3.5", 43.21: "43", 43210.0: "43,000", 4e5: "400,000"}.items():
        logged = verdict(found, gain - half / times**0.5)
        assert logged.remedies == (f"log about {said} times as many episodes",), times


def test_statuses_are_five() -> None:
    assert STATUS == {"ship": 0, "do_not_ship": 3, "more_data": 4, "cannot_tell": 5, "test_online": 6}


def test_verdicts_of_known_worlds() -> None:
    data = logs(600)
    better, worse = improved(1.0), improved(-1.0)
    assert WORLD.truth(better) > WORLD.truth(LOGGER) + 0.2 > WORLD.truth(worse) + 0.4
    up, down = (evaluate(FixedPolicy(one), data, gamma=0.95) for one in (better, worse))
    ship = verdict(up)
    assert ship.verdict == "ship" and ship.status == 0 and ship.lower is not None and ship.lower > 0
    assert "guarded online test" in ship.remedies[0] and len(ship.assumptions) == 5
    assert verdict(up, min_gain=5.0).verdict == "do_not_ship" and verdict(down).verdict == "do_not_ship"
    assert ship.upper is not None
    straddles = verdict(up, min_gain=0.7 * ship.lower + 0.3 * ship.upper)
    assert straddles.verdict == "more_data" and straddles.times is not None and straddles.times > 1
    assert "times as many episodes" in straddles.remedies[0]
    assert verdict(up, min_gain=(ship.lower + ship.upper) / 2).times is None
    with pytest.raises(ConfigError, match="min_gain"):
        verdict(up, min_gain=np.nan)


def cannot(found: Any) -> str:
    said = verdict(found)
    assert said.verdict == "cannot_tell" and said.status == 5 and said.lower is None and said.remedies
    return " ".join(said.reasons + said.remedies)


def test_what_cannot_be_decided() -> None:
    far = np.full((5, 3), 1e-6)
    far[np.arange(5), [0, 1, 2, 0, 1]] = 1 - 2e-6
    assert "there are 12 episodes" in cannot(evaluate(FixedPolicy(POLICY), logs(12), gamma=0.95))
    assert "log them, or estimate them" in cannot(evaluate(FixedPolicy(POLICY), logs(what="nothing"), gamma=0.95))
    assert "hold out episodes" in cannot(evaluate(FixedPolicy(POLICY), logs(100), gamma=0.95, seen=True))
    few = evaluate(FixedPolicy(far), logs(60, world=planted.world(0, 10)), gamma=0.95)
    assert "effective episodes: " in cannot(few)
    users = {"cluster": np.arange(200) % 5}
    assert "there are 5 clusters" in cannot(evaluate(FixedPolicy(POLICY), logs(200, extra=users), gamma=0.95))
    cut = {"censored": np.arange(200) % 2}
    assert "truncated before the horizon" in cannot(
        evaluate(FixedPolicy(POLICY), logs(200, extra=cut), gamma=0.95, horizon=9)
    )
    data = logs(200)
    shorter = [replace(each, terminated=bool(i % 3)) for i, each in enumerate(data.episodes)]  # the log cut the others
    logged = create_infinite_replay_buffer(episodes=shorter, action_space=ActionSpace.DISCRETE, action_size=3)
    assert "truncated before the horizon" in cannot(evaluate(FixedPolicy(POLICY), logged, gamma=0.95, horizon=9))
    assert (
        evaluate(FixedPolicy(POLICY), logged, gamma=0.1, horizon=9).facts["censored"] == 0
    )  # the cut rewards count for nothing
    short = evaluate(FixedPolicy(POLICY), logged, gamma=0.95, horizon=min(len(each.rewards) for each in shorter))
    assert short.facts["censored"] == 0


def test_steps_of_uneven_length_are_doubted() -> None:
    gaps = {"time_gap": np.where(np.arange(200) % 5, 1.0, 2.5)}
    found = evaluate(FixedPolicy(POLICY), logs(200, extra=gaps), gamma=0.95)
    assert any("the discount counts steps, not time" in one.message for one in found.findings)
    assert "uneven_steps" not in evaluate(FixedPolicy(POLICY), logs(200, extra=gaps), gamma=1.0, horizon=3).facts


def test_propensities_that_are_wrong_are_refused() -> None:
    data = logs(what="taken")
    wrong = [replace(each, extra={"log_propensity": each.extra["log_propensity"] - 0.5}) for each in data.episodes]
    logged = create_infinite_replay_buffer(episodes=wrong, action_space=ActionSpace.DISCRETE, action_size=3)
    assert "check that propensities are those" in cannot(evaluate(FixedPolicy(POLICY), logged, gamma=0.95))
    found = evaluate(FixedPolicy(POLICY), logs(), gamma=0.95, behaviour=FixedPolicy(improved(3.0)))
    assert (found.facts["calibration_error"] or 0) > 0.05 and "off by" in cannot(found)


def test_actions_that_no_log_holds_are_refused() -> None:
    table = np.array([[1.0, 0.0, 0.0]] * 5) * 0.999 + np.array([0.0, 5e-4, 5e-4])
    episodes = []
    rng = np.random.default_rng(0)
    for _ in range(100):
        x = np.eye(5, dtype=np.float32)[rng.integers(5, size=3)]
        extra = {"log_propensity": np.full(3, np.log(0.999)), "propensities": np.tile(table[0], (3, 1))}
        episodes.append(Episode(x, np.zeros((3, 1), int), rng.normal(size=(3, 1)), True, extra=extra))
    data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)
    assert "on actions that the logs hardly contain" in cannot(evaluate(FixedPolicy(POLICY), data))


@pytest.mark.parametrize("what", ["propensities of the logged actions", "vectors"])
def test_actions_that_logs_hold_too_seldom_are_refused(what: str) -> None:
    """What costs 100 was hardly ever taken: neither weights nor a model can know it."""
    rng = np.random.default_rng(0)
    share = np.array([0.5, 0.5, 0.0]) if what != "vectors" else np.array([0.4995, 0.4995, 0.001001])
    episodes = []
    for _ in range(300):
        action = int(rng.choice(2))
        extra = {"log_propensity": np.log(share[[action]])}
        if what == "vectors":
            extra["propensities"] = (share / share.sum())[None]
        x, reward = np.eye(5, dtype=np.float32)[[rng.integers(5)]], rng.normal(-10, 1, (1, 1))
        episodes.append(Episode(x, np.array([[action]]), reward, True, extra=extra))
    data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)
    assert "on actions that the logs hardly contain" in cannot(
        evaluate(FixedPolicy(np.tile([0.75, 0.15, 0.1], (5, 1))), data)
    )
    nearer = evaluate(FixedPolicy(np.tile([0.75, 0.245, 0.005], (5, 1))), data)
    assert nearer.facts["unsupported"] == pytest.approx(0.0045, abs=6e-4) and nearer.decides is not None


def test_the_logger_itself_is_never_unsupported() -> None:
    """Of 500 actions each is taken a few times; weights of 1 need no more."""
    rng, n = np.random.default_rng(0), 500
    episodes = []
    for _ in range(200):
        x, action = np.eye(5, dtype=np.float32)[rng.integers(5, size=4)], rng.integers(n, size=(4, 1))
        extra = {"log_propensity": np.full(4, -np.log(n))}
        episodes.append(Episode(x, action, rng.normal(size=(4, 1)), True, extra=extra))
    data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=n)
    logger = np.full((5, n), 1 / n)
    found = evaluate(FixedPolicy(logger), data)
    assert (found.facts["unsupported"] or 0) < 0.05 and found.facts["ess"] == pytest.approx(200)
    vectors = [replace(each, extra={**each.extra, "propensities": np.full((4, n), 1 / n)}) for each in data.episodes]
    logged = create_infinite_replay_buffer(episodes=vectors, action_space=ActionSpace.DISCRETE, action_size=n)
    assert evaluate(FixedPolicy(logger), logged).facts["unsupported"] == pytest.approx(0, abs=1e-9)


def test_a_wrong_model_is_seen_wherever_the_zero_of_rewards_is() -> None:
    rng = np.random.default_rng(0)
    robust, model = rng.normal(size=2000), rng.normal(0.5, 1, 2000)
    for zero in (0.0, 1000.0):
        found = model_facts(Estimate(robust + zero), Estimate(model + zero), 15.0)
        assert found == {"model_differs": 1.0, "ess_where_model_differs": 15.0}
    assert model_facts(Estimate(np.ones(50)), Estimate(np.ones(50) - 1e-7), 15.0)["model_differs"] == 0


def test_estimated_propensities() -> None:
    found = evaluate(FixedPolicy(POLICY), logs(what="nothing"), gamma=0.95, behaviour="estimated")
    assert found.decides == "doubly_robust" and (found.facts["calibration_error"] or 1) < 0.03
    interval = found.rows["doubly_robust"].gain_interval
    assert interval is not None and interval.holds(WORLD.truth(POLICY) - WORLD.truth(LOGGER))
    assert any("estimated propensities are right" in text for text in verdict(found).assumptions)


def test_a_gain_that_moves_with_time_is_no_ship() -> None:
    data = logs(400, extra={"time": np.arange(400.0)})
    better = FixedPolicy(improved(1.0))
    steady = evaluate(better, data, gamma=0.95)
    assert steady.over_time is not None and steady.over_time.change is None and verdict(steady).verdict == "ship"
    flipped = []  # what was worth something costs it in the last third
    for index, each in enumerate(data.episodes):
        flipped.append(replace(each, rewards=each.rewards * (3 if index < 270 else -1)))
    data = create_infinite_replay_buffer(episodes=flipped, action_space=ActionSpace.DISCRETE, action_size=3)
    found = evaluate(better, data, gamma=0.95)
    said = verdict(found)
    assert said.verdict == "more_data" and "the gain changes at about 2" in said.reasons[1]


def test_the_order_of_episodes_does_not_matter_to_weights() -> None:
    data = logs(200)
    turned = create_infinite_replay_buffer(
        episodes=list(data.episodes)[::-1], action_space=ActionSpace.DISCRETE, action_size=3
    )
    one, other = (
        evaluate(FixedPolicy(POLICY), each, gamma=0.95).rows["weighted_per_decision"] for each in (data, turned)
    )
    assert one.value == pytest.approx(other.value, rel=1e-12)


class Noisy:
    """Acts by ``gain * x`` with Gaussian noise of 1."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def action_probability(self, x: Any, action: Any = None) -> Any:
        return np.exp(-0.5 * (action - self.gain * x)[:, 0] ** 2) / np.sqrt(2 * np.pi)


def quantities(n: int) -> Any:
    """A step in which the action should be the state."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(n):
        x = rng.normal(size=(1, 1)).astype(np.float32)
        a = (0.5 * x + rng.normal(size=(1, 1))).astype(np.float32)
        extra = {"log_propensity": np.log(Noisy(0.5).action_probability(x, a))}
        episodes.append(Episode(x, a, -((a - x) ** 2), True, extra=extra))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.CONTINUOUS, action_size=1)


def test_quantities_are_judged_by_weights() -> None:
    data = quantities(2000)
    found = evaluate(Noisy(0.8), data)
    assert found.decides == "weighted_per_decision" and "doubly_robust" not in found.rows
    interval = found.rows["weighted_per_decision"].gain_interval
    assert interval is not None and interval.holds(0.5**2 - 0.2**2)
    said = verdict(found)
    assert said.verdict == "ship" and said.flips_at is not None
    assert not evaluate(Noisy(0.5), data).rows["per_decision"].gain.terms.any()
    with pytest.raises(UnsupportedError, match="log them, or give the logging policy as behaviour="):
        evaluate(Noisy(0.8), data, behaviour="estimated")


def test_greedy_policies() -> None:
    table = np.eye(3)[WORLD.values(LOGGER)[0][0].argmax(-1)]
    one = planted.world(0, 1)
    found = evaluate(FixedPolicy(table), logs(600, world=one), gamma=0.95)
    assert found.gain is not None and found.gain.gain_interval is not None
    assert found.gain.gain_interval.holds(one.truth(table) - one.truth(LOGGER))
    never = evaluate(FixedPolicy(np.eye(3)[[0] * 5]), logs_of_one_action())
    assert "so the policy cannot generate any of the logged episodes" in cannot(never)


def logs_of_one_action() -> Any:
    """Logs that never hold action 0."""
    extra = {"log_propensity": np.zeros(2)}
    episodes = [Episode(np.eye(5, dtype=np.float32)[:2], np.ones((2, 1), int), np.ones((2, 1)), True, extra=extra)] * 40
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)


def test_policies_with_a_memory_are_refused() -> None:
    config = algos.DQNConfig(encoder_factory=GRUEncoderFactory(hidden_size=4))
    with pytest.raises(UnsupportedError, match="is recurrent"):
        evaluate(build_algorithm(config, (5,), 3), logs(40))


def test_bad_input() -> None:
    data = logs(40)
    with pytest.raises(ConfigError, match="must have the method action_probability"):
        evaluate(object(), data)
    with pytest.raises(ConfigError, match="it must be 'logged', 'estimated' or a policy"):
        evaluate(FixedPolicy(POLICY), data, behaviour="guessed")
    with pytest.raises(ConfigError, match="gamma"):
        evaluate(FixedPolicy(POLICY), data, gamma=1.5)
    with pytest.raises(ConfigError, match="horizon"):
        evaluate(FixedPolicy(POLICY), data, horizon=0)
    with pytest.raises(DataError, match="sums to 2"):
        evaluate(FixedPolicy(POLICY * 2), data)
    with pytest.raises(DataError, match=r"shape \(\d+, 2\); it must be \[B, 3\]"):
        evaluate(FixedPolicy(POLICY[:, :2]), data)
    with pytest.raises(EmptyDataError, match="there are 1 episodes"):
        evaluate(FixedPolicy(POLICY), logs(1))
    mixed = [*data.episodes][:3]
    mixed[1] = replace(mixed[1], extra={})
    with pytest.raises(DataError, match="episode 1 has no log_propensity"):
        evaluate(FixedPolicy(POLICY), type("Data", (), {"episodes": mixed, "dataset_info": data.dataset_info})())


def test_holm() -> None:
    assert holm([0.03, 0.001, 0.2], 0.05) == pytest.approx([0.025, 0.05 / 3, 0.025])  # then 0.03 > 0.025: stop
    assert holm([0.01, 0.001, 0.04], 0.05) == pytest.approx([0.025, 0.05 / 3, 0.05])
    assert holm([], 0.05) == []
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(4000):
        p = np.where([True, True, True, False], rng.random(4), 1e-9)
        wrong += bool((p < holm(list(p), 0.05))[:3].any())
    assert 0.03 < wrong / 4000 < 0.06  # of three true hypotheses and a false one


def test_p_values() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(500, 30))
    found = np.array([p_value(Estimate(row), 0.0) for row in terms])
    assert abs((found < 0.1).mean() - 0.1) < 0.04 and abs(found.mean() - 0.5) < 0.04
    gain = Estimate(terms[0])
    lower = float(t_interval(gain, 0.9).lower)
    assert p_value(gain, lower) == pytest.approx(0.05)
    assert p_value(Estimate(np.ones(9)), 0.5) == 0.0 and p_value(Estimate(np.ones(9)), 1.0) == 1.0


def test_several_are_held_to_more() -> None:
    data = logs(300)
    names = {"best": improved(1.5), "good": improved(0.5), "worse": improved(-1.0)}
    found = {name: evaluate(FixedPolicy(table), data, gamma=0.95, name=name) for name, table in names.items()}
    alone, together = {name: verdict(one) for name, one in found.items()}, verdicts(found)
    assert together["best"].verdict == "ship" and together["worse"].verdict == "do_not_ship"
    assert min(1 - one.confidence for one in together.values()) == pytest.approx(0.05 / 3)
    for name, one in together.items():
        lower, upper = alone[name].lower, alone[name].upper
        assert one.lower is not None and lower is not None and one.upper is not None and upper is not None
        assert one.lower <= lower and one.upper >= upper
    assert verdicts({"best": found["best"]})["best"] == alone["best"]


# -- hidden confounding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1.0, 1.3, 2.0, 10.0])
def test_ranges_are_those_of_brute_force(strength: float) -> None:
    rng = np.random.default_rng(int(10 * strength))
    value, weight, chance = rng.normal(size=8), rng.exponential(size=8) * (np.arange(8) != 3), rng.random(8)
    ends = [(chance + (1 - chance) / strength), (chance + (1 - chance) * strength)]
    every = [np.choose(corner, ends) * weight for corner in itertools.product([0, 1], repeat=8)]
    means = [float((m * value).sum() / m.sum()) for m in every]
    assert confounded_range(value, weight, chance, strength) == pytest.approx((min(means), max(means)))


def test_shifts_grow_with_the_strength() -> None:
    logged = planted.log(WORLD, LOGGER, 1, 200, 0)
    of = planted.trajectories(logged, WORLD, LOGGER, POLICY)
    one = Trajectories(of.reward[0], of.mask[0], of.gamma, *(x[0] for x in (of.log_ratio, of.q, of.v) if x is not None))
    hidden = Confounded(one, LOGGER[np.minimum(logged.state[0], 4), logged.action[0]])
    shifts = np.array([hidden.shift(strength) for strength in (1.0, 1.05, 1.2, 2.0, 5.0, 20.0)])
    assert shifts[0] == pytest.approx([0, 0], abs=1e-9)
    assert (np.diff(shifts[:, 0]) < 0).all() and (np.diff(shifts[:, 1]) > 0).all()
    against_itself = Confounded(one, hidden.propensity, one)
    assert against_itself.shift(2.0)[0] == pytest.approx(shifts[3, 0] - shifts[3, 1])
    at = hidden.flips(0.1, 0.3, 0.0)
    assert at is not None and 1 < at < 2
    assert hidden.shift(at)[0] <= -0.1 < hidden.shift(at * 0.99)[0]
    above = hidden.flips(-0.3, -0.1, 0.0)
    assert above is not None and hidden.shift(above)[1] >= 0.1 > hidden.shift(above * 0.99)[1]
    assert hidden.flips(0.1, 0.3, 0.2) == 1.0 and hidden.flips(1e6, 2e6, 0.0) is None
    assert hidden.flips(0.2, 0.3, 0.0) > at  # type: ignore[operator]
    for strength in (0.9, np.nan):
        with pytest.raises(DataError, match="strength"):
            hidden.shift(strength)


def test_a_planted_confounder_stays_within_its_gamma() -> None:
    """An unlogged coin drives action and reward: odds differ by 4 with it, by 2 from the observed ones."""
    rng = np.random.default_rng(0)
    n = 100_000
    coin = rng.random(n) < 0.5
    odds = np.where(coin, 2.0, 0.5)
    action = (rng.random(n) < odds / (1 + odds)).astype(int)
    reward = coin + 0.1 * rng.normal(size=n)  # the action is worth nothing
    chance = np.full((n, 1), 0.5)
    ratio = np.where(action == 1, np.log(2.0), -np.inf)[:, None]  # the policy always takes action 1
    of = Trajectories(reward[:, None], np.ones((n, 1), bool), 1.0, ratio)
    naive = float((reward * action).sum() / action.sum())
    assert naive > 0.65  # the truth is 0.5
    hidden = Confounded(of, chance)
    assert naive + hidden.shift(2.0)[0] < 0.505 < naive + hidden.shift(1.5)[0]


def test_verdicts_tell_the_gamma() -> None:
    said = verdict(evaluate(FixedPolicy(improved(1.5)), logs(600), gamma=0.95))
    assert said.verdict == "ship" and said.flips_at is not None and 1 < said.flips_at < 5
    lowers = [low for _, low, _ in said.ranges]
    assert lowers[0] == pytest.approx(said.lower) and lowers == sorted(lowers, reverse=True)
    assert all((low > 0) == (strength < said.flips_at) for strength, low, _ in said.ranges)


def test_rounded_propensities_are_those_of_the_policy() -> None:
    """Of a policy that acted, whose propensities were logged with four or six digits."""
    rng = np.random.default_rng(0)
    table = np.array([1 / 3, 2 / 3])
    for digits in (4, 6):
        episodes = []
        for action in rng.choice(2, 400, p=table):
            extra = {"log_propensity": np.log(table.round(digits)[[action]])}
            x, reward = np.zeros((1, 1), np.float32), np.array([[1.0 - action]], np.float32)
            episodes.append(Episode(x, np.array([[action]]), reward, True, extra=extra))
        data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)
        gain = evaluate(FixedPolicy(table[None]), data).gain
        assert gain is not None and gain.gain.value == 0 and not gain.gain.terms.any()


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ((0.01, 0.99), "the action of step 0 has the probability 0.333333 by log_propensity and"),
        ((1.0, 1.0), "propensities is .1. 1.. at step 0; it must be probabilities of all actions, with the sum 1"),
        ((1.5, -0.5), "propensities is . 1.5 -0.5. at step 0; it must be probabilities"),
    ],
)
def test_propensities_that_contradict_each_other_are_refused(vector: Any, says: str) -> None:
    extra = {"log_propensity": np.log([1 / 3]), "propensities": np.array([vector])}
    x, chosen, reward = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
    episodes = [Episode(x, chosen, reward, True, extra=extra) for _ in range(3)]
    data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)
    with pytest.raises(DataError, match=says):
        evaluate(FixedPolicy(np.array([[0.5, 0.5]])), data)
