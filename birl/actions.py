"""Actions: what they are, as values.

A kind of actions is a value that answers for its actions: how data store them, what networks read and put out, how they
are drawn and checked. `actions_of` reads it from environments, `actions_told` from arguments and files. Another kind
is a class here and a line in both; heads and distributions for it are in `birl.models`.

An action has three forms. Environments take it, and data store it, in their own numbers, one ``leaf`` for each step.
Policies give it in ``shape``: choices counted from 0. Networks have ``size`` outputs for it, and read as many numbers
of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from torch import Tensor

from birl.errors import ActionError, ConfigError, EnvironmentMismatchError, ShapeError
from birl.types import FLOAT32_MAX, MASK, ActionSpace, Array, Leaf, Tree

_ROUNDING: Final = 1e-5
"""How far beyond a bound an action may lie, relative to the bound (or to 1)."""

_NO_BOUND: Final = 1e30
"""Bounds from here on are as good as none."""

_MOST_ACTIONS: Final = 1_000_000
"""Sizes above this are not inferred: a network needs an output for each action, so such numbers are likely ids."""


def all_finite(array: Array) -> bool:
    """Whether a float array holds no NaN, no infinity and nothing beyond the range of float32."""
    # A number that is not finite leaves no finite sum of squares; only a large sum needs a closer look.
    return bool(np.vdot(array, array) < FLOAT32_MAX) or bool((np.abs(array) <= FLOAT32_MAX).all())


def _first(rows: Array) -> int | None:
    """Index of the first of ``rows`` ``[n, …]`` that is not true throughout."""
    return None if rows.all() else int(np.flatnonzero(~rows.reshape(len(rows), -1).all(1))[0])


def _whole(logged: Array) -> Array:
    """Whole numbers as integers.

    Raises:
        ActionError: for numbers that are not whole.
    """
    if logged.dtype.kind == "f" and not np.array_equal(logged, np.floor(logged)):
        wrong = logged[logged != np.floor(logged)][0]
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
    """

    size: int
    low: Any = field(default=np.float32(-np.inf), compare=False)
    high: Any = field(default=np.float32(np.inf), compare=False)
    whole: bool = field(default=False, compare=False)

    kind: ClassVar = ActionSpace.CONTINUOUS
    discrete: ClassVar = False

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
    def leaf(self) -> Leaf:
        """Shape and dtype of a stored action."""
        return Leaf(self.shape, self.low.dtype)

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Least and greatest action, if all dimensions have bounds."""
        bounded = (np.abs(self.low) < _NO_BOUND).all() and (np.abs(self.high) < _NO_BOUND).all()
        return (self.low, self.high) if bounded else None

    def takes(self, other: Actions) -> bool:
        """Whether networks for these actions can learn from data with ``other`` actions."""
        return self == other

    def wider(self, other: Actions) -> Actions:
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
        return _first(inside & (action <= self.high + _ROUNDING * np.maximum(np.abs(self.high), 1.0)))

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
        return {"size": self.size, "start": self.start} if self.start else self.size

    @property
    def log_count(self) -> float:
        """Logarithm of the number of different actions."""
        return math.log(self.size)

    def takes(self, other: Actions) -> bool:
        """Whether ``other`` has no further choices: data need not show all of them."""
        return isinstance(other, Discrete) and other.start == self.start and other.size <= self.size

    def wider(self, other: Actions) -> Actions:
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
        return _whole(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        """int64 ``[...]`` from integers ``[..., 1]``."""
        choice = stored.select(-1, 0).to(torch.int64)
        return choice - self.start if self.start else choice

    def given(self, action: Tensor) -> Tensor:
        return action + self.start if self.start else action

    def within(self, action: Tensor) -> Tensor:
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
        return _first((action >= self.start) & (action < self.start + self.size))

    def masked_out(self, action: Array, allowed: Array) -> int | None:
        """Index of the first of ``action`` ``[n, …]`` that is not ``allowed`` ``[n, size]``."""
        return _first(np.take_along_axis(allowed, action.reshape(-1, 1) - self.start, 1)[:, 0])

    @property
    def allowed(self) -> str:
        """The choices, in words."""
        return f"integers from {self.start} to {self.start + self.size - 1}"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, of ``sizes`` options each, counted from ``starts``.

    Networks have an output for every option of each choice, not one for every combination.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...] = ()

    kind: ClassVar = ActionSpace.MULTI_DISCRETE
    discrete: ClassVar = True
    whole: ClassVar = False
    bounds: ClassVar = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(self.starts) if any(self.starts) else (0,) * len(self.sizes))

    def __str__(self) -> str:
        first = f" from {list(self.starts)}" if any(self.starts) else ""
        return f"{len(self.sizes)} choices of {list(self.sizes)} options{first}"

    @property
    def told(self) -> Any:
        sizes, starts = list(self.sizes), list(self.starts)
        return {"size": sizes, "start": starts} if any(starts) else sizes

    @functools.cached_property
    def parts(self) -> tuple[Discrete, ...]:
        """Each of the choices."""
        return tuple(map(Discrete, self.sizes, self.starts))

    @property
    def size(self) -> int:
        """Number of options of all choices."""
        return sum(self.sizes)

    @property
    def log_count(self) -> float:
        """Logarithm of the number of different actions."""
        return sum(map(math.log, self.sizes))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def leaf(self) -> Leaf:
        return Leaf(self.shape, np.dtype(np.int64))

    def takes(self, other: Actions) -> bool:
        same = isinstance(other, MultiDiscrete) and len(other.parts) == len(self.parts)
        return same and all(map(Discrete.takes, self.parts, other.parts))  # type: ignore[union-attr]

    def wider(self, other: Actions) -> Actions:
        if not isinstance(other, MultiDiscrete) or other.starts != self.starts:
            return self
        return MultiDiscrete(tuple(map(max, self.sizes, other.sizes)), self.starts)

    def stored(self, logged: Array) -> Array:
        """Whole numbers ``[N, D]`` as integers."""
        return _whole(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        return self._moved(stored.to(torch.int64), -1)

    def given(self, action: Tensor) -> Tensor:
        return self._moved(action, 1)

    def _moved(self, action: Tensor, sign: int) -> Tensor:
        if not any(self.starts):
            return action
        columns = zip(action.unbind(-1), self.starts, strict=True)
        return torch.stack([column + sign * start for column, start in columns], -1)

    def within(self, action: Tensor) -> Tensor:
        return action

    def as_input(self, action: Tensor) -> Tensor:
        """One-hot vectors, one after another."""
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, action.unbind(-1), strict=True)], -1)

    def greedy(self, output: Any) -> Any:
        return torch.stack([each.argmax(-1) for each in output.split(self.sizes, -1)], -1)

    def branched(self, values: Tensor) -> Tensor:
        """Outputs ``[..., size]`` by choice: ``[..., D, A]`` for at most ``A`` options, 0 beyond those of a choice."""
        if len(set(self.sizes)) == 1:
            return values.unflatten(-1, (len(self.sizes), self.sizes[0]))
        most = max(self.sizes)
        return torch.stack([F.pad(each, (0, most - each.shape[-1])) for each in values.split(self.sizes, -1)], -2)

    def branched_mask(self, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """A mask ``[..., size]`` by choice: ``[..., D, A]``, bool.

        Args:
            mask: ``None`` if all options are allowed. That is the answer, too, if no choice has fewer than others.
            like: any tensor on the device.
        """
        if mask is None and len(set(self.sizes)) == 1:
            return None
        return self.branched(torch.ones(self.size, dtype=torch.bool, device=like.device) if mask is None else mask)

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random int64 ``[n, D]``, of the options that are ``allowed`` ``[n, size]``."""
        masks = [None] * len(self.parts) if allowed is None else self._split(allowed)
        return np.stack([part.sample(n, generator, each) for part, each in zip(self.parts, masks, strict=True)], -1)

    def _split(self, allowed: Array) -> list[Any]:
        return np.split(allowed, np.cumsum(self.sizes)[:-1], -1)

    def clip(self, action: Array) -> Array:
        return action

    def outside(self, action: Array) -> int | None:
        start = np.asarray(self.starts)
        return _first((action >= start) & (action < start + self.sizes))

    def masked_out(self, action: Array, allowed: Array) -> int | None:
        """Index of the first of ``action`` ``[n, D]`` that is not ``allowed`` ``[n, size]``."""
        parts = zip(self.parts, action.T, self._split(allowed), strict=True)
        found = [each for each in (part.masked_out(column, own) for part, column, own in parts) if each is not None]
        return min(found, default=None)

    @property
    def allowed(self) -> str:
        last = [start + size - 1 for start, size in zip(self.starts, self.sizes, strict=True)]
        return f"integers from {list(self.starts)} to {last}"


