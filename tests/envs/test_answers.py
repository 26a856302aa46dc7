"""Faulty environments: dead processes, results that are no steps, endless logs; environments of other libraries."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from run.fakes import Drift

from birl.algos import ConstantEpsilonGreedy, DQNConfig
from birl.dataset import create_infinite_replay_buffer
from birl.envs import (
    ActionMask,
    AtariPreprocessing,
    ChannelFirst,
    FrameStack,
    GoalConcatWrapper,
    Stepper,
    check_environment,
    environment_spec,
    seed_env,
)
from birl.errors import EnvironmentMismatchError, ObservationRangeWarning, WorkerError
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.models import VectorEncoderFactory
from birl.spaces import Discrete
from birl.spaces.specs import Spec, convert_space, number_of_environments, single_spaces
from birl.types import tree_leaves

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def small_dqn() -> Any:
    return DQNConfig(encoder_factory=VectorEncoderFactory([8]), batch_size=8).create()


# -- processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["step", "reset", "overlap"])
def test_a_killed_worker_is_named(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a worker process is forked while torch's threads exist
        env = AsyncVectorEnv([Drift, Drift, Drift], autoreset_mode=AutoresetMode.SAME_STEP)
    stepper = Stepper(env, generator())
    action = np.zeros(3, np.int64)
    stepper.step(action)
    process = env.processes[1]
    if method == "overlap":
        os.kill(process.pid, signal.SIGSTOP)  # or it might answer before it is killed
        stepper.step_async(action)
    os.kill(process.pid, signal.SIGKILL)
    process.join(timeout=30)
    with pytest.raises(WorkerError, match=rf"environment 1 \(process id {process.pid}\) was ended by signal 9"):
        {"step": lambda: stepper.step(action), "reset": stepper.reset, "overlap": stepper.step_wait}[method]()
    for each in env.processes:
        each.join(timeout=30)
        assert not each.is_alive()
    env.close()  # does not wait for the dead


def test_other_errors_of_environments_are_passed_on() -> None:
    class Broken(Drift):
        def step(self, action: Any) -> Any:
            raise self.error

    for error in (OSError("no disk"), ValueError("mine"), TypeError("mine"), AttributeError("mine"), KeyError("mine")):
        env = Broken()
        env.error = error
        for each in (env, SyncVectorEnv([lambda env=env: env])):  # type: ignore[misc]
            stepper = Stepper(each, generator())
            with pytest.raises(type(error), match=str(error)) as raised:
                stepper.step(np.zeros(1, np.int64))
            assert raised.value is error


# -- answers ---------------------------------------------------------------------------------------------------


class Answers(Drift):
    """Returns given values."""

    answer: Any = None
    begin: Any = None

    def reset(self, **options: Any) -> Any:
        usual = super().reset(**options)
        return usual if self.begin is None else self.begin

    def step(self, action: Any) -> Any:
        return self.answer


SEEN = np.zeros(2, np.float32)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        (SEEN, 1.0, False, {}),
        (SEEN, "much", False, False, {}),
        (SEEN, np.zeros(3), False, False, {}),
        (SEEN, {}, False, False, {}),
        (np.zeros(3, np.float32), 1.0, False, False, {}),
        (SEEN, 1.0, False, False, None),
        None,
    ],
    ids=["four", "text", "array", "dict", "shape", "info", "nothing"],
)
def test_steps_that_are_none_are_refused(answer: Any, vector: bool) -> None:
    class Own(Answers):
        pass

    Own.answer = answer
    stepper = Stepper(SyncVectorEnv([Own, Own]) if vector else Own(), generator())
    with pytest.raises(EnvironmentMismatchError, match="returned"):
        stepper.step(np.zeros(stepper.n, np.int64))


@pytest.mark.parametrize("flag", ["no", None, 2, float("nan"), [], [[True], []], np.zeros(2, bool)])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_flags_are_true_or_false(name: str, flag: Any) -> None:
    env = Answers()
    flags = {"terminated": False, "truncated": False, name: flag}
    env.answer = (SEEN, 1.0, *flags.values(), {})
    with pytest.raises(EnvironmentMismatchError, match=rf"returned {name}=.*; it must be True or False"):
        Stepper(env, generator()).step(np.zeros(1, np.int64))


@pytest.mark.parametrize("flag", [True, np.True_, 1, 1.0, np.ones(1), np.ones((), bool)])
def test_flags_of_many_types(flag: Any) -> None:
    env = Answers()
    env.answer = (SEEN, 1.0, flag, flag, {})
    step = Stepper(env, generator()).step(np.zeros(1, np.int64))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])


@pytest.mark.parametrize("answer", [None, (SEEN, 1.0, False, False, None)], ids=["nothing", "info"])
def test_answers_of_processes_that_are_no_steps_are_refused(answer: Any) -> None:
    class Own(Answers):
        pass

    Own.answer = answer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a worker process is forked while torch's threads exist; Gymnasium's log
        several = AsyncVectorEnv([Own, Own])
        stepper = Stepper(several, generator())
        with pytest.raises(
            EnvironmentMismatchError, match="must return .observation, reward, .*, info.; it returned .*None"
        ):
            stepper.step(np.zeros(2, np.int64))
        several.close(terminate=True)


def test_four_values_are_explained() -> None:
    env = Answers()
    env.answer = (SEEN, 1.0, False, {})
    with pytest.raises(EnvironmentMismatchError, match=r"returned 4 values; .*terminated, truncated, info.*shimmy"):
        Stepper(env, generator()).step(np.zeros(1, np.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a worker process is forked while torch's threads exist; Gymnasium's log
        several = AsyncVectorEnv([lambda: env, lambda: env])
        stepper = Stepper(several, generator())
        with pytest.raises(EnvironmentMismatchError, match="must return .observation, reward, .*, info.; .*not"):
            stepper.step(np.zeros(2, np.int64))
        several.close(terminate=True)


@pytest.mark.parametrize("begin", [SEEN, (SEEN, SEEN), [SEEN, {}]])
def test_a_reset_of_the_old_kind_is_refused(begin: Any) -> None:
    env = Answers()
    env.begin = begin
    with pytest.raises(EnvironmentMismatchError, match=r"reset of the environment returned .* \(observation, info\)"):
        Stepper(env, generator())


class Far(Drift):
    """Leaves its space after the first step."""

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.array([1e6, 0], np.float32), *rest


@pytest.mark.parametrize("vector", [False, True])
def test_observations_outside_their_space_are_warned_of_once(vector: bool) -> None:
    class Narrow(Far):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-10, 10, (2,), np.float32)

    env: Any = SyncVectorEnv([Narrow, Narrow]) if vector else Narrow()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stepper = Stepper(env, generator())
        for _ in range(5):
            stepper.step(np.zeros(stepper.n, np.int64))
    assert [each.category for each in caught] == [ObservationRangeWarning]
    assert "1e+06" in str(caught[0].message) and "outside its space Box(-10" in str(caught[0].message)


@pytest.mark.parametrize("episodes", [1, 3])
def test_evaluation_resets_once_for_each_episode(episodes: int) -> None:
    class Short(Drift):
        resets = 0

        def reset(self, **options: Any) -> Any:
            self.resets += 1
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, True, truncated, info

    env = Short()
    algorithm = small_dqn()
    algorithm.build_with_env(env)
    evaluate(algorithm, env, episodes)
    assert env.resets == episodes
    algorithm.collect(env, n_episodes=episodes, show_progress=False)
    assert env.resets == 2 * episodes


class Masked(Drift):
    """Allows only action 0, and says so in a given way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        if way == "method":
            self.action_masks = lambda: np.array([True, *[False] * (int(self.action_space.n) - 1)])  # type: ignore[attr-defined]

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.eye(int(self.action_space.n), dtype=np.int8)[0]} if self.way == "info" else {}  # type: ignore[attr-defined]

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], self._info()

    def step(self, action: Any) -> Any:
        assert action == 0
        return *super().step(action)[:4], self._info()


