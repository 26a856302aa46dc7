"""Stepping one environment or many in the same way, and restoring their state.

A plain environment is a vector environment of one. The three autoreset modes of Gymnasium look alike from here: a
`Step` holds the true next observation, and says which environments made a real step.
"""

from __future__ import annotations

import functools
import multiprocessing.connection
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from birl.errors import EnvironmentMismatchError, NonFiniteError, ShapeError, WorkerError
from birl.spaces import Discrete, actions_of, all_finite, environment_actions, one_of, open_masks
from birl.spaces.observations import Choices, check_mask, leaf_spaces, picked
from birl.spaces.specs import number_of_environments, single_spaces
from birl.types import FLOAT32_MAX, MASK, ActionSpace, Array, State, Tree, tree_leaves, tree_map

_LOG_BYTES: Final = 2**26
_LEAST_STEPS: Final = 100_000
_MOST_STEPS: Final = 1_000_000

_SHAPES: Final = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}


class Step(NamedTuple):
    """The result of one step of ``n`` environments.

    Attributes:
        next_observation: tree of arrays ``[n, *shape]``: the final observation where an episode ended.
        reward: float32 ``[n]``.
        terminated: bool ``[n]``.
        truncated: bool ``[n]``, never where ``terminated`` is.
        valid: bool ``[n]``: False where the step was only a reset (`AutoresetMode.NEXT_STEP`).
        returns: undiscounted returns of the episodes that ended, by environment number.
    """

    next_observation: Tree
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    returns: dict[int, float]


def reset_seed(generator: np.random.Generator, n: int = 1) -> int:
    """The next seed for a reset of ``n`` environments, which give the ones after it to the others."""
    return int(generator.integers(2**31 - n))


