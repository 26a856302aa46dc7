"""A critic's estimate of the return, as one value type: an expectation, quantiles or a categorical distribution.

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
    """The middles of ``n`` equal parts of [0, 1] (1710.10044 lemma 2)."""
    return (torch.arange(n, dtype=dtype, device=device) + 0.5) / n


class Returns(Protocol):
    """A critic's output. ``A`` below stands for the action dimension, which only discrete critics have.

    Attributes:
        allowed: bool ``[…, A]``: the actions that may be taken; ``None`` if all may.
    """

    @property
    def allowed(self) -> Tensor | None:
        """See above."""

    def among(self, allowed: Tensor | None) -> Self:
        """The same returns, where only some actions may be taken."""
        return replace(self, allowed=allowed)  # type: ignore[type-var]

    def mean(self) -> Tensor:
        """Expected return ``[N, …, A]``."""

    def scores(self) -> Tensor:
        """Expected returns ``[N, …, A]``, very low for actions that are not allowed."""
        return masked(self.mean(), self.allowed)

    def preferences(self) -> Tensor:
        """What choices are made by ``[N, …, A]``: `scores`, or those of a risk measure or of levels of its own."""
        return self.scores()

    def best(self) -> Tensor:
        """The action ``[…]`` of the highest preference, averaged over the ensemble: the greedy action."""
        return self.preferences().mean(0).argmax(-1)

    def gap(self, action: Tensor) -> Tensor:
        """How much less int64 ``action`` ``[…]`` is worth than the best one: ``[…]``, at least 0.

        By expected returns, averaged over the ensemble. It is very large where the action is not allowed.
        """
        scores = self.scores().mean(0)
        return scores.amax(-1) - scores.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def policy(self, temperature: float) -> Categorical:
        """The Boltzmann policy: probabilities proportional to ``exp(preference / temperature)``.

        Of `preferences` that are averaged over the ensemble. Actions that are not allowed have none.
        """
        return Categorical(self.preferences().mean(0) / temperature, self.allowed)

    def gather(self, action: Tensor) -> Self:
        """The returns of int64 ``action`` ``[…]``: removes ``A``."""

    def min(self) -> Self:
        """For each element the member with the lowest mean: removes ``N``."""

    def members(self, index: Tensor) -> Self:
        """The returns of the members int64 ``index`` ``[M]``: ``M`` takes the place of ``N``."""

    def part(self, index: int) -> Self:
        """The returns at ``index`` of the dimension after ``N``, which is removed."""

    def blend(self, share: float) -> Self:
        """``share * lowest + (1 - share) * highest`` of the members, by their means: removes ``N``.

        A soft clipped double Q-learning target (Fujimoto et al. 2019, arXiv:1812.02900, eq. 13).
        """

    def average(self) -> Self:
        """Mean over the ensemble: removes ``N``."""

    def pooled(self) -> Self:
        """The return of a member drawn at random, to make a target of: removes ``N``. Its mean is that of `average`."""
        return self.average()

    def mix(self, probs: Tensor) -> Self:
        """Expectation over actions with probabilities ``probs`` ``[…, A]``: removes ``A``."""

    def mixture(self, probs: Tensor) -> Self:
        """The return of an action drawn with ``probs`` ``[…, A]``, to make a target of: removes ``A``.

        Its mean is that of `mix`. Its shape is the mixture's, but for several choices at once, which are mixed.
        """
        return self.mix(probs)

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> Self:
        """The target ``reward + discount * (Z + bonus)``, detached.

        Args:
            reward: ``[…]``.
            discount: ``[…]``, 0 where the episode terminated.
            bonus: ``[…]``, added to the next value, such as ``-temperature * log_prob``.
        """

    def td_loss(self, target: Self, delta: float | None = None) -> Tensor:
        """Temporal-difference loss ``[N, …]``, one value for each element, against a ``target`` without ``N``.

        Args:
            target: made by `backup`.
            delta: Huber threshold where the loss has one.
        """

    def error(self, target: Self, loss: Tensor) -> Tensor:
        """Size ``[N, …]`` of the TD error, by which steps are prioritised: of distributions it is the ``loss``."""
        return loss

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> Self:
        """The same kind of returns, of other rows.

        Args:
            function: takes rows ``[…, A, Q]`` (of expectations, which are one number: ``[…, A, 1]``) and gives others.
            branches: 1 if it adds a dimension before ``A``, -1 if it removes the one it takes for ``A``.
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
        """Squared error, or the Huber loss with threshold ``delta`` (half the squared error inside it)."""
        if delta is None:
            return (self.values - target.values).square()
        return F.huber_loss(self.values, target.values.expand_as(self.values), reduction="none", delta=delta)

    def error(self, target: MeanReturns, loss: Tensor) -> Tensor:
        """``|delta|``."""
        return (self.values - target.values).abs()

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> MeanReturns:
        return MeanReturns(function(self.values.unsqueeze(-1)).squeeze(-1))


