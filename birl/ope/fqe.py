"""Fitted Q evaluation: the action-values of a given policy, learned from logged data."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast, final

import torch
from torch import nn

from birl.acting.built_policy import BuiltPolicy
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
    ValueConfig,
    config,
    field,
    q_action,
    q_value,
)
from birl.algorithm.building import check_actions
from birl.algorithm.learner import EvaluationTarget
from birl.algorithm.persistence import saved_policy
from birl.errors import ConfigError, ShapeError
from birl.losses import td_loss
from birl.models import ContinuousQFunction, DiscreteQFunction, MeanQFunctionFactory
from birl.models.value_distributions import MeanReturns, Returns
from birl.ope.policies import DrawnPolicy, restored
from birl.ope.policy_actions import POLICY_ACTION, POLICY_SHARE, TIMES, WithPolicyActions, choices_of
from birl.types import Array, State, Tree, weighted_mean

ConfigT = TypeVar("ConfigT", bound="FQEConfig")


@config
class FQEConfig(ValueConfig):
    """Fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3) of a policy with continuous actions.

    Learns ``Q(s, a)``, the expected discounted return of taking ``a`` in ``s`` and following the policy from then on.
    The mean of ``Q(s, pi(s))`` over initial states, `birl.metrics.InitialStateValueEstimationEvaluator`, estimates what
    the policy earns, and ranks policies (Paine et al. 2020, arXiv:2007.09055).

    The policy is given to `FQE` as an algorithm or as one that draws (`birl.ope.EpsilonGreedy` and its kind). It sees
    raw observations through its own scalers, and its actions come back in the environment's units; the scalers of this
    configuration are those of the Q-functions. It is evaluated as it is deployed: an algorithm by its greedy actions,
    or, with ``n_action_samples`` of 1 or more, as the stochastic policy; one that draws by its draws. The next value is
    the expectation over the probabilities of one choice, where they are known, and else the mean over that many draws.

    Every copy of the target network carries rewards one step further back. ``gamma`` counts about ``1 / (1 - gamma)``
    steps: an evaluation makes so many copies at least, better three times as many (there is a warning if it does not).

    Use single steps: in n-step returns all actions but the first are the data's, not the policy's. The mean and the C51
    head learn expectations; the quantile Huber loss of the other heads does so only approximately. With C51, estimates
    stay within ``v_min`` and ``v_max`` even for policies far from the data.

    With ``resample_episodes`` the ``n_critics`` Q-functions are as many evaluations in one run, each of episodes of its
    own (Hao et al. 2021, arXiv:2102.03607): `birl.ope.fqe_refits` makes an interval of them.

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
    resample_episodes: bool = field(
        False,
        "Whether each Q-function is fitted on episodes drawn with replacement, with its own targets, for an interval.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        form = self.q_func_factory
        if self.resample_episodes and (not isinstance(form, MeanQFunctionFactory) or form.share_encoder):
            raise ConfigError(
                f"resample_episodes fits Q-functions that share nothing, of expectations, but q_func_factory is "
                f"{form}: leave it out"
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
        every = nets.critic_target(batch.next_inputs, action)  # [N, K, ...]
        next_returns = MeanReturns(every.mean().mean(1)) if cfg.resample_episodes else every.average().average()
        target = next_returns.backup(batch.reward, batch.discount)
    return _regression(nets, batch, target, cfg)


def discrete_loss(nets: FQENets, batch: Batch, cfg: FQEConfig) -> Loss:
    """``y = r + discount * E[Q'(s', a')]`` with ``a' ~ pi(s')``; the squared error."""
    if isinstance(nets.critic, ContinuousQFunction):
        return continuous_loss(nets, batch, cfg)
    with torch.no_grad():
        every = nets.critic_target(batch.next_inputs)  # [N, ..., A]
        next_returns = (every if cfg.resample_episodes else every.average()).mix(batch.extra[POLICY_SHARE])
        target = next_returns.backup(batch.reward, batch.discount)
    return _regression(nets, batch, target, cfg)


def _regression(nets: FQENets, batch: Batch, target: Returns, cfg: FQEConfig) -> Loss:
    """The squared error; of members with their own targets ``[N, ...]``, of a step as often as they count it."""
    prediction = nets.critic(batch.inputs, batch.action)
    if not cfg.resample_episodes:
        return td_loss(prediction, target, batch)
    error = prediction.td_loss(target) * batch.extra[TIMES].movedim(-1, 0)
    return Loss(weighted_mean(error, batch.weight).sum())


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
        algo: Algorithm[Any, Any] | DrawnPolicy | None = None,
        config: FQEConfig | None = None,
        device: bool | int | str | None = False,
        **fields: Any,
    ) -> None:
        name = type(self).__name__
        if algo is None:
            _needs_a_policy(name, self.config_class.__name__)
        if isinstance(algo, FQEConfig):
            raise ConfigError(f"{name} takes the algorithm first: {name}(algo, config)")
        drawn = isinstance(algo, DrawnPolicy)
        if not drawn and (not isinstance(algo, Algorithm) or algo.evaluates or algo.acts.aims):
            raise ConfigError(
                f"{name} evaluates the policy of an algorithm that acts on observations, not {type(algo).__name__}"
            )
        if isinstance(config, FQEConfig) and config.algorithm is not type(self):  # d3rlpy has one for both
            own = {item.name: getattr(config, item.name) for item in dataclasses.fields(FQEConfig)}
            config = cast(FQEConfig, self.config_class(**own))
        super().__init__(cast(Any, config), device, **fields)
        check_actions(self.definition(), algo.spec.actions, f"the policy of {type(algo).__name__}")
        algos = [member.algo for _, member in algo.members()] if isinstance(algo, DrawnPolicy) else [algo]
        if other := [each.torch_device for each in algos if each.torch_device != self.torch_device]:
            raise ConfigError(
                f"the policy is on {other[0]}, {name} on {self.torch_device}: give both the same device "
                "(load_learnable(file, device=...) moves a saved policy)"
            )
        self._algo = algo

    @property
    def algo(self) -> Algorithm[Any, Any] | DrawnPolicy:
        """The algorithm whose policy is evaluated, or the policy."""
        return self._algo

    @property
    def acting(self) -> BuiltPolicy:
        """The evaluated policy: it acts by samples if the evaluation draws any, otherwise greedily."""
        policy = self._algo.acting
        return policy.sampling() if self.config.n_action_samples else policy

    def predict(self, x: Tree) -> Array:
        """Actions of the evaluated policy; see `Algorithm.predict`."""
        return self._algo.predict(x) if isinstance(self._algo, DrawnPolicy) else super().predict(x)

    def sample_action(self, x: Tree) -> Array:
        """Actions of the evaluated policy; see `Algorithm.sample_action`."""
        return self._algo.predict(x) if isinstance(self._algo, DrawnPolicy) else super().sample_action(x)

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Of the evaluated policy; see `Algorithm.action_log_probability`."""
        if isinstance(self._algo, DrawnPolicy):
            return self._algo.action_log_probability(x, action, greedy=greedy)
        return super().action_log_probability(x, action, greedy=greedy)

    def actor(self, *, greedy: bool, n: int = 1, values: bool = False) -> Any:
        """Acts in environments as the evaluated policy; see `Algorithm.actor`."""
        return (
            self._algo.actor()
            if isinstance(self._algo, DrawnPolicy)
            else super().actor(greedy=greedy, n=n, values=values)
        )

    def member_values(self, x: Tree) -> Array:
        """What the policy earns from observations ``[B, *shape]`` on by each Q-function, float32 ``[n_critics, B]``.

        The expectation of Q over the policy's actions: over probabilities of one choice, else over ``n_action_samples``
        draws. Recurrent networks see each observation as the start of an episode.
        """
        learner = self.learner
        x = learner.policy.checked(x, chooses=True)
        choices = choices_of(learner, lambda policy: Inputs(policy.observed(x)))
        learner.set_mode(acting=True)
        with torch.no_grad():
            inputs = Inputs(learner.policy.observed(x))
            if choices.action is None:
                values = (learner.nets.critic(inputs).mean() * choices.share).sum(-1)
            else:
                actions = choices.action.movedim(-1 - len(learner.spec.actions.shape), 0)
                values = learner.nets.critic(inputs, actions).mean().mean(1)
        found: Array = values.cpu().numpy()
        return found

    def policy_value(self, x: Tree) -> Array:
        """What the policy earns from observations ``[B, *shape]`` on, ``[B]``: the mean of `member_values`."""
        found: Array = self.member_values(x).mean(0)
        return found

    def save_policy(self, fname: str | Path) -> None:
        """Export the evaluated policy: of an algorithm its greedy actions. See `Algorithm.save_policy`."""
        self._algo.save_policy(fname)

    @staticmethod
    def saved_policy(data: dict[str, Any], state: State, device: bool | int | str | None) -> Any:
        """What an evaluation in a file evaluates: an algorithm, or a policy that draws."""
        return (restored if "members" in data else saved_policy)(data, state, device)

    def _build(self, spec: Spec, evaluated: EvaluationTarget | None = None) -> Learner:
        """Build the Q-functions with all actions of the policy, including those that are not in the data."""
        own = self._algo.spec
        if not own.takes(spec):
            raise ShapeError(
                f"{type(self).__name__} is to be built for {spec}, but the policy of {type(self._algo).__name__} was "
                f"built for {own}"
            )
        return super()._build(own, self._algo if isinstance(self._algo, DrawnPolicy) else self._algo.learner)


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
