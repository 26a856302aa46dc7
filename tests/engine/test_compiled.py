"""The whole update as one compiled program: equal to eager updates, for every optimiser, and through files."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import birl
from birl.algorithm.learner import COMPILE_FROM
from birl.algos import BCConfig, DQNConfig, PPOConfig, SACConfig, TD3Config
from birl.engine import TargetUpdate, compiler
from birl.engine import compiled as program
from birl.engine.cuda_graphs import Generators, Recording
from birl.engine.steps import UpdateResult
from birl.errors import CompileError, ConfigError
from birl.models import C51QFunctionFactory, EncoderFactory, VectorEncoderFactory
from birl.optimizers import (
    AdamFactory,
    AdamWFactory,
    CosineAnnealingLRFactory,
    LinearSchedulerFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    WarmupSchedulerFactory,
)
from birl.optimizers.steps import moments_of, rule_of
from birl.types import Batch
from tests.golden.case import CHOICES, OBSERVATION
from tests.golden.cases_ppo import rollouts
from tests.tiers import slow_but

SMALL = VectorEncoderFactory([8])
FACTORIES = [
    AdamFactory(),
    AdamFactory(betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    AdamWFactory(weight_decay=0.1),
    SGDFactory(),
    SGDFactory(momentum=0.9, dampening=0.5, weight_decay=0.1),
    SGDFactory(momentum=0.9, nesterov=True),
    RMSpropFactory(),
    RMSpropFactory(centered=False, momentum=0.9, weight_decay=0.1),
    RMSpropFactory(eps_inside_root=True),
    RMSpropFactory(eps_inside_root=True, centered=False, momentum=0.9),
]


def batch(step: int, discrete: bool = True, size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(step)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    action = torch.randint(3, (size,), generator=generator) if discrete else draw(size, 3).tanh()
    return Batch(draw(size, 4), action, draw(size), draw(size, 4), torch.full((size,), 0.9), torch.ones(size))


def dqn(compiled: bool | str, **fields: Any) -> Any:
    birl.seed(0)
    fields = {"encoder_factory": SMALL, "learning_rate": 0.05, "target_update_interval": 3, **fields}
    algorithm = DQNConfig(compile_graph=compiled, **fields).create()
    algorithm.create_impl((4,), 3)
    return algorithm


def differences(one: Any, other: Any) -> dict[str, float]:
    """Largest differences of parameters and optimiser states."""
    mine, theirs = ({**each["nets"], **_flat(each["optimizers"])} for each in (one.get_state(), other.get_state()))
    assert mine.keys() == theirs.keys()
    return {name: float((value - theirs[name]).abs().max()) for name, value in mine.items()}


def _flat(state: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    result = {}
    for name, value in state.items():
        if isinstance(value, dict):
            result.update(_flat(value, f"{prefix}{name} "))
        elif isinstance(value, Tensor):
            result[prefix + name] = value
    return result


@pytest.mark.parametrize("factory", FACTORIES, ids=str)
def test_rules_are_the_steps_of_torch(factory: OptimizerFactory) -> None:
    """The step functions alone, run eagerly."""
    plain, ours = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    ours.load_state_dict(plain.state_dict())
    optimizers = [factory.create(module.named_parameters(), 0.1) for module in (plain, ours)]
    schedules = [CosineAnnealingLRFactory(10).create(optimizer) for optimizer in optimizers]
    rule = rule_of(optimizers[1], optimizers[1].param_groups[0])
    assert rule is not None
    for step in range(1, 6):
        gradients = [torch.randn_like(parameter) for parameter in plain.parameters()]
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizers[0].step()
        numbers = rule.step_scalars(optimizers[1].param_groups[0], step)
        with torch.no_grad():
            for parameter, gradient in zip(ours.parameters(), gradients, strict=True):
                tensors = [torch.tensor(number, dtype=torch.float64) for number in numbers]
                rule(parameter, gradient, moments_of(optimizers[1], parameter, rule), tensors)
        optimizers[1].step()  # without gradients: moves nothing
        for schedule in schedules:
            schedule.step()
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_optimizers_without_a_rule() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    for optimizer in (
        torch.optim.Adagrad(parameters, 0.1),
        torch.optim.Adam(parameters, 0.1, amsgrad=True),
        torch.optim.SGD(parameters, 0.1, maximize=True),
    ):
        assert rule_of(optimizer, optimizer.param_groups[0]) is None


def test_compiled_equals_eager_with_clipping_a_schedule_and_late_targets() -> None:
    fields: dict[str, Any] = {
        "optim_factory": AdamFactory(clip_grad_norm=0.05, lr_scheduler_factory=WarmupSchedulerFactory(4))
    }
    eager, compiled = dqn(False, **fields), dqn(True, **fields)
    for step in range(1, 8):
        before = {name: value.clone() for name, value in compiled.nets.critic_target.state_dict().items()}
        first, second = eager.update(batch(step)), compiled.update(batch(step))
        assert first.keys() == second.keys()
        assert float(first["loss"]) == pytest.approx(float(second["loss"]), rel=1e-5)
        moved = any(bool((before[name] != x).any()) for name, x in compiled.nets.critic_target.state_dict().items())
        assert moved == (step % 3 == 0)
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6
    assert compiled.engine.compiled and not eager.engine.compiled


@pytest.mark.slow
def test_schedules_of_rates_and_clip_ranges_are_not_compiled_again(tmp_path: Path) -> None:
    """Programs read their values; a resumed run goes on with them."""
    schedule = LinearSchedulerFactory(6, end=0.1)

    def ppo(compiled: bool, **fields: Any) -> Any:
        birl.seed(0)
        factory = AdamFactory(lr_scheduler_factory=schedule)
        fields |= {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL, "learning_rate": 0.05}
        config = PPOConfig(compile_graph=compiled, optim_factory=factory, batch_size=16, n_epochs=2, **fields)
        algorithm = config.create()
        algorithm.create_impl((OBSERVATION,), CHOICES, discrete_action=True)
        return algorithm

    eager, compiled = (ppo(each, clip_range_schedule=schedule) for each in (False, True))
    given = [rollout for _ in range(2) for rollout, _ in rollouts(eager)]
    for step, rollout in enumerate(given):
        expected = 0.2 * (1 - 0.9 * min(step / 3, 1))
        assert eager.learner.batch(rollout).extra["clip_range"].unique().tolist() == pytest.approx([expected])
        if step == 2:
            eager.save(tmp_path / "eager.d3")
            eager = birl.load_learnable(tmp_path / "eager.d3")
        for algorithm in (eager, compiled):
            torch.manual_seed(step)
            algorithm.learner.update(rollout)
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-5
    assert compiled.engine.optimizers["policy"].param_groups[0]["lr"] == pytest.approx(0.005)
    assert len(compiled.engine._updates._graphs) == 1
    constant = ppo(False)
    for step, rollout in enumerate(given):
        torch.manual_seed(step)
        constant.learner.update(rollout)
    assert max(differences(eager.engine, constant.engine).values()) > 1e-4
    with pytest.raises(ConfigError, match="clip_range_schedule is Cosine"):
        PPOConfig(clip_range_schedule=CosineAnnealingLRFactory(3))


@pytest.mark.slow
def test_saved_and_loaded_between_compiled_updates(tmp_path: Path) -> None:
    """Files hold the same things, and a loaded algorithm goes on bit for bit, compiled or not."""
    through, halved = dqn(True), dqn(True)
    for step in range(4):
        through.update(batch(step))
        if step < 2:
            halved.update(batch(step))
    halved.save(tmp_path / "half.d3")
    resumed = birl.load_learnable(tmp_path / "half.d3")
    for step in (2, 3):
        resumed.update(batch(step))
    assert set(differences(through.engine, resumed.engine).values()) == {0.0}
    assert resumed.engine.step_counts == {"critic": 4}
    state = halved.engine.get_state()
    for step in (2, 3):
        halved.update(batch(step))
    halved.engine.set_state(state)
    for step in (2, 3):
        halved.update(batch(step))
    assert set(differences(through.engine, halved.engine).values()) == {0.0}


@pytest.mark.slow
def test_two_engines_and_two_batch_sizes_do_not_share_a_program() -> None:
    """Guards are left out, so mixing them up would go unnoticed."""
    first, second = dqn(True), dqn(True, gamma=0.5, learning_rate=0.01)
    eager = [dqn(False), dqn(False, gamma=0.5, learning_rate=0.01)]
    for step in range(3):
        for mine, theirs in zip((first, second), eager, strict=True):
            for size in (6, 4):
                mine.update(batch(step, size=size))
                theirs.update(batch(step, size=size))
    assert max(differences(first.engine, eager[0].engine).values()) < 1e-6
    assert max(differences(second.engine, eager[1].engine).values()) < 1e-6
    assert max(differences(first.engine, second.engine).values()) > 1e-3


def test_random_numbers_are_torchs_own_and_move_on() -> None:
    """Compiled SAC draws what eager SAC draws, another each time, and leaves the generator where eager SAC does."""
    states = []
    for compiled in (False, True):
        birl.seed(0)
        encoders = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
        sac = SACConfig(compile_graph=compiled, **encoders).create()
        sac.create_impl((4,), 3)
        losses = [float(sac.update(batch(0, discrete=False))["actor_loss"]) for _ in range(2)]
        states.append((losses, torch.get_rng_state(), sac))
    (eager, generator, one), (compiled_losses, other_generator, other) = states
    assert compiled_losses == pytest.approx(eager, rel=1e-4)
    assert torch.equal(generator, other_generator)
    assert max(differences(one.engine, other.engine).values()) < 1e-5


def test_unknown_optimizer_is_compiled_up_to_its_step() -> None:
    factory = OptimizerFactory(torch.optim.Adagrad)
    eager, compiled = dqn(False, optim_factory=factory), dqn(True, optim_factory=factory)
    for step in range(3):
        eager.update(batch(step))
        compiled.update(batch(step))
    assert compiled.engine.compiled
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6
    given = batch(3)
    kept = weakref.ref(given.reward)
    compiled.update(given)
    del given
    assert kept() is None, "a compiled function keeps its batch"


@pytest.mark.slow
def test_memory_in_another_order_has_a_program_of_its_own() -> None:
    """Compiled code reads memory as it lay when it was compiled."""
    eager, compiled = dqn(False), dqn(True)
    for step in range(3):
        given = batch(step)
        if step:
            table = torch.randn(6, 2, generator=torch.Generator().manual_seed(step))
            given = replace(given, reward=table[:, 0], weight=table[:, 1].abs())
        eager.update(given)
        compiled.update(given)
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


@pytest.mark.slow
def test_a_copy_does_not_train_the_original() -> None:
    original, eager = dqn(True), dqn(False)
    original.update(batch(0))
    eager.update(batch(0))
    other = deepcopy(original)
    before = original.engine.get_state()["nets"]
    other.update(batch(1))
    eager.update(batch(1))
    assert all(torch.equal(value, before[name]) for name, value in original.nets.state_dict().items())
    assert max(differences(other.engine, eager.engine).values()) < 1e-6


@pytest.mark.parametrize("compiled", slow_but([False], [False, True]))
def test_copied_optimizer_states(compiled: bool) -> None:
    """The copy continues with the moments and the number of steps, which it does not share."""
    source, target, expected = dqn(compiled), dqn(compiled), dqn(False)
    for step in range(3):
        source.update(batch(step))
        expected.update(batch(step))
    target.update(batch(9))
    target.engine.load_networks(source.engine.get_state()["nets"])
    target.copy_q_function_optim_from(source)
    target.set_grad_step(3)
    kept = source.engine.get_state()
    target.update(batch(3))
    expected.update(batch(3))
    assert max(differences(target.engine, expected.engine).values()) < 1e-6
    assert target.engine.step_counts == {"critic": 4}
    assert all(torch.equal(x, _flat(kept)[name]) for name, x in _flat(source.engine.get_state()).items())


def test_gradients_that_are_reduced_later_leave_the_program() -> None:
    eager, compiled = dqn(False), dqn(True)
    for algorithm in (eager, compiled):
        algorithm.update(batch(0))
        algorithm.engine.reduce = lambda gradients: {name: value * 0.5 for name, value in gradients.items()}
        algorithm.update(batch(1))
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


@pytest.mark.slow
def test_other_optimizer_settings_are_seen(tmp_path: Path) -> None:
    """From a file, or written into the optimiser's groups."""
    other = dqn(False, optim_factory=AdamFactory(betas=(0.5, 0.9), eps=1e-2, weight_decay=0.5))
    other.update(batch(0))
    other.save_model(tmp_path / "model.d3")
    eager, compiled = dqn(False), dqn(True)
    compiled.update(batch(0))
    for algorithm in (eager, compiled):
        algorithm.load_model(tmp_path / "model.d3")
        algorithm.set_grad_step(1)
        algorithm.update(batch(1))
        algorithm.engine.optimizers["critic"].param_groups[0]["weight_decay"] = 0.1
        algorithm.update(batch(2))
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


