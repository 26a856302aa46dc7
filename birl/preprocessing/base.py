"""Base classes of scalers, which are fitted in one pass over the data, and affine maps in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
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
from birl.types import MASK, Array, GymEnv, Observation, Shape, State, Tree, as_parts, tree_map, without_mask

_BLOCK_SIZE: Final = 2**20  # numbers; 8 MB in float64
_UNBOUNDED: Final = 1e30  # some environments use the largest float for "no bound"
_RELATIVE_RESOLUTION: Final = 1e-6  # of float32, rounded up: a narrower range counts as constant

T = TypeVar("T")


class Transition(Protocol):
    """The part of a transition that scalers read."""

    @property
    def observation(self) -> Observation: ...
    @property
    def action(self) -> Array: ...
    @property
    def reward(self) -> Array: ...


class Steps(Protocol):
    """The part of an episode, or of a window of one, that scalers read: arrays ``[T, …]``."""

    @property
    def observations(self) -> Observation: ...
    @property
    def actions(self) -> Array: ...
    @property
    def rewards(self) -> Array: ...


class EpisodeSteps(Steps, Protocol):
    """The part of a whole episode that scalers read."""

    @property
    def transition_count(self) -> int: ...
    def size(self) -> int: ...


TransitionPicker: TypeAlias = Callable[[Any, int], Transition]
TrajectorySlicer: TypeAlias = Callable[[Any, int, int], Steps]


class Dataset(Protocol):
    """The part of a dataset that scalers read."""

    @property
    def episodes(self) -> Sequence[EpisodeSteps]: ...
    @property
    def transition_picker(self) -> TransitionPicker: ...


class Scaler:
    """A reversible map. The ``fit`` methods find the parameters that were not given.

    ``transform`` and ``reverse_transform`` are plain torch operations, so that they can be differentiated, compiled and
    exported. They accept any leading dimensions and never change their input.
    """

    _quantity: ClassVar[str]
    """The scaled quantity by its name in transitions and environments: ``"observation"``, for example."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class that is fitted but says that it is built, so that it never would be fitted."""
        fits = [
            name for name in vars(Scaler) if name.startswith("fit_") and getattr(cls, name) is not vars(Scaler)[name]
        ]
        if fits and cls.built is Scaler.built:
            raise ConfigError(
                f"{cls.__name__} has {', '.join(fits)} but no property built, without which it is never fitted: let "
                "built return whether the parameters are known, such as self.mean is not None"
            )
        super().__init_subclass__(**kwargs)

    def __post_init__(self) -> None:
        """Check the given parameters (of scalers that are dataclasses)."""

    @property
    def built(self) -> bool:
        """Whether all parameters are known."""
        return True

    @property
    def running(self) -> bool:
        """Whether environment steps update its statistics; see `birl.preprocessing.running_scalers`."""
        return False

    def prepare(self, shape: Shape, gamma: float) -> None:
        """Receive values that the algorithm knows before the scaler is built or fitted.

        Args:
            shape: shape of observations.
            gamma: discount factor of one step.

        Raises:
            ShapeError: if it cannot scale observations of this shape.
        """

    def get_state(self) -> State:
        """Return everything that `transform` and later updates depend on."""
        return self.serialize()["params"]  # type: ignore[attr-defined,no-any-return]

    def set_state(self, state: State) -> None:
        """Restore the result of `get_state`."""
        self.__init__(**decode(state))  # type: ignore[misc]

    def fit_with_dataset(self, dataset: Dataset) -> None:
        """Find the parameters from all episodes of a dataset."""
        if not hasattr(dataset, "episodes"):
            raise ConfigError(
                f"{type(self).__name__}.fit_with_dataset takes a dataset, got {dataset!r:.80}: give an MDPDataset or "
                "ReplayBuffer, or call fit_with_episodes(episodes)"
            )
        cls = type(self)
        if (
            cls.fit_with_episodes is Scaler.fit_with_episodes
            and cls.fit_with_transition_picker is not Scaler.fit_with_transition_picker
        ):  # a class written for d3rlpy
            episodes = _MappedSequence(dataset.episodes, _with_final_row)
            self.fit_with_transition_picker(episodes, dataset.transition_picker)
        else:
            self.fit_with_episodes(dataset.episodes)

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        """Find the parameters from episodes, in one pass.

        Raises:
            EmptyDataError: if there is no step.
        """

    def fit_with_transition_picker(self, episodes: Sequence[EpisodeSteps], transition_picker: TransitionPicker) -> None:
        """Find the parameters from all transitions, as d3rlpy does, for example of stacked frames or n-step rewards.

        The last step of an episode is skipped if its next observation is unknown; `fit_with_episodes` counts it.

        Args:
            episodes: episodes.
            transition_picker: makes the transitions.

        Raises:
            EmptyDataError: if there is no transition.
        """
        usable = [episode for episode in episodes if episode.transition_count > 0]
        self.fit_with_episodes(
            _MappedSequence(usable, lambda episode: _picked_steps(_with_final_row(episode), transition_picker))
        )

    def fit_with_trajectory_slicer(self, episodes: Sequence[EpisodeSteps], trajectory_slicer: TrajectorySlicer) -> None:
        """Find the parameters from whole episodes as a slicer makes them. Each step counts once, as in d3rlpy.

        Args:
            episodes: episodes.
            trajectory_slicer: makes a window as long as the episode.

        Raises:
            EmptyDataError: if there is no step.
        """
        self.fit_with_episodes(
            _MappedSequence(episodes, lambda each: trajectory_slicer(each, each.size() - 1, each.size()))
        )

    def fit_with_env(self, env: GymEnv) -> None:
        """Find the parameters from the bounds of an environment's spaces.

        Raises:
            UnsupportedError: if bounds do not determine the parameters.
        """
        if not self.built:
            raise UnsupportedError(
                f"{type(self).__name__} cannot be fitted with an environment: give its parameters, fit it with "
                "data (fit_with_dataset, fit_with_episodes), or take one that learns during the run, such as "
                "RunningObservationScaler (running)"
            )

    def transform(self, x: Tree) -> Tree:
        """Scale tensors. Returns float tensors."""
        raise NotImplementedError

    def reverse_transform(self, x: Tree) -> Tree:
        """Compute the inverse of `transform`."""
        raise NotImplementedError

    def transform_numpy(self, x: Tree) -> Tree:
        """Apply `transform` to numpy arrays."""
        return tree_map(lambda y: y.numpy(), self.transform(tree_map(_tensor, as_parts(x))))

    def reverse_transform_numpy(self, x: Tree) -> Tree:
        """Apply `reverse_transform` to numpy arrays."""
        return tree_map(lambda y: y.numpy(), self.reverse_transform(tree_map(_tensor, as_parts(x))))

    def _values(self, episode: Steps) -> Tree:
        """Return the values of an episode that it scales: ``[steps, …]``."""
        values: Tree = getattr(episode, f"{self._quantity}s", None)
        if values is None:
            name = type(self).__name__
            raise ConfigError(f"{name} is fitted with episodes, got {episode!r:.80}: give dataset.episodes")
        return without_mask(values)

    def _space(self, env: GymEnv) -> Tree:
        """Return the space of the values that it scales, of the environment or of one of a vector environment."""
        space = getattr(env, f"single_{self._quantity}_space", getattr(env, f"{self._quantity}_space", None))
        if space is None:
            single_spaces(env)  # raises an error that says what is missing
        return without_mask(space.spaces) if isinstance(space, spaces.Dict) and MASK in space.spaces else space


