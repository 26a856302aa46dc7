"""The table of all recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    PixelEncoderFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.optimizers import AdamFactory, LinearSchedulerFactory, RMSpropFactory
from birl.preprocessing import MultiplyRewardScaler, PixelObservationScaler, RunningObservationScaler
from birl.recipes.recipe import Setting

# -- what recipes share ------------------------------------------------------------------------------------------------

_DQN_PAPER, _PFRL, _NNABLA = "doi:10.1038/nature14236", "PFRL", "NNablaRL"
_INTERVAL: Final = 4


def _updates(steps: int) -> int:
    """Updates in so many environment steps, with one every four."""
    return steps // _INTERVAL


def _atari(
    *,
    target: int,
    end: float | None = 0.01,
    eval_epsilon: float = 0.001,
    start: int = 50_000,
    stack: int = 4,
    source: str = f"{_PFRL} and {_NNABLA}",
) -> tuple[Setting, ...]:
    """The protocol of Atari's value-based algorithms.

    Args:
        target: environment steps between copies of the target network.
        end: last epsilon; ``None`` for networks that explore by themselves.
        eval_epsilon: epsilon in evaluations.
        start: steps before the first update.
        stack: frames that are joined.
        source: of these numbers.
    """
    explore = (
        Setting("--epsilon-start", 1.0, _DQN_PAPER),
        Setting("--epsilon-end", end, source),
        Setting("--epsilon-steps", 1_000_000, _DQN_PAPER),
    )
    return (
        Setting("--n-steps", 50_000_000, f"{source}: 200 million frames"),
        Setting("--atari", True, f"{source}: no sticky actions, 30 no-ops, lives end episodes"),
        *((Setting("--frame-stack", stack, _DQN_PAPER),) if stack > 1 else ()),
        Setting("--buffer-size", 1_000_000, _DQN_PAPER),
        Setting("--random-steps", start, f"{source}: steps before the first update"),
        Setting("--update-interval", _INTERVAL, _DQN_PAPER),
        *(explore if end is not None else (Setting("--explorer", "none", source),)),
        Setting("--n-steps-per-epoch", 250_000, f"{source}: 1 million frames"),
        Setting("--eval-steps", 125_000, f"{source}: 500,000 frames"),
        Setting("--eval-epsilon", eval_epsilon, source),
        Setting("--eval-statistics", True, source),
        Setting("observation_scaler", PixelObservationScaler(), _DQN_PAPER),
        Setting("batch_size", 32, _DQN_PAPER),
        Setting("gamma", 0.99, _DQN_PAPER),
        Setting("target_update_interval", _updates(target), f"{source}: {target:,} steps, {_INTERVAL} an update"),
    )


_RMSPROP: Final = (
    Setting("learning_rate", 2.5e-4, _DQN_PAPER),
    Setting(
        "optim_factory",
        RMSpropFactory(alpha=0.95, eps=1e-2 / 32**2, centered=True, eps_inside_root=True),
        f"{_DQN_PAPER}: 0.01 for the sum of a minibatch of 32, whose mean birl takes",
    ),
)


def _adam(rate: float, eps: float, source: str) -> tuple[Setting, ...]:
    return Setting("learning_rate", rate, source), Setting("optim_factory", AdamFactory(eps=eps), source)


def _head(factory: QFunctionFactory, source: str) -> Setting:
    return Setting("q_func_factory", factory, source)


_IQN: Final = _head(
    IQNQFunctionFactory(n_quantiles=64, n_greedy_quantiles=32, n_choice_quantiles=32),
    "arXiv:1806.06923: N = N' = 64, K = 32",
)
_CONVOLUTIONS: Final = PixelEncoderFactory(feature_size=None)
_RAINBOW: Final = C51QFunctionFactory(n_atoms=51, v_min=-10.0, v_max=10.0, dueling=[512], noisy=0.5)
_400_300: Final = VectorEncoderFactory([400, 300])
_256_256: Final = VectorEncoderFactory([256, 256])
_64_64: Final = VectorEncoderFactory([64, 64], activation="tanh")


_DER_PAPER: Final = "arXiv:1906.05243"
_APEX_PAPER, _R2D2_PAPER = "arXiv:1803.00933", "openreview r1lyTjAqYX"


def _many_actors(*, target: int, start: int, source: str) -> tuple[Setting, ...]:
    """The protocol of Ape-X and R2D2, with the number of collectors that a large machine has.

    Args:
        target: updates between copies of the target network.
        start: steps before the first update.
        source: of these numbers.
    """
    return (
        Setting("--n-steps", 50_000_000, f"200 million frames, as of the others; {source} shows billions"),
        Setting("--atari", True, f"{source}: no sticky actions, 30 no-ops; here lost lives end episodes"),
        Setting("--frame-stack", 4, _DQN_PAPER),
        Setting("--collectors", 8, f"what fits on one machine; {source} has hundreds"),
        Setting("--shards", 1, f"{source}: one replay, outside the learner"),
        Setting("--explorer", "epsilon-ladder", f"{source}: 0.4 ** (1 + 7 i / (N - 1)) for actor i of N"),
        Setting("--random-steps", start, f"{source}: steps before the first update, here of random actions"),
        Setting("--prioritized", True, source),
        Setting("--n-steps-per-epoch", 250_000, "1 million frames, as of the others"),
        Setting("--eval-steps", 125_000, "500,000 frames, as of the others"),
        Setting("observation_scaler", PixelObservationScaler(), _DQN_PAPER),
        Setting("target_update_interval", target, f"{source}: updates"),
    )


def _mujoco(n_steps: int, steps_source: str, source: str) -> tuple[Setting, ...]:
    """The protocol of off-policy algorithms in MuJoCo's environments."""
    return (
        Setting("--n-steps", n_steps, steps_source),
        Setting("--buffer-size", 1_000_000, source),
        Setting("--random-steps", 10_000, source),
        Setting("--n-steps-per-epoch", 5000, source),
        Setting("--n-trials", 10, source),
    )


