"""Worker processes on this machine, each connected to its owner by a pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, NamedTuple, NoReturn

import torch

from birl.distributed import process_start
from birl.errors import BirlError, ConfigError, WorkerError
from birl.types import Array

_GRACE: Final = 5.0  # seconds to close an environment
_CLOSED: Final = (EOFError, OSError)  # errors of a connection whose other side has ended


class Failure(NamedTuple):
    """Message of a worker that has failed: its error, or only the text if the error cannot be pickled."""

    error: Exception | None
    text: str


class ProcessEnded(Exception):  # noqa: N818  internal: callers of `WorkerProcess` catch it
    """A worker process was ended from outside.

    Attributes:
        how: how it was ended, such as ``"by SIGKILL"``.
    """

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class OwnerGone(BaseException):
    """The owner has no more tasks, or has ended. It is not an ``Exception``, so that other handlers do not catch it."""


class _Pickler(ForkingPickler):
    """Pickler that sends tensors as bytes. Torch's would share each one by a file in memory and a socket."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table[torch.Tensor] = _reduce_tensor


def pickle_message(message: object) -> bytes | memoryview:
    """Pickle a message to a worker or its owner."""
    return _Pickler.dumps(message)


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _rebuild_tensor, (flat.numpy(), tensor.dtype, tensor.shape, tensor.device)


def _rebuild_tensor(data: Array, dtype: torch.dtype, shape: torch.Size, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).reshape(shape).to(device)


class OwnerConnection:
    """A worker's connection to its owner. Both methods raise `OwnerGone` if the owner has closed it or has ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(pickle_message(message))
        except OSError:
            raise OwnerGone from None

    def receive(self) -> Any:
        """Wait for a message."""
        try:
            return self._connection.recv()
        except _CLOSED:
            raise OwnerGone from None


Target = Callable[[OwnerConnection, Any], None]
"""The function that a worker process runs, called with the connection to its owner and an argument."""


class WorkerProcess:
    """A process that runs a function.

    Each worker has its own pipe. If it is killed while it writes, no other worker waits for a lock, and the reader gets
    an error instead of half a message.

    Args:
        target: function that can be imported.
        argument: argument of the function; see `check_picklable`.

    Attributes:
        connection: connection to the process, for `multiprocessing.connection.wait`.
    """

    def __init__(self, target: Target, argument: object) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._process = process_start.start_process(_run, (target, theirs, argument))
        theirs.close()
        self._has_answered = False

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._process.pid

    def send(self, message: bytes | memoryview) -> None:
        """Send the result of `pickle_message`. Raise `ProcessEnded` if the process has ended."""
        try:
            self.connection.send_bytes(message)
        except OSError:
            self._raise_end()

    def receive(self) -> Any:
        """Wait for a message.

        Raises:
            ProcessEnded: if the process was ended from outside.
            BirlError: if the worker has failed. Errors of birl are raised as they are, others as `WorkerError`.
        """
        try:
            message = self.connection.recv()
        except _CLOSED:
            self._raise_end()
        self._has_answered = True
        if isinstance(message, Failure):
            raise message.error or WorkerError(
                f"a worker (process {self.pid}) has failed, and with it the run. Its error:\n{message.text}"
            )
        return message

    def _raise_end(self) -> NoReturn:
        self._process.join(_GRACE)
        code = process_start.exit_status(self._process)
        if code is not None and code >= 0 and not self._has_answered:  # a restart would end in the same way
            raise WorkerError(
                f"a worker (process {self.pid}) ended with status {code} before it started to work; its messages are "
                'in the standard error output. A script must start runs under `if __name__ == "__main__":`, because '
                "workers import it, and what it defines for them must be importable"
            )
        if code is None:
            how = "for an unknown reason, because the process that started it has ended, too"
        else:
            how = f"by {_signal_name(-code)}" if code < 0 else f"with status {code}"
        raise ProcessEnded(how)

    def terminate(self) -> None:
        """Kill the process and leave the connection open for the threads that use it."""
        process_start.kill_process(self._process)

    def kill(self) -> None:
        """Kill the process and close the connection."""
        self.terminate()
        self.connection.close()


def stop_all(workers: Iterable[WorkerProcess]) -> None:
    """Close the connections of workers, which end them; kill workers that are still running after some seconds."""
    workers = list(workers)
    for worker in workers:
        worker.connection.close()
    grace = _GRACE
    for worker in workers:
        if not process_start.wait_for_end(worker._process, grace):
            grace = 0.0
            process_start.kill_process(worker._process)


def wait_any(workers: Iterable[WorkerProcess], timeout: float | None = None) -> WorkerProcess | None:
    """Wait for a message from any worker, or for the end of one, for ``timeout`` seconds at most.

    Returns:
        The first worker, in the order of ``workers``, that is ready; ``None`` if none is.
    """
    by_connection: dict[object, WorkerProcess] = {worker.connection: worker for worker in workers}
    ready = multiprocessing.connection.wait([worker.connection for worker in by_connection.values()], timeout)
    return next((worker for connection, worker in by_connection.items() if connection in ready), None)


def check_picklable(name: str, value: object, advice: str) -> None:
    """Raise `ConfigError` if a value cannot be sent to another process; the message ends with ``advice``."""
    try:
        ForkingPickler.dumps(value)
    except Exception as error:  # classes of users may raise any error
        raise ConfigError(
            f"{name} is {value!r:.80}, which cannot be sent to another process ({error!s:.120}): {advice}"
        ) from error


def _run(target: Target, connection: Connection, argument: object) -> None:
    """Run a worker process until its owner is gone. An error is sent to the owner."""
    process_start.initialize_process()
    owner = OwnerConnection(connection)
    try:
        target(owner, argument)
    except OwnerGone:
        pass
    except Exception as error:
        with contextlib.suppress(OwnerGone):
            owner.send(make_failure(error))
    finally:
        process_start.run_exit_handlers()


def make_failure(error: Exception) -> Failure:
    """Make the message that a worker sends about an error."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, BirlError):
        return Failure(None, text)
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # the constructor of the error has other arguments
        return Failure(None, text)
    return Failure(error, text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
