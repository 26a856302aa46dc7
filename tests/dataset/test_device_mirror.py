"""Buffers as a training device sees them. The CPU stands for the device: all paths but the calls of CUDA itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl.dataset.device_mirror
from birl.algorithm.batches import to_batch
from birl.dataset import (
    BasicTransitionPicker,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    MDPDataset,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    ReplayBufferBase,
    Signature,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.dataset import (
    arrays as places,
)
from birl.dataset.arrays import MemoryPlace, PinnedPlace, TorchPlace
from birl.dataset.device_mirror import Mirror
from birl.dataset.views import SequenceView, TrajectoryView, TransitionView
from birl.preprocessing.units import Units
from birl.seeding import seed
from birl.spaces import Continuous
from birl.types import tree_leaves

CPU = torch.device("cpu")
SIGNATURES: dict[str, Any] = {
    "observation_signature": Signature([np.uint8], [(1, 2)]),
    "action_signature": Signature([np.float32], [(1,)]),
}


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the CPU pass for a device with so many bytes of free memory."""

    def set_room(size: int) -> None:
        monkeypatch.setattr(places, "free_device_memory", lambda device: size)

    set_room(1 << 30)
    return set_room


def dataset(count: int = 200, **options: Any) -> MDPDataset:
    numbers = np.arange(count)
    return MDPDataset(
        np.stack([numbers, numbers], 1).astype(np.uint8)[:, None],
        numbers[:, None].astype(np.float32) / 100,
        numbers.astype(np.float32),
        numbers % 10 == 9,
        numbers % 15 == 14,
        **options,
    )


def arrays(batch: Any) -> list[Any]:
    values = [leaf for value in vars(batch).values() for leaf in tree_leaves(value)]
    return [np.asarray(value) for value in values]


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for first, second in zip(arrays(one), arrays(other), strict=True):
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)


def rows_of(batch: Any) -> list[int]:
    return [int(reward) for reward in batch.rewards[:, 0]]


def step(buffer: ReplayBufferBase, number: int, **options: Any) -> None:
    buffer.append(np.full((1, 2), number % 256, np.uint8), number / 100, float(number), **options)


def test_data_that_fit_are_copied_and_the_buffer_is_left(room: Any) -> None:
    data = dataset()
    columns, free = (
        dict(data.storage.columns),
        int(data.storage.full_nbytes / birl.dataset.device_mirror.DEVICE_MEMORY_SHARE),
    )
    room(free - 2)
    assert data.placed_for(CPU) is data.reader
    room(free + 2)
    placed = data.placed_for(CPU)
    batch = placed.sample(TransitionView(), 50)
    assert isinstance(batch.observations, torch.Tensor)
    assert batch.observations.dtype == torch.uint8  # in their own dtype
    assert batch.rewards.device == CPU
    numbers = batch.rewards[:, 0].numpy()
    np.testing.assert_array_equal(batch.observations[:, 0, 0].numpy(), numbers)
    np.testing.assert_allclose(batch.actions[:, 0].numpy(), numbers / 100, rtol=1e-6)
    assert all(data.storage.columns[name] is column for name, column in columns.items())
    assert isinstance(data.sample_transition_batch(2).observations, np.ndarray)
    assert placed.transition_count == data.transition_count
    for one, other in zip(placed.all_transitions(), data.all_transitions(), strict=True):
        same(one, other)


@pytest.mark.parametrize("place", [TorchPlace(CPU), MemoryPlace()], ids=["device", "host"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transition_picker": MultiStepTransitionPicker(3, 0.9)},
        {"transition_picker": FrameStackTransitionPicker(3), "trajectory_slicer": FrameStackTrajectorySlicer(3)},
    ],
    ids=["basic", "n-step", "stack"],
)
def test_batches_are_those_of_the_buffer(options: Any, place: Any) -> None:
    data = dataset(**options)
    placed = data.reader.mirrored(place, growing=True)  # draws on the host are the buffer's own
    state = data.get_state(contents=False)
    expected = [data.sample(TransitionView(), 30), data.sample_trajectory_batch(20, 6)]
    placed.set_state(state)
    got = [placed.sample(TransitionView(), 30), placed.sample(TrajectoryView(6), 20)]
    for one, other in zip(got, expected, strict=True):
        same(one, other)
    if not isinstance(options.get("transition_picker"), MultiStepTransitionPicker):
        sequences = data.sample_sequence_batch(9, 5, 2)
        placed.set_state({**state, "generator": state["generator"]})
        data.set_state(state)
        first = data.sample_sequence_batch(9, 5, 2)
        data.set_state(state)
        same(placed.sample(SequenceView(5, 2), 9), first)
        assert sequences.burn_in == 2


