"""Arguments of wrong types are answered with an error of birl's, not with one of Python's from the inside."""

from __future__ import annotations

import inspect
import io
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import birl
from birl import algos, dataset, datasets, metrics, models, optimizers, preprocessing
from birl.errors import BirlError, ConfigError, EmptyDataError, EnvironmentMismatchError, FileError, ShapeError
from birl.ope import DiscreteFQE

BAD: list[Any] = [None, 3, -1, 1.5, "x", b"x", [], {}, object(), int, np.full(3, np.nan), np.zeros((2, 3, 5))]
CONFIGS = [getattr(algos, name) for name in sorted(algos.__all__) if name.endswith("Config")]
FACTORIES = [
    value
    for module in (models, optimizers, preprocessing)
    for name, value in sorted(vars(module).items())
    if name.endswith(("Factory", "Scaler")) and not inspect.isabstract(value) and name in module.__all__
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``storage="x"`` makes a folder."""
    monkeypatch.chdir(tmp_path)


def logged(**options: Any) -> dataset.MDPDataset:
    rng = np.random.default_rng(0)
    observations, rewards = rng.normal(size=(20, 4)).astype(np.float32), rng.normal(size=20)
    return dataset.MDPDataset(observations, np.arange(20) % 2, rewards, np.arange(20) % 10 == 9, **options)


def typed(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except BirlError as error:
        if len(str(error)) > 1500:
            pytest.fail(f"{what} has a long message: {error}")
    except Exception as error:
        pytest.fail(f"{what} raised {type(error).__name__}: {error}")


def arguments_of(function: Any) -> Iterator[str]:
    for each in inspect.signature(function).parameters.values():
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            yield each.name


@pytest.mark.parametrize("made", [*CONFIGS, *FACTORIES], ids=lambda made: made.__name__)
def test_configurations_and_factories(made: Any) -> None:
    for name in arguments_of(made):
        for value in BAD:
            typed(lambda name=name, value=value: made(**{name: value}), f"{made.__name__}({name}={value!r:.30})")


@pytest.mark.parametrize("name", list(arguments_of(dataset.MDPDataset)))
def test_logged_data(name: str) -> None:
    good = {"observations": np.eye(4), "actions": [0, 1, 0, 1], "rewards": np.ones(4), "terminals": [0, 0, 0, 1]}
    for value in BAD:
        typed(lambda value=value: dataset.MDPDataset(**{**good, name: value}), f"MDPDataset({name}={value!r:.30})")


SIGNED = dataset.Signature([np.float32], [(4,)])
BUFFERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ReplayBuffer": (
        dataset.ReplayBuffer,
        {"buffer": dataset.InfiniteBuffer(), "observation_signature": SIGNED, "action_signature": SIGNED},
    ),
    "create_fifo_replay_buffer": (dataset.create_fifo_replay_buffer, {"limit": 9}),
    "DatasetInfo.from_episodes": (dataset.DatasetInfo.from_episodes, {}),
    "Signature": (dataset.Signature, {"dtype": [np.float32], "shape": [(4,)]}),
    "FIFOBuffer": (dataset.FIFOBuffer, {}),
    "Episode": (
        dataset.Episode,
        {"observations": np.eye(4), "actions": np.ones((4, 1)), "rewards": np.ones(4), "terminated": True},
    ),
    "EpisodeGenerator": (
        dataset.EpisodeGenerator,
        {"observations": np.eye(4), "actions": [0, 1, 0, 1], "rewards": np.ones(4), "terminals": [0, 0, 0, 1]},
    ),
    "MixedReplayBuffer": (dataset.MixedReplayBuffer, {"secondary_mix_ratio": 0.5}),
    "FrameStackTransitionPicker": (dataset.FrameStackTransitionPicker, {}),
    "MultiStepTransitionPicker": (dataset.MultiStepTransitionPicker, {"n_steps": 3, "gamma": 0.9}),
    "SparseRewardTransitionPicker": (dataset.SparseRewardTransitionPicker, {"failure_return": 0.0}),
    "FrameStackTrajectorySlicer": (dataset.FrameStackTrajectorySlicer, {}),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_public_classes_of_datasets(name: str) -> None:
    made, good = BUFFERS[name]
    given = dict(good)
    if name in ("create_fifo_replay_buffer", "DatasetInfo.from_episodes"):
        given["episodes"] = logged().episodes
    if name == "MixedReplayBuffer":
        given |= {"primary_replay_buffer": logged(), "secondary_replay_buffer": logged()}
    for argument in arguments_of(made):
        for value in [*BAD, [3], {"key": 3}, (SIGNED,)]:
            what = f"{name}({argument}={value!r:.30})"
            typed(lambda given={**given, argument: value}: made(**given), what)  # type: ignore[misc]


METHODS = {
    "build_with_dataset": "dataset",
    "build_with_env": "env",
    "check_env": "env",
    "copy_policy_from": "algo",
    "copy_policy_optim_from": "algo",
    "copy_q_function_from": "algo",
    "copy_q_function_optim_from": "algo",
    "fit": "dataset",
    "load_model": "fname",
    "predict": "x",
    "predict_value": "x",
    "sample_action": "x",
    "save": "fname",
    "save_model": "fname",
    "save_policy": "fname",
    "sample_minibatch": "dataset",
    "update": "batch",
}


@pytest.mark.parametrize("method", METHODS)
def test_algorithms(method: str) -> None:
    algorithm = algos.DQNConfig(batch_size=4).create()
    algorithm.build_with_dataset(logged())
    rest: dict[str, Any] = {"n_steps": 1} if method == "fit" else {}
    for value in BAD:
        given = {METHODS[method]: value, **rest}
        typed(lambda given=given: getattr(algorithm, method)(**given), f"{method}({value!r:.30})")


def test_learning_together_is_true_or_false(tmp_path: Path) -> None:
    algorithm = algos.DQNConfig(batch_size=4).create()
    algorithm.build_with_dataset(logged())
    algorithm.save(tmp_path / "model.d3")
    for value in BAD:
        with pytest.raises(ConfigError, match="(?s)enable_ddp is .*; it must be a bool"):
            birl.load_learnable(tmp_path / "model.d3", "cpu", value)
        with pytest.raises(ConfigError, match="(?s)enable_ddp is .*; it must be a bool"):
            algos.DQNConfig().create(enable_ddp=value)
        with pytest.raises(ConfigError, match="(?s)enable_ddp is .*; it must be a bool"):
            algorithm.fit(logged(), 1, enable_ddp=value)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_updates_from_what_is_no_batch_of_theirs(name: str) -> None:
    algorithm = getattr(algos, f"{name}Config")().create()
    algorithm.create_impl((4,), 2, discrete_action=False)
    transitions = [] if name == "SAC" else [logged().sample_transition_batch(4)]
    for value in [*BAD, logged(), *transitions]:
        with pytest.raises(ConfigError, match="(?s)batch is .*; it must be a .*: "):
            algorithm.update(value)


@pytest.mark.parametrize("name", ["fit_with_dataset", "fit_with_env", "fit_with_episodes", "transform_numpy"])
def test_scalers(name: str) -> None:
    for kind in (
        preprocessing.StandardObservationScaler,
        preprocessing.MinMaxActionScaler,
        preprocessing.ReturnBasedRewardScaler,
    ):
        for value in [each for each in BAD if not (name == "transform_numpy" and isinstance(each, dict))]:
            scaler: Any = kind()
            typed(lambda value=value, of=scaler: getattr(of, name)(value), f"{kind.__name__}.{name}({value!r:.30})")


def test_evaluators() -> None:
    for value in BAD:
        typed(lambda value=value: metrics.TDErrorEvaluator()(None, value), f"TDErrorEvaluator()(None, {value!r:.30})")


LOADERS = [datasets.get_dataset, datasets.get_d4rl, datasets.get_atari, datasets.get_minari]


@pytest.mark.parametrize("function", LOADERS)
def test_names_of_datasets(function: Any) -> None:
    for value in BAD:
        typed(lambda value=value: function(value), f"{function.__name__}({value!r:.30})")


def test_datasets_and_environments_given_as_text() -> None:
    algorithm = algos.DQNConfig().create()
    with pytest.raises(ConfigError, match="fit takes a dataset, got the text 'CartPole-v1': .*get_dataset.*fit_online"):
        algorithm.fit("CartPole-v1", n_steps=1)
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(ConfigError, match="fit takes a dataset, got the environment .*: call fit_online"):
        algorithm.fit(env, n_steps=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the environment is an argument of fit_online"):
        algorithm.fit(env)  # type: ignore[arg-type,call-arg]
    with pytest.raises(EnvironmentMismatchError, match="a dataset .MDPDataset. is not an environment: call fit"):
        algorithm.fit_online(logged())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only fit takes evaluators: fit_online evaluates in eval_env="):
        algorithm.fit_online(env, evaluators={})  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="here that is birl.metrics.EnvironmentEvaluator"):
        algorithm.fit(logged(), n_steps=1, eval_env=env)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="build_with_dataset takes a dataset, got the text 'logs.h5'"):
        algorithm.build_with_dataset("logs.h5")  # type: ignore[arg-type]
    with pytest.raises(
        EnvironmentMismatchError, match=".CartPole-v1. is not an environment: make one with birl.envs.make_env"
    ):
        dataset.create_fifo_replay_buffer(10, env="CartPole-v1")
    with pytest.raises(EnvironmentMismatchError, match="'CartPole-v1' is not an environment"):
        algorithm.build_with_env("CartPole-v1")
    with pytest.raises(ConfigError, match="'Own-v0'.*'module:Id-v0'"):
        birl.envs.make_env("Own-v0")


def test_values_of_actions_need_the_action() -> None:
    algorithm = algos.DQNConfig().create()
    algorithm.build_with_dataset(logged())
    with pytest.raises(ConfigError, match=r"action is None, but DQN .* give actions \(2,\), such as predict\(x\)"):
        algorithm.predict_value(np.zeros((2, 4)))


def test_what_print_shows() -> None:
    algorithm = algos.DQNConfig().create()
    assert repr(algorithm) == "<DQN: no networks yet, on cpu>"
    algorithm.build_with_dataset(logged())
    assert repr(algorithm) == "<DQN: observations (4,) and 2 discrete actions, 0 updates, on cpu>"
    algorithm.set_grad_step(7)
    evaluation = DiscreteFQE(algorithm)
    assert repr(evaluation) == "<DiscreteFQE of DQN after 7 updates: no networks yet, on cpu>"
    evaluation.build_with_dataset(logged())
    assert repr(evaluation).startswith("<DiscreteFQE of DQN after 7 updates: observations (4,) and 2 disc")


@pytest.mark.parametrize("name", ["DQNconfig", "dqn_config", "DQNConfi"])
def test_algorithms_are_suggested_once(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean 'DQNConfig'") as error:
        getattr(algos, name)
    shown = "".join(traceback.format_exception(error.value))  # Python makes suggestions of its own
    assert shown.count("id you mean") == 1 and not hasattr(algos, "nothing_like_this")


def test_what_cannot_be_changed_cannot_be_set() -> None:
    data = logged()
    for thing, name in ((data, "buffer"), (data, "transition_count"), (dataset.FIFOBuffer(3), "limit")):
        with pytest.raises(AttributeError, match="no setter"):
            setattr(thing, name, 3)


def test_episodes_without_a_step_or_of_another_type() -> None:
    class Empty:
        observations, actions, rewards = np.zeros((0, 4)), np.zeros((0, 1), np.int64), np.zeros((0, 1))
        terminated, transition_count = True, 0
        observation_signature = dataset.Signature([np.float64], [(4,)])
        action_signature = reward_signature = dataset.Signature([np.float64], [(1,)])

        def size(self) -> int:
            return 0

        def compute_return(self) -> float:
            return 0.0

    data = logged()
    with pytest.raises(EmptyDataError, match="0 steps, at least 1"):
        data.append_episode(Empty())
    with pytest.raises(EmptyDataError, match="0 steps, at least 1"):
        dataset.create_infinite_replay_buffer([Empty()])
    with pytest.raises(ConfigError, match="episode is 3; it must be an EpisodeBase: make one with birl.dataset"):
        data.append_episode(3)  # type: ignore[arg-type]


def test_action_sizes_are_checked_with_the_signatures() -> None:
    signatures = {
        "observation_signature": dataset.Signature([np.float32], [(4,)]),
        "action_signature": dataset.Signature([np.float32], [(2,)]),
    }
    with pytest.raises(ShapeError, match="action_size=7, but actions have 2 dimensions"):
        dataset.ReplayBuffer(dataset.InfiniteBuffer(), action_size=7, **signatures)  # type: ignore[arg-type]
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(ConfigError, match="action_size is '2'; it must be a positive number"):
        dataset.ReplayBuffer(dataset.InfiniteBuffer(), env=env, action_size="2")  # type: ignore[arg-type]


def test_rows_are_not_handed_on_by_map() -> None:
    batch = logged().sample_transition_batch(4)
    object.__setattr__(batch, "rows", [("source", np.arange(4))])
    assert batch.map(lambda leaf: leaf[:2]).rows is None


@pytest.mark.parametrize("place", ["a\0b", Path("a\0b"), io.StringIO("text")])
@pytest.mark.parametrize("door", ["save", "save_model", "dump", "load_learnable", "load_model", "load", "from_json"])
def test_paths_that_cannot_be_and_files_of_text(door: str, place: Any) -> None:
    algorithm = algos.DQNConfig().create()
    algorithm.build_with_dataset(logged())
    doors: dict[str, Callable[[Any], object]] = {
        "save": algorithm.save,
        "save_model": algorithm.save_model,
        "dump": logged().dump,
        "load_learnable": birl.load_learnable,
        "load_model": algorithm.load_model,
        "load": lambda file: dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer()),
        "from_json": algos.DQN.from_json,
    }
    with pytest.raises((FileError, ConfigError), match=r"no null character \(c|a file opened with open\(path, '.*b'\)"):
        doors[door](place)


@pytest.mark.parametrize("place", [None, 3, b"folder", io.BytesIO(), "a" * 300, "a\0b"])
@pytest.mark.parametrize("load", [datasets.load_lerobot, datasets.load_rllib_json, datasets.detect_format])
def test_paths_of_other_programs_data(load: Any, place: Any) -> None:
    if load is datasets.detect_format and isinstance(place, str):
        assert load(place) is None  # there is no file: loading reports it
        return
    with pytest.raises((FileError, ConfigError)):
        load(place)


def test_folders_and_exports_at_paths_that_cannot_be() -> None:
    algorithm = algos.DQNConfig().create()
    with pytest.raises(ConfigError, match=r"checkpoint is 'a\\x00b'; it must be the path of a folder"):
        algorithm.fit(logged(), 2, checkpoint="a\0b", show_progress=False)
    with pytest.raises(ConfigError, match="'None' does not end with .onnx"):
        algorithm.export(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 1.5, "3", None, True])
def test_numbers_of_updates(number: Any) -> None:
    algorithm = algos.DQNConfig().create()
    algorithm.build_with_dataset(logged())
    with pytest.raises(ConfigError, match="grad_step is .*; it must be an int >= 0"):
        algorithm.set_grad_step(number)
    assert algorithm.grad_step == 0
