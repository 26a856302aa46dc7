"""Acting, storing and sampling minibatches, independent of how the environments are stepped."""

from __future__ import annotations

import contextlib
import inspect
import operator
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium import Space

from birl.checks import check
from birl.dataset import FrameStackTransitionPicker, ReplayBuffer, ReplayBufferBase, create_fifo_replay_buffer
from birl.distributed.worker_process import check_picklable
from birl.envs import Step, environment_spec, single_spaces
from birl.envs.step_info import StepInfo
from birl.errors import ActionError, ConfigError, CorruptFileError, ShapeError, UnusedOptionWarning, outside_birl
from birl.files.state_restore import check_array
from birl.run.protocols import (
    Exploration,
    ExplorerProtocol,
    Minibatch,
    ReplaySource,
    Stateful,
    StepBuffer,
    Trainable,
    TransitionCounter,
)
from birl.spaces import actions_from_space, check_actions, read_action_mask
from birl.spaces.conversion import Columns, to_array
from birl.spaces.observations import leaf_spaces, match_parts, order_actions, part_names
from birl.types import Array, Environment, State, Tree, tree_leaves, tree_map

GENERATORS: Final = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)

DEFAULT_BUFFER_LIMIT: Final = 1_000_000

MeasureTime: TypeAlias = Callable[[str], contextlib.AbstractContextManager[None]]
"""``measure(name)`` is a context that times its block."""


