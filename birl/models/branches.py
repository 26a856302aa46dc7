"""Critics for several discrete choices, with a value for each option (Tavakoli et al. 2018, arXiv:1711.08946)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from birl.models.distributions import Categorical
from birl.models.value_distributions import Returns
from birl.spaces import MultiDiscrete


@dataclass(frozen=True)
class BranchReturns(Returns):
    """Returns of several choices, the *branches* ``D``; see `birl.models.value_distributions.Returns`.

    Each branch has its own greedy option (eq. 3). The return of the next state is the mean over the branches (eq. 6),
    and the target of each branch (eq. 7).

    Attributes:
        inner: returns ``[N, …, D, A]``, or ``[N, …, D]`` of an action.
        of_action: whether ``inner`` belongs to an action, without the dimension ``A``.
    """

    inner: Returns
    of_action: bool = False

    @classmethod
    def of(cls, returns: Returns, actions: MultiDiscrete, mask: Tensor | None) -> BranchReturns:
        """Compute returns of all options of ``actions``.

        Args:
            returns: ``[N, …, size + 1]``: advantages of all options, then the value of the state.
            actions: the choices.
            mask: bool ``[…, size]``: the options that are allowed; ``None`` if all are.
        """

        def split(rows: Tensor) -> Tensor:
            """Return ``V + A_d - mean A_d`` (eq. 1) for each branch."""
            *advantages, value = rows.split([*actions.sizes, 1], -2)
            centred = torch.cat([value + each - each.mean(-2, keepdim=True) for each in advantages], -2)
            return actions.to_branches(centred.transpose(-1, -2)).movedim(-3, -1)

        inner = returns.reshaped(split, 1)
        return cls(inner.among(actions.mask_to_branches(mask, returns.mean())))

    @property
    def allowed(self) -> Tensor | None:
        return self.inner.allowed

    def among(self, allowed: Tensor | None) -> BranchReturns:
        return BranchReturns(self.inner.among(allowed), self.of_action)

    def mean(self) -> Tensor:
        """Return expected returns ``[N, …, D, A]``; for an action ``[N, …]``, their mean over the branches."""
        values = self.inner.mean()
        return values.mean(-1) if self.of_action else values

    def scores(self) -> Tensor:
        return self.inner.scores()

    def preferences(self) -> Tensor:
        return self.inner.preferences()

    def best(self) -> Tensor:
        """Return the action ``[…, D]`` of the options with the highest expected returns."""
        return self.inner.best()

    def gap(self, action: Tensor) -> Tensor:
        """Return the gap of ``action`` ``[…, D]``: its mean over the branches, as for values."""
        return self.inner.gap(action).mean(-1)

    def soft_gap(self, action: Tensor) -> Tensor:
        """Return the mean over the branches of the gap of each, ``[N, …]``."""
        return self.inner.soft_gap(action).mean(-1)

    def policy(self, temperature: float) -> Categorical:
        """Return the Boltzmann policy of all combinations of options.

        The value of a combination is the mean over the branches, so ``exp(mean / temperature)`` is a product over the
        branches: each has its own policy, with ``D`` times the temperature.
        """
        logits = self.preferences().mean(0) / temperature
        return Categorical(logits / logits.shape[-2], self.allowed, several=True)

    def gather(self, action: Tensor) -> BranchReturns:
        return BranchReturns(self.inner.gather(action), of_action=True)

    def min(self) -> BranchReturns:
        """Return the minimum of each branch."""
        return BranchReturns(self.inner.min(), self.of_action)

    def members(self, index: Tensor) -> BranchReturns:
        return BranchReturns(self.inner.members(index), self.of_action)

    def part(self, index: int) -> BranchReturns:
        return BranchReturns(self.inner.part(index), self.of_action)

    def blend(self, share: float) -> BranchReturns:
        return BranchReturns(self.inner.blend(share), self.of_action)

    def average(self) -> BranchReturns:
        return BranchReturns(self.inner.average(), self.of_action)

    def mix(self, probs: Tensor) -> BranchReturns:
        """Mix each branch, with ``probs`` ``[…, D, A]``."""
        return BranchReturns(self.inner.mix(probs), of_action=True)

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> Returns:  # type: ignore[override]
        """Return the target ``[…]`` of all branches, from their mean (eq. 6)."""
        mean = self.inner.reshaped(lambda rows: rows.mean(-2), -1)
        return mean.backup(reward, discount, bonus)

    def td_loss(self, target: Returns, delta: float | None = None) -> Tensor:  # type: ignore[override]
        """Return the mean loss of the branches (eq. 7)."""
        return self.inner.td_loss(_repeated(target), delta).mean(-1)

    def error(self, target: Returns, loss: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean error of the branches (eq. 8, divided by their number)."""
        repeated = _repeated(target)
        return self.inner.error(repeated, self.inner.td_loss(repeated)).mean(-1)

    def reshaped(self, function: object, branches: int) -> BranchReturns:
        raise NotImplementedError("branches have no branches")


def _repeated(target: Returns) -> Returns:
    """Add a dimension of one branch to a target ``[…]``: ``[…, 1]``."""
    return target.reshaped(lambda rows: rows.unsqueeze(-2), 1)
