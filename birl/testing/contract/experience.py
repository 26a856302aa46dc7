"""Checks that batches do not mix episodes, and that scalers apply to them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from birl.algorithm import Algorithm
from birl.preprocessing import MinMaxActionScaler, MultiplyRewardScaler, StandardObservationScaler
from birl.testing.contract.subject import EPISODE, Subject


def episodes_stay_separate(subject: Subject) -> None:
    """No batch joins steps of two episodes, and a time limit does not end the bootstrap."""
    subject = replace(subject, observation_shape=(3,))
    subject = subject.with_config(observation_scaler=None, reward_scaler=None, n_epochs=1, normalize_advantage=False)
    algorithm = subject.build()
    gamma = subject.config.gamma
    if subject.experience.on_policy:
        _rollout_episodes_stay_separate(subject, algorithm)
    items = subject.inputs(algorithm, 5, marked=True)
    for batch in [batch for item in items for batch in subject.batches(algorithm, item)]:
        real = batch.weight > 0
        episode, step = batch.observation[..., 0], batch.observation[..., 1]
        if batch.next_observation is not None:
            following = batch.next_observation
            assert bool((following[..., 0] == episode)[real].all()), "a transition leads from one episode to another"
            distance = following[..., 1] - step
            terminated = (following[..., 1] == EPISODE) & (episode % 2 == 0)
            expected = torch.where(terminated, 0.0, torch.as_tensor(gamma, dtype=torch.float32) ** distance)
            assert torch.allclose(batch.discount[real], expected[real]), (
                "a truncated step is not bootstrapped, or a terminated one is"
            )
        if batch.weight.dim() == 2:  # sequences: time first; windows: batch first
            lead = 1 if subject.experience.contexts else 0
            episode, step, real = (x.movedim(lead, 0) for x in (episode, step, real))
            joined = real[1:] & real[:-1]
            if batch.is_first is not None:
                joined = joined & ~batch.is_first[1:]
            crossing = joined & ((episode[1:] != episode[:-1]) | (step[1:] != step[:-1] + 1))
            assert not bool(crossing.any()), "a sequence continues from one episode to the next without a reset"


def scalers_reach_the_batch(subject: Subject) -> None:
    """Losses receive observations, actions and rewards that the configuration's scalers have scaled."""
    subject = replace(subject, observation_shape=(3,))
    size = subject.actions.shape
    own: dict[str, Any] = {
        "observation_scaler": StandardObservationScaler([0.5, -1.0, 2.0], [2.0, 0.5, 3.0]),
        "reward_scaler": MultiplyRewardScaler(3.0),
        "action_scaler": MinMaxActionScaler(np.full(size, -2.0, np.float32), np.full(size, 3.0, np.float32)),
    }
    names = {"observation": "observation", "next_observation": "observation", "reward": "reward", "action": "action"}
    if subject.actions.discrete or subject.experience.on_policy:  # rollouts hold the policy's own actions
        del own["action_scaler"], names["action"]
    plain, scaled = (
        other.first_batches()[1][0] for other in (subject.with_config(**dict.fromkeys(own)), subject.with_config(**own))
    )
    real = plain.weight > 0
    for column, kind in names.items():
        before, after, scaler = getattr(plain, column), getattr(scaled, column), own[f"{kind}_scaler"]
        if before is None or not hasattr(subject.config, f"{kind}_scaler"):
            continue
        assert torch.allclose(scaler.transform(before)[real], after[real], atol=1e-4), (
            f"{kind}_scaler does not reach batch.{column}: an Experience must convert data by learner.units, such as "
            f"learner.units.{kind}(minibatch.{column}s)"
        )


def _rollout_episodes_stay_separate(subject: Subject, algorithm: Algorithm[Any, Any]) -> None:
    """Values of a step do not depend on later episodes."""
    (rollout,) = subject.inputs(algorithm, 1)
    later = slice(2 * EPISODE, None)  # the second episode ends by truncation
    other = copy.deepcopy(rollout)
    other.reward[later] += 10
    other.observation[later] += 1
    other.next_observation[later] += 1
    values: list[dict[tuple[Any, ...], float]] = []
    for item in (rollout, other):
        torch.manual_seed(0)
        values.append({})
        for batch in subject.batches(algorithm, item):
            for name, value in batch.extra.items():
                numbers = value.flatten(0, batch.reward.dim() - 1).reshape(batch.reward.numel(), -1).sum(-1)
                for row, number in zip(batch.observation.flatten(0, -2), numbers, strict=True):
                    values[-1][name, *row.tolist()] = float(number)
    first, second = values
    for name in {name for name, *_ in first}:
        for row in rollout.observation[: 2 * EPISODE].reshape(-1, 3).tolist():
            key = (name, *row)
            assert key in first and key in second, "a step of a rollout is not used"
            distance = abs(first[key] - second[key])
            assert distance <= 1e-5, f"{name!r} of a step depends on the next episode, by {distance:.1e}"
