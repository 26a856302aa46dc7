"""Pickers, slicers and sequences: the batched form against the per-item form, and against numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from data_reference import all_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.algos import CalQLConfig, ReBRACConfig
from birl.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    Episode,
    EpisodeBase,
    FIFOBuffer,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    MixedReplayBuffer,
    MultiStepFrameStackTransitionPicker,
    MultiStepTransitionPicker,
    ReplayBuffer,
    SparseRewardTransitionPicker,
    TrajectoryMiniBatch,
    Transition,
    TransitionMiniBatch,
)
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episodes import episode_at, locate
from birl.dataset.transitions import Columns
from birl.dataset.views import SequenceView, TransitionView
from birl.errors import ConfigError, DataError, UnsupportedError
from birl.logging import NoopAdapterFactory

EPISODES = st.lists(st.tuples(st.integers(1, 7), st.booleans(), st.booleans()), min_size=1, max_size=6)
PICKERS = [
    BasicTransitionPicker(),
    MultiStepTransitionPicker(1, 0.9),
    MultiStepTransitionPicker(3, 0.5),
    MultiStepTransitionPicker(20, 0.9),
    FrameStackTransitionPicker(1),
    FrameStackTransitionPicker(3),
    FrameStackTransitionPicker(10),
    MultiStepFrameStackTransitionPicker(3, 2, 0.5),
    MultiStepFrameStackTransitionPicker(2, 5, 0.9),
]


def make(
    kinds: list[tuple[int, bool, bool]], limit: int | None = None, storage: str = "memory", **parts: Any
) -> ReplayBuffer:
    """Image-like observations [2, 1, 1]; observation n of episode e is 20 e + n + 1."""
    episodes = []
    for number, (length, terminated, known) in enumerate(kinds):
        pixels = (
            np.zeros((length + known, 2, 1, 1), np.uint8)
            + (20 * number + 1 + np.arange(length + known))[:, None, None, None]
        )
        pixels[:, 1] += 100
        actions = np.arange(length) % 3
        rewards = np.linspace(-1, 1, length) + number
        episodes.append(Episode(pixels.astype(np.uint8), actions, rewards, terminated, truncated=not terminated))
    return ReplayBuffer(
        InfiniteBuffer() if limit is None else FIFOBuffer(limit),
        episodes=episodes,
        action_size=3,
        storage=storage,
        **parts,
    )


def equal(one: Any, other: Any) -> None:
    one, other = one.filled(), other.filled()
    for name, value in vars(one).items():
        if value is None:
            assert getattr(other, name) is None, name
            continue
        if isinstance(value, dict):
            assert value == getattr(other, name) == {}
            continue
        a, b = np.asarray(value), np.asarray(getattr(other, name))
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


def one_by_one(buffer: ReplayBuffer, rows: Any, call: Any, *, for_picker: bool) -> list[Any]:
    episodes, indices = locate(buffer.storage, rows)
    made = [episode_at(buffer.storage, int(e), for_picker=for_picker) for e in episodes]
    return [call(episode, int(index)) for episode, index in zip(made, indices, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    kinds=EPISODES,
    picker=st.sampled_from(PICKERS),
    limit=st.sampled_from([None, 3, 9]),
    storage=st.sampled_from(["memory", "cpu"]),
    for_picker=st.booleans(),
)
def test_batches_equal_single_transitions(
    kinds: list[tuple[int, bool, bool]], picker: Any, limit: int | None, storage: str, for_picker: bool
) -> None:
    buffer = make(kinds, limit, storage, transition_picker=picker)
    rows = all_rows(buffer)
    if not len(rows):
        return
    batch = picker.batch(buffer.storage, buffer.storage.place.indices(rows))
    single = one_by_one(buffer, rows, picker, for_picker=for_picker)
    stacked = TransitionMiniBatch.from_transitions(single)
    assert stacked.transitions is single
    equal(replace(stacked, extra={}, transitions=None), batch)


class _ByHand(BasicTransitionPicker):
    """A user's picker, which makes transitions one by one."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        return super().__call__(episode, index)


