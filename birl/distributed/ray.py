"""Workers and whole runs that Ray places on one machine or many. Only this module imports Ray.

Ray starts and places processes and carries messages. It never restarts a process by itself, nor sends a task twice: a
worker is restarted from a state that only its owner has.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from birl._version import __version__
from birl.distributed.transport import Transport, Worker, WorkerFactory, WorkerLost, no_open_task
from birl.distributed.watchdog import Heartbeat, Watchdog
from birl.errors import BirlError, ConfigError, WorkerError, require

PATIENCE: Final = 30.0
"""Seconds in which resources for a new worker must be found."""
_MAX_RESTARTS: Final = 3
"""Number of times that a run is started again after its process was lost."""
_POLL_INTERVAL: Final = 0.1
_LONGEST_REASON: Final = 2000
"""Number of characters of Ray's reasons in messages. Its texts name the node, the cause and the logs, in this order."""
_SIGNAL_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which a cluster's address must answer."""

RayModule: TypeAlias = Any  # Ray is optional and not typed
ObjectRef: TypeAlias = Any
ActorHandle: TypeAlias = Any


class RayTransport(Transport):
    """Workers that are Ray actors.

    If Ray is already running, it is used and left as it is. Otherwise it is started, and shut down with the workers.

    Args:
        factory: makes the workers.
        address: address of a running cluster; ``None`` for this process's own Ray, which is started if necessary.
        step_timeout: seconds that a worker may stay in one position.
        patience: seconds in which resources must be found again for a worker that was lost.
        resources: resources of each worker, by Ray's names: ``CPU``, ``GPU``, ``memory``, and custom names of the
            cluster; by default a CPU.

    Raises:
        MissingExtraError: if Ray is not installed.
        ConfigError: if no cluster answers at the address.
    """

    def __init__(
        self,
        factory: WorkerFactory,
        address: str | None = None,
        step_timeout: float = 60.0,
        patience: float = 300.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self._ray: Any = require("ray", "ray")
        self._factory, self._owns_ray = factory, not self._ray.is_initialized()
        self._watchdog, self._patience = Watchdog(step_timeout), patience
        if self._owns_ray:
            _connect(self._ray, address)
        self._resources = {name: amount for name, amount in (resources or {"CPU": 1.0}).items() if amount}
        own = dict(self._resources)
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"heartbeats": 1}}
        options |= {"num_cpus": own.pop("CPU", 0), "num_gpus": own.pop("GPU", 0), "memory": own.pop("memory", None)}
        options["resources"] = own
        self._actor_class = self._ray.remote(**options)(_WorkerActor)
        self._actors: dict[int, ActorHandle] = {}
        self._placement_groups: dict[int, Any] = {}  # one for each actor
        self._open: dict[int, deque[ObjectRef]] = {}  # results to come; the first is the heartbeat of a started worker
        self._waited = 0.0  # seconds since workers were asked for heartbeats
        self._heartbeats: dict[int, ObjectRef] = {}  # requested and not received
        self._unplaced: dict[int, float] = {}  # workers that may lack resources, with the seconds to find them

    @property
    def host(self) -> str:
        return str(self._ray.util.get_node_ip_address())

    def start(self, index: int, spec: object) -> None:
        self._unplaced[index] = self._patience if index in self._watchdog else PATIENCE
        self._forget(index)
        group = self._placement_groups[index] = self._ray.util.placement_group([self._resources])
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        try:
            actor = self._actor_class.options(scheduling_strategy=strategy).remote(self._factory, spec, __version__)
        except TypeError as error:  # it cannot be pickled
            why = error.__cause__ or error.__context__ or error  # Ray's own text repeats the whole message
            raise ConfigError(
                f"worker {index} cannot be sent to another process ({why!s:.300}): give the environment by its name, "
                "or a function in a module that can be imported"
            ) from error
        self._actors[index], self._open[index] = actor, deque([actor.start.remote(index)])
        self._watchdog.start(index)

    def share(self, value: object) -> object:
        reference: object = self._ray.put(value)
        return reference

    def send(self, index: int, task: object, payload: object) -> None:
        if not self._open[index]:
            self._watchdog.reset(index)
        self._open[index].append(self._actors[index].carry_out.remote(task, payload))

    def wait(self) -> tuple[int, Any]:
        while True:
            self._wait_for_resources()
            first = {references[0]: index for index, references in self._open.items() if references}
            if not first:
                raise no_open_task()
            start = time.monotonic()
            ready, _ = self._ray.wait(list(first), num_returns=1, timeout=self._watchdog.interval)
            self._waited += time.monotonic() - start
            if self._waited >= self._watchdog.interval:
                self._check_heartbeats([index for reference, index in first.items() if reference not in ready])
            for reference in ready:
                index = first[reference]
                result = self._result(index, reference)
                self._open[index].popleft()
                self._watchdog.reset(index)
                if not isinstance(result, Heartbeat):
                    return index, result
                self._watchdog.record(index, result.position)
            self.while_waiting()

    def _check_heartbeats(self, indices: list[int]) -> None:
        """Ask workers for their positions. End a worker that stays in one position, or does not answer."""
        waited, self._waited = self._waited, 0.0
        for index in indices:
            heartbeat = self._heartbeats.get(index)
            if heartbeat is not None and self._ray.wait([heartbeat], timeout=0)[0]:
                self._watchdog.record(index, self._result(index, self._heartbeats.pop(index)).position)
            if self._watchdog.add_wait(index, waited):
                self._forget(index)
                raise WorkerLost(index, *self._watchdog.describe(index))
            if index not in self._heartbeats and self._watchdog.has_started(index):
                call = self._actors[index].heartbeat.options(concurrency_group="heartbeats")
                self._heartbeats[index] = call.remote()

    def _wait_for_resources(self) -> None:
        """Wait until each new worker has its resources.

        Raises:
            WorkerError: if there are none in time.
        """
        while self._unplaced:
            index = min(self._unplaced)
            seconds = self._unplaced[index]
            if not self._placement_groups[index].wait(seconds):
                cluster, available = self._ray.cluster_resources(), self._ray.available_resources()
                has, free = ({name: found.get(name, 0.0) for name in self._resources} for found in (cluster, available))
                raise WorkerError(
                    f"workers {sorted(self._unplaced)} found no resources within {seconds:g} seconds: each asks for "
                    f"{_format_amounts(self._resources)}; Ray has {_format_amounts(has)}, and {_format_amounts(free)} "
                    "free. Give fewer collectors, ask for less of what is missing, or add machines"
                )
            del self._unplaced[index]

    def _result(self, index: int, reference: ObjectRef) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            self._forget(index)
            how = " ".join(str(error).split())
            raise WorkerLost(index, f"({how:.{_LONGEST_REASON}})") from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, BirlError):
                raise error.cause from None
            raise WorkerError(f"worker {index} has failed, and with it the run. Its error:\n{error}") from None

    def locate(self, index: int) -> str:
        return f"actor {self._actors[index]}"

    def close(self) -> None:
        for index in list(self._placement_groups):
            self._forget(index)
        if self._owns_ray:
            self._ray.shutdown()

    def _forget(self, index: int) -> None:
        self._open.pop(index, None)
        self._heartbeats.pop(index, None)
        if index in self._actors:
            self._ray.kill(self._actors.pop(index), no_restart=True)
        if index in self._placement_groups:  # even if the worker could not be sent there
            self._ray.util.remove_placement_group(self._placement_groups.pop(index))


