"""The conditional auto-encoder: its shapes, its tanh, its latents; and what two of its users do with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from birl import algos
from birl.algos.bear import LOG_ALPHA_RANGE, alpha_loss, mmd
from birl.losses import vae_loss
from birl.models import GRUEncoderFactory, ResidualPolicy, VAEDecoder, VAEEncoder, VectorEncoderFactory, random_latents
from birl.models.distributions import Normal
from birl.spaces import Continuous
from birl.spaces.specs import Spec
from birl.types import Batch, Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
SPEC = Spec((3,), Continuous(2))
SMALL: dict[str, Any] = {
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "imitator_encoder_factory": ENCODER,
}
CONFIGS = (
    algos.BCQConfig(**SMALL, n_action_samples=5),
    algos.PLASConfig(**SMALL),
    algos.PLASWithPerturbationConfig(**SMALL),
    algos.BEARConfig(**SMALL, n_action_samples=5),
)


def batch(size: int = 6) -> Batch:
    generator = np.random.default_rng(1)
    draw = lambda *shape: torch.from_numpy(generator.normal(size=shape).astype(np.float32))  # noqa: E731
    ones = torch.ones(size)
    return Batch(draw(size, 3), draw(size, 2).tanh(), draw(size), draw(size, 3), 0.9 * ones, ones)


def built(config: Any) -> Any:
    torch.manual_seed(0)
    algorithm = config.create()
    algorithm.create_impl((3,), 2)
    return algorithm


@pytest.mark.parametrize("lead", [(), (4,)])
def test_shapes(lead: tuple[int, ...]) -> None:
    encoder, decoder = VAEEncoder(SPEC, ENCODER, 4), VAEDecoder(SPEC, ENCODER, 4)
    inputs = Inputs(torch.randn(6, 3))
    posterior = encoder(inputs, torch.rand(*lead, 6, 2))
    assert posterior.mean.shape == posterior.log_std.shape == (*lead, 6, 4)
    assert decoder(inputs, torch.randn(*lead, 6, 4)).shape == (*lead, 6, 2)
    assert decoder.sample(inputs).shape == (6, 2)
    assert decoder.sample(inputs, 5).shape == (5, 6, 2)


def test_recurrent_halves_read_sequences() -> None:
    factory = GRUEncoderFactory(hidden_size=6, hidden_units=[6])
    encoder, decoder = VAEEncoder(SPEC, factory, 4), VAEDecoder(SPEC, factory, 4)
    inputs = Inputs(torch.randn(7, 6, 3), None, torch.zeros(7, 6, dtype=torch.bool))
    assert encoder(inputs, torch.rand(7, 6, 2)).mean.shape == (7, 6, 4)
    assert decoder.sample(inputs, 5).shape == (5, 7, 6, 2)


@torch.no_grad()
def test_log_std_is_clipped() -> None:
    encoder = VAEEncoder(SPEC, ENCODER, 4, log_std_range=(-1.0, 0.5))
    encoder.linear.weight.mul_(1e3)
    log_std = encoder(Inputs(torch.randn(50, 3)), torch.rand(50, 2)).log_std
    assert float(log_std.min()) == -1.0 and float(log_std.max()) == 0.5


@torch.no_grad()
def test_fault_10_squash_means_squash() -> None:
    """d3rlpy's flag was inverted: actions were unbounded, and the discrepancy was taken of bounded ones."""
    decoder = VAEDecoder(SPEC, ENCODER, 4)
    decoder.linear.weight.mul_(1e3)
    inputs, latent = Inputs(torch.randn(50, 3)), torch.randn(50, 4)
    squashed, raw = decoder(inputs, latent), decoder(inputs, latent, squash=False)
    assert float(squashed.abs().max()) <= 1.0 < float(raw.abs().max())
    assert torch.equal(raw.tanh(), squashed)
    torch.manual_seed(0)
    first = decoder.sample(inputs, 3)
    torch.manual_seed(0)
    assert torch.equal(decoder.sample(inputs, 3, squash=False).tanh(), first)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_fault_10_actions_stay_bounded_with_large_weights(config: Any) -> None:
    algorithm = built(config)
    with torch.no_grad():
        for parameter in algorithm.nets.parameters():
            parameter.mul_(10.0)
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    for action in (algorithm.predict(x), algorithm.sample_action(x)):
        assert np.abs(action).max() <= 1.0


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_fault_11_targets_begin_as_their_sources_and_copy_buffers(config: Any) -> None:
    normalised = VectorEncoderFactory(hidden_units=[8], use_batch_norm=True)
    config = replace(config, actor_encoder_factory=normalised, critic_encoder_factory=normalised)
    if hasattr(config, "warmup_steps"):
        config = replace(config, warmup_steps=1)
    algorithm = built(config)
    assert {target.target for target in algorithm.engine.targets} >= {"actor_target", "critic_target"}
    for target in algorithm.engine.targets:
        source, own = (algorithm.nets.get_submodule(name).state_dict() for name in (target.source, target.target))
        assert all(torch.equal(source[name], own[name]) for name in source), target
    for _ in range(2):
        algorithm.engine.update(batch())
    for target in algorithm.engine.targets:
        networks = (algorithm.nets.get_submodule(name) for name in (target.source, target.target))
        source, own = (dict(network.named_buffers()) for network in networks)
        counts = [name for name in source if name.endswith("num_batches_tracked")]
        assert counts and all(int(source[name]) > 0 for name in counts), "batch norm saw nothing"
        assert all(torch.equal(source[name], own[name]) for name in source if "running" in name or name in counts)


