"""Gradients of all due steps, found at one set of parameters and applied together, here or in another process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import birl
from birl.algorithm import RewardPredictor
from birl.algos import (
    BCConfig,
    CrossQConfig,
    DiscreteMPOConfig,
    DQNConfig,
    MPOConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    TRPOConfig,
)
from birl.dataset import PrioritizedSampler
from birl.engine.gradient_exchange import ComputedGradients
from birl.errors import ConfigError, UnsupportedError
from birl.models import VectorEncoderFactory
from birl.optimizers import AdamFactory
from birl.testing import build_algorithm, random_dataset
from birl.types import Loss

SMALL = VectorEncoderFactory(hidden_units=[4])


def made(kind: Any, **fields: Any) -> Any:
    names = ("actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory", "encoder_factory")
    known = kind.__dataclass_fields__.keys()
    given = {name: SMALL for name in names if name in known}
    discrete = True if kind in (PPOConfig, TRPOConfig) else None
    return build_algorithm(kind(**given, **{"batch_size": 6, **fields}), discrete_action=discrete)


def dataset(discrete: bool, **options: Any) -> Any:
    birl.seed(1)
    return random_dataset(discrete_action=discrete, **options)


def drawn(algorithm: Any) -> Any:
    minibatch = algorithm.sample_minibatch(dataset(algorithm.spec.actions.discrete))
    torch.manual_seed(2)
    return minibatch


def state(algorithm: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(value: Any, name: str) -> None:
        for key, item in value.items():
            add(item, f"{name} {key}") if isinstance(item, dict) else found.update({f"{name} {key}": item})

    add(algorithm.engine.get_state(), "")
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(x, other[name]) if isinstance(x, torch.Tensor) else x == other[name] for name, x in one.items()
    )


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (DQNConfig, {"target_update_interval": 1}),
        (DQNConfig, {"optim_factory": AdamFactory(clip_grad_norm=0.01)}),
        (BCConfig, {}),
        (SACConfig, {"critic_learning_rate": 0.0}),  # so that the actor's critic is the same
        (TD3Config, {"critic_learning_rate": 0.0, "update_actor_interval": 1}),
    ],
)
def test_where_no_step_sees_what_another_moved_it_is_the_update(kind: Any, fields: dict[str, Any]) -> None:
    separate, whole = made(kind, **fields), made(kind, **fields)
    for _ in range(2):
        metrics = separate.apply_gradients(separate.compute_gradients(drawn(separate)))
        own = whole.update(drawn(whole))
        assert metrics.keys() == own.keys()
        assert all(torch.equal(value, own[name]) for name, value in metrics.items())
    assert same(state(separate), state(whole))


def test_all_are_found_at_the_present_parameters() -> None:
    """The critic moves as in an update; the actor moves by the critic as it was."""
    separate, whole, still = made(SACConfig), made(SACConfig), made(SACConfig, critic_learning_rate=0.0)
    separate.apply_gradients(separate.compute_gradients(drawn(separate)))
    for algorithm in (whole, still):
        algorithm.update(drawn(algorithm))
    mine, of_update, of_still = (each.nets.state_dict() for each in (separate, whole, still))
    for name, x in mine.items():
        if name.startswith("critic."):
            assert torch.equal(x, of_update[name])
        elif name.startswith(("actor.", "temperature.")):
            assert torch.equal(x, of_still[name])
    moments = [each.engine.optimizers["actor"].state_dict()["state"][0]["exp_avg"] for each in (separate, whole)]
    assert not torch.equal(*moments)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (SACConfig, {"critic", "actor", "temperature"}),
        (MPOConfig, {"critic", "actor", "dual"}),
        (DiscreteMPOConfig, {"critic", "actor", "dual"}),
    ],
)
def test_temperatures_and_dual_variables_travel(kind: Any, names: set[str]) -> None:
    """In PyTorchRL they never leave the worker that found them."""
    owner, worker = made(kind), made(kind)
    found = worker.compute_gradients(drawn(worker))
    assert found.keys() == names
    owner.apply_gradients({name: each.to(torch.device("cpu")) for name, each in found.items()})
    untouched = made(kind).nets.state_dict()
    trained = {name for own in owner.engine.parameters.values() for name in own}
    learned = {part for part in ("temperature", "alpha", "alpha_mean", "alpha_std") if hasattr(owner.nets, part)}
    assert learned <= {name.partition(".")[0] for name in trained}
    for name in trained:
        if name.partition(".")[0] in learned:
            assert not torch.equal(owner.nets.state_dict()[name], untouched[name])


def test_finding_changes_nothing() -> None:
    algorithm = made(SACConfig, loss_addons=(RewardPredictor(),), reset_interval=1)
    before = state(algorithm)
    found = algorithm.compute_gradients(drawn(algorithm))
    assert same(state(algorithm), before)
    assert "reward_predictor.weight" in found["actor"].gradients
    assert {"critic_loss", "actor_loss", "temp_loss"} <= algorithm.apply_gradients(found).keys()
    reset = algorithm.engine.optimizers["actor"].state_dict()["state"][0]["exp_avg"]
    assert not reset.any(), "the owner resets networks when that is due"


def test_a_delayed_policy_is_found_when_it_is_due() -> None:
    """PyTorchRL's TD3 fails in the second update."""
    owner, worker = made(TD3Config), made(TD3Config)
    names = []
    for _ in range(4):
        worker.set_state(owner.get_state())
        found = worker.compute_gradients(drawn(worker))
        names.append(list(found))
        owner.apply_gradients(found)
    assert names == [["critic"], ["critic", "actor"], ["critic"], ["critic", "actor"]]
    assert owner.grad_step == 4