@settings(max_examples=60, deadline=None)
@given(
    kinds=EPISODES,
    picker=st.sampled_from([*PICKERS[:6], _ByHand()]),
    limit=st.sampled_from([None, 3, 9]),
    storage=st.sampled_from(["memory", "cpu"]),
)
def test_next_actions_are_those_of_the_step_where_a_transition_leads(
    kinds: list[tuple[int, bool, bool]], picker: Any, limit: int | None, storage: str
) -> None:
    buffer = make(kinds, limit, storage, transition_picker=picker)
    rows = all_rows(buffer)
    if not len(rows):
        return
    placed = buffer.storage.place.indices(rows)
    batch = TransitionView(Columns(next_actions=True)).read(buffer.storage, picker, placed).filled()
    plain = TransitionView().read(buffer.storage, picker, placed)
    assert set(batch.extra) - set(plain.extra) == {"next_action", "next_action_known"}
    episodes, indices = locate(buffer.storage, rows)
    for k, (number, index) in enumerate(zip(episodes, indices, strict=True)):
        actions = episode_at(buffer.storage, int(number)).actions
        after = int(index) + int(batch.intervals[k, 0])
        known = after < len(actions)
        assert float(batch.extra["next_action_known"][k, 0]) == known
        assert int(batch.extra["next_action"][k, 0]) == (actions[after, 0] if known else 0)
    assert batch.extra["next_action"].dtype == batch.actions.dtype
    assert batch.extra["next_action_known"].dtype == batch.rewards.dtype


def test_next_actions_of_sequences_and_of_mixed_buffers() -> None:
    buffer = make([(4, True, True), (3, False, True)])
    batch = SequenceView(4, 1, Columns(next_actions=True)).read(
        buffer.storage, BasicTransitionPicker(), np.array([1, 5])
    )
    assert batch.extra["next_action_known"][..., 0].T.tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 0, 0]]
    assert batch.extra["next_action"][..., 0].T.tolist() == [[1, 2, 0, 0, 0], [0, 1, 2, 0, 0]]
    mixed = MixedReplayBuffer(buffer, make([(5, True, True)]), secondary_mix_ratio=0.5)
    assert mixed.sample_transition_batch(6, next_actions=True).extra["next_action"].shape == (6, 1)
    assert mixed.sample_sequence_batch(6, 3, next_actions=True).extra["next_action"].shape == (3, 6, 1)
    assert "next_action" not in mixed.sample_transition_batch(6, next_actions=False).extra


def test_the_newest_step_of_a_running_episode_has_no_next_action_yet() -> None:
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=make([(3, True, True)]).episodes, action_size=3)
    buffer.append(np.zeros((2, 1, 1), np.uint8), 2, 0.0)
    buffer.append(np.ones((2, 1, 1), np.uint8), 1, 0.0)
    rows = all_rows(buffer)
    batch = TransitionView(Columns(next_actions=True)).read(buffer.storage, BasicTransitionPicker(), rows)
    assert batch.extra["next_action_known"][:, 0].tolist() == [1, 1, 0, 1]
    assert batch.extra["next_action"][:, 0].tolist() == [1, 2, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    kinds=EPISODES,
    slicer=st.sampled_from([BasicTrajectorySlicer(), FrameStackTrajectorySlicer(3)]),
    length=st.integers(1, 9),
    storage=st.sampled_from(["memory", "cpu"]),
)
def test_batches_equal_single_trajectories(
    kinds: list[tuple[int, bool, bool]], slicer: Any, length: int, storage: str
) -> None:
    buffer = make(kinds, None, storage, trajectory_slicer=slicer)
    rows = all_rows(buffer, any_step=True)
    batch = slicer.batch(buffer.storage, buffer.storage.place.indices(rows), length)
    single = one_by_one(buffer, rows, lambda episode, index: slicer(episode, index, length), for_picker=False)
    equal(TrajectoryMiniBatch.from_partial_trajectories(single), batch)


