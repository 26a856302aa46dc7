"""Tests of learning: probes with known values, and tasks that are solved in seconds or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from birl.acting.explorers import ConstantEpsilonGreedy
from birl.acting.sequence_context import GreedyTransformerActionSampler, IdentityTransformerActionSampler
from birl.algorithm import Algorithm, AlgorithmConfig, TransformerAlgorithm
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.run import Actor
from birl.seeding import seed as seed_everything
from birl.testing.environments import ProbeEnv, collect_dataset
from birl.types import Array, Inputs


def train(
    algorithm: Algorithm[Any, Any],
    env: gymnasium.Env[Array, Any],
    n_steps: int,
    dataset: Any = None,
    callback: Callable[..., None] | None = None,
) -> None:
    """Train an algorithm for ``n_steps`` updates on a dataset, or steps in the environment if it is on-policy.

    On-policy algorithms use the dataset as demonstrations if they need them, and ignore it otherwise.
    """
    if algorithm.learns_from.on_policy:
        demonstrations = {"demonstrations": dataset} if algorithm.learns_from.needs_demonstrations else {}
        algorithm.fit_online(
            env,
            explorer=ConstantEpsilonGreedy(0.5) if algorithm.learns_from.allows_explorer else None,
            n_steps=n_steps,
            n_steps_per_epoch=n_steps,
            show_progress=False,
            logger_adapter=NoopAdapterFactory(),
            callback=callback,
            save_interval=n_steps,
            **demonstrations,
        )
        return
    algorithm.build_with_dataset(dataset)
    for step in range(n_steps):
        algorithm.update(algorithm.sample_minibatch(dataset))
        if callback is not None:
            callback(algorithm, 1, step + 1)


def probe_errors(
    config: AlgorithmConfig,
    kind: str,
    discrete: bool,
    n_steps: int,
    *,
    seed: int = 0,
    n_data: int = 200,
    expert: bool = False,
) -> dict[str, float]:
    """Train on a probe and measure the remaining errors.

    Args:
        config: configuration of the algorithm; its ``gamma`` sets the true values.
        kind: one of `birl.testing.PROBES`.
        discrete: the kind of actions.
        n_steps: number of updates (environment steps for on-policy algorithms).
        seed: seed of all generators.
        n_data: number of steps in the dataset.
        expert: whether the data are the best actions instead of random ones (for imitation).

    Returns:
        Largest absolute errors of ``"action_value"``, ``"state_value"`` and ``"action"`` (0 or 1 for discrete actions),
        as far as the algorithm has these.
    """
    seed_everything(seed)
    env = ProbeEnv(kind, discrete)
    dataset = None
    algorithm = config.create()
    if not algorithm.learns_from.on_policy or algorithm.learns_from.needs_demonstrations:
        skill = 1.0 if expert else 0.0
        dataset = collect_dataset(env, n_data, seed, policy=env.best_action, skill=skill)
    train(algorithm, env, n_steps, dataset)
    errors: dict[str, float] = {}
    x, action, value = np.array(env.action_values(config.gamma), np.float32).T[..., None]
    if algorithm.acts.value is not None:
        got = algorithm.predict_value(x, action.astype(algorithm.spec.actions.storage_spec.dtype))
        errors["action_value"] = float(np.abs(got - value[:, 0]).max())
    best = env.best_actions()
    if hasattr(algorithm.nets, "value") and not best:  # state values are known only if actions do not matter
        with torch.no_grad():
            values = getattr(algorithm.nets, "values", algorithm.nets.value)  # with a shared encoder
            got = values(Inputs(torch.tensor(x))).numpy()
        errors["state_value"] = float(np.abs(got - value[:, 0]).max())
    if best:
        actor, first, reward = greedy_actor(algorithm, 1.0), np.array([True]), np.zeros(1, np.float32)
        wrong = [float(np.ravel(actor(np.array([[x]], np.float32), first, reward))[0]) - right for x, right in best]
        errors["action"] = max(map(abs, wrong))
    return errors


def greedy_actor(algorithm: Algorithm[Any, Any], target_return: float, n: int = 1) -> Actor:
    """Make a greedy actor. A sequence model gets a target return and takes the most probable discrete action."""
    if isinstance(algorithm, TransformerAlgorithm):
        discrete = algorithm.spec.actions.discrete
        sampler = GreedyTransformerActionSampler() if discrete else IdentityTransformerActionSampler()
        return algorithm.as_stateful_wrapper(target_return, sampler).actor(greedy=True, n=n)
    return algorithm.actor(greedy=True, n=n)


def average_return(
    algorithm: Algorithm[Any, Any],
    env: gymnasium.Env[Array, Any],
    n_episodes: int = 1,
    *,
    seed: int = 0,
    target_return: float = 1.0,
) -> float:
    """Return the mean undiscounted return of the greedy policy.

    Args:
        algorithm: an algorithm with networks; recurrent policies keep their state during an episode.
        env: environment.
        n_episodes: number of episodes.
        seed: seed of the resets.
        target_return: target return of a sequence model.
    """
    return float(np.mean(evaluate(algorithm, env, n_episodes, seed=seed, actor=greedy_actor(algorithm, target_return))))
