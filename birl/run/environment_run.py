"""Runs in environments: the checks that all loops share, and the processes that take steps and make updates.

An `EnvironmentRun` selects a `LocalExecution` or, for a run with a `Cluster`, a `ClusterExecution`. The loops are the
same with both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from gymnasium.vector import VectorEnv

from birl.envs import EndedEpisode, Stepper, as_environment, number_of_environments, reset_generator
from birl.errors import ConfigError
from birl.incompatible import check_compatible
from birl.metrics import EnvironmentEvaluator, EnvironmentStatistics
from birl.run.agent_core import (
    AgentCore,
    Explorers,
    MeasureTime,
    check_buffer_and_explorer,
    check_lanes,
    example_observation,
    explored_steps,
    info_features,
    keep_exploration,
    measure_nothing,
)
from birl.run.cluster import Cluster
from birl.run.collector import Collector
from birl.run.fingerprint import environment_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.protocols import (
    EnvironmentLike,
    Evaluator,
    ExplorerProtocol,
    Minibatch,
    ReplaySource,
    Stateful,
    StepBuffer,
    Trainable,
    TransitionCounter,
)
from birl.run.session import Session
from birl.run.workers.collector_group import GeneratorPair, make_collectors
from birl.run.workers.parameter_server import ParameterServer
from birl.run.workers.remote_learners import RemoteLearners
from birl.run.workers.replay_shards import ReplayShards
from birl.run.workers.synchronous_learners import SynchronousLearners
from birl.types import Environment, Tree

MakeAgent: TypeAlias = Callable[[Tree, ExplorerProtocol | None, np.random.Generator], AgentCore]
"""Function that makes the agent of a run: ``(example observation, explorer, generator of random actions)``."""


class StepSource(Stateful, Protocol):
    """Source of a run's steps: a `Collector` in the run's own process, or a `CollectorGroup` of worker processes.

    Attributes:
        agent: agent core that acts in all environments, stores the steps and yields minibatches.
    """

    agent: AgentCore

    def attach(self, session: Session) -> None:
        """Send reports to a session, and warn if the resumed run will differ from an uninterrupted one."""

    def count(self, step: int, most: int | None = None, measure: MeasureTime = ...) -> list[EndedEpisode]:
        """Count one more step; see `Collector.count`."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def _do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Updates:
    """The way in which a run computes its updates. By default, the run's own process computes them.

    Attributes:
        source: source of minibatches; ``None`` if updates use rollouts.
        counted: object whose ``transition_count`` shows when there are enough steps for a minibatch; ``None`` for the
            buffer.
        update: function that makes one update: ``update(session, minibatch)``.
        before_step: function that is called before each step.
        context: context manager that starts the worker processes and ends them.
        parts: further parts of a checkpoint, by name.
        compilable: whether a long run may compile its updates.
    """

    source: ReplaySource | None
    counted: TransitionCounter | None = None
    update: Callable[[Session, Minibatch], None] = Session.update
    before_step: Callable[[], None] = _do_nothing
    context: contextlib.AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    compilable: bool = True

    @classmethod
    def with_learners(cls, learners: RemoteLearners, source: ReplaySource | None) -> Updates:
        """Return updates that several learners compute together."""
        return cls(source, learners, learners.learn, context=learners, parts={"learners": learners}, compilable=False)


