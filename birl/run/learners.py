"""Several learners: each learns from the steps of its own collectors, and all move the same parameters.

The run's own process is the first one. It has all steps, and hands each of the others those of its lanes. In an update
every learner draws a minibatch of its own; the gradients of each step are averaged, so that the update is that of the
joined minibatches, and all have the same parameters after it, bit for bit.

Another learner holds nothing that the first one does not have. One that is lost is made anew with the parameters of the
first one and the steps of its lanes; the update is made again, and gives what it would have given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self

import torch

from birl.checks import check
from birl.dataset import Uniform
from birl.dataset.lanes import Lanes
from birl.dataset.reader import Reader
from birl.distributed import AverageGradients
from birl.distributed.group import GRACE, Broken, Group, Store
from birl.distributed.ray import Remote
from birl.distributed.rounds import Rounds
from birl.distributed.transport import Gone, Processes, Transport
from birl.errors import CorruptFileError, UnsupportedError, WorkerError
from birl.logging import LOG
from birl.run.checkpoint import random_state, set_random_state
from birl.run.cluster import Cluster
from birl.run.learning import Adopt, Given, Learning, Update, digest_of
from birl.seeding import is_seed, new_generator
from birl.types import State

CHECK_INTERVAL: Final = 1000
"""Updates between two comparisons of all learners' parameters."""

TRANSPORTS: Final[dict[str, Callable[[Cluster, float], Transport]]] = {
    "inline": lambda cluster, grace: Rounds(Learning),
    "processes": lambda cluster, grace: Processes(Learning, grace),
    "ray": lambda cluster, grace: Remote(Learning, cluster.address, grace, cluster.patience),
}


