"""Hindsight, against plain loops over episodes. Every state achieves a different goal, which identifies it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.algos import BCConfig
from birl.dataset import (
    Episode,
    FIFOBuffer,
    FrameStackTransitionPicker,
    HindsightSampler,
    InfiniteBuffer,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    PrioritizedSampler,
    ReplayBuffer,
)
from birl.dataset.arrays import TorchPlace
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.views import SequenceView, TailView, TransitionView
from birl.errors import BirlError, ConfigError, DataError, NonFiniteError, ShapeError, UnsupportedError
from birl.files import load_archive, save_archive
from birl.logging import NoopAdapterFactory
from tests.tiers import slow_but

FAR = -99.0  # a goal that no state achieves


def rewarded(achieved: Any, desired: Any, info: Any) -> Any:
    assert achieved.shape == desired.shape and achieved.ndim == 2 and info == {}
    return np.where(np.abs(achieved - desired)[:, 0] < 0.5, 10.0, -1.0) - 0.01 * np.where(desired > 0, desired, 0)[:, 0]


def arrived(achieved: Any, desired: Any, info: Any) -> Any:
    return np.abs(achieved - desired)[:, 0] < 0.5


def observed(number: float, goal: float = FAR) -> dict[str, Any]:
    one = np.array([number], np.float32)
    return {"observation": one, "achieved_goal": one, "desired_goal": np.array([goal], np.float32)}


def episode(index: int, steps: int, *, terminated: bool = False, final: bool = True) -> Episode:
    numbers = [observed(100 * index + step) for step in range(steps + final)]
    trees = {name: np.stack([each[name] for each in numbers]) for name in numbers[0]}
    return Episode(trees, np.zeros((steps, 1), np.float32), np.full(steps, -1.0, np.float32), terminated)


LENGTHS = (7, 3, 1, 12, 5)


def made(sampler: Any = None, picker: Any = None, limit: int = 0, **options: Any) -> ReplayBuffer:
    episodes = [episode(index + 1, steps, terminated=index % 2 == 1) for index, steps in enumerate(LENGTHS)]
    return ReplayBuffer(
        FIFOBuffer(limit) if limit else InfiniteBuffer(), picker, episodes=episodes, sampler=sampler, **options
    )


def columns(batch: Any) -> Any:
    """Own number, goal, reward, next number, its goal, terminal and interval of every element."""
    observation, following = batch.observations, batch.next_observations
    names = (observation["observation"], observation["desired_goal"], batch.rewards)
    names += (following["observation"], following["desired_goal"], batch.terminals, batch.filled().intervals)
    return np.concatenate([np.asarray(each).reshape(-1, 1) for each in names], 1).tolist()


def bounds(number: float) -> tuple[int, int]:
    """Numbers of the first and the last state of its episode."""
    first = int(number) // 100 * 100
    return first, first + LENGTHS[first // 100 - 1]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_come_from_where_the_strategy_says(strategy: str) -> None:
    buffer = made(HindsightSampler(rewarded, strategy, k=3))
    rows = [row for _ in range(40) for row in columns(buffer.reader.sample(TransitionView(), 100))]
    kept = [row for row in rows if row[1] == FAR]
    assert abs(len(kept) / len(rows) - 0.25) < 0.03
    seen: dict[float, set[float]] = {}
    for number, goal, reward, following, next_goal, terminal, _ in rows:
        first, last = bounds(number)
        assert following == number + 1 and next_goal == goal
        assert terminal == (following == last and (first // 100) % 2 == 0)
        if goal == FAR:
            assert reward == -1
        else:
            assert reward == pytest.approx((10.0 if goal == following else -1.0) - 0.01 * goal, rel=1e-5)
            seen.setdefault(number, set()).add(goal)
    assert len(seen) == sum(LENGTHS)
    for number, goals in seen.items():
        first, last = bounds(number)
        allowed = {
            "future": set(range(int(number) + 1, last + 1)), "final": {last}, "episode": set(range(first, last + 1))
        }  # fmt: skip
        assert goals == allowed[strategy]


def plain(number: float, goal: float, n_steps: int, gamma: float, ends: bool) -> tuple[float, float, int, int]:
    """The transition over several steps: reward, next number, termination and number of steps, step by step."""
    first, last = bounds(number)
    total, terminal, steps = 0.0, 0, 0
    while steps < n_steps and number < last and not terminal:
        number += 1
        reached = abs(number - goal) < 0.5
        reward = -1.0 if goal == FAR else (10.0 if reached else -1.0) - 0.01 * goal
        total += gamma**steps * reward
        steps += 1
        terminal = int(reached if ends and goal != FAR else number == last and (first // 100) % 2 == 0)
    return total, number, terminal, steps


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("n_steps", [1, 4])
@pytest.mark.parametrize("place", ["memory", "mirror", "folder", "cpu"])
def test_rewards_of_several_steps_are_for_the_new_goal(n_steps: int, ends: bool, place: str, tmp_path: Path) -> None:
    sampler = HindsightSampler(rewarded, k=2, compute_terminated=arrived if ends else None)
    where: Any = {"folder": tmp_path / "data", "cpu": "cpu"}.get(place, "memory")
    buffer = made(sampler, MultiStepTransitionPicker(n_steps, 0.9), storage=where)
    reader = buffer.reader.mirrored(TorchPlace(torch.device("cpu"))) if place == "mirror" else buffer.reader
    for _ in range(20):
        batch = reader.sample(TransitionView(), 50)
        assert isinstance(batch.rewards, torch.Tensor) == (place in ("mirror", "cpu"))
        for number, goal, reward, following, next_goal, terminal, interval in columns(batch):
            expected = plain(number, goal, n_steps, 0.9, ends)
            assert (reward, following, terminal, interval) == pytest.approx(expected, rel=1e-5) and next_goal == goal


def test_the_next_action_is_that_after_the_shortened_window() -> None:
    numbers = observed(0)
    sampler = HindsightSampler(rewarded, k=1e9, compute_terminated=arrived)
    one = episode(1, 9)
    actions = np.arange(9, dtype=np.float32)[:, None]
    buffer = ReplayBuffer(
        InfiniteBuffer(), MultiStepTransitionPicker(3, 1.0), sampler=sampler, action_size=1,
        episodes=[Episode(one.observations, actions, one.rewards, False, final_observation=one.final_observation)],
    )  # fmt: skip
    batch = buffer.sample_transition_batch(200)
    assert set(numbers) == set(batch.observations)
    steps = batch.intervals[:, 0].astype(int)
    after = (batch.observations["observation"][:, 0] - 100).astype(int) + steps
    assert set(steps) == {1, 2, 3}
    np.testing.assert_array_equal(batch.extra["next_action"][:, 0], np.where(after < 9, after, 0))


def test_a_task_that_never_ends_may_say_so_once() -> None:
    """As gymnasium-robotics' environments do; a number of numpy would be a mean over the wrong axis."""
    batch = made(HindsightSampler(rewarded, k=1e9, compute_terminated=lambda *_: False)).sample_transition_batch(50)
    assert not batch.terminals.any()
    wrong = made(HindsightSampler(rewarded, k=1e9, compute_terminated=lambda *_: np.bool_(False)))
    with pytest.raises(ShapeError, match="compute_terminated gave bool of shape"):
        wrong.sample_transition_batch(50)


