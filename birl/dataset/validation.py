"""Checks and conversions of users' data. Each error gives the value, the allowed values, and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import Space

from birl.checks import check
from birl.errors import (
    ActionError,
    ConfigError,
    DataError,
    EmptyDataError,
    NonFiniteError,
    OneHotActionWarning,
    ShapeError,
    UnloggedActionWarning,
    outside_birl,
)
from birl.spaces import (
    KINDS,
    Actions,
    Continuous,
    Discrete,
    MultiDiscrete,
    flatten_actions,
    infer_actions,
    parse_actions,
)
from birl.spaces.actions import ONE_HOT, is_one_hot
from birl.spaces.conversion import check_present, to_array
from birl.spaces.observations import check_action_mask
from birl.types import FLOAT32_MAX, MASK, ActionSize, ActionSpace, Array, Tree, tree_leaves

RESERVED = ("next_action", "next_action_known", "discounted_return", "episode")
"""Names in `MiniBatch.extra` that are reserved for computed columns."""


def as_observation(name: str, value: npt.ArrayLike, part: str, *, nan: bool = False) -> Array:
    """Convert one part of observations (``""`` for a whole observation) to an array of numbers or booleans.

    Raises:
        ShapeError: for ragged, text and object data. The message says how to leave the part out.
    """
    if not part:
        return to_array(name, value, nan=nan)
    try:
        return to_array(f"{name}[{part!r}]", value, nan=nan)
    except ShapeError as error:
        raise ShapeError(f"{error}. Or leave it out by naming the other parts: observation_keys=(…)") from error


def check_mask_allows(observations: Tree, actions: Array, spec: Actions) -> None:
    """Check that the action masks in ``observations`` ``[N, …]``, if there are any, allow the stored ``actions``.

    Raises:
        ActionError: naming the first action that its mask does not allow.
    """
    if not isinstance(observations, dict) or MASK not in observations or isinstance(spec, Continuous):
        return
    masks = observations[MASK]
    step = spec.first_masked(actions, masks != 0)
    if step is not None:
        wrong = actions[step].tolist()
        raise ActionError(
            f"the action {wrong if spec.shape else wrong[0]} of step {step} is not allowed by its {MASK} "
            f"{masks[step].tolist()!s:.80}: a mask has 1 for each action that could have been taken"
        )


def as_column(name: str, value: npt.ArrayLike) -> Array:
    """Convert one number per step, ``[N]`` or ``[N, 1]``, to ``[N, 1]``."""
    array = to_array(name, value)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != 1:
        raise ShapeError(f"the shape of {name} is {np.shape(value)}; it must be (N,) or (N, 1): one number per step")
    return array


def as_flags(name: str, value: npt.ArrayLike, count: int | None = None) -> Array:
    """Convert booleans, or numbers 0 and 1, ``[N]`` or ``[N, 1]`` to a new bool array ``[N]``.

    Raises:
        ShapeError, DataError: if they are anything else, or not ``count`` flags.
    """
    column = as_column(name, value)[:, 0]
    if count is not None and len(column) != count:
        raise ShapeError(f"{name} has shape {np.shape(value)} for {count} steps: give one row per step")
    if column.dtype == np.bool_:
        return column.copy()
    wrong = np.flatnonzero((column != 0) & (column != 1))
    if wrong.size:
        raise DataError(f"{name}[{wrong[0]}] is {column[wrong[0]]}; it must be 0 or 1: give 1 for true")
    return column.astype(bool)


def as_masks(name: str, value: npt.ArrayLike) -> Array:
    """Convert zeros and ones ``[N, A]`` to uint8."""
    array = to_array(name, value)
    if array.ndim != 2:
        raise DataError(f"{name} has the shape {array.shape}; it must be zeros and ones of shape (N, A)")
    check_action_mask({MASK: array}, DataError, name)
    return array.astype(np.uint8)


def as_extra(extra: Mapping[str, npt.ArrayLike] | None) -> dict[str, Array]:
    """Convert extra columns of steps, by name, to arrays of finite numbers.

    Raises:
        ConfigError: if ``extra`` is not a mapping, or a name is reserved.
        ShapeError, NonFiniteError: if a column does not hold finite numbers.
    """
    check("extra", extra, Mapping, ": give arrays by name", optional=True)  # type: ignore[type-abstract]
    columns: dict[str, Array] = {}
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or name in RESERVED:
            raise ConfigError(
                f"extra has a column {name!r:.60}; a name must be text, and none of {', '.join(RESERVED)}, which are "
                "reserved: rename the column"
            )
        columns[name] = np.atleast_1d(to_array(f"extra[{name!r}]", value))
        check_finite(f"extra[{name!r}]", columns[name])
    return columns


def as_ids(ids: npt.ArrayLike) -> Array:
    """Convert ids of episodes to an array of numbers, texts or objects.

    Raises:
        ShapeError: for ragged and structured data.
        DataError: if an id is masked or missing.
    """
    check_present("episode_ids", ids)
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise ShapeError(f"episode_ids cannot be made one array ({error}): give one id per step") from error
    if array.dtype.kind == "V":
        raise ShapeError(f"episode_ids have the fields {array.dtype.names}; give one of them, or number the episodes")
    return array


def last_steps(ids: npt.ArrayLike) -> Array:
    """Return whether each step ``[N]`` is the last of its episode, from the ``ids`` of episodes ``[N]`` or ``[N, 1]``.

    Raises:
        ShapeError: if there is not one id for each step.
        DataError: if an id is missing (NaN, ``None``), or the steps of an episode are not consecutive.
    """
    array = as_ids(ids)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ShapeError(f"the shape of episode_ids is {array.shape}; it must be (N,) or (N, 1): one id per step")
    absent: Any = [each is None for each in array] if array.dtype.kind == "O" else False
    missing = np.flatnonzero((array != array) | absent | np.ravel(np.ma.getmaskarray(cast(Array, ids))))
    if missing.size:
        raise DataError(f"episode_ids[{missing[0]}] is {array[missing[0]]}: give every step the id of its episode")
    ends = np.append(array[1:] != array[:-1], np.ones(len(array[:1]), bool))
    seen: set[Any] = set()
    for step in np.flatnonzero(ends)[:-1] + 1:
        seen.add(array[step - 1])
        if array[step] in seen:
            raise DataError(
                f"episode_ids[{step}] is {array[step]!s:.60} again, after steps of other episodes: sort the rows by "
                "episode and time first; if several episodes share an id, give each its own"
            )
    return ends


def check_finite(name: str, tree: Tree) -> None:
    """Raise `NonFiniteError` for the first step with NaN, infinity, or a number outside the range of float32."""
    for leaf in tree_leaves(tree):
        if leaf.dtype.kind != "f" or _fits_float32(leaf):
            continue
        finite = np.isfinite(leaf)
        too_large = bool(finite.all())
        where = tuple(int(axis[0]) for axis in np.nonzero(np.abs(leaf) > FLOAT32_MAX if too_large else ~finite))
        found = f"{name}{list(where) if where else ''} is {leaf[where]}"
        if too_large:
            raise NonFiniteError(
                f"{found}; it must be a number from {-FLOAT32_MAX:.3g} to {FLOAT32_MAX:.3g}, the range of float32, in "
                f"which networks compute: scale {name}, or repair or drop the episode that holds it"
            )
        raise NonFiniteError(f"{found}; it must be a finite number: repair or drop the episode that holds it")


def _fits_float32(leaf: Array) -> bool:
    """Return whether all numbers are finite in float32."""
    if leaf.dtype.itemsize <= 4 or not leaf.size:
        return bool(np.isfinite(leaf).all())
    return bool(leaf.min() >= -FLOAT32_MAX and leaf.max() <= FLOAT32_MAX)  # both are false if there is NaN


def check_length(**arrays: Tree) -> int:
    """Return the common number of steps of trees of arrays.

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


