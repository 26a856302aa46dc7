"""Explorers, which add noise to greedy actions or replace them by random ones."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from gymnasium import Space

from birl.checks import check, named_arguments
from birl.errors import ConfigError, CorruptFileError
from birl.files.state_restore import check_array
from birl.seeding import new_generator
from birl.spaces import Actions, Composite, Continuous, Discrete, actions_from_space, read_action_mask
from birl.types import Array, State, Tree


class ExploredPolicy(Protocol):
    """Interface of an algorithm for explorers."""

    @property
    def action_size(self) -> Any: ...

    def predict(self, x: Tree) -> Array:
        """Return greedy actions for observations ``[n, …]``."""

    def action_values(self, x: Tree) -> Array:
        """Return the values of all discrete actions."""


class Explorer(abc.ABC):
    """Base of explorers. Subclasses draw from ``self.generator``, which is saved in checkpoints.

    Attributes:
        needs_values: whether it reads ``algo.action_values(x)``. Loops then let the actor, which keeps recurrent
            states, compute them.
    """

    needs_values: ClassVar[bool] = False
    action_space: Space[Any] | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = named_arguments(cls.__init__)  # type: ignore[method-assign]

    @property
    def generator(self) -> np.random.Generator:
        """The explorer's random generator, derived from `birl.seed` on first use."""
        if not hasattr(self, "_generator"):
            self._generator = new_generator()
        return self._generator

    def bind(self, action_space: Space[Any]) -> Self:
        """Set the action space of a single environment. Loops call this before the first step."""
        self.action_space = action_space
        self.generator  # noqa: B018  created now, so that generators are created in a fixed order
        return self

    def renewed(self) -> Self:
        """Return a copy with its own random generator, derived from `birl.seed` on first use."""
        copied = copy.copy(self)
        vars(copied).pop("_generator", None)
        return copied

    def begin(self, is_first: Array) -> None:  # noqa: B027  most explorers do nothing here
        """Note where episodes begin. Loops call this before every step.

        Args:
            is_first: bool ``[n]``: whether the next action is the first of an episode.
        """

    @abc.abstractmethod
    def sample(self, algo: ExploredPolicy, x: Tree, step: int) -> Array:
        """Select actions.

        Args:
            algo: provides greedy actions (``algo.predict(x)``), their size (``algo.action_size``) and, with
                ``needs_values``, the values of all actions (``algo.action_values(x)``).
            x: observations ``[n, …]``.
            step: number of environment steps so far.

        Returns:
            ``[n]`` integers or ``[n, action_size]``, in the environment's units.
        """

    def get_state(self) -> State:
        """Return the state of the generator."""
        return {"generator": self.generator.bit_generator.state}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.generator.bit_generator.state = state["generator"]

    def _actions(self, algo: ExploredPolicy) -> Actions:
        if self.action_space is not None:
            return actions_from_space(self.action_space)
        spec = getattr(algo, "spec", None)  # only birl's algorithms have one
        return Discrete(algo.action_size) if spec is None else spec.actions


class Greedy(Explorer):
    """Takes greedy actions, also for policies that are sampled if there is no explorer."""

    def sample(self, algo: ExploredPolicy, x: Tree, step: int) -> Array:
        return np.asarray(algo.predict(x))


class EpsilonGreedy(Explorer):
    """Base of explorers that take random actions with a probability, uniformly from the allowed actions."""

    @abc.abstractmethod
    def compute_epsilon(self, step: int) -> float:
        """Return the probability of a random action at ``step``."""

    def sample(self, algo: ExploredPolicy, x: Tree, step: int) -> Array:
        greedy = np.asarray(algo.predict(x))
        actions = self._actions(algo)
        random = actions.sample(len(greedy), self.generator, read_action_mask(actions, x))
        explore = self.generator.random(len(greedy)) < self.compute_epsilon(step)
        return np.where(explore.reshape(-1, *(1,) * (greedy.ndim - 1)), random, greedy)


