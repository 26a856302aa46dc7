"""Minibatches of fitted Q evaluation: transitions with the evaluated policy's actions at next observations."""

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
from birl.ope.bootstrap import episode_counts
from birl.ope.user_policies import UserPolicy
from birl.types import Tree

POLICY_ACTION: Final = "policy_action"
POLICY_SHARE: Final = "policy_share"
COUNTS: Final = "times"
"""Column of minibatches and batches: how often the episode of a step occurs in each bootstrap sample."""


def _row_counts(storage: Storage, count: int) -> Any:
    """Return the bootstrap counts of every row of the storage, float32 ``[rows, count]``, on its device."""

    def make() -> Any:
        lane, start, length = episode_table(storage)
        number = np.repeat(np.arange(len(lane)), length + 1)
        within = np.arange(len(number)) - np.repeat(np.cumsum(length + 1) - length - 1, length + 1)
        rows = storage.rows(lane[number], start[number] + within)
        counts = np.zeros((len(storage.flags), count), np.float32)
        counts[rows] = episode_counts(storage.source, count).T[number]
        return storage.place.indices(counts)

    return storage.cached(f"bootstrap counts {count}", make)


@dataclass(frozen=True)
class ResampledView(TransitionView):
    """Transitions with `COUNTS`, ``[B, members]``.

    Args:
        members: number of bootstrap samples.
    """

    members: int = 1

    def read(self, storage: Storage, part: Any, rows: Any) -> Any:
        """See `TransitionView`."""
        batch = super().read(storage, part, rows)
        return replace(batch, extra={**batch.extra, COUNTS: _row_counts(storage, self.members)[rows]})


@dataclass(frozen=True)
class ResampledSequenceView(SequenceView):
    """Sequences with `COUNTS`, ``[T, B, members]``.

    Args:
        members: number of bootstrap samples.
    """

    members: int = 1

    def read(self, storage: Storage, part: Any, rows: Any) -> Any:
        """See `SequenceView`."""
        batch = super().read(storage, part, rows)
        window, _ = self.window(storage, rows)
        return replace(batch, extra={**batch.extra, COUNTS: _row_counts(storage, self.members)[window]})


@dataclass(frozen=True)
class WithPolicyActions(Transitions):
    """Transitions with the evaluated policy's actions at next observations.

    Recurrent states in the data come from the networks that collected them, so all networks start from zeros and warm
    up for ``burn_in`` steps.
    """

    single_seed: str = "prepares its minibatches with its networks"

    def sample(self, learner: Learner, source: Any) -> Any:
        """Sample minibatches, with `COUNTS` if each member is fitted on resampled episodes."""
        config = learner.config
        if not config.resample_episodes:
            return super().sample(learner, source)
        reader = getattr(source, "reader", source)
        versions = [storage.version for storage in reader.storages]
        if len(versions) > 1 or learner.memory.setdefault("versions", versions) != versions:
            raise UnsupportedError(
                "resample_episodes resamples whole episodes of one constant dataset, but this one grows or is a "
                "mixture: use a single finished dataset"
            )
        if learner.recurrent:
            view = ResampledSequenceView(config.sequence_length, config.burn_in, NO_COLUMNS, config.n_critics)
            return source.sample(view, config.batch_size)
        return source.sample(ResampledView(NO_COLUMNS, config.n_critics), config.batch_size)

    def batch(self, learner: Learner, minibatch: Any) -> Batch:
        """Make a batch; its ``extra`` has the policy's actions (`PolicyChoices`) and `COUNTS` ``[..., members]``."""
        if getattr(minibatch, "rows", None) is not None:
            raise UnsupportedError(
                f"{learner.name} estimates a value over the data, in which all steps have equal weight, but a "
                "prioritised sampler samples some more often: make the dataset without sampler="
            )
        batch = to_batch(minibatch, learner.units, learner.config.gamma)
        is_first = batch.is_first

        def inputs(policy: BuiltPolicy) -> Inputs:
            following = policy.units.observation(minibatch.next_observations)
            if is_first is None:
                return Inputs(following)
            return Inputs(
                policy.units.observation(minibatch.observations), None, is_first, following, later=batch.later
            )

        following = (minibatch.next_observations, batch.discount != 0)
        choices = dict(zip((POLICY_SHARE, POLICY_ACTION), policy_choices(learner, inputs, *following), strict=True))
        extra = {name: values for name, values in choices.items() if values is not None}
        if learner.config.resample_episodes:
            extra[COUNTS] = learner.units.tensor(minibatch.extra[COUNTS])
        batch = replace(batch, state=None, extra=extra)
        burn_in = getattr(minibatch, "burn_in", 0)
        if learner.engine.recurrent or burn_in == 0:
            return learner.engine.burn_in(batch, burn_in)
        return batch.map(lambda x: x[burn_in:])

    def check_run(self, learner: Learner, source: Any, count: int) -> None:
        """Warn if there are too few copies of the target for the horizon, or if no number is enough."""
        learner.memory.pop("versions", None)
        gamma, interval = learner.config.gamma, learner.config.target_update_interval
        copies = (learner.engine.grad_step + count) // interval
        reader = getattr(source, "reader", source)
        steps = min(getattr(part.picker, "n_steps", 1) for part in reader.sources)  # back, with each copy
        ends = max(longest_horizon(storage) for storage in reader.storages)
        horizon = min(ends, np.inf if gamma == 1 else 1 / (1 - gamma))
        if gamma == 1 and not any((storage.flags & TERMINATED).any() for storage in reader.storages):
            warnings.warn(
                f"gamma is 1 and no episode of the data terminates, so values are unbounded and the estimate of "
                f"{learner.name} grows with the number of updates: use gamma < 1, or mark ends of the task as "
                "terminals",
                stacklevel=6,
            )
        if steps * copies < horizon < np.inf and horizon > 1:
            back = "one step" if steps == 1 else f"{steps} steps"
            warnings.warn(
                f"n_steps={count} and target_update_interval={interval} make {copies} copies of "
                f"{learner.name}'s target. Each propagates rewards {back} further back, so later rewards do not reach "
                f"the estimate, but {round(horizon)} steps count with gamma={gamma:g}: use "
                f"n_steps={math.ceil(round(3 * horizon / steps, 3)) * interval}, or copy more often",
                ShortRunWarning,
                stacklevel=6,
            )


