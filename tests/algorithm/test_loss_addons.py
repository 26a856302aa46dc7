"""Terms that are added to losses: equal to their formulas, part of every way of updating, and of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import birl
from birl.algorithm import (
    AttractionKL,
    ModelFile,
    RepulsionKL,
    ReturnPredictor,
    RewardPredictor,
    fit_many,
    load_learnable,
)
from birl.algos import (
    BCQConfig,
    DDPGConfig,
    DecisionTransformerConfig,
    DiscreteBCConfig,
    DiscreteSACConfig,
    DoubleDQNConfig,
    DQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    TRPOConfig,
)
from birl.dataset import MDPDataset
from birl.engine import compiler
from birl.errors import ConfigError, FileError
from birl.logging import NoopAdapterFactory
from birl.models import GRUEncoderFactory, VectorEncoderFactory
from birl.optimizers import SGDFactory
from birl.preprocessing import MultiplyRewardScaler, StandardObservationScaler
from birl.testing import build_algorithm, check_algorithm, random_dataset
from birl.types import Batch

SMALL = VectorEncoderFactory(hidden_units=[4])
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def bc(seed: int = 0, **fields: Any) -> Any:
    """One linear layer after 4 units of ReLU, one SGD step of size 0.5 on the cross-entropy."""
    own = {"encoder_factory": SMALL, "optim_factory": SGDFactory(), "learning_rate": 0.5, "beta": 0.0, "batch_size": 8}
    return build_algorithm(DiscreteBCConfig(**{**own, **fields}), action_size=3, discrete_action=True, seed=seed)


def sac(seed: int = 0, **fields: Any) -> Any:
    own = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 8}
    return build_algorithm(SACConfig(**{**own, **fields}), seed=seed)


def data(discrete: bool = False) -> MDPDataset:
    birl.seed(1)
    return random_dataset(action_size=3 if discrete else 2, discrete_action=discrete)


def batch() -> Batch:
    draw = torch.Generator().manual_seed(3)
    observation, reward = torch.randn(7, 3, generator=draw), torch.randn(7, generator=draw)
    reward[2] = reward[5] = 0.0
    action = torch.randint(3, (7,), generator=draw)
    weight = torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0])  # the last is padding
    returns = torch.randn(7, generator=draw)
    return Batch(observation, action, reward, observation, torch.ones(7), weight, extra={"discounted_return": returns})


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Two models of BC."""
    paths = [str(tmp_path / f"{seed}.d3") for seed in (5, 6)]
    for seed, path in zip((5, 6), paths, strict=True):
        bc(seed).save(path)
    return paths


# -- goldens: plain matrices, from the formulas ------------------------------------------------------------------------


def parts_of(algorithm: Any) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in algorithm.nets.state_dict().items()}


def logits_and_features(parts: dict[str, Tensor], observation: Tensor, prefix: str = "actor.") -> tuple[Tensor, Tensor]:
    (weight,), (bias,) = (
        [x for name, x in parts.items() if name.startswith(f"{prefix}encoder.") and x.dim() == dims] for dims in (2, 1)
    )
    features = torch.relu(observation @ weight.T + bias)
    return features @ parts[f"{prefix}linear.weight"].T + parts[f"{prefix}linear.bias"], features


