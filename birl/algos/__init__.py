"""All algorithms and their configurations."""

from birl.acting.explorers import ConstantEpsilonGreedy, Explorer, LinearDecayEpsilonGreedy, NormalNoise
from birl.algorithm.algorithm import Algorithm
from birl.algorithm.algorithm import Algorithm as QLearningAlgoBase
from birl.algorithm.sequence import (
    GreedyTransformerActionSampler,
    IdentityTransformerActionSampler,
    SoftmaxTransformerActionSampler,
    StatefulTransformerWrapper,
    TransformerActionSampler,
    TransformerInput,
)
from birl.algorithm.sequence import TransformerAlgorithm as TransformerAlgoBase
from birl.algos.awac import AWAC, AWACConfig
from birl.algos.awr import AWR, AWRConfig, DiscreteAWR, DiscreteAWRConfig
from birl.algos.bc import BC, BCConfig, DiscreteBC, DiscreteBCConfig
from birl.algos.bcq import BCQ, BCQConfig, DiscreteBCQ, DiscreteBCQConfig
from birl.algos.bear import BEAR, BEARConfig
from birl.algos.cal_ql import CalQL, CalQLConfig
from birl.algos.cql import CQL, CQLConfig, DiscreteCQL, DiscreteCQLConfig
from birl.algos.crr import CRR, CRRConfig
from birl.algos.ddpg import DDPG, DDPGConfig
from birl.algos.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerConfig,
    DiscreteDecisionTransformer,
    DiscreteDecisionTransformerConfig,
)
from birl.algos.discrete_sac import DiscreteSAC, DiscreteSACConfig
from birl.algos.dqn import DQN, DoubleDQN, DoubleDQNConfig, DQNConfig
from birl.algos.edac import EDAC, EDACConfig
from birl.algos.iql import IQL, DiscreteIQL, DiscreteIQLConfig, IQLConfig
from birl.algos.nfq import NFQ, NFQConfig
from birl.algos.plas import PLAS, PLASConfig, PLASWithPerturbation, PLASWithPerturbationConfig
from birl.algos.ppo import PPO, PPOConfig
from birl.algos.prdc import PRDC, PRDCConfig
from birl.algos.random_policy import (
    DiscreteRandomPolicy,
    DiscreteRandomPolicyConfig,
    RandomPolicy,
    RandomPolicyConfig,
)
from birl.algos.rebrac import ReBRAC, ReBRACConfig
from birl.algos.sac import SAC, SACConfig
from birl.algos.tacr import TACR, TACRConfig
from birl.algos.td3 import TD3, TD3Config
from birl.algos.td3_plus_bc import TD3PlusBC, TD3PlusBCConfig

__all__ = [
    "AWAC",
    "AWR",
    "BC",
    "BCQ",
    "BEAR",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "IQL",
    "NFQ",
    "PLAS",
    "PPO",
    "PRDC",
    "SAC",
    "TACR",
    "TD3",
    "AWACConfig",
    "AWRConfig",
    "Algorithm",
    "BCConfig",
    "BCQConfig",
    "BEARConfig",
    "CQLConfig",
    "CRRConfig",
    "CalQL",
    "CalQLConfig",
    "ConstantEpsilonGreedy",
    "DDPGConfig",
    "DQNConfig",
    "DecisionTransformer",
    "DecisionTransformerConfig",
    "DiscreteAWR",
    "DiscreteAWRConfig",
    "DiscreteBC",
    "DiscreteBCConfig",
    "DiscreteBCQ",
    "DiscreteBCQConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteDecisionTransformer",
    "DiscreteDecisionTransformerConfig",
    "DiscreteIQL",
    "DiscreteIQLConfig",
    "DiscreteRandomPolicy",
    "DiscreteRandomPolicyConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "DoubleDQN",
    "DoubleDQNConfig",
    "EDACConfig",
    "Explorer",
    "GreedyTransformerActionSampler",
    "IQLConfig",
    "IdentityTransformerActionSampler",
    "LinearDecayEpsilonGreedy",
    "NFQConfig",
    "NormalNoise",
    "PLASConfig",
    "PLASWithPerturbation",
    "PLASWithPerturbationConfig",
    "PPOConfig",
    "PRDCConfig",
    "QLearningAlgoBase",
    "RandomPolicy",
    "RandomPolicyConfig",
    "ReBRAC",
    "ReBRACConfig",
    "SACConfig",
    "SoftmaxTransformerActionSampler",
    "StatefulTransformerWrapper",
    "TACRConfig",
    "TD3Config",
    "TD3PlusBC",
    "TD3PlusBCConfig",
    "TransformerActionSampler",
    "TransformerAlgoBase",
    "TransformerInput",
]
