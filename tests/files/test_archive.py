"""Archives come back as they went in, damaged ones are refused, and hostile ones get no memory and no code run."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from birl.errors import ConfigError, CorruptFileError, FileError, ForeignFileError
from birl.files import load_archive, load_config, save_archive
from birl.files.archive import DTYPES
from birl.files.state_tree import pack
from birl.files.strict_json import MAX_JSON_BYTES
from files.forging import DIGEST, example, loaded, raw, saved, sealed


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


# ------------------------------------------------------------------------------------------ round trips

NUMPY_DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="<"),
    hnp.unsigned_integer_dtypes(endianness="<"),
    hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)),
)
ARRAYS = hnp.arrays(NUMPY_DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**100, 2**130),
    st.floats(),
    st.text(),
    ARRAYS,
    ARRAYS.map(torch.from_numpy),
    hnp.arrays(NUMPY_DTYPES, ()).map(lambda array: array[()]),
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


@pytest.mark.parametrize("way", ["object", "path"])
@given(STATES)
@settings(max_examples=100, deadline=None)
def test_any_state_comes_back_as_it_was(way: str, state: dict[str, Any]) -> None:
    _, back = loaded(saved(state), way)
    assert same(back, state)


@pytest.mark.parametrize("way", ["object", "path"])
@pytest.mark.parametrize("dtype", [getattr(torch, name.removeprefix("torch.")) for name in sorted(DTYPES)])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_of_torch(dtype: torch.dtype, shape: tuple[int, ...], way: str) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).remainder(2).to(dtype)
    _, back = loaded(saved({"x": tensor}), way)
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
        "the same again": tensor,
        "a part of it": tensor[1],
    }
    _, back = loaded(saved(state))
    for name in ("fortran", "big_endian", "strided"):
        np.testing.assert_array_equal(back[name], state[name])
    for name in ("transposed", "negative", "negative, contiguous", "parameter", "the same again", "a part of it"):
        assert torch.equal(back[name], state[name].detach())
    assert type(back["parameter"]) is torch.Tensor and not back["parameter"].requires_grad


@pytest.mark.parametrize("way", ["object", "path"])
def test_loaded_arrays_are_writable_and_apart(way: str) -> None:
    _, back = loaded(saved({"a": np.zeros(2), "b": torch.zeros(2)}), way)
    back["a"][0], back["b"][0] = 1, 2
    assert back["a"].tolist() == [1, 0] and back["b"].tolist() == [2, 0]


def test_loaded_arrays_do_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    save_archive(path, "model", {}, {"x": torch.zeros(1000), "y": np.zeros(1000)})
    state = load_archive(path, "model")[1]
    with open(path, "r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
        file.truncate(10)
    assert not state["x"].any() and not state["y"].any()


def test_config_comes_back_and_can_be_read_alone(tmp_path: Path) -> None:
    config = {"gamma": 0.99, "clip": float("inf"), "shape": (3,), "units": [256, 256], "name": None, "é": "日本"}
    path = tmp_path / "a.d3"
    save_archive(path, "model", config, example())
    assert load_archive(path, "model")[0] == config == load_config(path, "model")
    with pytest.raises(ForeignFileError, match="'model'.*'checkpoint'"):
        load_config(path, "checkpoint")


def test_a_config_read_alone_is_checked() -> None:
    data = bytearray(saved())
    data[data.index(b"0.99")] ^= 1
    with pytest.raises(CorruptFileError, match="header does not match its digest"):
        load_config(io.BytesIO(data), "model")


def test_names_that_read_alike_are_kept_apart() -> None:
    state = {"a": {"b": np.array(1)}, "a/b": np.array(2), "a/b'": np.array(3), "__metadata__": np.array(4)}
    data = saved(state)
    assert same(loaded(data)[1], state)
    assert len(safetensors.torch.load(data)) == 4


def test_same_state_same_bytes() -> None:
    assert saved() == saved()


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    path.write_bytes(saved())
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        arrays = [file.get_tensor(name) for name in file.offset_keys()]
    assert (metadata["format"], metadata["kind"], json.loads(metadata["config"])) == ("birl", "model", {"gamma": 0.99})
    assert metadata["data"] == hashlib.sha256(b"".join(map(raw, arrays))).hexdigest()
    assert torch.equal(
        safetensors.torch.load(saved())["nets/actor.weight"],
        example()["nets"]["actor.weight"],
    )


def test_file_objects_are_used_from_their_position() -> None:
    file = io.BytesIO(b"before")
    file.seek(6)
    save_archive(file, "model", {}, {"x": torch.ones(1)})
    assert file.getvalue().startswith(b"before")
    file.seek(6)
    assert load_archive(file, "model") == ({}, {"x": torch.ones(1)})


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
        ({"x": {1: 2}}, "the key 1 at .* is not a string"),
        ({"x": {"y": {1, 2}}}, "cannot save set at 'x/y'"),
        ({"x": print}, "cannot save builtin"),
        ({"x": [0] * 1_000_000}, "keep long lists as numpy arrays"),
        ({"x": "y" * MAX_JSON_BYTES}, "too large"),
        ({"x": '"' * (MAX_JSON_BYTES // 2 - 100)}, "too large"),
        ({"x": 10**5000}, "cannot be written"),
        ({"\ud800": np.ones(1)}, "cannot be written"),
    ],
)
def test_what_cannot_be_saved_is_named(state: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    with pytest.raises(ConfigError, match=message):
        save_archive(path, "model", {}, state)
    assert list(tmp_path.iterdir()) == []


def test_a_config_holds_no_arrays() -> None:
    with pytest.raises(ConfigError, match="the config value 'mean' is an array"):
        save_archive(io.BytesIO(), "model", {"mean": np.ones(2)}, {})


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(ConfigError, match="64 levels"):
        pack(state)


# ------------------------------------------------------------------------------------- damaged files


@pytest.mark.parametrize(("way", "stride"), [("object", 1), ("path", 3)])
def test_every_truncation_is_found(way: str, stride: int) -> None:
    data = saved()
    for length in range(0, len(data), stride):
        with pytest.raises((CorruptFileError, ForeignFileError)):
            loaded(data[:length], way)


@pytest.mark.parametrize(("way", "stride"), [("object", 1), ("path", 3)])
def test_every_changed_byte_is_found(way: str, stride: int) -> None:
    data = saved()
    for position in range(0, len(data), stride):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises((CorruptFileError, ForeignFileError)):
            loaded(bytes(damaged), way)


@pytest.mark.parametrize("way", ["object", "path"])
def test_every_byte_that_changes_behind_valid_digests_gives_a_typed_error_or_loads(way: str) -> None:
    """An attacker repairs both digests, so that parsers and library see the damage."""
    data = saved({"x": torch.ones(2, 3), "y": np.ones(2, bool), "z": (float("nan"), {"$a": np.float32(1)})})
    end = 8 + struct.unpack("<Q", data[:8])[0]
    typed = 0
    for position in range(DIGEST.stop, len(data)):
        for bit in range(8) if way == "object" else [position % 8]:
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            content = bytes(damaged[end:])
            at = data.index(b'"data":"') + len(b'"data":"')
            if not at <= position < at + 64:
                damaged[at : at + 64] = hashlib.sha256(content).hexdigest().encode()
            try:
                loaded(sealed(bytes(damaged[8:end]), content), way)
            except FileError:
                typed += 1
    assert typed > 100


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
        loaded(saved()[:99] + data if start_like_ours else data)


def test_messages_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.d3"
    path.write_bytes(saved()[:-10])
    with pytest.raises(CorruptFileError, match=r"a\.d3: .*incomplete.*use another copy"):
        load_archive(path, "model")


def test_a_file_that_shrinks_while_it_is_read() -> None:
    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 500 - self.tell()))

    with pytest.raises(CorruptFileError, match="it ends after"):
        load_archive(Shrinking(saved()), "model")


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import birl.files.archive as archive

    path = tmp_path / "a.d3"
    path.write_bytes(saved())
    load_tensors = archive.load_tensors

    for replacement in (b"", saved()[:500], saved({}), saved({"step": torch.ones(1)}), b"x" * 100):
        monkeypatch.setattr(
            archive, "load_tensors", lambda *args, new=replacement: (path.write_bytes(new), load_tensors(*args))[1]
        )
        path.write_bytes(saved())
        with pytest.raises(CorruptFileError):
            load_archive(path, "model")


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
    for path, message in ((bare, "a Python pickle"), (in_zip, "a zip file of another program")):
        with pytest.raises(ForeignFileError, match=message):
            load_archive(path, "model")
    assert not sign.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends after 0"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"hello" * 50, "another program"),
        (safetensors.torch.save({"x": torch.ones(30)}), "another program"),
        (safetensors.torch.save({}, {"sha256": "0" * 64}), "header does not match its digest"),
    ],
)
def test_foreign_files_are_named(data: bytes, message: str) -> None:
    with pytest.raises((ForeignFileError, CorruptFileError), match=message):
        loaded(data)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        load_archive(tmp_path / "none.d3", "model")
    with pytest.raises(FileError, match="it is a folder; give a file in it"):
        load_archive(tmp_path, "model")
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as pipe, pytest.raises(FileError, match="seek"):
        load_archive(pipe, "model")


# -------------------------------------------------------------------------------------------- memory

MEASURE = """
import sys
import numpy as np, torch
from birl.files import load_archive, save_archive

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def state(scale):
    replay = {"observations": np.ones((scale, 100, 100), np.float32), "pixels": np.ones((scale, 84, 84), np.uint8)}
    return {"replay": replay, "nets": {str(i): torch.ones(scale, 100) for i in range(10)}}

