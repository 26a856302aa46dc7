"""Hindsight experience replay: a sampler that replaces the goals of steps by states that were reached later."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from birl.checks import check, named_arguments
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episodes import ChangedEpisodes
from birl.dataset.flags import NO_NEXT, NO_TRANSITION, TERMINATED, UNKNOWN
from birl.dataset.minibatch import Rows, SequenceMiniBatch, TransitionMiniBatch
from birl.dataset.sampling import Complete, Generators, Sampler, Uniform
from birl.dataset.storage import Storage
from birl.dataset.transitions import BasicTransitionPicker, MultiStepTransitionPicker, TransitionPickerProtocol
from birl.dataset.views import M, Part, SequenceView, View
from birl.errors import BirlError, ConfigError, DataError, NonFiniteError, ShapeError, UnsupportedError
from birl.spaces.conversion import to_array
from birl.types import Array, ArrayOrTensor, ArraySpec, State, tree_map

GoalFunction: TypeAlias = "Callable[[Array, Array, dict[str, Any]], npt.ArrayLike]"
"""``(achieved_goal [n, …], desired_goal [n, …], info) -> [n]``, like ``compute_reward`` of Gymnasium's ``GoalEnv``."""

ACHIEVED: Final = "observation.achieved_goal"
DESIRED: Final = "observation.desired_goal"
STRATEGIES: Final = ("future", "final", "episode")


