"""Tables are read by the names of their columns once these are known, and by position before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

import birl
from birl.dataset import (
    Episode,
    InfiniteBuffer,
    MDPDataset,
    MixedReplayBuffer,
    ReplayBuffer,
    create_infinite_replay_buffer,
    dump,
    from_table,
    load,
)
from birl.dataset.log_schema import LogSchema
from birl.errors import CorruptFileError, ShapeError
from birl.spaces.conversion import column_names, order_columns

N = 40
VALUES = np.random.default_rng(0).normal(size=(N, 3)) * [1, 10, 100]
ACTIONS = np.arange(N) % 2
STEPS: dict[str, Any] = {"rewards": np.zeros(N), "terminals": np.arange(N) % 4 == 3, "timeouts": np.zeros(N)}


class PandasSeries:
    """The part of a pandas column or row that is read."""

    def __init__(self, values: Any, index: Any) -> None:
        self.values, self.index = np.asarray(values), index

    def to_frame(self) -> Any:
        frame = PandasFrame({})
        frame.T = PandasFrame(dict(zip(self.index, self.values[:, None], strict=True)))  # type: ignore[attr-defined]
        return frame

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class PandasFrame:
    """The part of a pandas table that is read."""

    def __init__(self, columns: dict[Any, Any]) -> None:
        self.data, self.columns, self.iloc = columns, list(columns), self

    def __getitem__(self, at: Any) -> Any:
        return list(self.data.values())[at[1]]


class PolarsFrame:
    """The part of a polars table that is read."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.data, self.columns = columns, list(columns)

    def get_columns(self) -> list[Any]:
        return list(self.data.values())


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": PandasFrame,
    "polars": PolarsFrame,
    "Arrow": lambda columns: pa.table({name: pa.array(list(values)) for name, values in columns.items()}),
}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> Any:
    """A function that makes a table of the columns x, y, z in any order."""
    return lambda names="xyz", values=VALUES: KINDS[request.param]({n: values[:, "xyz".index(n)] for n in names})


def pandas_table() -> Any:
    return PandasFrame(dict(zip("xyz", VALUES.T, strict=True)))


def dataset(observations: Any, **options: Any) -> MDPDataset:
    return MDPDataset(observations, ACTIONS, **STEPS, **options)


def built(data: ReplayBuffer, config: Any = birl.algos.DQNConfig) -> Any:
    algorithm = config().create()
    algorithm.build_with_dataset(data)
    return algorithm


def copies(whole: MDPDataset, plain: MDPDataset, folder: Path) -> dict[str, Any]:
    """Return buffers of a dataset or a part of it, through files, folders and a mix with one without names."""
    part = whole.episodes[:3]
    whole.dump(folder / "whole.h5")
    dump(part, folder / "flat.h5", layout="flat")
    create_infinite_replay_buffer(episodes=part, storage=folder / "folder").close()
    return {
        "whole": whole,
        "part": create_infinite_replay_buffer(episodes=part),
        "mixed": MixedReplayBuffer(create_infinite_replay_buffer(episodes=part), plain, 0.5),
        "file": ReplayBuffer.load(folder / "whole.h5", InfiniteBuffer()),
        "flat file": ReplayBuffer.load(folder / "flat.h5", InfiniteBuffer()),
        "folder": ReplayBuffer.open(folder / "folder"),
    }


DOORS = {
    "predict": lambda algorithm, x: algorithm.predict(x),
    "predict_value": lambda algorithm, x: algorithm.predict_value(x, ACTIONS),
    "action_values": lambda algorithm, x: algorithm.action_values(x),
    "sample_action": lambda algorithm, x: birl.ope.Softmax(algorithm, 0.5).action_log_probability(x),
    "action_log_probability": lambda algorithm, x: algorithm.action_log_probability(x),
}


@pytest.mark.parametrize("door", DOORS)
def test_policies_read_columns_by_name(table: Any, door: str) -> None:
    algorithm = built(dataset(table()))
    right = DOORS[door](algorithm, VALUES)
    for names in ("xyz", "zxy", "yxz"):
        np.testing.assert_array_equal(DOORS[door](algorithm, table(names)), right)
    for names, words in (("xy", "lacks z"), ("zx", "lacks y")):
        with pytest.raises(ShapeError, match=rf"observations is a table that {words}.*x, y, z: add or rename"):
            DOORS[door](algorithm, table(names))


