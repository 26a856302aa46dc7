"""Networks and their factories: encoders, value distributions, policies, ensembles."""

from __future__ import annotations

from birl.errors import explain_missing_names
from birl.models import torch as torch  # a path of d3rlpy's
from birl.models.actor_critic import (
    ActorCriticNets,
    CriticFields,
    PolicyAndCritics,
    PolicyAndValue,
    PolicyFields,
    SoftFields,
)
from birl.models.distribution_factories import (
    BetaFactory,
    DistributionFactory,
    NormalFactory,
    SquashedNormalFactory,
)
from birl.models.encoders import (
    DefaultEncoderFactory,
    EncoderFactory,
    PixelEncoderFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
    register_encoder_factory,
)
from birl.models.networks import Network, eval_mode, is_recurrent, set_acting
from birl.models.normalized import BatchRenormEncoderFactory, DroQEncoderFactory
from birl.models.policies import (
    CategoricalPolicy,
    ConditionalNormalPolicy,
    DeterministicPolicy,
    DistributionPolicy,
    NormalPolicy,
    ResidualPolicy,
    SquashedNormalPolicy,
    policy_of,
)
from birl.models.q_functions import (
    C51QFunctionFactory,
    ContinuousQFunction,
    DiscreteQFunction,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    register_q_func_factory,
)
from birl.models.quadratic import QuadraticQFunction
from birl.models.recurrent import GRUEncoderFactory, LSTMEncoderFactory
from birl.models.rewards import RewardFunction
from birl.models.risk import CPW, CVaR, Norm, Power, RiskMeasure, Wang
from birl.models.scalar import Scalar
from birl.models.transformer import (
    CausalTransformer,
    ContinuousDecisionTransformer,
    DecisionTransformerNetwork,
    DiscreteDecisionTransformer,
    PositionEncodingType,
)
from birl.models.vae import VAEDecoder, VAEEncoder, random_latents
from birl.models.value_distributions import CategoricalReturns, MeanReturns, QuantileReturns, Returns
from birl.models.values import AdvantageFunction, ValueFunction
from birl.optimizers import (
    AdamFactory,
    AdamWFactory,
    CosineAnnealingLRFactory,
    ExponentialSchedulerFactory,
    GPTAdamWFactory,
    LinearSchedulerFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    RMSpropFactory,
    SGDFactory,
    ShareSchedulerFactory,
    StepwiseSchedulerFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
    register_optimizer_factory,
)

__all__ = [
    "CPW",
    "ActorCriticNets",
    "AdamFactory",
    "AdamWFactory",
    "AdvantageFunction",
    "BatchRenormEncoderFactory",
    "BetaFactory",
    "C51QFunctionFactory",
    "CVaR",
    "CategoricalPolicy",
    "CategoricalReturns",
    "CausalTransformer",
    "ConditionalNormalPolicy",
    "ContinuousDecisionTransformer",
    "ContinuousQFunction",
    "CosineAnnealingLRFactory",
    "CriticFields",
    "DecisionTransformerNetwork",
    "DefaultEncoderFactory",
    "DeterministicPolicy",
    "DiscreteDecisionTransformer",
    "DiscreteQFunction",
    "DistributionFactory",
    "DistributionPolicy",
    "DroQEncoderFactory",
    "EncoderFactory",
    "ExponentialSchedulerFactory",
    "GPTAdamWFactory",
    "GRUEncoderFactory",
    "IQNQFunctionFactory",
    "LRSchedulerFactory",
    "LSTMEncoderFactory",
    "LinearSchedulerFactory",
    "MeanQFunctionFactory",
    "MeanReturns",
    "Network",
    "Norm",
    "NormalFactory",
    "NormalPolicy",
    "OptimizerFactory",
    "PixelEncoderFactory",
    "PolicyAndCritics",
    "PolicyAndValue",
    "PolicyFields",
    "PositionEncodingType",
    "Power",
    "QFunctionFactory",
    "QRQFunctionFactory",
    "QuadraticQFunction",
    "QuantileReturns",
    "RMSpropFactory",
    "ResidualPolicy",
    "Returns",
    "RewardFunction",
    "RiskMeasure",
    "SGDFactory",
    "Scalar",
    "ShareSchedulerFactory",
    "SimBaEncoderFactory",
    "SoftFields",
    "SquashedNormalFactory",
    "SquashedNormalPolicy",
    "StepwiseSchedulerFactory",
    "VAEDecoder",
    "VAEEncoder",
    "ValueFunction",
    "VectorEncoderFactory",
    "Wang",
    "WarmupCosineSchedulerFactory",
    "WarmupSchedulerFactory",
    "eval_mode",
    "is_recurrent",
    "policy_of",
    "random_latents",
    "register_encoder_factory",
    "register_optimizer_factory",
    "register_q_func_factory",
    "set_acting",
]

explain_missing_names(__name__, __all__)
