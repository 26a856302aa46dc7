"""On-policy training in environments."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Unpack

from birl.envs import Stepper, reset_generator, single_spaces
from birl.errors import UnsupportedError
from birl.run.agent_core import check_buffer_and_explorer, example_observation, measure_nothing, observation_spec
from birl.run.collector import Collector
from birl.run.evaluation import checked_environments, online_evaluators
from birl.run.fingerprint import environment_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.run.replay_setup import explorer_settings
from birl.run.rollouts import RolloutAgentCore, start_rollouts
from birl.run.session import Session
from birl.run.workers.collector_setup import (
    begin_fleet,
    check_cluster,
    check_learners,
    check_rollouts,
    first_environment,
    generators_for,
)
from birl.run.workers.synchronous_learners import SynchronousLearners


def on_policy_fitter(
    algorithm: Trainable,
    env: Environment,
    n_steps: int = 1_000_000,
    explorer: ExplorerProtocol | None = None,
    buffer: Any = None,
    *,
    replays: bool = False,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on the policy's own rollouts, one epoch per iteration.

    Args:
        algorithm: on-policy algorithm; its networks are made if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one. It is given actions clipped
            to its bounds; the learner sees them as they were sampled.
        n_steps: number of environment steps over all environments that are trained on, exactly: the last rollout may be
            shorter. With rollouts of whole episodes, steps of episodes that still run at the end are not.
        explorer: turns greedy actions into the ones taken; by default the policy acts by itself. With a cluster, a list
            may have one for each collector.
        buffer: see `birl.run.rollouts.start_rollouts`.
        replays: whether older rollouts are learned from as well.
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.
    """
    n_steps, given = checked_online_options(n_steps, options)
    cluster, sent = given["cluster"], env
    cluster = None if cluster is None else cluster.taking("together")
    check_buffer_and_explorer(buffer, None if cluster is not None else explorer)
    env = checked_environments(env if cluster is None else first_environment(env), given)
    settings = run_settings(algorithm, "on_policy", **environment_settings(env, given["seed"]))
    settings |= {} if explorer is None else {"explorer": explorer_settings(explorer)}
    settings |= {} if cluster is None else {"cluster": cluster.settings()}
    algorithm.build_with_env(env)
    lanes = {} if cluster is None else {"lanes": cluster.lanes}
    if cluster is not None:
        check_cluster(env, buffer, False, cluster)
        check_rollouts(algorithm, cluster)
        if cluster.shards:
            raise UnsupportedError(
                f"Cluster.shards is {cluster.shards}, but {type(algorithm).__name__} learns from rollouts, not from "
                "a replay: leave shards out, or use an algorithm that replays, such as SAC"
            )
    kept, shown = given["checkpoint"] is not None, given["demonstrations"]
    beside = start_rollouts(algorithm, env, n_steps, buffer, shown, replays=replays, digested=kept, **lanes)
    learners = None
    if cluster is not None and cluster.learners > 1:
        check_learners(algorithm, cluster, beside.parts)
        learners = SynchronousLearners(algorithm, None, cluster)
    resets = reset_generator(env, given["seed"])
    seen = observation_spec(algorithm, env, beside.buffer)
    own = explorer[0] if isinstance(explorer, list | tuple) else explorer
    collector: Any
    if cluster is None:
        stepper = Stepper(env, resets, observations=seen)
        player = RolloutAgentCore(algorithm, stepper.observation, stepper.action_space, own, beside)
        collector = Collector(stepper, player)
    else:
        player = RolloutAgentCore(
            algorithm, example_observation(seen, env, cluster.lanes), single_spaces(env)[1], own, beside
        )
        generators = [(resets, resets.spawn(1)[0]), *generators_for(resets, cluster.collectors)[1:]]
        calls = cluster.calls(getattr(algorithm.config, "rollout_length", None), algorithm.learner.units_move)
        parts = (algorithm, sent, player, cluster, explorer, generators, n_steps)
        collector = begin_fleet(*parts, observed=seen, calls=calls, rollouts=True)
    evaluators = online_evaluators(given)
    name = f"{type(algorithm).__name__}_online"
    kept_parts = {**beside.parts, "rollout": collector, **({} if learners is None else {"learners": learners})}
    settings = {**settings, **beside.settings}
    session = Session(algorithm, name, n_steps, kept_parts, settings, evaluators, beside.buffer, given)
    if cluster is not None:
        collector.attach(session)

    if player.cut and session.left:
        session.warn_inexact("its last rollout was cut short by the end of the run")

    measure = measure_nothing if cluster is None else session.time

    def step() -> None:
        with session.time("step"):
            for value in collector.count(session.step, session.left, measure):
                session.averages.add({"rollout_return": value})
            for lesson in player.minibatches(session.step + 1, session.left == 1, session.time):
                if learners is None:
                    session.update(lesson)
                else:
                    learners.learn(session, lesson)
        session.tick()

    with learners or contextlib.nullcontext(), collector:
        yield from session.epochs(step)
    beside.close_episodes(range(player.n))
