"""One seed for all random number generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from birl.checks import Allowed

_root = np.random.SeedSequence()
SEED = Allowed(int, low=0, high=2**32 - 1)


def seed(value: int) -> None:
    """Seed Python, numpy, torch and every generator that birl makes from now on.

    Args:
        value: any integer in ``[0, 2**32 - 1]``.

    Raises:
        ConfigError: if it is not.
    """
    global _root
    value = SEED.check("seed", value)
    _root = np.random.SeedSequence(value)
    random.seed(value)
    np.random.seed(value)  # users and environments may draw from the global generator
    torch.manual_seed(value)


@contextlib.contextmanager
def root_kept() -> Iterator[None]:
    """Restore the global seed on exit."""
    global _root
    root = _root
    try:
        yield
    finally:
        _root = root


def new_generator() -> np.random.Generator:
    """A new generator, independent of all others, determined by the last `seed` and the order of calls."""
    return np.random.Generator(np.random.PCG64(_root.spawn(1)[0]))