def test_draws_on_a_device_are_uniform_and_repeatable(room: Any) -> None:
    data = dataset(100)
    placed = data.placed_for(CPU)
    counts = np.bincount(rows_of(placed.sample(TransitionView(), 100_000)), minlength=100)
    drawable = np.flatnonzero(counts)
    assert len(drawable) == data.transition_count
    expected = 100_000 / len(drawable)
    assert ((counts[drawable] - expected) ** 2 / expected).sum() < 2 * len(drawable)
    seed(3)
    first = rows_of(dataset().placed_for(CPU).sample(TransitionView(), 50))
    seed(3)
    data = dataset()
    placed = data.placed_for(CPU)
    assert rows_of(placed.sample(TransitionView(), 50)) == first
    assert rows_of(placed.sample(TransitionView(), 50)) != first
    assert rows_of(data.placed_for(CPU).sample(TransitionView(), 50)) != first  # a second fit draws other rows


def test_the_devices_generator_is_part_of_the_state(room: Any) -> None:
    seed(1)
    placed = dataset().placed_for(CPU)
    fresh = placed.get_state(contents=False)
    first = [rows_of(placed.sample(TransitionView(), 20)) for _ in range(2)]
    state = placed.get_state(contents=False)
    expected = rows_of(placed.sample(TransitionView(), 20))
    seed(2)
    other = dataset().placed_for(CPU)
    other.sample(TransitionView(), 20)
    other.set_state(state)
    assert rows_of(other.sample(TransitionView(), 20)) == expected
    other.set_state(fresh)  # from before the first draw
    assert [rows_of(other.sample(TransitionView(), 20)) for _ in range(2)] == first
    state["torch_generator"]["device"] = "cuda"  # unusable here: the generator is seeded again
    other.set_state(state)
    assert rows_of(other.sample(TransitionView(), 20)) != expected


def test_the_state_of_a_buffer_made_on_a_device_continues_its_draws() -> None:
    data = dataset(storage="cpu")
    data.sample_transition_batch(3)
    state = data.get_state(contents=False)
    expected = rows_of(data.sample_transition_batch(20))
    data.set_state(state)
    assert rows_of(data.sample_transition_batch(20)) == expected


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_ring_that_is_written_is_followed(room: Any, lanes: int) -> None:
    seed(5)
    buffer = create_fifo_replay_buffer(40, **SIGNATURES, lanes=lanes)
    placed = buffer.placed_for(CPU, growing=True)
    assert placed is not buffer.reader
    for number in range(400):
        lane = number % lanes
        step(buffer, number, lane=lane)
        if number % 17 == 16:
            buffer.clip_episode(bool(number % 2), final_observation=np.zeros((1, 2), np.uint8), lane=lane)
        if number % 23 == 22:
            buffer.clip_episode(True, lane=lane)
        if number % 7 == 6 and buffer.transition_count:
            state = buffer.get_state(contents=False)
            expected = buffer.sample(TransitionView(), 16)
            buffer.set_state(state)
            same(placed.sample(TransitionView(), 16), expected)
    assert buffer.transition_count == placed.transition_count <= buffer.step_count <= 40 + lanes
    near = placed.sources[0].storage
    near.refresh()
    for name, column in buffer.storage.columns.items():
        np.testing.assert_array_equal(near.columns[name].numpy(), column)
    np.testing.assert_array_equal(near.device_flags.numpy(), buffer.storage.flags)


def test_restored_contents_and_new_columns_are_followed(room: Any) -> None:
    buffer = create_fifo_replay_buffer(50, **SIGNATURES)
    placed = buffer.placed_for(CPU, growing=True)
    for number in range(20):
        step(buffer, number)
    state = buffer.get_state()
    for number in range(20, 100):
        step(buffer, number, extra={"state.actor": np.zeros(2, np.float32)})
    assert min(rows_of(placed.sample(TransitionView(), 100))) > 20
    assert set(placed.sample(SequenceView(3), 4).start_states) == {"actor"}
    buffer.set_state(state)
    assert max(rows_of(placed.sample(TransitionView(), 100))) < 20


def test_unread_writes_do_not_accumulate(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birl.dataset.storage, "MAX_WRITES", 10)
    buffer = create_fifo_replay_buffer(20, **SIGNATURES)
    placed = buffer.placed_for(CPU, growing=True)
    for number in range(300):
        step(buffer, number)
    mirror = placed.sources[0].storage
    assert isinstance(mirror, Mirror)
    assert len(mirror.written) <= 11
    assert min(rows_of(placed.sample(TransitionView(), 100))) >= 279
    del placed, mirror
    assert not buffer.storage.mirrors  # a deleted copy is not notified any more


class OneByOne(BasicTransitionPicker):
    def __call__(self, episode: Any, index: int) -> Any:
        return super().__call__(episode, index)


def test_what_stays_where_it_is(room: Any, tmp_path: Path) -> None:
    for data in (
        dataset(storage=str(tmp_path / "folder")),
        dataset(storage="cpu"),
        dataset(transition_picker=OneByOne()),
    ):
        assert data.placed_for(CPU) is data.reader
    growing = create_infinite_replay_buffer(**SIGNATURES)
    assert growing.placed_for(CPU, growing=True) is growing.reader  # its size is not known beforehand
    room(0)
    data = dataset()
    assert data.placed_for(torch.device("meta")) is data.reader


