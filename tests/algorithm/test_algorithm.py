"""What users hold: building, predicting, transferring, saving, and the errors they meet."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.dataset import (
    FrameStackTransitionPicker,
    LastFrameWriterPreprocess,
    MDPDataset,
    create_fifo_replay_buffer,
)
from birl.errors import (
    ActionError,
    ActionRangeWarning,
    ConfigError,
    EnvironmentMismatchError,
    FileError,
    ForeignFileError,
    NonFiniteError,
    NotBuiltError,
    ShapeError,
    UnsupportedError,
)
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.optimizers import OptimizerFactory
from birl.preprocessing import (
    MinMaxActionScaler,
    RunningObservationScaler,
    RunningRewardScaler,
    StandardObservationScaler,
)

SMALL = VectorEncoderFactory(hidden_units=[8])
QUIET = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def discrete_dataset(steps: int = 60, **options) -> MDPDataset:
    rng = np.random.default_rng(0)
    terminals = np.zeros(steps)
    terminals[9::10] = 1
    observations = rng.normal(size=(steps, 4)).astype(np.float32)
    return MDPDataset(observations, rng.integers(2, size=steps), rng.normal(size=steps), terminals, **options)


def continuous_dataset(steps: int = 60, scale: float = 1.0) -> MDPDataset:
    rng = np.random.default_rng(0)
    terminals = np.zeros(steps)
    terminals[9::10] = 1
    actions = rng.uniform(-scale, scale, size=(steps, 2)).astype(np.float32)
    return MDPDataset(rng.normal(size=(steps, 3)).astype(np.float32), actions, rng.normal(size=steps), terminals)


def small_sac(**fields):
    return algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, batch_size=8, **fields).create()


def small_dqn(**fields):
    return algos.DQNConfig(encoder_factory=SMALL, batch_size=8, **fields).create()


# -- building ----------------------------------------------------------------------------------------------------------


def test_before_the_networks_exist_there_is_a_clear_error():
    with pytest.raises(NotBuiltError, match=r"build_with_dataset.*create_impl"):
        small_dqn().predict(np.zeros((1, 4)))


@pytest.mark.parametrize("shape", [(4,), [4], ((4,), (2,)), {"a": (4,), "b": (2,)}])
def test_shapes_of_every_kind_build_and_predict(shape):
    dqn = algos.DQNConfig(batch_size=8).create()
    dqn.create_impl(shape, 3)
    if isinstance(shape, dict):
        x = {name: np.zeros((5, *size), np.float32) for name, size in shape.items()}
    elif isinstance(shape[0], tuple):
        x = tuple(np.zeros((5, *size), np.float32) for size in shape)
    else:
        x = np.zeros((5, 4), np.float32)
    action = dqn.predict(x)
    assert action.shape == (5,)
    assert action.dtype == np.int64


def test_building_twice_restarts_unless_it_changes_nothing():
    dqn = small_dqn()
    dqn.build_with_dataset(discrete_dataset())
    built = dqn.impl
    dqn.build_with_env(gymnasium.make("CartPole-v1"))
    dqn.create_impl((4,), 2)
    assert dqn.impl is built
    dqn.fit(discrete_dataset(), n_steps=1, **QUIET)
    with pytest.warns(UserWarning, match=r"replaces .* this DQN \(.*, 1 updates\) by untrained ones"):
        dqn.create_impl((4,), 2)
    assert dqn.impl is not built
    assert dqn.grad_step == 0
    dqn.fit(discrete_dataset(), n_steps=2, **QUIET)
    assert dqn.grad_step == 2
    for shape, size in [((4,), 3), ((3,), 2)]:
        with pytest.warns(UserWarning, match="by untrained ones"):
            dqn.create_impl(shape, size)
        assert (dqn.observation_shape, dqn.action_size) == (shape, size)


@pytest.mark.parametrize("wrap", [tuple, lambda pair: [pair]])
def test_what_reset_returns_is_not_an_observation(wrap):
    dqn = small_dqn()
    dqn.create_impl((4,), 2)
    with pytest.raises(ShapeError, match=r"env\.reset\(\) returns"):
        dqn.predict(wrap((np.zeros(4, np.float32), {})))
    assert dqn.predict([(0.0, 0.0, 0.0, 0.0)]).shape == (1,)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2"])
def test_action_size_is_checked(size):
    with pytest.raises(ConfigError, match="action_size"):
        small_dqn().create_impl((4,), size)


def test_the_wrong_kind_of_actions_names_the_sibling():
    with pytest.raises(ConfigError, match="use DiscreteCQL"):
        algos.CQLConfig().create().fit(discrete_dataset(), n_steps=1, **QUIET)
    with pytest.raises(ConfigError, match="use BC"):
        algos.DiscreteBCConfig().create().fit(continuous_dataset(), n_steps=1, **QUIET)
    for name in ("AWR", "TACR", "DecisionTransformer"):
        sibling = "DiscreteDecisionTransformer" if name == "TACR" else f"Discrete{name}"
        with pytest.raises(ConfigError, match=f"use {sibling}"):
            getattr(algos, f"{name}Config")().create().build_with_dataset(discrete_dataset())
        with pytest.raises(ConfigError, match=f"use {sibling.removeprefix('Discrete')}"):
            getattr(algos, f"{sibling}Config")().create().build_with_dataset(continuous_dataset())
    with pytest.raises(ConfigError, match="continuous actions"):
        small_dqn().build_with_env(gymnasium.make("Pendulum-v1"))


def test_discrete_actions_are_not_scaled():
    for name in ("DQN", "DiscreteAWR", "PPO", "DiscreteDecisionTransformer"):
        algorithm = getattr(algos, f"{name}Config")(action_scaler=MinMaxActionScaler()).create()
        with pytest.raises(ConfigError, match="action_scaler is a MinMaxActionScaler, but the actions are discrete"):
            algorithm.create_impl((4,), 2, discrete_action=True)
        assert not algorithm.built
    with pytest.raises(ConfigError, match="leave action_scaler out"):
        small_dqn(action_scaler=MinMaxActionScaler()).fit(discrete_dataset(), n_steps=1, **QUIET)


def test_an_environment_of_other_shape_is_refused():
    dqn = small_dqn()
    dqn.build_with_env(gymnasium.make("CartPole-v1"))
    with pytest.raises(EnvironmentMismatchError, match=r"\(4,\).*\(2,\)"):
        dqn.build_with_env(gymnasium.make("MountainCar-v0"))


def test_a_dataset_of_other_shape_is_refused():
    dqn = small_dqn()
    dqn.create_impl((5,), 2)
    with pytest.raises(ShapeError, match=r"\(4,\).*\(5,\)"):
        dqn.fit(discrete_dataset(), n_steps=1, **QUIET)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", 99])
def test_a_device_that_is_not_there(device):
    with pytest.raises(ConfigError, match=r"cannot be used.*Devices that can be used here: 'cpu' \(or False\)"):
        algos.DQNConfig().create(device)


@pytest.mark.parametrize("device", [False, None, "cpu", "cpu:0"])
def test_fault_17_devices_need_no_index(device):
    dqn = algos.DQNConfig(encoder_factory=SMALL).create(device)
    dqn.create_impl((4,), 2)
    assert next(dqn.nets.parameters()).device.type == "cpu"


def test_actions_beyond_an_unscaled_policy_warn_with_the_remedy():
    with pytest.warns(ActionRangeWarning, match="MinMaxActionScaler"):
        small_sac().build_with_dataset(continuous_dataset(scale=2.0))
    built = small_sac()
    built.create_impl((3,), 1)
    with pytest.warns(ActionRangeWarning, match="-2 to 2"):
        built.build_with_env(gymnasium.make("Pendulum-v1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_sac(action_scaler=MinMaxActionScaler()).build_with_dataset(continuous_dataset(scale=2.0))
        small_sac().build_with_dataset(continuous_dataset())


@pytest.mark.parametrize("name", ["PPO", "SAC", "TD3"])
def test_new_networks_scale_to_the_environments_bounds_by_themselves(name):
    env = gymnasium.make("Pendulum-v1")
    algorithm = getattr(algos, f"{name}Config")().create()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.build_with_env(env)
    actor = algorithm.nets.actor
    with torch.no_grad():
        getattr(actor, "linear", getattr(actor, "mean", None)).bias.fill_(50.0)
    assert algorithm.predict(np.zeros((3, 3), np.float32)).tolist() == [[2.0]] * 3


# -- predicting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (1, 5), (2, 1, 4)])
def test_observations_of_another_shape_are_refused(shape):
    dqn = small_dqn()
    dqn.create_impl((4,), 2)
    with pytest.raises(ShapeError, match="batch") as error:
        dqn.predict(np.zeros(shape))
    assert ("x[None]" in str(error.value)) == (shape == (4,))  # only there does it help


@pytest.mark.parametrize(
    ("shape", "single", "words"),
    [
        (
            {"image": (3,), "goal": (2,)},
            {"image": np.zeros(3), "goal": np.zeros(2)},
            r"\{'image': \(3,\), 'goal': \(2,\)\} were .* \{name: np.asarray\(part\)\[None\] for name, part in x.items",
        ),
        (
            ((3,), (2,)),
            (np.zeros(3), np.zeros(2)),
            r"\(\('batch', 3\), \('batch', 2\)\).*tuple\(np.asarray\(part\)\[None\] for",
        ),
        ({"a": {"b": (3,)}}, {"a": {"b": np.zeros(3)}}, r"tree_map\(lambda part: np.asarray\(part\)\[None\], x\)"),
    ],
)
def test_the_advice_for_a_single_observation_works(shape, single, words):
    dqn = small_dqn()
    dqn.create_impl(shape, 2)
    with pytest.raises(ShapeError, match=words) as error:
        dqn.predict(single)
    code = str(error.value).partition("batch dimension: ")[2]
    assert len(dqn.predict(eval(code, {"np": np, "birl": birl, "x": single}))) == 1  # noqa: S307


def test_values_want_one_action_for_each_observation():
    sac = small_sac()
    sac.create_impl((3,), 2)
    x = np.zeros((5, 3))
    assert sac.predict_value(x, np.zeros((5, 2))).shape == (5,)
    for shape in [(5,), (4, 2), (5, 3)]:
        with pytest.raises(ShapeError, match=r"\(5, 2\)"):
            sac.predict_value(x, np.zeros(shape))


def test_values_of_discrete_actions():
    dqn = small_dqn(n_critics=3)
    dqn.create_impl((4,), 2)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    values = np.stack([dqn.predict_value(x, np.full(6, action)) for action in range(2)], 1)
    assert (values.argmax(1) == dqn.predict(x)).all()
    np.testing.assert_array_equal(dqn.predict_value(x, np.zeros((6, 1), int)), values[:, 0])


def test_scalers_are_fitted_and_used_on_both_sides():
    dataset = continuous_dataset(scale=5.0)
    sac = small_sac(action_scaler=MinMaxActionScaler(), observation_scaler=StandardObservationScaler())
    sac.build_with_dataset(dataset)
    x = np.random.default_rng(1).normal(size=(500, 3)) * 100
    actions = sac.predict(x)
    assert np.abs(actions).max() <= 5.0
    assert np.abs(actions).max() > 1.5
    value = sac.predict_value(x, actions)
    assert np.isfinite(value).all()


def test_a_recurrent_actor_remembers_and_forgets():
    config = algos.DQNConfig(encoder_factory=GRUEncoderFactory(hidden_size=8, hidden_units=[8]))
    dqn = config.create()
    dqn.create_impl((4,), 2)
    actor = dqn.actor(greedy=True, n=2)
    rng = np.random.default_rng(0)
    for step in range(4):
        actor(rng.normal(size=(2, 4)), np.array([step == 0, step in (0, 3)]), np.zeros(2))
    state = actor.extra["state.critic"]
    assert np.abs(state[0]).max() > 0
    assert not state[1].any()  # an episode began, what was before is gone


def test_eight_threads_predict_the_same():
    from concurrent.futures import ThreadPoolExecutor

    sac = small_sac()
    sac.create_impl((3,), 2)
    x = np.random.default_rng(0).normal(size=(16, 3))
    expected = sac.predict(x)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: sac.predict(x), range(64)):
            np.testing.assert_array_equal(result, expected)


# -- what an algorithm cannot do ---------------------------------------------------------------------------------------


def test_algorithms_say_what_they_are_not_for():
    env = gymnasium.make("CartPole-v1")
    random = algos.DiscreteRandomPolicyConfig().create()
    random.build_with_env(env)
    for attempt in (
        lambda: random.fit(discrete_dataset(), n_steps=1),
        lambda: random.fit_online(env, n_steps=1),
        lambda: algos.PPOConfig().create().fit(discrete_dataset(), n_steps=1),
        lambda: algos.DecisionTransformerConfig().create().fit_online(gymnasium.make("Pendulum-v1"), n_steps=1),
        lambda: algos.DiscreteBCConfig().create().fit_online(env, n_steps=1),
        lambda: random.predict_value(np.zeros((1, 4)), np.zeros(1)),
    ):
        with pytest.raises(UnsupportedError):
            attempt()


# -- files -------------------------------------------------------------------------------------------------------------


def trained(algorithm, dataset, steps: int = 5):
    algorithm.fit(dataset, n_steps=steps, **QUIET)
    return algorithm


def equal_networks(first, second) -> bool:
    mine, theirs = first.nets.state_dict(), second.nets.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_fault_08_saved_models_keep_steps_optimisers_and_scalers(tmp_path):
    sac = trained(small_sac(observation_scaler=StandardObservationScaler()), continuous_dataset())
    sac.save(tmp_path / "model.d3")
    again = birl.load_learnable(tmp_path / "model.d3")
    assert type(again) is algos.SAC
    assert again.grad_step == sac.grad_step == 5
    assert equal_networks(again, sac)
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_array_equal(again.predict(x), sac.predict(x))
    batch = continuous_dataset().sample_transition_batch(8)
    for algorithm in (sac, again):  # the optimisers go on alike
        torch.manual_seed(0)
        algorithm.update(batch)
    assert equal_networks(again, sac)


@pytest.mark.parametrize("config", [algos.RandomPolicyConfig, algos.DiscreteRandomPolicyConfig])
def test_fault_08_random_policies_are_saved_too(tmp_path, config):
    policy = config().create()
    policy.create_impl((3,), 2)
    policy.save(tmp_path / "random.d3")
    again = birl.load_learnable(tmp_path / "random.d3")
    assert again.predict(np.zeros((7, 3))).shape == policy.predict(np.zeros((7, 3))).shape


def test_parameters_are_those_of_the_same_networks(tmp_path):
    """Equal shapes do not suffice: the parameters of another distribution or algorithm mean something else."""
    encoder = {f"{name}_encoder_factory": birl.models.VectorEncoderFactory([4]) for name in ("actor", "value")}

    def made(config, **options):
        algo = config(**encoder, **options).create()
        algo.create_impl((3,), 2, discrete_action=False)
        return algo

    normal, squashed = birl.models.NormalFactory(), birl.models.SquashedNormalFactory()
    made(algos.A2CConfig, distribution_factory=normal).save_model(tmp_path / "a2c")
    made(algos.A2CConfig, distribution_factory=normal, learning_rate=0.5).load_model(tmp_path / "a2c")
    with pytest.raises(ConfigError, match="of other networks: distribution_factory.*Give the configuration"):
        made(algos.A2CConfig, distribution_factory=squashed).load_model(tmp_path / "a2c")
    with pytest.raises(ConfigError, match="of other networks: algorithm was 'A2C', now 'A3C'"):
        made(algos.A3CConfig, distribution_factory=normal).load_model(tmp_path / "a2c")


def test_networks_that_no_file_can_describe_are_refused_at_once():
    deep = birl.models.VectorEncoderFactory([2] * 1800)
    with pytest.raises(ConfigError, match="parameters and buffers; at most 10000 can be loaded from a file"):
        algos.TD3Config(actor_encoder_factory=deep, critic_encoder_factory=deep).create().create_impl((3,), 2)


def test_parameters_alone(tmp_path):
    dqn = trained(small_dqn(), discrete_dataset())
    dqn.save_model(tmp_path / "dqn.pt")
    again = small_dqn()
    again.create_impl((4,), 2)
    again.load_model(tmp_path / "dqn.pt")
    assert equal_networks(again, dqn)
    other = small_dqn()
    other.create_impl((5,), 2)
    with pytest.raises(ShapeError, match=r"parameters for observations of shape \(4,\).*networks for .* \(5,\)"):
        other.load_model(tmp_path / "dqn.pt")
    with pytest.raises(FileError, match="holds a 'parameters', expected a 'model'; load_model.path. of an algorithm"):
        birl.load_learnable(tmp_path / "dqn.pt")
    dqn.save(tmp_path / "dqn.d3")
    with pytest.raises(FileError, match="expected a 'parameters'; birl.load_learnable.path. reads it"):
        again.load_model(tmp_path / "dqn.d3")
    with pytest.raises(FileError, match="it is not text; birl.load_learnable reads a saved model"):
        algos.DQN.from_json(tmp_path / "dqn.d3")


def test_from_json(tmp_path):
    dqn = small_dqn(gamma=0.5)
    dqn.create_impl((4,), 2)
    path = tmp_path / "params.json"
    path.write_text(json.dumps(dqn.describe()))
    again = algos.DQN.from_json(path)
    assert again.config == dqn.config
    assert again.observation_shape == (4,)
    with pytest.raises(ForeignFileError, match="'DQN', not 'SAC'"):
        algos.SAC.from_json(path)
    for discrete in (True, False):  # PPO handles both
        ppo = algos.PPOConfig().create()
        ppo.create_impl((4,), 2, discrete_action=discrete)
        path.write_text(json.dumps(ppo.describe()))
        assert algos.PPO.from_json(path).spec.actions.discrete is discrete
    path.write_text("{not json")
    with pytest.raises(ForeignFileError, match=r"params\.json"):
        algos.DQN.from_json(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match="nothing.d3"):
        birl.load_learnable(tmp_path / "nothing.d3")


# -- transfer ----------------------------------------------------------------------------------------------------------


def test_networks_move_from_cql_to_sac():
    fields = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 8}
    cql = trained(algos.CQLConfig(**fields).create(), continuous_dataset())
    sac = algos.SACConfig(**fields).create()
    sac.create_impl(cql.observation_shape, cql.action_size)
    sac.copy_policy_from(cql)
    sac.copy_q_function_from(cql)
    for name in ("actor", "critic", "critic_target"):
        mine, theirs = getattr(sac.nets, name).state_dict(), getattr(cql.nets, name).state_dict()
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    sac.copy_policy_optim_from(cql)
    sac.copy_q_function_optim_from(cql)
    sac.reset_optimizer_states()
    assert not sac.engine.optimizers["actor"].state


def test_running_statistics_are_copied_with_the_networks_that_know_their_units():
    fields = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 8}

    def scaled(clip, seed):
        birl.seed(seed)
        sac = algos.SACConfig(
            observation_scaler=RunningObservationScaler(clip), reward_scaler=RunningRewardScaler(gamma=0.5), **fields
        ).create()
        sac.create_impl((3,), 2)
        random = np.random.default_rng(seed)
        for _ in range(5):
            rows = 100 * random.normal(size=(2, 3)).astype(np.float32)
            sac.learner.update_statistics(rows, rows[:, 0], np.zeros(2, bool), np.ones(2, bool))
        return sac

    source, one, two = scaled(5.0, 0), scaled(7.0, 1), scaled(7.0, 2)
    x = 100 * np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    reward = one.reward_scaler.get_state()
    one.copy_policy_from(source)
    assert one.observation_scaler.clip == 7.0 and one.observation_scaler.count == 10
    np.testing.assert_array_equal(one.predict(x), source.predict(x))
    assert one.reward_scaler.get_params() == {key: reward[key] for key in one.reward_scaler.get_params()}
    two.copy_q_function_from(source)
    np.testing.assert_array_equal(two.predict_value(x, x[:, :2] / 500), source.predict_value(x, x[:, :2] / 500))
    assert two.reward_scaler.get_params() == source.reward_scaler.get_params()
    plain = algos.SACConfig(**fields).create()
    plain.create_impl((3,), 2)
    plain.copy_policy_from(source)  # without scalers nothing but networks is copied
    one.copy_policy_from(plain)
    assert one.observation_scaler.count == 10


def test_networks_that_do_not_fit_are_refused():
    small, large = small_dqn(), algos.DQNConfig().create()
    for dqn in (small, large):
        dqn.create_impl((4,), 2)
    with pytest.raises(ShapeError, match="same encoder"):
        small.copy_q_function_from(large)
    with pytest.raises(UnsupportedError, match="no policy"):
        small.copy_policy_from(large)


# -- recurrent rollouts ------------------------------------------------------------------------------------------------


def test_recurrent_ppo_learns_from_sequences_that_start_in_stored_states(monkeypatch):
    """The first minibatch's probability ratio is 1: the unrolled policy is the one that acted."""
    encoder = GRUEncoderFactory(hidden_size=8, hidden_units=[8])
    config = algos.PPOConfig(
        actor_encoder_factory=encoder,
        value_encoder_factory=encoder,
        rollout_length=30,
        sequence_length=7,
        batch_size=14,
        n_epochs=1,
        learning_rate=0.0,
    )
    birl.seed(0)
    ppo = config.create()
    env = gymnasium.make_vec("CartPole-v1", num_envs=3)
    seen = []
    ppo.build_with_env(env)
    update = ppo.engine.update
    monkeypatch.setattr(ppo.engine, "update", lambda batch, only: (seen.append(batch), update(batch, only))[1])
    metrics = []
    ppo.fit_online(
        env, n_steps=90, n_steps_per_epoch=90, callback=lambda algo, epoch, step: metrics.append(step), **QUIET
    )
    assert sum(int(batch.weight.sum()) for batch in seen) == 90  # no step is dropped, none is used twice
    assert all(batch.reward.shape == (7, batch.reward.shape[1]) for batch in seen)
    assert any(batch.is_first[1:].any() for batch in seen)  # episodes end inside sequences
    for batch in seen:
        ratio = ppo.nets.actor(batch.inputs).log_prob(batch.action) - batch.extra["log_prob"]
        assert (ratio * batch.weight).abs().max() < 1e-5


