"""A critic's estimate of the return as a value: an expectation, quantiles or a categorical distribution.

A loss calls `mean`, `gather`, `gap`, `policy`, `min`, `mix`, `backup` and `td_loss` and never names its head. Leading
dimensions are ``[N, …]`` for an ensemble of ``N``; `min`, `blend` and `average` remove ``N``. With discrete actions the
action dimension comes last, before the quantiles or atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from birl.models.distributions import Categorical, masked


def midpoints(n: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """Return the middles of ``n`` equal parts of [0, 1] (1710.10044 lemma 2)."""
    return (torch.arange(n, dtype=dtype, device=device) + 0.5) / n


class Returns(Protocol):
    """A critic's output. ``A`` stands for the action dimension, which only discrete critics have."""

    @property
    def allowed(self) -> Tensor | None:
        """The actions that are allowed, bool ``[…, A]``; ``None`` if all are."""

    def among(self, allowed: Tensor | None) -> Self:
        """Return the same returns with another mask of allowed actions."""
        return replace(self, allowed=allowed)  # type: ignore[type-var]

    def mean(self) -> Tensor:
        """Return the expected return ``[N, …, A]``."""

    def scores(self) -> Tensor:
        """Return expected returns ``[N, …, A]``, very low for actions that are not allowed."""
        return masked(self.mean(), self.allowed)

    def preferences(self) -> Tensor:
        """Return the numbers ``[N, …, A]`` by which actions are selected: `scores`, or values of a risk measure.

        With implicit quantiles they may also come from separate quantile levels.
        """
        return self.scores()

    def best(self) -> Tensor:
        """Return the greedy action ``[…]``, which has the highest preference averaged over the ensemble."""
        return self.preferences().mean(0).argmax(-1)

    def gap(self, action: Tensor) -> Tensor:
        """Return the action gap ``[…]`` of int64 ``action`` ``[…]``: the value of the best action minus its value.

        Values are expected returns, averaged over the ensemble. The gap is very large if the action is not allowed.
        """
        scores = self.scores().mean(0)
        return scores.amax(-1) - scores.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def soft_gap(self, action: Tensor) -> Tensor:
        """Return ``log sum_a exp Q(s, a) - Q(s, action)`` ``[N, …]`` of int64 ``action`` ``[…]``, of each member.

        Values are expected returns. Actions that are not allowed do not count.
        """
        values = self.mean()
        taken = values.gather(-1, action.unsqueeze(-1).expand(*values.shape[:-1], 1)).squeeze(-1)
        return torch.logsumexp(self.scores(), -1) - taken

    def policy(self, temperature: float) -> Categorical:
        """Return the Boltzmann policy, with probabilities proportional to ``exp(preference / temperature)``.

        `preferences` are averaged over the ensemble. Actions that are not allowed have probability 0.
        """
        return Categorical(self.preferences().mean(0) / temperature, self.allowed)

    def gather(self, action: Tensor) -> Self:
        """Return the returns of int64 ``action`` ``[…]``: removes ``A``."""

    def min(self) -> Self:
        """Return for each element the member with the lowest mean: removes ``N``."""

    def members(self, index: Tensor) -> Self:
        """Return the returns of the members int64 ``index`` ``[M]``: ``M`` takes the place of ``N``."""

    def part(self, index: int) -> Self:
        """Return the returns at ``index`` of the dimension after ``N``, which is removed."""

    def blend(self, share: float) -> Self:
        """Return ``share * lowest + (1 - share) * highest`` of the members, ranked by their means: removes ``N``.

        This is the target of soft clipped double Q-learning (Fujimoto et al. 2019, arXiv:1812.02900, eq. 13).
        """

    def average(self) -> Self:
        """Return the mean over the ensemble: removes ``N``."""

    def pooled(self) -> Self:
        """Return the return of a randomly drawn member, for targets: removes ``N``. Its mean is that of `average`."""
        return self.average()

    def mix(self, probs: Tensor) -> Self:
        """Return the expectation over actions with probabilities ``probs`` ``[…, A]``: removes ``A``."""

    def mixture(self, probs: Tensor) -> Self:
        """Return the return of an action drawn with ``probs`` ``[…, A]``, for targets: removes ``A``.

        Its mean is that of `mix`. Quantiles represent the whole mixture; several choices at once are only mixed.
        """
        return self.mix(probs)

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> Self:
        """Return the target ``reward + discount * (Z + bonus)``, detached.

        Args:
            reward: ``[…]``.
            discount: ``[…]``, 0 where the episode terminated.
            bonus: ``[…]``, added to the next value, such as ``-temperature * log_prob``.
        """

    def td_loss(self, target: Self, delta: float | None = None) -> Tensor:
        """Return the temporal-difference loss ``[N, …]`` of each element against a ``target`` without ``N``.

        Args:
            target: made by `backup`.
            delta: Huber threshold where the loss has one.
        """

    def error(self, target: Self, loss: Tensor) -> Tensor:
        """Return the size ``[N, …]`` of the TD error, the priority of steps; for distributions it is the ``loss``."""
        return loss

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> Self:
        """Compute returns of the same kind with other rows.

        Args:
            function: maps rows ``[…, A, Q]`` (``[…, A, 1]`` for expectations) to other rows.
            branches: 1 if ``function`` adds a dimension before ``A``, -1 if it removes the dimension in place of ``A``.
        """


