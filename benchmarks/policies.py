"""Policies that learn from rollouts, compared with Stable-Baselines3's A2C and PPO and sb3-contrib's TRPO.

One run: ``python benchmarks/policies.py run --env lunarlander --algorithm PPO --side birl --seed 0``. It appends one
line per evaluation to ``benchmarks/results/policies.csv``. Every algorithm and side has the environment's numbers,
those of `SETTINGS`; what algorithms have in addition is in `configuration`, and what the peers get in
`peer_options`, in the same order. A3C has a process for each environment. Environments with ``-1m`` are runs of a
million steps. birl needs gymnasium's ``box2d``, ``classic-control`` and ``mujoco``; ``--side sb3`` runs in the
environment ``sb3-contrib`` of `peers.py`, made in ``.bench`` when it is first needed, unless the interpreter has it.

``python benchmarks/policies.py table`` writes ``policies.md`` and ``policies.svg``: means of the last
three of ten evaluations with 95 % bootstrap intervals over seeds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many runs side by side: one thread each

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import family, scores

DISCRETE = ("A2C", "A3C", "ACER", "PPO", "REINFORCE", "V-MPO", "IMPALA")
CONTINUOUS = ("TRPO", "PPO", "MPO")
PEERS = {"A2C": "stable_baselines3", "PPO": "stable_baselines3", "TRPO": "sb3_contrib"}
"""Packages that have the algorithm, too."""
ALONE = ("ACER", "REINFORCE", "MPO")
"""Algorithms that have one environment whatever the setting says."""
RANDOM_STEPS = 2_000  # of MPO, before its first update
WIDE = 128  # units of its layers, and steps in its batches


@dataclass(frozen=True)
class Setting:
    """An environment, and what every algorithm and side has there. Steps are the environment's.

    Attributes:
        env: its name.
        steps: length of a run.
        lanes: number of environments side by side.
        rollout: steps in a rollout of PPO, TRPO and V-MPO, over all environments.
        gamma: discount.
        entropy: weight of the entropy bonus of A2C, A3C, ACER, IMPALA and PPO.
        rate: learning rate of PPO and V-MPO.
        units: of each of two layers.
        running: whether rollouts have observations and rewards scaled by running statistics.
        every: steps between MPO's updates.
        scale: of rewards that A3C and IMPALA learn from.
    """

    env: str
    steps: int
    lanes: int = 4
    rollout: int = 1_024
    gamma: float = 0.99
    entropy: float = 0.01
    rate: float = 3e-4
    units: int = 64
    running: bool = False
    every: int = 1
    scale: float = 1.0

    @property
    def length(self) -> int:
        """Steps of each environment in a rollout of PPO, TRPO and V-MPO."""
        return self.rollout // self.lanes

    def __str__(self) -> str:
        several = f"{self.lanes} environments" if self.lanes > 1 else "one environment"
        words = [
            f"{self.env}: {self.steps:,} steps in {several}, gamma {self.gamma}, two layers of {self.units} units with "
            f"tanh; rollouts of {self.rollout:,} steps (PPO, TRPO, V-MPO), a learning rate of {self.rate} (PPO, "
            f"V-MPO), entropy bonus of {self.entropy:g}"
        ]
        words += [f"an update of MPO every {self.every} steps"] if self.every > 1 else []
        words += [f"rewards of A3C and IMPALA multiplied by {self.scale}"] if self.scale != 1 else []
        words += ["observations and rewards of PPO and TRPO scaled by running statistics"] if self.running else []
        return "; ".join(words)


_MUJOCO: dict[str, Any] = {"steps": 204_800, "lanes": 1, "rollout": 2_048, "entropy": 0.0, "every": 2}
# Ends of rollouts, where Stable-Baselines3 can be evaluated, are at a tenth of the steps.
SETTINGS = {
    "cartpole": Setting("CartPole-v1", 51_200),
    "acrobot": Setting("Acrobot-v1", 51_200, scale=0.1),
    "lunarlander": Setting("LunarLander-v3", 204_800, scale=0.1),
    "pendulum": Setting("Pendulum-v1", 102_400, rollout=2_048, gamma=0.9, entropy=0.0, rate=1e-3, every=4),
    "halfcheetah": Setting("HalfCheetah-v5", **_MUJOCO, running=True),
    "hopper": Setting("Hopper-v5", **_MUJOCO, running=True),
}
SETTINGS |= {f"{name}-1m": replace(SETTINGS[name], steps=1_024_000) for name in ("halfcheetah", "hopper")}
FAMILY = family.Family(
    "Policies",
    SETTINGS,
    {
        **dict.fromkeys(("cartpole", "acrobot", "lunarlander"), DISCRETE),
        **dict.fromkeys(("pendulum", "halfcheetah", "hopper"), CONTINUOUS),
        **dict.fromkeys(("halfcheetah-1m", "hopper-1m"), CONTINUOUS[:2]),
    },
    PEERS,
    Path(__file__).parent / "results" / "policies.csv",
    notes=f"""SB3 is sb3-contrib for TRPO. A3C has as many processes as there are environments elsewhere; ACER,
