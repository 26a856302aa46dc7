"""The value-based family on small tasks, compared with Stable-Baselines3's DQN and sb3-contrib's QR-DQN.

One run: ``python benchmarks/values.py run --env breakout --algorithm QR-DQN --side birl --seed 0``. It appends one line
per evaluation to ``benchmarks/results/values.csv``. Every algorithm and side has the environment's numbers, those of
`SETTINGS`: steps, batch, learning rate, networks, exploration, updates and copies of the target. Rainbow has the parts
of the recipe ``rainbow`` instead of random actions and a plain head. birl needs gymnasium's ``box2d`` and
``classic-control``, and ``minatar``; ``--side sb3`` runs in the environment ``sb3-contrib`` of `peers.py`, made in
``.bench`` when it is first needed, unless the interpreter has it.

``python benchmarks/values.py table`` writes ``values.md`` and ``values.svg``: means of the last three
of ten evaluations with 95 % bootstrap intervals over seeds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many runs side by side: one thread each

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import family, scores

ALGORITHMS = ("DQN", "DoubleDQN", "C51", "QR-DQN", "IQN", "M-DQN", "M-IQN", "Rainbow")
PEERS = {"DQN": "stable_baselines3", "QR-DQN": "sb3_contrib"}
"""Packages that have the algorithm, too."""
GAMMA, EPSILON = 0.99, 0.05
QUANTILES = 50  # papers have 200 and 64, which would take most of the time here


@dataclass(frozen=True)
class Setting:
    """An environment, and what every algorithm and side has there. Steps are the environment's.

    Attributes:
        env: its name.
        steps: length of a run, all of which the buffer keeps.
        random: steps before the first update, with random actions.
        decay: steps after which the share of random actions has fallen from 1 to `EPSILON`.
        every: steps between updates.
        copy: steps between copies of the target network.
        batch_size, rate: of an update.
        units: of each dense layer. Vectors have two, images one after 16 convolutions of 3 by 3 pixels.
        returns: range of C51's atoms.
    """

    env: str
    steps: int
    random: int
    decay: int
    every: int
    copy: int
    batch_size: int
    rate: float
    units: int
    returns: tuple[float, float]

    @property
    def images(self) -> bool:
        """Whether observations are images."""
        return self.env.startswith("MinAtar")

    def __str__(self) -> str:
        layers = "16 convolutions of 3x3 and a layer" if self.images else "two layers"
        return (
            f"{self.env}: {self.steps:,} steps, the first {self.random:,} of them random, epsilon 1 to {EPSILON} in "
            f"{self.decay:,} steps, an update every {self.every}, a copy of the target every {self.copy:,}, batches of "
            f"{self.batch_size}, Adam with {self.rate}, gamma {GAMMA}, {layers} of {self.units} units; C51's atoms "
            f"from {self.returns[0]:.0f} to {self.returns[1]:.0f}"
        )


_MINATAR: dict[str, Any] = {"steps": 50_000, "random": 2_000, "decay": 10_000, "every": 4, "copy": 1_000}
_MINATAR |= {"batch_size": 32, "rate": 1e-3, "units": 128, "returns": (0.0, 30.0)}
SETTINGS = {
    "acrobot": Setting("Acrobot-v1", 60_000, 1_000, 12_000, 1, 250, 64, 6.3e-4, 128, (-100.0, 0.0)),
    "lunarlander": Setting("LunarLander-v3", 80_000, 2_000, 16_000, 2, 500, 64, 1e-3, 128, (-300.0, 300.0)),
    "breakout": Setting("MinAtar/Breakout-v1", **_MINATAR),
    "spaceinvaders": Setting("MinAtar/SpaceInvaders-v1", **_MINATAR),
}
FAMILY = family.Family(
    "Values",
    SETTINGS,
    dict.fromkeys(SETTINGS, ALGORITHMS),
    PEERS,
    Path(__file__).parent / "results" / "values.csv",
    notes=f"""SB3 is sb3-contrib for QR-DQN. QR-DQN and IQN have {QUANTILES} quantiles; Rainbow has returns over 3
