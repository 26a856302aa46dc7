"""Observation scalers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from birl.checks import check
from birl.errors import ConfigError, ShapeError
from birl.files.serializable import Serializable
from birl.preprocessing.base import Affine, MinMax, Scaler, as_float
from birl.types import Array, tree_map, without_mask


class ObservationScaler(Scaler, Serializable):
    """Base of observation scalers. Your own is ``class Mine(ObservationScaler, type="mine")``."""

    _scaled = "observation"

    def update(self, observations: Any) -> None:
        """Move with steps ``[n, *shape]``, if it is `running`."""


register_observation_scaler = ObservationScaler.register


@dataclass
class PixelObservationScaler(ObservationScaler, type="pixel"):
    """Map bytes ``0 … 255`` to ``[0, 1]``; tuples and dicts of images too."""

    def transform(self, x: Any) -> Any:
        """Divide by 255."""
        return tree_map(lambda leaf: as_float(leaf) / 255.0, x)

    def reverse_transform(self, x: Any) -> Any:
        """Back to uint8, rounded."""
        return tree_map(lambda leaf: (leaf * 255.0).round().clamp(0.0, 255.0).byte(), x)


@dataclass(eq=False)
class MinMaxObservationScaler(MinMax, ObservationScaler, type="min_max"):
    """Map ``[minimum, maximum]`` to ``[-1, 1]``, each feature by itself.

    A feature that is constant is only shifted, to 0.

    Args:
        minimum: lower bounds, of the shape of one observation, or ``None`` to be fitted.
        maximum: upper bounds.
    """


@dataclass(eq=False)
class StandardObservationScaler(Affine, ObservationScaler, type="standard"):
    """Standardise: ``(x - mean) / (std + eps)``, each feature by itself.

    Args:
        mean: of the shape of one observation, or ``None`` to be fitted.
        std: standard deviation, likewise.
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
        """Whether a part's scaler moves."""
        return any(scaler is not None and scaler.running for scaler in self.observation_scalers)

    def prepare(self, shape: Any, gamma: float) -> None:
        if isinstance(shape, tuple) and len(shape) == len(self.observation_scalers):
            for scaler, part in zip(self.observation_scalers, shape, strict=True):
                if scaler is not None:
                    scaler.prepare(part, gamma)

    def update(self, observations: Any) -> None:
        """Move the scalers of the parts that do; see `RunningObservationScaler.update`."""
        self._check(observations)
        for scaler, part in zip(self.observation_scalers, observations, strict=True):
            if scaler is not None and scaler.running:
                scaler.update(part)

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        """Fit the scalers of the parts that are not fitted yet, each with its own part of all steps.

        A sequence is read once for each part; any other iterable is first made a list.
        """
        sequence = episodes if isinstance(episodes, Sequence) else list(episodes)
        for index, scaler in enumerate(self.observation_scalers):
            if scaler is not None and not scaler.built:
                scaler.fit_with_episodes(self._part(episode.observations, index) for episode in sequence)

    def _part(self, observations: Any, index: int) -> Any:
        observations = without_mask(observations)
        self._check(observations)
        return SimpleNamespace(observations=observations[index])

    def fit_with_env(self, env: Any) -> None:
        """Fit the scalers that are not fitted yet to the parts of a Tuple space.

        Raises:
            ConfigError, UnsupportedError: as the parts' scalers do.
        """
        spaces: Any = getattr(self._space(env), "spaces", None)
        self._check(spaces)
        for space, scaler in zip(spaces, self.observation_scalers, strict=True):
            if scaler is not None and not scaler.built:
                scaler.fit_with_env(SimpleNamespace(observation_space=space))

    def transform(self, x: Any) -> Any:
        """From the units of the data to those of the networks: a tuple of float tensors."""
        return self._each(x, lambda scaler, part: scaler.transform(part))

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`."""
        return self._each(x, lambda scaler, part: scaler.reverse_transform(part))

    def _each(self, x: Any, function: Callable[[ObservationScaler, Any], Any]) -> tuple[Any, ...]:
        self._check(x)
        pairs = zip(x, self.observation_scalers, strict=True)
        return tuple(tree_map(as_float, part) if scaler is None else function(scaler, part) for part, scaler in pairs)

    def _check(self, x: Any) -> None:
        if not isinstance(x, list | tuple) or len(x) != len(self.observation_scalers):
            given = f"{len(x)} parts" if isinstance(x, list | tuple) else type(x).__name__
            raise ShapeError(
                f"TupleObservationScaler has {len(self.observation_scalers)} scalers, observations have {given}: give "
                "one scaler (or None) for each part of a tuple"
            )
