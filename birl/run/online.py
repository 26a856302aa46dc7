"""Off-policy training in environments."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from typing import Any, Unpack

from birl.dataset import create_fifo_replay_buffer
from birl.envs import Stepper, reset_generator
from birl.errors import ConfigError
from birl.observations import part_names
from birl.run.collector import Collector
from birl.run.evaluate import checked_environments, online_evaluators
from birl.run.identity import DIGEST, digest, environment_settings, part_settings, run_settings, sampler_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.player import ReplayPlayer, Schedule, check_parts, observed
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.run.session import SamplerPart, Session

DEFAULT_BUFFER_LIMIT = 1_000_000


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
        explorer: turns greedy actions into the ones taken; by default the policy samples.
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
    check_parts(buffer, explorer, batch_size)
    env = checked_environments(env, given)
    settings = run_settings(
        algorithm,
        "online",
        **replay_settings(given, explorer),
        **({"overlap": True} if overlap else {}),
        **environment_settings(env, seed),
    )
    algorithm.build_with_env(env)
    buffer = default_buffer(algorithm, env) if buffer is None else buffer
    if buffer.transition_count + n_steps < batch_size:
        warnings.warn(
            f"nothing will be learned in n_steps={n_steps}: updates begin when the buffer holds a minibatch, that is, "
            f"batch_size={batch_size} steps. Take a smaller batch_size or more steps",
            UserWarning,
            stacklevel=2,
        )
    schedule = begun_schedule(algorithm, buffer, given, n_steps)
    settings |= buffer_settings(buffer, digested=given["checkpoint"] is not None)
    resets, random = reset_generator(env, seed).spawn(2)
    stepper = Stepper(env, resets, observations=observed(algorithm, env, buffer))
    if overlap and not stepper.divisible:
        raise ConfigError(
            f"overlap=True was given with a {type(env.unwrapped).__name__}; only environments that run in "
            "processes of their own can be stepped meanwhile: use gymnasium.vector.AsyncVectorEnv without a "
            "wrapper around it "
            "(birl.envs.make_env(name, num_envs=…, asynchronous=True)), or leave overlap out"
        )
    player = ReplayPlayer(
        algorithm,
        stepper.observation,
        stepper.action_space,
        buffer,
        explorer,
        generator=random,
        random_steps=given["random_steps"],
        schedule=schedule,
    )
    collector = Collector(stepper, player, overlap)
    evaluators = online_evaluators(given)
    parts = {"buffer": buffer, "sampler": SamplerPart(schedule.source), "collector": collector}
    name = f"{type(algorithm).__name__}_online"
    session = Session(algorithm, name, n_steps, parts, settings, evaluators, buffer, given)

    def step() -> None:
        with session.time("step"):
            for value in collector.count(session.step, measure=session.time):
                session.averages.add({"rollout_return": value})
            for drawn in player.lessons(session.step + 1, measure=session.time):
                session.learn(drawn)
        session.tick()

    with collector:
        yield from session.epochs(step)
    player.close_episodes()


def default_buffer(
    algorithm: Trainable, env: Environment, limit: int = DEFAULT_BUFFER_LIMIT, **options: Any
) -> Any:
    """A buffer of the newest ``limit`` steps, of what a built algorithm reads of an environment."""
    keys = part_names(algorithm.spec.observations)
    return create_fifo_replay_buffer(limit, env=env, observation_keys=keys, **options)


def replay_settings(given: Mapping[str, Any], explorer: ExplorerProtocol | None) -> dict[str, Any]:
    """The settings of acting and of the schedule that a run and its resumption must share."""
    names = ("update_interval", "n_updates", "update_start_step", "random_steps")
    return {**{name: given[name] for name in names}, "explorer": part_settings(explorer)}


def buffer_settings(buffer: Any, digested: bool) -> dict[str, Any]:
    """Those of the buffer: its picker, its sampler and, with ``digested``, the data beside it, which are only read."""
    settings: dict[str, Any] = {"picker": part_settings(getattr(buffer, "transition_picker", None))}
    settings |= sampler_settings(buffer)
    beside = getattr(buffer, "secondary_replay_buffer", None)  # a checkpoint does not hold it
    return settings if beside is None or not digested else {**settings, DIGEST: digest(beside.reader.storages)}


def begun_schedule(algorithm: Trainable, buffer: Any, given: Mapping[str, Any], n_steps: int) -> Schedule:
    """The schedule of a run that begins now.

    Args:
        algorithm: built.
        buffer: to learn from.
        given: its options.
        n_steps: length of the run in steps.
    """
    interval, count, start = given["update_interval"], given["n_updates"], given["update_start_step"]
    source = algorithm.learner.begin_run(buffer, (n_steps - start) // interval * count, growing=True)
    return Schedule(source, interval, count, start)
