"""``birl play``: a trained policy in a window."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

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
)
from birl.cli.evaluate import play_episodes, rendering_environment
from birl.errors import ConfigError


def play(
    model: Model,
    env_id: EnvId = None,
    best: Best = False,
    env_header: EnvHeader = None,
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 3,
    target_return: TargetReturn = None,
    epsilon: Epsilon = 0.0,
    seed: EpisodeSeed = 0,
    device: Device = "cpu",
    import_: Import = None,
    use_gymnasium: UseGymnasium = False,
) -> None:
    """Show the episodes of `birl evaluate` in a window, and print their undiscounted returns."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(map(os.environ.get, screens)):
        raise ConfigError("there is no screen to open a window on (DISPLAY is not set): `birl record` makes videos")
    env = rendering_environment(model, env_id, env_header, "human")
    print(play_episodes(model, env, n_episodes, epsilon, target_return, seed, device, import_, best))
