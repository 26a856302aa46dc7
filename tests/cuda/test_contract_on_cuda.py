"""Every algorithm keeps the contract on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from birl.testing import CHECKS, Subject, check_algorithm
from birl.testing.contract.states import snapshot
from tests.algorithms import CONTRACT_RUNS, Run

CHECKED = [name for name in CHECKS if not name.startswith("export") and name != "follows_rewards"]
"""Exports are run on a CPU, and what learns is shown there."""

OTHER_ORDER = ("CQL", "CalQL", "DroQ", "REDQ")
"""Of these, compilers before torch 2.13 draw the random numbers of an update in another order, on a CPU too."""

UPDATES = 8
"""Of which the first three of a kind are made by a program, the others by a recording of it."""


@pytest.mark.parametrize("run", CONTRACT_RUNS, ids=lambda run: run.name)
def test_contract(run: Run) -> None:
    discrete = run.variant.discrete
    check_algorithm(run.config, action_size=run.action_size, discrete_action=discrete, checks=CHECKED, device="cuda")


@pytest.mark.parametrize("run", CONTRACT_RUNS, ids=lambda run: run.name)
def test_recorded_updates_equal_compiled_ones_bit_for_bit_and_eager_ones_up_to_rounding(run: Run) -> None:
    """Adam makes a step of whole length of a gradient that is nothing but rounding: of few weights."""
    found: dict[str, dict[str, Tensor]] = {}
    for way in ("eager", "compiled", "recorded"):
        subject = Subject(run.config, action_size=run.action_size, discrete_action=run.variant.discrete, device="cuda")
        algorithm = subject.with_config(compile_graph=way != "eager", compile=False).build()
        assert way == "eager" or algorithm.engine.compiled
        if way == "compiled" and algorithm.engine.records:
            algorithm.engine._updates._record = None
        for item in subject.inputs(algorithm, UPDATES):
            torch.manual_seed(0)
            algorithm.update(item)
        found[way] = snapshot(algorithm.nets)
    assert all(torch.equal(found["compiled"][name], tensor) for name, tensor in found["recorded"].items())
    if run.config.algorithm.__name__ in OTHER_ORDER and torch.torch_version.TorchVersion(torch.__version__) < (2, 13):
        pytest.xfail("compiled updates draw in another order before torch 2.13")
    apart = torch.cat([(found["eager"][name] - found["compiled"][name]).abs().flatten() for name in found["eager"]])
    assert float((apart > 2e-4).float().mean()) < 0.01 and float(apart.max()) < 1e-2
