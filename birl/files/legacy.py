"""Files of birl 0.1: an uncompressed zip of a manifest, two JSON texts and a safetensors file.

Each member follows a header of fixed size, so they are read in order, without the zip's directory. The manifest holds
their sizes and digests.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, Final, TypeAlias

from torch import Tensor

from birl.files.reading import corrupt, foreign, take
from birl.files.strict_json import parse_json
from birl.files.tensors import load_tensors

ReadArrays: TypeAlias = Callable[[], dict[str, Tensor]]

ZIP_START: Final = b"PK\3\4"
_MANIFEST: Final = b"manifest.json"
_HEADER_BYTES: Final = 50  # beside the name; the last 8 are the size
_MAX_MANIFEST_BYTES: Final = 4096


def read_legacy(file: BinaryIO, label: str) -> tuple[Any, Any, Any, ReadArrays]:
    """Kind, config, state, and a function that reads the arrays.

    Raises:
        CorruptFileError: if the file is damaged.
        ForeignFileError: if it is a zip of another program.
    """
    header = take(file, _HEADER_BYTES + len(_MANIFEST), label)
    if header[30 : 30 + len(_MANIFEST)] != _MANIFEST:
        raise foreign(label, header)
    size = struct.unpack("<Q", header[-8:])[0]
    if size > _MAX_MANIFEST_BYTES:
        raise corrupt(label, f"it announces a manifest of {size} bytes, at most {_MAX_MANIFEST_BYTES} are allowed")
    manifest = parse_json(take(file, size, label), label)
    contents = []
    try:
        if (manifest["format"], manifest["version"]) != ("birl", 1):
            raise foreign(label, b"")
        for name in ("config.json", "state.json", "tensors.safetensors"):
            take(file, _HEADER_BYTES + len(name), label)
            member = manifest["members"][name]
            contents.append(take(file, member["size"], label))
            if hashlib.sha256(contents[-1]).hexdigest() != member["sha256"]:
                raise corrupt(label, f"the content of {name} does not match its digest")
        kind = manifest["kind"]
    except (KeyError, TypeError) as error:
        raise corrupt(label, f"its manifest does not describe it ({error})") from error
    config, tree, tensors = contents
    header = parse_json(tensors[8 : 8 + int.from_bytes(tensors[:8], "little")], label)
    read_arrays = functools.partial(load_tensors, tensors, header, label)
    return kind, parse_json(config, label), parse_json(tree, label), read_arrays
