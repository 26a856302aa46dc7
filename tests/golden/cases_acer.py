"""Goldens of ACER and IMPALA: updates from rollouts that another policy chose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.models import NormalFactory
from birl.optimizers import AdamFactory
from birl.run.protocols import Rollout
from tests.golden.case import ENCODER, Case, by_algorithm, exact
from tests.golden.cases_ppo import rollouts
from tests.golden.reference_acer import ContinuousACERReference, DiscreteACERReference, IMPALAReference


def replayed(algorithm: Any) -> list[tuple[Rollout, dict[str, Tensor]]]:
    """Rollouts with the parameters of the policies that chose their actions."""
    generator, pairs = np.random.default_rng(10), []
    for rollout, plain in rollouts(algorithm):
        size = algorithm.spec.actions.size
        policy = exact(generator, *rollout.reward.shape, size)
        if not algorithm.spec.actions.discrete:
            policy = torch.cat((policy, exact(generator, *rollout.reward.shape, size) / 4), -1)
        column = policy.numpy().astype(np.float32)
        pairs.append((replace(rollout, extra={"policy": column}), {**plain, "policy": policy}))
    return pairs


FIELDS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "gamma": 0.9,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.03,
}
OWN = {"rate" if name == "learning_rate" else name: value for name, value in FIELDS.items()}
REGION = {"truncation": 1.5, "tau": 0.1}


def both_branches(reference: Any) -> None:
    """The trust region was left and kept, and large weights were corrected: else the golden would not show them."""
    assert all(reference.used.values()), reference.used


def _acer(delta: float, std: str = "", *, one_encoder: bool = False) -> Case:
    own = None if one_encoder else ENCODER
    encoders = {"actor_encoder_factory": ENCODER, "optim_factory": AdamFactory()}
    given = {**OWN, **REGION, "delta": delta}
    if not std:
        config: Any = algos.DiscreteACERConfig(
            **FIELDS, **REGION, **encoders, critic_encoder_factory=own, trust_region=delta
        )
        reference: Any = partial(DiscreteACERReference, **given)
    else:
        config = algos.ACERConfig(
            **FIELDS,
            **REGION,
            **encoders,
            trust_region=delta,
            critic_encoder_factory=ENCODER,
            value_encoder_factory=own,
            n_samples=2,
            distribution_factory=NormalFactory(std=std, initial_std=0.5),
        )
        reference = partial(ContinuousACERReference, **given, n_samples=2, std=std)
    label = std + " one encoder" * one_encoder
    return Case(label.strip(), config, reference, replayed, update=by_algorithm, check=both_branches)


def _impala(discrete: bool, *, one_encoder: bool = False) -> Case:
    clips = {"clip_rho": 1.2, "clip_c": 0.9, "trace_lambda": 0.95}
    config = algos.IMPALAConfig(
        **FIELDS,
        **clips,
        optim_factory=AdamFactory(),
        actor_encoder_factory=ENCODER,
        value_encoder_factory=None if one_encoder else ENCODER,
    )
    reference = partial(IMPALAReference, **OWN, **clips, discrete=discrete)
    label = ("discrete" if discrete else "continuous") + " one encoder" * one_encoder
    return Case(label, config, reference, replayed, discrete=discrete, update=by_algorithm)


CASES: tuple[Case, ...] = (
    _acer(0.05),
    _acer(0.05, one_encoder=True),
    _acer(0.5, "fixed"),
    _acer(0.5, "parameter"),
    _acer(0.5, "fixed", one_encoder=True),
    _impala(True),
    _impala(False),
    _impala(True, one_encoder=True),
)