class Learners:
    """The learners of a run. A part of checkpoints, and a context in which there are processes for them.

    Args:
        algorithm: built.
        buffer: of the steps of all collectors; the first learner's own lanes are the first ones.
        cluster: says how many learners there are, and where.

    Attributes:
        source: what the first learner draws from: its own lanes of the buffer.
        replaced: how many learners were made anew.

    Raises:
        UnsupportedError: if the algorithm, or the buffer, cannot be learned from so.
    """

    def __init__(self, algorithm: Any, buffer: Any, cluster: Cluster) -> None:
        check_learners(algorithm, buffer)
        self._algorithm, self._cluster = algorithm, cluster
        own = cluster.lanes // cluster.learners
        self._lanes = [Lanes(buffer.storage, number * own, own) for number in range(cluster.learners)]
        self._given = buffer.reader.sources[0]
        self.source = Reader([replace(self._given, storage=self._lanes[0])])
        self._seed = int(new_generator().integers(2**32))
        self._grace = min(GRACE, cluster.step_timeout)
        self._transport: Transport | None = None
        self._store: Store | Rounds | None = None
        self._group: Group | None = None
        self._there: set[int] = set()  # learners that have their parameters and steps
        self._open: dict[int, int] = {}  # number of answers of each that are to come
        self._digest = ""  # that they must answer with
        self._deaths = self.replaced = 0

    @property
    def transition_count(self) -> int:
        """Number of transitions of the learner that has the fewest."""
        for lanes in self._lanes:
            lanes.refresh()
        return min(lanes.transition_count for lanes in self._lanes)

    def update(self, make: Callable[[], object]) -> None:
        """Make an update with all learners.

        Args:
            make: makes the first learner's update, once; again if another learner is lost meanwhile.
        """
        if not self._heard() or self._group is None:
            self._meet()
        engine, number = self._algorithm.engine, self._algorithm.grad_step + 1
        before = engine.get_state(), random_state()
        while True:
            digested = number % CHECK_INTERVAL == 0
            for index, lanes in enumerate(self._lanes[1:], 1):
                self._send(index, Update(number, list(lanes.changes()), digested))
            try:
                make()
                break
            except Broken:
                self._part()
                engine.set_state(before[0])
                set_random_state(before[1])
                self._heard()
                self._meet()
        self._digest = digest_of(self._algorithm.nets) if digested else ""
        self._deaths = 0

    # -- messages --------------------------------------------------------------------------------------------------

    def _send(self, index: int, order: Any, beside: Any = None) -> None:
        if index in self._open:
            self._open[index] += 1
            self._there_is.send(index, order, beside)

    def _heard(self) -> bool:
        """Wait for all answers. Returns whether nobody was lost."""
        whole = True
        while any(self._open.values()):
            try:
                index, answer = self._there_is.wait()
            except Gone as error:
                self._lose(error)
                whole = False
                continue
            self._open[index] -= 1
            whole = whole and answer.whole
            if answer.digest and answer.digest != self._digest:
                raise WorkerError(
                    f"learner {index} has other parameters than learner 0 after {self._algorithm.grad_step} updates: "
                    "change parameters only by learning, and run the same build of torch on all machines"
                )
        self._digest = ""
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

    # -- the group -------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Make the group anew: all learners with the first one's parameters."""
        self._part()
        state = self._there_is.put(self._algorithm.learner.get_state())
        while True:
            for index in range(1, len(self._lanes)):
                self._begin(index)
                self._send(index, Adopt(), state)
            if not self._heard() or len(self._there) < len(self._lanes) - 1:
                continue
            if self._store is None:
                self._store = self._there_is if isinstance(self._there_is, Rounds) else Store(self._there_is.host)
            meeting = self._store.next(len(self._lanes), self._grace)
            for index in self._open:
                self._send(index, meeting)
            try:
                self._group = self._store.join(meeting, 0)
            except Broken:
                self._heard()
                continue
            if self._heard():
                break
            self._part()
        self._algorithm.engine.reduce = AverageGradients(None, self._group.mean)

    def _begin(self, index: int) -> None:
        """Make a learner, with the steps of its lanes, if it is not there."""
        while index not in self._there:
            if index not in self._open:
                self._there_is.start(index, self._given_to(index))
                self._open[index] = 0
            self._there.add(index)
            for changes in self._lanes[index].changes(whole=True):
                self._send(index, changes)
                self._heard()  # one after another: all of them take as much memory as the buffer

    def _given_to(self, index: int) -> Given:
        own, storage, source = self._algorithm, self._lanes[index], self._given
        config = replace(own.config, compile_graph=False)
        algorithm = (type(own), config, str(own.torch_device), own.spec.observations, own.spec.actions)
        parts = (source.picker, source.slicer, source.sampler, source.augmentation)
        inline = self._cluster.transport == "inline"
        threads = None if inline else max(1, torch.get_num_threads() // len(self._lanes))
        return Given(index, algorithm, storage.info, storage.lanes, storage.limit, parts, self._seed, threads)

    def _part(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._algorithm.engine.reduce = None

    @property
    def _there_is(self) -> Any:
        assert self._transport is not None
        return self._transport

    def __enter__(self) -> Self:
        self._transport = TRANSPORTS[self._cluster.transport](self._cluster, self._grace)
        self._algorithm.learner.shared = "several learners learn together"
        return self

    def __exit__(self, *error: object) -> None:
        """End all other learners."""
        self._algorithm.learner.shared = ""
        self._part()
        self._there_is.close()
        self._transport = self._store = None
        self._there.clear()
        self._open.clear()

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """The seed of the other learners: they have nothing else of their own."""
        return {"seed": self._seed}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        if not is_seed(check("seed", state["seed"], int, error=CorruptFileError)):
            raise CorruptFileError(f"the checkpoint has learners of seed {state['seed']!r:.40}: use a copy")
        self._seed = state["seed"]


def check_learners(algorithm: Any, buffer: Any) -> None:
    """Raise `UnsupportedError` if several learners cannot learn with a built algorithm, from such a buffer."""
    algorithm.learner.check_together()
    sources = list(getattr(getattr(buffer, "reader", None), "sources", ()))
    if len(sources) != 1 or not isinstance(sources[0].sampler, Uniform):
        raise UnsupportedError(
            "several learners draw uniformly from the steps of their own collectors: give one buffer without "
            "sampler=, or leave learners out"
        )
