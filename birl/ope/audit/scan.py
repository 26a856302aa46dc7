"""One scan over logged steps in batches of some thousand, which collects the statistics for `birl.ope.report_data`.

Only a few numbers of each episode, sums, sketches and a sample of whole episodes for models stay in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from birl.dataset.episodes import episode_table
from birl.dataset.flags import TERMINATED, TRUNCATED
from birl.dataset.logs.columns import chunk_rows
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.row_sketch import hash_rows
from birl.dataset.storage import Storage
from birl.errors import DataError, EmptyDataError, ShapeError
from birl.ope.audit.independence import Dependence, FirstSteps, find_dependence, join_clusters
from birl.ope.audit.statistics import (
    BINS_PER_OCTAVE,
    ActionCounts,
    ColumnMoments,
    Duplicates,
    LoggedSteps,
    RewardMoments,
    TimeGaps,
)
from birl.spaces import Actions, Discrete
from birl.types import MASK, Array, tree_leaves

MAX_STEPS: Final = 50_000
"""Largest number of steps in the sample."""
MAX_NUMBERS: Final = 2**24
"""Largest number of values of observations in the sample."""
_MAX_FIRST: Final = 2**25  # values of first observations that are kept
_MIN_DISTINCT: Final = 0.9  # of continuous actions; with a smaller share, equal actions are normal
_SCALARS: Final = ("log_propensity", "logger", "cluster", "time", "censored")
_TOLERANCE: Final = 1e-3  # of sums of propensities, which may be rounded
MAX_COLUMNS: Final = 512
"""Wider observations are represented by this many columns, evenly spaced."""


@dataclass(frozen=True, eq=False)
class LogStatistics:
    """Statistics of logged steps.

    Attributes:
        names: names of the columns of observations, ``[D]``.
        width: number of all columns of observations, which is more than D if observations are wide.
        actions: the action space.
        episodes: statistics of each episode ``[E]`` by name: ``length``, ``return``, ``discounted``, ``terminated``,
            ``truncated``, ``digest``, and, if logged, ``censored``, ``logger``, ``cluster``, ``begins``, ``ends``.
        columns: statistics of each column of observations ``[D]`` by name: ``mean``, ``std``, ``low``, ``high``,
            ``not_finite`` (a count).
        counts: numbers of steps: ``steps``, ``repeated``, ``zero_rewards``, ``backwards``.
        reward: statistics of rewards: ``mean``, ``std``, ``low``, ``high``, and ``last``, the share of absolute rewards
            that is earned in last steps.
        taken: number of steps in which each discrete action was taken, ``[A]``, or ``None``.
        possible: number of steps in which each discrete action was possible, ``[A]``, or ``None``.
        gaps: histogram of the times between steps, in bins of an eighth of an octave; or ``None``.
        unique: approximate numbers of different ``observations`` and of ``pairs`` with actions; exact up to 65,536.
        dependence: copies and other dependences of episodes.
        sample: steps of a random sample of whole episodes without copies; an episode longer than the sample is
            truncated.
    """

    names: Sequence[str]
    width: int
    actions: Actions
    episodes: Mapping[str, Array]
    columns: Mapping[str, Array]
    counts: Mapping[str, int]
    reward: Mapping[str, float]
    taken: Array | None
    possible: Array | None
    gaps: Array | None
    unique: Mapping[str, float]
    dependence: Dependence
    sample: LoggedSteps

    @property
    def clusters(self) -> Array | None:
        """Cluster of each episode ``[E]``, as logged and by the values of customers; ``None`` if none is known."""
        logged, customer = self.episodes.get("cluster"), self.dependence.customer
        return logged if customer is None else join_clusters(logged, customer)

    def share_of_gaps_over(self, medians: float) -> float | None:
        """Return the share of times between steps that exceed so many medians, to an eighth of an octave."""
        if self.gaps is None or not self.gaps.sum():
            return None
        half = int(np.searchsorted(self.gaps.cumsum(), self.gaps.sum() / 2))
        first = half + 1 + math.ceil(BINS_PER_OCTAVE * math.log2(medians))
        return float(self.gaps[first:].sum() / self.gaps.sum())


def scan(
    dataset: ReplayBuffer, *, gamma: float = 0.99, names: Sequence[str] | None = None, seed: int = 0
) -> LogStatistics:
    """Read all steps of a dataset once and return their statistics.

    Args:
        dataset: the episodes.
        gamma: discount of the discounted returns.
        names: names of the columns of observations. Without names, or if their number is wrong, indices are used.
        seed: random seed of the sample of episodes.

    Raises:
        EmptyDataError: if there is no step.
        ShapeError, DataError: if an extra column that checks read has another shape, or values that are impossible.
    """
    return _Scan(dataset, gamma, names, np.random.default_rng(seed)).run()


class _Scan:
    """A scan over a dataset; see `scan`."""

    def __init__(
        self, dataset: ReplayBuffer, gamma: float, names: Sequence[str] | None, rng: np.random.Generator
    ) -> None:
        self.storage: Storage = dataset.storage
        self.actions: Actions = dataset.dataset_info.actions
        self.gamma = gamma
        table = episode_table(self.storage)
        nonempty = table.length > 0
        self.lane, self.start, self.length = (column[nonempty] for column in table)
        if not len(self.length):
            raise EmptyDataError("the dataset has no steps; a report needs one or more: log episodes first")
        self.ends = self.length.cumsum()
        self.leaves = [name for name in tree_leaves(self.storage.observation_names) if name.split(".")[-1] != MASK]
        self.mask = next((n for n in tree_leaves(self.storage.observation_names) if n.split(".")[-1] == MASK), None)
        self._check_extra_shapes()
        self._name_columns(names)
        budget = min(MAX_STEPS, MAX_NUMBERS // max(len(self.names), 1))
        order = rng.permutation(len(self.length))
        self.seed = int(rng.integers(2**32))
        before = self.length[order].cumsum() - self.length[order]
        self.sampled = np.zeros(len(self.length), np.int64)  # number of steps of each episode in the sample
        self.sampled[order] = np.minimum(self.length[order], budget) * (before + self.length[order] <= budget)
        self.sampled[order[0]] = min(self.length[order[0]], budget)
        width = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.storage.leaves.values())
        self.batch_size = chunk_rows(max(width, 8 * len(self.names)))

    def _check_extra_shapes(self) -> None:
        """Raise `ShapeError` if an extra column that checks read has another shape."""
        wanted = dict.fromkeys(_SCALARS, 1)
        if isinstance(self.actions, Discrete):
            wanted["propensities"] = self.actions.size
        for name, size in wanted.items():
            leaf = self.storage.leaves.get(f"extra.{name}")
            if leaf is not None and math.prod(leaf.shape) != size:
                meaning = f"the propensities of all {size} actions" if name == "propensities" else "one number"
                raise ShapeError(
                    f"the extra column {name!r} has the shape {leaf.shape} in each step; it must be {meaning}: rename "
                    "the column if it is something else"
                )

    def _check_propensities(self, steps: LoggedSteps, begin: int) -> None:
        """Raise `DataError` if logged propensities of discrete actions are not probabilities."""
        if not isinstance(self.actions, Discrete):
            return
        columns: dict[str, tuple[Array, str]] = {}
        if (logged := steps.extra.get("extra.log_propensity")) is not None:
            fits = np.isfinite(logged) & (logged <= _TOLERANCE)
            columns["log_propensity"] = fits.reshape(-1), "the logarithm of a probability, at most 0 and finite"
        if (every := steps.extra.get("extra.propensities")) is not None:
            every = every.reshape(len(every), -1)
            fits = (every >= 0).all(1) & (np.abs(every.sum(1, dtype=np.float64) - 1) <= _TOLERANCE)
            columns["propensities"] = fits, "probabilities of all actions, with the sum 1"
        for name, (fits, meaning) in columns.items():
            if not fits.all():
                row = int(fits.argmin())
                raise DataError(
                    f"{name} is {steps.extra[f'extra.{name}'][row]!s:.80} at step {begin + row}; it must be {meaning}: "
                    "correct the column, or leave it out"
                )

    def _name_columns(self, names: Sequence[str] | None) -> None:
        columns: list[str] = []
        for leaf in self.leaves:
            prefix = leaf.removeprefix("observation.") if len(self.leaves) > 1 else "observation"
            if (choices := self.storage.choices.get(leaf)) is not None:
                sizes = zip(choices.sizes, choices.starts or (0,) * len(choices.sizes), strict=True)
                columns += [
                    f"{prefix}[{i}] = {k + start}" for i, (size, start) in enumerate(sizes) for k in range(size)
                ]
            else:
                columns += [f"{prefix}[{k}]" for k in range(math.prod(self.storage.leaves[leaf].shape))]
        self.width = len(columns)
        if names is not None and len(names) == self.width:
            columns = list(names)
        self.columns = np.unique(np.linspace(0, self.width - 1, min(self.width, MAX_COLUMNS)).astype(int))
        self.names = [columns[k] for k in self.columns]

    def _flatten(self, raw: list[Array]) -> Array:
        """Convert observations to numbers ``[n, D]``, discrete ones to one-hot vectors."""
        parts = []
        for leaf, values in zip(self.leaves, raw, strict=True):
            flat = values.reshape(len(values), -1)
            if (choices := self.storage.choices.get(leaf)) is None:
                parts.append(flat)
                continue
            for k, (size, start) in enumerate(zip(choices.sizes, choices.starts, strict=True)):
                parts.append(flat[:, k, None] == np.arange(start, start + size))
        parts = [part for part in parts if part.shape[1]]
        if not parts:
            return np.zeros((len(raw[0]), 0), np.float32)
        x = parts[0] if len(parts) == 1 else np.concatenate([part.astype(np.float32) for part in parts], 1)
        return np.asarray(x[:, self.columns], np.float32)

    def run(self) -> LogStatistics:
        """Scan all steps."""
        total, extras = int(self.ends[-1]), list(self.storage.extra_names)
        columns, rewards = ColumnMoments(len(self.names)), RewardMoments(self.length, self.gamma)
        duplicates, times = Duplicates(len(self.length)), TimeGaps() if "extra.time" in extras else None
        counts = ActionCounts(self.actions, self.mask is not None) if isinstance(self.actions, Discrete) else None
        sample: dict[str, list[Array]] = {}
        for begin in range(0, total, self.batch_size):
            steps = self._read(np.arange(begin, min(begin + self.batch_size, total)), extras)
            self._check_propensities(steps, begin)
            columns.add(steps.observation)
            rewards.add(steps)
            duplicates.add(steps)
            if times is not None:
                times.add(steps)
            if counts is not None:
                counts.add(steps)
            rows = steps.step < self.sampled[steps.episode]
            batch = {"observation": steps.observation, "action": steps.action, "reward": steps.reward}
            batch |= {"episode": steps.episode, "step": steps.step, **steps.extra}
            for name, values in (batch if steps.mask is None else {**batch, MASK: steps.mask}).items():
                sample.setdefault(name, []).append(values[rows])
        dependence = self._find_dependence(duplicates, extras)
        columns_of_sample = {name: np.concatenate(values) for name, values in sample.items()}
        original = ~dependence.copy[columns_of_sample["episode"]]
        if original.any():
            columns_of_sample = {name: values[original] for name, values in columns_of_sample.items()}
        return LogStatistics(
            names=self.names,
            width=self.width,
            actions=self.actions,
            episodes={
                "length": self.length,
                **rewards.by_episode,
                "digest": duplicates.digest,
                **self._read_ends(extras),
            },
            columns=columns.summary(total),
            counts={
                "steps": total,
                "repeated": duplicates.repeated,
                "zero_rewards": rewards.zeros,
                "backwards": 0 if times is None else times.backwards,
            },
            reward=rewards.summary(total),
            taken=None if counts is None else counts.taken,
            possible=None if counts is None else counts.possible,
            gaps=None if times is None else times.gaps,
            unique=duplicates.unique(),
            dependence=dependence,
            sample=self._sample(columns_of_sample),
        )

    def _read(self, index: Array, extras: list[str]) -> LoggedSteps:
        """Read steps by their indices in the order of episodes."""
        episode = np.searchsorted(self.ends, index, side="right")
        step = index - (self.ends - self.length)[episode]
        rows = self.storage.rows(self.lane[episode], self.start[episode] + step)
        raw = [self._take(name, rows) for name in self.leaves]
        return LoggedSteps(
            episode=episode,
            step=step,
            raw=raw,
            observation=self._flatten(raw),
            action=self._take("action", rows),
            reward=self._take("reward", rows).astype(np.float64)[:, 0],
            extra={name: self._take(name, rows) for name in extras},
            mask=None if self.mask is None else self._take(self.mask, rows).reshape(len(rows), -1) != 0,
        )

    def _find_dependence(self, duplicates: Duplicates, extras: list[str]) -> Dependence:
        """Find copies and other dependences by the first steps of all episodes."""
        index = self.ends - self.length
        width = max(1, min(len(self.names), _MAX_FIRST // len(index)))
        kept = np.unique(np.linspace(0, max(len(self.names) - 1, 0), width).astype(int))[: len(self.names)]
        parts: list[tuple[Array, ...]] = []
        for begin in range(0, len(index), self.batch_size):
            steps = self._read(index[begin : begin + self.batch_size], extras)
            logged = steps.extra.get("extra.log_propensity", np.full(len(steps.reward), np.nan))
            state, action = hash_rows(steps.raw), hash_rows([steps.action])
            parts.append((steps.observation[:, kept], state, action, logged.reshape(-1)))
        observation, state, action, logged = (np.concatenate(column) for column in zip(*parts, strict=True))
        content, propensity, whole = duplicates.content, None, None
        if "extra.log_propensity" in extras:
            propensity, whole = np.exp(logged.astype(np.float64)), np.exp(duplicates.log_propensity)
            if not isinstance(self.actions, Discrete):  # densities: the probability of an equal action is 0, or unknown
                distinct = len(np.unique(action)) >= _MIN_DISTINCT * len(np.unique(content))
                propensity = whole = np.zeros(len(action)) if distinct else None
        cluster, finite = self._read_ends(extras).get("cluster"), np.nan_to_num(observation, posinf=0.0, neginf=0.0)
        first = FirstSteps(content, finite, state, action, propensity, whole, cluster)
        found = find_dependence(first, self.seed)
        return replace(found, columns=tuple(int(kept[k]) for k in found.columns))

    def _take(self, name: str, rows: Array) -> Array:
        place = self.storage.place
        return np.asarray(place.host(self.storage.take(name, place.indices(rows))))

    def _read_ends(self, extras: list[str]) -> dict[str, Array]:
        """Read columns at the first and last steps of episodes."""
        first = self.storage.rows(self.lane, self.start)
        last = self.storage.rows(self.lane, self.start + self.length - 1)
        flags = self.storage.flags[last]
        columns = {"terminated": (flags & TERMINATED) != 0, "truncated": (flags & TRUNCATED) != 0}
        for name, rows in (("censored", first), ("logger", first), ("cluster", first), ("time", first)):
            if f"extra.{name}" in extras:
                values = self._take(f"extra.{name}", rows).reshape(len(first), -1)[:, 0]
                columns["begins" if name == "time" else name] = values
        if "begins" in columns:
            columns["ends"] = self._take("extra.time", last).reshape(-1)
        return columns

    def _sample(self, columns: dict[str, Array]) -> LoggedSteps:
        action = columns["action"].reshape(len(columns["action"]), -1)
        if isinstance(self.actions, Discrete):
            action = action.astype(np.int64) - self.actions.start
        else:
            action = action.astype(np.float64)
        return LoggedSteps(
            observation=np.nan_to_num(columns["observation"], nan=0.0, posinf=0.0, neginf=0.0),
            action=action,
            reward=columns["reward"],
            episode=columns["episode"],
            step=columns["step"],
            extra={name.removeprefix("extra."): v for name, v in columns.items() if name.startswith("extra.")},
            mask=columns.get(MASK),
        )
