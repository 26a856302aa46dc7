"""Collectors of whole episodes, and running scalers that are updated with the steps of collectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.algorithm.learner import Learner
from birl.algos import REINFORCEConfig
from birl.models import NormalFactory
from birl.preprocessing import RunningObservationScaler, RunningRewardScaler
from birl.run.workers.collector_worker import CollectorWorker
from run.workers.test_collector_group import GRU, SMALL, alike, here, ppo, rolled
from run.workers.transports import use_unruly

__all__ = ["here"]


def reinforce(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    return REINFORCEConfig(**{"n_episodes": 2, "baseline": True, **encoders, **fields}).create()


def learned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    update = Learner.update
    monkeypatch.setattr(Learner, "update", lambda self, minibatch: found.append(minibatch) or update(self, minibatch))
    return found


@pytest.mark.parametrize("fragment", [1, 3, 50])
@pytest.mark.parametrize("fields", [{}, {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}])
def test_whole_episodes_of_one_collector_are_those_of_the_plain_loop(fragment: int, fields: Any) -> None:
    expected = rolled(None, reinforce, fields=fields)
    assert expected.grad_step > 3
    assert alike(rolled(birl.Cluster(1, 1, fragment), reinforce, fields=fields), expected)


@pytest.mark.parametrize("fragment", [2, 7])
def test_rollouts_are_of_whole_episodes(fragment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the steps of each lane are 1, 2, … up to an end, without gaps and repetitions."""
    found, cluster = learned(monkeypatch), birl.Cluster(3, 2, fragment)
    expected = rolled(cluster, reinforce, n_steps=150)
    for rollout in found:
        for lane in range(6):
            own = rollout.valid[:, lane]
            steps, ends = rollout.next_observation[own, lane, 1], (rollout.terminated | rollout.truncated)[own, lane]
            first = rollout.is_first[own, lane]
            if not own.any():  # its episode goes on
                continue
            assert np.array_equal(first[1:], ends[:-1]) and first[:1].all() and ends[-1:].all()
            for episode in np.split(steps, np.flatnonzero(ends)[:-1] + 1):
                assert np.array_equal(episode, 1 + np.arange(len(episode)))
    assert len(found) > 3 and sum(int(each.valid.sum()) for each in found) <= 150
    if fragment == 7:  # as long as episodes: all wait for the last one, and none is of two policies
        assert [int((each.is_first & each.valid).sum()) for each in found[:3]] == [6, 6, 6]
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    assert alike(rolled(cluster, reinforce, n_steps=150), expected)


def test_runs_of_whole_episodes_are_of_exact_length(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    rolled(birl.Cluster(3, 1, 4), reinforce, n_steps=61, callback=lambda _, __, step: counted.append(step))
    assert counted == list(range(1, 62))


def scaled(**fields: Any) -> Any:
    return ppo(observation_scaler=RunningObservationScaler(), reward_scaler=RunningRewardScaler(), **fields)


def scale(algorithm: Any) -> Any:
    return algorithm.observation_scaler.serialize()


@pytest.mark.parametrize("fields", [{}, {"actor_encoder_factory": GRU, "value_encoder_factory": GRU}])
def test_one_collector_moves_scalers_as_the_plain_loop_does(fields: Any) -> None:
    expected, own = rolled(None, scaled, fields=fields), rolled(birl.Cluster(1, 1, 1), scaled, fields=fields)
    assert alike(own, expected) and scale(own) == scale(expected)


def test_scalers_move_alike_whatever_happens_to_collectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, cluster = learned(monkeypatch), birl.Cluster(3, 2, 5)
    expected = rolled(cluster, scaled, n_steps=120)
    rows = [each.observation.reshape(-1, 2) for each in found]
    seen = np.concatenate(rows).astype(np.float64)
    mean = np.array(expected.observation_scaler.serialize()["params"]["statistics"][0]["mean"])
    assert np.allclose(mean, seen.mean(0)) and expected.observation_scaler.count == len(seen) == 120
    # Within a fragment all steps have one scale: that of the steps before.
    first, second = found[0].inputs[:5], found[0].inputs[5:]
    assert np.allclose(first, np.clip(found[0].observation[:5], -10, 10))
    before = found[0].observation[:5].reshape(-1, 2).astype(np.float64)
    scaled_ = (found[0].observation[5:] - before.mean(0)) / np.sqrt(before.var(0) + 1e-8)
    assert np.allclose(second, np.clip(scaled_, -10, 10), atol=1e-4)
    going_on = ~found[0].is_first[5]
    assert np.array_equal(found[0].next_inputs[4][going_on], second[0][going_on])  # as the policy saw it next
    use_unruly(monkeypatch, CollectorWorker, 1, loss=0.3)
    again = rolled(cluster, scaled, n_steps=120)
    assert alike(again, expected) and scale(again) == scale(expected)
    rolled(cluster, scaled, n_steps=60, checkpoint=tmp_path)
    again = rolled(cluster, scaled, n_steps=120, checkpoint=tmp_path)
    assert alike(again, expected) and scale(again) == scale(expected)


def test_fragments_are_short_where_scalers_move() -> None:
    assert [birl.Cluster(2).calls(n, moving=True) for n in (2048, 50, 10, 97)] == [32, 50, 10, 1]
    assert birl.Cluster(2).calls(2048) == 2048


def test_normal_actions_of_whole_episodes() -> None:
    fields = {"distribution_factory": NormalFactory(), "n_episodes": 3}
    assert rolled(birl.Cluster(2, 1, 5), reinforce, fields=fields).grad_step > 1