@pytest.mark.slow
def test_first_step_of_damped_momentum_after_a_file(tmp_path: Path) -> None:
    """Moments are made with the first step, not before: torch does not dampen that one."""
    factory = SGDFactory(momentum=0.9, dampening=0.5)
    eager, compiled = dqn(False, optim_factory=factory), dqn(True, optim_factory=factory)
    for algorithm in (eager, compiled):
        algorithm.save_model(tmp_path / "model.d3")
        algorithm.load_model(tmp_path / "model.d3")
        algorithm.update(batch(0))
        algorithm.update(batch(1))
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


class _Scaled(nn.Module):
    """Reads a tensor that is neither a parameter nor a buffer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 4)
        self.scale = torch.tensor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return (self.scale * y).relu()


class _ScaledFactory(EncoderFactory):
    def create(self, observation_shape: Any) -> nn.Module:
        return _Scaled(observation_shape[0])

    @staticmethod
    def get_type() -> str:
        return "scaled"


def direct_calls(algorithm: Any) -> list[bool]:
    """For each compiled update, whether it is called without torch.compile's shell."""
    return [graph._direct is not None for graph in algorithm.engine._updates._graphs.values()]


@pytest.mark.slow
def test_updates_are_called_without_the_shell() -> None:
    """Also after new moments, for which everything is looked up again."""
    eager, compiled = dqn(False), dqn(True)
    for step in range(6):
        for algorithm in (eager, compiled):
            algorithm.update(batch(step))
            if step == 3:
                algorithm.reset_optimizer_states()
    assert direct_calls(compiled) == [True, True]  # with the copy to the target network and without
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


