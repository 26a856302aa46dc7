"""Acting, storing and learning without an environment: what every loop, and everybody's own, has in common."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from gymnasium import Space

from birl.checks import check
from birl.dataset import ReplayBuffer
from birl.distributed.workers import check_given
from birl.envs import Step, environment_spec, single_spaces
from birl.errors import ActionError, ConfigError, CorruptFileError, ShapeError
from birl.files.state_restore import checked_array
from birl.run.protocols import ExplorerProtocol, Trainable
from birl.spaces import actions_of, allowed_actions, check_actions
from birl.spaces.observations import leaf_spaces, part_names, picked
from birl.types import Array, State, Tree, tree_leaves, tree_map

GENERATORS: Final = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)

MeasureTime = Callable[[str], contextlib.AbstractContextManager[None]]


def measure_nothing(name: str) -> contextlib.AbstractContextManager[None]:
    """The `MeasureTime` that measures nothing."""
    return contextlib.nullcontext()


def check_buffer_and_explorer(buffer: Any, explorer: Any, batch_size: int = 1) -> None:
    """Raise `ConfigError` for a buffer that cannot take steps, or an explorer that cannot choose actions.

    Args:
        buffer, explorer: as users gave them.
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
            f"explorer is {explorer!r:.80}; it must be an object that chooses actions, such as "
            "birl.algos.LinearDecayEpsilonGreedy() or NormalNoise()"
        )
    limit = buffer.buffer.limit if isinstance(buffer, ReplayBuffer) else None
    if limit is not None and limit < batch_size:
        raise ConfigError(
            f"the buffer keeps {limit} steps, fewer than a minibatch of {batch_size}, so that nothing would ever be "
            f"learned; give a buffer with limit >= {batch_size}, or a smaller batch_size"
        )


def explorers_per_process(explorer: Any, n: int, option: str, sent: bool = True) -> list[Any]:
    """The explorer of each of several processes.

    Args:
        explorer: one for all, or a list with one for each.
        n: number of processes.
        option: that says so, for messages.
        sent: whether they are sent to other processes.

    Raises:
        ConfigError: if there is not one for each, or if one cannot be sent, or would draw the same numbers in several.
    """
    listed = list(explorer) if isinstance(explorer, list | tuple) else [explorer] * n
    if len(listed) != n:
        raise ConfigError(
            f"explorer is a list of {len(listed)}; with {option}={n} it must have one for each, or be one"
        )
    for each in listed:
        check_buffer_and_explorer(None, each)
        if sent:
            check_given("explorer", each, "define its class in a module that can be imported")
        own = [name for name, value in getattr(each, "__dict__", {}).items() if isinstance(value, GENERATORS)]
        if own and not hasattr(each, "renewed") and sum(each is other for other in listed) > 1:
            raise ConfigError(
                f"the explorer {type(each).__name__} has random numbers of its own in {own[0]!r}, which would be the "
                f"same in several {option}: give a list with one for each, or derive it from birl.algos.Explorer and "
                "draw from self.generator"
            )
    return listed


def observation_spec(algorithm: Trainable, env: Any, buffer: Any) -> Tree:
    """What is read of an environment's observations, see `birl.spaces.observations`.

    All that a built algorithm reads, and what ``buffer`` stores beside it, such as the goals that were achieved.
    """
    own = algorithm.spec.observations
    stored = part_names(getattr(getattr(buffer, "dataset_info", None), "observations", None)) or ()
    names = {*(part_names(own) or ()), *stored}
    there = part_names(leaf_spaces(single_spaces(env)[0])) or ()
    wanted = [name for name in there if name in names]
    return own if len(wanted) == len(part_names(own) or ()) else environment_spec(env, wanted).observations


def check_lanes(storage: Any, n: int) -> None:
    """Raise `ShapeError` unless a storage has a lane for each of ``n`` environments."""
    lanes = getattr(storage, "lanes", n)
    if lanes != n:
        raise ShapeError(f"the buffer has {lanes} lanes for {n} environments: make the buffer with lanes={n}")


def example_observation(observations: Tree, env: Any, n: int) -> Tree:
    """Zeros in the shapes and dtypes of what is read of an environment's ``observations``, for ``n`` of them."""
    leaves = picked(observations, leaf_spaces(single_spaces(env)[0]))
    return tree_map(lambda space: np.zeros((n, *space.shape), space.dtype), leaves)


def clip_episodes(buffer: Any, lanes: Iterable[int]) -> None:
    """End the running episodes in some lanes of a buffer."""
    for lane in lanes:
        buffer.clip_episode(False, truncated=True, lane=lane)


