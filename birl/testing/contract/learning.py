"""Checks of whole updates: metrics, target networks, heads and compiled programs."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from birl.engine import HardCopy, Polyak
from birl.errors import ConfigError
from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
)
from birl.models.layers import EnsembleLinear, Members
from birl.models.recurrent import RecurrentMembers
from birl.optimizers import SGDFactory
from birl.testing.contract.states import changed_names, differences, same, snapshot
from birl.testing.contract.subject import Subject, keeping_still

BANDIT_UPDATES = 40
"""Number of updates that shows in which direction values and actions change, with learning rates of 0.01."""


def batches_stay_as_they_are(subject: Subject) -> None:
    """An update does not write to its batch."""
    algorithm, (batch, *_) = subject.first_batches()
    before = batch.map(lambda x: x.clone())
    try:
        algorithm.engine.update(batch)
    except ConfigError as error:
        raise AssertionError(f"an update changes its batch: {error}") from error
    names = ("action", "reward", "discount", "weight")
    differing = [name for name in names if not same(getattr(before, name), getattr(batch, name))]
    assert not differing, f"an update changes its batch: {differing}"


def compiled_equals_eager(subject: Subject) -> None:
    """A compiled update equals an eager one and is compiled at most twice."""
    nets, metrics = [], []
    for compiled in (False, True):
        algorithm = subject.with_config(compile_graph=compiled, compile=False).build()
        torch._dynamo.utils.counters.clear()
        for item in subject.inputs(algorithm, 4):
            torch.manual_seed(0)
            metrics.append(algorithm.update(item))
        nets.append(snapshot(algorithm.nets))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert algorithm.engine.compiled, "compile_graph=True, but nothing is compiled"
    assert graphs <= 2, f"{graphs} programs for one update: something is compiled again and again"
    for name, tensor in nets[0].items():
        error = float((tensor - nets[1][name]).abs().max())
        assert error <= 2e-4, f"compiled, {name} differs by {error:.1e}"


def members_differ(subject: Subject) -> None:
    """Members of an ensemble begin with different parameters."""
    algorithm = subject.with_config(n_critics=3).build()
    for name, module in algorithm.nets.named_modules():
        members: list[list[Tensor]] = []
        if isinstance(module, EnsembleLinear):
            members = [[module.weight[k], module.bias[k]] for k in range(module.weight.shape[0])]
        elif isinstance(module, Members | RecurrentMembers):
            members = [list(member.parameters()) for member in module.members]
        for i, first in enumerate(members):
            for second in members[:i]:
                alike = [a for a, b in zip(first, second, strict=True) if a.numel() > 1 and torch.equal(a, b)]
                assert not alike, f"two members of {name} begin with equal parameters"


def metrics(subject: Subject) -> None:
    """Metrics are finite scalars on the device, without a graph."""
    algorithm = subject.with_config(update_actor_interval=1).build()
    for item in subject.inputs(algorithm, 2):
        metrics = algorithm.update(item)
        assert metrics, "an update gave no metrics"
        for name, value in metrics.items():
            assert isinstance(name, str) and isinstance(value, Tensor), f"metric {name!r} is a {type(value).__name__}"
            assert value.dim() == 0, f"metric {name!r} has shape {tuple(value.shape)}, not that of a scalar"
            assert not value.requires_grad, f"metric {name!r} keeps the graph of its loss"
            assert value.device == algorithm.torch_device, f"metric {name!r} is on {value.device}"
            assert bool(torch.isfinite(value)), f"metric {name!r} is {float(value)}"


def q_functions(subject: Subject) -> None:
    """Every kind of Q-function learns and predicts, except those that the configuration rejects by name."""
    if not hasattr(subject.config, "q_func_factory"):
        return
    heads: tuple[QFunctionFactory, ...] = (
        MeanQFunctionFactory(),
        QRQFunctionFactory(n_quantiles=5),
        IQNQFunctionFactory(n_quantiles=5, n_greedy_quantiles=4, embed_size=6),
        C51QFunctionFactory(n_atoms=11),
        MeanQFunctionFactory(share_encoder=True),
    )
    for head in heads:
        try:
            chosen = subject.with_config(q_func_factory=head, update_actor_interval=1)
        except ConfigError as error:
            if "q_func_factory" in str(error) and not isinstance(head, type(subject.config.q_func_factory)):
                continue
            raise
        # every trained parameter must change within two updates
        algorithm = chosen.build()
        before = snapshot(algorithm.nets)
        for item in subject.inputs(algorithm, 2):
            metrics = algorithm.update(item)
            bad = [name for name, value in metrics.items() if not bool(torch.isfinite(value))]
            assert not bad, f"{head}: {bad} are not finite"
        trained = {name for step in algorithm.engine.trainings for name in algorithm.engine.parameters[step.name]}
        still = trained - set(changed_names(before, algorithm.nets))
        assert not still, f"{head}: no gradient step moved {sorted(still)}"
        x = subject.observations(5)
        value = algorithm.predict_value(x, subject.act(algorithm, x))
        assert value.shape == (5,) and np.isfinite(value).all(), f"{head}: predict_value gave {value!r}"


def targets_follow(subject: Subject) -> None:
    """Target networks begin as copies and change by the right amount when they are due."""
    algorithm = subject.with_config(target_update_interval=3, tau=0.25).build()
    engine = algorithm.engine
    for target in engine.targets:
        source, own = (engine.nets.get_submodule(name) for name in (target.source, target.target))
        assert not differences(snapshot(source), snapshot(own)), f"{target.target} does not begin as {target.source}"
        asking = [name for name, parameter in own.named_parameters() if parameter.requires_grad]
        assert not asking, f"{target.target} has trainable parameters {asking[:3]}"
    for batch in [batch for item in subject.inputs(algorithm, 7) for batch in subject.batches(algorithm, item)[:1]]:
        before = [snapshot(engine.nets.get_submodule(target.target)) for target in engine.targets]
        engine.update(batch)
        for target, old in zip(engine.targets, before, strict=True):
            source, own = (engine.nets.get_submodule(name) for name in (target.source, target.target))
            changed = changed_names(old, own)
            if not target.when.is_due(engine.grad_step, engine.config):
                assert not changed, f"{target.target} changes in update {engine.grad_step}, when it is not due"
                continue
            assert changed, f"{target.target} does not change in update {engine.grad_step}, when it is due"
            if not isinstance(target, HardCopy | Polyak):
                continue
            tau = getattr(engine.config, target.tau) if isinstance(target, Polyak) else 1.0
            for name, tensor in own.state_dict().items():
                expected = (1 - tau) * old[name] + tau * source.state_dict()[name]
                assert torch.allclose(tensor, expected, atol=1e-6), f"{target.target}.{name} is not where it should be"


def frozen_parameters_stay(subject: Subject) -> None:
    """Parameters with ``requires_grad_(False)`` do not change, and all others do."""
    algorithm = subject.with_config(update_actor_interval=1, tau=0.25, target_update_interval=1).build()
    engine = algorithm.engine
    trained = {name for step in engine.trainings for name in engine.parameters[step.name]}
    frozen = set()
    for network in {name.partition(".")[0] for name in trained}:
        first, *others = engine.nets.get_submodule(network).named_parameters()
        if others:  # a network needs a parameter that learns
            first[1].requires_grad_(False)
            frozen.add(f"{network}.{first[0]}")
    before = snapshot(engine.nets)
    for item in subject.inputs(algorithm, 2):
        algorithm.update(item)
    changed = set(changed_names(before, engine.nets))
    assert not changed & frozen, f"{sorted(changed & frozen)[:3]} changed after requires_grad_(False)"
    still = trained - frozen - changed
    assert not still, f"with {sorted(frozen)} frozen, no step changed {sorted(still)[:3]}"


def zero_learning_rate(subject: Subject) -> None:
    """With a learning rate of 0 nothing changes."""
    still = keeping_still(subject.config)
    assert still, "no field ends in learning_rate"
    algorithm = subject.with_config(**still, target_update_interval=1, update_actor_interval=1).build()
    before = snapshot(algorithm.nets)
    for item in subject.inputs(algorithm, 3):
        algorithm.update(item)
    changed = changed_names(before, algorithm.nets)
    assert not changed, f"with learning rate 0 these change: {changed[:5]}"


def follows_rewards(subject: Subject) -> None:
    """Values and actions follow rewards, which have the opposite sign in a second run."""
    config = subject.config
    rates = {item.name: 1e-2 for item in dataclasses.fields(config) if item.name.endswith("learning_rate")}
    for name in rates:  # Adam's steps are as long as the rate, those of SGD grow with the gradient
        if isinstance(getattr(config, name.replace("learning_rate", "optim_factory"), None), SGDFactory):
            rates[name] = 5e-3
    early = {"update_actor_interval": 1, "target_update_interval": 1, "warmup_steps": 1, "rl_start_step": 0}
    subject = replace(subject.with_config(**rates, **early), observation_shape=(3,))
    nets, actions, values, slopes = [], [], [], []
    for sign in (1.0, -1.0):
        algorithm = subject.build()
        draw = subject.bandit(algorithm, sign)
        while algorithm.grad_step < BANDIT_UPDATES:
            algorithm.update(draw())
        nets.append(snapshot(algorithm.nets))
        x = subject.observations(32)
        good, bad = (subject.bandit_action(len(x), best) for best in (True, False))
        actions.append(float(subject.goodness(subject.act(algorithm, x)).mean()))
        if algorithm.acts.value is not None and not subject.experience.contexts:
            high, low = (algorithm.predict_value(x, action).mean() for action in (good, bad))
            values.append(float(high + low))
            slopes.append(float(high - low))
    if not differences(nets[0], nets[1]):  # imitation: rewards do not matter
        return
    message = "after {0} updates on single steps, rewarded and then punished, {1}: probably the sign of {2} is wrong{3}"
    if values:
        rise = values[0] > values[1] and slopes[0] >= slopes[1]
        other = ", or it changes values of other actions than batch.action"
        assert rise, message.format(BANDIT_UPDATES, "values do not follow the rewards", "the critic's loss", other)
    assert algorithm.evaluates or actions[0] > actions[1], message.format(
        BANDIT_UPDATES, "the policy does not prefer what was rewarded", "the policy's loss", ""
    )
