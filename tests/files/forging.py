"""Archives of an attacker's choice, with valid digests; the check that they are refused."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.errors import CorruptFileError, FileError
from birl.files import load_archive, save_archive

DIGEST = slice(35, 99)
"""Where the digest of the header stands in a file."""


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


def loaded(data: bytes, way: str = "object") -> tuple[dict[str, Any], dict[str, Any]]:
    """Load from a file object or, which is other code, from a path."""
    if way == "object":
        return load_archive(io.BytesIO(data), "model")
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        return load_archive(file.name, "model")


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def sealed(text: bytes, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with this header, whose digest is put where its place is."""
    file = bytearray(struct.pack("<Q", len(text) if size is None else size) + text + data)
    file[DIGEST] = hashlib.sha256(file[DIGEST.stop : 8 + len(text)]).hexdigest().encode()
    return bytes(file)


def forge(entries: dict[str, Any] | bytes = b"{}", content: bytes = b"", **metadata: Any) -> bytes:
    """A file of these arrays, with the metadata of the writer but for the ones given."""
    given = {"sha256": "0" * 64, "format": "birl", "version": "2", "kind": "model", "config": "{}", "state": "{}"}
    given |= {"data": hashlib.sha256(content).hexdigest()}
    text = json.dumps({"__metadata__": given | metadata}, separators=(",", ":")).encode()
    more = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return sealed(text[:-1] + b"," + more.lstrip()[1:] if more.strip() != b"{}" else text, content)


def refused(data: bytes, error: type[FileError] = CorruptFileError, match: str | None = None) -> None:
    """Loading raises ``error`` and needs no more memory than a few times the file's size."""
    for way in ("object", "path"):
        tracemalloc.start()
        try:
            with pytest.raises(error, match=match):
                loaded(data, way)
            assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 2**20
        finally:
            tracemalloc.stop()
