"""Tables of actions are read by the names of their columns once these are known, as tables of observations are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

import birl
from birl.dataset import (
    Episode,
    MDPDataset,
    MixedReplayBuffer,
    ReplayBuffer,
    Signature,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
    dump,
    from_table,
)
from birl.dataset.log_schema import LogSchema
from birl.errors import ShapeError
from birl.run.agent_core import ReplayAgentCore
from tests.dataset.test_columns import KINDS, STEPS, VALUES, N, PandasFrame, PandasSeries, copies

TAKEN = np.tanh(VALUES @ np.diag([1, 0.1, 0.01]))
"""The columns u, v, w; the actions are u and v."""


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> Any:
    """A function that makes a table of the columns u, v, w, or some of them, in any order."""
    return lambda names="uv", values=TAKEN: KINDS[request.param]({n: values[:, "uvw".index(n)] for n in names})


def pandas_table(names: str = "uv") -> Any:
    return PandasFrame({name: TAKEN[:, "uvw".index(name)] for name in names})


def dataset(actions: Any, observations: Any = VALUES, **options: Any) -> MDPDataset:
    return MDPDataset(observations, actions, **STEPS, **options)


def built(data: ReplayBuffer, config: Any = birl.algos.SACConfig) -> Any:
    algorithm = config().create()
    algorithm.build_with_dataset(data)
    return algorithm


@cache
def learned() -> tuple[MDPDataset, Any]:
    """A dataset of a table with the columns u and v, and an algorithm that learned from it."""
    data = dataset(pandas_table())
    return data, built(data)


@dataclass
class Rule:
    """A user's policy, which returns ``actions`` in their own form."""

    actions: Any

    def predict(self, x: Any) -> Any:
        return self.actions


def external() -> Any:
    return birl.envs.ExternalEnv(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32))


class OwnEpisode:
    """A user's own class of episodes, which keeps tables."""

    observation_signature, reward_signature = Signature([np.dtype(float)], [(3,)]), Signature([np.dtype(float)], [(1,)])
    action_signature = Signature([np.dtype(float)], [(2,)])
    rewards, terminated = np.zeros((N, 1)), True
    transition_count = N

    def __init__(self, actions: Any, observations: Any = VALUES) -> None:
        self.actions, self.observations = actions, observations

    def size(self) -> int:
        return N

    def __len__(self) -> int:
        return N

    def compute_return(self) -> float:
        return 0.0

    def serialize(self) -> Any:
        raise NotImplementedError

    deserialize = classmethod(serialize)


def appended(add: Callable[[Any], object], lanes: int = 1) -> Any:
    """Return the actions that a step or episode adds to a buffer of named episodes."""
    buffer = create_infinite_replay_buffer(episodes=learned()[0].episodes[:1], lanes=lanes)
    add(buffer)
    return np.concatenate([episode.actions for episode in buffer.episodes[1:]])


def append_batch(actions: Any) -> Any:
    flags = np.zeros(N)
    return appended(lambda buffer: buffer.append_batch(VALUES, actions, flags, flags, flags + 1, VALUES), lanes=N)


def evaluated(rule: Rule) -> Any:
    """Return an evaluation of a policy of the user's own."""
    evaluation = birl.ope.FQE(rule, birl.ope.FQEConfig())
    evaluation.build_with_dataset(learned()[0])
    return evaluation


def compared(actions: Any) -> Any:
    return birl.metrics.CompareContinuousActionDiffEvaluator(Rule(actions))(learned()[1], learned()[0])


def explored(actions: Any) -> Any:
    """Return the actions of an agent whose explorer returns ``actions``."""

    class Explorer(birl.algos.Explorer):
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            return actions

    env = external()
    agent = learned()[1].agent(N, create_infinite_replay_buffer(), Explorer(), env=env, random_steps=0)
    return agent.act(VALUES.astype(np.float32))


COLUMNS = {"action": ("u", "v")}


def relabelled(actions: Any) -> Any:
    """Return the actions that are stored if an expert's are ``actions``."""
    generator, seen = np.random.default_rng(0), VALUES.astype(np.float32)
    core = ReplayAgentCore(
        learned()[1],
        seen,
        external().action_space,
        None,
        None,
        greedy=True,
        generator=generator,
        expert=lambda x: actions,
    )
    core.select_action(seen, np.ones(N, bool), np.zeros(N, np.float32), 0)
    assert core.selected is not None
    return core.selected.action


