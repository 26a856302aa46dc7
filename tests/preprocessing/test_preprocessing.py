"""Scalers: hand-computed maps, exact ways back, fits, JSON, and life inside compiled and exported code."""

from __future__ import annotations

import copy
import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from birl.algorithm import load_learnable
from birl.algos import DQNConfig
from birl.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    Episode,
    FrameStackTransitionPicker,
    MDPDataset,
    MultiStepTransitionPicker,
)
from birl.errors import ConfigError, EmptyDataError, NonFiniteError, NotBuiltError, ShapeError, UnsupportedError
from birl.files.serializable import decode, encode
from birl.preprocessing import (
    ActionScaler,
    ClipRewardScaler,
    ConstantShiftRewardScaler,
    DictObservationScaler,
    MinMaxActionScaler,
    MinMaxObservationScaler,
    MinMaxRewardScaler,
    MultiplyRewardScaler,
    ObservationScaler,
    PixelObservationScaler,
    ReturnBasedRewardScaler,
    RewardScaler,
    RunningObservationScaler,
    Scaler,
    StandardObservationScaler,
    StandardRewardScaler,
    TupleObservationScaler,
    register_action_scaler,
    register_observation_scaler,
    register_reward_scaler,
)
from birl.preprocessing.base import row_statistics


def episode(observations: Any = ((0.0,),), actions: Any = ((0.0,),), rewards: Any = (0.0,)) -> Any:
    return SimpleNamespace(
        observations=np.array(observations, np.float32),
        actions=np.array(actions, np.float32),
        rewards=np.array(rewards, np.float32),
    )


# ----------------------------------------------------------------------- the maps, in numbers from hand

MAPS: list[tuple[Scaler, list[float], list[float]]] = [
    (PixelObservationScaler(), [0, 51, 255], [0, 0.2, 1]),
    (MinMaxObservationScaler([0.0, -1.0], [10.0, 3.0]), [5, 3], [0, 1]),
    (StandardObservationScaler([1.0, 2.0], [0.5, 3.0], eps=0.5), [2, 9], [1, 2]),
    (MinMaxActionScaler([-2.0, 0.0], [2.0, 1.0]), [1, 0.25], [0.5, -0.5]),
    (MinMaxRewardScaler(minimum=-1.0, maximum=3.0, multiplier=2.0), [-1, 1, 3], [0, 1, 2]),
    (StandardRewardScaler(mean=1.0, std=1.5, eps=0.5, multiplier=4.0), [1, 2], [0, 2]),
    (MultiplyRewardScaler(3.0), [1, -2], [3, -6]),
    (ReturnBasedRewardScaler(return_max=9.0, return_min=-1.0, multiplier=1000.0), [1, -2], [100, -200]),
    (ConstantShiftRewardScaler(shift=-1.0, multiplier=2.0), [3], [4]),
    (ConstantShiftRewardScaler(shift=-1.0, multiplier=2.0, multiply_first=True), [3], [5]),
]


@pytest.mark.parametrize(("scaler", "x", "y"), MAPS, ids=lambda value: getattr(value, "get_type", str)())
def test_maps_both_ways(scaler: Scaler, x: list[float], y: list[float]) -> None:
    given, expected = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    torch.testing.assert_close(scaler.transform(given), expected)
    torch.testing.assert_close(scaler.reverse_transform(expected).float(), given)
    np.testing.assert_allclose(scaler.transform_numpy(given.numpy()), expected, rtol=1e-6)
    np.testing.assert_allclose(scaler.reverse_transform_numpy(expected.numpy()), given, rtol=1e-6)
    # Any leading dimensions; the input stays as it is.
    batch = given.expand(4, 3, -1).contiguous()
    before = batch.clone()
    torch.testing.assert_close(scaler.transform(batch), expected.expand(4, 3, -1))
    assert torch.equal(batch, before)


def test_clipping() -> None:
    x = torch.tensor([-5.0, 0.5, 5.0])
    assert ClipRewardScaler(low=-1.0, high=1.0, multiplier=2.0).transform(x).tolist() == [-2, 1, 2]
    assert ClipRewardScaler(high=1.0).transform(x).tolist() == [-5, 0.5, 1]
    assert ClipRewardScaler().transform(x).tolist() == x.tolist()
    assert ClipRewardScaler(low=-1.0, high=1.0, multiplier=2.0).reverse_transform(torch.tensor([2.0])).tolist() == [1]