class HindsightSampler(Sampler):
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495).

    The observations must be those of Gymnasium's ``GoalEnv``: dicts with ``achieved_goal`` and ``desired_goal``. Each
    sampled step keeps its goal with probability ``1 / (k + 1)``. Otherwise it gets a goal that was achieved in its
    episode, and its reward is computed for that goal (section 3.3, algorithm 1). Stored steps do not change, so goals
    are drawn again for every minibatch. Steps of the running episode get goals achieved so far.

    With a `birl.dataset.MultiStepTransitionPicker`, every reward is computed for the new goal. All steps of a sequence
    have the same goal, which was achieved after the first step that follows the burn-in.

    Args:
        compute_reward: ``(achieved_goal [n, …], desired_goal [n, …], info) -> [n]``. ``info`` is a dict of the extra
            columns ``[n, …]`` of the steps, such as those of the buffer's ``info_keys``. Use the environment's
            function, ``env.unwrapped.compute_reward``, if it accepts arrays of many goals.
        strategy: source of goals: ``"future"``, any state after the step; ``"final"``, the last state; ``"episode"``,
            any state.
        k: ratio of steps with new goals to steps with their own, above 0. The paper uses 4 with ``"future"``.
        compute_terminated: whether the episode ends when ``achieved_goal`` is reached, with the same arguments; it may
            return ``False`` for all goals at once. Without it, steps terminate as stored. Give it for tasks that end at
            the goal.
        sampler: chooses the steps; `birl.dataset.Uniform` if ``None``.

    Raises:
        ConfigError: if an argument is not allowed, or the dataset's observations have no goals.
    """

    @named_arguments
    def __init__(
        self,
        compute_reward: GoalFunction,
        strategy: str = "future",
        k: float = 4,
        *,
        compute_terminated: GoalFunction | None = None,
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
        self._compute_reward, self._compute_terminated = compute_reward, compute_terminated
        self._episodes, self._rewards_checked = _EpisodeBounds(), False

    def __deepcopy__(self, memo: dict[int, object]) -> HindsightSampler:
        """Return a copy with the same functions, which may be methods of an environment and are not copied."""
        return HindsightSampler(
            self._compute_reward,
            self.strategy,
            self.k,
            compute_terminated=self._compute_terminated,
            sampler=copy.deepcopy(self.sampler, memo),
        )

    def take(self) -> None:
        super().take()
        self.sampler.take()

    def fits(self, info: DatasetInfo, picker: TransitionPickerProtocol) -> None:
        self.sampler.fits(info, picker)
        tree = info.observation_signature.tree
        parts = tree if isinstance(tree, dict) else {}
        achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
        if not isinstance(achieved, ArraySpec) or not isinstance(desired, ArraySpec):
            form = f"a dict of {sorted(parts)}" if parts else "no dict"
            raise ConfigError(
                f"observations are {form}, without the arrays achieved_goal and desired_goal that a HindsightSampler "
                "exchanges: use an environment like Gymnasium's GoalEnv and store both (name both in the "
                "observation_keys of the buffer, if you give any), or leave sampler= out"
            )
        if achieved != desired:
            raise ShapeError(
                f"achieved_goal is {achieved} and desired_goal {desired}; they must be of one shape and dtype, as "
                "an achieved goal replaces the desired one: store both in the same form"
            )
        if type(picker) not in (BasicTransitionPicker, MultiStepTransitionPicker):
            raise UnsupportedError(
                f"a HindsightSampler cannot change the goals in transitions of a {type(picker).__name__}: give the "
                "dataset a BasicTransitionPicker or MultiStepTransitionPicker, and stack frames in the environment"
            )

    # -- sampling --------------------------------------------------------------------------------------------------

    def draw(self, storage: Storage, count: int, generators: Generators, reject: int, complete: Complete) -> Rows:
        rows = self.sampler.draw(storage, count, generators, reject, complete)
        replaced = generators.host.random(count) < self.k / (self.k + 1)
        share, source = generators.host.random(count), storage.source
        lane, position, first, last = self._episodes.find(source, storage.place.host(rows.index))
        if self.strategy == "future":
            first = position + 1
        elif self.strategy == "final":
            first = last
        goal = source.rows(lane, first + (share * (last - first + 1)).astype(np.int64))
        # A terminal step has no later state if the final observation is unknown.
        return rows._replace(goal=np.where(replaced & (position < last), goal, -1))

    def update(self, rows: Rows, priority: Array) -> None:
        self.sampler.update(rows, priority)

    @property
    def uses_priorities(self) -> bool:
        return self.sampler.uses_priorities

    def get_state(self) -> State:
        return self.sampler.get_state()

    def set_state(self, state: State) -> None:
        self.sampler.set_state(state)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, view: View[M], storage: Storage, part: Part, rows: Rows) -> M:
        columns = getattr(view, "columns", None)
        if columns is None or columns.returns is not None:
            raise UnsupportedError(
                "a HindsightSampler changes the goals of transitions and sequences; returns up to an episode's end and "
                "windows of trajectories depend on the goal that was pursued: make the dataset without sampler="
            )
        index = storage.place.host(rows.index)
        if not self._rewards_checked:
            self._check_rewards(storage.source, index)
        replaced = np.flatnonzero(rows.goal >= 0)
        picker = cast(BasicTransitionPicker, part)  # see `fits`
        if isinstance(view, SequenceView):
            n_steps = picker.n_steps if isinstance(picker, MultiStepTransitionPicker) else 1
            if n_steps > 1:
                raise UnsupportedError(
                    f"a HindsightSampler changes the goals of sequences of single steps, not of {n_steps}: give the "
                    "dataset a BasicTransitionPicker"
                )
            batch = view.read(storage, picker, rows.index)
            if len(replaced):
                self._relabel_sequences(batch, storage, view.window(storage, rows.index), replaced, rows.goal[replaced])
            return cast(M, batch)
        return view.read(storage, _RelabelingPicker(self, picker, replaced, rows.goal[replaced]), rows.index)

    def _relabel_sequences(
        self,
        batch: SequenceMiniBatch,
        storage: Storage,
        window: tuple[ArrayOrTensor, ArrayOrTensor],
        replaced: Array,
        goal: Array,
    ) -> None:
        """Replace goals of sequences ``[T, B, …]``, in place; ``window``: rows, and whether each is a real step."""
        place, source = storage.place, storage.source
        rows, alive = (place.host(each)[:, replaced] for each in window)
        after = source.shift(rows, 1)
        known = alive & (source.flags[rows] & NO_NEXT == 0) & (source.flags[after] & UNKNOWN == 0)
        reward, ended = self.compute_rewards(source, rows, source.take(ACHIEVED, np.tile(goal, (len(rows), 1))))
        at, goals = place.indices(replaced), storage.to_network(DESIRED, storage.take(ACHIEVED, place.indices(goal)))
        changed = [(batch.rewards, reward)] if ended is None else [(batch.rewards, reward), (batch.terminals, ended)]
        for values, new in changed:
            new = np.where(known, new, place.host(values)[:, replaced, 0]).astype(np.float32)
            values[:, at] = place.indices(new[..., None])
        for observations, valid in ((batch.observations, alive), (batch.next_observations, known)):
            repeated = np.broadcast_to(place.host(goals), (len(valid), *goals.shape)).copy()
            repeated[~valid] = 0
            observations["desired_goal"][:, at] = place.indices(repeated)

    def compute_rewards(self, source: Storage, rows: Array, desired: ArrayOrTensor) -> tuple[Array, Array | None]:
        """Compute rewards, and whether episodes end, of steps in ``rows``, for the ``desired`` goals."""
        shape, host = (-1, *source.leaves[ACHIEVED].shape), source.place.host
        goals = [host(each).reshape(shape) for each in (source.take(ACHIEVED, source.shift(rows, 1)), desired)]
        names = [name for name in source.extra_names if not name.startswith("extra.state.")]
        info = {name.removeprefix("extra."): host(source.take(name, rows.reshape(-1))) for name in names}
        reward = _call("compute_reward", self._compute_reward, goals, info).reshape(rows.shape)
        if self._compute_terminated is None:
            return reward, None
        ended = _call("compute_terminated", self._compute_terminated, goals, info)
        return reward, ended.reshape(rows.shape).astype(np.bool_)

    def _check_rewards(self, source: Storage, index: Array) -> None:
        """Raise `DataError` unless ``compute_reward`` gives the stored rewards, so that all steps have one task."""
        after = source.shift(index, 1)
        index = index[(source.flags[after] & UNKNOWN) == 0]
        if not len(index):
            return
        stored = source.place.host(source.take("reward", index))[:, 0]
        computed, _ = self.compute_rewards(source, index, source.take(DESIRED, index))
        wrong = np.flatnonzero(~np.isclose(computed, stored, rtol=1e-4, atol=1e-5))
        if len(wrong) > len(index) // 10:  # stored states are rounded, which may change a few rewards
            raise DataError(
                f"compute_reward gives {computed[wrong[0]]:.6g} for a step whose stored reward is "
                f"{stored[wrong[0]]:.6g}; they must agree, or steps with new goals are of another task: give the "
                "function of the environment that the data come from, and apply what a wrapper or writer_preprocessor "
                "does to rewards"
            )
        self._rewards_checked = True


class _RelabelingPicker(BasicTransitionPicker):
    """Picker that makes the transitions of another picker and replaces the goals of some of them.

    Args:
        sampler: computes the rewards.
        picker: the other picker.
        replaced: indices ``[b]`` of the elements that get new goals.
        goal: rows ``[b]`` with the achieved goals that replace theirs.
    """

    def __init__(self, sampler: HindsightSampler, picker: BasicTransitionPicker, replaced: Array, goal: Array) -> None:
        self._sampler, self._picker, self._replaced, self._goal = sampler, picker, replaced, goal

    def batch(self, storage: Storage, rows: ArrayOrTensor) -> TransitionMiniBatch:
        batch, replaced, goal = self._picker.batch(storage, rows), self._replaced, self._goal
        if not len(replaced):
            return batch
        place, source, index = storage.place, storage.source, storage.place.host(rows)[replaced]
        n_steps, gamma = getattr(self._picker, "n_steps", 1), getattr(self._picker, "gamma", 1.0)
        window = source.shift(index[:, None], np.arange(n_steps))
        after = source.shift(window, 1)
        alive = ((source.flags[window] & NO_TRANSITION) | (source.flags[after] & UNKNOWN)).cumsum(1) == 0
        desired = source.take(ACHIEVED, np.repeat(goal[:, None], n_steps, 1))
        reward, ended = self._sampler.compute_rewards(source, window, desired)
        if ended is not None:
            alive &= (ended.cumsum(1) - ended) == 0  # a terminal step ends the window
        steps = alive.sum(1)
        last = source.shift(index, steps - 1)
        terminal = source.flags[last] & TERMINATED if ended is None else (ended & alive).any(1)
        total = (np.where(alive, reward, 0.0) * gamma ** np.arange(n_steps)).sum(1)
        place.put(batch.rewards, replaced, total[:, None].astype(np.float32))
        place.put(batch.terminals, replaced, terminal[:, None].astype(np.float32))
        at, goals = place.indices(replaced), storage.to_network(DESIRED, storage.take(ACHIEVED, place.indices(goal)))
        if batch.intervals is not None:
            place.put(batch.intervals, replaced, steps[:, None].astype(np.float32))
            following = self._picker.observe(storage, storage.next(place.indices(last)))
            tree_map(lambda leaf, value: leaf.__setitem__(at, value), batch.next_observations, following)
        for observations in (batch.observations, batch.next_observations):
            observations["desired_goal"][at] = goals
        return batch


def _call(name: str, function: GoalFunction, goals: list[Array], info: dict[str, Array]) -> Array:
    """Call a user's function with copies of achieved and desired ``goals`` ``[n, …]`` and check its result ``[n]``."""
    entries = _Info(name, {key: column.copy() for key, column in info.items()})
    count = len(goals[0])
    try:
        result = function(goals[0].copy(), goals[1].copy(), entries)
    except BirlError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{name} raised {type(error).__name__} ({error!s:.200}); it gets the goals of {count} steps at once, as "
            f"arrays of shape {goals[0].shape}, and info as one dict of arrays with a row for each step: compute over "
            "the last axis"
        ) from error
    # One False is allowed for tasks that never end at the goal; one number would be a mean over the wrong axis.
    values = (
        np.full(count, result) if isinstance(result, bool) and name == "compute_terminated" else to_array(name, result)
    )
    if values.size != count:
        raise ShapeError(
            f"{name} gave {values.dtype} of shape {values.shape} for {count} goals; it must give {count} numbers: "
            "compute over the last axis, for instance with np.linalg.norm(achieved_goal - desired_goal, axis=-1)"
        )
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"{name} gave NaN or infinity for a goal that was achieved; all values must be finite: correct {name}"
        )
    return values.reshape(count)


