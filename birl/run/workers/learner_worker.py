"""The worker of a learner, which updates an algorithm with the steps of its own collectors.

The first learner has all data of this worker. Both have the same parameters, the worker's steps are lanes of the first
learner's buffer, and its random numbers in an update depend only on a seed and on the numbers of learner and update.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from birl.dataset.lane_views import Changes, LaneCopy
from birl.dataset.minibatch import MiniBatch, Rows
from birl.dataset.reader import Reader
from birl.distributed import AverageGradients
from birl.distributed.process_group import GlooGroup, GroupBroken, LearnerGroup, Rendezvous
from birl.distributed.transport import Worker
from birl.run.protocols import Rollout
from birl.run.workers.protocols import AlgorithmSpec, DistributedAlgorithm, StepGradients
from birl.run.workers.replay_worker import ReplayParts
from birl.run.workers.shared_sampling import SentRows
from birl.seeding import preserve_random_state, preserve_seed, seed
from birl.types import Array, State


class LearnerSpec(NamedTuple):
    """Specification of a learner.

    Attributes:
        learner: its number, from 1.
        algorithm: specification of the algorithm.
        replay: parts of its replay buffer; ``None`` if rollouts are sent to it.
        seed: seed of all learners' random numbers.
        threads: number of CPU threads; ``None`` to leave it as it is.
    """

    learner: int
    algorithm: AlgorithmSpec
    replay: ReplayParts | None
    seed: int
    threads: int | None


class SetStateTask(NamedTuple):
    """Task to load the algorithm's state, which is the payload."""


class UpdateTask(NamedTuple):
    """Task to make an update together with all learners.

    Attributes:
        number: number of the update, from 1.
        changes: changes of the learner's lanes since the last update.
        report_digest: whether to answer with a digest of the parameters.
        rows: rows of the minibatch; ``None`` if the learner draws them.
        rollout: rollout to learn from instead of a minibatch.
    """

    number: int
    changes: list[Changes]
    report_digest: bool
    rows: Rows | None = None
    rollout: Rollout | None = None


class GradientTask(NamedTuple):
    """Task to compute the gradients of an update at the parameters in the payload.

    Attributes:
        number: number of the update, from 1.
        changes: see `UpdateTask`.
    """

    number: int
    changes: list[Changes]


LearnerTask: TypeAlias = SetStateTask | UpdateTask | GradientTask | Rendezvous | Changes


class LearnerResult(NamedTuple):
    """The result of a task.

    Attributes:
        complete: whether no learner left the group. Otherwise the learner's state can no longer be used.
        digest: digest of the parameters, if the task asks for it.
        gradients: gradients of the steps that are due, by name, if the task asks for them.
    """

    complete: bool = True
    digest: str = ""
    gradients: dict[str, StepGradients] | None = None


class LearnerWorker(Worker[LearnerTask, Any, LearnerResult]):
    """The worker of a learner.

    Args:
        spec: specification of the learner.
        join: function that joins a group, given its rendezvous and the number of this learner.
    """

    def __init__(self, spec: LearnerSpec, join: Callable[[Rendezvous, int], LearnerGroup] = GlooGroup) -> None:
        self._spec, self._join = spec, join
        self._group: LearnerGroup | None = None
        self._size = 0  # of the group
        self._position = f"the start of learner {spec.learner}"
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        with preserve_random_state(), preserve_seed():
            seed(spec.seed)
            self._algorithm: DistributedAlgorithm = spec.algorithm.build()
            self._source = None if spec.replay is None else spec.replay.make_source()
        self._reader = None if self._source is None else Reader([self._source])
        self._algorithm.learner.start_run(self._reader, 0, growing=True)

    def __call__(self, task: LearnerTask, payload: State | None) -> LearnerResult:
        self._position = f"{type(task).__name__} {getattr(task, 'number', '')} of learner {self._spec.learner}"
        match task:
            case SetStateTask():
                assert payload is not None
                self.close()
                self._algorithm.learner.set_state(payload)
            case Changes():
                self._apply([task])
            case GradientTask():
                assert payload is not None
                with preserve_random_state():
                    return self._compute_gradients(task, payload)
            case Rendezvous() | UpdateTask():
                try:
                    return self._join_group(task) if isinstance(task, Rendezvous) else self._update(task)
                except GroupBroken:
                    self.close()
                    return LearnerResult(complete=False)
        return LearnerResult()

    @property
    def position(self) -> str:
        return self._position

    def _join_group(self, rendezvous: Rendezvous) -> LearnerResult:
        self._group, self._size = self._join(rendezvous, self._spec.learner), rendezvous.size
        self._algorithm.engine.reduce = AverageGradients(None, self._group.all_reduce_mean)
        return LearnerResult()

    def _update(self, task: UpdateTask) -> LearnerResult:
        self._apply(task.changes)
        self._seed_update(task.number)
        self._algorithm.learner.update(self._sample(task.rows) if task.rollout is None else task.rollout)
        return LearnerResult(digest=parameter_digest(self._algorithm.nets) if task.report_digest else "")

    def _sample(self, rows: Rows | None = None) -> MiniBatch:
        """Sample a minibatch, or read the minibatch of some rows."""
        assert self._source is not None and self._reader is not None
        source: Reader | SentRows = self._reader
        if rows is not None:
            source = SentRows(self._source, rows, self._group, self._spec.learner, self._size)
        return self._algorithm.learner.sample(source)

    def _compute_gradients(self, task: GradientTask, parameters: Mapping[str, Array]) -> LearnerResult:
        self._apply(task.changes)
        algorithm = self._algorithm
        algorithm.nets.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
        algorithm.set_grad_step(task.number - 1)
        self._seed_update(task.number)
        steps = algorithm.learner.compute_gradients(self._sample())
        return LearnerResult(gradients={name: StepGradients.of(step) for name, step in steps.items()})

    def _apply(self, changes: Iterable[Changes]) -> None:
        if self._source is None:
            return
        storage = self._source.storage
        assert isinstance(storage, LaneCopy)
        for each in changes:
            storage.apply(each)

    def _seed_update(self, number: int) -> None:
        """Seed all random generators for an update."""
        own = np.random.SeedSequence([self._spec.seed, self._spec.learner, number])
        if self._source is not None:
            self._source.generators.host = np.random.Generator(np.random.PCG64(own))
        value = int(own.generate_state(1)[0])
        random.seed(value)
        np.random.seed(value)  # users' losses may draw from the global generators
        torch.default_generator.manual_seed(value)  # torch.manual_seed takes 0.2 ms for absent devices
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(value)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
        self._group = None


def parameter_digest(nets: nn.Module) -> str:
    """Compute a digest of the exact bits of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in nets.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
