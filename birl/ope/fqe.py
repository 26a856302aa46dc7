"""Fitted Q evaluation: the action-values of a given policy, learned from logged data."""

from __future__ import annotations

import dataclasses
import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.built import BuiltPolicy
from birl.algorithm import (
    ActionSpace,
    Algorithm,
    Batch,
    Gradient,
    GreedyCritic,
    HardCopy,
    Inputs,
    Learner,
    Loss,
    Policy,
    SharedFields,
    Spec,
    Transitions,
    ValueConfig,
    config,
    field,
    q_action,
    q_value,
)
from birl.algorithm.batches import to_batch
from birl.algorithm.building import check_actions
from birl.dataset.episodes import farthest_end
from birl.dataset.storage import TERMINATED
from birl.errors import ConfigError, ShapeError, ShortRunWarning, UnsupportedError
from birl.losses import td_loss
from birl.models import ContinuousQFunction, DiscreteQFunction

POLICY_ACTION = "policy_action"

ConfigT = TypeVar("ConfigT", bound="FQEConfig")


@config
class FQEConfig(ValueConfig):
    """Fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3) of a policy with continuous actions.

    Learns ``Q(s, a)``, the expected discounted return of taking ``a`` in ``s`` and following the policy from then on.
    The mean of ``Q(s, pi(s))`` over initial states, `birl.metrics.InitialStateValueEstimationEvaluator`, estimates what
    the policy earns, and ranks policies (Paine et al. 2020, arXiv:2007.09055).

    The policy is given to `FQE` as an algorithm. It sees raw observations through its own scalers, and its actions come
    back in the environment's units; the scalers of this configuration are those of the Q-functions. It is evaluated as
    it is deployed, by its greedy actions. With ``n_action_samples`` of 1 or more the stochastic policy is evaluated:
    the next value is the mean over that many sampled actions.

    Every copy of the target network carries rewards one step further back. ``gamma`` counts about ``1 / (1 - gamma)``
    steps: an evaluation makes so many copies at least, better three times as many (there is a warning if it does not).

    Use single steps: in n-step returns all actions but the first are the data's, not the policy's. The mean and the C51
    head learn expectations; the quantile Huber loss of the other heads does so only approximately. With C51, estimates
    stay within ``v_min`` and ``v_max`` even for policies far from the data.

    Logs ``loss``.

    Differs from the paper: stochastic gradient steps with a target network that is copied every
    ``target_update_interval`` updates, instead of a full regression for each target.

    Differs from d3rlpy: targets are copied ten times as often and the learning rate is ten times as high, or rewards
    would not come back from beyond a few steps in usual runs; policies that scale observations or actions are evaluated
    in their own units; an ensemble's target is its mean, not its minimum, which would be too low; the squared error for
    discrete actions too, since the Huber loss does not lead to expectations; a saved evaluation holds its policy and
    can be loaded.
    """

    batch_size: int = 100
    learning_rate: float = 1e-3
    target_update_interval: int = field(10, like=SharedFields)
    n_action_samples: int = field(
        0, "Number of actions drawn from the policy at each next observation, or 0 for its greedy action.", low=0
    )

    def create(self, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
        """Always raises: an evaluation also needs a policy.

        Raises:
            ConfigError: always.
        """
        _needs_a_policy(self.algorithm.__name__, type(self).__name__)


@config
class DiscreteFQEConfig(FQEConfig):
    """Fitted Q evaluation of a policy with discrete actions. See `FQEConfig`.

    With several choices at once the Q-function reads the action, as one of quantities does: it has no need of an output
    for each combination, and values of choices together are no sums of values of each.

    Logs ``loss``.
    """


class FQENets(nn.Module):
    """The Q-functions. The policy is not among them: it is an input."""

    def __init__(self, spec: Spec, cfg: FQEConfig) -> None:
        super().__init__()
        kind = DiscreteQFunction if spec.actions.kind is ActionSpace.DISCRETE else ContinuousQFunction
        self.critic = kind(spec, cfg.encoder_factory, cfg.q_func_factory, cfg.n_critics)
        self.critic_target = deepcopy(self.critic)


def continuous_loss(nets: FQENets, batch: Batch, cfg: FQEConfig) -> Loss:
    """``y = r + discount * E[Q'(s', a')]`` with ``a' ~ pi(s')``; the squared error."""
    with torch.no_grad():
        action = batch.extra[POLICY_ACTION].movedim(-2, 0)  # [K, ..., A]: K actions for each state
        next_returns = nets.critic_target(batch.next_inputs, action).average().average()  # over members, over actions
        target = next_returns.backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


def discrete_loss(nets: FQENets, batch: Batch, cfg: FQEConfig) -> Loss:
    """``y = r + discount * E[Q'(s', a')]`` with ``a' ~ pi(s')``; the squared error."""
    if isinstance(nets.critic, ContinuousQFunction):
        return continuous_loss(nets, batch, cfg)
    with torch.no_grad():
        action = batch.extra[POLICY_ACTION].unsqueeze(-1)  # [..., K, 1]
        every = torch.arange(nets.critic.spec.actions.size, device=action.device)
        share = (action == every).to(batch.reward.dtype).mean(-2)
        next_returns = nets.critic_target(batch.next_inputs).average().mix(share)
        target = next_returns.backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs, batch.action), target, batch)


