"""Several choices, and choices and quantities together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from birl.spaces.actions import Continuous, Discrete, are_whole, first_false, whole_numbers
from birl.types import ActionSpace, Array, Leaf, opened


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
        """See `Continuous.told`."""
        sizes, starts = list(self.sizes), list(self.starts)
        return {"size": sizes, "start": starts} if any(starts) else sizes

    @property
    def parts(self) -> tuple[Discrete, ...]:
        """Each of the choices."""
        return tuple(map(Discrete, self.sizes, self.starts))

    @property
    def options(self) -> tuple[int, ...]:
        """See `Discrete.options`."""
        return self.sizes

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
        """Shape of an action as policies give it."""
        return (len(self.sizes),)

    @property
    def leaf(self) -> Leaf:
        """Shape and dtype of a stored action."""
        return Leaf(self.shape, np.dtype(np.int64))

    def takes(self, other: Actions) -> bool:
        """See `Continuous.takes`."""
        same = isinstance(other, MultiDiscrete) and len(other.parts) == len(self.parts)
        return same and all(map(Discrete.takes, self.parts, other.parts))  # type: ignore[union-attr]

    def wider(self, other: Actions) -> Actions:
        """See `Continuous.wider`."""
        if not isinstance(other, MultiDiscrete) or other.starts != self.starts:
            return self
        return MultiDiscrete(tuple(map(max, self.sizes, other.sizes)), self.starts)

    def stored(self, logged: Array) -> Array:
        """Whole numbers ``[N, D]`` as integers."""
        return whole_numbers(logged)

    def from_stored(self, stored: Tensor) -> Tensor:
        """See `Continuous.from_stored`."""
        if not any(self.starts):
            return stored.to(torch.int64)
        columns = zip(self.parts, stored.split(1, -1), strict=True)
        return torch.stack([part.from_stored(each) for part, each in columns], -1)

    def given(self, action: Tensor) -> Tensor:
        """See `Continuous.given`."""
        if not any(self.starts):
            return action
        return torch.stack([part.given(each) for part, each in zip(self.parts, action.unbind(-1), strict=True)], -1)

    def within(self, action: Tensor) -> Tensor:
        """Choices have no range."""
        return action

    def as_input(self, action: Tensor) -> Tensor:
        """One-hot vectors, one after another."""
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, action.unbind(-1), strict=True)], -1)

    def greedy(self, output: Any) -> Any:
        """See `Continuous.greedy`."""
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
        if mask is not None:
            return self.branched(torch.cat(masks_of_choices(self, mask), -1))
        every = torch.ones(self.size, dtype=torch.bool, device=like.device)
        return None if len(set(self.sizes)) == 1 else self.branched(every)

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random int64 ``[n, D]``, of the options that are ``allowed`` ``[n, size]``."""
        masks = _for_parts(self, allowed)
        return np.stack([part.sample(n, generator, each) for part, each in zip(self.parts, masks, strict=True)], -1)

    def clip(self, action: Array) -> Array:
        """The choices themselves."""
        return action

    def outside(self, action: Array) -> int | None:
        """Index of the first action of which a number is no choice."""
        start = np.asarray(self.starts)
        return first_false((action >= start) & (action < start + self.sizes) & are_whole(action))

    def masked_out(self, action: Array, allowed: Array) -> int | None:
        """Index of the first of ``action`` ``[n, D]`` that is not ``allowed`` ``[n, size]``."""
        return _masked_out(self, np.split(action, len(self.parts), -1), allowed)

    @property
    def allowed(self) -> str:
        """The actions that are not `outside`, in words."""
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
        """See `Continuous.told`."""
        free = [{"free": True} if isinstance(part, Continuous) and part.free else {} for part in self.parts]
        pairs = zip(self.parts, free, strict=True)
        return {"parts": [{"kind": part.kind.value, "size": part.told, **own} for part, own in pairs]}

    @property
    def size(self) -> int:
        """Number of outputs of all parts."""
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
        """Shape of an action as policies give it."""
        return (sum(self.widths),)

    @property
    def leaf(self) -> Leaf:
        """Shape and dtype of a stored action."""
        return Leaf(self.shape, np.dtype(np.float32))

    @property
    def bounds(self) -> tuple[Array, Array] | None:
        """Least and greatest action. Choices, and parts without bounds, are as in the policy: not to be scaled."""
        low, high = -np.ones(self.shape, np.float32), np.ones(self.shape, np.float32)
        for part, least, greatest in zip(self.parts, self.columns(low), self.columns(high), strict=True):
            if part.bounds is not None:
                least[...], greatest[...] = part.bounds
        return low, high

    @property
    def choices(self) -> Array:
        """Bool ``[W]``: the columns that hold numbers of choices."""
        return np.repeat([part.discrete for part in self.parts], self.widths)

    @property
    def whole(self) -> bool:
        """Whether an environment takes integers as quantities."""
        return any(part.whole for part in self.parts)

    def columns(self, rows: Array) -> list[Array]:
        """The columns of each part."""
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
        """See `Continuous.takes`."""
        same = isinstance(other, Composite) and len(other.parts) == len(self.parts)
        return same and all(own.takes(each) for own, each in zip(self.parts, other.parts, strict=True))  # type: ignore[union-attr]

    def wider(self, other: Actions) -> Actions:
        """See `Continuous.wider`."""
        if not isinstance(other, Composite) or len(other.parts) != len(self.parts):
            return self
        return Composite(tuple(own.wider(each) for own, each in zip(self.parts, other.parts, strict=True)))  # type: ignore[misc]

    def stored(self, logged: Array) -> Array:
        """Rows ``[N, W]`` as floats.

        Raises:
            ActionError: for choices that are not whole numbers.
        """
        if logged.shape[1:] == self.shape:  # others are told by who checks shapes
            for part, column in zip(self.parts, self.columns(logged), strict=True):
                if part.discrete:
                    whole_numbers(column)
        return logged.astype(np.float32)

    def from_stored(self, stored: Tensor) -> Tensor:
        """See `Continuous.from_stored`."""
        stored = stored.to(torch.float32)
        if not any(self._starts):
            return stored
        columns = zip(self.parts, stored.split(self.widths, -1), strict=True)
        return self.joined([part.from_stored(each) for part, each in columns])

    def given(self, action: Tensor) -> Tensor:
        """See `Continuous.given`."""
        return action + action.new_tensor(self._starts) if any(self._starts) else action

    @property
    def _starts(self) -> list[int]:
        return [start for part in self.parts for start in part.starts]

    def within(self, action: Tensor) -> Tensor:
        """See `Continuous.within`. Parts without bounds are not scaled, and have no range."""
        columns = zip(self.parts, action.split(self.widths, -1), strict=True)
        free = [isinstance(part, Continuous) and part.free for part in self.parts]
        return torch.cat([x if own else part.within(x) for (part, x), own in zip(columns, free, strict=True)], -1)

    def as_input(self, action: Tensor) -> Tensor:
        """See `Continuous.as_input`."""
        return torch.cat([part.as_input(each) for part, each in zip(self.parts, self.read(action), strict=True)], -1)

    def greedy(self, output: Any) -> Any:
        """See `Continuous.greedy`."""
        outputs = output.split([part.size for part in self.parts], -1)
        return self.joined([part.greedy(each) for part, each in zip(self.parts, outputs, strict=True)])

    def sample(self, n: int, generator: np.random.Generator, allowed: Array | None = None) -> Array:
        """Uniformly random rows ``[n, W]``; standard normal where there are no bounds."""
        masks = _for_parts(self, allowed)
        drawn = [part.sample(n, generator, each).reshape(n, -1) for part, each in zip(self.parts, masks, strict=True)]
        return np.concatenate(drawn, -1, dtype=np.float32)

    def clip(self, action: Array) -> Array:
        """See `Continuous.clip`."""
        columns = self.columns(action)
        return np.concatenate([part.clip(each) for part, each in zip(self.parts, columns, strict=True)], -1)

    def outside(self, action: Array) -> int | None:
        """See `Continuous.outside`."""
        found = [part.outside(each) for part, each in zip(self.parts, self.columns(action), strict=True)]
        return min((each for each in found if each is not None), default=None)

    def masked_out(self, action: Array, allowed: Array) -> int | None:
        """See `MultiDiscrete.masked_out`."""
        return _masked_out(self, self.columns(action), allowed)

    @property
    def allowed(self) -> str:
        """The actions that are not `outside`, in words."""
        return "; ".join(part.allowed for part in self.parts)


def split_mask(actions: Actions, allowed: Array) -> list[Array]:
    """The mask of each choice in those ``[..., sum(options)]`` of all."""
    return np.split(allowed, np.cumsum(actions.options)[:-1], -1)


def masks_of_choices(actions: Actions, mask: Tensor) -> list[Tensor]:
    """As `split_mask`, of tensors. A choice that has no option, as after the end of an episode, has all of them."""
    return [opened(each) for each in mask.split(actions.options, -1)]


def _for_parts(actions: MultiDiscrete | Composite, allowed: Array | None) -> list[Any]:
    """The mask of each part; ``None`` where all is allowed."""
    masks = iter(() if allowed is None else split_mask(actions, allowed))
    return [next(masks, None) if part.discrete else None for part in actions.parts]


def _masked_out(actions: MultiDiscrete | Composite, columns: list[Array], allowed: Array) -> int | None:
    parts = zip(actions.parts, columns, _for_parts(actions, allowed), strict=True)
    found = [part.masked_out(each.astype(np.int64), own) for part, each, own in parts if isinstance(part, Discrete)]
    return min((each for each in found if each is not None), default=None)


Actions: TypeAlias = Continuous | Discrete | MultiDiscrete | Composite
