"""Files of an attacker's choice, digests and all, get no memory and no code run."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.errors import CorruptFileError, FileError, ForeignFileError
from birl.files import parse_json
from birl.files.archive import DTYPES
from birl.files.reading import MAX_JSON_BYTES
from birl.files.state_tree import unpack
from files.forging import forge, loaded, raw, refused, saved, sealed


def test_the_forger_makes_loadable_files() -> None:
    entries = {"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    data = forge(entries, b"\1\2", state='{"a":{"$array":"x"}}')
    assert loaded(data)[1]["a"].tolist() == loaded(data, "path")[1]["a"].tolist() == [1, 2]


# ------------------------------------------------------------------------------------------------ the header


@pytest.mark.parametrize("size", [0, 1, 90, MAX_JSON_BYTES, 2**31, 2**62, 2**63, 2**64 - 9, 2**64 - 1])
def test_headers_that_are_not_there_are_not_even_looked_for(size: int) -> None:
    good = forge()
    refused(struct.pack("<Q", size) + good[8:])
    refused(sealed(good[8:], size=size))


def test_a_header_larger_than_any_is_refused() -> None:
    refused(forge(filler=" " * MAX_JSON_BYTES), match="announces a header")


@pytest.mark.parametrize("extra", [b"\0", b"x" * 100, b"{}"])
def test_bytes_before_between_and_after_are_refused(extra: bytes) -> None:
    data = saved()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    for damaged in (extra + data, data[:end] + extra + data[end:], data + extra):
        refused(damaged, FileError)


@pytest.mark.parametrize("missing", ["format", "version", "kind", "config", "state", "data"])
def test_metadata_that_are_not_there_are_refused(missing: str) -> None:
    data = forge()
    text = json.loads(data[8:])
    del text["__metadata__"][missing]
    refused(sealed(json.dumps(text, separators=(",", ":")).encode()), match="its metadata")


@pytest.mark.parametrize("value", [None, 3, True, [], {}, ["{}"]])
@pytest.mark.parametrize("key", ["format", "version", "kind", "config", "state", "data"])
def test_metadata_that_are_no_text_are_refused(key: str, value: Any) -> None:
    refused(forge(**{key: value}), match="its metadata")


def test_more_metadata_are_refused() -> None:
    refused(forge(more="x"), match="its metadata")
    refused(forge(b'{"__metadata__":{}}'), match="a key occurs twice")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": "other"}, ForeignFileError, "not a file that birl wrote"),
        ({"version": "3"}, ForeignFileError, "version '3'; it must be '2': update birl"),
        ({"version": "1"}, ForeignFileError, "version '1'; it must be '2'"),
        ({"version": "9" * 5000}, ForeignFileError, "version '999"),
        ({"kind": "checkpoint"}, ForeignFileError, "holds a 'checkpoint', expected a 'model'"),
        ({"kind": ""}, ForeignFileError, "holds a ''"),
        ({"data": "0" * 64}, CorruptFileError, "the arrays does not match its digest"),
        ({"data": ""}, CorruptFileError, "the arrays does not match its digest"),
    ],
)
def test_other_formats_versions_kinds_and_digests(
    changes: dict[str, Any], error: type[FileError], message: str
) -> None:
    refused(forge(**changes), error, message)


# -------------------------------------------------------------------------------------------------- the JSON

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
@pytest.mark.parametrize("member", ["config", "state", "header"])
def test_bad_json_is_refused(text: bytes, member: str) -> None:
    with pytest.raises(CorruptFileError):
        parse_json(text, "text")
    if member == "header":
        refused(sealed(forge()[8:-1] + b',"x":' + text + b"}"))
    elif b"\xff" not in text:  # a text inside of the header is UTF-8, or the header is not
        refused(forge(**{member: text.decode()}))


def test_a_lone_surrogate_is_refused() -> None:
    for member in ("config", "state"):
        refused(forge(**{member: '{"a": "\ud800"}'}))


def test_json_that_would_swell_is_refused() -> None:
    refused(forge(state='{"a":[' + "{}," * 1_000_000 + "1]}"), match="more than allowed")
    refused(forge(b'{"a":[' + b"{}," * 1_000_000 + b"1]}"), match="more than allowed")
    refused(forge(state=" " * (MAX_JSON_BYTES + 1)), match="at most")
    with pytest.raises(CorruptFileError, match="more than allowed"):
        parse_json(b" " * (MAX_JSON_BYTES + 1), "text")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"$tensor": "x"}',
        '{"a": {"$tensor": "x"}}',
        '{"a": {"$tensor": 3}}',
        '{"a": {"$array": ["x"]}}',
        '{"a": {"$scalar": {"x": 1}}}',
        '{"a": {"$float": "1.5"}}',
        '{"a": {"$float": [1]}}',
        '{"a": {"$float": Infinity}}',
        '{"a": {"$tuple": {}}}',
        '{"a": {"$pickle": "gASVHAAAAAAAAACMCGJ1aWx0aW5zlIwFcHJpbnSUk5Q="}}',
        '{"a": {"$float": "nan", "b": 1}}',
        '{"$": 1}',
        '{"a": ' + "[" * 80 + "]" * 80 + "}",
    ],
)
def test_bad_references_are_refused(text: str) -> None:
    refused(forge(state=text))
    refused(forge(config=text))


def test_arrays_are_used_once_and_all() -> None:
    with pytest.raises(CorruptFileError, match="used twice"):
        unpack({"a": {"$array": "x"}, "b": {"$array": "x"}}, {"x": torch.ones(1)})
    with pytest.raises(CorruptFileError, match="1 arrays are not referenced"):
        unpack({}, {"x": torch.ones(1)})


def test_arrays_come_back_as_what_was_saved_only() -> None:
    with pytest.raises(CorruptFileError, match="numpy lacks"):
        unpack({"a": {"$array": "x"}}, {"x": torch.ones(1, dtype=torch.bfloat16)})
    with pytest.raises(CorruptFileError, match="scalar"):
        unpack({"a": {"$scalar": "x"}}, {"x": torch.ones(1)})


# ------------------------------------------------------------------------------------------------ the arrays


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


BAD_TENSORS: dict[str, tuple[Any, int]] = {
    "entry is no object": ({"x": 3}, 0),
    "entry is a list": ({"x": ["F32", [2], [0, 8]]}, 8),
    "entry lacks a field": ({"x": {"dtype": "F32", "shape": [2]}}, 8),
    "entry has more fields": ({"x": entry(more=1)}, 8),
    "entry has a field twice": (b'{"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', 1),
    "duplicate names": (b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}}', 0),
    "unknown dtype": ({"x": entry("O")}, 8),
    "dtype that numpy does not have": ({"x": entry("C64", [1])}, 8),
    "dtype of half a byte": ({"x": entry("F4", [16])}, 8),
    "dtype of six bits": ({"x": entry("F6_E2M3", [4], [0, 3])}, 3),
    "dtype of a scale": ({"x": entry("F8_E8M0", [8])}, 8),
    "dtype is a list": ({"x": entry(["F32"])}, 8),
    "dtype is null": ({"x": entry(None)}, 8),
    "huge size": ({"x": entry("U8", [2**40], [0, 2**40])}, 0),
    "huge size, honest offsets": ({"x": entry("U8", [2**40], [0, 8])}, 8),
    "shape that overflows 64 bits to 0": ({"x": entry("F32", [2**32, 2**32], [0, 0])}, 0),
    "shape that overflows 64 bits to 8": ({"x": entry("F32", [2**62 + 2], [0, 8])}, 8),
    "shape of huge integers": ({"x": entry("F32", [10**4000], [0, 8])}, 8),
    "empty but with an overflowing shape": ({"x": entry("F32", [0, 2**61, 2**61], [0, 0])}, 0),
    "empty but with an overflowing shape, zero last": ({"x": entry("F32", [2**61, 2**61, 0], [0, 0])}, 0),
    "empty but with a huge extent": ({"x": entry("F32", [0, 2**63], [0, 0])}, 0),
    "too many dimensions": ({"x": entry("F32", [1] * 33, [0, 4])}, 4),
    "many too many dimensions": ({"x": entry("F32", [1] * 100_000, [0, 4])}, 4),
    "negative extent": ({"x": entry("F32", [-2], [0, -8])}, 0),
    "two negative extents": ({"x": entry("F32", [-1, -2], [0, 8])}, 8),
    "fractional extent": ({"x": entry("F32", [2.0], [0, 8])}, 8),
    "boolean extent": ({"x": entry("F32", [True], [0, 4])}, 4),
    "shape is a number": ({"x": entry("F32", 2, [0, 8])}, 8),
    "shape is null": ({"x": entry("F32", None, [0, 8])}, 8),
    "offsets of another size": ({"x": entry("F32", [2], [0, 4])}, 4),
    "offsets past the end": ({"x": entry("F32", [2], [0, 8])}, 4),
    "offsets that overflow": ({"x": entry("F32", [2], [2**64 - 8, 2**64])}, 8),
    "offsets behind a gap past the end": ({"x": entry("F32", [2], [2**40, 2**40 + 8])}, 8),
    "negative offsets": ({"x": entry("F32", [2], [-8, 0])}, 8),
    "reversed offsets": ({"x": entry("F32", [2], [8, 0])}, 8),
    "boolean offsets": ({"x": entry("U8", [1], [False, True])}, 1),
    "three offsets": ({"x": entry("F32", [2], [0, 8, 16])}, 8),
    "one offset": ({"x": entry("F32", [2], [0])}, 8),
    "overlap": ({"x": entry(), "y": entry()}, 8),
    "overlap in part": ({"x": entry(), "y": entry(offsets=[4, 12])}, 12),
    "gap": ({"x": entry(), "y": entry(offsets=[12, 20])}, 20),
    "gap at the start": ({"x": entry(offsets=[4, 12])}, 12),
    "bytes that belong to nothing": ({"x": entry()}, 9),
    "no arrays but bytes": ({}, 1),
    "many arrays in the same place": ({f"x{i}": entry("U8", [8], [0, 8]) for i in range(1000)}, 8),
}


@pytest.mark.parametrize(("entries", "size"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_lying_headers_are_refused(entries: Any, size: int) -> None:
    names = ["x"] if isinstance(entries, bytes) else list(entries)
    # The state asks for exactly the arrays that are announced, so that nothing else is wrong.
    refused(forge(entries, bytes(size), state=json.dumps({name: {"$tensor": name} for name in names})))
    refused(forge(entries, bytes(size), state=json.dumps({name: {"$array": name} for name in names})))


def test_a_bool_that_is_2_is_refused() -> None:
    for position in range(3):
        data = bytearray(3)
        data[position] = 2
        entries = {"x": entry("BOOL", [3], [0, 3])}
        refused(forge(entries, bytes(data), state='{"x":{"$tensor":"x"}}'), match="is not bool")


@pytest.mark.parametrize("way", ["object", "path"])
@given(
    st.dictionaries(
        st.sampled_from("xyz"),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from([*DTYPES.values(), "C64", "F4", ""]),
                "shape": st.lists(st.integers(-1, 3) | st.sampled_from([2**31, 2**62]), max_size=3),
                "data_offsets": st.lists(st.integers(-1, 20), min_size=2, max_size=2),
            }
        ),
    ),
    st.binary(max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_header_says_arrays_stay_inside_the_file(way: str, header: dict[str, Any], data: bytes) -> None:
    references = {name: {"$tensor": name} for name in header}
    try:
        _, state = loaded(forge(header, data, state=json.dumps(references)), way)
    except CorruptFileError:
        return
    assert b"".join(raw(tensor) for tensor in state.values()) == data


def test_arrays_of_a_shape_with_a_zero_load() -> None:
    data = forge({"x": entry("F32", [0, 3], [0, 0])}, state='{"x":{"$array":"x"}}')
    assert loaded(data)[1]["x"].shape == loaded(data, "path")[1]["x"].shape == (0, 3)
    assert loaded(data)[1]["x"].dtype == np.float32
