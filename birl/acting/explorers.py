"""Explorers: greedy actions made to explore."""

from __future__ import annotations

import abc
from typing import Any, Self

import numpy as np
from gymnasium import Space, spaces

from birl.errors import ConfigError
from birl.seeding import new_generator
from birl.types import Array, State, Tree


class Explorer(abc.ABC):
    """Base of explorers. A subclass draws from ``self.generator``, which checkpoints hold."""

    action_space: Space[Any] | None = None

    @property
    def generator(self) -> np.random.Generator:
        """The explorer's own source of randomness, made from `birl.seed` when it is first used."""
        if not hasattr(self, "_generator"):
            self._generator = new_generator()
        return self._generator

    def bind(self, action_space: Space[Any]) -> Self:
        """Take note of the environment's (single) action space. Loops call this before the first step."""
        self.action_space = action_space
        self.generator  # noqa: B018  made now, so that the order of generators does not depend on what comes first
        return self

    @abc.abstractmethod
    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """Choose actions.

        Args:
            algo: ``algo.predict(x)`` gives greedy actions, ``algo.action_size`` their size.
            x: observations ``[n, …]``.
            step: environment steps made so far.

        Returns:
            ``[n]`` integers or ``[n, action_size]``, in the environment's units.
        """

    def get_state(self) -> State:
        """State of the generator."""
        return {"generator": self.generator.bit_generator.state}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.generator.bit_generator.state = state["generator"]


class LinearDecayEpsilonGreedy(Explorer):
    r"""Random discrete actions with a probability that falls linearly, then stays.

    Args:
        start_epsilon: probability at step 0, in [0, 1].
        end_epsilon: probability from step ``duration`` on, in [0, 1].
        duration: number of steps, >= 1.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(self, start_epsilon: float = 1.0, end_epsilon: float = 0.1, duration: int = 1000000) -> None:
        _in_unit_interval(start_epsilon=start_epsilon, end_epsilon=end_epsilon)
        if (
            isinstance(duration, bool)
            or not isinstance(duration, int | float | np.number)
            or not 1 <= duration < np.inf
        ):
            raise ConfigError(f"duration is {duration!r}; it must be an int >= 1")
        self._start, self._end, self._duration = start_epsilon, end_epsilon, duration

    def compute_epsilon(self, step: int) -> float:
        """Probability of a random action at ``step``."""
        share = min(step / self._duration, 1.0)
        return self._start + (self._end - self._start) * share

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """See `Explorer.sample`."""
        greedy = np.asarray(algo.predict(x))
        random = self.generator.integers(algo.action_size, size=greedy.shape)
        explore = self.generator.random(greedy.shape) < self.compute_epsilon(step)
        return np.where(explore, random, greedy)


class ConstantEpsilonGreedy(LinearDecayEpsilonGreedy):
    """Random discrete actions with a constant probability.

    Args:
        epsilon: the probability, in [0, 1].
    """

    def __init__(self, epsilon: float) -> None:
        _in_unit_interval(epsilon=epsilon)
        super().__init__(epsilon, epsilon, 1)


class NormalNoise(Explorer):
    """Gaussian noise on greedy continuous actions, clipped to the action bounds.

    The bounds are those of the environment; outside of a loop, those of the algorithm's action scaler, or else [-1, 1].

    Args:
        mean: mean of the noise, in the environment's units.
        std: its standard deviation, >= 0.
    """

    def __init__(self, mean: float = 0.0, std: float = 0.1) -> None:
        for name, value, low in (("mean", mean, -np.inf), ("std", std, 0.0)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise ConfigError(f"{name} is {value!r:.80}; it must be a number")
            if not (np.isfinite(value) and value >= low):
                raise ConfigError(f"{name} is {value!r}; it must be finite" + (" and >= 0" if low == 0.0 else ""))
        self._mean, self._std = mean, std

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """See `Explorer.sample`."""
        greedy = np.asarray(algo.predict(x))
        noise = self.generator.normal(self._mean, self._std, size=greedy.shape)
        return np.clip(greedy + noise, *self._bounds(algo)).astype(greedy.dtype)

    def _bounds(self, algo: Any) -> tuple[Any, Any]:
        if isinstance(self.action_space, spaces.Box):
            return self.action_space.low, self.action_space.high
        scaler: Any = getattr(algo, "action_scaler", None)
        if getattr(scaler, "minimum", None) is not None:
            return np.asarray(scaler.minimum), np.asarray(scaler.maximum)
        return -1.0, 1.0


def _in_unit_interval(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value!r}; it must be a number in [0, 1]")
