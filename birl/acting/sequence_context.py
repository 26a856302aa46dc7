"""Acting on contexts: the newest steps of an episode that a sequence model reads, and its target return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.built_policy import BuiltPolicy
from birl.acting.policy import Policy
from birl.checks import check
from birl.errors import ConfigError, CorruptFileError, DataError, NonFiniteError, ShapeError, UnsupportedError
from birl.preprocessing.units import Units
from birl.spaces import all_finite
from birl.spaces.conversion import to_array
from birl.spaces.observations import order_tables
from birl.types import (
    FLOAT32_MAX,
    Array,
    ArrayOrTensor,
    Batch,
    Inputs,
    Networks,
    State,
    Tree,
    as_parts,
    is_shape,
    parts_like,
    tree_leaves,
    tree_map,
)

_CONTEXTS: Final = 1024
"""Number of contexts that are evaluated at a time."""


def _without_aim(nets: Networks, inputs: Inputs) -> NoReturn:
    """Raise `UnsupportedError`: a sequence model needs a target return."""
    raise UnsupportedError("a sequence model acts only with a return to aim at: use as_stateful_wrapper(target_return)")


ContextActor: Final = partial(Policy, greedy=_without_aim, sample=_without_aim, aims=True)
"""A policy that is a transformer on contexts, conditioned on a target return."""


@dataclass(frozen=True)
class TransformerInput:
    """Input of a sequence model: steps of one episode, oldest first, in environment units.

    Attributes:
        observations: tree ``[L, …]``.
        actions: ``[L, A]``, or integers ``[L, 1]``; the last one is ignored.
        rewards: ``[L, 1]``.
        returns_to_go: ``[L, 1]``.
        timesteps: int ``[L]``, counted from 1; 0 is padding.
    """

    observations: Tree
    actions: Array
    rewards: Array
    returns_to_go: Array
    timesteps: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", as_parts(self.observations))

    @property
    def length(self) -> int:
        """Number of steps ``L``."""
        return len(self.timesteps)


class TransformerActionSampler(Protocol):
    """Turns a transformer's output for the newest step of one episode into an action."""

    def __call__(self, transformer_output: Array) -> Array | int:
        """Return the action, ``[A]``, or the number of a discrete action, counted from 0.

        Args:
            transformer_output: ``[A]``: an action, or the logits of discrete actions.
        """


@runtime_checkable
class ProbabilisticActionSampler(Protocol):
    """An action sampler with known probabilities: a policy with it can be evaluated on logs."""

    def log_probabilities(self, outputs: Array) -> Array:
        """Return the log-probabilities ``[N, A]`` of all discrete actions for outputs ``[N, A]``."""


class IdentityTransformerActionSampler(TransformerActionSampler):
    """Uses the output as the action, for continuous actions."""

    def __call__(self, transformer_output: Array) -> Array:
        """Return the output."""
        return transformer_output


