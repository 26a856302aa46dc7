"""What goldens and the contract do not see of AWAC, CRR, EDAC and Cal-QL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from birl import algos
from birl.algos.crr import HARD, SOFT
from birl.dataset import MDPDataset, MixedReplayBuffer
from birl.engine import HardCopy, Polyak
from birl.errors import ConfigError, DataError
from birl.logging import NoopAdapterFactory
from birl.models import (
    EncoderFactory,
    GRUEncoderFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
)
from birl.models import (
    matmul as products,
)
from birl.preprocessing import MultiplyRewardScaler
from birl.testing import ProbeEnv
from birl.types import Batch, Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def build(config: Any) -> Any:
    torch.manual_seed(0)
    algorithm = config.create()
    algorithm.create_impl((3,), 2)
    return algorithm


def batch(size: int = 6, seed: int = 0, **extra: Tensor) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    one = torch.ones(size)
    return Batch(normal(size, 3), normal(size, 2).tanh(), normal(size), normal(size, 3), 0.9 * one, one, extra=extra)


def data(seed: int = 0, count: int = 60) -> MDPDataset:
    generator, ends = np.random.default_rng(seed), np.arange(count) % 6 == 5
    return MDPDataset(
        generator.normal(size=(count, 3)).astype(np.float32),
        generator.uniform(-1, 1, (count, 2)).astype(np.float32),
        generator.normal(size=count).astype(np.float32),
        ends.astype(np.float32),
    )


def parameters(algorithm: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in algorithm.nets.state_dict().items()}


# -- AWAC ----------------------------------------------------------------------------------------------------------


def test_awac_stays_finite_with_large_advantages() -> None:
    algorithm = build(algos.AWACConfig(**ACTOR, lam=1e-3))
    with torch.no_grad():
        algorithm.nets.critic.head.linear.weight.mul_(1e4)
    for _ in range(3):
        metrics = algorithm.engine.update(batch())
    assert all(bool(torch.isfinite(value)) for value in metrics.values())
    algorithm.engine.check_finite()


def test_awac_logs_what_d3rlpy_logs() -> None:
    metrics = build(algos.AWACConfig(**ACTOR)).engine.update(batch())
    assert set(metrics) == {"critic_loss", "actor_loss", "temp", "temp_loss"}
    assert float(metrics["temp"]) == float(metrics["temp_loss"]) == 0.0


# -- CRR -----------------------------------------------------------------------------------------------------------


def candidates(algorithm: Any, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[n, B, A]`` and their values ``[n, B]``, averaged over the critics."""
    with torch.no_grad():
        policy = algorithm.nets.actor(Inputs(x))
        action = torch.stack([(policy.mean + policy.log_std.exp() * each).clamp(-1, 1) for each in noise])
        value = torch.stack([algorithm.nets.critic(Inputs(x), each).mean().mean(0) for each in action])
    return action, value


def test_crr_predicts_the_mean_of_the_critic_weighted_policy() -> None:
    algorithm, x = build(algos.CRRConfig(**ACTOR, n_critics=2, beta=0.02)), torch.randn(40, 3)
    noise = algorithm.nets.noise
    assert torch.equal(noise[0], torch.zeros(2)), "the mean is not among them"
    assert len(noise.unique(dim=0)) == 4
    action, value = candidates(algorithm, x, noise)
    probability = (value / 0.02).softmax(0)
    assert probability.std() > 0.1
    expected = torch.einsum("nb,nba->ba", probability, action)
    got = algorithm.predict(x.numpy())
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)
    assert np.array_equal(got, algorithm.predict(x.numpy())), "the same observation gives another action"


def test_crr_samples_by_the_critic_weighted_policy() -> None:
    algorithm = build(algos.CRRConfig(**ACTOR, n_action_samples=2, beta=0.05))
    x, count = torch.randn(1, 3).expand(4000, 3), 4000
    torch.manual_seed(1)
    noise = torch.randn(2, count, 2)
    action, value = candidates(algorithm, x, noise)
    torch.manual_seed(1)
    got = torch.from_numpy(algorithm.sample_action(x.numpy()))
    second = (got - action[1]).abs().sum(-1) < 1e-5
    assert bool((second | ((got - action[0]).abs().sum(-1) < 1e-5)).all()), "an action is none of the candidates"
    wanted = (value / 0.05).softmax(0)[1]
    assert float(wanted.std()) > 0.05
    for part in (wanted < 0.4, wanted > 0.6):
        assert float(second[part].float().mean()) == pytest.approx(float(wanted[part].mean()), abs=0.06)


def test_crr_with_one_sample_predicts_the_mean() -> None:
    algorithm, x = build(algos.CRRConfig(**ACTOR, n_action_samples=1)), torch.randn(5, 3)
    with torch.no_grad():
        mean = algorithm.nets.actor(Inputs(x)).mean
    np.testing.assert_allclose(algorithm.predict(x.numpy()), mean.numpy(), atol=1e-6)


