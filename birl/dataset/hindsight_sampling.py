"""Hindsight: steps are learned from as if their goals had been states that were reached later."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from birl.checks import check
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.flags import FINAL, NO_NEXT, NO_TRANSITION, TERMINATED, UNKNOWN
from birl.dataset.minibatch import Rows, SequenceMiniBatch, TransitionMiniBatch
from birl.dataset.sampling import Complete, Generators, Sampler, Uniform
from birl.dataset.storage import Storage
from birl.dataset.transitions import BasicTransitionPicker, MultiStepTransitionPicker
from birl.dataset.views import M, SequenceView, View
from birl.errors import ConfigError, DataError, NonFiniteError, ShapeError, UnsupportedError
from birl.types import Array, Leaf, State, tree_map

Judge = Callable[[Array, Array, dict[str, Any]], Any]
"""``(achieved_goal [n, …], desired_goal [n, …], info) -> [n]``, as ``compute_reward`` of Gymnasium's ``GoalEnv``."""

ACHIEVED: Final = "observation.achieved_goal"
DESIRED: Final = "observation.desired_goal"
STRATEGIES: Final = ("future", "final", "episode")


class HindsightSampler(Sampler):
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495).

    For observations of Gymnasium's ``GoalEnv``: dicts with ``achieved_goal`` and ``desired_goal``. Each drawn step
    keeps its goal with probability ``1 / (k + 1)``; else it gets a goal that was achieved in its episode, and its
    reward is computed for that one (section 3.3, algorithm 1). Stored steps stay as they are, so each draw finds a new
    goal. Steps of the episode that is running are drawn, too, with the goals achieved so far.

    Over several steps (`birl.dataset.MultiStepTransitionPicker`) every reward is computed for the new goal. In a
    sequence all steps have the same goal, achieved after the first trained one.

    Args:
        compute_reward: ``(achieved_goal [n, …], desired_goal [n, …], info) -> [n]``; ``info`` is an empty dict. That of
            the environment, ``env.unwrapped.compute_reward``, if it takes arrays of many goals.
        strategy: where goals come from: ``"future"``, any state after the step; ``"final"``, the last state;
            ``"episode"``, any state.
        k: number of steps with other goals for each one with its own, above 0. The paper takes 4, with ``"future"``.
        compute_terminated: likewise, whether the episode ends by reaching ``achieved_goal``; or ``False`` for all goals
            at once. Without it steps terminate where they did; give it where reaching the goal ends an episode.
        sampler: chooses the steps; `birl.dataset.Uniform` if ``None``.

    Raises:
        ConfigError: if an argument is not allowed, or the dataset's observations have no goals.
    """

    def __init__(
        self,
        compute_reward: Judge,
        strategy: str = "future",
        k: float = 4,
        *,
        compute_terminated: Judge | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        for name, function in (("compute_reward", compute_reward), ("compute_terminated", compute_terminated)):
            if not callable(function) and not (function is None and name == "compute_terminated"):
                raise ConfigError(
                    f"{name} is {function!r:.80}; it must be a function (achieved_goal, desired_goal, info) of arrays, "
                    f"such as env.unwrapped.{name}"
                )
        self.strategy = check("strategy", strategy, str, choices=STRATEGIES)
        self.k = float(check("k", k, float, above=0))
        self.sampler = check("sampler", Uniform() if sampler is None else sampler, Sampler)
        if isinstance(self.sampler, HindsightSampler):
            raise ConfigError("sampler is a HindsightSampler, too; goals are replaced once: give one that draws steps")
        self._reward, self._terminated = compute_reward, compute_terminated
        self._episodes, self._agrees = _Episodes(), False

    def __deepcopy__(self, memo: Any) -> HindsightSampler:
        """A copy that asks the same functions: they may be an environment's, which is not copied."""
        inner, told = copy.deepcopy(self.sampler, memo), {"compute_terminated": self._terminated}
        return HindsightSampler(self._reward, self.strategy, self.k, sampler=inner, **told)

    def take(self) -> None:
        super().take()
        self.sampler.take()

    def fits(self, info: DatasetInfo, picker: Any) -> None:
        self.sampler.fits(info, picker)
        tree = info.observation_signature.tree
        parts = tree if isinstance(tree, dict) else {}
        achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
        if not isinstance(achieved, Leaf) or not isinstance(desired, Leaf):
            there = f"a dict of {sorted(parts)}" if parts else "no dict"
            raise ConfigError(
                f"observations are {there}, without the arrays achieved_goal and desired_goal that a HindsightSampler "
                "exchanges: use an environment like Gymnasium's GoalEnv and store both (name both in the "
                "observation_keys of the buffer, if you give any), or leave sampler= out"
            )
        if achieved != desired:
            raise ShapeError(
                f"achieved_goal is {achieved} and desired_goal {desired}; they must be of one shape and dtype: what "
                "was achieved stands for the goal"
            )
        if type(picker) not in (BasicTransitionPicker, MultiStepTransitionPicker):
            raise UnsupportedError(
                f"a HindsightSampler cannot change the goals in transitions of a {type(picker).__name__}: give the "
                "dataset a BasicTransitionPicker or MultiStepTransitionPicker, and stack frames in the environment"
            )

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        rows = self.sampler.draw(storage, count, generators, reject, complete)
        chosen = generators.host.random(count) < self.k / (self.k + 1)
        share, source = generators.host.random(count), storage.source
        lane, position, first, last = self._episodes.of(source, storage.place.host(rows.index))
        if self.strategy == "future":
            first = position + 1
        elif self.strategy == "final":
            first = last
        goal = source.rows(lane, first + (share * (last - first + 1)).astype(np.int64))
        # A step that terminated has no goal after it if the last state is not known.
        return rows._replace(goal=np.where(chosen & (position < last), goal, -1))

    def update(self, rows: Rows, priority: Array) -> None:
        self.sampler.update(rows, priority)

    def get_state(self) -> State:
        return self.sampler.get_state()

    def set_state(self, state: State) -> None:
        self.sampler.set_state(state)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, view: View[M], storage: Storage, part: Any, rows: Rows) -> M:
        columns = getattr(view, "columns", None)
        if columns is None or columns.returns is not None:
            raise UnsupportedError(
                "a HindsightSampler changes the goals of transitions and sequences; returns up to an episode's end and "
                "windows of trajectories are of the goal that was pursued: make the dataset without sampler="
            )
        index = storage.place.host(rows.index)
        if not self._agrees:
            self._check_rewards(storage.source, index)
        chosen = np.flatnonzero(rows.goal >= 0)
        if isinstance(view, SequenceView):
            if getattr(part, "n_steps", 1) > 1:
                raise UnsupportedError(
                    f"a HindsightSampler changes the goals of sequences of single steps, not of {part.n_steps}: give "
                    "the dataset a BasicTransitionPicker"
                )
            batch = view.read(storage, part, rows.index)
            if len(chosen):
                self._change_sequences(batch, storage, view.window(storage, rows.index), chosen, rows.goal[chosen])
            return cast(M, batch)
        return view.read(storage, _InHindsight(self, part, chosen, rows.goal[chosen]), rows.index)

    def change_transitions(
        self, batch: TransitionMiniBatch, storage: Storage, part: Any, index: Array, chosen: Array, goal: Array
    ) -> None:
        """Give the ``chosen`` elements ``[b]`` of a minibatch, steps at rows ``index`` ``[b]``, other goals.

        Args:
            batch: what ``part`` made; it is written to.
            storage: what it was read from.
            part: the transition picker.
            index: the steps' rows.
            chosen: their places in the minibatch.
            goal: the rows whose achieved goals are theirs now.
        """
        place, source = storage.place, storage.source
        n_steps, gamma = getattr(part, "n_steps", 1), getattr(part, "gamma", 1.0)
        window = source.shift(index[:, None], np.arange(n_steps))
        after = source.shift(window, 1)
        alive = ((source.flags[window] & NO_TRANSITION) | (source.flags[after] & UNKNOWN)).cumsum(1) == 0
        reward, ended = self._judged(source, after, np.repeat(goal[:, None], n_steps, 1))
        if ended is not None:
            alive &= (ended.cumsum(1) - ended) == 0  # a window ends with the step that terminates
        steps = alive.sum(1)
        last = source.shift(index, steps - 1)
        terminal = source.flags[last] & TERMINATED if ended is None else (ended & alive).any(1)
        total = (np.where(alive, reward, 0.0) * gamma ** np.arange(n_steps)).sum(1)
        place.put(batch.rewards, chosen, total[:, None].astype(np.float32))
        place.put(batch.terminals, chosen, terminal[:, None].astype(np.float32))
        at, goals = place.indices(chosen), place.to_network(storage.take(ACHIEVED, place.indices(goal)))
        if batch.intervals is not None:
            place.put(batch.intervals, chosen, steps[:, None].astype(np.float32))
            following = part.observe(storage, storage.next(place.indices(last)))
            tree_map(lambda leaf, own: leaf.__setitem__(at, own), batch.next_observations, following)
        for observations in (batch.observations, batch.next_observations):
            observations["desired_goal"][at] = goals

    def _change_sequences(
        self, batch: SequenceMiniBatch, storage: Storage, window: tuple[Any, Any], chosen: Array, goal: Array
    ) -> None:
        """The same for sequences ``[T, B, …]``, whose rows and real steps are ``window``."""
        place, source = storage.place, storage.source
        rows, alive = (place.host(each)[:, chosen] for each in window)
        after = source.shift(rows, 1)
        known = alive & (source.flags[rows] & NO_NEXT == 0) & (source.flags[after] & UNKNOWN == 0)
        reward, ended = self._judged(source, after, np.tile(goal, (len(after), 1)))
        at, goals = place.indices(chosen), place.to_network(storage.take(ACHIEVED, place.indices(goal)))
        changed = [(batch.rewards, reward)] if ended is None else [(batch.rewards, reward), (batch.terminals, ended)]
        for values, new in changed:
            new = np.where(known, new, place.host(values)[:, chosen, 0]).astype(np.float32)
            values[:, at] = place.indices(new[..., None])
        for observations, there in ((batch.observations, alive), (batch.next_observations, known)):
            spread = np.broadcast_to(place.host(goals), (len(there), *goals.shape)).copy()
            spread[~there] = 0
            observations["desired_goal"][:, at] = place.indices(spread)

    def _judged(self, source: Storage, after: Array, goal: Array) -> tuple[Array, Array | None]:
        """Rewards, and whether episodes end, of steps to the rows ``after`` for the goals achieved at ``goal``."""
        return self._ask(source, after, source.take(ACHIEVED, goal))

    def _ask(self, source: Storage, after: Array, desired: Any) -> tuple[Array, Array | None]:
        shape, host = (-1, *source.leaves[ACHIEVED].shape), source.place.host
        goals = [host(each).reshape(shape) for each in (source.take(ACHIEVED, after), desired)]
        reward = _answer("compute_reward", self._reward, goals).reshape(after.shape)
        if self._terminated is None:
            return reward, None
        return reward, _answer("compute_terminated", self._terminated, goals).reshape(after.shape).astype(np.bool_)

    def _check_rewards(self, source: Storage, index: Array) -> None:
        """Raise `DataError` unless stored rewards are the function's: else a minibatch would be of two tasks."""
        after = source.shift(index, 1)
        index = index[(source.flags[after] & UNKNOWN) == 0]
        if not len(index):
            return
        stored = source.place.host(source.take("reward", index))[:, 0]
        asked, _ = self._ask(source, source.shift(index, 1), source.take(DESIRED, index))
        wrong = np.flatnonzero(~np.isclose(asked, stored, rtol=1e-4, atol=1e-5))
        if len(wrong) > len(index) // 10:  # states are rounded when they are stored, which may decide over a few
            raise DataError(
                f"compute_reward gives {asked[wrong[0]]:.6g} for a step whose stored reward is {stored[wrong[0]]:.6g}; "
                "they must agree, or steps with other goals are of another task: give the function of the environment "
                "that the data are from, with what a wrapper or writer_preprocessor does to rewards"
            )
        self._agrees = True