def append_steps(buffer: Any, steps: dict[str, Tree], lanes: Array | None = None) -> None:
    """Store steps of environments.

    Args:
        buffer: replay buffer.
        steps: arguments of `birl.dataset.ReplayBuffer.append_batch` by name: ``[k, …]``, or ``[T, k, …]`` for ``T``
            steps that follow each other.
        lanes: numbers of the environments ``[k]`` if they are not all.
    """
    *turns, count = steps["mask"].shape
    if turns:
        steps = tree_map(lambda rows: rows.reshape(-1, *rows.shape[2:]), steps)
        lanes = np.tile(np.arange(count) if lanes is None else lanes, turns)
    buffer.append_batch(**steps, **({} if lanes is None else {"lanes": lanes}))


def scatter_rows(rows: Tree, lanes: Array, n: int) -> Tree:
    """Rows ``[k, …]`` of some of ``n`` environments as rows of all, zeros in the others."""

    def whole(part: Array) -> Array:
        out = np.zeros((n, *part.shape[1:]), part.dtype)
        out[lanes] = part
        return out

    return tree_map(whole, rows)  # type: ignore[no-any-return]


class SelectedActions(NamedTuple):
    """Actions of ``n`` environments that wait for the step that they lead to.

    Attributes:
        observation: tree of arrays ``[n, *shape]``, on which they were chosen.
        is_first: bool ``[n]``: an episode begins here.
        action: as they are stored.
        extra: columns to store with them.
    """

    observation: Tree
    is_first: Array
    action: Array
    extra: dict[str, Array]