class Fitted(Scaler):
    """Base class of scalers with two parameters, which are given or fitted together."""

    _fitted: ClassVar[tuple[str, str]]
    """Names of the parameters, which are also names in `Statistics`."""

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

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        statistics = row_statistics(self._values(episode) for episode in episodes)
        self._set(*(getattr(statistics, name) for name in self._fitted))

    def _parameters(self) -> tuple[Any, Any]:
        """Return both parameters."""
        if not self.built:
            raise NotBuiltError(
                f"{type(self).__name__} has no parameters yet: fit it (fit_with_dataset, fit_with_episodes, "
                "fit_with_env) or give them to the constructor"
            )
        first, second = self._fitted
        return getattr(self, first), getattr(self, second)

    def _set(self, *values: npt.ArrayLike) -> None:
        """Check and set both parameters."""
        first, second = map(self._checked_parameter, self._fitted, values)
        low, high = self._fitted
        owner, shape = type(self).__name__, np.shape(first)
        if shape != np.shape(second):
            raise ConfigError(f"{owner}.{high} has shape {np.shape(second)}; it must have the shape of {low}, {shape}")
        if high == "std" and np.any(second < 0):
            raise ConfigError(f"{owner}.std is {second}; it must be >= 0")
        if high != "std" and np.any(first > second):
            raise ConfigError(f"{owner}.{low} is {first}; it must be <= {high}, which is {second}")
        setattr(self, low, first)
        setattr(self, high, second)

    def _checked_parameter(self, name: str, value: npt.ArrayLike) -> float | Array:
        """Return a parameter in its stored form, a finite number.

        Raises:
            ConfigError: if it is anything else.
        """
        return check(f"{type(self).__name__}.{name}", value, float)


