"""Observation scalers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


class _PartScaler(ObservationScaler):
    """Base of scalers with a scaler for each part of an observation."""

    def _scalers(self) -> dict[Any, ObservationScaler | None]:
        """Return the scalers by name or index of a part."""
        raise NotImplementedError

    def _parts(self, x: Tree) -> dict[Any, Tree]:
        """Return the parts of observations by name or index.

        Raises:
            ShapeError: if they have other parts.
        """
        raise NotImplementedError

    @property
    def _present(self) -> list[ObservationScaler]:
        return [scaler for scaler in self._scalers().values() if scaler is not None]

    @property
    def built(self) -> bool:
        """Whether all parameters of all parts are known."""
        return all(scaler.built for scaler in self._present)

    @property
    def running(self) -> bool:
        """Whether the scaler of a part is running."""
        return any(scaler.running for scaler in self._present)

    def update(self, observations: Tree) -> None:
        """Update the statistics of running scalers; see `RunningObservationScaler.update`."""
        parts = self._parts(observations)
        for key, scaler in self._scalers().items():
            if scaler is not None and scaler.running:
                scaler.update(parts[key])

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        """Fit the scalers that are not fitted yet, each with its part of the observations.

        A sequence is read once for each part; any other iterable is converted to a list first.
        """
        sequence = episodes if isinstance(episodes, Sequence) else list(episodes)
        for key, scaler in self._scalers().items():
            if scaler is not None and not scaler.built:
                scaler.fit_with_episodes(self._part(episode, key) for episode in sequence)

    def _part(self, episode: Steps, key: str | int) -> Steps:
        return cast(Steps, SimpleNamespace(observations=self._parts(without_mask(episode.observations))[key]))

    def fit_with_env(self, env: GymEnv) -> None:
        """Fit the scalers that are not fitted yet to the parts of the observation space.

        Raises:
            ConfigError, UnsupportedError: as the scalers of the parts do.
        """
        space = self._space(env)
        parts = self._parts(space if isinstance(space, dict) else getattr(space, "spaces", None))
        for key, scaler in self._scalers().items():
            if scaler is not None and not scaler.built:
                scaler.fit_with_env(SimpleNamespace(observation_space=parts[key]))

    def _map_parts(self, x: Tree, function: Callable[[ObservationScaler, Tree], Tree]) -> dict[Any, Tree]:
        scalers = self._scalers()
        return {
            key: tree_map(as_float, part) if (scaler := scalers.get(key)) is None else function(scaler, part)
            for key, part in self._parts(x).items()
        }


@dataclass
class TupleObservationScaler(_PartScaler, type="tuple"):
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

    def prepare(self, shape: Shape, gamma: float) -> None:
        if isinstance(shape, tuple) and len(shape) == len(self.observation_scalers):
            for scaler, part in zip(self.observation_scalers, shape, strict=True):
                if scaler is not None:
                    scaler.prepare(part, gamma)

    def transform(self, x: Tree) -> tuple[Tree, ...]:
        """Scale the parts of a tuple. Returns a tuple of float tensors."""
        return tuple(self._map_parts(x, lambda scaler, part: scaler.transform(part)).values())

    def reverse_transform(self, x: Tree) -> tuple[Tree, ...]:
        """Compute the inverse of `transform`."""
        return tuple(self._map_parts(x, lambda scaler, part: scaler.reverse_transform(part)).values())

    def _scalers(self) -> dict[Any, ObservationScaler | None]:
        return dict(enumerate(self.observation_scalers))

    def _parts(self, x: Tree) -> dict[Any, Tree]:
        if not isinstance(x, list | tuple) or len(x) != len(self.observation_scalers):
            given = f"{len(x)} parts" if isinstance(x, list | tuple) else type(x).__name__
            named = isinstance(x, Mapping)
            advice = "use DictObservationScaler, for parts" if named else "give one scaler (or None) for each part"
            raise ShapeError(
                f"TupleObservationScaler has {len(self.observation_scalers)} scalers, observations have {given}: "
                f"{advice} of a {'dict' if named else 'tuple'}"
            )
        return dict(enumerate(x))


@dataclass
class DictObservationScaler(_PartScaler, type="dict"):
    """Scalers for parts of dict observations, such as a standardised vector and a camera image divided by 255.

    Args:
        observation_scalers: scalers by the names of parts. Parts that are not named, or have ``None``, stay unchanged.
    """

    observation_scalers: Mapping[str, ObservationScaler | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scalers: Any = self.observation_scalers
        right = isinstance(scalers, Mapping) and all(
            isinstance(name, str) and isinstance(scaler, ObservationScaler | None) for name, scaler in scalers.items()
        )
        if not right:
            raise ConfigError(
                f"observation_scalers is {scalers!r:.200}; it must be a dict of observation scalers by the names of "
                "parts: give {'name': StandardObservationScaler()}"
            )
        self.observation_scalers = dict(scalers)

    def prepare(self, shape: Shape, gamma: float) -> None:
        parts = self._parts(shape)
        for name, scaler in self.observation_scalers.items():
            if scaler is not None:
                scaler.prepare(parts[name], gamma)

    def transform(self, x: Tree) -> dict[str, Tree]:
        """Scale the parts of a dict. Returns a dict of float tensors."""
        return self._map_parts(x, lambda scaler, part: scaler.transform(part))

    def reverse_transform(self, x: Tree) -> dict[str, Tree]:
        """Compute the inverse of `transform`."""
        return self._map_parts(x, lambda scaler, part: scaler.reverse_transform(part))

    def _scalers(self) -> dict[Any, ObservationScaler | None]:
        return dict(self.observation_scalers)

    def _parts(self, x: Tree) -> dict[Any, Tree]:
        parts = dict(x) if isinstance(x, Mapping) else {}
        missing = [name for name in self.observation_scalers if name not in parts]
        if missing or not isinstance(x, Mapping):
            given = f"the parts {', '.join(map(repr, parts))}" if parts else f"no names, but are {type(x).__name__}"
            raise ShapeError(
                f"DictObservationScaler has scalers for {', '.join(map(repr, self.observation_scalers))}, observations "
                f"have {given}: name parts of the observations"
            )
        return parts
