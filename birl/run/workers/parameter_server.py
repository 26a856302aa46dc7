"""Learners that find gradients, each by itself, and push them to the first one, which moves the parameters by them.

Each of the others finds the gradients of an update at the parameters that its order brings, with a minibatch from the
steps of its own collectors. The first learner applies them one after another, in the order of the orders; each is
followed by the next order, at the parameters of that moment. So gradients are as many updates old as there are other
learners but one, always, and a run is a function of its seed: it does not matter which of them is fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from birl.checks import check
from birl.errors import CorruptFileError
from birl.files.state_restore import checked_array
from birl.run.cluster import Cluster
from birl.run.workers.learner_worker import Done, Find, Lesson
from birl.run.workers.remote_learners import RemoteLearners
from birl.types import Array, State


class _Place(NamedTuple):
    """An order whose gradients have not been applied.

    Attributes:
        number: of the update.
        learner: that finds them.
        version: number of updates by which the parameters had been moved.
    """

    number: int
    learner: int
    version: int


class _Elsewhere:
    """What the first learner draws from: nothing, the others draw."""

    def sample(self, view: Any, count: int) -> None:
        """Nothing."""

    def get_state(self, *, contents: bool = False) -> State:
        """Nothing."""
        return {}

    def set_state(self, state: State) -> None:
        """Nothing."""


class ParameterServer(RemoteLearners):
    """Learners that push gradients to the first one. A part of checkpoints.

    A checkpoint waits for the gradients under way and holds them.

    Args:
        algorithm: built.
        buffer: of the steps of all collectors.
        cluster: says how many learners there are, and where.

    Attributes:
        source: of the first learner, which draws nothing.

    Raises:
        UnsupportedError: if the algorithm, or the buffer, cannot be learned from so.
    """

    def __init__(self, algorithm: Any, buffer: Any, cluster: Cluster) -> None:
        algorithm.learner.check_together(averaged=False)
        super().__init__(algorithm, buffer, cluster, 1)
        self.source = _Elsewhere()
        self._places: list[_Place] = []  # in the order in which they are applied
        self._lessons: dict[int, dict[str, Lesson]] = {}  # of updates, that have come and are not applied

    def learn(self, session: Any, drawn: Any) -> None:
        """Move the parameters by the next gradients. ``drawn`` is of nothing."""
        learner = self._algorithm.learner
        for index in range(1, self._cluster.learners):
            if all(place.learner != index for place in self._places):
                self._order(index)
        first = self._places[0]
        with session.time("waiting"):
            self._hear(first.number)
        first = self._places[0]
        with session.time("algorithm_update"):
            found = self._lessons[first.number].items()
            metrics = learner.move({name: (_tensors(each.gradients), each.loss, each.metrics) for name, each in found})
        session.averages.add({**metrics, "gradient_lag": float(first.number - 1 - first.version)})
        del self._lessons[first.number]
        self._places.remove(first)
        self._deaths = 0

    def _order(self, index: int) -> None:
        number = self._algorithm.grad_step + len(self._places) + 1
        self._places.append(_Place(number, index, self._algorithm.grad_step))
        self._tell(index, number)

    def _tell(self, index: int, number: int) -> None:
        self._begin(index)
        changes = list(self.lanes[index].changes())
        parameters = {name: tensor.cpu().numpy().copy() for name, tensor in self._algorithm.nets.state_dict().items()}
        self._send(index, Find(number, changes), self._there_is.put(parameters))

    def _hear(self, number: int) -> None:
        """Wait for the gradients of an update. Orders of learners that were lost are given to those in their places."""
        while number not in self._lessons:
            lost = (place for place in self._places if place.learner not in self._open)
            place = next((place for place in lost if place.number not in self._lessons), None)
            if place is None:
                self._listen()
            else:
                self._places[self._places.index(place)] = place._replace(version=self._algorithm.grad_step)
                self._tell(place.learner, place.number)

    def _take(self, index: int, answer: Done) -> None:
        if answer.lessons is not None:
            number = next(place.number for place in self._places if place.learner == index)
            self._lessons[number] = answer.lessons

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """The seed of the others, and what they have found."""
        for place in list(self._places):
            self._hear(place.number)
        lessons = {
            str(place.number): {
                "learner": place.learner,
                "version": place.version,
                "steps": {name: lesson._asdict() for name, lesson in self._lessons[place.number].items()},
            }
            for place in self._places
        }
        return {**super().get_state(), "lessons": lessons}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, when the algorithm has its own state."""
        super().set_state(state)
        lessons = {int(key): saved for key, saved in state["lessons"].items()}
        places, found = [], {}
        for number in sorted(lessons):
            saved = lessons[number]
            index = check("learner", saved["learner"], int, low=1, error=CorruptFileError)
            version = check("version", saved["version"], int, low=0, error=CorruptFileError)
            places.append(_Place(number, index, version))
            found[number] = {name: self._saved(name, each) for name, each in saved["steps"].items()}
        self._places, self._lessons = places, found

    def _saved(self, name: str, saved: State) -> Lesson:
        """A lesson of a checkpoint, whose gradients must be those of a step."""
        own = self._algorithm.engine.parameters.get(name, {})
        if saved["gradients"].keys() != own.keys():
            raise CorruptFileError(f"the checkpoint has gradients of other parameters than {name:.40}'s: use a copy")
        gradients = {
            key: checked_array(saved["gradients"][key], tuple(value.shape), np.dtype(np.float32), key)
            for key, value in own.items()
        }
        return Lesson(gradients, float(saved["loss"]), {str(k): float(x) for k, x in saved["metrics"].items()})


def _tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
