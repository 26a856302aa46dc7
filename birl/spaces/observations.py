"""Observations: their form in data, and their form as inputs of networks.

An observation is a tree. A leaf is described by a value, as a kind of actions is: networks read `Numbers` as they are
and `Choices` as one-hot vectors. Storages, files, environments and exports have leaves of ``shape``, with integers for
choices; networks read floats of ``input_shape``.

Parts of tuples and dicts are selected by name: ``"camera"``, or ``"robot.camera"`` for a nested part. The parts of a
tuple are named by their indices; a selection of some of them is a dict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces

from birl.errors import BirlError, ConfigError, EnvironmentMismatchError, ShapeError
from birl.spaces.conversion import Columns, column_names, order_columns
from birl.types import MASK, Array, Shape, Tree, tree_leaves, tree_map

if TYPE_CHECKING:
    from torch import Tensor

_MOST_VALUES: Final = 1_000_000
"""More values are likely ids or times: a network needs an input for each."""

_OBSERVATION: Final = "observation"
_ACTION: Final = "action"
"""Names of the arrays of a step, as in `Columns`."""

_SPACE_HINT: Final = "observation_space=gymnasium.spaces.Discrete(n) (or a Dict or Tuple of the spaces of all parts)"


@dataclass(frozen=True)
class Numbers:
    """An array of numbers, which networks read as they are."""

    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return repr(self.shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the inputs of networks."""
        return self.shape

    @property
    def space(self) -> Space[Any]:
        """The Gymnasium space of such leaves, without bounds."""
        return spaces.Box(-np.inf, np.inf, self.shape, np.float32)

    def as_input(self, x: Tensor) -> Tensor:
        """Convert ``[..., *shape]`` to floats."""
        return x.to(torch.float32)

    def accepts(self, other: ObservationLeaf) -> bool:
        """Return whether networks for this leaf can read data with the ``other`` leaf."""
        return self.shape == other.shape

    def first_outside(self, rows: Array) -> int | None:
        """Return the index of the first of ``rows`` ``[n, *shape]`` that is not such a leaf, or ``None``."""
        return None

    def example(self, n: int, device: torch.device) -> Tensor:
        """Return ``n`` example leaves ``[n, *shape]``."""
        return torch.zeros(n, *self.shape, device=device)


@dataclass(frozen=True)
class Choices:
    """Integers, each one of several values, which networks read as concatenated one-hot vectors.

    Attributes:
        sizes: number of values of each integer.
        starts: first value of each integer; zeros if empty.
        shape: shape of the array of integers, ``()`` for a single one.

    Raises:
        ConfigError: if they are inconsistent, or there are more than a million values.
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
                f"most {_MOST_VALUES} values: pass non-categorical values as floats"
            )

    def __repr__(self) -> str:
        start = "" if not any(self.starts) else f", start={self._format(self.starts)}"
        return f"{'MultiDiscrete' if self.shape else 'Discrete'}({self._format(self.sizes)}{start})"

    def _format(self, values: tuple[int, ...]) -> object:
        return np.reshape(values, self.shape).tolist()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the inputs of networks."""
        return (sum(self.sizes),)

    @property
    def space(self) -> Space[Any]:
        """The Gymnasium space of such leaves."""
        if not self.shape:
            return spaces.Discrete(self.sizes[0], start=self.starts[0])
        sizes, starts = np.reshape(self.sizes, self.shape), np.reshape(self.starts, self.shape)
        return spaces.MultiDiscrete(sizes, start=starts)

    def as_input(self, x: Tensor) -> Tensor:
        """Encode integers as one-hot vectors ``[..., sum(sizes)]``; an unknown value gives zeros."""
        x = x.flatten(-len(self.shape)) if self.shape else x.unsqueeze(-1)
        # one_hot() would synchronise with the host
        parts = [
            x.narrow(-1, index, 1) == torch.arange(start, start + size, device=x.device)
            for index, (size, start) in enumerate(zip(self.sizes, self.starts, strict=True))
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).to(torch.float32)

    @property
    def _range(self) -> tuple[Array, Array]:
        low = np.reshape(self.starts, self.shape)
        return low, low + np.reshape(self.sizes, self.shape) - 1

    def accepts(self, other: ObservationLeaf) -> bool:
        """Return whether all values of ``other`` are values of this leaf."""
        if not isinstance(other, Choices) or other.shape != self.shape:
            return False
        (low, high), (least, most) = self._range, other._range
        return bool((low <= least).all() and (most <= high).all())

    def first_outside(self, rows: Array) -> int | None:
        """Return the index of the first of ``rows`` ``[n, *shape]`` with an unknown value, or ``None``."""
        low, high = self._range
        inside = (rows >= low) & (rows <= high)
        if rows.dtype.kind == "f":
            inside &= rows == np.floor(rows)
        return None if inside.all() else int(np.flatnonzero(~inside.reshape(len(rows), -1).all(1))[0])

    def example(self, n: int, device: torch.device) -> Tensor:
        """Return ``n`` leaves ``[n, *shape]``, spread over all values."""
        low, high = self._range
        spread = np.linspace(0, 1, n).reshape(-1, *(1 for _ in self.shape))
        return torch.as_tensor(low + np.rint(spread * (high - low)).astype(np.int64), device=device)


