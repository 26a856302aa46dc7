"""Kinds of actions from spaces, arguments and logs; actions in the form of environments."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from birl.errors import ActionError, BirlError, ConfigError, EnvironmentMismatchError, ShapeError
from birl.spaces.actions import Actions, Composite, Continuous, Discrete, MultiDiscrete, first_false, split_mask
from birl.spaces.conversion import column_names, to_array
from birl.types import MASK, ActionSpace, Array, Tree, tree_leaves

KINDS: Final = (ActionSpace.CONTINUOUS, ActionSpace.DISCRETE, ActionSpace.MULTI_DISCRETE, ActionSpace.COMPOSITE)
"""The kinds of actions in data."""

_MOST_ACTIONS: Final = 1_000_000
"""Larger sizes are not inferred: a network needs an output for each action, so such numbers are likely ids."""


def actions_from_space(space: object) -> Actions:
    """Return the actions of an action space (of Gymnasium or gym), with its bounds.

    Raises:
        ActionError: if no algorithm supports the space.
    """
    leaves = list(_leaves(space))
    parts = [part for leaf in leaves for part in _parts_of(leaf, space)]
    if not parts:
        raise ActionError(f"the action space {space} is empty; it must have at least one part: add one")
    if len(leaves) == 1 and leaves[0] is space and "Box" in _names(space):
        return parts[0]
    if len(leaves) == 1 and leaves[0] is space and "Discrete" in _names(space):
        return parts[0]
    if all(isinstance(part, Discrete) for part in parts):
        return MultiDiscrete(tuple(part.size for part in parts), tuple(part.start for part in parts))  # type: ignore[union-attr]
    return Composite(
        tuple(replace(part, unbounded=part.bounds is None) if isinstance(part, Continuous) else part for part in parts)
    )


def _names(space: object) -> frozenset[str]:
    return _class_names(cast(Hashable, type(space)))


@functools.cache
def _class_names(kind: Hashable) -> frozenset[str]:
    return frozenset(each.__name__ for each in cast(type, kind).__mro__)


class _LeafSpace(Protocol):
    """A space of Gymnasium or gym without parts. Which attributes it has depends on its class."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    n: int
    nvec: Array
    low: Array
    high: Array


def _read_space(space: object) -> _LeafSpace | Mapping[str, object] | Sequence[object]:
    """Return the parts of a Dict or Tuple space, and any other space itself."""
    own: Any = space
    return own.spaces if _names(space) & {"Dict", "Tuple"} else own  # others may have an attribute of this name


def _leaves(space: object) -> Iterator[_LeafSpace]:
    """Yield the spaces in nested Tuple and Dict spaces, in the order of `_part_names`."""
    parts = _read_space(space)
    if isinstance(parts, Mapping):
        for name in _part_names(parts):
            yield from _leaves(parts[name])
    elif isinstance(parts, Sequence):
        for part in parts:
            yield from _leaves(part)
    else:
        yield parts


def _part_names(parts: Mapping[str, object] | Sequence[object]) -> list[Any]:
    """Return the keys of a Dict space, sorted, or the indices of a Tuple space.

    Sorted, because files of spaces lose the original order of a Dict space.
    """
    return sorted(parts, key=str) if isinstance(parts, Mapping) else list(range(len(parts)))


def _parts_of(leaf: _LeafSpace, whole: object) -> list[Continuous | Discrete]:
    names = _names(leaf)
    if "Discrete" in names:
        return [Discrete(int(leaf.n), int(getattr(leaf, "start", 0)))]
    if "MultiDiscrete" in names:
        sizes = np.ravel(leaf.nvec)
        return list(map(Discrete, sizes.tolist(), np.ravel(getattr(leaf, "start", 0 * sizes)).tolist()))
    if "MultiBinary" in names:
        return [Discrete(2)] * math.prod(leaf.shape)
    if "Box" in names and math.prod(leaf.shape) > 0:
        dtype = leaf.dtype if leaf.dtype.kind == "f" else np.dtype(np.float32)
        low, high = (np.ravel(np.asarray(bound, dtype)) for bound in (leaf.low, leaf.high))
        return [Continuous(low.size, low, high, leaf.dtype.kind != "f")]
    context = "" if leaf is whole else f", in {whole!s:.200}"
    raise ActionError(
        f"the action space is {leaf}{context}; it must be Discrete, Box, MultiDiscrete or MultiBinary, or a Dict or "
        "Tuple of these: wrap the environment in gymnasium.wrappers.TransformAction"
    )


