"""Small environments with known answers: probes, a chain and a memory task.

A probe isolates one possible fault. The chain can only be solved if nothing is wrong, and the memory task needs a
recurrent network. Each environment has discrete or continuous actions, and `collect_dataset` makes its dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from birl.dataset import MDPDataset
from birl.errors import ConfigError
from birl.spaces import actions_from_space
from birl.types import Array

PROBES = ("constant", "observation", "discount", "action", "action_observation", "time_limit")
"""Names of the probes, from the simplest to the hardest: the first failure localises the fault."""

Environment = gymnasium.Env[Array, Any]
Step = tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]


def _action_space(discrete: bool) -> gymnasium.Space[Any]:
    return gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


class ProbeEnv(Environment):
    """An environment that tests one thing, with the values and actions that an algorithm must learn.

    ==================  ===================================================================  ======================
    kind                dynamics                                                             finds faults of
    ==================  ===================================================================  ======================
    constant            one step, observation 0, reward 1                                    the critic or its loss
    observation         one step, observation -1 or 1, which is the reward                   the encoder's input
    discount            two steps, observations 0 and 1, reward 0 and 1                      the bootstrap
    action              one step; best is action 1, or 0.5 if continuous                     the policy's loss
    action_observation  one step, observation x of -1 or 1; best is (x + 1) / 2, or 0.5 x    both together
    time_limit          observation 0, always reward 1, truncated after three steps          truncation
    ==================  ===================================================================  ======================

    Args:
        kind: one of `PROBES`.
        discrete: whether there are two actions, or one number in [-1, 1].
    """

    def __init__(self, kind: str, discrete: bool) -> None:
        if kind not in PROBES:
            raise ConfigError(f"kind is {kind!r}; it must be one of {', '.join(map(repr, PROBES))}")
        self.kind, self.discrete = kind, discrete
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = _action_space(discrete)
        self._observation, self._step = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._step = 0
        varies = self.kind in ("observation", "action_observation")
        self._observation = float(self.np_random.choice([-1.0, 1.0])) if varies else 0.0
        return self._array(), {}

    def step(self, action: Array | float) -> Step:
        """Make a step."""
        reward = self.reward(self._observation, action)
        self._step += 1
        if self.kind == "discount":
            self._observation = 1.0
            return self._array(), reward, self._step == 2, False, {}
        if self.kind == "time_limit":
            return self._array(), reward, False, self._step == 3, {}
        return self._array(), reward, True, False, {}

    def reward(self, observation: float, action: Array | float) -> float:
        """Return the reward of one action."""
        if self.kind in ("constant", "time_limit"):
            return 1.0
        if self.kind in ("observation", "discount"):
            return observation
        best = self.best_action(observation)
        if self.discrete:
            return 1.0 if int(action) == int(best) else -1.0
        return 1.0 - 2.0 * float(np.asarray(action).reshape(-1)[0] - best) ** 2

    def best_action(self, observation: float | Array) -> float:
        """Return the best action, if there is only one."""
        x = 1.0 if self.kind == "action" else float(np.ravel(observation)[0])
        return (x + 1.0) / 2.0 if self.discrete else 0.5 * x

    def _array(self) -> Array:
        return np.array([self._observation], np.float32)

    @property
    def observations(self) -> tuple[float, ...]:
        """All observations in which steps start."""
        varying = {"observation": (-1.0, 1.0), "action_observation": (-1.0, 1.0), "discount": (0.0, 1.0)}
        return varying.get(self.kind, (0.0,))

    def best_actions(self) -> list[tuple[float, float]]:
        """Return observations and best actions; empty if actions do not matter."""
        matter = self.kind in ("action", "action_observation")
        return [(x, self.best_action(x)) for x in self.observations] if matter else []

    def action_values(self, gamma: float) -> list[tuple[float, float, float]]:
        """Return observations, actions and their true values."""
        actions = (0.0, 1.0) if self.discrete else (-0.5, 0.0, 0.5)
        return [(x, a, self.reward(x, a) + self._later(x, gamma)) for x in self.observations for a in actions]

    def _later(self, observation: float, gamma: float) -> float:
        if self.kind == "time_limit":
            return gamma / (1.0 - gamma)
        return gamma if self.kind == "discount" and observation == 0.0 else 0.0


class ChainEnv(Environment):
    """A walk from one end of a chain to the other, where only the last step is rewarded.

    In each state one of two actions leads forward and the other leads back. The forward action changes from state to
    state, so a constant policy never arrives, and an untrained one arrives with probability ``2**-(n_states - 1)``. The
    reward is 1 at the far end, where the episode ends, and 0 otherwise. The observation is the state, one-hot.

    Args:
        discrete: whether there are two actions, or one number in [-1, 1] whose sign counts.
        n_states: number of states including the last one, 5 to 12.
        max_steps: number of steps after which the episode is truncated.
    """

    _PATTERN = (1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0)

    def __init__(self, discrete: bool = True, n_states: int = 8, max_steps: int = 60) -> None:
        if not 5 <= n_states <= len(self._PATTERN) + 1:
            raise ConfigError(f"n_states is {n_states!r}; it must be an int from 5 to {len(self._PATTERN) + 1}")
        self.discrete, self.n_states, self.max_steps = discrete, n_states, max_steps
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (n_states,), np.float32)
        self.action_space = _action_space(discrete)
        self._state, self._step = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode at the near end."""
        super().reset(seed=seed)
        self._state, self._step = 0, 0
        return self._array(), {}

    def step(self, action: Array | float) -> Step:
        """Move one state forward or back."""
        chosen = int(action) if self.discrete else int(float(np.asarray(action).reshape(-1)[0]) > 0)
        self._state = self._state + 1 if chosen == self._PATTERN[self._state] else max(self._state - 1, 0)
        self._step += 1
        arrived = self._state == self.n_states - 1
        return self._array(), float(arrived), arrived, not arrived and self._step >= self.max_steps, {}

    def best_action(self, observation: Array) -> float:
        """Return the action that leads forward."""
        leads_on = self._PATTERN[int(np.argmax(observation))] if observation[-1] == 0 else 0
        return float(leads_on) if self.discrete else 2.0 * leads_on - 1.0

    def _array(self) -> Array:
        return np.eye(self.n_states, dtype=np.float32)[self._state]


