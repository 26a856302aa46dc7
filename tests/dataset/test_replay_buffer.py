"""The replay buffer as loops and users see it: environments, writers, mixing, folders, state."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from data_reference import all_rows

import birl.seeding
from birl.dataset import (
    BasicTransitionPicker,
    BasicWriterPreprocess,
    Episode,
    EpisodicFIFOBuffer,
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    LastFrameWriterPreprocess,
    MDPDataset,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    ReplayBuffer,
    Signature,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.errors import (
    ActionError,
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    EnvironmentMismatchError,
    ForeignFileError,
    MissingColumnWarning,
    NonFiniteError,
    ShapeError,
)
from birl.types import ActionSpace


def episode(length: int, terminated: bool = True, value: float = 0.0) -> Episode:
    return Episode(np.full((length, 3), value, np.float32), np.full((length, 1), 0.5), np.arange(length), terminated)


SIGNATURES = {
    "observation_signature": Signature(shape=[(3,)], dtype=[np.float32]),
    "action_signature": Signature(shape=[(1,)], dtype=[np.float64]),
}


class Env:
    """Only spaces."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


BOX = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


def test_the_documented_ways_to_make_one() -> None:
    env = gymnasium.make("Pendulum-v1")
    buffer = FIFOBuffer(limit=100000)
    first = ReplayBuffer(buffer=buffer, env=env)
    assert first.dataset_info.action_space is ActionSpace.CONTINUOUS
    assert first.dataset_info.observation_signature == Signature(shape=[(3,)], dtype=[np.float32])
    second = ReplayBuffer(buffer=InfiniteBuffer(), episodes=[episode(4), episode(5)])
    assert second.size() == 2
    third = ReplayBuffer(
        buffer=buffer,
        observation_signature=Signature(shape=[(3,)], dtype=[np.float32]),
        action_signature=Signature(shape=[(1,)], dtype=[np.float32]),
        reward_signature=Signature(shape=[(1,)], dtype=[np.float32]),
    )
    third.append(np.zeros(3), 0.5, 1.0)
    third.append(np.zeros(3), [0.5], [1.0])
    assert buffer.transition_count == 1
    assert len(buffer.episodes) == third.size() == 1
    assert create_infinite_replay_buffer(env=gymnasium.make("CartPole-v1")).dataset_info.action_size == 2
    with pytest.raises(ConfigError, match="action_signature is None.*give both"):
        ReplayBuffer(InfiniteBuffer(), observation_signature=Signature([np.float32], [(3,)]))
    with pytest.raises(ConfigError, match="action_size"):
        discrete = Signature([np.int64], [(1,)])
        ReplayBuffer(InfiniteBuffer(), observation_signature=Signature([np.float32], [(3,)]), action_signature=discrete)
    with pytest.raises(ConfigError, match="InfiniteBuffer"):
        ReplayBuffer([], env=env)  # type: ignore[arg-type]


def test_spaces() -> None:
    nested = gymnasium.spaces.Dict({"a": BOX, "b": gymnasium.spaces.Tuple((BOX, gymnasium.spaces.Discrete(3)))})
    buffer = create_fifo_replay_buffer(10, env=Env(nested, gymnasium.spaces.Discrete(4)))
    assert buffer.observation_shape == {"a": (3,), "b": ((3,), ())}
    assert buffer.dataset_info.action_size == 4
    observation = nested.sample()
    buffer.append(observation, np.int64(3), 1)
    buffer.clip_episode(False, final_observation=nested.sample())
    np.testing.assert_array_equal(buffer.sample_transition().observation["a"], observation["a"])
    for space in (gymnasium.spaces.Text(3), gymnasium.spaces.Tuple((BOX, gymnasium.spaces.Text(3)))):
        with pytest.raises(ActionError, match="wrap"):
            create_fifo_replay_buffer(10, env=Env(BOX, space))
    with pytest.raises(EnvironmentMismatchError, match="the observation space is Text"):
        create_fifo_replay_buffer(10, env=Env(gymnasium.spaces.Text(3), gymnasium.spaces.Discrete(2)))


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        ((np.zeros(2), 0.0, 1.0), ShapeError, r"shape \(2,\); it must be float32 of shape \(3,\)"),
        ((np.full(3, np.nan), 0.0, 1.0), NonFiniteError, r"observation\[0, 0\] is nan"),
        ((np.zeros(3), [0.0, 1.0], 1.0), ShapeError, "action has shape"),
        ((np.zeros(3), np.inf, 1.0), NonFiniteError, "action"),
        ((np.zeros(3), 0.0, np.nan), NonFiniteError, "reward"),
        ((np.zeros(3), 0.0, 1e300), NonFiniteError, r"reward\[0, 0\] is 1e\+300"),
        ((np.array([0, -1e39, 0]), 0.0, 1.0), NonFiniteError, r"observation\[0, 1\] is -1e\+39; .*float32"),
        ((np.zeros(3), 0.0, [1.0, 2.0]), ShapeError, "reward has shape"),
        (((np.zeros(3),), 0.0, 1.0), ShapeError, "observation"),
    ],
)
def test_a_bad_step_is_refused_and_nothing_is_stored(step: Any, error: type[Exception], message: str) -> None:
    buffer = create_fifo_replay_buffer(10, env=Env(BOX, gymnasium.spaces.Box(-1, 1, (1,), np.float32)))
    buffer.append(np.zeros(3), 0.0, 1.0)
    with pytest.raises(error, match=message):
        buffer.append(*step, extra={"log_prob": 1.0})
    assert buffer.step_count == 1
    assert buffer.storage.extra_names == []


