"""On-policy training in environments."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Unpack

import numpy as np

from birl.envs import single_spaces
from birl.run.agent_core import observation_spec
from birl.run.environment_run import EnvironmentRun
from birl.run.fingerprint import explorer_settings
from birl.run.options import OnlineOptions
from birl.run.protocols import EnvironmentLike, ExplorerProtocol, StepBuffer, Trainable
from birl.run.rollouts import RolloutAgentCore, report_short_rollouts, start_rollouts
from birl.types import Tree


def on_policy_fitter(
    algorithm: Trainable,
    env: EnvironmentLike,
    n_steps: int = 1_000_000,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None = None,
    buffer: StepBuffer | None = None,
    *,
    replays: bool = False,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on the policy's own rollouts, one epoch per iteration.

    Args:
        algorithm: on-policy algorithm; its networks are built if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one. It receives actions clipped
            to its bounds; updates use them as they were sampled.
        n_steps: exact number of environment steps to train on, over all environments: the last rollout may be shorter.
            With rollouts of whole episodes, steps of episodes that are unfinished at the end of the run are left out.
        explorer: turns greedy actions into exploratory ones; by default the policy itself acts. With a cluster, it may
            be a list with one for each collector.
        buffer: see `birl.run.rollouts.start_rollouts`.
        replays: whether older rollouts are replayed.
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.
    """
    run = EnvironmentRun(algorithm, "on_policy", env, n_steps, options, buffer=buffer, explorer=explorer)
    given, env = run.options, run.env
    run.settings |= {} if explorer is None else {"explorer": explorer_settings(explorer)}
    experience = start_rollouts(
        algorithm,
        env,
        run.n_steps,
        buffer,
        given["demonstrations"],
        replays=replays,
        digested=given["checkpoint"] is not None,
        lanes=run.execution.lanes(env),
    )
    report_short_rollouts(algorithm, run.n_steps, run.execution.lanes(env))
    updates = run.execution.rollout_updates(algorithm, experience.parts)
    run.settings |= experience.settings

    def make_agent(
        observation: Tree, explorer: ExplorerProtocol | None, generator: np.random.Generator
    ) -> RolloutAgentCore:
        return RolloutAgentCore(algorithm, observation, single_spaces(env)[1], explorer, experience)

    observations = observation_spec(algorithm, env, experience.buffer)
    steps = run.execution.step_source(run, make_agent, observations, explorer, rollouts=True)
    session = run.session({**experience.parts, "rollout": steps, **updates.parts}, experience.buffer)
    steps.attach(session)
    if steps.agent.cut and session.left:
        session.warn_inexact("its last rollout was cut short by the end of the run")
    yield from run.epochs(session, steps, updates, exact=True, timed=run.execution.distributed)
    experience.close_episodes(range(steps.agent.n))