class SoftmaxTransformerActionSampler(TransformerActionSampler):
    """Samples a discrete action with the probabilities ``softmax(logits / temperature)``.

    It uses torch's generator, as policies do, so `birl.seed` determines the samples and a resumed run continues them.

    Args:
        temperature: above 0; higher temperatures give more even probabilities.

    Raises:
        ConfigError: if ``temperature`` is not above 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = float(check("temperature", temperature, float, above=0))

    def log_probabilities(self, outputs: Array) -> Array:
        """Return the log-probabilities ``[N, A]`` of all actions for outputs ``[N, A]``."""
        scores = np.asarray(outputs, np.float64) / self.temperature
        return np.asarray(scores - np.logaddexp.reduce(scores, -1, keepdims=True))

    def __call__(self, transformer_output: Array) -> int:
        """Return a sampled action."""
        noise = torch.empty(len(transformer_output), dtype=torch.float64).exponential_().numpy()
        return int(np.argmax(np.asarray(transformer_output, np.float64) / self.temperature - np.log(noise)))


class GreedyTransformerActionSampler(TransformerActionSampler):
    """Takes the most probable discrete action."""

    def log_probabilities(self, outputs: Array) -> Array:
        """Return 0 for the action that is taken for outputs ``[N, A]``, and minus infinity for all others."""
        taken = np.argmax(outputs, -1, keepdims=True) == np.arange(outputs.shape[-1])
        return np.where(taken, 0.0, -np.inf)

    def __call__(self, transformer_output: Array) -> int:
        """Return the action with the largest logit (the first one in a tie)."""
        return int(np.argmax(transformer_output))


class TransformerActor:
    """Acts in ``n`` environments on the last ``context_size`` steps of each."""

    def __init__(self, algorithm: Any, target_return: float, sampler: TransformerActionSampler, n: int) -> None:
        self._target = _finite("target_return", target_return)
        self._algorithm, self._sampler, self.n = algorithm, sampler, n
        self.extra: dict[str, Array] = {}
        self._context: dict[str, Tree] = {}
        """Inputs of the model by name: trees ``[n, context_size, …]``, oldest step first."""

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Return actions ``[n, A]`` or int64 ``[n]``. ``reward`` is the reward of the previous step."""
        first, reward = np.asarray(is_first, bool), to_array("reward", reward)
        observation = self._algorithm.learner.policy.checked(observation, chooses=True)
        if not all_finite(reward[~first]):
            raise NonFiniteError(f"a reward is {reward[~first]}: the remaining target return is undefined")
        reward = reward.astype(np.float32)
        context = self._context = self._context or self._padding(observation)
        wanted, step = context["return"][:, -1, 0] - reward, context["step"][:, -1] + 1
        for rows in tree_leaves(context):
            rows[:, :-1] = rows[:, 1:]
            rows[first] = 0
        tree_map(lambda rows, x: rows.__setitem__((slice(None), -1), x), context["observation"], observation)
        context["return"][:, -1, 0] = np.where(first, self._target, wanted)
        context["step"][:, -1] = np.where(first, 1, np.minimum(step, self._algorithm.config.max_timestep))
        actions = context["action"]
        actions[:, -1] = 0
        output = self._algorithm.predict_context(context["observation"], actions, context["return"], context["step"])
        chosen = [np.atleast_1d(self._sampler(row)) for row in output]
        if any(each.dtype.kind not in "biuf" or each.shape != actions.shape[2:] for each in chosen):
            raise ShapeError(
                f"{type(self._sampler).__name__} returned {chosen[0].tolist()!r:.80}; an action sampler returns an "
                f"action of shape {actions.shape[2:]}, or an integer if actions are discrete"
            )
        actions[:, -1] = np.stack(chosen) + getattr(self._algorithm.spec.actions, "start", 0)
        return actions[:, -1].copy().reshape(self.n, *self._algorithm.spec.actions.shape)

    def _padding(self, observation: Tree) -> dict[str, Tree]:
        """Return the context before the first step."""
        leaf, lead = self._algorithm.spec.actions.storage_spec, (self.n, self._algorithm.config.context_size)
        return {
            "observation": tree_map(lambda x: np.zeros((*lead, *x.shape[1:]), x.dtype), observation),
            "action": np.zeros((*lead, *leaf.shape), leaf.dtype),
            "return": np.zeros((*lead, 1), np.float32),
            "step": np.zeros(lead, np.int64),  # 0 is padding
        }

    def get_state(self) -> State:
        """Return the contexts; empty before the first step."""
        return tree_map(np.copy, self._context)  # type: ignore[no-any-return]

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        lead = self.n, self._algorithm.config.context_size
        if state and any(np.shape(leaf)[:2] != lead for leaf in tree_leaves(state)):
            raise CorruptFileError(
                f"the saved context of a sequence model does not have {lead} steps: use another copy"
            )
        self._context = tree_map(np.array, state)


