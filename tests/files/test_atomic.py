"""A file is replaced completely, or stays as it was."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from birl.errors import WriteError
from birl.files import atomic_write, save_archive
from files.forging import example


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
            if self.tell() > 300:
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


LEFT = (".a.000000000001.tmp", ".a.000000000002.tmp", ".b.000000000001.tmp")


def test_leftovers_of_killed_processes_are_cleared(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in LEFT)
    for path in (old, young, other):
        path.write_bytes(b"left")
    for path in (old, other):
        os.utime(path, (0, 0))
    atomic_write(tmp_path / "a", write_hello)
    assert sorted(p.name for p in tmp_path.iterdir()) == [*LEFT[1:], "a"]
