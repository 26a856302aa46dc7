"""Collecting experience without learning."""

from __future__ import annotations

import contextlib
from typing import Any

from birl.checks import check
from birl.dataset import create_infinite_replay_buffer
from birl.envs import Stepper, as_environment, reset_generator
from birl.observations import part_names
from birl.run.collector import Collector
from birl.run.player import ReplayPlayer, check_parts, observed
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
        keys = part_names(algorithm.spec.observations)
        buffer = create_infinite_replay_buffer(env=env, observation_keys=keys)
    resets, random = reset_generator(env, seed).spawn(2)
    stepper = Stepper(env, resets, observations=observed(algorithm, env, buffer))
    parts = (algorithm, stepper.observation, stepper.action_space, buffer, explorer)
    collector = Collector(stepper, ReplayPlayer(*parts, greedy=deterministic, generator=random))
    with contextlib.closing(Progress(n_steps, 0, show_progress)) as progress:
        for done in range(n_steps):
            collector.count(done, n_steps - done)
            progress.advance()
    collector.player.close_episodes()
    return buffer
