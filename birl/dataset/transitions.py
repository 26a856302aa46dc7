"""Transition pickers: from a step to a transition.

A picker is called with one episode and an index, as in d3rlpy. The built-in ones also have ``batch``, which does the
same for many rows of a storage at once; `birl.dataset.views.TransitionView` uses it where it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from birl.checks import check
from birl.dataset.arrays import AnyPlace
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.episode import EpisodeBase, Transition, create_zero_observation
from birl.dataset.flags import FINAL, HEAD, NO_NEXT
from birl.dataset.minibatch import TransitionMiniBatch
from birl.dataset.storage import Storage
from birl.types import MASK, Array, Observation, Shape, Tree, beside_mask, shape_map, tree_leaves, tree_map


@runtime_checkable
class TransitionPickerProtocol(Protocol):
    """Makes a transition of a step."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        """Make the transition that begins at step ``index`` of ``episode``.

        Args:
            episode: the episode. If its final observation is known, ``episode.observations`` has it as one more row,
                and ``episode.actions`` has zeros there.
            index: step, ``0 … episode.size() - 1``; its next observation is known.
        """


def observation_at(episode: EpisodeBase, index: int) -> Observation:
    """The observation at ``index``: after the last step the final one, or zeros if that is unknown."""
    if index < len(next(tree_leaves(episode.observations))):
        return tree_map(lambda leaf: leaf[index], episode.observations)
    final = getattr(episode, "final_observation", None)
    return create_zero_observation(observation_at(episode, 0)) if final is None else final


def stack_frames(episode: EpisodeBase, index: int, n_frames: int) -> Observation:
    """The last ``n_frames`` observations up to ``index``, oldest first, joined on their first axis; zeros at first."""
    frames = [observation_at(episode, step) for step in range(max(index + 1 - n_frames, 0), index + 1)]
    missing = [create_zero_observation(frames[0])] * (n_frames - len(frames))
    stacked = tree_map(lambda *leaves: np.concatenate(leaves), *missing, *frames)
    return newest_mask(stacked, frames[-1], lambda mask: mask)


def newest_mask(stacked: Tree, frame: Tree, read: Callable[[Any], Any]) -> Tree:
    """Stacked observations, of whose masks of actions only that of the newest ``frame`` counts."""
    return {**stacked, MASK: read(frame[MASK])} if isinstance(frame, dict) and MASK in frame else stacked


class BasicTransitionPicker(TransitionPickerProtocol):
    """One-step transitions."""

    def __call__(self, episode: EpisodeBase, index: int) -> Transition:
        stop, reward = self._sum(episode, index)
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
        """The observation at ``index``, which may be that after the last step."""
        return observation_at(episode, index)

    def _sum(self, episode: EpisodeBase, index: int) -> tuple[int, Array]:
        """The step that the transition leads to, and the sum of rewards up to there."""
        return index + 1, episode.rewards[index]

    def _rewards_to_go(self, episode: EpisodeBase, index: int) -> Array:
        return episode.rewards[index:]

    def observe(self, storage: Storage, rows: Any) -> Tree:
        """Observations at ``rows`` ``[...]`` of a storage, as networks take them."""
        return storage.observation(rows)

    def observation_shape(self, shape: Shape) -> Shape:
        """Shape of picked observations, from the stored shape."""
        return shape

    def batch(self, storage: Storage, rows: Any) -> TransitionMiniBatch:
        """Transitions that begin at ``rows`` ``[B]`` of a storage."""
        reward, last, intervals = self.add_up(storage, rows)
        return TransitionMiniBatch(
            self.observe(storage, rows),
            storage.place.to_action(storage.take("action", rows)),
            reward,
            self.observe(storage, storage.next(last)),
            storage.terminals(last),
            intervals,
            extra=extra_columns(storage, rows),
        )

    def add_up(self, storage: Storage, rows: Any) -> tuple[Any, Any, Any]:
        """Of the transitions that begin at ``rows`` the rewards, the last rows, and (if not all are 1) the lengths."""
        return storage.place.to_float(storage.take("reward", rows)), rows, None


class FrameStackTransitionPicker(BasicTransitionPicker):
    """Transitions whose observations are the last ``n_frames`` stored ones, oldest first, joined on their first axis.

    Stored observations are single frames ``[C, H, W]``, channel first (or vectors); stacked they are ``[n_frames * C,
    H, W]``. Before the first step of an episode there are zeros. Memory holds each frame once. Steps of which a frame
    was evicted are not drawn.

    Args:
        n_frames: number of frames, at least 1.
    """

    def __init__(self, n_frames: int) -> None:
        self.n_frames = check("n_frames", n_frames, int, low=1)

    def _observe(self, episode: EpisodeBase, index: int) -> Observation:
        return stack_frames(episode, index, self.n_frames)

    def observe(self, storage: Storage, rows: Any) -> Tree:
        window, alive = storage.behind(rows, self.n_frames)

        def stack(name: str) -> Any:
            frames = storage.place.zero_where(storage.take(name, window), ~alive)  # [..., n, C, *]
            lead, (channels, *rest) = window.shape[:-1], storage.leaves[name].shape
            return storage.place.to_network(frames.reshape(*lead, self.n_frames * channels, *rest))

        names = storage.observation_names
        stacked = beside_mask(lambda rest: tree_map(stack, rest), names)
        return newest_mask(stacked, names, lambda name: storage.place.to_network(storage.take(name, rows)))

    def complete(self, storage: Storage, rows: Any) -> Any:
        """For ``rows`` ``[...]`` whether no frame of their stacks was evicted: bool ``[...]``."""
        window, alive = storage.behind(rows, self.n_frames)
        return alive[..., 0] | ~(storage.take_flags(window, HEAD) & alive).any(-1)

    def observation_shape(self, shape: Shape) -> Shape:
        stacked = shape_map(lambda leaf: (self.n_frames * leaf[0], *leaf[1:]), shape)
        return newest_mask(stacked, shape, lambda leaf: leaf)


class MultiStepTransitionPicker(BasicTransitionPicker):
    """Transitions over up to ``n_steps`` steps, shorter at the end of an episode.

    The reward is ``sum_k gamma**k r_{t+k}`` over ``interval`` steps (Sutton 1988). A window ends with the step that
    terminates; at a truncation it bootstraps from the final observation if that is known, else from the last one known.

    Args:
        n_steps: largest number of steps, at least 1.
        gamma: discount factor, in [0, 1].
    """

    def __init__(self, n_steps: int, gamma: float) -> None:
        self.n_steps = check("n_steps", n_steps, int, low=1)
        self.gamma = check("gamma", gamma, float, low=0, high=1)

    def _sum(self, episode: EpisodeBase, index: int) -> tuple[int, Array]:
        final_known = episode.terminated or len(next(tree_leaves(episode.observations))) > episode.size()
        final_known = final_known or getattr(episode, "final_observation", None) is not None
        stop = min(index + self.n_steps, episode.size() - (0 if final_known else 1))
        rewards = np.asarray(episode.rewards[index:stop], np.float64)[:, 0]
        return stop, np.array([np.sum(rewards * self.gamma ** np.arange(stop - index))], np.float32)

    def _powers(self, place: AnyPlace) -> Any:
        return place.to_float(self.gamma ** place.to_float(place.arange(0, self.n_steps)))

    def add_up(self, storage: Storage, rows: Any) -> tuple[Any, Any, Any]:
        place = storage.place
        window, alive = storage.ahead(rows, self.n_steps, FINAL | NO_NEXT)
        steps = alive.sum(-1)
        gammas = place.cached(("powers", self.gamma, self.n_steps), lambda: self._powers(place))
        rewards = place.zero_where(place.to_float(storage.take("reward", window))[..., 0], ~alive)
        total = place.to_float((rewards * gammas).sum(-1)[:, None])
        return total, storage.shift(rows, steps - 1), place.to_float(steps[:, None])


class MultiStepFrameStackTransitionPicker(FrameStackTransitionPicker, MultiStepTransitionPicker):
    """Transitions over up to ``n_steps`` steps between stacks of ``n_frames`` frames: both of the pickers at once.

    Args:
        n_frames: see `FrameStackTransitionPicker`.
        n_steps, gamma: see `MultiStepTransitionPicker`.
    """

    def __init__(self, n_frames: int, n_steps: int, gamma: float) -> None:
        FrameStackTransitionPicker.__init__(self, n_frames)
        MultiStepTransitionPicker.__init__(self, n_steps, gamma)


class SparseRewardTransitionPicker(BasicTransitionPicker):
    """One-step transitions of tasks that reward nothing but success, such as mazes, for algorithms like Cal-QL.

    Where all rewards from a step to the end of its episode are ``step_reward``, the goal was not reached, and the
    discounted return says only how long the episode was. Such steps have ``failure_return`` as their return.

    Args:
        failure_return: return of steps without a later success; it is scaled as rewards are.
        step_reward: reward of steps without success.
    """

    def __init__(self, failure_return: float, step_reward: float = 0.0) -> None:
        failure_return = check("failure_return", failure_return, float)
        self.failure = float(failure_return), float(check("step_reward", step_reward, float))

    def _rewards_to_go(self, episode: EpisodeBase, index: int) -> Array:
        value, step_reward = self.failure
        rewards = episode.rewards[index:]
        return np.array([[value]], np.float32) if (rewards == np.float32(step_reward)).all() else rewards


def extra_columns(storage: Storage, rows: Any) -> dict[str, Any]:
    """Extra columns at ``rows``, without the start states of recurrent networks."""
    return {
        name.removeprefix("extra."): storage.place.to_network(storage.take(name, rows))
        for name in storage.extra_names
        if not name.startswith("extra.state.")
    }


def next_action_columns(storage: Storage, after: Any) -> dict[str, Any]:
    """Actions of the rows ``after`` ``[...]`` steps, for `TransitionMiniBatch.extra`.

    Returns:
        ``next_action`` ``[..., A]`` and float32 ``next_action_known`` ``[..., 1]``. After the last step of an episode
        nothing was done (or, in a running one, not yet): both are 0 there.
    """
    place, known = storage.place, ~storage.take_flags(after, FINAL)
    action = place.zero_where(place.to_action(storage.take("action", after)), ~known)
    return {"next_action": action, "next_action_known": place.to_float(known)[..., None]}


@lru_cache
def _vectorised_class(cls: type, names: tuple[str, ...]) -> bool:
    nearest = next(base for base in cls.__mro__ if not {"__call__", *names}.isdisjoint(vars(base)))
    return not set(names).isdisjoint(vars(nearest))


def is_vectorised(part: Any, names: tuple[str, ...] = ("batch", "observe")) -> bool:
    """Whether a picker or slicer makes batches itself.

    A user's class that derives from a built-in one and changes only ``__call__`` does not: its change would be lost.
    """
    cls: type = type(part)
    return hasattr(cls, "batch") and _vectorised_class(cls, names)


@dataclass(frozen=True)
class Columns:
    """Columns that are requested beside the steps.

    Attributes:
        next_actions: see `next_action_columns`.
        returns: makes the column ``discounted_return``.
    """

    next_actions: bool = False
    returns: DiscountedReturns | None = None

    def read(self, storage: Storage, picker: Any, rows: Any, after: Callable[[], Any]) -> dict[str, Any]:
        """The columns of the steps at ``rows``, whose next observations are those of the rows ``after()``."""
        columns: dict[str, Any] = {}
        if self.returns is not None:
            columns |= self.returns.columns(storage, rows, getattr(picker, "failure", None))
        if self.next_actions:
            columns |= next_action_columns(storage, after())
        return columns


NO_COLUMNS = Columns()
