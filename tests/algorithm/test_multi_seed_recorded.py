"""Many seeds as whole recorded updates, as far as a CPU can go: programs are traced but not compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import birl
from birl.algos import DQNConfig, SACConfig, TD3Config
from birl.dataset import InfiniteBuffer, ReplayBuffer
from birl.dataset.arrays import TorchPlace
from birl.engine import compiler
from birl.engine.stacked_engine import StackedEngine, _StackedProgram
from birl.errors import CompileError
from birl.optimizers import AdamFactory
from tests.algorithm.test_multi_seed import SEEDS, assert_close, continuous, discrete, episodes, same_bits, together
from tests.engine.test_compiled import _Tape
from tests.tiers import slow_but

CONFIGS = {
    "DQN": discrete(DQNConfig, target_update_interval=5, optim_factory=AdamFactory(clip_grad_norm=0.02)),
    "SAC": continuous(SACConfig),
    "TD3": continuous(TD3Config),
}
EPOCHS = {"n_steps": 60, "n_steps_per_epoch": 20}


class Placed(ReplayBuffer):
    """Its rows are drawn on the device, as those of data that fit there."""

    def placed_for(self, device: torch.device, *, growing: bool = False) -> Any:
        return self.reader.mirrored(TorchPlace(torch.device("cpu")), growing=growing)


def placed(name: str) -> ReplayBuffer:
    return Placed(InfiniteBuffer(), episodes=episodes("cartpole-random" if name == "DQN" else "pendulum-random"))


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[_Tape]:
    """Updates of many seeds are recorded on these."""
    made: list[_Tape] = []

    def record(engine: StackedEngine) -> None:
        made.append(_Tape(SimpleNamespace(engine=engine._trained)))
        engine._program = _StackedProgram(engine, engine._trained, made[-1])

    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    monkeypatch.setattr(StackedEngine, "record", record)
    return made


def recorded(name: str, **options: Any) -> list[Any]:
    config = replace(CONFIGS[name], compile_graph=True)
    return together(config, SEEDS[:2], dataset=lambda: placed(name), **{**EPOCHS, **options})


@pytest.mark.parametrize("name", slow_but(["DQN"], list(CONFIGS)))
def test_each_seed_is_the_run_it_would_be_alone(name: str, tapes: list[_Tape]) -> None:
    many = recorded(name)
    for seed, algorithm in zip(SEEDS[:2], many, strict=True):
        birl.seed(seed)
        one, dataset = CONFIGS[name].create(), placed(name)
        reader = dataset.placed_for(torch.device("cpu"))
        one.build_with_dataset(dataset)
        for _ in range(EPOCHS["n_steps"]):
            one.update(one.sample_minibatch(reader))
        assert_close(algorithm, one)
    assert [tape.recorded > 0 and tape.replayed > 0 for tape in tapes] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_ends_bit_for_bit_where_it_would_have(name: str, tapes: list[_Tape], tmp_path: Path) -> None:
    """Its first update is made by a program, too: an eager one would round in another way."""
    straight = recorded(name)
    recorded(name, n_steps=20, checkpoint=tmp_path / "run")
    for one, other in zip(straight, recorded(name, checkpoint=tmp_path / "run"), strict=True):
        assert same_bits(one, other)
    assert len(tapes) == 3


def test_what_cannot_be_compiled_is_trained_without(tapes: list[_Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, due: Any) -> Any:
        raise CompileError("no")

    eager = together(CONFIGS["SAC"], SEEDS[:2], dataset=lambda: placed("SAC"), **EPOCHS)
    monkeypatch.setattr(_StackedProgram, "_function", fails)
    with pytest.raises(CompileError, match="no"):
        recorded("SAC")
    monkeypatch.setattr("birl.algorithm.multi_seed.COMPILE_FROM", 1)
    with pytest.warns(RuntimeWarning, match="goes on without compiling: no"):
        found = together(CONFIGS["SAC"], SEEDS[:2], dataset=lambda: placed("SAC"), **EPOCHS)
    assert len(tapes) == 2
    for one, other in zip(eager, found, strict=True):
        assert same_bits(one, other)