@dataclass(frozen=True)
class Composite:
    """Choices and quantities at once: those of ``parts``, one after another.

    Stored and given in one row of floats, which holds the number of each choice.
    """

    parts: tuple[Continuous | Discrete, ...]

    kind: ClassVar = ActionSpace.COMPOSITE
    discrete: ClassVar = False

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))

    @property
    def told(self) -> Any:
        return {"parts": [{"kind": part.kind.value, "size": part.told} for part in self.parts]}

    @property
    def size(self) -> int:
        """Number of outputs of all parts."""
        return sum(part.size for part in self.parts)

    @functools.cached_property
    def widths(self) -> list[int]:
        """Number of columns of each part."""
        return [math.prod(part.shape) for part in self.parts]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self.widths),)

    @property
    def leaf(self) -> Leaf:
        return Leaf(self.shape, np.dtype(np.float32))

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Least and greatest action. Choices, and parts without bounds, are as in the policy: not to be scaled."""
        low, high = -np.ones(self.shape, np.float32), np.ones(self.shape, np.float32)
        for part, least, greatest in zip(self.parts, self._columns(low), self._columns(high), strict=True):
            if part.bounds is not None:
                least[...], greatest[...] = part.bounds
        return low, high

    @functools.cached_property
    def choices(self) -> Array:
        """Bool ``[W]``: the columns that hold numbers of choices."""
        return np.repeat([part.discrete for part in self.parts], self.widths)

    @property
    def whole(self) -> bool:
        """Whether an environment takes integers as quantities."""
        return any(part.whole for part in self.parts)

    def _columns(self, rows: Array) -> list[Array]:
        return np.split(rows, np.cumsum(self.widths)[:-1], -1)

    def read(self, action: Tensor) -> list[Tensor]:
        """The action of each part, ``[..., *part.shape]``, in those ``[..., W]`` of all."""
        columns = action.split(self.widths, -1)
        return [
            (each if part.shape else each.squeeze(-1)).to(torch.int64 if part.discrete else each.dtype)
            for part, each in zip(self.parts, columns, strict=True)
        ]

    def joined(self, actions: Sequence[Tensor]) -> Tensor:
        """Inverse of `read`."""
        pairs = zip(self.parts, actions, strict=True)
        return torch.cat([(each if part.shape else each.unsqueeze(-1)).to(torch.float32) for part, each in pairs], -1)

    def takes(self, other: Actions) -> bool:
        same = isinstance(other, Composite) and len(other.parts) == len(self.parts)
        return same and all(own.takes(each) for own, each in zip(self.parts, other.parts, strict=True))  # type: ignore[union-attr]

    def wider(self, other: Actions) -> Actions:
        if not isinstance(other, Composite) or len(other.parts) != len(self.parts):
            return self
        return Composite(tuple(own.wider(each) for own, each in zip(self.parts, other.parts, strict=True)))  # type: ignore[misc]

    def stored(self, logged: Array) -> Array:
        """Rows ``[N, W]`` as floats.

        Raises:
            ActionError: for choices that are not whole numbers.
        """
        if logged.shape[1:] == self.shape:  # others are told by who checks shapes
            for part, column in zip(self.parts, self._columns(logged), strict=True):
                if part.discrete:
                    _whole(column)
        return logged.astype(np.float32)

    def from_stored(self, stored: Tensor) -> Tensor:
        return self._moved(stored.to(torch.float32), -1)

    def given(self, action: Tensor) -> Tensor:
        return self._moved(action, 1)

    def _moved(self, action: Tensor, sign: int) -> Tensor:
        starts = [start for part in self.parts for start in ([part.start] if part.discrete else [0] * part.size)]
        return action + sign * action.new_tensor(starts) if any(starts) else action

    def within(self, action: Tensor) -> Tensor:
        columns = action.split(self.widths, -1)
        return torch.cat([part.within(each) for part, each in zip(self.parts, columns, strict=True)], -1)

    def as_input(self, action: Tensor) -> Tensor:
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, self.read(action), strict=True)], -1)

    def greedy(self, output: Any) -> Any:
        outputs = output.split([part.size for part in self.parts], -1)
        return self.joined([part.greedy(each) for part, each in zip(self.parts, outputs, strict=True)])

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random rows ``[n, W]``; standard normal where there are no bounds."""
        drawn = [part.sample(n, generator).reshape(n, -1) for part in self.parts]
        return np.concatenate(drawn, -1, dtype=np.float32)

    def clip(self, action: Array) -> Array:
        columns = self._columns(action)
        return np.concatenate([part.clip(each) for part, each in zip(self.parts, columns, strict=True)], -1)

    def outside(self, action: Array) -> int | None:
        found = [part.outside(each) for part, each in zip(self.parts, self._columns(action), strict=True)]
        return min((each for each in found if each is not None), default=None)

    @property
    def allowed(self) -> str:
        return "; ".join(part.allowed for part in self.parts)