def test_means_of_halves_are_gradients_of_the_whole() -> None:
    algorithm = made(DQNConfig)
    whole = algorithm.learner.batch(drawn(algorithm))
    parts = [algorithm.compute_gradients(whole.map(lambda x, i=i: x[i : i + 3]))["critic"] for i in (0, 3)]
    for name, gradient in algorithm.compute_gradients(whole)["critic"].gradients.items():
        mean = (parts[0].gradients[name] + parts[1].gradients[name]) / 2
        torch.testing.assert_close(mean, gradient)


def test_priorities_stay_where_the_minibatch_was_drawn() -> None:
    algorithm, data = made(DQNConfig), dataset(True, sampler=PrioritizedSampler())
    minibatch = algorithm.sample_minibatch(data)
    before = data.get_state(contents=False)
    found = algorithm.compute_gradients(minibatch)
    after = data.get_state(contents=False)
    assert str(before) != str(after)
    assert found["critic"].loss.metrics.keys() == {"q_value"}
    algorithm.apply_gradients(found)
    assert str(data.get_state(contents=False)) == str(after)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    algorithm = made(TD3Config)
    found = algorithm.compute_gradients(drawn(algorithm))
    before = state(algorithm)
    other = ComputedGradients({"actor.weight": torch.zeros(3)}, Loss(torch.tensor(0.0)))
    none = found["critic"]._replace(gradients={})
    for given, words in (
        ({}, "none were given, and the next update makes critic"),
        ({**found, "actor": other}, "critic, actor were given"),
        ({"critic": other}, "not those of its parameters"),
        ({"critic": none}, "not those of its parameters"),
    ):
        with pytest.raises(ConfigError, match=words):
            algorithm.apply_gradients(given)
        assert same(state(algorithm), before)
    algorithm.apply_gradients(found)
    assert algorithm.grad_step == 1


def test_updates_that_are_no_gradient_steps_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"not gradient steps \(policy\)"):
        made(TRPOConfig).compute_gradients(None)
    crossq = build_algorithm(CrossQConfig(batch_size=6))  # its encoders renormalise batches
    before = state(crossq)
    with pytest.raises(UnsupportedError, match="change buffers"):
        crossq.compute_gradients(drawn(crossq))
    assert same(state(crossq), before)
    rollouts: list[Any] = []
    ppo = PPOConfig(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, rollout_length=8, batch_size=4).create()
    ppo.build_with_env(birl.envs.make_env("CartPole-v1"))
    learn = ppo.learner.update
    ppo.learner.update = lambda rollout: rollouts.append(rollout) or learn(rollout)
    ppo.fit_online("CartPole-v1", n_steps=8, show_progress=False, logger_adapter=birl.logging.NoopAdapterFactory())
    with pytest.raises(UnsupportedError, match="20 updates of one rollout"):
        ppo.compute_gradients(replace(rollouts[0]))
