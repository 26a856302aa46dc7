"""The interfaces of the objects that loops use. This module imports no algorithm.

An algorithm is a `Trainable`. Its `Learner` updates the networks, and its `Actor` selects actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from birl.dataset import MixedReplayBuffer, ReplayBuffer, ReplayBufferBase
from birl.dataset.minibatch import MiniBatch, TransitionMiniBatch
from birl.dataset.reader import MinibatchSource
from birl.files.state_restore import Stateful as Stateful
from birl.spaces.conversion import Columns
from birl.spaces.specs import Spec
from birl.types import Array, Environment, State, Tree

EnvironmentLike: TypeAlias = "Environment | str | Callable[[int], Environment]"
"""An environment, its name, or, for collectors, a function that creates an environment, given its number."""

Metrics: TypeAlias = "dict[str, Tensor]"
"""Metrics of an update, by name: 0-dimensional tensors on the training device."""

StepBuffer: TypeAlias = ReplayBuffer | MixedReplayBuffer
"""A replay buffer that steps of environments can be appended to."""


class ReplaySource(MinibatchSource, Protocol):
    """A source of minibatches whose random generators a checkpoint can hold: a dataset, buffer or reader."""

    def get_state(self, *, contents: bool = ...) -> State:
        """Return the state of random generators and samplers and, with ``contents``, the stored steps."""

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""


class TransitionCounter(Protocol):
    """An object that counts the transitions that can be sampled."""

    @property
    def transition_count(self) -> int: ...


class Callback(Protocol):
    """A function that is called after a step or an epoch: ``callback(algorithm, epoch, total_step)``."""

    def __call__(self, algorithm: Any, epoch: int, total_step: int, /) -> object:
        """React to the end of a step or an epoch.

        Args:
            algorithm: the algorithm that is being trained.
            epoch: number of the epoch, from 1.
            total_step: number of steps made so far.

        Returns:
            ``False`` to end the run; anything else, such as ``None``, to continue.
        """


class Evaluator(Protocol):
    """A function that is called after each epoch: ``evaluator(algorithm, dataset)``. See `birl.metrics`."""

    def __call__(self, algorithm: Any, dataset: Any, /) -> float | Mapping[str, float]:
        """Evaluate an algorithm.

        Args:
            algorithm: the algorithm that is being trained.
            dataset: the dataset or replay buffer that the algorithm is trained on, or ``None``.

        Returns:
            The metric, or several metrics by name. The one called ``mean`` gets the name of the evaluator.
        """


class Actor(Protocol):
    """Object that selects actions in ``n`` environments at once and keeps recurrent states or contexts between steps.

    An actor reads the learner's current networks, so updates do not require a new actor.

    Attributes:
        extra: values to store with the last actions, by name, each ``[n, …]``. Recurrent networks have
            ``"state.<network>"``, the state *before* the observation; algorithms that require it (`Experience.stores`)
            have ``"policy_action"``. Empty for feed-forward off-policy algorithms.
    """

    extra: dict[str, Array]

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Select actions.

        Args:
            observation: tree of arrays ``[n, *shape]`` as the environment returned them.
            is_first: bool ``[n]``: whether a new episode starts here, so that memory of the previous one is reset.
            reward: float32 ``[n]``: reward of the previous step (0 where ``is_first``).

        Returns:
            Actions in the environment's units: float32 ``[n, action_size]`` or int64 ``[n]``.
        """

    def get_state(self) -> State:
        """Return the memory of the current episodes, and the actor's own random generators."""

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""


class BehaviorPolicy(Protocol):
    """The policy of an algorithm, which collectors copy. See `birl.acting.built_policy.BuiltPolicy`."""

    @property
    def columns(self) -> Columns:
        """The names of the columns of the tables that the algorithm has learned from."""

    @property
    def explores(self) -> bool:
        """Whether sampled actions differ from greedy ones."""

    def add_columns(self, columns: Columns, what: str) -> None:
        """Take the names of the columns of further data, called ``what``; see `merge_columns`, which raises errors."""

    def weights(self) -> State:
        """Return a copy of everything that actions depend on and that changes in training."""

    def set_weights(self, weights: State) -> None:
        """Load the `weights` of another policy with the same networks."""


class LearnerConfig(Protocol):
    """The part of an algorithm's configuration that loops read."""

    @property
    def batch_size(self) -> int: ...
    def serialize(self) -> dict[str, Any]:
        """Return the JSON form ``{"type": …, "params": …}``, which is also compared when a run is resumed."""