@pytest.mark.parametrize("way", ["info", "method"])
def test_masks_of_both_forms_are_honoured_or_warned_of(way: str) -> None:
    for env in (ActionMask(Masked(way)), ActionMask(TimeLimit(Masked(way), 20))):
        check_environment(env, 50)
        algorithm = small_dqn()
        algorithm.fit_online(env, explorer=ConstantEpsilonGreedy(1.0), n_steps=30, random_steps=5, **QUIET)
    for name in ("First", "Second"):  # once for each class
        kind = type(name, (Masked,), {})
        with pytest.warns(UserWarning, match="action_masks?.*, which is not used: wrap it"):
            Stepper(kind(way), generator())
        Stepper(kind(way), generator())


class NoSeed(Drift):
    """Its reset takes no options."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoOptions(Drift):
    """Its reset takes a seed only, which wrappers of Gymnasium do not expect."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def test_a_reset_without_a_seed_is_explained() -> None:
    vectors: list[Any] = [SyncVectorEnv([kind]) for kind in (NoSeed, NoOptions)]
    wrapped: list[Any] = [TimeLimit(NoSeed(), 5), TimeLimit(NoOptions(), 5)]
    for env in (NoSeed(), *wrapped, *vectors):
        with pytest.raises(EnvironmentMismatchError, match="takes no (seed|options); it must be reset"):
            small_dqn().fit_online(env, n_steps=10, **QUIET)
        with pytest.raises(EnvironmentMismatchError, match="takes no (seed|options)"):
            seed_env(env, 0)
    small_dqn().fit_online(NoOptions(), n_steps=10, **QUIET)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.ones(1), np.ones(()), np.int8(1)])
