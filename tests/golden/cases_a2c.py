"""Goldens of A2C and REINFORCE."""

from __future__ import annotations

from functools import partial
from typing import Any

from birl import algos
from birl.models import NormalFactory
from tests.golden.case import Case, by_algorithm
from tests.golden.cases_ppo import TANH, rollouts
from tests.golden.reference_a2c import A2CReference, REINFORCEReference


def _a2c(policy: str, label: str = "", gae_lambda: float = 1.0, normalize: bool = False, **options: Any) -> Case:
    encoders = {"actor_encoder_factory": TANH, "value_encoder_factory": TANH, **options}
    config = algos.A2CConfig(
        learning_rate=1e-2, gamma=0.9, gae_lambda=gae_lambda, normalize_advantage=normalize, **encoders
    )
    reference = partial(
        A2CReference,
        rate=1e-2,
        gamma=0.9,
        gae_lambda=gae_lambda,
        value_coefficient=0.5,
        entropy_coefficient=0.01,
        normalize=normalize,
        policy=policy,
    )
    discrete = policy == "discrete"
    return Case(f"{policy}{label}", config, reference, rollouts, discrete=discrete, update=by_algorithm)


def _reinforce(policy: str, label: str = "", baseline: bool = False, gamma: float = 1.0, **options: Any) -> Case:
    config = algos.REINFORCEConfig(
        learning_rate=1e-2,
        gamma=gamma,
        entropy_coefficient=0.02,
        baseline=baseline,
        **{"actor_encoder_factory": TANH, "value_encoder_factory": TANH, **options},
    )
    reference = partial(
        REINFORCEReference, rate=1e-2, gamma=gamma, entropy_coefficient=0.02, baseline=baseline, policy=policy
    )
    discrete = policy == "discrete"
    return Case(f"{policy}{label}", config, reference, rollouts, discrete=discrete, update=by_algorithm)


CASES: tuple[Case, ...] = (
    _a2c("discrete"),
    _a2c("parameter", " GAE, standardised", gae_lambda=0.8, normalize=True),
    _a2c("discrete", " one encoder", value_encoder_factory=None),
    _reinforce("discrete"),
    _reinforce("fixed", distribution_factory=NormalFactory(std="fixed", initial_std=0.5)),
    _reinforce("discrete", " baseline", baseline=True, gamma=0.9),
    _reinforce("discrete", " baseline, one encoder", baseline=True, gamma=0.9, value_encoder_factory=None),
)
