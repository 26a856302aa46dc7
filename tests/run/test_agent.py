"""Agents in a user's own loop: the same bits as birl's loops, resume, evaluation, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import birl.seeding
from birl.acting.explorers import ConstantEpsilonGreedy
from birl.algos import DiscreteACERConfig, DQNConfig, NStepDQNConfig
from birl.dataset import create_fifo_replay_buffer
from birl.envs import ExternalEnv, Stepper, reset_generator, single_spaces
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    FileError,
    NonFiniteError,
    OrderError,
    ResumeError,
    ShapeError,
)
from birl.models import VectorEncoderFactory
from birl.optimizers import AdamFactory
from birl.run.agent import Agent, replay_agent, rollout_agent
from birl.run.on_policy import on_policy_fitter
from birl.run.options import checked_agent_options
from run.fakes import Drift, FakeLearner
from run.test_online import MODES, environment, fit_online, quiet, state_of

SCHEDULE: dict[str, Any] = {"update_interval": 2, "n_updates": 2, "update_start_step": 6, "random_steps": 15}


def replay(env: Any, n: int = 1, seed: int = 0, **fields: Any) -> tuple[Agent, Any]:
    """An agent that learns from a small buffer, and the buffer."""
    birl.seeding.seed(seed)
    learner, known = FakeLearner(remembers=True), ExternalEnv(*single_spaces(env))
    buffer = create_fifo_replay_buffer(limit=23, env=known, lanes=n)
    options: Any = {**SCHEDULE, "seed": 3, **fields}
    given = checked_agent_options(options)
    return replay_agent(learner, known, n, buffer, ConstantEpsilonGreedy(0.3), True, given), buffer


def rollout(env: Any, n: int = 1, seed: int = 0) -> tuple[Agent, Any]:
    """An agent that learns from rollouts."""
    birl.seeding.seed(seed)
    return rollout_agent(FakeLearner(remembers=True), ExternalEnv(*single_spaces(env)), n), None


def go_on(agent: Agent, world: Stepper, count: int) -> None:
    """A user's own loop, with one environment or several."""
    for _ in range(count):
        one = agent.n == 1
        observation = {name: leaf[0] if one else leaf for name, leaf in world.observation.items()}
        action = agent.act(observation)
        for leaf in observation.values():  # its memory is the caller's
            leaf[...] = 77
        step = world.step(np.array([action]) if one else action)
        following = {name: leaf[0] if one else leaf for name, leaf in step.next_observation.items()}
        flags = [flag[0] if one else flag for flag in (step.reward, step.terminated, step.truncated)]
        agent.observe(following, *flags, valid=step.valid)


def world(env: Any, split: bool) -> Stepper:
    """The environment, with the seeds of resets that birl's loops use."""
    generator = reset_generator(env, 3)
    return Stepper(env, generator.spawn(2)[0] if split else generator)


def bits(learner: Any, buffer: Any) -> list[Any]:
    rollouts = [leaf for each in learner.rollouts for leaf in (each.reward[each.valid], each.action[each.valid])]
    stored = [] if buffer is None else state_of((learner, buffer))
    return [learner.weight.numpy(), np.array(learner.grad_step), torch.get_rng_state().numpy(), *rollouts, *stored]


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(map(np.array_equal, one, two))


@pytest.mark.parametrize("mode", MODES)
def test_agent_and_off_policy_loop_are_equal_bit_for_bit(mode: Any) -> None:
    env = environment(mode, kind="dict")
    agent, buffer = replay(env, n=1 if mode is None else 3)
    go_on(agent, world(env, split=True), 60 if mode is None else 25)
    agent.reset()
    learner: Any = agent.algorithm
    found = bits(learner, buffer)
    assert learner.grad_step > 40

    birl.seeding.seed(0)
    env, learner = environment(mode, kind="dict"), FakeLearner(remembers=True)
    buffer = create_fifo_replay_buffer(limit=23, env=env)
    fit_online(learner, env, buffer, ConstantEpsilonGreedy(0.3), agent.step, **quiet(**SCHEDULE))
    assert same(found, bits(learner, buffer))
    assert not same(found, [np.zeros(3), *found[1:]])


