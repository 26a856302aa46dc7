"""Readers: samplers of one's own, and draws of several readers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.algorithm.batches import to_batch
from birl.dataset import FIFOBuffer, InfiniteBuffer, MDPDataset, MixedReplayBuffer, ReplayBuffer
from birl.dataset.arrays import TorchPlace
from birl.dataset.minibatch import Rows
from birl.dataset.sampling import Sampler
from birl.dataset.views import SequenceView, TailView, TrajectoryView, TransitionView
from birl.files import load_archive, save_archive
from birl.preprocessing.units import Units
from birl.seeding import seed
from birl.spaces import Continuous


def data(**options: Any) -> MDPDataset:
    numbers = np.arange(50.0)
    return MDPDataset(numbers[:, None], numbers[:, None] / 50, numbers, numbers % 10 == 9, **options)


class Newest(Sampler):
    """Draws the newest transitions, the newest with the greatest weight."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[float]]] = []

    def draw(self, storage: Any, count: int, generators: Any, reject: int, complete: Any) -> Rows:
        rows = np.flatnonzero((storage.flags & reject) == 0)[-count:]
        return Rows(rows, np.arange(1.0, count + 1, dtype=np.float32)[:, None])

    def update(self, rows: Rows, priority: Any) -> None:
        self.seen.append((rows.index.tolist(), list(priority)))


def test_a_sampler_gives_weights_and_takes_priorities() -> None:
    sampler = Newest()
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=data().episodes, sampler=sampler)
    batch = buffer.reader.sample(TransitionView(), 3)
    assert batch.rewards[:, 0].tolist() == [47, 48, 49]
    units = Units(torch.device("cpu"), Continuous(1), None, None, None)
    assert to_batch(batch, units, 0.9).weight.tolist() == [1, 2, 3]
    batch.update_priorities([0.5, 0.25, 0.75])
    ((_, rows),) = batch.rows
    assert sampler.seen == [(rows.index.tolist(), [0.5, 0.25, 0.75])]
    assert buffer.sample_transition_batch(2).weights[:, 0].tolist() == [1, 2]
    sequences = buffer.reader.sample(SequenceView(2), 3)
    weight = to_batch(sequences, units, 0.9).weight
    assert weight.tolist() == [[1, 2, 3], [1, 2, 0]]  # behind the last step there is padding


