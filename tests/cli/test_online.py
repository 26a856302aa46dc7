"""``birl train`` in environments: exploration, buffer, stacked frames, longer runs, models to begin with, own code."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from run.workers.transports import record_clusters, run_inline

import birl
from birl.acting.explorers import (
    Boltzmann,
    ConstantEpsilonGreedy,
    ExponentialDecayEpsilonGreedy,
    Greedy,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    OrnsteinUhlenbeckNoise,
)
from birl.algos import DQN, DQNConfig, SACConfig, TD3Config
from birl.cli import main
from birl.cli.evaluate import RenderOptions
from birl.cli.online import (
    EnvironmentSettings,
    exploration,
    minibatch_sampler,
    prioritized_sampler,
    replay_buffer,
    with_vector_defaults,
)
from birl.cli.train_options import HindsightGoals, TrainOptions, check_conflicts
from birl.dataset import (
    EpisodicFIFOBuffer,
    FIFOBuffer,
    FrameStackTransitionPicker,
    HindsightSampler,
    MultiStepFrameStackTransitionPicker,
    MultiStepTransitionPicker,
    PrioritizedSampler,
    RandomShift,
    RecentSampler,
)
from birl.errors import ConfigError
from birl.files import load_archive
from birl.models import EncoderFactory, MeanQFunctionFactory
from birl.run.workers.collector_worker import CollectorWorker

SMALL = ["--n-trials", 1, "--n-steps-per-epoch", 100, "--set", "batch_size=8"]
NOISY_DQN = DQNConfig(q_func_factory=MeanQFunctionFactory(noisy=True))
DQN_WORDS = ["train", "DQN", "--env-id", "CartPole-v1", *SMALL]


def parameters(model: Path) -> dict[str, Any]:
    return load_archive(model, "model")[1]["nets"]


def same(one: Path, other: Path) -> bool:
    a, b = parameters(one), parameters(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_the_shortest_command_trains_and_says_how(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(DQN, "fit_online", lambda self, env, **options: seen.update(options, config=self.config))
    birl_("train", "DQN", "--env-id", "CartPole-v1")
    assert (
        "set instead: batch_size=64 learning_rate=0.001 target_update_interval=100 --update-interval 2\n" in birl_.notes
    )
    assert (
        "exploration: 1000 random actions, then epsilon-greedy actions (from 1 to 0.05 in 10000 steps)" in birl_.notes
    )
    assert "50000 steps, seed 0 -> runs/DQN-CartPole-v1-seed0" in birl_.notes
    assert (seen["config"].learning_rate, seen["config"].target_update_interval) == (1e-3, 100)
    assert (seen["n_steps"], seen["random_steps"], seen["buffer"]) == (50_000, 1000, None)
    assert (seen["update_interval"], seen["score"]) == (2, "evaluation")
    assert [seen["explorer"].compute_epsilon(step) for step in (0, 10_000)] == [1.0, pytest.approx(0.05)]
    birl_("train", "DQN", "--env-id", "CartPole-v1", "--out", "other", "learning_rate=6.25e-5", "batch_size=32")
    assert "set instead: target_update_interval=100 --" in birl_.notes  # what the user sets stays, whatever it is
    assert (seen["config"].learning_rate, seen["config"].batch_size) == (6.25e-5, 32)


def test_defaults_that_were_made_for_images_stay_with_images() -> None:
    pole, pendulum = birl.envs.make_env("CartPole-v1"), birl.envs.make_env("Pendulum-v1")
    each_step, default = TrainOptions(update_interval=1), TrainOptions()
    config, options, note = with_vector_defaults(DQNConfig(), {"batch_size"}, pole, each_step)
    assert (config.batch_size, config.learning_rate) == (32, 1e-3)  # type: ignore[attr-defined]
    assert options == each_step and "batch_size" not in note
    assert with_vector_defaults(DQNConfig(), (), images((1, 84, 84)), default) == (DQNConfig(), default, "")
    config, options, note = with_vector_defaults(DQNConfig(), (), birl.envs.make_env(GOALS), default)  # dict of vectors
    assert options.update_interval == 2
    assert config.target_update_interval == 100 and "learning_rate=0.001" in note  # type: ignore[attr-defined]
    assert with_vector_defaults(SACConfig(), (), pendulum, default) == (SACConfig(), default, "")


@pytest.mark.parametrize(
    ("config", "env_id", "given", "kind", "says"),
    [
        (DQNConfig(), "CartPole-v1", {}, LinearDecayEpsilonGreedy, "from 1 to 0.05 in 200 steps"),
        (DQNConfig(), "CartPole-v1", {"epsilon_start": 0.5}, LinearDecayEpsilonGreedy, "0.5 to 0.05 in 200"),
        (DQNConfig(), "CartPole-v1", {"explorer": "none", "random_steps": 3}, None, "3 random actions, then greedy"),
        (DQNConfig(), "CartPole-v1", {"random_steps": 1000}, LinearDecayEpsilonGreedy, "nothing is learned in 1000"),
        (DQNConfig(), "CartPole-v1", {"random_steps": 999}, LinearDecayEpsilonGreedy, "random actions, then epsilon"),
        (TD3Config(), "Pendulum-v1", {}, NormalNoise, "noise of standard deviation 0.2"),
        (TD3Config(), "Pendulum-v1", {"noise_std": "0.5"}, NormalNoise, "noise of standard deviation 0.5"),
        (SACConfig(), "Pendulum-v1", {}, None, "100 random actions, then actions sampled from the policy"),
        (SACConfig(), "Pendulum-v1", {"explorer": "noise"}, NormalNoise, "0.2"),
        (SACConfig(), "Pendulum-v1", {"explorer": "greedy"}, Greedy, "then greedy actions"),
        (TD3Config(), "Pendulum-v1", {"noise_std": "0.5"}, NormalNoise, "0.5"),
        (TD3Config(), "Pendulum-v1", {"noise_std": "0.5,1"}, NormalNoise, r"[0.5, 1.0]"),
        (TD3Config(), "Pendulum-v1", {"explorer": "ou-noise"}, OrnsteinUhlenbeckNoise, "in time (theta 0.15)"),
        (DQNConfig(), "CartPole-v1", {"explorer": "boltzmann", "temperature": 2.0}, Boltzmann, "temperature 2"),
        (DQNConfig(), "CartPole-v1", {"epsilon": 0.1}, ConstantEpsilonGreedy, "actions (0.1)"),
        (DQNConfig(), "CartPole-v1", {"epsilon_decay": 0.9}, ExponentialDecayEpsilonGreedy, "times 0.9 in each step"),
    ],
)  # fmt: skip
def test_explorers(config: Any, env_id: str, given: dict[str, Any], kind: Any, says: str) -> None:
    options, note = exploration(config.create(), birl.envs.make_env(env_id), 1000, TrainOptions(**given))
    assert type(options["explorer"]) is (type(None) if kind is None else kind)
    assert says in note and options["update_start_step"] == options["random_steps"]


def test_exploration_with_a_model_starts_from_scratch() -> None:
    def note(config: Any, env_id: str, **given: Any) -> str:
        options = TrainOptions(init_from="model.d3", **given)
        return exploration(config.create(), birl.envs.make_env(env_id), 1000, options)[1]

    assert "(to lower it: --random-steps 0 --epsilon-start 0.1)" in note(DQNConfig(), "CartPole-v1")
    assert "(to lower it: --random-steps 0)" in note(DQNConfig(), "CartPole-v1", epsilon=0.1)
    assert "(to lower it: --random-steps 0)" in note(SACConfig(), "Pendulum-v1")
    assert "lower it" not in note(SACConfig(), "Pendulum-v1", random_steps=0)


@pytest.mark.parametrize(
    ("config", "env_id", "given", "says"),
    [
        (DQNConfig(), "CartPole-v1", {"explorer": "noise"}, "--explorer epsilon-greedy or boltzmann or epsilon-ladd"),
        (TD3Config(), "Pendulum-v1", {"explorer": "epsilon-greedy"}, "--explorer noise or ou-noise or greedy or none"),
        (TD3Config(), "Pendulum-v1", {"noise_theta": 0.1}, "not for TD3.* give --explorer ou-noise, too"),
        (DQNConfig(), "CartPole-v1", {"temperature": 1.0}, "give --explorer boltzmann, too"),
        (TD3Config(), "Pendulum-v1", {"noise_std": "a"}, "--noise-std is 'a'"),
        (TD3Config(), "Pendulum-v1", {"epsilon_end": 0.1}, "--epsilon-end: not for TD3"),
        (SACConfig(), "Pendulum-v1", {"noise_std": "0.1"}, "give --explorer noise, too"),
        (DQNConfig(), "CartPole-v1", {"explorer": "none", "epsilon_steps": 1}, "--epsilon-steps: not for DQN"),
        (NOISY_DQN, "CartPole-v1", {"epsilon": 0.1}, "whose noisy networks explore: leave it out"),
    ],
)
def test_explorers_that_do_not_fit(config: Any, env_id: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        exploration(config.create(), birl.envs.make_env(env_id), 1000, TrainOptions(**given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epsilon": 0.1, "epsilon_end": 0.1}, "--epsilon and --epsilon-end: a constant epsilon has no schedule"),
        ({"epsilon_decay": 0.9, "epsilon_steps": 5}, "--epsilon-steps and --epsilon-decay: epsilon falls linearly or"),
        ({"n_trials": 3, "eval_steps": 5}, "--n-trials and --eval-steps: both set the length of evaluations"),
        ({"recent": 0.9, "prioritized": True}, "--prioritized and --recent: both set which steps are sampled"),
    ],
)
def test_options_that_exclude_each_other(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_conflicts(TrainOptions(**given))


def test_options_reach_the_run(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*DQN_WORDS, "--out", out, "--n-steps", 200, "--buffer-size", 50, "--multi-step", 3, "--frame-stack", 2]
    words += ["--num-envs", 2, "--random-steps", 20, "--epsilon-steps", 100, "--update-interval", 4]
    birl_(*words)
    model = birl.load_learnable(out / "model_200.d3")
    assert (model.observation_shape, model.grad_step) == ((8,), (200 - 20) // 4)
    settings = json.loads((out / "run.json").read_text())
    assert (settings["frame_stack"], settings["multi_step"], settings["buffer_size"]) == (2, 3, 50)
    checkpoint = load_archive(out / "checkpoint.d3c", "checkpoint")[0]
    assert checkpoint["picker"]["type"] == "MultiStepTransitionPicker"
    assert (checkpoint["explorer"]["_end"], checkpoint["explorer"]["_duration"]) == (0.05, 100)
    assert "epsilon_steps was 100, now 50" in birl_(*words, "--epsilon-steps", 50, status=1)
    assert birl_("evaluate", out, "--n-episodes", 1).startswith("return ")  # the run's environment, its frames stacked


def test_priorities(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler: Any = prioritized_sampler(TrainOptions(prioritized=True, priority_alpha=0.5, multi_step=3), 90)
    assert (sampler.alpha, sampler.beta, sampler.beta_steps) == (0.5, 0.4, 90)
    assert prioritized_sampler(TrainOptions(multi_step=3), 90) is None
    asked: list[Any] = []

    def spied(options: TrainOptions, n_minibatches: int) -> Any:
        asked.append((options.given("prioritized", "priority_alpha"), n_minibatches))
        return prioritized_sampler(options, n_minibatches)

    monkeypatch.setattr(sys.modules["birl.cli.online"], "prioritized_sampler", spied)
    out, given = tmp_path / "run", {"prioritized": True, "priority_alpha": 0.5}
    words = [*DQN_WORDS, "--out", out, "--n-steps", 100, "--random-steps", 20, "--update-interval", 4]
    words += ["--prioritized", "--priority-alpha", 0.5, "--n-updates", 2]
    birl_(*words)
    assert json.loads((out / "run.json").read_text()).items() >= given.items()
    state = load_archive(out / "checkpoint.d3c", "checkpoint")[1]["parts"]["sampler"]["sampler"]
    assert state["draws"] == 40 and len(np.unique(state["priority"])) > 20
    assert "priority_alpha was 0.5, now 0.6" in birl_(*words, "--priority-alpha", 0.6, status=1)
    birl_(*words, "--n-steps", 120, "--extend")
    assert asked == [(given, 40), ({**given, "priority_alpha": 0.6}, 40), (given, 40)]  # the schedule stays


def test_priorities_of_logged_data(birl_: Any, tmp_path: Path) -> None:
    words = ["--n-steps", 5, "--prioritized", "batch_size=4", "--out"]
    birl_("train", "DiscreteCQL", "--dataset", "cartpole-random", *words, tmp_path / "a", "--seeds", 2)
    said = birl_("evaluate", tmp_path / "a" / "seed_0", "--best", "--env-id", "CartPole-v1", status=1)
    assert "and is not one of several seeds on logged data (--seeds). Leave --best out" in said
    assert (tmp_path / "a" / "seed_1" / "model_5.d3").exists()
    message = birl_("train", "BC", "--dataset", "pendulum-random", *words, tmp_path / "b", status=1)
    assert message.endswith("a prioritised sampler: nothing sets priorities; leave out --prioritized")
    small = ["context_size=2", "num_layers=1"]
    message = birl_("train", "TACR", "--dataset", "pendulum-random", *words, tmp_path / "c", *small, status=1)
    assert message.endswith("a prioritised sampler: nothing sets priorities; leave out --prioritized")
    message = birl_("train", "AWR", "--env-id", "Pendulum-v1", *words[:3], "--out", tmp_path / "d", status=1)
    assert message.endswith("a prioritised sampler: nothing sets priorities; leave out --prioritized")
    for words in (["BC", "--dataset", "pendulum-random"], ["AWR", "--env-id", "Pendulum-v1"]):
        message = birl_("train", *words, "--multi-step", 3, "--out", tmp_path / "d", status=1)
        assert message.endswith(f"--multi-step: {words[0]} does not learn from n-step returns: leave this out")
    assert not any((tmp_path / name).exists() for name in "bcd")  # refused at once


def images(shape: tuple[int, ...]) -> Any:
    """CartPole whose observations are images."""
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformObservation(env, lambda _: np.full(shape, 7, np.uint8), space)


def test_buffers() -> None:
    pole = birl.envs.make_env("CartPole-v1")
    assert replay_buffer(pole, DQNConfig(gamma=0.9), TrainOptions()) is None
    found = replay_buffer(pole, DQNConfig(gamma=0.9), TrainOptions(multi_step=3, buffer_size=7))
    assert found is not None and found.buffer.limit == 7
    picker = found.transition_picker
    assert isinstance(picker, MultiStepTransitionPicker) and (picker.n_steps, picker.gamma) == (3, 0.9)
    stacked = birl.envs.FrameStack(images((1, 40, 40)), 4)
    found = replay_buffer(stacked, DQNConfig(gamma=0.9), TrainOptions(frame_stack=4))
    assert found is not None and isinstance(found.transition_picker, FrameStackTransitionPicker)
    algorithm = DQNConfig(batch_size=4).create()
    algorithm.fit_online(stacked, found, n_steps=20, logger_adapter=birl.logging.NoopAdapterFactory())
    assert found.episodes[0].observations.shape[1:] == (1, 40, 40)  # stored once
    assert found.sample_transition_batch(3).observations.shape == (3, 4, 40, 40)
    found = replay_buffer(stacked, DQNConfig(gamma=0.9), TrainOptions(frame_stack=4, multi_step=3))
    assert found is not None and found.dataset_info.observation_signature.shape == [(1, 40, 40)]  # so they are here
    picker = found.transition_picker
    assert isinstance(picker, MultiStepFrameStackTransitionPicker)
    assert (picker.n_frames, picker.n_steps, picker.gamma) == (4, 3, 0.9)
    vector = EnvironmentSettings("CartPole-v1", frame_stack=2).make(3)
    assert vector.single_observation_space.shape == (8,)


GOALS = "tests.algos.test_goal_chain:GoalChain"


def test_replay_of_other_kinds() -> None:
    pole, goals = birl.envs.make_env("CartPole-v1"), birl.envs.make_env(GOALS, num_envs=2)
    found: Any = replay_buffer(pole, DQNConfig(), TrainOptions(whole_episodes=True))
    assert isinstance(found.buffer, EpisodicFIFOBuffer) and found.buffer.limit == 1_000_000
    found = replay_buffer(images((3, 40, 40)), DQNConfig(), TrainOptions(random_shift=2, buffer_size=9))
    assert found.reader.sources[0].augmentation == RandomShift(2) and type(found.buffer) is FIFOBuffer
    recent: Any = minibatch_sampler(pole, TrainOptions(recent=0.99), 70)
    assert (type(recent), recent.eta, recent.anneal_steps) == (RecentSampler, 0.99, 70)
    assert minibatch_sampler(pole, TrainOptions(), 70) is None
    options = TrainOptions(hindsight=HindsightGoals.FINAL, hindsight_k=2, prioritized=True)
    hindsight: Any = minibatch_sampler(goals, options, 70)
    assert (type(hindsight), hindsight.strategy, hindsight.k) == (HindsightSampler, "final", 2)
    assert type(hindsight.sampler) is PrioritizedSampler
    config = DQNConfig(observation_keys=("observation", "desired_goal"))
    found = replay_buffer(goals, config, TrainOptions(), hindsight)
    assert set(found.dataset_info.observations) == {"observation", "desired_goal", "achieved_goal"}


def test_hindsight_and_recent_steps(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "DQN", "--env-id", GOALS, "--n-steps", 60, "--random-steps", 20, "--n-trials", 1, "--out", out]
    words += ["--hindsight", "future", "--recent", 0.9, "--update-interval", 2, "batch_size=8"]
    words += ['observation_keys=["observation", "desired_goal"]']
    birl_(*words)
    settings = json.loads((out / "run.json").read_text())
    assert settings.items() >= {"hindsight": "future", "recent": 0.9}.items() and "hindsight_k" not in settings
    state = load_archive(out / "checkpoint.d3c", "checkpoint")[1]["parts"]["sampler"]["sampler"]
    assert state == {"draws": 20}  # every other step of the forty after the random ones
    assert "hindsight was 'future', now 'final'" in birl_(*words, "--hindsight", "final", status=1)
    assert set(birl.load_learnable(out / "model_60.d3").spec.observations) == {"observation", "desired_goal"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--dataset", "cartpole-random", "--recent", 0.9], "--recent: for training in environments only"),
        (["--recent", 0.9, "--prioritized"], "--prioritized and --recent: both set which steps are"),
        (["--hindsight-k", 3], "--hindsight-k: for hindsight only; give --hindsight, too"),
        (["--hindsight", "future"], "--hindsight future: the environment CartPoleEnv has no compute_reward("),
        (["--random-shift", 4], "RandomShift shifts images"),
        (["--dataset", "cartpole-random", "--buffer-size", 9], "--buffer-size: for training in environments only"),
        (["--dataset", "cartpole-random", "--epsilon-end", 0.1], "--epsilon-end: for training in environments only"),
        (["--epsilon-end", 2], "--epsilon-end 2: "),
        (["--explorer", "random"], "epsilon-greedy"),
        (["--extend"], "holds no run"),
        (["--priority-beta", 0.5], "--priority-beta: for prioritised replay only; give --prioritized, too"),
        (["--alpha", "4"], "--set alpha=4"),
        (["--learning-rate=0.1"], "--set learning_rate=0.1"),
        (["--nonsense", "4"], "No such option: --nonsense"),
        (["--seeds", "+2000"], "--seeds"),
        (["--init-from", "nowhere.d3"], "there is no nowhere.d3"),
    ],
)
def test_options_that_do_not_fit(birl_: Any, tmp_path: Path, words: list[Any], says: str) -> None:
    usage = words[0] in ("--explorer", "--alpha", "--learning-rate=0.1", "--nonsense") or words[-1] == 2
    algorithm = ["train", "DiscreteCQL"] if "alpha" in words[0] else ["train", "DQN"]
    out = tmp_path / "run"
    where = [] if "--dataset" in words else ["--env-id", "CartPole-v1"]
    assert says in birl_(*algorithm, *where, "--n-steps", 20, "--out", out, *words, status=2 if usage else 1)
    assert not out.exists()


def test_the_limit_of_seeds_holds_however_it_is_written(birl_: Any, tmp_path: Path) -> None:
    words = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", 5, "--out", tmp_path / "run"]
    for number in ("2000", "+2000", " 2000", "2_000"):
        assert "more than 1000 seeds; for this one alone: --seed 2000" in birl_(*words, "--seeds", number, status=1)


def test_on_policy_algorithms_take_no_buffer(birl_: Any, tmp_path: Path) -> None:
    words = ["train", "PPO", "--env-id", "CartPole-v1", "--n-steps", 20, "--out", tmp_path / "run"]
    for option in (["--buffer-size", 9], ["--explorer", "none"], ["--multi-step", 2], ["--prioritized"]):
        assert f"{option[0]}: PPO updates after each rollout" in birl_(*words, *option, status=1)
    birl_(*words, "--set", "rollout_length=8", "--num-envs", 2, "--frame-stack", 3, "--n-trials", 1)
    assert birl.load_learnable(tmp_path / "run" / "model_20.d3").observation_shape == (12,)


def test_algorithms_that_replay_rollouts_take_a_buffer(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def make(*given: Any, **options: Any) -> Any:
        made.append(replay_buffer(*given, **options))
        return made[-1]

    monkeypatch.setattr(sys.modules["birl.cli.train"], "replay_buffer", make)
    words = ["train", "DiscreteACER", "--env-id", "CartPole-v1", "--n-steps", 40, "--out", tmp_path / "run"]
    words += ["--set", "rollout_length=5", "--set", "replay_start=10", "--set", "batch_size=2", "--n-trials", 1]
    assert "--random-steps: DiscreteACER updates" in birl_(*words, "--random-steps", 9, "--buffer-size", 9, status=1)
    assert "--buffer-size: not with --workers" in birl_(*words, "--buffer-size", 9, "--workers", 2, status=1)
    birl_(*words, "--buffer-size", 20)
    assert made[0].buffer.limit == 20 and 0 < made[0].transition_count <= 20


# -- longer runs, models to begin with ---------------------------------------------------------------------------------


def test_an_extended_run_is_the_longer_run(birl_: Any, tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    words = [*DQN_WORDS, "--epsilon-steps", 60, "--random-steps", 20]
    birl_(*words, "--n-steps", 300, "--out", long)
    birl_(*words, "--n-steps", 200, "--out", short)
    assert "--extend to make it longer" in birl_(*words, "--n-steps", 300, "--out", short, status=1)
    assert "has --n-steps 200" in birl_(*words, "--n-steps", 100, "--out", short, "--extend", status=1)
    birl_(*words, "--n-steps", 300, "--out", short, "--extend")
    assert "resuming at step 200" in birl_.notes
    assert same(short / "model_300.d3", long / "model_300.d3")
    for name in ("loss.csv", "evaluation.csv", "rollout_return.csv"):
        assert (short / name).read_text() == (long / name).read_text()
    before = (short / "model_300.d3").read_bytes()
    birl_(*words, "--n-steps", 300, "--out", short)  # the same command without --extend: finished
    assert (short / "model_300.d3").read_bytes() == before


def test_schedules_of_an_extended_run_stay(birl_: Any, tmp_path: Path) -> None:
    words = ["train", "DQN", "--env-id", "CartPole-v1", "--n-trials", 1, "--out", tmp_path / "r", "batch_size=8"]
    birl_(*words, "--n-steps", 100)
    for steps in (150, 170):
        birl_(*words, "--n-steps", steps, "--extend")
        assert "10 random actions, then epsilon-greedy actions (from 1 to 0.05 in 20 steps)" in birl_.notes
        birl_(*words, "--n-steps", steps)
    epochs = [row.split(",")[1] for row in (tmp_path / "r" / "loss.csv").read_text().splitlines()]
    assert epochs[-3:] == ["150", "160", "170"]


def test_a_run_is_not_removed_and_extended_at_once(birl_: Any, tmp_path: Path) -> None:
    run = ["train", "DQN", "--env-id", "CartPole-v1", "--n-trials", 1, "--out", tmp_path / "run", "batch_size=8"]
    birl_(*run, "--n-steps", 20)
    assert "--extend and --fresh: --extend continues the run that --fresh removes; leave one out" in birl_(
        *run, "--n-steps", 30, "--extend", "--fresh", status=1
    )
    assert (tmp_path / "run" / "model_20.d3").exists()


def test_a_run_begins_with_a_model(birl_: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    offline = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", 20]
    small = ["batch_size=8", "encoder_factory=vector", "encoder_factory.hidden_units=[8]", "gamma=0.9"]
    birl_(*offline, "--out", first, "--set", *small)
    online = ["train", "DiscreteCQL", "--env-id", "CartPole-v1", "--n-trials", 1, "--n-steps", 20, "--out", second]
    birl_(*online, "--init-from", first, "--set", "learning_rate=0.0", "alpha=0.5")
    assert same(first / "model_20.d3", second / "model_20.d3")  # learning rate 0
    config = birl.load_learnable(second / "model_20.d3").config
    assert (config.gamma, config.alpha, config.batch_size) == (0.9, 0.5, 8)  # the model's settings and the user's
    wrong = ["train", "DQN", "--env-id", "CartPole-v1", "--n-steps", 20, "--out", tmp_path / "x", "--init-from", first]
    assert "is a model of DiscreteCQL, not of DQN" in birl_(*wrong, status=1)
    pendulum = ["train", "TD3", "--env-id", "Pendulum-v1", "--n-steps", 20, "--out", tmp_path / "x"]
    assert "not of TD3" in birl_(*pendulum, "--init-from", first, status=1)
    several = [*offline, "--out", tmp_path / "x", "--seeds", 2, "--init-from", first]
    assert "--init-from: not with --seeds" in birl_(*several, status=1)
    other = [*online, "--init-from", first, "--fresh"]
    said = birl_(*other, "--set", "encoder_factory.hidden_units=[16]", "gamma=0.5", status=1)
    assert "--set encoder_factory.hidden_units was [8], now [16]" in said and "gamma" not in said
    other[3] = "Acrobot-v1"
    assert "made for observations (4,) and 2 discrete actions, but this run has observations (6,)" in birl_(
        *other, status=1
    )
    assert (second / "model_20.d3").exists()  # not removed by a run that cannot begin


def test_best_models_and_ends_at_a_score(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*DQN_WORDS, "--out", out, "--n-steps", 300, "--keep-models", 1]
    text = birl_(*words, "--stop-at", 2)
    assert text.startswith(f"done: 100 steps, model {out}/model_100.d3; the best, with evaluation ")
    best = birl.load_learnable(out / "model_best.d3")
    assert best.grad_step == birl.load_learnable(out / "model_100.d3").grad_step
    assert json.loads(birl_("evaluate", out, "--best", "--json"))["model"] == str(out / "model_best.d3")
    birl_("export", out, tmp_path / "policy.onnx", "--best")
    assert "done: 100 steps" in birl_(*words, "--stop-at", 2)  # finished
    assert "stop_at was 2.0, now 1000.0" in birl_(*words, "--stop-at", 1000, status=1)
    assert "done: 300 steps" in birl_(*words, "--stop-at", 1000, "--extend")
    assert "done: 300 steps" in birl_(*words, "--stop-at", 1000)
    assert [path.name for path in out.glob("model_[0-9]*")] == ["model_300.d3"]
    birl_(*words, "--extend")
    offline = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", 10, "--set", "batch_size=4"]
    assert "--stop-at: for runs with an environment only" in birl_(
        *offline, "--out", out / "x", "--stop-at", 3, status=1
    )
    seeds = [*offline, "--out", tmp_path / "seeds", "--env-id", "CartPole-v1", "--n-trials", 1, "--seeds", 2]
    ends = ["--stop-at", 3, "--keep-models", 1]
    assert "--stop-at and --keep-models: not with --seeds" in birl_(*seeds, *ends, status=1)
    birl_(*offline, "--out", tmp_path / "scored", "--env-id", "CartPole-v1", "--n-trials", 1)
    assert birl_("evaluate", tmp_path / "scored", "--best", "--n-episodes", 1)
    birl_(*offline, "--out", tmp_path / "off")
    assert "has no model_best.d3" in birl_("evaluate", tmp_path / "off", "--best", status=1)
    assert "is no folder of a run" in birl_("evaluate", out / "model_300.d3", "--best", status=1)


def test_wrappers_for_python_are_put_into_a_function_for_the_command_line(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("odd_actions.py").write_text(
        "import gymnasium\n\n\nclass Odd(gymnasium.Env):\n    observation_space = gymnasium.spaces.Box(0, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Text(3)\n"
    )
    message = birl_("train", "DQN", "--env-id", "odd_actions:Odd", status=1)
    assert message.endswith("TransformAction; here in a function that makes it: --env-id module:function")


# -- masks of actions --------------------------------------------------------------------------------------------------

DOORS = """
import gymnasium
import numpy as np


