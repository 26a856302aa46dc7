"""Transition pickers, which make transitions from steps.

A picker is called with one episode and an index, as in d3rlpy. The built-in pickers also have ``batch``, which does the
same for many rows of a storage at once; `birl.dataset.views.TransitionView` uses it if the picker has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np

from birl.checks import check, named_arguments
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import EpisodeBase, Transition, create_zero_observation
from birl.dataset.flags import FINAL, HEAD, NO_NEXT
from birl.dataset.minibatch import TransitionMiniBatch
from birl.dataset.storage import A, Storage
from birl.types import (
    MASK,
    Array,
    ArrayOrTensor,
    Observation,
    Shape,
    Tree,
    map_unmasked,
    shape_map,
    tree_leaves,
    tree_map,
)


@runtime_checkable
class TransitionPickerProtocol(Protocol):
    """Transition picker, which makes a transition from a step."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        """Make the transition that starts at step ``index`` of ``episode``.

        Args:
            episode: the episode. If its final observation is known, ``episode.observations`` has it as an additional
                last row, and ``episode.actions`` has a row of zeros there.
            index: step, ``0 … episode.size() - 1``; its next observation is known.
        """


@runtime_checkable
class BatchPicker(TransitionPickerProtocol, Protocol):
    """A transition picker that makes whole minibatches."""

    def observe(self, storage: Storage, rows: ArrayOrTensor) -> Tree:
        """Return the observations at ``rows`` ``[...]`` of a storage in the dtypes of network inputs."""

    def observation_shape(self, shape: Shape) -> Shape:
        """Return the shape of picked observations, given the stored shape."""

    def batch(self, storage: Storage, rows: ArrayOrTensor) -> TransitionMiniBatch:
        """Return the transitions that start at ``rows`` ``[B]`` of a storage."""


def observation_at(episode: EpisodeBase, index: int) -> Observation:
    """Return the observation at ``index``: after the last step the final observation, or zeros if it is unknown."""
    if index < len(next(tree_leaves(episode.observations))):
        return tree_map(lambda leaf: leaf[index], episode.observations)
    final = getattr(episode, "final_observation", None)
    return create_zero_observation(observation_at(episode, 0)) if final is None else final


def stack_frames(episode: EpisodeBase, index: int, n_frames: int, padding_type: str = "zero") -> Observation:
    """Stack the last ``n_frames`` observations up to ``index`` on their first axis, oldest first.

    Zeros, or the first frame if ``padding_type`` is ``"reset"``, stand before the first step.
    """
    frames = [observation_at(episode, step) for step in range(max(index + 1 - n_frames, 0), index + 1)]
    first = frames[0] if padding_type == "reset" else create_zero_observation(frames[0])
    missing = [first] * (n_frames - len(frames))
    stacked = tree_map(lambda *leaves: np.concatenate(leaves), *missing, *frames)
    return newest_mask(stacked, frames[-1], lambda mask: mask)


def newest_mask(stacked: Tree, frame: Tree, read: Callable[[Tree], Tree]) -> Tree:
    """Replace the action mask of stacked observations by the mask of the newest ``frame``."""
    return {**stacked, MASK: read(frame[MASK])} if isinstance(frame, dict) and MASK in frame else stacked


class BasicTransitionPicker(TransitionPickerProtocol):
    """One-step transitions."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        stop, reward = self._n_step_reward(episode, index)
        action, steps = episode.actions[index], episode.size()
        return Transition(
            observation=self._observe(episode, index),
            action=action,
            reward=reward,
            next_observation=self._observe(episode, stop),
            terminal=float(bool(episode.terminated) and stop == steps),
            interval=stop - index,
            next_action=episode.actions[stop] if stop < steps else np.zeros_like(action),
            rewards_to_go=self._rewards_to_go(episode, index),
        )

    def _observe(self, episode: EpisodeBase, index: int) -> Observation:
        """Return the observation at ``index``, which may be the one after the last step."""
        return observation_at(episode, index)

    def _n_step_reward(self, episode: EpisodeBase, index: int) -> tuple[int, Array]:
        """Return the index of the next observation, and the sum of the rewards before it."""
        return index + 1, episode.rewards[index]

    def _rewards_to_go(self, episode: EpisodeBase, index: int) -> Array:
        return episode.rewards[index:]

    def observe(self, storage: Storage, rows: ArrayOrTensor) -> Tree:
        """Return the observations at ``rows`` ``[...]`` of a storage in the dtypes of network inputs."""
        return storage.observation(rows)

    def observation_shape(self, shape: Shape) -> Shape:
        """Return the shape of picked observations, given the stored shape."""
        return shape

    def batch(self, storage: Storage, rows: ArrayOrTensor) -> TransitionMiniBatch:
        """Return the transitions that start at ``rows`` ``[B]`` of a storage."""
        reward, last, intervals = self.n_step_rewards(storage, rows)
        return TransitionMiniBatch(
            self.observe(storage, rows),
            storage.place.to_action(storage.take("action", rows)),
            reward,
            self.observe(storage, storage.next(last)),
            storage.terminals(last),
            intervals,
            extra=extra_columns(storage, rows),
        )

    def n_step_rewards(self, storage: Storage, rows: A) -> tuple[A, A, A | None]:
        """Return rewards, last rows and lengths of the transitions that start at ``rows``.

        Returns:
            Float32 rewards ``[B, 1]``, the rows ``[B]`` of the last steps, and float32 lengths ``[B, 1]``; ``None`` if
            all lengths are 1.
        """
        return storage.place.to_float(storage.take("reward", rows)), rows, None


