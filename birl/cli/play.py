"""``birl play``: a trained policy in a window."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from birl.cli.playing import play_episodes, rendering_environment
from birl.errors import ConfigError


def play(
    model: Annotated[Path, typer.Argument(metavar="DIR|MODEL", help="Run folder (its newest model) or model file.")],
    env_id: Annotated[
        str | None, typer.Option(help="Gymnasium id, or module:factory for an environment of your own.")
    ] = None,
    env_header: Annotated[
        str | None, typer.Option(help="Not executed, unlike in d3rlpy: use --env-id module:factory.")
    ] = None,
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 3,
    target_return: Annotated[float | None, typer.Option(help="Return that a sequence model aims at.")] = None,
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Share of random actions.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Fixes the episodes.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    use_gymnasium: Annotated[
        bool, typer.Option("--use-gymnasium", hidden=True, help="For d3rlpy's command lines: always so here.")
    ] = False,
) -> None:
    """Show episodes, played as by `birl evaluate`, in a window, and print their undiscounted returns."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(map(os.environ.get, screens)):
        raise ConfigError("there is no screen to open a window on (DISPLAY is not set): `birl record` makes videos")
    env = rendering_environment(env_id, env_header, "human")
    print(
        play_episodes(model, env, n_episodes, epsilon=epsilon, target_return=target_return, seed=seed, device=device)
    )
