"""Sequence models: samplers, schedules, evaluation while training, exports, and what TACR learns from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import birl
from birl import algos
from birl.algorithm import Algorithm, TransformerAlgorithm
from birl.algos import tacr
from birl.errors import ConfigError, DataError, NonFiniteError, NotBuiltError, ShapeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import PositionEncodingType, VectorEncoderFactory
from birl.optimizers import AdamFactory
from birl.preprocessing import MinMaxActionScaler, MinMaxObservationScaler, MultiplyRewardScaler
from birl.run.options import DEFAULTS
from birl.testing import ChainEnv, build_algorithm, collect_dataset, random_dataset
from birl.testing.contract.acting import context_names, run_export
from birl.types import Batch, tree_leaves, tree_map

ENCODER = VectorEncoderFactory(hidden_units=[8])
WINDOWS: dict[str, Any] = {
    "context_size": 4,
    "max_timestep": 30,
    "num_layers": 1,
    "attn_dropout": 0.0,
    "resid_dropout": 0.0,
    "embed_dropout": 0.0,
}
DISCRETE = algos.DiscreteDecisionTransformerConfig(
    **WINDOWS, batch_size=5, num_heads=2, encoder_factory=ENCODER, warmup_tokens=50, final_tokens=170
)
CONTINUOUS = algos.DecisionTransformerConfig(**WINDOWS, batch_size=5, encoder_factory=ENCODER, warmup_steps=5)
TACR = algos.TACRConfig(**WINDOWS, batch_size=5, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER)
CONFIGS = {"discrete": DISCRETE, "continuous": CONTINUOUS, "tacr": TACR}
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}


def built(config: Any, observation_shape: Any = (3,), action_size: int = 3) -> Any:
    """With weights large enough that everything shows."""
    birl.seed(0)
    algorithm = config.create()
    algorithm.create_impl(observation_shape, action_size)
    with torch.no_grad():
        for parameter in algorithm.nets.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def chain(discrete: bool) -> tuple[Any, Any]:
    env = ChainEnv(discrete, max_steps=8)
    return env, collect_dataset(env, 300, 0, policy=env.best_action, skill=0.6)


# -- samplers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_softmax_draws_with_the_probabilities_of_the_logits(temperature: float) -> None:
    logits = np.log(np.array([0.1, 0.3, 0.6], np.float32))
    sampler = algos.SoftmaxTransformerActionSampler(temperature)
    birl.seed(1)
    drawn = [sampler(logits) for _ in range(4000)]
    expected = np.exp(logits / temperature)
    assert np.bincount(drawn, minlength=3) / 4000 == pytest.approx(expected / expected.sum(), abs=0.03)
    birl.seed(1)
    assert [sampler(logits) for _ in range(50)] == drawn[:50]
    assert isinstance(drawn[0], int)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_temperature_is_a_positive_number(temperature: Any) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        algos.SoftmaxTransformerActionSampler(temperature)


def test_greedy_and_identity() -> None:
    assert algos.GreedyTransformerActionSampler()(np.array([0.0, 2.0, 1.0])) == 1
    output = np.array([0.5, -0.5])
    assert algos.IdentityTransformerActionSampler()(output) is output


def test_discrete_actions_are_drawn_by_default_and_seen_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, seen = built(DISCRETE), []
    original = algorithm.predict_context

    def predict_context(observation: Any, action: Any, *rest: Any) -> Any:
        seen.append(action.copy())
        return original(observation, action, *rest)

    monkeypatch.setattr(algorithm, "predict_context", predict_context)
    birl.seed(0)
    actor = algorithm.as_stateful_wrapper(target_return=1.0)
    taken = [actor.predict(np.ones(3, np.float32), 0.0) for _ in range(30)]
    assert {int(action) for action in taken} == {0, 1, 2}
    assert all(np.shape(action) == () and np.asarray(action).dtype == np.int64 for action in taken)
    assert seen[5][0, :, 0].tolist() == [*taken[2:5], 0]
    birl.seed(0)
    again = algorithm.as_stateful_wrapper(1.0)
    assert [again.predict(np.ones(3, np.float32), 0.0) for _ in range(30)] == taken
    greedy = algorithm.as_stateful_wrapper(1.0, algos.GreedyTransformerActionSampler())
    context = algos.TransformerInput(np.ones((1, 3)), np.zeros(1, int), np.zeros((1, 1)), np.ones((1, 1)), np.ones(1))
    assert greedy.predict(np.ones(3, np.float32), 0.0) == algorithm.predict(context).argmax()


def test_a_sampler_sees_one_output_at_a_time() -> None:
    def second(transformer_output: Any) -> int:  # as d3rlpy's own samplers do
        assert transformer_output.ndim == 1
        return int(np.argsort(transformer_output)[-2])

    actor = built(DISCRETE).as_stateful_wrapper(1.0, second).actor(n=4)
    action = actor(np.zeros((4, 3), np.float32), np.ones(4, bool), np.zeros(4, np.float32))
    assert action.shape == (4,) and action.dtype == np.int64


@pytest.mark.parametrize(
    ("observation", "given"), [((np.zeros(3), {}), "a tuple"), (np.zeros((1, 3)), "1, 3"), (np.zeros(2), "2,")]
)
def test_a_wrapper_takes_one_observation(observation: Any, given: str) -> None:
    with pytest.raises(ShapeError, match=rf"{given}.*one observation of shape \(3,\)"):
        built(DISCRETE).as_stateful_wrapper(1.0).predict(observation, 0.0)


@pytest.mark.parametrize("config", [CONTINUOUS, DISCRETE])
def test_one_step_of_context_is_enough(config: Any) -> None:
    actor = built(replace(config, context_size=1)).as_stateful_wrapper(7.0)
    for reward in (0.0, 1.0, 2.0):
        actor.predict(np.ones(3, np.float32), reward)
    state = actor._actor.get_state()
    assert state["return"].tolist() == [[[4.0]]] and state["step"].tolist() == [[3]]


@pytest.mark.parametrize("config", [CONTINUOUS, DISCRETE])
def test_nothing_is_decided_from_what_is_no_number(config: Any) -> None:
    algorithm, x = built(config), np.ones(3, np.float32)
    actor = algorithm.as_stateful_wrapper(1.0)
    actor.predict(x, 0.0)
    before = actor._actor.get_state()
    with pytest.raises(NonFiniteError, match="an observation holds NaN"):
        actor.predict(np.array([1, np.nan, 1], np.float32), 0.0)
    for reward in (np.nan, "x", "5", None, 1e39, np.ma.masked):
        with pytest.raises(ConfigError, match="reward is .*must be a finite number"):
            actor.predict(x, reward)
    after = actor._actor.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in ("action", "return", "step"))
    with pytest.raises(NonFiniteError, match="a reward is"):
        actor.actor(n=2)(np.stack([x, x]), np.array([True, False]), np.array([np.nan, np.nan]))
    for target in (np.inf, "far", "5", 1e39, np.ma.masked):
        with pytest.raises(ConfigError, match="target_return is"):
            algorithm.as_stateful_wrapper(target)
    with pytest.raises(ShapeError, match="an action sampler returns an action of shape"):
        algorithm.as_stateful_wrapper(1.0, lambda _: None).predict(x, 0.0)


def test_parts_of_a_context_are_of_one_length() -> None:
    for lengths in ((0, 0, 0), (3, 2, 3), (2, 3, 2)):
        steps, actions, returns = lengths
        context = algos.TransformerInput(
            np.ones((steps, 3), np.float32), np.zeros(actions, int), np.zeros(3), np.ones((returns, 1)), np.ones(steps)
        )
        with pytest.raises(ShapeError, match="all parts must have the same number of them, at least 1"):
            built(DISCRETE).predict(context)


def test_a_wrapper_needs_networks() -> None:
    with pytest.raises(NotBuiltError):
        DISCRETE.create().as_stateful_wrapper(1.0)


# -- the schedule over tokens ------------------------------------------------------------------------------------------


def discrete_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    weight = torch.ones(5, 4)
    weight[:3, :2] = 0
    extra = {
        "returns_to_go": torch.randn(5, 4, generator=generator),
        "timestep": torch.arange(1, 5).expand(5, 4) * weight.long(),
    }
    action = torch.randint(0, 3, (5, 4), generator=generator)
    observation, reward = torch.randn(5, 4, 3, generator=generator), torch.randn(5, 4, generator=generator)
    return Batch(observation, action, reward, None, torch.ones(5, 4), weight, extra=extra)


def test_learning_rate_counts_tokens_and_goes_on_after_loading(tmp_path: Path) -> None:
    algorithm, batch = built(DISCRETE), discrete_batch()
    rates = [float(algorithm.update(batch)["learning_rate"]) / 6e-4 for _ in range(5)]
    algorithm.save(tmp_path / "model.birl")
    loaded = birl.load_learnable(tmp_path / "model.birl")
    for each in (algorithm, loaded):
        own = rates + [float(each.update(batch)["learning_rate"]) / 6e-4 for _ in range(5)]
        cosine = [0.5 * (1 + np.cos(np.pi * (tokens - 50) / 120)) for tokens in range(60, 180, 20)]
        # 20 tokens an update, padding and all: warm-up over 50, then half a cosine until 170, then a tenth
        assert own == pytest.approx([0.4, 0.8, *cosine[:5], 0.1, 0.1, 0.1])
    states = [each.get_state()["engine"]["nets"] for each in (algorithm, loaded)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def factory_of(config: Any) -> Any:
    rate, factory = config.optimizer("learning_rate", "optim_factory")
    assert rate == config.learning_rate
    return factory


def test_schedule_and_clipping_follow_the_configuration() -> None:
    factory = factory_of(DISCRETE)
    assert (factory.clip_grad_norm, factory.lr_scheduler_factory.warmup_steps) == (1.0, 2.5)
    larger = factory_of(replace(DISCRETE, batch_size=10, clip_grad_norm=None))
    assert (larger.clip_grad_norm, larger.lr_scheduler_factory.warmup_steps) == (None, 1.25)
    assert factory_of(replace(CONTINUOUS, warmup_steps=7)).lr_scheduler_factory.warmup_steps == 7
    assert factory_of(replace(CONTINUOUS, warmup_steps=0)).lr_scheduler_factory is None
    own = AdamFactory(clip_grad_norm=3.0, lr_scheduler_factory=factory.lr_scheduler_factory)
    assert factory_of(replace(CONTINUOUS, optim_factory=own)) == own
    with pytest.raises(ConfigError, match="final_tokens is 50 and warmup_tokens 50"):
        replace(DISCRETE, final_tokens=50)


def test_d3rlpys_defaults() -> None:
    config = algos.DiscreteDecisionTransformerConfig()
    assert (config.batch_size, config.context_size, config.learning_rate, config.num_heads, config.num_layers) == (
        128, 20, 6e-4, 8, 6,
    )  # fmt: skip
    assert (config.embed_activation_type, config.warmup_tokens, config.final_tokens) == ("tanh", 10240, 30000000)
    assert config.position_encoding_type is PositionEncodingType.GLOBAL and config.activation_type == "gelu"
    assert config.optim_factory.get_type() == "gpt_adam_w" and config.clip_grad_norm == 1.0
    config = algos.TACRConfig()
    assert (config.alpha, config.tau, config.n_critics, config.actor_learning_rate) == (2.5, 0.005, 2, 1e-4)


def test_fault_12_padding_is_no_part_of_the_discrete_loss() -> None:
    engine, batch = built(DISCRETE).engine, discrete_batch()
    (step,) = engine.steps
    other = torch.where(batch.weight > 0, batch.action, 2 - batch.action)
    first = engine.compute_gradients(step, batch)
    second = engine.compute_gradients(step, replace(batch, action=other))
    assert not torch.equal(other, batch.action)
    torch.testing.assert_close(first[1].value, second[1].value)
    for name, gradient in first[0].items():
        torch.testing.assert_close(gradient, second[0][name])


# -- fit ---------------------------------------------------------------------------------------------------------------


def test_fit_has_every_option_of_the_specification() -> None:
    options = {
        "n_steps_per_epoch", "experiment_name", "with_timestamp", "logger_adapter", "show_progress", "eval_env",
        "eval_target_return", "eval_action_sampler", "save_interval", "callback",
    }  # fmt: skip
    own = inspect.signature(algos.TransformerAlgoBase.fitter).parameters
    common = [*inspect.signature(algos.Algorithm.fitter).parameters, *DEFAULTS]
    assert options | {"evaluators", "epoch_callback", "checkpoint"} <= {*own, *common}


class Stop(Exception):
    pass


@pytest.mark.parametrize("discrete", [True, False])
def test_evaluation_aims_at_the_return_and_resumes(discrete: bool, tmp_path: Path) -> None:
    config = DISCRETE if discrete else CONTINUOUS
    calls: list[tuple[int, int]] = []
    epochs: list[int] = []

    def fit(stop_at: int = 0, **options: Any) -> list[tuple[int, dict[str, float]]]:
        def callback(algo: Any, epoch: int, step: int) -> None:
            calls.append((epoch, step))
            if step == stop_at:
                raise Stop

        birl.seed(3)
        env, dataset = chain(discrete)
        algorithm = config.create()
        return algorithm.fit(
            dataset, 6, n_steps_per_epoch=2, eval_env=env, eval_target_return=1.0, callback=callback,
            epoch_callback=lambda algo, epoch, step: epochs.append(epoch),
            evaluators={"steps": lambda algo, data: float(algo.grad_step)}, **QUIET, **options,
        )  # fmt: skip

    whole = fit()
    assert calls == [(step // 2 + 1, step + 1) for step in range(6)] and epochs == [1, 2, 3]
    assert all(0.0 <= metrics["environment"] <= 1.0 for _, metrics in whole)
    assert [metrics["steps"] for _, metrics in whole] == [2.0, 4.0, 6.0]
    with pytest.raises(Stop):
        fit(stop_at=5, checkpoint=tmp_path / "run")
    resumed = fit(checkpoint=tmp_path / "run")
    names = {name for name in whole[-1][1] if not name.startswith("time_")}
    assert {"loss", "environment", "steps"} <= names
    for name in names:
        assert resumed[-1][1][name] == whole[-1][1][name], name


def test_the_evaluation_uses_the_given_sampler() -> None:
    env, dataset = chain(True)

    counted: list[int] = []

    def sampler(transformer_output: Any) -> int:
        counted.append(len(transformer_output))
        return 0

    DISCRETE.create().fit(dataset, 1, eval_env=env, eval_target_return=1.0, eval_action_sampler=sampler, **QUIET)
    assert counted and set(counted) == {2}


def test_an_evaluation_needs_a_return_to_aim_at() -> None:
    env, dataset = chain(True)
    with pytest.raises(UnsupportedError, match="eval_target_return"):
        DISCRETE.create().fit(dataset, 1, eval_env=env, **QUIET)
    with pytest.raises(ConfigError, match="evaluators must be a dict"):
        DISCRETE.create().fit(dataset, 1, eval_env=env, eval_target_return=1.0, evaluators=[1], **QUIET)


# -- exports -----------------------------------------------------------------------------------------------------------


def contexts(shape: Any, discrete: bool, length: int = 4) -> Iterator[Any]:
    """Batches of 1, 3 and 6 contexts of all lengths, one of them late in its episode."""
    generator = np.random.default_rng(0)
    shapes = tree_map(lambda size: (size,), shape) if isinstance(shape[0], int) else shape
    for count in (1, 3, 6):
        end = np.minimum(np.arange(count)[:, None] + 1 + 100 * (np.arange(count)[:, None] == 5), 60)
        timestep = np.maximum(end + np.arange(length) - (length - 1), 0)

        def draw(size: tuple[int, ...], count: int = count) -> Any:
            return generator.normal(size=(count, length, *size)).astype(np.float32)

        observation = draw(shape) if isinstance(shape[0], int) else tuple(draw(each) for each in shapes)
        action = generator.integers(3, size=(count, length, 1)) if discrete else draw((3,))
        yield observation, action, draw((1,)), timestep.astype(np.int64)


@pytest.mark.parametrize("suffix", [".pt", *(pytest.param(each, marks=pytest.mark.slow) for each in (".pt2", ".onnx"))])
@pytest.mark.parametrize("name", CONFIGS)
def test_exports_equal_the_policy_over_several_contexts(name: str, suffix: str, tmp_path: Path) -> None:
    discrete = name == "discrete"
    scalers: dict[str, Any] = {
        "observation_scaler": MinMaxObservationScaler(minimum=[-3.0] * 3, maximum=[2.0] * 3),
        "reward_scaler": MultiplyRewardScaler(0.3),
    }
    if not discrete:
        scalers["action_scaler"] = MinMaxActionScaler(minimum=[-2.0] * 3, maximum=[4.0] * 3)
    algorithm = built(replace(CONFIGS[name], **scalers))
    path = tmp_path / f"policy{suffix}"
    algorithm.save_policy(path, batched=True)
    for context in contexts((3,), discrete):
        got = run_export(path, context, context_names(context))
        expected = algorithm.predict_context(*context)
        expected = expected.argmax(-1) if discrete else expected
        assert got.dtype == expected.dtype and np.allclose(got, expected, atol=1e-5)
        observation, action, returns, timestep = (np.array(part) for part in context)
        padding = timestep == 0
        for part in (observation, action, returns):
            part[padding] = 1  # not looked at, like the last action
        action[:, -1] = 2
        other = (observation, action, returns, timestep)
        assert np.allclose(run_export(path, other, context_names(other)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "suffix", "batched"),
    [
        (CONTINUOUS, ".pt", True),
        (CONTINUOUS, ".pt", False),
        (DISCRETE, ".pt", False),
        (CONTINUOUS, ".onnx", False),
        pytest.param(DISCRETE, ".onnx", False, marks=pytest.mark.slow),
        pytest.param(CONTINUOUS, ".pt2", False, marks=pytest.mark.slow),
    ],
)
def test_an_export_acts_as_the_wrapper_does(config: Any, suffix: str, batched: bool, tmp_path: Path) -> None:
    """Over an episode; without batch dimension as d3rlpy's exports, whose inputs are floats but for the last."""
    discrete = config is DISCRETE
    algorithm, path = built(config), tmp_path / f"policy{suffix}"
    algorithm.save_policy(path, **({"batched": True} if batched else {}))
    sampler = algos.GreedyTransformerActionSampler() if discrete else None
    actor, generator = algorithm.as_stateful_wrapper(2.0, sampler), np.random.default_rng(1)
    rows: list[tuple[Any, ...]] = []
    for step in range(6):
        observation = generator.normal(size=3).astype(np.float32)
        action = actor.predict(observation, float(step > 0))
        rows.append((observation, np.atleast_1d(action), [2.0 - step], step + 1))
        last = rows[-4:]
        pad = 4 - len(last)
        context = [np.stack([row[i] for row in [rows[0]] * pad + last]) for i in range(4)]
        context[3][:pad] = 0
        context[2] = context[2].astype(np.float32)
        context[1] = context[1] if batched else context[1].astype(np.float32)
        names = context_names(tuple(context))
        got = run_export(path, tuple(x[None] if batched else x for x in context), names)
        got = got[0] if batched else got
        assert np.shape(got) == np.shape(action) and np.asarray(got).dtype == np.asarray(action).dtype
        assert np.allclose(got, action, atol=1e-5)


