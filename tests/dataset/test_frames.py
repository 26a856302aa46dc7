"""Stacked frames of Atari's size: each is stored once, as bytes, for any number of environments."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gymnasium
import numpy as np
import pytest

from birl.algos import DQNConfig
from birl.dataset import (
    Episode,
    FIFOBuffer,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    LastFrameWriterPreprocess,
    MultiStepFrameStackTransitionPicker,
    ReplayBuffer,
    Signature,
)
from birl.envs import FrameStack
from birl.errors import ConfigError
from birl.logging import NoopAdapterFactory
from birl.types import ActionSpace
from tests.tiers import slow_but

SIDE, STACK = 84, 4


class Games:
    """Games whose frames say which they are: the game, and the number of the frame. Episodes have 90 to 130 steps."""

    def __init__(self, n: int) -> None:
        self.n, self.number, self.left = n, np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.stack = np.zeros((n, STACK, SIDE, SIDE), np.uint8)
        self.reset(np.ones(n, bool))

    def reset(self, which: Any) -> None:
        self.stack[which] = 0
        self.left[which] = 90 + (37 * self.number[which] + 11 * np.arange(self.n)[which]) % 41
        self.show(which)

    def show(self, which: Any) -> None:
        self.number[which] += 1
        self.stack[which, :-1] = self.stack[which, 1:]
        newest, number = self.stack[:, -1], self.number
        newest[which, 0, 0] = 1 + np.arange(self.n)[which]
        for byte in range(3):
            newest[which, 0, byte + 1] = (number[which] >> 8 * byte) & 255
        newest[which, 1:] = (number[which] % 251)[:, None, None]

    def step(self) -> tuple[Any, ...]:
        before = self.stack.copy()
        self.left -= 1
        self.show(np.ones(self.n, bool))
        after, over = self.stack.copy(), self.left == 0
        reward = self.number.astype(np.float32)
        self.reset(over)
        return before, reward, over, after


def play(buffer: ReplayBuffer, games: Games, steps: int) -> None:
    for _ in range(steps):
        before, reward, over, after = games.step()
        action = np.zeros((games.n, 1), np.int64)
        cut = over & (reward % 2 == 0)  # stacks must not cross time limits either
        buffer.append_batch(before, action, reward, over & ~cut, cut, after)


def made(limit: int, n: int, picker: Any = None) -> ReplayBuffer:
    return ReplayBuffer(
        FIFOBuffer(limit), picker or FrameStackTransitionPicker(STACK), None, LastFrameWriterPreprocess(),
        observation_signature=Signature([np.uint8], [(1, SIDE, SIDE)]),
        action_signature=Signature([np.int64], [(1,)]),
        action_space=ActionSpace.DISCRETE, action_size=4, lanes=n,
    )  # fmt: skip


def numbers(stacks: Any) -> tuple[Any, Any]:
    """Game and number of each frame ``[B, 4]``, zeros where there is none."""
    head = stacks[:, :, 0, :4].astype(np.int64)
    assert (stacks[:, :, 1:] == (head[..., 1:] @ [1, 256, 65536] % 251)[..., None, None]).all()
    return head[..., 0], head[..., 1:] @ [1, 256, 65536]


def check(buffer: ReplayBuffer, limit: int, n: int, n_steps: int = 1) -> None:
    for _ in range(20):
        batch = buffer.sample_transition_batch(32)
        assert batch.observations.dtype == batch.next_observations.dtype == np.uint8
        (game, now), (_, after) = numbers(batch.observations), numbers(batch.next_observations)
        for row in range(32):
            frames = [number for number in now[row] if number]
            assert frames == list(range(frames[0], frames[-1] + 1)) and len(set(game[row][game[row] > 0])) == 1
            following = [number for number in after[row] if number]
            steps = int(batch.intervals[row, 0])
            assert following == [*frames, *range(frames[-1] + 1, frames[-1] + steps + 1)][-STACK:]
            if n_steps == 1:
                assert batch.rewards[row, 0] == frames[-1] + 1
    assert limit - n <= buffer.step_count <= limit + n


@pytest.mark.parametrize("n", slow_but([3], [1, 3, 8]))
def test_a_step_takes_the_bytes_of_one_frame(n: int) -> None:
    limit = 4000
    buffer, games = made(limit, n), Games(n)
    play(buffer, games, 3 * limit // n)
    check(buffer, limit, n)
    assert buffer.nbytes / limit <= 7.1 * 1024 + 8 * n * 7069 / limit  # eight rows to spare for each environment
    assert buffer.nbytes / limit >= SIDE * SIDE


def test_several_steps_between_stacks_take_no_more() -> None:
    buffer, games = made(1000, 2, MultiStepFrameStackTransitionPicker(STACK, 3, 0.99)), Games(2)
    play(buffer, games, 900)
    check(buffer, 1000, 2, 3)


def test_a_buffer_that_grows_takes_the_bytes_of_both_arrays_and_no_more() -> None:
    buffer, games = made(2000, 2), Games(2)
    play(buffer, games, 500)
    tracemalloc.start()
    buffer.storage.resize(2 * buffer.storage.capacity)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert buffer.nbytes > 2**23 and most < buffer.nbytes + 2**23
    play(buffer, games, 300)
    check(buffer, 1600, 2)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 7])
def test_over_a_hundred_thousand_steps(n: int) -> None:
    limit = 50_000
    buffer, games = made(limit, n), Games(n)
    play(buffer, games, 100_000 // n)
    check(buffer, limit, n)
    assert buffer.nbytes / limit <= 7.1 * 1024


class Counting(gymnasium.Env[Any, Any]):
    """Environment whose observation is the number of the step, from 1."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.number = 1
        return np.array([1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.number += 1
        return np.array([self.number], np.float32), 1.0, False, False, {}


def first_frames(number: int, length: int) -> list[int]:
    return [max(number - back, 1) for back in range(length - 1, -1, -1)]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("storage", ["memory", "cpu"])
def test_the_first_frame_fills_stacks_as_in_the_environment(lanes: int, storage: str) -> None:
    """The wrapper, one transition, minibatches, n-step minibatches and windows make the same stacks."""
    env = FrameStack(Counting(), STACK, padding_type="reset")
    stack, _ = env.reset()
    acted = [stack.tolist(), *(env.step(0)[0].tolist() for _ in range(6))]
    assert acted == [first_frames(number, STACK) for number in range(1, 8)]

    def episode() -> Episode:
        frames = np.arange(1, 8, dtype=np.float32)[:, None]
        return Episode(frames, np.zeros((7, 1), np.int64), np.arange(1, 8, dtype=np.float32)[:, None], True)

    for picker in (
        FrameStackTransitionPicker(STACK, padding_type="reset"),
        MultiStepFrameStackTransitionPicker(STACK, 2, 0.5, padding_type="reset"),
    ):
        slicer = FrameStackTrajectorySlicer(STACK, padding_type="reset")
        buffer = ReplayBuffer(
            InfiniteBuffer(), picker, slicer, episodes=[episode() for _ in range(4)], lanes=lanes, storage=storage
        )
        batch = buffer.sample_transition_batch(64)
        one = buffer.sample_transition()
        observations, following = np.asarray(batch.observations), np.asarray(batch.next_observations)
        for now, after, steps, terminal in zip(
            observations.tolist(), following.tolist(), batch.intervals[:, 0].tolist(), batch.terminals[:, 0].tolist(),
            strict=True,
        ):  # fmt: skip
            assert now == first_frames(int(now[-1]), STACK)
            assert terminal or after == first_frames(int(now[-1] + steps), STACK)
        assert np.asarray(one.observation).tolist() == first_frames(int(one.observation[-1]), STACK)
        windows = buffer.sample_trajectory_batch(16, 3)
        window = buffer.sample_trajectory(3)
        rows = [*zip(np.asarray(windows.observations), np.asarray(windows.masks), strict=True)]
        for stacks, masks in [*rows, (np.asarray(window.observations), np.asarray(window.masks))]:
            for observed, mask in zip(stacks.tolist(), masks.reshape(-1).tolist(), strict=True):
                assert observed == (first_frames(int(observed[-1]), STACK) if mask else [0.0] * STACK)


def test_padding_has_two_types() -> None:
    for make in (FrameStackTransitionPicker, FrameStackTrajectorySlicer):
        with pytest.raises(ConfigError, match="padding_type is 'first'"):
            make(STACK, padding_type="first")


@pytest.mark.parametrize("padding_type", ["zero", "reset"])
@pytest.mark.parametrize("stack", [FrameStack, gymnasium.wrappers.FrameStackObservation, "vector"])
def test_a_picker_that_fills_stacks_otherwise_than_the_environment_is_named(padding_type: str, stack: Any) -> None:
    def make() -> Any:
        wrapper: Any = FrameStack if stack == "vector" else stack
        return gymnasium.wrappers.TimeLimit(wrapper(Counting(), 2, padding_type=padding_type), 5)

    def fit(picker: Any) -> None:
        env = gymnasium.vector.SyncVectorEnv([make]) if stack == "vector" else make()
        limit = FIFOBuffer(100)
        buffer = ReplayBuffer(limit, picker, writer_preprocessor=LastFrameWriterPreprocess(), env=env, lanes=1)
        run = {"n_steps": 12, "n_steps_per_epoch": 12, "show_progress": False, "logger_adapter": NoopAdapterFactory()}
        DQNConfig(batch_size=2).create().fit_online(env, buffer, update_start_step=6, **run)  # type: ignore[arg-type]

    fit(FrameStackTransitionPicker(2, padding_type))
    with pytest.warns(UserWarning, match=f"FrameStack.* fills the stacks .* with padding_type='{padding_type}'"):
        fit(FrameStackTransitionPicker(2, {"zero": "reset", "reset": "zero"}[padding_type]))
