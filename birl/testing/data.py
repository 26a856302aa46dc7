"""Random data and freshly built algorithms, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl.dataset import MDPDataset
from birl.seeding import seed as seed_everything
from birl.types import ActionSpace, Array, Batch, Tree, shape_map, tree_map


def build_algorithm(
    config: Any,
    observation_shape: Any = (3,),
    action_size: int = 2,
    *,
    discrete_action: bool | None = None,
    seed: int = 0,
) -> Any:
    """An algorithm with networks, made after seeding everything.

    Args:
        config: its configuration.
        observation_shape: shape of the observations.
        action_size: number of action dimensions or of discrete actions.
        discrete_action: only for algorithms that handle both kinds of actions.
        seed: of the parameters.
    """
    seed_everything(seed)
    algorithm = config.create()
    algorithm.create_impl(observation_shape, action_size, discrete_action=discrete_action)
    return algorithm


def random_batch(size: int = 6, *, action_size: int = 2, seed: int = 0, **extra: Tensor) -> Batch:
    """Transitions ``[size]`` with 3 observation dimensions, continuous actions and a discount of 0.9.

    Args:
        size: number of transitions.
        action_size: number of action dimensions.
        seed: of the numbers.
        extra: further tensors of the batch by name.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observation, action, reward, following = normal(size, 3), normal(size, action_size), normal(size), normal(size, 3)
    one = torch.ones(size)
    return Batch(observation, action.tanh(), reward, following, 0.9 * one, one, extra=extra)


def random_dataset(
    observation_shape: Any = (3,),
    action_size: int = 2,
    *,
    discrete_action: bool = False,
    episodes: int = 12,
    episode_length: int = 5,
    action_scale: float = 0.9,
    marked: bool = False,
    seed: int = 0,
    **options: Any,
) -> MDPDataset:
    """Random episodes of equal length. Every second one is truncated, and its last transition is kept.

    Args:
        observation_shape: shape of the observations.
        action_size: number of action dimensions or of discrete actions.
        discrete_action: the kind of actions.
        episodes: number of episodes.
        episode_length: number of steps in each.
        action_scale: continuous actions are uniform between minus and plus this number.
        marked: whether observations are ``(episode, step, 0)`` instead of random numbers.
        seed: of the numbers.
        options: passed to `birl.dataset.MDPDataset`; ``next_observations=None`` forgets what follows a truncation.
    """
    generator, count = np.random.default_rng(seed), episodes * episode_length
    episode, step = np.divmod(np.arange(count), episode_length)
    last, odd = step == episode_length - 1, episode % 2 == 1
    observation, following = random_steps(generator, observation_shape, last)
    if marked:
        observation = mark(episode, step)
        following = mark(episode, step + 1)
    actions = random_actions(generator, action_size, (count,), discrete_action, action_scale)
    return MDPDataset(
        observation,
        actions[:, None] if discrete_action else actions,
        generator.normal(size=count).astype(np.float32),
        (last & ~odd).astype(np.float32),
        (last & odd).astype(np.float32),
        action_space=ActionSpace.DISCRETE if discrete_action else ActionSpace.CONTINUOUS,
        action_size=action_size,
        **{"next_observations": following, **options},
    )


def random_observations(generator: np.random.Generator, shape: Any, *lead: int) -> Tree:
    """A tree of normal numbers ``[*lead, *shape]``."""
    return shape_map(lambda leaf: generator.normal(size=(*lead, *leaf)).astype(np.float32), shape)


def random_steps(generator: np.random.Generator, shape: Any, last: Array) -> tuple[Tree, Tree]:
    """Observations and next observations of steps along the first axis; ``last`` marks the ends of episodes."""
    observation, ends = (random_observations(generator, shape, *last.shape) for _ in range(2))

    def following(x: Array, end: Array) -> Array:
        at_end = last.reshape(last.shape + (1,) * (x.ndim - last.ndim))
        return np.where(at_end, end, np.concatenate([x[1:], x[:1]]))

    return observation, tree_map(following, observation, ends)


def random_actions(
    generator: np.random.Generator, size: int, lead: tuple[int, ...], discrete: bool, scale: float = 0.9
) -> Array:
    """Integers ``[*lead]`` below ``size``, or floats ``[*lead, size]`` between minus and plus ``scale``."""
    if discrete:
        return generator.integers(size, size=lead)
    return generator.uniform(-scale, scale, (*lead, size)).astype(np.float32)


def mark(episode: Array, step: Array) -> Array:
    """Observations ``(episode, step, 0)``, from which a test can tell where a step came from."""
    return np.stack([episode, step, np.zeros(step.shape)], -1).astype(np.float32)
