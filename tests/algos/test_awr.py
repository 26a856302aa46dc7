"""AWR's iterations: TD(lambda) returns of drawn states, minibatches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl import algos
from birl.algorithm import experience
from birl.algorithm.multi_seed import fit_many
from birl.algos import awr
from birl.dataset import (
    Episode,
    FrameStackTransitionPicker,
    MDPDataset,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.dataset.arrays import TorchPlace
from birl.errors import ConfigError, DataError, EmptyDataError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.optimizers import SGDFactory
from birl.preprocessing import MultiplyRewardScaler
from birl.seeding import seed
from birl.testing import ChainEnv, build_algorithm
from birl.types import ActionSpace, Array, Batch, Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8])
SMALL: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "batch_size": 24,
    "batch_size_per_update": 8,
    "n_critic_updates": 4,
    "n_actor_updates": 5,
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "gamma": 0.9,
    "lam": 0.8,
}
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory(), "n_steps_per_epoch": 2}


def episode(generator: np.random.Generator, length: int, end: str) -> Episode:
    """Random steps. A time limit ("truncated") has a final observation, an "unknown" one has none."""
    return Episode(
        generator.normal(size=(length, 3)).astype(np.float32),
        generator.integers(3, size=(length, 1)),
        generator.normal(size=(length, 1)).astype(np.float32),
        end == "terminated",
        final_observation=generator.normal(size=3).astype(np.float32) if end == "truncated" else None,
    )


def episodes(count: int = 9, first: int = 0) -> list[Episode]:
    generator = np.random.default_rng(first)
    ends = ("terminated", "truncated", "unknown")
    return [episode(generator, int(generator.integers(2, 12)), ends[(first + i) % 3]) for i in range(count)]


def infinite(**options: Any) -> Any:
    return create_infinite_replay_buffer(episodes(), action_size=3, **options)


def ring(**options: Any) -> Any:
    buffer = create_fifo_replay_buffer(37, episodes(4), action_size=3, **options)
    for each in episodes(7, first=1):
        buffer.append_episode(each)
    return buffer


def lanes() -> Any:
    """Three environments that write in step, two of whose episodes are still running."""
    generator = np.random.default_rng(3)
    first = episode(generator, 2, "terminated")
    signature = {
        "observation_signature": first.observation_signature,
        "action_signature": first.action_signature,
        "action_size": 3,
    }
    buffer = create_fifo_replay_buffer(40, lanes=3, action_space=ActionSpace.DISCRETE, **signature)
    observation = generator.normal(size=(3, 3)).astype(np.float32)
    for step in range(25):
        following = generator.normal(size=(3, 3)).astype(np.float32)
        terminated, truncated = np.array([step % 7 == 6, False, step == 24]), np.array([False, step % 9 == 8, False])
        action, reward = generator.integers(3, size=3), generator.normal(size=3)
        buffer.append_batch(observation, action, reward, terminated, truncated, following)
        after_reset = generator.normal(size=(3, 3)).astype(np.float32)
        observation = np.where((terminated | truncated)[:, None], after_reset, following)
    return buffer


def mixed() -> Any:
    second = create_infinite_replay_buffer(episodes(3, first=50), action_size=3)
    return MixedReplayBuffer(ring(), second, 0.4)


BUFFERS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda path: infinite(),
    "ring": lambda path: ring(),
    "device": lambda path: infinite(storage="cpu"),
    "ring on a device": lambda path: ring(storage="cpu"),
    "folder": lambda path: infinite(storage=path / "data"),
    "lanes": lambda path: lanes(),
    "mixed": lambda path: mixed(),
    "mirrored": lambda path: infinite(),
    "mirrored ring": lambda path: ring(),
}


def build(**fields: Any) -> Any:
    return build_algorithm(algos.DiscreteAWRConfig(**{**SMALL, **fields}), action_size=3, seed=1)


def value_of(algorithm: Any, observation: Array) -> float:
    with torch.no_grad():
        return float(algorithm.nets.value(Inputs(torch.from_numpy(np.array(observation, np.float32))[None])))


def plain_return(algorithm: Any, one: Episode, step: int) -> float:
    """The recursion of TD(lambda), from the end of the episode back to the step."""
    gamma, lam = algorithm.config.gamma, algorithm.config.lam
    rewards, observations = [float(r) for r in np.ravel(one.rewards)], list(one.observations)
    if one.terminated:
        following = 0.0
    elif one.final_observation is not None:
        following = value_of(algorithm, one.final_observation)
    else:
        rewards = rewards[:-1]
        following = value_of(algorithm, observations[-1])
    result = following
    for t in range(len(rewards) - 1, step - 1, -1):
        result = rewards[t] + gamma * ((1 - lam) * following + lam * result)
        following = value_of(algorithm, observations[t])
    return result


def expected_returns(algorithm: Any, dataset: Any, drawn: Array) -> list[float]:
    found = {}
    for each in dataset.episodes:
        for step, row in enumerate(each.observations):
            found[tuple(np.float32(row).tolist())] = (each, step)
    return [plain_return(algorithm, *found[tuple(row)]) for row in drawn.tolist()]


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("kind", BUFFERS)
def test_returns_are_those_of_a_loop(kind: str, lam: float, tmp_path: Path) -> None:
    algorithm = build(lam=lam)
    dataset = source = BUFFERS[kind](tmp_path)
    if kind.startswith("mirrored"):
        source = dataset.reader.mirrored(TorchPlace(torch.device("cpu")), growing=kind == "mirrored ring")
    minibatch = algorithm.sample_minibatch(source)
    batch = algorithm.learner.batch(minibatch)
    drawn = np.asarray(minibatch.observations)
    assert len(drawn) == 24
    expected = torch.tensor(expected_returns(algorithm, dataset, drawn))
    torch.testing.assert_close(batch.extra["return"], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(batch.observation, torch.from_numpy(drawn))
    assert batch.action.shape == (24,) and batch.action.dtype == torch.int64


def one_episode(terminated: bool, known: bool = True) -> MDPDataset:
    """Rewards 1, 2, 4."""
    observation = np.arange(9, dtype=np.float32).reshape(3, 3)
    return MDPDataset(
        observation,
        np.array([0, 1, 2]),
        np.array([1.0, 2.0, 4.0], np.float32),
        np.array([0.0, 0.0, float(terminated)]),
        np.array([0.0, 0.0, float(not terminated)]),
        next_observations=np.concatenate([observation[1:], observation[:1] + 20]) if known else None,
    )


@pytest.mark.parametrize(("terminated", "known"), [(True, True), (False, True), (False, False)])
def test_time_limits_bootstrap_and_terminations_do_not(terminated: bool, known: bool) -> None:
    algorithm = build(lam=1.0)
    dataset = one_episode(terminated, known)
    minibatch = algorithm.sample_minibatch(dataset)
    got = algorithm.learner.batch(minibatch).extra["return"]
    last = np.array([20.0, 21.0, 22.0]) if known else np.array([6.0, 7.0, 8.0])
    tail = 0.0 if terminated else value_of(algorithm, last)
    third = 4.0 + 0.9 * tail if known else tail
    truth = {0.0: 1.0 + 0.9 * (2.0 + 0.9 * third), 3.0: 2.0 + 0.9 * third, 6.0: third}
    first = np.asarray(minibatch.observations)[:, 0].tolist()
    assert set(first) == ({0.0, 3.0, 6.0} if known else {0.0, 3.0})  # the step with nothing after it is not drawn
    torch.testing.assert_close(got, torch.tensor([truth[x] for x in first]))


def test_rewards_are_scaled_before_they_are_summed() -> None:
    algorithm, scaled = build(lam=1.0), build(lam=1.0, reward_scaler=MultiplyRewardScaler(10.0))
    dataset = one_episode(True)
    seed(4)
    plain = algorithm.learner.batch(one_episode(True).sample_tail_batch(8)).extra["return"]
    seed(4)
    ten = scaled.learner.batch(one_episode(True).sample_tail_batch(8)).extra["return"]
    torch.testing.assert_close(ten, 10 * plain)
    assert dataset.sample_tail_batch(2).longest == 3


def test_stacked_frames_are_valued_as_they_are_seen() -> None:
    dataset = create_infinite_replay_buffer(episodes(), FrameStackTransitionPicker(2), action_size=3)
    seed(1)
    algorithm = algos.DiscreteAWRConfig(**SMALL).create()
    algorithm.build_with_dataset(dataset)
    minibatch = algorithm.sample_minibatch(dataset)
    rows = minibatch.read(0, len(minibatch.rewards))
    np.testing.assert_array_equal(rows[minibatch.index], minibatch.observations)
    assert rows.shape[1:] == (6,)
    inside = np.flatnonzero(minibatch.steps[:-1, 0])
    np.testing.assert_array_equal(rows[inside, 3:], rows[inside + 1, :3])  # the newest frame is then the older one


def test_returns_hold_few_observations_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, dataset = build(), infinite()
    minibatch = algorithm.sample_minibatch(dataset)
    whole = algorithm.learner.batch(minibatch)
    read, sizes = minibatch.read, []

    def watched(begin: int, end: int) -> Any:
        sizes.append(end - begin)
        return read(begin, end)

    object.__setattr__(minibatch, "read", watched)
    monkeypatch.setattr(experience, "ROWS_AT_ONCE", 7)
    again = algorithm.learner.batch(minibatch)
    assert max(sizes) == 7 and sum(sizes) == len(minibatch.rewards)
    torch.testing.assert_close(again.extra["return"], whole.extra["return"])


def test_steps_of_one_episode_share_its_tail() -> None:
    """However many steps are drawn, there are no more rows than the dataset has."""
    dataset = infinite()
    minibatch = dataset.sample_tail_batch(5000)
    unknown = sum(each.final_observation is None and not each.terminated for each in dataset.episodes)
    assert len(minibatch.rewards) == dataset.step_count + dataset.size() - unknown
    assert minibatch.longest == max(int(each.size()) for each in dataset.episodes)
    assert int(minibatch.steps.sum()) == dataset.transition_count


def test_long_episodes_are_solved_without_a_loop() -> None:
    """A million rows: passes over all of them, twenty in number."""
    rows = 1_000_000
    value, reward, step = torch.zeros(rows), torch.ones(rows), torch.ones(rows)
    step[-1] = 0
    discount = torch.full((rows,), 0.99)
    got = awr.lambda_returns(value, reward, discount, step, 1.0, rows - 1)
    assert got[0] == pytest.approx(100.0, rel=1e-5)
    assert got[-2:].tolist() == [1.0, 0.0]


def test_a_dataset_must_not_be_written_to_between_drawing_and_learning() -> None:
    algorithm, buffer = build(), ring()
    minibatch = algorithm.sample_minibatch(buffer)
    buffer.append_episode(episodes(1)[0])
    with pytest.raises(DataError, match="written to after this minibatch was sampled"):
        algorithm.update(minibatch)


@pytest.mark.parametrize("discrete", [True, False])
def test_trap_awr_an_iteration_is_minibatches_with_momentum(discrete: bool) -> None:
    config = (algos.DiscreteAWRConfig if discrete else algos.AWRConfig)()
    assert config.actor_optim_factory == config.critic_optim_factory == SGDFactory(momentum=0.9)
    assert (config.batch_size, config.batch_size_per_update) == (2048, 256)
    assert (config.n_critic_updates, config.n_actor_updates) == (200, 1000)
    assert (config.actor_learning_rate, config.critic_learning_rate) == (5e-5, 1e-4)
    assert (config.lam, config.beta, config.max_weight, config.gamma) == (0.95, 0.05, 20.0, 0.99)

    algorithm = build()
    seen: list[tuple[str, Batch]] = []
    update = algorithm.engine.update

    def watched(batch: Batch, only: Any = None) -> Any:
        seen.append((only, batch))
        return update(batch, only)

    algorithm.engine.update = watched
    metrics = algorithm.update(algorithm.sample_minibatch(infinite()))
    assert [only for only, _ in seen] == [("critic",)] * 4 + [("actor",)] * 5
    assert all(len(batch.weight) == 8 for _, batch in seen)
    assert algorithm.grad_step == 9
    assert set(metrics) == {"critic_loss", "actor_loss", "weights"}
    passes = torch.cat([batch.observation for _, batch in seen[:3]])
    again = torch.cat([batch.observation for _, batch in seen[4:7]])
    assert not torch.equal(passes, again)
    assert sorted(passes.tolist()) == sorted(again.tolist())  # a pass has every state once


def test_minibatches_are_full_and_as_many_as_asked_for() -> None:
    x = torch.arange(10.0)
    batch = Batch(x[:, None], x, x, None, x, torch.ones(10), extra={"return": x})
    torch.manual_seed(0)
    made = [each.reward.tolist() for each in experience.minibatches(batch, 4, 5)]
    assert [len(each) for each in made] == [4] * 5
    assert len({*made[0], *made[1]}) == len({*made[2], *made[3]}) == 8
    assert made[:2] != made[2:4]


def test_weights_are_those_of_the_value_function_after_its_regression() -> None:
    """Algorithm 1: line 6 uses the V of line 5."""
    algorithm = build(critic_learning_rate=1e-1, n_actor_updates=3, beta=2.0)
    minibatch = algorithm.sample_minibatch(infinite())
    returns = algorithm.learner.batch(minibatch).extra["return"]
    metrics = algorithm.update(minibatch)
    with torch.no_grad():
        value = algorithm.nets.value(Inputs(torch.from_numpy(minibatch.observations)))
    assert float(metrics["weights"]) == pytest.approx(float(((returns - value) / 2.0).exp().clamp(max=20).mean()))


def test_a_huge_advantage_has_the_largest_weight() -> None:
    algorithm = build(beta=1e-6, max_weight=3.0)
    minibatch = algorithm.sample_minibatch(infinite())
    metrics = algorithm.update(minibatch)
    assert 0 < float(metrics["weights"]) <= 3.0
    assert np.isfinite(float(metrics["actor_loss"]))


def test_returns_leave_batch_norm_alone() -> None:
    algorithm = build(critic_encoder_factory=VectorEncoderFactory(hidden_units=[8], use_batch_norm=True))
    before = {name: value.clone() for name, value in algorithm.nets.state_dict().items()}
    algorithm.learner.batch(algorithm.sample_minibatch(infinite()))
    assert all(torch.equal(before[name], value) for name, value in algorithm.nets.state_dict().items())
    assert any("running" in name for name in before)


def test_predict_value_is_that_of_states() -> None:
    algorithm = build()
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    expected = [value_of(algorithm, row) for row in x]
    np.testing.assert_allclose(algorithm.predict_value(x), expected, rtol=1e-5)
    np.testing.assert_array_equal(algorithm.predict_value(x, np.array([0, 1, 2, 0])), algorithm.predict_value(x))
    continuous = algos.AWRConfig(**SMALL).create()
    continuous.create_impl((3,), 2)
    assert continuous.predict_value(x).shape == (4,)


def test_a_run_is_compiled_by_the_number_of_its_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, asked = build(n_critic_updates=400, n_actor_updates=600), []
    monkeypatch.setattr(algorithm.engine, "compile", lambda required: asked.append(required))
    dataset = infinite()
    algorithm.learner.start_run(dataset, 9)
    assert asked == []
    algorithm.learner.start_run(dataset, 10)
    assert asked == [False]


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    states = []
    for stops in ((4,), (2, 4)):
        for stop in stops:
            seed(5)
            algorithm = algos.DiscreteAWRConfig(**SMALL).create()
            algorithm.fit(infinite(), stop, checkpoint=tmp_path / str(len(stops)), **QUIET)
        states.append(algorithm.get_state()["engine"])
    assert states[0]["grad_step"] == states[1]["grad_step"] == 4 * 9
    assert all(torch.equal(states[0]["nets"][name], states[1]["nets"][name]) for name in states[0]["nets"])


@pytest.mark.parametrize("discrete", [True, False])
def test_online_with_a_ring(discrete: bool) -> None:
    seed(2)
    env = ChainEnv(discrete)
    buffer = create_fifo_replay_buffer(50, env=env)
    algorithm = (algos.DiscreteAWRConfig if discrete else algos.AWRConfig)(**SMALL).create()
    algorithm.fit_online(env, buffer, n_steps=120, update_interval=30, **{**QUIET, "n_steps_per_epoch": 120})
    assert algorithm.grad_step == 4 * 9
    assert buffer.step_count == 50


def test_what_cannot_be_used_is_refused_with_a_remedy() -> None:
    algorithm, dataset = build(), infinite()
    with pytest.raises(DataError, match="TransitionMiniBatch: draw with sample_minibatch"):
        algorithm.update(dataset.sample_transition_batch(4))
    n_step = create_infinite_replay_buffer(episodes(), MultiStepTransitionPicker(3, 0.9), action_size=3)
    with pytest.raises(UnsupportedError, match="MultiStepTransitionPicker cannot be used for returns"):
        algorithm.sample_minibatch(n_step)
    with pytest.raises(UnsupportedError, match="MultiStepTransitionPicker cannot be used for returns"):
        algorithm.learner.start_run(n_step, 10)  # before a run has stored or learned anything
    with pytest.raises(ConfigError, match="batch_size_per_update is 256; it must be at most the batch_size of 32"):
        algos.AWRConfig(batch_size=32)
    with pytest.raises(ConfigError, match=r"AWRConfig.beta is 0.0; it must be a float > 0"):
        algos.DiscreteAWRConfig(beta=0.0)
    with pytest.raises(ConfigError, match=r"lam is 1.5; it must be a float >= 0 and <= 1"):
        algos.AWRConfig(lam=1.5)
    with pytest.raises(UnsupportedError, match="feed-forward encoders"):
        build(critic_encoder_factory=GRUEncoderFactory(hidden_size=4))
    with pytest.raises(UnsupportedError, match="DiscreteAWR, which makes many updates from each minibatch"):
        fit_many(algos.DiscreteAWRConfig(**SMALL), dataset, 2, 2)
    empty = create_fifo_replay_buffer(10, env=ChainEnv(True))
    with pytest.raises(EmptyDataError):
        algorithm.sample_minibatch(empty)