class AgentCore:
    """Acts in ``n`` environments, wherever they are. This base stores nothing and learns nothing.

    `birl.run.collector.Collector` lets one play in environments, `birl.run.agent.Agent` for those who call it.

    Args:
        algorithm: gives the actor.
        observation: an example, tree of arrays ``[n, *shape]`` in the dtypes of the environments.
        action_space: of one environment.
        greedy: whether the actor acts greedily where there is no explorer.
        explorer: turns greedy actions into the ones taken; ``None`` for the policy's own (sampled, or greedy) ones, and
            for those of noisy networks.

    Attributes:
        n: number of environments.
        actions: what they take, with bounds.
        selected: actions that wait for their step, if there are any.
        example: see above.
        uncounted_steps: steps that are stored and not yet counted.
        cut: whether the last step left out environments that made one.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        greedy: bool,
        explorer: ExplorerProtocol | None = None,
    ) -> None:
        self.n = len(next(tree_leaves(observation)))
        self.actions = actions_of(action_space)
        self.example = observation
        values: Any = {"values": True} if getattr(explorer, "needs_values", False) else {}
        self._actor = algorithm.actor(greedy=greedy or explorer is not None, n=self.n, **values)
        if explorer is not None and getattr(self._actor, "noisy", False):
            raise ConfigError(
                f"explorer is a {type(explorer).__name__}, which changes greedy actions, but the layers of this "
                f"{type(algorithm).__name__} are noisy: their noise explores, and greedy actions are without it. Leave "
                "explorer out, or noisy"
            )
        self._algorithm, self._explorer = algorithm, cast(Any, explorer)
        bind = getattr(explorer, "bind", None)  # explorers written for d3rlpy have none
        if bind is not None:
            bind(action_space)
        self._begin = getattr(explorer, "begin", None)  # its arrays are copies, as those of `sample`
        acts = getattr(algorithm, "acts", None)
        self._unbounded = acts is not None and not acts.bounded
        self.selected: SelectedActions | None = None
        self.uncounted_steps = 0
        self.cut = False

    @property
    def rows_left(self) -> int | None:
        """Number of rows that it stores before it learns; ``None`` if that does not depend on their number."""
        return None

    def select_action(self, observation: Tree, is_first: Array, reward: Array, step: int) -> Array:
        """Choose actions. `store` takes the step that they lead to.

        Args:
            observation: tree of arrays ``[n, *shape]``, which nobody changes afterwards.
            is_first: bool ``[n]``: an episode begins here.
            reward: float32 ``[n]``: of the step before, 0 where ``is_first``.
            step: steps counted so far.

        Returns:
            Actions as the environments may take them.

        Raises:
            ActionError: if they are not in the environments' space.
        """
        allowed = allowed_actions(self.actions, observation)  # asked first: the actor remembers what it has seen
        chosen = self._actor(observation, is_first, reward)
        action, given = self._environment_actions(chosen, observation, is_first, step)
        check_actions(self.actions, given, allowed)
        self.selected = SelectedActions(observation, is_first, action, self._actor.extra)
        return given

    def _environment_actions(self, chosen: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        """The actor's actions as they are stored, and as environments may take them."""
        action = self.actions.clip(chosen) if self._unbounded or self.actions.whole else chosen
        return action, action

    def _apply_explorer(self, chosen: Array, observation: Tree, is_first: Array, step: int) -> Array:
        """What the explorer, if there is one, makes of the actor's actions."""
        if self._begin is not None:
            self._begin(is_first.copy())
        if self._explorer is None:
            return chosen
        asked = _Chosen(self._algorithm, chosen, getattr(self._actor, "values", None))
        action: Array = self._explorer.sample(asked, tree_map(np.array, observation), step)
        return self.actions.clip(action) if self.actions.whole else action

    def observe(self, step: Step, most: int | None = None) -> None:
        """Store the step that the chosen actions led to. If it cannot be stored, they still wait for theirs.

        Args:
            step: environments that are not valid are left out.
            most: further ones are marked as invalid, too.
        """
        assert self.selected is not None
        self.record(self.selected, step, most)
        self.selected = None

    def record(
        self, selected: SelectedActions, step: Step, most: int | None = None, lanes: Array | None = None
    ) -> None:
        """Store a step, whoever has chosen its actions.

        Args:
            selected: actions of ``n`` environments, or of ``k``.
            step: the step that they led to; see `store`. Where steps are replayed, both may be of ``T`` steps that
                follow each other: ``[T, k, …]``.
            most: see `store`.
            lanes: numbers of the environments ``[k]`` if they are not all.
        """
        cut = most is not None and step.valid.sum() > most
        if cut:
            step.valid.flat[np.flatnonzero(step.valid)[most:]] = False
        self._store(selected, step, lanes)
        self.cut = bool(cut)
        self.uncounted_steps += int(step.valid.sum())

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        """Store a step of all environments, or of those in ``lanes``."""

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Any]:
        """What is to be learned from now, one after another; learn from each before the next is asked for.

        Args:
            step: steps counted so far.
            last: whether no further step follows.
            measure: ``measure(name)`` is a context that times its block.
        """
        return iter(())

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        """End the running episodes, of some environments or of all: the next steps do not continue them."""
        self.selected = None

    def get_state(self) -> State:
        """Actor, count, and actions that wait; stored steps are not included."""
        state = {"actor": self._actor.get_state(), "pending": self.uncounted_steps}
        if hasattr(self._explorer, "get_state"):
            state["explorer"] = self._explorer.get_state()
        return state if self.selected is None else {**state, "begun": tree_map(np.array, self.selected._asdict())}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`; call it when the stored steps are back."""
        selected = None
        if "begun" in state:
            self._check_rows((), state["begun"], {})
            selected = SelectedActions(**state["begun"])
        self._actor.set_state(state["actor"])
        if "explorer" in state and hasattr(self._explorer, "set_state"):
            self._explorer.set_state(state["explorer"])
        self.uncounted_steps = check("pending", state["pending"], int, low=0, error=CorruptFileError)
        self.selected = selected

    def _check_rows(self, lead: tuple[int, ...], columns: dict[str, Any], like: dict[str, Tree]) -> None:
        """Raise an error if saved rows ``[*lead, n, …]`` are not those of these environments.

        Args:
            lead: leading dimensions.
            columns: those of a `SelectedActions`, and further ones.
            like: examples ``[n, …]`` of the further ones.
        """
        for name, own in {"observation": self.example, "is_first": np.zeros(self.n, bool), **like}.items():
            tree_map(lambda x, y, name=name: checked_array(y, (*lead, *x.shape), x.dtype, name), own, columns[name])
        wanted = (*lead, self.n)
        for name, column in {"action": columns["action"], **columns["extra"]}.items():
            shape = np.shape(column)
            if shape[: len(wanted)] != wanted or (name == "action" and shape[len(wanted) :] != self.actions.shape):
                raise CorruptFileError(
                    f"the checkpoint has {'rows ' * bool(lead)}{wanted} of steps of {self.n} environments, but "
                    f"{name!r:.80} of shape {shape}: restore it from a copy"
                )
            if name in ("action", "policy_action") and self.actions.discrete:
                given = self.actions.given(torch.as_tensor(column)).numpy() if name != "action" else np.asarray(column)
                check_actions(self.actions, given)


class Schedule(NamedTuple):
    """When an off-policy algorithm learns, and from what. See `birl.run.options.OnlineOptions`.

    Attributes:
        source: what it draws from.
        least: learning begins when the ``transition_count`` of this is a minibatch; ``None`` for the buffer's.
    """

    source: Any
    update_interval: int
    n_updates: int
    update_start_step: int
    least: Any = None


class ReplayAgentCore(AgentCore):
    """Stores steps in a replay buffer, and learns from it.

    Args:
        algorithm, observation, action_space: see `AgentCore`.
        buffer: replay buffer with one lane per environment; ``None`` to store nothing.
        explorer, greedy: see `AgentCore`.
        generator: source of random actions.
        random_steps: number of steps at the start that are uniformly random.
        schedule: when to learn; ``None`` for never.
        expert: gives the actions that are stored, for observations ``[n, …]``, whichever are taken.
        expert_share: probability with which the expert's action is taken, too.

    Raises:
        ActionError: while it acts, if the expert's actions are not in the environments' space.
    """

    def __init__(
        self,
        algorithm: Trainable,
        observation: Tree,
        action_space: Space[Any],
        buffer: Any,
        explorer: ExplorerProtocol | None = None,
        *,
        greedy: bool = False,
        generator: np.random.Generator,
        random_steps: int = 0,
        schedule: Schedule | None = None,
        expert: Callable[[Tree], Array] | None = None,
        expert_share: float = 0.0,
    ) -> None:
        super().__init__(algorithm, observation, action_space, greedy, explorer)
        self._buffer = buffer
        self._expert, self._expert_share = expert, expert_share
        self._generator, self._random_steps, self._schedule = generator, random_steps, schedule
        self._see = None if schedule is None else algorithm.learner.see

    def _environment_actions(self, chosen: Array, observation: Tree, is_first: Array, step: int) -> tuple[Array, Array]:
        action, _ = super()._environment_actions(chosen, observation, is_first, step)
        if step < self._random_steps:
            if self._begin is not None:
                self._begin(is_first.copy())
            action = self.actions.sample(self.n, self._generator, allowed_actions(self.actions, observation))
        else:
            action = self._apply_explorer(action, observation, is_first, step)
        return (action, action) if self._expert is None else self._relabelled(action, observation)

    def _relabelled(self, action: Array, observation: Tree) -> tuple[Array, Array]:
        """The expert's actions, which are stored, and those that are taken."""
        assert self._expert is not None
        right = np.asarray(self._expert(tree_map(np.array, observation)))
        if right.shape != np.shape(action):
            raise ActionError(
                f"the expert gave actions of shape {right.shape}; it must give {np.shape(action)}, one for each of "
                f"{self.n} observations: expert(observations [n, …]), such as algo.predict"
            )
        check_actions(self.actions, right, allowed_actions(self.actions, observation))
        right = right.astype(self.actions.leaf.dtype)
        follows = self._generator.random(self.n) < self._expert_share
        return right, np.where(follows.reshape(-1, *(1,) * (right.ndim - 1)), right, action)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        if self._buffer is None:
            return
        steps = {name: getattr(step, name) for name in ("next_observation", "reward", "terminated", "truncated")}
        steps |= {"observation": selected.observation, "action": selected.action, "extra": selected.extra}
        append_steps(self._buffer, {**steps, "mask": step.valid}, lanes)
        if self._see is None:
            return
        seen = (selected.observation, step.reward, selected.is_first, step.valid)
        turns = range(len(step.valid)) if step.valid.ndim > 1 else [np.s_[:]]
        for turn in turns:
            row = tree_map(lambda column, turn=turn: column[turn], seen)
            self._see(*(row if lanes is None else scatter_rows(row, lanes, self.n)))

    def minibatches(self, step: int, last: bool = False, measure: MeasureTime = measure_nothing) -> Iterator[Any]:
        if self._schedule is None:
            return
        source, interval, count, start, least = self._schedule
        due = step > start and step % interval == 0
        if due and (least or self._buffer).transition_count >= self._algorithm.config.batch_size:
            for _ in range(count):
                with measure("sample_batch"):
                    drawn = self._algorithm.learner.draw(source)
                yield drawn

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        if self._buffer is not None:
            clip_episodes(self._buffer, range(self.n) if lanes is None else lanes)

    def get_state(self) -> State:
        return {**super().get_state(), "generator": self._generator.bit_generator.state}

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self._generator.bit_generator.state = state["generator"]


class _Chosen:
    """Stands in for the algorithm before an explorer.

    An actor with the memory of its episode has already chosen the greedy actions, and may have kept the values of all;
    everything else is the algorithm's.
    """

    def __init__(self, algorithm: Trainable, action: Array, values: Array | None) -> None:
        self._algorithm, self._action, self._values = algorithm, action, values

    def predict(self, x: Tree) -> Array:
        return self._action.copy()  # it may be stored as the policy's own

    def action_values(self, x: Tree) -> Array:
        given: Any = self._algorithm
        return given.action_values(x) if self._values is None else self._values.copy()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)
