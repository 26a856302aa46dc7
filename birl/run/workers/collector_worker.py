"""The worker that collects steps: it acts in its own environments, one task at a time.

The last fragment contains the whole state of a collector. A collector that is restarted from it continues as if it had
never been lost.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import Env

from birl.distributed.transport import Worker
from birl.envs import EndedEpisode, Step, Stepper, as_environment
from birl.envs.stepper import reset_seed
from birl.errors import BirlError, EnvironmentMismatchError, WorkerError
from birl.files.state_restore import convert_to_corrupt_error
from birl.run.agent_core import AgentCore, ReplayAgentCore, SelectedActions
from birl.run.collector import Collector
from birl.run.protocols import EnvironmentLike, ExplorerProtocol
from birl.run.rollouts import RolloutAgentCore
from birl.run.workers.protocols import AlgorithmSpec
from birl.run.workers.restartable_envs import RestartableEnvs, describe_actions
from birl.seeding import preserve_random_state, preserve_seed, random_state, seed, set_random_state
from birl.types import Array, State, Tree, tree_map


class CollectorSpec(NamedTuple):
    """Specification of a collector.

    Attributes:
        collector: its number.
        algorithm: specification of the algorithm.
        env: source of the environments; see `make_env`.
        env_numbers: numbers of its environments among those of all collectors.
        observed: the leaves of observations that are kept.
        explorer: explorer of this collector.
        random_steps: number of steps at the start of the run that are uniformly random.
        rollouts: whether the algorithm learns from rollouts.
        reset_states: states of the generators of each environment's resets.
        action_state: state of the generator of random actions.
        seed: seed of all other random numbers.
        max_failures: number of times in a row that an environment may fail; ``None`` if none may fail.
        state: state to continue from; ``None`` at the start.
        explored: number of steps of earlier runs with the explorer.
    """

    collector: int
    algorithm: AlgorithmSpec
    env: EnvironmentLike
    env_numbers: range
    observed: Tree
    explorer: ExplorerProtocol | None
    random_steps: int
    rollouts: bool
    reset_states: list[State]
    action_state: State
    seed: int
    max_failures: int | None = None
    state: State | None = None
    explored: int = 0


class CollectorTask(NamedTuple):
    """Task to make steps. The weights to act with are the payload.

    Attributes:
        number: number of the task among those of all collectors.
        calls: number of steps to make in each environment.
        first_step: number of steps that were assigned before, to all collectors.
        learned: number of fragments that had been learned from when the task was assigned.
        version: version of the weights.
        random: state of the global generators to start with; ``None`` for the collector's own.
    """

    number: int
    calls: int
    first_step: int
    learned: int
    version: int
    random: State | None


class Fragment(NamedTuple):
    """The steps of a task.

    Attributes:
        number: number of the task.
        rows: columns ``[calls, environments, …]`` of `SelectedActions` and `Step`.
        episodes: the episodes that have ended.
        lost: whether running episodes could not be continued when the collector was restarted.
        cut: indices, in this collector, of environments whose running episodes end before the fragment.
        failures: errors of environments that were created again.
        seconds: median duration of a call.
        idle: seconds without a task before this one.
        state: state of the collector after the fragment.
    """

    number: int
    rows: dict[str, Tree]
    episodes: list[EndedEpisode]
    lost: bool
    cut: Array
    failures: list[str]
    seconds: float
    idle: float
    state: State


class _FragmentLog(NamedTuple):
    """The part of a fragment other than its rows."""

    episodes: list[EndedEpisode]
    cut: list[int]
    failures: list[str]
    seconds: list[float]


class _RecordingAgent(AgentCore):
    """Agent core that records steps instead of storing them and learning."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: list[dict[str, Tree]] = []
        self.lost = False

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        row = {**selected._asdict(), **step.columns()}
        self.rows.append(tree_map(np.array, row))

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        self.lost = True


class _RecordingReplayAgent(_RecordingAgent, ReplayAgentCore): ...


class _RecordingRolloutAgent(_RecordingAgent, RolloutAgentCore): ...


