"""Locks on folders. The operating system releases them when their process ends."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import socket
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from birl.files.atomic import atomic_write
from birl.files.strict_json import parse_json

_TIMEOUT: Final = 1.0  # seconds: workers of a killed process may outlive it briefly
_UNSUPPORTED: Final = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
# filelock's substitute where a file system has no locks, a file that exists, would outlive killed processes.
_NATIVE_ONLY: Final = (
    {"fallback_to_soft": False} if "fallback_to_soft" in inspect.signature(FileLock.__init__).parameters else {}
)
_make_lock: Final[Callable[..., BaseFileLock]] = FileLock


class FolderLock:
    """A lock on an existing folder, for this process or one of its threads.

    Args:
        folder: the folder.
        name: the lock's file is ``.<name>.lock``; ``.<name>.holder`` describes the process that holds it.
        conflict: what the lock prevents, such as ``"two runs"``, for a warning.
    """

    def __init__(self, folder: Path, name: str, conflict: str) -> None:
        self._folder, self._file, self._conflict = folder, folder / f".{name}.holder", conflict
        self._lock = _make_lock(folder / f".{name}.lock", timeout=_TIMEOUT, thread_local=False, **_NATIVE_ONLY)

    def acquire(self) -> bool:
        """Take the lock. Return False, with a warning, where the file system has no locks.

        Raises:
            filelock.Timeout: if another process holds it, see `holder`, also if the lock's file was removed meanwhile.
            OSError: if the folder cannot be written.
        """
        try:
            if FileLock is SoftFileLock:  # this build of Python has no locks
                raise NotImplementedError
            self._lock.acquire()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
                raise
            warnings.warn(
                f"{self._folder} cannot be locked: {self._conflict} in it would not be detected",
                RuntimeWarning,
                stacklevel=3,
            )
            return False
        if self._held_by_living_process():
            self._lock.release()
            raise Timeout(self._lock.lock_file)
        return True

    def _held_by_living_process(self) -> bool:
        """Return whether the recorded holder still runs, although the lock is free: its file was removed."""
        with contextlib.suppress(OSError):
            match parse_json(self._file.read_bytes(), str(self._file)):
                case {"pid": int(pid), "host": str(host), "started": str(started), "folder": folder}:
                    here = host == socket.gethostname() and folder == self._identity()  # not in a copy of the folder
                    return here and started == _start_time(pid)
        return False

    def write_holder(self) -> None:
        """Record this process as the holder."""
        since = datetime.now(UTC).isoformat("T", "seconds")
        pid = os.getpid()
        holder = {"pid": pid, "host": socket.gethostname(), "since": since}
        holder |= {"started": _start_time(pid), "folder": self._identity()}
        atomic_write(self._file, json.dumps(holder).encode())

    def _identity(self) -> list[int]:
        """Return numbers that identify the folder, also after it was renamed."""
        about = self._folder.stat()
        return [about.st_dev, about.st_ino]

    def release(self) -> None:
        """Release the lock."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        self._lock.release()

    @property
    def holder(self) -> str:
        """Description of the process that holds the lock."""
        with contextlib.suppress(OSError):
            match parse_json(self._file.read_bytes(), str(self._file)):
                case {"pid": int(pid), "host": str(host), "since": str(since)}:
                    return f"process {pid} on {host:.80}, since {since:.40}"
        return "of an unknown process"


def _start_time(pid: int) -> str | None:
    """Return when a process was started, as Linux writes it; ``None`` elsewhere. With the id it names one process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
