"""Heads: features of an ensemble to returns.

Every head maps ``[N or 1, …, F]`` to a value of `birl.models.value_distributions` with leading dimensions ``[N, …]``,
or ``[N, …, A]`` for ``n_actions`` discrete actions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from birl.models.dueling import DuelingStreams, LastLayers
from birl.models.layers import EnsembleLinear
from birl.models.noisy import Random
from birl.models.risk import RiskMeasure
from birl.models.value_distributions import CategoricalReturns, MeanReturns, QuantileReturns, midpoints

_LINEAR = LastLayers()


class _LinearHead(nn.Module):
    def __init__(
        self, n: int, feature_size: int, n_actions: int | None, size: int = 1, last: LastLayers = _LINEAR
    ) -> None:
        super().__init__()
        self.linear = last.build(n, feature_size, n_actions, size)
        self.n_actions = n_actions

    def _rows(self, features: Tensor) -> Tensor:
        """Return rows of ``size`` outputs for each member, element and discrete action."""
        rows: Tensor = self.linear(features)
        return rows if self.n_actions is None else rows.view(*rows.shape[:-1], self.n_actions, -1)


class MeanHead(_LinearHead):
    """Expected returns.

    Args:
        n: number of members.
        feature_size: size of the last input dimension.
        n_actions: number of discrete actions, or ``None``.
        last: options of the last layers.
    """

    def __init__(self, n: int, feature_size: int, n_actions: int | None, last: LastLayers = _LINEAR) -> None:
        super().__init__(n, feature_size, n_actions, last=last)

    def forward(self, features: Tensor) -> MeanReturns:
        """Compute returns of ``features``."""
        values: Tensor = self.linear(features)
        return MeanReturns(values.squeeze(-1) if self.n_actions is None else values)


class QuantileHead(_LinearHead):
    """Quantiles at fixed midpoint levels (Dabney et al. 2017, arXiv:1710.10044).

    Args:
        n, feature_size, n_actions, last: see `MeanHead`.
        n_quantiles: number of quantiles.
        risk: risk measure for the selection of actions; ``None`` for their means.
    """

    taus: Tensor
    masses: Tensor | None

    def __init__(
        self,
        n: int,
        feature_size: int,
        n_actions: int | None,
        n_quantiles: int,
        risk: RiskMeasure | None = None,
        last: LastLayers = _LINEAR,
    ) -> None:
        super().__init__(n, feature_size, n_actions, n_quantiles, last)
        self.register_buffer("taus", midpoints(n_quantiles), persistent=False)
        masses = None if risk is None else risk.masses(n_quantiles)
        self.register_buffer("masses", masses, persistent=False)

    def forward(self, features: Tensor) -> QuantileReturns:
        """Compute returns of ``features``."""
        values = self._rows(features)
        preference = None if self.masses is None else (values * self.masses).sum(-1)
        return QuantileReturns(values, self.taus, preference=preference)


class CategoricalHead(_LinearHead):
    """Categorical distribution on fixed atoms (Bellemare et al. 2017, arXiv:1707.06887).

    Args:
        n, feature_size, n_actions, last: see `MeanHead`.
        n_atoms: number of atoms.
        v_min, v_max: the lowest and highest return.
    """

    support: Tensor

    def __init__(
        self,
        n: int,
        feature_size: int,
        n_actions: int | None,
        n_atoms: int,
        v_min: float,
        v_max: float,
        last: LastLayers = _LINEAR,
    ) -> None:
        super().__init__(n, feature_size, n_actions, n_atoms, last)
        self.register_buffer("support", torch.linspace(v_min, v_max, n_atoms), persistent=False)

    def forward(self, features: Tensor) -> CategoricalReturns:
        """Compute returns of ``features``."""
        return CategoricalReturns(self.support, logits=self._rows(features))


class ImplicitQuantileHead(Random):
    """Quantiles at random levels (Dabney et al. 2018, arXiv:1806.06923 eq. 4, with cosines ``i = 1 … embed_size``).

    All members of an ensemble have the same levels, so that their quantiles can be compared and mixed.

    Args:
        n, feature_size, n_actions, last: see `MeanHead`.
        n_quantiles: number of levels drawn for each element.
        n_greedy_quantiles: number of fixed levels while acting.
        embed_size: number of cosines.
        n_choice_quantiles: number of separate levels by which actions are selected in training; ``None`` for
            ``n_quantiles`` levels with a risk measure, and for the levels of the returns without one.
        n_target_quantiles: number of levels drawn without gradients, as targets are; ``None`` for ``n_quantiles``.
        risk: risk measure for the selection of actions; ``None`` for their means.

    Attributes:
        greedy: whether levels are fixed midpoints.
    """

    frequencies: Tensor
    greedy_taus: Tensor
    choice_taus: Tensor | None

    def __init__(
        self,
        n: int,
        feature_size: int,
        n_actions: int | None,
        n_quantiles: int,
        n_greedy_quantiles: int,
        embed_size: int,
        n_choice_quantiles: int | None = None,
        n_target_quantiles: int | None = None,
        risk: RiskMeasure | None = None,
        last: LastLayers = _LINEAR,
    ) -> None:
        super().__init__()
        self.embedding = EnsembleLinear(n, embed_size, feature_size, last.noisy)
        self.linear = last.build(n, feature_size, n_actions)
        self.n_quantiles, self.n_target_quantiles = n_quantiles, n_target_quantiles or n_quantiles
        self.is_discrete = n_actions is not None
        self.register_buffer("frequencies", math.pi * torch.arange(1.0, embed_size + 1.0), persistent=False)
        self.register_buffer("greedy_taus", midpoints(n_greedy_quantiles), persistent=False)
        self._risk, self._n_choice = risk, n_choice_quantiles or (n_quantiles if risk else 0)
        choice_taus = None if risk is None else risk.levels(n_greedy_quantiles)
        self.register_buffer("choice_taus", choice_taus, persistent=False)

    def forward(self, features: Tensor, choose: bool = True) -> QuantileReturns:
        """Return the returns of ``features``; with ``choose`` also the preferences of actions, if they differ."""
        count = self.n_quantiles if torch.is_grad_enabled() else self.n_target_quantiles
        taus = self.greedy_taus if self.greedy else self._drawn(features, count, None)
        choice = None
        if choose and self.is_discrete:
            choice = self.choice_taus if self.greedy else None
            if not self.greedy and self._n_choice:
                choice = self._drawn(features, self._n_choice, self._risk)
        if choice is None:
            return QuantileReturns(self._quantiles(features, taus), taus)
        # in one pass, so that both have the same noise
        both = self._quantiles(features, torch.cat((taus, choice), -1))
        values, others = both.split([taus.shape[-1], choice.shape[-1]], -1)
        return QuantileReturns(values, taus, preference=others.mean(-1))

    def _drawn(self, features: Tensor, n: int, risk: RiskMeasure | None) -> Tensor:
        """Draw ``n`` random levels for each element."""
        size = (*features.shape[1:-1], n)
        if risk is not None:
            return risk.draw(size, features)
        return torch.rand(size, dtype=features.dtype, device=features.device)

    def _quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        """Return quantiles ``[N, …, Q]`` or ``[N, …, A, Q]`` at the levels ``[Q]`` or ``[…, Q]``."""
        embedding = torch.relu(self.embedding((taus.unsqueeze(-1) * self.frequencies).cos().unsqueeze(0)))
        ones = (1,) * (features.dim() - 2)
        if self.greedy:  # [N, Q, F]: one embedding for all elements
            embedding = embedding.view(embedding.shape[0], *ones, *embedding.shape[1:])
        if isinstance(self.linear, DuelingStreams):
            values = self.linear(features.unsqueeze(-2) * embedding)
        else:  # (features * embedding) @ weight, without a product as large as the embedding
            weight, bias = self.linear.tensors()
            weight = features.unsqueeze(-1) * weight.view(weight.shape[0], *ones, *weight.shape[1:])
            values = embedding @ weight + bias.view(bias.shape[0], *ones, 1, -1)
        return values.transpose(-1, -2) if self.is_discrete else values.squeeze(-1)
