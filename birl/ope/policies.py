"""Policies that draw their actions, made of trained algorithms: what is evaluated is what is saved and exported.

A greedy policy cannot be compared with logs by weights, and logs of a greedy policy judge no other. These policies draw
each action with a known probability. They act, evaluate and export alike: `predict` draws, `action_probability` tells
with what probability, and the exported file gives both the action and the logarithm of its probability, to be logged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, cast

import numpy as np
import torch
from torch import Tensor

from birl._version import __version__
from birl.acting.built_policy import BuiltPolicy
from birl.acting.export import export_policy
from birl.acting.noise_inputs import DrawnModule, MixedModule
from birl.acting.policy import DistributionFunction
from birl.algorithm import Algorithm
from birl.algorithm.persistence import example_of, saved_policy
from birl.algorithm.policy_api import PolicyAPI
from birl.checks import check
from birl.dataset.log_record import LogRecord, joined
from birl.errors import ConfigError, CorruptFileError, UnsupportedError
from birl.files import load_archive, save_archive
from birl.files.state_restore import damage_as_typed_errors
from birl.models import is_recurrent
from birl.models.distributions import NEVER, Categorical, Normal
from birl.spaces import Actions, Continuous
from birl.spaces.specs import Spec
from birl.types import Array, Inputs, State, Tree, tree_leaves

File = str | Path | BinaryIO


class DrawnPolicy(PolicyAPI, ABC):
    """Base of policies that draw their actions, with probabilities that are known.

    `predict` and `sample_action` both draw, from torch's generator (`birl.seed`): there is no other policy inside. It
    reads the networks of its algorithms, and changes as they learn.
    """

    @abstractmethod
    def module(self) -> DrawnModule | MixedModule:
        """The policy as a module, as it is exported."""

    @abstractmethod
    def members(self) -> list[tuple[float, _OfOne]]:
        """The policies that it draws from, with their weights."""

    def sample_action(self, x: Tree) -> Array:
        """As `predict`."""
        return self.predict(x)

    def actor(self, *, greedy: bool = True, n: int = 1) -> _Actor:
        """Acts in environments, for `birl.metrics.evaluate`; ``greedy`` and ``n`` change nothing."""
        return _Actor(self)

    def save_policy(self, fname: str | Path) -> None:
        """Export the policy with its scalers; see `Algorithm.save_policy`.

        The last input is ``noise``, float32 ``[B, width]``: new standard normal numbers for each action, which whoever
        runs the file draws. The second output is ``log_probability`` ``[B]``, that of the action: log it. The width is
        the number of columns of an action (1 if there is one choice), of a mixture one more than those of its members.

        Raises:
            UnsupportedError: if an action has no density, or is not drawn by normal numbers, as from a Beta
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
        """Write the policy with the networks of its algorithms to one file; see `load_policy`."""
        for _, member in self.members():
            member.algo.engine.check_finite(moments=False)  # these are not saved
        save_archive(fname, "policy", {**self.describe(), "birl": __version__}, self.policy_state())

    recurrent: ClassVar[bool] = False

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """See `birl.algorithm.learner.EvaluationTarget`."""
        return [(weight, member.acting) for weight, member in self.members()]

    def describe(self) -> dict[str, Any]:
        """What it is, in JSON form."""
        return {"members": [{"weight": weight, "policy": member.described()} for weight, member in self.members()]}

    def policy_state(self) -> State:
        """The networks of its algorithms."""
        return {str(index): member.algo.learner.policy_state() for index, (_, member) in enumerate(self.members())}


