"""The storage against an independent model, under random histories."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from data_reference import ACTION, OBSERVATION, REWARD, Model, all_rows, check, observe
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.dataset import Episode, FIFOBuffer, InfiniteBuffer, MDPDataset, ReplayBuffer
from birl.errors import EmptyDataError

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("batch"), st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=3, max_size=3)),
        st.tuples(
            st.just("several"),
            st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1, 2, 3])), min_size=1, max_size=15),
        ),
        st.tuples(st.just("clip"), st.integers(0, 2), st.booleans(), st.booleans()),
        st.tuples(st.just("episode"), st.integers(0, 2), st.integers(1, 12), st.booleans(), st.booleans()),
    ),
    max_size=60,
)


def make(lanes: int, limit: int | None, storage: Any = "memory") -> ReplayBuffer:
    buffer = InfiniteBuffer() if limit is None else FIFOBuffer(limit)
    signatures = {"observation_signature": OBSERVATION, "action_signature": ACTION, "reward_signature": REWARD}
    return ReplayBuffer(buffer, **signatures, lanes=lanes, storage=storage)


class AgentCore:
    """Plays operations on a buffer and on the model."""

    def __init__(self, lanes: int, limit: int | None, storage: Any = "memory") -> None:
        self.buffer, self.model, self.lanes = make(lanes, limit, storage), Model(lanes, limit), lanes
        self.number, self.next = 0, [0.0] * lanes

    def new(self) -> float:
        self.number += 1
        return float(self.number)

    def play(self, operation: tuple[Any, ...]) -> None:
        getattr(self, operation[0])(*operation[1:])
        self.model.evict()

    def upcoming(self, lane: int) -> float:
        """The observation a lane continues with: the known next one of a running episode."""
        running = self.model.running[lane]
        return self.new() if running is None or running["final"] is None else running["final"]

    def append(self, lane: int) -> None:
        lane %= self.lanes
        number = self.upcoming(lane)
        self.buffer.append(observe(number), [number / 100], number * 10, lane=lane)
        self.model.step(lane, number)

    def batch(self, kinds: list[int]) -> None:  # 0 goes on, 1 terminated, 2 truncated, 3 left out
        kinds = kinds[: self.lanes]
        now = [self.upcoming(lane) for lane in range(self.lanes)]
        after = [self.new() for _ in range(self.lanes)]
        self.give(now, after, np.array(kinds))
        for lane, kind in enumerate(kinds):
            if kind != 3:
                self.model.step(lane, now[lane], after[lane])
        self.model.evict()
        for lane, kind in enumerate(kinds):
            if kind in (1, 2):
                self.model.close(lane, kind == 1, None)

    def give(self, now: list[float], after: list[float], kinds: Any, lanes: Any = None) -> None:
        self.buffer.append_batch(
            np.stack([observe(n) for n in now]),
            np.array(now)[:, None] / 100,
            np.array(now) * 10,
            kinds == 1,
            kinds == 2,
            np.stack([observe(n) for n in after]),
            mask=kinds != 3,
            lanes=lanes,
        )

    def several(self, rows: list[tuple[int, int]]) -> None:
        """Steps ``(lane, kind)`` one after another, given at once."""
        lanes, kinds = (np.array(each) for each in zip(*rows, strict=True))
        lanes, now, after = lanes % self.lanes, list[float](), list[float]()
        for lane, kind in zip(lanes.tolist(), kinds.tolist(), strict=True):
            now.append(self.upcoming(lane))
            after.append(self.new())
            if kind != 3:
                self.model.step(lane, now[-1], after[-1])
                self.model.evict()
            if kind in (1, 2):
                self.model.close(lane, kind == 1, None)
        self.give(now, after, kinds, lanes)

    def clip(self, lane: int, terminated: bool, known: bool) -> None:
        lane %= self.lanes
        running = self.model.running[lane]
        final = self.new() if known and (running is None or running["final"] is None) else None
        self.buffer.clip_episode(terminated, final_observation=None if final is None else observe(final), lane=lane)
        self.model.close(lane, terminated, final)

    def episode(self, lane: int, length: int, terminated: bool, known: bool) -> None:
        lane %= self.lanes
        if self.model.running[lane] is not None:
            self.clip(lane, False, False)
            self.model.evict()
        numbers = np.array([self.new() for _ in range(length)], np.float32)
        final = self.new() if known else None
        last = None if final is None else observe(final)
        observations = np.stack([numbers, -numbers], 1)
        episode = Episode(observations, numbers / 100, numbers * 10, terminated, final_observation=last)
        self.buffer.append_episode(episode, lane=lane)
        for number in numbers:
            self.model.step(lane, float(number))
            if self.model.limit is not None and self.lanes == 1:
                self.model.evict()
        self.model.close(lane, terminated, final)


@settings(max_examples=120, deadline=None)
@given(operations=OPERATIONS, lanes=st.sampled_from([1, 1, 3]), limit=st.sampled_from([None, 1, 2, 7, 20]))
def test_any_history_equals_the_model(operations: list[tuple[Any, ...]], lanes: int, limit: int | None) -> None:
    player = AgentCore(lanes, limit if limit is None else max(limit, lanes))
    for operation in operations:
        player.play(operation)
    check(player.buffer, player.model)


@settings(max_examples=25, deadline=None)
@given(operations=OPERATIONS, limit=st.sampled_from([None, 5, 20]))
def test_any_history_on_a_torch_device_equals_the_model(operations: list[tuple[Any, ...]], limit: int | None) -> None:
    player = AgentCore(3, limit, "cpu")
    for operation in operations:
        player.play(operation)
    check(player.buffer, player.model)


@settings(max_examples=60, deadline=None)
@given(
    before=OPERATIONS,
    after=OPERATIONS,
    lanes=st.sampled_from([1, 3]),
    limit=st.sampled_from([None, 1, 7]),
    storage=st.sampled_from(["memory", "cpu"]),
)
def test_state_brings_back_contents_and_draws(
    before: list[Any], after: list[Any], lanes: int, limit: int | None, storage: str
) -> None:
    limit = limit if limit is None else max(limit, lanes)
    one, two = AgentCore(lanes, limit, storage), AgentCore(lanes, limit, storage)
    two.buffer.append_episode(Episode(np.ones((5, 2), np.float32), np.ones((5, 1), np.float32), np.ones(5), True))
    for operation in before:
        one.play(operation)
    if one.buffer.transition_count:
        one.buffer.sample_transition_batch(3)
    two.buffer.set_state(one.buffer.get_state())
    two.model, two.number = copy.deepcopy(one.model), one.number
    for operation in after:
        one.play(operation)
        two.play(operation)
    check(two.buffer, two.model)
    if one.buffer.transition_count:
        for _ in range(3):
            a, b = one.buffer.sample_transition_batch(8), two.buffer.sample_transition_batch(8)
            np.testing.assert_array_equal(np.asarray(a.observations), np.asarray(b.observations))


def dataset(lengths: list[int], **options: Any) -> MDPDataset:
    """Episodes of these lengths; observation n is [n, -n], counted over all."""
    count = sum(lengths)
    ends = np.zeros(count)
    ends[np.cumsum(lengths) - 1] = 1
    numbers = np.arange(1, count + 1, dtype=np.float32)
    return MDPDataset(np.stack([numbers, -numbers], 1), numbers[:, None] / 100, numbers * 10, ends, **options)


@pytest.mark.parametrize("storage", ["memory", "cpu"])
def test_draws_are_uniform_over_transitions(storage: str) -> None:
    data = dataset([1, 3, 1, 5], storage=storage)
    batch = data.sample_transition_batch(20_000)
    _, counts = np.unique(np.asarray(batch.observations)[:, 0], return_counts=True)
    assert len(counts) == 10
    assert np.abs(counts - 2000).max() < 6 * np.sqrt(2000)


def test_draws_are_uniform_where_few_rows_are_transitions() -> None:
    steps = np.ones((60, 2), np.float32)
    data = MDPDataset(steps, np.full((60, 1), 0.5), np.arange(60), np.zeros(60), np.arange(60) >= 3)
    assert data.transition_count == 3
    rewards, counts = np.unique(data.sample_transition_batch(3000).rewards, return_counts=True)
    assert rewards.tolist() == [0.0, 1.0, 2.0]
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)


def test_draws_are_uniform_over_unequal_lanes() -> None:
    buffer = make(3, None)
    for step in range(9):
        buffer.append(observe(step), [0.0], step, lane=0 if step < 6 else 2)
    buffer.clip_episode(True, lane=0)
    buffer.clip_episode(False, lane=2)
    rewards, counts = np.unique(buffer.sample_transition_batch(8000).rewards, return_counts=True)
    assert rewards.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)


def test_nothing_to_draw_says_so() -> None:
    buffer = make(1, None)
    with pytest.raises(EmptyDataError, match="no transition"):
        buffer.sample_transition_batch(4)
    buffer.append(observe(1), [0.0], 1.0)
    with pytest.raises(EmptyDataError, match="1 steps"):
        buffer.sample_transition()
    assert buffer.sample_trajectory_batch(2, 3).masks.sum() == 2


def test_memory_is_the_data_and_one_row_an_episode() -> None:
    data = dataset([1000] * 20, timeouts=np.zeros(20_000))
    raw = 20_000 * (8 + 4 + 4 + 1)  # observation, action, reward, one byte of flags
    assert data.nbytes == raw * 1001 / 1000


def test_a_fifo_buffer_keeps_its_size() -> None:
    buffer = make(1, 1000)
    for number in range(20_000):
        buffer.append(observe(number), [0.0], number)
        if number % 200 == 199:
            buffer.clip_episode(False, final_observation=observe(-1))
    assert buffer.step_count == 1000
    assert buffer.storage.capacity <= 1000 * 65 / 64 + 10
    assert len(all_rows(buffer)) == buffer.transition_count == 1000
    assert float(buffer.sample_transition_batch(500).rewards.min()) >= 19_000


def test_episodes_of_a_ring_do_not_change_later() -> None:
    buffer = make(1, 10)
    buffer.append_episode(Episode(np.ones((5, 2), np.float32), np.ones((5, 1)), np.ones(5), True))
    episode = buffer.episodes[0]
    buffer.append_episode(Episode(np.zeros((9, 2), np.float32), np.zeros((9, 1)), np.zeros(9), True))
    assert episode.observations.min() == 1
    assert episode.rewards.sum() == 5