@pytest.mark.slow
def test_tensors_that_are_replaced_are_seen() -> None:
    """An attribute of a network may be another tensor in the next update: then the shell stays, which looks it up."""
    eager, compiled = dqn(False, encoder_factory=_ScaledFactory()), dqn(True, encoder_factory=_ScaledFactory())
    for step in range(4):
        for algorithm in (eager, compiled):
            algorithm.engine.nets.critic.encoder.members[0].scale = torch.tensor(1.0 + step)
            algorithm.update(batch(step))
    assert not any(direct_calls(compiled))
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


@pytest.mark.slow
def test_one_tensor_may_be_two_parts_of_a_batch() -> None:
    eager, compiled = dqn(False), dqn(True)
    for step in range(3):
        both = replace(batch(step), next_observation=batch(step).observation)
        same = replace(both, next_observation=both.observation)
        eager.update(both)
        compiled.update(same)
    for algorithm in (eager, compiled):
        algorithm.update(batch(4))  # a program of its own, though shapes are equal
    assert direct_calls(compiled) == [True, True, True]
    assert max(differences(eager.engine, compiled.engine).values()) < 1e-6


class _Stubborn(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if float(y.detach().sum()) > 1e9 else y.relu()  # looks at values on the host


class _StubbornFactory(EncoderFactory):
    def create(self, observation_shape: Any) -> nn.Module:
        return _Stubborn(observation_shape[0])

    @staticmethod
    def get_type() -> str:
        return "stubborn"


def test_module_that_cannot_be_compiled() -> None:
    strict = dqn(True, encoder_factory=_StubbornFactory())
    with pytest.raises(CompileError, match="cannot be compiled .*compile_graph='auto' .* goes on without"):
        strict.update(batch(0))
    lenient, eager = dqn("auto", encoder_factory=_StubbornFactory()), dqn(False, encoder_factory=_StubbornFactory())
    lenient.learner.start_run(None, COMPILE_FROM)
    assert lenient.engine.compiled
    with pytest.warns(RuntimeWarning, match="goes on without compiling"):
        lenient.update(batch(0))
    eager.update(batch(0))
    lenient.update(batch(1))
    eager.update(batch(1))
    assert set(differences(lenient.engine, eager.engine).values()) == {0.0}
    assert lenient.engine.step_counts == eager.engine.step_counts == {"critic": 2}


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "which", lambda name: None)
    with pytest.raises(CompileError, match=r"needs a C\+\+ compiler"):
        dqn(True)
    automatic = dqn("auto")
    automatic.learner.start_run(None, COMPILE_FROM)
    assert not automatic.engine.compiled


