"""The engine: gradients, optimisers, targets, state, burn-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from birl import algos
from birl.errors import CorruptFileError, NonFiniteError
from birl.models import DefaultEncoderFactory, GRUEncoderFactory, VectorEncoderFactory
from birl.optimizers import AdamFactory, SGDFactory, WarmupSchedulerFactory
from birl.types import Batch, Inputs
from tests.tiers import slow_but

SMALL = VectorEncoderFactory(hidden_units=[8])


def make_batch(seed: int = 0, size: int = 8, discrete: bool = True, length: int | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lead = (size,) if length is None else (length, size)
    action = torch.randint(0, 2, lead, generator=generator) if discrete else torch.rand(*lead, 2, generator=generator)
    return Batch(
        observation=torch.randn(*lead, 3, generator=generator),
        action=action,
        reward=torch.randn(lead, generator=generator),
        next_observation=torch.randn(*lead, 3, generator=generator),
        discount=torch.full(lead, 0.9),
        weight=torch.ones(lead),
        is_first=None if length is None else torch.zeros(lead, dtype=torch.bool),
    )


def make(config, action_size=2):
    torch.manual_seed(1)
    algorithm = config.create()
    algorithm.create_impl((3,), action_size)
    return algorithm


def parameters(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_the_mean_of_half_batch_gradients_is_the_full_batch_gradient():
    engine = make(algos.DQNConfig(encoder_factory=SMALL)).engine
    (step,) = engine.gradient_steps
    batch = make_batch()
    whole, _ = engine.compute_gradients(step, batch)
    first, _ = engine.compute_gradients(step, batch.map(lambda x: x[:4]))
    second, _ = engine.compute_gradients(step, batch.map(lambda x: x[4:]))
    for name, gradient in whole.items():
        torch.testing.assert_close((first[name] + second[name]) / 2, gradient, atol=1e-6, rtol=1e-5)


def test_computing_gradients_changes_nothing():
    engine = make(algos.SACConfig()).engine
    before = parameters(engine.nets)
    for step in engine.gradient_steps:
        engine.compute_gradients(step, make_batch(discrete=False))
    assert all(torch.equal(value, before[name]) for name, value in engine.nets.state_dict().items())
    assert all(parameter.grad is None for parameter in engine.nets.parameters())


def test_reduce_sees_every_parameter_of_every_step():
    engine = make(algos.SACConfig()).engine
    seen = set()
    engine.reduce = lambda gradients: (seen.update(gradients), gradients)[1]
    engine.update(make_batch(discrete=False))
    trained = {name for name, _ in engine.nets.named_parameters() if not name.startswith("critic_target")}
    assert seen == trained
    assert any(name.startswith("temperature") for name in seen)


def test_gradients_may_lie_in_memory_in_another_order():
    """Fused Adam reads gradients in the order of memory; a transposed one would move the wrong weights."""
    found = []
    for transposed in (False, True):
        engine = make(algos.BCConfig(encoder_factory=SMALL)).engine
        if transposed:
            engine.reduce = lambda gradients: {
                name: value.t().contiguous().t() if value.dim() == 2 else value for name, value in gradients.items()
            }
        engine.update(make_batch(discrete=False))
        found.append(parameters(engine.nets))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_hard_copies_come_exactly_when_due():
    engine = make(algos.DQNConfig(encoder_factory=SMALL, learning_rate=0.1, target_update_interval=3)).engine
    start = parameters(engine.nets.critic_target)
    for update in range(1, 7):
        engine.update(make_batch(update))
        target, online = parameters(engine.nets.critic_target), parameters(engine.nets.critic)
        same = all(torch.equal(target[name], online[name]) for name in target)
        assert same == (update % 3 == 0), update
        if update < 3:
            assert all(torch.equal(target[name], start[name]) for name in target)


def test_delayed_steps_run_together():
    engine = make(algos.TD3Config(update_actor_interval=2)).engine
    watched = ("actor", "actor_target", "critic", "critic_target")
    for update in range(1, 5):
        before = {name: parameters(engine.nets.get_submodule(name)) for name in watched}
        metrics = engine.update(make_batch(update, discrete=False))
        changed = {
            name: any(
                not torch.equal(value, before[name][key])
                for key, value in engine.nets.get_submodule(name).state_dict().items()
            )
            for name in watched
        }
        due = update % 2 == 0
        assert changed == {"actor": due, "actor_target": due, "critic": True, "critic_target": due}
        assert ("actor_loss" in metrics) == due


def test_fault_11_targets_follow_batch_norm_statistics():
    encoder = DefaultEncoderFactory(use_batch_norm=True)
    algorithm = make(algos.DQNConfig(encoder_factory=encoder, target_update_interval=2))
    for update in range(2):
        algorithm.update(make_batch(update, size=32))
    online, target = dict(algorithm.nets.critic.named_buffers()), dict(algorithm.nets.critic_target.named_buffers())
    running = [name for name in online if "running_mean" in name]
    assert running
    for name in running:
        assert not torch.equal(online[name], torch.zeros_like(online[name]))
        assert torch.equal(online[name], target[name])


def test_gradient_clipping_bounds_the_step():
    free = make(algos.DQNConfig(encoder_factory=SMALL, learning_rate=1.0, optim_factory=SGDFactory()))
    clipped = make(
        algos.DQNConfig(encoder_factory=SMALL, learning_rate=1.0, optim_factory=SGDFactory(clip_grad_norm=1e-3))
    )
    moved = []
    for algorithm in (free, clipped):
        before = parameters(algorithm.nets.critic)
        batch = make_batch()
        algorithm.update(replace(batch, reward=batch.reward * 10))
        after = parameters(algorithm.nets.critic)
        moved.append(sum((after[name] - before[name]).square().sum() for name in before).sqrt())
    assert moved[1] == pytest.approx(1e-3, rel=1e-3)
    assert moved[0] > 0.1


def test_schedules_set_the_learning_rate_and_survive_state():
    factory = AdamFactory(lr_scheduler_factory=WarmupSchedulerFactory(10))
    config = algos.DQNConfig(encoder_factory=SMALL, learning_rate=1.0, optim_factory=factory)
    first, second = make(config), make(config)
    rate = lambda algorithm: algorithm.engine.optimizers["critic"].param_groups[0]["lr"]  # noqa: E731
    assert rate(first) == pytest.approx(0.1)
    for update in range(4):
        first.update(make_batch(update))
    assert rate(first) == pytest.approx(0.5)
    second.set_state(first.get_state())
    assert rate(second) == pytest.approx(0.5)
    for algorithm in (first, second):
        algorithm.update(make_batch(9))
    assert rate(second) == rate(first) == pytest.approx(0.6)
    assert all(torch.equal(a, b) for a, b in zip(first.nets.parameters(), second.nets.parameters(), strict=True))


def test_state_of_other_networks_is_refused_and_nothing_changes():
    small = make(algos.DQNConfig(encoder_factory=SMALL))
    large = make(algos.DQNConfig(encoder_factory=VectorEncoderFactory(hidden_units=[9])))
    deep = make(algos.DQNConfig(encoder_factory=VectorEncoderFactory(hidden_units=[8, 8])))
    before = parameters(small.nets)
    with pytest.raises(CorruptFileError, match="shape"):
        small.set_state(large.get_state())
    with pytest.raises(CorruptFileError, match="unexpected"):
        small.set_state(deep.get_state())
    assert all(torch.equal(value, before[name]) for name, value in small.nets.state_dict().items())


def test_a_state_that_is_not_finite_is_not_given_out():
    algorithm = make(algos.DQNConfig(encoder_factory=SMALL, learning_rate=0.1))
    algorithm.update(replace(make_batch(), reward=torch.full((8,), float("nan"))))
    with pytest.raises(NonFiniteError, match=r"critic\..*step: critic.*NaN"):
        algorithm.get_state()


def test_burn_in_warms_up_each_network_from_the_stored_state():
    config = algos.DQNConfig(encoder_factory=GRUEncoderFactory(hidden_size=4, hidden_units=[4]), learning_rate=0.1)
    engine = make(config).engine
    engine.update(make_batch(length=5))  # online and target networks differ from here on
    stored = {"critic": torch.randn(8, 4)}
    batch = replace(make_batch(3, length=5), state=stored)
    cut = engine.burn_in(batch, 2)
    assert cut.reward.shape == (3, 8)
    assert torch.equal(cut.observation, batch.observation[2:])
    for name in ("critic", "critic_target"):
        states: dict[str, torch.Tensor] = {}
        network = engine.nets.get_submodule(name)
        for step in range(2):
            network.encode(Inputs(batch.observation[step], states or stored, state_out=states))
        torch.testing.assert_close(cut.state[name], states[name])
    assert not torch.equal(cut.state["critic"], cut.state["critic_target"])


def test_padding_has_no_effect():
    config = algos.DQNConfig(encoder_factory=GRUEncoderFactory(hidden_size=4, hidden_units=[4]))
    engine = make(config).engine
    batch = make_batch(length=6)
    weight = torch.ones(6, 8)
    weight[4:] = 0
    padded = replace(batch, weight=weight)
    short = batch.map(lambda x: x[:4])
    (step,) = engine.gradient_steps
    first, loss = engine.compute_gradients(step, padded)
    second, expected = engine.compute_gradients(step, short)
    torch.testing.assert_close(loss.value, expected.value)
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_soft_targets_follow_batch_norm_statistics_too():
    encoder = DefaultEncoderFactory(use_batch_norm=True)
    sac = make(algos.SACConfig(actor_encoder_factory=encoder, critic_encoder_factory=encoder))
    sac.update(make_batch(size=32, discrete=False))
    online, target = dict(sac.nets.critic.named_buffers()), dict(sac.nets.critic_target.named_buffers())
    running = [name for name in online if "running_mean" in name]
    assert running
    for name in running:
        assert online[name].any()
        assert torch.equal(online[name], target[name])


def test_targets_have_no_dropout_and_double_dqn_chooses_without_it():
    encoder = VectorEncoderFactory(hidden_units=[32], dropout_rate=0.5)
    dqn = make(algos.DoubleDQNConfig(encoder_factory=encoder))
    dqn.update(make_batch())
    target = dqn.nets.critic_target
    x = Inputs(torch.randn(16, 3))
    assert torch.equal(target(x).mean(), target(x).mean())
    assert not torch.equal(dqn.nets.critic(x).mean(), dqn.nets.critic(x).mean())  # in training, dropout is on
    dropouts = [part for part in dqn.nets.critic.modules() if isinstance(part, torch.nn.Dropout)]
    assert dropouts
    states = []
    for part in dropouts:
        part.register_forward_hook(lambda module, args, output: states.append(module.training))
    dqn.update(make_batch())
    assert states == [False, True]  # the choice of the next action, then the prediction


def test_terminals_end_the_bootstrap_and_time_limits_do_not():
    import numpy as np

    from birl.algorithm.batches import to_batch
    from birl.dataset import Episode, InfiniteBuffer, ReplayBuffer

    def episode(terminated: bool) -> Episode:
        return Episode(
            observations=np.arange(3, dtype=np.float32)[:, None].repeat(3, 1),
            actions=np.zeros((3, 1), np.int64),
            rewards=np.ones((3, 1), np.float32),
            terminated=terminated,
            truncated=not terminated,
            final_observation=np.full(3, 9.0, np.float32),
        )

    for recurrent in (False, True):
        memory = {"encoder_factory": SMALL}
        if recurrent:
            encoder = GRUEncoderFactory(hidden_size=4, hidden_units=[4])
            memory = {"encoder_factory": encoder, "sequence_length": 3}
        dqn = make(algos.DQNConfig(**memory, batch_size=64, gamma=0.5))
        for terminated in (True, False):
            dataset = ReplayBuffer(InfiniteBuffer(), episodes=[episode(terminated)])
            batch = to_batch(dqn.sample_minibatch(dataset), dqn.units, 0.5)
            last = (batch.next_observation[..., 0] == 9.0) & (batch.weight > 0)
            assert last.any()
            assert (batch.discount[last] == (0.0 if terminated else 0.5)).all()
            assert (batch.discount[(batch.weight > 0) & ~last] == 0.5).all()


def test_fault_12_stochastic_cloning_is_a_likelihood():
    bc = make(algos.BCConfig(encoder_factory=SMALL, policy_type="stochastic"))
    batch = make_batch(discrete=False)
    policy = bc.nets.actor(batch.inputs)
    normal = torch.distributions.Normal(policy.mean, policy.log_std.exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    expected = -squashed.log_prob(batch.action).sum(-1).mean()
    torch.testing.assert_close(bc.update(batch)["loss"], expected.detach(), atol=1e-4, rtol=1e-4)


def test_fault_12_padding_is_no_part_of_a_transformers_loss():
    config = algos.DecisionTransformerConfig(
        encoder_factory=SMALL, attn_dropout=0.0, resid_dropout=0.0, embed_dropout=0.0, context_size=4
    )
    engine = make(config).engine
    (step,) = engine.gradient_steps
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    weight = torch.ones(8, 4)
    weight[:, :2] = 0
    timestep = torch.arange(1, 5).expand(8, 4) * weight.long()
    extra = {"returns_to_go": draw(8, 4), "timestep": timestep}
    batch = Batch(draw(8, 4, 3), draw(8, 4, 2), draw(8, 4), None, torch.ones(8, 4), weight, extra=extra)
    garbage = torch.where(weight.bool().unsqueeze(-1), batch.action, batch.action + 100.0)
    first = engine.compute_gradients(step, batch)
    second = engine.compute_gradients(step, replace(batch, action=garbage))
    torch.testing.assert_close(first[1].value, second[1].value)
    for name, gradient in first[0].items():
        torch.testing.assert_close(gradient, second[0][name])


@pytest.mark.parametrize("compiled", slow_but([False], [False, True]))
def test_an_update_may_be_confined_to_some_steps(compiled):
    engine = make(algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL)).engine
    if compiled:
        engine.compile()
    names = list(engine.nets._modules)
    before = {name: parameters(engine.nets.get_submodule(name)) for name in names}
    metrics = engine.update(make_batch(discrete=False), only=("critic",))
    assert set(metrics) == {"critic_loss", "q_value"}
    moved = {
        name
        for name in names
        if any(not torch.equal(x, before[name][key]) for key, x in engine.nets.get_submodule(name).state_dict().items())
    }
    assert moved == {"critic"}
    engine.update(make_batch(discrete=False), only=("critic", "critic_target"))
    after = parameters(engine.nets.critic_target)
    assert any(not torch.equal(after[key], before["critic_target"][key]) for key in after)
    assert engine.grad_step == 2 and engine.step_counts == {"critic": 2, "actor": 0, "temperature": 0}