@pytest.mark.slow
def test_an_export_of_several_observations_has_names(tmp_path: Path) -> None:
    config = algos.DecisionTransformerConfig(**WINDOWS, warmup_steps=5)
    algorithm = built(config, ((3,), (2, 2)))
    algorithm.save_policy(tmp_path / "policy.onnx", batched=True)
    for context in contexts(((3,), (2, 2)), False):
        assert len(list(tree_leaves(context))) == 5
        got = run_export(tmp_path / "policy.onnx", context, context_names(context))
        assert np.allclose(got, algorithm.predict_context(*context), atol=1e-5)


# -- TACR --------------------------------------------------------------------------------------------------------------


def window(discount: float) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    discounts = torch.full((2, 4), 0.9)
    discounts[:, -1] = discount
    extra = {"returns_to_go": draw(2, 4), "timestep": torch.arange(1, 5).expand(2, 4)}
    return Batch(draw(2, 4, 3), draw(2, 4, 3).tanh(), draw(2, 4), None, discounts, torch.ones(2, 4), extra=extra)


def test_the_last_step_of_a_window_counts_where_its_episode_terminated() -> None:
    assert tacr.transitions(window(0.0)).weight.tolist() == [[1.0] * 4] * 2
    batch = tacr.transitions(window(0.9))
    assert batch.weight.tolist() == [[1.0, 1.0, 1.0, 0.0]] * 2
    assert torch.equal(batch.next_observation[:, :-1], batch.observation[:, 1:])
    algorithm = built(TACR)
    critic = algorithm.engine.steps[0]
    for discount, learned in ((0.0, True), (0.9, False)):
        batch = window(discount)
        other = replace(batch, reward=batch.reward + torch.tensor([0.0, 0.0, 0.0, 5.0]))
        torch.manual_seed(0)
        first = algorithm.engine.compute_gradients(critic, batch)[1].value
        torch.manual_seed(0)
        second = algorithm.engine.compute_gradients(critic, other)[1].value
        assert (float(first) != float(second)) == learned