class PolicyChoices(NamedTuple):
    """Probabilities or samples of a policy's actions.

    Attributes:
        share: probabilities ``[..., A]`` of one discrete action; ``None`` for other actions.
        action: K samples ``[..., K, *shape]`` in the units of the Q-functions; ``None`` for one discrete action.
    """

    share: Tensor | None
    action: Tensor | None


@torch.no_grad()
def policy_choices(
    learner: Learner, inputs_of: Callable[[BuiltPolicy], Inputs], x: Tree, alive: Tensor
) -> PolicyChoices:
    """Return the evaluated policy's probabilities if they are known, otherwise ``n_action_samples`` samples.

    Args:
        learner: the evaluation.
        inputs_of: returns the observations in the units of a policy.
        x: the observations as the dataset stores them, for policies of users.
        alive: bool ``[...]``: the observations that an action follows.
    """
    assert learner.evaluated is not None
    count, spec = learner.config.n_action_samples, learner.spec
    if isinstance(learner.evaluated, UserPolicy):
        choices = learner.evaluated.choices(x, alive.cpu().numpy(), count)
        if spec.actions.kind is ActionSpace.DISCRETE:
            return PolicyChoices(learner.units.tensor(choices), None)
        return PolicyChoices(None, learner.units.action(choices).movedim(0, -1 - len(spec.actions.shape)))
    weights, policies = zip(*learner.evaluated.policies(), strict=True)
    for policy in policies:
        policy.set_mode(True)
    if spec.actions.kind is ActionSpace.DISCRETE:
        shares = [_share(policy, inputs_of(policy), count) for policy in policies]
        return PolicyChoices(sum(w * share for w, share in zip(weights, shares, strict=True)), None)
    actions = torch.stack([_actions(policy, inputs_of(policy), count, learner) for policy in policies])
    if len(policies) == 1:
        return PolicyChoices(None, actions[0])
    shape = actions.shape[1 : actions.dim() - len(spec.actions.shape)]  # [..., K]
    probability = torch.tensor(weights, device=actions.device)
    index = torch.multinomial(probability, shape.numel(), replacement=True)
    index = index.reshape(1, *shape, *(1 for _ in spec.actions.shape))
    return PolicyChoices(None, actions.gather(0, index.expand(1, *actions.shape[1:]))[0])


def _share(policy: BuiltPolicy, inputs: Inputs, count: int) -> Tensor:
    """Return probabilities of all discrete actions, ``[..., A]``."""
    function, distribution = policy.function(greedy=not count), policy.policy.distribution
    if function is policy.policy.sample and distribution is not None:
        conditional = distribution(policy.nets, inputs)
        if isinstance(conditional, Categorical):
            return conditional.probs
    samples = torch.stack([function(policy.nets, inputs) for _ in range(max(count, 1))], -1)
    all_actions = torch.arange(policy.spec.actions.size, device=samples.device)
    return (samples.unsqueeze(-1) == all_actions).float().mean(-2)


def _actions(policy: BuiltPolicy, inputs: Inputs, count: int, learner: Learner) -> Tensor:
    """Return actions ``[..., K, *shape]`` in the units of the Q-functions."""
    space, function, actions = learner.spec.actions, policy.function(greedy=not count), []
    for _ in range(max(count, 1)):
        action = policy.environment_tensor(function(policy.nets, inputs))
        actions.append(learner.units.action(action if space.shape else action.unsqueeze(-1)))
    return torch.stack(actions, -1 - len(space.shape))
