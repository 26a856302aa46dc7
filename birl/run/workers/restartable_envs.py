"""Environments that can fail, be created again and pause independently of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Env

from birl.envs import Step, Stepper
from birl.envs.stepper import STEP_COLUMNS
from birl.types import Array, State, Tree, tree_map


class EnvFailure(NamedTuple):
    """An error of an environment.

    Attributes:
        env: index of the environment in its `RestartableEnvs`.
        message: seed and actions of the episode, and the error.
    """

    env: int
    message: str


class RestartableEnvs:
    """Single environments, each with its own stepper, that have the interface of one `Stepper`.

    The state of each environment depends only on its running episode. The state of a vector environment, which resets
    itself, would depend on all steps.

    Args:
        make_env: function that makes environment ``i``.
        make_stepper: function that makes the stepper of environment ``i``.
        n: number of environments.
        max_failures: number of times in a row that an environment may fail and is created again; ``None`` if none may
            fail.
        whole_episodes: whether an environment whose episode has ended pauses, without steps, until `wake`.

    Attributes:
        current: index of the environment that was stepped last.
        failures: failures in the last step.
    """

    def __init__(
        self,
        make_env: Callable[[int], Env[Any, Any]],
        make_stepper: Callable[[int, Env[Any, Any]], Stepper],
        n: int,
        max_failures: int | None = None,
        whole_episodes: bool = False,
    ) -> None:
        self._make_env, self._make_stepper = make_env, make_stepper
        self._max_failures, self._whole_episodes = max_failures, whole_episodes
        self.envs = [make_env(i) for i in range(n)]
        self.steppers = [make_stepper(i, env) for i, env in enumerate(self.envs)]
        self.n, self.current = n, 0
        self.failures: list[EnvFailure] = []
        self._failures_in_a_row = [0] * n
        self._paused = np.zeros(n, bool)
        self.action_space = self.steppers[0].action_space
        self._observe()

    def _observe(self) -> None:
        self.observation: Tree = concatenate([each.observation for each in self.steppers])
        self.is_first: Array = concatenate([each.is_first for each in self.steppers])
        self.reward: Array = concatenate([each.reward for each in self.steppers])

    def wake(self) -> None:
        """Let all environments make steps again."""
        self._paused[:] = False

    @property
    def all_paused(self) -> bool:
        """Whether all environments pause."""
        return bool(self._paused.all())

    def step(self, action: Array) -> Step:
        """Step the environments; see `Stepper.step`. Steps of environments that pause or fail are not valid.

        Raises:
            BaseException: any error of an environment that may not fail again.
        """
        self.failures = []
        steps = [self._step_one(i, action[i : i + 1]) for i in range(self.n)]
        self._observe()
        columns = {name: concatenate([getattr(each, name) for each in steps]) for name in STEP_COLUMNS}
        return Step(**columns, ended={i: each.ended[0] for i, each in enumerate(steps) if each.ended})

    def _step_one(self, i: int, action: Array) -> Step:
        stepper = self.steppers[i]
        no_step = _no_step(stepper)
        if self._paused[i]:
            return no_step
        self.current = i
        try:
            step = stepper.step(action)
            ended = bool(step.terminated[0] | step.truncated[0])
            self._failures_in_a_row[i], self._paused[i] = 0, self._whole_episodes and ended
            return step
        except (
            Exception,
            KeyboardInterrupt,
            SystemExit,
        ) as error:  # a worker ignores Ctrl-C: the environment raised it
            message = f"reset with seed {stepper.seed}, {_describe(error)} {describe_actions(stepper)}"
            self.failures.append(EnvFailure(i, message))
            self._paused[i] = self._whole_episodes
            self._remake(i, error)
            return no_step

    def _remake(self, i: int, error: BaseException) -> None:
        while True:
            self._failures_in_a_row[i] += 1
            if self._max_failures is None or self._failures_in_a_row[i] > self._max_failures:
                raise error
            with contextlib.suppress(Exception):
                self.envs[i].close()
            try:
                self.envs[i] = self._make_env(i)
                self.steppers[i] = self._make_stepper(i, self.envs[i])
                return
            except (Exception, KeyboardInterrupt, SystemExit) as next_error:
                error = next_error

    @property
    def lost(self) -> bool:
        """Whether the episode of an environment could not be restored."""
        return any(each.lost for each in self.steppers)

    def get_state(self) -> State:
        """Return the state of each environment's stepper."""
        return {str(i): each.get_state() for i, each in enumerate(self.steppers)}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        for i, each in enumerate(self.steppers):
            each.set_state(state[str(i)])
        self._observe()

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def concatenate(trees: list[Tree]) -> Tree:
    """Concatenate trees of arrays ``[k, …]``."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: np.concatenate(parts), *trees)


def _no_step(stepper: Stepper) -> Step:
    no = np.zeros(1, bool)
    return Step(stepper.observation, np.zeros(1, np.float32), no, no, no, {})


def _describe(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def describe_actions(stepper: Stepper) -> str:
    """Return the actions since an environment was reset, as text. The last one may have failed."""
    actions = stepper.get_state()["actions"]
    text = np.array2string(actions[-20:, 0], separator=", ", max_line_width=10**6, threshold=200)
    before = f" after {len(actions) - 20} others" if len(actions) > 20 else ""
    return f"by its actions{before}: {text}" if len(actions) else "before its first action"
