"""What observations are: choices as one-hot vectors, parts by name, and what files keep of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from birl.dataset import Episode, InfiniteBuffer, MDPDataset, ReplayBuffer, create_infinite_replay_buffer
from birl.errors import ConfigError, EnvironmentMismatchError, ShapeError
from birl.spaces import Discrete
from birl.spaces.observations import (
    Choices,
    Numbers,
    accepts_observations,
    choices_to_json,
    infer_observations,
    leaf_spaces,
    match_parts,
    observations_from_json,
    observations_from_spaces,
    parse_observations,
    select_parts,
    shapes_of,
    widen_observations,
)
from birl.spaces.specs import Spec
from birl.types import tree_map

MIXED: Any = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (6, 6, 3), np.uint8),
        "gear": spaces.Discrete(4, start=-1),
        "robot": spaces.Dict({"arms": spaces.MultiDiscrete([2, 3]), "switches": spaces.MultiBinary(3)}),
        "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, ()))),
    }
)


def test_choices_are_read_as_one_hot_vectors() -> None:
    gear, arms = Choices((4,), (-1,)), Choices((2, 3), (0, 1), (2,))
    assert gear.as_input(torch.tensor([-1, 2])).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert arms.as_input(torch.tensor([[[1, 3]]], dtype=torch.uint8)).tolist() == [[[0, 1, 0, 0, 1]]]
    assert arms.as_input(torch.tensor([0.0, 1.0])).tolist() == [1, 0, 1, 0, 0]
    assert gear.as_input(torch.tensor([3])).tolist() == [[0, 0, 0, 0]]  # none of them
    assert [gear.first_outside(np.array(row)) for row in ([-1, 2], [0, 3], [-2], [0.5])] == [None, 1, 0, 0]
    assert arms.first_outside(np.array([[1, 3], [0, 0]])) == 1
    assert sorted(set(gear.example(64, torch.device("cpu")).tolist())) == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    "wrong", [((0,),), ((2, 3),), ((2,), (0, 1)), ((2.0,),), ((2,), (0,), (2,)), ((2_000_000,),), ((True,), (0.5,))]
)
def test_impossible_choices_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="choices have the sizes"):
        Choices(*wrong)


def test_spaces_shapes_and_files_describe_the_same_observations() -> None:
    own = parse_observations(MIXED)
    assert str(own["gear"]) == "Discrete(4, start=-1)" and str(own["robot"]["arms"]) == "MultiDiscrete([2, 3])"
    assert own["pair"] == (Choices((5,)), Numbers(()))
    assert own["robot"]["switches"] == Numbers((3,))  # zeros and ones are one-hot already
    spec = Spec(MIXED, Discrete(2))
    assert spec.observation_shape["robot"] == {"arms": (5,), "switches": (3,)}
    assert spec.observation_shape["pair"] == ((5,), ()) and spec.data_shape["pair"] == ((), ())
    assert parse_observations(own) == observations_from_json(shapes_of(own), choices_to_json(own)) == own
    assert observations_from_json([[3], [2, 2]], None) == (Numbers((3,)), Numbers((2, 2)))
    for choices in ([None], [[[2], [0]]], [[[3], [0]], "x"], [[[3]], None], 5):
        with pytest.raises(ConfigError, match="choices"):
            observations_from_json([[3], [2]], choices)
    with pytest.raises(ConfigError, match=r"is not a shape: .*gymnasium.spaces.Discrete\(16\)"):
        parse_observations("Discrete(3)")


def test_parts_are_chosen_by_name_in_the_order_of_the_tree() -> None:
    tree = {"b": 1, "a": {"c": 2, "d": 3}, "t": (4, (5, 6))}
    assert list(select_parts(tree, ["a", "b"])) == ["b", "a"]
    assert select_parts(tree, ("a.d", "t.1")) == {"a": {"d": 3}, "t": {"1": (5, 6)}}
    assert select_parts(tree, ("t.0", "t.1")) == {"t": (4, (5, 6))}
    assert select_parts(tree, None) is tree
    some = select_parts(tree, ("t.1.0",))
    assert some == select_parts(some, ("t.1.0",)) == match_parts(some, tree) == {"t": {"1": {"0": 5}}}
    assert match_parts({"a": 0, "b": 0}, {"b": 1, "c": 3, "a": 2}) == {"a": 2, "b": 1}
    assert match_parts((0, 0), [1, 2]) == (1, 2)
    for given, says in (({"a": 1}, "has the parts a; it must have a, b"), (7, "no parts, but is int")):
        with pytest.raises(ShapeError, match=says):
            match_parts({"a": 0, "b": 0}, given)
    with pytest.raises(ShapeError, match="must have 0, 1"):
        match_parts((0, 0), (1, 2, 3))
    for keys in ("b", [], [3], 4):
        with pytest.raises(ConfigError, match="must list names of parts"):
            select_parts(tree, keys)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"names 'x', which is not a part .* are 'b', 'a.c', 'a.d', 't.0', 't.1.0'"):
        select_parts(tree, ["b", "x"])
    with pytest.raises(ConfigError, match="a single array"):
        select_parts(1, ["b"])


def test_masks_of_actions_are_always_kept() -> None:
    tree = {"b": 1, "action_mask": 2, "c": {"action_mask": 3, "d": 4}}
    assert select_parts(tree, ["b"]) == select_parts(tree, ["action_mask", "b"]) == {"b": 1, "action_mask": 2}
    assert select_parts(tree, ["c.d"]) == {"action_mask": 2, "c": {"d": 4}}


def test_what_cannot_be_read_is_named_with_the_option_that_leaves_it_out() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Tuple((spaces.Text(5), spaces.Discrete(3)))})
    with pytest.raises(EnvironmentMismatchError, match=r"'b.0' of the .* is Text.*observation_keys=\('a', 'b.1'"):
        observations_from_spaces(leaf_spaces(space))
    assert observations_from_spaces(select_parts(leaf_spaces(space), ["a", "b.1"]))["b"] == {"1": Choices((3,))}
    for odd in (spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"m": spaces.Text(3)})):
        with pytest.raises(EnvironmentMismatchError, match="TransformObservation"):
            observations_from_spaces(leaf_spaces(odd))


def test_networks_read_what_fits() -> None:
    own = parse_observations({"a": spaces.Discrete(4), "b": (2,)})
    assert accepts_observations(own, parse_observations({"c": (1,), "b": (2,), "a": spaces.Discrete(3)}))
    assert not accepts_observations(own, parse_observations({"b": (2,), "a": spaces.Discrete(5)}))
    assert not accepts_observations(own, parse_observations({"b": (2,), "a": spaces.Discrete(4, start=1)}))
    assert not accepts_observations(own, parse_observations({"b": (2,), "a": ()}))
    assert not accepts_observations(own, parse_observations({"a": spaces.Discrete(4)}))
    assert not accepts_observations(own, Numbers((2,))) and not accepts_observations(Numbers((2,)), own)
    assert accepts_observations(
        Numbers((2,)), parse_observations(spaces.MultiDiscrete([3, 3]))
    )  # as quantities, if one says so
    assert widen_observations(Choices((3,)), Choices((2,), (4,))) == Choices((6,))
    assert widen_observations(Choices((3,)), Numbers(())) == Numbers(())


def test_single_whole_numbers_are_choices() -> None:
    seen = infer_observations({"a": np.array([2, 0]), "b": np.array([2.0, 0.0]), "c": np.array([[1], [3]])})
    assert seen == {"a": Choices((3,)), "b": Numbers(()), "c": Numbers((1,))}
    for wrong in ([-1, 0], [0, 5_000_000]):
        with pytest.raises(ShapeError, match=r"'a' are integers from .* Give floats .* or describe them with"):
            infer_observations({"a": np.array(wrong)})
    with pytest.raises(ShapeError, match=r"observations 4 at step 1 is not in Discrete\(4\)"):
        infer_observations(np.array([0, 4]), spaces.Discrete(4))
    with pytest.raises(ShapeError, match=r"have the shapes one array \(2,\); .* has Discrete\(4\)"):
        infer_observations(np.zeros((3, 2)), spaces.Discrete(4))


def data(observations: Any, **options: Any) -> MDPDataset:
    count = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
    ends = np.arange(count) == count - 1
    return MDPDataset(observations, np.zeros(count, np.int64), np.ones(count), 0 * ends, ends, **options)


def test_datasets_keep_what_observations_are(tmp_path: Any) -> None:
    states = np.array([3, 1, 0, 2], np.int16)
    space = {"s": spaces.Discrete(9), "x": (2,)}
    dataset = data({"s": states, "x": np.zeros((4, 2), np.float32)}, observation_space=space)
    own = {"s": Choices((9,)), "x": Numbers((2,))}
    assert dataset.dataset_info.observations == own and dataset.storage.leaves["observation.s"].dtype == np.int16
    dataset.dump(tmp_path / "data.h5")
    loaded = ReplayBuffer.load(tmp_path / "data.h5")
    assert loaded.dataset_info.observations == own
    folder = data(states, storage=tmp_path / "folder")
    assert folder.dataset_info.observations == Choices((4,))
    assert ReplayBuffer.open(tmp_path / "folder").dataset_info.observations == Choices((4,))
    quantities = data(states, observation_space=())
    quantities.dump(tmp_path / "quantities.h5")
    assert ReplayBuffer.load(tmp_path / "quantities.h5").dataset_info.observations == Numbers(())
    last = data(states, next_observations=np.array([1, 0, 2, 7], np.int16))
    assert last.dataset_info.observations == Choices((8,))  # the last of them ends the episode
    assert ReplayBuffer(InfiniteBuffer(), episodes=last.episodes).dataset_info.observations == Choices((8,))
    with pytest.raises(ShapeError, match=r"observation 9 at step 0 is not in Discrete\(8\)"):
        last.append(9, 0, 0.0)
    with pytest.raises(ShapeError, match=r"observations\['m'\] is <U2, text.*observation_keys"):
        data({"m": np.array(["go", "no"]), "x": np.zeros((2, 1))})
    some = data({"m": np.array(["go", "no"]), "x": np.zeros((2, 1))}, observation_keys=["x"])
    assert some.observation_shape == {"x": (1,)}


def test_the_parts_of_a_space_are_found_by_name_whatever_their_order(tmp_path: Any) -> None:
    """Spaces of Gymnasium sort the parts of dicts, logs need not; files keep choices in the order of the data."""
    space = spaces.Dict({"z": spaces.Discrete(9), "x": spaces.Discrete(4, start=1), "b": spaces.Box(0, 9, (2,))})
    states = {"z": np.array([8, 0]), "x": np.array([1, 4]), "b": np.zeros((2, 2), np.float32)}
    dataset = data(states, observation_space=space)
    dataset.dump(tmp_path / "data.h5")
    again = ReplayBuffer(InfiniteBuffer(), episodes=dataset.episodes, observation_space=space)
    data(states, observation_space=space, storage=tmp_path / "folder").close()
    own = {"z": Choices((9,)), "x": Choices((4,), (1,)), "b": Numbers((2,))}
    loaded = ReplayBuffer.load(tmp_path / "data.h5"), ReplayBuffer.open(tmp_path / "folder")
    for each in (dataset, again, *loaded):
        assert list(each.dataset_info.observations.items()) == list(own.items())
        assert each.episodes[0].observations["z"].tolist() == [8, 0]


def test_parts_that_are_left_out_need_not_be_readable() -> None:
    space = spaces.Dict({"m": spaces.Text(5), "x": spaces.Discrete(4), "y": spaces.Discrete(3)})
    steps = {"m": np.array(["go", "no"]), "x": np.array([0, 2]), "y": np.array([0, 1])}
    own = {"x": Choices((4,)), "y": Choices((3,))}
    some = {"observation_space": space, "observation_keys": ("x", "y")}
    assert data(steps, **some).dataset_info.observations == own
    assert data({"x": steps["x"], "y": steps["y"]}, **some).dataset_info.observations == own
    masked = data(steps, **some, action_masks=np.ones((2, 3))).dataset_info.observations
    assert masked == {**own, "action_mask": Numbers((3,))}
    declared = {"x": spaces.Discrete(4), "y": spaces.Discrete(3), "m": spaces.Text(5)}
    assert data(steps, observation_space=declared, observation_keys=["x"]).dataset_info.observations == {
        "x": Choices((4,))
    }
    with pytest.raises(ConfigError, match="'m' of the observation is Text"):
        data({"x": steps["x"]}, observation_space=space)


def test_buffers_of_environments_store_the_parts_that_are_named() -> None:
    import gymnasium

    class Declared(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = spaces.Dict({"x": spaces.Discrete(3), "mission": spaces.Text(5)})
        action_space = spaces.Discrete(2)

    with pytest.raises(EnvironmentMismatchError, match="'mission' of the observation is Text"):
        create_infinite_replay_buffer(env=Declared())
    buffer = create_infinite_replay_buffer(env=Declared(), observation_keys=("x",))
    buffer.append({"x": np.int64(2), "mission": "go"}, 1, 0.5)
    buffer.clip_episode(True)
    assert buffer.episodes[0].observations["x"].tolist() == [2]
    assert buffer.dataset_info.observations == {"x": Choices((3,))}
    with pytest.raises(ConfigError, match="episodes are stored whole"):
        create_infinite_replay_buffer(buffer.episodes, observation_keys=("x",))


@pytest.mark.parametrize("parts", [{"a.b": 1, "a": {"b": 2}}, {"a.1": 1, "a": (2, 3)}, {"0": 1, 0: 2}])
def test_parts_of_the_same_name_are_refused(parts: Any) -> None:
    steps = tree_map(lambda value: np.full((2, 3), value), parts)
    message = "2 parts of the observations have the name .* rename"
    with pytest.raises(ShapeError, match=message):
        data(steps)
    with pytest.raises(ShapeError, match=message):
        ReplayBuffer(InfiniteBuffer(), episodes=[Episode(steps, np.zeros((2, 1), int), np.zeros((2, 1)), True)])
    with pytest.raises(ShapeError, match=message):
        Spec(tree_map(lambda value: (3,), parts), Discrete(2))
