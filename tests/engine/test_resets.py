"""Resets of networks (arXiv:2305.19452): what begins again, what is kept, and that runs go on as they would have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl import algos
from birl.engine import compiler
from birl.errors import ConfigError, UnsupportedError
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_batch, random_dataset

ENCODER = VectorEncoderFactory([8])
FIELDS: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def learn(algorithm: Any, updates: range) -> None:
    for number in updates:
        batch = random_batch(seed=number)
        if algorithm.spec.actions.discrete:
            batch = replace(batch, action=(batch.action[:, 0] > 0).long())
        torch.manual_seed(number)
        algorithm.learner.update(batch)


def same(one: Any, other: Any) -> bool:
    ours, theirs = one.nets.state_dict(), other.nets.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_encoders_keep_a_share_and_everything_else_restarts() -> None:
    plain = build_algorithm(algos.SACConfig(**FIELDS))
    resetting = build_algorithm(algos.SACConfig(**FIELDS, reset_interval=3, reset_share=0.25))
    learn(plain, range(2))
    learn(resetting, range(2))
    assert same(plain, resetting)
    for algorithm in (plain, resetting):
        learn(algorithm, range(2, 3))
    old, found = plain.nets.state_dict(), resetting.nets.state_dict()
    heads = [name for name in old if "_target" not in name and ".encoder." not in name]
    assert all(not torch.equal(old[name], found[name]) for name in heads)
    assert float(found["temperature.raw"]) == 0.0
    for name, tensor in found.items():
        if "_target" in name:
            assert torch.equal(tensor, found[name.replace("_target", "")]), name
    assert set(resetting.engine.step_counts.values()) == {0}
    moments = [
        value
        for optimizer in resetting.engine.optimizers.values()
        for state in optimizer.state.values()
        for value in state.values()
    ]
    assert moments and not any(value.any() for value in moments)


def test_new_parameters_are_those_of_new_networks() -> None:
    made = {}
    for share in (0.0, 0.25, 1.0):
        made[share] = build_algorithm(algos.SACConfig(**FIELDS, reset_interval=1, reset_share=share))
        learn(made[share], range(1))
    new, mixed, old = (made[share].nets.state_dict() for share in (0.0, 0.25, 1.0))
    encoders = [name for name in new if ".encoder." in name]
    assert encoders
    for name, tensor in mixed.items():
        expected = 0.75 * new[name] + 0.25 * old[name] if name in encoders else new[name]
        assert torch.allclose(tensor, expected, atol=1e-7), name
    learned = build_algorithm(algos.SACConfig(**FIELDS))
    learn(learned, range(1))
    kept = learned.nets.state_dict()
    assert all(torch.equal(old[name], kept[name]) for name in encoders if "_target" not in name)
    assert any(not torch.equal(new[name], kept[name]) for name in encoders)


def test_running_statistics_restart() -> None:
    made = build_algorithm(algos.CrossQConfig(batch_size=8, reset_interval=3))
    learn(made, range(2))
    counts = [buffer for name, buffer in made.nets.critic.named_buffers() if name.endswith("batches")]
    assert counts and all(counts)
    learn(made, range(2, 3))
    assert not any(counts)


@pytest.mark.parametrize("name", ["DQN", "DiscreteBCQ", "NAF", "CrossQ", "ICML2018SAC", "TD3"])
def test_runs_go_on_after_a_file_as_they_would_have(name: str, tmp_path: Path) -> None:
    known = getattr(algos, f"{name}Config").documentation()
    fields = {field: ENCODER for field, *_ in known if field.endswith("encoder_factory")}
    config = getattr(algos, f"{name}Config")(**fields, batch_size=8, reset_interval=2)
    whole, first = build_algorithm(config), build_algorithm(config)
    learn(whole, range(5))
    learn(first, range(3))
    first.save(tmp_path / "model.d3")
    second = birl.load_learnable(tmp_path / "model.d3")
    learn(second, range(3, 5))
    assert same(whole, second)


def test_compiled_updates_see_the_new_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    eager, compiled = (build_algorithm(algos.SACConfig(**FIELDS, reset_interval=2)) for _ in range(2))
    compiled.engine.compile()
    for algorithm in (eager, compiled):
        learn(algorithm, range(5))
    theirs = compiled.nets.state_dict()
    assert all(torch.allclose(tensor, theirs[name], atol=1e-5) for name, tensor in eager.nets.state_dict().items())
    assert eager.engine.step_counts == compiled.engine.step_counts


def test_what_cannot_be_reset_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="reset_interval=2 cannot be combined with fit_many"):
        birl.fit_many(algos.SACConfig(**FIELDS, reset_interval=2), random_dataset(), 2, seeds=2)
    with pytest.raises(ConfigError, match="reset_interval is 0"):
        algos.SACConfig(reset_interval=0)
    with pytest.raises(ConfigError, match="reset_share is 1.5"):
        algos.SACConfig(reset_share=1.5)