class Proportional(Sampler):
    """Draws in proportion to priorities; steps that have none get the greatest one."""

    def __init__(self) -> None:
        self.priority: dict[int, float] = {}

    def draw(self, storage: Any, count: int, generators: Any, reject: int, complete: Any) -> Rows:
        rows, greatest = np.flatnonzero((storage.flags & reject) == 0), max(self.priority.values(), default=1.0)
        priority = np.array([self.priority.get(number, greatest) for number in storage.numbers(rows).tolist()])
        chance = priority / priority.sum()
        drawn = generators.host.choice(len(rows), count, p=chance)
        weight = chance.min() / chance[drawn, None]
        return Rows(storage.place.indices(rows[drawn]), weight.astype(np.float32))

    def update(self, rows: Rows, priority: Any) -> None:
        self.priority.update(zip(rows.generation.tolist(), priority.tolist(), strict=True))

    def get_state(self) -> dict[str, Any]:
        return {"numbers": np.array([*self.priority]), "priorities": np.array([*self.priority.values()])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.priority = dict(zip(state["numbers"].tolist(), state["priorities"].tolist(), strict=True))


def prioritised(limit: int = 100, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(FIFOBuffer(limit), episodes=data().episodes, sampler=Proportional(), **options)


def favour(reader: Any, reward: float, times: float = 1e6) -> Any:
    """Give the step with this reward a priority so great that it alone is drawn from now on."""
    batch = reader.sample(TransitionView(), 1000)
    batch.update_priorities(np.where(np.asarray(batch.rewards)[:, 0] == reward, times, 1e-6))
    return batch


def rewards(reader: Any, count: int = 20) -> set[float]:
    return set(np.asarray(reader.sample(TransitionView(), count).rewards)[:, 0].tolist())


@pytest.mark.parametrize("device", [False, True])
def test_draws_follow_priorities(device: bool) -> None:
    reader = prioritised().reader
    if device:
        reader = reader.mirrored(TorchPlace(torch.device("cpu")))
    drawn = np.asarray(favour(reader, 7.0).rewards)
    assert len(np.unique(drawn)) > 40
    assert rewards(reader) == {7.0}
    favour(reader, 7.0, 1e-6)
    assert len(rewards(reader, 200)) > 20
    weights = np.asarray(reader.sample(TransitionView(), 200).weights)
    assert weights.shape == (200, 1) and weights.max() <= 1.0
    assert reader.device_generator is None  # the device cannot draw several batches before priorities come back


def test_late_priorities_of_overwritten_steps_are_dropped() -> None:
    buffer = prioritised(limit=50)
    (source,) = buffer.reader.sources
    late = buffer.reader.sample(TransitionView(), 400)
    for number in range(8):
        buffer.append(np.zeros(1), [0.0], 100.0 + number)
    buffer.clip_episode(True)
    late.update_priorities(np.full(400, 2.0))
    held = late.rewards[:, 0] >= 8
    assert not held.all()
    ((_, rows),) = late.rows
    assert set(source.sampler.priority) == set(rows.generation[held].tolist())


def test_priorities_survive_a_checkpoint(tmp_path: Path) -> None:
    reader = prioritised().reader
    favour(reader, 7.0)
    save_archive(tmp_path / "state", "test", {}, reader.get_state())
    again = prioritised().reader
    again.set_state(load_archive(tmp_path / "state", "test")[1])
    assert rewards(again) == {7.0}
    assert again.get_state()["generator"] != reader.get_state()["generator"]
    assert "sampler" not in data().reader.get_state()


@pytest.mark.parametrize("uniform", [False, True])
def test_mixtures_hand_priorities_to_each_part(uniform: bool) -> None:
    first, second = data() if uniform else prioritised(), prioritised()
    reader = MixedReplayBuffer(first, second, 0.5).reader
    batch = reader.sample(TransitionView(), 2000)
    value = np.where(batch.rewards[:, 0] == 7.0, 1e6, 1e-6)
    value[1000:] = np.where(batch.rewards[1000:, 0] == 9.0, 1e6, 1e-6)
    batch.update_priorities(torch.as_tensor(value))
    assert rewards(second.reader) == {9.0}
    assert (rewards(first.reader) == {7.0}) is not uniform
    reader.set_state(reader.get_state())
    assert rewards(second.reader) == {9.0}


def test_each_seed_has_priorities_of_its_own() -> None:
    buffer = prioritised()
    first, second = (buffer.reader.renewed() for _ in range(2))
    batch = first.sample(TransitionView(), 1000, [second])
    value = np.where(batch.rewards[:, 0] == 7.0, 1e6, 1e-6)
    value[1000:] = np.where(batch.rewards[1000:, 0] == 9.0, 1e6, 1e-6)
    batch.update_priorities(value)
    assert [rewards(reader) for reader in (first, second)] == [{7.0}, {9.0}]
    assert len(rewards(buffer.reader)) > 10


def test_uniform_draws_take_no_priorities() -> None:
    reader = data().reader
    batch = reader.sample(TransitionView(), 3)
    batch.update_priorities([1.0, 2.0, 3.0])
    assert batch.rows is None


@pytest.mark.parametrize("view", [TransitionView(), SequenceView(3, 1), TrajectoryView(4), TailView()], ids=str)
def test_several_readers_draw_what_each_draws_alone(view: Any) -> None:
    def readers() -> list[Any]:
        seed(4)
        reader = data().reader
        return [reader.renewed() for _ in range(3)]

    first, *others = readers()
    together = first.sample(view, 5, others)
    alone = [reader.sample(view, 5) for reader in readers()]
    joined = alone[0].concatenate(*alone[1:])
    np.testing.assert_array_equal(together.observations, joined.observations)
    np.testing.assert_array_equal(together.actions, joined.actions)
    assert first.get_state() != others[0].get_state()


def test_a_dataset_draws_what_its_reader_draws() -> None:
    dataset = data()
    state = dataset.get_state(contents=False)
    for view, method, options in (
        (TransitionView(), dataset.sample_transition_batch, {}),
        (SequenceView(4, 2), dataset.sample_sequence_batch, {"length": 4, "burn_in": 2}),
        (TrajectoryView(4), dataset.sample_trajectory_batch, {"length": 4}),
        (TailView(), dataset.sample_tail_batch, {}),
    ):
        dataset.set_state(state)
        drawn: Any = dataset.reader.sample(view, 6)
        dataset.set_state(state)
        public: Any = method(6, **options)
        dataset.set_state(state)
        assert type(drawn) is type(public) is type(dataset.sample(view, 6))
        np.testing.assert_array_equal(drawn.observations, public.observations)
