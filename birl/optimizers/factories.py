"""Factories of optimisers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from birl.checks import check
from birl.errors import ConfigError, UnsupportedError
from birl.files.serializable import Serializable
from birl.optimizers.schedules import LRSchedulerFactory
from birl.optimizers.steps import RootRMSprop

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class OptimizerFactory(Serializable):
    """Base of optimiser factories, and a factory of any optimiser: ``OptimizerFactory(Adam, weight_decay=1e-4)``.

    To write your own, define a dataclass with ``create`` and a name: ``class Mine(OptimizerFactory, type="mine")``. One
    written for d3rlpy has ``create_optimizer`` instead; it gets all parameters as one module.

    Attributes:
        clip_grad_norm: largest gradient norm over the parameters of one optimiser, or ``None``. The engine clips.
        lr_scheduler_factory: schedule of the learning rate, or ``None``.
    """

    clip_grad_norm: float | None = None
    lr_scheduler_factory: LRSchedulerFactory | None = None

    optim_cls: type[Optimizer] | None = None  # set, like params, in factories of torch's optimisers
    params: dict[str, Any]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make a `TorchOptimizerFactory` for ``OptimizerFactory(SomeOptimizer, …)``, as in d3rlpy."""
        made = TorchOptimizerFactory if cls is OptimizerFactory else cls
        return super().__new__(made, *args, **kwargs)  # type: ignore[return-value]

    def create(self, named_parameters: NamedParameters, lr: float) -> Optimizer:
        """Create the optimiser.

        Args:
            named_parameters: names and parameters, as from ``module.named_parameters()``.
            lr: learning rate, at least 0.
        """
        parameters = [parameter for _, parameter in named_parameters]
        of_d3rlpy: Callable[..., Optimizer] | None = getattr(self, "create_optimizer", None)
        if of_d3rlpy is not None:
            return of_d3rlpy([("parameters", nn.ParameterList(parameters))], lr)
        return self._create(parameters, parameters, lr)

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """Create the learning-rate schedule of ``optimizer``, or return ``None``."""
        return None if self.lr_scheduler_factory is None else self.lr_scheduler_factory.create(optimizer)

    def replace(self, **changes: object) -> Self:
        """Return a copy with some parameters changed."""
        return type(self)(**{**self.get_params(), **changes})

    def _create(self, groups: list[Any], parameters: list[nn.Parameter], lr: float) -> Optimizer:
        """Create the optimiser of parameters or parameter ``groups``. ``parameters`` lists all parameters."""
        if self.optim_cls is None:
            raise UnsupportedError(
                f"{type(self).__name__} makes no optimiser: define create(named_parameters, lr), or d3rlpy's "
                "create_optimizer(named_modules, lr)"
            )
        params = dict(self.params)
        if self.optim_cls in _FUSED and not ({"fused", "foreach"} & params.keys()):
            params["fused"] = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
        return self.optim_cls(groups, lr=lr, **params)  # type: ignore[call-arg]


register_optimizer_factory = OptimizerFactory.register


class TorchOptimizerFactory(OptimizerFactory, type="torch"):
    """Any optimiser, by class; written to files by its name in ``torch.optim``.

    Args:
        optim_cls: an optimiser class, or its name in ``torch.optim``.
        clip_grad_norm: see `OptimizerFactory`.
        lr_scheduler_factory: see `OptimizerFactory`.
        **params: arguments of the optimiser, such as ``weight_decay``.

    Raises:
        ConfigError: if ``optim_cls`` is neither.
    """

    optim_cls: type[Optimizer]

    def __init__(
        self,
        optim_cls: type[Optimizer] | str,
        clip_grad_norm: float | None = None,
        lr_scheduler_factory: LRSchedulerFactory | None = None,
        **params: object,
    ) -> None:
        found = _torch_optimizer(optim_cls) if isinstance(optim_cls, str) else optim_cls
        if not (isinstance(found, type) and issubclass(found, Optimizer)):
            raise ConfigError(f"optim_cls is {optim_cls!r}; it must be an optimiser class or a name in torch.optim")
        check("clip_grad_norm", clip_grad_norm, float, above=0, optional=True)
        self.optim_cls = found
        self.clip_grad_norm = clip_grad_norm
        self.lr_scheduler_factory = lr_scheduler_factory
        self.params = params

    def get_params(self) -> dict[str, Any]:
        """Return the arguments that make an equal factory.

        Raises:
            ConfigError: if the optimiser is not in ``torch.optim``: a file cannot name other classes safely.
        """
        name = self.optim_cls.__name__
        if _torch_optimizer(name) is not self.optim_cls:
            raise ConfigError(
                f"{name} is not in torch.optim and cannot be written to a file: "
                'derive a dataclass from OptimizerFactory with create and a name (type="…")'
            )
        own = {"clip_grad_norm": self.clip_grad_norm, "lr_scheduler_factory": self.lr_scheduler_factory}
        return {"optim_cls": name, **own, **self.params}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchOptimizerFactory) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.optim_cls, self.clip_grad_norm))

    def __repr__(self) -> str:
        return f"OptimizerFactory({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


