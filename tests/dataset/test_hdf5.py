"""HDF5 files: round trips, d3rlpy's layouts, and damaged files."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.dataset import Episode, FIFOBuffer, InfiniteBuffer, ReplayBuffer
from birl.dataset.hdf5 import dump, load
from birl.errors import ActionError, ConfigError, CorruptFileError, FileError, ForeignFileError, ShapeError, WriteError
from birl.types import ActionSpace
from tests.tiers import slow_but

TREES: dict[str, Any] = {
    "array": lambda n: np.arange(n * 2.0).reshape(n, 2),
    "pixels": lambda n: np.arange(n * 4).reshape(n, 1, 2, 2).astype(np.uint8),
    "tuple": lambda n: (np.arange(n * 2.0).reshape(n, 2), np.arange(n * 3).reshape(n, 3).astype(np.uint8)),
    "dict": lambda n: {"a": np.arange(n * 2.0).reshape(n, 2), "b": (np.ones((n, 1)), np.zeros((n, 2), np.float16))},
}


def make(kind: str = "array", limit: int | None = None) -> ReplayBuffer:
    """Terminated, truncated with and without final observation, and running episodes; extra columns in the last."""
    episodes = [
        Episode(TREES[kind](4 + known), np.arange(4) % 2, np.arange(4) / 3, terminated, truncated=not terminated)
        for terminated, known in ((True, 0), (True, 1), (False, 0), (False, 1))
    ]
    buffer = ReplayBuffer(InfiniteBuffer() if limit is None else FIFOBuffer(limit), episodes=episodes, action_size=3)
    observation = episodes[0].observations
    buffer.append(first(observation), 1, 5.0, extra={"state.actor": np.ones(2, np.float32)})
    buffer.append(first(observation), 0, 6.0, extra={"state.actor": np.zeros(2, np.float32)})
    return buffer


def first(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: first(value) for key, value in tree.items()}
    return tuple(map(first, tree)) if isinstance(tree, tuple) else tree[0]


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in flat(value)]
    return [leaf for value in tree for leaf in flat(value)] if isinstance(tree, tuple) else [tree]


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert not isinstance(one, dict) or list(one) == list(other)
    for a, b in zip(flat(one), flat(other), strict=True):
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def content(buffer: ReplayBuffer) -> bytes:
    file = io.BytesIO()
    buffer.dump(file)
    return file.getvalue()


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("limit", [None, 13])
def test_nothing_is_lost(kind: str, limit: int | None, tmp_path: Path) -> None:
    buffer = make(kind, limit)
    with open(tmp_path / "a.h5", "w+b") as file:
        buffer.dump(file)
    buffer.dump(tmp_path / "b.h5")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.h5", "b.h5"]
    with open(tmp_path / "a.h5", "rb") as file:
        one = ReplayBuffer.load(file, InfiniteBuffer())
    for loaded in (
        one,
        ReplayBuffer.load(tmp_path / "b.h5"),
        ReplayBuffer.load(str(tmp_path / "b.h5"), FIFOBuffer(99)),
    ):
        assert loaded.dataset_info == buffer.dataset_info
        assert loaded.size() == buffer.size()
        for a, b in zip(buffer.episodes, loaded.episodes, strict=True):
            for name in ("observations", "actions", "rewards", "final_observation", "extra"):
                same(getattr(a, name), getattr(b, name))
            assert a.terminated == b.terminated
            assert b.truncated == (not a.terminated)
        assert loaded.transition_count == buffer.transition_count


def test_the_layout_is_the_one_d3rlpy_reads() -> None:
    with h5py.File(io.BytesIO(content(make("tuple"))), "r") as file:
        assert file["columns"][()].tolist() == [b"observations", b"actions", b"rewards", b"terminated"]
        assert file["columns"].dtype == object
        assert (file["num_episodes"][()], file["num_episodes"].dtype) == (5, np.int64)
        assert (file["version"][()], file["version"].dtype) == (b"2.1", object)
        assert file["observations_3_1"].dtype == np.uint8
        assert file["actions_0"].shape == file["rewards_0"].shape == (4, 1)
        assert file["terminated_0"].shape == ()
        assert file["terminated_0"].dtype == np.bool_
        assert "final_observation_3_1" in file
        assert "final_observation_2_0" not in file


def written(**arrays: Any) -> io.BytesIO:
    file = io.BytesIO()
    with h5py.File(file, "w") as h5:
        for name, value in arrays.items():
            h5.create_dataset(name, data=value)
    return file


@pytest.mark.parametrize("version", [b"2.0", b"2.1"])
@pytest.mark.parametrize("is_tuple", [False, True])
def test_files_of_d3rlpy_2(version: bytes, is_tuple: bool) -> None:
    arrays: dict[str, Any] = {"version": version, "num_episodes": 2, "columns": [b"observations", b"actions"]}
    for index, terminated in enumerate((True, False)):
        observation = np.full((3, 2), index, np.float32)
        leaves = {f"observations_{index}_0": observation, f"observations_{index}_1": observation[:, :1]}
        arrays |= leaves if is_tuple else {f"observations_{index}": observation}
        arrays |= {f"actions_{index}": np.array([[0], [1], [2]]), f"rewards_{index}": np.arange(3.0)[:, None]}
        arrays[f"terminated_{index}"] = terminated
    buffer = ReplayBuffer.load(written(**arrays), InfiniteBuffer())
    assert buffer.observation_shape == (((2,), (1,)) if is_tuple else (2,))
    assert [(e.terminated, e.truncated) for e in buffer.episodes] == [(True, False), (False, True)]
    assert buffer.dataset_info.action_size == 3
    assert buffer.transition_count == 5


def test_files_of_d3rlpy_1() -> None:
    arrays = {
        "observations": np.arange(14.0).reshape(7, 2),
        "actions": np.array([0, 1, 1, 0, 0, 1, 0], np.float32),
        "rewards": np.arange(7.0),
        "terminals": np.array([0, 1, 0, 0, 1, 0, 0.0]),
    }
    with pytest.raises(ActionError, match="action_space="):
        ReplayBuffer.load(written(**arrays))
    plain = ReplayBuffer.load(written(**arrays), InfiniteBuffer(), action_space=ActionSpace.DISCRETE)
    assert [e.size() for e in plain.episodes] == [2, 3, 2]
    ends = np.array([0, 1, 0, 1, 1, 0, 1.0])
    buffer = ReplayBuffer.load(written(**arrays, episode_terminals=ends, discrete_action=True, version="1.0"))
    assert [(e.size(), e.terminated) for e in buffer.episodes] == [(2, True), (2, False), (1, True), (2, False)]
    assert buffer.dataset_info.action_space is ActionSpace.DISCRETE
    np.testing.assert_array_equal(buffer.episodes[1].observations, arrays["observations"][2:4])


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for file in (io.BytesIO(b""), io.BytesIO(b"PK\x03\x04 something"), tmp_path / "text", written(unrelated=[1, 2])):
        with pytest.raises(ForeignFileError, match="give"):
            ReplayBuffer.load(file)
    with pytest.raises(ForeignFileError, match="version '3.0'"):
        ReplayBuffer.load(written(num_episodes=1, version=b"3.0"))
    with pytest.raises(FileError, match="check the path"):
        ReplayBuffer.load(tmp_path / "missing.h5")


CONTENT = content(make("tuple"))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, len(CONTENT) - 1))
def test_truncated_files(length: int) -> None:
    with pytest.raises((CorruptFileError, ForeignFileError)):
        load(io.BytesIO(CONTENT[:length]))


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, len(CONTENT) - 1), bit=st.integers(0, 7))
def test_flipped_bits_are_found(position: int, bit: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[position] ^= 1 << bit
    with pytest.raises((CorruptFileError, ForeignFileError)):
        load(io.BytesIO(bytes(damaged)))


def whole(**arrays: Any) -> io.BytesIO:
    """One episode of d3rlpy's layout; ``None`` leaves an array out."""
    one = {"observations_0": np.zeros((3, 1), np.float32), "actions_0": [[0]] * 3, "rewards_0": [[0.0]] * 3}
    given = {"num_episodes": 1, "version": b"2.1", "terminated_0": True, **one, **arrays}
    return written(**{name: value for name, value in given.items() if value is not None})


