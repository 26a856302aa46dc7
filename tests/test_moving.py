"""Code written for d3rlpy: its names, its forms of data, and the command that renames its imports."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import birl
from birl import algos, dataset, notebook_utils, preprocessing
from birl.errors import MissingExtraError
from birl.testing import build_algorithm, random_dataset

GUIDE = (Path(__file__).parent.parent / "docs" / "moving.md").read_text(encoding="utf-8")
PARTS = [np.ones((5, 3), np.float32), np.zeros((5, 2), np.float32)]  # d3rlpy's form: a list of arrays

PROGRAM = """
import d3rlpy
import d3rlpy.metrics
from d3rlpy.algos.qlearning.dqn import DQNConfig, DoubleDQNConfig
from d3rlpy.dataset.mini_batch import TransitionMiniBatch
from d3rlpy.models.torch import Encoder
from d3rlpy.models.encoders import (
    EncoderFactory,
)
from d3rlpy import seed as seed_d3rlpy

LOGS = "d3rlpy_logs", "data/d3rlpy/x.h5", "https://github.com/takuseno/d3rlpy"
seed_d3rlpy(1)
print(d3rlpy.__name__, DQNConfig.__module__, TransitionMiniBatch.__module__, d3rlpy.metrics.TDErrorEvaluator.__name__)
print(*LOGS)
"""


def test_the_command_of_the_guide_renames_imports(tmp_path: Path) -> None:
    (command,) = re.findall(r"```sh\n(grep .*?)\n```", GUIDE, re.S)
    (tmp_path / "my project").mkdir()
    file = tmp_path / "my project" / "train.py"
    file.write_text(PROGRAM)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    logs = "d3rlpy_logs data/d3rlpy/x.h5 https://github.com/takuseno/d3rlpy"
    assert ran.stdout.split("\n")[:2] == ["birl birl.algos.dqn birl.dataset.minibatch TDErrorEvaluator", logs]
    assert file.with_name("train.py.old").read_text() == PROGRAM


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("algos.qlearning", "DQN SACConfig QLearningAlgoBase NormalNoise"),
        ("algos.transformer", "TransformerInput DecisionTransformerConfig"),
        ("base", "DeviceArg LearnableBase LearnableConfig load_learnable"),
        ("dataset.components", "Signature Transition PartialTrajectory EpisodeBase Episode DatasetInfo"),
        ("dataset.episode_generator", "EpisodeGenerator"),
        ("metrics.utility", "evaluate_qlearning_with_environment evaluate_transformer_with_environment"),
        ("models.torch", "Encoder EncoderWithAction"),
        ("notebook_utils", "start_virtual_display render_video"),
        ("types", "NDArray Float32NDArray Int32NDArray UInt8NDArray DType Observation ObservationSequence Shape"),
        ("types", "TorchObservation GymEnv"),
    ],
)
def test_modules_of_d3rlpy_are_there(path: str, names: str) -> None:
    module = importlib.import_module(f"birl.{path}")
    assert all(hasattr(module, name) for name in names.split())


def test_paths_to_algorithms_lead_to_the_same_classes() -> None:
    qlearning = importlib.import_module("birl.algos.qlearning")
    assert qlearning.DQN is algos.DQN
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("birl.algos.qlearning.dqn")  # which would define DQN a second time
    with pytest.raises(AttributeError, match="no attribute 'DQNImpl'"):
        _ = qlearning.DQNImpl


def test_annotations_can_be_made_of_the_names_of_types() -> None:
    from birl.types import Int32NDArray, NDArray

    def average(values: NDArray | None, counts: Int32NDArray | list[NDArray]) -> NDArray | None:
        return values

    assert average(None, []) is None


def test_signatures_give_samples() -> None:
    birl.seed(1)
    one, two = dataset.Signature([np.float32], [(3,)]), dataset.Signature([np.uint8, np.float64], [(2, 2), ()])
    (array,) = one.sample()
    assert (array.shape, array.dtype) == ((3,), np.float32) and 0 <= array.min() < array.max() < 1
    assert [(x.shape, x.dtype) for x in two.sample()] == [((2, 2), np.uint8), ((), np.float64)]
    named = dataset.Signature({"a": np.float32}, {"a": (3,)})
    assert named.sample()["a"].shape == (3,)


def test_lists_of_arrays_are_observations_of_several() -> None:
    zero = dataset.create_zero_observation([part[0] for part in PARTS])
    assert isinstance(zero, list) and [x.tolist() for x in zero] == [[0, 0, 0], [0, 0]]
    padded = dataset.batch_pad_observations(PARTS, 2)
    assert isinstance(padded, list) and [x.shape for x in padded] == [(7, 3), (7, 2)]
    scaler = preprocessing.TupleObservationScaler([preprocessing.MinMaxObservationScaler(-1, 1), None])
    scaled = scaler.transform_numpy(PARTS)
    assert scaled[0].tolist() == PARTS[0].tolist() == scaler.reverse_transform_numpy(list(scaled))[0].tolist()
    last = dataset.LastFrameWriterPreprocess().process_observation(PARTS)
    assert [x.shape for x in last] == [(1, 3), (1, 2)]
    columns = np.zeros((5, 1), np.float32)
    window = dataset.PartialTrajectory(PARTS, columns, columns, columns, columns, np.arange(5), np.ones(5), 5)
    assert isinstance(window.observations, tuple) and window.observation_signature.shape == [(3,), (2,)]
    batch = dataset.TrajectoryMiniBatch.from_partial_trajectories([window, window])
    assert [x.shape for x in batch.observations] == [(2, 5, 3), (2, 5, 2)]
    context = algos.TransformerInput(PARTS, columns, columns, columns, np.arange(5))
    assert context.length == 5 and isinstance(context.observations, tuple)


def test_lists_of_arrays_are_written_and_predicted() -> None:
    signature = dataset.Signature([np.float32] * 2, [(3,), (2,)])
    number = dataset.Signature([np.float32], [(1,)])
    buffer = dataset.ReplayBuffer(
        dataset.InfiniteBuffer(), observation_signature=signature, action_signature=number, reward_signature=number
    )
    for step in range(5):
        buffer.append([part[step] for part in PARTS], np.zeros(1, np.float32), 0.0)
    buffer.clip_episode(True)
    assert [x.shape for x in buffer.sample_transition_batch(4).observations] == [(4, 3), (4, 2)]
    sac = algos.SACConfig().create()
    sac.build_with_dataset(buffer)
    assert sac.predict(PARTS).shape == (5, 1)


def test_episode_generators_make_buffers_and_buffers_list_transitions() -> None:
    terminals, timeouts = np.array([0, 0, 1, 0, 0]), np.array([1, 0, 0, 0, 0])
    observations, actions = np.arange(10.0).reshape(5, 2), np.zeros((5, 1))
    generator = dataset.EpisodeGenerator(observations, actions, np.ones(5), terminals, timeouts)
    assert [len(episode) for episode in generator()] == [1, 2, 2]
    buffer = dataset.FIFOBuffer(100)
    replay = dataset.ReplayBuffer.from_episode_generator(generator, buffer)
    assert replay.size() == 3 and len(buffer) == replay.transition_count == 3
    found = [(float(episode.observations[index, 0]), index) for episode, index in buffer]
    assert found == [(2.0, 0), (4.0, 1), (6.0, 0)]
    assert buffer[-1][1] == 0
    with pytest.raises(IndexError, match="transition 3 of 3"):
        buffer[3]
    with pytest.raises(IndexError, match="transition 0 of 0"):
        dataset.InfiniteBuffer()[0]


def test_configurations_have_d3rlpys_names_of_serialisation() -> None:
    config = algos.DQNConfig(gamma=0.5)
    assert algos.DQNConfig.deserialize_from_dict(config.serialize_to_dict()) == config


def test_files_are_loaded_for_several_processes(tmp_path: Path) -> None:
    algorithm = build_algorithm(algos.DQNConfig())
    algorithm.save(tmp_path / "dqn.d3")
    assert birl.load_learnable(tmp_path / "dqn.d3", "cpu", True).enable_ddp
    assert not birl.load_learnable(tmp_path / "dqn.d3").enable_ddp


def test_plain_minibatches_are_learned_from_where_what_they_lack_can_be_made() -> None:
    data = random_dataset()
    batch = dataset.TransitionMiniBatch.from_transitions([data.sample_transition() for _ in range(8)])
    for config in (algos.ReBRACConfig(), algos.CalQLConfig(), algos.PRDCConfig()):
        algorithm = config.create()
        algorithm.build_with_dataset(data)
        algorithm.sample_minibatch(data)  # PRDC reads all of the data
        for _ in range(2):
            algorithm.update(batch)
    algorithm.update(data.sample_transition_batch(8))


def test_videos_are_shown_in_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    fake = SimpleNamespace(Video=lambda path, **options: (path, options["embed"]), display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    notebook_utils.render_video(Path("run.mp4"))
    assert shown == [("run.mp4", True)]
    monkeypatch.setitem(sys.modules, "pyvirtualdisplay", None)
    with pytest.raises(MissingExtraError, match="pip install pyvirtualdisplay"):
        notebook_utils.start_virtual_display()


def test_programs_run_as_they_stand(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, d3rlpy\n"
        "from d3rlpy.algos.qlearning.dqn import DQNConfig\n"
        "from d3rlpy.models.encoders import VectorEncoderFactory\n"
        "from d3rlpy.torch_utility import hard_sync\n"
        "config = DQNConfig(encoder_factory=VectorEncoderFactory([8]))\n"
        "print(config.gamma, d3rlpy.__version__, sys.argv[1])\n"
        "hard_sync()\n"
    )
    script = Path(__file__).parents[1] / "scripts" / "as_d3rlpy.py"
    done = subprocess.run([sys.executable, script, program, "word"], capture_output=True, text=True, check=False)
    assert done.stdout == f"0.99 {birl.__version__} word\n"
    assert "NameError: birl has no d3rlpy.torch_utility.hard_sync; here that is birl.algorithm.HardCopy" in done.stderr
    assert "birl has none of these names" in done.stderr and done.returncode == 1
