"""The interfaces of the objects that loops drive. Nothing here imports an algorithm.

An algorithm is a `Trainable`; its networks are moved by a `Learner`, and act through an `Actor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from birl.spaces.specs import Spec
from birl.types import Array, State, Tree

Environment: TypeAlias = Any  # gymnasium.Env or gymnasium.vector.VectorEnv
Callback: TypeAlias = Callable[[Any, int, int], object]  # (algorithm, epoch, total_step); False ends the run


@runtime_checkable
class Stateful(Protocol):
    """Anything that a checkpoint can hold."""

    def get_state(self) -> State:
        """Everything that later behaviour depends on."""

    def set_state(self, state: State) -> None:
        """Continue from what `get_state` returned, bit for bit."""


class Actor(Protocol):
    """Chooses actions in ``n`` environments at once and keeps recurrent states or contexts between steps.

    An actor reads the learner's current networks: it need not be made again after an update.

    Attributes:
        extra: values to be stored with the step that was chosen last, by name, each ``[n, …]``: for recurrent
            networks ``"state.<network>"``, the state *before* the observation, and ``"policy_action"`` for algorithms
            that ask for it (`Experience.stores`). Empty for feed-forward off-policy algorithms.
    """

    extra: dict[str, Array]

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Choose actions.

        Args:
            observation: tree of arrays ``[n, *shape]`` as the environment gave them.
            is_first: bool ``[n]``: a new episode begins here; memory of the old one is dropped first.
            reward: float32 ``[n]``: reward of the step before (0 where ``is_first``).

        Returns:
            Actions in the environment's units: float32 ``[n, action_size]`` or int64 ``[n]``.
        """

    def get_state(self) -> State:
        """Memory of the current episodes, and the actor's own random generators."""

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""


class LearnerConfig(Protocol):
    """The part of an algorithm's configuration that loops read."""

    @property
    def batch_size(self) -> int: ...
    def serialize(self) -> dict[str, Any]:
        """JSON form ``{"type": …, "params": …}``: written to ``params.json``, compared when a run is resumed."""


class Learner(Protocol):
    """The part of a built algorithm that moves its networks.

    Attributes:
        shared: says who else learns with it at the moment; empty if nobody does.
    """

    shared: str

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled, so that the first one takes up to a minute."""

    @property
    def see(self) -> Callable[[Tree, Array, Array, Array], None] | None:
        """Called, if not ``None``, with each step ``[n, …]``: observations, rewards, ``is_first`` and ``valid``."""

    @property
    def units_move(self) -> bool:
        """Whether a running scaler moves the networks' units of observations from step to step."""

    @property
    def policy(self) -> Any:
        """How it acts; see `birl.acting.built_policy.BuiltPolicy`."""

    def in_units(self, observation: Tree) -> Tree:
        """Observations ``[n, *shape]`` in the networks' units of this moment, as arrays."""

    def see_observations(self, observation: Tree, valid: Array) -> None:
        """Move that scaler with the valid ones of some observations ``[n, *shape]``."""

    def begin_run(self, source: Any, count: int, *, growing: bool = False, lanes: int = 1) -> Any:
        """Begin a run. Returns the source to draw from: the dataset, or one with its contents near the training device.

        Args:
            source: replay buffer, or ``None`` where nothing is drawn.
            count: number of draws in the run: tells whether compiling updates is worth its time.
            growing: whether steps will be appended between updates.
        """

    def stored(self, rollout: Rollout) -> Rollout:
        """A rollout with all that is to be stored of it in a replay buffer, before it is learned from."""

    def n_replays(self, count: int) -> int:
        """How many draws are to be learned from after a rollout, if the buffer holds ``count`` steps by then."""

    def draw(self, source: Any) -> Any:
        """Draw the input of `learn`, with the source's own generator."""

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if anything that it has learned is NaN or infinite. It waits for the device."""

    def learn(self, drawn: Any) -> dict[str, Tensor]:
        """Learn from a draw. Metrics are 0-dimensional tensors on the device; nothing waits for the device."""

    def updates_at_once(self, source: Any) -> int:
        """How many updates with batches from ``source`` are best made by one call of `learn_many`."""

    def learn_many(self, source: Any, count: int) -> dict[str, Tensor]:
        """``count`` updates with batches that it draws itself; metrics ``[k]`` of the ``k`` updates that had them."""


class Trainable(Protocol):
    """An algorithm as the loops see it."""

    @property
    def config(self) -> LearnerConfig: ...
    @property
    def learner(self) -> Learner:
        """Its learner, once the networks are built."""

    @property
    def spec(self) -> Spec:
        """What the networks read and give, once they are built."""

    def describe(self) -> dict[str, Any]:
        """Shapes and configuration in JSON form, as in ``params.json``."""

    def build_with_dataset(self, dataset: Any) -> None:
        """Make the networks for a dataset, or check that they fit if they exist."""

    def build_with_env(self, env: Environment) -> None:
        """Make the networks for an environment (or vector environment), or check that they fit if they exist."""

    def watch_gradients(self, watch: Callable[[str, Sequence[str], Tensor], None] | None) -> None:
        """Call ``watch(step, parameter names, statistics [n, 4])`` after every update, or (``None``) no longer."""

    def actor(self, *, greedy: bool, n: int = 1, values: bool = False) -> Actor: ...

    def predict(self, x: Tree) -> Array: ...
    def save(self, fname: str | Path) -> None: ...
    def get_state(self) -> State:
        """All that training depends on: networks, targets, optimisers, schedules, grad_step, fitted scalers.

        Raises:
            NonFiniteError: if a parameter or a moment is NaN or infinite: such a state is never written.
        """

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, on an algorithm with the same configuration whose networks are built."""


@dataclass(frozen=True)
class Rollout:
    """Consecutive steps of ``N`` environments, time first. All numpy, in the environment's units.

    Attributes:
        observation: tree ``[T, N, *shape]``, on which the action was chosen.
        action: ``[T, N, action_size]`` float32 or ``[T, N]`` int64, as the actor gave it (the environment was
            given the action clipped to its bounds). RolloutExperience demonstrations, as the environment was given it.
        reward: float32 ``[T, N]``.
        next_observation: tree ``[T, N, *shape]``, after the step; at episode ends the final observation,
            never the first one of the next episode.
        terminated: bool ``[T, N]``.
        truncated: bool ``[T, N]``: never where ``terminated`` is.
        is_first: bool ``[T, N]``: the step begins an episode.
        valid: bool ``[T, N]``: False where no real step was made (the reset step of `AutoresetMode.NEXT_STEP`,
            or environments beyond ``n_steps`` in the last row): not to be learned from, and a break for any
            recursion over time.
        extra: the actor's ``extra`` at every step, by name, each ``[T, N, …]``.
        inputs, next_inputs: the observations in the networks' units of each step, which a running scaler moves;
            ``None`` if they do not move.
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
    expert: Any = None

    @property
    def start_state(self) -> dict[str, Array]:
        """Recurrent states ``[N, size]`` before the first step, by network name."""
        prefix = "state."
        return {k.removeprefix(prefix): v[0] for k, v in self.extra.items() if k.startswith(prefix)}


class ExplorerProtocol(Protocol):
    """Changes greedy actions into exploring ones. `Stateful` explorers resume exactly."""

    def sample(self, algo: Any, x: Tree, step: int) -> Array:
        """Actions ``[n]`` or ``[n, action_size]`` for observations ``x`` ``[n, …]`` at environment step ``step``."""


Evaluator: TypeAlias = Callable[[Any, Any], float | Mapping[str, float]]  # (algorithm, dataset) -> metric, or several
