"""Scalers that move with what is seen in environments.

Their statistics move between updates, never inside of one. They are tensors that move in place, so what was compiled or
recorded goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from birl.checks import check
from birl.errors import ConfigError, EmptyDataError, NonFiniteError, ShapeError, UnsupportedError
from birl.preprocessing.base import Scaler, as_float, blocks, merged
from birl.preprocessing.observation_scalers import ObservationScaler
from birl.preprocessing.reward_scalers import RewardScaler
from birl.spaces.observations import picked
from birl.types import (
    FLOAT32_MAX,
    Array,
    Shape,
    State,
    Tree,
    as_parts,
    is_shape,
    leaf_shapes,
    shape_map,
    tree_leaves,
    tree_map,
    without_mask,
)

_PARTS: Final = ("count", "mean", "squares")
_INSIDE: Final[ContextVar[bool]] = ContextVar("inside an update", default=False)


@contextmanager
def frozen() -> Iterator[None]:
    """Refuse to move running scalers: an update of networks is under way."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


class Moments:
    """Number, mean and sum of squared deviations of rows, in float64.

    Args:
        shape: of a row.
        eps: positive constant that is added to the variance.
        parts: ``count``, ``mean`` and ``squares`` to begin with.
    """

    # What is kept is derived: `vars` is without it, and so are the digests by which compiled updates are found.
    __slots__ = ("__dict__", "_kept")

    def __init__(self, shape: tuple[int, ...], eps: float, parts: dict[str, Array] | None = None) -> None:
        self.eps = eps
        self.count = torch.zeros((), dtype=torch.float64)
        self.mean, self.squares = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}
        self.scale(torch.empty(0))  # so that it is there when a policy is exported
        if parts is not None:
            self._move(*(parts[name] for name in _PARTS))

    @classmethod
    def of(cls, saved: Any, eps: float, owner: str) -> Moments:
        """Those whose `parts` were saved.

        Raises:
            ConfigError: if they were not.
        """
        try:
            parts = {name: np.array(saved[name], dtype=np.float64) for name in _PARTS}
            count, mean, squares = parts.values()
            fits = count.shape == () and count >= 0 and mean.shape == squares.shape and bool((squares >= 0).all())
            fits = fits and all(np.isfinite(part).all() for part in parts.values())
        except (TypeError, ValueError, LookupError):
            fits = False
        if not fits:
            raise ConfigError(
                f"{owner}.statistics has {saved!r:.100}; it must have a count >= 0, and a mean and squares >= 0 of one "
                "shape, all finite: leave statistics out, or give those of another scaler"
            )
        return cls(mean.shape, eps, parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return tuple(self.mean.shape)

    @property
    def parts(self) -> dict[str, Any]:
        """JSON form."""
        return {name: getattr(self, name).tolist() for name in _PARTS}

    @property
    def variance(self) -> Tensor:
        """Population variance; 1 without rows."""
        return torch.where(self.count > 0, self.squares / self.count.clamp(min=1), 1.0)

    def add(self, rows: Array) -> None:
        """Count rows ``[n, *shape]``."""
        found = int(self.count), self.mean.numpy(), self.squares.numpy()
        for block in blocks([rows]):
            own = block.mean(axis=0)
            found = merged(found, (len(block), own, ((block - own) ** 2).sum(axis=0)))
        self._move(*found)

    def scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and ``sqrt(variance + eps)`` on the device and in the dtype of ``like``: tensors that move in place."""
        key = like.device, like.dtype
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        if torch.compiler.is_compiling():  # tensors made during compilation are fake and must not be kept
            return self._made(*key)
        with torch.inference_mode(False):  # or they could not move outside of it
            kept = self._kept[key] = self._made(*key)
        return kept

    def _made(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.mean.to(device, dtype, copy=True), torch.sqrt(self.variance + self.eps).to(device, dtype, copy=True)

    def _move(self, *parts: Any) -> None:
        for name, value in zip(_PARTS, parts, strict=True):
            getattr(self, name).copy_(torch.as_tensor(value))
        deviation = torch.sqrt(self.variance + self.eps)
        for mean, scale in self._kept.values():
            mean.copy_(self.mean)
            scale.copy_(deviation)


class _Running(Scaler):
    """Base of both: limits, and when they may move."""

    clip: float | None
    eps: float

    def _set_limits(self, clip: Any, eps: Any) -> None:
        self.clip = check(f"{type(self).__name__}.clip", clip, float, optional=True, above=0)
        self.eps = check(f"{type(self).__name__}.eps", eps, float, above=0)

    @property
    def running(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.serialize() == other.serialize()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        params = self.get_params()  # type: ignore[attr-defined]
        shown = ", ".join(f"{name}={value!r}" for name, value in params.items() if name != "statistics")
        return f"{type(self).__name__}({shown})"

    def _check_outside(self) -> None:
        if _INSIDE.get():
            raise UnsupportedError(
                f"a {type(self).__name__} was to be moved inside an update, which must see all steps in one scale: "
                "move it between updates (fit_online does)"
            )

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def _numbers(self, values: Any, shape: tuple[int | None, ...] | None) -> Array:
        """An array of finite numbers with a row for each step; ``None`` in ``shape`` is any length."""
        array = np.asarray(values)
        fits = array.ndim > 0 and array.dtype.kind in "biuf"
        if shape is not None:
            fits &= len(shape) == array.ndim and all(w in (None, g) for w, g in zip(shape, array.shape, strict=True))
        if not fits:
            wanted = "n rows" if shape is None else f"shape {tuple('n' if size is None else size for size in shape)}"
            raise ShapeError(
                f"{type(self).__name__} was to be moved by {array.dtype} of shape {array.shape}; it must be moved by "
                f"numbers of {wanted}, one row for each step"
            )
        if array.dtype.kind == "f" and not (np.abs(array.astype(np.float64)) <= FLOAT32_MAX).all():
            raise NonFiniteError(
                f"{type(self).__name__} was to be moved by what is not finite in float32: give finite numbers"
            )
        return array


class RunningObservationScaler(_Running, ObservationScaler, type="running"):
    """``clip((x - mean) / sqrt(variance + eps), -clip, clip)``, with mean and variance of all steps seen so far.

    Each number of an observation has its own. Of tuples and dicts only arrays of floats are scaled, because integers
    may be numbers of choices, and pixels have a scaler of their own. Before the first step nothing is but clipped.

    `fit_online` and agents move it with every step. On-policy updates see observations as the policy saw them, each in
    the scale of its step; off-policy ones see all in the newest scale. Evaluation, models and exports take it as it is.
    `fit` fits it to the data, unless it has seen steps already, and leaves it so.

    Args:
        clip: largest absolute value, above 0; ``None`` for none.
        eps: positive constant that keeps constant numbers finite.
        statistics: JSON form of another one's; ``None`` for none.
    """

    _structure: Tree = None  # of the observations that networks read, once these are known; kept by `set_state`

    def __init__(self, clip: float | None = 10.0, eps: float = 1e-8, statistics: Any = None) -> None:
        self._set_limits(clip, eps)
        self._leaves: list[Moments | None] | None = None  # None: of an array that is not scaled
        if statistics is not None:
            name = type(self).__name__
            if not isinstance(statistics, list | tuple):
                raise ConfigError(f"{name}.statistics is {statistics!r:.80}; it must be a list, with an item per array")
            self._leaves = [None if each is None else Moments.of(each, self.eps, name) for each in statistics]

    def get_params(self) -> dict[str, Any]:
        """Limits and statistics."""
        statistics = None if self._leaves is None else [each and each.parts for each in self._leaves]
        return {"clip": self.clip, "eps": self.eps, "statistics": statistics}

    @property
    def built(self) -> bool:
        """Whether it has seen a step."""
        return self.count > 0

    @property
    def count(self) -> int:
        """Number of steps that it has seen."""
        return max((int(each.count) for each in self._leaves or () if each is not None), default=0)

    def prepare(self, shape: Shape, gamma: float) -> None:
        self._structure = shape_map(lambda _: None, shape)
        given, name = list(leaf_shapes(shape)), type(self).__name__
        if self._leaves is None:
            if is_shape(shape):  # the leaves of trees are known by their dtypes, with the first step
                self._leaves = [Moments(shape, self.eps)]
            return
        own = [each and each.shape for each in self._leaves]
        if len(own) != len(given) or any(x not in (None, y) for x, y in zip(own, given, strict=True)):
            raise ShapeError(f"{name} has statistics of shapes {own}, but observations have {given}: make a new one")

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        self._leaves = None
        for episode in episodes:
            self.update(self._values(episode))
        if not self.built:
            raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")

    def fit_with_env(self, env: Any) -> None:
        """Nothing: what will be seen is not known yet."""

    def update(self, observations: Tree) -> None:
        """Move with some steps.

        Args:
            observations: tree of arrays ``[n, *shape]``. Parts are found by name, and those that networks do not read
                are not looked at, once it is known what they read.

        Raises:
            UnsupportedError: inside an update.
            ShapeError: if they have other parts or shapes than the steps before.
            NonFiniteError: if they hold NaN or infinity.
        """
        self._check_outside()
        parts = picked(self._structure, without_mask(as_parts(observations)))
        rows = [np.asarray(leaf) for leaf in tree_leaves(parts)]
        leaves = self._leaves
        if leaves is None:
            scaled = [len(rows) == 1 or leaf.dtype.kind == "f" for leaf in rows]
            shapes = [self._numbers(leaf, None).shape[1:] for leaf in rows]
            leaves = [Moments(shape, self.eps) if own else None for shape, own in zip(shapes, scaled, strict=True)]
        self._check_number(len(rows), leaves)
        for each, leaf in zip(leaves, rows, strict=True):
            if each is not None:
                self._numbers(leaf, (None, *each.shape))
        self._leaves = leaves
        for each, leaf in zip(leaves, rows, strict=True):
            if each is not None and len(leaf):
                each.add(leaf)

    def transform(self, x: Any) -> Any:
        """From the units of the data to those of the networks: float tensors of the shapes of ``x``."""
        return self._each(x, lambda leaf, mean, scale: self._clipped((leaf - mean) / scale), self._clipped)

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`. What was clipped is not restored."""
        return self._each(x, lambda leaf, mean, scale: leaf * scale + mean, lambda leaf: leaf)

    def _check_number(self, given: int, leaves: list[Moments | None]) -> None:
        if given != len(leaves):
            raise ShapeError(f"{type(self).__name__} has seen {len(leaves)} arrays in an observation, not {given}")

    def _each(self, x: Any, function: Callable[..., Tensor], unseen: Callable[[Tensor], Tensor]) -> Any:
        if self._leaves is None:
            return tree_map(lambda leaf: unseen(as_float(leaf)), x)
        self._check_number(sum(1 for _ in tree_leaves(x)), self._leaves)
        moments = iter(self._leaves)

        def scaled(leaf: Tensor) -> Tensor:
            own, leaf = next(moments), as_float(leaf)
            if own is None:
                return leaf
            begin = max(leaf.dim() - len(own.shape), 0)
            if tuple(int(size) for size in leaf.shape[begin:]) != own.shape:  # int: TorchScript traces tensors
                raise ShapeError(f"{type(self).__name__} is for values of shape {own.shape}, got {tuple(leaf.shape)}")
            return function(leaf, *own.scale(leaf))

        return tree_map(scaled, x)


class RunningRewardScaler(_Running, RewardScaler, type="running"):
    """``clip(x / sqrt(variance + eps), -clip, clip)``, with the variance of all discounted returns seen so far.

    In every environment a return runs along, ``R <- gamma * R + reward``, from 0 at the start of each episode. Its mean
    is not subtracted: that would make longer episodes better or worse. Before the first step nothing is but clipped.

    `fit_online` moves it: off-policy with every step, on-policy with a rollout, before the update from that. `fit` fits
    it to the data, unless it has seen steps already, and leaves it so. n-step returns need ``clip=None``.

    Differs from ``VecNormalize`` of Stable-Baselines3, which scales the rewards of a rollout one by one as they come.

    Args:
        clip: largest absolute value, above 0; ``None`` for none.
        gamma: discount factor of one step in [0, 1]; ``None`` for the algorithm's.
        eps: positive constant that keeps rewards finite if all returns are equal.
        statistics: JSON form of another one's; ``None`` for none.
    """

    __slots__ = ("_returns",)  # of the environments; not in `vars`, because a compiled update does not depend on them

    def __init__(
        self, clip: float | None = 10.0, gamma: float | None = None, eps: float = 1e-8, statistics: Any = None
    ) -> None:
        self._set_limits(clip, eps)
        name = type(self).__name__
        self.gamma = check(f"{name}.gamma", gamma, float, optional=True, low=0, high=1)
        self._moments = Moments((), self.eps) if statistics is None else Moments.of(statistics, self.eps, name)
        if self._moments.shape:
            raise ConfigError(f"{name}.statistics has shape {self._moments.shape}; it must be of numbers, shape ()")
        self._returns = np.zeros(0)

    def get_params(self) -> dict[str, Any]:
        """Limits, discount factor and statistics."""
        return {"clip": self.clip, "gamma": self.gamma, "eps": self.eps, "statistics": self._moments.parts}

    @property
    def built(self) -> bool:
        """Whether it has seen a step."""
        return self.count > 0

    @property
    def count(self) -> int:
        """Number of steps that it has seen."""
        return int(self._moments.count)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.clip is None

    def prepare(self, shape: Shape, gamma: float) -> None:
        if self.gamma is None:
            self.gamma = gamma

    def fit_with_episodes(self, episodes: Iterable[Any]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        self._moments = Moments((), self.eps)
        for episode in episodes:
            rewards = self._values(episode)
            self.update(rewards[:, None], np.arange(len(rewards))[:, None] == 0)
        self._returns = np.zeros(0)
        if not self.built:
            raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")

    def update(self, rewards: Any, is_first: Any, valid: Any = None) -> None:
        """Move with steps of ``n`` environments, those that were moved with before.

        Args:
            rewards: ``[T, n]``, in order.
            is_first: bool ``[T, n]``: the step begins an episode.
            valid: bool ``[T, n]``: whether a row is a step; ``None`` if all are.

        Raises:
            ConfigError: if there is no discount factor yet.
            UnsupportedError: inside an update.
            ShapeError: if the shapes do not fit.
            NonFiniteError: if a reward is NaN or infinite.
        """
        self._check_outside()
        if self.gamma is None:
            raise ConfigError("RunningRewardScaler.gamma is None; it must be a discount factor to be used by itself")
        given = self._numbers(rewards, (None, None)).astype(np.float64)
        first = self._numbers(is_first, given.shape).astype(bool)
        real = np.ones(given.shape, bool) if valid is None else self._numbers(valid, given.shape).astype(bool)
        returns = self._returns if len(self._returns) == given.shape[1] else np.zeros(given.shape[1])
        seen = np.empty_like(given)
        for reward, begins, row, out in zip(given, first, real, seen, strict=True):
            out[:] = returns = np.where(row, np.where(begins, 0.0, returns) * self.gamma + reward, returns)
        self._returns = returns
        if real.any():
            self._moments.add(seen[real])

    def transform(self, x: Any) -> Any:
        """Scaled rewards: float tensor of the shape of ``x``."""
        x = as_float(x)
        return self._clipped(x / self._moments.scale(x)[1])

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`. What was clipped is not restored."""
        x = as_float(x)
        return x * self._moments.scale(x)[1]

    def get_state(self) -> State:
        return {**super().get_state(), "returns": self._returns.copy()}

    def set_state(self, state: State) -> None:
        returns = self._numbers(state["returns"], (None,)).astype(np.float64)
        super().set_state({name: value for name, value in state.items() if name != "returns"})
        self._returns = returns
