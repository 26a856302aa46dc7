"""Critics of several choices at once: a value of each option (Tavakoli et al. 2018, arXiv:1711.08946)."""

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

    A branch's greedy option is its own (eq. 3). The next state's return is the mean over the branches (eq. 6), and each
    branch is compared with it (eq. 7).

    Attributes:
        inner: returns ``[N, …, D, A]``, or ``[N, …, D]`` of an action.
        of_action: whether ``inner`` has no more ``A``.
    """

    inner: Returns
    of_action: bool = False

    @classmethod
    def of(cls, returns: Returns, actions: MultiDiscrete, mask: Tensor | None) -> BranchReturns:
        """Returns of all options of ``actions``.

        Args:
            returns: ``[N, …, size + 1]``: advantages of all options, and at last the value of the state.
            actions: the choices.
            mask: bool ``[…, size]`` of the options that are allowed; ``None`` if all are.
        """

        def split(rows: Tensor) -> Tensor:
            """``V + A_d - mean A_d`` (eq. 1), by branch."""
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
        """Expected returns ``[N, …, D, A]``; of an action ``[N, …]``, the mean over its branches."""
        values = self.inner.mean()
        return values.mean(-1) if self.of_action else values

    def scores(self) -> Tensor:
        return self.inner.scores()

    def preferences(self) -> Tensor:
        return self.inner.preferences()

    def best(self) -> Tensor:
        """The action ``[…, D]`` of the options with the highest expected returns."""
        return self.inner.best()

    def gap(self, action: Tensor) -> Tensor:
        """Of ``action`` ``[…, D]``: the mean over the branches, as the values of actions are."""
        return self.inner.gap(action).mean(-1)

    def policy(self, temperature: float) -> Categorical:
        """The Boltzmann policy of all combinations of options.

        The value of one is the mean over the branches, so ``exp(mean / temperature)`` is a product of the branches':
        each has a policy of its own, with ``D`` times the temperature.
        """
        logits = self.preferences().mean(0) / temperature
        return Categorical(logits / logits.shape[-2], self.allowed, several=True)

    def gather(self, action: Tensor) -> BranchReturns:
        return BranchReturns(self.inner.gather(action), of_action=True)

    def min(self) -> BranchReturns:
        """Branch by branch."""
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
        """Branch by branch, with ``probs`` ``[…, D, A]``."""
        return BranchReturns(self.inner.mix(probs), of_action=True)

    def backup(self, reward: Tensor, discount: Tensor, bonus: Tensor | None = None) -> Returns:  # type: ignore[override]
        """Eq. 6: the target ``[…]`` of all branches, from the mean over them."""
        mean = self.inner.reshaped(lambda rows: rows.mean(-2), -1)
        return mean.backup(reward, discount, bonus)

    def td_loss(self, target: Returns, delta: float | None = None) -> Tensor:  # type: ignore[override]
        """Eq. 7: the mean over the branches of each one's loss."""
        return self.inner.td_loss(_repeated(target), delta).mean(-1)

    def error(self, target: Returns, loss: Tensor) -> Tensor:  # type: ignore[override]
        """The mean over the branches of each one's error (eq. 8, divided by their number)."""
        repeated = _repeated(target)
        return self.inner.error(repeated, self.inner.td_loss(repeated)).mean(-1)

    def reshaped(self, function: object, branches: int) -> BranchReturns:
        raise NotImplementedError("branches have no branches")


def _repeated(target: Returns) -> Returns:
    """A target ``[…]`` with a dimension of one branch: ``[…, 1]``."""
    return target.reshaped(lambda rows: rows.unsqueeze(-2), 1)
