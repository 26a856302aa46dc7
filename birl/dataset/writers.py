"""Preprocessing of steps before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from birl.dataset.episode import stack_trees
from birl.types import Array, Observation, Tree, as_parts, beside_mask, parts_like, tree_leaves, tree_map


@runtime_checkable
class WriterPreprocessProtocol(Protocol):
    """Changes one step on its way into a buffer. A method that is not overridden changes nothing."""

    def process_observation(self, observation: Observation) -> Observation:
        """The observation to store; final observations pass here too."""
        return observation

    def process_action(self, action: Array) -> Array:
        """The action to store."""
        return action

    def process_reward(self, reward: Array) -> Array:
        """The reward to store."""
        return reward


class BasicWriterPreprocess(WriterPreprocessProtocol):
    """Stores steps unchanged."""


class LastFrameWriterPreprocess(BasicWriterPreprocess):
    """Stores only the newest frame of stacked observations ``[n, …]``, as ``[1, …]``; a mask of actions stays whole.

    With `birl.dataset.FrameStackTransitionPicker` the stack is made again when it is sampled: a frame is stored once.
    """

    def process_observation(self, observation: Observation) -> Observation:
        """The last item of the first axis, axis kept."""
        return _last_frames(np.s_[-1:], as_parts(observation))


def _last_frames(where: Any, observation: Tree) -> Tree:
    return beside_mask(lambda frames: tree_map(lambda leaf: np.asarray(leaf)[where], frames), observation)


def process_observations(method: Callable[[Tree], Tree], observations: Tree) -> Tree:
    """The results of a writer's ``process_observation`` for each of the observations ``[n, …]``."""
    if not _overrides(method):
        return observations
    if getattr(method, "__func__", method) is LastFrameWriterPreprocess.process_observation:
        return _last_frames(np.s_[:, -1:], tree_map(np.asarray, observations))
    observations = tree_map(np.array, observations)  # the next action is chosen on these: a method gets copies

    def process(index: int) -> Tree:
        one = tree_map(lambda leaf: leaf[index], observations)
        return tree_map(np.asarray, parts_like(method(one), observations))

    return stack_trees(map(process, range(len(next(tree_leaves(observations))))))


def process_rows(method: Callable[[Any], Any], rows: Any) -> Any:
    """The results of a writer's ``process_action`` or ``process_reward`` for each of ``rows``, which are no trees."""
    return np.stack([np.asarray(method(row)) for row in np.array(rows)]) if _overrides(method) else rows


def _overrides(method: Callable[..., Any]) -> bool:
    return getattr(method, "__func__", method) not in vars(WriterPreprocessProtocol).values()
