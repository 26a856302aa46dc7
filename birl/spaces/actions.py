"""Quantities, and one choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from birl.errors import ActionError
from birl.types import FLOAT32_MAX, ActionSpace, Array, Leaf

_ROUNDING: Final = 1e-5
"""How far beyond a bound an action may lie, relative to the bound (or to 1)."""

_NO_BOUND: Final = 1e30
"""Bounds from here on are as good as none."""


def all_finite(array: Array) -> bool:
    """Whether a float array holds no NaN, no infinity and nothing beyond the range of float32."""
    # A number that is not finite leaves no finite sum of squares; only a large sum needs a closer look.
    # Of float16, neither sum nor limit fits into the array's own dtype.
    return float(np.vdot(array, array)) < FLOAT32_MAX or bool((np.abs(array) <= np.float64(FLOAT32_MAX)).all())


def first_false(rows: Array) -> int | None:
    """Index of the first of ``rows`` ``[n, …]`` that is not true throughout."""
    return None if rows.all() else int(np.flatnonzero(~rows.reshape(len(rows), -1).all(1))[0])


def are_whole(numbers: Array) -> Any:
    """Which numbers are whole."""
    return numbers == np.floor(numbers) if numbers.dtype.kind == "f" else True


def whole_numbers(logged: Array) -> Array:
    """Whole numbers as integers.

    Raises:
        ActionError: for numbers that are not whole.
    """
    if not np.all(are_whole(logged)):
        wrong = logged[~are_whole(logged)][0]
        raise ActionError(f"action_space is DISCRETE but there is an action {wrong}: whole numbers are allowed")
    return logged if logged.dtype.kind in "iu" else logged.astype(np.int64)


@dataclass(frozen=True)
class Continuous:
    """Vectors of ``size`` numbers: quantities, which can be scaled and clipped.

    Only an environment knows bounds, and networks do not depend on them: values with other bounds are equal.

    Attributes:
        size: number of dimensions.
        low, high: bounds, ``[size]``.
        whole: whether an environment takes integers: actions are rounded on the way to it.
        free: whether it has no bounds, though parts beside it may: see `birl.spaces.Composite`.
    """

    size: int
    low: Any = field(default=np.float32(-np.inf), compare=False)
    high: Any = field(default=np.float32(np.inf), compare=False)
    whole: bool = field(default=False, compare=False)
    free: bool = field(default=False, compare=False)

    kind: ClassVar = ActionSpace.CONTINUOUS
    discrete: ClassVar = False
    options: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return f"{self.size} action dimension{'s' * (self.size > 1)}"

    @property
    def told(self) -> Any:
        """The ``action_size`` that stands for these actions in arguments and files; see `actions_told`."""
        return self.size

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action as policies give it."""
        return (self.size,)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the numbers of a stored action begin to count."""
        return (0,) * self.size

    @property
    def leaf(self) -> Leaf:
        """Shape and dtype of a stored action."""
        return Leaf(self.shape, self.low.dtype)

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Least and greatest action, if all dimensions have bounds."""
        bounded = (np.abs(self.low) < _NO_BOUND).all() and (np.abs(self.high) < _NO_BOUND).all()
        return (self.low, self.high) if bounded else None

    def takes(self, other: Any) -> bool:
        """Whether networks for these actions can learn from data with ``other`` actions."""
        return self == other

    def wider(self, other: Any) -> Any:
        """The actions of data with these and ``other`` ones."""
        return self

    def stored(self, logged: Array) -> Array:
        """Logged actions ``[N, A]`` as they are stored: floats, in their own precision."""
        return logged if logged.dtype.kind == "f" else logged.astype(np.float32)

    def from_stored(self, stored: Tensor) -> Tensor:
        """Stored actions ``[..., *leaf.shape]`` as policies give them: ``[..., *shape]``."""
        return stored.to(torch.float32)

    def given(self, action: Tensor) -> Tensor:
        """Actions ``[..., *shape]`` of a policy as environments take them."""
        return action

    def within(self, action: Tensor) -> Tensor:
        """Actions ``[..., *shape]`` of a policy in its range, [-1, 1]."""
        return action.clamp(-1, 1)

    def as_input(self, action: Tensor) -> Tensor:
        """Actions ``[..., *shape]`` as networks read them: ``[..., size]``."""
        return action

    def greedy(self, output: Any) -> Any:
        """The action ``[..., *shape]`` that a network's output ``[..., size]`` stands for."""
        return output

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random actions ``[n, size]``; standard normal where there are no bounds."""
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, self.low, 0.0), np.where(bounded, self.high, 0.0)
        uniform = generator.uniform(low, high, size=(n, self.size))
        normal = np.clip(generator.standard_normal((n, self.size)), self.low, self.high)
        return self._rounded(np.where(bounded, uniform, normal).astype(np.float32))

    def clip(self, action: Array) -> Array:
        """Actions within the bounds."""
        return self._rounded(np.clip(action, self.low, self.high))

    def _rounded(self, action: Array) -> Array:
        return np.rint(action) if self.whole else action

    def outside(self, action: Array) -> int | None:
        """Index of the first action that is not finite, or beyond the bounds by more than rounding."""
        if (action >= self.low).all() and (action <= self.high).all() and all_finite(action):
            return None  # the usual case
        inside = (action >= self.low - _ROUNDING * np.maximum(np.abs(self.low), 1.0)) & np.isfinite(action)
        return first_false(inside & (action <= self.high + _ROUNDING * np.maximum(np.abs(self.high), 1.0)))

    @property
    def allowed(self) -> str:
        """The actions that are not `outside`, in words."""
        return f"finite numbers from {self.low.tolist()!s:.100} to {self.high.tolist()!s:.100}"


@dataclass(frozen=True)
class Discrete:
    """``size`` choices, which environments and data count from ``start``. See `Continuous` for the shared answers."""

    size: int
    start: int = 0

    kind: ClassVar = ActionSpace.DISCRETE
    discrete: ClassVar = True
    whole: ClassVar = False
    shape: ClassVar[tuple[int, ...]] = ()
    leaf: ClassVar = Leaf((1,), np.dtype(np.int64))
    bounds: ClassVar = None

    def __str__(self) -> str:
        first = f" from {self.start}" if self.start else ""
        return f"{self.size} discrete action{'s' * (self.size > 1)}{first}"

    @property
    def told(self) -> Any:
        """See `Continuous.told`."""
        return {"size": self.size, "start": self.start} if self.start else self.size

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the numbers of a stored action begin."""
        return (self.start,)

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each choice has. A mask has a number for each of them, one choice after another."""
        return (self.size,)

    @property
    def log_count(self) -> float:
        """Logarithm of the number of different actions."""
        return math.log(self.size)

    def takes(self, other: Any) -> bool:
        """Whether ``other`` has no further choices: data need not show all of them."""
        return isinstance(other, Discrete) and other.start == self.start and other.size <= self.size

    def wider(self, other: Any) -> Any:
        """See `Continuous.wider`."""
        return other if other.takes(self) else self

    def stored(self, logged: Array) -> Array:
        """Whole numbers ``[N, 1]`` as integers.

        Raises:
            ActionError: for more than one number per step, and for numbers that are not whole.
        """
        if logged.shape[1] != 1:
            raise ActionError(
                f"the shape of discrete actions is {logged.shape}; it must be (N,) or (N, 1): give one number per step"
            )
        return whole_numbers(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        """int64 ``[...]`` from integers ``[..., 1]``."""
        choice = stored.select(-1, 0).to(torch.int64)
        # padding is 0, which is no choice if these begin elsewhere; what is stored was checked
        return (choice - self.start).clamp(0, self.size - 1) if self.start else choice

    def given(self, action: Tensor) -> Tensor:
        """See `Continuous.given`."""
        return action + self.start if self.start else action

    def within(self, action: Tensor) -> Tensor:
        """Choices have no range."""
        return action

    def as_input(self, action: Tensor) -> Tensor:
        """One-hot vectors."""
        # one_hot() would look at the values on the host
        return (action.unsqueeze(-1) == torch.arange(self.size, device=action.device)).float()

    def greedy(self, output: Any) -> Any:
        """The choice with the largest output, the first of several."""
        return output.argmax(-1)

    def branched(self, values: Tensor) -> Tensor:
        """Outputs ``[..., size]`` by choice; see `MultiDiscrete.branched`."""
        return values

    def branched_mask(self, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """A mask ``[..., size]`` by choice; see `MultiDiscrete.branched_mask`."""
        return mask

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random int64 ``[n]``, of those that are ``allowed`` ``[n, size]``."""
        if allowed is None:
            return generator.integers(self.start, self.start + self.size, size=n)
        return self.start + np.where(allowed, generator.random((n, self.size)), -1.0).argmax(-1)

    def clip(self, action: Array) -> Array:
        """The choices themselves."""
        return action

    def outside(self, action: Array) -> int | None:
        """Index of the first number that is no choice."""
        return first_false((action >= self.start) & (action < self.start + self.size) & are_whole(action))

    def masked_out(self, action: Array, allowed: Array) -> int | None:
        """Index of the first of ``action`` ``[n, …]`` that is not ``allowed`` ``[n, size]``."""
        return first_false(np.take_along_axis(allowed, action.reshape(-1, 1) - self.start, 1)[:, 0])

    @property
    def allowed(self) -> str:
        """The choices, in words."""
        return f"integers from {self.start} to {self.start + self.size - 1}"
