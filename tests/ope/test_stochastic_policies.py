"""Policies that draw their actions: probabilities by hand, exports that draw and tell alike, and files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

import birl
from birl import algos
from birl.errors import BirlError, ConfigError, CorruptFileError, UnsupportedError
from birl.files import load_archive, save_archive
from birl.models import BetaFactory, DefaultEncoderFactory, GRUEncoderFactory, VectorEncoderFactory
from birl.ope import EpsilonGreedy, Gaussian, Mixture, Sampled, Softmax, load_policy
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler
from birl.testing import build_algorithm
from tests.tiers import slow_but

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
SMALL = VectorEncoderFactory([4])
MANY = 4000


def dqn(size: Any = 4, shape: Any = (3,), seed: int = 0, **fields: Any) -> Any:
    return build_algorithm(algos.DQNConfig(**{"encoder_factory": SMALL, **fields}), shape, size, seed=seed)


def td3(seed: int = 0, **fields: Any) -> Any:
    scaler = MinMaxActionScaler([-3.0, 0.0], [5.0, 1.0])
    config = algos.TD3Config(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, action_scaler=scaler, **fields)
    return build_algorithm(config, (3,), 2, seed=seed)


def sac(seed: int = 0) -> Any:
    scaler = MinMaxActionScaler([-3.0, 0.0], [5.0, 1.0])
    config = algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=SMALL, action_scaler=scaler)
    return build_algorithm(config, (3,), 2, seed=seed)


def below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def frequencies(policy: Any, row: int = 0) -> Any:
    birl.seed(0)
    drawn = policy.predict(np.repeat(X[row : row + 1], MANY, 0))
    return np.bincount(drawn, minlength=4) / MANY


def test_epsilon_greedy() -> None:
    algo = dqn()
    policy = EpsilonGreedy(algo, 0.2)
    right = 0.8 * np.eye(4)[algo.predict(X)] + 0.05
    assert policy.action_probability(X) == pytest.approx(right, abs=1e-7)
    assert policy.action_probability(X, np.arange(5) % 4) == pytest.approx(right[range(5), np.arange(5) % 4], abs=1e-7)
    assert frequencies(policy) == pytest.approx(right[0], abs=0.03)
    assert np.array_equal(EpsilonGreedy(algo, 0).action_probability(X), np.eye(4)[algo.predict(X)])
    assert EpsilonGreedy(algo, 1).action_probability(X) == pytest.approx(np.full((5, 4), 0.25))


def test_epsilon_greedy_explores_what_is_allowed() -> None:
    space = spaces.Dict({"position": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)})
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 1]], np.int8)
    x = {"position": X[:2], "action_mask": mask}
    algo = dqn(4, space, encoder_factory=DefaultEncoderFactory())
    every = EpsilonGreedy(algo, 0.3).action_probability(x)
    assert every[0] == pytest.approx(0.7 * np.eye(4)[algo.predict(x)[0]] + 0.1 * mask[0], abs=1e-7)
    assert every[1].tolist() == pytest.approx([0, 0, 0, 1])
    soft = Softmax(algo).action_probability(x)
    assert (soft[mask == 0] == 0).all() and soft.sum(-1) == pytest.approx([1, 1])


def test_several_choices_are_random_each_by_itself() -> None:
    algo = dqn([3, 2])
    policy = EpsilonGreedy(algo, 0.3)
    best = algo.predict(X)
    other = best.copy()
    other[:, 1] = 1 - other[:, 1]
    assert policy.action_probability(X, best) == pytest.approx(np.full(5, 0.8 * 0.85), abs=1e-6)
    assert policy.action_probability(X, other) == pytest.approx(np.full(5, 0.8 * 0.15), abs=1e-6)


def test_softmax_of_values_and_of_logits() -> None:
    algo = dqn()
    values = algo.action_values(X).astype(np.float64)
    right = np.exp(values / 0.1) / np.exp(values / 0.1).sum(-1, keepdims=True)
    policy = Softmax(algo, 0.1)
    assert policy.action_probability(X) == pytest.approx(right, abs=1e-5)
    assert frequencies(policy) == pytest.approx(right[0], abs=0.03)
    cloned = build_algorithm(algos.DiscreteBCConfig(encoder_factory=SMALL), (3,), 4)
    own = cloned.action_probability(X)
    assert Softmax(cloned, 1).action_probability(X) == pytest.approx(own, abs=1e-6)
    squares = own**2
    right = squares / squares.sum(-1, keepdims=True)
    assert Softmax(cloned, 0.5).action_probability(X) == pytest.approx(right, abs=1e-6)


def test_gaussian() -> None:
    algo = td3()
    policy = Gaussian(algo, [0.5, 0.1])
    middle, half, std = np.array([1.0, 0.5]), np.array([4.0, 0.5]), np.array([0.5, 0.1])
    mean = (algo.predict(X) - middle) / half
    action = np.tile([1.5, 0.2], (5, 1))
    z = ((action - middle) / half - mean) / std
    right = (np.exp(-0.5 * z**2) / (std * math.sqrt(2 * math.pi)) / half).prod(-1)
    assert policy.action_probability(X, action) == pytest.approx(right, rel=1e-4)
    action[:, 0] = 5.0
    at_bound = [below((m - 1) / 0.5) for m in mean[:, 0]]
    second = np.exp(-0.5 * z[:, 1] ** 2) / (0.1 * math.sqrt(2 * math.pi)) / 0.5
    assert policy.action_probability(X, action) == pytest.approx(at_bound * second, rel=1e-4)
    birl.seed(0)
    drawn = policy.predict(np.repeat(X[:1], MANY, 0))
    assert drawn.max(0).tolist() <= [5.0, 1.0] and drawn.min(0).tolist() >= [-3.0, 0.0]
    assert (drawn[:, 0] == 5.0).mean() == pytest.approx(at_bound[0], abs=0.03)
    assert np.median(drawn, 0) == pytest.approx(algo.predict(X[:1])[0], abs=0.1)


def test_a_mixture_is_the_mean_of_its_policies() -> None:
    first, second = dqn(), dqn(seed=1, observation_scaler=StandardObservationScaler([0.5] * 3, [2.0] * 3))
    policy = Mixture([EpsilonGreedy(first, 0.4), second], [0.7, 0.3])
    right = 0.7 * EpsilonGreedy(first, 0.4).action_probability(X) + 0.3 * np.eye(4)[second.predict(X)]
    assert policy.action_probability(X) == pytest.approx(right, abs=1e-6)
    assert frequencies(policy) == pytest.approx(right[0], abs=0.03)
    outer = Mixture([policy, Softmax(first)])
    assert [weight for weight, _ in outer.members()] == pytest.approx([0.35, 0.15, 0.5])
    assert outer.action_probability(X) == pytest.approx((right + Softmax(first).action_probability(X)) / 2, abs=1e-6)
    action = sac().predict(X)
    both = [Sampled(sac()).action_probability(X, action), Gaussian(td3(), 0.3).action_probability(X, action)]
    assert Mixture([sac(), Gaussian(td3(), 0.3)]).action_probability(X, action) == pytest.approx(np.mean(both, 0))


FLAT = StandardObservationScaler([0.5] * 3, [2.0, 0.0, 2.0])  # of data in which one number was always the same
POLICIES: dict[str, Any] = {
    "epsilon": lambda: EpsilonGreedy(dqn({"size": 4, "start": 2}), 0.3),
    "softmax of several": lambda: Softmax(dqn([3, 2]), 0.1),
    "gaussian": lambda: Gaussian(td3(observation_scaler=FLAT), [0.5, 0.1]),
    "sampled": lambda: Sampled(sac()),
    "mixture": lambda: Mixture([EpsilonGreedy(dqn(), 0.3), Softmax(dqn(seed=1))], [0.8, 0.2]),
    "mixture of densities": lambda: Mixture([sac(), Gaussian(td3(), 0.3)]),
    "narrow and wide": lambda: Mixture([Gaussian(td3(), [0.05, 0.01]), Gaussian(td3(), [9.0, 2.0])]),
}
FILES = [(name, suffix) for name in POLICIES for suffix in (".pt", ".onnx")]
FAST = [("narrow and wide", ".onnx"), ("mixture of densities", ".pt")]


def exported(policy: Any, path: Path, x: Any, noise: Any) -> tuple[Any, Any]:
    policy.save_policy(path)
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return tuple(session.run(["output_0", "log_probability"], {"input_0": x, "noise": noise}))
    return tuple(each.numpy() for each in torch.jit.load(path)(torch.from_numpy(x), torch.from_numpy(noise)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("name", "suffix"), slow_but(FAST, FILES))
def test_an_export_samples_with_the_stated_probabilities(name: str, suffix: str, tmp_path: Path) -> None:
    policy = POLICIES[name]()
    x = np.repeat(X[:1], MANY, 0)
    noise = np.random.default_rng(0).normal(size=(MANY, policy.module().width)).astype(np.float32)
    action, log_probability = exported(policy, tmp_path / f"policy{suffix}", x, noise)
    assert log_probability == pytest.approx(policy.action_log_probability(x, action), abs=1e-3)
    birl.seed(0)
    own = policy.predict(x)
    assert action.dtype == own.dtype and action.shape == own.shape
    if own.dtype.kind == "i":
        for each in np.unique(own, axis=0):
            shares = [(drawn == each).reshape(MANY, -1).all(-1).mean() for drawn in (own, action)]
            assert shares[0] == pytest.approx(shares[1], abs=0.04)
    else:
        levels = (0.1, 0.3, 0.5, 0.7, 0.9)
        assert np.quantile(action, levels, 0) == pytest.approx(np.quantile(own, levels, 0), abs=0.3)


@pytest.mark.parametrize("name", POLICIES)
def test_a_saved_policy_is_the_same(name: str, tmp_path: Path) -> None:
    policy = POLICIES[name]()
    policy.save(tmp_path / "policy.d3")
    again = load_policy(tmp_path / "policy.d3")
    assert type(again) is type(policy)
    birl.seed(0)
    action = policy.predict(X)
    birl.seed(0)
    assert np.array_equal(again.predict(X), action)
    assert np.array_equal(again.action_log_probability(X, action), policy.action_log_probability(X, action))
    assert np.isfinite(policy.action_log_probability(X, action)).all()


def test_what_is_no_saved_policy_is_refused(tmp_path: Path) -> None:
    policy, path = EpsilonGreedy(dqn(), 0.3), tmp_path / "policy.d3"
    policy.save(path)
    with pytest.raises(BirlError, match="'policy'"):
        birl.load_learnable(path)
    data, state = load_archive(path, "policy")
    for change in ({"type": "open"}, {"params": {"epsilon": 2.0}}, {"params": {"eps": 0.1}}, {"algorithm": None}):
        broken = {**data, "members": [{**data["members"][0], "policy": {**data["members"][0]["policy"], **change}}]}
        save_archive(path, "policy", broken, state)
        with pytest.raises((CorruptFileError, ConfigError)):
            load_policy(path)


def test_environments_are_played_with_draws() -> None:
    birl.seed(0)
    algo = dqn(2, (4,))
    returns = birl.metrics.evaluate(EpsilonGreedy(algo, 1.0), "CartPole-v1", 3, seed=0)
    assert len(set(returns)) > 1 and len(returns) == 3


def test_noise_of_layers_is_left_out() -> None:
    algo = dqn(encoder_factory=VectorEncoderFactory([4], noisy=True))
    policy = EpsilonGreedy(algo, 0.2)
    assert policy.action_probability(X) == pytest.approx(0.8 * np.eye(4)[algo.predict(X)] + 0.05, abs=1e-7)


def test_what_cannot_be_drawn_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epsilon.*1\.5"):
        EpsilonGreedy(dqn(), 1.5)
    with pytest.raises(ConfigError, match="EpsilonGreedy is for discrete actions.*Gaussian"):
        EpsilonGreedy(td3(), 0.1)
    with pytest.raises(ConfigError, match="Gaussian is for continuous actions.*EpsilonGreedy"):
        Gaussian(dqn(), 0.1)
    with pytest.raises(ConfigError, match="std has 3 numbers"):
        Gaussian(td3(), [0.1, 0.1, 0.1])
    with pytest.raises(UnsupportedError, match=r"samples no actions.*Gaussian\(algo, std\)"):
        Mixture([td3()])
    cloned = build_algorithm(algos.BCConfig(encoder_factory=SMALL), (3,), 2)
    with pytest.raises(UnsupportedError, match="samples no actions"):
        Sampled(cloned)
    with pytest.raises(UnsupportedError, match="has no scores of actions"):
        Softmax(build_algorithm(algos.DiscreteBCQConfig(encoder_factory=SMALL), (3,), 4))
    with pytest.raises(UnsupportedError, match="recurrent"):
        EpsilonGreedy(dqn(encoder_factory=GRUEncoderFactory(hidden_size=4, hidden_units=[4])), 0.1)
    constant = build_algorithm(
        algos.TD3Config(
            actor_encoder_factory=SMALL,
            critic_encoder_factory=SMALL,
            action_scaler=MinMaxActionScaler([-3.0, 1.0], [5.0, 1.0]),
        ),
        (3,),
        2,
    )
    fixed = Gaussian(constant, 0.1)
    for ask in (
        lambda: fixed.action_log_probability(X, fixed.predict(X)),
        lambda: Mixture([fixed]).save_policy(tmp_path / "fixed.onnx"),
    ):
        with pytest.raises(UnsupportedError, match="a dimension of actions to a single value, which has no density"):
            ask()
    assert not list(tmp_path.glob("fixed*"))
    with pytest.raises(ConfigError, match="the sum 0.9"):
        Mixture([dqn(), dqn()], [0.5, 0.4])
    with pytest.raises(ConfigError, match="must be the same"):
        Mixture([dqn(), dqn(3)])
    with pytest.raises(ConfigError, match="takes an algorithm"):
        EpsilonGreedy(EpsilonGreedy(dqn(), 0.1), 0.1)  # type: ignore[arg-type]
    ppo = algos.PPOConfig(distribution_factory=BetaFactory(), actor_encoder_factory=SMALL)
    with pytest.raises(UnsupportedError, match="a Beta distribution does not support"):
        Sampled(build_algorithm(ppo, (3,), 2, discrete_action=False)).save_policy(tmp_path / "policy.pt")
