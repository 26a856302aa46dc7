"""Prioritised sampling, against a plain model of it: a dict of priorities by the reward that marks each step."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.dataset import (
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    MultiStepTransitionPicker,
    PrioritizedSampler,
    ReplayBuffer,
    Signature,
    Uniform,
)
from birl.dataset.priority_trees import SumTree
from birl.dataset.views import SequenceView, TailView, TransitionView
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    EmptyDataError,
    NonFiniteError,
    ShapeError,
    UnsupportedError,
    UnusedOptionWarning,
)
from birl.files import load_archive, save_archive
from birl.types import ActionSpace
from tests.tiers import slow_but


def data(count: int = 50, **options: Any) -> MDPDataset:
    numbers = np.arange(float(count))
    return MDPDataset(numbers[:, None], numbers[:, None] / count, numbers, numbers % 10 == 9, **options)


def ring(limit: int, sampler: Any, lanes: int = 1, picker: Any = None, **options: Any) -> ReplayBuffer:
    one = Signature([np.dtype(np.float32)], [(1,)])
    buffer = FIFOBuffer(limit) if limit else InfiniteBuffer()
    space: Any = {"action_space": ActionSpace.CONTINUOUS, "action_size": 1}
    return ReplayBuffer(
        buffer, picker, observation_signature=one, action_signature=one, reward_signature=one, lanes=lanes,
        sampler=sampler, **space, **options
    )  # fmt: skip


def marks(batch: Any) -> Any:
    return np.asarray(batch.rewards)[..., 0]


def source(buffer: Any) -> Any:
    return buffer.reader.sources[0]


# -- the tree ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 64, 5000, 20000])
def test_the_tree_finds_what_a_cumulative_sum_finds(size: int) -> None:
    random = np.random.default_rng(size)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(5):
        leaf = random.integers(size, size=random.integers(1, 2 * size))
        value = random.integers(4, size=len(leaf)).astype(float)  # whole numbers: sums are exact, and some are 0
        tree.set(leaf, value)
        plain[leaf] = value
        if not plain.any():
            continue
        mass = random.random(200) * plain.sum()
        assert tree.total == plain.sum()
        np.testing.assert_array_equal(tree.find(mass), plain.cumsum().searchsorted(mass, side="right"))


def test_rounding_never_leads_to_a_leaf_of_zero() -> None:
    random = np.random.default_rng(0)
    tree = SumTree(10_000)
    tree.set(np.arange(0, 10_000, 3), random.random(3334) * 10.0 ** random.integers(-12, 3, 3334))
    mass = np.concatenate([random.random(50_000) * tree.total, [0.0, np.nextafter(tree.total, 0), tree.total]])
    assert (tree.values(tree.find(mass)) > 0).all()


def test_the_tree_depends_on_its_leaves_alone() -> None:
    random = np.random.default_rng(0)
    changed, made = SumTree(9000), SumTree(9000)
    for _ in range(200):
        changed.set(random.integers(9000, size=50), random.random(50) * 1e6)
    made.set(np.arange(9000), changed.values(np.arange(9000)))
    assert changed.total == made.total


def test_masses_at_the_sums_and_next_to_them_find_their_leaves() -> None:
    """In trees with gaps, and with numbers of very different size."""
    random = np.random.default_rng(0)
    for size in (3, 700, 9000):
        for _ in range(20):
            tree = SumTree(size)
            value = np.where(random.random(size) < 0.7, 0.0, 10.0 ** random.uniform(-12, 12, size))
            value[random.integers(size)], value[size // 2 + 1 :] = 0.1, 0.0
            value[0] = 0.3
            tree.set(np.arange(size), value)
            mass = np.r_[np.cumsum(value), np.nextafter(np.cumsum(value), 0), np.nextafter(np.cumsum(value), np.inf)]
            mass = np.r_[mass[mass < tree.total], np.nextafter(tree.total, 0), tree.total]
            assert tree.values(tree.find(mass)).all()
            plain = np.cumsum(value).searchsorted(mass[:-1], side="right")
            before = np.r_[0.0, np.cumsum(value)]
            leaf = tree.find(mass[:-1])  # what is found differs from the plain answer by rounding alone
            off = np.maximum(before[leaf] - mass[:-1], mass[:-1] - before[leaf + 1])
            assert ((leaf == plain) | (off <= 1e-12 * tree.total)).all()


# -- draws -------------------------------------------------------------------------------------------------------------


def test_draws_and_weights_follow_the_paper() -> None:
    alpha, beta, epsilon = 0.7, 0.5, 0.01
    buffer = data(sampler=PrioritizedSampler(alpha, beta, None, epsilon))
    everything = buffer.reader.sample(TransitionView(), 50)
    assert sorted(marks(everything)) == list(range(50))  # new steps are equal: each part has one
    error = np.random.default_rng(0).exponential(size=50)
    everything.update_priorities(error[marks(everything).astype(int)])
    chance = (error + epsilon) ** alpha / ((error + epsilon) ** alpha).sum()
    check_draws(buffer, chance, beta, stratified=True, atol=0.003)


def plain_ranks(priority: list[float], order: list[float], alpha: float) -> list[float]:
    """Return the value of each priority by its rank among ``order``, written with loops from the paper's section 3.3.

    Equal priorities share the mean over their ranks; one that is not in ``order`` has the rank it would have there.
    """
    values = []
    for each in priority:
        larger, equal = sum(other > each for other in order), sum(other == each for other in order)
        ranks = range(larger + 1, larger + max(equal, 1) + 1)
        values.append(sum((1 / rank) ** alpha for rank in ranks) / len(ranks))
    return values


def check_draws(buffer: Any, chance: Any, beta: float, *, stratified: bool, atol: float = 0.006) -> None:
    """Compare many minibatches with the probabilities ``[50]`` of the steps."""
    counts = np.zeros(50)
    for _ in range(400):
        batch = buffer.reader.sample(TransitionView(), 50)
        drawn = marks(batch).astype(int)
        weight = (50 * chance[drawn]) ** -beta
        np.testing.assert_allclose(batch.weights[:, 0], weight / weight.max(), rtol=1e-5)
        np.add.at(counts, drawn, 1)
        assert not stratified or (np.abs(np.bincount(drawn, minlength=50) - 50 * chance) < 2).all()
    np.testing.assert_allclose(counts / counts.sum(), chance, atol=atol)


def test_ranks_follow_the_paper() -> None:
    buffer = data(sampler=PrioritizedSampler(0.7, 0.5, None, variant="rank_based"))
    everything = buffer.reader.sample(TransitionView(), 50)
    assert sorted(marks(everything)) == list(range(50)) and (everything.weights == 1).all()  # new steps are equal
    error = np.random.default_rng(0).exponential(size=50) ** 4  # of very different size
    everything.update_priorities(error[marks(everything).astype(int)])
    chance = np.array([(1 / rank) ** 0.7 for rank in range(1, 51)]) / sum((1 / rank) ** 0.7 for rank in range(1, 51))
    check_draws(buffer, chance[np.argsort(np.argsort(-error))], 0.5, stratified=True)


@pytest.mark.parametrize("over", ["minibatch", "memory"])
@pytest.mark.parametrize("variant", ["proportional", "rank_based"])
def test_a_share_is_drawn_uniformly(variant: str, over: str) -> None:
    share = {"uniform_ratio": 0.3, "variant": variant, "normalize_over": over}
    buffer = data(sampler=PrioritizedSampler(0.7, 0.5, None, **share))
    everything = buffer.reader.sample(TransitionView(), 500)
    error = np.random.default_rng(0).exponential(size=50) ** 3
    everything.update_priorities(error[marks(everything).astype(int)])
    seen = (error + 1e-6).tolist()
    value = np.array(seen) ** 0.7 if variant == "proportional" else np.array(plain_ranks(seen, seen, 0.7))
    chance = 0.3 / 50 + 0.7 * value / value.sum()
    if over == "minibatch":
        check_draws(buffer, chance, 0.5, stratified=False)
        return
    batch = buffer.reader.sample(TransitionView(), 5)
    weight = chance[marks(batch).astype(int)] ** -0.5 / chance.min() ** -0.5
    np.testing.assert_allclose(batch.weights[:, 0], weight, rtol=1e-5)
    ((_, rows),) = batch.rows
    assert rows.scale == pytest.approx(chance.min() ** -0.5)  # shards compare their weights with it


def test_ranks_do_not_depend_on_the_scale_of_errors() -> None:
    drawn = []
    for scale in (1.0, 1e6):
        buffer = data(sampler=PrioritizedSampler(variant="rank_based"))
        buffer.reader.sources[0].generators.host.bit_generator.state = np.random.default_rng(3).bit_generator.state
        buffer.reader.sample(TransitionView(), 50).update_priorities(scale * (1.5 + np.arange(50.0)))
        batch = buffer.reader.sample(TransitionView(), 20)
        drawn.append((marks(batch).tolist(), batch.weights[:, 0].tolist()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("limit", "lanes"), [(0, 1), (37, 3)])
def test_ranks_are_those_of_the_last_sort(limit: int, lanes: int) -> None:
    """Any order of writes, draws and answers: a plain model sorts when a quarter of the priorities has changed."""
    random, sampler = np.random.default_rng(limit), PrioritizedSampler(0.8, variant="rank_based", uniform_ratio=0.2)
    buffer = ring(limit, sampler, lanes)
    model: dict[float, float] = {}
    order: list[float] = []
    changes, greatest, number, capacity, sorts = 0, 1.0, 0.0, 0, 0
    for _ in range(300):
        for _ in range(random.integers(1, 4)):
            lane = int(random.integers(lanes))
            if random.random() < 0.2:
                buffer.clip_episode(bool(random.random() < 0.5), lane=lane)
            else:
                buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number, lane=lane)
                number += 1
        storage = buffer.storage
        if storage.transition_count == 0:
            continue
        before = sampler._tree.changes
        batch = buffer.reader.sample(TransitionView(), 3)
        there = np.flatnonzero((storage.flags & 12) == 0)
        live = storage.columns["reward"][there, 0].tolist()
        model = {mark: model.get(mark, greatest) for mark in live}
        if capacity != storage.capacity or sampler._tree.changes < before or not sampler._tree.changes:
            order, capacity, sorts = sorted(model.values()), storage.capacity, sorts + 1  # it was sorted
            changes = 0
        changes = sampler._tree.changes
        assert changes * 4 < max(len(order), 1) or not changes
        expected = dict(zip(model, plain_ranks(list(model.values()), order, 0.8), strict=True))
        own = dict(zip(live, sampler._tree.values(there).tolist(), strict=True))
        assert own == pytest.approx(expected) and sampler._tree.total == pytest.approx(sum(expected.values()))
        assert sampler._steps == len(model)
        value = random.random(3) * 5
        batch.update_priorities(value)
        for mark, new in zip(marks(batch).tolist(), value, strict=True):
            model[mark] = new + 1e-6
        greatest = max(greatest, *(value + 1e-6))
    assert sorts > 20


def test_weights_are_those_of_the_memory() -> None:
    sampler = PrioritizedSampler(0.7, 0.5, None, 0.01, normalize_over="memory")
    buffer = data(600, sampler=sampler)
    everything = buffer.reader.sample(TransitionView(), 600)
    error, rng = np.ones(600), np.random.default_rng(0)
    error[marks(everything).astype(int)] = 1.0
    for _ in range(20):
        batch = buffer.reader.sample(TransitionView(), 16)
        drawn = marks(batch).astype(int)
        seen = error + 0.01
        seen[error == 1.0] = 1.0  # new steps have the largest priority so far, which starts at 1
        largest = ((seen**0.7).min() / (seen**0.7).sum() * 600) ** -0.5
        weight = (600 * seen[drawn] ** 0.7 / (seen**0.7).sum()) ** -0.5
        np.testing.assert_allclose(batch.weights[:, 0], weight / largest, rtol=1e-5)
        error[drawn] = 0.5 * rng.random(16)
        batch.update_priorities(error[drawn])
    with pytest.raises(ConfigError, match="normalize_over is 'batch'; it must be one of 'minibatch', 'memory'"):
        PrioritizedSampler(normalize_over="batch")


def test_beta_rises_to_one() -> None:
    sampler = PrioritizedSampler(1.0, 0.2, beta_steps=4)
    buffer = data(sampler=sampler)
    buffer.reader.sample(TransitionView(), 500).update_priorities(np.r_[np.full(250, 1.0), np.full(250, 3.0)])
    for beta in (0.4, 0.6, 0.8, 1.0, 1.0):
        weight = buffer.reader.sample(TransitionView(), 200).weights
        assert weight.max() == 1.0 and weight.min() == pytest.approx((1 / 3) ** beta, rel=1e-4)


def test_alpha_zero_is_uniform() -> None:
    buffer = data(sampler=PrioritizedSampler(0.0))
    buffer.reader.sample(TransitionView(), 500).update_priorities(np.arange(500.0))
    batch = buffer.reader.sample(TransitionView(), 50)
    assert sorted(marks(batch)) == list(range(50)) and (batch.weights == 1).all()


ROOMS = [(0, 1), (0, 3), (20, 1), (37, 3), (5, 5)]


@pytest.mark.parametrize(("limit", "lanes"), slow_but([(0, 3), (37, 3), (5, 5)], ROOMS))
def test_priorities_stay_with_their_steps(limit: int, lanes: int) -> None:
    """Any order of writes, draws and late answers: each step that can be drawn has its newest priority."""
    random = np.random.default_rng(limit + lanes)
    sampler = PrioritizedSampler(1.0, 1.0, epsilon=1e-9)
    buffer = ring(limit, sampler, lanes)
    model: dict[float, float] = {}
    greatest, late, number = 1.0, [], 0.0
    for _ in range(400):
        for _ in range(random.integers(1, 6)):
            lane, kind = int(random.integers(lanes)), random.random()
            if kind < 0.15:
                buffer.clip_episode(bool(random.random() < 0.5), lane=lane)
            elif kind < 0.25:
                buffer.clip_episode(False, final_observation=np.ones(1, np.float32), lane=lane)
            else:
                buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number, lane=lane)
                number += 1
        storage = buffer.storage
        if storage.transition_count == 0:
            continue
        batch = buffer.reader.sample(TransitionView(), 7)
        there = np.flatnonzero((storage.flags & 12) == 0)
        live = storage.columns["reward"][there, 0].tolist()
        model = {mark: model.get(mark, greatest) for mark in live}
        own = dict(zip(live, source(buffer).sampler._tree.values(there).tolist(), strict=True))
        assert own == pytest.approx(model, rel=1e-6)
        assert sampler._tree.total == pytest.approx(sum(model.values()))
        assert set(marks(batch)) <= model.keys()
        late.append(batch)
        if len(late) > 3:  # an answer that comes three draws late; growth may have moved the rows
            old = late.pop(0)
            value = random.random(7) * 5
            generations = old.rows[0][1].generation
            index = old.rows[0][1].index
            kept = storage.numbers(index) == generations
            old.update_priorities(value)
            for mark, new, held in zip(marks(old).tolist(), value, kept, strict=True):
                if held:
                    model[mark] = new + 1e-9
            greatest = max(greatest, *(value[kept] + 1e-9), 0.0)


def test_new_steps_have_the_greatest_priority_so_far() -> None:
    sampler = PrioritizedSampler(1.0, 0.0, None)
    buffer = ring(100, sampler)
    for number in range(11):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    buffer.reader.sample(TransitionView(), 10).update_priorities(np.full(10, 7.0))
    buffer.reader.sample(TransitionView(), 10).update_priorities(np.full(10, 1e-3))
    buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), 11)
    assert (marks(buffer.reader.sample(TransitionView(), 100)) == 10).sum() > 90  # 11 waits for its next observation


MIXED: list[Any] = [{}, {"uniform_ratio": 0.5}, {"uniform_ratio": 0.5, "variant": "rank_based"}]


@pytest.mark.parametrize("options", MIXED, ids=str)
def test_steps_whose_stacked_frames_are_gone_are_not_drawn(options: Any) -> None:
    buffer = ring(20, PrioritizedSampler(**options), picker=FrameStackTransitionPicker(4))
    for number in range(50):
        buffer.append(np.full(1, number, np.float32), np.zeros(1, np.float32), number)
    drawn = {mark for _ in range(50) for mark in marks(buffer.reader.sample(TransitionView(), 10))}
    plain = ring(20, Uniform(), picker=FrameStackTransitionPicker(4))
    for number in range(50):
        plain.append(np.full(1, number, np.float32), np.zeros(1, np.float32), number)
    assert drawn == {mark for _ in range(50) for mark in marks(plain.reader.sample(TransitionView(), 10))}
    short = ring(3, PrioritizedSampler(**options), picker=FrameStackTransitionPicker(9))
    for number in range(50):
        short.append(np.full(1, number, np.float32), np.zeros(1, np.float32), number)
    with pytest.raises(EmptyDataError, match="stacked frame was evicted"):
        short.reader.sample(TransitionView(), 2)


def test_sequences_and_several_steps_are_drawn_by_priorities() -> None:
    buffer = data(sampler=PrioritizedSampler(1.0, 0.0, None), transition_picker=MultiStepTransitionPicker(3, 0.9))
    batch = buffer.reader.sample(TransitionView(), 50)
    first = np.asarray(batch.observations)[:, 0]
    batch.update_priorities(np.where(first == 12, 1e6, 0.0))
    assert set(np.asarray(buffer.reader.sample(TransitionView(), 20).observations)[:, 0]) == {12.0}
    buffer = data(sampler=PrioritizedSampler(1.0, 0.0, None))
    sequences = buffer.reader.sample(SequenceView(3, 1), 50)
    sequences.update_priorities(np.where(marks(sequences)[1] == 12, 1e6, 0.0))
    assert set(marks(buffer.reader.sample(SequenceView(3, 1), 20))[1]) == {12.0}


# -- state -------------------------------------------------------------------------------------------------------------


def learned(buffer: Any, random: Any, times: int = 5) -> list[Any]:
    drawn = []
    for _ in range(times):
        batch = buffer.reader.sample(TransitionView(), 8)
        drawn += [marks(batch).tolist(), batch.weights[:, 0].tolist()]
        batch.update_priorities(random.random(8))
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), float(random.integers(1000)))
    return drawn


@pytest.mark.parametrize("options", MIXED, ids=str)
@pytest.mark.parametrize("limit", [0, 12])
def test_a_resumed_buffer_draws_on_as_if_nothing_had_been(tmp_path: Path, limit: int, options: Any) -> None:
    def new() -> Any:
        return ring(limit, PrioritizedSampler(0.6, 0.4, beta_steps=20, **options))

    buffer, random = new(), np.random.default_rng(0)
    for number in range(9):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    learned(buffer, random, 7)
    save_archive(tmp_path / "state", "test", {}, buffer.get_state())
    saved, expected = copy.deepcopy(random), learned(buffer, random, 20)
    again = new()
    again.set_state(load_archive(tmp_path / "state", "test")[1])
    assert learned(again, saved, 20) == expected
    assert {type(value) for value in new().get_state()["sampler"].values()} <= {np.ndarray, int, float, dict}


def test_ranks_are_resumed_between_two_sorts() -> None:
    buffers = [data(400, sampler=PrioritizedSampler(variant="rank_based")) for _ in range(2)]
    for number in range(60):
        batch = buffers[0].reader.sample(TransitionView(), 4)
        batch.update_priorities(np.abs(np.sin(marks(batch) + number)))
    assert 0 < source(buffers[0]).sampler._tree.changes < 100
    buffers[1].reader.set_state(buffers[0].reader.get_state())
    for number in range(60):
        first, second = (buffer.reader.sample(TransitionView(), 4) for buffer in buffers)
        assert marks(first).tolist() == marks(second).tolist() and (first.weights == second.weights).all()
        for batch in (first, second):
            batch.update_priorities(np.abs(np.cos(marks(batch) + number)))


@pytest.mark.parametrize("limit", [0, 12])
def test_priorities_are_kept_in_folders(tmp_path: Path, limit: int) -> None:
    buffer = ring(limit, PrioritizedSampler(), storage=tmp_path / "data")
    for number in range(30):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    learned(buffer, np.random.default_rng(0))
    buffer.flush()
    own = source(buffer).sampler.get_state()
    buffer.close()
    again = ReplayBuffer.open(tmp_path / "data", sampler=PrioritizedSampler())
    assert repr(source(again).sampler.get_state()) == repr(own)
    assert isinstance(source(ReplayBuffer.open(tmp_path / "data")).sampler, Uniform)
    again.append(np.zeros(1, np.float32), np.zeros(1, np.float32), 77)
    again.reader.sample(TransitionView(), 4)
    again.flush()
    file = tmp_path / "data" / "sampler.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match="sampler.safetensors"):
        ReplayBuffer.open(tmp_path / "data", sampler=PrioritizedSampler())


def test_another_exponent_is_used_for_what_a_folder_keeps(tmp_path: Path) -> None:
    buffer = ring(0, PrioritizedSampler(alpha=0.5), storage=tmp_path / "data")
    for number in range(9):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    buffer.reader.sample(TransitionView(), 50).update_priorities(np.full(50, 100.0))
    buffer.flush()
    for alpha, expected in ((0.5, 10.0), (1.0, 100.0), (0.25, 10.0**0.5), (0.0, 1.0)):
        sampler = PrioritizedSampler(alpha=alpha)
        state = source(ReplayBuffer.open(tmp_path / "data", sampler=sampler)).sampler.get_state()
        np.testing.assert_allclose(state["priority"][state["known"]], [expected] * 8, rtol=1e-6)
        assert not state["priority"][~state["known"]].any()
        assert state["greatest"] == pytest.approx(expected)
        assert state["alpha"] == alpha


def test_a_folder_serves_both_variants(tmp_path: Path) -> None:
    buffer = ring(0, PrioritizedSampler(alpha=0.5), storage=tmp_path / "data")
    for number in range(9):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    everything = buffer.reader.sample(TransitionView(), 50)
    everything.update_priorities(marks(everything) + 1.0)
    buffer.close()
    for variant, expected in (("rank_based", np.arange(8.0) + 1), ("proportional", (np.arange(8.0) + 1) ** 0.5)):
        again = ReplayBuffer.open(tmp_path / "data", sampler=PrioritizedSampler(0.5, variant=variant))
        state = source(again).sampler.get_state()
        np.testing.assert_allclose(state["priority"][state["known"]], expected, rtol=1e-5)
        again.reader.sample(TransitionView(), 4)
        values = source(again).sampler._tree.values(np.arange(8))
        np.testing.assert_allclose(
            values, expected if variant == "proportional" else np.arange(8.0, 0, -1) ** -0.5, 1e-5
        )
        again.flush()  # saves the priorities of this variant
        again.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sorted", np.array([2.0, 1.0])),
        ("sorted", np.array([0.0, 1.0])),
        ("sorted", np.array([1.0, np.nan])),
        ("sorted", np.ones((2, 2))),
        ("sorted", np.ones(10**4)),
        ("sorted", np.ones(2, np.float32)),
        ("changes", -1),
    ],
)
def test_damaged_ranks_are_refused(name: str, value: Any) -> None:
    buffer = data(10, sampler=PrioritizedSampler(variant="rank_based"))
    buffer.reader.sample(TransitionView(), 4)
    sampler = source(buffer).sampler
    state = sampler.get_state()
    with pytest.raises(CorruptFileError):
        sampler.set_state({**state, "ranks": {**state["ranks"], name: value}})
    assert repr(sampler.get_state()) == repr(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 2.0),
        ("priority", np.full(8, -1.0)),
        ("priority", np.full(8, np.nan)),
        ("priority", np.ones(3)),
        ("priority", np.ones(8, np.float32)),
        ("known", np.zeros(8, bool)),
        ("start", np.array([-1])),
        ("start", np.array([99])),
        ("end", np.array([2**40])),
        ("capacity", -1),
        ("capacity", 3),
        ("greatest", float("nan")),
        ("draws", -1),
    ],
)
def test_damaged_priorities_are_refused(name: str, value: Any) -> None:
    buffer = ring(0, PrioritizedSampler())
    for number in range(7):
        buffer.append(np.zeros(1, np.float32), np.zeros(1, np.float32), number)
    buffer.reader.sample(TransitionView(), 4)
    state = buffer.get_state()
    before = repr(source(buffer).sampler.get_state())
    with pytest.raises(CorruptFileError):
        source(buffer).sampler.set_state({**state["sampler"], name: value})
    assert repr(source(buffer).sampler.get_state()) == before


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, 1e39])
def test_wrong_priorities_are_refused_and_nothing_changes(value: float) -> None:
    buffer = data(sampler=PrioritizedSampler())
    batch = buffer.reader.sample(TransitionView(), 4)
    before = repr(source(buffer).sampler.get_state())
    with pytest.raises(NonFiniteError, match=re.escape(f"step is {value}; it must be finite in float32")):
        batch.update_priorities(np.array([1.0, 2.0, value, 3.0]))
    assert repr(source(buffer).sampler.get_state()) == before


@pytest.mark.parametrize(
    "value", [[1.0, 2.0], [1.0] * 5, [[1.0] * 4], ["a"] * 4, None, [1j] * 4, [[1], [1, 2]]], ids=str
)
def test_priorities_are_a_number_for_each_element(value: Any) -> None:
    buffer = data(sampler=PrioritizedSampler())
    batch = buffer.reader.sample(TransitionView(), 4)
    before = repr(source(buffer).sampler.get_state())
    with pytest.raises(ShapeError, match="priorit"):
        batch.update_priorities(value)
    assert repr(source(buffer).sampler.get_state()) == before


def test_a_sampler_that_knows_steps_belongs_to_one_dataset() -> None:
    sampler = PrioritizedSampler()
    data(sampler=sampler)
    with pytest.raises(ConfigError, match="give each dataset its own sampler"):
        data(sampler=sampler)
    uniform = Uniform()
    data(sampler=uniform)
    data(sampler=uniform)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 1.5},
        {"alpha": -1},
        {"alpha": "x"},
        {"beta": 2},
        {"beta_steps": 0},
        {"epsilon": 0},
        {"epsilon": None},
        {"variant": "rank"},
        {"uniform_ratio": 1},
        {"uniform_ratio": -0.1},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PrioritizedSampler(**options)


@pytest.mark.parametrize("options", [{"alpha": 0, "uniform_ratio": 0.5}, {"variant": "rank_based", "epsilon": 0.1}])
def test_settings_without_an_effect_are_warned_of(options: Any) -> None:
    with pytest.warns(UnusedOptionWarning, match=r"(uniform_ratio|epsilon)=[\d.]+ ha(s|ve) no effect with"):
        PrioritizedSampler(**options)


def test_draws_without_td_errors_are_refused() -> None:
    dataset = data(sampler=PrioritizedSampler())
    with pytest.raises(UnsupportedError, match="make the dataset without sampler="):
        dataset.sample_trajectory_batch(2, 3)
    empty = ring(0, PrioritizedSampler())
    errors: list[BirlError] = []
    for sampler in (PrioritizedSampler(), Uniform()):
        with pytest.raises(EmptyDataError, match="no transition to sample") as caught:
            ring(0, sampler).reader.sample(TransitionView(), 2)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert empty.reader.get_state()["sampler"]["draws"] == 0
    assert len(dataset.reader.sample(TailView(), 3).rows) == 1


def test_a_device_gathers_what_the_host_draws() -> None:
    from birl.dataset.arrays import TorchPlace

    buffer = data(sampler=PrioritizedSampler(1.0, 1.0))
    reader = buffer.reader.mirrored(TorchPlace(torch.device("cpu")))
    batch = reader.sample(TransitionView(), 50)
    assert isinstance(batch.weights, torch.Tensor)
    batch.update_priorities(torch.as_tensor(np.where(marks(batch) == 3, 1e9, 0.0)))
    assert set(marks(reader.sample(TransitionView(), 20))) == {3.0}


def test_the_former_name_of_update_priorities_says_the_new_one() -> None:
    batch = data(10).reader.sample(TransitionView(), 2)
    with pytest.raises(AttributeError, match=r"hand_back is MiniBatch\.update_priorities now"):
        batch.hand_back(np.ones(2))
    assert not hasattr(batch, "nothing_of_this_name")
