"""Random data and freshly built algorithms, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl.algorithm import Algorithm, AlgorithmConfig
from birl.dataset import MDPDataset
from birl.seeding import seed as seed_everything
from birl.spaces import Actions, parse_actions
from birl.spaces.observations import Choices, ObservationLeaf, parse_observations
from birl.types import ActionSpace, Array, Batch, Shape, Tree, tree_map


def build_algorithm(
    config: AlgorithmConfig,
    observation_shape: Shape = (3,),
    action_size: int | Sequence[int] | Actions = 2,
    *,
    discrete_action: bool | None = None,
    seed: int = 0,
    device: bool | int | str | None = None,
) -> Algorithm[Any, Any]:
    """Seed all generators, and make an algorithm with networks.

    Args:
        config: configuration of the algorithm.
        observation_shape: shape of the observations, or another description; see `birl.spaces.specs.Spec`.
        action_size: number of action dimensions or of discrete actions; see `birl.spaces.parse_actions`.
        discrete_action: only for algorithms that handle both kinds of actions.
        seed: seed of the parameters.
        device: see `AlgorithmConfig.create`.
    """
    seed_everything(seed)
    algorithm = config.create(device)
    algorithm.create_impl(observation_shape, action_size, discrete_action=discrete_action)
    return algorithm


def random_batch(size: int = 6, *, action_size: int = 2, seed: int = 0, **extra: Tensor) -> Batch:
    """Return transitions ``[size]`` with 3 observation dimensions, continuous actions and a discount of 0.9.

    Args:
        size: number of transitions.
        action_size: number of action dimensions.
        seed: seed of the numbers.
        extra: further tensors of the batch by name.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    observation, action, reward, following = normal(size, 3), normal(size, action_size), normal(size), normal(size, 3)
    one = torch.ones(size)
    return Batch(observation, action.tanh(), reward, following, 0.9 * one, one, extra=extra)


def random_dataset(
    observation_shape: Shape = (3,),
    action_size: int | Sequence[int] | Actions = 2,
    *,
    discrete_action: bool = False,
    episodes: int = 12,
    episode_length: int = 5,
    action_scale: float = 0.9,
    marked: bool = False,
    seed: int = 0,
    **options: Any,
) -> MDPDataset:
    """Return random episodes of equal length. Every second one is truncated, and its last transition is kept.

    Args:
        observation_shape: shape of the observations, or another description; see `birl.spaces.specs.Spec`.
        action_size: number of action dimensions or of discrete actions; see `birl.spaces.parse_actions`.
        discrete_action: whether actions are discrete.
        episodes: number of episodes.
        episode_length: number of steps in each episode.
        action_scale: bound of continuous actions, which are uniform between minus and plus this number.
        marked: whether observations are ``(episode, step, 0)`` instead of random numbers.
        seed: seed of the numbers.
        options: passed to `birl.dataset.MDPDataset`; ``next_observations=None`` omits observations after truncations.
    """
    kind = ActionSpace.DISCRETE if discrete_action else ActionSpace.CONTINUOUS
    actions = parse_actions(action_size, kind if isinstance(action_size, int) else None)
    columns = random_columns(seed, observation_shape, actions, episodes, episode_length, action_scale, marked)
    return MDPDataset(
        columns["observation"],
        columns["action"].reshape(-1, *actions.storage_spec.shape),
        columns["reward"],
        columns["terminated"].astype(np.float32),
        columns["truncated"].astype(np.float32),
        action_space=actions.kind,
        action_size=actions.size_argument,
        **{"next_observations": columns["next_observation"], "observation_space": observation_shape, **options},
    )


def random_observations(generator: np.random.Generator, shape: Shape, count: int) -> Tree:
    """Return a tree of normal numbers ``[count, *shape]``; leaves of choices have random values instead."""

    def draw(leaf: ObservationLeaf) -> Array:
        if isinstance(leaf, Choices):
            low, sizes = np.reshape(leaf.starts, leaf.shape), np.reshape(leaf.sizes, leaf.shape)
            return generator.integers(low, low + sizes, (count, *leaf.shape))
        return generator.normal(size=(count, *leaf.shape)).astype(np.float32)

    return tree_map(draw, parse_observations(shape))


def random_columns(
    seed: int, shape: Shape, actions: Actions, episodes: int, length: int, scale: float, marked: bool
) -> dict[str, Tree]:
    """Return the columns of random episodes for `random_dataset`, concatenated; actions are ``[n, *actions.shape]``."""
    generator, count = np.random.default_rng(seed), episodes * length
    episode, step = np.divmod(np.arange(count), length)
    last, odd = step == length - 1, episode % 2 == 1
    observation, ends = (random_observations(generator, shape, count) for _ in range(2))
    if marked:
        observation = np.stack([episode, step, np.zeros(count)], -1).astype(np.float32)
        ends = observation + np.array([0, 1, 0], np.float32)
    following = tree_map(lambda x: np.concatenate([x[1:], x[:1]]), observation)
    tree_map(lambda x, end: x.__setitem__(last, end[last]), following, ends)
    if actions.discrete:
        action = actions.sample(count, generator)
    else:
        action = generator.uniform(-scale, scale, (count, *actions.shape)).astype(np.float32)
    return {
        "observation": observation,
        "action": action,
        "reward": generator.normal(size=count).astype(np.float32),
        "next_observation": following,
        "terminated": last & ~odd,
        "truncated": last & odd,
        "is_first": step == 0,
    }
