"""Samplers, which choose the rows to read, and the random generators that they draw from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FINAL, HEAD, NO_TRANSITION
from birl.dataset.minibatch import Rows
from birl.dataset.storage import Storage
from birl.dataset.views import M, View
from birl.errors import ConfigError, EmptyDataError
from birl.seeding import new_generator
from birl.types import Array, State

Complete: TypeAlias = Callable[[Storage, Any], Any] | None


class Generators:
    """The random generators of one reader: one on the host and, once it is asked for, one on a device.

    Args:
        host: the host's generator; a new one if ``None``.
    """

    def __init__(self, host: np.random.Generator | None = None) -> None:
        self.host = new_generator() if host is None else host
        self._device: torch.Generator | None = None

    def on(self, device: torch.device | None) -> torch.Generator:
        """The device's generator, seeded once by the host's."""
        if self._device is None:
            self._device = torch.Generator(device)
            self._device.manual_seed(int(self.host.integers(2**63)))
        return self._device

    def get_state(self) -> State:
        """State of both."""
        state: State = {"generator": self.host.bit_generator.state}
        if self._device is not None:
            state["torch_generator"] = {"device": self._device.device.type, "state": self._device.get_state()}
        return state

    def set_state(self, state: State, device: torch.device | None) -> None:
        """Go back to a state. One of another kind of device is left out: draws there begin anew."""
        self.host.bit_generator.state = state["generator"]
        saved, self._device = state.get("torch_generator"), None
        if saved is not None and device is not None and saved["device"] == device.type:
            self._device = torch.Generator(device)
            self._device.set_state(torch.as_tensor(saved["state"]).cpu())


class Sampler:
    """Chooses which rows of a storage to read.

    A sampler belongs to one reader; readers with generators of their own have copies of it. It is not told of writes.
    To find new steps, remember ``begin = storage.end - 1`` after each draw (a running episode overwrites its final row)
    and ask ``storage.live(np.maximum(begin, storage.start))``. Rows move when a storage grows; what is kept for a step
    is best kept by its number (`Storage.numbers`).
    """

    _taken = False

    def take(self) -> None:
        """A dataset is made with it. It may be the only one, unless the sampler has no state.

        Raises:
            ConfigError: if it is not.
        """
        if self._taken and self.get_state():
            raise ConfigError(
                f"sampler is a {type(self).__name__} that a dataset or buffer was made with already, whose steps it "
                "knows: give each one of its own"
            )
        self._taken = True

    def fits(self, info: DatasetInfo, picker: Any) -> None:
        """Raise a `birl.errors.BirlError` unless it can draw from such data, read by such a transition picker."""

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        """Draw ``count`` rows.

        Args:
            storage: holds the rows.
            count: number of rows.
            generators: source of randomness.
            reject: rows with any of these flags are not drawn.
            complete: shows for rows ``[B]`` which of them can be read; ``None`` if all can.

        Returns:
            Row numbers as ``storage.place.indices`` gives them. With ``weight``, priorities come back to `update`.

        Raises:
            EmptyDataError: if there is nothing to draw.
        """
        raise NotImplementedError

    def read(self, view: View[M], storage: Storage, part: Any, rows: Rows) -> M:
        """The minibatch of a view, made with a picker or slicer, of rows that were drawn."""
        return view.read(storage, part, rows.index)

    def update(self, rows: Rows, priority: Array) -> None:
        """Take new priorities ``[B]`` of rows that were drawn and still hold the same steps."""

    def get_state(self) -> State:
        """State that draws depend on, beside the generators: part of checkpoints. By default there is none."""
        return {}

    def set_state(self, state: State) -> None:
        """Go back to a state."""


class Uniform(Sampler):
    """Draws rows uniformly and independently."""

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        rows = _uniform(storage, count, generators, reject)
        if complete is None or not (storage.flags[storage.rows(np.arange(storage.lanes), storage.start)] & HEAD).any():
            return Rows(rows)
        rows = rows[complete(storage, rows)]
        if len(rows) < count:  # few steps are near a head: the rest comes from an index
            index = storage.place.indices(np.flatnonzero((storage.flags & reject) == 0))
            index = index[complete(storage, index)]
            if not len(index):
                raise EmptyDataError("of every step some stacked frame was evicted: raise the buffer's limit")
            more = storage.place.indices(generators.host.integers(len(index), size=count - len(rows)))
            rows = storage.place.concatenate([rows, index[more]])
        return Rows(rows)


def _uniform(storage: Storage, count: int, generators: Generators, reject: int) -> Any:
    """Row numbers ``[count]``, uniform and independent.

    Rejection over all rows: no index array is kept. Where rejection is not apt (most rows are rejected, or rows are
    drawn on a torch device, which it would have to wait for) an index is kept until the next write.
    """
    any_step = reject == FINAL
    available = int(storage.steps.sum()) if any_step else storage.transition_count
    if available == 0:
        raise nothing_to_draw(storage, reject)
    if storage.device_draws:
        steps = storage.cached(f"index {reject}", lambda: torch.nonzero((storage.device_flags & reject) == 0)[:, 0])
        generator = generators.on(storage.place.device)
        return steps.index_select(0, torch.randint(len(steps), (count,), device=steps.device, generator=generator))
    used = storage.used
    accepted = available / (used * storage.lanes)
    if accepted < 0.25:
        index = storage.cached(f"index {reject}", lambda: np.flatnonzero((storage.flags & reject) == 0))
        return storage.place.indices(index[generators.host.integers(len(index), size=count)])
    draws = int(count / accepted * 1.05) + 4
    rows = _accepted(storage, generators.host, draws, used, reject)
    while len(rows) < count:
        rows = np.concatenate([rows, _accepted(storage, generators.host, draws, used, reject)])
    return storage.place.indices(rows[:count])


def nothing_to_draw(storage: Storage, reject: int = NO_TRANSITION) -> EmptyDataError:
    """The error for a storage without rows to draw."""
    what = "step" if reject == FINAL else "transition"
    return EmptyDataError(
        f"there is no {what} to sample among {int(storage.steps.sum())} steps: add data first. A truncated episode's "
        "last step needs final_observation to be a transition"
    )


def _accepted(storage: Storage, generator: np.random.Generator, count: int, used: int, reject: int) -> Array:
    """Uniform rows, less those that are rejected."""
    rows = generator.integers(used * storage.lanes, size=count)
    if storage.lanes > 1 and used < storage.capacity:
        rows = rows // used * storage.capacity + rows % used
    return rows[(storage.flags.take(rows) & reject) == 0]
