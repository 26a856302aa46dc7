"""Players that collect rollouts, and what is learned from beside each of these."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from birl.dataset import ReplayBuffer
from birl.dataset.views import TransitionView
from birl.envs import Step, number_of_environments, single_spaces
from birl.errors import ConfigError, CorruptFileError, DataError
from birl.run.agent_core import (
    AgentCore,
    MeasureTime,
    SelectedActions,
    append_steps,
    check_lanes,
    clip_episodes,
    measure_nothing,
)
from birl.run.fingerprint import dataset_settings
from birl.run.protocols import Environment, ExplorerProtocol, Learner, Rollout, Stateful, Trainable
from birl.run.replay_setup import DEFAULT_BUFFER_LIMIT, buffer_settings, default_buffer
from birl.run.session import SamplerPart
from birl.types import Array, State, Tree, tree_map

ROUNDING: Final = 1e-5
"""How far actions may lie beyond their bounds that were scaled to there and back."""


class RolloutExperience:
    """What is learned from beside each rollout: nothing.

    Attributes:
        buffer: in which rollouts are stored; ``None`` if they are not.
        parts: of checkpoints.
        settings: that a run and its resumption must share.
    """

    def __init__(self) -> None:
        self.buffer: Any = None
        self.parts: dict[str, Stateful] = {}
        self.settings: dict[str, Any] = {}

    def prepare(self, player: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        """A rollout as it is learned from."""
        return rollout

    def replays_due(self) -> int:
        """How many draws of `older` are learned from after a rollout: random, so ask once."""
        return 0

    def sample_replay(self, measure: MeasureTime) -> Any:
        """A draw of older steps."""
        raise NotImplementedError

    def close_episodes(self, lanes: Iterable[int]) -> None:
        """The episodes of some environments are over."""


class _Demonstrations(RolloutExperience):
    """As many steps of demonstrations as a rollout has, drawn anew for each."""

    def __init__(self, shown: Any, source: Any, digested: bool) -> None:
        super().__init__()
        self._source = source
        self.parts = {"demonstrations": SamplerPart(source)}
        self.settings = {"demonstrations": dataset_settings(shown)} if digested else {}

    def prepare(self, player: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        with measure("sample_batch"):
            drawn = self._source.sample(TransitionView(), rollout.valid.size)
        # What is compared with an expert's actions must be what the environment was given, as these are: beyond the
        # bounds, which a Gaussian knows nothing of, there would be none but the policy's.
        return replace(rollout, action=player.actions.clip(rollout.action), expert=drawn)


class _Replays(RolloutExperience):
    """A replay buffer, in which each rollout is stored before it is learned from, and older steps from there."""

    def __init__(self, learner: Learner, buffer: Any, source: Any, digested: bool) -> None:
        super().__init__()
        self._learner, self.buffer, self._source = learner, buffer, source
        self.parts = {"buffer": buffer, "sampler": SamplerPart(source)}
        self.settings = buffer_settings(buffer, digested=digested)

    def prepare(self, player: AgentCore, rollout: Rollout, measure: MeasureTime) -> Rollout:
        """Store a rollout, with actions as environments took them."""
        rollout = self._learner.stored(rollout)
        names = ("observation", "reward", "terminated", "truncated", "next_observation", "extra")
        steps = {name: getattr(rollout, name) for name in names}
        append_steps(self.buffer, {**steps, "action": player.actions.clip(rollout.action), "mask": rollout.valid})
        return rollout

    def replays_due(self) -> int:
        return self._learner.n_replays(self.buffer.transition_count)

    def sample_replay(self, measure: MeasureTime) -> Any:
        with measure("sample_batch"):
            return self._learner.draw(self._source)

    def close_episodes(self, lanes: Iterable[int]) -> None:
        clip_episodes(self.buffer, lanes)


def start_rollouts(
    algorithm: Trainable,
    env: Environment,
    n_steps: int,
    buffer: Any,
    demonstrations: Any,
    *,
    replays: bool,
    digested: bool,
    limit: int = DEFAULT_BUFFER_LIMIT,
    lanes: int | None = None,
) -> RolloutExperience:
    """Begin a run of a built algorithm on rollouts.

    Args:
        algorithm: on-policy algorithm.
        env: environment.
        n_steps: number of steps of the run; 0 if nobody knows.
        buffer: replay buffer with one lane per environment, if older rollouts are learned from as well; by default the
            newest ``limit`` steps are kept.
        demonstrations: dataset of an expert's steps, if these are learned from beside rollouts.
        replays: whether older rollouts are.
        digested: whether the contents of buffer and demonstrations are a part of the settings.
        limit: see ``buffer``; not fewer than replaying begins with.
        lanes: number of environments; by default that of ``env``.

    Raises:
        ConfigError: if the buffer keeps too few steps.
        DataError: if it holds steps that were stored without the policy that chose them.
        ShapeError: if it has another number of lanes.
    """
    learner, n = algorithm.learner, lanes or number_of_environments(env)
    if replays:
        _check_buffer(buffer, algorithm.config, n)
        if buffer is None:
            buffer = default_buffer(algorithm, env, max(limit, _needed(algorithm.config)), lanes=n)
        return _Replays(learner, buffer, learner.begin_run(buffer, n_steps, growing=True, lanes=n), digested)
    if demonstrations is None:
        learner.begin_run(None, n_steps, lanes=n)
        return RolloutExperience()
    algorithm.build_with_dataset(demonstrations)  # checks that they fit
    _check_shown(demonstrations, single_spaces(env)[1])
    return _Demonstrations(demonstrations, learner.begin_run(demonstrations, n_steps, lanes=n), digested)


def _check_shown(demonstrations: Any, space: Any) -> None:
    """Raise `DataError` if demonstrations have actions that the policy could never be taken for an expert by."""
    if not isinstance(space, Box):
        return
    least, most = demonstrations.action_bounds()
    low, high = space.low.ravel(), space.high.ravel()
    beyond = np.flatnonzero((least < low - ROUNDING) | (most > high + ROUNDING))
    if beyond.size:
        i = beyond[0]
        raise DataError(
            f"the demonstrations' actions reach from {least[i]:g} to {most[i]:g} in dimension {i}, beyond the "
            f"environment's bounds [{low[i]:g}, {high[i]:g}], to which the policy's are clipped: it would be told from "
            "the expert by these alone. Clip them as the environment did, or scale them to its units"
        )


def _check_buffer(buffer: Any, config: Any, n: int) -> None:
    """Check a user's replay buffer for rollouts of ``n`` environments."""
    limit = buffer.buffer.limit if isinstance(buffer, ReplayBuffer) else None
    needed = _needed(config)
    if limit is not None and limit < needed:
        raise ConfigError(
            f"the buffer keeps {limit} steps, and older ones are replayed from {needed} stored steps on, so that none "
            f"would ever be: give a buffer with limit >= {needed}, or a smaller replay_start"
        )
    for storage in [] if buffer is None else buffer.reader.storages:
        check_lanes(storage, n)
        if storage.steps.sum() and "extra.policy" not in storage.extra_names:
            raise DataError(
                f"the buffer holds {int(storage.steps.sum())} steps without the policy that chose them, which replays "
                "correct for: give an empty buffer, or one that was filled by this algorithm"
            )


