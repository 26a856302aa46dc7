"""Wrappers: images, frames, goals, and real Atari games."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from birl.dataset import FrameStackTransitionPicker, create_infinite_replay_buffer
from birl.envs import (
    Atari,
    AtariPreprocessing,
    ChannelFirst,
    FrameStack,
    GoalConcatWrapper,
    check_environment,
    environment_spec,
    make_atari,
    make_env,
)
from birl.envs.atari import _areas
from birl.errors import ConfigError, EnvironmentMismatchError, MissingExtraError


class Show(gymnasium.Env[Any, Any]):
    """Returns an observation filled with the number of the step."""

    def __init__(self, space: spaces.Space[Any], length: int = 6) -> None:
        self.observation_space, self.action_space, self.length = space, spaces.Discrete(2), length

    def observe(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self.observe(part) for key, part in space.items()}
        return np.full(space.shape, self.time, space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 1
        return self.observe(self.observation_space), {"reset": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observe(self.observation_space), 1.0, False, self.time > self.length, {}


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_channel_first() -> None:
    for shape, expected in (((6, 8, 3), (3, 6, 8)), ((6, 8), (1, 6, 8))):
        env = ChannelFirst(Show(image(*shape)))
        assert env.observation_space == image(*expected)
        assert env.reset()[0].shape == env.step(0)[0].shape == expected
        check_environment(env, 20)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(ChannelFirst(Show(image(2, 4, 3))).observation(pixels)[1], pixels[:, :, 1])
    vector = spaces.Box(0, 1, (4,))
    for space in (vector, image(3, 8, 8), spaces.Dict({"a": vector, "b": image(3, 8, 8)})):  # nothing to move
        with pytest.raises(EnvironmentMismatchError, match="must have images"):
            ChannelFirst(Show(space))


def test_images_among_other_observations_come_channels_first() -> None:
    parts = spaces.Dict({"b": image(6, 8, 3), "a": spaces.Box(0, 9, (4,)), "c": spaces.Box(0, 9, (5, 5))})
    env = ChannelFirst(Show(parts))
    assert environment_spec(env).observation_shape == {"a": (4,), "b": (3, 6, 8), "c": (5, 5)}
    assert env.observation_space.contains(env.reset(seed=0)[0]) and env.observation_space.contains(env.step(0)[0])
    pixels = np.arange(72, dtype=np.uint8).reshape(6, 4, 3)
    pair = ChannelFirst(Show(spaces.Tuple((image(6, 8, 3), spaces.Box(0, 1, (2,))))))
    moved, other = pair.observation((pixels, np.ones(2)))
    assert np.array_equal(moved[2], pixels[:, :, 2]) and other.tolist() == [1, 1]


def test_stacks_of_images_with_channels_last_are_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="channels first: wrap the environment in ChannelFirst first"):
        FrameStack(Show(image(8, 8, 3)), 4)
    assert FrameStack(ChannelFirst(Show(image(8, 8, 3))), 4).observation_space.shape == (12, 8, 8)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4), (5,)])
def test_stacked_frames_equal_those_of_the_picker(shape: tuple[int, ...]) -> None:
    env = FrameStack(Show(image(*shape)), 3)
    single = Show(image(*shape))
    buffer = create_infinite_replay_buffer(env=single, transition_picker=FrameStackTransitionPicker(3))
    single.reset()
    stacked, observation = [env.reset()[0]], single.observe(single.observation_space)
    for _ in range(6):
        buffer.append(observation, 0, 1.0)
        observation = single.step(0)[0]
        stacked.append(env.step(0)[0])
    buffer.clip_episode(False, final_observation=observation)
    assert env.observation_space.shape == buffer.observation_shape
    for index, episode in enumerate([buffer.episodes[0]] * 6):
        transition = buffer.transition_picker(episode, index)
        assert np.array_equal(transition.observation, stacked[index])
        assert np.array_equal(transition.next_observation, stacked[index + 1])
    assert stacked[0].reshape(3, -1)[:, 0].tolist() == [0, 0, 1]
    assert env.reset()[0].reshape(3, -1)[:, 0].tolist() == [0, 0, 1]  # nothing of the episode before
    check_environment(env, 20)


def test_the_first_frame_may_fill_the_stack() -> None:
    env = FrameStack(Show(spaces.Box(1, 9, (2,), np.float32)), 3, padding_type="reset")
    first = env.reset()[0].reshape(3, 2)
    assert np.array_equal(first, np.repeat(first[:1], 3, 0)) and first.any()
    second = env.step(0)[0].reshape(3, 2)
    assert np.array_equal(second[:2], first[:2]) and not np.array_equal(second[2], first[2])
    assert env.observation_space == spaces.Box(1, 9, (6,), np.float32)  # without zeros
    assert np.array_equal(env.reset()[0].reshape(3, 2), first)
    with pytest.raises(ConfigError, match="padding_type is 'first'"):
        FrameStack(Show(image(4, 4)), 2, padding_type="first")


def test_stacked_frames_without_channels() -> None:
    env = FrameStack(Show(image(4, 4)), 2)
    assert env.observation_space.shape == env.reset()[0].shape == (2, 4, 4)
    for space, count in ((spaces.Discrete(3), 2), (image(4, 4), 0)):
        with pytest.raises(ConfigError, match="FrameStack"):
            FrameStack(Show(space), count)


def goal_space(nested: bool) -> spaces.Dict:
    goal: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
    if nested:
        goal = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-3, 3, (1,))})
    vector = spaces.Box(-9, 9, (3,), np.float64)
    return spaces.Dict({"observation": vector, "desired_goal": goal, "achieved_goal": goal})


@pytest.mark.parametrize("nested", [False, True])
def test_goals(nested: bool) -> None:
    size = 3 if nested else 2
    env = GoalConcatWrapper(Show(goal_space(nested)))
    assert environment_spec(env).observation_shape == (3 + size,)
    assert env.observation_space.dtype == env.reset()[0].dtype == np.float64
    assert env.step(0)[0].tolist() == [2.0] * (3 + size)
    if nested:
        assert env.observation_space.high.tolist() == [9, 9, 9, 3, 1, 1]  # sorted by name
        given = {"observation": np.zeros(3), "desired_goal": {"b": np.array([1.0, 2.0]), "a": np.array([5.0])}}
        assert env.observation(given).tolist() == [0, 0, 0, 5, 1, 2]
    pair = GoalConcatWrapper(Show(goal_space(nested)), tuple_observation=True)
    assert environment_spec(pair).observation_shape == ((3,), (size,))
    assert [part.shape for part in pair.reset()[0]] == [(3,), (size,)]


def test_goals_of_other_names_and_spaces() -> None:
    env = GoalConcatWrapper(Show(goal_space(False)), "achieved_goal", "desired_goal")
    assert env.reset()[0].shape == (4,)
    with pytest.raises(EnvironmentMismatchError, match="'target'"):
        GoalConcatWrapper(Show(goal_space(False)), goal_key="target")
    odd = spaces.Dict({"observation": image(4, 4), "desired_goal": spaces.Box(0, 1, (2,))})
    with pytest.raises(EnvironmentMismatchError, match="must be a vector"):
        GoalConcatWrapper(Show(odd))


# -- Atari -----------------------------------------------------------------------------------------------------


def test_games_by_name() -> None:
    env = make_atari("space-invaders", sticky_action=False)
    assert env.spec is not None and env.spec.id == "ALE/SpaceInvaders-v5"
    assert env.unwrapped._frameskip == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot create an environment"):
        make_atari("no-such-game")


def test_a_name_that_is_not_there_says_what_was_found() -> None:
    with pytest.raises(ConfigError, match=r"The module json was imported, but it has no Nothing\. Give"):
        make_env("json:Nothing")
    with pytest.raises(ConfigError, match=r"Did you mean: `CartPole`\? Give"):
        make_env("CartPol-v1")


def _shrunk(screen: Any, size: int = 84) -> Any:
    """Average over areas by repeating each pixel until areas consist of whole pixels."""
    height, width = screen.shape[:2]
    rows = screen.astype(float).repeat(size, 0).reshape(size, height, width, -1).mean(1)
    return rows.repeat(size, 1).reshape(size, size, width, -1).mean(2).squeeze(-1 if screen.ndim == 2 else ())


@pytest.mark.parametrize(("size", "target"), [(210, 84), (160, 84), (84, 84), (6, 3), (50, 84), (3, 100)])
def test_areas_are_averages(size: int, target: int) -> None:
    pixel, share = _areas(size, target)
    weights = np.zeros((target, size))
    np.add.at(weights, (np.arange(target), pixel), share / size)
    whole = np.eye(size).repeat(target, 0).reshape(target, size, size).mean(1)
    np.testing.assert_allclose(weights, whole, atol=1e-12)
    assert (share.sum(0) == size).all() and pixel.max() < size


def test_preprocessing() -> None:
    raw = make_atari("breakout", sticky_action=False)
    env = AtariPreprocessing(raw, noop_max=0)
    observation, _ = env.reset(seed=0)
    screen = env.unwrapped.ale.getScreenGrayscale()  # type: ignore[attr-defined]
    assert observation.dtype == np.uint8 and env.observation_space.contains(observation)
    assert observation.flags.c_contiguous and np.abs(_shrunk(screen) - observation).max() <= 0.5 + 1e-9
    before = raw.unwrapped.ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]
    env.step(1)
    assert raw.unwrapped.ale.getEpisodeFrameNumber() == before + 4  # type: ignore[attr-defined]


def test_the_last_two_frames_are_joined() -> None:
    """The ball of Breakout blinks: it is drawn in every other frame of a moving screen."""
    raw, env = make_atari("breakout", sticky_action=False), make_atari("breakout", sticky_action=False)
    joined = AtariPreprocessing(env, noop_max=0)
    raw.reset(seed=0)
    joined.reset(seed=0)
    for action in (1, 2, 2, 3):
        screens = []
        for _ in range(4):
            raw.step(action)
            screens.append(raw.unwrapped.ale.getScreenGrayscale())  # type: ignore[attr-defined]
        assert np.abs(_shrunk(np.maximum(*screens[-2:])) - joined.step(action)[0]).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({"grayscale_newaxis": True}, (84, 84, 1), np.uint8),
        ({"grayscale_obs": False, "screen_size": 42}, (42, 42, 3), np.uint8),
        ({"scale_obs": True}, (84, 84), np.float32),
    ],
)
def test_preprocessing_options(options: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> None:
    env = AtariPreprocessing(make_atari("pong"), noop_max=0, **options)
    first = env.reset(seed=0)[0]
    ale = env.unwrapped.ale  # type: ignore[attr-defined]
    expected = _shrunk(ale.getScreenRGB() if shape[-1] == 3 else ale.getScreenGrayscale(), shape[0]).reshape(shape)
    error = np.abs(first * (255 if dtype is np.float32 else 1) - expected).max()
    assert error <= (1e-4 if dtype is np.float32 else 0.5 + 1e-9)
    for observation in (first, env.step(0)[0]):
        assert env.observation_space.contains(observation)
        assert observation.shape == shape and observation.dtype == dtype
        assert observation.max() > (0.2 if dtype is np.float32 else 50)


def test_episodes_begin_with_a_random_number_of_idle_frames() -> None:
    env = AtariPreprocessing(make_atari("breakout", sticky_action=False))
    counts = set()
    for seed in range(4):
        env.reset(seed=seed)
        counts.add(env.unwrapped.ale.getEpisodeFrameNumber())  # type: ignore[attr-defined]
    assert len(counts) > 2 and max(counts) - min(counts) <= 30
    check_environment(env, 6)


def test_lost_lives() -> None:
    train, test = Atari(make_atari("breakout"), num_stack=4), Atari(make_atari("breakout"), is_eval=True)
    assert train.observation_space == image(4, 84, 84) and test.observation_space == image(1, 84, 84)

    def lives(env: Any, steps: int) -> list[int]:
        seen = []
        env.reset(seed=0)
        for step in range(steps):
            *_, terminated, truncated, _ = env.step(step % 4)
            if terminated or truncated:
                seen.append(int(env.unwrapped.ale.lives()))
                env.reset()
        return seen

    assert lives(train, 120)[:2] == [4, 3]  # the game goes on
    assert set(lives(test, 220)) == {0}


def test_training_clips_rewards() -> None:
    def rewards(is_eval: bool) -> set[float]:
        env = Atari(make_atari("space-invaders"), is_eval=is_eval)
        env.reset(seed=0)
        return {float(env.step(1)[1]) for _ in range(150)}

    assert rewards(is_eval=False) == {0.0, 1.0}
    assert max(rewards(is_eval=True)) >= 5


def test_a_game_can_be_sent_to_another_process() -> None:
    """Workers and asynchronous vector environments need this."""
    game = Atari(make_atari("pong"), num_stack=4)
    other = pickle.loads(pickle.dumps(game))  # noqa: S301
    first, second = (env.reset(seed=3)[0] for env in (game, other))
    assert np.array_equal(first, second) and other.observation_space == game.observation_space


def test_what_is_no_game_is_refused() -> None:
    for env in (make_env("CartPole-v1"), make_env("ALE/Pong-v5")):
        with pytest.raises(EnvironmentMismatchError, match="make_atari"):
            AtariPreprocessing(env)
    with pytest.raises(EnvironmentMismatchError, match="must be >= 1"):
        AtariPreprocessing(make_atari("pong"), frame_skip=0)


def test_without_ale_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'birl\[atari\]'"):
        make_atari("pong")
