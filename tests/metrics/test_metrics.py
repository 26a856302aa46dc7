"""Evaluators against plain loops over steps, and evaluation in environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run.fakes import Drift, FakeLearner

import birl.seeding
from birl.dataset import (
    BasicTransitionPicker,
    Episode,
    FIFOBuffer,
    FrameStackTransitionPicker,
    MDPDataset,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    ReplayBuffer,
)
from birl.envs import Stepper, sample_actions, seed_env
from birl.errors import ConfigError, EmptyDataError
from birl.metrics import (
    AverageValueEstimationEvaluator,
    CompareContinuousActionDiffEvaluator,
    CompareDiscreteActionMatchEvaluator,
    ContinuousActionDiffEvaluator,
    DiscountedSumOfAdvantageEvaluator,
    DiscreteActionMatchEvaluator,
    EnvironmentEvaluator,
    EvaluatorProtocol,
    InitialStateValueEstimationEvaluator,
    SoftOPCEvaluator,
    TDErrorEvaluator,
    evaluate,
    evaluate_qlearning_with_environment,
    evaluate_transformer_with_environment,
)

RNG = np.random.Generator(np.random.PCG64(0))
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Every test draws the same data, whichever tests ran before it in its process."""
    RNG.bit_generator.state = START


GAMMA = 0.9


class Scaler:
    """Twice the reward."""

    def transform_numpy(self, reward: Any) -> Any:
        return reward * 2


class Algo:
    """Q(s, a) = |a - w s0|: greedy actions are far from optimal on purpose, so that nothing cancels."""

    gamma = GAMMA

    def __init__(self, discrete: bool, weight: float = 1.0, reward_scaler: Any = None) -> None:
        self.discrete, self.weight, self.reward_scaler = discrete, weight, reward_scaler

    def predict(self, x: Any) -> Any:
        if self.discrete:
            return (np.floor(np.abs(x[:, -1]) * 7 * self.weight) % 3).astype(np.int64)
        return np.tanh(x[:, :2] * self.weight)

    def predict_value(self, x: Any, action: Any) -> Any:
        assert len(x) == len(action) <= 1024
        assert action.shape == (len(x),) if self.discrete else (len(x), 2)
        total = action if self.discrete else action.sum(1)
        return np.abs(total - self.weight * x[:, 0])


def episodes(discrete: bool, lengths: tuple[int, ...] = (3, 1, 1100, 40)) -> list[Episode]:
    made = []
    for index, steps in enumerate(lengths):
        actions = RNG.integers(3, size=(steps, 1)) if discrete else RNG.normal(size=(steps, 2)).astype(np.float32)
        rewards = (RNG.normal(size=(steps, 1)) + index).astype(np.float32)
        final = RNG.normal(size=2).astype(np.float32) if index % 2 else None
        observations = RNG.normal(size=(steps, 2)).astype(np.float32)
        made.append(Episode(observations, actions, rewards, index == 3, truncated=True, final_observation=final))
    return made