def test_room_is_asked_for_a_ring_at_its_limit(room: Any) -> None:
    buffer = create_fifo_replay_buffer(100_000, **SIGNATURES)
    assert buffer.nbytes < 10_000
    assert 1_100_000 < buffer.storage.full_nbytes < 1_300_000  # 2 + 4 + 4 + 1 bytes, and a little more
    room(2_000_000)
    assert buffer.placed_for(CPU, growing=True) is buffer.reader


def test_mixtures(room: Any) -> None:
    online = create_fifo_replay_buffer(50, **SIGNATURES)
    for number in range(20):
        step(online, number + 1000)
    mixed = MixedReplayBuffer(online, dataset(), 0.25)
    placed = mixed.placed_for(CPU, growing=True)
    assert placed is not mixed.reader
    batch = placed.sample(TransitionView(), 40)
    assert isinstance(batch.observations, torch.Tensor)
    assert sum(number >= 1000 for number in rows_of(batch)) == 30
    state = placed.get_state()
    expected = rows_of(placed.sample(TransitionView(), 40))
    placed.set_state(state)
    assert rows_of(placed.sample(TransitionView(), 40)) == expected
    step(mixed, 2000)
    assert online.step_count == 21
    one_by_one = MixedReplayBuffer(online, dataset(transition_picker=OneByOne()), 0.25)
    assert one_by_one.placed_for(CPU) is one_by_one.reader


def pinned_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA there is no pinned memory: ordinary memory takes its place."""
    monkeypatch.setattr(PinnedPlace, "empty", lambda self, shape, dtype: np.empty(shape, dtype))


@pytest.mark.parametrize("storage", ["memory", "folder"])
def test_data_that_do_not_fit_are_gathered_into_pinned_memory(
    room: Any, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room(0)
    pinned_by_numpy(monkeypatch)
    data = dataset(storage=storage if storage == "memory" else str(tmp_path / "rows"))
    placed = data.placed_for(torch.device("cuda"))
    assert isinstance(placed.sources[0].storage.place, PinnedPlace)
    state = data.get_state(contents=False)

    def draw(buffer: Any) -> list[Any]:
        return [
            buffer.sample(TransitionView(), 30),
            buffer.sample(SequenceView(4), 5),
            buffer.sample(TrajectoryView(4), 5),
        ]

    expected = draw(data)
    data.set_state(state)
    for one, other in zip(draw(placed), expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("reader", ["memory", "cpu"])
@pytest.mark.parametrize("picker", [BasicTransitionPicker(), MultiStepTransitionPicker(3, 0.9)])
def test_batches_for_updates(reader: str, picker: Any) -> None:
    """Shared ones change nothing: discount and weight are those computed from the minibatch's numbers."""
    minibatch = dataset(storage=reader, transition_picker=picker).sample_transition_batch(64)
    batch = to_batch(minibatch, Units(CPU, Continuous(1), None, None, None), 0.99)
    steps, terminal = (torch.tensor(np.asarray(x))[:, 0] for x in (minibatch.intervals, minibatch.terminals))
    assert torch.equal(batch.discount, 0.99**steps * (1 - terminal))
    assert torch.equal(batch.weight, torch.ones(64))
    assert torch.equal(batch.reward, torch.as_tensor(minibatch.rewards)[:, 0])
    assert batch.action.shape == (64, 1)
    if isinstance(minibatch.weights, np.ndarray):
        with pytest.raises(ValueError, match="read-only"):
            minibatch.weights[0] = 2.0
    weighted = replace(minibatch, weights=minibatch.weights * 2)
    weight = to_batch(weighted, Units(CPU, Continuous(1), None, None, None), 0.99).weight
    assert torch.equal(weight, torch.full((64,), 2.0))


def test_bounds_of_actions_follow_writes(room: Any) -> None:
    buffer = create_fifo_replay_buffer(20, **SIGNATURES)
    assert buffer.action_bounds() == (np.inf, -np.inf)
    for number in range(30):
        step(buffer, number)
    low, high = buffer.action_bounds()
    np.testing.assert_allclose((low[0], high[0]), (0.09, 0.29), rtol=1e-6)
    assert buffer.action_bounds()[0] is low  # not computed again
    step(buffer, 99)
    np.testing.assert_allclose(buffer.action_bounds()[1], [0.99], rtol=1e-6)
    mixed = MixedReplayBuffer(buffer, dataset(), 0.5)
    np.testing.assert_allclose(mixed.action_bounds(), [[0.0], [1.99]], rtol=1e-6)
    np.testing.assert_allclose(ReplayBufferBase.action_bounds(dataset()), [[0.0], [1.99]], rtol=1e-6)


@pytest.mark.parametrize("storage", ["memory", "cpu"])
def test_ones_are_shown_but_not_kept(storage: str) -> None:
    """Readers hand on ``None`` where all are 1; users see ones."""
    data = dataset(storage=storage)
    drawn, public = data.sample(TransitionView(), 5), data.sample_transition_batch(5)
    assert drawn.intervals is None and drawn.weights is None
    for ones in (public.intervals, public.weights):
        assert np.asarray(ones).tolist() == [[1.0]] * 5
        assert np.asarray(ones).dtype == np.float32
