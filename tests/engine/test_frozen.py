"""Parameters that do not learn: frozen by the user, frozen by an encoder, or detached; in every kind of update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import birl
from birl.models import EncoderFactory, VectorEncoderFactory
from birl.optimizers import AdamFactory, AdamWFactory

QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}


class Backbone(nn.Module):
    """Two layers, the first of which stands for a pre-trained one."""

    def __init__(self, inputs: int, frozen: bool, detached: bool) -> None:
        super().__init__()
        self.back, self.head, self.detached = nn.Linear(inputs, 8), nn.Linear(8, 6), detached
        with torch.no_grad():
            self.back.weight.copy_(torch.linspace(-1, 1, 8 * inputs).view(8, inputs))
        self.back.requires_grad_(not frozen)

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        x = observation if action is None else torch.cat([observation, action], -1)
        features = torch.tanh(self.back(x))
        return torch.tanh(self.head(features.detach() if self.detached else features))


@dataclass(frozen=True)
class BackboneFactory(EncoderFactory, type="backbone_of_tests"):
    frozen: bool = False
    detached: bool = False

    def create(self, observation_shape: Any) -> nn.Module:
        return Backbone(observation_shape[0], self.frozen, self.detached)

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool = False) -> nn.Module:
        return Backbone(observation_shape[0] + action_size, self.frozen, self.detached)


ADAM = AdamFactory()
FROZEN, DETACHED = BackboneFactory(frozen=True), BackboneFactory(detached=True)


def data(discrete: bool) -> birl.dataset.MDPDataset:
    r = np.random.default_rng(0)
    actions = r.integers(0, 2, 200) if discrete else r.uniform(-1, 1, (200, 2)).astype("f4")
    ends = np.arange(200) % 20 == 19
    return birl.dataset.MDPDataset(r.normal(size=(200, 3)).astype("f4"), actions, r.random(200), ends, np.zeros(200))


def dqn(encoder: EncoderFactory, optimizer: Any = ADAM, **fields: Any) -> birl.algos.DQNConfig:
    return birl.algos.DQNConfig(encoder_factory=encoder, optim_factory=optimizer, batch_size=16, **fields)


def sac(encoder: EncoderFactory, optimizer: Any = ADAM, **fields: Any) -> birl.algos.SACConfig:
    return birl.algos.SACConfig(
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        actor_optim_factory=optimizer,
        critic_optim_factory=optimizer,
        batch_size=16,
        **fields,
    )


def backs(algorithm: Any) -> dict[str, Tensor]:
    """Return copies of the parameters that must stay, targets included."""
    return {name: p.detach().clone() for name, p in algorithm.nets.named_parameters() if ".back." in name}


def built(config: Any, seed: int = 0) -> tuple[Any, Any]:
    """Return an algorithm with networks, and new data, which draw minibatches from the seed."""
    birl.seed(seed)
    dataset = data(isinstance(config, birl.algos.DQNConfig))
    algorithm = config.create()
    algorithm.build_with_dataset(dataset)
    return algorithm, dataset


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("encoder", [FROZEN, DETACHED], ids=["frozen", "detached"])
@pytest.mark.parametrize("make", [dqn, sac])
def test_backbones_stay_and_heads_learn(make: Any, encoder: Any, compiled: bool) -> None:
    algorithm, dataset = built(make(encoder, AdamWFactory(weight_decay=0.1), compile_graph=compiled))
    before, heads = backs(algorithm), {n: p.detach().clone() for n, p in algorithm.nets.named_parameters()}
    algorithm.fit(dataset, n_steps=4, n_steps_per_epoch=4, **QUIET)
    assert before and all(torch.equal(before[name], value) for name, value in backs(algorithm).items())
    still = [name for name, p in algorithm.nets.named_parameters() if torch.equal(p, heads[name])]
    assert {name for name in still if ".back." not in name and "targ" not in name} == set()


@pytest.mark.parametrize("compiled", [False, True])
def test_freezing_and_unfreezing_between_updates(compiled: bool) -> None:
    algorithm, dataset = built(dqn(BackboneFactory(), compile_graph=compiled))
    for frozen in (False, True, False, True):
        for name, parameter in algorithm.nets.named_parameters():
            if name.startswith("critic.") and ".back." in name:
                parameter.requires_grad_(not frozen)
        before = {n: p.detach().clone() for n, p in algorithm.nets.named_parameters() if n.startswith("critic.")}
        algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, **QUIET)
        assert before
        same = {n for n, value in before.items() if torch.equal(value, algorithm.nets.get_parameter(n))}
        assert same == ({n for n in before if ".back." in n} if frozen else set())


def test_eager_and_compiled_updates_agree() -> None:
    nets = []
    for compiled in (False, True):
        algorithm, dataset = built(dqn(FROZEN, compile_graph=compiled))
        algorithm.fit(dataset, n_steps=5, n_steps_per_epoch=5, **QUIET)
        nets.append(algorithm.nets.state_dict())
    for name, value in nets[0].items():
        torch.testing.assert_close(value, nets[1][name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("encoder", [FROZEN, DETACHED], ids=["frozen", "detached"])
@pytest.mark.parametrize("make", [dqn, sac])
def test_many_seeds_are_those_of_single_runs(make: Any, encoder: Any) -> None:
    config = make(encoder, AdamWFactory(weight_decay=0.1))
    many = birl.fit_many(config, data(make is dqn), n_steps=3, n_steps_per_epoch=3, seeds=[0, 1], **QUIET)
    for seed, algorithm in enumerate(many):
        birl.seed(seed)
        dataset, alone = data(make is dqn), config.create()
        alone.build_with_dataset(dataset)
        before = backs(alone)
        alone.fit(dataset, n_steps=3, n_steps_per_epoch=3, **QUIET)
        assert before and all(torch.equal(before[name], value) for name, value in backs(algorithm).items())
        for name, value in alone.nets.state_dict().items():
            torch.testing.assert_close(algorithm.nets.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("encoder", [FROZEN, DETACHED], ids=["frozen", "detached"])
def test_models_and_checkpoints_continue(encoder: Any, compiled: bool, tmp_path: Path) -> None:
    config = dqn(encoder, AdamWFactory(weight_decay=0.1), compile_graph=compiled)
    before = backs(built(config)[0])
    for path, steps in (("whole", [4]), ("parts", [2, 4])):
        for n_steps in steps:
            algorithm, dataset = built(config, 0 if n_steps == steps[0] else 9)
            algorithm.fit(dataset, n_steps=n_steps, n_steps_per_epoch=2, checkpoint=tmp_path / f"{path}.d3c", **QUIET)
        algorithm.save(tmp_path / f"{path}.d3")
        assert before and all(torch.equal(value, backs(algorithm)[name]) for name, value in before.items())
    one, other = (birl.load_learnable(tmp_path / f"{path}.d3") for path in ("whole", "parts"))
    for name, value in one.nets.state_dict().items():
        assert torch.equal(value, other.nets.state_dict()[name]), name
    one.fit(dataset, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert all(torch.equal(before[name], value) for name, value in backs(one).items())


def test_a_frozen_network_and_statistics_of_gradients(tmp_path: Path) -> None:
    """An actor that does not learn leaves the critic to learn; gradients that are not there are logged as 0."""
    algorithm, dataset = built(sac(VectorEncoderFactory([8])))
    algorithm.nets.actor.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in algorithm.nets.named_parameters()}
    files = birl.logging.FileAdapterFactory(root_dir=tmp_path)
    algorithm.fit(
        dataset,
        n_steps=4,
        n_steps_per_epoch=4,
        experiment_name="run",
        with_timestamp=False,
        logger_adapter=files,
        show_progress=False,
        log_gradients=True,
    )
    changed = {n.partition(".")[0] for n, p in algorithm.nets.named_parameters() if not torch.equal(p, before[n])}
    assert "actor" not in changed and {name for name in changed if "critic" in name}
    rows = [path.read_text() for path in (tmp_path / "run").glob("actor*_grad.csv")]
    assert rows and all(line.split(",")[2:] == ["0.0"] * 4 for text in rows for line in text.splitlines()[1:])


def test_exports(tmp_path: Path) -> None:
    algorithm, dataset = built(dqn(FROZEN))
    algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, **QUIET)
    algorithm.save_policy(tmp_path / "policy.pt")
    x = torch.randn(5, 3)
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        policy = torch.jit.load(tmp_path / "policy.pt")
    assert policy(x).tolist() == algorithm.predict(x.numpy()).tolist()
    learning = {n for n, p in algorithm.nets.named_parameters() if p.requires_grad}
    assert learning and not any(".back." in name for name in learning)  # an export restores the flags


class Normed(nn.Module):
    """A frozen backbone with batch normalisation, in evaluation mode or not, and a layer that learns."""

    def __init__(self, inputs: int, affine: bool) -> None:
        super().__init__()
        self.back = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8, affine=affine), nn.Tanh())
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.back.requires_grad_(False)

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        x = observation if action is None else torch.cat([observation, action], -1)
        return torch.tanh(self.head(self.norm(self.back(x))))


@dataclass(frozen=True)
class NormedFactory(EncoderFactory, type="normed_of_tests"):
    affine: bool = True

    def create(self, observation_shape: Any) -> nn.Module:
        return Normed(observation_shape[0], self.affine)

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool = False) -> nn.Module:
        return Normed(observation_shape[0] + action_size, self.affine)


@pytest.mark.parametrize(("make", "affine", "compiled"), [(dqn, True, True), (dqn, False, False), (sac, True, False)])
def test_statistics_of_frozen_batch_normalisation_stay(make: Any, affine: bool, compiled: bool, tmp_path: Path) -> None:
    algorithm, dataset = built(make(NormedFactory(affine), compile_graph=compiled))

    def running(of: str) -> dict[str, Tensor]:
        named = algorithm.nets.named_buffers()
        return {n: value.clone() for n, value in named if f".{of}" in n and "running" in n and "target" not in n}

    before, others = running("back.1."), running("norm.")
    assert before and others
    for _ in range(2):
        algorithm.predict(np.zeros((1, 3), np.float32))
        algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, **QUIET)
        assert all(torch.equal(value, before[name]) for name, value in running("back.1.").items())
        assert not any(torch.equal(value, others[name]) for name, value in running("norm.").items())
        algorithm.save(tmp_path / "model.d3")
        algorithm = birl.load_learnable(tmp_path / "model.d3")
    for name, module in algorithm.nets.named_modules():
        if name.endswith(".back") and "target" not in name:
            module.requires_grad_(True)
    algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert not any(torch.equal(value, before[name]) for name, value in running("back.1.").items())
