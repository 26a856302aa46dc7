"""Asynchronous training in environments: workers compute gradients, and the run's own process applies them.

Each worker has its own environments. It receives a task with the newest parameters, makes a rollout, computes the
gradients of its loss, and sends them back. The run's process applies gradients in the order in which they arrive (Mnih
et al. 2016, arXiv:1602.01783, algorithm S3). It owns the optimiser and the targets, so all workers share their state.

The run's process assigns steps and counts those that come back: it learns from exactly ``n_steps`` steps, once from
each. If a worker is killed, its steps are lost: this is logged, and they are assigned again.

If the algorithm replays older steps, each worker has a buffer of its own rollouts (Wang et al. 2017, arXiv:1611.01224,
algorithm 1). After a rollout the worker gets one task without steps for each update that is due from its buffer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Self, Unpack

import numpy as np
from torch import Tensor

from birl.checks import check
from birl.distributed.transport import ReportStateTask, WorkerLost
from birl.distributed.worker_pool import LossReport, Placement, WorkerPool
from birl.distributed.worker_process import check_picklable
from birl.envs import EndedEpisode, number_of_environments, reset_generator
from birl.errors import CorruptFileError
from birl.files.state_restore import check_array
from birl.logging import LOG
from birl.run.agent_core import DEFAULT_BUFFER_LIMIT, explored_steps, explorers_per_process, keep_exploration
from birl.run.environment_run import EnvironmentRun
from birl.run.fingerprint import part_settings
from birl.run.options import OnlineOptions
from birl.run.protocols import ExplorerProtocol
from birl.run.workers.gradient_worker import (
    GradientResult,
    GradientWorker,
    GradientWorkerSpec,
    GradientWorkerTask,
    RolloutTask,
    StartTask,
)
from birl.run.workers.protocols import AlgorithmSpec, DistributedAlgorithm, StepGradients
from birl.seeding import is_seed
from birl.types import Environment, State

MAX_RESTARTS: Final = 5
"""Number of workers lost in a row, for each worker of the run, after which the run ends."""

SILENCE: Final = 60.0
"""Seconds without a result after which a warning names the workers that the run waits for."""

_PICKLE_ADVICE: Final = (
    "give a name, such as 'CartPole-v1', or 'module:factory' for a function in a module that can be imported, which "
    "every worker calls"
)


def asynchronous_fitter(
    algorithm: DistributedAlgorithm,
    env: Environment | str,
    n_steps: int = 1_000_000,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None = None,
    *,
    replays: bool = False,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on rollouts of workers, one epoch per iteration.

    Args:
        algorithm: one that makes one gradient step for each rollout; its networks are built if they do not exist.
        env: environment, vector environment, or the name of one. Each worker creates it by name, or gets a copy.
        n_steps: exact number of environment steps to learn from, over all workers.
        explorer: one for all workers, or a list with one for each; by default the policy acts by itself.
        replays: whether each worker learns from its older rollouts as well. A worker keeps its share of a million
            steps.
        **options: see `OnlineOptions`; ``workers`` is the number of processes.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.

    Raises:
        ConfigError: if the environment or the explorer cannot be sent to another process.
        WorkerError: if a worker fails, or workers are killed again and again.
    """
    run = EnvironmentRun(algorithm, "asynchronous", env, n_steps, options)
    n_steps, n_workers = run.n_steps, run.options["workers"]
    assert n_workers is not None
    explorers = explorers_per_process(explorer, n_workers, "workers")
    if not isinstance(env, str):
        check_picklable("env", env, _PICKLE_ADVICE)
    run.explored = explored_steps(algorithm, explorer)
    run.settings |= {"workers": n_workers, "explorer": [part_settings(each) for each in explorers]}
    algorithm.learner.check_compatible({"workers": f"workers={n_workers}"})
    algorithm.learner.experience.check_run(algorithm.learner, None, n_steps)
    config: Any = algorithm.config
    rollout_steps = config.rollout_length * number_of_environments(run.env)
    replay_limit = DEFAULT_BUFFER_LIMIT // n_workers if replays else 0
    generator = reset_generator(run.env, run.options["seed"])
    workers = GradientWorkers(algorithm, env, explorers, generator, rollout_steps, replay_limit)
    workers.explored = run.explored
    session = run.session({"workers": workers}, None)

    if workers.cut and session.left and n_workers == 1:
        session.warn_inexact("its last rollout was cut short by the end of the run")

    def update() -> None:
        with session.time("algorithm_update"):
            session.averages.add(workers.update())

    def step() -> None:
        with session.time("step"):
            while workers.uncounted_steps == 0:
                session.add_episodes(workers.next_result(session.step, session.left))
                if workers.uncounted_steps == 0:  # a result of older steps, which do not count
                    update()
            workers.uncounted_steps -= 1
            if workers.uncounted_steps == 0:
                update()
                # Replays follow their rollout with one worker, as in one process, and the last step of the run.
                while workers.replays_due and (n_workers == 1 or session.left == 1):
                    workers.next_result(session.step, 0)
                    update()
        session.tick()

    try:
        with workers:
            yield from session.epochs(step)
    finally:
        keep_exploration(algorithm, explorer, workers.explored + session.step)