ObservationLeaf: TypeAlias = Numbers | Choices


def parse_observations(value: object, keys: Sequence[str] | None = None) -> Tree:
    """Return the observations that a shape, a Gymnasium space, or a tuple or dict of these stands for.

    Args:
        value: the description.
        keys: names of the parts to keep, see `select_parts`; networks need not support the others.

    Raises:
        ConfigError: if ``value`` describes no observations.
    """
    if isinstance(value, Space):
        try:
            return observations_from_spaces(select_parts(leaf_spaces(value), keys))
        except EnvironmentMismatchError as error:
            raise ConfigError(str(error)) from error
    if keys is not None:
        value = select_parts(value, keys)
    if isinstance(value, ObservationLeaf):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | Iterable):
        raise ConfigError(
            f"{value!r:.100} is not a shape: give a tuple of ints such as (17,), a space such as "
            "gymnasium.spaces.Discrete(16), or a tuple or dict of them"
        )
    if isinstance(value, Mapping):
        return {key: parse_observations(item) for key, item in value.items()}
    items = tuple(value)
    if any(isinstance(item, int | np.integer) and item < 1 for item in items):
        raise ConfigError(f"the shape {items} has a size below 1; sizes must be positive: give the true shape")
    if all(isinstance(item, int | np.integer) for item in items):
        return Numbers(tuple(int(item) for item in items))
    return tuple(parse_observations(item) for item in items)


def shapes_of(observations: Tree) -> Shape:
    """Return the shapes of the data, as a tree."""
    return tree_map(lambda leaf: leaf.shape, observations)


def choices_to_json(observations: Tree) -> list[list[list[int]] | None]:
    """Return sizes and starts of the choices of each leaf, ``None`` for numbers, for files that hold the shapes."""
    leaves = tree_leaves(observations)
    return [[list(leaf.sizes), list(leaf.starts)] if isinstance(leaf, Choices) else None for leaf in leaves]


def observations_from_json(shape: object, choices: object) -> Tree:
    """Rebuild observations from the results of `shapes_of` and `choices_to_json`.

    Raises:
        ConfigError: if they do not match.
    """
    observations = parse_observations(shape)
    if choices is None:
        return observations
    leaves = list(tree_leaves(observations))
    if not isinstance(choices, list) or len(choices) != len(leaves):
        raise ConfigError(
            f"the choices are {choices!r:.100}; they must have an entry for each of {len(leaves)} "
            "parts of an observation: give the shape that belongs to them"
        )
    rest = iter(choices)

    def restore(leaf: Numbers) -> ObservationLeaf:
        found = next(rest)
        if found is None:
            return leaf
        sizes, starts = map(tuple, found)
        return Choices(sizes, starts, leaf.shape)

    try:
        return tree_map(restore, observations)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the choices of an observation are {choices!r:.100}; each must be None or [sizes, starts]: use "
            "another file"
        ) from error


# -- spaces --------------------------------------------------------------------------------------------------------