def space_from_actions(actions: Actions, low: npt.ArrayLike, high: npt.ArrayLike) -> Space[Any]:
    """Return the action space of an environment with these actions: a Tuple space for several parts.

    Args:
        actions: the actions.
        low, high: bounds ``[*actions.shape]`` of continuous actions.
    """
    if isinstance(actions, Discrete):
        return spaces.Discrete(actions.size, start=actions.start)
    if isinstance(actions, MultiDiscrete):
        return spaces.MultiDiscrete(list(actions.sizes), start=list(actions.starts))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), actions.shape) for bound in (low, high))
    if isinstance(actions, Continuous):
        low, high = (np.full_like(low, -np.inf), np.full_like(high, np.inf)) if actions.unbounded else (low, high)
        return spaces.Box(low, high, dtype=np.float32)
    columns = zip(actions.parts, actions.split_columns(low), actions.split_columns(high), strict=True)
    return spaces.Tuple([space_from_actions(part, least, greatest) for part, least, greatest in columns])


def unflatten_actions(space: Space[Any], rows: Array) -> Tree:
    """Convert rows of actions to the form of an action space.

    Args:
        space: action space of a single environment.
        rows: ``[n, *shape]``, as `birl.algos.Algorithm.predict` returns them.

    Returns:
        A dict or tuple of arrays ``[n, …]`` for Dict and Tuple spaces, else an array.
    """
    columns = rows.reshape(len(rows), -1)

    def unflatten(part: object) -> Tree:
        nonlocal columns
        parts = _read_space(part)
        if isinstance(parts, Mapping):
            return {name: unflatten(parts[name]) for name in _part_names(parts)}
        if isinstance(parts, Sequence):
            return tuple(map(unflatten, parts))
        width = math.prod(parts.shape)
        part_columns, columns = columns[:, :width], columns[:, width:]
        kind = np.dtype(parts.dtype)
        values = part_columns if kind.kind == "f" else np.rint(part_columns)
        return values.reshape(len(rows), *parts.shape).astype(kind, copy=False)

    return unflatten(space)


def action_at(space: object, batch: Tree, index: int) -> Tree:
    """Return the action of one environment among those of `unflatten_actions`: an int for a Discrete space."""
    parts = _read_space(space)
    if isinstance(parts, Mapping):
        return {name: action_at(part, batch[name], index) for name, part in parts.items()}
    if isinstance(parts, Sequence):
        return tuple(action_at(part, each, index) for part, each in zip(parts, batch, strict=True))
    return int(batch[index]) if "Discrete" in _names(space) else np.asarray(batch[index])


def flatten_actions(space: Space[Any], actions: object) -> Array:
    """Convert logged actions ``[n, …]`` of a space to rows ``[n, W]``; rows are returned as they are.

    Raises:
        ActionError: if no algorithm supports the space.
        ShapeError: if parts or shapes differ from those of the space.
    """
    actions_from_space(space)
    columns: list[Array] = []
    width = sum(math.prod(leaf.shape) for leaf in _leaves(space))
    if isinstance(actions, np.ndarray) and actions.shape[1:] == (width,):
        return actions

    def flatten(part: object, given: object) -> None:
        parts = _read_space(part)
        if not isinstance(parts, Mapping | Sequence):
            array = to_array("actions", given)
            if array.ndim == 0 or array.size != len(array) * math.prod(parts.shape):
                raise ShapeError(f"actions of {part} have shape {array.shape}; it must be {('n', *parts.shape)}")
            columns.append(array.reshape(len(array), -1))
            return
        if not isinstance(given, Mapping if isinstance(parts, Mapping) else tuple | list) or len(given) != len(parts):
            raise ShapeError(f"actions are {given!r:.100}; they must have a part for each of {part!s:.200}")
        for name in _part_names(parts):
            if isinstance(given, Mapping) and name not in given:
                raise ShapeError(f"actions have the parts {sorted(given)}; {name!r} of {part!s:.200} is missing")
            flatten(parts[name], given[name])

    flatten(space, actions)
    if len({len(each) for each in columns}) > 1:
        raise ShapeError(
            f"parts of actions have {[len(each) for each in columns]} rows; all must agree: give one row per step"
        )
    return np.concatenate(columns, -1)


