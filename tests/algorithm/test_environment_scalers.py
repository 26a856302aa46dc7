"""Ranges of actions and of bytes: what new networks get for an environment, and what is refused or warned of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from birl import algos, load_learnable
from birl.dataset import MDPDataset
from birl.envs import ExternalEnv
from birl.errors import ActionRangeWarning, ConfigError, EnvironmentMismatchError, ObservationRangeWarning
from birl.logging import NoopAdapterFactory
from birl.models import (
    BetaFactory,
    DefaultEncoderFactory,
    NormalFactory,
    PixelEncoderFactory,
    SquashedNormalFactory,
    VectorEncoderFactory,
)
from birl.preprocessing import (
    DictObservationScaler,
    MinMaxActionScaler,
    MinMaxObservationScaler,
    PixelObservationScaler,
    StandardObservationScaler,
)

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = VectorEncoderFactory([8])
VECTOR = spaces.Box(-1, 1, (1,), np.float32)
LARGEST = float(np.finfo(np.float32).max)
UNBOUNDED = [
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(-LARGEST, LARGEST, (2,), np.float32),
    spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
]


def env_of(observation: spaces.Space[Any] = VECTOR, action: spaces.Space[Any] | None = None) -> ExternalEnv:
    return ExternalEnv(observation, spaces.Discrete(2) if action is None else action)


def td3(**fields: Any) -> Any:
    return algos.TD3Config(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, batch_size=8, **fields).create()


# -- actions ---------------------------------------------------------------------------------------------------


class Far(gymnasium.Env[Any, Any]):
    """Rewards actions near 3."""

    observation_space, action_space = VECTOR, spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, **options: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), -float((action[0] - 3) ** 2), True, False, {}


@pytest.mark.parametrize("space", UNBOUNDED, ids=["inf", "largest", "half"])
@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG", "IQL", "MPO"])
def test_policies_with_a_range_refuse_actions_without_bounds(name: str, space: Any) -> None:
    algorithm = getattr(algos, f"{name}Config")().create()
    with pytest.raises(EnvironmentMismatchError, match=r"no bounds.*acts in \[-1, 1\].*MinMaxActionScaler"):
        algorithm.build_with_env(env_of(action=space))
    assert not algorithm.built
    given = getattr(algos, f"{name}Config")(action_scaler=MinMaxActionScaler([-4.0, 0.0], [4.0, 9.0])).create()
    given.build_with_env(env_of(action=space))


@pytest.mark.parametrize("distribution", [SquashedNormalFactory(), BetaFactory(), NormalFactory()])
def test_the_distribution_decides_whether_a_policy_has_a_range(distribution: Any) -> None:
    ppo = algos.PPOConfig(distribution_factory=distribution).create()
    if isinstance(distribution, NormalFactory):
        ppo.build_with_env(env_of(action=UNBOUNDED[0]))
        return
    for space in (UNBOUNDED[0], spaces.Tuple([UNBOUNDED[0], spaces.Discrete(3)])):
        with pytest.raises(EnvironmentMismatchError, match="no bounds"):
            ppo.build_with_env(env_of(action=space))


def test_training_without_bounds_needs_a_range_and_then_reaches_it() -> None:
    for run in (
        lambda each: each.fit_online(Far(), n_steps=20, **QUIET),
        lambda each: each.collect(Far(), n_steps=5, show_progress=False),
    ):
        with pytest.raises(EnvironmentMismatchError, match="no bounds"):
            run(td3())
    scaled = td3(action_scaler=MinMaxActionScaler([-5.0], [5.0]))
    data = scaled.collect(Far(), explorer=algos.NormalNoise(std=9.0), n_steps=50, show_progress=False)
    assert np.abs(data.action_bounds()).min() > 4
    trained = td3()
    trained.create_impl((1,), 1)
    with pytest.warns(ActionRangeWarning, match="no bounds"):
        trained.build_with_env(Far())


def test_a_scaler_that_changes_nothing_keeps_the_range() -> None:
    pendulum = gymnasium.make("Pendulum-v1")
    own = td3(action_scaler=MinMaxActionScaler([-1.0], [1.0]))
    own.build_with_env(pendulum)
    with torch.no_grad():
        own.nets.actor.linear.bias.fill_(50.0)
    assert own.predict(np.zeros((1, 3), np.float32)) == 1.0
    unit = td3()
    unit.build_with_env(env_of(action=spaces.Box(-1, 1, (2,), np.float32)))
    assert unit.config.action_scaler is None  # as in d3rlpy's files


def test_the_scaler_of_an_environment_is_saved(tmp_path: Path) -> None:
    own = td3()
    own.build_with_env(gymnasium.make("Pendulum-v1"))
    own.save(tmp_path / "model.d3")
    assert load_learnable(tmp_path / "model.d3").config.action_scaler == own.config.action_scaler


# -- bytes -----------------------------------------------------------------------------------------------------

BYTES = spaces.Box(0, 255, (36, 36, 3), np.uint8)
SHALLOW = PixelEncoderFactory([[4, 8, 4]], feature_size=8)


def largest_input(algorithm: Any, observation: Any) -> float:
    seen: list[float] = []
    network = next(each for each in algorithm.nets.modules() if isinstance(each, torch.nn.Conv2d))
    network.register_forward_pre_hook(lambda _, given: seen.append(float(given[0].max())))
    algorithm.predict(observation)
    return max(seen)


@pytest.mark.parametrize("factory", [DefaultEncoderFactory(), SHALLOW])
def test_new_networks_read_pixels_of_an_environment_from_0_to_1(factory: Any) -> None:
    dqn = algos.DQNConfig(encoder_factory=factory).create()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dqn.build_with_env(env_of(BYTES))
    assert isinstance(dqn.config.observation_scaler, PixelObservationScaler)
    assert largest_input(dqn, np.full((1, *BYTES.shape), 255, np.uint8)) == 1.0


@pytest.mark.parametrize(
    ("space", "warned"),
    [
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), True),  # as in grid worlds
        (spaces.Box(0, 1, (10, 10, 4), np.uint8), False),
        (spaces.Box(0, 1, (36, 36, 3), np.float32), False),
        (spaces.Box(0, 255, (128,), np.uint8), False),
        (spaces.Dict({"image": BYTES, "speed": VECTOR}), True),
        (spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "speed": VECTOR}), False),
    ],
    ids=["small", "bits", "floats", "memory", "part", "small part"],
)
def test_other_bytes_are_not_scaled(space: Any, warned: bool) -> None:
    dqn = algos.DQNConfig().create()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dqn.build_with_env(env_of(space))
    assert dqn.config.observation_scaler is None
    assert [each.category for each in caught] == [ObservationRangeWarning] * warned


def test_logged_bytes_are_left_as_they_are_with_a_warning() -> None:
    images = np.zeros((8, 3, 36, 36), np.uint8)
    data = MDPDataset(images, np.arange(8) % 2, np.zeros(8), np.eye(8)[7])
    dqn = algos.DQNConfig(encoder_factory=SHALLOW, batch_size=4).create()
    with pytest.warns(ObservationRangeWarning, match=r"0 to 255: set observation_scaler=.*PixelObservationScaler\(\)"):
        dqn.fit(data, n_steps=1, n_steps_per_epoch=1, **QUIET)
    assert largest_input(dqn, np.full((1, 3, 36, 36), 255, np.uint8)) == 255.0  # as in d3rlpy
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dqn.fit(data, n_steps=1, n_steps_per_epoch=1, **QUIET)  # it has learned so
        scaled = algos.DQNConfig(encoder_factory=SHALLOW, observation_scaler=PixelObservationScaler()).create()
        scaled.build_with_dataset(data)


@pytest.mark.parametrize(("high", "scaled"), [(1, False), (10, False), (255, True)])
def test_only_images_up_to_255_are_divided_by_255(high: int, scaled: bool) -> None:
    algorithm = algos.DQNConfig().create()
    algorithm.build_with_env(env_of(spaces.Box(0, high, (1, 36, 36), np.uint8)))
    assert isinstance(algorithm.config.observation_scaler, PixelObservationScaler) is scaled


def test_parts_that_are_no_bytes_are_not_divided_by_255() -> None:
    camera, ram = spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Box(0, 255, (128,), np.uint8)
    pixels = PixelObservationScaler()
    with pytest.raises(ConfigError, match="the part 'pose' of the environment holds no bytes: give .*DictObs"):
        env = env_of(spaces.Dict(camera=camera, pose=VECTOR))
        algos.DQNConfig(observation_scaler=pixels).create().build_with_env(env)
    with pytest.raises(ConfigError, match="the part 'pose' of the dataset holds no bytes"):
        images = {"camera": np.zeros((4, 1, 36, 36), np.uint8), "pose": np.zeros((4, 1), np.float32)}
        data = MDPDataset(images, np.zeros(4, int), np.zeros(4), np.array([0, 0, 0, 1]), action_size=2)
        algos.DQNConfig(observation_scaler=pixels).create().build_with_dataset(data)
    parts = DictObservationScaler({"camera": pixels})
    algos.DQNConfig(observation_scaler=parts).create().build_with_env(env)
    algos.DQNConfig(observation_scaler=pixels).create().build_with_env(env_of(spaces.Dict(camera=camera, ram=ram)))


# -- scalers that were given or fitted to other data -----------------------------------------------------------


def logged(observations: Any, actions: Any = None) -> MDPDataset:
    n = len(observations["b"] if isinstance(observations, dict) else observations)
    actions = np.arange(n) % 2 if actions is None else actions
    return MDPDataset(observations, actions, np.zeros(n), np.arange(n) == n - 1, np.zeros(n))


def test_a_second_dataset_far_from_the_first_is_warned_of() -> None:
    random = np.random.default_rng(0)
    near, actions = random.normal(size=(60, 3)), random.uniform(-1, 1, (60, 2))
    near[:, 1] = 5  # constant
    scaled: dict[str, Any] = {"action_scaler": MinMaxActionScaler(), "observation_scaler": StandardObservationScaler()}
    algorithm = td3(**scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.build_with_dataset(logged(near, actions))
        others = near[::2] + np.array([1, 0, 3])  # of about the same range
        algorithm.build_with_dataset(logged(others, 1.1 * actions[::2]))
    with pytest.warns(ActionRangeWarning, match=r"reach from -4.* to 4.*beyond the range of the action scaler"):
        algorithm.build_with_dataset(logged(near, 5 * actions))
    with pytest.warns(ObservationRangeWarning, match=r"are 1.* on average after the StandardObservationScaler"):
        algorithm.build_with_dataset(logged(near + np.array([0, 0, 100]), actions))
    parts = {"a": near, "b": near + 100}
    by_part = DictObservationScaler({"a": None, "b": MinMaxObservationScaler([-2] * 3, [2] * 3)})
    with pytest.warns(ObservationRangeWarning, match=r"observations\['b'\] of the dataset are 52.5 on average"):
        algos.DQNConfig(observation_scaler=by_part).create().build_with_dataset(logged(parts))


def test_images_that_are_scaled_twice_are_warned_of() -> None:
    pixels = algos.DQNConfig(observation_scaler=PixelObservationScaler())
    images = np.random.default_rng(0).integers(0, 255, (4, 1, 36, 36), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels.create().build_with_dataset(logged(images))
        pixels.create().build_with_dataset(logged(images.astype(np.float32)))
        pixels.create().build_with_env(env_of(spaces.Box(0, 255, (1, 36, 36), np.float32)))
    with pytest.warns(ObservationRangeWarning, match="observations of the dataset are floats up to 1"):
        pixels.create().build_with_dataset(logged(images / np.float32(255)))
    with pytest.warns(ObservationRangeWarning, match="observations of the environment are floats up to 1"):
        pixels.create().build_with_env(env_of(spaces.Box(0, 1, (1, 36, 36), np.float32)))


def test_a_scaler_of_a_part_of_the_environments_actions_is_named(caplog: pytest.LogCaptureFixture) -> None:
    env = env_of(action=spaces.Box(-2, 2, (2,), np.float32))
    whole = td3(action_scaler=MinMaxActionScaler())
    whole.build_with_env(env)
    td3(action_scaler=MinMaxActionScaler([-2, -1.9], [2, 2])).build_with_env(env)
    td3(action_scaler=MinMaxActionScaler([-5, -5], [5, 5])).build_with_env(env)
    assert not caplog.text
    td3(action_scaler=MinMaxActionScaler([-2, -1], [2, 0.5])).build_with_env(env)
    assert "TD3 acts only from -1 to 0.5 in action[1]" in caplog.text and "from -2 to 2" in caplog.text
