"""Runs of ``birl train`` as separate processes: starting, watching and ending them."""

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
from typing import Final, Protocol

import typer

from birl.cli.common import note
from birl.errors import ConfigError

GRACE_PERIOD: Final = 60.0
"""Seconds in which a run must write its checkpoint after it is asked to end."""
_EXIT_WITH_PARENT: Final = "BIRL_EXIT_WITH_PARENT"


class Process(Protocol):
    """The process of a run, on this machine or another."""

    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit status, if the process has ended."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; see `subprocess.Popen.wait`."""


StartProcess = Callable[[Sequence[str], Path], Process]
"""Function that starts a run from its command and folder; see `process_starter`."""


@contextmanager
def process_starter(jobs: int, address: str | None, device: str = "cpu") -> Iterator[StartProcess]:
    """Yield a function that starts runs.

    Args:
        jobs: see `start_process`.
        address: address of the Ray cluster that executes the runs; ``None`` for this machine without Ray.
        device: device of the runs. If it is a GPU, Ray assigns one to each run.

    Raises:
        ConfigError: if the device is another GPU than the first, which is the only one that a placed run sees.
    """
    if address is None:
        yield partial(start_process, jobs=jobs)
        return
    if device.startswith("cuda") and device not in ("cuda", "cuda:0"):
        raise ConfigError(
            f"--device is {device!r}; with --address it must be 'cuda' or 'cpu', because Ray assigns one GPU to each "
            "run, and a run sees only this one: give --device cuda"
        )
    from birl.distributed.ray import RayLauncher  # it imports Ray

    launcher = RayLauncher(
        partial(start_process, jobs=1, exit_with_parent=True), address, gpus=int(device.startswith("cuda"))
    )
    try:
        yield launcher.start
    finally:
        launcher.close()


def start_process(
    command: Sequence[str], folder: Path, jobs: int, exit_with_parent: bool = False
) -> subprocess.Popen[bytes]:
    """Start a run on this machine.

    Args:
        command: the program and its arguments.
        folder: folder of the run; its standard error is appended to ``<folder>.log``, see `last_line`.
        jobs: number of runs at the same time, which share the processors.
        exit_with_parent: whether the run is killed as soon as this process ends; see `follow_parent`.
    """
    threads = {} if jobs == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    follow = {_EXIT_WITH_PARENT: "1"} if exit_with_parent else {}
    with open(f"{folder}.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if exit_with_parent else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**threads, **os.environ, **follow},
            start_new_session=True,  # Ctrl-C in the terminal is for this process, which then ends the runs
        )


def follow_parent() -> None:
    """Kill this process when its parent ends, if `start_process` was called with ``exit_with_parent``.

    The run is then restarted on another machine, so its folder has to be free. The parent holds the other end of
    standard input, which closes when the parent ends.
    """
    if os.environ.pop(_EXIT_WITH_PARENT, None):
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()


def _exit_at_end_of_input() -> None:
    while os.read(0, 1):  # not sys.stdin, because the end of the program would wait for its lock
        pass
    os._exit(1)  # at once, because nothing more may be written into the folder


def last_line(folder: Path) -> str:
    """Return the last line that the run in a folder wrote to standard error."""
    text = Path(f"{folder}.log").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    return lines[-1] if lines else "nothing on standard error"


def end_processes(running: Sequence[Process]) -> None:
    """Ask runs to end, so that they write checkpoints; kill those that still run after a minute or a Ctrl-C."""
    try:
        for process in running:
            process.terminate()
        deadline = monotonic() + GRACE_PERIOD
        for process in running:
            process.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        note("runs that do not end are killed")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def command_words(context: typer.Context, without: Sequence[str] = ()) -> list[str]:
    """Return the words of a command line without those of some parameters, and with every value after its option."""
    arguments: list[str] = []
    options: list[str] = []
    for param in context.command.params:
        source, value = context.get_parameter_source(str(param.name)), context.params.get(str(param.name))
        if param.name in without or source is None or source.name != "COMMANDLINE":
            continue
        values = list(value) if isinstance(value, list | tuple) else [value]
        if param.param_type_name == "argument":
            arguments += [str(item) for item in values]
        elif getattr(param, "is_flag", False):
            options.append(param.opts[0])
        else:
            options += [word for item in values for word in (param.opts[0], str(item))]
    return [*arguments, *options]
