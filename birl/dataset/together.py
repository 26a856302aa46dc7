"""One dataset drawn from by several samplers, whose minibatches are gathered at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from birl.dataset.base import ReplayBufferBase
from birl.dataset.mini_batch import TransitionMiniBatch
from birl.dataset.mirror import PlacedReplayBuffer
from birl.dataset.mixed import MixedReplayBuffer
from birl.dataset.pickers import pick_batch
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.return_to_go import DiscountedReturns
from birl.dataset.storage import Storage
from birl.errors import UnsupportedError
from birl.seeding import new_generator


def with_new_generators(dataset: ReplayBufferBase) -> ReplayBufferBase:
    """The same data with random generators of its own, made as if the dataset had been made now. For reading only.

    Raises:
        UnsupportedError: for classes other than birl's own.
    """
    view: Any = copy.copy(dataset)
    if isinstance(dataset, MixedReplayBuffer):
        view._primary = with_new_generators(dataset.primary_replay_buffer)
        view._secondary = with_new_generators(dataset.secondary_replay_buffer)
    elif isinstance(dataset, PlacedReplayBuffer):
        view._source = with_new_generators(dataset._source)
        view._storage, view._generator = view._source._storage, view._source._generator
        view._reader = view._follower = _with_new_device_generator(dataset._follower)
        return view  # type: ignore[no-any-return]
    elif isinstance(dataset, ReplayBuffer):
        view._reader = view._storage = _with_new_device_generator(dataset._storage)
    else:
        raise UnsupportedError(
            f"a {type(dataset).__name__} cannot be shared by several seeds: use ReplayBuffer or MixedReplayBuffer, or "
            "train each seed by itself"
        )
    view._generator = new_generator()
    return view  # type: ignore[no-any-return]


def _with_new_device_generator(storage: Storage) -> Storage:
    """The same rows; the generator of draws on a device is seeded anew at the first of them."""
    view = copy.copy(storage)
    view.torch_generator = None
    return view


def sample_together(
    views: Sequence[ReplayBufferBase],
    batch_size: int,
    next_actions: bool = False,
    returns: DiscountedReturns | None = None,
) -> TransitionMiniBatch:
    """Transitions ``[S * batch_size]``: what each view of one dataset draws by itself, one after the other.

    Args:
        views: made of one dataset by `with_new_generators`.
        batch_size: number of transitions for each.
        next_actions, returns: see `ReplayBufferBase.sample_transition_batch`.
    """
    first = views[0]
    if not isinstance(first, ReplayBuffer):
        batches = [view.sample_transition_batch(batch_size, next_actions, returns) for view in views]
        return reduce(lambda batch, more: batch.concatenate(more), batches)
    drawn = [view._rows(batch_size, view._picker) for view in views]  # type: ignore[attr-defined]
    rows = np.concatenate(drawn) if isinstance(drawn[0], np.ndarray) else torch.cat(drawn)
    return pick_batch(first._reader, first._picker, rows, next_actions, returns)
