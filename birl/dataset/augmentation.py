"""Augmentations, which change the images of minibatches at random on the training device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np
import torch

from birl.checks import check
from birl.dataset.dataset_info import DatasetInfo
from birl.errors import ConfigError
from birl.types import Array, Tree, leaf_shapes, tree_map

if TYPE_CHECKING:
    from torch import Tensor

_IMAGE: Final = 3  # dimensions: channels, height, width


@runtime_checkable
class Augmentation(Protocol):
    """Random change of the observations of a minibatch. The dataset's generator draws the random numbers."""

    def fits(self, info: DatasetInfo, picker: Callable[..., Any]) -> None:
        """Raise a `birl.errors.BirlError` unless the augmentation supports the data and the transition picker."""

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """Draw random numbers ``[count, k]`` for ``count`` elements."""

    def __call__(self, observations: Tree, numbers: Tensor) -> Tree:
        """Change observations ``[..., *shape]`` by ``numbers`` ``[..., k]``, both on the training device."""


@dataclass(frozen=True)
class RandomShift(Augmentation):
    """Random shifts of images by up to ``pad`` pixels in each direction (DrQ: Kostrikov et al. 2020, arXiv:2004.13649).

    Borders are filled with the nearest pixel. Observations and next observations are shifted independently, all steps
    of a sequence alike. An update uses one shift of each, DrQ's K = M = 1, as in DrQ-v2 (arXiv:2107.09645).
    Observations that are not images ``[C, H, W]`` do not change.

    Args:
        pad: number of pixels, at least 1. The paper uses 4 for 84 by 84 pixels.

    Raises:
        ConfigError: if there are no images.
    """

    pad: int = 4

    def __post_init__(self) -> None:
        check("pad", self.pad, int, low=1)

    def fits(self, info: DatasetInfo, picker: Callable[..., Any]) -> None:
        shapes = info.observation_signature.tree_shape
        if all(len(shape) != _IMAGE for shape in leaf_shapes(shapes)):
            raise ConfigError(
                f"RandomShift shifts images (channels, height, width); observations have the shape {shapes!r:.100}: "
                "leave the augmentation (--random-shift) out"
            )

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        return generator.integers(-self.pad, self.pad + 1, size=(count, 2))

    def __call__(self, observations: Tree, numbers: Tensor) -> Tree:
        lead = numbers.dim() - 1

        def shift(x: Tensor) -> Tensor:
            if x.dim() - lead != _IMAGE:
                return x
            for axis, by in ((-2, numbers[..., 0]), (-1, numbers[..., 1])):
                size = x.shape[axis]
                index = (torch.arange(size, device=x.device) + by[..., None]).clamp(0, size - 1)
                shape = [*index.shape[:-1], 1, 1, 1]
                shape[axis] = size
                x = x.gather(axis, index.reshape(shape).expand_as(x))
            return x

        return tree_map(shift, observations)
