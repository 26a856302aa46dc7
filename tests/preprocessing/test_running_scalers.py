"""Running scalers: their statistics, when they move, and that nothing else does."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import birl
from birl.algorithm import load_learnable
from birl.algos import CalQLConfig, DQNConfig, PPOConfig, SACConfig
from birl.algos import ppo as ppo_module
from birl.dataset import MultiStepTransitionPicker, create_fifo_replay_buffer
from birl.engine import compiler
from birl.errors import ConfigError, EmptyDataError, NonFiniteError, ShapeError, UnsupportedError
from birl.files.serializable import decode, encode
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.models import EncoderFactory, VectorEncoderFactory
from birl.preprocessing import (
    MinMaxActionScaler,
    ObservationScaler,
    RunningObservationScaler,
    RunningRewardScaler,
    StandardObservationScaler,
    TupleObservationScaler,
)
from birl.testing import random_dataset
from birl.types import Batch
from tests.tiers import slow_but

SMALL = VectorEncoderFactory([8])


class Ramp(gymnasium.Env):
    """Observations far from 0 with a large spread; episodes end by both kinds of ends."""

    def __init__(self, space: Any = None, discrete: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32) if space is None else space
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 9))
        return self._observation(), {}

    def _observation(self) -> Any:
        place = np.array([100.0, -5.0, 0.0]) + self.np_random.normal(size=3) * [20.0, 0.1, 1.0]
        if isinstance(self.observation_space, spaces.Dict):
            return {"place": place.astype(np.float32), "kind": np.array([self.steps], np.int64)}
        return place.astype(np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps >= self.length
        reward = float(50.0 * np.sum(action) + self.steps)
        return self._observation(), reward, over and self.length % 2 == 0, over and self.length % 2 == 1, {}


def environments(n: int | None = 2, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> Any:
    return Ramp(**options) if n is None else SyncVectorEnv([lambda: Ramp(**options)] * n, autoreset_mode=mode)


def running() -> dict[str, Any]:
    return {"observation_scaler": RunningObservationScaler(), "reward_scaler": RunningRewardScaler()}


def ppo(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    usual = {**encoders, **running(), "rollout_length": 10, "batch_size": 8, "n_epochs": 2}
    return PPOConfig(**{**usual, **fields}).create()


def sac(**fields: Any) -> Any:
    encoders = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    return SACConfig(**{**encoders, **running(), "batch_size": 8, **fields}).create()


QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def go(algorithm: Any, n_steps: int, env: Any = None, **options: Any) -> Any:
    algorithm.fit_online(environments() if env is None else env, n_steps=n_steps, seed=3, **{**QUIET, **options})
    return algorithm


def state_of(algorithm: Any) -> str:
    """All that training depends on, to the last bit."""
    scalers = [encode(algorithm.observation_scaler), encode(algorithm.reward_scaler)]
    returns = algorithm.reward_scaler.get_state()["returns"].tolist()
    nets = {name: tensor.tolist() for name, tensor in algorithm.nets.state_dict().items()}
    return repr((scalers, returns, nets, algorithm.grad_step))


# -- the statistics --------------------------------------------------------------------------------------------


def test_observations_have_the_mean_and_deviation_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(1e6, [1.0, 20.0, 0.01], (1000, 3))
    scaler, cuts = RunningObservationScaler(clip=None), [0, 1, 2, 7, 500, 500, 1000]
    for begin, end in itertools.pairwise(cuts):
        scaler.update(rows[begin:end])
    assert scaler.count == 1000 and scaler.built
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
    scaled = scaler.transform(torch.from_numpy(rows))
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
    np.testing.assert_allclose(scaler.reverse_transform(scaled), rows)
    lead = torch.from_numpy(rows[:6].astype(np.float32)).reshape(2, 3, 3)
    assert scaler.transform(lead).shape == (2, 3, 3) and scaler.transform(lead).dtype == torch.float32


def test_clipping_and_what_was_not_seen_yet() -> None:
    scaler, x = RunningObservationScaler(clip=2.0), torch.tensor([[-9.0, 1.5]])
    assert scaler.transform(x).tolist() == [[-2.0, 1.5]]
    assert scaler.transform((x, {"a": x}))[1]["a"].tolist() == [[-2.0, 1.5]]
    scaler.prepare((2,), 0.99)
    assert scaler.transform(x).tolist() == [[-2.0, 1.5]] and not scaler.built
    scaler.update(np.array([[0.0, 0.0], [2.0, 4.0]]))
    np.testing.assert_allclose(scaler.transform(torch.tensor([[2.0, 40.0]])), [[1.0, 2.0]], rtol=1e-6)
    rewards = RunningRewardScaler(clip=1.0)
    assert rewards.transform(torch.tensor([0.5, -3.0])).tolist() == [0.5, -1.0]


def test_leaves_of_trees_by_themselves() -> None:
    scaler = RunningObservationScaler(clip=None)
    tree = {"place": np.array([[0.0], [4.0]], np.float32), "kind": np.array([[3], [5]]), "image": np.uint8([[9], [8]])}
    scaler.update(tree)
    scaled = scaler.transform({name: torch.from_numpy(leaf) for name, leaf in tree.items()})
    np.testing.assert_allclose(scaled["place"], [[-1.0], [1.0]], rtol=1e-6)
    assert scaled["kind"].tolist() == [[3.0], [5.0]] and scaled["image"].tolist() == [[9.0], [8.0]]
    again = decode(encode(scaler))
    assert again == scaler and again.transform_numpy(tree)["place"].tolist() == scaled["place"].tolist()
    alone = RunningObservationScaler()  # who asks for one array to be scaled gets it
    alone.update(tree["kind"])
    np.testing.assert_allclose(alone.transform(torch.tensor([[3], [5]])), [[-1.0], [1.0]], rtol=1e-6)


def test_parts_of_tuples_have_their_own() -> None:
    scaler = TupleObservationScaler([RunningObservationScaler(), None])
    assert scaler.running and not scaler.built
    assert not TupleObservationScaler([StandardObservationScaler([0.0], [1.0])]).running
    scaler.update((np.array([[0.0], [4.0]]), np.array([[1.0], [1.0]])))
    scaled = scaler.transform((torch.tensor([[4.0]]), torch.tensor([[7.0]])))
    assert [part.tolist() for part in scaled] == [[[1.0]], [[7.0]]]
    other = TupleObservationScaler([RunningObservationScaler(), None])
    other.set_state(scaler.get_state())
    assert encode(other) == encode(scaler)


def test_rewards_are_divided_by_the_deviation_of_the_running_return() -> None:
    """As the plain recursion: each environment by itself, each episode from 0, rows that are no steps left out."""
    generator = np.random.default_rng(1)
    rewards = generator.normal(2.0, 3.0, (40, 3)).astype(np.float32)
    first, valid = generator.random((40, 3)) < 0.2, generator.random((40, 3)) < 0.9
    seen, returns = [], [0.0, 0.0, 0.0]
    for step in range(40):
        for lane in range(3):
            if valid[step, lane]:
                before = 0.0 if first[step, lane] else returns[lane]
                returns[lane] = 0.9 * before + float(rewards[step, lane])
                seen.append(returns[lane])
    scaler = RunningRewardScaler(gamma=0.9, clip=None)
    scaler.update(rewards[:1], first[:1], valid[:1])
    scaler.update(rewards[1:], first[1:], valid[1:])
    assert scaler.count == len(seen)
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    np.testing.assert_allclose(scaler.transform(x), x / np.sqrt(np.var(seen) + 1e-8), rtol=1e-12)
    np.testing.assert_allclose(scaler.reverse_transform(scaler.transform(x)), x)
    np.testing.assert_allclose(scaler.get_state()["returns"], returns, rtol=1e-12)


def test_fitted_to_logged_data_as_other_scalers_are() -> None:
    dataset = random_dataset((3,), 2, seed=0)
    algorithm = sac(action_scaler=MinMaxActionScaler(), gamma=0.9)
    algorithm.fit(dataset, n_steps=2, **QUIET)
    observations = np.concatenate([episode.observations for episode in dataset.episodes])
    seen = []
    for episode in dataset.episodes:
        value = 0.0
        for reward in episode.rewards[:, 0].tolist():
            seen.append(value := 0.9 * value + reward)
    algorithm.observation_scaler.clip = algorithm.reward_scaler.clip = None
    x = torch.ones(1, 3, dtype=torch.float64)
    expected = (1 - observations.mean(0, dtype=np.float64)) / observations.std(0, dtype=np.float64)
    np.testing.assert_allclose(algorithm.observation_scaler.transform(x)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(algorithm.reward_scaler.transform(x)[0, 0], 1 / np.std(seen), rtol=1e-5)
    assert algorithm.reward_scaler.gamma == 0.9
    before = encode(algorithm.observation_scaler)
    algorithm.fit(random_dataset((3,), 2, seed=1), n_steps=2, **QUIET)
    assert encode(algorithm.observation_scaler) == before  # neither fitted again nor moved


# -- when they move --------------------------------------------------------------------------------------------


def test_a_rollout_is_learned_from_in_the_scale_that_it_was_acted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations reach the update as they reached the policy, and the first minibatch has a ratio of exactly 1."""
    acted: list[Tensor] = []
    learned: list[tuple[Tensor, Tensor]] = []

    def watched(nets: Any, batch: Batch, ended: Tensor, config: Any) -> Batch:
        learned.append((batch.observation, batch.weight > 0))
        return ppo_module.prepare(nets, batch, ended, config)

    algorithm = ppo(batch_size=20, n_epochs=1)
    algorithm.build_with_env(environments())
    learner = algorithm.learner
    experience = type(learner.experience)(watched, limit=learner.experience.limit)
    monkeypatch.setattr(learner, "experience", experience)
    scaler, ratios, update = algorithm.observation_scaler, [], learner.engine.update
    act = learner.policy.act

    def acting(x: Any, *rest: Any, **options: Any) -> Any:
        acted.append(scaler.transform(torch.from_numpy(x)).clone())
        return act(x, *rest, **options)

    def updated(batch: Batch, only: Any = None) -> dict[str, Tensor]:
        with torch.no_grad():
            now = learner.nets.actor(batch.inputs).log_prob(batch.action)
        ratios.append(float((now - batch.extra["log_prob"]).abs().max()))
        return update(batch, only)

    monkeypatch.setattr(learner.policy, "act", acting)
    monkeypatch.setattr(learner.engine, "update", updated)
    go(algorithm, 60)
    first = 0
    for observation, real in learned:
        own = torch.stack(acted[first : first + len(observation)])
        first += len(observation)
        assert torch.equal(observation[real], own[real])
    assert len(learned) >= 3 and ratios == [0.0] * len(learned)
    assert algorithm.observation_scaler.count == algorithm.reward_scaler.count == 60