def test_pixels_stay_bytes_until_here_and_come_back_rounded() -> None:
    scaler = PixelObservationScaler()
    every = torch.arange(256, dtype=torch.uint8)
    scaled = scaler.transform(every)
    assert scaled.dtype == torch.float32 and scaled.max() == 1
    assert torch.equal(scaler.reverse_transform(scaled), every)
    tree = scaler.transform({"left": every, "right": (every,)})
    assert torch.equal(tree["right"][0], scaled)


@pytest.mark.parametrize(("scaler", "x", "_"), MAPS, ids=lambda value: getattr(value, "get_type", str)())
def test_dtypes(scaler: Scaler, x: list[float], _: list[float]) -> None:
    for dtype in (torch.uint8, torch.int64, torch.float16, torch.float32):
        assert scaler.transform(torch.tensor(x).abs().to(dtype)).dtype == torch.float32
    assert scaler.transform(torch.tensor(x, dtype=torch.float64)).dtype == torch.float64


# ------------------------------------------------------------------------------------- constant features


@pytest.mark.parametrize("value", [0.0, 7.0, -1e-20, 1e30, 3e38])
def test_constant_features_are_finite(value: float) -> None:
    x = torch.tensor([[value]])
    for scaler in (MinMaxObservationScaler(), StandardObservationScaler(), MinMaxActionScaler()):
        data = [episode(observations=[[value]] * 3, actions=[[value]] * 3)]
        scaler.fit_with_episodes(data)
        assert scaler.transform(x).abs().item() < 1e-3
        torch.testing.assert_close(scaler.reverse_transform(scaler.transform(x)), x)
    for reward_scaler in (MinMaxRewardScaler(), StandardRewardScaler(), ReturnBasedRewardScaler()):
        reward_scaler.fit_with_episodes([episode(rewards=[value])] * 2)
        assert torch.isfinite(reward_scaler.transform(x)).all()


def test_a_spread_below_the_resolution_of_float32_is_constant() -> None:
    scaler = MinMaxObservationScaler([7.0], [7.0 + 1e-8])
    next_above = np.nextafter(np.float32([7]), np.float32(8))
    assert abs(scaler.transform_numpy(next_above)[0]) < 1e-3


def test_a_constant_action_stays_constant_whatever_the_policy_says() -> None:
    scaler = MinMaxActionScaler([0.25, -1.0], [0.25, 1.0])
    action = scaler.reverse_transform(torch.tensor([[-1.0, -1.0], [0.3, 0.5], [1.0, 1.0]]))
    assert action.tolist() == [[0.25, -1.0], [0.25, 0.5], [0.25, 1.0]]


def test_tiny_features_are_not_constant() -> None:
    scaler = MinMaxObservationScaler([-1e-12], [1e-12])
    assert scaler.transform(torch.tensor([5e-13])).item() == pytest.approx(0.5)


@given(
    hnp.arrays(np.float32, (2, 4), elements=st.floats(-(2.0**99), 2.0**99, width=32)),
    hnp.arrays(np.float32, (5, 4), elements=st.floats(-1, 1, width=32)),
)
@settings(max_examples=100, deadline=None)
def test_actions_never_leave_their_bounds(bounds: Any, policy: Any) -> None:
    low, high = bounds.min(0), bounds.max(0)
    action = MinMaxActionScaler(low, high).reverse_transform_numpy(policy)
    assert (action >= low).all() and (action <= high).all()
    assert np.array_equal(MinMaxActionScaler(low, high).reverse_transform_numpy(np.float32([[-1] * 4]))[0], low)


# ------------------------------------------------------------------------------------------------ fitting


def test_fit_from_episodes() -> None:
    data = [episode([[0.0], [2.0]], [[5.0], [1.0]], [1.0, 2.0]), episode([[7.0]], [[-3.0]], [-9.0])]
    values = np.array([0.0, 2.0, 7.0])
    standard, bounds, action = StandardObservationScaler(), MinMaxObservationScaler(), MinMaxActionScaler()
    reward, standard_reward, returns = MinMaxRewardScaler(), StandardRewardScaler(), ReturnBasedRewardScaler()
    for scaler in (standard, bounds, action, reward, standard_reward, returns):
        assert not scaler.built
        scaler.fit_with_episodes(iter(data))  # one pass
        assert scaler.built
    assert standard.mean == pytest.approx(values.mean()) and standard.std == pytest.approx(values.std())
    assert (bounds.minimum, bounds.maximum) == (0, 7) and (action.minimum, action.maximum) == (-3, 5)
    assert (reward.minimum, reward.maximum) == (-9, 2)
    assert standard_reward.mean == pytest.approx(-2) and standard_reward.std == pytest.approx(np.std([1, 2, -9]))
    assert (returns.return_min, returns.return_max) == (-9, 3)


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=4), st.floats(-1e4, 1e4), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_streamed_statistics_equal_those_of_all_rows(lengths: list[int], offset: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(offset, 1.0, (length, 2)) for length in lengths]
    rows = np.concatenate(arrays)
    statistics = row_statistics(arrays)
    assert statistics.count == len(rows)
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(statistics.std, rows.std(0), rtol=1e-9, atol=1e-9)
    assert np.array_equal(statistics.minimum, rows.min(0)) and np.array_equal(statistics.maximum, rows.max(0))


