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
from functools import partial
from typing import Any, Final

from birl.dataset import Uniform
from birl.dataset.reader import Reader
from birl.distributed import AverageGradients
from birl.distributed.inline_allreduce import Rounds
from birl.distributed.process_group import Broken, Group, Store
from birl.errors import WorkerError
from birl.run.checkpoint import random_state, set_random_state
from birl.run.cluster import Cluster
from birl.run.protocols import Rollout
from birl.run.workers.learner_worker import Adopt, Done, Update, digest_of
from birl.run.workers.remote_learners import RemoteLearners
from birl.run.workers.shared_sampling import SharedSampling
from birl.types import tree_map

CHECK_INTERVAL: Final = 1000
"""Updates between two comparisons of all learners' parameters."""


class SynchronousLearners(RemoteLearners):
    """Learners that make each update together. A part of checkpoints.

    Args:
        algorithm: built.
        buffer: of the steps of all collectors; the first learner's own lanes are the first ones. ``None`` if rollouts
            are learned from: then each learns from those of its own collectors.
        cluster: says how many learners there are, and where.

    Attributes:
        source: what the first learner draws from: its own lanes of the buffer, if there is one.

    Raises:
        UnsupportedError: if the algorithm, or the buffer, cannot be learned from so.
    """

    def __init__(self, algorithm: Any, buffer: Any, cluster: Cluster) -> None:
        algorithm.learner.check_together()
        super().__init__(algorithm, buffer, cluster, 0)
        self._choosing = None
        if self._given is not None:
            uniform = isinstance(self._given.sampler, Uniform)
            self._choosing = None if uniform else SharedSampling(self._given, self.lanes)
            self.source = self._choosing or Reader([replace(self._given, storage=self.lanes[0])])
        self._rollout: Any = None  # of all lanes, that is learned from
        self._store: Store | Rounds | None = None
        self._group: Group | None = None
        self._digest = ""  # that they must answer with
        self._ended = False  # whether one has ended its part of the present update
        self._uneven = 0  # times in a row that one waited for more minibatches than another had

    def learn(self, session: Any, drawn: Any) -> None:
        if not isinstance(drawn, Rollout):
            self.update(partial(session.update, drawn))
        elif drawn.valid.all():
            self._rollout = drawn
            self.update(partial(session.update, _part(drawn, self._own[0])))
        else:  # the others take the parameters afterwards
            self._part()
            session.update(drawn)

    def update(self, make: Callable[[], object]) -> None:
        """Make an update with all learners.

        Args:
            make: makes the first learner's update, once; again if another learner is lost meanwhile.

        Raises:
            WorkerError: if one has ended its part of an update while another waits for it, and nobody was lost, twice.
        """
        number, replaced = self._algorithm.grad_step + 1, self.replaced
        whole = self._heard()
        self._digest = ""
        if not whole and self.replaced == replaced:
            self._count_uneven(number - 1, "fewer")
        elif whole:
            self._uneven = 0
        if not whole or self._group is None:
            self._meet()
        engine = self._algorithm.engine
        before = engine.get_state(), random_state()
        while True:
            self._ended, replaced = False, self.replaced
            digested = number % CHECK_INTERVAL == 0 or self._rollout is not None
            for index in self._own:
                if index:
                    self._send(index, self._order(index, number, digested))
            try:
                make()
                break
            except Broken:
                self._part()
                engine.set_state(before[0])
                set_random_state(before[1])
                self._heard()
                if self._ended and self.replaced == replaced:
                    self._count_uneven(number, "more")
                self._meet()
        self._digest = digest_of(self._algorithm.nets) if digested else ""
        self._deaths = 0

    def _count_uneven(self, number: int, first: str) -> None:
        """Raise if it is the second time: once may be a lost connection."""
        self._uneven += 1
        if self._uneven > 1:
            raise WorkerError(
                f"in update {number} learner 0 had {first} minibatches than the others, and one waited for the other "
                "in vain: learn from all steps of a rollout, or leave learners out"
            ) from None

    def _order(self, index: int, number: int, digested: bool) -> Update:
        if self._rollout is not None:
            return Update(number, [], digested, rollout=_part(self._rollout, self._own[index]))
        rows = None if self._choosing is None else self._choosing.chosen[index]
        return Update(number, list(self.lanes[index].changes()), digested, rows)

    def _take(self, index: int, answer: Done) -> None:
        self._ended = self._ended or answer.whole
        if self._digest and answer.digest and answer.digest != self._digest:
            raise WorkerError(
                f"learner {index} has other parameters than learner 0 after {self._algorithm.grad_step} updates: "
                "change parameters only by learning, and run the same build of torch on all machines"
            )

    def _meet(self) -> None:
        """Make the group anew: all learners with the first one's parameters."""
        self._part()
        state = self._there_is.put(self._algorithm.learner.get_state())
        while True:
            for index in range(1, self._cluster.learners):
                self._begin(index)
                self._send(index, Adopt(), state)
            if not self._heard() or len(self._there) < self._cluster.learners - 1:
                continue
            if self._store is None:
                self._store = self._there_is if isinstance(self._there_is, Rounds) else Store(self._there_is.host)
            meeting = self._store.next(self._cluster.learners, self._cluster.step_timeout)
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
        if self._choosing is not None:
            self._choosing.group = self._group

    def _part(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._algorithm.engine.reduce = None

    def __exit__(self, *error: object) -> None:
        """End all other learners."""
        self._part()
        self._store = None
        super().__exit__(*error)


def _part(rollout: Rollout, lanes: range) -> Rollout:
    """The steps of some lanes of a rollout."""
    own = slice(lanes[0], lanes[-1] + 1)
    columns = {name: value for name, value in vars(rollout).items() if value is not None}
    return replace(rollout, **{name: tree_map(lambda x: x[:, own], value) for name, value in columns.items()})
