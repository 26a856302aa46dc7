"""The training loop or agent with which an algorithm learns and acts in environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from birl.algorithm import building
from birl.algorithm.protocols import OnlineAlgorithm
from birl.envs import ExternalEnv, as_environment
from birl.errors import ConfigError
from birl.run import asynchronous, on_policy, online
from birl.run.agent import Agent, replay_agent, rollout_agent
from birl.run.options import (
    ONLINE_DEFAULTS,
    AgentOptions,
    OnlineOptions,
    check_options,
    checked_agent_options,
)
from birl.run.protocols import EnvironmentLike, ExplorerProtocol, StepBuffer
from birl.spaces import space_from_actions
from birl.types import Environment, Tree, tree_map


def fit_online(
    algorithm: OnlineAlgorithm,
    env: EnvironmentLike,
    buffer: StepBuffer | None,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None,
    n_steps: int,
    run: OnlineOptions,
) -> None:
    """Train in an environment; see `Algorithm.fit_online`."""
    name = algorithm.definition().name
    check_options("fit_online", run, ONLINE_DEFAULTS)
    experience, ways = algorithm.learns_from, _distributed(algorithm)
    ways |= {"workers": f"workers={run['workers']}"} if run.get("workers") is not None else {}
    ways |= {"cluster": "cluster=…"} if run.get("cluster") is not None else {}
    ways |= {"buffer": "a buffer"} if buffer is not None and experience.replays else {}
    experience.check_loop(name, "fit_online", ways)
    building.check_demonstrations(algorithm.definition(), run.get("demonstrations"))
    if experience.on_policy:
        replays = _replays(algorithm, buffer=buffer, explorer=explorer, **run)
        if run.get("workers") is None:
            epochs = on_policy.on_policy_fitter(algorithm, env, n_steps, explorer, buffer, replays=replays, **run)
        else:
            one = cast("Environment | str", env)  # only clusters take functions, and others are refused
            epochs = asynchronous.asynchronous_fitter(algorithm, one, n_steps, explorer, replays=replays, **run)
    else:
        if buffer is not None:
            building.check_picker(buffer, algorithm.config)
        run = {"n_updates": algorithm.learns_from.n_updates, **run}
        epochs = online.online_fitter(algorithm, env, buffer, explorer, n_steps, **run)
    list(epochs)


def agent(
    algorithm: OnlineAlgorithm,
    n: int,
    buffer: StepBuffer | None,
    explorer: ExplorerProtocol | None,
    env: Environment | None,
    options: AgentOptions,
) -> Agent:
    """Make an agent for a user's own loop; see `Algorithm.agent`."""
    name, experience = algorithm.definition().name, algorithm.learns_from
    given = checked_agent_options({"n_updates": experience.n_updates, **options})
    building.check_demonstrations(algorithm.definition(), given.get("demonstrations"))
    env = known_space(algorithm) if env is None else as_environment(env)
    if experience.on_policy:
        experience.check_loop(name, "fit_online", _distributed(algorithm))
        if given["seed"] is not None:
            raise ConfigError(
                f"seed={given['seed']} was given, but {name} learns from rollouts of its own policy, whose actions "
                "are drawn with torch's generator: call birl.seed before, and leave seed out"
            )
        replays = _replays(algorithm, buffer=buffer, explorer=explorer, **options)
        return rollout_agent(algorithm, env, n, explorer, buffer, given.get("demonstrations"), replays=replays)
    learning = [option for option in ("update_interval", "n_updates", "update_start_step") if option in options]
    learns = "fit_online" in experience.loops and options.get("update_interval", 1) is not None
    if options.get("update_interval", 1) is None and len(learning) > 1:
        raise ConfigError(
            f"{', '.join(learning[1:])} cannot be used with update_interval=None, for an agent that does not learn: "
            "give one of the two"
        )
    if learning and options.get("update_interval", 1) is not None:
        experience.check_loop(name, "fit_online")
    if learns:
        experience.check_loop(name, "fit_online", _distributed(algorithm))
        if buffer is not None:
            building.check_picker(buffer, algorithm.config)
    return replay_agent(algorithm, env, n, buffer, explorer, learns, given)


def known_space(algorithm: OnlineAlgorithm) -> ExternalEnv:
    """Return an external environment with the spaces of an algorithm's networks.

    Observations are float32, or choices. Actions have the bounds of the action scaler, else the bounds of the policy.

    Raises:
        NotBuiltError: if there are no networks yet.
    """
    actions = algorithm.spec.actions
    observations = tree_map(lambda leaf: leaf.space, algorithm.spec.observations)
    scaler = algorithm.config.action_scaler
    limit = 1.0 if algorithm.acts.bounded else np.inf
    minimum, maximum = getattr(scaler, "minimum", None), getattr(scaler, "maximum", None)
    low, high = (-limit, limit) if minimum is None or maximum is None else (minimum, maximum)
    return ExternalEnv(_space(observations), space_from_actions(actions, low, high))


def _space(tree: Tree) -> spaces.Space[Any]:
    """Combine a tree of spaces to one space."""
    if isinstance(tree, dict):
        return spaces.Dict({name: _space(part) for name, part in tree.items()})
    return spaces.Tuple(map(_space, tree)) if isinstance(tree, tuple) else tree


def _replays(algorithm: OnlineAlgorithm, **given: object) -> bool:
    """Check the options of a run on rollouts. Returns whether the algorithm also replays older rollouts."""
    experience, name = algorithm.learns_from, algorithm.definition().name
    replays = bool(experience.replays and getattr(algorithm.config, "replay_ratio", 0))
    used = (["buffer"] if replays else []) + (["explorer"] if experience.allows_explorer else [])
    note = " (its replay_ratio is 0)" if experience.replays and not replays else ""
    building.check_rollout_options(f"{name}{note}", **{key: value for key, value in given.items() if key not in used})
    if replays and given["buffer"] is not None:
        building.check_picker(given["buffer"], algorithm.config)
    return replays


def _distributed(algorithm: OnlineAlgorithm) -> dict[str, str]:
    """Return the feature ``enable_ddp`` of `birl.incompatible` if the algorithm has it."""
    return {"enable_ddp": "enable_ddp=True"} if algorithm.enable_ddp else {}
