"""Actions in arguments, files and logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space

from birl.errors import ActionError, ConfigError
from birl.spaces.actions import Continuous, Discrete
from birl.spaces.composite_actions import Actions, Composite, MultiDiscrete
from birl.spaces.environment_actions import actions_of
from birl.types import ActionSpace, Array

KINDS: Final = (ActionSpace.CONTINUOUS, ActionSpace.DISCRETE, ActionSpace.MULTI_DISCRETE, ActionSpace.COMPOSITE)
"""What data can hold."""

_MOST_ACTIONS: Final = 1_000_000
"""Sizes above this are not inferred: a network needs an output for each action, so such numbers are likely ids."""


def actions_told(size: Any, kind: ActionSpace | None = None) -> Actions:
    """The actions that ``action_size`` stands for.

    Args:
        size: number of dimensions or of choices; a list of numbers of options for several choices at once; a Gymnasium
            space; or what ``told`` of a kind says.
        kind: the kind, which a number does not tell; checked where ``size`` does.

    Raises:
        ConfigError: if it stands for no actions, or for those of another kind.
        ActionError: for spaces that no algorithm supports.
    """
    wanted = "a positive number, a list of numbers of options, or an action space: give env.action_space, for example"
    try:
        found = _read(size, kind)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"action_size is {size!r:.100}; it must be {wanted}") from error
    if kind is not None and found.kind is not kind:
        raise ConfigError(f"action_size is {size!r:.100}, which says {found.kind}, but action_space is {kind}")
    return found


def _read(size: Any, kind: ActionSpace | None) -> Actions:
    if isinstance(size, Actions):
        return size
    if isinstance(size, Space):
        return actions_of(size)
    if isinstance(size, Mapping) and "parts" in size:
        parts = tuple(map(_part, size["parts"]))
        if not parts:
            raise ValueError
        return Composite(parts)
    start: Any = 0
    if isinstance(size, Mapping):
        size, start = size["size"], size["start"]
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


def _part(told: Any) -> Continuous | Discrete:
    found = _read(told["size"], ActionSpace(told["kind"]))
    if isinstance(found, Continuous):
        return Continuous(found.size, free=told.get("free") is True)
    if not isinstance(found, Discrete):
        raise ValueError
    return found


def _number(value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        raise ValueError
    return int(value)


def actions_in(logged: Array, kind: ActionSpace) -> Actions:
    """The actions of a log ``[N, A]``, of which only the kind is known.

    Raises:
        ActionError: if there would be more choices than can be meant.
        ConfigError: if the kind alone does not tell them.
    """
    if kind is ActionSpace.CONTINUOUS:
        return Continuous(int(logged.shape[1]) if logged.ndim > 1 else 1)
    if kind is ActionSpace.COMPOSITE:
        raise ConfigError("actions of several parts are not told by their numbers: give action_size= the action space")
    columns = logged.reshape(len(logged), -1).T
    sizes = [_size_in(column) for column in columns]
    return Discrete(max(sizes, default=1)) if kind is ActionSpace.DISCRETE else MultiDiscrete(tuple(sizes))


def _size_in(column: Array) -> int:
    size = max(0, int(column.max(initial=0))) + 1
    if size > _MOST_ACTIONS:
        raise ActionError(
            f"the largest discrete action is {size - 1}, but only {len(np.unique(column))} values occur: renumber "
            f"the actions from 0 (np.unique(actions, return_inverse=True)[1]), or give action_size={size}"
        )
    return size
