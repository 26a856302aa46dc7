"""The command line, run as a user runs it: words in, exit status and lines out."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.cli import main
from birl.cli.common import algorithm_classes
from birl.cli.settings import configure
from birl.errors import ConfigError
from birl.files import load_archive

ROOT = Path(__file__).parent.parent
OFFLINE = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", "20", "--set", "batch_size=8"]
ONLINE = ["train", "dqn", "--env-id", "CartPole-v1", "--n-steps", "200", "--set", "batch_size=8"]


class Shell:
    """Runs ``birl`` in this process and keeps what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: Any, status: int = 0) -> str:
        """Run; returns standard output, or after an error what stands on standard error."""
        found = main([str(word) for word in words])
        out, err = self._capsys.readouterr()
        assert found == status, err
        self.notes = err
        if status == 0:
            return out
        lines = err.splitlines()
        assert "Traceback" not in err
        assert lines[-1].startswith("birl: ")
        assert sum(line.startswith("birl: ") for line in lines) == 1
        return lines[-1]


@pytest.fixture
def birl_(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def tensors(model: Path) -> dict[str, Any]:
    """All numbers of a model file, flat."""

    def flatten(value: Any, name: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key, item in value.items() for k, v in flatten(item, f"{name}.{key}").items()}
        return {name: value}

    return flatten(load_archive(model, "model")[1], "")


def same(one: Path, other: Path) -> bool:
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    assert len(a) > 8
    return all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for name in a)


# -- algos, help -------------------------------------------------------------------------------------------------------


def test_algos_lists_every_algorithm(birl_: Shell) -> None:
    rows = {line.split()[0]: line for line in birl_("algos").splitlines()}
    assert set(algorithm_classes()) < set(rows)
    assert {"discrete", "offline,", "online"} <= set(rows["DQN"].split())
    assert "both" in rows["PPO"]
    assert "offline" not in rows["PPO"]
    assert "online" not in rows["DecisionTransformer"]


def test_python_m_birl_and_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "birl", "--help"], capture_output=True, text=True, check=True, env=environment()
    )
    assert all(name in done.stdout for name in ("train", "evaluate", "plot", "export", "algos"))


# -- train -------------------------------------------------------------------------------------------------------------


