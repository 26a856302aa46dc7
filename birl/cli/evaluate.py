"""``birl evaluate``: returns of a trained policy."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer

from birl import metrics
from birl.cli.common import load_model, note
from birl.cli.options import Best, Device, EnvId, EpisodeSeed, Epsilon, Import, Model, TargetReturn
from birl.cli.run_folder import environment_of, target_of
from birl.envs import ActionMask, single_spaces
from birl.errors import ConfigError
from birl.seeding import seed as set_seed
from birl.types import MASK


def evaluate(
    model: Model,
    env_id: EnvId = None,
    best: Best = False,
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10,
    seed: EpisodeSeed = 0,
    epsilon: Epsilon = 0.0,
    target_return: TargetReturn = None,
    device: Device = "cpu",
    own: Import = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play episodes with a trained policy and print their undiscounted returns.

    Policies take their greedy actions; a DiscreteDecisionTransformer and random policies draw theirs.
    """
    file, algorithm = load_model(model, device, own, best)
    env_id, env = environment_of(model, env_id)
    env = with_masks(env, algorithm)
    set_seed(seed)
    acting = acting_algorithm(algorithm, target_of(model, target_return))
    returns = metrics.evaluate(acting, env, n_episodes, epsilon, seed=seed)
    env.close()
    summary: dict[str, Any] = {"model": str(file), "env_id": env_id, "n_episodes": n_episodes, "seed": seed}
    summary |= {"epsilon": epsilon, "mean": float(np.mean(returns)), "std": float(np.std(returns))}
    summary |= {"min": min(returns), "max": max(returns), "returns": returns}
    if as_json:
        print(json.dumps(summary))
        return
    note(f"{file} in {env_id}, seed {seed}")
    print(
        f"return {summary['mean']:.2f} ± {summary['std']:.2f} over {n_episodes} episodes "
        f"(min {summary['min']:.2f}, max {summary['max']:.2f})"
    )


def with_masks(env: Any, algorithm: Any) -> Any:
    """``env``, wrapped in `ActionMask` if the policy reads masks that are no part of its observations."""
    parts = getattr(single_spaces(env)[0], "spaces", ())
    return ActionMask(env) if algorithm.spec.masked and MASK not in parts else env


def acting_algorithm(algorithm: Any, target_return: float | None) -> Any:
    """The object that acts: the algorithm itself, or a sequence model with the return it aims at.

    Raises:
        ConfigError: if a sequence model has no return to aim at, or another algorithm has one.
    """
    check_target(type(algorithm), target_return)
    return algorithm if target_return is None else algorithm.as_stateful_wrapper(target_return)


def check_target(algorithm: Any, target_return: float | None) -> None:
    """Raise `ConfigError` if a sequence model has no return to aim at, or another class of algorithms has one."""
    if algorithm.acts.aims != (target_return is not None):
        needs = "needs --target-return: the return to aim at" if target_return is None else "takes no --target-return"
        raise ConfigError(f"{algorithm.__name__} {needs}")
