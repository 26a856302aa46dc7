"""A policy that does what the logging policy never did: no log tells what that earns, so none says ``ship``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, create_infinite_replay_buffer
from birl.ope import Evaluation, decide, evaluate, verdict
from birl.types import ActionSpace
from tests.ope.planted import Fixed


def patients(
    seed: int,
    treated: float,
    *,
    n: int = 1000,
    steps: int = 1,
    share: float = 0.05,
    vectors: bool = False,
    actions: int = 2,
) -> Any:
    """Logs of treatments, worth 0.5 each. A share of the first observations is allergic, treated with ``treated``.

    An allergic one who is treated loses 20. Of several actions those after the second are as good as the second.
    """
    rng = np.random.default_rng(seed)
    x = rng.random((n, steps, 2)).astype(np.float32)
    allergic = x[..., 0] < share
    allergic[:, 1:] = False
    x[:, 1:, 0] = np.maximum(x[:, 1:, 0], share)
    p1 = np.where(allergic, treated, 0.5)
    chance = np.stack([1 - p1, *[p1 / (actions - 1)] * (actions - 1)], -1)
    a = (rng.random((n, steps, 1)) > chance.cumsum(-1)[..., :-1]).sum(-1)
    r = 0.5 * (a > 0) - 20.0 * (allergic & (a > 0)) + rng.normal(size=a.shape)
    b = np.take_along_axis(chance, a[..., None], -1)[..., 0]
    episodes = []
    for i in range(n):
        extra = {"log_propensity": np.log(b[i])} | ({"propensities": chance[i]} if vectors else {})
        episodes.append(Episode(x[i], a[i][:, None], r[i][:, None].astype(np.float32), True, extra=extra))
    return create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=actions)


def by_the_interval(found: Evaluation) -> str:
    """The verdict of the interval alone."""
    assert found.gain is not None and found.gain.gain_interval is not None
    return decide(float(found.gain.gain_interval.lower), float(found.gain.gain_interval.upper), 0.0)[0]


@pytest.mark.parametrize("vectors", [False, True], ids=["propensities of the logged actions", "vectors"])
@pytest.mark.parametrize(("share", "steps"), [(0.05, 1), (0.005, 1), (0.05, 3)])
def test_no_ship_where_the_logger_never_does_it(vectors: bool, share: float, steps: int) -> None:
    alone = []
    for seed in range(4):
        logs = patients(seed, 0.0, share=share, steps=steps, vectors=vectors)
        found = evaluate(Fixed(0.1, 0.9), logs, gamma=1.0)
        said = verdict(found)
        mean = np.mean([each.observations[0, 0] < share for each in logs.episodes])
        assert found.facts["no_support"] == pytest.approx(0.9 * mean, abs=1e-6)  # whatever the number of steps
        alone.append(by_the_interval(found))
        assert said.verdict == "more_data" and said.times is None
        message = (
            f"{0.9 * mean:.3g} of the policy's episodes contain an action that the logging policy never takes there"
        )
        assert any(message in text for text in said.reasons)
        assert said.remedies == (
            "let the logging policy try it there, with a minimum propensity, or exclude it from the policy",
            "or declare the lowest and the highest reward that are possible (reward_range=, --reward-range)",
        )
        assert any("the logs never take action 1 where x[0] < 0.0" in text for text in said.reasons)
        assert not any("positivity" in text for text in said.assumptions)
    assert alone.count("ship") > 1  # the interval is wrong


@pytest.mark.parametrize("vectors", [False, True])
def test_verdicts_are_those_of_the_interval_where_all_is_tried(vectors: bool) -> None:
    for seed in range(3):
        for share, treated, policy in (
            (0.05, 0.5, Fixed(0.1, 0.9)),
            (0.0, 0.5, Fixed(0.1, 0.9)),
            (0.05, 0.0, Fixed(1.0, 0.0)),
        ):
            found = evaluate(policy, patients(seed, treated, n=400, share=share, vectors=vectors), gamma=1.0)
            said = verdict(found)
            assert found.facts["no_support"] == 0 and found.facts["unsupported"] == 0
            tails = {one.fact for one in found.findings} & {"left_tail", "right_tail"}
            assert said.verdict == ("more_data" if tails else by_the_interval(found))
    ships = [verdict(evaluate(Fixed(0.1, 0.9), patients(seed, 0.5, share=0.0), gamma=1.0)).verdict for seed in range(2)]
    assert ships == ["ship"] * 2


def test_stakes_decide_and_not_the_share_without_support() -> None:
    """18 % of the probability is unsupported. A small range of rewards decides all the same, a large one does not."""
    for vectors in (False, True):
        logs = patients(0, 0.0, share=0.2, vectors=vectors)
        unknown = evaluate(Fixed(0.1, 0.9), logs, gamma=1.0)
        assert unknown.facts["no_support"] == pytest.approx(0.18, abs=0.04)
        assert verdict(unknown).verdict == "more_data"
        rewards = np.concatenate([each.rewards for each in logs.episodes])
        low, high = float(rewards.min()), float(rewards.max())
        wide = verdict(evaluate(Fixed(0.1, 0.9), logs, gamma=1.0, reward_range=(low - 20, high)))
        assert wide.verdict == "more_data" and wide.times is None and wide.lower is not None and wide.lower < -3
        assert any("whatever the actions earn that the logs do not support" in text for text in wide.reasons)
        modest = verdict(evaluate(Fixed(0.1, 0.9), logs, gamma=1.0, reward_range=(low, high)), min_gain=-1.5)
        assert modest.verdict == "ship"


def test_a_propensity_that_is_next_to_nothing_is_none() -> None:
    assert verdict(evaluate(Fixed(0.1, 0.9), patients(0, 1e-4), gamma=1.0)).verdict == "more_data"
    rarely = evaluate(Fixed(1 - 1e-4, 1e-4), patients(0, 1e-5), gamma=1.0)  # as the policy, nearly
    assert rarely.facts["no_support"] == 0


def test_do_not_ship_stands() -> None:
    worse = evaluate(Fixed(0.9, 0.1), patients(0, 0.0), gamma=1.0)
    assert (worse.facts["no_support"] or 0) > 0.001 and verdict(worse).verdict == "do_not_ship"


def test_the_logger_with_rounded_propensities_is_supported() -> None:
    """Its third action was rounded away."""
    logger = Fixed(0.5, 0.49995, 0.00005)
    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            rng.random((40, 2)),
            rng.integers(2, size=(40, 1)),
            rng.normal(size=(40, 1)),
            True,
            extra={"log_propensity": np.log(np.full(40, 0.5)), "propensities": np.tile([0.5, 0.5, 0.0], (40, 1))},
        )
        for _ in range(60)
    ]
    logs = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=3)
    assert evaluate(logger, logs, gamma=1.0).facts["no_support"] == 0


def test_another_policy_that_leaves_the_logs_is_no_yardstick() -> None:
    """It treats patients that the logger does not, so that nothing is known of what it earns."""
    found = evaluate(Fixed(1.0, 0.0), patients(0, 0.0), gamma=1.0, against=Fixed(0.6, 0.4), against_name="old")
    assert found.facts["no_support"] == 0 and verdict(found, min_gain=-1.0).verdict == "more_data"
    assert any("old: " in text and "never takes there" in text for text in verdict(found, min_gain=-1.0).reasons)


def test_positivity_is_assumed_where_propensities_cannot_show_it() -> None:
    for vectors in (False, True):
        found = evaluate(Fixed(0.2, 0.4, 0.4), patients(0, 0.5, actions=3, vectors=vectors), gamma=1.0)
        assert found.support_known == vectors and found.facts["no_support"] == 0
        assert any(text.startswith("positivity: ") for text in verdict(found).assumptions) != vectors
    never = evaluate(Fixed(0.2, 0.4, 0.4), patients(0, 0.0, actions=3), gamma=1.0)  # known where one action has all
    assert verdict(never).verdict == "more_data"
