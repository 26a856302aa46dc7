"""The collectors of a run: tasks go out, fragments of steps come in, and every step is counted.

A `CollectorGroup` has the interface of a `birl.run.collector.Collector`, so that the loops are the same with and
without collectors. Which tasks it makes, and when, depends only on the fragments that it has taken before: with the
orders *together* and *turns* a run is a function of its seed. A collector that is lost is restarted from the state in
its last fragment and is sent its open tasks again, with the weights of each, so that it makes the same steps, bit for
bit.

Each task yields one fragment, and the number of open tasks is limited, so there is no queue. A checkpoint does not wait
for open tasks, but holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from birl.checks import check
from birl.distributed.transport import WorkerLost
from birl.distributed.worker_pool import LossReport, WorkerPool
from birl.distributed.worker_process import check_picklable
from birl.envs import EndedEpisode, Step
from birl.envs.stepper import STEP_COLUMNS
from birl.errors import CorruptFileError, WorkerError
from birl.logging import LOG
from birl.run.agent_core import (
    AgentCore,
    MeasureTime,
    SelectedActions,
    explorers_per_process,
    measure_nothing,
    scatter_rows,
)
from birl.run.cluster import AUTO, FIRST_FRAGMENT, Cluster, fragment_length
from birl.run.protocols import EnvironmentLike, ExplorerProtocol, Trainable
from birl.run.rollouts import RolloutAgentCore
from birl.run.session import Session
from birl.run.workers.collector_worker import CollectorSpec, CollectorTask, CollectorWorker, Fragment
from birl.run.workers.protocols import AlgorithmSpec
from birl.seeding import random_state, set_random_state
from birl.types import Array, State, Tree, tree_map

GeneratorPair: TypeAlias = tuple[np.random.Generator, np.random.Generator]
"""The generators of a collector: of resets and of random actions."""

LaneFragment: TypeAlias = "tuple[Array | None, Fragment]"
"""A fragment and its lanes ``[k]``; ``None`` for all."""

Store: TypeAlias = "Callable[[Any, list[LaneFragment], int | None], None]"
"""Stores fragments in an `AgentCore`; see `append_fragments`."""

_COUNTS: Final = ("number", "learned", "calls")
_STEPS: Final = ("assigned", "dropped", "missed", "restarts", "errors")
_PICKLE_ADVICE: Final = (
    "give a name, such as 'CartPole-v1', or a function of the environment's number, in a module that can be imported"
)


class _Collector:
    """The state of a collector, which outlives its restarts.

    Attributes:
        spec: its specification.
        lanes: numbers of its environments; ``None`` if there is one collector.
        state: its state after the last fragment that was taken; ``None`` before the first.
        fragments: fragments that were received and not taken yet, with their tasks.
        hung_at: step in which it last hung.
    """

    def __init__(self, spec: CollectorSpec, lanes: Array | None) -> None:
        self.spec, self.lanes = spec, lanes
        self.state: State | None = None
        self.fragments: deque[tuple[CollectorTask, Fragment]] = deque()
        self.hung_at: str | None = None


class CollectorGroup(WorkerPool[CollectorSpec, CollectorTask, Fragment]):
    """The collectors of a run, which are a part of its checkpoints.

    Args:
        algorithm: algorithm whose networks are built.
        agent: agent core of all environments, which stores and learns.
        cluster: settings of the cluster.
        specs: specifications of the collectors.
        calls: number of steps of each environment in a fragment; 0 if it must be measured.
        n_steps: number of steps of the run.
        store: function that stores fragments in ``agent``.

    Attributes:
        cut: 0 or, if a task was shortened or not assigned because the run was about to end, the number of steps of the
            run.
        assigned, dropped, missed: numbers of steps since the start of the run. Steps that are assigned again count
            again. Missed steps were assigned but not made, because an episode ended or an environment failed.
        errors: number of times that an environment failed and was created again.
        report: function to call with the metrics of each fragment.
    """

    worker_name = "collector"

    def __init__(
        self,
        algorithm: Trainable,
        agent: AgentCore,
        cluster: Cluster,
        specs: list[CollectorSpec],
        calls: int,
        n_steps: int,
        store: Store,
    ) -> None:
        placement = cluster.placement(cluster.ray_resources)
        super().__init__(CollectorWorker, placement, range(len(specs)), cluster.restarts)
        self._algorithm: Any = algorithm
        self.agent, self._cluster = agent, cluster
        self._calls, self._n_steps, self._store = calls, n_steps, store
        n = cluster.environments
        lanes = [np.arange(i * n, (i + 1) * n) if len(specs) > 1 else None for i in range(len(specs))]
        self._collectors = [_Collector(spec, own) for spec, own in zip(specs, lanes, strict=True)]
        # One collector in step with the learner makes the same steps as none: they share their random numbers.
        self._shares_random = len(specs) == 1 and cluster.order == "together"
        self._weights: dict[int, State] = {}  # of open tasks, and the newest, by version
        self._shared_weights: dict[int, object] = {}  # the same as payloads
        self._newest: tuple[tuple[int, int] | None, int] = (None, -1)  # moment and version of the newest weights
        self._arrivals: deque[_Collector] = deque()  # collectors in the order in which their fragments came
        self._number = self._learned = 0
        self.assigned = self.dropped = self.missed = self.errors = 0
        self.cut = 0
        self.report: Callable[[Mapping[str, float]], None] = lambda metrics: None

    def attach(self, session: Session) -> None:
        """Report to a session, and warn if tasks of its checkpoint were cut short for another end."""
        self.report, self.check_signals = session.averages.add, session.check_signals
        if self.cut not in (0, self._n_steps):
            session.warn_inexact("its last tasks were cut short, or not made, because it was to end")

    def _tasks(self, index: int) -> list[CollectorTask]:
        """Return the tasks of a collector whose fragments are not taken yet."""
        return [task for task, _ in self._collectors[index].fragments] + list(self.slots[index].tasks)

    @property
    def in_flight(self) -> int:
        """Number of steps that are assigned and not taken."""
        calls = sum(task.calls for index in self.slots for task in self._tasks(index))
        return calls * self._cluster.environments

    def count(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> list[EndedEpisode]:
        """Count one more step. Take the next fragment first if no stored step is left; see `Collector.count`."""
        episodes: list[EndedEpisode] = []
        while self.agent.uncounted_steps == 0:
            self._assign_tasks()
            self._check_tasks(step)
            episodes += self._take(self._next(measure), most)
        self.agent.uncounted_steps -= 1
        return episodes

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _assign_tasks(self) -> None:
        """Give all collectors the tasks that they have credit for, as long as there are steps to make."""
        for index, slot in self.slots.items():
            if slot.tasks:  # of a checkpoint
                self.start(index)
        for depth in range(self._cluster.credit):
            for index in self.slots:
                if len(self._tasks(index)) <= depth:
                    self._assign(index)

    def _check_tasks(self, step: int) -> None:
        """Raise an error if no task has the next step, so that the wait for it would never end."""
        if not any(self._tasks(index) for index in self.slots):
            made = self.assigned - self.dropped - self.missed
            raise WorkerError(
                f"step {step + 1} of {self._n_steps} is missing, but the collectors have carried out all their tasks, "
                f"{made} steps, and no further task is due: birl has miscounted its steps. Start the run again, "
                "which goes on from its last checkpoint, and report this error with the command or script of the run"
            )

    def _assign(self, index: int) -> None:
        """Give a collector its next task, if there are steps left to make."""
        n, before = self._cluster.environments, self.assigned - self.dropped - self.missed
        wanted = self._calls or FIRST_FRAGMENT
        wanted = wanted if self.agent.rows_left is None else min(wanted, self.agent.rows_left)
        calls = min(wanted, -(-(self._n_steps - before) // n))
        self.cut = self._n_steps if calls < wanted else self.cut
        if calls <= 0:
            return
        random = random_state() if self._shares_random else None
        task = CollectorTask(self._number, calls, before, self._learned, self._newest_version(), random)
        self._number, self.assigned = self._number + 1, self.assigned + calls * n
        self.send(index, task, self.payload(task))

    def _newest_version(self) -> int:
        """Return the version of the newest weights."""
        learner, version = self._algorithm.learner, self._newest[1]
        moment = (self._algorithm.grad_step, self._learned if learner.running_observation_scaler else 0)
        if self._newest[0] != moment:
            version += 1
            self._newest = (moment, version)
            self._weights[version] = learner.policy.weights()
        return version

    def payload(self, task: CollectorTask) -> object:
        if task.version not in self._shared_weights:
            self._shared_weights[task.version] = self.transport.share(self._weights[task.version])
        return self._shared_weights[task.version]

    def spec(self, index: int) -> CollectorSpec:
        collector = self._collectors[index]
        state = collector.fragments[-1][1].state if collector.fragments else collector.state
        return collector.spec._replace(state=state)

    # -- fragments -------------------------------------------------------------------------------------------------

    def _next(self, measure: MeasureTime) -> list[int]:
        """Wait for the fragments that are taken next, and return the numbers of their collectors."""
        awaited = [index for index in self.slots if self._tasks(index)]
        if self._cluster.order == "turns":
            awaited = [min(awaited, key=lambda index: self._tasks(index)[0].number)]
        arrival = self._cluster.order == "arrival"
        with measure("waiting"):
            while not self._arrivals if arrival else any(not self._collectors[i].fragments for i in awaited):
                self.check_signals()  # fragments that are not taken yet will be made again by a resumed run
                self.receive()
        return [self._arrivals[0].spec.collector] if arrival else awaited

    def handle_result(self, index: int, task: CollectorTask, result: Fragment) -> None:
        if result.number != task.number:
            raise WorkerError(
                f"collector {index} answered task {result.number}, but task {task.number} was its next: an answer was "
                "lost on the way, or came twice; start the run again, which goes on from its checkpoint"
            )
        collector = self._collectors[index]
        collector.fragments.append((task, result))
        collector.hung_at = None
        self._arrivals.append(collector)
        self.reset_failures(index)

    def describe_loss(self, lost: WorkerLost) -> LossReport:
        index, collector = lost.index, self._collectors[lost.index]
        if lost.position is not None and lost.position == collector.hung_at:
            raise WorkerError(
                f"collector {index} was ended twice {lost.how}, both times in {lost.position}; it would hang again, so "
                "mend the environment, or, if this may take so long, give birl.Cluster(step_timeout=…)"
            )
        collector.hung_at = lost.position
        tasks = self.slots[index].tasks
        number = tasks[0].number if tasks else 0
        return LossReport(
            f", in task {number} or before; it is restarted and goes on from its last fragment",
            f"without an answer to task {number}",
            "where the system ends it for lack of memory, use fewer collectors; otherwise, see what its environments "
            f"{_format_range(collector.spec.env_numbers)} do",
        )

    def _take(self, indices: list[int], most: int | None) -> list[EndedEpisode]:
        """Store the first fragments of some collectors, and return the episodes that ended."""
        taken: list[LaneFragment] = []
        for index in indices:
            collector = self._collectors[index]
            task, fragment = collector.fragments.popleft()
            self._arrivals.remove(collector)
            collector.state = fragment.state
            if self._shares_random:
                set_random_state(fragment.state["random"])
            self._close_lost_episodes(collector, fragment)
            steps, lag = int(fragment.rows["valid"].sum()), self._learned - task.learned
            self.missed += task.calls * self._cluster.environments - steps
            if self._cluster.max_lag is not None and lag > self._cluster.max_lag:
                self.dropped += steps
                self.agent.close_episodes(collector.lanes)
                continue
            taken.append((collector.lanes, fragment))
            counts = {"collector_restarts": self.restarts, "environment_errors": self.errors}
            counts |= {"dropped_steps": self.dropped, "fragment": self._calls if self._cluster.fragment == AUTO else 0}
            metrics = {name: float(count) for name, count in counts.items() if count}
            self.report({"lag": float(lag), "time_idle": fragment.idle, **metrics})
        if taken:
            self._store(self.agent, taken, most)
            if not self._calls:
                self._set_fragment_length(max(fragment.seconds for _, fragment in taken))
        self._learned += len(taken)
        needed = {task.version for index in self.slots for task in self._tasks(index)} | {self._newest[1]}
        self._weights = {version: self._weights[version] for version in self._weights if version in needed}
        self._shared_weights = {key: payload for key, payload in self._shared_weights.items() if key in needed}
        return [episode for _, fragment in taken for episode in fragment.episodes]

    def _close_lost_episodes(self, collector: _Collector, fragment: Fragment) -> None:
        """End the episodes that a fragment does not continue, and warn of what went wrong."""
        if fragment.lost:
            LOG.warning(
                "collector %d was restarted, but its environments %s do not repeat what they did with the same "
                "seeds and actions: their running episodes were cut, and new ones started",
                *(collector.spec.collector, _format_range(collector.spec.env_numbers)),
            )
            self.agent.close_episodes(collector.lanes)
        elif len(fragment.cut):
            self.agent.close_episodes(fragment.cut if collector.lanes is None else collector.lanes[fragment.cut])
        self.errors += len(fragment.failures)
        for message in fragment.failures:
            LOG.warning("%s; its episode was truncated, and the environment remade", message)

    def _set_fragment_length(self, seconds: float) -> None:
        """Set the length of the fragments of later tasks, given the duration of a step."""
        self._calls = fragment_length(seconds)
        LOG.info("fragment=%d: a step takes %.3g ms", self._calls, 1000 * seconds)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._shared_weights.clear()

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return counts, open tasks with their weights, and the state of each collector before them."""
        tasks = {index: self._tasks(index) for index in self.slots}
        versions = {task.version for own in tasks.values() for task in own}
        return {
            "agent": self.agent.get_state(),
            "counts": {name: getattr(self, f"_{name}") for name in _COUNTS},
            "steps": {name: getattr(self, name) for name in _STEPS},
            "version": self._newest[1],
            "cut": self.cut,
            "collectors": {
                str(index): {
                    "state": self._collectors[index].state,
                    "tasks": {str(i): task._asdict() for i, task in enumerate(own)},
                }
                for index, own in tasks.items()
            },
            "weights": {str(version): self._weights[version] for version in sorted(versions)},
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any collector has started."""
        counts = {
            f"{'_' * (group == 'counts')}{name}": check(name, value, int, low=0, error=CorruptFileError)
            for group in ("counts", "steps")
            for name, value in state[group].items()
        }
        policy = self._algorithm.learner.policy
        before = policy.weights()
        try:  # raises an error if they do not fit
            for weights in state["weights"].values():
                policy.set_weights(weights)
        finally:
            policy.set_weights(before)
        saved = {index: state["collectors"][str(index)] for index in self.slots}
        longest = max(counts.get("_calls", self._calls), FIRST_FRAGMENT)
        tasks = {index: _load_tasks(each["tasks"], state["weights"], longest) for index, each in saved.items()}
        cut = check("cut", state["cut"], int, low=0, error=CorruptFileError)
        version = check("version", state["version"], int, low=-1, error=CorruptFileError)
        self.agent.set_state(state["agent"])
        for index, slot in self.slots.items():
            self._collectors[index].state, slot.tasks, slot.running = saved[index]["state"], tasks[index], False
        for name, value in counts.items():
            setattr(self, name, value)
        self.cut, self._newest = cut, (None, version)
        self._weights = {int(key): weights for key, weights in state["weights"].items()}


def _load_tasks(saved: State, weights: State, longest: int) -> deque[CollectorTask]:
    """Return the open tasks of a checkpoint."""
    tasks: deque[CollectorTask] = deque()
    for i in range(len(saved)):
        task = CollectorTask(**saved[str(i)])
        for name in ("number", "first_step", "learned", "version"):
            check(name, getattr(task, name), int, low=0, error=CorruptFileError)
        check("calls", task.calls, int, low=1, high=longest, error=CorruptFileError)
        if str(task.version) not in weights:
            raise CorruptFileError(
                f"the checkpoint has a task with weights {task.version}, which it does not hold: use a copy"
            )
        tasks.append(task)
    return tasks


def _format_range(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} … {numbers[-1]}"


# -- storing fragments -------------------------------------------------------------------------------------------------


def append_fragments(agent: AgentCore, fragments: list[LaneFragment], most: int | None) -> None:
    """Store fragments one after another, each in its lanes.

    Args:
        agent: stores them.
        fragments: fragments with their lanes.
        most: maximum number of steps; further steps are marked as invalid and left out.
    """
    for lanes, fragment in fragments:
        agent.record(*_selected_and_step(fragment.rows), None if most is None else most - agent.uncounted_steps, lanes)


def merge_fragments(agent: RolloutAgentCore, fragments: list[LaneFragment], most: int | None) -> None:
    """Store fragments as rows of all environments; see `append_fragments`.

    A fragment that is shorter than others is padded with copies of its last row, which are marked as not valid.
    """
    with agent.recording_fragment():
        for t in range(max(len(fragment.rows["valid"]) for _, fragment in fragments)):
            whole: Tree = None
            for lanes, fragment in fragments:
                last = len(fragment.rows["valid"]) - 1
                row = _row(fragment, min(t, last))
                row["valid"] = row["valid"] & (t <= last)
                if whole is None:
                    whole = row if lanes is None else scatter_rows(row, lanes, agent.n)
                else:
                    tree_map(lambda out, part, lanes=lanes: out.__setitem__(lanes, part), whole, row)
            agent.record(*_selected_and_step(whole), None if most is None else most - agent.uncounted_steps)


def _row(fragment: Fragment, t: int) -> dict[str, Tree]:
    row: dict[str, Tree] = tree_map(lambda column: column[t], fragment.rows)
    return row


def _selected_and_step(row: dict[str, Tree]) -> tuple[SelectedActions, Step]:
    selected = SelectedActions(**{name: row[name] for name in SelectedActions._fields})
    return selected, Step(**{name: row[name] for name in STEP_COLUMNS})


# -- making the collectors of a run ------------------------------------------------------------------------------------


def make_collectors(
    algorithm: Trainable,
    env: EnvironmentLike,
    agent: AgentCore,
    cluster: Cluster,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None,
    generators: list[GeneratorPair],
    n_steps: int,
    *,
    observed: Tree,
    calls: int,
    random_steps: int = 0,
    rollouts: bool = False,
) -> CollectorGroup:
    """Make the collectors of a run. The process of a collector starts when its first task is sent.

    Args:
        algorithm: a built algorithm.
        env: source of the collectors' environments; see `birl.run.workers.collector_worker.make_env`.
        agent: agent core of all environments.
        cluster: settings of the cluster.
        explorer: one for all collectors, or a list with one for each.
        generators: generators of each collector.
        n_steps: number of steps of the run.
        observed: the leaves of observations that are kept.
        calls: number of steps of each environment in a fragment; 0 if it must be measured.
        random_steps: number of uniformly random steps at the start.
        rollouts: whether the algorithm learns from rollouts.
    """
    pickled = cluster.transport == "processes"
    n, explorers = cluster.environments, explorers_per_process(explorer, cluster.collectors, "collectors", sent=pickled)
    if pickled and not isinstance(env, str):
        check_picklable("env", env, _PICKLE_ADVICE)
    specs = []
    for i, (resets, random) in enumerate(generators):
        own_explorer = explorers[i]
        if cluster.collectors > 1 and own_explorer is not None and hasattr(own_explorer, "renewed"):
            own_explorer = own_explorer.renewed()
        spec = CollectorSpec(
            collector=i,
            algorithm=AlgorithmSpec.of(algorithm),
            env=env,
            env_numbers=range(i * n, (i + 1) * n),
            observed=observed,
            explorer=own_explorer,
            explored=agent.explored,
            random_steps=random_steps,
            rollouts=rollouts,
            reset_states=[_generator_state(each) for each in (resets, *resets.spawn(n - 1))],
            action_state=_generator_state(random),
            seed=int(random.spawn(1)[0].integers(2**32)),
            max_failures=cluster.restarts if cluster.on_error == "restart" else None,
        )
        specs.append(spec)
    store = merge_fragments if rollouts else append_fragments
    return CollectorGroup(algorithm, agent, cluster, specs, calls, n_steps, store)


def _generator_state(generator: np.random.Generator) -> State:
    return dict(generator.bit_generator.state)