class CollectorWorker(Worker[CollectorTask, State, Fragment]):
    """The worker of a collector.

    It has its own random numbers, and restores the global generators when a task ends.

    Args:
        spec: specification of the collector.

    Raises:
        EnvironmentMismatchError: if an environment has other spaces than the algorithm was built for.
        WorkerError: if an environment raises an error while it is made or first reset.
    """

    def __init__(self, spec: CollectorSpec) -> None:
        self._spec, self._task = spec, CollectorTask(0, 0, 0, 0, 0, None)
        self._log = _FragmentLog([], [], [], [])
        self._setup = 0, "while it was made"  # the environment that is being made, and the phase
        with preserve_random_state(), preserve_seed():
            seed(spec.seed)
            self._build(spec)
            self._random = random_state() if spec.state is None else spec.state["random"]
        self._idle_since = time.perf_counter()

    def _build(self, spec: CollectorSpec) -> None:
        self._algorithm = spec.algorithm.build()
        self._whole_episodes = spec.rollouts and not hasattr(self._algorithm.config, "rollout_length")
        self._reset_generators = [make_generator(state) for state in spec.reset_states]
        self._stepper = self._make_envs()
        acting = self._algorithm, self._stepper.observation, self._stepper.action_space
        self._agent: _RecordingRolloutAgent | _RecordingReplayAgent
        if spec.rollouts:
            self._agent = _RecordingRolloutAgent(*acting, spec.explorer)
        else:
            random = {"generator": make_generator(spec.action_state), "random_steps": spec.random_steps}
            self._agent = _RecordingReplayAgent(*acting, None, spec.explorer, **random)
        self._agent.explored = spec.explored
        self._collector = Collector(self._stepper, self._agent)  # type: ignore[arg-type]
        if spec.state is not None:
            with convert_to_corrupt_error("the checkpoint", "the state of a collector cannot be used"):
                self._collector.set_state(spec.state["collector"])
                set_random_state(spec.state["random"])

    def _make_envs(self) -> RestartableEnvs:
        spec = self._spec
        try:
            n = len(spec.env_numbers)
            return RestartableEnvs(self._make_env, self._make_stepper, n, spec.max_failures, self._whole_episodes)
        except BirlError as error:
            i, phase = self._setup
            if self._env_name(i) not in str(error):
                error.add_note(f"This was in {self._env_name(i)}, {phase}.")
            raise
        except (
            Exception,
            KeyboardInterrupt,
            SystemExit,
        ) as error:  # a worker ignores Ctrl-C: the environment raised it
            i, phase = self._setup
            raise WorkerError(
                f"{self._env_name(i)} has failed {phase}, and with it the run; mend the environment or what makes it. "
                "birl.Cluster(on_error='restart') does not help here: it remakes an environment that fails later. "
                f"Its error:\n{''.join(traceback.format_exception(error))}"
            ) from error

    def _make_env(self, i: int) -> Env[Any, Any]:
        self._setup = i, "while it was made"
        env = make_env(self._spec.env, self._spec.env_numbers[i])
        try:
            self._algorithm.check_env(env)
        except EnvironmentMismatchError as error:
            raise EnvironmentMismatchError(
                f"{self._env_name(i)} is not like the first one of the run: {error}. All environments of a run must "
                "have the same spaces"
            ) from error
        return env

    def _make_stepper(self, i: int, env: Env[Any, Any]) -> Stepper:
        next_seed = reset_seed(copy.deepcopy(self._reset_generators[i]))  # the stepper draws the same one
        self._setup = i, f"in its first reset, with seed {next_seed}"
        return Stepper(env, self._reset_generators[i], observations=self._spec.observed)

    def _env_name(self, i: int) -> str:
        return f"environment {self._spec.env_numbers[i]} of collector {self._spec.collector}"

    def __call__(self, task: CollectorTask, weights: State) -> Fragment:
        """Make the steps of a task.

        Raises:
            WorkerError: if the environment, or other code of the user, raises an error.
            BirlError: if birl raises one, which is passed on unchanged.
        """
        agent, self._task, self._log = self._agent, task, _FragmentLog([], [], [], [])
        idle = time.perf_counter() - self._idle_since
        try:
            with preserve_random_state():
                set_random_state(self._random if task.random is None else task.random)
                self._algorithm.learner.policy.set_weights(weights)
                self._stepper.wake()
                for call in range(task.calls):
                    self._step(task.first_step + call * self._stepper.n)
                    if self._stepper.all_paused:
                        break
                self._random = random_state()
        except BirlError as error:
            error.add_note(f"This was in {self.position}, {self._describe_actions()}.")
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            limit = self._spec.max_failures
            remedy = (
                "so mend the environment, or let birl.Cluster(on_error='restart') remake it"
                if limit is None
                else f"and it was remade {limit} times in a row (restarts={limit}), so mend the environment"
            )
            raise WorkerError(
                f"{self.position}, has failed, and with it the run, {self._describe_actions()}; with this seed and "
                f"these actions it would fail again, {remedy}. Its error:\n"
                f"{''.join(traceback.format_exception(error))}"
            ) from error
        rows: dict[str, Tree] = tree_map(lambda *leaves: np.stack(leaves), *agent.rows)
        lost, agent.lost, agent.rows, agent.uncounted_steps = agent.lost, False, [], 0
        state = {"collector": self._collector.get_state(), "random": self._random}
        log = self._log
        cut, seconds = np.array(log.cut, np.int64), float(np.median(log.seconds))
        self._idle_since = time.perf_counter()
        return Fragment(task.number, rows, log.episodes, lost, cut, log.failures, seconds, idle, state)

    def _step(self, step: int) -> None:
        """Make a step in each environment. A failure ends the episode before it."""
        log, rows, start = self._log, self._agent.rows, time.perf_counter()
        made = self._collector.interact(step)
        log.episodes.extend(made.ended.values())
        log.seconds.append(time.perf_counter() - start)
        for i, message in self._stepper.failures:
            log.failures.append(f"{self._env_name(i)}, {message}")
            if len(rows) == 1:
                log.cut.append(i)
            else:
                before = rows[-2]
                before["truncated"][i] |= before["valid"][i] & ~before["terminated"][i]

    def _describe_actions(self) -> str:
        return describe_actions(self._stepper.steppers[self._stepper.current])

    @property
    def position(self) -> str:
        task, i, steps = self._task, self._stepper.current, len(self._agent.rows)
        return (
            f"{self._env_name(i)}, reset with seed {self._stepper.steppers[i].seed}, in step {steps + 1} of "
            f"{task.calls} of its task {task.number}"
        )

    def close(self) -> None:
        self._stepper.close()


def make_env(source: EnvironmentLike, number: int) -> Env[Any, Any]:
    """Make an environment for a collector.

    Args:
        source: environment to copy, its name, or a function of the environment's number.
        number: number of the environment.
    """
    if isinstance(source, str) or hasattr(source, "step"):
        env = as_environment(copy.deepcopy(source))
    else:
        env = as_environment(source(number) if callable(source) else source)
    return cast("Env[Any, Any]", env)


def make_generator(state: State) -> np.random.Generator:
    """Make a generator in the state of another one."""
    bits: Any = np.random.PCG64()
    bits.state = state
    return np.random.Generator(bits)