def test_bad_calls() -> None:
    buffer = create_fifo_replay_buffer(
        10, env=Env(gymnasium.spaces.Box(0, 255, (1,), np.uint8), gymnasium.spaces.Discrete(2))
    )
    with pytest.raises(ActionError, match="outside 0 … 1"):
        buffer.append([1], 2, 0.0)
    with pytest.raises(ShapeError, match="without loss"):
        buffer.append([300], 1, 0.0)
    with pytest.raises(ShapeError, match="without loss"):
        buffer.append([1], 0.5, 0.0)
    with pytest.raises(ShapeError, match="lane=1"):
        buffer.append([1], 1, 0.0, lane=1)
    buffer.clip_episode(True)  # nothing is running: nothing happens
    assert buffer.size() == 0
    buffer.append([1], 1, 0.0)
    with pytest.raises(DataError, match="clip_episode"):
        buffer.append_episode(Episode(np.zeros((2, 1), np.uint8), [0, 1], [0, 1], True))
    with pytest.raises(ShapeError, match="3 steps for 1 lanes: give one row for each"):
        buffer.append_batch(np.zeros((3, 1)), [0] * 3, [0] * 3, [0] * 3, [0] * 3, np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"extra\['x'\] has shape \(2,\) for 1 steps: give one row per step"):
        buffer.append_batch([[1]], [0], [0], [0], [0], [[1]], {"x": np.zeros(2)})
    with pytest.raises(ConfigError, match="limit is 2; it must be an int >= 4 or None: at least 1 step for each lane"):
        create_fifo_replay_buffer(2, env=gymnasium.make("CartPole-v1"), lanes=4)


def test_steps_of_some_lanes() -> None:
    """Rows go to the lanes that they name, in any order; the others are as they were."""
    buffer = create_fifo_replay_buffer(100, env=gymnasium.make("CartPole-v1"), lanes=3)

    def append(rewards: list[float], lanes: list[int], **options: Any) -> None:
        rows, off = np.array(rewards, np.float32), np.zeros(len(rewards), bool)
        observation = np.tile(rows[:, None], 4)
        buffer.append_batch(observation, [0] * len(rows), rows, off, off, observation + 10, lanes=lanes, **options)

    append([1, 2], [2, 0])
    append([11], [2])
    append([5, 12], [1, 0], mask=[False, True])
    for lane in (0, 2):
        buffer.clip_episode(False, lane=lane)
    assert buffer.storage.steps.tolist() == [2, 0, 2]
    assert [episode.rewards[:, 0].tolist() for episode in buffer.episodes] == [[2, 12], [1, 11]]
    with pytest.raises(ShapeError, match="2 steps for 1 lanes: give one row for each"):
        buffer.append_batch(np.zeros((2, 4)), [0, 0], [0, 0], [0, 0], [0, 0], np.zeros((2, 4)), lanes=[1])
    with pytest.raises(ShapeError, match="lane=3, this buffer has lanes 0 … 2"):
        append([1], [3])
    append([], [])
    assert buffer.step_count == 4


def test_actions_of_the_wrong_order_are_refused() -> None:
    """As many numbers are not enough: two actions of three numbers are not three of two."""
    episode = Episode(np.zeros((1, 4), np.float32), np.zeros((1, 2), np.float32), [0.0], True)
    buffer = create_fifo_replay_buffer(100, [episode])
    with pytest.raises(ShapeError, match=r"action has shape \(2, 3\); it must have \(3, 2\)"):
        off = np.zeros(3, bool)
        buffer.append_batch(np.zeros((3, 4)), np.zeros((2, 3)), off, off, off, np.zeros((3, 4)), lanes=[0, 0, 0])


