"""Explorers: noise and random choices on top of greedy actions."""

from __future__ import annotations

import abc
from typing import Any, Self

import numpy as np
from gymnasium import Space, spaces

from birl.actions import Discrete, actions_of, allowed_actions
from birl.checks import check
from birl.errors import ConfigError
from birl.seeding import new_generator
from birl.types import Array, State, Tree


class Explorer(abc.ABC):
    """Base of explorers. Subclasses draw from ``self.generator``, which is saved in checkpoints."""

    action_space: Space[Any] | None = None

    @property
    def generator(self) -> np.random.Generator:
        """The explorer's own source of randomness, made from `birl.seed` when it is first used."""
        if not hasattr(self, "_generator"):
            self._generator = new_generator()
        return self._generator

    def bind(self, action_space: Space[Any]) -> Self:
        """Tell the explorer the action space of a single environment. Loops call this before the first step."""
        self.action_space = action_space
        self.generator  # noqa: B018  made now, so that the order of generators does not depend on what comes first
        return self

    @abc.abstractmethod
    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """Choose actions.

        Args:
            algo: gives greedy actions (``algo.predict(x)``) and their size (``algo.action_size``).
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
    r"""Random discrete actions with a probability that falls linearly and then stays constant.

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
        """Probability of a random action at ``step``."""
        share = min(step / self._duration, 1.0)
        return self._start + (self._end - self._start) * share

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        greedy = np.asarray(algo.predict(x))
        actions = self._actions(algo)
        random = actions.sample(len(greedy), self.generator, allowed_actions(actions, x))
        explore = self.generator.random(len(greedy)) < self.compute_epsilon(step)
        return np.where(explore.reshape(-1, *(1,) * (greedy.ndim - 1)), random, greedy)


    def _actions(self, algo: Any) -> Any:
        if self.action_space is not None:
            return actions_of(self.action_space)
        spec = getattr(algo, "spec", None)  # only birl's algorithms have one
        return Discrete(algo.action_size) if spec is None else spec.actions


class ConstantEpsilonGreedy(LinearDecayEpsilonGreedy):
    """Random discrete actions with a constant probability.

    Args:
        epsilon: the probability, in [0, 1].
    """

    def __init__(self, epsilon: float) -> None:
        check("epsilon", epsilon, float, low=0, high=1)
        super().__init__(epsilon, epsilon, 1)


class NormalNoise(Explorer):
    """Gaussian noise on greedy continuous actions, clipped to the action bounds.

    The bounds are those of the environment; outside of a loop, those of the algorithm's action scaler, or else [-1, 1].

    Args:
        mean: mean of the noise, in the environment's units.
        std: its standard deviation, >= 0.
    """

    def __init__(self, mean: float = 0.0, std: float = 0.1) -> None:
        self._mean, self._std = check("mean", mean, float), check("std", std, float, low=0)

    def bind(self, action_space: Space[Any]) -> Self:
        if not isinstance(action_space, spaces.Box):
            raise ConfigError(
                f"explorer is NormalNoise, for quantities, but the actions are {action_space}: use "
                "LinearDecayEpsilonGreedy or ConstantEpsilonGreedy, for choices"
            )
        return super().bind(action_space)

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        greedy = np.asarray(algo.predict(x))
        noise = self.generator.normal(self._mean, self._std, size=greedy.shape)
        return np.clip(greedy + noise, *self._bounds(algo)).astype(greedy.dtype)

    def _bounds(self, algo: Any) -> tuple[Any, Any]:
        if isinstance(self.action_space, spaces.Box):
            return np.ravel(self.action_space.low), np.ravel(self.action_space.high)
        scaler: Any = getattr(algo, "action_scaler", None)
        if getattr(scaler, "minimum", None) is not None:
            return np.asarray(scaler.minimum), np.asarray(scaler.maximum)
        return -1.0, 1.0