class _GradientWorkerState:
    """The state of a worker in the run's own process.

    Attributes:
        seed: seed of its random numbers; ``None`` until its first start.
        state: state that it starts from; ``None`` once it has started.
        ready: whether it has started.
        replays_due: number of updates from older steps that have not been assigned to it yet.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self.state: State | None = None
        self.ready = False
        self.replays_due = 0


class GradientWorkers(WorkerPool[GradientWorkerSpec, GradientWorkerTask, "GradientResult | State | None"]):
    """The workers of an asynchronous run, which are a part of its checkpoints.

    A checkpoint waits for the open rollouts, and holds their gradients and the state of every worker. A lost worker is
    replaced by one that starts from scratch.

    Args:
        algorithm: algorithm of the run's own process, whose networks are built.
        env: environment, or its name, that is sent to workers.
        explorers: list with one explorer for each worker.
        generator: source of the workers' seeds.
        rollout_steps: number of steps of a whole rollout.
        replay_limit: see `GradientWorkerSpec`.

    Attributes:
        uncounted_steps: steps of the current result that are not counted yet.
        cut: whether a rollout was cut short by the end of the run.
    """

    worker_name = "worker"
    counts_per_worker = False

    def __init__(
        self,
        algorithm: DistributedAlgorithm,
        env: Environment | str,
        explorers: Sequence[ExplorerProtocol | None],
        generator: np.random.Generator,
        rollout_steps: int,
        replay_limit: int,
    ) -> None:
        n, self.explored = len(explorers), 0
        super().__init__(GradientWorker, Placement("processes", math.inf), range(n), MAX_RESTARTS * n - 1)
        self._algorithm, self._env, self._explorers = algorithm, env, explorers
        self._generator, self._rollout_steps, self._replay_limit = generator, rollout_steps, replay_limit
        self._workers = {index: _GradientWorkerState() for index in self.slots}
        self._results: deque[tuple[int, GradientResult]] = deque()  # not learned from, with their workers
        self._states: dict[int, State] = {}  # that workers have reported for a checkpoint
        self._wait_started: float | None = None  # ``None`` once a silent wait was logged
        self.check_signals = self._warn_if_silent
        self.uncounted_steps = 0
        self.cut = False

    @property
    def replays_due(self) -> int:
        """Number of updates from older steps that are still to be made."""
        received = sum(result.steps == 0 for _, result in self._results)
        assigned = sum(task.max_steps == 0 for index in self.slots for task in self._rollouts(index))
        return received + assigned + sum(worker.replays_due for worker in self._workers.values())

    def next_result(self, step: int, left: int) -> list[EndedEpisode]:
        """Wait for the next result to count and learn from. Return its episodes.

        A result of older steps has no steps to count: then ``uncounted_steps`` is 0.

        Args:
            step: steps counted so far.
            left: steps left in the run.
        """
        while not self._results:
            if left == self.replays_due == 0:  # the worker with the last update has been killed
                return []
            self._assign_tasks(step, left)
            self.receive()
        result = self._results[0][1]
        self.uncounted_steps = result.steps
        return result.episodes

    def update(self) -> Mapping[str, Tensor | float]:
        """Apply the gradients of the current result, if there is one, and return metrics."""
        if not self._results:
            return {}
        (step,) = self._algorithm.engine.gradient_steps
        _, result = self._results.popleft()
        metrics = self._algorithm.learner.apply_remote_gradients({step.name: result.gradients.as_tensors()})
        return metrics if self.restarts == 0 else {**metrics, "workers_replaced": float(self.restarts)}

    # -- tasks and results -----------------------------------------------------------------------------------------

    def _rollouts(self, index: int) -> list[RolloutTask]:
        return [task for task in self.slots[index].tasks if isinstance(task, RolloutTask)]

    def _assign_tasks(self, step: int, left: int) -> None:
        """Give a task to each worker that has none, as long as there are steps left."""
        for index in self.slots:
            self._start_worker(index)
        parameters: object = None
        for index, worker in self._workers.items():
            assigned = sum(task.max_steps for each in self.slots for task in self._rollouts(each))
            steps = 0 if worker.replays_due else min(self._rollout_steps, left - assigned)
            if not worker.ready or self.slots[index].tasks or (steps <= 0 and not worker.replays_due):
                continue
            if parameters is None:
                tensors = self._algorithm.nets.state_dict()
                parameters = self.transport.share({name: x.cpu().numpy().copy() for name, x in tensors.items()})
            worker.replays_due = max(worker.replays_due - 1, 0)
            self.cut = self.cut or 0 < steps < self._rollout_steps
            self.send(index, RolloutTask(step, steps, self._algorithm.grad_step), parameters)

    def receive(self) -> bool:
        self._wait_started = time.monotonic()
        return super().receive()

    def handle_result(self, index: int, task: GradientWorkerTask, result: GradientResult | State | None) -> None:
        worker = self._workers[index]
        if isinstance(result, GradientResult):
            self._results.append((index, result))
            worker.replays_due += result.replays_due
            self.reset_failures()
        elif isinstance(task, ReportStateTask):
            assert result is not None
            self._states[index] = result
        else:
            worker.ready, worker.state = True, None

    def _warn_if_silent(self) -> None:
        if self._wait_started is None or time.monotonic() - self._wait_started < SILENCE:
            return
        self._wait_started = None
        waits = [
            f"worker {index} ({self.transport.locate(index)}) "
            f"{'makes a rollout' if self._workers[index].ready else 'starts'}"
            for index, slot in self.slots.items()
            if slot.tasks
        ]
        LOG.warning(
            "no worker has answered for %g seconds, and the run waits: %s. It goes on when one of them answers; "
            "Ctrl-C, pressed twice, ends it as its last checkpoint has it",
            *(SILENCE, ", ".join(waits)),
        )

    # -- restarts --------------------------------------------------------------------------------------------------

    def _start_worker(self, index: int) -> None:
        if self.slots[index].running:
            return
        worker = self._workers[index]
        if worker.seed is None:
            worker.seed = int(self._generator.integers(2**32))
        self.send(index, StartTask())

    def spec(self, index: int) -> GradientWorkerSpec:
        worker, algorithm = self._workers[index], AlgorithmSpec.of(self._algorithm)
        assert worker.seed is not None
        explorer = self._explorers[index]
        more = self._replay_limit, self.explored
        return GradientWorkerSpec(algorithm, self._env, explorer, worker.seed, worker.state, *more)

    def describe_loss(self, lost: WorkerLost) -> LossReport:
        steps = sum(task.max_steps for task in self._rollouts(lost.index))
        what = f"the rollout that it was making, of up to {steps} steps," if steps else "its episode"
        buffer = ", with its replay buffer" if self._replay_limit else ""
        return LossReport(
            f"; {what} is lost{buffer}, and another worker takes its place",
            "without a rollout between them",
            "where the system ends them for lack of memory, use fewer; otherwise, see what their environments do",
        )

    def handle_loss(self, index: int) -> None:
        """Replace a lost worker by one that starts from scratch."""
        self.slots[index].tasks.clear()
        self._workers[index] = _GradientWorkerState()
        self._start_worker(index)

    def __enter__(self) -> Self:
        self._algorithm.learner.shared = "workers learn with it"
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._algorithm.learner.shared = ""

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return the counts, the workers' states, and the results that were not learned from."""
        workers = self._worker_states()
        return {
            "generator": self._generator.bit_generator.state,
            "uncounted_steps": self.uncounted_steps,
            "explored": self.explored,
            "restarts": self.restarts,
            "cut": self.cut,
            "replays_due": {str(index): worker.replays_due for index, worker in self._workers.items()},
            "workers": workers,
            "results": {
                str(i): {
                    "worker": n,
                    **result.gradients._asdict(),
                    "episodes": np.array(result.episodes, np.float64).reshape(-1, 3),
                    "steps": result.steps,
                }
                for i, (n, result) in enumerate(self._results)
            },
        }

    def _worker_states(self) -> dict[str, State]:
        """Return the state and seed of each worker by number. Workers that have not started may have neither."""
        self._states = {}
        while missing := [i for i, slot in self.slots.items() if slot.running and i not in self._states]:
            if not self.has_open_tasks:
                for index in missing:
                    self.send(index, ReportStateTask())
            self.wait_all()
        for index, worker in self._workers.items():
            if not self.slots[index].running and worker.state is not None:
                self._states[index] = worker.state
        return {str(i): {"seed": self._workers[i].seed, "state": self._states[i]} for i in sorted(self._states)}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any worker has started."""
        results = deque(self._load_result(state["results"][key]) for key in sorted(state["results"], key=int))
        uncounted_steps = check("uncounted_steps", state["uncounted_steps"], int, low=0, error=CorruptFileError)
        explored = check("explored", state["explored"], int, low=0, error=CorruptFileError)
        restarts = check("restarts", state["restarts"], int, low=0, error=CorruptFileError)
        indices = [str(index) for index in self.slots]
        if list(state["replays_due"]) != indices or uncounted_steps > (results[0][1].steps if results else 0):
            raise CorruptFileError(
                f"the checkpoint has workers {list(state['replays_due'])!r:.80} and {uncounted_steps} steps to count: "
                "use a copy"
            )
        due = state["replays_due"]
        due = {key: check("replays_due", n, int, low=0, error=CorruptFileError) for key, n in due.items()}
        for key, saved in state["workers"].items():
            if key not in indices or not is_seed(saved["seed"]):
                raise CorruptFileError(
                    f"the checkpoint has a worker {key!r:.40} of seed {saved['seed']!r:.40}: use a copy"
                )
        self._generator.bit_generator.state = state["generator"]
        for index, worker in self._workers.items():
            saved = state["workers"].get(str(index), {"seed": None, "state": None})
            worker.seed, worker.state = saved["seed"], saved["state"]
            worker.replays_due = 0 if worker.state is None else due[str(index)]
        self._results, self.uncounted_steps, self.restarts = results, uncounted_steps, restarts
        self.cut, self.explored = check("cut", state["cut"], bool, error=CorruptFileError), explored

    def _load_result(self, saved: State) -> tuple[int, GradientResult]:
        """Return a result of a checkpoint, with the number of its worker."""
        (step,) = self._algorithm.engine.gradient_steps
        gradients = StepGradients.load(saved, step.name, self._algorithm.engine.parameters[step.name])
        steps = check("steps", saved["steps"], int, low=0, error=CorruptFileError)
        rows = check_array(saved["episodes"], (None, 3), np.float64, "episodes").tolist()
        episodes = [EndedEpisode(value, int(length), success) for value, length, success in rows]
        return int(saved["worker"]), GradientResult(gradients, episodes, steps, 0)
