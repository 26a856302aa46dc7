"""Workers on one machine or many, by Ray: the only file that knows it.

Ray starts and places processes and carries messages. It never restarts one by itself, nor sends an order twice: a
worker that is made anew goes on from a state, which only its owner has.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Final

from birl.distributed.transport import Begin, Gone, Transport
from birl.errors import BirlError, ConfigError, WorkerError, require

PATIENCE: Final = 30.0
"""Seconds in which a place for a worker must be found."""


class Remote(Transport):
    """Workers that are Ray's actors.

    A Ray that runs already is used and left as it is; else one is started, and ended with the workers.

    Args:
        begin: makes the work of a worker.
        address: of a running cluster; ``None`` for this process's own Ray, which is started if there is none.

    Raises:
        MissingExtraError: if Ray is not installed.
        ConfigError: if nobody answers at the address.
    """

    def __init__(self, begin: Begin, address: str | None = None) -> None:
        self._ray: Any = require("ray", "ray")
        self._begin, self._own = begin, not self._ray.is_initialized()
        if self._own:
            self._init(address)
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self._kind = self._ray.remote(**options)(_Actor)
        self._actors: dict[int, Any] = {}
        self._open: dict[int, deque[Any]] = {}
        self._begun: dict[int, Any] = {}  # of workers of which nobody knows yet that they have a place

    def _init(self, address: str | None) -> None:
        local = {"include_dashboard": False} if address is None else {}
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"Cluster.address is {address!r}, and Ray cannot be reached there ({error!s:.200}): start it with `ray "
                "start --head`, give the address that this prints, or leave address out for a Ray of this machine"
            ) from error

    def start(self, index: int, given: Any) -> None:
        self._forget(index)
        try:
            actor = self._kind.remote(self._begin, given)
        except TypeError as error:  # it cannot be pickled
            raise ConfigError(
                f"worker {index} cannot be sent to another process ({error!s:.300}): give the environment by its name, "
                "or a function in a module that can be imported"
            ) from error
        self._actors[index], self._open[index] = actor, deque()
        self._begun[index] = actor.begin.remote()

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def send(self, index: int, order: Any, beside: Any) -> None:
        self._open[index].append(self._actors[index].carry_out.remote(order, beside))

    def wait(self) -> tuple[int, Any]:
        self._wait_for_places()
        first = {references[0]: index for index, references in self._open.items() if references}
        (ready,), _ = self._ray.wait(list(first), num_returns=1)
        index = first[ready]
        answer = self._answer(index, ready)
        self._open[index].popleft()
        return index, answer

    def _wait_for_places(self) -> None:
        while self._begun:
            by_reference = {reference: index for index, reference in self._begun.items()}
            ready, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=PATIENCE)
            if not ready:
                free, there = self._ray.available_resources(), self._ray.cluster_resources()
                raise WorkerError(
                    f"workers {sorted(self._begun)} found no place within {PATIENCE:.0f} seconds: each asks for 1 CPU, "
                    f"of which Ray has {there.get('CPU', 0):.0f} and {free.get('CPU', 0):.0f} are free. Give fewer "
                    "collectors, or add machines"
                )
            index = by_reference[ready[0]]
            self._answer(index, ready[0])
            del self._begun[index]

    def _answer(self, index: int, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            self._forget(index)
            how = " ".join(str(error).split())
            raise Gone(index, f"({how:.200})") from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, BirlError):
                raise error.cause from None
            raise WorkerError(f"worker {index} has failed, and with it the run. Its error:\n{error}") from None

    def close(self) -> None:
        for index in list(self._actors):
            self._forget(index)
        if self._own:
            self._ray.shutdown()

    def _forget(self, index: int) -> None:
        self._open.pop(index, None)
        self._begun.pop(index, None)
        if index in self._actors:
            self._ray.kill(self._actors.pop(index), no_restart=True)


class _Actor:
    """A worker as Ray sees it."""

    def __init__(self, begin: Begin, given: Any) -> None:
        self._given: Any = begin, given
        self._work: Any = None

    def begin(self) -> int:
        """Make the work. Returns the process's number."""
        begin, given = self._given
        self._work = begin(given)
        return os.getpid()

    def carry_out(self, order: Any, beside: Any) -> Any:
        """Carry out an order."""
        return self._work(order, beside)
