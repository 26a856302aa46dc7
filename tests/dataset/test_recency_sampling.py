"""Emphasis on recent experience, against the formula of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import (
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    RecentSampler,
    ReplayBuffer,
    Signature,
)
from birl.dataset.views import TrajectoryView, TransitionView
from birl.errors import ConfigError, CorruptFileError, EmptyDataError
from birl.files import load_archive, save_archive
from birl.types import ActionSpace


def data(count: int, **options: Any) -> MDPDataset:
    numbers = np.arange(float(count))
    return MDPDataset(numbers[:, None], numbers[:, None] / count, numbers, numbers % 10 == 9, **options)


def ring(limit: int, sampler: Any, lanes: int = 1, **options: Any) -> ReplayBuffer:
    one = Signature([np.dtype(np.float32)], [(1,)])
    return ReplayBuffer(
        FIFOBuffer(limit) if limit else InfiniteBuffer(), observation_signature=one, action_signature=one, lanes=lanes,
        action_space=ActionSpace.CONTINUOUS, action_size=1, sampler=sampler, **options
    )  # fmt: skip


def marks(batch: Any) -> Any:
    return np.asarray(batch.rewards)[:, 0]


def test_windows_shrink_as_in_the_paper_and_start_again() -> None:
    buffer = data(1000, sampler=RecentSampler(eta=0.998, period=5, smallest=150))
    for k in (1, 2, 3, 4, 5, 1, 2):
        drawn = marks(buffer.reader.sample(TransitionView(), 4000))
        window = max(int(1000 * 0.998 ** (1000 * k / 5)), 150)
        assert drawn.min() >= 1000 - window - 1  # a row more or less where an episode ends
        assert abs(drawn.min() - (1000 - window)) <= 4  # all of it
        assert abs(drawn.mean() - (1000 - window / 2)) < window / 20  # alike


def test_draws_become_uniform() -> None:
    buffer = data(1000, sampler=RecentSampler(eta=0.99, period=1, smallest=10, anneal_steps=4))
    lowest = [marks(buffer.reader.sample(TransitionView(), 4000)).min() for _ in range(6)]
    expected = [1000 - max(int(1000 * (0.99 + 0.01 * step / 4) ** 1000), 10) for step in (0, 1, 2, 3, 4, 4)]
    assert np.abs(np.array(lowest) - expected).max() <= 3
    assert expected[-1] == 0 and expected[0] == 990


@pytest.mark.parametrize(("limit", "lanes"), [(0, 3), (60, 1), (60, 3)])
def test_the_newest_of_every_lane_are_drawn(limit: int, lanes: int) -> None:
    buffer = ring(limit, RecentSampler(eta=0.5, period=1, smallest=15), lanes)
    zero = np.zeros((lanes, 1), np.float32)
    for number in range(100):
        flag = np.full(lanes, number % 13 == 12)
        rewards = 1000.0 * np.arange(lanes) + number
        buffer.append_batch(zero, zero, rewards, flag, np.zeros(lanes, bool), zero)
        drawn = marks(buffer.reader.sample(TransitionView(), 50))
        assert ((drawn % 1000) > number - 15 // lanes - 2).all()
        assert (number < 20) or set(drawn // 1000) == set(range(lanes))


def test_lanes_that_hold_fewer_steps_give_as_many_fewer() -> None:
    buffer = ring(0, RecentSampler(eta=0.5, period=1, smallest=25), lanes=2)
    for lane, count in enumerate((80, 20)):
        for number in range(count):
            buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), 1000.0 * lane + number, lane=lane)
        buffer.clip_episode(True, lane=lane)
    drawn = marks(buffer.reader.sample(TransitionView(), 2000))
    lowest = [drawn[drawn // 1000 == lane].min() % 1000 for lane in range(2)]
    assert np.abs(np.array(lowest) - [60, 15]).max() <= 1
    assert abs((drawn < 1000).mean() - 0.8) < 0.05


def test_stacks_whose_frames_are_gone_are_not_drawn() -> None:
    buffer = ring(20, RecentSampler(eta=0.5, period=1, smallest=20), transition_picker=FrameStackTransitionPicker(4))
    for number in range(50):
        buffer.append(np.full(1, number, np.float32), np.zeros(1, np.float32), number)
        if number > 20:
            batch = buffer.reader.sample(TransitionView(), 30)
            np.testing.assert_array_equal(batch.observations, marks(batch)[:, None] + [[-3, -2, -1, 0]])
    short = ring(3, RecentSampler(), transition_picker=FrameStackTransitionPicker(9))
    for number in range(50):
        short.append(np.full(1, number, np.float32), np.zeros(1, np.float32), number)
    with pytest.raises(EmptyDataError, match="stacked frame was evicted"):
        short.reader.sample(TransitionView(), 2)
    with pytest.raises(EmptyDataError, match="no transition to sample"):
        ring(0, RecentSampler()).reader.sample(TransitionView(), 2)
    assert data(50, sampler=RecentSampler()).reader.sample(TrajectoryView(4), 3).rewards.shape == (3, 4, 1)


def test_a_resumed_buffer_draws_on(tmp_path: Path) -> None:
    buffer = data(500, sampler=RecentSampler(0.99, 7, 20, 50))
    for _ in range(10):
        buffer.reader.sample(TransitionView(), 5)
    save_archive(tmp_path / "state", "test", {}, buffer.get_state())
    expected = [marks(buffer.reader.sample(TransitionView(), 5)).tolist() for _ in range(20)]
    again = data(500, sampler=RecentSampler(0.99, 7, 20, 50))
    again.set_state(load_archive(tmp_path / "state", "test")[1])
    assert [marks(again.reader.sample(TransitionView(), 5)).tolist() for _ in range(20)] == expected
    with pytest.raises(CorruptFileError, match="draws"):
        RecentSampler().set_state({"draws": -1})


@pytest.mark.parametrize(
    "options", [{"eta": 0}, {"eta": 1.1}, {"period": 0}, {"smallest": 0}, {"anneal_steps": 0}, {"eta": None}], ids=str
)
def test_wrong_settings_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RecentSampler(**options)
