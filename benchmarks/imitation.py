"""GAIL from 4 and 20 episodes of an expert, beside the expert and behavioural cloning of the same episodes.

Runs are made in this order: ``python benchmarks/imitation.py run --env hopper --algorithm Expert --side birl --seed 0``
learns by rewards and then writes `EPISODES` greedy episodes to ``benchmarks/results/expert-hopper.h5``;
``--algorithm GAIL-4`` and ``BC-4`` learn from the first four of them, ``GAIL-20`` and ``BC-20`` from all. Every run
appends one line per evaluation to ``benchmarks/results/imitation.csv``. birl needs gymnasium's ``classic-control`` and
``mujoco``.

``python benchmarks/imitation.py table`` writes ``imitation.md`` and ``imitation.svg`` beside the scores.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many runs side by side: one thread each

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import family, scores

EPISODES = 20
RANDOM_STEPS = 5_000  # of SAC, before its first update
ALGORITHMS = ("Expert", "BC-4", "GAIL-4", "BC-20", "GAIL-20")


@dataclass(frozen=True)
class Setting:
    """An environment, and what all have there.

    Attributes:
        env: its name.
        steps: length of a run: in the environment, but updates of BC.
        expert: who learns by rewards, PPO or SAC; how is said in `configuration`.
        lanes: number of environments side by side, of PPO and GAIL.
        rollout: steps in one of their rollouts, over all environments.
        units: of each of two layers.
    """

    env: str
    steps: int
    expert: str
    lanes: int
    rollout: int
    units: int

    def __str__(self) -> str:
        several = f"{self.lanes} environments" if self.lanes > 1 else "one environment"
        return (
            f"{self.env}: {self.steps:,} steps (BC: updates), the expert is {self.expert}, two layers of {self.units} "
            f"units; rollouts of {self.rollout:,} steps in {several} (PPO, GAIL)"
        )


SETTINGS = {
    "cartpole": Setting("CartPole-v1", 51_200, "PPO", 4, 1_024, 64),
    "hopper": Setting("Hopper-v5", 204_800, "SAC", 1, 2_048, 128),
}
FAMILY = family.Family(
    "Imitation",
    SETTINGS,
    dict.fromkeys(SETTINGS, ALGORITHMS),
    {},
    Path(__file__).parent / "results" / "imitation.csv",
    notes=f"""The expert learns by rewards; the others learn from 4 or all of {EPISODES} greedy episodes that it played
at the end of one run. BC has batches of 256 and a learning rate of 0.001. PPO and GAIL have minibatches of 64, 10
passes, learning rates of 3e-4 and gamma 0.99, SAC batches of 256 and learning rates of 3e-4 after {RANDOM_STEPS:,}
random steps.""",
)


def configuration(name: str, setting: Setting, **rest: Any) -> Any:
    """The configuration of the expert, or of one who imitates it."""
    from birl import algos
    from birl.models import VectorEncoderFactory

    relu, tanh = (VectorEncoderFactory([setting.units] * 2, each) for each in ("relu", "tanh"))
    rollouts: dict[str, Any] = {"actor_encoder_factory": tanh, "value_encoder_factory": tanh, "batch_size": 64}
    rollouts |= {"rollout_length": setting.rollout // setting.lanes, "learning_rate": 3e-4}
    if name.startswith("BC"):
        cloning = algos.DiscreteBCConfig if setting.expert == "PPO" else algos.BCConfig
        return cloning(batch_size=256, learning_rate=1e-3, encoder_factory=relu, **rest)
    if name.startswith("GAIL"):
        return algos.GAILConfig(discriminator_encoder_factory=tanh, **rollouts, **rest)
    if setting.expert == "PPO":
        return algos.PPOConfig(**rollouts, **rest)
    return algos.SACConfig(batch_size=256, actor_encoder_factory=relu, critic_encoder_factory=relu, **rest)


def shown(name: str, env: str) -> Any:
    """The expert's episodes that an algorithm such as ``"GAIL-4"`` learns from."""
    from birl.dataset import InfiniteBuffer, ReplayBuffer

    path = demonstrations(env)
    if not path.exists():
        sys.exit(f"{path} is not there: run --env {env} --algorithm Expert first")
    with path.open("rb") as file:
        episodes = ReplayBuffer.load(file, InfiniteBuffer()).episodes
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes[: int(name.split("-")[1])])


def demonstrations(env: str) -> Path:
    """Where the expert's episodes are."""
    return FAMILY.results.with_name(f"expert-{env}.h5")  # not committed


def run(options: argparse.Namespace, setting: Setting) -> None:
    """One run, eager or compiled."""
    import torch

    import birl

    report = FAMILY.report(options, f"birl {birl.__version__} torch {torch.__version__}")
    birl.seed(options.seed)
    name = options.algorithm
    algorithm = configuration(name, setting, compile_graph=options.side == "birl-compiled").create()

    common: dict[str, Any] = {"n_steps": setting.steps, "n_steps_per_epoch": setting.steps}
    common["callback"] = scores.evaluation(report, lambda: scores.greedy(algorithm))
    common |= {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
    if name.startswith("BC"):
        algorithm.fit(shown(name, options.env), **common)
        return
    common["seed"] = options.seed
    if name.startswith("GAIL"):
        common["demonstrations"] = shown(name, options.env)
    elif setting.expert == "SAC":
        common |= {"random_steps": RANDOM_STEPS, "update_start_step": RANDOM_STEPS}
    several = setting.lanes > 1
    algorithm.fit_online(birl.envs.make_env(setting.env, setting.lanes if several else None), **common)
    if name == "Expert":
        played = algorithm.collect(
            birl.envs.make_env(setting.env), n_episodes=EPISODES, deterministic=True, seed=0, show_progress=False
        )
        played.dump(demonstrations(options.env))


if __name__ == "__main__":
    family.main(FAMILY, __file__, __doc__, run)
