"""Retuned algorithms go on as if they had been made with the new values, through programs and files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algorithm import fit_many, load_learnable
from birl.algos import BCQConfig, CRRConfig, DecisionTransformerConfig, DQNConfig, PPOConfig, SACConfig, TD3Config
from birl.dataset import MDPDataset, MultiStepTransitionPicker
from birl.engine import compiler
from birl.errors import ConfigError, CorruptFileError, NotBuiltError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.optimizers import (
    AdamFactory,
    CosineAnnealingLRFactory,
    LinearSchedulerFactory,
    SGDFactory,
    WarmupSchedulerFactory,
)
from birl.preprocessing import RunningRewardScaler
from birl.testing import build_algorithm, random_dataset

SMALL = VectorEncoderFactory(hidden_units=[4])
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def sac(**fields: Any) -> Any:
    return build_algorithm(SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, batch_size=6, **fields))


def dqn(**fields: Any) -> Any:
    return build_algorithm(DQNConfig(encoder_factory=SMALL, batch_size=6, **fields), discrete_action=True)


def data(discrete: bool = False) -> MDPDataset:
    birl.seed(1)
    return random_dataset(discrete_action=discrete)


def updated(algorithm: Any, count: int = 3, discrete: bool = False) -> dict[str, torch.Tensor]:
    dataset = data(discrete)
    torch.manual_seed(2)
    for _ in range(count):
        algorithm.update(algorithm.sample_minibatch(dataset))
    return {name: tensor.clone() for name, tensor in algorithm.nets.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# -- what changes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (SACConfig, {"tau": 0.3}),
        (SACConfig, {"gamma": 0.5}),
        (SACConfig, {"batch_size": 9}),
        (SACConfig, {"target_entropy": -0.5}),
        (SACConfig, {"critic_learning_rate": 0.1, "temp_learning_rate": 0.2}),
        (SACConfig, {"actor_optim_factory": AdamFactory(clip_grad_norm=0.01)}),
        (TD3Config, {"update_actor_interval": 1}),
        (BCQConfig, {"action_flexibility": 0.7}),
        (CRRConfig, {"beta": 3.0}),
    ],
    ids=str,
)
def test_it_goes_on_as_if_it_had_been_made_so(config: Any, fields: dict[str, Any]) -> None:
    given = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 6}
    retuned, made, left = (build_algorithm(config(**{**given, **own})) for own in ({}, fields, {}))
    retuned.retune(**fields)
    assert retuned.config == made.config
    assert retuned.original_config == left.config
    found = updated(retuned)
    assert same(found, updated(made))
    assert not same(found, updated(left))


def test_moments_and_counts_go_on() -> None:
    algorithm = sac()
    updated(algorithm)
    before = algorithm.get_state()["engine"]
    algorithm.retune(critic_learning_rate=0.5, critic_optim_factory=AdamFactory(eps=1e-3))
    after = algorithm.get_state()["engine"]
    assert after["grad_step"] == 3
    kept = after["optimizers"]["critic"]["state"]
    for key, moments in before["optimizers"]["critic"]["state"].items():
        assert all(torch.equal(value, kept[key][name]) for name, value in moments.items())
    group = algorithm.engine.optimizers["critic"].param_groups[0]
    assert (group["lr"], group["eps"]) == (0.5, 1e-3)
    assert algorithm.engine.optimizers["actor"].param_groups[0]["lr"] == 3e-4


@pytest.mark.parametrize(
    "schedule", [LinearSchedulerFactory(10), WarmupSchedulerFactory(8), CosineAnnealingLRFactory(10)], ids=str
)
def test_a_schedule_is_where_it_would_be(schedule: Any) -> None:
    """The learning rate that a run with the new one from the start has, now and later."""
    factory = AdamFactory(lr_scheduler_factory=schedule)
    retuned, made = (dqn(learning_rate=rate, optim_factory=factory) for rate in (1e-3, 4e-3))
    for algorithm in (retuned, made):
        updated(algorithm, 4, discrete=True)
    retuned.retune(learning_rate=4e-3)
    for _ in range(3):
        rates = [each.engine.optimizers["critic"].param_groups[0]["lr"] for each in (retuned, made)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-12)
        for algorithm in (retuned, made):
            updated(algorithm, 1, discrete=True)


def test_a_schedule_begins_in_the_middle_of_a_run() -> None:
    algorithm = dqn(learning_rate=1.0)
    updated(algorithm, 4, discrete=True)
    algorithm.retune(optim_factory=AdamFactory(lr_scheduler_factory=LinearSchedulerFactory(10)))
    assert algorithm.engine.optimizers["critic"].param_groups[0]["lr"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "fields", [pytest.param({"tau": 0.3}, marks=pytest.mark.slow), {"critic_learning_rate": 0.1}], ids=str
)
def test_compiled_updates_have_the_new_values(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    compiled, eager = sac(compile_graph=True), sac()
    for algorithm in (compiled, eager):
        updated(algorithm, 1)
        algorithm.retune(**fields)
    assert compiled.compiled
    one, other = updated(compiled, 2), updated(eager, 2)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_only_what_programs_hold_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning rate is read in each update: compiling for it would cost a minute each time."""
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    algorithm = sac(compile_graph=True)
    program = algorithm.engine._updates
    algorithm.retune(actor_learning_rate=0.1)
    assert algorithm.engine._updates is program
    algorithm.retune(tau=0.1)
    assert algorithm.engine._updates is not program


