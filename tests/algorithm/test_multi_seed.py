"""Many seeds at once: each ends where it would have ended alone."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import (
    DQNConfig,
    EDACConfig,
    RandomPolicyConfig,
    SACConfig,
)
from birl.cli import main
from birl.cli.common import runs_of_seeds
from birl.cli.plot import draw
from birl.dataset import InfiniteBuffer, MixedReplayBuffer, MultiStepTransitionPicker, ReplayBuffer
from birl.dataset.arrays import TorchPlace
from birl.engine.stacked_engine import StackedEngine
from birl.errors import ConfigError, NonFiniteError, ResumeError, UnsupportedError
from birl.logging import FileAdapterFactory, NoopAdapterFactory
from birl.metrics import EnvironmentEvaluator, TDErrorEvaluator
from birl.models import GRUEncoderFactory, IQNQFunctionFactory, VectorEncoderFactory
from birl.ope import FQEConfig
from birl.optimizers import (
    AdamFactory,
    CosineAnnealingLRFactory,
    GPTAdamWFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    WarmupSchedulerFactory,
)
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler
from tests.algorithms import ROWS, SEED_RUNS, SEEDS_ENCODER, SEEDS_FIELDS, Row, Run, fill, tiers
from tests.tiers import slow_but

SEEDS = (0, 3, 11)
STEPS = 24
# Float32 has 24 bits; Adam's first steps divide a gradient by its own size, which keeps a rounding's relative size.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def encoder(**options: Any) -> VectorEncoderFactory:
    return VectorEncoderFactory(hidden_units=[16, 16], **options)


def discrete(config: Any, **fields: Any) -> Any:
    return config(**{"batch_size": 8, "encoder_factory": encoder(), "learning_rate": 1e-3, **fields})


def continuous(config: Any, **fields: Any) -> Any:
    encoders = {"actor_encoder_factory": encoder(), "critic_encoder_factory": encoder()}
    return config(**{"batch_size": 8, "action_scaler": MinMaxActionScaler(-2.0, 2.0), **encoders, **fields})


@cache
def episodes(name: str) -> list[Any]:
    return list(birl.datasets.get_dataset(name)[0].episodes[:12])


def buffer(name: str, picker: Any = None) -> ReplayBuffer:
    return ReplayBuffer(InfiniteBuffer(), picker, episodes=episodes(name))


def data_for(config: Any) -> ReplayBuffer:
    discrete_actions = birl.ActionSpace.CONTINUOUS not in config.algorithm.actions
    return buffer("cartpole-random" if discrete_actions else "pendulum-random")


def alone(config: Any, seed: int, dataset: Any = None, **options: Any) -> Any:
    """What `fit_many` promises to agree with."""
    birl.seed(seed)
    made = data_for(config) if dataset is None else dataset()
    algorithm = config.create()
    options = {"n_steps": STEPS, "n_steps_per_epoch": 10, "show_progress": False, **options}
    algorithm.fit(made, **{"logger_adapter": NoopAdapterFactory(), **options})
    return algorithm


def together(config: Any, seeds: Sequence[int] = SEEDS, dataset: Any = None, **options: Any) -> list[Any]:
    options = {"n_steps": STEPS, "n_steps_per_epoch": 10, "show_progress": False, **options}
    made = data_for(config) if dataset is None else dataset()
    return birl.fit_many(config, made, seeds=seeds, **{"logger_adapter": NoopAdapterFactory(), **options})


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for part, item in value.items() for key, leaf in flat(item, f"{name}.{part}").items()}
    return {name: value}


def assert_close(one: Any, other: Any) -> None:
    """Networks, moments, counters and schedules agree up to rounding."""
    a, b = flat(one.engine.get_state()), flat(other.engine.get_state())
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, b[name], **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert value == pytest.approx(b[name]) if isinstance(value, float | list) else value == b[name], name


def same_bits(one: Any, other: Any) -> bool:
    a, b = flat(one.get_state()), flat(other.get_state())
    return a.keys() == b.keys() and all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for name in a)


def files_of(run: Path) -> dict[str, Any]:
    """Metrics of a run folder, times aside, and the names of all its files."""
    names = sorted(path.name for path in run.iterdir() if not path.name.startswith("."))  # no lock
    csv = {n: np.loadtxt(run / n, delimiter=",", ndmin=2) for n in names if n.endswith(".csv") and n[:5] != "time_"}
    return {"names": names, **csv}


# -- as alone ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", tiers(SEED_RUNS.values()))
def test_each_seed_is_the_run_it_would_be_alone(run: Run, tmp_path: Path) -> None:
    config = run.config
    options = {"experiment_name": "run", "with_timestamp": False}
    many = together(config, logger_adapter=FileAdapterFactory(tmp_path / "many"), **options)
    for seed, algorithm in zip(SEEDS, many, strict=True):
        one = alone(config, seed, logger_adapter=FileAdapterFactory(tmp_path / str(seed)), **options)
        assert_close(algorithm, one)
        found, expected = files_of(tmp_path / "many/run" / f"seed_{seed}"), files_of(tmp_path / str(seed) / "run")
        assert found.pop("names") == expected.pop("names")
        for file, rows in expected.items():
            # Values near 0 are means of outputs, which carry the rounding of all parameters.
            assert found[file] == pytest.approx(rows, rel=TOLERANCE["rtol"], abs=TOLERANCE["atol"]), file
        params = [(tmp_path / path / "params.json").read_text() for path in (f"many/run/seed_{seed}", f"{seed}/run")]
        assert params[0] == params[1]
        assert_close(birl.load_learnable(tmp_path / f"many/run/seed_{seed}/model_{STEPS}.d3"), one)
    first, second = (flat(each.engine.get_state()["nets"]) for each in many[:2])
    assert any((first[name] - second[name]).abs().max() > 1e-3 for name in first)


@pytest.mark.parametrize(
    "factory",
    [
        AdamFactory(clip_grad_norm=0.02, lr_scheduler_factory=CosineAnnealingLRFactory(T_max=20, eta_min=1e-5)),
        SGDFactory(clip_grad_norm=0.02, momentum=0.9, lr_scheduler_factory=WarmupSchedulerFactory(9)),
        GPTAdamWFactory(weight_decay=0.5),
        RMSpropFactory(),
    ],
    ids=["adam, clipped, cosine", "sgd, clipped, warmup", "gpt", "rmsprop"],
)
def test_optimisers_clipping_and_schedules_are_each_seeds_own(factory: Any) -> None:
    config = discrete(DQNConfig, optim_factory=factory)
    for seed, algorithm in zip(SEEDS[:2], together(config, SEEDS[:2]), strict=True):
        assert_close(algorithm, alone(config, seed))


def test_clipping_is_not_by_the_norm_of_all_seeds() -> None:
    """Seeds clipped together would move by less, the more of them there are."""
    config = discrete(DQNConfig, optim_factory=SGDFactory(clip_grad_norm=1e-3), learning_rate=1.0)

    def moved(seeds: Sequence[int]) -> float:
        weights: list[torch.Tensor] = []

        def keep(algorithm: Any, epoch: int, step: int) -> None:
            weights.append(torch.cat([p.detach().flatten() for p in algorithm.nets.critic.parameters()]))

        together(config, seeds, n_steps=2, callback=keep)
        return float((weights[len(seeds)] - weights[0]).norm())

    assert moved(range(6)) == pytest.approx(moved(range(1)), rel=1e-3)


def test_dropout_as_a_gpu_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one operation there, which has no generator of its own."""

    def fused(x: torch.Tensor, p: float, training: bool, inplace: bool) -> torch.Tensor:
        return torch.native_dropout(x, p, training)[0] if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", fused)
    config = discrete(DQNConfig, encoder_factory=encoder(dropout_rate=0.25))
    for seed, algorithm in zip(SEEDS[:2], together(config, SEEDS[:2]), strict=True):
        assert_close(algorithm, alone(config, seed))


