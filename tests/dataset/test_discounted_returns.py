"""Discounted returns to go: equal to sums made one by one, in every kind of storage, before and after writes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from birl.dataset import MDPDataset, MixedReplayBuffer, SparseRewardTransitionPicker, create_fifo_replay_buffer
from birl.dataset.arrays import TorchPlace
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episodes import episode_table
from birl.dataset.transitions import Columns
from birl.dataset.views import SequenceView, TransitionView
from birl.errors import ConfigError

GAMMA = 0.9


def data(lengths: tuple[int, ...] = (1, 7, 2, 20, 3), seed: int = 0) -> MDPDataset:
    """Episodes, every second one truncated."""
    generator, count = np.random.default_rng(seed), sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros((2, count), np.float32)
    terminated[ends[::2]], truncated[ends[1::2]] = 1, 1
    observation = np.arange(count, dtype=np.float32)[:, None]
    rewards = generator.normal(size=count).astype(np.float32)
    return MDPDataset(observation, generator.uniform(-1, 1, (count, 2)), rewards, terminated, truncated)


def expected(storage: Any, gamma: float = GAMMA, scale: float = 1.0) -> dict[int, float]:
    """Row to the sum of ``gamma**k`` times the rewards up to the end of its episode."""
    result = {}
    for lane, start, length in zip(*episode_table(storage), strict=True):
        rows = storage.rows(lane, start + np.arange(length))
        rewards = storage.take("reward", rows)[:, 0].astype(float) * scale
        for i, row in enumerate(rows):
            result[int(row)] = sum(gamma**k * reward for k, reward in enumerate(rewards[i:]))
    return result


def check(returns: DiscountedReturns, storage: Any, **options: float) -> None:
    wanted = expected(storage, **options)
    rows = np.array(list(wanted))
    got = returns.columns(storage, rows)["discounted_return"]
    assert got.shape == (len(rows), 1) and got.dtype == np.float32
    np.testing.assert_allclose(got[:, 0], list(wanted.values()), atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_returns_of_whole_episodes(gamma: float) -> None:
    check(DiscountedReturns(gamma), data().storage, gamma=gamma)


def test_rewards_are_scaled_before_they_are_summed() -> None:
    check(DiscountedReturns(GAMMA, lambda rewards: 3 * rewards), data().storage, scale=3.0)


@pytest.mark.parametrize("limit", [10, 1000])
def test_returns_after_every_write(limit: int) -> None:
    generator, returns = np.random.default_rng(1), DiscountedReturns(GAMMA)
    buffer = create_fifo_replay_buffer(limit, env=None, episodes=data().episodes)
    for step in range(40):
        buffer.append(np.array([float(step)], np.float32), np.zeros(2, np.float32), float(generator.normal()))
        if step % 7 == 6:
            buffer.clip_episode(step % 2 == 0)
        check(returns, buffer.storage)


def test_only_what_was_not_over_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from birl.dataset import discounted_returns as module

    right, seen = module._discounted, []

    def watched(reward: Any, final: Any, gamma: float) -> Any:
        seen.append(len(reward))
        return right(reward, final, gamma)

    monkeypatch.setattr(module, "_discounted", watched)
    returns, buffer = DiscountedReturns(GAMMA), create_fifo_replay_buffer(1000, episodes=data().episodes)
    for step in range(3):
        buffer.append(np.array([float(step)], np.float32), np.zeros(2, np.float32), 1.0)
        check(returns, buffer.storage)
        check(returns, buffer.storage)  # nothing was written
    assert seen == [33 + 5 + 2, 3, 4]


def test_restored_rows_are_computed_again() -> None:
    returns, buffer = DiscountedReturns(GAMMA), create_fifo_replay_buffer(100, episodes=data().episodes)
    other = create_fifo_replay_buffer(100, episodes=data(seed=1).episodes)
    check(returns, buffer.storage)
    buffer.set_state(other.get_state())
    check(returns, buffer.storage)


def test_minibatches_have_them_if_asked() -> None:
    dataset, returns = data(), DiscountedReturns(GAMMA)
    of_row, observation = expected(dataset.storage), dataset.storage.columns["observation"]
    of_step = {float(observation[row, 0]): value for row, value in of_row.items()}
    assert "discounted_return" not in dataset.sample_transition_batch(8).extra
    mixed = MixedReplayBuffer(dataset, dataset, 0.5)
    placed = dataset.reader.mirrored(TorchPlace(torch.device("cpu")))
    for source in (dataset, mixed, placed):
        batch = source.sample(TransitionView(Columns(returns=returns)), 32)
        wanted = [of_step[float(x)] for x in batch.observations[:, 0]]
        np.testing.assert_allclose(np.asarray(batch.extra["discounted_return"])[:, 0], wanted, atol=1e-5)
    sequences = dataset.sample_sequence_batch(16, 4, returns=returns)
    real = sequences.masks > 0
    wanted = [of_step[float(x)] for x in sequences.observations[real][:, 0]]
    np.testing.assert_allclose(sequences.extra["discounted_return"][real][:, 0], wanted, atol=1e-5)


def test_a_copy_keeps_nothing() -> None:
    returns = DiscountedReturns(GAMMA)
    check(returns, data().storage)
    assert copy.deepcopy(returns).gamma == GAMMA


@pytest.mark.parametrize("where", ["arrays", "mixed", "device"])
def test_steps_that_no_success_follows_have_the_return_of_failure(where: str) -> None:
    rewards = np.array([-1, -1, 0, -1, -1, -1, -1, 0, -1], np.float32)  # a goal in step 2, none, a goal in step 7
    ends = np.isin(np.arange(9), (2, 5, 8)).astype(np.float32)
    picker = SparseRewardTransitionPicker(failure_return=-20.0, step_reward=-1.0)
    steps: Any = MDPDataset(np.arange(9.0)[:, None], np.zeros((9, 1)), rewards, 0 * ends, ends, picker)
    if where == "mixed":
        steps = MixedReplayBuffer(steps, steps, 0.5)
    elif where == "device":
        steps = steps.reader.mirrored(TorchPlace(torch.device("cpu")))
    returns = DiscountedReturns(0.5, lambda reward: 2 * reward)
    expected = [-3, -2, 0, -40, -40, -40, -2.5, -1, -40]
    seen = set()
    for _ in range(20):
        batch = steps.sample(TransitionView(Columns(returns=returns)), 8)
        for observation, value in zip(batch.observations, batch.extra["discounted_return"], strict=True):
            step = int(observation[0])
            seen.add(step)
            assert float(value[0]) == expected[step]
    assert len(seen) >= 6  # last steps of cut episodes cannot be drawn
    sequences = steps.sample(SequenceView(2, columns=Columns(returns=returns)), 8)
    real = np.asarray(sequences.masks) > 0
    values, positions = (
        np.asarray(sequences.extra["discounted_return"])[..., 0],
        np.asarray(sequences.observations)[..., 0],
    )
    assert [float(v) for v in values[real]] == [expected[int(p)] for p in positions[real]]


@pytest.mark.parametrize("options", [{"failure_return": None}, {"failure_return": -1.0, "step_reward": np.nan}])
def test_returns_of_failure_are_numbers(options: Any) -> None:
    with pytest.raises(ConfigError, match="is (None; it must be a|nan; it must be a finite) float$"):
        SparseRewardTransitionPicker(**options)
