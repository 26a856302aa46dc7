"""Fitted Q evaluation: the action values of a given policy, learned from logged data."""

from __future__ import annotations

import dataclasses
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast, final

import numpy as np
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
from birl.algorithm.policy_api import PolicyAPI
from birl.dataset import ReplayBufferBase
from birl.dataset.replay_buffer import ReplayBuffer
from birl.errors import ConfigError, ResolutionWarning, ShapeError, UnsupportedError, outside_birl
from birl.losses import td_loss
from birl.models import ContinuousQFunction, DiscreteQFunction, MeanQFunctionFactory
from birl.models.value_distributions import MeanReturns, Returns
from birl.ope.bootstrap import BootstrapEstimate, bootstrap_mean, episode_counts
from birl.ope.evaluated_policies import EvaluatedPolicy, check_markov
from birl.ope.policies import StochasticPolicy, restore_policy
from birl.ope.policy_actions import COUNTS, POLICY_ACTION, POLICY_SHARE, WithPolicyActions, policy_choices
from birl.ope.user_policies import UserPolicy, check_user_policy
from birl.spaces.conversion import Columns
from birl.spaces.observations import merge_columns
from birl.types import Array, State, Tree, tree_leaves, weighted_mean

ConfigT = TypeVar("ConfigT", bound="FQEConfig")


