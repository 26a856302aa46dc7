"""Checks of users' data. Each error names the given and the allowed values and says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import Space

from birl.checks import check
from birl.errors import ActionError, ConfigError, DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.spaces import KINDS, Actions, Continuous, Discrete, actions_in, actions_told, as_rows
from birl.spaces.observations import check_mask
from birl.types import FLOAT32_MAX, MASK, ActionSpace, Array, Tree, tree_leaves

RESERVED = ("next_action", "next_action_known", "discounted_return", "episode")
"""Names of `MiniBatch.extra` that are no columns of the data."""


def as_array(name: str, value: Any) -> Array:
    """``value`` as an array of numbers or booleans.

    Raises:
        ShapeError: for ragged, text and object data.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"{name} cannot be made one array ({error}): give all steps the same shape") from error
    if array.dtype.kind in "US":
        raise ShapeError(
            f"the dtype of {name} is {array.dtype}, text; it must be bool, integer or float: read the column as "
            f"numbers, or number the words with np.unique({name}, return_inverse=True)[1]"
        )
    if array.dtype.kind not in "biuf":
        raise ShapeError(
            f"the dtype of {name} is {array.dtype}; it must be bool, integer or float: convert them with "
            f"np.asarray({name}, dtype=np.float32) and give all steps the same shape"
        )
    return array


def as_observation(name: str, value: Any, part: str) -> Array:
    """One part of observations (``""`` for all of it) as an array of numbers or booleans.

    Raises:
        ShapeError: for ragged, text and object data, with what leaves the part out.
    """
    if not part:
        return as_array(name, value)
    try:
        return as_array(f"{name}[{part!r}]", value)
    except ShapeError as error:
        raise ShapeError(f"{error}. Or leave it out by naming the other parts: observation_keys=(…)") from error


def check_allowed(observations: Tree, actions: Array, what: Actions) -> None:
    """Check that the masks in ``observations`` ``[N, …]``, if they have any, allow what is stored as ``actions``.

    Raises:
        ActionError: naming the first that is not.
    """
    if not isinstance(observations, dict) or MASK not in observations or isinstance(what, Continuous):
        return
    masks = observations[MASK]
    step = what.masked_out(actions, masks != 0)
    if step is not None:
        wrong = actions[step].tolist()
        raise ActionError(
            f"the action {wrong if what.shape else wrong[0]} of step {step} is not allowed by its {MASK} "
            f"{masks[step].tolist()!s:.80}: a mask has 1 for each action that could have been taken"
        )


def as_column(name: str, value: Any) -> Array:
    """One number per step: ``[N]`` or ``[N, 1]``, returned as ``[N, 1]``."""
    array = as_array(name, value)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != 1:
        raise ShapeError(f"the shape of {name} is {np.shape(value)}; it must be (N,) or (N, 1): one number per step")
    return array


def as_flags(name: str, value: Any) -> Array:
    """Zeros and ones ``[N]`` or ``[N, 1]`` as a new bool array ``[N]``."""
    column = as_column(name, value)[:, 0]
    wrong = np.flatnonzero((column != 0) & (column != 1))
    if wrong.size:
        raise DataError(f"{name}[{wrong[0]}] is {column[wrong[0]]}; it must be 0 or 1: mark episode ends with 1")
    return column.astype(bool)


def as_masks(name: str, value: Any) -> Array:
    """Zeros and ones ``[N, A]`` as bytes."""
    array = as_array(name, value)
    if array.ndim != 2:
        raise DataError(f"{name} has the shape {array.shape}; it must be zeros and ones of shape (N, A)")
    check_mask({MASK: array}, DataError, name)
    return array.astype(np.uint8)


def as_extra(extra: Any) -> dict[str, Array]:
    """Further columns of steps, by name, as arrays of finite numbers; ``None`` for none.

    Raises:
        ConfigError: if they are no mapping, or a name is one that minibatches give to columns of their own.
        ShapeError, NonFiniteError: if they are not numbers.
    """
    check("extra", extra, Mapping, ": give arrays by name", optional=True)  # type: ignore[type-abstract]
    columns: dict[str, Array] = {}
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or name in RESERVED:
            raise ConfigError(
                f"extra has a column {name!r:.60}; a name must be text, and none of {', '.join(RESERVED)}, which "
                "minibatches have themselves: give it another one"
            )
        columns[name] = np.atleast_1d(as_array(f"extra[{name!r}]", value))
        check_finite(f"extra[{name!r}]", columns[name])
    return columns


