"""Algorithms for logged data with several choices at once. References are plain loops over elements and choices."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import birl
from birl import algos
from birl.algos import bcq, cql, iql, nfq
from birl.cli import main
from birl.errors import ConfigError
from birl.models import C51QFunctionFactory, QRQFunctionFactory, VectorEncoderFactory
from birl.testing import check_algorithm
from birl.testing.contract import SLOW_CHECKS
from birl.types import Batch
from tests.algos.masked_choices import SIZES, check_masked_options_are_never_taken

QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
ENCODER = VectorEncoderFactory(hidden_units=[5])
CHOSEN = torch.tensor([[0, 1, 3], [2, 0, 0], [1, 1, 2], [0, 0, 1], [2, 1, 3]])


def batch_of(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return Batch(
        observation=normal(5, 3),
        action=CHOSEN,
        reward=normal(5),
        next_observation=normal(5, 3),
        discount=torch.tensor([0.9, 0.0, 0.9, 0.9, 0.0], dtype=torch.float64),
        weight=torch.tensor([1.0, 0.5, 2.0, 1.0, 0.25], dtype=torch.float64),
    )


def built(config: Any) -> Any:
    """An algorithm with float64 networks of random parameters."""
    torch.manual_seed(1)
    algorithm = config.create()
    algorithm.create_impl((3,), SIZES)
    algorithm.nets.double()
    with torch.no_grad():
        for parameter in algorithm.nets.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def dense(nets: Any, name: str, x: torch.Tensor, member: int) -> torch.Tensor:
    """A linear layer by its name; a stacked one of a member."""
    weight, bias = nets.get_parameter(f"{name}.weight"), nets.get_parameter(f"{name}.bias")
    if weight.dim() == 3:
        return x @ weight[member] + bias[member].reshape(-1)
    return weight @ x + bias


def features(nets: Any, network: str, x: torch.Tensor, member: int = 0) -> torch.Tensor:
    """The output of a network's one hidden layer; a single critic has a module of its own."""
    single = hasattr(nets.get_submodule(f"{network}.encoder"), "members")
    name = "encoder.members.0.layers.0.linear" if single else "encoder.layers.0.linear"
    return dense(nets, f"{network}.{name}", x, member).clamp(min=0)


def q_values(nets: Any, network: str, x: torch.Tensor, member: int = 0) -> list[torch.Tensor]:
    """Eq. 1 of 1711.08946: for each choice the values of its options."""
    out = dense(nets, f"{network}.head.linear", features(nets, network, x, member), member)
    found, begin = [], 0
    for size in SIZES:
        advantage = out[begin : begin + size]
        found.append(out[-1] + advantage - sum(advantage) / size)
        begin += size
    return found


def split(out: torch.Tensor) -> list[torch.Tensor]:
    return list(out.split(SIZES))


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits - logits.exp().sum().log()


def huber(error: torch.Tensor) -> torch.Tensor:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def assert_equal(loss: Any, expected: torch.Tensor, nets: Any, *networks: str) -> None:
    torch.testing.assert_close(loss.value, expected)
    named = {name: p for name, p in nets.named_parameters() if name.split(".")[0] in networks}
    made, wanted = (
        torch.autograd.grad(x, list(named.values()), retain_graph=True, allow_unused=True)
        for x in (loss.value, expected)
    )
    for name, one, other in zip(named, made, wanted, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, msg=name)


