"""Masks of actions, over all algorithms for discrete actions: what is masked is never taken and changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl import algos
from birl.dataset import FrameStackTransitionPicker, MDPDataset, create_fifo_replay_buffer
from birl.envs import ActionMask, ExternalEnv, Stepper, make_env
from birl.errors import ActionError, DataError, EnvironmentMismatchError, NonFiniteError, ShapeError
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    LSTMEncoderFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.models.dueling import DuelingStreams
from birl.ope import DiscreteFQE, DiscreteFQEConfig
from birl.preprocessing import StandardObservationScaler
from birl.spaces import read_action_mask
from birl.testing import build_algorithm
from tests.algorithms import CONTRACT_RUNS, Run, tiers

A, ATOMS = 4, 7
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = VectorEncoderFactory([8])


def masks(count: int, random: np.random.Generator, never: tuple[int, ...] = ()) -> Any:
    allowed = random.random((count, A)) < 0.5
    allowed[:, list(never)] = False
    free = [action for action in range(A) if action not in never]
    allowed[np.arange(count), random.choice(free, count)] = True
    return allowed


def data(count: int = 120, never: tuple[int, ...] = (), **options: Any) -> MDPDataset:
    random = np.random.default_rng(0)
    allowed = masks(count, random, never)
    action = np.where(allowed, random.random((count, A)), -1).argmax(1)
    reward = random.normal(size=count)
    ends = np.arange(count) % 6 == 5
    return MDPDataset(
        random.normal(size=(count, 3)).astype(np.float32),
        action,
        reward,
        ends,
        action_masks=allowed,
        **options,
    )


DISCRETE = [run for run in CONTRACT_RUNS if run.discrete]
LEARNING = [run for run in DISCRETE if "fit" in run.config.algorithm.learns_from.loops]


def built(run: Run, dataset: Any) -> Any:
    birl.seed(0)
    algorithm = run.config.create()
    algorithm.build_with_dataset(dataset)
    return algorithm


def observations(count: int, seed: int, never: tuple[int, ...] = ()) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "observation": random.normal(size=(count, 3)).astype(np.float32),
        "action_mask": masks(count, random, never).astype(np.uint8),
    }


@pytest.mark.parametrize("run", tiers(DISCRETE))
def test_a_masked_action_is_never_taken(run: Run) -> None:
    algorithm = built(run, data())
    for n in (1, 50):
        for greedy in (True, False):
            actor = algorithm.actor(greedy=greedy, n=n) if not algorithm.learns_from.contexts else None
            if actor is None:
                actor = algorithm.as_stateful_wrapper(1.0).actor(n=n)
            for seed in range(20 if n == 1 else 5):
                x = observations(n, seed)
                action = actor(x, np.full(n, seed == 0), np.zeros(n, np.float32))
                assert np.take_along_axis(x["action_mask"], np.asarray(action)[:, None], 1).all()
    if not algorithm.learns_from.contexts:
        x = observations(200, 3)
        for act in (algorithm.predict, algorithm.sample_action):
            assert np.take_along_axis(x["action_mask"], act(x)[:, None], 1).all()


ABOVE_VALUE = 16.0


def favour(algorithm: Any, action: int) -> None:
    """Make an action look better than anything, in all networks."""
    for name, module in algorithm.learner.nets.named_modules():
        bias = getattr(module, "bias", None)
        if isinstance(module, DuelingStreams):  # the value makes up for the mean of advantages
            with torch.no_grad():
                advantage = module.advantage[-1].bias.view(-1, A, module.size)
                chosen = slice(-1, None) if module.size == ATOMS else slice(None)
                advantage[:, action, chosen] += A * ABOVE_VALUE
                module.value[-1].bias.view(-1, module.size)[:, chosen] += ABOVE_VALUE
            continue
        if ".linear." in name:  # layers of streams
            continue
        if name.rpartition(".")[2] != "linear" or "encoder" in name or bias is None or bias.numel() % A:
            continue
        rows = bias.view(bias.shape[0] if bias.dim() > 1 else 1, A, -1)[:, action]
        with torch.no_grad():
            rows[..., -1 if "head" in name and rows.shape[-1] == ATOMS else slice(None)] += 1000.0


@pytest.mark.parametrize("run", tiers(LEARNING))
def test_a_masked_action_is_never_bootstrapped_from(run: Run) -> None:
    """What networks say of an action that is always masked changes no update."""
    results = []
    for favoured in (False, True):
        birl.seed(0)
        dataset = data(never=(2,))
        algorithm = built(run, dataset)
        if favoured:
            favour(algorithm, 2)
        birl.seed(1)
        for _ in range(3):
            algorithm.update(algorithm.sample_minibatch(dataset))
        results.append(algorithm.learner.nets.state_dict())
    check_same_but_favoured(*results)


def check_same_but_favoured(plain: dict[str, Any], favoured_state: dict[str, Any]) -> None:
    for name, value in plain.items():
        same = torch.isclose(value, favoured_state[name], rtol=1e-4, atol=1e-6)
        if not same.all():  # the bias that was made large
            difference = (favoured_state[name] - value)[~same]
            if re.search(r"linear\.(value|advantage)\.\d+\.bias", name):
                above = torch.full_like(difference, ABOVE_VALUE * (A if "advantage" in name else 1))
                torch.testing.assert_close(difference, above, rtol=1e-3, atol=0.1)
                continue
            assert name.endswith("linear.bias") or "target" in name, name
            torch.testing.assert_close(difference, torch.full_like(difference, 1000.0), rtol=1e-3, atol=0.1)


HEADS = (
    QRQFunctionFactory(n_quantiles=5),
    IQNQFunctionFactory(n_quantiles=5, embed_size=4),
    C51QFunctionFactory(n_atoms=ATOMS),
)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
@pytest.mark.parametrize("config", [algos.DQNConfig, algos.MunchausenDQNConfig, algos.DiscreteCQLConfig])
def test_every_head_honours_masks(head: Any, config: Any) -> None:
    run = Run("", config(q_func_factory=head, encoder_factory=SMALL, batch_size=16), None)
    algorithm = built(run, data())
    favour(algorithm, 1)
    x = observations(100, 0, never=(1,))
    assert not (algorithm.predict(x) == 1).any()
    assert (algorithm.predict({**x, "action_mask": np.ones((100, A))}) == 1).all()


class Doors(gymnasium.Env[Any, Any]):
    """At each step one of four doors is open; the others end the episode without a reward."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(A)

    def __init__(self, breaks: str = "") -> None:
        self.breaks, self.taken = breaks, list[int]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._next()

    def _next(self) -> tuple[Any, dict[str, Any]]:
        self.mask = np.zeros(A, np.int8)
        if self.breaks != "closed":
            self.mask[self.np_random.integers(A)] = 1
        mask: Any = self.mask[:2] if self.breaks == "short" else self.mask
        return np.zeros(2, np.float32), {} if self.breaks == "none" else {"action_mask": mask}

    def step(self, action: Any) -> Any:
        self.taken.append(int(action))
        right = bool(self.mask[action])
        self.count += 1
        observation, info = self._next()
        return observation, float(right), not right, self.count == 10, info


