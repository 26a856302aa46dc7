"""Terms that configurations add to losses: attraction to or repulsion from policies, and prediction of rewards."""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from birl.acting.policy import actor_distribution
from birl.algorithm.persistence import read_description
from birl.checks import check
from birl.config import AlgorithmConfig
from birl.errors import ConfigError, FileError
from birl.files import load_archive, load_config
from birl.files.reading import open_binary
from birl.files.serializable import Serializable, encode
from birl.models import Network, ResidualPolicy, eval_mode, is_recurrent
from birl.models.distributions import Distribution
from birl.models.loss_addon import LossAddOn
from birl.models.noisy import noise_of
from birl.spaces.specs import Spec
from birl.types import Batch, weighted_mean

_MODEL = "model"


class Behaviour(Serializable):
    """Base of frozen policies with which a policy is compared."""

    @abstractmethod
    def network(self, spec: Spec, config: AlgorithmConfig) -> nn.Module:
        """Return the policy's network, without its parameters, for an algorithm's shapes and scalers.

        Raises:
            ConfigError: if the network does not fit, or its policy has no distribution.
        """

    @abstractmethod
    def fill(self, network: nn.Module) -> None:
        """Load the parameters into the network.

        Raises:
            FileError: if they cannot be read.
        """


@dataclass(frozen=True)
class ModelFile(Behaviour, type="model_file"):
    """The policy of a model that ``algo.save`` wrote.

    A model that is trained with this policy contains its parameters. The file is read when networks are made, not when
    such a model is loaded.

    Attributes:
        path: path of the file.
        digest: SHA-256 of the file; by default the digest of its current contents.
        description: configuration and shapes of the model, as JSON; by default read from the file.
    """

    path: str
    digest: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise ConfigError(f"ModelFile.path is {self.path!r:.80}; it must be the path of a model")
        object.__setattr__(self, "path", str(self.path))
        if not (self.digest and self.description):
            object.__setattr__(self, "digest", _digest(self.path))
            object.__setattr__(self, "description", json.dumps(encode(load_config(self.path, _MODEL)), sort_keys=True))

    def network(self, spec: Spec, config: AlgorithmConfig) -> nn.Module:
        saved, saved_spec = read_description(json.loads(self.description))
        name, policy = saved.algorithm.__name__, saved.algorithm.acts
        if policy.distribution is not actor_distribution:
            raise ConfigError(
                f"{self.path} holds a {name}, whose policy is not a distribution over actions from one network: use a "
                "model of SAC, PPO, BC or another algorithm with a stochastic policy"
            )
        if saved_spec != spec:
            raise ConfigError(
                f"{self.path} was built for {saved_spec}, not for {spec}: use a model for the same spaces"
            )
        for field in ("observation_scaler", "action_scaler"):
            here, there = (encode(getattr(each, field)) for each in (config, saved))
            if here != there or getattr(getattr(config, field), "running", False):
                raise ConfigError(
                    f"{self.path} was trained with {field}={there}, this algorithm has {here}: both read the same "
                    "inputs, so give both the same fitted scaler, which must not be a running one"
                )
        network: nn.Module = saved.algorithm.networks(saved_spec, saved).get_submodule(policy.network)
        if is_recurrent(network) or noise_of(network):
            raise ConfigError(f"the policy in {self.path} is recurrent or noisy: use a policy that is neither")
        return network

    def fill(self, network: nn.Module) -> None:
        if _digest(self.path) != self.digest:
            raise FileError(f"{self.path} has changed since its digest was taken: restore it, or make a new add-on")
        data, state = load_archive(self.path, _MODEL)
        prefix = f"{read_description(data)[0].algorithm.acts.network}."
        parameters = {name.removeprefix(prefix): x for name, x in state["nets"].items() if name.startswith(prefix)}
        network.load_state_dict(parameters)


def _digest(path: str) -> str:
    with open_binary(path) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


@dataclass(frozen=True)
class _KL(LossAddOn):
    """Base of terms that compare the policy with others; see `AttractionKL`."""

    behaviours: tuple[Behaviour, ...]
    values: tuple[float, ...] = ()
    weight: float = 1.0
    phase: str | None = None

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        name, behaviours = type(self).__name__, self.behaviours
        behaviours = (behaviours,) if isinstance(behaviours, str | Path | Behaviour) else behaviours
        if not isinstance(behaviours, list | tuple) or not behaviours:
            raise ConfigError(f"{name}.behaviours is {behaviours!r:.80}; it must be paths of models: ('expert.d3',)")
        made = tuple(ModelFile(cast(str, x)) if isinstance(x, str | Path) else x for x in behaviours)
        for behaviour in made:
            if not isinstance(behaviour, Behaviour):
                raise ConfigError(f"an item of {name}.behaviours is {behaviour!r:.80}; it must be the path of a model")
        values = tuple(self.values) if self.values else (1.0,) * len(made)
        if len(values) != len(made):
            raise ConfigError(f"{name} has {len(made)} behaviours and {len(values)} values: give one for each")
        for value in values:
            check(f"{name}.values", value, float, above=0)
        object.__setattr__(self, "behaviours", made)
        object.__setattr__(self, "values", values)
        _check_shared(self)

    def network(self, acting: nn.Module, spec: Spec, config: AlgorithmConfig) -> nn.Module:
        if config.algorithm.acts.distribution is not actor_distribution:
            raise ConfigError(
                f"the policy of {config.algorithm.__name__} is not a distribution over actions from one network, which "
                f"{type(self).__name__} needs: leave it out, or use SAC, PPO or BC"
            )
        return nn.ModuleList([each.network(spec, config) for each in self.behaviours])

    @property
    def given(self) -> tuple[Behaviour, ...]:
        return self.behaviours

    def fill(self, network: nn.Module) -> None:
        for behaviour, member in zip(self.behaviours, network.children(), strict=True):
            behaviour.fill(member)

    def divergences(self, network: nn.Module, acting: nn.Module, batch: Batch) -> list[Tensor]:
        """Return ``E[KL(pi_i || pi)]`` in nats for each behaviour ``pi_i``."""
        policy: Distribution = acting(batch.inputs)
        divergences = []
        for member in network.children():
            with torch.no_grad(), eval_mode(member):
                other: Distribution = member(batch.inputs)
            if type(other) is not type(policy):
                raise ConfigError(
                    f"a behaviour of {type(self).__name__} has a {type(other).__name__} distribution, the policy a "
                    f"{type(policy).__name__}: use a model of the same kind of policy"
                )
            divergences.append(weighted_mean(other.kl(policy), batch.weight))
        return divergences