# -- sequence models ---------------------------------------------------------------------------------------------------


def test_a_transformer_sees_the_return_that_is_left_and_the_step_it_is_at(monkeypatch):
    transformer = algos.DecisionTransformerConfig(encoder_factory=SMALL, context_size=3, max_timestep=4).create()
    transformer.create_impl((2,), 1)
    seen = []

    def predict_context(x, action, returns, step):
        seen.append((x.copy(), returns.copy(), step.copy()))
        return np.ones((len(x), 1))

    monkeypatch.setattr(transformer, "predict_context", predict_context)
    actor = transformer.as_stateful_wrapper(target_return=10.0)
    for step, reward in enumerate([0.0, 1.0, 2.0, 3.0, 0.5]):
        actor.predict(np.full(2, float(step)), reward)
    assert [row[1][0, :, 0].tolist() for row in seen[:2]] == [[0, 0, 10], [0, 10, 9]]
    assert seen[-1][1][0, :, 0].tolist() == [7.0, 4.0, 3.5]
    assert [row[2][0].tolist() for row in seen] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4]]
    assert seen[-1][0][0, :, 0].tolist() == [2, 3, 4]
    actor.reset()
    actor.predict(np.zeros(2), 5.0)
    assert seen[-1][1][0, :, 0].tolist() == [0, 0, 10]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_scalers_of_another_size_are_refused_not_stretched():
    sac = small_sac(action_scaler=MinMaxActionScaler(minimum=[0.0], maximum=[1.0]))
    with pytest.raises(ShapeError, match=r"action_scaler.*\(1,\).*\(2,\)"):
        sac.create_impl((3,), 2)


