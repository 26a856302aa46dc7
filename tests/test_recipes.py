"""Published settings: they fit their algorithms, in birl's units, and the command line takes and prints them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from run.fakes import signal_at
from run.workers.transports import real_transport, use_transport

import birl
from birl.algos import DQN, PPO, TD3, DoubleDQN
from birl.cli import main
from birl.cli.train import train
from birl.errors import ConfigError
from birl.files import load_archive
from birl.recipes import RECIPES, Setting, find, names
from birl.run.workers.replay_worker import ReplayWorker


@pytest.mark.parametrize("key", RECIPES, ids="-".join)
def test_recipes_make_configurations_and_know_the_options(key: tuple[str, str]) -> None:
    recipe = RECIPES[key]
    config = recipe.config()
    assert config.get_type() == recipe.algorithm == key[0] and recipe.name == key[1] in names(key[0])
    for name, value in recipe.fields().items():
        assert getattr(config, name) == value, name
    assert recipe.options.keys() <= train.__annotations__.keys()
    assert all(each.source for each in recipe.settings) and len({each.name for each in recipe.settings}) == len(
        recipe.settings
    )
    text = str(recipe)
    assert recipe.origin in text and all(f"  {each.name} " in text for each in recipe.settings)
    assert recipe.config(gamma=0.5).gamma == 0.5


def test_every_table_of_the_file_is_used_and_every_value_has_a_source() -> None:
    tables = tomllib.loads((Path(birl.recipes.__file__).parent / "recipes.toml").read_text(encoding="utf-8"))
    shared = tables.pop("shared")
    recipes = [recipe for algorithm in tables.values() for recipe in algorithm.values()]
    assert {name for recipe in recipes for name in recipe.get("include", ())} == shared.keys()
    head = {"origin", "source", "include", "without", "updates"}
    for recipe in recipes:
        included = {name for table in recipe.get("include", ()) for name in shared[table]}
        assert {*recipe.get("without", ())} <= included
        assert ("source" in recipe) == bool(included) and ("updates" in recipe) == ("$updates" in str(recipe))
    for table in (*shared.values(), *recipes):
        rows = [row for name, row in table.items() if name not in head]
        assert all(len(row) == 2 and isinstance(row[1], str) and row[1] for row in rows)


@pytest.mark.parametrize(
    ("algorithm", "name", "target", "start", "end"),
    [
        ("DQN", "atari", 10_000, 50_000, 0.1),
        ("DQN", "iqn", 10_000, 50_000, 0.01),
        ("DoubleDQN", "atari", 30_000, 50_000, 0.01),
        ("DoubleDQN", "rainbow", 32_000, 20_000, None),
        ("DoubleDQN", "rainbow-data-efficient", 2000, 1600, None),
    ],
)
def test_units_are_updates(algorithm: str, name: str, target: int, start: int, end: float | None) -> None:
    """Published in environment steps; updates are every four, or every one."""
    recipe = find(algorithm, name)
    target_setting = next(each for each in recipe.settings if each.name == "target_update_interval")
    assert target_setting.value * recipe.options["update_interval"] == target
    assert recipe.options["random_steps"] == start and recipe.options.get("epsilon_end") == end


def test_epsilon_of_a_mean_loss() -> None:
    """RMSprop with a gradient 32 times as large and epsilon 0.01 makes the same step."""
    eps = find("DQN", "atari").fields()["optim_factory"].eps
    gradient, square = 0.003, 0.002
    assert 32 * gradient / (32**2 * square + 0.01) ** 0.5 == pytest.approx(gradient / (square + eps) ** 0.5)


def test_schedules_end_with_the_run() -> None:
    """PPO makes 3 passes of 4 minibatches over 8 x 128 steps."""
    for n_steps, updates in ((None, 10_000_000 * 12 // 1024), (10_240, 120)):
        config: Any = find("PPO", "atari").config(n_steps)
        assert config.optim_factory.lr_scheduler_factory.duration == config.clip_range_schedule.duration == updates
    steps = 8 * config.rollout_length
    assert 10_240 // steps * config.n_epochs * (steps // config.batch_size) == 120


def test_learning_rates_of_actor_critics_end_with_the_run() -> None:
    """Published in environment steps; a schedule counts updates, of which A3C makes one for 5 steps of a worker."""
    for name, steps in (("A2C", 16 * 5), ("A3C", 5)):
        recipe = find(name, "atari")
        config: Any = recipe.config(80_000)
        assert config.optim_factory.lr_scheduler_factory.duration == 80_000 // steps
        assert recipe.options.get("num_envs", 1) * config.rollout_length == steps
        assert recipe.config().optim_factory.lr_scheduler_factory.duration == recipe.n_steps // steps


def test_unknown_recipes() -> None:
    with pytest.raises(ConfigError, match="DQN has no recipe 'atary'.*it has: atari, c51, qr-dqn, iqn"):
        find("DQN", "atary")
    with pytest.raises(ConfigError, match="there are some for A2C, A3C, DDPG, DQN"):
        find("CQL", "atari")


def test_rainbow_has_all_its_parts() -> None:
    config: Any = find("DoubleDQN", "rainbow").config()
    head = config.q_func_factory
    assert config.encoder_factory.feature_size is None
    assert (head.dueling, head.noisy, head.n_atoms) == ([512], 0.5, 51)


def test_published_algorithms_have_recipes() -> None:
    """A name for each algorithm that was published with settings for Atari or MuJoCo."""
    games = {"DQN": ["atari", "c51", "qr-dqn", "iqn"], "DoubleDQN": ["atari", "drqn", "rainbow"]}
    robots = {name: ["mujoco"] for name in ("DDPG", "TD3", "SAC", "ICML2018SAC")}
    rows = games | robots | {"MunchausenDQN": ["atari", "iqn"], "PPO": ["atari", "mujoco"]}
    for algorithm, own in rows.items():
        assert set(own) <= set(names(algorithm)), algorithm


def test_first_sac_has_the_scale_of_its_paper() -> None:
    config: Any = find("ICML2018SAC", "mujoco").config()
    assert config.reward_scaler.multiplier == 5.0
    sizes = (config.actor_encoder_factory, config.critic_encoder_factory, config.value_encoder_factory)
    assert [each.hidden_units for each in sizes] == [[256, 256]] * 3


def test_iqn_chooses_by_k_levels_of_their_own() -> None:
    for key in (("DQN", "iqn"), ("MunchausenDQN", "iqn")):
        config: Any = find(*key).config()
        head = config.q_func_factory
        assert (head.n_quantiles, head.n_greedy_quantiles, head.n_choice_quantiles) == (64, 32, 32)


# -- the command line --------------------------------------------------------------------------------------------------


def run(*words: Any) -> int:
    return main([str(word) for word in words])


def test_a_recipe_sets_options_and_fields_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(TD3, "fit_online", lambda self, env, **options: seen.update(options, config=self.config))
    assert run("train", "TD3", "--env-id", "Pendulum-v1", "--recipe", "mujoco", "--out", "a") == 0
    assert (seen["n_steps"], seen["n_steps_per_epoch"], seen["eval_n_trials"]) == (1_000_000, 5000, 10)
    assert (seen["random_steps"], seen["config"].batch_size, seen["config"].tau) == (10_000, 100, 0.005)
    assert type(seen["explorer"]).__name__ == "NormalNoise" and seen["buffer"].buffer.limit == 1_000_000
    notes = capsys.readouterr().err
    assert "recipe mujoco: Fujimoto et al. 2018" in notes
    assert "  --random-steps          10000 " in notes and "arXiv:1802.09477" in notes
    words = ["--recipe", "mujoco", "--n-steps", 99, "--random-steps", 0, "--explorer", "ou-noise", "batch_size=7"]
    assert run("train", "TD3", "--env-id", "Pendulum-v1", *words, "--out", "b") == 0
    assert (seen["n_steps"], seen["random_steps"], seen["config"].batch_size) == (99, 0, 7)  # what the user says
    assert type(seen["explorer"]).__name__ == "OrnsteinUhlenbeckNoise" and seen["config"].tau == 0.005
    notes = capsys.readouterr().err  # only what it sets
    assert "  --buffer-size " in notes and "  tau " in notes
    assert not [name for name in ("--n-steps ", "--random-steps", "--explorer", "batch_size") if f"  {name}" in notes]
    assert json.loads(Path("b/run.json").read_text())["recipe"] == "mujoco"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--epsilon", 0.2], "ConstantEpsilonGreedy"),
        (["--epsilon-decay", 0.9], "ExponentialDecayEpsilonGreedy"),
        (["--explorer", "boltzmann"], "Boltzmann"),
        (["--epsilon-end", 0.3], "LinearDecayEpsilonGreedy"),
    ],
)
def test_another_explorer_than_the_recipes(
    words: list[Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    atari = find("DQN", "atari")
    settings = tuple(each for each in atari.settings if each.name not in ("--atari", "--frame-stack"))
    monkeypatch.setitem(RECIPES, ("DQN", "vectors"), dataclasses.replace(atari, settings=settings))
    monkeypatch.setattr(DQN, "fit_online", lambda self, env, **options: seen.update(options))
    given = ["--env-id", "CartPole-v1", "--recipe", "vectors", "observation_scaler=None", "--out", tmp_path / "a"]
    assert run("train", "DQN", *given, *words) == 0
    assert type(seen["explorer"]).__name__ == kind


def test_a_run_with_a_recipe_learns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mujoco, out = find("PPO", "mujoco"), tmp_path / "run"
    falls = Setting("clip_range_schedule", {"type": "linear", "duration": "$updates"}, "here")
    settings = (*mujoco.settings, falls)
    monkeypatch.setitem(RECIPES, ("PPO", "falling"), dataclasses.replace(mujoco, settings=settings, updates=(1, 1)))
    words = ["train", "PPO", "--env-id", "Pendulum-v1", "--recipe", "falling", "--out", out, "--n-steps-per-epoch", 64]
    words += ["--eval-steps", 30, "--eval-statistics", "rollout_length=64", "n_epochs=1"]
    assert run(*words, "--n-steps", 64) == 0
    assert run(*words, "--n-steps", 128, "--extend") == 0, capsys.readouterr().err
    model: Any = birl.load_learnable(out / "model_128.d3")
    assert model.observation_scaler.clip == 5.0 and model.config.rollout_length == 64
    assert model.config.clip_range_schedule.duration == 64  # of the length that the run began with
    assert (out / "evaluation_median.csv").exists()


def test_episodes_of_evaluations_that_one_asks_for_stand_against_the_steps_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(DQN, "fit_online", lambda self, env, **options: seen.update(options))
    words = ["train", "DQN", "--env-id", "ALE/Breakout-v5", "--recipe", "atari", "--buffer-size", 100, "--n-trials", 2]
    assert run(*words, "--out", tmp_path / "a") == 0
    assert seen["eval_n_trials"] == 2 and seen.get("eval_n_steps") is None
    assert run(*words, "--eval-steps", 30, "--out", tmp_path / "b") == 1
    assert "leave one out" in capsys.readouterr().err


def test_recipes_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["CQL", "--env-id", "Pendulum-v1", "--recipe", "atari"], "CQL has no recipe 'atari'"),
        (["TD3", "--dataset", "pendulum-replay", "--recipe", "mujoco"], "leave it or --dataset out"),
    ):
        assert run("train", *words, "--out", tmp_path / "run") == 1
        assert says in capsys.readouterr().err


def test_an_atari_game_with_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def spied(self: Any, env: Any, **options: Any) -> None:
        seen.update(options, env=env, config=self.config)

    monkeypatch.setattr(DQN, "fit_online", spied)
    monkeypatch.setattr(PPO, "fit_online", spied)
    words = ["--recipe", "atari", "--buffer-size", 100]
    assert run("train", "DQN", "--env-id", "ALE/Breakout-v5", *words, "--out", tmp_path / "dqn") == 0
    assert seen["env"].observation_space.shape == seen["eval_env"].observation_space.shape == (4, 84, 84)
    assert "ClippedReward" in str(seen["env"]) and "ClippedReward" not in str(seen["eval_env"])
    assert seen["env"].unwrapped.spec.kwargs["repeat_action_probability"] == 0.0
    assert (seen["eval_n_steps"], seen["eval_epsilon"], seen["eval_statistics"]) == (125_000, 0.05, True)
    assert seen["config"].target_update_interval == 2500
    assert type(seen["buffer"].transition_picker).__name__ == "FrameStackTransitionPicker"
    settings = json.loads((tmp_path / "dqn" / "run.json").read_text())
    assert settings["atari"] is True and settings["update_interval"] == 4
    assert run("train", "PPO", "--env-id", "ALE/Breakout-v5", "--recipe", "atari", "--out", tmp_path / "ppo") == 0
    assert seen["env"].num_envs == 8 and seen["env"].single_observation_space.shape == (4, 84, 84)
    environment = sys.modules["birl.cli.run_folder"].environment_of(tmp_path / "dqn", None)[1]
    assert environment.observation_space.shape == (4, 84, 84) and "ClippedReward" not in str(environment)


def test_actors_of_apex_explore_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(DoubleDQN, "fit_online", lambda self, env, **options: seen.update(options, config=self.config))
    words = ["--recipe", "apex", "--collectors", 4, "--buffer-size", 400]
    assert run("train", "DoubleDQN", "--env-id", "ALE/Pong-v5", *words, "--out", tmp_path / "run") == 0
    given = [each.compute_epsilon(10**6) for each in seen["explorer"]]
    assert given == pytest.approx([0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8])
    assert seen["cluster"] == birl.Cluster(4, shards=1) and seen["update_interval"] == 650
    sampler, picker = seen["buffer"].reader.sources[0].sampler, seen["buffer"].transition_picker
    assert (sampler.alpha, sampler.beta, picker.n_steps, seen["config"].batch_size) == (0.6, 0.4, 3, 512)


@pytest.mark.slow
def test_apex_on_a_game_with_a_shard_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors and a shard in processes; what it learns is what it learns without the kill."""
    words = ["train", "DoubleDQN", "--env-id", "ALE/Pong-v5", "--recipe", "apex", "--n-steps", 260, "--collectors", 2]
    words += ["--fragment", 20, "--random-steps", 200, "--buffer-size", 210, "--n-steps-per-epoch", 130]
    words += ["--eval-steps", 30, "--update-interval", 4, "batch_size=8", "target_update_interval=4"]
    assert run(*words, "--out", tmp_path / "whole") == 0
    learn, made, begin = DoubleDQN.fit_online, [], real_transport(ReplayWorker)

    def killed(self: Any, env: Any, **options: Any) -> None:
        def kill(_: Any, epoch: int, step: int) -> None:
            if step == 236:
                os.kill(made[0]._workers[0].pid, signal.SIGKILL)

        learn(self, env, **options, callback=kill)

    use_transport(monkeypatch, ReplayWorker, lambda placement: made.append(begin(placement)) or made[-1])
    monkeypatch.setattr(DoubleDQN, "fit_online", killed)
    assert run(*words, "--out", tmp_path / "parts") == 0
    model, again = (birl.load_learnable(tmp_path / name / "model_260.d3") for name in ("whole", "parts"))
    assert model.grad_step == again.grad_step > 10
    for name, tensor in model.nets.state_dict().items():
        assert torch.equal(tensor, again.nets.state_dict()[name]), name


