"""Start and end of worker processes, which are forked from a server on Linux and spawned on other systems.

The server is Python's fork server: a process that has imported birl, has no threads and does nothing. A process that is
forked from it starts like a spawned one: with the current environment variables and working directory, and with its own
random numbers.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Final

import numpy as np
import torch

from birl import seeding

_PRELOADED: Final = "birl.algos"  # the server imports it, and with it everything that runs use
_SIGNALS: Final = (signal.SIGINT,)
_UNKNOWN: Final = 255
"""The exit code of a process whose server is gone: its status is unknown, and it may still be running."""


def _contexts() -> list[SpawnContext | ForkServerContext]:
    """Return the contexts that can start processes, the best one first."""
    spawned = multiprocessing.get_context("spawn")
    if sys.platform != "linux":  # libraries of other systems do not survive a fork
        return [spawned]
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload([_PRELOADED])
    return [forked, spawned]


def start_process(target: Callable[..., None], args: tuple[object, ...]) -> BaseProcess:
    """Start a process that runs ``target(*args)``.

    The target must call `initialize_process` first and `run_exit_handlers` last.
    """
    *better, last = _contexts()
    for context in better:
        process = context.Process(target=target, args=args, name=_Name("worker"), daemon=True)
        # A server cannot start if the temporary folder has a long name, or in a fork of a process that has a server
        with contextlib.suppress(OSError, EOFError), _signals_blocked(), _same_module_path():
            process.start()
            return process
    process = last.Process(target=target, args=args, name="worker", daemon=True)
    with _signals_blocked():
        process.start()
    return process


class _Name(str):
    """The name of a process, which carries the environment variables.

    The new process unpickles its name first, which sets the variables before further modules are imported. Otherwise it
    would have the variables with which the server was started.
    """

    def __init__(self, name: str) -> None:
        self._environment = dict(os.environ)

    def __reduce__(self) -> tuple[Callable[[str, dict[str, str]], str], tuple[str, dict[str, str]]]:
        return _set_environment, (str(self), self._environment)


def _set_environment(name: str, environment: dict[str, str]) -> str:
    os.environ.clear()
    os.environ.update(environment)
    return name


@contextlib.contextmanager
def _same_module_path() -> Iterator[None]:
    """Return a context in which a new server searches this process's module path, not its working directory first."""
    changed = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def initialize_process() -> None:
    """Seed the global random generators of a new process and set its signal handlers."""
    np.random.seed()  # Python itself seeds `random`
    torch.seed()
    seeding.forget_seed()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the owner decides
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def run_exit_handlers() -> None:
    """Run the ``atexit`` handlers of a process, for example of environments. Python skips them in forked processes."""
    atexit._run_exitfuncs()


def exit_status(process: BaseProcess) -> int | None:
    """Return the exit status of a process; ``None`` if it is running or its status is unknown."""
    code = process.exitcode
    return None if code == _UNKNOWN else code


def kill_process(process: BaseProcess) -> None:
    """Kill a process, and wait for its end."""
    if process.exitcode == _UNKNOWN and process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def wait_for_end(process: BaseProcess, timeout: float) -> bool:
    """Wait for the end of a process. Return whether it ended within ``timeout`` seconds."""
    limit = time.monotonic() + timeout
    process.join(timeout)
    if process.exitcode != _UNKNOWN or process.pid is None:
        return not process.is_alive()
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process.pid, 0)
            if time.monotonic() >= limit:
                return False
            time.sleep(0.05)
    return True


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Return a context that delays Ctrl-C, also in processes that are started in it until they are initialised."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # otherwise the first process would start it, and that unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