@pytest.mark.parametrize("ends", [False, True])
def test_all_steps_of_a_sequence_have_one_goal(ends: bool) -> None:
    buffer = made(HindsightSampler(rewarded, k=2, compute_terminated=arrived if ends else None))
    goals = set()
    for _ in range(20):
        batch = buffer.reader.sample(SequenceView(4, burn_in=2), 30)
        for item in range(30):
            drawn = float(batch.observations["observation"][2, item, 0])
            goal = float(batch.observations["desired_goal"][2, item, 0])
            goals.add(goal)
            assert goal == FAR or drawn < goal <= bounds(drawn)[1]
            for step in range(6):
                number = float(batch.observations["observation"][step, item, 0])
                there, (begin, end) = number > 0, bounds(drawn)
                assert there == (batch.masks[step, item] == 1) == (begin <= drawn + step - 2 < end)
                reward, following, terminal, _ = plain(number, goal, 1, 1.0, ends) if there else (0.0, 0.0, 0, 0)
                assert batch.rewards[step, item, 0] == pytest.approx(reward)
                assert batch.next_observations["observation"][step, item, 0] == following
                assert batch.terminals[step, item, 0] == terminal
                for each in (batch.observations, batch.next_observations):
                    assert each["desired_goal"][step, item, 0] == (goal if there else 0)
    assert len(goals) > 10


