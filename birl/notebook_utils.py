"""d3rlpy's module for videos in notebooks."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from birl.errors import MissingExtraError

__all__ = ["render_video", "start_virtual_display"]


def start_virtual_display() -> None:
    """Start a screen in memory, for environments that render to a window on machines without one.

    Raises:
        MissingExtraError: without pyvirtualdisplay.
    """
    _package("pyvirtualdisplay").Display().start()


def render_video(path: str | os.PathLike[str]) -> None:
    """Show a video file in the notebook's output, where it stays when the file is gone.

    Raises:
        MissingExtraError: without IPython.
    """
    display = _package("IPython.display")
    display.display(display.Video(os.fspath(path), embed=True, html_attributes="controls autoplay loop"))


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0].lower()
        raise MissingExtraError(f"{package} is needed here: run `pip install {package}`") from error