@dataclass(frozen=True)
class MeanReturns(Returns):
    """Expected returns.

    Attributes:
        values: ``[N, …]`` or ``[N, …, A]``.
        allowed: see `Returns`.
    """

    values: Tensor
    allowed: Tensor | None = None

    def mean(self) -> Tensor:
        return self.values

    def gather(self, action: Tensor) -> MeanReturns:
        index = action.unsqueeze(-1).expand(*self.values.shape[:-1], 1)
        return MeanReturns(self.values.gather(-1, index).squeeze(-1))

    def min(self) -> MeanReturns:
        lowest = self.values.squeeze(0) if self.values.shape[0] == 1 else self.values.min(0).values
        return MeanReturns(lowest, self.allowed)

    def members(self, index: Tensor) -> MeanReturns:
        return MeanReturns(self.values.index_select(0, index), self.allowed)

    def part(self, index: int) -> MeanReturns:
        return MeanReturns(self.values[:, index], None if self.allowed is None else self.allowed[index])

    def blend(self, share: float) -> MeanReturns:
        if self.values.shape[0] == 1:
            return self.min()
        return MeanReturns(share * self.values.min(0).values + (1 - share) * self.values.max(0).values, self.allowed)

    def average(self) -> MeanReturns:
        return MeanReturns(self.values.mean(0), self.allowed)

    def mix(self, probs: Tensor) -> MeanReturns:
        return MeanReturns((self.values * probs).sum(-1))

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> MeanReturns:
        next_returns = self.values if bonus is None else self.values + bonus
        return MeanReturns((reward + discount * next_returns).detach())

    def td_loss(self, target: MeanReturns, delta: float | None = None) -> Tensor:
        """Return the squared error, or the Huber loss with threshold ``delta`` (half the squared error inside it)."""
        if delta is None:
            return (self.values - target.values).square()
        return F.huber_loss(self.values, target.values.expand_as(self.values), reduction="none", delta=delta)

    def error(self, target: MeanReturns, loss: Tensor) -> Tensor:
        """Return ``|delta|``."""
        return (self.values - target.values).abs()

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> MeanReturns:
        return MeanReturns(function(self.values.unsqueeze(-1)).squeeze(-1))


