"""Kinds of experience: what an algorithm learns from, how it is drawn, and how it becomes batches.

An algorithm has one of them as its ``learns_from``. Loops, command line and documentation ask it, and it alone knows
what kind of data the algorithm needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from birl.algorithm.batches import fold_sequences, rollout_batch, to_batch
from birl.algorithm.learner import Experience, Learner, Pass, Passes
from birl.checks import check
from birl.dataset.minibatch import TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.transitions import Columns
from birl.dataset.views import SequenceView, TailView, TrajectoryView, TransitionView
from birl.errors import DataError
from birl.models import eval_mode
from birl.run.protocols import Rollout
from birl.types import Batch, Inputs

OFFLINE: Final = frozenset({"fit"})
ONLINE: Final = frozenset({"fit_online"})
ROWS_AT_ONCE: Final = 2048
"""States whose values are computed together: bounds the memory that the returns of an iteration take."""


class Nothing(Experience):
    """For policies that do not learn."""


@dataclass(frozen=True)
class Transitions(Experience):
    """Single transitions from a dataset or a buffer; with recurrent networks, sequences of them.

    Attributes:
        online: whether it can also learn from its own experience; pure imitation cannot.
        errors: whether it has TD errors; pure imitation has none.
        next_actions: whether it learns from the data's next actions: ``next_action`` and ``next_action_known`` in a
            batch's ``extra``, the latter 0 after an episode's last step in the data, whether it terminated or was cut.
        returns_to_go: whether it learns from the data's discounted returns: ``return_to_go`` in ``extra``.
        one_step: see `Experience`. Minibatches on a device are not asked, which would wait for it.
    """

    online: bool = True
    errors: bool = True
    next_actions: bool = False
    returns_to_go: bool = False
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

    def draw(self, learner: Learner, source: Any) -> Any:
        config, columns = learner.config, Columns(self.next_actions, learner.returns)
        if learner.recurrent:
            return source.draw(SequenceView(config.sequence_length, config.burn_in, columns), config.batch_size)
        return source.draw(TransitionView(columns), config.batch_size)

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        if learner.returns and isinstance(drawn, TransitionMiniBatch) and "return_to_go" not in drawn.extra:
            drawn = replace(drawn, extra={**drawn.extra, **drawn.returns_to_go(learner.returns)})
        batch = to_batch(drawn, learner.units, learner.config.gamma)
        if self.one_step and isinstance(drawn.intervals, np.ndarray) and drawn.intervals.max() > 1:
            raise DataError(
                f"{learner.name} learns from single steps, but this minibatch has transitions of up to "
                f"{drawn.intervals.max():g}: draw it from a dataset without n-step returns"
            )
        if self.next_actions and "next_action" not in batch.extra:
            raise DataError(
                f"{learner.name} learns from the data's next actions, which this minibatch does not have: draw it "
                "with algo.sample_minibatch(dataset) or dataset.sample_transition_batch(…, next_actions=True), or "
                "give all transitions a next_action"
            )
        if self.returns_to_go and "return_to_go" not in batch.extra:
            raise DataError(
                f"{learner.name} learns from the data's returns, which this minibatch does not have: draw it "
                "with algo.sample_minibatch(dataset) or dataset.sample_transition_batch(…, returns=algo.returns), or "
                "give all transitions their rewards_to_go"
            )
        return learner.engine.burn_in(batch, getattr(drawn, "burn_in", 0))


class Trajectories(Experience):
    """Slices of trajectories of ``context_size`` steps."""

    loops = OFFLINE
    contexts = True
    errors = False  # of single steps
    single_seed = "learns from trajectories, which several seeds cannot do at once yet"
    description = "logged data"

    def draw(self, learner: Learner, source: Any) -> Any:
        return source.draw(TrajectoryView(learner.config.context_size), learner.config.batch_size)

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        if not isinstance(drawn, TrajectoryMiniBatch):
            raise DataError(
                f"{learner.name} learns from trajectories, not from a {type(drawn).__name__}: draw them with "
                "algo.sample_minibatch(dataset) or dataset.sample_trajectory_batch(batch_size, length)"
            )
        return to_batch(drawn, learner.units, learner.config.gamma)


class Tails(NamedTuple):
    """Rows ``[R]`` of episodes' ends, in order; where an episode ends, a closing row has the state after its last step.

    Attributes:
        observations: yields the rows' observations in the networks' units, in blocks to bound memory.
        reward, discount, step: ``[R]``; ``step`` is 1 for steps and 0 for closing rows.
        longest: number of steps in the longest tail.
    """

    observations: Iterator[Inputs]
    reward: Tensor
    discount: Tensor
    step: Tensor
    longest: int


class Regression(NamedTuple):
    """Some minibatches of an iteration for one step.

    Attributes:
        step: name of the step.
        n_minibatches: name of the config field with the number of minibatches.
        prepare: ``(networks, batch) -> batch``, once before them.
    """

    step: str
    n_minibatches: str
    prepare: Callable[[Any, Batch], Batch] | None = None


@dataclass(frozen=True)
class Iterations(Experience):
    """Steps with the rest of their episodes: returns are computed once, then regressions pass over the steps.

    Attributes:
        returns: ``(networks, tails, config) -> [R]``; ``return`` in a batch's ``extra``.
        regressions: the regressions of an iteration, in order.
    """

    returns: Callable[[Any, Tails, Any], Tensor]
    regressions: tuple[Regression, ...]
    loops = OFFLINE | ONLINE
    errors = False
    single_seed = "makes many updates in a step, which many seeds cannot do at once yet"
    description = "logged data, or live environments through a replay buffer: steps with the rest of their episodes"

    def draw(self, learner: Learner, source: Any) -> Any:
        return source.draw(TailView(), learner.config.batch_size)

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        if not hasattr(drawn, "steps"):
            raise DataError(
                f"{learner.name} learns from states with the rest of their episodes, not from a "
                f"{type(drawn).__name__}: draw with sample_minibatch(dataset)"
            )
        units, config = learner.units, learner.config
        reward, step = units.reward(drawn.rewards), units.column(drawn.steps)
        discount = config.gamma * (1 - units.column(drawn.terminals))
        begins = range(0, len(reward), ROWS_AT_ONCE)
        rows = (drawn.read(begin, min(begin + ROWS_AT_ONCE, len(reward))) for begin in begins)
        inputs = (Inputs(units.observation(each)) for each in rows)
        with torch.no_grad(), eval_mode(learner.nets):
            returns = self.returns(learner.nets, Tails(inputs, reward, discount, step, drawn.longest), config)
        index = units.tensor(drawn.index)
        return Batch(
            units.observation(drawn.observations),
            units.action(drawn.actions),
            reward[index],
            None,
            discount[index],
            step[index],
            extra={"return": returns[index]},
        )

    def passes(self, learner: Learner, batch: Batch) -> Passes:
        size = min(learner.config.batch_size_per_update, len(batch.weight))
        for regression in self.regressions:
            if regression.prepare is not None:
                with torch.no_grad(), eval_mode(learner.nets):
                    batch = regression.prepare(learner.nets, batch)
            for minibatch in minibatches(batch, size, getattr(learner.config, regression.n_minibatches)):
                yield Pass(minibatch, (regression.step,))

    def updates(self, config: Any, count: int) -> int:
        return count * sum(getattr(config, regression.n_minibatches) for regression in self.regressions)


def minibatches(batch: Batch, size: int, count: int) -> Iterator[Batch]:
    """``count`` minibatches of ``size`` steps, from shuffled passes over a batch; remainders are left out."""
    total = len(batch.weight)
    whole = total - total % size
    for made in range(count):
        start = made * size % whole
        if start == 0:
            order = torch.randperm(total)[:whole].to(batch.weight.device)
            shuffled = batch.map(lambda x, order=order: x.index_select(0, order))  # type: ignore[misc]
        yield shuffled.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]


@dataclass(frozen=True)
class Rollouts(Experience):
    """The policy's own newest steps in environments, prepared once and passed over several times.

    Attributes:
        prepare: ``(networks, batch, ended, config) -> batch``, adds values that all passes share, such as advantages;
            ``ended`` ``[T, N]`` is 1 where a recursion over time stops.
        n_passes: name of the config field with the number of passes in minibatches; empty for none, beside ``whole``.
        limit: a metric and the name of the config field with its limit: when the mean of the metric over a pass exceeds
            it, no further pass is made. ``None`` in the field is no limit.
        scheduled: names of config fields with a schedule in ``<name>_schedule``. Where there is one, the value of the
            present rollout is ``batch.extra[name]``, a column: compiled updates read it, and are not compiled anew.
        whole: names of steps that are made first, once, with the whole rollout; the passes make the others.
    """

    prepare: Callable[[Any, Batch, Tensor, Any], Batch]
    n_passes: str = "n_epochs"
    limit: tuple[str, str] | None = None
    scheduled: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    loops = ONLINE
    stores = ("policy_action",)
    on_policy = True
    single_seed = "learns from its own experience, which seeds do not share"
    description = "live environments (its own fresh experience)"

    def batch(self, learner: Learner, drawn: Any) -> Batch:
        hint = ": it learns from its own newest steps, which algo.fit_online(env) collects"
        batch, ended = rollout_batch(check("batch", drawn, Rollout, hint), learner.units, learner.config.gamma)
        batch = self.prepare(learner.nets, batch, ended, learner.config)
        present = {name: _present(learner, name) for name in self.scheduled}
        columns = {name: torch.full_like(batch.reward, x) for name, x in present.items() if x is not None}
        return replace(batch, extra={**batch.extra, **columns}) if columns else batch

    def before(self, learner: Learner, drawn: Any) -> None:
        if isinstance(drawn, Rollout):
            learner.see_rewards(drawn.reward, drawn.is_first, drawn.valid)

    def passes(self, learner: Learner, batch: Batch) -> Passes:
        minibatches = self._sequences if learner.recurrent else self._steps
        metric, field = self.limit or ("", "")
        most = getattr(learner.config, field, None)
        only = None
        if self.whole:
            whole = self._real(learner, batch)
            if len(whole.weight) == 0:
                warnings.warn(
                    f"{learner.name} learned nothing from a rollout of {len(batch.weight)} steps, in which no episode "
                    f"ended: rollout_length is {learner.config.rollout_length}; make it longer than episodes are",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return
            yield Pass(whole, self.whole)
            only = tuple(step.name for step in learner.engine.steps if step.name not in self.whole)
        for _ in range(getattr(learner.config, self.n_passes) if self.n_passes else 0):
            found = []
            for minibatch in minibatches(learner.config, batch):
                metrics = yield Pass(minibatch, only)
                if most is not None:
                    found.append(metrics[metric])
            if most is not None and torch.stack(found).mean() > most:  # the one value that is waited for in a pass
                return

    def _real(self, learner: Learner, batch: Batch) -> Batch:
        """All steps of a rollout; with recurrent networks, as sequences."""
        if learner.recurrent:
            return fold_sequences(batch, learner.config.sequence_length)
        flat, valid = _flat(batch)
        return flat.map(lambda x: x.index_select(0, valid))

    def _sequences(self, config: Any, batch: Batch) -> Iterator[Batch]:
        batch = fold_sequences(batch, config.sequence_length)
        per_batch = max(1, config.batch_size // config.sequence_length)
        for chosen in torch.split(torch.randperm(batch.reward.shape[1]), per_batch):
            index = chosen.to(batch.reward.device)
            state = batch.state and {name: value[index] for name, value in batch.state.items()}
            yield replace(batch.map(lambda x, index=index: x.index_select(1, index)), state=state)  # type: ignore[misc]

    def _steps(self, config: Any, batch: Batch) -> Iterator[Batch]:
        # Each pass reorders the whole rollout once; its minibatches are then slices, without copies.
        flat, valid = _flat(batch)
        order = valid[torch.randperm(len(valid)).to(valid.device)]
        flat, size = flat.map(lambda x: x.index_select(0, order)), config.batch_size
        for start in range(0, len(order), size):
            yield flat.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]

    def updates(self, config: Any, count: int) -> int:
        if not self.n_passes:
            return 0
        return int(count * getattr(config, self.n_passes) // config.batch_size)


def _flat(batch: Batch) -> tuple[Batch, Tensor]:
    """A rollout ``[T, N, …]`` as ``[T * N, …]``, and the numbers of the rows that are to be learned from."""
    flat = replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))
    return flat, flat.weight.nonzero()[:, 0]


def _present(learner: Learner, name: str) -> float | None:
    """The value of a scheduled config field after the updates so far; ``None`` without a schedule."""
    schedule = getattr(learner.config, f"{name}_schedule")
    return None if schedule is None else getattr(learner.config, name) * schedule.share(learner.engine.grad_step)
