"""How workers begin, and how they are ended: forked from a server on Linux, spawned elsewhere.

The server is Python's: a process that has imported birl, has no threads and does nothing. What is forked from it begins
as a spawned process does, with the environment variables and the folder of this moment and random numbers of its own.
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
from typing import Any, Final

import numpy as np
import torch

from birl import seeding

_IMPORTED: Final = "birl.algos"  # by the server, and with it all that runs use
_SIGNALS: Final = (signal.SIGINT,)
_UNKNOWN: Final = 255
"""The status of a process whose server is gone, which nobody knows: it may well be running."""


def _contexts() -> list[Any]:
    """Ways in which processes can begin, the best one first."""
    spawned = multiprocessing.get_context("spawn")
    if sys.platform != "linux":  # libraries of other systems do not bear to be forked
        return [spawned]
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload([_IMPORTED])
    return [forked, spawned]


def begin(target: Callable[..., None], args: tuple[Any, ...]) -> Any:
    """A process that has begun with ``target(*args)``, which calls `ready` first and `leave` last."""
    *better, last = _contexts()
    for context in better:
        process = context.Process(target=target, args=args, name=_Name("worker"), daemon=True)
        # There is no server where the folder of temporary files has a long name, or in a fork of a process that has one
        with contextlib.suppress(OSError, EOFError), _signals_blocked(), _same_modules():
            process.start()
            return process
    process = last.Process(target=target, args=args, name="worker", daemon=True)
    with _signals_blocked():
        process.start()
    return process


class _Name(str):
    """The name of a process. It is read first there, and sets the environment variables: modules that come next look.

    The server's are those of its own beginning.
    """

    def __init__(self, name: str) -> None:
        self._environment = dict(os.environ)

    def __reduce__(self) -> Any:
        return _with_environment, (str(self), self._environment)


def _with_environment(name: str, environment: dict[str, str]) -> str:
    os.environ.clear()
    os.environ.update(environment)
    return name


@contextlib.contextmanager
def _same_modules() -> Iterator[None]:
    """Context in which a server that begins looks for modules where this process does; not in its folder first."""
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


def ready() -> None:
    """In a new process: it is."""
    np.random.seed()  # Python does so with its own generator
    torch.seed()
    seeding.renew()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the owner decides
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def leave() -> None:
    """The last call in a process: what environments have asked for at its end, which Python skips in forked ones."""
    atexit._run_exitfuncs()


def status(process: Any) -> int | None:
    """Its status; ``None`` if it is running, or nobody knows."""
    code: int | None = process.exitcode
    return None if code == _UNKNOWN else code


def kill(process: Any) -> None:
    """End it at once."""
    if process.exitcode == _UNKNOWN:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def ended(process: Any, timeout: float) -> bool:
    """Whether it ends within ``timeout`` seconds."""
    limit = time.monotonic() + timeout
    process.join(timeout)
    if process.exitcode != _UNKNOWN:
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
    """Context in which Ctrl-C waits, and is still held back in processes that begin there until they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would end the blocking when the first process begins
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