@pytest.mark.parametrize("n", [None, 3])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_replayed_steps_move_them_once_each(n: int | None, mode: AutoresetMode) -> None:
    env = environments(n, mode)
    algorithm, buffer = sac(), create_fifo_replay_buffer(limit=1000, env=env)
    go(algorithm, 60, env, buffer=buffer, random_steps=20)
    rows = np.concatenate([episode.observations[: episode.size()] for episode in buffer.episodes])
    assert algorithm.observation_scaler.count == algorithm.reward_scaler.count == len(rows) >= 60
    found = algorithm.observation_scaler.get_params()["statistics"][0]["mean"]
    np.testing.assert_allclose(found, rows.mean(0, dtype=np.float64))
    returns = []
    for episode in buffer.episodes:
        value = 0.0
        for reward in episode.rewards[:, 0].tolist():
            returns.append(value := 0.99 * value + reward)
    squares = algorithm.reward_scaler.get_params()["statistics"]["squares"]
    assert squares == pytest.approx(len(returns) * np.var(returns))


def test_nothing_else_moves_them() -> None:
    algorithm = go(sac(), 40)
    before = state_of(algorithm)
    algorithm.predict(np.full((2, 3), 1e3, np.float32))
    birl.metrics.evaluate(algorithm, Ramp(), n_episodes=2, seed=0)
    buffer = algorithm.collect(Ramp(), n_steps=20, show_progress=False)
    algorithm.sample_minibatch(buffer)
    assert state_of(algorithm) == before