@settings(max_examples=60, deadline=None)
@given(
    kinds=EPISODES,
    length=st.integers(1, 5),
    burn_in=st.integers(0, 4),
    limit=st.sampled_from([None, 6]),
    storage=st.sampled_from(["memory", "cpu"]),
)
def test_sequences_never_leave_their_episode(
    kinds: list[tuple[int, bool, bool]], length: int, burn_in: int, limit: int | None, storage: str
) -> None:
    buffer = make(kinds, limit, storage)
    rows = all_rows(buffer)
    if not len(rows):
        return
    batch = SequenceView(length, burn_in).read(
        buffer.storage, buffer.transition_picker, buffer.storage.place.indices(rows)
    )
    observations, following = (np.asarray(x)[..., 0, 0, 0] for x in (batch.observations, batch.next_observations))
    masks, first, terminals = np.asarray(batch.masks), np.asarray(batch.is_first), np.asarray(batch.terminals)[..., 0]
    assert observations.shape == (burn_in + length, len(rows))
    numbers, indices = locate(buffer.storage, rows)
    for column, (number, index) in enumerate(zip(numbers, indices, strict=True)):
        episode = buffer.episodes[int(number)]
        whole = episode.observations[0, 0, 0, 0] % 20 == 1  # its first step has not been evicted
        for time in range(burn_in + length):
            step = int(index) + time - burn_in
            if not 0 <= step < episode.size():
                assert masks[time, column] == observations[time, column] == 0
                assert not first[time, column]
                continue
            assert observations[time, column] == episode.observations[step, 0, 0, 0]
            known = step + 1 < episode.size() or episode.terminated or episode.final_observation is not None
            assert masks[time, column] == known
            if known and step + 1 < episode.size():
                assert following[time, column] == episode.observations[step + 1, 0, 0, 0]
            elif known and episode.final_observation is not None:
                assert following[time, column] == episode.final_observation[0, 0, 0]
            assert first[time, column] == (step == 0 and (bool(whole) or time > 0))
            assert terminals[time, column] == (episode.terminated and step == episode.size() - 1)
    assert (masks[burn_in] == 1).all()


def test_multi_step_by_hand() -> None:
    rewards, observations = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.arange(1.0, 6.0)[:, None]
    data = MDPDataset(
        observations,
        np.full((5, 1), 0.5),
        rewards,
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1],
        MultiStepTransitionPicker(2, 0.5),
        next_observations=np.array([[2.0], [3.0], [9.0], [5.0], [7.0]]),
    )
    batch = data.transition_picker.batch(data.storage, all_rows(data))  # type: ignore[attr-defined]
    assert batch.rewards[:, 0].tolist() == [2, 4, 4, 16, 16]
    assert batch.next_observations[:, 0].tolist() == [3, 9, 9, 7, 7]
    assert batch.terminals[:, 0].tolist() == [0, 1, 1, 0, 0]
    assert batch.intervals[:, 0].tolist() == [2, 2, 1, 2, 1]


def test_multi_step_bootstraps_from_the_last_observation_that_is_known() -> None:
    data = MDPDataset(
        np.arange(1.0, 4.0)[:, None],
        np.full((3, 1), 0.5),
        [1, 2, 4],
        np.zeros(3),
        [0, 0, 1],
        MultiStepTransitionPicker(5, 0.5),
    )
    batch = data.transition_picker.batch(data.storage, all_rows(data))  # type: ignore[attr-defined]
    assert batch.rewards[:, 0].tolist() == [2, 2]  # the third reward has no state after it
    assert batch.next_observations[:, 0].tolist() == [3, 3]
    assert batch.intervals[:, 0].tolist() == [2, 1]


def test_frame_stacks_by_hand() -> None:
    frames = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    data = MDPDataset(
        frames, np.zeros(5, int), np.zeros(5), [0, 0, 1, 0, 1], transition_picker=FrameStackTransitionPicker(3)
    )
    batch = data.transition_picker.batch(data.storage, all_rows(data))  # type: ignore[attr-defined]
    assert batch.observations.dtype == np.uint8
    assert batch.observations[:, :, 0, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]
    assert batch.next_observations[0, :, 1, 1].tolist() == [0, 1, 2]
    assert data.observation_shape == data.sample_transition().observation.shape == (3, 2, 2)


