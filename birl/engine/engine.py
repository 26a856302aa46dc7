"""The engine: makes updates of networks, eager or compiled."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from birl.engine.compiled import Program, supports
from birl.engine.compiler import check_compiler, has_compiler
from birl.engine.cuda_graphs import record_cuda_graph
from birl.engine.gradient_exchange import ComputedGradients, GradientApplication, GradientComputation, step_features
from birl.engine.memory import keep_freed_memory
from birl.engine.steps import Gradient, Gradients, Step, TargetUpdate, Training, UpdateResult
from birl.engine.train_state import EngineConfig, TrainState
from birl.engine.update import CompiledGradients, Eager, stacked
from birl.errors import CompileError, ConfigError
from birl.incompatible import check_compatible
from birl.models import is_recurrent
from birl.models.matmul import fast_products
from birl.seeding import preserve_random_state
from birl.types import Batch, Inputs, Loss


class Engine(TrainState):
    """Networks, their optimisers, and their updates. See `TrainState`.

    Attributes:
        recurrent: names of the recurrent networks.
        priority: priorities ``[...]`` of the elements of the last batch, on the device; ``None`` if `prioritised` is
            false, or no loss of the last update has priorities.
    """

    def __init__(self, nets: nn.Module, steps: Sequence[Step], config: EngineConfig) -> None:
        super().__init__(nets, steps, config)
        for name, network in nets.named_children():
            network.state_key = name  # type: ignore[assignment]
        self.recurrent = tuple(name for name, network in nets.named_children() if is_recurrent(network))
        self._updates = Eager(self)
        self._compile_required = True
        self.priority: Tensor | None = None
        self._untried = {step.name for step in self.gradient_steps}  # before they are compiled

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        return self._updates.compiled

    @property
    def records(self) -> bool:
        """Whether updates are recorded and replayed, so that several can be made in one call."""
        self._drop_program_when_reduced()
        return isinstance(self._updates, Program) and self._updates.records

    def compile(self, required: bool = True) -> None:
        """Compile updates from now on. The first update of each kind, which compiles, takes up to a minute.

        The whole update is one program if every optimiser has a compiled form (`birl.optimizers.steps`), no step is
        `eager_only` and gradients are not reduced between processes. Otherwise the losses and gradients of each step
        are compiled.

        Args:
            required: whether to raise an error if compiling is not possible, instead of continuing without it.

        Raises:
            CompileError: if there is no compiler, now; if the compiler does not take a module, in the first update.
        """
        if self.compiled:
            return
        device = next(self.nets.parameters()).device
        if not required and not has_compiler(device):
            return
        check_compiler(device)
        self._compile_required = required
        self._updates = self._compiled_updates()

    def _compiled_updates(self) -> Eager:
        """Return an object that makes compiled updates, and compiles the first of each kind."""
        if supports(self) and self.reduce is None:
            on_cuda = next(self.nets.parameters()).device.type == "cuda"
            return Program(self, record_cuda_graph if on_cuda else None)
        return CompiledGradients(self)

    def retune(self, config: EngineConfig) -> None:
        """Continue with another configuration; see `TrainState.retune`.

        Compiled updates contain numbers of the configuration and are compiled again, unless only learning rates change,
        which they read in each update.

        Raises:
            ConfigError: see `TrainState.retune`.
        """
        before = self.config
        super().retune(config)
        names = [item.name for item in fields(config) if getattr(config, item.name) != getattr(before, item.name)]
        rates = {step.fields[0] for step in self.gradient_steps}
        if not self.compiled:
            self._updates = Eager(self)
        elif not rates.issuperset(names):
            self._updates = self._compiled_updates()

    def is_stored(self) -> bool:
        """Return whether a compiled update of these networks and settings is already on disk."""
        if self.reduce is not None or not supports(self):
            return False
        shelf = Program(self).shelf
        return shelf is not None and any(shelf.glob("*.json"))

    def compute_gradients(self, step: Training, batch: Batch) -> tuple[Gradients, Loss]:
        """Return the gradients of a step's loss by parameter name, and the loss. Nothing changes."""
        return self._updates.gradients(step.loss, step.networks, batch)

    def update(self, batch: Batch, only: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Make one update: perform every step that is due, in order.

        Args:
            batch: a batch on the device.
            only: names of the steps to which the update is limited.

        Returns:
            Losses and metrics as scalars on the device. Reading one waits for the device.
        """
        keep_freed_memory()
        self.grad_step += 1
        due = self.due()
        if only is not None:
            due = tuple(step for step in due if step.name in only)
        self._drop_program_when_reduced()
        if self._untried and self.compiled:
            self._try_eagerly(batch, due)
        rates = self._rates(due)
        with fast_products():
            try:
                result = self._updates.update(batch, due)
            except CompileError as error:  # raised before anything has changed
                if self._compile_required:
                    raise
                warnings.warn(f"training goes on without compiling: {error}", RuntimeWarning, stacklevel=3)
                self.stop_compiling()
                result = self._updates.update(batch, due)
        self.check_priority(result.priority)
        self.priority = result.priority
        self._pass_statistics(result)
        return {**result.metrics, **rates}

    def _try_eagerly(self, batch: Batch, due: Sequence[Step]) -> None:
        """Compute gradients once without compiling, before the first compiled update of a step, and discard them.

        So the checks of eager updates find a module that writes to its minibatch. Random numbers and buffers stay as
        they are. Updates with steps of other kinds are left out, because losses may need the results of these.

        Raises:
            ConfigError: see `Eager.gradients`.
        """
        new = self._untried.intersection(step.name for step in due)
        if not new or not all(isinstance(step, Gradient | TargetUpdate) for step in due):
            return
        self._untried -= new
        buffers = [buffer.clone() for buffer in self.nets.buffers()]
        with preserve_random_state():
            GradientComputation(self).update(batch, due)
        self._restore_buffers(buffers)

    def _restore_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Copy ``buffers`` to those of the networks."""
        with torch.no_grad():
            for buffer, before in zip(self.nets.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def update_many(
        self, draw: Callable[[], Batch], count: int, generators: Sequence[torch.Generator] = ()
    ) -> dict[str, Tensor]:
        """Make ``count`` updates with batches from ``draw``; on devices that can replay a recording, with one replay.

        Args:
            draw: makes a batch on the device without waiting for the device.
            count: number of updates.
            generators: the device's generators that ``draw`` uses, in addition to the default one.

        Returns:
            Losses and metrics, each ``[k]`` for the ``k`` updates that report it.
        """
        self._drop_program_when_reduced()
        if isinstance(self._updates, Program) and self._updates.records:
            dues = [self.due(ahead) for ahead in range(1, count + 1)]
            with fast_products():
                result = self._updates.update_many(draw, dues, generators)
            if result is not None:
                self.grad_step += count
                self._pass_statistics(result)
                return result.metrics
        return stacked(self.update(draw()) for _ in range(count))

    def compute_update_gradients(self, name: str, learn: Callable[[], object]) -> dict[str, ComputedGradients]:
        """Compute the gradients of the update that ``learn`` makes, by step. No parameter or counter changes.

        Args:
            name: name of the algorithm, for messages.
            learn: a function that calls `update`.

        Raises:
            UnsupportedError: if ``learn`` makes several updates, or an update that changes buffers or has steps other
                than gradient steps and target updates.
        """
        check_compatible({**step_features(self, name), "compute_gradients": "compute_gradients"})
        computation, count = GradientComputation(self), self.grad_step
        buffers = [buffer.clone() for buffer in self.nets.buffers()]
        try:
            with self._updating_with(computation):
                learn()
        finally:
            self.grad_step = count
        if not all(map(torch.equal, buffers, self.nets.buffers())):
            self._restore_buffers(buffers)
            moving = f"networks of {name} that change buffers while they learn, as batch norm does,"
            check_compatible({"moving buffers": moving, "compute_gradients": "compute_gradients"})
        return computation.result(name)

    def apply_gradients(self, computed: Mapping[str, ComputedGradients]) -> dict[str, Tensor]:
        """Make one update with gradients that this or another process computed, and return the metrics.

        Raises:
            ConfigError: if the gradients do not belong to the steps that are due. Nothing has changed then.
        """
        count = self.grad_step
        try:
            with self._updating_with(GradientApplication(self, computed)):
                return self.update(None)  # type: ignore[arg-type]  # only losses read the batch
        except ConfigError:
            self.grad_step = count
            raise

    @contextlib.contextmanager
    def _updating_with(self, updates: Eager) -> Iterator[None]:
        own, self._updates = self._updates, updates
        try:
            yield
        finally:
            self._updates = own

    def _rates(self, due: Sequence[Step]) -> dict[str, Tensor]:
        """Return the learning rates to log, as they are before the update."""
        named = [step for step in due if isinstance(step, Gradient) and step.rate_metric]
        device = next(self.nets.parameters()).device if named else None
        # torch.full fills on the device; copying a number from the host would synchronise
        return {
            step.rate_metric: torch.full((), self.optimizers[step.name].param_groups[0]["lr"], device=device)
            for step in named
        }

    def is_due(self, name: str) -> bool:
        """Return whether the step ``name`` is part of the next update."""
        return any(step.name == name for step in self.due(1))

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """Return the mean of a metric's values over all processes that learn together."""
        mean = torch.stack(list(values)).mean()
        return mean if self.reduce is None else self.reduce({"metric": mean})["metric"]

    def _drop_program_when_reduced(self) -> None:
        """Fall back to compiled gradients: a reduction cannot run inside one program."""
        if self.reduce is not None and isinstance(self._updates, Program):
            self._updates = CompiledGradients(self)

    def stop_compiling(self) -> None:
        """Make eager updates from now on."""
        self.store_counts()
        for name, optimizer in self.optimizers.items():
            if self.step_counts[name] == 0:  # a program created moments, and the step was never made
                optimizer.state.clear()
        self._updates = Eager(self)

    def _pass_statistics(self, result: UpdateResult) -> None:
        """Pass the gradient statistics of an update to the watcher."""
        if self.watch is not None:
            for name, found in result.gradient_statistics.items():
                self.watch(name, list(self.parameters[name]), found)

    @torch.no_grad()
    def burn_in(self, batch: Batch, steps: int) -> Batch:
        """Warm up recurrent states on the first ``steps`` steps of a sequence batch, and cut those steps off.

        Each recurrent network, target networks included, starts from the stored state and gets its own state
        (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3).
        """
        if steps == 0 or not self.recurrent:
            return batch
        states: dict[str, Tensor] = {}
        head = batch.map(lambda x: x[:steps])
        for name in self.recurrent:
            inputs = Inputs(head.observation, batch.state, head.is_first, state_out=states)
            self.nets.get_submodule(name).encode(inputs)  # type: ignore[operator]
        return replace(batch.map(lambda x: x[steps:]), state=states)