@pytest.mark.parametrize("algorithm", ["DQN", "PPO", "DiscreteSAC"])
def test_a_task_that_cannot_be_solved_without_the_mask(algorithm: str) -> None:
    """The observation says nothing: a policy without the mask opens one right door of four."""
    birl.seed(0)
    fields = {"DQN": {}, "PPO": {"rollout_length": 32}, "DiscreteSAC": {}}[algorithm]
    config: Any = getattr(algos, f"{algorithm}Config")(batch_size=16, **fields)
    env = ActionMask(Doors())
    agent = config.create()
    options: Any = {} if algorithm == "PPO" else {"random_steps": 20, "explorer": None}
    if algorithm == "DQN":
        options["explorer"] = algos.ConstantEpsilonGreedy(0.5)
    agent.fit_online(env, n_steps=100, seed=1, **options, **QUIET)
    assert evaluate(agent, ActionMask(Doors()), 5, seed=3) == [10.0] * 5
    assert evaluate(agent, ActionMask(Doors()), 5, epsilon=0.5, seed=3) == [10.0] * 5
    assert env.unwrapped.count <= 10 and len(env.unwrapped.taken) == 100
    with pytest.raises(EnvironmentMismatchError, match="was built for .* missing here: wrap .*ActionMask"):
        agent.evaluate(Doors()) if hasattr(agent, "evaluate") else evaluate(agent, Doors(), 1)


