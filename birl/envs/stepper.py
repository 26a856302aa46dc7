"""Stepping of single and vector environments in the same way, and restoring their state.

A single environment counts as a vector environment of one. The three autoreset modes of Gymnasium give the same
`Step`: it holds the true next observations, and which environments made a real step.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing.connection
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from birl.envs.step_info import StepInfo
from birl.envs.wrappers import find_mask_method
from birl.errors import (
    BirlError,
    DataError,
    EnvironmentMismatchError,
    NonFiniteError,
    ObservationRangeWarning,
    ShapeError,
    WorkerError,
)
from birl.spaces import Discrete, action_at, actions_from_space, fill_empty_masks, first_not_finite, unflatten_actions
from birl.spaces.conversion import to_array
from birl.spaces.observations import Choices, check_action_mask, leaf_spaces, match_parts
from birl.spaces.specs import number_of_environments, single_spaces
from birl.types import MASK, ActionSpace, Array, Environment, State, Tree, tree_leaves, tree_map

_LOG_BYTES: Final = 2**26
_MIN_LOGGED_STEPS: Final = 100_000
_MAX_LOGGED_STEPS: Final = 1_000_000

_WARNED: Final = set[tuple[type, str]]()
"""Classes of environments with the warnings about them, which later steppers do not repeat."""

_RANGE_CHECKS: Final = 1000
"""Number of steps in which observations are compared with the bounds of their space."""

_RANGE_TOLERANCE: Final = 1e-4
"""Largest distance of an observation from its bounds that counts as rounding, relative to the bound (or to 1)."""

SUCCESS: Final = "is_success"
"""Name of the part of ``info`` in which environments report whether an episode succeeded."""

_OTHER_SUCCESS: Final = "success"
"""Name of the same part in Meta-World and robosuite."""

_RESULTS: Final = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}


class EndedEpisode(NamedTuple):
    """An episode that has ended.

    Attributes:
        value: its undiscounted return.
        length: its number of steps.
        success: ``info["is_success"]`` of its last step, or else ``info["success"]``, from 0 to 1; NaN if the
            environment does not report it.
    """

    value: float
    length: int
    success: float = math.nan

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a training episode."""
        found = {"rollout_return": self.value, "episode_length": float(self.length)}
        return found if math.isnan(self.success) else {**found, "success_rate": self.success}


class Step(NamedTuple):
    """The result of one step of ``n`` environments.

    Attributes:
        next_observation: tree of arrays ``[n, *shape]``: the final observation where an episode ended.
        reward: float32 ``[n]``.
        terminated: bool ``[n]``.
        truncated: bool ``[n]``, never where ``terminated`` is.
        valid: bool ``[n]``: False where the step was only a reset (`AutoresetMode.NEXT_STEP`).
        ended: the episodes that ended, by index of the environment.
        info: the info of the environments; ``None`` if it was not kept.
    """

    next_observation: Tree
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    ended: Mapping[int, EndedEpisode] = MappingProxyType({})
    info: StepInfo | None = None

    def columns(self) -> dict[str, Tree]:
        """Return the fields that have a row for each environment, by name."""
        return dict(zip(STEP_COLUMNS, self, strict=False))


STEP_COLUMNS: Final = Step._fields[:5]
"""The fields of a `Step` that have a row for each environment."""


def reset_seed(generator: np.random.Generator, n: int = 1) -> int:
    """Return the seed for a reset of ``n`` environments: the first one gets it, the others the following integers."""
    return int(generator.integers(2**31 - n))


