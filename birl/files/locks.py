"""Locks on folders. The operating system releases them when their process ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import FileLock

from birl.files.atomic import atomic_write

_TIMEOUT: Final = 1.0  # seconds: workers of a killed process may outlive it briefly
_UNSUPPORTED: Final = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class FolderLock:
    """A lock on an existing folder, for this process or one of its threads.

    Args:
        folder: the folder.
        name: the lock's file is ``.<name>.lock``; ``.<name>.holder`` describes the process that holds it.
        conflict: what the lock prevents, such as ``"two runs"``, for a warning.
    """

    def __init__(self, folder: Path, name: str, conflict: str) -> None:
        self._folder, self._file, self._conflict = folder, folder / f".{name}.holder", conflict
        self._lock = FileLock(folder / f".{name}.lock", timeout=_TIMEOUT, thread_local=False)

    def acquire(self) -> bool:
        """Take the lock. Return False, with a warning, where the file system has no locks.

        Raises:
            filelock.Timeout: if another process holds it, see `holder`.
            OSError: if the folder cannot be written.
        """
        try:
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
        return True

    def write_holder(self) -> None:
        """Record this process as the holder."""
        since = datetime.now(UTC).isoformat("T", "seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        atomic_write(self._file, json.dumps(holder).encode())

    def release(self) -> None:
        """Release the lock."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        self._lock.release()

    @property
    def holder(self) -> str:
        """Description of the process that holds the lock."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} on {found['host']!s:.80}, since {found['since']!s:.40}"
        except (OSError, ValueError, TypeError, KeyError):
            return "of an unknown process"
