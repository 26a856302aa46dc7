"""Learning from rollouts and then from older ones: what is stored with steps, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run.fakes import signal_at

import birl
from birl import algos
from birl.dataset import create_fifo_replay_buffer
from birl.errors import ConfigError, DataError, ShapeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.losses import last_steps
from birl.models import GRUEncoderFactory, NormalFactory, VectorEncoderFactory
from birl.optimizers import AdamFactory
from tests.run.fakes import Drift

SMALL: dict[str, Any] = {
    "actor_encoder_factory": VectorEncoderFactory([4]),
    "critic_encoder_factory": VectorEncoderFactory([4]),
    "optim_factory": AdamFactory(),
    "learning_rate": 0.05,
    "rollout_length": 5,
    "batch_size": 3,
    "replay_ratio": 2.0,
    "replay_start": 10,
}
VALUES = {"value_encoder_factory": VectorEncoderFactory([4])}


class Several(Drift):
    """A walk with actions of several parts: choices that do not begin at 0, or choices together with quantities."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        quantities = spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-2.0, 2.0, (2,), np.float32)))
        self.action_space = quantities if mixed else spaces.MultiDiscrete([3, 4], start=[1, -2])

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(np.concatenate([np.ravel(part) for part in action]))


def environment(discrete: bool, n: int = 2, parts: str = "") -> Any:
    make = (lambda: Several(parts == "mixed")) if parts else (lambda: Drift(discrete))
    return SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.NEXT_STEP)


def quiet(**options: Any) -> dict[str, Any]:
    return {"show_progress": False, "logger_adapter": NoopAdapterFactory(), "seed": 3, **options}


def learned(
    config: Any, discrete: bool, n_steps: int = 60, parts: str = "", **options: Any
) -> tuple[Any, list[tuple[Any, Any]]]:
    """An algorithm that has learned, and for each update its batch and the policy's parameters before it."""
    birl.seed(0)
    env, algorithm = environment(discrete, parts=parts), config.create()
    algorithm.build_with_env(env)
    seen: list[tuple[Any, Any]] = []
    update = algorithm.engine.update

    def see(batch: Any, only: Any = None) -> Any:
        with torch.no_grad():
            seen.append((batch, algorithm.nets.actor(batch.inputs).parameters()))
        return update(batch, only)

    algorithm.engine.update = see
    algorithm.fit_online(env, n_steps=n_steps, **quiet(**options))
    return algorithm, seen


@pytest.mark.parametrize("kind", ["discrete", "continuous", "several", "mixed"])
def test_steps_come_back_with_the_policy_that_chose_them(kind: str) -> None:
    discrete, parts = kind in ("discrete", "several"), kind if kind in ("several", "mixed") else ""
    config: Any = algos.DiscreteACERConfig(**SMALL)
    wide = {**VALUES, "distribution_factory": NormalFactory(std="fixed", initial_std=2.0)}
    if parts:
        own = {name: value for name, value in SMALL.items() if name != "critic_encoder_factory"}
        config = algos.IMPALAConfig(**own, **wide)
    elif not discrete:
        config = algos.ACERConfig(**SMALL, **wide)
    _, seen = learned(config, discrete, parts=parts)
    fresh = [(batch, now) for batch, now in seen if batch.reward.shape[1] == 2]  # an environment, a sequence each
    replayed = [(batch, now) for batch, now in seen if batch.reward.shape == (5, 3)]
    assert len(fresh) > 5 and len(replayed) > 5
    assert sum(int((batch.weight > 0).sum()) for batch, _ in fresh) == 60

    steps: dict[tuple[float, ...], tuple[Any, ...]] = {}
    for batch, now in fresh:
        real = batch.weight > 0
        torch.testing.assert_close(batch.extra["policy"][real], now[real])  # it is the policy itself
        columns = batch.extra["policy"], batch.action, batch.reward, batch.discount, batch.next_observation
        for x, *row in zip(batch.observation[real], *(column[real] for column in columns), strict=True):
            steps[tuple(x.tolist())] = tuple(row)
    if not discrete:
        assert max(float(batch.action.abs().max()) for batch, _ in replayed) > 1  # as they were drawn, not clipped
    changed = 0
    for batch, now in replayed:
        for t, b in (batch.weight > 0).nonzero().tolist():
            policy, action, reward, discount, following = steps[tuple(batch.observation[t, b].tolist())]
            assert torch.equal(batch.extra["policy"][t, b], policy)
            assert torch.equal(batch.action[t, b], action)
            assert torch.equal(batch.reward[t, b], reward) and torch.equal(batch.discount[t, b], discount)
            assert torch.equal(batch.next_observation[t, b], following)
            changed += not torch.allclose(now[t, b], policy, atol=1e-3)
        goes_on = (batch.weight[:-1] > 0) & (last_steps(batch.weight, batch.is_first)[:-1] == 0)
        assert torch.equal(batch.next_observation[:-1][goes_on], batch.observation[1:][goes_on])
    assert changed > 10  # the present policy is another one: ratios are not 1


