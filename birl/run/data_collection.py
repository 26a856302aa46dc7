"""Collecting experience without learning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from birl.checks import check
from birl.dataset import create_infinite_replay_buffer
from birl.envs import Step, Stepper, as_environment, reset_generator
from birl.errors import ConfigError
from birl.run.agent_core import ReplayAgentCore, SelectedActions, check_buffer_and_explorer, observation_spec
from birl.run.collector import Collector
from birl.run.progress import Progress
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.spaces.observations import part_names
from birl.types import Array, Tree


def collect(
    algorithm: Trainable,
    env: Environment,
    buffer: Any = None,
    explorer: ExplorerProtocol | None = None,
    *,
    deterministic: bool = False,
    n_steps: int = 1_000_000,
    n_episodes: int | None = None,
    show_progress: bool = True,
    seed: int | None = None,
    expert: Callable[[Tree], Array] | None = None,
    expert_share: float = 0.0,
) -> Any:
    """Act in an environment and store the steps.

    Args:
        algorithm: its networks are made if they do not exist.
        env: environment or vector environment, or the name of one.
        buffer: replay buffer to add to; a new unlimited one by default.
        explorer: turns greedy actions into the ones taken; by default the policy acts by itself.
        deterministic: whether to act greedily instead of sampling from the policy.
        n_steps: number of steps, over all environments. Exactly so many are added.
        n_episodes: number of whole episodes, instead of steps: in a vector environment the first that *start*, as those
            that end first are the short ones. Greedy ones are those that `birl.metrics.evaluate` plays with this seed.
        show_progress: whether to show a progress bar (on a terminal only).
        seed: fixes the environment's resets; by default drawn from `seed_env` or `birl.seed`.
        expert: ``expert(observations [n, …])`` gives actions ``[n, …]`` that are stored in place of those that are
            taken, such as `predict` of another algorithm: relabelling for DAgger (Ross et al. 2011, arXiv:1011.0686).
        expert_share: probability with which the expert's action is taken, too, in [0, 1]: the paper's ``beta``.

    Returns:
        The buffer. Episodes still under way at the end are truncated there.
    """
    check("n_steps", n_steps, int, low=1)
    check("n_episodes", n_episodes, int, low=1, optional=True)
    check("expert_share", expert_share, float, low=0, high=1)
    if expert is not None and not callable(expert):
        raise ConfigError(f"expert is {expert!r:.80}; it must be a function of observations, such as algo.predict")
    if expert is None and expert_share > 0:
        raise ConfigError(f"expert_share is {expert_share}, but there is no expert: give one, or leave it out")
    check_buffer_and_explorer(buffer, explorer)
    env = as_environment(env)
    algorithm.build_with_env(env)
    if buffer is None:
        keys = part_names(algorithm.spec.observations)
        buffer = create_infinite_replay_buffer(env=env, observation_keys=keys)
    resets = reset_generator(env, seed)
    random: np.random.Generator
    if n_episodes is None:
        resets, random = resets.spawn(2)
    else:
        (random,) = resets.spawn(1)
    stepper = Stepper(env, resets, observations=observation_spec(algorithm, env, buffer))
    parts: Any = (algorithm, stepper.observation, stepper.action_space, buffer, explorer)
    options: Any = {"greedy": deterministic, "generator": random, "expert": expert, "expert_share": expert_share}
    if n_episodes is None:
        player = ReplayAgentCore(*parts, **options)
        with contextlib.closing(Progress(n_steps, 0, show_progress)) as progress:
            collector = Collector(stepper, player)
            for done in range(n_steps):
                collector.count(done, n_steps - done)
                progress.advance()
    else:
        whole = player = _EpisodesPlayer(n_episodes, *parts, **options)
        with contextlib.closing(Progress(n_episodes, 0, show_progress, unit="episode")) as progress:
            collector, made = Collector(stepper, player), 0
            while whole.ended < n_episodes:
                before = whole.ended
                collector.interact(made)
                made, whole.uncounted_steps = made + whole.uncounted_steps, 0
                progress.advance(whole.ended - before)
    player.close_episodes()
    return buffer


class _EpisodesPlayer(ReplayAgentCore):
    """Stores the episodes that start first.

    Args:
        most: number of episodes.
        *parts, **options: see `ReplayAgentCore`.

    Attributes:
        ended: number of those that have ended.
    """

    def __init__(self, most: int, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._most, self._started, self.ended = most, 0, 0
        self._episode = np.full(self.n, -1)

    def select_action(self, observation: Tree, is_first: Array, reward: Array, step: int) -> Array:
        for lane in np.flatnonzero(is_first):
            self._episode[lane], self._started = self._started, self._started + 1
        return super().select_action(observation, is_first, reward, step)

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        step.valid[self._episode >= self._most] = False
        super()._store(selected, step, lanes)
        self.ended += int(((step.terminated | step.truncated) & step.valid).sum())
