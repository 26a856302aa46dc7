"""The worker of asynchronous training, which makes rollouts in its own environment and computes their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from birl.distributed.transport import ReportStateTask, Worker
from birl.envs import EndedEpisode, Stepper, as_environment, reset_generator
from birl.files.state_restore import convert_to_corrupt_error
from birl.run.agent_core import measure_nothing
from birl.run.collector import Collector
from birl.run.protocols import ExplorerProtocol, Minibatch
from birl.run.rollouts import RolloutAgentCore, RolloutExperience, start_rollouts
from birl.run.workers.protocols import AlgorithmSpec, DistributedAlgorithm, StepGradients
from birl.seeding import random_state, seed, set_random_state
from birl.types import Array, Environment, State


class GradientWorkerSpec(NamedTuple):
    """Specification of a worker.

    Attributes:
        algorithm: specification of the algorithm.
        env: environment, or its name.
        explorer: explorer of this worker.
        seed: seed of all its random numbers.
        state: state to continue from; ``None`` at the start.
        replay_limit: number of steps that its replay buffer keeps; 0 for no buffer.
        explored: number of steps of earlier runs with the explorer.
    """

    algorithm: AlgorithmSpec
    env: Environment | str
    explorer: ExplorerProtocol | None
    seed: int
    state: State | None
    replay_limit: int
    explored: int = 0


class StartTask(NamedTuple):
    """Task to answer as soon as the worker has started."""


class RolloutTask(NamedTuple):
    """Task to make a rollout, or sample older steps, and compute gradients. The parameters are the payload.

    Attributes:
        step: number of steps counted so far, over all workers.
        max_steps: steps to make, a whole rollout or less at the end of a run; 0 to learn from older ones.
        update: number of updates made so far.
    """

    step: int
    max_steps: int
    update: int


GradientWorkerTask: TypeAlias = StartTask | ReportStateTask | RolloutTask


class GradientResult(NamedTuple):
    """The result of a `RolloutTask`.

    Attributes:
        gradients: gradients of the algorithm's step, and its loss.
        episodes: the episodes that have ended.
        steps: number of steps that the worker made.
        replays_due: number of updates from older steps that follow.
    """

    gradients: StepGradients
    episodes: list[EndedEpisode]
    steps: int
    replays_due: int


class GradientWorker(Worker[GradientWorkerTask, Any, "GradientResult | State | None"]):
    """A worker of asynchronous training. It seeds the global generators of the process in which it runs.

    Args:
        spec: specification of the worker.
    """

    def __init__(self, spec: GradientWorkerSpec) -> None:
        self._position = "its start"
        seed(spec.seed)
        self._algorithm: DistributedAlgorithm = spec.algorithm.build()
        self._env = as_environment(spec.env)
        try:
            self._start(spec)
        except BaseException:
            self._env.close()
            raise

    def _start(self, spec: GradientWorkerSpec) -> None:
        algorithm, env, limit = self._algorithm, self._env, spec.replay_limit
        self._experience = start_rollouts(algorithm, env, 0, None, None, replays=limit > 0, digested=False, limit=limit)
        stepper = Stepper(env, reset_generator(env, spec.seed), observations=algorithm.spec.observations)
        explorer: Any = spec.explorer
        explorer = explorer.renewed() if hasattr(explorer, "renewed") else explorer
        acting = algorithm, stepper.observation, stepper.action_space
        self._collector = Collector(stepper, RolloutAgentCore(*acting, explorer, self._experience))
        self._collector.agent.explored = spec.explored
        if spec.state is not None:
            with convert_to_corrupt_error("the checkpoint", "the state of a worker cannot be used"):
                for name, part in self._experience.parts.items():
                    part.set_state(spec.state["experience"][name])
                self._collector.set_state(spec.state["collector"])
                set_random_state(spec.state["random"])

    def __call__(self, task: GradientWorkerTask, parameters: dict[str, Array] | None) -> GradientResult | State | None:
        if isinstance(task, StartTask):
            return None
        if isinstance(task, ReportStateTask):
            experience = {name: part.get_state() for name, part in self._experience.parts.items()}
            return {"experience": experience, "collector": self._collector.get_state(), "random": random_state()}
        assert parameters is not None
        self._position = f"a rollout after step {task.step}"
        return compute_gradients(self._algorithm, self._collector, self._experience, task, parameters)

    @property
    def position(self) -> str:
        return self._position

    def close(self) -> None:
        self._env.close()


def compute_gradients(
    algorithm: DistributedAlgorithm,
    collector: Collector,
    experience: RolloutExperience,
    task: RolloutTask,
    parameters: dict[str, Array],
) -> GradientResult:
    """Make a rollout with some parameters, or sample older steps, and compute the gradients of the loss."""
    algorithm.nets.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    algorithm.set_grad_step(task.update)
    episodes: list[EndedEpisode] = []
    for made in range(1, task.max_steps + 1):
        step = task.step + made
        episodes += collector.count(step - 1, task.max_steps - made + 1)
        for rollout in collector.agent.minibatches(step, last=made == task.max_steps):
            result = _gradient_result(algorithm, rollout, episodes, made)
            return result._replace(replays_due=experience.replays_due())
    return _gradient_result(algorithm, experience.sample_replay(measure_nothing), [], 0)


def _gradient_result(
    algorithm: DistributedAlgorithm, minibatch: Minibatch, episodes: list[EndedEpisode], steps: int
) -> GradientResult:
    """Return the gradients of a rollout, or of older steps."""
    (computed,) = algorithm.learner.compute_gradients(minibatch).values()
    return GradientResult(StepGradients.of(computed), episodes, steps, 0)