def edited(edit: Any, **arrays: Any) -> io.BytesIO:
    file = whole(**arrays)
    with h5py.File(file, "r+") as h5:
        edit(h5)
    file.seek(0)
    return file


def guarded(file: io.BytesIO) -> io.BytesIO:
    """With the digest of birl's own files."""
    data = file.getvalue()
    return io.BytesIO(data + b"birl-sha256:" + hashlib.sha256(data).digest())


def refused(file: io.BytesIO, match: str = "of memory, but a file of .* BIRL_FILE_MEMORY") -> None:
    """Loading is refused, and allocates little."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFileError, match=match):
            load(file)
        assert tracemalloc.get_traced_memory()[1] < 2**27 + 10 * len(file.getvalue())
    finally:
        tracemalloc.stop()


def test_a_file_cannot_claim_more_than_it_holds() -> None:
    packed = {"chunks": (1024, 8), "compression": "gzip"}
    shape = {"shape": (1 << 40, 8), "dtype": "f8", **packed}
    refused(edited(lambda h5: h5.create_dataset("observations_0", **shape), observations_0=None))


def test_chunks_that_are_not_there_take_memory_too() -> None:
    def partly(h5: Any) -> None:
        h5.create_dataset("observations_0", (1 << 30,), "u1", chunks=(1 << 22,))[: 1 << 22] = 1

    refused(edited(partly, observations_0=None))

    def huge_chunks(h5: Any) -> None:
        h5.create_dataset("observations_0", (3, 1), "u1", chunks=(1 << 20, 1 << 11), maxshape=(None, None))

    refused(edited(huge_chunks, observations_0=None))


def test_an_array_with_many_names_counts_many_times() -> None:
    def many(h5: Any) -> None:
        del h5["num_episodes"]
        h5["num_episodes"] = 400
        for index in range(1, 400):
            for name in ("observations", "actions", "rewards", "terminated"):
                h5[f"{name}_{index}"] = h5[f"{name}_0"]

    refused(edited(many, observations_0=np.zeros((1 << 16, 8), np.uint8)))


def test_zeros_that_swell_are_not_read() -> None:
    zeros = {"data": np.zeros((1 << 27, 1), np.uint8), "compression": 9, "chunks": (1 << 20, 1)}
    file = edited(lambda h5: h5.create_dataset("observations_0", **zeros), observations_0=None)
    assert len(file.getvalue()) < 2**18
    refused(file)


def texts(name: str, long: str) -> tuple[bytearray, int, int]:
    """A file with a second, long text, and where the length of ``name`` and its heap stand."""
    file = edited(lambda h5: [h5.__setitem__(*each) for each in (("long", long), (name, "2.1"))], **{name: None})
    with h5py.File(file, "r") as h5:
        data, place = bytearray(file.getvalue()), h5[name].id.get_offset()
    length, heap = struct.unpack_from("<IQ", data, place)
    assert (length, data[heap : heap + 4]) == (3, b"GCOL")
    return data, place, heap


@pytest.mark.parametrize("name", ["version", "birl"])
def test_a_text_cannot_be_longer_than_texts_may_be(name: str) -> None:
    """The HDF5 library allocates the length that a text claims before it reads the text."""
    data, place, _ = texts(name, "x")
    struct.pack_into("<I", data, place, 2**30)
    refused(guarded(io.BytesIO(data)), "is no text of 1073741824 bytes")
    struct.pack_into("<I", data, place, 2**20)
    refused(guarded(io.BytesIO(data)), "estore it from a copy")


def test_a_reference_to_a_text_is_as_long_as_it_is() -> None:
    data, place, _ = texts("version", "x")
    size = data.find(struct.pack("<QQ", place, 16))  # where the layout says where the text's reference is
    struct.pack_into("<Q", data, size + 8, 2**40)
    refused(io.BytesIO(data), "is no text of 3 bytes|claims")


def test_a_heap_of_texts_that_goes_in_circles_is_left() -> None:
    """The HDF5 library goes round and round in it."""
    data, _, heap = texts("version", "x" * 100)
    number, size = struct.unpack_from("<H6xQ", data, heap + 16)
    assert (number, size) == (1, 100)
    for wrong in (0, 1, 2**20, 2**63 - 1, 2**64 - 16, 2**64 - 1):
        struct.pack_into("<Q", data, heap + 24, wrong)
        refused(io.BytesIO(data), "is not there|damaged")
    struct.pack_into("<Q", data, heap + 24, 104)
    assert load(io.BytesIO(data))[0]


@pytest.mark.parametrize("text", [b"2.1", "2.1", np.bytes_("2.1"), np.array(b"2.1", "S7")])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_texts_of_all_kinds(text: Any, libver: str) -> None:
    file = io.BytesIO()
    with h5py.File(file, "w", libver=libver) as h5, h5py.File(whole(version=None)) as other:
        for index in range(300):
            h5[f"{index}"] = "." * index
        for name in other:
            h5[name] = other[name][()]
        h5["version"] = text
    assert load(file)[0]
    with h5py.File(file, "r+") as h5:
        del h5["version"]
        h5["version"] = "3 \N{SNOWMAN}"
    with pytest.raises(ForeignFileError, match="'3 \N{SNOWMAN}'"):
        load(file)


@pytest.mark.parametrize("also", slow_but([{}], [{}, {"shuffle": True}, {"fletcher32": True}]))
def test_a_chunk_that_holds_more_than_its_shape_is_not_read(also: dict[str, bool]) -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 24)) for _ in range(16)) + packer.flush()  # 256 MiB

    def put(h5: Any) -> None:
        made = h5.create_dataset("observations_0", (1000, 1), "u1", chunks=(1000, 1), compression=9, **also)
        made.id.write_direct_chunk((0, 0), bomb)

    refused(edited(put, observations_0=None), "holds more than its shape|damaged")


def test_many_chunks_of_which_none_is_stored_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HDF5 library would allocate about 1 kB for each."""
    monkeypatch.setattr("birl.files.reading._ALWAYS_ALLOWED", 2**20)
    options: Any = {"shape": (40_000, 1), "dtype": "f4", "chunks": (4, 1)}
    refused(
        edited(lambda h5: h5.create_dataset("observations_0", **options), observations_0=None),
        "observations_0 it takes",
    )


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_a_chunk_that_is_said_to_be_longer_than_the_file_is_not_read(compression: str) -> None:
    steps = np.arange(500, dtype=np.float32)[:, None] // 7
    options: Any = {"data": steps, "chunks": (500, 1), "compression": compression}
    file = edited(lambda h5: h5.create_dataset("observations_0", **options), observations_0=None)
    with h5py.File(file, "r") as h5:
        size = h5["observations_0"].id.get_storage_size()
    data, said = file.getvalue(), struct.pack("<II", size, 0)  # and no filter is left out
    assert data.count(said) == 1
    refused(io.BytesIO(data.replace(said, struct.pack("<II", 2**31 - 5, 0))), "claims 2147483643 bytes")


