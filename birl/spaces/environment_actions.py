"""Actions of environments: what spaces tell, and the form that environments take."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from birl.errors import ActionError, BirlError, EnvironmentMismatchError, ShapeError
from birl.spaces.actions import Continuous, Discrete, first_false
from birl.spaces.composite_actions import Actions, Composite, MultiDiscrete, split_mask
from birl.types import MASK, Array, Tree, tree_leaves


def actions_of(space: Any) -> Actions:
    """The actions of an environment's action space (of any library), with its bounds.

    Raises:
        ActionError: for spaces that no algorithm supports.
    """
    leaves = list(_leaves(space))
    parts = [part for leaf in leaves for part in _parts_of(leaf, space)]
    if not parts:
        raise ActionError(f"the action space is {space}, in which there is nothing to choose: give it a part")
    if len(leaves) == 1 and leaves[0] is space and "Box" in _names(space):
        return parts[0]
    if len(leaves) == 1 and leaves[0] is space and "Discrete" in _names(space):
        return parts[0]
    if all(isinstance(part, Discrete) for part in parts):
        return MultiDiscrete(tuple(part.size for part in parts), tuple(part.start for part in parts))  # type: ignore[union-attr]
    return Composite(
        tuple(replace(part, free=part.bounds is None) if isinstance(part, Continuous) else part for part in parts)
    )


def _names(space: Any) -> frozenset[str]:
    return _class_names(cast(Hashable, type(space)))


@functools.cache
def _class_names(kind: Hashable) -> frozenset[str]:
    return frozenset(each.__name__ for each in cast(type, kind).__mro__)


def _leaves(space: Any) -> Iterator[Any]:
    """The spaces in nested Tuple and Dict spaces, in our order."""
    if not _names(space) & {"Dict", "Tuple"}:  # others that have parts are no tree of them
        yield space
    else:
        for part in map(space.spaces.__getitem__, _names_of(space.spaces)):
            yield from _leaves(part)


def _names_of(parts: Any) -> list[Any]:
    """What the parts of a Dict or Tuple space are called, in our order: dicts by name.

    Their own order is that in which somebody wrote them down, and files of spaces lose it.
    """
    return sorted(parts, key=str) if isinstance(parts, Mapping) else list(range(len(parts)))


def _parts_of(leaf: Any, whole: Any) -> list[Continuous | Discrete]:
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
    within = "" if leaf is whole else f", in {whole!s:.200}"
    raise ActionError(
        f"the action space is {leaf}{within}; it must be Discrete, Box, MultiDiscrete or MultiBinary, or a Dict or "
        "Tuple of these: wrap the environment in gymnasium.wrappers.TransformAction"
    )


def space_of(actions: Actions, low: Any, high: Any) -> Space[Any]:
    """The space of actions that an environment would have: Tuple for several parts.

    Args:
        actions: what they are.
        low, high: bounds ``[*actions.shape]`` of quantities.
    """
    if isinstance(actions, Discrete):
        return spaces.Discrete(actions.size, start=actions.start)
    if isinstance(actions, MultiDiscrete):
        return spaces.MultiDiscrete(list(actions.sizes), start=list(actions.starts))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), actions.shape) for bound in (low, high))
    if isinstance(actions, Continuous):
        low, high = (np.full_like(low, -np.inf), np.full_like(high, np.inf)) if actions.free else (low, high)
        return spaces.Box(low, high, dtype=np.float32)
    columns = zip(actions.parts, actions.columns(low), actions.columns(high), strict=True)
    return spaces.Tuple([space_of(part, least, greatest) for part, least, greatest in columns])


def environment_actions(space: Any, rows: Array) -> Any:
    """Actions as environments of an action space take them.

    Args:
        space: of a single environment.
        rows: ``[n, *shape]``, as `birl.algos.Algorithm.predict` gives them.

    Returns:
        For Dict and Tuple spaces a dict or tuple of arrays ``[n, …]``; else an array.
    """
    columns = rows.reshape(len(rows), -1)

    def read(part: Any) -> Any:
        nonlocal columns
        parts = getattr(part, "spaces", None)
        if isinstance(parts, Mapping):
            return {name: read(parts[name]) for name in _names_of(parts)}
        if parts is not None:
            return tuple(map(read, parts))
        width = math.prod(part.shape)
        own, columns = columns[:, :width], columns[:, width:]
        kind = np.dtype(part.dtype)
        return (own if kind.kind == "f" else np.rint(own)).reshape(len(rows), *part.shape).astype(kind, copy=False)

    return read(space)


def one_of(space: Any, batch: Any, index: int) -> Any:
    """The action of one environment in those of `environment_actions`: a number for a Discrete space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {name: one_of(part, batch[name], index) for name, part in parts.items()}
    if parts is not None:
        return tuple(one_of(part, each, index) for part, each in zip(parts, batch, strict=True))
    return int(batch[index]) if "Discrete" in _names(space) else np.asarray(batch[index])


