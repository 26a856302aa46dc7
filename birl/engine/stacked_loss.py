"""A loss and its gradients for several seeds, as one graph of plain operations.

Random numbers are inputs of the graph. Each seed's generator draws the seed's part, as it would for that seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from birl.engine import compiler
from birl.engine.steps import Gradients, parameter_gradients
from birl.engine.update import LossModule
from birl.errors import UnsupportedError
from birl.types import Batch, Loss

aten = torch.ops.aten


class StackedLoss:
    """A loss and its gradients for all seeds, as one graph of plain operations.

    Args:
        loss: the loss, with the networks of one seed.
        saved: parameters and saved buffers of all seeds, ``[S, …]``.
        trained: names of the parameters to differentiate with respect to.
        batch: an example batch.
        prioritised: whether priorities are used.
        compiled: whether the graph is compiled.

    Attributes:
        draws: number of tensors of random numbers that it needs.

    Raises:
        UnsupportedError: if it cannot be computed for several seeds at once.
    """

    def __init__(
        self,
        loss: LossModule,
        saved: Mapping[str, Tensor],
        trained: list[str],
        batch: Batch,
        *,
        prioritised: bool,
        compiled: bool,
    ) -> None:
        self._trained = trained
        self._rest = [name for name in saved if name not in trained]
        self._metrics: list[str] = []
        self._shared: list[str] = []
        self._has_priority = False
        self._learned: list[str] = []

        def single_loss(given: list[Tensor], rest: list[Tensor], leaves: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            named = (*zip(self._rest, rest, strict=True), *zip(trained, given, strict=True))
            tensors = {f"nets.{name}": tensor for name, tensor in named}
            rows = iter(leaves)
            result: Loss = functional_call(loss, tensors, (batch.map(lambda _: next(rows)),))
            priority = result.compute_priority() if prioritised else None
            self._metrics, self._shared = list(result.metrics), list(result.share)
            self._has_priority = priority is not None
            more = [*result.metrics.values(), *result.share.values()]
            return result.value, more if priority is None else [*more, priority]

        def stacked_loss(given: list[Tensor], rest: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
            with torch.enable_grad():
                given = [tensor.detach().requires_grad_() for tensor in given]
                values, more = vmap(single_loss, randomness="different")(given, rest, leaves)
                learning = dict(zip(trained, given, strict=True))
                gradients = parameter_gradients(loss.function, values.sum(), learning)
            self._learned = list(gradients)
            # fused optimisers ignore strides
            dense = (each.contiguous() for each in gradients.values())
            return [*dense, values.detach(), *(each.detach() for each in more)]

        # copies, because tracing a loss changes batch norm's statistics
        given, rest = self._split({name: tensor.detach().clone() for name, tensor in saved.items()})
        try:
            graph = make_fx(stacked_loss, {aten.native_dropout.default: _dropout})(given, rest, batch.leaves)
            graph.graph.set_codegen(CodeGen())  # separate tensors as inputs and outputs, not lists
            self._draws = _extract_draws(graph)
        except RuntimeError as error:
            raise UnsupportedError(
                f"the loss {getattr(loss.function, '__name__', '')!r} cannot be computed for several seeds at once: "
                f"train each seed by itself. (torch's message for the author of the loss: {str(error).splitlines()[0]})"
            ) from error
        self.draws = len(self._draws)
        _simplify(graph)
        self._graph: Callable[..., Any] = graph
        if compiled:
            self._graph = torch.compile(graph, fullgraph=True, backend=compiler.BACKEND)

    def _split(self, saved: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [saved[name].detach() for name in self._trained], [saved[name].detach() for name in self._rest]

    def draw(self, generators: Sequence[torch.Generator]) -> list[Tensor]:
        """Draw the random numbers that it needs."""
        return [draw.numbers(generators) for draw in self._draws]

    def blanks(self) -> list[Tensor]:
        """Return zeros in place of random numbers."""
        return [draw.blank() for draw in self._draws]

    def __call__(self, saved: Mapping[str, Tensor], batch: Batch, noise: Sequence[Tensor]) -> tuple[Gradients, Loss]:
        """Return gradients of the trained parameters ``[S, …]``, and losses ``[S]`` with the values that they share."""
        given, rest = self._split(saved)
        leaves: list[Tensor] = []
        batch.map(lambda leaf: leaves.append(leaf) or leaf)  # type: ignore[func-returns-value]
        outputs = self._graph(*given, *rest, *leaves, *noise)
        count = len(self._learned)
        gradients, value, more = outputs[:count], outputs[count], outputs[count + 1 :]
        metrics = dict(zip(self._metrics, more, strict=False))
        share = dict(zip(self._shared, more[len(metrics) :], strict=False))
        priority = more[-1] if self._has_priority else None
        return dict(zip(self._learned, gradients, strict=True)), Loss(value, metrics, share, priority)


# -- random numbers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Draw:
    """One tensor of random numbers of a loss.

    Attributes:
        shape: its shape ``[S, …]``.
        dtype, device: its dtype and device.
        method: name of the tensor method that draws them, such as ``"normal_"``.
        args: its arguments.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    method: str
    args: tuple[Any, ...]

    def blank(self) -> Tensor:
        """Return zeros of this shape."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def numbers(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw each seed's part from the seed's generator, as for that seed alone."""
        drawn = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for part, generator in zip(drawn.unbind(), generators, strict=True):
            getattr(part, self.method)(*self.args, generator=generator)
        return drawn