DOORS: dict[str, Callable[[Any], Any]] = {
    "predict_value": lambda actions: learned()[1].predict_value(VALUES, actions),
    "action_log_probability": lambda actions: learned()[1].action_log_probability(VALUES, actions),
    "action_probability": lambda actions: learned()[1].action_probability(VALUES, actions),
    "ope": lambda actions: birl.ope.Gaussian(learned()[1], 0.5).action_log_probability(VALUES, actions),
    "mixture": lambda actions: birl.ope.Mixture([birl.ope.Gaussian(learned()[1], 0.5)]).action_probability(
        VALUES, actions
    ),
    "FQE of a rule": lambda actions: evaluated(Rule(actions)).predict(VALUES),
    "values of FQE": lambda actions: evaluated(Rule(TAKEN)).predict_value(VALUES, actions),
    "evaluator": compared,
    "explorer": explored,
    "expert": relabelled,
    "append_batch": append_batch,
    "append_episode": lambda actions: appended(lambda buffer: buffer.append_episode(OwnEpisode(actions))),
    "Episode": lambda actions: (
        Episode(VALUES, actions, np.zeros(N), True, columns=learned()[0].dataset_info.columns).actions
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_columns_are_read_by_name(table: Any, door: str) -> None:
    def ask(actions: Any) -> Any:
        birl.seed(0)
        return DOORS[door](actions)

    right = ask(TAKEN[:, :2])
    np.testing.assert_array_equal(ask(table("uv")), right)
    np.testing.assert_array_equal(ask(table("vu")), right)
    with pytest.raises(ShapeError, match="is a table that lacks v; .* u, v: add or rename"):
        ask(table("u"))
    with pytest.raises(ShapeError, match="is a table that lacks u and also has w"):
        ask(table("wv"))
    with pytest.raises(ShapeError, match=r"is a table that also has w; .*: give .*(\.select\(|\[)\['u', 'v'\]"):
        ask(table("wvu"))


CHOICE = np.arange(N) % 2


def test_a_single_column_may_have_any_name(table: Any, tmp_path: Path) -> None:
    """It cannot be in a wrong order."""
    choices = np.stack([CHOICE] * 3, 1)
    one, other = table("u", choices), table("v", choices)
    data = dataset(one)
    assert data.dataset_info.columns == {"action": ("u",)}
    algorithm = built(data, birl.algos.DQNConfig)
    right = algorithm.predict_value(VALUES, CHOICE)
    for actions in (one, other):
        np.testing.assert_array_equal(algorithm.predict_value(VALUES, actions), right)
        np.testing.assert_array_equal(algorithm.action_log_probability(VALUES, actions, greedy=True).shape, N)
    second = dataset(other)
    algorithm.build_with_dataset(second)
    birl.metrics.TDErrorEvaluator()(algorithm, second)
    MixedReplayBuffer(data, second, 0.5)
    episodes = [Episode(VALUES, actions, np.zeros(N), True) for actions in (one, other, CHOICE)]
    buffer = create_infinite_replay_buffer(episodes=[*episodes, *second.episodes], lanes=N)
    flags = np.zeros(N)
    for actions in (one, other):
        buffer.append_batch(VALUES, actions, flags, flags, flags + 1, VALUES)
    buffer.append_episode(episodes[1])
    dump(buffer.episodes, tmp_path / "data.h5")
    for found in (buffer, ReplayBuffer.load(tmp_path / "data.h5")):
        assert sorted(np.concatenate([each.actions for each in found.episodes]).ravel().tolist()) == sorted(
            CHOICE.tolist() * 7
        )
    quantity = dataset(table("u"))
    value = built(quantity).predict_value(VALUES, table("v", TAKEN[:, [1, 0, 2]]))
    np.testing.assert_array_equal(value.shape, N)
    with pytest.raises(ShapeError, match=r"actions are .*\(40, 2\); they must be"):
        algorithm.predict_value(VALUES, table("uv"))


def test_observations_of_named_episodes_are_read_by_name(table: Any) -> None:
    """Episodes with given names and users' own classes of episodes may hold tables in another order."""
    columns = {"observation": ("u", "v", "w"), "action": ("u", "v")}
    buffer = create_infinite_replay_buffer(episodes=dataset(table(), table("uvw")).episodes)
    assert buffer.dataset_info.columns == columns
    before = buffer.size()
    made = Episode(table("vuw"), table("vu"), np.zeros(N), True, columns=columns)
    for episode in (made, OwnEpisode(table("vu"), table("wuv"))):
        buffer.append_episode(episode)  # type: ignore[arg-type]
    for stored in (made, *list(buffer.episodes)[before:]):
        np.testing.assert_array_equal(stored.observations, TAKEN)
        np.testing.assert_array_equal(stored.actions, TAKEN[:, :2])
    for given in (
        {"observations": table("vu"), "actions": table()},
        {"observations": table("uvw"), "actions": table("u")},
    ):
        with pytest.raises(ShapeError, match="is a table that lacks"):
            Episode(**given, rewards=np.zeros(N), terminated=True, columns=columns)
        with pytest.raises(ShapeError, match="is a table that lacks"):
            buffer.append_episode(OwnEpisode(given["actions"], given["observations"]))  # type: ignore[arg-type]


def test_buffers_take_the_names_of_appended_episodes(table: Any, tmp_path: Path) -> None:
    first, second = dataset(table(), table("uvw")), dataset(table("vu"), table("uvw"))
    columns = {"observation": ("u", "v", "w"), "action": ("u", "v")}
    buffer = create_fifo_replay_buffer(100, env=external(), storage=tmp_path / "folder")
    buffer.append_episode(Episode(VALUES, TAKEN[:, :2], np.zeros(N), True))
    assert buffer.dataset_info.columns == {}
    buffer.append_episode(first.episodes[0])
    assert buffer.dataset_info.columns == columns
    for use in (
        lambda: buffer.append_episode(second.episodes[0]),
        lambda: create_fifo_replay_buffer(99, env=external(), episodes=[first.episodes[0], second.episodes[0]]),
    ):
        with pytest.raises(ShapeError, match="the actions of the episode come from a table with the columns v, u"):
            use()
    buffer.close()
    assert ReplayBuffer.open(tmp_path / "folder").dataset_info.columns == columns


def test_buffers_of_agents_have_the_columns_of_the_algorithm(table: Any) -> None:
    named = create_infinite_replay_buffer(episodes=dataset(table()).episodes)
    algorithm = built(dataset(TAKEN[:, :2]))
    algorithm.agent(1, named, env=external(), random_steps=0)
    assert algorithm.columns == {"action": ("u", "v")}
    with pytest.raises(ShapeError, match="the actions of the buffer come from a table with the columns u, v"):
        built(dataset(table("vu"))).agent(1, named, env=external())


def test_checkpoints_of_agents_keep_the_columns_of_their_buffers(tmp_path: Path) -> None:
    def agent() -> tuple[Any, Any]:
        buffer = create_fifo_replay_buffer(300, env=external())
        return built(dataset(TAKEN[:, :2])).agent(1, buffer, env=external()), buffer

    saved, buffer = agent()
    buffer.append_episode(learned()[0].episodes[0])
    saved.save(tmp_path / "agent")
    loaded, buffer = agent()
    loaded.load(tmp_path / "agent")
    assert buffer.dataset_info.columns == {"action": ("u", "v")}
    buffer.append_episode(learned()[0].episodes[1])
    swapped = dataset(pandas_table("vu")).episodes[0]
    with pytest.raises(ShapeError, match="the actions of the episode come from a table with the columns v, u"):
        buffer.append_episode(swapped)


def test_rows_with_labels_are_read_by_name() -> None:
    def append(row: Any) -> Any:
        def add(buffer: Any) -> None:
            buffer.append(VALUES[0], row, 0.0)
            buffer.clip_episode(True)

        return appended(add)

    for row in (TAKEN[0, :2], PandasSeries(TAKEN[0, 1::-1], list("vu")), PandasSeries(TAKEN[0, :2], [0, 1])):
        np.testing.assert_array_equal(append(row), TAKEN[:1, :2])
    with pytest.raises(ShapeError, match="action is a table that lacks u and also has w"):
        append(PandasSeries(TAKEN[0, :2], list("vw")))


def test_names_survive_files_splits_and_parts(table: Any, tmp_path: Path) -> None:
    whole = dataset(table())
    names = {"action": ("u", "v")}
    single = create_infinite_replay_buffer()
    single.append_episode(Episode(VALUES, table(), np.zeros(N), True))
    found = copies(whole, dataset(TAKEN[:, :2]), tmp_path) | {"own episode": single}
    for way, data in found.items():
        assert dict(data.dataset_info.columns) == names, way
    algorithm = built(found["folder"])
    algorithm.save(tmp_path / "model.d3")
    algorithm.save_model(tmp_path / "parameters.d3")
    again, other = birl.load_learnable(tmp_path / "model.d3"), built(dataset(TAKEN[:, :2]))
    other.load_model(tmp_path / "parameters.d3")
    birl.ope.Gaussian(algorithm, 0.5).save(tmp_path / "policy.d3")
    policy = birl.ope.load_policy(tmp_path / "policy.d3")
    assert again.columns == other.columns == policy.columns == names
    right = algorithm.predict_value(VALUES, TAKEN[:, :2])
    for each in (again, other):
        np.testing.assert_array_equal(each.predict_value(VALUES, table("vu")), right)


def test_data_in_another_order_are_refused(table: Any, tmp_path: Path) -> None:
    first, second = dataset(table()), dataset(table("vu"))
    algorithm = built(first)
    words = "the actions of .* come from a table with the columns v, u, those of .* from one with u, v"
    algorithm.save_model(tmp_path / "parameters.d3")
    compare = birl.metrics.CompareContinuousActionDiffEvaluator
    doors: dict[str, Callable[[], object]] = {
        "build": lambda: algorithm.build_with_dataset(second),
        "fit": lambda: algorithm.fit(second, n_steps=1),
        "episodes": lambda: create_infinite_replay_buffer(episodes=[first.episodes[0], second.episodes[0]]),
        "append_episode": lambda: first.append_episode(second.episodes[0]),
        "mixed": lambda: MixedReplayBuffer(first, second, 0.5),
        "evaluate": lambda: birl.ope.evaluate(birl.ope.Gaussian(algorithm, 1.0), second, gamma=0.9),
        "FQE": lambda: birl.ope.FQE(algorithm, birl.ope.FQEConfig()).build_with_dataset(second),
        "episodes of an evaluator": lambda: birl.metrics.TDErrorEvaluator(second.episodes)(algorithm, first),
        **{
            type(each).__name__: lambda each=each: each(algorithm, second)  # type: ignore[misc]
            for each in (
                birl.metrics.TDErrorEvaluator(),
                birl.metrics.DiscountedSumOfAdvantageEvaluator(),
                birl.metrics.AverageValueEstimationEvaluator(),
                birl.metrics.InitialStateValueEstimationEvaluator(),
                birl.metrics.SoftOPCEvaluator(0.0),
                birl.metrics.ContinuousActionDiffEvaluator(),
                compare(built(second)),
            )
        },
    }
    for door, use in doors.items():
        with pytest.raises(ShapeError, match=words):
            use()
            pytest.fail(door)
    with pytest.raises(ShapeError, match="from one with v, u"):
        built(second).load_model(tmp_path / "parameters.d3")
    with pytest.raises(ShapeError, match="from one with v, u|columns v, u"):
        compare(built(second))(algorithm, first)
    with pytest.raises(ShapeError, match=words):
        birl.ope.Mixture([birl.ope.Gaussian(algorithm, 1.0), birl.ope.Gaussian(built(second), 1.0)])


def test_parts_of_observations_and_actions_have_their_own_columns(table: Any) -> None:
    """A part of observations may have the name of the actions."""
    data = dataset(table(), {"action": table("vu"), "observation": table("wu")})
    columns = {"observation.action": ("v", "u"), "observation.observation": ("w", "u"), "action": ("u", "v")}
    assert data.dataset_info.columns == columns
    algorithm = built(data)
    right = algorithm.predict_value({"action": TAKEN[:, 1::-1], "observation": TAKEN[:, [2, 0]]}, TAKEN[:, :2])
    given = algorithm.predict_value({"observation": table("uw"), "action": table("uv")}, table("vu"))
    np.testing.assert_array_equal(given, right)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_lists_and_several_choices(kind: str) -> None:
    make = KINDS[kind]
    algorithm = built(dataset(make({"v": TAKEN[:, :2], "w": TAKEN[:, 2]})))
    assert algorithm.columns == {"action": ("v[0]", "v[1]", "w")}
    right = algorithm.predict_value(VALUES, TAKEN)
    for columns in (
        {"w": TAKEN[:, 2], "v": TAKEN[:, :2]},
        {"v[1]": TAKEN[:, 1], "w": TAKEN[:, 2], "v[0]": TAKEN[:, 0]},
    ):
        np.testing.assert_array_equal(algorithm.predict_value(VALUES, make(columns)), right)
    data = dataset(make({"gear": CHOICE, "lane": np.arange(N) % 3}), action_space=birl.ActionSpace.MULTI_DISCRETE)
    algorithm = built(data, birl.algos.DQNConfig)
    right = algorithm.predict_value(VALUES, np.stack([CHOICE, np.arange(N) % 3], 1))
    swapped = make({"lane": np.arange(N) % 3, "gear": CHOICE})
    np.testing.assert_array_equal(algorithm.predict_value(VALUES, swapped), right)


def test_tables_in_parts_of_actions(table: Any) -> None:
    """Rows of actions with several parts have the columns of their tables, in the stored order of the parts."""
    space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "gear": spaces.Discrete(2)})
    first = dataset({"move": table("vu"), "gear": CHOICE}, action_size=space)
    assert first.dataset_info.columns == {"action": ("gear", "v", "u")}
    rows = np.stack([CHOICE, TAKEN[:, 1], TAKEN[:, 0]], 1)
    np.testing.assert_array_equal(np.concatenate([each.actions for each in first.episodes]), rows.astype(np.float32))
    algorithm = built(first, birl.algos.PPOConfig)
    right = algorithm.action_log_probability(VALUES, rows)
    made = pa.table({"u": TAKEN[:, 0], "gear": CHOICE, "v": TAKEN[:, 1]})
    np.testing.assert_array_equal(algorithm.action_log_probability(VALUES, made), right)
    with pytest.raises(ShapeError, match="from one with gear, v, u"):
        algorithm.build_with_dataset(dataset({"move": table("uv"), "gear": CHOICE}, action_size=space))
    for actions in ({"move": TAKEN[:, :2], "gear": CHOICE}, rows):
        assert dataset(actions, action_size=space).dataset_info.columns == {}
    assert dataset(table("vu"), action_size=space["move"]).dataset_info.columns == {"action": ("v", "u")}


