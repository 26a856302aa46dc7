"""Q-functions, which are ensembles of an encoder and a head, and factories of heads."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from birl.checks import check
from birl.errors import ConfigError, ShapeError
from birl.files.serializable import Serializable
from birl.models.branches import BranchReturns
from birl.models.dueling import DuelingStreams, LastLayers
from birl.models.encoder_modules import SimBaEncoder, VectorEncoder
from birl.models.encoders import SIZE, EncoderFactory
from birl.models.heads import CategoricalHead, ImplicitQuantileHead, MeanHead, QuantileHead
from birl.models.layers import EnsembleLayerNorm, EnsembleLinear
from birl.models.matmul import NEVER, products
from birl.models.networks import Network, scale_parameters
from birl.models.noisy import check_noisy
from birl.models.risk import RiskMeasure
from birl.models.value_distributions import Returns
from birl.spaces import MultiDiscrete
from birl.spaces.specs import Spec
from birl.types import Inputs


class QFunctionFactory(Serializable):
    """Base of Q-function factories.

    Attributes:
        share_encoder: whether the members of an ensemble share one encoder.
    """

    share_encoder: bool

    @abstractmethod
    def create_head(self, n: int, feature_size: int, n_actions: int | None) -> nn.Module:
        """Make a head for ``n`` members: ``forward(features [N or 1, …, feature_size]) -> Returns``.

        Args:
            n: number of members.
            feature_size: size of the last input dimension.
            n_actions: number of discrete actions, or ``None`` if the action is part of the features.
        """


register_q_func_factory = QFunctionFactory.register


_OF_ALL_HEADS = ("share_encoder", "dueling", "trunk_gradient", "noisy")


@dataclass(frozen=True)
class _HeadFactory(QFunctionFactory):
    """Base of factories whose further fields are the last arguments of a head."""

    share_encoder: bool = False
    dueling: bool | list[int] = field(default=False, kw_only=True)
    trunk_gradient: float | None = field(default=None, kw_only=True)
    noisy: bool | float = field(default=False, kw_only=True)

    _head: ClassVar[type[nn.Module]]

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        owner = type(self).__name__
        check(f"{owner}.share_encoder", self.share_encoder, bool)
        check_noisy(f"{owner}.noisy", self.noisy)
        if not isinstance(self.dueling, bool):
            sizes = self.dueling
            if not isinstance(sizes, list | tuple) or not all(map(SIZE.accepts, sizes)):
                raise ConfigError(f"{owner}.dueling is {sizes!r:.80}; it must be True, False or a list of ints >= 1")
        check(f"{owner}.trunk_gradient", self.trunk_gradient, float, low=0, optional=True)
        if self.trunk_gradient is not None and self.dueling is False:
            raise ConfigError(f"{owner}.trunk_gradient is {self.trunk_gradient}, which is for dueling=True only")
        if hasattr(self, "risk"):
            object.__setattr__(self, "risk", RiskMeasure.from_shorthand(self.risk))
            hint = ", such as birl.models.CVaR()"
            check(f"{owner}.risk", self.risk, RiskMeasure, hint, optional=True)  # type: ignore[type-abstract]
        for name, default in self._options(type(self)).items():
            if isinstance(default, int):
                check(f"{type(self).__name__}.{name}", getattr(self, name), int, low=1)

    def create_head(self, n: int, feature_size: int, n_actions: int | None, *, branching: bool = False) -> nn.Module:
        return self._head(
            n, feature_size, n_actions, **self._options(self), last=self._last(feature_size, n_actions, branching)
        )

    def _last(self, feature_size: int, n_actions: int | None, branching: bool) -> LastLayers:
        for name in ("risk", "n_choice_quantiles"):
            if n_actions is None and getattr(self, name, None) is not None:
                raise ConfigError(
                    f"{type(self).__name__} has {name}={getattr(self, name)}, which is for the selection of discrete "
                    "actions, but here a policy selects continuous actions: leave it out"
                )
        if self.dueling is False:
            return LastLayers(noisy=self.noisy)
        if n_actions is None:
            raise ConfigError(
                f"{type(self).__name__} has dueling={self.dueling}, which separates the value of a state from the "
                "advantages of its actions, but this Q-function reads one action: leave dueling out, or use an "
                "algorithm for discrete actions"
            )
        streams = [feature_size] if self.dueling is True else self.dueling
        if branching and not streams:
            raise ConfigError(
                f"{type(self).__name__} has dueling=[], but networks for several choices are dueling without it: "
                "leave it out, or give the sizes of hidden layers"
            )
        return LastLayers(streams, self.trunk_gradient, branching, self.noisy)

    def _options(self, owner: object) -> dict[str, Any]:
        return {each.name: getattr(owner, each.name) for each in fields(self) if each.name not in _OF_ALL_HEADS}


@dataclass(frozen=True)
class MeanQFunctionFactory(_HeadFactory, type="mean"):
    """Expected returns (Mnih et al. 2015, doi:10.1038/nature14236).

    Attributes:
        share_encoder: whether the members of an ensemble share one encoder. The gradient of the encoder is the sum over
            the members (d3rlpy: the mean).
        dueling: whether the returns of discrete actions are ``V + A - mean A``, from two streams of layers
            (arXiv:1511.06581 eq. 9). Quantile heads compute this for each quantile, categorical heads for each atom,
            before the softmax. ``True`` makes streams with one hidden layer as wide as the features; a list gives the
            sizes of the hidden layers. Networks for several choices (``MultiDiscrete``) always compute a value and
            advantages; this option gives the two separate streams of layers.
        trunk_gradient: factor on the gradients that flow from the two streams to the encoder, or ``None``; 1 / sqrt 2
            in the paper.
        noisy: whether all layers have learned noise, by which networks explore (arXiv:1706.10295 eqs. 9-11), or the
            initial amount of noise: ``True`` is the paper's 0.5. Encoders have an option of the same name.
    """

    _head = MeanHead


@dataclass(frozen=True)
class QRQFunctionFactory(_HeadFactory, type="qr"):
    """Quantile regression (Dabney et al. 2017, arXiv:1710.10044).

    Attributes:
        share_encoder, dueling, trunk_gradient, noisy: see `MeanQFunctionFactory`.
        n_quantiles: number of quantiles.
        risk: risk measure by which actions are selected, when acting and for targets: a measure of `birl.models.risk`,
            such as ``CVaR()``, or its name; ``None`` for the mean. Losses do not change.
    """

    n_quantiles: int = 32
    risk: RiskMeasure | None = field(default=None, kw_only=True)

    _head = QuantileHead


@dataclass(frozen=True)
class IQNQFunctionFactory(_HeadFactory, type="iqn"):
    """Implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923).

    Attributes:
        share_encoder, dueling, trunk_gradient, noisy: see `MeanQFunctionFactory`.
        n_quantiles: number of random quantile levels in training.
        n_greedy_quantiles: number of fixed quantile levels while acting.
        embed_size: number of cosines in the embedding of a level.
        n_choice_quantiles: number of separate random quantile levels by which actions of targets are selected (K in the
            paper, 32); ``None`` for the levels that also estimate their values.
        n_target_quantiles: number of random quantile levels of targets (N' in the paper, where ``n_quantiles`` is N);
            ``None`` for ``n_quantiles``.
        risk: see `QRQFunctionFactory`.
    """

    n_quantiles: int = 64
    n_greedy_quantiles: int = 32
    embed_size: int = 64
    n_choice_quantiles: int | None = field(default=None, kw_only=True)
    n_target_quantiles: int | None = field(default=None, kw_only=True)
    risk: RiskMeasure | None = field(default=None, kw_only=True)

    _head = ImplicitQuantileHead

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_choice_quantiles", "n_target_quantiles"):
            check(f"IQNQFunctionFactory.{name}", getattr(self, name), int, low=1, optional=True)


@dataclass(frozen=True)
class C51QFunctionFactory(_HeadFactory, type="c51"):
    """Categorical distribution over returns (Bellemare et al. 2017, arXiv:1707.06887).

    Attributes:
        share_encoder, dueling, trunk_gradient, noisy: see `MeanQFunctionFactory`.
        n_atoms: number of atoms, at least 2.
        v_min, v_max: lowest and highest representable return; returns outside are clipped to these.
    """

    n_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0

    _head = CategoricalHead

    def __post_init__(self) -> None:
        super().__post_init__()
        check("C51QFunctionFactory.n_atoms", self.n_atoms, int, low=2)
        numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (self.v_min, self.v_max))
        if not (numbers and self.v_min < self.v_max):
            raise ConfigError(
                f"v_min is {self.v_min!r} and v_max is {self.v_max!r}; v_min must be below v_max, both finite"
            )


def _last_layers(head: nn.Module) -> list[nn.Module]:
    """Return the last layers of a head: its ``linear``, or the ends of a dueling network's streams."""
    last = getattr(head, "linear", None)
    if isinstance(last, DuelingStreams):
        return [last.value[-1], last.advantage[-1]]
    return [] if last is None else [last]


_STACKED = (EnsembleLinear, EnsembleLayerNorm)


class _QFunction(Network):
    _reads_action: ClassVar[bool]

    def __init__(
        self,
        spec: Spec,
        encoder_factory: EncoderFactory,
        q_func_factory: QFunctionFactory,
        n_ensembles: int = 1,
    ) -> None:
        share = q_func_factory.share_encoder
        actions, n_actions = (spec.actions, None) if self._reads_action else (None, spec.actions.size)
        branching: dict[str, Any] = {}
        if n_actions is not None and isinstance(spec.actions, MultiDiscrete):
            n_actions += 1  # the value of the state; see `BranchReturns`
            branching = {"branching": True} if isinstance(q_func_factory, _HeadFactory) else {}
        encoder = encoder_factory.build(spec.encoder_shape, actions, None if share else n_ensembles)
        super().__init__(spec, encoder, with_action=self._reads_action)
        self.head = q_func_factory.create_head(n_ensembles, self.feature_size, n_actions, **branching)
        for layer in _last_layers(self.head):
            scale_parameters(layer, encoder_factory.output_scale)
        self.share_encoder, self.n_ensembles = share, n_ensembles

    def _returns(self, inputs: Inputs, action: Tensor | None, choose: bool = True) -> Returns:
        return self._of_features(self.encode(inputs, action), choose)

    def _of_features(self, features: Tensor, choose: bool = True) -> Returns:
        features = features.unsqueeze(0) if self.share_encoder else features
        if features.dim() < 3:  # [N, F] could be read as N elements
            raise ShapeError("a Q-function got one observation without a batch dimension: use observation[None]")
        of_action = not choose and isinstance(self.head, ImplicitQuantileHead)
        return cast(Returns, self.head(features, choose=False) if of_action else self.head(features))


class DiscreteQFunction(_QFunction):
    """Returns of discrete actions, for an ensemble.

    Args:
        spec: shapes of observations and actions; ``actions`` are discrete.
        encoder_factory: makes the encoders.
        q_func_factory: makes the head.
        n_ensembles: number of members ``N``.
    """

    _reads_action = False

    def forward(self, inputs: Inputs, action: Tensor | None = None) -> Returns:
        """Compute returns ``[N, …, A]`` of all actions, or ``[N, …]`` of int64 ``action`` ``[…]``.

        For several choices they are `BranchReturns` ``[N, …, D, A]`` of all options, or of ``action`` ``[…, D]``.
        """
        if action is None:
            return self._of_actions(self._returns(inputs, None), inputs.mask)
        return self._of_actions(self._returns(inputs, None, choose=False), None).gather(action)

    def read(self, features: Tensor, inputs: Inputs) -> Returns:
        """Compute returns ``[N, …, A]`` of all actions, given the encoder's features of ``inputs``."""
        return self._of_actions(self._of_features(features), inputs.mask)

    def _of_actions(self, returns: Returns, mask: Tensor | None) -> Returns:
        """Compute returns of all actions from the head's, without those that the mask forbids."""
        actions, mask = self.spec.actions, mask if self.spec.masked else None
        if isinstance(actions, MultiDiscrete):
            return BranchReturns.of(returns, actions, mask)
        return returns if mask is None else returns.among(mask)


class ContinuousQFunction(_QFunction):
    """Returns of a given action, for an ensemble.

    Args:
        spec: shapes of observations and actions; a discrete action is read as a one-hot vector.
        encoder_factory: makes the action-conditioned encoders.
        q_func_factory: makes the head.
        n_ensembles: number of members ``N``.
    """

    _reads_action = True

    def forward(self, inputs: Inputs, action: Tensor) -> Returns:
        """Compute returns with leading dimensions ``[N, …]``.

        ``action`` may have more leading dimensions than the observation (many actions for each state).
        """
        return self._returns(inputs, action)

    def first(self, inputs: Inputs, action: Tensor) -> Returns:
        """Compute returns of the first member, ``[1, …]``; of all members if they are not stacked."""
        parts = [part for part in self.modules() if isinstance(part, _STACKED)]
        stacked = {id(parameter) for part in parts for parameter in part.parameters(recurse=False)}
        parameters = dict(self.named_parameters())
        if self.n_ensembles == 1 or any(id(parameter) not in stacked for parameter in parameters.values()):
            return self._returns(inputs, action)
        return cast(Returns, functional_call(self, {name: p[:1] for name, p in parameters.items()}, (inputs, action)))

    def differentiate(self, inputs: Inputs, action: Tensor) -> tuple[Returns, Tensor]:
        """Compute returns ``[N, …]``, and the gradients ``[N, …, A]`` of their means with respect to the action.

        The gradients can be differentiated themselves: they may be part of a loss.
        """
        with products(NEVER):
            if isinstance(self.encoder, VectorEncoder | SimBaEncoder) and not self.share_encoder:
                actions = action.detach().expand(self.n_ensembles, *action.shape).clone().requires_grad_()
                returns = self._of_each(inputs, actions)
                (gradient,) = torch.autograd.grad(returns.mean().sum(), actions, create_graph=True)
                return returns, gradient
            shared = action.detach().clone().requires_grad_()
            returns = self._returns(inputs, shared)
            members = returns.mean().unbind()
            gradients = [torch.autograd.grad(each.sum(), shared, create_graph=True)[0] for each in members]
            return returns, torch.stack(gradients)

    def _of_each(self, inputs: Inputs, action: Tensor) -> Returns:
        """Compute returns ``[N, …]`` of actions ``[N, …, A]``, one for each member of a stacked encoder."""
        observation = inputs.observation if inputs.following is None else inputs.following
        features = self.encoder(self._flatten(observation), action.flatten(1, -2))
        return cast(Returns, self.head(features.unflatten(1, action.shape[1:-1])))
