"""Bases of scalers: fitting in one pass, and affine maps in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from birl.checks import check
from birl.errors import (
    ConfigError,
    EmptyDataError,
    NonFiniteError,
    NotBuiltError,
    ShapeError,
    UnsupportedError,
)
from birl.files.serializable import decode
from birl.spaces.specs import single_spaces
from birl.types import MASK, Array, Shape, State, as_parts, tree_map, without_mask

_NUMBERS_AT_ONCE: Final = 2**20  # 8 MB in float64
_UNBOUNDED: Final = 1e30  # environments also write "no bound" as the largest float
_RELATIVE_RESOLUTION: Final = 1e-6  # of float32, rounded up: a narrower spread is a constant


class Scaler:
    """A reversible map. A ``fit`` method finds the parameters that were not given.

    ``transform`` and ``reverse_transform`` are plain torch operations, so that they can be differentiated,
    compiled and exported; they take any leading dimensions and never change their input.
    """

    _scaled: ClassVar[str]
    """What it scales, as episodes and environments call it."""

    def __post_init__(self) -> None:
        """Check the parameters that were given (scalers that are dataclasses)."""

    @property
    def built(self) -> bool:
        """Whether all parameters are known."""
        return True

    @property
    def running(self) -> bool:
        """Whether it moves with what is seen in environments; see `birl.preprocessing.running_scalers`."""
        return False

    def prepare(self, shape: Shape, gamma: float) -> None:
        """Take what an algorithm knows before it is built or fitted.

        Args:
            shape: of observations.
            gamma: discount factor of one step.

        Raises:
            ShapeError: if it cannot scale such observations.
        """

    def get_state(self) -> State:
        """Everything that `transform` and later moves depend on."""
        return self.serialize()["params"]  # type: ignore[attr-defined,no-any-return]

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.__init__(**decode(state))  # type: ignore[misc]

    def fit_with_dataset(self, dataset: Any) -> None:
        """Find the parameters from all episodes of a dataset."""
        if not hasattr(dataset, "episodes"):
            raise ConfigError(
                f"{type(self).__name__}.fit_with_dataset takes a dataset, got {dataset!r:.80}: give an MDPDataset or "
                "ReplayBuffer, or call fit_with_episodes(episodes)"
            )
        mine = type(self)
        if (
            mine.fit_with_episodes is Scaler.fit_with_episodes
            and mine.fit_with_transition_picker is not Scaler.fit_with_transition_picker
        ):  # written for d3rlpy
            self.fit_with_transition_picker(_Views(dataset.episodes, _for_picker), dataset.transition_picker)
        else:
            self.fit_with_episodes(dataset.episodes)

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        """Find the parameters from episodes, in one pass.

        Raises:
            EmptyDataError: if there is no step.
        """

    def fit_with_transition_picker(self, episodes: Sequence[Any], transition_picker: Any) -> None:
        """Find the parameters from all transitions, as d3rlpy does: for example of stacked frames or n-step rewards.

        The last step of an episode is left out if its next observation is unknown. `fit_with_episodes` counts it too.

        Args:
            episodes: episodes.
            transition_picker: makes the transitions.

        Raises:
            EmptyDataError: if there is no transition.
        """
        some = [episode for episode in episodes if episode.transition_count > 0]
        self.fit_with_episodes(_Views(some, lambda episode: _picked(_for_picker(episode), transition_picker)))

    def fit_with_trajectory_slicer(self, episodes: Sequence[Any], trajectory_slicer: Any) -> None:
        """Find the parameters from whole episodes as a slicer makes them. Every step counts once, as in d3rlpy.

        Args:
            episodes: episodes.
            trajectory_slicer: makes a window as long as the episode.

        Raises:
            EmptyDataError: if there is no step.
        """
        self.fit_with_episodes(_Views(episodes, lambda each: trajectory_slicer(each, each.size() - 1, each.size())))

    def fit_with_env(self, env: Any) -> None:
        """Find the parameters from the bounds of an environment's spaces.

        Raises:
            UnsupportedError: if bounds do not determine them.
        """
        if not self.built:
            raise UnsupportedError(
                f"{type(self).__name__} cannot be fitted with an environment: give its parameters, or fit it "
                "with data (fit_with_dataset, fit_with_episodes)"
            )

    def transform(self, x: Any) -> Any:
        """From the units of the data to those of the networks, as float tensors."""
        raise NotImplementedError

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`."""
        raise NotImplementedError

    def transform_numpy(self, x: Any) -> Any:
        """`transform` for numpy arrays."""
        return tree_map(lambda y: y.numpy(), self.transform(tree_map(_tensor, as_parts(x))))

    def reverse_transform_numpy(self, x: Any) -> Any:
        """`reverse_transform` for numpy arrays."""
        return tree_map(lambda y: y.numpy(), self.reverse_transform(tree_map(_tensor, as_parts(x))))

    def _values(self, episode: Any) -> Array:
        """The values of one episode to scale: ``[steps, …]``."""
        values: Array = getattr(episode, f"{self._scaled}s", None)  # type: ignore[assignment]
        if values is None:
            name = type(self).__name__
            raise ConfigError(f"{name} is fitted with episodes, got {episode!r:.80}: give dataset.episodes")
        return without_mask(values)  # type: ignore[no-any-return]

    def _space(self, env: Any) -> Any:
        """The (single) environment's space of these values."""
        space = getattr(env, f"single_{self._scaled}_space", getattr(env, f"{self._scaled}_space", None))
        if space is None:
            single_spaces(env)  # says what is wrong
        return without_mask(space.spaces) if isinstance(space, spaces.Dict) and MASK in space.spaces else space


