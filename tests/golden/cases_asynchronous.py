"""Goldens of A3C and NStepDQN."""

from __future__ import annotations

from functools import partial
from typing import Any

from birl import algos
from tests.golden.case import VALUE_FIELDS, Case, by_algorithm, with_head
from tests.golden.cases_ppo import TANH, rollouts
from tests.golden.reference_a2c import A2CReference
from tests.golden.reference_n_step_dqn import NStepDQNReference


def _a3c(policy: str, **options: Any) -> Case:
    encoders = {"actor_encoder_factory": TANH, "value_encoder_factory": TANH, **options}
    reference = partial(
        A2CReference,
        rate=1e-2,
        gamma=0.9,
        gae_lambda=1.0,
        value_coefficient=0.25,
        entropy_coefficient=0.01,
        normalize=False,
        policy=policy,
        summed=True,
        eps=0.1,
        max_norm=40.0,
    )
    config = algos.A3CConfig(learning_rate=1e-2, gamma=0.9, **encoders)
    label = policy + " one encoder" * bool(options)
    return Case(label, config, reference, rollouts, discrete=policy == "discrete", update=by_algorithm)


def _n_step_dqn(head: str) -> Case:
    fields = {**VALUE_FIELDS, "gamma": 0.9, "target_update_interval": 2}
    numbers = {"rate": 1e-2, "gamma": 0.9, "interval": 2}
    parts = with_head(head, algos.NStepDQNConfig, fields, NStepDQNReference, numbers)
    return Case(head, **parts, inputs=rollouts, update=by_algorithm)


CASES: tuple[Case, ...] = (
    _a3c("discrete"),
    _a3c("parameter"),
    _a3c("discrete", value_encoder_factory=None),
    *map(_n_step_dqn, ("mean", "qr", "c51")),
)
