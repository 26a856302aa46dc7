"""Collection of experience without learning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from birl.checks import check
from birl.dataset import create_infinite_replay_buffer
from birl.envs import Step, Stepper, as_environment, reset_generator
from birl.errors import ConfigError
from birl.run.agent_core import (
    ReplayAgentCore,
    SelectedActions,
    check_buffer_and_explorer,
    explored_steps,
    observation_spec,
)
from birl.run.collector import Collector
from birl.run.progress import Progress
from birl.run.protocols import ExplorerProtocol, StepBuffer, Trainable
from birl.spaces.observations import part_names
from birl.types import Array, Environment, Tree

N_STEPS: Final = 1_000_000
"""Number of steps that `collect` makes by default."""


def collect(
    algorithm: Trainable,
    env: Environment | str,
    buffer: StepBuffer | None = None,
    explorer: ExplorerProtocol | None = None,
    *,
    deterministic: bool = False,
    n_steps: int = N_STEPS,
    n_episodes: int | None = None,
    show_progress: bool = True,
    seed: int | None = None,
    expert: Callable[[Tree], Array] | None = None,
    expert_share: float = 0.0,
) -> StepBuffer:
    """Act in an environment and store the steps.

    Args:
        algorithm: its networks are built if they do not exist.
        env: environment or vector environment, or the name of one.
        buffer: replay buffer to append to; by default a new unlimited one.
        explorer: turns greedy actions into exploratory ones; by default the policy itself acts.
        deterministic: whether to act greedily instead of sampling from the policy.
        n_steps: exact number of steps to append, over all environments.
        n_episodes: number of whole episodes, instead of steps. In a vector environment, the episodes that *start* first
            are stored, because those that end first tend to be short. Greedy episodes are the same as in
            `birl.metrics.evaluate` with the same seed.
        show_progress: whether to show a progress bar (on a terminal only).
        seed: fixes the environment's resets; by default derived from `seed_env` or `birl.seed`.
        expert: function, such as `predict` of another algorithm, that maps observations ``[n, …]`` to the actions
            ``[n, …]`` to store instead of the executed ones, as in DAgger (Ross et al. 2011, arXiv:1011.0686).
        expert_share: probability with which the expert's action is also executed, in [0, 1]: the paper's ``beta``.

    Returns:
        The buffer. Episodes that are running at the end are truncated there.
    """
    check("n_steps", n_steps, int, low=1)
    check("n_episodes", n_episodes, int, low=1, optional=True)
    if n_episodes is not None and n_steps != N_STEPS:
        raise ConfigError(
            f"n_steps={n_steps} and n_episodes={n_episodes} both set the length of the collection: give one of them"
        )
    check("expert_share", expert_share, float, low=0, high=1)
    if expert is not None and not callable(expert):
        raise ConfigError(f"expert is {expert!r:.80}; it must be a function of observations, such as algo.predict")
    if expert is None and expert_share > 0:
        raise ConfigError(f"expert_share is {expert_share}, but there is no expert: give one, or leave it out")
    check_buffer_and_explorer(buffer, explorer)
    environment: Environment = as_environment(env)
    algorithm.build_with_env(environment)
    if buffer is None:
        keys = part_names(algorithm.spec.observations)
        buffer = create_infinite_replay_buffer(env=environment, observation_keys=keys)
    resets = reset_generator(environment, seed)
    random: np.random.Generator
    if n_episodes is None:
        resets, random = resets.spawn(2)
    else:
        (random,) = resets.spawn(1)
    observations = observation_spec(algorithm, environment, buffer)
    stepper = Stepper(environment, resets, observations=observations, lazy=True)
    parts: Any = (algorithm, stepper.observation, stepper.action_space, buffer, explorer)
    options: Any = {"greedy": deterministic, "generator": random, "expert": expert, "expert_share": expert_share}
    agent: ReplayAgentCore
    if n_episodes is None:
        agent = ReplayAgentCore(*parts, **options)
        agent.explored = explored_steps(algorithm, explorer)
        with contextlib.closing(Progress(n_steps, 0, show_progress)) as progress:
            collector = Collector(stepper, agent)
            for made in range(n_steps):
                collector.count(made, n_steps - made)
                progress.advance()
        agent.keep_exploration(n_steps)
    else:
        episodes = agent = _EpisodeAgentCore(n_episodes, *parts, **options)
        agent.explored = explored_steps(algorithm, explorer)
        with contextlib.closing(Progress(n_episodes, 0, show_progress, unit="episode")) as progress:
            collector, made = Collector(stepper, agent), 0
            while episodes.n_ended < n_episodes:
                before = episodes.n_ended
                collector.interact(made)
                made, agent.uncounted_steps = made + agent.uncounted_steps, 0
                progress.advance(episodes.n_ended - before)
        agent.keep_exploration(made)
    agent.close_episodes()
    return buffer


class _EpisodeAgentCore(ReplayAgentCore):
    """Agent core that stores whole episodes, those that start first.

    Args:
        most: number of episodes.
        *parts, **options: see `ReplayAgentCore`.

    Attributes:
        n_ended: number of stored episodes that have ended.
    """

    def __init__(self, most: int, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._most, self._n_started, self.n_ended = most, 0, 0
        self._episode = np.full(self.n, -1)

    def select_action(self, observation: Tree, is_first: Array, reward: Array, step: int) -> Array:
        for lane in np.flatnonzero(is_first):
            self._episode[lane], self._n_started = self._n_started, self._n_started + 1
        return super().select_action(observation, is_first, reward, step)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        step.valid[self._episode >= self._most] = False
        super()._store(selected, step, lanes)
        self.n_ended += int(((step.terminated | step.truncated) & step.valid).sum())
