"""Means over several learners: a group of processes, which can be made anew after one was lost."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch.distributed
from torch import Tensor

_dist: Any = torch.distributed  # its types tell only a part of it


class Broken(Exception):  # noqa: N818  never seen outside: whoever learns with others catches it
    """One of the group is lost, or does not answer."""


class Group(Protocol):
    """Several learners, numbered from 0."""

    def mean(self, value: Tensor) -> Tensor:
        """The mean of ``value`` over all learners, each of which calls this; the same bits for all.

        Raises:
            Broken: if one of them is lost, or does not call it in time.
        """

    def close(self) -> None:
        """Leave the group: the others notice."""


class Meeting(NamedTuple):
    """Where a group meets.

    Attributes:
        host, port: of the first one's store.
        number: of the group, among those that met there.
        size: number of learners.
        grace: seconds that they wait for one another.
    """

    host: str
    port: int
    number: int
    size: int
    grace: float


class Store:
    """Where groups meet; the first learner has it.

    Args:
        host: address of this machine, as the others know it.
    """

    def __init__(self, host: str) -> None:
        self._host, self._number = host, 0
        self._store = _dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)

    def next(self, size: int, grace: float) -> Meeting:
        """Where a new group meets."""
        self._number += 1
        return Meeting(self._host, self._store.port, self._number, size, grace)

    def join(self, meeting: Meeting, number: int) -> Group:
        """The group, as its first one has it."""
        return Gloo(meeting, number)


class Gloo(Group):
    """A group over gloo. Tensors on other devices pass through the memory of the CPU.

    Nobody else's `torch.distributed` is touched: there is no default process group.

    Args:
        meeting: where it meets. This waits for all.
        number: of this learner, from 0.

    Raises:
        Broken: if one does not come in time.
    """

    def __init__(self, meeting: Meeting, number: int) -> None:
        options, self._size = _dist.ProcessGroupGloo._Options(), meeting.size
        options._timeout = timedelta(seconds=meeting.grace)
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=_own_address(meeting.host, meeting.port))]
        try:
            store = _dist.TCPStore(meeting.host, meeting.port, timeout=options._timeout, wait_for_workers=False)
            own = _dist.PrefixStore(str(meeting.number), store)
            self._group = _dist.ProcessGroupGloo(own, number, meeting.size, options)
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().to("cpu", copy=True)
        try:
            self._group.allreduce([total]).wait()
        except RuntimeError as error:
            raise Broken(str(error)) from error
        return (total / self._size).to(value.device)

    def close(self) -> None:
        self._group.abort()
        del self._group


def _own_address(host: str, port: int) -> str:
    """The address of this machine that ``host`` sees. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
