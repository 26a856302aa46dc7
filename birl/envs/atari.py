"""Atari 2600 games with the usual preprocessing. They need the extra ``atari``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from birl.envs.construction import make_env
from birl.envs.wrappers import ChannelFirst, FrameStack, wrappable
from birl.errors import EnvironmentMismatchError
from birl.types import Array


def make_atari(game: str, *, sticky_action: bool = True, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """A game without preprocessing: one frame per step, and its minimal set of actions.

    Args:
        game: such as ``"breakout"``, ``"space-invaders"`` or ``"SpaceInvaders"``.
        sticky_action: with probability 0.25 the action before is repeated (Machado et al. 2018, arXiv:1709.06009).
        render_mode: ``"human"`` or ``"rgb_array"``.

    Raises:
        MissingExtraError: if ale-py is not installed.
        ConfigError: if there is no such game.
    """
    options: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.25 if sticky_action else 0.0}
    return make_env(f"ALE/{game_name(game)}-v5", render_mode=render_mode, **options)  # type: ignore[no-any-return]


def game_name(game: str) -> str:
    """``"SpaceInvaders"`` for ``"space-invaders"`` and ``"space_invaders"``."""
    return "".join(part[:1].upper() + part[1:] for part in game.replace("-", "_").split("_"))


class AtariPreprocessing(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """The usual preprocessing of Atari frames (Machado et al. 2018, arXiv:1709.06009).

    Actions are repeated, the last two frames are joined by their maximum, turned grey and shrunk, and an episode begins
    with a random number of steps that do nothing. Observations are uint8 ``[size, size]`` (``[size, size, 3]`` in
    colour), or float32 in [0, 1].

    Differs from d3rlpy: no OpenCV is needed; frames are shrunk by averages over areas, exactly.

    Args:
        env: game with one frame a step, see `make_atari`.
        noop_max: most steps without action at the beginning; 0 for none.
        frame_skip: how often an action is repeated.
        screen_size: height and width.
        terminal_on_life_loss: whether a lost life ends an episode. The next reset then goes on with the game, and takes
            no notice of its seed; so runs cannot be resumed exactly.
        grayscale_obs: grey instead of colour.
        grayscale_newaxis: ``[size, size, 1]`` for grey.
        scale_obs: divide by 255.
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
        super().__init__(wrappable(env, self))
        if frame_skip < 1 or screen_size < 1 or noop_max < 0:
            raise EnvironmentMismatchError(f"{options}: frame_skip and screen_size are at least 1, noop_max at least 0")
        native = getattr(env.unwrapped, "_frameskip", 1)
        if not hasattr(env.unwrapped, "ale") or (frame_skip > 1 and native != 1):
            raise EnvironmentMismatchError(
                f"{env} is no Atari game with one frame a step (it repeats actions {native} times): make it with "
                "birl.envs.make_atari, or with frameskip=1"
            )
        self._noop_max, self._frame_skip, self._ends_with_life = noop_max, frame_skip, terminal_on_life_loss
        self._grey, self._new_axis, self._scaled = grayscale_obs, grayscale_newaxis, scale_obs
        self._lives, self._goes_on = 0, False
        height, width = env.observation_space.shape[:2]  # type: ignore[index]
        self._rows, self._columns = _areas(height, screen_size), _areas(width, screen_size)
        depth: tuple[int, ...] = (3,) if not grayscale_obs else (1,) if grayscale_newaxis else ()
        high, dtype = (1.0, np.float32) if scale_obs else (255, np.uint8)
        self.observation_space = spaces.Box(0, high, (screen_size, screen_size, *depth), dtype)  # type: ignore[arg-type]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game, or go on with one after a lost life."""
        if self._goes_on:
            info = self._wait()
        else:
            _, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0):
            info = self._wait()
        self._goes_on = False
        self._lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return self._observe([self._screen()]), info

    def _wait(self) -> dict[str, Any]:
        """Do nothing for a frame."""
        *_, terminated, truncated, info = self.env.step(0)
        if terminated or truncated:
            _, info = self.env.reset()
        return info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Repeat an action."""
        reward, screens = 0.0, []
        for repeat in range(self._frame_skip):
            _, gained, terminated, truncated, info = self.env.step(action)
            reward += float(gained)
            if self._ends_with_life and not (terminated or truncated):
                lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
                terminated = self._goes_on = lives < self._lives
                self._lives = lives
            last = terminated or truncated
            if last or repeat >= self._frame_skip - 2:
                screens.append(self._screen())
            if last:
                break
        return self._observe(screens[-2:]), reward, terminated, truncated, info

    def _screen(self) -> Array:
        ale = self.unwrapped.ale  # type: ignore[attr-defined]
        return ale.getScreenGrayscale() if self._grey else ale.getScreenRGB()  # type: ignore[no-any-return]

    def _observe(self, screens: list[Array]) -> Array:
        screen = np.maximum.reduce(screens)
        pixels = 255 * screen.shape[0] * screen.shape[1] if self._scaled else screen.shape[0] * screen.shape[1]
        by_column = np.moveaxis(_summed(screen, *self._rows), 1, 0)
        small = np.moveaxis(_summed(by_column, *self._columns), 1, 0) / pixels
        small = small[..., None] if self._grey and self._new_axis else small
        return small.astype(np.float32, "C") if self._scaled else np.rint(small).astype(np.uint8, "C")


class _ClippedReward(gymnasium.RewardWrapper[Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Rewards clipped to [-1, 1]. That of Gymnasium cannot be sent to another process."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reward(self, reward: Any) -> Any:
        return np.clip(reward, -1.0, 1.0)


class Atari(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """`AtariPreprocessing`, frames stacked or channel first, and, for training, rewards clipped to [-1, 1].

    Args:
        env: game with one frame a step, see `make_atari`.
        num_stack: number of frames to stack; ``None`` for single frames ``[1, 84, 84]``.
        is_eval: true rewards, and a lost life ends no episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], num_stack: int | None = None, is_eval: bool = False) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, num_stack=num_stack, is_eval=is_eval)
        env = AtariPreprocessing(env, terminal_on_life_loss=not is_eval)
        if not is_eval:
            env = _ClippedReward(env)
        super().__init__(FrameStack(env, num_stack) if num_stack else ChannelFirst(env))


def _areas(size: int, target: int) -> tuple[Array, Array]:
    """The pixels under each of ``target`` equal parts of ``size`` pixels, and how much of each: two ``[K, target]``.

    Shares are counted in parts of a pixel, ``target`` to each, so that those of a part add up to ``size``.
    """
    begin = np.arange(target) * size
    pixel = begin // target + np.arange(-(-size // target) + 1)[:, None]
    share = np.minimum(begin + size, (pixel + 1) * target) - np.maximum(begin, pixel * target)
    return np.minimum(pixel, size - 1), np.maximum(share, 0).astype(np.int32)


def _summed(x: Array, pixel: Array, share: Array) -> Array:
    """Sums ``[target, ...]`` over areas of the first axis: integers, so the same on every processor.

    A product of matrices would need no gathering. But numpy's library for it has threads of its own, which wait for
    cores that torch's threads hold: a frame then takes 30 ms instead of a tenth of one.
    """
    return (x[pixel] * share.reshape(*share.shape, *(1,) * (x.ndim - 1))).sum(0, dtype=np.int32)  # type: ignore[no-any-return]
