"""The step within a trust region: what it promises on random problems, over processes, and what it refuses."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from birl.algorithm import Gradient, TrustRegion
from birl.algos import TRPOConfig
from birl.algos.trpo import TRPO, policy_loss, with_old_policy
from birl.engine import Engine
from birl.engine.compiled import supports
from birl.engine.stacked_engine import check_stackable
from birl.engine.update import Eager
from birl.errors import ConfigError, UnsupportedError
from birl.models import VectorEncoderFactory, eval_mode
from birl.models.matmul import Threshold, products
from birl.types import Batch, Loss, weighted_mean
from tests.tiers import slow_but

SMALL = VectorEncoderFactory([8])


def build(discrete: bool = False, encoder: Any = SMALL, **fields: Any) -> Engine:
    torch.manual_seed(3)
    config = TRPOConfig(actor_encoder_factory=encoder, value_encoder_factory=SMALL, compile_graph=False, **fields)
    algorithm = config.create()
    algorithm.create_impl((3,), 3 if discrete else 2, discrete_action=discrete)
    engine: Engine = algorithm.engine
    return engine


def problem(engine: Engine, seed: int, size: int = 16) -> Batch:
    """Random steps of the present policy with random advantages, some of them enormous."""
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(size, 3, generator=generator)
    extra = {"advantage": 10.0 ** (seed % 5 - 2) * torch.randn(size, generator=generator)}
    one = torch.ones(size)
    batch = Batch(observation, one, one, observation, one, one, extra=extra)
    with torch.no_grad():
        torch.manual_seed(seed)
        action, _ = engine.nets.actor(batch.inputs).sample()
    return with_old_policy(engine.nets, replace(batch, action=action))


def held(engine: Engine, batch: Batch) -> tuple[float, float]:
    """Surrogate and divergence of the present policy, as it acts."""
    with torch.no_grad(), eval_mode(engine.nets):
        loss = policy_loss(engine.nets, batch, engine.config)
    return -float(loss.value), float(loss.metrics["kl"])


def copied(engine: Engine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.nets.state_dict().items()}


@pytest.mark.parametrize("count", slow_but([40], [40, 1000]))
def test_updates_keep_the_bound_gain_or_restore_bit_for_bit(count: int) -> None:
    """With few lengths to try the search fails now and then."""
    search = {"conjugate_gradient_steps": 5, "conjugate_gradient_damping": 1e-3, "max_kl": 0.02}
    engines = [build(discrete, line_search_steps=n, **search) for discrete in (False, True) for n in (1, 3)]
    accepted = failed = 0
    for number in range(count):
        engine = engines[number % len(engines)]
        batch, before = problem(engine, number), copied(engine)
        surrogate, nothing = held(engine, batch)
        assert nothing <= 1e-6
        metrics = engine.update(batch, ("policy",))
        after, divergence = held(engine, batch)
        if metrics["step_share"] > 0:
            accepted += 1
            assert divergence <= 0.02 and after > surrogate
            assert divergence == pytest.approx(float(metrics["kl"]), abs=1e-7)
            assert after == pytest.approx(-float(metrics["policy_loss"]), rel=1e-5, abs=1e-5)
        else:
            failed += 1
            assert metrics["kl"] == 0 and all(torch.equal(before[k], v) for k, v in engine.nets.state_dict().items())
        moved = {k.partition(".")[0] for k, v in engine.nets.state_dict().items() if not torch.equal(before[k], v)}
        assert moved <= {"actor"}
    assert accepted > count / 4 and failed > count / 20


def test_a_surrogate_that_is_not_finite_changes_nothing() -> None:
    engine = build()
    batch = problem(engine, 0)
    batch.extra["advantage"][3] = torch.inf
    before = copied(engine)
    assert engine.update(batch, ("policy",))["step_share"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in engine.nets.state_dict().items())


def test_one_message_for_each_product_and_length() -> None:
    """PFRL makes two Fisher products in a step of conjugate gradients."""
    engine = build(conjugate_gradient_steps=7, line_search_steps=4)
    sizes: list[int] = []

    def reduce(given: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes.extend(x.numel() for x in given.values())
        return given

    engine.reduce = reduce
    engine.update(problem(engine, 0), ("policy",))
    count = sum(x.numel() for x in engine.nets.actor.parameters())
    assert sizes == [count] * (1 + 7) + [2] * (1 + 4)


def test_two_processes_make_the_step_of_one() -> None:
    """Each has half of the batch, and `reduce` is the mean over both."""
    alone, halves = build(), (build(), build())
    batch = problem(alone, 1)
    alone.update(batch, ("policy",))
    barrier, given = threading.Barrier(2), [{}, {}]

    def work(rank: int) -> None:
        def reduce(own: dict[str, Tensor]) -> dict[str, Tensor]:
            given[rank] = own
            barrier.wait()
            mean = {name: (given[0][name] + given[1][name]) / 2 for name in own}
            barrier.wait()
            return mean

        engine = halves[rank]
        engine.reduce = reduce
        try:
            step = next(step for step in engine.steps if step.name == "policy")
            step(Eager(engine), batch.map(lambda x: x[8 * rank : 8 * rank + 8]))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    start = build()
    for name, tensor in alone.nets.state_dict().items():
        one, other = (engine.nets.state_dict()[name] for engine in halves)
        assert torch.equal(one, other)
        torch.testing.assert_close(one, tensor, atol=1e-5, rtol=1e-4)
        assert name.startswith("value") or not torch.equal(tensor, start.nets.state_dict()[name])


def test_dropout_is_off() -> None:
    """The old policy and the new one differ by their parameters, not by what is dropped."""
    engine = build(encoder=VectorEncoderFactory([32], dropout_rate=0.5))
    batch = problem(engine, 2)
    engine.nets.train()
    metrics = engine.update(batch, ("policy",))
    assert metrics["step_share"] > 0 and engine.nets.actor.encoder.training
    assert held(engine, batch)[1] == pytest.approx(float(metrics["kl"]), abs=1e-7)


def test_products_are_differentiated_twice_whatever_library_multiplies() -> None:
    engine = build(encoder=VectorEncoderFactory([8, 8]))
    batch = problem(engine, 0)
    with products(Threshold(0, 0)):
        step = next(step for step in engine.steps if step.name == "policy")
        step(Eager(engine), batch)


def test_it_says_that_it_is_not_one_program() -> None:
    engine = build()
    assert not supports(engine)
    with pytest.raises(
        UnsupportedError, match=r"the step 'policy' \(it evaluates .*\) cannot be combined with fit_many"
    ):
        check_stackable(engine)


def without_divergence(nets: Any, batch: Batch, cfg: Any) -> Loss:
    return Loss(policy_loss(nets, batch, cfg).value)


def constant_divergence(nets: Any, batch: Batch, cfg: Any) -> Loss:
    return (
        policy_loss(nets, batch, cfg).detached()
        if not torch.is_grad_enabled()
        else Loss(policy_loss(nets, batch, cfg).value, {"kl": torch.tensor(0.0)})
    )


@pytest.mark.parametrize("loss", [without_divergence, constant_divergence])
def test_a_loss_without_divergence_is_refused(loss: Any) -> None:
    engine = build()
    step = TrustRegion("policy", loss, of=("actor",))
    with pytest.raises(ConfigError, match="the loss of the step 'policy' has no metric 'kl' with a gradient"):
        step(Eager(engine), problem(engine, 0))


def test_a_loss_that_knows_not_all_parameters_is_refused() -> None:
    engine = build()
    step = TrustRegion("policy", policy_loss, of=("actor", "value"))
    with pytest.raises(ConfigError, match=r"policy_loss does not depend on value\."):
        step(Eager(engine), problem(engine, 0))


def test_trainings_are_the_steps_with_a_loss() -> None:
    engine = build()
    assert [type(step) for step in engine.trainings] == [TrustRegion, Gradient]
    assert [step.name for step in engine.gradient_steps] == ["value"] == list(engine.optimizers)
    assert set(engine.parameters) == {"policy", "value"}
    assert TRPO.steps == engine.steps
    with torch.no_grad():
        engine.nets.actor.log_std.fill_(torch.nan)
    with pytest.raises(Exception, match=r"'actor.log_std' \(step: policy\)"):
        engine.check_finite()


def test_weights_count() -> None:
    """A step of weight 0 has no part, whatever stands there."""
    engine, other = build(), build()
    batch = problem(engine, 4)
    engine.update(batch.map(lambda x: x[:12]), ("policy",))
    weight = batch.weight.clone()
    weight[12:] = 0
    extra = {name: x.clone() for name, x in batch.extra.items()}
    extra["policy"][12:] = torch.nan
    other.update(replace(batch, weight=weight, extra=extra), ("policy",))
    for name, tensor in engine.nets.state_dict().items():
        torch.testing.assert_close(tensor, other.nets.state_dict()[name], atol=1e-5, rtol=1e-4)
    assert float(weighted_mean(torch.ones(16), weight)) == 1.0
