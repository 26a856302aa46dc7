"""Options and mistakes of algorithms that learn from rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

import birl
from birl.algorithm import Rollouts
from birl.algos import A2C, A2CConfig, IMPALAConfig, PPOConfig, REINFORCEConfig, TRPOConfig
from birl.errors import ConfigError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.run.protocols import Rollout
from birl.testing import ChainEnv

SMALL = VectorEncoderFactory([6])
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "seed": 0}


def test_a_rollout_shorter_than_a_sequence_is_refused() -> None:
    memory = GRUEncoderFactory(4, [4])
    given = {"actor_encoder_factory": memory, "value_encoder_factory": memory, "rollout_length": 6}
    config = PPOConfig(**given)
    with pytest.raises(ConfigError, match="rollout_length is 6 and sequence_length 20.*Give a longer rollout"):
        config.create().fit_online(ChainEnv(), n_steps=12, **QUIET)
    for fine in (PPOConfig(**given, sequence_length=6), A2CConfig(**given)):
        fine.create().fit_online(ChainEnv(), n_steps=12, **QUIET)


def test_more_environments_make_fewer_updates_of_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which `compile_graph="auto"` knows how long a run is."""
    a2c, impala = A2CConfig(), IMPALAConfig(rollout_length=5, replay_ratio=3.0)
    assert [A2C.learns_from.expected_updates(a2c, 1000, lanes) for lanes in (1, 8)] == [200, 25]
    assert [impala.algorithm.learns_from.expected_updates(impala, 1000, lanes) for lanes in (1, 8)] == [800, 100]
    ppo = PPOConfig(n_epochs=4, batch_size=10)
    assert [ppo.algorithm.learns_from.expected_updates(ppo, 1000, lanes) for lanes in (1, 8)] == [400, 400]
    seen: list[Any] = []
    monkeypatch.setattr(
        Rollouts, "expected_updates", lambda self, config, count, lanes: seen.append((count, lanes)) or 0
    )
    algorithm = a2c.create()
    algorithm.fit_online(SyncVectorEnv([ChainEnv] * 3), n_steps=30, **QUIET)
    algorithm.agent(2)
    assert seen == [(30, 3), (0, 2)]


@pytest.mark.parametrize("config", [PPOConfig, IMPALAConfig])
def test_there_is_nothing_to_warm_up_in_a_rollout(config: Any) -> None:
    with pytest.raises(
        ConfigError, match="burn_in=2 cannot be combined with .* learns from rollouts.*leave burn_in at 0"
    ):
        config(burn_in=2).create().fit_online(ChainEnv(), n_steps=12, **QUIET)


def test_recurrent_networks_learn_through_a_whole_rollout() -> None:
    """Of no network but the actor is the state in mid-episode known, from which a piece would have to begin."""
    memory = {"actor_encoder_factory": GRUEncoderFactory(4, [4]), "value_encoder_factory": GRUEncoderFactory(4, [4])}
    for config in (
        A2CConfig(**memory, rollout_length=9, sequence_length=4),
        REINFORCEConfig(**memory, baseline=True, n_episodes=1, sequence_length=4),
    ):
        algorithm = config.create()
        algorithm.build_with_env(ChainEnv())
        seen: list[Any] = []
        algorithm.engine.update = lambda batch, only=None, seen=seen: seen.append(batch) or {}
        algorithm.fit_online(ChainEnv(), n_steps=126, **QUIET)
        assert seen and all(batch.reward.dim() == 2 and batch.reward.shape[1] == 1 for batch in seen)
        assert max(len(batch.reward) for batch in seen) > 4
        assert not any(name.startswith("state.") for batch in seen for name in batch.extra)


def test_what_passes_share_comes_from_the_policy_as_it_acts() -> None:
    """Without dropout: the first ratio of probabilities would be none of the policy's."""
    encoder = VectorEncoderFactory([16], dropout_rate=0.5)
    algorithm = PPOConfig(actor_encoder_factory=encoder, value_encoder_factory=encoder).create()
    algorithm.create_impl((3,), 2, discrete_action=True)
    algorithm.learner.set_mode(acting=False)
    first, second = (algorithm.learner.batch(episode([1.0] * 8)).extra["log_prob"] for _ in range(2))
    assert torch.equal(first, second)


