"""Logged episodes as padded arrays, and their importance weights in log space.

``rho_t = pi(a_t|s_t) / b(a_t|s_t)`` is the ratio of a step, ``w_t = rho_0 ... rho_t`` the weight of an episode up to it
and ``w_{-1} = 1`` (Precup, Sutton and Singh 2000, "Eligibility traces for off-policy policy evaluation", ICML). After
its end an episode keeps its weight: nothing is chosen there. So the mean of ``w_t`` over **all** episodes is 1 in
expectation at every step, and divisors never leave out those that have ended.

Arrays are ``[..., n, T]``: n episodes of up to T steps, after any number of independent repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from birl.checks import check
from birl.errors import DataError, EmptyDataError, NonFiniteError, ShapeError
from birl.types import Array


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Logged episodes, seen from one policy that is to be evaluated.

    Attributes:
        reward: ``r_t``, ``[..., n, T]``.
        mask: which steps happened. An episode begins at step 0 and has no holes.
        gamma: discount of a step, 0 to 1.
        log_ratio: ``log rho_t``, from `log_ratios` or `mixture_log_ratios`; minus infinity where the policy never takes
            the logged action. Needed by all estimators with weights.
        q: ``Q(s_t, a_t)`` of the logged actions. Needed by estimators with a model.
        v: ``V(s_t)``, the mean of ``Q(s_t, .)`` under the policy.
        z: ratios ``z_t(s_t, a_t)`` of visits, of `birl.ope.marginal_ratios`. Needed by `double_reinforcement_learning`.

    What the arrays hold after an episode's end is of no matter: it is set to 0.

    Raises:
        ShapeError: if shapes differ or there are holes.
        NonFiniteError: if a value of a step is NaN or infinite.
        EmptyDataError: if there is no episode, or one without a step.
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
            raise EmptyDataError(f"episode {_first(~mask[..., 0])} has no step: leave it out")
        if (mask[..., 1:] & ~mask[..., :-1]).any():
            hole = _first(mask[..., 1:] & ~mask[..., :-1])
            raise ShapeError(f"the mask has a hole at step {hole}; steps of an episode follow each other")
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
        """``log w_t``, ``[..., n, T]``; it stays what it was after an episode's end.

        Raises:
            DataError: if there are no ratios.
        """
        if self.log_ratio is None:
            raise DataError("there are no propensities, so no weights: give log_ratio, or use a model alone")
        return self.log_ratio.cumsum(-1)

    @property
    def weight(self) -> Array:
        """``w_t``, ``[..., n, T]``.

        Raises:
            DataError: if a weight is beyond what a float holds.
        """
        log_weight = self.log_weight
        if log_weight.max() > 700:
            raise DataError(
                f"the weight of step {_first(log_weight > 700)} is e^{log_weight.max():.0f}; "
                "weights have the mean 1: look at the propensities"
            )
        return np.exp(log_weight)

    @property
    def relative_weight(self) -> Array:
        """``w_t`` over its mean over all n episodes, ``[..., n, T]``: from 0 to n, however large the weights.

        Raises:
            DataError: if no episode has a weight.
        """
        log_weight = self.log_weight
        most = log_weight.max(-2, keepdims=True)
        if np.isneginf(most).any():
            step = _first(np.isneginf(most[..., 0, :]))[-1]
            shorter = f", or a horizon of at most {step}" if step else ""
            raise DataError(
                f"no logged episode can be one of the policy's: all weights are 0 from step {step} on. "
                f"Evaluate a policy that is nearer to the logs{shorter}"
            )
        scaled = np.exp(log_weight - most)
        return np.asarray(scaled / scaled.mean(-2, keepdims=True))

    def until(self, horizon: int) -> Trajectories:
        """The first ``horizon`` steps of every episode."""
        check("horizon", horizon, int, low=1, error=DataError)
        names = ("reward", "mask", "log_ratio", "q", "v", "z")
        cut = {name: value[..., :horizon] for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **cut)


def log_ratios(log_target: Array, log_logged: Array, mask: Array, *, densities: bool = False) -> Array:
    """``log rho_t = log pi(a_t|s_t) - log b(a_t|s_t)`` of logged actions, 0 after an episode's end.

    Args:
        log_target: log-probability or log-density of the **logged** action under the policy, ``[..., n, T]``.
        log_logged: the same under the policy that acted, as it was logged or estimated.
        mask: which steps happened.
        densities: whether actions are continuous. Densities may be above 1, probabilities may not.

    Raises:
        DataError: if a logged action had no probability, or a probability is above 1.
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
        raise DataError(f"the logged action of step {step} had the propensity 0; what was done had a probability")
    return np.asarray(target - logged)


