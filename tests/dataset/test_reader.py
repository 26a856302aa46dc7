"""Readers: samplers of one's own, and draws of several readers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from birl.algorithm.batches import to_batch
from birl.dataset import InfiniteBuffer, MDPDataset, ReplayBuffer
from birl.dataset.sampling import Rows, Sampler
from birl.dataset.views import SequenceView, TailView, TrajectoryView, TransitionView
from birl.preprocessing.units import Units
from birl.seeding import seed


def data(**options: Any) -> MDPDataset:
    numbers = np.arange(50.0)
    return MDPDataset(numbers[:, None], numbers[:, None] / 50, numbers, numbers % 10 == 9, **options)


class Newest(Sampler):
    """Draws the newest transitions, the newest with the greatest weight."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[float]]] = []

    def draw(self, storage: Any, count: int, generators: Any, reject: int, complete: Any = None) -> Rows:
        rows = np.flatnonzero((storage.flags & reject) == 0)[-count:]
        return Rows(rows, np.arange(1.0, count + 1, dtype=np.float32)[:, None], np.zeros(count))

    def update(self, rows: Rows, priority: Any) -> None:
        self.seen.append((rows.index.tolist(), list(priority)))


def test_a_sampler_gives_weights_and_takes_priorities() -> None:
    sampler = Newest()
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=data().episodes, sampler=sampler)
    batch = buffer.reader.draw(TransitionView(), 3)
    assert batch.rewards[:, 0].tolist() == [47, 48, 49]
    assert to_batch(batch, Units(torch.device("cpu"), False, None, None, None), 0.9).weight.tolist() == [1, 2, 3]
    buffer.reader.update(batch, [0.5, 0.25, 0.75])
    assert sampler.seen == [(batch.rows.index.tolist(), [0.5, 0.25, 0.75])]
    assert buffer.sample_transition_batch(2).weights[:, 0].tolist() == [1, 2]
    sequences = buffer.reader.draw(SequenceView(2), 3)
    weight = to_batch(sequences, Units(torch.device("cpu"), False, None, None, None), 0.9).weight
    assert weight.tolist() == [[1, 2, 3], [1, 2, 0]]  # behind the last step there is padding


def test_uniform_draws_take_no_priorities() -> None:
    reader = data().reader
    batch = reader.draw(TransitionView(), 3)
    reader.update(batch, [1.0, 2.0, 3.0])
    assert batch.rows is None


@pytest.mark.parametrize("view", [TransitionView(), SequenceView(3, 1), TrajectoryView(4), TailView()], ids=str)
def test_several_readers_draw_what_each_draws_alone(view: Any) -> None:
    def readers() -> list[Any]:
        seed(4)
        reader = data().reader
        return [reader.renewed() for _ in range(3)]

    first, *beside = readers()
    together = first.draw(view, 5, beside)
    alone = [reader.draw(view, 5) for reader in readers()]
    joined = alone[0].concatenate(*alone[1:])
    np.testing.assert_array_equal(together.observations, joined.observations)
    np.testing.assert_array_equal(together.actions, joined.actions)
    assert first.get_state() != beside[0].get_state()


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
        drawn: Any = dataset.reader.draw(view, 6)
        dataset.set_state(state)
        shown: Any = method(6, **options)
        dataset.set_state(state)
        assert type(drawn) is type(shown) is type(dataset.draw(view, 6))
        np.testing.assert_array_equal(drawn.observations, shown.observations)
