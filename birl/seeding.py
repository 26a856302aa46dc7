"""One seed for all random number generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import TypeGuard

import numpy as np
import torch

from birl.errors import ConfigError

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