def test_rewards_of_many_types(reward: Any) -> None:
    env = Answers()
    env.answer = (SEEN, reward, False, False, {})
    assert Stepper(env, generator()).step(np.zeros(1, np.int64)).reward.tolist() == [1.0]


def test_observations_without_the_parts_of_their_space_are_refused() -> None:
    env = Answers(kind="dict")
    env.answer = ({"a": np.zeros(1, np.uint8)}, 1.0, False, False, {})
    with pytest.raises(EnvironmentMismatchError, match="is not in its observation space Dict"):
        Stepper(env, generator()).step(np.zeros(1, np.int64))


# -- logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_the_log_does_not_grow_for_ever(mode: AutoresetMode | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector environment that resets itself never restarts as a whole; a single one not before its episode ends."""

    def make() -> Stepper:
        env: Any = Drift(limit=10**6, end=0.0) if mode is None else SyncVectorEnv([Drift] * 3, autoreset_mode=mode)
        stepper = Stepper(env, generator(1))
        stepper._log_limit = 20 * stepper._logged.nbytes
        return stepper

    warned: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda message, *args, **options: warned.append(message))
    stepper, rng, cuts = make(), generator(2), 0
    for number in range(150):
        before, began = [leaf.copy() for leaf in tree_leaves(stepper.observation)], stepper.is_first.copy()
        assert (before[0][began, 1] == 0).all()
        step = stepper.step(rng.integers(3, size=stepper.n))
        done = step.terminated | step.truncated
        assert set(step.ended) <= set(np.flatnonzero(done))
        assert (step.next_observation[step.valid, 1] == before[0][step.valid, 1] + 1).all()
        if done[step.valid].all() and len(step.ended) < step.valid.sum():
            cuts += 1
            assert stepper.is_first.all() and len(stepper._log) == 0
        assert len(stepper._log) < stepper._log_limit
        if number in (37, 90):  # brought back exactly, across cuts
            state, position = stepper.get_state(), rng.bit_generator.state
            other, again = make(), generator()
            other.set_state(state)
            assert not other.lost and other._log_limit == stepper._log_limit
            again.bit_generator.state = position
            for _ in range(30):
                action = again.integers(3, size=other.n)
                other.step(action)
            expected = other.observation
        if number in (67, 120):
            assert np.array_equal(expected, stepper.observation)
    assert cuts >= 3
    assert warned == ([warned[0]] * len(warned) if mode is None else [])
    assert mode is not None or (len(warned) >= cuts and "episode was cut after 20 steps" in warned[0])


def test_the_log_of_a_long_episode_is_kept_in_full() -> None:
    assert Stepper(Drift(), generator())._log_limit == 1_000_000
    wide = Stepper(SyncVectorEnv([lambda: Drift(discrete=False)] * 50), generator())
    assert wide._log_limit == 64 * 2**20 // 400 * 400
    assert Stepper(Drift(), generator(), resumable=False)._log_limit == 0