@pytest.mark.parametrize("samples", [0, 3])
def test_fqe_bootstraps_from_allowed_actions(samples: int) -> None:
    """What the policy and the evaluation say of an action that is always masked changes no update."""
    small: Any = {"batch_size": 16, "target_update_interval": 1, "gamma": 0.9}
    kinds: Any = {0: algos.DQNConfig(encoder_factory=SMALL), 3: algos.DiscreteSACConfig(actor_encoder_factory=SMALL)}
    results = []
    for favoured in (False, True):
        birl.seed(0)
        dataset = data(never=(2,))
        policy = built(Run("", kinds[samples], None), dataset)
        fqe = DiscreteFQE(policy, DiscreteFQEConfig(encoder_factory=SMALL, n_action_samples=samples, **small))
        fqe.build_with_dataset(dataset)
        if favoured:
            favour(policy, 2)
            favour(fqe, 2)
        birl.seed(1)
        for _ in range(3):
            fqe.update(fqe.sample_minibatch(dataset))
        results.append(fqe.learner.nets.state_dict())
    assert not torch.equal(results[0]["critic.head.linear.bias"], results[1]["critic.head.linear.bias"])
    check_same_but_favoured(*results)


def test_masks_travel_with_scalers_frames_files_and_exports(tmp_path: Path) -> None:
    scaler = StandardObservationScaler()
    dataset = data(transition_picker=FrameStackTransitionPicker(2))
    assert dataset.observation_shape == {"observation": (6,), "action_mask": (A,)}
    batch = dataset.sample_transition_batch(20)
    assert batch.observations["action_mask"].shape == (20, A)
    dataset = data()
    algorithm = algos.DQNConfig(encoder_factory=SMALL, batch_size=16, observation_scaler=scaler).create()
    algorithm.fit(dataset, n_steps=3, **QUIET)
    assert np.shape(algorithm.config.observation_scaler.mean) == (3,)
    algorithm.save(tmp_path / "model.d3")
    x = observations(30, 0)
    np.testing.assert_array_equal(birl.load_learnable(tmp_path / "model.d3").predict(x), algorithm.predict(x))
    algorithm.save_policy(tmp_path / "policy.pt2")
    given = [torch.as_tensor(x[name], dtype=torch.float32) for name in ("observation", "action_mask")]
    exported = torch.export.load(tmp_path / "policy.pt2").module()(*given)
    np.testing.assert_array_equal(exported.numpy().reshape(-1), algorithm.predict(x))
    dataset.dump(tmp_path / "data.h5")
    again = birl.dataset.ReplayBuffer.load(tmp_path / "data.h5")
    assert again.observation_shape == dataset.observation_shape


