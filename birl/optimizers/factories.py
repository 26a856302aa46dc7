"""Optimiser and learning-rate schedule factories."""

from __future__ import annotations

import dataclasses
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from birl.errors import ConfigError, UnsupportedError
from birl.files.named import Serializable

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class LRSchedulerFactory(Serializable):
    """Base of learning-rate schedules. The engine steps a schedule once after every optimiser step."""

    @abstractmethod
    def create(self, optimizer: Optimizer) -> LRScheduler:
        """The schedule of ``optimizer``."""


@dataclass(frozen=True)
class WarmupSchedulerFactory(LRSchedulerFactory):
    """Learning rate that rises in a straight line over the first updates and then stays.

    Attributes:
        warmup_steps: number of updates until the full learning rate; 0 for none.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        self.plain_numbers()
        if isinstance(self.warmup_steps, bool) or not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps is {self.warmup_steps!r}; it must be an int >= 0")

    def create(self, optimizer: Optimizer) -> LRScheduler:
        """See `LRSchedulerFactory.create`."""
        steps = max(self.warmup_steps, 1)
        return LambdaLR(optimizer, lambda step: min((step + 1) / steps, 1.0))

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "warmup"


@dataclass(frozen=True)
class WarmupCosineSchedulerFactory(LRSchedulerFactory):
    """Learning rate that rises in a straight line, falls along half a cosine and stays at its lowest share.

    Update ``u``, counted from 1, has the share ``u / warmup_steps`` of the learning rate while that is below 1, and
    ``max(lowest, (1 + cos(pi * p)) / 2)`` with ``p = (u - warmup_steps) / (final_steps - warmup_steps)`` from then on.

    Attributes:
        warmup_steps: number of updates until the full learning rate; may have a fraction. 0 for none.
        final_steps: number of updates at which the cosine ends, more than ``warmup_steps``.
        lowest: smallest share of the learning rate after the warm-up, in [0, 1].
    """

    warmup_steps: float
    final_steps: float
    lowest: float = 0.1

    def __post_init__(self) -> None:
        self.plain_numbers()
        _check_number("warmup_steps", self.warmup_steps)
        _check_number("final_steps", self.final_steps)
        _check_number("lowest", self.lowest)
        if self.final_steps <= self.warmup_steps or self.lowest > 1:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps!r}, final_steps {self.final_steps!r} and lowest {self.lowest!r}; "
                "final_steps must be larger than warmup_steps, and lowest at most 1"
            )

    def create(self, optimizer: Optimizer) -> LRScheduler:
        """See `LRSchedulerFactory.create`."""
        return LambdaLR(optimizer, lambda step: self._share(step + 1))

    def _share(self, update: int) -> float:
        if update < self.warmup_steps:
            return update / self.warmup_steps
        progress = min((update - self.warmup_steps) / (self.final_steps - self.warmup_steps), 1.0)
        return max(self.lowest, 0.5 * (1.0 + math.cos(math.pi * progress)))

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "warmup_cosine"


@dataclass(frozen=True)
class CosineAnnealingLRFactory(LRSchedulerFactory):
    """Learning rate that falls along half a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983).

    Attributes:
        T_max: number of updates until the lowest learning rate.
        eta_min: lowest learning rate.
        last_epoch: -1 to start at the beginning.
    """

    T_max: int
    eta_min: float = 0.0
    last_epoch: int = -1

    def __post_init__(self) -> None:
        self.plain_numbers()
        if isinstance(self.T_max, bool) or not isinstance(self.T_max, int) or self.T_max < 1:
            raise ConfigError(f"T_max is {self.T_max!r}; it must be an int >= 1")

    def create(self, optimizer: Optimizer) -> LRScheduler:
        """See `LRSchedulerFactory.create`."""
        return CosineAnnealingLR(optimizer, self.T_max, self.eta_min, self.last_epoch)

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "cosine_annealing"


class OptimizerFactory(Serializable):
    """Base of optimiser factories, and a factory of any optimiser: ``OptimizerFactory(Adam, weight_decay=1e-4)``.

    Your own is a dataclass with ``create`` and ``get_type``. One written for d3rlpy has ``create_optimizer`` instead,
    and is given all parameters as one module.

    Attributes:
        clip_grad_norm: largest gradient norm over the parameters of one optimiser, or ``None``. The engine clips.
        lr_scheduler_factory: schedule of the learning rate, or ``None``.
    """

    clip_grad_norm: float | None = None
    lr_scheduler_factory: LRSchedulerFactory | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """``OptimizerFactory(SomeOptimizer, …)`` makes a `TorchOptimizerFactory`: d3rlpy names optimisers so."""
        return super().__new__(TorchOptimizerFactory if cls is OptimizerFactory else cls)  # type: ignore[return-value]

    def create(self, named_parameters: NamedParameters, lr: float) -> Optimizer:
        """The optimiser.

        Args:
            named_parameters: as from ``module.named_parameters()``.
            lr: learning rate, at least 0.
        """
        parameters = [parameter for _, parameter in named_parameters]
        of_d3rlpy: Callable[..., Optimizer] | None = getattr(self, "create_optimizer", None)
        if of_d3rlpy is not None:
            return of_d3rlpy([("parameters", nn.ParameterList(parameters))], lr)
        return self._create(parameters, parameters, lr)

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """The learning-rate schedule of ``optimizer``, or ``None``."""
        return None if self.lr_scheduler_factory is None else self.lr_scheduler_factory.create(optimizer)

    def replace(self, **changes: Any) -> Self:
        """A copy with some parameters changed."""
        return type(self)(**{**self.get_params(), **changes})

    def get_params(self) -> dict[str, Any]:
        """The dataclass fields; nothing for a factory that is no dataclass."""
        return super().get_params() if dataclasses.is_dataclass(self) else {}

    def _create(self, groups: list[Any], parameters: list[nn.Parameter], lr: float) -> Optimizer:
        """The optimiser of parameters or parameter ``groups``; ``parameters`` are all of them."""
        raise UnsupportedError(
            f"{type(self).__name__} makes no optimiser: give it create(named_parameters, lr), or d3rlpy's "
            "create_optimizer(named_modules, lr)"
        )


def register_optimizer_factory(cls: type[OptimizerFactory]) -> None:
    """Kept for d3rlpy code: a factory is known by its name as soon as its class is defined.

    Raises:
        ConfigError: if ``cls`` is not an optimiser factory with a name.
    """
    if not (isinstance(cls, type) and issubclass(cls, OptimizerFactory) and cls.get_type()):
        raise ConfigError(f"{cls!r} must be a class derived from OptimizerFactory whose get_type returns a name")


class TorchOptimizerFactory(OptimizerFactory):
    """Any optimiser, by class; written to files by its name in ``torch.optim``.

    Args:
        optim_cls: an optimiser class, or its name in ``torch.optim``.
        clip_grad_norm: see `OptimizerFactory`.
        lr_scheduler_factory: see `OptimizerFactory`.
        **params: arguments of the optimiser, such as ``weight_decay``.

    Raises:
        ConfigError: if ``optim_cls`` is neither.
    """

    def __init__(
        self,
        optim_cls: type[Optimizer] | str,
        clip_grad_norm: float | None = None,
        lr_scheduler_factory: LRSchedulerFactory | None = None,
        **params: Any,
    ) -> None:
        found = _torch_optimizer(optim_cls) if isinstance(optim_cls, str) else optim_cls
        if not (isinstance(found, type) and issubclass(found, Optimizer)):
            raise ConfigError(f"optim_cls is {optim_cls!r}; it must be an optimiser class or a name in torch.optim")
        _check_clip(clip_grad_norm)
        self.optim_cls = found
        self.clip_grad_norm = clip_grad_norm
        self.lr_scheduler_factory = lr_scheduler_factory
        self.params = params

    def get_params(self) -> dict[str, Any]:
        """The arguments that make this factory again.

        Raises:
            ConfigError: if the optimiser is not one of torch's, which a file could not name safely.
        """
        name = self.optim_cls.__name__
        if _torch_optimizer(name) is not self.optim_cls:
            raise ConfigError(
                f"{name} is not in torch.optim and cannot be written to a file: "
                "derive a dataclass from OptimizerFactory with create and get_type"
            )
        return {
            "optim_cls": name,
            "clip_grad_norm": self.clip_grad_norm,
            "lr_scheduler_factory": self.lr_scheduler_factory,
            **self.params,
        }

    def _create(self, groups: list[Any], parameters: list[nn.Parameter], lr: float) -> Optimizer:
        params = dict(self.params)
        if self.optim_cls in _FUSED and not ({"fused", "foreach"} & params.keys()):
            params["fused"] = _can_fuse(parameters)
        return self.optim_cls(groups, lr=lr, **params)  # type: ignore[call-arg]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchOptimizerFactory) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.optim_cls, self.clip_grad_norm))

    def __repr__(self) -> str:
        return f"OptimizerFactory({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "torch"


@dataclass(frozen=True)
class _Factory(OptimizerFactory):
    clip_grad_norm: float | None = None
    lr_scheduler_factory: LRSchedulerFactory | None = None

    _optimizer: ClassVar[type[Optimizer]]

    def __post_init__(self) -> None:
        self.plain_numbers()
        _check_clip(self.clip_grad_norm)

    def _create(self, groups: list[Any], parameters: list[nn.Parameter], lr: float) -> Optimizer:
        params: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del params["clip_grad_norm"], params["lr_scheduler_factory"]
        if self._optimizer in _FUSED:
            params["fused"] = _can_fuse(parameters)
        return self._optimizer(groups, lr=lr, **params)  # type: ignore[call-arg]


@dataclass(frozen=True)
class SGDFactory(_Factory):
    """Stochastic gradient descent.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        momentum, dampening, weight_decay, nesterov: see ``torch.optim.SGD``.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    _optimizer = torch.optim.SGD

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("momentum", self.momentum)
        _check_number("weight_decay", self.weight_decay)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ConfigError(
                f"nesterov is True with momentum {self.momentum!r} and dampening {self.dampening!r}; "
                "it needs momentum > 0 and dampening 0"
            )

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "sgd"


