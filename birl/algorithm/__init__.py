"""The class that users work with, and the building blocks of algorithm files.

An algorithm also imports from `birl.models`, `birl.losses` and `birl.optimizers`.
"""

from birl.acting.policy import (
    DeterministicActor,
    GreedyCritic,
    Policy,
    StochasticActor,
    actor_distribution,
    best_of,
    mode_action,
    q_action,
    q_value,
    sampled_action,
)
from birl.acting.sequence_context import ContextActor, window_outputs
from birl.algorithm.algorithm import Algorithm
from birl.algorithm.experience import Iterations, Nothing, Regression, Tails, Trajectories, Transitions
from birl.algorithm.learner import EngineUpdate, Experience, Learner
from birl.algorithm.loss_addons import (
    AttractionKL,
    Behaviour,
    ModelFile,
    RepulsionKL,
    ReturnPredictor,
    RewardPredictor,
)
from birl.algorithm.multi_seed import fit_many
from birl.algorithm.persistence import load_learnable
from birl.algorithm.rollouts import DemonstratedRollouts, Replays, Rollouts
from birl.algorithm.sequence import TransformerAlgorithm, TransformerConfig
from birl.algorithm.trust_region import TrustRegion
from birl.config import (
    ActorCriticConfig,
    AlgorithmConfig,
    ImitatorConfig,
    NetworkConfig,
    PolicyConfig,
    ResetConfig,
    SharedFields,
    TemperatureConfig,
    ValueConfig,
    config,
    field,
    rate,
)
from birl.engine import Gradient, HardCopy, Polyak, Step, TargetUpdate, Update, When
from birl.errors import explain_missing_names
from birl.models.loss_addon import LossAddOn
from birl.spaces import Continuous
from birl.spaces.specs import Spec
from birl.types import ActionSpace, Batch, Inputs, Loss, weighted_mean

__all__ = [
    "ActionSpace",
    "ActorCriticConfig",
    "Algorithm",
    "AlgorithmConfig",
    "AttractionKL",
    "Batch",
    "Behaviour",
    "ContextActor",
    "Continuous",
    "DemonstratedRollouts",
    "DeterministicActor",
    "EngineUpdate",
    "Experience",
    "Gradient",
    "GreedyCritic",
    "HardCopy",
    "ImitatorConfig",
    "Inputs",
    "Iterations",
    "Learner",
    "Loss",
    "LossAddOn",
    "ModelFile",
    "NetworkConfig",
    "Nothing",
    "Policy",
    "PolicyConfig",
    "Polyak",
    "Regression",
    "Replays",
    "RepulsionKL",
    "ResetConfig",
    "ReturnPredictor",
    "RewardPredictor",
    "Rollouts",
    "SharedFields",
    "Spec",
    "Step",
    "StochasticActor",
    "Tails",
    "TargetUpdate",
    "TemperatureConfig",
    "Trajectories",
    "TransformerAlgorithm",
    "TransformerConfig",
    "Transitions",
    "TrustRegion",
    "Update",
    "ValueConfig",
    "When",
    "actor_distribution",
    "best_of",
    "config",
    "field",
    "fit_many",
    "load_learnable",
    "mode_action",
    "q_action",
    "q_value",
    "rate",
    "sampled_action",
    "weighted_mean",
    "window_outputs",
]

explain_missing_names(__name__, __all__)