class _RowReturns(Returns):
    """Base of returns that are rows of numbers: quantiles or probabilities, in the last dimension."""

    def _rows(self) -> Tensor:
        """Return the rows, linear in the return's distribution or its quantiles."""
        raise NotImplementedError

    def _of(self, rows: Tensor) -> Self:
        """Compute returns with other `_rows`."""
        raise NotImplementedError

    def _picked(self, pick: Callable[[Tensor], Tensor]) -> Self:
        """Compute returns with some of the rows."""
        return self._of(pick(self._rows()))

    def gather(self, action: Tensor) -> Self:
        def at_action(rows: Tensor) -> Tensor:  # [N, …, A, Q] at [N, …, action, Q]
            index = action[..., None, None].expand(*rows.shape[:-2], 1, rows.shape[-1])
            return rows.gather(-2, index).squeeze(-2)

        return self._picked(at_action).among(None)

    def min(self) -> Self:
        def lowest(rows: Tensor) -> Tensor:
            return rows.squeeze(0) if rows.shape[0] == 1 else _member(rows, self.mean().argmin(0))

        return self._picked(lowest)

    def members(self, index: Tensor) -> Self:
        return self._picked(lambda rows: rows.index_select(0, index))

    def part(self, index: int) -> Self:
        allowed = None if self.allowed is None else self.allowed[index]
        return self._picked(lambda rows: rows[:, index]).among(allowed)

    def blend(self, share: float) -> Self:
        """See `Returns.blend`. Quantiles are averaged and probabilities mixed, row by row."""
        rows, mean = self._rows(), self.mean()
        if rows.shape[0] == 1:
            return self._of(rows.squeeze(0))
        return self._of(share * _member(rows, mean.argmin(0)) + (1 - share) * _member(rows, mean.argmax(0)))

    def average(self) -> Self:
        """See `Returns.average`. Rows are averaged as in `blend`."""
        return self._of(self._rows().mean(0))

    def mix(self, probs: Tensor) -> Self:
        """See `Returns.mix`. Averaged quantiles have the mixture's mean, but not its shape."""
        return self._of((self._rows() * probs.unsqueeze(-1)).sum(-2)).among(None)

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> Self:
        # averages need rows that are linear in the distribution, and logits are not
        return (self._picked(function) if branches > 0 else self._of(function(self._rows()))).among(None)


@dataclass(frozen=True)
class QuantileReturns(_RowReturns):
    """Quantiles of the return (Dabney et al. 2017, arXiv:1710.10044; Dabney et al. 2018, arXiv:1806.06923).

    Attributes:
        values: ``[N, …, Q]`` or ``[N, …, A, Q]``.
        taus: quantile levels in [0, 1], ``[Q]`` or ``[…, Q]`` (without ``N`` and ``A``).
        allowed: see `Returns`.
        preference: numbers ``[N, …, A]`` by which actions are selected; ``None`` for the mean.
        share: probabilities of the values of a target, like ``values``, which add up to 1; ``None`` if all are equal.
    """

    values: Tensor
    taus: Tensor
    allowed: Tensor | None = None
    preference: Tensor | None = None
    share: Tensor | None = None

    def _rows(self) -> Tensor:
        return self.values

    def _of(self, rows: Tensor) -> QuantileReturns:
        return QuantileReturns(rows, self.taus, self.allowed)

    def mean(self) -> Tensor:
        return self.values.mean(-1) if self.share is None else (self.values * self.share).sum(-1)

    def preferences(self) -> Tensor:
        return self.scores() if self.preference is None else masked(self.preference, self.allowed)

    def part(self, index: int) -> QuantileReturns:
        taus = self.taus if self.taus.dim() == 1 else self.taus[index]
        return replace(super().part(index), taus=taus)

    def mixture(self, probs: Tensor) -> QuantileReturns:
        """Return the quantiles of all actions, each with its action's share."""
        share = (probs / self.values.shape[-1]).unsqueeze(-1).expand_as(self.values)
        return QuantileReturns(self.values.flatten(-2), self.taus, share=share.flatten(-2))

    def pooled(self) -> QuantileReturns:
        """Return the quantiles of all members."""
        return QuantileReturns(self.values.movedim(0, -2).flatten(-2), self.taus)

    def truncated(self, count: int) -> QuantileReturns:
        """Return the quantiles of all members as one mixture, without its ``count`` highest: removes ``N``.

        This is for returns of given actions (Kuznetsov et al. 2020, arXiv:2005.04269, section 4). The levels are the
        midpoints of the remaining quantiles.
        """
        mixture = self.values.movedim(0, -2).flatten(-2).sort(-1).values
        kept = mixture[..., : mixture.shape[-1] - count]
        return QuantileReturns(kept, midpoints(kept.shape[-1], kept.dtype, kept.device))

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> QuantileReturns:
        taus = self.taus
        if taus.dim() > 1:  # all branches of an element have the same levels
            taus = taus.unsqueeze(-2) if branches > 0 else taus.squeeze(-2)
        preference = self.preference
        if preference is not None:
            preference = function(preference.unsqueeze(-1)).squeeze(-1)
        return QuantileReturns(function(self.values), taus, preference=preference)

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> QuantileReturns:
        next_returns = self.values if bonus is None else self.values + bonus.unsqueeze(-1)
        target = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_returns).detach()
        return QuantileReturns(target, self.taus, share=self.share)

    def td_loss(self, target: QuantileReturns, delta: float | None = None) -> Tensor:
        """Return the quantile Huber loss (1806.06923 eq. 3), summed over predicted and averaged over target quantiles.

        ``delta`` is the threshold kappa, 1 by default.
        """
        kappa = 1.0 if delta is None else delta
        target_values, values = target.values.unsqueeze(-2), self.values.unsqueeze(-1)
        error = target_values - values  # [N, …, Q predicted, Q target]
        size = error.abs()
        clipped = size.clamp(max=kappa)
        huber = clipped * (size - 0.5 * clipped)
        weight = (self.taus.unsqueeze(-1) - (error.detach() < 0).to(error.dtype)).abs()
        loss = weight * huber
        loss = (loss.mean(-1) if target.share is None else (loss * target.share.unsqueeze(-2)).sum(-1)).sum(-1)
        return loss if kappa == 1.0 else loss / kappa