def mixture_log_ratios(log_target: Array, log_loggers: Array, logger: Array, mask: Array) -> Array:
    """Ratios of data that several policies logged: ``w_t = prod pi / sum_k (n_k / n) prod b_k``.

    The balance heuristic over episodes (Agarwal et al. 2017, arXiv:1703.06180): the data are seen as drawn from the
    mixture of loggers, so weights stay finite where one of them never acts as the policy does.

    Args:
        log_target: of the logged actions under the policy, ``[..., n, T]``.
        log_loggers: of the logged actions under **every** logger, ``[..., K, n, T]``; minus infinity for one that never
            does so.
        logger: which logger acted, 0 to K - 1, ``[n]``.
        mask: which steps happened.

    Returns:
        ``log w_t - log w_{t-1}``, for `Trajectories`.

    Raises:
        DataError: if the logger of an episode could not have acted as it did, or shapes differ.
    """
    mask, logger, loggers = np.asarray(mask, bool), np.asarray(logger), np.asarray(log_loggers, np.float64)
    target = _steps("log_target", log_target, mask, lowest_is_allowed=True)
    count, n = loggers.shape[-3], mask.shape[-2]
    if logger.shape != (n,) or logger.min() < 0 or logger.max() >= count:
        raise ShapeError(f"logger has the shape {logger.shape}; it must hold {n} numbers from 0 to {count - 1}")
    every = np.broadcast_to(mask[..., None, :, :], loggers.shape)
    loggers = _steps("log_loggers", loggers, every, lowest_is_allowed=True).cumsum(-1)
    own = loggers[..., logger, np.arange(n), :]
    if np.isneginf(own).any():
        raise DataError(f"the logger of step {_first(np.isneginf(own))} never takes the action that it logged")
    share = np.bincount(logger, minlength=count) / n
    with np.errstate(divide="ignore"):
        mixed = np.logaddexp.reduce(loggers + np.log(share)[:, None, None], axis=-3)
    return _steps_of(target.cumsum(-1) - mixed)


def clip_ratios(log_ratio: Array, limit: float) -> Array:
    """``min(rho, limit)``: less variance, and a bias that `birl.ope.bias_bound` bounds."""
    check("limit", limit, float, above=0, error=DataError)
    return np.minimum(log_ratio, np.log(limit))


def switch_ratios(log_ratio: Array, limit: float) -> Array:
    """``rho 1[rho <= limit]``: with `doubly_robust` the SWITCH-DR estimator (Wang et al. 2017, arXiv:1612.01205).

    Where the ratio is beyond the limit, the model alone speaks, of this step and those after it.
    """
    check("limit", limit, float, above=0, error=DataError)
    return np.where(log_ratio > np.log(limit), -np.inf, log_ratio)


def shrink_ratios(log_ratio: Array, strength: float) -> Array:
    """``lam rho / (lam + rho^2)``: optimistic shrinkage (Su et al. 2020, arXiv:1907.09623), for `doubly_robust`.

    Args:
        log_ratio: ``log rho``.
        strength: ``lam`` above 0; large leaves ratios as they are, small leaves the model alone.
    """
    check("strength", strength, float, above=0, error=DataError)
    return np.asarray(log_ratio - np.logaddexp(0, 2 * log_ratio - np.log(strength)))


