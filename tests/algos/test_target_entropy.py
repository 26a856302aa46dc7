"""The entropy that temperatures aim at."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import birl
from birl import algos
from birl.dataset import MDPDataset
from birl.errors import ConfigError
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_dataset

SMALL = VectorEncoderFactory([8])
FIELDS: Any = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 16}


def temperature_loss(config: Any, make_data: Callable[[], Any]) -> float:
    """Of the first update: ``temperature * (entropy - target)``."""
    birl.seed(0)
    dataset = make_data()  # with a generator of the seed's
    algorithm = config.create()
    algorithm.build_with_dataset(dataset)
    birl.seed(1)
    return float(algorithm.update(algorithm.sample_minibatch(dataset))["temp_loss"])


@pytest.mark.parametrize("kind", [algos.SACConfig, algos.DiscreteSACConfig, algos.CQLConfig])
def test_temperatures_aim_at_the_given_entropy(kind: Any) -> None:
    discrete = kind is algos.DiscreteSACConfig
    usual, given = (0.98 * math.log(3), 0.3) if discrete else (-2.0, -3.5)
    data = partial(random_dataset, action_size=3 if discrete else 2, discrete_action=discrete)
    configs = (kind(initial_temperature=0.5, target_entropy=target, **FIELDS) for target in (None, given))
    losses = [temperature_loss(config, data) for config in configs]
    assert losses[1] - losses[0] == pytest.approx(0.5 * (usual - given), abs=1e-5)


def test_of_masked_actions_it_is_the_same_share_of_what_is_possible() -> None:
    allowed = np.array([[1, 1, 0, 0]] * 40)
    steps = (np.ones((40, 2), np.float32), np.arange(40) % 2, np.zeros(40), np.arange(40) % 5 == 4)
    data = partial(MDPDataset, *steps, action_masks=allowed)
    configs = (algos.DiscreteSACConfig(target_entropy=target, **FIELDS) for target in (None, 0.25 * math.log(4)))
    losses = [temperature_loss(config, data) for config in configs]
    assert losses[1] - losses[0] == pytest.approx((0.98 - 0.25) * math.log(2), abs=1e-5)


@pytest.mark.parametrize("target", [-0.1, 1.2])
def test_an_entropy_that_no_policy_has_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match=r"target_entropy is .*; policies of .* have an entropy from 0 to 1\.099"):
        build_algorithm(algos.DiscreteSACConfig(target_entropy=target, **FIELDS), action_size=3)
