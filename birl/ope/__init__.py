"""Off-policy evaluation: what a policy would earn, estimated from logged data alone."""

from birl.ope.fqe import FQE, DiscreteFQE, DiscreteFQEConfig, FQEConfig
from birl.ope.policies import DrawnPolicy, EpsilonGreedy, Gaussian, Mixture, Sampled, Softmax, load_policy

__all__ = [
    "FQE",
    "DiscreteFQE",
    "DiscreteFQEConfig",
    "DrawnPolicy",
    "EpsilonGreedy",
    "FQEConfig",
    "Gaussian",
    "Mixture",
    "Sampled",
    "Softmax",
    "load_policy",
]
