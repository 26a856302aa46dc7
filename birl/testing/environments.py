"""Small environments with known answers: probes, a chain and a memory task.

A probe isolates one thing that can go wrong; the chain needs all of them at once; the memory task needs recurrence.
Each comes with discrete and with continuous actions and makes its own dataset.
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
"""Names of the probes, from the simplest to the hardest: the first that fails localises the fault."""

Environment = gymnasium.Env[Array, Any]
Step = tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]


def _action_space(discrete: bool) -> gymnasium.Space[Any]:
    return gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


class ProbeEnv(Environment):
    """An environment that asks one question, and the answers that a learner must know in the end.

    ==================  ===================================================================  ======================
    kind                what happens                                                         a fault in
    ==================  ===================================================================  ======================
    constant            one step, observation 0, reward 1                                    the critic or its loss
    observation         one step, observation -1 or 1, which is the reward                   the encoder's input
    discount            two steps, observations 0 and 1, reward 0 and 1                      the bootstrap
    action              one step; best is action 1, or 0.5 if continuous                     the policy's loss
    action_observation  one step, observation x of -1 or 1; best is (x + 1) / 2, or 0.5 x    both together
    time_limit          observation 0, reward 1 for ever, cut after three steps              truncation
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
        """Return the only best action, where there is one."""
        x = 1.0 if self.kind == "action" else float(np.ravel(observation)[0])
        return (x + 1.0) / 2.0 if self.discrete else 0.5 * x

    def _array(self) -> Array:
        return np.array([self._observation], np.float32)

    @property
    def observations(self) -> tuple[float, ...]:
        """All observations that steps start from."""
        varying = {"observation": (-1.0, 1.0), "action_observation": (-1.0, 1.0), "discount": (0.0, 1.0)}
        return varying.get(self.kind, (0.0,))

    def best_actions(self) -> list[tuple[float, float]]:
        """Return the observation and best action, where actions matter."""
        matter = self.kind in ("action", "action_observation")
        return [(x, self.best_action(x)) for x in self.observations] if matter else []

    def action_values(self, gamma: float) -> list[tuple[float, float, float]]:
        """Return observation, action and the true value of taking it."""
        actions = (0.0, 1.0) if self.discrete else (-0.5, 0.0, 0.5)
        return [(x, a, self.reward(x, a) + self._later(x, gamma)) for x in self.observations for a in actions]

    def _later(self, observation: float, gamma: float) -> float:
        if self.kind == "time_limit":
            return gamma / (1.0 - gamma)
        return gamma if self.kind == "discount" and observation == 0.0 else 0.0


class ChainEnv(Environment):
    """Walk from one end of a chain to the other, where only the last step is rewarded.

    In each state one of two actions leads on and the other leads back; which one is which changes from state to state,
    so that neither a constant policy nor, but for luck of 1 in ``2**(n_states - 1)``, an untrained one arrives.
    Reward 1 at the far end, which ends the episode; 0 otherwise. The observation is the state, one-hot.

    Args:
        discrete: two actions, or one number in [-1, 1] of which the sign counts.
        n_states: number of states with the last one, 5 to 12.
        max_steps: the episode is truncated after so many steps.
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
        """Begin at the near end."""
        super().reset(seed=seed)
        self._state, self._step = 0, 0
        return self._array(), {}

    def step(self, action: Array | float) -> Step:
        """Move one state on or back."""
        chosen = int(action) if self.discrete else int(float(np.asarray(action).reshape(-1)[0]) > 0)
        self._state = self._state + 1 if chosen == self._PATTERN[self._state] else max(self._state - 1, 0)
        self._step += 1
        arrived = self._state == self.n_states - 1
        return self._array(), float(arrived), arrived, not arrived and self._step >= self.max_steps, {}

    def best_action(self, observation: Array) -> float:
        """Return the action that leads on."""
        leads_on = self._PATTERN[int(np.argmax(observation))] if observation[-1] == 0 else 0
        return float(leads_on) if self.discrete else 2.0 * leads_on - 1.0

    def _array(self) -> Array:
        return np.eye(self.n_states, dtype=np.float32)[self._state]


class MemoryEnv(Environment):
    """A cue appears at the first step and must be recalled ``delay`` steps later, with nothing in between.

    Observations are ``(cue, asked)``: the cue is -1 or 1 at the first step and 0 later; ``asked`` is 1 at the last one.
    Reward 1 for the cue's action at the last step, -1 for the other one, 0 before. A policy without memory gets 0.

    Args:
        discrete: actions 0 and 1 for cues -1 and 1, or one number in [-1, 1] of which the sign counts.
        delay: steps between cue and question.
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
        """Wait, or answer."""
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
    """Play random actions, or those of ``policy`` now and then.

    Args:
        env: one of this module's environments.
        n_steps: number of steps; the last episode is truncated there.
        seed: of the environment and of the actions.
        policy: observation to a better action, such as ``env.best_action``.
        skill: share of steps at which the policy acts; the others are uniformly random.
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