Actions: TypeAlias = Continuous | Discrete | MultiDiscrete | Composite

KINDS: Final = (ActionSpace.CONTINUOUS, ActionSpace.DISCRETE, ActionSpace.MULTI_DISCRETE, ActionSpace.COMPOSITE)
"""What data can hold."""


# -- in arguments and files ----------------------------------------------------------------------------------------


def actions_told(size: Any, kind: ActionSpace | None = None) -> Actions:
    """The actions that ``action_size`` stands for.

    Args:
        size: number of dimensions or of choices; a list of numbers of options for several choices at once; a Gymnasium
            space; or what ``told`` of a kind says.
        kind: the kind, which a number does not tell; checked where ``size`` does.

    Raises:
        ConfigError: if it stands for no actions, or for those of another kind.
        ActionError: for spaces that no algorithm supports.
    """
    wanted = "a positive number, a list of numbers of options, or an action space of Gymnasium"
    try:
        found = _read(size, kind)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"action_size is {size!r:.100}; it must be {wanted}") from error
    if kind is not None and found.kind is not kind:
        raise ConfigError(f"action_size is {size!r:.100}, which says {found.kind}, but action_space is {kind}")
    return found


def _read(size: Any, kind: ActionSpace | None) -> Actions:
    if isinstance(size, Actions):
        return size
    if isinstance(size, Space):
        return actions_of(size)
    if isinstance(size, Mapping) and "parts" in size:
        parts = tuple(_read(each["size"], ActionSpace(each["kind"])) for each in size["parts"])
        if not parts or not all(isinstance(part, Continuous | Discrete) for part in parts):
            raise ValueError
        return Composite(parts)  # type: ignore[arg-type]
    start: Any = 0
    if isinstance(size, Mapping):
        size, start = size["size"], size["start"]
    if isinstance(size, list | tuple | np.ndarray):
        sizes = tuple(_number(each, 1) for each in size)
        starts = tuple(_number(each) for each in start) if isinstance(start, list | tuple) else (0,) * len(sizes)
        if not sizes or len(starts) != len(sizes):
            raise ValueError
        return MultiDiscrete(sizes, starts)
    if kind is ActionSpace.CONTINUOUS:
        return Continuous(_number(size, 1))
    if kind is ActionSpace.DISCRETE or start:
        return Discrete(_number(size, 1), _number(start))
    raise ValueError


