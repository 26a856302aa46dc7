"""Words of other libraries lead to their counterparts, which exist."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import birl
from birl import algos, habits
from birl.cli import main
from birl.cli.plot import plot
from birl.cli.train_options import TrainOptions
from birl.config import hyperparameters
from birl.errors import ArgumentError, ConfigError
from birl.habits import argument_hint, attribute_hint, name_hint, option_hint
from birl.recipes import RECIPES
from scripts.make_moving_pages import default_of, found

TABLE = habits.table()
OPTIONS = {each.name for each in dataclasses.fields(TrainOptions)} | {*inspect.signature(plot).parameters}
FIELDS = {
    name
    for each in algos.__all__
    if isinstance(value := getattr(algos, each), type) and issubclass(value, birl.algorithm.AlgorithmConfig)
    for name in hyperparameters(value)
}
CALL = re.compile(r"birl(?:\.\w+)+(?:\(([\w, ]+)\))?")


def check_text(text: str) -> list[str]:
    """Return what a text of the table names and birl does not have."""
    wrong = []
    for match in CALL.finditer(text):
        path = match[0].partition("(")[0]
        try:
            found(path)
            for argument in filter(None, (match[1] or "").replace(" ", "").split(",")):
                if argument not in ("path", "file", "buffer", "algo", "env", "0"):  # placeholders of methods
                    default_of(f"{path}({argument})")
        except LookupError:
            wrong.append(match[0])
    for option in re.findall(r"--([\w-]+)", text):
        wrong += [option] if option.replace("-", "_") not in OPTIONS else []
    for recipe in re.findall(r"the recipe (\w+)", text):
        wrong += [recipe] if recipe not in {name for _, name in RECIPES} else []
    for field in re.findall(r"(\w+_(?:factory|scaler|rate))=", text):
        wrong += [field] if field not in FIELDS | {"lr_scheduler_factory"} else []
    for field, name in re.findall(r"\((\w+_factory)=(\w+)\)", text):
        kind: Any = next(
            hyperparameters(getattr(algos, each))[field].allowed.kind
            for each in ("PPOConfig", "DQNConfig")
            if field in hyperparameters(getattr(algos, each))
        )
        wrong += [name] if name not in kind._known else []
    return wrong


def texts() -> list[tuple[str, str]]:
    rows = [(word, text) for part in ("names", "absent") for word, text in TABLE[part].items()]
    rows += [(word, text) for part in TABLE["methods"].values() for word, text in part.items()]
    for part in TABLE["arguments"].values():
        for word, value in part.items():
            rows += [(word, text) for text in ([value] if isinstance(value, str) else value)]
    return rows


def test_everything_that_the_table_names_exists() -> None:
    assert [(word, wrong) for word, text in texts() if (wrong := check_text(text))] == []
    assert len(texts()) > 300
    assert set(TABLE) == {"names", "absent", "values", "methods", "arguments"}  # no row is outside of its part


def test_the_check_can_fail() -> None:
    for text in (
        "birl.algos.DQM",
        "birl.algos.PPOConfig(ent_coef)",
        "--n-envs",
        "the recipe pong",
        "birl.algos.PPO (actor_encoder_factory=lsdm)",
        "actor_rate=3",
    ):
        assert check_text(text), text


def test_methods_in_words_exist() -> None:
    owners = {
        "algorithm": algos.DQN,
        "config": algos.DQNConfig,
        "buffer": birl.dataset.ReplayBuffer,
    }
    others = {"create", "len"}
    for kind, words in TABLE["methods"].items():
        for word, text in words.items():
            assert not hasattr(owners[kind], word), (kind, word)
            for method in re.findall(r"(?<![.\w])([a-z_]+)\(", text):
                places = [owners[kind], algos.Algorithm]
                assert method in others or any(hasattr(place, method) for place in places), (word, method)
            for option in re.findall(r"fit_online\(env, (\w+)=", text):
                known = birl.run.OnlineOptions.__annotations__
                assert option in known or option in ("n_steps", "buffer", "explorer"), (word, option)


def test_no_word_is_twice_or_already_here() -> None:
    words = [habits.plain(word) for part in TABLE["arguments"].values() for word in part]
    assert len(words) == len(set(words))
    names = [habits.plain(word) for part in ("names", "absent") for word in TABLE[part]]
    assert len(names) == len(set(names))
    algorithms = {habits.plain(each) for each in algos.__all__ if not each.endswith("Config")}
    assert not algorithms & set(names)


@pytest.mark.parametrize("config", ["PPOConfig", "A2CConfig", "DQNConfig", "SACConfig", "TD3Config", "TRPOConfig"])
def test_fields_in_hints_are_fields(config: str) -> None:
    cls = getattr(algos, config)
    for part in TABLE["arguments"].values():
        for word in part:
            hint = argument_hint(word, hyperparameters(cls))
            for field in re.findall(r"'(\w+)'", hint.partition(" (")[0]):
                assert field in hyperparameters(cls), (word, hint)
            if word not in hyperparameters(cls):
                with pytest.raises(ConfigError, match=f"no field '{word}'; "):
                    cls(**{word: 1})


@pytest.mark.parametrize(
    ("config", "word", "hint"),
    [
        ("PPOConfig", "n_steps", "here that is 'rollout_length'."),
        ("PPOConfig", "ent_coef", "here that is 'entropy_coefficient'."),
        ("SACConfig", "ent_coef", "here that is 'initial_temperature' (it is learned unless temp_learning_rate=0)."),
        ("PPOConfig", "vf_coef", "here that is 'value_coefficient'."),
        ("PPOConfig", "lambda_", "here that is 'gae_lambda'."),
        ("PPOConfig", "num_sgd_iter", "here that is 'n_epochs'."),
        ("PPOConfig", "policy_kwargs", "'actor_encoder_factory' and 'value_encoder_factory' (such as [64, 64])."),
        ("SACConfig", "policy_kwargs", "'actor_encoder_factory' and 'critic_encoder_factory' (such as [64, 64])."),
        ("DQNConfig", "learning_starts", "here that is fit_online(update_start_step=…, random_steps=…)."),
        (
            "DQNConfig",
            "buffer_size",
            "birl.dataset.create_fifo_replay_buffer(limit=…) (fit_online takes it as buffer=)",
        ),
        ("DQNConfig", "train_freq", "here that is fit_online(update_interval=…)."),
        ("DQNConfig", "env", "here that is fit_online(env=…)."),
        ("DQNConfig", "device", "here that is create(device=…)."),
        ("DQNConfig", "lr", "here that is 'learning_rate'."),
        ("SACConfig", "lr", "'actor_learning_rate', 'critic_learning_rate' and 'temp_learning_rate'."),
        ("TD3Config", "policy_frequency", "here that is 'update_actor_interval'."),
        ("TD3Config", "noise_clip", "here that is 'target_smoothing_clip'."),
        ("TD3Config", "use_sde", "birl has no state-dependent exploration."),
        ("CQLConfig", "alpha", "no field 'alpha'; here that is 'conservative_weight'"),
        ("SACConfig", "alpha", "no field 'alpha'; here that is 'initial_temperature'"),
        ("TRPOConfig", "delta", "no field 'delta'; here that is 'max_kl'"),
        ("DiscreteBCQConfig", "threshold", "no field 'threshold'; here that is 'action_flexibility'"),
        ("DQNConfig", "sync_interval", "no field 'sync_interval'; here that is 'target_update_interval'"),
        ("TD3Config", "policy_freq", "no field 'policy_freq'; here that is 'update_actor_interval'"),
        ("PPOConfig", "n_steps", "no field 'n_steps'; here that is 'rollout_length'"),
    ],
)
def test_fields(config: str, word: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(algos, config)(**{word: 1})
    assert hint in str(caught.value) and f". Fields: {', '.join(hyperparameters(getattr(algos, config)))}" in str(
        caught.value
    )


def dqn() -> Any:
    return algos.DQNConfig(batch_size=4).create()


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: dqn().fit_online("CartPole-v1", total_timesteps=9),
            "fit_online has no option 'total_timesteps'; here that is 'n_steps'.",
        ),
        (
            lambda: dqn().fit_online("CartPole-v1", learning_starts=9),
            "here that is 'update_start_step' and 'random_steps'.",
        ),
        (lambda: dqn().fit_online("CartPole-v1", train_freq=4), "here that is 'update_interval'."),
        (
            lambda: dqn().fit_online("CartPole-v1", buffer_size=4),
            "here that is birl.dataset.create_fifo_replay_buffer(limit=…)",
        ),
        (lambda: dqn().fit_online("CartPole-v1", log_interval=4), "here that is 'n_steps_per_epoch'"),
        (lambda: dqn().fit_online("CartPole-v1", exploration_fraction=0.1), "LinearDecayEpsilonGreedy(duration=…)"),
        (
            lambda: dqn().predict(np.zeros((1, 4)), deterministic=True),
            "DQN.predict has no argument 'deterministic'; predict is greedy",
        ),
        (
            lambda: algos.LinearDecayEpsilonGreedy(exploration_fraction=0.1),
            "here that is 'duration' (a number of steps).",
        ),
        (lambda: algos.NormalNoise(exploration_noise=0.1), "here that is 'std'."),
        (
            lambda: birl.dataset.create_fifo_replay_buffer(buffer_size=9),
            "none called 'buffer_size'; here that is 'limit'.",
        ),
        (lambda: birl.dataset.create_fifo_replay_buffer(9, alpha=1), "ReplayBuffer has no argument 'alpha'"),
        (lambda: birl.dataset.ReplayBuffer(capacity=9), "none called 'capacity'"),
        (lambda: birl.dataset.FIFOBuffer(max_size=9), "here that is 'limit'."),
        (lambda: birl.dataset.PrioritizedSampler(prioritized_replay_alpha=1), "here that is 'alpha'."),
        (lambda: birl.dataset.HindsightSampler(None, n_sampled_goal=1), "here that is 'k'."),
        (lambda: birl.dataset.MultiStepTransitionPicker(n_step=1, gamma=1), "here that is 'n_steps'"),
        (lambda: birl.envs.make_env("CartPole-v1", n_envs=2), "has no option 'n_envs'; here that is 'num_envs'."),
        (lambda: birl.envs.make_env("CartPole-v1", nonsense=2), "has no option 'nonsense': leave it out."),
        (lambda: birl.envs.FrameStack(gymnasium.make("CartPole-v1"), n_stack=2), "here that is 'num_stack'."),
        (lambda: birl.metrics.evaluate(dqn(), "CartPole-v1", n_eval_episodes=2), "here that is 'n_episodes'."),
        (lambda: birl.metrics.evaluate(dqn(), "CartPole-v1", deterministic=False), "here that is 'sample'."),
        (lambda: birl.models.VectorEncoderFactory(net_arch=[8]), "here that is 'hidden_units'"),
        (
            lambda: algos.PPOConfig(net_arch=[8]),
            "such as actor_encoder_factory=[64, 64], value_encoder_factory=[64, 64]",
        ),
        (lambda: algos.DQNConfig(net_arch=[8]), "(such as encoder_factory=[64, 64])"),
        (lambda: algos.SACConfig(features_extractor_class=8), "'actor_encoder_factory' and 'critic_encoder_factory'"),
        (lambda: algos.DQNConfig().create(use_gpu=True), "here that is 'device'"),
        (lambda: birl.optimizers.AdamFactory(max_grad_norm=8), "here that is 'clip_grad_norm'"),
        (lambda: birl.optimizers.AdamFactory(lr=8), "here that is birl.algos.DQNConfig(learning_rate=…)"),
        (
            lambda: birl.logging.TensorboardAdapterFactory(logdir="x"),
            "TensorboardAdapterFactory has no argument 'logdir'",
        ),
        (
            lambda: algos.PPOConfig().create(env="CartPole-v1"),
            "PPOConfig.create has no argument 'env'; here that is fit_online(env=…).",
        ),
        (lambda: algos.PPOConfig("MlpPolicy", "CartPole-v1"), "networks are made by encoder factories"),
        (lambda: algos.PPOConfig("MlpPolicy", "CartPole-v1"), "; the environment is an argument of fit_online"),
        (lambda: algos.PPO("MlpPolicy", "CartPole-v1"), "PPO takes a PPOConfig, got 'MlpPolicy'; networks are made by"),
        (lambda: algos.PPO(gymnasium.make("CartPole-v1")), "; the environment is an argument of fit_online"),
        (lambda: algos.PPO(env="CartPole-v1"), "here that is fit_online(env=…)."),
        (lambda: algos.PPO(verbose=1), "here that is fit_online(show_progress=…, logger_adapter=…)."),
        (lambda: algos.PPOConfig().create(device="auto"), "torch.cuda.is_available()"),
        (lambda: algos.PPOConfig().create("CartPole-v1"), "; the environment is an argument of fit_online"),
        (
            lambda: algos.PPOConfig(learning_rate=lambda left: left),
            "optim_factory=birl.optimizers.AdamFactory(lr_scheduler_factory=",
        ),
        (
            lambda: algos.SACConfig(actor_learning_rate=lambda left: left),
            "; a schedule belongs to the optimiser: actor_optim_factory=",
        ),
        (lambda: algos.PPOConfig(clip_range=lambda left: left), "; a schedule is clip_range_schedule="),
        (lambda: algos.PPOConfig(gamma=lambda left: left), "; birl has no schedule of it"),
    ],
)
def test_arguments_and_values(call: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert hint in str(caught.value), caught.value
    if " has no argument " in str(caught.value):
        assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize(
    ("owner", "name", "hint"),
    [
        ("DQN", "learn", "fit_online(env, n_steps=…) trains in an environment"),
        ("DQN", "train", "update(batch) makes one update"),
        ("DQN", "set_env", "fit_online takes the environment"),
        ("DQN", "compute_single_action", "predict(observation[None])[0]"),
        ("DQN", "save_replay_buffer", "buffer.dump(file)"),
        ("DQN", "load", "birl.load_learnable(path)"),
        ("DQNConfig", "fit_online", "create() makes the algorithm, which has it: DQNConfig(…).create().fit_online"),
        ("DQNConfig", "learn", "create() makes the algorithm, and then fit_online(env, n_steps=…) trains"),
        ("DQNConfig", "environment", "fit_online takes the environment"),
        ("DQNConfig", "build", "create() makes the algorithm"),
    ],
)
def test_attributes(owner: str, name: str, hint: str) -> None:
    thing = dqn() if owner == "DQN" else algos.DQNConfig()
    assert not hasattr(thing, name) and getattr(thing, name, None) is None
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; ") as caught:
        getattr(thing, name)
    assert hint in str(caught.value)


def test_attributes_of_classes_and_buffers() -> None:
    with pytest.raises(AttributeError, match=r"PPO has no attribute 'load'; birl\.load_learnable"):
        _ = algos.PPO.load  # type: ignore[attr-defined]
    buffer: Any = birl.dataset.create_fifo_replay_buffer(9, env=gymnasium.make("CartPole-v1"))
    with pytest.raises(AttributeError, match=r"no attribute 'push'; append\(observation, action, reward\)"):
        buffer.push(1)


def test_other_missing_attributes_read_as_usual() -> None:
    for thing in (dqn(), algos.DQNConfig()):
        with pytest.raises(AttributeError, match="^'DQN(Config)?' object has no attribute 'nonsense'$"):
            _ = thing.nonsense
    with pytest.raises(birl.errors.NotBuiltError):  # a property's own error
        _ = dqn().spec


@pytest.mark.parametrize(
    ("package", "name", "hint"),
    [
        ("algos", "DDQN", "; here that is birl.algos.DoubleDQN"),
        ("algos", "DDQNConfig", "; here that is birl.algos.DoubleDQN"),
        ("algos", "CategoricalDDQN", "; here that is birl.algos.DoubleDQN with birl.models.C51QFunctionFactory"),
        ("algos", "HER", "; here that is birl.dataset.HindsightSampler"),
        ("algos", "RecurrentPPO", "; here that is birl.algos.PPO with birl.models.LSTMEncoderFactory"),
        ("algos", "MaskablePPO", "; here that is birl.algos.PPO with birl.envs.ActionMask"),
        ("algos", "QRSAC", "; here that is birl.algos.SAC with birl.models.QRQFunctionFactory"),
        ("algos", "IQNConfig", "; here that is birl.algos.DQN with birl.models.IQNQFunctionFactory"),
        ("algos", "R2D2", "; here that is birl.algos.DoubleDQN with the recipe r2d2"),
        ("algos", "QMIX", ", and birl does not have this algorithm: birl trains one agent"),
        ("algos", "XQLConfig", ", and birl does not have this algorithm: IQL is nearest"),
        ("algos", "make_env", "; it is birl.envs.make_env"),
        ("", "PPO", "; it is birl.algos.PPO"),
        ("", "make_env", "; it is birl.envs.make_env"),
        ("", "make_vec_env", "; here that is birl.envs.make_env(num_envs=…)"),
        ("", "vec_env", "; here that is birl.envs.make_env(num_envs=…)"),
        ("", "callbacks", "; here that is birl.run.Hook"),
        ("", "evaluate_policy", "; here that is birl.metrics.evaluate(n_episodes=…)"),
        ("", "buffers", "; here that is birl.dataset"),
        ("", "policies", "; here that is birl.models"),
        ("", "load", "; here that is birl.load_learnable"),
        ("algos", "BehaviorCloning", "; here that is birl.algos.BC"),
        ("algos", "D4PG", ", and birl does not have this algorithm: TD3 with"),
        (
            "datasets",
            "load_csv",
            "; here that is birl.dataset.from_table for a table in memory, and `birl data import`",
        ),
        ("datasets", "get_hopper", "; here that is birl.datasets.get_d4rl('hopper-medium-v2')"),
        ("dataset", "PrioritizedReplayBuffer", "; here that is birl.dataset.PrioritizedSampler"),
        ("models", "MlpPolicy", "; here that is birl.models.VectorEncoderFactory"),
        ("preprocessing", "VecNormalize", "; here that is birl.preprocessing.RunningObservationScaler and"),
        ("run", "EvalCallback", "; here that is fit_online(eval_env=…, eval_n_trials=…)"),
        ("", "torch_utility", "; here that is birl.algorithm, with steps"),
        ("", "Modules", "; here that is a torch.nn.Module that makes the networks of an algorithm; docs/moving.md"),
        ("", "TorchMiniBatch", "; here that is birl.algorithm.Batch"),
        ("algos", "QLearningAlgoImplBase", "; here that is a class that derives from birl.algos.Algorithm"),
        ("optimizers", "OptimizerWrapper", "; here that is birl.algorithm.Gradient"),
        ("optimizers", "AdamFactry", "; did you mean 'AdamFactory'"),
    ],
)
def test_names(package: str, name: str, hint: str) -> None:
    full = f"birl.{package}" if package else "birl"
    module = importlib.import_module(full)
    assert not hasattr(module, name)
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert f"module '{full}' has no attribute '{name}'{hint}" in str(caught.value)
    with pytest.raises(ImportError) as imported:  # Python replaces the text of an AttributeError
        exec(f"from {full} import {name}")  # noqa: S102  # a name from the list above
    assert hint in str(imported.value)


def test_modules_of_packages_are_imported_as_usual() -> None:
    code = (
        "from birl.envs import wrappers; from birl.run import protocols; from birl import checks, seeding; print('yes')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "yes\n"
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_this'"):
        from birl.algos import nothing_like_this  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("encoder_factory", "mlp", "no EncoderFactory is called 'mlp'; here that is 'vector'. Known: "),
        ("encoder_factory", "NatureCNN", "here that is 'pixel'."),
        ("q_func_factory", "quantile", "here that is 'qr'."),
        ("q_func_factory", "dueling", "here that is 'mean', with dueling=True: birl.models.MeanQFunctionFactory(duel"),
        ("observation_scaler", "normalize", "here that is 'standard'."),
        ("reward_scaler", "scale", "here that is 'multiply'."),
        ("q_func_factory", "mea", "did you mean 'mean'?"),
    ],
)
def test_names_of_factories_and_scalers(field: str, value: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        algos.DQNConfig(**{field: value})
    assert hint in str(caught.value)


def test_values_lead_to_names_that_are_known() -> None:
    kinds = {"EncoderFactory": birl.models, "QFunctionFactory": birl.models}
    for kind, words in TABLE["values"].items():
        known = getattr(kinds.get(kind, birl.preprocessing), kind)._known
        for word, text in words.items():
            here, _, note = text.partition(", ")
            assert here in known and word not in known and check_text(note) == [], (kind, word)


def test_samples_of_other_libraries() -> None:
    with pytest.raises(ArgumentError, match=r"sample got 3 and no count; .* sample_transition_batch\(batch_size\)"):
        birl.dataset.create_infinite_replay_buffer(env=gymnasium.make("CartPole-v1")).sample(3)  # type: ignore[arg-type]


def test_words_that_are_no_habits_give_no_hint() -> None:
    assert argument_hint("gamma", ["gamma"]) == argument_hint("nonsense", ["gamma"]) == ""
    assert name_hint("DQN") == name_hint("nonsense") == attribute_hint("algorithm", algos.DQN, "nonsense") == ""
    assert option_hint("nonsense", ["n_steps"]) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "PPO", "--total-timesteps", "9"], "no option is called --total-timesteps; here that is --n-steps"),
        (
            ["train", "PPO", "--ent-coef", "9"],
            "here that is --set entropy_coefficient=…\n",
        ),
        (["train", "SAC", "--lr", "9"], "here that is --set actor_learning_rate=… or --set critic_learning_rate=…"),
        (["train", "PPO", "--lr", "9"], "here that is --set learning_rate=…\n"),
        (["train", "DQN", "--policy-kwargs", "9"], "here that is --set encoder_factory=…\n"),
        (
            ["train", "PPO", "--policy-kwargs", "9"],
            "is --set actor_encoder_factory=… or --set value_encoder_factory=…\n",
        ),
        (
            ["train", "PPO", "--net-arch", "9"],
            "here that is --set 'actor_encoder_factory=[64, 64]' or --set 'value_enc",
        ),
        (
            ["train", "DQN", "--n-step", "9"],
            "did you mean --n-steps? In other libraries it also has another sense: here",
        ),
        (["train", "DQN", "--verbose", "9"], "the command line shows progress by itself"),
        (["train", "DQN", "--tensorboard-log", "x"], "metrics are CSV files in the folder of the run"),
        (["train", "DQN", "--checkpoint", "x"], "the same command again continues the run"),
        (["plot", "x", "--out", "y.png"], "no option is called --out; here that is --save"),
        (["evaluate", "x", "--n-trials", "3"], "no option is called --n-trials; here that is --n-episodes"),
        (["resume", "x"], "no command is called resume; the same `birl train` command again resumes its run"),
        (
            ["train", "DQN", "--n-steps", "1e5"],
            "--n-steps 1e5: Invalid value for '--n-steps': it must be an integer in",
        ),
        (["train", "DQN", "--epsilon", "a"], "it must be a number, such as 0.01 (see"),
        (["train", "DQN", "--env-id", "GameOfNobodyNoFrameskip-v4"], "Today the game is 'ALE/GameOfNobody-v5'"),
        (["train", "DQN", "--exploration-fraction", "9"], "here that is --epsilon-steps"),
        (["train", "DQN", "--n-envs", "9"], "here that is --num-envs"),
        (["train", "DQN", "--lr", "9"], "here that is --set learning_rate=…"),
        (["train", "DQN", "--n-eval-episodes", "9"], "here that is --n-trials"),
        (["train", "DQN", "--learning-rate", "9"], "hyper-parameters follow --set, as in --set learning_rate=9"),
        (["train", "PPO", "--env-id", "CartPole-v1", "--set", "n_steps=9"], "here that is 'rollout_length'."),
        (
            ["train", "QMIX", "--env-id", "CartPole-v1"],
            "no algorithm is called 'QMIX', and birl does not have this algorithm: birl trains one",
        ),
        (["train", "DDQN", "--env-id", "CartPole-v1"], "no algorithm is called 'DDQN'; here that is DoubleDQN"),
    ],
)
def test_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("best_model_save_path", "'keep_best'"),
        ("patience", "'epoch_callback'"),
        ("early_stopping", "'stop_at'"),
        ("save_best", "'keep_best'"),
        ("maximize", "'score_direction'"),
        ("mode", "'score_direction'"),
        ("eval_seed", "seed_env"),
    ],
)
def test_options_of_best_models(option: str, message: str) -> None:
    algorithm: Any = algos.DQNConfig().create()
    for call in (algorithm.fit, algorithm.fit_online):
        with pytest.raises(ArgumentError, match=f"has no option '{option}'; .*{message}"):
            call(None, n_steps=1, **{option: None})


def test_words_of_samplers_and_loading() -> None:
    samplers: Any = birl.dataset
    with pytest.raises((ArgumentError, ConfigError), match="'variant'.*rank_based"):
        samplers.PrioritizedSampler(rank_based=True)
    with pytest.raises((ArgumentError, ConfigError), match="here that is 'k'"):
        samplers.HindsightSampler(future_k=4)
    with pytest.raises(AttributeError, match=r"DQNConfig has no attribute 'load'; birl.load_learnable"):
        _ = algos.DQNConfig.load("x")  # type: ignore[attr-defined]


def test_notes_answer_options_that_are_no_options() -> None:
    assert option_hint("resume", ["extend", "fresh"]).startswith("here that is the same command again")
    assert option_hint("gpu", ["device"]) == "here that is --device"