class LinearDecayEpsilonGreedy(EpsilonGreedy):
    r"""Takes random discrete actions with a probability that falls linearly and then stays constant.

    Args:
        start_epsilon: probability at step 0, in [0, 1].
        end_epsilon: probability from step ``duration`` on, in [0, 1].
        duration: number of steps, >= 1.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(self, start_epsilon: float = 1.0, end_epsilon: float = 0.1, duration: int = 1000000) -> None:
        self._start = check("start_epsilon", start_epsilon, float, low=0, high=1)
        self._end = check("end_epsilon", end_epsilon, float, low=0, high=1)
        self._duration = check("duration", duration, float, low=1)

    def compute_epsilon(self, step: int) -> float:
        share = min(step / self._duration, 1.0)
        return self._start + (self._end - self._start) * share


class ConstantEpsilonGreedy(LinearDecayEpsilonGreedy):
    """Takes random discrete actions with a constant probability.

    Args:
        epsilon: the probability, in [0, 1].
    """

    def __init__(self, epsilon: float) -> None:
        check("epsilon", epsilon, float, low=0, high=1)
        super().__init__(epsilon, epsilon, 1)


def epsilon_ladder(n: int, base: float = 0.4, power: float = 7.0) -> list[ConstantEpsilonGreedy]:
    """Make an explorer for each of ``n`` collectors, with probabilities from ``base`` down to ``base**(1 + power)``.

    Collector ``i`` takes random actions with the constant probability ``base**(1 + power * i / (n - 1))`` (Horgan et
    al. 2018, Ape-X, arXiv:1803.00933, section 4.1). A single collector has ``base``.

    Args:
        n: number of collectors.
        base: probability of the first collector, in [0, 1].
        power: steepness of the decrease, at least 0.
    """
    check("n", n, int, low=1)
    check("base", base, float, low=0, high=1)
    check("power", power, float, low=0)
    return [ConstantEpsilonGreedy(base ** (1 + power * i / max(n - 1, 1))) for i in range(n)]


class ExponentialDecayEpsilonGreedy(EpsilonGreedy):
    """Takes random discrete actions with the probability ``max(start_epsilon * decay**step, end_epsilon)``.

    Args:
        start_epsilon: probability at step 0, in [0, 1].
        end_epsilon: lowest probability, at most ``start_epsilon``.
        decay: factor per environment step, in (0, 1].

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(self, start_epsilon: float = 1.0, end_epsilon: float = 0.1, decay: float = 0.99999) -> None:
        self._start = check("start_epsilon", start_epsilon, float, low=0, high=1)
        self._end = check("end_epsilon", end_epsilon, float, low=0, high=self._start)
        self._decay = check("decay", decay, float, above=0, high=1)

    def compute_epsilon(self, step: int) -> float:
        return float(max(self._start * self._decay**step, self._end))


class Boltzmann(Explorer):
    """Samples discrete actions with the probabilities ``softmax(Q(s, a) / temperature)`` over the allowed actions.

    With several choices, each choice is sampled by its own values. Only for algorithms that select actions by their
    values, such as DQN, with any head.

    Args:
        temperature: above 0, in units of (scaled) returns. Low temperatures give greedy actions, high ones uniform.

    Raises:
        ConfigError: if ``temperature`` is out of range.
    """

    needs_values = True

    def __init__(self, temperature: float = 1.0) -> None:
        self._temperature = check("temperature", temperature, float, above=0)

    def bind(self, action_space: Space[Any]) -> Self:
        if not actions_from_space(action_space).discrete:
            raise ConfigError(
                f"explorer is Boltzmann, for discrete actions, but the actions are {action_space}: use NormalNoise or "
                "OrnsteinUhlenbeckNoise, for continuous actions"
            )
        return super().bind(action_space)

    def sample(self, algo: ExploredPolicy, x: Tree, step: int) -> Array:
        values = np.asarray(algo.action_values(x), np.float64)
        noise = self.generator.gumbel(size=values.shape)  # Gumbel-max: the largest sum is a sample of the softmax
        with np.errstate(over="ignore"):
            scaled = (values - values.max(-1, keepdims=True)) / self._temperature
        starts = np.asarray(self._actions(algo).starts)  # type: ignore[union-attr]
        drawn = (scaled + noise).argmax(-1)
        return drawn + (starts if drawn.ndim > 1 else starts[0])


class _Noise(Explorer):
    """Base of explorers that add noise to continuous actions.

    Actions are clipped to the bounds of the environment; outside of a loop, to the bounds of the algorithm's action
    scaler, or else [-1, 1]. Discrete parts of composite actions stay greedy.
    """

    def bind(self, action_space: Space[Any]) -> Self:
        name, actions = type(self).__name__, actions_from_space(action_space)
        if not isinstance(actions, Continuous | Composite):
            raise ConfigError(
                f"explorer is {name}, for continuous actions, but the actions are {action_space}: use "
                "LinearDecayEpsilonGreedy or ConstantEpsilonGreedy, for discrete actions"
            )
        size = len(_continuous_columns(actions))
        for what, value in vars(self).items():
            if isinstance(value, tuple) and len(value) != size:
                raise ConfigError(
                    f"{what.lstrip('_')} of {name} has {len(value)} numbers, but actions have {size} continuous "
                    "dimensions: give one number for each, or one for all"
                )
        return super().bind(action_space)

    def sample(self, algo: ExploredPolicy, x: Tree, step: int) -> Array:
        greedy = np.asarray(algo.predict(x))
        actions = None if self.action_space is None else actions_from_space(self.action_space)
        columns = range(greedy.shape[-1]) if actions is None else _continuous_columns(actions)
        noisy = greedy.astype(np.float64)
        noisy[:, columns] += self._noise((len(greedy), len(columns)))
        if actions is not None:
            return actions.clip(noisy).astype(greedy.dtype)
        scaler: Any = getattr(algo, "action_scaler", None)
        if getattr(scaler, "minimum", None) is not None:
            return np.clip(noisy, scaler.minimum, scaler.maximum).astype(greedy.dtype)
        return np.clip(noisy, -1.0, 1.0).astype(greedy.dtype)

    @abc.abstractmethod
    def _noise(self, shape: tuple[int, int]) -> Array:
        """Return noise of a shape: number of environments, number of continuous dimensions."""


