"""What loops and agents that replay have in common: the buffer, the settings, and when to learn from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from birl.dataset import create_fifo_replay_buffer
from birl.run.agent_core import Schedule
from birl.run.fingerprint import DIGEST, digest, part_settings, sampler_settings
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.spaces.observations import part_names

DEFAULT_BUFFER_LIMIT = 1_000_000


def default_buffer(algorithm: Trainable, env: Environment, limit: int = DEFAULT_BUFFER_LIMIT, **options: Any) -> Any:
    """A buffer of the newest ``limit`` steps, of what a built algorithm reads of an environment."""
    keys = part_names(algorithm.spec.observations)
    return create_fifo_replay_buffer(limit, env=env, observation_keys=keys, **options)


def replay_settings(given: Mapping[str, Any], explorer: ExplorerProtocol | None) -> dict[str, Any]:
    """The settings of acting and of the schedule that a run and its resumption must share."""
    names = ("update_interval", "n_updates", "update_start_step", "random_steps")
    return {**{name: given[name] for name in names}, "explorer": explorer_settings(explorer)}


def explorer_settings(explorer: Any) -> Any:
    """Those of an explorer, or of one for each collector."""
    return list(map(part_settings, explorer)) if isinstance(explorer, list | tuple) else part_settings(explorer)


def buffer_settings(buffer: Any, digested: bool) -> dict[str, Any]:
    """Those of the buffer: its picker, its sampler and, with ``digested``, the data beside it, which are only read."""
    settings: dict[str, Any] = {"picker": part_settings(getattr(buffer, "transition_picker", None))}
    settings |= sampler_settings(buffer)
    beside = getattr(buffer, "secondary_replay_buffer", None)  # a checkpoint does not hold it
    return settings if beside is None or not digested else {**settings, DIGEST: digest(beside.reader.storages)}


def start_schedule(
    algorithm: Trainable, buffer: Any, given: Mapping[str, Any], n_steps: int, least: Any = None
) -> Schedule:
    """The schedule of a run that begins now.

    Args:
        algorithm: built.
        buffer: to learn from.
        given: its options.
        n_steps: length of the run in steps.
        least: see `Schedule`.
    """
    interval, count, start = given["update_interval"], given["n_updates"], given["update_start_step"]
    source = algorithm.learner.begin_run(buffer, (n_steps - start) // interval * count, growing=True)
    return Schedule(source, interval, count, start, least)