def detect_action_space(actions: npt.ArrayLike) -> ActionSpace:
    """Return the kind of logged actions, from their dtype.

    Integers ``[N]`` or ``[N, 1]`` are discrete, floats are continuous. Ambiguous actions are an error.

    Raises:
        ActionError: for floats ``[N]`` that are all whole and non-negative, and for integers ``[N, A]`` with A > 1.
    """
    array = to_array("actions", actions)
    if array.dtype.kind in "biu":
        if array.ndim == 1 or array.shape[1:] == (1,):
            return ActionSpace.DISCRETE
        if is_one_hot(array):
            raise ActionError(f"actions are integers of shape {array.shape}{ONE_HOT} for discrete actions")
        raise ActionError(
            f"actions are integers of shape {array.shape}: for several choices per step give "
            "action_space=ActionSpace.MULTI_DISCRETE (or action_size= the environment's action space), for continuous "
            "actions floats or action_space=ActionSpace.CONTINUOUS"
        )
    if array.ndim == 1 and array.size and bool(np.all((array >= 0) & (array == np.floor(array)))):
        raise ActionError(
            f"actions are whole numbers of dtype {array.dtype} and shape {array.shape}, which could be discrete or "
            "continuous: set action_space=ActionSpace.DISCRETE or action_space=ActionSpace.CONTINUOUS, or give "
            "integers for discrete and (N, 1) floats for continuous actions"
        )
    if is_one_hot(array):
        warnings.warn(
            f"actions of shape {array.shape} are taken as continuous{ONE_HOT} for discrete actions, or "
            "action_space=ActionSpace.CONTINUOUS if they are continuous",
            OneHotActionWarning,
            stacklevel=outside_birl(),
        )
    return ActionSpace.CONTINUOUS


def detect_action_size(actions: npt.ArrayLike, action_space: ActionSpace) -> int:
    """Return the number of dimensions (continuous) or the largest action plus one (discrete).

    Raises:
        ActionError: if there are implausibly many discrete actions, or ``action_space`` is not one kind.
        EmptyDataError: if there is no action.
    """
    return actions_of_log(actions, _check_kind(action_space)).size


