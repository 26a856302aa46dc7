"""Goldens of PPO."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.models import BetaFactory, NormalFactory, SquashedNormalFactory, VectorEncoderFactory
from birl.optimizers import AdamFactory, LinearSchedulerFactory
from birl.run.protocols import Rollout
from tests.golden.case import ACTIONS, CHOICES, OBSERVATION, Case, _as_built, by_algorithm, exact
from tests.golden.reference_ppo import PPOReference

TANH = VectorEncoderFactory(hidden_units=[7, 5], activation="tanh")


def rollouts(algorithm: Any) -> list[tuple[Rollout, dict[str, Tensor]]]:
    """Rollouts with a termination, time limits and an invalid step, for the algorithm and for the reference."""
    generator, length, lanes = np.random.default_rng(9), 7, 2
    discrete, pairs = algorithm.spec.actions.discrete, []
    for _ in range(2):
        observation = exact(generator, length, lanes, OBSERVATION)
        following = exact(generator, length, lanes, OBSERVATION)
        following[:-1] = observation[1:]
        action = torch.from_numpy(generator.integers(CHOICES, size=(length, lanes)))
        if not discrete:
            action = exact(generator, length, lanes, ACTIONS)
            if isinstance(algorithm.config.distribution_factory, BetaFactory | SquashedNormalFactory):
                action = (action / 4).clamp(-0.875, 0.875)
        flags = {name: np.zeros((length, lanes), bool) for name in ("terminated", "truncated", "is_first")}
        flags["terminated"][2, 0] = flags["truncated"][3, 1] = flags["truncated"][6, 0] = True
        flags["is_first"][0] = flags["is_first"][3, 0] = flags["is_first"][5, 1] = True
        valid = np.ones((length, lanes), bool)
        valid[4, 1] = False  # the reset step of one environment
        for t, n in ((2, 0), (3, 1), (6, 0)):  # the last observation of an episode is not the first of the next
            following[t, n] = exact(generator, OBSERVATION)
        reward = exact(generator, length, lanes)
        rollout = Rollout(
            observation=observation.numpy().astype(np.float32),
            action=action.numpy() if discrete else action.numpy().astype(np.float32),
            reward=reward.numpy().astype(np.float32),
            next_observation=following.numpy().astype(np.float32),
            **flags,
            valid=valid,
            extra={},
        )
        plain = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "next_observation": following,
            "valid": torch.from_numpy(valid),
            **{name: torch.from_numpy(value) for name, value in flags.items()},
        }
        pairs.append((rollout, plain))
    return pairs


def _ppo(
    policy: str,
    value_clip: float | None = None,
    normalize: bool = True,
    kl: float | None = None,
    dual_clip: float | None = None,
    penalty: float = 0.0,
    clip: float = 0.2,
    rule: tuple[float, str] | None = None,
    duration: int | None = None,
    **options: Any,
) -> Case:
    discrete = policy == "discrete"
    schedule = None if duration is None else LinearSchedulerFactory(duration)
    config = algos.PPOConfig(
        learning_rate=1e-2,
        optim_factory=AdamFactory(eps=1e-5, clip_grad_norm=0.5, lr_scheduler_factory=schedule),
        clip_range_schedule=schedule,
        **{"actor_encoder_factory": TANH, "value_encoder_factory": TANH, **options},
        batch_size=5,
        n_epochs=3,
        entropy_coefficient=0.03,
        value_clip_range=value_clip,
        normalize_advantage=normalize,
        target_kl=kl,
        dual_clip=dual_clip,
        kl_coefficient=penalty,
        kl_penalty_target=rule and rule[0],
        clip_range=clip,
        gamma=0.9,
    )
    reference = partial(
        PPOReference,
        rate=1e-2,
        eps=1e-5,
        max_norm=0.5,
        gamma=0.9,
        gae_lambda=0.95,
        clip=clip,
        value_clip=value_clip,
        value_coefficient=0.5,
        entropy_coefficient=0.03,
        epochs=3,
        batch_size=5,
        normalize=normalize,
        target_kl=kl,
        policy=policy,
        dual_clip=dual_clip,
        kl_coefficient=penalty,
        kl_target=rule and rule[0],
        duration=duration,
    )
    variant = (" value clip" if value_clip else "") + (" target KL" if kl else "")
    variant += " dual clip" * (dual_clip is not None) + " penalty" * (penalty > 0)
    variant += f" adapted {rule[1]}" if rule else ""
    variant += " schedules" * (duration is not None)
    variant += " one encoder" if "value_encoder_factory" in options else ""
    return Case(
        ("continuous" if policy == "parameter" else policy) + variant,
        config,
        reference,
        rollouts,
        discrete=discrete,
        update=by_algorithm,
        check=partial(_followed, rule=rule[1]) if rule else _as_built,
    )


def _followed(reference: Any, rule: str) -> None:
    """What the rule said of the penalty's weight after each rollout: ``+`` for twice, ``-`` for half, else ``0``."""
    assert reference.ruled == rule, reference.ruled


CASES: tuple[Case, ...] = (
    _ppo("discrete"),
    _ppo("discrete", value_encoder_factory=None),
    _ppo("parameter", value_encoder_factory=None),
    _ppo("parameter"),
    _ppo("parameter", value_clip=0.1, normalize=False),
    _ppo("parameter", kl=0.001),
    _ppo("parameter", dual_clip=1.05),
    _ppo("discrete", penalty=0.7, clip=1e9),
    _ppo("parameter", penalty=0.7),
    _ppo("discrete", penalty=0.7, clip=1e9, rule=(1e-5, "++")),
    _ppo("parameter", penalty=0.7, rule=(10.0, "--")),
    _ppo("discrete", penalty=0.7, clip=1e9, rule=(0.0034, "-0")),
    *(
        _ppo(std, distribution_factory=NormalFactory(std=std, initial_std=0.5))
        for std in ("spherical", "state", "fixed")
    ),
    _ppo("beta", distribution_factory=BetaFactory()),
    _ppo("squashed", distribution_factory=SquashedNormalFactory(initial_std=0.5)),
    _ppo("discrete", clip=0.02, duration=20),
)
