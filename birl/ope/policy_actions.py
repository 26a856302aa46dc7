"""What fitted Q evaluation learns from: transitions with what the evaluated policy does at next observations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from birl.acting.built_policy import BuiltPolicy
from birl.algorithm import ActionSpace, Batch, Inputs, Learner, Transitions
from birl.algorithm.batches import to_batch
from birl.dataset.episodes import episode_table, longest_horizon
from birl.dataset.flags import TERMINATED
from birl.dataset.storage import Storage
from birl.dataset.transitions import NO_COLUMNS
from birl.dataset.views import SequenceView, TransitionView
from birl.errors import ShortRunWarning, UnsupportedError
from birl.models.distributions import Categorical
from birl.ope.refits import episode_times

POLICY_ACTION: Final = "policy_action"
POLICY_SHARE: Final = "policy_share"
TIMES: Final = "times"
"""How often each draw with replacement counts the episode of a step, in minibatches and batches."""


def _row_times(storage: Storage, count: int) -> Any:
    """The same for every row of the storage, float32 ``[rows, count]``, where minibatches are gathered."""

    def make() -> Any:
        lane, start, length = episode_table(storage)
        number = np.repeat(np.arange(len(lane)), length + 1)
        within = np.arange(len(number)) - np.repeat(np.cumsum(length + 1) - length - 1, length + 1)
        rows = storage.rows(lane[number], start[number] + within)
        times = np.zeros((len(storage.flags), count), np.float32)
        times[rows] = episode_times(storage.source, count).T[number]
        return storage.place.indices(times)

    return storage.cached(f"resamples {count}", make)


@dataclass(frozen=True)
class ResampledView(TransitionView):
    """Transitions with `TIMES`, ``[B, members]``.

    Args:
        members: number of draws with replacement.
    """

    members: int = 1

    def read(self, storage: Storage, part: Any, rows: Any) -> Any:
        """See `TransitionView`."""
        batch = super().read(storage, part, rows)
        return replace(batch, extra={**batch.extra, TIMES: _row_times(storage, self.members)[rows]})


@dataclass(frozen=True)
class ResampledSequenceView(SequenceView):
    """Sequences with `TIMES`, ``[T, B, members]``.

    Args:
        members: number of draws with replacement.
    """

    members: int = 1

    def read(self, storage: Storage, part: Any, rows: Any) -> Any:
        """See `SequenceView`."""
        batch = super().read(storage, part, rows)
        window, _ = self.window(storage, rows)
        return replace(batch, extra={**batch.extra, TIMES: _row_times(storage, self.members)[window]})


@dataclass(frozen=True)
class WithPolicyActions(Transitions):
    """Transitions with the evaluated policy's actions at next observations.

    Recurrent states in the data belong to the networks that collected them, so all networks here start from zeros and
    are warmed up by ``burn_in``.
    """

    single_seed: str = "prepares its minibatches with its networks"

    def sample(self, learner: Learner, source: Any) -> Any:
        """Minibatches with `TIMES`, where each member is fitted on episodes of its own."""
        config = learner.config
        if not config.resample_episodes:
            return super().sample(learner, source)
        reader = getattr(source, "reader", source)
        versions = [storage.version for storage in reader.storages]
        if len(versions) > 1 or learner.memory.setdefault("versions", versions) != versions:
            raise UnsupportedError(
                "resample_episodes draws whole episodes of one dataset that stays as it is: learn from one that does "
                "not grow and is no mixture"
            )
        if learner.recurrent:
            view = ResampledSequenceView(config.sequence_length, config.burn_in, NO_COLUMNS, config.n_critics)
            return source.sample(view, config.batch_size)
        return source.sample(ResampledView(NO_COLUMNS, config.n_critics), config.batch_size)

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        """``extra`` holds what the policy does at next observations, and `TIMES` ``[..., members]``; see `Choices`."""
        if getattr(drawn, "rows", None) is not None:
            raise UnsupportedError(
                f"{learner.name} estimates what a policy is worth over the data, in which each step counts alike; a "
                "prioritised sampler draws some more often than others: make the dataset without sampler="
            )
        batch = to_batch(drawn, learner.units, learner.config.gamma)
        is_first = batch.is_first

        def inputs(policy: BuiltPolicy) -> Inputs:
            following = policy.units.observation(drawn.next_observations)
            if is_first is None:
                return Inputs(following)
            return Inputs(policy.units.observation(drawn.observations), None, is_first, following, later=batch.later)

        found = dict(zip((POLICY_SHARE, POLICY_ACTION), choices_of(learner, inputs), strict=True))
        extra = {name: each for name, each in found.items() if each is not None}
        if learner.config.resample_episodes:
            extra[TIMES] = learner.units.tensor(drawn.extra[TIMES])
        batch = replace(batch, state=None, extra=extra)
        burn_in = getattr(drawn, "burn_in", 0)
        if learner.engine.recurrent or burn_in == 0:
            return learner.engine.burn_in(batch, burn_in)
        return batch.map(lambda x: x[burn_in:])

    def check_run(self, learner: Learner, source: Any, count: int) -> None:
        """Warn if there are fewer copies of the target than steps that count, or if no number would do."""
        learner.memory.pop("versions", None)
        gamma, interval = learner.config.gamma, learner.config.target_update_interval
        copies = (learner.engine.grad_step + count) // interval
        reader = getattr(source, "reader", source)
        steps = min(getattr(each.picker, "n_steps", 1) for each in reader.sources)  # back, with each copy
        ends = max(longest_horizon(storage) for storage in reader.storages)
        horizon = min(ends, np.inf if gamma == 1 else 1 / (1 - gamma))
        if gamma == 1 and not any((storage.flags & TERMINATED).any() for storage in reader.storages):
            warnings.warn(
                f"gamma is 1 and no episode of the data terminates, so that values have no end and the estimate of "
                f"{learner.name} only grows with the number of updates: take gamma < 1, or mark where the task ended "
                "as terminals",
                stacklevel=6,
            )
        if steps * copies < horizon < np.inf and horizon > 1:
            back = "one step" if steps == 1 else f"{steps} steps"
            warnings.warn(
                f"n_steps={count} and target_update_interval={interval} make {copies} copies of "
                f"{learner.name}'s target. Each carries rewards {back} further back, so that later ones do not "
                f"reach the estimate, though {round(horizon)} steps count with gamma={gamma:g}: make "
                f"n_steps={math.ceil(round(3 * horizon / steps, 3)) * interval}, or copy more often",
                ShortRunWarning,
                stacklevel=6,
            )


class Choices(NamedTuple):
    """What a policy does: how probable each choice is, or actions that it takes.

    Attributes:
        share: probabilities ``[..., A]`` of one choice; ``None`` of other actions.
        action: actions ``[..., K, *shape]`` in the units of the Q-functions, each as probable; ``None`` of one choice.
    """

    share: Tensor | None
    action: Tensor | None


@torch.no_grad()
def choices_of(learner: Learner, inputs_of: Callable[[BuiltPolicy], Inputs]) -> Choices:
    """What the evaluated policy does: by probabilities where they are known, else by ``n_action_samples`` draws.

    Args:
        learner: the evaluation.
        inputs_of: observations in the units of a policy.
    """
    assert learner.evaluated is not None
    count, spec = learner.config.n_action_samples, learner.spec
    weights, policies = zip(*learner.evaluated.policies(), strict=True)
    for policy in policies:
        policy.set_mode(True)
    if spec.actions.kind is ActionSpace.DISCRETE:
        shares = [_share(policy, inputs_of(policy), count) for policy in policies]
        return Choices(sum(w * share for w, share in zip(weights, shares, strict=True)), None)
    drawn = torch.stack([_actions(policy, inputs_of(policy), count, learner) for policy in policies])
    if len(policies) == 1:
        return Choices(None, drawn[0])
    each = drawn.shape[1 : drawn.dim() - len(spec.actions.shape)]  # [..., K]
    chance = torch.tensor(weights, device=drawn.device)
    which = torch.multinomial(chance, each.numel(), replacement=True)
    which = which.reshape(1, *each, *(1 for _ in spec.actions.shape))
    return Choices(None, drawn.gather(0, which.expand(1, *drawn.shape[1:]))[0])


def _share(policy: BuiltPolicy, inputs: Inputs, count: int) -> Tensor:
    """How probable each choice is, ``[..., A]``."""
    function, distribution = policy.function(greedy=not count), policy.policy.distribution
    if function is policy.policy.sample and distribution is not None:
        known = distribution(policy.nets, inputs)
        if isinstance(known, Categorical):
            return known.probs
    drawn = torch.stack([function(policy.nets, inputs) for _ in range(max(count, 1))], -1)
    every = torch.arange(policy.spec.actions.size, device=drawn.device)
    return (drawn.unsqueeze(-1) == every).float().mean(-2)


def _actions(policy: BuiltPolicy, inputs: Inputs, count: int, learner: Learner) -> Tensor:
    """Actions ``[..., K, *shape]`` in the units of the Q-functions."""
    own, function, actions = learner.spec.actions, policy.function(greedy=not count), []
    for _ in range(max(count, 1)):
        action = policy.environment_tensor(function(policy.nets, inputs))
        actions.append(learner.units.action(action if own.shape else action.unsqueeze(-1)))
    return torch.stack(actions, -1 - len(own.shape))