steps, alpha 0.5, beta from 0.4 to 1 and noise of 0.5.""",
)


class Planes(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MinAtar's booleans ``[10, 10, C]`` as bytes ``[C, 10, 10]``."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 1, (channels, height, width), np.uint8)

    def observation(self, observation: Any) -> Any:
        """The planes first."""
        return np.moveaxis(observation, -1, 0).astype(np.uint8)


def make(name: str) -> Any:
    """The environment; episodes of MinAtar, which has no limit, end after 2,000 steps."""
    if not name.startswith("MinAtar"):
        return gymnasium.make(name)
    from minatar.gym import register_envs

    if name not in gymnasium.registry:
        register_envs()
    return Planes(gymnasium.make(name, max_episode_steps=2_000))


def configuration(algorithm: str, setting: Setting, **rest: Any) -> Any:
    """The configuration of an algorithm in birl."""
    from birl import algos, models
    from birl.optimizers import AdamFactory

    low, high = setting.returns
    quantiles = models.QRQFunctionFactory(n_quantiles=QUANTILES)
    implicit = models.IQNQFunctionFactory(n_quantiles=QUANTILES, n_greedy_quantiles=QUANTILES)
    atoms = models.C51QFunctionFactory(n_atoms=51, v_min=low, v_max=high)
    rainbow = models.C51QFunctionFactory(n_atoms=51, v_min=low, v_max=high, dueling=[setting.units], noisy=0.5)
    mean = models.MeanQFunctionFactory()
    config, head = {
        "DQN": (algos.DQNConfig, mean),
        "DoubleDQN": (algos.DoubleDQNConfig, mean),
        "C51": (algos.DQNConfig, atoms),
        "QR-DQN": (algos.DQNConfig, quantiles),
        "IQN": (algos.DQNConfig, implicit),
        "M-DQN": (algos.MunchausenDQNConfig, mean),
        "M-IQN": (algos.MunchausenDQNConfig, implicit),
        "Rainbow": (algos.DoubleDQNConfig, rainbow),
    }[algorithm]
    streams = algorithm == "Rainbow"  # whose last dense layer is in the head, once for the value and the advantages
    encoder: Any = models.VectorEncoderFactory([setting.units] * (1 if streams else 2))
    if setting.images:
        encoder = models.PixelEncoderFactory(filters=[[16, 3, 1]], feature_size=None if streams else setting.units)
    return config(
        batch_size=setting.batch_size,
        gamma=GAMMA,
        learning_rate=setting.rate,
        optim_factory=AdamFactory(),
        encoder_factory=encoder,
        q_func_factory=head,
        target_update_interval=setting.copy // setting.every,
        **rest,
    )


def run_birl(options: argparse.Namespace, setting: Setting) -> None:
    """One run of birl, eager or compiled."""
    import torch

    import birl
    from birl.dataset import MultiStepTransitionPicker, PrioritizedSampler, create_fifo_replay_buffer

    versions = f"birl {birl.__version__} torch {torch.__version__}"
    report = FAMILY.report(options, versions)
    birl.seed(options.seed)
    algorithm = configuration(options.algorithm, setting, compile_graph=options.side == "birl-compiled").create()
    env = make(setting.env)
    drawn: dict[str, Any] = {}
    explorer = None
    if options.algorithm == "Rainbow":
        drawn["transition_picker"] = MultiStepTransitionPicker(3, GAMMA)
        drawn["sampler"] = PrioritizedSampler(alpha=0.5, beta=0.4, beta_steps=setting.steps // setting.every)
    else:
        explorer = birl.algos.LinearDecayEpsilonGreedy(1.0, EPSILON, setting.decay)

    algorithm.fit_online(
        env,
        create_fifo_replay_buffer(setting.steps, env=env, **drawn),
        explorer,
        n_steps=setting.steps,
        n_steps_per_epoch=setting.steps,
        update_interval=setting.every,
        random_steps=setting.random,
        update_start_step=setting.random,
        callback=scores.evaluation(report, lambda: scores.greedy(algorithm), make),
        seed=options.seed,
        show_progress=False,
        logger_adapter=birl.logging.NoopAdapterFactory(),
    )


def run_sb3(options: argparse.Namespace, setting: Setting) -> None:
    """One run of Stable-Baselines3 or sb3-contrib."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    torch.set_num_threads(1)
    package = importlib.import_module(PEERS[options.algorithm])
    versions = f"{package.__name__} {package.__version__} torch {torch.__version__}"
    report = FAMILY.report(options, versions)

    class Convolutions(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, setting.units)
            channels, height, width = space.shape
            pixels = 16 * (height - 2) * (width - 2)
            parts = [torch.nn.Conv2d(channels, 16, 3), torch.nn.ReLU(), torch.nn.Flatten()]
            self.layers = torch.nn.Sequential(*parts, torch.nn.Linear(pixels, setting.units), torch.nn.ReLU())

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    def act(x: Any, *_: Any) -> int:
        return int(model.predict(x, deterministic=True)[0])

    policy: dict[str, Any] = {"net_arch": [setting.units] * 2}
    if setting.images:
        policy = {"net_arch": [], "features_extractor_class": Convolutions, "normalize_images": False}
    policy |= {"n_quantiles": QUANTILES} if options.algorithm == "QR-DQN" else {}
    policy |= {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-8}}  # sb3-contrib has another eps
    model = getattr(package, options.algorithm.replace("-", ""))(
        "MlpPolicy",
        make(setting.env),
        learning_rate=setting.rate,
        buffer_size=setting.steps,
        learning_starts=setting.random,
        batch_size=setting.batch_size,
        gamma=GAMMA,
        train_freq=setting.every,
        gradient_steps=1,
        target_update_interval=setting.copy,
        exploration_fraction=setting.decay / setting.steps,
        exploration_final_eps=EPSILON,
        max_grad_norm=float("inf"),
        policy_kwargs=policy,
        seed=options.seed,
        device="cpu",
    )
    model.learn(setting.steps, callback=scores.sb3_evaluation(report, act, make))


if __name__ == "__main__":
    family.main(FAMILY, __file__, __doc__, run_birl, run_sb3)
