"""Several engines of one configuration moved by one update: parameters, moments and gradients stacked.

Everything that differs between seeds (parameters, minibatches, random numbers) gets a first dimension ``[S]``; a loss
and its gradients are traced once, as one graph, and run for all seeds at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from birl.engine import compiler
from birl.engine.engine import Engine
from birl.engine.memory import keep_freed_memory
from birl.engine.steps import Gradients, HardCopy, LossFunction, Polyak, Step, TargetUpdate, Update
from birl.engine.trained import Trained, clip
from birl.engine.update import Eager, LossModule, with_priority
from birl.errors import ConfigError, UnsupportedError
from birl.optimizers.steps import ELEMENTWISE
from birl.types import Batch, Loss, State

aten = torch.ops.aten

_SHARED = ("step", "mu_product")
"""State that an optimiser keeps once per parameter: the same for all seeds."""


class StackedEngine(Eager):
    """Engines that were built alike, updated together.

    From now on the engines' parameters, buffers and moments are views of the stacked ones: they are always those of
    the last update. Counters and schedules follow in `publish`. `release` gives every engine its own tensors again.

    Args:
        engines: engines of one configuration and one shape, ``S`` in number, after the same number of updates.
        generators: the torch generator that each engine's losses draw from, on the training device.

    Attributes:
        nets: the stacked networks: every parameter and every saved buffer is ``[S, …]``.
        priority: of the elements ``[S, …]``. See `Engine`.

    Raises:
        ConfigError: if the engines differ.
        UnsupportedError: if they cannot be stacked; the message says what to do instead.
    """

    def __init__(self, engines: Sequence[Engine], generators: Sequence[torch.Generator]) -> None:
        _check_alike(engines, generators)
        self._engines, self._generators = tuple(engines), tuple(generators)
        first = self._engines[0]
        nets = copy.deepcopy(first.nets)
        # Optimisers are made for one engine, because factories look at names and dimensions; its tensors grow later.
        super().__init__(Trained(nets, [self._stackable(step) for step in first.steps], first.config))
        self._trained.clip = vmap(clip, (0, None))
        self.priority: Tensor | None = None
        self._losses: dict[Hashable, _StackedLoss] = {}
        self._stack()
        self.restack_optimizers()

    def _stackable(self, step: Step) -> Step:
        """The step itself; a custom target update, which need not be elementwise, is made for each engine in turn."""
        if not isinstance(step, TargetUpdate) or type(step) in (Polyak, HardCopy):
            return step
        each = tuple(Eager(engine) for engine in self._engines)
        return _OneByOne(step.source, step.target, step.when, step=step, updates=each)

    @torch.no_grad()
    def _stack(self) -> None:
        """Move all saved tensors into stacked ones."""
        self.nets.requires_grad_(False)  # gradients come from the graph
        self.saved = _saved(self.nets)
        parts = [_saved(engine.nets) for engine in self._engines]
        for name, tensor in self.saved.items():
            tensor.data = torch.stack([own[name].detach() for own in parts])
            for own, part in zip(parts, tensor.data, strict=True):
                own[name].data = part

    def restack_optimizers(self) -> None:
        """Copy counters, moments and schedules from the engines, whose own are unused afterwards."""
        _carry(self._engines[0], self._trained, _joined([_states(engine) for engine in self._engines]))

    # -- learning --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, batch: Batch, due: Sequence[Step] | None = None) -> dict[str, Tensor]:
        """One update of every engine.

        Args:
            batch: a minibatch for each engine, every tensor ``[S, …]``.
            due: the steps; by default those that are due.

        Returns:
            The losses and their metrics, ``[S]``, on the device.
        """
        keep_freed_memory()
        self._trained.grad_step += 1
        metrics = super().update(batch, self._trained.due() if due is None else due)
        self.priority = self._trained.take_priority(metrics)
        return metrics

    @property
    def prioritised(self) -> bool:
        """See `Engine`."""
        return self._trained.prioritised

    @prioritised.setter
    def prioritised(self, value: bool) -> None:
        self._trained.prioritised = value

    def gradients(self, loss: LossFunction, of: tuple[str, ...], batch: Batch) -> tuple[Gradients, Loss]:
        """See `Update.gradients`; everything is ``[S, …]``."""
        key = (loss, of, batch.signature, self.prioritised)
        if key not in self._losses:
            self._losses[key] = _StackedLoss(self, loss, list(self._trained.parameters_of(of)), batch)
        return self._losses[key](self.saved, batch, self._generators)

    # -- the engines -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Bring counters, moments and schedules of the engines up to date: before one is saved or handed out."""
        for number, engine in enumerate(self._engines):
            _carry(self._trained, engine, _part(_states(self._trained), number))

    def release(self) -> None:
        """Publish, and give every engine its own tensors, so that it can be trained alone."""
        self.publish()
        for engine in self._engines:
            state = engine.get_state()
            for name, tensor in _saved(engine.nets).items():
                tensor.data = state["nets"][name]
            engine.set_state(state)  # its own moments


