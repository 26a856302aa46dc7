"""Updates compared with d3rlpy 2.8.1 and Stable-Baselines3 2.9.2: same weights, minibatches and random numbers.

The files ``write_updates.py`` in ``tests/data`` wrote them. Where birl differs on purpose, the test undoes what the
docstring says under "Differs from d3rlpy" and nothing else: so it holds that this is all that differs.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl.compat.d3rlpy_models
from birl.algos import DQNConfig, TD3Config, bcq, cql, discrete_sac, dqn, iql, nfq, sac
from birl.compat.d3rlpy_models import read_d3rlpy
from birl.engine import Gradient
from birl.models import NormalPolicy
from birl.models.distributions import Categorical, Normal
from birl.types import Batch, Loss

DATA = Path(__file__).parents[1] / "data" / "d3rlpy"
with np.load(DATA / "updates" / "batches.npz") as file:
    BATCHES = {name: torch.from_numpy(file[name]) for name in file.files}
STEPS, SIZE = BATCHES["rewards"].shape[:2]
ALIKE = ("bc", "crr", "ddpg", "dqn", "dqn_qr", "rebrac", "td3", "td3_plus_bc")


read = read_d3rlpy


def updated(algorithm: Any) -> dict[str, torch.Tensor]:
    """The weights after all updates."""
    for step in range(STEPS):
        torch.manual_seed(step)
        algorithm.update(batch(algorithm, step))
    found: dict[str, torch.Tensor] = algorithm.nets.state_dict()
    return found


def batch(algorithm: Any, step: int) -> Batch:
    """One minibatch as an update takes it."""
    given = {name: value[step] for name, value in BATCHES.items()}
    return Batch(
        given["observations"],
        given["discrete"][:, 0] if algorithm.spec.actions.discrete else given["continuous"],
        given["rewards"][:, 0],
        given["next_observations"],
        algorithm.config.gamma * (1 - given["terminals"][:, 0]),
        torch.ones(SIZE),
        extra={
            "next_action": given["next_continuous"],
            "next_action_known": torch.ones(SIZE),
            "discounted_return": given["returns_to_go"][:, 0],
        },
    )


def distances(name: str) -> tuple[float, float]:
    """How far birl's weights are from d3rlpy's after all updates, and how far d3rlpy's have moved."""
    algorithm, expected = read(DATA / f"{name}.d3"), read(DATA / "updates" / f"{name}.d3")
    before = {key: value.clone() for key, value in algorithm.nets.state_dict().items()}
    after, wanted = updated(algorithm), expected.nets.state_dict()
    apart = max((after[key] - value).abs().max().item() for key, value in wanted.items())
    return apart, max((before[key] - value).abs().max().item() for key, value in wanted.items())


def hold_equal(name: str) -> None:
    apart, moved = distances(name)
    assert apart < 1e-5 < 3e-4 < moved


@pytest.mark.parametrize("name", ALIKE)
def test_updates_are_those_of_d3rlpy(name: str) -> None:
    hold_equal(name)


