"""Splits of a folder of episodes into parts for training, selection and certification."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset.arrays import ranges
from birl.dataset.buffers import InfiniteBuffer
from birl.dataset.episodes import EpisodeTable, episode_table
from birl.dataset.flags import FINAL
from birl.dataset.log_record import IMPORT, ROWS, read_import_files
from birl.dataset.logs.columns import chunk_rows
from birl.dataset.logs.files import check_replaceable, new_folder, write_import_record
from birl.dataset.logs.row_digests import row_digests
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.row_sketch import RowSketch
from birl.dataset.storage import Storage
from birl.errors import ConfigError, CorruptFileError, DataError, FileError, ForeignFileError
from birl.types import Array, tree_leaves

MIN_EPISODES: Final = 30
"""Fewest episodes (or clusters) from which a mean is estimated."""
UNITS: Final = ("episode", "cluster", "time")


def split(
    folder: str | os.PathLike[str],
    by: str,
    shares: Mapping[str, float],
    *,
    out: str | os.PathLike[str] | None = None,
    seed: int = 0,
    fresh: bool = False,
) -> dict[str, dict[str, int]]:
    """Split a folder of episodes into folders ``<out>/<name>``. Episodes are never cut.

    Args:
        folder: folder that `birl.dataset.logs.files.import_files` wrote.
        by: ``"episode"``: random episodes; ``"cluster"``: random whole clusters; ``"time"``: by the time of the first
            step, the first part the earliest.
        shares: name and share of the episodes of each part. Shares are above 0 and sum to at most 1.
        out: folder of the parts; by default ``folder``.
        seed: seed of the random order.
        fresh: whether all parts of earlier splits of this folder in ``out``, whatever their names, are replaced.

    Returns:
        For each part the numbers of ``episodes``, ``steps`` and, if there are any, ``clusters``.

    Raises:
        ConfigError: if a share or name is invalid.
        DataError: if a part would have fewer than 30 episodes (or clusters), or there are no clusters or times.
        WriteError: if the folder of a part exists already.
    """
    hint = ": to keep episodes of a group together, name its column as cluster in the schema, and split by 'cluster'"
    check("by", by, str, hint, choices=UNITS)
    _check_shares(shares)
    record, schema, whole = _load_import_record(Path(folder))
    data = ReplayBuffer.open(folder)
    storage, table = data.storage, episode_table(data.storage)
    first = storage.rows(table.lane, table.start)
    cluster = storage.take("extra.cluster", first) if "extra.cluster" in storage.leaves else None
    order, unit = _order_episodes(storage, by, first, cluster, np.random.default_rng(seed))
    parts = _cut_parts(order, unit, shares)
    for name, episodes in parts.items():
        _check_size(name, np.unique(unit[episodes]), "clusters" if by == "cluster" else "episodes", unit, shares)
    found: dict[str, dict[str, int]] = {}
    root = Path(folder if out is None else out)
    old = [part for part in _parts_of(whole, root) if part.name not in parts] if fresh else []
    for part in old:
        check_replaceable(part)
    with contextlib.ExitStack() as stack:
        places = {name: stack.enter_context(new_folder(root / name, fresh=fresh)) for name in parts}
        for name, episodes in parts.items():
            found[name] = {"episodes": len(episodes), "steps": int(table.length[episodes].sum())}
            if cluster is not None:
                found[name]["clusters"] = len(np.unique(cluster[episodes]))
            part_record = {"name": name, "of": whole, "by": by, "seed": seed, "shares": dict(shares), **found[name]}
            rows = _copy_episodes(data, table, np.sort(episodes), places[name])
            write_import_record(places[name], {**record, ROWS: rows.to_json(), "part": part_record}, schema)
    for part in old:  # its episodes are in the new parts, too
        shutil.rmtree(part)
    return found


def _parts_of(whole: str, root: Path) -> list[Path]:
    """Return the folders in ``root`` that are parts of the import with the digest ``whole``."""
    found = []
    for file in sorted(root.glob(f"*/{IMPORT}")):
        with contextlib.suppress(ForeignFileError, CorruptFileError, OSError):  # not birl's
            record = read_import_files(file.parent)[0]
            part = record.get("part") if isinstance(record, dict) else None
            found += [file.parent] if isinstance(part, dict) and part.get("of") == whole else []
    return found


def _check_shares(shares: Mapping[str, float]) -> None:
    check("shares", shares, Mapping, ": give a share for each name")  # type: ignore[type-abstract]
    if not shares:
        raise ConfigError("shares are empty; give a share for each part, such as train=.6,select=.2,certify=.2")
    for name, share in shares.items():
        check(f"share of {name!r:.60}", share, float, above=0, high=1)
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ConfigError(
                f"a part is called {name!r:.60}; its name must be a word, because it names a folder: rename it"
            )
    if math.fsum(shares.values()) > 1 + 1e-9:
        total = math.fsum(shares.values())
        raise ConfigError(f"the shares {dict(shares)!s:.200} sum to {total:.6g}; it must be at most 1: reduce them")


def _load_import_record(folder: Path) -> tuple[dict[str, Any], str, str]:
    """Load the record of an import; return it with its schema and its digest."""
    try:
        found = read_import_files(folder)
    except FileError:
        raise
    except OSError as error:
        raise ForeignFileError(f"{folder} has no {IMPORT}: give a folder that `birl data import` wrote") from error
    if not isinstance(found[0], dict) or "part" in found[0]:
        raise DataError(f"{folder} is a part of a split itself: split the whole, so that all parts are disjoint")
    return found


def _order_episodes(
    storage: Storage, by: str, first: Array, cluster: Array | None, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the order of the episodes in the parts, and the unit of each: its cluster, if clusters must stay whole."""
    single = np.arange(len(first))
    if by == "time":
        if "extra.time" not in storage.leaves:
            raise DataError("the steps have no times: name their column in the schema, or split by episode")
        return np.argsort(storage.take("extra.time", first), kind="stable"), single
    if by == "episode":
        if cluster is not None and len(np.unique(cluster)) < len(cluster):
            raise DataError(
                "the episodes belong to clusters, which would be in several parts: "
                "split by cluster (--by cluster), or leave cluster out of the schema if the episodes are independent"
            )
        return rng.permutation(len(first)), single
    if cluster is None:
        raise DataError("the episodes have no clusters: name their column in the schema, or split by episode")
    shuffled = rng.permutation(int(cluster.max()) + 1)
    return np.argsort(shuffled[cluster], kind="stable"), cluster