def leaf_spaces(space: object) -> Tree:
    """Return the spaces in nested Tuple and Dict spaces as a tree, dicts in the order of the space."""
    if isinstance(space, spaces.Tuple):
        return tuple(map(leaf_spaces, space.spaces))
    return {str(name): leaf_spaces(part) for name, part in space.items()} if isinstance(space, spaces.Dict) else space


def observations_from_spaces(leaves: Tree) -> Tree:
    """Return the observations of a tree of spaces.

    Raises:
        EnvironmentMismatchError: naming an unsupported leaf, and how to leave it out.
    """
    if not any(True for _ in tree_leaves(leaves)):
        raise EnvironmentMismatchError(
            f"the observation space {leaves!r} is empty; it must have at least one part: add one"
        )
    return map_named_leaves(lambda space, name: _leaf_of(space, name, leaves), leaves)


def _leaf_of(space: object, name: str, leaves: Tree) -> ObservationLeaf:
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
        f"the part {name!r} of the observation is {space}; {kinds}: leave it out by naming the other parts in the "
        f"algorithm's configuration, here observation_keys={rest!r:.300} (buffers and datasets have this argument too)"
    )


# -- parts ---------------------------------------------------------------------------------------------------------


def _entries(tree: Tree) -> list[tuple[str, Tree]] | None:
    if isinstance(tree, Mapping):
        return [(str(name), part) for name, part in tree.items()]
    return [(str(index), part) for index, part in enumerate(tree)] if isinstance(tree, tuple) else None


def map_named_leaves(function: Callable[[Any, str], object], tree: Tree, name: str = "") -> Tree:
    """Apply ``function`` to each leaf and its name, keeping the structure."""
    entries = _entries(tree)
    if entries is None:
        return function(tree, name)
    found = {key: map_named_leaves(function, part, f"{name}.{key}" if name else key) for key, part in entries}
    if len(found) < len(entries):
        check_names([key for key, _ in entries])
    return tuple(found.values()) if isinstance(tree, tuple) else found


