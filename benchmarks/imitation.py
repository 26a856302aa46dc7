"""GAIL from 4 and 20 episodes of an expert, compared with the expert and with behavioural cloning of the same episodes.

Runs are made in this order: ``python benchmarks/imitation.py run --env hopper --algorithm Expert --side birl --seed 0``
learns by rewards and then writes `EPISODES` greedy episodes to ``benchmarks/results/expert-hopper.h5``;
``--algorithm GAIL-4`` and ``BC-4`` learn from the first four of them, ``GAIL-20`` and ``BC-20`` from all. Every run
appends one line per evaluation to ``benchmarks/results/imitation.csv``. birl needs gymnasium's ``classic-control`` and
``mujoco``.

``python benchmarks/imitation.py table`` writes ``imitation.md`` and ``imitation.svg`` next to the scores.
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
ALGORITHMS = ("Expert", "BC-4", "GAIL-4", "BC-20", "GAIL-20")


@dataclass(frozen=True)
class Setting:
    """An environment, and what all have there.

    Attributes:
        env: its name.
        steps: length of a run: in the environment, but updates of BC.
        lanes: number of environments side by side.
        rollout: steps in a rollout, over all environments.
        discrete: whether its actions are.
        running: whether rollouts have observations, and the expert's have rewards, scaled by running statistics.
    """

    env: str
    steps: int
    lanes: int
    rollout: int
    discrete: bool = False
    running: bool = False

    def __str__(self) -> str:
        several = f"{self.lanes} environments" if self.lanes > 1 else "one environment"
        words = f"{self.env}: {self.steps:,} steps (BC: updates), rollouts of {self.rollout:,} steps in {several}"
        scaled = "; observations of rollouts, and rewards of the expert, scaled by running statistics"
        return words + (scaled if self.running else "")


SETTINGS = {
    "cartpole": Setting("CartPole-v1", 51_200, 4, 1_024, discrete=True),
    "hopper": Setting("Hopper-v5", 204_800, 1, 2_048, running=True),
}
FAMILY = family.Family(
    "Imitation",
    SETTINGS,
    dict.fromkeys(SETTINGS, ALGORITHMS),
    {},
    Path(__file__).parent / "results" / "imitation.csv",
    notes=f"""The expert, PPO, learns by rewards; the others learn from 4 or all of {EPISODES} greedy episodes that it
played at the end of one run (on Hopper that of seed 0, whose last evaluation had 2,091). BC has batches of 256 and a
learning rate of 0.001. PPO and GAIL have minibatches of 64, 10 passes, learning rates of 3e-4 and gamma 0.99. All have
two layers of 64 units.""",
)


def configuration(name: str, setting: Setting, **rest: Any) -> Any:
    """The configuration of the expert, or of one who imitates it."""
    from birl import algos, preprocessing
    from birl.models import VectorEncoderFactory

    relu, tanh = (VectorEncoderFactory([64, 64], each) for each in ("relu", "tanh"))
    if name.startswith("BC"):
        cloning = algos.DiscreteBCConfig if setting.discrete else algos.BCConfig
        return cloning(batch_size=256, learning_rate=1e-3, encoder_factory=relu, **rest)
    rest |= {"actor_encoder_factory": tanh, "value_encoder_factory": tanh, "batch_size": 64, "learning_rate": 3e-4}
    rest["rollout_length"] = setting.rollout // setting.lanes
    if setting.running:
        rest["observation_scaler"] = preprocessing.RunningObservationScaler()
    if name.startswith("GAIL"):
        return algos.GAILConfig(discriminator_encoder_factory=tanh, **rest)
    if setting.running:
        rest["reward_scaler"] = preprocessing.RunningRewardScaler()
    return algos.PPOConfig(**rest)


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
    several = setting.lanes > 1
    algorithm.fit_online(birl.envs.make_env(setting.env, setting.lanes if several else None), **common)
    if name == "Expert":
        played = algorithm.collect(
            birl.envs.make_env(setting.env), n_episodes=EPISODES, deterministic=True, seed=0, show_progress=False
        )
        played.dump(demonstrations(options.env))


if __name__ == "__main__":
    family.main(FAMILY, __file__, __doc__, run)
