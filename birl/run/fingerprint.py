"""What a run and its resumption must share: the settings of algorithm, data and environment."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from birl.dataset.flags import FINAL, UNKNOWN
from birl.dataset.sampling import Sampler, Uniform
from birl.dataset.storage import Storage
from birl.envs import number_of_environments
from birl.run.protocols import Environment, Trainable

DIGEST: Final = "digest_of_data"
ACTIONS: Final = "action_size"
_BLOCK: Final = 2**23  # bytes that are digested together, and that are copied at most


def run_settings(algorithm: Trainable, loop: str, **values: Any) -> dict[str, Any]:
    """The settings that a run and its resumption must share. Take them before the networks are built."""
    config = getattr(algorithm, "original_config", algorithm.config)  # what was retuned comes with the checkpoint
    return {"loop": loop, "algorithm": config.serialize(), **values}


def part_settings(part: Any) -> dict[str, Any] | None:
    """The identity of an explorer, picker or slicer in `run_settings`: its class, and its numbers and strings."""
    if part is None:
        return None
    plain, own = bool | int | float | str, getattr(part, "__dict__", {})
    values = {key: value for key, value in own.items() if isinstance(value, plain)}
    values |= {
        key: list(value)
        for key, value in own.items()
        if isinstance(value, tuple) and all(isinstance(each, plain) for each in value)
    }
    return {"type": type(part).__name__, **values}


def sampler_settings(dataset: Any) -> dict[str, Any]:
    """The identity of a dataset's samplers and augmentation in `run_settings`; nothing of uniform ones, or of none."""
    sources = getattr(getattr(dataset, "reader", None), "sources", ())
    samplers, changes = [source.sampler for source in sources], [source.augmentation for source in sources]
    settings: dict[str, Any] = {}
    if not all(isinstance(sampler, Uniform) for sampler in samplers):
        settings["sampler"] = [_made_with(sampler) for sampler in samplers]
    return {**settings, "augmentation": [part_settings(each) for each in changes]} if any(changes) else settings


def _made_with(sampler: Sampler) -> dict[str, Any]:
    plain, names = bool | int | float | str | None, inspect.signature(type(sampler)).parameters
    values = {name: getattr(sampler, name) for name in names if isinstance(getattr(sampler, name, ...), plain)}
    values |= {name: _made_with(own) for name in names if isinstance(own := getattr(sampler, name, None), Sampler)}
    return {"type": type(sampler).__name__, **values}


def environment_settings(env: Environment, seed: int | None) -> dict[str, Any]:
    """The identity of a training environment in `run_settings`."""
    specification = getattr(env, "spec", None)
    name = type(env.unwrapped).__name__ if specification is None else specification.id
    return {"environment": name, "environments": number_of_environments(env), "seed": seed}


def dataset_settings(dataset: Any) -> dict[str, Any]:
    """The identity of a dataset in `run_settings`: size, picker, slicer, and a digest of all that is stored."""
    return {
        "transitions": dataset.transition_count,
        "picker": part_settings(getattr(dataset, "transition_picker", None)),
        "slicer": part_settings(getattr(dataset, "trajectory_slicer", None)),
        **sampler_settings(dataset),
        DIGEST: digest(dataset.reader.storages),
    }


def digest(storages: Iterable[Storage]) -> str:
    """Digest of every step: observations, actions, rewards, flags and extra columns, in the order of the rows.

    Blocks are digested by several threads and read one by one: files that are mapped into memory are not loaded whole.
    Where the rows lie does not matter.
    """
    whole = hashlib.sha256()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for storage in storages:
            leaves = [(name, leaf.shape, np.dtype(leaf.dtype).str) for name, leaf in storage.leaves.items()]
            whole.update(repr((leaves, (storage.end - storage.start).tolist())).encode())
            for part in threads.map(_Block.digest, _blocks(storage)):
                whole.update(part)
    return whole.hexdigest()[:32]


class _Block(NamedTuple):
    """Positions ``begin … end - 1`` of a lane in one column; ``None`` for the flags."""

    storage: Storage
    name: str | None
    lane: int
    begin: int
    end: int

    def digest(self) -> bytes:
        found, storage = hashlib.sha256(), self.storage
        unset = FINAL if self.name in ("action", "reward") or str(self.name).startswith("extra.") else UNKNOWN
        for begin, end in self._rows():
            flags = storage.flags[begin:end]
            if self.name is None:
                found.update(flags.data)
                continue
            values = storage.place.host(storage.columns[self.name][begin:end])
            known = (flags & unset) == 0  # the other rows hold nothing, or remains of what was there before
            found.update(np.ascontiguousarray(values if known.all() else values[known]).data)
        return found.digest()

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Rows of the positions: two runs where the ring begins anew."""
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