class FrameStackTransitionPicker(BasicTransitionPicker):
    """Transitions whose observations are the last ``n_frames`` stored ones, stacked on their first axis, oldest first.

    Stored observations are single frames ``[C, H, W]``, channel first (or vectors), and stacks are ``[n_frames * C, H,
    W]``. Each frame is stored once. Steps with an evicted frame are not sampled.

    Args:
        n_frames: number of frames, at least 1.
        padding_type: what stands before the first frame of an episode: ``"zero"``, or ``"reset"``, the first frame.
            It must be that of the `birl.envs.FrameStack` with which the policy acts.
    """

    @named_arguments
    def __init__(self, n_frames: int, padding_type: str = "zero") -> None:
        self.n_frames = check("n_frames", n_frames, int, low=1)
        self.padding_type = check("padding_type", padding_type, str, choices=("zero", "reset"))

    def _observe(self, episode: EpisodeBase, index: int) -> Observation:
        return stack_frames(episode, index, self.n_frames, self.padding_type)

    def observe(self, storage: Storage, rows: ArrayOrTensor) -> Tree:
        alive: Any
        window, alive = storage.behind(rows, self.n_frames)
        if repeats := self.padding_type == "reset":  # frames before the first one are read from its row
            first = 1 - alive.sum(-1)[..., None]
            offsets = storage.place.arange(1 - self.n_frames, 1) * alive + first * ~alive
            window = storage.shift(rows[..., None], offsets)

        def stack(name: str) -> Tree:
            frames = storage.take(name, window)  # [..., n, C, *]
            frames = frames if repeats else storage.place.zero_where(frames, ~alive)
            lead, (channels, *rest) = window.shape[:-1], storage.leaves[name].shape
            return storage.to_network(name, frames.reshape(*lead, self.n_frames * channels, *rest))

        names = storage.observation_names
        stacked = map_unmasked(lambda rest: tree_map(stack, rest), names)
        return newest_mask(stacked, names, lambda name: storage.take_observation(name, rows))

    def complete(self, storage: Storage, rows: A) -> A:
        """Return bool ``[...]``: whether all frames of the stacks at ``rows`` ``[...]`` are stored."""
        alive: Any
        window, alive = storage.behind(rows, self.n_frames)
        return cast(A, alive[..., 0] | ~(storage.take_flags(window, HEAD) & alive).any(-1))

    def observation_shape(self, shape: Shape) -> Shape:
        stacked = shape_map(lambda leaf: (self.n_frames * leaf[0], *leaf[1:]), shape)
        return newest_mask(stacked, shape, lambda leaf: leaf)


class MultiStepTransitionPicker(BasicTransitionPicker):
    """Transitions over up to ``n_steps`` steps, shorter at the end of an episode.

    The reward is ``sum_k gamma**k r_{t+k}`` over ``interval`` steps (Sutton 1988). A terminal step ends the window. At
    a truncation it bootstraps from the final observation, or from the last known observation if that is unknown.

    Args:
        n_steps: largest number of steps, at least 1.
        gamma: discount factor, in [0, 1].
    """

    @named_arguments
    def __init__(self, n_steps: int, gamma: float) -> None:
        self.n_steps = check("n_steps", n_steps, int, low=1)
        self.gamma = check("gamma", gamma, float, low=0, high=1)

    def _n_step_reward(self, episode: EpisodeBase, index: int) -> tuple[int, Array]:
        final_known = episode.terminated or len(next(tree_leaves(episode.observations))) > episode.size()
        final_known = final_known or getattr(episode, "final_observation", None) is not None
        stop = min(index + self.n_steps, episode.size() - (0 if final_known else 1))
        rewards = np.asarray(episode.rewards[index:stop], np.float64)[:, 0]
        return stop, np.array([np.sum(rewards * self.gamma ** np.arange(stop - index))], np.float32)

    def n_step_rewards(self, storage: Storage, rows: A) -> tuple[A, A, A | None]:
        place = storage.place

        def powers() -> ArrayOrTensor:
            return cast(ArrayOrTensor, place.to_float(self.gamma ** place.to_float(place.arange(0, self.n_steps))))

        window, alive = storage.ahead(rows, self.n_steps, FINAL | NO_NEXT)
        steps = alive.sum(-1)
        gammas = place.cached(("powers of gamma", self.gamma, self.n_steps), powers)
        rewards = place.zero_where(place.to_float(storage.take("reward", window))[..., 0], ~alive)
        total = place.to_float((rewards * gammas).sum(-1)[:, None])
        return total, storage.shift(rows, steps - 1), place.to_float(steps[:, None])


