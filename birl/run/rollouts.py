"""Agents that collect rollouts, and the data that updates use in addition to a rollout."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from birl.dataset import ReplayBuffer, ReplayBufferBase
from birl.dataset.minibatch import MiniBatch
from birl.dataset.resolution import FIRST_LOOK, warn_of_lost_rows
from birl.dataset.views import TransitionView
from birl.envs import Step, number_of_environments, single_spaces
from birl.errors import ConfigError, CorruptFileError, DataError
from birl.logging.logger import LOG
from birl.run.agent_core import (
    DEFAULT_BUFFER_LIMIT,
    AgentCore,
    MeasureTime,
    SelectedActions,
    append_steps,
    check_lanes,
    clip_episodes,
    default_buffer,
    determine_shapes,
    info_features,
    measure_nothing,
)
from birl.run.fingerprint import buffer_settings, dataset_settings
from birl.run.protocols import (
    ExplorerProtocol,
    Learner,
    LearnerConfig,
    Minibatch,
    ReplaySource,
    Rollout,
    Stateful,
    StepBuffer,
    Trainable,
)
from birl.run.session import SamplerPart
from birl.types import Array, Environment, State, Tree, tree_leaves, tree_map

ROUNDING: Final = 1e-5
"""Tolerance at the bounds for actions that were scaled and scaled back."""


class RolloutExperience:
    """The data that an update uses in addition to a rollout. This base class adds none.

    Attributes:
        buffer: replay buffer that rollouts are stored in; ``None`` if they are not.
        parts: parts of a checkpoint, by name.
        settings: settings that a run and its resumption must share.
    """

    def __init__(self) -> None:
        self.buffer: StepBuffer | None = None
        self.parts: dict[str, Stateful] = {}
        self.settings: dict[str, Any] = {}

    def prepare(self, agent: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        """Return a rollout with the additional data."""
        return rollout

    def replays_due(self) -> int:
        """Return the number of replay updates after a rollout. It is random: call this once."""
        return 0

    def sample_replay(self, measure: MeasureTime) -> MiniBatch:
        """Sample a minibatch of older steps."""
        raise NotImplementedError

    def close_episodes(self, lanes: Iterable[int]) -> None:
        """End the running episodes of some environments."""


class _WithDemonstrations(RolloutExperience):
    """Experience that adds demonstrations: it samples one transition of them for each transition of a rollout."""

    def __init__(self, demonstrations: ReplayBufferBase, source: ReplaySource, digested: bool) -> None:
        super().__init__()
        self._source = source
        self.parts = {"demonstrations": SamplerPart(source)}
        self.settings = {"demonstrations": dataset_settings(demonstrations)} if digested else {}

    def prepare(self, agent: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        with measure("sample_batch"):
            expert = self._source.sample(TransitionView(), rollout.valid.size)
        # Actions are clipped to the bounds, as for the environment and as the expert's are. Otherwise, every action
        # beyond the bounds would reveal that it was sampled from a Gaussian policy.
        return replace(rollout, action=agent.actions.clip(rollout.action), expert=expert)


class _WithReplay(RolloutExperience):
    """Experience that stores each rollout in a replay buffer before its update, and samples older steps from there."""

    def __init__(self, learner: Learner, buffer: StepBuffer, source: ReplaySource, digested: bool) -> None:
        super().__init__()
        self._learner, self._buffer, self._source = learner, buffer, source
        self.buffer = buffer
        self.parts = {"buffer": buffer, "sampler": SamplerPart(source)}
        self.settings = buffer_settings(buffer, digested=digested)

    def prepare(self, agent: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        """Store a rollout with the actions that the environments received."""
        rollout = self._learner.prepare_for_replay(rollout)
        names = ("observation", "reward", "terminated", "truncated", "next_observation", "extra")
        steps = {name: getattr(rollout, name) for name in names}
        append_steps(self._buffer, {**steps, "action": agent.actions.clip(rollout.action), "mask": rollout.valid})
        return rollout

    def replays_due(self) -> int:
        return self._learner.n_replays(self._buffer.transition_count)

    def sample_replay(self, measure: MeasureTime) -> MiniBatch:
        with measure("sample_batch"):
            return self._learner.sample(self._source)

    def close_episodes(self, lanes: Iterable[int]) -> None:
        clip_episodes(self._buffer, lanes)


def report_short_rollouts(algorithm: Trainable, n_steps: int, n: int) -> None:
    """Log a warning if a run, or a rollout, is shorter than the configuration says."""
    config: Any = algorithm.config
    steps = n * getattr(config, "rollout_length", 0)
    if 0 < n_steps < steps:
        LOG.warning(
            "n_steps=%d is less than a rollout of %d steps (rollout_length=%d in %d environments): the run learns only "
            "once, at its end",
            *(n_steps, steps, config.rollout_length, n),
        )
    if getattr(getattr(algorithm, "learns_from", None), "n_passes", "") and 0 < steps < config.batch_size:
        LOG.warning(
            "batch_size=%d is more than a rollout of %d steps (rollout_length=%d in %d environments): each minibatch "
            "is a whole rollout",
            *(config.batch_size, steps, config.rollout_length, n),
        )


def start_rollouts(
    algorithm: Trainable,
    env: Environment,
    n_steps: int,
    buffer: StepBuffer | None,
    demonstrations: ReplayBufferBase | None,
    *,
    replays: bool,
    digested: bool,
    limit: int = DEFAULT_BUFFER_LIMIT,
    lanes: int | None = None,
) -> RolloutExperience:
    """Start a run of a built algorithm on rollouts.

    Args:
        algorithm: on-policy algorithm.
        env: environment.
        n_steps: number of steps of the run; 0 if unknown.
        buffer: replay buffer with one lane per environment, if older rollouts are replayed; by default one of the
            newest ``limit`` steps.
        demonstrations: dataset of an expert's steps, for algorithms that compare rollouts with it.
        replays: whether older rollouts are replayed.
        digested: whether the settings include a digest of the data that checkpoints do not hold.
        limit: see ``buffer``; at least the number of steps that replaying starts with.
        lanes: number of environments; by default the number in ``env``.

    Raises:
        ConfigError: if the buffer keeps too few steps.
        DataError: if the buffer holds steps without data of the policy that selected them, or demonstrations outside of
            the action space.
        ShapeError: if the buffer has another number of lanes.
    """
    learner, n = algorithm.learner, lanes or number_of_environments(env)
    if replays:
        if buffer is not None:
            determine_shapes(buffer, algorithm, env, n)
            learner.check_compatible(info_features(buffer))
        _check_buffer(buffer, algorithm.config, n)
        if buffer is None:
            buffer = default_buffer(algorithm, env, max(limit, _steps_before_replay(algorithm.config)), lanes=n)
        return _WithReplay(learner, buffer, learner.start_run(buffer, n_steps, growing=True, lanes=n), digested)
    if demonstrations is None:
        learner.start_run(None, n_steps, lanes=n)
        return RolloutExperience()
    algorithm.build_with_dataset(demonstrations)  # checks that they fit
    _check_demonstrations(demonstrations, single_spaces(env)[1])
    return _WithDemonstrations(demonstrations, learner.start_run(demonstrations, n_steps, lanes=n), digested)


def _check_demonstrations(demonstrations: ReplayBufferBase, space: Space[Any]) -> None:
    """Raise `DataError` if demonstrations have actions beyond the environment's bounds."""
    if not isinstance(space, Box):
        return
    least, most = demonstrations.action_bounds()
    low, high = space.low.ravel(), space.high.ravel()
    beyond = np.flatnonzero((least < low - ROUNDING) | (most > high + ROUNDING))
    if beyond.size:
        i = beyond[0]
        raise DataError(
            f"the demonstrations' actions reach from {least[i]:g} to {most[i]:g} in dimension {i}, beyond the "
            f"environment's bounds [{low[i]:g}, {high[i]:g}], to which the policy's are clipped: these alone would "
            "show which actions are the expert's. Clip them as the environment did, or scale them to its units"
        )