def test_real_data_that_are_well_compressed_load(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.random.default_rng(0).integers(0, 255, (40, 32, 32), np.uint8)
    images = np.repeat(np.repeat(image, 10, 1), 10, 2)[..., None]
    file = whole(observations_0=None, actions_0=[[0]] * 40, rewards_0=[[0.0]] * 40)
    with h5py.File(file, "r+") as h5:
        h5.create_dataset("observations_0", data=images, compression=4, chunks=(40, 320, 320, 1))
    monkeypatch.setattr("birl.files.reading._ALWAYS_ALLOWED", 0)
    assert images.nbytes > 20 * len(file.getvalue())
    np.testing.assert_array_equal(load(file)[0][0].observations, images)


def test_the_user_can_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = {"data": np.zeros((1 << 20, 100), np.uint8), "compression": 9, "chunks": (1 << 14, 100)}
    given = {"observations_0": None, "actions_0": np.zeros((1 << 20, 1), np.int8)}
    file = edited(
        lambda h5: h5.create_dataset("observations_0", **zeros), rewards_0=np.zeros((1 << 20, 1), np.float32), **given
    )
    monkeypatch.setattr("birl.files.reading._ALWAYS_ALLOWED", 0)
    monkeypatch.setattr("birl.files.reading.PACKED", 1)
    monkeypatch.setattr("birl.dataset.hdf5.PACKED", 1)
    refused(file)
    monkeypatch.setenv("BIRL_FILE_MEMORY", "0.2")
    assert len(load(file)[0][0]) == 1 << 20
    for wrong in ("much", "-1", "nan", "0"):
        monkeypatch.setenv("BIRL_FILE_MEMORY", wrong)
        with pytest.raises(ConfigError, match="must be a number of GiB > 0"):
            load(file)


@pytest.mark.parametrize("change", [{"action_size": [1]}, {"action_size": 0}, {"extra": 3}])
def test_notes_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    notes = {"version": 1, "observation": 0, "extra": [], "action_space": 2, "action_size": 2, **change}
    file = edited(lambda h5: h5.create_dataset("birl", data=json.dumps(notes)))
    with pytest.raises(CorruptFileError, match="use another copy"):
        load(guarded(file))


SECRET = "a secret of this machine"
SCALAR = h5py.h5s.create(h5py.h5s.SCALAR)


@pytest.mark.parametrize("name", ["version", "birl", "num_episodes", "observations_0", "terminated_0", "truncated_0"])
def test_no_object_leads_to_another_file(name: str, tmp_path: Path) -> None:
    """Scalars and texts too: error messages would contain them."""
    (tmp_path / "secret").write_text(SECRET * 100)
    kinds = {"version": (f"S{len(SECRET)}", ()), "birl": (f"S{len(SECRET)}", ()), "num_episodes": ("i8", ())}
    dtype, shape = kinds.get(name, ("u1", (3, 1)))

    def outside(h5: Any) -> None:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_external(str(tmp_path / "secret").encode(), 0, 10_000)
        kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
        h5py.h5d.create(h5.id, name.encode(), kind, h5py.h5s.create_simple(shape) if shape else SCALAR, made)

    def virtual(h5: Any) -> None:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource(tmp_path / "other.h5", "x", shape, dtype)
        h5.create_virtual_dataset(name, layout)

    def link(h5: Any) -> None:
        h5[name] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")

    def soft(h5: Any) -> None:
        h5[name] = h5py.SoftLink("/actions_0")

    with h5py.File(tmp_path / "other.h5", "w") as h5:
        h5.create_dataset("x", shape, dtype)
    for edit in (outside, virtual, link, soft):
        with pytest.raises(CorruptFileError, match="store the array itself") as caught:
            load(guarded(edited(edit, **{name: None})))
        assert SECRET[:4] not in str(caught.value)


@pytest.mark.parametrize("name", ["version", "birl", "num_episodes", "observations_0", "terminated_0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda h5, name: h5.create_group(name),
        lambda h5, name: h5.__setitem__(name, np.dtype("f4")),
        lambda h5, name: h5.__setitem__(name, h5py.Empty("f4")),
        lambda h5, name: h5.create_dataset(name, data=h5["actions_0"].ref, dtype=h5py.ref_dtype),
        lambda h5, name: h5.create_dataset(name, data=h5["actions_0"].regionref[:1], dtype=h5py.regionref_dtype),
        lambda h5, name: h5.create_dataset(name, (3,), h5py.vlen_dtype(np.float32)),
        lambda h5, name: h5.create_dataset(name, (3,), h5py.string_dtype()),
        lambda h5, name: h5.create_dataset(name, (3,), [("a", "f4"), ("b", "i4")]),
        lambda h5, name: h5.create_dataset(name, (3,), "(2,)f4"),
        lambda h5, name: h5.create_dataset(name, (3,), "c8"),
        lambda h5, name: h5.create_dataset(name, (3, 1), "i4", scaleoffset=0, chunks=(3, 1)),
    ],
    ids=["group", "type", "empty", "reference", "region", "vlen", "strings", "compound", "arrays", "complex", "filter"],
)
def test_other_objects_are_refused(name: str, make: Any) -> None:
    with pytest.raises(CorruptFileError):
        load(edited(lambda h5: make(h5, name), **{name: None}))


def test_text_is_not_taken_for_data() -> None:
    file = written(
        num_episodes=1, version=b"2.1", observations_0=[b"a"], actions_0=[[0]], rewards_0=[[0.0]], terminated_0=True
    )
    with pytest.raises(CorruptFileError, match="not numbers"):
        load(file)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make().dump(tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    with open(tmp_path / "a.h5", "rb") as file, pytest.raises(WriteError, match="w\\+b"):
        make().dump(file)
    with pytest.raises(WriteError, match="folder"):
        make().dump(tmp_path / "no" / "a.h5")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("birl.dataset.hdf5._write_episodes", full)
    with pytest.raises(WriteError, match="space"):
        make().dump(tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_arguments_in_another_order(tmp_path: Path) -> None:
    buffer, path = make(), tmp_path / "data.h5"
    buffer.dump(path)
    calls: list[tuple[Any, str]] = [
        (lambda: load(Episode, path), r"f is <class .*Episode'>; it .*the order is load\(f, episode_cls\)"),  # type: ignore[arg-type]
        (lambda: load(path, InfiniteBuffer()), r"the order is load\(f, episode_cls\)"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer.load(InfiniteBuffer(), path), r"order is ReplayBuffer.load\(f, buffer\)"),  # type: ignore[arg-type]
        (lambda: dump(path, buffer.episodes), r"order is dump\(episodes, f\)"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(ConfigError, match=message):
            call()
    with open(path, encoding="latin") as file, pytest.raises(ConfigError, match="'rb'"):
        load(file)  # type: ignore[arg-type]
    with open(path, "rb") as file:
        assert len(load(file)[0]) == buffer.size()


ROWS = np.ones((3, 2))


@pytest.mark.parametrize("other", [{"a": ROWS}, ROWS, {"a": ROWS, "c": ROWS}])
def test_episodes_of_another_structure_are_refused(other: Any) -> None:
    observations = {"a": ROWS, "b": ROWS}
    one, two = (Episode(each, np.ones((3, 1)), np.ones((3, 1)), True) for each in (observations, other))
    with pytest.raises(ShapeError, match="episode 1 has other parts of observations than episode 0"):
        dump([one, two], io.BytesIO())


def test_a_device_cannot_be_read_back() -> None:
    with pytest.raises(WriteError, match="which cannot be read back: give a path"):
        dump(make().episodes, "/dev/null")