@pytest.mark.parametrize("strategy", ["future", "episode"])
@pytest.mark.parametrize(("limit", "lanes"), slow_but([(40, 3)], [(0, 1), (0, 3), (23, 1), (40, 3)]))
def test_episodes_that_grow_run_and_are_evicted(limit: int, lanes: int, strategy: str) -> None:
    """Any order of writes: a goal was always achieved by a stored state of the same episode, or by a later one."""
    random = np.random.default_rng(limit + lanes)
    sampler = HindsightSampler(rewarded, strategy, k=1e9)
    buffer = made(sampler, limit=limit, lanes=lanes)
    names = np.full(lanes, 1000 * np.arange(10, 10 + lanes), np.float64)
    for _ in range(300):
        for lane in range(lanes):
            chance = random.random()
            if chance < 0.1:
                known = {"final_observation": observed(names[lane])} if chance < 0.05 else {}
                buffer.clip_episode(bool(random.random() < 0.5), lane=lane, **known)
                names[lane] = 1000 * (names[lane] // 1000 + lanes)
            else:
                buffer.append(observed(names[lane]), np.zeros(1, np.float32), -1.0, lane=lane)
                names[lane] += 1
        episodes = [each.observations["observation"][:, 0].tolist() for each in buffer.episodes]
        finals = [each.final_observation for each in buffer.episodes]
        following = {
            number: [*own[place + 1 :], *([] if final is None else [float(final["observation"][0])])]
            for own, final in zip(episodes, finals, strict=True) for place, number in enumerate(own)
        }  # fmt: skip
        for number, goal, *_ in columns(buffer.reader.sample(TransitionView(), 20)):
            allowed = following[number]
            if strategy == "episode" and allowed:
                allowed = allowed + next(own for own in episodes if number in own)
            assert goal in allowed or (goal == FAR and not allowed)
    assert buffer.episodes


def test_priorities_are_those_of_the_inner_sampler() -> None:
    buffer = made(HindsightSampler(rewarded, sampler=PrioritizedSampler(1.0, 0.0)))
    batch = buffer.reader.sample(TransitionView(), 200)
    batch.update_priorities(np.where(batch.observations["observation"][:, 0] == 402, 1e6, 0.0))
    again = buffer.reader.sample(TransitionView(), 40)
    assert set(again.observations["observation"][:, 0]) == {402.0}
    assert len(set(again.observations["desired_goal"][:, 0])) > 4
    fresh = made(HindsightSampler(rewarded, sampler=PrioritizedSampler(1.0, 0.0)))
    fresh.set_state(copy.deepcopy(buffer.get_state()))
    assert columns(fresh.reader.sample(TransitionView(), 9)) == columns(buffer.reader.sample(TransitionView(), 9))


def test_a_resumed_buffer_draws_the_same_goals(tmp_path: Path) -> None:
    buffer = made(HindsightSampler(rewarded))
    for _ in range(3):
        buffer.reader.sample(TransitionView(), 9)
        buffer.append(observed(5000), np.zeros(1, np.float32), -1.0)
    save_archive(tmp_path / "state", "test", {}, buffer.get_state())
    expected = [columns(buffer.reader.sample(TransitionView(), 9)) for _ in range(3)]
    again = made(HindsightSampler(rewarded))
    again.reader.sample(TransitionView(), 9)  # it knows other episodes
    again.set_state(load_archive(tmp_path / "state", "test")[1])
    assert [columns(again.reader.sample(TransitionView(), 9)) for _ in range(3)] == expected


def test_stored_steps_stay_as_they_are() -> None:
    buffer = made(HindsightSampler(rewarded))
    before = [(each.observations["desired_goal"].copy(), each.rewards.copy()) for each in buffer.episodes]
    for _ in range(5):
        buffer.reader.sample(TransitionView(), 50)
    for (goal, reward), each in zip(before, buffer.episodes, strict=True):
        np.testing.assert_array_equal(each.observations["desired_goal"], goal)
        np.testing.assert_array_equal(each.rewards, reward)


def test_each_part_of_a_mixture_is_relabelled() -> None:
    mixed = MixedReplayBuffer(made(HindsightSampler(rewarded, k=1e9)), made(), 0.5)
    goals = mixed.reader.sample(TransitionView(), 40).observations["desired_goal"][:, 0]
    assert (goals[:20] != FAR).all() and (goals[20:] == FAR).all()
    copies = made(HindsightSampler(rewarded)).reader
    joined = copies.sample(TransitionView(), 8, others=[copies.renewed()])
    rewards = [plain(number, goal, 1, 1.0, False)[0] for number, goal, *_ in columns(joined)]
    assert len(joined) == 16 and joined.rewards[:, 0].tolist() == pytest.approx(rewards)


class Owner:
    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("an environment was copied")

    def compute_reward(self, *given: Any) -> Any:
        return rewarded(*given)


def test_copies_ask_the_same_function() -> None:
    made(HindsightSampler(Owner().compute_reward)).reader.renewed().sample(TransitionView(), 4)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compute_reward": None}, "compute_reward is None"),
        ({"strategy": "past"}, "strategy is 'past'.*'future', 'final', 'episode'"),
        ({"k": 0}, "k is 0"),
        ({"compute_terminated": 3}, "compute_terminated is 3"),
        ({"sampler": 3}, "sampler is 3"),
        ({"sampler": HindsightSampler(rewarded)}, "replaced once"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_wrong_settings_are_refused(options: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        HindsightSampler(**{"compute_reward": rewarded, **options})


def test_algorithms_without_td_errors_learn_in_hindsight() -> None:
    """Only a prioritised inner sampler is refused, because imitation sets no priorities."""
    buffer = made(HindsightSampler(rewarded))
    algorithm = BCConfig(batch_size=8).create()
    algorithm.fit(buffer, n_steps=2, n_steps_per_epoch=2, show_progress=False, logger_adapter=NoopAdapterFactory())
    prioritised = made(HindsightSampler(rewarded, sampler=PrioritizedSampler()))
    with pytest.raises(UnsupportedError, match="prioritised sampler"):
        algorithm.fit(prioritised, n_steps=1, n_steps_per_epoch=1, logger_adapter=NoopAdapterFactory())


def test_data_without_goals_are_refused() -> None:
    plain_episode = Episode(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32), np.zeros(4), False)
    with pytest.raises(ConfigError, match="observations are no dict.*GoalEnv"):
        ReplayBuffer(InfiniteBuffer(), episodes=[plain_episode], sampler=HindsightSampler(rewarded))
    one = episode(1, 4)
    half = {name: value for name, value in one.observations.items() if name != "achieved_goal"}
    final = {name: one.final_observation[name] for name in half}
    halved = Episode(half, one.actions, one.rewards, False, final_observation=final)
    with pytest.raises(ConfigError, match="dict of .'desired_goal', 'observation'."):
        ReplayBuffer(InfiniteBuffer(), episodes=[halved], sampler=HindsightSampler(rewarded))
    wide = {**one.observations, "desired_goal": np.zeros((4, 2), np.float32)}
    wider = Episode(wide, one.actions, one.rewards, False)
    with pytest.raises(ShapeError, match="one shape"):
        ReplayBuffer(InfiniteBuffer(), episodes=[wider], sampler=HindsightSampler(rewarded))
    sampler = HindsightSampler(rewarded)
    with pytest.raises(UnsupportedError, match="FrameStackTransitionPicker"):
        made(sampler, FrameStackTransitionPicker(2))
    made(sampler)  # a rejected sampler is not in use


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda a, d, i: 0.0, ShapeError, "shape .. for 20 goals"),
        (lambda a, d, i: np.zeros((len(a), 2)), ShapeError, "axis=-1"),
        (lambda a, d, i: np.full(len(a), "x"), ShapeError, "numbers"),
        (lambda a, d, i: np.full(len(a), np.nan), NonFiniteError, "compute_reward gave NaN"),
        (lambda a, d, i: np.zeros(len(a)), DataError, "gives 0 for a step whose stored reward is -1"),
    ],
)
def test_functions_that_do_not_fit_are_refused(function: Any, error: type[BirlError], match: str) -> None:
    with pytest.raises(error, match=match):
        made(HindsightSampler(function)).reader.sample(TransitionView(), 20)


