"""Policy regularization with dataset constraint: TD3 whose policy stays near the whole of the data."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.acting.policy import deterministic_action, q_value
from birl.algorithm.algorithm import Algorithm
from birl.algos.td3 import TD3Config, TD3Nets, critic_loss
from birl.algos.td3_plus_bc import drawn_to
from birl.config import config, field
from birl.engine import Gradient, Loss, Polyak, When
from birl.errors import DataError, UnsupportedError
from birl.models import eval_mode, is_recurrent
from birl.types import ActionSpace, Batch, Spec, Tree, tree_leaves

NUMBERS_OF_A_BLOCK: Final = 2**14
DISTANCES_AT_ONCE: Final = 2**22
"""Bounds the memory that a search takes."""


@config
class PRDCConfig(TD3Config):
    """Policy Regularization with Dataset Constraint (Ran et al. 2023, arXiv:2306.06569), on TD3.

    The policy's action is drawn to the action of the step in the data that is nearest to it, in states and actions
    together, where states count ``beta`` times. Other than in TD3+BC that may be an action of another, similar state.

    An update that moves the policy compares its minibatch with every step of the data: of a million of them, with 23
    numbers each, that takes two cores of a CPU about 0.3 s. Encoders are feed-forward.

    Logs ``critic_loss``, ``actor_loss`` and ``dc_loss`` (squared distance of the policy's actions to the nearest ones).

    Differs from the paper: the distance is squared, and that of actions alone, as in d3rlpy.

    Differs from d3rlpy: the policy moves in updates d, 2d, … (d3rlpy: 1, d + 1, …), and can be compiled.
    """

    alpha: float = field(2.5, "Weight of the scaled Q-value against the distance to the data.", low=0)
    beta: float = field(2.0, "Factor of states in distances between states and actions.", low=0)


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
        self._actions = keys[:, -action_size:]
        self._centre = keys.mean(0)  # around which numbers are small, so that differences of squares are exact
        self._block = max(16, min(1024, NUMBERS_OF_A_BLOCK // keys.shape[1]))
        centred, padding = keys - self._centre, -len(keys) % self._block
        self._keys = F.pad(centred, (0, 0, 0, padding))
        self._squares = F.pad(centred.square().sum(1), (0, padding), value=torch.inf)  # which are never the nearest

    def __call__(self, queries: Tensor) -> Tensor:
        """Actions ``[B, A]`` of the keys nearest to ``queries`` ``[B, D]``."""
        queries, block = queries - self._centre, self._block
        step, lows = block * _blocks_at_once(queries.device, block * len(queries)), []
        for begin in range(0, len(self._keys), step):
            keys, squares = self._keys[begin : begin + step], self._squares[begin : begin + step]
            distance = torch.addmm(squares, queries, keys.T, alpha=-2)  # without the query's own square: equal for all
            lows.append(distance.unflatten(1, (-1, block)).amin(2))  # finding where the least is takes far longer
        rows = torch.cat(lows, 1).argmin(1, keepdim=True) * block + torch.arange(block, device=queries.device)
        distance = self._squares[rows] - 2 * torch.einsum("bkd,bd->bk", self._keys[rows], queries)
        return self._actions[rows.gather(1, distance.argmin(1, keepdim=True))[:, 0]]


def _blocks_at_once(device: torch.device, distances: int) -> int:
    """How many blocks of so many ``distances`` one product takes: one on a CPU, in whose caches it then stays."""
    return 1 if device.type == "cpu" else max(1, DISTANCES_AT_ONCE // distances)


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
    steps = (
        Gradient("critic", critic_loss),
        Gradient("actor", actor_loss, when=When(every="update_actor_interval"), splits=False),
        Polyak("critic", "critic_target", when=When(every="update_actor_interval")),
        Polyak("actor", "actor_target", when=When(every="update_actor_interval")),
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

    def update(self, batch: Any) -> dict[str, Tensor]:
        """See `Algorithm.update`. Nothing is searched for in updates that do not move the policy."""
        if isinstance(batch, Drawn) and not self.engine.is_due("actor"):
            batch = super().make_batch(batch.minibatch)
        return super().update(batch)

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
        with eval_mode(self.nets.actor):
            queries = self._key(batch.observation, self.nets.actor(batch.inputs))
        return replace(batch, extra={**batch.extra, "nearest_action": nearest(queries)})

    def _key(self, observation: Tree, action: Tensor) -> Tensor:
        leaves = tree_leaves(observation)  # one number a step, [B], is a state, too
        states = [self.config.beta * leaf.reshape(len(leaf), -1) for leaf in leaves]
        return torch.cat([*states, action], 1)
