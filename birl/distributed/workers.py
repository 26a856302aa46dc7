"""Processes that work for this one, told and heard over a pipe each."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, NamedTuple, NoReturn

import torch

from birl.distributed import process_start as beginning
from birl.errors import BirlError, ConfigError, WorkerError

_GRACE: Final = 5.0  # seconds to close an environment
_GONE: Final = (EOFError, OSError)  # what a connection raises whose other side has ended


class Failure(NamedTuple):
    """What a worker sends when its work has failed: the error, or only its text where it does not pickle."""

    error: Exception | None
    text: str


class Ended(Exception):  # noqa: N818  never seen outside: whoever employs workers catches it
    """A process was ended from outside.

    Attributes:
        how: such as ``"by SIGKILL"``.
    """

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Left(BaseException):
    """The owner has no more work, or is gone. Not an ``Exception``, so that nothing on the way catches it."""


class _Pickler(ForkingPickler):
    """Sends tensors as bytes. Torch would share each: by a file in memory, and a socket that ends with its sender."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table[torch.Tensor] = _reduced


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _tensor, (flat.numpy(), tensor.dtype, tensor.shape, tensor.device)


def _tensor(data: Any, dtype: torch.dtype, shape: torch.Size, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).reshape(shape).to(device)


class Owner:
    """The owner of a worker as the worker sees it; `Left` is raised when it is not there any more."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(_Pickler.dumps(message))
        except OSError:
            raise Left from None

    def receive(self) -> Any:
        """Wait for a message."""
        try:
            return self._connection.recv()
        except _GONE:
            raise Left from None


Work = Callable[[Owner, Any], None]
"""What a process does, given its owner and an argument."""


class Worker:
    """A process that does some work.

    A pipe belongs to one worker alone: where one is killed while it writes, no other one waits for a lock, and the
    reader gets an error instead of half a message.

    Args:
        work: a function that can be imported.
        given: its argument, see `check_given`.

    Attributes:
        connection: to be waited for by `multiprocessing.connection.wait`.
    """

    def __init__(self, work: Work, given: Any) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._process = beginning.begin(_run, (work, theirs, given))
        theirs.close()
        self._heard = False  # whether it has begun

    @property
    def number(self) -> int | None:
        """Its number in the system."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message. Raises `Ended` if nobody is there to read it."""
        try:
            self.connection.send_bytes(_Pickler.dumps(message))
        except OSError:
            self._raise_end()

    def receive(self) -> Any:
        """Wait for a message.

        Raises:
            Ended: if the process was ended from outside.
            BirlError: if its work has failed; errors of birl are raised as they are, others as `WorkerError`.
        """
        try:
            message = self.connection.recv()
        except _GONE:
            self._raise_end()
        self._heard = True
        if isinstance(message, Failure):
            raise message.error or WorkerError(
                f"a worker (process {self.number}) has failed, and with it the run. Its error:\n{message.text}"
            )
        return message

    def _raise_end(self) -> NoReturn:
        self._process.join(_GRACE)
        code = beginning.status(self._process)
        if code is not None and code >= 0 and not self._heard:  # Python could not begin, and would not next time
            raise WorkerError(
                f"a worker (process {self.number}) ended with status {code} before it began to work; its words are in "
                'the standard error output. A script must begin runs under `if __name__ == "__main__":`, because '
                "workers import it, and what it defines for them must be importable"
            )
        raise Ended("somehow" if code is None else f"by {_name_of(-code)}" if code < 0 else f"with status {code}")

    def end_now(self) -> None:
        """End it at once, and leave the connection open for those who use it."""
        beginning.kill(self._process)

    def kill(self) -> None:
        """End it at once."""
        self.end_now()
        self.connection.close()


def end(workers: Iterable[Worker]) -> None:
    """Let workers end by themselves, once they look at their connections; those that do not within seconds, at once."""
    workers = list(workers)
    for worker in workers:
        worker.connection.close()
    left = _GRACE
    for worker in workers:
        if not beginning.ended(worker._process, left):
            left = 0.0
            beginning.kill(worker._process)


def first_ready(workers: Iterable[Worker], timeout: float | None = None) -> Worker | None:
    """Wait for a message of any of some workers, or for the end of one, for ``timeout`` seconds at most.

    Returns:
        The first of those that are ready; ``None`` if none is.
    """
    by_connection: Any = {worker.connection: worker for worker in workers}
    ready = multiprocessing.connection.wait(list(by_connection), timeout)
    return next((worker for connection, worker in by_connection.items() if connection in ready), None)


def check_given(name: str, value: Any, advice: str) -> None:
    """Raise `ConfigError` if a value cannot be sent to another process; the message ends with ``advice``."""
    try:
        ForkingPickler.dumps(value)
    except Exception as error:  # whatever classes of users raise
        raise ConfigError(
            f"{name} is {value!r:.80}, which cannot be sent to another process ({error!s:.120}): {advice}"
        ) from error


def _run(work: Work, connection: Any, given: Any) -> None:
    """What a process does from its beginning to its end."""
    beginning.ready()
    try:
        answer(work, connection, given)
    finally:
        beginning.leave()


def answer(work: Work, connection: Any, given: Any) -> None:
    """Work until the owner has left. An error is sent to it."""
    owner = Owner(connection)
    with contextlib.suppress(Left):
        try:
            work(owner, given)
        except Exception as error:
            owner.send(failure(error))


def failure(error: Exception) -> Failure:
    """What a worker sends of an error."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, BirlError):
        return Failure(None, text)
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # an error with arguments of its own
        return Failure(None, text)
    return Failure(error, text)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