@dataclass(frozen=True)
class WithPolicyActions(Transitions):
    """Transitions with the evaluated policy's actions at next observations.

    Recurrent states in the data belong to the networks that collected them, so all networks here start from zeros and
    are warmed up by ``burn_in``.
    """

    single_seed: str = "prepares its minibatches with its networks, which seeds do not share"

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        """``extra`` holds the policy's actions ``[..., K, *shape]``."""
        if getattr(drawn, "rows", None) is not None:
            raise UnsupportedError(
                f"{learner.name} estimates what a policy is worth over the data, in which each step counts alike; a "
                "prioritised sampler draws some more often than others: make the dataset without sampler="
            )
        batch = to_batch(drawn, learner.units, learner.config.gamma)
        batch = replace(batch, state=None, extra={POLICY_ACTION: _policy_action(learner, drawn, batch.is_first)})
        burn_in = getattr(drawn, "burn_in", 0)
        if learner.engine.recurrent or burn_in == 0:
            return learner.engine.burn_in(batch, burn_in)
        return batch.map(lambda x: x[burn_in:])

    def check_run(self, learner: Learner, source: Any, count: int) -> None:
        """Warn if there are fewer copies of the target than steps that count, or if no number would do."""
        gamma, interval = learner.config.gamma, learner.config.target_update_interval
        copies = (learner.engine.grad_step + count) // interval
        reader = getattr(source, "reader", source)
        steps = min(getattr(each.picker, "n_steps", 1) for each in reader.sources)  # back, with each copy
        ends = max(farthest_end(storage) for storage in reader.storages)
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


@torch.no_grad()
def _policy_action(learner: Learner, minibatch: Any, is_first: Tensor | None) -> Tensor:
    """Actions of the policy at next observations, in the units of the Q-functions."""
    assert learner.evaluated is not None
    policy, count, own = learner.evaluated.policy, learner.config.n_action_samples, learner.spec.actions
    inputs = Inputs(policy.units.observation(minibatch.next_observations))
    if is_first is not None:
        before = policy.units.observation(minibatch.observations)
        inputs = Inputs(before, None, is_first, following=inputs.observation)
    policy.set_mode(True)
    actions = []
    for _ in range(max(count, 1)):
        action = policy.function(greedy=not count)(policy.nets, inputs)
        action = policy.environment_tensor(action)
        actions.append(learner.units.action(action if own.shape else action.unsqueeze(-1)))
    return torch.stack(actions, -1 - len(own.shape))


class _FittedQEvaluation(Algorithm[ConfigT, FQENets], Generic[ConfigT]):
    """Both kinds of evaluation. They act as the policy that they evaluate.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
        **fields: the configuration's fields, instead of ``config``.

    Raises:
        ConfigError: if ``algo`` is not such an algorithm.
        NotBuiltError: if it has no networks yet.
    """

    learns_from = WithPolicyActions()
    evaluates = True

    def __init__(
        self,
        algo: Algorithm[Any, Any] | None = None,
        config: FQEConfig | None = None,
        device: bool | int | str | None = False,
        **fields: Any,
    ) -> None:
        name = type(self).__name__
        if algo is None:
            _needs_a_policy(name, self.config_class.__name__)
        if isinstance(algo, FQEConfig):
            raise ConfigError(f"{name} takes the algorithm first: {name}(algo, config)")
        if not isinstance(algo, Algorithm) or algo.evaluates or algo.acts.aims:
            raise ConfigError(
                f"{name} evaluates the policy of an algorithm that acts on observations, not {type(algo).__name__}"
            )
        if isinstance(config, FQEConfig) and config.algorithm is not type(self):  # d3rlpy has one for both
            own = {item.name: getattr(config, item.name) for item in dataclasses.fields(FQEConfig)}
            config = cast(FQEConfig, self.config_class(**own))
        super().__init__(cast(Any, config), device, **fields)
        check_actions(self.definition(), algo.spec.actions, f"the policy of {type(algo).__name__}")
        if algo.torch_device != self.torch_device:
            raise ConfigError(
                f"the policy is on {algo.torch_device}, {name} on {self.torch_device}: give both the same device "
                "(load_learnable(file, device=...) moves a saved policy)"
            )
        self._algo = algo

    @property
    def algo(self) -> Algorithm[Any, Any]:
        """The algorithm whose policy is evaluated."""
        return self._algo

    @property
    def acting(self) -> BuiltPolicy:
        """The evaluated policy: it acts by samples if the evaluation draws any, otherwise greedily."""
        policy = self._algo.acting
        return policy.sampling() if self.config.n_action_samples else policy

    def save_policy(self, fname: str | Path) -> None:
        """Export the policy's greedy actions. See `Algorithm.save_policy`."""
        self._algo.save_policy(fname)

    def _build(self, spec: Spec, evaluated: Learner | None = None) -> Learner:
        """Build the Q-functions with all actions of the policy, including those that are not in the data."""
        own = self._algo.spec
        if not own.takes(spec):
            raise ShapeError(
                f"{type(self).__name__} is to be built for {spec}, but the policy of {type(self._algo).__name__} was "
                f"built for {own}"
            )
        return super()._build(own, self._algo.learner)


def _needs_a_policy(name: str, config_name: str) -> NoReturn:
    raise ConfigError(
        f"{name} needs the algorithm whose policy it evaluates: {name}(algo=..., config={config_name}()). "
        "fit_many cannot give it one: train each seed by itself"
    )


@final
class FQE(_FittedQEvaluation[FQEConfig]):
    """Evaluates policies with continuous actions, also with choices beside them. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    actions = ActionSpace.CONTINUOUS | ActionSpace.COMPOSITE
    acts = Policy(q_action, q_action, q_value, "critic", bounded=False)
    steps = (Gradient("critic", continuous_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


@final
class DiscreteFQE(_FittedQEvaluation[DiscreteFQEConfig]):
    """Evaluates policies with discrete actions. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    actions = ActionSpace.CHOICES
    acts = GreedyCritic(bounded=False)
    steps = (Gradient("critic", discrete_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))