def test_auto_compiles_long_runs_only() -> None:
    algorithm = dqn("auto")
    algorithm.learner.start_run(None, COMPILE_FROM - 1)
    assert not algorithm.engine.compiled
    assert not algorithm.compiled
    algorithm.learner.start_run(None, COMPILE_FROM)
    assert algorithm.engine.compiled
    assert algorithm.compiled
    never = dqn(False)
    never.learner.start_run(None, 10**9)
    assert not never.engine.compiled
    with pytest.raises(ConfigError, match="a bool or 'auto'"):
        DQNConfig(compile_graph="always")
    assert BCConfig().compile_graph == "auto"


class _Tape:
    """Records as CUDA does, on a CPU: nothing runs while it records; every replay fills the same tensors again.

    To know the result's names and shapes it runs the function once, and puts back what that changed.
    """

    def __init__(self, algorithm: Any) -> None:
        self.algorithm, self.recorded, self.replayed = algorithm, 0, 0

    def __call__(self, function: Any, generators: Any) -> Any:
        engine = self.algorithm.engine
        kept = [*engine.nets.parameters(), *engine.nets.buffers()]
        kept += [x for each in engine.optimizers.values() for s in each.state.values() for x in s.values()]
        values = [x.detach().clone() for x in kept]
        states = [torch.get_rng_state(), *(generator.get_state() for generator in generators)]
        result = function().map(torch.clone)
        with torch.no_grad():
            for x, value in zip(kept, values, strict=True):
                x.copy_(value)
        torch.set_rng_state(states[0])
        for generator, state in zip(generators, states[1:], strict=True):
            generator.set_state(state)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for kept, new in zip(result.tensors, function().tensors, strict=True):
                kept.copy_(new)

        return replay, result


