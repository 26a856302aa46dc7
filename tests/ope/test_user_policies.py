"""Policies that users write themselves: objects with ``predict`` or ``action_probability``, evaluated from logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from gymnasium import spaces
from ope.test_fqe import (
    CHOICES,
    GAMMA,
    GREEDY,
    MIXED,
    QUIET,
    SMALL,
    STATES,
    dataset_of,
    exact_values,
    policy_of,
    small,
    tabular,
    values_of,
)

import birl
from birl.dataset import MDPDataset
from birl.errors import ActionError, ConfigError, DataError, NotBuiltError, ResumeError, ShapeError, UnsupportedError
from birl.models import LSTMEncoderFactory, VectorEncoderFactory
from birl.ope import FQE, DiscreteFQE, DiscreteFQEConfig, FQEConfig, evaluate
from birl.optimizers import AdamFactory, CosineAnnealingLRFactory
from birl.types import MASK

pytestmark = pytest.mark.filterwarnings("ignore:n_steps=.* copies of:birl.errors.ShortRunWarning")
X = np.eye(STATES, dtype=np.float32)


class Greedy:
    """The rule of a table, which writes to the observations that it gets."""

    def __init__(self, table: Any, start: int = 0) -> None:
        self.table, self.start, self.seen = table, start, 0

    def predict(self, x: Any) -> Any:
        self.seen += len(x)
        chosen = self.table[x.argmax(-1)].argmax(-1) + self.start
        x[:] = np.nan
        return chosen


class Chances:
    """The probabilities of a table, without ``predict``."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = self.table[x.argmax(-1)]
        return every if action is None else every[np.arange(len(x)), np.asarray(action).reshape(-1)]


