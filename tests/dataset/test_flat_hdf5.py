"""HDF5 files with the steps of many episodes in one array for each column."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from birl.dataset import Episode, FIFOBuffer, InfiniteBuffer, MDPDataset, ReplayBuffer
from birl.dataset.hdf5 import dump, load
from birl.errors import BirlError, CorruptFileError, ShapeError
from birl.types import ActionSpace
from tests.dataset.test_hdf5 import TREES, guarded, make, same


def contents(buffer: ReplayBuffer, **options: Any) -> bytes:
    file = io.BytesIO()
    buffer.dump(file, **options)
    return file.getvalue()


def equal(one: Episode, other: Episode) -> None:
    for name in ("observations", "actions", "rewards", "final_observation", "extra"):
        same(getattr(one, name), getattr(other, name))
    assert (one.terminated, one.truncated) == (other.terminated, other.truncated)


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("limit", [None, 13])
def test_both_layouts_give_the_same_episodes(kind: str, limit: int | None) -> None:
    buffer = make(kind, limit)
    flat = contents(buffer, layout="flat")
    single, space, size = load(io.BytesIO(contents(buffer, layout="episodes")))
    found, *spec = load(io.BytesIO(flat))
    assert spec == [space, size]
    for one, other, source in zip(single, found, buffer.episodes, strict=True):
        equal(one, other)
        equal(source, other)
    file = io.BytesIO()
    dump(list(buffer.episodes), file, buffer.dataset_info, layout="flat")  # a list, not the episodes of a storage
    for one, other in zip(single, load(file)[0], strict=True):
        equal(one, other)


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("limit", [None, 13, 7])
def test_both_layouts_give_the_same_storage(kind: str, limit: int | None) -> None:
    buffer = make(kind)
    storages = []
    for layout in ("episodes", "flat"):
        into = InfiniteBuffer() if limit is None else FIFOBuffer(limit)
        loaded = ReplayBuffer.load(io.BytesIO(contents(buffer, layout=layout)), into)
        assert loaded.dataset_info == buffer.dataset_info
        storages.append(loaded.storage)
    one, other = storages
    assert (one.transition_count, one.episode_count) == (other.transition_count, other.episode_count)
    assert list(one.columns) == list(other.columns)
    for name in ("flags", *one.columns):
        found = []
        for storage in storages:
            array = storage.flags if name == "flags" else storage.columns[name]
            found.append(array[storage.rows(*storage.live())])
        np.testing.assert_array_equal(*found)
    if limit is None:
        assert one.capacity == other.capacity


@pytest.mark.parametrize("storage", ["cpu", "folder"])
def test_flat_files_of_other_storages(storage: str, tmp_path: Path) -> None:
    place = storage if storage == "cpu" else tmp_path / storage
    buffer = ReplayBuffer(InfiniteBuffer(), episodes=list(make().episodes)[:4], action_size=3, storage=place)
    file = io.BytesIO(contents(buffer, layout="flat"))
    for one, other in zip(buffer.episodes, load(file)[0], strict=True):
        equal(one, other)


def load_v1(data: bytes) -> list[tuple[Any, ...]]:
    """What d3rlpy's function of this name makes of a file."""
    with h5py.File(io.BytesIO(data), "r") as h5:
        columns = [h5[name][()] for name in ("observations", "actions", "rewards", "terminals", "episode_terminals")]
    episodes: list[tuple[Any, ...]] = []
    begin = 0
    for step in range(len(columns[0])):
        if columns[3][step] or columns[4][step]:
            arrays = [column[begin : step + 1] for column in columns[:3]]
            episodes.append((*arrays, bool(columns[3][step])))
            begin = step + 1
    assert begin == len(columns[0])
    return episodes


def test_d3rlpy_reads_flat_files_of_arrays() -> None:
    buffer = make()
    for episode, (observations, actions, rewards, ended) in zip(
        buffer.episodes, load_v1(contents(buffer, layout="flat")), strict=True
    ):
        same((episode.observations, episode.actions, episode.rewards), (observations, actions, rewards))
        assert ended == episode.terminated


def is_flat(data: bytes) -> bool:
    with h5py.File(io.BytesIO(data), "r") as h5:
        return "num_episodes" not in h5


def test_many_episodes_are_flat_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make()
    assert not is_flat(contents(buffer))
    monkeypatch.setattr("birl.dataset.hdf5.MAX_SINGLE", 4)
    assert is_flat(contents(buffer))
    assert not is_flat(contents(buffer, layout="episodes"))
    monkeypatch.setattr("birl.dataset.hdf5.MAX_SINGLE", 5)
    assert not is_flat(contents(buffer))


def test_a_million_short_episodes_fit_into_100_megabytes() -> None:
    count = 100_000
    rng = np.random.default_rng(0)
    arrays = (rng.random((count, 8), np.float32), np.arange(count) % 3, rng.random(count), np.ones(count))
    data = contents(MDPDataset(*arrays, np.zeros(count)))
    assert len(data) < 10_000_000
    loaded = ReplayBuffer.load(io.BytesIO(data))
    assert loaded.size() == loaded.transition_count == count
    np.testing.assert_array_equal(loaded.episodes[count - 1].observations, arrays[0][-1:])