class MultiStepFrameStackTransitionPicker(FrameStackTransitionPicker, MultiStepTransitionPicker):
    """Transitions over up to ``n_steps`` steps between stacks of ``n_frames`` frames.

    Args:
        n_frames, padding_type: see `FrameStackTransitionPicker`.
        n_steps, gamma: see `MultiStepTransitionPicker`.
    """

    @named_arguments
    def __init__(self, n_frames: int, n_steps: int, gamma: float, padding_type: str = "zero") -> None:
        FrameStackTransitionPicker.__init__(self, n_frames, padding_type)
        MultiStepTransitionPicker.__init__(self, n_steps, gamma)


class SparseRewardTransitionPicker(BasicTransitionPicker):
    """One-step transitions of tasks that reward only success, such as mazes, for algorithms like Cal-QL.

    If all rewards from a step to the end of its episode are ``step_reward``, the goal was not reached, and the
    discounted return depends only on the episode's length. Such steps have ``failure_return`` as their return.

    Args:
        failure_return: return of steps without a later success; it is scaled like rewards.
        step_reward: reward of steps without success.
    """

    def __init__(self, failure_return: float, step_reward: float = 0.0) -> None:
        failure_return = check("failure_return", failure_return, float)
        self.failure = float(failure_return), float(check("step_reward", step_reward, float))

    def _rewards_to_go(self, episode: EpisodeBase, index: int) -> Array:
        value, step_reward = self.failure
        rewards = episode.rewards[index:]
        return np.array([[value]], np.float32) if (rewards == np.float32(step_reward)).all() else rewards


def extra_columns(storage: Storage, rows: ArrayOrTensor) -> dict[str, ArrayOrTensor]:
    """Return the extra columns at ``rows``, without the start states of recurrent networks."""
    return {
        name.removeprefix("extra."): storage.place.to_network(storage.take(name, rows))
        for name in storage.extra_names
        if not name.startswith("extra.state.")
    }


def next_action_columns(storage: Storage, after: ArrayOrTensor) -> dict[str, ArrayOrTensor]:
    """Return the actions at the rows ``after`` ``[...]`` steps, for `TransitionMiniBatch.extra`.

    Returns:
        ``next_action`` ``[..., A]`` and float32 ``next_action_known`` ``[..., 1]``. Both are 0 after the last step of
        an episode, which has no next action.
    """
    place, known = storage.place, ~storage.take_flags(after, FINAL)
    action = place.zero_where(place.to_action(storage.take("action", after)), ~known)
    return {"next_action": action, "next_action_known": place.to_float(known)[..., None]}


@lru_cache
def has_batch_methods(cls: type, names: tuple[str, ...]) -> bool:
    """Return whether a class of pickers or slicers defines methods for minibatches, and not only ``__call__``.

    A user's class that derives from a built-in class and overrides only ``__call__`` must be called item by item: its
    inherited methods for minibatches would ignore the override.

    Args:
        cls: the class.
        names: methods for minibatches.
    """
    if not hasattr(cls, "batch"):
        return False
    nearest = next(base for base in cls.__mro__ if not {"__call__", *names}.isdisjoint(vars(base)))
    return not set(names).isdisjoint(vars(nearest))


def is_batch_picker(picker: object) -> TypeGuard[BatchPicker]:
    """Return whether a transition picker makes whole minibatches. See `has_batch_methods`."""
    cls: type = type(picker)
    return has_batch_methods(cls, ("batch", "observe"))


@dataclass(frozen=True)
class Columns:
    """Computed columns that a minibatch has in ``extra``.

    Attributes:
        next_actions: whether to add the columns of `next_action_columns`.
        returns: computes the column ``discounted_return``; ``None`` to leave it out.
    """

    next_actions: bool = False
    returns: DiscountedReturns | None = None

    def read(
        self,
        storage: Storage,
        picker: TransitionPickerProtocol,
        rows: ArrayOrTensor,
        after: Callable[[], ArrayOrTensor],
    ) -> dict[str, ArrayOrTensor]:
        """Return the columns of the steps at ``rows``; their next observations are at the rows ``after()``."""
        columns: dict[str, ArrayOrTensor] = {}
        if self.returns is not None:
            columns |= self.returns.columns(storage, rows, getattr(picker, "failure", None))
        if self.next_actions:
            columns |= next_action_columns(storage, after())
        return columns


NO_COLUMNS = Columns()
