"""Every algorithm keeps the contract, and every check of the contract finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from birl import algos
from birl.acting.export import PolicyModule
from birl.engine import Gradient, HardCopy, Polyak, When
from birl.losses import td_loss
from birl.models import DefaultEncoderFactory, VectorEncoderFactory
from birl.preprocessing import (
    MinMaxActionScaler,
    MinMaxObservationScaler,
    ObservationScaler,
    PixelObservationScaler,
    StandardObservationScaler,
    TupleObservationScaler,
)
from birl.testing import CHECKS, SLOW_CHECKS, check_algorithm
from birl.types import Loss
from tests.algorithms import CONTRACT_RUNS, WHOLE, Run
from tests.testing.test_planted import PLANTED


def check(run: Run, name: str) -> None:
    check_algorithm(run.config, action_size=run.action_size, discrete_action=run.variant.discrete, checks=[name])


def cases() -> list[Any]:
    """Every check of every run; in the default tier, what learns from rewards is shown by probes of each algorithm."""
    return [
        pytest.param(
            run,
            name,
            id=f"{run.name}-{name}",
            marks=[pytest.mark.slow] if run.slow or (name == "follows_rewards" and run.name not in WHOLE) else [],
        )
        for run in CONTRACT_RUNS
        for name in CHECKS
    ]


@pytest.mark.parametrize(("run", "name"), cases())
def test_contract(run: Run, name: str) -> None:
    check(run, name)


def test_compiled_dqn_equals_eager() -> None:
    check(CONTRACT_RUNS[0], "compiled_equals_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_CHECKS)
@pytest.mark.parametrize("run", CONTRACT_RUNS, ids=lambda run: run.name)
def test_slow_contract(run: Run, name: str) -> None:
    check(run, name)


# Shapes of observations, and a scaler of each kind for them.
SCALERS: dict[str, tuple[Any, ObservationScaler]] = {
    "min-max": ((3,), MinMaxObservationScaler([-3.0, -2.0, -1.0], [1.0, 2.0, 4.0])),
    "pixel": ((1, 2, 3), PixelObservationScaler()),
    "standard": ((3,), StandardObservationScaler([0.5, 0.0, -1.0], [2.0, 0.3, 1.0])),
    "tuple": (((3,), (2,)), TupleObservationScaler([StandardObservationScaler([0.5] * 3, [2.0] * 3), None])),
}


@pytest.mark.slow
@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("run", CONTRACT_RUNS, ids=lambda run: run.name)
def test_exports_hold_the_scalers(run: Run, scaler: str) -> None:
    shape, observation_scaler = SCALERS[scaler]
    config = replace(run.config, observation_scaler=observation_scaler)
    if scaler == "tuple":  # the others encode one array
        given = {each.name: getattr(config, each.name) for each in fields(config)}
        encoders = [name for name, value in given.items() if isinstance(value, VectorEncoderFactory)]
        config = replace(config, **dict.fromkeys(encoders, DefaultEncoderFactory()))
    if not run.discrete:
        bound = np.linspace(2.0, 3.0, run.action_size)
        config = replace(config, action_scaler=MinMaxActionScaler(-bound, 2 * bound))
    names = [name for name in (*CHECKS, *SLOW_CHECKS) if name.startswith("export")]
    sizes = {"observation_shape": shape, "action_size": run.action_size, "discrete_action": run.variant.discrete}
    assert check_algorithm(config, **sizes, checks=names) == names


@pytest.mark.parametrize("shape", [(4, 4), ((3,), (2,)), {"near": (3,), "far": (2, 2)}], ids=str)
def test_contract_with_other_observations(shape: Any) -> None:
    config = algos.SACConfig(batch_size=8)
    names = [
        "actions_in_bounds",
        "export_torchscript",
        "export_torch",
        "gradient_split",
        "padding_is_ignored",
        "same_seed_same_result",
        "save_load_continue",
    ]
    assert check_algorithm(config, observation_shape=shape, checks=names) == names


@pytest.mark.parametrize(
    "config",
    [
        algos.DiscreteBCConfig(batch_size=8),
        algos.DiscreteCQLConfig(batch_size=8, encoder_factory="gru", sequence_length=4),
        algos.DecisionTransformerConfig(batch_size=4, context_size=3, num_heads=1, num_layers=1),
    ],
    ids=lambda config: type(config).__name__,
)
def test_contract_with_choices(config: Any) -> None:
    parts = {"gear": spaces.Discrete(4, start=1), "pair": (spaces.MultiDiscrete([2, 3]), (2,))}
    names = ["save_load_continue", "actions_in_bounds", "export_torchscript"]
    assert check_algorithm(config, observation_shape=parts, checks=names) == names


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="no check is called 'everything'"):
        check_algorithm(CONTRACT_RUNS[0].config, checks=["everything"])


# -- every check finds its fault --------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def dqn_loss(change: Callable[[Any, Any, Any], Any]) -> Fault:
    """A DQN whose loss is ``change(nets, batch, right loss)``."""

    def loss(nets: Any, batch: Any, cfg: Any) -> Loss:
        with torch.no_grad():
            target = nets.critic_target(batch.next_inputs).average()
            target = target.gather(batch.action).backup(batch.reward, batch.discount)
        right = td_loss(nets.critic(batch.inputs).gather(batch.action), target, batch, delta=1.0)
        return change(nets, batch, right)  # type: ignore[no-any-return]

    return lambda patch: patch.setattr(
        algos.DQN, "steps", (Gradient("critic", loss, optimizer="", metric="loss"), *algos.DQN.steps[1:])
    )


def _write_a_parameter(nets: Any, batch: Any, right: Loss) -> Loss:
    with torch.no_grad():
        nets.critic.head.linear.bias.mul_(1.5)
    return right


def _write_the_batch(nets: Any, batch: Any, right: Loss) -> Loss:
    batch.reward.mul_(2)
    return right


def _count(nets: Any, batch: Any, right: Loss) -> Loss:
    nets.count = getattr(nets, "count", 0) + 1  # a state that no file holds
    return replace(right, value=right.value * (1.0 + nets.count))


def _unseeded(nets: Any, batch: Any, right: Loss) -> Loss:
    return replace(right, value=right.value * float(np.random.default_rng().uniform(0.5, 1)))


def _ignores_weights(nets: Any, batch: Any, right: Loss) -> Loss:
    return Loss((nets.critic(batch.inputs).gather(batch.action).mean() - batch.reward).square().mean())


def _one_head_only(nets: Any, batch: Any, right: Loss) -> Loss:
    return replace(right, value=right.value + 0 * nets.critic(batch.inputs).values.mean())


def _equal_members(patch: pytest.MonkeyPatch) -> None:
    build = algos.DQN.networks

    def networks(spec: Any, cfg: Any) -> Any:
        nets = build(spec, cfg)
        with torch.no_grad():
            nets.critic.head.linear.weight.copy_(nets.critic.head.linear.weight[:1].clone())
        return nets

    patch.setattr(algos.DQN, "networks", staticmethod(networks))


def _stale_export(patch: pytest.MonkeyPatch) -> None:
    save = algos.DQN.save_policy

    def save_policy(self: Any, fname: Any) -> None:
        other = self.config.create()
        other.create_impl(self.observation_shape, self.action_size)
        with torch.no_grad():
            other.nets.critic.head.linear.bias.add_(torch.tensor([9.0, 0.0, 0.0]))
        save(other, fname)

    patch.setattr(algos.DQN, "save_policy", save_policy)


def _forgetful_export(patch: pytest.MonkeyPatch) -> None:
    right = PolicyModule.forward

    def forward(self: Any, observation: Any, state: Any = None) -> Any:
        return right(self, observation, None if state is None else {name: 0 * x for name, x in state.items()})

    patch.setattr(PolicyModule, "forward", forward)


def _says_it_does_not_split(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(algos.DQN, "steps", (replace(algos.DQN.steps[0], splits=False), *algos.DQN.steps[1:]))


def _copies_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Polyak, "__call__", lambda self, on, batch: HardCopy(self.source, self.target)(on, batch))


def _unsynced_target(patch: pytest.MonkeyPatch) -> None:
    build = algos.DQN.networks

    def networks(spec: Any, cfg: Any) -> Any:
        nets = build(spec, cfg)
        nets.critic_target = build(spec, cfg).critic  # fault 11 of d3rlpy
        return nets

    patch.setattr(algos.DQN, "networks", staticmethod(networks))


def _leaks(patch: pytest.MonkeyPatch) -> None:
    from birl.algos import ppo

    right = ppo.generalized_advantage
    wrong = lambda reward, value, following, discount, ended, lam: right(  # noqa: E731
        reward, value, following, discount, torch.zeros_like(ended), lam
    )
    patch.setattr(ppo, "generalized_advantage", wrong)


def _ends_at_time_limits(patch: pytest.MonkeyPatch) -> None:
    from birl.algorithm import experience

    right = experience.to_batch

    def wrong(minibatch: Any, units: Any, gamma: float) -> Any:
        batch = right(minibatch, units, gamma)
        return replace(batch, discount=torch.where(batch.observation[..., 1] == 4, 0.0, batch.discount))

    patch.setattr(experience, "to_batch", wrong)


def _unbounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(algos.TD3, "acts", replace(algos.TD3.acts, greedy=lambda nets, inputs: 3 * nets.actor(inputs)))


def _branches(nets: Any, batch: Any, right: Loss) -> Loss:
    return right if bool(right.value > 1e6) else replace(right, value=2 * right.value)


def _not_recorded(patch: pytest.MonkeyPatch) -> None:
    def loss(nets: Any, batch: Any, cfg: Any) -> Loss:
        action = nets.actor(batch.inputs)
        return Loss(-nets.critic(batch.inputs, action.detach()).mean()[0].mean() + 0 * action.sum())

    critic, _, *targets = algos.TD3.steps
    actor = Gradient("actor", loss, when=When(every="update_actor_interval"))
    patch.setattr(algos.TD3, "steps", (critic, actor, *targets))


FAULTS: dict[str, tuple[str, str, Fault]] = {
    "actions out of bounds": ("actions_in_bounds", "TD3", _unbounded),
    "a loss changes its batch": ("batches_stay_as_they_are", "DQN", dqn_loss(_write_the_batch)),
    "advantages leak": ("episodes_stay_separate", "PPO discrete", _leaks),
    "a time limit ends the bootstrap": ("episodes_stay_separate", "DQN", _ends_at_time_limits),
    "a time limit ends the bootstrap of sequences": ("episodes_stay_separate", "DQN GRU", _ends_at_time_limits),
    "the export is another policy": ("export_torchscript", "DQN", _stale_export),
    "the pt2 export is another policy": ("export_torch", "DQN", _stale_export),
    "the export forgets": ("export_torchscript", "DQN GRU", _forgetful_export),
    "a sum over the batch": (
        "gradient_split",
        "DQN",
        dqn_loss(lambda nets, batch, right: replace(right, value=right.value * len(batch.reward))),
    ),
    "a gradient splits, and is said not to": ("gradient_split", "DQN", _says_it_does_not_split),
    "a loss branches": ("losses_read_nothing", "DQN", dqn_loss(_branches)),
    "members are equal": ("members_differ", "DQN", _equal_members),
    "a metric is a float": (
        "metrics",
        "DQN",
        dqn_loss(lambda nets, batch, right: replace(right, metrics={"size": torch.zeros(2)})),
    ),
    "weights are ignored": ("padding_is_ignored", "DQN", dqn_loss(_ignores_weights)),
    "a loss writes a parameter": ("steps_stay_in_their_networks", "DQN", dqn_loss(_write_a_parameter)),
    "the actor gets no gradient": ("steps_stay_in_their_networks", "TD3", _not_recorded),
    "one head only": ("q_functions", "DQN", dqn_loss(_one_head_only)),
    "unseeded noise": ("same_seed_same_result", "DQN", dqn_loss(_unseeded)),
    "a state is not saved": ("save_load_continue", "DQN", dqn_loss(_count)),
    "a target copies at once": ("targets_follow", "SAC", _copies_at_once),
    "a target begins elsewhere": ("targets_follow", "DQN", _unsynced_target),
    "a parameter moves by itself": ("zero_learning_rate", "DQN", dqn_loss(_write_a_parameter)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_checks_find_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, algorithm, plant = FAULTS[fault]
    run = next(run for run in CONTRACT_RUNS if run.name == algorithm)
    check(run, name)
    plant(monkeypatch)
    with pytest.raises((AssertionError, AttributeError), match=f"check '{name}'|has no attribute 'values'"):
        check(run, name)


def test_every_check_has_a_fault() -> None:
    assert {name for name, _, _ in (*FAULTS.values(), *PLANTED.values())} == {*CHECKS, "export_torch"}