@config
class FQEConfig(ValueConfig):
    """Fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3) of a policy with continuous actions.

    Learns ``Q(s, a)``, the expected discounted return of taking ``a`` in ``s`` and following the policy from then on.
    The mean of ``Q(s, pi(s))`` over initial states, `birl.metrics.InitialStateValueEstimationEvaluator`, estimates the
    value of the policy, and ranks policies (Paine et al. 2020, arXiv:2007.09055).

    The policy of `FQE` is an algorithm or a stochastic policy such as `birl.ope.EpsilonGreedy`. It uses its own scalers
    for observations, and its actions are converted to the environment's units; the scalers of this configuration are
    those of the Q-functions. The policy is evaluated as it is deployed: an algorithm by its greedy actions or, with
    ``n_action_samples`` of 1 or more, as a stochastic policy; a stochastic policy by its samples. For a stochastic
    policy, the value of the next state is the expectation over the probabilities of a discrete action if they are
    known, and otherwise the mean over ``n_action_samples`` samples.

    The policy may also be any object with ``predict(x)``, which returns actions for observations ``[B, ...]``: a rule
    in force, for example. If it has ``action_probability(x, action=None)``, the expectation over one discrete action
    uses these probabilities. It gets observations as the dataset stores them, except those after the end of an episode.
    A saved evaluation contains only the name of its class.

    Every copy of the target network propagates rewards one step further back. With the discount ``gamma``, about
    ``1 / (1 - gamma)`` steps count: an evaluation needs at least that many copies, better three times as many (it warns
    if there are fewer).

    Use single steps: in n-step returns, all actions but the first come from the data, not from the policy. The mean and
    the C51 head learn expectations; the quantile Huber loss of the other heads does so only approximately. With C51,
    estimates stay within ``v_min`` and ``v_max`` even for policies far from the data.

    With ``resample_episodes``, the ``n_critics`` Q-functions are separate evaluations in one run, each fitted on
    resampled episodes (Hao et al. 2021, arXiv:2102.03607): `birl.ope.bootstrap_fqe` makes an interval of them.

    Logs ``loss``.

    Differs from the paper: stochastic gradient steps with a target network that is copied every
    ``target_update_interval`` updates, instead of a full regression for each target.

    Differs from d3rlpy: targets are copied ten times as often and the learning rate is ten times as high, because
    otherwise rewards propagate back only a few steps in usual runs; policies that scale observations or actions are
    evaluated in their own units; the target of an ensemble is its mean, not its minimum, which is too low; the loss for
    discrete actions is also the squared error, because the Huber loss does not learn expectations; a saved evaluation
    contains its policy and can be loaded.
    """

    batch_size: int = 100
    learning_rate: float = 1e-3
    target_update_interval: int = field(10, like=SharedFields)
    n_action_samples: int = field(
        0, "Number of actions sampled from the policy at each next observation, or 0 for its greedy action.", low=0
    )
    resample_episodes: bool = field(
        False,
        "Whether each Q-function is fitted on resampled episodes, with its own targets, for a bootstrap interval.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        form = self.q_func_factory
        if self.resample_episodes and (not isinstance(form, MeanQFunctionFactory) or form.share_encoder):
            raise ConfigError(
                f"q_func_factory is {form}; with resample_episodes it must be MeanQFunctionFactory without "
                "share_encoder: leave it out"
            )

    def create(self, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
        """Raise `ConfigError`, because an evaluation also needs a policy.

        Raises:
            ConfigError: always.
        """
        _raise_no_policy(self.algorithm.__name__, type(self).__name__)


@config
class DiscreteFQEConfig(FQEConfig):
    """Fitted Q evaluation of a policy with discrete actions. See `FQEConfig`.

    For multi-discrete actions the Q-function takes the action as input, as for continuous actions: it needs no output
    for each combination, and joint values are not sums of values of each dimension.

    Logs ``loss``.
    """


class FQENets(nn.Module):
    """The Q-functions. The policy is an input, not one of the networks."""

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
    """Return the squared error; with resampling, each member has its own target and episode counts as weights."""
    prediction = nets.critic(batch.inputs, batch.action)
    if not cfg.resample_episodes:
        return td_loss(prediction, target, batch)
    error = prediction.td_loss(target) * batch.extra[COUNTS].movedim(-1, 0)
    return Loss(weighted_mean(error, batch.weight).sum())


class _FittedQEvaluation(Algorithm[ConfigT, FQENets], Generic[ConfigT]):
    """Base of fitted Q evaluations, which act as the policy that they evaluate.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device, or another policy; see
            `FQEConfig`. It is never changed.
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
        algo: Algorithm[Any, Any] | StochasticPolicy | EvaluatedPolicy | None = None,
        config: FQEConfig | None = None,
        device: bool | int | str | None = False,
        **fields: Any,
    ) -> None:
        name = type(self).__name__
        if algo is None:
            _raise_no_policy(name, self.config_class.__name__)
        if isinstance(algo, FQEConfig):
            raise ConfigError(f"algo is a config; it must be an algorithm: {name}(algo, config)")
        check_markov(algo, name)
        if isinstance(algo, Algorithm) and (algo.evaluates or algo.acts.aims):
            aims = " (a sequence model: use birl.ope.evaluate with algo.as_stateful_wrapper(target_return))"
            raise ConfigError(
                f"{name} evaluates the policy of an algorithm that acts on observations, not {type(algo).__name__}"
                f"{aims if algo.acts.aims else ''}"
            )
        if not isinstance(algo, Algorithm | StochasticPolicy):
            check_user_policy(algo, name, discrete=bool(self.actions & ActionSpace.DISCRETE))
        if isinstance(config, FQEConfig) and config.algorithm is not type(self):  # d3rlpy has one for both
            shared_fields = {item.name: getattr(config, item.name) for item in dataclasses.fields(FQEConfig)}
            config = cast(FQEConfig, self.config_class(**shared_fields))
        super().__init__(cast(Any, config), device, **fields)
        self._algo = algo
        if not isinstance(algo, Algorithm | StochasticPolicy):
            return
        check_actions(self.definition(), algo.spec.actions, f"the policy of {type(algo).__name__}")
        algos = [member.algo for _, member in algo.members()] if isinstance(algo, StochasticPolicy) else [algo]
        if other := [member.torch_device for member in algos if member.torch_device != self.torch_device]:
            raise ConfigError(
                f"the policy is on {other[0]}, {name} on {self.torch_device}: give both the same device "
                "(load_learnable(file, device=...) moves a saved policy)"
            )

    @property
    def algo(self) -> Algorithm[Any, Any] | StochasticPolicy | EvaluatedPolicy:
        """The evaluated policy, as it was passed."""
        return self._algo

    @property
    def _other(self) -> StochasticPolicy | UserPolicy | None:
        """The evaluated policy if it is not an algorithm."""
        if isinstance(self._algo, Algorithm):
            return None
        return self._algo if isinstance(self._algo, StochasticPolicy) else cast(UserPolicy, self.learner.evaluated)

    @property
    def acting(self) -> BuiltPolicy:
        """The evaluated policy: it samples if ``n_action_samples`` is above 0, otherwise it is greedy.

        Raises:
            UnsupportedError: if it is an object of the user's own, which has no networks.
        """
        if not isinstance(self._algo, Algorithm | StochasticPolicy):
            raise UnsupportedError(f"{type(self._algo).__name__} is an object without networks: call its own methods")
        policy = self._algo.acting
        return policy.sampling() if self.config.n_action_samples else policy

    @property
    def columns(self) -> Columns:
        """See `PolicyAPI.columns`; those of its data and of the evaluated policy."""
        return self.learner.policy.columns

    def predict(self, x: Tree) -> Array:
        """Return actions of the evaluated policy; see `Algorithm.predict`."""
        return super().predict(x) if (other := self._other) is None else other.predict(x)

    def sample_action(self, x: Tree) -> Array:
        """Return actions of the evaluated policy; see `Algorithm.sample_action`."""
        return super().sample_action(x) if (other := self._other) is None else other.predict(x)

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Return log-probabilities of the evaluated policy; see `Algorithm.action_log_probability`."""
        if (other := self._other) is not None:
            return other.action_log_probability(x, action)
        return super().action_log_probability(x, action, greedy=greedy)

    def actor(self, *, greedy: bool, n: int = 1, values: bool = False) -> Any:
        """Return an actor of the evaluated policy; see `Algorithm.actor`."""
        return super().actor(greedy=greedy, n=n, values=values) if (other := self._other) is None else other.actor()

    def member_values(self, x: Tree) -> Array:
        """Return values of observations ``[B, *shape]`` by each Q-function, float32 ``[n_critics, B]``.

        The expectation of Q over the policy's actions: over probabilities of one discrete action, otherwise over
        ``n_action_samples`` samples. Recurrent networks treat each observation as the start of an episode.
        """
        learner = self.learner
        x = learner.policy.checked(x, chooses=True)
        rows = torch.ones(len(next(tree_leaves(x))), dtype=torch.bool)
        choices = policy_choices(learner, lambda policy: Inputs(policy.observed(x)), x, rows)
        learner.set_mode(acting=True)
        with torch.no_grad():
            inputs = Inputs(learner.policy.observed(x))
            if choices.action is None:
                values = (learner.nets.critic(inputs).mean() * choices.share).sum(-1)
            else:
                actions = choices.action.movedim(-1 - len(learner.spec.actions.shape), 0)
                values = learner.nets.critic(inputs, actions).mean().mean(1)
        return np.asarray(values.cpu())

    def policy_value(self, x: Tree) -> Array:
        """Return values of observations ``[B, *shape]``: the mean of `member_values`, ``[B]``."""
        return np.asarray(self.member_values(x).mean(0))

    def save_policy(self, fname: str | Path) -> None:
        """Export the evaluated policy, for an algorithm its greedy actions. See `Algorithm.save_policy`."""
        cast(Any, self._algo if isinstance(self._algo, Algorithm) else self._other).save_policy(fname)

    @staticmethod
    def saved_policy(data: dict[str, Any], state: State, device: bool | int | str | None) -> Any:
        """Load the evaluated policy of a saved evaluation; an `AbsentPolicy` for an object of the user's own."""
        if (absent := UserPolicy.absent(data)) is not None:
            return absent
        return (restore_policy if "members" in data else saved_policy)(data, state, device)

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Build for a dataset's shapes; see `Algorithm.build_with_dataset`.

        A `birl.errors.ResolutionWarning` names observations that need a scaler, because the Q-functions do not use that
        of the policy.
        """
        names: Columns = self._algo.columns if isinstance(self._algo, PolicyAPI) else {}
        merge_columns(names, dataset.dataset_info.columns, "the evaluated policy", "the dataset")
        super().build_with_dataset(dataset)
        self.learner.policy.add_columns(names, "the evaluated policy")
        fine = sorted({name for storage in dataset.reader.storages for name in storage.fine})
        if fine and self.config.observation_scaler is None:
            warnings.warn(
                f"{type(self).__name__} has no observation_scaler, but float32, the precision of its Q-functions, "
                f"loses the resolution of {', '.join(fine)!s:.200}; the scaler of the policy serves the policy alone: "
                f"set one, such as {self.config_class.__name__}(observation_scaler='standard')",
                ResolutionWarning,
                stacklevel=outside_birl(),
            )

    def _build(self, spec: Spec, evaluated: EvaluationTarget | None = None) -> Learner:
        """Build the Q-functions for all actions of the policy, including those that are not in the data."""
        if not isinstance(self._algo, Algorithm | StochasticPolicy):
            learner = super()._build(spec, user := UserPolicy(self._algo, spec))
            user.columns = learner.policy.columns
            return learner
        policy_spec = self._algo.spec
        if not policy_spec.accepts(spec):
            raise ShapeError(
                f"{type(self).__name__} is to be built for {spec}, but the policy of {type(self._algo).__name__} was "
                f"built for {policy_spec}; both must be the same: give data like those of the policy"
            )
        return super()._build(
            policy_spec, self._algo if isinstance(self._algo, StochasticPolicy) else self._algo.learner
        )


def _raise_no_policy(name: str, config_name: str) -> NoReturn:
    raise ConfigError(
        f"{name} has no algorithm, whose policy it evaluates: {name}(algo=..., config={config_name}()). "
        "fit_many cannot give it one, so train each seed separately"
    )


@final
class FQE(_FittedQEvaluation[FQEConfig]):
    """Fitted Q evaluation for continuous and composite actions. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device, or another policy; see
            `FQEConfig`. It is never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    actions = ActionSpace.CONTINUOUS | ActionSpace.COMPOSITE
    acts = Policy(q_action, q_action, q_value, "critic", bounded=False)
    steps = (Gradient("critic", continuous_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


@final
class DiscreteFQE(_FittedQEvaluation[DiscreteFQEConfig]):
    """Fitted Q evaluation for discrete actions. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device, or another policy; see
            `FQEConfig`. It is never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    actions = ActionSpace.CHOICES
    acts = GreedyCritic(bounded=False)
    steps = (Gradient("critic", discrete_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


def bootstrap_fqe(evaluation: FQE | DiscreteFQE, dataset: ReplayBuffer) -> BootstrapEstimate:
    """Return the estimate of an `FQE` with ``resample_episodes=True``, whose ensemble members are the replicates.

    The estimate is the mean over members. Their spread includes the randomness of networks and minibatches, so the
    interval tends to be too wide, not too narrow.

    Args:
        evaluation: fitted on ``dataset``.
        dataset: the same dataset, unchanged.

    Raises:
        ConfigError: if all members were fitted on the same episodes.
    """
    config = evaluation.config
    if not getattr(config, "resample_episodes", False):
        raise ConfigError(
            "all members of this evaluation were fitted on the same episodes, so they differ only by chance: evaluate "
            "with resample_episodes=True and n_critics of 20 or more"
        )
    (storage,) = dataset.reader.storages
    counts = episode_counts(storage, config.n_critics)
    first, episodes = [], []
    for batch in dataset.reader.all_transitions(initial=True):
        first.append(evaluation.member_values(batch.observations).astype(np.float64))
        episodes.append(batch.extra["episode"])
    values, resampled = np.concatenate(first, 1), counts[:, np.concatenate(episodes)]
    return bootstrap_mean(np.concatenate([values.mean(0, keepdims=True), values]), resampled)
