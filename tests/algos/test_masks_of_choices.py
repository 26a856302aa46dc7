"""Masks where an action has several choices, or choices next to quantities, and where an episode has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl import algos
from birl.dataset import MDPDataset
from birl.envs import ActionMask, ExternalEnv
from birl.errors import ActionError, DataError, EnvironmentMismatchError, ShapeError
from birl.logging import NoopAdapterFactory
from birl.metrics import DiscreteActionMatchEvaluator, TDErrorEvaluator, evaluate
from birl.models import VectorEncoderFactory
from birl.spaces import actions_from_space, fill_empty_masks, flatten_actions, read_action_mask
from birl.types import MASK
from tests.tiers import slow_but

QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = VectorEncoderFactory([8])
DICT = spaces.Dict(buttons=spaces.MultiDiscrete([2, 3]), force=spaces.Box(0, 5, (2,)), move=spaces.Discrete(3, start=1))
SEVERAL = spaces.MultiDiscrete([3, 2], start=[1, 0])
BC = algos.BCConfig(encoder_factory=SMALL)
PPO = algos.PPOConfig(
    rollout_length=10, n_epochs=1, batch_size=5, actor_encoder_factory=SMALL, value_encoder_factory=SMALL
)
DQN = algos.DQNConfig(batch_size=4, encoder_factory=SMALL)


def masks(options: Any, count: int, random: np.random.Generator) -> Any:
    rows = random.integers(0, 2, size=(count, sum(options)))
    for begin, size in zip(np.cumsum([0, *options]), options, strict=False):
        rows[np.arange(count), begin + random.integers(size, size=count)] = 1
    return rows.astype(np.int8)


class Guarded(gymnasium.Env[Any, Any]):
    """Says in ``info`` which options are allowed, and takes no other. Where an episode ends, the mask is ``last``."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, space: Any, last: Any = None) -> None:
        self.action_space, self.actions, self.last = space, actions_from_space(space), last

    def _next(self) -> Any:
        self.mask = masks(self.actions.options, 1, self.np_random)[0]
        if self.last is not None and self.count == 5:
            self.mask = np.array(self.last, np.int8)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {MASK: self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._next()

    def step(self, action: Any) -> Any:
        row = flatten_actions(
            self.action_space, batched(action) if isinstance(action, dict) else np.asarray(action)[None]
        )
        assert self.actions.first_masked(row, self.mask[None] != 0) is None
        self.count += 1
        observation, info = self._next()
        return observation, 1.0, self.count == 5, False, info


def batched(action: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(part)[None] for name, part in action.items()}


def built(config: Any, space: Any) -> Any:
    birl.seed(0)
    algorithm = config.create()
    algorithm.create_impl({"observation": (3,), MASK: (sum(actions_from_space(space).options),)}, space)
    return algorithm


def logs(count: int = 30) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    allowed = masks((2, 3, 3), count, random)
    chosen = [np.where(part == 1, random.random(part.shape), -1).argmax(1) for part in np.split(allowed, [2, 5], 1)]
    force = random.uniform(0, 5, (count, 2))
    action = {"buttons": np.stack(chosen[:2], 1), "force": force, "move": chosen[2] + 1}
    return random.normal(size=(count, 3)).astype(np.float32), action, allowed


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
@pytest.mark.parametrize("config", slow_but([BC], [PPO, BC]), ids=["PPO", "BC"])
def test_masked_options_next_to_quantities_are_never_taken(config: Any, tmp_path: Path) -> None:
    algorithm, actions = built(config, DICT), actions_from_space(DICT)
    assert algorithm.spec.masked and algorithm.spec.encoder_shape == (3,)
    random = np.random.default_rng(0)
    x = {"observation": random.normal(size=(200, 3)).astype(np.float32), MASK: masks((2, 3, 3), 200, random)}
    for rows in (algorithm.predict(x), algorithm.sample_action(x)):
        assert rows.shape == (200, 5) and actions.first_masked(rows, x[MASK] != 0) is None
    assert actions.first_masked(algorithm.predict({**x, MASK: np.ones((200, 8), np.int8)}), x[MASK] != 0) is not None
    sampled = actions.sample(200, random, x[MASK] != 0)
    assert actions.first_masked(sampled, x[MASK] != 0) is None and len(np.unique(sampled[:, 4])) == 3
    for name in ("policy.pt", "policy.pt2", "policy.onnx"):  # compared with the policy when they are written
        algorithm.save_policy(tmp_path / name)
    given = [torch.as_tensor(part, dtype=torch.float32) for part in x.values()]
    exported = torch.export.load(tmp_path / "policy.pt2").module()(*given)
    np.testing.assert_allclose(exported.numpy(), algorithm.predict(x), rtol=1e-5, atol=1e-6)


def test_masked_options_have_no_probability() -> None:
    algorithm = built(PPO, DICT)
    x, action, allowed = logs(6)
    inputs = birl.types.Inputs({"observation": torch.as_tensor(x), MASK: torch.as_tensor(allowed)})
    free = algorithm.nets.actor(inputs._replace(observation={**inputs.observation, MASK: torch.ones(6, 8)}))
    policy = algorithm.nets.actor(inputs)
    row = algorithm.spec.actions.from_stored(torch.as_tensor(flatten_actions(DICT, action), dtype=torch.float32))
    total = torch.zeros(6)
    for index, begin, end, column in ((0, 0, 2, 0), (1, 2, 5, 1), (3, 5, 8, 4)):  # by hand: renormalised
        probs = free.parts[index].logits.softmax(-1) * torch.as_tensor(allowed[:, begin:end])
        probs = probs / probs.sum(-1, keepdim=True)
        total += probs.gather(-1, row[:, column : column + 1].long())[:, 0].log()
    total += free.parts[2].log_prob(row[:, 2:4])
    torch.testing.assert_close(policy.log_prob(row), total)


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
def test_logged_masks_of_choices_next_to_quantities() -> None:
    x, action, allowed = logs()
    steps: Any = (x, action, np.zeros(30), np.arange(30) % 10 == 9)
    dataset = MDPDataset(*steps, action_size=DICT, action_masks=allowed)
    bc = algos.BCConfig(batch_size=8, encoder_factory=SMALL).create()
    bc.fit(dataset, n_steps=3, n_steps_per_epoch=3, **QUIET)
    assert bc.spec.masked
    closed = allowed.copy()
    closed[4, 5:] = np.arange(3) == (action["move"][4] + 1) % 3
    with pytest.raises(ActionError, match="of step 4 is not allowed by its action_mask"):
        MDPDataset(*steps, action_size=DICT, action_masks=closed)
    with pytest.raises(ShapeError, match=r"it must have \(8,\): give a number for each option of each choice"):
        MDPDataset(*steps, action_size=DICT, action_masks=allowed[:, :7])
    with pytest.raises(DataError, match=r"holds 2(\.0)?; it must hold zeros and ones"):
        MDPDataset(*steps, action_size=DICT, action_masks=allowed * 2)
    with pytest.raises(DataError, match="action_masks are for discrete actions, but these are 2 action dimensions"):
        MDPDataset(x, action["force"], *steps[2:], action_masks=allowed[:, :2])


ENDS = {"shut": np.zeros(8, int), "one choice shut": np.array([0, 0, 1, 1, 0, 1, 1, 1])}
MODES = [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("config", "space"), [(PPO, DICT), (PPO, SEVERAL), (DQN, SEVERAL)], ids=str)
def test_environments_are_given_what_they_allow(config: Any, space: Any, end: str, mode: Any) -> None:
    last = ENDS[end][: sum(actions_from_space(space).options)]
    made = [lambda: ActionMask(Guarded(space, last))] * 2
    env: Any = made[0]() if mode is None else SyncVectorEnv(made, autoreset_mode=mode)
    birl.seed(0)
    algorithm, options = config.create(), dict[str, Any]()
    if config is DQN:
        options = {"random_steps": 6, "explorer": algos.ConstantEpsilonGreedy(0.5)}
    algorithm.fit_online(env, n_steps=30, n_steps_per_epoch=30, **options, **QUIET)
    assert algorithm.spec.masked
    assert evaluate(algorithm, env, n_episodes=2, epsilon=0.5) == [5.0, 5.0]


def test_a_choice_without_options_has_all_of_them_where_nothing_is_chosen() -> None:
    actions = actions_from_space(SEVERAL)
    x = {"observation": np.zeros((2, 3), np.float32), MASK: np.array([[0, 0, 0, 1, 0], [0, 1, 0, 0, 1]], np.int8)}
    opened, where = fill_empty_masks(actions, x)
    np.testing.assert_array_equal(opened[MASK], [[1, 1, 1, 1, 0], [0, 1, 0, 0, 1]])
    np.testing.assert_array_equal(where, [True, False])
    assert not x[MASK][0, :3].any()  # a copy
    assert fill_empty_masks(actions, x, np.array([False, True]))[0][MASK][0].sum() == 1
    with pytest.raises(EnvironmentMismatchError, match="environment 0 allows no action.*one 1 for each choice"):
        read_action_mask(actions, x)
    inputs = birl.types.Inputs({name: torch.as_tensor(part) for name, part in x.items()})
    returns = built(DQN, SEVERAL).nets.critic(inputs)
    assert returns.allowed.tolist()[0] == [[True] * 3, [True, False, False]]  # the second choice has two options


@pytest.mark.parametrize("space", [spaces.Discrete(4), SEVERAL], ids=str)
def test_predictions_need_something_to_choose(space: Any) -> None:
    dqn = built(DQN, space)
    count = sum(actions_from_space(space).options)
    x = {"observation": np.zeros((3, 3), np.float32), MASK: np.ones((3, count), np.int8)}
    dqn.predict(x)
    x[MASK][1, :3] = 0
    x[MASK][1, 3] = count == 5
    for act in (dqn.predict, dqn.sample_action):
        with pytest.raises(ShapeError, match=r"the observation 1 allows no action: its 'action_mask' is \[0, 0, 0"):
            act(x)
    action = np.array([1] * 3) if count == 4 else np.array([[1, 0]] * 3)
    assert dqn.predict_value(x, action).shape == (3,)  # nothing is chosen


def test_errors_of_episodes_that_end_where_nothing_is_allowed() -> None:
    env = ActionMask(Guarded(SEVERAL, [0] * 5))
    buffer, dqn = birl.dataset.create_fifo_replay_buffer(100, env=env), DQN.create()
    dqn.fit_online(env, buffer, n_steps=12, n_steps_per_epoch=12, **QUIET)
    assert TDErrorEvaluator()(dqn, buffer) > 0
    same = [(dqn.predict(each.observations) == each.actions).all(1) for each in buffer.episodes]
    assert DiscreteActionMatchEvaluator()(dqn, buffer) == pytest.approx(np.concatenate(same).mean())


# -- in one's own loop -----------------------------------------------------------------------------------------------


def own_loop(agent: Any, env: Any, count: int, observation: Any = None, ended: Any = None) -> Any:
    observation = env.reset(seed=0)[0] if observation is None else observation
    ended = np.zeros(2, bool) if ended is None else ended
    for _ in range(count):
        action = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(observation, reward, terminated & ~ended, truncated & ~ended, valid=~ended)
        ended = (terminated | truncated) & ~ended
    return observation, ended


@pytest.mark.parametrize("last", [[0] * 5, [0, 0, 0, 1, 1]], ids=str)
def test_agents_are_asked_once_more_where_an_episode_has_ended(last: Any, tmp_path: Path) -> None:
    def made() -> Any:
        return SyncVectorEnv([lambda: ActionMask(Guarded(SEVERAL, last))] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)

    def agent() -> Any:
        birl.seed(0)
        env = made()
        return DQN.create().agent(n=2, env=env, explorer=algos.ConstantEpsilonGreedy(0.5), update_start_step=6), env

    one, env = agent()
    observation, ended = own_loop(one, env, 17)
    assert ended.all() and one.step == 2 * 15
    one.act(observation)
    one.save(tmp_path)  # between act and observe, of what is only a reset
    two, _ = agent()
    two.load(tmp_path)
    following, *rest = env.step(np.array([[1, 0], [1, 0]]))
    for each in (one, two):
        with pytest.raises(ShapeError, match="environment 0 allowed no action.*valid=False"):
            each.observe(following, *rest[:3])
        each.observe(following, *rest[:3], valid=[False, False])
    np.testing.assert_array_equal(one.act(following), two.act(following))
    buffered = one._training.core._buffer.storage  # no step was stored for a reset
    assert buffered.steps.sum() == 30


def test_agents_choose_nothing_where_nothing_is_allowed() -> None:
    env = ActionMask(Guarded(SEVERAL))
    dqn = built(DQN, SEVERAL)
    agent = dqn.agent(env=ExternalEnv(env.observation_space, SEVERAL))
    shut, free = ({"observation": np.zeros(3), MASK: np.full(5, number)} for number in (0, 1))
    with pytest.raises(EnvironmentMismatchError, match="allows no action"):
        agent.act(shut)  # no episode has ended before
    agent.act(free)
    agent.observe(shut, 1.0, False, False)
    with pytest.raises(EnvironmentMismatchError, match="allows no action"):
        agent.act(shut)  # nor here
    agent.reset()
    agent.act(free)
    agent.observe(shut, 1.0, True)
    agent.act(free)
    agent.observe(free, 1.0, False)


KINDS = [spaces.MultiDiscrete([2] * 4), spaces.Box(0, 1, (4,), bool), spaces.MultiBinary(4)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_masks_of_every_space(kind: Any) -> None:
    """Networks read choices one-hot, but not those of masks."""

    class Own(Guarded):
        observation_space = spaces.Dict({"observation": Guarded.observation_space, MASK: kind})

        def _next(self) -> Any:
            observation, info = super()._next()
            return {"observation": observation, MASK: info[MASK].astype(kind.dtype)}, {}

    dqn = DQN.create()
    dqn.fit_online(Own(spaces.Discrete(4)), random_steps=4, n_steps=12, n_steps_per_epoch=12, **QUIET)
    assert dqn.spec.masked and evaluate(dqn, Own(spaces.Discrete(4)), n_episodes=1) == [5.0]