@dataclass(frozen=True)
class AdamFactory(_Factory):
    """Adam (Kingma and Ba 2014, arXiv:1412.6980).

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.Adam``.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    _optimizer: ClassVar[type[Optimizer]] = torch.optim.Adam

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ConfigError(f"betas is {self.betas!r:.80}; it must be two floats >= 0 and < 1")
        object.__setattr__(self, "betas", tuple(self.betas))  # a list when it comes from a file
        for beta in self.betas:
            _check_number("betas", beta, below=1.0)
        _check_number("eps", self.eps, above=True)
        _check_number("weight_decay", self.weight_decay)

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "adam"


@dataclass(frozen=True)
class AdamWFactory(AdamFactory):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.AdamW``.
    """

    _optimizer: ClassVar[type[Optimizer]] = torch.optim.AdamW

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "adam_w"


@dataclass(frozen=True)
class GPTAdamWFactory(AdamWFactory):
    """AdamW that spares biases, normalisation and embeddings from weight decay, as GPT-2 is trained.

    A parameter is spared if it has fewer than two dimensions, if it is a bias, if it belongs to a normalisation (a
    module whose name ends in ``norm``, or what follows a dense layer), or if it is a table with two dimensions whose
    name ends in ``embedding``.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        betas, eps, weight_decay, amsgrad: see ``torch.optim.AdamW``.
    """

    def create(self, named_parameters: NamedParameters, lr: float) -> Optimizer:
        """See `OptimizerFactory.create`."""
        named = list(named_parameters)
        decayed = [parameter for name, parameter in named if _decays(name, parameter)]
        spared = [parameter for name, parameter in named if not _decays(name, parameter)]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
        return self._create([group for group in groups if group["params"]], decayed + spared, lr)

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "gpt_adam_w"