def test_without_a_log_nothing_is_kept_or_cut() -> None:
    stepper = Stepper(Drift(limit=10**6, end=0.0), generator(), resumable=False)
    for _ in range(50):
        assert not stepper.step(np.zeros(1, np.int64)).truncated
    assert len(stepper._log) == 0


# -- the old library gym ---------------------------------------------------------------------------------------


def of_gym(space: Any) -> Any:
    """A space of a class of the same name that Gymnasium does not know."""
    kind = type(space).__name__
    own = object.__new__(type(kind, (), {}))
    names = {"Box": ("low", "high", "shape", "dtype"), "Discrete": ("n", "start"), "MultiBinary": ("n",)}
    for name in names.get(kind, ()):
        setattr(own, name, getattr(space, name))
    if kind == "Dict":
        own.spaces = {key: of_gym(part) for key, part in space.spaces.items()}
    if kind == "Tuple":
        own.spaces = tuple(map(of_gym, space.spaces))
    return own


class OfGym:
    """`Drift` as an environment of gym 0.26: the same methods, other classes."""

    def __init__(self, **options: Any) -> None:
        self.env: Any = Drift(**options)
        self.observation_space, self.action_space = of_gym(self.env.observation_space), of_gym(self.env.action_space)
        self.reset, self.step = self.env.reset, self.env.step

    @property
    def unwrapped(self) -> Any:
        return self


def test_environments_of_gym_are_used_with_one_warning() -> None:
    class Own(OfGym):
        pass

    with pytest.warns(UserWarning, match=r"Own is not a gymnasium.Env: .* gym 0.26, and its spaces are converted"):
        assert number_of_environments(Own()) == 1
    assert environment_spec(Own()) == Spec((2,), Discrete(3))
    dqn = small_dqn()
    buffer = create_infinite_replay_buffer(env=Own())
    dqn.fit_online(Own(), buffer, n_steps=40, n_steps_per_epoch=20, update_start_step=10, eval_env=Own(), **QUIET)
    assert dqn.grad_step > 0 and buffer.transition_count == 40
    check_environment(Own(kind="dict"), 20)
    assert single_spaces(Own(kind="tuple", discrete=False))[1] == Drift(discrete=False).action_space


def test_spaces_of_gym_become_gymnasiums() -> None:
    pair = spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(4, start=1)))
    nested = spaces.Dict({"a": pair, "b": spaces.Box(0, 1)})
    assert convert_space(of_gym(nested)) == nested
    assert convert_space(nested) is nested


def test_what_is_no_environment_is_still_refused() -> None:
    class Several(OfGym):
        num_envs = 2

    for other in (object(), OfGym, Several(), "CartPole-v1", None):
        with pytest.raises(EnvironmentMismatchError, match="is not an environment"):
            number_of_environments(other)


WRAPPERS = [ChannelFirst, lambda env: FrameStack(env, 2), GoalConcatWrapper, AtariPreprocessing]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("given", [OfGym(), SyncVectorEnv([Drift]), "CartPole-v1"])
def test_wrappers_say_what_they_need(wrapper: Any, given: Any) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"(ChannelFirst|FrameStack|Wrapper|Preprocessing) wraps .*gym"):
        wrapper(given)


def test_one_object_is_not_several_environments() -> None:
    same = Drift()
    vector = SyncVectorEnv([lambda: same, lambda: TimeLimit(same, 5)])
    for use in (check_environment, lambda env: DQNConfig().create().fit_online(env, n_steps=1)):
        with pytest.raises(EnvironmentMismatchError, match="environment 1 .* is the same object"):
            use(vector)
    check_environment(SyncVectorEnv([Drift, Drift]))


class OneStep(gymnasium.Env[Any, Any]):
    """Ends at once, with an observation that was not declared."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, last: Any) -> None:
        self.last = last

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.last, 0.0, True, False, {}


@pytest.mark.filterwarnings("ignore::birl.errors.ObservationRangeWarning")
@pytest.mark.parametrize("last", [np.zeros(1), np.full(1, 5, np.float32)], ids=["float64", "outside"])
def test_the_check_looks_at_observations_at_the_ends_of_episodes(last: Any) -> None:
    with pytest.raises(EnvironmentMismatchError, match="is not in the declared space"):
        check_environment(OneStep(last))
    check_environment(OneStep(np.ones(1, np.float32)))
