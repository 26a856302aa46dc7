"""Decision transformers, whose actions depend on earlier steps and a target return, evaluated on logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import birl
from birl import algos, ope
from birl.algos import (
    GreedyTransformerActionSampler,
    IdentityTransformerActionSampler,
    SoftmaxTransformerActionSampler,
)
from birl.cli import main
from birl.dataset import Episode, create_infinite_replay_buffer
from birl.errors import ConfigError, NonFiniteError, ShapeError, UnsupportedError
from birl.models import VectorEncoderFactory
from birl.preprocessing import MultiplyRewardScaler, StandardObservationScaler

QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
SIZE, TARGET = 3, 2.0


def logs(start: int = 0, n: int = 30) -> Any:
    """Episodes of 2 to 8 steps, whose actions had the probabilities 0.5, 0.3 and 0.2."""
    rng = np.random.default_rng(0)
    chance, episodes = np.array([0.5, 0.3, 0.2], np.float32), []
    for _ in range(n):
        steps = int(rng.integers(2, 9))
        action = rng.choice(SIZE, size=(steps, 1), p=chance / chance.sum())
        episodes.append(
            Episode(
                rng.normal(size=(steps, 2)).astype(np.float32),
                action + start,
                (action == 1) + rng.normal(size=(steps, 1)).astype(np.float32),
                True,
                extra={
                    "propensities": np.tile(chance, (steps, 1)),
                    "log_propensity": np.log(chance[action]).astype(np.float32),
                },
            )
        )
    return create_infinite_replay_buffer(episodes, action_size=gymnasium.spaces.Discrete(SIZE, start=start))


def trained(dataset: Any, **fields: Any) -> Any:
    birl.seed(0)
    options: dict[str, Any] = {"batch_size": 8, "context_size": 4, "max_timestep": 6, "num_layers": 1, "num_heads": 1}
    options |= {"encoder_factory": VectorEncoderFactory([8]), "learning_rate": 1e-2, "warmup_tokens": 0}
    algorithm = algos.DiscreteDecisionTransformerConfig(**options | fields).create()
    algorithm.fit(dataset, n_steps=40, n_steps_per_epoch=40, **QUIET)
    return algorithm


class Replaying:
    """An action sampler that takes the logged action and keeps the output."""

    def __init__(self) -> None:
        self.outputs: list[np.ndarray] = []
        self.next = 0

    def __call__(self, transformer_output: Any) -> int:
        self.outputs.append(np.array(transformer_output, np.float64))
        return self.next


def step_by_step(algorithm: Any, dataset: Any, start: int, temperature: float) -> list[list[np.ndarray]]:
    """Probabilities of all actions at each step of each episode, by the wrapper that acts in environments."""
    sampler, found = Replaying(), []
    wrapper = algorithm.as_stateful_wrapper(TARGET, sampler)
    for episode in dataset.episodes:
        wrapper.reset()
        sampler.outputs, reward = [], 0.0
        for t in range(len(episode)):
            sampler.next = int(episode.actions[t, 0]) - start
            assert wrapper.predict(episode.observations[t], reward) == episode.actions[t, 0]
            reward = float(episode.rewards[t, 0])
        scores = [np.exp(each / temperature) for each in sampler.outputs]
        found.append([each / each.sum() for each in scores])
    return found


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_importance_weights_are_those_of_acting_step_by_step(start: int, temperature: float) -> None:
    dataset = logs(start)
    algorithm = trained(
        dataset, reward_scaler=MultiplyRewardScaler(0.5), observation_scaler=StandardObservationScaler()
    )
    policy = algorithm.as_stateful_wrapper(TARGET, SoftmaxTransformerActionSampler(temperature))
    evaluation = ope.evaluate(policy, dataset, gamma=0.9)

    total, squared, weights = 0.0, 0.0, []
    for episode, chances in zip(dataset.episodes, step_by_step(algorithm, dataset, start, temperature), strict=True):
        ratio, value = 1.0, 0.0
        for t, chance in enumerate(chances):
            taken = int(episode.actions[t, 0]) - start
            ratio *= chance[taken] / (0.5, 0.3, 0.2)[taken]
            value += 0.9**t * ratio * float(episode.rewards[t, 0])
            weights.append(chance)
        total, squared = total + value, squared + ratio
    assert np.std(weights, 0).max() > 0.02  # they depend on the step
    row = evaluation.rows["per_decision"]
    assert row.value == pytest.approx(total / len(dataset.episodes), rel=1e-4)
    assert {"per_decision", "weighted_per_decision", "doubly_robust"} <= set(evaluation.rows)
    assert not {"direct_method", "double_reinforcement_learning"} & set(evaluation.rows)  # for policies without history


def test_a_horizon_and_some_episodes_do_not_change_probabilities() -> None:
    dataset = logs()
    policy = trained(dataset).as_stateful_wrapper(TARGET)
    every = ope.episode_arrays.read_episodes(dataset, 0.9, None)
    short = ope.episode_arrays.read_episodes(dataset, 0.9, 2)
    wanted = every.probabilities(policy)
    step = np.concatenate([np.arange(length) for length in every.mask.sum(1)])
    np.testing.assert_allclose(short.probabilities(policy), wanted[step < 2], atol=1e-6)
    some = every.subset(np.array([1, 4, 20]))
    rows = np.isin(np.repeat(np.arange(30), every.mask.sum(1)), [1, 4, 20])
    np.testing.assert_allclose(some.probabilities(policy), wanted[rows], atol=1e-6)


def test_greedy_policies_have_probabilities_0_and_1() -> None:
    dataset = logs()
    algorithm = trained(dataset)
    arrays = ope.episode_arrays.read_episodes(dataset, 0.9, None)
    found = arrays.probabilities(algorithm.as_stateful_wrapper(TARGET, GreedyTransformerActionSampler()))
    sampled = np.concatenate(step_by_step(algorithm, dataset, 0, 1.0))
    np.testing.assert_array_equal(found, sampled.argmax(-1)[:, None] == np.arange(SIZE))


def test_a_decision_transformer_may_have_logged() -> None:
    """Its propensities are its own probabilities, so it earns what the logs earned."""
    dataset = logs()
    policy = trained(dataset).as_stateful_wrapper(TARGET)
    evaluation = ope.evaluate(policy, dataset, gamma=0.9, behaviour=policy)
    assert evaluation.rows["per_decision"].value == pytest.approx(evaluation.logs.value)
    assert evaluation.differs == 0


def test_rankings_and_screens_take_them() -> None:
    dataset = logs()
    algorithm = trained(dataset)
    policies = {f"to {target}": algorithm.as_stateful_wrapper(target) for target in (0.0, 4.0)}
    assert set(ope.rank(policies, dataset, keep=1).evaluations) < set(policies)


class Alternating:
    """A policy of one's own that repeats its last logged action with a probability of 0.8."""

    def history_log_probability(self, observations: Any, actions: Any, rewards: Any, is_first: Any) -> Any:
        last = np.roll(actions, 1)
        chance = np.where(last[:, None] == np.arange(SIZE), 0.8, 0.1)
        chance[is_first] = 1 / SIZE
        observations[:], actions[:], rewards[:] = np.nan, 0, np.nan  # copies
        return np.log(chance)


