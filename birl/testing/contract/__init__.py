"""Checks that every algorithm must pass, for any configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from birl.algorithm import AlgorithmConfig
from birl.testing.contract.acting import actions_in_bounds, export, greedy_is_greedy, samples_have_their_probabilities
from birl.testing.contract.bootstrap import discounts_count, parameters_move, targets_act, targets_are_constants
from birl.testing.contract.experience import episodes_stay_separate, scalers_reach_the_batch
from birl.testing.contract.files import same_seed_same_result, save_load_continue
from birl.testing.contract.gradients import (
    any_leading_dimensions,
    gradient_split,
    losses_read_nothing,
    padding_is_ignored,
    steps_stay_in_their_networks,
    values_ignore_the_policy,
)
from birl.testing.contract.learning import (
    batches_stay_as_they_are,
    compiled_equals_eager,
    follows_rewards,
    frozen_parameters_stay,
    members_differ,
    metrics,
    q_functions,
    targets_follow,
    zero_learning_rate,
)
from birl.testing.contract.subject import Subject
from birl.types import Shape

CHECKS: dict[str, Callable[[Subject], None]] = {
    "greedy_is_greedy": greedy_is_greedy,
    "samples_have_their_probabilities": samples_have_their_probabilities,
    "same_seed_same_result": same_seed_same_result,
    "save_load_continue": save_load_continue,
    "steps_stay_in_their_networks": steps_stay_in_their_networks,
    "parameters_move": parameters_move,
    "targets_are_constants": targets_are_constants,
    "discounts_count": discounts_count,
    "targets_act": targets_act,
    "targets_follow": targets_follow,
    "any_leading_dimensions": any_leading_dimensions,
    "gradient_split": gradient_split,
    "padding_is_ignored": padding_is_ignored,
    "losses_read_nothing": losses_read_nothing,
    "batches_stay_as_they_are": batches_stay_as_they_are,
    "values_ignore_the_policy": values_ignore_the_policy,
    "frozen_parameters_stay": frozen_parameters_stay,
    "zero_learning_rate": zero_learning_rate,
    "follows_rewards": follows_rewards,
    "metrics": metrics,
    "members_differ": members_differ,
    "q_functions": q_functions,
    "episodes_stay_separate": episodes_stay_separate,
    "scalers_reach_the_batch": scalers_reach_the_batch,
    "actions_in_bounds": actions_in_bounds,
    "export_torchscript": export(".pt"),
}
"""The checks by name, ordered so that the first failure is the most informative."""

SLOW_CHECKS: dict[str, Callable[[Subject], None]] = {
    "compiled_equals_eager": compiled_equals_eager,
    "export_onnx": export(".onnx"),
    "export_torch": export(".pt2"),
}
"""Checks that take long, or need the extra ``onnx``."""

__all__ = ["CHECKS", "SLOW_CHECKS", "Subject", "check_algorithm"]


def check_algorithm(
    config: AlgorithmConfig,
    *,
    observation_shape: Shape = (3,),
    action_size: int | Sequence[int] = 2,
    discrete_action: bool | None = None,
    checks: Sequence[str] | None = None,
    seed: int = 0,
    device: bool | int | str | None = None,
) -> list[str]:
    """Check that an algorithm keeps the contract of all algorithms.

    Args:
        config: configuration, with small networks and a small ``batch_size`` for speed, and without dropout or batch
            norm, whose randomness and statistics depend on the batch.
        observation_shape: shape of the observations.
        action_size: number of action dimensions or of discrete actions, or a list of numbers of options.
        discrete_action: only for algorithms that handle both kinds of actions.
        checks: names from `CHECKS` and `SLOW_CHECKS`; all of `CHECKS` by default.
        seed: seed of parameters and data.
        device: training device; see `AlgorithmConfig.create`.

    Returns:
        The names of the checks that were made.

    Raises:
        AssertionError: if a check fails; the message names the check and the fault.
    """
    subject = Subject(config, observation_shape, action_size, discrete_action, seed, device)
    known = {**CHECKS, **SLOW_CHECKS}
    names = list(CHECKS) if checks is None else list(checks)
    for name in names:
        if name not in known:
            raise ValueError(f"no check is called {name!r}. Known: {', '.join(sorted(known))}")
        try:
            known[name](subject)
        except AssertionError as error:
            raise AssertionError(f"{type(config).__name__}, check {name!r}: {error}") from error
    return names