@dataclass(frozen=True)
class _Factory(OptimizerFactory):
    """Base of factories whose further fields are the arguments of ``optim_cls``."""

    clip_grad_norm: float | None = None
    lr_scheduler_factory: LRSchedulerFactory | None = None

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check("clip_grad_norm", self.clip_grad_norm, float, above=0, optional=True)
        for name, value in self.params.items():
            if name in _AT_LEAST_0:
                check(name, value, float, low=0)

    @property
    def params(self) -> dict[str, Any]:  # type: ignore[override]
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names if name not in OptimizerFactory.__annotations__}


@dataclass(frozen=True)
class SGDFactory(_Factory, type="sgd"):
    """Stochastic gradient descent.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        momentum, dampening, weight_decay, nesterov: see ``torch.optim.SGD``.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    optim_cls = torch.optim.SGD

    def __post_init__(self) -> None:
        super().__post_init__()
        check("nesterov", self.nesterov, bool)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ConfigError(
                f"nesterov is True with momentum {self.momentum!r} and dampening {self.dampening!r}; "
                "it needs momentum > 0 and dampening 0"
            )


@dataclass(frozen=True)
class AdamFactory(_Factory, type="adam"):
    """Adam (Kingma and Ba 2014, arXiv:1412.6980).

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.Adam``.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    optim_cls = torch.optim.Adam

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ConfigError(f"betas is {self.betas!r:.80}; it must be two floats >= 0 and < 1")
        object.__setattr__(self, "betas", tuple(self.betas))  # a list when it comes from a file
        for beta in self.betas:
            check("betas", beta, float, low=0, below=1)
        check("eps", self.eps, float, above=0)


@dataclass(frozen=True)
class AdamWFactory(AdamFactory, type="adam_w"):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.AdamW``.
    """

    optim_cls = torch.optim.AdamW  # type: ignore[assignment]


@dataclass(frozen=True)
class GPTAdamWFactory(AdamWFactory, type="gpt_adam_w"):
    """AdamW without weight decay of biases, normalisation and embeddings, as in the training of GPT-2.

    A parameter is exempt if it has fewer than two dimensions, if it is a bias, if it belongs to a normalisation (a
    module whose name ends in ``norm``, or one that follows a dense layer), or if it is a table with two dimensions
    whose name ends in ``embedding``.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.AdamW``.
    """

    def create(self, named_parameters: NamedParameters, lr: float) -> Optimizer:
        """Create the optimiser, with one group of parameters with weight decay and one without."""
        decayed: list[nn.Parameter] = []
        spared: list[nn.Parameter] = []
        for name, parameter in named_parameters:
            (decayed if _decays(name, parameter) else spared).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
        return self._create([group for group in groups if group["params"]], decayed + spared, lr)


@dataclass(frozen=True)
class RMSpropFactory(_Factory, type="rmsprop"):
    """RMSprop (Hinton 2012, Coursera lecture 6e), with the constants of the DQN paper.

    Differs from the DQN paper: epsilon is added outside the square root, as in ``torch.optim.RMSprop``, unless
    ``eps_inside_root`` is true.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        alpha, eps, weight_decay, momentum, centered: see ``torch.optim.RMSprop``.
        eps_inside_root: whether ``eps`` is added under the root, as in the papers of DQN and A3C; see `RootRMSprop`.
    """

    alpha: float = 0.95
    eps: float = 1e-2
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = True
    eps_inside_root: bool = False

    optim_cls = torch.optim.RMSprop

    def __post_init__(self) -> None:
        super().__post_init__()
        check("alpha", self.alpha, float, low=0, below=1)
        check("eps_inside_root", self.eps_inside_root, bool)
        if self.eps_inside_root:
            check("eps", self.eps, float, above=0)

    @property
    def params(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: value for name, value in super().params.items() if name != "eps_inside_root"}

    def _create(self, groups: list[Any], parameters: list[nn.Parameter], lr: float) -> Optimizer:
        return (RootRMSprop if self.eps_inside_root else torch.optim.RMSprop)(groups, lr=lr, **self.params)


_AT_LEAST_0: Final = ("eps", "momentum", "weight_decay")
_FUSED: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

_NORMALISATION: Final = re.compile(r"(^|\.)(\w*norm|after\.\d+)\.\w+$")
_TABLE: Final = re.compile(r"embedding(\.weight)?$")


def _decays(name: str, parameter: nn.Parameter) -> bool:
    if parameter.dim() < 2 or name.endswith("bias") or _NORMALISATION.search(name):
        return False
    return parameter.dim() > 2 or not _TABLE.search(name)


def _torch_optimizer(name: str) -> type[Optimizer] | None:
    found = getattr(torch.optim, name, None)
    return found if isinstance(found, type) and issubclass(found, Optimizer) else None