def test_what_is_refused_leaves_a_folder_as_it_is(tmp_path: Path) -> None:
    """No buffer has started to write, so another one may."""
    env = gymnasium.make("CartPole-v1")
    buffer = create_fifo_replay_buffer(100, env=env, storage=str(tmp_path / "kept"))
    buffer.append(np.zeros(4, np.float32), 0, 1.0)
    buffer.clip_episode(True)
    buffer.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir() if path.is_file()}
    reopened = ReplayBuffer.open(tmp_path / "kept")
    with pytest.raises(ActionError):
        reopened.append(np.zeros(4, np.float32), 9, 1.0)
    with pytest.raises(ActionError):
        reopened.append_batch(np.zeros((1, 4)), [9], [1.0], [False], [False], np.zeros((1, 4)), {"x": [1]})
    with pytest.raises(ActionError):
        reopened.append_episode(Episode(np.zeros((2, 4), np.float32), [0, 9], [0, 1], True))
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir() if path.is_file()} == before


def test_rows_that_do_not_fit_store_nothing() -> None:
    """Neither steps nor columns."""
    buffer = create_fifo_replay_buffer(100, env=gymnasium.make("CartPole-v1"), lanes=3)
    rows, off = np.zeros((2, 4)), np.zeros(2, bool)
    fitting = {"observation": rows, "action": [0, 0], "reward": [0, 0], "terminated": off, "truncated": off}
    fitting |= {"next_observation": rows, "lanes": [0, 1]}
    for wrong, message in (
        ({"lanes": [0.5, 1]}, r"lanes is \[0.5, 1\]; it must be one whole number for each row"),
        ({"lanes": [True, False]}, "one whole number for each row"),
        ({"mask": [True]}, r"mask has shape \(1,\) for 2 steps: give one row per step"),
        ({"mask": True}, r"the shape of mask is \(\); it must be \(N,\)"),
        ({"observation": rows[:1]}, r"observation has shape \(1, 4\) for 2 steps"),
        ({"next_observation": np.zeros((3, 4))}, r"next_observation has shape \(3, 4\) for 2 steps"),
        ({"extra": {"x": [1, 2], "y": [1, 2, 3]}}, r"extra\['y'\] has shape \(3,\) for 2 steps"),
        ({"extra": {"x": 1}}, r"extra\['x'\] has shape \(\) for 2 steps"),
        ({"extra": {"x": ["a", "b"]}}, r"the dtype of extra\['x'\] is <U1, text"),
        ({"extra": [1, 2]}, r"extra is \[1, 2\]; it must be a dict of arrays by name"),
        ({"extra": {"x": [1, 2]}, "mask": np.ones((2, 2), bool)}, r"the shape of mask is \(2, 2\); it must be \(N,\)"),
        ({"mask": [1, 2]}, r"mask\[1\] is 2; it must be 0 or 1"),
        ({"terminated": ["False", "False"]}, "the dtype of terminated is <U5, text; it must be bool"),
        ({"truncated": [0, np.nan]}, r"truncated\[1\] is nan; it must be 0 or 1"),
        ({"truncated": [False]}, r"truncated has shape \(1,\) for 2 steps"),
        ({"action": [[0, 0]]}, r"action has shape \(1, 2\); it must have \(2, 1\)"),
        ({"lanes": [[0], [1, 2]]}, "one whole number for each row"),
        ({"lanes": np.array([2**63, 0], np.uint64)}, "lane=9223372036854775808, this buffer has lanes 0 … 2"),
    ):
        with pytest.raises((ShapeError, DataError), match=message):
            buffer.append_batch(**(fitting | wrong))
        assert (buffer.step_count, sorted(buffer.storage.leaves)) == (0, ["action", "observation", "reward"])
    buffer.append_batch(**fitting)
    assert buffer.storage.steps.tolist() == [1, 1, 0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("storage", ["memory", "folder"])
def test_steps_that_follow_each_other_may_come_at_once(whole: bool, lanes: int, storage: str, tmp_path: Path) -> None:
    """The same is there, and the same is drawn, as if those of different lanes had come at once, turn by turn."""
    generator = np.random.default_rng(lanes)
    retention = EpisodicFIFOBuffer(30) if whole else FIFOBuffer(30)
    one = Signature([np.dtype(np.float32)], [(1,)])
    signatures: dict[str, Any] = {"observation_signature": one, "action_signature": one, "action_size": 1}
    buffers = []
    for name in ("one_by_one", "at_once"):
        birl.seeding.seed(1)
        place = tmp_path / name if storage == "folder" else "memory"
        own = copy.deepcopy(retention)
        buffers.append(ReplayBuffer(own, **signatures, lanes=lanes, storage=place, action_space=ActionSpace.CONTINUOUS))
    one_by_one, at_once = buffers
    for _ in range(40):
        count = int(generator.integers(1, 25))
        rows, to = generator.normal(size=(count, 1)).astype(np.float32), generator.integers(0, lanes, count)
        terminated, truncated = generator.random((2, count)) < 0.1
        truncated &= ~terminated
        given = [rows, rows / 10, rows[:, 0], terminated, truncated, rows + 1]
        mask, turn = generator.random(count) < 0.9, np.array([np.sum(to[:i] == to[i]) for i in range(count)])
        for now in range(turn.max() + 1):
            some = turn == now
            one_by_one.append_batch(*(each[some] for each in given), mask=mask[some], lanes=to[some])  # type: ignore[arg-type]
        at_once.append_batch(*given, mask=mask, lanes=to)  # type: ignore[arg-type]
        counts = [(each.step_count, each.transition_count, each.storage.episode_count) for each in buffers]
        assert counts[0] == counts[1]
        drawn = [each.sample_transition_batch(16) for each in buffers]
        for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
            np.testing.assert_array_equal(getattr(drawn[0], name), getattr(drawn[1], name))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_environments(mode: str) -> None:
    envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    buffer = create_fifo_replay_buffer(500, env=envs)
    assert buffer.storage.lanes == 3
    observation, _ = envs.reset(seed=1)
    envs.action_space.seed(1)
    over, finals, steps = np.zeros(3, bool), 0, 0
    for _ in range(100):
        action = envs.action_space.sample()
        following, reward, terminated, truncated, info = envs.step(action)
        after = following.copy()
        if mode == "SameStep" and "final_obs" in info:
            for lane in np.flatnonzero(terminated | truncated):
                after[lane] = info["final_obs"][lane]
        buffer.append_batch(observation, action, reward, terminated, truncated, after, mask=~over)
        steps += int((~over).sum())
        finals += int(((terminated | truncated) & ~over).sum())
        over = (terminated | truncated) if mode == "NextStep" else np.zeros(3, bool)
        observation = following
    envs.close()
    assert buffer.step_count == buffer.transition_count == steps
    assert sum(episode.terminated for episode in buffer.episodes) == finals > 5
    batch = buffer.transition_picker.batch(buffer.storage, all_rows(buffer))  # type: ignore[attr-defined]
    fell = (np.abs(batch.next_observations[:, 2]) > 0.2095) | (np.abs(batch.next_observations[:, 0]) > 2.4)
    np.testing.assert_array_equal(fell, batch.terminals[:, 0] == 1)
    np.testing.assert_allclose(  # CartPole's own dynamics: a next observation from another episode would not fit
        batch.next_observations[:, 0], batch.observations[:, 0] + 0.02 * batch.observations[:, 1], atol=1e-6
    )


def test_last_frames_are_stored_once() -> None:
    env = Env(gymnasium.spaces.Box(0, 255, (4, 2, 2), np.uint8), gymnasium.spaces.Discrete(2))
    picker = FrameStackTransitionPicker(4)
    buffer = create_fifo_replay_buffer(
        50, transition_picker=picker, writer_preprocessor=LastFrameWriterPreprocess(), env=env
    )
    assert buffer.dataset_info.observation_signature.shape == [(1, 2, 2)]
    assert buffer.observation_shape == (4, 2, 2)
    frames = np.zeros((12, 2, 2), np.uint8) + np.arange(12, dtype=np.uint8)[:, None, None]
    for step in range(3, 8):
        buffer.append(frames[step - 3 : step + 1], 0, float(step))
    buffer.clip_episode(False, final_observation=frames[5:9])
    batch = buffer.sample_transition_batch(60)
    full = batch.rewards[:, 0] >= 6  # four frames are there
    assert batch.observations[full][:, :, 0, 0].tolist() == [[r - 3, r - 2, r - 1, r] for r in batch.rewards[full, 0]]
    assert batch.next_observations[full][:, -1, 0, 0].tolist() == [r + 1 for r in batch.rewards[full, 0]]


def test_action_masks_with_last_frames_stay_whole() -> None:
    frames = gymnasium.spaces.Box(0, 255, (4, 2, 2), np.uint8)
    space = gymnasium.spaces.Dict({"observation": frames, "action_mask": gymnasium.spaces.MultiBinary(3)})
    buffer = create_fifo_replay_buffer(
        50,
        transition_picker=FrameStackTransitionPicker(4),
        writer_preprocessor=LastFrameWriterPreprocess(),
        env=Env(space, gymnasium.spaces.Discrete(3)),
    )
    masks = np.eye(3, dtype=np.int8)[[0, 2, 1]]
    seen = [{"observation": np.full((4, 2, 2), step, np.uint8), "action_mask": mask} for step, mask in enumerate(masks)]
    buffer.append(seen[0], 0, 0.0)
    rows = [{name: part[None] for name, part in each.items()} for each in seen[1:]]
    buffer.append_batch(rows[0], [2], [0.0], [False], [True], rows[1])
    assert buffer.episodes[0].observations["observation"].shape == (2, 1, 2, 2)
    np.testing.assert_array_equal(buffer.episodes[0].observations["action_mask"], masks[:2])
    batch = buffer.sample_transition_batch(20)
    assert batch.observations["observation"].shape == (20, 4, 2, 2)
    newest = batch.next_observations["observation"][:, -1, 0, 0].astype(int)
    np.testing.assert_array_equal(batch.next_observations["action_mask"], masks[newest])


def test_custom_writers_see_every_step() -> None:
    class Halved(BasicWriterPreprocess):
        def process_observation(self, observation: Any) -> Any:
            return observation / 2

        def process_action(self, action: Any) -> Any:
            return -action

        def process_reward(self, reward: Any) -> Any:
            return reward + 1

    envs = gymnasium.make_vec("Pendulum-v1", 2)
    buffer = create_fifo_replay_buffer(50, writer_preprocessor=Halved(), env=envs)
    ones = np.ones((2, 3), np.float32)
    buffer.append_batch(ones, [[1.0], [1.0]], [3, 3], [False, False], [True, True], ones * 4)
    buffer.append(ones[0], np.array([1.0]), 3.0, lane=1)
    buffer.clip_episode(False, final_observation=ones[0] * 4, lane=1)
    batch = buffer.sample_transition_batch(20)
    assert set(np.unique(batch.observations)) == {0.5}
    assert set(np.unique(batch.next_observations)) == {2.0}
    assert set(np.unique(batch.actions)) == {-1.0}
    assert set(np.unique(batch.rewards)) == {4.0}


def test_device_storage_gives_tensors_there() -> None:
    buffer = ReplayBuffer(
        InfiniteBuffer(), MultiStepTransitionPicker(2, 0.9), episodes=[episode(9), episode(3)], storage="cpu"
    )
    for batch in (
        buffer.sample_transition_batch(5),
        buffer.sample_trajectory_batch(5, 4),
        ReplayBuffer(InfiniteBuffer(), episodes=[episode(9)], storage="cpu").sample_sequence_batch(5, 4, 2),
    ):
        for name, value in vars(batch).items():
            assert value is None or isinstance(value, torch.Tensor | int | dict), name
    assert isinstance(buffer.episodes[0].observations, np.ndarray)
    assert isinstance(buffer.sample_transition().observation, np.ndarray)


def test_one_seed_gives_one_sequence_of_draws() -> None:
    draws = []
    for _ in range(2):
        birl.seeding.seed(5)
        buffer = ReplayBuffer(InfiniteBuffer(), episodes=[episode(90)])
        draws.append(buffer.sample_transition_batch(20).rewards)
    np.testing.assert_array_equal(*draws)
    assert len(np.unique(draws[0])) > 5


def test_state_without_contents_is_small_and_continues_the_draws() -> None:
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=[episode(90)])
    state = buffer.get_state(contents=False)
    first = buffer.sample_transition_batch(20).rewards
    buffer.set_state(state)
    np.testing.assert_array_equal(buffer.sample_transition_batch(20).rewards, first)
    assert set(state) == {"generator"}
    other = ReplayBuffer(FIFOBuffer(7), episodes=[episode(90)])
    with pytest.raises(ShapeError, match="limit None"):
        other.set_state(buffer.get_state())