def test_latents_are_clipped_normals() -> None:
    torch.manual_seed(0)
    latents = random_latents((10_000,))
    assert float(latents.abs().max()) == 0.5
    assert abs(float((latents.abs() == 0.5).float().mean()) - 0.617) < 0.02  # P(|z| >= 0.5)
    assert latents.dtype == torch.float32
    assert random_latents((2,), torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_sampled_actions_carry_no_gradient_and_no_dropout() -> None:
    decoder = VAEDecoder(SPEC, VectorEncoderFactory(hidden_units=[64], dropout_rate=0.5, use_batch_norm=True), 4)
    inputs, before = Inputs(torch.randn(6, 3)), [each.clone() for each in decoder.buffers()]
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(decoder.sample(inputs, 3))
    assert torch.equal(*draws) and not draws[0].requires_grad and decoder.training
    assert all(torch.equal(a, b) for a, b in zip(before, decoder.buffers(), strict=True))


def test_loss_by_hand() -> None:
    class Posterior:
        def __call__(self, inputs: Inputs, action: Tensor) -> Normal:
            return Normal(torch.tensor([[1.0, 0.0]]).expand(2, 2), torch.tensor([[-40.0, 0.0]]).expand(2, 2))

    class Zero:
        def __call__(self, inputs: Inputs, latent: Tensor) -> Tensor:
            return torch.zeros(2, 2)

    data = replace(batch(2), action=torch.tensor([[1.0, 0.0], [0.5, 0.5]]), weight=torch.tensor([1.0, 0.5]))
    # KL of N(1, e^-80) is 0.5 * (1 + 0 - 1) + 40, of N(0, 1) it is 0; means over two dimensions
    expected = (1.0 * (0.5 + 0.1 * 20.0) + 0.5 * (0.25 + 0.1 * 20.0)) / 2
    assert float(vae_loss(Posterior(), Zero(), data, 0.1).value) == pytest.approx(expected)  # type: ignore[arg-type]


def test_it_learns_the_actions_of_each_state() -> None:
    torch.manual_seed(0)
    encoder, decoder = VAEEncoder(SPEC, ENCODER, 4), VAEDecoder(SPEC, ENCODER, 4)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-2)
    for _ in range(300):
        observation = torch.randn(64, 3)
        data = replace(batch(64), observation=observation, action=0.8 * observation[:, :2].sign())
        optimizer.zero_grad()
        vae_loss(encoder, decoder, data, 0.1).value.backward()
        optimizer.step()
    observation = torch.tensor([[1.0, -1.0, 0.0], [-1.0, -1.0, 0.0]])
    actions = decoder.sample(Inputs(observation), 20)
    assert float((actions - 0.8 * observation[:, :2].sign()).abs().max()) < 0.25


@torch.no_grad()
def test_residual_policy_moves_a_little_and_stays_in_range() -> None:
    policy = ResidualPolicy(SPEC, ENCODER, scale=0.05)
    policy.linear.weight.mul_(1e3)
    action = torch.rand(5, 6, 2) * 2 - 1
    moved = policy(Inputs(torch.randn(6, 3)), action)
    assert moved.shape == action.shape and float(moved.abs().max()) <= 1.0
    assert 0.04 < float((moved - action).abs().max()) <= 0.05 + 1e-6


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[3]], ids=["BCQ", "BEAR"])
def test_the_greedy_policy_is_a_function_and_the_other_is_not(config: Any) -> None:
    algorithm = built(config)
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    whole, parts = algorithm.predict(x), np.concatenate([algorithm.predict(row[None]) for row in x])
    np.testing.assert_allclose(whole, parts, atol=1e-6)
    assert np.array_equal(whole, algorithm.predict(x))
    assert not np.allclose(algorithm.sample_action(x), algorithm.sample_action(x))


