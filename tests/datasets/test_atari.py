"""Files in the layout of the DQN replay datasets: made here, small."""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from birl.dataset import PrioritizedSampler, ReplayBuffer
from birl.datasets import atari, get_atari, get_atari_transitions, get_dataset
from birl.errors import ConfigError, CorruptFileError, FileError
from birl.types import ActionSpace

COUNT = 40
ENDS = (9, 10, 25)  # lengths 10, 1, 15, and 14 left over


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "data"))


def columns(epoch: int = 1) -> dict[str, Any]:
    frames = np.zeros((COUNT, 84, 84), np.uint8)
    frames[:, 0, 0], frames[:, 0, 1] = np.arange(COUNT), epoch
    terminals = np.zeros(COUNT, np.uint8)
    terminals[list(ENDS)] = 1
    rewards = np.arange(COUNT, dtype=np.float32)
    return {
        "observation": frames,
        "action": np.arange(COUNT, dtype=np.int32) % 4,
        "reward": rewards,
        "terminal": terminals,
    }


def write(folder: Path, names: str = "{}.gz", **given: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in given.items():
        with gzip.open(folder / names.format(name), "wb", compresslevel=1) as file:
            np.save(file, array, allow_pickle=False)
    return folder


def test_episodes_of_an_epoch(tmp_path: Path) -> None:
    write(tmp_path / "data" / "SpaceInvaders" / "2" / "10", **columns())
    dataset, env = get_dataset("space-invaders-medium-v1")
    assert [len(e) for e in dataset.episodes] == [10, 1, 15, 14]
    assert [e.terminated for e in dataset.episodes] == [True, True, True, False]
    assert dataset.episodes[3].truncated and dataset.transition_count == COUNT - 1
    episode = dataset.episodes[2]
    assert episode.observations.dtype == np.uint8 and episode.observations.shape == (15, 1, 84, 84)
    assert episode.observations[:, 0, 0, 0].tolist() == list(range(11, 26))
    assert episode.rewards[:, 0].tolist() == list(range(11, 26))
    info = dataset.dataset_info
    assert (info.action_space, info.action_size) == (ActionSpace.DISCRETE, 6)  # of the game; 4 were seen
    assert env.observation_space.shape == (1, 84, 84) and env.action_space.n == 6
    assert dataset.nbytes < 64 * (84 * 84 + 20)  # 64 rows is the least; bytes stay bytes, each frame lies there once


@pytest.mark.parametrize("pre_stack", [False, True])
def test_stacks(pre_stack: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "Breakout" / "1" / "1", **columns()).parents[2]
    dataset, env = get_atari("breakout-mixed-v0", num_stack=4, pre_stack=pre_stack, path=folder)
    assert env.observation_space.shape == dataset.observation_shape == (4, 84, 84)
    batch = dataset.sample_transition_batch(64)
    newest = batch.observations[:, 3, 0, 0].astype(int)
    begins = np.array([0, 10, 11, 26])
    for row, time in zip(batch.observations[:, :, 0, 0], newest, strict=True):
        begin = begins[begins <= time].max()
        assert row.tolist() == [frame if frame >= begin else 0 for frame in range(time - 3, time + 1)]
    assert batch.observations.dtype == np.uint8
    assert dataset.sample_trajectory_batch(2, 5).observations.shape == (2, 5, 4, 84, 84)


def test_the_original_names(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "Pong" / "3" / "replay_logs"
    write(folder, "$store$_{}_ckpt.50.gz", **columns())
    sampler = PrioritizedSampler()
    dataset, _ = get_atari("pong-expert-v2", sampler=sampler)
    assert dataset.reader.sources[0].sampler is sampler
    assert dataset.step_count == COUNT


def test_a_share_of_all_epochs(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        write(tmp_path / "data" / "Pong" / "1" / str(epoch), **columns(epoch))
    dataset, _ = get_atari_transitions("pong", fraction=0.3, epochs=(1, 2, 3))
    assert dataset.step_count == 3 * 12
    for episode in dataset.episodes:
        times = episode.observations[:, 0, 0, 0].astype(int)
        assert (np.diff(times) == 1).all() and len(set(episode.observations[:, 0, 0, 1])) == 1
        assert (episode.rewards[:, 0] == times).all() and (episode.actions[:, 0] == times % 4).all()
        assert episode.terminated == (times[-1] in ENDS)
        if not episode.terminated and times[-1] != COUNT - 1:
            assert episode.final_observation[0, 0, 0] == times[-1] + 1  # cut here: the frame after it is known
    whole, _ = get_atari_transitions("pong", fraction=1.0, epochs=(2,))
    assert [len(e) for e in whole.episodes] == [10, 1, 15, 14]
    with pytest.raises(FileError, match="epoch 4 of the Atari game 'pong'"):
        get_atari_transitions("pong")
    for options in ({"fraction": 0.0}, {"fraction": 1.5}, {"epochs": ()}):
        with pytest.raises(ConfigError):
            get_atari_transitions("pong", **options)


def test_rows_can_lie_on_disk(tmp_path: Path) -> None:
    write(tmp_path / "data" / "Pong" / "1" / "1", **columns())
    get_atari("pong-mixed-v0", storage=tmp_path / "rows")
    assert ReplayBuffer.open(tmp_path / "rows").step_count == COUNT


def test_only_the_kept_frames_are_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    data = columns()
    many = {name: np.concatenate([array] * 25) for name, array in data.items()}
    write(tmp_path / "data" / "Pong" / "1" / "1", **many)
    get_atari_transitions("pong", fraction=0.02, epochs=(1,))  # imports
    tracemalloc.start()
    dataset, _ = get_atari_transitions("pong", fraction=0.02, epochs=(1,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert dataset.step_count == 20
    assert peak < 0.4 * many["observation"].nbytes


def test_missing_files_say_what_to_download_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        get_dataset("breakout-mixed-v0")
    message = str(caught.value)
    assert "gs://atari-replay-datasets/dqn/Breakout/1/replay_logs/$store$_observation_ckpt.1.gz" in message
    assert str(tmp_path / "data" / "Breakout" / "1" / "1" / "observation.gz") in message
    write(tmp_path / "data" / "Breakout" / "1" / "1", observation=columns()["observation"])
    with pytest.raises(FileError, match="action.gz"):
        get_dataset("breakout-mixed-v0")


def test_damaged_files(tmp_path: Path) -> None:
    folder, data = tmp_path / "data" / "Pong" / "1" / "1", columns()

    def refused(match: str) -> None:
        with pytest.raises(CorruptFileError, match=match):
            get_atari("pong-mixed-v0")
        shutil.rmtree(folder)
        write(folder, **data)

    write(folder, **data | {"reward": data["reward"][:-1]})
    refused("39 rewards")
    write(folder, **data | {"observation": data["observation"][:, :, 0]})
    refused("shape")
    (folder / "terminal.gz").write_bytes((folder / "terminal.gz").read_bytes()[:-20])
    refused("damaged")
    (folder / "observation.gz").write_bytes(b"not gzip")
    refused("damaged")
    with gzip.open(folder / "action.gz", "wb") as file:
        np.save(file, np.array([{}] * COUNT), allow_pickle=True)
    refused("holds object")
    whole = gzip.decompress((folder / "observation.gz").read_bytes())
    (folder / "observation.gz").write_bytes(gzip.compress(whole.replace(b"(40,", b"(9999999999999,")[:100000]))
    refused("shape")


def test_names_and_options(tmp_path: Path) -> None:
    for name in ("pong", "pong-mixed-v9", "pong-epoch-0-v0"):
        with pytest.raises(ConfigError, match="not an Atari dataset"):
            get_atari(name)
    write(tmp_path / "data" / "Pong" / "1" / "7", **columns())
    assert get_dataset("pong-epoch-7-v0", num_stack=2)[0].observation_shape == (2, 84, 84)
    from birl.dataset import BasicTransitionPicker

    with pytest.raises(ConfigError, match="num_stack"):
        get_dataset("pong-epoch-7-v0", transition_picker=BasicTransitionPicker())


def test_without_ale_the_data_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "Pong" / "1" / "1", **columns())
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.warns(UserWarning, match=r"'pong' is not available.*pip install 'birl\[atari\]'"):
        dataset, env = get_atari("pong-mixed-v0")
    assert env is None and dataset.dataset_info.action_size == 4


def test_sticky_actions_reach_the_game(tmp_path: Path) -> None:
    write(tmp_path / "data" / "Pong" / "1" / "1", **columns())
    for sticky in (True, False):
        env: gymnasium.Env[Any, Any] = get_atari("pong-mixed-v0", sticky_action=sticky)[1]
        assert env.unwrapped.ale.getFloat("repeat_action_probability") == (0.25 if sticky else 0.0)


@pytest.mark.parametrize(
    "shape",
    [
        "(2, 1099511627776, 1099511627776)",
        "(1, 68719476736)",
        "(1, 2**70)",
        "(1, 9223372036854775808)",
        "(2, -3)",
        "(True,)",
    ],
)
def test_headers_that_claim_impossible_shapes(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(100)))
    with pytest.raises(CorruptFileError, match="is damaged or not a gzipped"), atari._Rows(file) as rows:
        rows.take(rows.shape[0])