class Learner(Protocol):
    """The part of a built algorithm that updates its networks.

    Attributes:
        shared: names the other processes or seeds that currently learn with it; empty if it learns alone.
    """

    shared: str

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled, so that the first one takes up to a minute."""

    @property
    def update_statistics(self) -> Callable[[Tree, Array, Array, Array], None] | None:
        """Function to call with observations, rewards, ``is_first`` and ``valid`` ``[n, …]`` of each step, if any."""

    @property
    def running_observation_scaler(self) -> bool:
        """Whether a running scaler changes the scale of observations from step to step."""

    @property
    def policy(self) -> BehaviorPolicy:
        """The policy that selects actions."""

    def scaled_observation(self, observation: Tree) -> Tree:
        """Scale observations ``[n, *shape]`` for the networks, as arrays."""

    def update_observation_statistics(self, observation: Tree, valid: Array) -> None:
        """Update the running observation scaler with the observations ``[n, *shape]`` that are valid."""

    def start_run(
        self, source: ReplaySource | None, count: int, *, growing: bool = False, lanes: int = 1
    ) -> ReplaySource:
        """Start a run.

        Args:
            source: dataset or replay buffer; ``None`` for a run that samples nothing.
            count: number of minibatches in the run, which decides whether compiling updates is worth its time.
            growing: whether steps will be appended between updates.
            lanes: number of environments.

        Returns:
            The source to sample from: ``source`` itself, or a copy of its contents on or near the training device.
        """

    def prepare_for_replay(self, rollout: Rollout) -> Rollout:
        """Return a rollout with the columns that a replay buffer stores in addition to the steps."""

    def n_replays(self, count: int) -> int:
        """Return the number of replay updates after a rollout, if the buffer holds ``count`` steps by then."""

    def sample(self, source: MinibatchSource) -> MiniBatch:
        """Sample the input of `update`, with the source's own generator."""

    def update(self, minibatch: Minibatch) -> Metrics:
        """Make an update. It does not wait for the device."""

    def check_compatible(self, ways: Mapping[str, str]) -> None:
        """Raise `UnsupportedError` if the learner does not support some ways of training; see `birl.incompatible`."""

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if a parameter or optimiser moment is NaN or infinite. It waits for the device."""

    def updates_at_once(self, source: ReplaySource) -> int:
        """Return the number of updates with minibatches of ``source`` that one call of `update_many` should make."""

    def update_many(self, source: ReplaySource, count: int) -> Metrics:
        """Make ``count`` updates. Metrics are tensors ``[k]`` with values of the ``k`` updates that computed them."""


@dataclass(frozen=True)
class Exploration:
    """The explorers of an algorithm's last run, whose schedules continue if its next run has the same ones.

    Attributes:
        explorers: the explorers.
        steps: number of steps in all runs with them.
    """

    explorers: Sequence[ExplorerProtocol]
    steps: int


class Trainable(Protocol):
    """The interface of an algorithm that loops use.

    Attributes:
        exploration: the explorers of the last run in environments; ``None`` if there was none.
    """

    exploration: Exploration | None

    @property
    def config(self) -> LearnerConfig: ...
    @property
    def learner(self) -> Learner:
        """The learner, once the networks are built."""

    @property
    def spec(self) -> Spec:
        """Inputs and outputs of the networks, once they are built."""

    def describe(self) -> dict[str, Any]:
        """Return shapes and configuration in JSON form, as in ``params.json``."""

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Build the networks for a dataset, or check that existing ones fit."""

    def build_with_env(self, env: Environment) -> None:
        """Build the networks for an environment or vector environment, or check that existing ones fit."""

    def watch_gradients(self, watch: Callable[[str, Sequence[str], Tensor], None] | None) -> None:
        """Call ``watch(step, parameter names, statistics [n, 4])`` after every update; stop that if it is ``None``."""

    def actor(self, *, greedy: bool, n: int = 1, values: bool = False) -> Actor: ...

    def predict(self, x: Tree) -> Array: ...
    def save(self, fname: str | Path) -> None: ...
    def get_state(self) -> State:
        """Return everything that training depends on: networks, targets, optimisers, schedules, grad_step, scalers.

        Raises:
            NonFiniteError: if a parameter is NaN or infinite: such a state is never written.
        """

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, on an algorithm with the same configuration whose networks are built."""


@dataclass(frozen=True)
class Rollout:
    """Consecutive steps of ``N`` environments, time first: numpy arrays in the environment's units.

    Attributes:
        observation: tree ``[T, N, *shape]``: observations at which the actions were selected.
        action: ``[T, N, action_size]`` float32 or ``[T, N]`` int64, as the actor selected it (the environment received
            it clipped to its bounds). With ``expert``, as the environment received it.
        reward: float32 ``[T, N]``.
        next_observation: tree ``[T, N, *shape]``, after the step; at episode ends the final observation,
            never the first one of the next episode.
        terminated: bool ``[T, N]``.
        truncated: bool ``[T, N]``: never true where ``terminated`` is true.
        is_first: bool ``[T, N]``: whether the step is the first of an episode.
        valid: bool ``[T, N]``: False where no step was made (the reset step of `AutoresetMode.NEXT_STEP`, or
            environments beyond ``n_steps`` in the last row). Updates leave these out, and recursions over time stop
            there.
        extra: the actor's ``extra`` at every step, by name, each ``[T, N, …]``.
        inputs, next_inputs: the observations in the scale of their step, if a running scaler changes it; otherwise
            ``None``.
        expert: a minibatch of ``T * N`` transitions of demonstrations, for algorithms that learn from both.
    """

    observation: Tree
    action: Array
    reward: Array
    next_observation: Tree
    terminated: Array
    truncated: Array
    is_first: Array
    valid: Array
    extra: dict[str, Array]
    inputs: Tree | None = None
    next_inputs: Tree | None = None
    expert: TransitionMiniBatch | None = None

    @property
    def start_state(self) -> dict[str, Array]:
        """Recurrent states ``[N, size]`` before the first step, by network name."""
        prefix = "state."
        return {k.removeprefix(prefix): v[0] for k, v in self.extra.items() if k.startswith(prefix)}


Minibatch: TypeAlias = MiniBatch | Rollout
"""The input of an update."""


class ExplorerProtocol(Protocol):
    """Object that turns greedy actions into exploratory ones. `Stateful` explorers resume exactly."""

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """Return actions ``[n]`` or ``[n, action_size]`` for observations ``x`` ``[n, …]`` at environment ``step``.

        Args:
            algo: has ``predict(x)``, the greedy actions, and the other methods of the algorithm.
            x: tree of arrays ``[n, *shape]``.
            step: number of environment steps so far.
        """
