"""Stochastic policies made of trained algorithms. The policy that is evaluated is the one that is saved and exported.

With a greedy policy, most weights are 0, and logs of a greedy policy cannot evaluate another one. These policies
sample each action with a known probability: `predict` samples, `action_probability` returns the probability, and an
exported file returns the action and its log-probability, which should be logged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from birl._version import __version__
from birl.acting.built_policy import BuiltPolicy
from birl.acting.export import export_policy
from birl.acting.noise_inputs import MixtureModule, SamplingModule
from birl.acting.policy import DistributionFunction
from birl.algorithm import Algorithm
from birl.algorithm.persistence import example_of, saved_policy
from birl.algorithm.policy_api import PolicyAPI
from birl.checks import check
from birl.dataset.log_record import LogRecord, merge_records
from birl.errors import ConfigError, CorruptFileError, UnsupportedError
from birl.files import load_archive, save_archive
from birl.files.state_restore import convert_to_corrupt_error
from birl.models import is_recurrent
from birl.models.distributions import NEVER, Categorical, Normal
from birl.spaces import Actions, Continuous
from birl.spaces.conversion import Columns
from birl.spaces.observations import merge_columns
from birl.spaces.specs import Spec
from birl.types import Array, Inputs, State, Tree, tree_leaves

File = str | Path | BinaryIO


class StochasticPolicy(PolicyAPI, ABC):
    """Base of policies that sample their actions with known probabilities.

    `predict` and `sample_action` both sample, with torch's generator (`birl.seed`). A policy shares the networks of its
    algorithms, so it changes while they learn.
    """

    @abstractmethod
    def module(self) -> SamplingModule | MixtureModule:
        """Return the module that is exported."""

    @abstractmethod
    def members(self) -> list[tuple[float, _SinglePolicy]]:
        """Return the policies of the mixture with their weights; a single policy returns itself."""

    def sample_action(self, x: Tree) -> Array:
        """Sample actions; the same as `predict`."""
        return self.predict(x)

    def actor(self, *, greedy: bool = True, n: int = 1) -> StatelessActor:
        """Return an actor for `birl.metrics.evaluate`; ``greedy`` and ``n`` are ignored."""
        return StatelessActor(self)

    def save_policy(self, fname: str | Path) -> None:
        """Export the policy with its scalers; see `Algorithm.save_policy`.

        The last input is ``noise``, float32 ``[B, width]``: new standard normal numbers, which the caller draws for
        each action. The second output is the ``log_probability`` ``[B]`` of the action: log it. The width is the number
        of columns of an action (1 for one discrete action), and for a mixture one more.

        Raises:
            UnsupportedError: if an action has no density, or cannot be sampled with normal numbers, such as a Beta
                distribution.
        """
        for _, member in self.members():
            member.acting.log_slope(torch.zeros(member.spec.actions.shape or (1,), device=member.acting.units.device))
        policy, module = self.members()[0][1].acting, self.module()
        policy.set_mode(True)
        example = example_of(policy)
        leaves = list(tree_leaves(example))
        noise = torch.zeros(len(leaves[0]), module.width, device=leaves[0].device)
        names = [*(f"input_{index}" for index, _ in enumerate(leaves)), "noise"]
        export_policy(module, (example, noise), fname, names, outputs=("output_0", "log_probability"))

    def save(self, fname: File) -> None:
        """Save the policy with the networks of its algorithms to one file; see `load_policy`."""
        for _, member in self.members():
            member.algo.engine.check_finite(moments=False)  # moments are not saved
        save_archive(fname, "policy", {**self.describe(), "birl": __version__}, self.policy_state())

    recurrent: ClassVar[bool] = False

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """See `birl.algorithm.learner.EvaluationTarget`."""
        return [(weight, member.acting) for weight, member in self.members()]

    def describe(self) -> dict[str, Any]:
        """Return a description in JSON form."""
        members = [{"weight": weight, "policy": member.describe_member()} for weight, member in self.members()]
        return {"members": members}

    def policy_state(self) -> State:
        """Return the networks of its algorithms."""
        return {str(index): member.algo.learner.policy_state() for index, (_, member) in enumerate(self.members())}


class _Predicts(Protocol):
    def predict(self, x: Tree) -> Array: ...


class StatelessActor:
    """A stateless actor in environments.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: _Predicts) -> None:
        self._policy = policy
        self.extra: dict[str, Array] = {}

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Return actions for observations ``[n, …]``."""
        return self._policy.predict(observation)

    def get_state(self) -> State:
        """Return an empty state."""
        return {}

    def set_state(self, state: State) -> None:
        """Do nothing; see `get_state`."""


class _SinglePolicy(StochasticPolicy):
    """Base of policies made of one algorithm."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, algo: Algorithm[Any, Any]) -> None:
        name = type(self).__name__
        if not isinstance(algo, Algorithm) or algo.evaluates or algo.acts.aims:
            aims = isinstance(algo, Algorithm) and algo.acts.aims
            hint = ": birl.ope.evaluate takes algo.as_stateful_wrapper(target_return)" if aims else ""
            raise ConfigError(f"{name} takes an algorithm that acts on observations, not {type(algo).__name__}{hint}")
        built = algo.acting
        if is_recurrent(built.nets):
            raise UnsupportedError(
                f"{name} takes one observation at a time, but {built.name} is recurrent: stack frames instead "
                "(FrameStackTransitionPicker)"
            )
        self.algo = algo
        distribution = self._policy(built)
        sample = _sampler(distribution)
        clipped = built.policy.clipped or isinstance(self, Gaussian)
        policy = replace(built.policy, greedy=sample, sample=sample, distribution=distribution, clipped=clipped)
        parts = built.nets, built.spec, built.units, built.columns, built.set_mode
        self._acting = BuiltPolicy(f"{name} of {built.name}", policy, *parts)

    @abstractmethod
    def _policy(self, built: BuiltPolicy) -> DistributionFunction[Any]:
        """Return the distribution of actions, in the policy's range."""

    @property
    def acting(self) -> BuiltPolicy:
        """The policy with networks and units."""
        return self._acting

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """See `Algorithm.action_log_probability`; ``greedy`` is ignored."""
        return self._acting.log_probability(x, action, greedy=True)  # its layers have no noise

    def module(self) -> SamplingModule:
        """See `StochasticPolicy.module`."""
        return SamplingModule(self._acting)

    def members(self) -> list[tuple[float, _SinglePolicy]]:
        """See `StochasticPolicy.members`."""
        return [(1.0, self)]

    @property
    def logs(self) -> LogRecord | None:
        """See `Algorithm.logs`."""
        return self.algo.logs

    def serving_description(self) -> dict[str, Any]:
        """See `PolicyAPI.serving_description`."""
        return {"type": type(self).__name__, "draws": True, **self._params(), "of": type(self.algo).__name__}

    def _params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.fields}

    def describe_member(self) -> dict[str, Any]:
        """Return a description in JSON form."""
        return {"type": type(self).__name__, "params": self._params(), "algorithm": self.algo.learner.describe()}


