"""Logged episodes as padded arrays, and their importance weights in log space.

``rho_t = pi(a_t|s_t) / b(a_t|s_t)`` is the ratio of a step. ``w_t = rho_0 ... rho_t`` is the weight of an episode up to
that step, with ``w_{-1} = 1`` (Precup, Sutton and Singh 2000, "Eligibility traces for off-policy policy evaluation",
ICML). An episode keeps its weight after its end, because no action is taken there. So the mean of ``w_t`` over **all**
episodes is 1 in expectation at every step, and divisors include episodes that have ended.

Arrays are ``[..., n, T]``: n episodes of up to T steps, after any number of independent repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from birl.checks import check
from birl.errors import DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Logged episodes with the importance ratios and values of an evaluated policy.

    Attributes:
        reward: ``r_t``, ``[..., n, T]``.
        mask: which steps exist. An episode begins at step 0 and has no holes.
        gamma: discount of a step, 0 to 1.
        log_ratio: ``log rho_t``, from `log_ratios` or `mixture_log_ratios`; minus infinity where the policy never takes
            the logged action. Needed by all estimators with weights.
        q: ``Q(s_t, a_t)`` of the logged actions. Needed by estimators with a model.
        v: ``V(s_t)``, the mean of ``Q(s_t, .)`` under the policy.
        z: ratios ``z_t(s_t, a_t)`` of visits, from `birl.ope.marginal_ratios`. Needed by
            `double_reinforcement_learning`.

    Values after the end of an episode are set to 0.

    Raises:
        ShapeError: if shapes differ or an episode has holes.
        NonFiniteError: if a value of a step is NaN or infinite.
        EmptyDataError: if there is no episode, or an episode has no step.
    """

    reward: Array
    mask: Array
    gamma: float
    log_ratio: Array | None = None
    q: Array | None = None
    v: Array | None = None
    z: Array | None = None

    def __post_init__(self) -> None:
        mask = np.asarray(self.mask, bool)
        if mask.ndim < 2 or mask.size == 0:
            raise EmptyDataError(f"mask has the shape {mask.shape}; it must be [..., n, T] with n >= 1 and T >= 1")
        if not mask[..., 0].all():
            raise EmptyDataError(f"episode {_first(~mask[..., 0])} has no step; each needs one or more: leave it out")
        if (mask[..., 1:] & ~mask[..., :-1]).any():
            hole = _first(mask[..., 1:] & ~mask[..., :-1])
            raise ShapeError(f"the mask has a hole at step {hole}; steps of an episode must be consecutive: fill it in")
        object.__setattr__(self, "gamma", check("gamma", self.gamma, float, low=0, high=1, error=DataError))
        object.__setattr__(self, "mask", mask)
        for name in ("reward", "q", "v", "z", "log_ratio"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _steps(name, value, mask, lowest_is_allowed=name == "log_ratio"))

    @property
    def discount(self) -> Array:
        """``gamma^t``, ``[T]``."""
        return np.asarray(self.gamma ** np.arange(self.mask.shape[-1], dtype=np.float64))

    @property
    def log_weight(self) -> Array:
        """``log w_t``, ``[..., n, T]``; constant after the end of an episode.

        Raises:
            DataError: if there are no ratios.
        """
        if self.log_ratio is None:
            raise DataError("log_ratio is None, but weights need it: give it, or use an estimator without weights")
        return self.log_ratio.cumsum(-1)

    @property
    def weight(self) -> Array:
        """``w_t``, ``[..., n, T]``.

        Raises:
            DataError: if a weight overflows.
        """
        log_weight = self.log_weight
        if log_weight.max() > 700:
            raise DataError(
                f"the weight of step {_first(log_weight > 700)} is e^{log_weight.max():.0f}; "
                "the mean of weights must be 1: check the propensities"
            )
        return np.exp(log_weight)

    @property
    def relative_weight(self) -> Array:
        """``w_t`` over its mean over all n episodes, ``[..., n, T]``: from 0 to n, however large the weights are.

        Raises:
            DataError: if all weights are 0.
        """
        log_weight = self.log_weight
        most = log_weight.max(-2, keepdims=True)
        if np.isneginf(most).any():
            step = _first(np.isneginf(most[..., 0, :]))[-1]
            shorter = f", or a horizon of at most {step}" if step else ""
            raise DataError(
                f"all weights are 0 from step {step} on, so the policy cannot generate any of the logged episodes; "
                f"one at least must have a weight: evaluate a policy nearer to the logs{shorter}"
            )
        scaled = np.exp(log_weight - most)
        return np.asarray(scaled / scaled.mean(-2, keepdims=True))

    def until(self, horizon: int) -> Trajectories:
        """Return the first ``horizon`` steps of every episode."""
        check("horizon", horizon, int, low=1, error=DataError)
        names = ("reward", "mask", "log_ratio", "q", "v", "z")
        cut = {name: value[..., :horizon] for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **cut)


