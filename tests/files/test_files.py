"""Archives come back as they went in, damaged ones are refused, and hostile ones get no memory and no code run."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import pickle
import stat
import struct
import threading
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from birl.errors import ConfigError, CorruptFileError, FileError, ForeignFileError, WriteError
from birl.files import archive as files
from birl.files.archive import atomic_write, load_archive, load_config, pack, parse_json, save_archive, unpack

MEMBERS = ("config.json", "state.json", "tensors.safetensors")


def same(a: Any, b: Any) -> bool:
    """Equality of states, types and dtypes and NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def example() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "nets": {"actor.weight": torch.arange(6.0).reshape(2, 3), "actor.bias": torch.tensor([0.5, -0.5])},
        "replay": {"done": np.array([True, False, True]), "pixels": np.arange(5, dtype=np.uint8)},
        "step": 12,
        "best": float("-inf"),
        "rng": generator.bit_generator.state,
        "none": None,
    }


def saved(state: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> bytes:
    file = io.BytesIO()
    save_archive(file, "model", config or {"gamma": 0.99}, example() if state is None else state)
    return file.getvalue()


def loaded(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    return load_archive(io.BytesIO(data), "model")


# ------------------------------------------------------------------------------------------ round trips

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="<"),
    hnp.unsigned_integer_dtypes(endianness="<"),
    hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**100, 2**130),
    st.floats(),
    st.text(),
    ARRAYS,
    ARRAYS.map(torch.from_numpy),
    hnp.arrays(DTYPES, ()).map(lambda array: array[()]),
)
STATES = st.dictionaries(
    st.text(max_size=5) | st.sampled_from(["$tensor", "$$", "$", "a/b", "__metadata__"]),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@given(STATES)
@settings(max_examples=100, deadline=None)
def test_any_state_comes_back_as_it_was(state: dict[str, Any]) -> None:
    _, back = loaded(saved(state))
    assert same(back, state)


@pytest.mark.parametrize("dtype", sorted(files._DTYPES.values(), key=str))
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).remainder(2).to(dtype)
    _, back = loaded(saved({"x": tensor}))
    assert same(back, {"x": tensor})


def test_layouts_are_normalised() -> None:
    grid = np.arange(6.0).reshape(2, 3)
    tensor = torch.arange(6.0).reshape(2, 3)
    state = {
        "fortran": np.asfortranarray(grid),
        "big_endian": np.arange(3, dtype=">i4"),
        "strided": grid[:, ::2],
        "transposed": tensor.T,
        "negative": torch.complex(tensor, tensor).conj().imag,
        "negative, contiguous": torch.complex(tensor, tensor)[:1, 0].conj().imag,
        "parameter": torch.nn.Parameter(tensor),
    }
    _, back = loaded(saved(state))
    for name in ("fortran", "big_endian", "strided"):
        np.testing.assert_array_equal(back[name], state[name])
    for name in ("transposed", "negative", "negative, contiguous", "parameter"):
        assert torch.equal(back[name], state[name].detach())
    assert type(back["parameter"]) is torch.Tensor and not back["parameter"].requires_grad


def test_loaded_arrays_are_writable_and_apart() -> None:
    _, back = loaded(saved({"a": np.zeros(2), "b": torch.zeros(2)}))
    back["a"][0], back["b"][0] = 1, 2
    assert back["a"].tolist() == [1, 0] and back["b"].tolist() == [2, 0]


def test_config_comes_back_and_can_be_read_alone(tmp_path: Path) -> None:
    config = {"gamma": 0.99, "clip": float("inf"), "shape": (3,), "units": [256, 256], "name": None}
    path = tmp_path / "a.d3"
    save_archive(path, "model", config, example())
    assert load_archive(path, "model")[0] == config == load_config(path, "model")
    with pytest.raises(ForeignFileError, match="'model'.*'checkpoint'"):
        load_config(path, "checkpoint")


def test_names_that_read_alike_are_kept_apart() -> None:
    state = {"a": {"b": np.array(1)}, "a/b": np.array(2), "a/b'": np.array(3), "__metadata__": np.array(4)}
    data = saved(state)
    assert same(loaded(data)[1], state)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(safetensors.torch.load(archive.read("tensors.safetensors"))) == 4


