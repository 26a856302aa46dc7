"""Files of birl 0.1 load as they did; damaged and hostile ones are refused."""

from __future__ import annotations

import hashlib
import io
import json
import runpy
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.errors import CorruptFileError, FileError, ForeignFileError
from birl.files import load_archive, load_config, save_archive
from birl.run.checkpoint import differences
from files.forging import loaded, refused

DATA = Path(__file__).parent.parent / "data" / "birl-0.1"
WRITE = runpy.run_path(str(DATA / "write.py"), run_name="write")
MEMBERS = ("config.json", "state.json", "tensors.safetensors")


# --------------------------------------------------------------------------------------- files that 0.1 wrote


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_models_load_and_are_written_in_the_new_format(name: str, tmp_path: Path) -> None:
    observations = WRITE["dataset"](discrete=True).episodes[0].observations
    expected = np.load(DATA / f"{name}.npy")
    algorithm = birl.load_learnable(DATA / f"{name}.d3")
    assert algorithm.grad_step == 6
    np.testing.assert_allclose(algorithm.predict(observations), expected, rtol=1e-5)
    algorithm.save(tmp_path / "new.d3")
    assert (tmp_path / "new.d3").read_bytes()[8:].startswith(b'{"__metadata__":')
    np.testing.assert_allclose(birl.load_learnable(tmp_path / "new.d3").predict(observations), expected, rtol=1e-5)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(DATA / "run", tmp_path / "run")
    with pytest.warns(UserWarning, match="digested only some of the data"):
        algorithm = WRITE["fit"](WRITE["configs"]()["sac"], 12, tmp_path / "run")
    observations = WRITE["dataset"](discrete=True).episodes[0].observations
    assert algorithm.grad_step == 12
    expected = np.load(DATA / "run" / "predictions_after_12.npy")
    np.testing.assert_allclose(algorithm.predict(observations), expected, rtol=1e-4)


def test_cql_keeps_the_update_that_it_was_trained_with(tmp_path: Path) -> None:
    """Files from before a field have the update of then, whatever the default is now."""
    cql = birl.algos.CQLConfig(batch_size=8).create()
    cql.create_impl((3,), 2)
    cql.save(tmp_path / "cql.d3")
    described, state = load_archive(tmp_path / "cql.d3", "model")
    for removed in (set(), {"sum_proposals"}, {"sum_proposals", "mode_q_backup"}):
        params = {name: value for name, value in described["config"]["params"].items() if name not in removed}
        config = {"type": "CQL", "params": params}
        save_archive(tmp_path / "old.d3", "model", {**described, "config": config}, state)
        (tmp_path / "params.json").write_text(json.dumps({**described, "config": config}))
        for old in (birl.load_learnable(tmp_path / "old.d3"), birl.algos.CQL.from_json(tmp_path / "params.json")):
            assert old.config.sum_proposals is ("sum_proposals" not in removed)
            assert old.config.mode_q_backup is ("mode_q_backup" not in removed)
    assert differences({"algorithm": {"params": {}}}, {"algorithm": {"params": {"sum_proposals": False}}}) == []
    assert differences({"algorithm": {"params": {}}}, {"algorithm": {"params": {"sum_proposals": True}}})  # refused


def test_other_kinds_are_refused_and_configs_read_alone() -> None:
    with pytest.raises(ForeignFileError, match="holds a 'model', expected a 'checkpoint'"):
        load_archive(DATA / "dqn.d3", "checkpoint")
    assert load_config(DATA / "run" / "checkpoint.d3c", "checkpoint")["step"] == 6


def test_file_objects_are_read_from_their_position() -> None:
    file = io.BytesIO(b"before" + (DATA / "dqn.d3").read_bytes())
    file.seek(6)
    assert load_archive(file, "model")[1].keys() == load_archive(DATA / "dqn.d3", "model")[1].keys()


# --------------------------------------------------------------------------------------------- damage and attacks


def header(name: str, size: int) -> bytes:
    """The zip's header before a member, as 0.1 wrote it, but for the CRC, which is not read."""
    fields = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", 45, 0, 0, 0, 0x21, 0, 2**32 - 1, 2**32 - 1, len(name), 20)
    return fields + name.encode() + struct.pack("<HHQQ", 1, 16, size, size)