def test_further_columns_are_refused_with_the_selection(table: Any) -> None:
    algorithm = built(dataset(table("xz")))
    with pytest.raises(ShapeError, match=r"also has y; .*: give observations(\.select\(|\[)\['x', 'z'\]"):
        algorithm.predict(table("yzx"))


def test_sampling_and_imitation_read_columns_by_name(table: Any) -> None:
    data = MDPDataset(table(), np.tanh(VALUES[:, :2]), **STEPS)
    algorithm = built(data, birl.algos.SACConfig)
    right = [birl.seed(0), algorithm.sample_action(VALUES)][1]
    np.testing.assert_array_equal([birl.seed(0), algorithm.sample_action(table("zyx"))][1], right)


def test_names_survive_files_splits_and_parts(table: Any, tmp_path: Path) -> None:
    whole = dataset(table())
    names = {"observation": ("x", "y", "z")}
    dump(whole.episodes[:3], tmp_path / "part.h5")
    single = create_infinite_replay_buffer()
    single.append_episode(Episode(table(), ACTIONS, np.zeros(N), True))
    found = copies(whole, dataset(VALUES), tmp_path) | {
        "file of a part": ReplayBuffer.load(tmp_path / "part.h5", InfiniteBuffer()),
        "episodes": create_infinite_replay_buffer(episodes=load(tmp_path / "part.h5")[0][:2]),
        "flat episodes": create_infinite_replay_buffer(episodes=load(tmp_path / "flat.h5")[0][:2]),
        "own episode": single,
    }
    for way, data in found.items():
        assert dict(data.dataset_info.columns) == names, way
    algorithm = built(found["folder"])
    algorithm.save(tmp_path / "model.d3")
    again = birl.load_learnable(tmp_path / "model.d3")
    assert again.columns == names
    np.testing.assert_array_equal(again.action_values(table("zxy")), algorithm.action_values(VALUES))
    assert "columns" not in built(dataset(VALUES)).describe()


def test_next_observations_and_appended_steps_are_read_by_name(table: Any) -> None:
    following = np.roll(VALUES, -1, 0)
    named, plain = (
        dataset(x, next_observations=y) for x, y in ((table(), table("zyx", following)), (VALUES, following))
    )
    for one, other in zip(named.episodes, plain.episodes, strict=True):
        np.testing.assert_array_equal(one.final_observation, other.final_observation)
    renamed = PolarsFrame({f"next_{name}": column for name, column in zip("xyz", following.T, strict=True)})
    dataset(table(), next_observations=renamed)  # other names for the same columns
    with pytest.raises(ShapeError, match="next_observations is a table that lacks z"):
        dataset(table(), next_observations=table("xy", following))

    buffer = create_infinite_replay_buffer(episodes=named.episodes[:1], lanes=N)
    flags = np.zeros(N)
    buffer.append_batch(table("yzx"), ACTIONS, flags, flags, flags + 1, table("zxy", following))
    for row in range(N):
        np.testing.assert_array_equal(buffer.episodes[row + 1].observations, VALUES[row : row + 1])
        np.testing.assert_array_equal(buffer.episodes[row + 1].final_observation, following[row])
    with pytest.raises(ShapeError, match="next_observation is a table that lacks x"):
        buffer.append_batch(table("yzx"), ACTIONS, flags, flags, flags + 1, table("zy", following))


def test_rows_with_labels_are_read_by_name() -> None:
    buffer = create_infinite_replay_buffer(episodes=dataset(pandas_table()).episodes)
    before = buffer.size()
    buffer.append(PandasSeries(VALUES[0, ::-1], list("zyx")), 0, 0.0)  # type: ignore[arg-type]
    buffer.append(PandasSeries(VALUES[1], [0, 1, 2]), 0, 0.0)  # type: ignore[arg-type]  # no names
    buffer.clip_episode(False, final_observation=PandasSeries(VALUES[2, ::-1], list("zyx")))  # type: ignore[arg-type]
    episode = buffer.episodes[before]
    np.testing.assert_array_equal([*episode.observations, episode.final_observation], VALUES[:3])
    with pytest.raises(ShapeError, match="lacks x"):
        buffer.append(PandasSeries(VALUES[0], list("zyw")), 0, 0.0)  # type: ignore[arg-type]