def _number(value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        raise ValueError
    return int(value)


def actions_in(logged: Array, kind: ActionSpace) -> Actions:
    """The actions of a log ``[N, A]``, of which only the kind is known.

    Raises:
        ActionError: if there would be more choices than can be meant.
        ConfigError: if the kind alone does not tell them.
    """
    if kind is ActionSpace.CONTINUOUS:
        return Continuous(int(logged.shape[1]) if logged.ndim > 1 else 1)
    if kind is ActionSpace.COMPOSITE:
        raise ConfigError("actions of several parts are not told by their numbers: give action_size= the action space")
    columns = logged.reshape(len(logged), -1).T
    sizes = [_size_in(column) for column in columns]
    return Discrete(max(sizes, default=1)) if kind is ActionSpace.DISCRETE else MultiDiscrete(tuple(sizes))


def _size_in(column: Array) -> int:
    size = max(0, int(column.max(initial=0))) + 1
    if size > _MOST_ACTIONS:
        raise ActionError(
            f"the largest discrete action is {size - 1}, but only {len(np.unique(column))} values occur: renumber "
            f"the actions from 0 (np.unique(actions, return_inverse=True)[1]), or give action_size={size}"
        )
    return size


# -- in environments -----------------------------------------------------------------------------------------------


def actions_of(space: Any) -> Actions:
    """The actions of an environment's action space (of any library), with its bounds.

    Raises:
        ActionError: for spaces that no algorithm supports.
    """
    leaves = list(_leaves(space))
    parts = [part for leaf in leaves for part in _parts_of(leaf, space)]
    if len(leaves) == 1 and leaves[0] is space and "Box" in _names(space):
        return parts[0]
    if len(leaves) == 1 and leaves[0] is space and "Discrete" in _names(space):
        return parts[0]
    if all(isinstance(part, Discrete) for part in parts):
        return MultiDiscrete(tuple(part.size for part in parts), tuple(part.start for part in parts))  # type: ignore[union-attr]
    return Composite(tuple(parts))


def _names(space: Any) -> frozenset[str]:
    return _class_names(type(space))


@functools.cache
def _class_names(kind: Hashable) -> frozenset[str]:
    return frozenset(each.__name__ for each in cast(type, kind).__mro__)


def _leaves(space: Any) -> Iterator[Any]:
    """The spaces in nested Tuple and Dict spaces, in their order."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        yield space
    else:
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            yield from _leaves(part)


def _parts_of(leaf: Any, whole: Any) -> list[Continuous | Discrete]:
    names = _names(leaf)
    if "Discrete" in names:
        return [Discrete(int(leaf.n), int(getattr(leaf, "start", 0)))]
    if "MultiDiscrete" in names:
        sizes = np.ravel(leaf.nvec)
        return list(map(Discrete, sizes.tolist(), np.ravel(getattr(leaf, "start", 0 * sizes)).tolist()))
    if "MultiBinary" in names:
        return [Discrete(2)] * math.prod(leaf.shape)
    if "Box" in names and math.prod(leaf.shape) > 0:
        dtype = leaf.dtype if leaf.dtype.kind == "f" else np.dtype(np.float32)
        low, high = (np.ravel(np.asarray(bound, dtype)) for bound in (leaf.low, leaf.high))
        return [Continuous(low.size, low, high, leaf.dtype.kind != "f")]
    within = "" if leaf is whole else f", in {whole!s:.200}"
    raise ActionError(
        f"the action space is {leaf}{within}; it must be Discrete, Box, MultiDiscrete or MultiBinary, or a Dict or "
        "Tuple of these: wrap the environment in gymnasium.wrappers.TransformAction"
    )


def space_of(actions: Actions, low: Any, high: Any) -> Space[Any]:
    """The space of actions that an environment would have: Tuple for several parts.

    Args:
        actions: what they are.
        low, high: bounds ``[*actions.shape]`` of quantities.
    """
    if isinstance(actions, Discrete):
        return spaces.Discrete(actions.size, start=actions.start)
    if isinstance(actions, MultiDiscrete):
        return spaces.MultiDiscrete(list(actions.sizes), start=list(actions.starts))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), actions.shape) for bound in (low, high))
    if isinstance(actions, Continuous):
        return spaces.Box(low, high, dtype=np.float32)
    columns = zip(actions.parts, actions._columns(low), actions._columns(high), strict=True)
    return spaces.Tuple([space_of(part, least, greatest) for part, least, greatest in columns])


def environment_actions(space: Any, rows: Array) -> Any:
    """Actions as environments of an action space take them.

    Args:
        space: of a single environment.
        rows: ``[n, *shape]``, as `birl.algos.Algorithm.predict` gives them.

    Returns:
        For Dict and Tuple spaces a dict or tuple of arrays ``[n, …]``; else an array.
    """
    columns = rows.reshape(len(rows), -1)

    def read(part: Any) -> Any:
        nonlocal columns
        parts = getattr(part, "spaces", None)
        if isinstance(parts, Mapping):
            return {name: read(each) for name, each in parts.items()}
        if parts is not None:
            return tuple(map(read, parts))
        width = math.prod(part.shape)
        own, columns = columns[:, :width], columns[:, width:]
        kind = np.dtype(part.dtype)
        return (own if kind.kind == "f" else np.rint(own)).reshape(len(rows), *part.shape).astype(kind, copy=False)

    return read(space)


def one_of(space: Any, batch: Any, index: int) -> Any:
    """The action of one environment in those of `environment_actions`: a number for a Discrete space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {name: one_of(part, batch[name], index) for name, part in parts.items()}
    if parts is not None:
        return tuple(one_of(part, each, index) for part, each in zip(parts, batch, strict=True))
    return int(batch[index]) if "Discrete" in _names(space) else np.asarray(batch[index])


def as_rows(space: Any, actions: Any) -> Array:
    """Inverse of `environment_actions`: logged actions ``[n, …]`` of an action space as rows ``[n, W]``.

    Raises:
        ShapeError: if they do not have the parts of the space, or these have other shapes.
    """
    columns: list[Array] = []

    def read(part: Any, given: Any) -> None:
        parts = getattr(part, "spaces", None)
        if parts is None:
            array = np.asarray(given)
            if array.ndim == 0 or array.size != len(array) * math.prod(part.shape):
                raise ShapeError(f"actions of {part} have shape {array.shape}; it must be {('n', *part.shape)}")
            columns.append(array.reshape(len(array), -1))
            return
        names = list(parts) if isinstance(parts, Mapping) else range(len(parts))
        if not isinstance(given, Mapping if isinstance(parts, Mapping) else tuple | list) or len(given) != len(parts):
            raise ShapeError(f"actions are {given!r:.100}; they must have a part for each of {part!s:.200}")
        for name in names:
            if isinstance(given, Mapping) and name not in given:
                raise ShapeError(f"actions have the parts {sorted(given)}; {name!r} of {part!s:.200} is missing")
            read(parts[name], given[name])

    read(space, actions)
    if len({len(each) for each in columns}) > 1:
        raise ShapeError(f"parts of actions have {[len(each) for each in columns]} rows: give one row per step")
    return np.concatenate(columns, -1)


def sample_actions(space: Space[Any], n: int, generator: np.random.Generator) -> Array:
    """Uniformly random actions of one environment's action space (standard normal where it has no bounds).

    Args:
        space: an action space.
        n: number of actions.
        generator: source of randomness.

    Returns:
        int64 ``[n]`` or float32 ``[n, action_size]``; see `environment_actions` for further spaces.
    """
    return actions_of(space).sample(n, generator)


def allowed_actions(actions: Actions, observation: Tree) -> Array | None:
    """Bool ``[n, A]``: the discrete actions that observations ``[n, …]`` allow; ``None`` if they have no mask.

    Raises:
        EnvironmentMismatchError: if an observation allows none.
    """
    if not (actions.discrete and isinstance(observation, dict) and MASK in observation):
        return None
    allowed: Array = np.asarray(observation[MASK]) != 0
    index = _nothing_in(actions, allowed)
    if index is not None:
        raise EnvironmentMismatchError(
            f"environment {index} allows no action: its {MASK!r} is {observation[MASK][index].tolist()!s:.80}, but the "
            "episode goes on; a mask must have at least one 1 unless the episode has ended"
        )
    return allowed


def _nothing_in(actions: Actions, allowed: Array) -> int | None:
    """Index of the first mask ``[n, A]`` that allows no option of a choice."""
    masks = actions._split(allowed) if isinstance(actions, MultiDiscrete) else [allowed]
    return _first(np.stack([each.any(-1) for each in masks], -1))


def check_actions(actions: Actions, given: Any, allowed: Array | None = None) -> None:
    """Check that actions lie in an environment's space, up to rounding.

    Args:
        actions: what the environment takes.
        given: ``[n, *actions.shape]``.
        allowed: bool ``[n, A]``, of discrete actions; ``None`` if all are.

    Raises:
        ActionError: naming the first action that is NaN, outside of the space or not allowed.
    """
    values = np.asarray(given)
    index = actions.outside(values)
    if index is not None:
        scaler = "" if actions.discrete else "set action_scaler=birl.preprocessing.MinMaxActionScaler(), or "
        raise ActionError(
            f"the action {values[index].tolist()!s:.100} for environment {index} is not in its action space; allowed "
            f"are {actions.allowed}: {scaler}use an explorer whose actions are allowed"
        )
    if allowed is not None and isinstance(actions, Discrete | MultiDiscrete):
        index = actions.masked_out(values, allowed)
        if index is not None:
            raise ActionError(
                f"the action {values[index]} for environment {index} is masked; allowed are "
                f"{np.flatnonzero(allowed[index]).tolist()!s:.80}: use an explorer that reads the mask of actions, "
                f"observation[{MASK!r}]"
            )
