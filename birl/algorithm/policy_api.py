"""The methods of everything that acts: an algorithm, or a policy made of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from birl.acting.built_policy import BuiltPolicy
from birl.algorithm import persistence
from birl.algorithm.export_schema import write_schema
from birl.dataset.log_record import LogRecord
from birl.errors import ConfigError
from birl.spaces.specs import Spec
from birl.types import Array, Tree


class PolicyAPI:
    """Base of algorithms and policies."""

    @property
    def acting(self) -> BuiltPolicy:
        """Its policy, with networks and units."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """Its observations and actions."""
        return self.acting.spec

    @property
    def logs(self) -> LogRecord | None:
        """The logs that it has learned from; ``None`` if its datasets were not made from logs."""
        raise NotImplementedError

    def serving_description(self) -> dict[str, Any]:
        """Return a description in JSON form for programs that serve it: ``type``, ``draws`` and parameters."""
        return {"type": type(self).__name__, "draws": False}

    def predict(self, x: Tree) -> Array:
        """Greedy actions.

        Args:
            x: observations ``[B, *shape]`` (a tree of arrays for tuple and dict observations). Recurrent policies see
                each as the start of an episode; `actor` keeps their state.

        Returns:
            ``[B, A]`` in environment units, or integers ``[B]``.
        """
        return self.acting.predict(x, greedy=True)

    def sample_action(self, x: Tree) -> Array:
        """Actions sampled from the policy; the greedy ones if it is deterministic. See `predict`."""
        return self.acting.predict(x, greedy=False)

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Natural logarithms of the probabilities with which `sample_action` gives actions; see `action_probability`.

        Args:
            x: observations ``[B, *shape]``, as in `predict`.
            action: ``[B, A]`` in environment units, or integers ``[B]`` or ``[B, 1]``; ``None`` for every action, where
                actions are one choice.
            greedy: whether of `predict` instead.

        Returns:
            float64 ``[B]``, or ``[B, n_actions]`` of every action; minus infinity for actions that are never taken.
        """
        return self.acting.log_probability(x, action, greedy)

    def action_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Probabilities with which `sample_action` gives actions; densities, if actions are quantities.

        Densities count in the units of the environment. Where samples are clipped to bounds, as those of PPO are, an
        action at a bound has the probability of all that lies beyond it, in place of a density: what was logged there
        was clipped, too, and ratios of two policies are right. The arguments are those of `action_log_probability`.

        Raises:
            UnsupportedError: if no probability is known: actions are quantities and nothing is drawn, or are drawn in a
                way without a density in closed form. `birl.ope.Gaussian` has one.
            ConfigError, ShapeError, ActionError: if actions are missing or do not fit; the message names them.
        """
        probability: Array = np.exp(self.action_log_probability(x, action, greedy=greedy))
        return probability

    def action_values(self, x: Tree) -> Array:
        """Values ``[B, A]`` of all discrete actions (of several choices ``[B, D, A]``); -inf where one is not allowed.

        Raises `UnsupportedError` if it does not choose by action-values, as DQN and its kind do. See `predict`.
        """
        return self.acting.action_values(x)

    def save_policy(self, fname: str | Path) -> None:
        """Export the greedy policy with its scalers: ``.pt`` (TorchScript), ``.onnx`` or ``.pt2`` (torch.export).

        The file needs no birl. It is checked against the policy itself before it gets its name. It takes float32.
        Recurrent policies take their states, too, and give the new ones; states are zeros where an episode begins, and
        the entry ``states`` of the file's metadata has their names and sizes.
        """
        persistence.save_policy(self.acting, fname)

    def export(self, fname: str | Path, logs: LogRecord | None = None, **options: bool) -> Path:
        """Export as ONNX (`save_policy`), and write ``<name>.schema.json`` next to it, with its inputs and outputs.

        The schema has the columns of observations in their order, with what each becomes, categories and missing
        values included; the column of masks, the actions, what the policy draws, names, dtypes and shapes of inputs and
        outputs, and the digest of the ONNX file. See `birl.algorithm.export_schema`.

        Args:
            fname: path that ends with ``.onnx``.
            logs: whose columns it reads (`ReplayBuffer.logs`); by default those that it learned from. Of data that were
                no logs columns have numbers.
            **options: passed to `save_policy`.

        Returns:
            Where the schema lies.

        Raises:
            ConfigError: for another suffix, or if the policy does not read such logs.
        """
        file = Path(fname)
        if file.suffix != ".onnx":
            raise ConfigError(f"{str(fname)!r:.200} does not end with .onnx, which the schema is for: use save_policy")
        self.save_policy(file, **options)
        return write_schema(file, self.spec, self.serving_description(), self.logs if logs is None else logs)
