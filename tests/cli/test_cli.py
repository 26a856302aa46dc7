"""The command line, run as a user runs it: words in, exit status and lines out."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl.algos import DecisionTransformerConfig, DiscreteRandomPolicyConfig, DQNConfig, PPOConfig
from birl.cli import _RENAMED, main, plot
from birl.cli.install import EXTRAS
from birl.cli.loading import algorithm_classes
from birl.cli.train import configure
from birl.dataset import InfiniteBuffer, ReplayBuffer
from birl.errors import ConfigError
from birl.files import load_archive
from birl.models import GRUEncoderFactory

ROOT = Path(__file__).parents[2]
OFFLINE = ["train", "DiscreteCQL", "--dataset", "cartpole-random", "--n-steps", "20", "--set", "batch_size=8"]
ONLINE = ["train", "dqn", "--env-id", "CartPole-v1", "--n-steps", "200", "--set", "batch_size=8"]
ONE_SEED = "EDAC, which differentiates through gradients, cannot be combined with fit_many"

COMMANDS = ["train", "tune", "evaluate", "collect", "stats", "plot", "plot-all", "record", "play", "export", "convert"]
COMMANDS += ["algos", "install", "data", "ope"]


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


def test_algos_lists_every_algorithm(birl_: Any) -> None:
    lines = birl_("algos").splitlines()
    assert max(map(len, lines)) < 80
    rows = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert set(algorithm_classes()) < set(rows)
    assert {"discrete", "offline,", "online"} <= set(rows["DQN"].split())
    assert "any" in rows["PPO"].split()
    assert "offline" not in rows["PPO"]
    assert "online" not in rows["DecisionTransformer"]


def test_python_m_birl_and_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "birl", "--help"], capture_output=True, text=True, check=True, env=environment()
    )
    lines = [line.split() for line in done.stdout.partition("Commands:")[2].splitlines() if line]
    assert [line[0] for line in lines] == COMMANDS
    assert all(line[-1].endswith(".") and not line[-1].endswith("..") for line in lines)  # none is cut off


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(birl_: Any, name: str) -> None:
    text = birl_(name, "--help")
    assert text.startswith(f"Usage: birl {name} ")
    assert "--help" in text
    said = {
        "evaluate": "a DiscreteDecisionTransformer and random policies sample their actions",
        "plot": "--xlim LOW HIGH",
    }
    assert said.get(name, "") in " ".join(text.split())


# -- train -------------------------------------------------------------------------------------------------------------


def test_train_offline_evaluates_in_the_environment(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    text = birl_(*OFFLINE, "--out", out, "--env-id", "CartPole-v1", "--n-trials", 2, "--n-steps-per-epoch", 10)
    assert str(out / "model_20.d3") in text
    assert {path.name for path in out.glob("model_*.d3")} == {"model_10.d3", "model_20.d3", "model_best.d3"}
    rows = (out / "environment.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows] == [["1", "10"], ["2", "20"]]
    assert birl.load_learnable(out / "model_20.d3").grad_step == 20


def test_train_online_then_evaluate_plot_export(birl_: Any, tmp_path: Path) -> None:
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


def test_same_seed_same_model_other_seed_other_model(birl_: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        birl_(*OFFLINE, "--out", tmp_path / name, "--seed", seed)
    models = [tmp_path / name / "model_20.d3" for name in "abc"]
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


def test_same_command_again_changes_nothing(birl_: Any, tmp_path: Path) -> None:
    birl_(*OFFLINE, "--out", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    birl_(*OFFLINE, "--out", tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_other_settings_are_refused_by_name_and_fresh_starts_over(birl_: Any, tmp_path: Path) -> None:
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


def test_a_folder_with_other_files_is_left_alone(birl_: Any, tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("precious")
    for extra in ([], ["--fresh"]):
        assert "another --out" in birl_(*OFFLINE, "--out", tmp_path, *extra, status=1)
    assert (tmp_path / "loss.csv").read_text() == "precious"
    assert "another --out" in birl_(*OFFLINE, "--out", tmp_path / "loss.csv", status=1)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_version_going_on_and_nothing_to_go_on_from(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert birl_("--version").strip() == f"birl {birl.__version__}"
    birl_(*OFFLINE, "--out", tmp_path / "run")
    birl_(*OFFLINE, "--out", tmp_path / "run")
    assert "nothing left to do" in birl_.notes
    assert "resuming" not in birl_.notes
    birl_("plot", tmp_path / "run", "--save", tmp_path / "x.png")
    assert "has no return" in birl_.notes

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["birl.cli.train"], "check_fit", stopped)
    assert main([*OFFLINE, "--out", str(tmp_path / "new")]) == 130
    assert not (tmp_path / "new").exists()


def test_an_environment_that_ends_the_program_is_an_error(workplace: Path, birl_: Any) -> None:
    (workplace / "own_envs.py").write_text(
        "import sys, gymnasium\n"
        "class Leaves(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        sys.exit(0)\n"
        "def leaves():\n"
        "    return Leaves(gymnasium.make('CartPole-v1'))\n"
    )
    words = ["train", "DQN", "--env-id", "own_envs:leaves", "--n-steps", 20, "--out", workplace / "run"]
    assert "ended the program with sys.exit(0) before the command was done" in birl_(*words, status=1)


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
def test_wrong_settings_say_what_is_right(birl_: Any, tmp_path: Path, word: str, says: str) -> None:
    with pytest.raises(ConfigError):
        configure(algorithm_classes()["DQN"], [word])
    out = tmp_path / "run"
    assert says in birl_("train", "DQN", "--dataset", "cartpole-random", "--n-steps", 5, "--out", out, word, status=1)
    assert not out.exists()


def test_a_field_is_set_once(birl_: Any, tmp_path: Path) -> None:
    words = ["--set", "batch_size=9", "--out", tmp_path / "run"]
    assert "batch_size is set twice, to 8 and to 9: leave one out" in birl_(*OFFLINE, *words, status=1)


# -- scaling of actions ------------------------------------------------------------------------------------------------


def scaler(out: Path) -> Any:
    return birl.load_learnable(max(out.glob("model_*.d3"))).action_scaler


def test_actions_beyond_one_are_scaled_and_it_is_said(birl_: Any, tmp_path: Path) -> None:
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
        (["fly"], 2, "fly"),
        (["train"], 2, "ALGO"),
        (["train", "DQM", "--n-steps", "1", "--out", "x"], 1, "--env-id"),
        (["train", "DQM", "--n-steps", "1", "--out", "x", "--env-id", "CartPole-v1"], 1, "DQN"),
        (["train", "DQN", "--n-steps", "0", "--out", "x", "--env-id", "CartPole-v1"], 2, "--n-steps"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--env-id", "No-v1"], 1, "No-v1"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--env-id", "Pendulum-v1"], 1, "discrete"),
        (["train", "SAC", "--n-steps", "1", "--out", "x", "--env-id", "CartPole-v1"], 1, "DiscreteSAC"),
        (["train", "PPO", "--n-steps", "1", "--out", "x", "--dataset", "cartpole-random"], 1, "give --env-id ID"),
        (["train", "BC", *ONLINE[2:], "--out", "x"], 1, "BC learns from logged data only: give --dataset"),
        (["train", "RandomPolicy", *ONLINE[2:], "--out", "x"], 1, "RandomPolicy does not learn"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "no.h5"], 1, "there is no file 'no.h5': give"),
        (["train", "CLQ", *ONLINE[2:], "--out", "x"], 1, "Did you mean CalQL or CQL?"),
        (
            ["train", "QR-DQN", *ONLINE[2:], "--out", "x"],
            1,
            "'QR-DQN'; here that is DQN with birl.models.QRQFunctionFactory (q_f",
        ),
        (["train", "rainbow", *ONLINE[2:], "--out", "x"], 1, "here that is DoubleDQN with the recipe rainbow"),
        (["train", "DQN", "--n-steps", "ten", "--out", "x"], 2, "--n-steps ten: "),
        (["train", "DQN", "--n-steps", "64", "--n-steps", "1e6", "--out", "x"], 2, "--n-steps 1e6: "),
        (["train", "DQN", "--n-steps=-5", "--out", "x"], 2, "--n-steps=-5: "),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "nothing"], 1, "cartpole-replay"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "LICENSE"], 1, "HDF5"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "cartpole-random", "--device", "tpu"], 1, "tpu"),
        (["train", "FQE", "--n-steps", "1", "--out", "x", "--dataset", "cartpole-random"], 1, "birl.ope.FQE(algo).fit"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--env-id", "os:system"], 1, "needs arguments (command)"),
        ([*ONLINE, "--dataset", "cartpole-random", "--out", "x", "--n-updates", "2"], 1, "--n-updates: for training"),
        ([*OFFLINE, "--out", "x", "--set", "action_scaler=min_max"], 1, "but the actions are discrete"),
        (["data", "report", "x", *_RENAMED], 2, "it is --other now"),
        (["train", "PPO", *ONLINE[2:], "--out", "x", "--update-interval", "2"], 1, "PPO updates after each rollout"),
        (["evaluate", "nowhere", "--env-id", "CartPole-v1"], 1, "nowhere"),
        (["evaluate", "docs", "--env-id", "CartPole-v1"], 1, "model_<step>.d3"),
        (["evaluate", "LICENSE", "--env-id", "CartPole-v1"], 1, "LICENSE"),
        (["export", "LICENSE", "x.onnx"], 1, "LICENSE"),
        (["plot", "nowhere"], 1, "nowhere"),
        (["plot", "docs"], 1, "CSV"),
        (["plot", "LICENSE"], 1, "epoch,step,value"),
        ([*OFFLINE, "--out", "/dev/null/x"], 1, "the folder /dev/null/x cannot be made or written (Not a directory)"),
        ([*OFFLINE, "--out", "/proc/x"], 1, "(No such file or directory): give another --out"),
        (["train", "EDAC", "--dataset", "pendulum-random", *ONLINE[4:], "--out", "x", "--seeds", "2"], 1, ONE_SEED),
        ([*OFFLINE, "--out", "x", "--target-return", "5"], 1, "DiscreteCQL takes no --target-return"),
        ([*ONLINE, "--out", "x", "--target-return", "5"], 1, "DQN takes no --target-return"),
        (["train", "DQN", "--n-steps", "1", "--out", "x", "--dataset", "docs"], 1, "is a folder without episodes"),
        (["plot", "LICENSE", "--xlim", "5", "1"], 1, "--xlim 5 1: the first must be below the second"),
        (["plot", "LICENSE", "--ylim", "nan", "1"], 1, "--ylim nan 1: the first must be below the second"),
        (["plot", "LICENSE", "--ylim", "0", "inf"], 1, "--ylim 0 inf: "),
    ],
)
def test_errors_are_one_line(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, says: str
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


def test_unexpected_errors_are_one_line_too(birl_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("so\nit goes")

    monkeypatch.setattr("birl.cli.algos.algorithm_classes", broken)
    message = birl_("algos", status=1)
    assert message == "birl: unexpected ZeroDivisionError: so it goes (with --debug: where)"


def test_a_sequence_model_needs_a_return_to_aim_at(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "DecisionTransformer", "--dataset", "pendulum-random", "--n-steps", 2, "--out", out]
    words += ["--set", "batch_size=2", "context_size=3", "num_layers=1"]
    assert "--target-return" in birl_(*words, "--env-id", "Pendulum-v1", status=1)
    birl_(*words)
    assert "--target-return" in birl_("evaluate", out, "--env-id", "Pendulum-v1", status=1)
    words = ["evaluate", out, "--env-id", "Pendulum-v1", "--n-episodes", 1, "--target-return", -500]
    assert "over 1 episodes" in birl_(*words)
    assert (
        "online"
        in birl_(
            "train",
            "DecisionTransformer",
            "--env-id",
            "Pendulum-v1",
            "--n-steps",
            2,
            "--out",
            tmp_path / "online",
            status=1,
        )
        + "online"
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_of_anything_decides_the_status(monkeypatch, number, status):
    """What fails while a signal's exception is on its way out does not take its place."""

    def half_made(*arguments: object, **options: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            raise AttributeError("half made")

    monkeypatch.setattr(birl.cli, "_command_line", lambda: half_made)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = birl.cli.main(["algos"])
    except SystemExit as end:
        code = end.code
    finally:
        signal.signal(signal.SIGINT, previous)
    assert code == status


# -- record, play ------------------------------------------------------------------------------------------------------

ENVIRONMENTS = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Bars(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 12.5}
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    rendered, shape, dtype, closed, length = 0, (41, 63, 3), np.uint8, 0, 7

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _observation(self):
        if self.render_mode == "human":
            Bars.rendered += 1
        return np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        return self._observation(), 2.0, False, self.steps == self.length, {}

    def render(self):
        picture = np.zeros(self.shape, self.dtype)
        picture[:, : 8 * self.steps] = 255
        return picture

    def close(self):
        Bars.closed += 1


def plain():
    return Bars()


class Floats(Bars):
    dtype = np.float32


class Broken(Bars):
    def render(self):
        raise RuntimeError("no context")


class Interrupted(Bars):
    length = 400

    def step(self, action):
        if self.steps == 200:  # late enough for pictures to be in the file already
            raise KeyboardInterrupt
        return super().step(action)
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of environments and models that act at random."""
    (tmp_path / "own_envs.py").write_text(ENVIRONMENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.delitem(sys.modules, "own_envs", raising=False)
    for name, size in (("bars", 2), ("pole", 4)):
        algorithm = DiscreteRandomPolicyConfig().create()
        algorithm.create_impl((size,), 2)
        algorithm.save(f"{name}.d3")
    return tmp_path


def frames(file: Path) -> tuple[Any, Any]:
    """The pictures of a video ``[n, height, width, 3]``, and its stream."""
    import av

    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return np.stack(pictures), (stream.codec_context.name, float(stream.average_rate))


def test_record_makes_a_video_of_each_episode(birl_: Any, workplace: Path) -> None:
    text = birl_("record", "bars.d3", "--env-id", "own_envs:Bars", "--out", "deep/videos", "--n-episodes", 2)
    files = [Path(f"deep/videos/rl-video-episode-{number}.mp4") for number in range(2)]
    assert text.splitlines() == [*map(str, files), "return 14.00 ± 0.00 over 2 episodes (14.00, 14.00)"]
    assert sorted(Path("deep/videos").iterdir()) == files
    for file in files:
        pictures, stream = frames(file)
        assert pictures.shape == (8, 42, 64, 3)  # the first observation and seven steps; sides made even
        assert stream == ("h264", 12.5)
        bright = (pictures.mean(-1) > 127).sum(-1).mean(-1)
        assert bright == pytest.approx(np.arange(8) * 8, abs=2)
    assert sys.modules["own_envs"].Bars.closed == 1


def test_record_plays_what_evaluate_plays(birl_: Any, workplace: Path) -> None:
    same = ["pole.d3", "--env-id", "CartPole-v1", "--n-episodes", 2, "--seed", 5, "--epsilon", 0.5]
    returns = json.loads(birl_("evaluate", *same, "--json"))["returns"]
    text = birl_("record", *same, "--out", "v", "--use-gymnasium")
    assert f"({returns[0]:.2f}, {returns[1]:.2f})" in text
    for number, value in enumerate(returns):
        pictures, stream = frames(Path(f"v/rl-video-episode-{number}.mp4"))
        assert pictures.shape == (value + 1, 400, 600, 3)
        assert stream == ("h264", 50.0)
        assert pictures.std() > 10


@pytest.mark.slow
def test_record_a_sequence_model(birl_: Any, workplace: Path) -> None:
    algorithm = DecisionTransformerConfig(context_size=2, num_layers=1).create()
    algorithm.create_impl((3,), 1)
    algorithm.save("sequence.d3")
    words = ["record", "sequence.d3", "--env-id", "Pendulum-v1", "--n-episodes", 1]
    assert "needs --target-return" in birl_(*words, status=1)
    assert not Path("videos").exists()
    birl_(*words, "--target-return", -300.0)
    assert len(frames(Path("videos/rl-video-episode-0.mp4"))[0]) == 201


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
def test_export_a_sequence_model_for_many_episodes(birl_: Any, workplace: Path) -> None:
    algorithm = DecisionTransformerConfig(context_size=2, num_layers=1).create()
    algorithm.create_impl((3,), 1)
    algorithm.save("sequence.d3")
    for words, batch in (([], ()), (["--batched"], (5,))):
        birl_("export", "sequence.d3", "policy.pt", *words)
        policy = torch.jit.load("policy.pt")
        context = [torch.zeros(*batch, 2, size) for size in (3, 1, 1)]
        assert policy(*context, torch.ones(*batch, 2, dtype=torch.int64)).shape == (*batch, 1)
    simple = DiscreteRandomPolicyConfig().create()
    simple.create_impl((3,), 2)
    simple.save("simple.d3")
    assert "simple.d3 is not a sequence model" in birl_("export", "simple.d3", "x.pt", "--batched", status=1)


def test_collect_writes_the_episodes_that_evaluate_plays(birl_: Any, workplace: Path) -> None:
    """Also where the policy is recurrent: its states are no business of those who learn from its episodes."""
    memory = GRUEncoderFactory(hidden_size=4)
    for name, config in (("q", DQNConfig(encoder_factory=[4])), ("memory", DQNConfig(encoder_factory=memory))):
        algorithm = config.create()
        algorithm.create_impl((4,), 2)
        algorithm.save(f"{name}.d3")
        same = [f"{name}.d3", "--env-id", "CartPole-v1", "--n-episodes", 3, "--seed", 5]
        returns = json.loads(birl_("evaluate", *same, "--json"))["returns"]
        said = birl_("collect", *same, "--out", "expert.h5")
        assert said.startswith(f"expert.h5: 3 episodes, {sum(returns):g} steps, return {np.mean(returns):.2f} ± ")
        data = ReplayBuffer.load("expert.h5", InfiniteBuffer())
        assert [episode.compute_return() for episode in data.episodes] == returns
        assert all(episode.terminated and not episode.extra for episode in data.episodes)
        assert data.dataset_info.action_size == 2
        explored = birl_("collect", *same, "--out", "other.h5", "--epsilon", 1)
        assert explored.split("return")[1] != said.split("return")[1]
    words = ("train", "DiscreteBC", "--dataset", "expert.h5", "--n-steps", 3, "--out", "run")
    assert "done: 3 steps" in birl_(*words)


def test_collect_samples_quantities_within_their_bounds(birl_: Any, workplace: Path) -> None:
    algorithm = PPOConfig(actor_encoder_factory=[4], value_encoder_factory=[4]).create()
    algorithm.build_with_env(gymnasium.make("Pendulum-v1"))
    algorithm.save("ppo.d3")
    same = ["collect", "ppo.d3", "--env-id", "Pendulum-v1", "--n-episodes", 1, "--out", "expert.h5"]
    shares = []
    for words in ([], ["--sample"], ["--epsilon", 0.5]):
        birl_(*same, *words)
        (episode,) = ReplayBuffer.load("expert.h5", InfiniteBuffer()).episodes
        assert episode.truncated and len(episode) == 200
        assert np.abs(episode.actions).max() <= 2
        shares.append(np.mean(np.abs(episode.actions) > 0.5))
    assert shares[0] < 0.1 < min(shares[1:])  # the mean of an untrained policy is near zero, its samples are not


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--out"),
        (["--out", "expert.csv"], "--out expert.h5"),
        (["--out", "no/expert.h5"], "another --out"),
        (["--out", "expert.h5"], "--env-id"),
        (["--out", "expert.h5", "--env-id", "Acrobot-v1"], "observations (6,)"),
        (["--out", "expert.h5", "--env-id", "CartPole-v1", "--n-episodes", "0"], "--n-episodes"),
        (["--out", "expert.h5", "--env-id", "CartPole-v1", "--sample", "--epsilon", "0.1"], "leave one out"),
        (["--out", "expert.h5", "--env-id", "CartPole-v1", "--target-return", "1"], "takes no --target-return"),
    ],
)
def test_what_cannot_be_collected(birl_: Any, workplace: Path, words: list[str], says: str) -> None:
    before = sorted(workplace.iterdir())
    usage = says in ("--out", "--n-episodes")
    assert says in birl_("collect", "pole.d3", *words, status=2 if usage else 1)
    assert sorted(workplace.iterdir()) == before


HEADER = "import gym; env = gym.make('CartPole-v1')"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--env-id"),
        (["--env-header", HEADER], "never executes"),
        (["--env-header", HEADER], "--env-id my_envs:make"),
        (["--env-id", "own_envs:nothing"], "own_envs:nothing"),
        (["--env-id", "no_envs:nothing"], "no_envs"),
        (["--env-id", "CartPole-v1"], "observations (2,)"),
        (["--env-id", "own_envs:Bars", "--target-return", "1"], "takes no --target-return"),
        (["--env-id", "own_envs:Floats"], "float32"),
        (["--env-id", "own_envs:Broken"], "MUJOCO_GL"),
        (["--env-id", "own_envs:Bars", "--out", "bars.d3"], "another --out"),
    ],
)
def test_what_cannot_be_recorded(birl_: Any, workplace: Path, words: list[str], says: str) -> None:
    before = sorted(workplace.iterdir())
    assert says in birl_("record", "bars.d3", *words, status=1)
    assert [file for file in sorted(workplace.iterdir()) if file.name != "__pycache__"] == before


def test_an_interrupted_video_is_removed(workplace: Path) -> None:
    assert main(["record", "bars.d3", "--env-id", "own_envs:Interrupted", "--out", "v"]) == 130
    assert list(Path("v").iterdir()) == []


def test_record_names_its_extra(birl_: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert "birl[video]" in birl_("record", "bars.d3", "--env-id", "own_envs:Bars", status=1)


def test_play_shows_episodes(birl_: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = birl_("play", "bars.d3", "--env-id", "own_envs:Bars", "--n-episodes", 2)
    assert text == "return 14.00 ± 0.00 over 2 episodes (14.00, 14.00)\n"
    assert sys.modules["own_envs"].Bars.rendered >= 16
    assert sys.modules["own_envs"].Bars.closed == 1
    assert "over 1 episodes" in birl_("play", "pole.d3", "--env-id", "CartPole-v1", "--n-episodes", 1)
    assert "render_mode=None" in birl_("play", "bars.d3", "--env-id", "own_envs:plain", status=1)
    assert "never executes" in birl_("play", "bars.d3", "--env-header", HEADER, status=1)
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert "birl record" in birl_("play", "bars.d3", "--env-id", "own_envs:Bars", status=1)


# -- stats, plot-all ---------------------------------------------------------------------------------------------------

GRADIENT = "epoch,step,min,max,mean,std\n1,10,-1.0,2.0,0.5,0.1\n2,20,-3.0,1.0,0.25,0.1\n"


def a_run(folder: Path) -> Path:
    """A run folder as d3rlpy and birl write it."""
    folder.mkdir(parents=True)
    (folder / "loss.csv").write_text("1,10,4.0\n2,20,1.0\n3,30,2.0\n")
    (folder / "environment.csv").write_text("1,10,7.5\n2,20,9.5\n")
    (folder / "time_step.csv").write_text("1,10,0.1\n2,20,0.1\n")
    (folder / "q_func.0.weight_grad.csv").write_text(GRADIENT)
    (folder / "params.json").write_text('{"action_size": 2, "config": {"type": "a", "params": {"gamma": 0.9}}}')
    (folder / "time_monitor.csv").write_text('#{"t_start": 1.0, "env_id": "a"}\nr,l,t,step\n7.5,3,0.1,10\n')
    return folder


def test_stats(birl_: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert [line.split(": ")[-1].strip() for line in birl_("stats", run / "loss.csv").splitlines()] == [
        str(run / "loss.csv"), "3", "30", "4", "1", "1.24722", "2",
    ]  # fmt: skip
    assert "MAX VALUE  : 2\nMIN VALUE  : -3" in birl_("stats", run / "q_func.0.weight_grad.csv")
    table = [line.split() for line in birl_("stats", run).splitlines()]
    assert [row[0] for row in table] == ["METRIC", "environment", "loss", "time_step", "q_func.0.weight_grad"]
    assert table[2][1:] == ["3", "30", "2", "4", "1", "1.2472"]
    a_run(tmp_path / "seeds" / "seed_3")
    assert "seed_3" in birl_("stats", tmp_path / "seeds", status=1)
    assert "train first" in birl_("stats", ROOT / "docs", status=1)
    said = birl_("stats", "nowhere", status=1)
    assert "no file or folder 'nowhere'" in said and "and no dataset is called 'nowhere'; known: cart" in said
    assert "hopper_medium.hdf5" in birl_("stats", "hopper-medium-v0", status=1)
    (tmp_path / "empty.csv").write_text("")
    assert "epoch,step,value" in birl_("stats", tmp_path / "empty.csv", status=1)
    for name, kind in (("model.d3", "model"), ("checkpoint.d3c", "checkpoint")):
        (tmp_path / name).write_bytes(b"PK\3\4\xc0")
        said = f"{name} is a {kind}: stats takes a run folder, the CSV file of a metric, or a dataset (.h5)"
        assert said in birl_("stats", tmp_path / name, status=1)
    assert ": it is not text; give a CSV file" in birl_("plot", tmp_path / "model.d3", status=1)


def test_stats_of_a_dataset(birl_: Any, tmp_path: Path) -> None:
    rewards, ends = np.array([1, 2, 3, 4, 5], np.float32), np.array([0, 0, 1, 0, 0])
    data = birl.dataset.MDPDataset(
        np.zeros((5, 3), np.float32), np.zeros((5, 2), np.float32), rewards, ends, timeouts=np.array([0, 0, 0, 0, 1])
    )
    data.dump(tmp_path / "data.h5")
    rows = dict(line.split(": ", 1) for line in birl_("stats", tmp_path / "data.h5").splitlines())
    rows = {name.strip(): text for name, text in rows.items()}
    assert rows["EPISODES"] == "2, 1 of them terminated"
    assert rows["OBSERVATIONS"] == "shape (3,)"
    assert rows["ACTIONS"] == "continuous, 2 dimensions"
    assert rows["RETURN"] == "7.5 ± 1.5 (min 6, max 9)"
    assert rows["LENGTH"] == "2.5 ± 0.5 (min 2, max 3)"
    assert rows["REWARD"] == "3 ± 1.4142 (min 1, max 5)"
    text = birl_("stats", "cartpole-random")
    assert "DATASET" in text
    assert "2 discrete" in text


def test_fault_14_plot_all_draws_gradients_too(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figures: list[Any] = []
    subplots = pyplot.subplots

    def remembered(*args: Any, **options: Any) -> Any:
        figures.append(subplots(*args, **options))
        return figures[-1]

    monkeypatch.setattr(pyplot, "subplots", remembered)
    run, image = a_run(tmp_path / "run"), tmp_path / "all.png"
    assert birl_("plot-all", run, "--save", image) == f"{image}: 3 metrics of {run}\n"
    figures.clear()
    text = birl_("plot-all", run, "--save", image, "--title", "everything", "--params")
    assert text == f"action_size=2\nconfig.type=a\nconfig.gamma=0.9\n{image}: 3 metrics of {run}\n"
    assert image.read_bytes().startswith(b"\x89PNG")
    figure, grid = figures.pop()
    assert figure.get_suptitle() == "everything"
    assert [axes.get_title() for axes in grid.flat] == ["environment", "loss", "q_func.0.weight_grad", ""]
    assert list(grid.flat[1].lines[0].get_xdata()) == [1, 2, 3]
    assert list(grid.flat[2].lines[0].get_ydata()) == [0.5, 0.25]
    low, high = grid.flat[2].collections[0].get_paths()[0].get_extents().intervaly
    assert (low, high) == (-3, 2)
    birl_("plot", run / "q_func.0.weight_grad.csv", run / "loss.csv", "--show-max", "--save", tmp_path / "two.png")
    _, axes = figures.pop()
    assert [line.get_ydata()[0] for line in axes.lines] == [0.5, 4.0, 4.0]  # the last one is dashed, at the maximum

    (run / "loss.csv").write_text("1,10,4.0\n1,20,1.0\n")  # written within an epoch: steps along the axis
    birl_("plot-all", run, "--save", image)
    assert list(figures.pop()[1].flat[1].lines[0].get_xdata()) == [10, 20]

    (run / "loss.csv").write_text("1,10,4.0\n2,20,1.0\n")
    (run / "rollout_return.csv").write_text("1,10,4.0\n2,20,1.0\n")  # online: steps
    birl_("plot-all", run, "--save", image)
    assert list(figures.pop()[1].flat[1].lines[0].get_xdata()) == [10, 20]

    for seed, value in ((0, 1.0), (1, 3.0)):
        (a_run(tmp_path / "many" / f"seed_{seed}") / "loss.csv").write_text(f"1,10,{value}\n")
    birl_("plot-all", tmp_path / "many", "--save", image)
    figure, grid = figures.pop()
    assert figure.get_suptitle() == "many, mean of 2 seeds"
    assert [line.get_ydata()[0] for line in grid.flat[1].lines] == [2.0, 1.0, 3.0]
    pyplot.close("all")


def test_what_cannot_be_plotted(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no folder" in birl_("plot-all", "nowhere", status=1)
    assert "train first" in birl_("plot-all", ROOT / "docs", status=1)
    run = a_run(tmp_path / "run")
    assert "nope" in birl_("plot-all", run, "--save", tmp_path / "x.nope", status=1)
    (run / "params.json").write_text("{")
    birl_("plot-all", run, "--save", tmp_path / "x.png", "--params")
    assert "params.json" in birl_.notes
    for backend in ("agg", "SVG"):
        monkeypatch.setattr("matplotlib.pyplot.get_backend", lambda backend=backend: backend)
        for command in ("plot", "plot-all"):
            said = birl_(command, run, status=1)
            assert f"no screen to open a window on (matplotlib's backend is {backend.lower()}): give --save" in said
    monkeypatch.undo()
    (run / "late.csv").write_text("1,2\n")
    assert "late.csv" in birl_("plot-all", run, "--save", tmp_path / "x.png", status=1)
    monkeypatch.setattr("matplotlib.pyplot.subplots", lambda *_, **options: __import__("no_tk"))
    assert "unset MPLBACKEND, and give --save" in birl_("plot", run, status=1)


def test_gaps_are_drawn_and_nothing_at_all_is_not(birl_: Any, tmp_path: Path) -> None:
    gaps, nothing, image = tmp_path / "gaps.csv", tmp_path / "nothing.csv", tmp_path / "x.png"
    gaps.write_text("1,10,nan\n2,20,3.0\n3,30,inf\n")
    nothing.write_text("1,10,nan\n2,20,nan\n")
    for more in ([], ["--show-max"]):
        assert "nothing.csv: all values are NaN or inf" in birl_("plot", nothing, "--save", image, *more, status=1)
        assert not image.exists()
        birl_("plot", gaps, nothing, "--save", image, *more)
        image.unlink()


def test_train_online_with_an_interval_between_updates(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*ONLINE, "--out", out, "--n-trials", 1, "--n-updates", 3, "--update-interval"]
    birl_(*words, 30)
    assert birl.load_learnable(out / "model_200.d3").grad_step == 3 * (200 // 30)  # none in the first 20 steps
    assert "update_interval was 30, now 40" in birl_(*words, 40, status=1)


def test_train_logs_steps_and_gradients(birl_: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*OFFLINE, "--out", out, "--n-steps-per-epoch", 10, "--log-gradients", "--logging-steps"]
    birl_(*words, 4)
    steps = [row.split(",")[1] for row in (out / "loss.csv").read_text().splitlines()]
    assert steps == ["4", "8", "10", "12", "16", "20"]
    assert list(out.glob("critic.*_grad.csv"))
    assert "weight_grad" not in birl_.notes
    birl_("plot-all", out, "--save", tmp_path / "all.png")
    assert "logging_steps was 4, now 5" in birl_(*words, 5, status=1)
    assert "--log-gradients: not with --seeds" in birl_(*words, 5, "--seeds", 2, status=1)


# -- install -----------------------------------------------------------------------------------------------------------


def test_install(birl_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    status = [0]

    def run(command: list[str], check: bool) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, status[0])

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("importlib.metadata.version", lambda name: birl.__version__)
    listed = [line.split()[0] for line in birl_("install").splitlines()]
    assert listed == list(EXTRAS)
    assert birl_("install", "list").split() == birl_("install").split()
    text = birl_("install", "atari", "--dry-run")
    assert text.strip() == f"{sys.executable} -m pip install 'birl[atari]=={birl.__version__}'"
    assert commands == []
    for name, extra in (("minari", "minari"), ("d4rl_atari", "atari")):
        birl_("install", name)
        assert commands.pop() == [sys.executable, "-m", "pip", "install", f"birl[{extra}]=={birl.__version__}"]
    assert "minari" in birl_("install", "minary", status=1)
    assert commands == []
    status[0] = 3
    assert "exit status 3" in birl_("install", "plot", status=1)
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [])
    assert "has no pip" in birl_("install", "plot", status=1)


def test_install_takes_no_strangers_package(birl_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert "pip install -e '.[atari]'" in birl_("install", "atari", status=1)


def test_everything_that_can_be_installed_is_an_extra() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev"}
    bundled = extras["all"][0].removeprefix("birl[").removesuffix("]").split(",")
    assert set(bundled) == set(EXTRAS) - {"all"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "no dataset is called 'nowhere'"),
        ("data/no.h5", "there is no file 'data/no.h5'"),
        ("hopper-medium-v0", "hopper_medium.hdf5"),
    ],
)
def test_a_dataset_that_is_not_there(birl_: Any, tmp_path: Path, name: str, said: str) -> None:
    assert said in birl_("train", "BC", "--dataset", name, "--n-steps", "5", "--out", str(tmp_path / "run"), status=1)


def test_the_bare_command_prints_its_help(birl_: Any) -> None:
    text = birl_()
    assert text == birl_("--help") and "train" in text and text.count("\n") > 10


def test_curves_of_equal_names_have_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a/cql", "b/cql", "c/td3"):
        Path(folder).mkdir(parents=True)
        for metric in ("environment", "loss"):
            Path(folder, f"{metric}.csv").write_text("1,10,3.0\n")
    paths = [Path("a/cql"), Path("b/cql"), Path("c/td3/loss.csv")]
    curves = [plot._curve_files(path, None) for path in paths]
    assert plot._labels(paths, curves) == ["a/cql: cql/environment", "b/cql: cql/environment", "td3/loss"]
    assert main(["plot", *map(str, paths), "--save", "all.png"]) == 0
    figure = plot.draw(curves, ["1", "2", "3"], ylabel="environment, loss")
    assert figure.axes[0].get_ylabel() == "environment, loss"
