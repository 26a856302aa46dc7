"""Buffers of whole episodes only (``write_at_termination``), and buffers that take the shapes of their first data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import birl
from birl.dataset import (
    Episode,
    EpisodicFIFOBuffer,
    FIFOBuffer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    MixedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.errors import ActionError, ConfigError, DataError, ShapeError

QUIET: Any = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}


def episode(length: int, terminated: bool = True, value: float = 0.0) -> Episode:
    steps = np.arange(length)
    return Episode(np.full((length, 2), value, np.float32) + steps[:, None], steps % 3, steps + value, terminated)


class Steps(gymnasium.Env[Any, Any]):
    """Episodes of five steps, every other one cut, whose observations count all steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.count, self.episode = 0, 0

    def _observation(self) -> Any:
        return np.array([self.count], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count += 1
        self.episode, self.left = self.episode + 1, 5
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.count, self.left = self.count + 1, self.left - 1
        ends, cut = self.left == 0, self.episode % 2 == 0
        return self._observation(), float(self.count), ends and not cut, ends and cut, {}


def contents(buffer: ReplayBuffer) -> list[Any]:
    return [
        [
            *(np.asarray(x).tolist() for x in (each.observations, each.actions, each.rewards, each.final_observation)),
            each.terminated,
            {name: column.tolist() for name, column in (each.extra or {}).items()},
        ]
        for each in buffer.episodes
    ]


def write(buffer: ReplayBuffer, *, lanes: int = 1) -> None:
    """Steps one by one and together, of two lanes in turn if there are two."""
    for step in range(7):
        buffer.append([step, 0.0], step % 3, 1.0, extra={"p": 0.5})
    buffer.clip_episode(True)
    for step in range(3):
        buffer.append([step, 1.0], 0, 2.0)
    buffer.clip_episode(False, final_observation=[9.0, 9.0])
    for step in range(4):
        buffer.append([step, 2.0], 0, 3.0)
    buffer.clip_episode(False)
    for step in range(6):
        x, following = np.full((lanes, 2), step), np.full((lanes, 2), step + 1)
        x[:, 1] = following[:, 1] = np.arange(lanes)
        ends = np.arange(lanes) + 4 == step
        buffer.append_batch(x, np.zeros(lanes), np.ones(lanes), ends, np.zeros(lanes), following)
    for lane in range(lanes):
        buffer.clip_episode(False, lane=lane)


@pytest.mark.filterwarnings("ignore::birl.errors.MissingColumnWarning")
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("retention", [InfiniteBuffer, lambda: FIFOBuffer(12), lambda: EpisodicFIFOBuffer(12)])
def test_whole_episodes_are_the_same_episodes(lanes: int, retention: Any) -> None:
    """What is stored at the end is what would have been stored step by step."""
    both = []
    for late in (False, True):
        buffer = empty(retention(), lanes, late)
        write(buffer, lanes=lanes)
        both.append(buffer)
    assert both[0].transition_count == both[1].transition_count
    if lanes == 1 or both[0].buffer.limit is None:
        assert contents(both[0]) == contents(both[1])
    else:  # lanes evict their episodes in the order in which these end
        kept = empty(InfiniteBuffer(), lanes, False)
        write(kept, lanes=lanes)
        assert both[1].step_count == both[0].step_count
        assert all(each in contents(kept) for each in contents(both[1]) if not each[1][0])


def empty(retention: Any, lanes: int, late: bool) -> ReplayBuffer:
    first = episode(3)
    signatures = {
        "observation_signature": first.observation_signature,
        "action_signature": birl.dataset.Signature([np.dtype(np.int64)], [(1,)]),
    }
    return ReplayBuffer(retention, action_size=3, lanes=lanes, write_at_termination=late, **signatures)


def test_running_episodes_are_not_in_the_buffer() -> None:
    buffer = create_infinite_replay_buffer([episode(3)], write_at_termination=True)
    array = np.zeros(2, np.float32)
    for step in range(4):
        array[:] = step  # the caller's array is copied
        buffer.append(array, 0, 1.0)
        assert (buffer.step_count, buffer.transition_count, buffer.size()) == (3, 3, 1)
    with pytest.raises(DataError, match="an episode is running in lane 0"):
        buffer.append_episode(episode(2))
    with pytest.raises(ShapeError, match="observation"):
        buffer.append(np.zeros(5), 0, 1.0)
    with pytest.raises(ActionError):
        buffer.append(array, 7, 1.0)
    buffer.clip_episode(True)
    buffer.clip_episode(True)  # nothing is running
    assert (buffer.step_count, buffer.transition_count, buffer.size()) == (7, 7, 2)
    np.testing.assert_array_equal(buffer.episodes[1].observations[:, 0], np.arange(4))


def test_arrays_that_the_caller_reuses_are_copied() -> None:
    buffer = create_infinite_replay_buffer([episode(3)], write_at_termination=True)
    x, following, noise = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    for step in range(4):
        x[:], following[:], noise[:] = step, step + 1, step
        extra = {"noise": noise}
        buffer.append_batch(x, np.zeros(1, np.int64), np.ones(1), [False], [step == 3], following, extra)
        following[:] = x[:] = noise[:] = -1
    (last,) = buffer.episodes[1:]
    np.testing.assert_array_equal(last.observations[:, 0], np.arange(4))
    np.testing.assert_array_equal((last.extra or {})["noise"], np.arange(4))
    np.testing.assert_array_equal(last.final_observation, [4, 4])


def test_masked_rows_and_repeated_lanes_are_held() -> None:
    buffers = [empty(InfiniteBuffer(), 2, late) for late in (False, True)]
    lanes, rows = np.array([0, 1, 0, 1, 0, 1]), np.arange(6)
    x = np.stack([rows, rows], -1).astype(np.float32)
    for buffer in buffers:
        ends = rows >= 4
        mask = rows != 2
        buffer.append_batch(x, rows % 3, rows, ends & (rows == 4), ends & (rows == 5), x + 2, mask=mask, lanes=lanes)
    assert contents(buffers[0]) == contents(buffers[1])
    assert buffers[1].size() == 2


def test_an_online_run_learns_from_whole_episodes_and_is_resumed(tmp_path: Path) -> None:
    """A checkpoint in the middle of an episode holds its steps: the resumed run has the same weights, bit for bit."""

    def run(folder: str, *steps: int) -> Any:
        for n_steps in steps:
            birl.seed(4)
            env, seen = gymnasium.make("CartPole-v1"), list[int]()
            buffer = create_fifo_replay_buffer(1000, env=env, write_at_termination=True)
            encoder = birl.models.VectorEncoderFactory([4])
            dqn = birl.algos.DQNConfig(batch_size=4, encoder_factory=encoder, compile_graph=False).create()

            def note(*_: object, buffer: ReplayBuffer = buffer, seen: list[int] = seen) -> None:
                seen.append(buffer.step_count)

            where: Any = {"checkpoint": tmp_path / folder, "seed": 1, "callback": note}
            dqn.fit_online(env, buffer, n_steps=n_steps, n_steps_per_epoch=10, **where, **QUIET)
        return dqn, buffer, seen

    dqn, buffer, seen = run("whole", 70)
    ends = np.cumsum([each.size() for each in buffer.episodes])
    assert len(ends) > 2 and set(seen) <= {0, *ends[:-1].tolist()} and dqn.grad_step > 20
    assert buffer.step_count == 70  # the end of the run cuts the last episode
    for stop in (30, 40):
        again, resumed, _ = run(f"broken {stop}", stop, 70)
        assert again.grad_step == dqn.grad_step and contents(resumed)[-1] == contents(buffer)[-1]
        for name, tensor in dqn.nets.state_dict().items():
            assert torch.equal(tensor, again.nets.state_dict()[name])


def test_held_steps_are_part_of_the_state() -> None:
    first, second = (create_infinite_replay_buffer([episode(3)], write_at_termination=True) for _ in range(2))
    for step in range(2):
        first.append(np.full(2, step), 0, 1.0)
    second.append(np.full(2, 8.0), 0, 1.0)
    second.set_state(first.get_state())
    for buffer in (first, second):
        buffer.append(np.full(2, 2.0), 0, 1.0)
        buffer.clip_episode(False, final_observation=np.full(2, 3.0))
    assert contents(first) == contents(second)
    second.set_state(create_infinite_replay_buffer([episode(3)]).get_state())
    second.append_episode(episode(2))  # nothing is running


def test_mixtures_and_samplers_take_buffers_of_whole_episodes() -> None:
    data = create_infinite_replay_buffer([episode(20)])
    buffer = create_fifo_replay_buffer(100, [episode(3)], write_at_termination=True, sampler=PrioritizedSampler())
    mixed = MixedReplayBuffer(buffer, data, 0.5)
    for step in range(5):
        mixed.append(np.full(2, 100 + step), 0, 1.0)
        assert mixed.sample_transition_batch(32).observations.max() < 100
    mixed.clip_episode(True)
    assert mixed.sample_transition_batch(64).observations.max() >= 100


# -- shapes that the first data determine ----------------------------------------------------------------------------


def test_the_first_episode_determines_the_shapes() -> None:
    buffer = create_fifo_replay_buffer(4)
    assert (buffer.size(), buffer.transition_count, buffer.step_count, list(buffer.episodes)) == (0, 0, 0, [])
    assert repr(copy.deepcopy(buffer)) == "<ReplayBuffer: 0 episodes, 0 steps, 0 transitions>"
    for each in (episode(3), episode(2, terminated=False, value=5.0)):
        buffer.append_episode(each)
    assert buffer.step_count == 4 and buffer.buffer.limit == 4 and len(buffer.buffer) == buffer.transition_count
    assert buffer.dataset_info.action_size == 3 and buffer.observation_shape == (2,)
    buffer.append(np.zeros(2), 1, 0.0)


def test_episodes_of_a_dataset_bring_its_spaces() -> None:
    data = MDPDataset(np.zeros((20, 3)), np.arange(20) % 7, np.zeros(20), np.arange(20) % 2 == 1)
    buffer = create_fifo_replay_buffer(1000)
    for each in data.episodes:
        buffer.append_episode(each)
    assert buffer.dataset_info.action_size == 7 and buffer.transition_count == 20


def test_all_arguments_of_a_buffer_hold_for_its_first_episode() -> None:
    picker = FrameStackTransitionPicker(2)
    buffer = create_infinite_replay_buffer(
        transition_picker=picker, action_size=9, sampler=PrioritizedSampler(), write_at_termination=True
    )
    assert buffer.transition_picker is picker
    frames = Episode(np.zeros((3, 1, 4, 4), np.uint8), np.arange(3), np.ones(3), True)
    buffer.append_episode(frames)
    assert buffer.dataset_info.action_size == 9 and buffer.observation_shape == (2, 4, 4)
    buffer.append(np.zeros((1, 4, 4)), 1, 0.0)
    assert buffer.step_count == 3


def test_other_uses_of_a_buffer_without_shapes_say_what_to_do() -> None:
    buffer = create_fifo_replay_buffer(10)
    uses: list[Any] = [
        lambda: buffer.append(np.zeros(3), 0, 0.0),
        lambda: buffer.append_batch(np.zeros((1, 3)), [0], [0.0], [False], [False], np.zeros((1, 3))),
        lambda: buffer.clip_episode(True),
        lambda: buffer.sample_transition_batch(3),
        lambda: buffer.dataset_info,
        lambda: buffer.get_state(),
        lambda: buffer.append_episode(episode(3), lane=1),
        lambda: birl.algos.DQNConfig().create().build_with_dataset(buffer),
    ]
    for use in uses:
        with pytest.raises(birl.BirlError, match=r"shapes of this replay buffer are not known yet.*append an episode"):
            use()
    with pytest.raises(ConfigError, match="buffer is 10; it must be"):
        ReplayBuffer(10)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="transition_picker is 3"):
        create_fifo_replay_buffer(10, transition_picker=3)  # type: ignore[arg-type]


def test_a_first_episode_that_does_not_fit_leaves_the_buffer_as_it_was() -> None:
    buffer = create_fifo_replay_buffer(10, action_size=2)
    with pytest.raises(ActionError):
        buffer.append_episode(episode(5))
    assert buffer.size() == 0
    buffer.append_episode(episode(2))
    assert buffer.size() == 1


@pytest.mark.parametrize("number", [1, 2])
def test_an_online_run_gives_a_buffer_its_shapes(number: int) -> None:
    env: Any = Steps() if number == 1 else gymnasium.vector.SyncVectorEnv([Steps, Steps])
    buffer = create_fifo_replay_buffer(100)
    dqn = birl.algos.DQNConfig(batch_size=4, encoder_factory=birl.models.VectorEncoderFactory([4])).create()
    dqn.fit_online(env, buffer, n_steps=20, n_steps_per_epoch=10, **QUIET)
    assert buffer.storage.lanes == number and buffer.dataset_info.action_size == 2 and dqn.grad_step > 0
    own = create_fifo_replay_buffer(100)
    agent = dqn.agent(buffer=own, env=Steps())
    agent.act(np.zeros(1, np.float32))
    assert own.observation_shape == (1,)
