"""One pass over logged steps, some thousand at a time: what `birl.ope.report_data` knows of them.

In memory stay a few numbers of each episode, sums, sketches, and a sample of whole episodes for the models. All else is
read once and forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from birl.dataset.episodes import episode_table
from birl.dataset.flags import TERMINATED, TRUNCATED
from birl.dataset.logs.columns import rows_at_once
from birl.dataset.storage import Storage
from birl.errors import EmptyDataError
from birl.ope.audit.statistics import PARTS, ChoiceCounts, ColumnSums, Repeats, RewardSums, Steps, Times
from birl.spaces import Actions, Discrete
from birl.types import MASK, Array, tree_leaves

MOST_STEPS: Final = 50_000
MOST_NUMBERS: Final = 2**24
MOST_COLUMNS: Final = 512
"""Of wider observations so many numbers, evenly spread, are looked at."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Steps ``[N]`` of whole episodes drawn at random; of an episode longer than the sample, its first steps.

    Attributes:
        observation: float32 ``[N, D]``.
        action: whole numbers ``[N, C]`` for C choices, else float64 ``[N, A]``.
        reward: ``[N]``.
        episode: which episode, ``[N]``, and ``step``: which of its steps.
        extra: other columns by name.
        mask: which actions were possible, ``[N, A]``, or ``None``.
    """

    observation: Array
    action: Array
    reward: Array
    episode: Array
    step: Array
    extra: Mapping[str, Array]
    mask: Array | None

    @property
    def following(self) -> Array:
        """Indices of the steps that have a step after them in the sample; it is the next one."""
        return np.flatnonzero(self.episode[1:] == self.episode[:-1])


@dataclass(frozen=True, eq=False)
class Seen:
    """What a pass has seen.

    Attributes:
        names: of the numbers of an observation that were looked at, ``[D]``, of ``width`` there are.
        actions: what actions are.
        episodes: numbers of each episode ``[E]`` by name: ``length``, ``return``, ``discounted``, ``terminated``,
            ``truncated``, ``digest``, and, if they were logged, ``censored``, ``logger``, ``cluster``, ``begins``,
            ``ends``.
        columns: numbers of each column of observations ``[D]`` by name: ``mean``, ``std``, ``low``, ``high``,
            ``not_finite`` (a count).
        counts: of steps: ``steps``, ``repeated``, ``zero_rewards``, ``backwards``.
        reward: ``mean``, ``std``, ``low``, ``high``, ``last``: the share of all absolute rewards at last steps.
        taken: how often each discrete action was taken, ``[A]``, and ``possible``, how often it could be; or ``None``.
        gaps: number of times between steps by size: bins of an eighth of an octave; or ``None``.
        unique: about how many different ``observations`` and ``pairs`` of these with actions there are; exact up to
            65,536.
        sample: some steps.
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
    sample: Sample

    def has_gap_over(self, medians: float) -> float | None:
        """Share of times between steps that are longer than so many medians, to an eighth of an octave."""
        if self.gaps is None or not self.gaps.sum():
            return None
        half = int(np.searchsorted(self.gaps.cumsum(), self.gaps.sum() / 2))
        return float(self.gaps[half + 1 + math.ceil(PARTS * math.log2(medians)) :].sum() / self.gaps.sum())


def look(dataset: Any, *, gamma: float = 0.99, names: Sequence[str] | None = None, seed: int = 0) -> Seen:
    """Read all steps of a dataset once.

    Args:
        dataset: a `birl.dataset.ReplayBuffer`.
        gamma: discount of the discounted returns.
        names: of the numbers of an observation; their places if ``None`` or if there are others.
        seed: of the episodes that are drawn for the sample.

    Raises:
        EmptyDataError: if there is no step.
    """
    return _Pass(dataset, gamma, names, np.random.default_rng(seed)).run()