def _cut_parts(order: Array, unit: Array, shares: Mapping[str, float]) -> dict[str, Array]:
    """Cut ``order`` into parts according to the shares, but never within a unit."""
    units = unit[order]
    ends = np.flatnonzero(np.append(units[1:] != units[:-1], True)) + 1  # allowed cuts
    parts, begin, total = {}, 0, 0.0
    for name, share in shares.items():
        total += share
        stop = int(ends[np.argmin(abs(ends - total * len(order)))])
        parts[name] = order[begin:stop]
        begin = max(begin, stop)
    return parts


def _check_size(name: str, members: Array, what: str, unit: Array, shares: Mapping[str, float]) -> None:
    if len(members) >= MIN_EPISODES:
        return
    total = len(np.unique(unit))
    least, needed = MIN_EPISODES / total, math.ceil(MIN_EPISODES / min(shares.values()))
    remedy = "take fewer parts"
    if least * len(shares) <= 1:
        remedy = f"give each part a share of at least {math.ceil(1000 * least) / 1000:.3g}"
    raise DataError(
        f"the part {name!r} would have {len(members)} of {total} {what}, at least {MIN_EPISODES} are needed to "
        f"estimate a mean: {remedy}, or log at least {needed} {what} for these shares"
    )


def _copy_episodes(data: ReplayBuffer, table: EpisodeTable, episodes: Array, folder: Path) -> RowSketch:
    """Copy these episodes into a new folder, in chunks of rows; return the digests of their rows."""
    storage, info = data.storage, data.dataset_info
    part = ReplayBuffer(
        InfiniteBuffer(),
        observation_signature=info.observation_signature,
        action_signature=info.action_signature,
        reward_signature=info.reward_signature,
        action_space=info.action_space,
        action_size=info.action_size,
        observation_space=info.observations,
        storage=folder,
    )
    sizes = table.length[episodes] + 1
    part.storage.info = info  # with the names of columns
    part.storage.reserve(int(sizes.sum()))
    for name in storage.extra_names:
        part.storage.add_extra(name, storage.leaves[name])
    observations = list(tree_leaves(storage.observation_names))
    row = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in storage.leaves.values())
    block = np.cumsum(sizes) // chunk_rows(row)
    for number in np.unique(block):
        members = episodes[block == number]
        index, position = ranges(table.start[members], table.start[members] + table.length[members] + 1)
        rows = storage.rows(table.lane[members[index]], position)
        flags = storage.flags[rows]
        final = (flags & FINAL) != 0
        steps = {name: storage.take(name, rows[~final]) for name in storage.leaves}
        part.storage.extend(0, flags, steps, {name: storage.take(name, rows[final]) for name in observations})
    sketch = RowSketch.of(row_digests(part.storage))
    part.close()
    return sketch