def test_moving_them_inside_an_update_is_refused() -> None:
    algorithm = go(sac(), 30)
    buffer, row = algorithm.collect(Ramp(), n_steps=20, show_progress=False), np.zeros((1, 3))
    for move in (
        lambda: algorithm.observation_scaler.update(row),
        lambda: algorithm.reward_scaler.update([[1.0]], [[False]]),
    ):
        algorithm.watch_gradients(lambda *_, move=move: move())
        with pytest.raises(UnsupportedError, match="inside an update"):
            algorithm.update(algorithm.sample_minibatch(buffer))
        move()


# -- files and runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ppo, sac])
@pytest.mark.parametrize("stop", slow_but([33], [7, 33, 50]))
def test_runs_resume_bit_for_bit_in_mid_episode(make: Any, stop: int, tmp_path: Path) -> None:
    def run(folder: Path, stop: int | None) -> Any:
        birl.seed(0)
        callback = lambda _, __, step: step != stop  # noqa: E731
        options = {"checkpoint": folder, "n_steps_per_epoch": 25, "callback": callback, "go_on": True}
        return go(make(), 70, **options)

    straight = run(tmp_path / "straight", None)
    run(tmp_path / "stopped", stop)
    assert state_of(run(tmp_path / "stopped", None)) == state_of(straight)


