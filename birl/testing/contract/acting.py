"""Actions of the policy, and of its exported files."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from birl.errors import UnsupportedError, require
from birl.preprocessing import MinMaxActionScaler
from birl.testing.contract.subject import Subject
from birl.types import Array, Tree, tree_leaves


def actions_in_bounds(subject: Subject) -> None:
    """Greedy and sampled actions are within the bounds of the action scaler."""
    actions = subject.actions
    low, high = (0.0, actions.size - 1.0) if actions.discrete else (-3.0, 5.0)
    expected = actions.leaf.dtype.kind, (64, *actions.shape)
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
        "greedy actions for the same observations differ from call to call as samples do: `Policy.greedy` is to take "
        "the mode, with dropout and noise off"
    )


def export(suffix: str) -> Callable[[Subject], None]:
    """A check that an exported policy acts like the policy itself."""

    def check(subject: Subject) -> None:
        algorithm = subject.build()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"policy{suffix}"
            if algorithm.engine.recurrent:
                try:
                    algorithm.save_policy(path)
                except UnsupportedError:
                    assert not list(Path(folder).iterdir()), "a refused export leaves a file"
                    return
                raise AssertionError("a policy with a memory was exported without it")
            for item in subject.inputs(algorithm, 2):
                algorithm.update(item)
            algorithm.save_policy(path, **({"batched": True} if subject.experience.contexts else {}))
            for rows in (1, 37):
                if subject.experience.contexts:
                    x = subject.contexts(algorithm, rows)
                    expected = algorithm.predict_context(*x)
                    expected = subject.actions.greedy(expected)
                    got = run_export(path, x, context_names(x))
                else:
                    x = subject.observations(rows)
                    expected, got = algorithm.predict(x), run_export(path, x)
                assert got.shape == expected.shape, f"an exported policy gives {got.shape} instead of {expected.shape}"
                assert np.allclose(got, expected, atol=1e-5), f"{suffix}: an exported policy acts differently"

    return check


def context_names(context: Tree) -> list[str]:
    """Input names of an exported sequence model."""
    observations = [f"observation_{index}" for index, _ in enumerate(tree_leaves(context[0]))]
    return [*observations, "action", "return_to_go", "timestep"]


def run_export(path: Path, x: Tree, names: Sequence[str] | None = None) -> Array:
    """Actions of an exported policy."""
    leaves = list(tree_leaves(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit says that it is deprecated
        if path.suffix != ".onnx":
            policy = torch.jit.load(path) if path.suffix == ".pt" else torch.export.load(path).module()
            return policy(*map(torch.from_numpy, leaves)).detach().numpy()  # type: ignore[no-any-return]
        session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = names or [f"input_{index}" for index, _ in enumerate(leaves)]
        return session.run(None, dict(zip(names, leaves, strict=True)))[0]  # type: ignore[no-any-return]
