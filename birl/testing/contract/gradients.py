"""Checks of the gradient steps of an update: losses, gradients and changed parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from birl.engine import Gradient
from birl.errors import BirlError
from birl.testing.contract.states import (
    changed_names,
    differences,
    same,
    set_torch_generators,
    snapshot,
    torch_generators,
)
from birl.testing.contract.subject import Subject, gradients, randomly_moved
from birl.testing.torch_calls import TorchCalls
from birl.types import Array, Batch, Loss

T = TypeVar("T")

_DRAWS = (
    torch.rand,
    torch.randn,
    torch.rand_like,
    torch.randn_like,
    torch.randint,
    torch.normal,
    torch.bernoulli,
    Tensor.exponential_,
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.bernoulli_,
)


class _Noise(TorchCalls):
    """Records random draws, or replays them for a part of the batch: halves need the same noise as the whole batch."""

    def __init__(self, replay: list[Tensor] | None = None, part: slice = slice(None)) -> None:
        super().__init__()
        self.draws: list[Tensor] = [] if replay is None else replay
        self.replaying, self.part, self.position = replay is not None, part, 0

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        result = func(*args, **kwargs)
        if func not in _DRAWS:
            return result
        if not self.replaying:
            self.draws.append(result.detach().clone())
            return result
        drawn = self.draws[self.position]
        self.position += 1
        for dim, (whole, wanted) in enumerate(zip(drawn.shape, result.shape, strict=True)):
            if whole != wanted:
                drawn = drawn[(slice(None),) * dim + (self.part,)]
        return result.copy_(drawn)


def gradient_split(subject: Subject) -> None:
    """The gradient of a batch is the mean of the gradients of its halves."""
    subject = subject.with_config(normalize_advantage=False)  # statistics differ between the halves
    algorithm, batches = subject.first_batches()
    for batch in batches[:2]:
        axis = 1 if batch.is_first is not None else 0
        batch = _mapped(batch, _doubles, _doubles)
        # with weights of 0 the halves could have different numbers of real steps
        batch = replace(batch, weight=torch.ones_like(batch.weight))
        size = batch.reward.shape[axis] // 2
        parts = [slice(0, size), slice(size, 2 * size)]
        if subject.experience.contexts:  # nothing follows the last step of a window: here its episode ends
            batch.discount[:, -1] = 0
        whole = _part(batch, slice(0, 2 * size), axis)
        algorithm.nets.double()
        for step in algorithm.engine.trainings:
            noise = _Noise()
            with noise:
                full, _ = algorithm.engine.compute_gradients(step, whole)
            halves = []
            for part in parts:
                with _Noise(noise.draws, part):
                    halves.append(algorithm.engine.compute_gradients(step, _part(whole, part, axis))[0])
            off = {}
            for name, gradient in full.items():
                error = float((gradient - (halves[0][name] + halves[1][name]) / 2).abs().max())
                if error > 1e-6 * (1 + float(gradient.abs().max())):
                    off[name] = error
            if step.splits:
                assert not off, (
                    f"step {step.name!r}: the gradient of {max(off, key=off.__getitem__)} is {max(off.values()):.1e} "
                    "off the mean of two half batches. Average once, at the end, with weighted_mean(…, batch.weight): "
                    "a loss should not contain sums, means or standard deviations of the batch, unless they are "
                    "intended; then set Gradient(…, splits=False)"
                )
            else:
                assert off, f"step {step.name!r} has splits=False, but its gradient is the mean of those of the halves"


def _mapped(batch: Batch, steps: Callable[[Tensor], Tensor], states: Callable[[Tensor], Tensor]) -> Batch:
    """Apply functions to the tensors of a batch's steps and to its start states."""
    state = None if batch.state is None else {name: states(value) for name, value in batch.state.items()}
    return replace(batch.map(steps), state=state)


def _part(batch: Batch, part: slice, axis: int) -> Batch:
    index = (slice(None),) * axis + (part,)
    return _mapped(batch, lambda x: x[index], lambda x: x[part])


