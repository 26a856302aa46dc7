"""What the fleet of a run is made of, and what a run must be to have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from gymnasium.vector import VectorEnv

from birl.distributed.workers import check_given
from birl.errors import ConfigError, UnsupportedError
from birl.run.agent_core import AgentCore, check_lanes, explorers_per_process
from birl.run.cluster import Cluster
from birl.run.protocols import Environment, ExplorerProtocol
from birl.run.workers.collector_group import CollectorGroup
from birl.run.workers.collector_worker import Given
from birl.run.workers.rollout_fragments import append_by_lane, join
from birl.types import Tree

_ADVICE: Final = (
    "give a name, such as 'CartPole-v1', or a function of the environment's number, in a module that can be imported"
)


def begin_fleet(
    algorithm: Any,
    env: Environment,
    player: AgentCore,
    cluster: Cluster,
    explorer: ExplorerProtocol | None,
    generators: list[tuple[np.random.Generator, np.random.Generator]],
    n_steps: int,
    *,
    observed: Tree,
    calls: int,
    random_steps: int = 0,
    rollouts: bool = False,
) -> CollectorGroup:
    """The collectors of a run, of which none has begun.

    Args:
        algorithm: built.
        env: what collectors make their environments of; see `birl.run.workers.collector_worker.environment`.
        player: of all environments.
        cluster: how steps are made.
        explorer: one for all collectors, or a list with one for each.
        generators: of resets and of random actions, for each collector; see `generators_for`.
        n_steps: of the run.
        observed: what is read of observations.
        calls: steps of each environment in a fragment; 0 if that is to be measured.
        random_steps: number of uniformly random steps at the start.
        rollouts: whether rollouts are learned from.
    """
    sent = cluster.transport == "processes"
    n, each = cluster.environments, explorers_per_process(explorer, cluster.collectors, "collectors", sent=sent)
    if sent and not isinstance(env, str):
        check_given("env", env, _ADVICE)
    config = algorithm.config
    config = replace(config, compile_graph=False) if config.compile_graph is True else config
    parts = (type(algorithm), config, algorithm.spec.observations, algorithm.spec.actions)
    given = []
    for i, (resets, random) in enumerate(generators):
        own = each[i]
        if cluster.collectors > 1 and own is not None and hasattr(own, "renewed"):
            own = own.renewed()
        made = Given(
            i,
            parts,
            env,
            range(i * n, (i + 1) * n),
            observed,
            own,
            random_steps,
            rollouts,
            [source.bit_generator.state for source in (resets, *resets.spawn(n - 1))],
            random.bit_generator.state,
            int(random.spawn(1)[0].integers(2**32)),
            cluster.restarts if cluster.on_error == "restart" else None,
        )
        given.append(made)
    return CollectorGroup(algorithm, player, cluster, given, calls, n_steps, join if rollouts else append_by_lane)


def generators_for(base: np.random.Generator, n: int) -> list[tuple[np.random.Generator, np.random.Generator]]:
    """Generators of resets and of random actions for ``n`` collectors; the first has those of a run without one."""
    return [(resets, random) for resets, random in (base.spawn(2) for _ in range(n))]


def first_environment(env: Any) -> Any:
    """The environment, or its name, that tells a run its spaces. Collectors do not step it: each has its own."""
    return env(0) if callable(env) and not hasattr(env, "step") else env


def check_cluster(env: Environment, buffer: Any, overlap: bool, cluster: Cluster) -> None:
    """Raise an error if a run cannot have collectors.

    Raises:
        ConfigError: if the environment is a vector environment, or steps are to overlap with updates.
        ShapeError: if the buffer has not one lane for each environment.
    """
    if isinstance(env, VectorEnv):
        raise ConfigError(
            f"a {type(env).__name__} was given with cluster=…; give a plain environment, of which each collector steps "
            "as many as birl.Cluster(environments=…) says"
        )
    if overlap:
        raise ConfigError("overlap=True was given with cluster=…, whose collectors act meanwhile: leave overlap out")
    check_lanes(getattr(buffer, "storage", None), cluster.lanes)


def check_rollouts(algorithm: Any, cluster: Cluster) -> None:
    """Raise an error if collectors cannot make the rollouts of an algorithm.

    Raises:
        ConfigError: if they would act on older weights.
    """
    name = type(algorithm).__name__
    if cluster.order != "together":
        raise ConfigError(
            f"Cluster.order is {cluster.order!r}, but {name} learns from rollouts of its newest weights: give "
            "order='together'"
        )


def check_learners(algorithm: Any, cluster: Cluster, beside: Mapping[str, Any]) -> None:
    """Raise an error if several learners cannot divide the rollouts of an algorithm.

    Raises:
        UnsupportedError: if they cannot.
    """
    name = type(algorithm).__name__
    if beside:
        raise UnsupportedError(
            f"Cluster.learners is {cluster.learners}, but {name} learns from {', '.join(beside)} beside its rollouts, "
            "which learners do not divide: leave learners out, or use PPO or A2C"
        )
    if not hasattr(algorithm.config, "rollout_length"):
        raise UnsupportedError(
            f"Cluster.learners is {cluster.learners}, but {name} learns from whole episodes, which are not of one "
            "length: leave learners out, or use PPO or A2C"
        )
    if cluster.gradients == "pushed":
        raise UnsupportedError(
            f"Cluster.gradients is 'pushed', but {name} learns from rollouts of its newest weights: leave gradients "
            "out, or use workers= with A3C"
        )