def test_an_algorithm_that_moved_on_resumes_its_earlier_run(tmp_path: Path) -> None:
    """Statistics are no setting of a run."""
    algorithm = go(sac(), 30, Ramp())
    go(algorithm, 40, Ramp(), checkpoint=tmp_path)
    moved = encode(algorithm.observation_scaler)
    go(algorithm, 60, Ramp(), checkpoint=tmp_path)
    assert encode(algorithm.observation_scaler) != moved
    assert algorithm.observation_scaler.count == 90


@pytest.mark.parametrize("retuned", [False, True])
def test_the_parameters_of_a_resumed_run_are_those_of_its_start(retuned: bool, tmp_path: Path) -> None:
    def run(name: str, stop: int | None) -> bytes:
        def callback(algorithm: Any, epoch: int, step: int) -> bool:
            if retuned and step == 25:
                algorithm.retune(n_epochs=3)
            return step != stop

        options = {"checkpoint": tmp_path / name, "n_steps_per_epoch": 20, "callback": callback, "go_on": True}
        options |= {"experiment_name": name, "with_timestamp": False, "logger_adapter": FileAdapterFactory(tmp_path)}
        go(ppo(), 60, **options)
        return (tmp_path / name / "params.json").read_bytes()

    straight = run("straight", None)
    assert json.loads(straight)["config"]["params"]["observation_scaler"]["params"]["statistics"] is not None
    for stop in (30, 50):
        run("stopped", stop)
    assert run("stopped", None) == straight


@pytest.mark.parametrize("make", [ppo, sac])
def test_models_hold_them(make: Any, tmp_path: Path) -> None:
    algorithm, x = go(make(), 40, Ramp()), np.float32([[90.0, -5.1, 0.3], [0.0, 0.0, 0.0]])
    algorithm.save(tmp_path / "model.d3")
    loaded = load_learnable(tmp_path / "model.d3")
    assert np.array_equal(loaded.predict(x), algorithm.predict(x))
    assert encode(loaded.observation_scaler) == encode(algorithm.observation_scaler)
    assert loaded.reward_scaler == algorithm.reward_scaler and loaded.config == algorithm.config
    algorithm.save_model(tmp_path / "parameters.pt")
    other = make()
    other.build_with_env(environments())
    assert not np.array_equal(other.predict(x), algorithm.predict(x))
    other.load_model(tmp_path / "parameters.pt")
    assert np.array_equal(other.predict(x), algorithm.predict(x))
    without = make(observation_scaler=None)
    without.build_with_env(environments())
    before = without.predict(x)
    with pytest.raises(ConfigError, match="observation_scaler, reward_scaler; this .* has: reward_scaler"):
        without.load_model(tmp_path / "parameters.pt")
    assert np.array_equal(without.predict(x), before)
    go(loaded, 20, Ramp())  # and they move on from there
    assert loaded.observation_scaler.count == 60


