"""Groups of learners that average tensors. They are formed again after a learner was lost."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

import torch.distributed
from torch import Tensor

_dist: Final[Any] = torch.distributed  # only partly typed


class GroupBroken(Exception):  # noqa: N818  internal: learners catch it
    """A member of the group is lost or does not answer."""


class LearnerGroup(Protocol):
    """Several learners, numbered from 0."""

    def all_reduce_mean(self, value: Tensor) -> Tensor:
        """Return the mean of ``value`` over all learners. Every learner must call this; all get the same bits.

        Raises:
            GroupBroken: if a learner is lost, or does not call it in time.
        """

    def close(self) -> None:
        """Leave the group, which breaks it for the others."""


class Rendezvous(NamedTuple):
    """Address at which the members of a new group find each other.

    Attributes:
        host, port: address of the first learner's store.
        number: number of the group in this store.
        size: number of learners.
        timeout: seconds that learners wait for each other.
    """

    host: str
    port: int
    number: int
    size: int
    timeout: float


class GroupStore(Protocol):
    """Store in which the members of a group find each other. The first learner holds it."""

    def new_rendezvous(self, size: int, timeout: float) -> Rendezvous:
        """Return the rendezvous of a new group."""

    def join(self, rendezvous: Rendezvous, number: int) -> LearnerGroup:
        """Join a group as its first learner."""


class GlooStore(GroupStore):
    """Store of groups that communicate by gloo. It has no authentication, and listens at one address only.

    Args:
        host: address at which other learners reach this machine.
    """

    def __init__(self, host: str) -> None:
        self._host, self._number = host, 0
        # Torch's own socket would listen at every address of this machine.
        with socket.create_server((host, 0), backlog=128) as listening:
            port = listening.getsockname()[1]
            self._store = _dist.TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )

    def new_rendezvous(self, size: int, timeout: float) -> Rendezvous:
        self._number += 1
        return Rendezvous(self._host, self._store.port, self._number, size, timeout)

    def join(self, rendezvous: Rendezvous, number: int) -> LearnerGroup:
        return GlooGroup(rendezvous, number)


class GlooGroup(LearnerGroup):
    """Group that communicates by gloo. Tensors on other devices are copied to the CPU and back.

    It is not the default process group of `torch.distributed`, which programs may use for themselves.

    Args:
        rendezvous: rendezvous of the group. The constructor waits for all members.
        number: number of this learner, from 0.

    Raises:
        GroupBroken: if a member does not arrive in time.
    """

    def __init__(self, rendezvous: Rendezvous, number: int) -> None:
        host, port, group_number, self._size, timeout = rendezvous
        options = _dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout)
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=_own_address(host, port))]
        try:
            store = _dist.TCPStore(host, port, timeout=options._timeout, wait_for_workers=False)
            prefixed = _dist.PrefixStore(str(group_number), store)
            self._group = _dist.ProcessGroupGloo(prefixed, number, self._size, options)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def all_reduce_mean(self, value: Tensor) -> Tensor:
        total = value.detach().to("cpu", copy=True)
        try:
            self._group.allreduce([total]).wait()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error
        return (total / self._size).to(value.device)

    def close(self) -> None:
        self._group.abort()
        del self._group


def _own_address(host: str, port: int) -> str:
    """Return the address at which ``host`` reaches this machine. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