def argmax(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def double_q_target(nets: Any, batch: Batch, i: int, members: int, best: list[int] | None = None) -> torch.Tensor:
    """Each choice takes the best option by the online networks; their values are averaged."""
    x = batch.next_observation[i]
    online = [q_values(nets, "critic", x, m) for m in range(members)]
    target = [q_values(nets, "critic_target", x, m) for m in range(members)]
    value = 0.0
    for d, size in enumerate(SIZES):
        scores = [sum(online[m][d][a].item() for m in range(members)) for a in range(size)]
        a = argmax(scores) if best is None else best[d]
        value += min(target[m][d][a].item() for m in range(members)) / len(SIZES)
    return batch.reward[i] + batch.discount[i] * value


@pytest.mark.parametrize("members", [1, 2])
def test_cql_has_a_conservative_loss_for_each_choice(members: int) -> None:
    config = algos.DiscreteCQLConfig(encoder_factory=ENCODER, n_critics=members, alpha=0.7)
    nets, batch = built(config).nets, batch_of()
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        target = double_q_target(nets, batch, i, members)
        for m in range(members):
            values = q_values(nets, "critic", batch.observation[i], m)
            for d in range(3):
                taken = values[d][CHOSEN[i, d]]
                gap = torch.log(sum(values[d][a].exp() for a in range(SIZES[d]))) - taken
                expected = expected + batch.weight[i] * (huber(taken - target) + 0.7 * gap) / 3 / 5
    loss = cql.discrete_loss(nets, batch, config)
    assert_equal(loss, expected, nets, "critic")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("members", [1, 2])
def test_bcq_considers_the_probable_options_of_each_choice(shared: bool, members: int) -> None:
    config = algos.DiscreteBCQConfig(
        encoder_factory=ENCODER, n_critics=members, share_encoder=shared, action_flexibility=0.6, beta=0.2
    )
    algorithm = built(config)
    nets, batch = algorithm.nets, batch_of()

    def imitated(x: torch.Tensor) -> list[torch.Tensor]:
        of = features(nets, "critic", x, 0) if shared else features(nets, "imitator", x)
        return split(dense(nets, "imitator.linear", of, 0))

    def constrained(x: torch.Tensor) -> list[int]:
        chosen = []
        values, logits = [q_values(nets, "critic", x, m) for m in range(members)], imitated(x)
        for d, size in enumerate(SIZES):
            share = log_softmax(logits[d]).exp()
            fits = [bool(share[a] / share.max() >= 0.6) for a in range(size)]
            scores = [sum(values[m][d][a].item() for m in range(members)) for a in range(size)]
            chosen.append(argmax([score if fit else -math.inf for score, fit in zip(scores, fits, strict=True)]))
        return chosen

    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        target = double_q_target(nets, batch, i, members, constrained(batch.next_observation[i]))
        td = torch.zeros((), dtype=torch.float64)
        for m in range(members):
            values = q_values(nets, "critic", batch.observation[i], m)
            td = td + sum(huber(values[d][CHOSEN[i, d]] - target) for d in range(3)) / 3
        logits = imitated(batch.observation[i])
        likelihood = sum(log_softmax(logits[d])[CHOSEN[i, d]] for d in range(3))
        penalty = 0.2 * sum((each**2).sum() for each in logits) / 9
        expected = expected + batch.weight[i] * (td + penalty - likelihood) / 5
    assert_equal(bcq.discrete_loss(nets, batch, config), expected, nets, "critic", "imitator")
    x = 3 * torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wanted = [constrained(row) for row in x]
    assert bcq.constrained_action(nets, birl.types.Inputs(x)).tolist() == wanted
    free = nets.critic(birl.types.Inputs(x)).best().tolist()
    assert wanted != free and len(set(map(tuple, wanted))) > 2


def test_iql_weights_whole_actions() -> None:
    config = algos.DiscreteIQLConfig(
        actor_encoder_factory=ENCODER,
        critic_encoder_factory=ENCODER,
        value_encoder_factory=ENCODER,
        expectile=0.8,
        weight_temp=2.0,
        max_weight=1.5,
    )
    nets, batch = built(config).nets, batch_of()
    zero = torch.zeros((), dtype=torch.float64)
    value_loss, critic_loss, actor_loss, weights = zero, zero, zero, []

    def value(x: torch.Tensor) -> torch.Tensor:
        return dense(nets, "value.linear", features(nets, "value", x), 0)[0]

    for i in range(5):
        x, share = batch.observation[i], batch.weight[i] / 5
        both = [q_values(nets, "critic_target", x, m) for m in range(2)]
        target = sum(min(both[m][d][CHOSEN[i, d]].item() for m in range(2)) for d in range(3)) / 3
        difference = target - value(x)
        value_loss = value_loss + share * (0.8 if difference > 0 else 0.2) * difference**2
        y = batch.reward[i] + batch.discount[i] * value(batch.next_observation[i]).detach()
        for m in range(2):
            values = q_values(nets, "critic", x, m)
            critic_loss = critic_loss + share * sum((values[d][CHOSEN[i, d]] - y) ** 2 for d in range(3)) / 3
        logits = split(dense(nets, "actor.linear", features(nets, "actor", x), 0))
        weights.append(min(math.exp(2.0 * difference.item()), 1.5))
        actor_loss = actor_loss - share * weights[-1] * sum(log_softmax(logits[d])[CHOSEN[i, d]] for d in range(3))
    assert min(weights) < 1.5 == max(weights)
    assert_equal(iql.value_loss(nets, batch, config), value_loss, nets, "value")
    assert_equal(iql.critic_loss(nets, batch_of(), config), critic_loss, nets, "critic")
    assert_equal(iql.actor_loss(nets, batch_of(), config), actor_loss, nets, "actor")


def test_nfq_values_the_next_state_by_the_mean_of_the_best_options() -> None:
    config = algos.NFQConfig(encoder_factory=ENCODER)
    nets, batch = built(config).nets, batch_of()
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        best = sum(max(each.tolist()) for each in q_values(nets, "critic", batch.next_observation[i])) / 3
        target = batch.reward[i] + batch.discount[i] * best
        values = q_values(nets, "critic", batch.observation[i])
        expected = expected + batch.weight[i] * sum((values[d][CHOSEN[i, d]] - target) ** 2 for d in range(3)) / 15
    assert_equal(nfq.q_loss(nets, batch, config), expected, nets, "critic")


# -- contract, heads, masks ------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "DiscreteCQL": algos.DiscreteCQLConfig(batch_size=8, encoder_factory=ENCODER, target_update_interval=2),
    "DiscreteBCQ": algos.DiscreteBCQConfig(batch_size=8, encoder_factory=ENCODER, target_update_interval=2),
    "DiscreteBCQ own": algos.DiscreteBCQConfig(
        batch_size=8, encoder_factory=ENCODER, target_update_interval=2, share_encoder=False
    ),
    "DiscreteIQL": algos.DiscreteIQLConfig(
        batch_size=8, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER, value_encoder_factory=ENCODER
    ),
    "NFQ": algos.NFQConfig(batch_size=8, encoder_factory=ENCODER),
    "DiscreteAWR": algos.DiscreteAWRConfig(
        batch_size=16,
        batch_size_per_update=8,
        n_actor_updates=2,
        n_critic_updates=2,
        actor_encoder_factory=ENCODER,
        critic_encoder_factory=ENCODER,
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_contract_holds_for_several_choices(name: str) -> None:
    check_algorithm(SMALL[name], action_size=[3, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_slow_contract_holds_for_several_choices(name: str) -> None:
    check_algorithm(SMALL[name], action_size=[3, 2], checks=list(SLOW_CHECKS))


@pytest.mark.parametrize("head", [QRQFunctionFactory(n_quantiles=4), C51QFunctionFactory(n_atoms=5)], ids=["qr", "c51"])
@pytest.mark.parametrize("config", [algos.DiscreteCQLConfig, algos.DiscreteBCQConfig, algos.NFQConfig])
def test_every_head_learns_several_choices(config: Any, head: Any) -> None:
    algorithm = config(batch_size=8, encoder_factory=ENCODER, q_func_factory=head).create()
    algorithm.fit(logged(40), n_steps=3, n_steps_per_epoch=3, **QUIET)
    assert algorithm.predict(np.zeros((2, 2), np.float32)).shape == (2, 2)


MASKED = [*SMALL.values(), algos.DiscreteRandomPolicyConfig()]


@pytest.mark.parametrize("config", MASKED, ids=[*SMALL, "DiscreteRandomPolicy"])
def test_masked_options_are_never_taken(config: Any) -> None:
    check_masked_options_are_never_taken(config)


def test_random_policies_take_all_actions_equally_often() -> None:
    birl.seed(0)
    algorithm = algos.DiscreteRandomPolicyConfig().create()
    algorithm.create_impl((3,), spaces.MultiDiscrete(SIZES, start=[0, 5, -1]))
    x = np.zeros((24_000, 3), np.float32)
    actions, counts = np.unique(algorithm.predict(x), axis=0, return_counts=True)
    assert actions.tolist() == [list(each) for each in itertools.product((0, 1, 2), (5, 6), (-1, 0, 1, 2))]
    assert abs(counts - 1000).max() < 150
    np.testing.assert_allclose(algorithm.action_probability(x[:2], np.array([[0, 5, -1], [2, 6, 2]])), 1 / 24)


def test_algorithms_without_several_choices_name_those_that_take_them() -> None:
    wanted = "takes discrete actions only; use one of .*DiscreteBC, DiscreteBCQ, DiscreteCQL.*DiscreteIQL"
    with pytest.raises(ConfigError, match=wanted):
        algos.DiscreteDecisionTransformerConfig().create().create_impl((3,), SIZES)


# -- learning from logs --------------------------------------------------------------------------------------------


def logged(n: int, seed: int = 0) -> birl.dataset.MDPDataset:
    """Bits that are shown: the reward is the share of choices that equal theirs. Logged actions are random."""
    rng = np.random.default_rng(seed)
    shown = rng.integers(2, size=(n, 2))
    actions = np.column_stack([rng.integers(3, size=n), rng.integers(2, size=n)])
    return birl.dataset.MDPDataset(
        observations=shown.astype(np.float32),
        actions=actions,
        rewards=(actions == shown).mean(1).astype(np.float32),
        terminals=np.arange(n) % 2 == 1,
        action_size=[3, 2],
    )


LEARNERS: dict[str, Any] = {
    "DiscreteCQL": algos.DiscreteCQLConfig(
        learning_rate=3e-3, batch_size=64, gamma=0.5, target_update_interval=20, alpha=0.1
    ),
    "DiscreteBCQ": algos.DiscreteBCQConfig(
        learning_rate=3e-3, batch_size=64, gamma=0.5, target_update_interval=20, action_flexibility=0.1
    ),
    "DiscreteIQL": algos.DiscreteIQLConfig(
        actor_learning_rate=3e-3, critic_learning_rate=3e-3, batch_size=64, gamma=0.5, weight_temp=20.0
    ),
    "NFQ": algos.NFQConfig(learning_rate=3e-3, batch_size=64, gamma=0.5),
}


@pytest.mark.parametrize("rate", [None, 0.0], ids=["learns", "control"])
@pytest.mark.parametrize("name", LEARNERS)
def test_each_choice_is_learned_from_random_logs(name: str, rate: float | None) -> None:
    birl.seed(1)
    config = LEARNERS[name]
    if rate is not None:
        rates = [each for each in vars(config) if each.endswith("learning_rate")]
        config = replace(config, **dict.fromkeys(rates, rate))
    algorithm = config.create()
    algorithm.fit(logged(400), n_steps=200, n_steps_per_epoch=200, **QUIET)
    x = np.array(list(itertools.product((0, 1), (0, 1))), np.float32)
    assert (algorithm.predict(x) == x).all() == (rate is None)


@pytest.mark.parametrize("name", ["DiscreteCQL", "DiscreteBCQ", "DiscreteIQL"])
def test_the_command_line_trains_them(name: str, tmp_path: Path) -> None:
    with (tmp_path / "log.h5").open("w+b") as file:
        logged(60).dump(file)
    run = ["train", name, "--dataset", str(tmp_path / "log.h5"), "--n-steps", "4", "--n-steps-per-epoch", "4"]
    assert main([*run, "--out", str(tmp_path / "run")]) in (0, None)
    (model,) = (tmp_path / "run").rglob("model_4.d3")
    assert birl.load_learnable(model).predict(np.zeros((1, 2), np.float32)).shape == (1, 2)