def _into_a_view(x: torch.Tensor) -> torch.Tensor:
    noise = torch.zeros_like(x)
    noise[..., 0].normal_()
    return noise


def _seen_through_a_view(x: torch.Tensor) -> torch.Tensor:
    noise = torch.empty_like(x)
    view = noise.view(-1)
    noise.uniform_()
    return view.view_as(x)


@pytest.mark.parametrize("draw", [_into_a_view, _seen_through_a_view])
def test_numbers_drawn_in_place_are_seen_by_views(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(x: torch.Tensor, p: float, training: bool, inplace: bool) -> torch.Tensor:
        return x + p * draw(x) if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", noisy)
    config = discrete(DQNConfig, encoder_factory=encoder(dropout_rate=0.25))
    for seed, algorithm in zip(SEEDS[:2], together(config, SEEDS[:2]), strict=True):
        assert_close(algorithm, alone(config, seed))


def test_a_mixed_dataset_and_a_picker() -> None:
    def mixed() -> MixedReplayBuffer:
        parts = [buffer(name, MultiStepTransitionPicker(3, 0.99)) for name in ("cartpole-random", "cartpole-replay")]
        return MixedReplayBuffer(*parts, 0.25)

    config = discrete(DQNConfig, observation_scaler=StandardObservationScaler())
    for seed, algorithm in zip(SEEDS[:2], together(config, SEEDS[:2], dataset=mixed), strict=True):
        assert_close(algorithm, alone(config, seed, dataset=mixed))


def test_a_dataset_that_lies_on_a_device() -> None:
    """Rows are drawn there, from a generator that each seed has for itself."""

    class Placed(ReplayBuffer):
        def placed_for(self, device: torch.device, *, growing: bool = False) -> Any:
            return self.reader.mirrored(TorchPlace(torch.device("cpu")), growing=growing)

    def placed() -> Any:
        return Placed(InfiniteBuffer(), episodes=episodes("cartpole-random"))

    config = discrete(DQNConfig)
    for seed, algorithm in zip(SEEDS[:2], together(config, SEEDS[:2], dataset=placed), strict=True):
        birl.seed(seed)
        one, dataset = config.create(), placed()
        reader = dataset.placed_for(torch.device("cpu"))
        one.build_with_dataset(dataset)
        for _ in range(STEPS):
            one.update(one.sample_minibatch(reader))
        assert_close(algorithm, one)


def test_a_seed_can_be_trained_on_alone_afterwards() -> None:
    config = continuous(SACConfig)
    first, second = together(config, SEEDS[:2])
    sizes = [(p.untyped_storage().nbytes(), p.nbytes) for p in first.nets.parameters()]
    assert all(whole == own for whole, own in sizes)  # the memory of all seeds is not kept for one
    copied, dataset = copy.deepcopy(first), data_for(config)
    before = second.get_state()
    batches = [first.sample_minibatch(dataset) for _ in range(3)]
    for algorithm in (first, copied):
        torch.manual_seed(0)
        for batch in batches:
            algorithm.update(batch)
    assert same_bits(first, copied)
    assert first.grad_step == STEPS + 3
    assert flat(before).keys() == flat(second.get_state()).keys()
    assert all(np.array_equal(np.asarray(v), np.asarray(flat(second.get_state())[k])) for k, v in flat(before).items())


def test_evaluators_and_callbacks_see_each_seed_as_it_is() -> None:
    config = discrete(DQNConfig, q_func_factory=IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=4, embed_size=4))
    seen: dict[str, list[Any]] = {"many": [], "alone": []}

    def watch(where: str) -> Any:
        def callback(algorithm: Any, epoch: int, step: int) -> None:
            draws = (torch.rand(()).item(), np.random.random())  # callbacks may draw, and so change a run
            seen[where].append((epoch, step, algorithm.grad_step, *draws))

        return callback

    def evaluators(seed: int) -> dict[str, Any]:
        env = birl.envs.make_env("CartPole-v1")
        return {"environment": EnvironmentEvaluator(env, n_trials=1, seed=seed), "td": TDErrorEvaluator()}

    epochs: list[tuple[int, int]] = []
    options = {"n_steps": 6, "n_steps_per_epoch": 3}
    many = together(
        config,
        SEEDS[:2],
        evaluators=evaluators,
        callback=watch("many"),
        epoch_callback=lambda algorithm, epoch, step: epochs.append((epoch, algorithm.grad_step)),
        **options,
    )
    assert epochs == [(1, 3), (1, 3), (2, 6), (2, 6)]
    for index, seed in enumerate(SEEDS[:2]):
        seen["alone"].clear()
        birl.seed(seed)
        dataset, made = data_for(config), config.create()
        given = evaluators(seed)
        made.fit(dataset, callback=watch("alone"), evaluators=given, show_progress=False,
                 logger_adapter=NoopAdapterFactory(), **options)  # fmt: skip
        assert seen["many"][index::2] == seen["alone"]
        assert_close(many[index], made)