@pytest.mark.parametrize("suffix", [".pt", ".pt2", ".onnx"])
def test_exports_hold_them(suffix: str, tmp_path: Path) -> None:
    algorithm, x = go(sac(), 40), np.float32([[90.0, -5.1, 0.3], [0.0, 0.0, 0.0]])
    path = tmp_path / f"policy{suffix}"
    algorithm.save_policy(path)
    expected = algorithm.predict(x)
    if suffix == ".pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.jit.load(path)(torch.from_numpy(x)).numpy()  # type: ignore[no-untyped-call]
    elif suffix == ".pt2":
        found = torch.export.load(path).module()(torch.from_numpy(x)).detach().numpy()
    else:
        runtime = pytest.importorskip("onnxruntime")
        found = runtime.InferenceSession(path).run(None, {"input_0": x})[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    go(algorithm, 20)
    assert not np.allclose(algorithm.predict(x), found, atol=1e-5)  # the file stays as it was


def test_many_seeds_learn_with_them_as_each_would_alone() -> None:
    config = sac(action_scaler=MinMaxActionScaler()).config
    dataset = random_dataset((3,), 2, seed=0)
    together = birl.fit_many(config, dataset, n_steps=3, seeds=[4, 5], **QUIET)
    for seed, found in zip((4, 5), together, strict=True):
        birl.seed(seed)
        alone = config.create()
        alone.fit(random_dataset((3,), 2, seed=0), n_steps=3, **QUIET)
        assert found.observation_scaler == alone.observation_scaler and found.reward_scaler == alone.reward_scaler
        assert found.observation_scaler.built


# -- compiled updates ------------------------------------------------------------------------------------------


def test_compiled_updates_go_on_when_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [], torch.compile
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")  # which traces: nothing else is counted here
    monkeypatch.setattr(torch, "compile", lambda *args, **options: calls.append(args) or original(*args, **options))
    algorithm = DQNConfig(compile_graph=True, encoder_factory=SMALL, batch_size=8, **running()).create()
    algorithm.build_with_env(Ramp(discrete=True))
    shelves = [algorithm.engine._updates.shelf]
    for _ in range(2):
        go(algorithm, 20, Ramp(discrete=True))
        shelves.append(algorithm.engine._updates.shelf)
    assert len(calls) == 1 and algorithm.grad_step > 20
    assert len(set(shelves)) == 1
    other = DQNConfig(encoder_factory=SMALL, batch_size=8, **running() | {"reward_scaler": RunningRewardScaler(5.0)})
    other = other.create()
    other.build_with_env(Ramp(discrete=True))
    other.engine.compile()
    assert other.engine._updates.shelf != shelves[0]  # but their limits count


def test_what_scalers_keep_for_devices_does_not_hide_a_compiled_update() -> None:
    algorithm = DQNConfig(
        compile_graph=True, encoder_factory=SMALL, observation_scaler=StandardObservationScaler([0.0] * 3, [1.0] * 3)
    ).create()
    algorithm.build_with_env(Ramp(discrete=True))
    before = algorithm.engine._updates.shelf
    algorithm.predict(np.zeros((1, 3), np.float32))
    assert algorithm.engine._updates.shelf == before


def test_recorded_updates_see_them_move() -> None:
    """What a recording reads are the same tensors, whatever moved them and wherever they were made."""
    scaler = RunningObservationScaler()
    scaler.prepare((2,), 0.99)
    with torch.inference_mode():
        scaler.transform(torch.zeros(1, 2, dtype=torch.float64))
    moments = scaler._leaves[0]  # type: ignore[index]
    kept = [(tensor, tensor.data_ptr()) for pair in moments._cache.values() for tensor in pair]  # type: ignore[union-attr]
    assert len(kept) == 4
    scaler.update(np.array([[1.0, 2.0], [3.0, 8.0]]))
    assert [tensor.data_ptr() for tensor, _ in kept] == [place for _, place in kept]
    assert [tensor.tolist() for tensor, _ in kept[::2]] == [[2.0, 5.0]] * 2
    other = copy.deepcopy(scaler)
    other.update(np.array([[9.0, 9.0]]))
    assert scaler.count == 2 and other.count == 3


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RunningObservationScaler(clip=0.0), "clip is 0.0; it must be a float > 0 or None"),
        (lambda: RunningObservationScaler(eps=0), "eps is 0; it must be a float > 0"),
        (lambda: RunningRewardScaler(gamma=1.5), "gamma is 1.5; it must be a float >= 0 and <= 1 or None"),
        (lambda: RunningObservationScaler(statistics=3), "statistics is 3; it must be a list"),
        (lambda: RunningObservationScaler(statistics=[{"count": 1}]), "it must have a count"),
        (lambda: RunningRewardScaler(statistics={"count": -1, "mean": 0, "squares": 0}), "a count >= 0"),
        (lambda: RunningRewardScaler(statistics={"count": 1, "mean": np.nan, "squares": 0}), "all finite"),
        (lambda: RunningRewardScaler(statistics={"count": 1, "mean": [0], "squares": [0]}), "of numbers"),
        (lambda: RunningRewardScaler().update([[1.0]], [[True]]), "gamma is None"),
    ],
)
def test_impossible_parameters_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        make()


