"""NFQ, DDPG, TD3+BC, PRDC, discrete IQL and ReBRAC: what goldens, probes and the contract leave open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from birl import algos
from birl.algorithm.population import fit_many
from birl.algos import prdc
from birl.algos.rebrac import critic_loss as rebrac_critic_loss
from birl.algos.td3 import smoothed_action
from birl.dataset import MDPDataset, MultiStepTransitionPicker
from birl.errors import ConfigError, DataError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.preprocessing import MinMaxActionScaler
from birl.preprocessing.units import to_batch
from birl.seeding import seed
from birl.types import Batch

ENCODER = VectorEncoderFactory(hidden_units=[8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 32}


def dataset(**options: Any) -> MDPDataset:
    """Four episodes of five steps, two of them cut; actions in [-2, 2]."""
    generator, count = np.random.default_rng(0), 20
    last = np.arange(count) % 5 == 4
    cut = last & (np.arange(count) < 10)
    observations = generator.normal(size=(count + 1, 3)).astype(np.float32)
    return MDPDataset(
        observations[:-1],
        generator.uniform(-2, 2, (count, 2)).astype(np.float32),
        generator.normal(size=count).astype(np.float32),
        (last & ~cut).astype(np.float32),
        cut.astype(np.float32),
        next_observations=observations[1:],
        **options,
    )


def built(config: Any, discrete: bool = False) -> Any:
    algorithm = config.create()
    algorithm.create_impl((3,), 2, discrete_action=discrete)
    return algorithm


def batch_of(algorithm: Any, data: Any) -> Batch:
    return to_batch(algorithm.sample_minibatch(data), algorithm.units, algorithm.config.gamma)


def test_prdc_finds_the_nearest_step_of_all_data() -> None:
    algorithm = built(algos.PRDCConfig(**ACTOR, beta=0.7))
    data = dataset()
    drawn = algorithm.sample_minibatch(data)
    steps = [data.transition_picker(episode, index) for episode in data.episodes for index in range(5)]
    keys = [np.r_[0.7 * step.observation, step.action] for step in steps]
    queries = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    distances = np.square(queries[:, None] - np.stack(keys)).sum(-1)
    expected = np.stack(keys)[distances.argmin(1)][:, -2:]
    np.testing.assert_array_equal(drawn.nearest(torch.from_numpy(queries)).numpy(), expected.astype(np.float32))
    assert algorithm.sample_minibatch(data).nearest is drawn.nearest  # read once
    data.append_episode(data.episodes[0])
    assert algorithm.sample_minibatch(data).nearest is not drawn.nearest


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(("count", "size"), [(1, 5), (1024, 5), (1025, 5), (5000, 5), (3000, 50), (100, 2000)])
def test_nearest_of_many(count: int, size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, the last of which is not full."""
    monkeypatch.setattr(prdc, "_blocks_at_once", lambda device, distances: at_once)
    keys, queries = 5 + torch.randn(count, size), 5 + torch.randn(7, size)
    expected = keys[torch.cdist(queries.double(), keys.double()).argmin(1), -2:]
    assert torch.equal(prdc.NearestActions(keys, 2)(queries), expected)


def test_prdc_searches_only_where_the_policy_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, data, searched = built(algos.PRDCConfig(**ACTOR, update_actor_interval=3)), dataset(), []
    search = type(algorithm).with_nearest
    monkeypatch.setattr(type(algorithm), "with_nearest", lambda *args: searched.append(1) or search(*args))
    found = ["dc_loss" in algorithm.update(algorithm.sample_minibatch(data)) for _ in range(7)]
    assert found == [False, False, True, False, False, True, False]
    assert len(searched) == 2


def test_prdc_takes_one_number_a_step() -> None:
    flat = np.random.default_rng(0).normal(size=20).astype(np.float32)
    last, actions = np.arange(20) % 5 == 4, np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
    weights = []
    for observations in (flat, flat[:, None]):
        seed(1)
        algorithm = algos.PRDCConfig(**ACTOR).create()
        data = MDPDataset(observations, actions, flat, last)
        algorithm.fit(data, 4, show_progress=False, logger_adapter=NoopAdapterFactory())
        assert algorithm.predict(observations[:3]).shape == (3, 2)
        weights.append(torch.cat([x.flatten() for x in algorithm.nets.actor.parameters()]))
    torch.testing.assert_close(weights[0], weights[1])


def test_prdc_says_what_it_cannot_do() -> None:
    algorithm = built(algos.PRDCConfig(**ACTOR))
    with pytest.raises(DataError, match=r"draw it with algo.sample_minibatch"):
        algorithm.update(dataset().sample_transition_batch(4))
    with pytest.raises(UnsupportedError, match="learns only from logged data"):
        algorithm.fit_online(gymnasium.make("Pendulum-v1"))
    with pytest.raises(UnsupportedError, match="train each seed by itself"):
        fit_many(algos.PRDCConfig(**ACTOR), dataset(), 3, seeds=2)
    with pytest.raises(UnsupportedError, match="feed-forward encoders, or TD3PlusBC"):
        built(algos.PRDCConfig(actor_encoder_factory=GRUEncoderFactory(hidden_size=4)))


def test_trap_ddpg_takes_the_discount_of_its_batch() -> None:
    """n-step targets bootstrap with ``gamma**n``, shorter at the end of an episode."""
    algorithm = built(algos.DDPGConfig(**ACTOR, gamma=0.5))
    data = dataset(transition_picker=MultiStepTransitionPicker(3, 0.5))
    minibatch = algorithm.sample_minibatch(data)
    assert set(np.unique(minibatch.intervals)) == {1, 2, 3}
    batch, nets = to_batch(minibatch, algorithm.units, 0.5), algorithm.nets
    with torch.no_grad():
        following = nets.critic_target(batch.next_inputs, nets.actor_target(batch.next_inputs)).mean()[0]
        gamma = torch.from_numpy((0.5**minibatch.intervals * (1 - minibatch.terminals))[:, 0])
        target = torch.from_numpy(minibatch.rewards[:, 0]) + gamma * following
        expected = (nets.critic(batch.inputs, batch.action).mean()[0] - target).square().mean()
    loss = algorithm.engine.compute_gradients(algorithm.engine.steps[0], batch)[1]
    torch.testing.assert_close(loss.value, expected)