def test_masks_that_cannot_be_are_refused() -> None:
    ones = np.ones((6, A))
    steps: Any = (np.zeros((6, 3), np.float32), np.arange(6) % A, np.zeros(6), np.arange(6) == 5)
    closed = ones.copy()
    closed[3] = [1, 1, 1, 0]
    with pytest.raises(ActionError, match=r"action 3 of step 3 is not allowed by its action_mask \[1, 1, 1, 0\]"):
        MDPDataset(*steps, action_masks=closed)
    with pytest.raises(ShapeError, match=r"has shape \(4,\); it must have \(7,\): give a number for each action"):
        MDPDataset(*steps, action_masks=ones, action_size=7)
    for wrong, given in ((ones[0], r"has the shape \(4,\)"), (2 * ones, "holds 2.0"), (ones * np.nan, "holds nan")):
        with pytest.raises(DataError, match=f"action_masks {given}; it must (hold|be) zeros and ones"):
            MDPDataset(*steps, action_masks=wrong)
    assert MDPDataset(*steps, action_masks=ones).dataset_info.action_size == A
    with pytest.raises(ShapeError, match=r"has shape \(2,\); it must have \(4,\): give a number for each action"):
        MDPDataset(*steps, action_masks=ones[:, :2])
    with pytest.raises(DataError, match="have a part 'action_mask' already: leave action_masks out"):
        MDPDataset({"observation": steps[0], "action_mask": ones}, *steps[1:], action_masks=ones)
    with pytest.raises(EnvironmentMismatchError, match="environment 0 allows no action"):
        algos.DQNConfig(batch_size=4).create().fit_online(ActionMask(Doors("closed")), n_steps=10, **QUIET)
    for breaks, given in (("none", "none"), ("short", r"one of shape \(2,\)")):
        with pytest.raises(EnvironmentMismatchError, match=f"the environment returned {given}"):
            ActionMask(Doors(breaks)).reset()
    with pytest.raises(EnvironmentMismatchError, match="action space of ActionMask"):
        ActionMask(make_env("Pendulum-v1"))
    algorithm = built(Run("", algos.DQNConfig(batch_size=4), None), data())
    with pytest.raises(ShapeError, match="missing here: give the data their action_masks="):
        algorithm.build_with_dataset(MDPDataset(*steps, action_size=A))
    shape = {"observation": (2,), "action_mask": (A,)}
    other = build_algorithm(algos.DQNConfig(encoder_factory=SMALL, batch_size=4), shape, A)
    with pytest.raises(EnvironmentMismatchError, match="environment 0 allows no action"):
        evaluate(other, ActionMask(Doors("closed")), 1)
    with pytest.raises(ShapeError):
        algorithm.predict(np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError):
        algorithm.predict({"observation": np.zeros((2, 3), np.float32), "action_mask": np.ones((2, 3))})


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_actions_without_choices_need_no_mask(mode: Any) -> None:
    """After the end of an episode nothing is allowed; in one mode another action is asked for and not taken."""

    class Closing(Doors):
        def step(self, action: Any) -> Any:
            assert self.mask[action]
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"action_mask": self.mask * (self.count < 10)}

    env = SyncVectorEnv([lambda: ActionMask(Closing())] * 2, autoreset_mode=mode)
    if mode is AutoresetMode.DISABLED:
        stepper = Stepper(env, np.random.default_rng(0))
        stepper.step(np.argmax(stepper.observation["action_mask"], 1))
        return
    algorithm, explorer = algos.DQNConfig(batch_size=4).create(), algos.ConstantEpsilonGreedy(0.5)
    algorithm.fit_online(env, explorer=explorer, n_steps=50, n_steps_per_epoch=50, **QUIET)
    assert len(evaluate(algorithm, env, n_episodes=3)) == 3


OTHERS = [np.array([2, 1, 1, 1]), np.array([-1, 0, 0, 0]), np.array([1, 0.5, 0, 0]), np.array([1, np.nan, 0, 0])]


