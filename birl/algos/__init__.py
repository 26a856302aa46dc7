"""All algorithms and their configurations."""

from birl.algorithm import Algorithm
from birl.algorithm import Algorithm as QLearningAlgoBase
from birl.algos.bc import BC, BCConfig, DiscreteBC, DiscreteBCConfig
from birl.algos.cql import CQL, CQLConfig, DiscreteCQL, DiscreteCQLConfig
from birl.algos.decision_transformer import DecisionTransformer, DecisionTransformerConfig
from birl.algos.discrete_sac import DiscreteSAC, DiscreteSACConfig
from birl.algos.dqn import DQN, DoubleDQN, DoubleDQNConfig, DQNConfig
from birl.algos.iql import IQL, IQLConfig
from birl.algos.ppo import PPO, PPOConfig
from birl.algos.random_policy import (
    DiscreteRandomPolicy,
    DiscreteRandomPolicyConfig,
    RandomPolicy,
    RandomPolicyConfig,
)
from birl.algos.sac import SAC, SACConfig
from birl.algos.td3 import TD3, TD3Config
from birl.run.explorers import ConstantEpsilonGreedy, Explorer, LinearDecayEpsilonGreedy, NormalNoise
from birl.transformer import (
    IdentityTransformerActionSampler,
    StatefulTransformerWrapper,
    TransformerActionSampler,
    TransformerInput,
)
from birl.transformer import TransformerAlgorithm as TransformerAlgoBase

__all__ = [
    "BC",
    "CQL",
    "DQN",
    "IQL",
    "PPO",
    "SAC",
    "TD3",
    "Algorithm",
    "BCConfig",
    "CQLConfig",
    "ConstantEpsilonGreedy",
    "DQNConfig",
    "DecisionTransformer",
    "DecisionTransformerConfig",
    "DiscreteBC",
    "DiscreteBCConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteRandomPolicy",
    "DiscreteRandomPolicyConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "DoubleDQN",
    "DoubleDQNConfig",
    "Explorer",
    "IQLConfig",
    "IdentityTransformerActionSampler",
    "LinearDecayEpsilonGreedy",
    "NormalNoise",
    "PPOConfig",
    "QLearningAlgoBase",
    "RandomPolicy",
    "RandomPolicyConfig",
    "SACConfig",
    "StatefulTransformerWrapper",
    "TD3Config",
    "TransformerActionSampler",
    "TransformerAlgoBase",
    "TransformerInput",
]