def test_a_dataset_with_another_number_of_action_dimensions_is_refused():
    bc = algos.BCConfig(encoder_factory=SMALL).create()
    bc.create_impl((3,), 3)
    with pytest.raises(ShapeError, match="2 action dimensions.*3"):
        bc.fit(continuous_dataset(), n_steps=1, **QUIET)


def test_n_step_returns_must_agree_with_the_configuration():
    from birl.dataset import MultiStepTransitionPicker
    from birl.preprocessing import ClipRewardScaler, MultiplyRewardScaler

    dataset = discrete_dataset(transition_picker=MultiStepTransitionPicker(n_steps=3, gamma=0.99))
    with pytest.raises(ConfigError, match=r"gamma=0\.99.*gamma=0\.5"):
        small_dqn(gamma=0.5).fit(dataset, n_steps=1, **QUIET)
    with pytest.raises(ConfigError, match="ClipRewardScaler"):
        small_dqn(reward_scaler=ClipRewardScaler(-1.0, 1.0)).fit(dataset, n_steps=1, **QUIET)
    small_dqn(reward_scaler=MultiplyRewardScaler(2.0)).fit(dataset, n_steps=1, **QUIET)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda dqn, data: dqn.fit(data, n_steps=1, scorers={}), "evaluators"),
        (lambda dqn, data: dqn.fit(data, n_steps=1, evaluator={}), "'evaluator'"),
        (lambda dqn, data: dqn.fit(data, n_steps=1, evaluators=[1]), "dict"),
        (lambda dqn, data: dqn.fit(data, n_steps=1, evaluators={"td": birl.metrics.TDErrorEvaluator}), "is a class"),
        (lambda dqn, data: dqn.fit(np.zeros(3), n_steps=1), "MDPDataset"),
    ],
)
def test_mistakes_in_a_call_of_fit_are_named(call, words):
    with pytest.raises(ConfigError, match=words):
        call(small_dqn(), discrete_dataset())


