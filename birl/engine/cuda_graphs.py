"""Updates recorded once and replayed, so that a GPU need not wait for Python to launch its kernels (CUDA graphs).

A recording fixes the addresses of all tensors. Inputs that change between replays are copied to those addresses:
batches, unless the recording itself draws them on the device, and the scalars of the optimisers' steps. The device's
default random generator advances with every replay; others have to be named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from birl.engine.steps import UpdateResult
from birl.types import Batch, tree_map

Generators = Sequence[torch.Generator]
Updates = Callable[["Batch | None", Tensor], UpdateResult]
"""``(batch, scalars) -> result``: makes updates with the scalars of their optimiser steps. See `Recording`."""

Recorder = Callable[[Callable[[], Any], Generators], "tuple[Callable[[], object], Any]"]
"""Records a function, given with the generators that it draws from, without running it.

Returns a function that replays the recording, and the result of the recorded function, whose tensors every replay
overwrites.
"""


def record_cuda_graph(function: Callable[[], Any], generators: Generators) -> tuple[Any, Any]:
    """Return the `Recorder` for CUDA."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = function()
    return graph.replay, result


def drawn_ahead(draws: Sequence[Callable[[], Batch]], device: torch.device) -> Iterator[Batch]:
    """Yield the batches that some functions draw on a device, one after the other.

    While updates are recorded, the functions run on a separate stream, so that draws overlap with updates.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield from (draw() for draw in draws)
        return
    updating, drawing = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    drawing.wait_stream(updating)
    drawn = []  # keeps all batches until the end: otherwise a later draw could reuse the memory of an earlier one
    with torch.cuda.stream(drawing):
        for draw in draws:
            drawn.append((draw(), drawing.record_event()))
    for batch, event in drawn:
        updating.wait_event(event)
        yield batch


class Recording:
    """A recording of some updates.

    Args:
        updates: makes the updates; it is recorded with the recording's own tensors.
        batch: an example batch, or ``None`` if ``updates`` draws its batches itself.
        scalars: scalars ``[n]`` of the optimiser steps, on the device.
        generators: generators that ``updates`` draws from, without the device's default one.
        record: see `Recorder`.
    """

    def __init__(
        self, updates: Updates, batch: Batch | None, scalars: Tensor, generators: Generators, record: Recorder
    ) -> None:
        inputs: dict[int, Tensor] = {}
        own = None if batch is None else Batch(*tree_map(partial(_copy_with_strides, copies=inputs), batch.parts))
        self._inputs, self._scalars = [_without_expansion(x) for x in inputs.values()], scalars.clone()
        self._replay, self._result = record(lambda: updates(own, self._scalars), generators)

    def __call__(self, batch: Batch | None, scalars: Tensor) -> UpdateResult:
        """Replay with another batch and other scalars. The tensors of the result are copies."""
        self._scalars.copy_(scalars, non_blocking=True)
        if batch is not None:
            leaves = {id(leaf): leaf for leaf in batch.leaves}.values()
            torch._foreach_copy_(self._inputs, [_without_expansion(x) for x in leaves], non_blocking=True)
        self._replay()
        return self._result.map(torch.clone)


def _copy_with_strides(x: Tensor | None, copies: dict[int, Tensor]) -> Tensor | None:
    """Copy a tensor with its strides, so that the program compiled for ``x`` accepts the copy. Copy each tensor once.

    Args:
        x: a tensor of a batch.
        copies: the copies made so far, by the ``id`` of the tensor.
    """
    if x is None:
        return None
    if id(x) not in copies:
        part = _without_expansion(x)
        copies[id(x)] = torch.empty_strided(part.shape, part.stride(), dtype=x.dtype, device=x.device).copy_(part)
        copies[id(x)] = copies[id(x)].expand_as(x)
    return copies[id(x)]


def _without_expansion(x: Tensor) -> Tensor:
    """Return the part of an expanded tensor that has its own memory: one element of each expanded dimension."""
    for dimension, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dimension, 0, 1)
    return x