_METHODS = {
    aten.randn.default: "normal_",
    aten.randn_like.default: "normal_",
    aten.normal_.default: "normal_",
    aten.rand.default: "uniform_",
    aten.rand_like.default: "uniform_",
    aten.uniform_.default: "uniform_",
    aten.exponential_.default: "exponential_",
    aten.bernoulli.p: "bernoulli_",
    aten.bernoulli_.float: "bernoulli_",
}
"""Random operations, and the tensor methods that draw the same numbers with the same arguments after the first."""


def _extract_draws(graph: GraphModule) -> list[_Draw]:
    """Replace the random operations of a graph by inputs, which are drawn before the graph runs."""
    draws: list[_Draw] = []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        if node.target not in _METHODS:
            raise RuntimeError(f"{node.target} cannot draw from the generator of each seed")
        with graph.graph.inserting_after(last):
            noise = last = graph.graph.placeholder(f"noise_{len(draws)}")
            noise.meta["val"] = node.meta["val"]
        like = node.meta["val"]
        draws.append(_Draw(like.shape, like.dtype, like.device, _METHODS[node.target], node.args[1:]))
        with graph.graph.inserting_before(node):
            if node.target._schema.is_mutable:  # views of the tensor see the numbers, too
                noise = graph.graph.call_function(aten.copy_.default, (node.args[0], noise))
            node.replace_all_uses_with(noise)
        graph.graph.erase_node(node)
    return draws


def _dropout(x: Tensor, p: float, train: bool) -> tuple[Tensor, Tensor]:
    """Compute ``native_dropout``, which GPUs use, with a separate operation for its random numbers."""
    kept = torch.bernoulli(x, 1 - p)
    return x * kept / (1 - p), kept.bool()


# -- the graph ---------------------------------------------------------------------------------------------------------


def _simplify(graph: GraphModule) -> None:
    """Remove operations without effect, and let matrix products write gradients in the layout of their parameters."""
    for node in list(graph.graph.nodes):
        if node.target is aten.detach.default or (node.target is aten.mul.Scalar and node.args[1] == 1):
            node.replace_all_uses_with(node.args[0])
        elif node.target in (aten.view.default, aten.expand.default, aten._unsafe_view.default):
            if _shape_of(node) == _shape_of(node.args[0]):
                node.replace_all_uses_with(node.args[0])
        elif node.target is aten.transpose.int and {1, 2} == set(node.args[1:]):
            product = node.args[0]
            if product.target is aten.bmm.default and len(product.users) == 1:  # (a b)^T = b^T a^T
                with graph.graph.inserting_before(node):
                    factors = [graph.graph.call_function(aten.transpose.int, (x, 1, 2)) for x in product.args]
                    node.replace_all_uses_with(graph.graph.call_function(aten.bmm.default, tuple(reversed(factors))))
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _shape_of(node: Node) -> torch.Size | None:
    return getattr(node.meta.get("val"), "shape", None)