def test_state_survives_an_archive(tmp_path: Path) -> None:
    from birl.files import load_archive, save_archive

    buffer = ReplayBuffer(FIFOBuffer(20), episodes=[episode(9), episode(15, False)])
    buffer.append(np.ones(3), 0.5, 7.0, extra={"state.actor": np.ones(4, np.float32)})
    save_archive(tmp_path / "state", "test", {}, buffer.get_state())
    other = ReplayBuffer(FIFOBuffer(20), episodes=[episode(1)])
    other.set_state(load_archive(tmp_path / "state", "test")[1])
    assert [e.size() for e in other.episodes] == [e.size() for e in buffer.episodes]
    np.testing.assert_array_equal(other.sample_transition_batch(9).rewards, buffer.sample_transition_batch(9).rewards)
    with pytest.warns(MissingColumnWarning, match=r"extra columns state\.actor"):
        other.append(np.ones(3), 0.5, 8.0)
    other.clip_episode(True)
    assert other.episodes[-1].rewards[:, 0].tolist() == [7, 8]


# -- mixing --------------------------------------------------------------------------------------------------------


def test_mixing() -> None:
    online = ReplayBuffer(FIFOBuffer(50), episodes=[episode(9, value=1)])
    logged = ReplayBuffer(InfiniteBuffer(), episodes=[episode(9, value=2), episode(4, value=2)])
    mixed = MixedReplayBuffer(online, logged, 0.25)
    batch = mixed.sample_transition_batch(32)
    assert (batch.observations[:, 0] == 2).sum() == 8
    assert batch.weights.shape == (32, 1)
    assert (mixed.sample_trajectory_batch(32, 1).observations[:, 0, 0] == 2).sum() == 8
    sequences = mixed.sample_sequence_batch(32, 1, 2)
    assert sequences.observations.shape == (3, 32, 3)
    assert (sequences.observations[2, :, 0] == 2).sum() == 8
    assert sequences.burn_in == 2
    singles = np.mean([mixed.sample_transition().observation[0] == 2 for _ in range(400)])
    assert 0.15 < singles < 0.35
    assert mixed.size() == len(mixed.episodes) == 3
    assert mixed.transition_count == mixed.step_count == 22
    mixed.append(np.ones(3), 0.5, 1.0)
    mixed.clip_episode(True)
    assert online.size() == 2
    assert mixed.dataset_info == online.dataset_info
    state = mixed.get_state()
    first = mixed.sample_transition_batch(12).rewards
    mixed.set_state(state)
    np.testing.assert_array_equal(mixed.sample_transition_batch(12).rewards, first)
    assert (MixedReplayBuffer(online, logged, 1.0).sample_transition_batch(5).observations == 2).all()
    assert (MixedReplayBuffer(online, logged, 0.0).sample_transition_batch(5).observations == 1).all()
    with pytest.raises(ConfigError, match="1.5"):
        MixedReplayBuffer(online, logged, 1.5)
    with pytest.raises(ShapeError, match="must agree"):
        MixedReplayBuffer(online, MDPDataset(np.zeros((3, 5)), np.zeros((3, 1)), np.zeros(3), [0, 0, 1]), 0.5)