def log_ratios(log_target: Array, log_logged: Array, mask: Array, *, densities: bool = False) -> Array:
    """Return ``log rho_t = log pi(a_t|s_t) - log b(a_t|s_t)`` of logged actions, 0 after the end of an episode.

    Args:
        log_target: log-probability or log-density of the **logged** action under the policy, ``[..., n, T]``.
        log_logged: the same under the logging policy, as logged or estimated.
        mask: which steps exist.
        densities: whether actions are continuous. Densities may be above 1, probabilities may not.

    Raises:
        DataError: if a logged action has the propensity 0, or a probability is above 1.
        ShapeError: if shapes differ.
    """
    mask = np.asarray(mask, bool)
    target = _steps("log_target", log_target, mask, lowest_is_allowed=True)
    logged = _steps("log_logged", log_logged, mask, lowest_is_allowed=True)
    for name, value in {} if densities else {"log_target": target, "log_logged": logged}.items():
        if value.max() > 1e-6:
            step = _first(value > 1e-6)
            raise DataError(
                f"{name} is {value[step]} at step {step}, the logarithm of a probability above 1: "
                "give log-probabilities, or densities=True if they are densities"
            )
    if np.isneginf(logged).any():
        step = _first(np.isneginf(logged))
        raise DataError(
            f"the logged action of step {step} has the propensity 0; it must be above 0: check the propensities"
        )
    return np.asarray(target - logged)


def mixture_log_ratios(log_target: Array, log_loggers: Array, logger: Array, mask: Array) -> Array:
    """Return ratios of data that several policies logged: ``w_t = prod pi / sum_k (n_k / n) prod b_k``.

    The balance heuristic over episodes (Agarwal et al. 2017, arXiv:1703.06180) treats the data as a sample from the
    mixture of logging policies, so weights stay finite where one of them never acts as the policy does.

    Args:
        log_target: log-probabilities of the logged actions under the policy, ``[..., n, T]``.
        log_loggers: log-probabilities of the logged actions under **every** logging policy, ``[..., K, n, T]``; minus
            infinity where a policy never takes the action.
        logger: index of the logging policy of each episode, 0 to K - 1, ``[n]``.
        mask: which steps exist.

    Returns:
        ``log w_t - log w_{t-1}``, for `Trajectories`.

    Raises:
        DataError: if the logging policy of an episode never takes a logged action.
        ShapeError: if shapes differ.
    """
    mask, logger, loggers = np.asarray(mask, bool), np.asarray(logger), np.asarray(log_loggers, np.float64)
    target = _steps("log_target", log_target, mask, lowest_is_allowed=True)
    count, n = loggers.shape[-3], mask.shape[-2]
    if logger.shape != (n,) or logger.min() < 0 or logger.max() >= count:
        raise ShapeError(f"logger has the shape {logger.shape}; it must hold {n} numbers from 0 to {count - 1}")
    every = np.broadcast_to(mask[..., None, :, :], loggers.shape)
    loggers = _steps("log_loggers", loggers, every, lowest_is_allowed=True).cumsum(-1)
    acting = loggers[..., logger, np.arange(n), :]
    if np.isneginf(acting).any():
        raise DataError(
            f"the logging policy of step {_first(np.isneginf(acting))} never takes the logged action: check logger"
        )
    share = np.bincount(logger, minlength=count) / n
    with np.errstate(divide="ignore"):
        mixed = np.logaddexp.reduce(loggers + np.log(share)[:, None, None], axis=-3)
    return step_log_ratios(target.cumsum(-1) - mixed)


def clip_ratios(log_ratio: Array, limit: float) -> Array:
    """Return ``min(rho, limit)``, which has less variance, and a bias that `birl.ope.bias_bound` bounds."""
    check("limit", limit, float, above=0, error=DataError)
    return np.minimum(log_ratio, np.log(limit))