def mean(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum() / (weight > 0).sum()


def divergences(parts: dict[str, Tensor], paths: list[str], given: Batch) -> list[Tensor]:
    mine = F.log_softmax(logits_and_features(parts, given.observation)[0], -1)
    found = []
    for path in paths:
        theirs = F.log_softmax(logits_and_features(parts_of(load_learnable(path)), given.observation)[0], -1)
        found.append(mean((theirs.exp() * (theirs - mine)).sum(-1), given.weight))
    return found


def predicted(parts: dict[str, Tensor], name: str, target: Tensor, given: Batch) -> Tensor:
    features = logits_and_features(parts, given.observation)[1]
    error = features @ parts[f"{name}.weight"].T + parts[f"{name}.bias"]
    return 0.5 * mean((target - error.squeeze(-1)).square(), given.weight)


def expected(kind: str, parts: dict[str, Tensor], paths: list[str], given: Batch) -> Tensor:
    if kind == "attraction_kl":  # min_i E[KL(pi_i || pi)] - log v_i, with v = 2 and 0.5
        one, other = divergences(parts, paths, given)
        return torch.minimum(one - np.log(2.0), other - np.log(0.5))
    if kind == "repulsion_kl":  # -sum_i v_i E[KL(pi_i || pi)]
        one, other = divergences(parts, paths, given)
        return -(2.0 * one + 0.5 * other)
    target = given.reward if kind == "reward_predictor" else given.extra["discounted_return"]
    return predicted(parts, kind, target, given)


@pytest.mark.parametrize("kind", ["attraction_kl", "repulsion_kl", "reward_predictor", "return_predictor"])
def test_an_update_is_that_of_the_formulas(kind: str, models: list[str]) -> None:
    """The cross-entropy plus 0.7 of the term, one step of gradient descent; values of behaviours count."""
    addon: Any = {
        "attraction_kl": lambda: AttractionKL(models, values=(2.0, 0.5), weight=0.7),
        "repulsion_kl": lambda: RepulsionKL(models, values=(2.0, 0.5), weight=0.7),
        "reward_predictor": lambda: RewardPredictor(weight=0.7),
        "return_predictor": lambda: ReturnPredictor(weight=0.7),
    }[kind]()
    algorithm, given = bc(loss_addons=(addon,)), batch()
    start = parts_of(algorithm)
    trained = {name: x.clone().requires_grad_() for name, x in start.items() if not name.startswith(("attr", "repul"))}
    log_probs = F.log_softmax(logits_and_features(trained, given.observation)[0], -1)
    own = mean(-log_probs.gather(-1, given.action.unsqueeze(-1)).squeeze(-1), given.weight)
    term = expected(kind, trained, models, given)
    gradients = torch.autograd.grad(own + 0.7 * term, list(trained.values()))
    own, term = own.detach(), term.detach()
    metrics = algorithm.update(given)
    assert float(metrics[f"{kind}_loss"]) == pytest.approx(float(term), abs=1e-6)
    assert float(metrics["loss"]) == pytest.approx(float(own + 0.7 * term), abs=1e-6)
    after = parts_of(algorithm)
    for (name, x), gradient in zip(trained.items(), gradients, strict=True):
        torch.testing.assert_close(after[name], (x - 0.5 * gradient).detach(), atol=1e-6, rtol=1e-5)
        assert not torch.equal(after[name], start[name])
    for name in start.keys() - trained.keys():  # behaviours are frozen
        assert torch.equal(after[name], start[name])


def test_no_push_beyond_the_cap(models: list[str]) -> None:
    plain, capped = bc(), bc(loss_addons=(RepulsionKL(models, cap=1e-4),))
    given = batch()
    metrics = capped.update(given)
    plain.update(given)
    assert float(metrics["repulsion_kl_loss"]) == pytest.approx(-2e-4)
    after = parts_of(capped)
    assert all(torch.allclose(x, after[name], atol=1e-7) for name, x in parts_of(plain).items())


def test_zero_targets_are_kept_with_a_probability() -> None:
    given = batch()
    one, none, half = (bc(loss_addons=(RewardPredictor(keep_zeros=share),)) for share in (1.0, 0.0, 0.5))
    parts = parts_of(none)

    def of(*zeros: int) -> float:
        kept = given.weight * torch.tensor([row in zeros or bool(given.reward[row]) for row in range(7)])
        return float(predicted(parts, "reward_predictor", given.reward, Batch(*given.parts[:5], kept)))

    value = of()
    assert float(none.update(given)["reward_predictor_loss"]) == pytest.approx(float(value), abs=1e-6)
    assert float(one.update(given)["reward_predictor_loss"]) != pytest.approx(float(value), abs=1e-4)
    step = half.engine.steps[0]
    drawn = [half.engine.compute_gradients(step, given)[1].metrics["reward_predictor_loss"] for _ in range(40)]
    assert {round(float(x), 5) for x in drawn} == {round(x, 5) for x in (of(), of(2), of(5), of(2, 5))}


# -- faults of others --------------------------------------------------------------------------------------------------


def test_policies_of_quantities_have_divergences(tmp_path: Path) -> None:
    """PyTorchRL's terms need categorical policies. KL of squashed Gaussians is that of the Gaussians."""
    path = str(tmp_path / "expert.d3")
    other = sac(seed=7)
    other.save(path)
    algorithm = sac(loss_addons=(AttractionKL(path),))
    minibatch = algorithm.sample_minibatch(data())
    given = algorithm.learner.batch(minibatch)
    parameters = []
    for parts in (parts_of(other), parts_of(algorithm)):
        mean_of, log_std = logits_and_features(parts, given.observation)[0].chunk(2, -1)
        parameters.append((mean_of, log_std.clamp(-20, 2).exp()))
    (m, s), (n, t) = parameters
    divergence = ((t / s).log() + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum(-1).mean()
    assert float(algorithm.update(given)["attraction_kl_loss"]) == pytest.approx(float(divergence), rel=1e-4)


@pytest.mark.parametrize("config", [DQNConfig, DoubleDQNConfig, DDPGConfig, TD3Config, SACConfig, DiscreteSACConfig])
@pytest.mark.parametrize("addon", [RewardPredictor(), ReturnPredictor()], ids=["reward", "return"])
def test_predictors_learn_off_policy(config: Any, addon: Any) -> None:
    """PyTorchRL's raise a NameError in three of these, are in no optimiser, and need statistics that are never made."""
    discrete = "Discrete" in config.__name__ or "DQN" in config.__name__
    names = ("encoder_factory",) if "DQN" in config.__name__ else ("actor_encoder_factory", "critic_encoder_factory")
    fields = dict.fromkeys(names, SMALL)
    algorithm = build_algorithm(config(**fields, loss_addons=(addon,)), action_size=3 if discrete else 2)
    before, dataset = parts_of(algorithm), data(discrete)
    for _ in range(2):
        algorithm.update(algorithm.sample_minibatch(dataset))
    name = f"{addon.get_type()}.weight"
    assert not torch.equal(before[name], parts_of(algorithm)[name])


def test_the_return_is_that_of_the_data() -> None:
    observations = np.zeros((4, 3), np.float32)
    dataset = MDPDataset(observations, np.zeros((4, 2)), np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 0, 0, 1]))
    algorithm = sac(gamma=0.5, reward_scaler=MultiplyRewardScaler(2.0), loss_addons=(ReturnPredictor(),))
    minibatch = algorithm.learner.batch(algorithm.sample_minibatch(dataset))
    found = dict(zip(minibatch.reward.tolist(), minibatch.extra["discounted_return"].tolist(), strict=True))
    assert found == {key: value for key, value in {2.0: 8.0, 4.0: 12.0, 8.0: 16.0, 16.0: 16.0}.items() if key in found}