class Fitted(Scaler):
    """Base of scalers with two parameters, which are given, or fitted, together."""

    _fitted: ClassVar[tuple[str, str]]
    """Their names, which are also names in `Statistics`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, second = (getattr(self, name) for name in self._fitted)
        if (first is None) != (second is None):
            raise ConfigError(f"{type(self).__name__} takes {' and '.join(self._fitted)} together, or neither")
        if first is not None:
            self._set(first, second)

    @property
    def built(self) -> bool:
        return getattr(self, self._fitted[0]) is not None

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        statistics = row_statistics(self._values(episode) for episode in episodes)
        self._set(*(getattr(statistics, name) for name in self._fitted))

    def _found(self) -> tuple[Any, Any]:
        """Both parameters."""
        if not self.built:
            raise NotBuiltError(
                f"{type(self).__name__} has no parameters yet: fit it (fit_with_dataset, fit_with_episodes, "
                "fit_with_env) or give them when it is made"
            )
        first, second = self._fitted
        return getattr(self, first), getattr(self, second)

    def _set(self, *values: Any) -> None:
        """Check and set both parameters."""
        first, second = map(self._parameter, self._fitted, values)
        low, high = self._fitted
        owner, shape = type(self).__name__, np.shape(first)
        if shape != np.shape(second):
            raise ConfigError(f"{owner}.{high} has shape {np.shape(second)}; it must have that of {low}, {shape}")
        if high == "std" and np.any(second < 0):
            raise ConfigError(f"{owner}.std is {second}; it must be >= 0")
        if high != "std" and np.any(first > second):
            raise ConfigError(f"{owner}.{low} is {first}; it must be <= {high}, which is {second}")
        setattr(self, low, first)
        setattr(self, high, second)

    def _parameter(self, name: str, value: Any) -> Any:
        """A parameter in its stored form: a finite number.

        Raises:
            ConfigError: if it is none.
        """
        return check(f"{type(self).__name__}.{name}", value, float)


class _Views(Sequence[Any]):
    """Episodes seen through a function, one at a time."""

    def __init__(self, episodes: Sequence[Any], view: Callable[[Any], Any]) -> None:
        self._episodes, self._view = episodes, view

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._view(episode) for episode in self._episodes[index]]
        return self._view(self._episodes[index])


def _for_picker(episode: Any) -> Any:
    """The episode with a row for its final observation, if known; the action there is 0."""
    final = getattr(episode, "final_observation", None)
    if final is None:
        return episode
    longer = copy(episode)
    longer.observations = tree_map(
        lambda rows, row: np.concatenate([rows, np.asarray(row)[None]]), episode.observations, final
    )
    longer.actions = np.concatenate([episode.actions, np.zeros_like(episode.actions[:1])])
    return longer


def _picked(episode: Any, picker: Any) -> Any:
    """All transitions of an episode, as an episode of their observations, actions and rewards."""
    transitions = [picker(episode, index) for index in range(episode.transition_count)]
    observations = [transition.observation for transition in transitions]
    return SimpleNamespace(
        observations=tree_map(lambda *leaves: np.stack(leaves), *observations),
        actions=np.stack([transition.action for transition in transitions]),
        rewards=np.stack([transition.reward for transition in transitions]),
    )


def _tensor(array: Any) -> Tensor:
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"values of dtype {array.dtype} were given; they must be numbers: give an array of them")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_float(x: Tensor) -> Tensor:
    """float64 unchanged, everything else as float32."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


Moments: TypeAlias = tuple[int, Any, Any]
"""Number, mean and sum of squared deviations of rows."""


@dataclass(frozen=True)
class Statistics:
    """Number, mean, population standard deviation and bounds of rows, in float64."""

    count: int
    mean: Array
    std: Array
    minimum: Array
    maximum: Array


def row_statistics(arrays: Iterable[Any]) -> Statistics:
    """Statistics over the rows of all ``arrays`` ``[rows, …]`` in one pass, a million numbers at a time.

    Raises:
        EmptyDataError: if there are none.
        UnsupportedError: for tuples and dicts of arrays.
        ShapeError: if the arrays do not have rows of one shape.
    """
    count, mean, squares = 0, np.array(0.0), np.array(0.0)
    minimum, maximum = np.array(np.inf), np.array(-np.inf)
    for rows in blocks(arrays):
        if count and rows.shape[1:] != mean.shape:
            raise ShapeError(f"rows of shape {rows.shape[1:]} among rows of shape {mean.shape}")
        own = rows.mean(axis=0)
        if not np.isfinite(own).all():
            raise NonFiniteError("the data to fit a scaler with holds NaN or infinity: clean it first")
        deviation = ((rows - own) ** 2).sum(axis=0)
        count, mean, squares = merged((count, mean, squares), (len(rows), own, deviation))
        minimum, maximum = np.minimum(minimum, rows.min(axis=0)), np.maximum(maximum, rows.max(axis=0))
    if not count:
        raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")
    return Statistics(count, mean, np.sqrt(squares / count), minimum, maximum)


