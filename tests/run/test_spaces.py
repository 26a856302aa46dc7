"""Observations of all kinds, from environments and data to networks, files and exports, without wrappers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.algos import DQNConfig, LinearDecayEpsilonGreedy, PPOConfig
from birl.dataset import MDPDataset, ReplayBuffer, create_fifo_replay_buffer
from birl.errors import ConfigError, EnvironmentMismatchError, ShapeError
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.preprocessing import MinMaxObservationScaler, PixelObservationScaler
from birl.spaces.observations import Choices
from birl.types import tree_map
from run.fakes import MissionGrid
from tests.tiers import slow_but

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


KEYS = ("direction", "image", "pair.0")


def small(kind: Any, **fields: Any) -> Any:
    usual = {"batch_size": 8, "compile_graph": False}
    if kind is PPOConfig:
        usual |= {"rollout_length": 8, "n_epochs": 1}
    names = kind.__dataclass_fields__
    return kind(**{name: value for name, value in {**usual, **fields}.items() if name in names}).create()


@pytest.mark.slow
def test_frozen_lake_is_learned_in_seconds() -> None:
    birl.seed(1)
    lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
    config = DQNConfig(
        batch_size=32, learning_rate=3e-3, target_update_interval=50, encoder_factory=[32], compile_graph=False
    )
    dqn = config.create()
    dqn.build_with_env(lake)
    assert np.mean(evaluate(dqn, lake, 3, seed=0)) == 0.0
    explorer = LinearDecayEpsilonGreedy(1.0, 0.1, 2000)
    dqn.fit_online(lake, explorer=explorer, n_steps=3000, n_steps_per_epoch=3000, update_start_step=100, **QUIET)
    assert evaluate(dqn, lake, 3, seed=0) == [1.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore:the environment has a mask of actions in info:UserWarning")  # Taxi has masks
@pytest.mark.parametrize("kind", [DQNConfig, PPOConfig])
@pytest.mark.parametrize(
    ("name", "shape", "raw"),
    [
        ("FrozenLake-v1", (16,), ()),
        ("Taxi-v4", (500,), ()),
        ("CliffWalking-v1", (48,), ()),
        ("Blackjack-v1", ((32,), (11,), (2,)), ((), (), ())),
    ],
)
def test_toy_text_needs_no_wrapper(kind: Any, name: str, shape: Any, raw: Any, tmp_path: Path) -> None:
    env = gymnasium.make(name)
    algorithm = small(kind, encoder_factory=[8] if isinstance(shape[0], int) else "default")
    algorithm.fit_online(env, n_steps=24, n_steps_per_epoch=24, **QUIET)
    assert algorithm.grad_step > 0 and algorithm.observation_shape == shape and algorithm.spec.data_shape == raw
    assert len(evaluate(algorithm, gymnasium.wrappers.TimeLimit(env, 5), 2)) == 2
    buffer = algorithm.collect(name, n_steps=10, show_progress=False)
    leaves = buffer.storage.leaves
    assert all(leaf.shape == () for key, leaf in leaves.items() if key.startswith("observation"))
    observation = env.reset(seed=3)[0]
    x = tree_map(lambda leaf: np.asarray(leaf)[None], observation)
    several = SyncVectorEnv([lambda: gymnasium.make(name)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert algorithm.collect(several, n_steps=6, show_progress=False).transition_count == 6
    algorithm.save(tmp_path / "model.d3")
    other = birl.load_learnable(tmp_path / "model.d3")
    assert other.spec == algorithm.spec and np.array_equal(other.predict(x), algorithm.predict(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
def test_exports_take_the_integers(tmp_path: Path) -> None:
    dqn = small(DQNConfig, encoder_factory=[8])
    dqn.create_impl(gymnasium.make("Taxi-v4").observation_space, 6)
    with torch.no_grad():
        next(dqn.nets.parameters()).mul_(50)  # so that actions differ
    states = np.arange(500)
    actions = dqn.predict(states)
    assert len(set(actions.tolist())) > 1
    for suffix in (".pt", ".pt2", ".onnx"):
        dqn.save_policy(tmp_path / f"policy{suffix}")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert session.get_inputs()[0].type == "tensor(int64)"
    assert np.array_equal(session.run(None, {"input_0": states})[0], actions)
    assert np.array_equal(torch.jit.load(str(tmp_path / "policy.pt"))(torch.from_numpy(states)), actions)
    assert np.array_equal(torch.export.load(tmp_path / "policy.pt2").module()(torch.from_numpy(states)), actions)
    with pytest.raises(ShapeError, match=r"observations 500 at step 0 is not in Discrete\(500\)"):
        dqn.predict(np.array([500]))


def lake_log(n: int = 200, **options: Any) -> MDPDataset:
    """Random steps in FrozenLake, as a log holds them."""
    env = gymnasium.make("FrozenLake-v1")
    rows, state = [], env.reset(seed=0)[0]
    rng = np.random.default_rng(0)
    for _ in range(n):
        action = int(rng.integers(4))
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((state, action, reward, terminated, truncated, following))
        state = env.reset()[0] if terminated or truncated else following
    state, action, reward, terminated, truncated, following = (np.array(column) for column in zip(*rows, strict=True))
    return MDPDataset(state, action, reward, terminated, truncated, next_observations=following, **options)


def test_integers_are_learned_from_and_evaluated(tmp_path: Path) -> None:
    env = gymnasium.make("FrozenLake-v1")
    dataset = lake_log(observation_space=env.observation_space)
    dataset.dump(tmp_path / "lake.h5")
    dqn = small(DQNConfig, encoder_factory=[8])
    dqn.fit(ReplayBuffer.load(tmp_path / "lake.h5"), n_steps=5, n_steps_per_epoch=5, **QUIET)
    assert dqn.spec.observations == Choices((16,)) and len(evaluate(dqn, env, 2)) == 2
    batch = dqn.learner.batch(dqn.sample_minibatch(dataset))
    assert batch.observation.shape == batch.next_observation.shape == (8, 16)
    assert (batch.observation.sum(-1) == 1).all() and dataset.storage.leaves["observation"].dtype == np.int64
    short = small(DQNConfig, encoder_factory=[8])
    seen = lake_log(20)
    assert seen.dataset_info.observations.sizes[0] < 16
    short.build_with_dataset(seen)
    with pytest.raises(EnvironmentMismatchError, match=r"Discrete\(16\).*give observation_space=env.obs"):
        evaluate(short, env, 1)
    with pytest.raises(ShapeError, match="the dataset has observations Discrete.*observation_space="):
        short.fit(dataset, n_steps=1, n_steps_per_epoch=1, **QUIET)
    dqn.fit(seen, n_steps=1, n_steps_per_epoch=1, **QUIET)  # data need not show all


@pytest.mark.parametrize("kind", slow_but([DQNConfig], [DQNConfig, PPOConfig]))
def test_parts_are_left_out_by_name(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"part 'mission' of .*observation_keys=\('direction', 'image'"):
        small(kind).fit_online(MissionGrid(), n_steps=8, **QUIET)
    algorithm = small(kind, observation_keys=KEYS, observation_scaler="pixel")
    algorithm.fit_online(
        MissionGrid(), n_steps=24, n_steps_per_epoch=24, eval_env=MissionGrid(), eval_n_trials=1, **QUIET
    )
    assert algorithm.spec.observation_shape == {"direction": (4,), "image": (7, 7, 3), "pair": {"0": (5,)}}
    assert algorithm.grad_step > 0
    raw = MissionGrid().reset(seed=1)[0]
    x = {"direction": raw["direction"][None], "image": raw["image"][None], "pair": (raw["pair"][0][None],), "more": 3}
    action = algorithm.predict(x)
    for mode in AutoresetMode:
        env = SyncVectorEnv([MissionGrid, MissionGrid], autoreset_mode=mode)
        assert len(evaluate(algorithm, env, 2, seed=0)) == 2
        assert algorithm.collect(env, n_steps=9, show_progress=False).transition_count == 9
    algorithm.save(tmp_path / "model.d3")
    other = birl.load_learnable(tmp_path / "model.d3")
    assert other.config.observation_keys == KEYS and np.array_equal(other.predict(x), action)
    algorithm.save_policy(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    feed = {"input_0": x["direction"], "input_1": x["image"].astype(np.float32), "input_2": raw["pair"][0][None]}
    assert np.array_equal(session.run(None, feed)[0], action)


def test_data_may_have_parts_that_are_not_read() -> None:
    whole = small(DQNConfig, observation_keys=KEYS[:2]).collect(MissionGrid(), n_steps=20, show_progress=False)
    assert set(whole.observation_shape) == {"direction", "image"}
    dqn = small(DQNConfig, observation_keys=["direction"])
    dqn.fit(whole, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert dqn.spec.observations == {"direction": Choices((4,), (1,))}
    assert len(evaluate(dqn, MissionGrid(), 1)) == 1
    later = small(DQNConfig)  # built for what the data have, though the environment has more
    later.fit(whole, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert later.collect(MissionGrid(), n_steps=4, show_progress=False).transition_count == 4
    with pytest.raises(ConfigError, match="observation_keys names 'camera', which is not a part"):
        small(DQNConfig, observation_keys=["camera"]).fit(whole, n_steps=1, **QUIET)


def test_the_order_of_the_parts_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    parts = {"b": rng.random((40, 3), np.float32), "a": rng.random((40, 2), np.float32)}
    ends = np.arange(40) % 10 == 9
    dqn = small(DQNConfig)
    dqn.build_with_dataset(MDPDataset(parts, np.arange(40) % 2, np.ones(40), ends))
    other = {"a": parts["a"], "b": parts["b"]}
    assert np.array_equal(dqn.predict_value(parts, np.zeros(40)), dqn.predict_value(other, np.zeros(40)))
    assert np.array_equal(dqn.predict(parts), dqn.predict(other))


def test_choices_are_not_scaled() -> None:
    for scaler in (PixelObservationScaler(), MinMaxObservationScaler([0.0], [15.0])):
        with pytest.raises(ConfigError, match=r"observations Discrete\(16\): choices cannot be scaled"):
            small(DQNConfig, observation_scaler=scaler).create_impl(spaces.Discrete(16), 2)


def test_an_environment_that_leaves_its_space_is_reported() -> None:
    class Lost(MissionGrid):
        observation_space = spaces.Discrete(2)

        def _observation(self) -> Any:
            return self.steps

    with pytest.raises(EnvironmentMismatchError, match=r"environment 0 returned the observation 2, .*Discrete\(2\)"):
        small(DQNConfig, encoder_factory=[4]).collect(Lost(), n_steps=9, show_progress=False)
    with pytest.raises(ConfigError, match="an observation is a single array"):
        small(DQNConfig, observation_keys=["x"]).collect(Lost(), n_steps=9, show_progress=False)


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    def run(n_steps: int, folder: str) -> Any:
        birl.seed(0)
        dqn = small(DQNConfig, observation_keys=("direction", "pair.0"))
        options = {"n_steps_per_epoch": 10, "checkpoint": tmp_path / folder, "seed": 0}
        dqn.fit_online(MissionGrid(), n_steps=n_steps, **options, **QUIET)
        return dqn

    whole = run(40, "whole")
    run(20, "parts")
    parts = run(40, "parts")
    expected, found = whole.nets.state_dict(), parts.nets.state_dict()
    assert whole.grad_step == parts.grad_step and all(torch.equal(expected[name], found[name]) for name in expected)


def test_replay_buffers_of_ones_own_take_the_same_names() -> None:
    dqn = small(DQNConfig, observation_keys=["direction"])
    buffer = create_fifo_replay_buffer(50, env=MissionGrid(), observation_keys=["direction"])
    dqn.fit_online(MissionGrid(), buffer, n_steps=20, n_steps_per_epoch=20, **QUIET)
    assert dqn.grad_step > 0 and buffer.storage.leaves["observation.direction"].shape == ()
