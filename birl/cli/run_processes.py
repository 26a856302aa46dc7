"""Runs of ``birl train`` as processes of their own, which go on or end by themselves."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from birl.cli.common import note

PATIENCE: Final = 60.0
"""Seconds in which a run writes its checkpoint once it is told to end."""
_LEASH: Final = "BIRL_LEASH"


class Process(Protocol):
    """A run's process, here or on another machine."""

    returncode: int | None

    def poll(self) -> int | None:
        """The exit status, if it has ended."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when there is one; see `subprocess.Popen.wait`."""


Begin = Callable[[Sequence[str], Path], Process]
"""Begins a run, of its command and folder; see `starter`."""


@contextmanager
def starter(jobs: int, address: str | None, device: str = "cpu") -> Iterator[Begin]:
    """How runs are begun.

    Args:
        jobs: see `begin`.
        address: of Ray's cluster, which places them; ``None`` for this machine without Ray.
        device: of the runs: Ray places those that learn on a GPU where it has one that is free.
    """
    if address is None:
        yield partial(begin, jobs=jobs)
        return
    from birl.distributed.ray import RayLauncher  # it imports Ray

    launcher = RayLauncher(partial(begin, jobs=1, leashed=True), address, gpus=int(device.startswith("cuda")))
    try:
        yield launcher.start
    finally:
        launcher.close()


def begin(command: Sequence[str], folder: Path, jobs: int, leashed: bool = False) -> subprocess.Popen[bytes]:
    """Begin a run on this machine.

    Args:
        command: the program and its words.
        folder: of the run; what it says goes into a file beside it, see `last_line`.
        jobs: how many runs there are at once, which share the processors.
        leashed: whether it is killed as soon as this process is gone; see `hold_leash`.
    """
    threads = {} if jobs == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    leash = {_LEASH: "1"} if leashed else {}
    with open(f"{folder}.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if leashed else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**threads, **os.environ, **leash},
            start_new_session=True,  # Ctrl-C in the terminal is for this process, which then ends the runs
        )


def hold_leash() -> None:
    """Where this process was begun leashed, kill it once the other end of its standard input is gone.

    The run is then begun again elsewhere, and its folder has to be free.
    """
    if os.environ.pop(_LEASH, None):
        threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock the end of the program would wait for
        pass
    os._exit(1)  # at once: what is under way is not to be written any more


def last_line(folder: Path) -> str:
    """What the run in a folder said last."""
    text = Path(f"{folder}.log").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    return lines[-1] if lines else "nothing on standard error"


def end(running: Sequence[Process]) -> None:
    """End runs, which write their checkpoints; those that do not within a minute, or after Ctrl-C, are killed."""
    try:
        for each in running:
            each.terminate()
        until = monotonic() + PATIENCE
        for each in running:
            each.wait(max(0.0, until - monotonic()))
    except subprocess.TimeoutExpired:
        note("runs that do not end are killed")
    finally:
        for each in running:
            if each.poll() is None:
                each.kill()
                each.wait()


def command_words(context: Any, without: Sequence[str] = ()) -> list[str]:
    """The words of a command line, but those of some parameters. Every value is written after its option."""
    found: list[str] = []
    arguments: list[str] = []
    for param in context.command.params:
        source, value = context.get_parameter_source(param.name), context.params.get(param.name)
        if param.name in without or source is None or source.name != "COMMANDLINE":
            continue
        values = list(value) if isinstance(value, list | tuple) else [value]
        if param.param_type_name == "argument":
            arguments += [str(each) for each in values]
        elif getattr(param, "is_flag", False):
            found.append(param.opts[0])
        else:
            found += [word for each in values for word in (param.opts[0], str(each))]
    return [*arguments, *found]