def test_returns_of_the_data_follow_the_discount() -> None:
    """Cal-QL learns from them, and keeps them."""
    fields = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 6, "n_action_samples": 2}
    retuned, made = (build_algorithm(birl.algos.CalQLConfig(**fields, gamma=gamma)) for gamma in (0.9, 0.1))
    dataset = data()
    retuned.sample_minibatch(dataset)
    retuned.retune(gamma=0.1)
    found = []
    for algorithm in (retuned, made):
        dataset = data()
        found.append(algorithm.sample_minibatch(dataset).extra["discounted_return"])
    np.testing.assert_array_equal(*found)


def test_the_same_values_change_nothing() -> None:
    algorithm = sac()
    optimizer = algorithm.engine.optimizers["critic"]
    algorithm.retune(tau=0.005, critic_learning_rate=3e-4)
    assert algorithm.engine.optimizers["critic"] is optimizer
    assert "retuned" not in algorithm.describe()


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_the_new_values_bit_for_bit(tmp_path: Any) -> None:
    """A callback retunes after 5 of 20 steps; the run is broken off after 10, and goes on with the same script."""

    def retune(algorithm: Any, epoch: int, step: int) -> None:
        if step == 5:
            factory = AdamFactory(lr_scheduler_factory=WarmupSchedulerFactory(30))
            algorithm.retune(tau=0.3, target_entropy=0.2, critic_optim_factory=factory)

    def run(n_steps: int, folder: Any) -> Any:
        algorithm = sac()
        options: Any = {**QUIET, "n_steps_per_epoch": 5, "callback": retune}
        algorithm.fit(data(), n_steps, checkpoint=folder, **options)
        return algorithm

    whole = run(20, tmp_path / "whole")
    run(10, tmp_path / "parts")
    resumed = run(20, tmp_path / "parts")
    assert resumed.config == whole.config
    assert resumed.config.tau == 0.3
    assert resumed.nets.target_entropy == 0.2
    assert resumed.describe()["retuned"]["0"]["grad_step"] == 5
    assert same(resumed.nets.state_dict(), whole.nets.state_dict())
    rates = [each.engine.optimizers["critic"].param_groups[0]["lr"] for each in (resumed, whole)]
    assert rates[0] == rates[1] != 3e-4


def test_a_retuned_algorithm_goes_on_with_its_run(tmp_path: Any) -> None:
    """In the process that retuned it, too: a run is known by the configuration that it was started with."""
    algorithm = sac()
    options: Any = {**QUIET, "checkpoint": tmp_path / "run"}
    algorithm.fit(data(), 3, **options)
    algorithm.retune(tau=0.5)
    algorithm.fit(data(), 4, **options)
    assert algorithm.config.tau == 0.005, "the checkpoint was written before"
    algorithm.fit(data(), 6, callback=lambda algo, epoch, step: algo.retune(tau=0.5) if step == 5 else None, **options)
    algorithm.fit(data(), 7, **options)
    assert algorithm.config.tau == 0.5


def test_the_parameters_of_a_run_tell_what_was_retuned(tmp_path: Any) -> None:
    algorithm = sac()
    adapter = birl.logging.FileAdapterFactory(tmp_path)
    algorithm.fit(
        data(),
        4,
        2,
        "run",
        with_timestamp=False,
        logger_adapter=adapter,
        show_progress=False,
        callback=lambda algo, epoch, step: algo.retune(tau=0.3) if step == 3 else None,
    )
    params = json.loads((tmp_path / "run" / "params.json").read_text())
    assert params["retuned"] == {"0": {"grad_step": 3, "fields": {"tau": 0.3}}}
    assert params["config"]["params"]["tau"] == 0.3


