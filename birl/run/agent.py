"""Agents that act and learn in a user's own loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from birl.checks import check
from birl.dataset import ReplayBufferBase
from birl.envs import EndedEpisode, Step, reset_generator, single_spaces
from birl.envs.step_info import StepInfo
from birl.errors import BirlError, CorruptFileError, FileError, NonFiniteError, OrderError, ShapeError
from birl.files.atomic import convert_to_write_error
from birl.files.state_restore import check_array
from birl.logging.averages import Averages
from birl.run.agent_core import (
    AgentCore,
    ReplayAgentCore,
    check_buffer_and_explorer,
    check_lanes,
    default_buffer,
    determine_shapes,
    example_observation,
    explored_steps,
    observation_spec,
    start_schedule,
)
from birl.run.checkpoint import (
    check_checkpoint_folder,
    checkpoint_path,
    load_checkpoint,
    restore_parts,
    save_checkpoint,
)
from birl.run.fingerprint import ACTIONS, buffer_settings, part_settings, replay_settings, run_settings
from birl.run.protocols import ExplorerProtocol, Stateful, StepBuffer, Trainable
from birl.run.rollouts import RolloutAgentCore, start_rollouts
from birl.run.session import CHECK_INTERVAL, SamplerPart
from birl.seeding import preserve_random_state
from birl.spaces import action_at, all_finite, fill_empty_masks, unflatten_actions
from birl.spaces.conversion import to_array
from birl.spaces.observations import check_action_mask, check_observations, map_named_leaves, match_parts, order_tables
from birl.types import MASK, Array, Environment, State, Tree, parts_like, tree_map


@dataclass
class _Episodes:
    """The running episodes of ``n`` environments.

    Attributes:
        core: agent core that acts in the environments.
        is_first: bool ``[n]``: whether the next action is the first of an episode.
        closed: bool ``[n]``: whether an episode ended in a state without an allowed action and no other has started.
        reward: float32 ``[n]``: reward of the previous step, 0 where ``is_first``.
        returns: float64 ``[n]``: sums of the rewards so far.
        lengths: int64 ``[n]``: numbers of steps so far.
    """

    core: AgentCore
    is_first: Array
    closed: Array
    reward: Array
    returns: Array
    lengths: Array

    @classmethod
    def start(cls, core: AgentCore) -> Self:
        """Start new episodes everywhere."""
        n = core.n
        flags, zeros = (np.ones(n, np.bool_), np.zeros(n, np.bool_)), (np.zeros(n, np.float32), np.zeros(n))
        return cls(core, *flags, *zeros, np.zeros(n, np.int64))

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by name."""
        return {name: value for name, value in vars(self).items() if name != "core"}

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Replace all arrays."""
        for name, array in arrays.items():
            setattr(self, name, array)


class Agent:
    """Agent that acts, stores and learns one step at a time in your own loop; see `birl.algorithm.Algorithm.agent`.

    ::

        action = agent.act(observation)
        …  # step your environment with the action
        agent.observe(next_observation, reward, terminated, truncated)

    With one environment, observations and actions have no batch dimension. With several, all arrays, including actions,
    have a first dimension ``n``. After the end of an episode, the next observation passed to `act` is the first of a
    new episode. Only one thread at a time may call an agent.

    Attributes:
        algorithm: the algorithm that acts and learns.
        step: number of steps observed so far in all environments, excluding steps within `evaluating`.
    """

    def __init__(
        self,
        algorithm: Trainable,
        core: AgentCore,
        env: Environment,
        parts: Mapping[str, Stateful],
        settings: dict[str, Any],
    ) -> None:
        self.algorithm, self.step = algorithm, 0
        self._env, self._settings = env, {**settings, ACTIONS: algorithm.describe()["action_size"]}
        self._example = core.example
        self._names = map_named_leaves(lambda _, name: name, self._example)
        self._training = self._current = _Episodes.start(core)
        self._averages = Averages()
        self._parts = {"learner": algorithm, **parts, "agent": self}

    @property
    def n(self) -> int:
        """Number of environments."""
        return self._training.core.n

    def act(self, observation: Tree) -> Any:
        """Select actions. Call `observe` next.

        Args:
            observation: tree of arrays ``[*shape]``, or ``[n, *shape]`` with several environments.

        Returns:
            The action for the environment: float ``[A]`` or an int, for example; with several environments,
            float ``[n, A]`` or int64 ``[n]``.

        Raises:
            OrderError: if the previous actions still wait for `observe`.
            ShapeError, NonFiniteError: if the observation does not fit.
            ActionError: if the policy or the explorer selects an action outside of the action space.
        """
        now = self._current
        if now.core.selected is not None:
            raise OrderError(
                "act was called twice: first pass the outcome of the action to observe(next_observation, reward, "
                "terminated, truncated), or start new episodes with reset()"
            )
        # A vector environment may request an action after an episode's end; `observe` must mark that step as not valid.
        opened, closed = fill_empty_masks(now.core.actions, self._batch("observation", observation), now.closed)
        selected = now.core.select_action(opened, now.is_first, now.reward, self.step)
        now.closed = closed
        space = single_spaces(self._env)[1]
        action = unflatten_actions(space, np.array(selected, now.core.actions.storage_spec.dtype))
        return action if self.n > 1 else action_at(space, action, 0)

    def observe(
        self,
        next_observation: Tree,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike | None = None,
        *,
        valid: npt.ArrayLike | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the outcome of the actions, and make the updates that are due.

        If the step is rejected with an error, nothing changes: `observe` can be called again for the same actions.

        Args:
            next_observation: tree like the observation of `act`. At the end of an episode, its final observation, not
                the first one of the next.
            reward: a number, or ``[n]``.
            terminated: bool, or ``[n]``: whether the episode reached a terminal state.
            truncated: bool, or ``[n]``: whether the episode was cut off, for instance by a time limit. False if
                ``None``.
            valid: bool ``[n]``: False where no step was made, so nothing is stored. This is possible only before an
                episode's first step, for example when Gymnasium's ``AutoresetMode.NEXT_STEP`` resets an environment.
                True if ``None``.
            info: the environment's info, for a buffer with ``info_keys``.

        Raises:
            OrderError: if `act` was not called before.
            ShapeError, NonFiniteError: if an argument does not fit.
        """
        now, n = self._current, self.n
        if now.core.selected is None:
            raise OrderError(
                "observe was called before act: first act(observation), then pass the outcome of the action to "
                "observe(next_observation, reward, terminated, truncated)"
            )
        following = self._batch("next_observation", next_observation)
        rewards = self._numbers("reward", reward, "iuf", "finite number")
        if not all_finite(rewards := rewards.astype(np.float64)):
            raise NonFiniteError(f"reward is {reward!r:.80}; it must be finite in float32: correct the environment")
        made = self._flags("valid", np.ones(n, np.bool_) if valid is None else valid)
        missing = ~made & ~now.is_first
        if missing.any():
            raise ShapeError(
                f"valid is False for environment {int(np.flatnonzero(missing)[0])}, whose episode is running; it may "
                "be False only where the next step is the first of an episode"
            )
        impossible = now.closed & made
        if impossible.any():
            raise ShapeError(
                f"environment {int(np.flatnonzero(impossible)[0])} allowed no action, as after the end of an episode, "
                f"but valid is not False for it, as if it had made a step: give act an observation whose {MASK!r} has "
                "at least one 1, after reset(), or valid=False there"
            )
        terminal = self._flags("terminated", terminated) & made
        cut = self._flags("truncated", np.zeros(n, np.bool_) if truncated is None else truncated)
        cut = cut & made & ~terminal
        done, rewards = terminal | cut, np.where(made, rewards, 0.0)
        sums, counts = now.returns + rewards, now.lengths + made
        ended = {i: EndedEpisode(float(sums[i]), int(counts[i])) for i in np.flatnonzero(done).tolist()}
        stored = rewards.astype(np.float32)
        details = None if info is None else StepInfo(info, single=n == 1)
        now.core.observe(Step(following, stored, terminal, cut, made, ended, details))
        now.is_first = np.where(made, done, now.is_first)
        now.closed = fill_empty_masks(now.core.actions, following, done)[1]
        now.reward, now.returns = np.where(now.is_first, np.float32(0), stored), np.where(done, 0.0, sums)
        now.lengths = np.where(done, 0, counts)
        if now is self._training:
            for episode in ended.values():
                self._averages.add(episode.metrics())
            self._make_updates()

    def _make_updates(self) -> None:
        """Count the stored steps one by one, as the loops do, and make the updates that are due after each."""
        core = self._training.core
        while core.uncounted_steps:
            core.uncounted_steps -= 1
            self.step += 1
            for minibatch in core.minibatches(self.step):
                self._averages.add(self.algorithm.learner.update(minibatch))
            if self.step % CHECK_INTERVAL == 0:
                self._check()
        core.keep_exploration(self.step)

    def _check(self) -> None:
        self._averages.check(self.step)
        self.algorithm.learner.check_finite()

    def metrics(self) -> dict[str, float]:
        """Return the means of losses, and of returns and lengths of ended episodes, since the last call.

        Returns are called ``rollout_return``, lengths ``episode_length``.

        Raises:
            NonFiniteError: if a loss became NaN or infinite. `observe` raises it as well, within a hundred steps.
            StalledError: if ten line searches in a row failed. `observe` raises it as well.
        """
        self._check()
        means = self._averages.means()
        self._averages.clear()
        return means

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Self]:
        """Return a context in which the agent acts greedily and does not store, count or learn from steps.

        New episodes start inside. Afterwards the previous episodes continue, and the global random generators
        (Python's, numpy's, torch's) are restored: evaluation does not change training.
        """
        outer = self._current
        space = single_spaces(self._env)[1]
        self._current = _Episodes.start(AgentCore(self.algorithm, self._example, space, greedy=True))
        try:
            with preserve_random_state():
                yield self
        finally:
            self._current = outer

    def reset(self) -> None:
        """Start new episodes everywhere: the running ones are truncated, and selected actions are dropped.

        Call it if the environments do not continue where they were, for example after `load`.
        """
        self._current.core.close_episodes()
        self._current.set_arrays(_Episodes.start(self._current.core).arrays())

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write everything that acting and learning depend on, including stored steps; see `load`.

        The file is written atomically: a failure leaves the previous one. ``algorithm.save`` writes only the model.

        Args:
            folder: folder, which is created if it does not exist.

        Raises:
            OrderError: if called within `evaluating`.
            NonFiniteError: if a parameter, a moment or a loss is NaN or infinite.
            WriteError: if it cannot be written.
        """
        self._check_not_evaluating("save")
        check_checkpoint_folder(folder)
        self._averages.check(self.step, flush=False)
        with convert_to_write_error(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
        state = {
            "session": {"step": self.step},
            "parts": {name: part.get_state() for name, part in self._parts.items()},
        }
        save_checkpoint(folder, self._settings, state)

    def load(self, folder: str | Path, *, missing_ok: bool = False) -> None:
        """Restore what `save` wrote, bit for bit, into an agent that was made with the same arguments.

        Either everything is restored, including the global random generators, or an error is raised and nothing
        changed.

        Args:
            folder: folder that was passed to `save`.
            missing_ok: whether to do nothing if the folder holds no saved agent.

        Raises:
            OrderError: if called within `evaluating`.
            FileError: if the folder holds no saved agent.
            ResumeError: if it was saved by an agent with other settings; the message names them.
            CorruptFileError, ForeignFileError: if the file cannot be used.
        """
        self._check_not_evaluating("load")
        check_checkpoint_folder(folder)
        state = load_checkpoint(folder, self._settings)
        if state is not None:
            with restore_parts(self._parts, state, checkpoint_path(folder)):
                pass
        elif not check("missing_ok", missing_ok, bool):
            raise FileError(
                f"{checkpoint_path(folder)} does not exist: give the folder that save(folder) wrote, or "
                "missing_ok=True to start from scratch"
            )

    def _check_not_evaluating(self, method: str) -> None:
        if self._current is not self._training:
            raise OrderError(f"{method} was called in evaluating(): leave the context first")

    def get_state(self) -> State:
        """Return the state of episodes and acting. Learner and stored steps are separate parts of a checkpoint."""
        arrays = {name: array.copy() for name, array in self._training.arrays().items()}
        averages, core = self._averages.get_state(), self._training.core.get_state()
        return {"step": self.step, **arrays, "averages": averages, "agent": core}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        episodes = self._training
        step = check("step", state["step"], int, low=0, error=CorruptFileError)
        like = episodes.arrays().items()
        arrays = {name: check_array(state[name], array.shape, array.dtype, name) for name, array in like}
        episodes.core.set_state(state["agent"])
        self._averages.set_state(state["averages"])
        self.step = step
        episodes.set_arrays(arrays)

    # -- checks of arguments ---------------------------------------------------------------------------------------

    def _batch(self, name: str, observation: Tree) -> Tree:
        """Copy an observation to ``[n, …]`` in the dtypes of the observation space."""
        try:
            parts = parts_like(observation, self._example)
            with contextlib.suppress(ShapeError):  # the error for missing parts is raised below
                parts = match_parts(self._example, parts)
            parts = order_tables(name, parts, self.algorithm.learner.policy.columns, row=self.n == 1)
            batch = tree_map(
                lambda like, x, part: self._leaf(f"{name} {part!r}" if part else name, like, x),
                *(self._example, parts, self._names),
            )
            read = self.algorithm.spec.observations  # the buffer may store more
            check_observations(read, match_parts(read, batch), name)
            if self.algorithm.spec.masked:
                check_action_mask(batch, ShapeError, f"{name}[{MASK!r}]")
            return batch
        except BirlError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            wanted = tree_map(lambda like: like.shape[self.n == 1 :], self._example)
            raise ShapeError(
                f"{name} is {observation!r:.80}; it must have the parts and shapes {wanted} (env.reset() returns an "
                "observation and a dict)"
            ) from error

    def _leaf(self, name: str, like: Array, value: npt.ArrayLike) -> Array:
        array, wanted = to_array(name, value), like.shape[self.n == 1 :]
        if array.shape != wanted:
            batched = ": one environment's has no batch dimension" if array.shape == like.shape else ""
            raise ShapeError(f"{name} is {array.dtype} of shape {array.shape}; it must be numbers {wanted}{batched}")
        with np.errstate(all="ignore"):
            cast = array.reshape(like.shape).astype(like.dtype)
        if like.dtype.kind == "f" and not all_finite(cast):
            raise NonFiniteError(f"{name} is {value!r:.80}; it must be finite in float32")
        if like.dtype.kind != "f" and not np.array_equal(cast.reshape(wanted), array):
            raise ShapeError(f"{name} is {value!r:.80}; it must be {like.dtype}, the dtype of the observation space")
        return cast

    def _flags(self, name: str, value: npt.ArrayLike) -> Array:
        return self._numbers(name, value, "b", "boolean")

    def _numbers(self, name: str, value: npt.ArrayLike, kinds: str, noun: str) -> Array:
        try:
            array = to_array(name, value)
        except ShapeError:
            array = np.zeros(0)
        array = array.reshape(1) if self.n == array.size == 1 else array
        if array.shape != (self.n,) or array.dtype.kind not in kinds:
            wanted = f"{self.n} {noun}s, of shape ({self.n},)" if self.n > 1 else f"a {noun}"
            raise ShapeError(f"{name} is {value!r:.80}; it must be {wanted}")
        return array


def replay_agent(
    algorithm: Trainable,
    env: Environment,
    n: int,
    buffer: StepBuffer | None,
    explorer: ExplorerProtocol | None,
    learns: bool,
    options: Mapping[str, Any],
) -> Agent:
    """Make an agent that stores its steps in a replay buffer and, with ``learns``, learns from it.

    Args:
        algorithm: its networks are built if they do not exist.
        env: environment with the spaces; it is not stepped.
        n: number of environments.
        buffer: replay buffer with ``n`` lanes; by default one of a million steps if the agent learns, else none.
        explorer: turns greedy actions into exploratory ones; by default the policy itself acts.
        learns: whether it learns.
        options: all of `AgentOptions`, checked.
    """
    check("n", n, int, low=1)
    check_buffer_and_explorer(buffer, explorer, algorithm.config.batch_size if learns else 1)
    settings = run_settings(
        algorithm,
        "agent",
        **replay_settings(options, explorer),
        environments=n,
        learns=learns,
        deterministic=options["deterministic"],
        seed=options["seed"],
    )
    algorithm.build_with_env(env)
    if buffer is None and learns:
        buffer = default_buffer(algorithm, env, lanes=n)
    if buffer is not None:
        determine_shapes(buffer, algorithm, env, n)
    check_lanes(getattr(buffer, "storage", None), n)
    parts: dict[str, Stateful] = {}
    if buffer is not None:
        settings |= buffer_settings(buffer, digested=True)
        parts["buffer"] = buffer
    schedule = None
    if learns and buffer is not None:
        schedule = start_schedule(algorithm, buffer, options, 0)  # without a known length nothing is compiled
        parts["sampler"] = SamplerPart(schedule.source)
    _, random = reset_generator(env, options["seed"]).spawn(2)
    core = ReplayAgentCore(
        algorithm,
        example_observation(observation_spec(algorithm, env, buffer), env, n),
        single_spaces(env)[1],
        buffer,
        explorer,
        greedy=options["deterministic"],
        generator=random,
        random_steps=options["random_steps"],
        schedule=schedule,
    )
    core.explored = explored_steps(algorithm, explorer)
    return Agent(algorithm, core, env, parts, settings)


def rollout_agent(
    algorithm: Trainable,
    env: Environment,
    n: int,
    explorer: ExplorerProtocol | None = None,
    buffer: StepBuffer | None = None,
    demonstrations: ReplayBufferBase | None = None,
    *,
    replays: bool = False,
) -> Agent:
    """Make an agent that learns from its rollouts and, with ``replays``, from those in a buffer; see `replay_agent`."""
    check("n", n, int, low=1)
    check_buffer_and_explorer(buffer, explorer)
    settings = run_settings(algorithm, "agent", environments=n)
    settings |= {} if explorer is None else {"explorer": part_settings(explorer)}
    algorithm.build_with_env(env)
    experience = start_rollouts(algorithm, env, 0, buffer, demonstrations, replays=replays, digested=True, lanes=n)
    observation = example_observation(observation_spec(algorithm, env, experience.buffer), env, n)
    core = RolloutAgentCore(algorithm, observation, single_spaces(env)[1], explorer, experience)
    core.explored = explored_steps(algorithm, explorer)
    return Agent(algorithm, core, env, experience.parts, {**settings, **experience.settings})