def test_impossible_steps_are_refused_and_change_nothing() -> None:
    scaler, rewards = RunningObservationScaler(), RunningRewardScaler(gamma=0.9)
    scaler.update(np.zeros((2, 3)))
    rewards.update(np.ones((2, 3)), np.zeros((2, 3), bool))
    before = scaler.get_state(), repr(rewards.get_state())
    pair = (np.zeros((2, 3)), np.zeros((2, 3)))
    for rows in (np.zeros((2, 4)), np.zeros(3), np.float64(1.0), pair, [["a", "b", "c"]]):
        with pytest.raises(ShapeError):
            scaler.update(rows)
    with pytest.raises(NonFiniteError):
        scaler.update(np.full((1, 3), np.nan))
    for bad, first in ((np.ones(3), np.zeros(3)), (np.ones((1, 3)), np.zeros((1, 2)))):
        with pytest.raises(ShapeError):
            rewards.update(bad, first)
    with pytest.raises(NonFiniteError):
        rewards.update([[np.inf] * 3], [[False] * 3])
    with pytest.raises(NonFiniteError):
        rewards.update([[1e300] * 3], [[False] * 3])  # its square would be infinite, and stay so
    with pytest.raises(ShapeError):
        scaler.transform(torch.zeros(2, 4))
    with pytest.raises(ShapeError):
        scaler.transform((torch.zeros(2, 3), torch.zeros(2, 3)))
    assert (scaler.get_state(), repr(rewards.get_state())) == before
    for unfit in (RunningObservationScaler(), RunningRewardScaler(gamma=0.9)):
        with pytest.raises(EmptyDataError):
            unfit.fit_with_episodes([])


def test_statistics_of_other_observations_are_refused() -> None:
    scaler = RunningObservationScaler()
    scaler.update(np.zeros((2, 4)))
    with pytest.raises(ShapeError, match=r"\[\(4,\)\], but observations have \[\(3,\)\]"):
        ppo(observation_scaler=scaler).build_with_env(environments())


def test_n_step_returns_need_rewards_that_add_up() -> None:
    env = Ramp(discrete=True)
    buffer = create_fifo_replay_buffer(limit=100, env=env, transition_picker=MultiStepTransitionPicker(3, 0.99))
    algorithm = DQNConfig(batch_size=8, reward_scaler=RunningRewardScaler()).create()
    with pytest.raises(ConfigError, match=r"RunningRewardScaler\(clip=None\)"):
        go(algorithm, 20, env, buffer=buffer)
    algorithm = DQNConfig(batch_size=8, reward_scaler=RunningRewardScaler(clip=None)).create()
    assert go(algorithm, 20, env, buffer=buffer).reward_scaler.count == 20


