"""Samplers, which choose the rows of a minibatch, and their random generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FINAL, NO_TRANSITION
from birl.dataset.minibatch import Rows
from birl.dataset.storage import Storage
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.views import M, Part, View
from birl.errors import ConfigError, EmptyDataError
from birl.seeding import new_generator
from birl.types import Array, ArrayOrTensor, State

Complete: TypeAlias = Callable[[Storage, ArrayOrTensor], Any] | None
"""Returns for rows ``[B]`` whether all frames of their stacks are stored."""


class Generators:
    """The random generators of one reader: one on the host and, if needed, one on a device.

    Args:
        host: generator of the host; a new one if ``None``.
    """

    def __init__(self, host: np.random.Generator | None = None) -> None:
        self.host = new_generator() if host is None else host
        self._device: torch.Generator | None = None

    def on(self, device: torch.device | None) -> torch.Generator:
        """Return the device's generator, which the host's generator seeds on first use."""
        if self._device is None:
            self._device = torch.Generator(device)
            self._device.manual_seed(int(self.host.integers(2**63)))
        return self._device

    def get_state(self) -> State:
        """Return the state of both generators."""
        state: State = {"generator": self.host.bit_generator.state}
        if self._device is not None:
            state["torch_generator"] = {"device": self._device.device.type, "state": self._device.get_state()}
        return state

    def set_state(self, state: State, device: torch.device | None) -> None:
        """Restore a state. A generator of another kind of device is skipped: the device's is seeded again."""
        self.host.bit_generator.state = state["generator"]
        saved, self._device = state.get("torch_generator"), None
        if saved is not None and device is not None and saved["device"] == device.type:
            self._device = torch.Generator(device)
            self._device.set_state(torch.as_tensor(saved["state"]).cpu())


class Sampler:
    """Base class of samplers, which choose the rows of a storage for a minibatch.

    A sampler belongs to one reader; readers with their own generators have copies of it. It is not notified of writes.
    To find new steps, keep ``begin = storage.end - 1`` after each draw (a running episode overwrites its final row) and
    call ``storage.live(np.maximum(begin, storage.start))``. Rows move when a storage grows, so identify a step by its
    number (`Storage.numbers`).
    """

    _in_use = False

    def take(self) -> None:
        """Claim the sampler for a dataset. A sampler with a state can be claimed once.

        Raises:
            ConfigError: if another dataset has claimed it.
        """
        if self._in_use and self.get_state():
            raise ConfigError(
                f"sampler is a {type(self).__name__} that another dataset or buffer uses already, and whose state "
                "depends on its steps: give each dataset its own sampler"
            )
        self._in_use = True

    def fits(self, info: DatasetInfo, picker: TransitionPickerProtocol) -> None:
        """Raise a `birl.errors.BirlError` unless the sampler supports the data and the transition picker."""

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        """Draw ``count`` rows.

        Args:
            storage: storage of the rows.
            count: number of rows.
            generators: source of randomness.
            reject: rows with any of these flags are not drawn.
            complete: returns for rows ``[B]`` whether they can be read; ``None`` if all can.

        Returns:
            Row numbers in the form of ``storage.place.indices``. With ``weight``, `update` receives priorities.

        Raises:
            EmptyDataError: if there is no row to draw.
        """
        raise NotImplementedError

    def read(self, view: View[M], storage: Storage, part: Part, rows: Rows) -> M:
        """Return the minibatch of a view for drawn rows, made by a picker or slicer."""
        return view.read(storage, part, rows.index)

    def update(self, rows: Rows, priority: Array) -> None:
        """Set the priorities ``[B]`` of rows that were drawn and still hold the same steps."""

    @property
    def uses_priorities(self) -> bool:
        """Whether draws depend on the priorities that `update` sets."""
        return type(self).update is not Sampler.update

    def get_state(self) -> State:
        """Return the state that draws depend on, without the generators. Checkpoints hold it. Empty by default."""
        return {}

    def set_state(self, state: State) -> None:
        """Restore a state."""


class Uniform(Sampler):
    """Sampler that draws rows uniformly and independently."""

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        rows = _uniform(storage, count, generators, reject)
        if complete is None:
            return Rows(rows)
        rows = rows[complete(storage, rows)]
        if len(rows) < count:  # only steps near a head are incomplete: the rest comes from an index
            index = storage.place.indices(np.flatnonzero((storage.flags & reject) == 0))
            index = index[complete(storage, index)]
            if not len(index):
                raise no_complete_step()
            more = storage.place.indices(generators.host.integers(len(index), size=count - len(rows)))
            rows = storage.place.concatenate([rows, index[more]])
        return Rows(rows)


def _uniform(storage: Storage, count: int, generators: Generators, reject: int) -> ArrayOrTensor:
    """Draw row numbers ``[count]``, uniform and independent.

    Rejection sampling over all rows needs no index array. If most rows would be rejected, or rows are drawn on a torch
    device, for which rejection would wait, an index is cached until the next write.
    """
    any_step = reject == FINAL
    available = int(storage.steps.sum()) if any_step else storage.transition_count
    if available == 0:
        raise no_step_to_sample(storage, reject)
    if storage.device_draws:
        steps = storage.cached(f"index {reject}", lambda: torch.nonzero((storage.device_flags & reject) == 0)[:, 0])
        generator = generators.on(storage.place.device)
        return steps.index_select(0, torch.randint(len(steps), (count,), device=steps.device, generator=generator))
    used = storage.used
    accepted = available / (used * storage.lanes)
    if accepted < 0.25:
        index = storage.cached(f"index {reject}", lambda: np.flatnonzero((storage.flags & reject) == 0))
        return cast(ArrayOrTensor, storage.place.indices(index[generators.host.integers(len(index), size=count)]))
    draws = int(count / accepted * 1.05) + 4
    rows = accepted_rows(storage, generators.host, count, draws, lambda rows: (storage.flags.take(rows) & reject) == 0)
    return cast(ArrayOrTensor, storage.place.indices(rows))


def no_complete_step() -> EmptyDataError:
    """Return the error for a storage in which every step lacks a stacked frame."""
    return EmptyDataError("for every step a stacked frame was evicted: raise the buffer's limit")


def no_step_to_sample(storage: Storage, reject: int = NO_TRANSITION) -> EmptyDataError:
    """Return the error for a storage without rows to draw."""
    what = "step" if reject == FINAL else "transition"
    return EmptyDataError(
        f"there is no {what} to sample among {int(storage.steps.sum())} steps: add data first. A truncated episode's "
        "last step needs final_observation to be a transition"
    )


def accepted_rows(
    storage: Storage, generator: np.random.Generator, count: int, draws: int, accepts: Callable[[Array], Array]
) -> Array:
    """Draw ``count`` uniform rows for which ``accepts(rows)`` is true, by rejection, ``draws`` rows at a time."""

    def draw() -> Array:
        rows = _random_rows(storage, generator, draws)
        return rows[accepts(rows)]

    rows = draw()
    while len(rows) < count:
        rows = np.concatenate([rows, draw()])
    return rows[:count]


def _random_rows(storage: Storage, generator: np.random.Generator, count: int) -> Array:
    """Draw ``count`` of the rows that are or were in use, with the unused rows between them, uniformly."""
    used = storage.used
    rows = generator.integers(used * storage.lanes, size=count)
    if storage.lanes > 1 and used < storage.capacity:
        rows = rows // used * storage.capacity + rows % used
    return rows
