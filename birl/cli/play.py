"""``birl play``: a trained policy in a window."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from birl.cli.common import (
    Model,
    print_line,
    with_options,
)
from birl.cli.evaluate import RenderOptions
from birl.errors import ConfigError


@with_options(RenderOptions)
def play(
    model: Model,
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 3,
    *,
    options: RenderOptions,
) -> None:
    """Show the episodes of `birl evaluate` in a window, and print their undiscounted returns."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(map(os.environ.get, screens)):
        raise ConfigError("there is no screen to open a window on (DISPLAY is not set): `birl record` makes videos")
    print_line(options.play(model, options.make_environment(model, "human"), n_episodes))
