"""`Algorithm.agent`: agent and loop give equal bits for every kind of algorithm; what agents know of spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run.fakes import Drift

import birl
from birl.algos import (
    BCConfig,
    ConstantEpsilonGreedy,
    DecisionTransformerConfig,
    DiscreteDecisionTransformerConfig,
    DQNConfig,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    PPOConfig,
    RandomPolicyConfig,
    SACConfig,
    TD3Config,
)
from birl.dataset import create_fifo_replay_buffer
from birl.envs import ExternalEnv, reset_generator, single_spaces
from birl.errors import ConfigError, NotBuiltError, ShapeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.preprocessing import MinMaxActionScaler, RunningObservationScaler, RunningRewardScaler
from birl.run.data_collection import collect
from birl.types import tree_leaves

SMALL = VectorEncoderFactory(hidden_units=[8])
GRU = GRUEncoderFactory(hidden_size=6, hidden_units=[6])
ACTOR_CRITIC: dict[str, Any] = {"batch_size": 8, "actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
WINDOW: dict[str, Any] = {"context_size": 3, "num_layers": 1, "batch_size": 4, "encoder_factory": SMALL}
N_STEPS = 40


def drift(n: int, discrete: bool, **options: Any) -> Any:
    """One environment, or ``n`` at once."""
    makers = [lambda: Drift(discrete, **options)] * n
    return makers[0]() if n == 1 else SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


def own_loop(agent: Any, env: Any, resets: np.random.Generator, n_steps: int = N_STEPS) -> None:
    """The loop of the guide, with the seeds of resets that birl's loops draw."""
    if agent.n > 1:
        own_loop_of_several(agent, env, resets, n_steps)
        return
    observation, _ = env.reset(seed=int(resets.integers(2**31 - 1)))
    for _ in range(n_steps):
        action = agent.act(observation)
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(observation, reward, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset(seed=int(resets.integers(2**31 - 1)))
    agent.reset()


def own_loop_of_several(agent: Any, env: Any, resets: np.random.Generator, n_steps: int) -> None:
    def seed() -> int:
        return int(resets.integers(2**31 - agent.n))

    observation, _ = env.reset(seed=seed())
    for _ in range(n_steps // agent.n):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, reward, terminated, truncated)
        done = terminated | truncated
        if done.any():
            observation, _ = env.reset(seed=seed(), options=None if done.all() else {"reset_mask": done})
    agent.reset()


def bits(algorithm: Any, buffer: Any) -> list[Any]:
    stored = [] if buffer is None else tree_leaves(buffer.get_state()["storage"])
    return [torch.get_rng_state(), *tree_leaves(algorithm.get_state()), *stored]


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(np.array_equal(x, y) for x, y in zip(one, two, strict=True))


KINDS: dict[str, tuple[Any, Callable[[], Any], dict[str, Any]]] = {
    "DQN": (
        DQNConfig(batch_size=8, encoder_factory=SMALL),
        lambda: LinearDecayEpsilonGreedy(1.0, 0.1, 30),
        {"random_steps": 9, "update_start_step": 9, "update_interval": 2},
    ),
    "SAC": (SACConfig(**ACTOR_CRITIC), lambda: None, {"n_updates": 2, "update_interval": 3}),
    "SAC, running scalers": (
        SACConfig(**ACTOR_CRITIC, observation_scaler=RunningObservationScaler(), reward_scaler=RunningRewardScaler()),
        lambda: None,
        {"random_steps": 9},
    ),
    "TD3": (TD3Config(**ACTOR_CRITIC), lambda: NormalNoise(std=0.2), {"random_steps": 5}),
    "recurrent DQN": (
        DQNConfig(batch_size=4, encoder_factory=GRU, sequence_length=4),
        lambda: ConstantEpsilonGreedy(0.2),
        {"update_interval": 4},
    ),
    "recurrent SAC": (
        SACConfig(batch_size=4, sequence_length=4, actor_encoder_factory=GRU, critic_encoder_factory=GRU),
        lambda: None,
        {"update_interval": 4},
    ),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_off_policy(name: str, n: int) -> None:
    config, explorer, schedule = KINDS[name]
    discrete = isinstance(config, DQNConfig)

    def made() -> tuple[Any, Any, Any]:
        birl.seed(0)
        env = drift(n, discrete)
        return config.create(), env, create_fifo_replay_buffer(30, env=env)

    algorithm, env, buffer = made()
    known = ExternalEnv(*single_spaces(env))
    agent = algorithm.agent(n, buffer, explorer(), env=known, seed=3, **schedule)
    own_loop(agent, env, reset_generator(env, 3).spawn(2)[0])
    found = bits(algorithm, buffer)
    assert algorithm.grad_step > 5

    algorithm, env, buffer = made()
    quiet: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "seed": 3}
    algorithm.fit_online(env, buffer, explorer(), N_STEPS, **schedule, **quiet)
    assert same(found, bits(algorithm, buffer))


WHOLE = 32
"""Steps of whole rollouts: at its end, a loop also learns from the rest of one."""


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("encoder", [SMALL, GRU])
def test_on_policy(encoder: Any, n: int) -> None:
    parts: dict[str, Any] = {"actor_encoder_factory": encoder, "value_encoder_factory": encoder}
    if encoder is GRU:
        parts["sequence_length"] = 4
    config = PPOConfig(rollout_length=8, batch_size=8, n_epochs=2, **parts)
    birl.seed(0)
    algorithm, env = config.create(), drift(n, discrete=False)
    own_loop(algorithm.agent(n, env=env), env, reset_generator(env, 3), WHOLE)
    found = bits(algorithm, None)
    assert algorithm.grad_step > 5

    birl.seed(0)
    algorithm, env = config.create(), drift(n, discrete=False)
    algorithm.fit_online(env, n_steps=WHOLE, logger_adapter=NoopAdapterFactory(), show_progress=False, seed=3)
    assert same(found, bits(algorithm, None))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("discrete", [True, False])
def test_sequence_models_aim_at_a_return(discrete: bool, n: int) -> None:
    birl.seed(0)
    env = drift(n, discrete, end=0.0)
    config: Any = (DiscreteDecisionTransformerConfig if discrete else DecisionTransformerConfig)(**WINDOW)
    algorithm = config.create()
    algorithm.build_with_env(env)
    found = []
    for own in (True, False):
        birl.seed(1)
        buffer = create_fifo_replay_buffer(100, env=env)
        if own:
            agent = algorithm.agent(n, buffer=buffer, target_return=5.0, env=env)
            own_loop(agent, env, reset_generator(env, 3).spawn(2)[0], 20)
        else:
            aiming = algorithm.as_stateful_wrapper(5.0)
            collect(aiming, env, buffer, n_steps=20, show_progress=False, seed=3)
        found.append(bits(algorithm, buffer))
    assert same(*found)
    assert buffer.transition_count == 20
    other = algorithm.agent(n, target_return=-5.0)
    assert not np.array_equal(*(_outputs(algorithm, each) for each in (agent, other)))
    with pytest.raises(UnsupportedError, match="learns only from logged data"):
        algorithm.agent(target_return=5.0, update_interval=1)


def _outputs(algorithm: Any, agent: Any) -> Any:
    """What a sequence model puts out for the first observation of an episode."""
    agent.act(np.zeros((2,) if agent.n == 1 else (agent.n, 2), np.float32))
    actor = agent._current.core._actor._context
    return algorithm.predict_context(actor["observation"], actor["action"], actor["return"], actor["step"])


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_algorithm_that_only_acts(deterministic: bool) -> None:
    def made() -> tuple[Any, Any, Any]:
        birl.seed(0)
        env = Drift(discrete=False)
        algorithm = BCConfig(batch_size=8, encoder_factory=SMALL, policy_type="stochastic").create()
        algorithm.build_with_env(env)
        return algorithm, env, create_fifo_replay_buffer(100, env=env)

    algorithm, env, buffer = made()
    agent = algorithm.agent(buffer=buffer, env=env, deterministic=deterministic, seed=3)
    own_loop(agent, env, reset_generator(env, 3).spawn(2)[0])
    assert algorithm.grad_step == 0 and agent.step == buffer.transition_count == N_STEPS
    found = bits(algorithm, buffer)
    algorithm, env, buffer = made()
    algorithm.collect(env, buffer, deterministic=deterministic, n_steps=N_STEPS, show_progress=False, seed=3)
    assert same(found, bits(algorithm, buffer))
    with pytest.raises(UnsupportedError, match="learns only from logged data"):
        algorithm.agent(update_interval=2)

    agent = algorithm.agent(deterministic=True)  # what a deployed policy needs: no buffer, no environment
    assert np.array_equal(agent.act([0.5, 1.0]), algorithm.predict(np.array([[0.5, 1.0]], np.float32))[0])
    agent.observe([0.5, 1.0], 0.0, False)


def test_online_algorithms_may_only_act() -> None:
    env = Drift()
    algorithm = DQNConfig(batch_size=4, encoder_factory=SMALL).create()
    agent = algorithm.agent(env=env, update_interval=None)
    own_loop(agent, env, reset_generator(env, 3), 20)
    assert algorithm.grad_step == 0 and agent.metrics().keys() == {"rollout_return", "episode_length"}
    random = RandomPolicyConfig().create()
    random.create_impl((2,), 2)
    assert np.abs(random.agent().act(np.zeros(2))).max() <= 1


def test_evaluation_in_ones_own_loop_gives_what_evaluate_gives() -> None:
    env = Drift(discrete=False, end=0.0)
    algorithm = SACConfig(**{**ACTOR_CRITIC, "actor_encoder_factory": GRU, "critic_encoder_factory": GRU}).create()
    agent = algorithm.agent(env=env)
    resets, total = reset_generator(env, 7), 0.0
    observation, _ = env.reset(seed=int(resets.integers(2**31 - 1)))
    done = False
    with agent.evaluating():
        while not done:
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
            agent.observe(observation, reward, terminated, truncated)
            total, done = total + reward, terminated or truncated
    assert birl.metrics.evaluate(algorithm, env, n_episodes=1, seed=7) == [pytest.approx(total)]


def test_spaces_that_networks_tell_of() -> None:
    algorithm = SACConfig(**ACTOR_CRITIC).create()
    with pytest.raises(NotBuiltError):
        algorithm.agent()
    algorithm.create_impl((2,), 2)
    agent = algorithm.agent(random_steps=50)
    actions = []
    for _ in range(50):
        actions.append(agent.act(np.zeros(2)))
        agent.observe(np.zeros(2), 0.0, False)
    assert 0.9 < np.abs(actions).max() <= 1
    scaled = SACConfig(**ACTOR_CRITIC, action_scaler=MinMaxActionScaler([0.0, 5.0], [1.0, 6.0])).create()  # type: ignore[arg-type]
    scaled.create_impl((2,), 2)
    action = scaled.agent(random_steps=1).act(np.zeros(2))
    assert 0 <= action[0] <= 1 and 5 <= action[1] <= 6
    tree = ExternalEnv(spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), spaces.Box(-1, 1, (2,)))
    with pytest.raises(birl.errors.EnvironmentMismatchError, match="built for"):
        algorithm.agent(env=tree)


def test_agents_read_choices_and_masks() -> None:
    """The spaces that networks tell of are those of the data, not those of the networks' inputs."""
    shape = {"place": spaces.Discrete(5, start=2), "dice": spaces.MultiDiscrete([2, 3]), "action_mask": (3,)}
    algorithm = DQNConfig(batch_size=4, compile_graph=False).create()
    algorithm.create_impl(shape, 3)
    agent = algorithm.agent(explorer=birl.algos.ConstantEpsilonGreedy(0.5), update_start_step=4)
    for step in range(20):
        mask = np.arange(3) == step % 3
        seen = {"place": 2 + step % 5, "dice": np.array([step % 2, step % 3]), "action_mask": mask}
        assert agent.act(seen) == step % 3
        after = {**seen, "action_mask": np.arange(3) == (step + 1) % 3}
        agent.observe(after, 1.0, step % 7 == 6)
    assert algorithm.grad_step > 10


def test_options_that_are_of_no_use() -> None:
    env = Drift()
    ppo = PPOConfig().create()
    with pytest.raises(ConfigError, match="does not use buffer, deterministic: leave them out"):
        ppo.agent(1, create_fifo_replay_buffer(10, env=env), env=env, deterministic=True)
    with pytest.raises(ConfigError, match="does not use update_interval"):
        ppo.agent(env=env, update_interval=3)
    for algorithm in (ppo, DQNConfig().create()):
        with pytest.raises(ConfigError, match="agent has no option 'update_intervall'; did you mean 'update_interval'"):
            algorithm.agent(env=env, update_intervall=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="update_interval is 0; it must be an int >= 1"):
        DQNConfig().create().agent(env=env, update_interval=0)
    with pytest.raises(ConfigError, match="explorer is 'noise'"):
        DQNConfig().create().agent(explorer="noise", env=env)
    with pytest.raises(ShapeError, match="lanes=2"):
        DQNConfig().create().agent(2, create_fifo_replay_buffer(100, env=env), env=env)
