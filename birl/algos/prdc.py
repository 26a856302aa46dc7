"""Policy regularization with dataset constraint: TD3 whose policy stays near the whole of the data."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from birl.acting import deterministic_action, q_value
from birl.algorithm import Algorithm
from birl.algos.td3 import TD3Config, TD3Nets, critic_loss
from birl.algos.td3_plus_bc import drawn_to
from birl.config import config
from birl.engine import Loss, Phase, Polyak
from birl.errors import DataError, UnsupportedError
from birl.models import evaluating, is_recurrent
from birl.types import ActionSpace, Batch, Spec, Tree, tree_leaves

__all__ = ["PRDC", "PRDCConfig"]

DISTANCES_AT_ONCE: Final = 2**22
"""Bounds the memory that a search takes."""


@config
class PRDCConfig(TD3Config):
    """Policy Regularization with Dataset Constraint (Ran et al. 2023, arXiv:2306.06569), on TD3.

    The policy's action is drawn to the action of the step in the data that is nearest to it, in states and actions
    together, where states count ``beta`` times. Other than in TD3+BC that may be an action of another, similar state.

    An update compares its minibatch with every step of the data, which takes a core of a CPU about a second where the
    data have a million steps. Encoders are feed-forward.

    Logs ``critic_loss``, ``actor_loss`` and ``dc_loss`` (squared distance of the policy's actions to the nearest ones).

    Differs from the paper: the distance is squared, and that of actions alone, as in d3rlpy.

    Differs from d3rlpy: the policy moves in updates d, 2d, … (d3rlpy: 1, d + 1, …), and can be compiled.
    """

    alpha: float = 2.5
    beta: float = 2.0


class PRDCNets(TD3Nets):
    """Every tensor that PRDC learns."""

    def __init__(self, spec: Spec, cfg: PRDCConfig) -> None:
        super().__init__(spec, cfg)
        if is_recurrent(self):
            raise UnsupportedError("PRDC compares single states: use feed-forward encoders, or TD3PlusBC with a memory")


class NearestActions:
    """Finds the actions of the data that are nearest to given states and actions: ``argmin_k |(beta s, a) - key_k|``.

    Args:
        keys: ``(beta s, a)`` of all steps of the data, ``[K, D]``.
        action_size: the last ``action_size`` numbers of a key are its action.
    """

    def __init__(self, keys: Tensor, action_size: int) -> None:
        self._centre = keys.mean(0)  # around which numbers are small, so that differences of squares are exact
        self._keys, self._actions = keys - self._centre, keys[:, -action_size:]
        self._squares = self._keys.square().sum(1)

    def __call__(self, queries: Tensor) -> Tensor:
        """Actions ``[B, A]`` of the keys nearest to ``queries`` ``[B, D]``."""
        queries = queries - self._centre
        found = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        lowest = torch.full((len(queries),), torch.inf, dtype=queries.dtype, device=queries.device)
        step = max(1, DISTANCES_AT_ONCE // len(queries))
        for begin in range(0, len(self._keys), step):
            keys, squares = self._keys[begin : begin + step], self._squares[begin : begin + step]
            distance = torch.addmm(squares, queries, keys.T, alpha=-2)  # without the query's own square: equal for all
            low, index = distance.min(1)
            found = torch.where(low < lowest, begin + index, found)
            lowest = torch.minimum(low, lowest)
        return self._actions[found]


class Drawn(NamedTuple):
    """A minibatch with what finds actions in the data that it was drawn from."""

    minibatch: Any
    nearest: NearestActions


def actor_loss(nets: TD3Nets, batch: Batch, cfg: PRDCConfig) -> Loss:
    """``-lambda * E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]``, ``lambda = alpha / E[|Q_1|]``: ``a`` is the nearest action."""
    loss, distance = drawn_to(nets, batch, batch.extra["nearest_action"], cfg.alpha)
    return Loss(loss, {"dc_loss": distance})


@final
class PRDC(Algorithm[PRDCConfig, PRDCNets]):
    """See `PRDCConfig`."""

    config_class = PRDCConfig
    networks = PRDCNets
    action_space = ActionSpace.CONTINUOUS
    acting = "actor"
    imitates = True
    phases = (
        Phase("critic", critic_loss),
        Phase("actor", actor_loss, every="update_actor_interval", splits=False),
    )
    targets = (
        Polyak("critic", "critic_target", every="update_actor_interval"),
        Polyak("actor", "actor_target", every="update_actor_interval"),
    )
    policy_mode = staticmethod(deterministic_action)
    policy_sample = staticmethod(deterministic_action)
    action_value = staticmethod(q_value)

    _searched: tuple[weakref.ref[Any], int, NearestActions] | None = None

    def updates_at_once(self, source: Any) -> int:
        """One: what is nearest is found between updates."""
        return 1

    def sample_minibatch(self, dataset: Any) -> Any:
        """Draw transitions; the first time, also read all of the data."""
        count = dataset.transition_count
        if self._searched is None or self._searched[0]() is not dataset or self._searched[1] != count:
            units, size = self.units, self.spec.action_size
            windows = dataset.all_transitions()
            keys = [self._key(units.observation(each.observations), units.action(each.actions)) for each in windows]
            self._searched = weakref.ref(dataset), count, NearestActions(torch.cat(keys), size)
        return Drawn(super().sample_minibatch(dataset), self._searched[2])

    def make_batch(self, minibatch: Any) -> Batch:
        """See `Algorithm.make_batch`; with ``nearest_action`` in ``extra``."""
        if not isinstance(minibatch, Drawn):
            raise DataError(
                "PRDC looks for actions in the whole of the data, which this minibatch does not know: draw it with "
                "algo.sample_minibatch(dataset)"
            )
        return self.with_nearest(super().make_batch(minibatch.minibatch), minibatch.nearest)

    @torch.no_grad()
    def with_nearest(self, batch: Batch, nearest: NearestActions) -> Batch:
        """The batch with the actions of the data that are nearest to the policy's, as it is before the update."""
        with evaluating(self.nets.actor):
            queries = self._key(batch.observation, self.nets.actor(batch.inputs))
        return replace(batch, extra={**batch.extra, "nearest_action": nearest(queries)})

    def _key(self, observation: Tree, action: Tensor) -> Tensor:
        leaves = tree_leaves(observation)  # one number a step, [B], is a state, too
        states = [self.config.beta * leaf.reshape(len(leaf), -1) for leaf in leaves]
        return torch.cat([*states, action], 1)