@dataclass(frozen=True)
class RMSpropFactory(_Factory):
    """RMSprop (Hinton 2012, Coursera lecture 6e), with the constants of the DQN paper.

    Differs from the DQN paper: epsilon is added outside the square root, as ``torch.optim.RMSprop`` does.

    Attributes:
        clip_grad_norm, lr_scheduler_factory: see `OptimizerFactory`.
        alpha, eps, weight_decay, momentum, centered: see ``torch.optim.RMSprop``.
    """

    alpha: float = 0.95
    eps: float = 1e-2
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = True

    _optimizer: ClassVar[type[Optimizer]] = torch.optim.RMSprop

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("alpha", self.alpha, below=1.0)
        _check_number("eps", self.eps)
        _check_number("weight_decay", self.weight_decay)
        _check_number("momentum", self.momentum)

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "rmsprop"


_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)


_NORMALISATION: Final = re.compile(r"(^|\.)(\w*norm|after\.\d+)\.\w+$")
_TABLE: Final = re.compile(r"embedding(\.weight)?$")


def _decays(name: str, parameter: nn.Parameter) -> bool:
    if parameter.dim() < 2 or name.endswith("bias") or _NORMALISATION.search(name):
        return False
    return parameter.dim() > 2 or not _TABLE.search(name)


def _torch_optimizer(name: str) -> type[Optimizer] | None:
    found = getattr(torch.optim, name, None)
    return found if isinstance(found, type) and issubclass(found, Optimizer) else None


def _check_clip(value: float | None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and value > 0):
        raise ConfigError(f"clip_grad_norm is {value!r}; it must be a float > 0 or None")


def _check_number(name: str, value: object, *, below: float = math.inf, above: bool = False) -> None:
    """Raise unless ``value`` is a finite number >= 0 (> 0 if ``above``) and < ``below``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value < below) or (above and value == 0):  # type: ignore[operator]
        allowed = ("> 0" if above else ">= 0") + (" and finite" if below == math.inf else f" and < {below:g}")
        raise ConfigError(f"{name} is {value!r:.80}; it must be a float {allowed}")
