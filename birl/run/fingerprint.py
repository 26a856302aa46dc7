"""The settings of algorithm, data and environment that a run and its resumption must share."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from birl.dataset import ReplayBufferBase
from birl.dataset.flags import FINAL, UNKNOWN
from birl.dataset.sampling import Sampler, Uniform
from birl.dataset.storage import Storage
from birl.envs import number_of_environments
from birl.run.agent_core import info_keys_of
from birl.run.protocols import Trainable
from birl.types import Environment

DIGEST: Final = "digest_of_data"
ACTIONS: Final = "action_size"
_BLOCK: Final = 2**23  # bytes per block of the digest, which limits how much is copied at once


def run_settings(algorithm: Trainable, loop: str, **values: Any) -> dict[str, Any]:
    """Return the settings that a run and its resumption must share. Call it before the networks are built."""
    config = getattr(algorithm, "original_config", algorithm.config)  # retuned fields come with the checkpoint
    return {"loop": loop, "algorithm": config.serialize(), **values}


def part_settings(part: object) -> dict[str, Any] | None:
    """Return the settings of an explorer, picker or slicer: its class, and its numbers and strings."""
    if part is None:
        return None
    plain, attributes = bool | int | float | str, getattr(part, "__dict__", {})
    values = {key: value for key, value in attributes.items() if isinstance(value, plain)}
    values |= {
        key: list(value)
        for key, value in attributes.items()
        if isinstance(value, tuple) and all(isinstance(each, plain) for each in value)
    }
    return {"type": type(part).__name__, **values}


def sampler_settings(dataset: object) -> dict[str, Any]:
    """Return the settings of a dataset's samplers and augmentation, without uniform samplers."""
    sources = getattr(getattr(dataset, "reader", None), "sources", ())
    samplers, changes = [source.sampler for source in sources], [source.augmentation for source in sources]
    settings: dict[str, Any] = {}
    if not all(isinstance(sampler, Uniform) for sampler in samplers):
        settings["sampler"] = [_constructor_settings(sampler) for sampler in samplers]
    return {**settings, "augmentation": [part_settings(each) for each in changes]} if any(changes) else settings


def _constructor_settings(sampler: Sampler) -> dict[str, Any]:
    """Return the class of a sampler, and the arguments that it was made with."""
    plain, names = bool | int | float | str | None, inspect.signature(type(sampler)).parameters
    values = {name: getattr(sampler, name) for name in names if isinstance(getattr(sampler, name, ...), plain)}
    values |= {
        name: _constructor_settings(own) for name in names if isinstance(own := getattr(sampler, name, None), Sampler)
    }
    return {"type": type(sampler).__name__, **values}


def replay_settings(options: Mapping[str, Any], explorer: object) -> dict[str, Any]:
    """Return the settings of acting and of the schedule that a run and its resumption must share."""
    names = ("update_interval", "n_updates", "update_start_step", "random_steps")
    return {**{name: options[name] for name in names}, "explorer": explorer_settings(explorer)}


def explorer_settings(explorer: object) -> dict[str, Any] | list[dict[str, Any] | None] | None:
    """Return the settings of an explorer, or of a list with one for each collector."""
    return list(map(part_settings, explorer)) if isinstance(explorer, list | tuple) else part_settings(explorer)


def buffer_settings(buffer: ReplayBufferBase, digested: bool) -> dict[str, Any]:
    """Return a buffer's settings: picker, sampler, `info_keys` and, with ``digested``, the data that are mixed in."""
    settings: dict[str, Any] = {"picker": part_settings(getattr(buffer, "transition_picker", None))}
    settings |= sampler_settings(buffer)
    if keys := info_keys_of(buffer):
        settings["info_keys"] = list(keys)
    data = getattr(buffer, "secondary_replay_buffer", None)  # a checkpoint does not hold it
    return settings if data is None or not digested else {**settings, DIGEST: digest(data.reader.storages)}


def environment_settings(env: Environment, seed: int | None) -> dict[str, Any]:
    """Return the settings of training environments: their name, their number and the seed."""
    specification = getattr(env, "spec", None)
    name = type(env.unwrapped).__name__ if specification is None else specification.id
    return {"environment": name, "environments": number_of_environments(env), "seed": seed}


def dataset_settings(dataset: ReplayBufferBase) -> dict[str, Any]:
    """Return the settings of a dataset: size, picker, slicer, sampler, and a digest of all stored steps."""
    return {
        "transitions": dataset.transition_count,
        "picker": part_settings(getattr(dataset, "transition_picker", None)),
        "slicer": part_settings(getattr(dataset, "trajectory_slicer", None)),
        **sampler_settings(dataset),
        DIGEST: digest(dataset.reader.storages),
    }


def digest(storages: Iterable[Storage]) -> str:
    """Compute a digest of every step: observations, actions, rewards, flags and extra columns, in row order.

    Several threads read the data in blocks, so memory-mapped files are never loaded as a whole. The digest does not
    depend on where in the storage the rows are.
    """
    total = hashlib.sha256()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for storage in storages:
            leaves = [(name, leaf.shape, np.dtype(leaf.dtype).str) for name, leaf in storage.leaves.items()]
            total.update(repr((leaves, (storage.end - storage.start).tolist())).encode())
            for part in threads.map(_Block.digest, _blocks(storage)):
                total.update(part)
            storage.check_rows()
    return total.hexdigest()[:32]


class _Block(NamedTuple):
    """Positions ``begin … end - 1`` of a lane in one column, or in the flags if the name is ``None``."""

    storage: Storage
    name: str | None
    lane: int
    begin: int
    end: int

    def digest(self) -> bytes:
        result, storage = hashlib.sha256(), self.storage
        unset = FINAL if self.name in ("action", "reward") or str(self.name).startswith("extra.") else UNKNOWN
        for begin, end in self._rows():
            flags = storage.flags[begin:end]
            if self.name is None:
                result.update(flags.data)
                continue
            values = storage.place.host(storage.columns[self.name][begin:end])
            known = (flags & unset) == 0  # other rows are empty or hold overwritten steps
            result.update(np.ascontiguousarray(values if known.all() else values[known]).data)
        return result.digest()

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows of the positions: two where the ring buffer wraps around."""
        capacity, position = self.storage.capacity, self.begin
        while position < self.end:
            row = position % capacity
            count = min(self.end - position, capacity - row)
            yield self.lane * capacity + row, self.lane * capacity + row + count
            position += count


def _blocks(storage: Storage) -> Iterator[_Block]:
    for name in (None, *storage.columns):
        row = 1 if name is None else max(1, storage.columns[name][:1].nbytes)
        count = max(1, _BLOCK // row)
        for lane in range(storage.lanes):
            first, last = int(storage.start[lane]), int(storage.end[lane])
            for begin in range(first, last, count):
                yield _Block(storage, name, lane, begin, min(begin + count, last))