# -- every way of updating ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiled_and_stacked_updates_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
    path = str(tmp_path / "expert.d3")
    bc(7).save(path)
    given = (AttractionKL(path, weight=0.3), RewardPredictor(), RewardPredictor(weight=0.1, keep_zeros=0.5))

    def config(**fields: Any) -> DiscreteBCConfig:
        return DiscreteBCConfig(encoder_factory=SMALL, batch_size=8, loss_addons=given, **fields)

    alone = []
    for seed in (0, 1):
        birl.seed(seed)
        alone.append(config().create())
        alone[-1].fit(data_of(seed), 3, **QUIET)
    together = fit_many(config(), data_of(0), 3, (0, 1), **QUIET)
    birl.seed(0)
    compiled = config(compile_graph=True).create()
    compiled.fit(data_of(0), 3, **QUIET)
    for one, other in ((alone[0], together[0]), (alone[1], together[1]), (alone[0], compiled)):
        after = parts_of(other)
        assert {"reward_predictor.bias", "reward_predictor_2.bias"} <= after.keys()
        assert all(torch.allclose(x, after[name], atol=1e-5) for name, x in parts_of(one).items())


def data_of(seed: int) -> MDPDataset:
    """The same steps for each seed, drawn by its own generator."""
    rng = np.random.default_rng(0)
    terminals = np.zeros(40)
    terminals[9::10] = 1
    observations, actions, rewards = rng.normal(size=(40, 3)), rng.integers(3, size=40), rng.normal(size=40)
    rewards[::2] = 0.0
    birl.seed(seed)
    return MDPDataset(observations.astype(np.float32), actions, rewards, terminals)


