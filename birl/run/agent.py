"""Acting and learning in one's own loop: the online loops turned inside out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from birl.checks import check
from birl.envs import Step, reset_generator, single_spaces
from birl.errors import BirlError, CorruptFileError, FileError, NonFiniteError, OrderError, ShapeError
from birl.files.atomic import write_error
from birl.files.state_restore import checked_array
from birl.logging.averages import Averages
from birl.run.agent_core import (
    AgentCore,
    ReplayAgentCore,
    check_buffer_and_explorer,
    check_lanes,
    example_observation,
    observation_spec,
)
from birl.run.checkpoint import (
    check_checkpoint_folder,
    checkpoint_path,
    load_checkpoint,
    preserve_random_state,
    restore_parts,
    save_checkpoint,
)
from birl.run.fingerprint import ACTIONS, part_settings, run_settings
from birl.run.protocols import Environment, ExplorerProtocol, Stateful, Trainable
from birl.run.replay_setup import buffer_settings, default_buffer, replay_settings, start_schedule
from birl.run.rollouts import RolloutAgentCore, start_rollouts
from birl.run.session import CHECK_INTERVAL, SamplerPart
from birl.spaces import all_finite, environment_actions, one_of, open_masks
from birl.spaces.observations import check_inside, check_mask, named_map, picked
from birl.types import MASK, Array, State, Tree, parts_like, tree_map


@dataclass
class _Episodes:
    """Where the episodes of ``n`` environments stand.

    Attributes:
        player: acts in them.
        is_first: bool ``[n]``: the next action begins an episode.
        closed: bool ``[n]``: an episode has ended where nothing is allowed, and no other has begun.
        reward: float32 ``[n]``: of the step before, 0 where ``is_first``.
        returns: float64 ``[n]``: sums of the rewards so far.
    """

    player: AgentCore
    is_first: Array
    closed: Array
    reward: Array
    returns: Array

    @classmethod
    def begin(cls, player: AgentCore) -> Self:
        """None has begun."""
        n = player.n
        return cls(player, np.ones(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.float32), np.zeros(n))


class Agent:
    """Acts, stores and learns, one step at a time, for a loop of your own: `birl.algorithm.Algorithm.agent` makes one.

    ::

        action = agent.act(observation)
        …  # the world goes on
        agent.observe(next_observation, reward, terminated, truncated)

    An observation is that of one environment, without a batch dimension, where ``n`` is 1; with more environments
    everything has a first dimension ``n``, also actions. Episodes begin by themselves: where one has ended, the next
    observation that `act` is given is the first of another. One thread at a time may call an agent.

    Attributes:
        algorithm: acts and learns.
        step: steps observed so far, over all environments, without those of `evaluating`.
    """

    def __init__(
        self, algorithm: Trainable, player: AgentCore, env: Environment, parts: Mapping[str, Stateful], settings: Any
    ) -> None:
        self.algorithm, self.step = algorithm, 0
        self._env, self._settings = env, {**settings, ACTIONS: algorithm.describe()["action_size"]}
        self._example = player.example
        self._names = named_map(lambda _, name: name, self._example)
        self._training = self._now = _Episodes.begin(player)
        self._averages = Averages()
        self._parts = {"learner": algorithm, **parts, "agent": self}

    @property
    def n(self) -> int:
        """Number of environments."""
        return self._training.player.n

    def act(self, observation: Tree) -> Any:
        """Choose actions. The next call is `observe`.

        Args:
            observation: tree of arrays ``[*shape]``, or ``[n, *shape]`` with several environments.

        Returns:
            The action as the environment takes it: float ``[A]`` or an int, for example; with several environments,
            float ``[n, A]`` or int64 ``[n]``.

        Raises:
            OrderError: if the actions chosen before still wait for `observe`.
            ShapeError, NonFiniteError: if the observation does not fit.
            ActionError: if the policy or the explorer chooses an action outside of the action space.
        """
        now = self._now
        if now.player.selected is not None:
            raise OrderError(
                "act was called twice: first say where the action led with observe(next_observation, reward, "
                "terminated, truncated), or begin new episodes with reset()"
            )
        # a vector environment may ask once more where an episode has ended; `observe` must say that no step was made
        seen, closed = open_masks(now.player.actions, self._batch("observation", observation), now.closed)
        given = now.player.select_action(seen, now.is_first, now.reward, self.step)
        now.closed = closed
        space = single_spaces(self._env)[1]
        action = environment_actions(space, np.array(given, now.player.actions.leaf.dtype))
        return action if self.n > 1 else one_of(space, action, 0)

    def observe(
        self, next_observation: Tree, reward: Any, terminated: Any, truncated: Any = None, *, valid: Any = None
    ) -> None:
        """Say where the actions led: the step is stored, and the updates that are due are made.

        A step that is refused changes nothing: the actions still wait for theirs.

        Args:
            next_observation: tree like the one that `act` takes. Where an episode ended, its final observation, not the
                first one of the next.
            reward: a number, or ``[n]``.
            terminated: bool, or ``[n]``: the episode is over for good.
            truncated: the same: it was only cut off, by a time limit for instance. Nowhere if ``None``.
            valid: bool ``[n]``: False where no step was made, which is possible only before an episode's first one:
                after the end of an episode in Gymnasium's ``AutoresetMode.NEXT_STEP``, for instance. Nothing is stored
                there. Everywhere true if ``None``.

        Raises:
            OrderError: if no actions wait, because `act` was not called before.
            ShapeError, NonFiniteError: if what is given does not fit.
        """
        now, n = self._now, self.n
        if now.player.selected is None:
            raise OrderError(
                "observe was called before act: act(observation) chooses actions, and observe(next_observation, "
                "reward, terminated, truncated) says where they led"
            )
        following = self._batch("next_observation", next_observation)
        rewards = self._numbers("reward", reward, "iuf", "finite number")
        if not all_finite(rewards := rewards.astype(np.float64)):
            raise NonFiniteError(f"reward is {reward!r:.80}; it must be finite in float32: mend the environment")
        valid = self._flags("valid", np.ones(n, np.bool_) if valid is None else valid)
        unmade = ~valid & ~now.is_first
        if unmade.any():
            raise ShapeError(
                f"valid is False for environment {int(np.flatnonzero(unmade)[0])}, whose episode goes on; it may be "
                "False only where the next step is the first of an episode"
            )
        shut = now.closed & valid
        if shut.any():
            raise ShapeError(
                f"environment {int(np.flatnonzero(shut)[0])} allowed no action, as where an episode has ended, but "
                f"valid is not False for it, as if it had made a step: give act an observation whose {MASK!r} has at "
                "least one 1, after reset(), or valid=False there"
            )
        terminated = self._flags("terminated", terminated) & valid
        cut = self._flags("truncated", np.zeros(n, np.bool_) if truncated is None else truncated)
        truncated = cut & valid & ~terminated
        done, rewards = terminated | truncated, np.where(valid, rewards, 0.0)
        sums = now.returns + rewards
        ended = {int(i): float(sums[i]) for i in np.flatnonzero(done)}
        given = rewards.astype(np.float32)
        now.player.observe(Step(following, given, terminated, truncated, valid, ended))
        now.is_first = np.where(valid, done, now.is_first)
        now.closed = open_masks(now.player.actions, following, done)[1]
        now.reward, now.returns = np.where(now.is_first, np.float32(0), given), np.where(done, 0.0, sums)
        if now is self._training:
            for value in ended.values():
                self._averages.add({"rollout_return": value})
            self._learn()

    def _learn(self) -> None:
        """Count the steps that were stored one by one, each with the updates that are due, as the loops do."""
        player = self._training.player
        while player.uncounted_steps:
            player.uncounted_steps -= 1
            self.step += 1
            for drawn in player.minibatches(self.step):
                self._averages.add(self.algorithm.learner.learn(drawn))
            if self.step % CHECK_INTERVAL == 0:
                self._check()

    def _check(self) -> None:
        self._averages.check(self.step)
        self.algorithm.learner.check_finite()

    def metrics(self) -> dict[str, float]:
        """Means of the losses, and of ``rollout_return`` over the episodes that ended, since this was last called.

        Raises:
            NonFiniteError: if a loss, a parameter or a moment became NaN or infinite. `observe` raises it,
                too, a hundred steps later at most.
            StalledError: if ten line searches in a row failed; so does `observe`.
        """
        self._check()
        means = self._averages.means()
        self._averages.clear()
        return means

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Self]:
        """A context in which the agent acts greedily, and neither stores nor learns nor counts steps.

        Its episodes begin anew there; those before go on afterwards, and so do the global random generators (Python's,
        numpy's, torch's): evaluation does not change what is learned.
        """
        outer = self._now
        space = single_spaces(self._env)[1]
        self._now = _Episodes.begin(AgentCore(self.algorithm, self._example, space, greedy=True))
        try:
            with preserve_random_state():
                yield self
        finally:
            self._now = outer

    def reset(self) -> None:
        """Begin new episodes everywhere: those that run are cut off here, and actions that wait are forgotten.

        For worlds that do not go on where they were, after `load` for instance.
        """
        player = self._now.player
        player.close_episodes()
        begun = _Episodes.begin(player)
        self._now.is_first, self._now.closed = begun.is_first, begun.closed
        self._now.reward, self._now.returns = begun.reward, begun.returns

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write everything that acting and learning depend on, stored steps included; see `load`.

        The file is complete or not there: a failure leaves what was there before. ``algorithm.save`` writes the model
        alone.

        Args:
            folder: is made if it is not there.

        Raises:
            OrderError: in `evaluating`.
            NonFiniteError: if a parameter, a moment or a loss is NaN or infinite.
            WriteError: if it cannot be written.
        """
        self._only_outside("save")
        check_checkpoint_folder(folder)
        self._averages.check(self.step, flush=False)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(str(folder), error) from error
        state = {
            "session": {"step": self.step},
            "parts": {name: part.get_state() for name, part in self._parts.items()},
        }
        save_checkpoint(folder, self._settings, state)

    def load(self, folder: str | Path, *, missing_ok: bool = False) -> None:
        """Go on from what `save` wrote, bit for bit, in an agent made with the same arguments.

        Everything is set, the global random generators included, or, with an error, nothing.

        Args:
            folder: where it was saved.
            missing_ok: whether nothing happens if there is nothing saved.

        Raises:
            OrderError: in `evaluating`.
            FileError: if nothing is there.
            ResumeError: if it was saved by an agent with other settings; the message names them.
            CorruptFileError, ForeignFileError: if it cannot be used.
        """
        self._only_outside("load")
        check_checkpoint_folder(folder)
        state = load_checkpoint(folder, self._settings)
        if state is not None:
            with restore_parts(self._parts, state, checkpoint_path(folder)):
                pass
        elif not check("missing_ok", missing_ok, bool):
            raise FileError(
                f"{checkpoint_path(folder)} is not there: give the folder that save(folder) wrote, or missing_ok=True "
                "to begin anew"
            )

    def _only_outside(self, method: str) -> None:
        if self._now is not self._training:
            raise OrderError(f"{method} was called in evaluating(): leave the context first")

    def get_state(self) -> State:
        """Where the episodes stand, with the player's state. Learner and stored steps are parts of their own."""
        own = self._training
        return {
            "step": self.step,
            "is_first": own.is_first.copy(),
            "closed": own.closed.copy(),
            "reward": own.reward.copy(),
            "returns": own.returns.copy(),
            "averages": self._averages.get_state(),
            "player": own.player.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        own = self._training
        step = check("step", state["step"], int, low=0, error=CorruptFileError)
        like = {"is_first": own.is_first, "closed": own.closed, "reward": own.reward, "returns": own.returns}
        is_first, closed, reward, returns = (
            checked_array(state[name], array.shape, array.dtype, name) for name, array in like.items()
        )
        own.player.set_state(state["player"])
        self._averages.set_state(state["averages"])
        self.step, own.is_first, own.closed = step, is_first, closed
        own.reward, own.returns = reward, returns

    # -- what users give -------------------------------------------------------------------------------------------

    def _batch(self, what: str, given: Tree) -> Tree:
        """A copy ``[n, …]`` of an observation in the dtypes of the observation space."""
        try:
            parts = parts_like(given, self._example)
            with contextlib.suppress(ShapeError):  # parts that are missing are told below
                parts = picked(self._example, parts)
            batch = tree_map(
                lambda like, x, name: self._leaf(f"{what} {name!r}" if name else what, like, x),
                *(self._example, parts, self._names),
            )
            read = self.algorithm.spec.observations  # the buffer may store more
            check_inside(read, picked(read, batch), what)
            if self.algorithm.spec.masked:
                check_mask(batch, ShapeError, f"{what}[{MASK!r}]")
            return batch
        except BirlError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            wanted = tree_map(lambda like: like.shape[self.n == 1 :], self._example)
            raise ShapeError(
                f"{what} is {given!r:.80}; it must have the parts and shapes {wanted} (env.reset() gives an "
                "observation and a dict)"
            ) from error

    def _leaf(self, what: str, like: Array, given: Any) -> Array:
        array, wanted = np.asarray(given), like.shape[self.n == 1 :]
        if array.shape != wanted or array.dtype.kind not in "biuf":
            batched = ": one environment's has no batch dimension" if array.shape == like.shape else ""
            raise ShapeError(f"{what} is {array.dtype} of shape {array.shape}; it must be numbers {wanted}{batched}")
        with np.errstate(all="ignore"):
            cast = array.reshape(like.shape).astype(like.dtype)
        if like.dtype.kind == "f" and not all_finite(cast):
            raise NonFiniteError(f"{what} is {given!r:.80}; it must be finite in float32")
        if like.dtype.kind != "f" and not np.array_equal(cast.reshape(wanted), array):
            raise ShapeError(f"{what} is {given!r:.80}; it must be {like.dtype}, as the observation space says")
        return cast

    def _flags(self, what: str, given: Any) -> Array:
        return self._numbers(what, given, "b", "boolean")

    def _numbers(self, what: str, given: Any, kinds: str, word: str) -> Array:
        array = np.asarray(given)
        array = array.reshape(1) if self.n == array.size == 1 else array
        if array.shape != (self.n,) or array.dtype.kind not in kinds:
            wanted = f"{self.n} {word}s, of shape ({self.n},)" if self.n > 1 else f"a {word}"
            raise ShapeError(f"{what} is {given!r:.80}; it must be {wanted}")
        return array


def replay_agent(
    algorithm: Trainable,
    env: Environment,
    n: int,
    buffer: Any,
    explorer: ExplorerProtocol | None,
    learns: bool,
    given: Mapping[str, Any],
) -> Agent:
    """An agent that stores its steps in a replay buffer and, with ``learns``, learns from there.

    Args:
        algorithm: its networks are made if they do not exist.
        env: has the spaces; it is not stepped.
        n: number of environments.
        buffer: replay buffer with ``n`` lanes; by default one of a million steps if the agent learns, else none.
        explorer: turns greedy actions into the ones taken; by default the policy acts by itself.
        learns: whether it learns.
        given: all of `AgentOptions`, checked.
    """
    check("n", n, int, low=1)
    check_buffer_and_explorer(buffer, explorer, algorithm.config.batch_size if learns else 1)
    settings = run_settings(
        algorithm,
        "agent",
        **replay_settings(given, explorer),
        environments=n,
        learns=learns,
        deterministic=given["deterministic"],
        seed=given["seed"],
    )
    algorithm.build_with_env(env)
    if buffer is None and learns:
        buffer = default_buffer(algorithm, env, lanes=n)
    check_lanes(getattr(buffer, "storage", None), n)
    parts: dict[str, Stateful] = {}
    if buffer is not None:
        settings |= buffer_settings(buffer, digested=True)
        parts["buffer"] = buffer
    schedule = start_schedule(algorithm, buffer, given, 0) if learns else None  # no length that would pay for compiling
    if schedule is not None:
        parts["sampler"] = SamplerPart(schedule.source)
    _, random = reset_generator(env, given["seed"]).spawn(2)
    player = ReplayAgentCore(
        algorithm,
        example_observation(observation_spec(algorithm, env, buffer), env, n),
        single_spaces(env)[1],
        buffer,
        explorer,
        greedy=given["deterministic"],
        generator=random,
        random_steps=given["random_steps"],
        schedule=schedule,
    )
    return Agent(algorithm, player, env, parts, settings)


def rollout_agent(
    algorithm: Trainable,
    env: Environment,
    n: int,
    explorer: ExplorerProtocol | None = None,
    buffer: Any = None,
    demonstrations: Any = None,
    *,
    replays: bool = False,
) -> Agent:
    """An agent that learns from its own rollouts and, with ``replays``, from those in a buffer; see `replay_agent`."""
    check("n", n, int, low=1)
    check_buffer_and_explorer(buffer, explorer)
    settings = run_settings(algorithm, "agent", environments=n)
    settings |= {} if explorer is None else {"explorer": part_settings(explorer)}
    algorithm.build_with_env(env)
    beside = start_rollouts(algorithm, env, 0, buffer, demonstrations, replays=replays, digested=True, lanes=n)
    seen = example_observation(observation_spec(algorithm, env, beside.buffer), env, n)
    player = RolloutAgentCore(algorithm, seen, single_spaces(env)[1], explorer, beside)
    return Agent(algorithm, player, env, beside.parts, {**settings, **beside.settings})