def as_ids(ids: Any) -> Array:
    """Ids of episodes as an array of numbers, texts or objects.

    Raises:
        ShapeError: for ragged and structured data.
    """
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise ShapeError(f"episode_ids cannot be made one array ({error}): give one id per step") from error
    if array.dtype.kind == "V":
        raise ShapeError(f"episode_ids have the fields {array.dtype.names}; give one of them, or number the episodes")
    return array


def last_steps(ids: Any) -> Array:
    """Whether each step ``[N]`` is the last of its episode, from the ``ids`` of episodes, ``[N]`` or ``[N, 1]``.

    Raises:
        ShapeError: if they are not one id for each step.
        DataError: if an id is missing (NaN, ``None``), or if the steps of an episode are not one after the other.
    """
    array = as_ids(ids)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ShapeError(f"the shape of episode_ids is {array.shape}; it must be (N,) or (N, 1): one id per step")
    absent: Any = [each is None for each in array] if array.dtype.kind == "O" else False
    missing = np.flatnonzero((array != array) | absent | np.ravel(np.ma.getmaskarray(ids)))
    if missing.size:
        raise DataError(f"episode_ids[{missing[0]}] is {array[missing[0]]}: give every step the id of its episode")
    ends = np.append(array[1:] != array[:-1], np.ones(len(array[:1]), bool))
    seen: set[Any] = set()
    for step in np.flatnonzero(ends)[:-1] + 1:
        seen.add(array[step - 1])
        if array[step] in seen:
            raise DataError(
                f"episode_ids[{step}] is {array[step]!s:.60} again, after steps of other episodes: sort the rows by "
                "episode and time first; if an id was used for several episodes, make each one's own"
            )
    return ends


def check_finite(name: str, tree: Tree) -> None:
    """Raise `NonFiniteError` naming the first step with NaN or infinity, or with what would be infinite in float32."""
    for leaf in tree_leaves(tree):
        if leaf.dtype.kind != "f" or _fits_float32(leaf):
            continue
        finite = np.isfinite(leaf)
        beyond = bool(finite.all())
        where = tuple(int(axis[0]) for axis in np.nonzero(np.abs(leaf) > FLOAT32_MAX if beyond else ~finite))
        found = f"{name}{list(where) if where else ''} is {leaf[where]}"
        if beyond:
            raise NonFiniteError(
                f"{found}; it must be a number from {-FLOAT32_MAX:.3g} to {FLOAT32_MAX:.3g}, the range of float32, in "
                f"which networks compute: scale {name}, or repair or drop the episode that holds it"
            )
        raise NonFiniteError(f"{found}; it must be a finite number: repair or drop the episode that holds it")


def _fits_float32(leaf: Array) -> bool:
    """Whether all numbers are finite in float32, too."""
    if leaf.dtype.itemsize <= 4 or not leaf.size:
        return bool(np.isfinite(leaf).all())
    return bool(leaf.min() >= -FLOAT32_MAX and leaf.max() <= FLOAT32_MAX)  # neither is so if there is NaN


def check_length(**arrays: Tree) -> int:
    """The common number of steps of trees of arrays.

    Raises:
        ShapeError: if lengths differ.
        EmptyDataError: if there is no step.
    """
    lengths: dict[str, int] = {}
    for name, tree in arrays.items():
        leaves = [len(np.atleast_1d(leaf)) for leaf in tree_leaves(tree)]
        lengths |= {name if len(leaves) == 1 else f"{name}[{index}]": length for index, length in enumerate(leaves)}
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ShapeError(f"numbers of steps differ: {given}. Give every array one row per step")
    length = next(iter(lengths.values()))
    if not length:
        raise EmptyDataError("there are 0 steps, at least 1 is needed: check how the data was read")
    return length


