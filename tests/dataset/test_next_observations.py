"""Next observations as people have them: rounded, NaN where they do not matter, with steps left out, shuffled."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import birl
from birl.dataset import MDPDataset
from birl.errors import DataError, EpisodeCutWarning, NonFiniteError

N = 100
SCALE = np.array([1, 100, 1e6, 1e-3])
ROWS = (np.random.default_rng(0).normal(size=(N + 1, 4)) * SCALE).astype(np.float32).astype(np.float64)
BEFORE, AFTER = ROWS[:-1], ROWS[1:].copy()
LAST = np.arange(N) % 10 == 9
AFTER[LAST] += 7  # the final observations are not the first ones of the next episode
AFTER = AFTER.astype(np.float32).astype(np.float64)  # minibatches are float32


def make(before: Any = BEFORE, after: Any = AFTER, keep: Any = slice(None), **changes: Any) -> MDPDataset:
    steps = {"actions": np.arange(N) % 2, "rewards": np.arange(N), "terminals": LAST, "timeouts": np.zeros(N)}
    steps |= changes
    steps = {name: None if value is None else value[keep] for name, value in steps.items()}
    return MDPDataset(before[keep], next_observations=after[keep], action_size=2, **steps)


def transitions(dataset: MDPDataset) -> dict[float, np.ndarray]:
    """Return the next observation of each transition, by its reward."""
    batches = list(dataset.reader.all_transitions())
    return {float(r): row for b in batches for r, row in zip(b.rewards[:, 0], b.next_observations, strict=True)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE.astype(np.float32), AFTER),
        (BEFORE, AFTER.astype(np.float32)),
        (BEFORE, AFTER.astype(">f4")),
        (np.round(BEFORE / SCALE, 6) * SCALE, AFTER),
    ],
)
def test_rounding_is_no_contradiction(before: Any, after: Any) -> None:
    found = transitions(make(before, after))
    assert len(found) == N
    for step, row in found.items():
        np.testing.assert_allclose(row / SCALE, AFTER[int(step)] / SCALE, atol=2e-6)


def test_a_difference_beyond_rounding_is_seen_in_every_column() -> None:
    for column, size in enumerate([1e-4, 1e-2, 1e2, 1e-7]):
        wrong = AFTER.copy()
        wrong[33, column] += size
        with pytest.warns(EpisodeCutWarning, match=r"next_observations\[33\] is not observations\[34\]"):
            assert make(after=wrong).size() == 11


@pytest.mark.parametrize("kind", ["NaN", "masked", "None in a list"])
def test_unknown_observations_after_ends(kind: str) -> None:
    gone: Any = AFTER.copy()
    gone[LAST] = np.nan
    if kind == "masked":
        gone = np.ma.masked_array(AFTER, np.isnan(gone))
    elif kind == "None in a list":
        gone = [None if last else row for row, last in zip(AFTER, LAST, strict=True)]
    dataset = make(after=gone)
    assert dataset.transition_count == N and dataset.episodes[0].final_observation is None
    found = transitions(dataset)
    assert all((found[float(step)] == (0 if LAST[step] else AFTER[step])).all() for step in range(N))
    cut = make(after=gone, terminals=np.zeros(N), timeouts=LAST)
    assert cut.transition_count == N - 10  # as without next_observations: there is nothing to bootstrap from


def test_numbers_that_matter_must_be_known() -> None:
    partly, inside = AFTER.copy(), AFTER.copy()
    partly[9, 2] = np.nan
    with pytest.raises(NonFiniteError, match=r"next_observations\[0, 2\] is nan"):
        make(after=partly)
    inside[12] = np.nan
    with pytest.warns(EpisodeCutWarning, match=r"next_observations\[12\]"):
        assert make(after=inside).transition_count == N - 1


def test_steps_that_were_left_out_cut_episodes() -> None:
    keep = np.ones(N, bool)
    keep[[15, 55, 56]] = False
    with pytest.warns(EpisodeCutWarning, match=r"\[14\] is not .*at 1 of 86 other steps.*timeouts with 1") as caught:
        dataset = make(keep=keep)
    assert caught[0].filename == __file__
    found = transitions(dataset)
    assert dataset.size() == 12 and len(found) == 97
    for step, row in found.items():
        np.testing.assert_array_equal(row, AFTER[int(step)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = make(keep=keep, timeouts=np.isin(np.arange(N), [14, 54]))
    assert transitions(again).keys() == found.keys()
    with pytest.raises(DataError, match=r"next_observations\[14\] .* as episode_ids say"):
        make(keep=keep, episode_ids=np.arange(N) // 10)


def test_shuffled_transitions_say_what_they_are() -> None:
    order = np.random.default_rng(1).permutation(N)
    with pytest.raises(DataError, match=r"in any order, say so with timeouts=np.ones\(N\)"):
        make(keep=order)
    dataset = make(keep=order, timeouts=np.ones(N))
    for step, row in transitions(dataset).items():
        np.testing.assert_array_equal(row, AFTER[int(step)])
    with pytest.raises(DataError, match="shifted"):
        make(after=BEFORE)


def test_a_model_learns_from_data_with_unknown_observations() -> None:
    gone = AFTER.copy()
    gone[LAST] = np.nan
    algorithm = birl.algos.DQNConfig(batch_size=N, observation_scaler=birl.preprocessing.StandardObservationScaler())
    learner = algorithm.create()
    metrics = learner.fit(make(after=gone), 2, logger_adapter=birl.logging.NoopAdapterFactory(), show_progress=False)
    assert np.isfinite(metrics[-1][1]["loss"])
