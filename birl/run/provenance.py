"""Where a run comes from: its command, and the commit of the folder that it was started in."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
import sys
from typing import Any

from birl._version import __version__


def origin() -> dict[str, Any]:
    """The command that started this process, birl's version, and the commit of the working folder, if it has one.

    ``-dirty`` after the commit says that files differed from it. Environment variables are nowhere: they hold secrets.
    """
    return {"command": shlex.join(sys.argv), "birl": __version__, "commit": _commit(os.getcwd())}


@functools.cache
def _commit(folder: str) -> str | None:
    words = ["git", "-C", folder, "--no-optional-locks", "describe", "--always", "--dirty"]
    words += ["--abbrev=40", "--exclude=*"]  # the whole commit, and no tags
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
        return found.stdout.strip() or None
    return None
