"""Checks of seeds, saved files and restored states."""

from __future__ import annotations

import copy
import io

import numpy as np

from birl.algorithm import load_learnable
from birl.testing.contract.states import differences, set_torch_generators, torch_generators
from birl.testing.contract.subject import Subject


def same_seed_same_result(subject: Subject) -> None:
    """The same seed gives the same result, and different seeds give different results."""
    states = []
    for seed in (subject.seed, subject.seed, subject.seed + 1):
        algorithm = subject.build(seed)
        for item in subject.inputs(algorithm, 3):
            algorithm.update(item)
        states.append(algorithm.get_state())
    differing = differences(states[0], states[1])
    assert not differing, f"two runs of one seed differ in {differing[:5]}"
    assert differences(states[0]["engine"]["nets"], states[2]["engine"]["nets"]), "two seeds give the same networks"


def save_load_continue(subject: Subject) -> None:
    """A saved and loaded algorithm continues to learn exactly like the original."""
    algorithm = subject.build()
    items = subject.inputs(algorithm, 6)
    for item in items[:3]:
        algorithm.update(item)
    file = io.BytesIO()
    algorithm.save(file)
    state, rng = copy.deepcopy(algorithm.get_state()), torch_generators()
    for item in items[3:]:
        algorithm.update(item)
    expected = algorithm.get_state()
    expected_actions = subject.act(algorithm, subject.observations(5))

    file.seek(0)
    loaded = load_learnable(file, subject.device)
    assert loaded.config.serialize() == algorithm.config.serialize(), "the loaded configuration is another one"
    assert loaded.grad_step == state["engine"]["grad_step"], f"grad_step is {loaded.grad_step} after loading"
    restored = subject.build(subject.seed + 1)
    restored.set_state(state)
    for name, other in (("load", loaded), ("set_state", restored)):
        set_torch_generators(rng)
        for item in items[3:]:
            other.update(item)
        differing = differences(expected, other.get_state())
        assert not differing, f"after {name} training continues differently in {differing[:5]}"
        set_torch_generators(rng)
        actions = subject.act(other, subject.observations(5))
        assert np.array_equal(expected_actions, actions), f"after {name} the policy acts differently"
