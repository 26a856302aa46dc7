"""Batches, trees of arrays and other types that all packages share.

A *tree* is an array, or a tuple or dict of trees. Observations are trees; a plain array is the common case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Flag
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import VectorEnv
    from torch import Tensor

__all__ = [
    "EPISODES",
    "FLOAT32_MAX",
    "GRADIENT_STATISTICS",
    "MASK",
    "ActionSize",
    "ActionSpace",
    "Array",
    "ArrayOrTensor",
    "ArraySpec",
    "Batch",
    "DType",
    "Environment",
    "EpisodeRow",
    "Float32NDArray",
    "GymEnv",
    "Inputs",
    "Int32NDArray",
    "JSONValue",
    "Loss",
    "NDArray",
    "Networks",
    "Observation",
    "ObservationSequence",
    "Shape",
    "State",
    "TorchObservation",
    "Tree",
    "UInt8NDArray",
    "as_parts",
    "fill_empty_mask",
    "is_shape",
    "leaf_shapes",
    "map_unmasked",
    "parts_like",
    "shape_map",
    "tree_leaves",
    "tree_map",
    "tree_of_json",
    "weighted_mean",
    "without_mask",
]

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
ArrayOrTensor: TypeAlias = "Array | Tensor"
Tree: TypeAlias = Any  # T | tuple[Tree, ...] | dict[str, Tree]; mypy cannot express the recursion
JSONValue: TypeAlias = "bool | int | float | str | Sequence[JSONValue] | Mapping[str, JSONValue] | None"
Shape: TypeAlias = Any  # Tree of tuple[int, ...]
State: TypeAlias = "dict[str, Any]"  # nested dict; leaves are arrays, tensors and JSON values
Observation: TypeAlias = Tree  # an array, or a tuple or dict of arrays

ActionSize: TypeAlias = "int | Sequence[int] | Mapping[str, Any] | gymnasium.Space[Any] | None"
"""The argument ``action_size=``: a number of dimensions or options, several of them, or an action space."""

Environment: TypeAlias = "gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]"

# d3rlpy's names for annotations
NDArray: TypeAlias = npt.NDArray[Any]
Float32NDArray: TypeAlias = npt.NDArray[np.float32]
Int32NDArray: TypeAlias = npt.NDArray[np.int32]
UInt8NDArray: TypeAlias = npt.NDArray[np.uint8]
DType: TypeAlias = npt.DTypeLike
ObservationSequence: TypeAlias = Tree
TorchObservation: TypeAlias = Tree
GymEnv: TypeAlias = Any

GRADIENT_STATISTICS: Final = ("min", "max", "mean", "std")
"""The statistics that are logged for a gradient, in order."""

EpisodeRow: TypeAlias = tuple[int, float, int, float, float]
"""A training episode: the step at which it ended, its return, length and success, and the seconds since the start."""

EPISODES: Final = "time_monitor.csv"
"""Name of the file of training episodes in a run folder, which is not a metric."""

MASK: Final = "action_mask"
"""Name of the part of dict observations that masks discrete actions: ``[A]``, 1 for allowed actions and 0 for others.

The masks of several choices are concatenated. Continuous parts of actions have no mask."""

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
"""The largest float32."""


class ActionSpace(Flag):
    """The kind of actions of a dataset, or the kinds that an algorithm supports: ``kind in kinds``."""

    CONTINUOUS = 1
    DISCRETE = 2
    BOTH = 3
    MULTI_DISCRETE = 4
    COMPOSITE = 8
    CHOICES = DISCRETE | MULTI_DISCRETE
    ANY = BOTH | MULTI_DISCRETE | COMPOSITE

    @property
    def label(self) -> str:
        """The names of the kinds."""
        if self is ActionSpace.ANY:
            return "any"
        *most, last = (str(kind.name).lower().replace("_", "-") for kind in self)
        return f"{', '.join(most)} or {last}" if most else last


class Networks(Protocol):
    """A module whose children are networks, by name: ``nets.critic(inputs)``."""

    def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array, without the step dimension."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply ``function`` to every leaf of ``tree`` (and the matching leaves of ``rest``), keeping the structure."""
    if isinstance(tree, dict):
        if not rest:
            return {key: tree_map(function, part) for key, part in tree.items()}
        return {key: tree_map(function, part, *[other[key] for other in rest]) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *leaves) for leaves in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def tree_leaves(tree: Tree) -> Iterator[Any]:
    """Yield the leaves of ``tree`` in a fixed order (dicts by insertion)."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tree_leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from tree_leaves(value)
    else:
        yield tree


def parts_like(value: Tree, like: Tree) -> Tree:
    """Convert a list (d3rlpy's form) to a tuple if ``like``, a tree or a tree of shapes, is a tuple."""
    return tuple(value) if isinstance(value, list) and isinstance(like, tuple) and not is_shape(like) else value


def as_parts(value: Tree) -> Tree:
    """Convert a list of two or more arrays (d3rlpy's form of an observation) to a tuple."""
    if (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(part, np.ndarray | torch.Tensor) for part in value)
    ):
        return tuple(value)
    return value


