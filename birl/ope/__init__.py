"""Off-policy evaluation: estimators, intervals, audits of logs, and verdicts."""

from typing import TYPE_CHECKING, Final

from birl.errors import explain_missing_names
from birl.ope.audit.checks import Check
from birl.ope.audit.report import Advice, DataReport, report_data
from birl.ope.confidence_sequences import (
    AllocationChange,
    MeanDifference,
    allocation_change,
    bounded_difference,
    mixture_threshold,
    running_difference,
)
from birl.ope.constraints import Constraint
from birl.ope.diagnostics import (
    Diagnostics,
    calibration_error,
    diagnose,
    kappa,
    pareto_k,
    tail_weight,
    unsupported_mass,
)
from birl.ope.distribution import conditional_value_at_risk, return_quantile
from birl.ope.estimators import (
    Estimate,
    bias_bound,
    direct_method,
    double_reinforcement_learning,
    doubly_robust,
    folds,
    importance_sampling,
    on_policy,
    per_decision,
    weighted_doubly_robust,
    weighted_importance_sampling,
    weighted_per_decision,
)
from birl.ope.group_sequential import crossing_probabilities, required_drift, spending_bounds, spent_error
from birl.ope.importance_weights import (
    Trajectories,
    clip_ratios,
    kernel_log_density,
    log_ratios,
    mixture_log_ratios,
    padded,
    shrink_ratios,
    switch_ratios,
    temper_ratios,
)
from birl.ope.intervals import (
    Interval,
    betting_bound,
    bootstrap_interval,
    hcope_bound,
    hoeffding_interval,
    t_interval,
    t_quantile,
)
from birl.ope.magic import magic
from birl.ope.marginalized_ratios import marginal_ratios
from birl.ope.mrdr import more_robust_q
from birl.ope.online_test import (
    READ_STATUS,
    OnlineTestPlan,
    OnlineTestResult,
    OpenEnded,
    OutcomeSpread,
    episodes_to_log,
    outcome_spread,
    plan_online_test,
    read_online_test,
    sample_size,
)
from birl.ope.sensitivity import Confounded, confounded_range
from birl.ope.slate_tables import SLATE_COLUMNS, slates_from_table
from birl.ope.slates import (
    SlateProbabilities,
    Slates,
    cascade_doubly_robust,
    item_position,
    pseudoinverse,
    reward_interaction,
    slate_importance_sampling,
)
from birl.ope.validity_limits import (
    CAPPED,
    FACTS,
    LIMITS,
    Finding,
    Limit,
    allowed,
    check_limits,
    model_facts,
    tail_facts,
    weight_facts,
)

if TYPE_CHECKING:
    from birl.ope.bootstrap import BootstrapEstimate, bootstrap_counts, bootstrap_linear_fqe, bootstrap_returns
    from birl.ope.decision_table import DecisionTable
    from birl.ope.decisions import STATUS, Verdict, decide, holm, p_value, verdict, verdicts
    from birl.ope.evaluated_policies import ClassifierPolicy
    from birl.ope.evaluation import DECIDERS, Evaluation, Row, Segment, evaluate
    from birl.ope.fqe import FQE, DiscreteFQE, DiscreteFQEConfig, FQEConfig, bootstrap_fqe
    from birl.ope.model_selection import Choice, choose, mean_ranks, turns_down
    from birl.ope.plain_policies import as_policy
    from birl.ope.policies import EpsilonGreedy, Gaussian, Mixture, Sampled, Softmax, StochasticPolicy, load_policy
    from birl.ope.ranking import Ranking, rank
    from birl.ope.slate_evaluation import USER_MODELS, UserModel, evaluate_slates