def test_last_steps_of_a_rollout() -> None:
    """A step is the last one before another episode, and before padding; nothing is known below the last row."""
    is_first = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 0]]).bool()
    weight = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.5, 1.0]])
    expected = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert torch.equal(last_steps(weight, is_first), expected)


def test_recurrent_networks_begin_a_replay_where_they_were() -> None:
    gru = GRUEncoderFactory(hidden_size=4, hidden_units=[4])
    config = algos.DiscreteACERConfig(
        **{**SMALL, "actor_encoder_factory": gru, "critic_encoder_factory": gru, "learning_rate": 0.0}
    )
    _, seen = learned(config, True)
    known: dict[tuple[float, ...], Any] = {}
    started = 0
    for batch, now in seen:
        for t, b in (batch.weight > 0).nonzero().tolist():
            key = tuple(batch.observation[t, b].tolist())
            if batch.reward.shape[1] == 2:
                known[key] = now[t, b]
            else:  # nothing learns: the same memory gives the same policy, in the middle of an episode, too
                torch.testing.assert_close(now[t, b], known[key])
                started += t == 0 and not bool(batch.is_first[0, b])
        assert batch.state.keys() == {"actor", "critic"}
    assert started > 5


def test_number_of_replays() -> None:
    """It is drawn from a Poisson distribution, after ``replay_start`` steps."""
    config = algos.DiscreteACERConfig(replay_ratio=4.0, replay_start=50, batch_size=60)
    experience = config.algorithm.learns_from
    assert experience.n_replays(config, 59) == 0  # fewer than the sequences of an update
    birl.seed(0)
    drawn = np.array([experience.n_replays(config, 60) for _ in range(2000)])
    assert abs(drawn.mean() - 4) < 0.15 and abs(drawn.var() - 4) < 0.4
    assert experience.n_replays(algos.DiscreteACERConfig(replay_start=61, batch_size=1), 60) == 0


def test_without_replay_there_is_no_buffer() -> None:
    fields = {name: value for name, value in SMALL.items() if "critic" not in name}
    config = algos.IMPALAConfig(**{**fields, **VALUES, "replay_ratio": 0.0})
    algorithm, seen = learned(config, True)
    assert {batch.reward.shape[1] for batch, _ in seen} == {2}
    buffer = create_fifo_replay_buffer(100, env=environment(True))
    with pytest.raises(ConfigError, match="IMPALA .its replay_ratio is 0. learns from rollouts .* does not use buffer"):
        algorithm.fit_online(environment(True), buffer=buffer, n_steps=10, **quiet())


