"""The acting methods that algorithms and the policies made from them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from birl.acting.built_policy import BuiltPolicy
from birl.algorithm import persistence
from birl.algorithm.export_schema import write_schema
from birl.checks import named_arguments
from birl.dataset.log_record import LogRecord
from birl.errors import ConfigError
from birl.spaces.conversion import Columns
from birl.spaces.specs import Spec
from birl.types import Array, Tree


class PolicyAPI:
    """Base of algorithms and policies."""

    @property
    def acting(self) -> BuiltPolicy:
        """The policy, with networks and units."""
        raise NotImplementedError

    @property
    def spec(self) -> Spec:
        """The spec of observations and actions."""
        return self.acting.spec

    @property
    def logs(self) -> LogRecord | None:
        """The logs that it has learned from; ``None`` if its datasets were not made from logs."""
        raise NotImplementedError

    @property
    def columns(self) -> Columns:
        """The names of the columns of the tables that it has learned from, as in `birl.dataset.DatasetInfo`.

        Tables that are given to `predict`, `action_probability` and other methods are read by these names.
        """
        return self.acting.columns

    def serving_description(self) -> dict[str, Any]:
        """Return a description in JSON form for programs that serve it: ``type``, ``draws`` and parameters."""
        return {"type": type(self).__name__, "draws": False}

    @named_arguments
    def predict(self, x: Tree) -> Array:
        """Return greedy actions.

        Args:
            x: observations ``[B, *shape]`` (a tree of arrays for tuple and dict observations). If it has learned from
                a table, the columns of a table may have any order. A recurrent policy treats each as the start of an
                episode; `actor` keeps its state.

        Returns:
            ``[B, A]`` in environment units, or integers ``[B]``.
        """
        return self.acting.predict(x, greedy=True)

    @named_arguments
    def sample_action(self, x: Tree) -> Array:
        """Sample actions from the policy. A deterministic policy gives greedy actions. See `predict`."""
        return self.acting.predict(x, greedy=False)

    def action_log_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Return log-probabilities (natural) of actions under `sample_action`; see `action_probability`.

        Args:
            x: observations ``[B, *shape]``, as in `predict`.
            action: ``[B, A]`` in environment units, or integers ``[B]`` or ``[B, 1]``; ``None`` for all actions of a
                discrete action space.
            greedy: whether to return the log-probabilities under `predict` instead.

        Returns:
            float64 ``[B]``, or ``[B, n_actions]`` for all actions; minus infinity for actions that are never taken.
        """
        return self.acting.log_probability(x, action, greedy)

    def action_probability(self, x: Tree, action: Array | None = None, *, greedy: bool = False) -> Array:
        """Return probabilities of actions under `sample_action`, or densities for continuous actions.

        Densities are in the units of the environment. If samples are clipped to bounds, as PPO's are, an action at a
        bound has the probability of everything beyond the bound instead of a density: logged actions at a bound were
        clipped, too, so ratios of two policies are correct. The arguments are those of `action_log_probability`.

        Raises:
            UnsupportedError: if no probability is known, because continuous actions are deterministic or their
                distribution has no density in closed form. `birl.ope.Gaussian` has a density.
            ConfigError, ShapeError, ActionError: if actions are missing or do not fit; the message names them.
        """
        probability: Array = np.exp(self.action_log_probability(x, action, greedy=greedy))
        return probability

    def action_values(self, x: Tree) -> Array:
        """Return the values ``[B, A]`` of all discrete actions (``[B, D, A]`` for several choices). See `predict`.

        Actions that are not allowed have the value -inf.

        Raises:
            UnsupportedError: if the policy does not select actions by their values, as DQN's does.
        """
        return self.acting.action_values(x)

    def save_policy(self, fname: str | Path) -> None:
        """Export the greedy policy with its scalers: ``.pt`` (TorchScript), ``.onnx`` or ``.pt2`` (torch.export).

        The file needs no birl. Before it gets its name, its outputs are compared with the policy's. Its inputs are
        float32. A recurrent policy also takes its states and returns the new ones. States are zeros at the start of an
        episode; their names and sizes are in the entry ``states`` of the file's metadata.
        """
        persistence.save_policy(self.acting, fname)

    def export(self, fname: str | Path, logs: LogRecord | None = None, **options: bool) -> Path:
        """Export as ONNX (`save_policy`), and write ``<name>.schema.json`` next to it, with its inputs and outputs.

        The schema lists the columns of observations in order, with the encoding of each, categories and missing values
        included; the column of masks; the actions and whether the policy samples them; names, dtypes and shapes of
        inputs and outputs; and the digest of the ONNX file. See `birl.algorithm.export_schema`.

        Args:
            fname: path that ends with ``.onnx``.
            logs: the logs whose columns the policy reads (`ReplayBuffer.logs`); by default the logs from which it
                learned. If there are none, columns have the names of the table that it learned from, or numbers.
            **options: passed to `save_policy`.

        Returns:
            Path of the schema.

        Raises:
            ConfigError: for another suffix, or if the policy does not read such logs.
        """
        file = Path(str(fname))
        if file.suffix != ".onnx":
            raise ConfigError(f"{str(fname)!r:.200} does not end with .onnx, which the schema is for: use save_policy")
        self.save_policy(file, **options)
        logs = self.logs if logs is None else logs
        return write_schema(file, self.spec, self.serving_description(), logs, self.columns)
