"""Fitted Q evaluation: the action-values of a given policy, learned from logged data."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast, final

import torch
from torch import Tensor, nn

from birl.acting.actor import NetworkActor
from birl.acting.policy import q_action_value, q_value
from birl.algorithm.algorithm import Algorithm, rebuild
from birl.algos.dqn import DQNConfig
from birl.config import ValueConfig, config, field
from birl.engine import Gradient, HardCopy, Loss
from birl.errors import ConfigError, ResumeError, ShapeError, UnsupportedError
from birl.losses import td_loss
from birl.models import (
    ContinuousQFunction,
    DiscreteQFunction,
    is_recurrent,
)
from birl.preprocessing.units import to_batch
from birl.spaces import as_shape
from birl.types import ActionSpace, Array, Batch, Inputs, Shape, Spec, State, Tree

POLICY_ACTION = "policy_action"


@config
class FQEConfig(ValueConfig):
    """Fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3) of a policy with continuous actions.

    Learns ``Q(s, a)``, the expected discounted return of taking ``a`` in ``s`` and following the policy from then on.
    The mean of ``Q(s, pi(s))`` over initial states, `birl.metrics.InitialStateValueEstimationEvaluator`, estimates what
    the policy earns, and ranks policies (Paine et al. 2020, arXiv:2007.09055).

    The policy is given to `FQE` as an algorithm. It sees raw observations through its own scalers, and its actions come
    back in the environment's units; the scalers of this configuration are those of the Q-functions. It is evaluated as
    it is deployed, by its greedy actions. With ``n_action_samples`` of 1 or more it is evaluated as the stochastic
    policy that it is: the next value is the mean over so many actions that are drawn from it.

    Use single steps: in n-step returns all actions but the first are the data's, not the policy's. The mean and the C51
    head learn expectations; the quantile Huber loss of the other heads does so only nearly. With C51, estimates stay
    within ``v_min`` and ``v_max`` even for policies that the data hardly show.

    Logs ``loss``.

    Differs from the paper: stochastic gradient steps with a target network that is copied every
    ``target_update_interval`` updates, instead of a regression to its end for each target.

    Differs from d3rlpy: policies that scale observations or actions are evaluated in their own units; an ensemble's
    target is its mean, not its minimum, which would be too low; the squared error for discrete actions too, since the
    Huber loss does not lead to expectations; a saved evaluation holds its policy and can be loaded.
    """

    batch_size: int = 100
    learning_rate: float = 1e-4
    target_update_interval: int = field(100, like=DQNConfig)
    n_action_samples: int = field(
        0, "Number of actions drawn from the policy at each next observation, or 0 for its greedy action.", low=0
    )

    def create(self, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
        """Refused: an evaluation cannot be made of its configuration alone.

        Raises:
            ConfigError: always.
        """
        _needs_a_policy(self.algorithm.__name__, type(self).__name__)


@config
class DiscreteFQEConfig(FQEConfig):
    """Fitted Q evaluation of a policy with discrete actions. See `FQEConfig`.

    Logs ``loss``.
    """


class FQENets(nn.Module):
    """The Q-functions. The policy is not among them: it is an input."""

    def __init__(self, spec: Spec, cfg: FQEConfig) -> None:
        super().__init__()
        kind = DiscreteQFunction if spec.discrete_action else ContinuousQFunction
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
    with torch.no_grad():
        action = batch.extra[POLICY_ACTION].unsqueeze(-1)  # [..., K, 1]
        every = torch.arange(nets.critic.spec.action_size, device=action.device)
        share = (action == every).to(batch.reward.dtype).mean(-2)
        next_returns = nets.critic_target(batch.next_inputs).average().mix(share)
        target = next_returns.backup(batch.reward, batch.discount)
    return td_loss(nets.critic(batch.inputs).gather(batch.action), target, batch)


class _FittedQEvaluation(Algorithm[FQEConfig, FQENets]):
    """What both kinds of evaluation do.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
        **fields: the configuration's fields, instead of ``config``.

    Raises:
        ConfigError: if ``algo`` is no such algorithm.
        NotBuiltError: if it has no networks yet.
    """

    networks = FQENets
    acting = "critic"
    bounded_policy = False  # the data's actions need not be those that the policy could take

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
        if not isinstance(algo, Algorithm) or isinstance(algo, _FittedQEvaluation) or algo.data == "trajectory":
            raise ConfigError(
                f"{name} evaluates the policy of an algorithm that acts on observations, not {type(algo).__name__}"
            )
        if isinstance(config, FQEConfig) and config.algorithm is not type(self):  # d3rlpy has one for both
            own = {item.name: getattr(config, item.name) for item in dataclasses.fields(FQEConfig)}
            config = cast(FQEConfig, self.config_class(**own))
        super().__init__(config, device, **fields)
        self._check_actions(algo.spec.discrete_action, f"the policy of {type(algo).__name__}")
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
    def is_recurrent(self) -> bool:
        """Whether a Q-function or the policy is recurrent, so that training needs sequences."""
        return super().is_recurrent or is_recurrent(self._algo.nets)

    def create_impl(self, observation_shape: Shape, action_size: int, *, discrete_action: bool | None = None) -> None:
        """Build the Q-functions: with as many actions as the policy has, which the data need not all have taken."""
        own, shape = self._algo.spec, as_shape(observation_shape)
        fits = action_size <= own.action_size if own.discrete_action else action_size == own.action_size
        if shape != own.observation_shape or not fits:
            raise ShapeError(
                f"{type(self).__name__} is to be built for observations {shape} and {action_size} actions, but the "
                f"policy of {type(self._algo).__name__} was built for {own.observation_shape} and {own.action_size}"
            )
        super().create_impl(shape, own.action_size, discrete_action=discrete_action)

    # -- learning --------------------------------------------------------------------------------------------------

    def make_batch(self, minibatch: Any) -> Batch:
        """See `Algorithm.make_batch`; ``extra`` holds the policy's actions ``[..., K, A]`` or int64 ``[..., K]``.

        Recurrent states in the data belong to whoever collected them: all networks begin with zeros, and ``burn_in``
        warms them up.
        """
        batch = to_batch(minibatch, self.units, self.config.gamma)
        action = self._policy_action(minibatch, batch.is_first)
        batch = replace(batch, state=None, extra={POLICY_ACTION: action})
        burn_in = getattr(minibatch, "burn_in", 0)
        if self.engine.recurrent or burn_in == 0:
            return self.engine.burn_in(batch, burn_in)
        return batch.map(lambda x: x[burn_in:])

    @torch.no_grad()
    def _policy_action(self, minibatch: Any, is_first: Tensor | None) -> Tensor:
        """What the policy does at next observations, in the units of the Q-functions."""
        policy, count, scaler = self._algo, self.config.n_action_samples, self.units.action_scaler
        inputs = Inputs(policy.units.observation(minibatch.next_observations))
        if is_first is not None:
            before = policy.units.observation(minibatch.observations)
            inputs = Inputs(before, None, is_first, following=inputs.observation)
        function, discrete = policy.policy_sample if count else policy.policy_mode, self.spec.discrete_action
        actions = []
        with policy.in_acting_mode():
            for _ in range(max(count, 1)):
                action = function(policy.nets, inputs)
                if not discrete:
                    action = policy.units.environment_action(policy.clip_policy_action(action))
                    action = action if scaler is None else scaler.transform(action)
                actions.append(action)
        return torch.stack(actions, -1 if discrete else -2)

    # -- acting: what the evaluated policy does --------------------------------------------------------------------

    def predict(self, x: Tree) -> Array:
        """Actions of the policy as it is evaluated: greedy ones, or samples if ``n_action_samples`` is not 0."""
        return self._algo.sample_action(x) if self.config.n_action_samples else self._algo.predict(x)

    def sample_action(self, x: Tree) -> Array:
        """Actions sampled from the policy."""
        return self._algo.sample_action(x)

    def actor(self, *, greedy: bool, n: int = 1) -> NetworkActor:
        """An actor of the policy as it is evaluated. See `Algorithm.actor`."""
        return self._algo.actor(greedy=greedy and not self.config.n_action_samples, n=n)

    def save_policy(self, fname: str | Path) -> None:
        """Export the policy's greedy actions. See `Algorithm.save_policy`."""
        self._algo.save_policy(fname)

    # -- files -----------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """See `Algorithm.describe`; with the policy's description."""
        return {**super().describe(), "policy": self._algo.describe()}

    def model_state(self) -> State:
        """See `Algorithm.model_state`; with the policy's networks."""
        return {**super().model_state(), "policy": self._policy_state()}

    def get_state(self) -> State:
        """See `Algorithm.get_state`; with the policy, so that a run goes on with no other one."""
        return {**super().get_state(), "policy": {**self._policy_state(), "description": self._algo.describe()}}

    def set_state(self, state: State) -> None:
        """See `Algorithm.set_state`.

        Raises:
            ResumeError: if another policy was evaluated.
        """
        saved, own = state["policy"], self._policy_state()["nets"]
        same = saved["description"] == self._algo.describe() and saved["nets"].keys() == own.keys()
        if not (same and all(torch.equal(own[name], x.to(own[name].device)) for name, x in saved["nets"].items())):
            raise ResumeError(
                f"this {type(self).__name__} was evaluating another policy: give it the same one to go on, or another "
                "folder to start anew"
            )
        super().set_state(state)

    def _policy_state(self) -> State:
        nets = {name: tensor.detach().clone() for name, tensor in self._algo.nets.state_dict().items()}
        return {"grad_step": self._algo.grad_step, "nets": nets}

    @classmethod
    def unbuilt(
        cls, config: Any, device: bool | int | str | None, data: dict[str, Any], state: State | None
    ) -> Algorithm[Any, Any]:
        """See `Algorithm.unbuilt`; the policy is loaded with it.

        Raises:
            UnsupportedError: if there is no policy: ``params.json`` only describes one.
        """
        if state is None:
            raise UnsupportedError(f"{cls.__name__} needs its policy: load_learnable(...) a model that the run saved")
        policy = rebuild(data["policy"], device, state["policy"])
        policy.engine.load_networks(state["policy"]["nets"])
        policy.engine.grad_step = state["policy"]["grad_step"]
        return cls(policy, config, device)


def _needs_a_policy(name: str, config_name: str) -> NoReturn:
    raise ConfigError(
        f"{name} needs the algorithm whose policy it evaluates: {name}(algo=..., config={config_name}()). "
        "fit_many cannot give it one: train each seed by itself"
    )


@final
class FQE(_FittedQEvaluation):
    """Evaluates policies with continuous actions. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    config_class = FQEConfig
    action_space = ActionSpace.CONTINUOUS
    steps = (Gradient("critic", continuous_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))
    action_value = staticmethod(q_value)


@final
class DiscreteFQE(_FittedQEvaluation):
    """Evaluates policies with discrete actions. See `FQEConfig`.

    Args:
        algo: the algorithm whose policy is evaluated, built and on the same device. It is read, never changed.
        config: configuration.
        device: see `AlgorithmConfig.create`.
    """

    config_class = DiscreteFQEConfig
    action_space = ActionSpace.DISCRETE
    steps = (Gradient("critic", discrete_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))
    action_value = staticmethod(q_action_value)