def test_bad_buffers_are_refused() -> None:
    env = environment(True)
    foreign = create_fifo_replay_buffer(100, env=env)
    birl.algos.DQNConfig(batch_size=5, encoder_factory=VectorEncoderFactory([4])).create().fit_online(
        env, buffer=foreign, n_steps=20, **quiet()
    )
    sequences = foreign.sample_sequence_batch(2, 5)
    algorithm = algos.DiscreteACERConfig(**SMALL).create()
    algorithm.build_with_env(env)
    with pytest.raises(DataError, match="replays steps with the parameters of their policy, .* give fit_online"):
        algorithm.update(sequences)
    with pytest.raises(ConfigError, match="does not use explorer"):
        algorithm.fit_online(env, explorer=algos.ConstantEpsilonGreedy(0.1), n_steps=10, **quiet())
    with pytest.raises(ConfigError, match="buffer is 7; it must be a replay buffer"):
        algorithm.fit_online(env, buffer=7, n_steps=10, **quiet())
    with pytest.raises(DataError, match="the buffer holds 20 steps without the policy that selected them"):
        algorithm.fit_online(env, buffer=foreign, n_steps=10, **quiet())
    with pytest.raises(ConfigError, match="keeps 8 steps, but replaying starts with 10 stored steps"):
        algorithm.fit_online(env, buffer=create_fifo_replay_buffer(8, env=env), n_steps=10, **quiet())
    for refused in (
        lambda buffer: algorithm.agent(n=3, buffer=buffer),
        lambda buffer: algorithm.fit_online(environment(True, 3), buffer=buffer, n_steps=9, **quiet()),
    ):
        with pytest.raises(ShapeError, match="the buffer has 2 lanes for 3 environments"):
            refused(create_fifo_replay_buffer(100, env=env))
    prioritised = create_fifo_replay_buffer(100, env=env, sampler=birl.dataset.PrioritizedSampler())
    with pytest.raises(UnsupportedError, match="DiscreteACER"):
        algorithm.fit_online(env, buffer=prioritised, n_steps=10, **quiet())


@pytest.mark.parametrize("name", ["ACER", "IMPALA GRU"])
def test_stopped_and_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    gru = GRUEncoderFactory(hidden_size=4, hidden_units=[4])
    config: Any = algos.DiscreteACERConfig(**SMALL)
    if name != "ACER":
        own = {key: value for key, value in SMALL.items() if not key.endswith("encoder_factory")}
        config = algos.IMPALAConfig(**own, actor_encoder_factory=gru, value_encoder_factory=gru)

    def go(folder: str, stop: int | None, seed: int) -> Any:
        birl.seed(seed)
        algorithm = config.create()
        given = quiet(callback=signal_at(stop), checkpoint=tmp_path / folder, n_steps_per_epoch=25)
        try:
            algorithm.fit_online(environment(True), n_steps=50, **given)
        except SystemExit:
            return None
        return algorithm

    expected = go("straight", None, 0)
    assert expected.engine.grad_step > 8
    assert go("stopped", 33, 0) is None
    resumed = go("stopped", None, 1)
    for name, tensor in expected.nets.state_dict().items():
        assert torch.equal(tensor, resumed.nets.state_dict()[name]), name


def test_agent_and_loop_are_equal() -> None:
    def trained(own_loop: bool) -> Any:
        birl.seed(0)
        env: gymnasium.Env[Any, Any] = Drift(True)
        algorithm = algos.DiscreteACERConfig(**SMALL).create()
        if not own_loop:
            algorithm.fit_online(env, n_steps=40, **quiet())
            return algorithm
        algorithm.build_with_env(env)
        agent = algorithm.agent(env=env)
        seed = birl.envs.reset_generator(env, 3)
        stepper = birl.envs.Stepper(Drift(True), seed)
        while agent.step < 40:
            action = agent.act(stepper.observation[0])
            step = stepper.step(np.array([action]))
            agent.observe(step.next_observation[0], step.reward[0], step.terminated[0], step.truncated[0])
        return algorithm

    first, second = trained(False), trained(True)
    assert first.engine.grad_step == second.engine.grad_step > 6
    for name, tensor in first.nets.state_dict().items():
        assert torch.equal(tensor, second.nets.state_dict()[name]), name
