"""TRPO: its rollouts and episodes, and its updates compared with those of sb3-contrib."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.errors import StalledError
from birl.files import load_archive
from birl.models import VectorEncoderFactory
from birl.models.distributions import Categorical, Normal
from birl.optimizers import AdamFactory
from birl.run.on_policy import on_policy_fitter
from birl.run.protocols import Rollout
from birl.testing import ChainEnv
from birl.types import Batch
from tests.golden.case import build
from tests.golden.cases_ppo import rollouts

DATA = Path(__file__).parents[1] / "data" / "sb3"
SMALL = VectorEncoderFactory([8, 8], activation="tanh")


def from_sb3(given: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """Weights by birl's names; layers are numbered with the activations between them there."""
    found = {f"actor.{name}": given[f"{number}.{name}"] for name in ("log_std",) if f"{number}.{name}" in given}
    for network, index, kind in itertools.product(("policy", "value"), range(3), ("weight", "bias")):
        own = "actor" if network == "policy" else "value"
        hidden, last = f"mlp_extractor.{network}_net.{2 * index}", "action_net" if own == "actor" else "value_net"
        name = f"encoder.layers.{index}.linear.{kind}" if index < 2 else f"linear.{kind}"
        found[f"{own}.{name}"] = given[f"{number}.{hidden if index < 2 else last}.{kind}"]
    return found