def measure_nothing(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that measures nothing."""
    return contextlib.nullcontext()


def check_buffer_and_explorer(buffer: object, explorer: object, batch_size: int = 1) -> None:
    """Raise `ConfigError` for a buffer that cannot store steps, or an explorer that cannot select actions.

    Args:
        buffer, explorer: the user's arguments.
        batch_size: number of steps in a minibatch, which the buffer must be able to hold.
    """
    if buffer is not None and not callable(getattr(buffer, "append_batch", None)):
        advice = (
            f"give birl.dataset.ReplayBuffer({type(buffer).__name__}(…), env=env)"
            if hasattr(buffer, "limit")
            else "make one with birl.dataset.create_fifo_replay_buffer(limit=100_000, env=env)"
        )
        raise ConfigError(f"buffer is {buffer!r:.80}; it must be a replay buffer: {advice}")
    if explorer is not None and (inspect.isclass(explorer) or not callable(getattr(explorer, "sample", None))):
        raise ConfigError(
            f"explorer is {explorer!r:.80}; it must be an object that selects actions, such as "
            "birl.algos.LinearDecayEpsilonGreedy() or NormalNoise()"
        )
    limit = buffer.buffer.limit if isinstance(buffer, ReplayBuffer) else None
    if limit is not None and limit < batch_size:
        raise ConfigError(
            f"the buffer keeps {limit} steps, fewer than a minibatch of {batch_size}, so that there would never be "
            f"an update: give a buffer with limit >= {batch_size}, or a smaller batch_size"
        )


def info_keys_of(buffer: object) -> Sequence[str]:
    """Return the names of the entries of the environment's info that a buffer stores."""
    keys: Sequence[str] = getattr(getattr(buffer, "target", None), "info_keys", ())
    return keys


def info_features(buffer: object) -> dict[str, str]:
    """Return the feature of `birl.incompatible` that a buffer with ``info_keys`` has."""
    keys = info_keys_of(buffer)
    return {"info_keys": f"a buffer with info_keys={keys!r:.100}"} if keys else {}


Explorers: TypeAlias = ExplorerProtocol | Sequence[ExplorerProtocol] | None
"""An explorer for all processes, or a list with one for each."""


def explored_steps(algorithm: Trainable, explorer: Explorers) -> int:
    """Return the number of steps of earlier runs of an algorithm with the same explorers, whose schedules continue."""
    last, explorers = getattr(algorithm, "exploration", None), _listed(explorer)
    if last is None or not explorers or len(last.explorers) != len(explorers):
        return 0
    return last.steps if all(map(operator.is_, last.explorers, explorers)) else 0


def keep_exploration(algorithm: Trainable, explorer: Explorers, steps: int) -> None:
    """Keep the explorers of a run and the number of steps in all runs with them, for `explored_steps`."""
    algorithm.exploration = Exploration(_listed(explorer), steps)


def _listed(explorer: Explorers) -> Sequence[ExplorerProtocol]:
    return list(explorer) if isinstance(explorer, Sequence) else [] if explorer is None else [explorer]


def explorers_per_process(explorer: Explorers, n: int, option: str, sent: bool = True) -> list[ExplorerProtocol | None]:
    """Return the explorer of each of several processes.

    Args:
        explorer: one for all, or a list with one for each.
        n: number of processes.
        option: name of the option with the number of processes, for messages.
        sent: whether the explorers are sent to other processes.

    Raises:
        ConfigError: if a list does not have one explorer for each process, or if an explorer cannot be sent or would
            draw the same random numbers in several processes.
    """
    listed: list[Any] = list(explorer) if isinstance(explorer, list | tuple) else [explorer] * n
    if len(listed) != n:
        raise ConfigError(
            f"explorer is a list of {len(listed)}; with {option}={n} it must be a list of {n}, or one explorer for all"
        )
    for each in listed:
        check_buffer_and_explorer(None, each)
        if sent:
            check_picklable("explorer", each, "define its class in a module that can be imported")
        generators = [name for name, value in getattr(each, "__dict__", {}).items() if isinstance(value, GENERATORS)]
        if generators and not hasattr(each, "renewed") and sum(each is other for other in listed) > 1:
            raise ConfigError(
                f"the explorer {type(each).__name__} has a random generator of its own in {generators[0]!r}, which "
                f"would give the same numbers in several {option}: give a list with one for each, or derive it from "
                "birl.algos.Explorer and use self.generator"
            )
    return listed


def observation_spec(algorithm: Trainable, env: Environment, buffer: object) -> Tree:
    """Return the parts of an environment's observations that a run reads; see `birl.spaces.observations`.

    They are the parts that a built algorithm reads and the parts that only ``buffer`` stores, such as achieved goals.
    """
    observations = algorithm.spec.observations
    read = part_names(observations) or ()
    stored = part_names(getattr(getattr(buffer, "dataset_info", None), "observations", None)) or ()
    offered = part_names(leaf_spaces(single_spaces(env)[0])) or ()
    wanted = [name for name in offered if name in (*read, *stored)]
    return observations if len(wanted) == len(read) else environment_spec(env, wanted).observations


def check_lanes(storage: object, n: int) -> None:
    """Raise `ShapeError` unless a storage has a lane for each of ``n`` environments."""
    lanes = getattr(storage, "lanes", n)
    if lanes != n:
        raise ShapeError(f"the buffer has {lanes} lanes for {n} environments: make the buffer with lanes={n}")


def example_observation(observations: Tree, env: Environment, n: int) -> Tree:
    """Return zeros ``[n, *shape]`` in the dtypes of the environments' space, for the parts in ``observations``."""
    leaves = match_parts(observations, leaf_spaces(single_spaces(env)[0]))
    return tree_map(lambda space: np.zeros((n, *space.shape), space.dtype), leaves)


def default_buffer(
    algorithm: Trainable, env: Environment, limit: int = DEFAULT_BUFFER_LIMIT, *, lanes: int
) -> ReplayBuffer:
    """Make a buffer of the newest ``limit`` steps, with the observations that a built algorithm reads."""
    keys = part_names(algorithm.spec.observations)
    return create_fifo_replay_buffer(limit, env=env, observation_keys=keys, lanes=lanes)


def determine_shapes(buffer: StepBuffer, algorithm: Trainable, env: Environment, lanes: int) -> None:
    """Let a buffer that was made without shapes store the steps of an environment; see `default_buffer`.

    Raises:
        ShapeError: if the buffer has steps of tables with other columns than those that the algorithm learned from.
    """
    if isinstance(buffer, ReplayBuffer):
        buffer.determine_shapes(env, lanes, part_names(algorithm.spec.observations))
    if isinstance(buffer, ReplayBufferBase) and (columns := buffer.dataset_info.columns):
        algorithm.learner.policy.add_columns(columns, "the buffer")
    _check_padding(getattr(buffer, "transition_picker", None), env)


def _check_padding(picker: object, env: Environment) -> None:
    """Warn if stacks of frames start otherwise in minibatches than in the environment in which the policy acts."""
    each: object = next(iter(getattr(env, "envs", [env])))
    while each is not None and not hasattr(each, "padding_type"):  # Gymnasium's wrapper has the attribute, too
        each = getattr(each, "env", None)
    there = getattr(each, "padding_type", None)
    if isinstance(picker, FrameStackTransitionPicker) and there in ("zero", "reset") and there != picker.padding_type:
        warnings.warn(
            f"{type(each).__name__} fills the stacks at the start of an episode with padding_type={there!r}, but the "
            f"buffer's {type(picker).__name__} with {picker.padding_type!r}, so the policy acts on other stacks than "
            f"it learns from: give the picker padding_type={there!r}",
            UserWarning,
            stacklevel=outside_birl(),
        )


def clip_episodes(buffer: StepBuffer, lanes: Iterable[int]) -> None:
    """End the running episodes in some lanes of a buffer."""
    for lane in lanes:
        buffer.clip_episode(False, truncated=True, lane=lane)


def append_steps(buffer: StepBuffer, steps: dict[str, Tree], lanes: Array | None = None) -> None:
    """Append steps of environments to a buffer.

    Args:
        buffer: replay buffer.
        steps: arguments of `birl.dataset.ReplayBuffer.append_batch` by name: ``[k, …]``, or ``[T, k, …]`` for ``T``
            successive steps.
        lanes: indices of the environments ``[k]``; ``None`` for all.
    """
    *turns, count = steps["mask"].shape
    if turns:
        steps = tree_map(lambda rows: rows.reshape(-1, *rows.shape[2:]), steps)
        lanes = np.tile(np.arange(count) if lanes is None else lanes, turns)
    options: dict[str, Any] = {} if lanes is None else {"lanes": lanes}
    buffer.append_batch(**steps, **options)


def scatter_rows(rows: Tree, lanes: Array, n: int) -> Tree:
    """Return rows ``[n, …]`` for ``n`` environments: ``rows`` ``[k, …]`` at the indices ``lanes``, zeros elsewhere."""

    def scatter(part: Array) -> Array:
        out = np.zeros((n, *part.shape[1:]), part.dtype)
        out[lanes] = part
        return out

    return tree_map(scatter, rows)


class SelectedActions(NamedTuple):
    """Actions selected for ``n`` environments, until the resulting step is observed.

    Attributes:
        observation: tree of arrays ``[n, *shape]``: the observations for which they were selected.
        is_first: bool ``[n]``: the first step of an episode.
        action: actions as they are stored.
        extra: columns to store with them.
    """

    observation: Tree
    is_first: Array
    action: Array
    extra: dict[str, Array]


class AgentCore:
    """Core of an agent that acts in ``n`` environments, which its caller steps.

    This base class stores no steps and yields no minibatches.

    The caller is a `birl.run.collector.Collector`, or a `birl.run.agent.Agent` in a user's own loop.

    Args:
        algorithm: a built algorithm, which acts.
        observation: example, tree of arrays ``[n, *shape]`` in the dtypes of the environments.
        action_space: action space of one environment.
        greedy: whether the actor acts greedily if there is no explorer.
        explorer: turns greedy actions into exploratory ones; ``None`` to act with the policy itself (sampled or
            greedy), and with noisy networks.

    Attributes:
        n: number of environments.
        actions: their action space.
        selected: actions whose step has not been observed yet; ``None`` if there are none.
        example: example observation.
        uncounted_steps: number of steps that are stored but not yet counted.
        cut: whether ``most`` left out environments in the last call of `record`.
        explored: number of steps of earlier runs, at which the explorer's schedule continues.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        greedy: bool,
        explorer: ExplorerProtocol | None = None,
    ) -> None:
        self.n, self._step = len(next(tree_leaves(observation))), 0
        self.actions = actions_from_space(action_space)
        self.example = observation
        values: Any = {"values": True} if getattr(explorer, "needs_values", False) else {}
        if greedy and explorer is not None:
            warnings.warn(
                f"deterministic=True has no effect, because the {type(explorer).__name__} selects the actions: leave "
                "one of the two out",
                UnusedOptionWarning,
                stacklevel=outside_birl(),
            )
        self._actor = algorithm.actor(greedy=greedy or explorer is not None, n=self.n, **values)
        if explorer is not None and getattr(self._actor, "noisy", False):
            raise ConfigError(
                f"explorer is a {type(explorer).__name__}, which changes greedy actions, but this "
                f"{type(algorithm).__name__} has noisy layers, which explore by themselves and not in greedy actions: "
                "leave explorer out, or noisy"
            )
        self._algorithm, self._explorer = algorithm, explorer
        bind = getattr(explorer, "bind", None)  # explorers written for d3rlpy have none
        if bind is not None:
            bind(action_space)
        # called with copies, as `sample` is
        self._begin: Callable[[Array], None] | None = getattr(explorer, "begin", None)
        acts = getattr(algorithm, "acts", None)
        self._unbounded = acts is not None and not acts.bounded
        self._column_names: Columns = getattr(algorithm, "columns", {})
        self.selected: SelectedActions | None = None
        self.uncounted_steps = 0
        self.cut = False
        self.explored = 0

    @property
    def rows_left(self) -> int | None:
        """Number of rows until the next rollout is full; ``None`` if it does not depend on a number of rows."""
        return None

    def select_action(self, observation: Tree, is_first: Array, reward: Array, step: int) -> Array:
        """Select actions. The next call is `observe`.

        Args:
            observation: tree of arrays ``[n, *shape]``, which must not change afterwards.
            is_first: bool ``[n]``: the first step of an episode.
            reward: float32 ``[n]``: of the previous step, 0 where ``is_first``.
            step: number of steps counted so far.

        Returns:
            Actions for the environments.

        Raises:
            ActionError: if they are not in the environments' space.
        """
        allowed = read_action_mask(self.actions, observation)  # before the actor, which updates its memory
        proposed = self._actor(observation, is_first, reward)
        stored, action = self._environment_actions(proposed, observation, is_first, step)
        check_actions(self.actions, action, allowed)
        self.selected, self._step = SelectedActions(observation, is_first, stored, self._actor.extra), step
        return action

    def _environment_actions(self, action: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        """Return the actions to store, and the actions for the environments, given those of the actor."""
        action = self.actions.clip(action) if self._unbounded or self.actions.integral else action
        return action, action

    def _apply_explorer(self, action: Array, observation: Tree, is_first: Array, step: int) -> Array:
        """Return the explorer's actions, or those of the actor if there is no explorer."""
        if self._begin is not None:
            self._begin(is_first.copy())
        if self._explorer is None:
            return action
        proxy = _GreedyAlgorithm(self._algorithm, action, getattr(self._actor, "values", None))
        step += self.explored
        selected = self._explorer.sample(proxy, tree_map(np.array, observation), step)
        # copied, because the explorer may return the same array at every step
        name = "the explorer's actions"
        explored = to_array(name, order_actions(name, selected, self._column_names)).copy()
        return self.actions.clip(explored) if self.actions.integral else explored

    def observe(self, step: Step, most: int | None = None) -> None:
        """Store the step that follows the selected actions. If that fails, `selected` keeps them.

        Args:
            step: the step; environments where it is not valid are left out.
            most: largest number of environments to store; further ones are marked as not valid. ``None`` for all.
        """
        assert self.selected is not None
        self.record(self.selected, step, most)
        self.selected = None

    def record(
        self, selected: SelectedActions, step: Step, most: int | None = None, lanes: Array | None = None
    ) -> None:
        """Store a step whose actions another agent may have selected.

        Args:
            selected: actions of all ``n`` environments, or of the ``k`` in ``lanes``.
            step: the step that follows; see `observe`. With a replay buffer, ``selected`` and ``step`` may have ``T``
                successive steps: ``[T, k, …]``.
            most: see `observe`.
            lanes: indices of the environments ``[k]``; ``None`` for all.
        """
        count = int(np.count_nonzero(step.valid))
        cut = most is not None and count > most
        if cut:
            step.valid.flat[np.flatnonzero(step.valid)[most:]] = False
            count = int(np.count_nonzero(step.valid))
        self._store(selected, step, lanes)
        self.cut = cut
        self.uncounted_steps += count

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        """Store a step of all environments, or of those in ``lanes``."""

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Minibatch]:
        """Yield the inputs of the updates that are due. Callers make each update before they request the next input.

        Args:
            step: number of steps counted so far.
            last: whether the run ends with this step.
            measure: times sampling.
        """
        return iter(())

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        """End the running episodes of some environments, or of all. The next steps start new episodes."""
        self.selected = None

    def keep_exploration(self, step: int) -> None:
        """Keep the explorer, so that its schedule continues after ``step`` steps in the algorithm's next run."""
        if self._explorer is not None:
            keep_exploration(self._algorithm, self._explorer, self.explored + step)

    def get_state(self) -> State:
        """Return the state of the actor and the explorer, and selected actions; stored steps are not included."""
        state = {"actor": self._actor.get_state(), "pending": self.uncounted_steps}
        if self._explorer is not None:
            state["explored"] = self.explored
        if isinstance(self._explorer, Stateful):
            state["explorer"] = self._explorer.get_state()
        return state if self.selected is None else {**state, "selected": tree_map(np.array, self.selected._asdict())}

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state`. The stored steps must be restored first."""
        selected = None
        if "selected" in state:
            self._check_rows((), state["selected"], {})
            selected = SelectedActions(**state["selected"])
        self._actor.set_state(state["actor"])
        if "explorer" in state and isinstance(self._explorer, Stateful):
            self._explorer.set_state(state["explorer"])
        if "explored" in state:
            self.explored = check("explored", state["explored"], int, low=0, error=CorruptFileError)
        self.uncounted_steps = check("pending", state["pending"], int, low=0, error=CorruptFileError)
        self.selected = selected

    def _check_rows(self, lead: tuple[int, ...], columns: dict[str, Tree], like: dict[str, Tree]) -> None:
        """Raise an error if saved rows ``[*lead, n, …]`` do not fit these environments.

        Args:
            lead: leading dimensions.
            columns: columns of `SelectedActions`, and others.
            like: examples ``[n, …]`` of the others.
        """
        for name, own in {"observation": self.example, "is_first": np.zeros(self.n, bool), **like}.items():
            tree_map(lambda x, y, name=name: check_array(y, (*lead, *x.shape), x.dtype, name), own, columns[name])
        wanted = (*lead, self.n)
        for name, column in {"action": columns["action"], **columns["extra"]}.items():
            shape = np.shape(column)
            if shape[: len(wanted)] != wanted or (name == "action" and shape[len(wanted) :] != self.actions.shape):
                raise CorruptFileError(
                    f"the checkpoint has {'rows ' * bool(lead)}{wanted} of steps of {self.n} environments, but "
                    f"{name!r:.80} of shape {shape}: restore it from a copy"
                )
            if name in ("action", "policy_action") and self.actions.discrete:
                given = (
                    self.actions.to_environment(torch.as_tensor(column)).numpy()
                    if name != "action"
                    else np.asarray(column)
                )
                check_actions(self.actions, given)


class UpdateSchedule(NamedTuple):
    """The schedule of an off-policy algorithm's updates, and the source of their minibatches.

    See `birl.run.options.OnlineOptions`.

    Attributes:
        source: source of the minibatches.
        counted: object whose ``transition_count`` must reach the size of a minibatch before updates start; ``None``
            for the buffer.
    """

    source: ReplaySource
    update_interval: int
    n_updates: int
    update_start_step: int
    counted: TransitionCounter | None = None


def start_schedule(
    algorithm: Trainable,
    source: ReplaySource,
    options: Mapping[str, Any],
    n_steps: int,
    counted: TransitionCounter | None = None,
) -> UpdateSchedule:
    """Start a run that learns from replayed steps, and return the schedule of its updates.

    Args:
        algorithm: a built algorithm.
        source: where minibatches are sampled from.
        options: options of the run.
        n_steps: length of the run in steps.
        counted: see `UpdateSchedule`.
    """
    interval, count, start = options["update_interval"], options["n_updates"], options["update_start_step"]
    placed = algorithm.learner.start_run(source, (n_steps - start) // interval * count, growing=True)
    return UpdateSchedule(placed, interval, count, start, counted)


class ReplayAgentCore(AgentCore):
    """An `AgentCore` that stores steps in a replay buffer and samples minibatches from it.

    Args:
        algorithm, observation, action_space: see `AgentCore`.
        buffer: replay buffer with one lane per environment; ``None`` to store nothing.
        explorer, greedy: see `AgentCore`.
        generator: generator of random actions.
        random_steps: number of steps with uniformly random actions at the start.
        schedule: schedule of the updates; ``None`` for no updates.
        expert: function of observations ``[n, …]`` whose actions are stored instead of the executed ones (DAgger).
        expert_share: probability with which the expert's action is also executed.

    Raises:
        ActionError: in `select_action`, if the expert's actions are not in the environments' space.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        buffer: StepBuffer | None,
        explorer: ExplorerProtocol | None = None,
        *,
        greedy: bool = False,
        generator: np.random.Generator,
        random_steps: int = 0,
        schedule: UpdateSchedule | None = None,
        expert: Callable[[Tree], Array] | None = None,
        expert_share: float = 0.0,
    ) -> None:
        super().__init__(algorithm, observation, action_space, greedy, explorer)
        self._buffer, self._info_keys = buffer, info_keys_of(buffer)
        self._expert, self._expert_share = expert, expert_share
        self._generator, self._random_steps, self._schedule = generator, random_steps, schedule
        self._update_statistics = None if schedule is None else algorithm.learner.update_statistics

    def _environment_actions(self, action: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        action, _ = super()._environment_actions(action, observation, is_first, step)
        if step < self._random_steps:
            if self._begin is not None:
                self._begin(is_first.copy())
            action = self.actions.sample(self.n, self._generator, read_action_mask(self.actions, observation))
        else:
            action = self._apply_explorer(action, observation, is_first, step)
        return (action, action) if self._expert is None else self._relabel(self._expert, action, observation)

    def _relabel(self, expert: Callable[[Tree], Array], action: Array, observation: Tree) -> tuple[Array, Array]:
        """Return the expert's actions, to store, and the actions to execute."""
        name, given = "the expert's actions", expert(tree_map(np.array, observation))
        label = to_array(name, order_actions(name, given, self._column_names))
        if label.shape != np.shape(action):
            raise ActionError(
                f"the expert returned actions of shape {label.shape}; it must return {np.shape(action)}, one for each "
                f"of {self.n} observations: expert(observations [n, …]), such as algo.predict"
            )
        check_actions(self.actions, label, read_action_mask(self.actions, observation))
        label = label.astype(self.actions.storage_spec.dtype)
        follows = self._generator.random(self.n) < self._expert_share
        return label, np.where(follows.reshape(-1, *(1,) * (label.ndim - 1)), label, action)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        if self._buffer is None:
            return
        steps = {name: getattr(step, name) for name in ("next_observation", "reward", "terminated", "truncated")}
        extra = selected.extra
        if self._info_keys:
            info = StepInfo({}, single=self.n == 1) if step.info is None else step.info
            extra = {**extra, **info.columns(self._info_keys, step.valid, self._step)}
        steps |= {"observation": selected.observation, "action": selected.action, "extra": extra}
        append_steps(self._buffer, {**steps, "mask": step.valid}, lanes)
        if self._update_statistics is None:
            return
        columns = (selected.observation, step.reward, selected.is_first, step.valid)
        turns = range(len(step.valid)) if step.valid.ndim > 1 else [np.s_[:]]
        for turn in turns:
            row = tree_map(lambda column, turn=turn: column[turn], columns)
            self._update_statistics(*(row if lanes is None else scatter_rows(row, lanes, self.n)))

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Minibatch]:
        if self._schedule is None:
            return
        source, interval, count, start, counted = self._schedule
        counted = counted or self._buffer
        due = step > start and step % interval == 0
        if due and counted is not None and counted.transition_count >= self._algorithm.config.batch_size:
            for _ in range(count):
                with measure("sample_batch"):
                    minibatch = self._algorithm.learner.sample(source)
                yield minibatch

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        if self._buffer is not None:
            clip_episodes(self._buffer, range(self.n) if lanes is None else lanes)

    def get_state(self) -> State:
        return {**super().get_state(), "generator": self._generator.bit_generator.state}

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self._generator.bit_generator.state = state["generator"]


class _GreedyAlgorithm:
    """The object that explorers receive as the algorithm.

    `predict` returns the actions that the actor, which has the memory of its episode, has already selected, and
    `action_values` returns the actor's values if it kept them. All other attributes are the algorithm's.
    """

    def __init__(self, algorithm: Trainable, action: Array, values: Array | None) -> None:
        self._algorithm, self._action, self._values = algorithm, action, values

    def predict(self, x: Tree) -> Array:
        return self._action.copy()  # the original may be stored as the policy's action

    def action_values(self, x: Tree) -> Array:
        algorithm: Any = self._algorithm
        return algorithm.action_values(x) if self._values is None else self._values.copy()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)
