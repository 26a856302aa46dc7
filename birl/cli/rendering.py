"""Rendering environments, and episodes of trained policies in them, for `birl record` and `birl play`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from birl import metrics
from birl.cli.common import load_model, note
from birl.cli.evaluate import acting_algorithm, with_masks
from birl.cli.run_folder import environment_of, target_of
from birl.errors import ConfigError
from birl.seeding import seed as set_seed


def rendering_environment(model: Path, env_id: str | None, env_header: str | None, mode: str) -> Any:
    """Make an environment that renders.

    Args:
        model: model file or run folder.
        env_id: Gymnasium id or ``module:factory``; by default the run's.
        env_header: Python code, which d3rlpy executes; refused here.
        mode: ``"rgb_array"`` or ``"human"``: given to the environment, or to a factory that takes ``render_mode``.

    Raises:
        ConfigError: if there is none, or if it does not render so.
    """
    if env_header is not None:
        raise ConfigError(
            f"--env-header {env_header!r:.60} is Python code, which birl never executes: write a function that makes "
            "the environment into a module, such as `def make(render_mode): … return env` in my_envs.py, and give "
            "--env-id my_envs:make"
        )
    env_id, env = environment_of(model, env_id, render_mode=mode)
    if env.render_mode != mode:
        raise ConfigError(
            f"{env_id} has render_mode={env.render_mode!r}, but {mode!r} is needed here: let module:factory take "
            "render_mode and pass it on to the environment (known modes: "
            f"{', '.join(map(str, env.metadata.get('render_modes', []))) or 'none'})"
        )
    return env


def play_episodes(
    model: Path,
    env: Any,
    n_episodes: int,
    epsilon: float,
    target_return: float | None,
    seed: int,
    device: str,
    own: str | None,
    best: bool,
) -> str:
    """Play episodes; the environment is closed at the end.

    Returns:
        A line of text with their returns.
    """
    try:
        file, algorithm = load_model(model, device, own, best)
        name = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
        note(f"{file} in {name}, seed {seed}")
        env = with_masks(env, algorithm)
        set_seed(seed)
        acting = acting_algorithm(algorithm, target_of(model, target_return))
        returns = metrics.evaluate(acting, env, n_episodes, epsilon, seed=seed)
    finally:
        env.close()
    each = ", ".join(f"{value:.2f}" for value in returns)
    return f"return {np.mean(returns):.2f} ± {np.std(returns):.2f} over {n_episodes} episodes ({each})"