def test_an_agent_reads_labelled_rows_by_name() -> None:
    algorithm = built(dataset(pandas_table()))
    env = birl.envs.ExternalEnv(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2))
    buffer = create_infinite_replay_buffer()
    agent = algorithm.agent(1, buffer, env=env)
    agent.act(PandasSeries(VALUES[0, ::-1], list("zyx")))
    agent.observe(PandasSeries(VALUES[1, ::-1], list("zyx")), 0.0, True)
    assert buffer.episodes[0].observations[0] == pytest.approx(VALUES[0], rel=1e-6)


def test_actors_read_columns_by_name(table: Any) -> None:
    algorithm = built(dataset(table()))
    first, reward = np.ones(N, bool), np.zeros(N)
    right = algorithm.actor(greedy=True, n=N)(VALUES, first, reward)
    np.testing.assert_array_equal(algorithm.actor(greedy=True, n=N)(table("zxy"), first, reward), right)


def test_a_sequence_model_reads_labelled_rows_by_name() -> None:
    data = dataset(pandas_table())
    config = birl.algos.DiscreteDecisionTransformerConfig(context_size=3, num_heads=1, num_layers=1)
    wrapper = built(data, lambda: config).as_stateful_wrapper(1.0)
    assert wrapper.columns == {"observation": ("x", "y", "z")}
    right = wrapper.predict(VALUES[0], 0.0)
    wrapper.reset()
    row: Any = PandasSeries(VALUES[0, ::-1], list("zyx"))
    assert wrapper.predict(row, 0.0) == right
    with pytest.raises(ShapeError, match="observation is a table that lacks x and also has w"):
        wrapper.predict(PandasSeries(VALUES[0], list("zyw")), 0.0)


def test_data_in_another_order_are_refused(table: Any, tmp_path: Path) -> None:
    first, second = dataset(table()), dataset(table("zyx"))
    algorithm = built(first)
    words = "come from a table with the columns z, y, x, those of .* from one with x, y, z; both must be the same"
    with pytest.raises(ShapeError, match=words):
        algorithm.build_with_dataset(second)
    with pytest.raises(ShapeError, match=words):
        algorithm.fit(second, n_steps=1)
    algorithm.save_model(tmp_path / "parameters.d3")
    with pytest.raises(ShapeError, match="those of this DQN from one with z, y, x"):
        built(second).load_model(tmp_path / "parameters.d3")
    evaluator = birl.metrics.TDErrorEvaluator
    for data, episodes in ((second, None), (first, second.episodes)):
        with pytest.raises(ShapeError, match=words):
            evaluator(episodes)(algorithm, data)
    other = built(dataset(VALUES))
    other.load_model(tmp_path / "parameters.d3")
    assert other.columns == algorithm.columns
    with pytest.raises(ShapeError, match=words):
        birl.ope.evaluate(algorithm, second, gamma=0.9)
    with pytest.raises(ShapeError, match=words):
        create_infinite_replay_buffer(episodes=[first.episodes[0], second.episodes[0]])
    with pytest.raises(ShapeError, match=words):
        first.append_episode(second.episodes[0])
    with pytest.raises(ShapeError, match=words):
        MixedReplayBuffer(first, second, 0.5)
    algorithm.build_with_dataset(dataset(VALUES))  # arrays have no names
    assert algorithm.columns == {"observation": ("x", "y", "z")}
    later = built(dataset(VALUES))
    later.build_with_dataset(second)
    assert later.columns == {"observation": ("z", "y", "x")}