class _Actor:
    """Acts in environments, without memory."""

    def __init__(self, policy: DrawnPolicy) -> None:
        self._policy = policy
        self.extra: dict[str, Array] = {}

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Actions for observations ``[n, …]``."""
        return self._policy.predict(observation)

    def get_state(self) -> State:
        """There is none."""
        return {}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""


class _OfOne(DrawnPolicy):
    """Base of policies made of one algorithm."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, algo: Algorithm[Any, Any]) -> None:
        name = type(self).__name__
        if not isinstance(algo, Algorithm) or algo.evaluates or algo.acts.aims:
            raise ConfigError(f"{name} takes an algorithm that acts on observations, not {type(algo).__name__}")
        built = algo.acting
        if is_recurrent(built.nets):
            raise UnsupportedError(
                f"{name} takes one observation at a time, but {built.name} is recurrent: give frames instead "
                "(FrameStackTransitionPicker)"
            )
        self.algo = algo
        own = self._policy(built)
        sample = _sampled(own)
        clipped = built.policy.clipped or isinstance(self, Gaussian)
        policy = replace(built.policy, greedy=sample, sample=sample, distribution=own, clipped=clipped)
        parts = built.nets, built.spec, built.units, built.set_mode
        self._acting = BuiltPolicy(f"{name} of {built.name}", policy, *parts)

    @abstractmethod
    def _policy(self, built: BuiltPolicy) -> DistributionFunction:
        """What it draws from, in the policy's range."""

    @property
    def acting(self) -> BuiltPolicy:
        """The policy that it acts by, with networks and units."""
        return self._acting

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """See `Algorithm.action_log_probability`; ``greedy`` changes nothing."""
        return self._acting.log_probability(x, action, greedy=True)  # its layers have no noise

    def module(self) -> DrawnModule:
        """See `DrawnPolicy.module`."""
        return DrawnModule(self._acting)

    def members(self) -> list[tuple[float, _OfOne]]:
        """See `DrawnPolicy.members`."""
        return [(1.0, self)]

    @property
    def logs(self) -> LogRecord | None:
        """See `Algorithm.logs`."""
        return self.algo.logs

    def serving_description(self) -> dict[str, Any]:
        """See `PolicyAPI.serving_description`."""
        return {"type": type(self).__name__, "draws": True, **self._given(), "of": type(self.algo).__name__}

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.fields}

    def described(self) -> dict[str, Any]:
        """What it is, in JSON form."""
        return {"type": type(self).__name__, "params": self._given(), "algorithm": self.algo.learner.describe()}


class Sampled(_OfOne):
    """What ``algo.sample_action`` draws from; greedy choices of algorithms that draw nothing.

    Args:
        algo: an algorithm with networks.

    Raises:
        UnsupportedError: if its samples have no density.
    """

    def _policy(self, built: BuiltPolicy) -> DistributionFunction:
        own = built.policy.distribution
        if own is None and built.spec.actions.discrete and not built.policy.explores:
            return _greedy_with(built, 0.0)
        unfit = own is None or built.noisy
        if not unfit:
            built.set_mode(True)
            with torch.no_grad():
                unfit = isinstance(cast(Any, own)(built.nets, Inputs(built.units.as_input(example_of(built)))), Tensor)
        if unfit:
            raise UnsupportedError(
                f"{built.name} draws no actions with a known probability: use Gaussian(algo, std) for quantities, "
                "EpsilonGreedy(algo, epsilon) for choices"
            )
        return cast(DistributionFunction, own)


class EpsilonGreedy(_OfOne):
    """Greedy choices, and with probability ``epsilon`` random ones: of those that are allowed, all alike.

    No allowed action has a probability below ``epsilon`` divided by their number. Of several choices at once each is
    random by itself.

    Args:
        algo: an algorithm with networks, whose actions are choices.
        epsilon: in [0, 1].
    """

    fields = ("epsilon",)

    def __init__(self, algo: Algorithm[Any, Any], epsilon: float) -> None:
        self.epsilon = float(check("epsilon", epsilon, float, low=0, high=1))
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction:
        _check_choices(self, built)
        return _greedy_with(built, self.epsilon)


class Softmax(_OfOne):
    """Choices with probabilities proportional to ``exp(score / temperature)``.

    Scores are action-values (DQN and its kind) or the logits of a policy, which is itself with temperature 1. Of
    several choices at once each is drawn by its own scores.

    Args:
        algo: an algorithm with networks, whose actions are choices.
        temperature: above 0, in units of (scaled) returns or of logits; towards 0 actions are greedy.

    Raises:
        UnsupportedError: if it has no scores, as DiscreteBCQ.
    """

    fields = ("temperature",)

    def __init__(self, algo: Algorithm[Any, Any], temperature: float = 1.0) -> None:
        self.temperature = float(check("temperature", temperature, float, above=0))
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction:
        _check_choices(self, built)
        scores, own, actions, temperature = (
            built.policy.scores,
            built.policy.distribution,
            built.spec.actions,
            self.temperature,
        )
        if scores is None and own is None:
            raise UnsupportedError(f"{built.name} scores no actions: use EpsilonGreedy(algo, epsilon)")

        def policy(nets: Any, inputs: Inputs) -> Categorical:
            if scores is None:
                given = cast(Categorical, cast(DistributionFunction, own)(nets, inputs))
                return replace(given, logits=given.logits / temperature)
            values = scores(nets, inputs)
            return Categorical(values / temperature, _allowed(built.spec, inputs, values), bool(actions.shape))

        return policy


