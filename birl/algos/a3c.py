"""Asynchronous advantage actor-critic, for discrete and continuous actions."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    Loss,
    Rollouts,
    StochasticActor,
    config,
    field,
)
from birl.algos import a2c
from birl.algos.a2c import A2CConfig, A2CNets
from birl.losses import rollout_metrics
from birl.optimizers import OptimizerFactory, RMSpropFactory


def shared_rmsprop() -> OptimizerFactory:
    """RMSprop of arXiv:1602.01783, section 4: epsilon is inside the root, and all workers share one optimiser."""
    return RMSpropFactory(alpha=0.99, eps=0.1, centered=False, eps_inside_root=True, clip_grad_norm=40.0)


@config
class A3CConfig(A2CConfig):
    """Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

    The losses of A2C, summed over the steps of a rollout. With ``fit_online(env, workers=16)`` each of 16 processes
    collects rollouts of ``rollout_length`` steps with the newest parameters, and one optimiser applies their gradients
    in the order in which they arrive; without ``workers``, one process alternates between rollouts and gradient steps.
    Seeded runs with several workers are not reproducible. With one process and many environments, use A2C.

    A rollout also ends where the episode ends, as in the paper, if each process has one environment.

    Logs ``loss``, which is a sum over steps, and the means ``policy_loss``, ``value_loss``, ``entropy`` and
    ``explained_variance``.

    Differs from the paper: gradients are clipped to a norm of 40, and the learning rate is constant unless a schedule
        is given. The weight of the squared error and epsilon are taken from PFRL.
    """

    optim_factory: OptimizerFactory = field(shared_rmsprop)
    value_coefficient: float = 0.25
    end_with_episode: bool = field(
        True, "Whether a rollout also ends where an episode ends. Only for one environment in each process."
    )


def loss(nets: A2CNets, batch: Batch, cfg: A3CConfig) -> Loss:
    """Algorithm S3: ``sum_t -log pi(a_t|s_t) (R_t - V(s_t)) + c_v (R_t - V(s_t))^2 - c_e H``."""
    mean = a2c.loss(nets, batch, cfg)
    return replace(mean, value=mean.value * batch.weight.count_nonzero())


@final
class A3C(Algorithm[A3CConfig, A2CNets]):
    """See `A3CConfig`."""

    actions = ActionSpace.ANY
    learns_from = Rollouts(a2c.prepare, n_passes="", metrics=rollout_metrics)
    acts = StochasticActor(stateful_networks=("value",), bounded=False, clipped=True)
    steps = (Gradient("policy", loss, of=("actor", "value"), optimizer="", metric="loss", splits=False),)  # a sum