def test_options_that_every_release_of_d3rlpy_orders_alike_may_be_given_by_position(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    epochs = small_dqn().fit(discrete_dataset(), 4, 2, "run", False, show_progress=False)
    assert [epoch for epoch, _ in epochs] == [1, 2] and (tmp_path / "birl_logs" / "run" / "model_4.d3").exists()
    with pytest.raises(TypeError, match="positional"):  # the seventh: n_updates in some releases, in others not
        small_dqn().fit_online(gymnasium.make("CartPole-v1"), None, None, 4, 2, 1, 10, **QUIET)


def test_ppo_refuses_what_it_would_ignore():
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(ConfigError, match="explorer, random_steps"):
        algos.PPOConfig().create().fit_online(env, explorer=algos.ConstantEpsilonGreedy(0.1), random_steps=5, n_steps=9)


def test_a_policy_is_not_asked_about_nan():
    dqn = small_dqn()
    dqn.create_impl((4,), 2)
    with pytest.raises(NonFiniteError):
        dqn.predict(np.full((1, 4), np.nan))
    with pytest.raises(ShapeError, match="observation, info"):
        dqn.predict((np.zeros(4), {}))


def test_broken_networks_are_neither_saved_nor_passed_over(tmp_path):
    dqn = small_dqn(learning_rate=1e38)
    with pytest.raises(NonFiniteError):
        dqn.fit(discrete_dataset(), n_steps=2, **QUIET)
    for save in (dqn.save, dqn.save_model):
        with pytest.raises(NonFiniteError):
            save(tmp_path / "broken.d3")
    assert not list(tmp_path.iterdir())


def moments(state):
    return state["optimizers"]["critic"]["state"]["0"]


def group(state):
    return state["optimizers"]["critic"]["param_groups"]["0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda config, state: config.pop("config"),
        lambda config, state: config.update(observation_shape="abc"),
        lambda config, state: config.update(observation_shape=[10**12]),
        lambda config, state: config.update(action_size=[0]),
        lambda config, state: config["config"]["params"]["encoder_factory"]["params"].update(hidden_units=[10**7]),
        lambda config, state: state.update(nets=None),
        lambda config, state: state.update(grad_step=-7),
        lambda config, state: state.pop("optimizers"),
        lambda config, state: state["optimizers"].update(critic=3),
        lambda config, state: next(iter(state["nets"].values())).fill_(float("nan")),
        *(
            lambda config, state, key=key, value=value: moments(state).update({key: value(moments(state)[key])})
            for key, value in {
                "exp_avg": lambda tensor: tensor[:1],  # a fused kernel would write beyond its end
                "exp_avg_sq": lambda tensor: tensor * float("nan"),
                "step": lambda tensor: torch.tensor(-5.0),
            }.items()
        ),
        lambda config, state: moments(state).pop("exp_avg_sq"),
        lambda config, state: state["optimizers"]["critic"]["state"].update({"99": moments(state)}),
        *(
            lambda config, state, key=key, value=value: group(state).update({key: value})
            for key, value in {
                "lr": -1.0,
                "eps": "x",
                "betas": None,
                "weight_decay": float("inf"),
                "maximize": True,
                "params": [0, 0, 0, 0, 0, 0],
            }.items()
        ),
        lambda config, state: group(state).update(betas=[0.9, 1.5]),
    ],
)
def test_a_valid_file_with_impossible_content_is_a_typed_error(tmp_path, change):
    from birl.files import load_archive, save_archive

    trained(small_dqn(), discrete_dataset()).save(tmp_path / "model.d3")
    config, state = load_archive(tmp_path / "model.d3", "model")
    change(config, state)
    save_archive(tmp_path / "forged.d3", "model", config, state)
    with pytest.raises((FileError, ConfigError)):
        birl.load_learnable(tmp_path / "forged.d3")


