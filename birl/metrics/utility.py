"""d3rlpy's import path of these functions."""

from birl.metrics.environment import evaluate_qlearning_with_environment, evaluate_transformer_with_environment

__all__ = ["evaluate_qlearning_with_environment", "evaluate_transformer_with_environment"]
