"""Policy regularization with dataset constraint: TD3 with a policy that stays near the dataset as a whole."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    DeterministicActor,
    Gradient,
    Learner,
    Loss,
    Transitions,
    config,
    field,
    q_value,
)
from birl.algos.td3 import DELAYED, TARGETS, TD3Config, TD3Nets, critic_loss
from birl.algos.td3_plus_bc import drawn_to
from birl.errors import DataError
from birl.models import eval_mode
from birl.types import Tree, tree_leaves

NUMBERS_OF_A_BLOCK: Final = 2**14
DISTANCES_AT_ONCE: Final = 2**22
"""Limit on the memory of a search."""


@config
class PRDCConfig(TD3Config):
    """Policy Regularization with Dataset Constraint (Ran et al. 2023, arXiv:2306.06569), on TD3.

    A penalty pulls the policy's action towards the action of the nearest step in the data. Distances are over states
    and actions together, with states multiplied by ``beta``. Unlike in TD3+BC, the nearest action may come from
    another, similar state. A policy update compares its minibatch with every step of the data. For a million steps of
    23 numbers each, this takes about 0.3 s on two CPU cores. Encoders must be feed-forward.

    Logs ``critic_loss``, ``q_value``, ``actor_loss`` and ``dc_loss`` (the squared distance between the policy's actions
    and the nearest ones).

    Differs from the paper: the penalty is the squared distance between the actions only, as in d3rlpy.

    Differs from d3rlpy: the policy is updated in updates d, 2d, … (d3rlpy: 1, d + 1, …), and its update can be
        compiled.
    """

    alpha: float = field(2.5, "Weight of the scaled Q-value against the distance to the data.", low=0)
    beta: float = field(2.0, "Factor of states in distances between states and actions.", low=0)


class NearestActions:
    """Search for the data's actions nearest to given states and actions: ``argmin_k |(beta s, a) - key_k|``.

    Args:
        keys: ``(beta s, a)`` of all steps of the data, ``[K, D]``.
        action_size: number of action dimensions, which are the last numbers of a key.
    """

    def __init__(self, keys: Tensor, action_size: int) -> None:
        self._actions = keys[:, -action_size:]
        self._centre = keys.mean(0)  # centred numbers are small, so that differences of squares are precise
        self._block = max(16, min(1024, NUMBERS_OF_A_BLOCK // keys.shape[1]))
        centred, padding = keys - self._centre, -len(keys) % self._block
        self._keys = F.pad(centred, (0, 0, 0, padding))
        self._squares = F.pad(centred.square().sum(1), (0, padding), value=torch.inf)  # padding is never the nearest

    def __call__(self, queries: Tensor) -> Tensor:
        """Return the actions ``[B, A]`` of the keys nearest to ``queries`` ``[B, D]``."""
        queries, block = queries - self._centre, self._block
        step, lows = block * _blocks_at_once(queries.device, block * len(queries)), []
        for begin in range(0, len(self._keys), step):
            keys, squares = self._keys[begin : begin + step], self._squares[begin : begin + step]
            distance = torch.addmm(squares, queries, keys.T, alpha=-2)  # without the query's square, equal for all keys
            lows.append(distance.unflatten(1, (-1, block)).amin(2))  # argmin would take far longer
        rows = torch.cat(lows, 1).argmin(1, keepdim=True) * block + torch.arange(block, device=queries.device)
        distance = self._squares[rows] - 2 * torch.einsum("bkd,bd->bk", self._keys[rows], queries)
        return self._actions[rows.gather(1, distance.argmin(1, keepdim=True))[:, 0]]


def _blocks_at_once(device: torch.device, distances: int) -> int:
    """Return the number of blocks of ``distances`` per product: one on a CPU, so that it fits in the cache."""
    return 1 if device.type == "cpu" else max(1, DISTANCES_AT_ONCE // distances)


class SearchableMinibatch(NamedTuple):
    """A minibatch, and the `NearestActions` of its dataset."""

    minibatch: Any
    nearest: NearestActions

    @property
    def rows(self) -> Any:
        """The minibatch's rows."""
        return self.minibatch.rows

    def update_priorities(self, priority: Tensor) -> None:
        """See `MiniBatch.update_priorities`."""
        self.minibatch.update_priorities(priority)


def actor_loss(nets: TD3Nets, batch: Batch, cfg: PRDCConfig) -> Loss:
    """``-lambda * E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]``, ``lambda = alpha / E[|Q_1|]``: ``a`` is the nearest action."""
    loss, distance = drawn_to(nets, batch, batch.extra["nearest_action"], cfg.alpha)
    return Loss(loss, {"dc_loss": distance})


@dataclass(frozen=True)
class NearData(Transitions):
    """Transitions with the data's actions that are nearest to the policy's.

    The first minibatch from a dataset needs a pass over the whole dataset. Only policy updates search.
    """

    gathers = False
    single_states = "compares single states"
    online: bool = False
    single_seed: str = "prepares its minibatches with its networks"

    def sample(self, learner: Learner, source: Any) -> SearchableMinibatch:
        count, (known, size, nearest) = source.transition_count, learner.memory.get("nearest", (None, 0, None))
        if nearest is None or known() is not source or size != count:
            units, beta = learner.units, learner.config.beta
            parts = ((units.observation(x.observations), units.action(x.actions)) for x in source.all_transitions())
            nearest = NearestActions(torch.cat([_key(*part, beta) for part in parts]), learner.spec.actions.size)
            learner.memory["nearest"] = weakref.ref(source), count, nearest
        return SearchableMinibatch(super().sample(learner, source), nearest)

    def batch(self, learner: Learner, minibatch: Any) -> Batch:
        """Return the batch, with ``nearest_action`` in ``extra`` if the next update trains the policy."""
        if not isinstance(minibatch, SearchableMinibatch):  # assumed to come from the last dataset
            if "nearest" not in learner.memory:
                raise DataError(
                    "PRDC searches the whole dataset for actions, and this minibatch does not know its dataset: "
                    "sample it with algo.sample_minibatch(dataset), once, or call fit first"
                )
            minibatch = SearchableMinibatch(minibatch, learner.memory["nearest"][2])
        batch = super().batch(learner, minibatch.minibatch)
        return with_nearest(learner, batch, minibatch.nearest) if learner.engine.is_due("actor") else batch


@torch.no_grad()
def with_nearest(learner: Learner, batch: Batch, nearest: NearestActions) -> Batch:
    """Add the data's actions that are nearest to the policy's actions before the update."""
    with eval_mode(learner.nets.actor):
        queries = _key(batch.observation, learner.nets.actor(batch.inputs), learner.config.beta)
    return replace(batch, extra={**batch.extra, "nearest_action": nearest(queries)})


def _key(observation: Tree, action: Tensor, beta: float) -> Tensor:
    """Return ``(beta s, a)`` ``[B, D]``."""
    leaves = tree_leaves(observation)  # one number per step, [B], is a state, too
    return torch.cat([*(beta * leaf.reshape(len(leaf), -1) for leaf in leaves), action], 1)


@final
class PRDC(Algorithm[PRDCConfig, TD3Nets]):
    """See `PRDCConfig`."""

    actions = ActionSpace.CONTINUOUS
    learns_from = NearData()
    acts = DeterministicActor(value=q_value)
    steps = (Gradient("critic", critic_loss), Gradient("actor", actor_loss, when=DELAYED, splits=False), *TARGETS)