def _finite(name: str, value: object) -> float:
    """Convert ``value`` to a float.

    Raises:
        ConfigError: if it is not a finite number.
    """
    try:
        number = float(to_array(name, value).reshape(()))
    except (DataError, ValueError):
        number = math.nan
    if not abs(number) <= FLOAT32_MAX:
        raise ConfigError(f"{name} is {value!r:.80}; it must be a finite number of float32")
    return number


class StatefulTransformerWrapper:
    """A sequence model that remembers the steps of its episode, for one environment.

    It can also replace the algorithm in evaluators: `actor` uses this wrapper's target return.

    Attributes:
        algo: the wrapped algorithm.
    """

    def __init__(self, algo: Any, target_return: float, action_sampler: TransformerActionSampler) -> None:
        self.algo, self._target_return, self._sampler = algo, target_return, action_sampler
        self._actor, self._begins = self.actor(), True

    def predict(self, x: Tree, reward: float) -> Array:
        """Return the action ``[A]`` (or an integer) for the newest observation, without batch dimension.

        Args:
            x: the newest observation.
            reward: reward of the step before; not used in the first step of an episode.
        """
        shape = self.algo.spec.data_shape
        x = order_tables("observation", parts_like(x, shape), self.algo.columns, row=True)
        array = to_array("observation", x) if is_shape(shape) and not isinstance(x, tuple) else x
        if is_shape(shape) and (isinstance(array, tuple) or array.shape != shape):
            given = "a tuple" if isinstance(array, tuple) else f"an array of shape {array.shape}"
            raise ShapeError(
                f"{given} was given; predict takes one observation of shape {shape}, without batch (env.reset() gives "
                "an observation and a dict)"
            )
        observation = tree_map(lambda leaf: to_array("observation", leaf)[None], array)
        reward = _finite("reward", reward)
        action = self._actor(observation, np.array([self._begins]), np.array([reward], np.float32))
        self._begins = False
        return action[0]

    def history_log_probability(self, observations: Tree, actions: Array, rewards: Array, is_first: Array) -> Array:
        """Return log-probabilities of all discrete actions at logged steps, given the earlier steps of their episodes.

        At each step the policy aims at the target return minus the rewards that were logged before.

        Args:
            observations: tree of arrays ``[N, …]``, one episode after the other.
            actions: logged actions, integers ``[N]``.
            rewards: logged rewards, ``[N]``.
            is_first: bool ``[N]``, the first steps of episodes.

        Returns:
            float64 ``[N, A]``.

        Raises:
            UnsupportedError: if the probabilities of its actions are unknown.
        """
        name = type(self.algo).__name__
        if not self.algo.spec.actions.discrete:
            raise UnsupportedError(
                f"the continuous actions of {name} are deterministic and have no density: evaluate it in an environment"
            )
        if not isinstance(self._sampler, ProbabilisticActionSampler):
            raise UnsupportedError(
                f"the action sampler of {name} is {type(self._sampler).__name__}, whose probabilities are unknown: use "
                "SoftmaxTransformerActionSampler or GreedyTransformerActionSampler, or give yours the method "
                "log_probabilities(outputs)"
            )
        outputs = logged_outputs(self.algo, self._target_return, observations, actions, rewards, is_first)
        return np.asarray(self._sampler.log_probabilities(outputs), np.float64)

    def serving_description(self) -> dict[str, Any]:
        """Return a description in JSON form; see `birl.algorithm.PolicyAPI.serving_description`."""
        sampler = self._sampler
        temperature = {"temperature": sampler.temperature} if hasattr(sampler, "temperature") else {}
        draws = not isinstance(sampler, GreedyTransformerActionSampler | IdentityTransformerActionSampler)
        return {"type": type(self.algo).__name__, "draws": draws, "target_return": self._target_return, **temperature}

    def reset(self) -> None:
        """Forget the episode."""
        self._actor, self._begins = self.actor(), True

    def actor(self, *, greedy: bool = True, n: int = 1) -> TransformerActor:
        """Make an actor for ``n`` environments with this wrapper's target return."""
        return TransformerActor(self.algo, self._target_return, self._sampler, n)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "algo":
            raise AttributeError(name)
        return getattr(self.algo, name)


