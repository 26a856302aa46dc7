"""Stepping one environment or many in the same way, and restoring their state.

A plain environment is a vector environment of one. The three autoreset modes of Gymnasium look alike from here: a
`Step` holds the true next observation, and says which environments made a real step.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from birl.errors import EnvironmentMismatchError, NonFiniteError
from birl.spaces import actions_of, all_finite, number_of_environments, single_spaces
from birl.types import FLOAT32_MAX, Array, State, Tree, tree_leaves, tree_map


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


class Stepper:
    """Steps an environment or vector environment, resetting finished episodes.

    Every reset that birl makes gets a seed from ``generator``. So the present state is a function of the generator and
    of the actions since the last moment when all environments were reset together, and that is what `get_state` holds:
    for a plain environment the actions of the current episode; for a vector environment that resets itself all actions
    since the start. `set_state` repeats them.

    Args:
        env: environment or vector environment.
        generator: source of reset seeds, used for nothing else.

    Attributes:
        n: number of environments.
        action_space: of one environment.
        actions: what it takes, with its bounds.
        observation: tree of arrays ``[n, *shape]``, on which the next actions are chosen.
        is_first: bool ``[n]``: a new episode begins with ``observation``.
        reward: float32 ``[n]``: of the step before, 0 where ``is_first``.
        lost: set by `set_state` if the environment could not be restored and new episodes began.
    """

    def __init__(self, env: Any, generator: np.random.Generator) -> None:
        self.n = number_of_environments(env)
        _, self.action_space = single_spaces(env)
        self._env: Any = env if isinstance(env, VectorEnv) else _Solo(env)
        self._mode = _autoreset_mode(self._env)
        self._generator = generator
        self.actions = actions_of(self.action_space)
        kind = np.min_scalar_type(self.actions.size - 1) if self.actions.discrete else np.float32
        self._logged = np.empty((self.n, *self.actions.shape), kind)  # the newest row of the log
        self._log = bytearray()  # actions, small in memory
        self.lost = False
        self.reset()

    def reset(self) -> None:
        """Begin new episodes everywhere.

        Raises:
            NonFiniteError: if the environment gives NaN or infinity.
        """
        self._origin = self._generator.bit_generator.state
        self._log.clear()
        observation, _ = self._env.reset(seed=self._seed())
        self.observation: Tree = _copied(observation)
        self._check(self.observation)
        self.is_first = np.ones(self.n, dtype=bool)
        self.reward = np.zeros(self.n, dtype=np.float32)
        self._done = np.zeros(self.n, dtype=bool)
        self._returns = np.zeros(self.n)

    def _seed(self) -> int:
        return int(self._generator.integers(2**31 - self.n))

    def step(self, action: Array) -> Step:
        """Make a step everywhere and reset the environments whose episodes ended.

        Args:
            action: ``[n, action_size]`` or ``[n]``.

        Raises:
            NonFiniteError: if the environment gives NaN or infinity.
        """
        self._record(action)
        return self._arrived(*self._env.step(action))

    @property
    def divisible(self) -> bool:
        """Whether a step can be begun and finished later: only where environments run in processes of their own."""
        # Check the class: a wrapper passes unknown attributes on, and its own work would be left out.
        return hasattr(type(self._env), "step_async") and hasattr(type(self._env), "step_wait")

    def begin(self, action: Array) -> None:
        """Let the environments make a step while something else is done; `finish` it before anything else.

        Until then everything here, `get_state` included, is as if it had not begun.
        """
        self._env.step_async(action)
        self._begun = action

    def finish(self) -> Step:
        """The result of the step that was begun; see `step`."""
        self._record(self._begun)
        return self._arrived(*self._env.step_wait())

    def abandon(self) -> None:
        """Wait for a step that was begun and forget it. The environments can then only be reset."""
        self._env.step_wait()

    def _record(self, action: Array) -> None:
        self._logged[...] = action
        self._log += self._logged.tobytes()

    def _arrived(self, result: Tree, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """The environments' answer to a step; resets those whose episodes ended."""
        observation: Tree = _copied(result)
        terminated, truncated = np.asarray(terminated, dtype=bool), np.asarray(truncated, dtype=bool)
        truncated = truncated & ~terminated
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

        following = observation
        if self._mode is AutoresetMode.NEXT_STEP:
            self.is_first = ~valid
        else:
            self.is_first = done
            if ended and self._mode is AutoresetMode.SAME_STEP:
                observation = _with_final(observation, info, done)
                self._check(observation)
            elif ended:
                following = self._reset_where(done)
        self.observation, self._done = following, done
        reward = reward.astype(np.float32)
        self.reward = np.where(self.is_first, np.float32(0.0), reward) if ended or not valid.all() else reward.copy()
        return Step(observation, reward, terminated, truncated, valid, returns)

    def _reset_where(self, done: Array) -> Tree:
        """Reset the environments in the mask. If those are all, earlier actions no longer matter."""
        options = None if done.all() else {"reset_mask": done.copy()}
        if options is None:
            self._origin = self._generator.bit_generator.state
            self._log.clear()
        observation, _ = self._env.reset(seed=self._seed(), options=options)
        following = _copied(observation)
        self._check(following)
        return following

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
        for action in state["actions"]:
            self.step(action if self._logged.dtype.kind == "f" else action.astype(np.int64))
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


def _copied(observation: Tree) -> Tree:
    """A copy: vector environments may return the same array at every step."""
    return observation.copy() if type(observation) is np.ndarray else tree_map(np.array, observation)


class _Solo:
    """A plain environment behind the interface of a vector environment of one that does not reset itself."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._structure = _structure(env.observation_space)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed: int, options: Any = None) -> tuple[Tree, dict[str, Any]]:
        observation, info = self._env.reset(seed=seed)
        return tree_map(_lifted, self._structure, observation), info

    def step(self, action: Array) -> tuple[Tree, Array, Array, Array, dict[str, Any]]:
        chosen = int(action[0]) if np.ndim(action) == 1 else action[0]
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        flags = np.array([terminated]), np.array([truncated])
        return tree_map(_lifted, self._structure, observation), np.array([reward], dtype=np.float64), *flags, info


def _structure(space: Any) -> Tree:
    """A tree like the space's observations, its dicts in the order of the space."""
    if isinstance(space, spaces.Dict):
        return {name: _structure(part) for name, part in space.items()}
    return tuple(map(_structure, space)) if isinstance(space, spaces.Tuple) else None


def _lifted(_: None, array: Any) -> Array:
    return np.asarray(array)[None]


def _autoreset_mode(env: Any) -> AutoresetMode:
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError, TypeError) as error:
        raise EnvironmentMismatchError(
            f"the vector environment does not say when it resets: metadata['autoreset_mode'] must be one of "
            f"{', '.join(str(mode) for mode in AutoresetMode)}"
        ) from error


def _with_final(observation: Tree, info: dict[str, Any], done: Array) -> Tree:
    """``observation`` with the true final observations where episodes are done (`AutoresetMode.SAME_STEP`)."""
    if "final_obs" not in info:
        raise EnvironmentMismatchError(
            "the vector environment resets in the same step but does not give info['final_obs']: the last observation "
            "of each episode would be lost. Use another autoreset mode"
        )
    final = tree_map(np.array, observation)
    for index in np.flatnonzero(done).tolist():
        source = tree_map(lambda leaf, i=index: leaf[i], info["final_obs"])
        tree_map(lambda target, value, i=index: target.__setitem__(i, value), final, source)
    return final