def test_train_offline_evaluates_in_the_environment(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    text = birl_(*OFFLINE, "--out", out, "--env-id", "CartPole-v1", "--n-trials", 2, "--n-steps-per-epoch", 10)
    assert str(out / "model_20.d3") in text
    assert {path.name for path in out.glob("model_*")} == {"model_10.d3", "model_20.d3"}
    rows = (out / "environment.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows] == [["1", "10"], ["2", "20"]]
    assert birl.load_learnable(out / "model_20.d3").grad_step == 20


def test_train_online_then_evaluate_plot_export(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    birl_(*ONLINE, "--out", out, "--n-trials", 1)
    answer = json.loads(birl_("evaluate", out, "--env-id", "CartPole-v1", "--n-episodes", 3, "--json"))
    assert answer["model"] == str(out / "model_200.d3")
    assert answer["n_episodes"] == len(answer["returns"]) == 3
    assert answer["mean"] == pytest.approx(np.mean(answer["returns"]))
    words = birl_("evaluate", out / "model_100.d3", "--env-id", "CartPole-v1", "--n-episodes", 2)
    assert "over 2 episodes" in words
    image = tmp_path / "curve.png"
    birl_("plot", out, "--save", image, "--show-steps", "--show-max", "--window", 2, "--title", "t", "--xlim", 0, 9)
    assert image.read_bytes().startswith(b"\x89PNG")
    birl_("plot", out / "loss.csv", out, "--label", "a", "--label", "b", "--save", tmp_path / "two.svg")
    birl_("export", out, tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").stat().st_size > 0


def test_same_seed_same_model_other_seed_other_model(birl_: Shell, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        birl_(*OFFLINE, "--out", tmp_path / name, "--seed", seed)
    models = [tmp_path / name / "model_20.d3" for name in "abc"]
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


def test_same_command_again_changes_nothing(birl_: Shell, tmp_path: Path) -> None:
    birl_(*OFFLINE, "--out", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    birl_(*OFFLINE, "--out", tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_other_settings_are_refused_by_name_and_fresh_starts_over(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    birl_(*OFFLINE, "--out", out)
    (out / "notes.txt").write_text("mine")
    before = (out / "model_20.d3").read_bytes()
    message = birl_(*OFFLINE, "--out", out, "--seed", 7, "--set", "gamma=0.9", status=1)
    assert "gamma was 0.99, now 0.9" in message
    assert "seed was 0, now 7" in message
    assert "--fresh" in message
    assert (out / "model_20.d3").read_bytes() == before
    birl_(*OFFLINE, "--out", out, "--seed", 7, "--set", "gamma=0.9", "--fresh", "--n-steps", 30)
    assert birl.load_learnable(out / "model_30.d3").gamma == 0.9
    assert not (out / "model_20.d3").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_with_other_files_is_left_alone(birl_: Shell, tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("precious")
    for extra in ([], ["--fresh"]):
        assert "another --out" in birl_(*OFFLINE, "--out", tmp_path, *extra, status=1)
    assert (tmp_path / "loss.csv").read_text() == "precious"
    assert "another --out" in birl_(*OFFLINE, "--out", tmp_path / "loss.csv", status=1)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_version_going_on_and_nothing_to_go_on_from(
    birl_: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert birl_("--version").strip() == f"birl {birl.__version__}"
    birl_(*OFFLINE, "--out", tmp_path / "run")
    birl_(*OFFLINE, "--out", tmp_path / "run")
    assert "(going on) from step 20" in birl_.notes
    birl_("plot", tmp_path / "run", "--save", tmp_path / "x.png")
    assert "has no return" in birl_.notes

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["birl.cli.train"], "_check", stopped)
    assert main([*OFFLINE, "--out", str(tmp_path / "new")]) == 130
    assert not (tmp_path / "new").exists()


# -- --set -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", algorithm_classes())
def test_no_settings_make_the_default_configuration(name: str) -> None:
    algorithm = algorithm_classes()[name]
    config = configure(algorithm, [])
    assert config.serialize() == algorithm.config_class().serialize()
    assert {field.name for field in dataclasses.fields(config)} == set(config.serialize()["params"])


def test_settings_reach_the_configuration() -> None:
    words = [
        "gamma=0.9",
        "learning_rate=1e-4",
        "compile_graph=True",
        "q_func_factory=qr",
        "q_func_factory.n_quantiles=8",
        "encoder_factory=vector",
        "encoder_factory.hidden_units=[32, 16]",
        "optim_factory.clip_grad_norm=1.0",
        "observation_scaler=standard",
        "reward_scaler=multiply",
        "reward_scaler.multiplier=0.1",
    ]
    config: Any = configure(algorithm_classes()["DQN"], words)
    assert (config.gamma, config.learning_rate, config.compile_graph) == (0.9, 1e-4, True)
    assert (config.q_func_factory.get_type(), config.q_func_factory.n_quantiles) == ("qr", 8)
    assert list(config.encoder_factory.hidden_units) == [32, 16]
    assert config.optim_factory.clip_grad_norm == 1.0
    assert config.observation_scaler.get_type() == "standard"
    assert config.reward_scaler.multiplier == 0.1
    recurrent: Any = configure(algorithm_classes()["DQN"], ["encoder_factory=lstm", "q_func_factory=None"][:1])
    assert recurrent.encoder_factory.get_type() == "lstm"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gama=0.9", "did you mean 'gamma'"),
        ("gamma=2", "<= 1"),
        ("gamma=high", "'high'"),
        ("gamma", "field=value"),
        ("=1", "field=value"),
        ("q_func_factory=quantile", "qr"),
        ("q_func_factory.quantiles=8", "quantiles"),
        ("gamma.x=1", "gamma"),
        ("action_scaler.minimum=1", "min_max"),
        ("n_critics=1.5", "int"),
        ("batch_size=true", "int"),
        ("optim_factory=None", "None"),
    ],
)
def test_wrong_settings_say_what_is_right(birl_: Shell, tmp_path: Path, word: str, says: str) -> None:
    with pytest.raises(ConfigError):
        configure(algorithm_classes()["DQN"], [word])
    out = tmp_path / "run"
    assert says in birl_("train", "DQN", "--dataset", "cartpole-random", "--n-steps", 5, "--out", out, word, status=1)
    assert not out.exists()


# -- scaling of actions ------------------------------------------------------------------------------------------------


def scaler(out: Path) -> Any:
    return birl.load_learnable(max(out.glob("model_*.d3"))).action_scaler


def test_actions_beyond_one_are_scaled_and_it_is_said(birl_: Shell, tmp_path: Path) -> None:
    words = ["train", "BC", "--dataset", "pendulum-random", "--n-steps", 4, "--set", "batch_size=4"]
    birl_(*words, "--out", tmp_path / "data")
    assert "action_scaler=min_max" in birl_.notes
    assert -2 <= scaler(tmp_path / "data").minimum < -1.9
    birl_(*words, "--out", tmp_path / "env", "--env-id", "Pendulum-v1", "--n-trials", 1)
    assert "[-2, 2]" in birl_.notes
    assert scaler(tmp_path / "env").maximum == 2
    with pytest.warns(UserWarning, match="reach from -1.99"):
        birl_(*words, "--out", tmp_path / "none", "--set", "action_scaler=None")
    assert "action_scaler=min_max" not in birl_.notes
    assert scaler(tmp_path / "none") is None
    online = ["train", "TD3", "--env-id", "Pendulum-v1", "--n-steps", 20, "--n-trials", 1, "--n-steps-per-epoch", 20]
    birl_(*online, "--out", tmp_path / "online", "--set", "batch_size=4")
    assert scaler(tmp_path / "online").minimum == -2


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "--help"),
        (["fly"], 2, "fly"),
        (["train"], 2, "ALGO"),
        (["train", "DQM", "--n-steps", "1", "--out", "x"], 1, "--env-id"),
        (["train", "DQM", "--n-steps", "1", "--out", "x", "--env-id", "CartPole-v1"], 1, "DQN"),
        (["train", "DQN", "--n-steps", "0", "--out", "x", "--env-id", "CartPole-v1"], 2, "--n-steps"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--env-id", "No-v1"], 1, "No-v1"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--env-id", "Pendulum-v1"], 1, "discrete"),
        (["train", "SAC", "--n-steps", "1", "--out", "x", "--env-id", "CartPole-v1"], 1, "DiscreteSAC"),
        (["train", "PPO", "--n-steps", "1", "--out", "x", "--dataset", "cartpole-random"], 1, "fit_online"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "nothing"], 1, "cartpole-replay"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "LICENSE"], 1, "HDF5"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "cartpole-random", "--device", "tpu"], 1, "tpu"),
        (["evaluate", "nowhere", "--env-id", "CartPole-v1"], 1, "nowhere"),
        (["evaluate", "docs", "--env-id", "CartPole-v1"], 1, "model_<step>.d3"),
        (["evaluate", "LICENSE", "--env-id", "CartPole-v1"], 1, "LICENSE"),
        (["export", "LICENSE", "x.onnx"], 1, "LICENSE"),
        (["plot", "nowhere"], 1, "nowhere"),
        (["plot", "docs"], 1, "CSV"),
        (["plot", "LICENSE"], 1, "epoch,step,value"),
    ],
)
def test_errors_are_one_line(
    birl_: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, says: str
) -> None:
    words = [str(ROOT / word) if (ROOT / word).exists() and word.isalpha() else word for word in words]
    monkeypatch.chdir(tmp_path)
    if words:
        assert says in birl_(*words, status=status)
    else:
        assert main([]) == status
    assert [path.name for path in tmp_path.rglob("*")] == []


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ConfigError):
        main(["--debug", "train", "DQN", "--n-steps", "1", "--out", "x"])
    with pytest.raises(ConfigError):
        main(["train", "DQN", "--n-steps", "1", "--out", "x", "--debug"])