@pytest.mark.slow
def test_rainbow_on_a_game_from_its_first_step_to_its_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All six parts on stacked frames of a ring that wraps: stopped and gone on with, saved, loaded and exported."""
    learn = DoubleDQN.fit_online

    def stopped(self: Any, env: Any, **options: Any) -> None:
        learn(self, env, **options, callback=signal_at(226))

    words = ["train", "DoubleDQN", "--env-id", "ALE/Pong-v5", "--recipe", "rainbow", "--n-steps", 260]
    words += ["--random-steps", 200, "--buffer-size", 210, "--n-steps-per-epoch", 130, "--eval-steps", 30]
    words += ["target_update_interval=4"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(*words, "--out", whole) == 0
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(DoubleDQN, "fit_online", stopped)
        run(*words, "--out", parts)
    assert caught.value.code == 143 and not (parts / "model_260.d3").exists()
    assert run(*words, "--out", parts) == 0
    model, again = (birl.load_learnable(folder / "model_260.d3") for folder in (whole, parts))
    assert model.grad_step == again.grad_step > 10
    for name, tensor in model.nets.state_dict().items():
        assert torch.equal(tensor, again.nets.state_dict()[name]), name
    ends = [load_archive(folder / "checkpoint.d3c", "checkpoint")[1]["parts"] for folder in (whole, parts)]
    drawn = [end["sampler"]["sampler"] for end in ends]
    assert np.array_equal(drawn[0]["priority"], drawn[1]["priority"]) and len(np.unique(drawn[0]["priority"])) > 20

    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (64, 4, 84, 84), dtype=np.uint8)
    for picture in frames:
        (top, bottom), (left, right) = np.sort(random.integers(85, size=(2, 2)))
        picture[:, top:bottom, left:right] = random.integers(256)
    with torch.no_grad():  # so few updates do not make pictures differ
        for name, parameter in again.nets.critic.named_parameters():
            if "convolutions" in name and name.endswith("weight"):
                parameter.mul_(8)
    again.save(tmp_path / "varied.d3")
    chosen = again.predict(frames)
    assert len(set(chosen)) > 2 and np.array_equal(chosen, again.predict(frames))
    assert (again.sample_action(frames) != chosen).any()  # noise, in acting only
    assert np.array_equal(birl.load_learnable(tmp_path / "varied.d3").predict(frames), chosen)
    exported = tmp_path / "rainbow.onnx"
    assert run("export", tmp_path / "varied.d3", exported) == 0
    assert not [node.op_type for node in onnx.load(exported).graph.node if "Random" in node.op_type]
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    for _ in range(2):
        np.testing.assert_array_equal(session.run(["output_0"], {"input_0": frames.astype(np.float32)})[0], chosen)


@pytest.mark.parametrize(
    ("algorithm", "name", "settings"),
    [
        (
            "PPO",
            "mujoco",
            {"gamma": 0.995, "gae_lambda": 0.97, "value_coefficient": 1.0, "entropy_coefficient": 0.0, "n_epochs": 10}
            | {"n_steps_per_epoch": 100_000, "n_trials": 100},
        ),
        ("TRPO", "mujoco", {"gamma": 0.995, "gae_lambda": 0.97, "n_steps_per_epoch": 10_000}),
        ("DoubleDQN", "atari", {"n_steps_per_epoch": 100_000, "n_trials": 10}),
        ("SAC", "mujoco", {"n_steps_per_epoch": 50_000}),
    ],
)
def test_recipes_of_peers_have_the_peers_values(algorithm: str, name: str, settings: dict[str, float]) -> None:
    """Values that a recipe attributes to a peer are those of the peer's script, read in its source."""
    recipe = find(algorithm, name)
    assert settings.items() <= {**recipe.options, **recipe.fields()}.items()
    assert "eval_steps" not in recipe.options or algorithm != "DoubleDQN"