class Returns:
    """A rule with a constant result."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def predict(self, x: Any) -> Any:
        return self.result(x) if callable(self.result) else self.result


def fitted(policy: Any, data: Any, n_steps: int = 400) -> Any:
    config = DiscreteFQEConfig(
        batch_size=256,
        learning_rate=5e-2,
        optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=n_steps)),
        encoder_factory=VectorEncoderFactory(hidden_units=[]),
        target_update_interval=20,
        gamma=GAMMA,
    )
    fqe = DiscreteFQE(policy, config)
    fqe.build_with_dataset(data)
    for _ in range(n_steps):
        fqe.update(fqe.sample_minibatch(data))
    return fqe


@pytest.mark.parametrize("kind", ["predict", "probabilities", "both"])
def test_exact_values_of_a_rule(kind: str) -> None:
    """The solution of the linear equations of the data; ``action_probability`` counts where a policy has both."""
    data, r, p, _ = tabular()
    policy: Any = Greedy(GREEDY) if kind == "predict" else Chances(MIXED)
    if kind == "both":
        policy.predict = Greedy(GREEDY).predict
    table = GREEDY if kind == "predict" else MIXED
    exact = exact_values(r, p, table)
    assert np.abs(exact - exact_values(r, p, MIXED if kind == "predict" else GREEDY)).max() > 0.5
    fqe = fitted(policy, data)
    assert np.abs(values_of(fqe, X) - exact).max() <= 0.25
    np.testing.assert_allclose(fqe.policy_value(X), (table * values_of(fqe, X)).sum(-1), atol=1e-5)
    assert fqe.algo is policy
    assert not np.isnan(np.concatenate([episode.observations for episode in data.episodes])).any()


def test_a_rule_and_an_algorithm_with_the_same_actions_have_the_same_estimate() -> None:
    """Bit for bit, for discrete, multi-discrete, composite and continuous actions, and with recurrent Q-functions."""
    for name, config, discrete, encoder in (
        ("DQN", DiscreteFQEConfig, True, SMALL),
        ("DQN", DiscreteFQEConfig, True, LSTMEncoderFactory(hidden_size=4)),
        ("BC", FQEConfig, False, SMALL),
    ):
        data, algo = dataset_of(discrete), policy_of(name, discrete)
        both = []
        for policy in (algo, Returns(algo.predict)):
            birl.seed(3)
            kind = DiscreteFQE if discrete else FQE
            fqe: Any = kind(policy, config(encoder_factory=encoder, batch_size=16))
            fqe.build_with_dataset(data)
            minibatches = [fqe.sample_minibatch(dataset_of(discrete)) for _ in range(3)]
            for minibatch in minibatches:
                fqe.update(minibatch)
            x = minibatches[0].observations.reshape(-1, 3)[:9]
            both.append((fqe.predict(x), fqe.predict_value(x, algo.predict(x)), fqe.policy_value(x)))
        for one, other in zip(*both, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("space", "chosen", "kind"),
    [
        ([2, 3], [1, 2], "Discrete"),
        (spaces.Tuple((spaces.Box(-2, 2, (1,)), spaces.Discrete(3))), [1.5, 2], ""),
    ],
)
def test_rules_of_several_actions(space: Any, chosen: Any, kind: str) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(60, 2)).astype(np.int64 if kind else np.float32)
    ends = np.arange(60) % 6 == 5
    data = MDPDataset(rng.normal(size=(60, 3)).astype(np.float32), actions, np.ones(60), ends, action_size=space)
    config = {"encoder_factory": SMALL, "n_action_samples": 2, "batch_size": 16}
    fqe: Any = (DiscreteFQE if kind else FQE)(
        Returns(lambda x: np.tile(chosen, (len(x), 1))), (DiscreteFQEConfig if kind else FQEConfig)(**config)
    )
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(8)
    batch = fqe.learner.batch(minibatch)
    taken = batch.extra["policy_action"][(batch.discount != 0)]
    assert taken.shape[1:] == (2, 2) and taken.shape[0] > 0
    np.testing.assert_allclose(fqe.units.environment_action(taken).numpy(), np.broadcast_to(chosen, taken.shape))
    x = minibatch.observations
    np.testing.assert_allclose(fqe.policy_value(x), fqe.predict_value(x, np.tile(chosen, (8, 1))), atol=1e-6)


def test_actions_that_are_numbered_from_one() -> None:
    state, action = np.arange(60) % STATES, 1 + np.arange(60) % CHOICES
    ends = np.arange(60) % 6 == 5
    data = MDPDataset(X[state], action, np.ones(60), ends, action_size={"size": CHOICES, "start": 1})
    fqe = DiscreteFQE(Greedy(GREEDY, start=1), DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(20)
    batch = fqe.learner.batch(minibatch)
    alive = (batch.discount != 0).numpy()
    share = batch.extra["policy_share"].numpy()
    np.testing.assert_array_equal(share[alive], GREEDY[minibatch.next_observations.argmax(-1)][alive])
    np.testing.assert_allclose(share.sum(-1), 1)  # also after the end, where no value counts
    np.testing.assert_array_equal(fqe.predict(X.copy()), GREEDY.argmax(-1) + 1)


def test_a_rule_never_sees_the_observation_after_the_end() -> None:
    """It need not know it; here it is all zeros, as the log has none."""
    seen = []

    def choose(x: Any) -> Any:
        seen.append(x)
        assert (np.abs(x).sum(-1) > 0).all()
        return np.zeros(len(x), int)

    data = MDPDataset(X[np.arange(40) % STATES], np.arange(40) % 2, np.ones(40), np.arange(40) % 4 == 3)
    fqe = DiscreteFQE(Returns(choose), DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.fit(data, n_steps=3, n_steps_per_epoch=3, **QUIET)
    only_ends = MDPDataset(X[:4], np.arange(4) % 2, np.ones(4), np.ones(4))
    count = len(seen)
    fqe.fit(only_ends, n_steps=1, n_steps_per_epoch=1, **QUIET)
    assert count and len(seen) == count


def test_masks_hold_for_rules() -> None:
    rng, n = np.random.default_rng(0), 40
    masks = np.ones((n, 3), np.int8)
    masks[:, 2] = 0
    ends = np.arange(n) % 4 == 3
    data = MDPDataset(rng.normal(size=(n, 2)), np.arange(n) % 2, np.ones(n), ends, action_size=3, action_masks=masks)
    config = DiscreteFQEConfig(encoder_factory=SMALL)
    good = DiscreteFQE(Returns(lambda x: x[MASK].argmax(-1)), config)
    good.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
    bad = DiscreteFQE(Returns(lambda x: np.full(len(x[MASK]), 2)), config)
    with pytest.raises(ActionError, match=r"predict\(x\) of Returns is 2 for row 0, whose mask \[1, 1, 0\] forbids it"):
        bad.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
    chances: Any = Chances(None)
    chances.action_probability = lambda x, action: np.tile([0.5, 0.25, 0.25], (len(x[MASK]), 1))
    with pytest.raises(ActionError, match=r"action_probability\(x\) of Chances is 0.25 for row 0 and action 2.* 0"):
        DiscreteFQE(chances, config).fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (
            lambda x: np.full(len(x), 3),
            ActionError,
            r"predict\(x\) of Returns is 3 for row 0; it must be integers from 0",
        ),
        (lambda x: np.full(len(x), np.nan), ActionError, "is nan for row 0"),
        (lambda x: np.zeros((len(x), 2)), ShapeError, r"predict\(x\) of Returns has the shape \(\d+, 2\)"),
        (1, ShapeError, r"has the shape \(\)"),
        (lambda x: ["buy"] * len(x), ShapeError, r"predict\(x\) of Returns"),
        (None, DataError, r"predict\(x\) of Returns"),
    ],
)
def test_what_a_rule_returns_is_checked(result: Any, error: Any, message: str) -> None:
    data = dataset_of(True)
    fqe = DiscreteFQE(Returns(result), DiscreteFQEConfig(encoder_factory=SMALL))
    with pytest.raises(error, match=message):
        fqe.fit(data, n_steps=1, n_steps_per_epoch=1, **QUIET)


def test_probabilities_of_a_rule_are_checked() -> None:
    data = tabular()[0]
    for table, error, message in (
        (np.full((STATES, CHOICES), 0.5), DataError, r"action_probability\(x\) of Chances sums to 1.5"),
        (np.full((STATES, 2), 0.5), ShapeError, r"action_probability\(x\) of Chances has the shape"),
    ):
        fqe = DiscreteFQE(Chances(table), DiscreteFQEConfig(encoder_factory=SMALL))
        with pytest.raises(error, match=message):
            fqe.fit(data, n_steps=1, n_steps_per_epoch=1, **QUIET)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"of an object with the method predict\(x\) or action_probability.* not int"):
        DiscreteFQE(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not the class Greedy"):
        DiscreteFQE(Greedy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"object with the method predict\(x\), not Chances"):
        FQE(Chances(MIXED))
    transformer = small("DecisionTransformer").create()
    transformer.create_impl((3,), 2)
    with pytest.raises(UnsupportedError, match="actions of StatefulTransformerWrapper depend on earlier steps"):
        FQE(transformer.as_stateful_wrapper(1.0))
    rule = DiscreteFQE(Greedy(GREEDY), DiscreteFQEConfig(encoder_factory=SMALL))
    with pytest.raises(NotBuiltError):
        rule.predict(X)
    with pytest.raises(ConfigError, match="dataset has continuous actions.* use FQE"):
        rule.fit(dataset_of(False), n_steps=1, **QUIET)
    with pytest.raises(ConfigError, match="dataset has discrete actions.* use DiscreteFQE"):
        FQE(Greedy(GREEDY), FQEConfig(encoder_factory=SMALL)).fit(dataset_of(True), n_steps=1, **QUIET)


def test_who_acts_in_an_evaluation_of_a_rule(tmp_path: Path) -> None:
    data, rule = tabular()[0], Greedy(GREEDY)
    fqe = DiscreteFQE(rule, DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.build_with_dataset(data)
    for chosen in (fqe.predict(X.copy()), fqe.sample_action(X.copy()), fqe.actor(greedy=True)(X.copy(), None, None)):
        np.testing.assert_array_equal(chosen, GREEDY.argmax(-1))
    np.testing.assert_array_equal(fqe.action_probability(X.copy()), GREEDY)
    np.testing.assert_array_equal(fqe.action_probability(X.copy(), np.zeros(STATES, int)), GREEDY[:, 0])
    with pytest.raises(UnsupportedError, match="without networks"):
        fqe.save_policy(tmp_path / "policy.onnx")
    with pytest.raises(UnsupportedError, match="without networks"):
        _ = fqe.acting
    drawn = DiscreteFQE(Chances(MIXED), DiscreteFQEConfig(encoder_factory=SMALL))
    drawn.build_with_dataset(data)
    birl.seed(0)
    many = drawn.predict(np.repeat(X, 2000, 0)).reshape(STATES, 2000)
    np.testing.assert_allclose((many[..., None] == np.arange(CHOICES)).mean(1), MIXED, atol=0.05)


def test_a_saved_evaluation_of_a_rule_and_a_resumed_one(tmp_path: Path) -> None:
    data, config = tabular()[0], DiscreteFQEConfig(encoder_factory=SMALL)
    fqe = DiscreteFQE(Greedy(GREEDY), config)
    fqe.fit(data, n_steps=4, n_steps_per_epoch=2, checkpoint=tmp_path / "run", **QUIET)
    fqe.save(tmp_path / "fqe.d3")
    loaded = birl.load_learnable(tmp_path / "fqe.d3")
    action = np.zeros(STATES, int)
    np.testing.assert_array_equal(loaded.predict_value(X, action), fqe.predict_value(X, action))
    with pytest.raises(UnsupportedError, match=r"class '.*test_user_policies.Greedy', .* set_state\(loaded.get_state"):
        loaded.predict(X)
    again = DiscreteFQE(Greedy(GREEDY), loaded.config)
    again.build_with_dataset(data)
    again.set_state(loaded.get_state())
    np.testing.assert_array_equal(again.policy_value(X.copy()), fqe.policy_value(X.copy()))
    resumed = DiscreteFQE(Greedy(GREEDY), config)
    resumed.fit(data, n_steps=6, n_steps_per_epoch=2, checkpoint=tmp_path / "run", **QUIET)
    assert resumed.grad_step == 6
    other = DiscreteFQE(Chances(MIXED), config)
    with pytest.raises(ResumeError, match="evaluating another policy"):
        other.fit(data, n_steps=8, n_steps_per_epoch=2, checkpoint=tmp_path / "run", **QUIET)


def test_evaluate_takes_a_rule_with_predict_alone() -> None:
    """It is the policy with the probability 1 of its actions."""
    rng, n = np.random.default_rng(0), 2000
    state, action = rng.integers(STATES, size=n), rng.integers(CHOICES, size=n)
    ends = np.arange(n) % 2 == 1
    reward = rng.random(n) + GREEDY[state, action]
    data = MDPDataset(
        X[state], action, reward, ends, action_size=CHOICES, extra={"log_propensity": np.full(n, -np.log(CHOICES))}
    )
    rule, table = evaluate(Greedy(GREEDY), data), evaluate(Chances(GREEDY), data)
    assert rule.rows.keys() == table.rows.keys() and rule.decides == table.decides == "doubly_robust"
    for name, row in rule.rows.items():
        assert row.value == table.rows[name].value
    against = evaluate(Chances(GREEDY), data, against=Greedy(GREEDY))
    assert against.gain is not None and against.gain.gain.value == 0
    with pytest.raises(ActionError, match=r"predict\(x\) of Returns is 7 at step 0; it must be an integer from 0 to 2"):
        evaluate(Returns(lambda x: np.full(len(x), 7)), data)
    with pytest.raises(ShapeError, match=r"predict\(x\) of Returns has the shape"):
        evaluate(Returns(lambda x: np.zeros((len(x), 2))), data)
    with pytest.raises(ConfigError, match=r"action_probability.*one discrete action the method predict\(x\)"):
        evaluate(Returns(lambda x: x[:, :2]), dataset_of(False))


def test_actions_that_are_numbered_from_one_are_evaluated() -> None:
    """The estimates are those of the same data with actions from 0; the policy's probabilities are in order."""
    rng, n = np.random.default_rng(0), 300
    state, action = rng.integers(STATES, size=n), rng.integers(CHOICES, size=n)
    ends, extra = np.arange(n) % 2 == 1, {"log_propensity": np.full(n, -np.log(CHOICES))}
    reward = rng.random(n) + GREEDY[state, action]
    values = []
    for start in (0, 1):
        size: Any = {"size": CHOICES, "start": start} if start else CHOICES
        data = MDPDataset(X[state], action + start, reward, ends, action_size=size, extra=extra)
        for policy in (Chances(MIXED), Greedy(GREEDY, start)):
            for behaviour in ("logged", "estimated", Chances(np.full((STATES, CHOICES), 1 / CHOICES))):
                found = evaluate(policy, data, behaviour=behaviour)
                values.append([(name, row.value) for name, row in found.rows.items()])
    assert values[:6] == values[6:]
    assert len(values[0]) > 6


