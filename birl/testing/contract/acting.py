"""Checks of actions of the policy and of its exports."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from birl.algorithm import Algorithm, TransformerAlgorithm
from birl.errors import UnsupportedError, require
from birl.preprocessing import MinMaxActionScaler
from birl.testing.contract.subject import EPISODE, Subject
from birl.testing.learning import greedy_actor
from birl.types import Array, Tree, tree_leaves, tree_map

_DRAWN = 4000  # actions, to compare their frequencies with their probabilities


def actions_in_bounds(subject: Subject) -> None:
    """Greedy and sampled actions are within the bounds of the action scaler."""
    actions = subject.actions
    low, high = (0.0, _last(actions)) if actions.discrete else (-3.0, 5.0)
    expected = actions.storage_spec.dtype.kind, (64, *actions.shape)
    if not actions.discrete:
        bounds = (np.full(actions.shape, bound, np.float32) for bound in (low, high))
        subject = subject.with_config(action_scaler=MinMaxActionScaler(*bounds))
    algorithm = subject.build()
    for item in subject.inputs(algorithm, 2):
        algorithm.update(item)
    for size in (1.0, 1e3):
        x = subject.observations(64, size)
        for greedy in (True,) if subject.experience.contexts else (True, False):
            action = subject.act(algorithm, x, greedy)
            assert (action.dtype.kind, action.shape) == expected, f"actions are {action.dtype}{action.shape}"
            inside = (action >= low - 1e-5) & (action <= high + 1e-5)
            assert inside.all(), f"an action is out of bounds: {action[~inside][:3]}"


def _last(actions: Any) -> Array:
    """Return the last option of each choice."""
    return np.subtract(actions.sizes if actions.shape else actions.size, 1.0)


def greedy_is_greedy(subject: Subject) -> None:
    """Greedy actions are not drawn like samples."""
    algorithm = subject.build()
    if subject.experience.contexts or not algorithm.acts.explores:
        return
    x = subject.observations(64)
    spread = {}
    for greedy in (True, False):
        first, second = (subject.act(algorithm, x, greedy).astype(np.float64) for _ in range(2))
        spread[greedy] = np.abs(first - second).mean()
    assert spread[True] <= 0.5 * spread[False], (
        "greedy actions for the same observations differ from call to call as samples do: `Policy.greedy` must return "
        "the mode, with dropout and noise off"
    )


def samples_have_their_probabilities(subject: Subject) -> None:
    """`action_probability` equals the frequencies of `sample_action`, or the policy declares that it has no density."""
    actions = subject.actions
    if not actions.discrete:
        low, high = np.full(actions.shape, -3.0, np.float32), np.full(actions.shape, 5.0, np.float32)
        subject = subject.with_config(action_scaler=MinMaxActionScaler(low, high))
    algorithm = subject.build()
    x = tree_map(lambda leaf: np.repeat(leaf, _DRAWN, 0), subject.observations(1))
    if subject.experience.contexts:
        return
    drawn = algorithm.sample_action(x)
    try:
        probability = algorithm.action_probability(x, drawn)
    except UnsupportedError:
        return
    if actions.discrete:
        taken, where, count = np.unique(drawn, axis=0, return_inverse=True, return_counts=True)
        stated = probability[np.unique(where.reshape(-1), return_index=True)[1]]
        assert np.abs(stated - count / _DRAWN).max() < 0.06, (
            f"actions {taken.tolist()} are drawn with the frequencies {count / _DRAWN}, "
            f"action_probability states {stated}"
        )
        return
    # the mean of 1 / density over the samples in a box is the box's volume
    lower, upper = np.quantile(drawn, (0.25, 0.75), 0)
    inside = ((drawn > lower) & (drawn < upper)).all(-1)
    volume = (inside / probability).mean() / np.prod(upper - lower)
    assert abs(volume - 1) < 0.2, (
        f"densities of sampled actions are {volume:.3g} times too low: `Policy.distribution` must describe what "
        "`Policy.sample` draws from"
    )


def export(suffix: str) -> Callable[[Subject], None]:
    """Make a check that an exported policy acts like the policy itself; recurrent policies act over episodes."""

    def check(subject: Subject) -> None:
        algorithm = subject.build()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"policy{suffix}"
            for item in subject.inputs(algorithm, 2):
                algorithm.update(item)
            algorithm.save_policy(path, **({"batched": True} if subject.experience.contexts else {}))
            for rows in (1, 37):
                for expected, got in _pairs(subject, algorithm, path, rows):
                    assert got.shape == expected.shape, f"an export gives {got.shape} instead of {expected.shape}"
                    assert np.allclose(got, expected, atol=1e-5), f"{suffix}: an exported policy acts differently"

    return check


def _pairs(subject: Subject, algorithm: Algorithm[Any, Any], path: Path, rows: int) -> Iterator[tuple[Array, Array]]:
    """Yield outputs of an algorithm and of its export for the same inputs."""
    if isinstance(algorithm, TransformerAlgorithm):
        context = subject.contexts(algorithm, rows)
        expected = subject.actions.greedy(torch.as_tensor(algorithm.predict_context(*context))).numpy()
        yield expected, run_export(path, context, context_names(context))
    elif algorithm.engine.recurrent:
        run, sizes = open_export(path)
        x = subject.observations(2 * EPISODE * rows)
        state = [np.zeros((rows, size), np.float32) for size in sizes.values()]
        actor = greedy_actor(algorithm, 1.0, rows)
        for step in range(2 * EPISODE):
            now = tree_map(lambda leaf, step=step: leaf[step * rows : (step + 1) * rows], x)
            begins = (step + np.arange(rows)) % EPISODE == 0  # the episodes of rows begin at different steps
            state = [each * ~begins[:, None] for each in state]
            expected = actor(now, begins, np.zeros(rows, np.float32))
            for name, each in zip(sizes, state, strict=True):
                yield actor.extra[name.replace("state_", "state.", 1)], each
            given = dict(zip((*_input_names(now), *sizes), (*tree_leaves(now), *state), strict=True))
            action, *state = run(given)
            yield expected, action
    else:
        x = subject.observations(rows)
        yield algorithm.predict(x), run_export(path, x)


def context_names(context: Tree) -> list[str]:
    """Return input names of an exported sequence model."""
    observations = [f"observation_{index}" for index, _ in enumerate(tree_leaves(context[0]))]
    return [*observations, "action", "return_to_go", "timestep"]


def _input_names(x: Tree) -> list[str]:
    return [f"input_{index}" for index, _ in enumerate(tree_leaves(x))]


def run_export(path: Path, x: Tree, names: Sequence[str] | None = None) -> Array:
    """Return actions of an exported policy without states."""
    run, _ = open_export(path)
    return run(dict(zip(names or _input_names(x), tree_leaves(x), strict=True)))[0]


def open_export(path: Path) -> tuple[Callable[[Mapping[str, Array]], list[Array]], dict[str, int]]:
    """Return a function from inputs by name to the outputs of an exported policy, and the sizes of its states."""
    extra: dict[str, Any] = {"states": ""}
    if path.suffix == ".onnx":
        session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        extra |= session.get_modelmeta().custom_metadata_map
        return partial(session.run, None), json.loads(extra["states"] or "{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit warns that it is deprecated
        if path.suffix == ".pt":
            policy = torch.jit.load(path, _extra_files=extra)
        else:
            policy = torch.export.load(path, extra_files=extra).module()

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        outputs = policy(*map(torch.from_numpy, inputs.values()))
        return [each.detach().numpy() for each in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]

    return run, json.loads(extra["states"] or "{}")