def _actor_critic(encoder: VectorEncoderFactory, rate: float, batch_size: int, source: str) -> tuple[Setting, ...]:
    return (
        Setting("actor_encoder_factory", encoder, source),
        Setting("critic_encoder_factory", encoder, source),
        Setting("actor_learning_rate", rate, source),
        Setting("critic_learning_rate", rate, source),
        Setting("batch_size", batch_size, source),
        Setting("tau", 0.005, source),
    )


def _soft(source: str) -> tuple[Setting, ...]:
    """What both forms of SAC share."""
    return _actor_critic(_256_256, 3e-4, 256, source)


def _deterministic(source: str) -> tuple[Setting, ...]:
    return (
        *_mujoco(1_000_000, source, source),
        Setting("--explorer", "noise", f"{source}: a tenth of half the range"),
        *_actor_critic(_400_300, 1e-3, 100, source),
    )


_SAC_PAPER: Final = "arXiv:1801.01290 table 1"
_PPO_PAPER: Final = "arXiv:1707.06347 table 5"
_PPO_MUJOCO: Final = f"{_PFRL}, arXiv:1707.06347 table 3"


_A3C_PAPER, _ACER_PAPER, _TRPO_PAPER = "arXiv:1602.01783", "arXiv:1611.01224", "arXiv:1709.06560"
_A3C_NETWORK: Final = PixelEncoderFactory([[16, 8, 4], [32, 4, 2]], feature_size=256)


def _images(n_steps: int, source: str) -> tuple[Setting, ...]:
    """The protocol of actor-critics on Atari's images, which learn from rollouts."""
    return (
        Setting("--n-steps", n_steps, f"{source}: {4 * n_steps // 1_000_000} million frames"),
        Setting("--atari", True, f"{source}: no sticky actions, 30 no-ops, lives end episodes"),
        Setting("--frame-stack", 4, _DQN_PAPER),
        Setting("observation_scaler", PixelObservationScaler(), _DQN_PAPER),
        Setting("gamma", 0.99, source),
    )