def names_of_actions(space: Space[Any], actions: object) -> tuple[str, ...]:
    """Return the names of the numbers in rows of logged actions, for tables and for dicts and tuples that hold tables.

    Parts that are not tables have the names of the parts. There are none, ``()``, without tables, or if two are equal.

    Args:
        space: the action space.
        actions: actions that `flatten_actions` takes.
    """
    names: list[str] = []
    tables = False

    def read(part: object, given: Any, path: str) -> None:
        nonlocal tables
        parts = _read_space(part)
        if isinstance(parts, Mapping | Sequence):
            for name in _part_names(parts):
                read(parts[name], given[name], f"{path}.{name}" if path else str(name))
            return
        found, size = column_names(given), math.prod(parts.shape)
        tables |= bool(found)
        names.extend(found or ([path] if size == 1 else [f"{path}[{index}]" for index in range(size)]))

    if not isinstance(actions, np.ndarray):
        read(space, actions, "")
    return tuple(names) if tables and len(set(names)) == len(names) else ()


def sample_actions(space: Space[Any], n: int, generator: np.random.Generator) -> Array:
    """Sample actions of one environment's action space uniformly (standard normal where it has no bounds).

    Args:
        space: an action space.
        n: number of actions.
        generator: random number generator.

    Returns:
        int64 ``[n]`` or float32 ``[n, action_size]``; see `unflatten_actions` for further spaces.
    """
    return actions_from_space(space).sample(n, generator)


def read_action_mask(
    actions: Actions,
    observation: Tree,
    what: str = "environment",
    error: type[BirlError] = EnvironmentMismatchError,
) -> Array | None:
    """Read the mask of actions of observations ``[n, …]``: bool ``[n, A]``; ``None`` if they have no mask.

    Args:
        actions: the actions.
        observation: tree of arrays ``[n, …]``.
        what: name of a row, for messages.
        error: class of the error.

    Raises:
        EnvironmentMismatchError: if an observation allows no option of a choice (or ``error``).
    """
    if not _has_mask(actions, observation):
        return None
    allowed: Array = np.asarray(observation[MASK]) != 0
    index = first_false(np.stack([each.any(-1) for each in split_mask(actions, allowed)], -1))
    if index is not None:
        each = " for each choice" if len(actions.options) > 1 else ""
        raise error(
            f"{what} {index} allows no action: its {MASK!r} is {allowed[index].astype(int).tolist()!s:.80}, but the "
            f"episode goes on; a mask must have at least one 1{each} unless the episode has ended"
        )
    return allowed


def fill_empty_masks(actions: Actions, observation: Tree, where: Array | bool = True) -> tuple[Tree, Array]:
    """Replace masks that allow no option of a choice by ones, in observations without a following action.

    Args:
        actions: the actions.
        observation: tree of arrays ``[n, …]``.
        where: bool ``[n]``: rows that may be changed.

    Returns:
        The observations, and bool ``[n]``: the changed rows.
    """
    if not (np.any(where) and _has_mask(actions, observation)):
        return observation, np.zeros(len(next(tree_leaves(observation))), np.bool_)
    mask = np.array(observation[MASK])
    empty = [~each.any(-1) & where for each in split_mask(actions, mask)]
    for each, rows in zip(split_mask(actions, mask), empty, strict=True):
        each[rows] = 1  # a view of the copy
    return {**observation, MASK: mask}, np.logical_or.reduce(empty)


def _has_mask(actions: Actions, observation: Tree) -> bool:
    return bool(actions.options) and isinstance(observation, dict) and MASK in observation