class Stepper:
    """Steps an environment or vector environment, resetting finished episodes.

    Every reset that birl makes gets a seed from ``generator``. So the present state is a function of the generator and
    of the actions since the last moment when all environments were reset together, and that is what `get_state` holds:
    for a plain environment the actions of the current episode; for a vector environment that resets itself all actions
    since the start. `set_state` repeats them. So that there are never too many to keep or to repeat, all environments
    are reset together, and episodes under way are truncated, when there were a million steps since that moment (fewer,
    but at least 100,000, where their actions fill 64 MiB). In a plain environment, where a single episode is as long,
    there is a warning.

    Args:
        env: environment or vector environment.
        generator: source of reset seeds, used for nothing else.
        resumable: whether actions are kept for `get_state`; else there is no state, and nothing is cut short.
        observations: what is read of the environment's observations, see `birl.spaces.observations`; all if ``None``.

    Attributes:
        n: number of environments.
        action_space: of one environment.
        actions: what it takes, with its bounds.
        observation: tree of arrays ``[n, *shape]``, on which the next actions are chosen.
        is_first: bool ``[n]``: a new episode begins with ``observation``.
        reward: float32 ``[n]``: of the step before, 0 where ``is_first``.
        seed: with which environments were reset last.
        lost: set by `set_state` if the environment could not be restored and new episodes began.
    """

    def __init__(
        self, env: Any, generator: np.random.Generator, *, resumable: bool = True, observations: Tree = None
    ) -> None:
        self.n = number_of_environments(env)
        space, self.action_space = single_spaces(env)
        self._offers_mask = MASK in getattr(space, "spaces", ())
        self._observations = observations
        self._choices = [leaf if isinstance(leaf, Choices) else None for leaf in tree_leaves(observations)]
        self._solo = not isinstance(env, VectorEnv)
        self._env: Any = _Solo(env, observations) if self._solo else env
        self._mode = _autoreset_mode(self._env)
        self._generator = generator
        self.actions = actions_of(self.action_space)
        self._kind = self.actions.leaf.dtype
        # as environments of Gymnasium take rows themselves
        self._plain = self.actions.kind in ActionSpace.BOTH and not self.actions.whole
        self._plain &= self.action_space.shape == self.actions.shape
        kind = np.min_scalar_type(self.actions.size - 1) if self.actions == Discrete(self.actions.size) else self._kind
        self._logged = np.empty((self.n, *self.actions.shape), kind)  # the newest row of the log
        self._log = bytearray()  # actions, small in memory
        fitting = min(max(_LOG_BYTES // self._logged.nbytes, _LEAST_STEPS), _MOST_STEPS)
        self._log_limit = fitting * self._logged.nbytes if resumable else 0  # no log if 0
        self.lost = False
        self.reset()

    def reset(self) -> None:
        """Begin new episodes everywhere.

        Raises:
            NonFiniteError: if the environment gives NaN or infinity.
        """
        self._origin = self._generator.bit_generator.state
        self._log.clear()
        observation, info = _parts(self._ask("reset", seed=self._seed()), "reset")
        self.observation: Tree = self._read(observation)
        reads = isinstance(self.observation, dict) and MASK in self.observation
        if (self._offers_mask or MASK in info) and self.actions.options and not reads:
            _warn_of_mask("observations" if self._offers_mask else "info")
        self._check(self.observation)
        self.is_first = np.ones(self.n, dtype=bool)
        self.reward = np.zeros(self.n, dtype=np.float32)
        self._done = np.zeros(self.n, dtype=bool)
        self._returns = np.zeros(self.n)

    def _seed(self) -> int:
        self.seed = reset_seed(self._generator, self.n)
        return self.seed

    def step(self, action: Array) -> Step:
        """Make a step everywhere and reset the environments whose episodes ended.

        Args:
            action: ``[n, action_size]`` or ``[n]``.

        Raises:
            NonFiniteError: if the environment gives NaN or infinity.
            EnvironmentMismatchError: if what it gives is no step. (Gymnasium's vector environments make flags of
                whatever each environment gives, before it can be seen here.)
            WorkerError: if the process of an environment is gone.
        """
        action = self._taken(action)
        self._record(action)
        return self._arrived(self._ask("step", self._given(action)))

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the environment. What Gymnasium's vector environments cannot use is told as it is."""
        try:
            return getattr(self._env, method)(*arguments, **options)
        except (EOFError, OSError) as error:
            dead = _dead_worker(getattr(self._env, "unwrapped", None))
            if dead is None:
                raise
            raise WorkerError(
                f"{dead}, and its environment with it; the others cannot go on without it and were closed. Signal 9 "
                "often means that memory ran out: use fewer environments. A run with checkpoint=… goes on from its "
                "last checkpoint when it is started again with new environments"
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if not _of_gymnasium(error):
                raise
            raise EnvironmentMismatchError(
                f"an environment gave what is no {_SHAPES[method.split('_')[0]]}: {error}"
            ) from error

    @property
    def divisible(self) -> bool:
        """Whether a step can be begun and finished later: only where environments run in processes of their own."""
        # Check the class: a wrapper passes unknown attributes on, and its own work would be left out.
        return hasattr(type(self._env), "step_async") and hasattr(type(self._env), "step_wait")

    def begin(self, action: Array) -> None:
        """Let the environments make a step while something else is done; `finish` it before anything else.

        Until then everything here, `get_state` included, is as if it had not begun.
        """
        self._begun = self._taken(action)
        self._ask("step_async", self._given(self._begun))

    def finish(self) -> Step:
        """The result of the step that was begun; see `step`."""
        self._record(self._begun)
        return self._arrived(self._ask("step_wait"))

    def abandon(self) -> None:
        """Wait for a step that was begun and forget it. The environments can then only be reset."""
        self._ask("step_wait")

    def _taken(self, action: Array) -> Array:
        """The actions as environments are given them, the first time and when they are repeated."""
        return np.asarray(action, self._kind)

    def _given(self, action: Array) -> Any:
        """The actions in the form that environments take, as a copy: an environment may write into it."""
        own = action.copy()
        return own if self._plain else environment_actions(self.action_space, own)

    def _record(self, action: Array) -> None:
        if self._log_limit:
            self._logged[...] = action
            self._log += self._logged.tobytes()

    def _arrived(self, answer: Any) -> Step:
        """The environments' answer to a step; resets those whose episodes ended."""
        result, reward, terminated, truncated, info = _parts(answer, "step")
        observation: Tree = self._read(result)
        reward = np.asarray(reward)
        if reward.shape != (self.n,) or reward.dtype.kind not in "biuf":
            raise EnvironmentMismatchError(f"rewards are {reward!r:.80}; they must be {self.n} numbers")
        terminated = _flags("terminated", terminated, self.n)
        truncated = _flags("truncated", truncated, self.n) & ~terminated
        valid = np.ones(self.n, dtype=bool)
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~self._done
            reward = np.where(valid, reward, 0.0)
            terminated, truncated = terminated & valid, truncated & valid
        done = terminated | truncated
        ended = bool(done.any())
        self._check(observation, reward)

        self._returns += reward
        returns: dict[int, float] = {}
        if ended:
            returns = {int(i): float(self._returns[i]) for i in np.flatnonzero(done)}
            self._returns[done] = 0.0

        restart = self._log_limit and len(self._log) >= self._log_limit
        if restart:
            if self._solo and not ended:
                warnings.warn(
                    f"an episode was cut after {len(self._log) // self._logged.nbytes} steps, so that what a "
                    "checkpoint must hold stays bounded; its last step counts as truncated. Limit episodes yourself: "
                    "gymnasium.wrappers.TimeLimit",
                    RuntimeWarning,
                    stacklevel=2,
                )
            truncated = truncated | (valid & ~terminated)
            self._returns[:] = 0.0

        following = observation
        if self._mode is AutoresetMode.NEXT_STEP:
            self.is_first = ~valid
            following, _ = open_masks(self.actions, observation, done)
        else:
            self.is_first = done
            if ended and self._mode is AutoresetMode.SAME_STEP:
                observation = _with_final(observation, self._observations, info, done)
                self._check(observation)
            elif ended:
                following = self._reset_where(done)
        if restart:
            self.is_first = done = np.ones(self.n, dtype=bool)
            following, done = self._reset_where(done), np.zeros(self.n, dtype=bool)
        self.observation, self._done = following, done
        reward = reward.astype(np.float32)
        self.reward = np.where(self.is_first, np.float32(0.0), reward) if self.is_first.any() else reward.copy()
        return Step(observation, reward, terminated, truncated, valid, returns)

    def _reset_where(self, done: Array) -> Tree:
        """Reset the environments in the mask. If those are all, earlier actions no longer matter."""
        options = None if done.all() else {"reset_mask": done.copy()}
        if options is None:
            self._origin = self._generator.bit_generator.state
            self._log.clear()
        observation, _ = _parts(self._ask("reset", seed=self._seed(), options=options), "reset")
        following = self._read(observation)
        self._check(following)
        return following

    def _read(self, observation: Any) -> Tree:
        """The parts of an observation that are read, in arrays of their own."""
        return _copied(picked(self._observations, observation))

    def _check(self, observation: Tree, reward: Array | None = None) -> None:
        rewards = () if reward is None else (("reward", reward),)
        for what, array in (*rewards, *(("observation", leaf) for leaf in tree_leaves(observation))):
            if array.dtype.kind == "f" and not all_finite(array):
                finite = (np.abs(array) <= FLOAT32_MAX).reshape(self.n, -1).all(1)
                index = int(np.flatnonzero(~finite)[0])
                raise NonFiniteError(
                    f"environment {index} gave the {what} {array[index].tolist()!s:.100} after "
                    f"{len(self._log) // self._logged.nbytes} steps since its last recorded reset; only numbers that "
                    "are finite in float32 can be learned from: mend the environment"
                )
            if array.dtype.kind not in "biuf":
                raise EnvironmentMismatchError(
                    f"an environment gave the {what} {array[0].tolist()!s:.100} of dtype {array.dtype}; it must give "
                    "numbers: mend the environment"
                )
        if self.actions.options:
            check_mask(observation, EnvironmentMismatchError, "an environment gave a mask of actions that")
        for choices, rows in zip(self._choices, tree_leaves(observation), strict=False):
            wrong = None if choices is None else choices.outside(rows)
            if wrong is not None:
                raise EnvironmentMismatchError(
                    f"environment {wrong} gave the observation {rows[wrong].tolist()!s:.100}, which is not in its "
                    f"space {choices}: mend the environment"
                )

    def get_state(self) -> State:
        """Generator, actions to repeat, and the observation that they must lead to."""
        return {
            "origin": self._origin,
            "generator": self._generator.bit_generator.state,
            "actions": np.frombuffer(bytes(self._log), self._logged.dtype).reshape(-1, *self._logged.shape),
            "observation": {str(i): leaf for i, leaf in enumerate(tree_leaves(self.observation))},
        }

    def set_state(self, state: State) -> None:
        """Bring the environment back by repeating the recorded actions.

        If the observation then differs from the recorded one (the environment is not determined by its seed), a
        warning is given, new episodes begin, and ``lost`` is set.
        """
        self._generator.bit_generator.state = state["origin"]
        self.reset()
        limit, self._log_limit = self._log_limit, sys.maxsize  # none of these steps led to a reset of all
        for action in state["actions"]:
            self.step(action)
        self._log_limit = limit
        expected = [np.asarray(leaf) for leaf in state["observation"].values()]
        self.lost = not all(map(np.array_equal, tree_leaves(self.observation), expected))
        if self.lost:
            warnings.warn(
                "the environment could not be brought back to where it was: its steps are not determined by "
                "reset(seed=…) and the actions. Training continues with new episodes, so this resume is not exact.",
                RuntimeWarning,
                stacklevel=2,
            )
            self._generator.bit_generator.state = state["generator"]
            self.reset()


@functools.cache  # once
def _warn_of_mask(where: str) -> None:
    mend = "wrap it, birl.envs.ActionMask(env)," if where == "info" else "act with networks that were built for it,"
    warnings.warn(
        f"the environment says in {where}[{MASK!r}] which actions are allowed, which is not used: {mend} so that none "
        "of the others is ever taken",
        UserWarning,
        stacklevel=4,
    )


def _copied(observation: Tree) -> Tree:
    """A copy: vector environments may return the same array at every step."""
    return observation.copy() if type(observation) is np.ndarray else tree_map(np.array, observation)


class _Solo:
    """A plain environment behind the interface of a vector environment of one that does not reset itself."""

    def __init__(self, env: Any, observations: Tree) -> None:
        self._env, self._observations = env, observations
        self._space, self._action_space = single_spaces(env)
        self._leaves = picked(observations, leaf_spaces(self._space))
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed: int, options: Any = None) -> tuple[Tree, dict[str, Any]]:
        observation, info = _parts(self._env.reset(seed=seed), "reset")
        return self._tree(observation), info

    def step(self, action: Any) -> tuple[Tree, Array, list[Any], list[Any], dict[str, Any]]:
        chosen = one_of(self._action_space, action, 0)
        observation, reward, terminated, truncated, info = _parts(self._env.step(chosen), "step")
        return self._tree(observation), np.array([_number(reward)]), [terminated], [truncated], info

    def _tree(self, observation: Any) -> Tree:
        try:
            return tree_map(_lifted, self._leaves, picked(self._observations, observation))
        except (ShapeError, LookupError, TypeError, ValueError) as error:
            raise EnvironmentMismatchError(
                f"the environment gave the observation {observation!r:.200}, which does not fit its observation space "
                f"{self._space}"
            ) from error


def _parts(answer: Any, method: str) -> Any:
    """The parts of an environment's answer to ``method``.

    Raises:
        EnvironmentMismatchError: if it is something else, such as a step of gym before 0.26.
    """
    wanted = _SHAPES[method]
    given = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
    if isinstance(answer, tuple) and len(answer) == wanted.count(",") + 1:
        if isinstance(answer[-1], Mapping):
            return answer
        given = f"{answer[-1]!r:.80} as info, which is no dict"
    raise EnvironmentMismatchError(
        f"{method} of the environment gave {given}; it must give {wanted}: environments written for gym before 0.26 "
        "need a wrapper that does so, such as shimmy.GymV21CompatibilityV0"
    )


def _number(reward: Any) -> float:
    try:
        if not isinstance(reward, str | bytes):
            return float(np.asarray(reward).reshape(())[()])
    except (TypeError, ValueError):
        pass
    raise EnvironmentMismatchError(f"the environment gave the reward {reward!r:.80}; it must be a number")


def _flags(name: str, given: Any, n: int) -> Array:
    """Flags bool ``[n]``. Text and ``None`` are not taken for one: every text is true."""
    try:
        array = np.asarray(given)
    except ValueError:  # lists of several lengths
        array = np.empty(0)
    if array.size == n and (array.dtype == bool or (array.dtype.kind in "iuf" and ((array == 0) | (array == 1)).all())):
        return array.astype(bool).reshape(n)
    raise EnvironmentMismatchError(
        f"the environment gave {name}={given!r:.80}; it must be True or False for each of {n} environments"
    )


def _dead_worker(env: Any) -> str | None:
    """Which process of a vector environment has ended, and how; ``None`` if none has. Ends the others."""
    processes = getattr(env, "processes", ())
    if not processes:
        return None
    dead = multiprocessing.connection.wait([each.sentinel for each in processes], timeout=5)
    for index, each in enumerate(processes):
        if each.sentinel in dead:
            each.join(timeout=5)
            code = each.exitcode or 0
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with code {code}"
            for other in processes:
                other.terminate()
            env.closed = True  # Gymnasium's close would wait for the dead process for ever
            return f"the process of environment {index} (process id {each.pid}) {how}"
    return None


def _of_gymnasium(error: Exception) -> bool:
    """Whether an error arose where Gymnasium's vector environments take answers apart, not inside an environment."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")).split(".") for frame in frames]
    last = max(index for index, module in enumerate(modules) if module[0] != "numpy")
    passed_on = frames[last].f_code.co_name == "_raise_if_errors"  # from a worker
    return modules[last][:2] == ["gymnasium", "vector"] and (not passed_on or "unpack" in str(error))


def _lifted(space: Any, given: Any) -> Array:
    array = np.asarray(given)
    if array.shape != space.shape:
        raise ValueError(f"{array.shape} is not the shape of {space}")
    return array[None]


def _autoreset_mode(env: Any) -> AutoresetMode:
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError, TypeError) as error:
        raise EnvironmentMismatchError(
            f"the vector environment does not say when it resets: metadata['autoreset_mode'] must be one of "
            f"{', '.join(str(mode) for mode in AutoresetMode)}"
        ) from error


def _with_final(observation: Tree, observations: Tree, info: dict[str, Any], done: Array) -> Tree:
    """``observation`` with the true final observations where episodes are done (`AutoresetMode.SAME_STEP`)."""
    if "final_obs" not in info:
        raise EnvironmentMismatchError(
            "the vector environment resets in the same step but does not give info['final_obs']: the last observation "
            "of each episode would be lost. Use another autoreset mode"
        )
    final = tree_map(np.array, observation)
    finals = info["final_obs"]
    for index in np.flatnonzero(done).tolist():
        one = isinstance(finals, np.ndarray) and finals.dtype == object  # an observation of each environment
        source = finals[index] if one else tree_map(lambda leaf, i=index: leaf[i], picked(observations, finals))
        source = picked(observations, source)
        tree_map(lambda target, value, i=index: target.__setitem__(i, value), final, source)
    return final
