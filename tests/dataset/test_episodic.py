"""Whole episodes: what is kept, against a list of episodes, in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import Episode, EpisodicFIFOBuffer, FIFOBuffer, InfiniteBuffer, ReplayBuffer, Signature
from birl.types import ActionSpace


def made(limit: int, lanes: int = 1, storage: Any = "memory") -> ReplayBuffer:
    one = Signature([np.dtype(np.float32)], [(1,)])
    return ReplayBuffer(
        EpisodicFIFOBuffer(limit), observation_signature=one, action_signature=one, lanes=lanes, storage=storage,
        action_space=ActionSpace.CONTINUOUS, action_size=1,
    )  # fmt: skip


def lengths(buffer: ReplayBuffer) -> list[list[float]]:
    return [each.rewards[:, 0].tolist() for each in buffer.episodes]


@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize("limit", [5, 23, 100])
def test_the_newest_whole_episodes_are_kept(limit: int, place: str, tmp_path: Path) -> None:
    buffer = made(limit, storage=tmp_path / "data" if place == "folder" else "memory")
    random, model, number = np.random.default_rng(limit), [[]], 0.0
    for _ in range(600):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
        model[-1].append(number)
        number += 1
        if random.random() < 0.15:
            buffer.clip_episode(bool(random.random() < 0.5), final_observation=np.ones(1, np.float32))
            model.append([])
        running = bool(model[-1])
        while sum(map(len, model)) - running > limit:  # the newest step waits for its next observation
            if len(model) > 1:
                model.pop(0)
            else:
                model[0].pop(0)
        assert lengths(buffer) == [each for each in model if each]
    if place == "folder":
        buffer.close()
        again = ReplayBuffer.open(tmp_path / "data")
        assert type(again.buffer) is EpisodicFIFOBuffer and again.buffer.limit == limit
        assert lengths(again) == [each for each in model if each]
        again.clip_episode(True)
        again.append_episode(Episode(np.zeros((4, 1), np.float32), np.zeros((4, 1)), np.zeros(4), True))
        assert lengths(again)[-1] == [0.0] * 4 and again.step_count <= limit


def test_a_hundred_steps_are_a_hundred_steps() -> None:
    """500 steps in episodes of ten, room for 100: ten episodes, no more and no fewer."""
    buffer = made(100)
    for number in range(50):
        episode = Episode(np.full((10, 1), number, np.float32), np.zeros((10, 1)), np.full(10, number), True)
        buffer.append_episode(episode)
    assert buffer.step_count == buffer.transition_count == 100
    assert lengths(buffer) == [[float(number)] * 10 for number in range(40, 50)]
    long = Episode(np.zeros((130, 1), np.float32), np.zeros((130, 1)), np.arange(130.0), True)
    buffer.append_episode(long)
    assert lengths(buffer) == [list(np.arange(30.0, 130))]


def test_the_fullest_of_several_environments_loses_its_oldest_episode() -> None:
    buffer = made(40, 2)
    zero = np.zeros((2, 1), np.float32)
    for number in range(200):
        over = np.array([number % 4 == 3, number % 9 == 8])
        buffer.append_batch(zero, zero, np.array([number, 1000 + number]), over, np.zeros(2, bool), zero)
        episodes = lengths(buffer)
        assert buffer.step_count <= 40 and (number < 20 or buffer.step_count > 40 - 2 - 9)
        for each in episodes:
            begin, period = each[0] % 1000, 4 if each[0] < 1000 else 9
            assert begin % period == 0 and each == list(np.arange(each[0], each[0] + len(each)))
            assert len(each) == period or each[-1] % 1000 == number
    assert not np.any(buffer.storage.flags & 32)  # no episode has lost its beginning


def test_other_buffers_are_as_they_were() -> None:
    assert not FIFOBuffer(3).whole and not InfiniteBuffer().whole
