"""The shipped datasets."""

from __future__ import annotations

import numpy as np
import pytest

import birl
from birl.dataset import MultiStepTransitionPicker
from birl.datasets import NAMES, get_cartpole, get_dataset, get_pendulum
from birl.errors import ConfigError
from birl.types import ActionSpace

MEGABYTE = 10**6


@pytest.mark.parametrize("name", NAMES)
def test_named_dataset(name: str) -> None:
    dataset, env = get_dataset(name)
    info = dataset.dataset_info
    assert 10_000 <= dataset.transition_count <= 100_000
    assert env.observation_space.shape == dataset.observation_shape
    if name.startswith("cartpole"):
        assert env.spec.id == "CartPole-v1"
        assert (info.action_space, info.action_size) == (ActionSpace.DISCRETE, 2)
    else:
        assert env.spec.id == "Pendulum-v1"
        assert (info.action_space, info.action_size) == (ActionSpace.CONTINUOUS, 1)
    first = dataset.episodes[0]
    assert first.observations.dtype == first.rewards.dtype == np.float32
    batch = dataset.sample_transition_batch(16)
    assert batch.observations.shape == (16, *env.observation_space.shape)


@pytest.mark.parametrize("name", NAMES)
def test_data_is_what_the_environment_does(name: str) -> None:
    """The recorded actions, replayed from the recorded first observation, lead to the recorded observations."""
    dataset, env = get_dataset(name)
    for episode in dataset.episodes[3:5]:
        env.reset(seed=0)
        state = episode.observations[0].astype(np.float64)
        if name.startswith("pendulum"):  # cosine, sine, velocity -> angle, velocity
            state = np.array([np.arctan2(state[1], state[0]), state[2]])
        env.unwrapped.state = state
        following = [*episode.observations[1:], episode.final_observation]
        for action, reward, expected in zip(episode.actions, episode.rewards, following, strict=True):
            action = int(action[0]) if name.startswith("cartpole") else action
            observation, given, terminated, _, _ = env.step(action)
            np.testing.assert_allclose(observation, expected, atol=2e-3)
            np.testing.assert_allclose(given, reward[0], atol=2e-3)
        assert terminated == episode.terminated


def test_time_limits_are_no_terminations() -> None:
    dataset, _ = get_pendulum("random")
    assert not any(episode.terminated for episode in dataset.episodes)
    assert all(len(episode) == 200 for episode in dataset.episodes)
    assert dataset.transition_count == dataset.step_count  # the observation after the last step is there


def test_replay_is_better_than_random_and_gets_good() -> None:
    for get, good in ((get_cartpole, 400), (get_pendulum, -250)):
        random = [episode.compute_return() for episode in get("random")[0].episodes]
        replay = [episode.compute_return() for episode in get("replay")[0].episodes]
        assert np.mean(replay) > np.mean(random)
        assert np.mean(replay[:10]) < good < np.mean(sorted(replay)[-20:])


def test_shipped_files_are_small() -> None:
    from birl.datasets import _FOLDER

    sizes = {path.name: path.stat().st_size for path in _FOLDER.glob("*.h5")}
    assert set(sizes) == {f"{name}.h5" for name in NAMES}
    assert max(sizes.values()) <= 2 * MEGABYTE


def test_options_reach_the_buffer() -> None:
    dataset, _ = get_cartpole(transition_picker=MultiStepTransitionPicker(n_steps=3, gamma=0.9))
    assert dataset.sample_transition_batch(64).intervals.max() == 3


@pytest.mark.parametrize("name", ["cartpole-replai", "hooper-medium-v9x", "", "cartpole", "runs/mine", "a//b-v0"])
def test_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        birl.datasets.get_dataset(name)
    assert all(known in str(caught.value) for known in NAMES)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("cartpole-replay", "episode_cls, writer_preprocessor, action_space, action_size, storage"),
        ("hopper-medium-v0", "max_episode_steps, path, storage"),
        ("breakout-mixed-v0", "num_stack"),
        ("mujoco/hopper/medium-v0", "download"),
    ],
)
def test_unknown_option_lists_the_known_ones(name: str, known: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no option 'foo'; it has: .*{known}"):
        get_dataset(name, foo=1)


def test_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="cartpole-replay"):
        get_cartpole("medium")