def episode(rewards: list[float], truncated: bool = False) -> Rollout:
    """One episode of one environment."""
    length = len(rewards)
    last = np.arange(length)[:, None] == length - 1
    return Rollout(
        observation=np.zeros((length, 1, 3), np.float32),
        action=np.arange(length)[:, None] % 2,
        reward=np.array(rewards, np.float32)[:, None],
        next_observation=np.ones((length, 1, 3), np.float32),
        terminated=last & (not truncated),
        truncated=last & truncated,
        is_first=np.arange(length)[:, None] == 0,
        valid=np.ones((length, 1), bool),
        extra={},
    )


def returns(config: Any, rollout: Rollout) -> list[float]:
    algorithm = config.create()
    algorithm.create_impl((3,), 2, discrete_action=True)
    if hasattr(algorithm.nets, "value"):
        with torch.no_grad():
            algorithm.nets.value.linear.weight.zero_()
            algorithm.nets.value.linear.bias.fill_(7.0)
    found: list[float] = algorithm.learner.batch(rollout).extra["return"][:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("options", "truncated", "expected"),
    [
        ({}, False, [111, 110, 100]),  # PFRL: 210, 200, 100
        ({"gamma": 0.5}, False, [31, 60, 100]),
        ({}, True, [111, 110, 100]),  # PFRL learns nothing from it
        ({"baseline": True}, True, [118, 117, 107]),
        ({"baseline": True}, False, [111, 110, 100]),
    ],
)
def test_returns_of_reinforce_by_hand(options: dict[str, Any], truncated: bool, expected: list[float]) -> None:
    config = REINFORCEConfig(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, **options)
    assert returns(config, episode([1.0, 10.0, 100.0], truncated)) == expected


@pytest.mark.parametrize("config", [A2CConfig, PPOConfig])
def test_a_time_limit_is_bootstrapped_and_nothing_comes_from_the_next_episode(config: Any) -> None:
    """PFRL's A2C takes a time limit for the end, NNablaRL's A2C and PPO the first value of the next episode."""
    options = {"gamma": 0.5, "gae_lambda": 1.0}
    given = config(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, **options)
    first, second = episode([1.0, 10.0], truncated=True), episode([1000.0], truncated=False)
    both = Rollout(
        **{
            name: np.concatenate((getattr(first, name), getattr(second, name)))
            for name in vars(first)
            if isinstance(getattr(first, name), np.ndarray)
        },
        extra={},
    )
    assert returns(given, both) == [1 + 0.5 * (10 + 0.5 * 7), 10 + 0.5 * 7, 1000]


def test_reinforce_clips_the_joint_norm() -> None:
    """NNablaRL clips each tensor by itself."""
    algorithm = REINFORCEConfig(
        actor_encoder_factory=SMALL, optim_factory=birl.optimizers.SGDFactory(clip_grad_norm=1.0), learning_rate=1.0
    ).create()
    algorithm.create_impl((3,), 2, discrete_action=True)
    before = {name: value.clone() for name, value in algorithm.nets.state_dict().items()}
    algorithm.update(episode([1.0, 10.0, 1000.0]))
    moved = [(value - before[name]).norm() for name, value in algorithm.nets.state_dict().items()]
    assert torch.stack(moved).norm().item() == pytest.approx(1.0, abs=1e-4)


def test_the_longest_ratio_of_a_bad_action_is_clipped_from_below() -> None:
    """1912.09729 eq. 5: beyond ``dual_clip`` an action of negative advantage has no gradient."""
    for dual_clip, still in ((None, False), (3.0, True)):
        algorithm = PPOConfig(
            actor_encoder_factory=SMALL, value_encoder_factory=SMALL, dual_clip=dual_clip, normalize_advantage=False
        ).create()
        algorithm.create_impl((3,), 2, discrete_action=True)
        batch = algorithm.learner.batch(episode([0.0]))
        batch.extra["advantage"] = torch.full_like(batch.reward, -1.0)
        batch.extra["log_prob"] = batch.extra["log_prob"] - 3.0  # ratios of 20
        (step,) = algorithm.engine.gradient_steps
        gradients, _ = algorithm.engine.compute_gradients(step, batch)
        assert (float(gradients["actor.linear.bias"].abs().sum()) == 0) == still


