"""Masks of several choices at once, for the tests of all algorithms that take them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from birl.types import MASK

SIZES: Final = (3, 2, 4)
"""Numbers of options of the choices."""


def check_masked_options_are_never_taken(config: Any) -> None:
    torch.manual_seed(0)
    algorithm = config.create()
    algorithm.create_impl({"x": (3,), MASK: (9,)}, SIZES)
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2, size=(200, 9))
    for begin, size in zip((0, 3, 5), SIZES, strict=True):
        masks[np.arange(200), begin + rng.integers(size, size=200)] = 1
    x = {"x": rng.normal(size=(200, 3)).astype(np.float32), MASK: masks.astype(np.int8)}
    for action in (algorithm.predict(x), algorithm.sample_action(x)):
        assert action.shape == (200, 3)
        for begin, column in zip((0, 3, 5), action.T, strict=True):
            assert masks[np.arange(200), begin + column].all()
