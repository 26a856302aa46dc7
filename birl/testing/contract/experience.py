"""Episodes stay apart in all batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from birl.testing.contract.subject import EPISODE, LANES, Subject


def episodes_stay_apart(subject: Subject) -> None:
    """No batch joins steps of two episodes, and a time limit does not end the bootstrap."""
    subject = replace(subject, observation_shape=(3,)).with_config(observation_scaler=None, reward_scaler=None)
    algorithm = subject.build()
    generator = np.random.default_rng(subject.seed)
    gamma = subject.config.gamma
    if subject.experience.on_policy:
        _rollout_episodes_stay_apart(subject, algorithm, generator)
    items: list[Any]
    if subject.experience.on_policy:
        items = [subject.rollout(algorithm, generator, marked=True)]
    else:
        dataset = subject.dataset(marked=True)
        items = [algorithm.sample_minibatch(dataset) for _ in range(5)]
    for batch in [batch for item in items for batch in subject.batches(algorithm, item)]:
        real = batch.weight > 0
        episode, step = batch.observation[..., 0], batch.observation[..., 1]
        if batch.next_observation is not None:
            following = batch.next_observation
            assert bool((following[..., 0] == episode)[real].all()), "a transition leads from one episode into another"
            distance = following[..., 1] - step
            terminated = (following[..., 1] == EPISODE) & (episode // _group(subject) % 2 == 0)
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
            assert not bool(crossing.any()), "a sequence goes from one episode into the next without a reset"


def _group(subject: Subject) -> int:
    return LANES if subject.experience.on_policy else 1


def _rollout_episodes_stay_apart(subject: Subject, algorithm: Any, generator: np.random.Generator) -> None:
    """What comes after the end of an episode must not reach the steps before it."""
    rollout = subject.rollout(algorithm, generator)
    later = np.arange(len(rollout.reward))[:, None] >= 2 * EPISODE  # the second episode ends by truncation
    other = replace(
        rollout,
        reward=np.where(later, rollout.reward + 10, rollout.reward).astype(np.float32),
        observation=np.where(later[..., None], rollout.observation + 1, rollout.observation).astype(np.float32),
        next_observation=np.where(later[..., None], rollout.next_observation + 1, rollout.next_observation).astype(
            np.float32
        ),
    )
    extras = []
    for item in (rollout, other):
        torch.manual_seed(0)
        batches = subject.batches(algorithm, item)
        early = {}
        for batch in batches[: len(batches) // subject.config.n_epochs if subject.has("n_epochs") else None]:
            flat = batch.observation.flatten(0, -2)
            for name, value in batch.extra.items():
                for key, number in zip(flat, value.flatten(), strict=True):
                    early[name, tuple(key.tolist())] = float(number)
        extras.append(early)
    keys = [tuple(float(v) for v in row) for row in rollout.observation[: 2 * EPISODE].reshape(-1, 3)]
    for name in {name for name, _ in extras[0]}:
        for key in keys:
            first, second = extras[0].get((name, key)), extras[1].get((name, key))
            assert first is not None and second is not None, "a step of a rollout is not learned from"
            assert abs(first - second) <= 1e-5, f"{name!r} of a step depends on the next episode ({first} and {second})"