def test_same_state_same_bytes() -> None:
    assert saved() == saved()


def test_other_programs_can_read_it() -> None:
    with zipfile.ZipFile(io.BytesIO(saved())) as archive:
        assert archive.testzip() is None
        assert tuple(archive.namelist()) == ("manifest.json", *MEMBERS)
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        manifest = json.loads(archive.read("manifest.json"))
        for name in MEMBERS:
            assert manifest["members"][name]["sha256"] == hashlib.sha256(archive.read(name)).hexdigest()
        tensors = safetensors.torch.load(archive.read("tensors.safetensors"))
    assert torch.equal(tensors["nets/actor.weight"], example()["nets"]["actor.weight"])


def test_file_objects_are_used_from_their_position() -> None:
    file = io.BytesIO(b"before")
    file.seek(6)
    save_archive(file, "model", {}, {"x": 1})
    assert file.getvalue().startswith(b"beforePK")
    file.seek(6)
    assert load_archive(file, "model") == ({}, {"x": 1})


class Trickle(io.RawIOBase):
    """An unbuffered file: reads and writes a few bytes at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.inner = io.BytesIO(data)

    def write(self, data: Any) -> int:
        return self.inner.write(bytes(data[:7]))

    def read(self, size: int = -1) -> bytes:
        return self.inner.read(min(size, 5))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()


def test_unbuffered_files_lose_nothing() -> None:
    file = Trickle()
    save_archive(file, "model", {"gamma": 0.99}, example())  # type: ignore[arg-type]
    assert file.inner.getvalue() == saved()
    assert same(load_archive(Trickle(saved()), "model")[1], loaded(saved())[1])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- what cannot be saved


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": np.array([object()])}, "dtype object"),
        ({"x": np.array(["a"])}, "dtype <U1"),
        ({"x": np.ones(1, complex)}, "complex128"),
        ({"x": torch.ones(1, dtype=torch.complex64)}, "complex64"),
        ({"x": torch.eye(2).to_sparse()}, "sparse"),
        ({"x": torch.empty(2, device="meta")}, "meta"),
        ({"x": {1: 2}}, "keys of a state are strings: got 1"),
        ({"x": {"y": {1, 2}}}, "cannot save set at 'x/y'"),
        ({"x": print}, "cannot save builtin"),
        ({"x": [0] * 1_000_000}, "keep long lists as numpy arrays"),
        ({"x": "y" * files.MAX_JSON_BYTES}, "too large"),
        ({"x": 10**5000}, "cannot be written"),
    ],
)
def test_what_cannot_be_saved_is_named(state: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    with pytest.raises(ConfigError, match=message):
        save_archive(path, "model", {}, state)
    assert list(tmp_path.iterdir()) == []


def test_a_config_holds_no_arrays() -> None:
    with pytest.raises(ConfigError, match="holds no arrays: 'mean'"):
        save_archive(io.BytesIO(), "model", {"mean": np.ones(2)}, {})


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(ConfigError, match="64 levels"):
        pack(state)


# ------------------------------------------------------------------------------------- damaged files


def test_every_truncation_is_found() -> None:
    data = saved()
    for length in range(len(data)):
        with pytest.raises((CorruptFileError, ForeignFileError)):
            loaded(data[:length])


def test_every_changed_byte_is_found() -> None:
    data = saved()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises((CorruptFileError, ForeignFileError)):
            loaded(bytes(damaged))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_random_damage_is_found(data: st.DataObject) -> None:
    good = saved()
    at = data.draw(st.integers(0, len(good)))
    gone = data.draw(st.integers(0, 40))
    new = data.draw(st.binary(max_size=40))
    damaged = good[:at] + new + good[at + gone :]
    if damaged == good:
        return
    with pytest.raises((CorruptFileError, ForeignFileError)):
        loaded(damaged)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(data: bytes, start_like_ours: bool) -> None:
    with pytest.raises((CorruptFileError, ForeignFileError)):
        loaded(saved()[:63] + data if start_like_ours else data)


def test_messages_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    path.write_bytes(saved()[:-10])
    with pytest.raises(CorruptFileError, match=r"a\.d3: it has \d+ bytes of \d+.*use another copy"):
        load_archive(path, "model")


def test_a_file_that_shrinks_while_it_is_read() -> None:
    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(size) if self.tell() < 500 else b""

    with pytest.raises(CorruptFileError, match="it ends after"):
        load_archive(Shrinking(saved()), "model")


# ------------------------------------------------------------------------------------- foreign files


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_named_and_never_run(tmp_path: Path) -> None:
    sign = tmp_path / "it_ran"
    bare, in_zip = tmp_path / "bare.d3", tmp_path / "zip.d3"
    bare.write_bytes(pickle.dumps(Bomb(sign)))
    torch.save({"x": Bomb(sign)}, in_zip)
    for path, message in ((bare, "a Python pickle"), (in_zip, "a zip of another program")):
        with pytest.raises(ForeignFileError, match=message):
            load_archive(path, "model")
    assert not sign.exists()


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "empty"), (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"hello" * 50, "another program")]
)
def test_foreign_files_are_named(data: bytes, message: str) -> None:
    with pytest.raises((ForeignFileError, CorruptFileError), match=message if data else "ends after 0"):
        loaded(data)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        load_archive(tmp_path / "none.d3", "model")
    with pytest.raises(FileError, match="directory"):
        load_archive(tmp_path, "model")
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as pipe, pytest.raises(FileError, match="seek"):
        load_archive(pipe, "model")


# --------------------------------------------------------------------------------------- attacks: zip


def forge(replace: dict[str, bytes], manifest: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A file whose framing and digests are all valid, with members of the attacker's choice."""
    contents = {"config.json": b"{}", "state.json": b"{}", "tensors.safetensors": tensors({}), **replace}
    if manifest is None:
        members = {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()
        }
        manifest = {"format": "birl", "version": 1, "kind": "model", "members": members, **changes}
    contents = {"manifest.json": json.dumps(manifest).encode(), **contents}
    body = b"".join(files._local_header(n, len(d), zlib.crc32(d)) + d for n, d in contents.items())
    return body + files._directory([(n, len(d), zlib.crc32(d)) for n, d in contents.items()])