class Sampled(_SinglePolicy):
    """The distribution that ``algo.sample_action`` samples; greedy discrete actions for deterministic algorithms.

    Args:
        algo: an algorithm with networks.

    Raises:
        UnsupportedError: if its samples have no density.
    """

    def _policy(self, built: BuiltPolicy) -> DistributionFunction[Any]:
        distribution = built.policy.distribution
        if distribution is None and built.spec.actions.discrete and not built.policy.explores:
            return _epsilon_greedy(built, 0.0)
        unfit = distribution is None or built.noisy
        if not unfit:
            built.set_mode(True)
            with torch.no_grad():
                inputs = Inputs(built.units.as_input(example_of(built)))
                unfit = isinstance(cast(Any, distribution)(built.nets, inputs), Tensor)
        if unfit:
            raise UnsupportedError(
                f"{built.name} samples no actions with a known probability: use Gaussian(algo, std) for continuous "
                "actions, EpsilonGreedy(algo, epsilon) for discrete ones"
            )
        return cast(DistributionFunction[Any], distribution)


class EpsilonGreedy(_SinglePolicy):
    """Greedy discrete actions and, with probability ``epsilon``, uniformly random allowed ones.

    Every allowed action has at least the probability ``epsilon`` divided by their number. The dimensions of a
    multi-discrete action are random independently.

    Args:
        algo: an algorithm with networks and discrete actions.
        epsilon: in [0, 1].
    """

    fields = ("epsilon",)

    def __init__(self, algo: Algorithm[Any, Any], epsilon: float) -> None:
        self.epsilon = float(check("epsilon", epsilon, float, low=0, high=1))
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction[Any]:
        _check_choices(self, built)
        return _epsilon_greedy(built, self.epsilon)


