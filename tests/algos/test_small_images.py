"""Images smaller than Atari's are learned from with the default encoder."""

from __future__ import annotations

import numpy as np
import pytest

import birl
from birl.algos import DQNConfig
from birl.dataset import MDPDataset


@pytest.mark.parametrize("shape", [(1, 10, 10), (3, 7, 7)])
def test_dqn_learns_where_a_pixel_is(shape: tuple[int, int, int]) -> None:
    birl.seed(0)
    channels, height, width = shape
    rng = np.random.default_rng(0)
    rows, columns, actions = (rng.integers(high, size=400) for high in (height, width, 2))
    images = np.zeros((400, *shape), np.uint8)
    images[np.arange(400), channels - 1, rows, columns] = 255
    best = (columns > width // 2).astype(np.int64)  # one step each: is the pixel on the right?
    dataset = MDPDataset(images, actions, (actions == best).astype(np.float32), np.ones(400, bool))
    dqn = DQNConfig(
        learning_rate=1e-3, observation_scaler=birl.preprocessing.PixelObservationScaler(), target_update_interval=50
    ).create()
    dqn.build_with_dataset(dataset)
    assert (dqn.predict(images) == best).mean() < 0.8
    dqn.fit(dataset, n_steps=150, logger_adapter=birl.logging.NoopAdapterFactory(), show_progress=False)
    assert (dqn.predict(images) == best).mean() > 0.95
