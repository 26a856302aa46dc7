"""Intervals of fitted Q evaluation: draws of whole episodes, members with weights and targets of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ope.test_decisions import LOGGER, POLICY, WORLD, FixedPolicy, logs

import birl
from birl import algos
from birl.dataset import ReplayBuffer
from birl.errors import ConfigError, EmptyDataError, ShapeError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, QRQFunctionFactory, VectorEncoderFactory
from birl.ope import (
    FQE,
    BootstrapEstimate,
    DiscreteFQE,
    DiscreteFQEConfig,
    FQEConfig,
    Softmax,
    allowed,
    bootstrap_counts,
    bootstrap_fqe,
    bootstrap_linear_fqe,
    bootstrap_returns,
    check_limits,
)
from birl.ope.bootstrap import bootstrap_mean
from birl.ope.linear_models import StepFeatures, weighted_fitted_q
from birl.testing import build_algorithm, random_dataset
from tests.ope import planted

pytestmark = pytest.mark.filterwarnings("ignore:n_steps=.* copies of:birl.errors.ShortRunWarning")
SMALL = VectorEncoderFactory([6])
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}


def test_draws_are_of_whole_groups() -> None:
    user = np.repeat([3, 1, 2, 9], [2, 1, 3, 4])
    times = bootstrap_counts(user, 500, seed=1)
    assert times.shape == (500, 10) and np.array_equal(times, bootstrap_counts(user, 500, seed=1))
    each = np.stack([times[:, user == name] for name in (3,)])[0]
    assert np.array_equal(each[:, 0], each[:, 1])
    first = times[:, [0, 2, 3, 6]]
    assert (first.sum(1) == 4).all()  # as many users as there are
    np.testing.assert_allclose(first.mean(0), 1, atol=0.15)
    np.testing.assert_allclose(first.var(0), 0.75, atol=0.15)
    with pytest.raises(EmptyDataError, match="there are 1 groups of episodes"):
        bootstrap_counts(np.zeros(5), 20)


def test_bootstrap_of_a_mean_spread_as_the_mean_does() -> None:
    values = np.random.default_rng(0).normal(size=200)
    found = bootstrap_mean(values, bootstrap_counts(np.arange(200), 2000))
    assert found.value == values.mean()
    np.testing.assert_allclose(found.replicates.std(), values.std() / np.sqrt(200), rtol=0.05)
    nothing = found - found
    assert nothing.value == 0 and not nothing.replicates.any()
    with pytest.raises(ShapeError, match="both must be estimates from the same samples"):
        found - BootstrapEstimate(found.value, found.replicates[:20])


def plain_q(episodes: list[Any], policy: Any, horizon: int, gamma: float) -> Any:
    """The Bellman equations of a finite model, counted by hand: ``V(s)`` with all steps to go, of states ``[5]``."""
    value = np.zeros(5)
    for k in range(1, horizon + 1):
        q = np.zeros((5, 3))
        for a in range(3):
            goals: list[list[float]] = [[] for _ in range(5)]
            for states, actions, rewards in episodes:
                for t in np.flatnonzero(actions == a):
                    if k == 1 or t < horizon - 1:
                        ends = t == len(states) - 1
                        goals[states[t]].append(rewards[t] + (0 if ends else gamma * value[states[t + 1]]))
            ridge = 1e-4 * (sum(map(len, goals)) + 1)
            q[:, a] = [sum(each) / (len(each) + ridge) for each in goals]
        value = (policy * q).sum(-1)
    return value


def steps_of(of: planted.Logs, row: int) -> tuple[StepFeatures, Any, Any]:
    mask = of.mask[row]
    state, length = of.state[row][mask], mask.sum(1)
    last = np.zeros(len(state), bool)
    last[np.cumsum(length) - 1] = True
    step = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask]
    return (
        StepFeatures(np.eye(5)[state], of.action[row][mask], of.reward[row][mask], step, last, WORLD.gamma),
        state,
        length,
    )


def refits_of(of: planted.Logs, row: int, policy: Any, count: int) -> tuple[BootstrapEstimate, BootstrapEstimate]:
    """Of the policy and of what the logs earned."""
    steps, state, length = steps_of(of, row)
    times = bootstrap_counts(np.arange(len(length)), count, seed=row)
    weight = np.repeat(np.concatenate([np.ones((1, len(length))), times]), length, axis=1)
    first = np.cumsum(length) - length
    values = (policy[state[first]] * weighted_fitted_q(steps, policy[state], weight)[:, first]).sum(-1)
    returns = (WORLD.gamma ** np.arange(WORLD.horizon) * of.reward[row]).sum(-1)
    return bootstrap_mean(values, times), bootstrap_mean(returns, times)


def test_a_refit_is_the_model_of_the_drawn_episodes() -> None:
    """Against counts by hand, with each drawn episode there as often as it was drawn, and the ridge."""
    of = planted.log(WORLD, LOGGER, 1, 400, 3)
    found, earned = refits_of(of, 0, POLICY, 20)
    times = bootstrap_counts(np.arange(400), 20, seed=0).astype(int)
    plain = [tuple(column[0, i][of.mask[0, i]] for column in (of.state, of.action, of.reward)) for i in range(400)]
    for member in (0, 7):
        drawn = [plain[i] for i in range(400) for _ in range(times[member, i])]
        value = plain_q(drawn, POLICY, WORLD.horizon, WORLD.gamma)
        by_hand = np.mean([value[states[0]] for states, _, _ in drawn])
        assert found.replicates[member] == pytest.approx(by_hand, rel=1e-9)
        returns = [sum(WORLD.gamma**t * r for t, r in enumerate(rewards)) for _, _, rewards in drawn]
        assert earned.replicates[member] == pytest.approx(np.mean(returns), rel=1e-12)


def coverage(repetitions: int, n: int, seed: int = 7) -> tuple[Any, Any, Any]:
    of = planted.log(WORLD, LOGGER, repetitions, n, seed)
    truth = WORLD.truth(POLICY)
    hits, gains, halves = [], [], []
    for row in range(repetitions):
        value, earned = refits_of(of, row, POLICY, 40)
        interval = value.interval()
        hits.append(interval.holds(truth))
        halves.append(abs(value.value - truth) < (interval.upper - interval.lower) / 4)
        gains.append((value - earned).interval().holds(truth - WORLD.truth(LOGGER)))
    return np.array(hits), np.array(gains), np.array(halves)


def test_bootstrap_cover() -> None:
    hits, gains, halves = coverage(150, 100)
    assert planted.covers(hits) and planted.covers(gains), (hits.mean(), gains.mean())
    assert not planted.covers(halves)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 200])
def test_bootstrap_cover_in_many_repetitions(n: int) -> None:
    hits, gains, halves = coverage(2000, n)
    assert planted.covers(hits) and planted.covers(gains), (hits.mean(), gains.mean())
    assert not planted.covers(halves)


def test_bootstrap_of_a_dataset() -> None:
    data = logs(150)
    found = bootstrap_linear_fqe(FixedPolicy(POLICY), data, gamma=0.95, count=40)
    earned = bootstrap_returns(data, gamma=0.95, count=40)
    assert found.interval().holds(WORLD.truth(POLICY)) and earned.interval().holds(WORLD.truth(LOGGER))
    gain = found - earned
    assert gain.interval().holds(WORLD.truth(POLICY) - WORLD.truth(LOGGER))
    assert gain.replicates.std() < np.hypot(found.replicates.std(), earned.replicates.std())
    same = found - bootstrap_linear_fqe(FixedPolicy(POLICY), data, gamma=0.95, count=40)
    assert same.value == 0 and not same.replicates.any()
    assert (found.groups, gain.groups) == (150, 150)
    (doubt,) = check_limits(gain.facts())
    assert not doubt.refused and doubt.family == "model"
    assert "the bootstrap resampled 150 episodes or clusters; at least 400 is safe" in doubt.message
    assert BootstrapEstimate(found.value, found.replicates).facts() == {"bootstrap_groups": None}
    users = bootstrap_linear_fqe(
        FixedPolicy(POLICY), logs(150, extra={"cluster": np.arange(150) // 50}), gamma=0.95, count=40
    )
    assert len(np.unique(users.replicates.round(9))) <= 10  # of three users there are ten draws
    assert users.groups == 3 and "direct_method" not in allowed(check_limits(users.facts()))
    with pytest.raises(ConfigError, match="count"):
        bootstrap_linear_fqe(FixedPolicy(POLICY), data, count=5)
    with pytest.raises(UnsupportedError, match="these data have no linear model"):
        continuous = random_dataset((3,), action_size=2, discrete_action=False, action_scale=1.0, seed=0)
        bootstrap_linear_fqe(FixedPolicy(POLICY), continuous)


# -- networks ----------------------------------------------------------------------------------------------------------


def softmax() -> Softmax:
    return Softmax(build_algorithm(algos.DQNConfig(encoder_factory=VectorEncoderFactory([16])), (5,), 3, seed=3), 0.15)


def evaluation(policy: Any, **fields: Any) -> DiscreteFQE:
    given = {"resample_episodes": True, "n_critics": 20, "encoder_factory": SMALL, "batch_size": 16, **fields}
    return DiscreteFQE(policy, DiscreteFQEConfig(**given))


def test_a_member_learns_from_its_own_episodes_towards_its_own_target() -> None:
    data, policy = logs(30), softmax()
    fqe = evaluation(policy, n_critics=3)
    fqe.build_with_dataset(data)
    fqe.fit(data, n_steps=3, n_steps_per_epoch=3, **QUIET)  # its targets are its critics no more
    learner = fqe.learner
    drawn = fqe.sample_minibatch(data)
    batch = learner.batch(drawn)
    times = bootstrap_counts(np.arange(30), 3)
    owner = {float(r): i for i, episode in enumerate(data.episodes) for r in episode.rewards[:, 0]}
    wanted = np.stack([times[:, owner[float(r)]] for r in drawn.rewards[:, 0]])
    assert np.array_equal(batch.extra["times"].numpy(), wanted)
    step = fqe.steps[0]
    loss = step.loss(learner.nets, batch, fqe.config).value  # type: ignore[attr-defined]
    with torch.no_grad():
        q = learner.nets.critic(batch.inputs, batch.action).mean()
        after = learner.nets.critic_target(batch.next_inputs).mean()
    share = policy.action_probability(drawn.next_observations)
    total = 0.0
    for member in range(3):
        for row in range(16):
            expected = (share[row] * after[member, row].numpy()).sum()
            target = drawn.rewards[row, 0] + 0.99 * (1 - drawn.terminals[row, 0]) * expected
            total += wanted[row, member] * (float(q[member, row]) - target) ** 2 / 16
    assert float(loss.detach()) == pytest.approx(total, rel=1e-4)


def test_members_make_an_interval() -> None:
    data = logs(40)
    fqe = evaluation(softmax())
    fqe.fit(data, n_steps=5, n_steps_per_epoch=5, **QUIET)
    found = bootstrap_fqe(fqe, data)
    values = fqe.member_values(np.stack([episode.observations[0] for episode in data.episodes]))
    assert found.value == pytest.approx(values.mean(), abs=1e-6)
    times = bootstrap_counts(np.arange(40), 20)
    for member in (0, 11):
        drawn = np.repeat(values[member], times[member].astype(int))
        assert found.replicates[member] == pytest.approx(drawn.mean(), abs=1e-6)
    assert found.interval().lower < found.value < found.interval().upper
    gain = found - bootstrap_returns(data, count=20)
    assert gain.replicates.shape == (20,)
    value = birl.metrics.InitialStateValueEstimationEvaluator()(fqe, data)
    assert value == pytest.approx(found.value, abs=1e-6)
    with pytest.raises(ConfigError, match="resample_episodes=True and n_critics of 20"):
        bootstrap_fqe(evaluation(softmax(), resample_episodes=False), data)


def test_recurrent_members_and_quantities() -> None:
    data = random_dataset((3,), action_size=2, discrete_action=False, action_scale=1.0, seed=0)
    sac = build_algorithm(algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL), (3,), 2)
    for encoder in (SMALL, GRUEncoderFactory(hidden_size=4, hidden_units=[4])):
        fields: dict[str, Any] = {"sequence_length": 3, "burn_in": 1} if encoder is not SMALL else {}
        config = FQEConfig(
            resample_episodes=True, n_critics=20, encoder_factory=encoder, batch_size=8, n_action_samples=3, **fields
        )
        fqe = FQE(sac, config)
        fqe.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
        assert np.isfinite(bootstrap_fqe(fqe, data).replicates).all()


def test_what_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(ConfigError, match="with resample_episodes it must be MeanQFunctionFactory"):
        DiscreteFQEConfig(resample_episodes=True, q_func_factory=QRQFunctionFactory())
    data: ReplayBuffer = logs(20)
    fqe = evaluation(softmax())
    fqe.build_with_dataset(data)
    fqe.update(fqe.sample_minibatch(data))
    data.append_episode(data.episodes[0])
    with pytest.raises(UnsupportedError, match="one constant dataset"):
        fqe.sample_minibatch(data)
    fqe.fit(data, n_steps=1, n_steps_per_epoch=1, **QUIET)  # another run may be of other data


@pytest.mark.slow
def test_members_of_a_network_cover() -> None:
    """40 data sets; chance of networks and minibatches makes the intervals rather wide than narrow."""
    world = planted.World(
        *(getattr(planted.world(0, 40, ends=0.35), name) for name in ("start", "move", "reward")), 0.5, 40, 0.95
    )
    policy = softmax()
    truth = world.truth(policy.action_probability(np.eye(5, dtype=np.float32)))
    hits = []
    for seed in range(40):
        birl.seed(seed)
        data = logs(150, seed, "nothing", world=world)
        fqe = evaluation(
            policy,
            n_critics=24,
            gamma=0.95,
            encoder_factory=VectorEncoderFactory([32]),
            batch_size=128,
            learning_rate=3e-3,
        )
        fqe.fit(data, n_steps=1000, n_steps_per_epoch=1000, **QUIET)
        hits.append(bool(bootstrap_fqe(fqe, data).interval().holds(truth)))
    print(np.mean(hits))
    assert planted.covers(np.array(hits))


def test_former_names_have_a_hint() -> None:
    for old, new in {"Refits": "BootstrapEstimate", "judge": "check_limits", "DrawnPolicy": "StochasticPolicy"}.items():
        with pytest.raises(ImportError, match=f"it is birl.ope.{new} now"):
            getattr(birl.ope, old)
    assert all(hasattr(birl.ope, new.rpartition(".")[2]) for new in birl.ope._RENAMED.values())
