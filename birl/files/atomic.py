"""Atomic writes, which replace a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from birl.errors import BirlError, ConfigError, FileError, WriteError
from birl.files.reading import PathOrFile

_STALE_SECONDS: Final = 600.0
_TEMPORARY: Final = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")


def atomic_write(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replace the file at ``path``, completely or not at all.

    The content goes to a temporary file in the same folder, which is flushed to the disk and then renamed over
    ``path``. On any exception it is removed and ``path`` is unchanged. A process that is killed leaves a hidden
    ``.<name>.<random>.tmp``; a later write of the same file removes it once it is ten minutes old. Symbolic links
    are followed, and permissions stay. A device or pipe, which a rename would destroy, is written in place.

    Args:
        path: the file.
        content: its bytes, or a function that writes them to the open file. The function may also read the file,
            unless it is a device or a pipe.

    Raises:
        WriteError: for every ``OSError``: full disk, no permission, no such folder.
    """
    if "\0" in os.fsdecode(path):
        raise WriteError(f"cannot write {str(path)!r:.80}: a path has no null character (choose another path)")
    target = Path(os.path.realpath(path))
    write = content if callable(content) else lambda file: file.write(content)
    with convert_to_write_error(path):
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
            former = re.compile(re.escape(target.name))
            remove_temporary_files(target.parent, former, temporary.stat().st_mtime - _STALE_SECONDS)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    _sync_folder(target.parent)


def write_binary(f: PathOrFile, write: Callable[[BinaryIO], object], mode: str = "wb", hint: str = "") -> None:
    """Write to a path, atomically, or to an open file.

    Args:
        f: a path, or a binary file object to write to at its position.
        write: writes to the open file.
        mode: the mode in which to open files, for messages.
        hint: advice at the end of the message if ``f`` is not a path or file.

    Raises:
        ConfigError: if ``f`` is not a path or file.
        WriteError: if the file cannot be written.
    """
    if isinstance(f, str | os.PathLike):
        atomic_write(f, write)
        return
    if not hasattr(f, "write") or isinstance(f, io.TextIOBase):
        raise ConfigError(f"{f!r:.80} is not a file: give a path, or a file opened with open(path, {mode!r}){hint}")
    try:
        with convert_to_write_error(repr(f), f"open it with open(path, {mode!r}), or give the path"):
            write(f)
    except BirlError:
        raise
    except (ValueError, AttributeError) as error:
        raise WriteError(f"cannot write {f!r:.80}: {error} (open it with open(path, {mode!r})") from error


def _existing_mode(path: Path) -> int | None:
    """Return the mode of the existing file, or ``None``."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return mode


def remove_temporary_files(folder: Path, names: re.Pattern[str], before: float = math.inf) -> None:
    """Remove temporary files that killed processes left in a folder.

    Args:
        folder: the folder.
        names: names of the files that were to be replaced. Only temporary names of `atomic_write` match.
        before: newest time of removed files, by the clock of the file system; later ones may be in use.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and names.fullmatch(match[1]) and path.stat().st_mtime < before:
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


_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: free some space and try again",
    errno.EDQUOT: "the disk quota is used up: free some space and try again",
    errno.ENOENT: "its folder does not exist: create it first",
    errno.ENOTDIR: "a part of its path is a file: choose another folder",
    errno.EACCES: "no permission: choose another folder or change its permissions",
    errno.EPERM: "no permission: choose another folder or change its permissions",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EISDIR: "it is a folder: give the name of a file",
}


@contextlib.contextmanager
def convert_to_write_error(label: object, advice: str = "choose another path") -> Iterator[None]:
    """Raise a `WriteError` with advice in place of an ``OSError``.

    Args:
        label: name of the file or folder, for messages.
        advice: advice for errors other than those of a full disk, missing folder or permission.
    """
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        known = _ADVICE.get(error.errno or 0, advice)
        raise WriteError(f"cannot write {label}: {error.strerror or error} ({known})") from error


def reserve_space(path: str | os.PathLike[str], size: int | None = None) -> None:
    """Reserve the space of a file on disk, where the system can; its content does not change.

    Args:
        path: an existing file.
        size: number of bytes; ``None`` for those of the file.

    Raises:
        OSError: if the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with open(path, "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size if size is None else size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # the file system cannot reserve
                raise