class _Info(dict[str, Any]):
    """An ``info`` of stored columns, which says how further entries are stored."""

    def __init__(self, function: str, columns: dict[str, Array]) -> None:
        super().__init__(columns)
        self._function = function

    def __missing__(self, key: str) -> Any:
        stored = f"only {sorted(self)!s:.200}" if self else "no info"
        raise ConfigError(
            f"{self._function} reads info[{key!r}], but stored steps have {stored}: make the buffer with "
            f"info_keys=({key!r},), or a dataset with extra={{{key!r}: …}}, or leave it out of the function"
        )


class _EpisodeBounds:
    """First and last positions of the episodes of rows, cached for each step, so that no draw scans all rows."""

    def __init__(self) -> None:
        self._changed: ChangedEpisodes | None = None

    def find(self, storage: Storage, rows: Array) -> tuple[Array, Array, Array, Array]:
        """Return lanes and positions of steps ``rows`` ``[B]``, and their episodes' first and last positions."""
        ended = self._update(storage)
        position, lane = np.divmod(storage.numbers(rows), storage.lanes)
        running = position >= ended[lane]
        first = np.where(running, ended[lane], self._first[rows])
        final = np.where(running, storage.end[lane] - 1, self._final[rows])
        unknown = (storage.flags[storage.rows(lane, final)] & UNKNOWN) != 0
        return lane, position, np.maximum(first, storage.start[lane]), final - unknown

    def _update(self, storage: Storage) -> Array:
        """Find the bounds of the steps written since the last call; return where running episodes begin ``[lanes]``."""
        if self._changed is None or self._changed.generation != storage.generation:  # steps or rows have changed
            self._changed = ChangedEpisodes(storage)
            self._first, self._final = np.zeros((2, len(storage.flags)), np.int64)
        if (changed := self._changed.find(storage)) is not None:
            rows, position, final = changed
            ends = np.flatnonzero(final)
            begins = np.append(0, ends[:-1] + 1)
            counts = ends - begins + 1
            self._first[rows], self._final[rows] = np.repeat(position[np.stack([begins, ends])], counts, axis=1)
        return self._changed.ended