__all__ = [
    "CAPPED",
    "DECIDERS",
    "FACTS",
    "FQE",
    "LIMITS",
    "READ_STATUS",
    "SLATE_COLUMNS",
    "STATUS",
    "USER_MODELS",
    "Advice",
    "AllocationChange",
    "BootstrapEstimate",
    "Check",
    "Choice",
    "ClassifierPolicy",
    "Confounded",
    "Constraint",
    "DataReport",
    "DecisionTable",
    "Diagnostics",
    "DiscreteFQE",
    "DiscreteFQEConfig",
    "EpsilonGreedy",
    "Estimate",
    "Evaluation",
    "FQEConfig",
    "Finding",
    "Gaussian",
    "Interval",
    "Limit",
    "MeanDifference",
    "Mixture",
    "OnlineTestPlan",
    "OnlineTestResult",
    "OpenEnded",
    "OutcomeSpread",
    "Ranking",
    "Row",
    "Sampled",
    "Segment",
    "SlateProbabilities",
    "Slates",
    "Softmax",
    "StochasticPolicy",
    "Trajectories",
    "UserModel",
    "Verdict",
    "allocation_change",
    "allowed",
    "as_policy",
    "betting_bound",
    "bias_bound",
    "bootstrap_counts",
    "bootstrap_fqe",
    "bootstrap_interval",
    "bootstrap_linear_fqe",
    "bootstrap_returns",
    "bounded_difference",
    "calibration_error",
    "cascade_doubly_robust",
    "check_limits",
    "choose",
    "clip_ratios",
    "conditional_value_at_risk",
    "confounded_range",
    "crossing_probabilities",
    "decide",
    "diagnose",
    "direct_method",
    "double_reinforcement_learning",
    "doubly_robust",
    "episodes_to_log",
    "evaluate",
    "evaluate_slates",
    "folds",
    "hcope_bound",
    "hoeffding_interval",
    "holm",
    "importance_sampling",
    "item_position",
    "kappa",
    "kernel_log_density",
    "load_policy",
    "log_ratios",
    "magic",
    "marginal_ratios",
    "mean_ranks",
    "mixture_log_ratios",
    "mixture_threshold",
    "model_facts",
    "more_robust_q",
    "on_policy",
    "outcome_spread",
    "p_value",
    "padded",
    "pareto_k",
    "per_decision",
    "plan_online_test",
    "pseudoinverse",
    "rank",
    "read_online_test",
    "report_data",
    "required_drift",
    "return_quantile",
    "reward_interaction",
    "running_difference",
    "sample_size",
    "shrink_ratios",
    "slate_importance_sampling",
    "slates_from_table",
    "spending_bounds",
    "spent_error",
    "switch_ratios",
    "t_interval",
    "t_quantile",
    "tail_facts",
    "tail_weight",
    "temper_ratios",
    "turns_down",
    "unsupported_mass",
    "verdict",
    "verdicts",
    "weight_facts",
    "weighted_doubly_robust",
    "weighted_importance_sampling",
    "weighted_per_decision",
]

_HOMES: Final = {
    "BootstrapEstimate": "birl.ope.bootstrap",
    "Choice": "birl.ope.model_selection",
    "ClassifierPolicy": "birl.ope.evaluated_policies",
    "DECIDERS": "birl.ope.evaluation",
    "DecisionTable": "birl.ope.decision_table",
    "DiscreteFQE": "birl.ope.fqe",
    "DiscreteFQEConfig": "birl.ope.fqe",
    "EpsilonGreedy": "birl.ope.policies",
    "Evaluation": "birl.ope.evaluation",
    "FQE": "birl.ope.fqe",
    "FQEConfig": "birl.ope.fqe",
    "Gaussian": "birl.ope.policies",
    "Mixture": "birl.ope.policies",
    "Ranking": "birl.ope.ranking",
    "Row": "birl.ope.evaluation",
    "STATUS": "birl.ope.decisions",
    "USER_MODELS": "birl.ope.slate_evaluation",
    "UserModel": "birl.ope.slate_evaluation",
    "Sampled": "birl.ope.policies",
    "Segment": "birl.ope.evaluation",
    "Softmax": "birl.ope.policies",
    "StochasticPolicy": "birl.ope.policies",
    "Verdict": "birl.ope.decisions",
    "as_policy": "birl.ope.plain_policies",
    "bootstrap_counts": "birl.ope.bootstrap",
    "bootstrap_fqe": "birl.ope.fqe",
    "bootstrap_linear_fqe": "birl.ope.bootstrap",
    "bootstrap_returns": "birl.ope.bootstrap",
    "choose": "birl.ope.model_selection",
    "decide": "birl.ope.decisions",
    "evaluate": "birl.ope.evaluation",
    "evaluate_slates": "birl.ope.slate_evaluation",
    "holm": "birl.ope.decisions",
    "load_policy": "birl.ope.policies",
    "mean_ranks": "birl.ope.model_selection",
    "p_value": "birl.ope.decisions",
    "rank": "birl.ope.ranking",
    "turns_down": "birl.ope.model_selection",
    "verdict": "birl.ope.decisions",
    "verdicts": "birl.ope.decisions",
}
"""Modules of the names that are imported on first use, as they need PyTorch: reports on logs do not."""

_RENAMED = {
    "DrawnPolicy": "birl.ope.StochasticPolicy",
    "Refits": "birl.ope.BootstrapEstimate",
    "fqe_refits": "birl.ope.bootstrap_fqe",
    "judge": "birl.ope.check_limits",
    "linear_refits": "birl.ope.bootstrap_linear_fqe",
    "refit_interval": "birl.ope.bootstrap_interval",
    "resamples": "birl.ope.bootstrap_counts",
    "return_refits": "birl.ope.bootstrap_returns",
}


explain_missing_names(__name__, __all__, _RENAMED, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