def test_recorded_updates_are_the_updates() -> None:
    """The path of CUDA graphs as far as a CPU can go: own tensors, numbers of the steps, what is due, metrics."""
    plain, recorded = dqn(True), dqn(True)
    tape = _Tape(recorded)
    recorded.engine._updates._record = tape
    for step in range(20):
        first, second = plain.update(batch(step)), recorded.update(batch(step))
        assert float(first["loss"]) == float(second["loss"])
    assert set(differences(plain.engine, recorded.engine).values()) == {0.0}
    assert (tape.recorded, tape.replayed) == (2, 20 - 2 * program.RUNS_BEFORE_RECORDING)  # with and without a copy


@pytest.mark.slow
def test_noise_moves_on_in_programs_and_recordings() -> None:
    """Of noisy networks: the same batch and the same parameters have another loss each time, the same in all ways."""
    fields: dict[str, Any] = {
        "encoder_factory": VectorEncoderFactory([8], noisy=True),
        "q_func_factory": C51QFunctionFactory(n_atoms=5, dueling=[4], noisy=True),
        "learning_rate": 0.0,
    }
    ways = {"eager": dqn(False, **fields), "compiled": dqn(True, **fields), "recorded": dqn(True, **fields)}
    tape = ways["recorded"].engine._updates._record = _Tape(ways["recorded"])
    losses, states = {}, {}
    for way, algorithm in ways.items():
        torch.manual_seed(7)
        losses[way] = [float(algorithm.update(batch(0))["loss"]) for _ in range(9)]
        states[way] = torch.get_rng_state()
    assert tape.replayed > 2 and len(set(losses["eager"])) == 9
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-5)
    assert losses["recorded"] == losses["compiled"]
    assert torch.equal(states["eager"], states["compiled"]) and torch.equal(states["eager"], states["recorded"])


