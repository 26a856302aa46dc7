"""Scalers of actions that ``birl train`` sets by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.envs import single_spaces
from birl.preprocessing import MinMaxActionScaler
from birl.spaces import actions_of
from birl.types import ActionSpace, Array


def action_scaler(algorithm: Any, source: Any, env: Any) -> tuple[MinMaxActionScaler | None, str]:
    """A scaler for actions that do not lie in [-1, 1], and a note about it."""
    bounds = _data_bounds(source) if env is None else actions_of(single_spaces(env)[1]).bounds
    if bounds is None or ActionSpace.CONTINUOUS not in algorithm.actions:
        return None, ""
    low, high = bounds
    if (low == -1).all() and (high == 1).all():
        return None, ""
    why = f"actions lie in {_words(low, high)}: action_scaler=min_max is set (--set action_scaler=… changes it)"
    return MinMaxActionScaler(minimum=low, maximum=high), why


def _data_bounds(source: Any) -> tuple[Array, Array] | None:
    """Bounds of logged continuous actions; actions within [-1, 1] are taken to have these bounds."""
    if source.dataset_info.actions.discrete:
        return None
    low, high = source.action_bounds()
    return (low, high) if (np.abs([low, high]) > 1).any() else None


def _words(low: Any, high: Any) -> str:
    pairs = sorted({(float(a), float(b)) for a, b in zip(low, high, strict=True)})
    return ", ".join(f"[{a:g}, {b:g}]" for a, b in pairs[:3]) + (", …" if len(pairs) > 3 else "")
