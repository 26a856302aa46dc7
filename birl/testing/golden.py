"""Golden tests: compare an algorithm with an independent reference, update by update.

A reference is an object with ``parameters``, a dict of float64 tensors, and ``update(batch)``, which changes them and
may return losses. It should be written from the paper and share no code with the algorithm. Both get the same batches
and, because torch is seeded before each update, the same random draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from birl.algorithm import Algorithm
from birl.testing.torch_calls import TorchCalls
from birl.types import Batch


class Reference(Protocol):
    """An independent implementation."""

    parameters: dict[str, Tensor]

    def update(self, batch: Any) -> Mapping[str, float]:
        """Make one update, and return the losses to compare, by the names of the algorithm's metrics."""


@dataclass
class GoldenReport:
    """The result of a comparison.

    Attributes:
        parameters: largest absolute difference of each parameter over all updates.
        metrics: largest absolute difference of each loss.
        moved: largest change of each parameter: a golden in which nothing changes shows nothing.
    """

    parameters: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest difference."""
        return max([*self.parameters.values(), *self.metrics.values()])

    @property
    def worst(self) -> str:
        """Name of the parameter or metric with the largest difference."""
        both = {**self.parameters, **{f"metric {name}": value for name, value in self.metrics.items()}}
        return max(both, key=lambda name: both[name])


class _Double(TorchCalls):
    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if func is Tensor.float:
            func = Tensor.double
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def double_precision() -> Iterator[None]:
    """Make networks in float64, and turn explicit conversions to float32 into float64, inside the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)


def compare_with_reference(
    algorithm: Algorithm[Any, Any],
    reference: Reference,
    batches: Iterable[Any],
    *,
    parameters: Callable[[nn.Module], dict[str, Tensor]] | None = None,
    update: Callable[[Any], Mapping[str, Tensor]] | None = None,
    seed: int = 0,
) -> GoldenReport:
    """Let both learn from the same batches and compare them after every update.

    Args:
        algorithm: an algorithm that was built in `double_precision`.
        reference: a reference with the same parameters.
        batches: `Batch`es, or pairs of a batch for the algorithm and one for the reference.
        parameters: returns the parameters of networks by the reference's names; `plain_parameters` by default.
        update: updates the algorithm; ``algorithm.engine.update`` by default.
        seed: seed of the random draws.
    """
    named, learn = parameters or plain_parameters, update or algorithm.engine.update
    report, start = GoldenReport(), named(algorithm.nets)
    if set(start) != set(reference.parameters):
        raise ValueError(f"names differ: {sorted(set(start) ^ set(reference.parameters))}")
    for index, batch in enumerate(batches):
        algorithm_batch, reference_batch = batch if isinstance(batch, tuple) else (batch, _batch_as_dict(batch))
        torch.manual_seed(seed + index)
        metrics = learn(algorithm_batch)
        torch.manual_seed(seed + index)
        for name, value in reference.update(reference_batch).items():
            if name in metrics:
                _keep_largest(report.metrics, name, abs(float(metrics[name]) - value))
        for name, tensor in named(algorithm.nets).items():
            expected = reference.parameters[name]
            if tensor.shape != expected.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, in the reference {tuple(expected.shape)}")
            _keep_largest(report.parameters, name, float((tensor - expected).abs().max()))
    for name, tensor in named(algorithm.nets).items():
        report.moved[name] = float((tensor - start[name]).abs().max())
    return report


def _keep_largest(table: dict[str, float], name: str, value: float) -> None:
    # a NaN must not be lost in a maximum
    table[name] = value if not value <= table.get(name, 0.0) else table.get(name, 0.0)


def _batch_as_dict(batch: Batch) -> dict[str, Tensor]:
    names = ("observation", "action", "reward", "next_observation", "discount", "weight", "is_first")
    plain = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    return {**plain, **batch.extra}


_RULES: tuple[tuple[str, str], ...] = (
    # birl's name without its network and member -> plain name
    (r"encoder\.(?:embedding\.)?layers\.(\d+)\.linear\.([wb])\w+", r"\2\1"),
    (r"encoder\.cell\.([wb])\w+_ih", r"cell.\1_x"),
    (r"encoder\.cell\.([wb])\w+_hh", r"cell.\1_h"),
    (r"(?:head\.)?linear\.([wb])\w+", r"out.\1"),
    (r"head\.embedding\.([wb])\w+", r"embed.\1"),
    (r"head\.linear\.(value|advantage)\.(\d+)\.linear\.([wb])\w+", r"\1.\3\2"),
    (r"head\.linear\.(value|advantage)\.\d+\.([wb])\w+", r"\1.out.\2"),
    (r"encoder\.layers\.(\d+)\.(?:norm\.)?(weight|bias|running_\w+|batches)", r"norm\1.\2"),
)


def plain_parameters(nets: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters under plain names, in float64, one entry for each ensemble member.

    Layer ``i`` of member ``k`` of network ``critic`` is ``critic.k.w{i}`` ``[in, out]`` and ``critic.k.b{i}``
    ``[out]``, the last layer ``critic.k.out.w`` and ``critic.k.out.b``; networks without members have ``k = 0``. A
    learned scalar has the name of its network. Streams of dueling heads are ``critic.k.value.w{i}`` and so on. The
    noise of a layer has ``sigma.`` before the layer's name: ``critic.k.sigma.w0``.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in nets.state_dict().items():
        network, _, rest = name.partition(".")
        value = tensor.detach().to(torch.float64).clone()
        if rest in ("raw", "log_std"):
            result[network if rest == "raw" else f"{network}.log_std"] = value
            continue
        member = re.search(r"members\.(\d+)\.", rest)
        single = rest.replace(member[0], "") if member else rest
        bare = single.replace(".noise", "")
        labels = [found.expand(plain) for pattern, plain in _RULES if (found := re.fullmatch(pattern, bare))]
        labels = labels if bare == single else [f"sigma.{label}" for label in labels]
        if not labels:
            raise ValueError(f"no plain name is known for {name!r}: pass a function of your own as `parameters`")
        if value.dim() == 3:  # stacked: [N, in, out], biases [N, 1, out]
            for k, each in enumerate(value):
                result[f"{network}.{k}.{labels[0]}"] = each[0] if rest.endswith("bias") else each
        else:
            result[f"{network}.{member[1] if member else 0}.{labels[0]}"] = value.T if value.dim() == 2 else value
    return result