def test_targets_take_the_action_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, batch = built(replace(TACR, target_smoothing_sigma=0.0)), window(0.0)
    nets, seen = algorithm.nets, []
    original = nets.critic_target.forward
    monkeypatch.setattr(nets.critic_target, "forward", lambda x, a: (seen.append((x, a)), original(x, a))[1])
    algorithm.engine.compute_gradients(algorithm.engine.steps[0], batch)
    ((inputs, action),) = seen
    whole = nets.actor_target(
        batch.observation, batch.action, batch.extra["returns_to_go"], batch.extra["timestep"], batch.weight
    )
    assert torch.equal(inputs.observation[:, :-1], batch.observation[:, 1:])
    assert torch.allclose(action[:, :-1], whole[:, 1:], atol=1e-6)


def test_evaluators_of_transitions_are_refused_before_training() -> None:
    algorithm = DISCRETE.create()
    with pytest.raises(UnsupportedError, match="the evaluator 'td' asks for single transitions"):
        algorithm.fit(chain(True)[1], 1, evaluators={"td": birl.metrics.TDErrorEvaluator()}, **QUIET)
    assert not algorithm.built


@pytest.mark.parametrize("name", ["TACR", "DecisionTransformer"])
def test_a_minibatch_of_transitions_is_refused(name: str) -> None:
    algorithm = build_algorithm(getattr(algos, f"{name}Config")())
    with pytest.raises(DataError, match=f"{name} learns from trajectories, not from a TransitionMiniBatch"):
        algorithm.update(random_dataset(action_size=2).sample_transition_batch(2))


def test_fit_names_the_arguments_of_evaluation_in_its_signature() -> None:
    names = inspect.signature(TransformerAlgorithm.fit).parameters
    assert {"eval_env", "eval_target_return", "eval_action_sampler", "evaluators", "enable_ddp"} <= names.keys()
    own, base = ([*inspect.signature(cls.fit).parameters][:6] for cls in (TransformerAlgorithm, Algorithm))
    assert own == base  # positional arguments are the same