def temper_ratios(log_ratio: Array, strength: float) -> Array:
    """``rho / (1 - lam + lam rho)``: at most ``1 / lam`` (Metelli et al. 2021, NeurIPS, definition 4.1). 0 stays 0."""
    check("strength", strength, float, low=0, high=1, error=DataError)
    with np.errstate(divide="ignore", invalid="ignore"):
        tempered = log_ratio - np.logaddexp(np.log1p(-strength), np.log(strength) + log_ratio)
    return np.where(np.isneginf(log_ratio), -np.inf, tempered)


def kernel_log_density(action: Array, chosen: Array, bandwidth: float | Array) -> Array:
    """A deterministic policy's density of logged actions, made smooth: ``log prod_d K((a_d - pi_d) / h_d) / h_d``.

    With the standard normal density as K (Kallus and Zhou 2018, arXiv:1802.06037). Give it as ``log_target`` to
    `log_ratios`, with logged **densities**, both in the same units. What is evaluated is the policy with noise of the
    standard deviation h: look at several h.

    Args:
        action: logged actions, ``[..., A]``.
        chosen: the policy's, ``[..., A]``.
        bandwidth: h, in units of the action, for all dimensions or for each.
    """
    h = np.asarray(bandwidth, np.float64)
    if not (np.isfinite(h).all() and (h > 0).all()):
        raise DataError(f"bandwidth is {bandwidth!r:.80}; it must be finite numbers > 0, in units of the action")
    action = np.asarray(action, np.float64)
    h = np.broadcast_to(h, action.shape[-1:])
    distance = (action - chosen) / h
    return np.asarray((-0.5 * distance**2 - 0.5 * np.log(2 * np.pi) - np.log(h)).sum(-1))


def padded(episodes: Sequence[Any]) -> tuple[Array, Array]:
    """Episodes of any lengths as one array ``[n, T, ...]``, 0 after their ends, and the mask ``[n, T]``.

    Raises:
        EmptyDataError: if there is no episode.
    """
    if not len(episodes):
        raise EmptyDataError("there are no episodes")
    rows = [np.asarray(episode) for episode in episodes]
    length = np.array([len(row) for row in rows])
    mask = np.arange(length.max()) < length[:, None]
    out = np.zeros((*mask.shape, *rows[0].shape[1:]), np.result_type(*rows))
    out[mask] = np.concatenate(rows)
    return out, mask


def _steps(name: str, value: Any, mask: Array, *, lowest_is_allowed: bool = False) -> Array:
    """As float64, checked where steps happened, 0 elsewhere."""
    value = np.asarray(value, np.float64)
    if value.shape != mask.shape:
        raise ShapeError(f"{name} has the shape {value.shape}; the mask has {mask.shape}: both must be [..., n, T]")
    bad = mask & ~(np.isfinite(value) | (lowest_is_allowed & np.isneginf(value)))
    if bad.any():
        words = "finite, or minus infinity" if lowest_is_allowed else "finite"
        raise NonFiniteError(f"{name} is {value[bad][0]} at step {_first(bad)}; it must be {words}")
    return np.where(mask, value, 0.0)


def _steps_of(log_weight: Array) -> Array:
    """Ratios whose products are the weights; a weight of 0 stays 0."""
    before = np.concatenate([np.zeros_like(log_weight[..., :1]), log_weight[..., :-1]], -1)
    return np.where(np.isneginf(before), 0.0, log_weight - np.where(np.isneginf(before), 0.0, before))


def _first(where: Array) -> tuple[int, ...]:
    """Where an array is true for the first time: (episode, step), after repetitions if there are any."""
    return tuple(int(index) for index in np.argwhere(where)[0])