@dataclass(frozen=True)
class _OneByOne(TargetUpdate):
    """A target update that each engine makes by itself."""

    step: TargetUpdate = field(kw_only=True)
    updates: tuple[Eager, ...] = field(kw_only=True)

    def __call__(self, on: Update, batch: Batch) -> Batch:
        for update in self.updates:
            self.step(update, batch)
        return batch


class _StackedLoss:
    """A loss and its gradients for all seeds, as one graph of plain operations."""

    def __init__(self, stacked: StackedEngine, loss: LossFunction, trained: list[str], batch: Batch) -> None:
        self._trained = trained
        self._metrics: list[str] = []
        self._shared: list[str] = []
        loss_of, prioritised = LossModule(loss, stacked.nets, stacked.config), stacked.prioritised

        def one(
            trained: dict[str, Tensor], rest: dict[str, Tensor], leaves: list[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            tensors = {f"nets.{name}": tensor for name, tensor in {**rest, **trained}.items()}
            rows = iter(leaves)
            found = with_priority(functional_call(loss_of, tensors, (batch.map(lambda _: next(rows)),)), prioritised)
            self._metrics, self._shared = list(found.metrics), list(found.share)
            return found.value, [*found.metrics.values(), *found.share.values()]

        def all_(
            trained: dict[str, Tensor], rest: dict[str, Tensor], leaves: list[Tensor]
        ) -> tuple[list[Tensor], Tensor, list[Tensor]]:
            with torch.enable_grad():
                trained = {name: tensor.detach().requires_grad_() for name, tensor in trained.items()}
                values, more = vmap(one, randomness="different")(trained, rest, leaves)
                gradients = torch.autograd.grad(values.sum(), list(trained.values()))
            # fused optimisers read memory in order, whatever the strides say
            return [each.contiguous() for each in gradients], values.detach(), [each.detach() for each in more]

        # on copies: tracing a loss moves batch norm's statistics
        given, rest = self._split({name: tensor.detach().clone() for name, tensor in stacked.saved.items()})
        try:
            graph = make_fx(all_, {aten.native_dropout.default: _dropout})(given, rest, batch.leaves)
            self._draws = _draws_of(graph)
        except RuntimeError as error:
            raise UnsupportedError(
                f"the loss of {trained[0].partition('.')[0]!r} cannot be computed for several seeds at once: train "
                f"each seed by itself. (To whoever wrote its loss, torch says: {str(error).splitlines()[0]})"
            ) from error
        _simplify(graph)
        self._graph: Callable[..., Any] = graph
        if stacked.config.compile_graph is True:
            self._graph = torch.compile(graph, fullgraph=True, backend=compiler.BACKEND)

    def _split(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        trained = {name: saved[name].detach() for name in self._trained}
        return trained, {name: tensor.detach() for name, tensor in saved.items() if name not in trained}

    def __call__(
        self, saved: Mapping[str, Tensor], batch: Batch, generators: Sequence[torch.Generator]
    ) -> tuple[Gradients, Loss]:
        """Gradients of the trained parameters ``[S, …]``, and the losses ``[S]`` with the values they share."""
        for draw in self._draws:
            draw.fill(generators)
        gradients, value, more = self._graph(*self._split(saved), batch.leaves)
        metrics = dict(zip(self._metrics, more, strict=False))
        share = dict(zip(self._shared, more[len(metrics) :], strict=True))
        return dict(zip(self._trained, gradients, strict=True)), Loss(value, metrics, share)


# -- random numbers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Draw:
    """Random numbers of a loss.

    Attributes:
        into: where the graph reads them, ``[S, …]``.
        method: name of the tensor method that draws them, such as ``"normal_"``.
        args: its arguments.
    """

    into: Tensor
    method: str
    args: tuple[Any, ...]

    def fill(self, generators: Sequence[torch.Generator]) -> None:
        """Draw each seed's part from its own generator, as it would be drawn alone."""
        for part, generator in zip(self.into.unbind(), generators, strict=True):
            getattr(part, self.method)(*self.args, generator=generator)


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
"""Random operations, and the tensor methods that draw the same numbers. Arguments after the first are the same."""


def _draws_of(graph: GraphModule) -> list[_Draw]:
    """Take the random operations out of a graph: it reads tensors instead, which are filled before it runs."""
    draws: list[_Draw] = []
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        if node.target not in _METHODS:
            raise RuntimeError(f"{node.target} cannot draw from the generator of each seed")
        like, name = node.meta["val"], f"noise_{len(draws)}"
        draws.append(
            _Draw(torch.empty(like.shape, dtype=like.dtype, device=like.device), _METHODS[node.target], node.args[1:])
        )
        graph.register_buffer(name, draws[-1].into)
        with graph.graph.inserting_before(node):
            noise = graph.graph.get_attr(name)
            if node.target._schema.is_mutable:  # views of the tensor see the numbers, too
                noise = graph.graph.call_function(aten.copy_.default, (node.args[0], noise))
            node.replace_all_uses_with(noise)
        graph.graph.erase_node(node)
    return draws


def _dropout(x: Tensor, p: float, train: bool) -> tuple[Tensor, Tensor]:
    """``native_dropout``, which training on a GPU calls, with numbers that have an operation of their own."""
    kept = torch.bernoulli(x, 1 - p)
    return x * kept / (1 - p), kept.bool()


# -- tensors -----------------------------------------------------------------------------------------------------------


def _saved(nets: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name. Other buffers are constants, the same for all seeds."""
    names = nets.state_dict().keys()
    return {name: tensor for name, tensor in (*nets.named_parameters(), *nets.named_buffers()) if name in names}


def _states(trained: Trained) -> State:
    return {name: optimizer.state_dict() for name, optimizer in trained.optimizers.items()}


def _carry(source: Trained, target: Trained, states: State) -> None:
    """Carry counters and schedules over, and load ``states`` into the optimisers."""
    target.grad_step, target.step_counts = source.grad_step, dict(source.step_counts)
    for name, optimizer in target.optimizers.items():
        optimizer.load_state_dict(states[name])
        if target.schedulers[name] is not None:
            target.schedulers[name].load_state_dict(source.schedulers[name].state_dict())


def _joined(states: Sequence[Any], key: Any = None) -> Any:
    """The states of the engines' optimisers as one, with stacked tensors."""
    first = states[0]
    if isinstance(first, dict):
        return {key: _joined([state[key] for state in states], key) for key in first}
    if isinstance(first, Tensor):
        return first.clone() if key in _SHARED else torch.stack(list(states))
    return first


def _part(state: Any, number: int, key: Any = None) -> Any:
    """One engine's part of a joined state, whose tensors it shares."""
    if isinstance(state, dict):
        return {key: _part(value, number, key) for key, value in state.items()}
    return state[number] if isinstance(state, Tensor) and key not in _SHARED else state


def _check_alike(engines: Sequence[Engine], generators: Sequence[torch.Generator]) -> None:
    if not engines or len(engines) != len(generators):
        raise ConfigError(f"{len(engines)} engines with {len(generators)} generators; at least one of each is needed")
    first = engines[0]
    shapes = {name: tensor.shape for name, tensor in _saved(first.nets).items()}
    for engine in engines[1:]:
        if (
            {name: tensor.shape for name, tensor in _saved(engine.nets).items()} != shapes
            or engine.steps != first.steps
            or engine.grad_step != first.grad_step
        ):
            raise ConfigError("engines of different configurations, shapes or numbers of updates cannot be stacked")
    check_stackable(first)


def check_stackable(engine: Engine) -> None:
    """Raise `UnsupportedError` if engines like this one cannot be stacked; some losses show it only later."""
    if engine.recurrent:
        raise UnsupportedError(
            f"recurrent networks ({', '.join(engine.recurrent)}) cannot be trained for several seeds at once: use an "
            "encoder without memory, or train each seed by itself"
        )
    for name, optimizer in engine.optimizers.items():
        if type(optimizer) not in ELEMENTWISE:
            names = sorted(each.__name__ for each in ELEMENTWISE)
            raise UnsupportedError(
                f"the optimiser {type(optimizer).__name__} of the step {name!r} does not treat numbers one by one, so "
                f"several seeds cannot share it: use one of {', '.join(names)}, or train each seed by itself"
            )
    for step in engine.steps:
        if step.apart:
            raise UnsupportedError(
                f"the step {step.name!r} cannot be made for several seeds at once, because {step.apart}: train each "
                "seed by itself"
            )


# -- the graph ---------------------------------------------------------------------------------------------------------


def _simplify(graph: GraphModule) -> None:
    """Remove operations that do nothing, and let matrix products write gradients in their parameters' layout."""
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


def _shape_of(node: Any) -> Any:
    return getattr(node.meta.get("val"), "shape", None)
