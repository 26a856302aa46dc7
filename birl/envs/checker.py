"""A check that an environment conforms to its spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space

from birl.envs.stepper import Stepper
from birl.errors import EnvironmentMismatchError
from birl.spaces import read_action_mask
from birl.spaces.specs import environment_spec, single_spaces
from birl.types import Array, Environment, Tree, tree_leaves, tree_map


def check_environment(env: Environment, n_steps: int = 100, seed: int = 0) -> None:
    """Take random steps in an environment (or vector environment) and compare them with its spaces.

    Checks that the spaces are supported, that observations are in the observation space, that all numbers are finite,
    and that equal seeds and actions give equal observations, which exact resume needs. If observations have a mask of
    actions (see `ActionMask`), all actions are allowed ones.

    Args:
        env: environment or vector environment. It is left in the middle of an episode.
        n_steps: number of steps.
        seed: seed of resets and actions.

    Raises:
        EnvironmentMismatchError: naming the violation.
        NonFiniteError: if a reward or observation is NaN or infinite.
    """
    environment_spec(env)
    space, _ = single_spaces(env)
    stepper = Stepper(env, np.random.Generator(np.random.PCG64(seed)))
    generator = np.random.Generator(np.random.PCG64(seed))
    actions, trace = [], []
    for _ in range(n_steps):
        observation = stepper.observation
        allowed = read_action_mask(stepper.actions, observation)
        actions.append(stepper.actions.sample(stepper.n, generator, allowed))
        _check_inside(space, observation, np.ones(stepper.n, bool))
        step = stepper.step(actions[-1])
        _check_inside(space, step.next_observation, step.valid)  # also at the end of an episode
        trace.append(observation)

    again = Stepper(env, np.random.Generator(np.random.PCG64(seed)))
    for count, (action, expected) in enumerate(zip(actions, trace, strict=True)):
        if not all(map(np.array_equal, tree_leaves(again.observation), tree_leaves(expected))):
            raise EnvironmentMismatchError(
                f"with equal seeds and actions the observation of step {count} differs, so runs cannot be repeated or "
                "resumed exactly: draw all random numbers from self.np_random"
            )
        again.step(action)


def _check_inside(space: Space[Any], observation: Tree, valid: Array) -> None:
    """Raise `EnvironmentMismatchError` if one of the valid observations ``[n, …]`` is not in the space."""
    for index in np.flatnonzero(valid):
        single = tree_map(lambda leaf, i=index: leaf[i], observation)
        if not space.contains(single):
            raise EnvironmentMismatchError(
                f"the observation {single!r:.300} is not in the declared space {space}: correct one of them"
            )
