"""Columns of logged episodes, and datasets of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from birl.dataset.base import ReplayBufferBase
from birl.dataset.episode import Episode
from birl.dataset.replay_buffer import ReplayBuffer, create_infinite_replay_buffer
from birl.errors import ConfigError, DataError
from birl.types import Array

_COLUMNS: Final = ("log_propensity", "propensities", "cluster", "time", "time_gap", "censored", "reward_pending")
"""Extra columns that evaluations read."""


def as_dataset(dataset: object) -> ReplayBufferBase:
    """Return a dataset, which is read from the episodes of an object that is none; see `as_buffer`."""
    return dataset if isinstance(dataset, ReplayBufferBase) else as_buffer(dataset)


def as_buffer(dataset: object) -> ReplayBuffer:
    """Return a dataset as a replay buffer; one that is none is copied from its episodes.

    Raises:
        ConfigError: if it has no ``episodes``, or no ``dataset_info`` with the action space and the action size.
    """
    if isinstance(dataset, ReplayBuffer):
        return dataset
    episodes, info = getattr(dataset, "episodes", None), getattr(dataset, "dataset_info", None)
    space, size = getattr(info, "action_space", None), getattr(info, "action_size", None)
    if episodes is None or space is None:
        lacks = "episodes" if episodes is None else "dataset_info.action_space"
        raise ConfigError(
            f"the dataset is {type(dataset).__name__} without {lacks}; it must have episodes, and dataset_info with "
            "action_space and action_size: give a dataset, as from birl.dataset.MDPDataset or birl.dataset.from_table"
        )
    steps = ("observations", "actions", "rewards", "terminated")
    made = [
        each
        if isinstance(each, Episode)
        else Episode(*(getattr(each, name) for name in steps), extra=getattr(each, "extra", None))
        for each in episodes
    ]
    for name in _COLUMNS:
        column(made, name, None)  # raises if some episodes lack it
    shared = set.intersection(*({*(each.extra or {})} for each in made)) if made else set()
    kept = [replace(each, extra={name: (each.extra or {})[name] for name in shared}) for each in made]
    return create_infinite_replay_buffer(episodes=kept, action_space=space, action_size=size)


def column(episodes: Sequence[Episode], name: str, limit: int | None) -> Array | None:
    """Return an extra column of all steps; ``None`` if no episode has it."""
    extras = [episode.extra or {} for episode in episodes]
    present = [name in extra for extra in extras]
    if not any(present):
        return None
    if not all(present):
        raise DataError(f"episode {present.index(False)} has no {name}, but others do: log it for all, or for none")
    return np.concatenate([np.asarray(extra[name])[:limit] for extra in extras])


def first_values(episodes: Sequence[Episode], name: str) -> Array | None:
    """Return the value of an extra column at the first step of each episode; ``None`` if no episode has it."""
    if column(episodes, name, None) is None:
        return None
    return np.array([np.asarray((episode.extra or {})[name]).reshape(-1)[0] for episode in episodes])
