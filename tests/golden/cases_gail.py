"""Goldens of GAIL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from birl import algos
from birl.dataset import MDPDataset
from birl.optimizers import AdamFactory
from tests.golden.case import ACTIONS, CHOICES, OBSERVATION, Case, by_algorithm
from tests.golden.cases_ppo import TANH, rollouts
from tests.golden.reference_gail import GAILReference


def demonstrated(algorithm: Any) -> list[Any]:
    """The rollouts of PPO's goldens, with drawn steps of an expert."""
    generator, discrete, pairs = np.random.default_rng(4), algorithm.spec.actions.discrete, []
    action: Any = generator.integers(CHOICES, size=40)
    if not discrete:
        action = generator.normal(size=(40, ACTIONS)).astype(np.float32)
    expert = MDPDataset(
        generator.normal(size=(40, OBSERVATION)).astype(np.float32),
        action,
        np.zeros(40, np.float32),
        np.arange(40) % 10 == 9,
        action_size=CHOICES if discrete else ACTIONS,
    )
    for rollout, plain in rollouts(algorithm):
        drawn = expert.sample_transition_batch(rollout.valid.size)
        lead = rollout.valid.shape
        own = torch.from_numpy(np.array(drawn.actions)).reshape(*lead, -1)
        columns = {
            "expert_observation": torch.from_numpy(np.array(drawn.observations)).double().reshape(*lead, -1),
            "expert_action": own[..., 0] if discrete else own.double(),
        }
        pairs.append((replace(rollout, expert=drawn), {**plain, **columns}))
    return pairs


def _gail(form: str, discrete: bool) -> Case:
    config = algos.GAILConfig(
        learning_rate=1e-2,
        optim_factory=AdamFactory(eps=1e-5, clip_grad_norm=0.5),
        actor_encoder_factory=TANH,
        value_encoder_factory=TANH,
        discriminator_encoder_factory=TANH,
        discriminator_learning_rate=2e-2,
        n_discriminator_epochs=2,
        batch_size=5,
        n_epochs=3,
        gamma=0.9,
        reward=form,
    )
    reference = partial(
        GAILReference,
        form=form,
        judge_rate=2e-2,
        judge_epochs=2,
        choices=CHOICES,
        rate=1e-2,
        eps=1e-5,
        max_norm=0.5,
        gamma=0.9,
        gae_lambda=0.95,
        clip=0.2,
        value_clip=None,
        value_coefficient=0.5,
        entropy_coefficient=0.0,
        epochs=3,
        batch_size=5,
        normalize=True,
        target_kl=None,
        policy="discrete" if discrete else "parameter",
    )
    label = f"{form} {'discrete' if discrete else 'continuous'}"
    return Case(label, config, reference, demonstrated, discrete=discrete, update=by_algorithm)


CASES: tuple[Case, ...] = tuple(_gail(form, discrete) for form in ("gail", "airl") for discrete in (True, False))