class EnvironmentRun:
    """A run in environments whose options are checked and whose networks are built.

    Args:
        algorithm: the algorithm; its networks are built if they do not exist.
        loop: name of the loop.
        env: environment or vector environment, or the name of one. With a cluster, see `birl.Cluster`.
        n_steps: length of the run in steps.
        options: the user's options.
        buffer, explorer: the user's arguments.
        batch_size: number of steps that the buffer must be able to hold.
        order: default of the cluster's ``order``.

    Attributes:
        env: environment that has the spaces of the run.
        given_env: the argument ``env``.
        options: all options, checked.
        settings: settings that a resumed run must share.
        explored: number of steps of earlier runs with the same explorer.
        execution: strategy that decides which processes take steps and make updates.
    """

    def __init__(
        self,
        algorithm: Trainable,
        loop: str,
        env: EnvironmentLike,
        n_steps: int,
        options: OnlineOptions,
        *,
        buffer: StepBuffer | None = None,
        explorer: Explorers = None,
        batch_size: int = 1,
        order: str = "together",
    ) -> None:
        self.n_steps, self.options = checked_online_options(n_steps, options)
        cluster = self.options["cluster"]
        self.execution = LocalExecution() if cluster is None else ClusterExecution(cluster.with_default_order(order))
        self.execution.check_inputs(buffer, explorer, batch_size)
        self.algorithm, self.given_env = algorithm, env
        self._explorer, self.explored = explorer, explored_steps(algorithm, explorer)
        self.env = checked_environments(self.execution.template_environment(env), self.options)
        self.execution.check_environment(self.env, buffer, self.options["overlap"])
        self.settings = run_settings(algorithm, loop, **environment_settings(self.env, self.options["seed"]))
        self.settings |= self.execution.settings
        algorithm.build_with_env(self.env)

    def session(self, parts: Mapping[str, Stateful], dataset: StepBuffer | None) -> Session:
        """Start the session of the run: its folders, its logger, and its checkpoint if there is one.

        Args:
            parts: parts of the checkpoint, by name.
            dataset: the dataset that evaluators receive.
        """
        evaluators = online_evaluators(self.options)
        name = f"{type(self.algorithm).__name__}_online"
        session = Session(self.algorithm, name, self.n_steps, parts, self.settings, evaluators, dataset, self.options)
        if self.explored and session.step == 0:
            session.report(f"the explorer's schedule continues at step {self.explored}; a new explorer starts at 0")
        return session

    def epochs(
        self, session: Session, steps: StepSource, updates: Updates, *, exact: bool, timed: bool
    ) -> Iterator[tuple[int, dict[str, float]]]:
        """Take all steps and make all updates, one epoch per iteration.

        Args:
            session: session of the run.
            steps: source of the steps.
            updates: the way in which updates are computed.
            exact: whether steps beyond ``n_steps``, as in the last step of a vector environment, are dropped.
            timed: whether acting is timed; for small networks, the timers take as long as the action itself.
        """
        measure = session.time if timed else measure_nothing

        def step() -> None:
            with session.time("step"):
                updates.before_step()
                made, left = session.step, session.left
                session.add_episodes(steps.count(made, left if exact else None, measure))
                for minibatch in steps.agent.minibatches(made + 1, left == 1, session.time):
                    updates.update(session, minibatch)
            session.tick()

        try:
            with updates.context, steps:
                yield from session.epochs(step)
        finally:
            keep_exploration(self.algorithm, self._explorer, steps.agent.explored + session.step)


class LocalExecution:
    """Execution of a run in its own process, which steps the environments and computes the updates.

    Attributes:
        distributed: whether worker processes step the environments.
        settings: settings that a resumed run must share.
    """

    distributed = False

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def check_inputs(self, buffer: object, explorer: object, batch_size: int) -> None:
        """Raise an error for a buffer or an explorer that cannot be used; see `check_buffer_and_explorer`."""
        check_buffer_and_explorer(buffer, explorer, batch_size)

    def template_environment(self, env: EnvironmentLike) -> EnvironmentLike:
        """Return an environment, or the name of one, that has the spaces of the run."""
        return env

    def check_environment(self, env: Environment, buffer: object, overlap: bool) -> None:
        """Raise an error if the environment cannot be used."""

    def lanes(self, env: Environment) -> int:
        """Return the number of environments in total."""
        return number_of_environments(env)

    def replay_updates(self, algorithm: Trainable, buffer: StepBuffer) -> Updates:
        """Return the way in which updates on minibatches of a replay buffer are computed."""
        return Updates(buffer)

    def rollout_updates(self, algorithm: Trainable, experience: Mapping[str, Stateful]) -> Updates:
        """Return the way in which updates on rollouts are computed.

        Args:
            algorithm: a built algorithm.
            experience: sources of data that the algorithm uses in addition to its rollouts, by name.
        """
        return Updates(None)

    def step_source(
        self, run: EnvironmentRun, make_agent: MakeAgent, observations: Tree, explorer: Explorers, *, rollouts: bool
    ) -> StepSource:
        """Make the collector, or the group of collectors, of a run.

        Args:
            run: the run, with its networks built.
            make_agent: makes the agent.
            observations: the parts of the environments' observations that the run reads.
            explorer: one for all processes, or a list with one for each.
            rollouts: whether the algorithm learns from rollouts.
        """
        ((resets, random),) = _generators(run, 1, rollouts=rollouts)
        stepper = Stepper(run.env, resets, observations=observations)
        overlap = run.options["overlap"] and not rollouts
        if overlap and not stepper.supports_async:
            raise ConfigError(
                f"overlap=True was given with a {type(run.env.unwrapped).__name__}; only environments that run in "
                "processes of their own can be stepped in the meantime: use gymnasium.vector.AsyncVectorEnv without a "
                "wrapper around it (birl.envs.make_env(name, num_envs=…, asynchronous=True)), or leave overlap out"
            )
        agent = make_agent(stepper.observation, _first(explorer), random)
        agent.explored = run.explored
        return Collector(stepper, agent, overlap)


