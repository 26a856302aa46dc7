"""Locks on folders, of the operating system: they end with the process that holds them."""

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

_PATIENCE: Final = 1.0  # seconds: workers of a killed process may outlive it for a moment
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class FolderLock:
    """A lock in a folder that exists, for this process or one of its threads.

    Args:
        folder: the folder.
        name: the lock's file is ``.<name>.lock``; ``.<name>.holder`` says who holds it.
        many: what would not be noticed without locks, for a warning: ``"two runs"``.
    """

    def __init__(self, folder: Path, name: str, many: str) -> None:
        self._folder, self._file, self._many = folder, folder / f".{name}.holder", many
        self._lock = FileLock(folder / f".{name}.lock", timeout=_PATIENCE, thread_local=False)

    def acquire(self) -> bool:
        """Take the lock. False, with a warning, where the file system has none.

        Raises:
            filelock.Timeout: if somebody has it, see `holder`.
            OSError: if the folder cannot be written.
        """
        try:
            self._lock.acquire()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{self._folder} cannot be locked: {self._many} there would not be noticed",
                RuntimeWarning,
                stacklevel=3,
            )
            return False
        return True

    def sign(self) -> None:
        """Say who holds it."""
        since = datetime.now(UTC).isoformat("T", "seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        atomic_write(self._file, json.dumps(holder).encode())

    def release(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        self._lock.release()

    @property
    def holder(self) -> str:
        """The process that holds the lock, in words."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} on {found['host']!s:.80}, since {found['since']!s:.40}"
        except (OSError, ValueError, TypeError, KeyError):
            return "of an unknown process"