def test_sums_of_scaled_rewards_that_are_kept_refuse_a_scaler_that_moves() -> None:
    algorithm = CalQLConfig(reward_scaler=RunningRewardScaler(), batch_size=8).create()
    with pytest.raises(UnsupportedError, match="CalQL, which stores returns, cannot be combined"):
        go(algorithm, 20, Ramp())


def test_one_of_ones_own_moves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObservationScaler, "_known", {**ObservationScaler._known})

    class Last(ObservationScaler, type="last_of_test_running"):
        running = True
        seen = 0

        def update(self, observations: Any) -> None:
            self.seen += len(observations)

        def transform(self, x: Any) -> Any:
            return x.float() / 100

    algorithm = go(ppo(observation_scaler=Last()), 40)
    assert algorithm.observation_scaler.seen == 40


class Joined(nn.Module):
    def forward(self, x: Any) -> Tensor:
        return torch.cat([*x.values()], -1)


class JoinedFactory(EncoderFactory, type="joined_of_test_running"):
    def create(self, observation_shape: Any) -> nn.Module:
        return Joined()


def test_dict_observations_online() -> None:
    space = spaces.Dict({"place": spaces.Box(-np.inf, np.inf, (3,)), "kind": spaces.Box(0, 99, (1,), np.int64)})
    algorithm = ppo(actor_encoder_factory=JoinedFactory(), value_encoder_factory=JoinedFactory())
    go(algorithm, 40, environments(space=space))
    found = algorithm.observation_scaler.get_params()["statistics"]
    kind, place = found if found[0] is None else found[::-1]  # in the order of the space
    assert kind is None and place["count"] == 40 and place["mean"][0] == pytest.approx(100, abs=20)


def test_parts_move_by_name_whatever_their_order() -> None:
    """In one's own loop dicts need not be sorted, as spaces are, and may hold a mask and unread parts."""
    box = spaces.Box(-np.inf, np.inf, (2,))
    space = spaces.Dict({"a": box, "b": box, "text": spaces.Text(5), "action_mask": spaces.MultiBinary(3)})
    algorithm = DQNConfig(observation_scaler=RunningObservationScaler(), observation_keys=("a", "b")).create()
    algorithm.build_with_env(birl.envs.ExternalEnv(space, spaces.Discrete(3)))
    scaler: Any = algorithm.observation_scaler
    rows = {"b": np.full((4, 2), 7.0), "action_mask": np.ones((4, 3)), "text": ["go"] * 4, "a": np.full((4, 2), -5.0)}
    scaler.update(rows)
    scaler.set_state(scaler.get_state())
    scaler.update(rows)
    assert [part["mean"] for part in scaler.get_params()["statistics"]] == [[-5.0, -5.0], [7.0, 7.0]]
    with pytest.raises(ShapeError, match="it must have a, b"):
        scaler.update({"b": rows["b"]})
    assert scaler.count == 8


def test_statistics_stay_after_a_number_of_steps() -> None:
    scaler, rows = RunningObservationScaler(until=5), np.random.default_rng(0).normal(size=(9, 2))
    scaler.prepare((2,), 0.99)
    for start in (0, 3, 6):
        scaler.update(rows[start : start + 3])
    assert scaler.count == 6
    x = torch.tensor(rows, dtype=torch.float32)
    expected = (rows - rows[:6].mean(0)) / np.sqrt(rows[:6].var(0) + 1e-8)
    np.testing.assert_allclose(scaler.transform(x), expected, rtol=1e-4, atol=1e-5)
    again = RunningObservationScaler.deserialize(scaler.serialize())
    again.update(rows)
    assert again == scaler and again.until == 5
    with pytest.raises(ConfigError, match="until is 0"):
        RunningObservationScaler(until=0)


def test_states_of_huge_returns_can_be_restored() -> None:
    """Discounted sums of rewards exceed float32 before any single reward does."""
    scaler = RunningRewardScaler(gamma=1.0)
    scaler.update(np.full((10, 1), 3e38), np.arange(10)[:, None] == 0)
    again = RunningRewardScaler()
    again.set_state(scaler.get_state())
    assert again == scaler
    with pytest.raises(NonFiniteError, match="the saved running returns"):
        again.set_state({**scaler.get_state(), "returns": np.array([np.inf])})