class NormalNoise(_Noise):
    """Adds Gaussian noise to greedy continuous actions, and clips the result to the action bounds.

    The bounds are those of the environment; outside of a loop, those of the algorithm's action scaler, or else [-1, 1].

    Args:
        mean: mean of the noise, in the environment's units; one number, or one for each continuous dimension.
        std: standard deviation of the noise, >= 0; one number, or one for each continuous dimension.
    """

    def __init__(self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 0.1) -> None:
        self._mean, self._std = _numbers("mean", mean), _numbers("std", std, low=0)

    def _noise(self, shape: tuple[int, int]) -> Array:
        return self.generator.normal(self._mean, self._std, size=shape)


class OrnsteinUhlenbeckNoise(_Noise):
    r"""Adds correlated noise to actions, as DDPG does (Lillicrap et al. 2015, arXiv:1509.02971, section 7), and clips.

    .. math::
        x_{t+1} = x_t + \theta (\mu - x_t) + \sigma \epsilon_t

    Each environment has its own noise. Each episode starts with noise from the stationary distribution of the process,
    :math:`N(\mu, \sigma^2 / (2\theta - \theta^2))`. The bounds are those of `NormalNoise`.

    Args:
        mean: mean of the noise, in the environment's units; one number, or one for each continuous dimension.
        theta: rate at which the noise returns to the mean, in (0, 1].
        sigma: standard deviation of the change in one step, >= 0; one number, or one for each continuous dimension.
        start_at_mean: whether episodes start with the mean instead.
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        theta: float = 0.15,
        sigma: float | Sequence[float] = 0.2,
        start_at_mean: bool = False,
    ) -> None:
        self._mean, self._sigma = _numbers("mean", mean), _numbers("sigma", sigma, low=0)
        self._theta = check("theta", theta, float, above=0, high=1)
        self._start_at_mean = check("start_at_mean", start_at_mean, bool)
        self._state, self._fresh = np.zeros((0, 0)), np.zeros(0, np.bool_)

    def begin(self, is_first: Array) -> None:
        if len(is_first) != len(self._fresh):
            self._fresh = np.ones(len(is_first), np.bool_)
        self._fresh |= is_first

    def _noise(self, shape: tuple[int, int]) -> Array:
        if len(self._fresh) != shape[0]:  # it is unknown where episodes begin
            self._fresh = np.ones(shape[0], np.bool_)
        if self._state.shape != shape:
            self._state, self._fresh = np.zeros(shape), np.ones(shape[0], np.bool_)
        mean, sigma, theta = np.asarray(self._mean), np.asarray(self._sigma), self._theta
        drawn = self.generator.standard_normal(shape)
        stationary = 0.0 if self._start_at_mean else sigma / np.sqrt(2 * theta - theta**2)
        moved = self._state + theta * (mean - self._state) + sigma * drawn
        self._state = np.where(self._fresh[:, None], mean + stationary * drawn, moved)
        self._fresh = np.zeros(shape[0], np.bool_)
        return self._state

    def get_state(self) -> State:
        """Return the state of the generator, the noise ``[n, A]``, and which environments restart it."""
        return {**super().get_state(), "noise": self._state.copy(), "fresh": self._fresh.copy()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        size = None if self.action_space is None else len(_continuous_columns(actions_from_space(self.action_space)))
        noise = np.asarray(state["noise"])
        noise = check_array(noise, (None, size if noise.size else None), np.dtype(np.float64), "noise")
        fresh = check_array(state["fresh"], (len(noise) or None,), np.dtype(np.bool_), "fresh")
        if not np.isfinite(noise).all():
            raise CorruptFileError("the explorer's noise is not finite: restore the checkpoint from a copy")
        super().set_state(state)
        self._state, self._fresh = noise.copy(), fresh.copy()


def _continuous_columns(actions: Actions) -> Array:
    """Return the indices of the continuous columns of actions."""
    return np.flatnonzero(~actions.choices) if isinstance(actions, Composite) else np.arange(actions.size)


def _numbers(name: str, value: object, low: float = -np.inf) -> float | tuple[float, ...]:
    """Return one number, or a tuple with one for each continuous dimension."""
    if not isinstance(value, list | tuple | np.ndarray) or np.ndim(value) == 0:
        return float(check(name, value, float, low=low))
    if np.ndim(value) != 1 or len(value) == 0:
        raise ConfigError(f"{name} is {value!r:.80}; it must be a number, or a list with one per continuous dimension")
    return tuple(float(check(f"{name}[{index}]", each, float, low=low)) for index, each in enumerate(value))