def test_gradients_of_their_networks_are_reduced() -> None:
    algorithm, seen = sac(loss_addons=(RewardPredictor(),)), []
    algorithm.engine.reduce = lambda gradients: seen.append(set(gradients)) or gradients
    algorithm.update(algorithm.sample_minibatch(data()))
    assert any("reward_predictor.weight" in names for names in seen)


def test_rollouts_have_rewards_and_returns() -> None:
    fields: Any = {"rollout_length": 8, "batch_size": 4, "loss_addons": (RewardPredictor(), ReturnPredictor())}
    algorithm = PPOConfig(actor_encoder_factory=SMALL, value_encoder_factory=SMALL, **fields).create()
    epochs: list[Any] = []
    algorithm.fit_online("CartPole-v1", n_steps=16, callback=lambda algo, *_: epochs.append(parts_of(algo)), **QUIET)
    for name in ("reward_predictor", "return_predictor"):
        assert not torch.equal(epochs[0][f"{name}.weight"], epochs[-1][f"{name}.weight"])


def test_a_reset_restarts_their_networks() -> None:
    config = DQNConfig(encoder_factory=SMALL, batch_size=8, reset_interval=2, loss_addons=(RewardPredictor(),))
    algorithm, dataset = build_algorithm(config, action_size=3, discrete_action=True), data(True)
    algorithm.update(algorithm.sample_minibatch(dataset))
    before = algorithm.nets.reward_predictor.weight.detach().clone()
    algorithm.update(algorithm.sample_minibatch(dataset))
    assert (algorithm.nets.reward_predictor.weight - before).abs().max() > 0.05


@pytest.mark.slow
def test_the_contract_holds_with_them() -> None:
    check_algorithm(DQNConfig(encoder_factory=SMALL, batch_size=6, loss_addons=(RewardPredictor(),)))


def test_dropout_of_behaviours_is_off(tmp_path: Path) -> None:
    path = str(tmp_path / "expert.d3")
    bc(7, encoder_factory=VectorEncoderFactory([4], dropout_rate=0.5)).save(path)
    algorithm = bc(loss_addons=(AttractionKL(path),))
    step, given = algorithm.engine.steps[0], batch()
    values = {float(algorithm.engine.compute_gradients(step, given)[1].value) for _ in range(5)}
    assert len(values) == 1


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_model_holds_the_behaviours_that_it_was_trained_with(models: list[str], tmp_path: Path) -> None:
    algorithm = bc(loss_addons=(AttractionKL(models),))
    algorithm.update(batch())
    algorithm.save(tmp_path / "model.d3")
    for path in models:
        os.remove(path)
    loaded = load_learnable(tmp_path / "model.d3")
    assert loaded.config == algorithm.config
    for each in (algorithm, loaded):
        each.update(batch())
    after = parts_of(loaded)
    assert all(torch.equal(x, after[name]) for name, x in parts_of(algorithm).items())
    with pytest.raises(FileError, match=r"5\.d3"):
        bc(loss_addons=loaded.config.loss_addons)


def test_a_run_goes_on_with_them_bit_for_bit(models: list[str], tmp_path: Path) -> None:
    given = (AttractionKL(models), RewardPredictor(keep_zeros=0.5))

    def run(n_steps: int, folder: Path) -> dict[str, Tensor]:
        algorithm = bc(loss_addons=given)
        algorithm.fit(data(True), n_steps, checkpoint=folder, **QUIET)
        return parts_of(algorithm)

    whole = run(6, tmp_path / "whole")
    run(3, tmp_path / "parts")
    resumed = run(6, tmp_path / "parts")
    assert all(torch.equal(x, resumed[name]) for name, x in whole.items())


