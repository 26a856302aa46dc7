"""Experience of algorithms that learn from the newest steps of their own policy. See also `experience`."""

from __future__ import annotations

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
from birl.incompatible import check_compatible
from birl.models import eval_mode
from birl.preprocessing.units import to_float
from birl.run.protocols import Rollout
from birl.types import Batch


@dataclass(frozen=True)
class Rollouts(Experience):
    """The newest steps of the policy in environments, prepared once and used in several passes.

    Attributes:
        prepare: ``(networks, batch, ended, config) -> batch``; adds values that all passes share, such as advantages.
            ``ended`` ``[T, N]`` is 1 where a recursion over time stops.
        n_passes: name of the config field with the number of passes in minibatches. If it is empty, there is one update
            with the whole rollout. The configuration has a field ``rollout_length``, or ``n_episodes`` for rollouts of
            whole episodes.
        limit: a metric and the name of the config field with its limit. The passes stop after one in which the mean of
            the metric exceeds the limit. ``None`` in the field means no limit.
        scheduled: names of config fields with a schedule in ``<name>_schedule``. If the schedule is set, the column
            ``batch.extra[name]`` has the current value, so that compiled updates need not be compiled again.
        allows_explorer: see `Experience`. The algorithm then learns from actions as the environments received them.
        whole, last: names of steps that are made once with the whole rollout: before the passes, and after them. The
            passes make the other steps. For recurrent networks the rollout is folded to sequences.
        finished: whether `prepare` leaves out the steps of episodes that continue after the rollout. A rollout in which
            no episode ends is skipped.
        single_states: see `Experience`.
        metrics: ``batch -> metrics`` of a prepared rollout, computed once for all passes.
    """

    prepare: Callable[[Any, Batch, Tensor, Any], Batch]
    n_passes: str = "n_epochs"
    limit: tuple[str, str] | None = None
    scheduled: tuple[str, ...] = ()
    allows_explorer: bool = False
    whole: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    finished: bool = False
    single_states: str = ""
    metrics: Callable[[Batch], dict[str, Tensor]] | None = None
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
        with eval_mode(learner.nets):  # the policy acted in evaluation mode
            batch = self.prepare(learner.nets, batch, ended, learner.config)
        scheduled = {name: _scheduled_value(learner, name) for name in self.scheduled}
        columns = {name: torch.full_like(batch.reward, x) for name, x in scheduled.items() if x is not None}
        return replace(batch, extra={**batch.extra, **columns}) if columns else batch

    def read(self, learner: Learner, rollout: Rollout) -> tuple[Batch, Tensor]:
        """Return the rollout ``[T, N, …]`` before it is prepared, and ``ended``."""
        return rollout_batch(rollout, learner.units, learner.config.gamma)

    def minibatches(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        """Yield the minibatches of one shuffled pass: steps, or sequences for recurrent networks."""
        return (self._sequences if learner.recurrent else self._steps)(learner, batch)

    def policy_steps(self, learner: Learner) -> list[str]:
        """Return the names of the steps that learn from prepared rollouts, in order."""
        return [step.name for step in learner.engine.steps]

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        if self.finished and not batch.weight.any():
            warnings.warn(
                f"{learner.name} learned nothing from a rollout of {len(batch.weight)} steps, in which no episode "
                f"ended: rollout_length is {learner.config.rollout_length}; make it longer than the episodes",
                RuntimeWarning,
                stacklevel=2,
            )
            return {}
        names = self.policy_steps(learner)
        if self.whole or not self.n_passes:
            yield EngineUpdate(_whole(learner, batch, folded=bool(self.whole)), self.whole or tuple(names))
        metric, field = self.limit or ("", "")
        limit = getattr(learner.config, field, None)
        last = tuple(name for name in names if name in self.last)
        only = tuple(name for name in names if name not in (*self.whole, *last))
        for _ in range(getattr(learner.config, self.n_passes) if self.n_passes else 0):
            values = []
            for minibatch in self.minibatches(learner, batch):
                metrics = yield EngineUpdate(minibatch, only)
                if limit is not None:
                    values.append(metrics[metric])
            if limit is not None and learner.engine.mean(values) > limit:  # the only wait for the device in a pass
                break
        if last:
            yield EngineUpdate(_whole(learner, batch, folded=True), last)
        return {} if self.metrics is None else self.metrics(batch)

    def _sequences(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        config = learner.config
        batch = fold_sequences(batch, config.sequence_length)
        per_batch = max(1, config.batch_size // config.sequence_length)
        for indices in torch.split(torch.randperm(batch.reward.shape[1]), per_batch):
            index = indices.to(batch.reward.device)
            state = batch.state and {name: value[index] for name, value in batch.state.items()}
            yield replace(batch.map(lambda x, index=index: x.index_select(1, index)), state=state)  # type: ignore[misc]

    def _steps(self, learner: Learner, batch: Batch) -> Iterator[Batch]:
        # Each pass reorders the whole rollout once, so that its minibatches are slices without copies.
        flat = replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))
        valid = flat.weight.nonzero()[:, 0]
        order = valid[torch.randperm(len(valid)).to(valid.device)]
        flat, size = flat.map(lambda x: x.index_select(0, order)), learner.config.batch_size
        for start in range(0, len(order), size):
            yield flat.map(lambda x, start=start: x[start : start + size])  # type: ignore[misc]

    def expected_updates(self, config: Any, count: int, lanes: int = 1) -> int:
        if not self.n_passes:  # rollouts that end with episodes differ in length, and each length is compiled again
            if lanes == 1 and getattr(config, "end_with_episode", False):
                return 0
            return count // (config.rollout_length * lanes) if hasattr(config, "rollout_length") else 0
        return int(count * getattr(config, self.n_passes) // config.batch_size)

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        config = learner.config
        _refuse_burn_in(learner)
        if self.n_passes and learner.recurrent and config.rollout_length < config.sequence_length:
            raise ConfigError(
                f"rollout_length is {config.rollout_length} and sequence_length {config.sequence_length}: no sequence "
                "would be complete. Give a longer rollout, or shorter sequences"
            )


def _whole(learner: Learner, batch: Batch, *, folded: bool) -> Batch:
    """Return a prepared rollout as steps ``[T * N, …]``; for recurrent networks as ``[T, N, …]``, or as sequences."""
    if learner.recurrent and folded:
        return fold_sequences(batch, min(learner.config.sequence_length, len(batch.reward)))
    if learner.recurrent:
        extra = {name: value for name, value in batch.extra.items() if not name.startswith("state.")}
        return replace(batch, extra=extra)
    return replace(batch, is_first=None, state=None).map(lambda x: x.flatten(0, 1))


@dataclass(frozen=True)
class DemonstratedRollouts(Rollouts):
    """Rollouts with the same number of demonstration steps, and a discriminator that is trained before the policy.

    A batch has in ``extra`` the columns ``expert_observation`` (a tree) and ``expert_action``, sampled for each
    rollout; ``taken_action``, the rollout's actions as the environment received them, like the expert's; and ``ended``.
    After the discriminator's passes, `prepare` is called again to replace rewards by the discriminator's output. The
    other steps see the same columns as without demonstrations.

    Attributes:
        discriminator_step: name of the step that trains the discriminator, with the same minibatches as the other
            steps, or the whole rollout.
        n_discriminator_passes: name of the config field with the number of its passes over a rollout.
        uses_next: name of the config field that is true if the discriminator also reads next states. ``extra`` then has
            ``<source>_next_observation`` (a tree) and ``<source>_discount`` for the sources ``agent`` and ``expert``.
    """

    discriminator_step: str = field(kw_only=True)
    n_discriminator_passes: str = field(kw_only=True)
    uses_next: str = field(kw_only=True)
    has_td_errors = False
    needs_demonstrations = True
    description = "live environments (its own fresh experience) and demonstrations"

    def policy_steps(self, learner: Learner) -> list[str]:
        return [name for name in super().policy_steps(learner) if name != self.discriminator_step]

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
        if getattr(learner.config, self.uses_next):
            if rollout.expert.intervals.max() > 1:
                raise ConfigError(
                    f"the demonstrations have transitions of {int(rollout.expert.intervals.max())} steps, but "
                    f"{self.uses_next}=True compares each state with the next one: leave out their transition_picker"
                )
            for source, steps in (("agent", batch), ("expert", expert)):
                columns[f"{source}_next_observation"] = steps.next_observation
                columns[f"{source}_discount"] = steps.discount
        return replace(batch, extra={**batch.extra, **columns}), ended

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        for _ in range(getattr(learner.config, self.n_discriminator_passes)):
            batches = self.minibatches(learner, batch) if self.n_passes else (_whole(learner, batch, folded=False),)
            for minibatch in batches:
                yield EngineUpdate(minibatch, (self.discriminator_step,))
        with eval_mode(learner.nets):
            batch = self.prepare(learner.nets, batch, batch.extra["ended"], learner.config)
        return (yield from super().engine_updates(learner, batch))

    def expected_updates(self, config: AlgorithmConfig, count: int, lanes: int = 1) -> int:
        passes, others = getattr(config, self.n_discriminator_passes), super().expected_updates(config, count, lanes)
        return int(others + (count * passes // config.batch_size if self.n_passes else others * passes))


class Replays(Experience):
    """One update from the newest steps of the policy, then updates from sequences of older steps in a replay buffer.

    Each step is stored with the parameters of the distribution that its action was sampled from, for ratios of
    probabilities and divergences: ``policy`` ``[T, B, P]`` in a batch's ``extra``.

    The configuration has these fields:

    - ``rollout_length``: length of rollouts and sequences.
    - ``batch_size``: number of sequences in an update from the buffer.
    - ``replay_ratio``: mean number of updates from the buffer after each rollout, which is Poisson distributed (Wang et
      al. 2017, arXiv:1611.01224, section 3).
    - ``replay_start``: number of stored steps from which these updates start.
    """

    loops = ONLINE
    stores = ("policy_action",)
    on_policy = True
    replays = True
    one_step = True  # recursions over single steps would count rewards of n-step returns repeatedly
    has_td_errors = False
    single_seed = "learns from its own experience"
    description = "live environments: its own fresh experience, and older steps of its own from a replay buffer"

    def sample(self, learner: Learner, source: MinibatchSource) -> MiniBatch:
        return source.sample(SequenceView(learner.config.rollout_length), learner.config.batch_size)

    def batch(self, learner: Learner, minibatch: MiniBatch | Rollout) -> Batch:
        if isinstance(minibatch, SequenceMiniBatch):
            return self._replay_batch(learner, minibatch)
        hint = ": it learns from its own newest steps, which algo.fit_online(env) collects, and replays them"
        batch, _ = rollout_batch(check("batch", minibatch, Rollout, hint), learner.units, learner.config.gamma)
        policy = to_float(batch.extra["policy"]) if "policy" in batch.extra else _policy_parameters(learner, batch)
        return replace(batch, extra={"policy": policy})

    def _replay_batch(self, learner: Learner, minibatch: SequenceMiniBatch) -> Batch:
        if "policy" not in minibatch.extra:
            raise DataError(
                f"{learner.name} replays steps with the parameters of their policy, which these steps lack: give "
                "fit_online(env) an empty buffer, or one that it has filled before"
            )
        batch, units = to_batch(minibatch, learner.units, learner.config.gamma), learner.units
        if not units.actions.discrete:
            unclipped = units.tensor(minibatch.extra["policy_action"])
            batch = replace(batch, action=unclipped.reshape(*batch.reward.shape, *units.actions.shape))
        return replace(batch, extra={"policy": to_float(units.tensor(minibatch.extra["policy"]))})

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
    """Raise `ConfigError` if ``burn_in`` is set: rollouts contain the recurrent states."""
    if learner.config.burn_in:
        text = f"{learner.name}, which learns from rollouts,"
        check_compatible({"burn_in": f"burn_in={learner.config.burn_in}", "rollouts": text})


def _policy_parameters(learner: Learner, batch: Batch) -> Tensor:
    """Return parameters ``[T, N, P]`` of the current policy at the observations of a batch."""
    with torch.no_grad(), eval_mode(learner.nets):
        return learner.nets.actor(batch.inputs).parameters()  # type: ignore[no-any-return]


def _scheduled_value(learner: Learner, name: str) -> float | None:
    """Return the current value of a scheduled config field; ``None`` without a schedule."""
    schedule = getattr(learner.config, f"{name}_schedule")
    return None if schedule is None else getattr(learner.config, name) * schedule.share(learner.engine.grad_step)