def test_mixing_begins_before_both_hold_something() -> None:
    empty = ReplayBuffer(FIFOBuffer(50), **SIGNATURES)
    logged = ReplayBuffer(InfiniteBuffer(), episodes=[episode(9, value=2)])
    mixed = MixedReplayBuffer(empty, logged, 0.5)
    for _ in range(2):  # the newest step is no transition until the one after it is known
        assert (mixed.sample_transition_batch(8).observations == 2).all()
        assert (mixed.sample_transition().observation == 2).all()
        mixed.append(np.ones(3), [0.5], 1.0)
    assert ((mixed.sample_transition_batch(8).observations == 2).all(axis=1)).sum() == 4
    assert (MixedReplayBuffer(logged, empty, 0.5).sample_transition_batch(8).observations[:4] == 2).all()
    none = ReplayBuffer(FIFOBuffer(50), **SIGNATURES)
    assert (MixedReplayBuffer(logged, none, 0.5).sample_transition_batch(8).observations == 2).all()
    with pytest.raises(EmptyDataError):
        MixedReplayBuffer(none, logged, 0.0).sample_transition_batch(8)


def test_mixing_wants_the_same_targets() -> None:
    def buffer(picker: Any) -> ReplayBuffer:
        return ReplayBuffer(InfiniteBuffer(), picker, episodes=[episode(9)])

    MixedReplayBuffer(buffer(MultiStepTransitionPicker(3, 0.9)), buffer(MultiStepTransitionPicker(3, 0.9)), 0.5)
    for other in (None, MultiStepTransitionPicker(2, 0.9), MultiStepTransitionPicker(3, 0.99)):
        with pytest.raises(ConfigError, match="3 steps with gamma=0.9.*same transition_picker"):
            MixedReplayBuffer(buffer(MultiStepTransitionPicker(3, 0.9)), buffer(other), 0.5)
    whole = buffer(None)
    with pytest.raises(ConfigError, match="MixedReplayBuffer cannot be mixed"):
        MixedReplayBuffer(whole, MixedReplayBuffer(whole, whole, 0.5), 0.5)  # type: ignore[arg-type]