@pytest.mark.parametrize("mask", OTHERS, ids=str)
def test_masks_are_zeros_and_ones_wherever_they_come_from(mask: Any) -> None:
    wrong = "holds (2|-1|0.5|nan)(.0)?; it must hold zeros and ones"
    space = gymnasium.spaces.Dict(
        {"observation": Doors.observation_space, "action_mask": gymnasium.spaces.Box(-9, 9, (A,), np.float32)}
    )

    class Other(Doors):
        def _next(self) -> Any:
            self.mask = np.ones(A)
            return np.zeros(2, np.float32), {"action_mask": mask}

    class Joined(Other):
        observation_space = space

        def _next(self) -> Any:
            super()._next()
            return {"observation": np.zeros(2, np.float32), "action_mask": mask.astype(np.float32)}, {}

    with pytest.raises(EnvironmentMismatchError, match=wrong):
        ActionMask(Other()).reset()
    with pytest.raises((EnvironmentMismatchError, NonFiniteError), match=f"{wrong}|nan"):
        Stepper(Joined(), np.random.default_rng(0))

    env = ExternalEnv(space, Doors.action_space)
    given = {"observation": np.zeros(2), "action_mask": mask}
    ones = {"observation": np.zeros(2), "action_mask": np.ones(A)}
    agent = algos.DQNConfig(batch_size=4).create().agent(env=env)
    refused: Any = pytest.raises((DataError, ShapeError, NonFiniteError), match=f"{wrong}|finite|NaN")
    with refused:
        agent.act(given)
    agent.act(ones)
    with refused:
        agent.observe(given, 0.0, False)
    with refused:
        agent.algorithm.predict({name: np.asarray(part)[None] for name, part in given.items()})
    buffer = create_fifo_replay_buffer(10, env=env)
    with refused:
        buffer.append(given, 0, 0.0)
    buffer.append(ones, 0, 0.0)
    with refused:
        buffer.clip_episode(False, truncated=True, final_observation=given)
    parts = {"observation": np.zeros((4, 2)), "action_mask": np.stack([mask] * 4)}
    with refused:
        MDPDataset(parts, np.zeros(4, np.int64), np.zeros(4), np.arange(4) == 3)
    allowed = {"observation": np.zeros((4, 2)), "action_mask": np.ones((4, A))}
    last = {"observation": np.zeros((4, 2)), "action_mask": np.stack([*np.ones((3, A)), mask])}
    with refused:
        MDPDataset(allowed, np.zeros(4, int), np.zeros(4), np.zeros(4), np.arange(4) == 3, next_observations=last)


def test_parts_that_are_text_are_named() -> None:
    class Text(Doors):
        observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Box(0, 1, (2,), np.float32)})

        def _next(self) -> Any:
            super()._next()
            return {"word": np.array(["a", "b"])}, {}

    with pytest.raises(EnvironmentMismatchError, match="which is not in its observation space"):
        Stepper(Text(), np.random.default_rng(0))


def test_a_refused_observation_is_not_remembered() -> None:
    memory = LSTMEncoderFactory(hidden_size=4)
    config = algos.DiscreteSACConfig(
        batch_size=4, actor_encoder_factory=memory, critic_encoder_factory=memory, sequence_length=4
    )
    space = gymnasium.spaces.Dict(
        {"observation": Doors.observation_space, "action_mask": gymnasium.spaces.MultiBinary(A)}
    )
    agent = config.create().agent(env=ExternalEnv(space, Doors.action_space), update_interval=None)
    ones = {"observation": np.ones(2), "action_mask": np.ones(A)}
    agent.act(ones)
    agent.observe(ones, 0.0, False)
    before = repr(agent.get_state())
    with pytest.raises(EnvironmentMismatchError, match="allows no action"):
        agent.act({**ones, "action_mask": np.zeros(A)})
    assert repr(agent.get_state()) == before


def test_an_unused_mask_is_noticed() -> None:
    from birl.envs import stepper

    stepper._WARNED.clear()
    with pytest.warns(UserWarning, match=r"in info\['action_mask'\].* birl.envs.ActionMask\(env\)"):
        Stepper(Doors(), np.random.default_rng(0))
    blind = build_algorithm(algos.DQNConfig(batch_size=8), {"observation": (2,)}, A)
    with pytest.warns(UserWarning, match=r"in observations\['action_mask'\].* act with networks that were built for"):
        evaluate(blind, ActionMask(Doors()), 1, seed=0)
    blind = build_algorithm(algos.DQNConfig(batch_size=8), {"observation": (3,)}, A)
    with pytest.warns(UserWarning, match="the dataset has masks of actions, but this DQN was built without"):
        blind.build_with_dataset(data())