class TableOfChances(Chances):
    """The probabilities as a table whose columns are labelled with the actions, the last action first."""

    def __init__(self, table: Any, start: int) -> None:
        super().__init__(table)
        self.start = start

    def action_probability(self, x: Any, action: Any = None) -> Any:
        every = super().action_probability(x, None)
        if action is not None:
            return every[np.arange(len(x)), np.asarray(action).reshape(-1) - self.start]
        return pyarrow.table({str(k + self.start): every[:, k] for k in reversed(range(CHOICES))})


@pytest.mark.parametrize("start", [0, 1])
def test_probabilities_in_a_table_are_read_by_its_labels(start: int) -> None:
    rng, n = np.random.default_rng(0), 300
    state, action = rng.integers(STATES, size=n), rng.integers(CHOICES, size=n)
    extra = {"log_propensity": np.full(n, -np.log(CHOICES))}
    data = MDPDataset(
        *(X[state], action + start, rng.random(n) + GREEDY[state, action], np.arange(n) % 2 == 1),
        action_size=spaces.Discrete(CHOICES, start=start),
        extra=extra,
    )
    plain = Chances(MIXED)
    table = TableOfChances(MIXED, start)
    for behaviour in ("logged", Chances(np.full((STATES, CHOICES), 1 / CHOICES))):
        one, two = (evaluate(policy, data, behaviour=behaviour) for policy in (plain, table))
        assert {name: row.value for name, row in one.rows.items()} == {
            name: row.value for name, row in two.rows.items()
        }
    fqe = DiscreteFQE(table, DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.build_with_dataset(data)
    batch = data.sample_transition_batch(20)
    share = fqe.learner.batch(batch).extra["policy_share"].numpy()
    alive = batch.terminals[:, 0] == 0
    np.testing.assert_allclose(share[alive], MIXED[batch.next_observations.argmax(-1)][alive], rtol=1e-6)