class Doors(gymnasium.Env):
    '''One of four doors is open at each step; another one ends the episode. Only the mask tells.'''

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen()

    def seen(self):
        self.mask = np.arange(4) == self.np_random.integers(4)
        return np.zeros(2, np.float32), {"action_mask": self.mask}

    def step(self, action):
        right, self.steps = bool(self.mask[action]), self.steps + 1
        seen, info = self.seen()
        return seen, float(right), not right, self.steps == 10, info


class MaskInObservation(Doors):
    observation_space = gymnasium.spaces.Dict(
        {"hand": Doors.observation_space, "action_mask": gymnasium.spaces.MultiBinary(4)}
    )

    def seen(self):
        seen, info = super().seen()
        return {"hand": seen, **info}, {}
"""


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from birl.envs import stepper

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    stepper._WARNED.clear()
    Path("own_doors.py").write_text(DOORS)
    return "own_doors:Doors"


def test_masks_are_honoured_and_remembered(birl_: Any, doors: str) -> None:
    words = ["train", "DQN", "--env-id", doors, "--n-steps", 60, "--n-trials", 2, "batch_size=8"]
    with pytest.warns(UserWarning, match="which is not used") as caught:
        birl_(*words, "--out", "unmasked")
    said: Any = warnings.formatwarning  # as main has set it
    assert [said(each.message) for each in caught] == [
        "birl: warning: the environment has a mask of actions in info['action_mask'], which is not used: "
        "train with --action-mask, so that policies never take masked actions\n"
    ]
    masked = [*words, "--out", "run", "--action-mask", "--num-envs", 2, "--multi-step", 2]
    birl_(*masked)
    assert "set instead: learning_rate=0.001" in birl_.notes  # masks make no image of a vector
    assert {row.split(",")[2] for row in Path("run/evaluation.csv").read_text().splitlines()} == {"10.0"}
    assert json.loads(Path("run/run.json").read_text())["action_mask"] is True
    assert "action_mask" not in json.loads(Path("unmasked/run.json").read_text())
    unmasked = [word for word in masked if word != "--action-mask"]
    assert "action_mask was True, now" in birl_(*unmasked, "--n-steps", 80, "--extend", status=1)
    birl_(*masked, "--n-steps", 80, "--extend")
    assert "resuming at step 60" in birl_.notes
    for model, env in (("run", doors), ("run/model_80.d3", doors)):  # a policy that reads masks says so itself
        assert birl_("evaluate", model, "--env-id", env, "--n-episodes", 3).startswith("return 10.00 ± 0.00")
    played = RenderOptions(epsilon=0.5).play(Path("run"), birl.envs.make_env(doors), 2)
    assert played.startswith("return 10.00 ± 0.00")


def test_masks_that_observations_have_need_no_option(birl_: Any, doors: str) -> None:
    words = [
        "train",
        "PPO",
        "--env-id",
        "own_doors:MaskInObservation",
        "--n-steps",
        32,
        "--n-trials",
        1,
        "rollout_length=16",
    ]
    birl_(*words, "--out", "run")
    assert birl_("evaluate", "run", "--env-id", "own_doors:MaskInObservation", "--n-episodes", 2).startswith(
        "return 10.00"
    )
    assert "already have a part 'action_mask'" in birl_(*words, "--out", "x", "--action-mask", status=1)


def test_masks_in_evaluations_of_what_is_learned_from_logs(birl_: Any, doors: str) -> None:
    masks = np.random.default_rng(0).random((40, 4)) < 0.5
    masks[:, 1] = True
    logged = (np.zeros((40, 2), np.float32), np.ones(40, int), np.ones(40), np.arange(40) % 10 == 9)
    birl.dataset.MDPDataset(*logged, action_masks=masks).dump("masked.h5")
    words = ["train", "DiscreteCQL", "--dataset", "masked.h5", "--n-steps", 5, "--n-trials", 1, "batch_size=4"]
    assert "--action-mask: for runs with an environment only" in birl_(*words, "--action-mask", "--out", "a", status=1)
    message = birl_(*words, "--env-id", doors, "--out", "a", status=1)
    assert message.endswith("It was built with masks of actions, which are missing here: give --action-mask")
    assert not Path("a").exists()
    birl_(*words, "--env-id", doors, "--out", "a", "--action-mask")
    assert Path("a/environment.csv").read_text().endswith(",10.0\n")


# -- own code ----------------------------------------------------------------------------------------------------------

OWN = """
from typing import final