def test_functions_may_write_into_the_goals_that_they_are_given() -> None:
    def writing(achieved: Any, desired: Any, info: Any) -> Any:
        answer = rewarded(achieved, desired, info)
        achieved -= 1000
        return answer

    batch = made(HindsightSampler(writing, k=1e9, compute_terminated=arrived)).sample_transition_batch(200)
    reached = batch.next_observations["observation"] == batch.observations["desired_goal"]
    assert reached.any() and np.array_equal(batch.terminals != 0, reached)


def test_rounding_of_stored_states_is_no_other_task() -> None:
    """A reward that is decided by the last digit of a state may differ for a few steps."""

    def rounded(achieved: Any, desired: Any, info: Any) -> Any:
        return rewarded(achieved, desired, info) + (achieved[:, 0] == 402)

    made(HindsightSampler(rounded)).reader.sample(TransitionView(), 500)


def test_what_cannot_have_other_goals_is_refused() -> None:
    buffer = made(HindsightSampler(rewarded))
    with pytest.raises(UnsupportedError, match="goal that was pursued"):
        buffer.sample_trajectory_batch(2, 3)
    with pytest.raises(UnsupportedError, match="goal that was pursued"):
        buffer.reader.sample(TailView(), 2)
    with pytest.raises(UnsupportedError, match="goal that was pursued"):
        buffer.sample_transition_batch(2, returns=DiscountedReturns(0.9))
    with pytest.raises(UnsupportedError, match="sample a minibatch"):
        buffer.sample_transition()
