"""Data-parallel training in real processes equals one process with the concatenated minibatches."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.distributed.ddp import init_process_group
from birl.errors import ConfigError, UnsupportedError
from birl.files import load_archive

SCRIPT = """
import json, os, sys
import numpy as np
import torch
import birl
from birl import algos
from tests.distributed.test_ddp import CONFIGS, shard

torch.set_num_threads(1)
task = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
birl.seed(task.get("seed", 5))
config = CONFIGS[task["config"]]().copy()
if rank == 1 and "gamma" in task:
    config = type(config)(gamma=task["gamma"])
algorithm = config.create()
dataset = shard(rank, task["discrete"])
birl.distributed.init_process_group("gloo")

def stop(_, __, step):
    if step == task.get("stop"):
        raise KeyboardInterrupt

algorithm.fit(
    dataset,
    n_steps=task["n_steps"],
    n_steps_per_epoch=5,
    experiment_name="run",
    with_timestamp=False,
    logger_adapter=birl.logging.FileAdapterFactory(root_dir=f"logs-{rank}"),
    show_progress=False,
    callback=stop if "stop" in task else None,
    checkpoint=task.get("checkpoint"),
    enable_ddp=True,
)
algorithm.save_model(f"{task['name']}-{rank}.birl")
birl.distributed.destroy_process_group()
if os.path.isdir("/proc/self/task"):  # threads that outlive the group may abort the interpreter's end
    names = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
    assert not [name for name in names if "gloo" in name or "tcpstore" in name], names
"""
SMALL = birl.models.VectorEncoderFactory(hidden_units=[8])
CONFIGS = {
    "BC": lambda: algos.BCConfig(encoder_factory=SMALL, batch_size=16),
    "DQN": lambda: algos.DQNConfig(encoder_factory=SMALL, batch_size=16, learning_rate=1e-2, target_update_interval=4),
    "SAC": lambda: algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, batch_size=16),
    "norm": lambda: algos.BCConfig(
        encoder_factory=birl.models.VectorEncoderFactory(hidden_units=[8], use_batch_norm=True), batch_size=16
    ),
}


def shard(rank: int, discrete: bool) -> birl.dataset.MDPDataset:
    """Data of process ``rank``."""
    generator = np.random.default_rng(rank)
    actions = generator.integers(3, size=(60, 1)) if discrete else generator.uniform(-1, 1, (60, 2))
    ends = np.arange(60) % 10 == 9
    return birl.dataset.MDPDataset(
        generator.normal(size=(60, 4)).astype(np.float32),
        actions.astype(np.int64 if discrete else np.float32),
        generator.normal(size=60).astype(np.float32),
        ends.astype(np.float32),
        action_size=3 if discrete else 2,
    )


def run(folder: Path, **task: object) -> list[subprocess.CompletedProcess[str]]:
    """Two processes with the same task."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).resolve().parents[2])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    common |= {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps({"name": "model", "discrete": False, **task})],
            env={**common, "RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for process in processes:
        out, err = process.communicate()
        results.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return results


def saved(path: Path) -> dict[str, torch.Tensor]:
    """Networks of a saved model."""
    return {name: torch.as_tensor(value) for name, value in load_archive(path, "parameters")[1]["nets"].items()}


@pytest.mark.parametrize("name", ["DQN", pytest.param("BC", marks=pytest.mark.slow)])
def test_two_processes_learn_what_one_learns_from_joined_minibatches(name: str, tmp_path: Path) -> None:
    discrete = name == "DQN"
    for result in run(tmp_path, config=name, n_steps=10, discrete=discrete):
        assert result.returncode == 0, result.stderr
    both = [saved(tmp_path / f"model-{rank}.birl") for rank in range(2)]

    parts = []
    for rank in range(2):  # the minibatches that each process drew
        birl.seed(5)
        algorithm = CONFIGS[name]().create()
        dataset = shard(rank, discrete)
        if rank == 1:
            state = dataset.get_state(contents=False)
            jumped = np.random.PCG64()
            jumped.state = state["generator"]
            dataset.set_state({**state, "generator": jumped.jumped(1).state})
        torch_state = torch.get_rng_state()
        algorithm.build_with_dataset(dataset)
        parts.append([algorithm.learner.batch(algorithm.sample_minibatch(dataset)) for _ in range(10)])
        if rank == 0:
            first = torch_state
    birl.seed(5)
    algorithm = CONFIGS[name]().create()
    torch.set_rng_state(first)
    algorithm.build_with_dataset(shard(0, discrete))
    for batches in zip(*parts, strict=True):
        leaves = {key: [getattr(batch, key) for batch in batches] for key in ("observation", "action", "reward")}
        whole = batches[0].map(lambda x: x)
        for key in ("observation", "action", "reward", "next_observation", "discount", "weight"):
            leaves[key] = [getattr(batch, key) for batch in batches]
        whole = type(whole)(**{key: torch.cat(values) for key, values in leaves.items()})
        algorithm.engine.update(whole)
    for key, value in algorithm.nets.state_dict().items():
        assert torch.equal(both[0][key], both[1][key])
        torch.testing.assert_close(both[0][key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_only_the_first_process_logs_and_both_have_the_same_networks(tmp_path: Path) -> None:
    for result in run(tmp_path, config="norm", n_steps=10):
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "logs-0" / "run" / "loss.csv").exists()
    assert not (tmp_path / "logs-1").exists()
    first, second = (saved(tmp_path / f"model-{rank}.birl") for rank in range(2))
    assert any("running_mean" in key for key in first)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for result in run(tmp_path, config="SAC", n_steps=15, name="whole"):
        assert result.returncode == 0, result.stderr
    stopped = run(tmp_path, config="SAC", n_steps=15, stop=7, checkpoint="kept")
    assert all(result.returncode != 0 for result in stopped)
    for result in run(tmp_path, config="SAC", n_steps=15, checkpoint="kept", name="resumed"):
        assert result.returncode == 0, result.stderr
    for rank in range(2):
        whole, resumed = (saved(tmp_path / f"{name}-{rank}.birl") for name in ("whole", "resumed"))
        assert all(torch.equal(value, resumed[key]) for key, value in whole.items())


@pytest.mark.slow
def test_processes_with_other_configurations_are_refused(tmp_path: Path) -> None:
    results = run(tmp_path, config="BC", n_steps=5, gamma=0.5)
    for result in results:
        assert result.returncode != 0
        assert "of processes [1] are not those of process 0" in result.stderr


def test_missing_processes_are_said() -> None:
    with pytest.raises(ConfigError, match="needs a process group: call birl.distributed.init_process_group"):
        algos.BCConfig(encoder_factory=SMALL).create().fit(shard(0, False), 5, enable_ddp=True)
    with pytest.raises(ConfigError, match="needs a process group"):  # as newer versions of d3rlpy say it
        algos.BCConfig(encoder_factory=SMALL).create(enable_ddp=True).fit(shard(0, False), 5)
    with pytest.raises(UnsupportedError, match="enable_ddp=True cannot be combined with fit_online"):
        algos.DQNConfig().create(enable_ddp=True).fit_online(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="backend is 'pigeon'; this installation of torch has gloo"):
        init_process_group("pigeon")


def test_missing_variables_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="cannot find each other: .*torchrun"):
        init_process_group("gloo")