def test_the_best_of_all_candidates_is_taken() -> None:
    algorithm = built(CONFIGS[0])
    nets, inputs = algorithm.nets, Inputs(torch.randn(6, 3))
    with torch.no_grad():
        value = nets.critic(inputs, algorithm.acts.greedy(nets, inputs)).mean()[0]
        for latent in nets.latents:
            other = nets.actor(inputs, nets.vae_decoder(inputs, latent.expand(6, -1)))
            assert bool((nets.critic(inputs, other).mean()[0] <= value + 1e-6).all())


def test_rl_and_warm_ups_begin_when_they_should() -> None:
    def logged(config: Any) -> list[set[str]]:
        algorithm = built(config)
        return [set(algorithm.engine.update(batch())) for _ in range(3)]

    late = {"vae_loss", "critic_loss", "q_value", "actor_loss"}
    assert logged(replace(CONFIGS[0], rl_start_step=2)) == [{"vae_loss"}, {"vae_loss"}, late]
    learning = {"critic_loss", "q_value", "actor_loss"}
    assert logged(replace(CONFIGS[1], warmup_steps=1)) == [{"vae_loss"}, learning, learning]
    warm = {"imitator_loss", "critic_loss", "q_value", "actor_loss"}
    assert logged(replace(CONFIGS[3], warmup_steps=2))[:2] == [warm, warm]
    assert logged(replace(CONFIGS[3], warmup_steps=2))[2] == warm | {
        "alpha",
        "alpha_loss",
        "mmd_loss",
        "temp",
        "temp_loss",
    }


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_mmd_by_hand(kernel: str) -> None:
    x, y = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([[[3.0, 1.0]]])
    power = 1 if kernel == "laplacian" else 2
    k = lambda *d: float(np.exp(-sum(abs(each) ** power for each in d) / (2 * 5.0)))  # noqa: E731
    square = (2 * k(0) + 2 * k(1)) / 4 - 2 * (k(3, 1) + k(2, 1)) / 2 + k(0)
    assert mmd(x, y, kernel, 5.0).shape == (1,)
    assert float(mmd(x, y, kernel, 5.0)) == pytest.approx((square + 1e-6) ** 0.5, rel=1e-5)
    assert float(mmd(x, x, kernel, 5.0)) == pytest.approx(1e-3, rel=1e-3)


def test_the_discrepancy_is_that_of_actions_before_their_tanh() -> None:
    """Two policies whose actions are all 1 behind the tanh still differ before it."""
    algorithm = built(replace(CONFIGS[3], warmup_steps=0, n_mmd_action_samples=3, alpha_learning_rate=0.0))
    nets = algorithm.nets
    with torch.no_grad():
        nets.vae_decoder.linear.bias.fill_(50.0)
        nets.actor.linear.bias[:2] = 20.0
    metrics = algorithm.engine.update(batch())
    assert float(metrics["mmd_loss"]) > 0.5


@pytest.mark.parametrize("end", [0, 1])
def test_log_alpha_is_clipped_and_comes_back(end: int) -> None:
    algorithm = built(CONFIGS[3])
    nets, sign, bound = algorithm.nets, (-1.0, 1.0)[end], LOG_ALPHA_RANGE[end]

    def gradient(gap: float) -> float:
        data = replace(batch(), extra={"mmd_gap": torch.tensor(gap)})
        loss = alpha_loss(nets, data, algorithm.config)
        return float(torch.autograd.grad(loss.value, nets.alpha.raw)[0])

    with torch.no_grad():
        nets.alpha.raw.fill_(bound + 0.5 * sign)
    assert float(nets.multiplier().detach()) == pytest.approx(float(np.exp(bound)), rel=1e-5)
    assert gradient(sign) == 0.0, "it moves on beyond its range"
    assert gradient(-sign) == pytest.approx(sign * float(np.exp(bound)), rel=1e-5), "it does not come back"
    with torch.no_grad():
        nets.alpha.raw.fill_(bound - 0.5 * sign)
    assert gradient(sign) == pytest.approx(-sign * float(np.exp(bound - 0.5 * sign)), rel=1e-5)