class _InHindsight(BasicTransitionPicker):
    """The transitions of a picker, some of them with other goals.

    Args:
        sampler: knows what they are rewarded with.
        part: the picker.
        chosen: elements ``[b]`` of the minibatch that get other goals.
        goal: rows ``[b]`` of these.
    """

    def __init__(self, sampler: HindsightSampler, part: Any, chosen: Array, goal: Array) -> None:
        self._sampler, self._part, self._chosen, self._goal = sampler, part, chosen, goal

    def batch(self, storage: Storage, rows: Any) -> TransitionMiniBatch:
        batch: TransitionMiniBatch = self._part.batch(storage, rows)
        if len(self._chosen):
            index = storage.place.host(rows)[self._chosen]
            self._sampler.change_transitions(batch, storage, self._part, index, self._chosen, self._goal)
        return batch


def _answer(name: str, function: Judge, goals: list[Array]) -> Array:
    """What a user's function says of copies of ``goals``, achieved and desired, ``[n, …]``: ``[n]``."""
    count, told = len(goals[0]), function(goals[0].copy(), goals[1].copy(), {})
    # tasks that never end there may say so once for all; a number would be a mean over the wrong axis
    answer = np.full(count, told) if isinstance(told, bool) and name == "compute_terminated" else np.asarray(told)
    if answer.size != count or answer.dtype.kind not in "biuf":
        raise ShapeError(
            f"{name} gave {answer.dtype} of shape {answer.shape} for {count} goals; it must give {count} numbers: "
            "compute over the last axis, for instance with np.linalg.norm(achieved_goal - desired_goal, axis=-1)"
        )
    if not np.isfinite(answer).all():
        raise NonFiniteError(f"{name} gave NaN or infinity for a state that was reached: rewards must be finite")
    return answer.reshape(count)


