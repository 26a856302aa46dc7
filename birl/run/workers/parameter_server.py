"""Learners that compute gradients independently and push them to the first learner, which applies them.

Each of the other learners computes the gradients of an update at the parameters that come with its task, on a minibatch
from the steps of its own collectors. The first learner applies them one after another, in the order of their tasks.
After each, the learner gets its next task with the current parameters. With ``learners`` learners, gradients are
therefore always ``learners - 2`` updates old, and the result of a run depends on its seed, not on the learners' speed.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from birl.checks import check
from birl.dataset.minibatch import MiniBatch
from birl.dataset.views import View
from birl.errors import CorruptFileError
from birl.run.cluster import Cluster
from birl.run.protocols import Minibatch, StepBuffer, Trainable
from birl.run.session import Session
from birl.run.workers.learner_worker import GradientTask, LearnerResult, LearnerTask
from birl.run.workers.protocols import DistributedAlgorithm, StepGradients
from birl.run.workers.remote_learners import RemoteLearners
from birl.types import State


class _OpenUpdate(NamedTuple):
    """An update whose gradients have not been applied.

    Attributes:
        number: number of the update.
        learner: number of the learner that computes its gradients.
        version: number of updates that its parameters include.
    """

    number: int
    learner: int
    version: int


class _NoSource:
    """The source of the first learner, which needs no minibatches, because the other learners sample."""

    def sample(self, view: View[MiniBatch], count: int) -> None:
        """Sample nothing."""

    def get_state(self, *, contents: bool = False) -> State:
        """Return an empty state."""
        return {}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""


class ParameterServer(RemoteLearners):
    """Learners that push gradients to the first one, and are a part of checkpoints.

    A checkpoint waits for the gradients of open tasks and holds them.

    Args:
        algorithm: algorithm whose networks are built.
        buffer: replay buffer with the steps of all collectors.
        cluster: number and placement of the learners.

    Raises:
        UnsupportedError: if several learners cannot learn the algorithm, or from the buffer.
    """

    def __init__(self, algorithm: Trainable, buffer: StepBuffer, cluster: Cluster) -> None:
        pushed = {"learners": f"Cluster.learners={cluster.learners}", "pushed gradients": "Cluster.gradients='pushed'"}
        cast(DistributedAlgorithm, algorithm).learner.check_compatible(pushed)
        super().__init__(algorithm, buffer, cluster, 1)
        self.source = _NoSource()
        self._updates: list[_OpenUpdate] = []  # in the order in which they are applied
        self._gradients: dict[int, dict[str, StepGradients]] = {}  # received and not applied, by update

    def learn(self, session: Session, minibatch: Minibatch) -> None:
        """Apply the next gradients. ``minibatch`` is not used."""
        learner = self._algorithm.learner
        for index in self.slots:
            if all(update.learner != index for update in self._updates):
                self._assign(index)
        with session.time("waiting"):
            self._wait_for(self._updates[0].number)
        first = self._updates[0]
        with session.time("algorithm_update"):
            steps = self._gradients[first.number].items()
            metrics = learner.apply_remote_gradients({name: step.as_tensors() for name, step in steps})
        session.averages.add({**metrics, "gradient_lag": float(first.number - 1 - first.version)})
        del self._gradients[first.number]
        self._updates.remove(first)
        self.reset_failures()

    def _assign(self, index: int) -> None:
        number = self._algorithm.grad_step + len(self._updates) + 1
        self._updates.append(_OpenUpdate(number, index, self._algorithm.grad_step))
        self._send_task(index, number)

    def _send_task(self, index: int, number: int) -> None:
        self.start(index)
        changes = list(self.lanes[index].changes())
        parameters = {name: tensor.cpu().numpy().copy() for name, tensor in self._algorithm.nets.state_dict().items()}
        self.send(index, GradientTask(number, changes), self.transport.share(parameters))

    def _wait_for(self, number: int) -> None:
        """Wait for the gradients of an update. Send lost learners their tasks again."""
        while number not in self._gradients:
            missing = (update for update in self._updates if update.number not in self._gradients)
            lost = next((update for update in missing if not self.slots[update.learner].tasks), None)
            if lost is None:
                self.receive()
            else:
                self._updates[self._updates.index(lost)] = lost._replace(version=self._algorithm.grad_step)
                self._send_task(lost.learner, lost.number)

    def handle_result(self, index: int, task: LearnerTask, result: LearnerResult) -> None:
        super().handle_result(index, task, result)
        if isinstance(task, GradientTask) and result.gradients is not None:
            self._gradients[task.number] = result.gradients

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return the learners' seed, and the gradients that they have computed."""
        for update in list(self._updates):
            self._wait_for(update.number)
        gradients = {
            str(update.number): {
                "learner": update.learner,
                "version": update.version,
                "steps": {name: step._asdict() for name, step in self._gradients[update.number].items()},
            }
            for update in self._updates
        }
        return {**super().get_state(), "gradients": gradients}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`. Call it after the algorithm's state is restored."""
        super().set_state(state)
        saved = {int(key): each for key, each in state["gradients"].items()}
        updates, gradients = [], {}
        for number in sorted(saved):
            index = check("learner", saved[number]["learner"], int, low=1, error=CorruptFileError)
            version = check("version", saved[number]["version"], int, low=0, error=CorruptFileError)
            updates.append(_OpenUpdate(number, index, version))
            gradients[number] = {
                name: StepGradients.load(step, name, self._algorithm.engine.parameters.get(name, {}))
                for name, step in saved[number]["steps"].items()
            }
        self._updates, self._gradients = updates, gradients
