"""The subject of the contract: a configuration, and the sizes for which its networks are built."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from birl.algorithm import Algorithm, AlgorithmConfig, Experience
from birl.algorithm.building import checked_spec
from birl.dataset import MDPDataset
from birl.engine.steps import Gradients, Training
from birl.run.protocols import Minibatch, Rollout
from birl.spaces import Actions
from birl.testing.data import build_algorithm, random_columns, random_dataset, random_observations
from birl.testing.learning import greedy_actor
from birl.types import ActionSpace, Array, Batch, Shape, Tree, tree_leaves, tree_map

EPISODE = 5  # number of steps in every episode of the data
LANES = 4  # number of environments in a rollout


@dataclass(frozen=True)
class Subject:
    """A configuration, and the observations and actions for which its networks are built.

    Attributes:
        config: configuration of the algorithm.
        observation_shape: shape of the observations, or another description; see `birl.spaces.specs.Spec`.
        action_size: number of action dimensions or of discrete actions, or a list of numbers of options.
        discrete_action: only for algorithms that handle both kinds of actions, which are continuous by default.
        seed: seed of parameters and data.
        device: training device; see `AlgorithmConfig.create`.
    """

    config: AlgorithmConfig
    observation_shape: Shape = (3,)
    action_size: int | Sequence[int] = 2
    discrete_action: bool | None = None
    seed: int = 0
    device: bool | int | str | None = None

    @property
    def actions(self) -> Actions:
        """The actions of the algorithm."""
        definition = self.config.algorithm.definition()
        number = isinstance(self.action_size, int)
        either = number and ActionSpace.BOTH in definition.actions and self.discrete_action is None
        discrete = False if either else self.discrete_action
        return checked_spec(definition, self.observation_shape, self.action_size, discrete).actions

    @property
    def experience(self) -> Experience:
        """The experience from which the algorithm learns."""
        return self.config.algorithm.learns_from

    def with_config(self, **fields: Any) -> Subject:
        """Return the same subject with other fields. Fields that the configuration lacks are ignored."""
        known = {name: value for name, value in fields.items() if hasattr(self.config, name)}
        return replace(self, config=replace(self.config, **known))

    def build(self, seed: int | None = None) -> Algorithm[Any, Any]:
        """Return a new algorithm."""
        return build_algorithm(
            self.config,
            self.observation_shape,
            self.actions,
            seed=self.seed if seed is None else seed,
            device=self.device,
        )

    def inputs(self, algorithm: Algorithm[Any, Any], count: int, *, marked: bool = False) -> list[Any]:
        """Return ``count`` minibatches or rollouts of random data; see `birl.testing.random_dataset`."""
        if self.experience.on_policy:
            return [self._rollout(algorithm, self.seed + index, marked) for index in range(count)]
        dataset = self._dataset(marked)
        return [algorithm.sample_minibatch(dataset) for _ in range(count)]

    def batches(self, algorithm: Algorithm[Any, Any], item: Minibatch | Batch) -> list[Batch]:
        """Return the batches that one of `inputs` gives the engine, without an update."""
        seen: list[Batch] = []

        def record(batch: Batch, only: Sequence[str] | None = None) -> dict[str, Tensor]:
            seen.append(batch)
            return {}

        # all steps are due: a batch may lack columns that only later steps need
        with patch.multiple(algorithm.engine, update=record, is_due=lambda name: True):
            algorithm.update(item)
        return seen

    def first_batches(self) -> tuple[Algorithm[Any, Any], list[Batch]]:
        """Return a new algorithm, and the batches of its first update."""
        algorithm = self.build()
        batches = self.batches(algorithm, self.inputs(algorithm, 1)[0])
        assert batches, "an update gave the engine no batch"
        return algorithm, batches

    def _dataset(self, marked: bool) -> MDPDataset:
        return random_dataset(
            self.observation_shape,
            self.actions,
            episode_length=EPISODE,
            marked=marked,
            seed=self.seed,
        )

    def _rollout(self, algorithm: Algorithm[Any, Any], seed: int, marked: bool) -> Rollout:
        """Return random steps of `LANES` environments, each with 4 episodes; every second one is truncated."""
        steps = random_columns(seed, self.observation_shape, self.actions, 4 * LANES, EPISODE, 0.9, marked)

        def time_first(x: Array) -> Array:
            return x.reshape(LANES, 4 * EPISODE, *x.shape[1:]).swapaxes(0, 1)

        columns = {name: tree_map(time_first, column) for name, column in steps.items()}
        lead = columns["reward"].shape
        states = {name: algorithm.nets.get_submodule(name).state_size for name in algorithm.engine.recurrent}
        extra = {f"state.{name}": np.zeros((*lead, size), np.float32) for name, size in states.items()}
        expert = None
        if self.experience.needs_demonstrations:
            expert = self._dataset(marked).sample_transition_batch(lead[0] * lead[1])
        return Rollout(**columns, valid=np.ones(lead, bool), extra=extra, expert=expert)

    def goodness(self, action: Array) -> Array:
        """Return the quality of actions in a `bandit`: 1 for the best action, about 0 on average."""
        if self.actions.discrete:
            good = np.where(np.asarray(action) == 0, 1.0, -0.5).astype(np.float32)
            return good.mean(-1) if self.actions.shape else good
        return np.asarray(action)[..., 0].astype(np.float32) / np.float32(0.9)

    def bandit_action(self, count: int, best: bool) -> Array:
        """Return the best or the worst action of a `bandit`, ``count`` times."""
        actions = self.actions
        action = np.zeros((count, *actions.storage_spec.shape), actions.storage_spec.dtype)
        if actions.discrete:
            return action if best else action + 1
        action[:, 0] = 0.9 if best else -0.9
        return action

    def bandit(self, algorithm: Algorithm[Any, Any], sign: float) -> Callable[[], Any]:
        """Return a function that draws minibatches or rollouts of random actions in episodes of one step.

        Rewards are ``sign * (1 + 2 * goodness)``.
        """

        def reward(action: Array) -> Array:
            return (sign * (1 + 2 * self.goodness(action))).astype(np.float32)

        if self.experience.on_policy:
            seeds = itertools.count(self.seed)

            def rollout() -> Rollout:
                drawn = self._rollout(algorithm, next(seeds), marked=False)
                ended = np.ones_like(drawn.terminated)
                return replace(drawn, reward=reward(drawn.action), terminated=ended, truncated=~ended, is_first=ended)

            return rollout
        actions = self.actions
        data = random_columns(self.seed, self.observation_shape, actions, 64, 1, 0.9, False)
        action = data["action"].reshape(-1, *actions.storage_spec.shape)
        ends = np.ones(len(action), np.float32)
        dataset = MDPDataset(
            data["observation"],
            action,
            reward(action),
            ends,
            0 * ends,
            action_space=actions.kind,
            action_size=actions.size_argument,
            observation_space=self.observation_shape,
        )
        return lambda: algorithm.sample_minibatch(dataset)

    def observations(self, count: int, size: float = 1.0) -> Tree:
        """Return random observations ``[count, …]``."""
        generator = np.random.default_rng(self.seed + 1)
        drawn = random_observations(generator, self.observation_shape, count)
        return tree_map(lambda x: x * np.float32(size) if x.dtype.kind == "f" else x, drawn)

    def contexts(self, algorithm: Algorithm[Any, Any], count: int) -> tuple[Tree, Array, Array, Array]:
        """Return contexts of a sequence model, from episodes of random data."""
        batch = self._dataset(marked=False).sample_trajectory_batch(count, algorithm.config.context_size)
        return batch.observations, batch.actions, batch.returns_to_go, batch.timesteps

    def act(self, algorithm: Algorithm[Any, Any], x: Tree, greedy: bool = True) -> Array:
        """Return actions for the first steps of episodes."""
        if not self.experience.contexts:
            return algorithm.predict(x) if greedy else algorithm.sample_action(x)  # type: ignore[no-any-return]
        count = len(next(tree_leaves(x)))
        actor = greedy_actor(algorithm, 1.0, count)
        return actor(x, np.ones(count, bool), np.zeros(count, np.float32))  # type: ignore[no-any-return]


def gradients(
    algorithm: Algorithm[Any, Any], step: Training, batch: Batch, config: AlgorithmConfig | None = None
) -> Gradients:
    """Return the gradients of a step's loss, always with the same random draws."""
    torch.manual_seed(0)
    parameters = algorithm.engine.parameters[step.name]
    value = step.loss(algorithm.nets, batch, algorithm.config if config is None else config).value
    found = torch.autograd.grad(value, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def keeping_still(config: AlgorithmConfig) -> dict[str, float | None]:
    """Return fields with which an update changes nothing: learning rates, trust regions and adaptive weights."""
    names = [item.name for item in fields(config)]
    still = {name: 0.0 for name in names if name.endswith("learning_rate") or name == "max_kl"}
    return still | {name: None for name in names if name == "kl_penalty_target"}


@contextmanager
def randomly_moved(module: nn.Module) -> Iterator[None]:
    """Perturb the parameters of a module inside the context."""
    parameters = [parameter.detach() for parameter in module.parameters()]  # they share memory, and no graph
    before = [parameter.clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter += torch.randn(parameter.shape, generator=generator).to(parameter)
    yield
    for parameter, old in zip(parameters, before, strict=True):
        parameter.copy_(old)
