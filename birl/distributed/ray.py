"""Workers, and whole runs, on one machine or many, by Ray: the only file that knows it.

Ray starts and places processes and carries messages. It never restarts one by itself, nor sends an order twice: a
worker that is made anew goes on from a state, which only its owner has.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from birl._version import __version__
from birl.distributed.transport import Begin, Gone, Transport, check_version, idle
from birl.distributed.watchdog import Alive, Watch
from birl.errors import BirlError, ConfigError, WorkerError, require

PATIENCE: Final = 30.0
"""Seconds in which a place for a worker must be found."""
_LOST: Final = 3
"""How often a run whose process was lost is begun again."""
_POLL: Final = 0.1
_SENT: Final = 5.0
_ANSWER: Final = 10.0
"""Seconds in which a cluster's address must answer."""


class Remote(Transport):
    """Workers that are Ray's actors.

    A Ray that runs already is used and left as it is; else one is started, and ended with the workers.

    Args:
        begin: makes the work of a worker.
        address: of a running cluster; ``None`` for this process's own Ray, which is started if there is none.
        step_timeout: seconds that a worker may stay in one place.
        patience: seconds in which a new place must be found for a worker that was lost.
        asked: what each worker is given, by Ray's names: ``CPU``, ``GPU``, ``memory``, and a cluster's own.

    Raises:
        MissingExtraError: if Ray is not installed.
        ConfigError: if nobody answers at the address.
    """

    def __init__(
        self,
        begin: Begin,
        address: str | None = None,
        step_timeout: float = 60.0,
        patience: float = 300.0,
        asked: Mapping[str, float] | None = None,
    ) -> None:
        self._ray: Any = require("ray", "ray")
        self._begin, self._own = begin, not self._ray.is_initialized()
        self._watch, self._patience = Watch(step_timeout), patience
        if self._own:
            _reach(self._ray, address)
        self._asked = {name: amount for name, amount in (asked or {"CPU": 1.0}).items() if amount}
        own = dict(self._asked)
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"signs": 1}}
        options |= {"num_cpus": own.pop("CPU", 0), "num_gpus": own.pop("GPU", 0), "memory": own.pop("memory", None)}
        options["resources"] = own
        self._kind = self._ray.remote(**options)(_Actor)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Any] = {}  # that are kept for one actor each
        self._open: dict[int, deque[Any]] = {}  # answers that are to come; first, that it has begun
        self._waited = 0.0  # seconds since somebody was asked where it is
        self._signs: dict[int, Any] = {}  # questions where it is
        self._unplaced: dict[int, float] = {}  # those started whose place is not sure yet, with the seconds for that

    @property
    def host(self) -> str:
        """Address of this machine, as workers know it."""
        return str(self._ray.util.get_node_ip_address())

    def start(self, index: int, given: Any) -> None:
        self._unplaced[index] = self._patience if index in self._watch else PATIENCE
        self._forget(index)
        place = self._places[index] = self._ray.util.placement_group([self._asked])
        scheduling = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(place)
        try:
            actor = self._kind.options(scheduling_strategy=scheduling).remote(self._begin, given)
        except TypeError as error:  # it cannot be pickled
            why = error.__cause__ or error.__context__ or error  # Ray's own text repeats all that is sent
            raise ConfigError(
                f"worker {index} cannot be sent to another process ({why!s:.300}): give the environment by its name, "
                "or a function in a module that can be imported"
            ) from error
        self._actors[index], self._open[index] = actor, deque([actor.begin.remote()])
        self._watch.start(index)

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def send(self, index: int, order: Any, beside: Any) -> None:
        if not self._open[index]:
            self._watch.moved(index)
        self._open[index].append(self._actors[index].carry_out.remote(order, beside))

    def wait(self) -> tuple[int, Any]:
        while True:
            self._wait_for_places()
            first = {references[0]: index for index, references in self._open.items() if references}
            if not first:
                raise idle()
            begin = time.monotonic()
            ready, _ = self._ray.wait(list(first), num_returns=1, timeout=self._watch.slice)
            self._waited += time.monotonic() - begin
            if self._waited >= self._watch.slice:
                self._look([index for reference, index in first.items() if reference not in ready])
            for reference in ready:
                index = first[reference]
                answer = self._answer(index, reference)
                self._open[index].popleft()
                self._watch.moved(index)
                if not isinstance(answer, Alive):
                    return index, answer
                self._watch.saw(index, answer.place)
            self.while_waiting()

    def _look(self, indices: list[int]) -> None:
        """Ask workers where they are. One that stays there, or does not say, is ended."""
        waited, self._waited = self._waited, 0.0
        for index in indices:
            sign = self._signs.get(index)
            if sign is not None and self._ray.wait([sign], timeout=0)[0]:
                self._watch.saw(index, self._answer(index, self._signs.pop(index)).place)
            if self._watch.waited(index, waited):
                self._forget(index)
                raise Gone(index, *self._watch.verdict(index))
            if index not in self._signs and self._watch.begun(index):
                self._signs[index] = self._actors[index].sign.options(concurrency_group="signs").remote()

    def _wait_for_places(self) -> None:
        """Wait until there is a place for each of those that have been started.

        Raises:
            WorkerError: if there is none in time.
        """
        while self._unplaced:
            index = min(self._unplaced)
            seconds = self._unplaced[index]
            if not self._places[index].wait(seconds):
                there, free = self._ray.cluster_resources(), self._ray.available_resources()
                has, left = ({name: found.get(name, 0.0) for name in self._asked} for found in (there, free))
                raise WorkerError(
                    f"workers {sorted(self._unplaced)} found no place within {seconds:g} seconds: each asks for "
                    f"{_amounts(self._asked)}; Ray has {_amounts(has)}, of which {_amounts(left)} free. Give fewer "
                    "collectors, ask for less of what is missing, or add machines"
                )
            del self._unplaced[index]

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
        for index in list(self._places):
            self._forget(index)
        if self._own:
            self._ray.shutdown()

    def _forget(self, index: int) -> None:
        self._open.pop(index, None)
        self._signs.pop(index, None)
        if index in self._actors:
            self._ray.kill(self._actors.pop(index), no_restart=True)
        if index in self._places:  # also of one that could not be sent there
            self._ray.util.remove_placement_group(self._places.pop(index))


