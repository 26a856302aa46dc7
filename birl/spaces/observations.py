"""Observations: how data hold them, and what networks read.

An observation is a tree. Each leaf is a value that answers for it, as those of `birl.spaces.specs` do for actions:
`Numbers` are read as they are, `Choices` as one-hot vectors. Storages, files, environments and exports have leaves in
``shape``, whole numbers for choices; networks read floats of ``input_shape``.

Parts of tuples and dicts are chosen by name: ``"camera"``, or ``"robot.camera"`` for a part of a part. The parts of a
tuple are called by their numbers; where some of them are chosen, a dict of these is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from birl.errors import BirlError, ConfigError, EnvironmentMismatchError, ShapeError
from birl.types import MASK, Array, Shape, Tree, tree_leaves, tree_map

_MOST_VALUES: Final = 1_000_000
"""Choices of more values are likely ids or times: a network needs an input for each."""

_SAY: Final = "observation_space=gymnasium.spaces.Discrete(n) (or a Dict or Tuple of the spaces of all parts)"


@dataclass(frozen=True)
class Numbers:
    """An array of quantities, which networks read as they are."""

    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return repr(self.shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape that networks read."""
        return self.shape

    @property
    def space(self) -> Space[Any]:
        """A space of Gymnasium for such leaves, without bounds."""
        return spaces.Box(-np.inf, np.inf, self.shape, np.float32)

    def as_input(self, x: Tensor) -> Tensor:
        """``[..., *shape]`` as floats."""
        return x.to(torch.float32)

    def takes(self, other: Leaf) -> bool:
        """Whether networks that read this leaf can read ``other`` data."""
        return self.shape == other.shape

    def outside(self, rows: Array) -> int | None:
        """Index of the first of ``rows`` ``[n, *shape]`` that is no such leaf; ``None`` if there is none."""
        return None

    def example(self, n: int, device: torch.device) -> Tensor:
        """``n`` such leaves ``[n, *shape]``, which stand for any."""
        return torch.zeros(n, *self.shape, device=device)


@dataclass(frozen=True)
class Choices:
    """Whole numbers that name one of several values each, which networks read as one-hot vectors, one after the other.

    Attributes:
        sizes: number of values of each.
        starts: the first value of each; zeros if empty.
        shape: of the numbers, ``()`` for a single one.

    Raises:
        ConfigError: if they do not fit together, or there are more than a million values.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.starts:
            object.__setattr__(self, "starts", (0,) * len(self.sizes))
        numbers = (*self.sizes, *self.starts, *self.shape)
        fit = len(self.sizes) == len(self.starts) == math.prod(self.shape) and all(type(x) is int for x in numbers)
        if not fit or min(*self.sizes, *self.shape, 1) < 1 or sum(self.sizes) > _MOST_VALUES:
            raise ConfigError(
                f"choices have the sizes {self.sizes!r:.100}, first values {self.starts!r:.100} and shape "
                f"{self.shape!r:.50}; they must be ints, one size >= 1 and one first value for each number, and at "
                f"most {_MOST_VALUES} values: give what are no choices as floats"
            )

    def __repr__(self) -> str:
        start = "" if not any(self.starts) else f", start={self._written(self.starts)}"
        return f"{'MultiDiscrete' if self.shape else 'Discrete'}({self._written(self.sizes)}{start})"

    def _written(self, values: tuple[int, ...]) -> Any:
        return np.reshape(values, self.shape).tolist()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape that networks read."""
        return (sum(self.sizes),)

    @property
    def space(self) -> Space[Any]:
        """A space of Gymnasium for such leaves."""
        if not self.shape:
            return spaces.Discrete(self.sizes[0], start=self.starts[0])
        sizes, starts = np.reshape(self.sizes, self.shape), np.reshape(self.starts, self.shape)
        return spaces.MultiDiscrete(sizes, start=starts)

    def as_input(self, x: Tensor) -> Tensor:
        """One-hot vectors ``[..., sum(sizes)]``; zeros where a number names no value."""
        x = x.flatten(-len(self.shape)) if self.shape else x.unsqueeze(-1)
        # one_hot() would look at the values on the host
        parts = [
            x.narrow(-1, index, 1) == torch.arange(start, start + size, device=x.device)
            for index, (size, start) in enumerate(zip(self.sizes, self.starts, strict=True))
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).to(torch.float32)

    @property
    def _range(self) -> tuple[Array, Array]:
        low = np.reshape(self.starts, self.shape)
        return low, low + np.reshape(self.sizes, self.shape) - 1

    def takes(self, other: Leaf) -> bool:
        """Whether ``other`` are choices among these: data need not show all of them."""
        if not isinstance(other, Choices) or other.shape != self.shape:
            return False
        (low, high), (least, most) = self._range, other._range
        return bool((low <= least).all() and (most <= high).all())

    def outside(self, rows: Array) -> int | None:
        """Index of the first of ``rows`` ``[n, *shape]`` that holds a number that names no value."""
        low, high = self._range
        inside = (rows >= low) & (rows <= high)
        if rows.dtype.kind == "f":
            inside &= rows == np.floor(rows)
        return None if inside.all() else int(np.flatnonzero(~inside.reshape(len(rows), -1).all(1))[0])

    def example(self, n: int, device: torch.device) -> Tensor:
        """``n`` such leaves ``[n, *shape]``, spread over all values."""
        low, high = self._range
        spread = np.linspace(0, 1, n).reshape(-1, *(1 for _ in self.shape))
        return torch.as_tensor(low + np.rint(spread * (high - low)).astype(np.int64), device=device)