def merged(one: Moments, other: Moments) -> Moments:
    """Number, mean and sum of squared deviations of two sets of rows together, which is stable.

    Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance: analysis and recommendations".
    """
    (before, mean, squares), (more, own, deviation) = one, other
    difference, count = own - mean, before + more
    apart = difference**2 * (before * more / count) if before else 0.0
    return count, mean + difference * (more / count), squares + deviation + apart


def blocks(arrays: Iterable[Any]) -> Iterator[Array]:
    """Rows of all arrays in float64, a million numbers at a time."""
    for array in arrays:
        if isinstance(array, tuple | dict):
            raise UnsupportedError(
                "this scaler is for observations of one array each, the data has tuples or dicts of arrays"
            )
        if isinstance(array, Tensor):
            array = array.cpu().numpy()
        count = max(_NUMBERS_AT_ONCE // max(math.prod(array.shape[1:]), 1), 1)
        for start in range(0, len(array), count):
            yield np.asarray(array[start : start + count], dtype=np.float64)


class Affine(Fitted):
    """``transform(x) = (x - shift) / scale``, elementwise over the last dimensions.

    Parameters are float64 arrays of one shape. Those of shape ``[n, …]`` also scale stacks of frames ``[k * n, …]``,
    each frame alike.
    """

    _cache: dict[Any, tuple[Tensor, ...]]
    # It is derived: `vars` is without it, and so are the digests by which compiled updates are found.
    __slots__ = ("_cache",)

    def _constants(self) -> tuple[Array, ...]:
        """The shift, a scale without zeros, and the subclass's further constants: arrays of one shape."""
        raise NotImplementedError

    def _parameter(self, name: str, value: Any) -> Array:
        given = f"{type(self).__name__}.{name} is {value!r:.100}"
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{given}; it must be an array of numbers") from error
        if not np.isfinite(array).all():
            raise ConfigError(f"{given}; it must be finite everywhere")
        return array

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "_cache", {})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.serialize() == other.serialize()  # type: ignore[attr-defined]

    def transform(self, x: Any) -> Any:
        """From the units of the data to those of the networks: float tensor of the shape of ``x``."""
        x = as_float(x)
        shift, scale, *_ = self._tensors(x)
        return (x - shift) / scale

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`."""
        x = as_float(x)
        shift, scale, *_ = self._tensors(x)
        return x * scale + shift

    def _tensors(self, like: Tensor) -> tuple[Tensor, ...]:
        """The result of `_constants` on the device and in the dtype of ``like``, once for each frame."""
        own = self._found()[0].shape
        # int: while TorchScript traces, sizes are tensors.
        given = tuple(int(size) for size in like.shape[max(like.dim() - len(own), 0) :]) if own else ()
        if len(given) != len(own) or given[1:] != own[1:] or (own and given[0] % own[0] != 0):
            raise ShapeError(
                f"{type(self).__name__} is for values of shape {own} or stacks of them, got {tuple(like.shape)}"
            )
        key = (like.device, like.dtype, given)
        tensors = self._cache.get(key)
        if tensors is None:
            repeats = (given[0] // own[0],) + (1,) * (len(given) - 1) if given else ()
            tiled = (np.tile(array, repeats) for array in self._constants())
            tensors = tuple(torch.as_tensor(array).to(like.device, like.dtype) for array in tiled)
            if not torch.compiler.is_compiling():  # tensors made during compilation are fake and must not be kept
                self._cache[key] = tensors
        return tensors


@dataclass(eq=False)
class MinMax(Affine):
    """Map ``[minimum, maximum]`` to ``[-1, 1]``.

    Args:
        minimum: lower bounds, of the shape of one observation or action, or ``None`` to be fitted.
        maximum: upper bounds.
    """

    minimum: Any = None
    maximum: Any = None

    _fitted = ("minimum", "maximum")

    def fit_with_env(self, env: Any) -> None:
        """Take the bounds of the environment's space.

        Raises:
            ConfigError: if the space is not a box with finite bounds.
        """
        space = self._space(env)
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if low is None or high is None or not (np.abs([low, high]) < _UNBOUNDED).all():
            raise ConfigError(
                f"{type(self).__name__} needs a box with finite bounds, the environment has {space}: give "
                "minimum and maximum, or fit it with data"
            )
        self._set(low, high)

    def _constants(self) -> tuple[Array, ...]:
        centre, half = (self.maximum + self.minimum) / 2, (self.maximum - self.minimum) / 2
        constant = half <= np.maximum(_RELATIVE_RESOLUTION * np.abs(centre), np.finfo(np.float32).tiny)
        scale = np.where(constant, 1.0, half)
        return centre, scale