class Stepper:
    """Steps an environment or vector environment, and resets finished episodes.

    Each reset gets a seed from ``generator``. So the generator and the actions since the last reset of all environments
    determine the state, and `get_state` holds these: the actions of the current episode for a single environment, all
    actions since the start for a vector environment that resets itself. `set_state` repeats them. To limit their
    number, all environments are reset, and running episodes truncated, a million steps after the last such reset
    (earlier if the actions fill 64 MiB, but not before 100,000 steps). If this cuts an episode of a single environment,
    there is a warning.

    Args:
        env: environment or vector environment.
        generator: generator of the seeds of resets; nothing else may use it.
        resumable: whether to keep actions for `get_state`; otherwise there is no state, and episodes are never cut.
        observations: the parts of observations to read, see `birl.spaces.observations`; all if ``None``.
        lazy: whether environments that do not reset themselves are reset when ``observation`` is read, and so never
            after the last episode.

    Attributes:
        n: number of environments.
        action_space: action space of one environment.
        actions: its actions, with bounds.
        observation: tree of arrays ``[n, *shape]``, for which the next actions are selected.
        is_first: bool ``[n]``: a new episode starts with ``observation``.
        reward: float32 ``[n]``: reward of the previous step, 0 where ``is_first``.
        seed: seed of the last reset.
        lost: whether `set_state` failed to restore the environment and started new episodes.
    """

    def __init__(
        self,
        env: Environment,
        generator: np.random.Generator,
        *,
        resumable: bool = True,
        observations: Tree = None,
        lazy: bool = False,
    ) -> None:
        self.n = number_of_environments(env)
        space, self.action_space = single_spaces(env)
        self._offers_mask = MASK in getattr(space, "spaces", ())
        self._observations = observations
        self._choices = [leaf if isinstance(leaf, Choices) else None for leaf in tree_leaves(observations)]
        self._env = env if isinstance(env, VectorEnv) else _SingleEnv(env, observations)
        self._single = self._env is not env
        self._mode = _autoreset_mode(self._env)
        self._generator = generator
        self.actions = actions_from_space(self.action_space)
        self._kind = self.actions.storage_spec.dtype
        # Gymnasium's environments accept rows unchanged
        self._takes_rows = self.actions.kind in ActionSpace.BOTH and not self.actions.integral
        self._takes_rows &= self.action_space.shape == self.actions.shape
        kind = np.min_scalar_type(self.actions.size - 1) if self.actions == Discrete(self.actions.size) else self._kind
        self._logged = np.empty((self.n, *self.actions.shape), kind)  # the latest row of the log
        self._log = bytearray()  # actions, small in memory
        n_rows = min(max(_LOG_BYTES // self._logged.nbytes, _MIN_LOGGED_STEPS), _MAX_LOGGED_STEPS)
        self._log_limit = n_rows * self._logged.nbytes if resumable else 0  # no log if 0
        self.lost = False
        self._lazy, self._pending = lazy, np.zeros(0, dtype=bool)
        self._range_checks, self._bounds = _RANGE_CHECKS, _observation_bounds(space, observations)
        self._masks_read = False  # or warned of, or there are none
        self.reset()

    @property
    def observation(self) -> Tree:
        """See the attributes of the class."""
        if self._pending.size:
            pending, self._pending = self._pending, np.zeros(0, dtype=bool)
            self._observation = self._reset_done(pending)
        return self._observation

    def reset(self) -> None:
        """Start new episodes in all environments.

        Raises:
            NonFiniteError: if an environment returns NaN or infinity.
        """
        self._origin = self._generator.bit_generator.state
        self._log.clear()
        observation, info = _check_result(self._call("reset", seed=self._next_seed()), "reset")
        self._observation, self._pending = self._read(observation), np.zeros(0, dtype=bool)
        self._warn_of_mask(info)
        self._check(self._observation)
        self.is_first = np.ones(self.n, dtype=bool)
        self.reward = np.zeros(self.n, dtype=np.float32)
        self._done = np.zeros(self.n, dtype=bool)
        self._all, self._returns = np.ones(self.n, dtype=bool), np.zeros(self.n)
        self._lengths = np.zeros(self.n, np.int64)

    def _warn_of_mask(self, info: Mapping[str, object]) -> None:
        """Warn if the environment has a mask of actions that nothing reads, once for each class of environments."""
        if self._masks_read:
            return
        if (isinstance(self._observation, dict) and MASK in self._observation) or not self.actions.options:
            self._masks_read = True
            return
        where = f"observations[{MASK!r}]" if self._offers_mask else f"info[{MASK!r}]" if MASK in info else ""
        if not where and isinstance(self._env, _SingleEnv) and self._env.has_mask_method:
            where = "action_masks()"
        if where:
            self._masks_read = True
            wrap, act = "wrap it, birl.envs.ActionMask(env),", "act with networks that were built for it,"
            if self._is_new(where):
                warnings.warn(
                    f"the environment has a mask of actions in {where}, which is not used: "
                    f"{act if self._offers_mask else wrap} so that policies never take masked actions",
                    UserWarning,
                    stacklevel=4,
                )

    def _is_new(self, warning: str) -> bool:
        """Return whether there has been no such warning for environments of this class."""
        env = self._env.env if isinstance(self._env, _SingleEnv) else self._env
        single = next(iter(getattr(env, "envs", [env])))  # a vector environment may show its environments
        key = type(getattr(single, "unwrapped", single)), warning
        new = key not in _WARNED
        _WARNED.add(key)
        return new

    def _next_seed(self) -> int:
        self.seed = reset_seed(self._generator, self.n)
        return self.seed

    def step(self, action: Array) -> Step:
        """Step all environments and reset those whose episodes ended.

        Args:
            action: ``[n, action_size]`` or ``[n]``.

        Raises:
            NonFiniteError: if an environment returns NaN or infinity.
            EnvironmentMismatchError: if an environment does not return a step. (Gymnasium's vector environments
                convert any value to flags, before it arrives here.)
            WorkerError: if the process of an environment has ended.
        """
        action = self._to_logged(action)
        self._record(action)
        return self._finish_step(self._call("step", self._to_environment(action)))

    def _call(self, method: str, *arguments: object, **options: object) -> object:
        """Call a method of the environment; raise typed errors for results that vector environments cannot handle."""
        try:
            return getattr(self._env, method)(*arguments, **options)
        except (EOFError, OSError) as error:
            dead = _dead_worker(getattr(self._env, "unwrapped", None))
            if dead is None:
                raise
            raise WorkerError(
                f"{dead}, so all environments were closed. Signal 9 often means that memory ran out: use fewer "
                "environments. A run with checkpoint=… continues from its last checkpoint when you start it again "
                "with new environments"
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            check_signature_of_reset(error)
            if not _of_gymnasium(error):
                raise
            raise EnvironmentMismatchError(
                f"an environment must return {_RESULTS[method.split('_')[0]]}; it returned another result ({error}): "
                "correct the environment"
            ) from error

    @property
    def supports_async(self) -> bool:
        """Whether `step_async` works: only where environments run in separate processes."""
        # Check the class: a wrapper forwards unknown attributes, which would skip its own work.
        return hasattr(type(self._env), "step_async") and hasattr(type(self._env), "step_wait")

    def step_async(self, action: Array) -> None:
        """Start a step and return at once. Call `step_wait` before any other step.

        Until then all attributes, and `get_state`, are as before the step.
        """
        self._async_action = self._to_logged(action)
        self._call("step_async", self._to_environment(self._async_action))

    def step_wait(self) -> Step:
        """Wait for the step that `step_async` started, and return it as `step` does."""
        self._record(self._async_action)
        return self._finish_step(self._call("step_wait"))

    def step_discard(self) -> None:
        """Wait for the step that `step_async` started, and discard it. The environments must then be reset."""
        self._call("step_wait")

    def _to_logged(self, action: Array) -> Array:
        """Convert actions to the logged dtype, so that repeated actions equal the original ones."""
        return to_array("actions", action).astype(self._kind, copy=False)

    def _to_environment(self, action: Array) -> Tree:
        """Convert actions to the form of the environment, as a copy, because an environment may write into it."""
        copied = action.copy()
        return copied if self._takes_rows else unflatten_actions(self.action_space, copied)

    def _record(self, action: Array) -> None:
        if self._log_limit:
            self._logged[...] = action
            self._log += self._logged.tobytes()

    def _finish_step(self, given: object) -> Step:
        """Read the results of a step, and reset the environments whose episodes ended."""
        result, reward, terminated, truncated, info = _check_result(given, "step")
        observation: Tree = self._read(result)
        reward = _numbers("rewards", reward)
        if reward.shape != (self.n,) or reward.dtype.kind not in "biuf":
            raise EnvironmentMismatchError(
                f"the rewards are {reward!r:.80}; they must be {self.n} numbers: correct the environment"
            )
        terminated = _flags("terminated", terminated, self.n)
        truncated = _flags("truncated", truncated, self.n) & ~terminated
        valid = self._all.copy()
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~self._done
            reward = np.where(valid, reward, 0.0)
            terminated, truncated = terminated & valid, truncated & valid
        done = terminated | truncated
        ended = bool(done.any())
        self._check(observation, reward)

        self._returns += reward
        self._lengths += valid
        episodes: dict[int, EndedEpisode] = {}
        if ended:
            where = np.flatnonzero(done)
            successes = self._successes(info)[where].tolist()
            found = zip(self._returns[where].tolist(), self._lengths[where].tolist(), successes, strict=True)
            episodes = dict(zip(where.tolist(), itertools.starmap(EndedEpisode, found), strict=True))
            self._returns[done], self._lengths[done] = 0.0, 0

        restart = self._log_limit and len(self._log) >= self._log_limit
        if restart:
            if self._single and not ended:
                warnings.warn(
                    f"an episode was cut after {len(self._log) // self._logged.nbytes} steps, to limit the size of "
                    "checkpoints; its last step is truncated. Limit episodes yourself: "
                    "gymnasium.wrappers.TimeLimit",
                    RuntimeWarning,
                    stacklevel=2,
                )
            truncated = truncated | (valid & ~terminated)
            self._returns[:], self._lengths[:] = 0.0, 0

        following = observation
        if self._mode is AutoresetMode.NEXT_STEP:
            self.is_first = ~valid
            following, _ = fill_empty_masks(self.actions, observation, done)
        else:
            self.is_first = done
            if ended and self._mode is AutoresetMode.SAME_STEP:
                observation = _with_final(observation, self._observations, info, done)
                self._check(observation)
            elif ended and self._lazy:
                self._pending = done
            elif ended:
                following = self._reset_done(done)
        if restart:
            self.is_first = done = self._all.copy()
            self._pending = np.zeros(0, dtype=bool)
            following, done = self._reset_done(done), np.zeros(self.n, dtype=bool)
        self._observation, self._done = following, done
        self._warn_of_mask(info)
        reward = reward.astype(np.float32)
        self.reward = reward.copy()
        self.reward[self.is_first] = 0.0
        return Step(observation, reward, terminated, truncated, valid, episodes, StepInfo(info, self._single))

    def _successes(self, info: Mapping[str, Any]) -> Array:
        """Return ``info["is_success"]`` of a step in which episodes ended, ``[n]``: NaN where there is none.

        ``info["success"]`` counts instead if there is no ``is_success``, and it is from 0 to 1.
        """
        if self._mode is AutoresetMode.SAME_STEP:
            info = info.get("final_info", info)
        if not isinstance(info, Mapping):  # a dict, or None, for each environment
            rows = [each if isinstance(each, Mapping) else {} for each in info]
            name = SUCCESS if any(row.get(SUCCESS) is not None for row in rows) else _OTHER_SUCCESS
            info = {name: [math.nan if row.get(name) is None else row[name] for row in rows]}
        name = SUCCESS if info.get(SUCCESS) is not None else _OTHER_SUCCESS
        given = info.get(name)
        if given is None:
            return np.full(self.n, math.nan)
        try:
            found = np.array(to_array(name, given), np.float64).reshape(self.n)
            if (known := info.get(f"_{name}")) is not None:  # in vector environments
                found = np.where(known, found, math.nan)
            if ((found < 0) | (found > 1)).any():
                raise ValueError
        except (DataError, TypeError, ValueError) as error:
            if name == _OTHER_SUCCESS:  # it may mean anything
                return np.full(self.n, math.nan)
            raise EnvironmentMismatchError(
                f"the environment returned info[{SUCCESS!r}]={given!r:.80}; it must be True or False, or from 0 to 1: "
                "correct the environment"
            ) from error
        return found

    def _reset_done(self, done: Array) -> Tree:
        """Reset the environments in the mask. If it holds all, earlier actions no longer matter."""
        options = None if done.all() else {"reset_mask": done.copy()}
        if options is None:
            self._origin = self._generator.bit_generator.state
            self._log.clear()
        given, _ = _check_result(self._call("reset", seed=self._next_seed(), options=options), "reset")
        following = self._read(given)
        self._check(following)
        return following

    def _read(self, observation: Tree) -> Tree:
        """Return copies of the parts of an observation that networks read."""
        return _copy(match_parts(self._observations, observation))

    def _check(self, observation: Tree, reward: Array | None = None) -> None:
        rewards = () if reward is None else (("reward", reward),)
        for what, array in (*rewards, *(("observation", leaf) for leaf in tree_leaves(observation))):
            if (index := first_not_finite(array)) is not None:
                raise NonFiniteError(
                    f"environment {index} returned the {what} {array[index].tolist()!s:.100} after "
                    f"{len(self._log) // self._logged.nbytes} steps since its last recorded reset; only numbers that "
                    "are finite in float32 are allowed: correct the environment"
                )
        if self._range_checks > 0:
            self._range_checks -= 1
            self._check_range(observation)
        if self.actions.options:
            check_action_mask(observation, EnvironmentMismatchError, "an environment returned a mask of actions that")
        for choices, rows in zip(self._choices, tree_leaves(observation), strict=False):
            wrong = None if choices is None else choices.first_outside(rows)
            if wrong is not None:
                raise EnvironmentMismatchError(
                    f"environment {wrong} returned the observation {rows[wrong].tolist()!s:.100}, which is not in its "
                    f"space {choices}: correct the environment"
                )

    def _check_range(self, observation: Tree) -> None:
        """Warn if an observation is outside its space, once for each class of environments."""
        for bounds, rows in zip(self._bounds, tree_leaves(observation), strict=False):
            if bounds is None or ((rows >= bounds[1]) & (rows <= bounds[2])).all():
                continue
            self._range_checks = 0
            if not self._is_new("range"):
                return
            space, low, high = bounds
            outside = ~((rows >= low) & (rows <= high))
            index = tuple(int(each) for each in np.argwhere(outside)[0])
            where = f" at {index[1:]}" if len(index) > 1 else ""
            warnings.warn(
                f"environment {index[0]} returned an observation with {rows[index]:g}{where}, outside its space "
                f"{space!s:.150}: correct one of them, because scalers are fitted to the space",
                ObservationRangeWarning,
                stacklevel=5,
            )
            return

    def get_state(self) -> State:
        """Return the generator, the actions to repeat, and the observation that results from them."""
        return {
            "origin": self._origin,
            "generator": self._generator.bit_generator.state,
            "actions": np.frombuffer(bytes(self._log), self._logged.dtype).reshape(-1, *self._logged.shape),
            "observation": {str(i): leaf for i, leaf in enumerate(tree_leaves(self.observation))},
        }

    def set_state(self, state: State) -> None:
        """Restore the environment by repeating the recorded actions.

        If the observation then differs from the recorded one, because the seed does not determine the environment,
        warn, start new episodes and set ``lost``.
        """
        self._generator.bit_generator.state = state["origin"]
        limit, number = self._log_limit, 0
        try:
            self.reset()
            self._log_limit = sys.maxsize  # none of these steps reset all environments
            for number, action in enumerate(state["actions"], 1):  # noqa: B007
                self.step(action)
        except BirlError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            what = f"in action {number} of {len(state['actions'])}" if number else "in its reset"
            raise WorkerError(
                f"the environment raised {type(error).__name__} ({error!s:.500}) {what}, while the actions since its "
                f"reset with seed {self.seed} were repeated to restore it. It did not raise this the first time: make "
                "it depend on its seed and actions alone, or mend what fails"
            ) from error
        finally:
            self._log_limit = limit
        expected = [np.asarray(leaf) for leaf in state["observation"].values()]
        self.lost = not all(map(np.array_equal, tree_leaves(self.observation), expected))
        if self.lost:
            warnings.warn(
                "the environment could not be restored: reset(seed=…) and the actions do not determine its steps. "
                "Training continues with new episodes, so this resume is not exact.",
                RuntimeWarning,
                stacklevel=2,
            )
            self._generator.bit_generator.state = state["generator"]
            self.reset()


def _observation_bounds(space: Space[Any], observations: Tree) -> list[tuple[Space[Any], Array, Array] | None]:
    """Return space and bounds of each part that has narrower bounds than its dtype, else ``None``."""
    found: list[tuple[Space[Any], Array, Array] | None] = []
    for leaf in tree_leaves(match_parts(observations, leaf_spaces(space))):
        narrow = False
        if isinstance(leaf, spaces.Box):
            kind, dtype = leaf.dtype.kind, np.dtype(np.uint8) if leaf.dtype == np.bool_ else leaf.dtype
            limits = (-np.inf, np.inf) if kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            narrow = bool((leaf.low > limits[0]).any() or (leaf.high < limits[1]).any())
        if not narrow:
            found.append(None)
            continue
        slack = _RANGE_TOLERANCE * np.maximum(np.abs(np.nan_to_num([leaf.low, leaf.high], posinf=0, neginf=0)), 1.0)
        found.append((leaf, leaf.low - slack[0], leaf.high + slack[1]))
    return found


def _copy(observation: Tree) -> Tree:
    """Copy an observation: vector environments may return the same array at every step."""
    return tree_map(lambda leaf: _numbers("observation", leaf).copy(), observation)


class _ProcessEnv(Protocol):
    """A vector environment of several processes, such as `gymnasium.vector.AsyncVectorEnv`."""

    processes: Sequence[BaseProcess]
    closed: bool


class _SingleEnv:
    """A single environment with the interface of a vector environment of one, without automatic resets."""

    def __init__(self, env: gymnasium.Env[Any, Any], observations: Tree) -> None:
        self.env, self._observations = env, observations
        self._space, self._action_space = single_spaces(env)
        self._leaves = match_parts(observations, leaf_spaces(self._space))
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.has_mask_method = callable(find_mask_method(env))

    def reset(self, *, seed: int, options: object = None) -> tuple[Tree, dict[str, Any]]:
        observation, info = _check_result(self.env.reset(seed=seed), "reset")
        return self._tree(observation), info

    def step(self, action: Tree) -> tuple[Tree, Array, npt.ArrayLike, npt.ArrayLike, dict[str, Any]]:
        single = action_at(self._action_space, action, 0)
        observation, reward, terminated, truncated, info = _check_result(self.env.step(single), "step")
        flags = [terminated], [truncated]
        if type(terminated) is bool and type(truncated) is bool:  # the usual case
            return self._tree(observation), np.array([_to_float(reward)]), *map(np.array, flags), info
        return self._tree(observation), np.array([_to_float(reward)]), *flags, info

    def _tree(self, observation: object) -> Tree:
        try:
            return tree_map(_add_axis, self._leaves, match_parts(self._observations, observation))
        except (ShapeError, LookupError, TypeError, ValueError) as error:
            raise EnvironmentMismatchError(
                f"the environment returned the observation {observation!r:.200}, which is not in its observation space "
                f"{self._space} ({error!s:.200}): correct the environment"
            ) from error


def _check_result(result: object, method: str) -> tuple[Any, ...]:
    """Return the result of a method of the environment.

    Raises:
        EnvironmentMismatchError: if it has another form, such as a step of gym before 0.26.
    """
    wanted = _RESULTS[method]
    values = result if isinstance(result, tuple) else ()
    complete = len(values) == wanted.count(",") + 1
    if complete and isinstance(values[-1], dict | Mapping):  # a dict is found faster than other mappings
        return values
    given = f"{len(values)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    if complete:
        given = f"{values[-1]!r:.80} as info, which is not a dict"
    old = (method == "reset" and not isinstance(result, tuple)) or (method == "step" and given == "4 values")
    remedy = "wrap environments written for gym before 0.26, for example in shimmy.GymV21CompatibilityV0"
    raise EnvironmentMismatchError(
        f"{method} of the environment returned {given}; it must return {wanted}: "
        f"{remedy if old else 'correct the environment'}"
    )


def check_signature_of_reset(error: Exception) -> None:
    """Raise `EnvironmentMismatchError` if ``error`` says that the ``reset`` of an environment takes no seed."""
    missing = re.search(r"(\w+)?\.?reset\(\) got an unexpected keyword argument '(seed|options)'", str(error))
    if isinstance(error, TypeError) and missing is not None:
        raise EnvironmentMismatchError(
            f"reset of {missing[1] or 'the environment'} takes no {missing[2]}; it must be reset(self, *, seed=None, "
            "options=None), call super().reset(seed=seed) and return (observation, info): correct the environment. "
            "Wrap environments written for gym before 0.26, for example in shimmy.GymV21CompatibilityV0"
        ) from error


def _to_float(reward: object) -> float:
    if type(reward) is float:  # the usual case
        return reward
    why = ""
    try:
        if not isinstance(reward, str | bytes):
            return float(to_array("reward", reward).reshape(())[()])
    except (TypeError, ValueError) as error:
        why = f" ({error})" if isinstance(error, DataError) else ""
    raise EnvironmentMismatchError(f"the environment returned the reward {reward!r:.80}; it must be a number{why}")


def _flags(name: str, given: npt.ArrayLike, n: int) -> Array:
    """Convert flags to bool ``[n]``. Raise an error for text, which would always be true, and for ``None``."""
    try:
        array = to_array(name, given)
    except DataError:
        array = np.empty(0)
    kind = array.dtype.kind
    if array.size == n and (kind == "b" or (kind in "iuf" and ((array == 0) | (array == 1)).all())):
        return array.astype(bool).reshape(n)
    raise EnvironmentMismatchError(
        f"the environment returned {name}={given!r:.80}; it must be True or False for each of {n} environments"
    )


def _dead_worker(env: _ProcessEnv | None) -> str | None:
    """Describe the process of a vector environment that has ended, and end the others; ``None`` if none has ended."""
    if env is None or not (processes := getattr(env, "processes", ())):
        return None
    dead = multiprocessing.connection.wait([each.sentinel for each in processes], timeout=5)
    for index, each in enumerate(processes):
        if each.sentinel in dead:
            each.join(timeout=5)
            code = each.exitcode or 0
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with code {code}"
            for other in processes:
                other.terminate()
            env.closed = True  # Gymnasium's close would wait for the dead process forever
            return f"the process of environment {index} (process id {each.pid}) {how}"
    return None


def _of_gymnasium(error: Exception) -> bool:
    """Return whether Gymnasium's vector environments, and not an environment itself, raised an error on a result."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")).split(".") for frame in frames]
    last = max(index for index, module in enumerate(modules) if module[0] != "numpy")
    passed_on = frames[last].f_code.co_name == "_raise_if_errors"  # from a worker
    return modules[last][:2] == ["gymnasium", "vector"] and (not passed_on or "unpack" in str(error))


def _add_axis(space: Space[Any], given: npt.ArrayLike) -> Array:
    array = to_array("the observation", given)
    if array.shape != space.shape:
        raise ValueError(f"{array.shape} is not the shape of {space}")
    return array[None]


def _numbers(what: str, given: object) -> Array:
    """Return numbers of a vector environment as an array."""
    try:
        return to_array(what, given)
    except DataError as error:
        raise EnvironmentMismatchError(
            f"an environment returned {what} that are no numbers: {error}. Correct the environment"
        ) from error


def _autoreset_mode(env: VectorEnv[Any, Any, Any] | _SingleEnv) -> AutoresetMode:
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError, TypeError) as error:
        raise EnvironmentMismatchError(
            f"the vector environment has no autoreset mode; metadata['autoreset_mode'] must be one of "
            f"{', '.join(str(mode) for mode in AutoresetMode)}: set it"
        ) from error


def _with_final(observation: Tree, observations: Tree, info: dict[str, Any], done: Array) -> Tree:
    """Return ``observation`` with the final observations of finished episodes (`AutoresetMode.SAME_STEP`)."""
    if "final_obs" not in info:
        raise EnvironmentMismatchError(
            "the vector environment resets in the same step, and its info has no 'final_obs': the last observation of "
            "each episode would be lost. Use another autoreset mode"
        )
    final = tree_map(np.array, observation)
    finals = info["final_obs"]
    for index in np.flatnonzero(done).tolist():
        separate = isinstance(finals, np.ndarray) and finals.dtype == object  # one observation per environment
        source = (
            finals[index] if separate else tree_map(lambda leaf, i=index: leaf[i], match_parts(observations, finals))
        )
        source = match_parts(observations, source)
        tree_map(lambda target, value, i=index: target.__setitem__(i, value), final, source)
    return final
