"""On-policy training in environments."""

from __future__ import annotations

from collections.abc import Generator
from typing import Unpack

from birl.envs import Stepper, reset_generator
from birl.run.collector import Collector
from birl.run.evaluate import checked_environments, online_evaluators
from birl.run.identity import environment_settings, part_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.player import RolloutPlayer, check_parts
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.run.session import Session


def on_policy_fitter(
    algorithm: Trainable,
    env: Environment,
    n_steps: int = 1_000_000,
    explorer: ExplorerProtocol | None = None,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on the policy's own rollouts, one epoch per iteration.

    Args:
        algorithm: on-policy algorithm; its networks are made if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one. It is given actions clipped
            to its bounds; the learner sees them as they were sampled.
        n_steps: number of environment steps over all environments that are trained on, exactly: the last rollout may be
            shorter.
        explorer: turns greedy actions into the ones taken; by default the policy acts by itself.
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.
    """
    n_steps, given = checked_online_options(n_steps, options)
    env = checked_environments(env, given)
    check_parts(None, explorer)
    own = {} if explorer is None else {"explorer": part_settings(explorer)}
    settings = run_settings(algorithm, "on_policy", **own, **environment_settings(env, given["seed"]))
    algorithm.build_with_env(env)
    algorithm.learner.begin_run(None, n_steps)
    resets = reset_generator(env, given["seed"])
    stepper = Stepper(env, resets, observations=algorithm.spec.observations)
    player = RolloutPlayer(algorithm, stepper.observation, stepper.action_space, explorer)
    collector = Collector(stepper, player)
    evaluators = online_evaluators(given)
    name = f"{type(algorithm).__name__}_online"
    session = Session(algorithm, name, n_steps, {"rollout": collector}, settings, evaluators, None, given)

    if player.cut and session.left:
        session.differs("its last rollout was cut short by the end of the run")

    def step() -> None:
        with session.time("step"):
            for value in collector.count(session.step, session.left):
                session.averages.add({"rollout_return": value})
            for rollout in player.lessons(session.step + 1, last=session.left == 1):
                session.learn(rollout)
        session.tick()

    yield from session.epochs(step)
