"""Checks of the targets of values: rewards, discounts and target networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from birl.algorithm import Algorithm
from birl.engine import Gradients
from birl.engine.steps import Training
from birl.testing.contract.states import differences, same, snapshot
from birl.testing.contract.subject import Subject, gradients, randomly_moved
from birl.types import Batch, tree_leaves, tree_map


def _bootstrapping(
    subject: Subject, wanted: bool = True
) -> Iterator[tuple[Algorithm[Any, Any], Training, Batch, Gradients]]:
    """Yield the steps whose gradients depend on the next observation, with a batch of discount 0.9 and the gradients.

    With ``wanted=False``, yield the steps whose gradients do not depend on it.
    """
    algorithm, (batch, *_) = subject.first_batches()
    if batch.next_observation is None:
        return
    batch = replace(batch, discount=torch.full_like(batch.discount, 0.9))
    other = replace(batch, next_observation=tree_map(lambda x: x.flip(-1) + 1, batch.next_observation))
    for step in algorithm.engine.trainings:
        found = gradients(algorithm, step, batch)
        if bool(differences(found, gradients(algorithm, step, other))) == wanted:
            yield algorithm, step, batch, found


def discounts_count(subject: Subject) -> None:
    """Values are learned from the reward, and from the next state in proportion to ``batch.discount``."""
    for algorithm, step, batch, found in _bootstrapping(subject, wanted=False):
        other = gradients(algorithm, step, replace(batch, discount=batch.discount / 2))
        assert not differences(found, other), (
            f"step {step.name!r}: the gradient depends on batch.discount, but not on the next observation: probably it "
            "discounts the value of batch.inputs. Use batch.next_inputs"
        )
    for algorithm, step, batch, found in _bootstrapping(subject):

        def matters(
            found: Gradients = found, algorithm: Algorithm[Any, Any] = algorithm, step: Training = step, **other: Any
        ) -> bool:
            return bool(differences(found, gradients(algorithm, step, **other)))

        reward = matters(batch=replace(batch, reward=batch.reward + 1))
        halved = matters(batch=replace(batch, discount=batch.discount / 2))
        ended = matters(batch=replace(batch, discount=torch.zeros_like(batch.discount)))
        where = f"step {step.name!r}: the gradient depends on the next observation"
        assert reward or not ended, f"{where} and on batch.discount, but not on batch.reward"
        if reward:
            assert ended, (
                f"{where}, but not on batch.discount: states after a termination have values. Multiply the next value "
                "by batch.discount, which is gamma**n, and 0 after a termination: returns.backup(batch.reward, "
                "batch.discount)"
            )
            assert halved, (
                f"{where}, but only tests whether batch.discount is 0: multiply by it, or n-step returns are "
                "discounted as single steps"
            )
        gamma = replace(algorithm.config, gamma=algorithm.config.gamma / 2)
        assert not matters(batch=batch, config=gamma), (
            f"step {step.name!r}: the gradient depends on both cfg.gamma and batch.discount, "
            "which already contains gamma**n"
        )


def targets_are_constants(subject: Subject) -> None:
    """No gradient flows through the next observation: targets are constants."""
    for algorithm, step, batch, _ in _bootstrapping(subject):
        following = tree_map(lambda x: x.clone().requires_grad_(), batch.next_observation)
        torch.manual_seed(0)
        value = step.loss(algorithm.nets, replace(batch, next_observation=following), algorithm.config).value
        flows = torch.autograd.grad(value, list(tree_leaves(following)), allow_unused=True)
        assert all(each is None or not bool(each.any()) for each in flows), (
            f"step {step.name!r}: its gradient flows through the next observation. Compute targets under "
            "torch.no_grad(); if this is the case, the loss uses next_inputs instead of inputs"
        )


def targets_act(subject: Subject) -> None:
    """Every target network affects gradients."""
    algorithm = subject.build()
    item = subject.inputs(algorithm, 1)[0]
    engine = algorithm.engine

    def learned() -> tuple[dict[str, Tensor], list[Gradients]]:
        torch.manual_seed(0)
        batches = subject.batches(algorithm, item)[:1]
        batch = replace(batches[0], discount=torch.full_like(batches[0].discount, 0.9))
        return batch.extra, [gradients(algorithm, step, batch) for step in engine.trainings]

    extra, before = learned()
    for target in engine.targets:
        with randomly_moved(algorithm.nets.get_submodule(target.target)):
            other, after = learned()
        acts = differences(extra, other) or any(map(differences, before, after))
        assert acts, (
            f"the target network {target.target!r} has no influence on any gradient: probably a loss computes its "
            f"target with {target.source!r}. Use nets.{target.target}(batch.next_inputs), or leave it out"
        )


def parameters_move(subject: Subject) -> None:
    """Every parameter is trained by a step, belongs to a target network, or is declared a constant."""
    nets, engine = (algorithm := subject.build()).nets, algorithm.engine
    trained = {name for step in engine.trainings for name in engine.parameters[step.name]}
    if not engine.steps:
        return
    following = {target.target for target in engine.targets}
    for network, module in nets.named_children():
        names = {f"{network}.{name}": parameter for name, parameter in module.named_parameters()}
        left = [name for name in names if name not in trained]
        if network in following or not left:
            continue
        source = next((name for name, other in nets.named_children() if _begins_as(module, other)), None)
        assert source is None or set(names) - set(left), (
            f"the network {network!r} begins as a copy of {source!r}, but no step updates it: add "
            f"Polyak({source!r}, {network!r}) or HardCopy({source!r}, {network!r}) to `steps`"
        )
        _refuse([name for name in left if names[name].requires_grad])
    _refuse([name for name, parameter in nets.named_parameters(recurse=False) if parameter.requires_grad])


def _refuse(left: list[str]) -> None:
    assert not left, (
        f"no step trains {', '.join(left[:3])}: put it into a network that a Gradient step names (in `of`), or make it "
        "a buffer, if it is a constant"
    )


def _begins_as(module: nn.Module, other: nn.Module) -> bool:
    own, others = snapshot(module), snapshot(other)
    return module is not other and own.keys() == others.keys() and all(same(own[name], others[name]) for name in own)