def test_fit_with_a_dataset() -> None:
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(20, 3)).astype(np.float32)
    actions, rewards = generator.normal(size=(20, 2)).astype(np.float32), generator.normal(size=20)
    dataset = MDPDataset(observations, actions, rewards, np.arange(20) % 5 == 4)
    scaler, reward_scaler = StandardObservationScaler(), ReturnBasedRewardScaler()
    scaler.fit_with_dataset(dataset)
    reward_scaler.fit_with_dataset(dataset)
    np.testing.assert_allclose(scaler.mean, observations.mean(0), rtol=1e-5)
    assert scaler.transform(torch.from_numpy(observations)).std(0, correction=0).tolist() == pytest.approx(
        [1] * 3, 0.01
    )
    returns = rewards.reshape(4, 5).sum(1)
    assert reward_scaler.return_max == pytest.approx(returns.max(), 1e-5)


def test_pixels_are_summed_without_overflow() -> None:
    frames = np.full((3000, 1, 2, 2), 200, np.uint8)
    scaler = StandardObservationScaler()
    scaler.fit_with_episodes([SimpleNamespace(observations=frames)])
    assert scaler.mean.shape == (1, 2, 2) and (scaler.mean == 200).all() and (scaler.std == 0).all()


def test_data_larger_than_memory_are_gone_through_piece_by_piece(tmp_path: Any) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2500, 64, 64)).astype(np.uint8)
    ends = np.arange(2500) % 1250 == 1249
    dataset = MDPDataset(frames, np.zeros(2500, int), np.arange(2500), ends, storage=tmp_path / "rows")
    scaler, rewards = StandardObservationScaler(), StandardRewardScaler()
    tracemalloc.start()
    scaler.fit_with_dataset(dataset)
    rewards.fit_with_dataset(dataset)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < frames.nbytes * 8 / 2  # of float64, less than half of what is there
    np.testing.assert_allclose(scaler.mean, frames.mean(0), rtol=1e-9)
    np.testing.assert_allclose(scaler.std, frames.std(0), rtol=1e-9)
    assert rewards.mean == pytest.approx(1249.5)


def test_fit_with_an_environment() -> None:
    box = gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([1, 4]))
    single = SimpleNamespace(observation_space=box, action_space=box)
    many = SimpleNamespace(
        single_observation_space=box, single_action_space=box, observation_space=None, action_space=None
    )
    for env in (single, many):
        for scaler in (MinMaxActionScaler(), MinMaxObservationScaler()):
            scaler.fit_with_env(env)
            assert scaler.minimum.tolist() == [-1, 0] and scaler.maximum.tolist() == [1, 4]
    with pytest.raises(UnsupportedError, match="cannot be fitted with an environment.*fit it with data.*RunningObs"):
        StandardObservationScaler().fit_with_env(single)
    PixelObservationScaler().fit_with_env(single)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-np.inf, 1, (2,)),
        gymnasium.spaces.Box(np.float32([-1, -1]), np.float32([1, np.finfo(np.float32).max])),
        gymnasium.spaces.Discrete(3),
    ],
)
def test_an_environment_without_bounds(space: Any) -> None:
    with pytest.raises(ConfigError, match="box with finite bounds"):
        MinMaxActionScaler().fit_with_env(SimpleNamespace(action_space=space))


def test_data_that_cannot_be_fitted() -> None:
    scalers = (StandardObservationScaler, MinMaxActionScaler, MinMaxRewardScaler, ReturnBasedRewardScaler)
    for scaler in scalers:
        with pytest.raises(EmptyDataError):
            scaler().fit_with_episodes([])
    with pytest.raises(NonFiniteError):
        StandardObservationScaler().fit_with_episodes([episode([[np.nan]])])
    with pytest.raises(NonFiniteError):
        StandardRewardScaler().fit_with_episodes([episode(rewards=[np.inf])])
    with pytest.raises(ShapeError, match=r"\(2,\).*\(1,\)"):
        MinMaxObservationScaler().fit_with_episodes([episode([[0.0]]), episode([[0.0, 1.0]])])
    with pytest.raises(UnsupportedError, match="tuples or dicts"):
        MinMaxObservationScaler().fit_with_episodes([SimpleNamespace(observations=(np.zeros((2, 1)),))])