@pytest.mark.parametrize("mode", MODES)
def test_agent_and_on_policy_loop_are_equal_bit_for_bit(mode: Any) -> None:
    env = environment(mode, kind="dict")
    agent, _ = rollout(env, n=1 if mode is None else 3)
    own: Any = agent.algorithm
    place = world(env, split=False)
    while len(own.rollouts) < 5:
        go_on(agent, place, 1)
    found = bits(own, None)

    birl.seeding.seed(0)
    learner: Any = FakeLearner(remembers=True)
    list(on_policy_fitter(learner, environment(mode, kind="dict"), n_steps=agent.step, **quiet()))
    assert len(learner.rollouts) == 5
    assert same(found, bits(learner, None))


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("make", [replay, rollout])
def test_a_saved_agent_goes_on_bit_for_bit(tmp_path: Path, make: Callable[..., Any], mode: Any) -> None:
    def run(stops: tuple[int, ...], between: bool) -> Any:
        env = environment(mode, kind="dict")
        n = 1 if mode is None else 3
        (agent, buffer), place, done = make(env, n), world(env, split=True), 0
        for number, stop in enumerate((*stops, 30)):
            go_on(agent, place, stop - done)
            if stop < 30 and between:  # the world goes on after the agent was saved, between act and observe
                row = {name: leaf[0] if n == 1 else leaf for name, leaf in place.observation.items()}
                action = agent.act(row)
            if stop < 30:
                agent.save(tmp_path / f"{between}")
                agent, buffer = make(env, n, seed=90 + number)
                agent.load(tmp_path / f"{between}")
            if stop < 30 and between:
                step = place.step(np.array([action]) if n == 1 else action)
                after = {name: leaf[0] if n == 1 else leaf for name, leaf in step.next_observation.items()}
                rest = [x[0] if n == 1 else x for x in (step.reward, step.terminated, step.truncated)]
                agent.observe(after, *rest, valid=step.valid)
                stop += 1
            done = stop
        learner: Any = agent.algorithm
        learner.rollouts = []  # those before a stop are gone
        return bits(learner, buffer), agent.metrics(), agent.step

    expected = run((), False)
    for between in (False, True):
        found = run((7, 18), between)
        assert same(found[0], expected[0])
        assert found[1:] == expected[1:]


OWN: dict[str, Any] = {"rollout_length": 4, "optim_factory": AdamFactory(), "learning_rate": 0.05}
TINY = VectorEncoderFactory([4])
ROLLOUT_AGENTS = {
    "ACER": lambda: DiscreteACERConfig(
        **OWN, actor_encoder_factory=TINY, critic_encoder_factory=TINY, batch_size=3, replay_ratio=2.0, replay_start=8
    ),
    "NStepDQN": lambda: NStepDQNConfig(**OWN, encoder_factory=TINY, target_update_interval=3),
}


@pytest.mark.parametrize("name", ROLLOUT_AGENTS)
def test_saved_agents_that_replay_or_explore_go_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    def trained(seed: int) -> Agent:
        birl.seeding.seed(seed)
        algorithm: Any = ROLLOUT_AGENTS[name]().create()
        explorer = ConstantEpsilonGreedy(0.3) if name == "NStepDQN" else None
        return algorithm.agent(env=Drift(), explorer=explorer)  # type: ignore[no-any-return]

    def run(stop: int | None) -> Any:
        agent, env = trained(0), Drift()
        observation, _ = env.reset(seed=1)
        for step in range(40):
            if step == stop:  # in the middle of a rollout
                agent.save(tmp_path)
                agent = trained(9)
                agent.load(tmp_path)
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
            agent.observe(observation, reward, terminated, truncated)
            if terminated or truncated:
                observation, _ = env.reset()
        learner: Any = agent.algorithm
        assert learner.grad_step > 10 if name == "ACER" else learner.grad_step == 10
        return learner.nets.state_dict(), agent.metrics()

    (expected, metrics), (found, others) = run(None), run(18)
    assert all(torch.equal(value, found[key]) for key, value in expected.items()) and metrics == others


def test_a_seed_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed=3 was given, but NStepDQN learns from rollouts.*call birl.seed before"):
        NStepDQNConfig().create().agent(env=Drift(), seed=3)


def test_evaluation_changes_nothing_and_acts_greedily() -> None:
    def run(evaluated: bool) -> Any:
        env, other = Drift(kind="dict"), Drift(kind="dict", end=0.0)
        (agent, buffer), place = replay(env), world(env, split=True)
        for _ in range(6):
            go_on(agent, place, 5)
            if evaluated:
                learner: Any = agent.algorithm
                before = (agent.step, learner.grad_step, buffer.transition_count)
                with agent.evaluating() as same_agent:
                    assert same_agent is agent
                    observation, _ = other.reset(seed=1)
                    memory = 0.0
                    for _ in range(3):
                        memory += observation["b"][0]
                        value = observation["b"] @ learner.weight.numpy()[:2] + memory
                        action = agent.act(observation)
                        assert action == np.floor(abs(value) * 10) % 3 and isinstance(action, int)
                        observation, reward, terminated, truncated, _ = other.step(action)
                        agent.observe(observation, reward, terminated, truncated)
                    np.random.random(3), torch.rand(3)
                    with pytest.raises(OrderError, match="leave the context"):
                        agent.save("nowhere")
                assert (agent.step, learner.grad_step, buffer.transition_count) == before
        return bits(agent.algorithm, buffer)

    assert same(run(False), run(True))