class MemoryEnv(Environment):
    """A memory task: a cue appears at the first step and must be recalled ``delay`` steps later.

    Observations are ``(cue, asked)``: the cue is -1 or 1 at the first step and 0 later; ``asked`` is 1 at the last
    step. The reward is 1 for the cue's action at the last step, -1 for the other action, and 0 before. A policy without
    memory has an expected return of 0.

    Args:
        discrete: whether actions are 0 and 1 for the cues -1 and 1, or one number in [-1, 1] whose sign counts.
        delay: number of steps between cue and question.
    """

    def __init__(self, discrete: bool = True, delay: int = 10) -> None:
        self.discrete, self.delay = discrete, delay
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = _action_space(discrete)
        self._cue, self._step = 1.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Show a cue."""
        super().reset(seed=seed)
        self._cue, self._step = float(self.np_random.choice([-1.0, 1.0])), 0
        return np.array([self._cue, 0.0], np.float32), {}

    def step(self, action: Array | float) -> Step:
        """Wait, or answer at the last step."""
        if self._step == self.delay:
            answer = 2.0 * int(action) - 1.0 if self.discrete else float(np.asarray(action).reshape(-1)[0])
            return np.zeros(2, np.float32), 1.0 if answer * self._cue > 0 else -1.0, True, False, {}
        self._step += 1
        return np.array([0.0, float(self._step == self.delay)], np.float32), 0.0, False, False, {}


def collect_dataset(
    env: ProbeEnv | ChainEnv | MemoryEnv,
    n_steps: int,
    seed: int = 0,
    *,
    policy: Callable[[Array], float] | None = None,
    skill: float = 0.0,
) -> MDPDataset:
    """Collect a dataset with random actions, or a mixture of random actions and those of a policy.

    Args:
        env: one of this module's environments.
        n_steps: number of steps; the last episode is truncated there.
        seed: seed of the environment and of the actions.
        policy: function from observations to better actions, such as ``env.best_action``.
        skill: share of steps in which the policy acts; the others are uniformly random.
    """
    generator = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    rows: list[tuple[Array, Any, float, bool, bool, Array]] = []
    for index in range(n_steps):
        action: Any = generator.integers(2) if env.discrete else generator.uniform(-1, 1)
        if policy is not None and generator.random() < skill:
            action = policy(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        truncated = truncated or (index == n_steps - 1 and not terminated)
        rows.append((observation, action, float(reward), terminated, truncated, following))
        observation = env.reset()[0] if terminated or truncated else following
    kind = actions_from_space(env.action_space)
    observations, actions, rewards, terminals, timeouts, following_ones = zip(*rows, strict=True)
    return MDPDataset(
        np.array(observations, np.float32),
        np.array(actions, kind.storage_spec.dtype).reshape(-1, *kind.storage_spec.shape),
        np.array(rewards, np.float32),
        np.array(terminals, np.float32),
        np.array(timeouts, np.float32),
        action_space=kind.kind,
        action_size=kind.size,
        next_observations=np.array(following_ones, np.float32),
    )