@pytest.mark.parametrize("config", [algos.TD3PlusBCConfig, algos.ReBRACConfig])
def test_trap_td3_noise_is_drawn_for_each_element_and_actions_stay_in_bounds(config: Any) -> None:
    algorithm = built(config(**ACTOR, target_smoothing_sigma=10.0, target_smoothing_clip=0.8))
    with torch.no_grad():
        algorithm.nets.actor_target.linear.weight.mul_(5)
        batch = batch_of(algorithm, dataset())
        action = smoothed_action(algorithm.nets, batch, algorithm.config)
        plain = algorithm.nets.actor_target(batch.next_inputs)
    shift = action - plain
    assert float(action.abs().max()) == 1.0  # reached, and not left
    assert float(shift.abs().max()) <= 0.8 + 1e-6
    assert len(torch.unique(shift[:, 0].sign() * shift[:, 1].sign())) > 1  # not one number for a whole action
    assert len(torch.unique(shift[:, 0].sign())) > 1  # nor for a whole minibatch


def test_nfq_keeps_next_observations_out_of_batch_norm() -> None:
    encoder = VectorEncoderFactory(hidden_units=[8], use_batch_norm=True)
    algorithm = built(algos.NFQConfig(encoder_factory=encoder, batch_size=8), discrete=True)
    x = torch.randn(8, 3)
    ones = torch.ones(8)
    batch = Batch(x, torch.zeros(8, dtype=torch.int64), ones, x + 100, 0.9 * ones, ones)
    algorithm.update(batch)
    means = [buffer for name, buffer in algorithm.nets.named_buffers() if name.endswith("running_mean")]
    counts = [buffer for name, buffer in algorithm.nets.named_buffers() if name.endswith("num_batches_tracked")]
    assert means and all(float(mean.abs().max()) < 1 for mean in means)
    assert all(int(count) == 1 for count in counts)


def test_nfq_has_no_target_network() -> None:
    algorithm = built(algos.NFQConfig(), discrete=True)
    assert dict(algorithm.nets.named_children()).keys() == {"critic"}
    with pytest.raises(ConfigError, match="target_update_interval"):
        algos.NFQConfig(target_update_interval=100)


def test_td3_plus_bc_does_not_depend_on_the_size_of_rewards() -> None:
    """``lambda`` makes the policy's loss the same when all values are 1000 times as large."""
    algorithm = built(algos.TD3PlusBCConfig(**ACTOR))
    batch, phase = batch_of(algorithm, dataset()), algorithm.engine.steps[1]
    before, _ = algorithm.engine.compute_gradients(phase, batch)
    with torch.no_grad():
        for parameter in algorithm.nets.critic.head.parameters():
            parameter.mul_(1000)
    after, _ = algorithm.engine.compute_gradients(phase, batch)
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient)


# -- ReBRAC's next actions -----------------------------------------------------------------------------------------


def test_fault_1_rebrac_learns_from_cut_episodes_to_their_end() -> None:
    """Nothing is left out; where no next action is known the target has no penalty."""
    scaler = MinMaxActionScaler(minimum=np.full(2, -2, np.float32), maximum=np.full(2, 2, np.float32))
    algorithm = built(algos.ReBRACConfig(**ACTOR, critic_beta=100.0, action_scaler=scaler))
    data = dataset()
    assert data.transition_count == 20
    minibatch = algorithm.sample_minibatch(data)
    batch = to_batch(minibatch, algorithm.units, 0.99)
    known = batch.extra["next_action_known"]
    assert known.shape == batch.reward.shape and 0 < float(known.mean()) < 1
    actions = {tuple(row) for episode in data.episodes for row in (episode.actions[1:] / 2).tolist()}
    assert {tuple(row) for row in batch.extra["next_action"][known > 0].tolist()} <= actions  # scaled
    cut = (known == 0) & (batch.discount > 0)
    assert bool(cut.any())
    with torch.no_grad():
        loss = rebrac_critic_loss(algorithm.nets, replace(batch, weight=cut.float()), algorithm.config)
        elsewhere = rebrac_critic_loss(algorithm.nets, replace(batch, weight=known), algorithm.config)
    assert float(loss.value) < 100 < float(elsewhere.value)


def test_rebrac_asks_for_next_actions_and_says_so() -> None:
    algorithm, data = built(algos.ReBRACConfig(**ACTOR)), dataset()
    with pytest.raises(DataError, match=r"next actions.*sample_minibatch"):
        algorithm.update(data.sample_transition_batch(8))
    algorithm.update(data.sample_transition_batch(8, next_actions=True))
    assert not batch_of(built(algos.TD3PlusBCConfig(**ACTOR)), data).extra


def test_rebrac_of_many_seeds_is_rebrac() -> None:
    config = algos.ReBRACConfig(
        **{**ACTOR, "batch_size": 8}, actor_beta=0.3, critic_beta=0.3, action_scaler=MinMaxActionScaler()
    )
    options: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 6}
    seed(3)
    alone = config.create()
    alone.fit(dataset(), 6, **options)
    together = fit_many(config, dataset(), 6, [1, 3], **options)[1]
    for name, tensor in alone.nets.state_dict().items():
        torch.testing.assert_close(together.nets.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)