def test_ones_own_policy_may_depend_on_earlier_steps() -> None:
    dataset, values = logs(), []
    for episode in dataset.episodes:
        taken, ratio, value = episode.actions[:, 0], 1.0, 0.0
        for t, action in enumerate(taken):
            chance = 1 / 3 if t == 0 else 0.8 if action == taken[t - 1] else 0.1
            ratio *= chance / (0.5, 0.3, 0.2)[action]
            value += 0.9**t * ratio * float(episode.rewards[t, 0])
        values.append(value)
    found = ope.evaluate(Alternating(), dataset, gamma=0.9).rows["per_decision"].value
    assert found == pytest.approx(np.mean(values), rel=1e-5)


# -- refusals ------------------------------------------------------------------------------------------------------


def test_what_needs_values_of_single_observations_refuses_them() -> None:
    dataset = logs()
    algorithm = trained(dataset)
    policy = algorithm.as_stateful_wrapper(TARGET)
    for make in (
        lambda: ope.DiscreteFQE(policy, ope.FQEConfig()),
        lambda: ope.DiscreteFQE(Alternating(), ope.FQEConfig()),
        lambda: ope.bootstrap_linear_fqe(policy, dataset),
    ):
        with pytest.raises(UnsupportedError, match=r"depend on earlier steps.*use birl.ope.evaluate"):
            make()
    with pytest.raises(ConfigError, match=r"birl.ope.evaluate with algo.as_stateful_wrapper\(target_return\)"):
        ope.DiscreteFQE(algorithm, ope.FQEConfig())
    with pytest.raises(ConfigError, match=r"takes algo.as_stateful_wrapper\(target_return\)"):
        ope.EpsilonGreedy(algorithm, 0.1)
    with pytest.raises(UnsupportedError, match=r"give algo.as_stateful_wrapper\(target_return\)"):
        ope.evaluate(algorithm, dataset)