class _RowReturns(Returns):
    """Base of returns that are rows of numbers: quantiles or probabilities, in the last dimension."""

    def _rows(self) -> Tensor:
        """The rows, linear in the return's distribution or its quantiles."""
        raise NotImplementedError

    def _of(self, rows: Tensor) -> Self:
        """Returns with other `_rows`."""
        raise NotImplementedError

    def _picked(self, pick: Callable[[Tensor], Tensor]) -> Self:
        """Returns with some of the rows."""
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
        """Row by row: quantiles are averaged, probabilities mixed."""
        rows, mean = self._rows(), self.mean()
        if rows.shape[0] == 1:
            return self._of(rows.squeeze(0))
        return self._of(share * _member(rows, mean.argmin(0)) + (1 - share) * _member(rows, mean.argmax(0)))

    def average(self) -> Self:
        """Row by row, as `blend`."""
        return self._of(self._rows().mean(0))

    def mix(self, probs: Tensor) -> Self:
        """Row by row. Averaged quantiles have the mixture's mean, but not its shape."""
        return self._of((self._rows() * probs.unsqueeze(-1)).sum(-2)).among(None)

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> Self:
        # what is averaged must be linear in the distribution, as logits are not
        return (self._picked(function) if branches > 0 else self._of(function(self._rows()))).among(None)


@dataclass(frozen=True)
class QuantileReturns(_RowReturns):
    """Quantiles of the return (Dabney et al. 2017, arXiv:1710.10044; Dabney et al. 2018, arXiv:1806.06923).

    Attributes:
        values: ``[N, …, Q]`` or ``[N, …, A, Q]``.
        taus: quantile levels in [0, 1], ``[Q]`` or ``[…, Q]`` (without ``N`` and ``A``).
        allowed: see `Returns`.
        preference: ``[N, …, A]``, by which actions are chosen instead of the mean; ``None`` for the mean.
        share: probabilities of the values of a target, which add up to 1, like ``values``; ``None`` if all are equal.
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
        """The quantiles of all actions, each with its action's share."""
        share = (probs / self.values.shape[-1]).unsqueeze(-1).expand_as(self.values)
        return QuantileReturns(self.values.flatten(-2), self.taus, share=share.flatten(-2))

    def pooled(self) -> QuantileReturns:
        """The quantiles of all members."""
        return QuantileReturns(self.values.movedim(0, -2).flatten(-2), self.taus)

    def truncated(self, count: int) -> QuantileReturns:
        """The quantiles of all members as one mixture, without its ``count`` highest: removes ``N``.

        For returns of given actions (Kuznetsov et al. 2020, arXiv:2005.04269, section 4). Levels are those of as many
        equal parts.
        """
        mixture = self.values.movedim(0, -2).flatten(-2).sort(-1).values
        kept = mixture[..., : mixture.shape[-1] - count]
        return QuantileReturns(kept, midpoints(kept.shape[-1], kept.dtype, kept.device))

    def reshaped(self, function: Callable[[Tensor], Tensor], branches: int) -> QuantileReturns:
        taus = self.taus
        if taus.dim() > 1:  # levels of each element are those of all branches
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
        """Quantile Huber loss (1806.06923 eq. 3), summed over predicted and averaged over target quantiles.

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
    """Return distribution on fixed atoms (Bellemare et al. 2017, arXiv:1707.06887).

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
        """Projected back onto the support."""
        with torch.no_grad():
            atoms = self.support if bonus is None else self.support + bonus.unsqueeze(-1)
            atoms = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
            return CategoricalReturns(self.support, probabilities=project(self.probs, atoms, self.support))

    def td_loss(self, target: CategoricalReturns, delta: float | None = None) -> Tensor:
        """Cross-entropy of the projected target and the prediction (1707.06887 algorithm 1). ``delta`` is ignored."""
        return -(target.probs * cast(Tensor, self.logits).log_softmax(-1)).sum(-1)


def project(probs: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """Move probability mass from ``atoms`` to the nearest two points of ``support`` (1707.06887 eq. 7).

    Atoms outside the support go to its ends; an atom exactly on a point gives that point all its mass.

    Args:
        probs: masses ``[…, Z]``.
        atoms: where they lie ``[…, Z]``; broadcasts against ``probs``.
        support: evenly spaced, increasing points ``[Z]``.
    """
    last = support.shape[0] - 1
    position = ((atoms - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last).expand_as(probs)
    if probs.device.type != "cpu":  # a GPU would add the masses of a point in any order, and runs would not repeat
        return _all_to_all(probs, position)
    lower = position.floor()
    to_upper = probs * (position - lower)
    index = lower.long()
    projected = torch.zeros_like(probs).scatter_add(-1, index, probs - to_upper)
    return projected.scatter_add(-1, (index + 1).clamp(max=last), to_upper)


def _all_to_all(probs: Tensor, position: Tensor) -> Tensor:
    """The same, given positions in units of the points' distance: each point adds the shares of all atoms in order."""
    distance = position.unsqueeze(-1) - torch.arange(probs.shape[-1], device=probs.device)
    return (probs.unsqueeze(-1) * (1 - distance.abs()).clamp(min=0)).sum(-2)


def _member(values: Tensor, index: Tensor) -> Tensor:
    """``values`` ``[N, …, Q]`` of the members ``index`` ``[…]``."""
    return values.gather(0, index[None, ..., None].expand(1, *values.shape[1:])).squeeze(0)
