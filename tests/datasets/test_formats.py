"""Files of other programs, written here in their public layouts without birl, and read here without birl."""

from __future__ import annotations

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from birl import datasets
from birl.datasets import (
    load_lerobot,
    load_ogbench,
    load_rl_unplugged,
    load_rlds,
    load_rllib_json,
    load_robomimic,
)
from birl.errors import BirlError, ConfigError, CorruptFileError, DataError, FileError, ForeignFileError, ShapeError
from birl.files.npz import read_npz

LENGTHS = (4, 1, 3)
RNG = np.random.default_rng(0)


def episodes(dataset: Any) -> list[tuple[Any, ...]]:
    return [
        (
            each.observations,
            each.actions,
            each.rewards[:, 0].tolist(),
            each.terminated,
            each.truncated,
            each.final_observation,
        )
        for each in dataset.episodes
    ]


def check(dataset: Any, expected: list[tuple[Any, ...]]) -> None:
    """Expected are observations, actions, rewards, whether it terminated, and the final observation."""
    assert len(expected) == dataset.size()
    for (obs, act, rew, ended, cut, final), want in zip(episodes(dataset), expected, strict=True):
        for one, other in ((obs, want[0]), (final, want[4])):
            if isinstance(other, dict):
                assert set(one) == set(other)
                for key in other:
                    np.testing.assert_array_equal(one[key], other[key])
                    assert one[key].dtype == other[key].dtype
            elif other is None:
                assert one is None
            else:
                np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(act, want[1])
        assert rew == np.asarray(want[2]).tolist()
        assert (ended, cut) == (want[3], not want[3])


# -- Robomimic ---------------------------------------------------------------------------------------------------------


def robomimic(path: Path, dones: list[list[int]], *, next_obs: bool = True, rewards: bool = True) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift"})
        for number in (10, 2, 1):  # demonstrations are in the order of their numbers, not of their names
            done = dones[(1, 2, 10).index(number)]
            demo = data.create_group(f"demo_{number}")
            steps = len(done)
            demo.attrs["num_samples"] = steps
            seen = RNG.normal(size=(steps + 1, 3)).astype(np.float32)
            pixels = RNG.integers(255, size=(steps + 1, 8, 6, 3), dtype=np.uint8)
            demo["actions"] = RNG.uniform(-1, 1, size=(steps, 2))
            demo["states"] = np.zeros((steps, 5))
            if rewards:
                demo["rewards"] = np.arange(steps) / 2
            demo["dones"] = np.array(done)
            for name, rows in (("obs", slice(0, steps)), ("next_obs", slice(1, steps + 1))):
                if next_obs or name == "obs":
                    demo.create_dataset(f"{name}/pose", data=seen[rows], compression="gzip")
                    demo[f"{name}/camera"] = pixels[rows]
        file["mask/train"] = np.array(["demo_10", "demo_1"], dtype="S8")


def demos(path: Path, names: tuple[str, ...] = ("demo_1", "demo_2", "demo_10"), keys: Any = ("pose", "camera")) -> Any:
    found = []
    with h5py.File(path, "r") as file:
        for name in names:
            demo = file["data"][name]

            def read(group: str, demo: Any = demo) -> Any:
                leaves = {key: demo[group][key][:] for key in keys}
                leaves = {key: leaf.transpose(0, 3, 1, 2) if leaf.ndim == 4 else leaf for key, leaf in leaves.items()}
                return leaves if len(leaves) > 1 else next(iter(leaves.values()))

            after = None
            if "next_obs" in demo:
                following = read("next_obs")
                after = (
                    {key: leaf[-1] for key, leaf in following.items()} if isinstance(following, dict) else following[-1]
                )
            rewards = demo["rewards"][:] if "rewards" in demo else np.zeros(len(demo["actions"]))
            found.append((read("obs"), demo["actions"][:], rewards, bool(demo["dones"][-1]), after))
    return found


