"""Evaluators that need no environment.

An evaluator is called with ``(algo, dataset)``. All but the comparing ones take ``episodes``: test episodes to use
instead of the dataset that is being trained on.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from birl.dataset import EpisodeBase, InfiniteBuffer, ReplayBuffer, ReplayBufferBase, TransitionMiniBatch
from birl.dataset.reader import Reader
from birl.errors import ConfigError, EmptyDataError
from birl.spaces import open_masks
from birl.types import ActionSpace, Array


class EvaluatorProtocol(Protocol):
    """Computes one number for an algorithm."""

    def __call__(self, algo: Any, dataset: Any) -> float:
        """Evaluate.

        Args:
            algo: algorithm; ``predict``, ``predict_value``, ``gamma`` and the scalers are there.
            dataset: the dataset that it is trained on.
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
        self._kept: tuple[Any, Reader] | None = None

    def _reader(self, dataset: ReplayBufferBase) -> Reader:
        """A reader of the transitions. Given episodes are copied once only."""
        if not isinstance(dataset, ReplayBufferBase):
            name = type(self).__name__
            raise ConfigError(f"{name} takes a dataset, got {dataset!r:.80}: give an MDPDataset or ReplayBuffer")
        if self._episodes is None:
            return dataset.reader
        picker = dataset.transition_picker
        if self._kept is None or self._kept[0] is not picker:
            # Given episodes may take actions that the dataset, whose number of actions may be a guess, never took.
            if not self._episodes:
                raise EmptyDataError("there are no episodes to read: give one or more")
            space = dataset.dataset_info.action_space
            copy = ReplayBuffer(InfiniteBuffer(), picker, episodes=self._episodes, action_space=space)
            self._kept = picker, copy.reader
        return self._kept[1]

    def _batches(self, dataset: ReplayBufferBase) -> Iterator[TransitionMiniBatch]:
        return self._reader(dataset).all_transitions()

    def __call__(self, algo: Any, dataset: Any) -> float:
        if self._kind is not None:
            self._check_kind(algo, dataset, self._kind)
        quantities = np.concatenate([self._quantity(algo, batch) for batch in self._batches(dataset)])
        return float(quantities.mean(dtype=np.float64))

    def _check_kind(self, algo: Any, dataset: Any, kind: ActionSpace) -> None:
        info, ask = getattr(dataset, "dataset_info", None), getattr(algo, "get_action_type", None)
        for what, given in (("dataset", info and info.action_space), ("algorithm", ask and ask())):
            if isinstance(given, ActionSpace) and not kind & given:
                raise ConfigError(
                    f"the {what} has {given.words} actions, {type(self).__name__} takes "
                    f"{kind.words} ones: use {self._sibling}"
                )

    @abc.abstractmethod
    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        """One number ``[B]`` for each transition."""

    def _compared(self, batch: TransitionMiniBatch) -> Array:
        """The actions that greedy ones are compared with."""
        return _actions(batch)


class TDErrorEvaluator(OverTransitions):
    r"""Mean squared temporal-difference error of the greedy policy: large on training data means overfitting elsewhere.

    .. math::
        E_D[(Q(s_t, a_t) - \sum_{k<n} \gamma^k r_{t+k} - \gamma^n Q(s_{t+n}, \pi(s_{t+n})))^2]

    Differs from d3rlpy, which uses :math:`\gamma` for any number of steps :math:`n`.
    """

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        value = algo.predict_value(batch.observations, _actions(batch, algo))
        after, spec = batch.next_observations, getattr(algo, "spec", None)
        if spec is not None:
            after, _ = open_masks(spec.actions, after)  # after the end of an episode nothing may be allowed
        following = algo.predict_value(after, algo.predict(after))
        reward = batch.rewards[:, 0]
        if algo.reward_scaler is not None:
            reward = algo.reward_scaler.transform_numpy(reward)
        discount = algo.gamma ** batch.intervals[:, 0] * (1.0 - batch.terminals[:, 0])
        return np.square(value - reward - discount * following)


class DiscountedSumOfAdvantageEvaluator(OverTransitions):
    r"""Mean over steps of the discounted sum of the data's advantages until the episode's end.

    .. math::
        E_D[\sum_{t' \ge t} \gamma^{t' - t} (Q(s_{t'}, a_{t'}) - Q(s_{t'}, \pi(s_{t'})))]

    Small values mean that the greedy policy rates its own actions above those of the data (Murphy 2005, "A
    generalization error for Q-learning", JMLR 6). Differs from d3rlpy, which cuts episodes into windows of 1024 steps.
    """

    def __call__(self, algo: Any, dataset: Any) -> float:
        found = [(self._quantity(algo, batch), batch.extra["episode"]) for batch in self._batches(dataset)]
        advantages, episodes = (np.concatenate(part) for part in zip(*found, strict=True))
        sums, total, previous = np.zeros(len(advantages)), 0.0, -1
        for index in range(len(advantages) - 1, -1, -1):
            total = float(advantages[index]) + (algo.gamma * total if episodes[index] == previous else 0.0)
            sums[index], previous = total, episodes[index]
        return float(sums.mean())

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        greedy = algo.predict(batch.observations)
        value: Array = algo.predict_value(batch.observations, _actions(batch, algo))
        return value - algo.predict_value(batch.observations, greedy)