class _Pass:
    def __init__(self, dataset: Any, gamma: float, names: Sequence[str] | None, rng: np.random.Generator) -> None:
        self.storage: Storage = dataset.storage
        self.actions: Actions = dataset.dataset_info.actions
        self.gamma = gamma
        table = episode_table(self.storage)
        full = table.length > 0
        self.lane, self.start, self.length = (column[full] for column in table)
        if not len(self.length):
            raise EmptyDataError("the dataset has no steps: there is nothing to report")
        self.ends = self.length.cumsum()
        self.leaves = [name for name in tree_leaves(self.storage.observation_names) if name.split(".")[-1] != MASK]
        self.mask = next((n for n in tree_leaves(self.storage.observation_names) if n.split(".")[-1] == MASK), None)
        self._name_columns(names)
        budget = min(MOST_STEPS, MOST_NUMBERS // max(len(self.names), 1))
        order = rng.permutation(len(self.length))
        before = self.length[order].cumsum() - self.length[order]
        self.kept = np.zeros(len(self.length), np.int64)
        self.kept[order] = np.minimum(self.length[order], budget) * (before + self.length[order] <= budget)
        self.kept[order[0]] = min(self.length[order[0]], budget)
        width = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.storage.leaves.values())
        self.chunk = rows_at_once(max(width, 8 * len(self.names)))

    def _name_columns(self, names: Sequence[str] | None) -> None:
        own: list[str] = []
        for leaf in self.leaves:
            short = leaf.removeprefix("observation.") if len(self.leaves) > 1 else "observation"
            if (choices := self.storage.choices.get(leaf)) is not None:
                sizes = zip(choices.sizes, choices.starts or (0,) * len(choices.sizes), strict=True)
                own += [f"{short}[{i}] = {k + first}" for i, (size, first) in enumerate(sizes) for k in range(size)]
            else:
                own += [f"{short}[{k}]" for k in range(math.prod(self.storage.leaves[leaf].shape))]
        self.width = len(own)
        if names is not None and len(names) == self.width:
            own = list(names)
        chosen = np.unique(np.linspace(0, self.width - 1, min(self.width, MOST_COLUMNS)).astype(int))
        self.chosen, self.names = chosen, [own[k] for k in chosen]

    def _flat(self, raw: list[Array]) -> Array:
        """Observations as numbers ``[n, D]``: choices as one-hot vectors."""
        parts = []
        for leaf, values in zip(self.leaves, raw, strict=True):
            if (choices := self.storage.choices.get(leaf)) is None:
                parts.append(values.reshape(len(values), -1))
                continue
            flat = values.reshape(len(values), -1)
            for k, (size, first) in enumerate(zip(choices.sizes, choices.starts, strict=True)):
                parts.append(flat[:, k, None] == np.arange(first, first + size))
        parts = [part for part in parts if part.shape[1]]
        if not parts:
            return np.zeros((len(raw[0]), 0), np.float32)
        joined = parts[0] if len(parts) == 1 else np.concatenate([part.astype(np.float32) for part in parts], 1)
        return np.asarray(joined[:, self.chosen], np.float32)

    def run(self) -> Seen:
        """The pass."""
        total, extras = int(self.ends[-1]), list(self.storage.extra_names)
        columns, rewards = ColumnSums(len(self.names)), RewardSums(self.length, self.gamma)
        same, times = Repeats(len(self.length)), Times() if "extra.time" in extras else None
        choices = ChoiceCounts(self.actions, self.mask is not None) if isinstance(self.actions, Discrete) else None
        kept: dict[str, list[Array]] = {}
        for begin in range(0, total, self.chunk):
            steps = self._steps(np.arange(begin, min(begin + self.chunk, total)), extras)
            columns.add(steps.x)
            rewards.add(steps)
            same.add(steps)
            if times is not None:
                times.add(steps)
            if choices is not None:
                choices.add(steps)
            here = steps.step < self.kept[steps.episode]
            found = {"observation": steps.x, "action": steps.action, "reward": steps.reward}
            found |= {"episode": steps.episode, "step": steps.step, **steps.extra}
            for name, values in (found if steps.mask is None else {**found, MASK: steps.mask}).items():
                kept.setdefault(name, []).append(values[here])
        by = {"length": self.length, **rewards.by_episode, "digest": same.digest, **self._ends(extras)}
        counts = {"steps": total, "repeated": same.repeated, "zero_rewards": rewards.zeros}
        counts["backwards"] = 0 if times is None else times.backwards
        return Seen(
            names=self.names,
            width=self.width,
            actions=self.actions,
            episodes=by,
            columns=columns.told(total),
            counts=counts,
            reward=rewards.told(total),
            taken=None if choices is None else choices.taken,
            possible=None if choices is None else choices.possible,
            gaps=None if times is None else times.gaps,
            unique=same.unique(),
            sample=self._sample({name: np.concatenate(values) for name, values in kept.items()}),
        )

    def _steps(self, index: Array, extras: list[str]) -> Steps:
        """Steps by their places in the order of episodes."""
        episode = np.searchsorted(self.ends, index, side="right")
        step = index - (self.ends - self.length)[episode]
        rows = self.storage.rows(self.lane[episode], self.start[episode] + step)
        raw = [self._take(name, rows) for name in self.leaves]
        action, reward = self._take("action", rows), self._take("reward", rows).astype(np.float64)[:, 0]
        beside = {name: self._take(name, rows) for name in extras}
        mask = None if self.mask is None else self._take(self.mask, rows).reshape(len(rows), -1) != 0
        return Steps(episode, step, raw, self._flat(raw), action, reward, beside, mask)

    def _take(self, name: str, rows: Array) -> Array:
        place = self.storage.place
        return np.asarray(place.host(self.storage.take(name, place.indices(rows))))

    def _ends(self, extras: list[str]) -> dict[str, Array]:
        """What first and last steps of episodes say."""
        first = self.storage.rows(self.lane, self.start)
        end = self.storage.rows(self.lane, self.start + self.length - 1)
        flags = self.storage.flags[end]
        found = {"terminated": (flags & TERMINATED) != 0, "truncated": (flags & TRUNCATED) != 0}
        own = (("censored", first), ("logger", first), ("cluster", first), ("time", first))
        for name, rows in own:
            if f"extra.{name}" in extras:
                values = self._take(f"extra.{name}", rows).reshape(len(first), -1)[:, 0]
                found["begins" if name == "time" else name] = values
        if "begins" in found:
            found["ends"] = self._take("extra.time", end).reshape(-1)
        return found

    def _sample(self, kept: dict[str, Array]) -> Sample:
        action = kept["action"].reshape(len(kept["action"]), -1)
        if isinstance(self.actions, Discrete):
            action = action.astype(np.int64) - self.actions.start
        else:
            action = action.astype(np.float64)
        beside = {name.removeprefix("extra."): v for name, v in kept.items() if name.startswith("extra.")}
        x = np.nan_to_num(kept["observation"], nan=0.0, posinf=0.0, neginf=0.0)
        return Sample(x, action, kept["reward"], kept["episode"], kept["step"], beside, kept.get(MASK))
