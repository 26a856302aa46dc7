"""Recursions backwards over time: returns, advantages and their corrections, all solved by one function.

Arguments and results are ``[T, B]``, in the order of time; values of an ensemble may have dimensions in front. They are
those of a batch of sequences or of a rollout:

- ``reward`` ``r_t``, and ``discount``: ``gamma * (1 - terminated)``;
- ``value`` ``V(s_t)``, and ``next_value`` ``V(s'_t)`` of the observation that the step led to: at a time limit the last
  one of the episode, not the first one of the next. So a truncated episode is bootstrapped and a terminated one is not;
- ``ended``: 1 where a step is the last of its episode, terminated or truncated, and where a row is padding.

Where an episode has ended, and in the last row, nothing comes from the row below: ``V(s'_t)`` takes its place. Rows of
padding have results, finite if their arguments are, that no other row depends on. No function stops gradients: what
serves as a target is computed without them, or detached.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.checks import check
from birl.errors import ShapeError


def backward_recursion(a: Tensor, b: Tensor, longest: int | None = None) -> Tensor:
    """Solve ``x_t = a_t + b_t x_{t+1}``, with nothing below the last row, for all rows at once.

    By doubling: after pass ``k`` a row has gathered the ``2**k`` rows from itself on, so that there are ``log2 T``
    passes. They only multiply and add, so that products which run towards 0 do no harm.

    Args:
        a: ``[..., T, B]``.
        b: ``[..., T, B]``, broadcasts against ``a``.
        longest: number of rows after which ``b`` has been 0 at the latest, if that is known to be fewer than ``T``.

    Returns:
        ``x`` ``[..., T, B]``.
    """
    rows, reach, b = a.shape[-2], 1, b[..., :-1, :]
    while reach < min(rows, longest or rows):
        a = torch.cat((a[..., :-reach, :] + b * a[..., reach:, :], a[..., rows - reach :, :]), -2)
        b = b[..., : max(rows - 2 * reach, 0), :] * b[..., reach:, :]  # of rows that have not reached the end
        reach *= 2
    return a


def last_steps(weight: Tensor, is_first: Tensor | None) -> Tensor:
    """``ended`` of a batch of sequences or of a rollout: 1 where the next row is no later step of the same episode.

    Args:
        weight: ``[T, B]``, 0 at padding.
        is_first: bool ``[T, B]``: an episode begins here; ``None`` for nowhere.

    Returns:
        ``[T, B]``. The last row's is 0: nothing is below it.
    """
    other = weight == 0 if is_first is None else is_first | (weight == 0)
    return F.pad(other[..., 1:, :].to(weight.dtype), (0, 0, 0, 1))


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, gae_lambda: float
) -> Tensor:
    """Advantages by GAE (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    ``A_t = delta_t + discount_t lambda A_{t+1}`` with ``delta_t = r_t + discount_t V(s'_t) - V(s_t)`` (eq. 9).

    Args:
        reward, value, next_value, discount, ended: see above.
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
    """``G_t = r_t + discount_t ((1 - lambda_t) V(s'_t) + lambda_t G_{t+1})`` (Sutton and Barto 2018, eq. 12.18).

    With ``lambda = 1`` they are the returns of A2C and A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3), and with
    a ``next_value`` of zeros as well the discounted sums of rewards of REINFORCE.

    Args:
        reward, next_value, discount, ended: see above.
        trace: ``lambda`` in ``[0, 1]``, a number or one for each row ``[T, B]``.

    Returns:
        Returns ``[T, B]``.
    """
    _check(reward, next_value=next_value, discount=discount, ended=ended, trace=trace)
    trace = trace * _goes_on(ended)
    return backward_recursion(reward + discount * (1 - trace) * next_value, discount * trace)


def finished(ended: Tensor, weight: Tensor) -> Tensor:
    """1 where the rows hold the rest of an episode, 0 where it goes on after the last row ``[T, B]``.

    What sums all rewards to come, without a value function in place of those after the last row, learns from these.

    Args:
        ended: see above.
        weight: 0 where a row is padding.
    """
    _check(ended, weight=weight)
    return backward_recursion(ended * (weight > 0), 1 - ended)


def n_step_returns(reward: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, n: int) -> Tensor:
    """Returns of ``n`` steps (Sutton and Barto 2018, eq. 7.1), of fewer where the episode or the rows end sooner.

    The recursion of `lambda_returns` with ``lambda = 1``, of which ``n`` steps are made.

    Args:
        reward, next_value, discount, ended: see above.
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
    """Targets of action-values from another policy's steps (Munos et al. 2016, arXiv:1606.02647, eq. 3).

    ``G_t = r_t + discount_t (V(s'_t) + c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1})))``, in ACER eq. 5 (arXiv:1611.01224).
    Which algorithm it is depends on the traces ``c``; ``rho`` is the ratio of probabilities, target to behaviour:

    - Retrace: ``lambda * min(1, rho)``; ACER's, with several dimensions of actions: ``min(1, rho ** (1 / dimensions))``
    - tree backup: ``lambda * pi(a | s)``
    - Q(lambda), and with ``lambda = 1`` ACER's ``Q_opc``: ``lambda``
    - importance sampling: ``rho``

    Args:
        reward, discount, ended: see above.
        q: ``Q(s_t, a_t)``.
        next_value: ``V(s'_t)``, the expectation of ``Q(s'_t, .)`` under the target policy.
        trace: ``c_t`` of the action ``a_t``, a number or one for each row; that of the first is not used.

    Returns:
        Targets ``[T, B]``.
    """
    _check(reward, q=q, next_value=next_value, discount=discount, ended=ended, trace=trace)
    delta = reward + discount * next_value - q
    below = _below(trace) if isinstance(trace, Tensor) else trace
    return q + backward_recursion(delta, discount * (1 - ended) * below)


class VTrace(NamedTuple):
    """What `vtrace` finds.

    Attributes:
        target: ``v_t`` ``[T, B]``, what the value function learns.
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
    """Values and advantages from another policy's steps (Espeholt et al. 2018, arXiv:1802.01561, eq. 1).

    ``v_t = V(s_t) + rho_t (r_t + discount_t V(s'_t) - V(s_t)) + discount_t c_t (v_{t+1} - V(s_{t+1}))`` (remark 1) with
    ``rho_t = min(clip_rho, ratio_t)`` and ``c_t = lambda min(clip_c, ratio_t)``. The advantage is
    ``min(clip_advantage, ratio_t) (r_t + discount_t v_{t+1} - V(s_t))`` (section 4.2). With ratios of 1 the targets are
    the `lambda_returns`.

    Args:
        reward, value, next_value, discount, ended: see above.
        ratio: ``pi(a_t | s_t) / mu(a_t | s_t)``: probability under the target policy by that under the one which acted.
        trace_lambda: ``lambda`` in ``[0, 1]`` (remark 2).
        clip_rho, clip_c, clip_advantage: the largest ratios; the paper's condition is ``clip_rho >= clip_c``.
    """
    _check(reward, value=value, next_value=next_value, discount=discount, ended=ended, ratio=ratio)
    delta = ratio.clamp(max=clip_rho) * (reward + discount * next_value - value)
    traces = trace_lambda * ratio.clamp(max=clip_c)
    target = value + backward_recursion(delta, discount * traces * (1 - ended))
    following = torch.where(_goes_on(ended) > 0, _below(target), next_value)
    return VTrace(target, ratio.clamp(max=clip_advantage) * (reward + discount * following - value))


def upgo_returns(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor) -> Tensor:
    """Returns of an upgoing policy update (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z, methods).

    ``G_t = r_t + discount_t G_{t+1}`` if the next step is at least as good as expected,
    ``r_{t+1} + discount_{t+1} V(s'_{t+1}) >= V(s_{t+1})``, else ``G_t = r_t + discount_t V(s'_t)``.

    Args:
        reward, value, next_value, discount, ended: see above.

    Returns:
        Returns ``[T, B]``; the policy's advantage is ``min(1, rho_t) (G_t - V(s_t))``.
    """
    _check(reward, value=value, next_value=next_value, discount=discount, ended=ended)
    better = (reward + discount * next_value >= value).to(reward.dtype)
    return lambda_returns(reward, next_value, discount, ended, _below(better))


def _below(x: Tensor) -> Tensor:
    """The next row's ``x`` ``[..., T, B]``; 0 for the last."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1))


def _goes_on(ended: Tensor) -> Tensor:
    """1 where the next row is the next step ``[..., T, B]``."""
    return F.pad(1 - ended[..., :-1, :], (0, 0, 0, 1))


def _check(reward: Tensor, **others: Tensor | float) -> None:
    """Refuse shapes that would broadcast to something else, such as ``[T, B, 1]`` with ``[T, B]``."""
    for name, x in others.items():
        if not isinstance(x, Tensor):
            continue
        if x.shape[-2:] != reward.shape[-2:] or reward.dim() < 2:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)} and reward {tuple(reward.shape)}; both must end in the same "
                "[T, B]: take away dimensions of size 1, and give single sequences a B of 1"
            )
