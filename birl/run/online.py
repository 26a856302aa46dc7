"""Off-policy training in environments."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from typing import Unpack

import numpy as np

from birl.envs import single_spaces
from birl.errors import ShortRunWarning, UnusedOptionWarning, outside_birl
from birl.logging.logger import LOG
from birl.run.agent_core import ReplayAgentCore, default_buffer, determine_shapes, observation_spec, start_schedule
from birl.run.environment_run import EnvironmentRun
from birl.run.fingerprint import buffer_settings, replay_settings
from birl.run.options import OnlineOptions
from birl.run.protocols import EnvironmentLike, ExplorerProtocol, StepBuffer, Trainable
from birl.run.session import SamplerPart
from birl.spaces import actions_from_space
from birl.types import Tree


def online_fitter(
    algorithm: Trainable,
    env: EnvironmentLike,
    buffer: StepBuffer | None = None,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None = None,
    n_steps: int = 1_000_000,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train in an environment or vector environment, one epoch per iteration.

    Steps are counted over all environments. The ``n`` simultaneous steps of a vector environment are followed by the
    updates that are due for each of them, so the ratio of updates to steps does not depend on ``n``.

    Args:
        algorithm: off-policy algorithm; its networks are built if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one (see `birl.envs.make_env`).
        buffer: replay buffer with one lane per environment; by default the newest million steps are kept.
        explorer: turns greedy actions into exploratory ones; by default the policy samples. A policy without noise,
            such as that of `DQN` or `TD3`, needs one to explore. With a cluster, it may be a list with one for each
            collector.
        n_steps: exact number of environment steps to train on. (A vector environment may make up to ``n - 1`` more.)
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics.

    Raises:
        ConfigError: if the buffer can never hold a minibatch, or if the environments cannot overlap.
        ActionError: if the policy or the explorer selects an action outside of the environment's space.
    """
    batch_size = algorithm.config.batch_size
    run = EnvironmentRun(
        algorithm,
        "online",
        env,
        n_steps,
        options,
        buffer=buffer,
        explorer=explorer,
        batch_size=batch_size,
        order="turns",
    )
    given, env = run.options, run.env
    run.settings |= replay_settings(given, explorer) | ({"overlap": True} if given["overlap"] else {})
    if buffer is None:
        buffer = default_buffer(algorithm, env, lanes=run.execution.lanes(env))
    determine_shapes(buffer, algorithm, env, run.execution.lanes(env))
    _warn_of_short_run(run, explorer, buffer.transition_count, batch_size)
    _report_greedy_actions(run, explorer)
    updates = run.execution.replay_updates(algorithm, buffer)
    assert updates.source is not None
    length = run.n_steps if updates.compilable else 0
    schedule = start_schedule(algorithm, updates.source, given, length, updates.counted)
    run.settings |= buffer_settings(buffer, digested=given["checkpoint"] is not None)

    def make_agent(
        observation: Tree, explorer: ExplorerProtocol | None, generator: np.random.Generator
    ) -> ReplayAgentCore:
        return ReplayAgentCore(
            algorithm,
            observation,
            single_spaces(env)[1],
            buffer,
            explorer,
            generator=generator,
            random_steps=given["random_steps"],
            schedule=schedule,
        )

    observations = observation_spec(algorithm, env, buffer)
    steps = run.execution.step_source(run, make_agent, observations, explorer, rollouts=False)
    kept = {"buffer": buffer, "sampler": SamplerPart(schedule.source), "collector": steps, **updates.parts}
    session = run.session(kept, buffer)
    steps.attach(session)
    yield from run.epochs(session, steps, updates, exact=False, timed=True)
    steps.agent.close_episodes()


def _report_greedy_actions(run: EnvironmentRun, explorer: object) -> None:
    """Log a warning if a run does not explore."""
    algorithm = run.algorithm
    if explorer is None and not algorithm.learner.policy.explores:
        LOG.warning(
            "%s selects greedy actions only, because it has no explorer: give explorer=birl.algos.%s to explore",
            type(algorithm).__name__,
            "LinearDecayEpsilonGreedy()" if actions_from_space(single_spaces(run.env)[1]).discrete else "NormalNoise()",
        )


def _warn_of_short_run(run: EnvironmentRun, explorer: object, stored: int, batch_size: int) -> None:
    """Warn of a run that ends before its first update, or before its explorer selects an action."""
    n_steps, start, interval = run.n_steps, run.options["update_start_step"], run.options["update_interval"]
    random_steps, why = run.options["random_steps"], ""
    if stored + n_steps < batch_size:
        why = f"the buffer holds a minibatch, that is, batch_size={batch_size} steps. Take a smaller batch_size"
    elif n_steps and (start >= n_steps or interval > n_steps):
        given = f"more than update_start_step={start}" if start >= n_steps else f"update_interval={interval}"
        why = f"{given} steps have been made. Take a smaller number"
    if why:
        warnings.warn(
            f"nothing will be learned in n_steps={n_steps}: updates start when {why} or more steps",
            ShortRunWarning,
            stacklevel=outside_birl(),
        )
    elif explorer is not None and random_steps >= n_steps:
        warnings.warn(
            f"the explorer has no effect, because random_steps={random_steps} covers all n_steps={n_steps}: take fewer "
            "random steps, or more steps",
            UnusedOptionWarning,
            stacklevel=outside_birl(),
        )
