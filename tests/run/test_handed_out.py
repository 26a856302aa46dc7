"""Arrays that user code gets or gives: what it writes into them changes neither data nor training."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from birl import algos
from birl.dataset import (
    BasicTransitionPicker,
    MDPDataset,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.errors import ConfigError, NonFiniteError
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.models import EncoderFactory, VectorEncoderFactory

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = VectorEncoderFactory([8])


class Count(gymnasium.Env[Any, Any]):
    """Observes the number of the step, in one array that it rewrites."""

    observation_space, action_space = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)

    def reset(self, **options: Any) -> Any:
        self.seen = np.ones(1, np.float32)
        return self.seen, {}

    def step(self, action: Any) -> Any:
        self.seen += 1
        return self.seen, float(self.seen[0]), False, bool(self.seen[0] > 10), {}


def dqn(**fields: Any) -> Any:
    return algos.DQNConfig(**{"batch_size": 8, "encoder_factory": SMALL, **fields}).create()


def check(buffer: Any) -> None:
    for episode in buffer.episodes:
        expected = np.arange(1, 1 + len(episode.observations))
        assert episode.observations[:, 0].tolist() == expected.tolist()
        assert episode.rewards[:, 0].tolist() == (expected + 1).tolist()


@pytest.mark.parametrize("vector", [False, True])
def test_environments_may_rewrite_their_observations(vector: bool) -> None:
    env: Any = SyncVectorEnv([Count, Count], copy=False) if vector else Count()
    buffer = create_fifo_replay_buffer(100, env=env)
    dqn().fit_online(env, buffer, n_steps=40, **QUIET)
    check(buffer)


class Scribbling(algos.ConstantEpsilonGreedy):
    """Writes into everything that it gets, and returns the same array at every step."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.actions = np.zeros(1, np.int64)

    def begin(self, is_first: Any) -> None:
        is_first[:] = False

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        self.actions[:] = super().sample(algo, x, step)
        x[...] = -7
        algo.predict(x)[...] = 0
        return self.actions


def test_explorers_may_write_into_what_they_get() -> None:
    class Echo(Count):
        def step(self, action: Any) -> Any:
            following, _, terminated, truncated, info = super().step(action)
            return following, float(action), terminated, truncated, info

    env = Echo()
    buffer = create_fifo_replay_buffer(100, env=env)
    dqn().fit_online(env, buffer, Scribbling(), n_steps=40, **QUIET)
    for episode in buffer.episodes:
        assert episode.observations[:, 0].tolist() == list(range(1, 1 + len(episode.observations)))
        assert np.array_equal(episode.actions, episode.rewards)
    assert {0, 1} == set(np.concatenate([episode.actions for episode in buffer.episodes]).ravel().tolist())


def test_actors_may_write_into_what_they_get() -> None:
    seen = []

    def actor(observation: Any, is_first: Any, reward: Any) -> Any:
        seen.append(float(observation[0, 0]))
        observation[...], is_first[...], reward[...] = -1, False, 5
        return np.zeros(1, np.int64)

    assert evaluate(None, Count(), 2, actor=actor) == [65.0, 65.0]
    assert seen == [*range(1, 11)] * 2


@pytest.mark.parametrize("fifo", [False, True])
def test_episodes_and_transitions_cannot_be_written_to(fifo: bool) -> None:
    class Writes(BasicTransitionPicker):
        def __call__(self, episode: Any, index: int) -> Any:
            episode.observations[index] *= 5
            return super().__call__(episode, index)

    for picker in (None, Writes()):
        make: Any = (
            create_infinite_replay_buffer if not fifo else lambda **given: create_fifo_replay_buffer(99, **given)
        )
        buffer = make(env=Count(), transition_picker=picker)
        dqn().collect(Count(), buffer, n_steps=30)
        if picker is not None:
            with pytest.raises(ValueError, match="read-only"):
                buffer.sample_transition_batch(4)
            continue
        episode = buffer.episodes[0]
        for array in (episode.observations, episode.actions, episode.rewards):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        buffer.sample_transition_batch(16).observations[...] = 0
        check(buffer)


def test_evaluators_may_write_into_predictions() -> None:
    td3: Any = algos.TD3Config(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL).create()
    td3.create_impl((1,), 2)
    x = np.ones((1, 1), np.float32)
    first = td3.predict(x).copy()
    td3.predict(x)[...] = 9
    assert np.array_equal(td3.predict(x), first) and x == 1


class InPlace(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x.mul_(0.5))


class InPlaceFactory(EncoderFactory, type="writes_to_its_input"):
    def create(self, observation_shape: Any) -> Any:
        return InPlace(observation_shape[0])


def test_evaluators_may_write_into_the_metrics() -> None:
    def clear(algo: Any, dataset: Any, run: Any) -> float:
        seen.append(set(run.metrics))
        run.metrics.clear()
        run.metrics["mine"] = "text"
        return 1.0

    seen: list[set[str]] = []
    episode = MDPDataset(np.zeros((9, 1), np.float32), np.arange(9) % 2, np.ones(9), np.arange(9) == 8, np.zeros(9))
    algorithm = algos.DQNConfig(batch_size=2, encoder_factory=SMALL).create()
    ((_, metrics),) = algorithm.fit(episode, 3, n_steps_per_epoch=3, evaluators={"a": clear, "b": clear}, **QUIET)
    assert {"loss", "a", "b"} <= set(metrics) and "mine" not in metrics
    assert "loss" in seen[0] & seen[1] and seen[1] - seen[0] == {"a"}


def test_encoders_that_change_their_minibatch_are_refused() -> None:
    data = MDPDataset(np.ones((8, 1), np.float32), np.arange(8) % 2, np.zeros(8), np.eye(8)[7])
    algorithm = dqn(encoder_factory=InPlaceFactory(), compile_graph=False)
    with pytest.raises(ConfigError, match="changed its minibatch in place"):
        algorithm.fit(data, n_steps=3, n_steps_per_epoch=3, **QUIET)
    x = np.ones((2, 1), np.float32)
    algorithm.predict(x)
    assert (x == 1).all()  # acting copies


@pytest.mark.parametrize("name", ["SAC", "TD3", "PPO"])
def test_a_policy_that_became_nan_names_the_cause(name: str) -> None:
    algorithm: Any = getattr(algos, f"{name}Config")().create()
    env = gymnasium.make("Pendulum-v1")
    algorithm.build_with_env(env)
    with torch.no_grad():
        for parameter in algorithm.nets.actor.parameters():
            parameter.fill_(np.nan)
    runs: list[Any] = [
        lambda: algorithm.predict(np.zeros((1, 3), np.float32)),
        lambda: algorithm.fit_online(env, n_steps=300, **QUIET),
        lambda: algorithm.collect(env, n_steps=8, show_progress=False),
        lambda: evaluate(algorithm, env, 1),
        lambda: algorithm.agent(env=env).act(np.zeros(3, np.float32)),
    ]
    for run in runs:
        with pytest.raises(NonFiniteError, match=r"policy of \w+ returned .*'actor\..*' holds NaN.*learning rate"):
            run()