def switch_ratios(log_ratio: Array, limit: float) -> Array:
    """Return ``rho 1[rho <= limit]``: with `doubly_robust` the SWITCH-DR estimator (Wang et al. 2017).

    arXiv:1612.01205. From the first step with a larger ratio, only the model counts.
    """
    check("limit", limit, float, above=0, error=DataError)
    return np.where(log_ratio > np.log(limit), -np.inf, log_ratio)


def shrink_ratios(log_ratio: Array, strength: float) -> Array:
    """Return ``lam rho / (lam + rho^2)``: optimistic shrinkage (Su et al. 2020, arXiv:1907.09623), for `doubly_robust`.

    Args:
        log_ratio: ``log rho``.
        strength: ``lam`` above 0; large values keep the ratios, small values use only the model.
    """
    check("strength", strength, float, above=0, error=DataError)
    return np.asarray(log_ratio - np.logaddexp(0, 2 * log_ratio - np.log(strength)))


def temper_ratios(log_ratio: Array, strength: float) -> Array:
    """Return ``rho / (1 - lam + lam rho)``, at most ``1 / lam`` (Metelli et al. 2021, NeurIPS, definition 4.1)."""
    check("strength", strength, float, low=0, high=1, error=DataError)
    with np.errstate(divide="ignore", invalid="ignore"):
        tempered = log_ratio - np.logaddexp(np.log1p(-strength), np.log(strength) + log_ratio)
    return np.where(np.isneginf(log_ratio), -np.inf, tempered)


def kernel_log_density(action: Array, chosen: Array, bandwidth: float | Array) -> Array:
    """Return a kernel density of a deterministic policy: ``log prod_d K((a_d - pi_d) / h_d) / h_d``.

    K is the standard normal density (Kallus and Zhou 2018, arXiv:1802.06037). Pass the result as ``log_target`` to
    `log_ratios`, with logged **densities** in the same units. This evaluates the policy with Gaussian noise of standard
    deviation h: compare several h.

    Args:
        action: logged actions, ``[..., A]``.
        chosen: the policy's actions, ``[..., A]``.
        bandwidth: h in units of the action, one number or one for each dimension.
    """
    h = np.asarray(bandwidth, np.float64)
    if not (np.isfinite(h).all() and (h > 0).all()):
        raise DataError(f"bandwidth is {bandwidth!r:.80}; it must be finite numbers > 0, in units of the action")
    action = np.asarray(action, np.float64)
    h = np.broadcast_to(h, action.shape[-1:])
    distance = (action - chosen) / h
    return np.asarray((-0.5 * distance**2 - 0.5 * np.log(2 * np.pi) - np.log(h)).sum(-1))


def padded(episodes: Sequence[Array | Sequence[float]]) -> tuple[Array, Array]:
    """Pad episodes of any lengths with 0 to one array ``[n, T, ...]``, and return it with the mask ``[n, T]``.

    Raises:
        EmptyDataError: if there is no episode.
    """
    if not len(episodes):
        raise EmptyDataError("there are no episodes: give one or more")
    rows = [np.asarray(episode) for episode in episodes]
    length = np.array([len(row) for row in rows])
    mask = np.arange(length.max()) < length[:, None]
    out = np.zeros((*mask.shape, *rows[0].shape[1:]), np.result_type(*rows))
    out[mask] = np.concatenate(rows)
    return out, mask


def _steps(name: str, value: Array, mask: Array, *, lowest_is_allowed: bool = False) -> Array:
    """Return the values as float64, 0 where no step exists; check those of existing steps."""
    value = np.asarray(value, np.float64)
    if value.shape != mask.shape:
        raise ShapeError(f"{name} has the shape {value.shape}; the mask has {mask.shape}: both must be [..., n, T]")
    bad = mask & ~(np.isfinite(value) | (lowest_is_allowed & np.isneginf(value)))
    if bad.any():
        allowed = "finite, or minus infinity" if lowest_is_allowed else "finite"
        raise NonFiniteError(f"{name} is {value[bad][0]} at step {_first(bad)}; it must be {allowed}")
    return np.where(mask, value, 0.0)


def step_log_ratios(log_weight: Array) -> Array:
    """Return log-ratios whose cumulative sums are the log-weights; a weight of 0 stays 0."""
    before = np.concatenate([np.zeros_like(log_weight[..., :1]), log_weight[..., :-1]], -1)
    return np.where(np.isneginf(before), 0.0, log_weight - np.where(np.isneginf(before), 0.0, before))


def _first(where: Array) -> tuple[int, ...]:
    """Return the first true index: (episode, step), after repetitions if there are any."""
    return tuple(int(index) for index in np.argwhere(where)[0])
