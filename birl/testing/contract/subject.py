"""The subject of the contract: a configuration and the sizes its networks are built for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from birl.acting.context import GreedyTransformerActionSampler
from birl.dataset import MDPDataset
from birl.run.protocols import Rollout
from birl.testing.data import build_algorithm, mark, random_actions, random_dataset, random_observations, random_steps
from birl.types import ActionSpace, Array, Batch, Tree, tree_leaves, tree_map

EPISODE = 5  # steps of every episode of the data
LANES = 4  # environments of a rollout


@dataclass(frozen=True)
class Subject:
    """A configuration, and the observations and actions that its networks are built for.

    Attributes:
        config: configuration of the algorithm.
        observation_shape: shape of the observations.
        action_size: number of action dimensions or of discrete actions.
        discrete_action: only for algorithms that handle both kinds of actions.
        seed: of parameters and data.
    """

    config: Any
    observation_shape: Any = (3,)
    action_size: int = 2
    discrete_action: bool | None = None
    seed: int = 0

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        space = self.config.algorithm.actions
        return bool(self.discrete_action) if space is ActionSpace.BOTH else space is ActionSpace.DISCRETE

    @property
    def experience(self) -> Any:
        """The experience that the algorithm learns from."""
        return self.config.algorithm.learns_from

    def with_config(self, **fields: Any) -> Subject:
        """The same subject with other fields; those that the configuration lacks are ignored."""
        known = {item.name for item in dataclasses.fields(self.config)}
        return replace(self, config=replace(self.config, **{k: v for k, v in fields.items() if k in known}))

    def has(self, field: str) -> bool:
        """Whether the configuration has a field."""
        return any(item.name == field for item in dataclasses.fields(self.config))

    def build(self, seed: int | None = None) -> Any:
        """A new algorithm."""
        return build_algorithm(
            self.config,
            self.observation_shape,
            self.action_size,
            discrete_action=self.discrete,
            seed=self.seed if seed is None else seed,
        )

    def inputs(self, algorithm: Any, count: int) -> list[Any]:
        """``count`` minibatches or rollouts."""
        if self.experience.on_policy:
            generator = np.random.default_rng(self.seed)
            return [self.rollout(algorithm, generator) for _ in range(count)]
        dataset = self.dataset()
        return [algorithm.sample_minibatch(dataset) for _ in range(count)]

    def batches(self, algorithm: Any, item: Any) -> list[Batch]:
        """The batches that the engine would see for one of `inputs`. Nothing is learned."""
        seen: list[Batch] = []

        def see(batch: Batch, only: Sequence[str] | None = None) -> dict[str, Tensor]:
            seen.append(batch)
            return {}

        algorithm.engine.update = see
        algorithm.engine.is_due = lambda name: True  # or a batch may lack what only steps that are not due need
        try:
            algorithm.update(item)
        finally:
            del algorithm.engine.update, algorithm.engine.is_due
        return seen

    def first_batches(self, algorithm: Any) -> list[Batch]:
        """The batches that the engine would see in the first update."""
        batches = self.batches(algorithm, self.inputs(algorithm, 1)[0])
        assert batches, "an update gave the engine no batch"
        return batches

    def dataset(self, marked: bool = False) -> MDPDataset:
        """Random episodes; see `birl.testing.random_dataset`."""
        return random_dataset(
            self.observation_shape,
            self.action_size,
            discrete_action=self.discrete,
            episode_length=EPISODE,
            marked=marked,
            seed=self.seed,
        )

    def rollout(self, algorithm: Any, generator: np.random.Generator, marked: bool = False) -> Rollout:
        """Random steps of `LANES` environments; every second episode is truncated."""
        lead = (4 * EPISODE, LANES)
        episode, step = (np.broadcast_to(x[:, None], lead) for x in np.divmod(np.arange(lead[0]), EPISODE))
        last, odd = step == EPISODE - 1, episode % 2 == 1
        observation, following = random_steps(generator, self.observation_shape, last)
        if marked:
            own = episode * LANES + np.arange(LANES)
            observation, following = mark(own, step), mark(own, step + 1)
        states = {name: algorithm.nets.get_submodule(name).state_size for name in algorithm.engine.recurrent}
        return Rollout(
            observation=observation,
            action=random_actions(generator, self.action_size, lead, self.discrete),
            reward=generator.normal(size=lead).astype(np.float32),
            next_observation=following,
            terminated=last & ~odd,
            truncated=last & odd,
            is_first=step == 0,
            valid=np.ones(lead, bool),
            extra={f"state.{name}": np.zeros((*lead, size), np.float32) for name, size in states.items()},
        )

    def observations(self, count: int, size: float = 1.0) -> Tree:
        """Random observations ``[count, …]``."""
        generator = np.random.default_rng(self.seed + 1)
        return tree_map(lambda x: x * np.float32(size), random_observations(generator, self.observation_shape, count))

    def contexts(self, algorithm: Any, count: int) -> tuple[Tree, Array, Array, Array]:
        """Random contexts of a sequence model, of different lengths."""
        generator, length = np.random.default_rng(self.seed + 2), algorithm.config.context_size
        end = np.arange(count)[:, None] + 1
        timestep = np.maximum(end + np.arange(length) - (length - 1), 0)
        observations = random_observations(generator, self.observation_shape, count, length)
        actions = random_actions(generator, self.action_size, (count, length), self.discrete)
        return (
            observations,
            actions[..., None] if self.discrete else actions,
            generator.normal(size=(count, length, 1)).astype(np.float32),
            timestep.astype(np.int64),
        )

    def act(self, algorithm: Any, x: Tree, greedy: bool = True) -> Array:
        """Actions for the first steps of episodes."""
        if self.experience.contexts:
            rows = [tree_map(lambda leaf, i=i: leaf[i], x) for i in range(len(next(tree_leaves(x))))]
            sampler = GreedyTransformerActionSampler() if self.discrete else None
            return np.stack([algorithm.as_stateful_wrapper(1.0, sampler).predict(row, 0.0) for row in rows])
        return algorithm.predict(x) if greedy else algorithm.sample_action(x)  # type: ignore[no-any-return]