def test_a_penalty_holds_the_policy_near_that_of_the_rollout() -> None:
    moved = []
    for weight in (0.0, 100.0):
        birl.seed(0)
        encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
        ppo = PPOConfig(**encoders, kl_coefficient=weight, clip_range=1e9, learning_rate=1e-2).create()
        ppo.create_impl((3,), 2, discrete_action=True)
        ppo.update(rollout := episode([1.0, -1.0] * 20))
        metrics = ppo.update(rollout)
        moved.append(metrics["approximate_kl"].item())
        assert ("kl_loss" in metrics) == (weight > 0)
    assert moved[1] < moved[0] / 3


@pytest.mark.parametrize(("rate", "expected"), [(0.0, [0.5, 0.25]), (0.1, [2.0, 4.0])])
def test_the_weight_of_the_penalty_follows_the_divergence(rate: float, expected: list[float]) -> None:
    """Once a rollout, even if `target_kl` ends its passes; it is logged, and saved with the networks."""
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    given = {"kl_coefficient": 1.0, "kl_penalty_target": 0.01, "clip_range": 1e9, "target_kl": 1e-9}
    birl.seed(0)
    ppo = PPOConfig(**encoders, **given, learning_rate=rate, batch_size=8).create()
    ppo.create_impl((3,), 2, discrete_action=True)
    found = [ppo.update(episode([1.0, -1.0] * 20)) for _ in expected]
    assert [metrics["kl_weight"].item() for metrics in found] == expected
    assert all((metrics["kl"] > 0.015) == (rate > 0) for metrics in found)
    assert ppo.nets.state_dict()["penalty.raw"].item() == expected[-1]


@pytest.mark.slow
def test_a_compiled_rule_is_the_rule() -> None:
    """A step that sets parameters is a part of the program."""
    found = []
    for compiled in (False, True):
        birl.seed(0)
        given = {"kl_coefficient": 1.0, "kl_penalty_target": 0.01}
        ppo = PPOConfig(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, **given).create()
        ppo.create_impl((3,), 2, discrete_action=True)
        ppo.learner.set_mode(acting=False)
        if compiled:
            ppo.engine.compile()
        batch = ppo.learner.batch(episode([1.0, -1.0])).map(lambda x: x.flatten(0, 1))
        for shift in (0.0, 3.0, 0.0):  # away from the policy of the rollout
            batch.extra["policy"] = batch.extra["policy"] + shift * torch.tensor([1.0, 0.0])
            found.append(float(ppo.engine.update(batch, ("penalty",))["kl_weight"]))
        assert ppo.nets.penalty().item() == found[-1]
    assert found == [0.5, 1.0, 2.0] * 2


def test_a_penalty_that_adapts_needs_a_weight_and_one_process() -> None:
    with pytest.raises(ConfigError, match="kl_penalty_target is 0.01 and kl_coefficient is 0.*kl_coefficient=1.0"):
        PPOConfig(kl_penalty_target=0.01)
    algorithm = PPOConfig(kl_penalty_target=0.01, kl_coefficient=1.0, n_epochs=1).create()
    with pytest.raises(UnsupportedError, match="steps that are not gradient steps .penalty."):
        algorithm.fit_online(ChainEnv(), n_steps=12, workers=1, **QUIET)


def test_no_step_of_a_rollout_is_left_out_of_a_pass() -> None:
    """PFRL drops the last minibatch of sequences, NNablaRL fills it up from the next pass."""
    memory = GRUEncoderFactory(4, [4])
    networks = {"actor_encoder_factory": memory, "value_encoder_factory": memory}
    given = {"batch_size": 12, "n_epochs": 2}
    ppo = PPOConfig(**networks, **given, sequence_length=4, rollout_length=14).create()
    ppo.create_impl((3,), 2, discrete_action=True)
    seen: list[Any] = []
    ppo.engine.update = lambda batch, only=None: seen.append(batch.map(torch.clone)) or {}
    rewards = [float(number) for number in range(1, 15)]
    ppo.update(episode(rewards))
    assert [batch.reward.shape for batch in seen] == [(4, 3), (4, 1)] * 2
    for passed in (seen[:2], seen[2:]):
        real = torch.cat([batch.reward[batch.weight > 0] for batch in passed])
        assert sorted(real.tolist()) == rewards


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig, TRPOConfig])
def test_equal_advantages_have_a_scale(config: Any) -> None:
    """A rollout of one step has no deviation: NNablaRL divides by it."""
    given = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL, "normalize_advantage": True}
    algorithm = config(**given).create()
    algorithm.create_impl((3,), 2, discrete_action=True)
    metrics = algorithm.update(episode([1.0]))
    assert all(bool(torch.isfinite(value)) for value in metrics.values())
