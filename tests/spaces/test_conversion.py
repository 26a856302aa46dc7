"""What values each way into birl takes: a table of inputs and doors. Values arrive right, or are refused by name."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import gymnasium
import numpy as np
import pyarrow
import pytest
import torch
from gymnasium import spaces

import birl
from birl.dataset import BasicWriterPreprocess, Episode, MDPDataset, Signature, create_fifo_replay_buffer
from birl.errors import ActionError, BirlError, DataError, NonFiniteError, ShapeError
from birl.ope.evaluated_policies import log_probability_of
from birl.spaces.conversion import to_array

VALUES = np.array([[0.5, 2.0], [1.0, 3.0], [1.5, 0.25], [4.0, 2.5]])
N, A = VALUES.shape


class Frame:
    """The part of a pandas table that is read."""

    def __init__(self, columns):
        self.data = dict(columns)
        self.columns = list(self.data)
        self.iloc = _Columns(list(self.data.values()))


class _Columns:
    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, at):
        return self.columns[at[1]]


def masked(mask=False):
    return np.ma.masked_array(VALUES, mask=np.full(VALUES.shape, False) if mask is False else mask)


def one_masked():
    return masked(np.arange(VALUES.size).reshape(VALUES.shape) == 5)


def arrow(values=None, convert=lambda column: column):
    columns = VALUES.T.tolist() if values is None else values
    return pyarrow.table({f"x{i}": convert(pyarrow.array(column)) for i, column in enumerate(columns)})


def with_none(fill=None):
    values = VALUES.astype(object)
    values[2, 1] = fill
    return values


ARRIVES = {
    "float32": lambda: VALUES.astype(np.float32),
    "float64": VALUES.copy,
    "float16": lambda: VALUES.astype(np.float16),
    "long double": lambda: VALUES.astype(np.longdouble),
    "big-endian float64": lambda: VALUES.astype(">f8"),
    "big-endian float32": lambda: VALUES.astype(">f4"),
    "not contiguous": lambda: np.asfortranarray(np.repeat(VALUES, 2, 0))[::2],
    "read-only": lambda: np.broadcast_to(VALUES, VALUES.shape),
    "lists": VALUES.tolist,
    "masked, with nothing masked": masked,
    "tensor": lambda: torch.tensor(VALUES),
    "tensor with a gradient": lambda: torch.tensor(VALUES, requires_grad=True),
    "bfloat16 tensor": lambda: torch.tensor(VALUES, dtype=torch.bfloat16),
    "rows that are tensors": lambda: list(torch.tensor(VALUES, requires_grad=True)),
    "objects": lambda: VALUES.astype(object),
    "decimals": lambda: np.array([[Decimal(x) for x in row] for row in VALUES.tolist()]),
    "Arrow table": arrow,
    "Arrow dictionaries": lambda: arrow(convert=lambda column: column.dictionary_encode()),
    "table of pandas": lambda: Frame(zip("ab", VALUES.T, strict=True)),
    "table of objects": lambda: Frame(zip("ab", VALUES.T.astype(object), strict=True)),
}

REFUSED = {
    "masked": (one_masked, r"\[2, 1\] is masked"),
    "rows that are masked": (lambda: list(one_masked()), r"\[2\]\[1\] is masked"),
    "None": (with_none, r"\[2, 1\] is missing"),
    "text": (lambda: VALUES.astype(str), "text"),
    "text among numbers": (lambda: with_none("a"), r"\[2, 1\] is 'a'"),
    "complex": (lambda: VALUES.astype(complex), "complex128.*real and imaginary"),
    "dates": (lambda: VALUES.astype("datetime64[s]"), "datetime64.*seconds"),
    "durations": (lambda: VALUES.astype("timedelta64[s]"), "timedelta64.*seconds"),
    "structured": (lambda: np.zeros((N, A), [("x", "f4"), ("y", "f4")]), "structured, with the fields x, y"),
    "masked and structured": (lambda: np.ma.zeros((N, A), [("x", "f4")]), "structured, with the fields x"),
    "integers of 128 bits": (lambda: with_none(2**70), r"\[2, 1\] is 1180591620717411303424"),
    "sparse tensor": (lambda: torch.tensor(VALUES).to_sparse(), "to_dense"),
    "Arrow nulls": (lambda: arrow([[0.5, None, 1.0, 2.0], [1.0] * 4]), r"\['x0'\]\[1\] is missing"),
    "Arrow text": (lambda: arrow([["a", "b", "c", "d"]] * 2), r"\['x0'\] is object, text"),
    "table with a gap": (lambda: Frame({"a": VALUES[:, 0], "b": with_none()[:, 1]}), r"\['b'\]\[2\] is missing"),
    "ragged": (lambda: [[1.0], [1.0, 2.0], [1.0], [1.0]], "inhomogeneous|one array"),
    "generator": (lambda: iter(VALUES), "iterator.*list"),
    "set": (lambda: {1.0, 2.0}, "set"),
}


class Returns(gymnasium.Env):
    """An environment that returns a given observation."""

    observation_space, action_space = spaces.Box(-9, 9, (N, A), np.float64), spaces.Discrete(2)

    def __init__(self, observation=VALUES):
        self.observation = observation

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        return self.observation, 0.0, False, False, {}


class Vectors(gymnasium.Env):
    """An environment with observations of A numbers; its action is what the policy gave."""

    observation_space, action_space = spaces.Box(-9, 9, (A,), np.float64), spaces.Box(-9, 9, (A,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(A), {}

    def step(self, action):
        self.action = action
        return np.zeros(A), 0.0, True, False, {}


def dataset(**changes):
    columns = {"observations": VALUES, "actions": VALUES, "rewards": np.zeros(N), "terminals": np.arange(N) == N - 1}
    return MDPDataset(**{**columns, "timeouts": np.zeros(N), **changes})


def finals(value):
    episodes = dataset(next_observations=value, terminals=np.zeros(N), timeouts=np.ones(N)).episodes
    return np.stack([episode.final_observation for episode in episodes])


def buffer(observation, lanes=1, **options):
    info = [Signature([np.float64], [shape]) for shape in (observation, (A,))]
    return create_fifo_replay_buffer(
        300, observation_signature=info[0], action_signature=info[1], lanes=lanes, **options
    )


@pytest.fixture(scope="module")
def algorithm():
    algorithm = birl.algos.TD3Config(action_scaler=birl.preprocessing.MinMaxActionScaler()).create()
    algorithm.build_with_dataset(dataset())
    return algorithm


def appended(value, **options):
    store = buffer((N, A), **options)
    store.append(value, np.zeros(A), 0.0)
    store.clip_episode(True)
    return store.episodes[0].observations[0]


def appended_action(value):
    store = buffer((A,), N)
    store.append_batch(np.zeros((N, A)), value, np.zeros(N), np.ones(N), np.zeros(N), np.zeros((N, A)))
    return np.concatenate([episode.actions for episode in store.episodes])


def appended_batch(value, **options):
    store = buffer((A,), N, **options)
    store.append_batch(value, VALUES, np.zeros(N), np.ones(N), np.zeros(N), value)
    return np.concatenate([episode.observations for episode in store.episodes])


class Halves(BasicWriterPreprocess):
    def process_observation(self, observation):
        return observation / 2


def observed(algorithm, value, where):
    """Return the observation that an agent stores."""
    store = buffer((A,), N)
    agent = algorithm.agent(N, store, env=Vectors(), update_start_step=100)
    agent.act(value if where == "act" else VALUES)
    agent.observe(value if where == "observe" else VALUES, np.zeros(N), np.ones(N, bool))
    episodes = store.episodes
    return np.stack([e.observations[0] if where == "act" else e.final_observation for e in episodes])


def stepped(value, method):
    env = Returns(value if method == "reset" else VALUES)
    stepper = birl.envs.Stepper(env, np.random.default_rng(0))
    stepper.reset()
    if method == "step":
        env.observation = value
        return stepper.step(np.zeros(1, np.int64)).next_observation[0]
    return stepper.observation[0]


def decided(value):
    """Return the action of a sequence model, which depends on all numbers of the observation."""
    config = birl.algos.DecisionTransformerConfig(context_size=2)
    birl.seed(0)
    algorithm = config.create()
    algorithm.create_impl((N, A), 2)
    return algorithm.as_stateful_wrapper(1.0).predict(value, 0.0)


def acted(value):
    """Return the actions that environments get from a policy of one's own."""
    env = gymnasium.vector.SyncVectorEnv([Vectors] * N)
    birl.metrics.evaluate(None, env, N, actor=lambda observation, is_first, reward: value)
    return np.stack([each.action for each in env.envs])