def test_unknown_probabilities_are_refused() -> None:
    dataset = logs()
    algorithm = trained(dataset)
    with pytest.raises(UnsupportedError, match="action sampler .* is Replaying, whose probabilities are unknown"):
        ope.evaluate(algorithm.as_stateful_wrapper(TARGET, Replaying()), dataset)
    with pytest.raises(UnsupportedError, match="is IdentityTransformerActionSampler, whose"):
        ope.evaluate(algorithm.as_stateful_wrapper(TARGET, IdentityTransformerActionSampler()), dataset)

    class Short(Alternating):
        def history_log_probability(self, *logged: Any) -> Any:
            return super().history_log_probability(*logged)[1:]

    with pytest.raises(ShapeError, match="history_log_probability.* has the shape"):
        ope.evaluate(Short(), dataset)
    rows = {"observations": np.zeros((2, 2), np.float32), "actions": np.zeros(2, int), "is_first": np.array([1, 0])}
    with pytest.raises(NonFiniteError, match="the reward of step 1 is nan"):
        algorithm.as_stateful_wrapper(TARGET).history_log_probability(rewards=np.array([0, np.nan]), **rows)


def test_continuous_decision_transformers_have_no_density() -> None:
    episodes = [
        Episode(
            np.zeros((3, 2), np.float32),
            np.zeros((3, 1), np.float32),
            np.zeros((3, 1), np.float32),
            True,
            extra={"log_propensity": np.zeros((3, 1), np.float32)},
        )
        for _ in range(3)
    ]
    dataset = create_infinite_replay_buffer(episodes)
    algorithm = algos.DecisionTransformerConfig(batch_size=2, encoder_factory=VectorEncoderFactory([4])).create()
    algorithm.build_with_dataset(dataset)
    with pytest.raises(UnsupportedError, match="depend on earlier steps.* no densities: evaluate it in an env"):
        ope.evaluate(algorithm.as_stateful_wrapper(1.0), dataset)
    with pytest.raises(UnsupportedError, match="continuous actions of DecisionTransformer .* no density"):
        algorithm.as_stateful_wrapper(1.0).history_log_probability(*(np.zeros((3, size)) for size in (2, 1, 1, 1)))


def test_the_command_line_evaluates_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = logs()
    with (tmp_path / "logs.h5").open("w+b") as file:
        dataset.dump(file)
    algorithm = trained(dataset)
    algorithm.save(tmp_path / "dt.d3")
    words = ["ope", "rank", str(tmp_path / "dt.d3"), "--dataset", str(tmp_path / "logs.h5"), "--json"]
    assert main([*words, "--target-return", "2", "--temperature", "0.5"]) in (0, None)
    assert "per_decision" in capsys.readouterr().out
    assert main(words) == 1
    assert "DiscreteDecisionTransformer needs --target-return" in capsys.readouterr().err
    assert main([*words, "--target-return", "2", "--epsilon", "0.5"]) == 1
    assert "which --epsilon does not change" in capsys.readouterr().err
    greedy = algos.DiscreteBCConfig(batch_size=4, encoder_factory=VectorEncoderFactory([4])).create()
    greedy.build_with_dataset(dataset)
    greedy.save(tmp_path / "bc.d3")
    words[2] = str(tmp_path / "bc.d3")
    assert main([*words, "--target-return", "2"]) == 1
    assert "--target-return is for sequence models" in capsys.readouterr().err
