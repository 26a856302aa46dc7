"""Goldens of fitted Q evaluation: policies with scalers of their own, from raw minibatches on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos, ope
from birl.dataset import TransitionMiniBatch
from birl.preprocessing import MinMaxActionScaler, MultiplyRewardScaler, StandardObservationScaler
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from tests.golden.case import ACTIONS, CHOICES, ENCODER, HEADS, OBSERVATION, SIZE, UPDATES, build, exact
from tests.golden.reference_ope import EvaluatedPolicy, FQEReference

GAMMA, EPS = 0.9, 1e-3
POLICY_MEAN, POLICY_STD, POLICY_LOW, POLICY_HIGH = 0.5, 2.0, -3.0, 5.0
OWN_MEAN, OWN_STD, OWN_LOW, OWN_HIGH = -0.25, 0.5, -4.0, 6.0

POLICIES: dict[str, Any] = {
    # kind: configuration of the policy, number of sampled actions
    "deterministic": (algos.BCConfig, 0),
    "squashed": (algos.SACConfig, 2),
    "greedy": (algos.DQNConfig, 0),
    "categorical": (algos.DiscreteBCConfig, 3),
}


def _scalers(mean: float, std: float, low: float, high: float, discrete: bool) -> dict[str, Any]:
    means, deviations = [mean] * OBSERVATION, [std - EPS] * OBSERVATION
    scalers: dict[str, Any] = {"observation_scaler": StandardObservationScaler(mean=means, std=deviations, eps=EPS)}
    if not discrete:
        scalers["action_scaler"] = MinMaxActionScaler(minimum=[low] * ACTIONS, maximum=[high] * ACTIONS)
    return scalers


def minibatches(discrete: bool) -> list[tuple[TransitionMiniBatch, dict[str, Tensor]]]:
    """Minibatches in environment units: terminations, several steps, weights."""
    generator, pairs = np.random.default_rng(21), []
    for _ in range(UPDATES):
        action = torch.from_numpy(generator.integers(CHOICES, size=(SIZE, 1)))
        if not discrete:
            action = 4 * torch.tanh(exact(generator, SIZE, ACTIONS)).float().double() + 1
        reward = exact(generator, SIZE, 1)
        reward[0], reward[1] = 1.0, 6.0
        columns = {
            "terminal": torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64),
            "interval": torch.tensor([1.0, 1.0, 3.0, 1.0, 2.0, 1.0], dtype=torch.float64),
            "weight": torch.from_numpy(generator.uniform(0.3, 1.0, SIZE)),
        }
        observation, following = exact(generator, SIZE, OBSERVATION), exact(generator, SIZE, OBSERVATION)
        own = TransitionMiniBatch(
            observation, action, reward, following, *(column[:, None] for column in columns.values())
        )
        plain = {
            "observation": observation,
            "action": action[:, 0] if discrete else action,
            "reward": reward[:, 0],
            "next_observation": following,
            **columns,
        }
        pairs.append((own, plain))
    return pairs


@dataclass(frozen=True)
class EvaluationCase:
    """A golden of an evaluation, which needs a policy to evaluate."""

    name: str
    run: Callable[[], GoldenReport]


def _case(kind: str, head: str, n_critics: int = 2) -> EvaluationCase:
    config_class, samples = POLICIES[kind]
    discrete = kind in ("greedy", "categorical")
    encoder = "actor_encoder_factory" if kind == "squashed" else "encoder_factory"

    def run() -> GoldenReport:
        with double_precision():
            policy_scalers = _scalers(POLICY_MEAN, POLICY_STD, POLICY_LOW, POLICY_HIGH, discrete)
            policy = build(config_class(**{encoder: ENCODER}, **policy_scalers))
            cls = ope.DiscreteFQE if discrete else ope.FQE
            fqe = cls(
                policy,
                cls.config_class(
                    learning_rate=1e-2,
                    encoder_factory=ENCODER,
                    q_func_factory=HEADS[head][0],
                    n_critics=n_critics,
                    target_update_interval=2,
                    gamma=GAMMA,
                    n_action_samples=samples,
                    reward_scaler=MultiplyRewardScaler(0.5),
                    **_scalers(OWN_MEAN, OWN_STD, OWN_LOW, OWN_HIGH, discrete),
                ),
            )
            torch.manual_seed(4)
            fqe.create_impl((OBSERVATION,), policy.action_size)
            with torch.no_grad():
                for parameter in fqe.nets.critic_target.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            names = ("actor.0.", "critic.0.")
            plain = {name: x for name, x in plain_parameters(policy.nets).items() if name.startswith(names)}
            evaluated = EvaluatedPolicy(plain, kind, POLICY_MEAN, POLICY_STD, POLICY_LOW, POLICY_HIGH)
            reference = FQEReference(
                plain_parameters(fqe.nets),
                evaluated,
                samples=max(samples, 1),
                head=HEADS[head][1],
                discrete=discrete,
                rate=1e-2,
                interval=2,
                gamma=GAMMA,
                observe=lambda x: (x - OWN_MEAN) / OWN_STD,
                condition=(lambda a: a) if discrete else lambda a: 2 * (a - OWN_LOW) / (OWN_HIGH - OWN_LOW) - 1,
                reward_scale=0.5,
            )
            return compare_with_reference(fqe, reference, minibatches(discrete), update=fqe.update)

    name = "DiscreteFQE" if discrete else "FQE"
    return EvaluationCase(f"{name} {kind} {head}" + ("" if n_critics == 2 else f" x{n_critics}"), run)


CASES: tuple[EvaluationCase, ...] = (
    *(_case(kind, head) for kind in POLICIES for head in HEADS),
    _case("deterministic", "mean", n_critics=1),
    _case("greedy", "mean", n_critics=1),
)