def test_the_callers_generators_and_dataset_are_left_alone() -> None:
    config = discrete(DQNConfig)
    episodes("cartpole-random")  # read before, as reading makes a generator

    def draws(train: bool) -> Any:
        birl.seed(5)
        dataset = data_for(config)
        if train:
            together(config, dataset=lambda: dataset, n_steps=2)
        after = data_for(config)
        numbers = torch.rand(3).tolist(), np.random.random(3).tolist()
        return numbers, *(d.sample_transition_batch(4).observations.tolist() for d in (dataset, after))

    assert draws(train=True) == draws(train=False)


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    slow_but(
        [("DQN", signal.SIGTERM)],
        [("DQN", signal.SIGTERM), ("SAC", signal.SIGINT), ("DoubleDQN dropout, layer norm", signal.SIGTERM)],
    ),
)
def test_a_resumed_run_ends_bit_for_bit_where_it_would_have(name: str, number: int, tmp_path: Path) -> None:
    config = SEED_RUNS[name].config

    def run(where: Path, callback: Any = None) -> list[Any]:
        options = {"experiment_name": "run", "with_timestamp": False, "checkpoint": where / "checkpoint"}
        return together(config, logger_adapter=FileAdapterFactory(where), callback=callback, **options)

    def stop(algorithm: Any, epoch: int, step: int) -> None:
        if step == 13 and not sent:  # a second signal would act at once
            sent.append(number)
            signal.raise_signal(number)

    sent: list[int] = []
    straight = run(tmp_path / "straight")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path / "stopped", stop)
    resumed = run(tmp_path / "stopped")
    for one, other, seed in zip(straight, resumed, SEEDS, strict=True):
        assert same_bits(one, other)
        folders = [tmp_path / where / "run" / f"seed_{seed}" for where in ("straight", "stopped")]
        for file in folders[0].iterdir():
            if not file.name.startswith(("time_", "metrics")):
                assert file.read_bytes() == (folders[1] / file.name).read_bytes(), file
    with pytest.raises(ResumeError, match="seeds"):
        together(config, (0, 1), checkpoint=tmp_path / "stopped/checkpoint")


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,), (2**32,), ("3",), (True,), 0, -1, True, "16"])
def test_seeds_that_are_none(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"seeds is .*a number of seeds, or different ints"):
        together(discrete(DQNConfig), seeds)