class _MappedSequence(Sequence[T]):
    """The results of a function for episodes, computed on access."""

    def __init__(self, episodes: Sequence[EpisodeSteps], function: Callable[[EpisodeSteps], T]) -> None:
        self._episodes, self._function = episodes, function

    def __len__(self) -> int:
        return len(self._episodes)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._function(episode) for episode in self._episodes[index]]
        return self._function(self._episodes[index])


def _with_final_row(episode: EpisodeSteps) -> EpisodeSteps:
    """Append a row with the final observation, if known, and the action 0 to an episode."""
    final = getattr(episode, "final_observation", None)
    if final is None:
        return episode
    longer: Any = copy(episode)
    longer.observations = tree_map(
        lambda rows, row: np.concatenate([rows, np.asarray(row)[None]]), episode.observations, final
    )
    longer.actions = np.concatenate([episode.actions, np.zeros_like(episode.actions[:1])])
    return cast(EpisodeSteps, longer)


def _picked_steps(episode: EpisodeSteps, picker: TransitionPicker) -> Steps:
    """Return the observations, actions and rewards of all transitions of an episode."""
    transitions = [picker(episode, index) for index in range(episode.transition_count)]
    observations = [transition.observation for transition in transitions]
    return SimpleNamespace(
        observations=tree_map(lambda *leaves: np.stack(leaves), *observations),
        actions=np.stack([transition.action for transition in transitions]),
        rewards=np.stack([transition.reward for transition in transitions]),
    )