class _Episodes:
    """Where the episodes of rows begin and end, found once for each step, so that no draw passes over all rows."""

    def __init__(self) -> None:
        self._version = self._generation = -1

    def of(self, storage: Storage, rows: Array) -> tuple[Array, Array, Array, Array]:
        """Of steps at ``rows`` ``[B]``: lanes, positions, and those of the first and last states of their episodes."""
        self._follow(storage)
        position, lane = np.divmod(storage.numbers(rows), storage.lanes)
        running = position >= self._over[lane]
        first = np.where(running, self._over[lane], self._first[rows])
        final = np.where(running, storage.end[lane] - 1, self._final[rows])
        unknown = (storage.flags[storage.rows(lane, final)] & UNKNOWN) != 0
        return lane, position, np.maximum(first, storage.start[lane]), final - unknown

    def _follow(self, storage: Storage) -> None:
        if (storage.version, storage.generation) == (self._version, self._generation):
            return
        if storage.generation != self._generation:  # other steps, or in other rows
            self._first, self._final = np.zeros((2, len(storage.flags)), np.int64)
            self._over = storage.start.copy()  # in each lane the position up to which episodes have ended
        self._version, self._generation = storage.version, storage.generation
        lane, position = storage.live(np.maximum(self._over, storage.start))
        if not len(lane):
            return
        rows = storage.rows(lane, position)
        ends = np.flatnonzero(storage.flags[rows] & FINAL)  # the last row of a lane is one
        begins = np.append(0, ends[:-1] + 1)
        self._first[rows], self._final[rows] = np.repeat(position[np.stack([begins, ends])], ends - begins + 1, axis=1)
        running = storage.open[lane[ends]] & (position[ends] == storage.end[lane[ends]] - 1)
        ended = ends[~running]
        np.maximum.at(self._over, lane[ended], position[ended] + 1)