def tensors(entries: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def forge(replace: dict[str, bytes] | None = None, manifest: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A file of 0.1 with digests that are all valid, and members of the attacker's choice."""
    contents = {"config.json": b"{}", "state.json": b"{}", "tensors.safetensors": tensors({}), **(replace or {})}
    members = {n: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for n, data in contents.items()}
    manifest = manifest or {"format": "birl", "version": 1, "kind": "model", "members": members, **changes}
    contents = {"manifest.json": json.dumps(manifest).encode(), **contents}
    return b"".join(header(name, len(data)) + data for name, data in contents.items())


def small() -> bytes:
    entries = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    return forge({"state.json": b'{"a":{"$tensor":"x"},"b":1}', "tensors.safetensors": tensors(entries, bytes(8))})


def test_the_forger_makes_loadable_files() -> None:
    assert torch.equal(loaded(small())[1]["a"], torch.zeros(2))
    start = (DATA / "dqn.d3").read_bytes()[:63]
    assert header("manifest.json", struct.unpack("<Q", start[-8:])[0])[:14] == start[:14]


def test_every_truncation_is_found() -> None:
    data = small()
    for length in range(len(data)):
        with pytest.raises((CorruptFileError, ForeignFileError)):
            loaded(data[:length])
    real = (DATA / "dqn.d3").read_bytes()
    state = load_archive(DATA / "dqn.d3", "model")[1]
    for length in range(0, len(real), 97):
        try:  # nothing is missing where only the directory of the zip is
            assert repr(loaded(real[:length])[1]) == repr(state)
        except (CorruptFileError, ForeignFileError):
            assert length < len(real) - 100


def test_every_changed_bit_is_found_or_changes_nothing() -> None:
    data = small()
    expected, changed = repr(loaded(data)), 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                assert repr(loaded(bytes(damaged))) == expected
            except (CorruptFileError, ForeignFileError):
                changed += 1
    assert changed > 8 * (len(data) - 4 * 70)  # headers are not read, but for the name and size of the first


def rezipped(compression: int, entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_compressed_members_are_refused() -> None:
    bomb = tensors({"x": {"dtype": "U8", "shape": [2**26], "data_offsets": [0, 2**26]}}, bytes(2**26))
    members = {name: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()} for name in MEMBERS}
    members["tensors.safetensors"] = {"size": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    manifest = json.dumps({"format": "birl", "version": 1, "kind": "model", "members": members}).encode()
    entries = {"manifest.json": manifest, "config.json": b"{}", "state.json": b"{}", "tensors.safetensors": bomb}
    data = rezipped(zipfile.ZIP_DEFLATED, entries)
    assert len(data) < 2**17
    del bomb, entries
    refused(data, FileError)


def test_another_zip_is_refused() -> None:
    refused(rezipped(zipfile.ZIP_STORED, {"data.pkl": b"x" * 100}), ForeignFileError, "a zip of another program")
    refused(rezipped(zipfile.ZIP_STORED, {"manifest.json": b"{}", "more": b"x" * 100}), FileError)


@pytest.mark.parametrize("size", [-1, 2**40, 2**62, 2**64, 1e9, 1.0, "9", None, [1]])
def test_impossible_member_sizes_are_refused(size: Any) -> None:
    for name in MEMBERS:
        members = {other: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()} for other in MEMBERS}
        members[name] = {"size": size, "sha256": ""}
        refused(forge(members=members))


def test_member_sizes_that_only_add_up_are_refused() -> None:
    data = forge()
    manifest = json.loads(data[63 : 63 + struct.unpack("<Q", data[55:63])[0]])
    manifest["members"]["config.json"]["size"] += 1
    manifest["members"]["state.json"]["size"] -= 1
    refused(forge(manifest=manifest), match="does not match its digest")


def test_a_manifest_larger_than_any_is_refused() -> None:
    refused(forge(filler="x" * 5000), match="manifest of")
    refused(header("manifest.json", 2**63) + bytes(100), match="manifest of")
    refused(header("manifest.json", 4000) + bytes(100), match="it ends after")


@pytest.mark.parametrize(
    "manifest", [b"[]", b"3", b"null", b'"x"', b"{}", b'{"format":"birl"}', b"{", b'{"a":NaN}', b""]
)
def test_manifests_that_are_none_are_refused(manifest: bytes) -> None:
    refused(header("manifest.json", len(manifest)) + manifest + bytes(200))


@pytest.mark.parametrize("members", [None, [], {}, {"config.json": {}}, dict.fromkeys(MEMBERS, 3)])
def test_manifests_without_members_are_refused(members: Any) -> None:
    refused(forge(members=members))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a file that birl wrote"),
        ({"version": 2}, "not a file that birl wrote"),
        ({"version": "1"}, "not a file that birl wrote"),
        ({"kind": "checkpoint"}, "holds a 'checkpoint', expected a 'model'"),
        ({"kind": None}, "holds a None"),
    ],
)
def test_other_formats_versions_and_kinds(changes: dict[str, Any], message: str) -> None:
    refused(forge(**changes), ForeignFileError, message)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b'{"a":NaN}', b"[" * 100_000, b'{"a":{"$tensor":"x"}}'])
@pytest.mark.parametrize("member", ["config.json", "state.json"])
def test_bad_json_is_refused(text: bytes, member: str) -> None:
    refused(forge({member: text}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        tensors({}, size=2**63),
        tensors({}, size=3),
        tensors(b""),
        tensors([]),
        tensors({"x": 3}),
        tensors({"x": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}),
        tensors({"x": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 8]}}, bytes(8)),
        tensors({"x": {"dtype": "F32", "shape": [0, 2**61, 2**61], "data_offsets": [0, 0]}}),
        tensors({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(9)),
        tensors({"x": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\2"),
    ],
)
def test_lying_safetensors_are_refused(data: bytes) -> None:
    refused(forge({"state.json": b'{"x":{"$tensor":"x"}}', "tensors.safetensors": data}))