def as_rows(space: Any, actions: Any) -> Array:
    """Inverse of `environment_actions`: logged actions ``[n, …]`` of a space, or rows ``[n, W]``, as rows.

    Raises:
        ActionError: for spaces that no algorithm supports.
        ShapeError: if they do not have the parts of the space, or these have other shapes.
    """
    actions_of(space)
    columns: list[Array] = []
    width = sum(math.prod(leaf.shape) for leaf in _leaves(space))
    if isinstance(actions, np.ndarray) and actions.shape[1:] == (width,):
        return actions

    def read(part: Any, given: Any) -> None:
        parts = getattr(part, "spaces", None)
        if parts is None:
            array = np.asarray(given)
            if array.ndim == 0 or array.size != len(array) * math.prod(part.shape):
                raise ShapeError(f"actions of {part} have shape {array.shape}; it must be {('n', *part.shape)}")
            columns.append(array.reshape(len(array), -1))
            return
        names = _names_of(parts)
        if not isinstance(given, Mapping if isinstance(parts, Mapping) else tuple | list) or len(given) != len(parts):
            raise ShapeError(f"actions are {given!r:.100}; they must have a part for each of {part!s:.200}")
        for name in names:
            if isinstance(given, Mapping) and name not in given:
                raise ShapeError(f"actions have the parts {sorted(given)}; {name!r} of {part!s:.200} is missing")
            read(parts[name], given[name])

    read(space, actions)
    if len({len(each) for each in columns}) > 1:
        raise ShapeError(f"parts of actions have {[len(each) for each in columns]} rows: give one row per step")
    return np.concatenate(columns, -1)


def sample_actions(space: Space[Any], n: int, generator: np.random.Generator) -> Array:
    """Uniformly random actions of one environment's action space (standard normal where it has no bounds).

    Args:
        space: an action space.
        n: number of actions.
        generator: source of randomness.

    Returns:
        int64 ``[n]`` or float32 ``[n, action_size]``; see `environment_actions` for further spaces.
    """
    return actions_of(space).sample(n, generator)


def allowed_actions(
    actions: Actions,
    observation: Tree,
    what: str = "environment",
    error: type[BirlError] = EnvironmentMismatchError,
) -> Array | None:
    """Bool ``[n, A]``: the options that observations ``[n, …]`` allow; ``None`` if they have no mask.

    Args:
        actions: what they are.
        observation: tree of arrays ``[n, …]``.
        what, error: what a row is, for messages, and what is raised.

    Raises:
        EnvironmentMismatchError: if an observation allows none of a choice; ``error`` if that is another.
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


def open_masks(actions: Actions, observation: Tree, where: Any = True) -> tuple[Tree, Array]:
    """Observations ``[n, …]`` in which choices without any option have all of them: none is chosen there.

    Args:
        actions: what they are.
        observation: tree of arrays ``[n, …]``.
        where: bool ``[n]``: others are left as they are.

    Returns:
        The observations, and bool ``[n]``: where they were changed.
    """
    if not (np.any(where) and _has_mask(actions, observation)):
        return observation, np.zeros(len(next(tree_leaves(observation))), np.bool_)
    mask = np.array(observation[MASK])
    empty = [~each.any(-1) & where for each in split_mask(actions, mask)]
    for each, rows in zip(split_mask(actions, mask), empty, strict=True):
        each[rows] = 1  # parts of the copy
    return {**observation, MASK: mask}, np.logical_or.reduce(empty)


def _has_mask(actions: Actions, observation: Tree) -> bool:
    return bool(actions.options) and isinstance(observation, dict) and MASK in observation


def check_actions(actions: Actions, given: Any, allowed: Array | None = None) -> None:
    """Check that actions lie in an environment's space, up to rounding.

    Args:
        actions: what the environment takes.
        given: ``[n, *actions.shape]``.
        allowed: bool ``[n, A]``, of choices; ``None`` if all are.

    Raises:
        ActionError: naming the first action that is NaN, outside of the space or not allowed.
    """
    values = np.asarray(given)
    index = actions.outside(values)
    if index is not None:
        ends = "" if actions.bounds else "minimum=…, maximum=…"  # of a range to act in, where there are no bounds
        scaler = "" if actions.discrete else f"set action_scaler=birl.preprocessing.MinMaxActionScaler({ends}), or "
        raise ActionError(
            f"the action {values[index].tolist()!s:.100} for environment {index} is not in its action space; allowed "
            f"are {actions.allowed}: {scaler}use an explorer whose actions are allowed"
        )
    if allowed is not None and not isinstance(actions, Continuous):
        index = actions.masked_out(values, allowed)
        if index is not None:
            raise ActionError(
                f"the action {values[index]} for environment {index} is masked; allowed are "
                f"{np.flatnonzero(allowed[index]).tolist()!s:.80}: use an explorer that reads the mask of actions, "
                f"observation[{MASK!r}]"
            )