@dataclass(frozen=True)
class AttractionKL(_KL, type="attraction_kl"):
    """Attraction of the policy to the nearest of other policies: ``min_i (E[KL(pi_i || pi)] - log v_i)``.

    Attributes:
        behaviours: the other policies: `ModelFile`, or paths of models. They are frozen.
        values: ``v_i`` > 0, the weight of each; 1 for each if it is empty.
        weight, phase: see `LossAddOn`.
    """

    def term(self, network: nn.Module, acting: nn.Module, batch: Batch) -> Tensor:
        divergences = self.divergences(network, acting, batch)
        return torch.stack([x - math.log(value) for x, value in zip(divergences, self.values, strict=True)]).min()


@dataclass(frozen=True)
class RepulsionKL(_KL, type="repulsion_kl"):
    """Repulsion of the policy from other policies: ``-sum_i v_i min(E[KL(pi_i || pi)], cap)``.

    Attributes:
        behaviours, values: see `AttractionKL`.
        weight, phase: see `LossAddOn`.
        cap: divergence, in nats above 0, from which the repulsion ends. Without it the loss would have no minimum.
    """

    cap: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(f"{type(self).__name__}.cap", self.cap, float, above=0)

    def term(self, network: nn.Module, acting: nn.Module, batch: Batch) -> Tensor:
        divergences = self.divergences(network, acting, batch)
        pairs = zip(divergences, self.values, strict=True)
        return -torch.stack([value * x.clamp(max=self.cap) for x, value in pairs]).sum()


@dataclass(frozen=True)
class _Predictor(LossAddOn):
    """Base of terms that predict a number from the features of the network that acts, and train its encoder."""

    weight: float = 1.0
    phase: str | None = None
    keep_zeros: float = 1.0

    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.convert_numpy_numbers()
        check(f"{type(self).__name__}.keep_zeros", self.keep_zeros, float, low=0, high=1)
        _check_shared(self)

    def network(self, acting: nn.Module, spec: Spec, config: AlgorithmConfig) -> nn.Module:
        reads_more = isinstance(acting, ResidualPolicy) or config.algorithm.learns_from.contexts
        if not isinstance(acting, Network) or reads_more:
            raise ConfigError(
                f"{type(self).__name__} predicts from the features of observations alone, which the "
                f"{type(acting).__name__} of {config.algorithm.__name__} does not have: leave it out"
            )
        return nn.Linear(acting.feature_size, 1)

    @abstractmethod
    def target(self, batch: Batch) -> Tensor:
        """Return the target of the prediction, ``[...]``."""

    def term(self, network: nn.Module, acting: nn.Module, batch: Batch) -> Tensor:
        target = self.target(batch)
        weight = batch.weight
        if self.keep_zeros < 1:
            weight = weight * ((target != 0) | (torch.rand_like(target) < self.keep_zeros))
        error = network(acting.encode(batch.inputs)).squeeze(-1) - target  # type: ignore[operator]
        return 0.5 * weighted_mean(error.square(), weight).mean()


@dataclass(frozen=True)
class RewardPredictor(_Predictor, type="reward_predictor"):
    """Predicts the reward of a step from its observation: ``0.5 * E[(r - f(o))**2]``.

    ``f`` is a linear layer on the features of the network that acts, so its encoder learns features on which rewards
    depend.

    Attributes:
        weight, phase: see `LossAddOn`.
        keep_zeros: probability, in [0, 1], with which a step whose reward is 0 counts; below 1 for sparse rewards.
    """

    def target(self, batch: Batch) -> Tensor:
        return batch.reward


@dataclass(frozen=True)
class ReturnPredictor(_Predictor, type="return_predictor"):
    """Predicts the discounted return that follows an observation: ``0.5 * E[(R - f(o))**2]``.

    It is the return of the data to the end of the episode, or the return that the algorithm computes for a rollout.

    Attributes:
        weight, phase: see `LossAddOn`.
        keep_zeros: probability, in [0, 1], with which a step whose return is 0 counts.
    """

    returns: ClassVar[bool] = True

    def target(self, batch: Batch) -> Tensor:
        returns = batch.extra.get("discounted_return", batch.extra.get("return"))
        if returns is None:
            raise ConfigError(
                "ReturnPredictor needs returns, which these minibatches do not have: draw them with "
                "algo.sample_minibatch(dataset), or use RewardPredictor"
            )
        return returns


def _check_shared(addon: LossAddOn) -> None:
    name = type(addon).__name__
    check(f"{name}.weight", addon.weight, float, low=0)
    check(f"{name}.phase", addon.phase, str, optional=True)
