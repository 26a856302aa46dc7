"""What is particular about ICML2018SAC, NAF, TQC, REDQ, DroQ and CrossQ, in addition to their goldens."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import birl
from birl import algos
from birl.engine import compiler
from birl.errors import ConfigError
from birl.models import (
    BatchRenormEncoderFactory,
    C51QFunctionFactory,
    DroQEncoderFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    QuantileReturns,
    VectorEncoderFactory,
)
from birl.testing import ProbeEnv, build_algorithm, probe_errors, random_batch, random_dataset
from birl.types import Inputs

ENCODER = VectorEncoderFactory([8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}
RENORM: dict[str, Any] = dict.fromkeys(
    ("actor_encoder_factory", "critic_encoder_factory"), BatchRenormEncoderFactory([8], momentum=0.1, warmup=2)
)
CROSSQ = algos.CrossQConfig(**RENORM, batch_size=8, update_actor_interval=2)
DROQ = algos.DroQConfig(
    **{**ACTOR, "critic_encoder_factory": DroQEncoderFactory([8], dropout_rate=0.3)}, update_actor_interval=2
)


# -- ICML2018SAC -------------------------------------------------------------------------------------------------------


def test_rewards_are_scaled_by_five_unless_given() -> None:
    dataset = random_dataset()
    for scaler, factor in (({}, 5.0), ({"reward_scaler": None}, 1.0)):
        algorithm = build_algorithm(algos.ICML2018SACConfig(**ACTOR, **scaler))
        drawn = algorithm.sample_minibatch(dataset)
        reward = algorithm.learner.batch(drawn).reward
        assert torch.allclose(reward, factor * torch.as_tensor(drawn.rewards).view_as(reward))


def test_values_count_the_entropy_of_the_policy_once() -> None:
    """Where actions do not matter the policy is uniform on [-1, 1]: V is Q and log 2."""
    fields = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2, "gamma": 0.5, "tau": 0.1, "batch_size": 32}
    config = algos.ICML2018SACConfig(**{**ACTOR, **fields}, value_encoder_factory=ENCODER, reward_scaler=None)
    errors = probe_errors(config, "constant", False, 200)
    assert errors["action_value"] < 0.1
    assert errors["state_value"] == pytest.approx(math.log(2), abs=0.07)


# -- NAF ---------------------------------------------------------------------------------------------------------------


def test_naf_acts_where_its_values_are_highest() -> None:
    algorithm = build_algorithm(algos.NAFConfig(encoder_factory=ENCODER))
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    best = algorithm.predict(x)
    value = algorithm.predict_value(x, best)
    for seed in range(20):
        other = np.random.default_rng(seed).uniform(-1, 1, best.shape).astype(np.float32)
        assert (algorithm.predict_value(x, other) < value).all()
    assert np.array_equal(algorithm.sample_action(x), best)


# -- TQC ---------------------------------------------------------------------------------------------------------------


def test_the_highest_quantiles_of_the_mixture_are_left_out() -> None:
    values = torch.tensor([[[1.0, 5.0, 3.0]], [[4.0, 0.0, 9.0]]])  # two members, one element
    mixture = QuantileReturns(values, torch.tensor([1 / 6, 0.5, 5 / 6]))
    assert mixture.truncated(2).values.tolist() == [[0.0, 1.0, 3.0, 4.0]]
    assert mixture.truncated(0).values.tolist() == [[0.0, 1.0, 3.0, 4.0, 5.0, 9.0]]
    assert torch.allclose(mixture.truncated(2).taus, torch.tensor([0.125, 0.375, 0.625, 0.875]))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"q_func_factory": MeanQFunctionFactory()}, "MeanQFunctionFactory, whose returns have no quantiles"),
        ({"q_func_factory": C51QFunctionFactory()}, "C51QFunctionFactory, whose returns have no quantiles"),
        ({"n_dropped_quantiles": 25}, "n_dropped_quantiles is 25, and a critic has 25"),
        ({"q_func_factory": QRQFunctionFactory(n_quantiles=2)}, "n_dropped_quantiles is 2, and a critic has 2"),
    ],
)
def test_tqc_refuses_what_leaves_no_quantiles(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        algos.TQCConfig(**options)


# -- REDQ and DroQ -----------------------------------------------------------------------------------------------------


def test_more_critics_than_there_are_cannot_make_targets() -> None:
    for config in (algos.REDQConfig, algos.DroQConfig):
        with pytest.raises(ConfigError, match=rf"{config.__name__}.n_target_critics is 3; .* which is 2"):
            config(n_critics=2, n_target_critics=3)


def test_all_critics_as_targets_are_those_of_sac() -> None:
    """With all of them in each target, and two critics, only the policy's loss differs from SAC's."""
    redq = build_algorithm(algos.REDQConfig(**ACTOR, n_critics=2, update_actor_interval=100))
    sac = build_algorithm(algos.SACConfig(**ACTOR, actor_learning_rate=0.0, temp_learning_rate=0.0))
    sac.nets.load_state_dict(redq.nets.state_dict())
    for seed in range(3):
        batch = random_batch(seed=seed)
        torch.manual_seed(seed)
        redq.engine.update(batch)
        torch.manual_seed(seed)
        sac.engine.update(batch)
    for name, tensor in sac.nets.critic_target.state_dict().items():
        assert torch.allclose(tensor, redq.nets.critic_target.state_dict()[name], atol=1e-6), name


@pytest.mark.parametrize(("config", "usual"), [(algos.REDQConfig, 20), (algos.DroQConfig, 20), (algos.SACConfig, 1)])
def test_updates_for_each_step_are_the_algorithms_own_unless_given(config: Any, usual: int) -> None:
    for given, expected in (({}, usual), ({"n_updates": 3}, 3)):
        algorithm = build_algorithm(config(**ACTOR), (1,), 1)
        algorithm.fit_online(
            ProbeEnv("constant", False),
            n_steps=11,
            random_steps=11,
            show_progress=False,
            logger_adapter=birl.logging.NoopAdapterFactory(),
            **given,
        )
        assert algorithm.grad_step == 4 * expected  # from step 8 on, which fills a minibatch


def test_agents_make_as_many_updates_as_the_loop() -> None:
    algorithm = build_algorithm(algos.REDQConfig(**ACTOR), (1,), 1)
    agent = algorithm.agent()
    for _ in range(9):
        agent.act(np.zeros(1, np.float32))
        agent.observe(np.zeros(1, np.float32), 1.0, True)
    assert algorithm.grad_step == 40


def test_targets_have_their_own_dropout_and_acting_has_none() -> None:
    algorithm = build_algorithm(DROQ)
    inputs, action = Inputs(torch.ones(4, 3)), torch.zeros(4, 2)
    algorithm.learner.set_mode(acting=False)
    for network in (algorithm.nets.critic, algorithm.nets.critic_target):
        assert not torch.equal(network(inputs, action).mean(), network(inputs, action).mean())
    x = np.ones((4, 3), np.float32)
    values = [algorithm.predict_value(x, np.zeros((4, 2), np.float32)) for _ in range(2)]
    assert np.array_equal(*values)


# -- CrossQ ------------------------------------------------------------------------------------------------------------


def statistics(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items() if "running" in name}


def moved(before: dict[str, Tensor], module: torch.nn.Module) -> bool:
    return any(not torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())


def test_each_loss_moves_the_statistics_of_its_own_network() -> None:
    algorithm = build_algorithm(CROSSQ)
    nets, steps = algorithm.nets, {step.name: step for step in algorithm.engine.gradient_steps}
    for name, moves in (("critic", (True, False)), ("actor", (False, True)), ("temperature", (False, True))):
        before = statistics(nets.critic), statistics(nets.actor)
        algorithm.engine.compute_gradients(steps[name], random_batch())
        assert (moved(before[0], nets.critic), moved(before[1], nets.actor)) == moves, name
        assert all(part.training for part in (nets.critic, nets.actor) for part in part.modules())


def test_the_critics_statistics_are_those_of_both_pairs_together() -> None:
    algorithm = build_algorithm(CROSSQ)
    batch, nets = random_batch(), algorithm.nets
    torch.manual_seed(3)
    algorithm.engine.compute_gradients(algorithm.engine.gradient_steps[0], batch)
    torch.manual_seed(3)
    algorithm.learner.set_mode(acting=True)
    action = nets.actor(batch.next_inputs).sample()[0]
    following = torch.cat([batch.next_observation, action], -1)
    pairs = torch.cat([torch.cat([batch.observation, batch.action], -1), following])
    found = nets.critic.encoder.layers[0].running_mean
    assert torch.allclose(found, (0.1 * pairs.mean(0)).expand_as(found), atol=1e-6)


def test_crossq_has_no_targets_and_acts_alike_alone_and_in_company() -> None:
    algorithm = build_algorithm(CROSSQ)
    for seed in range(4):
        algorithm.engine.update(random_batch(seed=seed))
    assert not algorithm.engine.targets
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.allclose(algorithm.predict(x)[:1], algorithm.predict(x[:1]), atol=1e-6)


def test_defaults_are_the_papers() -> None:
    config = algos.CrossQConfig()
    assert (config.actor_learning_rate, config.critic_learning_rate, config.update_actor_interval) == (1e-3, 1e-3, 3)
    assert config.critic_encoder_factory == BatchRenormEncoderFactory([2048, 2048])
    assert config.critic_optim_factory.get_params()["betas"] == (0.5, 0.999)
    assert not hasattr(config, "tau")


def test_recurrent_critics_see_the_pairs_one_after_the_other() -> None:
    gru = GRUEncoderFactory(hidden_size=6, hidden_units=[6])
    config = algos.CrossQConfig(
        actor_encoder_factory=gru, critic_encoder_factory=gru, batch_size=4, sequence_length=3, update_actor_interval=1
    )
    algorithm = build_algorithm(config)
    metrics = algorithm.update(algorithm.sample_minibatch(random_dataset()))
    assert all(np.isfinite(float(value)) for value in metrics.values())


# -- what all of them must keep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CROSSQ, DROQ], ids=["CrossQ", "DroQ"])
def test_statistics_and_dropout_go_on_after_a_file(config: Any, tmp_path: Path) -> None:
    """The contract leaves dropout and batch norm out."""
    whole, first = build_algorithm(config), build_algorithm(config)
    for seed in range(6):
        torch.manual_seed(seed)
        whole.engine.update(random_batch(seed=seed))
        if seed < 3:
            torch.manual_seed(seed)
            first.engine.update(random_batch(seed=seed))
    first.save(tmp_path / "model.d3")
    second = birl.load_learnable(tmp_path / "model.d3")
    for seed in range(3, 6):
        torch.manual_seed(seed)
        second.engine.update(random_batch(seed=seed))
    for name, tensor in whole.nets.state_dict().items():
        assert torch.equal(tensor, second.nets.state_dict()[name]), name


QUANTILES: dict[str, Any] = {
    "DiscreteSAC qr": QRQFunctionFactory(n_quantiles=4),
    "DiscreteSAC iqn": IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=4, embed_size=4),
    "DiscreteSAC c51": C51QFunctionFactory(n_atoms=7),
}
COMPILED = {"CrossQ": CROSSQ, "DroQ": DROQ} | {
    name: algos.DiscreteSACConfig(q_func_factory=head, target_update_interval=2, **ACTOR)
    for name, head in QUANTILES.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_updates_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whole programs: another network's mode changes on the way; targets are mixtures of all actions' returns."""
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    config = COMPILED[name]
    eager, compiled = build_algorithm(config, action_size=3), build_algorithm(config, action_size=3)
    compiled.engine.compile()
    for seed in range(4):
        batch = random_batch(seed=seed, action_size=3)
        if name.startswith("Discrete"):
            batch = replace(batch, action=batch.action.argmax(-1))
        for algorithm in (eager, compiled):
            torch.manual_seed(seed)
            algorithm.engine.update(batch)
    assert compiled.engine.compiled
    for key, tensor in eager.nets.state_dict().items():
        assert torch.allclose(tensor, compiled.nets.state_dict()[key], atol=1e-5), key
