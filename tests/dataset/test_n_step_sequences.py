"""n-step returns within sequences: sums, ends, and the recurrent state from which the next observation is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import DQNConfig
from birl.dataset import HindsightSampler, MultiStepTransitionPicker, ReplayBuffer, create_fifo_replay_buffer
from birl.dataset.views import SequenceView
from birl.errors import UnsupportedError
from birl.models import GRUEncoderFactory

N, GAMMA, LENGTH, BURN_IN = 3, 0.9, 5, 2
EPISODES = ((7, True), (4, False), (9, True), (1, True), (6, False))  # steps, whether it terminates


def buffer() -> tuple[ReplayBuffer, list[tuple[Any, Any, bool]]]:
    """Two lanes with these episodes; observations are their own numbers."""
    picker = MultiStepTransitionPicker(N, GAMMA)
    made = create_fifo_replay_buffer(100, env=_Env(), lanes=2, transition_picker=picker)
    random, episodes, number = np.random.default_rng(0), [], 0.0
    for steps, terminated in EPISODES:
        observations = number + np.arange(steps + 1, dtype=np.float32)
        rewards, number = random.normal(size=steps).astype(np.float32), number + steps + 1
        episodes.append((observations, rewards, terminated))
        for lane in range(2):
            for t in range(steps):
                ended = np.array([t == steps - 1])
                made.append_batch(
                    *(observations[t : t + 1, None], np.zeros(1, np.int64), rewards[t : t + 1]),
                    *(ended & terminated, ended & (not terminated), observations[t + 1 : t + 2, None]),
                    lanes=np.array([lane]),
                )
    return made, episodes


class _Env:
    observation_space = birl.envs.make_env("CartPole-v1").observation_space.__class__(-1e3, 1e3, (1,), np.float32)
    action_space = birl.envs.make_env("CartPole-v1").action_space


def test_sums_are_those_of_the_episode_up_to_the_ends_of_the_sequence() -> None:
    made, episodes = buffer()
    batch = made.reader.sample(SequenceView(LENGTH, BURN_IN), 64)
    seen = set()
    assert (batch.intervals[batch.masks == 0] == 1).all() and (batch.masks == 0).any()
    for b in range(64):
        real = np.flatnonzero(batch.masks[:, b])
        last = real[-1] + 1  # steps after it are not known
        for t in real:
            number = float(batch.observations[t, b, 0])
            first, rewards, terminated = next(each for each in reversed(episodes) if number >= each[0][0])
            at = int(number - first[0])
            steps = min(N, last - t, len(rewards) - at)
            total = sum(GAMMA**k * float(rewards[at + k]) for k in range(steps))
            assert batch.rewards[t, b, 0] == pytest.approx(total, abs=1e-6)
            assert batch.intervals[t, b, 0] == steps
            assert batch.next_observations[t, b, 0] == first[at + steps]
            assert batch.terminals[t, b, 0] == (terminated and at + steps == len(rewards))
            seen.add((steps, bool(batch.terminals[t, b, 0])))
    assert seen == {(n, ended) for n in (1, 2, 3) for ended in (False, True)}


def test_next_observations_are_seen_from_the_state_after_the_steps_before() -> None:
    made, _ = buffer()
    encoder = GRUEncoderFactory(hidden_size=4, hidden_units=[3])
    config = DQNConfig(batch_size=8, gamma=GAMMA, encoder_factory=encoder, sequence_length=LENGTH, burn_in=BURN_IN)
    algorithm = config.create()
    algorithm.create_impl((1,), 2)
    drawn = made.reader.sample(SequenceView(LENGTH, BURN_IN), 8)
    batch = algorithm.learner.batch(drawn)
    assert batch.later is not None and batch.later.shape == (LENGTH, 8)
    assert set(batch.later.unique().tolist()) == {0, 1, 2}
    assert torch.allclose(
        batch.discount, GAMMA ** (batch.later + 1) * (1 - torch.from_numpy(drawn.terminals[BURN_IN:, :, 0]))
    )
    critic = algorithm.nets.critic
    found = critic(batch.next_inputs).mean()
    network = critic.encoder.members[0]
    with torch.no_grad():
        for b in range(8):
            states, state = [], batch.state["critic"][b : b + 1]
            for t in range(LENGTH):
                state = network._step(
                    network.embed(batch.observation[t, b : b + 1]), state * (~batch.is_first[t, b]).float()
                )
                states.append(state)
            for t in range(LENGTH):
                if batch.weight[t, b]:
                    after = states[t + int(batch.later[t, b])]
                    features = network._step(network.embed(batch.next_observation[t, b : b + 1]), after)
                    expected = critic.head(features[None]).mean()
                    assert torch.allclose(found[..., t, b, :].flatten(), expected.flatten(), atol=1e-6)


def test_goals_in_hindsight_are_of_single_steps() -> None:
    sampler = HindsightSampler(lambda achieved, desired, info: np.zeros(len(achieved)))
    with pytest.raises(UnsupportedError, match="sequences of single steps, not of 3"):
        made, _ = buffer()
        storage = made.storage
        sampler._rewards_checked = True
        rows = made.reader.sources[0].draw_rows(SequenceView(LENGTH), 4)
        sampler.read(SequenceView(LENGTH), storage, made.transition_picker, rows._replace(goal=np.full(4, -1)))
