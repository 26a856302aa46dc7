"""Off-policy training in environments."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import Any, Unpack

from birl.dataset import ReplayBuffer, create_fifo_replay_buffer
from birl.errors import ConfigError
from birl.run.collector import Collector, check_parts
from birl.run.evaluate import checked_environments, online_evaluators
from birl.run.identity import DIGEST, digest, environment_settings, part_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
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
    check_parts(buffer, explorer)
    env = checked_environments(env, given)
    update_interval, n_updates = given["update_interval"], given["n_updates"]
    update_start_step, random_steps = given["update_start_step"], given["random_steps"]
    overlap, seed = given["overlap"], given["seed"]
    batch_size = algorithm.config.batch_size
    limit = buffer.buffer.limit if isinstance(buffer, ReplayBuffer) else None
    if limit is not None and limit < batch_size:
        raise ConfigError(
            f"the buffer keeps {limit} steps, fewer than a minibatch of {batch_size}, so that nothing would ever be "
            f"learned; give a buffer with limit >= {batch_size}, or a smaller batch_size"
        )
    settings = run_settings(
        algorithm,
        "online",
        update_interval=update_interval,
        n_updates=n_updates,
        update_start_step=update_start_step,
        random_steps=random_steps,
        **({"overlap": True} if overlap else {}),
        explorer=part_settings(explorer),
        **environment_settings(env, seed),
    )
    algorithm.build_with_env(env)
    learner = algorithm.learner
    if buffer is None:
        buffer = create_fifo_replay_buffer(limit=DEFAULT_BUFFER_LIMIT, env=env)
    if buffer.transition_count + n_steps < batch_size:
        warnings.warn(
            f"nothing will be learned in n_steps={n_steps}: updates begin when the buffer holds a minibatch, that is, "
            f"batch_size={batch_size} steps. Take a smaller batch_size or more steps",
            UserWarning,
            stacklevel=2,
        )
    source = learner.begin_run(buffer, (n_steps - update_start_step) // update_interval * n_updates, growing=True)
    beside = getattr(buffer, "secondary_replay_buffer", None)  # only read: a checkpoint does not hold it
    if beside is not None and given["checkpoint"] is not None:
        settings[DIGEST] = digest(beside.reader.storages)
    settings["picker"] = part_settings(getattr(buffer, "transition_picker", None))
    collector = Collector(algorithm, env, buffer, explorer, seed=seed, overlap=overlap, see=learner.see)
    evaluators = online_evaluators(given)
    parts = {"buffer": buffer, "sampler": SamplerPart(source), "collector": collector}
    name = f"{type(algorithm).__name__}_online"
    session = Session(algorithm, name, n_steps, parts, settings, evaluators, buffer, given)

    def step() -> None:
        with session.time("step"):
            for value in collector.count(session.step, random_steps, session.time):
                session.averages.add({"rollout_return": value})
            now = session.step + 1
            due = now > update_start_step and now % update_interval == 0
            if due and buffer.transition_count >= batch_size:
                for _ in range(n_updates):
                    with session.time("sample_batch"):
                        drawn = learner.draw(source)
                    session.learn(drawn)
        session.tick()

    with collector:
        yield from session.epochs(step)
    collector.close_episodes()
