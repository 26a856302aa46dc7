"""Collecting experience without learning."""

from __future__ import annotations

import contextlib
from typing import Any

from birl.checks import check
from birl.dataset import create_infinite_replay_buffer
from birl.envs import as_environment
from birl.run.collector import Collector, check_parts
from birl.run.progress import Progress
from birl.run.protocols import Environment, ExplorerProtocol, Trainable


def collect(
    algorithm: Trainable,
    env: Environment,
    buffer: Any = None,
    explorer: ExplorerProtocol | None = None,
    *,
    deterministic: bool = False,
    n_steps: int = 1_000_000,
    show_progress: bool = True,
    seed: int | None = None,
) -> Any:
    """Act in an environment and store the steps.

    Args:
        algorithm: its networks are made if they do not exist.
        env: environment or vector environment, or the name of one.
        buffer: replay buffer to add to; a new unlimited one by default.
        explorer: turns greedy actions into the ones taken; by default the policy acts by itself.
        deterministic: whether to act greedily instead of sampling from the policy.
        n_steps: number of steps, over all environments. Exactly so many are added.
        show_progress: whether to show a progress bar (on a terminal only).
        seed: fixes the environment's resets; by default drawn from `seed_env` or `birl.seed`.

    Returns:
        The buffer. Episodes still under way at the end are truncated there.
    """
    check("n_steps", n_steps, int, low=1)
    check_parts(buffer, explorer)
    env = as_environment(env)
    algorithm.build_with_env(env)
    if buffer is None:
        buffer = create_infinite_replay_buffer(env=env)
    collector = Collector(algorithm, env, buffer, explorer, greedy=deterministic, seed=seed)
    progress = Progress(n_steps, 0, show_progress)
    done = 0
    with contextlib.closing(progress):
        while done < n_steps:
            step = collector.interact(done, most=n_steps - done)
            for _ in range(int(step.valid.sum())):
                done += 1
                progress.advance()
    collector.close_episodes()
    return buffer
