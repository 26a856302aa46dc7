"""One seed for all random number generators, and the state of the global ones."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import TypeGuard

import numpy as np
import torch

from birl.errors import ConfigError
from birl.types import State

_root = np.random.SeedSequence()


def seed(value: int) -> None:
    """Seed Python, numpy, torch and every generator that birl makes afterwards.

    Args:
        value: any integer in ``[0, 2**32 - 1]``.

    Raises:
        ConfigError: for any other value.
    """
    global _root
    if not is_seed(value):
        raise ConfigError(f"seed is {value!r:.80}; it must be an int >= 0 and <= {2**32 - 1}")
    value = int(value)
    _root = np.random.SeedSequence(value)
    random.seed(value)
    np.random.seed(value)  # users and environments may use the global generator
    torch.manual_seed(value)


def forget_seed() -> None:
    """Return to a random seed, as in a new process."""
    global _root
    _root = np.random.SeedSequence()


def is_seed(value: object) -> TypeGuard[int]:
    """Return whether ``value`` can seed all generators."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) < 2**32


@contextlib.contextmanager
def preserve_seed() -> Iterator[None]:
    """Restore the global seed on exit."""
    global _root
    root = _root
    try:
        yield
    finally:
        _root = root


def new_generator() -> np.random.Generator:
    """Return an independent generator, which the last `seed` and the order of calls determine."""
    return np.random.Generator(np.random.PCG64(_root.spawn(1)[0]))


def random_state() -> State:
    """Return the state of the global generators of Python, numpy and torch, including all CUDA devices in use."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: State = {
        "python": {"version": version, "internal": np.array(internal, dtype=np.uint64), "gauss": gauss},
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = {str(index): value for index, value in enumerate(torch.cuda.get_rng_state_all())}
    return state


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Return a context that restores the global random state on exit, so that evaluation does not affect training."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def set_random_state(state: State) -> None:
    """Inverse of `random_state`."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(np.asarray(python["internal"]).tolist()), python["gauss"]))
    fields = (legacy["kind"], legacy["keys"], legacy["position"], legacy["has_gauss"], legacy["cached"])
    np.random.set_state(fields)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(state["cuda"].values()))
