"""States from files: compared with the states that they replace before they are used, and set all or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from torch import Tensor

from birl.errors import BirlError, CorruptFileError, NonFiniteError
from birl.types import Array, State

_KINDS: Final[tuple[Any, ...]] = (bool | np.bool_, int | np.integer, float | np.floating | int | np.integer, str, dict)
_LEFT: Final = ("explorer", "sampler", "optimizers", "torch_generator", "policy")
"""Keys whose states are not compared: users write explorers and samplers, which alone know their states; optimisers are
checked by `birl.optimizers.saved_state`, generators of another kind of device are not used, and a learner itself
compares the policy that it evaluates."""


class Part(Protocol):
    """An object with a state."""

    def get_state(self) -> State:
        """A copy of what `set_state` takes."""
        ...

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        ...


@contextlib.contextmanager
def damage_as_typed_errors(label: object, what: str = "its content does not fit together") -> Iterator[None]:
    """Report any other error of reading a file of valid form but impossible content as a `CorruptFileError`."""
    try:
        yield
    except BirlError:
        raise
    except Exception as error:
        raise CorruptFileError(
            f"{label} is a birl file, but {what} ({type(error).__name__}: {error!s:.200}). Restore it from a copy"
        ) from error


@contextlib.contextmanager
def all_or_nothing(parts: Mapping[str, Part]) -> Iterator[None]:
    """If the block raises, bring the parts back to the states that they had before it."""
    before = {}
    for name, part in parts.items():
        with contextlib.suppress(NonFiniteError):  # a diverged learner has nothing to go back to
            before[name] = part.get_state()
    try:
        yield
    except BaseException:
        for name, state in before.items():
            parts[name].set_state(state)
        raise


def put_back(
    parts: Mapping[str, Part],
    saved: Any,
    label: object,
    free: str | tuple[str, ...] = ("evaluator ", "hook "),
) -> None:
    """Set the states of parts, once all of them have been compared with the present ones (see `compare`).

    Args:
        parts: by name.
        saved: their states; a part that it lacks keeps its own.
        label: name of the file for messages.
        free: names that begin so are users' parts, whose states are not compared.

    Raises:
        CorruptFileError: naming the part whose state does not fit it.
    """
    with damage_as_typed_errors(label):
        found = {name: saved[name] for name in parts if name in saved}
    for name, state in found.items():
        if not name.startswith(free):
            with contextlib.suppress(NonFiniteError):
                compare(state, parts[name].get_state(), name, label)
    for name, state in found.items():
        with damage_as_typed_errors(label, f"the state of its {name} cannot be used"):
            parts[name].set_state(state)


def compare(saved: Any, own: Any, where: str, label: object) -> None:
    """Compare a saved state with one that is known to be right: types, dtypes, and shapes.

    Dicts are compared by the keys that both have, tensors by dtype and shape, arrays by dtype and number of dimensions,
    because those of data grow. Lists may have any items, and ``None`` here says nothing of what was saved.

    Raises:
        CorruptFileError: naming the value that does not fit.
    """
    if own is None or (saved is None and not isinstance(own, dict | Tensor | np.ndarray)):
        return
    if isinstance(own, dict) and isinstance(saved, dict):
        for key in own.keys() & saved.keys() - {*_LEFT}:
            compare(saved[key], own[key], f"{where}.{key}", label)
        return
    if not _alike(saved, own):
        raise CorruptFileError(
            f"{label} is a birl file, but its {where:.200} is {_described(saved)}; it must be like {_described(own)}. "
            "Go on with the data, environment and networks it was made with; if they are, restore it from a copy"
        )


def _alike(saved: Any, own: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and saved.dtype == own.dtype and saved.shape == own.shape
    if isinstance(own, np.ndarray):
        return isinstance(saved, np.ndarray) and saved.dtype == own.dtype and saved.ndim == own.ndim
    if isinstance(own, list | tuple):
        return isinstance(saved, list | tuple)
    for kind in _KINDS:
        if isinstance(own, kind):
            return isinstance(saved, kind) and not (isinstance(saved, bool) and kind is not _KINDS[0])
    return True


def _described(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    return f"{value!r:.60}"


def checked_array(value: Any, shape: tuple[int | None, ...], dtype: Any, what: str) -> Array:
    """An array of this dtype and shape, where ``None`` is any length.

    Raises:
        CorruptFileError: for any other value.
    """
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(want in (None, have) for have, want in zip(array.shape, shape, strict=True))
    if not fits or array.dtype != dtype:
        wanted = tuple("any" if length is None else length for length in shape)
        raise CorruptFileError(
            f"{what} is {_described(array)}; it must be {np.dtype(dtype)} of shape {wanted}: restore it from a copy"
        )
    return array
