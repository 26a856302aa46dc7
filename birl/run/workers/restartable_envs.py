"""Environments side by side, each of which can fail, and rest, alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from birl.envs import Step, Stepper
from birl.types import Array, State, Tree, tree_map


class Failure(NamedTuple):
    """An error of an environment.

    Attributes:
        at: its number here.
        words: where it was, and what it raised.
    """

    at: int
    words: str


class RestartableEnvs:
    """Plain environments side by side, each with a stepper of its own, as one stepper of all.

    So the state of each is a function of its running episode alone; that of a vector environment, which resets itself,
    would be one of all steps.

    Args:
        make: makes environment ``i``.
        begin: makes the stepper of environment ``i``.
        n: number of environments.
        failures: how often one may fail, without a step in between, and is made anew; ``None`` for never.
        whole: whether one whose episode has ended rests until `wake`: it makes no steps.

    Attributes:
        at: which of them was stepped last.
        failed: those that failed in the last step.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        begin: Callable[[int, Any], Stepper],
        n: int,
        failures: int | None = None,
        whole: bool = False,
    ) -> None:
        self._make, self._begin, self._failures, self._whole = make, begin, failures, whole
        self.envs = [make(i) for i in range(n)]
        self.steppers = [begin(i, env) for i, env in enumerate(self.envs)]
        self.n, self.at = n, 0
        self.failed: list[Failure] = []
        self._in_a_row = [0] * n
        self._resting = np.zeros(n, bool)
        self.action_space = self.steppers[0].action_space
        self._look()

    def _look(self) -> None:
        self.observation: Tree = joined([each.observation for each in self.steppers])
        self.is_first: Array = joined([each.is_first for each in self.steppers])
        self.reward: Array = joined([each.reward for each in self.steppers])

    def wake(self) -> None:
        """All make steps again."""
        self._resting[:] = False

    @property
    def rests(self) -> bool:
        """Whether all rest."""
        return bool(self._resting.all())

    def step(self, action: Array) -> Step:
        """See `Stepper.step`. Those that rest or fail are not valid.

        Raises:
            Exception: of an environment that may not fail again.
        """
        self.failed = []
        steps = [self._stepped(i, action[i : i + 1]) for i in range(self.n)]
        self._look()
        columns = {name: joined([getattr(each, name) for each in steps]) for name in Step._fields[:-1]}
        return Step(**columns, returns={i: each.returns[0] for i, each in enumerate(steps) if each.returns})

    def _stepped(self, i: int, action: Array) -> Step:
        stepper = self.steppers[i]
        nothing = _no_step(stepper)
        if self._resting[i]:
            return nothing
        self.at = i
        try:
            step = stepper.step(action)
            self._in_a_row[i], self._resting[i] = 0, self._whole and bool(step.terminated[0] | step.truncated[0])
            return step
        except Exception as error:
            words = f"reset with seed {stepper.seed}, {_cause(error)} {actions_of_episode(stepper)}"
            self.failed.append(Failure(i, words))
            self._resting[i] = self._whole
            self._make_anew(i, error)
            return nothing

    def _make_anew(self, i: int, error: Exception) -> None:
        while True:
            self._in_a_row[i] += 1
            if self._failures is None or self._in_a_row[i] > self._failures:
                raise error
            with contextlib.suppress(Exception):
                self.envs[i].close()
            try:
                self.envs[i] = self._make(i)
                self.steppers[i] = self._begin(i, self.envs[i])
                return
            except Exception as another:
                error = another

    @property
    def lost(self) -> bool:
        """Whether one could not be restored."""
        return any(each.lost for each in self.steppers)

    def get_state(self) -> State:
        """State of each."""
        return {str(i): each.get_state() for i, each in enumerate(self.steppers)}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        for i, each in enumerate(self.steppers):
            each.set_state(state[str(i)])
        self._look()

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def joined(trees: list[Tree]) -> Any:
    """Trees of arrays ``[k, …]`` as one."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: np.concatenate(parts), *trees)


def _no_step(stepper: Stepper) -> Step:
    no = np.zeros(1, bool)
    return Step(stepper.observation, np.zeros(1, np.float32), no, no, no, {})


def _cause(error: Exception) -> str:
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def actions_of_episode(stepper: Stepper) -> str:
    """The actions since an environment was reset, the last of which may have failed, in words."""
    actions = stepper.get_state()["actions"]
    shown = np.array2string(actions[-20:, 0], separator=", ", max_line_width=10**6, threshold=200)
    before = f" after {len(actions) - 20} others" if len(actions) > 20 else ""
    return f"by its actions{before}: {shown}" if len(actions) else "before its first action"