class Process(Protocol):
    """The part of `subprocess.Popen` that runs on other machines need."""

    def poll(self) -> int | None:
        """Return the exit status, if the process has ended."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process."""


Starter: TypeAlias = Callable[[Sequence[str], Path], Process]
"""Starts a process, given its command and the folder of the run."""


class RayProcess:
    """A process on a machine of the cluster, with the interface of `subprocess.Popen`.

    If the process is lost with its machine, it is started again. Its command must then resume the run.

    Attributes:
        returncode: its exit status; ``None`` while it runs or waits for resources.
    """

    def __init__(self, start: Callable[[], ActorHandle], folder: Path) -> None:
        self._ray: Any = require("ray", "ray")
        self._start, self._folder, self._restarts_left = start, folder, _MAX_RESTARTS
        self._actor, self._poll, self._started = start(), None, False
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; ``None`` while the process runs or waits for resources."""
        if self.returncode is not None:
            return self.returncode
        if self._poll is None:
            self._poll = self._actor.poll.remote()
        if self._ray.wait([self._poll], timeout=0)[0]:
            poll, self._poll = self._poll, None
            try:
                self._set_status(self._ray.get(poll))
                self._started = True
            except self._ray.exceptions.ActorUnavailableError:
                pass  # it may answer the next time
            except self._ray.exceptions.RayActorError as error:
                self._handle_loss(" ".join(str(error).split()), error.actor_init_failed)
        return self.returncode

    def terminate(self) -> None:
        """Ask the process to end. If it still waits for resources, it never starts."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status.

        Raises:
            subprocess.TimeoutExpired: if there is none after ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self._folder), timeout or 0.0)
            time.sleep(_POLL_INTERVAL)
        return status

    def _signal(self, number: int) -> None:
        self._restarts_left = 0
        if self.poll() is not None:
            return
        sent = self._actor.signal.remote(number)
        if not self._started and not self._ray.wait([sent], timeout=_SIGNAL_TIMEOUT)[0]:  # it waits for resources
            self._set_status(-number)

    def _set_status(self, status: int | None) -> None:
        self.returncode = status
        if status is not None:
            self._ray.kill(self._actor, no_restart=True)

    def _handle_loss(self, how: str, never_started: bool) -> None:
        if never_started:
            self.returncode = 1
            raise ConfigError(
                f"the run in {self._folder} cannot start where Ray has put it ({how[-_LONGEST_REASON:]}): all machines "
                f"must have birl, share this folder, and have {Path.cwd()}"
            )
        with open(f"{self._folder}.log", "a", encoding="utf-8") as log:
            log.write(f"Ray has lost this run: {how:.{_LONGEST_REASON}}\n")
        if not self._restarts_left:
            self.returncode = -signal.SIGKILL
            return
        self._restarts_left, self._started = self._restarts_left - 1, False
        self._actor = self._start()