class Gaussian(_OfOne):
    """Greedy actions with Gaussian noise, clipped to the policy's range.

    An action at a bound has the probability of all that lies beyond; see `Algorithm.action_probability`.

    Args:
        algo: an algorithm with networks, whose actions are quantities.
        std: standard deviation, above 0, a number, or one for each quantity. In units of the policy's range, which is 2
            wide: half the distance between the bounds of the action scaler is 1. Without an action scaler these are the
            environment's units.
    """

    fields = ("std",)

    def __init__(self, algo: Algorithm[Any, Any], std: float | Sequence[float] = 0.1) -> None:
        several = isinstance(std, list | tuple | np.ndarray) and np.ndim(std) > 0
        given = np.asarray(std).tolist() if several else [std]
        numbers = [float(check("std", each, float, above=0)) for each in given]
        self.std: float | list[float] = numbers if several else numbers[0]
        super().__init__(algo)

    def _policy(self, built: BuiltPolicy) -> DistributionFunction:
        actions = built.spec.actions
        if not isinstance(actions, Continuous):
            raise ConfigError(
                f"Gaussian is for quantities, but the actions of {built.name} are {actions}: use EpsilonGreedy or "
                "Softmax for choices"
            )
        if isinstance(self.std, list) and len(self.std) != actions.size:
            raise ConfigError(
                f"std has {len(self.std)} numbers, but there are {actions}: give one number, or one for each"
            )
        log_std = torch.tensor(self.std, device=built.units.device).log().expand(actions.size)

        def policy(nets: Any, inputs: Inputs) -> Normal:
            mean = built.policy.greedy(nets, inputs)
            return Normal(actions.within(mean) if built.clips else mean, log_std)

        return policy


class Mixture(DrawnPolicy):
    """Policies of which each action draws one anew: its probability is the weighted mean of theirs.

    Args:
        policies: policies of this module, or algorithms, which are `Sampled`; of the same observations and actions.
        weights: how often each is drawn, above 0 with a sum of 1; by default all alike.
    """

    def __init__(
        self, policies: Sequence[DrawnPolicy | Algorithm[Any, Any]], weights: Sequence[float] | None = None
    ) -> None:
        if not isinstance(policies, list | tuple) or not policies:
            raise ConfigError(f"policies is {policies!r:.80}; it must be a list of one policy or more")
        weights = [1 / len(policies)] * len(policies) if weights is None else weights
        if len(weights) != len(policies):
            raise ConfigError(f"there are {len(policies)} policies and {len(weights)} weights: give one for each")
        weights = [float(check("weights", each, float, above=0)) for each in weights]
        if abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"weights {weights} have the sum {sum(weights):g}; it must be 1")
        self._members: list[tuple[float, _OfOne]] = []
        for weight, policy in zip(weights, policies, strict=True):
            each = policy if isinstance(policy, DrawnPolicy) else Sampled(policy)
            self._members += [(weight * own, member) for own, member in each.members()]
        specs = [member.spec for _, member in self._members]
        for spec in specs:
            if spec != specs[0]:
                raise ConfigError(f"the policies of a mixture are for {specs[0]} and for {spec}: they must be the same")
        self._logs: LogRecord | None = None
        for index, (_, member) in enumerate(self._members):
            self._logs = joined(self._logs, member.logs, "a policy of the mixture", f"policy {index}")

    @property
    def spec(self) -> Spec:
        """Observations and actions of all its policies."""
        return self._members[0][1].spec

    @property
    def logs(self) -> LogRecord | None:
        """The logs that its policies have learned from, if datasets told of any."""
        return self._logs

    @property
    def acting(self) -> BuiltPolicy:
        """Raises `UnsupportedError`: a mixture has several policies, each with its own networks and units."""
        raise UnsupportedError("a Mixture has several policies, with networks of their own: ask each of them")

    def module(self) -> MixedModule:
        """See `DrawnPolicy.module`."""
        return MixedModule([member.module() for _, member in self._members], [weight for weight, _ in self._members])

    def members(self) -> list[tuple[float, _OfOne]]:
        """See `DrawnPolicy.members`."""
        return self._members

    def serving_description(self) -> dict[str, Any]:
        """See `PolicyAPI.serving_description`."""
        members = [{"weight": weight, **member.serving_description()} for weight, member in self._members]
        return {"type": type(self).__name__, "draws": True, "members": members}

    def predict(self, x: Tree) -> Array:
        """Actions that are drawn; see `Algorithm.predict`."""
        actions = np.stack([member.predict(x) for _, member in self._members])
        weights = torch.tensor([weight for weight, _ in self._members], dtype=torch.float64)
        which = torch.multinomial(weights, actions.shape[1], replacement=True).numpy()
        drawn: Array = actions[which, np.arange(actions.shape[1])]
        return drawn

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """See `Algorithm.action_log_probability`; ``greedy`` changes nothing."""
        found = [member.action_log_probability(x, action) + math.log(weight) for weight, member in self._members]
        mixed: Array = np.logaddexp.reduce(found)
        return mixed