def probability(value):
    policy = SimpleNamespace(action_probability=lambda x, action=None: value)
    return np.exp(log_probability_of(policy)(VALUES, None))


DOORS = {
    "to_array": lambda value, **_: to_array("x", value),
    "MDPDataset observations": lambda value, **_: dataset(observations=value).episodes[0].observations,
    "MDPDataset parts": lambda value, **_: dataset(observations={"a": value}).episodes[0].observations["a"],
    "MDPDataset next_observations": lambda value, **_: finals(value),
    "MDPDataset actions": lambda value, **_: dataset(actions=value).episodes[0].actions,
    "MDPDataset extra": lambda value, **_: dataset(extra={"x": value}).episodes[0].extra["x"],
    "Episode observations": lambda value, **_: Episode(value, VALUES, np.zeros(N), True).observations,
    "Episode actions": lambda value, **_: Episode(VALUES, value, np.zeros(N), True).actions,
    "append": lambda value, **_: appended(value),
    "append_batch, with a writer": lambda value, **_: 2 * appended_batch(value, writer_preprocessor=Halves()),
    "append_batch": lambda value, **_: appended_batch(value),
    "append_batch actions": lambda value, **_: appended_action(value),
    "predict of a sequence model": lambda value, **_: decided(value),
    "predict": lambda value, algorithm: algorithm.predict(value),
    "sample_action": lambda value, algorithm: algorithm.sample_action(value),
    "predict_value": lambda value, algorithm: algorithm.predict_value(value, VALUES),
    "predict_value actions": lambda value, algorithm: algorithm.predict_value(VALUES, value),
    "act": lambda value, algorithm: observed(algorithm, value, "act"),
    "observe": lambda value, algorithm: observed(algorithm, value, "observe"),
    "reset of an environment": lambda value, **_: stepped(value, "reset"),
    "step of an environment": lambda value, **_: stepped(value, "step"),
    "evaluate, a policy of one's own": lambda value, **_: acted(value),
    "probabilities of a policy of one's own": lambda value, **_: probability(value),
}


