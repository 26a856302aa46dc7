"""Dynamic policy programming."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Inputs,
    Loss,
    Policy,
    Spec,
    Transitions,
    config,
    field,
    q_action,
    q_value,
)
from birl.algos.dqn import TARGET, DQNConfig, DQNNets
from birl.errors import ConfigError
from birl.losses import td_loss
from birl.models import C51QFunctionFactory, Returns
from birl.models.distributions import Categorical


@config
class DPPConfig(DQNConfig):
    """Dynamic policy programming (Azar et al. 2012, JMLR 13:3207, arXiv:1004.2027), with DQN's networks.

    The critic learns preferences of actions, which accumulate advantages over the updates: each target is the last
    preference plus a reward and the next state's value, minus the state's value. The value of a state is an operator on
    its preferences: their mean under the policy ``softmax(inverse_temperature * preferences)`` (``"softmax"``), the
    logarithm of the sum of their exponentials (``"log_sum_exp"``) or their maximum (``"max"``). In PFRL these are
    ``DPP``, ``DPPL`` and ``DPPGreedy``, and ``inverse_temperature`` is ``eta``.

    ``sample_action``, and `fit_online` without an explorer, draw from that policy, as in the paper; ``predict`` gives
    its most probable action. In ``MultiDiscrete`` action spaces critics branch as in `DQN`, and the policy is over all
    combinations of options.

    Preferences are not returns: those of suboptimal actions fall without bound, with each copy of the target network.
        The categorical head raises an error, because its returns are bounded from below.

    Logs ``loss`` and ``q_value``.

    Differs from the paper: a network that takes gradient steps towards its targets, with Adam, instead of a table or a
    regression; an ensemble of critics is possible. Differs from PFRL: its agents act greedily.
    """

    inverse_temperature: float = field(1.0, "Inverse temperature of the policy; the larger, the greedier.", above=0)
    operator: str = field(
        "softmax",
        "Operator that computes a state's value from its preferences.",
        choices=("softmax", "log_sum_exp", "max"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.q_func_factory, C51QFunctionFactory):
            raise ConfigError(
                "q_func_factory is a C51QFunctionFactory, whose returns end at v_min, but preferences of DPP fall "
                "without end: use MeanQFunctionFactory, QRQFunctionFactory or IQNQFunctionFactory"
            )


class DPPNets(DQNNets):
    """Networks of DQN, and the temperature of the acting policy."""

    def __init__(self, spec: Spec, cfg: DPPConfig) -> None:
        super().__init__(spec, cfg)
        self.temperature = 1 / cfg.inverse_temperature


def state_value(preferences: Returns, cfg: DPPConfig) -> tuple[Returns, Tensor | None]:
    """Compute ``M(s)`` of the preferences ``[N, …, A]``: returns ``[N, …]``, and a bonus ``[…]`` or ``None``.

    With the entropy ``H`` of the policy ``pi``, the logarithm of the sum is also a mean:
    ``log(sum_a exp(eta Q(s, a))) / eta = pi(s)^T Q(s) + H(pi(s)) / eta``.
    """
    if cfg.operator == "max":
        return preferences.gather(preferences.best()), None
    temperature = 1 / cfg.inverse_temperature
    policy = preferences.policy(temperature)
    mean = preferences.mix(policy.log_probs.exp())
    return mean, temperature * policy.entropy() if cfg.operator == "log_sum_exp" else None


def preference_loss(nets: DPPNets, batch: Batch, cfg: DPPConfig) -> Loss:
    """Huber loss against ``y = Q'(s, a) + r + discount * M'(s') - M'(s)`` (algorithm 1)."""
    with torch.no_grad():
        preferences = nets.critic_target(batch.inputs)
        value, more = state_value(preferences, cfg)
        advantage = (preferences.gather(batch.action).mean() - value.mean()).mean(0)
        advantage = advantage if more is None else advantage - more
        following, more = state_value(nets.critic_target(batch.next_inputs), cfg)
        target = following.min().backup(batch.reward + advantage, batch.discount, more)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch, delta=cfg.huber_threshold)


def preference_policy(nets: DPPNets, inputs: Inputs) -> Categorical:
    """Return the policy ``softmax(Q / temperature)``."""
    return nets.critic(inputs).policy(nets.temperature)


def sampled_preference(nets: DPPNets, inputs: Inputs) -> Tensor:
    """Draw an action from the policy ``softmax(Q / temperature)``."""
    return preference_policy(nets, inputs).sample()[0]


@final
class DPP(Algorithm[DPPConfig, DPPNets]):
    """See `DPPConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Transitions()
    acts = Policy(q_action, sampled_preference, q_value, network="critic", distribution=preference_policy)
    steps = (Gradient("critic", preference_loss, optimizer="", metric="loss"), TARGET)
