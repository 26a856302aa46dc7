"""Preprocessing of steps before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from birl.dataset.episode import stack_trees
from birl.spaces.conversion import to_array, to_arrays
from birl.types import Array, Observation, Tree, as_parts, map_unmasked, parts_like, tree_leaves, tree_map


@runtime_checkable
class WriterPreprocessProtocol(Protocol):
    """Preprocessor that changes each step before it is stored. Methods return their argument unless overridden."""

    def process_observation(self, observation: Observation) -> Observation:
        """Return the observation to store. It is also called for final observations."""
        return observation

    def process_action(self, action: Array) -> Array:
        """Return the action to store."""
        return action

    def process_reward(self, reward: Array) -> Array:
        """Return the reward to store."""
        return reward


class BasicWriterPreprocess(WriterPreprocessProtocol):
    """Preprocessor that leaves steps unchanged."""


class LastFrameWriterPreprocess(BasicWriterPreprocess):
    """Preprocessor that stores only the newest frame ``[1, …]`` of stacked observations ``[n, …]``, and action masks.

    `birl.dataset.FrameStackTransitionPicker` makes the stacks again when they are sampled, so frames are stored once.
    """

    def process_observation(self, observation: Observation) -> Observation:
        """Return the last item of the first axis, with that axis."""
        return _last_frames(np.s_[-1:], as_parts(observation))


def _last_frames(index: slice | tuple[slice, ...], observation: Tree) -> Tree:
    return map_unmasked(lambda frames: tree_map(lambda leaf: to_array("observation", leaf)[index], frames), observation)


def process_observations(method: Callable[[Tree], Tree], observations: Tree) -> Tree:
    """Apply a writer's ``process_observation`` to each of the observations ``[n, …]``."""
    if not _is_overridden(method):
        return observations
    if getattr(method, "__func__", method) is LastFrameWriterPreprocess.process_observation:
        return _last_frames(np.s_[:, -1:], observations)
    # copies, because the policy also reads the observations
    observations = tree_map(lambda leaf: to_array("observation", leaf).copy(), observations)

    def process(index: int) -> Tree:
        one = tree_map(lambda leaf: leaf[index], observations)
        return to_arrays("observation", parts_like(method(one), observations))

    return stack_trees(map(process, range(len(next(tree_leaves(observations))))))


def process_rows(method: Callable[[Array], Array], rows: npt.ArrayLike) -> npt.ArrayLike:
    """Apply a writer's ``process_action`` or ``process_reward`` to each of ``rows``, which are arrays."""
    return (
        np.stack([to_array("a row", method(row)) for row in to_array("rows", rows).copy()])
        if _is_overridden(method)
        else rows
    )


def _is_overridden(method: Callable[..., Any]) -> bool:
    return getattr(method, "__func__", method) not in vars(WriterPreprocessProtocol).values()