@dataclass(frozen=True)
class CategoricalReturns(_RowReturns):
    """Return the distribution on fixed atoms (Bellemare et al. 2017, arXiv:1707.06887).

    Exactly one of ``logits`` (a prediction) and ``probabilities`` (a target) is given.

    Attributes:
        support: evenly spaced, increasing returns of the atoms ``[Z]``.
        logits: ``[N, …, Z]`` or ``[N, …, A, Z]``.
        probabilities: likewise.
        allowed: see `Returns`.
    """

    support: Tensor
    logits: Tensor | None = None
    probabilities: Tensor | None = None
    allowed: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """Probabilities of the atoms."""
        return cast(Tensor, self.logits).softmax(-1) if self.probabilities is None else self.probabilities

    def _rows(self) -> Tensor:
        return self.probs

    def _of(self, rows: Tensor) -> CategoricalReturns:
        return CategoricalReturns(self.support, probabilities=rows, allowed=self.allowed)

    def _picked(self, pick: Callable[[Tensor], Tensor]) -> CategoricalReturns:
        if self.probabilities is None:
            return CategoricalReturns(self.support, logits=pick(cast(Tensor, self.logits)), allowed=self.allowed)
        return self._of(pick(self.probabilities))

    def mean(self) -> Tensor:
        return self.probs @ self.support

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> CategoricalReturns:
        """See `Returns.backup`. The target is projected onto the support."""
        with torch.no_grad():
            atoms = self.support if bonus is None else self.support + bonus.unsqueeze(-1)
            atoms = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
            return CategoricalReturns(self.support, probabilities=project(self.probs, atoms, self.support))

    def td_loss(self, target: CategoricalReturns, delta: float | None = None) -> Tensor:
        """Return the cross-entropy of target and prediction (1707.06887 algorithm 1). ``delta`` is ignored."""
        return -(target.probs * cast(Tensor, self.logits).log_softmax(-1)).sum(-1)


def project(probs: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """Move probability mass from ``atoms`` to the nearest two points of ``support`` (1707.06887 eq. 7).

    Atoms outside the support go to its ends; an atom exactly on a point gives that point all its mass.

    Args:
        probs: masses ``[…, Z]``.
        atoms: positions of the masses ``[…, Z]``; broadcasts against ``probs``.
        support: evenly spaced, increasing points ``[Z]``.
    """
    last = support.shape[0] - 1
    position = ((atoms - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last).expand_as(probs)
    if probs.device.type != "cpu":  # a GPU would add masses in random order, and runs would not be reproducible
        return _all_to_all(probs, position)
    lower = position.floor()
    to_upper = probs * (position - lower)
    index = lower.long()
    projected = torch.zeros_like(probs).scatter_add(-1, index, probs - to_upper)
    return projected.scatter_add(-1, (index + 1).clamp(max=last), to_upper)


def _all_to_all(probs: Tensor, position: Tensor) -> Tensor:
    """Project as `project` does, with positions in units of the grid: each point sums the shares of all atoms."""
    distance = position.unsqueeze(-1) - torch.arange(probs.shape[-1], device=probs.device)
    return (probs.unsqueeze(-1) * (1 - distance.abs()).clamp(min=0)).sum(-2)


def _member(values: Tensor, index: Tensor) -> Tensor:
    """Return ``values`` ``[N, …, Q]`` of the members ``index`` ``[…]``."""
    return values.gather(0, index[None, ..., None].expand(1, *values.shape[1:])).squeeze(0)