def test_crr_remembers_for_policy_and_critic() -> None:
    gru = GRUEncoderFactory(hidden_size=5, hidden_units=[5])
    algorithm = build(algos.CRRConfig(actor_encoder_factory=gru, critic_encoder_factory=gru, n_critics=2))
    sequence = torch.randn(6, 1, 3)
    with torch.no_grad(), algorithm.in_acting_mode():
        expected = algorithm.policy_mode(algorithm.nets, Inputs(sequence))[:, 0]
    actor = algorithm.actor(greedy=True, n=1)
    got = [actor(x.numpy(), np.array([i == 0]), np.zeros(1, np.float32))[0] for i, x in enumerate(sequence)]
    np.testing.assert_allclose(np.stack(got), expected.numpy(), atol=1e-5)


def test_crr_targets_are_what_the_configuration_says() -> None:
    hard, soft = (build(algos.CRRConfig(**ACTOR, target_update_type=kind)).engine.targets for kind in ("hard", "soft"))
    assert hard == (HardCopy("critic", "critic_target", HARD), HardCopy("actor", "actor_target", HARD))
    assert soft == (Polyak("critic", "critic_target", SOFT), Polyak("actor", "actor_target", SOFT))
    for field in ("target_update_type", "advantage_type", "weight_type"):
        with pytest.raises(ConfigError, match=f"{field} is 'other'"):
            algos.CRRConfig(**{field: "other"})


# -- EDAC ----------------------------------------------------------------------------------------------------------


def test_edac_without_diversity_is_sac_n() -> None:
    edac, sac = build(algos.EDACConfig(**ACTOR, n_critics=4, eta=0.0)), build(algos.SACConfig(**ACTOR, n_critics=4))
    for seed in range(3):
        for algorithm in (edac, sac):
            torch.manual_seed(seed)
            algorithm.engine.update(batch(seed=seed))
    for name, tensor in parameters(sac).items():
        assert torch.allclose(tensor, edac.nets.state_dict()[name], atol=1e-6), name


class OneAtATime(EncoderFactory):
    """Knows nothing of ensembles."""

    def create(self, observation_shape: Any) -> nn.Module:
        return Flat(observation_shape[0])

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool = False) -> nn.Module:
        return Flat(observation_shape[0] + action_size)

    @staticmethod
    def get_type() -> str:
        return "one at a time, for EDAC"


class Flat(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 8)

    def forward(self, x: Tensor, action: Tensor | None = None) -> Tensor:
        return self.linear(x if action is None else torch.cat([x, action], -1)).tanh()


@pytest.mark.parametrize(
    ("encoder", "head"),
    [
        (ENCODER, MeanQFunctionFactory()),
        (ENCODER, QRQFunctionFactory(n_quantiles=4)),
        (ENCODER, MeanQFunctionFactory(share_encoder=True)),
        (SimBaEncoderFactory(), MeanQFunctionFactory()),
        (GRUEncoderFactory(hidden_size=4, hidden_units=[4]), MeanQFunctionFactory()),
        (OneAtATime(), MeanQFunctionFactory()),
    ],
    ids=["stacked", "quantiles", "shared", "SimBa", "GRU", "one by one"],
)
def test_gradients_are_those_of_each_member(encoder: Any, head: Any) -> None:
    fields = {**ACTOR, "critic_encoder_factory": encoder}
    critic = build(algos.EDACConfig(**fields, n_critics=3, q_func_factory=head)).nets.critic
    inputs, action = Inputs(torch.randn(4, 5, 3)), torch.rand(4, 5, 2)
    returns, gradient = critic.differentiate(inputs, action)
    plain = action.clone().requires_grad_()
    values = critic(inputs, plain).mean()
    assert torch.allclose(returns.mean(), values, atol=1e-6)
    expected = torch.stack([torch.autograd.grad(each.sum(), plain, create_graph=True)[0] for each in values])
    assert gradient.shape == (3, 4, 5, 2)
    assert torch.allclose(gradient, expected, atol=1e-6)
    weights = list(critic.parameters())
    second, wanted = (
        torch.autograd.grad(each.square().sum(), weights, allow_unused=True, materialize_grads=True)
        for each in (gradient, expected)
    )
    assert all(torch.allclose(each, other, atol=1e-5) for each, other in zip(second, wanted, strict=True))
    assert any(bool((each != 0).any()) for each in second)


