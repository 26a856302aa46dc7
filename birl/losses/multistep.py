"""Recursions backwards over time: returns, advantages and their off-policy corrections, all solved by one function.

Arguments and results are ``[T, B]``, in the order of time; values of an ensemble may have dimensions in front. They
come from a batch of sequences or a rollout:

- ``reward``: ``r_t``
- ``discount``: ``gamma * (1 - terminated)``
- ``value``: ``V(s_t)``
- ``next_value``: ``V(s'_t)`` of the observation to which the step led. At a time limit it is the last observation of
  the episode, not the first of the next one, so a truncated episode is bootstrapped and a terminated one is not.
- ``ended``: 1 where a step is the last of its episode, terminated or truncated, and where a row is padding

Where an episode has ended, and in the last row, ``V(s'_t)`` replaces the result of the next row. Rows of padding have
results, finite if their arguments are, on which no other row depends. No function stops gradients: callers compute
targets without gradients, or detach them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.checks import check
from birl.errors import ShapeError


def backward_recursion(a: Tensor, b: Tensor, longest: int | None = None) -> Tensor:
    """Solve ``x_t = a_t + b_t x_{t+1}`` with ``x_T = 0`` for all rows at once.

    The solution uses doubling: after pass ``k`` the result of a row includes ``2**k`` rows, so ``log2 T`` passes are
    enough. They only multiply and add, so products that vanish cause no division by 0.

    Args:
        a: ``[..., T, B]``.
        b: ``[..., T, B]``, broadcasts against ``a``.
        longest: length of the longest episode, if known to be less than ``T``: the largest number of consecutive rows
            of which only the last one has ``b = 0``.

    Returns:
        ``x`` ``[..., T, B]``.
    """
    rows, reach, b = a.shape[-2], 1, b[..., :-1, :]
    while reach < min(rows, longest or rows):
        a = torch.cat((a[..., :-reach, :] + b * a[..., reach:, :], a[..., rows - reach :, :]), -2)
        b = b[..., : max(rows - 2 * reach, 0), :] * b[..., reach:, :]  # for rows that have not reached the end
        reach *= 2
    return a


def last_steps(weight: Tensor, is_first: Tensor | None) -> Tensor:
    """Compute ``ended`` for sequences or a rollout: 1 where the next row is not the next step of the same episode.

    Args:
        weight: ``[T, B]``, 0 at padding.
        is_first: bool ``[T, B]``: whether an episode begins here; ``None`` if none does.

    Returns:
        ``[T, B]``. The last row is 0, because it has no next row.
    """
    other = weight == 0 if is_first is None else is_first | (weight == 0)
    return F.pad(other[..., 1:, :].to(weight.dtype), (0, 0, 0, 1))


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, gae_lambda: float
) -> Tensor:
    """Compute advantages by GAE (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    ``A_t = delta_t + discount_t lambda A_{t+1}`` with ``delta_t = r_t + discount_t V(s'_t) - V(s_t)`` (eq. 9).

    Args:
        reward, value, next_value, discount, ended: see the module's docstring.
        gae_lambda: ``lambda`` in ``[0, 1]``.

    Returns:
        Advantages ``[T, B]``.
    """
    _check(reward, value=value, next_value=next_value, discount=discount, ended=ended)
    delta = reward + discount * next_value - value
    return backward_recursion(delta, discount * gae_lambda * (1 - ended))


def lambda_returns(
    reward: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, trace: Tensor | float = 1.0
) -> Tensor:
    """Compute ``G_t = r_t + discount_t ((1 - lambda_t) V(s'_t) + lambda_t G_{t+1})`` (Sutton and Barto, eq. 12.18).

    With ``lambda = 1`` these are the returns of A2C and A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3). With a
    ``next_value`` of zeros in addition, they are the discounted sums of rewards of REINFORCE.

    Args:
        reward, next_value, discount, ended: see the module's docstring.
        trace: ``lambda`` in ``[0, 1]``, one number or one for each row ``[T, B]``.

    Returns:
        Returns ``[T, B]``.
    """
    _check(reward, next_value=next_value, discount=discount, ended=ended, trace=trace)
    trace = trace * _goes_on(ended)
    return backward_recursion(reward + discount * (1 - trace) * next_value, discount * trace)


def finished(ended: Tensor, weight: Tensor) -> Tensor:
    """Return ``[T, B]``: 1 where the rows hold the rest of the episode, 0 where it continues after the last row.

    Algorithms that sum all future rewards, without a value function for the rewards after the last row, learn from
    these rows only.

    Args:
        ended: see the module's docstring.
        weight: 0 where a row is padding.
    """
    _check(ended, weight=weight)
    return backward_recursion(ended * (weight > 0), 1 - ended)


def n_step_returns(reward: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, n: int) -> Tensor:
    """Compute ``n``-step returns (Sutton and Barto 2018, eq. 7.1); of fewer steps where the episode or the rows end.

    They are ``n`` steps of the recursion of `lambda_returns` with ``lambda = 1``.

    Args:
        reward, next_value, discount, ended: see the module's docstring.
        n: number of steps, at least 1.

    Returns:
        Returns ``[T, B]``.
    """
    _check(reward, next_value=next_value, discount=discount, ended=ended)
    check("n", n, int, low=1)
    goes_on = _goes_on(ended)
    returns = reward + discount * next_value
    for _ in range(min(n, reward.shape[-2]) - 1):
        returns = reward + discount * torch.where(goes_on > 0, _below(returns), next_value)
    return returns


def retrace(
    reward: Tensor, q: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, trace: Tensor | float
) -> Tensor:
    """Compute off-policy targets of action-values (Munos et al. 2016, arXiv:1606.02647, eq. 3).

    ``G_t = r_t + discount_t (V(s'_t) + c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1})))``, eq. 5 of ACER (arXiv:1611.01224).
    The traces ``c`` determine the algorithm; ``rho`` is the ratio of probabilities, target to behaviour policy:

    - Retrace: ``lambda * min(1, rho)``; ACER with continuous actions: ``min(1, rho ** (1 / dimensions))``
    - tree backup: ``lambda * pi(a | s)``
    - Q(lambda), and with ``lambda = 1`` ACER's ``Q_opc``: ``lambda``
    - importance sampling: ``rho``

    Args:
        reward, discount, ended: see the module's docstring.
        q: ``Q(s_t, a_t)``.
        next_value: ``V(s'_t)``, the expectation of ``Q(s'_t, .)`` under the target policy.
        trace: ``c_t`` of the action ``a_t``, one number or one for each row; the first row is not used.

    Returns:
        Targets ``[T, B]``.
    """
    _check(reward, q=q, next_value=next_value, discount=discount, ended=ended, trace=trace)
    delta = reward + discount * next_value - q
    below = _below(trace) if isinstance(trace, Tensor) else trace
    return q + backward_recursion(delta, discount * (1 - ended) * below)


class VTrace(NamedTuple):
    """Result of `vtrace`.

    Attributes:
        target: ``v_t`` ``[T, B]``, the target of the value function.
        advantage: ``[T, B]``, the weight of ``log pi(a_t | s_t)`` in the policy's loss.
    """

    target: Tensor
    advantage: Tensor


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    ratio: Tensor,
    trace_lambda: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_advantage: float = 1.0,
) -> VTrace:
    """Compute off-policy values and advantages by V-trace (Espeholt et al. 2018, arXiv:1802.01561, eq. 1).

    ``v_t = V(s_t) + rho_t (r_t + discount_t V(s'_t) - V(s_t)) + discount_t c_t (v_{t+1} - V(s_{t+1}))`` (remark 1) with
    ``rho_t = min(clip_rho, ratio_t)`` and ``c_t = lambda min(clip_c, ratio_t)``. The advantage is
    ``min(clip_advantage, ratio_t) (r_t + discount_t v_{t+1} - V(s_t))`` (section 4.2). With ratios of 1 the targets are
    the `lambda_returns`.

    Args:
        reward, value, next_value, discount, ended: see the module's docstring.
        ratio: ``pi(a_t | s_t) / mu(a_t | s_t)``, the ratio of probabilities of target and behaviour policy.
        trace_lambda: ``lambda`` in ``[0, 1]`` (remark 2).
        clip_rho, clip_c, clip_advantage: upper limits of the ratios; the paper requires ``clip_rho >= clip_c``.
    """
    _check(reward, value=value, next_value=next_value, discount=discount, ended=ended, ratio=ratio)
    delta = ratio.clamp(max=clip_rho) * (reward + discount * next_value - value)
    traces = trace_lambda * ratio.clamp(max=clip_c)
    target = value + backward_recursion(delta, discount * traces * (1 - ended))
    following = torch.where(_goes_on(ended) > 0, _below(target), next_value)
    return VTrace(target, ratio.clamp(max=clip_advantage) * (reward + discount * following - value))


def upgo_returns(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor) -> Tensor:
    """Compute the returns of an upgoing policy update (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z, methods).

    ``G_t = r_t + discount_t G_{t+1}`` if the next step is at least as good as expected,
    ``r_{t+1} + discount_{t+1} V(s'_{t+1}) >= V(s_{t+1})``, else ``G_t = r_t + discount_t V(s'_t)``.

    Args:
        reward, value, next_value, discount, ended: see the module's docstring.

    Returns:
        Returns ``[T, B]``; the policy's advantage is ``min(1, rho_t) (G_t - V(s_t))``.
    """
    _check(reward, value=value, next_value=next_value, discount=discount, ended=ended)
    better = (reward + discount * next_value >= value).to(reward.dtype)
    return lambda_returns(reward, next_value, discount, ended, _below(better))


def _below(x: Tensor) -> Tensor:
    """Shift rows: return the next row of ``x`` ``[..., T, B]`` for each row, and 0 for the last row."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1))


def _goes_on(ended: Tensor) -> Tensor:
    """Return ``[..., T, B]``: 1 where the next row is the next step of the episode."""
    return F.pad(1 - ended[..., :-1, :], (0, 0, 0, 1))


def _check(reward: Tensor, **others: Tensor | float) -> None:
    """Reject shapes that would broadcast to another shape, such as ``[T, B, 1]`` with ``[T, B]``."""
    for name, x in others.items():
        if not isinstance(x, Tensor):
            continue
        if x.shape[-2:] != reward.shape[-2:] or reward.dim() < 2:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)} and reward {tuple(reward.shape)}; both must end in the same "
                "[T, B]: take away dimensions of size 1, and give single sequences a B of 1"
            )