def test_blocks_do_not_change_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make("dict")
    whole = contents(buffer, layout="flat")
    for size in (1, 100, 300):
        monkeypatch.setattr("birl.dataset.hdf5._BLOCK", size)
        for one, other in zip(
            load(io.BytesIO(contents(buffer, layout="flat")))[0], load(io.BytesIO(whole))[0], strict=True
        ):
            equal(one, other)


EPISODE = Episode(np.zeros((3, 2), np.float32), np.zeros((3, 1)), np.zeros((3, 1)), True, extra={"p": np.ones(3)})
OTHERS = {
    "dtype": replace(EPISODE, observations=np.zeros((3, 2))),
    "shape": replace(EPISODE, observations=np.zeros((3, 4), np.float32)),
    "action": replace(EPISODE, actions=np.zeros((3, 2))),
    "reward": replace(EPISODE, rewards=np.zeros((3, 1), np.float32)),
    "without extra": replace(EPISODE, extra=None),
    "extra": replace(EPISODE, extra={"p": np.ones((3, 2))}),
    "final": replace(EPISODE, final_observation=np.zeros(2)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_episodes_of_different_forms_stay_single(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [EPISODE, OTHERS[other]]
    with pytest.raises(ShapeError, match="leave layout out"):
        dump(episodes, io.BytesIO(), layout="flat")
    monkeypatch.setattr("birl.dataset.hdf5.MAX_SINGLE", 1)
    file = io.BytesIO()
    dump(episodes, file)
    for one, loaded in zip(episodes, load(file)[0], strict=True):
        equal(replace(one, truncated=not one.terminated), loaded)


def test_episodes_of_ones_own_class(tmp_path: Path) -> None:
    @dataclass
    class Own(Episode):
        pass

    make().dump(tmp_path / "a.h5", layout="flat")
    assert {type(each) for each in load(tmp_path / "a.h5", Own)[0]} == {Own}
    assert ReplayBuffer.load(tmp_path / "a.h5", InfiniteBuffer(), Own).size() == make().size()


def test_the_space_of_a_file_can_be_replaced() -> None:
    discrete = contents(make(), layout="flat")
    assert ReplayBuffer.load(io.BytesIO(discrete), action_size=7).dataset_info.action_size == 7
    arrays = (np.zeros((4, 1)), np.array([[0.0], [1], [2], [0]]), np.zeros(4), np.ones(4), np.zeros(4))
    file = contents(MDPDataset(*arrays, action_space=ActionSpace.CONTINUOUS), layout="flat")
    info = ReplayBuffer.load(io.BytesIO(file), action_space=ActionSpace.DISCRETE).dataset_info
    assert (info.action_space, info.action_size) == (ActionSpace.DISCRETE, 3)


def test_categories_of_final_observations_count() -> None:
    episodes = [Episode(np.array([0, 1, 4]), np.zeros((2, 1), int), np.zeros(2), False, truncated=True)] * 2
    file = io.BytesIO()
    dump(episodes, file, layout="flat")
    assert ReplayBuffer.load(file).dataset_info == ReplayBuffer(InfiniteBuffer(), episodes=episodes).dataset_info


def edited(edit: Any) -> io.BytesIO:
    """A flat file with other contents and a digest that agrees."""
    file = io.BytesIO(contents(make(), layout="flat").partition(b"birl-sha256:")[0])
    with h5py.File(file, "r+") as h5:
        edit(h5)
    return guarded(file)


def put(name: str, value: Any) -> Any:
    def edit(h5: Any) -> None:
        del h5[name]
        if value is not None:
            h5[name] = value

    return edit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observations", np.zeros((5, 2))),
        ("observations", None),
        ("rewards", np.zeros(())),
        ("episode_terminals", np.zeros(3, bool)),
        ("episode_flags", np.zeros(3, np.uint8)),
        ("episode_flags", np.full(5, 255, np.uint8)),
        ("episode_flags", np.ones(5)),
        ("final_observations", np.zeros((1, 2))),
        ("final_observations", None),
        ("extra_0", np.zeros((2, 2))),
        ("extra_0", None),
        ("actions", [b"a"] * 18),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, value: Any) -> None:
    with pytest.raises(CorruptFileError, match=r"copy|store the array|damaged"):
        load(edited(put(name, value)))


def test_final_observations_of_another_shape_are_refused() -> None:
    with pytest.raises(BirlError):
        ReplayBuffer.load(edited(put("final_observations", np.zeros((2, 7)))))


def test_notes_without_their_digest_are_refused() -> None:
    data = contents(make(), layout="flat").partition(b"birl-sha256:")[0]
    with pytest.raises(CorruptFileError, match="digest is missing"):
        load(io.BytesIO(data))
    with h5py.File(io.BytesIO(data), "r") as h5:
        assert json.loads(h5["birl"][()])["version"] == 1