def detect_action_space(actions: Any) -> ActionSpace:
    """Kind of logged actions, from their dtype.

    Integers ``[N]`` or ``[N, 1]`` are discrete, floats are continuous. What could be either is not guessed.

    Raises:
        ActionError: for floats ``[N]`` that are all whole and non-negative, and for integers ``[N, A]`` with A > 1.
    """
    array = as_array("actions", actions)
    if array.dtype.kind in "biu":
        if array.ndim == 1 or array.shape[1:] == (1,):
            return ActionSpace.DISCRETE
        raise ActionError(
            f"actions are integers of shape {array.shape}: for several choices per step give "
            "action_space=ActionSpace.MULTI_DISCRETE (or action_size= the environment's action space), for quantities "
            "floats or action_space=ActionSpace.CONTINUOUS"
        )
    if array.ndim == 1 and array.size and bool(np.all((array >= 0) & (array == np.floor(array)))):
        raise ActionError(
            f"actions are whole numbers of dtype {array.dtype} and shape {array.shape}, which could be discrete or "
            "continuous: say which with action_space=ActionSpace.DISCRETE or action_space=ActionSpace.CONTINUOUS, or "
            "give integers for discrete and (N, 1) floats for continuous actions"
        )
    return ActionSpace.CONTINUOUS


def detect_action_size(actions: Any, action_space: ActionSpace) -> int:
    """Number of dimensions (continuous) or the largest action plus one (discrete).

    Raises:
        ActionError: if that were more discrete actions than can be meant, or the kind is not one.
        EmptyDataError: if there is no action.
    """
    return actions_shown(actions, _one_kind(action_space)).size


def actions_shown(logged: Any, kind: ActionSpace) -> Actions:
    """The actions of a log ``[N]`` or ``[N, A]``, of which only the kind is known.

    Raises:
        ActionError: if there would be more choices than can be meant.
        EmptyDataError: if there is no action.
    """
    array = as_array("actions", logged)
    check_length(actions=array)
    return actions_in(array, kind)


def _one_kind(space: Any) -> ActionSpace:
    if not isinstance(space, ActionSpace) or space not in KINDS:
        known = ", ".join(str(each.name) for each in KINDS)
        raise ActionError(f"action_space is {space!r:.80}; it must be an ActionSpace of {known}: data have one kind")
    return space


def prepare_actions(actions: Any, action_space: ActionSpace | None, action_size: Any = None) -> tuple[Array, Actions]:
    """Actions as they are stored, ``[N, *leaf.shape]``, and what they are; the size is found in them if not given.

    Integers are converted to float32 only if they are said to be continuous, whole floats to int64 only if they are
    said to be discrete.

    Args:
        actions: logged ones; in parts, if ``action_size`` is a Dict or Tuple space.
        action_space: their kind; ``None`` to find it.
        action_size: see `birl.spaces.actions_told`.
    """
    kind = None if action_space is None else _one_kind(action_space)
    if isinstance(action_size, Space):
        actions = as_rows(action_size, actions)
    elif isinstance(actions, Mapping):
        raise ShapeError(f"actions have the parts {list(actions)!s:.100}: give action_size= the action space, too")
    array = as_array("actions", actions)
    check_finite("actions", array)
    if array.ndim == 0 or array.ndim > 2:
        raise ShapeError(f"the shape of actions is {array.shape}; it must be (N,) or (N, A): flatten each action")
    if kind is None and (action_size is None or isinstance(action_size, int | np.integer)):
        kind = detect_action_space(array)
    array = array[:, None] if array.ndim == 1 else array
    found = actions_shown(array, cast(ActionSpace, kind)) if action_size is None else actions_told(action_size, kind)
    return found.stored(array), found


def check_stored(actions: Actions, stored: Array) -> None:
    """Raise `ShapeError` or `ActionError` unless what is stored ``[N, A]`` are such actions."""
    if stored.shape[1:] != actions.leaf.shape:
        raise ShapeError(f"action_size={actions.told}, but actions have {stored.shape[1]} dimensions: omit action_size")
    # quantities have no bounds here
    index = None if actions.kind is ActionSpace.CONTINUOUS else actions.outside(stored)
    if index is None:
        return
    if actions != Discrete(actions.size):
        raise ActionError(
            f"action {stored[index].tolist()} at step {index} is none of {actions.allowed}: give action_size= the "
            "action space of the environment that the steps are from"
        )
    renumber = "renumber the actions from 0, np.unique(actions, return_inverse=True)[1], or give"
    if stored[index, 0] < 0:
        raise ActionError(
            f"action {stored[index, 0]} at step {index} is negative, but discrete actions are counted from 0: "
            f"{renumber} floats (N, 1) if they are quantities, or action_size= the environment's action space"
        )
    raise ActionError(
        f"action {stored[index, 0]} at step {index} is outside 0 … {actions.size - 1}: {renumber} action_size= the "
        "number of actions"
    )
