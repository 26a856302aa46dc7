"""Kinds of actions: `Continuous`, `Discrete`, `MultiDiscrete` and `Composite`.

All kinds have the same properties and methods, which `Continuous` documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from birl.errors import ActionError
from birl.types import FLOAT32_MAX, ActionSpace, Array, ArraySpec, fill_empty_mask

if TYPE_CHECKING:
    from torch import Tensor

_TOLERANCE: Final = 1e-5
"""Largest distance of a valid action from the bounds, relative to the bound (or to 1)."""

_INFINITE: Final = 1e30
"""Larger bounds count as infinite."""

_DOUBLE: Final = np.dtype(np.float64)


def all_finite(array: Array) -> bool:
    """Return whether all numbers of a float array are finite in float32."""
    # If the sum of squares is finite, so is every number; only a large sum needs the slower check.
    # float64, because the limit exceeds float16.
    return float(np.vdot(array, array)) < FLOAT32_MAX or bool((np.abs(array) <= np.float64(FLOAT32_MAX)).all())


def first_not_finite(array: Array) -> int | None:
    """Return the index of the first row of an array ``[n, …]`` that is not finite in float32; ``None`` if all are."""
    if array.dtype.kind != "f" or all_finite(array):
        return None
    return int((np.abs(array) <= np.float64(FLOAT32_MAX)).reshape(len(array), -1).all(1).argmin())


def inner_bounds(low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[Array, Array]:
    """Return the outermost bounds that float32 represents exactly and that are not beyond ``low`` and ``high``.

    Rounding 0.3 to float32 gives 0.30000001, which an environment with this bound refuses. Bounds without a float32
    between them stay as they are.
    """
    least, most = np.asarray(low), np.asarray(high)
    inner_low, inner_high = (
        np.where(np.isfinite(each), np.clip(each, -FLOAT32_MAX, FLOAT32_MAX), each).astype(np.float32)
        for each in (least, most)
    )
    inner_low = np.where(inner_low < least, np.nextafter(inner_low, np.float32(np.inf)), inner_low)
    inner_high = np.where(inner_high > most, np.nextafter(inner_high, np.float32(-np.inf)), inner_high)
    exist = inner_low <= inner_high
    return np.where(exist, inner_low, least).astype(least.dtype), np.where(exist, inner_high, most).astype(most.dtype)


def first_false(rows: Array) -> int | None:
    """Return the index of the first of ``rows`` ``[n, …]`` that holds False, or ``None``."""
    return None if rows.all() else int(np.flatnonzero(~rows.reshape(len(rows), -1).all(1))[0])


def is_integral(numbers: Array) -> Array:
    """Return a mask of the integers among ``numbers``."""
    return np.equal(numbers, np.floor(numbers)) if numbers.dtype.kind == "f" else np.ones(numbers.shape, np.bool_)


def to_integers(logged: Array) -> Array:
    """Convert integral numbers to an integer dtype.

    Raises:
        ActionError: if a number is not integral.
    """
    if not is_integral(logged).all():
        wrong = logged[~is_integral(logged)][0]
        raise ActionError(
            f"the discrete action {wrong} is not an integer; only integers are allowed: encode the actions as integers"
        )
    return logged if logged.dtype.kind in "iu" else logged.astype(np.int64)


@dataclass(frozen=True)
class Continuous:
    """Vectors of ``size`` real numbers, which can be scaled and clipped.

    Networks do not depend on bounds, so instances that differ only in bounds are equal.

    Attributes:
        size: number of dimensions.
        low, high: bounds, ``[size]``.
        integral: whether the environment takes integers; actions are then rounded for it.
        unbounded: whether this part of a `Composite` has no bounds.
    """

    size: int
    low: Array | np.floating[Any] = field(default=np.float32(-np.inf), compare=False)
    high: Array | np.floating[Any] = field(default=np.float32(np.inf), compare=False)
    integral: bool = field(default=False, compare=False)
    unbounded: bool = field(default=False, compare=False)

    kind: ClassVar = ActionSpace.CONTINUOUS
    discrete: ClassVar = False
    options: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return f"{self.size} action dimension{'s' * (self.size > 1)}"

    @property
    def size_argument(self) -> SizeArgument:
        """The ``action_size`` of these actions in arguments and files; see `birl.spaces.parse_actions`."""
        return self.size

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action of a policy."""
        return (self.size,)

    @property
    def starts(self) -> tuple[int, ...]:
        """First value of each number of a stored action."""
        return (0,) * self.size

    @property
    def storage_spec(self) -> ArraySpec:
        """Shape and dtype of a stored action."""
        return ArraySpec(self.shape, self.low.dtype)

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Lowest and highest action, if all dimensions have bounds; else ``None``."""
        return (np.asarray(self.low), np.asarray(self.high)) if self._bounded.all() else None

    @property
    def _bounded(self) -> Array:
        """Bool ``[size]``: the dimensions with both bounds."""
        return np.asarray((np.abs(self.low) < _INFINITE) & (np.abs(self.high) < _INFINITE))

    def accepts(self, other: Actions) -> bool:
        """Return whether networks for these actions can learn from data with ``other`` actions."""
        return self == other

    def widen(self, other: Actions) -> Actions:
        """Return the actions of a dataset that has both these actions and ``other`` ones."""
        return self

    def to_stored(self, logged: Array) -> Array:
        """Convert logged actions ``[N, A]`` to the stored form: floats, in their own precision."""
        return logged if logged.dtype.kind == "f" else logged.astype(np.float32)

    def from_stored(self, stored: Tensor) -> Tensor:
        """Convert stored actions ``[..., *storage_spec.shape]`` to those of policies, ``[..., *shape]``."""
        return stored.to(torch.float32)

    def to_environment(self, action: Tensor) -> Tensor:
        """Convert actions ``[..., *shape]`` of a policy to the numbers of the environment."""
        return action

    def clamp(self, action: Tensor) -> Tensor:
        """Clamp continuous actions ``[..., *shape]`` of a policy to its range, [-1, 1]."""
        return action.clamp(-1, 1)

    def as_input(self, action: Tensor) -> Tensor:
        """Encode actions ``[..., *shape]`` as inputs of networks, ``[..., size]``."""
        return action

    def greedy(self, output: Tensor) -> Tensor:
        """Return the greedy action ``[..., *shape]`` for a network's output ``[..., size]``."""
        return output

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Sample actions ``[n, size]`` uniformly, or from a standard normal distribution where there are no bounds."""
        bounded = self._bounded
        low, high = np.where(bounded, self.low, 0.0), np.where(bounded, self.high, 0.0)
        uniform = generator.uniform(low, high, size=(n, self.size))
        normal = np.clip(generator.standard_normal((n, self.size)), *self._inner_bounds)
        sampled = np.where(bounded, uniform, normal)
        if self.low.dtype == _DOUBLE:
            sampled = np.clip(sampled, *self._inner_bounds)
        return self._round(sampled.astype(np.float32))

    def clip(self, action: Array) -> Array:
        """Clip actions of the environment to its bounds. In float32, the results do not exceed them either."""
        return self._round(np.clip(action, *self._inner_bounds))

    @property
    def _inner_bounds(self) -> tuple[Array | np.floating[Any], Array | np.floating[Any]]:
        return (self.low, self.high) if self.low.dtype != _DOUBLE else inner_bounds(self.low, self.high)

    def _round(self, action: Array) -> Array:
        return np.rint(action) if self.integral else action

    def first_outside(self, action: Array) -> int | None:
        """Return the index of the first invalid action: not finite, or outside the bounds by more than rounding."""
        if (action >= self.low).all() and (action <= self.high).all() and all_finite(action):
            return None  # the usual case
        inside = (action >= self.low - _TOLERANCE * np.maximum(np.abs(self.low), 1.0)) & np.isfinite(action)
        return first_false(inside & (action <= self.high + _TOLERANCE * np.maximum(np.abs(self.high), 1.0)))

    @property
    def valid_range(self) -> str:
        """Description of the valid actions."""
        return f"finite numbers from {self.low.tolist()!s:.100} to {self.high.tolist()!s:.100}"


ONE_HOT: Final = ". They look one-hot: give np.argmax(actions, axis=1)"
"""Advice for actions of which `is_one_hot` is true."""


def is_one_hot(actions: Array) -> bool:
    """Return whether actions ``[N, A]`` look like one-hot vectors: each has one 1, and all other numbers are 0."""
    if actions.ndim != 2 or actions.shape[1] < 2 or len(actions) < 2:
        return False
    if not (((actions == 0) | (actions == 1)).all() and (actions.sum(1) == 1).all()):
        return False
    return bool((actions != actions[0]).any())


@dataclass(frozen=True)
class Discrete:
    """A choice of ``size`` options, numbered from ``start`` in environments and data."""

    size: int
    start: int = 0

    kind: ClassVar = ActionSpace.DISCRETE
    discrete: ClassVar = True
    integral: ClassVar = False
    shape: ClassVar[tuple[int, ...]] = ()
    storage_spec: ClassVar = ArraySpec((1,), np.dtype(np.int64))
    bounds: ClassVar = None

    def __str__(self) -> str:
        first = f" from {self.start}" if self.start else ""
        return f"{self.size} discrete action{'s' * (self.size > 1)}{first}"

    @property
    def size_argument(self) -> SizeArgument:
        """See `Continuous.size_argument`."""
        return {"size": self.size, "start": self.start} if self.start else self.size

    @property
    def starts(self) -> tuple[int, ...]:
        """See `Continuous.starts`."""
        return (self.start,)

    @property
    def options(self) -> tuple[int, ...]:
        """Number of options of each choice. A mask has a number for each option, in the same order."""
        return (self.size,)

    @property
    def log_count(self) -> float:
        """Logarithm of the number of distinct actions."""
        return math.log(self.size)

    def accepts(self, other: Actions) -> bool:
        """Return whether ``other`` has no additional options; it may have fewer."""
        return isinstance(other, Discrete) and other.start == self.start and other.size <= self.size

    def widen(self, other: Actions) -> Actions:
        """See `Continuous.widen`."""
        return other if other.accepts(self) else self

    def to_stored(self, logged: Array) -> Array:
        """Convert integral numbers ``[N, 1]`` to integers.

        Raises:
            ActionError: if a step has several numbers, or a number is not integral.
        """
        if logged.shape[1] != 1:
            hint = ONE_HOT if is_one_hot(logged) else ": give one number per step"
            raise ActionError(f"the shape of discrete actions is {logged.shape}; it must be (N,) or (N, 1){hint}")
        return to_integers(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        """Convert integers ``[..., 1]`` to int64 ``[...]`` from 0."""
        choice = stored.select(-1, 0).to(torch.int64)
        # padding is 0, which is not an option if start > 0; stored actions are valid
        return (choice - self.start).clamp(0, self.size - 1) if self.start else choice

    def to_environment(self, action: Tensor) -> Tensor:
        """See `Continuous.to_environment`."""
        return action + self.start if self.start else action

    def clamp(self, action: Tensor) -> Tensor:
        """Return the choices unchanged."""
        return action

    def as_input(self, action: Tensor) -> Tensor:
        """Encode choices as one-hot vectors."""
        # one_hot() would synchronise with the host
        return (action.unsqueeze(-1) == torch.arange(self.size, device=action.device)).float()

    def greedy(self, output: Tensor) -> Tensor:
        """Return the choice with the largest output, the first one of several."""
        return output.argmax(-1)

    def to_branches(self, values: Tensor) -> Tensor:
        """Return the outputs unchanged; see `MultiDiscrete.to_branches`."""
        return values

    def mask_to_branches(self, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """Return the mask unchanged; see `MultiDiscrete.mask_to_branches`."""
        return mask

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Sample int64 ``[n]`` uniformly among the options that are ``allowed`` ``[n, size]``."""
        if allowed is None:
            return generator.integers(self.start, self.start + self.size, size=n)
        return self.start + np.where(allowed, generator.random((n, self.size)), -1.0).argmax(-1)

    def clip(self, action: Array) -> Array:
        """Return the choices unchanged."""
        return action

    def first_outside(self, action: Array) -> int | None:
        """Return the index of the first number that is not an option."""
        return first_false((action >= self.start) & (action < self.start + self.size) & is_integral(action))

    def first_masked(self, action: Array, allowed: Array) -> int | None:
        """Return the index of the first of ``action`` ``[n, …]`` that is not ``allowed`` ``[n, size]``."""
        return first_false(np.take_along_axis(allowed, action.reshape(-1, 1) - self.start, 1)[:, 0])

    @property
    def valid_range(self) -> str:
        """See `Continuous.valid_range`."""
        return f"integers from {self.start} to {self.start + self.size - 1}"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several simultaneous choices with ``sizes`` options, numbered from ``starts``.

    Networks have an output for each option of each choice, not for each combination.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...] = ()

    kind: ClassVar = ActionSpace.MULTI_DISCRETE
    discrete: ClassVar = True
    integral: ClassVar = False
    bounds: ClassVar = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(self.starts) if any(self.starts) else (0,) * len(self.sizes))

    def __str__(self) -> str:
        first = f" from {list(self.starts)}" if any(self.starts) else ""
        return f"{len(self.sizes)} choices of {list(self.sizes)} options{first}"

    @property
    def size_argument(self) -> SizeArgument:
        """See `Continuous.size_argument`."""
        sizes, starts = list(self.sizes), list(self.starts)
        return {"size": sizes, "start": starts} if any(starts) else sizes

    @property
    def parts(self) -> tuple[Discrete, ...]:
        """The single choices."""
        return tuple(map(Discrete, self.sizes, self.starts))

    @property
    def options(self) -> tuple[int, ...]:
        """See `Discrete.options`."""
        return self.sizes

    @property
    def size(self) -> int:
        """Total number of options."""
        return sum(self.sizes)

    @property
    def log_count(self) -> float:
        """Logarithm of the number of distinct actions."""
        return sum(map(math.log, self.sizes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action of a policy."""
        return (len(self.sizes),)

    @property
    def storage_spec(self) -> ArraySpec:
        """Shape and dtype of a stored action."""
        return ArraySpec(self.shape, np.dtype(np.int64))

    def accepts(self, other: Actions) -> bool:
        """See `Continuous.accepts`."""
        same = isinstance(other, MultiDiscrete) and len(other.parts) == len(self.parts)
        return same and all(map(Discrete.accepts, self.parts, other.parts))  # type: ignore[union-attr]

    def widen(self, other: Actions) -> Actions:
        """See `Continuous.widen`."""
        if not isinstance(other, MultiDiscrete) or other.starts != self.starts:
            return self
        return MultiDiscrete(tuple(map(max, self.sizes, other.sizes)), self.starts)

    def to_stored(self, logged: Array) -> Array:
        """Convert integral numbers ``[N, D]`` to integers."""
        return to_integers(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        """See `Continuous.from_stored`."""
        if not any(self.starts):
            return stored.to(torch.int64)
        columns = zip(self.parts, stored.split(1, -1), strict=True)
        return torch.stack([part.from_stored(each) for part, each in columns], -1)

    def to_environment(self, action: Tensor) -> Tensor:
        """See `Continuous.to_environment`."""
        if not any(self.starts):
            return action
        return torch.stack(
            [part.to_environment(each) for part, each in zip(self.parts, action.unbind(-1), strict=True)], -1
        )

    def clamp(self, action: Tensor) -> Tensor:
        """Return the choices unchanged."""
        return action

    def as_input(self, action: Tensor) -> Tensor:
        """Encode choices as concatenated one-hot vectors."""
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, action.unbind(-1), strict=True)], -1)

    def greedy(self, output: Tensor) -> Tensor:
        """See `Continuous.greedy`."""
        return torch.stack([each.argmax(-1) for each in output.split(self.sizes, -1)], -1)

    def to_branches(self, values: Tensor) -> Tensor:
        """Arrange outputs ``[..., size]`` by choice: ``[..., D, A]``, padded with 0 to the most options."""
        if len(set(self.sizes)) == 1:
            return values.unflatten(-1, (len(self.sizes), self.sizes[0]))
        most = max(self.sizes)
        pad = torch.nn.functional.pad
        return torch.stack([pad(each, (0, most - each.shape[-1])) for each in values.split(self.sizes, -1)], -2)

    def mask_to_branches(self, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """Arrange a mask ``[..., size]`` by choice: bool ``[..., D, A]``.

        Args:
            mask: ``None`` if all options are allowed. The result is ``None`` as well if all choices have equally many.
            like: any tensor on the device.
        """
        if mask is not None:
            return self.to_branches(torch.cat(choice_masks(self, mask), -1))
        every = torch.ones(self.size, dtype=torch.bool, device=like.device)
        return None if len(set(self.sizes)) == 1 else self.to_branches(every)

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Sample int64 ``[n, D]`` uniformly among the options that are ``allowed`` ``[n, size]``."""
        masks = _part_masks(self, allowed)
        return np.stack([part.sample(n, generator, each) for part, each in zip(self.parts, masks, strict=True)], -1)

    def clip(self, action: Array) -> Array:
        """Return the choices unchanged."""
        return action

    def first_outside(self, action: Array) -> int | None:
        """Return the index of the first action with a number that is not an option."""
        start = np.asarray(self.starts)
        return first_false((action >= start) & (action < start + self.sizes) & is_integral(action))

    def first_masked(self, action: Array, allowed: Array) -> int | None:
        """Return the index of the first of ``action`` ``[n, D]`` that is not ``allowed`` ``[n, size]``."""
        return _first_masked(self, np.split(action, len(self.parts), -1), allowed)

    @property
    def valid_range(self) -> str:
        """Description of the valid actions."""
        last = [start + size - 1 for start, size in zip(self.starts, self.sizes, strict=True)]
        return f"integers from {list(self.starts)} to {last}"


@dataclass(frozen=True)
class Composite:
    """Simultaneous discrete and continuous actions: those of ``parts``, concatenated.

    An action is one row of floats, in which a discrete part is the number of the option.
    """

    parts: tuple[Continuous | Discrete, ...]

    kind: ClassVar = ActionSpace.COMPOSITE
    discrete: ClassVar = False

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))

    @property
    def size_argument(self) -> SizeArgument:
        """See `Continuous.size_argument`."""
        entries: list[dict[str, Any]] = []
        for part in self.parts:
            unbounded = {"unbounded": True} if isinstance(part, Continuous) and part.unbounded else {}
            entries.append({"kind": part.kind.value, "size": part.size_argument, **unbounded})
        return {"parts": entries}

    @property
    def size(self) -> int:
        """Total number of outputs."""
        return sum(part.size for part in self.parts)

    @property
    def options(self) -> tuple[int, ...]:
        """See `Discrete.options`."""
        return tuple(part.size for part in self.parts if part.discrete)

    @property
    def widths(self) -> list[int]:
        """Number of columns of each part."""
        return [math.prod(part.shape) for part in self.parts]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action of a policy."""
        return (sum(self.widths),)

    @property
    def storage_spec(self) -> ArraySpec:
        """Shape and dtype of a stored action."""
        return ArraySpec(self.shape, np.dtype(np.float32))

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Lowest and highest action: -1 and 1, which scalers leave unchanged, for choices and for unbounded parts."""
        low, high = -np.ones(self.shape, np.float32), np.ones(self.shape, np.float32)
        for part, least, greatest in zip(self.parts, self.split_columns(low), self.split_columns(high), strict=True):
            if part.bounds is not None:
                least[...], greatest[...] = part.bounds
        return low, high

    @property
    def choices(self) -> Array:
        """Bool ``[W]``: the columns of discrete parts."""
        return np.repeat([part.discrete for part in self.parts], self.widths)

    @property
    def integral(self) -> bool:
        """Whether the environment takes integers in a continuous part."""
        return any(part.integral for part in self.parts)

    def split_columns(self, rows: Array) -> list[Array]:
        """Split rows into the columns of each part."""
        return np.split(rows, np.cumsum(self.widths)[:-1], -1)

    def split(self, action: Tensor) -> list[Tensor]:
        """Split actions ``[..., W]`` into those of each part, ``[..., *part.shape]``."""
        columns = action.split(self.widths, -1)
        return [
            (each if part.shape else each.squeeze(-1)).to(torch.int64 if part.discrete else each.dtype)
            for part, each in zip(self.parts, columns, strict=True)
        ]

    def join(self, actions: Sequence[Tensor]) -> Tensor:
        """Concatenate the actions of the parts; the inverse of `split`."""
        pairs = zip(self.parts, actions, strict=True)
        return torch.cat([(each if part.shape else each.unsqueeze(-1)).to(torch.float32) for part, each in pairs], -1)

    def accepts(self, other: Actions) -> bool:
        """See `Continuous.accepts`."""
        same = isinstance(other, Composite) and len(other.parts) == len(self.parts)
        return same and all(own.accepts(each) for own, each in zip(self.parts, other.parts, strict=True))  # type: ignore[union-attr]

    def widen(self, other: Actions) -> Actions:
        """See `Continuous.widen`."""
        if not isinstance(other, Composite) or len(other.parts) != len(self.parts):
            return self
        return Composite(tuple(own.widen(each) for own, each in zip(self.parts, other.parts, strict=True)))  # type: ignore[misc]

    def to_stored(self, logged: Array) -> Array:
        """Convert rows ``[N, W]`` to floats.

        Raises:
            ActionError: if the number of an option is not integral.
        """
        if logged.shape[1:] == self.shape:  # the caller checks shapes
            for part, column in zip(self.parts, self.split_columns(logged), strict=True):
                if part.discrete:
                    to_integers(column)
        return logged.astype(np.float32)

    def from_stored(self, stored: Tensor) -> Tensor:
        """See `Continuous.from_stored`."""
        stored = stored.to(torch.float32)
        if not any(self._starts):
            return stored
        columns = zip(self.parts, stored.split(self.widths, -1), strict=True)
        return self.join([part.from_stored(each) for part, each in columns])

    def to_environment(self, action: Tensor) -> Tensor:
        """See `Continuous.to_environment`."""
        return action + action.new_tensor(self._starts) if any(self._starts) else action

    @property
    def _starts(self) -> list[int]:
        return [start for part in self.parts for start in part.starts]

    def clamp(self, action: Tensor) -> Tensor:
        """Clamp the continuous parts that have bounds to [-1, 1]."""
        columns = zip(self.parts, action.split(self.widths, -1), strict=True)
        unbounded = [isinstance(part, Continuous) and part.unbounded for part in self.parts]
        return torch.cat([x if own else part.clamp(x) for (part, x), own in zip(columns, unbounded, strict=True)], -1)

    def as_input(self, action: Tensor) -> Tensor:
        """See `Continuous.as_input`."""
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, self.split(action), strict=True)], -1)

    def greedy(self, output: Tensor) -> Tensor:
        """See `Continuous.greedy`."""
        outputs = output.split([part.size for part in self.parts], -1)
        return self.join([part.greedy(each) for part, each in zip(self.parts, outputs, strict=True)])

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Sample rows ``[n, W]``; see the parts."""
        masks = _part_masks(self, allowed)
        rows = [part.sample(n, generator, each).reshape(n, -1) for part, each in zip(self.parts, masks, strict=True)]
        return np.concatenate(rows, -1, dtype=np.float32)

    def clip(self, action: Array) -> Array:
        """See `Continuous.clip`."""
        columns = self.split_columns(action)
        return np.concatenate([part.clip(each) for part, each in zip(self.parts, columns, strict=True)], -1)

    def first_outside(self, action: Array) -> int | None:
        """See `Continuous.first_outside`."""
        found = [part.first_outside(each) for part, each in zip(self.parts, self.split_columns(action), strict=True)]
        return min((each for each in found if each is not None), default=None)

    def first_masked(self, action: Array, allowed: Array) -> int | None:
        """See `MultiDiscrete.first_masked`."""
        return _first_masked(self, self.split_columns(action), allowed)

    @property
    def valid_range(self) -> str:
        """Description of the valid actions."""
        return "; ".join(part.valid_range for part in self.parts)


def split_mask(actions: Actions, allowed: Array) -> list[Array]:
    """Split a mask ``[..., sum(options)]`` into those of the choices."""
    return np.split(allowed, np.cumsum(actions.options)[:-1], -1)


def choice_masks(actions: Actions, mask: Tensor) -> list[Tensor]:
    """Split a mask into those of the choices. A choice without options, as after the end of an episode, gets all."""
    return [fill_empty_mask(each) for each in mask.split(actions.options, -1)]


def _part_masks(actions: MultiDiscrete | Composite, allowed: Array | None) -> list[Array | None]:
    """Return the mask of each part; ``None`` for a continuous part, or if everything is allowed."""
    masks = iter(() if allowed is None else split_mask(actions, allowed))
    return [next(masks, None) if part.discrete else None for part in actions.parts]


def _first_masked(actions: MultiDiscrete | Composite, columns: list[Array], allowed: Array) -> int | None:
    parts = zip(actions.parts, columns, _part_masks(actions, allowed), strict=True)
    found = [
        part.first_masked(each.astype(np.int64), own)
        for part, each, own in parts
        if isinstance(part, Discrete) and own is not None
    ]
    return min((each for each in found if each is not None), default=None)


Actions: TypeAlias = Continuous | Discrete | MultiDiscrete | Composite
SizeArgument: TypeAlias = "int | list[int] | dict[str, Any]"
