"""Evaluators that need no environment.

An evaluator is called with ``(algo, dataset)``. All but the comparing ones take ``episodes``: test episodes to use
instead of the dataset that is being trained on.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from birl.dataset import EpisodeBase, ReplayBufferBase
from birl.dataset.transitions import Transitions, Window
from birl.errors import ConfigError
from birl.types import ActionSpace, Array


class EvaluatorProtocol(Protocol):
    """Says one number about an algorithm."""

    def __call__(self, algo: Any, dataset: Any) -> float:
        """Evaluate.

        Args:
            algo: algorithm; ``predict``, ``predict_value``, ``gamma`` and the scalers are there.
            dataset: what it is being trained on.
        """


class OverTransitions(EvaluatorProtocol):
    """Mean of a quantity over all transitions.

    Args:
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    _kind: ActionSpace | None = None
    _sibling = ""

    def __init__(self, episodes: Sequence[EpisodeBase] | None = None) -> None:
        self._episodes = episodes
        self._kept: tuple[Any, Transitions] | None = None

    def _transitions(self, dataset: ReplayBufferBase) -> Transitions:
        """The transitions. Those of given episodes are arranged once only."""
        if self._episodes is None:
            return Transitions(dataset)
        if self._kept is None or self._kept[0] is not dataset.transition_picker:
            self._kept = dataset.transition_picker, Transitions(dataset, self._episodes)
        return self._kept[1]

    def _windows(self, dataset: ReplayBufferBase) -> Iterator[Window]:
        return iter(self._transitions(dataset))

    def __call__(self, algo: Any, dataset: Any) -> float:
        """See `EvaluatorProtocol`."""
        if self._kind is not None:
            self._check_kind(algo, dataset, self._kind)
        quantities = np.concatenate([self._quantity(algo, window) for window in self._windows(dataset)])
        return float(quantities.mean(dtype=np.float64))

    def _check_kind(self, algo: Any, dataset: Any, kind: ActionSpace) -> None:
        info, ask = getattr(dataset, "dataset_info", None), getattr(algo, "get_action_type", None)
        for what, given in (("dataset", info and info.action_space), ("algorithm", ask and ask())):
            if given in (ActionSpace.DISCRETE, ActionSpace.CONTINUOUS) and given is not kind:
                raise ConfigError(
                    f"the {what} has {given.value} actions, {type(self).__name__} takes {kind.value} ones: "
                    f"use {self._sibling}"
                )

    @abc.abstractmethod
    def _quantity(self, algo: Any, window: Window) -> Array:
        """One number ``[B]`` for each transition."""


class TDErrorEvaluator(OverTransitions):
    r"""Mean squared temporal-difference error of the greedy policy: large on training data means overfitting elsewhere.

    .. math::
        E_D[(Q(s_t, a_t) - \sum_{k<n} \gamma^k r_{t+k} - \gamma^n Q(s_{t+n}, \pi(s_{t+n})))^2]

    Differs from d3rlpy, which uses :math:`\gamma` for any number of steps :math:`n`.
    """

    def _quantity(self, algo: Any, window: Window) -> Array:
        value = algo.predict_value(window.observations, window.actions)
        action = algo.predict(window.next_observations)
        following = algo.predict_value(window.next_observations, action)
        reward = window.rewards
        if algo.reward_scaler is not None:
            reward = algo.reward_scaler.transform_numpy(reward)
        discount = algo.gamma**window.intervals * (1.0 - window.terminals)
        return np.square(value - reward - discount * following)


class DiscountedSumOfAdvantageEvaluator(OverTransitions):
    r"""Mean over steps of the discounted sum of the data's advantages until the episode's end.

    .. math::
        E_D[\sum_{t' \ge t} \gamma^{t' - t} (Q(s_{t'}, a_{t'}) - Q(s_{t'}, \pi(s_{t'})))]

    The smaller, the better does the greedy policy think of its own actions (Murphy 2005, "A generalization error for
    Q-learning", JMLR 6). Differs from d3rlpy, which cuts episodes into windows of 1024 steps.
    """

    def __call__(self, algo: Any, dataset: Any) -> float:
        """See `EvaluatorProtocol`."""
        windows = [(self._quantity(algo, window), window.episodes) for window in self._windows(dataset)]
        advantages, episodes = (np.concatenate(part) for part in zip(*windows, strict=True))
        sums, total, previous = np.zeros(len(advantages)), 0.0, -1
        for index in range(len(advantages) - 1, -1, -1):
            total = float(advantages[index]) + (algo.gamma * total if episodes[index] == previous else 0.0)
            sums[index], previous = total, episodes[index]
        return float(sums.mean())

    def _quantity(self, algo: Any, window: Window) -> Array:
        greedy = algo.predict(window.observations)
        value: Array = algo.predict_value(window.observations, window.actions)
        return value - algo.predict_value(window.observations, greedy)