from birl.algos.dqn import DQNConfig, DQNNets, q_loss
from birl.algorithm import ActionSpace, Algorithm, Gradient, GreedyCritic, HardCopy, Transitions, config


@config
class {name}Config(DQNConfig):
    batch_size: int = 8


@final
class {name}(Algorithm[{name}Config, DQNNets]):
    actions, learns_from, acts = ActionSpace.DISCRETE, Transitions(), GreedyCritic()
    steps = (Gradient("critic", q_loss, optimizer="", metric="loss"), HardCopy("critic", "critic_target"))


def pole():
    import gymnasium
    return gymnasium.make("CartPole-v1")


number = 3
"""


def test_own_algorithms_are_trained_evaluated_and_exported(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_cli_algo.py").write_text(OWN.format(name="OwnCli"))
    words = ["--env-id", "own_cli_algo:pole", "--n-trials", 1, "--n-steps", 50]
    birl_("train", "own_cli_algo:OwnCliConfig", *words, "--out", "a")
    birl_("train", "own_cli_algo:OwnCli", *words, "--out", "b", "gamma=0.5")
    assert birl.load_learnable("b/model_50.d3").gamma == 0.5
    for name, says in (
        ("own_cli_algo:number", "it must be a class derived from birl.Algorithm"),
        ("own_cli_algo:nothing", "cannot be imported: module 'own_cli_algo' has no attribute 'nothing'"),
        ("no_module:X", "No module named 'no_module'"),
        (":X", "cannot be imported"),
    ):
        assert says in birl_("train", name, *words, "--out", "c", status=1)
    # In a new process nothing is imported that only a file names: neither the algorithm nor the environment.
    monkeypatch.delitem(sys.modules, "own_cli_algo")
    from birl.config import AlgorithmConfig

    known = AlgorithmConfig._known
    monkeypatch.setattr(AlgorithmConfig, "_known", {k: v for k, v in known.items() if k != "OwnCli"})
    for command in (["evaluate", "a", "--env-id", "CartPole-v1"], ["export", "a", "x.onnx"]):
        assert "--import" in birl_(*command, status=1)
    assert "own_cli_algo" not in sys.modules
    assert "give --env-id own_cli_algo:pole" in birl_("evaluate", "a", "--import", "own_cli_algo", status=1)
    own = ["--import", "own_cli_algo:OwnCliConfig"]
    assert "over 2 episodes" in birl_("evaluate", "a", *own, "--env-id", "own_cli_algo:pole", "--n-episodes", 2)
    birl_("export", "a", "policy.onnx", *own)
    assert Path("policy.onnx").exists()


OWN_ENCODER = """
from dataclasses import dataclass