class Softmax(_SinglePolicy):
    """Discrete actions with probabilities proportional to ``exp(score / temperature)``.

    Scores are action values (the DQN family) or the logits of a policy, which temperature 1 leaves unchanged. The
    dimensions of a multi-discrete action are sampled independently.

    Args:
        algo: an algorithm with networks and discrete actions.
        temperature: above 0, in units of (scaled) returns or of logits; actions are greedy in the limit 0.

    Raises:
        UnsupportedError: if the algorithm has no scores, such as DiscreteBCQ.
    """

    fields = ("temperature",)

    def __init__(self, algo: Algorithm[Any, Any], temperature: float = 1.0) -> None:
        self.temperature = float(check("temperature", temperature, float, above=0))
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction[Any]:
        _check_choices(self, built)
        scores, logits, temperature = built.policy.scores, built.policy.distribution, self.temperature
        if scores is None and logits is None:
            raise UnsupportedError(f"{built.name} has no scores of actions: use EpsilonGreedy(algo, epsilon)")

        def policy(nets: Any, inputs: Inputs) -> Categorical:
            if scores is None:
                original = cast(Categorical, cast(DistributionFunction[Any], logits)(nets, inputs))
                return replace(original, logits=original.logits / temperature)
            values, several = scores(nets, inputs), bool(built.spec.actions.shape)
            return Categorical(values / temperature, _allowed_mask(built.spec, inputs, values), several)

        return policy


class Gaussian(_SinglePolicy):
    """Greedy actions with Gaussian noise, clipped to the policy's range.

    An action at a bound has the probability of all actions beyond it; see `Algorithm.action_probability`.

    Args:
        algo: an algorithm with networks and continuous actions.
        std: standard deviation above 0, one number or one for each dimension. The unit is half the distance between the
            bounds of the action scaler; without an action scaler it is the environment's unit.
    """

    fields = ("std",)

    def __init__(self, algo: Algorithm[Any, Any], std: float | Sequence[float] = 0.1) -> None:
        several = isinstance(std, list | tuple | np.ndarray) and np.ndim(std) > 0
        values = np.asarray(std).tolist() if several else [std]
        numbers = [float(check("std", value, float, above=0)) for value in values]
        self.std: float | list[float] = numbers if several else numbers[0]
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction[Any]:
        actions = built.spec.actions
        if not isinstance(actions, Continuous):
            raise ConfigError(
                f"Gaussian is for continuous actions, but the actions of {built.name} are {actions}: use EpsilonGreedy "
                "or Softmax for discrete ones"
            )
        if isinstance(self.std, list) and len(self.std) != actions.size:
            raise ConfigError(
                f"std has {len(self.std)} numbers, but there are {actions}: give one number, or one for each"
            )
        log_std = torch.tensor(self.std, device=built.units.device).log().expand(actions.size)

        def policy(nets: Any, inputs: Inputs) -> Normal:
            mean = built.policy.greedy(nets, inputs)
            return Normal(actions.clamp(mean) if built.clips else mean, log_std)

        return policy


class Mixture(StochasticPolicy):
    """A mixture of policies, one of which is sampled for each action.

    The probability of an action is the weighted mean of the members' probabilities.

    Args:
        policies: policies of this module, or algorithms, which become `Sampled`, of the same observations and actions.
        weights: probability of each policy, above 0 and with a sum of 1; by default all are equal.
    """

    def __init__(
        self, policies: Sequence[StochasticPolicy | Algorithm[Any, Any]], weights: Sequence[float] | None = None
    ) -> None:
        if not isinstance(policies, list | tuple) or not policies:
            raise ConfigError(f"policies is {policies!r:.80}; it must be a list of one policy or more")
        weights = [1 / len(policies)] * len(policies) if weights is None else weights
        if len(weights) != len(policies):
            raise ConfigError(
                f"there are {len(policies)} policies and {len(weights)} weights: give one weight for each policy"
            )
        weights = [float(check("weights", weight, float, above=0)) for weight in weights]
        if abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"weights {weights} have the sum {sum(weights):g}; it must be 1")
        self._members: list[tuple[float, _SinglePolicy]] = []
        for weight, policy in zip(weights, policies, strict=True):
            each = policy if isinstance(policy, StochasticPolicy) else Sampled(policy)
            self._members += [(weight * share, member) for share, member in each.members()]
        specs = [member.spec for _, member in self._members]
        for spec in specs:
            if spec != specs[0]:
                raise ConfigError(f"the policies of a mixture are for {specs[0]} and for {spec}; both must be the same")
        self._logs: LogRecord | None = None
        for index, (_, member) in enumerate(self._members):
            self._logs = merge_records(self._logs, member.logs, "a policy of the mixture", f"policy {index}")
            merge_columns(self.columns, member.columns, "the first policy of the mixture", f"policy {index}")

    @property
    def spec(self) -> Spec:
        """Observations and actions of all its policies."""
        return self._members[0][1].spec

    @property
    def logs(self) -> LogRecord | None:
        """The logs that its policies learned from, if known."""
        return self._logs

    @property
    def columns(self) -> Columns:
        """See `PolicyAPI.columns`."""
        return self._members[0][1].columns

    @property
    def acting(self) -> BuiltPolicy:
        """Raise `UnsupportedError`: a mixture has several policies, each with its own networks and units."""
        raise UnsupportedError("a Mixture has several policies with networks of their own: use its members()")

    def module(self) -> MixtureModule:
        """See `StochasticPolicy.module`."""
        return MixtureModule([member.module() for _, member in self._members], [weight for weight, _ in self._members])

    def members(self) -> list[tuple[float, _SinglePolicy]]:
        """See `StochasticPolicy.members`."""
        return self._members

    def serving_description(self) -> dict[str, Any]:
        """See `PolicyAPI.serving_description`."""
        members = [{"weight": weight, **member.serving_description()} for weight, member in self._members]
        return {"type": type(self).__name__, "draws": True, "members": members}

    def predict(self, x: Tree) -> Array:
        """Sample actions; see `Algorithm.predict`."""
        actions = np.stack([member.predict(x) for _, member in self._members])
        weights = torch.tensor([weight for weight, _ in self._members], dtype=torch.float64)
        index = torch.multinomial(weights, actions.shape[1], replacement=True).numpy()
        return np.asarray(actions[index, np.arange(actions.shape[1])])

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """See `Algorithm.action_log_probability`; ``greedy`` is ignored."""
        members = [member.action_log_probability(x, action) + math.log(weight) for weight, member in self._members]
        return np.asarray(np.logaddexp.reduce(members))