def tensors(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def refused(data: bytes, error: type[FileError] = CorruptFileError, match: str | None = None) -> None:
    """Loading raises ``error`` and needs no more memory than a few times the file's size."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match):
            loaded(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 2**20
    finally:
        tracemalloc.stop()


def test_the_forger_makes_loadable_files() -> None:
    entry = {"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    members = {"state.json": b'{"a":{"$array":"x"}}', "tensors.safetensors": tensors(entry, b"\1\2")}
    assert loaded(forge(members))[1]["a"].tolist() == [1, 2]


def rezipped(compression: int, entries: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return file.getvalue()


def entries_of(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def test_compressed_members_are_refused() -> None:
    bomb = tensors({"x": {"dtype": "U8", "shape": [2**26], "data_offsets": [0, 2**26]}}, bytes(2**26))
    entries = dict(entries_of(forge({})))
    digest = {"size": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    manifest = json.loads(entries["manifest.json"])
    manifest["members"]["tensors.safetensors"] = digest
    entries |= {"manifest.json": json.dumps(manifest).encode(), "tensors.safetensors": bomb}
    data = rezipped(zipfile.ZIP_DEFLATED, list(entries.items()))
    assert len(data) < 2**17
    del bomb, entries
    refused(data, FileError)


def test_even_an_honest_other_zip_is_refused() -> None:
    refused(rezipped(zipfile.ZIP_STORED, entries_of(saved())), FileError)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_and_additional_members_are_refused() -> None:
    entries = entries_of(saved())
    for extra in (("state.json", b"{}"), ("../../evil.py", b""), ("/etc/evil", b"")):
        refused(rezipped(zipfile.ZIP_STORED, [*entries, extra]), FileError)
        refused(forge({extra[0]: extra[1]} if extra[0] != "state.json" else {"state.json/": b""}))


def test_bytes_before_between_and_after_are_refused() -> None:
    data = saved()
    cut = data.index(b"PK\1\2")
    for damaged in (b"\0" + data, data[:cut] + b"\0" + data[cut:], data + b"\0"):
        refused(damaged, FileError)


@pytest.mark.parametrize("size", [-1, True, 2**62, 2**64, 1e9, "9", None, [1]])
def test_impossible_member_sizes_are_refused(size: Any) -> None:
    members = {name: {"size": size, "sha256": ""} for name in MEMBERS}
    refused(forge({}, members=members))


def test_member_sizes_that_only_add_up_are_refused() -> None:
    manifest = json.loads(dict(entries_of(forge({})))["manifest.json"])
    sizes = manifest["members"]
    sizes["config.json"]["size"] += 1
    sizes["state.json"]["size"] -= 1
    refused(forge({}, manifest), match="does not match its digest")


def test_a_file_without_a_member_whose_sizes_add_up_is_refused() -> None:
    contents = {"config.json": b"{}", "tensors.safetensors": tensors({})}
    members = {n: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in contents.items()}
    manifest = json.dumps({"format": "birl", "version": 1, "kind": "model", "members": members}).encode()
    contents = {"manifest.json": manifest, **contents}
    body = b"".join(files._local_header(n, len(d), zlib.crc32(d)) + d for n, d in contents.items())
    refused(body + bytes(files._directory_size(["manifest.json", *MEMBERS])))


def test_a_manifest_larger_than_any_is_refused() -> None:
    refused(forge({}, filler="x" * 5000), match="manifest of")
    head = files._local_header("manifest.json", 2**63, 0)
    refused(head + bytes(100), match="manifest of")


@pytest.mark.parametrize("members", [None, [], {}, {"config.json": {}}, dict.fromkeys(MEMBERS, 3)])
def test_manifests_without_members_are_refused(members: Any) -> None:
    refused(forge({}, members=members))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": "other"}, ForeignFileError, "not a file that birl wrote"),
        ({"version": 2}, ForeignFileError, "version 2 .* update birl"),
        ({"version": True}, CorruptFileError, "unknown version True"),
        ({"version": "1"}, CorruptFileError, "unknown version"),
        ({"kind": "checkpoint"}, ForeignFileError, "holds a 'checkpoint', expected a 'model'"),
        ({"kind": None}, ForeignFileError, "holds a None"),
    ],
)
def test_other_formats_versions_and_kinds(changes: dict[str, Any], error: type[FileError], message: str) -> None:
    refused(forge({}, **changes), error, message)


# -------------------------------------------------------------------------------------- attacks: JSON

BAD_JSON = {
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "overflow": b'{"a": 1e999}',
    "huge integer": b'{"a": ' + b"9" * 5000 + b"}",
    "duplicate key": b'{"a": 1, "a": 2}',
    "escaped duplicate key": b'{"a": 1, "\\u0061": 2}',
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "not UTF-8": b'{"a": "\xff"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "two values": b"{}{}",
    "single quotes": b"{'a': 1}",
    "comment": b"{} // no",
    "empty": b"",
}


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON)
@pytest.mark.parametrize("member", ["config.json", "state.json"])
def test_bad_json_is_refused(text: bytes, member: str) -> None:
    with pytest.raises(CorruptFileError):
        parse_json(text, "text")
    with pytest.raises(CorruptFileError):
        loaded(forge({member: text}))


def test_json_that_would_swell_is_refused() -> None:
    refused(forge({"state.json": b'{"a":[' + b"{}," * 1_000_000 + b"1]}"}), match="more JSON than allowed")
    refused(forge({"state.json": b" " * (files.MAX_JSON_BYTES + 1)}), match="at most")


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"3",
        b'{"$tensor": "x"}',
        b'{"a": {"$tensor": "x"}}',
        b'{"a": {"$tensor": 3}}',
        b'{"a": {"$array": ["x"]}}',
        b'{"a": {"$float": "1.5"}}',
        b'{"a": {"$float": [1]}}',
        b'{"a": {"$tuple": {}}}',
        b'{"a": {"$pickle": "gASVHAAAAAAAAACMCGJ1aWx0aW5zlIwFcHJpbnSUk5Q="}}',
        b'{"a": {"$float": "nan", "b": 1}}',
        b'{"$": 1}',
        b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}",
    ],
)
def test_bad_references_are_refused(text: bytes) -> None:
    refused(forge({"state.json": text}))


def test_arrays_are_used_once_and_all() -> None:
    with pytest.raises(CorruptFileError, match="or none left"):
        unpack({"a": {"$array": "x"}, "b": {"$array": "x"}}, {"x": np.ones(1)})
    with pytest.raises(CorruptFileError, match="1 arrays belong to nothing"):
        unpack({}, {"x": np.ones(1)})


def test_arrays_come_back_as_what_was_saved_only() -> None:
    bfloat16 = {"x": torch.ones(1, dtype=torch.bfloat16)}
    with pytest.raises(CorruptFileError, match="numpy does not have"):
        unpack({"a": {"$array": "x"}}, dict(bfloat16))
    with pytest.raises(CorruptFileError, match="scalar"):
        unpack({"a": {"$scalar": "x"}}, {"x": np.ones(1)})


# ------------------------------------------------------------------------------- attacks: safetensors


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


BAD_TENSORS = {
    "announces a huge header": tensors({}, size=2**63),
    "announces a header past the end": tensors({}, size=3),
    "no header": b"\0\0\0",
    "empty": b"",
    "header of no bytes": tensors(b""),
    "not an object": tensors([]),
    "not JSON": tensors(b"{x}"),
    "duplicate names": tensors(b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}}'),
    "entry is no object": tensors({"x": 3}),
    "entry lacks a field": tensors({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "entry has more fields": tensors({"x": entry(more=1)}, bytes(8)),
    "unknown dtype": tensors({"x": entry("O")}, bytes(8)),
    "dtype is a list": tensors({"x": entry(["F32"])}, bytes(8)),
    "huge size": tensors({"x": entry("U8", [2**40], [0, 2**40])}),
    "huge size, honest offsets": tensors({"x": entry("U8", [2**40], [0, 8])}, bytes(8)),
    "shape that overflows 64 bits to 0": tensors({"x": entry("F32", [2**32, 2**32], [0, 0])}),
    "shape of huge integers": tensors({"x": entry("F32", [10**4000], [0, 8])}, bytes(8)),
    "empty but with an overflowing shape": tensors({"x": entry("F32", [0, 2**61, 2**61], [0, 0])}),
    "too many dimensions": tensors({"x": entry("F32", [1] * 33, [0, 4])}, bytes(4)),
    "negative extent": tensors({"x": entry("F32", [-2], [0, -8])}),
    "two negative extents": tensors({"x": entry("F32", [-1, -2], [0, 8])}, bytes(8)),
    "fractional extent": tensors({"x": entry("F32", [2.0], [0, 8])}, bytes(8)),
    "boolean extent": tensors({"x": entry("F32", [True], [0, 4])}, bytes(4)),
    "shape is a number": tensors({"x": entry("F32", 2, [0, 8])}, bytes(8)),
    "offsets of another size": tensors({"x": entry("F32", [2], [0, 4])}, bytes(4)),
    "offsets past the end": tensors({"x": entry("F32", [2], [0, 8])}, bytes(4)),
    "negative offsets": tensors({"x": entry("F32", [2], [-8, 0])}, bytes(8)),
    "reversed offsets": tensors({"x": entry("F32", [2], [8, 0])}, bytes(8)),
    "boolean offsets": tensors({"x": entry("U8", [1], [False, True])}, bytes(1)),
    "three offsets": tensors({"x": entry("F32", [2], [0, 8, 16])}, bytes(8)),
    "overlap": tensors({"x": entry(), "y": entry()}, bytes(8)),
    "overlap in part": tensors({"x": entry(), "y": entry(offsets=[4, 12])}, bytes(12)),
    "gap": tensors({"x": entry(), "y": entry(offsets=[12, 20])}, bytes(20)),
    "bytes that belong to nothing": tensors({"x": entry()}, bytes(9)),
    "many arrays in the same place": tensors({f"x{i}": entry("U8", [8], [0, 8]) for i in range(1000)}, bytes(8)),
    "a bool that is 2": tensors({"x": entry("BOOL", [1], [0, 1])}, b"\2"),
    "metadata": tensors({"__metadata__": {"a": "b"}}),
}


@pytest.mark.parametrize("size", [2**63, 3, 2**64 - 1])
def test_a_header_that_is_not_there_is_not_even_looked_for(size: int) -> None:
    refused(forge({"tensors.safetensors": tensors({}, size=size)}), match="announces a header")
    refused(forge({"tensors.safetensors": b"\0" * 7}), match="has 7 bytes")


@pytest.mark.parametrize("data", BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_lying_safetensors_are_refused(data: bytes) -> None:
    try:  # the state asks for exactly the arrays that are announced, so that nothing else is wrong
        names = list(json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]))
    except (ValueError, struct.error, TypeError):
        names = []
    state = json.dumps({name: {"$tensor": name} for name in names}).encode()
    refused(forge({"state.json": state, "tensors.safetensors": data}))


@given(
    st.dictionaries(
        st.sampled_from("xyz"),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from([*files._DTYPES, "C64", ""]),
                "shape": st.lists(st.integers(-1, 3) | st.sampled_from([2**31, 2**62]), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 20), min_size=2, max_size=2),
            }
        ),
    ),
    st.binary(max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_header_says_arrays_stay_inside_the_file(header: dict[str, Any], data: bytes) -> None:
    references = {name: {"$tensor": name} for name in header}
    content = {"state.json": json.dumps(references).encode(), "tensors.safetensors": tensors(header, data)}
    try:
        _, state = loaded(forge(content))
    except CorruptFileError:
        return
    assert b"".join(raw(tensor) for tensor in state.values()) == data


def test_loading_needs_the_memory_of_the_arrays_once() -> None:
    data = saved({"x": torch.zeros(2**20), "y": np.zeros(2**20, np.uint8)})
    tracemalloc.start()
    try:
        state = loaded(data)[1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # BytesIO shares the bytes it is made from, so the arrays and a chunk or two are all there is.
    assert state["x"].nbytes + state["y"].nbytes < peak < len(data) + 2**22


# --------------------------------------------------------------------------------------- atomic writes


def write_hello(file: BinaryIO) -> None:
    file.write(b"hello")


def full_disk(file: BinaryIO) -> None:
    file.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(file: BinaryIO) -> None:
    file.write(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("write", "error"),
    [(full_disk, WriteError), (interrupted, KeyboardInterrupt), (lambda _: 1 / 0, ZeroDivisionError)],
)
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_failed_write_changes_nothing(write: Any, error: Any, before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(error):
        atomic_write(path, write)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_at_the_last_moment(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.d3"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(WriteError, match=r"a\.d3: No space.*disk is full: free some space"):
        save_archive(path, "model", {}, example())
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"before"]


def test_a_full_disk_under_a_file_object() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    with pytest.raises(WriteError, match="disk is full"):
        save_archive(Full(), "model", {}, example())


def test_data_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_folder(descriptor: int) -> bool:
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)

    calls: list[Any] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append("folder" if is_folder(fd) else os.fstat(fd).st_size), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    atomic_write(tmp_path / "a", write_hello)
    assert calls == [len(b"hello"), "rename", "folder"]


def test_wrong_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="its folder does not exist"):
        atomic_write(tmp_path / "none" / "a", write_hello)
    with pytest.raises(WriteError, match="it is a folder"):
        atomic_write(tmp_path, write_hello)
    assert list(tmp_path.iterdir()) == []


def test_links_permissions_and_pipes_are_kept(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "a", tmp_path / "link", tmp_path / "pipe"
    path.write_bytes(b"before")
    path.chmod(0o600)
    link.symlink_to(path)
    atomic_write(link, write_hello)
    assert link.is_symlink() and path.read_bytes() == b"hello" and stat.S_IMODE(path.stat().st_mode) == 0o600
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    atomic_write(pipe, write_hello)
    reader.join()
    assert received == [b"hello"] and pipe.is_fifo()


def test_leftovers_of_killed_processes_are_cleared(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".a.1.tmp", ".a.2.tmp", ".b.1.tmp"))
    for path in (old, young, other):
        path.write_bytes(b"left")
    for path in (old, other):
        os.utime(path, (0, 0))
    atomic_write(tmp_path / "a", write_hello)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.2.tmp", ".b.1.tmp", "a"]
