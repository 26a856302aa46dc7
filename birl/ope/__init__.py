"""Off-policy evaluation: what a policy would earn, estimated from logged data alone."""

from birl.ope.fqe import FQE, DiscreteFQE, DiscreteFQEConfig, FQEConfig

__all__ = ["FQE", "DiscreteFQE", "DiscreteFQEConfig", "FQEConfig"]