def load_policy(fname: File, device: bool | int | str | None = False) -> StochasticPolicy:
    """Load a policy that `StochasticPolicy.save` wrote.

    Args:
        fname: path or binary file.
        device: see `AlgorithmConfig.create`.
    """
    data, state = load_archive(fname, "policy")
    with convert_to_corrupt_error(fname):
        return restore_policy(data, state, device)


def restore_policy(data: dict[str, Any], state: State, device: bool | int | str | None) -> StochasticPolicy:
    """Rebuild a policy from the results of `StochasticPolicy.describe` and `StochasticPolicy.policy_state`."""
    loaded: list[tuple[float, _SinglePolicy]] = []
    for index, member in enumerate(data["members"]):
        description = member["policy"]
        policy_type = _TYPES.get(description["type"])
        if policy_type is None or set(description["params"]) != set(policy_type.fields):
            raise CorruptFileError(
                f"the policy type is {description['type']!r:.80}; it must be one of {', '.join(_TYPES)}: save it again"
            )
        algo = saved_policy(description["algorithm"], state[str(index)], device)
        loaded.append((member["weight"], policy_type(algo, **description["params"])))
    if len(loaded) == 1:
        return loaded[0][1]
    return Mixture([policy for _, policy in loaded], [weight for weight, _ in loaded])


_TYPES: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Sampled, EpsilonGreedy, Softmax, Gaussian)}


def _check_choices(policy: _SinglePolicy, built: BuiltPolicy) -> None:
    if not built.spec.actions.discrete:
        raise ConfigError(
            f"{type(policy).__name__} is for discrete actions, but the actions of {built.name} are "
            f"{built.spec.actions}: use Gaussian for continuous ones"
        )


def _allowed_mask(spec: Spec, inputs: Inputs, like: Tensor) -> Tensor | None:
    """Return the mask of allowed actions for each dimension."""
    actions: Any = spec.actions
    return cast("Tensor | None", actions.mask_to_branches(inputs.mask if spec.masked else None, like))


def _epsilon_greedy(built: BuiltPolicy, epsilon: float) -> DistributionFunction[Any]:
    """Return the distribution of `EpsilonGreedy`."""
    actions: Actions = built.spec.actions
    options = max(actions.options)

    def policy(nets: Any, inputs: Inputs) -> Categorical:
        greedy = built.policy.greedy(nets, inputs)
        best = (greedy.unsqueeze(-1) == torch.arange(options, device=greedy.device)).float()
        allowed = _allowed_mask(built.spec, inputs, best)
        free = torch.ones_like(best) if allowed is None else allowed.float()
        share = (1 - epsilon) * best + epsilon * free / free.sum(-1, keepdim=True)
        return Categorical(share.log().clamp(min=NEVER), allowed, bool(actions.shape))

    return policy


def _sampler(distribution: DistributionFunction[Any]) -> Any:
    """Return a function that samples from a distribution."""

    def sample(nets: Any, inputs: Inputs) -> Tensor:
        conditional: Any = distribution(nets, inputs)
        return cast(Tensor, conditional.sample()[0])

    return sample
