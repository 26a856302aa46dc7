"""A lock that allows one run in a folder. The operating system releases it when its process ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import Timeout

from birl.errors import ResumeError, WriteError
from birl.files import remove_temporary_files
from birl.files.locks import FolderLock

LOCK: Final = ".run.lock"
_RUN_FILES: Final = re.compile(r"checkpoint\.d3c|params\.json|run\.json|model_(\d+|best)\.(d3|json)|\.run\.holder")


@contextlib.contextmanager
def only_run(folder: str | Path) -> Iterator[None]:
    """Return a context in which no other run, in this or another process, writes into a folder. Create the folder.

    Incomplete files of killed runs are removed. If the file system has no locks, a warning is given.

    Raises:
        ResumeError: if another run is active in the folder; the message names its process.
        WriteError: if the folder cannot be created or written to.
    """
    path = Path(folder)
    lock = FolderLock(path, "run", "two runs")
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = lock.acquire()
    except Timeout:
        raise ResumeError(
            f"another run is active in {path} ({lock.holder}): wait for its end, stop it, or give this one another "
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
        for folder_of_run in (path, *path.glob("seed_*")):  # this lock covers the folders of several seeds
            remove_temporary_files(folder_of_run, _RUN_FILES)
        lock.write_holder()
        yield
    finally:
        lock.release()