def _leaf_names(tree: Tree, name: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    map_named_leaves(lambda leaf, name: found.append((name, leaf)), tree, name)
    return found


def part_names(tree: Tree) -> tuple[str, ...] | None:
    """Return the names of all leaves; ``None`` for a single array."""
    return None if _entries(tree) is None else tuple(name for name, _ in _leaf_names(tree))


def check_names(names: Sequence[str]) -> None:
    """Raise `ShapeError` if two leaves have the same name, as ``{"a.b": x, "a": {"b": y}}`` and ``{0: x, "0": y}``."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 1)
    if count > 1:
        raise ShapeError(
            f"{count} parts of the observations have the name {name!r:.100} (names of nested parts are joined by "
            "dots), so that only one could be stored; names must be different: rename the others"
        )


def select_parts(tree: Tree, keys: Sequence[str] | None) -> Tree:
    """Return the parts of a tree with these names, in the order of the tree; the whole tree for ``None``.

    A mask of actions (`birl.types.MASK`) is always kept: without it, policies would take masked actions.

    Raises:
        ConfigError: if there is no part of a name.
    """
    if keys is None:
        return tree
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys or not all(isinstance(k, str) for k in keys):
        raise ConfigError(f"observation_keys is {keys!r:.100}; it must list names of parts, such as ('image',)")
    if _entries(tree) is None:
        raise ConfigError(
            f"observation_keys is {keys!r:.100}, but an observation is a single array: leave observation_keys out"
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
            f"observation_keys names {sorted(missing)[0]!r:.80}, which is not a part of the observation; the parts are "
            f"{names:.300}: name some of these"
        )
    return result


def match_parts(observations: Tree, given: Tree) -> Tree:
    """Return the parts of ``given`` that ``observations`` have, in their order. Further parts of dicts are ignored.

    Raises:
        ShapeError: if a part is missing.
    """
    if not isinstance(observations, dict | tuple):
        return given
    parts = dict(_entries(tuple(given) if isinstance(given, list) else given) or ())
    names = [name for name, _ in _entries(observations) or ()]
    if not set(names) <= set(parts) or (isinstance(observations, tuple) and len(parts) != len(names)):
        description = f"the parts {', '.join(parts)}" if parts else f"no parts, but is {type(given).__name__}"
        raise ShapeError(f"the observation has {description}; it must have {', '.join(names)}: give all of them")
    if isinstance(observations, tuple):
        return tuple(match_parts(part, parts[name]) for part, name in zip(observations, names, strict=True))
    return {name: match_parts(part, parts[str(name)]) for name, part in observations.items()}


def accepts_observations(expected: Tree, other: Tree) -> bool:
    """Return whether networks for ``own`` observations can read ``other`` ones, which may have further parts."""
    if not isinstance(expected, dict | tuple):
        return isinstance(other, ObservationLeaf) and expected.accepts(other)
    try:
        matched = match_parts(expected, other)
    except ShapeError:
        return False
    parts = (expected.values(), matched.values()) if isinstance(expected, dict) else (expected, matched)
    pairs = zip(*parts, strict=True)
    return all(accepts_observations(*pair) for pair in pairs)


def minibatch_observations(stored: Tree, shape: Shape) -> Tree:
    """Return the observations of minibatches of this shape: the stored ones, unless a picker changes shapes."""
    sampled = parse_observations(shape)
    return stored if shapes_of(stored) == shapes_of(sampled) else sampled


# -- columns of tables ---------------------------------------------------------------------------------------------


def columns_of(observations: Tree, action_names: tuple[str, ...]) -> Columns:
    """Return the names of the columns of all tables among observations, and those of actions."""
    leaves = [] if isinstance(observations, np.ndarray) else _leaf_names(observations, _OBSERVATION)
    found = {name: column_names(leaf) for name, leaf in leaves} | {_ACTION: action_names}
    return {name: names for name, names in found.items() if names}


def fitting_columns(columns: Columns, observations: Tree, action_shape: tuple[int, ...]) -> Columns:
    """Return the names of the arrays that have one number for each name.

    Args:
        columns: all names.
        observations: spec of the observations.
        action_shape: shape of a stored action.
    """
    fits = {part: names for part, names in columns.items() if names} if columns else {}
    shapes = {part: leaf.shape for part, leaf in _leaf_names(observations, _OBSERVATION)} if fits else {}
    shapes[_ACTION] = tuple(action_shape)
    return {part: names for part, names in fits.items() if shapes.get(part) == (len(names),)}


def columns_from_json(data: object) -> Columns:
    """Rebuild the names of columns from JSON; ``None`` stands for none.

    Raises:
        ConfigError: if they are not lists of texts by part.
    """
    given = {} if data is None else data
    if not isinstance(given, dict) or not all(
        isinstance(names, list) and all(isinstance(each, str) for each in names) for names in given.values()
    ):
        raise ConfigError(f"the columns are {data!r:.100}; they must be lists of texts by part: use another file")
    return {str(part): tuple(names) for part, names in given.items()}


def merge_columns(one: Columns, other: Columns, who: str, what: str) -> Columns:
    """Return the names of the columns of both. A single column of actions may have any name.

    Raises:
        ShapeError: if an array has other names in ``one``, called ``who``, than in ``other``, called ``what``.
    """
    for part, names in one.items() if one is not other else ():
        given = other.get(part, names)
        if given != names and not (part == _ACTION and len(names) == len(given) == 1):
            array, _, path = part.partition(".")
            label = f"part {path!r} of the {array}s" if path else f"{array}s"
            raise ShapeError(
                f"the {label} of {what} come from a table with the columns {', '.join(given)!s:.300}, those of {who} "
                f"from one with {', '.join(names)!s:.300}; both must be the same in the same order: select the columns "
                "of the table in that order, or give arrays, table.to_numpy(), if only the names differ"
            )
    return {**one, **other}


def order_tables(name: str, tree: Tree, columns: Columns, **options: bool) -> Tree:
    """Return observations whose tables are arrays with their columns in the order of ``columns``.

    ``options`` are those of `birl.spaces.conversion.order_columns`, which raises its errors.
    """
    if not columns or isinstance(tree, np.ndarray):
        return tree

    def order(leaf: object, part: str) -> object:
        _, _, path = part.partition(".")
        label = f"{name}[{path!r}]" if path else name
        return order_columns(label, leaf, columns[part], **options) if part in columns else leaf

    return map_named_leaves(order, tree, _OBSERVATION)


def order_actions(name: str, actions: Any, columns: Columns, *, row: bool = False) -> Any:
    """Return a table of actions as an array with its columns in the order of ``columns``, and anything else unchanged.

    A table of single numbers, such as discrete actions, is unchanged, too: its column may have any name.

    Args:
        name: name of the actions, for messages.
        actions: ``[n, …]`` in any form.
        columns: names of the columns.
        row: whether it is a single action; see `birl.spaces.conversion.order_columns`, which raises its errors.
    """
    names = columns.get(_ACTION, ())
    return order_columns(name, actions, names, row=row) if len(names) > 1 else actions


# -- data ----------------------------------------------------------------------------------------------------------


def infer_observations(arrays: Tree, space: object = None) -> Tree:
    """Infer the kinds of logged observations ``[N, …]``: integers ``[N]`` are choices from 0, all others are numbers.

    Args:
        arrays: tree of arrays.
        space: their space or shape, if it is known; see `parse_observations`.

    Raises:
        ShapeError: if they are not in the space, or integers ``[N]`` are negative or implausibly large.
        ConfigError: if ``space`` describes no observations.
    """
    if space is None:
        return map_named_leaves(_infer_leaf, arrays)
    observations = parse_observations(space)
    check_observations(observations, arrays)
    return observations


def _infer_leaf(array: Array, name: str) -> ObservationLeaf:
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        return Numbers(tuple(array.shape[1:]))
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= _MOST_VALUES:
        raise ShapeError(
            f"observations{f' {name!r}' if name else ''} are integers from {least} to {most}, one per step; "
            f"choices must be from 0 to at most {_MOST_VALUES - 1}. Give floats if they are quantities, or describe "
            f"them with {_SPACE_HINT}"
        )
    return Choices((most + 1,))


def check_observations(observations: Tree, arrays: Tree, name: str = "observations") -> None:
    """Raise `ShapeError` unless arrays ``[n, …]`` are such observations; ``name`` is for messages."""
    rows = dict(_leaf_names(arrays))
    for key, leaf in _leaf_names(observations):
        array = np.asarray(rows.get(key))
        whole = f"{name} {key!r}" if key else name
        if key not in rows or len(rows) != len(_leaf_names(observations)) or array.shape[1:] != leaf.shape:
            given = ", ".join(f"{part or 'one array'} {np.shape(x)[1:]}" for part, x in rows.items())
            raise ShapeError(
                f"{name} have the shapes {given:.200}; their space has {observations}: give the space of these data"
            )
        check_observation_leaf(leaf, array, whole)


def check_observation_leaf(leaf: ObservationLeaf, rows: Array, name: str) -> None:
    """Raise `ShapeError` unless ``rows`` ``[n, *shape]`` are such leaves; ``name`` is for messages."""
    index = leaf.first_outside(rows)
    if index is not None:
        raise ShapeError(
            f"{name} {rows[index].tolist()!s:.80} at step {index} is not in {leaf}: correct the data, or describe "
            f"them with {_SPACE_HINT}"
        )


def check_action_mask(observation: Tree, error: type[BirlError], what: str) -> None:
    """Raise ``error`` if the mask of actions of observations ``[n, …]`` has values other than 0 and 1.

    The meaning of other numbers is unclear: in a mask that is added to logits, 0 means allowed.
    """
    if isinstance(observation, dict) and MASK in observation:
        mask = np.asarray(observation[MASK])
        wrong = mask[(mask != 0) & (mask != 1)]
        if wrong.size:
            raise error(f"{what} holds {wrong[0]!s:.80}; it must hold zeros and ones: give 1 for each allowed action")


def widen_observations(first: Tree, second: Tree) -> Tree:
    """Return the observations that cover those of two datasets of the same shapes."""

    def widen(one: ObservationLeaf, other: ObservationLeaf) -> ObservationLeaf:
        if not isinstance(one, Choices) or not isinstance(other, Choices):
            return Numbers(one.shape)
        starts = tuple(map(min, one.starts, other.starts))
        ends = [max(a + m, b + n) for a, m, b, n in zip(one.starts, one.sizes, other.starts, other.sizes, strict=True)]
        return Choices(tuple(end - start for end, start in zip(ends, starts, strict=True)), starts, one.shape)

    return tree_map(widen, first, match_parts(first, second))
