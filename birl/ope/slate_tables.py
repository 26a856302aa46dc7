"""Slates from tables with one row for each position, as the Open Bandit Pipeline (OBP) has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from birl.dataset.logs.columns import Column, TableLike, check_not_empty, read_columns
from birl.errors import ActionError, ConfigError, DataError, NonFiniteError, ShapeError, did_you_mean
from birl.ope.slates import SlateProbabilities, Slates
from birl.types import Array

SLATE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "slate": ("slate_id", "slate", "impression_id", "list_id", "request_id"),
    "position": ("position", "rank", "slot"),
    "item": ("item", "item_id", "action"),
    "reward": ("reward", "click", "clicked"),
    "logged.slate": ("pscore",),
    "logged.prefix": ("pscore_cascade",),
    "logged.position": ("pscore_item_position", "propensity_score"),
    "logged.conditional": (),
    "policy.slate": ("evaluation_policy_pscore",),
    "policy.prefix": ("evaluation_policy_pscore_cascade",),
    "policy.position": ("evaluation_policy_pscore_item_position",),
    "policy.conditional": (),
    "policy.item": (),
    "cluster": ("cluster",),
}
"""Roles of columns, and their names in OBP and Open Bandit and others, which are recognised."""
_REQUIRED: Final = ("slate", "position", "item", "reward")


def slates_from_table(table: TableLike, columns: Mapping[str, str] | None = None) -> Slates:
    """Convert a table with one row for each position of each slate.

    Args:
        table: a dict of arrays ``[N]``, such as a ``BanditFeedback`` of OBP, or a table with ``__arrow_c_stream__``.
        columns: names of columns by role, for columns whose names are not recognised. The roles:

            - ``slate``: which rows are one slate; ``position``: numbers, the top one first; ``item``; ``reward``;
            - ``logged.slate``, ``logged.prefix``, ``logged.position``: probabilities under the logging policy, see
              `SlateProbabilities`, or ``logged.conditional``: of the item given those above, whose product is the
              prefix;
            - ``policy.slate`` and so on: the same under the evaluated policy; or ``policy.item``: the item that a
              deterministic policy shows at this position;
            - ``cluster``: such as the user.

    Returns:
        Slates in the order of their first rows. Items that are integers keep their numbers; others are numbered in the
        order of their values. If the policy has no columns, give its probabilities to `Slates.under`.

    Raises:
        ActionError: if a slate has an item twice; the message names both rows.
        DataError: if a column or a position of a slate is missing, a position is there twice, or probabilities do not
            fit, such as those of slates that change within a slate.
        ConfigError: if a role is unknown.
    """
    names = _find_columns(table, dict(columns or {}))
    chunks = list(read_columns(table, tuple(dict.fromkeys(names.values()))))
    check_not_empty(sum(len(next(iter(chunk.values())).missing) for chunk in chunks), "the table")
    values = {role: _values(role, name, [chunk[name] for chunk in chunks]) for role, name in names.items()}
    number, first = _number_slates(values["slate"])
    place = np.unique(values["position"], return_inverse=True)[1].reshape(-1)
    _check_positions(number, place, values)
    if "policy.item" in values:
        item, shown = _number_items(np.stack([values["item"], values["policy.item"]]))
    else:
        item = shown = _number_items(values["item"])
    _check_items(number, item, values)
    mask = np.zeros((len(first), place.max() + 1), bool)
    mask[number, place] = True

    def padded(rows: Array) -> Array:
        out = np.zeros(mask.shape, rows.dtype)
        out[number, place] = rows
        return out

    probabilities = {name: _probabilities(name, values, number, first, padded, mask) for name in ("logged", "policy")}
    if "policy.item" in values:
        probabilities["policy"] = SlateProbabilities.ranking(padded(shown), padded(item), mask)
    clusters = None
    if "cluster" in values:
        clusters = np.unique(values["cluster"], return_inverse=True)[1].reshape(-1)[first]
    return Slates(padded(item), padded(values["reward"].astype(np.float64)), mask, **probabilities, clusters=clusters)


def _find_columns(table: TableLike, given: dict[str, str]) -> dict[str, str]:
    """Return the names of the columns by role."""
    if unknown := [role for role in given if role not in SLATE_COLUMNS]:
        hint = did_you_mean(unknown[0], SLATE_COLUMNS)
        raise ConfigError(f"{unknown[0]!r:.60} is no role of a column; roles are {', '.join(SLATE_COLUMNS)}{hint}")
    if isinstance(table, Mapping):
        there = [str(name) for name in table]
    else:
        there = list(getattr(table, "column_names", None) or getattr(table, "columns", None) or ())
    names = dict(given)
    for role, known in SLATE_COLUMNS.items():
        found = [name for name in known if name in there and name not in given.values()]
        if role not in names and found:
            names[role] = found[0]
    if missing := [role for role in _REQUIRED if role not in names]:
        role = missing[0]
        advice = f"name it, columns={{{role!r}: …}}"
        if role == "slate":
            advice += (
                "; if the log does not say which rows were shown together, as Open Bandit does not, every row is a "
                "decision of its own: import it with one_step = true and the position as an observation"
            )
        raise DataError(
            f"the table has no column of the {role} ({', '.join(SLATE_COLUMNS[role])}); it has "
            f"{', '.join(map(repr, there[:20]))}: {advice}"
        )
    return names


def _values(role: str, name: str, chunks: list[Column]) -> Array:
    """Return the values of a column: text as text, others as numbers."""
    missing = np.concatenate([chunk.missing for chunk in chunks])
    if missing.any():
        raise NonFiniteError(
            f"row {int(np.argmax(missing)) + 1} of the table, column {name!r:.60}: the {role} is missing; every "
            "position that was shown needs one: fill it in, or leave the slate out"
        )
    parts = [chunk.values if chunk.labels is None else np.array(chunk.labels)[chunk.values] for chunk in chunks]
    values = np.concatenate(parts)
    if values.ndim > 1:
        raise ShapeError(f"column {name!r:.60}, the {role}, holds lists; it must hold one value for each position")
    numeric = role in ("position", "reward") or ("." in role and role != "policy.item")
    if numeric and values.dtype.kind not in "biuf":
        raise DataError(
            f"row 1 of the table, column {name!r:.60}: the {role} is {str(values[0])!r:.40}; it must be a number"
        )
    return values


def _number_items(values: Array) -> Array:
    """Return the numbers of items: their own if they are integers."""
    if values.dtype.kind in "iu":
        return values
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _number_slates(ids: Array) -> tuple[Array, Array]:
    """Number slates in the order of their first rows; return the number of each row, and the first rows."""
    _, first, index = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return order[index.reshape(-1)], np.sort(first)


def _check_positions(number: Array, place: Array, values: Mapping[str, Array]) -> None:
    """Raise `DataError` if a slate has a position twice, or lacks one above another."""
    order = np.lexsort((place, number))
    same = np.diff(number[order]) == 0
    if (twice := same & (np.diff(place[order]) == 0)).any():
        before, row = order[int(np.argmax(twice))], order[int(np.argmax(twice)) + 1]
        raise DataError(
            f"rows {before + 1} and {row + 1} of the table are both position {values['position'][row]} of slate "
            f"{values['slate'][row]!s:.60}; a position is there once: remove one of them, or give slates other names"
        )
    expected = np.arange(len(order)) - np.flatnonzero(np.append(True, ~same))[number[order]]
    if (hole := place[order] != expected).any():
        row = order[int(np.argmax(hole))]
        absent = np.unique(values["position"])[expected[int(np.argmax(hole))]]
        raise DataError(
            f"row {row + 1} of the table is position {values['position'][row]} of slate {values['slate'][row]!s:.60}, "
            f"which has no position {absent}; positions must follow one another from the top: log every position "
            "that was shown"
        )


def _check_items(number: Array, item: Array, values: Mapping[str, Array]) -> None:
    """Raise `ActionError` if a slate has an item twice."""
    order = np.lexsort((item, number))
    twice = (np.diff(number[order]) == 0) & (np.diff(item[order]) == 0)
    if twice.any():
        before, row = sorted(int(order[int(np.argmax(twice)) + k]) for k in (0, 1))
        raise ActionError(
            f"rows {before + 1} and {row + 1} of the table show item {values['item'][row]!s:.60} twice in slate "
            f"{values['slate'][row]!s:.60}; each item must be there once: remove one of them, or name items "
            "differently if positions choose from sets of their own"
        )


def _probabilities(
    name: str, values: Mapping[str, Array], number: Array, first: Array, padded: Callable[[Array], Array], mask: Array
) -> SlateProbabilities:
    """Return the probabilities under one policy."""
    found: dict[str, Array] = {}
    if (whole := values.get(f"{name}.slate")) is not None:
        changed = whole != whole[first][number]
        if changed.any():
            row = int(np.argmax(changed))
            raise DataError(
                f"row {row + 1} of the table: the probability of its slate is {whole[row]:.6g}, but "
                f"{whole[first][number][row]:.6g} in row {first[number[row]] + 1} of the same slate; it must be the "
                f"same: if these are probabilities of positions, name the column as {name}.position, or {name}.prefix "
                "if they include the items above"
            )
        found["slate"] = whole[first]
    for kind in ("prefix", "position"):
        if (rows := values.get(f"{name}.{kind}")) is not None:
            found[kind] = padded(rows.astype(np.float64))
    if (rows := values.get(f"{name}.conditional")) is not None:
        found["prefix"] = np.where(mask, padded(rows.astype(np.float64)), 1.0).cumprod(-1)
    return SlateProbabilities(**found)