# ----------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    "scaler",
    [
        MinMaxObservationScaler(),
        StandardObservationScaler(),
        MinMaxActionScaler(),
        MinMaxRewardScaler(),
        StandardRewardScaler(),
        ReturnBasedRewardScaler(),
    ],
)
def test_scalers_that_are_not_fitted(scaler: Scaler) -> None:
    for method in (scaler.transform, scaler.reverse_transform):
        with pytest.raises(NotBuiltError, match="fit it"):
            method(torch.zeros(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinMaxObservationScaler(minimum=[0.0]), "together"),
        (lambda: MinMaxActionScaler([0.0], [1.0, 2.0]), "shape"),
        (lambda: MinMaxActionScaler([2.0], [1.0]), r"minimum is \[2.\]; it must be <= maximum, which is \[1.\]"),
        (lambda: MinMaxActionScaler([np.nan], [1.0]), r"minimum is \[nan\]; it must be finite everywhere"),
        (lambda: MinMaxActionScaler(["a"], [1.0]), r"minimum is \['a'\]; it must be an array of numbers"),
        (lambda: StandardObservationScaler(mean=[0.0]), "together"),
        (lambda: StandardObservationScaler([0.0], [-1.0]), r"std is \[-1.\]; it must be >= 0"),
        (lambda: StandardObservationScaler([0.0], [1.0, 1.0]), "shape"),
        (lambda: StandardObservationScaler(eps=0.0), "eps is 0.0; it must be a float > 0"),
        (lambda: MultiplyRewardScaler(0.0), "multiplier is 0"),
        (lambda: MultiplyRewardScaler(float("inf")), "multiplier is inf; it must be a finite float$"),
        (lambda: MultiplyRewardScaler("2"), "multiplier is '2'; it must be a float$"),
        (lambda: ConstantShiftRewardScaler(None), "shift is None; it must be a float$"),
        (lambda: ClipRewardScaler(low=2.0, high=1.0), "low is 2.0; it must be <= high, which is 1.0"),
        (lambda: MinMaxRewardScaler(minimum=1.0), "together"),
        (lambda: MinMaxRewardScaler(minimum=1.0, maximum=0.0), "minimum is 1.0; it must be <= maximum, which is 0.0"),
        (lambda: StandardRewardScaler(mean=1.0), "together"),
        (lambda: StandardRewardScaler(mean=1.0, std=-1.0), "std is -1.0; it must be >= 0"),
        (lambda: StandardRewardScaler(eps=0.0), "eps is 0.0; it must be a float > 0"),
        (lambda: ReturnBasedRewardScaler(return_max=1.0), "together"),
    ],
)
def test_parameters_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_values_of_another_shape() -> None:
    scaler = MinMaxObservationScaler([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    for shape in ((2,), (5, 4), ()):
        with pytest.raises(ShapeError, match=r"shape \(3,\)"):
            scaler.transform(torch.zeros(shape))


def test_frame_stacks_are_scaled_frame_by_frame() -> None:
    scaler = StandardObservationScaler(np.arange(8.0).reshape(2, 2, 2), np.ones((2, 2, 2)))
    frame = torch.randn(5, 2, 2, 2)
    stack = torch.cat([frame, frame + 1, frame - 1], dim=1)
    expected = torch.cat([scaler.transform(x) for x in (frame, frame + 1, frame - 1)], dim=1)
    torch.testing.assert_close(scaler.transform(stack), expected)


# --------------------------------------------------------------------------------- JSON, copies, equality

ALL = [scaler for scaler, _, _ in MAPS] + [
    ClipRewardScaler(low=-1.0),
    MinMaxObservationScaler(),
    StandardRewardScaler(),
    TupleObservationScaler([StandardObservationScaler([1.0], [2.0]), None, PixelObservationScaler()]),
]
KINDS = (ObservationScaler, ActionScaler, RewardScaler)


@pytest.mark.parametrize("scaler", ALL, ids=lambda scaler: type(scaler).__name__)
def test_json_there_and_back(scaler: Any) -> None:
    back = decode(json.loads(json.dumps(encode(scaler), allow_nan=False)))
    assert type(back) is type(scaler) and back == scaler and back.built == scaler.built
    kind = next(kind for kind in KINDS if isinstance(scaler, kind))
    assert kind.deserialize(json.loads(json.dumps(scaler.serialize()))) == scaler


def test_names_in_files() -> None:
    own = [sorted(name for name in kind._known if not name.startswith("test_")) for kind in KINDS]
    assert own == [
        ["dict", "min_max", "pixel", "running", "standard", "tuple"],
        ["min_max"],
        ["clip", "min_max", "multiply", "return", "running", "shift", "standard"],
    ]


def test_equality_sees_parameters_and_types() -> None:
    assert MinMaxActionScaler([0.0], [1.0]) == MinMaxActionScaler([0.0], [1.0])
    assert MinMaxActionScaler([0.0], [1.0]) != MinMaxActionScaler([0.0], [2.0])
    assert MinMaxActionScaler([0.0], [1.0]) != MinMaxObservationScaler([0.0], [1.0])


def test_copies_are_fitted_separately_and_refits_take_effect() -> None:
    scaler = MinMaxObservationScaler([0.0], [1.0])
    x = torch.tensor([1.0])
    assert scaler.transform(x).item() == 1
    other = copy.deepcopy(scaler)
    other.fit_with_episodes([episode([[0.0], [2.0]])])
    assert other.transform(x).item() == 0 and scaler.transform(x).item() == 1
    scaler.maximum = np.array([4.0])
    assert scaler.transform(x).item() == -0.5


def test_the_callers_arrays_are_not_kept() -> None:
    minimum = np.zeros(2)
    scaler = MinMaxActionScaler(minimum, np.ones(2))
    minimum[:] = -5
    assert scaler.minimum.tolist() == [0, 0]


# -------------------------------------------------------------------------------------- in other programs


@pytest.mark.parametrize("scaler", [scaler for scaler, _, _ in MAPS], ids=lambda scaler: type(scaler).__name__)
def test_compiles_in_one_graph(scaler: Any) -> None:
    x = torch.rand(3, 2)
    fresh = copy.deepcopy(scaler)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return scaler.reverse_transform(scaler.transform(x) * 0.5) * 1

    for _ in range(2):  # without and with constants that eager code has made before
        torch.compiler.reset()
        compiled = torch.compile(there_and_back, fullgraph=True, backend="eager")
        first = compiled(x)
        torch.testing.assert_close(first, there_and_back(x))
        torch.testing.assert_close(compiled(x), first)
    assert scaler == fresh


def test_gradients_flow() -> None:
    x = torch.zeros(2, requires_grad=True)
    MinMaxActionScaler([-2.0, 0.0], [2.0, 1.0]).reverse_transform(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 0.5]


# ------------------------------------------------------------------------------------- tuple observations


def pairs(**options: Any) -> MDPDataset:
    generator = np.random.default_rng(1)
    vectors, images = generator.normal(3.0, 2.0, (40, 3)), generator.integers(0, 256, (40, 1, 36, 36))
    observations = (vectors.astype(np.float32), images.astype(np.uint8))
    actions, rewards = generator.integers(0, 2, 40), generator.normal(size=40)
    return MDPDataset(observations, actions, rewards, np.arange(40) % 8 == 7, **options)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_tuples_are_fitted_part_by_part(place: str, tmp_path: Any) -> None:
    dataset = pairs(storage="memory" if place == "memory" else tmp_path / "rows")
    scaler = TupleObservationScaler([StandardObservationScaler(), MinMaxObservationScaler()])
    assert not scaler.built
    scaler.fit_with_dataset(dataset)
    assert scaler.built
    vectors = np.concatenate([episode.observations[0] for episode in dataset.episodes])
    images = np.concatenate([episode.observations[1] for episode in dataset.episodes]).astype(float)
    first, second = scaler.observation_scalers
    np.testing.assert_allclose(first.mean, vectors.mean(0), rtol=1e-6)  # type: ignore[union-attr]
    assert np.array_equal(second.maximum, images.max(0))  # type: ignore[union-attr]
    x = (torch.from_numpy(vectors[:5]), torch.from_numpy(images[:5].astype(np.uint8)))
    scaled = scaler.transform(x)
    torch.testing.assert_close(scaled[0], first.transform(x[0]))  # type: ignore[union-attr]
    assert scaled[1].abs().max() <= 1
    for back, part in zip(scaler.reverse_transform(scaled), x, strict=True):
        torch.testing.assert_close(back, part.float(), rtol=1e-4, atol=1e-3)
    again = TupleObservationScaler([StandardObservationScaler(), MinMaxObservationScaler()])
    again.fit_with_episodes(iter(dataset.episodes))
    assert again == scaler


def test_parts_that_are_fitted_or_left_alone() -> None:
    given = StandardObservationScaler([0.0] * 3, [1.0] * 3)
    scaler = TupleObservationScaler([given, None])
    assert scaler.built
    scaler.fit_with_dataset(pairs())
    assert given.mean.tolist() == [0, 0, 0]
    vector, image = scaler.transform((torch.ones(3), torch.full((1, 4, 4), 7, dtype=torch.uint8)))
    assert image.dtype == torch.float32 and image.max() == 7
    arrays = scaler.transform_numpy((np.ones(3, np.float32), np.zeros((1, 4, 4), np.uint8)))
    assert np.array_equal(arrays[0], vector.numpy())


def test_tuples_fitted_with_an_environment() -> None:
    low, high = gymnasium.spaces.Box(-1, 3, (2,)), gymnasium.spaces.Box(0, 255, (1, 2, 2), np.uint8)
    env = SimpleNamespace(observation_space=gymnasium.spaces.Tuple((low, high)))
    scaler = TupleObservationScaler([MinMaxObservationScaler(), PixelObservationScaler()])
    scaler.fit_with_env(env)
    assert scaler.observation_scalers[0].maximum.tolist() == [3, 3]  # type: ignore[union-attr]
    with pytest.raises(UnsupportedError):
        TupleObservationScaler([StandardObservationScaler(), None]).fit_with_env(env)


def test_tuples_that_do_not_fit() -> None:
    scaler = TupleObservationScaler([None, None])
    for x in (torch.zeros(2), (torch.zeros(2),), {"a": torch.zeros(2)}):
        with pytest.raises(ShapeError, match="2 scalers"):
            scaler.transform(x)
    for scalers in (PixelObservationScaler(), [MinMaxActionScaler()], [3]):
        with pytest.raises(ConfigError, match="observation_scalers"):
            TupleObservationScaler(scalers)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"one array each.*TupleObservationScaler\(\[…, …\]\)"):
        StandardObservationScaler().fit_with_dataset(pairs())


def test_dicts_need_a_scaler_for_each_part() -> None:
    observations = {"object": np.zeros((4, 2), np.float32), "camera": np.ones((4, 3), np.float32)}
    dataset = MDPDataset(observations, np.arange(4) % 2, np.zeros(4), np.arange(4) == 3)
    space = gymnasium.spaces.Dict({"object": gymnasium.spaces.Box(-1, 1), "camera": gymnasium.spaces.Box(-1, 1)})
    for kind in (StandardObservationScaler, MinMaxObservationScaler):
        with pytest.raises(UnsupportedError, match=r"DictObservationScaler\(\{'object': …, 'camera': …\}\)"):
            kind().fit_with_dataset(dataset)
    with pytest.raises(UnsupportedError, match=r"DictObservationScaler\(\{'camera': …, 'object': …\}\)"):
        MinMaxObservationScaler().fit_with_env(SimpleNamespace(observation_space=space))


@pytest.mark.parametrize("suffix", ["pt", "onnx", "pt2"])
def test_tuple_scalers_travel_into_exports(suffix: str, tmp_path: Any) -> None:
    dataset = pairs()
    scaler = TupleObservationScaler([StandardObservationScaler(), PixelObservationScaler()])
    dqn = DQNConfig(observation_scaler=scaler).create()
    dqn.build_with_dataset(dataset)
    dqn.save_policy(tmp_path / f"policy.{suffix}")  # compared with the policy before it gets its name
    assert (tmp_path / f"policy.{suffix}").exists()
    dqn.save(tmp_path / "model.d3")
    assert dqn.observation_scaler.built and not scaler.built  # the configuration was copied
    assert load_learnable(tmp_path / "model.d3").observation_scaler == dqn.observation_scaler


# ----------------------------------------------------------------------- dicts


def robot(**options: Any) -> MDPDataset:
    generator = np.random.default_rng(0)
    observations = {
        "object": (generator.normal(size=(40, 3)) * 100 + 5000).astype(np.float32),
        "camera": generator.integers(0, 255, (40, 3, 4, 4)).astype(np.uint8),
        "step": np.arange(40.0)[:, None],
    }
    rewards = generator.normal(size=40)
    return MDPDataset(observations, generator.integers(0, 2, 40), rewards, np.arange(40) % 8 == 7, **options)


def robot_scaler() -> DictObservationScaler:
    return DictObservationScaler({"camera": PixelObservationScaler(), "object": StandardObservationScaler()})


@pytest.mark.parametrize("masked", [False, True])
def test_dicts_are_fitted_part_by_part(masked: bool, tmp_path: Any) -> None:
    dataset = robot(action_masks=np.ones((40, 2))) if masked else robot()
    scaler = robot_scaler()
    algorithm = DQNConfig(observation_scaler=scaler).create()
    algorithm.build_with_dataset(dataset)
    assert algorithm.observation_scaler.built and not scaler.built
    observations = [each.observations for each in dataset.episodes]
    rows = {name: np.concatenate([each[name] for each in observations]) for name in ("object", "camera")}
    scaled = algorithm.units.observation(observations[0])
    assert list(scaled) == list(observations[0])
    expected = (rows["object"][:8] - rows["object"].mean(0)) / (rows["object"].std(0) + 1e-3)
    np.testing.assert_allclose(scaled["object"].numpy(), expected, atol=1e-3)
    np.testing.assert_allclose(scaled["camera"].numpy(), rows["camera"][:8] / 255, rtol=1e-6)
    np.testing.assert_array_equal(scaled["step"].numpy(), np.arange(8.0)[:, None])
    unscaled = algorithm.observation_scaler.reverse_transform({x: scaled[x] for x in ("object", "camera", "step")})
    np.testing.assert_allclose(unscaled["object"].numpy(), rows["object"][:8], rtol=1e-5)
    algorithm.save(tmp_path / "model.d3")
    again = load_learnable(tmp_path / "model.d3")
    assert again.observation_scaler == algorithm.observation_scaler
    np.testing.assert_array_equal(again.predict(observations[0]), algorithm.predict(observations[0]))
    algorithm.save_policy(tmp_path / "policy.onnx")  # compared with the policy before it gets its name


def test_dicts_fitted_with_an_environment_and_running_parts() -> None:
    box = gymnasium.spaces.Box(-1, 3, (2,))
    env = SimpleNamespace(observation_space=gymnasium.spaces.Dict({"a": box, "b": box}))
    scaler = DictObservationScaler({"b": MinMaxObservationScaler()})
    scaler.fit_with_env(env)
    assert scaler.observation_scalers["b"].maximum.tolist() == [3, 3]  # type: ignore[union-attr]
    moving = DictObservationScaler({"a": RunningObservationScaler(), "b": None})
    assert moving.running and not scaler.running
    moving.update({"b": np.zeros((4, 1)), "a": np.arange(4.0)[:, None]})
    assert moving.transform({"a": torch.tensor([[1.5]]), "b": torch.ones(1, 1)})["a"].item() == 0


def test_dicts_that_do_not_fit() -> None:
    for scalers in ([PixelObservationScaler()], {"a": 3}, {1: None}):
        with pytest.raises(ConfigError, match="it must be a dict of observation scalers by the names of parts"):
            DictObservationScaler(scalers)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="scalers for 'arm', observations have the parts 'object', 'camera', 'step'"):
        DQNConfig(observation_scaler=DictObservationScaler({"arm": None})).create().build_with_dataset(robot())
    with pytest.raises(ShapeError, match="observations have no names, but are tuple"):
        robot_scaler().transform((torch.zeros(2),))
    with pytest.raises(ShapeError, match="use DictObservationScaler"):
        TupleObservationScaler([None, None]).transform({"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(UnsupportedError, match=r"DictObservationScaler\(\{'object': …"):
        StandardObservationScaler().fit_with_dataset(robot())


# ----------------------------------------------------------------------- written for d3rlpy


def logged() -> list[Episode]:
    """Terminated; cut, with nothing known behind the end; cut, with a final observation."""
    generator, episodes = np.random.default_rng(0), []
    for steps, rows, terminated in ((5, 5, True), (4, 4, False), (3, 4, False)):
        draw = lambda *shape: generator.normal(size=shape).astype(np.float32)  # noqa: E731
        episodes.append(Episode(draw(rows, 2), draw(steps, 3), draw(steps), terminated, truncated=not terminated))
    return episodes


FITTED: list[tuple[Any, str, dict[str, Any]]] = [
    (MinMaxObservationScaler, "observations", {"minimum": lambda x: x.min(0), "maximum": lambda x: x.max(0)}),
    (StandardObservationScaler, "observations", {"mean": lambda x: x.mean(0), "std": lambda x: x.std(0)}),
    (MinMaxActionScaler, "actions", {"minimum": lambda x: x.min(0), "maximum": lambda x: x.max(0)}),
    (MinMaxRewardScaler, "rewards", {"minimum": np.min, "maximum": np.max}),
    (StandardRewardScaler, "rewards", {"mean": np.mean, "std": np.std}),
]


@pytest.mark.parametrize(("kind", "name", "expected"), FITTED)
def test_fits_of_d3rlpy(kind: Any, name: str, expected: dict[str, Any]) -> None:
    """With a picker the step whose next observation is unknown is no transition; with a slicer every step counts."""
    episodes = logged()
    steps = [getattr(item, name) for item in episodes]
    transitions = [getattr(item, name)[: item.transition_count] for item in episodes]
    assert sum(map(len, steps)) - sum(map(len, transitions)) == 1
    picked, sliced = kind(), kind()
    picked.fit_with_transition_picker(episodes, BasicTransitionPicker())
    sliced.fit_with_trajectory_slicer(episodes, BasicTrajectorySlicer())
    for scaler, parts in ((picked, transitions), (sliced, steps)):
        for parameter, compute in expected.items():
            np.testing.assert_allclose(getattr(scaler, parameter), compute(np.concatenate(parts)), rtol=1e-5)


def test_returns_fitted_as_d3rlpy_does() -> None:
    episodes = logged()
    scaler = ReturnBasedRewardScaler()
    scaler.fit_with_trajectory_slicer(episodes, BasicTrajectorySlicer())
    returns = [float(item.rewards.sum()) for item in episodes]
    assert (scaler.return_min, scaler.return_max) == pytest.approx((min(returns), max(returns)))
    scaler.fit_with_transition_picker(episodes, BasicTransitionPicker())
    returns = [float(item.rewards[: item.transition_count].sum()) for item in episodes]
    assert (scaler.return_min, scaler.return_max) == pytest.approx((min(returns), max(returns)))


def test_fits_are_of_what_the_picker_makes() -> None:
    frames = Episode(np.arange(1.0, 5.0)[:, None], np.zeros((4, 1)), np.array([1.0, 2.0, 4.0, 8.0]), True)
    stacked = MinMaxObservationScaler()
    stacked.fit_with_transition_picker([frames], FrameStackTransitionPicker(2))
    assert (stacked.minimum.tolist(), stacked.maximum.tolist()) == ([0, 1], [3, 4])
    rewards = MinMaxRewardScaler()
    rewards.fit_with_transition_picker([frames], MultiStepTransitionPicker(2, 0.5))
    assert (rewards.minimum, rewards.maximum) == (2, 8)
    both = TupleObservationScaler([MinMaxObservationScaler(), None])
    pair = Episode((frames.observations, frames.observations), frames.actions, frames.rewards, True)
    both.fit_with_transition_picker([pair], BasicTransitionPicker())
    first: Any = both.observation_scalers[0]
    assert (first.minimum.tolist(), first.maximum.tolist()) == ([1], [4])
    nothing = Episode(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1), False)
    with pytest.raises(EmptyDataError):
        MinMaxRewardScaler().fit_with_transition_picker([nothing], BasicTransitionPicker())
    MultiplyRewardScaler(2.0).fit_with_transition_picker([frames], BasicTransitionPicker())


class _D3rlpyScaler(ObservationScaler):
    """Fitted as d3rlpy asks for it: with pickers that know nothing of final observations."""

    largest: Any = None

    @property
    def built(self) -> bool:
        return self.largest is not None

    def fit_with_transition_picker(self, episodes: Any, transition_picker: Any) -> None:
        picked = [transition_picker(item, i) for item in episodes for i in range(item.transition_count)]
        assert all(len(one.next_action) == 3 for one in picked)
        self.largest = max(float(np.abs(one.observation).max()) for one in picked)


class _D3rlpyPicker:
    def __call__(self, episode: Any, index: int) -> Any:
        return SimpleNamespace(
            observation=episode.observations[index],
            next_observation=episode.observations[index + 1],
            next_action=episode.actions[index + 1],
        )


def test_a_scaler_written_for_d3rlpy_is_fitted() -> None:
    episodes = logged()[1:]
    scaler = _D3rlpyScaler()
    scaler.fit_with_dataset(SimpleNamespace(episodes=episodes, transition_picker=_D3rlpyPicker()))
    used = np.concatenate([item.observations[: item.transition_count] for item in episodes])
    assert scaler.largest == pytest.approx(float(np.abs(used).max()))


@pytest.mark.parametrize(
    ("register", "kind", "base"),
    [
        (register_observation_scaler, MinMaxObservationScaler, ObservationScaler),
        (register_action_scaler, MinMaxActionScaler, ActionScaler),
        (register_reward_scaler, MinMaxRewardScaler, RewardScaler),
    ],
)
def test_registering_does_no_harm(register: Any, kind: Any, base: Any) -> None:
    register(kind)
    assert type(base.deserialize(kind().serialize())) is kind
    for wrong in (dict, base, kind()):
        with pytest.raises(ConfigError, match=base.__name__):
            register(wrong)


def test_a_scaler_that_is_fitted_says_whether_it_is_built() -> None:
    with pytest.raises(ConfigError, match="Forgetful has fit_with_episodes but no property built"):

        class Forgetful(ObservationScaler, type="forgetful"):
            def fit_with_episodes(self, episodes: Any) -> None: ...

    with pytest.raises(ConfigError, match="no ObservationScaler is called"):
        ObservationScaler.named("forgetful")
