"""Observation scalers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from birl.checks import check
from birl.errors import ConfigError, ShapeError
from birl.files.serializable import Serializable
from birl.preprocessing.base import Affine, MinMax, Scaler, Steps, as_float
from birl.types import Array, GymEnv, Shape, Tree, tree_map, without_mask


class ObservationScaler(Scaler, Serializable):
    """Base class of observation scalers. Define your own with ``class Mine(ObservationScaler, type="mine")``."""

    _quantity = "observation"

    def update(self, observations: Tree) -> None:
        """Update the statistics with observations ``[n, *shape]``, if the scaler is `running`."""


register_observation_scaler = ObservationScaler.register


@dataclass
class PixelObservationScaler(ObservationScaler, type="pixel"):
    """Scaler of bytes ``0 … 255`` to ``[0, 1]``, also in tuples and dicts of images."""

    def transform(self, x: Tree) -> Tree:
        """Divide by 255."""
        return tree_map(lambda leaf: as_float(leaf) / 255.0, x)

    def reverse_transform(self, x: Tree) -> Tree:
        """Convert back to uint8, rounded."""
        return tree_map(lambda leaf: (leaf * 255.0).round().clamp(0.0, 255.0).byte(), x)


@dataclass(eq=False)
class MinMaxObservationScaler(MinMax, ObservationScaler, type="min_max"):
    """Scaler of each feature from ``[minimum, maximum]`` to ``[-1, 1]``.

    A constant feature is only shifted, to 0.

    Args:
        minimum: lower bounds in the shape of one observation; ``None`` to fit them.
        maximum: upper bounds.
    """


@dataclass(eq=False)
class StandardObservationScaler(Affine, ObservationScaler, type="standard"):
    """Scaler that standardises each feature: ``(x - mean) / (std + eps)``.

    Args:
        mean: mean in the shape of one observation; ``None`` to fit it.
        std: standard deviation in the same shape.
        eps: positive constant that keeps constant features finite.
    """

    mean: Any = None
    std: Any = None
    eps: float = 1e-3

    _fitted = ("mean", "std")

    def __post_init__(self) -> None:
        check(f"{type(self).__name__}.eps", self.eps, float, above=0)
        super().__post_init__()

    def _constants(self) -> tuple[Array, ...]:
        return self.mean, self.std + self.eps


@dataclass
class TupleObservationScaler(ObservationScaler, type="tuple"):
    """One scaler for each part of tuple observations.

    Args:
        observation_scalers: a scaler for each part; ``None`` leaves a part unchanged.
    """

    observation_scalers: Sequence[ObservationScaler | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        scalers: Any = self.observation_scalers
        if not isinstance(scalers, list | tuple) or not all(isinstance(s, ObservationScaler | None) for s in scalers):
            raise ConfigError(f"observation_scalers is {scalers!r:.200}; it must list observation scalers and None")
        self.observation_scalers = list(scalers)

    @property
    def built(self) -> bool:
        """Whether all parameters of all parts are known."""
        return all(scaler is None or scaler.built for scaler in self.observation_scalers)

    @property
    def running(self) -> bool:
        """Whether the scaler of a part is running."""
        return any(scaler is not None and scaler.running for scaler in self.observation_scalers)

    def prepare(self, shape: Shape, gamma: float) -> None:
        if isinstance(shape, tuple) and len(shape) == len(self.observation_scalers):
            for scaler, part in zip(self.observation_scalers, shape, strict=True):
                if scaler is not None:
                    scaler.prepare(part, gamma)

    def update(self, observations: Tree) -> None:
        """Update the statistics of running scalers; see `RunningObservationScaler.update`."""
        self._check_parts(observations)
        for scaler, part in zip(self.observation_scalers, observations, strict=True):
            if scaler is not None and scaler.running:
                scaler.update(part)

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        """Fit the scalers that are not fitted yet, each with its part of the observations.

        A sequence is read once for each part; any other iterable is converted to a list first.
        """
        sequence = episodes if isinstance(episodes, Sequence) else list(episodes)
        for index, scaler in enumerate(self.observation_scalers):
            if scaler is not None and not scaler.built:
                scaler.fit_with_episodes(self._part(episode, index) for episode in sequence)

    def _part(self, episode: Steps, index: int) -> Steps:
        observations = without_mask(episode.observations)
        self._check_parts(observations)
        return cast(Steps, SimpleNamespace(observations=observations[index]))

    def fit_with_env(self, env: GymEnv) -> None:
        """Fit the scalers that are not fitted yet to the parts of a Tuple space.

        Raises:
            ConfigError, UnsupportedError: as the scalers of the parts do.
        """
        spaces: Tree = getattr(self._space(env), "spaces", None)
        self._check_parts(spaces)
        for space, scaler in zip(spaces, self.observation_scalers, strict=True):
            if scaler is not None and not scaler.built:
                scaler.fit_with_env(SimpleNamespace(observation_space=space))

    def transform(self, x: Tree) -> tuple[Tree, ...]:
        """Scale the parts of a tuple. Returns a tuple of float tensors."""
        return self._map_parts(x, lambda scaler, part: scaler.transform(part))

    def reverse_transform(self, x: Tree) -> tuple[Tree, ...]:
        """Compute the inverse of `transform`."""
        return self._map_parts(x, lambda scaler, part: scaler.reverse_transform(part))

    def _map_parts(self, x: Tree, function: Callable[[ObservationScaler, Tree], Tree]) -> tuple[Tree, ...]:
        self._check_parts(x)
        pairs = zip(x, self.observation_scalers, strict=True)
        return tuple(tree_map(as_float, part) if scaler is None else function(scaler, part) for part, scaler in pairs)

    def _check_parts(self, x: Tree) -> None:
        if not isinstance(x, list | tuple) or len(x) != len(self.observation_scalers):
            given = f"{len(x)} parts" if isinstance(x, list | tuple) else type(x).__name__
            raise ShapeError(
                f"TupleObservationScaler has {len(self.observation_scalers)} scalers, observations have {given}: give "
                "one scaler (or None) for each part of a tuple"
            )
