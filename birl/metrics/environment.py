"""Evaluation in an environment."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from birl.checks import check, named_arguments
from birl.envs import EndedEpisode, Stepper, as_environment, number_of_environments, reset_generator
from birl.errors import ConfigError, CorruptFileError, EvaluationWarning, outside_birl
from birl.seeding import preserve_random_state
from birl.spaces import read_action_mask
from birl.types import Array, Environment, State, Tree, tree_map

SelectActions: TypeAlias = Callable[[Tree, Array, Array], Array]
"""Selects actions: ``(observation [n, *shape], is_first [n], reward of the previous step [n]) -> actions [n, …]``."""


class ActingAlgorithm(Protocol):
    """An algorithm that acts in environments."""

    def actor(self, *, greedy: bool, n: int = 1) -> SelectActions:
        """Make an actor for ``n`` environments."""


@named_arguments
def evaluate(
    learner: ActingAlgorithm | None,
    env: Environment | str,
    n_episodes: int = 10,
    epsilon: float = 0.0,
    *,
    n_steps: int | None = None,
    seed: int | None = None,
    actor: SelectActions | None = None,
    sample: bool = False,
) -> list[float]:
    """Run greedy episodes and return their undiscounted returns. A sequence model acts with its action sampler.

    Episodes are never truncated here: tasks without an end need a time limit, `gymnasium.wrappers.TimeLimit`. In a
    vector environment the first ``n_episodes`` episodes that *start* count, because the first that end are short.

    With ``n_steps``, episodes run until that number of steps is made over all environments. Unfinished episodes are
    left out, unless no episode has finished: then the returns so far count.

    Args:
        learner: algorithm with networks.
        env: environment or vector environment, or the name of one; not the training environment.
        n_episodes: number of episodes.
        epsilon: share of uniformly random actions, in [0, 1].
        n_steps: number of steps, instead of episodes.
        seed: fixes the environment's resets and the random actions: ``numpy.random.default_rng(seed)`` generates a seed
            for each reset, so that episodes differ. In a plain environment, the first reset is
            ``env.reset(seed=int(numpy.random.default_rng(seed).integers(2**31 - 1)))``.
        actor: actor to use instead of ``learner.actor(greedy=True, n=number of environments)``.
        sample: whether the policy samples its actions instead of acting greedily. The random numbers of the samples
            follow from ``seed``, and the global generators continue as if nothing had been drawn.

    Returns:
        The return of each episode, in the order in which the episodes started.

    Raises:
        ConfigError: if ``n_episodes``, ``n_steps`` or ``epsilon`` is out of range.
        EnvironmentMismatchError: if the networks do not fit the environment, or if it allows no action.
    """
    found = play_episodes(learner, env, n_episodes, epsilon, n_steps=n_steps, seed=seed, actor=actor, sample=sample)
    return found.returns


class Evaluation(NamedTuple):
    """Episodes of an evaluation, in the order in which they started.

    Attributes:
        returns: their undiscounted returns.
        successes: ``info["is_success"]`` at their ends, without those of episodes that have none.
    """

    returns: list[float]
    successes: list[float]

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that succeeded; ``None`` if the environment does not report it."""
        return float(np.mean(self.successes)) if self.successes else None

    def metrics(self, *, all_statistics: bool = False) -> dict[str, float]:
        """Return the ``mean`` of the returns, or all their `statistics`, and ``success_rate``, if there is one."""
        found = statistics(self.returns) if all_statistics else {"mean": float(np.mean(self.returns))}
        rate = self.success_rate
        return found if rate is None else {**found, "success_rate": rate}


def play_episodes(
    learner: ActingAlgorithm | None,
    env: Environment | str,
    n_episodes: int = 10,
    epsilon: float = 0.0,
    *,
    n_steps: int | None = None,
    seed: int | None = None,
    actor: SelectActions | None = None,
    sample: bool = False,
) -> Evaluation:
    """Run the episodes of `evaluate`, and return their returns and successes."""
    _check("n_episodes", n_episodes, epsilon, n_steps)
    environment: Environment = as_environment(env)
    if check("sample", sample, bool):
        if actor is not None or learner is None:
            raise ConfigError(
                "sample is True, which is for the policy of an algorithm, but actor= is given: leave one out"
            )
        with preserve_random_state():
            if seed is not None:
                torch.manual_seed(seed)
            actor = learner.actor(greedy=False, n=number_of_environments(environment))
            return play_episodes(learner, environment, n_episodes, epsilon, n_steps=n_steps, seed=seed, actor=actor)
    if learner is not None and hasattr(learner, "check_env"):
        learner.check_env(environment)
    generator = reset_generator(environment, seed)
    observations = getattr(getattr(learner, "spec", None), "observations", None)
    stepper = Stepper(environment, generator, resumable=False, observations=observations, lazy=True)
    if actor is None:
        assert learner is not None
        actor = learner.actor(greedy=True, n=stepper.n)

    ended: dict[int, EndedEpisode] = {}
    episode = np.full(stepper.n, -1)
    started = made = 0
    running = np.zeros(stepper.n)  # sums of rewards
    while True:
        for index in np.flatnonzero(stepper.is_first).tolist():
            episode[index], started = started, started + 1
        allowed = read_action_mask(stepper.actions, stepper.observation)
        seen = tree_map(np.array, stepper.observation)  # the actor may write to it
        action = actor(seen, stepper.is_first.copy(), stepper.reward.copy())
        if epsilon > 0:
            uniform = stepper.actions.sample(stepper.n, generator, allowed)
            explores = generator.random(stepper.n) < epsilon
            action = np.where(explores.reshape(-1, *[1] * (uniform.ndim - 1)), uniform, action)
        step = stepper.step(action)
        running += np.where(step.valid, step.reward, 0.0)
        for index, each in step.ended.items():
            running[index] = 0.0
            if n_steps is not None or episode[index] < n_episodes:
                ended[int(episode[index])] = each
        made += int(step.valid.sum())
        if made >= n_steps if n_steps is not None else len(ended) == n_episodes:
            found = [ended[index] for index in sorted(ended)]
            successes = [each.success for each in found if not math.isnan(each.success)]
            if 0 < len(successes) < len(found):
                warnings.warn(
                    f"{len(successes)} of {len(found)} episodes ended with info['is_success'], the others without; the "
                    "success rate is that of these episodes alone: report True or False at the end of every episode",
                    EvaluationWarning,
                    stacklevel=outside_birl(),
                )
            return Evaluation([each.value for each in found] or running.tolist(), successes)