@pytest.mark.parametrize("lists", [False, True])
def test_logs_name_the_columns_of_actions(tmp_path: Path, lists: bool) -> None:
    names = ("v[0]", "v[1]") if lists else ("u", "v")
    action = 'column = "v"' if lists else 'columns = ["u", "v"]'
    text = f"""
        episode = "episode"
        time = "time"
        terminated = "end"
        [action]
        {action}
        kind = "continuous"
        [reward]
        column = "reward"
        [[observation]]
        column = "x"
        """
    rows = np.arange(N)
    columns: dict[str, Any] = {"x": VALUES[:, 0], "reward": np.zeros(N), "episode": rows // 4, "time": rows}
    columns |= {"v": TAKEN[:, :2]} if lists else {"u": TAKEN[:, 0], "v": TAKEN[:, 1]}
    from_table({**columns, "end": rows % 4 == 3}, LogSchema.parse(text), storage=tmp_path / "logs").close()
    data = ReplayBuffer.open(tmp_path / "logs")
    assert data.dataset_info.columns == {"observation": ("x",), "action": names}
    algorithm = built(create_infinite_replay_buffer(episodes=data.episodes[:3]))
    swapped = pa.table({names[1]: TAKEN[:, 1], names[0]: TAKEN[:, 0]})
    right = algorithm.predict_value(VALUES[:, :1], TAKEN[:, :2])
    np.testing.assert_array_equal(algorithm.predict_value(VALUES[:, :1], swapped), right)


def test_exports_name_the_columns_of_actions(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    schema = json.loads(learned()[1].export(tmp_path / "policy.onnx").read_text())
    assert schema["action"] == {"kind": "continuous", "size": 2, "columns": ["u", "v"]}
    assert [each["column"] for each in schema["inputs"][0]["columns"]] == ["0", "1", "2"]


def test_actions_and_tables_without_names_are_read_by_position() -> None:
    algorithm = learned()[1]
    assert type(algorithm.predict(VALUES)) is np.ndarray
    right = algorithm.predict_value(VALUES, TAKEN[:, :2])
    for actions in (PandasFrame(dict(enumerate(TAKEN[:, :2].T))), TAKEN[:, :2].tolist(), tuple(TAKEN[:, :2])):
        np.testing.assert_array_equal(algorithm.predict_value(VALUES, actions), right)


def test_old_names_of_columns_are_ignored() -> None:
    data = learned()[0]
    episode = Episode(VALUES, TAKEN[:, :2], np.zeros(N), True, columns={"": ("x", "y", "z"), "action": ("u",)})
    assert create_infinite_replay_buffer(episodes=[episode]).dataset_info.columns == {}
    assert data.dataset_info.columns == {"action": ("u", "v")}