def test_frame_stacks_over_several_steps_by_hand() -> None:
    """Stacked frames must not change what several steps give, nor several steps the stacks."""
    frames = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    data = MDPDataset(
        frames, np.zeros(5, int), [1, 2, 4, 8, 16], [0, 0, 1, 0, 1],
        transition_picker=MultiStepFrameStackTransitionPicker(3, 2, 0.5),
    )  # fmt: skip
    batch = data.transition_picker.batch(data.storage, all_rows(data))  # type: ignore[attr-defined]
    assert batch.observations[:, :, 0, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]
    assert batch.next_observations[0, :, 1, 1].tolist() == [1, 2, 3]
    assert batch.rewards[:, 0].tolist() == [2, 4, 4, 16, 16]
    assert batch.intervals[:, 0].tolist() == [2, 2, 1, 2, 1]
    assert batch.terminals[:, 0].tolist() == [0, 1, 1, 1, 1]
    assert data.observation_shape == data.sample_transition().next_observation.shape == (3, 2, 2)
    assert data.sample_sequence_batch(2, 3).intervals.shape == (3, 2, 1)


def test_trajectory_by_hand() -> None:
    data = MDPDataset(np.arange(1.0, 6.0)[:, None], np.full((5, 1), 0.5), [1, 2, 4, 8, 16], [0, 0, 0, 1, 1])
    batch = BasicTrajectorySlicer().batch(data.storage, all_rows(data)[[1, 3, 4]], 3)
    assert batch.observations[..., 0].tolist() == [[0, 1, 2], [2, 3, 4], [0, 0, 5]]
    assert batch.returns_to_go[..., 0].tolist() == [[0, 15, 14], [14, 12, 8], [0, 0, 16]]  # the own reward is in
    assert batch.timesteps.tolist() == [[0, 1, 2], [2, 3, 4], [0, 0, 1]]
    assert batch.masks.tolist() == [[0, 1, 1], [1, 1, 1], [0, 0, 1]]
    assert batch.terminals[..., 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_evicted_steps_leave_the_timesteps_alone() -> None:
    buffer = make([(7, True, False)], 3)
    batch = buffer.sample_trajectory_batch(50, 2)
    assert set(batch.timesteps[:, 1].tolist()) == {5, 6, 7}
    steps = batch.observations[:, 1, 0, 0, 0] == 5
    assert batch.masks[steps].tolist() == [[0, 1]] * int(steps.sum())


def test_start_states_come_with_sequences() -> None:
    buffer = make([(2, True, False)])
    for step in range(4):
        pixels = np.full((2, 1, 1), step, np.uint8)
        extra = {"state.actor": np.full(3, step, np.float32), "log_prob": np.float32(-step)}
        buffer.append(pixels, 0, 0.0, extra=extra)
    buffer.clip_episode(True)
    rows = all_rows(buffer)
    batch = SequenceView(2, 1).read(buffer.storage, buffer.transition_picker, rows)
    assert batch.start_states["actor"][:, 0].tolist() == [0, 0, 0, 0, 1, 2]  # before row 0; older episodes have zeros
    assert batch.extra["log_prob"][1].tolist() == [0, 0, 0, -1, -2, -3]
    transitions = buffer.sample_transition_batch(5, next_actions=False)
    assert set(transitions.extra) == {"log_prob"}
    assert buffer.episodes[1].extra is not None


class Shifted(BasicTransitionPicker):
    """Changes the per-item form only."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        one = super().__call__(episode, index)
        return Transition(
            one.observation, one.action, one.reward + 100, one.next_observation, one.terminal, one.interval
        )


class FromDocumentation:
    """As in d3rlpy's documentation: knows nothing of final observations."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        terminal = episode.terminated and index == episode.size() - 1
        observation = episode.observations[index]
        following = np.zeros_like(observation) if terminal else episode.observations[index + 1]
        return Transition(observation, episode.actions[index], episode.rewards[index], following, float(terminal), 1)


class OfD3rlpy:
    """As written for d3rlpy 2.8.1."""

    def __init__(self, action: int | None = None, bonus: float = 0.0) -> None:
        self.action, self.bonus = action, bonus

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        observations: Any = episode.observations
        terminal = episode.terminated and index == episode.size() - 1
        following = np.zeros_like(observations[0]) if terminal else observations[index + 1]
        next_action = np.zeros_like(episode.actions[index]) if terminal else episode.actions[index + 1]
        return Transition(
            observation=observations[index],
            action=episode.actions[index],
            reward=episode.rewards[index],
            next_observation=following,
            next_action=next_action if self.action is None else np.array([self.action]),
            terminal=float(terminal),
            interval=1,
            rewards_to_go=episode.rewards[index:] + self.bonus,
        )


@pytest.mark.parametrize("storage", ["memory", "cpu"])
@pytest.mark.parametrize("limit", [None, 9])
def test_pickers_of_d3rlpy_give_next_actions_and_returns(limit: int | None, storage: str) -> None:
    kinds = [(5, False, True), (1, False, False), (4, True, False), (7, False, True), (3, False, False)]
    builtin = make(kinds, limit, storage)
    rows = builtin.storage.place.indices(all_rows(builtin))

    def drawn(picker: Any) -> TransitionMiniBatch:
        returns = DiscountedReturns(0.9, lambda rewards: rewards * 2)
        return TransitionView(Columns(True, returns)).read(builtin.storage, picker, rows)

    wanted, same, other = drawn(BasicTransitionPicker()), drawn(OfD3rlpy()), drawn(OfD3rlpy(2, 10.0))
    for name in ("next_action", "next_action_known", "discounted_return"):
        assert same.extra[name].dtype == wanted.extra[name].dtype
        np.testing.assert_allclose(same.extra[name], wanted.extra[name], rtol=1e-5, atol=1e-5)
    assert set(same.next_actions.ravel().tolist()) == {0, 1, 2}
    assert (np.asarray(other.next_actions) == 2).all()
    assert (np.asarray(other.extra["discounted_return"]) > np.asarray(wanted.extra["discounted_return"]) + 19).all()
    with pytest.raises(UnsupportedError, match="next_actions=True"):
        _ = TransitionView().read(builtin.storage, OfD3rlpy(), rows).next_actions


@pytest.mark.parametrize("picker", PICKERS)
def test_single_transitions_tell_what_d3rlpy_tells(picker: Any) -> None:
    buffer = make([(5, False, True), (4, True, False), (3, False, False)], transition_picker=picker)
    rows = all_rows(buffer)
    wanted = TransitionView(Columns(True, DiscountedReturns(0.9))).read(buffer.storage, picker, rows).extra
    single = one_by_one(buffer, rows, picker, for_picker=True)
    assert np.stack([one.next_action for one in single]).tolist() == wanted["next_action"].tolist()
    returns = DiscountedReturns(0.9).sums([one.rewards_to_go for one in single])
    np.testing.assert_allclose(returns, wanted["discounted_return"], rtol=1e-5, atol=1e-6)


def test_stacked_transitions_tell_next_actions_if_all_do() -> None:
    buffer = make([(5, True, False)])
    single = one_by_one(buffer, all_rows(buffer), BasicTransitionPicker(), for_picker=True)
    batch = TransitionMiniBatch.from_transitions(single)
    assert batch.next_actions[:, 0].tolist() == [1, 2, 0, 1, 0]
    assert batch.extra["next_action_known"][:, 0].tolist() == [1, 1, 1, 1, 0]
    untold = TransitionMiniBatch.from_transitions([*single, replace(single[0], next_action=None)])
    with pytest.raises(UnsupportedError, match="give all transitions a next_action"):
        _ = untold.next_actions
    returns = DiscountedReturns(0.5)
    assert batch.discounted_returns(returns)["discounted_return"].shape == (5, 1)
    assert not TransitionMiniBatch.from_transitions([replace(single[0], rewards_to_go=None)]).discounted_returns(
        returns
    )


def test_lengths_are_numbers_of_elements() -> None:
    buffer = make([(5, False, True), (4, True, False)])
    batches = [buffer.sample_transition_batch(3), buffer.sample_trajectory_batch(3, 4), buffer.sample_tail_batch(3)]
    assert [len(batch) for batch in (*batches, buffer.sample_sequence_batch(3, 4))] == [3, 3, 3, 3]
    assert len(buffer.sample_trajectory(4)) == 4
    assert batches[0].observation_shape == buffer.observation_shape
    assert (batches[0].action_shape, batches[0].reward_shape, batches[1].action_shape) == ((1,), (1,), (4, 1))


def test_rewards_to_go_of_failures() -> None:
    picker, zeros = SparseRewardTransitionPicker(-7.0), np.zeros((4, 1), np.float32)
    failed = Episode(zeros, zeros, zeros, True)
    assert picker(failed, 1).rewards_to_go.tolist() == [[-7]]  # type: ignore[union-attr]
    reached = Episode(zeros, zeros, np.array([0.0, 0.0, 1.0, 0.0]), True)
    assert picker(reached, 1).rewards_to_go.tolist() == [[0], [1], [0]]  # type: ignore[union-attr]
    assert picker(reached, 3).rewards_to_go.tolist() == [[-7]]  # type: ignore[union-attr]


@pytest.mark.parametrize("config", [CalQLConfig(batch_size=8), ReBRACConfig(batch_size=8)])
def test_pickers_of_d3rlpy_are_learned_from(config: Any) -> None:
    generator, episodes = np.random.default_rng(0), []
    for rows, terminated in ((6, True), (7, False), (6, False)):
        observations = generator.normal(size=(rows, 3)).astype(np.float32)
        actions = generator.uniform(-1, 1, (6, 2)).astype(np.float32)
        episodes.append(Episode(observations, actions, np.ones(6), terminated, truncated=not terminated))
    dataset = ReplayBuffer(InfiniteBuffer(), OfD3rlpy(), episodes=episodes)
    config.create(device="cpu").fit(
        dataset, n_steps=2, n_steps_per_epoch=2, logger_adapter=NoopAdapterFactory(), show_progress=False
    )


@pytest.mark.parametrize("storage", ["memory", "cpu"])
@pytest.mark.parametrize("limit", [None, 9])
def test_custom_pickers_work_one_by_one(limit: int | None, storage: str) -> None:
    kinds = [(5, False, True), (1, False, False), (4, True, False), (3, False, False)]
    custom = make(kinds, limit, storage, transition_picker=FromDocumentation())
    builtin = make(kinds, limit, storage)
    custom.set_state(builtin.get_state(contents=False))
    equal(*(each.sample_transition_batch(64, next_actions=False) for each in (custom, builtin)))
    assert custom.observation_shape == (2, 1, 1)
    shifted = make(kinds, limit, storage, transition_picker=Shifted())
    assert float(shifted.sample_transition_batch(8).rewards.min()) > 50


def test_custom_slicers_work_one_by_one() -> None:
    class Custom:
        def __call__(self, episode: EpisodeBase, end_index: int, size: int) -> Any:
            return BasicTrajectorySlicer()(episode, end_index, size)

    custom, builtin = make([(5, True, False)], trajectory_slicer=Custom()), make([(5, True, False)])
    custom.set_state(builtin.get_state(contents=False))
    equal(custom.sample_trajectory_batch(9, 3), builtin.sample_trajectory_batch(9, 3))
    assert custom.sample_trajectory(3).get_transition_count() <= 3


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: FrameStackTransitionPicker(0), "n_frames is 0; it must be an int >= 1"),
        (lambda: MultiStepTransitionPicker(0, 0.9), "n_steps is 0; it must be an int >= 1"),
        (lambda: MultiStepTransitionPicker(3, 1.5), "gamma is 1.5; it must be a float >= 0 and <= 1"),
        (lambda: FIFOBuffer(0), "limit is 0; it must be an int >= 1"),
        (lambda: make([(3, True, False)]).sample_transition_batch(0), "batch_size is 0; it must be an int >= 1"),
        (lambda: make([(3, True, False)]).sample_sequence_batch(1, 0), "length is 0; it must be an int >= 1"),
        (lambda: make([(3, True, False)]).sample_sequence_batch(1, 2, -1), "burn_in is -1; it must be an int >= 0"),
    ],
)
def test_options_out_of_range(make_it: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        make_it()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([np.nan]), "is .*nan.*finite"),
        (np.array([1e39]), "finite in float32"),
        (None, "NoneType"),
        ("1", "text"),
        (np.ma.masked_array([1.0], mask=[True]), "is masked"),
    ],
)
@pytest.mark.parametrize("field", ["reward", "observation"])
def test_what_a_picker_returns_is_checked_like_data(field: str, value: Any, message: str) -> None:
    class Own(BasicTransitionPicker):
        def __call__(self, episode: Any, index: int) -> Any:
            return replace(super().__call__(episode, index), **{field: value})

    ends = np.arange(8) % 4 == 3
    data = MDPDataset(np.zeros((8, 1)), np.zeros((8, 1)), np.ones(8), ends, np.zeros(8), transition_picker=Own())
    with pytest.raises(DataError, match=rf"the {field} of transitions\[0\].*{message}"):
        data.sample_transition_batch(2)