def test_robomimic(tmp_path: Path) -> None:
    path = tmp_path / "low_dim.hdf5"
    robomimic(path, [[0, 0, 1], [0, 0, 0, 0], [1]])
    check(load_robomimic(path), demos(path))
    check(load_robomimic(path, observation_keys=["pose"]), demos(path, keys=("pose",)))
    check(load_robomimic(path, filter_key="train"), demos(path, ("demo_10", "demo_1")))
    assert load_robomimic(path).transition_count == 8
    with pytest.raises(ConfigError, match=r"'camera', 'pose'.*\['gripper'\]"):
        load_robomimic(path, observation_keys=["gripper"])
    with pytest.raises(ConfigError, match=r"filter_key is 'valid'; .*'train'"):
        load_robomimic(path, filter_key="valid")


def test_robomimic_without_next_observations_or_rewards(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    robomimic(path, [[0, 0, 1], [0, 0, 0, 0], [1]], next_obs=False, rewards=False)
    with pytest.warns(UserWarning, match="3 demonstrations have no rewards"):
        dataset = load_robomimic(path)
    check(dataset, demos(path))
    assert dataset.transition_count == 7  # the last step of the truncated one has no next observation


def test_robomimic_marks_each_solved_step(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    robomimic(path, [[0, 1, 1], [0, 0, 0, 0], [1]])
    check(load_robomimic(path, dones="last"), demos(path))
    with pytest.warns(UserWarning, match="1 steps before the last .* 3 demonstrations become 4 episodes"):
        dataset = load_robomimic(path, observation_keys=["pose"])
    (first, *_), whole = episodes(dataset), demos(path, keys=("pose",))[0]
    assert [len(each[1]) for each in episodes(dataset)] == [2, 1, 4, 1]
    assert [each[3] for each in episodes(dataset)] == [True, True, False, True]
    np.testing.assert_array_equal(first[5], whole[0][2])


def test_links_in_robomimic_files_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.zeros((3, 2))
    for place in ("data/demo_1/actions", "data/demo_1/obs", "data/demo_1"):
        path = tmp_path / "a.hdf5"
        robomimic(path, [[0, 0, 1], [0], [1]])
        with h5py.File(path, "r+") as file:
            del file[place]
            file[place] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
        with pytest.raises(CorruptFileError, match="is a link"):
            load_robomimic(path)


@pytest.mark.parametrize("name", ["actions", "dones", "obs/pose", "obs"])
def test_damaged_robomimic_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    for value in (None, np.zeros(7), np.array([b"x"] * 3), h5py.Empty("f4")):
        robomimic(path, [[0, 0, 1], [0], [1]])
        with h5py.File(path, "r+") as file:
            del file[f"data/demo_1/{name}"]
            if value is not None:
                file[f"data/demo_1/{name}"] = value
        with pytest.raises(BirlError):
            load_robomimic(path)


# -- OGBench -----------------------------------------------------------------------------------------------------------


def ogbench(visual: bool = False) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The published, compact and regular forms of the same trajectories."""
    raw: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "terminals")}
    for length in LENGTHS:
        seen = RNG.normal(size=(length + 1, 3)).astype(np.float32)
        raw["observations"].append(RNG.integers(255, size=(length + 1, 9, 9, 3), dtype=np.uint8) if visual else seen)
        raw["actions"].append(RNG.uniform(-1, 1, size=(length + 1, 2)).astype(np.float32))
        raw["terminals"].append(np.arange(length + 1) == length)
    published = {name: np.concatenate(values) for name, values in raw.items()}
    ends = published["terminals"]
    following = np.append(ends[1:], True)
    compact = {**published, "valids": 1.0 - ends, "terminals": np.minimum(ends.astype(np.float32) + following, 1)}
    regular = {
        "observations": published["observations"][~ends],
        "next_observations": published["observations"][np.append(False, ~ends[:-1])],
        "actions": published["actions"][~ends],
        "terminals": following[~ends].astype(np.float32),
    }
    return published, compact, regular


def trajectories(published: dict[str, Any]) -> list[tuple[Any, ...]]:
    found, begin = [], 0
    seen = published["observations"]
    seen = seen.transpose(0, 3, 1, 2) if seen.ndim == 4 else seen
    for length in LENGTHS:
        steps = slice(begin, begin + length)
        found.append((seen[steps], published["actions"][steps], np.zeros(length), False, seen[begin + length]))
        begin += length + 1
    return found


@pytest.mark.parametrize("visual", [False, True])
@pytest.mark.parametrize("form", [0, 1, 2])
def test_ogbench(form: int, visual: bool, tmp_path: Path) -> None:
    forms = ogbench(visual)
    np.savez(tmp_path / "a.npz", **forms[form])
    np.savez_compressed(tmp_path / "b.npz", **forms[form])
    expected = trajectories(forms[0])
    with pytest.warns(UserWarning, match="no rewards"):
        check(load_ogbench(tmp_path / "a.npz"), expected)
    with pytest.warns(UserWarning, match="no rewards"):
        check(load_ogbench([tmp_path / "b.npz", forms[form]]), expected + expected)


def test_a_solved_step_of_ogbench_terminates() -> None:
    _, _, regular = ogbench()
    masks = np.ones(8)
    masks[1] = 0
    dataset = load_ogbench({**regular, "masks": masks, "rewards": masks - 1})
    assert [len(each) for each in dataset.episodes] == [2, 2, 1, 3]
    assert [each.terminated for each in dataset.episodes] == [True, False, False, False]
    np.testing.assert_array_equal(dataset.episodes[0].final_observation, regular["next_observations"][1])
    assert dataset.episodes[0].rewards[:, 0].tolist() == [0, -1] or dataset.episodes[0].rewards[-1, 0] == -1
    own = load_ogbench(regular, rewards=np.arange(8.0))
    assert [each.compute_return() for each in own.episodes] == [6, 4, 18]


def test_parts_of_ogbench_files_are_refused() -> None:
    published, compact, _ = ogbench()
    cut = {name: rows[:3] for name, rows in published.items()}
    with pytest.raises(ShapeError, match="next observation is missing"), pytest.warns(UserWarning, match="no rewards"):
        load_ogbench(cut)
    with pytest.raises(ShapeError, match="but not actions"):
        load_ogbench({name: rows for name, rows in published.items() if name != "actions"})
    with pytest.raises(ShapeError, match="one row for each step"):
        load_ogbench({**compact, "valids": compact["valids"][1:]})


# -- RLDS --------------------------------------------------------------------------------------------------------------


def rlds(ends: tuple[bool, ...] = (True, False, False)) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    rows: dict[str, list[Any]] = {
        name: [] for name in ("a", "b", "action", "reward", "discount", "first", "last", "end")
    }
    expected = []
    for length, ended in zip(LENGTHS, ends, strict=True):
        a, b = RNG.normal(size=(length + 1, 3)).astype(np.float32), RNG.normal(size=(length + 1, 1)).astype(np.float32)
        action, reward = RNG.uniform(-1, 1, size=(length + 1, 2)).astype(np.float32), np.arange(length + 1) / 4
        action[-1], reward[-1] = 0, 0
        index = np.arange(length + 1)
        discount = np.where(index < length, 1.0, 0.0)
        discount[length - 1] = 1 - ended
        for name, value in {"a": a, "b": b, "action": action, "reward": reward, "discount": discount}.items():
            rows[name].append(value)
        rows["first"].append(index == 0)
        rows["last"].append(index == length)
        rows["end"].append((index == length) & ended)
        seen = {"a": a[:length], "b": b[:length]}
        expected.append((seen, action[:length], reward[:length], ended, {"a": a[-1], "b": b[-1]}))
    names = {"a": "observation/a", "b": "observation/b", "first": "is_first", "last": "is_last", "end": "is_terminal"}
    return {names.get(name, name): np.concatenate(values) for name, values in rows.items()}, expected


@pytest.mark.parametrize("without", [(), ("is_first",), ("is_last",), ("is_terminal",), ("discount",)])
def test_rlds(without: tuple[str, ...], tmp_path: Path) -> None:
    steps, expected = rlds()
    given = {name: value for name, value in steps.items() if name not in without}
    np.savez(tmp_path / "a.npz", **given, instruction=np.array(["lift"] * len(steps["action"])))
    check(load_rlds(tmp_path / "a.npz"), expected)
    check(load_rlds(given, observation_keys=["a"]), [(o["a"], *rest, f["a"]) for o, *rest, f in expected])


def test_columns_of_one_number_per_row() -> None:
    steps, expected = rlds()
    columns = {name: value[:, None] if value.ndim == 1 else value for name, value in steps.items()}
    check(load_rlds(columns), expected)
    columns["reward"][np.flatnonzero(steps["is_last"])] = 1.0
    with pytest.raises(DataError, match=r"reward\[4\] is 1 in"):
        load_rlds(columns)


def test_an_unfinished_episode_of_rlds_is_truncated() -> None:
    steps, expected = rlds()
    cut = {name: value[:-1] for name, value in steps.items()}
    *whole, (seen, action, reward, _, _) = expected
    check(load_rlds(cut), [*whole, (seen, action, reward, False, None)])


def test_rewards_in_last_rows_are_never_lost_in_silence() -> None:
    """Robots' data have an action and a reward in the last row, against RLDS's rule."""
    steps, expected = rlds((True, True, True))
    last = np.flatnonzero(steps["is_last"])
    steps["reward"][last] = 1.0
    with pytest.raises(
        DataError, match=r"reward\[4\] is 1 in the last row .* last_step='observation' .* last_step='step'"
    ):
        load_rlds(steps)
    check(load_rlds(steps, last_step="observation"), expected)
    dataset = load_rlds(steps, last_step="step")
    assert [len(each) for each in dataset.episodes] == [5, 2, 4]
    assert [each.terminated for each in dataset.episodes] == [True] * 3
    assert all(each.rewards[-1] == 1 and each.final_observation is None for each in dataset.episodes)
    assert dataset.transition_count == 11


def test_contradictions_in_rlds_are_refused() -> None:
    steps, _ = rlds()
    terminal = steps["is_terminal"].copy()
    terminal[1] = True
    with pytest.raises(DataError, match="terminal in row 1, but goes on"):
        load_rlds({**steps, "is_terminal": terminal})
    with pytest.raises(DataError, match="neither is_first nor is_last"):
        load_rlds({name: value for name, value in steps.items() if name not in ("is_first", "is_last")})
    with pytest.raises(ShapeError, match="one row for each step"):
        load_rlds({**steps, "observation/a": steps["observation/a"][1:]})
    with pytest.raises(ConfigError, match="last_step"):
        load_rlds(steps, last_step="both")


# -- RL Unplugged ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("o_t", "a_t", "r_t", "d_t", "o_tp1"),
        ("o_tm1", "a_tm1", "r_t", "d_t", "o_t"),
        ("o_tm1", "a_tm1", "r_t", "p_t", "o_t"),
    ],
)
def test_transitions_of_rl_unplugged(names: tuple[str, ...], tmp_path: Path) -> None:
    steps, expected = rlds((True, False, True))
    step = ~steps["is_last"]
    after = np.append(False, step[:-1])
    now, action, reward, discount, following = names
    columns = {
        **{f"{now}/{key}": steps[f"observation/{key}"][step] for key in "ab"},
        **{f"{following}/{key}": steps[f"observation/{key}"][after] for key in "ab"},
        action: steps["action"][step],
        reward: steps["reward"][step],
        discount: steps["discount"][step],
    }
    np.savez(tmp_path / "a.npz", **columns)
    check(load_rl_unplugged(tmp_path / "a.npz"), expected)
    assert datasets.detect_format(tmp_path / "a.npz") == "rl-unplugged"


def test_steps_of_rl_unplugged() -> None:
    steps, expected = rlds((True, False, True))
    kind = np.where(steps["is_first"], 0, np.where(steps["is_last"], 2, 1))
    columns = {name: value for name, value in steps.items() if not name.startswith("is_")}
    check(load_rl_unplugged({**columns, "step_type": kind}), expected)
    with pytest.raises(DataError, match="step_type must be 0"):
        load_rl_unplugged({**columns, "step_type": kind + 1})
    with pytest.raises(ShapeError, match="RL Unplugged's are"):
        load_rl_unplugged(columns)


# -- LeRobot -----------------------------------------------------------------------------------------------------------


def lerobot(folder: Path, version: str, **columns: Any) -> dict[str, Any]:
    """Write a dataset; version 2 has a file for each episode, version 3 has several in one."""
    count = sum(LENGTHS)
    frames = {
        "observation.state": RNG.normal(size=(count, 3)).astype(np.float32),
        "observation.environment_state": RNG.normal(size=(count, 2)).astype(np.float32),
        "action": RNG.uniform(-1, 1, size=(count, 2)).astype(np.float32),
        "timestamp": np.concatenate([np.arange(n) / 10 for n in LENGTHS]).astype(np.float32),
        "frame_index": np.concatenate([np.arange(n) for n in LENGTHS]),
        "episode_index": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        "index": np.arange(count),
        "task_index": np.zeros(count, np.int64),
        **columns,
    }
    features: dict[str, Any] = {
        name: {"dtype": str(value.dtype), "shape": list(value.shape[1:] or (1,)), "names": None}
        for name, value in frames.items()
    }
    features["observation.images.top"] = {"dtype": "video", "shape": [480, 640, 3], "names": None}
    (folder / "meta").mkdir(parents=True)
    info = {"codebase_version": version, "fps": 10, "features": features, "total_episodes": 3, "total_frames": count}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    table = pyarrow.table({name: value.tolist() if value.ndim > 1 else value for name, value in frames.items()})
    chunk = folder / "data" / "chunk-000"
    chunk.mkdir(parents=True)
    if version.startswith("v2"):
        for number in range(len(LENGTHS)):
            part = table.slice(sum(LENGTHS[:number]), LENGTHS[number])
            pyarrow.parquet.write_table(part, chunk / f"episode_{number:06d}.parquet")
    else:
        pyarrow.parquet.write_table(table, chunk / "file-000.parquet")
    return frames


def frames_of(frames: dict[str, Any], ends: list[bool]) -> list[tuple[Any, ...]]:
    found, begin = [], 0
    for length, ended in zip(LENGTHS, ends, strict=True):
        rows = slice(begin, begin + length)
        seen = {key: frames[f"observation.{key}"][rows] for key in ("state", "environment_state")}
        rewards = frames.get("next.reward", np.zeros(sum(LENGTHS)))[rows]
        found.append((seen, frames["action"][rows], rewards, ended, None))
        begin += length
    return found


REWARD = np.arange(8, dtype=np.float32) / 8
DONE = np.array([0, 0, 0, 1, 0, 0, 0, 1], bool)
WARNINGS = "ignore:.*videos or images:UserWarning"


@pytest.mark.filterwarnings(WARNINGS)
@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_lerobot(version: str, tmp_path: Path) -> None:
    frames = lerobot(tmp_path / "a", version, **{"next.reward": REWARD, "next.done": DONE})
    check(load_lerobot(tmp_path / "a"), frames_of(frames, [True, False, True]))
    dataset = load_lerobot(tmp_path / "a", observation_keys=["observation.state"])
    np.testing.assert_array_equal(dataset.episodes[2].observations, frames["observation.state"][5:])
    assert dataset.transition_count == 7
    assert datasets.detect_format(tmp_path / "a") == "lerobot"


def test_lerobot_without_ends_and_rewards(tmp_path: Path) -> None:
    frames = lerobot(tmp_path / "a", "v3.0")
    with pytest.warns(UserWarning, match="videos or images|no rewards") as caught:
        check(load_lerobot(tmp_path / "a"), frames_of(frames, [True] * 3))
    assert ["observation.images.top" in str(each.message) for each in caught] == [True, False]
    assert "no rewards" in str(caught[1].message)
    with pytest.warns(UserWarning, match="videos or images|no rewards"):
        dataset = load_lerobot(tmp_path / "a", unmarked="truncated")
    check(dataset, frames_of(frames, [False] * 3))


@pytest.mark.filterwarnings(WARNINGS)
def test_features_of_one_number_in_lerobot(tmp_path: Path) -> None:
    force = RNG.normal(size=8).astype(np.float32)
    lerobot(tmp_path / "a", "v3.0", **{"next.reward": REWARD, "next.done": DONE, "observation.force": force})
    dataset = load_lerobot(tmp_path / "a", observation_keys=["force"])
    np.testing.assert_array_equal(dataset.episodes[2].observations, force[5:, None])


@pytest.mark.filterwarnings(WARNINGS)
def test_truncations_of_lerobot(tmp_path: Path) -> None:
    truncated = np.array([0, 0, 0, 0, 0, 0, 0, 1], bool)
    frames = lerobot(tmp_path / "a", "v3.0", **{"next.reward": REWARD, "next.done": DONE, "next.truncated": truncated})
    check(load_lerobot(tmp_path / "a"), frames_of(frames, [True, False, False]))


@pytest.mark.filterwarnings(WARNINGS)
def test_frames_of_lerobot_are_sorted(tmp_path: Path) -> None:
    frames = lerobot(tmp_path / "a", "v3.0", **{"next.reward": REWARD, "next.done": DONE})
    file = tmp_path / "a" / "data" / "chunk-000" / "file-000.parquet"
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.take(RNG.permutation(8)), file)
    check(load_lerobot(tmp_path / "a"), frames_of(frames, [True, False, True]))
    pyarrow.parquet.write_table(table, file.with_name("file-001.parquet"))
    with pytest.raises(DataError, match="is there twice"):
        load_lerobot(tmp_path / "a")


@pytest.mark.filterwarnings(WARNINGS)
def test_damaged_datasets_of_lerobot(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    lerobot(folder, "v3.0", **{"next.reward": REWARD, "next.done": DONE})
    info, file = folder / "meta" / "info.json", folder / "data" / "chunk-000" / "file-000.parquet"
    text, data = info.read_text(), file.read_bytes()
    for wrong in (
        "[]",
        "{",
        text.replace("v3.0", "v1.6"),
        text.replace('"action"', '"act"'),
        '{"codebase_version": "v3.0"}',
    ):
        info.write_text(wrong)
        with pytest.raises(FileError):
            load_lerobot(folder)
    info.write_text(text)
    for damaged in (data[:-10], b"PAR1", b""):
        file.write_bytes(damaged)
        with pytest.raises(FileError):
            load_lerobot(folder)
    (tmp_path / "outside.parquet").write_bytes(data)
    file.unlink()
    file.symlink_to(tmp_path / "outside.parquet")
    with pytest.raises(ForeignFileError, match="link out of the folder"):
        load_lerobot(folder)
    with pytest.raises(FileError, match="has no meta/info.json"):
        load_lerobot(tmp_path)
    with pytest.raises(ConfigError, match="choose among them"):
        load_lerobot(folder, observation_keys=["effort"])


# -- RLlib -------------------------------------------------------------------------------------------------------------


def rllib(path: Path, ends: tuple[bool, ...] = (True, False, True), **changes: Any) -> list[tuple[Any, ...]]:
    """Episodes across lines: each line has two rows, of one or two episodes."""
    steps, expected = rlds(ends)
    step, after = ~steps["is_last"], np.append(False, ~steps["is_last"][:-1])
    eps = np.repeat([7, 3, 11], LENGTHS)
    last = np.append(np.diff(eps) != 0, True)
    ended = last & np.repeat(ends, LENGTHS)
    columns = {
        "obs": steps["observation/a"][step],
        "new_obs": steps["observation/a"][after],
        "actions": steps["action"][step],
        "rewards": steps["reward"][step],
        "terminateds": ended,
        "truncateds": last & ~ended,
        "eps_id": eps,
        "t": np.concatenate([np.arange(n) for n in LENGTHS]),
        "infos": np.zeros(8),
        **changes,
    }
    columns = {name: value for name, value in columns.items() if value is not None}
    with open(path, "w") as file:
        for begin in range(0, 8, 2):
            line = {name: value[begin : begin + 2].tolist() for name, value in columns.items()}
            file.write(json.dumps({"type": "SampleBatch", **line}) + "\n\n")
    return [(o["a"], *rest, f["a"]) for o, *rest, f in expected]


def test_rllib(tmp_path: Path) -> None:
    expected = rllib(tmp_path / "output-1.json")
    dataset = load_rllib_json(tmp_path / "output-1.json")
    check(dataset, expected)
    assert dataset.episodes[0].observations.dtype == np.float32
    check(load_rllib_json(tmp_path), expected)
    assert datasets.detect_format(tmp_path / "output-1.json") == "rllib"


def test_older_columns_of_rllib(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    last = np.array([0, 0, 0, 1, 1, 0, 0, 1], bool)
    expected = rllib(file, (True, True, True), dones=last, terminateds=None, truncateds=None)
    check(load_rllib_json(file), expected)
    text = [f"episode {number}" for number in (7, 7, 7, 7, 3, 11, 11, 11)]
    expected = rllib(file, (True, True, True), eps_id=np.array(text), t=None, new_obs=None)
    check(load_rllib_json(file), [(*each[:4], None) for each in expected])
    rllib(file, eps_id=None, t=None)
    assert [len(each) for each in load_rllib_json(file).episodes] == [2, 2, 1, 1, 2]  # lines are not joined
    rllib(file, t=np.array([0, 1, 5, 6, 0, 0, 1, 2]))
    assert [len(each) for each in load_rllib_json(file).episodes] == [2, 2, 1, 3]


def test_interleaved_workers_of_rllib(tmp_path: Path) -> None:
    expected = rllib(tmp_path / "a.json")
    lines = [line for line in (tmp_path / "a.json").read_text().splitlines() if line]
    (tmp_path / "b.json").write_text("\n".join([lines[0], lines[2], lines[1], lines[3]]))
    dataset = load_rllib_json(tmp_path / "b.json")
    check(dataset, [expected[0], expected[1], expected[2]])


def test_several_policies_of_rllib(tmp_path: Path) -> None:
    expected = rllib(tmp_path / "a.json")
    lines = [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines() if line]
    for names in (["default_policy"], ["one", "two"]):
        batches = [
            {"type": "MultiAgentBatch", "count": 2, "policy_batches": dict.fromkeys(names, line)} for line in lines
        ]
        (tmp_path / "b.json").write_text("\n".join(map(json.dumps, batches)))
        if len(names) == 1:
            check(load_rllib_json(tmp_path / "b.json"), expected)
    with pytest.raises(ConfigError, match=r"'one', 'two'.*choose one"):
        load_rllib_json(tmp_path / "b.json")
    check(load_rllib_json(tmp_path / "b.json", policy="two"), expected)


@pytest.mark.parametrize(
    ("line", "error", "match"),
    [
        (
            '{"type": "SampleBatch", "obs": "b\'BCJNGGhAgAAA\'", "actions": [0], "rewards": [0]}',
            CorruptFileError,
            "never loaded",
        ),
        ('{"type": "SampleBatch", "obs": [[1]], "actions": [0]}', ShapeError, "but not rewards"),
        ('{"type": "SampleBatch", "obs": [[1], [1, 2]], "actions": [0, 0], "rewards": [0, 0]}', ShapeError, "lengths"),
        (
            '{"type": "SampleBatch", "obs": [["a"]], "actions": [0], "rewards": [0], "dones": [1]}',
            ShapeError,
            "numbers",
        ),
        (
            '{"type": "SampleBatch", "obs": [[1]], "actions": [0], "rewards": [0, 1], "dones": [1]}',
            ShapeError,
            "one row",
        ),
        ('{"type": "SampleBatch", "obs": [[1]], "actions": [0], "rewards": [0]}', DataError, "neither terminateds"),
        ('{"obs": [[1]]}', ForeignFileError, "has no 'type'"),
        ("[1]", ForeignFileError, "has no 'type'"),
        ("{", CorruptFileError, "JSON"),
        ('{"type": "MultiAgentBatch", "policy_batches": [1]}', CorruptFileError, "policy_batches"),
        ("", DataError, "no batch"),
    ],
)
def test_damaged_files_of_rllib(line: str, error: type[BirlError], match: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(line)
    with pytest.raises(error, match=match):
        load_rllib_json(tmp_path / "a.json")


@pytest.mark.parametrize("shape", [(), (3,), (12, 2), (11, 1, 1), (0,)])
@pytest.mark.parametrize("load", ["rlds", "rl-unplugged", "steps", "ogbench"])
@pytest.mark.filterwarnings("ignore:.*no rewards:UserWarning")
def test_arrays_of_other_shapes_are_typed_errors(load: str, shape: tuple[int, ...]) -> None:
    steps, _ = rlds()
    kind = np.where(steps["is_first"], 0, np.where(steps["is_last"], 2, 1))
    seen = steps.pop("observation/b")
    transitions = {"o_t": seen, "a_t": steps["action"], "r_t": steps["reward"], "d_t": steps["discount"], "o_tp1": seen}
    given = {
        "rlds": (load_rlds, {name: value for name, value in steps.items() if name != "is_terminal"}),
        "rl-unplugged": (load_rl_unplugged, transitions),
        "steps": (load_rl_unplugged, {**{key: v for key, v in steps.items() if key[:2] != "is"}, "step_type": kind}),
        "ogbench": (load_ogbench, {**ogbench()[1], "masks": np.ones(11), "rewards": np.ones(11)}),
    }
    function, arrays = given[load]
    for name in arrays:
        try:
            function({**arrays, name: np.ones(shape)})
        except BirlError:
            continue
        assert shape == (11, 1, 1) or name not in ("reward", "rewards", "discount", "is_first", "step_type", "masks")


# -- hostile .npz files ------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit",))


def test_npz_files_never_run_code(tmp_path: Path) -> None:
    published, _, _ = ogbench()
    np.savez(tmp_path / "a.npz", **published, evil=np.array([Evil()], dtype=object))
    with pytest.raises(CorruptFileError, match="pickled and could run code"):
        load_ogbench(tmp_path / "a.npz")


def test_npz_files_take_no_more_than_they_hold(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3)}"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("observations.npy", header + text.ljust(117) + b"\n" + bytes(24))
    with pytest.raises(CorruptFileError, match="has the shape"):
        read_npz(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", observations=np.zeros(30_000_000))
    with pytest.raises(CorruptFileError, match="of memory"):
        read_npz(tmp_path / "b.npz")


def test_damaged_npz_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ogbench()[0])
    data = (tmp_path / "a.npz").read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / "b.npz").write_bytes(data[:length])
        with pytest.raises(FileError):
            read_npz(tmp_path / "b.npz")
    for position in range(0, len(data), 31):
        flipped = bytearray(data)
        flipped[position] ^= 255
        (tmp_path / "b.npz").write_bytes(flipped)
        with contextlib.suppress(FileError):
            read_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", observations=np.zeros(3, [("a", "f4")]))
    with pytest.raises(CorruptFileError, match="not numbers"):
        read_npz(tmp_path / "c.npz")
    big = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(3, dtype=">i4"), "c": np.array(["x"])}
    np.savez(tmp_path / "d.npz", **big)
    read = read_npz(tmp_path / "d.npz")
    assert set(read) == {"a", "b"}
    np.testing.assert_array_equal(read["a"], big["a"])
    assert read["b"].tolist() == [0, 1, 2]
    assert read["b"].dtype.isnative


# -- detection ---------------------------------------------------------------------------------------------------------


def test_formats_are_detected(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.hdf5", [[1], [1], [1]])
    published, compact, regular = ogbench()
    for name, arrays in {"raw": published, "compact": compact, "regular": regular, "rlds": rlds()[0]}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "rows.jsonl").write_text('{"reward": 1}')
    found = {path.name: datasets.detect_format(path) for path in sorted(tmp_path.iterdir())}
    assert found == {
        "a.hdf5": "robomimic",
        "compact.npz": "ogbench",
        "raw.npz": "ogbench",
        "regular.npz": None,  # terminals of other programs may be terminations
        "rlds.npz": "rlds",
        "rows.jsonl": None,
        "text": None,
    }