def test_weights_are_retuned_and_behaviours_are_not(models: list[str]) -> None:
    def config(weight: float, path: str) -> tuple[Any, ...]:
        return (AttractionKL(path, weight=weight),)

    retuned, made = (bc(loss_addons=config(weight, models[0])) for weight in (0.1, 5.0))
    retuned.retune(loss_addons=config(5.0, models[0]))
    for algorithm in (retuned, made):
        algorithm.update(batch())
    after = parts_of(made)
    assert all(torch.equal(x, after[name]) for name, x in parts_of(retuned).items())
    with pytest.raises(ConfigError, match="networks get parameters from it"):
        retuned.retune(loss_addons=config(5.0, models[1]))
    with pytest.raises(ConfigError, match="steps of an update depend on it"):
        retuned.retune(loss_addons=(RewardPredictor(),))
    with pytest.raises(ConfigError, match="steps of an update depend on it"):
        retuned.retune(loss_addons=None)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (AttractionKL, {"behaviours": ()}, "paths of models"),
        (RewardPredictor, {"weight": -1.0}, "weight is -1.0"),
        (RewardPredictor, {"keep_zeros": 1.5}, "keep_zeros is 1.5"),
        (SACConfig, {"loss_addons": ("reward",)}, "no LossAddOn is called 'reward'"),
        (SACConfig, {"loss_addons": (3,)}, "an item of SACConfig.loss_addons is 3"),
        (SACConfig, {"loss_addons": (RewardPredictor(phase="policy"),)}, "phase is 'policy'.*'critic', 'actor'"),
        (TRPOConfig, {"loss_addons": (RewardPredictor(),)}, "'actor', has no gradient step"),
        (BCQConfig, {"loss_addons": (RewardPredictor(),)}, "ResidualPolicy of BCQ"),
        (DecisionTransformerConfig, {"loss_addons": (RewardPredictor(),)}, "ContinuousDecisionTransformer of Dec"),
    ],
)
def test_what_fits_nothing_is_refused(kind: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config = kind(**fields)
        build_algorithm(config, discrete_action=False if kind is TRPOConfig else None)


def test_behaviours_that_do_not_fit_are_refused(models: list[str], tmp_path: Path) -> None:
    given = (AttractionKL(models[0]),)
    with pytest.raises(ConfigError, match="was built for"):
        sac(loss_addons=given)
    with pytest.raises(ConfigError, match="the policy of DQN is not a distribution"):
        build_algorithm(DQNConfig(loss_addons=given), action_size=3, discrete_action=True)
    with pytest.raises(ConfigError, match="observation_scaler"):
        scaler = StandardObservationScaler(mean=np.zeros(3), std=np.ones(3))
        bc(observation_scaler=scaler, loss_addons=given)
    path = str(tmp_path / "other.d3")
    build_algorithm(DQNConfig(encoder_factory=SMALL), action_size=3, discrete_action=True).save(path)
    with pytest.raises(ConfigError, match="holds a DQN, whose policy is not a distribution"):
        bc(loss_addons=(AttractionKL(path),))
    bc(encoder_factory=GRUEncoderFactory(hidden_size=3, hidden_units=[4])).save(path)
    with pytest.raises(ConfigError, match="is recurrent or noisy"):
        bc(loss_addons=(AttractionKL(path),))
    with pytest.raises(ConfigError, match="2 values"):
        AttractionKL(models[0], values=(1.0, 2.0))
    with pytest.raises(FileError, match="nothing"):
        AttractionKL(str(tmp_path / "nothing.d3"))
    kept = ModelFile(models[0])
    bc(9).save(models[0])
    with pytest.raises(FileError, match="has changed since"):
        bc(loss_addons=(AttractionKL(kept),))