# -- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    data = MDPDataset(
        np.arange(60.0).reshape(30, 2), np.arange(30) % 3, np.arange(30), np.arange(30) % 7 == 6, storage=folder
    )
    with pytest.raises(ConfigError, match="open"):
        MDPDataset(np.zeros((3, 5)), np.zeros((3, 1)), np.zeros(3), [0, 0, 1], storage=folder)
    data.close()
    again = ReplayBuffer.open(folder, MultiStepTransitionPicker(3, 0.9))
    assert again.dataset_info == data.dataset_info
    for one, other in zip(data.episodes, again.episodes, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        assert (one.terminated, one.truncated) == (other.terminated, other.truncated)
    for step in range(500):  # grows: new files, the old ones go
        again.append([step, step], 1, float(step))
    again.clip_episode(False, final_observation=[-1, -1])
    again.flush()
    third = ReplayBuffer.open(folder)
    assert third.step_count == 530
    assert third.episodes[-1].final_observation.tolist() == [-1, -1]
    assert len(list(folder.glob("column_*.npy"))) == 4
    assert all_rows(third).tolist() == all_rows(again).tolist()


def test_a_folder_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=[episode(5)], storage=tmp_path / "data")
    for step in range(4):
        buffer.append(np.full(3, step), 0.5, float(step))
    state = buffer.get_state()
    assert "columns" not in state["storage"]
    expected = buffer.sample_transition_batch(30).rewards
    for step in range(4, 300):
        buffer.append(np.full(3, step), 0.5, float(step))
    buffer.clip_episode(True)
    assert ReplayBuffer.open(tmp_path / "data").step_count == 305  # also after a kill
    for again in (False, True):
        one = ReplayBuffer.open(tmp_path / "data") if again else buffer
        one.set_state(state)
        assert one.step_count == 9
        assert one.transition_count == 8
        np.testing.assert_array_equal(one.sample_transition_batch(30).rewards, expected)
        one.append(np.full(3, 4), 0.5, 4.0)
        one.clip_episode(True)
        assert one.episodes[1].rewards[:, 0].tolist() == [0, 1, 2, 3, 4]
        one.close()
    with pytest.raises(ConfigError, match="folder"):
        ReplayBuffer(InfiniteBuffer(), episodes=[episode(5)]).set_state(state)