def with_huber_loss(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    squared = module.td_loss
    monkeypatch.setattr(module, "td_loss", lambda *args: squared(*args, delta=1.0))


def undo_nfq(monkeypatch: pytest.MonkeyPatch) -> None:
    with_huber_loss(monkeypatch, nfq)


def with_temperature_first(monkeypatch: pytest.MonkeyPatch, algorithm: Any) -> None:
    critic, actor, temperature, *targets = algorithm.steps

    def loss(*args: Any) -> Loss:
        with torch.random.fork_rng():  # it sees the actions that the policy's loss will see
            return temperature.loss(*args)

    monkeypatch.setattr(algorithm, "steps", (critic, dataclasses.replace(temperature, loss=loss), actor, *targets))


def undo_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    with_temperature_first(monkeypatch, sac.SAC)


def undo_discrete_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    with_huber_loss(monkeypatch, discrete_sac)
    with_temperature_first(monkeypatch, discrete_sac.DiscreteSAC)


def undo_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """d3rlpy's penalty sees normalised logits, which torch's distributions keep."""
    forward = birl.models.CategoricalPolicy.forward
    monkeypatch.setattr(
        birl.models.CategoricalPolicy, "forward", lambda self, inputs: Categorical(forward(self, inputs).log_probs)
    )
    shared = bcq.ImitatorHead.forward
    monkeypatch.setattr(bcq.ImitatorHead, "forward", lambda self, *given: Categorical(shared(self, *given).log_probs))


def undo_iql(monkeypatch: pytest.MonkeyPatch) -> None:
    value, critic, *others = iql.IQL.steps
    monkeypatch.setattr(iql.IQL, "steps", (critic, value, *others))  # Q learns from the V before its step

    def with_its_parameter(path: Path) -> Any:
        algorithm = read_d3rlpy(path)
        algorithm.nets.actor.log_std.data = torch.logit((algorithm.nets.actor.log_std.data + 5) / 7)
        return algorithm

    def forward(self: NormalPolicy, inputs: Any) -> Normal:
        return Normal(self.linear(self.encode(inputs)).tanh(), -5 + 7 * self.log_std.sigmoid())

    monkeypatch.setattr(sys.modules[__name__], "read", with_its_parameter)
    monkeypatch.setattr(NormalPolicy, "forward", forward)


def undo_discrete_cql(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(nets: Any, batch: Batch, cfg: Any) -> Loss:
        value = nets.critic(batch.inputs).mean().mean(0)  # over critics
        taken = value.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        gap = (torch.logsumexp(value, -1) - taken).mean()
        return Loss(dqn.double_q_loss(nets, batch, cfg).value + cfg.alpha * gap)

    steps = (Gradient("critic", loss, optimizer="", metric="loss"), *cql.DiscreteCQL.steps[1:])
    monkeypatch.setattr(cql.DiscreteCQL, "steps", steps)


def draw_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of CQL's update is undone, but its uniform proposals are those that d3rlpy draws."""

    def rand_like(x: torch.Tensor) -> torch.Tensor:
        count, size, actions = x.shape
        return torch.rand(size * count, actions).view(size, count, actions).transpose(0, 1)

    monkeypatch.setattr(torch, "rand_like", rand_like)


UNDONE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "cal_ql": draw_in_its_order,
    "cql": draw_in_its_order,
    "discrete_bc": undo_penalty,
    "discrete_bcq": undo_penalty,
    "discrete_cql": undo_discrete_cql,
    "discrete_sac": undo_discrete_sac,
    "iql": undo_iql,
    "nfq": undo_nfq,
    "sac": undo_sac,
    "sac_qr": undo_sac,
}


@pytest.mark.parametrize("name", UNDONE)
def test_they_are_but_for_what_is_documented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    UNDONE[name](monkeypatch)
    hold_equal(name)


SLIGHT = ("cal_ql", "cql", "sac", "sac_qr")  # only when alpha and temperature move, and they hardly do in ten updates


@pytest.mark.parametrize("name", ["cql", "cal_ql"])
def test_cql_counts_the_sum_over_proposals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant has no gradient but that of ``alpha``, which is d3rlpy's to the last digits only with the sum."""
    draw_in_its_order(monkeypatch)
    expected, apart = read(DATA / "updates" / f"{name}.d3").nets.alpha.raw, []
    configured = birl.compat.d3rlpy_models._config
    for summed in (True, False):
        config = {"sum_proposals": summed}
        monkeypatch.setattr(
            birl.compat.d3rlpy_models, "_config", lambda data, c=config: dataclasses.replace(configured(data), **c)
        )
        apart.append((updated(read(DATA / f"{name}.d3"))["alpha.raw"] - expected).abs().item())
    assert apart[0] < 1e-9 and apart[1] > 2e-8


DIFFERENT = [name for name in UNDONE if name not in SLIGHT]


@pytest.mark.parametrize("name", [*DIFFERENT, "awac"])
def test_what_is_documented_makes_a_difference(name: str) -> None:
    apart, _ = distances(name)
    assert apart > 1e-4


# -- Stable-Baselines3 -----------------------------------------------------------------------------------------


def from_sb3(name: str, given: dict[str, torch.Tensor], when: str) -> dict[str, torch.Tensor]:
    """Weights by birl's names; a layer's place among SB3's is twice its number, for activations count there."""
    found = {}
    for copy, index, kind in itertools.product(("", "_target"), range(3), ("weight", "bias")):
        hidden, last = index < 2, f"{2 * index}.{kind}"
        layer = f"encoder.layers.{index}.linear.{kind}" if hidden else f"linear.{kind}"
        head = layer if hidden else f"head.linear.{kind}"
        if name == "TD3":
            found[f"actor{copy}.{layer}"] = given[f"{when}.actor{copy}.mu.{last}"]
            critics = [given[f"{when}.critic{copy}.qf{critic}.{last}"] for critic in range(2)]
        else:
            critics = [given[f"{when}.q_net{copy}.q_net.{last}"]]
        if name == "DQN" and hidden:  # a single critic's encoder is not stacked
            found[f"critic{copy}.encoder.members.0.layers.{index}.linear.{kind}"] = critics[0]
        else:
            found[f"critic{copy}.{head}"] = torch.stack([x.t() if kind == "weight" else x[None] for x in critics])
    return found


@pytest.mark.parametrize("name", ["TD3", "DQN"])
def test_updates_are_those_of_stable_baselines(name: str) -> None:
    with np.load(DATA.parent / "sb3" / f"{name}.npz") as file:
        given = {key: torch.from_numpy(file[key]) for key in file.files}
    small, rate = birl.models.VectorEncoderFactory([8, 8]), 1e-3
    if name == "DQN":
        optimizer = birl.models.AdamFactory(clip_grad_norm=10.0)
        config: Any = DQNConfig(encoder_factory=small, learning_rate=rate, optim_factory=optimizer)
    else:
        rates = {"actor_learning_rate": rate, "critic_learning_rate": rate}
        config = TD3Config(actor_encoder_factory=small, critic_encoder_factory=small, **rates)
    algorithm = config.create()
    algorithm.create_impl((3,), 3 if name == "DQN" else 2)
    before, wanted = from_sb3(name, given, "before"), from_sb3(name, given, "after")
    algorithm.nets.load_state_dict(before)
    after = updated(algorithm)
    assert max((after[key] - value).abs().max().item() for key, value in wanted.items()) < 1e-5
    assert max((before[key] - value).abs().max().item() for key, value in wanted.items()) > 5e-3
