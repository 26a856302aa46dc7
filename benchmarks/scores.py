"""Scores compared with peers': the same task, hyper-parameters, steps and seeds on every side.

One run: ``python benchmarks/scores.py run --task sac-halfcheetah --side birl --seed 0``. It appends one line per
evaluation to ``benchmarks/results/scores.csv``. ``--side sb3`` and ``--side d3rlpy`` run in environments of their own,
made in ``.bench`` when they are first needed, unless the interpreter has them.

``python benchmarks/scores.py table`` prints means of the last evaluations with 95 % bootstrap intervals over seeds.
`scripts/make_algorithm_pages.py` draws them and puts them into the documentation.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import csv
import dataclasses
import fcntl
import importlib.util
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many runs side by side: one thread each

import numpy as np

RESULTS = Path(__file__).parent / "results" / "scores.csv"
SIDES = {"birl": ("birl", "#1f77b4"), "birl-compiled": ("birl compiled", "#17a2b8")}
SIDES |= {"d3rlpy": ("d3rlpy", "#d62728"), "sb3": ("SB3", "#e68a00")}
"""Name and colour of each side."""
FIELDS = ("task", "side", "seed", "step", "score", "seconds", "versions")
EPISODES = 10


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        algorithm: its name.
        env: environment that scores come from.
        data: named dataset, `REPLAY`, or ``""`` to learn in the environment.
        steps: number of updates, or of environment steps.
        interval: steps between evaluations.
        fields: of the configuration, the same on all sides; the others are defaults.
        target_return: what a sequence model aims at.
        widths: of all networks, where the defaults would take hours on one core.
        running: whether observations and rewards are scaled by statistics that move along.
        reward_scale: what rewards are multiplied by while it learns, so that values are not far above 1.
        envs: number of environments side by side.
        shown: number of the best episodes of ``data`` that are imitated in the environment; 0 to learn from all data.
        late: steps between evaluations in the last tenth, whose mean is the score: for environments in which a greedy
            policy's return jumps from update to update; 0: the last evaluation is the score.
    """

    algorithm: str
    env: str
    data: str
    steps: int
    interval: int
    fields: dict[str, Any] = field(default_factory=dict)
    target_return: float | None = None
    widths: tuple[int, ...] = ()
    running: bool = False
    reward_scale: float = 1.0
    envs: int = 1
    shown: int = 0
    late: int = 0

    @property
    def scored(self) -> list[int]:
        """Steps of the evaluations whose mean is the score."""
        return [*range(self.steps, self.steps * 9 // 10, -self.late)][::-1] if self.late else [self.steps]

    @property
    def evaluations(self) -> list[int]:
        """Steps after which it is evaluated."""
        return sorted({*range(self.interval, self.steps + 1, self.interval), *self.scored})

    @property
    def unit(self) -> str:
        """What a step is."""
        if not self.data or self.shown:
            return "environment steps"
        return "iterations" if self.algorithm in ("AWR", "DiscreteAWR") else "updates"

    @property
    def length(self) -> str:
        """How many of them there are."""
        return f"{self.steps:,} {self.unit}"

    @property
    def title(self) -> str:
        """The task in words."""
        source = {"": "online", "REPLAY": "from a replay of SAC"}.get(self.data, f"from {self.data}")
        source = f"online, imitating the best {self.shown} episodes of {self.data}" if self.shown else source
        source += ", scaled" if self.running else ""
        source += ", in the paper's form" if self.fields == PAPER else ""
        return f"{self.env}, learned {source}"

    @property
    def settings(self) -> str:
        """Hyper-parameters in words."""
        words = [f"`{name}={value!r}`" for name, value in self.fields.items()]
        if not self.data and not self.widths:
            words += [f"layers of {' and '.join(map(str, WIDTHS))} units"]
            words += [f"learning rates of {RATE}"] if not {"learning_rate", "rollout_length"} & {*self.fields} else []
            if self.algorithm not in ON_POLICY:
                words += ["batches of 256", f"{RANDOM_STEPS:,} random steps first"]
        if self.widths:
            words += [f"layers of {' and '.join(map(str, self.widths))} units"]
        if self.scaled:
            words += ["actions scaled to [-1, 1]"]
        if self.running:
            words += ["observations and rewards scaled by running statistics"]
        if self.reward_scale != 1:
            words += [f"rewards multiplied by {self.reward_scale:g}"]
        if self.envs > 1:
            words += [f"{self.envs} environments side by side"]
        if self.target_return is not None:
            words += [f"aims at a return of {self.target_return:.0f}"]
        return ", ".join([*words, "otherwise defaults"])

    @property
    def scaled(self) -> bool:
        """Whether actions need scaling to [-1, 1]."""
        return self.env == "Pendulum-v1"


PAGES = Path(__file__).parents[1] / "docs" / "algorithms"


def algorithms(actions: str) -> list[str]:
    """Algorithms in birl/algos that learn from single steps of logged data, by their pages: birl need not be there."""
    pages = {page.stem: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    wanted = (f"- actions: {actions}", "- learns from: logged data", "Code: [birl/algos/")
    apart = ("rest of their episodes", "| `context_size` |")  # whose steps are iterations, or sequences
    found = [name for name, text in pages.items() if all(words in text for words in wanted)]
    return [name for name in found if not any(words in pages[name] for words in apart)]


MPO = {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "target_update_type": "soft"}
# Defaults that wait for longer runs than these, or that these environments are not made for.
SHORTER: dict[str, dict[str, Any]] = {
    **{
        name: {"target_update_interval": 1000}
        for name in algorithms("discrete")
        if "| `target_update_interval` | `8000` |" in (PAGES / f"{name}.md").read_text(encoding="utf-8")
    },
    **{
        name: {"target_update_interval": 100, "learning_rate": 1e-3}
        for name in ("AL", "DPP", "DoublePAL", "MunchausenDQN", "PAL")
    },
    "BEAR": {"warmup_steps": 1000},
    "REDQ": {"update_actor_interval": 2},
    "DroQ": {"update_actor_interval": 2},
    "CRR": {"target_update_type": "soft"},  # with hard updates it unlearns here, on both sides
    "MPO": {**MPO, "epsilon_mean": 1e-2, "epsilon_std": 1e-3},
    "DiscreteMPO": MPO,
    "PLAS": {"warmup_steps": 2000},
    "PLASWithPerturbation": {"warmup_steps": 2000},
    "DecisionTransformer": {"warmup_steps": 500},
    "AWR": {"beta": 10.0, "actor_learning_rate": 2e-4},
    "DiscreteAWR": {"beta": 1.0, "actor_learning_rate": 5e-4, "critic_learning_rate": 1e-3},
}
SMALLER = {"context_size": 10, "num_layers": 1, "num_heads": 1, "batch_size": 32}  # sequence models
# many actions, critics or units an update
HEAVY = ("BCQ", "BEAR", "CQL", "CalQL", "EDAC", "CrossQ", "MPO", "REDQ", "TQC")
SMALL, MIDDLE = (64, 64), (128, 128)
PAPER = {"mode_q_backup": False, "sum_proposals": False}  # CQL's and Cal-QL's

TASKS: dict[str, Task] = {
    "sac-halfcheetah": Task("SAC", "HalfCheetah-v5", "", 50_000, 10_000),
    "sac-hopper": Task("SAC", "Hopper-v5", "", 50_000, 10_000, late=500),
    "td3-hopper": Task("TD3", "Hopper-v5", "", 50_000, 10_000),
    **{  # two critics, as sb3-contrib has by default
        f"tqc-{env.split('-')[0].lower()}": Task("TQC", env, "", 50_000, 10_000, {"n_critics": 2}, late=late)
        for env, late in (("Hopper-v5", 500), ("HalfCheetah-v5", 0))
    },
    "iql-halfcheetah-replay": Task("IQL", "HalfCheetah-v5", "REPLAY", 20_000, 5_000, {"batch_size": 256}),
    **{
        f"{name.lower()}-cartpole-replay": Task(
            name, "CartPole-v1", "cartpole-replay", 5_000, 1_000, SHORTER.get(name, {})
        )
        for name in algorithms("discrete")
    },
    **{
        f"{name.lower()}-pendulum-replay": Task(
            name,
            "Pendulum-v1",
            "pendulum-replay",
            5_000,
            1_000,
            SHORTER.get(name, {}),
            widths=SMALL if name in HEAVY else (),
        )
        for name in algorithms("continuous")
    },
    "ppo-cartpole": Task("PPO", "CartPole-v1", "", 40_960, 4_096, {"batch_size": 64}),
    **{
        f"ppo-halfcheetah{'-running' * running}": Task(
            "PPO", "HalfCheetah-v5", "", 102_400, 10_240, {"batch_size": 64}, running=running
        )
        for running in (False, True)
    },
    **{
        f"{name.lower()}-cartpole": Task(
            name, "CartPole-v1", "", 40_960, 4_096, {"learning_rate": rate}, reward_scale=scale
        )
        # A3C's losses are sums; PFRL's predecessor scales the rewards of its example, too, by 0.01 for longer runs
        for name, rate, scale in (("A2C", 7e-4, 1.0), ("A3C", 7e-4, 0.1), ("REINFORCE", 1e-3, 1.0))
    },
    **{
        f"{name.lower()}-{env.split('-')[0].lower()}": Task(
            name, env, "", 5 * interval, interval, {"replay_start": 1000}, widths=SMALL, reward_scale=scale
        )
        for name, env, interval, scale in (
            ("DiscreteACER", "CartPole-v1", 4_096, 1.0),
            ("ACER", "Pendulum-v1", 2_048, 0.01),  # returns of -1400: values would take the whole run to get there
            ("IMPALA", "CartPole-v1", 4_096, 0.1),
        )
    },
    **{
        f"{name.lower()}-cartpole": Task(name, "CartPole-v1", "cartpole-replay", 20_480, 4_096, fields, shown=4)
        for name, fields in (("GAIL", {}), ("TRPOGAIL", {"rollout_length": 2048}), ("A2CGAIL", {"rollout_length": 32}))
    },
    # from one environment it unlearns: so does a loop written by hand with the same settings
    "nstepdqn-cartpole": Task(
        "NStepDQN",
        "CartPole-v1",
        "",
        40_960,
        4_096,
        {"learning_rate": 1e-3, "target_update_interval": 50},
        widths=SMALL,
        reward_scale=0.1,
        envs=8,
    ),
    "vmpo-cartpole": Task("VMPO", "CartPole-v1", "", 40_960, 8_192),
    "trpo-cartpole": Task(
        "TRPO", "CartPole-v1", "", 40_960, 8_192, {"rollout_length": 2048, "conjugate_gradient_steps": 10}
    ),
    "icml2015trpo-cartpole": Task("ICML2015TRPO", "CartPole-v1", "", 40_960, 8_192, {"rollout_length": 2048}),
    "awr-pendulum-replay": Task("AWR", "Pendulum-v1", "pendulum-replay", 10, 1, SHORTER["AWR"]),
    "discreteawr-cartpole-replay": Task("DiscreteAWR", "CartPole-v1", "cartpole-replay", 10, 1, SHORTER["DiscreteAWR"]),
    **{
        f"{name.lower()}-{data}": Task(name, env, data, 5_000, 1_000, SHORTER.get(name, {}) | SMALLER, target, SMALL)
        for name, env, data, target in (
            ("DecisionTransformer", "Pendulum-v1", "pendulum-replay", -120.0),
            ("TACR", "Pendulum-v1", "pendulum-replay", -120.0),
            ("DiscreteDecisionTransformer", "CartPole-v1", "cartpole-replay", 500.0),
        )
    },
    **{
        f"{name.lower()}-halfcheetah-replay-10k": Task(
            name, "HalfCheetah-v5", "REPLAY", 10_000, 5_000, widths=MIDDLE if name in HEAVY else ()
        )
        for name in ("TD3PlusBC", "IQL", "CQL", "CalQL", "AWAC", "BCQ")
    },
    # only birl: as the paper has it, d3rlpy has no such options
    "cql-halfcheetah-replay-10k-paper": Task("CQL", "HalfCheetah-v5", "REPLAY", 10_000, 5_000, PAPER, widths=MIDDLE),
    **{
        f"{name.lower()}-pendulum-replay-paper": Task(
            name, "Pendulum-v1", "pendulum-replay", 5_000, 1_000, PAPER, widths=SMALL
        )
        for name in ("CQL", "CalQL")
    },
}
ON_POLICY = ("A2C", "A3C", "ICML2015TRPO", "NStepDQN", "PPO", "REINFORCE", "TRPO", "VMPO")
CONTRIB = ("TQC",)
"""What Stable-Baselines3 itself does not have."""
RANDOM_STEPS = 10_000  # uniformly random actions, before the first update
WIDTHS = [256, 256]
RATE = 3e-4
NOISE = 0.1  # TD3's exploration
REPLAY = Path(__file__).parent / "results" / "halfcheetah-replay.h5"  # not committed: 8 MB
REPLAY_OF = ("sac-halfcheetah", "birl-compiled", 2)
"""Task, side and seed of the run whose every step is kept there: policies from random to middling."""


Act = Callable[[Any, float, bool], Any]
"""Greedy action for an observation, the reward before it, and whether an episode begins."""


def narrowed(library: Any, algorithm: str, widths: tuple[int, ...]) -> dict[str, Any]:
    """Encoders with ``widths`` for all networks of an algorithm of birl or d3rlpy; none where there are no widths."""
    config = getattr(library.algos, f"{algorithm}Config")
    names = [each.name for each in dataclasses.fields(config) if widths and each.name.endswith("encoder_factory")]
    own, encoder = config(), library.models.VectorEncoderFactory(list(widths))
    return {
        name: dataclasses.replace(getattr(own, name), hidden_units=list(widths))
        if hasattr(getattr(own, name), "hidden_units")  # an encoder that belongs to the algorithm
        else encoder
        for name in names
    }


def mean_return(env: Any, act: Act) -> float:
    """Mean undiscounted return of `EPISODES` greedy episodes, which begin with the seeds 1000, 1001 and so on."""
    returns = []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1000 + episode)
        total, reward, first, done = 0.0, 0.0, True, False
        while not done:
            action = act(observation, reward, first)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, first, done = total + float(reward), False, terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


def aiming(library: Any, algorithm: Any, task: Task) -> Act:
    """How a sequence model acts, in birl and d3rlpy."""
    discrete = task.algorithm.startswith("Discrete")
    sampler = getattr(library.algos, f"{'Greedy' if discrete else 'Identity'}TransformerActionSampler")()
    model = algorithm.as_stateful_wrapper(task.target_return, sampler)

    def act(observation: Any, reward: float, first: bool) -> Any:
        if first:
            model.reset()
        return model.predict(observation, reward)

    return act


class Report:
    """Evaluates when it is due and appends the scores to the results."""

    def __init__(self, options: argparse.Namespace, versions: str, task: Task, results: Path | None = None) -> None:
        self.options, self.versions, self.results = options, versions, results or RESULTS
        self.env_name, self.steps = task.env, {*task.evaluations}
        self.begin, self.spent = time.perf_counter(), 0.0

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs after ``step``."""
        return step in self.steps

    def __call__(self, step: int, act: Act, make: Callable[[str], Any] | None = None) -> None:
        """Evaluate after ``step``, in an environment that ``make`` makes; the time it takes is not counted."""
        import gymnasium

        seconds = time.perf_counter() - self.begin - self.spent
        env = (make or gymnasium.make)(self.env_name)
        score = mean_return(env, act)
        env.close()
        self.spent = time.perf_counter() - self.begin - seconds
        row = (self.options.task, self.options.side, self.options.seed, step, f"{score:.4f}", f"{seconds:.1f}")
        self.results.parent.mkdir(exist_ok=True)
        with self.results.open("a", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(FIELDS)
            writer.writerow((*row, self.versions))
        print(*row, flush=True)


def greedy(algorithm: Any) -> Act:
    """How birl's policies act now, with their state if they have one."""
    actor = algorithm.actor(greedy=True)
    return lambda x, _, first: actor(x[None], np.array([first]), np.zeros(1))[0]


def evaluation(
    report: Report, acting: Callable[[], Act], make: Callable[[str], Any] | None = None
) -> Callable[[Any, int, int], None]:
    """A callback of birl and d3rlpy that reports whenever an evaluation is due.

    Args:
        report: what evaluates.
        acting: gives what acts in the evaluation.
        make: as in `Report`.
    """

    def evaluate(_: Any, __: int, step: int) -> None:
        if report.due(step):
            report(step, acting(), make)

    return evaluate


def run_birl(options: argparse.Namespace) -> None:
    """One run of birl, eager or compiled."""
    import gymnasium
    import torch

    import birl
    from birl import algos

    task = TASKS[options.task]
    name, steps = task.algorithm, task.steps
    report = Report(options, f"birl {birl.__version__} torch {torch.__version__}", task)
    birl.seed(options.seed)
    fields: dict[str, Any] = {"compile_graph": options.side == "birl-compiled", **task.fields}
    fields |= narrowed(birl, name, task.widths)
    if not task.data and not task.widths:
        widths = birl.models.VectorEncoderFactory(WIDTHS, "tanh" if name in ON_POLICY else "relu")
        if name in ON_POLICY:
            own = [each.name for each in dataclasses.fields(getattr(algos, f"{name}Config"))]
            encoders = dict.fromkeys((each for each in own if each.endswith("encoder_factory")), widths)
            fields = {**({"learning_rate": RATE} if "learning_rate" in own else {}), **fields, **encoders}
        else:
            fields |= {"actor_encoder_factory": widths, "critic_encoder_factory": widths, "batch_size": 256}
            fields |= {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    if task.scaled:
        fields["action_scaler"] = birl.preprocessing.MinMaxActionScaler()
    if task.running:
        fields["observation_scaler"] = birl.preprocessing.RunningObservationScaler()
        fields["reward_scaler"] = birl.preprocessing.RunningRewardScaler()
    if task.reward_scale != 1:
        fields["reward_scaler"] = birl.preprocessing.MultiplyRewardScaler(task.reward_scale)
    algorithm = getattr(algos, f"{name}Config")(**fields).create()

    def acting() -> Act:
        return greedy(algorithm) if task.target_return is None else aiming(birl, algorithm, task)

    evaluate = evaluation(report, acting)
    common: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
    if not task.data:
        if not algorithm.learns_from.on_policy:
            common |= {"random_steps": RANDOM_STEPS, "update_start_step": RANDOM_STEPS}
        env = gymnasium.make(task.env) if task.envs == 1 else birl.envs.make_env(task.env, task.envs)
        kept = (options.task, options.side, options.seed) == REPLAY_OF
        buffer = birl.dataset.create_infinite_replay_buffer(env=env) if kept else None
        explorers = {
            "TD3": birl.algos.NormalNoise(std=NOISE),
            "NStepDQN": birl.algos.LinearDecayEpsilonGreedy(1.0, 0.05, steps // 2),
        }
        algorithm.fit_online(
            env,
            buffer,
            explorer=explorers.get(name),
            n_steps=steps,
            n_steps_per_epoch=steps,
            callback=evaluate,
            seed=options.seed,
            **common,
        )
        if buffer is not None:
            buffer.dump(REPLAY)
    else:
        dataset = load_birl() if task.data == "REPLAY" else birl.datasets.get_dataset(task.data)[0]
        common |= {"n_steps": steps, "n_steps_per_epoch": steps, "callback": evaluate}
        if not task.shown:
            algorithm.fit(dataset, **common)
            return
        best = sorted(dataset.episodes, key=lambda episode: episode.compute_return())[-task.shown :]
        shown = birl.dataset.ReplayBuffer(birl.dataset.InfiniteBuffer(), episodes=best)
        algorithm.fit_online(gymnasium.make(task.env), demonstrations=shown, seed=options.seed, **common)


def load_birl() -> Any:
    """The HalfCheetah replay as birl reads it."""
    import birl

    with REPLAY.open("rb") as file:
        return birl.dataset.ReplayBuffer.load(file, birl.dataset.InfiniteBuffer())


def sb3_evaluation(report: Report, act: Act, make: Callable[[str], Any] | None = None) -> Any:
    """A callback of Stable-Baselines3 that reports whenever an evaluation is due; ``make`` as in `Report`."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:  # the updates of the steps before are made
            if report.due(self.num_timesteps):
                report(self.num_timesteps, act, make)

        _on_training_end = _on_rollout_start

    return Evaluate()


def run_sb3(options: argparse.Namespace) -> None:
    """One run of Stable-Baselines3 or, for TQC, of sb3-contrib."""
    import gymnasium
    import torch
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    task = TASKS[options.task]
    name, env_name, steps = task.algorithm, task.env, task.steps
    sb3 = importlib.import_module("sb3_contrib" if name in CONTRIB else "stable_baselines3")
    report = Report(options, f"{sb3.__name__.replace('_', '-')} {sb3.__version__} torch {torch.__version__}", task)

    env: Any = gymnasium.make(env_name)
    scaled = VecNormalize(DummyVecEnv([lambda: env])) if task.running else None

    def act(x: Any, *_: Any) -> Any:
        return model.predict(x if scaled is None else scaled.normalize_obs(x), deterministic=True)[0]

    fields: dict[str, Any] = {"learning_rate": RATE, **task.fields}
    if name not in ON_POLICY:
        fields |= {"batch_size": 256, "learning_starts": RANDOM_STEPS, "train_freq": 1, "gradient_steps": 1}
    if name == "TD3":
        size = env.action_space.shape[0]
        fields["action_noise"] = NormalActionNoise(np.zeros(size), NOISE * np.ones(size))
    networks = {"net_arch": WIDTHS} | {key: fields.pop(key) for key in ("n_critics",) if key in fields}
    model = getattr(sb3, name)(
        "MlpPolicy",
        env if scaled is None else scaled,
        policy_kwargs=networks,
        seed=options.seed,
        device="cpu",
        **fields,
    )
    model.learn(steps, callback=sb3_evaluation(report, act))


def run_d3rlpy(options: argparse.Namespace) -> None:
    """One run of d3rlpy."""
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    task = TASKS[options.task]
    steps = task.steps
    report = Report(options, f"d3rlpy {d3rlpy.__version__} torch {torch.__version__}", task)
    d3rlpy.seed(options.seed)
    shipped = Path(__file__).parent.parent / "birl" / "data" / f"{task.data}.h5"
    path = REPLAY if task.data == "REPLAY" else shipped
    with path.open("rb") as file:
        dataset = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    fields, optimizers = task.fields | narrowed(d3rlpy, task.algorithm, task.widths), d3rlpy.optimizers
    if task.scaled:
        fields["action_scaler"] = d3rlpy.preprocessing.MinMaxActionScaler()
    if task.algorithm == "DecisionTransformer":  # what birl does by default
        schedule = optimizers.WarmupSchedulerFactory(fields.pop("warmup_steps"))
        rest = {"clip_grad_norm": 0.25, "lr_scheduler_factory": schedule}
        fields["optim_factory"] = optimizers.AdamWFactory(weight_decay=1e-4, **rest)
    elif task.algorithm == "DiscreteDecisionTransformer":
        rest = {"weight_decay": 0.1, "clip_grad_norm": 1.0}
        fields["optim_factory"] = optimizers.GPTAdamWFactory(betas=(0.9, 0.95), **rest)
    algorithm = getattr(d3rlpy.algos, f"{task.algorithm}Config")(**fields).create(device="cpu:0")

    def acting() -> Act:
        if task.target_return is None:
            return lambda x, *_: algorithm.predict(x[None])[0]
        return aiming(d3rlpy, algorithm, task)

    algorithm.fit(
        dataset,
        n_steps=steps,
        n_steps_per_epoch=steps,
        callback=evaluation(report, acting),
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )


@dataclass(frozen=True)
class Outcome:
    """The runs of one side that are complete.

    Attributes:
        steps: of the evaluations, ``[E]``.
        scores: mean returns ``[S, E]``, a row for each seed.
        seconds: that each run took, ``[S]``.
        tail: number of last evaluations that count as the outcome.
    """

    steps: list[int]
    scores: Any
    seconds: list[float]
    tail: int = 1

    @property
    def last(self) -> Any:
        """Mean returns of the last evaluations, ``[S]``."""
        return self.scores[:, -self.tail :].mean(1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean of the last scores."""
        means = np.random.default_rng(0).choice(self.last, (10_000, len(self.last))).mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(low), float(high)

    def __str__(self) -> str:
        """Mean of the last scores, with its interval if there are several seeds."""
        low, high = self.interval
        return f"{self.last.mean():.1f}" + (f" ({low:.1f} … {high:.1f})" if len(self.last) > 1 else "")


def outcomes(
    tasks: dict[str, Task] | None = None, results: Path | None = None, tail: int = 1
) -> dict[str, dict[str, Outcome]]:
    """What is known, by task and side, in their orders here; the newer one where a run was made twice."""
    tasks = TASKS if tasks is None else tasks
    runs: dict[tuple[str, str], dict[int, dict[int, tuple[float, float]]]] = defaultdict(lambda: defaultdict(dict))
    with (results or RESULTS).open(newline="") as file:
        for row in csv.DictReader(file):
            run = runs[row["task"], row["side"]][int(row["seed"])]
            run[int(row["step"])] = float(row["score"]), float(row["seconds"])
    found: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for name, task in tasks.items():
        steps = task.evaluations
        for side in SIDES:
            seeds = [run for _, run in sorted(runs[name, side].items()) if run.keys() >= set(steps)]
            if seeds:
                scores = np.array([[run[step][0] for step in steps] for run in seeds])
                seconds = [run[task.steps][1] for run in seeds]
                found[name][side] = Outcome(steps, scores, seconds, max(tail, len(task.scored)))
    return dict(found)


def table() -> None:
    """Print the last scores: mean over seeds with a 95 % bootstrap interval, and the seconds a run took."""
    print("| task | side | steps | seeds | mean score (95 % interval) | each | seconds |")
    print("|---|---|---|---|---|---|---|")
    for task, sides in outcomes().items():
        for side, found in sides.items():
            each = " ".join(f"{score:.0f}" for score in sorted(found.last))
            seconds = f"{statistics.median(found.seconds):.0f}"
            print(f"| {task} | {side} | {TASKS[task].steps} | {len(found.last)} | {found} | {each} | {seconds} |")


def draw(path: Path, title: str, description: str, found: dict[str, dict[str, Outcome]]) -> None:
    """Draw curves into an SVG, a panel for each task: the same bytes for the same scores."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "birl", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Arial"]}
    with matplotlib.rc_context({**style, "axes.titlesize": 11}):
        columns = min(len(found), 2)  # more in a row would be too small to read on a page
        rows = -(-len(found) // columns)
        figure = Figure((4.6 * columns, 3.4 * rows), layout="constrained", facecolor="white")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(found) :]:
            panel.remove()
        for panel, (task, sides) in zip(panels, found.items(), strict=False):
            for side, outcome in sides.items():
                (label, colour), steps, scores = SIDES[side], outcome.steps, outcome.scores
                label += f" ({len(scores)} seeds)" if len(scores) > 1 else " (1 seed)"
                panel.plot(steps, scores.mean(0), color=colour, marker=".", label=label)
                if len(scores) > 1:
                    panel.fill_between(steps, scores.min(0), scores.max(0), color=colour, alpha=0.2, linewidth=0)
            panel.set(title=TASKS[task].title, xlabel=TASKS[task].unit, ylabel="mean return", xlim=(0, None))
            panel.xaxis.set_major_formatter("{x:,.0f}")
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(fontsize=9)
        metadata = {"Date": None, "Creator": None, "Title": title, "Description": description}
        figure.savefig(path, metadata=metadata)


def main() -> None:
    """Run one of the subcommands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run of one side")
    run.add_argument("--task", choices=TASKS, required=True)
    run.add_argument("--side", choices=["birl", "birl-compiled", "sb3", "d3rlpy"], required=True)
    run.add_argument("--seed", type=int, required=True)
    commands.add_parser("table", help="print the scores so far")
    options = parser.parse_args()
    if options.command == "table":
        table()
        return
    contrib = options.side == "sb3" and TASKS[options.task].algorithm in CONTRIB
    peer = "sb3-contrib" if contrib else options.side
    package = {"sb3": "stable_baselines3", "sb3-contrib": "sb3_contrib"}.get(peer, peer)
    if options.side in ("sb3", "d3rlpy") and importlib.util.find_spec(package) is None:
        root = Path(__file__).parents[1]
        sys.path.insert(0, str(root))
        from benchmarks.peers import peer_python

        python = peer_python(peer, root / ".bench")
        os.execv(python, [python, __file__, *sys.argv[1:]])
    else:
        {"sb3": run_sb3, "d3rlpy": run_d3rlpy}.get(options.side, run_birl)(options)


if __name__ == "__main__":
    sys.exit(main())