class ClusterExecution(LocalExecution):
    """Execution of a run in the worker processes of a `Cluster`: collectors, replay shards and learners.

    Args:
        cluster: the cluster, with an order.
    """

    distributed = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.settings = {"cluster": cluster.settings()}

    def check_inputs(self, buffer: object, explorer: object, batch_size: int) -> None:
        check_buffer_and_explorer(buffer, None, batch_size)  # there may be an explorer for each collector

    def template_environment(self, env: EnvironmentLike) -> EnvironmentLike:
        return env(0) if callable(env) and not hasattr(env, "step") else env

    def check_environment(self, env: Environment, buffer: object, overlap: bool) -> None:
        if isinstance(env, VectorEnv):
            raise ConfigError(
                f"a {type(env).__name__} was given with cluster=…; give a plain environment: each collector steps "
                "birl.Cluster(environments=…) copies of it"
            )
        if overlap:
            check_compatible({"overlap": "overlap=True", "cluster": "cluster=…"})
        check_compatible({**info_features(buffer), "cluster": "cluster=…"})
        check_lanes(getattr(buffer, "storage", None), self._cluster.lanes)

    def lanes(self, env: Environment) -> int:
        return self._cluster.lanes

    def replay_updates(self, algorithm: Trainable, buffer: StepBuffer) -> Updates:
        cluster = self._cluster
        if cluster.learners > 1:
            kind = ParameterServer if cluster.gradients == "pushed" else SynchronousLearners
            learners = kind(algorithm, buffer, cluster)
            return Updates.with_learners(learners, learners.source)
        if cluster.shards:
            shards = ReplayShards(algorithm, buffer, cluster)
            return Updates(shards, shards, before_step=shards.wait_all, context=shards)
        return super().replay_updates(algorithm, buffer)

    def rollout_updates(self, algorithm: Trainable, experience: Mapping[str, Stateful]) -> Updates:
        cluster, learner, name = self._cluster, algorithm.learner, type(algorithm).__name__
        if cluster.order != "together":
            learner.check_compatible({"order": f"Cluster.order={cluster.order!r}"})
        if cluster.shards:
            learner.check_compatible({"shards": f"Cluster.shards={cluster.shards}"})
        if cluster.learners == 1:
            return super().rollout_updates(algorithm, experience)
        used = {"learners": f"Cluster.learners={cluster.learners}"}
        if experience:
            used["further experience"] = (
                f"{name}, which learns from {', '.join(experience)} in addition to its rollouts,"
            )
        if cluster.gradients == "pushed":
            used["pushed gradients"] = "Cluster.gradients='pushed'"
        learner.check_compatible(used)
        return Updates.with_learners(SynchronousLearners(algorithm, None, cluster), None)

    def step_source(
        self, run: EnvironmentRun, make_agent: MakeAgent, observations: Tree, explorer: Explorers, *, rollouts: bool
    ) -> StepSource:
        algorithm, cluster = run.algorithm, self._cluster
        generators = _generators(run, cluster.collectors, rollouts=rollouts)
        observation = example_observation(observations, run.env, cluster.lanes)
        agent = make_agent(observation, _first(explorer), generators[0][1])
        agent.explored = run.explored
        length = getattr(algorithm.config, "rollout_length", None) if rollouts else None
        return make_collectors(
            *(algorithm, run.given_env, agent, cluster, explorer, generators, run.n_steps),
            observed=observations,
            calls=cluster.calls(length, algorithm.learner.running_observation_scaler),
            random_steps=run.options["random_steps"],
            rollouts=rollouts,
        )


def _first(explorer: Explorers) -> ExplorerProtocol | None:
    return explorer[0] if isinstance(explorer, Sequence) else explorer


def _generators(run: EnvironmentRun, n: int, *, rollouts: bool) -> list[GeneratorPair]:
    """Make the generators of resets and of random actions for ``n`` collectors."""
    base = reset_generator(run.env, run.options["seed"])
    # The first collector has the generators of a run without collectors.
    first = [(base, base.spawn(1)[0])] if rollouts else []
    spawned = [(resets, random) for resets, random in (base.spawn(2) for _ in range(n))]
    return [*first, *spawned[len(first) :]]


def checked_environments(env: EnvironmentLike, options: OnlineOptions) -> Environment:
    """Create the environments that are given by name, and set ``eval_env`` in the options.

    Returns:
        The training environment.

    Raises:
        ConfigError: if both are the same environment, because evaluation would interrupt the running episode.
        EnvironmentMismatchError: if one is not an environment.
    """
    training: Environment = as_environment(env)
    if options["eval_env"] is not None:
        evaluation = options["eval_env"] = as_environment(options["eval_env"], "eval_env")
        if evaluation.unwrapped is training.unwrapped:
            raise ConfigError("eval_env is the training environment; it must be a separate one: make a second one")
    return training


_IDLE_WITHOUT_ENV: Final = ("eval_n_steps", "eval_statistics", "eval_epsilon", "eval_sample")


def online_evaluators(options: OnlineOptions) -> dict[str, Evaluator]:
    """Make the evaluator of a run in environments, if it has an ``eval_env``."""
    env = options["eval_env"]
    if env is None:
        idle = [name for name in _IDLE_WITHOUT_ENV if options[name]]  # type: ignore[literal-required]
        if idle:
            raise ConfigError(f"{', '.join(idle)} cannot be used without eval_env=: give it, or leave them out")
        return {}
    kind = EnvironmentStatistics if options["eval_statistics"] else EnvironmentEvaluator
    more: dict[str, Any] = {"n_steps": options["eval_n_steps"], "sample": options["eval_sample"]}
    return {"evaluation": kind(env, options["eval_n_trials"], options["eval_epsilon"], **more)}