def test_metrics_are_means_since_the_last_call() -> None:
    env = Drift(kind="dict", end=0.0, limit=5)
    (agent, buffer), place = replay(env), world(env, split=True)
    go_on(agent, place, 20)
    metrics = agent.metrics()
    returns = [episode.compute_return() for episode in buffer.episodes]
    assert metrics["rollout_return"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert "loss" in metrics
    assert agent.metrics() == {}


def test_a_loss_that_is_not_finite_is_reported() -> None:
    agent, _ = replay(Drift(kind="dict"))
    agent.algorithm.poison_at = 5  # type: ignore[attr-defined]
    env = Drift(kind="dict")
    with pytest.raises(NonFiniteError, match="between step 1 and step 100"):
        go_on(agent, world(env, split=True), 101)


def test_new_episodes_after_a_reset() -> None:
    env = Drift(kind="dict", end=0.0, limit=99)
    (agent, buffer), place = replay(env), world(env, split=True)
    go_on(agent, place, 4)
    agent.act({name: leaf[0] for name, leaf in place.observation.items()})
    agent.reset()
    place.reset()
    go_on(agent, place, 3)
    agent.reset()
    assert [len(episode) for episode in buffer.episodes] == [4, 3]
    assert all(episode.truncated for episode in buffer.episodes)
    assert all((episode.extra["state.actor"][0] == 0).all() for episode in buffer.episodes)


# -- what is refused -------------------------------------------------------------------------------------------

FIRST = {"b": np.zeros(2, np.float32), "a": np.zeros(1, np.uint8)}


def test_calls_out_of_order() -> None:
    for agent, _ in (replay(Drift(kind="dict")), rollout(Drift(kind="dict"))):
        with pytest.raises(OrderError, match="observe was called before act"):
            agent.observe(FIRST, 0.0, False, False)
        agent.act(FIRST)
        with pytest.raises(OrderError, match="act was called twice"):
            agent.act(FIRST)
        agent.observe(FIRST, 0.0, False)
        with pytest.raises(OrderError, match="observe was called before act"):
            agent.observe(FIRST, 0.0, False, False)
        with agent.evaluating(), pytest.raises(OrderError, match="observe was called before act"):
            agent.observe(FIRST, 0.0, False, False)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((np.zeros(2), {}), ShapeError, r"it must have the parts and shapes .*\(2,\)"),
        ({"b": np.zeros(2)}, ShapeError, "it must have the parts"),
        ({**FIRST, "b": np.zeros((1, 2))}, ShapeError, "no batch dimension"),
        ({**FIRST, "b": np.zeros(3)}, ShapeError, r"shape \(3,\); it must be numbers \(2,\)"),
        ({**FIRST, "b": np.array(["x", "y"])}, ShapeError, "is <U1, text; it must be bool, integer"),
        ({**FIRST, "b": np.array([0, np.nan])}, NonFiniteError, "finite"),
        ({**FIRST, "b": np.array([0, 1e300])}, NonFiniteError, "finite in float32"),
        ({**FIRST, "a": np.array([256])}, ShapeError, "uint8, the dtype of the observation space"),
        ({**FIRST, "a": np.array([0.5])}, ShapeError, "uint8, the dtype of the observation space"),
    ],
)
def test_observations_that_do_not_fit(given: Any, error: type[Exception], words: str) -> None:
    agent, buffer = replay(Drift(kind="dict"))
    with pytest.raises(error, match=f"observation .*{words}"):
        agent.act(given)
    agent.act({"b": [0, 1], "a": [255]})  # lists of numbers are arrays
    with pytest.raises(error, match=f"next_observation .*{words}"):
        agent.observe(given, 0.0, False, False)
    agent.observe(FIRST, 0.0, False, True)  # the action still waits for its step
    assert buffer.transition_count == agent.step == 1


def test_the_part_that_does_not_fit_is_named() -> None:
    agent, _ = replay(Drift(kind="dict"))
    for given, name in (({**FIRST, "a": ["x"]}, "a"), ({**FIRST, "b": np.array([0, np.inf])}, "b")):
        with pytest.raises(BirlError, match=f"observation '{name}' is"):
            agent.act(given)


