"""Validation of optimiser states, when they are saved and when they are loaded.

Fused kernels do not check the shapes of moments: they would read and write past the end of a tensor that is too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from birl.checks import Allowed
from birl.errors import CorruptFileError
from birl.optimizers.steps import rule_of
from birl.types import State

_Name = TypeVar("_Name")

_BY_DEVICE: Final = ("foreach", "fused", "capturable")  # implementations of the same step
_AMSGRAD: Final = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def first_nonfinite(tensors: Mapping[_Name, Tensor]) -> _Name | None:
    """Return the name of the first tensor that contains NaN or infinity; ``None`` if none does.

    It waits for the device once if all are finite.
    """
    floats = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    # The norm is finite only if all numbers are. If it is not, the slow check decides: large numbers can overflow it.
    if not floats or bool(torch.isfinite(get_total_norm(list(floats.values())))):
        return None
    return next((name for name, tensor in floats.items() if not torch.isfinite(tensor).all()), None)


def moments_in(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors that an optimiser keeps for one parameter, without the step count."""
    return {str(key): value for key, value in state.items() if isinstance(value, Tensor) and key != "step"}


def refuse_nonfinite(what: str, tensors: dict[str, Tensor]) -> None:
    """Reject tensors that contain NaN or infinity.

    Raises:
        CorruptFileError: with the name of the first of them.
    """
    name = first_nonfinite(tensors)
    if name is not None:
        raise CorruptFileError(f"the saved {what} {name!r} holds NaN or infinity: load an earlier model")


def check_optimizer(name: str, optimizer: Optimizer, saved: State) -> None:
    """Reject a saved state (groups and moments by number, see `Engine.get_state`) that ``optimizer`` cannot use.

    Args:
        name: name of the step.
        optimizer: the optimiser, created from the configuration.
        saved: the state to load.

    Raises:
        CorruptFileError: if it does not fit; the message names the mismatch.
    """
    own = optimizer.state_dict()["param_groups"]
    groups = [saved["param_groups"][key] for key in sorted(saved["param_groups"], key=int)]
    if [list(group["params"]) for group in groups] != [group["params"] for group in own]:
        raise _unfit(name, "it has other groups of parameters")
    for mine, group in zip(own, groups, strict=True):
        numbers = {key for key, value in mine.items() if type(value) in (int, float, tuple)}  # older files lack flags
        if numbers - group.keys():
            raise _unfit(name, f"{', '.join(sorted(numbers - group.keys()))} is missing")
        for key in (mine.keys() & group.keys()) - {"params"}:
            if not _plausible(key, group[key], mine[key]):
                raise _unfit(name, f"{key} is {group[key]!r:.60}, expected is a value like {mine[key]!r:.60}")
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for key, moments in saved["state"].items():
        if not 0 <= int(key) < len(parameters):
            raise _unfit(name, f"it has moments of parameter {key}, of {len(parameters)}")
        parameter, group = parameters[int(key)]
        rule = rule_of(optimizer, group)
        needed = rule.moments if rule is not None else _AMSGRAD if group.get("amsgrad") else ()
        step = moments.get("step", 0)
        if not math.isfinite(float(step)) or float(step) < 0:
            raise _unfit(name, f"step is {step!r:.60}")
        for moment in needed:
            if moments and not isinstance(moments.get(moment), Tensor):
                raise _unfit(name, f"{moment} of parameter {key} is missing")
        tensors = moments_in(moments)
        for each, value in tensors.items():
            if value.shape != parameter.shape and (rule is not None or "fused" in group):
                raise _unfit(name, f"{each} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}")
        refuse_nonfinite(f"moment of step {name!r}", tensors)


def _plausible(key: str, value: object, own: object) -> bool:
    """Return whether ``value`` may replace ``own`` in a group of parameters."""
    if key in _BY_DEVICE:
        return Allowed(bool, optional=True).accepts(value)
    if isinstance(own, bool) or own is None:
        return value is own
    if isinstance(own, tuple | list):
        if not isinstance(value, tuple | list) or len(value) != len(own):
            return False
        return all(
            _plausible(key, item, mine) and (mine is None or mine >= 1 or item < 1)  # betas stay below 1
            for item, mine in zip(value, own, strict=True)
        )
    if isinstance(own, int | float):
        return Allowed(float, low=0 if own >= 0 else -math.inf).accepts(value)
    return True


def _unfit(name: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"the saved state of step {name!r}'s optimiser does not fit: {why}. Build the algorithm with the "
        "configuration it was saved with, or load an undamaged file"
    )