class AverageValueEstimationEvaluator(OverTransitions):
    r"""Mean value of the greedy policy, :math:`E_D[Q(s_t, \pi(s_t))]`: far too large if values are overestimated.

    An evaluation (`birl.ope.FQE`) has the expectation over the policy's actions instead.
    """

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        if (expected := getattr(algo, "policy_value", None)) is not None:
            return np.asarray(expected(batch.observations))
        value: Array = algo.predict_value(batch.observations, algo.predict(batch.observations))
        return value


class InitialStateValueEstimationEvaluator(AverageValueEstimationEvaluator):
    r"""Mean value of the greedy policy where episodes begin: an estimate of its return.

    .. math::
        E_{s_0 \sim D}[Q(s_0, \pi(s_0))]

    See Paine et al. 2020, arXiv:2007.09055. Differs from d3rlpy, which takes every 1024th step of an episode for a
    beginning.
    """

    def _batches(self, dataset: ReplayBufferBase) -> Iterator[TransitionMiniBatch]:
        return self._reader(dataset).all_transitions(initial=True)


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
        reader = self._reader(dataset)
        successful = reader.episode_returns() >= self._return_threshold
        batches = reader.all_transitions()
        values = [(self._quantity(algo, batch), successful[batch.extra["episode"]]) for batch in batches]
        value, success = (np.concatenate(part) for part in zip(*values, strict=True))
        value = value.astype(np.float64)
        return float(value[success].mean() - value.mean()) if success.any() else float("nan")

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        value: Array = algo.predict_value(batch.observations, _actions(batch, algo))
        return value


class ContinuousActionDiffEvaluator(OverTransitions):
    r"""Mean squared distance of greedy actions from the data's, :math:`E_D[|a_t - \pi(s_t)|^2]`."""

    _kind = ActionSpace.CONTINUOUS
    _sibling = "DiscreteActionMatchEvaluator"

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        difference: Array = algo.predict(batch.observations) - self._compared(batch)
        return np.square(difference).sum(1)


class DiscreteActionMatchEvaluator(OverTransitions):
    r"""Share of steps at which the greedy action is the data's, :math:`P_D(a_t = \pi(s_t))`."""

    _kind = ActionSpace.CHOICES
    _sibling = "ContinuousActionDiffEvaluator"

    def _quantity(self, algo: Any, batch: TransitionMiniBatch) -> Array:
        greedy = np.asarray(algo.predict(batch.observations))
        return (greedy == self._compared(batch).reshape(greedy.shape)).reshape(len(greedy), -1).all(1)


class _WithAnother(OverTransitions):
    """Compares with the greedy actions of another algorithm, not with those of the data."""

    def __init__(self, base_algo: Any, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._base_algo = base_algo

    def _compared(self, batch: TransitionMiniBatch) -> Array:
        actions: Array = self._base_algo.predict(batch.observations)
        return actions


class CompareContinuousActionDiffEvaluator(_WithAnother, ContinuousActionDiffEvaluator):
    r"""Mean squared distance of the greedy actions of two algorithms, :math:`E_D[|\pi_1(s_t) - \pi_2(s_t)|^2]`.

    Args:
        base_algo: the algorithm to compare with.
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    _sibling = "CompareDiscreteActionMatchEvaluator"


class CompareDiscreteActionMatchEvaluator(_WithAnother, DiscreteActionMatchEvaluator):
    r"""Share of steps at which the greedy actions of two algorithms agree, :math:`P_D(\pi_1(s_t) = \pi_2(s_t))`.

    Args:
        base_algo: the algorithm to compare with.
        episodes: episodes to evaluate with; the dataset that is being trained on by default.
    """

    _sibling = "CompareContinuousActionDiffEvaluator"


def _actions(batch: TransitionMiniBatch, algo: Any = None) -> Array:
    """Actions ``[B, A]``, or integers ``[B]``."""
    actions: Array = batch.actions
    spec = getattr(algo, "spec", None)  # only birl's algorithms have one
    if spec is not None:
        return actions.reshape(len(actions), *spec.actions.shape)
    return actions[:, 0] if actions.dtype.kind in "iu" and actions.shape[1] == 1 else actions
