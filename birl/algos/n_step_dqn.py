"""Asynchronous n-step Q-learning."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    HardCopy,
    Loss,
    NetworkConfig,
    Rollouts,
    SharedFields,
    ValueConfig,
    config,
    field,
)
from birl.algos import dqn
from birl.algos.a2c import A2CConfig
from birl.algos.a3c import A3CConfig, shared_rmsprop
from birl.algos.ppo import PPOConfig
from birl.losses import backward_recursion, lambda_returns
from birl.optimizers import OptimizerFactory
from birl.types import tree_map


@config
class NStepDQNConfig(ValueConfig):
    """Asynchronous n-step Q-learning (Mnih et al. 2016, arXiv:1602.01783, algorithm S2).

    This is DQN without a replay buffer: an update learns from the newest ``rollout_length`` steps, each with the return
        up to the last of these steps. With ``fit_online(env, explorer=…, workers=16)`` each of 16 processes collects
        rollouts with the newest parameters; a list of explorers gives each process its own epsilon, as in the paper.
        Without an explorer all actions are greedy.

    Logs ``loss``, which is a sum over steps, and ``q_value``.

    Differs from the paper: errors are clipped as in DQN, and gradients to a norm of 40. Targets are copied after a
        number of updates, not of frames: 2,000 updates of 5 steps with 4 frames each are the paper's 40,000 frames.
        Recurrent encoders raise an error.
    """

    batch_size: int = field(256, like=A2CConfig)
    learning_rate: float = field(7e-4, like=NetworkConfig)
    optim_factory: OptimizerFactory = field(shared_rmsprop, like=NetworkConfig)
    rollout_length: int = field(5, like=PPOConfig)
    target_update_interval: int = field(2000, like=SharedFields)
    huber_threshold: float | None = field(1.0, like=dqn.DQNConfig)
    end_with_episode: bool = field(False, like=A3CConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        dqn.check_threshold(self.q_func_factory, self.huber_threshold)


def prepare(nets: dqn.DQNNets, batch: Batch, ended: Tensor, cfg: NStepDQNConfig) -> Batch:
    """Return transitions of up to ``T`` steps, from each step of ``[T, B]`` to its episode's last step there."""
    zeros, ones = torch.zeros_like(batch.reward), torch.ones_like(batch.reward)
    left = backward_recursion(ones, 1 - ended)  # steps up to the last one, both included
    rows, lanes = torch.meshgrid(*(torch.arange(n, device=left.device) for n in left.shape), indexing="ij")
    last = rows + left.long() - 1
    return replace(
        batch,
        reward=lambda_returns(batch.reward, zeros, batch.discount, ended),
        next_observation=tree_map(lambda leaf: leaf[last, lanes], batch.next_observation),
        discount=lambda_returns(zeros, ones, batch.discount, ended),  # the product up to there
    )


def loss(nets: dqn.DQNNets, batch: Batch, cfg: NStepDQNConfig) -> Loss:
    """Algorithm S2: ``sum_t (R_t - Q(s_t, a_t))^2``, clipped, with ``R`` from ``max_a Q'(s_T, a)`` on backwards."""
    mean = dqn.q_loss(nets, batch, cfg)  # type: ignore[arg-type]  # of DQN's fields it reads the threshold
    return replace(mean, value=mean.value * batch.weight.count_nonzero())


@final
class NStepDQN(Algorithm[NStepDQNConfig, dqn.DQNNets]):
    """See `NStepDQNConfig`."""

    actions = ActionSpace.CHOICES
    learns_from = Rollouts(
        prepare,
        n_passes="",
        allows_explorer=True,
        single_states="values the last state of a rollout for all of its steps at once",
    )
    acts = GreedyCritic()
    steps = (
        Gradient("critic", loss, optimizer="", metric="loss", splits=False),  # a sum
        HardCopy("critic", "critic_target"),
    )
