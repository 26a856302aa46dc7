"""Old policies at padding: parameters there are zeros, which no distribution need have."""

from __future__ import annotations

from typing import Any

import pytest

import birl
from birl import algos
from birl.logging import NoopAdapterFactory
from birl.models import BetaFactory, VectorEncoderFactory

SMALL = VectorEncoderFactory([6])


@pytest.mark.parametrize("config", [algos.ACERConfig, algos.IMPALAConfig])
def test_beta_policies_learn_from_replays_with_padding(config: Any) -> None:
    birl.seed(0)
    algorithm = config(
        distribution_factory=BetaFactory(),
        actor_encoder_factory=SMALL,
        value_encoder_factory=SMALL,
        replay_start=20,
        rollout_length=8,
        batch_size=4,
        replay_ratio=2.0,
    ).create()
    env = birl.testing.ChainEnv(discrete=False)
    algorithm.fit_online(env, n_steps=160, show_progress=False, logger_adapter=NoopAdapterFactory(), seed=0)
    assert all(parameter.isfinite().all() for parameter in algorithm.nets.parameters())