def test_a_number_of_seeds_and_wrong_arguments() -> None:
    made = together(discrete(DQNConfig), 2)
    assert len(made) == 2
    config, dataset = discrete(DQNConfig), data_for(discrete(DQNConfig))
    for wrong in (config.create(), DQNConfig, dataset):
        with pytest.raises(ConfigError, match="fit_many takes a configuration, such as"):
            birl.fit_many(wrong, dataset, 5)
    with pytest.raises(ConfigError, match="fit takes a dataset, got int"):
        birl.fit_many(config, 3, 5)


@pytest.mark.parametrize("row", [row for row in ROWS if row.single_seed], ids=lambda row: row.name)
def test_algorithms_whose_seeds_are_trained_one_by_one_say_so(row: Row) -> None:
    with pytest.raises(UnsupportedError, match=f"{row.single_seed}.*train each seed by itself"):
        together(fill(row.config, SEEDS_ENCODER, SEEDS_FIELDS))


def test_what_cannot_be_stacked_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    each = "train each seed by itself"
    with (
        monkeypatch.context() as unseen,
        pytest.raises(UnsupportedError, match=f"'critic_loss' cannot be computed.*{each}.*for the author of the loss"),
    ):
        unseen.setattr(birl.algorithm.multi_seed, "check_many", lambda algorithm: None)
        together(continuous(EDACConfig))
    with pytest.raises(ConfigError, match="FQE has no algorithm.*so train each seed separately"):
        together(FQEConfig(), dataset=lambda: data_for(continuous(SACConfig)))
    with pytest.raises(UnsupportedError, match="does not learn"):
        together(RandomPolicyConfig(), dataset=lambda: data_for(continuous(SACConfig)))
    with pytest.raises(UnsupportedError, match=f"a recurrent network .critic.*{each}"):
        together(discrete(DQNConfig, encoder_factory=GRUEncoderFactory()))
    with pytest.raises(UnsupportedError, match=f"optimiser Adafactor of the step 'critic'.*{each}"):
        together(discrete(DQNConfig, optim_factory=OptimizerFactory("Adafactor")))
    with pytest.raises(UnsupportedError, match=f"a _Other cannot be combined with fit_many.*{each}"):
        together(discrete(DQNConfig), dataset=_Other)


