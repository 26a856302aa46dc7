"""Restoration of states from files: a comparison with the present states, then all of them are set, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from birl.errors import BirlError, CorruptFileError, NonFiniteError
from birl.types import Array, State

_SCALARS: Final = (bool | np.bool_, int | np.integer, float | np.floating | int | np.integer, str, dict)
_UNCOMPARED: Final = ("explorer", "sampler", "optimizers", "torch_generator", "policy")
"""Keys whose states are not compared. States of users' explorers and samplers can have any form. The module
`birl.optimizers.saved_state` checks optimisers, generators of another kind of device are not used, and a learner
compares its policy."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved in a checkpoint."""

    def get_state(self) -> State:
        """Return a copy of everything that later behaviour depends on."""
        ...

    def set_state(self, state: State) -> None:
        """Continue from a state that `get_state` returned, bit for bit."""
        ...


@contextlib.contextmanager
def convert_to_corrupt_error(
    label: object, what: str = "its content is inconsistent", advice: str = "Restore it from a copy"
) -> Iterator[None]:
    """Raise a `CorruptFileError` in place of any untyped error, because damaged files can raise nearly any error.

    Args:
        label: name of the file, for messages.
        what: description of the damage, for messages.
        advice: what to do, for messages.
    """
    try:
        yield
    except BirlError:
        raise
    except Exception as error:
        raise CorruptFileError(
            f"{label} is damaged: {what} ({type(error).__name__}: {error!s:.200}). {advice}"
        ) from error


@contextlib.contextmanager
def restore_on_error(parts: Mapping[str, Stateful]) -> Iterator[None]:
    """Restore the former states of the parts if the block raises an exception."""
    before = {}
    for name, part in parts.items():
        with contextlib.suppress(NonFiniteError):  # a diverged learner has no valid state
            before[name] = part.get_state()
    try:
        yield
    except BaseException:
        for name, state in before.items():
            parts[name].set_state(state)
        raise


def restore_states(
    parts: Mapping[str, Stateful],
    saved: Mapping[str, State],
    label: object,
    user_prefixes: str | tuple[str, ...] = ("evaluator ", "hook "),
) -> None:
    """Compare saved states with the present ones (see `compare_states`), then set them.

    Args:
        parts: the parts by name.
        saved: states by name; a part without a saved state keeps its own.
        label: name of the file for messages.
        user_prefixes: prefixes of the names of users' parts, whose states are not compared.

    Raises:
        CorruptFileError: naming the part whose state does not fit it.
    """
    with convert_to_corrupt_error(label):
        found = {name: saved[name] for name in parts if name in saved}
    for name, state in found.items():
        if not name.startswith(user_prefixes):
            with contextlib.suppress(NonFiniteError):
                compare_states(state, parts[name].get_state(), name, label)
    for name, state in found.items():
        with convert_to_corrupt_error(label, f"the state of its {name} cannot be used"):
            parts[name].set_state(state)


def compare_states(saved: object, present: object, where: str, label: object, *, complete: bool = False) -> None:
    """Compare types, dtypes and shapes in a saved state with a valid state.

    Dicts are compared by their common keys, tensors by dtype and shape, and arrays by dtype and number of dimensions,
    because arrays of data grow. Lists may have any items, and ``None`` in the valid state matches anything. ``None`` in
    the saved state may stand for a text, a number or a list that was not set, unless ``complete`` is true.

    Raises:
        CorruptFileError: naming the value that does not fit.
    """
    if present is None:
        return
    if saved is None and not complete and not isinstance(present, dict | torch.Tensor | np.ndarray):
        return
    if isinstance(present, dict) and isinstance(saved, dict):
        for key in present.keys() & saved.keys() - {*_UNCOMPARED}:
            compare_states(saved[key], present[key], f"{where}.{key}", label, complete=complete)
        return
    if not _matches(saved, present):
        raise CorruptFileError(
            f"{label} is a birl file, but its {where:.200} is {_format(saved)}; it must be like {_format(present)}. "
            "Use the data, environment and networks of the saved run; if you do, restore the file from a copy"
        )


def _matches(saved: object, present: object) -> bool:
    if isinstance(present, torch.Tensor):
        return isinstance(saved, torch.Tensor) and saved.dtype == present.dtype and saved.shape == present.shape
    if isinstance(present, np.ndarray):
        return isinstance(saved, np.ndarray) and saved.dtype == present.dtype and saved.ndim == present.ndim
    if isinstance(present, list | tuple):
        return isinstance(saved, list | tuple)
    for kind in _SCALARS:
        if isinstance(present, kind):
            return isinstance(saved, kind) and not (isinstance(saved, bool) and kind is not _SCALARS[0])
    return True


def _format(value: object) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    return f"{value!r:.60}"


def check_array(value: object, shape: tuple[int | None, ...], dtype: npt.DTypeLike, what: str) -> Array:
    """Return an array that has this dtype and shape; a length of ``None`` matches any.

    Raises:
        CorruptFileError: for any other value.
    """
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(want in (None, have) for have, want in zip(array.shape, shape, strict=True))
    if not fits or array.dtype != dtype:
        wanted = tuple("any" if length is None else length for length in shape)
        raise CorruptFileError(
            f"{what} is {_format(array)}; it must be {np.dtype(dtype)} of shape {wanted}: restore it from a copy"
        )
    return array