def test_a_ring_on_disk_that_was_cut_off_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    code = (
        "import sys, os, numpy as np\n"
        "from birl.dataset import *\n"
        "e = Episode(np.zeros((9, 3), np.float32), np.zeros((9, 1)), np.zeros(9), True)\n"
        "b = ReplayBuffer(FIFOBuffer(20), episodes=[e], storage=sys.argv[1])\n"
        "b.append_episode(e); b.append_episode(e)\n"
        "if sys.argv[2] == 'saved': b.flush()\n"
        "os._exit(0)\n"
    )
    root = Path(birl.seeding.__file__).parent.parent
    subprocess.run([sys.executable, "-c", code, str(folder), "killed"], check=True, cwd=root)
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "saved"), "saved"], check=True, cwd=root)
    for place in (folder, tmp_path / "saved"):
        again = ReplayBuffer.open(place)
        assert again.step_count == 20
        assert again.buffer.limit == 20
        again.append(np.zeros(3), 0.0, 1.0)
        again.clip_episode(True)
        assert again.step_count == 20


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match=r"storage\.json"):
        ReplayBuffer.open(tmp_path)
    folder = tmp_path / "data"
    ReplayBuffer(InfiniteBuffer(), episodes=[episode(5)], storage=folder)
    index = (folder / "storage.json").read_text()
    column = next(folder.glob("column_0.*.npy"))
    content = column.read_bytes()
    column.write_bytes(content[:-4])
    with pytest.raises(CorruptFileError):
        ReplayBuffer.open(folder)
    column.unlink()
    with pytest.raises(CorruptFileError):
        ReplayBuffer.open(folder)
    column.write_bytes(content)
    for broken in (
        "{",
        "[]",
        index.replace('"capacity": 6', '"capacity": 7'),
        index.replace('"end": [6]', '"end": [600]'),
    ):
        assert broken != index
        (folder / "storage.json").write_text(broken)
        with pytest.raises(CorruptFileError):
            ReplayBuffer.open(folder)
    (folder / "storage.json").write_text(index.replace('"version": 2', '"version": 3'))
    with pytest.raises(ForeignFileError, match="newer"):
        ReplayBuffer.open(folder)
    (folder / "storage.json").write_text(index)
    assert ReplayBuffer.open(folder).size() == 1


def test_the_default_picker_is_the_basic_one() -> None:
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=[episode(5)])
    assert type(buffer.transition_picker) is BasicTransitionPicker
    transition = buffer.sample_transition()
    assert transition.interval == 1
    assert transition.reward_signature == Signature([np.int64], [(1,)])


@pytest.mark.parametrize("mixed", [False, True])
def test_all_transitions_come_once_and_in_order(mixed: bool) -> None:
    logged = ReplayBuffer(InfiniteBuffer(), MultiStepTransitionPicker(2, 0.5), episodes=[episode(1500), episode(3)])
    other = ReplayBuffer(InfiniteBuffer(), MultiStepTransitionPicker(2, 0.5), episodes=[episode(4, terminated=False)])
    data = MixedReplayBuffer(logged, other, 0.5) if mixed else logged
    batches = list(data.all_transitions())
    assert sum(len(batch.rewards) for batch in batches) == data.transition_count == 1503 + 3 * mixed
    rewards = np.concatenate([batch.rewards[:, 0] for batch in batches])
    assert rewards[:3].tolist() == [0.5, 2.0, 3.5]
    assert rewards[1499:1503].tolist() == [1499.0, 0.5, 2.0, 2.0]
    assert (np.diff(np.concatenate([batch.extra["episode"] for batch in batches])) >= 0).all()
    with pytest.raises(EmptyDataError, match="there is no transition"):
        next(ReplayBuffer(InfiniteBuffer(), **SIGNATURES).all_transitions())