def test_unexpected_errors_are_one_line_too(birl_: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("so\nit goes")

    monkeypatch.setattr(sys.modules["birl.cli.algos"], "algorithm_classes", broken)
    message = birl_("algos", status=1)
    assert message == "birl: unexpected ZeroDivisionError: so it goes (with --debug: where)"


def test_a_sequence_model_needs_a_return_to_aim_at(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "DecisionTransformer", "--dataset", "pendulum-random", "--n-steps", 2, "--out", out]
    words += ["--set", "batch_size=2", "context_size=3", "num_layers=1"]
    assert "--target-return" in birl_(*words, "--env-id", "Pendulum-v1", status=1)
    birl_(*words)
    assert "--target-return" in birl_("evaluate", out, "--env-id", "Pendulum-v1", status=1)
    words = ["evaluate", out, "--env-id", "Pendulum-v1", "--n-episodes", 1, "--target-return", -500]
    assert "over 1 episodes" in birl_(*words)
    assert "online" in birl_("train", "DecisionTransformer", "--env-id", "Pendulum-v1", "--n-steps", 2, "--out",
                             tmp_path / "online", status=1) + "online"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_of_anything_decides_the_status(monkeypatch, number, status):
    """What fails while a signal's exception is on its way out does not take its place."""

    def half_made(*arguments: object, **options: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            raise AttributeError("half made")

    monkeypatch.setattr(birl.cli, "app", half_made)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = birl.cli.main(["algos"])
    except SystemExit as end:
        code = end.code
    finally:
        signal.signal(signal.SIGINT, previous)
    assert code == status
