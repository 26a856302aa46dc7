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

from birl.actions import Actions, Discrete
from birl.dataset.episodes import episode_table
from birl.dataset.log_columns import rows_at_once
from birl.dataset.storage import TERMINATED, TRUNCATED, Storage
from birl.errors import EmptyDataError
from birl.types import MASK, Array, tree_leaves

MOST_STEPS: Final = 50_000
MOST_NUMBERS: Final = 2**24
MOST_COLUMNS: Final = 512
"""Of wider observations so many numbers, evenly spread, are looked at."""
_SKETCH: Final = 2**16
_PARTS: Final = 8  # of an octave of time, in which gaps are counted


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
        return float(self.gaps[half + 1 + math.ceil(_PARTS * math.log2(medians)) :].sum() / self.gaps.sum())


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
        total, episodes, wide = int(self.ends[-1]), len(self.length), len(self.names)
        extras = list(self.storage.extra_names)
        by: dict[str, Array] = {name: np.zeros(episodes) for name in ("return", "discounted")}
        digest, offset = np.zeros(episodes, np.uint64), np.zeros(wide)
        sums, squares, bad = np.zeros(wide), np.zeros(wide), np.zeros(wide, np.int64)
        low, high = np.full(wide, np.inf), np.full(wide, -np.inf)
        counts = dict.fromkeys(("repeated", "zero_rewards", "backwards"), 0)
        money = {"low": np.inf, "high": -np.inf, "sum": 0.0, "square": 0.0, "all": 0.0, "last": 0.0}
        size, first = (self.actions.size, self.actions.start) if isinstance(self.actions, Discrete) else (None, 0)
        taken = None if size is None else np.zeros(size, np.int64)
        possible = None if size is None or self.mask is None else np.zeros(size, np.int64)
        gaps = np.zeros(_PARTS * 256, np.int64) if "extra.time" in extras else None
        sketch = {name: np.zeros(0, np.uint64) for name in ("observations", "pairs")}
        kept: dict[str, list[Array]] = {}
        last: tuple[int, Any, float] = (-1, np.uint64(0), 0.0)  # episode, hash and time of the step before
        for begin in range(0, total, self.chunk):
            index = np.arange(begin, min(begin + self.chunk, total))
            episode = np.searchsorted(self.ends, index, side="right")
            step = index - (self.ends - self.length)[episode]
            rows = self.storage.rows(self.lane[episode], self.start[episode] + step)
            raw = [self._take(name, rows) for name in self.leaves]
            action, reward = self._take("action", rows), self._take("reward", rows).astype(np.float64)[:, 0]
            beside = {name: self._take(name, rows) for name in extras}
            x = self._flat(raw)
            # columns, around their first values, so that squares of far ones keep their digits
            finite = np.isfinite(x)
            if begin == 0 and len(x):
                offset = np.where(finite[0], x[0], 0).astype(np.float64)
            clean = np.where(finite, x - offset, 0.0)
            sums, squares, bad = sums + clean.sum(0), squares + (clean**2).sum(0), bad + (~finite).sum(0)
            low = np.minimum(low, np.where(finite, x, np.inf).min(0))
            high = np.maximum(high, np.where(finite, x, -np.inf).max(0))
            # rewards and returns
            place = episode - episode[0]
            by["return"][episode[0] : episode[-1] + 1] += np.bincount(place, reward)
            by["discounted"][episode[0] : episode[-1] + 1] += np.bincount(place, reward * self.gamma**step)
            size_of = np.abs(reward)
            for name, value in (("sum", reward), ("square", reward**2), ("all", size_of)):
                money[name] += float(value.sum())
            money["last"] += float(size_of[step == self.length[episode] - 1].sum())
            money["low"], money["high"] = min(money["low"], reward.min()), max(money["high"], reward.max())
            counts["zero_rewards"] += int((reward == 0).sum())
            # what is the same
            of_state = _hash(raw)
            of_pair = _hash([of_state, action])
            of_step = _hash([of_pair, reward])
            of_row = _hash([of_step, *beside.values(), step])
            with np.errstate(over="ignore"):
                np.add.at(digest, episode, of_row)
            sketch["observations"] = _smallest(sketch["observations"], of_state)
            sketch["pairs"] = _smallest(sketch["pairs"], of_pair)
            same = np.append(last[0], episode[:-1]) == episode
            counts["repeated"] += int((same & (np.append(last[1], of_step[:-1]) == of_step)).sum())
            time = beside["extra.time"].reshape(-1).astype(np.float64) if gaps is not None else np.zeros(len(index))
            if gaps is not None:
                apart = (time - np.append(last[2], time[:-1]))[same]
                counts["backwards"] += int((apart <= 0).sum())
                bins = np.floor(_PARTS * (np.log2(apart[apart > 0]) + 128)).clip(0, len(gaps) - 1).astype(int)
                gaps += np.bincount(bins, minlength=len(gaps))
            last = (int(episode[-1]), of_step[-1], float(time[-1]))
            if taken is not None:
                taken += np.bincount(action.reshape(-1).astype(int) - first, minlength=len(taken))
            masks = None if self.mask is None else self._take(self.mask, rows).reshape(len(rows), -1) != 0
            if possible is not None and masks is not None:
                possible += masks.sum(0)
            here = step < self.kept[episode]
            found = {"observation": x, "action": action, "reward": reward, "episode": episode, "step": step, **beside}
            for name, values in (found if masks is None else {**found, MASK: masks}).items():
                kept.setdefault(name, []).append(values[here])
        n = np.maximum(total - bad, 1)
        spread = np.sqrt(np.maximum(squares / n - (sums / n) ** 2, 0))
        columns = {"mean": offset + sums / n, "std": spread, "low": low, "high": high, "not_finite": bad}
        mean = money["sum"] / total
        told = {"mean": mean, "std": math.sqrt(max(money["square"] / total - mean**2, 0.0))}
        told |= {"low": float(money["low"]), "high": float(money["high"])}
        told["last"] = money["last"] / money["all"] if money["all"] else 0.0
        by |= {"length": self.length, "digest": digest, **self._ends(extras)}
        unique = {name: _distinct(values) for name, values in sketch.items()}
        counts["steps"] = total
        sample = self._sample({name: np.concatenate(values) for name, values in kept.items()})
        return Seen(
            self.names, self.width, self.actions, by, columns, counts, told, taken, possible, gaps, unique, sample
        )

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


def _hash(columns: Sequence[Array]) -> Array:
    """A number for each row, ``[n]``, the same for rows with the same bytes."""
    found = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            flat = np.ascontiguousarray(column.reshape(len(column), -1))
            data = flat.view(np.uint8).reshape(len(flat), -1)
            data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
            words = data.view(np.uint64)
            odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + 1
            found = _mixed(found * np.uint64(0x9E3779B97F4A7C15) + (_mixed(words) * odd).sum(1, dtype=np.uint64))
    return found


def _mixed(x: Array) -> Array:
    """Bits of uint64 spread over all others (Steele et al. 2014, SplitMix)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _smallest(known: Array, new: Array) -> Array:
    """The smallest different hashes, from which their number follows (Bar-Yossef et al. 2002, k minimum values)."""
    return np.unique(np.concatenate([known, new]))[:_SKETCH]


def _distinct(smallest: Array) -> float:
    if len(smallest) < _SKETCH:
        return float(len(smallest))
    return float((_SKETCH - 1) / (float(smallest[-1]) / 2.0**64))