def dataset(made: list[Episode], picker: Any = None, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(options.pop("buffer", FIFOBuffer(100_000)), picker, episodes=made, **options)


def steps_of(made: list[Episode]) -> list[tuple[int, int]]:
    """(episode, index) of all transitions."""
    return [(e, i) for e, episode in enumerate(made) for i in range(episode.transition_count)]


def q(algo: Algo, observation: Any, action: Any = None) -> float:
    observation = observation[None]
    chosen = algo.predict(observation) if action is None else (action if algo.discrete else action[None])
    return float(algo.predict_value(observation, chosen)[0])


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_means_over_transitions(discrete: bool, given: bool) -> None:
    made, other = episodes(discrete), episodes(discrete, (5,))
    algo, second = Algo(discrete), Algo(discrete, weight=0.3)
    data = dataset(other if given else made)
    chosen = made if given else None
    pairs = [(made[e], i) for e, i in steps_of(made)]
    assert len(pairs) == 2 + 1 + 1099 + 40  # the first and third episode end without a final observation

    def check(evaluator: Any, expected: list[float]) -> None:
        assert evaluator(algo, data) == pytest.approx(float(np.mean(expected)), rel=1e-5, abs=1e-6)
        assert evaluator(algo, data) == evaluator(algo, data)

    check(AverageValueEstimationEvaluator(chosen), [q(algo, e.observations[i]) for e, i in pairs])
    first = [q(algo, e.observations[0]) for e in made]
    check(InitialStateValueEstimationEvaluator(chosen), first)
    values = [q(algo, e.observations[i], e.actions[i]) for e, i in pairs]
    success = [value for value, (e, _) in zip(values, pairs, strict=True) if e.rewards.sum() >= 10.0]
    assert 0 < len(success) < len(values)
    check(SoftOPCEvaluator(10.0, chosen), [np.mean(success) - np.mean(values)])
    greedy = [algo.predict(e.observations[i][None])[0] for e, i in pairs]
    compared = [second.predict(e.observations[i][None])[0] for e, i in pairs]
    actions = [e.actions[i] for e, i in pairs]
    if discrete:
        check(DiscreteActionMatchEvaluator(chosen), [a[0] == g for a, g in zip(actions, greedy, strict=True)])
        check(
            CompareDiscreteActionMatchEvaluator(second, chosen), [a == g for a, g in zip(compared, greedy, strict=True)]
        )
    else:
        check(
            ContinuousActionDiffEvaluator(chosen), [((a - g) ** 2).sum() for a, g in zip(actions, greedy, strict=True)]
        )
        check(
            CompareContinuousActionDiffEvaluator(second, chosen),
            [((a - g) ** 2).sum() for a, g in zip(compared, greedy, strict=True)],
        )


@pytest.mark.parametrize("picker", [BasicTransitionPicker(), MultiStepTransitionPicker(3, GAMMA)])
@pytest.mark.parametrize("scaler", [None, Scaler()])
def test_fault_13_td_error_discounts_by_the_number_of_steps(picker: Any, scaler: Any) -> None:
    made, algo, expected = episodes(True), Algo(True, reward_scaler=scaler), []
    n = getattr(picker, "n_steps", 1)
    for e, i in steps_of(made):
        episode = made[e]
        last = min(i + n, episode.transition_count)
        reward = sum(GAMMA**k * episode.rewards[i + k, 0] for k in range(last - i))
        observations = [*episode.observations, *([episode.final_observation] if e % 2 else [])]
        following = 0.0
        if not (episode.terminated and last == len(episode)):
            following = GAMMA ** (last - i) * q(algo, observations[last])
        target = reward * (2 if scaler else 1) + following
        expected.append((q(algo, episode.observations[i], episode.actions[i]) - target) ** 2)
    assert TDErrorEvaluator()(algo, dataset(made, picker)) == pytest.approx(float(np.mean(expected)), rel=1e-4)


def test_fault_13_one_initial_state_per_episode() -> None:
    """d3rlpy averaged over three 'initial' states of one episode of 3000 steps."""
    made, algo = episodes(True, (3000,)), Algo(True)
    assert InitialStateValueEstimationEvaluator()(algo, dataset(made)) == pytest.approx(
        q(algo, made[0].observations[0])
    )
    evicted = dataset(made, buffer=FIFOBuffer(100))
    with pytest.raises(EmptyDataError, match="first steps of all episodes were evicted"):
        InitialStateValueEstimationEvaluator()(algo, evicted)


def test_discounted_sum_of_advantage() -> None:
    made, algo, sums = episodes(True), Algo(True), []
    for episode in made:
        total = 0.0
        for i in reversed(range(episode.transition_count)):
            total = (
                q(algo, episode.observations[i], episode.actions[i]) - q(algo, episode.observations[i]) + GAMMA * total
            )
            sums.append(total)
    assert DiscountedSumOfAdvantageEvaluator()(algo, dataset(made)) == pytest.approx(float(np.mean(sums)), rel=1e-4)


def test_frame_stacks_and_custom_pickers() -> None:
    class Custom:
        def __call__(self, episode: Any, index: int) -> Any:
            return FrameStackTransitionPicker(2)(episode, index)

    made, algo = episodes(True, (30, 20)), Algo(True)
    stacked = [
        q(algo, np.concatenate([e.observations[i - 1] if i else np.zeros(2, np.float32), e.observations[i]]))
        for e, i in [(made[e], i) for e, i in steps_of(made)]
    ]
    for picker in (FrameStackTransitionPicker(2), Custom()):
        value = AverageValueEstimationEvaluator()(algo, dataset(made, picker))
        assert value == pytest.approx(float(np.mean(stacked)), rel=1e-5)
        assert AverageValueEstimationEvaluator(made)(algo, dataset(episodes(True, (4,)), picker)) == pytest.approx(
            value
        )


def test_own_episodes_may_take_actions_the_dataset_never_took() -> None:
    actions = np.array([[0], [1], [2], [2]])
    rare = [Episode(np.zeros((4, 2), np.float32), actions, np.zeros((4, 1), np.float32), False, truncated=True)]
    common = [Episode(np.zeros((4, 2), np.float32), actions % 2, np.zeros((4, 1), np.float32), False, truncated=True)]
    assert dataset(common).dataset_info.action_size == 2
    for picker in (None, FrameStackTransitionPicker(2)):
        own = AverageValueEstimationEvaluator(rare)(Algo(True), dataset(common, picker))
        assert own == AverageValueEstimationEvaluator()(Algo(True), dataset(rare, picker))


def test_mixed_and_device_datasets() -> None:
    import torch

    made, other, algo = episodes(True, (30, 20)), episodes(True, (10,)), Algo(True)
    both = AverageValueEstimationEvaluator(made + other)(algo, dataset(made))
    mixed = MixedReplayBuffer(dataset(made), dataset(other), 0.5)
    assert AverageValueEstimationEvaluator()(algo, mixed) == pytest.approx(both)
    with pytest.raises(EmptyDataError, match="the list of episodes is empty"):
        AverageValueEstimationEvaluator([])(algo, mixed)
    expected = TDErrorEvaluator()(algo, dataset(made))
    assert TDErrorEvaluator()(algo, dataset(made, storage=torch.device("cpu"))) == pytest.approx(expected)


class OfTuples(Algo):
    """`Algo` for observations of two parts, which are one observation cut in two."""

    def predict(self, x: Any) -> Any:
        return super().predict(np.concatenate(x, 1))

    def predict_value(self, x: Any, action: Any) -> Any:
        return super().predict_value(np.concatenate(x, 1), action)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_tuple_observations(discrete: bool, given: bool) -> None:
    """Evaluators say of observations in parts what they say of whole ones."""
    whole = episodes(discrete, (30, 2, 7, 5))
    parts = [
        Episode(
            (e.observations[:, :1], e.observations[:, 1:]),
            e.actions,
            e.rewards,
            e.terminated,
            truncated=e.truncated,
            final_observation=(e.final_observation[:1], e.final_observation[1:]) if last else None,
        )
        for e, last in ((e, e.final_observation is not None) for e in whole)
    ]
    algo, cut, data, other = Algo(discrete), OfTuples(discrete), dataset(whole), dataset(parts)
    second = Algo(discrete, weight=0.3), OfTuples(discrete, weight=0.3)
    kinds: list[Any] = [
        TDErrorEvaluator,
        DiscountedSumOfAdvantageEvaluator,
        AverageValueEstimationEvaluator,
        InitialStateValueEstimationEvaluator,
        lambda episodes: SoftOPCEvaluator(1.0, episodes),
        DiscreteActionMatchEvaluator if discrete else ContinuousActionDiffEvaluator,
    ]
    for kind in kinds:
        expected = kind(whole if given else None)(algo, data)
        assert kind(parts if given else None)(cut, other) == pytest.approx(expected) and np.isfinite(expected)
    compare = CompareDiscreteActionMatchEvaluator if discrete else CompareContinuousActionDiffEvaluator
    assert compare(second[1])(cut, other) == pytest.approx(compare(second[0])(algo, data))


def test_no_successful_episode_and_no_transition() -> None:
    assert np.isnan(SoftOPCEvaluator(1e9)(Algo(True), dataset(episodes(True))))
    zeros = np.zeros((1, 2), np.float32)
    single = MDPDataset(zeros, np.zeros(1, np.int64), np.zeros(1, np.float32), [0], [1])
    with pytest.raises(EmptyDataError, match="no transition"):
        TDErrorEvaluator()(Algo(True), single)


def test_custom_evaluator() -> None:
    class Custom(EvaluatorProtocol):
        def __call__(self, algo: Any, dataset: Any) -> float:
            return 3.0

    assert Custom()(None, None) == 3.0


# -- in an environment -----------------------------------------------------------------------------------------


class Fixed(Drift):
    """Episodes of a length that the reset seed decides; each step's reward is 1."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.limit = int(self.np_random.choice([1, 20]))
        return result

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), 1.0, self.steps >= self.limit, False, {}


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("n_episodes", [1, 3, 7])
def test_evaluate_counts_the_first_started_episodes(mode: AutoresetMode | None, n_episodes: int) -> None:
    env: Any = Fixed() if mode is None else SyncVectorEnv([Fixed] * 4, autoreset_mode=mode)
    learner = FakeLearner()
    returns = evaluate(learner, env, n_episodes, seed=1)
    assert len(returns) == n_episodes
    assert set(returns) <= {1.0, 20.0}
    assert learner.checked == [env]
    assert evaluate(learner, env, n_episodes, seed=1) == returns


def test_evaluation_by_steps() -> None:
    """Episodes of 4 steps: those that are unfinished after the last step are left out, unless there are no others."""
    learner, env = FakeLearner(), Drift(limit=4, end=0.0)
    whole = evaluate(learner, env, 3, seed=1)
    assert evaluate(learner, env, n_steps=12, seed=1) == evaluate(learner, env, n_steps=15, seed=1) == whole
    assert len(evaluate(learner, env, n_steps=16, seed=1)) == 4
    (partial,) = evaluate(learner, env, n_steps=3, seed=1)
    assert partial != whole[0] and abs(partial) < abs(whole[0]) + 10
    vector = SyncVectorEnv([lambda: Drift(limit=4, end=0.0)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert [len(evaluate(learner, vector, n_steps=n, seed=1)) for n in (8, 9, 16)] == [2, 2, 4]
    with pytest.raises(ConfigError, match="n_steps is 0"):
        evaluate(learner, env, n_steps=0)


def test_statistics_of_returns() -> None:
    found = birl.metrics.statistics([1.0, 2.0, 6.0])
    assert found.pop("std") == pytest.approx((14 / 3) ** 0.5)
    assert found == {"mean": 3.0, "median": 2.0, "min": 1.0, "max": 6.0, "episodes": 3.0}
    learner, env = FakeLearner(), Drift()
    statistics = birl.metrics.EnvironmentStatistics(env, 5, seed=3)
    returns = evaluate(learner, env, 5, seed=3)
    assert statistics(learner) == birl.metrics.statistics(returns)
    assert birl.metrics.EnvironmentEvaluator(env, 5, seed=3)(learner) == pytest.approx(np.mean(returns))
    state = statistics.get_state()
    other = birl.metrics.EnvironmentStatistics(env, 5, seed=4)
    assert other(learner) != statistics(learner)
    other.set_state(state)
    assert other(learner) == statistics(learner)


def test_evaluation_does_not_favour_short_episodes() -> None:
    """Counting the episodes that finish first would give a mean of about 1 instead of 10.5."""
    env = SyncVectorEnv([Fixed] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    means = [np.mean(evaluate(FakeLearner(), env, 8, seed=seed)) for seed in range(30)]
    assert 8.5 < np.mean(means) < 12.5


class Right(Drift):
    """Rewards one of three actions."""

    def step(self, action: Any) -> Any:
        observation, _, _, truncated, info = super().step(action)
        return observation, float(action == 2), False, truncated, info


class Always(FakeLearner):
    """Takes that action."""

    def actor(self, **options: Any) -> Any:
        return lambda observation, is_first, reward: np.full(len(is_first), 2)


def test_epsilon() -> None:
    learner = Always()
    assert set(evaluate(learner, Right(limit=50), 5, seed=0)) == {50.0}
    assert np.mean(evaluate(learner, Right(limit=50), 20, epsilon=0.6, seed=0)) == pytest.approx(50 * 0.6, rel=0.1)
    other = lambda observation, is_first, reward: np.zeros(len(is_first), np.int64)  # noqa: E731
    assert evaluate(learner, Right(), 2, seed=0, actor=other) == [0.0, 0.0]


def test_environment_evaluator_repeats_itself() -> None:
    learner, env = FakeLearner(), Fixed()
    birl.seeding.seed(1)
    evaluator = EnvironmentEvaluator(env, n_trials=6)
    values = [evaluator(learner, dataset=None) for _ in range(3)]
    assert len(set(values)) == 1
    birl.seeding.seed(1)
    assert EnvironmentEvaluator(env, n_trials=6)(learner, None) == values[0]
    seed_env(env, 3)
    first = EnvironmentEvaluator(env, n_trials=50)(learner, None)
    seed_env(env, 3)
    assert EnvironmentEvaluator(env, n_trials=50)(learner, None) == first


def test_the_first_episode_is_that_of_the_documented_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    env, seeds = Right(limit=3), []
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda *, seed=None, **options: seeds.append(seed) or reset(seed=seed, **options))
    evaluate(Always(), env, 3, seed=0)
    assert seeds[0] == int(np.random.default_rng(0).integers(2**31 - 1)) and len(set(seeds[:3])) == 3


def test_mean_returns_under_d3rlpys_names() -> None:
    always, env = Always(), Right(limit=50)
    assert evaluate_qlearning_with_environment(always, env, n_trials=3) == 50.0
    assert evaluate_transformer_with_environment(always, env, n_trials=3) == 50.0
    assert 20.0 < evaluate_qlearning_with_environment(always, env, n_trials=20, epsilon=0.6) < 40.0


def test_arguments_out_of_range() -> None:
    for value in (0, 1.5, True):
        with pytest.raises(ConfigError, match="n_episodes"):
            evaluate(FakeLearner(), Drift(), value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="epsilon is 1.5"):
        evaluate(FakeLearner(), Drift(), 1, epsilon=1.5)


def test_random_actions_do_not_disturb_the_steps() -> None:
    """The helper that the evaluation relies on: observations belong to the actions that were given."""
    stepper = Stepper(Fixed(), np.random.Generator(np.random.PCG64(0)))
    rng = np.random.Generator(np.random.PCG64(1))
    total = sum(len(stepper.step(sample_actions(stepper.action_space, 1, rng)).ended) for _ in range(200))
    assert total > 5


@pytest.mark.parametrize("options", [{"n_trials": 0}, {"epsilon": 2}])
def test_environment_evaluator_refuses(options: dict[str, Any]) -> None:
    from birl.errors import ConfigError
    from birl.metrics import EnvironmentEvaluator

    with pytest.raises(ConfigError, match=next(iter(options))):
        EnvironmentEvaluator(None, **options)


def test_evaluators_name_their_sibling() -> None:
    from birl.dataset import MDPDataset
    from birl.errors import ConfigError
    from birl.metrics import ContinuousActionDiffEvaluator, DiscreteActionMatchEvaluator

    zeros = np.zeros((4, 1), np.float32)
    with pytest.raises(ConfigError, match="ContinuousActionDiffEvaluator"):
        DiscreteActionMatchEvaluator()(None, MDPDataset(zeros, zeros, zeros, [0, 0, 0, 1]))
    with pytest.raises(ConfigError, match="DiscreteActionMatchEvaluator"):
        ContinuousActionDiffEvaluator()(None, MDPDataset(zeros, np.arange(4), zeros, [0, 0, 0, 1]))


@pytest.mark.parametrize("value", [-1, "a", 1.5, 2**70, True])
def test_seeds_out_of_range(value: Any) -> None:
    import birl

    with pytest.raises(ValueError, match="seed is"):
        birl.seed(value)


def test_explorers_refuse() -> None:
    from birl.acting.explorers import LinearDecayEpsilonGreedy, NormalNoise
    from birl.errors import ConfigError

    nan = float("nan")
    for make in (
        lambda: NormalNoise(std=nan),
        lambda: NormalNoise(std=-1),
        lambda: LinearDecayEpsilonGreedy(duration=nan),
    ):
        with pytest.raises(ConfigError, match="is "):
            make()
