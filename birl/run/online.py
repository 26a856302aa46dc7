"""Off-policy training in environments."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any, Unpack

from birl.envs import Stepper, reset_generator, single_spaces
from birl.errors import ConfigError
from birl.run.agent_core import ReplayAgentCore, check_buffer_and_explorer, example_observation, observation_spec
from birl.run.collector import Collector
from birl.run.evaluation import checked_environments, online_evaluators
from birl.run.fingerprint import environment_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.run.replay_setup import buffer_settings, default_buffer, replay_settings, start_schedule
from birl.run.session import SamplerPart, Session
from birl.run.workers.collector_setup import begin_fleet, check_cluster, first_environment, generators_for
from birl.run.workers.parameter_server import ParameterServer
from birl.run.workers.remote_learners import RemoteLearners
from birl.run.workers.replay_shards import ReplayShards
from birl.run.workers.synchronous_learners import SynchronousLearners


def online_fitter(
    algorithm: Trainable,
    env: Environment,
    buffer: Any = None,
    explorer: ExplorerProtocol | None = None,
    n_steps: int = 1_000_000,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train in an environment or vector environment, one epoch per iteration.

    Steps are counted over all environments. Where a vector environment makes ``n`` steps at once, the updates that are
    due for them follow one by one: the ratio of updates to steps does not depend on ``n``.

    Args:
        algorithm: off-policy algorithm; its networks are made if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one (see `birl.envs.make_env`).
        buffer: replay buffer with one lane per environment; by default the newest million steps are kept.
        explorer: turns greedy actions into the ones taken; by default the policy samples. With a cluster, a list may
            have one for each collector.
        n_steps: number of environment steps that are trained on, exactly. (A vector environment may have made up to
            ``n - 1`` more.)
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics.

    Raises:
        ConfigError: if the buffer can never hold a minibatch, or if the environments cannot overlap.
        ActionError: if the policy or the explorer chooses an action outside of the environment's space.
    """
    n_steps, given = checked_online_options(n_steps, options)
    batch_size, overlap, seed = algorithm.config.batch_size, given["overlap"], given["seed"]
    cluster, sent = given["cluster"], env
    cluster = None if cluster is None else cluster.taking("turns")
    check_buffer_and_explorer(buffer, None if cluster is not None else explorer, batch_size)
    env = checked_environments(env if cluster is None else first_environment(env), given)
    if cluster is not None:
        check_cluster(env, buffer, overlap, cluster)
    settings = run_settings(
        algorithm,
        "online",
        **replay_settings(given, explorer),
        **({"overlap": True} if overlap else {}),
        **({} if cluster is None else {"cluster": cluster.settings()}),
        **environment_settings(env, seed),
    )
    algorithm.build_with_env(env)
    if buffer is None:
        buffer = default_buffer(algorithm, env, **({} if cluster is None else {"lanes": cluster.lanes}))
    if buffer.transition_count + n_steps < batch_size:
        warnings.warn(
            f"nothing will be learned in n_steps={n_steps}: updates begin when the buffer holds a minibatch, that is, "
            f"batch_size={batch_size} steps. Take a smaller batch_size or more steps",
            UserWarning,
            stacklevel=2,
        )
    learners: RemoteLearners | None = None
    if cluster is not None and cluster.learners > 1:
        kind = ParameterServer if cluster.gradients == "pushed" else SynchronousLearners
        learners = kind(algorithm, buffer, cluster)
    shards = ReplayShards(algorithm, buffer, cluster) if cluster is not None and cluster.shards else None
    if learners is None:
        schedule = start_schedule(algorithm, shards or buffer, given, n_steps, shards)
    else:
        schedule = start_schedule(algorithm, learners.source, given, 0, learners)  # nothing is compiled
    settings |= buffer_settings(buffer, digested=given["checkpoint"] is not None)
    generators = generators_for(reset_generator(env, seed), 1 if cluster is None else cluster.collectors)
    seen = observation_spec(algorithm, env, buffer)
    if cluster is None:
        stepper = Stepper(env, generators[0][0], observations=seen)
        if overlap and not stepper.divisible:
            raise ConfigError(
                f"overlap=True was given with a {type(env.unwrapped).__name__}; only environments that run in "
                "processes of their own can be stepped meanwhile: use gymnasium.vector.AsyncVectorEnv without a "
                "wrapper around it "
                "(birl.envs.make_env(name, num_envs=…, asynchronous=True)), or leave overlap out"
            )
    player = ReplayAgentCore(
        algorithm,
        stepper.observation if cluster is None else example_observation(seen, env, cluster.lanes),
        single_spaces(env)[1],
        buffer,
        explorer[0] if isinstance(explorer, list | tuple) else explorer,
        generator=generators[0][1],
        random_steps=given["random_steps"],
        schedule=schedule,
    )
    collector: Any
    if cluster is None:
        collector = Collector(stepper, player, overlap)
    else:
        parts = (algorithm, sent, player, cluster, explorer, generators, n_steps)
        collector = begin_fleet(*parts, observed=seen, calls=cluster.calls(), random_steps=given["random_steps"])
    evaluators = online_evaluators(given)
    kept = {"buffer": buffer, "sampler": SamplerPart(schedule.source), "collector": collector}
    kept |= {} if learners is None else {"learners": learners}
    name = f"{type(algorithm).__name__}_online"
    session = Session(algorithm, name, n_steps, kept, settings, evaluators, buffer, given)
    if cluster is not None:
        collector.attach(session)

    def step() -> None:
        with session.time("step"):
            if shards is not None:
                shards.settle()
            for value in collector.count(session.step, measure=session.time):
                session.averages.add({"rollout_return": value})
            for drawn in player.minibatches(session.step + 1, measure=session.time):
                if learners is None:
                    session.update(drawn)
                else:
                    learners.learn(session, drawn)
        session.tick()

    with shards or learners or contextlib.nullcontext(), collector:
        yield from session.epochs(step)
    player.close_episodes()
