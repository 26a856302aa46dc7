"""Learners in other processes, as the first one sees them: begun, told, and made anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self

import torch

from birl.checks import check
from birl.dataset import Uniform
from birl.dataset.lane_views import Lanes
from birl.dataset.reader import Source
from birl.distributed.inline_allreduce import Rounds
from birl.distributed.ray import Remote
from birl.distributed.transport import Gone, Processes, Transport
from birl.errors import CorruptFileError, UnsupportedError, WorkerError
from birl.logging import LOG
from birl.run.cluster import Cluster
from birl.run.workers.learner_worker import Done, Given, LearnerWorker, Steps
from birl.seeding import is_seed, new_generator
from birl.types import State

TRANSPORTS: Final[dict[str, Callable[[Cluster], Transport]]] = {
    "inline": lambda cluster: Rounds(LearnerWorker),
    "processes": lambda cluster: Processes(LearnerWorker, cluster.step_timeout),
    "ray": lambda cluster: Remote(LearnerWorker, cluster.address, cluster.step_timeout, cluster.patience),
}


class RemoteLearners:
    """The learners of a run beside the first one, which is the run's own process. A context in which they can begin.

    Args:
        algorithm: built.
        buffer: of the steps of all collectors; ``None`` if rollouts are learned from.
        cluster: says how many learners there are, and where.
        first: number of the first learner that has lanes of the buffer.

    Attributes:
        lanes: of each learner, by its number.
        replaced: how many learners were made anew.
        source: what the first learner draws from.

    Raises:
        UnsupportedError: if several cannot learn from the buffer.
    """

    source: Any

    def __init__(self, algorithm: Any, buffer: Any, cluster: Cluster, first: int) -> None:
        self._algorithm, self._cluster = algorithm, cluster
        self._given = None if buffer is None else _source(algorithm, buffer, cluster)
        own = cluster.lanes // (cluster.learners - first)
        self._own = {number: range(i * own, (i + 1) * own) for i, number in enumerate(range(first, cluster.learners))}
        stored = {} if buffer is None else self._own
        self.lanes = {number: Lanes(buffer.storage, lanes[0], own) for number, lanes in stored.items()}
        self._seed = int(new_generator().integers(2**32))
        self._transport: Transport | None = None
        self._there: set[int] = set()  # learners that have begun and have their steps
        self._open: dict[int, int] = {}  # number of answers of each that are to come
        self._deaths = self.replaced = 0

    @property
    def transition_count(self) -> int:
        """Number of transitions of the learner that has the fewest."""
        for lanes in self.lanes.values():
            lanes.refresh()
        return min(lanes.transition_count for lanes in self.lanes.values())

    def learn(self, session: Any, drawn: Any) -> None:
        """Make the next update.

        Args:
            session: of the run.
            drawn: what the first learner drew.
        """
        raise NotImplementedError

    def _take(self, index: int, answer: Done) -> None:
        """Take an answer in."""

    def _send(self, index: int, order: Any, beside: Any = None) -> None:
        if index in self._open:
            self._open[index] += 1
            self._there_is.send(index, order, beside)

    def _listen(self) -> bool:
        """Wait for one answer. Returns whether nobody was lost."""
        try:
            index, answer = self._there_is.wait()
        except Gone as error:
            self._lose(error)
            return False
        self._open[index] -= 1
        self._take(index, answer)
        return bool(answer.whole)

    def _heard(self) -> bool:
        """Wait for all answers. Returns whether nobody was lost."""
        whole = True
        while any(self._open.values()):
            whole = self._listen() and whole
        return whole

    def _lose(self, error: Gone) -> None:
        index = error.index
        self._open.pop(index, None)
        self._there.discard(index)
        self._deaths, self.replaced = self._deaths + 1, self.replaced + 1
        number = self._algorithm.grad_step + 1
        if self._deaths > self._cluster.restarts:
            raise WorkerError(
                f"learners were ended {self._deaths} times in a row (learner {index} last, {error.how}) without an "
                f"update between them: update {number} cannot be made. Where the system ends them for lack of memory, "
                "use fewer learners, or a smaller buffer"
            )
        LOG.warning(
            "learner %d was ended %s, in update %d or before; it is made anew with the parameters of learner 0 and the "
            "steps of its collectors, and nothing is lost",
            *(index, error.how, number),
        )

    def _begin(self, index: int) -> None:
        """Make a learner, with the steps of its lanes, if it is not there."""
        while index not in self._there:
            if index not in self._open:
                self._there_is.start(index, self._given_to(index))
                self._open[index] = 0
            self._there.add(index)
            for changes in self.lanes[index].changes(whole=True) if self.lanes else ():
                self._send(index, changes)
                self._heard()  # one after another: all of them take as much memory as the buffer

    def _given_to(self, index: int) -> Given:
        own, source = self._algorithm, self._given
        config = replace(own.config, compile_graph=False)
        algorithm = (type(own), config, str(own.torch_device), own.spec.observations, own.spec.actions)
        steps = None
        if source is not None:
            storage, parts = self.lanes[index], (source.picker, source.slicer, source.sampler, source.augmentation)
            steps = Steps(storage.info, storage.lanes, storage.limit, parts)
        inline = self._cluster.transport == "inline"
        threads = None if inline else max(1, torch.get_num_threads() // self._cluster.learners)
        return Given(index, algorithm, steps, self._seed, threads)

    @property
    def _there_is(self) -> Any:
        assert self._transport is not None
        return self._transport

    def __enter__(self) -> Self:
        self._transport = TRANSPORTS[self._cluster.transport](self._cluster)
        self._algorithm.learner.shared = "several learners learn together"
        return self

    def __exit__(self, *error: object) -> None:
        """End them."""
        self._algorithm.learner.shared = ""
        self._there_is.close()
        self._transport = None
        self._there.clear()
        self._open.clear()

    def get_state(self) -> State:
        """The seed of all random numbers of the others."""
        return {"seed": self._seed}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        if not is_seed(check("seed", state["seed"], int, error=CorruptFileError)):
            raise CorruptFileError(f"the checkpoint has learners of seed {state['seed']!r:.40}: use a copy")
        self._seed = state["seed"]


def _source(algorithm: Any, buffer: Any, cluster: Cluster) -> Source:
    """What learners draw with.

    Raises:
        UnsupportedError: if several cannot learn from the buffer.
    """
    sources = list(getattr(getattr(buffer, "reader", None), "sources", ()))
    if len(sources) != 1:
        raise UnsupportedError(
            f"{len(sources)} buffers were given to several learners, which divide one: give one buffer, or leave "
            "learners out"
        )
    (source,) = sources
    uniform = isinstance(source.sampler, Uniform)
    if not uniform and (cluster.gradients == "pushed" or not algorithm.learner.experience.gathers):
        raise UnsupportedError(
            f"a {type(source.sampler).__name__} chooses rows of minibatches that are learned from together: make the "
            "buffer without sampler=, or leave gradients='pushed' out"
        )
    found: Source = source
    return found