def actions_of_log(logged: npt.ArrayLike, kind: ActionSpace) -> Actions:
    """Infer the actions' spec from logged actions ``[N]`` or ``[N, A]`` of a known kind.

    Raises:
        ActionError: if there are implausibly many choices.
        EmptyDataError: if there is no action.
    """
    array = to_array("actions", logged)
    check_length(actions=array)
    return infer_actions(array, kind)


def _check_kind(space: object) -> ActionSpace:
    if not isinstance(space, ActionSpace) or space not in KINDS:
        known = ", ".join(str(each.name) for each in KINDS)
        raise ActionError(f"action_space is {space!r:.80}; it must be an ActionSpace of {known}: data have one kind")
    return space


def prepare_actions(
    actions: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    action_space: ActionSpace | None,
    action_size: ActionSize = None,
) -> tuple[Array, Actions]:
    """Return actions in their stored form ``[N, *leaf.shape]`` and their spec, which is inferred if it is not given.

    Integers are converted to float32 only with ``ActionSpace.CONTINUOUS``, whole floats to int64 only with
    ``ActionSpace.DISCRETE``.

    Args:
        actions: logged actions; in parts, if ``action_size`` is a Dict or Tuple space.
        action_space: their kind; ``None`` to infer it.
        action_size: see `birl.spaces.parse_actions`.
    """
    kind = None if action_space is None else _check_kind(action_space)
    if isinstance(action_size, Space):
        actions = flatten_actions(action_size, actions)
    elif isinstance(actions, Mapping):
        raise ShapeError(f"actions have the parts {list(actions)!s:.100}: give action_size= the action space, too")
    array = to_array("actions", actions)
    check_finite("actions", array)
    if array.ndim == 0 or array.ndim > 2:
        raise ShapeError(f"the shape of actions is {array.shape}; it must be (N,) or (N, A): flatten each action")
    if kind is None and (action_size is None or isinstance(action_size, int | np.integer)):
        kind = detect_action_space(array)
    array = array[:, None] if array.ndim == 1 else array
    found = actions_of_log(array, cast(ActionSpace, kind)) if action_size is None else parse_actions(action_size, kind)
    return found.to_stored(array), found


def warn_of_unlogged_actions(actions: Actions, logged: Iterable[Array]) -> None:
    """Warn if no step holds some of the discrete actions whose number was inferred from the largest one.

    Args:
        actions: the inferred spec.
        logged: stored actions ``[N, D]`` of each part of the data.
    """
    if not isinstance(actions, Discrete | MultiDiscrete):
        return
    counts = [np.zeros(size, np.int64) for size in actions.options]
    for rows in logged:
        for count, column in zip(counts, rows.reshape(len(rows), -1).T, strict=True):
            count += np.bincount(column.astype(np.int64), minlength=len(count))[: len(count)]
    for index, count in enumerate(counts):
        absent = np.flatnonzero(count == 0).tolist()
        if not absent:
            continue
        names, first = ", ".join(map(str, absent[:10])) + ", …" * (len(absent) > 10), int(np.flatnonzero(count)[0])
        whose = f" of choice {index}" if len(counts) > 1 else ""
        remedy = f"give action_size={actions.size_argument} if they exist"
        if len(counts) == 1 and len(absent) == first:
            remedy += f", action_size=gymnasium.spaces.Discrete({len(count) - first}, start={first}) if they do not"
        elif len(counts) == 1:
            remedy += "; if not, renumber the actions, np.unique(actions, return_inverse=True)[1]"
        warnings.warn(
            f"{len(absent)} of {len(count)} actions{whose} are in none of {int(count.sum())} steps: {names}. Actions "
            f"are counted from 0 to the largest one, so a policy may choose these, whose values it cannot learn: "
            f"{remedy}",
            UnloggedActionWarning,
            stacklevel=outside_birl(),
        )


def check_stored(actions: Actions, stored: Array) -> None:
    """Raise `ShapeError` or `ActionError` unless ``stored`` ``[N, A]`` are actions of this spec."""
    if stored.shape[1:] != actions.storage_spec.shape:
        raise ShapeError(
            f"action_size={actions.size_argument}, but actions have {stored.shape[1]} dimensions: omit action_size"
        )
    # continuous actions have no bounds here
    index = None if actions.kind is ActionSpace.CONTINUOUS else actions.first_outside(stored)
    if index is None:
        return
    if actions != Discrete(actions.size):
        raise ActionError(
            f"action {stored[index].tolist()} at step {index} is none of {actions.valid_range}: give action_size= the "
            "action space of the environment that the steps come from"
        )
    renumber = "renumber the actions from 0, np.unique(actions, return_inverse=True)[1], or give"
    if stored[index, 0] < 0:
        raise ActionError(
            f"action {stored[index, 0]} at step {index} is negative, but discrete actions are counted from 0: "
            f"{renumber} floats (N, 1) if they are continuous, or action_size= the environment's action space"
        )
    raise ActionError(
        f"action {stored[index, 0]} at step {index} is outside 0 … {actions.size - 1}: {renumber} action_size= the "
        "number of actions"
    )
