"""Optimiser steps as tensor functions, for updates that are compiled as one program.

``torch.optim.Optimizer.step`` cannot be part of a compiled program, so this module computes the same steps for the
most common optimisers. The optimiser object still owns the moments, so files, schedules and eager updates stay the
same. Scalars that change from step to step are passed as tensors, because a new constant would need a new program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, overload

import torch
from torch import Tensor
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

Moments = Sequence[Tensor]


class Rule(Protocol):
    """The step of one parameter group."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the tensors, shaped like the parameter, that the step keeps between calls."""

    def step_scalars(self, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """Return the scalars that change from step to step, for step number ``step`` (from 1)."""

    def __call__(self, parameter: Tensor, gradient: Tensor, moments: Moments, scalars: Sequence[Tensor]) -> None:
        """Update ``parameter`` and ``moments`` in place. ``scalars`` is the result of `step_scalars`, as tensors."""


@dataclass(frozen=True)
class _Adam:
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool

    moments = ("exp_avg", "exp_avg_sq")

    def step_scalars(self, group: dict[str, Any], step: int) -> tuple[float, ...]:
        first, second = self.betas
        rate = float(group["lr"])
        return rate / (1 - first**step), math.sqrt(1 - second**step), 1 - rate * self.weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, moments: Moments, scalars: Sequence[Tensor]) -> None:
        first, second = self.betas
        mean, square = moments
        rate, correction, kept = scalars
        if self.decoupled_weight_decay and self.weight_decay:
            parameter.mul_(kept)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        parameter.sub_(rate * mean / (square.sqrt() / correction + self.eps))


@dataclass(frozen=True)
class _SGD:
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool

    @property
    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def step_scalars(self, group: dict[str, Any], step: int) -> tuple[float, ...]:
        return float(group["lr"]), 1.0 if step == 1 else 1 - self.dampening  # torch does not dampen the first step

    def __call__(self, parameter: Tensor, gradient: Tensor, moments: Moments, scalars: Sequence[Tensor]) -> None:
        rate, share = scalars
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        if self.momentum:
            (velocity,) = moments
            velocity.mul_(self.momentum).add_(share * gradient)
            gradient = gradient + self.momentum * velocity if self.nesterov else velocity
        parameter.sub_(rate * gradient)


@dataclass(frozen=True)
class _RMSprop:
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool

    @property
    def moments(self) -> tuple[str, ...]:
        centre = ("grad_avg",) if self.centered else ()
        return ("square_avg", *centre, *(("momentum_buffer",) if self.momentum else ()))

    def step_scalars(self, group: dict[str, Any], step: int) -> tuple[float, ...]:
        return (float(group["lr"]),)

    def __call__(self, parameter: Tensor, gradient: Tensor, moments: Moments, scalars: Sequence[Tensor]) -> None:
        (rate,) = scalars
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        square, *rest = moments
        square.mul_(self.alpha).addcmul_(gradient, gradient, value=1 - self.alpha)
        if self.centered:
            mean = rest.pop(0)
            mean.lerp_(gradient, 1 - self.alpha)
            square = square - mean * mean
        change = gradient / self._root(square)
        if self.momentum:
            (velocity,) = rest
            velocity.mul_(self.momentum).add_(change)
            change = velocity
        parameter.sub_(rate * change)

    def _root(self, square: Tensor) -> Tensor:
        return square.sqrt() + self.eps


@dataclass(frozen=True)
class _RootRMSprop(_RMSprop):
    def _root(self, square: Tensor) -> Tensor:
        return (square + self.eps).sqrt()


class RootRMSprop(RMSprop):
    """RMSprop with epsilon under the root: ``lr * g / sqrt(E[g**2] - E[g]**2 + eps)``, without ``E[g]`` if not centred.

    The code of the DQN paper (Mnih et al. 2015, doi:10.1038/nature14236) and A3C (Mnih et al. 2016, arXiv:1602.01783,
    eq. S2 and S3) use this form. With small gradients and ``eps=0.01``, its steps are smaller than torch's.
    """

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rule = _RootRMSprop(*(group[name] for name in _RootRMSprop.__match_args__))
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moments = moments_of(self, parameter, rule)
                    self.state[parameter]["step"] += 1
                    rule(parameter, parameter.grad, moments, [torch.tensor(float(group["lr"]), dtype=parameter.dtype)])
        return loss


_RULES: Final[dict[type[Optimizer], Any]] = {
    Adam: _Adam,
    AdamW: _Adam,
    SGD: _SGD,
    RMSprop: _RMSprop,
    RootRMSprop: _RootRMSprop,
}
ELEMENTWISE: Final = (Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, RootRMSprop, Rprop, SGD)
"""Optimisers whose steps are elementwise, so that many seeds can share one."""

_UNSUPPORTED: Final = ("amsgrad", "maximize", "differentiable")


def rule_of(optimizer: Optimizer, group: dict[str, Any]) -> Rule | None:
    """Return the rule of one parameter group of ``optimizer``, or ``None`` if this module has none."""
    rule = _RULES.get(type(optimizer))
    if rule is None or any(group.get(name) for name in _UNSUPPORTED) or isinstance(group["lr"], Tensor):
        return None
    # the fields of a rule are the names of torch's hyper-parameters; betas are a list when they come from a file
    values = (group[name] for name in rule.__match_args__)
    found: Rule = rule(*(tuple(value) if isinstance(value, list) else value for value in values))
    return found


def moments_of(optimizer: Optimizer, parameter: Tensor, rule: Rule) -> list[Tensor]:
    """Return an optimiser's moments of a parameter. Creates them if needed, as the first step of the optimiser does."""
    state = optimizer.state[parameter]
    if "step" not in state and type(optimizer) is not SGD:
        fused = bool(optimizer.param_groups[0].get("fused"))
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu")
    for name in rule.moments:
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return [state[name] for name in rule.moments]


@torch.no_grad()
def step_by_kernel(optimizer: Optimizer, parameters: list[Tensor], gradients: list[Tensor]) -> bool:
    """Step Adam by a direct call of its fused kernel, whose wrapper in torch takes longer than the kernel.

    Returns:
        Whether the step was made. The first step, which creates the moments, and unusual options are not made here.
    """
    group, *others = optimizer.param_groups
    usual = type(optimizer) in (Adam, AdamW) and group.get("fused")
    unusual = others or any(group.get(name) for name in _UNSUPPORTED) or isinstance(group["lr"], Tensor)
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    states = [optimizer.state[parameter] for parameter in parameters] if usual and not unusual and not hooks else []
    if not states or not all(states) or parameters[0].device.type != "cpu":
        return False
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1)
    first, second = group["betas"]
    decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
    (torch._fused_adamw_ if decoupled else torch._fused_adam_)(
        parameters,
        gradients,
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        steps,
        lr=group["lr"],
        beta1=first,
        beta2=second,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
    optimizer._opt_called = True  # type: ignore[attr-defined]  # schedules ask whether a step was made
    return True