class RayLauncher:
    """Launcher of whole runs on a cluster, each in a process with its own CPU.

    Args:
        starter: starts a process on the machine that Ray has chosen.
        address: see `RayTransport`.
        gpus: number of GPUs for each run.

    Raises:
        MissingExtraError, ConfigError: see `RayTransport`.
    """

    def __init__(self, starter: Starter, address: str | None = None, gpus: int = 0) -> None:
        self._ray: Any = require("ray", "ray")
        self._starter, self._owns_ray = starter, not self._ray.is_initialized()
        if self._owns_ray:
            _connect(self._ray, address)
        if gpus and not self._ray.cluster_resources().get("GPU"):  # Ray would wait for one to join
            self.close()
            raise ConfigError(
                "each run asks for a GPU, and no machine of Ray's cluster has one: choose the device 'cpu', or start "
                "Ray with `ray start --num-gpus` where there are GPUs that it has not found"
            )
        self._actor_class = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(
            _ProcessActor
        )

    def start(self, command: Sequence[str], folder: Path) -> RayProcess:
        """Start a process as soon as there are resources for it.

        Args:
            command: the program and its arguments. The program is replaced by the Python of the other machine.
            folder: folder of the run, on a disk that all machines share.
        """
        arguments = self._starter, list(command[1:]), folder.absolute(), Path.cwd(), __version__
        return RayProcess(lambda: self._actor_class.remote(*arguments), folder.absolute())

    def close(self) -> None:
        """Shut Ray down if this object has started it."""
        if self._owns_ray:
            self._ray.shutdown()


class _ProcessActor:
    """A process on the machine where Ray has placed this actor."""

    def __init__(self, starter: Starter, arguments: list[str], folder: Path, directory: Path, version: str) -> None:
        _check_version(f"the run in {folder}", version)
        os.chdir(directory)  # arguments may name files relative to it
        self._process = starter([sys.executable, *arguments], folder)

    def poll(self) -> int | None:
        """Return the exit status of the process."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)


def _check_version(worker: str, version: str) -> None:
    """Raise `ConfigError` if the machine of a worker has another version of birl than the run.

    Args:
        worker: name of the worker.
        version: version of the run's birl.
    """
    if version != __version__:
        raise ConfigError(
            f"{worker} is on a machine ({platform.node()}) with birl {__version__}, and the run has birl {version}: "
            "install the same version on all machines"
        )


def _connect(ray: RayModule, address: str | None) -> None:
    """Connect to the cluster at an address, or start one on this machine."""
    local = {"include_dashboard": False} if address in (None, "local") else {}
    target = os.environ.get("RAY_ADDRESS", "") if address in (None, "auto") else str(address)
    host, _, port = target.rpartition("//")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray itself waits for minutes, or for ever
            _check_server(host, int(port))
        ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Ray cannot be reached at the address {address!r} ({error!s:.200}): start it with `ray "
            "start --head`, give the address that this prints, or leave address out for a Ray of this machine. If the "
            "cluster asks for a token, RAY_AUTH_TOKEN must be its token here"
        ) from error


def _check_server(host: str, port: int) -> None:
    """Raise `OSError` unless a server answers the first bytes of HTTP/2, which Ray's servers speak."""
    with socket.create_connection((host, port), _CONNECT_TIMEOUT) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # no settings
        try:
            connection.recv(1)  # a server with TLS refuses this, which is an answer, too
        except ConnectionError:
            pass
        except TimeoutError:
            raise OSError(f"no answer within {_CONNECT_TIMEOUT:g} seconds") from None


def _format_amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())


class _WorkerActor:
    """A worker as a Ray actor, which reports heartbeats in a separate thread."""

    def __init__(self, factory: WorkerFactory, spec: object, version: str) -> None:
        self._factory, self._spec, self._version = factory, spec, version
        self._worker: Worker[Any, Any, Any]

    def start(self, index: int) -> Heartbeat:
        """Make the worker with this number."""
        _check_version(f"worker {index}", self._version)
        self._worker = self._factory(self._spec)
        return self.heartbeat()

    def heartbeat(self) -> Heartbeat:
        """Return the position of the worker."""
        return Heartbeat(self._worker.position)

    def carry_out(self, task: object, payload: object) -> object:
        """Carry out a task."""
        result: object = self._worker(task, payload)
        return result