def both_ways(scale):
    save_archive(sys.argv[1], "checkpoint", {}, state(scale))
    return load_archive(sys.argv[1], "checkpoint")[1]

both_ways(1)  # whatever is imported or cached at the first time
before = peak()
assert both_ways(1000)["replay"]["observations"].sum() == 1e7
print(peak() - before)
"""


def test_a_checkpoint_is_in_memory_once(tmp_path: Path) -> None:
    """A replay buffer of 50 MB: the arrays and little more, for saving and loading."""
    path = tmp_path / "a.d3c"
    result = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    size = path.stat().st_size / 2**20
    assert size > 45
    assert 0.8 * size < float(result.stdout) < size + 8


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


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((1,) * 40),
        torch.zeros((1,) * 40),
        torch.empty((0, 2**31, 2**31)),
        np.array([0, 2], np.uint8).view(bool),
    ],
)
def test_arrays_that_no_file_may_hold_are_not_saved(value: Any, tmp_path: Path) -> None:
    """What is written can be read: the checks of loading are made when a file is saved."""
    save_archive(tmp_path / "file", "model", {}, {"x": np.zeros(3)})
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(ConfigError, match="cannot save 'x': its (shape is|bytes are not)"):
        save_archive(tmp_path / "file", "model", {}, {"x": value})
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.parametrize("size", range(16 * 2**20 - 340, 16 * 2**20 - 240, 9))
def test_headers_at_the_limit_are_readable_or_not_saved(size: int, tmp_path: Path) -> None:
    try:
        save_archive(tmp_path / "file", "model", {}, {"x": "y" * size})
    except ConfigError:
        assert not (tmp_path / "file").exists()
    else:
        assert len(load_archive(tmp_path / "file", "model")[1]["x"]) == size