def _falling_rmsprop(every: int, eps: float, norm: float, source: str, *, inside: bool) -> Setting:
    """RMSprop whose learning rate falls to 0 over a run with an update every ``every`` steps."""
    fixed = RMSpropFactory(alpha=0.99, eps=eps, centered=False, eps_inside_root=inside, clip_grad_norm=norm)

    def made(n: int) -> RMSpropFactory:
        return dataclasses.replace(fixed, lr_scheduler_factory=LinearSchedulerFactory(max(1, n // every)))

    return Setting("optim_factory", made, source)


# 8 environments x 128 steps give 3 passes of 4 minibatches: 12 updates in 1024 steps
def _ppo_updates(n_steps: int) -> int:
    return max(1, n_steps * 12 // 1024)


ROWS: Final[Mapping[tuple[str, str], tuple[str, tuple[Setting, ...]]]] = {
    ("DQN", "atari"): (
        f"Mnih et al. 2015, {_DQN_PAPER}; PFRL's reproduction",
        (*_atari(target=10_000, end=0.1, eval_epsilon=0.05, source=_PFRL), *_RMSPROP),
    ),
    ("DQN", "c51"): (
        "Bellemare et al. 2017, arXiv:1707.06887; NNablaRL's reproduction",
        (
            *_atari(target=10_000, source=_NNABLA),
            *_adam(2.5e-4, 0.01 / 32, "arXiv:1707.06887"),
            _head(C51QFunctionFactory(n_atoms=51, v_min=-10.0, v_max=10.0), "arXiv:1707.06887"),
        ),
    ),
    ("DQN", "qr-dqn"): (
        "Dabney et al. 2017, arXiv:1710.10044; NNablaRL's reproduction",
        (
            *_atari(target=10_000, source=_NNABLA),
            *_adam(5e-5, 0.01 / 32, "arXiv:1710.10044"),
            _head(QRQFunctionFactory(n_quantiles=200), "arXiv:1710.10044"),
        ),
    ),
    ("DQN", "iqn"): (
        "Dabney et al. 2018, arXiv:1806.06923; PFRL's and NNablaRL's reproductions",
        (*_atari(target=10_000), *_adam(5e-5, 0.01 / 32, "arXiv:1806.06923"), _IQN),
    ),
    ("DoubleDQN", "atari"): (
        "van Hasselt et al. 2016, arXiv:1509.06461; PFRL's reproduction",
        (*_atari(target=30_000, source=_PFRL), *_RMSPROP),
    ),
    ("DoubleDQN", "drqn"): (
        "Hausknecht and Stone 2015, arXiv:1507.06527; PFRL's reproduction",
        (
            *_atari(target=30_000, stack=1, source=_PFRL),
            *_adam(1e-4, 1e-4, _PFRL),
            Setting("encoder_factory", LSTMEncoderFactory(hidden_size=512), _PFRL),
            Setting("sequence_length", 10, _PFRL),
        ),
    ),
    ("DoubleDQN", "rainbow"): (
        "Hessel et al. 2017, arXiv:1710.02298; PFRL's reproduction",
        (
            *_atari(target=32_000, end=None, eval_epsilon=0.0, start=20_000, source="arXiv:1710.02298"),
            *_adam(6.25e-5, 1.5e-4, "arXiv:1710.02298"),
            Setting("--multi-step", 3, "arXiv:1710.02298"),
            Setting("--prioritized", True, "arXiv:1710.02298"),
            Setting("--priority-alpha", 0.5, "arXiv:1710.02298"),
            Setting("--priority-beta", 0.4, "arXiv:1710.02298: rises to 1 over the run"),
            Setting("encoder_factory", _CONVOLUTIONS, "arXiv:1710.02298: streams of 512 after the convolutions"),
            _head(_RAINBOW, "arXiv:1710.02298: dueling, noisy with 0.5, 51 atoms"),
        ),
    ),
    ("DoubleDQN", "rainbow-data-efficient"): (
        f"van Hasselt et al. 2019, {_DER_PAPER}; Kaixhin's reproduction",
        (
            Setting("--n-steps", 100_000, f"{_DER_PAPER}: 400,000 frames"),
            Setting("--atari", True, f"{_PFRL} and {_NNABLA}: no sticky actions, 30 no-ops, lives end episodes"),
            Setting("--frame-stack", 4, _DQN_PAPER),
            Setting("--buffer-size", 100_000, f"{_DER_PAPER}: all steps"),
            Setting("--random-steps", 1600, _DER_PAPER),
            Setting("--update-interval", 1, _DER_PAPER),
            Setting("--explorer", "none", _DER_PAPER),
            Setting("--multi-step", 20, _DER_PAPER),
            Setting("--prioritized", True, _DER_PAPER),
            Setting("--priority-alpha", 0.5, "arXiv:1710.02298"),
            Setting("--priority-beta", 0.4, "arXiv:1710.02298: rises to 1 over the run"),
            Setting("--n-steps-per-epoch", 10_000, "Kaixhin's Rainbow: between evaluations"),
            Setting("--n-trials", 10, "Kaixhin's Rainbow"),
            Setting("--eval-epsilon", 0.001, "Kaixhin's Rainbow"),
            Setting("observation_scaler", PixelObservationScaler(), _DQN_PAPER),
            Setting("batch_size", 32, _DQN_PAPER),
            Setting("gamma", 0.99, _DQN_PAPER),
            Setting("target_update_interval", 2000, f"{_DER_PAPER}: updates"),
            *_adam(1e-4, 1.5e-4, _DER_PAPER),
            Setting(
                "encoder_factory",
                PixelEncoderFactory(filters=[[32, 5, 5], [64, 5, 5]], feature_size=None),
                f"{_DER_PAPER}: streams of 256 after two convolutions",
            ),
            _head(
                dataclasses.replace(_RAINBOW, dueling=[256], noisy=0.1),
                f"{_DER_PAPER}: dueling, 51 atoms; noise of 0.1 as Kaixhin's Rainbow",
            ),
        ),
    ),
    ("DoubleDQN", "apex"): (
        f"Horgan et al. 2018, {_APEX_PAPER} (Ape-X); nothing here was run for as long",
        (
            *_many_actors(target=2500, start=50_000, source=_APEX_PAPER),
            Setting("--update-interval", 650, f"{_APEX_PAPER}: 12,500 steps and 19 updates in a second"),
            Setting("--buffer-size", 2_000_000, _APEX_PAPER),
            Setting("--multi-step", 3, _APEX_PAPER),
            Setting("--priority-alpha", 0.6, _APEX_PAPER),
            Setting("--priority-beta", 0.4, f"{_APEX_PAPER}, where it stays; here it rises to 1 over the run"),
            Setting("batch_size", 512, _APEX_PAPER),
            Setting("gamma", 0.99, _APEX_PAPER),
            Setting("learning_rate", 6.25e-5, f"{_APEX_PAPER}: 0.00025 / 4"),
            Setting(
                "optim_factory",
                RMSpropFactory(alpha=0.95, eps=1.5e-7, centered=True, clip_grad_norm=40.0),
                f"{_APEX_PAPER}: no momentum, norm of 40",
            ),
            Setting("encoder_factory", _CONVOLUTIONS, f"{_APEX_PAPER}: streams of 512 after the convolutions"),
            _head(MeanQFunctionFactory(dueling=[512]), _APEX_PAPER),
        ),
    ),
    ("DoubleDQN", "r2d2"): (
        f"Kapturowski et al. 2019, {_R2D2_PAPER} (R2D2), without its rescaled values; nothing here was run for as long",
        (
            *_many_actors(target=2500, start=50_000, source=_R2D2_PAPER),
            Setting("--update-interval", 13_312, f"{_R2D2_PAPER}: 256 actors of 260 steps, and 5 updates, in a second"),
            Setting("--buffer-size", 4_000_000, f"{_R2D2_PAPER} table 2"),
            Setting("--multi-step", 5, _R2D2_PAPER),
            Setting("--priority-alpha", 0.9, f"{_R2D2_PAPER} table 2, of 0.9 of the largest error and 0.1 of the mean"),
            Setting("--priority-beta", 0.6, f"{_R2D2_PAPER} table 2, where it stays; here it rises to 1 over the run"),
            Setting("sequence_length", 80, f"{_R2D2_PAPER} table 2; here from any step on, with its stored state"),
            Setting("burn_in", 40, f"{_R2D2_PAPER} table 2"),
            Setting("batch_size", 64, f"{_R2D2_PAPER} table 2: sequences"),
            Setting("gamma", 0.997, f"{_R2D2_PAPER} table 2"),
            *_adam(1e-4, 1e-3, f"{_R2D2_PAPER} table 2"),
            Setting("encoder_factory", LSTMEncoderFactory(hidden_size=512), f"{_R2D2_PAPER}: after DQN's convolutions"),
            _head(MeanQFunctionFactory(dueling=[512]), _R2D2_PAPER),
        ),
    ),
    ("MunchausenDQN", "atari"): (
        "Vieillard et al. 2020, arXiv:2007.14430; NNablaRL's reproduction",
        (*_atari(target=10_000, source=_NNABLA), *_adam(5e-5, 0.01 / 32, _NNABLA)),
    ),
    ("MunchausenDQN", "iqn"): (
        "Vieillard et al. 2020, arXiv:2007.14430, appendix; NNablaRL's reproduction",
        (*_atari(target=10_000, source=_NNABLA), *_adam(5e-5, 0.01 / 32, _NNABLA), _IQN),
    ),
    ("DDPG", "mujoco"): ("Fujimoto et al. 2018, arXiv:1802.09477; PFRL's reproduction", _deterministic(_PFRL)),
    ("TD3", "mujoco"): (
        "Fujimoto et al. 2018, arXiv:1802.09477; PFRL's reproduction",
        (
            *_deterministic(_PFRL),
            Setting("update_actor_interval", 2, "arXiv:1802.09477"),
            Setting("target_smoothing_sigma", 0.2, "arXiv:1802.09477"),
            Setting("target_smoothing_clip", 0.5, "arXiv:1802.09477"),
        ),
    ),
    ("SAC", "mujoco"): (
        "Haarnoja et al. 2018, arXiv:1812.05905; PFRL's reproduction",
        (
            *_mujoco(3_000_000, f"{_PFRL}; Hopper 1 million, Humanoid 10", _PFRL),
            *_soft("arXiv:1812.05905"),
            Setting("temp_learning_rate", 3e-4, "arXiv:1812.05905"),
        ),
    ),
    ("ICML2018SAC", "mujoco"): (
        "Haarnoja et al. 2018, arXiv:1801.01290; NNablaRL's reproduction",
        (
            *_mujoco(3_000_000, f"{_NNABLA}; Hopper and Walker2d 1 million, Humanoid 10", _NNABLA),
            *_soft(_SAC_PAPER),
            Setting("value_encoder_factory", _256_256, _SAC_PAPER),
            Setting("gamma", 0.99, _SAC_PAPER),
            Setting("reward_scaler", MultiplyRewardScaler(5.0), "arXiv:1801.01290 table 2; Humanoid 20"),
        ),
    ),
    ("PPO", "atari"): (
        "Schulman et al. 2017, arXiv:1707.06347",
        (
            *_images(10_000_000, _PPO_PAPER),
            Setting("--num-envs", 8, _PPO_PAPER),
            Setting("actor_encoder_factory", _A3C_NETWORK, f"{_PPO_PAPER}: the network of A3C"),
            Setting("value_encoder_factory", None, f"{_PPO_PAPER}: with two heads"),
            Setting("rollout_length", 128, _PPO_PAPER),
            Setting("batch_size", 256, f"{_PPO_PAPER}: 32 x 8"),
            Setting("n_epochs", 3, _PPO_PAPER),
            Setting("learning_rate", 2.5e-4, _PPO_PAPER),
            Setting(
                "optim_factory",
                lambda n: AdamFactory(
                    eps=1e-5, clip_grad_norm=0.5, lr_scheduler_factory=LinearSchedulerFactory(_ppo_updates(n))
                ),
                f"{_PPO_PAPER}: falls to 0, here in updates; norm of 0.5: {_PFRL}",
            ),
            Setting("clip_range", 0.1, _PPO_PAPER),
            Setting(
                "clip_range_schedule", lambda n: LinearSchedulerFactory(_ppo_updates(n)), f"{_PPO_PAPER}: falls to 0"
            ),
            Setting("value_coefficient", 1.0, _PPO_PAPER),
            Setting("entropy_coefficient", 0.01, _PPO_PAPER),
            Setting("gae_lambda", 0.95, _PPO_PAPER),
        ),
    ),
    ("A2C", "atari"): (
        f"Mnih et al. 2016, {_A3C_PAPER}; NNablaRL's reproduction",
        (
            *_images(50_000_000, _NNABLA),
            Setting("--num-envs", 16, _NNABLA),
            Setting("actor_encoder_factory", _A3C_NETWORK, f"{_A3C_PAPER} and {_NNABLA}: 16 and 32 filters, 256 units"),
            Setting("value_encoder_factory", None, f"{_A3C_PAPER} and {_NNABLA}: two heads on one network"),
            Setting("--n-steps-per-epoch", 250_000, _NNABLA),
            Setting("--eval-steps", 125_000, _NNABLA),
            Setting("rollout_length", 5, f"{_A3C_PAPER} and {_NNABLA}"),
            Setting("learning_rate", 7e-4, _NNABLA),
            _falling_rmsprop(80, 1e-5, 0.5, f"{_NNABLA}: falls to 0, in updates of 16 x 5 steps", inside=False),
            Setting("value_coefficient", 0.5, _NNABLA),
            Setting("entropy_coefficient", 0.01, f"{_A3C_PAPER} and {_NNABLA}"),
        ),
    ),
    ("A3C", "atari"): (
        f"Mnih et al. 2016, {_A3C_PAPER}; PFRL's reproduction",
        (
            *_images(80_000_000, _PFRL),
            Setting("--workers", 16, f"{_A3C_PAPER} and {_PFRL}"),
            Setting("--n-steps-per-epoch", 250_000, _PFRL),
            Setting("--eval-steps", 125_000, _PFRL),
            Setting("actor_encoder_factory", _A3C_NETWORK, f"{_A3C_PAPER} and {_PFRL}: 16 and 32 filters, 256 units"),
            Setting("value_encoder_factory", None, f"{_A3C_PAPER} and {_PFRL}: two heads on one network"),
            Setting("rollout_length", 5, f"{_A3C_PAPER} and {_PFRL}"),
            Setting("learning_rate", 7e-4, _PFRL),
            _falling_rmsprop(5, 0.1, 40.0, f"{_PFRL}: falls to 0, in updates of 5 steps", inside=True),
            Setting("value_coefficient", 0.25, f"{_PFRL}: half of half the squared error"),
            Setting("entropy_coefficient", 0.01, f"{_A3C_PAPER} and {_PFRL}"),
        ),
    ),
    ("DiscreteACER", "atari"): (
        f"Wang et al. 2017, {_ACER_PAPER}; PFRL's example, whose optimiser birl has by default",
        (
            *_images(10_000_000, _PFRL),
            Setting("--workers", 16, f"{_ACER_PAPER}, whose threads replay 50,000 steps each, these 62,500"),
            Setting("critic_encoder_factory", None, f"{_ACER_PAPER} and {_PFRL}: two heads on one network"),
            Setting("rollout_length", 20, _ACER_PAPER),
            Setting("batch_size", 1, f"{_ACER_PAPER}: each thread replays one sequence at a time"),
            Setting("replay_ratio", 4.0, _ACER_PAPER),
            Setting("truncation", 10.0, _ACER_PAPER),
            Setting("trust_region", 1.0, _ACER_PAPER),
            Setting("tau", 0.01, f"{_ACER_PAPER}: 1 - alpha"),
            Setting("entropy_coefficient", 0.001, _ACER_PAPER),
            Setting("learning_rate", 7e-4, f"{_PFRL}; not annealed: {_ACER_PAPER}"),
        ),
    ),
    ("TRPO", "mujoco"): (
        f"Henderson et al. 2018, {_TRPO_PAPER}; PFRL's and NNablaRL's reproductions",
        (
            Setting("--n-steps", 1_000_000, _NNABLA),
            Setting("--n-steps-per-epoch", 5000, _NNABLA),
            Setting("observation_scaler", RunningObservationScaler(clip=5.0), f"{_PFRL} and {_NNABLA}"),
            Setting("actor_encoder_factory", _64_64, _TRPO_PAPER),
            Setting("value_encoder_factory", _64_64, _TRPO_PAPER),
            Setting("gamma", 0.995, _TRPO_PAPER),
            Setting("gae_lambda", 0.97, _TRPO_PAPER),
            Setting("rollout_length", 5000, _TRPO_PAPER),
            Setting("max_kl", 0.01, _TRPO_PAPER),
            Setting("conjugate_gradient_steps", 20, _TRPO_PAPER),
            Setting("conjugate_gradient_damping", 0.1, _TRPO_PAPER),
            Setting("n_epochs", 5, f"{_PFRL} and {_NNABLA}: of the values, in minibatches of 64"),
            Setting("value_learning_rate", 1e-3, f"{_PFRL} and {_NNABLA}"),
        ),
    ),
    ("PPO", "mujoco"): (
        "Henderson et al. 2017, arXiv:1709.06560; PFRL's reproduction",
        (
            Setting("--n-steps", 2_000_000, _PFRL),
            Setting("--n-steps-per-epoch", 5000, _PFRL),
            Setting("observation_scaler", RunningObservationScaler(clip=5.0), _PFRL),
            Setting("actor_encoder_factory", _64_64, _PPO_MUJOCO),
            Setting("value_encoder_factory", _64_64, _PPO_MUJOCO),
            Setting("rollout_length", 2048, _PPO_MUJOCO),
            Setting("batch_size", 64, _PPO_MUJOCO),
            Setting("n_epochs", 10, _PPO_MUJOCO),
            Setting("learning_rate", 3e-4, _PPO_MUJOCO),
            Setting("clip_range", 0.2, _PPO_MUJOCO),
            Setting("gae_lambda", 0.95, _PPO_MUJOCO),
        ),
    ),
}
"""Origins and settings by the names of algorithm and recipe."""
