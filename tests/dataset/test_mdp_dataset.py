"""Logged data: known faults of other libraries, trees, dtypes, and bad input."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from data_reference import all_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from birl.dataset import (
    BasicTrajectorySlicer,
    DatasetInfo,
    Episode,
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    ReplayBuffer,
    Signature,
    batch_pad_array,
    batch_pad_observations,
    create_fifo_replay_buffer,
    create_zero_observation,
    detect_action_size,
    detect_action_space,
)
from birl.datasets import get_dataset
from birl.errors import (
    ActionError,
    ConfigError,
    DataError,
    EmptyDataError,
    NonFiniteError,
    OneHotActionWarning,
    ShapeError,
)
from birl.types import ActionSpace


def steps(count: int) -> dict[str, Any]:
    observations = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return {
        "observations": observations,
        "actions": np.linspace(-1, 1, count * 3).reshape(count, 3),
        "rewards": np.arange(count, dtype=np.float64),
        "terminals": np.zeros(count),
        "timeouts": np.arange(count) == count - 1,
    }


# -- faults of d3rlpy 2.8.1 (numbers as in the list of its faults) ----------------------------------------------------


def test_fault_01_truncation_loses_no_transition() -> None:
    data = steps(10)
    timeouts = np.zeros(10)
    timeouts[[4, 9]] = 1
    after = data["observations"] + 2
    after[[4, 9]] = 77
    dataset = MDPDataset(**{**data, "timeouts": timeouts}, next_observations=after)
    assert dataset.transition_count == 10
    batch = dataset.sample_transition_batch(300)
    assert set(batch.rewards[:, 0].tolist()) == set(range(10))
    assert (batch.next_observations[batch.rewards[:, 0] == 4] == 77).all()
    assert batch.terminals.sum() == 0


def test_fault_01_online_truncation_loses_no_transition() -> None:
    buffer = create_fifo_replay_buffer(100, env=gymnasium.make("CartPole-v1"))
    for step in range(10):
        buffer.append(np.full(4, step, np.float32), step % 2, 1.0)
        if step % 5 == 4:
            buffer.clip_episode(False, final_observation=np.full(4, -1, np.float32))
    assert buffer.transition_count == 10
    assert buffer.size() == 2


def test_fault_02_a_limit_counts_steps_and_frees_them() -> None:
    episodes = [Episode(np.zeros((100, 3), np.uint8), np.zeros((100, 1), int), np.zeros(100), True) for _ in range(2)]
    buffer = ReplayBuffer(FIFOBuffer(150), episodes=episodes)
    assert buffer.transition_count == buffer.step_count == 150
    assert [episode.size() for episode in buffer.episodes] == [50, 100]
    assert buffer.storage.capacity < 170


def test_fault_02_a_limit_of_one_works() -> None:
    buffer = create_fifo_replay_buffer(1, env=gymnasium.make("CartPole-v1"))
    for step in range(5):
        buffer.append(np.full(4, step, np.float32), 0, float(step))
        if step:
            assert buffer.transition_count == 1
            assert buffer.sample_transition_batch(3).rewards[:, 0].tolist() == [step - 1] * 3


def test_fault_03_an_episode_may_have_any_length() -> None:
    buffer = create_fifo_replay_buffer(20_000, env=gymnasium.make("CartPole-v1"))
    observation = np.zeros(4, np.float32)
    for _ in range(10_050):
        buffer.append(observation, 1, 1.0)
    buffer.clip_episode(True)
    assert buffer.episodes[0].size() == buffer.transition_count == 10_050


def test_fault_05_one_step_episodes_stay_separate_and_the_tail_is_kept() -> None:
    data = steps(7)
    data["terminals"][[0, 3]] = 1
    dataset = MDPDataset(**data)
    assert [episode.size() for episode in dataset.episodes] == [1, 3, 3]
    assert [episode.terminated for episode in dataset.episodes] == [True, True, False]
    assert dataset.episodes[2].truncated
    assert dataset.episodes[2].final_observation is None
    assert dataset.step_count == 7
    assert dataset.transition_count == 6
    only = MDPDataset(**{**steps(1), "terminals": [1]})
    assert only.sample_transition_batch(2).terminals[:, 0].tolist() == [1, 1]


def test_fault_06_terminal_and_timeout_on_one_step() -> None:
    data, timeouts = steps(4), np.array([0.0, 1, 0, 0])
    data["terminals"][1] = 1
    copies = {name: value.copy() for name, value in data.items()}
    dataset = MDPDataset(**{**data, "timeouts": timeouts})
    assert [(episode.terminated, episode.truncated) for episode in dataset.episodes] == [(True, False), (False, True)]
    for name, value in data.items():
        np.testing.assert_array_equal(value, copies[name])
    assert timeouts.tolist() == [0, 1, 0, 0]


def test_fault_09_whole_numbers_are_not_taken_for_discrete_actions() -> None:
    data = steps(4)
    assert (
        MDPDataset(**{**data, "actions": np.array([[0.0], [1], [1], [0]])}).dataset_info.action_space
        is ActionSpace.CONTINUOUS
    )
    with pytest.raises(ActionError, match="action_space=ActionSpace.DISCRETE"):
        MDPDataset(**{**data, "actions": np.array([0.0, 1, 1, 0])})
    discrete = MDPDataset(**{**data, "actions": np.array([0.0, 1, 1, 0])}, action_space=ActionSpace.DISCRETE)
    assert discrete.dataset_info.action_size == 2
    assert discrete.sample_transition_batch(2).actions.dtype == np.int64
    continuous = MDPDataset(**{**data, "actions": np.array([0, 1, 1, 0])}, action_space=ActionSpace.CONTINUOUS)
    assert continuous.sample_transition_batch(2).actions.dtype == np.float32
    assert (
        MDPDataset(**{**data, "actions": np.array([-1.0, 1, 1, 0])}).dataset_info.action_space is ActionSpace.CONTINUOUS
    )


def test_fault_13_a_long_episode_is_one_episode() -> None:
    data = steps(3000)
    data["terminals"][-1] = 1
    dataset = MDPDataset(**data)
    assert dataset.size() == len(dataset.episodes) == 1
    buffer = create_fifo_replay_buffer(5000, episodes=dataset.episodes)
    assert buffer.size() == 1


def test_fault_15_pixels_stay_bytes() -> None:
    data = {**steps(6), "observations": np.random.randint(256, size=(6, 1, 8, 8), dtype=np.uint8)}
    dataset = MDPDataset(**data, transition_picker=FrameStackTransitionPicker(4))
    assert dataset.sample_transition_batch(5).observations.dtype == np.uint8
    assert dataset.sample_transition_batch(5).next_observations.dtype == np.uint8
    assert dataset.sample_trajectory_batch(5, 3).observations.dtype == np.uint8
    assert dataset.sample_sequence_batch(5, 3).observations.dtype == np.uint8


# -- what is kept --------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), known=st.booleans())
def test_every_step_is_kept_in_order(flags: list[tuple[bool, bool]], known: bool) -> None:
    data = steps(len(flags))
    data["terminals"], data["timeouts"] = (np.array(column) for column in zip(*flags, strict=True))
    assume(any(map(any, flags)))
    dataset = MDPDataset(**data, next_observations=data["observations"] + 2 if known else None)
    for name in ("observations", "actions", "rewards"):
        joined = np.concatenate([getattr(episode, name) for episode in dataset.episodes])
        np.testing.assert_array_equal(joined.reshape(data[name].shape), data[name])
        assert joined.dtype == data[name].dtype
    ends = [terminal or timeout for terminal, timeout in flags[:-1]]
    assert dataset.size() == sum(ends) + 1
    unknown = sum(
        not terminal and (timeout or last)
        for (terminal, timeout), last in zip(flags, [False] * (len(flags) - 1) + [True], strict=True)
    )
    assert dataset.transition_count == len(flags) - (0 if known else unknown)
    assert dataset.transition_count == sum(episode.transition_count for episode in dataset.episodes)


@pytest.mark.parametrize("storage", ["memory", "cpu"])
def test_trees_of_observations(storage: str) -> None:
    count = 9
    images, vectors = (
        np.arange(count * 4, dtype=np.uint8).reshape(count, 1, 2, 2),
        np.arange(count * 2.0).reshape(count, 2),
    )
    data = {**steps(count), "actions": np.arange(count) % 2}
    as_tuple = MDPDataset(**{**data, "observations": (images, vectors)}, storage=storage)
    as_dict = MDPDataset(
        **{**data, "observations": {"camera": images, "joints": (vectors, vectors[:, 0])}}, storage=storage
    )
    assert as_tuple.observation_shape == ((1, 2, 2), (2,))
    assert as_dict.observation_shape == {"camera": (1, 2, 2), "joints": ((2,), ())}
    batch, other = as_tuple.sample_transition_batch(4), as_dict.sample_transition_batch(4)
    assert batch.observation_shape == ((1, 2, 2), (2,))
    assert other.observations["joints"][1].shape == (4,)
    assert str(batch.observations[1].dtype).endswith("float32")
    assert as_tuple.dataset_info.observation_signature.shape == [(1, 2, 2), (2,)]
    assert as_dict.sample_sequence_batch(3, 2).observations["camera"].shape == (2, 3, 1, 2, 2)
    np.testing.assert_array_equal(as_dict.episodes[0].observations["joints"][0], vectors)
    copied = create_fifo_replay_buffer(100, episodes=as_dict.episodes)
    copied.append({"camera": images[0], "joints": (vectors[0], vectors[0, 0])}, 1, 1.0)
    for wrong in (images[0], {"camera": images[0]}, {"camera": images[0], "joints": (vectors[0],)}):
        with pytest.raises(ShapeError, match="observation"):
            copied.append(wrong, 1, 1.0)
    assert copied.step_count == count + 1


def test_doubles_are_kept_and_sampled_as_floats() -> None:
    data = {**steps(4), "observations": np.full((4, 1), 1 / 3)}
    dataset = MDPDataset(**data)
    assert dataset.episodes[0].observations[0, 0] == 1 / 3
    assert dataset.dataset_info.observation_signature == Signature([np.float64], [(1,)])
    assert dataset.sample_transition_batch(2).observations.dtype == np.float32


def test_lists_and_columns_are_taken() -> None:
    dataset = MDPDataset([[1.0], [2.0]], [0, 1], [[1], [2]], [[False], [True]])
    assert dataset.dataset_info.action_size == 2
    assert dataset.sample_transition_batch(3).rewards.dtype == np.float32


# -- bad input -----------------------------------------------------------------------------------------------------


def bad(**changes: Any) -> dict[str, Any]:
    return {**steps(4), **changes}


NAN = np.array([[0.0, 0], [0, np.nan], [0, 0], [0, 0]])
BAD = [
    (bad(rewards=np.zeros(3)), ShapeError, "rewards 3"),
    (bad(observations=np.zeros((3, 1))), ShapeError, "differ: observations 3, actions 4"),
    (bad(observations=(np.zeros(4), np.zeros(3))), ShapeError, r"observations\[0\] 4, observations\[1\] 3, actions 4"),
    (bad(terminals=np.zeros(5)), ShapeError, "terminals 5"),
    (bad(timeouts=np.zeros(5)), ShapeError, "timeouts 5"),
    (bad(actions=np.zeros((2, 1))), ShapeError, "actions 2"),
    (bad(rewards=np.zeros((4, 2))), ShapeError, r"\(4, 2\)"),
    (bad(observations=np.array(["a", "b", "c", "d"])), ShapeError, r"observations is <U1, text; .*np.unique\(obs"),
    (bad(observations=np.array([None] * 4)), DataError, r"observations\[0\] is missing"),
    (bad(observations=np.array([{}] * 4)), ShapeError, "is object: observations.0. is {}, a dict; it must be a bool"),
    (bad(observations=[[1.0], [1.0, 2.0], [1.0], [1.0]]), ShapeError, "observations"),
    (bad(observations=(np.zeros((4, 1)),)), ShapeError, "tuple of fewer than two"),
    (bad(observations=NAN), NonFiniteError, r"observations\[1, 1\] is nan"),
    (bad(rewards=[0, np.inf, 0, 0]), NonFiniteError, r"rewards\[1, 0\] is inf"),
    (bad(actions=NAN), NonFiniteError, "actions"),
    (bad(observations=np.array([[np.nan, 1e300]] * 4)), NonFiniteError, r"observations\[0, 0\] is nan"),
    (bad(observations=np.full((4, 2), -1e300)), NonFiniteError, r"observations\[0, 0\] is -1e\+300; .* 3.4e\+38"),
    (bad(rewards=[0, 0, 1e39, 0]), NonFiniteError, r"rewards\[2, 0\] is 1e\+39; .* -3.4e\+38 to .*: scale rewards"),
    (bad(actions=[[0.0], [1e300], [0], [0]]), NonFiniteError, r"actions\[1, 0\] is 1e\+300; .*float32"),
    (bad(observations=np.float64([[np.inf]] * 4)), NonFiniteError, r"observations\[0, 0\] is inf; it must be a finite"),
    (bad(terminals=[0, 0.5, 0, 0]), DataError, r"terminals\[1\] is 0.5"),
    (bad(timeouts=[0, 0, 2, 0]), DataError, r"timeouts\[2\] is 2"),
    (bad(timeouts=None), DataError, "no step of 4 ends an episode: .*episode_ids"),
    (bad(timeouts=np.zeros(4)), DataError, "no step of 4 ends an episode"),
    (bad(terminals=None, timeouts=[0, 0, 0, 1]), DataError, r"terminals are not given.*np.zeros\(len\(rewards\)\)"),
    (bad(actions=[0, -1, 0, 1]), ActionError, "action -1 at step 1 is negative, .* np.unique.* or give floats"),
    (bad(actions=[-1, -1, -2, -1]), ActionError, "action -1 at step 0 is negative"),
    (bad(actions=["left", "right", "left", "left"]), ShapeError, r"actions is <U5, text; .*np.unique\(actions"),
    (bad(actions=[0, 0, 0, 1], action_size="2"), ConfigError, "action_size is '2'; it must be a positive number"),
    (bad(action_space="discrete"), ActionError, "action_space is 'discrete'; it must be an ActionSpace"),
    (bad(transition_picker=3), ConfigError, "transition_picker is 3; it must be a TransitionPickerProtocol"),
    (bad(trajectory_slicer=BasicTrajectorySlicer), ConfigError, r"give an object, BasicTrajectorySlicer\(…\)"),
    (bad(actions=[0, 3, 0, 1], action_size=3), ActionError, r"outside 0 … 2"),
    (bad(actions=[0, 10**9, 0, 1]), ActionError, "action is 1000000000, but only 3 values .*action_size=1000000001"),
    (bad(actions=np.zeros((4, 2), int)), ActionError, "integers of shape"),
    (bad(actions=[0, 0.5, 0, 1], action_space=ActionSpace.DISCRETE), ActionError, "0.5"),
    (bad(actions=np.zeros((4, 2)), action_space=ActionSpace.DISCRETE), ActionError, r"\(4, 2\)"),
    (bad(action_space=ActionSpace.BOTH), ActionError, "BOTH"),
    (bad(actions=np.zeros((4, 2, 2))), ShapeError, r"\(4, 2, 2\)"),
    (bad(action_size=7), ShapeError, "action_size=7"),
    (bad(next_observations=np.zeros((4, 3))), ShapeError, "next_observations"),
    (bad(next_observations=np.zeros((4, 2))), DataError, r"next_observations\[0\]"),
    (bad(storage="cuda:77"), ConfigError, "cuda:77"),
    (bad(storage=7), ConfigError, "storage is 7; it must be 'memory'"),
    (bad(episode_ids=[0, 0, 0]), ShapeError, "episode_ids 3"),
    (bad(episode_ids=np.zeros((4, 2))), ShapeError, r"episode_ids is \(4, 2\)"),
    (bad(episode_ids=[0, 1, 0, 0]), DataError, r"episode_ids\[2\] is 0 again.*sort"),
    (bad(episode_ids=list("abba")), DataError, r"episode_ids\[3\] is a again"),
    (bad(episode_ids=[0, np.nan, 1, 1]), DataError, r"episode_ids\[1\] is nan"),
    (bad(episode_ids=["a", "a", None, "b"]), DataError, r"episode_ids\[2\] is None"),
    (bad(episode_ids=[0, 0, 1, 1], terminals=[1, 0, 0, 1]), DataError, r"terminals\[0\] is 1, but episode_ids\[1\]"),
    (bad(episode_ids=[0, 0, 1, 1], timeouts=[0, 0, 1, 0]), DataError, r"timeouts\[2\] is 1, but episode_ids\[3\]"),
    (bad(episode_ids=[0, 0, 1, 1], terminals=None, timeouts=None), DataError, "terminals are not given"),
    ({name: value[:0] for name, value in steps(4).items()}, EmptyDataError, "0 steps"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=itertools.count())
def test_bad_data_is_refused_with_the_value(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        MDPDataset(**arguments)
    assert type(caught.value) is error
    assert ": " in str(caught.value) or ". " in str(caught.value)  # the remedy


@pytest.mark.parametrize("ids", [[7, 7, 3, 3, 3], list("ggaaa"), [[0.0], [0.0], [2.0], [2.0], [2.0]]])
@pytest.mark.parametrize("marked", [False, True])
def test_an_episode_ends_where_its_id_changes(ids: Any, marked: bool) -> None:
    """Episodes without a mark at the end are truncated, and not glued together."""
    ends = {"terminals": [0, 1, 0, 0, 0] if marked else np.zeros(5), "timeouts": None}
    data = MDPDataset(**{**steps(5), **ends}, episode_ids=ids)
    first, second = data.episodes
    assert (first.size(), first.terminated, first.truncated) == (2, marked, not marked)
    assert (second.size(), second.terminated, second.truncated) == (3, False, True)
    assert data.transition_count == 3 + marked  # the observation after a cut is not known
    known = MDPDataset(**{**steps(5), **ends}, episode_ids=ids, next_observations=np.arange(2, 12).reshape(5, 2))
    assert known.transition_count == 5
    assert known.episodes[1].final_observation.tolist() == [10, 11]


def log_of(lengths: list[int], last: int = 0, **options: Any) -> MDPDataset:
    """Terminals after episodes of these lengths, and ``last`` steps without one."""
    count, ends = sum(lengths) + last, np.cumsum(lengths) - 1
    terminals = np.isin(np.arange(count), ends)
    return MDPDataset(np.zeros((count, 1)), np.zeros((count, 1)), np.zeros(count), terminals, **options)


LIMITED = [([20] * 10, 0), ([200] * 10, 77), ([500] * 27 + list(range(10, 216)), 3)]


@pytest.mark.parametrize(("lengths", "last"), LIMITED)
def test_a_time_limit_among_terminals_is_noticed(lengths: list[int], last: int) -> None:
    with pytest.warns(UserWarning, match=f"terminals come after exactly {lengths[0]} steps.*timeouts="):
        log_of(lengths, last)


@pytest.mark.parametrize(
    ("lengths", "last", "options"),
    [
        ([200] * 9, 0, {}),  # too few to tell
        ([1] * 50, 0, {}),  # bandits
        ([19] * 50, 0, {}),
        ([200] * 20, 300, {}),  # an episode went on for longer
        ([200] * 20 + [201], 0, {}),
        ([14] * 30 + [78] * 26, 0, {}),  # other lengths are as frequent
        ([200] * 20, 0, {"timeouts": np.zeros(4000)}),  # which says that there is no limit
    ],
)
def test_ordinary_terminals_are_no_time_limit(lengths: list[int], last: int, options: dict[str, Any]) -> None:
    assert log_of(lengths, last, **options).size() == len(lengths) + bool(last)


@pytest.mark.parametrize("name", ["cartpole-random", "cartpole-replay", "pendulum-random", "pendulum-replay"])
@pytest.mark.parametrize("merged", [False, True])
def test_time_limits_of_shipped_data_are_distinguished(name: str, merged: bool) -> None:
    """Terminals as they are give no warning; `done` that includes the time limit gives one where there is a limit."""
    episodes = get_dataset(name)[0].episodes
    lengths = [episode.size() for episode in episodes]
    terminals = np.zeros(sum(lengths))
    terminals[np.cumsum(lengths) - 1] = [episode.terminated or merged for episode in episodes]
    column = np.zeros((len(terminals), 1))
    ids = np.repeat(np.arange(len(lengths)), lengths)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MDPDataset(column, column, column, terminals, episode_ids=ids)
    assert len(caught) == (merged and name != "cartpole-random")


A, B = np.arange(10.0).reshape(5, 2), np.arange(60.0).reshape(5, 3, 2, 2)
AFTER = [A + 2, B + 12]


@pytest.mark.parametrize("known", [False, True])
def test_parts_of_tuples_may_be_a_list(known: bool) -> None:
    """As d3rlpy has them."""
    rest: dict[str, Any] = {"actions": np.arange(5) % 2, "rewards": np.arange(5.0), "terminals": [0, 0, 1, 0, 0]}
    after: Any = AFTER if known else None
    as_list = MDPDataset([A, B], **rest, next_observations=after)
    as_tuple = MDPDataset((A, B), **rest, next_observations=tuple(after) if known else None)
    assert as_list.observation_shape == as_tuple.observation_shape == ((2,), (3, 2, 2))
    assert as_list.transition_count == as_tuple.transition_count == 4 + known
    for one, other in zip(as_list.episodes, as_tuple.episodes, strict=True):
        for a, b in zip(one.observations, other.observations, strict=True):
            np.testing.assert_array_equal(a, b)
        assert (one.final_observation is None) == (other.final_observation is None)


def test_episodes_of_lists_of_parts() -> None:
    zeros = np.zeros((5, 1))
    for final in ([A[0], B[0]], None):
        episode = Episode([A, B], zeros, zeros, False, truncated=True, final_observation=final)
        assert episode.observation_signature.shape == [(2,), (3, 2, 2)]
        assert final is None or isinstance(episode.final_observation, tuple)
    longer = Episode([A, B], zeros[:4], zeros[:4], False)  # a row more: the final observation
    assert longer.size() == 4 and longer.final_observation[1].tolist() == B[4].tolist()  # type: ignore[index]
    rows = Episode([*A], zeros, zeros, True)  # an item for each step
    assert rows.observation_signature.shape == [(2,)]
    assert Episode([*np.eye(5)], zeros, zeros, True).observation_signature.shape == [(5,)]
    assert Episode([[0.0, 1.0]] * 5, zeros, zeros, True).observation_signature.shape == [(2,)]
    few = Episode([A[:2], B[:2]], zeros[:2], zeros[:2], True)  # two parts and two steps, but no one array
    assert few.observation_signature.shape == [(2,), (3, 2, 2)]
    with pytest.raises(ShapeError, match=r"list of 2 arrays of shape \(2, 2\) for 2 steps.*give a tuple of the parts"):
        Episode([A[:2], A[:2]], zeros[:2], zeros[:2], True)
    with pytest.raises(ShapeError, match=r"observations\[0\] 5, observations\[1\] 3"):
        Episode([A, B[:3]], zeros, zeros, True)
    with pytest.raises(ShapeError, match="list of 2 arrays"):
        MDPDataset([A[:2], A[:2]], zeros[:2], zeros[:2], [0, 1], action_space=ActionSpace.CONTINUOUS)


def test_the_range_of_float32_and_many_actions_are_taken() -> None:
    largest = np.float64(np.finfo(np.float32).max)
    dataset = MDPDataset(np.array([[largest], [-largest]]), [0, 10**9], [0.0, largest], [0, 1], action_size=10**9 + 1)
    assert dataset.dataset_info.action_size == 10**9 + 1
    assert np.isfinite(dataset.sample_transition_batch(8).rewards).all()
    assert detect_action_size(np.array([[999_999]]), ActionSpace.DISCRETE) == 1_000_000


def test_episodes_check_themselves() -> None:
    with pytest.raises(ShapeError, match="rewards 3"):
        Episode(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(3), True)
    with pytest.raises(EmptyDataError):
        Episode(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros(0), True)
    full = Episode(np.arange(5.0)[:, None], np.zeros((4, 1)), np.ones(4), False, truncated=True)  # T + 1 observations
    assert full.final_observation == [4.0]
    assert full.size() == full.transition_count == 4
    assert full.compute_return() == 4
    again = Episode.deserialize(full.serialize())
    assert again.final_observation == [4.0]
    assert again.truncated
    with pytest.raises(NonFiniteError):
        ReplayBuffer(InfiniteBuffer(), episodes=[Episode(NAN, np.zeros((4, 1)), np.zeros(4), True)])
    with pytest.raises(EmptyDataError):
        DatasetInfo.from_episodes([])


def test_small_helpers() -> None:
    assert create_zero_observation((np.ones(2), np.ones(1, np.uint8)))[1].dtype == np.uint8
    assert batch_pad_array(np.ones((2, 1), np.int32), 1).tolist() == [[0], [1], [1]]
    assert batch_pad_observations({"a": np.ones((1, 2))}, 2)["a"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert detect_action_space(np.zeros((3, 2))) is ActionSpace.CONTINUOUS
    assert detect_action_size(np.array([0, 4]), ActionSpace.DISCRETE) == 5
    assert Signature([np.float32, "f4"], [[1], (2, 3)]) == Signature([np.dtype("f4")] * 2, [(1,), (2, 3)])
    dataset = MDPDataset(**steps(4))
    assert DatasetInfo.from_episodes(dataset.episodes) == dataset.dataset_info
    assert len(all_rows(dataset)) == 3
    assert "4 steps" in repr(dataset)
    assert "4 steps" in repr(dataset.episodes)
    assert [episode.size() for episode in dataset.episodes + dataset.episodes] == [4, 4]
    with pytest.raises(IndexError):
        dataset.episodes[1]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([[1], [1, 2], [2], [2]], ShapeError, "episode_ids cannot be made one array"),
        (np.zeros(4, [("day", int), ("run", int)]), ShapeError, "episode_ids have the fields"),
        (np.ma.masked_array([1, 1, 2, 2], [0, 0, 1, 0]), DataError, r"episode_ids\[2\]"),
    ],
)
def test_odd_episode_ids(ids: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MDPDataset(np.zeros((4, 2)), np.zeros(4, int), np.zeros(4), np.zeros(4), action_size=2, episode_ids=ids)


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
@pytest.mark.parametrize("space", [None, ActionSpace.DISCRETE, ActionSpace.CONTINUOUS])
def test_one_hot_actions_are_noticed(kind: Any, space: Any) -> None:
    actions = np.eye(4)[np.arange(8) % 4].astype(kind)
    rest: Any = (np.zeros(8), np.arange(8) % 4 == 3)
    says = r"They look one-hot: give np.argmax\(actions, axis=1\)"
    if space is ActionSpace.CONTINUOUS:
        assert MDPDataset(np.zeros((8, 2)), actions, *rest, action_space=space).transition_count == 8
    elif space is None and kind is np.float32:
        with pytest.warns(OneHotActionWarning, match=says):
            MDPDataset(np.zeros((8, 2)), actions, *rest)
    else:
        with pytest.raises(ActionError, match=says):
            MDPDataset(np.zeros((8, 2)), actions, *rest, action_space=space)
    right = MDPDataset(np.zeros((8, 2)), np.argmax(actions, axis=1), *rest)
    assert right.dataset_info.action_size == 4