REINFORCE and MPO have one environment. A2C, A3C, ACER and IMPALA learn with RMSprop and a rate of 7e-4, from rollouts
of 5 (ACER, IMPALA: 20) steps of each environment; all but ACER have epsilon outside the root and gradients clipped to a
norm of 0.5. With unscaled rewards A3C and IMPALA ended at -500 on Acrobot with all three seeds: the policy was certain
before it had got to the goal once. ACER and IMPALA replay from 1,000 steps on. REINFORCE has a baseline, two episodes
an update and a rate of 0.001. TRPO's value function has a rate of 0.001; its bound of 0.01 and damping of 0.1 are those
of the sum over dimensions of the actions. MPO has two layers of {WIDE} units with ReLU, batches of {WIDE} after
{RANDOM_STEPS:,} random steps, rates of 1e-3, and bounds of 0.05 for the mean and 0.001 for the standard deviation: with
those of long runs it had not started to learn on HalfCheetah after 60,000 steps. Published for HalfCheetah-v2 and a
million steps are NNablaRL's reproductions, TRPO 1,734 and PPO 349 (last evaluation; the best 1,693), and for two
million those that PFRL quotes (arXiv:1709.06560), TRPO 205 and PPO 2,201, and its own, TRPO 1,561 and PPO 1,986.""",
)


def configuration(algorithm: str, setting: Setting, **rest: Any) -> Any:
    """The configuration of an algorithm in birl."""
    from birl import algos, models, preprocessing
    from birl.optimizers import RMSpropFactory

    class_name = {"V-MPO": "VMPO", "ACER": "DiscreteACER"}.get(algorithm, algorithm)
    critic = "critic_encoder_factory" if algorithm in ("ACER", "MPO") else "value_encoder_factory"
    encoder = models.VectorEncoderFactory([setting.units] * 2, "tanh")
    if algorithm == "MPO":
        encoder = models.VectorEncoderFactory([WIDE] * 2)
    rmsprop = {
        "learning_rate": 7e-4,
        "optim_factory": RMSpropFactory(alpha=0.99, eps=1e-5, centered=False, clip_grad_norm=0.5),
        "entropy_coefficient": setting.entropy,
    }
    replay = {"rollout_length": 20, "replay_start": 1_000, "entropy_coefficient": setting.entropy}
    fields: dict[str, Any] = {
        "A2C": {**rmsprop, "rollout_length": 5},
        "A3C": {**rmsprop, "rollout_length": 5},
        "ACER": {**replay, "learning_rate": 7e-4},
        "IMPALA": {**rmsprop, **replay},
        "REINFORCE": {
            "learning_rate": 1e-3,
            "n_episodes": 2,
            "baseline": True,
            "reward_scaler": preprocessing.MultiplyRewardScaler(0.01),
        },
        "V-MPO": {"rollout_length": setting.length, "learning_rate": setting.rate},
        "PPO": {
            "rollout_length": setting.length,
            "learning_rate": setting.rate,
            "entropy_coefficient": setting.entropy,
            "batch_size": 64,
        },
        "TRPO": {
            "rollout_length": setting.length,
            "batch_size": 128,
            "gae_lambda": 0.95,
            "n_epochs": 10,
            "value_learning_rate": 1e-3,
            "max_kl": 0.01,
            "conjugate_gradient_steps": 15,
            "conjugate_gradient_damping": 0.1,
            "line_search_shrink": 0.8,
        },
        "MPO": {
            "batch_size": WIDE,
            "actor_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "epsilon_mean": 0.05,
            "epsilon_std": 1e-3,
        },
    }[algorithm]
    if setting.running and algorithm not in ALONE:
        rest["observation_scaler"] = preprocessing.RunningObservationScaler()
        rest["reward_scaler"] = preprocessing.RunningRewardScaler()
    if setting.scale != 1 and algorithm in ("A3C", "IMPALA"):
        rest["reward_scaler"] = preprocessing.MultiplyRewardScaler(setting.scale)
    if setting.env == "Pendulum-v1":
        rest["action_scaler"] = preprocessing.MinMaxActionScaler()
    encoders = {"actor_encoder_factory": encoder, critic: encoder}
    return getattr(algos, f"{class_name}Config")(gamma=setting.gamma, **encoders, **fields, **rest)


def peer_options(algorithm: str, setting: Setting, n_dimensions: int) -> dict[str, Any]:
    """What `configuration` says, in words of Stable-Baselines3 and sb3-contrib; the rest are their defaults.

    Args:
        algorithm, setting: as there.
        n_dimensions: of actions; sb3-contrib averages divergences over them.
    """
    return {
        "A2C": {
            "learning_rate": 7e-4,
            "n_steps": 5,
            "ent_coef": setting.entropy,
        },
        "PPO": {
            "n_steps": setting.length,
            "learning_rate": setting.rate,
            "ent_coef": setting.entropy,
            "batch_size": 64,
        },
        "TRPO": {
            "n_steps": setting.length,
            "batch_size": 128,
            "gae_lambda": 0.95,
            "n_critic_updates": 10,
            "learning_rate": 1e-3,
            "target_kl": 0.01 / n_dimensions,
            "cg_max_steps": 15,
            "cg_damping": 0.1 / n_dimensions,
            "line_search_shrinking_factor": 0.8,
        },
    }[algorithm]


def run_birl(options: argparse.Namespace, setting: Setting) -> None:
    """One run of birl, eager or compiled."""
    import torch

    import birl

    report = FAMILY.report(options, f"birl {birl.__version__} torch {torch.__version__}")
    birl.seed(options.seed)
    name = options.algorithm
    if name == "A3C" and options.side == "birl-compiled":
        raise SystemExit("A3C's updates are made apart, by its workers, and cannot be compiled: use --side birl")
    algorithm = configuration(name, setting, compile_graph=options.side == "birl-compiled").create()
    rest: dict[str, Any] = {}
    env: Any = setting.env  # by its name, which workers make it by
    if name == "A3C":
        rest["workers"] = setting.lanes
    elif name == "MPO":
        rest |= {"random_steps": RANDOM_STEPS, "update_start_step": RANDOM_STEPS, "update_interval": setting.every}
    elif name not in ALONE and setting.lanes > 1:
        env = birl.envs.make_env(setting.env, setting.lanes)

    algorithm.fit_online(
        env,
        n_steps=setting.steps,
        n_steps_per_epoch=setting.steps,
        callback=scores.evaluation(report, lambda: scores.greedy(algorithm)),
        seed=options.seed,
        show_progress=False,
        logger_adapter=birl.logging.NoopAdapterFactory(),
        **rest,
    )


def run_sb3(options: argparse.Namespace, setting: Setting) -> None:
    """One run of Stable-Baselines3 or sb3-contrib."""
    import gymnasium
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    package = importlib.import_module(PEERS[options.algorithm])
    report = FAMILY.report(options, f"{package.__name__} {package.__version__} torch {torch.__version__}")

    def make(name: str = setting.env) -> Any:
        env = gymnasium.make(name)
        return gymnasium.wrappers.RescaleAction(env, -1.0, 1.0) if name == "Pendulum-v1" else env  # as birl's scaler

    env: Any = DummyVecEnv([make] * setting.lanes)
    n_dimensions = int(np.prod(env.action_space.shape))
    scaled = VecNormalize(env, gamma=setting.gamma) if setting.running else None

    def act(x: Any, *_: Any) -> Any:
        return model.predict(x if scaled is None else scaled.normalize_obs(x), deterministic=True)[0]

    widths = [setting.units] * 2
    model = getattr(package, options.algorithm)(
        "MlpPolicy",
        scaled or env,
        gamma=setting.gamma,
        policy_kwargs={"net_arch": {"pi": widths, "vf": widths}, "activation_fn": torch.nn.Tanh},
        seed=options.seed,
        device="cpu",
        **peer_options(options.algorithm, setting, n_dimensions),
    )
    model.learn(setting.steps, callback=scores.sb3_evaluation(report, act, make))


if __name__ == "__main__":
    family.main(FAMILY, __file__, __doc__, run_birl, run_sb3)
