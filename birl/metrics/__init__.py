"""Evaluators: returns in environments and figures on logged data."""

from birl.errors import explain_missing_names
from birl.metrics import utility as utility  # a path of d3rlpy's
from birl.metrics.environment import (
    EnvironmentEvaluator,
    EnvironmentStatistics,
    evaluate,
    evaluate_qlearning_with_environment,
    evaluate_transformer_with_environment,
    statistics,
)
from birl.metrics.evaluators import (
    AverageValueEstimationEvaluator,
    CompareContinuousActionDiffEvaluator,
    CompareDiscreteActionMatchEvaluator,
    ContinuousActionDiffEvaluator,
    DiscountedSumOfAdvantageEvaluator,
    DiscreteActionMatchEvaluator,
    EvaluatorProtocol,
    InitialStateValueEstimationEvaluator,
    SoftOPCEvaluator,
    TDErrorEvaluator,
)

__all__ = [
    "AverageValueEstimationEvaluator",
    "CompareContinuousActionDiffEvaluator",
    "CompareDiscreteActionMatchEvaluator",
    "ContinuousActionDiffEvaluator",
    "DiscountedSumOfAdvantageEvaluator",
    "DiscreteActionMatchEvaluator",
    "EnvironmentEvaluator",
    "EnvironmentStatistics",
    "EvaluatorProtocol",
    "InitialStateValueEstimationEvaluator",
    "SoftOPCEvaluator",
    "TDErrorEvaluator",
    "evaluate",
    "evaluate_qlearning_with_environment",
    "evaluate_transformer_with_environment",
    "statistics",
]

explain_missing_names(__name__, __all__)