class Placed:
    """A process on one of the machines, as `subprocess.Popen` has it.

    If it is lost with its machine it is begun again: what it runs must go on by the same command.

    Attributes:
        returncode: its exit status; ``None`` while it runs, or waits for a place.
    """

    def __init__(self, start: Callable[[], Any], folder: Path) -> None:
        self._ray: Any = require("ray", "ray")
        self._start, self._folder, self._left = start, folder, _LOST
        self._actor, self._question, self._begun = start(), None, False
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, ``None`` if it runs or waits."""
        if self.returncode is not None:
            return self.returncode
        if self._question is None:
            self._question = self._actor.poll.remote()
        if self._ray.wait([self._question], timeout=0)[0]:
            question, self._question = self._question, None
            try:
                self._end(self._ray.get(question))
                self._begun = True
            except self._ray.exceptions.ActorUnavailableError:
                pass  # it may answer the next time
            except self._ray.exceptions.RayActorError as error:
                self._lost(" ".join(str(error).split()), error.actor_init_failed)
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end; where it has no place yet, it never begins."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when there is one.

        Raises:
            subprocess.TimeoutExpired: if there is none after so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self._folder), timeout or 0.0)
            time.sleep(_POLL)
        return status

    def _signal(self, number: int) -> None:
        self._left = 0
        if self.poll() is not None:
            return
        sent = self._actor.signal.remote(number)
        if not self._begun and not self._ray.wait([sent], timeout=_SENT)[0]:  # it still waits for a place
            self._end(-number)

    def _end(self, status: int | None) -> None:
        self.returncode = status
        if status is not None:
            self._ray.kill(self._actor, no_restart=True)

    def _lost(self, how: str, never_begun: bool) -> None:
        if never_begun:
            self.returncode = 1
            raise ConfigError(
                f"the run in {self._folder} cannot begin where Ray has put it ({how[-300:]}): all machines must have "
                f"birl, share this folder, and have {Path.cwd()}"
            )
        with open(f"{self._folder}.log", "a", encoding="utf-8") as log:
            log.write(f"Ray has lost this run: {how:.200}\n")
        if not self._left:
            self.returncode = -signal.SIGKILL
            return
        self._left, self._begun = self._left - 1, False
        self._actor = self._start()


class Places:
    """Places for whole runs, each a process with a processor of its own.

    Args:
        begin: begins a process, of its command and folder.
        address: see `Remote`.
        gpus: number of GPUs that each has for itself.

    Raises:
        MissingExtraError, ConfigError: as `Remote`.
    """

    def __init__(self, begin: Callable[[Sequence[str], Path], Any], address: str | None = None, gpus: int = 0) -> None:
        self._ray: Any = require("ray", "ray")
        self._begin, self._own = begin, not self._ray.is_initialized()
        if self._own:
            _reach(self._ray, address)
        if gpus and not self._ray.cluster_resources().get("GPU"):  # Ray would wait for one to join
            self.close()
            raise ConfigError(
                "each run asks for a GPU, and no machine of Ray's cluster has one: choose the device 'cpu', or start "
                "Ray with `ray start --num-gpus` where there are GPUs that it has not found"
            )
        self._kind = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Process)

    def begin(self, command: Sequence[str], folder: Path) -> Placed:
        """Begin a process as soon as there is room.

        Args:
            command: the program, which is the other machine's own Python, and its words.
            folder: what it writes to, and beside it, on a disk that all machines share.
        """
        given = self._begin, list(command[1:]), folder.absolute(), Path.cwd(), __version__
        return Placed(lambda: self._kind.remote(*given), folder.absolute())

    def close(self) -> None:
        """Leave Ray, and end it if it was begun here."""
        if self._own:
            self._ray.shutdown()


class _Process:
    """A process on the machine where Ray has put this actor."""

    def __init__(self, begin: Any, words: list[str], folder: Path, here: Path, version: str) -> None:
        check_version(f"the run in {folder}", version)
        os.chdir(here)  # words may name files from there
        self._process = begin([sys.executable, *words], folder)

    def poll(self) -> int | None:
        """Its exit status."""
        found: int | None = self._process.poll()
        return found

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)


def _reach(ray: Any, address: str | None) -> None:
    """Join the cluster there, or begin one on this machine."""
    local = {"include_dashboard": False} if address in (None, "local") else {}
    there = os.environ.get("RAY_ADDRESS", "") if address in (None, "auto") else str(address)
    host, _, port = there.rpartition("//")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray itself waits for minutes, or for ever
            _greet(host, int(port))
        ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Ray cannot be reached at the address {address!r} ({error!s:.200}): start it with `ray "
            "start --head`, give the address that this prints, or leave address out for a Ray of this machine. If the "
            "cluster asks for a token, RAY_AUTH_TOKEN must be its token here"
        ) from error


def _greet(host: str, port: int) -> None:
    """Begin to talk to a server of Ray's, which speaks HTTP/2, and raise `OSError` if it does not answer."""
    with socket.create_connection((host, port), _ANSWER) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # no settings
        try:
            connection.recv(1)  # one with TLS refuses this, which is an answer, too
        except ConnectionError:
            pass
        except TimeoutError:
            raise OSError(f"nothing there answers within {_ANSWER:g} seconds") from None


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())


class _Actor:
    """A worker as Ray sees it. It tells where it is in a thread beside that of its work."""

    def __init__(self, begin: Begin, given: Any) -> None:
        self._given: Any = begin, given
        self._work: Any = None

    def begin(self) -> Alive:
        """Make the work."""
        begin, given = self._given
        self._work = begin(given)
        return self.sign()

    def sign(self) -> Alive:
        """Where it is in its work."""
        return Alive(self._work.place)

    def carry_out(self, order: Any, beside: Any) -> Any:
        """Carry out an order."""
        return self._work(order, beside)