class _Other(birl.dataset.ReplayBufferBase):
    """A dataset of a user's own class."""

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Any:
        return self


_Other.__abstractmethods__ = frozenset()


def test_an_evaluator_that_remembers_is_not_shared() -> None:
    env = birl.envs.make_env("CartPole-v1")
    with pytest.raises(ConfigError, match="'environment' has a state.*lambda seed"):
        together(discrete(DQNConfig), evaluators={"environment": EnvironmentEvaluator(env)})


def test_names_and_directions_of_evaluators_are_checked_at_the_start() -> None:
    def mine(algo: Any, dataset: Any) -> float:
        raise AssertionError

    vars(mine)["direction"] = "up"
    for given in ({"mine": mine}, lambda seed: {"mine": mine}):
        with pytest.raises(ConfigError, match="direction of the evaluator 'mine' is 'up'"):
            together(discrete(DQNConfig), evaluators=given)
    with pytest.raises(ConfigError, match="evaluators has the name 'epoch'"):
        together(discrete(DQNConfig), evaluators={"epoch": lambda algo, dataset: 1.0})


def test_a_loss_that_is_not_finite_names_its_seed() -> None:
    config = discrete(DQNConfig, learning_rate=1e30, optim_factory=SGDFactory())
    with pytest.raises(NonFiniteError, match="seed_3/loss"):
        together(config, (0, 3))


def test_engines_that_differ_are_not_stacked() -> None:
    dataset = data_for(discrete(DQNConfig))
    engines = []
    for config in (discrete(DQNConfig), discrete(DQNConfig, encoder_factory=VectorEncoderFactory([8]))):
        algorithm = config.create()
        algorithm.build_with_dataset(dataset)
        engines.append(algorithm.engine)
    generators = [torch.Generator(), torch.Generator()]
    with pytest.raises(ConfigError, match="different configurations"):
        StackedEngine(engines, generators)
    with pytest.raises(ConfigError, match="2 engines with 1 generators"):
        StackedEngine(engines, generators[:1])


# -- the command -------------------------------------------------------------------------------------------------------

COMMAND = ["train", "DiscreteCQL", "--n-steps", "12", "--n-steps-per-epoch", "6"]
OPTIONS = ["--env-id", "CartPole-v1", "--n-trials", "1"]


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """A small file of data and a small minibatch, as words of the command."""
    file = tmp_path / "data.h5"
    buffer("cartpole-random").dump(file)
    return ["--dataset", str(file), "--set", "batch_size=8"]


