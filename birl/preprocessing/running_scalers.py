"""Running scalers, whose statistics follow the steps of environments.

The statistics are updated between updates of networks, never during one. They are tensors that are updated in place, so
compiled updates and CUDA graphs use the new values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from birl.checks import check
from birl.errors import ConfigError, EmptyDataError, NonFiniteError, ShapeError, UnsupportedError
from birl.preprocessing.base import Scaler, Steps, as_float, merge_sums, row_blocks
from birl.preprocessing.observation_scalers import ObservationScaler
from birl.preprocessing.reward_scalers import RewardScaler
from birl.spaces.observations import match_parts
from birl.types import (
    FLOAT32_MAX,
    Array,
    GymEnv,
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
_FROZEN: Final[ContextVar[bool]] = ContextVar("statistics are frozen", default=False)


@contextmanager
def freeze_statistics() -> Iterator[None]:
    """Refuse updates of running scalers while networks are updated."""
    token = _FROZEN.set(True)
    try:
        yield
    finally:
        _FROZEN.reset(token)


class Moments:
    """Count, mean and sum of squared deviations of rows, in float64.

    Args:
        shape: shape of a row.
        eps: positive constant that is added to the variance.
        parts: initial ``count``, ``mean`` and ``squares``.
    """

    # A slot, so that `vars`, and hence the keys of compiled updates, do not contain the cache.
    __slots__ = ("__dict__", "_cache")

    def __init__(self, shape: tuple[int, ...], eps: float, parts: dict[str, Array] | None = None) -> None:
        self.eps = eps
        self.count = torch.zeros((), dtype=torch.float64)
        self.mean, self.squares = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        self._cache: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.scale(torch.empty(0))  # exports find the tensors in the cache
        if parts is not None:
            self._set(*(parts[name] for name in _PARTS))

    @classmethod
    def from_parts(cls, saved: Mapping[str, npt.ArrayLike], eps: float, owner: str) -> Moments:
        """Make moments from the saved `parts` of others.

        Raises:
            ConfigError: if they are not valid; the message names ``owner``.
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
        """The moments in JSON form."""
        return {name: getattr(self, name).tolist() for name in _PARTS}

    @property
    def variance(self) -> Tensor:
        """Population variance; 1 without rows."""
        return torch.where(self.count > 0, self.squares / self.count.clamp(min=1), 1.0)

    def add(self, rows: Array) -> None:
        """Add rows ``[n, *shape]``."""
        sums = int(self.count), self.mean.numpy(), self.squares.numpy()
        for block in row_blocks([rows]):
            mean = block.mean(axis=0)
            sums = merge_sums(sums, (len(block), mean, ((block - mean) ** 2).sum(axis=0)))
        self._set(*sums)

    def scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and ``sqrt(variance + eps)`` on the device and in the dtype of ``like``.

        The same tensors are returned every time, and updated in place.
        """
        key = like.device, like.dtype
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        if torch.compiler.is_compiling():  # tensors made during compilation are fake and must not be cached
            return self._mean_and_scale(*key)
        with torch.inference_mode(False):  # tensors of inference mode could not be updated outside of it
            cached = self._cache[key] = self._mean_and_scale(*key)
        return cached

    def _mean_and_scale(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.mean.to(device, dtype, copy=True), torch.sqrt(self.variance + self.eps).to(device, dtype, copy=True)

    def _set(self, *parts: float | Array) -> None:
        for name, value in zip(_PARTS, parts, strict=True):
            getattr(self, name).copy_(torch.as_tensor(value))
        deviation = torch.sqrt(self.variance + self.eps)
        for mean, scale in self._cache.values():
            mean.copy_(self.mean)
            scale.copy_(deviation)


class _RunningScaler(Scaler):
    """Base class of the running scalers: their limits, and checks of their updates."""

    clip: float | None
    eps: float

    def _set_limits(self, clip: float | None, eps: float) -> None:
        self.clip = check(f"{type(self).__name__}.clip", clip, float, optional=True, above=0)
        self.eps = check(f"{type(self).__name__}.eps", eps, float, above=0)

    @property
    def running(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.serialize() == other.serialize()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        params = self.get_params()  # type: ignore[attr-defined]
        arguments = ", ".join(f"{name}={value!r}" for name, value in params.items() if name != "statistics")
        return f"{type(self).__name__}({arguments})"

    def _check_not_frozen(self) -> None:
        if _FROZEN.get():
            raise UnsupportedError(
                f"a {type(self).__name__} was to be updated inside an update of networks, which must see all steps in "
                "one scale: update it between them, as fit_online does"
            )

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def _as_rows(self, values: npt.ArrayLike, shape: tuple[int | None, ...] | None) -> Array:
        """Convert to an array of finite numbers with a row for each step; ``None`` in ``shape`` is any length."""
        array = np.asarray(values)
        fits = array.ndim > 0 and array.dtype.kind in "biuf"
        if shape is not None:
            fits &= len(shape) == array.ndim and all(w in (None, g) for w, g in zip(shape, array.shape, strict=True))
        if not fits:
            wanted = "n rows" if shape is None else f"shape {tuple('n' if size is None else size for size in shape)}"
            raise ShapeError(
                f"{type(self).__name__}.update received {array.dtype} of shape {array.shape}; it must receive numbers "
                f"of {wanted}, one row for each step"
            )
        if array.dtype.kind == "f" and not (np.abs(array.astype(np.float64)) <= FLOAT32_MAX).all():
            raise NonFiniteError(
                f"{type(self).__name__}.update received numbers that are not finite in float32: give finite numbers"
            )
        return array


class RunningObservationScaler(_RunningScaler, ObservationScaler, type="running"):
    """``clip((x - mean) / sqrt(variance + eps), -clip, clip)`` with mean and variance of all steps so far.

    Each element of an observation has its own statistics. In tuples and dicts only float arrays are scaled, because
    integers may be categories, and pixels have their own scaler. Before the first step, values are only clipped.

    `fit_online` and agents update the statistics with every step. On-policy updates use observations as the policy saw
    them, each in the scale of its step; off-policy updates use the newest scale for all. Evaluation, saved models and
    exports do not update them. `fit` fits them to the data, unless the scaler has statistics already.

    Args:
        clip: largest absolute value, above 0; ``None`` for no clipping.
        eps: positive constant that keeps constant elements finite.
        statistics: JSON form of another scaler's statistics; ``None`` to start without any.
        until: number of steps after which the statistics stay as they are; ``None`` for no end. A call of `update` adds
            all of its steps or none.
    """

    _structure: Tree = None  # structure of the networks' observations, if known; `set_state` keeps it

    def __init__(
        self,
        clip: float | None = 10.0,
        eps: float = 1e-8,
        statistics: Sequence[Mapping[str, npt.ArrayLike] | None] | None = None,
        *,
        until: int | None = None,
    ) -> None:
        self._set_limits(clip, eps)
        self.until = check(f"{type(self).__name__}.until", until, int, optional=True, low=1)
        self._leaves: list[Moments | None] | None = None  # None for arrays that are not scaled
        if statistics is not None:
            name = type(self).__name__
            if not isinstance(statistics, list | tuple):
                raise ConfigError(f"{name}.statistics is {statistics!r:.80}; it must be a list, with an item per array")
            self._leaves = [None if each is None else Moments.from_parts(each, self.eps, name) for each in statistics]

    def get_params(self) -> dict[str, Any]:
        """Return limits and statistics."""
        statistics = None if self._leaves is None else [each and each.parts for each in self._leaves]
        return {"clip": self.clip, "eps": self.eps, "statistics": statistics, "until": self.until}

    @property
    def built(self) -> bool:
        """Whether there are statistics of a step."""
        return self.count > 0

    @property
    def count(self) -> int:
        """Number of steps in the statistics."""
        return max((int(each.count) for each in self._leaves or () if each is not None), default=0)

    def prepare(self, shape: Shape, gamma: float) -> None:
        self._structure = shape_map(lambda _: None, shape)
        given, name = list(leaf_shapes(shape)), type(self).__name__
        if self._leaves is None:
            if is_shape(shape):  # which leaves of a tree are scaled depends on the dtypes of the first step
                self._leaves = [Moments(shape, self.eps)]
            return
        shapes = [each and each.shape for each in self._leaves]
        if len(shapes) != len(given) or any(x not in (None, y) for x, y in zip(shapes, given, strict=True)):
            raise ShapeError(
                f"{name} has statistics of shapes {shapes}, but observations have {given}: make a new scaler"
            )

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        self._leaves = None
        for episode in episodes:
            self.update(self._values(episode))
        if not self.built:
            raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")

    def fit_with_env(self, env: GymEnv) -> None:
        """Do nothing: the observations to come are not known yet."""

    def update(self, observations: Tree) -> None:
        """Update the statistics with observations.

        Args:
            observations: tree of arrays ``[n, *shape]``. Parts are matched by name; parts that the networks do not read
                are skipped.

        Raises:
            UnsupportedError: during an update of networks.
            ShapeError: if parts or shapes differ from those of earlier steps.
            NonFiniteError: if there is NaN or infinity.
        """
        self._check_not_frozen()
        parts = match_parts(self._structure, without_mask(as_parts(observations)))
        rows = [np.asarray(leaf) for leaf in tree_leaves(parts)]
        leaves = self._leaves
        if leaves is None:
            scaled = [len(rows) == 1 or leaf.dtype.kind == "f" for leaf in rows]
            shapes = [self._as_rows(leaf, None).shape[1:] for leaf in rows]
            leaves = [Moments(shape, self.eps) if own else None for shape, own in zip(shapes, scaled, strict=True)]
        self._check_leaf_count(len(rows), leaves)
        for each, leaf in zip(leaves, rows, strict=True):
            if each is not None:
                self._as_rows(leaf, (None, *each.shape))
        self._leaves = leaves
        if self.until is not None and self.count >= self.until:
            return
        for each, leaf in zip(leaves, rows, strict=True):
            if each is not None and len(leaf):
                each.add(leaf)

    def transform(self, x: Tree) -> Tree:
        """Scale tensors. Returns float tensors of the same shapes."""
        return self._map_leaves(x, lambda leaf, mean, scale: self._clipped((leaf - mean) / scale), self._clipped)

    def reverse_transform(self, x: Tree) -> Tree:
        """Compute the inverse of `transform`. Clipped values are not restored."""
        return self._map_leaves(x, lambda leaf, mean, scale: leaf * scale + mean, lambda leaf: leaf)

    def _check_leaf_count(self, given: int, leaves: list[Moments | None]) -> None:
        if given != len(leaves):
            raise ShapeError(
                f"{type(self).__name__} has statistics of {len(leaves)} arrays in an observation, not {given}: give "
                "observations with the same parts, or make a new scaler"
            )

    def _map_leaves(
        self, x: Tree, function: Callable[[Tensor, Tensor, Tensor], Tensor], unfitted: Callable[[Tensor], Tensor]
    ) -> Tree:
        """Apply ``function`` to leaves with their means and scales, or ``unfitted`` if there are no statistics."""
        if self._leaves is None:
            return tree_map(lambda leaf: unfitted(as_float(leaf)), x)
        self._check_leaf_count(sum(1 for _ in tree_leaves(x)), self._leaves)
        moments = iter(self._leaves)

        def scaled(leaf: Tensor) -> Tensor:
            statistics, leaf = next(moments), as_float(leaf)
            if statistics is None:
                return leaf
            begin = max(leaf.dim() - len(statistics.shape), 0)
            if tuple(int(size) for size in leaf.shape[begin:]) != statistics.shape:  # int: TorchScript traces tensors
                raise ShapeError(
                    f"{type(self).__name__} is for values of shape {statistics.shape}, got {tuple(leaf.shape)}: give "
                    "observations of that shape, or make a new scaler"
                )
            return function(leaf, *statistics.scale(leaf))

        return tree_map(scaled, x)


class RunningRewardScaler(_RunningScaler, RewardScaler, type="running"):
    """``clip(x / sqrt(variance + eps), -clip, clip)`` with the variance of all discounted returns so far.

    Each environment has a running return, ``R <- gamma * R + reward``, which starts at 0 in each episode. Its mean is
    not subtracted, because that would reward or punish longer episodes. Without statistics, rewards are only clipped.

    `fit_online` updates the statistics: off-policy with every step, on-policy with each rollout, before the update that
    uses it. `fit` fits them to the data, unless the scaler has statistics already. n-step returns require
    ``clip=None``.

    Differs from ``VecNormalize`` of Stable-Baselines3, which scales the rewards of a rollout one by one as they arrive.

    Args:
        clip: largest absolute value, above 0; ``None`` for no clipping.
        gamma: discount factor of one step in [0, 1]; ``None`` for the algorithm's.
        eps: positive constant that keeps rewards finite if all returns are equal.
        statistics: JSON form of another scaler's statistics; ``None`` to start without any.
    """

    __slots__ = ("_returns",)  # running returns; not in `vars`, because compiled updates do not depend on them

    def __init__(
        self,
        clip: float | None = 10.0,
        gamma: float | None = None,
        eps: float = 1e-8,
        statistics: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        self._set_limits(clip, eps)
        name = type(self).__name__
        self.gamma = check(f"{name}.gamma", gamma, float, optional=True, low=0, high=1)
        self._moments = Moments((), self.eps) if statistics is None else Moments.from_parts(statistics, self.eps, name)
        if self._moments.shape:
            raise ConfigError(
                f"{name}.statistics has shape {self._moments.shape}; it must be of numbers, shape (): give those of "
                "another RunningRewardScaler"
            )
        self._returns = np.zeros(0)

    def get_params(self) -> dict[str, Any]:
        """Return limits, discount factor and statistics."""
        return {"clip": self.clip, "gamma": self.gamma, "eps": self.eps, "statistics": self._moments.parts}

    @property
    def built(self) -> bool:
        """Whether there are statistics of a step."""
        return self.count > 0

    @property
    def count(self) -> int:
        """Number of steps in the statistics."""
        return int(self._moments.count)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.clip is None

    def prepare(self, shape: Shape, gamma: float) -> None:
        if self.gamma is None:
            self.gamma = gamma

    def fit_with_episodes(self, episodes: Iterable[Steps]) -> None:
        check("episodes", episodes, Iterable, ": give dataset.episodes")  # type: ignore[type-abstract]
        self._moments = Moments((), self.eps)
        for episode in episodes:
            rewards = self._values(episode)
            self.update(rewards[:, None], np.arange(len(rewards))[:, None] == 0)
        self._returns = np.zeros(0)
        if not self.built:
            raise EmptyDataError("a scaler was to be fitted with no steps at all: give a dataset that holds some")

    def update(self, rewards: npt.ArrayLike, is_first: npt.ArrayLike, valid: npt.ArrayLike | None = None) -> None:
        """Update the statistics with steps of ``n`` environments, the same ones in every call.

        Args:
            rewards: ``[T, n]``, in order.
            is_first: bool ``[T, n]``: an episode starts with this step.
            valid: bool ``[T, n]``: whether a row is a step; ``None`` if all are.

        Raises:
            ConfigError: if there is no discount factor yet.
            UnsupportedError: during an update of networks.
            ShapeError: if the shapes do not fit.
            NonFiniteError: if a reward is NaN or infinite.
        """
        self._check_not_frozen()
        if self.gamma is None:
            raise ConfigError(
                "RunningRewardScaler.gamma is None; it must be a discount factor if no algorithm sets it: give gamma="
            )
        given = self._as_rows(rewards, (None, None)).astype(np.float64)
        first = self._as_rows(is_first, given.shape).astype(bool)
        real = np.ones(given.shape, bool) if valid is None else self._as_rows(valid, given.shape).astype(bool)
        returns = self._returns if len(self._returns) == given.shape[1] else np.zeros(given.shape[1])
        running = np.empty_like(given)
        for reward, starts, row, out in zip(given, first, real, running, strict=True):
            out[:] = returns = np.where(row, np.where(starts, 0.0, returns) * self.gamma + reward, returns)
        self._returns = returns
        if real.any():
            self._moments.add(running[real])

    def transform(self, x: Tensor) -> Tensor:
        """Scale rewards. Returns a float tensor of the same shape."""
        x = as_float(x)
        return self._clipped(x / self._moments.scale(x)[1])

    def reverse_transform(self, x: Tensor) -> Tensor:
        """Compute the inverse of `transform`. Clipped rewards are not restored."""
        x = as_float(x)
        return x * self._moments.scale(x)[1]

    def get_state(self) -> State:
        return {**super().get_state(), "returns": self._returns.copy()}

    def set_state(self, state: State) -> None:
        returns = np.array(state["returns"], np.float64)  # discounted sums of rewards may exceed float32
        if returns.ndim != 1 or not np.isfinite(returns).all():
            raise NonFiniteError(
                f"the saved running returns are {returns!s:.80}; they must be [n], all finite: use a copy"
            )
        super().set_state({name: value for name, value in state.items() if name != "returns"})
        self._returns = returns
