"""Kinds of experience: what an algorithm learns from, how it is sampled, and how minibatches become batches.

The attribute ``learns_from`` of an algorithm is one of them. Only this object knows what kind of data the algorithm
needs; loops, the command line and the documentation ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from birl.algorithm.batches import to_batch
from birl.algorithm.learner import EngineUpdate, EngineUpdates, Experience, Learner
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.dataset.minibatch import MiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.reader import MinibatchSource
from birl.dataset.transitions import Columns
from birl.dataset.views import SequenceView, TailView, TrajectoryView, TransitionView
from birl.errors import DataError, ShapeError
from birl.models import eval_mode
from birl.spaces.observations import accepts_observations, minibatch_observations
from birl.types import Batch, Inputs

OFFLINE: Final = frozenset({"fit"})
ONLINE: Final = frozenset({"fit_online"})
ROWS_AT_ONCE: Final = 2048
"""Number of states whose values are computed together, which bounds the memory for the returns of an iteration."""


class Nothing(Experience):
    """For policies that do not learn."""


@dataclass(frozen=True)
class Transitions(Experience):
    """Single transitions from a dataset or a buffer; with recurrent networks, sequences of them.

    Attributes:
        online: whether it can also learn from its own experience; pure imitation cannot.
        has_td_errors: whether it has TD errors; pure imitation has none.
        next_actions: whether it learns from the data's next actions. A batch then has ``next_action`` and
            ``next_action_known`` in ``extra``. The latter is 0 for the last step of a terminated or truncated episode.
        discounted_returns: whether it learns from the data's discounted returns: ``discounted_return`` in ``extra``.
        one_step: see `Experience`. Not checked for minibatches on a device, because the check would wait for it.
    """

    online: bool = True
    has_td_errors: bool = True
    next_actions: bool = False
    discounted_returns: bool = False
    one_step: bool = False
    single_seed: str = ""
    n_updates: int = 1
    gathers = True

    @property
    def loops(self) -> frozenset[str]:  # type: ignore[override]
        return OFFLINE | ONLINE if self.online else OFFLINE

    @property
    def description(self) -> str:  # type: ignore[override]
        return "logged data, or live environments through a replay buffer" if self.online else "logged data"

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        if learner.recurrent or not isinstance(source, ReplayBufferBase):
            return
        own, there = (
            learner.spec.observations,
            minibatch_observations(source.dataset_info.observations, source.observation_shape),
        )
        if not accepts_observations(own, there):
            raise ShapeError(
                f"minibatches from the buffer have observations {there}, but this {learner.name} was built for {own}: "
                "a buffer of single frames needs a FrameStackTransitionPicker of as many as the environment stacks, "
                "and one of whole observations none"
            )

    def sample(self, learner: Learner, source: MinibatchSource) -> Any:
        config, columns = learner.config, Columns(self.next_actions, learner.returns)
        if learner.recurrent:
            return source.sample(SequenceView(config.sequence_length, config.burn_in, columns), config.batch_size)
        return source.sample(TransitionView(columns), config.batch_size)

    def batch(self, learner: Learner, minibatch: MiniBatch) -> Batch:
        if (
            learner.returns
            and isinstance(minibatch, TransitionMiniBatch)
            and "discounted_return" not in minibatch.extra
        ):
            minibatch = replace(minibatch, extra={**minibatch.extra, **minibatch.discounted_returns(learner.returns)})
        batch = to_batch(minibatch, learner.units, learner.config.gamma)
        if self.one_step and isinstance(minibatch.intervals, np.ndarray) and minibatch.intervals.max() > 1:
            raise DataError(
                f"{learner.name} learns from single steps, but this minibatch has transitions of up to "
                f"{minibatch.intervals.max():g}: draw it from a dataset without n-step returns"
            )
        if self.next_actions and "next_action" not in batch.extra:
            raise DataError(
                f"{learner.name} learns from the data's next actions, which this minibatch does not have: draw it "
                "with algo.sample_minibatch(dataset) or dataset.sample_transition_batch(…, next_actions=True), or "
                "give all transitions a next_action"
            )
        if self.discounted_returns and "discounted_return" not in batch.extra:
            raise DataError(
                f"{learner.name} learns from the data's returns, which this minibatch does not have: draw it "
                "with algo.sample_minibatch(dataset) or dataset.sample_transition_batch(…, returns=algo.returns), or "
                "give all transitions their rewards_to_go"
            )
        return learner.engine.burn_in(batch, getattr(minibatch, "burn_in", 0))


class Trajectories(Experience):
    """Slices of trajectories of ``context_size`` steps."""

    loops = OFFLINE
    contexts = True
    has_td_errors = False  # of single steps
    single_seed = "learns from trajectories"
    description = "logged data"

    def sample(self, learner: Learner, source: MinibatchSource) -> MiniBatch:
        return source.sample(TrajectoryView(learner.config.context_size), learner.config.batch_size)

    def batch(self, learner: Learner, minibatch: MiniBatch) -> Batch:
        if not isinstance(minibatch, TrajectoryMiniBatch):
            raise DataError(
                f"{learner.name} learns from trajectories, not from a {type(minibatch).__name__}: draw them with "
                "algo.sample_minibatch(dataset) or dataset.sample_trajectory_batch(batch_size, length)"
            )
        return to_batch(minibatch, learner.units, learner.config.gamma)


class Tails(NamedTuple):
    """Rows ``[R]`` of steps and of the rest of their episodes, in order.

    After the last step of an episode, a closing row has the state in which the episode ended.

    Attributes:
        observations: yields the observations of the rows in the networks' units, in blocks to bound memory.
        reward, discount, step: ``[R]``; ``step`` is 1 for steps and 0 for closing rows.
        longest: number of steps in the longest tail.
    """

    observations: Iterator[Inputs]
    reward: Tensor
    discount: Tensor
    step: Tensor
    longest: int


class Regression(NamedTuple):
    """The part of an iteration in which one step is performed on a number of minibatches.

    Attributes:
        step: name of the step.
        n_minibatches: name of the config field with the number of minibatches.
        prepare: ``(networks, batch) -> batch``, called once before them; ``None`` to leave the batch as it is.
    """

    step: str
    n_minibatches: str
    prepare: Callable[[Any, Batch], Batch] | None = None


@dataclass(frozen=True)
class Iterations(Experience):
    """Steps with the rest of their episodes. In each iteration, returns are computed once and regressions fit them.

    Attributes:
        returns: ``(networks, tails, config) -> [R]``. A batch has the result as ``return`` in ``extra``.
        regressions: the regressions of an iteration, in order.
    """

    returns: Callable[[Any, Tails, Any], Tensor]
    regressions: tuple[Regression, ...]
    loops = OFFLINE | ONLINE
    has_td_errors = False
    single_states = "learns from single states"
    single_seed = "makes many updates from each minibatch"
    description = "logged data, or live environments through a replay buffer: steps with the rest of their episodes"

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        super().check_run(learner, source, count)
        if isinstance(source, ReplayBufferBase):
            TailView.picker(source.transition_picker)

    def sample(self, learner: Learner, source: MinibatchSource) -> MiniBatch:
        return source.sample(TailView(), learner.config.batch_size)

    def batch(self, learner: Learner, minibatch: MiniBatch) -> Batch:
        if not isinstance(minibatch, TailMiniBatch):
            raise DataError(
                f"{learner.name} learns from states with the rest of their episodes, not from a "
                f"{type(minibatch).__name__}: draw with sample_minibatch(dataset)"
            )
        units, config = learner.units, learner.config
        reward, step = units.reward(minibatch.rewards), units.column(minibatch.steps)
        discount = config.gamma * (1 - units.column(minibatch.terminals))
        begins = range(0, len(reward), ROWS_AT_ONCE)
        rows = (minibatch.read(begin, min(begin + ROWS_AT_ONCE, len(reward))) for begin in begins)
        inputs = (Inputs(units.observation(each)) for each in rows)
        with torch.no_grad(), eval_mode(learner.nets):
            returns = self.returns(learner.nets, Tails(inputs, reward, discount, step, minibatch.longest), config)
        index = units.tensor(minibatch.index)
        return Batch(
            units.observation(minibatch.observations),
            units.action(minibatch.actions),
            reward[index],
            None,
            discount[index],
            step[index],
            extra={"return": returns[index]},
        )

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        size = min(learner.config.batch_size_per_update, len(batch.weight))
        for regression in self.regressions:
            if regression.prepare is not None:
                with torch.no_grad(), eval_mode(learner.nets):
                    batch = regression.prepare(learner.nets, batch)
            for minibatch in minibatches(batch, size, getattr(learner.config, regression.n_minibatches)):
                yield EngineUpdate(minibatch, (regression.step,))
        return {}

    def expected_updates(self, config: AlgorithmConfig, count: int, lanes: int = 1) -> int:
        return count * sum(getattr(config, regression.n_minibatches) for regression in self.regressions)


def minibatches(batch: Batch, size: int, count: int) -> Iterator[Batch]:
    """Yield ``count`` minibatches of ``size`` steps from shuffled passes over a batch. A pass omits its remainder."""
    total = len(batch.weight)
    whole = total - total % size
    for made in range(count):
        start = made * size % whole
        if start == 0:
            order = torch.randperm(total)[:whole].to(batch.weight.device)
            shuffled = batch.map(lambda x, order=order: x.index_select(0, order))  # type: ignore[misc]
        yield shuffled.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]