@pytest.mark.parametrize("discrete", [False, True])
def test_updates_are_those_of_sb3_contrib(discrete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings, and 24 steps of 2 environments.

    It bounds ``KL(new || old)``, and of continuous actions the mean over dimensions, two here.
    """
    kind = Categorical if discrete else Normal
    divergence = kind.kl
    monkeypatch.setattr(kind, "kl", lambda self, other: divergence(other, self))
    with np.load(DATA / f"TRPO_{'discrete' if discrete else 'continuous'}.npz") as file:
        given = {key: torch.from_numpy(file[key]) for key in file.files}
    config = algos.TRPOConfig(
        actor_encoder_factory=SMALL,
        value_encoder_factory=SMALL,
        value_optim_factory=AdamFactory(eps=1e-5),
        batch_size=48,
        n_epochs=3,
        gamma=0.99,
        gae_lambda=0.95,
        conjugate_gradient_steps=15,
        max_kl=0.01 if discrete else 2 * 0.01,
        conjugate_gradient_damping=0.1 if discrete else 2 * 0.1,
    )
    algorithm = config.create()
    algorithm.create_impl((3,), 3 if discrete else 2, discrete_action=discrete)
    algorithm.nets.load_state_dict(from_sb3(given, 0))
    for number in range(4):
        observation, terminated = (given[f"{number}.{name}"].numpy() for name in ("observation", "terminated"))
        action = given[f"{number}.action"].numpy()
        metrics = algorithm.update(
            Rollout(
                observation=observation[:-1],
                action=action[..., 0].astype(np.int64) if discrete else action,
                reward=given[f"{number}.reward"].numpy(),
                next_observation=observation[1:],
                terminated=terminated,
                truncated=np.zeros_like(terminated),
                is_first=np.concatenate([np.ones_like(terminated[:1]), terminated[:-1]]),
                valid=np.ones_like(terminated),
                extra={},
            )
        )
        assert metrics["step_share"] > 0
        before, wanted, found = from_sb3(given, number), from_sb3(given, number + 1), algorithm.nets.state_dict()
        assert max((found[key] - value).abs().max().item() for key, value in wanted.items()) < 2e-4
        assert max((before[key] - value).abs().max().item() for key, value in wanted.items()) > 5e-3


def seen(config: Any, change: Any = None) -> list[tuple[Batch, Any]]:
    """Batches and names of steps that the engine is given for a rollout of 13 real steps."""
    algorithm = build(config, discrete=True)
    rollout, _ = rollouts(algorithm)[0]
    found: list[tuple[Batch, Any]] = []
    algorithm.engine.update = lambda batch, only=None: found.append((batch, only)) or {}
    algorithm.update(rollout if change is None else change(rollout))
    return found


def test_the_policy_sees_all_steps_once_and_the_values_minibatches() -> None:
    """No remainder is lost, as in NNablaRL's blocks of ``gpu_batch_size``."""
    config = algos.TRPOConfig(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, batch_size=5, n_epochs=2)
    (whole, first), *others = seen(config)
    assert first == ("policy",) and whole.weight.shape == (14,) and whole.weight.count_nonzero() == 13
    assert [only for _, only in others] == [("value",)] * 6
    real = whole.weight > 0
    assert [len(batch.weight) for batch, _ in others] == [5, 5, 3] * 2
    for epoch in (others[:3], others[3:]):
        assert sorted(torch.cat([b.reward for b, _ in epoch]).tolist()) == sorted(whole.reward[real].tolist())
    assert whole.extra["advantage"][real].mean().abs() < 1e-6
    assert whole.extra["advantage"][real].square().mean() == pytest.approx(1.0, abs=1e-5)


def test_steps_of_unfinished_episodes_are_left_out() -> None:
    config = algos.ICML2015TRPOConfig(actor_encoder_factory=SMALL, gamma=0.9)
    ((whole, only),) = seen(config)
    # 7 rows of the first environment end in row 6; of the second 4 end in row 3, one is no step, 2 do not end
    assert only == ("policy",) and whole.weight.shape == (14,) and whole.weight.count_nonzero() == 11


def test_a_rollout_in_which_no_episode_ends_teaches_nothing_and_says_so() -> None:
    algorithm = build(algos.ICML2015TRPOConfig(actor_encoder_factory=SMALL, rollout_length=7), discrete=True)
    rollout, _ = rollouts(algorithm)[0]
    never = np.zeros_like(rollout.terminated)
    before = {name: tensor.clone() for name, tensor in algorithm.nets.state_dict().items()}
    with pytest.warns(RuntimeWarning, match="ICML2015TRPO learned nothing .* 7 steps, .* longer than the episodes"):
        assert algorithm.update(replace(rollout, terminated=never, truncated=never)) == {}
    assert all(torch.equal(before[name], tensor) for name, tensor in algorithm.nets.state_dict().items())


def test_a_run_goes_on_after_a_rollout_without_an_end() -> None:
    """Returns of such a rollout have no owner; the last one, cut by the end of the run, is often of this kind."""
    algorithm = algos.ICML2015TRPOConfig(actor_encoder_factory=SMALL, rollout_length=60).create()
    with pytest.warns(RuntimeWarning, match="learned nothing from a rollout of 3 steps"):
        algorithm.fit_online(gymnasium.make("CartPole-v1"), n_steps=63, n_steps_per_epoch=63, show_progress=False)
    assert algorithm.grad_step == 1


def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line searches try no length at all."""
    from birl.algorithm import trust_region

    search = trust_region.line_search

    def none(evaluate: Any, start: Any, step: Any, max_kl: float, n_steps: int, shrink: float) -> Any:
        return search(evaluate, start, step, max_kl, 0, shrink)

    monkeypatch.setattr(trust_region, "line_search", none)


SHORT: dict[str, Any] = {"actor_encoder_factory": SMALL, "rollout_length": 16, "conjugate_gradient_steps": 2}
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory(), "seed": 0}


def test_ten_failed_line_searches_end_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stuck(monkeypatch)

    def run(n_steps: int) -> Any:
        algorithm = algos.TRPOConfig(**SHORT, value_encoder_factory=SMALL, n_epochs=1).create()
        options = {"n_steps_per_epoch": 48, "checkpoint": tmp_path, **QUIET}
        return list(on_policy_fitter(algorithm, ChainEnv(), n_steps, **options))

    _, metrics = run(96)[-1]  # six
    assert metrics["failed_search"] == 1 and metrics["step_share"] == 0
    with pytest.raises(StalledError, match="^12 line searches in a row failed, up to step 192.*smaller max_kl"):
        run(240)  # goes on counting
    _, state = load_archive(tmp_path / "checkpoint.d3c", "checkpoint")
    assert state["session"]["step"] == 192 and "line searches" in state["session"]["ended"]  # all of it is saved


def test_where_there_is_nothing_to_learn_no_search_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck(monkeypatch)
    still = algos.TRPOConfig(**SHORT, value_encoder_factory=SMALL, n_epochs=1, max_kl=0.0)
    for config, reward in ((still, 1.0), (algos.ICML2015TRPOConfig(**SHORT), 0.0)):
        env = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.TransformReward(ChainEnv(), lambda x, r=reward: x * r), 8)
        ((_, metrics),) = on_policy_fitter(config.create(), env, 320, n_steps_per_epoch=320, **QUIET)
        assert metrics["failed_search"] == 0 and metrics["step_share"] == 0
