"""Setup that loops and agents with a replay buffer share: the buffer, its settings and the schedule of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from birl.dataset import ReplayBuffer, ReplayBufferBase, create_fifo_replay_buffer
from birl.run.agent_core import UpdateSchedule
from birl.run.fingerprint import DIGEST, digest, part_settings, sampler_settings
from birl.run.protocols import Environment, ReplaySource, Trainable, TransitionCounter
from birl.spaces.observations import part_names

DEFAULT_BUFFER_LIMIT = 1_000_000


def default_buffer(
    algorithm: Trainable, env: Environment, limit: int = DEFAULT_BUFFER_LIMIT, *, lanes: int
) -> ReplayBuffer:
    """Make a buffer of the newest ``limit`` steps, with the observations that a built algorithm reads."""
    keys = part_names(algorithm.spec.observations)
    return create_fifo_replay_buffer(limit, env=env, observation_keys=keys, lanes=lanes)


def replay_settings(options: Mapping[str, Any], explorer: object) -> dict[str, Any]:
    """Return the settings of acting and of the schedule that a run and its resumption must share."""
    names = ("update_interval", "n_updates", "update_start_step", "random_steps")
    return {**{name: options[name] for name in names}, "explorer": explorer_settings(explorer)}


def explorer_settings(explorer: object) -> dict[str, Any] | list[dict[str, Any] | None] | None:
    """Return the settings of an explorer, or of a list with one for each collector."""
    return list(map(part_settings, explorer)) if isinstance(explorer, list | tuple) else part_settings(explorer)


def buffer_settings(buffer: ReplayBufferBase, digested: bool) -> dict[str, Any]:
    """Return the settings of a buffer: its picker, its sampler and, with ``digested``, the data that are mixed in."""
    settings: dict[str, Any] = {"picker": part_settings(getattr(buffer, "transition_picker", None))}
    settings |= sampler_settings(buffer)
    data = getattr(buffer, "secondary_replay_buffer", None)  # a checkpoint does not hold it
    return settings if data is None or not digested else {**settings, DIGEST: digest(data.reader.storages)}


def start_schedule(
    algorithm: Trainable,
    source: ReplaySource,
    options: Mapping[str, Any],
    n_steps: int,
    counted: TransitionCounter | None = None,
) -> UpdateSchedule:
    """Start a run of a built algorithm on replayed steps.

    Args:
        algorithm: built.
        source: where minibatches are sampled from.
        options: options of the run.
        n_steps: length of the run in steps.
        counted: see `UpdateSchedule`.
    """
    interval, count, start = options["update_interval"], options["n_updates"], options["update_start_step"]
    placed = algorithm.learner.begin_run(source, (n_steps - start) // interval * count, growing=True)
    return UpdateSchedule(placed, interval, count, start, counted)