def test_half_precision_has_its_limits_too() -> None:
    space = spaces.Box(-1, 1, (2,), np.float16)
    agent = DQNConfig(batch_size=4).create().agent(env=ExternalEnv(space, spaces.Discrete(2)))
    agent.act(np.full(2, 6e4))
    with pytest.raises(NonFiniteError, match="must be finite"):
        agent.observe(np.array([1e9, 0.0]), 0.0, False)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"reward": np.nan}, NonFiniteError, "reward is nan; it must be finite"),
        ({"reward": "much"}, ShapeError, "reward is 'much'; it must be a finite number"),
        ({"reward": [1.0, 2.0]}, ShapeError, "reward is"),
        ({"reward": True}, ShapeError, "reward is True"),
        ({"terminated": 1.0}, ShapeError, "terminated is 1.0; it must be a boolean"),
        ({"truncated": {}}, ShapeError, "truncated is {}; it must be a boolean"),
        ({"valid": False}, ShapeError, "valid is False for environment 0, whose episode is running"),
    ],
)
def test_steps_that_do_not_fit(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    agent, buffer = replay(Drift(kind="dict"))
    agent.act(FIRST)
    agent.observe(FIRST, 0.0, False, False)
    agent.act(FIRST)
    step = {"next_observation": FIRST, "reward": 0.0, "terminated": False, "truncated": False, **changes}
    with pytest.raises(error, match=words):
        agent.observe(**step)  # type: ignore[arg-type]
    agent.observe(FIRST, 1, np.True_, np.array([True]))
    assert buffer.transition_count == agent.step == 2
    assert buffer.episodes[0].terminated


def test_an_action_waits_until_the_buffer_takes_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, buffer = replay(Drift(kind="dict"))
    agent.act(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(buffer, "append_batch", lambda *_, **__: (_ for _ in ()).throw(ShapeError("refused")))
        with pytest.raises(ShapeError, match="refused"):
            agent.observe(FIRST, 0.0, False)
    assert agent.step == 0
    agent.observe(FIRST, 0.0, False, True)
    assert agent.step == buffer.transition_count == 1


def test_several_environments_have_a_first_dimension() -> None:
    agent, _ = replay(environment(AutoresetMode.DISABLED, kind="dict"), n=3)
    with pytest.raises(ShapeError, match=r"shape \(1,\); it must be numbers \(3, 1\)"):
        agent.act(FIRST)
    rows = {"b": np.zeros((3, 2)), "a": np.zeros((3, 1))}
    action = agent.act(rows)
    assert action.shape == (3,) and action.dtype == np.int64
    with pytest.raises(ShapeError, match=r"reward is 0.0; it must be 3 finite numbers, of shape \(3,\)"):
        agent.observe(rows, 0.0, [False] * 3)
    action[:] = -1  # its memory is the caller's
    agent.observe(rows, [0.0, 1.0, 2.0], [False] * 3, [True, False, False])
    assert agent.step == agent.n == 3


def test_agents_that_cannot_be() -> None:
    env = Drift(kind="dict")
    buffer = create_fifo_replay_buffer(limit=50, env=env)
    given = checked_agent_options({})
    with pytest.raises(ConfigError, match="n is 0; it must be an int >= 1"):
        replay_agent(FakeLearner(), env, 0, buffer, None, True, given)
    with pytest.raises(ShapeError, match="the buffer has 1 lanes for 2 environments: make the buffer with lan"):
        replay_agent(FakeLearner(), env, 2, buffer, None, True, given)
    with pytest.raises(ConfigError, match="limit >= 4"):
        replay_agent(FakeLearner(), env, 1, create_fifo_replay_buffer(3, env=env), None, True, given)


def test_saved_agents_that_do_not_fit(tmp_path: Path) -> None:
    env = Drift(kind="dict")
    agent, _ = replay(env)
    with pytest.raises(FileError, match="missing_ok=True"):
        agent.load(tmp_path / "no")
    agent.load(tmp_path / "no", missing_ok=True)
    go_on(agent, world(env, split=True), 9)
    agent.act(FIRST)
    agent.save(tmp_path / "a")
    for other in (replay(env, update_interval=3), rollout(env)):
        with pytest.raises(ResumeError, match="update_interval was 2, "):
            other[0].load(tmp_path / "a")
    state = agent.get_state()
    selected = {**state["agent"]["selected"], "action": np.array([0, 1])}
    for wrong in (
        {**state, "is_first": np.zeros(2, bool)},
        {**state, "step": -1},
        {**state, "agent": {**state["agent"], "selected": selected}},
    ):
        with pytest.raises(CorruptFileError):
            replay(env)[0].set_state(wrong)
