"""``birl evaluate``, and code for all subcommands that play episodes with trained policies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import gymnasium
import numpy as np
import typer

from birl import metrics
from birl.acting.sequence_context import StatefulTransformerWrapper
from birl.algorithm.sequence import TransformerAlgorithm
from birl.cli.common import (
    Best,
    Device,
    EnvHeader,
    EnvId,
    EpisodeSeed,
    Epsilon,
    Import,
    Model,
    TargetReturn,
    UseGymnasium,
    note,
    print_line,
    with_options,
)
from birl.cli.loading import AnyAlgorithm, load_model
from birl.cli.run_folder import environment_of, target_of
from birl.envs import ActionMask, single_spaces
from birl.errors import ConfigError
from birl.metrics.environment import SelectActions, play_episodes
from birl.seeding import seed as set_seed
from birl.types import MASK

ActingAlgorithm: TypeAlias = AnyAlgorithm | StatefulTransformerWrapper


@dataclass(frozen=True)
class PlayOptions:
    """Options of all commands that play episodes with a trained policy."""

    env_id: EnvId = None
    best: Best = False
    epsilon: Epsilon = 0.0
    seed: EpisodeSeed = 0
    target_return: TargetReturn = None
    device: Device = "cpu"
    import_: Import = None

    def load(self, model: Path) -> tuple[Path, AnyAlgorithm]:
        """Return the model file and its algorithm."""
        return load_model(model, self.device, self.import_, self.best)

    def prepare(
        self, model: Path, algorithm: AnyAlgorithm, env: gymnasium.Env[Any, Any]
    ) -> tuple[ActingAlgorithm, gymnasium.Env[Any, Any]]:
        """Seed all generators; return the policy that acts, and the environment with the masks that it reads."""
        env = with_masks(env, algorithm)
        set_seed(self.seed)
        return acting_algorithm(algorithm, target_of(model, self.target_return)), env


@with_options(PlayOptions)
def evaluate(
    model: Model,
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="Sample actions from the policy, as in training.")] = False,
    *,
    options: PlayOptions,
) -> None:
    """Play episodes with a trained policy and print their undiscounted returns, and the success rate if there is one.

    Policies act greedily, unless --sample is given; a DiscreteDecisionTransformer and random policies sample their
    actions.
    """
    file, algorithm = options.load(model)
    env_id, env = environment_of(model, options.env_id)
    acting, env = options.prepare(model, algorithm, env)
    seed, epsilon = options.seed, options.epsilon
    actor = _sampling_actor(algorithm) if sample else None
    found = play_episodes(acting, env, n_episodes, epsilon, seed=seed, actor=actor)
    env.close()
    returns, rate = found.returns, found.success_rate
    mean, std, low, high = float(np.mean(returns)), float(np.std(returns)), min(returns), max(returns)
    if as_json:
        summary: dict[str, Any] = {"model": str(file), "env_id": env_id, "n_episodes": n_episodes, "seed": seed}
        summary |= {
            "epsilon": epsilon,
            "sample": sample,
            "mean": mean,
            "std": std,
            "min": low,
            "max": high,
            "returns": returns,
            "success_rate": rate,
        }
        print(json.dumps(summary))
        return
    note(f"{file} in {env_id}, seed {seed}")
    successes = "" if rate is None else f", success rate {rate:.0%}"
    print_line(f"return {mean:.2f} ± {std:.2f} over {n_episodes} episodes (min {low:.2f}, max {high:.2f}){successes}")


def _sampling_actor(algorithm: AnyAlgorithm) -> SelectActions:
    """Return an actor that samples from the policy.

    Raises:
        ConfigError: if the policy has no distribution, or if a sequence model always samples.
    """
    if algorithm.acts.aims or not algorithm.acts.explores:
        name = type(algorithm).__name__
        raise ConfigError(
            f"--sample was given, but a {name} has no policy to sample from: leave it out, or explore with --epsilon"
        )
    return algorithm.actor(greedy=False)


def with_masks(env: gymnasium.Env[Any, Any], algorithm: AnyAlgorithm) -> gymnasium.Env[Any, Any]:
    """Return ``env``, wrapped in `ActionMask` if the policy needs masks that its observations do not contain."""
    parts = getattr(single_spaces(env)[0], "spaces", ())
    if not algorithm.spec.masked or MASK in parts:
        return env
    return ActionMask(env)  # it refuses vector environments


def acting_algorithm(algorithm: AnyAlgorithm, target_return: float | None) -> ActingAlgorithm:
    """Return the object that acts: the algorithm itself, or a sequence model with its target return.

    Raises:
        ConfigError: if a sequence model has no target return, or another algorithm has one.
    """
    check_target(type(algorithm), target_return)
    if target_return is None or not isinstance(algorithm, TransformerAlgorithm):
        return algorithm
    return algorithm.as_stateful_wrapper(target_return)


def check_target(algorithm: type[AnyAlgorithm], target_return: float | None) -> None:
    """Raise `ConfigError` if a sequence model has no target return, or another algorithm has one."""
    if algorithm.acts.aims and target_return is None:
        raise ConfigError(f"{algorithm.__name__} needs --target-return: the return to aim at")
    if not algorithm.acts.aims and target_return is not None:
        raise ConfigError(f"{algorithm.__name__} takes no --target-return, which is for sequence models: leave it out")


# -- rendering -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderOptions(PlayOptions):
    """Options of commands that show episodes."""

    env_header: EnvHeader = None
    use_gymnasium: UseGymnasium = False

    def make_environment(self, model: Path, mode: str) -> gymnasium.Env[Any, Any]:
        """Make an environment that renders.

        Args:
            model: model file or run folder, whose environment is the default.
            mode: ``"rgb_array"`` or ``"human"``: passed to the environment, or to a factory that takes ``render_mode``.

        Raises:
            ConfigError: if there is none, or if it does not render in this mode.
        """
        if self.env_header is not None:
            raise ConfigError(
                f"--env-header {self.env_header!r:.60} is Python code, which birl never executes: put a function that "
                "makes the environment into a module, such as `def make(render_mode): … return env` in my_envs.py, and "
                "give --env-id my_envs:make"
            )
        env_id, env = environment_of(model, self.env_id, render_mode=mode)
        draws = type(env.unwrapped).render is not gymnasium.Env.render  # in its only mode
        if env.render_mode != mode and not (mode == "rgb_array" and env.render_mode is None and draws):
            raise ConfigError(
                f"{env_id} has render_mode={env.render_mode!r}, but {mode!r} is needed here: let module:factory take "
                "render_mode and pass it on to the environment (known modes: "
                f"{', '.join(map(str, env.metadata.get('render_modes', []))) or 'none'})"
            )
        return env

    def play(self, model: Path, env: gymnasium.Env[Any, Any], n_episodes: int) -> str:
        """Play the episodes of ``birl evaluate``, and close the environment.

        Returns:
            A line of text with their returns.
        """
        try:
            file, algorithm = self.load(model)
            name = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
            note(f"{file} in {name}, seed {self.seed}")
            acting, env = self.prepare(model, algorithm, env)
            returns = metrics.evaluate(acting, env, n_episodes, self.epsilon, seed=self.seed)
        finally:
            env.close()
        each = ", ".join(f"{value:.2f}" for value in returns)
        return f"return {np.mean(returns):.2f} ± {np.std(returns):.2f} over {n_episodes} episodes ({each})"