def load_policy(fname: File, device: bool | int | str | None = False) -> DrawnPolicy:
    """Load what `DrawnPolicy.save` wrote.

    Args:
        fname: path or binary file.
        device: see `AlgorithmConfig.create`.
    """
    data, state = load_archive(fname, "policy")
    with damage_as_typed_errors(fname):
        return restored(data, state, device)


def restored(data: dict[str, Any], state: State, device: bool | int | str | None) -> DrawnPolicy:
    """The policy of which there are the results of `DrawnPolicy.describe` and `DrawnPolicy.policy_state`."""
    loaded: list[tuple[float, _OfOne]] = []
    for index, each in enumerate(data["members"]):
        given = each["policy"]
        kind = _KINDS.get(given["type"])
        if kind is None or set(given["params"]) != set(kind.fields):
            raise CorruptFileError(f"it describes no policy of this version: {given['type']!r:.80}")
        algo = saved_policy(given["algorithm"], state[str(index)], device)
        loaded.append((each["weight"], kind(algo, **given["params"])))
    if len(loaded) == 1:
        return loaded[0][1]
    return Mixture([policy for _, policy in loaded], [weight for weight, _ in loaded])


_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Sampled, EpsilonGreedy, Softmax, Gaussian)}


def _check_choices(policy: _OfOne, built: BuiltPolicy) -> None:
    if not built.spec.actions.discrete:
        raise ConfigError(
            f"{type(policy).__name__} is for choices, but the actions of {built.name} are {built.spec.actions}: use "
            "Gaussian for quantities"
        )


def _allowed(spec: Spec, inputs: Inputs, like: Tensor) -> Tensor | None:
    """Which actions are allowed, by choice."""
    actions: Any = spec.actions
    mask: Tensor | None = actions.branched_mask(inputs.mask if spec.masked else None, like)
    return mask


def _greedy_with(built: BuiltPolicy, epsilon: float) -> DistributionFunction:
    """Greedy choices, and random ones with probability ``epsilon``."""
    actions: Actions = built.spec.actions
    options = max(actions.options)

    def policy(nets: Any, inputs: Inputs) -> Categorical:
        greedy = built.policy.greedy(nets, inputs)
        best = (greedy.unsqueeze(-1) == torch.arange(options, device=greedy.device)).float()
        allowed = _allowed(built.spec, inputs, best)
        free = torch.ones_like(best) if allowed is None else allowed.float()
        share = (1 - epsilon) * best + epsilon * free / free.sum(-1, keepdim=True)
        return Categorical(share.log().clamp(min=NEVER), allowed, bool(actions.shape))

    return policy


def _sampled(distribution: DistributionFunction) -> Any:
    """Draws from a distribution."""

    def sample(nets: Any, inputs: Inputs) -> Tensor:
        drawn: Any = distribution(nets, inputs)
        action: Tensor = drawn.sample()[0]
        return action

    return sample