@pytest.mark.parametrize("module", ["birl", pytest.param("birl.base", marks=pytest.mark.slow)])
def test_a_model_loads_in_a_process_that_has_imported_nothing_else(module, tmp_path):
    small_dqn_trained = trained(small_dqn(), discrete_dataset())
    small_dqn_trained.save(tmp_path / "model.d3")
    code = f"import {module}; print({module}.load_learnable({str(tmp_path / 'model.d3')!r}).grad_step)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(small_dqn_trained.grad_step), done.stderr


def test_what_learns_from_no_dataset_draws_from_none():
    for config, reason in ((algos.DiscreteRandomPolicyConfig(), "not learn"), (algos.PPOConfig(), "fresh experience")):
        algorithm = config.create()
        algorithm.build_with_dataset(discrete_dataset())
        with pytest.raises(UnsupportedError, match=reason):
            algorithm.sample_minibatch(discrete_dataset())


def test_the_wrong_actions_name_another_algorithm():
    with pytest.raises(ConfigError, match="takes discrete or multi-discrete actions only; use one of .*SAC, TD3"):
        small_dqn().build_with_env(gymnasium.make("Pendulum-v1"))


def test_actions_that_do_not_exist_have_no_value():
    algorithm = algos.DQNConfig().create()
    algorithm.create_impl((3,), 2)
    with pytest.raises(ActionError, match="actions from 0 to 7 were given; they must be integers from 0 to 1"):
        algorithm.predict_value(np.zeros((2, 3), np.float32), np.array([0, 7]))


