"""One run in a folder: a lock of the operating system, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import Timeout

from birl.errors import ResumeError, WriteError
from birl.files import remove_torn
from birl.files.locks import FolderLock

LOCK: Final = ".run.lock"
_OURS: Final = re.compile(r"checkpoint\.d3c|params\.json|run\.json|model_(\d+|best)\.(d3|json)|\.run\.holder")


@contextlib.contextmanager
def only_run(folder: str | Path) -> Iterator[None]:
    """Context in which no other run writes into a folder, in this process or in another. The folder is made.

    What killed runs have left half written there is removed. A file system without locks gives a warning.

    Raises:
        ResumeError: if another run is at work in the folder: the message names its process.
        WriteError: if the folder cannot be made or written.
    """
    path = Path(folder)
    lock = FolderLock(path, "run", "two runs")
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = lock.acquire()
    except Timeout:
        raise ResumeError(
            f"another run is at work in {path} ({lock.holder}): wait for its end, stop it, or give this one another "
            "folder"
        ) from None
    except OSError as error:
        raise WriteError(
            f"the folder {path} cannot be made or written ({error.strerror}): give another checkpoint= or another "
            "logger_adapter="
        ) from error
    if not held:
        yield
        return
    try:
        for place in (path, *path.glob("seed_*")):  # those of many seeds are written under this lock
            remove_torn(place, _OURS)
        lock.sign()
        yield
    finally:
        lock.release()