def test_a_recording_takes_batches_of_any_strides() -> None:
    """Expanded, transposed and shared tensors keep their signature, or updates would compile while being recorded."""

    def batch_from(first: float) -> Batch:
        observation = torch.arange(first, first + 12).reshape(3, 4).T
        action, reward = torch.arange(first, first + 8)[::2], torch.tensor(first).expand(4)
        return Batch(observation, action, reward, observation, torch.ones(4), torch.ones(4), extra={"steps": reward})

    seen: list[Batch] = []

    def updates(batch: Batch | None, scalars: Tensor) -> UpdateResult:
        assert batch is not None
        seen.append(batch)
        total = torch.stack([leaf.sum() for leaf in batch.leaves]).sum() + scalars.sum()
        return UpdateResult({"sum": total}, None, {})

    def record(function: Callable[[], UpdateResult], generators: Generators) -> tuple[Callable[[], object], Any]:
        result = function()
        return lambda: result.metrics["sum"].copy_(function().metrics["sum"]), result

    example = batch_from(0.0)
    recording = Recording(updates, example, torch.zeros(2), (), record)
    assert seen[0].signature == example.signature
    assert not {leaf.data_ptr() for leaf in seen[0].leaves} & {leaf.data_ptr() for leaf in example.leaves}
    for first in (5.0, 9.0):
        expected = updates(batch_from(first), torch.ones(2)).metrics["sum"]
        assert torch.equal(recording(batch_from(first), torch.ones(2)).metrics["sum"], expected)


def test_many_updates_in_one_recording() -> None:
    plain, recorded = dqn(True, target_update_interval=2), dqn(True, target_update_interval=2)
    tape = _Tape(recorded)
    recorded.engine._updates._record = tape
    generators = [torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)]
    data = torch.randn(50, 4)

    def draw(generator: torch.Generator) -> Batch:
        rows = torch.randint(49, (6,), generator=generator)
        return Batch(data[rows], rows % 3, data[rows, 0], data[rows + 1], torch.full((6,), 0.9), torch.ones(6))

    for _ in range(8):
        many = recorded.engine.update_many(lambda: draw(generators[1]), 4, [generators[1]])
        losses = [float(plain.update(draw(generators[0]))["loss"]) for _ in range(4)]
        assert many["loss"].tolist() == losses
    assert set(differences(plain.engine, recorded.engine).values()) == {0.0}
    assert plain.grad_step == recorded.grad_step == 32
    # the first call makes single updates, which compile both kinds
    assert (tape.recorded, tape.replayed) == (1, 7 - program.RUNS_BEFORE_RECORDING)


@pytest.mark.slow
def test_many_updates_see_a_later_reduce() -> None:
    seen: list[set[str]] = []
    algorithm = dqn(True, target_update_interval=2)
    algorithm.engine.update_many(lambda: batch(0), 2)
    algorithm.engine.reduce = lambda gradients: (seen.append(set(gradients)), gradients)[1]
    algorithm.engine.update_many(lambda: batch(1), 2)
    assert len(seen) == 2
    assert not algorithm.engine.records


def test_many_updates_that_cannot_be_compiled_are_made_without() -> None:
    """The second kind of update, with a copy of the target, fails to compile: no update may be made twice."""
    plain, failing = dqn(False, target_update_interval=2), dqn(False, target_update_interval=2)
    failing.engine.compile(required=False)
    function = failing.engine._updates._function

    def second_fails(due: Any) -> Any:
        if any(isinstance(step, TargetUpdate) for step in due):
            raise CompileError("no")
        return function(due)

    failing.engine._updates._function = second_fails
    with pytest.warns(RuntimeWarning, match="goes on without compiling: no"):
        failing.engine.update_many(lambda: batch(0), 4)
    for _ in range(4):
        plain.update(batch(0))
    assert failing.grad_step == 4
    assert max(differences(plain.engine, failing.engine).values()) < 1e-6


@pytest.mark.slow
def test_many_updates_with_a_schedule_are_made_one_by_one() -> None:
    factory = AdamFactory(lr_scheduler_factory=WarmupSchedulerFactory(5))
    algorithm = dqn(True, optim_factory=factory)
    losses = algorithm.engine.update_many(lambda: batch(0), 3)["loss"]
    assert losses.shape == (3,)
    assert algorithm.engine.schedulers["critic"].last_epoch == 3


@pytest.mark.slow
def test_delayed_actor_has_a_program_of_its_own() -> None:
    algorithms = []
    for compiled in (False, True):
        birl.seed(0)
        encoders = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
        algorithm = TD3Config(compile_graph=compiled, update_actor_interval=2, **encoders).create()
        algorithm.create_impl((4,), 3)
        metrics = [set(algorithm.update(batch(step, discrete=False))) for step in range(4)]
        assert metrics == [{"critic_loss", "q_value"}, {"critic_loss", "q_value", "actor_loss"}] * 2
        algorithms.append(algorithm)
    assert max(differences(*(each.engine for each in algorithms)).values()) < 1e-6