Leaf: TypeAlias = Numbers | Choices


def as_observations(value: Any, keys: Sequence[str] | None = None) -> Tree:
    """Observations given as a shape or a space of Gymnasium, or a tuple or dict of these, in their canonical form.

    Args:
        value: what is given.
        keys: names of the parts that are kept, see `chosen`; others need not be readable.

    Raises:
        ConfigError: if they are not described.
    """
    if isinstance(value, Space):
        try:
            return observations_of(chosen(leaf_spaces(value), keys))
        except EnvironmentMismatchError as error:
            raise ConfigError(str(error)) from error
    if keys is not None:
        value = chosen(value, keys)
    if isinstance(value, Leaf):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | Iterable):
        raise ConfigError(
            f"{value!r:.100} is no shape: give a tuple of ints such as (17,), a space such as "
            "gymnasium.spaces.Discrete(16), or a tuple or dict of them"
        )
    if isinstance(value, Mapping):
        return {key: as_observations(item) for key, item in value.items()}
    items = tuple(value)
    if any(isinstance(item, int | np.integer) and item < 1 for item in items):
        raise ConfigError(f"the shape {items} has a size below 1")
    if all(isinstance(item, int | np.integer) for item in items):
        return Numbers(tuple(int(item) for item in items))
    return tuple(as_observations(item) for item in items)


def shapes_of(observations: Tree) -> Shape:
    """The shapes of data, as a tree."""
    return tree_map(lambda leaf: leaf.shape, observations)


def choices_in(observations: Tree) -> list[Any]:
    """What files hold beside the shapes: for each leaf the sizes and starts of its choices, ``None`` for numbers."""
    leaves = tree_leaves(observations)
    return [[list(leaf.sizes), list(leaf.starts)] if isinstance(leaf, Choices) else None for leaf in leaves]


def with_choices(shape: Any, choices: Any) -> Tree:
    """Inverse of `shapes_of` and `choices_in`.

    Raises:
        ConfigError: if they do not fit together.
    """
    observations = as_observations(shape)
    if choices is None:
        return observations
    leaves = list(tree_leaves(observations))
    if not isinstance(choices, list) or len(choices) != len(leaves):
        raise ConfigError(f"there are choices {choices!r:.100} for {len(leaves)} parts of an observation")
    rest = iter(choices)

    def choice(leaf: Numbers) -> Leaf:
        found = next(rest)
        if found is None:
            return leaf
        sizes, starts = map(tuple, found)
        return Choices(sizes, starts, leaf.shape)

    try:
        return tree_map(choice, observations)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the choices of an observation are {choices!r:.100}") from error


# -- spaces --------------------------------------------------------------------------------------------------------


def leaf_spaces(space: Any) -> Tree:
    """The spaces in nested Tuple and Dict spaces as a tree like their observations, dicts in the order of the space."""
    if isinstance(space, spaces.Tuple):
        return tuple(map(leaf_spaces, space.spaces))
    return {str(name): leaf_spaces(part) for name, part in space.items()} if isinstance(space, spaces.Dict) else space


def observations_of(leaves: Tree) -> Tree:
    """What the observations of a tree of spaces are.

    Raises:
        EnvironmentMismatchError: naming a leaf that networks cannot read, and how to leave it out.
    """
    if not any(True for _ in tree_leaves(leaves)):
        raise EnvironmentMismatchError(f"the observation space has no part, {leaves!r}: there is nothing to choose by")
    return named_map(lambda space, name: _leaf_of(space, name, leaves), leaves)