def test_model_files_have_the_new_values(tmp_path: Any) -> None:
    algorithm = sac()
    updated(algorithm)
    algorithm.retune(tau=0.3, critic_learning_rate=0.1)
    algorithm.save(tmp_path / "model.d3")
    loaded = load_learnable(tmp_path / "model.d3")
    assert loaded.config == loaded.original_config == algorithm.config
    assert same(updated(loaded), updated(algorithm))


@pytest.mark.parametrize(
    "history",
    [
        {"0": {"grad_step": 1, "fields": {"tau": 7.0}}},
        {"0": {"grad_step": 1, "fields": {"nothing": 1}}},
        {"0": {"grad_step": 1, "fields": {"n_critics": 5}}},
        {"x": {}},
        {"0": 3},
    ],
    ids=str,
)
def test_a_history_that_does_not_fit_is_refused(history: Any) -> None:
    algorithm = sac()
    state = {**algorithm.get_state(), "retuned": history}
    with pytest.raises(CorruptFileError, match="retuned"):
        algorithm.set_state(state)
    assert algorithm.config == algorithm.original_config


def test_an_earlier_state_takes_values_back() -> None:
    algorithm = sac()
    state = algorithm.get_state()
    algorithm.retune(tau=0.3, critic_learning_rate=0.2, target_entropy=9.0)
    algorithm.set_state(state)
    assert algorithm.config == algorithm.original_config
    assert same(updated(algorithm), updated(sac()))
    assert "retuned" not in algorithm.describe()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"taux": 0.1}, "did you mean 'tau'"),
        ({"tau": 2.0}, "<= 1"),
        ({"n_critics": 3}, "n_critics=3.*networks are made from it"),
        ({"q_func_factory": "qr"}, "networks are made from it"),
        ({"actor_encoder_factory": VectorEncoderFactory([4], activation="tanh")}, "networks are made from it"),
        ({"initial_temperature": 0.3}, "networks are made from it.*copy_policy_from"),
        ({"compile_graph": True}, "compile_graph=True.*when networks are made"),
        ({"reward_scaler": "min_max"}, "its scaled values"),
        ({"observation_keys": ("a",)}, "parts that it names"),
        ({"critic_optim_factory": SGDFactory()}, "would become a SGD"),
        ({"critic_optim_factory": AdamFactory(amsgrad=True)}, "its new settings cannot continue"),
    ],
    ids=str,
)
def test_what_cannot_change_is_refused(fields: dict[str, Any], words: str) -> None:
    algorithm = sac()
    updated(algorithm)
    with pytest.raises(ConfigError, match=words):
        algorithm.retune(**{"tau": 0.5, **fields})
    assert algorithm.config == algorithm.original_config
    assert algorithm.engine.config.tau == 0.005


def test_loops_and_contexts_keep_what_they_began_with() -> None:
    ppo = build_algorithm(PPOConfig(), discrete_action=True)
    with pytest.raises(ConfigError, match="rollout_length=7.*loops read it"):
        ppo.retune(rollout_length=7)
    transformer = build_algorithm(DecisionTransformerConfig())
    with pytest.raises(ConfigError, match="context_size=7"):
        transformer.retune(context_size=7)


def test_before_there_are_networks_the_configuration_is_replaced() -> None:
    with pytest.raises(NotBuiltError):
        SACConfig().create().retune(tau=0.1)


def test_a_discount_that_others_have_used_is_kept() -> None:
    algorithm = sac(gamma=0.9)
    dataset = random_dataset(transition_picker=MultiStepTransitionPicker(3, gamma=0.9))
    algorithm.fit(dataset, 1, **QUIET)
    with pytest.raises(ConfigError, match=r"discounts with gamma=0.9.*gamma=0.5"):
        algorithm.retune(gamma=0.5)
    scaled = build_algorithm(PPOConfig(reward_scaler=RunningRewardScaler()), discrete_action=True)
    with pytest.raises(ConfigError, match="running reward_scaler"):
        scaled.retune(gamma=0.5)
    assert scaled.config.gamma == 0.99


def test_seeds_and_processes_that_learn_together_are_not_retuned_apart() -> None:
    def retune(algorithm: Any, epoch: int, step: int) -> None:
        with pytest.raises(UnsupportedError, match="several seeds"):
            algorithm.retune(tau=0.1)

    config = SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, batch_size=6)
    found = fit_many(config, data(), 2, 2, callback=retune, **QUIET)
    found[0].retune(tau=0.1)
    assert found[0].config.tau == 0.1
    algorithm = sac()
    algorithm.engine.reduce = lambda gradients: gradients
    with pytest.raises(UnsupportedError, match="several processes"):
        algorithm.retune(tau=0.1)
