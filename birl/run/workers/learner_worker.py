"""What a further learner is: an algorithm with the steps of its own collectors, which makes updates by order.

It holds nothing that the first learner does not have: its parameters are the first one's, its steps are lanes of the
first one's buffer, and its random numbers in an update are a function of the run's seed and of the update's number.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from birl._version import __version__
from birl.dataset import DatasetInfo
from birl.dataset.lane_views import Changes, Copied
from birl.dataset.minibatch import Rows
from birl.dataset.reader import Reader, Source
from birl.distributed import AverageGradients
from birl.distributed.process_group import Broken, Gloo, Group, Meeting
from birl.distributed.transport import Work, check_version
from birl.run.checkpoint import preserve_random_state
from birl.run.workers.shared_sampling import Chosen
from birl.seeding import root_kept, seed
from birl.types import Array, Loss


class Steps(NamedTuple):
    """What the steps of a learner are, and how it draws from them.

    Attributes:
        info, lanes, limit: see `Copied`.
        parts: picker, slicer, sampler and augmentation.
    """

    info: DatasetInfo
    lanes: int
    limit: int | None
    parts: tuple[Any, Any, Any, Any]


class Given(NamedTuple):
    """What a learner is made of.

    Attributes:
        learner: its number, from 1.
        algorithm: class, configuration, device, observations and actions.
        steps: that it stores; ``None`` if rollouts are sent to it.
        seed: of all learners' random numbers.
        threads: of the processor; ``None`` to leave them as they are.
        birl: version of whoever sends this.
    """

    learner: int
    algorithm: tuple[Any, Any, Any, Any, Any]
    steps: Steps | None
    seed: int
    threads: int | None
    birl: str = __version__


class Adopt(NamedTuple):
    """Take the algorithm's state that is sent beside this."""


class Update(NamedTuple):
    """Make an update with all others.

    Attributes:
        number: of the update, from 1.
        changes: what was written to its lanes since the last one.
        digested: whether to answer with a digest of the parameters.
        rows: of the minibatch; ``None`` to draw them.
        rollout: to learn from, where none is drawn.
    """

    number: int
    changes: list[Changes]
    digested: bool
    rows: Rows | None = None
    rollout: Any = None


class Find(NamedTuple):
    """Find the gradients of an update, at the parameters that are sent beside this.

    Attributes:
        number: of the update, from 1.
        changes: see `Update`.
    """

    number: int
    changes: list[Changes]


class Lesson(NamedTuple):
    """What a step of an update found.

    Attributes:
        gradients: by parameter name.
        loss: its value.
        metrics: of the loss.
    """

    gradients: dict[str, Array]
    loss: float
    metrics: dict[str, float]


class Done(NamedTuple):
    """An order was carried out.

    Attributes:
        whole: whether nobody of the group was lost meanwhile. If somebody was, the state is of no use any more.
        digest: of the parameters, if it was asked for.
        lessons: of the steps that are due, by name, if they were asked for.
    """

    whole: bool = True
    digest: str = ""
    lessons: dict[str, Lesson] | None = None


class LearnerWorker(Work):
    """A further learner at work.

    Args:
        given: what it is made of.
        join: makes the group that meets somewhere, given the number of this learner.

    Raises:
        ConfigError: if another version of birl has sent it.
    """

    def __init__(self, given: Given, join: Callable[[Meeting, int], Group] = Gloo) -> None:
        check_version(f"learner {given.learner}", given.birl)
        self._given, self._join = given, join
        self._group: Group | None = None
        self._size = 0  # of the group
        self._place = f"the beginning of learner {given.learner}"
        kind, config, device, observations, actions = given.algorithm
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        with preserve_random_state(), root_kept():
            seed(given.seed)
            self._algorithm = kind(config, device)
            self._algorithm.create_impl(observations, actions)
            self._source = None if given.steps is None else _stored(given.steps)
        self._reader = None if self._source is None else Reader([self._source])
        self._algorithm.learner.begin_run(self._reader, 0, growing=True)

    def __call__(self, order: Any, state: Any) -> Done:
        """Carry out an order: `Adopt`, `Changes`, `Meeting`, `Update` or `Find`."""
        self._place = f"{type(order).__name__} {getattr(order, 'number', '')} of learner {self._given.learner}"
        if isinstance(order, Adopt):
            self.close()
            self._algorithm.learner.set_state(state)
        elif isinstance(order, Changes):
            self._follow([order])
        elif isinstance(order, Find):
            with preserve_random_state():
                return self._find(order, state)
        else:
            try:
                return self._meet(order) if isinstance(order, Meeting) else self._update(order)
            except Broken:
                self.close()
                return Done(whole=False)
        return Done()

    @property
    def place(self) -> str:
        """Where it is."""
        return self._place

    def _meet(self, meeting: Meeting) -> Done:
        self._group, self._size = self._join(meeting, self._given.learner), meeting.size
        self._algorithm.engine.reduce = AverageGradients(None, self._group.mean)
        return Done()

    def _update(self, order: Update) -> Done:
        self._follow(order.changes)
        learner = self._algorithm.learner
        self._draw_anew(order.number)
        source: Any = self._reader
        if order.rows is not None and self._source is not None:
            source = Chosen(self._source, order.rows, self._group, self._given.learner, self._size)
        learner.learn(learner.draw(source) if order.rollout is None else order.rollout)
        return Done(digest=digest_of(self._algorithm.nets) if order.digested else "")

    def _find(self, order: Find, parameters: dict[str, Array]) -> Done:
        self._follow(order.changes)
        algorithm, learner = self._algorithm, self._algorithm.learner
        algorithm.nets.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
        algorithm.set_grad_step(order.number - 1)
        self._draw_anew(order.number)
        found = learner.compute_gradients(learner.draw(self._reader))
        return Done(lessons={name: _lesson(*each) for name, each in found.items()})

    def _follow(self, changes: list[Changes]) -> None:
        for each in changes:
            self._source.storage.follow(each)  # type: ignore[union-attr]

    def _draw_anew(self, number: int) -> None:
        """Begin the random numbers of an update."""
        own = np.random.SeedSequence([self._given.seed, self._given.learner, number])
        if self._source is not None:
            self._source.generators.host = np.random.Generator(np.random.PCG64(own))
        value = int(own.generate_state(1)[0])
        random.seed(value)
        np.random.seed(value)  # losses of users may draw from the global generators
        torch.default_generator.manual_seed(value)  # torch.manual_seed takes 0.2 ms, for devices that are not there
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(value)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
        self._group = None


def _stored(steps: Steps) -> Source:
    picker, slicer, sampler, augmentation = steps.parts
    return Source(Copied(steps.info, steps.lanes, steps.limit), picker, slicer, sampler, augmentation=augmentation)


def _lesson(gradients: dict[str, Tensor], loss: Loss) -> Lesson:
    metrics = {name: value.item() for name, value in loss.metrics.items()}
    return Lesson({name: value.cpu().numpy() for name, value in gradients.items()}, loss.value.item(), metrics)


def digest_of(nets: nn.Module) -> str:
    """Of all parameters and buffers, bit for bit."""
    found = hashlib.sha256()
    for name, tensor in nets.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
