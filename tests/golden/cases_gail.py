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
from tests.golden.cases_trpo import SAME_SEARCH, SEARCH
from tests.golden.reference_gail import A2CGAILReference, GAILReference, TRPOGAILReference


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
            "expert_next_observation": torch.from_numpy(np.array(drawn.next_observations)).double().reshape(*lead, -1),
            "expert_goes_on": torch.from_numpy(np.array(drawn.terminals) == 0).reshape(lead),
            "expert_action": own[..., 0] if discrete else own.double(),
        }
        pairs.append((replace(rollout, expert=drawn), {**plain, **columns}))
    return pairs


JUDGE: dict[str, Any] = {
    "actor_encoder_factory": TANH,
    "value_encoder_factory": TANH,
    "discriminator_encoder_factory": TANH,
    "discriminator_learning_rate": 2e-2,
    "n_discriminator_epochs": 2,
    "batch_size": 5,
    "gamma": 0.9,
}
SAME_JUDGE: dict[str, Any] = {
    "judge_rate": 2e-2,
    "judge_epochs": 2,
    "judge_batch_size": 5,
    "choices": CHOICES,
    "gamma": 0.9,
}


def _case(label: str, config: Any, reference: Any, discrete: bool) -> Case:
    label = f"{label} {'discrete' if discrete else 'continuous'}"
    return Case(label, config, reference, demonstrated, discrete=discrete, update=by_algorithm)


def _gail(form: str, discrete: bool, label: str = "", **judge: bool) -> Case:
    config = algos.GAILConfig(
        learning_rate=1e-2,
        optim_factory=AdamFactory(eps=1e-5, clip_grad_norm=0.5),
        n_epochs=3,
        entropy_coefficient=0.02,
        reward=form,
        **judge,
        **JUDGE,
    )
    reference = partial(
        GAILReference,
        form=form,
        rate=1e-2,
        eps=1e-5,
        max_norm=0.5,
        gae_lambda=0.95,
        clip=0.2,
        value_clip=None,
        value_coefficient=0.5,
        entropy_coefficient=0.02,
        epochs=3,
        batch_size=5,
        normalize=True,
        target_kl=None,
        policy="discrete" if discrete else "parameter",
        **judge,
        **SAME_JUDGE,
    )
    return _case(form + label, config, reference, discrete)


def _trpo(form: str, discrete: bool) -> Case:
    config = algos.TRPOGAILConfig(
        reward=form,
        value_learning_rate=1e-2,
        n_epochs=3,
        gae_lambda=0.95,
        entropy_coefficient=0.03,
        **SEARCH,
        **JUDGE,
    )
    reference = partial(
        TRPOGAILReference,
        form=form,
        policy="discrete" if discrete else "parameter",
        max_kl=0.01,
        rate=1e-2,
        epochs=3,
        batch_size=5,
        normalize=True,
        gae_lambda=0.95,
        entropy_coefficient=0.03,
        **SAME_SEARCH,
        **SAME_JUDGE,
    )
    return _case(form, config, reference, discrete)


def _a2c(form: str, discrete: bool) -> Case:
    config = algos.A2CGAILConfig(learning_rate=1e-2, reward=form, **JUDGE)
    reference = partial(
        A2CGAILReference,
        form=form,
        rate=1e-2,
        gae_lambda=1.0,
        value_coefficient=0.5,
        entropy_coefficient=0.01,
        normalize=False,
        policy="discrete" if discrete else "parameter",
        **{**SAME_JUDGE, "judge_batch_size": 1000},
    )
    return _case(form, config, reference, discrete)


CASES: tuple[Case, ...] = (
    *(_gail(form, discrete) for form in ("gail", "airl") for discrete in (True, False)),
    _gail("airl", True, " of states, shaped", states_only=True, shaping=True),
    _gail("airl", False, " shaped", shaping=True),
    _trpo("gail", True),
    _trpo("airl", False),
    _a2c("airl", True),
    _a2c("gail", False),
)