def statistics(returns: Sequence[float]) -> dict[str, float]:
    """Compute ``mean``, ``median``, ``std`` (with ``ddof=0``), ``min``, ``max`` and ``episodes`` (their number)."""
    found = np.asarray(returns, np.float64)
    return {
        "mean": float(found.mean()),
        "median": float(np.median(found)),
        "std": float(found.std()),
        "min": float(found.min()),
        "max": float(found.max()),
        "episodes": float(len(found)),
    }


def evaluate_qlearning_with_environment(
    algo: ActingAlgorithm, env: Environment | str, n_trials: int = 10, epsilon: float = 0.0
) -> float:
    """Return the mean of the returns of `evaluate`.

    Args:
        algo: algorithm with networks.
        env: environment or vector environment; not the training environment.
        n_trials: number of episodes.
        epsilon: share of uniformly random actions, in [0, 1].
    """
    return float(np.mean(evaluate(algo, env, n_trials, epsilon)))


def evaluate_transformer_with_environment(algo: ActingAlgorithm, env: Environment | str, n_trials: int = 10) -> float:
    """Return the mean of the returns of `evaluate` for a sequence model.

    Args:
        algo: result of ``as_stateful_wrapper(target_return)``.
        env: environment or vector environment.
        n_trials: number of episodes.
    """
    return float(np.mean(evaluate(algo, env, n_trials)))


class _GreedyEpisodes:
    """Base of evaluators of greedy episodes. See `EnvironmentEvaluator`.

    Attributes:
        parts: names of the metrics that a loop logs in addition to the mean.
    """

    parts: tuple[str, ...] = ("success_rate",)

    @named_arguments
    def __init__(
        self,
        env: Environment | str,
        n_trials: int = 10,
        epsilon: float = 0.0,
        *,
        n_steps: int | None = None,
        seed: int | None = None,
        sample: bool = False,
    ) -> None:
        _check("n_trials", n_trials, epsilon, n_steps)
        self._sample = check("sample", sample, bool)
        self._env, self._n_trials, self._epsilon, self._n_steps = as_environment(env), n_trials, epsilon, n_steps
        seed = check("seed", seed, int, optional=True, low=0)
        self._seed = int(reset_generator(self._env).integers(2**31)) if seed is None else seed
        self.success_rate: float | None = None

    def play(self, algo: ActingAlgorithm) -> Evaluation:
        """Play the episodes."""
        options: dict[str, Any] = {"n_steps": self._n_steps, "seed": self._seed, "sample": self._sample}
        found = play_episodes(algo, self._env, self._n_trials, self._epsilon, **options)
        self.success_rate = found.success_rate
        return found

    def get_state(self) -> State:
        """Return the seed of the episodes."""
        return {"seed": self._seed}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self._seed = check("seed", state["seed"], int, low=0, error=CorruptFileError)


class EnvironmentEvaluator(_GreedyEpisodes):
    """Mean undiscounted return of greedy episodes.

    If the environment reports ``info["is_success"]`` at the ends of episodes, loops also log the metric
    ``<name>_success_rate``, the share of the episodes that succeeded.

    Every call resets the environment with the same seeds, so that the values of a run differ only by the policy, and a
    resumed run logs the same values.

    Args:
        env: environment or vector environment for evaluation only, or the name of one.
        n_trials: number of episodes.
        epsilon: share of uniformly random actions, in [0, 1].
        n_steps: number of steps, instead of episodes; see `evaluate`.
        seed: fixes the episodes, see `evaluate`; by default derived from `seed_env` or `birl.seed`.
        sample: whether the policy samples its actions; see `evaluate`.

    Attributes:
        success_rate: share of the episodes of the last call that succeeded; ``None`` if the environment does not
            report it.

    Raises:
        ConfigError: if ``n_trials``, ``n_steps`` or ``epsilon`` is out of range.
    """

    def __call__(self, algo: ActingAlgorithm, dataset: object = None) -> float:
        """Return the mean return of ``algo``; ``dataset`` is not used."""
        return float(np.mean(self.play(algo).returns))


class EnvironmentStatistics(_GreedyEpisodes):
    """`statistics` of the returns of greedy episodes, and ``success_rate`` if the environment reports it.

    In a loop they are the metrics ``<name>`` (the mean), ``<name>_median`` and so on.

    Args:
        env, n_trials, epsilon, n_steps, seed, sample: see `EnvironmentEvaluator`.
    """

    parts = ("median", "std", "min", "max", "episodes", "success_rate")

    def __call__(self, algo: ActingAlgorithm, dataset: object = None) -> dict[str, float]:
        """Return statistics of the returns of ``algo``; ``dataset`` is not used."""
        return self.play(algo).metrics(all_statistics=True)


def _check(name: str, count: object, epsilon: object, n_steps: object = None) -> None:
    check(name, count, int, low=1)
    check("n_steps", n_steps, int, low=1, optional=True)
    check("epsilon", epsilon, float, low=0, high=1)
