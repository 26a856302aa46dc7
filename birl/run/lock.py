"""One run in a folder: a lock of the operating system, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from birl.errors import ResumeError, WriteError
from birl.files import atomic_write, remove_torn

LOCK: Final = ".run.lock"
_HOLDER: Final = ".run.holder"
_PATIENCE: Final = 1.0  # seconds: workers of a killed process may outlive it for a moment
_OURS: Final = re.compile(r"checkpoint\.d3c|params\.json|run\.json|model_(\d+|best)\.(d3|json)|\.run\.holder")
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextlib.contextmanager
def only_run(folder: str | Path) -> Iterator[None]:
    """Context in which no other run writes into a folder, in this process or in another. The folder is made.

    What killed runs have left half written there is removed. A file system without locks gives a warning.

    Raises:
        ResumeError: if another run is at work in the folder: the message names its process.
        WriteError: if the folder cannot be made or written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK, timeout=_PATIENCE)
        lock.acquire()
    except Timeout:
        raise ResumeError(
            f"another run is at work in {path} ({_holder(path)}): wait for its end, stop it, or give this one another "
            "folder"
        ) from None
    except (OSError, NotImplementedError) as error:
        if not isinstance(error, OSError) or error.errno in _NO_LOCKS:
            warnings.warn(f"{path} cannot be locked: two runs there would not be noticed", RuntimeWarning, stacklevel=2)
            yield
            return
        raise WriteError(
            f"the folder {path} cannot be made or written ({error.strerror}): give another checkpoint= or another "
            "logger_adapter="
        ) from error
    try:
        for place in (path, *path.glob("seed_*")):  # those of many seeds are written under this lock
            remove_torn(place, _OURS)
        since = datetime.now(UTC).isoformat("T", "seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        atomic_write(path / _HOLDER, json.dumps(holder).encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            (path / _HOLDER).unlink()
        lock.release()


def _holder(folder: Path) -> str:
    """The process that holds the lock, in words."""
    try:
        found = json.loads((folder / _HOLDER).read_text(encoding="utf-8"))
        return f"process {int(found['pid'])} on {found['host']!s:.80}, since {found['since']!s:.40}"
    except (OSError, ValueError, TypeError, KeyError):
        return "of an unknown process"