def test_parts_and_masks_have_their_own_columns(table: Any) -> None:
    data = dataset({"a": table(), "b": VALUES, "c": table("zx")})
    assert data.dataset_info.columns == {"observation.a": ("x", "y", "z"), "observation.c": ("z", "x")}
    algorithm = built(data)
    right = algorithm.action_values({"a": VALUES, "b": VALUES, "c": VALUES[:, [2, 0]]})
    np.testing.assert_array_equal(algorithm.action_values({"c": table("xz"), "b": VALUES, "a": table("yxz")}), right)
    masks = np.ones((N, 2))
    masked = dataset(table(), action_masks=masks)
    assert masked.dataset_info.columns == {"observation.observation": ("x", "y", "z")}
    algorithm = built(masked)
    right, found = (algorithm.action_values({"observation": x, "action_mask": masks}) for x in (VALUES, table("zxy")))
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_lists(kind: str) -> None:
    lists = {"v": VALUES[:, :2], "z": VALUES[:, 2]}
    algorithm = built(dataset(KINDS[kind](lists)))
    assert algorithm.columns == {"observation": ("v[0]", "v[1]", "z")}
    columns = {"v[1]": VALUES[:, 1], "z": VALUES[:, 2], "v[0]": VALUES[:, 0]}
    for given in (dict(reversed(lists.items())), columns):
        np.testing.assert_array_equal(algorithm.action_values(KINDS[kind](given)), algorithm.action_values(VALUES))
    with pytest.raises(ShapeError, match=r"also has v\[2\]"):
        algorithm.predict(KINDS[kind]({"z": VALUES[:, 2], "v": VALUES}))


def test_tables_without_names_are_read_by_position() -> None:
    numbered = PandasFrame(dict(enumerate(VALUES.T)))
    assert column_names(numbered) == column_names(VALUES) == column_names(VALUES.tolist()) == ()
    algorithm = built(dataset(pandas_table()))
    np.testing.assert_array_equal(algorithm.action_values(numbered), algorithm.action_values(VALUES))
    assert order_columns("x", VALUES, ("b", "a", "c")) is VALUES
    assert dataset(numbered).dataset_info.columns == {}


def test_logs_name_the_columns(tmp_path: Path) -> None:
    schema = LogSchema.parse(
        """
        episode = "episode"
        time = "time"
        terminated = "end"
        [action]
        column = "action"
        kind = "discrete"
        values = [0, 1]
        [reward]
        column = "reward"
        [[observation]]
        column = "x"
        [[observation]]
        column = "y"
        """
    )
    rows = np.arange(N)
    columns = {"x": VALUES[:, 0], "y": VALUES[:, 1], "action": ACTIONS, "reward": np.zeros(N)}
    columns |= {"episode": rows // 4, "time": rows, "end": rows % 4 == 3}
    data = from_table(columns, schema, storage=tmp_path / "logs")
    data.close()
    data = ReplayBuffer.open(tmp_path / "logs")
    assert data.dataset_info.columns == {"observation": ("x", "y"), "action": ("action",)}
    algorithm = built(create_infinite_replay_buffer(episodes=data.episodes[:5]))
    table = pa.table({"y": VALUES[:, 1], "x": VALUES[:, 0]})
    np.testing.assert_array_equal(algorithm.action_values(table), algorithm.action_values(VALUES[:, :2]))


def test_exports_name_the_columns(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import json

    schema = built(dataset(pandas_table())).export(tmp_path / "policy.onnx")
    columns = json.loads(schema.read_text())["inputs"][0]["columns"]
    assert [each["column"] for each in columns] == ["x", "y", "z"]


def test_wrong_columns_in_files_are_refused(tmp_path: Path) -> None:
    folder = create_infinite_replay_buffer(episodes=dataset(pandas_table()).episodes, storage=tmp_path / "folder")
    folder.close()
    (index,) = [path for path in (tmp_path / "folder").iterdir() if b'"birl-storage"' in path.read_bytes()]
    index.write_text(index.read_text().replace('["x", "y", "z"]', '[1, "y", "z"]'))
    with pytest.raises(CorruptFileError):
        ReplayBuffer.open(tmp_path / "folder")


def test_columns_with_the_same_name_are_refused() -> None:
    twice: Any = pa.table([np.arange(4.0), np.arange(4.0) + 1, np.arange(4.0)], names=["a", "b", "a"])
    rows, ends = np.zeros((4, 3)), np.arange(4) == 3
    with pytest.raises(ShapeError, match="observations is a table with 2 columns 'a'; names must be different"):
        MDPDataset(twice, rows, np.zeros(4), ends)
    with pytest.raises(ShapeError, match="actions is a table with 2 columns 'a'; names must be different"):
        MDPDataset(rows, twice, np.zeros(4), ends)
