"""Some lanes of a storage, in place and copied, are those lanes after any writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from run.fakes import Drift

from birl.dataset import FIFOBuffer, InfiniteBuffer, ReplayBuffer
from birl.dataset import lane_views as module
from birl.dataset.lane_views import LaneCopy, LaneView
from birl.dataset.reader import Reader, Source
from birl.dataset.sampling import Generators
from birl.dataset.transitions import BasicTransitionPicker
from birl.dataset.views import TransitionView
from birl.errors import UnsupportedError


def buffer(limit: int | None, **options: Any) -> ReplayBuffer:
    retention = InfiniteBuffer() if limit is None else FIFOBuffer(limit)
    return ReplayBuffer(retention, env=Drift(), lanes=5, **options)


def write(replay: ReplayBuffer, random: np.random.Generator, number: int) -> None:
    """A step of some lanes, now and then the end of an episode that was not foreseen."""
    lanes = np.flatnonzero(random.random(5) < 0.6)
    if len(lanes):
        seen = random.normal(size=(2, len(lanes), 2)).astype(np.float32)
        ends = random.random((2, len(lanes))) < 0.15
        given: Any = {"extra": {"number": np.full((len(lanes), 1), number, np.float32)}} if number > 30 else {}
        action = random.integers(3, size=len(lanes))
        replay.append_batch(
            seen[0], action, np.full(len(lanes), number), ends[0], ends[1] & ~ends[0], seen[1], lanes=lanes, **given
        )
    if random.random() < 0.1:
        replay.clip_episode(False, lane=int(random.integers(5)))


def rows_of(storage: Any, lanes: range) -> list[Any]:
    """Each row in use, by a plain loop."""
    found = []
    for lane in lanes:
        for position in range(int(storage.start[lane]), int(storage.end[lane])):
            row = lane * storage.capacity + position % storage.capacity
            known = {name: np.array(column[row]).tolist() for name, column in storage.columns.items()}
            found.append((lane - lanes[0], position, int(storage.flags[row]), known))
    return found


@pytest.mark.parametrize("limit", [None, 40, 600])
def test_they_follow_all_writes(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)  # so that there are several parts
    replay, random = buffer(limit), np.random.default_rng(1)
    source, own = replay.storage, range(2, 4)
    lanes = LaneView(source, 2, 2)
    copied = LaneCopy(source.info, 2, source.limit)
    saved = None
    for number in range(150):
        write(replay, random, number)
        if number == 60:
            saved = replay.get_state()
        if number == 100:
            replay.set_state(saved)
        if random.random() < 0.3:
            for changes in lanes.changes(whole=number == 80):
                copied.apply(changes)
            expected = rows_of(source, own)
            transitions = sum(not flags & (4 | 8) for _, _, flags, _ in expected)
            assert rows_of(lanes, range(2)) == rows_of(copied, range(2)) == expected
            assert lanes.transition_count == copied.transition_count == transitions
            episodes = sum(bool(flags & 4) for _, _, flags, _ in expected)
            assert lanes.episode_count == copied.episode_count == episodes
            if transitions:
                drawn = [
                    Reader([Source(each, BasicTransitionPicker(), generators=Generators(np.random.default_rng(2)))])
                    for each in (lanes, copied)
                ]
                first, second = (each.sample(TransitionView(), 8) for each in drawn)
                known = {tuple(each["observation"]) for _, _, flags, each in expected if not flags & (4 | 8)}
                assert np.array_equal(first.observations, second.observations)
                assert np.array_equal(first.next_observations, second.next_observations)
                assert {tuple(row) for row in first.observations.tolist()} <= known
    assert source.transition_count > 30


def test_what_lies_on_a_device_is_not_divided() -> None:
    with pytest.raises(UnsupportedError, match="the lanes of a buffer on a device cannot be divided"):
        LaneView(buffer(None, storage=torch.device("cpu")).storage, 0, 2)
