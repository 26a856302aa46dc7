"""``birl record``: videos of a trained policy's episodes."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, SupportsFloat

import gymnasium
import numpy as np
import typer

from birl.cli.common import (
    Model,
    print_line,
    with_options,
)
from birl.cli.evaluate import RenderOptions
from birl.errors import ConfigError, WriteError, require
from birl.types import Array

_DEFAULT_RATE = 30


@with_options(RenderOptions)
def record(
    model: Model,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the videos.")] = Path("videos"),
    n_episodes: Annotated[int, typer.Option(min=1, help="Number of episodes, with one video each.")] = 3,
    *,
    options: RenderOptions,
) -> None:
    """Record the episodes of `birl evaluate` as videos (.mp4). Videos of the same name are replaced."""
    require("av", "video")
    env = Recorder(options.make_environment(model, "rgb_array"), out)
    line = options.play(model, env, n_episodes)
    for file in env.files:
        print_line(file)
    print_line(line)


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that writes each episode to ``rl-video-episode-<number>.mp4`` (H.264) while it is played.

    A video gets its name at the end of its episode; `close` removes an unfinished video.

    Args:
        env: environment with ``render_mode="rgb_array"``; its ``metadata["render_fps"]`` is the frame rate.
        folder: folder of the videos, which is made when the first video is written.

    Attributes:
        files: complete videos.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path) -> None:
        super().__init__(env)
        self._folder = folder
        self._rate = Fraction(env.metadata.get("render_fps") or _DEFAULT_RATE).limit_denominator(1000)
        self._video: _Video | None = None
        self._first = np.zeros((0, 0, 3), np.uint8)
        self.files: list[Path] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Its video starts with the first step, because another reset can follow."""
        result = self.env.reset(seed=seed, options=options)
        self._discard()
        self._first = self._frame()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and record a frame."""
        result = self.env.step(action)
        if self._video is None:
            file = self._folder / f"rl-video-episode-{len(self.files)}.mp4"
            self._video = _Video(file, self._first.shape, self._rate)
            self._video.add(self._first)
        self._video.add(self._frame())
        if result[2] or result[3]:
            self.files.append(self._video.finish())
            self._video = None
        return result

    def close(self) -> None:
        """Close the environment and remove an unfinished video."""
        self._discard()
        super().close()

    def _discard(self) -> None:
        if self._video is not None:
            self._video.discard()
            self._video = None

    def _frame(self) -> Array:
        try:
            frame = np.asarray(self.env.render())
        except Exception as error:  # rendering libraries have errors of their own
            raise ConfigError(
                f"the environment cannot be rendered: {error}. Without a screen, MuJoCo environments need the variable "
                "MUJOCO_GL=egl (or osmesa), those of pygame SDL_VIDEODRIVER=dummy"
            ) from error
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ConfigError(
                f"the environment renders {frame.dtype} {frame.shape}; a video needs uint8 frames (height, width, "
                "3): let render() return these"
            )
        return frame


class _Video:
    """A video file that is being written.

    Args:
        file: final name of the file.
        shape: shape of the frames, ``(height, width, 3)``.
        rate: frames per second.
    """

    def __init__(self, file: Path, shape: tuple[int, ...], rate: Fraction) -> None:
        av = require("av", "video")
        self._file, self._unfinished = file, file.with_name(f".{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._unfinished), "w", format="mp4")
        except OSError as error:
            raise WriteError(f"{file} cannot be written: {error.strerror}: give another --out") from error
        self._make_frame = av.VideoFrame.from_ndarray
        self._stream = self._container.add_stream("libx264", rate=rate)
        self._stream.height, self._stream.width = (size + size % 2 for size in shape[:2])  # H.264 needs even sizes
        self._stream.pix_fmt = "yuv420p"

    def add(self, frame: Array) -> None:
        """Append a frame ``[height, width, 3]``."""
        missing = [(0, self._stream.height - frame.shape[0]), (0, self._stream.width - frame.shape[1]), (0, 0)]
        if any(after not in (0, 1) for _, after in missing):
            raise ConfigError(f"the size of the environment's frames changed to {frame.shape} within an episode")
        whole = np.ascontiguousarray(np.pad(frame, missing, mode="edge"))
        for packet in self._stream.encode(self._make_frame(whole, format="rgb24")):
            self._container.mux(packet)

    def finish(self) -> Path:
        """Complete the file and give it its name."""
        for packet in self._stream.encode():
            self._container.mux(packet)
        self._container.close()
        os.replace(self._unfinished, self._file)
        return self._file

    def discard(self) -> None:
        """Remove the unfinished file."""
        self._container.close()
        self._unfinished.unlink(missing_ok=True)
