"""Atomic writing: a file is replaced completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from birl.errors import FileError, WriteError

_STALE_SECONDS: Final = 600.0
_TEMPORARY: Final = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")


def atomic_write(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replace the file at ``path``, completely or not at all.

    The content goes to a temporary file in the same folder, which is flushed to the disk and then renamed over
    ``path``. On any exception it is removed and ``path`` is unchanged. A process that is killed leaves a hidden
    ``.<name>.<random>.tmp``; a later write of the same file removes it once it is ten minutes old. Symbolic links
    are followed and permissions are kept. A device or pipe, which a rename would destroy, is written in place.

    Args:
        path: the file.
        content: its bytes, or a function that writes them to the open file. The function may also read the file,
            unless it is a device or a pipe.

    Raises:
        WriteError: for every ``OSError``: full disk, no permission, no such folder.
    """
    target = Path(os.path.realpath(path))
    write = content if callable(content) else lambda file: file.write(content)
    try:
        mode = _existing_mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as device:
                write(device)
            return
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        try:
            with open(temporary, "x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            _remove_stale_files(target, temporary)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except FileError:
        raise
    except OSError as error:
        raise write_error(str(path), error) from error
    _sync_folder(target.parent)


def _existing_mode(path: Path) -> int | None:
    """Return the mode of the existing file, or ``None``."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return mode


def _remove_stale_files(target: Path, temporary: Path) -> None:
    """Remove old temporary files of killed processes; their age is measured by the clock of the file system."""
    with contextlib.suppress(OSError):
        now = temporary.stat().st_mtime
        for other in target.parent.iterdir():
            ours = other.name.startswith(f".{target.name}.") and other.name.endswith(".tmp")
            if ours and other != temporary and now - other.stat().st_mtime > _STALE_SECONDS:
                other.unlink()


def remove_temporary_files(folder: Path, names: re.Pattern[str]) -> None:
    """Remove temporary files that killed processes left in a folder without other writers.

    Args:
        folder: the folder.
        names: names of the files that were to be replaced. Only temporary names of `atomic_write` match.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and names.fullmatch(match[1]):
                path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush the folder, so that the rename survives a power cut."""
    # The new file is already complete and in place, so failing to flush the folder is not an error.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_error(label: str, error: OSError) -> WriteError:
    """Return the `WriteError` for ``error``, with advice."""
    advice = {
        errno.ENOSPC: "the disk is full: free some space and try again",
        errno.EDQUOT: "the disk quota is used up: free some space and try again",
        errno.ENOENT: "its folder does not exist: create it first",
        errno.ENOTDIR: "a part of its path is a file: choose another folder",
        errno.EACCES: "no permission: choose another folder or change its permissions",
        errno.EPERM: "no permission: choose another folder or change its permissions",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EISDIR: "it is a folder: give the name of a file",
    }.get(error.errno or 0, "nothing was replaced")
    return WriteError(f"cannot write {label}: {error.strerror or error} ({advice})")