def _leaf_of(space: Any, name: str, leaves: Tree) -> Leaf:
    if isinstance(space, spaces.Discrete):
        return Choices((int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(map(int, np.ravel(values))) for values in (space.nvec, space.start))
        return Choices(sizes, starts, tuple(map(int, space.shape)))
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return Numbers(tuple(map(int, space.shape)))
    kinds = "networks read Box, Discrete, MultiDiscrete and MultiBinary spaces, and Dict and Tuple spaces of these"
    rest = tuple(key for key, part in _leaf_names(leaves) if type(part) is not type(space))
    if not name or not rest:
        raise EnvironmentMismatchError(
            f"the observation space is {space}; {kinds}: wrap the environment in "
            "gymnasium.wrappers.TransformObservation, with one of them"
        )
    raise EnvironmentMismatchError(
        f"the part {name!r} of the observation is {space}; {kinds}: leave it out by naming the parts to read in the "
        f"algorithm's configuration, here observation_keys={rest!r:.300} (buffers and datasets have this argument, too)"
    )


# -- parts ---------------------------------------------------------------------------------------------------------


def _entries(tree: Tree) -> list[tuple[str, Tree]] | None:
    if isinstance(tree, Mapping):
        return [(str(name), part) for name, part in tree.items()]
    return [(str(index), part) for index, part in enumerate(tree)] if isinstance(tree, tuple) else None


def named_map(function: Callable[[Any, str], Any], tree: Tree, name: str = "") -> Tree:
    """Apply ``function`` to each leaf and its name."""
    entries = _entries(tree)
    if entries is None:
        return function(tree, name)
    found = {key: named_map(function, part, f"{name}.{key}" if name else key) for key, part in entries}
    return tuple(found.values()) if isinstance(tree, tuple) else found


def _leaf_names(tree: Tree) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    named_map(lambda leaf, name: found.append((name, leaf)), tree)
    return found


def part_names(tree: Tree) -> tuple[str, ...] | None:
    """The names of all leaves; ``None`` for a single array."""
    return None if _entries(tree) is None else tuple(name for name, _ in _leaf_names(tree))


def chosen(tree: Tree, keys: Sequence[str] | None) -> Tree:
    """The parts of a tree with these names, in the tree's order; all of it for ``None``.

    A mask of actions (`birl.types.MASK`) is always kept: without it, actions that are not allowed would be taken.

    Raises:
        ConfigError: if a name is none of a part.
    """
    if keys is None:
        return tree
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys or not all(isinstance(k, str) for k in keys):
        raise ConfigError(f"observation_keys is {keys!r:.100}; it must list names of parts, such as ('image',)")
    if _entries(tree) is None:
        raise ConfigError(
            f"observation_keys is {keys!r:.100}, but an observation is one array, which has no parts: leave it out"
        )
    missing = set(keys)

    def parts(part: Tree, name: str) -> Tree:
        found = {}
        for key, item in _entries(part) or []:
            whole = f"{name}{key}"
            inner = parts(item, f"{whole}.")
            if whole in keys or whole == MASK:
                missing.discard(whole)
                found[key] = item
            elif inner:
                found[key] = inner
        return tuple(found.values()) if isinstance(part, tuple) and len(found) == len(part) else found

    result = parts(tree, "")
    if missing:
        names = ", ".join(repr(name) for name, _ in _leaf_names(tree))
        raise ConfigError(
            f"observation_keys names {sorted(missing)[0]!r:.80}, which no part of the observation is called; there are "
            f"{names:.300}"
        )
    return result


def picked(observations: Tree, given: Tree) -> Tree:
    """The parts of ``given`` that ``observations`` have, in their order. Further parts of dicts are not looked at.

    Raises:
        ShapeError: if a part is missing.
    """
    if not isinstance(observations, dict | tuple):
        return given
    parts = dict(_entries(tuple(given) if isinstance(given, list) else given) or ())
    names = [name for name, _ in _entries(observations) or ()]
    if not set(names) <= set(parts) or (isinstance(observations, tuple) and len(parts) != len(names)):
        own = f"the parts {', '.join(parts)}" if parts else f"no parts, but is {type(given).__name__}"
        raise ShapeError(f"the observation has {own}; it must have {', '.join(names)}")
    if isinstance(observations, tuple):
        return tuple(picked(part, parts[name]) for part, name in zip(observations, names, strict=True))
    return {name: picked(part, parts[str(name)]) for name, part in observations.items()}


def reads(own: Tree, other: Tree) -> bool:
    """Whether networks that read ``own`` observations can read ``other`` ones, which may have further parts."""
    if not isinstance(own, dict | tuple):
        return isinstance(other, Leaf) and own.takes(other)
    try:
        found = picked(own, other)
    except ShapeError:
        return False
    pairs = zip(own.values(), found.values(), strict=True) if isinstance(own, dict) else zip(own, found, strict=True)
    return all(reads(*pair) for pair in pairs)


def drawn_from(stored: Tree, shape: Shape) -> Tree:
    """What minibatches of this shape hold: ``stored`` itself, unless a picker changes shapes."""
    drawn = as_observations(shape)
    return stored if shapes_of(stored) == shapes_of(drawn) else drawn


# -- data ----------------------------------------------------------------------------------------------------------


def observations_in(arrays: Tree, space: Any = None) -> Tree:
    """What logged observations ``[N, …]`` are: whole numbers ``[N]`` are choices counted from 0, all others numbers.

    Args:
        arrays: tree of arrays.
        space: what they are, if it is known; see `as_observations`.

    Raises:
        ShapeError: if they are not in the space, or single whole numbers that are no choices counted from 0.
        ConfigError: if ``space`` describes no observations.
    """
    if space is None:
        return named_map(_choices_seen, arrays)
    observations = as_observations(space)
    check_inside(observations, arrays)
    return observations


def _choices_seen(array: Array, name: str) -> Leaf:
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        return Numbers(tuple(array.shape[1:]))
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= _MOST_VALUES:
        raise ShapeError(
            f"observations{f' {name!r}' if name else ''} are whole numbers from {least} to {most}, one for each step: "
            f"choices are counted from 0 to at most {_MOST_VALUES - 1}. Give floats if they are quantities, or say "
            f"what they are with {_SAY}"
        )
    return Choices((most + 1,))


def check_inside(observations: Tree, arrays: Tree, name: str = "observations") -> None:
    """Raise `ShapeError` unless arrays ``[n, …]`` hold such observations; ``name`` is for messages."""
    rows = dict(_leaf_names(arrays))
    for key, leaf in _leaf_names(observations):
        array = np.asarray(rows.get(key))
        whole = f"{name} {key!r}" if key else name
        if key not in rows or len(rows) != len(_leaf_names(observations)) or array.shape[1:] != leaf.shape:
            given = ", ".join(f"{part or 'one array'} {np.shape(x)[1:]}" for part, x in rows.items())
            raise ShapeError(f"{name} have the shapes {given:.200}; the space that was given says {observations}")
        check_leaf(leaf, array, whole)


def check_leaf(leaf: Leaf, rows: Array, name: str) -> None:
    """Raise `ShapeError` unless ``rows`` ``[n, *shape]`` are such leaves; ``name`` is for messages."""
    index = leaf.outside(rows)
    if index is not None:
        raise ShapeError(
            f"{name} {rows[index].tolist()!s:.80} at step {index} is not in {leaf}: mend the data, or say what they "
            f"are with {_SAY}"
        )


def check_mask(observation: Tree, error: type[BirlError], what: str) -> None:
    """Raise ``error`` if observations ``[n, …]`` have a mask of actions that is not of zeros and ones.

    Other numbers are refused since nobody knows what they mean: added to logits, 0 is what is allowed.
    """
    if isinstance(observation, dict) and MASK in observation:
        mask = np.asarray(observation[MASK])
        wrong = mask[(mask != 0) & (mask != 1)]
        if wrong.size:
            raise error(f"{what} holds {wrong[0]!s:.80}; it must be zeros and ones: 1 for each action that is allowed")


def wider(first: Tree, second: Tree) -> Tree:
    """What the observations of two datasets of the same shapes are together."""

    def leaf(one: Leaf, other: Leaf) -> Leaf:
        if not isinstance(one, Choices) or not isinstance(other, Choices):
            return Numbers(one.shape)
        starts = tuple(map(min, one.starts, other.starts))
        ends = [max(a + m, b + n) for a, m, b, n in zip(one.starts, one.sizes, other.starts, other.sizes, strict=True)]
        return Choices(tuple(end - start for end, start in zip(ends, starts, strict=True)), starts, one.shape)

    return tree_map(leaf, first, picked(first, second))