def check_actions(actions: Actions, given: npt.ArrayLike, allowed: Array | None = None) -> None:
    """Check that actions lie in the action space of an environment, up to rounding.

    Args:
        actions: the actions of the environment.
        given: ``[n, *actions.shape]``.
        allowed: mask of actions, bool ``[n, A]``; ``None`` if all are allowed.

    Raises:
        ActionError: naming the first action that is NaN, outside the space or masked.
    """
    values = to_array("actions", given)
    index = actions.first_outside(values)
    if index is not None:
        ends = "" if actions.bounds else "minimum=…, maximum=…"  # the scaler needs a range if there are no bounds
        scaler = "" if actions.discrete else f"set action_scaler=birl.preprocessing.MinMaxActionScaler({ends}), or "
        raise ActionError(
            f"the action {values[index].tolist()!s:.100} for environment {index} is not in its action space; allowed "
            f"are {actions.valid_range}: {scaler}use an explorer whose actions are allowed"
        )
    if allowed is not None and not isinstance(actions, Continuous):
        index = actions.first_masked(values, allowed)
        if index is not None:
            raise ActionError(
                f"the action {values[index]} for environment {index} is masked; allowed are "
                f"{np.flatnonzero(allowed[index]).tolist()!s:.80}: use an explorer that reads the mask of actions, "
                f"observation[{MASK!r}]"
            )


def parse_actions(size: object, kind: ActionSpace | None = None) -> Actions:
    """Return the actions that ``action_size`` stands for.

    Args:
        size: number of dimensions or of options; a list of numbers of options for several choices; a Gymnasium space;
            actions; or their ``size_argument``.
        kind: the kind of actions. A number needs it; otherwise it is checked.

    Raises:
        ConfigError: if ``size`` stands for nothing, or for actions of another kind.
        ActionError: if no algorithm supports the space.
    """
    wanted = "a positive number, a list of numbers of options, or an action space: give env.action_space, for example"
    try:
        found = _parse(size, kind)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"action_size is {size!r:.100}; it must be {wanted}") from error
    if kind is not None and found.kind is not kind:
        raise ConfigError(
            f"action_size is {size!r:.100}, which means {found.kind}, but action_space is {kind}: leave one out"
        )
    return found


def _parse(size: object, kind: ActionSpace | None) -> Actions:
    if isinstance(size, Actions):
        return size
    if isinstance(size, Space):
        return actions_from_space(size)
    if isinstance(size, Mapping) and "parts" in size:
        parts = tuple(map(_parse_part, size["parts"]))
        if not parts:
            raise ValueError
        return Composite(parts)
    start: object = 0
    if isinstance(size, Mapping):
        start = size["start"]
        size = size["size"]
    if isinstance(size, list | tuple | np.ndarray):
        sizes = tuple(_number(each, 1) for each in size)
        starts = tuple(_number(each) for each in start) if isinstance(start, list | tuple) else (0,) * len(sizes)
        if not sizes or len(starts) != len(sizes):
            raise ValueError
        return MultiDiscrete(sizes, starts)
    if kind is ActionSpace.CONTINUOUS:
        return Continuous(_number(size, 1))
    if kind is ActionSpace.DISCRETE or start:
        return Discrete(_number(size, 1), _number(start))
    raise ValueError


def _parse_part(entry: Mapping[str, Any]) -> Continuous | Discrete:
    found = _parse(entry["size"], ActionSpace(entry["kind"]))
    if isinstance(found, Continuous):
        return Continuous(found.size, unbounded=entry.get("unbounded") is True)
    if not isinstance(found, Discrete):
        raise ValueError
    return found


def _number(value: object, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        raise ValueError
    return int(value)


def infer_actions(logged: Array, kind: ActionSpace) -> Actions:
    """Infer the actions of a log ``[N, A]`` of a known kind.

    Raises:
        ActionError: if there would be implausibly many options.
        ConfigError: if the kind is not sufficient.
    """
    if kind is ActionSpace.CONTINUOUS:
        return Continuous(int(logged.shape[1]) if logged.ndim > 1 else 1)
    if kind is ActionSpace.COMPOSITE:
        raise ConfigError(
            "the parts of COMPOSITE actions cannot be inferred from logged actions: give action_size=env.action_space"
        )
    columns = logged.reshape(len(logged), -1).T
    sizes = [_infer_size(column) for column in columns]
    return Discrete(max(sizes, default=1)) if kind is ActionSpace.DISCRETE else MultiDiscrete(tuple(sizes))


def _infer_size(column: Array) -> int:
    size = max(0, int(column.max(initial=0))) + 1
    if size > _MOST_ACTIONS:
        raise ActionError(
            f"the largest discrete action is {size - 1}, but only {len(np.unique(column))} values occur: renumber "
            f"the actions from 0 (np.unique(actions, return_inverse=True)[1]), or give action_size={size}"
        )
    return size