def _check_buffer(buffer: StepBuffer | None, config: LearnerConfig, n: int) -> None:
    """Raise an error if a user's replay buffer cannot store rollouts of ``n`` environments."""
    limit = buffer.buffer.limit if isinstance(buffer, ReplayBuffer) else None
    needed = _steps_before_replay(config)
    if limit is not None and limit < needed:
        raise ConfigError(
            f"the buffer keeps {limit} steps, but replaying starts with {needed} stored steps and would never start: "
            f"give a buffer with limit >= {needed}, or a smaller replay_start"
        )
    for storage in [] if buffer is None else buffer.reader.storages:
        check_lanes(storage, n)
        if storage.steps.sum() and "extra.policy" not in storage.extra_names:
            raise DataError(
                f"the buffer holds {int(storage.steps.sum())} steps without the policy that selected them, which "
                "replays correct for: give an empty buffer, or one that was filled by this algorithm"
            )


def _steps_before_replay(config: LearnerConfig) -> int:
    """Return the number of stored steps at which replaying starts."""
    return max(getattr(config, "replay_start", 0), config.batch_size)


class RolloutAgentCore(AgentCore):
    """Agent core that collects rollouts row by row. A full rollout is the input of an update.

    Environments receive actions clipped to their bounds; the rollout holds the actions as they were sampled.

    Args:
        algorithm: algorithm that acts. Its configuration sets the length of a rollout: ``rollout_length`` rows, or the
            rows until ``n_episodes`` episodes have ended. Steps of running episodes are kept for the next rollout. With
            ``end_with_episode``, a rollout of one environment also ends where an episode ends.
        observation, action_space, explorer: see `AgentCore`.
        experience: the additional data of the updates.

    Attributes:
        cut: whether the last rollout was shorter than others, for example at the end of a run.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        explorer: ExplorerProtocol | None = None,
        experience: RolloutExperience | None = None,
    ) -> None:
        super().__init__(algorithm, observation, action_space, greedy=False, explorer=explorer)
        self._experience = experience or RolloutExperience()
        config = algorithm.config
        self._length: int | None = getattr(config, "rollout_length", None)
        self._episodes: int = getattr(config, "n_episodes", 0)
        self._end_with_episode: bool = getattr(config, "end_with_episode", False)
        self._n_ended, self._has_rollout = 0, False  # episodes that ended in the rows; whether there was a rollout
        self._scaling = algorithm.learner if algorithm.learner.running_observation_scaler else None
        self._rows: list[dict[str, Tree]] = []
        self._in_fragment = False
        # observations whose resolution is looked at once there are enough
        self._first: list[Tree] | None = [] if self._experience.buffer is None else None

    @property
    def rows_left(self) -> int | None:
        """Number of rows until the rollout is full; ``None`` if rollouts consist of whole episodes."""
        return None if self._length is None else self._length - len(self._rows)

    @contextlib.contextmanager
    def recording_fragment(self) -> Iterator[None]:
        """Return a context for the steps of a fragment, whose actions were all selected before any step was recorded.

        A running scaler is updated at the end of the context. The policy then continues with the new scale.
        """
        first, self._in_fragment = len(self._rows), True
        try:
            yield
        finally:
            self._in_fragment = False
        stored = self._rows[first:]
        if self._scaling is not None and stored:
            for row in stored:
                self._scaling.update_observation_statistics(row["observation"], row["valid"])
            stored[-1]["next_inputs"] = self._scaling.scaled_observation(stored[-1]["next_observation"])

    def _environment_actions(self, action: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        action = self._apply_explorer(action, observation, is_first, step)
        return action, self.actions.clip(action)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        if not np.count_nonzero(step.valid):  # only resets: no row
            return
        row = {**selected._asdict(), **step.columns()}
        if self._scaling is not None:
            row["inputs"] = self._scaling.scaled_observation(selected.observation)
            if not self._in_fragment:
                self._scaling.update_observation_statistics(selected.observation, step.valid)
            row["next_inputs"] = self._scaling.scaled_observation(step.next_observation)
        self._rows.append(tree_map(np.array, row))
        self._n_ended += _count_ends(row)

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Minibatch]:
        if self.uncounted_steps > 0:
            return
        if self._length is None:
            if last and not self._n_ended and not self._has_rollout:
                warnings.warn(
                    f"nothing was learned from {len(self._rows)} steps of each environment, because no episode ended: "
                    "make the run longer than the episodes",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if self._n_ended >= self._episodes or (last and self._n_ended):
                yield from self._inputs(self._pop_episodes(), measure)
        elif len(self._rows) >= self._length or last or self._ends_early():
            yield from self._inputs(self._pop_rollout(self._length, last), measure)

    def _inputs(self, rollout: Rollout, measure: MeasureTime) -> Iterator[Minibatch]:
        """Yield a rollout, and minibatches of older steps that are due after it."""
        self._look_at_resolution(rollout)
        yield self._experience.prepare(self, rollout, measure)
        for _ in range(self._experience.replays_due()):
            yield self._experience.sample_replay(measure)

    def _look_at_resolution(self, rollout: Rollout) -> None:
        """Warn of observations whose resolution float32 loses, from the first rollouts."""
        if self._first is None:
            return
        self._first.append(tree_map(lambda leaf: leaf[rollout.valid], rollout.observation))
        if sum(len(next(tree_leaves(rows))) for rows in self._first) >= FIRST_LOOK:
            rows, self._first = tree_map(lambda *leaves: np.concatenate(leaves), *self._first), None
            warn_of_lost_rows(rows)

    def _ends_early(self) -> bool:
        """Return whether the rollout ends because the episode of the only environment has ended."""
        return self._end_with_episode and self.n == 1 and bool(self._rows) and _count_ends(self._rows[-1]) > 0

    def _pop_rollout(self, length: int, last: bool) -> Rollout:
        """Return the rollout so far, and start the next one."""
        rollout = Rollout(**self._columns())
        self.cut = self.cut or (len(self._rows) < length and last and not self._ends_early())
        self._rows, self._n_ended = [], 0
        return rollout

    def _pop_episodes(self) -> Rollout:
        """Return the episodes that have ended, and keep the others."""
        columns = self._columns()
        valid, ends = columns["valid"], columns["terminated"] | columns["truncated"]
        over = np.logical_or.accumulate((ends & valid)[::-1])[::-1]  # the lane's episode ends here or later
        taken, left = valid & over, valid & ~over
        rows, kept = np.flatnonzero(taken.any(1)), np.flatnonzero(left.any(1))
        self.cut, self._has_rollout = self.cut or self._n_ended < self._episodes, True
        self._rows = self._rows[kept[0] :] if kept.size else []
        for row, own in zip(self._rows, left[len(left) - len(self._rows) :], strict=True):
            row["valid"] = own
        self._n_ended = 0
        part = slice(rows[0], rows[-1] + 1)
        return Rollout(**tree_map(lambda column: column[part], {**columns, "valid": taken}))

    def _columns(self) -> dict[str, Tree]:
        try:
            return tree_map(lambda *leaves: np.stack(leaves), *self._rows)  # type: ignore[no-any-return]
        except (ValueError, KeyError) as error:
            raise CorruptFileError(
                f"the rollout has rows of different shapes ({error}), from a damaged checkpoint: use a copy"
            ) from error

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        over = list(range(self.n) if lanes is None else lanes)
        closed = np.isin(np.arange(self.n), over)
        for row in self._rows[-1:]:
            ended = _count_ends(row)
            row["truncated"] |= row["valid"] & ~row["terminated"] & closed
            self._n_ended += _count_ends(row) - ended
        if not self._rows:
            self._experience.close_episodes(over)

    def get_state(self) -> State:
        columns = self._columns() if self._rows else {}
        return {**super().get_state(), "rows": len(self._rows), "columns": columns, "cut": self.cut}

    def set_state(self, state: State) -> None:
        if state["rows"]:
            flags = dict.fromkeys(("terminated", "truncated", "valid"), np.zeros(self.n, bool))
            like = {"next_observation": self.example, "reward": np.zeros(self.n, np.float32), **flags}
            if self._scaling is not None:
                like |= dict.fromkeys(("inputs", "next_inputs"), self._scaling.scaled_observation(self.example))
            self._check_rows((state["rows"],), state["columns"], like)
        rows = [tree_map(lambda column, i=i: np.array(column[i]), state["columns"]) for i in range(state["rows"])]
        super().set_state(state)
        self._rows, self.cut = rows, state["cut"]
        self._n_ended = sum(map(_count_ends, rows))


def _count_ends(row: dict[str, Tree]) -> int:
    """Count the episodes that end in a row."""
    return int(np.count_nonzero((row["terminated"] | row["truncated"]) & row["valid"]))