def test_the_command_trains_seeds_as_it_trains_one(
    tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *data, *OPTIONS, "--seeds", "2", "--out", str(tmp_path / "many")]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [
        str(tmp_path / f"many/seed_{seed}/model_12.d3") for seed in (0, 1)
    ]
    for seed in (0, 1):
        assert main([*COMMAND, *data, *OPTIONS, "--seed", str(seed), "--out", str(tmp_path / f"{seed}")]) == 0
        one, many = files_of(tmp_path / f"{seed}"), files_of(tmp_path / f"many/seed_{seed}")
        best = {"model_best.d3", "model_best.json"}  # many seeds have no score
        assert set(one.pop("names")) - set(many.pop("names")) == {"run.json", "checkpoint.d3c"} | best
        assert one.keys() == many.keys() >= {"environment.csv", "loss.csv"}
        assert all(many[name] == pytest.approx(rows, rel=1e-4) for name, rows in one.items())
        models = [birl.load_learnable(tmp_path / where / "model_12.d3") for where in (f"{seed}", f"many/seed_{seed}")]
        assert_close(*models)
    capsys.readouterr()
    assert main(["plot", str(tmp_path / "many"), str(tmp_path / "0"), "--save", str(tmp_path / "p.png")]) == 0
    drawn = [tmp_path / where / "environment.csv" for where in ("many/seed_0", "many/seed_1", "0")]
    assert capsys.readouterr().out == f"{tmp_path / 'p.png'}: {', '.join(map(str, drawn))}\n"


def test_a_curve_of_several_seeds_is_their_mean(tmp_path: Path) -> None:
    files = []
    for seed, values in ((0, (1, 2, 3)), (1, (3, 4)), (10, (5, 6, 7))):  # seed 1 was stopped early
        folder = tmp_path / f"seed_{seed}"
        folder.mkdir()
        files.append(folder / "loss.csv")
        files[-1].write_text("".join(f"{epoch},{10 * epoch},{value}\n" for epoch, value in enumerate(values, 1)))
    figure = draw([files, files[:1]], ["all", "one"], show_steps=True, window=2)
    lines = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in figure.axes[0].lines]
    assert lines == [
        ([10, 20], [3, 3.5]),
        *(([10, 20], [value, value + 0.5]) for value in (1, 3, 5)),
        ([10, 20, 30], [1, 1.5, 2.5]),
    ]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["all", "one"]
    assert runs_of_seeds(tmp_path) == [file.parent for file in files]


def test_the_command_goes_on_and_starts_over(
    tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*COMMAND, *data, "--seeds", "3,5", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    before = (tmp_path / "run/seed_5/model_12.d3").read_bytes()
    assert main(words) == 0
    assert "nothing left to do" in capsys.readouterr().err
    assert main([*words[:-4], "--seeds", "3,6", "--out", words[-1]]) == 1
    assert "seeds was [3, 5]" in capsys.readouterr().err
    (tmp_path / "run/seed_5/mine.txt").write_text("kept")
    assert main([*words, "--fresh"]) == 0
    assert (tmp_path / "run/seed_5/model_12.d3").read_bytes() == before
    assert (tmp_path / "run/seed_5/loss.csv").read_text().count("\n") == 2
    assert (tmp_path / "run/seed_5/mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "a number of seeds"),
        (["--seeds", "x"], "a number of seeds"),
        (["--seeds", "3,3"], "different seeds"),
        (["--seeds", "3,-1"], "different seeds"),
        (["--seeds", "3", "--seed", "2"], "leave one out"),
        (["--seeds", "2", "--set", "encoder_factory=gru"], "train each seed by itself"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], message: str, tmp_path: Path, data: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *data, *words, "--out", str(tmp_path / "run")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path: Path, data: list[str]) -> None:
    words = [sys.executable, "-m", "birl", *COMMAND, *data, "--seeds", "2"]
    words += ["--n-steps", "4000", "--n-steps-per-epoch", "400"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    straight, stopped = ([*words, "--out", str(tmp_path / name)] for name in ("straight", "stopped"))
    subprocess.run(straight, check=True, env=environment, capture_output=True)
    process = subprocess.Popen(stopped, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "epoch 3" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    subprocess.run(stopped, check=True, env=environment, capture_output=True)
    for seed in (0, 1):
        one, other = (
            birl.load_learnable(tmp_path / name / f"seed_{seed}/model_4000.d3") for name in ("straight", "stopped")
        )
        assert same_bits(one, other)