def test_gradients_can_be_differentiated_inside_fast_products(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = VectorEncoderFactory(hidden_units=[64, 64])
    critic = build(algos.EDACConfig(**{**ACTOR, "critic_encoder_factory": wide}, n_critics=2)).nets.critic
    inputs, action = Inputs(torch.randn(5, 3)), torch.rand(5, 2)
    weights, found = [p for name, p in critic.named_parameters() if "bias" not in name], []
    for least in (products.NEVER, products.LeastWork(1, 1)):
        monkeypatch.setattr(products, "least_work", lambda least=least: least)
        with products.fast_products():
            gradient = critic.differentiate(inputs, action)[1]
            found.append(torch.autograd.grad(gradient.square().sum(), weights))
    for plain, other in zip(*found, strict=True):
        assert torch.allclose(plain, other, atol=1e-6)


def test_edac_stays_finite_where_no_unit_is_on() -> None:
    algorithm = build(algos.EDACConfig(**ACTOR, n_critics=3))
    with torch.no_grad():
        algorithm.nets.critic.encoder.layers[0].linear.bias.fill_(-100.0)
    metrics = algorithm.engine.update(batch())
    algorithm.engine.check_finite()
    assert float(metrics["diversity_loss"]) == 0.0


def test_edac_pulls_gradients_apart() -> None:
    algorithm = build(algos.EDACConfig(**ACTOR, n_critics=4, eta=10.0, critic_learning_rate=3e-3))
    losses = [float(algorithm.engine.update(batch())["diversity_loss"]) for _ in range(100)]
    assert losses[-1] < min(losses[0], 0) - 1.0


# -- Cal-QL --------------------------------------------------------------------------------------------------------


def test_cal_ql_with_low_returns_is_cql() -> None:
    low = {"return_to_go": torch.full((6,), -1e6)}
    found = []
    for config, extra in ((algos.CalQLConfig(**ACTOR), low), (algos.CQLConfig(**ACTOR), {})):
        algorithm = build(config)
        for seed in range(3):
            torch.manual_seed(seed)
            algorithm.engine.update(batch(seed=seed, **extra))
        found.append(parameters(algorithm))
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_cal_ql_does_not_push_below_the_return() -> None:
    """Where all returns are higher, Q-values of the policy's actions make no difference to the critics' loss."""
    algorithm = build(algos.CalQLConfig(**ACTOR, initial_alpha=1.0, conservative_weight=1.0, alpha_threshold=0.0))
    high = batch(return_to_go=torch.full((6,), 50.0))
    phase = algorithm.engine.steps[0]
    torch.manual_seed(0)
    loss = algorithm.engine.compute_gradients(phase, high)[1]
    torch.manual_seed(0)
    higher = replace(high, extra={"return_to_go": torch.full((6,), 51.0)})
    other = algorithm.engine.compute_gradients(phase, higher)[1]
    change = float(other.metrics["conservative_loss"] - loss.metrics["conservative_loss"])
    assert change == pytest.approx(2.0, abs=1e-3)  # 1 for each critic


def test_cal_ql_learns_from_scaled_discounted_returns() -> None:
    dataset = data()
    algorithm = algos.CalQLConfig(**ACTOR, gamma=0.5, reward_scaler=MultiplyRewardScaler(multiplier=3.0)).create()
    algorithm.build_with_dataset(dataset)
    made = algorithm.make_batch(algorithm.sample_minibatch(dataset))
    episodes = {tuple(x): (e, i) for e in dataset.episodes for i, x in enumerate(e.observations.tolist())}
    for x, value in zip(made.observation.tolist(), made.extra["return_to_go"].tolist(), strict=True):
        episode, index = episodes[tuple(x)]
        rewards = 3 * episode.rewards[index:, 0]
        assert value == pytest.approx(float(sum(0.5**k * r for k, r in enumerate(rewards))), abs=1e-5)


def test_cal_ql_says_what_a_minibatch_lacks() -> None:
    dataset, algorithm = data(), algos.CalQLConfig(**ACTOR).create()
    algorithm.build_with_dataset(dataset)
    with pytest.raises(DataError, match="CalQL learns from the data's returns"):
        algorithm.update(dataset.sample_transition_batch(8))


def test_other_algorithms_ask_for_no_returns() -> None:
    dataset, algorithm = data(), algos.CQLConfig(**ACTOR).create()
    algorithm.build_with_dataset(dataset)
    assert algorithm.returns is None
    assert algorithm.make_batch(algorithm.sample_minibatch(dataset)).extra == {}


def test_cal_ql_goes_on_online_with_both_kinds_of_data() -> None:
    env, algorithm = ProbeEnv("action", False), algos.CalQLConfig(**ACTOR, n_action_samples=2).create()
    from birl.dataset import create_fifo_replay_buffer
    from birl.testing import collect_dataset

    old = collect_dataset(env, 40)
    algorithm.build_with_dataset(old)
    online = create_fifo_replay_buffer(100, env=env)
    for step in range(20):
        observation, _ = env.reset(seed=step)
        action = algorithm.sample_action(observation[None])[0]
        _, reward, terminated, _, _ = env.step(action)
        online.append(observation, action, float(reward))
        online.clip_episode(bool(terminated))
        metrics = algorithm.update(algorithm.sample_minibatch(MixedReplayBuffer(online, old, 0.5)))
    assert np.isfinite([float(value) for value in metrics.values()]).all()
    algorithm.fit_online(
        env, n_steps=20, n_steps_per_epoch=20, show_progress=False, logger_adapter=NoopAdapterFactory()
    )