def _tensor(values: npt.ArrayLike) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"values of dtype {array.dtype} were given; they must be numbers: give an array of them")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_float(x: Tensor) -> Tensor:
    """Convert to float32, except for float64, which stays."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


Sums: TypeAlias = tuple[int, Array, Array]
"""Count, mean and sum of squared deviations of rows."""


@dataclass(frozen=True)
class Statistics:
    """Count, mean, population standard deviation, minimum and maximum of rows, in float64."""

    count: int
    mean: Array
    std: Array
    minimum: Array
    maximum: Array


def row_statistics(arrays: Iterable[Tree]) -> Statistics:
    """Compute statistics over the rows of all ``arrays`` ``[rows, …]`` in one pass, a million numbers at a time.

    Raises:
        EmptyDataError: if there are no rows.
        UnsupportedError: for tuples and dicts of arrays.
        ShapeError: if the arrays do not have rows of one shape.
    """
    count, mean, squares = 0, np.array(0.0), np.array(0.0)
    minimum, maximum = np.array(np.inf), np.array(-np.inf)
    for rows in row_blocks(arrays):
        if count and rows.shape[1:] != mean.shape:
            raise ShapeError(
                f"the data have rows of shape {rows.shape[1:]} among rows of shape {mean.shape}; all must have the "
                "same shape: fit the scaler with episodes of one environment"
            )
        block_mean = rows.mean(axis=0)
        if not np.isfinite(block_mean).all():
            raise NonFiniteError("the data to fit a scaler with holds NaN or infinity: clean it first")
        deviation = ((rows - block_mean) ** 2).sum(axis=0)
        count, mean, squares = merge_sums((count, mean, squares), (len(rows), block_mean, deviation))
        minimum, maximum = np.minimum(minimum, rows.min(axis=0)), np.maximum(maximum, rows.max(axis=0))
    if not count:
        raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")
    return Statistics(count, mean, np.sqrt(squares / count), minimum, maximum)


def merge_sums(one: Sums, other: Sums) -> Sums:
    """Compute count, mean and sum of squared deviations of the union of two sets of rows, in a stable way.

    Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance: analysis and recommendations".
    """
    (before, mean, squares), (more, other_mean, deviation) = one, other
    difference, count = other_mean - mean, before + more
    between = difference**2 * (before * more / count) if before else 0.0
    return count, mean + difference * (more / count), squares + deviation + between


def scaler_of_parts(observation: tuple[Any, ...] | dict[str, Any]) -> str:
    """Return a call that makes a scaler with one for each part of the observations."""
    if isinstance(observation, dict):
        return f"DictObservationScaler({{{', '.join(f'{name!r}: …' for name in observation)}}})"
    return f"TupleObservationScaler([{', '.join('…' for _ in observation)}])"


def row_blocks(arrays: Iterable[Tree]) -> Iterator[Array]:
    """Yield the rows of all arrays in float64, a million numbers at a time."""
    for array in arrays:
        if isinstance(array, tuple | dict):
            raise UnsupportedError(
                f"this scaler is for observations of one array each, but the data has tuples or dicts of arrays: "
                f"give each part its own, {scaler_of_parts(array)}, or use a RunningObservationScaler"
            )
        if isinstance(array, Tensor):
            array = array.cpu().numpy()
        count = max(_BLOCK_SIZE // max(math.prod(array.shape[1:]), 1), 1)
        for start in range(0, len(array), count):
            yield np.asarray(array[start : start + count], dtype=np.float64)


class Affine(Fitted):
    """``transform(x) = (x - shift) / scale``, elementwise over the last dimensions.

    Parameters are float64 arrays of the same shape. Parameters ``[n, …]`` also scale stacks of frames ``[k * n, …]``,
    every frame alike.
    """

    _cache: dict[Hashable, tuple[Tensor, ...]]
    # A slot, so that `vars`, and hence the keys of compiled updates, do not contain the cache.
    __slots__ = ("_cache",)

    def _constants(self) -> tuple[Array, ...]:
        """Return the shift, a scale without zeros, and further constants of a subclass: arrays of the same shape."""
        raise NotImplementedError

    def _checked_parameter(self, name: str, value: npt.ArrayLike) -> Array:
        given = f"{type(self).__name__}.{name} is {value!r:.100}"
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{given}; it must be an array of numbers") from error
        if not np.isfinite(array).all():
            raise ConfigError(f"{given}; it must be finite everywhere")
        return array

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "_cache", {})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.serialize() == other.serialize()  # type: ignore[attr-defined]

    def transform(self, x: Tensor) -> Tensor:
        """Scale a tensor. Returns a float tensor of the same shape."""
        x = as_float(x)
        shift, scale, *_ = self._tensors(x)
        return (x - shift) / scale

    def reverse_transform(self, x: Tensor) -> Tensor:
        """Compute the inverse of `transform`."""
        x = as_float(x)
        shift, scale, *_ = self._tensors(x)
        return x * scale + shift

    def _tensors(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return the result of `_constants` on the device and in the dtype of ``like``, repeated for each frame."""
        expected = self._parameters()[0].shape
        # int, because sizes are tensors while TorchScript traces
        given = tuple(int(size) for size in like.shape[max(like.dim() - len(expected), 0) :]) if expected else ()
        if len(given) != len(expected) or given[1:] != expected[1:] or (expected and given[0] % expected[0] != 0):
            raise ShapeError(
                f"{type(self).__name__} is for values of shape {expected} or stacks of them, got {tuple(like.shape)}"
            )
        key = (like.device, like.dtype, given)
        tensors = self._cache.get(key)
        if tensors is None:
            repeats = (given[0] // expected[0],) + (1,) * (len(given) - 1) if given else ()
            tiled = (np.tile(array, repeats) for array in self._constants())
            tensors = tuple(torch.as_tensor(array).to(like.device, like.dtype) for array in tiled)
            if not torch.compiler.is_compiling():  # tensors made during compilation are fake and must not be cached
                self._cache[key] = tensors
        return tensors


@dataclass(eq=False)
class MinMax(Affine):
    """Map ``[minimum, maximum]`` to ``[-1, 1]``.

    Args:
        minimum: lower bounds in the shape of one observation or action; ``None`` to fit them.
        maximum: upper bounds.
    """

    minimum: Any = None
    maximum: Any = None

    _fitted = ("minimum", "maximum")

    def fit_with_env(self, env: GymEnv) -> None:
        """Set the bounds to those of the environment's space.

        Raises:
            ConfigError: if the space is not a Box with finite bounds.
        """
        space = self._space(env)
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts = dict(space) if isinstance(space, spaces.Dict) else tuple(space)
            raise UnsupportedError(
                f"{type(self).__name__} is for observations of one array each, but the environment's have {len(parts)} "
                f"parts: give each part its own, {scaler_of_parts(parts)}"
            )
        if low is None or high is None or not (np.abs([low, high]) < _UNBOUNDED).all():
            raise ConfigError(
                f"{type(self).__name__} needs a box with finite bounds, the environment has {space}: give "
                "minimum and maximum, or fit the scaler with data"
            )
        self._set(low, high)

    def _constants(self) -> tuple[Array, ...]:
        centre, half = (self.maximum + self.minimum) / 2, (self.maximum - self.minimum) / 2
        constant = half <= np.maximum(_RELATIVE_RESOLUTION * np.abs(centre), np.finfo(np.float32).tiny)
        scale = np.where(constant, 1.0, half)
        return centre, scale