@pytest.mark.parametrize("optimizer", [torch.optim.Rprop, torch.optim.Adafactor])
def test_optimisers_with_unusual_settings_are_saved_and_loaded(optimizer: Any, tmp_path: Path) -> None:
    """Rprop's step sizes grow by factors above 1; Adafactor has a negative exponent."""
    config = algos.DQNConfig(batch_size=8, optim_factory=OptimizerFactory(optimizer))
    algorithm = config.create()
    algorithm.create_impl((3,), 2)
    algorithm.save(tmp_path / "model.d3")
    assert birl.load_learnable(tmp_path / "model.d3").describe() == algorithm.describe()


@pytest.mark.parametrize("options", [{"update_interval": 4}, {"n_updates": 2}, {"random_steps": 5}, {"overlap": True}])
def test_on_policy_algorithms_refuse_options_of_replay(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"PPO learns from rollouts of .* and does not use {name}: leave it out"):
        algos.PPOConfig().create().fit_online(gymnasium.make("CartPole-v1"), n_steps=10, **options)


def test_a_buffer_whose_frames_do_not_fit_is_refused_before_a_step_is_made():
    env = gymnasium.make("CartPole-v1")
    stacked = create_fifo_replay_buffer(100, env=env, transition_picker=FrameStackTransitionPicker(4))
    with pytest.raises(ShapeError, match=r"have observations \(16,\), but this DQN was built for \(4,\): a buffer of"):
        small_dqn().fit_online(env, stacked, n_steps=40)
    assert stacked.transition_count == 0
    single = create_fifo_replay_buffer(100, env=env, writer_preprocessor=LastFrameWriterPreprocess())
    with pytest.raises(ShapeError, match=r"but this DQN was built for \(4,\)"):
        small_dqn().fit_online(env, single, n_steps=40)
