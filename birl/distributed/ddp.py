"""Data-parallel training: gradients averaged over processes."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported here: its default arguments keep the group of the first import
from torch import Tensor, nn

from birl.errors import ConfigError
from birl.logging import NoopAdapterFactory
from birl.types import State


class _Engine(Protocol):
    reduce: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None


class _Algorithm(Protocol):
    """The part of a built algorithm that data-parallel training needs."""

    @property
    def nets(self) -> nn.Module: ...
    @property
    def engine(self) -> _Engine: ...
    @property
    def torch_device(self) -> torch.device: ...
    def describe(self) -> dict[str, Any]: ...
    def save_model(self, fname: io.BytesIO) -> None: ...
    def load_model(self, fname: io.BytesIO) -> None: ...


class _Dataset(Protocol):
    def get_state(self, *, contents: bool = ...) -> State: ...
    def set_state(self, state: State) -> None: ...


def init_process_group(backend: str) -> int:
    """Join the process group that the environment variables of ``torchrun`` describe.

    Args:
        backend: ``"nccl"`` for GPUs, ``"gloo"`` for CPUs, or another backend of torch.

    Returns:
        Rank of this process, from 0.

    Raises:
        ConfigError: if the backend is not available, or the variables are not set.
    """
    if not dist.is_available() or not dist.is_backend_available(backend):
        known = [name for name in ("gloo", "nccl", "mpi") if dist.is_available() and dist.is_backend_available(name)]
        raise ConfigError(
            f"backend is {backend!r}; this installation of torch has {', '.join(known) or 'none'}: give one of these"
        )
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        raise ConfigError(
            f"the processes cannot find each other: {error}. Start them with torchrun, or set MASTER_ADDR, "
            "MASTER_PORT, RANK and WORLD_SIZE"
        ) from error
    return int(dist.get_rank())


def destroy_process_group() -> None:
    """Leave the default process group."""
    dist.destroy_process_group()


def all_reduce_mean(value: Tensor) -> Tensor:
    """Return the mean of ``value`` over all processes of the default process group; overwrite ``value``."""
    dist.all_reduce(value)
    return value.div_(dist.get_world_size())


class AverageGradients:
    """The ``reduce`` of an engine: averages gradients, and the networks' buffers, over all processes.

    Args:
        nets: networks whose buffers (such as running means of batch norm) are averaged, too; ``None`` for no buffers.
        mean: function that averages a tensor ``[n]`` over all processes; it may overwrite the tensor.
    """

    def __init__(self, nets: nn.Module | None, mean: Callable[[Tensor], Tensor] = all_reduce_mean) -> None:
        buffers = [] if nets is None else nets.buffers()
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._mean = mean

    def __call__(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Average gradients by parameter name. All gradients are sent in one message."""
        tensors = [*gradients.values(), *self._buffers]
        flat = self._mean(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        means = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        with torch.no_grad():
            for buffer, mean in zip(self._buffers, means[len(gradients) :], strict=True):
                buffer.copy_(mean)
        return dict(zip(gradients, means, strict=False))


@contextmanager
def data_parallel(
    algorithm: _Algorithm, dataset: _Dataset, n_steps: int, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Return a context in which several processes train a built algorithm together.

    All processes start from the parameters of process 0. Processes with equal seeds sample different minibatches. Only
    process 0 logs and shows its progress; each process keeps its own checkpoint.

    Args:
        algorithm: built algorithm.
        dataset: dataset that this process samples from.
        n_steps: number of updates.
        options: options of the run; see `birl.run.options.Options`.

    Yields:
        The options for this process.

    Raises:
        ConfigError: if there is no process group, or the number of updates, configurations, shapes or scalers differ
            between processes.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "enable_ddp=True needs a process group: call birl.distributed.init_process_group(…) in every process first"
        )
    rank = dist.get_rank()
    _check_equal(algorithm, n_steps)
    _copy_from_first(algorithm)
    if rank > 0:
        dataset.set_state(_jump_ahead(dataset.get_state(contents=False), rank))
        torch.manual_seed((torch.initial_seed() + rank) % 2**63)
        options = {**options, "logger_adapter": NoopAdapterFactory(), "show_progress": False}
        if options.get("checkpoint") is not None:
            options["checkpoint"] = Path(options["checkpoint"]) / f"rank-{rank}"
    engine = algorithm.engine
    before, engine.reduce = engine.reduce, AverageGradients(algorithm.nets)
    try:
        yield options
    finally:
        engine.reduce = before


def _jump_ahead(state: State, count: int) -> State:
    """Return a dataset's state with its generators ``count`` jumps ahead, so that no two processes share numbers."""
    if state.get("bit_generator") != "PCG64":
        return {name: _jump_ahead(item, count) if isinstance(item, dict) else item for name, item in state.items()}
    generator: Any = np.random.PCG64()
    generator.state = state
    return dict(generator.jumped(count).state)


def _check_equal(algorithm: _Algorithm, n_steps: int) -> None:
    """Raise an error if any process has another run than process 0."""
    description = json.dumps({"n_steps": n_steps, **algorithm.describe()}, sort_keys=True)
    digest = hashlib.sha256(description.encode()).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(algorithm.torch_device)
    digests = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, own)
    different = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
    if different:
        raise ConfigError(
            f"n_steps, configurations, shapes or scalers of processes {different} are not those of process 0; all must "
            f"have the same: fit scalers on the whole data first. Process {dist.get_rank()} has {description}"
        )


def _copy_from_first(algorithm: _Algorithm) -> None:
    """Load the networks and optimisers of process 0."""
    file = io.BytesIO()
    algorithm.save_model(file)
    own = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8).to(algorithm.torch_device)
    size = torch.tensor([len(own)], device=own.device)
    dist.broadcast(size, 0)
    received = own if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8, device=own.device)
    dist.broadcast(received, 0)
    if dist.get_rank() > 0:
        algorithm.load_model(io.BytesIO(received.cpu().numpy().tobytes()))
