"""`check_algorithm` alone finds the mistakes that one makes in an algorithm of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from birl.algorithm import Batch, Gradient, HardCopy, Learner, Loss, Transitions, weighted_mean
from birl.algorithm.batches import to_batch
from birl.engine import Polyak
from birl.errors import ConfigError
from birl.models import VectorEncoderFactory
from birl.testing import check_algorithm
from tests.testing import own
from tests.testing.own import OwnQ, OwnQConfig, OwnSoft, OwnSoftConfig

SMALL = VectorEncoderFactory(hidden_units=[8, 8])
Q = OwnQConfig(encoder_factory=SMALL)
SOFT = OwnSoftConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL)

LossFunction = Callable[[Any, Batch, Any], Loss]
Plant = Callable[[pytest.MonkeyPatch], None]


def test_an_algorithm_without_mistakes_passes() -> None:
    check_algorithm(Q, action_size=3)
    check_algorithm(SOFT)


def steps_of_q(loss: LossFunction, **options: Any) -> tuple[Any, ...]:
    return (Gradient("critic", loss, optimizer="", metric="loss", **options), HardCopy("critic", "critic_target"))


def q(loss: LossFunction) -> Plant:
    return lambda patch: patch.setattr(OwnQ, "steps", steps_of_q(loss))


def soft(critic: LossFunction = own.critic_loss, actor: LossFunction = own.actor_loss, **options: Any) -> Plant:
    steps = Gradient("critic", critic), Gradient("actor", actor, **options), Polyak("critic", "critic_target")
    return lambda patch: patch.setattr(OwnSoft, "steps", steps)


def q_target(nets: Any, batch: Batch, discount: Any = None, target: str = "critic_target") -> torch.Tensor:
    following = getattr(nets, target)(batch.next_inputs).mean().min(0).values.max(-1).values
    return batch.reward + (batch.discount if discount is None else discount) * following


def q_error(nets: Any, batch: Batch, target: torch.Tensor, weight: Any = None) -> Loss:
    error = nets.critic(batch.inputs, batch.action).mean() - target
    return Loss(weighted_mean(error.square().sum(0), batch.weight if weight is None else weight))


def _wrong_sign_of_critic(nets: Any, batch: Batch, cfg: Any) -> Loss:
    right = own.critic_loss(nets, batch, cfg)
    return replace(right, value=-right.value)


def _wrong_sign_of_actor(nets: Any, batch: Batch, cfg: Any) -> Loss:
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).mean().min(0).values
    return Loss(weighted_mean(cfg.temperature * log_prob + value, batch.weight))


def _target_in_the_graph(nets: Any, batch: Batch, cfg: Any) -> Loss:
    return q_error(nets, batch, q_target(nets, batch, target="critic"))


def _swapped_observations(nets: Any, batch: Batch, cfg: Any) -> Loss:
    return own.q_loss(nets, replace(batch, observation=batch.next_observation), cfg)


def _termination_ignored(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch, cfg.gamma)
    return q_error(nets, batch, target)


def _termination_ignored_by_soft(nets: Any, batch: Batch, cfg: Any) -> Loss:
    return own.critic_loss(nets, replace(batch, discount=torch.full_like(batch.discount, cfg.gamma)), cfg)


def _n_steps_discounted_as_one(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch, cfg.gamma * (batch.discount > 0))
    return q_error(nets, batch, target)


def _gamma_twice(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch, cfg.gamma * batch.discount)
    return q_error(nets, batch, target)


def _reward_forgotten(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, replace(batch, reward=0 * batch.reward))
    return q_error(nets, batch, target)


def _target_of_the_same_state(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, replace(batch, next_observation=batch.observation))
    return q_error(nets, batch, target)


def _reward_standardised(nets: Any, batch: Batch, cfg: Any) -> Loss:
    reward = (batch.reward - batch.reward.mean()) / batch.reward.std()
    return own.q_loss(nets, replace(batch, reward=reward), cfg)


def _online_network_in_target(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch, target="critic")
    return q_error(nets, batch, target)


def _online_network_in_soft_target(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        action, log_prob = nets.actor(batch.next_inputs).sample()
        following = nets.critic(batch.next_inputs, action).mean().min(0).values
        target = batch.reward + batch.discount * (following - cfg.temperature * log_prob)
    return q_error(nets, batch, target)


def _pairs_of_the_batch(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch).unsqueeze(-1)  # [B, 1] with [B]
    error = nets.critic(batch.inputs, batch.action).mean()[0] - target
    return Loss((error.square() * batch.weight).mean())


def _axis_from_the_left(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        following = nets.critic_target(batch.next_inputs).mean().min(0).values.max(1).values
        target = batch.reward + batch.discount * following
    return q_error(nets, batch, target)


def _weights_ignored(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch)
    return q_error(nets, batch, target, torch.ones_like(batch.weight))


def _weights_squared(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch)
    return q_error(nets, batch, target, batch.weight.square())


def _numpy_noise(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch) + float(np.random.default_rng().normal())
    return q_error(nets, batch, target)


def _seeded_numpy_noise(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch) + float(np.random.normal())
    return q_error(nets, batch, target)


def _decay_of_frozen_parameters(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        for parameter in nets.critic.parameters():
            parameter.mul_(1.0 if parameter.requires_grad else 0.9)
    return own.q_loss(nets, batch, cfg)


def _state_outside_of_the_networks(patch: pytest.MonkeyPatch) -> None:
    seen = {"mean": 0.0}

    def loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
        seen["mean"] = 0.9 * seen["mean"] + 0.1
        with torch.no_grad():
            target = q_target(nets, batch) - seen["mean"]
        return q_error(nets, batch, target)

    q(loss)(patch)


def _log_prob_of_the_batch(nets: Any, batch: Batch, cfg: Any) -> Loss:
    action, log_prob = nets.actor(batch.inputs).sample()
    value = nets.critic(batch.inputs, action).mean().min(0).values
    weight = torch.exp(cfg.temperature * log_prob.sum()).detach()
    return Loss(weighted_mean(cfg.temperature * weight * log_prob - value, batch.weight))


def _sum_over_the_batch(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():
        target = q_target(nets, batch)
    error = nets.critic(batch.inputs, batch.action).mean() - target
    return Loss((error.square() * batch.weight).sum())


def _both_in_one_step(nets: Any, batch: Batch, cfg: Any) -> Loss:
    critic, actor = own.critic_loss(nets, batch, cfg), own.actor_loss(nets, batch, cfg)
    return Loss(critic.value + actor.value)


def _one_step(patch: pytest.MonkeyPatch) -> None:
    both = Gradient("all", _both_in_one_step, of=("actor", "critic"), optimizer="critic")
    patch.setattr(OwnSoft, "steps", (both, Polyak("critic", "critic_target")))


def _no_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnQ, "steps", OwnQ.steps[:1])


def _no_soft_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnSoft, "steps", OwnSoft.steps[:2])


def _networks(algorithm: Any, patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    build = algorithm.networks

    def networks(spec: Any, cfg: Any) -> Any:
        nets = build(spec, cfg)
        change(nets)
        return nets

    patch.setattr(algorithm, "networks", staticmethod(networks))


def _parameter_in_no_step(patch: pytest.MonkeyPatch) -> None:
    _networks(OwnSoft, patch, lambda nets: setattr(nets, "scale", nn.Parameter(torch.ones(()))))

    def loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
        right = own.actor_loss(nets, batch, cfg)
        return replace(right, value=right.value * nets.scale)

    soft(actor=loss)(patch)


def _network_in_no_step(patch: pytest.MonkeyPatch) -> None:
    _networks(OwnQ, patch, lambda nets: setattr(nets, "bonus", nn.Linear(3, 1)))


class Unscaled(Transitions):
    """Forgets the scaler of observations."""

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        right = to_batch(drawn, learner.units, learner.config.gamma)
        return replace(right, observation=torch.as_tensor(drawn.observations))


class UnscaledActions(Transitions):
    """Forgets the scaler of actions."""

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        return replace(to_batch(drawn, learner.units, learner.config.gamma), action=torch.as_tensor(drawn.actions))


def _unscaled_policy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnSoft, "acts", replace(OwnSoft.acts, greedy=lambda nets, inputs: 2 * nets.actor(inputs).mode()))


def _greedy_samples(patch: pytest.MonkeyPatch) -> None:
    sample = OwnSoft.acts.sample
    greedy = lambda nets, inputs: sample(nets, inputs)  # noqa: E731
    patch.setattr(OwnSoft, "acts", replace(OwnSoft.acts, greedy=greedy))


def _another_distribution(patch: pytest.MonkeyPatch) -> None:
    def wider(nets: Any, inputs: Any) -> Any:
        policy = nets.actor(inputs)
        return replace(policy, log_std=policy.log_std + 1)

    patch.setattr(OwnSoft, "acts", replace(OwnSoft.acts, distribution=wider))


def _writes_in_the_loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
    with torch.no_grad():  # instead of a step that does it
        for target, source in zip(nets.critic_target.parameters(), nets.critic.parameters(), strict=True):
            target.lerp_(source, 0.01)
    return own.q_loss(nets, batch, cfg)


PLANTED: dict[str, tuple[str, Any, Plant]] = {
    "the critic's loss has the wrong sign": ("follows_rewards", SOFT, soft(_wrong_sign_of_critic)),
    "the actor's loss has the wrong sign": ("follows_rewards", SOFT, soft(actor=_wrong_sign_of_actor)),
    "a target is part of the graph": ("targets_are_constants", Q, q(_target_in_the_graph)),
    "observations are swapped": ("targets_are_constants", Q, q(_swapped_observations)),
    "termination is ignored": ("discounts_count", Q, q(_termination_ignored)),
    "termination is ignored, soft": ("discounts_count", SOFT, soft(_termination_ignored_by_soft)),
    "n steps are discounted as one": ("discounts_count", Q, q(_n_steps_discounted_as_one)),
    "gamma counts twice": ("discounts_count", Q, q(_gamma_twice)),
    "the reward is forgotten": ("discounts_count", Q, q(_reward_forgotten)),
    "the target is of the same state": ("discounts_count", Q, q(_target_of_the_same_state)),
    "a target is never updated": ("parameters_move", Q, _no_copy),
    "a target is never updated, soft": ("parameters_move", SOFT, _no_soft_copy),
    "a parameter is in no step": ("parameters_move", SOFT, _parameter_in_no_step),
    "a network is in no step": ("parameters_move", Q, _network_in_no_step),
    "the online network makes the target": ("targets_act", Q, q(_online_network_in_target)),
    "the online network makes the target, soft": ("targets_act", SOFT, soft(_online_network_in_soft_target)),
    "policy and Q-function share a step": ("values_ignore_the_policy", SOFT, _one_step),
    "the actor's step trains the critic": (
        "values_ignore_the_policy",
        SOFT,
        soft(of=("actor", "critic"), optimizer="actor"),
    ),
    "[B, 1] with [B]": ("any_leading_dimensions", Q, q(_pairs_of_the_batch)),
    "an axis is counted from the left": ("any_leading_dimensions", Q, q(_axis_from_the_left)),
    "weights are ignored": ("padding_is_ignored", Q, q(_weights_ignored)),
    "weights are squared": ("padding_is_ignored", Q, q(_weights_squared)),
    "noise without a seed": ("same_seed_same_result", Q, q(_numpy_noise)),
    "noise of numpy": ("save_load_continue", Q, q(_seeded_numpy_noise)),
    "a state outside of the networks": ("same_seed_same_result", Q, _state_outside_of_the_networks),
    "log-probabilities of the whole batch": ("gradient_split", SOFT, soft(actor=_log_prob_of_the_batch)),
    "rewards are standardised in the batch": ("gradient_split", Q, q(_reward_standardised)),
    "a sum over the batch": ("gradient_split", Q, q(_sum_over_the_batch)),
    "observations are not scaled": (
        "scalers_reach_the_batch",
        Q,
        lambda patch: patch.setattr(OwnQ, "learns_from", Unscaled()),
    ),
    "actions are not scaled": (
        "scalers_reach_the_batch",
        SOFT,
        lambda patch: patch.setattr(OwnSoft, "learns_from", UnscaledActions()),
    ),
    "the policy leaves its range": ("actions_in_bounds", SOFT, _unscaled_policy),
    "greedy actions are samples": ("greedy_is_greedy", SOFT, _greedy_samples),
    "probabilities are not those of samples": ("samples_have_their_probabilities", SOFT, _another_distribution),
    "frozen parameters decay": ("frozen_parameters_stay", Q, q(_decay_of_frozen_parameters)),
    "a loss moves the target": ("targets_follow", Q, q(_writes_in_the_loss)),
}
"""The check that finds it, the algorithm, and how the mistake is planted."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_check_algorithm_finds_it(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, config, plant = PLANTED[mistake]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=f"check '{check}'"):
        check_algorithm(config, action_size=3)


def test_check_algorithm_builds_on_the_device_that_it_is_given() -> None:
    config = OwnQConfig()
    assert check_algorithm(config, checks=["metrics"], device="cpu") == ["metrics"]
    with pytest.raises(ConfigError, match="device 'cuda:99' cannot be used"):
        check_algorithm(config, checks=["metrics"], device="cuda:99")