def test_steps_of_tuples_may_be_lists() -> None:
    """As d3rlpy's writers take them."""
    signature = Signature([np.dtype(np.float32), np.dtype(np.uint8)], [(2,), (3,)])
    rest: dict[str, Any] = {"observation_signature": signature, "action_signature": SIGNATURES["action_signature"]}
    buffer = ReplayBuffer(InfiniteBuffer(), **rest)
    for step in range(3):
        buffer.append([np.full(2, step, np.float32), np.full(3, step, np.uint8)], np.zeros(1, np.float32), 0.0)
    buffer.clip_episode(False, final_observation=[np.full(2, 3, np.float32), np.full(3, 3, np.uint8)])
    batch = [np.full((1, 2), 7, np.float32), np.full((1, 3), 7, np.uint8)]
    buffer.append_batch(batch, np.zeros((1, 1), np.float32), [0.0], [True], [False], batch)
    assert [episode.observations[1][:, 0].tolist() for episode in buffer.episodes] == [[0, 1, 2], [7]]
    assert buffer.episodes[0].final_observation[1].tolist() == [3, 3, 3]  # type: ignore[index]


def test_writers_and_pickers_of_tuples_may_give_lists() -> None:
    """As d3rlpy's do."""

    class Writer(BasicWriterPreprocess):
        def process_observation(self, observation: Any) -> Any:
            return [part[-1:] for part in observation]

    class Picker:
        def __call__(self, episode: Any, index: int) -> Any:
            one = BasicTransitionPicker()(episode, index)
            return replace(one, observation=[*one.observation], next_observation=[*one.next_observation])

    box = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    env = Env(gymnasium.spaces.Tuple((box, box)), gymnasium.spaces.Discrete(2))
    buffer = ReplayBuffer(InfiniteBuffer(), Picker(), None, Writer(), env=env)
    one, many = [np.arange(2.0), np.arange(2.0) + 3], [np.ones((1, 2)), np.ones((1, 2))]
    buffer.append(one, 0, 0.0)
    buffer.clip_episode(False, final_observation=one)
    buffer.append_batch(many, [1], [0.0], [True], [False], many)
    batch = buffer.sample_transition_batch(16)
    assert buffer.observation_shape == ((1,), (1,))
    assert set(batch.observations[1].ravel().tolist()) == {4, 1}


def test_pickers_find_no_old_actions_behind_the_end_of_an_episode() -> None:
    """In a ring, rows hold what was there before."""

    class Picker(BasicTransitionPicker):
        def __call__(self, episode: Any, index: int) -> Any:
            behind.extend(episode.actions[episode.size() :].ravel().tolist())
            return super().__call__(episode, index)

    behind: list[float] = []
    buffer = ReplayBuffer(FIFOBuffer(20), Picker(), **SIGNATURES)
    for step in range(200):
        buffer.append(np.zeros(3, np.float32), np.full(1, step + 1.0, np.float32), 0.0)
        if step % 7 == 6:
            buffer.clip_episode(False, final_observation=np.zeros(3, np.float32))
    buffer.sample_transition_batch(64)
    assert behind and set(behind) == {0.0}
    assert min(float(buffer.episodes[0].actions.min()), 180) > 170  # which are left as they are


def test_actions_and_rewards_of_a_writer_are_no_trees() -> None:
    class Doubles(BasicWriterPreprocess):
        def process_action(self, action: Any) -> Any:
            return action[0], action[1] * 2, 7.0  # a tuple is an array, too

    buffer = ReplayBuffer(
        InfiniteBuffer(),
        writer_preprocessor=Doubles(),
        observation_signature=Signature((np.dtype(np.float32),), ((2,),)),
        action_signature=Signature((np.dtype(np.float32),), ((3,),)),
        reward_signature=Signature((np.dtype(np.float32),), ((1,),)),
        lanes=2,
    )
    zeros, no = np.zeros((2, 2), np.float32), np.zeros(2, bool)
    buffer.append_batch(zeros, np.array([[1.0, 2.0], [3.0, 4.0]]), (0.5, 1.5), no, no, zeros)
    assert sorted(map(tuple, buffer.storage.columns["action"][:][buffer.storage.columns["action"][:].any(1)])) == [
        (1.0, 4.0, 7.0),
        (3.0, 8.0, 7.0),
    ]


def test_datasets_can_be_pickled() -> None:
    """As arguments of other processes; mirrors stay behind."""
    dataset = MDPDataset(np.ones((20, 2), np.float32), np.arange(20) % 2, np.arange(20.0), np.arange(20) % 10 == 9)
    reader = dataset.placed_for(torch.device("cpu"))
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    copy.append_episode(copy.episodes[0])
    assert reader is not None and (dataset.transition_count, copy.transition_count) == (20, 30)
    assert copy.sample_transition_batch(8).rewards.shape == (8, 1)