def _needed(config: Any) -> int:
    """Number of stored steps from which on older ones are replayed."""
    return max(config.replay_start, config.batch_size)


class RolloutAgentCore(AgentCore):
    """Collects the next rollout, row by row, and learns from it when it is full.

    Environments are given actions clipped to their bounds; the learner sees them as they were sampled.

    Args:
        algorithm: gives the actor; its configuration gives the length of a rollout: ``rollout_length`` rows, or as many
            as it takes for ``n_episodes`` episodes to end. Of episodes that still run then, the steps are kept for the
            next rollout.
        observation, action_space, explorer: see `AgentCore`.
        beside: what is learned from beside each rollout.

    Attributes:
        cut: whether the rollout taken last is shorter than others, as the end of a run may be.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        explorer: ExplorerProtocol | None = None,
        beside: RolloutExperience | None = None,
    ) -> None:
        super().__init__(algorithm, observation, action_space, greedy=False, explorer=explorer)
        self._beside = beside or RolloutExperience()
        config: Any = algorithm.config
        self._length: int | None = getattr(config, "rollout_length", None)
        self._episodes: int = getattr(config, "n_episodes", 0)
        self._ended, self._taught = 0, False  # episodes in the rows; whether there was a rollout
        self._moving = algorithm.learner if algorithm.learner.units_move else None
        self._rows: list[dict[str, Tree]] = []
        self._at_once = False

    @property
    def rows_left(self) -> int | None:
        """Rows until the rollout is full; ``None`` if it is of whole episodes, however long these are."""
        return None if self._length is None else self._length - len(self._rows)

    @contextlib.contextmanager
    def recording_fragment(self) -> Iterator[None]:
        """Of the steps that are stored inside, none was seen before the actions of all were chosen.

        A running scaler moves with them when they are there. The policy goes on from the last one in the new scale.
        """
        first, self._at_once = len(self._rows), True
        try:
            yield
        finally:
            self._at_once = False
        stored = self._rows[first:]
        if self._moving is not None and stored:
            for row in stored:
                self._moving.see_observations(row["observation"], row["valid"])
            stored[-1]["next_inputs"] = self._moving.in_units(stored[-1]["next_observation"])

    def _environment_actions(self, chosen: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        action = self._apply_explorer(chosen, observation, is_first, step)
        return action, self.actions.clip(action)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        if not step.valid.any():  # only resets: no row
            return
        row = {**selected._asdict(), **step._asdict()}
        del row["returns"]
        if self._moving is not None:
            row["inputs"] = self._moving.in_units(selected.observation)
            if not self._at_once:
                self._moving.see_observations(selected.observation, step.valid)
            row["next_inputs"] = self._moving.in_units(step.next_observation)
        self._rows.append(tree_map(np.array, row))
        self._ended += _ends(row)

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Any]:
        if self.uncounted_steps > 0:
            return
        if self._length is None:
            if last and not self._ended and not self._taught:
                warnings.warn(
                    f"nothing was learned from {len(self._rows)} steps of each environment, in which no episode ended: "
                    "make the run longer than episodes are",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if self._ended >= self._episodes or (last and self._ended):
                yield from self._learned(self._take_episodes(), measure)
        elif len(self._rows) == self._length or last:
            yield from self._learned(self._take(self._length), measure)

    def _learned(self, rollout: Rollout, measure: MeasureTime) -> Iterator[Any]:
        yield self._beside.prepare(self, rollout, measure)
        for _ in range(self._beside.replays_due()):
            yield self._beside.sample_replay(measure)

    def _take(self, length: int) -> Rollout:
        """The rollout so far; the next one begins."""
        rollout = Rollout(**self._columns())
        self.cut = self.cut or len(self._rows) < length
        self._rows, self._ended = [], 0
        return rollout

    def _take_episodes(self) -> Rollout:
        """The episodes that have ended; the others stay."""
        columns = self._columns()
        valid, ends = columns["valid"], columns["terminated"] | columns["truncated"]
        over = np.logical_or.accumulate((ends & valid)[::-1])[::-1]  # the lane's episode ends here or further down
        taken, left = valid & over, valid & ~over
        rows, kept = np.flatnonzero(taken.any(1)), np.flatnonzero(left.any(1))
        self.cut, self._taught = self.cut or self._ended < self._episodes, True
        self._rows = self._rows[kept[0] :] if kept.size else []
        for row, own in zip(self._rows, left[len(left) - len(self._rows) :], strict=True):
            row["valid"] = own
        self._ended = 0
        part = slice(rows[0], rows[-1] + 1)
        return Rollout(**tree_map(lambda column: column[part], {**columns, "valid": taken}))

    def _columns(self) -> dict[str, Tree]:
        try:
            return tree_map(lambda *leaves: np.stack(leaves), *self._rows)  # type: ignore[no-any-return]
        except (ValueError, KeyError) as error:
            raise CorruptFileError(
                f"the rollout began with rows of other shapes ({error}), from a damaged checkpoint: use a copy"
            ) from error

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        over = list(range(self.n) if lanes is None else lanes)
        closed = np.isin(np.arange(self.n), over)
        for row in self._rows[-1:]:
            ended = _ends(row)
            row["truncated"] |= row["valid"] & ~row["terminated"] & closed
            self._ended += _ends(row) - ended
        if not self._rows:
            self._beside.close_episodes(over)

    def get_state(self) -> State:
        columns = self._columns() if self._rows else {}
        return {**super().get_state(), "rows": len(self._rows), "columns": columns, "cut": self.cut}

    def set_state(self, state: State) -> None:
        if state["rows"]:
            flags = dict.fromkeys(("terminated", "truncated", "valid"), np.zeros(self.n, bool))
            like = {"next_observation": self.example, "reward": np.zeros(self.n, np.float32), **flags}
            if self._moving is not None:
                like |= dict.fromkeys(("inputs", "next_inputs"), self._moving.in_units(self.example))
            self._check_rows((state["rows"],), state["columns"], like)
        rows = [tree_map(lambda column, i=i: np.array(column[i]), state["columns"]) for i in range(state["rows"])]
        super().set_state(state)
        self._rows, self.cut = rows, state["cut"]
        self._ended = sum(map(_ends, rows))


def _ends(row: dict[str, Any]) -> int:
    """Number of episodes that end in a row."""
    return int(((row["terminated"] | row["truncated"]) & row["valid"]).sum())
