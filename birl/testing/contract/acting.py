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
    low, high = np.array([-3.0] * subject.action_size), np.array([5.0] * subject.action_size)
    config = subject
    if not subject.discrete:
        scaler = MinMaxActionScaler(minimum=low.astype(np.float32), maximum=high.astype(np.float32))
        config = subject.with_config(action_scaler=scaler)
    algorithm = config.build()
    for item in config.inputs(algorithm, 2):
        algorithm.update(item)
    for size in (1.0, 1e3):
        x = subject.observations(64, size)
        for greedy in (True, False):
            if subject.experience.contexts and not greedy:
                continue
            action = subject.act(algorithm, x, greedy)
            if subject.discrete:
                assert action.shape == (64,) and action.dtype.kind == "i", f"actions are {action.dtype}{action.shape}"
                inside = (action >= 0) & (action < subject.action_size)
            else:
                assert action.shape == (64, subject.action_size), f"actions have shape {action.shape}"
                inside = (action >= low - 1e-5) & (action <= high + 1e-5)
            assert inside.all(), f"an action is out of bounds: {action[~inside][:3]}"


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
            algorithm.save_policy(path)
            for rows in (1, 37):
                if subject.experience.contexts:
                    x = subject.contexts(algorithm, rows)
                    expected = algorithm.predict_context(*x)
                    expected = expected.argmax(-1) if subject.discrete else expected
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
        if path.suffix == ".pt":
            return torch.jit.load(path)(*map(torch.from_numpy, leaves)).detach().numpy()  # type: ignore[no-any-return]
        if path.suffix == ".pt2":
            return torch.export.load(path).module()(*map(torch.from_numpy, leaves)).detach().numpy()  # type: ignore[no-any-return]
        session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = names or [f"input_{index}" for index, _ in enumerate(leaves)]
        return session.run(None, dict(zip(names, leaves, strict=True)))[0]  # type: ignore[no-any-return]