class AverageValueEstimationEvaluator(OverTransitions):
    r"""Mean value of the greedy policy, :math:`E_D[Q(s_t, \pi(s_t))]`: far too large if values are overestimated."""

    def _quantity(self, algo: Any, window: Window) -> Array:
        value: Array = algo.predict_value(window.observations, algo.predict(window.observations))
        return value


class InitialStateValueEstimationEvaluator(AverageValueEstimationEvaluator):
    r"""Mean value of the greedy policy where episodes begin: an estimate of its return.

    .. math::
        E_{s_0 \sim D}[Q(s_0, \pi(s_0))]

    See Paine et al. 2020, arXiv:2007.09055. Differs from d3rlpy, which takes every 1024th step of an episode for a
    beginning.
    """

    def _windows(self, dataset: ReplayBufferBase) -> Iterator[Window]:
        return self._transitions(dataset).initial()


class SoftOPCEvaluator(OverTransitions):
    r"""Soft off-policy classification: how much higher the values are in successful episodes.

    .. math::
        E_{D_{success}}[Q(s, a)] - E_D[Q(s, a)]

    See Irpan et al. 2019, arXiv:1906.01624. NaN if no episode is successful.

    Args:
        return_threshold: an episode is successful if its undiscounted return is at least this.
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    def __init__(self, return_threshold: float, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._return_threshold = return_threshold

    def __call__(self, algo: Any, dataset: Any) -> float:
        """See `EvaluatorProtocol`."""
        transitions = self._transitions(dataset)
        successful = transitions.returns() >= self._return_threshold
        values = [(self._quantity(algo, window), successful[window.episodes]) for window in transitions]
        value, success = (np.concatenate(part) for part in zip(*values, strict=True))
        value = value.astype(np.float64)
        return float(value[success].mean() - value.mean()) if success.any() else float("nan")

    def _quantity(self, algo: Any, window: Window) -> Array:
        value: Array = algo.predict_value(window.observations, window.actions)
        return value


class ContinuousActionDiffEvaluator(OverTransitions):
    r"""Mean squared distance of greedy actions from the data's, :math:`E_D[|a_t - \pi(s_t)|^2]`."""

    _kind = ActionSpace.CONTINUOUS
    _sibling = "DiscreteActionMatchEvaluator"

    def _quantity(self, algo: Any, window: Window) -> Array:
        difference: Array = window.actions - algo.predict(window.observations)
        return np.square(difference).sum(1)


class DiscreteActionMatchEvaluator(OverTransitions):
    r"""Share of steps at which the greedy action is the data's, :math:`P_D(a_t = \pi(s_t))`."""

    _kind = ActionSpace.DISCRETE
    _sibling = "ContinuousActionDiffEvaluator"

    def _quantity(self, algo: Any, window: Window) -> Array:
        return np.asarray(window.actions == algo.predict(window.observations))


class CompareContinuousActionDiffEvaluator(OverTransitions):
    r"""Mean squared distance of the greedy actions of two algorithms, :math:`E_D[|\pi_1(s_t) - \pi_2(s_t)|^2]`.

    Args:
        base_algo: the algorithm to compare with.
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    _kind = ActionSpace.CONTINUOUS
    _sibling = "CompareDiscreteActionMatchEvaluator"

    def __init__(self, base_algo: Any, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._base_algo = base_algo

    def _quantity(self, algo: Any, window: Window) -> Array:
        difference: Array = algo.predict(window.observations) - self._base_algo.predict(window.observations)
        return np.square(difference).sum(1)


class CompareDiscreteActionMatchEvaluator(OverTransitions):
    r"""Share of steps at which the greedy actions of two algorithms agree, :math:`P_D(\pi_1(s_t) = \pi_2(s_t))`.

    Args:
        base_algo: the algorithm to compare with.
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    _kind = ActionSpace.DISCRETE
    _sibling = "CompareContinuousActionDiffEvaluator"

    def __init__(self, base_algo: Any, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._base_algo = base_algo

    def _quantity(self, algo: Any, window: Window) -> Array:
        return np.asarray(algo.predict(window.observations) == self._base_algo.predict(window.observations))
