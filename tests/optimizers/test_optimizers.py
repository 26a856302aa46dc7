"""Optimiser factories: what they make, JSON, schedules, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer, RMSprop

from birl import models, optimizers
from birl.errors import ConfigError, UnsupportedError
from birl.files.serializable import decode, encode
from birl.models import (
    AdamFactory,
    AdamWFactory,
    CosineAnnealingLRFactory,
    ExponentialSchedulerFactory,
    GPTAdamWFactory,
    LinearSchedulerFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    SimBaEncoderFactory,
    StepwiseSchedulerFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
    register_optimizer_factory,
)
from birl.models.layers import DenseLayer, EnsembleLinear
from birl.optimizers.steps import step_by_kernel

FACTORIES: list[OptimizerFactory] = [
    SGDFactory(momentum=0.9),
    AdamFactory(betas=(0.5, 0.9), clip_grad_norm=1.0),
    AdamWFactory(weight_decay=0.1),
    GPTAdamWFactory(weight_decay=0.1, lr_scheduler_factory=WarmupSchedulerFactory(10)),
    RMSpropFactory(),
    RMSpropFactory(eps_inside_root=True, centered=False, lr_scheduler_factory=StepwiseSchedulerFactory((2, 5))),
    OptimizerFactory(Adam, weight_decay=1e-4),
    OptimizerFactory(RMSprop, clip_grad_norm=0.5, lr_scheduler_factory=CosineAnnealingLRFactory(5)),
]
every_factory = pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: type(factory).__name__)


@every_factory
def test_factories_survive_json_and_copies(factory: OptimizerFactory) -> None:
    restored = decode(encode(factory))
    again = OptimizerFactory.deserialize(factory.serialize())
    assert type(restored) is type(again) is type(factory)
    assert encode(restored) == encode(again) == encode(factory) == encode(deepcopy(factory))


@every_factory
def test_a_step_is_torchs_own_step(factory: OptimizerFactory) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    reference = deepcopy(model)
    optimizer = factory.create(model.named_parameters(), 0.1)
    hidden = ("fused", "foreach", "decoupled_weight_decay")
    params = {key: value for key, value in optimizer.defaults.items() if key not in hidden}
    assert params["lr"] == 0.1
    plain = type(optimizer)(reference.parameters(), **params)  # type: ignore[call-arg]
    if isinstance(factory, GPTAdamWFactory):
        groups = [{"params": [reference.weight]}, {"params": [reference.bias], "weight_decay": 0.0}]
        plain = AdamW(groups, **params)
    for _ in range(3):
        for network, stepper in ((model, optimizer), (reference, plain)):
            stepper.zero_grad()
            network(torch.ones(1, 3)).square().sum().backward()
            stepper.step()
    assert torch.allclose(model.weight, reference.weight, atol=1e-6)
    assert torch.allclose(model.bias, reference.bias, atol=1e-6)


@pytest.mark.parametrize("centered", [True, False])
def test_epsilon_inside_the_root(centered: bool) -> None:
    """By hand: ``x -= lr * g / sqrt(E[g**2] - E[g]**2 + eps)``, in the constants of the DQN paper."""
    torch.manual_seed(0)
    x = nn.Parameter(torch.randn(4, dtype=torch.float64))
    expected, square, mean = x.detach().numpy().copy(), np.zeros(4), np.zeros(4)
    optimizer = RMSpropFactory(eps_inside_root=True, centered=centered).create([("x", x)], 0.1)
    for _ in range(5):
        gradient = torch.randn(4, dtype=torch.float64) / 100
        x.grad = gradient
        optimizer.step()
        g = gradient.numpy()
        square, mean = 0.95 * square + 0.05 * g * g, 0.95 * mean + 0.05 * g
        expected -= 0.1 * g / np.sqrt(square - centered * mean * mean + 0.01)
        assert np.allclose(x.detach().numpy(), expected, rtol=0, atol=1e-12)
    outside = RMSpropFactory(centered=centered).create([("x", x)], 0.1)
    before = x.detach().clone()
    outside.step()
    assert float((x.detach() - before).abs().min()) > 0.03  # torch's; those before were 0.02 at most


def test_d3rlpys_defaults() -> None:
    parameters = list(nn.Linear(1, 1).named_parameters())
    rmsprop = RMSpropFactory().create(parameters, 1e-3).defaults
    assert (rmsprop["alpha"], rmsprop["eps"], rmsprop["centered"]) == (0.95, 1e-2, True)
    adam = AdamFactory().create(parameters, 1e-3)
    assert type(adam) is Adam
    assert (adam.defaults["betas"], adam.defaults["eps"], adam.defaults["fused"]) == ((0.9, 0.999), 1e-8, True)


def test_a_factory_of_any_optimizer() -> None:
    factory = OptimizerFactory(Adam, weight_decay=1e-4)
    optimizer = factory.create(nn.Linear(1, 1).named_parameters(), 1e-3)
    assert type(optimizer) is Adam and optimizer.defaults["weight_decay"] == 1e-4 and optimizer.defaults["fused"]
    assert factory == OptimizerFactory("Adam", weight_decay=1e-4) != OptimizerFactory(Adam, weight_decay=1e-3)
    assert OptimizerFactory(Adam, foreach=True).create(nn.Linear(1, 1).named_parameters(), 1e-3)


def test_gpt_spares_biases_norms_and_embeddings() -> None:
    model = nn.ModuleDict(
        {"linear": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "position_embedding": nn.Embedding(4, 3)}
    )
    optimizer = GPTAdamWFactory(weight_decay=0.1).create(model.named_parameters(), 1e-3)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    decays = {name: decay[id(parameter)] for name, parameter in model.named_parameters()}
    assert decays.pop("linear.weight") == 0.1
    assert len(decays) == 4 and set(decays.values()) == {0.0}


def test_gpt_knows_stacked_networks() -> None:
    dense, linear = DenseLayer(3, 4, n=2, use_layer_norm=True), EnsembleLinear(2, 3, 4)
    simba = SimBaEncoderFactory(feature_size=4, hidden_size=8, n_blocks=1).create((3,))
    model = nn.ModuleDict({"dense": dense, "embedding": linear, "simba": simba})
    optimizer = GPTAdamWFactory(weight_decay=0.1).create(model.named_parameters(), 1e-3)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    decayed = {name for name, parameter in model.named_parameters() if decay[id(parameter)]}
    linears = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | EnsembleLinear)]
    assert decayed == {f"{name}.weight" for name in linears}


def rates(schedule: LRSchedulerFactory, steps: int) -> list[float]:
    factory = AdamFactory(lr_scheduler_factory=schedule)
    optimizer = factory.create(nn.Linear(1, 1).named_parameters(), 1.0)
    scheduler = factory.create_scheduler(optimizer)
    assert scheduler is not None
    result = []
    for _ in range(steps):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return result


def test_schedules() -> None:
    assert rates(WarmupSchedulerFactory(4), 6) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert rates(WarmupSchedulerFactory(0), 2) == [1.0, 1.0]
    assert rates(CosineAnnealingLRFactory(2, eta_min=0.2), 3) == pytest.approx([1.0, 0.6, 0.2])
    optimizer = AdamFactory().create(nn.Linear(1, 1).named_parameters(), 1.0)
    assert AdamFactory().create_scheduler(optimizer) is None


def test_straight_lines_falls_and_stairs() -> None:
    assert rates(LinearSchedulerFactory(4), 6) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert rates(LinearSchedulerFactory(2, end=1.5, start=0.5), 4) == pytest.approx([0.5, 1.0, 1.5, 1.5])
    assert rates(ExponentialSchedulerFactory(0.5, lowest=0.2), 5) == pytest.approx([1.0, 0.5, 0.25, 0.2, 0.2])
    assert rates(StepwiseSchedulerFactory([1, 3], 0.5), 5) == pytest.approx([1.0, 0.5, 0.5, 0.25, 0.25])
    assert decode(encode(StepwiseSchedulerFactory([1, 3]))) == StepwiseSchedulerFactory((1, 3))


def test_warmup_and_cosine_end_at_the_lowest_share() -> None:
    cosine = [0.5 * (1 + math.cos(math.pi * (update - 2.5) / 4)) for update in (3, 4, 5)]
    assert rates(WarmupCosineSchedulerFactory(2.5, 6.5), 9) == pytest.approx([0.4, 0.8, *cosine, 0.1, 0.1, 0.1, 0.1])
    assert rates(WarmupCosineSchedulerFactory(0, 2, lowest=0.0), 4) == pytest.approx([0.5, 0.0, 0.0, 0.0])
    for wrong in ({"warmup_steps": 3, "final_steps": 3}, {"warmup_steps": 1, "final_steps": 2, "lowest": 1.5}):
        with pytest.raises(ConfigError, match="final_steps"):
            WarmupCosineSchedulerFactory(**wrong)


def test_replace_keeps_the_rest() -> None:
    for factory in (AdamFactory(eps=1e-5), OptimizerFactory(Adam, eps=1e-5)):
        changed = factory.replace(clip_grad_norm=0.25, lr_scheduler_factory=WarmupSchedulerFactory(3))
        assert changed.clip_grad_norm == 0.25 and changed.lr_scheduler_factory == WarmupSchedulerFactory(3)
        assert changed.create(nn.Linear(1, 1).named_parameters(), 1.0).defaults["eps"] == 1e-5
        assert factory.clip_grad_norm is None


def test_a_factory_of_ones_own() -> None:
    @dataclass
    class OwnFactory(OptimizerFactory):
        momentum: float = 0.5
        clip_grad_norm: float | None = None
        lr_scheduler_factory: LRSchedulerFactory | None = None

        def create(self, named_parameters: object, lr: float) -> Optimizer:
            return torch.optim.SGD([p for _, p in named_parameters], lr, self.momentum)  # type: ignore[attr-defined]

        @staticmethod
        def get_type() -> str:
            return "test_own"

    register_optimizer_factory(OwnFactory)
    assert decode(encode(OwnFactory(0.25))) == OwnFactory(0.25)
    assert OwnFactory(0.25).create(nn.Linear(1, 1).named_parameters(), 0.1).defaults["momentum"] == 0.25


def test_a_factory_written_for_d3rlpy() -> None:
    class OldFactory(OptimizerFactory):
        def create_optimizer(self, named_modules: Any, lr: float) -> Optimizer:
            return torch.optim.SGD([p for _, module in named_modules for p in module.parameters()], lr)

        @staticmethod
        def get_type() -> str:
            return "test_old"

    class NoFactory(OptimizerFactory):
        pass

    layer = nn.Linear(2, 1)
    optimizer = OldFactory().create(layer.named_parameters(), 0.1)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(layer.weight), id(layer.bias)]
    assert OldFactory().create_scheduler(optimizer) is None
    with pytest.raises(UnsupportedError, match="NoFactory makes no optimiser: define create"):
        NoFactory().create(layer.named_parameters(), 0.1)


class OwnAdam(Adam):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamFactory(clip_grad_norm=0.0), "clip_grad_norm is 0.0.*> 0"),
        (lambda: OptimizerFactory(Adam, clip_grad_norm=-1.0), "clip_grad_norm"),
        (lambda: OptimizerFactory("Adamm"), "Adamm.*torch.optim"),
        (lambda: OptimizerFactory(dict), "optimiser class"),
        (lambda: encode(OptimizerFactory(OwnAdam)), "OwnAdam is not in torch.optim"),
        (lambda: WarmupSchedulerFactory(-1), "warmup_steps"),
        (lambda: CosineAnnealingLRFactory(0), "T_max"),
        (lambda: LinearSchedulerFactory(0), "duration is 0"),
        (lambda: LinearSchedulerFactory(5, end=-0.1), "end is -0.1"),
        (lambda: ExponentialSchedulerFactory(1.1), "decay is 1.1"),
        (lambda: StepwiseSchedulerFactory((3, 1)), "milestones is .3, 1.; it must be rising"),
        (lambda: StepwiseSchedulerFactory(()), "milestones"),
        (lambda: StepwiseSchedulerFactory((0, 1)), "milestones is 0"),
        (lambda: RMSpropFactory(eps=0.0, eps_inside_root=True), "eps is 0.0"),
        (lambda: register_optimizer_factory(dict), "OptimizerFactory"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_both_import_paths_are_one() -> None:
    for name in optimizers.__all__:
        assert getattr(optimizers, name) is getattr(models, name)


@every_factory
@pytest.mark.parametrize("hooked", [False, True])
def test_a_step_by_the_kernel_is_the_optimizers_step(factory: OptimizerFactory, hooked: bool) -> None:
    """Bit for bit, moments and counts included, and left to the optimiser wherever that would do something else."""
    torch.manual_seed(0)
    networks = [nn.Linear(3, 2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    optimizers = [factory.create(network.named_parameters(), 0.1) for network in networks]
    calls: list[Any] = []
    if hooked:
        optimizers[1].register_step_post_hook(lambda *given: calls.append(given))
    done: list[bool] = []
    for x in torch.randn(4, 1, 3):
        for network, optimizer in zip(networks, optimizers, strict=True):
            network(x).square().sum().backward()
            parameters = list(network.parameters())
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if optimizer is optimizers[1]:
                done.append(step_by_kernel(optimizer, parameters, gradients))
            if optimizer is optimizers[0] or not done[-1]:
                optimizer.step()
            optimizer.zero_grad()
    groups = optimizers[1].param_groups
    fused = isinstance(optimizers[1], Adam | AdamW) and len(groups) == 1 and bool(groups[0].get("fused"))
    assert done == [False, *[fused and not hooked] * 3]
    assert len(calls) == 4 * hooked
    for mine, theirs in zip(networks[1].parameters(), networks[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for name, value in optimizers[1].state[mine].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizers[0].state[theirs][name]))