def test_chosen_parts_do_not_leave_masks_out(tmp_path: Path) -> None:
    """``observation_keys`` names what to choose by; what is allowed is known wherever it is said."""
    random = np.random.default_rng(0)
    seen = {"hand": random.normal(size=(40, 2)), "clock": np.arange(40.0)[:, None], "action_mask": masks(40, random)}
    action, keys = seen["action_mask"].argmax(1), ("hand",)
    config = algos.DQNConfig(batch_size=8, observation_keys=keys)
    kept = {"hand": (2,), "action_mask": (A,)}
    steps: Any = (action, np.zeros(40), np.arange(40) % 8 == 7)
    for dataset in (MDPDataset(seen, *steps), MDPDataset(seen, *steps, observation_keys=keys)):
        algorithm = config.create()
        algorithm.build_with_dataset(dataset)
        assert algorithm.observation_shape == kept
        np.testing.assert_array_equal(np.take_along_axis(seen["action_mask"], algorithm.predict(seen)[:, None], 1), 1)
    algorithm.save_policy(tmp_path / "policy.pt2")
    names = [torch.as_tensor(seen[name], dtype=torch.float32) for name in kept]
    exported = torch.export.load(tmp_path / "policy.pt2").module()(*names)
    np.testing.assert_array_equal(exported.numpy().reshape(-1), algorithm.predict(seen))

    class Clocked(gymnasium.ObservationWrapper[Any, Any, Any]):
        observation_space = gymnasium.spaces.Dict(
            {"hand": Doors.observation_space, "clock": gymnasium.spaces.Box(0, 99, (1,))}
        )

        def observation(self, observation: Any) -> Any:
            return {"hand": observation, "clock": np.ones(1, np.float32)}

    env = ActionMask(Clocked(Doors()))
    buffer = create_fifo_replay_buffer(100, env=env, observation_keys=keys)
    assert buffer.observation_shape == kept
    online = config.create()
    online.fit_online(env, buffer, algos.ConstantEpsilonGreedy(0.5), n_steps=12, random_steps=6, **QUIET)
    assert online.observation_shape == kept
    assert evaluate(online, env, 3, seed=3) == [10.0] * 3


def test_masks_may_allow_nothing_where_an_episode_has_ended() -> None:
    """Also where the vector environment resets in the step after: its action is not used."""

    class Shut(Doors):
        def _next(self) -> tuple[Any, dict[str, Any]]:
            observation, info = super()._next()
            return observation, {"action_mask": info["action_mask"] * (self.count < 10)}

    env = SyncVectorEnv([lambda: ActionMask(Shut())] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    random = np.random.default_rng(0)
    stepper, closed = Stepper(env, random), 0
    for _ in range(25):
        allowed = read_action_mask(stepper.actions, stepper.observation)
        step = stepper.step(stepper.actions.sample(2, random, allowed))
        assert not step.terminated.any()
        shut = ~step.next_observation["action_mask"].any(1)
        np.testing.assert_array_equal(shut, step.truncated)
        closed += shut.sum()
    assert closed == 4


def test_an_explorer_that_takes_masked_actions_is_refused() -> None:
    class Always(algos.Explorer if hasattr(algos, "Explorer") else object):  # type: ignore[misc]
        def sample(self, algo: Any, x: Any, step: int) -> Any:
            return 1 - np.asarray(algo.predict(x)).clip(0, 1)

    env = ActionMask(Doors())
    with pytest.raises(ActionError, match="is masked; allowed are"):
        algos.DQNConfig(batch_size=4).create().fit_online(
            env, create_fifo_replay_buffer(100, env=env), Always(), n_steps=50, seed=0, **QUIET
        )