def tree_of_json(value: object) -> Tree:
    """Rebuild a tree from JSON, where its tuples are lists."""
    if isinstance(value, dict):
        return {key: tree_of_json(item) for key, item in value.items()}
    return tuple(map(tree_of_json, value)) if isinstance(value, list) else value


def is_shape(shape: Shape) -> bool:
    """Return whether ``shape`` is the shape of a single array, not a tree of shapes."""
    return isinstance(shape, tuple) and all(isinstance(size, int | np.integer) for size in shape)


def shape_map(function: Callable[[tuple[int, ...]], Any], shape: Shape) -> Tree:
    """Apply ``function`` to the shape of every array in a tree of shapes, keeping the structure."""
    if is_shape(shape):
        return function(shape)
    if isinstance(shape, dict):
        return {key: shape_map(function, item) for key, item in shape.items()}
    return tuple(shape_map(function, item) for item in shape)


def leaf_shapes(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield the array shapes in a tree of shapes, in the order of `tree_leaves`."""
    if is_shape(shape):
        yield shape
    elif isinstance(shape, dict):
        for value in shape.values():
            yield from leaf_shapes(value)
    else:
        for value in shape:
            yield from leaf_shapes(value)


def without_mask(tree: Tree) -> Tree:
    """Remove the `MASK` of an observation or its shape. If only ``observation`` is left, return this part alone."""
    if not isinstance(tree, dict) or MASK not in tree:
        return tree
    rest = {name: part for name, part in tree.items() if name != MASK}
    return rest["observation"] if rest.keys() == {"observation"} else rest


def map_unmasked(function: Callable[[Tree], Tree], observation: Tree) -> Tree:
    """Apply ``function`` to an observation without its `MASK`, and put the mask back."""
    rest = without_mask(observation)
    if rest is observation:
        return function(observation)
    changed = function(rest)
    own = {"observation": changed} if observation.keys() == {"observation", MASK} else changed
    return {name: observation[name] if name == MASK else own[name] for name in observation}


def fill_empty_mask(allowed: Tensor) -> Tensor:
    """Replace masks ``[..., A]`` of a choice that allow nothing, as after the end of an episode, by ones."""
    return allowed | ~allowed.any(-1, keepdim=True)


class Inputs(NamedTuple):
    """Inputs of a network: observations and, for recurrent networks, their history.

    Feed-forward networks read ``observation`` alone, with any leading dimensions. Recurrent networks read
    sequences ``[T, B, …]``.

    Attributes:
        observation: tree of tensors ``[..., *shape]``; for sequences ``[T, B, *shape]``.
        state: start states ``[B, state_size]`` by network name, ``None`` for zeros.
        is_first: bool ``[T, B]``: the state is reset to zero *before* this step. ``None`` for never.
        following: tree like ``observation``, or ``None``. If given, a recurrent network is evaluated at
            ``following[t]`` with its state after ``observation[t]``, so that values of next observations are
            right at every time limit and episode end in the sequence.
        state_out: if a dict, a recurrent network writes its final state into it under its own name.
        later: int64 ``[T, B]``: ``following[t]`` is seen after ``observation[t + later[t]]`` instead, as n-step returns
            are; ``None`` for 0.
    """

    observation: Tree
    state: Mapping[str, Tensor] | None = None
    is_first: Tensor | None = None
    following: Tree = None
    state_out: dict[str, Tensor] | None = None
    later: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """Bool ``[..., A]``: the actions that are allowed where networks are evaluated; ``None`` if all are.

        Where none is, as in observations after the end of an episode, all are.
        """
        observation = self.observation if self.following is None else self.following
        if not isinstance(observation, dict) or MASK not in observation:
            return None
        return fill_empty_mask(observation[MASK] != 0)


@dataclass(frozen=True)
class Batch:
    """One minibatch on the training device: transitions ``[B, …]`` or sequences ``[T, B, …]``.

    Attributes:
        observation: tree of tensors ``[..., *shape]``, scaled.
        action: float ``[..., action_size]`` in the policy's range, or int64 ``[...]``.
        reward: ``[...]``, scaled, n-step sums already taken.
        next_observation: tree like ``observation``; ``None`` for trajectories.
        discount: ``[...]``: ``gamma**n * (1 - terminated)``. A time limit does not end the bootstrap.
        weight: ``[...]`` importance weight times mask: 0 where a step is padding. Ones by default.
        is_first: bool ``[T, B]`` or ``None``: a new episode starts at this step (sequences only).
        state: start states ``[B, size]`` by network name, or ``None`` (sequences only).
        extra: further tensors (or trees) by name: ``advantage``, ``returns_to_go``, ``timestep``, ``log_prob`` …
        later: int64 ``[T, B]`` or ``None``: see `Inputs` (sequences of n-step returns only).
    """

    observation: Tree
    action: Tensor
    reward: Tensor
    next_observation: Tree
    discount: Tensor
    weight: Tensor
    is_first: Tensor | None = None
    state: Mapping[str, Tensor] | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    later: Tensor | None = None

    @property
    def parts(self) -> tuple[Any, ...]:
        """All fields in order: ``Batch(*batch.parts)`` is the batch."""
        return _parts_of(self)

    def flat(self) -> tuple[list[Tensor], Hashable]:
        """Return all tensors in order, and the `signature`."""
        leaves: list[Tensor] = []
        kinds: list[Hashable] = []
        for leaf in tree_leaves(self.parts):
            if leaf is None:
                kinds.append(None)
            else:
                leaves.append(leaf)
                kinds.append((leaf.shape, leaf.stride(), leaf.dtype))
        own = list(map(id, leaves))
        return leaves, (*self.extra, *kinds, () if len(set(own)) == len(own) else tuple(map(own.index, own)))

    @property
    def leaves(self) -> list[Tensor]:
        """All tensors, in order."""
        return self.flat()[0]

    @property
    def signature(self) -> Hashable:
        """Shapes, strides and dtypes of all tensors, and which of them are one: the key of a compiled update."""
        return self.flat()[1]

    @property
    def inputs(self) -> Inputs:
        """Network inputs at ``observation``."""
        return Inputs(self.observation, self.state, self.is_first)

    @property
    def next_inputs(self) -> Inputs:
        """Network inputs at ``next_observation``."""
        if self.is_first is None:
            return Inputs(self.next_observation)
        return Inputs(self.observation, self.state, self.is_first, self.next_observation, later=self.later)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply ``function`` to every tensor with the batch's leading dimensions (start states excluded)."""
        return replace(
            self,
            observation=tree_map(function, self.observation),
            action=function(self.action),
            reward=function(self.reward),
            next_observation=None if self.next_observation is None else tree_map(function, self.next_observation),
            discount=function(self.discount),
            weight=function(self.weight),
            is_first=None if self.is_first is None else function(self.is_first),
            extra=tree_map(function, self.extra),
            later=None if self.later is None else function(self.later),
        )


_parts_of: Callable[[Batch], tuple[Any, ...]] = attrgetter(*(each.name for each in fields(Batch)))


@dataclass(frozen=True)
class Loss:
    """A loss with its metrics and the values that it shares.

    Attributes:
        value: the scalar to minimise.
        metrics: further scalars to log, by name.
        share: values that later steps of the same update also need; see `birl.losses.shared`.
        priority: sizes ``[...]`` of the elements' TD errors, at least 0, by which prioritised samplers draw, or a
            function that computes them, which is called only if there is such a sampler; ``None`` if the loss has no
            TD errors.
    """

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    share: dict[str, Tensor] = field(default_factory=dict)
    priority: Tensor | Callable[[], Tensor] | None = None

    def compute_priority(self) -> Tensor | None:
        """Return `priority` without a gradient, and call it if it is a function."""
        if self.priority is None or isinstance(self.priority, torch.Tensor):
            priority = self.priority
        else:
            with torch.no_grad():
                priority = self.priority()
        return priority.detach() if priority is not None and priority.requires_grad else priority

    def detached(self, prioritised: bool = False) -> Loss:
        """Return the same loss without gradients, with its priorities if ``prioritised``."""
        metrics, share = ({name: x.detach() for name, x in each.items()} for each in (self.metrics, self.share))
        return Loss(self.value.detach(), metrics, share, self.compute_priority() if prioritised else None)

    def shared_with(self, batch: Batch) -> Batch:
        """Return ``batch`` with `share` in its ``extra``."""
        return replace(batch, extra={**batch.extra, **self.share}) if self.share else batch


def weighted_mean(value: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of ``value`` over the real steps, in all dimensions of ``weight`` (matched from the right).

    ``weight`` is 0 at padding. For plain transitions with unit weights this is ``value.mean()`` over the batch;
    extra leading dimensions of ``value`` (an ensemble) are kept.
    """
    dims = tuple(range(-weight.dim(), 0))
    return (value * weight).sum(dims) / real_steps(weight)


def real_steps(weight: Tensor) -> Tensor:
    """Return the number of steps that are no padding, at least 1."""
    return weight.count_nonzero().clamp(min=1)
