"""NFQ: batch norm, and no target network."""

from __future__ import annotations

import pytest
import torch

from birl import algos
from birl.errors import ConfigError
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm
from birl.types import Batch

ENCODER = VectorEncoderFactory(hidden_units=[8])


def test_nfq_keeps_next_observations_out_of_batch_norm() -> None:
    encoder = VectorEncoderFactory(hidden_units=[8], use_batch_norm=True)
    algorithm = build_algorithm(algos.NFQConfig(encoder_factory=encoder, batch_size=8))
    x = torch.randn(8, 3)
    ones = torch.ones(8)
    batch = Batch(x, torch.zeros(8, dtype=torch.int64), ones, x + 100, 0.9 * ones, ones)
    algorithm.update(batch)
    means = [buffer for name, buffer in algorithm.nets.named_buffers() if name.endswith("running_mean")]
    counts = [buffer for name, buffer in algorithm.nets.named_buffers() if name.endswith("num_batches_tracked")]
    assert means and all(float(mean.abs().max()) < 1 for mean in means)
    assert all(int(count) == 1 for count in counts)


def test_nfq_has_no_target_network() -> None:
    algorithm = build_algorithm(algos.NFQConfig())
    assert dict(algorithm.nets.named_children()).keys() == {"critic"}
    with pytest.raises(ConfigError, match="target_update_interval"):
        algos.NFQConfig(target_update_interval=100)