from torch import nn

from birl.models import EncoderFactory
from run.workers.transports import record_clusters, run_inline


@dataclass(frozen=True)
class OwnCliEncoderFactory(EncoderFactory, type="own_cli_encoder"):
    size: int = 4

    def create(self, observation_shape):
        return nn.Sequential(nn.Linear(*observation_shape, self.size), nn.ReLU())
"""


def test_own_encoders_are_imported_by_every_command(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_cli_encoder.py").write_text(OWN_ENCODER)
    train = [*DQN_WORDS, "encoder_factory=own_cli_encoder", "encoder_factory.size=8", "--n-steps"]
    own = ["--import", "own_cli_encoder"]
    monkeypatch.setattr(EncoderFactory, "_known", dict(EncoderFactory._known))

    def forget() -> None:  # as in a new process
        sys.modules.pop("own_cli_encoder", None)
        EncoderFactory._known.pop("own_cli_encoder", None)

    assert "If it is your own class, name its module: --import MODULE" in birl_(*train, 50, "--out", "a", status=1)
    assert "No module named 'nothing'" in birl_(*train, 50, "--out", "a", "--import", "nothing", status=1)
    birl_(*train, 50, "--out", "a", *own)
    assert birl.load_learnable("a/model_50.d3").config.encoder_factory.size == 8
    commands = [[*train, 60, "--out", "a", "--extend"], ["evaluate", "a", "--n-episodes", 1]]
    commands += [["export", "a", "x.onnx"], [*DQN_WORDS, "--init-from", "a", "--out", "b", "--n-steps", 20]]
    for command in commands:
        forget()
        assert "--import MODULE" in birl_(*command, status=1) and "own_cli_encoder" not in sys.modules
        birl_(*command, *own)
    assert birl.load_learnable("b/model_20.d3").config.encoder_factory.size == 8


def test_train_takes_demonstrations(birl_: Any, tmp_path: Path) -> None:
    train = ["train", "GAIL", "--env-id", "CartPole-v1", "--n-steps", 32, "--n-trials", 1, "rollout_length=16"]
    expert = ["--demonstrations", "cartpole-random"]
    assert "done: 32 steps" in birl_(*train, *expert, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["demonstrations"] == "cartpole-random"
    for words, says in (
        (train, "GAIL imitates an expert: give --demonstrations"),
        ([*train, "--demonstrations", "no.h5"], "no.h5"),
        ([*train, "--demonstrations", "pendulum-random"], "the dataset has"),
        (["train", "PPO", *train[2:], *expert], "PPO takes no --demonstrations"),
        (["train", "DiscreteBC", "--dataset", "cartpole-random", *expert], "--demonstrations"),
    ):
        assert says in birl_(*words, "--out", tmp_path / "none", status=1)
        assert not (tmp_path / "none").exists()


# -- evaluate ----------------------------------------------------------------------------------------------------------


def test_evaluate_knows_the_environment_of_the_run(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    birl_("train", "PPO", "--env-id", "CartPole-v1", "--n-steps", 20, "--out", out, "--n-trials", 1, "rollout_length=8")
    answer = json.loads(birl_("evaluate", out, "--n-episodes", 2, "--json"))
    assert answer["env_id"] == "CartPole-v1"
    assert birl_("evaluate", out / "model_20.d3", "--n-episodes", 2).startswith("return ")
    assert "observations (3,)" in birl_("evaluate", out, "--env-id", "Pendulum-v1", status=1)
    offline = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", 5, "--set", "batch_size=4"]
    birl_(*offline, "--out", tmp_path / "off")
    assert "has no environment: give --env-id" in birl_("evaluate", tmp_path / "off", status=1)
    birl_(*offline, "--out", tmp_path / "many", "--seeds", 2, "--env-id", "CartPole-v1", "--n-trials", 1)
    for path in ("many/seed_1", "many/seed_1/model_5.d3"):
        assert birl_("evaluate", tmp_path / path, "--n-episodes", 1).startswith("return ")
    (out / "run.json").write_text("[" * 100_000)
    assert "run.json cannot be read" in birl_("evaluate", out, status=1)


def test_metrics_stand_in_the_same_order_in_every_epoch(birl_: Any, tmp_path: Path) -> None:
    birl_(*DQN_WORDS, "--out", tmp_path / "run", "--n-steps", 300, "--log-gradients")
    lines = [line for line in birl_.notes.splitlines() if line.startswith("epoch ")]
    orders = [[word.split("=")[0] for word in line.split() if "=" in word] for line in lines]
    expected = ["evaluation", "rollout_return", "episode_length", "loss", "q_value"]
    assert len(lines) == 3 and all(order == expected for order in orders)


def test_many_files_of_a_folder_can_be_plotted(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", 5, "--set", "batch_size=4"]
    birl_(*words, "--out", "many", "--seeds", 2)
    everything = sorted(Path("many").iterdir())
    assert len(everything) > 2
    text = birl_("plot", *everything, "--metric", "loss", "--save", "x.png")
    assert text == "x.png: many/seed_0/loss.csv, many/seed_1/loss.csv\n"
    assert "run.json" in birl_.notes and "left out" in birl_.notes
    assert main(["plot", "many/run.json", "--save", "x.png"]) == 1


def test_other_environments_than_games_are_refused() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 is not an Atari game.*ALE/Breakout-v5"):
        EnvironmentSettings("CartPole-v1", atari=True).make()


def test_raw_frames_of_a_game_are_noted() -> None:
    env = EnvironmentSettings("ALE/Pong-v5").make()
    note = with_vector_defaults(DQNConfig(), (), env, TrainOptions())[2]
    assert note == "ALE/Pong-v5 has raw frames; --atari preprocesses them as papers do"
    assert not with_vector_defaults(DQNConfig(), (), env, TrainOptions(atari=True))[2]


# -- collectors --------------------------------------------------------------------------------------------------------


def test_collectors_make_the_steps(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)
    made = record_clusters(monkeypatch)
    words = [*DQN_WORDS, "--n-steps", 200, "--num-envs", 2, "--collectors", 2, "--fragment", 5, "--frame-stack", 2]
    birl_(*words, "--out", tmp_path / "a")
    assert made == [birl.Cluster(2, 2, 5, "turns")]
    birl_(*words, "--out", tmp_path / "b", "--order", "turns")
    assert same(tmp_path / "a" / "model_200.d3", tmp_path / "b" / "model_200.d3")
    birl_(*words, "--out", tmp_path / "a")
    assert "there was nothing left to do" in birl_.notes
    said = birl_(*words, "--out", tmp_path / "a", "--collectors", 3, status=1)
    assert "collectors" in said and "other settings" in said


def test_learners_and_shards_of_collectors(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)
    made = record_clusters(monkeypatch)
    words = [*DQN_WORDS, "--n-steps", 100, "--collectors", 2, "--fragment", 5]
    birl_(*words, "--out", tmp_path / "a", "--learners", 2)
    birl_(*words, "--out", tmp_path / "b", "--learners", 2, "--gradients", "pushed")
    birl_(*words, "--out", tmp_path / "c", "--shards", 2, "--prioritized", "--explorer", "epsilon-ladder")
    fields: list[Any] = [{"learners": 2}, {"learners": 2, "gradients": "pushed"}, {"shards": 2}]
    assert made == [birl.Cluster(2, 1, 5, "turns", **each) for each in fields]
    assert "epsilon-greedy actions (0.4 to 0.00066, by collector)" in birl_.notes
    birl_(*words, "--out", tmp_path / "a", "--learners", 2)
    assert "there was nothing left to do" in birl_.notes
    assert "other settings" in birl_(*words, "--out", tmp_path / "a", status=1)


def test_each_collector_has_its_own_epsilon_of_the_ladder(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch)
    epsilons: dict[int, float] = {}
    start = CollectorWorker.__init__

    def record(self: CollectorWorker, spec: Any) -> None:
        epsilons[spec.collector] = spec.explorer.compute_epsilon(0)
        start(self, spec)

    monkeypatch.setattr(CollectorWorker, "__init__", record)
    words = [*DQN_WORDS, "--collectors", 2, "--fragment", 5, "--n-steps", 200]
    ladder = [*words, "--explorer", "epsilon-ladder"]
    birl_(*ladder, "--out", tmp_path / "a")
    assert epsilons == pytest.approx({0: 0.4, 1: 0.4**8})
    birl_(*ladder, "--out", tmp_path / "b")
    assert same(tmp_path / "a" / "model_200.d3", tmp_path / "b" / "model_200.d3")
    birl_(*words, "--epsilon", 0.4, "--out", tmp_path / "c")
    assert not same(tmp_path / "a" / "model_200.d3", tmp_path / "c" / "model_200.d3")
    birl_(*ladder, "--out", tmp_path / "a")
    assert "there was nothing left to do" in birl_.notes
    assert "other settings" in birl_(*words, "--epsilon", 0.4, "--out", tmp_path / "a", status=1)


@pytest.mark.slow
def test_collectors_are_processes(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*DQN_WORDS, "--n-steps", 200, "--collectors", 2, "--fragment", 5, "--explorer", "epsilon-ladder"]
    birl_(*words, "--out", tmp_path / "a")
    run_inline(monkeypatch)
    birl_(*words, "--out", tmp_path / "b")
    assert same(tmp_path / "a" / "model_200.d3", tmp_path / "b" / "model_200.d3")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--order", "turns", "--fragment", 5], "--order and --fragment: for collectors only; give --collectors N"),
        (["--on-error", "restart"], "--on-error: for collectors only"),
        (["--collectors", 2, "--fragment", 0], "Cluster.fragment is 0; it must be an int >= 1 or 'auto'"),
        (["--jobs", 2], "--jobs: for --seeds in environments only"),
        (["--address", "auto"], "--address: for collectors only"),
        (["--learners", 2, "--shards", 1], "--learners and --shards: for collectors only"),
        (["--explorer", "epsilon-ladder"], "epsilon-ladder: one epsilon for each collector; give --collectors N, too"),
        (["--collectors", 2, "--workers", 2], "cluster=… cannot be combined with workers=2"),
    ],
)
def test_collectors_that_cannot_be(birl_: Any, tmp_path: Path, words: Any, says: str) -> None:
    assert says in birl_(*DQN_WORDS, "--out", tmp_path, *words, status=1)


def test_a_fragment_is_a_number_or_auto(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--fragment long" in birl_(*DQN_WORDS, "--out", tmp_path, "--collectors", 2, "--fragment", "long", status=2)
    run_inline(monkeypatch)
    made = record_clusters(monkeypatch)
    words = [*DQN_WORDS, "--n-steps", 100, "--collectors", 2, "--fragment", "auto"]
    birl_(*words, "--out", tmp_path / "a")
    birl_(*words, "--out", tmp_path / "b", "--on-error", "restart")
    assert made == [birl.Cluster(2, 1, "auto", "turns"), birl.Cluster(2, 1, "auto", "turns", on_error="restart")]
    said = birl_.notes
    birl_(*words, "--out", tmp_path / "b")  # what happens after errors is no setting of the run
    assert "there was nothing left to do" in birl_.notes and said


def test_collectors_need_an_environment(birl_: Any, tmp_path: Path) -> None:
    words = ["train", "DQN", "--dataset", "cartpole-random", "--out", tmp_path, "--collectors", 2]
    assert "--collectors: for training in environments only" in birl_(*words, status=1)
