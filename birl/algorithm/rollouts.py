"""Kinds of experience of algorithms that learn from their own policy's newest steps; others are in `experience`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from birl.algorithm.batches import fold_sequences, rollout_batch, to_batch
from birl.algorithm.experience import ONLINE
from birl.algorithm.learner import EngineUpdate, EngineUpdates, Experience, Learner
from birl.checks import check
from birl.config import AlgorithmConfig
from birl.dataset.minibatch import MiniBatch, SequenceMiniBatch, TransitionMiniBatch
from birl.dataset.reader import MinibatchSource
from birl.dataset.views import SequenceView
from birl.errors import ConfigError, DataError
from birl.models import eval_mode
from birl.preprocessing.units import to_float
from birl.run.protocols import Rollout
from birl.types import Batch


@dataclass(frozen=True)
class Rollouts(Experience):
    """The policy's own newest steps in environments, prepared once and passed over several times.

    Attributes:
        prepare: ``(networks, batch, ended, config) -> batch``, adds values that all passes share, such as advantages;
            ``ended`` ``[T, N]`` is 1 where a recursion over time stops.
        n_passes: name of the config field with the number of passes in minibatches; empty for none: there is one update
            with the whole rollout. The configuration has a field ``rollout_length``, or ``n_episodes`` for rollouts of
            whole episodes.
        limit: a metric and the name of the config field with its limit: when the mean of the metric over a pass exceeds
            it, no further pass is made. ``None`` in the field is no limit.
        scheduled: names of config fields with a schedule in ``<name>_schedule``. Where there is one, the value of the
            present rollout is ``batch.extra[name]``, a column: compiled updates read it, and are not compiled again.
        allows_explorer: see `Experience`. Actions are then learned from as the environments took them.
        whole, last: names of steps that are made first, and after the passes, once, with the whole rollout; the passes
            make the others. With recurrent networks it is given to them as sequences.
        finished: whether `prepare` leaves out the steps of episodes that go on after the rollout. One in which none
            ends is not learned from.
    """

    prepare: Callable[[Any, Batch, Tensor, Any], Batch]
    n_passes: str = "n_epochs"
    limit: tuple[str, str] | None = None
    scheduled: tuple[str, ...] = ()
    allows_explorer: bool = False
    whole: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    finished: bool = False
    loops = ONLINE
    on_policy = True
    single_seed = "learns from its own experience"
    description = "live environments (its own fresh experience)"

    @property
    def stores(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.allows_explorer else ("policy_action",)

    def batch(self, learner: Learner, minibatch: MiniBatch | Rollout) -> Batch:
        hint = ": it learns from its own newest steps, which algo.fit_online(env) collects"
        batch, ended = self.read(learner, check("batch", minibatch, Rollout, hint))
        with eval_mode(learner.nets):  # values and probabilities of the policy as it acted
            batch = self.prepare(learner.nets, batch, ended, learner.config)
        present = {name: _present(learner, name) for name in self.scheduled}
        columns = {name: torch.full_like(batch.reward, x) for name, x in present.items() if x is not None}
        return replace(batch, extra={**batch.extra, **columns}) if columns else batch

    def read(self, learner: Learner, rollout: Rollout) -> tuple[Batch, Tensor]:
        """The rollout ``[T, N, …]`` before it is prepared, and ``ended``."""
        return rollout_batch(rollout, learner.units, learner.config.gamma)

    def minibatches(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        """One shuffled pass over a batch: steps, or with recurrent networks sequences."""
        return (self._sequences if learner.recurrent else self._steps)(learner, batch)

    def before_update(self, learner: Learner, minibatch: MiniBatch | Rollout | Batch) -> None:
        if isinstance(minibatch, Rollout):
            learner.update_reward_statistics(minibatch.reward, minibatch.is_first, minibatch.valid)

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        if self.finished and not batch.weight.any():
            warnings.warn(
                f"{learner.name} learned nothing from a rollout of {len(batch.weight)} steps, in which no episode "
                f"ended: rollout_length is {learner.config.rollout_length}; make it longer than episodes are",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        if self.whole or not self.n_passes:
            yield EngineUpdate(_whole(learner, batch, folded=bool(self.whole)), self.whole or None)
        metric, field = self.limit or ("", "")
        most = getattr(learner.config, field, None)
        names = [step.name for step in learner.engine.steps]
        last = tuple(name for name in names if name in self.last)
        only = tuple(name for name in names if name not in (*self.whole, *last))
        for _ in range(getattr(learner.config, self.n_passes) if self.n_passes else 0):
            found = []
            for minibatch in self.minibatches(learner, batch):
                metrics = yield EngineUpdate(minibatch, only)
                if most is not None:
                    found.append(metrics[metric])
            if most is not None and learner.engine.mean(found) > most:  # the one value that is waited for in a pass
                break
        if last:
            yield EngineUpdate(_whole(learner, batch, folded=True), last)

    def _sequences(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        config = learner.config
        batch = fold_sequences(batch, config.sequence_length)
        per_batch = max(1, config.batch_size // config.sequence_length)
        for chosen in torch.split(torch.randperm(batch.reward.shape[1]), per_batch):
            index = chosen.to(batch.reward.device)
            state = batch.state and {name: value[index] for name, value in batch.state.items()}
            yield replace(batch.map(lambda x, index=index: x.index_select(1, index)), state=state)  # type: ignore[misc]

    def _steps(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        # Each pass reorders the whole rollout once; its minibatches are then slices, without copies.
        flat = replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))
        valid = flat.weight.nonzero()[:, 0]
        order = valid[torch.randperm(len(valid)).to(valid.device)]
        flat, size = flat.map(lambda x: x.index_select(0, order)), learner.config.batch_size
        for start in range(0, len(order), size):
            yield flat.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]

    def expected_updates(self, config: Any, count: int, lanes: int = 1) -> int:
        if not self.n_passes:  # rollouts of whole episodes have lengths of their own, each of which is compiled again
            return count // (config.rollout_length * lanes) if hasattr(config, "rollout_length") else 0
        return int(count * getattr(config, self.n_passes) // config.batch_size)

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        config = learner.config
        _refuse_burn_in(learner)
        if self.n_passes and learner.recurrent and config.rollout_length < config.sequence_length:
            raise ConfigError(
                f"rollout_length is {config.rollout_length} and sequence_length {config.sequence_length}: no sequence "
                "would be whole. Give a longer rollout, or shorter sequences"
            )


def _whole(learner: Learner, batch: Batch, *, folded: bool) -> Batch:
    """All steps ``[T * N, …]`` of a prepared rollout; for recurrent networks ``[T, N, …]``, or folded to sequences."""
    if learner.recurrent and folded:
        return fold_sequences(batch, min(learner.config.sequence_length, len(batch.reward)))
    if learner.recurrent:
        extra = {name: value for name, value in batch.extra.items() if not name.startswith("state.")}
        return replace(batch, extra=extra)
    return replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))


@dataclass(frozen=True)
class DemonstratedRollouts(Rollouts):
    """Rollouts with as many steps of demonstrations, and a discriminator that learns to distinguish them first.

    In ``extra`` a batch has ``expert_observation`` (a tree) and ``expert_action``, sampled for each rollout, and
    ``taken_action``: the rollout's actions as the environment was given them, as those of the expert are. `prepare` is
    called again after the passes of the judging step, whose judgement is the policy's reward; ``ended`` is in
    ``extra``, too. All that the other steps are given is as it is without demonstrations.

    Attributes:
        judge: name of the step. Its minibatches are as those of the other steps: the whole rollout if they have this.
        n_judging_passes: name of the config field with the number of its passes over a rollout.
        judges_next: name of the config field that says whether it also reads where steps led:
            ``<whose>_next_observation`` (a tree) and ``<whose>_discount`` of the ``agent`` and the ``expert`` are in
            ``extra`` then.
    """

    judge: str = field(kw_only=True)
    n_judging_passes: str = field(kw_only=True)
    judges_next: str = field(kw_only=True)
    has_td_errors = False
    needs_demonstrations = True
    description = "live environments (its own fresh experience) and demonstrations"

    def read(self, learner: Learner, rollout: Rollout) -> tuple[Batch, Tensor]:
        if not isinstance(rollout.expert, TransitionMiniBatch):
            raise DataError(
                f"{learner.name} learns from rollouts with demonstrations, which this one does not have: "
                "use fit_online(env, demonstrations=dataset), or give Rollout(…, expert=dataset."
                "sample_transition_batch(T * N))"
            )
        lead = rollout.valid.shape
        batch, ended = super().read(learner, rollout)
        expert = to_batch(rollout.expert, learner.units, learner.config.gamma).map(lambda x: x.unflatten(0, lead))
        columns = {
            "ended": ended,
            "taken_action": learner.units.action(
                rollout.action.reshape(*lead, *learner.spec.actions.storage_spec.shape)
            ),
            "expert_observation": expert.observation,
            "expert_action": expert.action,
        }
        if getattr(learner.config, self.judges_next):
            if rollout.expert.intervals.max() > 1:
                raise ConfigError(
                    f"demonstrations of {int(rollout.expert.intervals.max())} steps at once were minibatch, with "
                    f"{self.judges_next}=True, which compares a state with the next one: give them no transition_picker"
                )
            for whose, steps in (("agent", batch), ("expert", expert)):
                columns[f"{whose}_next_observation"] = steps.next_observation
                columns[f"{whose}_discount"] = steps.discount
        return replace(batch, extra={**batch.extra, **columns}), ended

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        for _ in range(getattr(learner.config, self.n_judging_passes)):
            passed = self.minibatches(learner, batch) if self.n_passes else (_whole(learner, batch, folded=False),)
            for minibatch in passed:
                yield EngineUpdate(minibatch, (self.judge,))
        with eval_mode(learner.nets):
            batch = self.prepare(learner.nets, batch, batch.extra["ended"], learner.config)
        others = tuple(step.name for step in learner.engine.steps if step.name != self.judge)
        policy, metrics = super().engine_updates(learner, batch), None
        with contextlib.suppress(StopIteration):
            while True:
                found, only = policy.send(metrics)  # type: ignore[arg-type]
                metrics = yield EngineUpdate(found, tuple(name for name in others if only is None or name in only))

    def expected_updates(self, config: AlgorithmConfig, count: int, lanes: int = 1) -> int:
        passes, others = getattr(config, self.n_judging_passes), super().expected_updates(config, count, lanes)
        return int(others + (count * passes // config.batch_size if self.n_passes else others * passes))


class Replays(Experience):
    """The policy's own newest steps, and then sequences of older ones from a replay buffer: an update from each.

    With every step the parameters of the policy's distribution are stored that the action came from, for ratios of
    probabilities and divergences: ``policy`` ``[T, B, P]`` in a batch's ``extra``.

    The configuration has ``rollout_length``, the length of sequences also, and ``batch_size``, the number of sequences
    in an update from the buffer; ``replay_ratio``, how many of these there are after each rollout, on average of a
    Poisson distribution (Wang et al. 2017, arXiv:1611.01224, section 3), and ``replay_start``, the number of stored
    steps from which on they are made.
    """

    loops = ONLINE
    stores = ("policy_action",)
    on_policy = True
    replays = True
    one_step = True  # recursions go from step to step: rewards of several would count more than once
    has_td_errors = False
    single_seed = "learns from its own experience"
    description = "live environments: its own fresh experience, and older steps of its own from a replay buffer"

    def sample(self, learner: Learner, source: MinibatchSource) -> MiniBatch:
        return source.sample(SequenceView(learner.config.rollout_length), learner.config.batch_size)

    def batch(self, learner: Learner, minibatch: MiniBatch | Rollout) -> Batch:
        if isinstance(minibatch, SequenceMiniBatch):
            return self._replayed(learner, minibatch)
        hint = ": it learns from its own newest steps, which algo.fit_online(env) collects, and replays them"
        batch, _ = rollout_batch(check("batch", minibatch, Rollout, hint), learner.units, learner.config.gamma)
        policy = to_float(batch.extra["policy"]) if "policy" in batch.extra else _policy_parameters(learner, batch)
        return replace(batch, extra={"policy": policy})

    def _replayed(self, learner: Learner, minibatch: SequenceMiniBatch) -> Batch:
        if "policy" not in minibatch.extra:
            raise DataError(
                f"{learner.name} replays steps with the policy that chose them, which these do not have: give "
                "fit_online(env) an empty buffer, or one that it has filled before"
            )
        batch, units = to_batch(minibatch, learner.units, learner.config.gamma), learner.units
        if not units.actions.discrete:  # before any clipping
            chosen = units.tensor(minibatch.extra["policy_action"])
            batch = replace(batch, action=chosen.reshape(*batch.reward.shape, *units.actions.shape))
        return replace(batch, extra={"policy": to_float(units.tensor(minibatch.extra["policy"]))})

    def before_update(self, learner: Learner, minibatch: MiniBatch | Rollout | Batch) -> None:
        if isinstance(minibatch, Rollout):
            learner.update_reward_statistics(minibatch.reward, minibatch.is_first, minibatch.valid)

    def prepare_for_replay(self, learner: Learner, rollout: Rollout) -> Rollout:
        policy = self.batch(learner, rollout).extra["policy"]
        return replace(rollout, extra={**rollout.extra, "policy": policy.cpu().numpy()})

    def n_replays(self, config: Any, count: int) -> int:
        if count < max(config.replay_start, config.batch_size):
            return 0
        return int(torch.poisson(torch.tensor(float(config.replay_ratio))))

    def expected_updates(self, config: Any, count: int, lanes: int = 1) -> int:
        return int(count / (config.rollout_length * lanes) * (1 + config.replay_ratio))

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        _refuse_burn_in(learner)


def _refuse_burn_in(learner: Learner) -> None:
    """Raise `ConfigError` if steps of rollouts are to warm up recurrent states, which are known there."""
    if learner.config.burn_in:
        raise ConfigError(
            f"burn_in is {learner.config.burn_in}, but {learner.name} learns from rollouts, which begin where episodes "
            "do or with the recurrent states that the policy had: leave burn_in at 0"
        )


def _policy_parameters(learner: Learner, batch: Batch) -> Tensor:
    """Parameters ``[T, N, P]`` of the present policy where the steps of a batch were chosen."""
    with torch.no_grad(), eval_mode(learner.nets):
        return learner.nets.actor(batch.inputs).parameters()  # type: ignore[no-any-return]


def _present(learner: Learner, name: str) -> float | None:
    """The value of a scheduled config field after the updates so far; ``None`` without a schedule."""
    schedule = getattr(learner.config, f"{name}_schedule")
    return None if schedule is None else getattr(learner.config, name) * schedule.share(learner.engine.grad_step)