@pytest.mark.parametrize("name", DOORS)
def test_values_arrive_right(name, algorithm):
    door = DOORS[name]
    expected = door(VALUES.copy(), algorithm=algorithm)
    for kind, make in ARRIVES.items():
        found = door(make(), algorithm=algorithm)
        np.testing.assert_allclose(found, expected, err_msg=kind, rtol=1e-6)
        assert type(found) is np.ndarray and found.dtype.isnative and found.dtype.kind == "f", kind


@pytest.mark.parametrize("name", DOORS)
def test_other_values_are_refused_by_name(name, algorithm):
    for kind, (make, message) in REFUSED.items():
        value = make()
        if "next_observations" in name:  # missing ones are NaN, which is refused unless a whole row is missing
            message = rf"{message}|next_observations\[\d, \d\] is nan"
        with pytest.raises(BirlError, match=message) as caught:
            DOORS[name](value, algorithm=algorithm)
        assert len(str(caught.value)) < 900, kind


def test_numbers_that_float32_cannot_hold_are_refused_wherever_networks_read_them(algorithm):
    far = VALUES.copy()
    far[2, 1] = 1e39
    for name in ("MDPDataset observations", "append", "observe", "act", "reset of an environment"):
        with pytest.raises(NonFiniteError, match="float32|too large"):
            DOORS[name](far, algorithm=algorithm)
    for name in ("predict", "sample_action", "predict_value", "predict of a sequence model"):
        with pytest.raises(NonFiniteError, match="outside the range of float32"):
            DOORS[name](far, algorithm=algorithm)
    dqn = birl.algos.DQNConfig().create()
    dqn.create_impl((A,), 2)  # the largest of values that are NaN is the first one
    with pytest.raises(NonFiniteError, match="outside the range of float32"):
        dqn.predict(far)
    for value in (1e39, np.nan):
        far[2, 1] = value
        with pytest.raises(ActionError, match="the action of row 2 .* finite in float32"):
            algorithm.predict_value(VALUES, far)


def test_the_environments_numbers_are_given_as_they_are():
    for value in (VALUES, VALUES.astype(np.uint8), np.zeros(0)):
        assert to_array("x", value) is value


def test_rewards_and_flags_are_read_like_observations():
    gap = np.ma.masked_array(np.ones(N), mask=[0, 1, 0, 0])
    for name in ("rewards", "terminals", "timeouts", "episode_ids"):
        with pytest.raises(DataError, match=rf"{name}\[1\] is masked"):
            dataset(**{name: gap})
    for rewards in (np.arange(N).astype(">i4"), pyarrow.array(range(N)), torch.arange(N), list(range(N))):
        assert dataset(rewards=rewards).episodes[0].rewards.ravel().tolist() == [0, 1, 2, 3]
    with pytest.raises(ShapeError, match="the dtype of actions is structured"):
        dataset(actions=np.zeros(N, [("gas", "f4")]))


def test_columns_of_lists_become_columns_of_numbers():
    column = np.empty(N, object)
    column[:] = VALUES.tolist()
    for value in (column, Frame({"x": column}), pyarrow.table({"x": VALUES.tolist()})):
        np.testing.assert_array_equal(to_array("x", value), VALUES)
    column[2] = [1.0]
    with pytest.raises(ShapeError, match="x cannot be made one array"):
        to_array("x", column)


def test_missing_values_can_become_nan():
    gap = VALUES.copy()
    gap[2, 1] = np.nan
    hidden = np.ma.masked_array(VALUES, mask=np.isnan(gap))
    for value in (hidden, list(hidden), with_none(), arrow([VALUES[:, 0].tolist(), with_none()[:, 1].tolist()])):
        np.testing.assert_array_equal(to_array("x", value, nan=True), gap)
