"""Atari 2600 games with the usual preprocessing. Needs the extra ``atari``."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from birl.envs.construction import make_env
from birl.envs.wrappers import ChannelFirst, FrameStack, check_wrappable
from birl.errors import EnvironmentMismatchError
from birl.types import Array


def make_atari(game: str, *, sticky_action: bool = True, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Create a game without preprocessing: one frame per step, and its minimal set of actions.

    Args:
        game: such as ``"breakout"``, ``"space-invaders"`` or ``"SpaceInvaders"``.
        sticky_action: whether the game repeats the previous action with probability 0.25 (Machado et al. 2018,
            arXiv:1709.06009).
        render_mode: ``"human"`` or ``"rgb_array"``.

    Raises:
        MissingExtraError: if ale-py is not installed.
        ConfigError: if there is no such game.
    """
    options: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.25 if sticky_action else 0.0}
    return make_env(f"ALE/{game_name(game)}-v5", render_mode=render_mode, **options)  # type: ignore[no-any-return]


def game_name(game: str) -> str:
    """Return ``"SpaceInvaders"`` for ``"space-invaders"`` and ``"space_invaders"``."""
    return "".join(part[:1].upper() + part[1:] for part in game.replace("-", "_").split("_"))


class AtariPreprocessing(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """The usual preprocessing of Atari frames (Machado et al. 2018, arXiv:1709.06009).

    Repeat actions, take the maximum of the last two frames, convert to greyscale, resize, and start each episode with a
    random number of no-op steps. Observations are uint8 ``[size, size]`` (``[size, size, 3]`` in
    colour), or float32 in [0, 1].

    Differs from d3rlpy: it does not need OpenCV; it resizes frames by exact averages over areas.

    Args:
        env: game with one frame per step, see `make_atari`.
        noop_max: largest number of no-op steps at the start; 0 for none.
        frame_skip: number of frames per action.
        screen_size: height and width.
        terminal_on_life_loss: whether a lost life ends an episode. The next reset then continues the game and ignores
            its seed, so runs cannot be resumed exactly.
        grayscale_obs: whether to convert frames to greyscale.
        grayscale_newaxis: whether greyscale frames are ``[size, size, 1]``.
        scale_obs: whether to divide by 255.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = False,
        grayscale_obs: bool = True,
        grayscale_newaxis: bool = False,
        scale_obs: bool = False,
    ) -> None:
        options: dict[str, Any] = {"noop_max": noop_max, "frame_skip": frame_skip, "screen_size": screen_size}
        flags = {"terminal_on_life_loss": terminal_on_life_loss, "grayscale_obs": grayscale_obs}
        flags |= {"grayscale_newaxis": grayscale_newaxis, "scale_obs": scale_obs}
        gymnasium.utils.RecordConstructorArgs.__init__(self, **options, **flags)
        super().__init__(check_wrappable(env, self))
        if frame_skip < 1 or screen_size < 1 or noop_max < 0:
            raise EnvironmentMismatchError(
                f"{options} are out of range; frame_skip and screen_size must be >= 1, noop_max >= 0: change them"
            )
        native = getattr(env.unwrapped, "_frameskip", 1)
        if not hasattr(env.unwrapped, "ale") or (frame_skip > 1 and native != 1):
            raise EnvironmentMismatchError(
                f"{env} is not an Atari game with one frame per step (it repeats actions {native} times): create it "
                "with birl.envs.make_atari, or with frameskip=1"
            )
        self._noop_max, self._frame_skip, self._ends_at_life_loss = noop_max, frame_skip, terminal_on_life_loss
        self._grey, self._new_axis, self._scaled = grayscale_obs, grayscale_newaxis, scale_obs
        self._lives, self._continues = 0, False
        height, width = env.observation_space.shape[:2]  # type: ignore[index]
        self._rows, self._columns = _areas(height, screen_size), _areas(width, screen_size)
        depth: tuple[int, ...] = (3,) if not grayscale_obs else (1,) if grayscale_newaxis else ()
        high, dtype = (1.0, np.float32) if scale_obs else (255, np.uint8)
        self.observation_space = spaces.Box(0, high, (screen_size, screen_size, *depth), dtype)  # type: ignore[arg-type]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start a game, or continue it after a lost life."""
        if self._continues:
            info = self._noop()
        else:
            _, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0):
            info = self._noop()
        self._continues = False
        self._lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return self._make_observation([self._screen()]), info

    def _noop(self) -> dict[str, Any]:
        """Take a no-op step of one frame."""
        *_, terminated, truncated, info = self.env.step(0)
        if terminated or truncated:
            _, info = self.env.reset()
        return info

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Repeat an action."""
        reward, screens = 0.0, []
        for repeat in range(self._frame_skip):
            _, gained, terminated, truncated, info = self.env.step(action)
            reward += float(gained)
            if self._ends_at_life_loss and not (terminated or truncated):
                lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
                terminated = self._continues = lives < self._lives
                self._lives = lives
            last = terminated or truncated
            if last or repeat >= self._frame_skip - 2:
                screens.append(self._screen())
            if last:
                break
        return self._make_observation(screens[-2:]), reward, terminated, truncated, info

    def _screen(self) -> Array:
        ale = self.unwrapped.ale  # type: ignore[attr-defined]
        return ale.getScreenGrayscale() if self._grey else ale.getScreenRGB()  # type: ignore[no-any-return]

    def _make_observation(self, screens: list[Array]) -> Array:
        screen = np.maximum.reduce(screens)
        pixels = 255 * screen.shape[0] * screen.shape[1] if self._scaled else screen.shape[0] * screen.shape[1]
        by_column = np.moveaxis(_sum_areas(screen, *self._rows), 1, 0)
        small = np.moveaxis(_sum_areas(by_column, *self._columns), 1, 0) / pixels
        small = small[..., None] if self._grey and self._new_axis else small
        return small.astype(np.float32, "C") if self._scaled else np.rint(small).astype(np.uint8, "C")


class _ClippedReward(gymnasium.RewardWrapper[Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that clips rewards to [-1, 1]. Gymnasium's wrapper cannot be sent to another process."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reward(self, reward: SupportsFloat) -> float:
        return float(np.clip(float(reward), -1.0, 1.0))


class Atari(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """`AtariPreprocessing` with stacked or channel-first frames and, for training, rewards clipped to [-1, 1].

    Args:
        env: game with one frame a step, see `make_atari`.
        num_stack: number of frames to stack; ``None`` for single frames ``[1, 84, 84]``.
        is_eval: whether to keep the true rewards and to continue episodes after a lost life.
        padding_type: see `FrameStack`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        num_stack: int | None = None,
        is_eval: bool = False,
        padding_type: str = "zero",
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, num_stack=num_stack, is_eval=is_eval, padding_type=padding_type
        )
        env = AtariPreprocessing(env, terminal_on_life_loss=not is_eval)
        if not is_eval:
            env = _ClippedReward(env)
        super().__init__(FrameStack(env, num_stack, padding_type) if num_stack else ChannelFirst(env))


def _areas(size: int, target: int) -> tuple[Array, Array]:
    """Return the pixels in each of ``target`` equal parts of ``size`` pixels, and the share of each: ``[K, target]``.

    The unit of shares is ``1 / target`` of a pixel, so the shares of a part sum to ``size``.
    """
    start = np.arange(target) * size
    pixel = start // target + np.arange(-(-size // target) + 1)[:, None]
    share = np.minimum(start + size, (pixel + 1) * target) - np.maximum(start, pixel * target)
    return np.minimum(pixel, size - 1), np.maximum(share, 0).astype(np.int32)


def _sum_areas(x: Array, pixel: Array, share: Array) -> Array:
    """Sum areas of the first axis to ``[target, ...]``, in integers, so that all processors give equal results.

    A matrix product would avoid the gathering, but the threads of numpy's BLAS wait for cores that torch's threads
    hold: a frame then takes 30 ms instead of 0.1 ms.
    """
    return (x[pixel] * share.reshape(*share.shape, *(1,) * (x.ndim - 1))).sum(0, dtype=np.int32)  # type: ignore[no-any-return]
