"""AWAC: what goldens and the contract do not see."""

from __future__ import annotations

from typing import Any

import torch

from birl import algos
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_batch

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def test_awac_stays_finite_with_large_advantages() -> None:
    algorithm = build_algorithm(algos.AWACConfig(**ACTOR, lam=1e-3))
    with torch.no_grad():
        algorithm.nets.critic.head.linear.weight.mul_(1e4)
    for _ in range(3):
        metrics = algorithm.engine.update(random_batch())
    assert all(bool(torch.isfinite(value)) for value in metrics.values())
    algorithm.engine.check_finite()


def test_awac_logs_what_d3rlpy_logs() -> None:
    metrics = build_algorithm(algos.AWACConfig(**ACTOR)).engine.update(random_batch())
    assert set(metrics) == {"critic_loss", "q_value", "actor_loss", "temp", "temp_loss"}
    assert float(metrics["temp"]) == float(metrics["temp_loss"]) == 0.0