def _doubles(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def padding_is_ignored(subject: Subject) -> None:
    """Steps of weight 0 do not affect gradients, and other steps do in proportion to their weight."""
    subject = subject.with_config(normalize_advantage=False)  # by a weighted mean and deviation
    algorithm, (batch, *_) = subject.first_batches()
    padding = (slice(None), slice(2)) if subject.experience.contexts else (slice(-2, None),)  # windows: in front
    weight = batch.weight.clone()
    weight[padding] = 0
    generator = torch.Generator().manual_seed(1)

    def garbage(x: Tensor) -> Tensor:
        x = x.clone()
        if x.is_floating_point():
            x[padding] = torch.randn(x[padding].shape, generator=generator)
        return x

    results = []
    steps = algorithm.engine.trainings
    for _ in range(2):
        changed = replace(batch.map(garbage), weight=weight)
        state = torch_generators()
        results.append([algorithm.engine.compute_gradients(step, changed)[0] for step in steps])
        set_torch_generators(state)
    for step, first, second in zip(steps, *results, strict=True):
        for name in first:
            error = float((first[name] - second[name]).abs().max())
            assert error <= 1e-6, (
                f"step {step.name!r}: the contents of padding change the gradient of {name} by {error:.1e}"
            )
    algorithm.nets.double()
    batch = _mapped(batch, _doubles, _doubles)
    for step in (each for each in steps if each.splits):
        found = [gradients(algorithm, step, replace(batch, weight=k * batch.weight)) for k in (1, 2, 3)]
        for name, (once, twice, thrice) in {name: [each[name] for each in found] for name in found[0]}.items():
            error = float((thrice - 2 * twice + once).abs().max() / (1 + thrice.abs().max()))
            assert error <= 1e-6, (
                f"step {step.name!r}: twice the batch.weight does not double the gradient of {name}: is it squared, or "
                "applied twice? weighted_mean(error.square(), batch.weight) applies it once"
            )


class _NoReads(TorchCalls):
    """Raises if a value is read on the host: on a GPU every such read waits for the device."""

    _READS = tuple(
        getattr(Tensor, name)
        for name in ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__")
    )

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        assert func not in self._READS, f"a loss reads a tensor on the host: Tensor.{func.__name__}"
        return func(*args, **kwargs)


def losses_read_nothing(subject: Subject) -> None:
    """A loss never reads a value on the host."""
    algorithm, (batch, *_) = subject.first_batches()
    for step in algorithm.engine.trainings:
        with _NoReads():
            algorithm.engine.compute_gradients(step, batch)


def steps_stay_in_their_networks(subject: Subject) -> None:
    """A loss changes nothing; its step changes the parameters that it trains and no others."""
    algorithm, (batch, *_) = subject.first_batches()
    for step in algorithm.engine.trainings:
        prefixes = tuple(f"{module}." for module in step.networks)
        before = snapshot(algorithm.nets)
        gradients, loss = algorithm.engine.compute_gradients(step, batch)
        changed = changed_names(before, algorithm.nets)
        assert not changed, f"the loss of step {step.name!r} changes {changed[:3]}"
        strange = [name for name in gradients if not name.startswith(prefixes)]
        assert not strange, f"step {step.name!r} has gradients for {strange[:3]}"
        assert isinstance(loss, Loss) and loss.value.dim() == 0, f"step {step.name!r} has no scalar loss"
        silent = [name for name, gradient in gradients.items() if not bool(gradient.abs().sum() > 0)]
        assert not silent, f"step {step.name!r} has zero gradients for {silent[:3]}"
        if isinstance(step, Gradient):
            algorithm.engine.apply(step.name, gradients)
        else:
            algorithm.engine.update(batch, (step.name,))
        strange = [name for name in changed_names(before, algorithm.nets) if not name.startswith(prefixes)]
        assert not strange, f"step {step.name!r} changes {strange[:3]}, which it does not train"
        left = [name for name, parameter in algorithm.nets.named_parameters() if parameter.grad is not None]
        assert not left, f"step {step.name!r} leaves gradients in {left[:3]}"


def any_leading_dimensions(subject: Subject) -> None:
    """Losses accept any leading dimensions: a batch ``[B, …]`` has the same gradient as ``[2, B/2, …]``."""
    algorithm, batches = subject.first_batches()
    batch = batches[0]
    if batch.weight.dim() != 1:
        return
    half = len(batch.weight) // 2
    flat = batch.map(lambda x: x[: 2 * half])
    folded = batch.map(lambda x: x[: 2 * half].unflatten(0, (2, half)))
    for step in algorithm.engine.trainings:
        hint = (
            f"step {step.name!r}: a batch [{2 * half}, …] and the same steps as [2, {half}, …]{{}}. Count axes from "
            "the right (dim=-1, x[..., 0]; an ensemble's members are dimension 0), and search for shapes such as "
            "[B, 1] where [B] is meant"
        )
        expected = gradients(algorithm, step, flat)
        try:
            other = gradients(algorithm, step, folded)
        except (RuntimeError, IndexError, ValueError, BirlError) as error:
            raise AssertionError(hint.format(f" give an error: {error}")) from error
        for name, gradient in expected.items():
            near = torch.allclose(gradient, other[name], rtol=1e-3, atol=1e-5)
            assert near, hint.format(f" give other gradients of {name}")


def values_ignore_the_policy(subject: Subject) -> None:
    """If one step trains policy and Q-function, the policy's loss does not train the Q-function."""
    algorithm, (batch, *_) = subject.first_batches()
    policy = algorithm.acts.network
    if algorithm.acts.value is None or subject.experience.contexts:
        return
    x = subject.observations(5)
    action = subject.act(algorithm, x)

    def values() -> Array:
        return algorithm.predict_value(x, action)

    def moved(network: str, function: Callable[[], T]) -> T:
        with randomly_moved(algorithm.nets.get_submodule(network)):
            return function()

    before = values()
    if differences(before, moved(policy, values)):  # the policy is greedy with respect to the Q-function
        return
    batch = replace(batch, discount=torch.zeros_like(batch.discount))  # otherwise targets depend on the policy
    for step in algorithm.engine.trainings:
        valued = [name for name in step.networks if differences(before, moved(name, values))]
        if policy not in step.networks or not valued:
            continue
        first = gradients(algorithm, step, batch)
        second = moved(policy, partial(gradients, algorithm, step, batch))
        driven = [name for name in first if name.split(".")[0] in valued and not same(first[name], second[name])]
        assert not driven, (
            f"step {step.name!r} trains {driven[0]}, whose gradient depends on the policy {policy!r}: the policy's "
            "loss increases values instead of following them. Give each its own step, or `of` without the critic"
        )
