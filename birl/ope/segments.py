"""Gains by segment: who gains, and who loses although all together gain.

A segment is a value of a column that is known before the action: a column of the observation at the first step, or an
extra column that is constant within episodes. Each segment is evaluated by itself. The intervals are simultaneous: with
m segments each has the confidence ``1 - alpha / m`` (Bonferroni), so all of them together cover the true gains with
probability ``1 - alpha`` or more.

A column that becomes known only after the action, such as whether a customer bought, selects episodes by what the
policy is judged by. In logs with right propensities, no segment depends on the actions: given the observation, actions
are random. `first_dependence` tests that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from birl.dataset.log_record import LogRecord
from birl.dataset.log_schema import RESERVED
from birl.errors import ConfigError, DataError, did_you_mean
from birl.ope.episode_arrays import LoggedEpisodes
from birl.ope.estimators import Estimate
from birl.ope.intervals import t_interval
from birl.ope.named_columns import NamedColumn, ObservationColumns
from birl.spaces.conversion import Columns
from birl.types import Array, tree_map

MAX_SEGMENTS: Final = 20
"""Largest number of values of a column of segments."""
MAX_DISTINCT: Final = 8
"""Numbers with more different values are divided into quarters."""
MIN_EPISODES: Final = 30
"""Segments with fewer episodes or clusters are not evaluated; see ``limits.toml``."""
_DEPENDENCE_ERROR: Final = 1e-5
"""Probability that any test of a column that is known before the action finds a dependence."""
_MIN_CORRELATION: Final = 0.05
"""Weaker dependences are not refused: propensities are rounded or estimated."""


def check_names(segments: Sequence[str]) -> Sequence[str]:
    """Return the names of columns of segments.

    Raises:
        ConfigError: if they are not a list of texts.
    """
    if isinstance(segments, str) or not all(isinstance(each, str) for each in segments):
        raise ConfigError(f"segments is {segments!r:.80}; it must be a list of names of columns, such as ['channel']")
    return segments


def read_segments(
    names: Sequence[str], logs: LoggedEpisodes, columns: Columns, record: LogRecord | None, outcomes: Collection[str]
) -> dict[str, Array]:
    """Return the indices of the episodes of each segment, by its name.

    Args:
        names: names of columns.
        logs: the episodes, with these extra columns, as far as there are such.
        columns: names of the elements of observations.
        record: record of the import, which names the categories of extra columns.
        outcomes: columns that constraints limit.

    Raises:
        ConfigError: if there is no such column, it is an outcome, or it has too many values.
        DataError: if it changes within an episode, or depends on the action.
    """
    reader = ObservationColumns(columns, logs.observations)
    found: dict[str, Array] = {}
    for name in dict.fromkeys(names):
        why = f"the segment {name!r:.60}"
        code, labels = _codes(name, _read(name, logs, reader, record, outcomes, why), why)
        _check_independent(name, code, labels, logs)
        found |= {label: np.flatnonzero(code == index) for index, label in enumerate(labels)}
    return found


def _read(
    name: str,
    logs: LoggedEpisodes,
    reader: ObservationColumns,
    record: LogRecord | None,
    outcomes: Collection[str],
    why: str,
) -> NamedColumn:
    """Return the value of each episode, ``[n]``."""
    schema = None if record is None else record.schema
    after = {} if schema is None else {each: role for role, each in schema.roles() if role in _AFTER}
    role = "an outcome" if name in outcomes else _AFTER.get(after.get(name, ""))
    if role is not None:
        raise ConfigError(
            f"{why} is {role}, which is not known before the action; a segment must be: give a column of the "
            "observation, or one that describes the episode"
        )
    first = logs.first_steps
    if name in reader.names:
        return reader.read(name, tree_map(lambda leaf: leaf[first], logs.observations), why)
    if name not in logs.extra or (name in RESERVED and name != "logger"):
        known = [*reader.names, *(each.column for each in (schema.segment if schema is not None else ()))]
        raise ConfigError(
            f"{why} is no column of the data{did_you_mean(name, known)}; it must be a column of the observation "
            f"({', '.join(known)!s:.200}) or an extra column with one value for each episode: name it in the schema "
            f"([[segment]] column = {name!r:.60}) and import again, or give it in extra= of the dataset"
        )
    steps = np.asarray(logs.extra[name], np.float64)
    if steps.size != len(steps):
        raise ConfigError(f"{why} has the shape {steps.shape}; it must have one number for each step: give one column")
    steps = steps.reshape(-1)
    changed = np.flatnonzero(steps != np.repeat(steps[first], logs.mask.sum(1)))
    if changed.size:
        episode = int(np.searchsorted(first, changed[0], "right")) - 1
        raise DataError(
            f"{why} changes from {steps[first[episode]]:g} to {steps[changed[0]]:g} at step "
            f"{changed[0] - first[episode]} of episode {episode}, so it may be an outcome of actions; it must be known "
            "before the first action: write the value of the first step in all steps of an episode"
        )
    part = next((each for each in (schema.segment if schema is not None else ()) if each.column == name), None)
    labels = () if part is None else (*map(str, part.values), *(["unknown"] * part.unknown))
    return NamedColumn(steps[first], labels)


_AFTER: Final = {
    "action": "the action",
    "reward": "the reward",
    "outcome": "an outcome",
    "propensity": "a propensity of the action",
    "terminated": "a mark of ends",
    "truncated": "a mark of ends",
}
"""Roles of columns that become known with the action or after it."""


def _codes(name: str, column: NamedColumn, why: str) -> tuple[Array, list[str]]:
    """Return the segment of each episode, ``[n]``, and the names of segments."""
    values, missing = column.values, np.isnan(column.values)
    distinct = np.unique(values[~missing])
    if column.labels:
        code = np.where(missing, len(column.labels), values).astype(np.int64)
        labels = [f"{name} = {label}" for label in column.labels]
    elif len(distinct) <= MAX_DISTINCT or (len(distinct) <= MAX_SEGMENTS and (distinct == np.floor(distinct)).all()):
        code = np.where(missing, len(distinct), np.searchsorted(distinct, values))
        labels = [f"{name} = {value:.6g}" for value in distinct]
    else:
        ends = np.unique(np.quantile(values[~missing], [0.25, 0.5, 0.75]))
        code = np.where(missing, len(ends) + 1, np.searchsorted(ends, values))
        inner = [f"{low:.4g} < {name} <= {high:.4g}" for low, high in pairwise(ends)]
        labels = [f"{name} <= {ends[0]:.4g}", *inner, f"{name} > {ends[-1]:.4g}"]
    labels += [f"{name} is missing"] * bool(missing.any())
    used = np.unique(code)
    if len(used) > MAX_SEGMENTS:
        raise ConfigError(
            f"{why} has {len(used)} values; at most {MAX_SEGMENTS} are allowed, because each needs enough episodes: "
            "group them"
        )
    return np.searchsorted(used, code), [labels[index] for index in used]


def _check_independent(name: str, code: Array, labels: Sequence[str], logs: LoggedEpisodes) -> None:
    """Raise `DataError` if a segment depends on the actions."""
    if (found := first_dependence(code, len(labels), logs)) is None:
        return
    segment, action, correlation = found
    raise DataError(
        f"the segment {labels[segment]!r:.80} depends on the action: its correlation with action "
        f"{action + logs.start}, given the propensities, is {correlation:.3f}, and chance is excluded; a segment must "
        f"be known before the action: give another column if {name!r:.60} is known only after it, or correct the "
        "propensities if the policy that acted knew it"
    )


def first_dependence(code: Array, count: int, logs: LoggedEpisodes) -> tuple[int, int, float] | None:
    """Return segment, action and correlation of a dependence of segments on actions; ``None`` if there is none.

    The residual of action a in an episode is ``sum_t (1[a_t = a] - b(a|s_t))``, with the mean 0 given what was known
    before. If only the propensities of the logged actions are known, it is ``sum_t (1[a_t = a] / b(a_t|s_t) - 1)``. A
    segment depends on an action if the covariance of its indicator with the residual is not 0, by Student's t with the
    error level 1e-5 for all pairs together, and the correlation is 0.05 or more.

    Args:
        code: the segment of each episode, ``[n]``.
        count: number of segments.
        logs: episodes with one discrete action; for others there is no such test.
    """
    if not logs.n_actions or logs.log_propensity is None or count < 2 or len(code) < MIN_EPISODES:
        return None
    if logs.cluster is not None and len(np.unique(logs.cluster)) < 2:
        return None
    episode = np.repeat(np.arange(len(code)), logs.mask.sum(1))
    pair = episode * logs.n_actions + logs.action
    weight = None if logs.propensities is not None else np.exp(-logs.log_propensity)
    residual = np.bincount(pair, weight, len(code) * logs.n_actions).reshape(len(code), -1)
    if logs.propensities is None:
        residual = residual - logs.mask.sum(1)[:, None]
    else:
        residual = residual - np.add.reduceat(logs.propensities, logs.first_steps, axis=0)
    residual = (residual - residual.mean(0)).T
    spread = residual.std(1)
    confidence = 1 - _DEPENDENCE_ERROR / (count * logs.n_actions)
    for segment in range(count):
        inside = (code == segment) - np.mean(code == segment)
        terms = Estimate(inside * residual)
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = np.nan_to_num(terms.value / (inside.std() * spread))
        significant = ~t_interval(terms, confidence, logs.cluster).holds(0.0)
        wrong = significant & (np.abs(correlation) >= _MIN_CORRELATION)
        if wrong.any():
            action = int(np.abs(np.where(wrong, correlation, 0)).argmax())
            return segment, action, float(correlation[action])
    return None