def logged_outputs(
    algorithm: Any, target_return: float, observations: Tree, actions: Array, rewards: Array, is_first: Array
) -> Array:
    """Return a sequence model's outputs ``[N, A]`` at the N steps of logged episodes, as if it had acted there.

    Args:
        algorithm: the sequence model.
        target_return: target return of every episode.
        observations, actions, rewards, is_first: see `StatefulTransformerWrapper.history_log_probability`.
    """
    size, latest, leaf = (
        algorithm.config.context_size,
        algorithm.config.max_timestep,
        algorithm.spec.actions.storage_spec,
    )
    observations = algorithm.learner.policy.checked(observations, chooses=True)
    rewards = to_array("rewards", rewards).astype(np.float64).reshape(-1)
    if not np.isfinite(rewards).all():
        bad = int(np.argmin(np.isfinite(rewards)))
        raise NonFiniteError(f"the reward of step {bad} is {rewards[bad]}: the remaining target return is undefined")
    logged = to_array("actions", actions).reshape(len(rewards), *leaf.shape).astype(leaf.dtype)
    rows = np.arange(len(rewards))
    start = np.maximum.accumulate(np.where(is_first, rows, 0))
    earlier = np.cumsum(rewards) - rewards
    wanted = (target_return - (earlier - earlier[start])).astype(np.float32)[:, None]
    outputs = []
    for begin in range(0, len(rows), _CONTEXTS):
        newest = rows[begin : begin + _CONTEXTS]
        window: Array = newest[:, None] + np.arange(1 - size, 1)
        padding = window < start[newest, None]
        window[padding] = 0

        def read(column: Array, window: Array = window, padding: Array = padding) -> Array:
            context = column[window]
            context[padding] = 0
            return context

        taken, step = read(logged), read(np.minimum(rows - start + 1, latest))
        taken[:, -1] = 0  # the action that the model is to choose
        outputs.append(algorithm.predict_context(tree_map(read, observations), taken, read(wanted), step))
    return np.concatenate(outputs)


class ContextModule(nn.Module):
    """Exported module: the greedy policy with its scalers, from contexts to environment actions."""

    def __init__(self, policy: BuiltPolicy) -> None:
        super().__init__()
        self.transformer = policy.nets.get_submodule(policy.policy.network)
        self._units = policy.units

    def forward(self, context: tuple[Tree, Tensor, Tensor, Tensor]) -> Tensor:
        """Return actions ``[B, A]``, or int64 ``[B]``, for observations, actions, returns-to-go and timesteps."""
        output = newest_output(self.transformer, self._units, *context)
        return self._units.environment_action(self._units.actions.greedy(output))


def window_outputs(transformer: nn.Module, batch: Batch) -> Tensor:
    """Return a transformer's outputs ``[B, L, A]`` for the windows of a batch."""
    extra = batch.extra
    output: Tensor = transformer(
        batch.observation, batch.action, extra["returns_to_go"], extra["timestep"], batch.weight
    )
    return output


def newest_output(
    transformer: nn.Module,
    units: Units,
    observation: Tree,
    action: ArrayOrTensor,
    returns_to_go: ArrayOrTensor,
    timestep: ArrayOrTensor,
) -> Tensor:
    """Return a transformer's outputs ``[B, A]`` for the newest steps of contexts in environment units."""
    step = units.tensor(timestep).to(torch.int64)
    output: Tensor = transformer(
        units.observation(observation),
        units.action(action),
        units.reward(returns_to_go),
        step,
        (step > 0).to(torch.float32),
    )
    return output[:, -1]
